"""The tree of a harness's calls: which goes on from which, which counts, and in what order they are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinker_actors.data import Message, ModelInput, SamplingRecord, ToolCall, TurnEnd, read_sampled_json
from tinker_actors.sampling.requests import Sample


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """An answered call.

    Attributes:
        id: The answer's.
        parent: The answer whose tokens its prompt goes on from; None where it begins anew.
        asked: The whole conversation, as the harness sent it.
        said: The assistant's message, as the harness got it.
        tools: What the model was shown of tools; another list is another prompt.
        prompt: The whole prompt; begins with the parent's tokens.
        sample: What was sampled.
        end: How it ended.
        record: How it was sampled.
    """

    id: str
    parent: Call | None
    asked: tuple[Message, ...]
    said: Message
    tools: str
    prompt: ModelInput
    sample: Sample
    end: TurnEnd
    record: SamplingRecord

    @property
    def held(self) -> ModelInput:
        """The prompt and the answer."""
        return self.prompt + ModelInput.of(self.sample.tokens)

    @property
    def appended(self) -> ModelInput:
        """What the prompt adds to the parent's tokens; the whole prompt where there is none."""
        return self.prompt if self.parent is None else self.prompt.last(len(self.prompt) - len(self.parent.held))

    @property
    def new_messages(self) -> tuple[Message, ...]:
        """What the conversation adds to the parent's."""
        return self.asked if self.parent is None else self.asked[len(self.parent.asked) + 1 :]


def extends(call: Call, messages: Sequence[Message]) -> bool:
    """Whether a conversation goes on from an answer: it begins with what was asked then and what was said to it."""
    length = len(call.asked)
    return (
        len(messages) > length and same_answer(call.said, messages[length]) and call.asked == tuple(messages[:length])
    )


def same_answer(said: Message, sent: Message) -> bool:
    """Whether a message that a harness sends back is the answer that it got.

    White space around the text, and how the arguments' JSON is laid out, don't matter; nor does the text where calls
    stand beside it and the harness left it out.
    """
    if sent.role != "assistant" or len(said.tool_calls) != len(sent.tool_calls):
        return False
    if any(not _same_call(one, other) for one, other in zip(said.tool_calls, sent.tool_calls, strict=True)):
        return False
    text = sent.content.strip()
    return text == said.content.strip() or (bool(said.tool_calls) and not text)


def _same_call(one: ToolCall, other: ToolCall) -> bool:
    if (one.id, one.name) != (other.id, other.name):
        return False
    if one.arguments == other.arguments:
        return True
    try:
        return read_sampled_json(one.arguments) == read_sampled_json(other.arguments)
    except ValueError:
        return False


def survivors(calls: Sequence[Call], answer: str) -> list[Call]:
    """The calls of a turn that count.

    Of those with the same messages, asked one after the other or at the same time, the ones that the harness went on
    from; if from none, the last one that says what the harness answered; else the last one.

    Args:
        calls: In the order in which they were answered.
        answer: What the harness answered in the end.
    """
    kept: set[Call] = set()
    asked: dict[tuple[int, str, tuple[Message, ...]], list[Call]] = {}
    for call in calls:
        asked.setdefault((len(call.asked), call.tools, call.asked), []).append(call)
    # the longest conversations first: whether one was gone on from depends on those that count after it
    for _, same in sorted(asked.items(), key=lambda entry: -entry[0][0]):
        gone_on = [call for call in same if any(after.parent is call for after in kept)]
        said = [call for call in same if call.said.content.strip() == answer.strip()]
        kept.update(gone_on or said[-1:] or same[-1:])
    return [call for call in calls if call in kept]


def chains(calls: Sequence[Call]) -> list[list[Call]]:
    """The calls as conversations that each grow at their end, the one that was answered last at the end of all.

    Where one branches, the branch that comes last has the calls before it; a call is in one of them only.
    """
    left = dict.fromkeys(calls)
    parents = {call.parent for call in calls}
    found: list[list[Call]] = []
    for leaf in reversed([call for call in calls if call not in parents]):
        chain: list[Call] = []
        call: Call | None = leaf
        while call is not None and call in left:
            del left[call]
            chain.append(call)
            call = call.parent
        found.append(chain[::-1])
    return found[::-1]
