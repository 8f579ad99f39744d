"""An image as it travels: encoded bytes and their size. Pillow is loaded where one is made, torch never."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tinker_actors.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Encodings that are read. Pillow knows others, but hands some of them to programs of the host (EPS to Ghostscript)."""

MOST_PIXELS = 50_000_000
"""Of an image: a few kilobytes may unpack to as many as they like, four bytes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An encoded image. `Image.of` makes one from what there is.

    >>> Image.of(np.zeros((4, 6), np.uint8))
    Image(png, 6x4)

    Attributes:
        data: The encoded bytes.
        format: The encoding in lower case, such as "png" or "jpeg".
        width: Pixels of a row.
        height: Rows.
    """

    data: bytes
    format: str
    width: int
    height: int

    def __post_init__(self) -> None:
        if self.width < 1 or self.height < 1:
            raise DataError(f"an image of {self.width}x{self.height} pixels has none; at least 1x1 is needed")

    def __repr__(self) -> str:
        return f"Image({self.format}, {self.width}x{self.height})"

    @classmethod
    def of(cls, source: Image | bytes | PilImage | NDArray[Any]) -> Image:
        """An image from encoded bytes, a Pillow image, or an array.

        Encoded bytes stay as they are, and an orientation in their metadata is not applied; all else becomes PNG,
        which keeps every pixel.

        Args:
            source: Bytes in one of `FORMATS`, of at most `MOST_PIXELS` pixels; a Pillow image; or an array of unsigned
                bytes, shape (height, width) for grey, (height, width, 3) for RGB or (height, width, 4) for RGBA.

        Raises:
            DataError: The source can't be read as an image; says what it is.
        """
        if isinstance(source, Image):
            return source
        if isinstance(source, bytes):
            return _of_bytes(source)
        if isinstance(source, np.ndarray):
            return _of_pil(_from_array(source))
        if hasattr(source, "save") and hasattr(source, "convert"):
            return _of_pil(source)
        raise DataError(
            f"an image was given as {type(source).__name__}; encoded bytes, a Pillow image or an array of unsigned "
            "bytes is needed"
        )


def opened(data: bytes) -> PilImage:
    """Encoded bytes as a Pillow image whose pixels aren't unpacked yet; close it.

    Raises:
        DataError: They are in none of `FORMATS`, or have more than `MOST_PIXELS` pixels.
    """
    from PIL import Image as Pillow

    try:
        image = Pillow.open(io.BytesIO(data), formats=FORMATS)
    except Exception as error:  # decoders raise whatever they run into in torn data
        raise _unreadable(data, error) from error
    if image.width * image.height > MOST_PIXELS:
        image.close()
        raise DataError(f"an image has {image.width}x{image.height} pixels; at most {MOST_PIXELS} are read")
    return image


def _of_bytes(data: bytes) -> Image:
    with opened(data) as image:
        try:
            image.load()  # torn data is found here, not amid a batch
        except Exception as error:  # as in `opened`
            raise _unreadable(data, error) from error
        return Image(data=data, format=(image.format or "").lower(), width=image.width, height=image.height)


def _unreadable(data: bytes, error: Exception) -> DataError:
    why = str(error) or type(error).__name__
    return DataError(
        f"{len(data)} bytes were given as an image, but can't be read as one of {', '.join(FORMATS)}: {why}"
    )


def _of_pil(image: PilImage) -> Image:
    written = io.BytesIO()
    try:
        image.save(written, format="PNG")
    except OSError:  # PNG has no such mode (CMYK, HSV, floats)
        written = io.BytesIO()
        image.convert("RGB").save(written, format="PNG")
    return Image(data=written.getvalue(), format="png", width=image.width, height=image.height)


def _from_array(array: NDArray[Any]) -> PilImage:
    from PIL import Image as Pillow

    right = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    if array.dtype != np.uint8 or not right or not array.size:
        raise DataError(
            f"an image was given as an array of {array.dtype} and shape {array.shape}; uint8 of shape (height, width), "
            "(height, width, 3) or (height, width, 4) is needed"
        )
    return Pillow.fromarray(np.ascontiguousarray(array))
