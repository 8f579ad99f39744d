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
from tinker_actors.sampling.scoring import PromptScores, PromptScoring

_SEEDS = 2**64
_MOST_LOGPROBS = 1000
_MOST_NUMBERS = 2**22


class Overloaded(SamplingError):  # noqa: N818 - it is a state, and names what the asker is told
    """The sampler has more waiting than it accepts; the request was not taken.

    Attributes:
        retry_after: Seconds after which there is probably room.
    """

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message, retry_after)
        self.retry_after = retry_after

    def __str__(self) -> str:
        return str(self.args[0])


class EngineDiedError(SamplingError):
    """The engine behind a sampler died, and what it had under way is lost; asking again may find a fresh one."""


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
        min_p: Only tokens at least this fraction as likely as the most likely one, in [0, 1]; 0 is off.
        repetition_penalty: Divides the positive logits, and multiplies the negative ones, of tokens that the prompt or
            the sample holds; above 0, 1 is off.
        presence_penalty: Subtracted from the logit of each token that the sample holds; 0 is off.
        frequency_penalty: The same, times how often the sample holds it; 0 is off.
        logit_bias: Pairs of a token id and what is added to its logit.
        stop: Strings and token ids that end a sample. A string is sought in the sampled text, which leaves out special
            tokens; one that spells a special token stands for that token.
        default_stops: Whether the tokenizer's own stop ids (end of text, end of turn) end a sample too.
        seed: In [0, 2**64). The same seed, prompt and snapshot give the same samples, whatever shares the batch and
            whichever sampler serves them. None draws a fresh seed, which the reply names.
        logprobs: How many of the most likely tokens come with each sampled one, in [0, 1000].
        grammar: What the sampled text must be, as a grammar of the package llguidance (`grammars.json_schema` and
            `grammars.regex` make them); None for anything.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop: tuple[str | int, ...] = ()
    default_stops: bool = True
    seed: int | None = None
    logprobs: int = 0
    grammar: str | None = None

    def __post_init__(self) -> None:
        _require(_is_int(self.max_tokens) and self.max_tokens >= 1, "max_tokens", self.max_tokens, "an integer >= 1")
        finite = _is_number(self.temperature) and math.isfinite(self.temperature) and self.temperature >= 0
        _require(finite, "temperature", self.temperature, "a finite number >= 0 (0 is greedy)")
        _require(_is_number(self.top_p) and 0 < self.top_p <= 1, "top_p", self.top_p, "a number in (0, 1] (1 is off)")
        candidates = _is_int(self.top_k) and (self.top_k == -1 or self.top_k >= 1)
        _require(candidates, "top_k", self.top_k, "an integer >= 1, or -1 (off)")
        fraction = _is_number(self.min_p) and 0 <= self.min_p <= 1
        _require(fraction, "min_p", self.min_p, "a number in [0, 1] (0 is off)")
        positive = _is_finite(self.repetition_penalty) and self.repetition_penalty > 0
        _require(positive, "repetition_penalty", self.repetition_penalty, "a finite number > 0 (1 is off)")
        for name in ("presence_penalty", "frequency_penalty"):
            _require(_is_finite(getattr(self, name)), name, getattr(self, name), "a finite number (0 is off)")
        _require(isinstance(self.logit_bias, tuple), "logit_bias", self.logit_bias, "a tuple of (token id, number)")
        for position, pair in enumerate(self.logit_bias):
            right = isinstance(pair, tuple) and len(pair) == 2 and _is_int(pair[0]) and pair[0] >= 0
            _require(
                right and _is_finite(pair[1]), f"logit_bias[{position}]", pair, "(a token id >= 0, a finite number)"
            )
        counted = _is_int(self.logprobs) and 0 <= self.logprobs <= _MOST_LOGPROBS
        _require(counted, "logprobs", self.logprobs, f"an integer in [0, {_MOST_LOGPROBS}]")
        written = self.grammar is None or (isinstance(self.grammar, str) and bool(self.grammar))
        _require(written, "grammar", self.grammar, "None or a grammar")
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
    def biases(self) -> bool:
        """Whether logits are changed before the temperature."""
        changed = (self.repetition_penalty != 1, self.presence_penalty, self.frequency_penalty, self.logit_bias)
        return any(changed)

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
        prompt_logprobs: Whether the reply has the log-prob of each prompt token after the first.
        scoring: What else is wanted of the prompt, and of how much of it.
        targets: Tokens to score: the reply has the log-prob of each, given the prompt and those before it. Nothing is
            sampled then.
        priority: Requests of a higher one go first, and take the place of running ones where memory is short.
        job: Whose request it is: jobs share the sampler fairly. Without one, each snapshot counts as a job.
    """

    prompt: tuple[int, ...]
    snapshot: str
    params: SamplingParams = field(default_factory=SamplingParams)
    num_samples: int = 1
    images: tuple[ImageChunk, ...] = ()
    prompt_logprobs: bool = False
    scoring: PromptScoring = field(default_factory=PromptScoring)
    targets: tuple[int, ...] = ()
    priority: int = 0
    job: str = ""

    def __post_init__(self) -> None:
        require_tokens("prompt", self.prompt)
        require_tokens("targets", self.targets)
        _require(_is_int(self.priority), "priority", self.priority, "an integer")
        _require(isinstance(self.job, str), "job", self.job, "a string")
        _require(isinstance(self.prompt_logprobs, bool), "prompt_logprobs", self.prompt_logprobs, "True or False")
        if self.targets:
            _require(self.num_samples == 1, "num_samples", self.num_samples, "1, as targets are scored once,")
        _require(len(self.prompt) > 0, "prompt", self.prompt, "at least one token id")
        _require(isinstance(self.snapshot, str) and bool(self.snapshot), "snapshot", self.snapshot, "a handle")
        _require(isinstance(self.params, SamplingParams), "params", self.params, "SamplingParams")
        _require(
            _is_int(self.num_samples) and self.num_samples >= 1, "num_samples", self.num_samples, "an integer >= 1"
        )
        _require(isinstance(self.scoring, PromptScoring), "scoring", self.scoring, "PromptScoring")
        if wrong := self.scoring.wrong(len(self.prompt) - 1):
            _require(False, f"scoring.{wrong[0]}", wrong[1], wrong[2])
        numbers = self.scoring.width * len(self.prompt)
        _require(
            numbers <= _MOST_NUMBERS, "scoring", f"{numbers} numbers", f"at most {_MOST_NUMBERS} (width times prompt)"
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

    @property
    def scored_from(self) -> int | None:
        """Position of the first token after which something is scored; None if nothing is."""
        places, scoring = len(self.prompt) - 1, self.scoring
        starts = [places] if self.targets else []
        if self.prompt_logprobs or scoring.tops:
            starts.append(0 if scoring.last is None else places - scoring.last)
        if scoring.first_place is not None:
            starts.append(scoring.first_place)
        return min(starts, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One reply of the policy.

    Attributes:
        tokens: The sampled ids, a sampled stop token included. Empty only if the prompt fills the context.
        logprobs: Natural log-prob of each token under the distribution that it was drawn from (after temperature,
            top-k and top-p), shape (len(tokens),).
        end: `STOP`, `LENGTH` or `CONTEXT_OVERFLOW`.
        text: The tokens as text, without special tokens and the stop token, cut before the stop string that ended it.
        top_logprobs: For each token the most likely ones at its place with their log-probs, as many as were asked for.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    end: TurnEnd
    text: str
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingReply:
    """The samples of one request.

    Attributes:
        samples: `num_samples` of them, by sample index.
        snapshot: Handle of the snapshot that sampled every token.
        snapshot_step: Update steps that the snapshot had behind it.
        prompt_tokens: Length of the prompt.
        seed: The request's seed, or the fresh one if it had none: asking again with it gives the same samples. None
            from an engine that can't repeat samples.
        prompt_logprobs: Of the prompt's tokens after the first, or of the last `scoring.last`, at temperature 1; empty
            if not asked for.
        prompt_scores: What `scoring` asked for; None if nothing.
        target_logprobs: Of the targets, at the request's temperature and nothing else, shape (targets,).
        cached_tokens: Prompt tokens that needn't be computed: their keys and values were there.
    """

    samples: tuple[Sample, ...]
    snapshot: str
    snapshot_step: int
    prompt_tokens: int
    seed: int | None
    prompt_logprobs: tuple[float, ...] = ()
    prompt_scores: PromptScores | None = None
    target_logprobs: tuple[float, ...] = ()
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledToken:
    """One token of a request that is streamed.

    Attributes:
        index: The sample's index.
        token: The token id.
        logprob: As in `Sample.logprobs`.
        top: As in `Sample.top_logprobs`, from engines that tell it token by token.
    """

    index: int
    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


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


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
