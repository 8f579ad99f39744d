"""What a run asks of whatever serves its snapshots, and what an engine must do to be served by `EngineSampler`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tinker_actors.sampling.requests import Sample, SampledToken, SamplingReply, SamplingRequest


class ServesSnapshots(Protocol):
    """The ref of a `Sampler`, or of an actor that answers like one."""

    async def refresh(self, snapshots: Sequence[str]) -> None:
        """Serve exactly these snapshots from now on."""
        ...

    async def sample(self, request: SamplingRequest) -> SamplingReply:
        """Sample from the snapshot that the request names."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A snapshot that an engine can sample from.

    Attributes:
        handle: The snapshot.
        step: Update steps that it had behind it.
        place: What the engine knows it by.
    """

    handle: str
    step: int
    place: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What an engine made of a request.

    Attributes:
        samples: By sample index; empty for a request with targets.
        prompt_logprobs: Of the prompt's tokens after the first, if asked for.
        target_logprobs: Of the targets, if there are any.
        cached_tokens: Prompt tokens that the engine had computed before, as far as it says.
        seed: The seed that gives the same samples again; None if none does.
    """

    samples: tuple[Sample, ...]
    prompt_logprobs: tuple[float, ...] = ()
    target_logprobs: tuple[float, ...] = ()
    cached_tokens: int = 0
    seed: int | None = None


class SnapshotEngine(Protocol):
    """Samples from snapshots; all methods run on the actor's event loop and block it never.

    Attributes:
        context_length: Longest prompt and reply together, in tokens; None if the engine doesn't say.
    """

    context_length: int | None

    async def start(self) -> None:
        """Be ready for `load`.

        Raises:
            SamplingError: The engine can't be started or reached.
            ConfigError: It is, and can't serve what it is meant to.
        """
        ...

    async def stop(self) -> None:
        """Free all that it holds."""
        ...

    async def load(self, handle: str) -> Loaded:
        """Make a snapshot ready to be sampled from.

        Raises:
            UnknownPolicyError: There is no such snapshot.
            PolicyError: It can't be served.
            EngineDiedError: The engine is gone for good.
        """
        ...

    async def unload(self, loaded: Loaded) -> None:
        """Free a snapshot that no request is under way on. An engine that is gone has freed it already."""
        ...

    def check(self, request: SamplingRequest) -> None:
        """Refuse what can't be served as asked.

        Raises:
            InvalidRequestError: Names the field, the value and what would be right.
        """
        ...

    async def sample(
        self, loaded: Loaded, request: SamplingRequest, tell: Callable[[SampledToken], None] | None
    ) -> Drawn:
        """Sample, or score targets. Cancelling it frees what it takes.

        Args:
            loaded: The snapshot.
            request: What is asked; its prompt leaves room for a token.
            tell: Called with each token as it is drawn, if the engine can; else with all before the return.

        Raises:
            EngineDiedError: The engine died; what it did is lost.
            Overloaded: It takes no more now.
            InvalidRequestError: It refuses the request.
            SamplingError: It failed.
        """
        ...
