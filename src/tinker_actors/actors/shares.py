"""The members of a group that are in one process: each gets its share of the ask, one after another in one turn.

What costs something once an ask (leaving the sender's task, a message, a future) is done once for all idle members
here: they take the same message one after another, for as long as each handler ends without waiting. One whose handler
waits keeps the message, and the next member gets a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tinker_actors.actors.inline import (
    BUDGET,
    DEPTH,
    IDLE,
    break_off,
    current_task,
    enter_task,
    hand_over,
    leave_task,
    tasks,
)
from tinker_actors.actors.mailbox import Mailbox
from tinker_actors.actors.message import Message

if TYPE_CHECKING:
    from tinker_actors.actors.host import Host

Member = tuple[int, Mailbox]
"""A member's position with the sink, and its mailbox."""


class Missing:
    """Stands for an answer that has not come."""


MISSING = Missing()


class Sink(Protocol):
    """Who takes the members' outcomes, by their positions.

    Attributes:
        is_open: outcomes still count.
        takes_some: each outcome may be the last that is wanted.
        outcomes: where the results go.
        left: outcomes that have not come.
    """

    is_open: bool
    takes_some: bool
    outcomes: list[Any]
    left: int

    def answer(self, index: int, value: Any) -> None:
        """A member's result."""
        ...

    def fail(self, index: int, error: BaseException) -> None:
        """A member's error."""
        ...

    def look(self) -> None:
        """All outcomes may have come."""
        ...


class Share(Message):
    """One member's share of a group's ask.

    Attributes:
        index: the member's position with the sink.
    """

    __slots__ = ("in_hand", "index", "sink", "value")

    at_once = True

    def __init__(self, sink: Sink, index: int, of: Message) -> None:
        self.method = of.method
        self.args = of.args
        self.kwargs = of.kwargs
        self.chain = of.chain
        self.deadline = of.deadline
        self.trace = of.trace
        self.done = False
        self.cancelled = False
        self.sink = sink
        self.index = index
        self.in_hand = False
        self.value: Any = None

    def succeed(self, value: Any) -> None:
        self.done = True
        self.sink.answer(self.index, value)

    def fail(self, error: BaseException) -> None:
        self.done = True
        self.in_hand = False
        self.sink.fail(self.index, error)


def deal(sink: Sink, members: Sequence[Member], of: Message, *, wait: bool) -> list[tuple[Mailbox, Share]]:
    """Give each of `members` its share of the ask `of`; returns the shares that have no outcome yet.

    Ends early where the sink is closed before all were asked.
    """
    begun: list[tuple[Mailbox, Share]] = []
    if not members:
        return begun
    host = members[0][1].host
    turn, loop = host.turn, host.loop
    # A trace context is entered and left in the actor's own task.
    at_once = wait and of.trace is None and turn.depth < DEPTH
    sender = current_task(loop)
    if sender is not turn.owner and not turn.depth:
        turn.owner = sender
        turn.left = BUDGET
    turn.depth += 1
    if sender is not None:
        leave_task(loop, sender)
    try:
        served = _begin_each(sink, members, of, begun, host if at_once else None, wait)
    finally:
        if sender is not None:
            enter_task(loop, sender)
        turn.depth -= 1
    if served:
        sink.left -= served
        if not sink.left:
            sink.look()
    return begun


def _begin_each(
    sink: Sink,
    members: Sequence[Member],
    of: Message,
    begun: list[tuple[Mailbox, Share]],
    at_once: Host | None,
    wait: bool,
) -> int:
    """`deal` outside of any task: idle actors of the host `at_once` are served; how many results went to the sink."""
    loop = members[0][1].host.loop
    time, due, outcomes, takes_some = loop.time, of.deadline, sink.outcomes, sink.takes_some
    above = {actor for actor, _ in of.chain}
    cls = fits = None
    served = 0
    share = Share(sink, 0, of)
    for index, mailbox in members:
        if not sink.is_open:
            break
        if mailbox.cls is not cls:
            cls = mailbox.cls
            fits = of.method in mailbox.plain
        share.index = index
        if not (
            fits
            and mailbox.waiter is not None
            and mailbox.running is None
            and not mailbox.queue
            and mailbox.host is at_once
            and (due is None or due > time())
            and (not above or mailbox.id not in above)
        ):
            mailbox.post(share, wait)
        else:
            share.in_hand = True
            task: Any = mailbox.task
            if tasks is not None:
                tasks[loop] = task
            else:
                enter_task(loop, task)
            try:
                waits_for = mailbox.serve_one(share)
            except BaseException as error:  # only what must end the process comes through
                break_off(mailbox, error)
                raise
            finally:
                if tasks is not None:
                    del tasks[loop]
                else:
                    leave_task(loop, task)
            if waits_for is not IDLE or mailbox.broken is not None or mailbox.interrupt is not None:
                hand_over(mailbox, waits_for)
            answered, share.in_hand = share.in_hand and share.done, False
            if answered:
                if takes_some:
                    sink.answer(index, share.value)
                else:
                    outcomes[index] = share.value
                    served += 1
                share.done = False
                continue
        if not share.done:
            begun.append((mailbox, share))
        share = Share(sink, 0, of)
    return served
