"""The agent that a policy plays: token-exact, through a sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tinker_actors.data import Message, SamplingRecord, ToolList, Turn, TurnEnd, derive_seed
from tinker_actors.environments.agents import Action, Agent
from tinker_actors.environments.conversation import Conversation, Prompt
from tinker_actors.environments.policy_seat import PolicySeat
from tinker_actors.errors import ContextOverflowError
from tinker_actors.models.rendering import ChatRenderer
from tinker_actors.sampling.requests import Sample, SamplingParams, SamplingReply, SamplingRequest


class PolicyAgent(Agent):
    """Asks a sampler for every action and keeps the tokens exactly as they were sampled.

    A prompt or reply that reaches the context length ends the turn with `CONTEXT_OVERFLOW`; the episode is then
    truncated and nothing more is sampled.

    Args:
        spec: The policy and how it is sampled; the seed of `params` is replaced by one derived for each turn.
        renderer: Turns messages into tokens.
        seed: The episode's; each turn's is derived from it and from `seat`.
        seat: Which seat this is.
    """

    def __init__(self, spec: PolicySeat, renderer: ChatRenderer, *, seed: int, seat: str = "agent") -> None:
        self.policy = spec.policy
        self.trainable = spec.trainable
        self._spec = spec
        self._params = replace(spec.params, stop=stops_of(spec.params, renderer))
        self._seed = seed
        self._seat = seat
        self._renderer = renderer
        self._conversation = Conversation(renderer, max_prompt=spec.max_prompt, overflow=spec.overflow)
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
        if self._spec.context_length is not None:
            room = min(room, self._spec.context_length - len(prompt.input))
        if room < 1:
            return self._overflowed(prompt, messages)
        params = replace(self._params, max_tokens=room, seed=seed)
        try:
            reply = await self._spec.sampler.sample(
                SamplingRequest(
                    prompt=prompt.input.tokens, images=prompt.input.images, snapshot=self._spec.snapshot, params=params
                )
            )
        except ContextOverflowError:
            return self._overflowed(prompt, messages)
        (sample,) = reply.samples
        cut_short = sample.end is TurnEnd.LENGTH and room < self._params.max_tokens
        text = self._renderer.told(sample.tokens, sample.text)
        self._conversation.act(sample.tokens, text)
        end = TurnEnd.CONTEXT_OVERFLOW if cut_short else sample.end
        turn = _turn(prompt, messages, sample=sample, end=end, record=record_of(reply, params))
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


def record_of(reply: SamplingReply, params: SamplingParams) -> SamplingRecord:
    """By what a turn was sampled."""
    return SamplingRecord(
        snapshot_min=reply.snapshot,
        snapshot_max=reply.snapshot,
        snapshot_step=reply.snapshot_step,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        seed=None if reply.seed is None else params.seed,  # some engines can't repeat a sample
    )


def stops_of(params: SamplingParams, renderer: ChatRenderer) -> tuple[str | int, ...]:
    """The asked stops and the template's own end of a turn: a token where it is one, else its text."""
    said_by_tokens = {renderer.tokenizer.token_text(stop) for stop in renderer.stop_ids}
    text = (renderer.stop_text,) if renderer.stop_text and renderer.stop_text not in said_by_tokens else ()
    return tuple(dict.fromkeys((*params.stop, *renderer.stop_ids, *text)))
