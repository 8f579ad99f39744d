"""An actor's life: start, serve, fail, restart by policy, end. One task for all of it, made when first needed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tinker_actors.actors.actor import Actor
from tinker_actors.actors.call import ACTIVE, CHAIN, Call, Chain, current_call, present
from tinker_actors.actors.cell import Cell, forget_cancellation
from tinker_actors.actors.errors import ActorDiedError, ActorFailure, ActorStoppedError
from tinker_actors.actors.failures import settled
from tinker_actors.actors.mailbox import Interrupt, State
from tinker_actors.actors.restart import RestartHistory, Strategy
from tinker_actors.errors import ActorError

if TYPE_CHECKING:
    from tinker_actors.actors.host import Host

logger = logging.getLogger(__name__)

_NOTHING: Mapping[str, Any] = {}
_OWN_END = (ActorFailure, SystemExit)
"""Errors that end the actor in whose handler they are raised."""


class Lifecycle:
    """Starts, restarts and ends one cell.

    Attributes:
        has_children: its actor has spawned others.
        is_down: between two incarnations.
    """

    __slots__ = (
        "_args",
        "_ended",
        "_kwargs",
        "_start_call",
        "_started",
        "_stopping",
        "cell",
        "has_children",
        "history",
        "host",
        "incarnation",
        "is_down",
    )

    def __init__(
        self,
        host: Host,
        cell: Cell,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        history: RestartHistory,
        incarnation: int = 1,
    ) -> None:
        self.host = host
        self.cell = cell
        self.history = history
        self.incarnation = incarnation
        self.has_children = False
        self.is_down = False
        self._args = args
        self._kwargs = kwargs
        self._stopping = False
        self._start_call: Call | None = None
        self._started: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[None] | None = None
        cell.life = self

    async def start(self) -> None:
        """Construct the actor and run `on_start`; raises what they raise, and the cell has then ended.

        Raises:
            ActorDiedError: they raised `ActorFailure` or `SystemExit`, which would mean the caller's end if passed on.
        """
        cell = self.cell
        try:
            self._construct()
        except (Exception, SystemExit) as error:
            self._finish(error)
            if isinstance(error, _OWN_END):
                raise self._not_started(error) from error
            raise
        if cell.cls.on_start is Actor.on_start:
            cell.state = State.RUNNING
            if cell.queue:
                self.run()
            return
        self._started = self.host.loop.create_future()
        self._start_call = self._call("on_start", *present())
        self.run()
        try:
            await self._started
        except _OWN_END as error:
            raise self._not_started(error) from error
        except asyncio.CancelledError:
            cell.kill()
            if cell.task is not None and cell.state is State.STARTING:
                cell.task.cancel()
            raise

    def run(self) -> None:
        """Start the task that serves the cell."""
        if self.cell.task is None:
            context = self.cell.context = self.host.context.copy()
            self.cell.task = self.host.loop.create_task(self._live(), name=f"actor {self.cell.name}", context=context)
            self.cell.task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first step runs none of its code; the cell ends here then."""
        error = None if task.cancelled() else task.exception()
        if self.cell.state is not State.ENDED:
            self._finish(error)

    async def stop(self, *, drain: bool, timeout: float | None = None) -> None:
        """End the actor and wait until it has; after `timeout` seconds of draining, what is left is cancelled.

        An actor that stops itself, directly or through others that it waits for, ends after the present message.
        """
        cell = self.cell
        if cell.state is State.ENDED:
            return
        self._stopping = True
        call = current_call.get()
        if call is not None and any(actor == cell.id for actor, _ in call[CHAIN]):
            cell.request_exit()
            return
        was = cell.state
        if cell.task is None and cell.cls.on_stop is Actor.on_stop and not self.has_children:
            self._finish(None)
            return
        if self._ended is None:
            self._ended = self.host.loop.create_future()
        cell.state = State.DRAINING
        self.run()
        assert cell.task is not None
        if was in (State.RESTARTING, State.STARTING):
            cell.interrupt = Interrupt.KILL
            cell.task.cancel()
        elif drain and cell.cls.__actor_drains__:
            cell.wake()
        else:
            cell.kill()
        if timeout is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await asyncio.shield(self._ended)
            if not self._ended.done():
                self.abort()
        await asyncio.shield(self._ended)

    def fail_with_sibling(self, error: Exception) -> int:
        """Let the present incarnation fail, if there is one; returns its number, or its predecessor's."""
        if not self.is_down:
            self.cell.fail(error)
        return self.incarnation

    def abort(self) -> None:
        """Cancel whatever the actor still does, `on_stop` included."""
        self.cell.kill()
        if self.cell.task is not None and self.cell.state is not State.ENDED:
            self.cell.task.cancel()

    def discard(self, error: Exception) -> None:
        """End an actor that can't even be constructed."""
        self._finish(error)

    def _construct(self) -> None:
        cell = self.cell
        instance: Actor = cell.cls.__new__(cell.cls)
        instance.__actor_cell__ = cell
        cell.instance = instance
        # What the constructor begins is not part of the message that is being served here, if one is.
        token = None if current_call.get() is None else current_call.set(None)
        try:
            instance.__init__(*self._args, **self._kwargs)
        finally:
            if token is not None:
                current_call.reset(token)

    def _call(self, hook: str, outer: Chain = (), due: float | None = None, _trace: str | None = None) -> Call:
        """What a hook runs under: like a message, it must not wait for itself, nor for those that wait for it."""
        label = ((self.cell.id, f"{self.cell.name}.{hook}"),)
        return [outer + label, due, None, True]

    def _not_started(self, error: BaseException) -> ActorDiedError:
        return ActorDiedError(f"actor {self.cell.name} failed to start: {type(error).__name__}: {error}")

    async def _on_start(self) -> None:
        instance = self.cell.instance
        if instance is not None and self.cell.cls.on_start is not Actor.on_start:
            call, self._start_call = self._start_call or self._call("on_start"), None
            current_call.set(call)
            try:
                await instance.on_start()
            finally:
                call[ACTIVE] = False
                current_call.set(None)

    async def _live(self) -> None:
        cell = self.cell
        current_call.set(None)
        constructed = True
        while True:
            failure: BaseException | None = None
            began = False
            try:
                if not constructed:
                    self._construct()
                await self._on_start()
                began = True
                self._mark_started(constructed)
                failure = await cell.serve()
            except asyncio.CancelledError:
                forget_cancellation()
            except (Exception, SystemExit) as error:  # the boundary around constructors and on_start
                failure = error
            await self._close_incarnation(failure, began=began)
            delay = self._restart_delay(failure, first=not began and constructed)
            if delay is None:
                self._finish(failure)
                return
            self.is_down = True
            failed, failure = None if failure is None else f"{type(failure).__name__}: {failure}", None
            try:
                if failed is not None and self.history.policy.strategy is Strategy.ALL_FOR_ONE:
                    with contextlib.suppress(ActorError):  # the mesh is ending
                        await self.host.failed(cell, self.incarnation, failed)
                await asyncio.sleep(delay)
            except asyncio.CancelledError:
                forget_cancellation()
                self._finish(None)
                return
            self.is_down = False
            self.incarnation += 1
            constructed = False

    def _mark_started(self, first: bool) -> None:
        cell = self.cell
        if cell.state is not State.DRAINING:
            cell.state = State.RUNNING
        if self._started is not None and not self._started.done():
            self._started.set_result(None)
        if not first:
            self.host.restarted(cell, self.incarnation, cell.reason)
            cell.reason = None

    def _restart_delay(self, failure: BaseException | None, *, first: bool) -> float | None:
        """Seconds until the next incarnation starts, or None where there is none."""
        cell = self.cell
        if self._stopping or first:
            return None
        delay = self.history.next_delay(self.host.loop.time(), failed=failure is not None)
        if delay is not None:
            logger.warning("actor %s ended (%s), restarting in %.2f s", cell.name, repr(failure), delay)
            cell.state = State.RESTARTING
            cell.reason = None if failure is None else settled(failure)
            cell.failure = None
            cell.interrupt = None
            cell.instance = None
        return delay

    async def _close_incarnation(self, failure: BaseException | None, *, began: bool) -> None:
        """Cancel what still runs, call `on_stop`, end the children. User errors here are logged, not raised."""
        cell = self.cell
        current_call.set(None)
        if cell.interrupt is None and failure is not None:
            cell.interrupt = Interrupt.FAIL
            cell.failure = failure
        running = list(cell.concurrent.values())
        for task in running:
            task.cancel()
        try:
            if running:
                await asyncio.wait(running)
            if began and cell.instance is not None:
                current_call.set(self._call("on_stop"))
                await cell.instance.on_stop()
        except asyncio.CancelledError:
            forget_cancellation()
        except (Exception, SystemExit):  # the boundary around on_stop: the actor ends all the same
            logger.exception("on_stop of actor %s raised", cell.name)
        current_call.set(None)
        if self.has_children:
            try:
                await self.host.stop_children(cell.id)
            except asyncio.CancelledError:
                forget_cancellation()

    def _finish(self, failure: BaseException | None) -> None:
        cell = self.cell
        cell.state = State.ENDED
        cell.reason = None if failure is None else settled(failure)
        cell.instance = cell.failure = None
        # How its actors ended the node remembers for a while, not what they held.
        self._args, self._kwargs = (), _NOTHING
        cell.flush()
        if self._started is not None and not self._started.done():
            self._started.set_exception(failure or ActorStoppedError(f"actor {cell.name} was stopped while it started"))
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
        self.host.ended(cell, cell.reason)
