"""Asks that come at the same time are answered together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from tinker_actors.errors import EpisodeError

A = TypeVar("A")
R = TypeVar("R")


class Gathering(Generic[A, R]):
    """Gathers what is asked in one turn of the event loop, or within `window` seconds of the first ask.

    An ask that is cancelled leaves the others as they are; once all that were gathered are, the answering is too.

    Args:
        together: Answers several asks: one result each, in their order.
        window: Seconds.
    """

    def __init__(self, together: Callable[[Sequence[A]], Awaitable[Sequence[R]]], *, window: float = 0.0) -> None:
        self._together = together
        self._window = window
        self._asked: list[tuple[A, asyncio.Future[R]]] = []
        self._answering: set[asyncio.Task[None]] = set()

    async def ask(self, item: A) -> R:
        """The answer to one ask.

        Raises:
            Exception: What answering the whole gathering raised.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._asked.append((item, future))
        if len(self._asked) == 1:
            if self._window:
                loop.call_later(self._window, self._begin)
            else:
                loop.call_soon(self._begin)
        return await future

    def _begin(self) -> None:
        asked, self._asked = self._asked, []
        asked = [(item, future) for item, future in asked if not future.done()]
        if not asked:
            return
        task = asyncio.get_running_loop().create_task(self._answer(asked))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

        def gone(_: asyncio.Future[R]) -> None:
            if all(future.cancelled() for _, future in asked):
                task.cancel()

        for _, future in asked:
            future.add_done_callback(gone)

    async def _answer(self, asked: Sequence[tuple[A, asyncio.Future[R]]]) -> None:
        # The boundary to those that ask: whatever is raised is theirs.
        try:
            answers = await self._together([item for item, _ in asked])
            if len(answers) != len(asked):
                raise EpisodeError(
                    f"{len(asked)} were asked together, and {len(answers)} answers came; one each is needed"
                )
        except (Exception, SystemExit) as error:
            known = error if isinstance(error, Exception) else EpisodeError(f"{type(error).__name__}: {error}")
            for _, future in asked:
                if not future.done():
                    future.set_exception(known)
            return
        for (_, future), answer in zip(asked, answers, strict=True):
            if not future.done():
                future.set_result(answer)
