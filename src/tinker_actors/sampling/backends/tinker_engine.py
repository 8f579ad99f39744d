"""A remote Tinker service as an engine, through the official client.

The client's calls that may block run in a thread; what it does in the background is on a thread and event loop of its
own. It is loaded when the engine starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

from tinker_actors.data import ImageChunk
from tinker_actors.errors import ConfigError, PolicyError, SamplingError, UnknownPolicyError
from tinker_actors.models.catalogue import load_tokenizer, resolve
from tinker_actors.policies import SnapshotStore
from tinker_actors.sampling.backends.contract import Drawn, Loaded
from tinker_actors.sampling.backends.endings import Endings
from tinker_actors.sampling.backends.settings import TinkerSettings
from tinker_actors.sampling.requests import EngineDiedError, InvalidRequestError, SampledToken, SamplingRequest

_HANDLE = re.compile(r"tinker://[^/]+/sampler_weights/(?P<name>[^/]+)")
_NUMBER = re.compile(r"\d+$")
_SEEDS = 2**63
_PATIENCE = 2.0  # seconds
_NOT_SERVED = {
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": (),
    "grammar": None,
}
"""What the protocol has no field for, and the value at which that doesn't matter."""


class TinkerEngine:
    """See `SnapshotEngine`. A snapshot is any `tinker://.../sampler_weights/...` path that the service knows.

    Args:
        base_model: Name of the base model here; its tokenizer turns samples into text.
        settings: Which service.
        store: Folder or URL of a snapshot store that says how many steps its snapshots have behind them. Without one,
            or for a path that it doesn't hold, that is the number that the path ends in.
    """

    def __init__(self, *, base_model: str, settings: TinkerSettings, store: str | None) -> None:
        self.context_length = settings.context_length
        self._base_model, self._settings = base_model, settings
        self._store = None if store is None else SnapshotStore(store)
        self._service: Any = None

    async def start(self) -> None:
        """Open a session."""
        try:
            import tinker
        except ImportError as error:
            raise ConfigError(
                f"the backend 'tinker' needs the package of that name ({error}); install tinker-actors[tinker]"
            ) from error
        self._tinker = tinker
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
            with contextlib.suppress(TimeoutError, SamplingError), self._errors():
                async with asyncio.timeout(_PATIENCE):  # a service that is gone is asked for minutes
                    await service.close("success")

    async def load(self, handle: str) -> Loaded:
        """Open a sampling session on a path; whether the service has it is known then."""
        match = _HANDLE.fullmatch(handle)
        if match is None:
            raise PolicyError(f"{handle!r} is no handle of a snapshot; tinker://.../sampler_weights/NAME is needed")
        try:
            with self._errors():
                # making one asks the service before it gives a future
                future = await asyncio.to_thread(self._service.create_sampling_client, model_path=handle)
                client = await future
        except InvalidRequestError as error:
            raise UnknownPolicyError(f"{handle} is not served by the Tinker service: {error}") from error
        base, own = client.get_base_model(), self._settings.base_model or resolve(self._base_model).name
        if base != own:
            raise PolicyError(f"{handle} is of base model {base!r} at the Tinker service; base_model is {own!r}")
        return Loaded(handle=handle, step=await self._step(handle, match["name"]), place=client)

    async def unload(self, loaded: Loaded) -> None:
        """Nothing: sessions on paths end with the engine's own."""

    def check(self, request: SamplingRequest) -> None:
        """Refuse what the protocol has no field for."""
        for name, off in _NOT_SERVED.items():
            value = getattr(request.params, name)
            if value != off:
                raise InvalidRequestError(f"params.{name} is {value!r}; a Tinker service has none: {off!r} is needed")
        for place, image in enumerate(request.images):
            if image.format not in ("png", "jpeg"):
                raise InvalidRequestError(f"images[{place}] is {image.format}; a Tinker service takes png or jpeg")

    async def sample(
        self, loaded: Loaded, request: SamplingRequest, tell: Callable[[SampledToken], None] | None
    ) -> Drawn:
        """Sample, or score targets; tokens are told once all are there, as the protocol has no streams."""
        params = request.params
        scores = request.prompt_logprobs or bool(request.targets)
        with self._errors():
            response = await loaded.place.sample(
                prompt=self._prompt(request),
                num_samples=request.num_samples,
                sampling_params=self._params(request),
                include_prompt_logprobs=scores,
                topk_sample_logprobs=params.logprobs,
            )
        scored = _scored(response, len(request.prompt) + len(request.targets)) if scores else ()
        prompt = len(request.prompt)
        samples = () if request.targets else tuple(self._sample(request, each) for each in response.sequences)
        for index, sample in enumerate(samples if tell is not None else ()):
            for token, logprob in zip(sample.tokens, sample.logprobs, strict=True):
                tell(SampledToken(index=index, token=token, logprob=logprob))  # pyright: ignore[reportOptionalCall]
        return Drawn(
            samples=samples,
            prompt_logprobs=scored[: prompt - 1] if request.prompt_logprobs else (),
            target_logprobs=scored[prompt - 1 :] if request.targets else (),
            cached_tokens=response.prompt_cache_hit_tokens,
            seed=params.seed,
        )

    def _sample(self, request: SamplingRequest, sequence: Any) -> Any:
        if sequence.logprobs is None:
            raise SamplingError("the Tinker service gave no log-probs of what it sampled")
        tops = [tuple(entry or ()) for entry in sequence.topk_logprobs or ()]
        return self._endings.sample(
            request, sequence.tokens, sequence.logprobs, tops, stopped=sequence.stop_reason == "stop"
        )

    def _prompt(self, request: SamplingRequest) -> Any:
        types: Any = self._tinker.types
        chunks: list[Any] = []
        for chunk in request.input.chunks:
            if isinstance(chunk, ImageChunk):
                chunks.append(types.ImageChunk(data=chunk.data, format=chunk.format, expected_tokens=len(chunk)))
            else:
                chunks.append(types.EncodedTextChunk(tokens=list(chunk.tokens)))
        if request.targets:
            chunks.append(types.EncodedTextChunk(tokens=list(request.targets)))
        return types.ModelInput(chunks=chunks)

    def _params(self, request: SamplingRequest) -> Any:
        """The protocol takes stop tokens or stop strings, not both: strings are then looked for here."""
        params, stop_ids = request.params, self._endings.stop_ids(request)
        stop: list[int] | list[str] = sorted(stop_ids) if stop_ids else list(params.stop_strings)
        return self._tinker.types.SamplingParams(
            max_tokens=1 if request.targets else self._endings.room(request),
            seed=None if params.seed is None else params.seed % _SEEDS,
            stop=stop,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
        )

    async def _step(self, handle: str, name: str) -> int:
        if self._store is not None:
            try:
                return (await asyncio.to_thread(self._store.get, handle)).step
            except PolicyError:  # the service's own, which no store here holds
                pass
        number = _NUMBER.search(name)
        return int(number[0]) if number else 0

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """The boundary to the client: its errors become this package's."""
        tinker = self._tinker
        try:
            yield
        except (SamplingError, PolicyError):
            raise
        except tinker.RequestFailedError as error:
            if error.category == "user":
                raise InvalidRequestError(f"the Tinker service refuses the request: {error}") from error
            raise SamplingError(f"the Tinker service failed: {error}") from error
        except tinker.APIStatusError as error:
            if error.status_code in (400, 404, 422):
                raise InvalidRequestError(f"the Tinker service refuses the request: {error}") from error
            raise SamplingError(f"the Tinker service failed ({error.status_code}): {error}") from error
        except tinker.APIConnectionError as error:
            raise EngineDiedError(f"the Tinker service can't be reached: {error}") from error
        except (tinker.TinkerError, ValueError, RuntimeError, OSError) as error:
            raise SamplingError(f"the Tinker service failed: {type(error).__name__}: {error}") from error


def _scored(response: Any, length: int) -> tuple[float, ...]:
    found = response.prompt_logprobs or []
    if len(found) != length or any(value is None for value in found[1:]):
        raise SamplingError(f"the Tinker service scored {sum(v is not None for v in found)} of {length} prompt tokens")
    return tuple(found[1:])
