"""What turns token ids into logits: one network per set of weights that can share a forward pass.

Shape suffixes: B rows, T new positions, K positions held and new, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tinker_actors.data import ModelInput
from tinker_actors.models.adapters import Adapter
from tinker_actors.models.lora import MultiLoraModel
from tinker_actors.models.vision import Vision

if TYPE_CHECKING:
    from transformers import DynamicCache, PretrainedConfig, PreTrainedModel


class Network:
    """A whole model with no adapters: a full-weights snapshot.

    Attributes:
        vision: How the model takes images; None if it reads none.
        config: The transformers configuration.
        vocab_size: Length of a row of logits.
    """

    def __init__(self, model: PreTrainedModel, vision: Vision | None = None) -> None:
        self._model = model
        self.vision = vision
        self.config: PretrainedConfig = model.config
        self.vocab_size = int(model.config.get_text_config().vocab_size)
        # transformers is renaming this argument; the old name warns where the new one exists
        names = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"

    def logits(
        self,
        ids_bt: torch.Tensor,
        *,
        mask: torch.Tensor | None,
        positions: torch.Tensor,
        cache: DynamicCache,
        slots: Sequence[int],
        images: Sequence[ModelInput] = (),
    ) -> torch.Tensor:
        """Logits after the last new position of each row, shape (B, V).

        Args:
            ids_bt: New token ids, padded on the left.
            mask: 1 for real positions, 0 for padding, shape (B, K); None if there is no padding.
            positions: Position of each new token in its own row, shape (B, T); or (3, B, T) in a model that
                reads images.
            cache: Keys and values of the positions held; the new ones are added.
            slots: Which adapter answers each row; of no meaning here.
            images: The new positions of all rows, if images are among them.
        """
        del slots
        extra = self.vision.arguments(self._model, images) if self.vision is not None and images else {}
        output = self._model(
            input_ids=ids_bt,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: cache},
            **extra,
        )
        logits_bv = output.logits[:, -1]
        return logits_bv if self.vision is None else self.vision.suppress(logits_bv)


class LoraNetwork(Network):
    """One base model with a slot for each LoRA snapshot; rows of any slots mix in one forward pass."""

    def __init__(self, skeleton: PreTrainedModel, vision: Vision | None = None) -> None:
        super().__init__(skeleton, vision)
        self._lora = MultiLoraModel(skeleton)

    def load(self, path: Path | Adapter) -> int:
        """Load a PEFT directory, or an adapter as one was read from it, and return its slot.

        Raises:
            ModelError: It is no LoRA adapter of this base; nothing has changed then.
        """
        return self._lora.load(path)

    def unload(self, slot: int) -> None:
        """Free a slot that no row uses any more."""
        self._lora.unload(slot)

    def logits(
        self,
        ids_bt: torch.Tensor,
        *,
        mask: torch.Tensor | None,
        positions: torch.Tensor,
        cache: DynamicCache,
        slots: Sequence[int],
        images: Sequence[ModelInput] = (),
    ) -> torch.Tensor:
        """As for `Network`, each row answered by the adapter in its slot."""
        with self._lora.using(slots, tokens_per_row=ids_bt.shape[1]):
            return super().logits(ids_bt, mask=mask, positions=positions, cache=cache, slots=slots, images=images)
