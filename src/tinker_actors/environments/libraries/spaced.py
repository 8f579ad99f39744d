"""What environments with gymnasium's spaces have in common: how a seat is shown things and how it is understood."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast, get_args

from gymnasium import Space

from tinker_actors.data import Message
from tinker_actors.environments.environment import Observation, Step
from tinker_actors.environments.libraries import spaces
from tinker_actors.environments.libraries.illegal import IllegalActionError, IllegalRule, Kind, Referee
from tinker_actors.environments.libraries.library import LibraryEnvironment
from tinker_actors.errors import ConfigError

Observe = Literal["observation", "render", "both"]


class SpacedEnvironment(LibraryEnvironment):
    """Wraps an environment whose observations and actions belong to gymnasium's spaces.

    Override `describe` and `choose` for texts of your own.

    Args:
        observe: What seats see: the `observation` as text or picture, what `render` gives (a text or a picture, as
            the library's `render_mode` says), or `both`.
        actions: Names of the actions of a discrete space, in order.
        instructions: Text before a seat's first observation; `{seat}` in it stands for the seat.
        illegal: What becomes of an action that can't be taken, as `IllegalRule` says: `retry`, `penalty`, `forfeit`.
        penalty: As `IllegalRule` says.
        retries: As `IllegalRule` says.
        options: As `LibraryEnvironment` takes them.
    """

    def __init__(
        self,
        *,
        observe: Observe = "observation",
        actions: Sequence[str] = (),
        instructions: str = "",
        illegal: Kind = "retry",
        penalty: float = 1.0,
        retries: int = 2,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if observe not in get_args(Observe):
            raise ConfigError(f"option 'observe' is {observe!r}; one of {', '.join(get_args(Observe))} is needed")
        self._observe = observe
        self._actions = tuple(actions)
        self._instructions = instructions
        self._rule = IllegalRule(kind=illegal, penalty=penalty, retries=retries)
        self._begin()

    @abstractmethod
    def observation_space(self, seat: str) -> Space[Any]:
        """Of a seat's observations."""

    @abstractmethod
    def action_space(self, seat: str) -> Space[Any]:
        """Of a seat's actions."""

    @abstractmethod
    def rendered(self) -> Any:
        """What the library renders."""

    def describe(self, seat: str, observation: Any, info: Mapping[str, Any]) -> Observation:
        """What a seat sees of an observation; may be overridden.

        Args:
            seat: Who sees it.
            observation: A value of its observation space, without the action mask.
            info: What the library tells besides.
        """
        parts: list[Any] = []
        if self._observe != "observation":
            shown = self.rendered()
            if shown is None:
                raise ConfigError(
                    f"option 'observe' is {self._observe!r}, but {type(self).__name__} renders nothing; the library's "
                    "option 'render_mode' is needed, such as 'ansi' or 'rgb_array'"
                )
            parts.append(shown if spaces.is_picture(shown) else spaces.plain(str(shown)))
        if self._observe != "render":
            told = spaces.told(_unmasked(self.observation_space(seat)), observation)
            parts += [told] if isinstance(told, str) else told.parts
        return _message(parts)

    def choose(self, seat: str, text: str) -> Any:
        """The library's action that a seat's text names; may be overridden.

        Raises:
            IllegalActionError: It names none that can be taken; the seat is told why.
        """
        return spaces.chosen(self.action_space(seat), text, self._actions, self._masks.get(seat))

    def hint(self, seat: str) -> str:
        """What a seat may answer: shown with its first observation and, where that changes, with all; may be
        overridden, "" for nothing.
        """
        return spaces.hint(self.action_space(seat), self._actions, self._masks.get(seat))

    def _begin(self) -> None:
        """A new episode."""
        self._referee = Referee(self._rule)
        self._masks: dict[str, Any] = {}
        self._greeted: set[str] = set()

    def _shown(self, seat: str, observation: Any, info: Mapping[str, Any]) -> Observation:
        """What a seat is shown in its turn."""
        mask = info.get("action_mask")
        if isinstance(observation, Mapping) and "action_mask" in observation:
            table = cast("Mapping[str, Any]", observation)
            mask = table["action_mask"]
            observation = {name: value for name, value in table.items() if name != "action_mask"}
            if observation.keys() == {"observation"}:
                observation = observation["observation"]
        self._masks[seat] = mask
        first = seat not in self._greeted
        self._greeted.add(seat)
        before = self._instructions.replace("{seat}", seat) if first else ""
        after = self.hint(seat) if first or mask is not None else ""
        return _around(before, self.describe(seat, observation, info), after)

    def _understood(self, actions: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
        """The actions that can be taken, by seat, and why the others can't."""
        taken: dict[str, Any] = {}
        refused: dict[str, str] = {}
        for seat, text in actions.items():
            try:
                taken[seat] = self.choose(seat, text)
            except IllegalActionError as error:
                refused[seat] = str(error)
            else:
                self._referee.allow(seat)
        return taken, refused

    def _refusal(self, refused: Mapping[str, str]) -> Step:
        """What follows from actions that can't be taken, by seat."""
        lost = self._referee.refuse(refused)
        told = {seat: f"That can't be done: {why}. {self.hint(seat)}".rstrip() for seat, why in refused.items()}
        rewards = self._referee.rewards(refused, lost, self.seats)
        alone = self.seats[0] if len(self.seats) == 1 else None
        return Step(
            observation=None if lost else told if alone is None else told[alone],
            reward=rewards if alone is None else rewards[alone],
            terminated=bool(lost),
            metrics=self._metrics,
        )

    @property
    def _metrics(self) -> dict[str, float]:
        return {"illegal_actions": float(self._referee.refused)}


def _unmasked(space: Space[Any]) -> Space[Any]:
    """The space of what is left of observations once their action mask is taken out."""
    from gymnasium.spaces import Dict

    if not isinstance(space, Dict) or "action_mask" not in space.spaces:
        return space
    rest = {name: inner for name, inner in space.spaces.items() if name != "action_mask"}
    return rest["observation"] if rest.keys() == {"observation"} else Dict(rest)


def _message(parts: Sequence[Any]) -> str | Message:
    """Text, or text and pictures, with a line between parts that are text."""
    found: list[Any] = []
    for part in parts:
        if found and isinstance(part, str) and isinstance(found[-1], str):
            found[-1] += "\n" + part
        else:
            found.append(part)
    return found[0] if len(found) == 1 and isinstance(found[0], str) else Message.of(*found)


def _around(before: str, observation: Observation, after: str) -> Observation:
    """An observation with text before and after it."""
    if isinstance(observation, str):
        return "\n".join(part for part in (before, observation, after) if part)
    messages = [observation] if isinstance(observation, Message) else list(observation)
    first = [Message(role="user", content=before)] if before else []
    last = [Message(role="user", content=after)] if after else []
    if len(messages) == 1 and messages[0].role == "user":
        return _message([part for part in (before, *(messages[0].parts or (messages[0].content,)), after) if part])
    return [*first, *messages, *last]
