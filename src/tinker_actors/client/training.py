"""`TrainingClient`: one model in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tinker_actors.client.sampling import SamplingClient
from tinker_actors.data import Datum
from tinker_actors.errors import ConfigError
from tinker_actors.models.tokenizer import Tokenizer
from tinker_actors.services.contract import ModelInfo, Saved, Trains
from tinker_actors.services.futures import ApiFuture, LoopThread
from tinker_actors.training.contract import AdamParams, ForwardBackwardResult, LossConfig, LossName, OptimStepResult

if TYPE_CHECKING:
    from tinker_actors.training.custom_loss import CustomLoss


class TrainingClient:
    """Trains one model; made by a `ServiceClient`.

    Calls take effect in the order in which they are made, whether or not anybody waits for the results: give the
    optimizer step right after the pass, then wait for both.

        passed = training.forward_backward(data, "importance_sampling")
        stepped = training.optim_step(AdamParams(learning_rate=1e-4))
        print((await passed).loss, (await stepped).grad_norm)
    """

    def __init__(self, model: Trains, thread: LoopThread) -> None:
        self._model, self._thread = model, thread

    @property
    def model_id(self) -> str:
        """The model's id."""
        return self._model.model_id

    def forward(
        self, data: Sequence[Datum], loss_fn: LossConfig | LossName, loss_fn_config: Mapping[str, Any] | None = None
    ) -> ApiFuture[ForwardBackwardResult]:
        """Loss and log-probs of a batch, without gradients; arguments as of `forward_backward`."""
        return self._pass(data, loss_fn, loss_fn_config, backward=False)

    async def forward_async(
        self, data: Sequence[Datum], loss_fn: LossConfig | LossName, loss_fn_config: Mapping[str, Any] | None = None
    ) -> ApiFuture[ForwardBackwardResult]:
        """As `forward`."""
        return self.forward(data, loss_fn, loss_fn_config)

    def forward_backward(
        self, data: Sequence[Datum], loss_fn: LossConfig | LossName, loss_fn_config: Mapping[str, Any] | None = None
    ) -> ApiFuture[ForwardBackwardResult]:
        """Add the gradient of the summed loss to the pending ones.

        Args:
            data: The batch, supervised or RL as the loss needs.
            loss_fn: A loss's name, or a `LossConfig`.
            loss_fn_config: Settings of the named loss, under this package's names or the Tinker API's.

        Raises:
            ConfigError: A setting isn't the loss's.
            DataError: The batch is empty.
        """
        return self._pass(data, loss_fn, loss_fn_config, backward=True)

    async def forward_backward_async(
        self, data: Sequence[Datum], loss_fn: LossConfig | LossName, loss_fn_config: Mapping[str, Any] | None = None
    ) -> ApiFuture[ForwardBackwardResult]:
        """As `forward_backward`."""
        return self.forward_backward(data, loss_fn, loss_fn_config)

    def forward_backward_custom(self, data: Sequence[Datum], loss_fn: CustomLoss) -> ApiFuture[ForwardBackwardResult]:
        """Add the gradient of a loss of one's own, which is computed here; see `tinker_actors.training.CustomLoss`."""
        return self._thread.call(self._model.custom(tuple(data), loss_fn))

    async def forward_backward_custom_async(
        self, data: Sequence[Datum], loss_fn: CustomLoss
    ) -> ApiFuture[ForwardBackwardResult]:
        """As `forward_backward_custom`."""
        return self.forward_backward_custom(data, loss_fn)

    def optim_step(self, adam_params: AdamParams) -> ApiFuture[OptimStepResult]:
        """Apply the pending gradients, and drop them."""
        return self._thread.call(self._model.optim_step(adam_params))

    async def optim_step_async(self, adam_params: AdamParams) -> ApiFuture[OptimStepResult]:
        """As `optim_step`."""
        return self.optim_step(adam_params)

    def save_state(self, name: str, ttl_seconds: int | None = None, overwrite: bool = False) -> ApiFuture[Saved]:
        """Save all that the training depends on.

        Args:
            name: Of the checkpoint.
            ttl_seconds: After which it goes; None for never.
            overwrite: Whether one of this name is replaced.
        """
        return self._saved(self._model.save_state(name, ttl=ttl_seconds, overwrite=overwrite))

    async def save_state_async(
        self, name: str, ttl_seconds: int | None = None, overwrite: bool = False
    ) -> ApiFuture[Saved]:
        """As `save_state`."""
        return self.save_state(name, ttl_seconds, overwrite)

    def load_state(self, path: str) -> ApiFuture[None]:
        """Put a checkpoint's weights in the place of the model's, as its first call."""
        return self._thread.call(self._model.load_state(path, optimizer=False))

    async def load_state_async(self, path: str) -> ApiFuture[None]:
        """As `load_state`."""
        return self.load_state(path)

    def load_state_with_optimizer(self, path: str) -> ApiFuture[None]:
        """As `load_state`, with the optimizer's state."""
        return self._thread.call(self._model.load_state(path, optimizer=True))

    async def load_state_with_optimizer_async(self, path: str) -> ApiFuture[None]:
        """As `load_state_with_optimizer`."""
        return self.load_state_with_optimizer(path)

    def save_weights_for_sampler(self, name: str, ttl_seconds: int | None = None) -> ApiFuture[Saved]:
        """Save the weights under a name, to be sampled from; arguments as of `save_state`."""
        return self._saved(self._model.save_for_sampler(name, ttl=ttl_seconds))

    async def save_weights_for_sampler_async(self, name: str, ttl_seconds: int | None = None) -> ApiFuture[Saved]:
        """As `save_weights_for_sampler`."""
        return self.save_weights_for_sampler(name, ttl_seconds)

    def save_weights_and_get_sampling_client(self) -> ApiFuture[SamplingClient]:
        """What samples from the weights as they are after the calls before this one."""

        async def create() -> SamplingClient:
            return SamplingClient(await self._model.sampler(), self._thread)

        return self._thread.call(create())

    async def save_weights_and_get_sampling_client_async(self) -> SamplingClient:
        """As `save_weights_and_get_sampling_client`."""
        return await self.save_weights_and_get_sampling_client()

    def get_info(self) -> ModelInfo:
        """What the model is."""
        return self._thread.call(self._model.info()).result()

    async def get_info_async(self) -> ModelInfo:
        """As `get_info`."""
        return await self._thread.call(self._model.info())

    def get_tokenizer(self) -> Tokenizer:
        """The base model's tokenizer."""
        return self._thread.call(self._model.tokenizer()).result()

    def _pass(
        self,
        data: Sequence[Datum],
        loss_fn: LossConfig | LossName,
        settings: Mapping[str, Any] | None,
        *,
        backward: bool,
    ) -> ApiFuture[ForwardBackwardResult]:
        if isinstance(loss_fn, LossConfig):
            if settings:
                raise ConfigError(f"loss_fn_config is {dict(settings)!r} beside a LossConfig; one of them is needed")
            loss = loss_fn
        else:
            loss = LossConfig.from_settings(loss_fn, settings or {})
        return self._thread.call(self._model.forward(tuple(data), loss, backward=backward))

    def _saved(self, saving: Any) -> ApiFuture[Saved]:
        async def save() -> Saved:
            return Saved(path=await saving)

        return self._thread.call(save())
