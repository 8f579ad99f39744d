"""An image in a terminal: two pixels a character where there are colours, shades of characters where there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.style import Style
from rich.text import Text

from tinker_actors.data import Image
from tinker_actors.data.images import opened

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

_SHADES = " .:-=+*#%@"  # from dark to light


def half_blocks(image: Image, *, columns: int = 32, rows: int = 16) -> Text:
    """An image as coloured half blocks, enlarged by a whole factor if it is small.

    Args:
        image: The image; what is transparent in it is white.
        columns: The most characters of a line, one pixel each.
        rows: The most lines, two pixels each.
    """
    pixels = _pixels(image, "RGB", columns, 2 * rows)
    height, width, _ = pixels.shape
    text = Text(no_wrap=True)
    for top in range(0, height, 2):
        if top:
            text.append("\n")
        for column in range(width):
            lower = _name(pixels[top + 1, column]) if top + 1 < height else None
            text.append("▀", Style(color=_name(pixels[top, column]), bgcolor=lower))
    return text


def shades(image: Image, *, columns: int = 32, rows: int = 16) -> Text:
    """An image as characters, the darker the fainter, two for every pixel; sizes as of `half_blocks`."""
    pixels = _pixels(image, "L", columns // 2, rows)
    lines = ("".join(_SHADES[int(value) * (len(_SHADES) - 1) // 255] * 2 for value in row) for row in pixels)
    return Text("\n".join(lines), no_wrap=True)


def _pixels(image: Image, mode: str, width: int, height: int) -> NDArray[Any]:
    from PIL import Image as Pillow

    with opened(image.data) as encoded:
        coloured = encoded.convert("RGBA")
    ground = Pillow.new("RGBA", coloured.size, "white")
    ground.alpha_composite(coloured)
    return np.asarray(_fitted(ground.convert(mode), width, height))


def _fitted(image: PilImage, width: int, height: int) -> PilImage:
    from PIL import Image as Pillow

    factor = min(width // image.width, height // image.height)
    if factor >= 1:
        return image.resize((image.width * factor, image.height * factor), Pillow.Resampling.NEAREST)
    image.thumbnail((width, height))
    return image


def _name(pixel: NDArray[Any]) -> str:
    red, green, blue = (int(value) for value in pixel)
    return f"#{red:02x}{green:02x}{blue:02x}"
