"""A remote Tinker service as an engine, through the official client.

The client's calls that may block run in a thread; what it does in the background is on a thread and event loop of its
own. It is loaded when the engine starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from typing import Any

from tinker_actors.errors import PolicyError, SamplingError, UnknownPolicyError
from tinker_actors.models.catalogue import load_tokenizer, resolve
from tinker_actors.policies import Snapshot, SnapshotStore
from tinker_actors.policies.at_service import path_at_service
from tinker_actors.sampling.backends.contract import Drawn, Loaded
from tinker_actors.sampling.backends.endings import Endings
from tinker_actors.sampling.backends.settings import TinkerSettings
from tinker_actors.sampling.backends.tinker_wire import ask, check, errors, official_client
from tinker_actors.sampling.requests import InvalidRequestError, SampledToken, SamplingRequest

_HANDLE = re.compile(r"tinker://[^/]+/sampler_weights/(?P<name>[^/]+)")
_NUMBER = re.compile(r"\d+$")
_PATIENCE = 2.0  # seconds


class TinkerEngine:
    """See `SnapshotEngine`. A snapshot is any `tinker://.../sampler_weights/...` path that the service knows.

    Args:
        base_model: Name of the base model here; its tokenizer turns samples into text.
        settings: Which service.
        store: Folder or URL of a snapshot store that says how many steps its snapshots have behind them, and where at
            the service those lie that were trained there. Without one, or for a path that it doesn't hold, the steps
            are the number that the path ends in.
    """

    def __init__(self, *, base_model: str, settings: TinkerSettings, store: str | None) -> None:
        self.context_length = settings.context_length
        self._base_model, self._settings = base_model, settings
        self._store = None if store is None else SnapshotStore(store)
        self._service: Any = None

    async def start(self) -> None:
        """Open a session."""
        tinker = self._tinker = official_client()
        # its session begins with the first snapshot
        self._service = tinker.ServiceClient(
            base_url=self._settings.url or None,
            api_key=self._settings.api_key(),
            user_metadata={"client": "tinker_actors"},
        )
        self._endings = Endings(await asyncio.to_thread(load_tokenizer, self._base_model), self.context_length)

    async def stop(self) -> None:
        """Finish the session."""
        if self._service is not None:
            service, self._service = self._service, None
            with contextlib.suppress(TimeoutError, SamplingError), errors(self._tinker):
                async with asyncio.timeout(_PATIENCE):  # a service that is gone is asked for minutes
                    await service.close("success")

    async def load(self, handle: str) -> Loaded:
        """Open a sampling session on a path; whether the service has it is known then."""
        match = _HANDLE.fullmatch(handle)
        if match is None:
            raise PolicyError(f"{handle!r} is no handle of a snapshot; tinker://.../sampler_weights/NAME is needed")
        stored, path = await asyncio.to_thread(self._stored, handle)
        try:
            with errors(self._tinker):
                # making one asks the service before it gives a future
                future = await asyncio.to_thread(self._service.create_sampling_client, model_path=path)
                client = await future
        except InvalidRequestError as error:
            raise UnknownPolicyError(f"{handle} is not served by the Tinker service: {error}") from error
        base, own = client.get_base_model(), self._settings.base_model or resolve(self._base_model).name
        if base != own:
            raise PolicyError(f"{handle} is of base model {base!r} at the Tinker service; base_model is {own!r}")
        step = _number(match["name"]) if stored is None else stored.step
        return Loaded(handle=handle, step=step, place=client)

    async def unload(self, loaded: Loaded) -> None:
        """Nothing: sessions on paths end with the engine's own."""

    def check(self, request: SamplingRequest) -> None:
        """Refuse what the protocol has no field for."""
        check(request)

    async def sample(
        self, loaded: Loaded, request: SamplingRequest, tell: Callable[[SampledToken], None] | None
    ) -> Drawn:
        """Sample, or score targets; tokens are told once all are there, as the protocol has no streams."""
        drawn = await ask(self._tinker, loaded.place, request, self._endings)
        for index, sample in enumerate(drawn.samples if tell is not None else ()):
            for token, logprob in zip(sample.tokens, sample.logprobs, strict=True):
                tell(SampledToken(index=index, token=token, logprob=logprob))  # pyright: ignore[reportOptionalCall]
        return drawn

    def _stored(self, handle: str) -> tuple[Snapshot | None, str]:
        """What the store says of a snapshot, if it holds it, and what the service calls it."""
        if self._store is not None:
            with contextlib.suppress(UnknownPolicyError):  # the service's own, which no store here holds
                stored = self._store.get(handle)
                return stored, path_at_service(self._store, stored) or handle
        return None, handle


def _number(name: str) -> int:
    """The number that a name ends in; 0 if it ends in none."""
    found = _NUMBER.search(name)
    return int(found[0]) if found else 0
