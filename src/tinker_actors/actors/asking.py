"""How asks leave for another process, and how their answers are awaited: what runs once an ask, at least cost."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tinker_actors.actors import traceparent
from tinker_actors.actors.buffers import LARGE, PLAIN
from tinker_actors.actors.call import current_call, inherited
from tinker_actors.actors.deadlines import FAR
from tinker_actors.actors.envelope import ASK
from tinker_actors.actors.pending import PendingAsk

if TYPE_CHECKING:
    from tinker_actors.actors.codec import Frame
    from tinker_actors.actors.exchange import Exchange
    from tinker_actors.actors.remote import RemoteTarget

WINDOW_BYTES = 128 * 1024 * 1024  # see `remote`
_new = object.__new__
Ask = Callable[..., Coroutine[Any, Any, Any]]


def asker(exchange: Exchange) -> Ask:
    """What sends this process's asks and awaits their outcome; being cancelled cancels the handler.

    The function takes the target, the method, the seconds that the answer may take, whether to wait for room, and the
    message's arguments.
    """
    loop, timer = exchange.loop, exchange.node.timer
    clock, new_future, far_deadlines = loop.time, loop.create_future, exchange.far
    send, next_id = _sender(exchange), exchange.next_id
    waiting, lookout = exchange.pending, exchange.lookout

    async def ask(
        target: RemoteTarget, method: str, timeout: float | None, wait: bool, /, *args: Any, **kwargs: Any
    ) -> Any:
        if wait and current_call.get() is None and traceparent.bridge is None:
            meta = timeout
            if timeout is None:
                due, far = None, False
            else:
                due, far = clock() + timeout, timeout > FAR
        else:
            chain, due, trace = inherited(timeout, loop)
            if chain or trace is not None or not wait:
                meta = target.meta(chain, due, trace, wait=wait)
            else:
                meta = None if due is None else due - clock()
            far = due is not None and due - clock() > FAR
        pending = _new(PendingAsk)  # its constructor would cost twice as much
        pending.target = target
        pending.id = next_id()
        future = pending.future = new_future()
        pending.done = pending.sent = False
        pending.due = pending.bucket = None
        is_alone = not waiting
        began = perf_counter() if is_alone else 0.0
        if kwargs or not send(pending, target, method, args, meta):
            target.submit(pending, method, args, kwargs, meta, wait=wait)
        if due is not None:
            if far and pending.sent:
                pending.due = due
                pending.what = method
                if not far_deadlines.is_awake:
                    far_deadlines.wake()
            else:
                pending.bucket = timer.add(future, due, (target.address.name, method))
        if is_alone and pending.sent:
            lookout.begin(pending, target, method, began)
        try:
            return await future
        finally:
            if is_alone:
                lookout.end(pending)
            if pending.bucket is not None:
                pending.bucket.pop(future, None)
            if not pending.done:
                target.cancel(pending)
            del future, pending  # an error would be in a cycle with this frame, and so would the arguments

    return ask


def _sender(exchange: Exchange) -> Callable[[PendingAsk, RemoteTarget, str, tuple[Any, ...], Any], bool]:
    """What sends an ask at once, as `RemoteTarget.submit` would.

    It gives False, with nothing done, for an ask that is not as simple as most are.
    """
    peer_of, waiting, busy, limit = exchange.by_index.get, exchange.pending, exchange.busy, exchange.max_message
    codec = exchange.node.codec
    write, write_arrays, array_types = codec.write, codec.write_arrays, codec.array_types

    def send(pending: PendingAsk, target: RemoteTarget, method: str, args: tuple[Any, ...], meta: Any) -> bool:
        frames: list[Frame] | None = None
        for value in args:
            kind = value.__class__
            if kind in PLAIN or (kind is bytes and len(value) < LARGE):
                continue
            if kind not in array_types:
                return False
            frames = []
        peer = peer_of(target.index)
        if peer is None or not peer.is_open:  # which it is neither when dead or cut off, nor once the mesh is closed
            return False
        link, lane, outstanding = peer.link, peer.lane, target.outstanding
        if link is None or outstanding > target.mailbox or target.backlog or (lane is not None and lane.waiting):
            return False
        ident = pending.id
        parts = (ASK, ident, target.actor, method, args, None, meta)
        try:
            data = write(parts) if frames is None else write_arrays(parts, frames)
        except Exception:  # `submit` says what is wrong with it, or finds another way
            return False
        size = len(data)
        if frames is not None:
            for frame in frames:
                size += frame.nbytes
        if size > limit or (outstanding and target.bytes + size > WINDOW_BYTES):
            return False
        if not outstanding:
            busy.add(target)
        target.outstanding = outstanding + 1
        target.bytes += size
        pending.size = size
        pending.sent = True
        waiting[ident] = pending
        now = len(waiting) == 1 and exchange.last_inbound <= 1
        if frames is None:
            link.put(data, now=now)
        elif lane is None:
            link.put(data, frames, now=now)
        else:
            lane.put(data, frames, (target.actor,), now=now)
        return True

    return send
