"""`ServiceClient`: the way in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tinker_actors.client.sampling import SamplingClient
from tinker_actors.client.training import TrainingClient
from tinker_actors.errors import ConfigError
from tinker_actors.services.contract import Capabilities, NewModel, Service
from tinker_actors.services.futures import ApiFuture, LoopThread

if TYPE_CHECKING:
    from tinker_actors.gateway.runtime import ServedModel

T = TypeVar("T")


class ServiceClient:
    """Trains and samples, wherever that is done; the names are those of the Tinker client.

        with ServiceClient.local("tiny-llama", root="runs/try") as service:          # in this process
        with ServiceClient(base_url="http://127.0.0.1:8400") as service:             # tinker-actors serve
        with ServiceClient(api_key="tml-...") as service:                            # a remote Tinker service
            training = service.create_lora_training_client("tiny-llama", rank=8).result()

    Each call gives an `ApiFuture` at once, which async code awaits. Methods that end in `_async` do the same with one
    more `await`, as the Tinker client's do. It is entered with `with` or `async with`, or closed with `close`.

    Args:
        base_url: Of the service; None for `$TINKER_BASE_URL`, or else the official one.
        api_key: A key of it, `tml-...`; None for `$TINKER_API_KEY`. A gateway of this host may need none.
        tokenizers: For base models whose tokenizer the service can't tell: a name of the catalogue, or a folder, by the
            service's name of the model.
        takes_masks: Whether the service takes the `mask` of RL datums, as `tinker-actors serve` does. Where it
            doesn't, targets outside the mask must have advantage 0. By default only a service at a `base_url` that is
            given here, or in the environment, does.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        tokenizers: Mapping[str, str] | None = None,
        takes_masks: bool | None = None,
    ) -> None:
        from tinker_actors.services.remote import RemoteService

        self._begin(RemoteService(base_url, api_key, tokenizers=tokenizers or {}, takes_masks=takes_masks))

    @classmethod
    def local(cls, *models: str | ServedModel, root: str | Path, in_process: bool = True) -> Self:
        """A client that trains and samples in this process, over the actors that `serve` runs, without HTTP.

        Args:
            models: The base models that it may use.
            root: Folder of all that is kept; `serve` finds it there later.
            in_process: Compute in this process rather than in a child process for each base model.

        Raises:
            ConfigError: No model is named, or the extra `serve` isn't installed.
        """
        try:
            from tinker_actors.client.local import LocalService
        except ImportError as error:
            raise ConfigError(f"a client in process needs tinker-actors[serve]: {error}") from error
        client = cls.__new__(cls)
        client._begin(LocalService(models, root, in_process=in_process))
        return client

    def _begin(self, service: Service) -> None:
        self._service = service
        self._thread = LoopThread("tinker_actors client")
        self._lock = threading.Lock()
        self._starting: ApiFuture[None] | None = None

    def __enter__(self) -> Self:
        try:
            self._started().result()
        except BaseException:  # interrupted too: nobody will leave what wasn't entered
            self._thread.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    async def __aenter__(self) -> Self:
        try:
            await self._started()
        except BaseException:  # cancelled too: nobody will leave what wasn't entered
            await asyncio.to_thread(self._thread.end)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._starting is not None:
                await self._thread.call(self._stop(self._starting, error))
        finally:
            await asyncio.to_thread(self._thread.end)

    def close(self, error: BaseException | None = None) -> None:
        """Free all that the client holds."""
        try:
            if self._starting is not None:
                self._thread.call(self._stop(self._starting, error)).result()
        finally:
            self._thread.end()

    def get_server_capabilities(self) -> Capabilities:
        """The base models that may be used."""
        return self._call(self._service.capabilities).result()

    async def get_server_capabilities_async(self) -> Capabilities:
        """As `get_server_capabilities`."""
        return await self._call(self._service.capabilities)

    def create_lora_training_client(
        self,
        base_model: str,
        rank: int = 32,
        seed: int | None = None,
        train_mlp: bool = True,
        train_attn: bool = True,
        train_unembed: bool = True,
        user_metadata: Mapping[str, str] | None = None,
    ) -> ApiFuture[TrainingClient]:
        """Make a model that is trained as a LoRA adapter.

        Args:
            base_model: Name of the base model.
            rank: Of the adapter.
            seed: Of its initial weights; None for one that is drawn.
            train_mlp: Whether the layers between attention are adapted.
            train_attn: Whether those of attention are.
            train_unembed: Whether the output head is.
            user_metadata: Kept with the model.
        """
        model = NewModel(
            base_model=base_model,
            rank=rank,
            seed=seed,
            train_mlp=train_mlp,
            train_attn=train_attn,
            train_unembed=train_unembed,
            user_metadata=user_metadata or {},
        )

        async def create() -> TrainingClient:
            return TrainingClient(await self._service.create(model), self._thread)

        return self._call(create)

    async def create_lora_training_client_async(self, base_model: str, *args: Any, **options: Any) -> TrainingClient:
        """As `create_lora_training_client`."""
        return await self.create_lora_training_client(base_model, *args, **options)

    def create_training_client_from_state(
        self, path: str, user_metadata: Mapping[str, str] | None = None
    ) -> ApiFuture[TrainingClient]:
        """Make a model that begins with a checkpoint's weights, and no optimizer state.

        Args:
            path: What `save_state` gave.
            user_metadata: Kept with the model.
        """
        return self._restore(path, optimizer=False, user_metadata=user_metadata)

    async def create_training_client_from_state_async(
        self, path: str, user_metadata: Mapping[str, str] | None = None
    ) -> TrainingClient:
        """As `create_training_client_from_state`."""
        return await self.create_training_client_from_state(path, user_metadata)

    def create_training_client_from_state_with_optimizer(
        self, path: str, user_metadata: Mapping[str, str] | None = None
    ) -> ApiFuture[TrainingClient]:
        """Make a model that goes on exactly where a checkpoint was saved; arguments as above."""
        return self._restore(path, optimizer=True, user_metadata=user_metadata)

    async def create_training_client_from_state_with_optimizer_async(
        self, path: str, user_metadata: Mapping[str, str] | None = None
    ) -> TrainingClient:
        """As `create_training_client_from_state_with_optimizer`."""
        return await self.create_training_client_from_state_with_optimizer(path, user_metadata)

    def create_sampling_client(
        self, model_path: str | None = None, base_model: str | None = None
    ) -> ApiFuture[SamplingClient]:
        """What samples from a snapshot, or from a base model as it is.

        Args:
            model_path: What `save_weights_for_sampler` gave.
            base_model: Name of the base model, in its place.

        Raises:
            ConfigError: Neither is given.
        """
        if model_path is None and base_model is None:
            raise ConfigError("neither model_path nor base_model is given; one is needed")

        async def create() -> SamplingClient:
            return SamplingClient(await self._service.sampler(path=model_path, base_model=base_model), self._thread)

        return self._call(create)

    async def create_sampling_client_async(
        self, model_path: str | None = None, base_model: str | None = None
    ) -> SamplingClient:
        """As `create_sampling_client`."""
        return await self.create_sampling_client(model_path, base_model)

    def _restore(
        self, path: str, *, optimizer: bool, user_metadata: Mapping[str, str] | None
    ) -> ApiFuture[TrainingClient]:
        async def restore() -> TrainingClient:
            made = await self._service.restore(path, optimizer=optimizer, user_metadata=user_metadata or {})
            return TrainingClient(made, self._thread)

        return self._call(restore)

    def _started(self) -> ApiFuture[None]:
        with self._lock:
            if self._starting is None:
                self._starting = self._thread.call(self._service.start())
            return self._starting

    async def _stop(self, starting: ApiFuture[None], error: BaseException | None) -> None:
        if starting.future().cancel():  # nobody waits for it any more, and the thread ends with what is left of it
            return
        try:
            await starting
        except Exception:  # whose call began it has heard why; what wasn't started needn't be stopped
            return
        await self._service.stop(error)

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> ApiFuture[T]:
        """Begin some work once the service is there."""
        starting: Awaitable[None] = self._started()

        async def called() -> T:
            await starting
            return await work()

        return self._thread.call(called())
