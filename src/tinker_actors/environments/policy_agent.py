"""The agent that a policy plays: token-exact, through a sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from tinker_actors.data import Message, SamplingRecord, ToolList, Turn, TurnEnd, derive_seed
from tinker_actors.environments.agents import Action, Agent
from tinker_actors.environments.conversation import Conversation, Overflow, Prompt
from tinker_actors.errors import ConfigError, ContextOverflowError
from tinker_actors.models.rendering import ChatRenderer
from tinker_actors.sampling.requests import Sample, SamplingParams, SamplingReply, SamplingRequest


class SamplesTokens(Protocol):
    """What serves a policy: a ref of a `Sampler`, or anything that answers like one."""

    async def sample(self, request: SamplingRequest, /) -> SamplingReply:
        """Sample from the snapshot that the request names."""
        ...


class PolicyAgent(Agent):
    """Asks a sampler for every action and keeps the tokens exactly as they were sampled.

    A prompt or reply that reaches the context length ends the turn with `CONTEXT_OVERFLOW`; the episode is then
    truncated and nothing more is sampled.

    Args:
        sampler: Serves the snapshot.
        renderer: Turns messages into tokens.
        params: How to sample; `seed` is replaced by one derived for each turn.
        policy: Id of the policy.
        snapshot: Handle of the snapshot to sample from.
        seed: The episode's; each turn's is derived from it and from `seat`.
        seat: Which seat this is.
        context_length: Tokens of prompt and reply together; None leaves the limit to the sampler.
        max_prompt: The most tokens of a prompt; None for no limit.
        overflow: What happens to a prompt longer than `max_prompt`.
        trainable: Whether the turns may enter datums and statistics; False for a frozen opponent.
    """

    def __init__(
        self,
        sampler: SamplesTokens,
        renderer: ChatRenderer,
        params: SamplingParams,
        *,
        policy: str,
        snapshot: str,
        seed: int,
        seat: str = "agent",
        context_length: int | None = None,
        max_prompt: int | None = None,
        overflow: Overflow = "refuse",
        trainable: bool = True,
    ) -> None:
        if max_prompt is not None and context_length is not None and max_prompt >= context_length:
            raise ConfigError(
                f"max_prompt is {max_prompt} and context_length is {context_length}; a smaller max_prompt is needed to "
                "leave room for a reply"
            )
        if trainable and (params.biases or params.min_p > 0 or params.grammar is not None):
            raise ConfigError(
                "params change the distribution by min_p, penalties, logit_bias or a grammar, which a trainer can't "
                "reproduce; sample a trainable seat without them"
            )
        self.policy = policy
        self.trainable = trainable
        self._sampler = sampler
        self._params = replace(params, stop=stops_of(params, renderer))
        self._snapshot = snapshot
        self._seed = seed
        self._seat = seat
        self._context_length = context_length
        self._renderer = renderer
        self._conversation = Conversation(renderer, max_prompt=max_prompt, overflow=overflow)
        self._turn = 0

    async def equip(self, tools: ToolList) -> None:
        """Show the tools in the prompt."""
        self._renderer = self._renderer.with_tools(tools)
        self._conversation = self._conversation.begun_anew(self._renderer)

    async def act(self, messages: Sequence[Message]) -> Action:
        """Sample an action.

        Raises:
            ContextOverflowError: The prompt is longer than `max_prompt`, which `overflow` refuses.
            SamplingError: The sampler couldn't serve the request.
        """
        prompt = self._conversation.observe(messages)
        seed = derive_seed(self._seed, "sample", self._seat, self._turn)
        self._turn += 1
        room = self._params.max_tokens
        if self._context_length is not None:
            room = min(room, self._context_length - len(prompt.input))
        if room < 1:
            return self._overflowed(prompt, messages)
        params = replace(self._params, max_tokens=room, seed=seed)
        try:
            reply = await self._sampler.sample(
                SamplingRequest(
                    prompt=prompt.input.tokens, images=prompt.input.images, snapshot=self._snapshot, params=params
                )
            )
        except ContextOverflowError:
            return self._overflowed(prompt, messages)
        (sample,) = reply.samples
        cut_short = sample.end is TurnEnd.LENGTH and room < self._params.max_tokens
        text = self._renderer.told(sample.tokens, sample.text)
        self._conversation.act(sample.tokens, text)
        record = SamplingRecord(
            snapshot_min=reply.snapshot,
            snapshot_max=reply.snapshot,
            snapshot_step=reply.snapshot_step,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            seed=None if reply.seed is None else seed,  # some engines can't repeat a sample
        )
        turn = _turn(
            prompt, messages, sample=sample, end=TurnEnd.CONTEXT_OVERFLOW if cut_short else sample.end, record=record
        )
        return Action(text=text, turns=(turn,))

    def _overflowed(self, prompt: Prompt, messages: Sequence[Message]) -> Action:
        turn = _turn(prompt, messages, sample=None, end=TurnEnd.CONTEXT_OVERFLOW, record=None)
        return Action(text="", turns=(turn,))


def _turn(
    prompt: Prompt, messages: Sequence[Message], *, sample: Sample | None, end: TurnEnd, record: SamplingRecord | None
) -> Turn:
    return Turn(
        observation=prompt.appended,
        action=() if sample is None else sample.tokens,
        logprobs=() if sample is None else sample.logprobs,
        end=end,
        restarts=prompt.restarts,
        messages=tuple(messages),
        text="" if sample is None else sample.text,
        sampling=record,
    )


def stops_of(params: SamplingParams, renderer: ChatRenderer) -> tuple[str | int, ...]:
    """The asked stops and the template's own end of a turn: a token where it is one, else its text."""
    said_by_tokens = {renderer.tokenizer.token_text(stop) for stop in renderer.stop_ids}
    text = (renderer.stop_text,) if renderer.stop_text and renderer.stop_text not in said_by_tokens else ()
    return tuple(dict.fromkeys((*params.stop, *renderer.stop_ids, *text)))
