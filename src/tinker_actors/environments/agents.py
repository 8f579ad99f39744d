"""Agents: what fills a seat. An instance plays one seat of one episode and holds its own conversation."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from tinker_actors.data import Message, ModelInput, ToolList, Trajectory, Turn, TurnEnd
from tinker_actors.environments.conversation import Conversation
from tinker_actors.errors import EpisodeError
from tinker_actors.models.rendering import ChatRenderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """An agent's answer to one observation.

    Attributes:
        text: What the environment receives.
        turns: What led to it, in order; the last one earns the reward. Usually one turn; a harness that calls its
            model several times before it answers has as many.
    """

    text: str
    turns: tuple[Turn, ...]

    def __post_init__(self) -> None:
        if not self.turns:
            raise EpisodeError("an action has no turn; at least the one that gave its text is needed")

    @classmethod
    def written(cls, messages: Sequence[Message], text: str) -> Action:
        """The action of a seat that no model of ours plays: text without tokens."""
        return cls(text=text, turns=(written_turn(messages, text),))

    @property
    def end(self) -> TurnEnd:
        """How its last turn ended."""
        return self.turns[-1].end


_NO_INPUT, _STOP = ModelInput(), TurnEnd.STOP
_NO_NUMBERS: Mapping[str, float] = {}


def written_turn(messages: Sequence[Message], text: str) -> Turn:
    """The turn of a seat that no model of ours plays: text without tokens."""
    return Turn(observation=_NO_INPUT, action=(), logprobs=None, end=TurnEnd.STOP, messages=tuple(messages), text=text)


class Agent(ABC):
    """Fills a seat: turns observations into actions.

    >>> class Echo(Agent):
    ...     async def act(self, messages):
    ...         return messages[-1].content

    Attributes:
        policy: Id of the policy that plays; None for scripts and people.
        trainable: Whether the turns may enter datums and statistics.
    """

    policy: str | None = None
    trainable: bool = False

    @property
    def metrics(self) -> Mapping[str, float]:
        """Named numbers of its own about the episode, which stand beside the environment's."""
        return _NO_NUMBERS

    async def equip(self, tools: ToolList) -> None:
        """Hear of the tools that the seat may call, if there are any. Called once, before the first `act`."""
        return

    @abstractmethod
    async def act(self, messages: Sequence[Message]) -> Action | str:
        """Answer an observation; text alone stands for an action without tokens.

        Args:
            messages: What this seat has been shown since it last acted. What came before, and its own answers, an
                agent remembers itself.
        """

    async def finish(self, trajectory: Trajectory, error: str | None) -> None:
        """Hear how the episode ended for this seat, with its rewards. Called once, after the last `act`.

        Args:
            trajectory: All turns of the seat.
            error: What failed, if the episode failed: this seat or another one, or the environment.
        """
        return


class ScriptedAgent(Agent):
    """Plays by a function from the observation's messages to the action's text; plain or async."""

    def __init__(self, function: Callable[[Sequence[Message]], str | Awaitable[str]]) -> None:
        self._function = function

    async def act(self, messages: Sequence[Message]) -> Action:
        """Call the function.

        Raises:
            EpisodeError: It returned something else than text.
        """
        answer = self._function(messages)
        text = await answer if inspect.isawaitable(answer) else answer
        if not isinstance(text, str):
            raise EpisodeError(f"a scripted agent returned {text!r} ({type(text).__name__}); text is needed")
        return Action.written(messages, text)


class DemonstrationAgent(Agent):
    """Plays the environment's own demonstrations, in the very tokens in which a policy would say them.

    Args:
        demonstrate: Gives the action's text for the present state.
        renderer: Of the policy that is to learn from it.
        trainable: Whether supervised datums may be made of it.
    """

    def __init__(
        self, demonstrate: Callable[[], Awaitable[str]], renderer: ChatRenderer, *, trainable: bool = True
    ) -> None:
        self.trainable = trainable
        self._demonstrate = demonstrate
        self._renderer = renderer
        self._conversation = Conversation(renderer)

    async def equip(self, tools: ToolList) -> None:
        """Show the tools in the prompt."""
        self._conversation = Conversation(self._renderer.with_tools(tools))

    async def act(self, messages: Sequence[Message]) -> Action:
        """Ask for a demonstration and write it down as a policy's action, its stop token included."""
        prompt = self._conversation.observe(messages)
        text = await self._demonstrate()
        tokens = self._renderer.encode_action(text)
        self._conversation.act(tokens, text)
        turn = Turn(
            observation=prompt.appended,
            action=tokens,
            logprobs=None,
            end=TurnEnd.STOP,
            restarts=prompt.restarts,
            messages=tuple(messages),
            text=text,
        )
        return Action(text=text, turns=(turn,))
