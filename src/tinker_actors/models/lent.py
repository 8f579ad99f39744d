"""Weights that a trainer lends to samplers in its process: the tensors themselves, which must not be written to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from tinker_actors.models.adapters import Adapter, AdapterWeights
from tinker_actors.models.base import BaseModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class LentWeights:
    """A snapshot's weights. Whoever uses them holds this object: the lender writes to the tensors once nobody does.

    Attributes:
        adapter: The adapter; None for full weights.
        parameters: Full weights by their names in the base model; empty for an adapter.
    """

    adapter: Adapter | None
    parameters: Mapping[str, Tensor]


def lent_adapter(adapter: Adapter) -> LentWeights:
    """A copy of an adapter as it is, laid out as one that was read from its directory."""
    weights = {
        path: AdapterWeights(
            a=part.a.detach().clone(), b=part.b.detach().t().contiguous().clone().t(), scale=part.scale
        )
        for path, part in adapter.weights.items()
    }
    return LentWeights(adapter=Adapter(path=adapter.path, weights=weights), parameters={})


def lent_model(base: BaseModel, lent: LentWeights) -> PreTrainedModel:
    """A model of the base's kind over full weights; they are copied only where dtype or device differ from its own."""
    model = base.skeleton()
    for name, parameter in model.named_parameters():
        parameter.data = lent.parameters[name].to(parameter.device, parameter.dtype)
    return model
