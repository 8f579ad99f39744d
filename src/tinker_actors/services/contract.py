"""What a service must do for the client, and what it answers. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tinker_actors.data import Datum, ModelInput
from tinker_actors.models.tokenizer import Tokenizer
from tinker_actors.sampling.requests import SamplingParams, SamplingReply
from tinker_actors.training.contract import AdamParams, ForwardBackwardResult, LossConfig, OptimStepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedModel:
    """A base model that may be trained and sampled.

    Attributes:
        model_name: Its name.
        max_context_length: Tokens of prompt and reply together; None if the service doesn't say.
    """

    model_name: str
    max_context_length: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a service offers."""

    supported_models: tuple[SupportedModel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model in training.

    Attributes:
        model_id: Its id.
        base_model: Name of its base model.
        rank: Of its adapter; None if the service doesn't say.
    """

    model_id: str
    base_model: str
    rank: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Something that was saved.

    Attributes:
        path: `tinker://MODEL/KIND/NAME`, by which it is found again.
    """

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewModel:
    """A model to be made.

    Attributes:
        base_model: Name of its base model.
        rank: Of its adapter.
        seed: Of the adapter's initial weights; None for one that is drawn.
        train_mlp: Whether the layers between attention are adapted.
        train_attn: Whether those of attention are.
        train_unembed: Whether the output head is.
        user_metadata: Kept with it.
    """

    base_model: str
    rank: int = 32
    seed: int | None = None
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True
    user_metadata: Mapping[str, str] = field(default_factory=dict[str, str])


class Samples(Protocol):
    """A snapshot, or a base model, that is sampled from."""

    @property
    def base_model(self) -> str:
        """Name of the base model."""
        ...

    @property
    def path(self) -> str | None:
        """The snapshot's path; None for the base model and for a snapshot without a name."""
        ...

    async def sample(
        self, prompt: ModelInput, params: SamplingParams, *, num_samples: int, prompt_logprobs: bool
    ) -> SamplingReply:
        """Sample."""
        ...

    async def tokenizer(self) -> Tokenizer:
        """The base model's tokenizer."""
        ...


class Trains(Protocol):
    """A model in training. Calls take effect in the order in which they are made."""

    @property
    def model_id(self) -> str:
        """Its id."""
        ...

    async def forward(self, data: Sequence[Datum], loss: LossConfig, *, backward: bool) -> ForwardBackwardResult:
        """A pass over a batch; its gradients are added to the pending ones if `backward`."""
        ...

    async def custom(self, data: Sequence[Datum], function: object) -> ForwardBackwardResult:
        """A pass whose loss is the caller's; see `tinker_actors.training.custom`."""
        ...

    async def optim_step(self, params: AdamParams) -> OptimStepResult:
        """Apply the pending gradients, and drop them."""
        ...

    async def save_state(self, name: str, *, ttl: int | None, overwrite: bool) -> str:
        """Save all that the training depends on; the path."""
        ...

    async def load_state(self, path: str, *, optimizer: bool) -> None:
        """Put what was saved in the place of the model; its first call."""
        ...

    async def save_for_sampler(self, name: str, *, ttl: int | None) -> str:
        """Save the weights under a name; the path."""
        ...

    async def sampler(self) -> Samples:
        """Samples from the weights as they are now."""
        ...

    async def info(self) -> ModelInfo:
        """What it is."""
        ...

    async def tokenizer(self) -> Tokenizer:
        """The base model's tokenizer."""
        ...


class Service(Protocol):
    """Where models are made and sampled."""

    async def start(self) -> None:
        """Be ready."""
        ...

    async def stop(self, error: BaseException | None) -> None:
        """Free all that the client held; `error` is why it ends, if it failed."""
        ...

    async def capabilities(self) -> Capabilities:
        """What is offered."""
        ...

    async def create(self, model: NewModel) -> Trains:
        """Make a model."""
        ...

    async def restore(self, path: str, *, optimizer: bool, user_metadata: Mapping[str, str]) -> Trains:
        """Make a model that goes on from a checkpoint."""
        ...

    async def sampler(self, *, path: str | None, base_model: str | None) -> Samples:
        """What samples from a snapshot or a base model."""
        ...
