"""The internal barrier: the seats that are to act do so together, and nothing goes on until all have."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from tinker_actors.actors.cancelled import is_cancelled
from tinker_actors.coordinator.clock import EpisodeClock, SeatLateError
from tinker_actors.data import Message, Turn, TurnEnd
from tinker_actors.environments import Action, Agent
from tinker_actors.environments.agents import written_turn
from tinker_actors.errors import EpisodeError

Answer = tuple[str, tuple[Turn, ...]]
"""What the environment receives from a seat, and the turns that led to it."""


class SeatFailedError(EpisodeError):
    """An agent didn't answer; the cause is chained.

    Attributes:
        seat: Whose agent it was.
        cause: What it raised.
    """

    def __init__(self, seat: str, cause: BaseException) -> None:
        super().__init__(f"seat {seat!r}: {type(cause).__name__}: {cause}")
        self.seat = seat
        self.cause = cause

    @property
    def end(self) -> TurnEnd:
        """How the seat's turn ended by it."""
        if isinstance(self.cause, SeatLateError):
            return TurnEnd.TIMEOUT
        return TurnEnd.CANCELLED if isinstance(self.cause, asyncio.CancelledError) else TurnEnd.AGENT_ERROR


class Barrier:
    """Opened for the seats of one turn after another.

    Args:
        agents: Who acts, by seat.
        clock: The episode's.
        seconds: For one answer, of the seats that have such a limit.

    Attributes:
        waiting_for: While seats act, those that have not answered yet, with what they were shown.
    """

    def __init__(self, agents: Mapping[str, Agent], clock: EpisodeClock, seconds: Mapping[str, float]) -> None:
        self._agents = agents
        self._clock = clock
        self._seconds = seconds
        self.waiting_for: Mapping[str, tuple[Message, ...]] = {}

    async def act(self, observations: Mapping[str, tuple[Message, ...]]) -> dict[str, Answer]:
        """Let each seat answer its observation, all at the same time; return once all have.

        Raises:
            SeatFailedError: One failed. The others have been cancelled and have ended by then.
            TimeoutError: A limit was passed.
        """
        waiting_for = self.waiting_for = dict(observations)

        async def answer(seat: str, messages: tuple[Message, ...]) -> Answer:
            given = await self._answer(seat, messages)
            self._clock.check()
            del waiting_for[seat]
            return given

        # Not a TaskGroup: in Python 3.11 one whose task failed leaves its own task marked as cancelled for good, and
        # what user code raises later would pass for a cancellation of the episode.
        tasks = {seat: asyncio.create_task(answer(seat, messages)) for seat, messages in observations.items()}
        try:
            done, _ = await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_EXCEPTION)
        finally:
            await _end(tasks.values())
        for task in tasks.values():
            if task in done and (error := task.exception()) is not None:
                raise error from error.__cause__
        return {seat: task.result() for seat, task in tasks.items()}

    async def _answer(self, seat: str, messages: tuple[Message, ...]) -> Answer:
        # The boundary to the agents: whatever one raises is that seat's failure.
        try:
            call = self._agents[seat].act(messages)
            given = await (self._clock.within(self._seconds[seat], call) if seat in self._seconds else call)
            return as_answer(messages, given)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            raise SeatFailedError(seat, error) from error


async def _end(tasks: Collection[asyncio.Task[Answer]]) -> None:
    """Cancel those that go on, and wait until they have ended."""
    going = [task for task in tasks if not task.done()]
    for task in going:
        task.cancel()
    if going:
        await asyncio.wait(going)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # looked at, so that it isn't reported as forgotten


def as_answer(messages: Sequence[Message], given: object) -> Answer:
    """What an agent returned, as text and turns.

    Raises:
        EpisodeError: It is neither an action nor text.
    """
    if isinstance(given, str):
        return given, (written_turn(messages, given),)
    if isinstance(given, Action):
        return given.text, given.turns
    raise EpisodeError(f"act returned {given!r} ({type(given).__name__}); an Action or its text is needed")
