"""How a vision-language model counts an image, from its configuration files alone: rollout workers load no torch.

Models of the Qwen-VL kind resize an image so that its sides are multiples of a cell, cut it into patches, merge a
square of patches into one position, and number positions in three dimensions: time, height and width (Wang et al. 2024,
Qwen2-VL, section 2.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinker_actors.data import Image, ImageChunk, ModelInput
from tinker_actors.errors import ModelError
from tinker_actors.models.json_files import read_json

ARCHITECTURES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""Model types whose images can be read."""

LONGEST_RATIO = 200
"""Longer to shorter side; beyond it the models' own processors refuse an image."""

# What the configurations of these models mean by leaving an id out.
_DEFAULT_IDS = {
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
}
# What the processors of these models take for what their files leave out.
_DEFAULT_PATCH, _DEFAULT_MERGE, _DEFAULT_PIXELS = 14, 2, (56 * 56, 28 * 28 * 1280)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRule:
    """How many positions an image takes, and which.

    Attributes:
        placeholder: Token id of an image's positions.
        reserved: Token ids that stand for a position of an image or a video; text never holds them.
        unsampled: Those, and the ids around an image; a policy never samples them.
        patch: Side of a patch, in pixels.
        merge: Patches along each side of the square that becomes one position.
        min_pixels: Fewest pixels after resizing.
        max_pixels: Most pixels after resizing.
    """

    placeholder: int
    reserved: frozenset[int]
    unsampled: tuple[int, ...]
    patch: int = _DEFAULT_PATCH
    merge: int = _DEFAULT_MERGE
    min_pixels: int = _DEFAULT_PIXELS[0]
    max_pixels: int = _DEFAULT_PIXELS[1]

    def __post_init__(self) -> None:
        small = [name for name in ("patch", "merge", "min_pixels") if getattr(self, name) < 1]
        if small or self.max_pixels < self.min_pixels:
            raise ModelError(f"an image can't be counted with {self}; positive sizes and min <= max are needed")

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of positions of an image.

        The sides are rounded to cells; if that leaves too few or too many pixels, the image is scaled first, and the
        sides rounded up or down (Qwen2-VL, "naive dynamic resolution").

        Args:
            width: Pixels of a row.
            height: Rows.

        Raises:
            ModelError: One side is more than 200 times the other.
        """
        if max(width, height) > LONGEST_RATIO * min(width, height):
            raise ModelError(f"an image of {width}x{height} pixels is too narrow; at most {LONGEST_RATIO}:1 is read")
        cell = self.patch * self.merge
        rows, columns = round(height / cell), round(width / cell)
        pixels = rows * columns * cell * cell
        if pixels > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            return max(1, math.floor(height / shrink / cell)), max(1, math.floor(width / shrink / cell))
        if pixels < self.min_pixels:
            stretch = math.sqrt(self.min_pixels / (height * width))
            return math.ceil(height * stretch / cell), math.ceil(width * stretch / cell)
        return rows, columns

    def chunk(self, image: Image) -> ImageChunk:
        """The image as a part of a model's input.

        Raises:
            ModelError: One side is more than 200 times the other.
        """
        rows, columns = self.grid(image.width, image.height)
        return ImageChunk(
            data=image.data,
            format=image.format,
            token_count=rows * columns,
            placeholder=self.placeholder,
            grid=(rows, columns),
        )

    def positions(self, model_input: ModelInput) -> NDArray[np.int64]:
        """Rotary positions in time, height and width; shape (3, n + 1).

        Text counts on in all three at once. The positions of an image stand at one time, and their height and width
        count from there; what follows goes on after the largest of them. The last column is that of the next token.
        """
        parts: list[NDArray[np.int64]] = []
        now = 0
        for chunk in model_input.chunks:
            if isinstance(chunk, ImageChunk):
                rows, columns = chunk.grid or self.grid_of(chunk)
                height, width = np.divmod(np.arange(rows * columns), columns)
                parts.append(now + np.stack([np.zeros_like(height), height, width]))
                now += max(rows, columns)
            else:
                parts.append(np.broadcast_to(now + np.arange(len(chunk)), (3, len(chunk))))
                now += len(chunk)
        return np.concatenate([*parts, np.full((3, 1), now)], axis=1)

    def grid_of(self, chunk: ImageChunk) -> tuple[int, int]:
        """Rows and columns of a chunk that does not say them, from its data.

        Raises:
            ModelError: They are not as many positions as the chunk has.
        """
        image = Image.of(chunk.data)
        rows, columns = self.grid(image.width, image.height)
        if rows * columns != chunk.token_count:
            raise ModelError(
                f"an image of {image.width}x{image.height} pixels has token_count {chunk.token_count}; this model "
                f"reads it as {rows}x{columns} = {rows * columns} positions"
            )
        return rows, columns


def read_image_rule(folder: Path) -> ImageRule | None:
    """The rule of a model directory; None if its model reads no images, or is not of a kind known here.

    Raises:
        ModelError: The files say something that can't be followed.
    """
    config = read_json(folder / "config.json")
    if config.get("model_type") not in ARCHITECTURES:
        return None
    processor = read_json(folder / "preprocessor_config.json")
    processor = processor or read_json(folder / "processor_config.json").get("image_processor") or {}
    if processor.get("do_resize") is False:
        raise ModelError(f"the image processor of {folder} has do_resize false; images of any size need it true")
    smallest, largest = _pixels(processor)
    ids = {name: int(config.get(name, default)) for name, default in _DEFAULT_IDS.items()}
    return ImageRule(
        placeholder=ids["image_token_id"],
        reserved=frozenset({ids["image_token_id"], ids["video_token_id"]}),
        unsampled=tuple(sorted(set(ids.values()))),
        patch=int(processor.get("patch_size") or _DEFAULT_PATCH),
        merge=int(processor.get("merge_size") or _DEFAULT_MERGE),
        min_pixels=smallest,
        max_pixels=largest,
    )


def _pixels(processor: dict[str, Any]) -> tuple[int, int]:
    size = processor.get("size") or {}
    smallest = processor.get("min_pixels") or size.get("shortest_edge") or _DEFAULT_PIXELS[0]
    largest = processor.get("max_pixels") or size.get("longest_edge") or _DEFAULT_PIXELS[1]
    return int(smallest), int(largest)
