"""A service elsewhere that speaks the Tinker protocol, such as `tinker-actors serve`, through the official client."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from tinker_actors.data import Datum, ModelInput
from tinker_actors.errors import ConfigError, DataError, ModelError
from tinker_actors.models.catalogue import load_tokenizer
from tinker_actors.models.tokenizer import Tokenizer
from tinker_actors.sampling.backends.endings import Endings
from tinker_actors.sampling.backends.tinker_wire import ask, check, errors, official_client
from tinker_actors.sampling.requests import SamplingParams, SamplingReply, SamplingRequest
from tinker_actors.services.contract import Capabilities, ModelInfo, NewModel, SupportedModel
from tinker_actors.services.wire import adam_of, datum_of, result_of, settings_of
from tinker_actors.training.contract import AdamParams, ForwardBackwardResult, LossConfig, OptimStepResult

if TYPE_CHECKING:
    from tinker_actors.training.custom_loss import CustomLoss

_PATIENCE = 5.0  # seconds for the session's end; a service that is gone is asked for minutes


_NO_KEY = "tml-none"
"""For a gateway without keys, which serves its own host alone: the official client insists on something."""


class RemoteService:
    """See `Service`.

    Args:
        base_url: Of the service; None for the environment's, or else the official one.
        api_key: A key of it; None for the environment's.
        tokenizers: Names or folders of tokenizers by base model, for those that the service can't tell.
        takes_masks: Whether it takes masks; None to tell from whether it is the official one.
    """

    def __init__(
        self,
        base_url: str | None,
        api_key: str | None,
        *,
        tokenizers: Mapping[str, str],
        takes_masks: bool | None,
    ) -> None:
        url = base_url or os.environ.get("TINKER_BASE_URL")
        if api_key is None and "TINKER_API_KEY" not in os.environ and url and _is_here(url):
            api_key = _NO_KEY
        self._base_url, self._api_key, self._tokenizers = base_url, api_key, dict(tokenizers)
        self.takes_masks = bool(url) if takes_masks is None else takes_masks
        self.tinker = official_client()

    async def start(self) -> None:
        """Open a session."""
        with errors(self.tinker):
            # it asks the service before it returns
            self._service: Any = await asyncio.to_thread(
                self.tinker.ServiceClient,
                base_url=self._base_url,
                api_key=self._api_key,
                user_metadata={"client": "tinker_actors"},
            )

    async def stop(self, error: BaseException | None) -> None:
        """Finish it."""
        with contextlib.suppress(TimeoutError), errors(self.tinker):
            async with asyncio.timeout(_PATIENCE):
                await self._service.close("success" if error is None else "errored")

    async def capabilities(self) -> Capabilities:
        """What is offered."""
        with errors(self.tinker):
            rest = await asyncio.to_thread(self.tinker.RestClient, base_url=self._base_url, api_key=self._api_key)
            found = await rest.get_server_capabilities()
        return Capabilities(
            supported_models=tuple(
                SupportedModel(
                    model_name=model.model_name, max_context_length=getattr(model, "max_context_length", None)
                )
                for model in found.supported_models
            )
        )

    async def create(self, model: NewModel) -> RemoteTraining:
        """Make a model."""
        with errors(self.tinker):
            client = await self._service.create_lora_training_client(
                base_model=model.base_model,
                rank=model.rank,
                seed=model.seed,
                train_mlp=model.train_mlp,
                train_attn=model.train_attn,
                train_unembed=model.train_unembed,
                user_metadata=dict(model.user_metadata) or None,
            )
        return await RemoteTraining.of(self, client)

    async def restore(self, path: str, *, optimizer: bool, user_metadata: Mapping[str, str]) -> RemoteTraining:
        """Make a model that goes on from a checkpoint."""
        service = self._service
        make = (
            service.create_training_client_from_state_with_optimizer
            if optimizer
            else service.create_training_client_from_state
        )
        with errors(self.tinker):
            client = await make(path, user_metadata=dict(user_metadata) or None)
        return await RemoteTraining.of(self, client)

    async def sampler(self, *, path: str | None, base_model: str | None) -> RemoteSamples:
        """What samples from a snapshot or a base model."""
        with errors(self.tinker):
            # making one asks the service before it gives a future
            making = await asyncio.to_thread(
                self._service.create_sampling_client, model_path=path, base_model=base_model
            )
            client = await making
        return RemoteSamples(self, client, path=path)

    async def discard(self, path: str) -> None:
        """Delete what was saved under a path."""
        with errors(self.tinker):
            rest = await asyncio.to_thread(self.tinker.RestClient, base_url=self._base_url, api_key=self._api_key)
            await rest.delete_checkpoint_from_tinker_path(path)

    async def tokenizer(self, base_model: str, folder: str | None = None) -> Tokenizer:
        """The tokenizer of a base model.

        Args:
            base_model: The service's name of the model.
            folder: Where the service says that it lies, if that is here.

        Raises:
            ConfigError: Nobody knows it.
        """
        names = [self._tokenizers.get(base_model), folder, base_model]
        for name in filter(None, names):
            with contextlib.suppress(ModelError):
                return await asyncio.to_thread(load_tokenizer, name)
        raise ConfigError(
            f"the tokenizer of {base_model!r} isn't known here; give ServiceClient tokenizers with its name or folder "
            f"under {base_model!r}"
        )


def _is_here(url: str) -> bool:
    """Whether a service runs on this host."""
    host = urllib.parse.urlsplit(url).hostname or ""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


class RemoteTraining:
    """See `Trains`. Calls are sent in the order in which they were made, without waiting for one another's results."""

    def __init__(self, service: RemoteService, client: Any, info: Any) -> None:
        self._service, self._client, self._info = service, client, info
        self._tinker = service.tinker
        self._turn = asyncio.Lock()  # first come, first served
        self._steps = 0
        self.model_id = str(info.model_id)

    @classmethod
    async def of(cls, service: RemoteService, client: Any) -> RemoteTraining:
        """The model behind a training client."""
        with errors(service.tinker):
            return cls(service, client, await asyncio.to_thread(client.get_info))

    async def forward(self, data: Sequence[Datum], loss: LossConfig, *, backward: bool) -> ForwardBackwardResult:
        """A pass over a batch."""
        async with self._turn:
            passing = self._pass(data, loss, backward=backward)
        return self._result(await self._ended(passing), data)

    async def custom(self, data: Sequence[Datum], function: object) -> ForwardBackwardResult:
        """A pass whose loss is the caller's, computed here between two passes there."""
        from tinker_actors.training.custom_loss import SUPERVISED_PASS, evaluate, scorable, weighted

        async with self._turn:  # nothing else may come between
            plain = scorable(data)
            scored = self._result(await self._ended(self._pass(plain, SUPERVISED_PASS, backward=False)), plain)
            found, gradients = await asyncio.to_thread(evaluate, cast("CustomLoss", function), data, scored)
            rows = zip(data, gradients, strict=True)
            back = [weighted(datum, [-value for value in gradient]) for datum, gradient in rows]
            passing = self._pass(back, SUPERVISED_PASS, backward=True)
        await self._ended(passing)
        return found

    async def optim_step(self, params: AdamParams) -> OptimStepResult:
        """Apply the pending gradients."""
        async with self._turn:
            stepping = self._client.optim_step(adam_of(self._tinker, params))
        found = await self._ended(stepping)
        self._steps += 1
        metrics = found.metrics or {}
        return OptimStepResult(
            step=int(metrics.get("step:max", self._steps)), grad_norm=metrics.get("grad_norm:mean", float("nan"))
        )

    async def save_state(self, name: str, *, ttl: int | None, overwrite: bool) -> str:
        """Save all that the training depends on."""
        async with self._turn:
            saving = self._client.save_state(name, ttl_seconds=ttl, overwrite=overwrite)
        return (await self._ended(saving)).path

    async def load_state(self, path: str, *, optimizer: bool) -> None:
        """Put what was saved in the place of the model, as its first call."""
        import warnings

        async with self._turn:
            with warnings.catch_warnings():  # the official client would rather make another model
                warnings.simplefilter("ignore", FutureWarning)
                load = self._client.load_state_with_optimizer if optimizer else self._client.load_state
                loading = load(path)
        await self._ended(loading)

    async def save_for_sampler(self, name: str, *, ttl: int | None) -> str:
        """Save the weights under a name."""
        async with self._turn:
            saving = self._client.save_weights_for_sampler(name, ttl_seconds=ttl)
        return (await self._ended(saving)).path

    async def sampler(self) -> RemoteSamples:
        """Samples from the weights as they are now."""
        async with self._turn:
            saving = self._client.save_weights_and_get_sampling_client()
        return RemoteSamples(self._service, await self._ended(saving), path=None, tokenizer=self.tokenizer)

    async def info(self) -> ModelInfo:
        """What it is."""
        return ModelInfo(
            model_id=self.model_id,
            base_model=str(self._info.model_data.model_name),
            rank=getattr(self._info, "lora_rank", None),
        )

    async def tokenizer(self) -> Tokenizer:
        """The base model's tokenizer."""
        data = self._info.model_data
        return await self._service.tokenizer(str(data.model_name), getattr(data, "tokenizer_id", None))

    def _pass(self, data: Sequence[Datum], loss: LossConfig, *, backward: bool) -> Any:
        if not data:
            raise DataError("data is empty; at least one datum is needed")
        sent = [datum_of(self._tinker, datum, takes_masks=self._service.takes_masks) for datum in data]
        begin = self._client.forward_backward if backward else self._client.forward
        return begin(sent, loss.name, settings_of(loss) or None)

    def _result(self, output: Any, data: Sequence[Datum]) -> ForwardBackwardResult:
        return result_of(output, data, takes_masks=self._service.takes_masks)

    async def _ended(self, future: Any) -> Any:
        with errors(self._tinker):
            return await future


class RemoteSamples:
    """See `Samples`."""

    def __init__(self, service: RemoteService, client: Any, *, path: str | None, tokenizer: Any = None) -> None:
        self._service, self._client, self._own = service, client, tokenizer
        self._endings: Endings | None = None
        self.base_model, self.path = str(client.get_base_model()), path

    async def sample(
        self, prompt: ModelInput, params: SamplingParams, *, num_samples: int, prompt_logprobs: bool
    ) -> SamplingReply:
        """Sample."""
        name = self.path or self.base_model
        request = SamplingRequest(
            prompt=prompt.tokens,
            images=prompt.images,
            snapshot=name,
            params=params,
            num_samples=num_samples,
            prompt_logprobs=prompt_logprobs,
        )
        check(request)
        if self._endings is None:
            self._endings = Endings(await self.tokenizer(), None)
        drawn = await ask(self._service.tinker, self._client, request, self._endings)
        return SamplingReply(
            samples=drawn.samples,
            snapshot=name,
            snapshot_step=0,
            prompt_tokens=len(request.prompt),
            seed=drawn.seed,
            prompt_logprobs=drawn.prompt_logprobs,
            cached_tokens=drawn.cached_tokens,
        )

    async def tokenizer(self) -> Tokenizer:
        """The base model's tokenizer."""
        return await (self._service.tokenizer(self.base_model) if self._own is None else self._own())
