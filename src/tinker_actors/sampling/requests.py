"""What goes into a sampler and what comes out of it. Loads no torch: rollout workers import this module.

Token-in, token-out: a prompt is token ids and stays as it is; a sample's tokens are exactly what was drawn.

>>> request = SamplingRequest(
...     prompt=(1, 2, 3), snapshot="tinker://p/sampler_weights/1", params=SamplingParams(max_tokens=8, stop=("\\n", 2))
... )
>>> request.params.stop_strings, request.params.stop_tokens
(('\\n',), (2,))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tinker_actors.data import ImageChunk, ModelInput, TurnEnd
from tinker_actors.errors import DataError, SamplingError

_SEEDS = 2**64


class InvalidRequestError(SamplingError, ValueError):
    """A field of a request can't be served; names the field, the value and what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to sample. Temperature is applied first, then top-k, then top-p over what top-k left.

    Attributes:
        max_tokens: New tokens at most, at least 1; the stop token counts.
        temperature: Divisor of the logits. 0 is greedy: the most likely token, with its log-prob at temperature 1.
        top_p: Nucleus: the smallest set of most likely tokens whose mass reaches it, in (0, 1]; 1 is off.
        top_k: Only the k most likely tokens, the lower id first among equals; -1 is off.
        stop: Strings and token ids that end a sample. A string is sought in the sampled text, which leaves out special
            tokens; one that spells a special token stands for that token.
        default_stops: Whether the tokenizer's own stop ids (end of text, end of turn) end a sample too.
        seed: In [0, 2**64). The same seed, prompt and snapshot give the same samples, whatever shares the batch and
            whichever sampler serves them. None draws a fresh seed, which the reply names.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop: tuple[str | int, ...] = ()
    default_stops: bool = True
    seed: int | None = None

    def __post_init__(self) -> None:
        _require(_is_int(self.max_tokens) and self.max_tokens >= 1, "max_tokens", self.max_tokens, "an integer >= 1")
        finite = _is_number(self.temperature) and math.isfinite(self.temperature) and self.temperature >= 0
        _require(finite, "temperature", self.temperature, "a finite number >= 0 (0 is greedy)")
        _require(_is_number(self.top_p) and 0 < self.top_p <= 1, "top_p", self.top_p, "a number in (0, 1] (1 is off)")
        candidates = _is_int(self.top_k) and (self.top_k == -1 or self.top_k >= 1)
        _require(candidates, "top_k", self.top_k, "an integer >= 1, or -1 (off)")
        _require(isinstance(self.stop, tuple), "stop", self.stop, "a tuple of strings and token ids")
        for position, entry in enumerate(self.stop):
            right = bool(entry) if isinstance(entry, str) else _is_int(entry) and entry >= 0
            _require(right, f"stop[{position}]", entry, "a non-empty string or a token id >= 0")
        seeded = self.seed is None or (_is_int(self.seed) and 0 <= self.seed < _SEEDS)
        _require(seeded, "seed", self.seed, "None or an integer in [0, 2**64)")

    @property
    def greedy(self) -> bool:
        """Whether every token is the most likely one."""
        return self.temperature == 0

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The strings of `stop`."""
        return tuple(entry for entry in self.stop if isinstance(entry, str))

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """The token ids of `stop`; the tokenizer's own are not among them."""
        return tuple(entry for entry in self.stop if isinstance(entry, int))


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRequest:
    """Ask for samples of one prompt from one snapshot.

    Attributes:
        prompt: Token ids, at least one, as they are: nothing is added, cut or encoded again. Each position of an image
            holds its placeholder.
        snapshot: Handle of the snapshot to sample from; a sampler serves what its last refresh loaded.
        params: How to sample.
        num_samples: How many independent samples; they share the prompt's computation.
        images: The images that the prompt's placeholders stand for, in order.
    """

    prompt: tuple[int, ...]
    snapshot: str
    params: SamplingParams = field(default_factory=SamplingParams)
    num_samples: int = 1
    images: tuple[ImageChunk, ...] = ()

    def __post_init__(self) -> None:
        require_tokens("prompt", self.prompt)
        _require(len(self.prompt) > 0, "prompt", self.prompt, "at least one token id")
        _require(isinstance(self.snapshot, str) and bool(self.snapshot), "snapshot", self.snapshot, "a handle")
        _require(isinstance(self.params, SamplingParams), "params", self.params, "SamplingParams")
        _require(
            _is_int(self.num_samples) and self.num_samples >= 1, "num_samples", self.num_samples, "an integer >= 1"
        )
        if self.images:
            try:
                ModelInput.of(self.prompt, self.images)
            except DataError as error:
                raise InvalidRequestError(f"prompt and images don't fit: {error}") from error

    @property
    def input(self) -> ModelInput:
        """The prompt with its images in place."""
        return ModelInput.of(self.prompt, self.images)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One reply of the policy.

    Attributes:
        tokens: The sampled ids, a sampled stop token included. Empty only if the prompt fills the context.
        logprobs: Natural log-prob of each token under the distribution that it was drawn from (after temperature,
            top-k and top-p), shape (len(tokens),).
        end: `STOP`, `LENGTH` or `CONTEXT_OVERFLOW`.
        text: The tokens as text, without special tokens and the stop token, cut before the stop string that ended it.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    end: TurnEnd
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingReply:
    """The samples of one request.

    Attributes:
        samples: `num_samples` of them, by sample index.
        snapshot: Handle of the snapshot that sampled every token.
        snapshot_step: Update steps that the snapshot had behind it.
        prompt_tokens: Length of the prompt.
        seed: The request's seed, or the fresh one if it had none: asking again with it gives the same samples.
    """

    samples: tuple[Sample, ...]
    snapshot: str
    snapshot_step: int
    prompt_tokens: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerStats:
    """What a sampler has done since it started. Counts only grow.

    Attributes:
        requests: Requests answered with samples.
        failed: Requests that ended in an error.
        cancelled: Requests whose asker went away.
        samples: Samples delivered.
        prompt_tokens: Prompt tokens of answered requests.
        prefilled_tokens: Prompt tokens computed; fewer than `prompt_tokens` where samples shared a prompt.
        generated_tokens: Tokens drawn.
        steps: Forward passes; each drew one token for every live row of its batch.
        busy_seconds: Time spent computing.
        occupancy: Mean number of live rows per step, 0 before the first.
        waiting: Rows that wait for a batch now.
        snapshots: Handles that are loaded now, in the order of their loading.
    """

    requests: int
    failed: int
    cancelled: int
    samples: int
    prompt_tokens: int
    prefilled_tokens: int
    generated_tokens: int
    steps: int
    busy_seconds: float
    occupancy: float
    waiting: int
    snapshots: tuple[str, ...]

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per busy second, prefill included in the time; 0 before the first."""
        return self.generated_tokens / self.busy_seconds if self.busy_seconds else 0.0


def require_tokens(field: str, tokens: Sequence[int]) -> None:
    """Check that `tokens` is a tuple of non-negative plain ints.

    Raises:
        InvalidRequestError: It isn't; names the first position that is wrong.
    """
    _require(isinstance(tokens, tuple), field, tokens, "a tuple of token ids")
    if tokens and (set(map(type, tokens)) != {int} or min(tokens) < 0):
        position = next(i for i, token in enumerate(tokens) if type(token) is not int or token < 0)
        _require(False, f"{field}[{position}]", tokens[position], "an int >= 0")


def _require(right: bool, field: str, value: object, needed: str) -> None:
    if not right:
        raise InvalidRequestError(f"{field} is {value!r}; {needed} is needed")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
