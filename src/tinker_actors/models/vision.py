"""What a vision-language model's forward pass needs beside token ids: pixels, three-dimensional positions, and which
tokens it never says. For trainers and samplers alike, so that both compute the same.

Shape suffixes: B rows, T positions of the longest row, P patches of all images, V vocabulary.
"""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tinker_actors.data import ImageChunk, ModelInput
from tinker_actors.data.images import opened
from tinker_actors.errors import ModelError
from tinker_actors.models.images import ImageRule, read_image_rule
from tinker_actors.models.json_files import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOWER = "model.visual"
"""Path of the module that turns pixels into embeddings."""

_KEPT_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """A decoded, resized and normalised image.

    Attributes:
        patches: Its patches, shape (P, features).
        grid: Time, rows and columns of patches, shape (3,).
    """

    patches: Tensor
    grid: Tensor


class Vision:
    """How one vision-language model takes images. Safe to use from several threads.

        vision = load_base("tiny-qwen2-vl").vision
        positions, following = vision.positions([model_input])
        logits = model(input_ids, position_ids=positions, **vision.arguments(model, [model_input])).logits
        vision.suppress(logits)

    Positions of decoded tokens are `following`, `following + 1` and so on, the same in all three dimensions.

    Args:
        rule: How the model counts images.
        folder: Holds the image processor's configuration.
    """

    def __init__(self, rule: ImageRule, folder: Path) -> None:
        self.rule = rule
        self._folder = folder
        self._processor: Any = None
        self._kept: OrderedDict[bytes, Pixels] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()

    @classmethod
    def read(cls, folder: Path) -> Vision | None:
        """The vision of a model directory; None if its model reads no images."""
        rule = read_image_rule(folder)
        return None if rule is None else cls(rule, folder)

    def positions(self, rows: Sequence[ModelInput], *, left: bool = False) -> tuple[Tensor, Tensor]:
        """Rotary positions, and where each row goes on.

        Args:
            rows: The model's inputs.
            left: Whether the rows are padded on the left rather than on the right.

        Returns:
            Positions in time, height and width, shape (3, B, T), 0 where a row is padded; and the position of the token
            that follows each row, shape (B, 1).
        """
        found = [self.rule.positions(row) for row in rows]
        width = max(len(row) for row in rows)
        positions_3bt = torch.zeros(3, len(rows), width, dtype=torch.long)
        for index, own in enumerate(found):
            count = own.shape[1] - 1
            start = width - count if left else 0
            positions_3bt[:, index, start : start + count] = torch.from_numpy(own[:, :-1])
        return positions_3bt, torch.tensor([[int(own[0, -1])] for own in found])

    def arguments(self, model: PreTrainedModel, rows: Sequence[ModelInput]) -> dict[str, Any]:
        """Arguments of a forward pass for the images of these rows; none without images.

        An image that occurs several times goes through the model's vision tower once.

        Raises:
            ModelError: An image can't be decoded, or has not as many positions as its chunk says.
        """
        chunks = [image for row in rows for image in row.images]
        if not chunks:
            return {}
        distinct = {chunk: index for index, chunk in enumerate(dict.fromkeys(chunks))}
        device = next(model.parameters()).device
        pixels = [self.pixels(chunk) for chunk in distinct]
        patches = torch.cat([entry.patches for entry in pixels]).to(device)
        grids = torch.stack([entry.grid for entry in pixels]).to(device)
        places = [distinct[chunk] for chunk in chunks]
        if "mm_encoder_outputs" not in inspect.signature(model.forward).parameters:
            return {
                "pixel_values": torch.cat([pixels[place].patches for place in places]).to(device),
                "image_grid_thw": grids[places],
            }
        features = model.get_image_features(patches, grids, return_dict=True)  # pyright: ignore[reportCallIssue]
        features.pooler_output = tuple(features.pooler_output[place] for place in places)
        if getattr(features, "deepstack_features", None) is not None:
            features.deepstack_features = [
                tuple(level[place] for place in places) for level in features.deepstack_features
            ]
        return {"mm_encoder_outputs": {"image": features}, "image_grid_thw": grids[places]}

    def suppress(self, logits: Tensor) -> Tensor:
        """Set the logits of tokens that stand for images and videos to -inf, in place.

        A policy that said one would have said an image that isn't there, which the next forward pass can't read.

        Args:
            logits: Shape (..., V).
        """
        return logits.index_fill_(-1, torch.tensor(self.rule.unsampled, device=logits.device), -torch.inf)

    def check(self, model_input: ModelInput) -> None:
        """Check that the model can read an input; its images are decoded and kept for the pass that comes.

        Raises:
            ModelError: An image can't be read, is counted otherwise by this model, or has another placeholder than its
                own; or a token of the text stands for an image or a video.
        """
        rule, start = self.rule, 0
        for chunk in model_input.chunks:
            if isinstance(chunk, ImageChunk):
                if chunk.placeholder != rule.placeholder:
                    raise ModelError(
                        f"the image at position {start} has placeholder {chunk.placeholder}; this model's is "
                        f"{rule.placeholder}"
                    )
                self.pixels(chunk)
            elif reserved := rule.reserved.intersection(chunk.tokens):
                index = next(index for index, token in enumerate(chunk.tokens) if token in reserved)
                raise ModelError(
                    f"position {start + index} holds token {chunk.tokens[index]}, which stands for an image or a "
                    "video; an image travels as a chunk of its own"
                )
            start += len(chunk)

    def pixels(self, chunk: ImageChunk) -> Pixels:
        """What the model sees of an image.

        Raises:
            ModelError: It can't be decoded, or has not as many positions as its chunk says.
        """
        with self._lock:
            if chunk.data in self._kept:
                self._kept.move_to_end(chunk.data)
                entry = self._kept[chunk.data]
            else:
                entry = self._kept[chunk.data] = self._computed(chunk)
                self._kept_bytes += _size(entry)
                while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
                    self._kept_bytes -= _size(self._kept.popitem(last=False)[1])
        merge = self.rule.merge
        grid = (int(entry.grid[1]) // merge, int(entry.grid[2]) // merge)
        if grid != (chunk.grid or grid) or grid[0] * grid[1] != chunk.token_count:
            raise ModelError(
                f"an image has token_count {chunk.token_count} and grid {chunk.grid}; this model reads it as "
                f"{grid[0]}x{grid[1]} = {grid[0] * grid[1]} positions"
            )
        return entry

    def _computed(self, chunk: ImageChunk) -> Pixels:
        if self._processor is None:
            self._processor = _image_processor(self._folder)
        try:
            with opened(chunk.data) as encoded:
                image = encoded.convert("RGB")
            # a sampler's pass makes tensors that a trainer could not use
            with torch.inference_mode(False):
                made = self._processor(images=[image], return_tensors="pt")
        except (OSError, SyntaxError, ValueError) as error:
            raise ModelError(f"an image of {len(chunk.data)} bytes ({chunk.format}) can't be read: {error}") from error
        return Pixels(patches=made["pixel_values"], grid=made["image_grid_thw"][0])


def _image_processor(folder: Path) -> Any:
    """The Pillow variant of the models' image processor: the other one needs torchvision."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    settings = read_json(folder / "preprocessor_config.json")
    settings = settings or read_json(folder / "processor_config.json").get("image_processor") or {}
    return Qwen2VLImageProcessorPil.from_dict({**settings, "image_processor_type": "Qwen2VLImageProcessorPil"})


def _size(entry: Pixels) -> int:
    return entry.patches.numel() * entry.patches.element_size()
