"""Requests and answers of a Tinker service, as the official client's types say them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any, cast

from tinker_actors.data import ImageChunk, ModelInput
from tinker_actors.errors import ConfigError, PolicyError, SamplingError
from tinker_actors.sampling.backends.contract import Drawn
from tinker_actors.sampling.backends.endings import Endings
from tinker_actors.sampling.requests import EngineDiedError, InvalidRequestError, SamplingRequest

_SEEDS = 2**63
_NOT_SERVED = {
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": (),
    "grammar": None,
}
"""What the protocol has no field for, and the value at which that doesn't matter."""


def official_client() -> ModuleType:
    """The package `tinker`.

    Raises:
        ConfigError: It isn't installed.
    """
    try:
        import tinker
    except ImportError as error:
        raise ConfigError(
            f"a Tinker service needs the package 'tinker' ({error}); install tinker-actors[tinker]"
        ) from error
    return tinker


def check(request: SamplingRequest) -> None:
    """Refuse what the protocol has no field for.

    Raises:
        InvalidRequestError: Names the field, the value and what would be right.
    """
    for name, off in _NOT_SERVED.items():
        value = getattr(request.params, name)
        if value != off:
            raise InvalidRequestError(f"params.{name} is {value!r}; a Tinker service has none: {off!r} is needed")
    for place, image in enumerate(request.images):
        if image.format not in ("png", "jpeg"):
            raise InvalidRequestError(f"images[{place}] is {image.format}; a Tinker service takes png or jpeg")


def input_of(tinker: Any, given: ModelInput) -> Any:
    """A model's input."""
    chunks: list[Any] = []
    for chunk in given.chunks:
        if isinstance(chunk, ImageChunk):
            chunks.append(tinker.types.ImageChunk(data=chunk.data, format=chunk.format, expected_tokens=len(chunk)))
        else:
            chunks.append(tinker.types.EncodedTextChunk(tokens=list(chunk.tokens)))
    return tinker.types.ModelInput(chunks=chunks)


async def ask(tinker: Any, client: Any, request: SamplingRequest, endings: Endings) -> Drawn:
    """Sample from a sampling client, or score targets.

    Args:
        tinker: The package.
        client: Its sampling client.
        request: What is asked; its prompt leaves room for a token.
        endings: How samples end.

    Raises:
        SamplingError: As `errors`.
    """
    params, prompt = request.params, len(request.prompt)
    scores = request.prompt_logprobs or bool(request.targets)
    with errors(tinker):
        response = await client.sample(
            prompt=input_of(tinker, ModelInput.of((*request.prompt, *request.targets), request.images)),
            num_samples=request.num_samples,
            sampling_params=_params(tinker, request, endings),
            include_prompt_logprobs=scores,
            topk_sample_logprobs=params.logprobs,
        )
    scored = _scored(response, prompt + len(request.targets)) if scores else ()
    return Drawn(
        samples=() if request.targets else tuple(_sample(request, each, endings) for each in response.sequences),
        prompt_logprobs=scored[: prompt - 1] if request.prompt_logprobs else (),
        target_logprobs=scored[prompt - 1 :] if request.targets else (),
        cached_tokens=response.prompt_cache_hit_tokens,
        seed=params.seed,
    )


@contextlib.contextmanager
def errors(tinker: Any) -> Iterator[None]:
    """The boundary to the official client: its errors become this package's.

    Raises:
        InvalidRequestError: The service refuses what is asked.
        EngineDiedError: It can't be reached.
        SamplingError: It failed.
    """
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
            raise InvalidRequestError(f"the Tinker service refuses the request: {_detail(error)}") from error
        raise SamplingError(f"the Tinker service failed ({error.status_code}): {_detail(error)}") from error
    except tinker.APIConnectionError as error:
        raise EngineDiedError(f"the Tinker service can't be reached: {error}") from error
    except (tinker.TinkerError, ValueError, RuntimeError, OSError) as error:
        raise SamplingError(f"the Tinker service failed: {type(error).__name__}: {error}") from error


def _detail(error: Any) -> str:
    """What a service said, without the wrapping around it."""
    body = error.body
    detail = cast("dict[str, Any]", body).get("detail") if isinstance(body, dict) else None
    return detail if isinstance(detail, str) else str(error)


def _params(tinker: Any, request: SamplingRequest, endings: Endings) -> Any:
    """The protocol takes stop tokens or stop strings, not both: strings are then looked for here."""
    params, stop_ids = request.params, endings.stop_ids(request)
    stop: list[int] | list[str] = sorted(stop_ids) if stop_ids else list(params.stop_strings)
    return tinker.types.SamplingParams(
        max_tokens=1 if request.targets else endings.room(request),
        seed=None if params.seed is None else params.seed % _SEEDS,
        stop=stop,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
    )


def _sample(request: SamplingRequest, sequence: Any, endings: Endings) -> Any:
    if sequence.logprobs is None:
        raise SamplingError("the Tinker service gave no log-probs of what it sampled")
    tops = [tuple(entry or ()) for entry in sequence.topk_logprobs or ()]
    return endings.sample(request, sequence.tokens, sequence.logprobs, tops, stopped=sequence.stop_reason == "stop")


def _scored(response: Any, length: int) -> tuple[float, ...]:
    found = response.prompt_logprobs or []
    if len(found) != length or any(value is None for value in found[1:]):
        raise SamplingError(f"the Tinker service scored {sum(v is not None for v in found)} of {length} prompt tokens")
    return tuple(found[1:])
