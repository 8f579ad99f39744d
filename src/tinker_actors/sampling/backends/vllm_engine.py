"""A vLLM server as an engine: started or found, watched, started again with its adapters when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tinker_actors.actors.restart import RestartHistory, RestartPolicy
from tinker_actors.errors import ConfigError, PolicyError, SamplingError
from tinker_actors.models.catalogue import load_tokenizer, resolve
from tinker_actors.policies import SnapshotStore
from tinker_actors.sampling.backends import vllm_wire
from tinker_actors.sampling.backends.child_server import ChildServer
from tinker_actors.sampling.backends.contract import Drawn, Loaded
from tinker_actors.sampling.backends.endings import Endings
from tinker_actors.sampling.backends.settings import VllmSettings, key_of
from tinker_actors.sampling.backends.vllm_adapters import Adapter, AdapterFolder
from tinker_actors.sampling.backends.vllm_client import AdapterMissingError, ServerFaultError, VllmClient
from tinker_actors.sampling.backends.vllm_command import command, environment, model_directory
from tinker_actors.sampling.backends.vllm_probe import check_log_probs
from tinker_actors.sampling.requests import EngineDiedError, InvalidRequestError, SampledToken, SamplingRequest

logger = logging.getLogger(__name__)

T = TypeVar("T")

_WINDOW = 600.0  # seconds in which restarts are counted
_LOOK = 0.25  # seconds between two looks at a server that starts


class VllmEngine:
    """See `SnapshotEngine`. The server's death ends what is under way; the next requests wait for a fresh one.

    Args:
        base_model: Name of the base model.
        store: Folder or URL of the snapshot store.
        settings: Which server, and how it serves.
        context_length: Longest prompt and reply together, in tokens; None is the base model's own.
    """

    def __init__(self, *, base_model: str, store: str, settings: VllmSettings, context_length: int | None) -> None:
        self.context_length = context_length
        self._base_model, self._settings, self._store = base_model, settings, SnapshotStore(store)
        self._adapters: dict[Adapter, None] = {}
        self._up = asyncio.Event()
        self._lost = asyncio.Event()
        self._cause = ""
        self._incarnation = 0
        self._server: ChildServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: str | None = None
        self._scratch: Path | None = None

    async def start(self) -> None:
        """Start the server, or find it."""
        try:
            await self._start()
        except BaseException:  # an actor whose start failed is not stopped
            await self.stop()
            raise

    async def _start(self) -> None:
        settings = self._settings
        self._scratch = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="tinker-actors-vllm-"))
        self._root = self._scratch
        if settings.folder:
            self._root = await asyncio.to_thread(Path(settings.folder).absolute)
            await asyncio.to_thread(self._root.mkdir, parents=True, exist_ok=True)
        self._socket = self._scratch / "socket"
        if settings.url:
            key = key_of(settings.api_key_variable) if settings.api_key_variable else ""
            self._client = VllmClient(settings.url, key=key)
        else:
            self._client = VllmClient("http://vllm", socket=str(self._socket))
            self._model = await asyncio.to_thread(model_directory, self._base_model)
        self._folder = AdapterFolder(
            self._root / "adapters",
            f"{settings.server_folder or self._root}/adapters",
            store=self._store,
            base_model=resolve(self._base_model).name,
            settings=settings,
        )
        await self._begin()
        await self._check_server()
        self._endings = Endings(load_tokenizer(self._base_model), self.context_length)
        self._up.set()
        self._tasks.append(asyncio.create_task(self._keep()))

    async def stop(self) -> None:
        """Unload what was loaded into a server that stays, end one that was started."""
        for task in self._tasks:
            task.cancel()
        try:
            if hasattr(self, "_client"):
                await self._forget()
            if self._server is not None:
                await self._server.stop()
        finally:  # whoever stops the actor may not wait for as long as a server takes to end
            for adapter in self._adapters:
                self._folder.drop(adapter)
            if self._scratch is not None:
                shutil.rmtree(self._scratch, ignore_errors=True)

    async def _forget(self) -> None:
        for adapter in list(self._adapters):
            if self._server is None and self._up.is_set():
                with contextlib.suppress(SamplingError):
                    await self._client.unload(adapter.name)
        await self._client.close()

    async def load(self, handle: str) -> Loaded:
        """Give the server a snapshot's adapter."""
        snapshot, adapter = await asyncio.to_thread(self._folder.take, handle)
        try:
            try:
                await self._with_server(lambda: self._register(adapter))
            except EngineDiedError:  # once more into a fresh one
                await self._with_server(lambda: self._register(adapter))
        except BaseException as error:  # cancelled too: the copy on disk must not stay
            self._folder.drop(adapter)
            if isinstance(error, SamplingError) and not isinstance(error, EngineDiedError):
                raise PolicyError(f"{handle} can't be loaded: {error}") from error
            raise
        self._adapters[adapter] = None
        return Loaded(handle=handle, step=snapshot.step, place=adapter)

    async def unload(self, loaded: Loaded) -> None:
        """Take an adapter from the server and from disk."""
        adapter: Adapter = loaded.place
        del self._adapters[adapter]
        try:
            await self._client.unload(adapter.name)
        except SamplingError:
            pass  # a server that is gone has forgotten it
        finally:
            self._folder.drop(adapter)

    def check(self, request: SamplingRequest) -> None:
        """Refuse what a vLLM server doesn't serve as asked."""
        vllm_wire.check(request, max_logprobs=self._settings.max_logprobs)

    async def sample(
        self, loaded: Loaded, request: SamplingRequest, tell: Callable[[SampledToken], None] | None
    ) -> Drawn:
        """Sample, or score targets."""
        adapter: Adapter = loaded.place

        def body(*, stream: bool) -> Mapping[str, Any]:
            return vllm_wire.body_of(
                request,
                model=adapter.name,
                max_tokens=self._endings.room(request),
                stop_ids=self._endings.stop_ids(request),
                stream=stream,
            )

        whole = request.prompt_logprobs or request.targets or (request.params.greedy and request.num_samples > 1)
        if tell is not None and not whole:
            return await self._with_server(lambda: self._streamed(request, body(stream=True), tell))
        answer = await self._with_server(lambda: self._client.complete(body(stream=False)))
        drawn = self._drawn(request, answer)
        if tell is not None:
            for index, sample in enumerate(drawn.samples):
                for token, logprob in zip(sample.tokens, sample.logprobs, strict=True):
                    tell(SampledToken(index=index, token=token, logprob=logprob))
        return drawn

    def _drawn(self, request: SamplingRequest, answer: Mapping[str, Any]) -> Drawn:
        given = (*request.prompt, *request.targets)
        parts: list[Mapping[str, Any]] = sorted(answer["choices"], key=lambda part: part["index"])
        choices: list[vllm_wire.Choice] = []
        for part in parts:
            vllm_wire.check_prompt(part, given)
            choice = vllm_wire.Choice()
            choice.add(part, request.params.logprobs)
            choices.append(choice)
        scored = vllm_wire.prompt_logprobs_of(parts[0], given) if request.prompt_logprobs or request.targets else ()
        return self._of(request, choices, scored=scored, cached=vllm_wire.cached_of(answer))

    async def _streamed(
        self, request: SamplingRequest, body: Mapping[str, Any], tell: Callable[[SampledToken], None]
    ) -> Drawn:
        choices = [vllm_wire.Choice() for _ in range(request.num_samples)]
        cached = 0
        async for part in self._client.stream(body):
            cached = vllm_wire.cached_of(part) or cached
            for piece in part["choices"]:
                vllm_wire.check_prompt(piece, request.prompt)
                choice = choices[piece["index"]]
                count = choice.add(piece, request.params.logprobs)
                for place in range(len(choice.tokens) - count, len(choice.tokens)):
                    token, logprob = choice.tokens[place], choice.logprobs[place]
                    tell(SampledToken(index=piece["index"], token=token, logprob=logprob))
        return self._of(request, choices, scored=(), cached=cached)

    def _of(
        self, request: SamplingRequest, choices: list[vllm_wire.Choice], *, scored: tuple[float, ...], cached: int
    ) -> Drawn:
        prompt = len(request.prompt)
        samples = [
            self._endings.sample(request, choice.tokens, choice.logprobs, choice.tops, stopped=choice.finish == "stop")
            for choice in (() if request.targets else choices)
        ]
        if request.params.greedy:
            samples *= request.num_samples
        return Drawn(
            samples=tuple(samples),
            prompt_logprobs=scored[: prompt - 1] if request.prompt_logprobs else (),
            target_logprobs=scored[prompt - 1 :] if request.targets else (),
            cached_tokens=cached,
        )

    async def _with_server(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask once the server is there; if it proves to be dead, or another one, it is brought back.

        Raises:
            EngineDiedError: It died while it was asked, or is gone for good.
        """
        await self._up.wait()
        if self._failure is not None:
            raise EngineDiedError(self._failure)
        incarnation = self._incarnation
        try:
            return await ask()
        except EngineDiedError as error:
            self._report(incarnation, str(error))
            raise
        except AdapterMissingError as error:
            self._report(incarnation, f"the server has lost an adapter: {error}")
            raise EngineDiedError(f"the server was started anew: {error}") from error
        except ServerFaultError as error:
            if await self._client.healthy() and incarnation == self._incarnation:
                raise
            self._report(incarnation, str(error))
            raise EngineDiedError(str(error)) from error

    async def _register(self, adapter: Adapter) -> None:
        name = self._folder.fresh_name(adapter)
        await self._client.load(name, self._folder.path(adapter))
        adapter.name = name

    async def _begin(self) -> None:
        """Start the server, or wait for the one that is to be there."""
        if self._settings.url:
            await self._until_healthy("the server")
            return
        if self._server is not None:
            await self._server.stop()
        self._socket.unlink(missing_ok=True)
        line = command(self._settings, model=self._model, socket=self._socket, context_length=self.context_length)
        self._server = ChildServer(line, environment=environment(self._settings), log=self._root / "server.log")
        await self._server.start()
        await self._until_healthy("the server that was started")
        self._tasks.append(asyncio.create_task(self._watch(self._server, self._incarnation)))

    async def _until_healthy(self, what: str) -> None:
        seconds = self._settings.start_timeout
        try:
            async with asyncio.timeout(seconds):
                while not await self._client.healthy():
                    if self._server is not None and not self._server.running:
                        raise SamplingError(f"{what} ended before it was ready:\n{self._server.tail()}")
                    await asyncio.sleep(_LOOK)
        except TimeoutError:
            log = f":\n{self._server.tail()}" if self._server is not None else ""
            if self._server is not None:
                await self._server.stop()
            where = self._settings.url or self._settings.python
            raise SamplingError(f"{what} ({where}) was not ready within {seconds:g} s{log}") from None

    async def _check_server(self) -> None:
        served = await self._client.served(self._settings.served_model)
        own = served.context_length
        if self.context_length is not None and own is not None and self.context_length > own:
            raise ConfigError(f"context_length is {self.context_length}; the server holds at most {own} tokens")
        self.context_length = self.context_length or own
        if self._settings.url:
            try:
                await check_log_probs(self._client, served.name)
            except InvalidRequestError as error:
                raise ConfigError(f"the server at {self._settings.url} can't be used: {error}") from error

    async def _watch(self, server: ChildServer, incarnation: int) -> None:
        await server.wait()
        await self._up.wait()  # one that ends while its adapters load is noticed no later than after that
        self._report(incarnation, f"the server ended:\n{server.tail()}")

    def _report(self, incarnation: int, cause: str) -> None:
        if incarnation == self._incarnation and self._up.is_set() and self._failure is None:
            self._incarnation += 1
            self._cause = cause
            self._up.clear()
            self._lost.set()

    async def _keep(self) -> None:
        """Bring the server back whenever it is lost, with all adapters under new names."""
        policy = RestartPolicy.on_failure(max_restarts=self._settings.max_restarts, within=_WINDOW, backoff=0.5)
        history = RestartHistory(policy)
        while True:
            await self._lost.wait()
            self._lost.clear()
            logger.warning("the vLLM server was lost: %s", self._cause)
            delay = history.next_delay(asyncio.get_running_loop().time(), failed=True)
            if delay is None:
                self._failure = (
                    f"the server was lost more than {policy.max_restarts} times in {_WINDOW:g} s, last: {self._cause}"
                )
                self._up.set()
                return
            await asyncio.sleep(delay)
            try:
                await self._begin()
                for adapter in list(self._adapters):
                    await self._register(adapter)
            except (SamplingError, OSError) as error:
                self._cause = str(error)
                self._lost.set()
                continue
            self._up.set()
