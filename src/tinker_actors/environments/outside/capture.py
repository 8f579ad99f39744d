"""What a harness asked of its model in one episode, in the tokens in which it was sampled.

A harness sends whole conversations. Each is matched with those that were answered before: one that goes on from an
answer is appended to its tokens, which are never encoded again; any other begins anew. So the calls form a tree.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from tinker_actors.actors.cancelled import is_cancelled
from tinker_actors.data import Message, ModelInput, ToolList, Turn, TurnEnd, derive_seed
from tinker_actors.environments.openai.asked import Answered, Asked, Begun, Tell
from tinker_actors.environments.openai.errors import ApiError, sampling_errors
from tinker_actors.environments.openai.messages import gone_on
from tinker_actors.environments.openai.speech import Telling, choices_of, sampled
from tinker_actors.environments.openai.tools import CallReader, tools_of
from tinker_actors.environments.outside.binding import Difference, bound
from tinker_actors.environments.outside.tree import Call, chains, extends, survivors
from tinker_actors.environments.policy_agent import record_of, stops_of
from tinker_actors.environments.policy_seat import PolicySeat
from tinker_actors.environments.tools.formats import ToolFormat
from tinker_actors.errors import ModelError
from tinker_actors.models.rendering import ChatRenderer
from tinker_actors.sampling.requests import SamplingParams, SamplingReply, SamplingRequest


@dataclass(slots=True, kw_only=True)
class Counts:
    """What became of a harness's calls.

    Attributes:
        calls: Answered.
        superseded: Answered, and asked again with the same messages; what was sampled first is dropped.
        cancelled: Given up by the harness before the answer was there.
        restarts: Beginnings of a datum after the first: conversations that don't go on from the one before.
    """

    calls: int = 0
    superseded: int = 0
    cancelled: int = 0
    restarts: int = 0


class Capture:
    """Answers the calls of one seat's harness in one episode, and makes turns of them.

    Args:
        spec: The policy, whose id is the model's name, and how it is sampled. The `max_tokens` of `params` is the most
            that a call may ask for, its `stop` is added to each call's.
        renderer: Turns messages into tokens.
        seed: The episode's; each call's derives from it, from `seat`, from the prompt, and from how often that prompt
            was asked for before.
        seat: Which seat this is.
        format: How the model writes the calls of tools.
        difference: As `Difference` says.
        max_calls: The most calls in one turn of the environment.

    Attributes:
        spec: As given.
        seat: As given.
        counts: What became of the calls so far.
    """

    def __init__(
        self,
        spec: PolicySeat,
        renderer: ChatRenderer,
        *,
        seed: int,
        seat: str,
        format: ToolFormat,
        difference: Difference = "refuse",
        max_calls: int = 256,
    ) -> None:
        self.spec, self.seat = spec, seat
        self._renderer = renderer
        self._params = replace(spec.params, stop=stops_of(spec.params, renderer))
        self._seed = seed
        self._format = format
        self._difference: Difference = difference
        self._max_calls = max_calls
        self._calls: list[Call] = []
        self._last: Call | None = None  # the one that the trajectory ends with
        self._asked: dict[str, int] = {}
        self._shown: dict[str, ChatRenderer] = {}
        self._tasks: set[asyncio.Task[SamplingReply]] = set()
        self._begun = -1  # how many calls had been answered when the present turn began; -1 between turns
        self._asking = 0
        self._overflow: str | None = None
        self.counts = Counts()

    @property
    def model(self) -> str:
        """The policy's id."""
        return self.spec.policy

    @property
    def overflow(self) -> str | None:
        """Why the last call of the turn found no room in the context, if that is how it ended."""
        return self._overflow

    def begin(self) -> None:
        """A turn of the environment begins: calls are answered from now on, as part of what the caller is doing."""
        self._begun, self._asking, self._overflow = len(self._calls), 0, None
        self._context = contextvars.copy_context()

    def end(self) -> None:
        """It is over: calls under way are cancelled, and later ones refused."""
        self._ended, self._begun = self._begun, -1
        for task in self._tasks:
            task.cancel()

    def turns(self, messages: Sequence[Message], text: str) -> tuple[Turn, ...]:
        """What was sampled in the turn that ended, every token once; what the harness answered with comes last.

        Args:
            messages: What the seat was shown.
            text: What it answered.
        """
        fresh = self._calls[self._ended :]
        kept = survivors(fresh, text)
        self.counts.superseded += len(fresh) - len(kept)
        found: list[Turn] = []
        for chain in chains(kept):
            for call in chain:
                found.append(self._turn(call, () if found else tuple(messages)))
                self._last = call
        if self._overflow is not None:
            shown = () if found else tuple(messages)
            end = TurnEnd.CONTEXT_OVERFLOW
            found.append(Turn(observation=ModelInput(), action=(), logprobs=(), end=end, messages=shown))
        elif found:
            found[-1] = replace(found[-1], text=text)
        return tuple(found)

    async def answer(self, asked: Asked, tell: Tell | None = None) -> Answered:
        """Sample an answer.

        Raises:
            ApiError: The request can't be served: says why, and whose fault it is.
        """
        if self._begun < 0:
            raise ApiError(
                "the harness has answered, and its seat is not to act now", status=410, code="turn_ended", param=None
            )
        if self._asking >= self._max_calls:
            raise ApiError(
                f"the harness has made {self._max_calls} calls in this turn, the most", code="too_many_calls"
            )
        self._asking += 1
        turn, reader = self._begun, CallReader(self._format, asked)
        wanted = bound(self._params, asked, self._difference)
        messages = self._whole(asked)
        tools = json.dumps(asked.tools)
        parent = self._parent(messages, tools)
        # a template may refuse messages in any order that it doesn't know
        try:
            prompt, restarts = self._prompt(messages, parent, self._renderer_for(asked, tools))
        except ModelError as error:
            raise ApiError(str(error), param="messages") from None
        room = wanted.max_tokens
        if self.spec.context_length is not None:
            room = min(room, self.spec.context_length - len(prompt))
        if room < 1:
            raise self._no_room(f"the prompt has {len(prompt)} tokens and the context {self.spec.context_length}")
        id, seed = self._named(prompt, asked)
        params = replace(wanted, max_tokens=room, seed=seed, stop=(*wanted.stop, *reader.stops), grammar=reader.grammar)
        begun = Begun(id=id, model=self.spec.policy, prompt=prompt.tokens)
        telling = tell and Telling(
            begun, tell, tokenizer=self._renderer.tokenizer, params=params, reader=reader, wanted=asked
        )
        reply = await self._sample(prompt, params, turn, asked, telling)
        cut = room < wanted.max_tokens
        answered = self._answered(begun, asked, reader, reply, cut=cut)
        self._keep(answered, messages, tools, None if restarts else parent, prompt, params, reply)
        if telling:
            telling.ended(answered)
        return answered

    async def _sample(
        self, prompt: ModelInput, params: SamplingParams, turn: int, asked: Asked, telling: Telling | None
    ) -> SamplingReply:
        request = SamplingRequest(
            prompt=prompt.tokens, images=prompt.images, snapshot=self.spec.snapshot, params=params
        )
        # in the context of the seat that acts: what the HTTP server was doing is no reason to bound it in time
        task = asyncio.get_running_loop().create_task(
            sampled(self.spec.sampler, request, telling and telling.drawn), context=self._context
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            with sampling_errors(prompt="messages", grammar=asked.constrained_by):
                reply = await task
        except ApiError as error:
            raise self._no_room(str(error)) if error.code == "context_length_exceeded" else error from None
        except asyncio.CancelledError:
            task.cancel()
            if self._begun != turn and not is_cancelled():
                raise ApiError("the harness's turn is over", status=410, code="turn_ended") from None
            self.counts.cancelled += 1
            raise
        if self._begun != turn:
            raise ApiError("the harness's turn is over", status=410, code="turn_ended")
        self._overflow = None
        return reply

    def _answered(self, begun: Begun, asked: Asked, reader: CallReader, reply: SamplingReply, *, cut: bool) -> Answered:
        """What the harness is answered; `cut` is whether the context left less room than was asked for."""
        tokenizer = self._renderer.tokenizer
        (choice,) = choices_of(reply.samples, id=begun.id, reader=reader, wanted=asked, tokenizer=tokenizer)
        if cut and choice.end is TurnEnd.LENGTH:
            choice = replace(choice, end=TurnEnd.CONTEXT_OVERFLOW)
        return Answered(
            id=begun.id,
            model=begun.model,
            prompt=begun.prompt,
            choices=(choice,),
            cached_tokens=reply.cached_tokens,
        )

    def _keep(
        self,
        answered: Answered,
        messages: tuple[Message, ...],
        tools: str,
        parent: Call | None,
        prompt: ModelInput,
        params: SamplingParams,
        reply: SamplingReply,
    ) -> None:
        (choice,), (sample,) = answered.choices, reply.samples
        call = Call(
            id=answered.id,
            parent=parent,
            asked=messages,
            said=choice.message,
            tools=tools,
            prompt=prompt,
            sample=sample,
            end=choice.end,
            record=record_of(reply, params),
        )
        self._calls.append(call)
        self.counts.calls += 1

    def _whole(self, asked: Asked) -> tuple[Message, ...]:
        """The whole conversation."""
        if asked.previous is None:
            return asked.messages
        before = next((call for call in self._calls if call.id == asked.previous), None)
        if before is None:
            raise ApiError(
                f"previous_response_id is {asked.previous!r}, which this endpoint hasn't given in this episode",
                param="previous_response_id",
                status=404,
                code="not_found",
            )
        return gone_on(before.asked, before.said, asked.messages)

    def _parent(self, messages: tuple[Message, ...], tools: str) -> Call | None:
        """The answer that a conversation goes on from, the longest and the newest; None if it begins anew."""
        best: Call | None = None
        for call in reversed(self._calls):
            longer = best is None or len(call.asked) > len(best.asked)
            if longer and call.tools == tools and extends(call, messages):
                best = call
        return best

    def _prompt(
        self, messages: tuple[Message, ...], parent: Call | None, renderer: ChatRenderer
    ) -> tuple[ModelInput, bool]:
        """The whole prompt, and whether it doesn't continue the parent's tokens."""
        if parent is None:
            return renderer.start(messages).input, True
        new = messages[len(parent.asked) + 1 :]
        before = [*messages[: len(parent.asked)], Message(role="assistant", content=parent.sample.text)]
        rendered = renderer.extend(parent.held.tokens, before, new, parent.sample.tokens)
        return (rendered.input, True) if rendered.restarts else (parent.held + rendered.input, False)

    def _renderer_for(self, asked: Asked, tools: str) -> ChatRenderer:
        if not asked.tools:
            return self._renderer
        if tools not in self._shown:
            listed = ToolList(schemas=asked.tools, described=self._format.describe(tools_of(asked.tools)) or "")
            self._shown[tools] = self._renderer.with_tools(listed)
        return self._shown[tools]

    def _named(self, prompt: ModelInput, asked: Asked) -> tuple[str, int]:
        """The answer's id and its seed: of the prompt and how often it was asked for, not of when."""
        digest = blake2b(" ".join(map(str, prompt.tokens)).encode(), digest_size=12)
        for image in prompt.images:
            digest.update(image.data)
        name = digest.hexdigest()
        times = self._asked[name] = self._asked.get(name, 0) + 1
        id = blake2b(f"{self._seed} {self.seat} {name} {times}".encode(), digest_size=12).hexdigest()
        if asked.seed is not None:
            return id, derive_seed(self._seed, "asked", self.seat, name, asked.seed)
        return id, derive_seed(self._seed, "sample", self.seat, name, times)

    def _no_room(self, why: str) -> ApiError:
        self._overflow = why
        return ApiError(why, param="messages", code="context_length_exceeded")

    def _turn(self, call: Call, messages: tuple[Message, ...]) -> Turn:
        """A call as a turn of the trajectory, which goes on from the last one where it can."""
        restarts = self._last is not None and call.parent is not self._last
        continues = self._last is not None and not restarts
        self.counts.restarts += restarts
        return Turn(
            observation=call.appended if continues else call.prompt,
            action=call.sample.tokens,
            logprobs=call.sample.logprobs,
            end=call.end,
            restarts=restarts,
            messages=messages or call.new_messages,
            text=call.sample.text,
            sampling=call.record,
        )
