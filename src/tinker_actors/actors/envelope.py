"""What stands in a message between two nodes: batches of envelopes.

A batch is one msgpack array: envelopes, and last the list of `[index, frames]` for those that have frames of their
own (nil if none has). Where all frames are descriptors of large data (see `lane.py`), they stand before the batch
instead: the byte 0xc1, the size of an array in four bytes, and that array. An envelope is an array that begins with its
kind:

    [HELLO, token, node, incarnation, url, network, session, heard]  first on every link; nothing is read before it
    [PEER, node, incarnation, url, key, error, final] node 0 says that a node is up (url), or down (nil) and why
    [NAME, name, ref or nil]                          node 0 says which actor bears a name
    [ASK, id, actor, method, args, kwargs, meta]      answered by exactly one REPLY or ERROR
    [STREAM, id, actor, method, args, kwargs, meta, credits]  answered by ITEMs, then one END or ERROR
    [TELL, actor, method, args, kwargs, trace]        counted by one ACK when it has been served or dropped
    [REPLY, id, value]  [ITEM, id, value]  [END, id]  [ERROR, id, exception]
    [GATHER, id, actors, method, args, kwargs, meta]  an ask to several actors; answered by GATHEREDs with each of them
                                                      once, or by one ERROR
    [GATHERED, id, places, values, failed, errors]    whose values, by their places among the actors (nil: all, in their
                                                      order), and whose errors
    [TELL_ALL, actors, method, args, kwargs, trace]
    [CANCEL, id]  [CREDIT, id, count]  [ACK, counts]  counts are [actor, count]
    [BULK, kind, value]                               about large data, see `lane.py`
    [WAITS, id, walk]                                 whose answer is waited for by that of the sender's ask `id`, see
                                                      `cycles.py`

`network` is the sender's tcp address, `session` counts its connections to the receiver, and `heard` is the session of
the receiver's that it heard of last (see `network.py`). `kwargs`, `meta` and `trace` may be nil; meta is [seconds left
or nil, call chain, 1 if the sender does not wait for room, trace], trace a W3C `traceparent`; where
there is only a deadline it is the seconds left as a float.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from tinker_actors.actors import packing
from tinker_actors.actors.buffers import CANDIDATES
from tinker_actors.actors.codec import OUT_OF_BAND, Codec, Frame
from tinker_actors.actors.errors import CodecError

HELLO: Final = 0
PEER: Final = 1
NAME: Final = 2
ASK: Final = 3
STREAM: Final = 4
TELL: Final = 5
REPLY: Final = 6
ITEM: Final = 7
END: Final = 8
ERROR: Final = 9
CANCEL: Final = 10
CREDIT: Final = 11
ACK: Final = 12
GATHER: Final = 13
GATHERED: Final = 14
TELL_ALL: Final = 15
BULK: Final = 16
WAITS: Final = 17

LENGTHS: Final = {
    HELLO: 8, PEER: 7, NAME: 3, ASK: 7, STREAM: 8, TELL: 6, REPLY: 3, ITEM: 3, END: 2, ERROR: 3, CANCEL: 2, CREDIT: 3,
    ACK: 2, GATHER: 7, GATHERED: 6, TELL_ALL: 6, BULK: 3, WAITS: 3,
}  # fmt: skip

ANSWERS: Final = frozenset({REPLY, ITEM, END, ERROR, GATHERED})
"""Kinds whose order among those with the same id matters."""

_WITH_VALUES: Final = frozenset({STREAM, TELL, GATHER, GATHERED, TELL_ALL, ERROR})

BATCH_ENVELOPES: Final = 128  # small enough that the receiver is at work while the sender still is
BATCH_BYTES: Final = 256 * 1024

LED: Final = b"\xc1"  # never used by msgpack: descriptors come first
_ONE_FRAME: Final = packing.pack([[0, 1]])
LED_MOST: Final = 1024  # descriptors before a batch; more go as frames, so that no part grows past its limit


class Unreadable:
    """An envelope of which only the head, if anything, could be read."""

    __slots__ = ("error", "head")

    def __init__(self, head: Any, error: CodecError) -> None:
        self.head = head
        self.error = error


def may_hold_buffers(parts: list[Any]) -> bool:
    """Whether there is anything in an envelope that is large bytes or could contain them. Runs for every message."""
    kind = parts[0]
    if kind == ASK:
        for value in parts[4]:
            if value.__class__ in CANDIDATES:
                return True
        return parts[5] is not None
    if kind in (REPLY, ITEM):
        return parts[2].__class__ in CANDIDATES
    return kind in _WITH_VALUES


def join(envelopes: Sequence[bytes], counts: Sequence[tuple[int, int]]) -> bytes:
    """One batch of already encoded envelopes; `counts` are (index, frames) of those with frames."""
    if len(envelopes) == 1 and not counts:
        return b"\x92" + envelopes[0] + b"\xc0"
    tail = packing.pack(counts) if counts else b"\xc0"
    return b"".join((_array_of(len(envelopes) + 1), *envelopes, tail))


def may_lead(frames: Sequence[Frame]) -> bool:
    """Whether a batch's frames can stand before it: they are short, and so descriptors, and not too many."""
    return len(frames) <= LED_MOST and max(map(len, frames)) < OUT_OF_BAND


def lead(descriptors: Sequence[Frame], batch: bytes) -> bytes:
    """A batch after its descriptors."""
    array = b"".join((_array_of(len(descriptors)), *descriptors))
    return b"".join((LED, len(array).to_bytes(4, "big"), array, batch))


def lead_one(descriptor: Frame, data: bytes) -> bytes:
    """`lead` and `join` for a single envelope with a single frame."""
    return b"".join((LED, (1 + len(descriptor)).to_bytes(4, "big"), b"\x91", descriptor, b"\x92", data, _ONE_FRAME))


def led(data: bytes) -> tuple[list[Any], bytes]:
    """What `lead` wrote: the descriptors, unpacked, and the batch.

    Raises:
        CodecError: it is malformed.
    """
    start = 5 + int.from_bytes(data[1:5], "big")
    try:
        descriptors = packing.unpack(data[5:start], _opaque)
    except Exception as error:  # msgpack raises many types; all mean the same
        raise CodecError(f"malformed descriptors: {type(error).__name__}: {error}") from error
    if not isinstance(descriptors, list) or not descriptors:
        raise CodecError("the descriptors before a batch are a non-empty array")
    return cast("list[Any]", descriptors), data[start:]


def split(codec: Codec, data: bytes, frames: Sequence[Frame]) -> list[Any]:
    """The envelopes of a batch, decoded at one go.

    Raises:
        CodecError: something in it can't be read; `salvage` then saves the rest.
    """
    batch = codec.decode(data, frames)
    if not isinstance(batch, list) or not batch:
        raise CodecError("a batch is a non-empty array")
    batch.pop()
    return cast("list[Any]", batch)


def salvage(codec: Codec, data: bytes, frames: Sequence[Frame]) -> list[Any]:
    """The envelopes of a batch one by one; of one whose body can't be read, an `Unreadable`.

    Raises:
        CodecError: the batch itself is malformed.
    """
    unpacker = packing.reader(_opaque)
    out: list[Any] = []
    try:
        unpacker.feed(data)
        size = unpacker.read_array_header() - 1
        spans: list[tuple[int, int]] = []
        for _ in range(size):
            start = unpacker.tell()
            unpacker.skip()
            spans.append((start, unpacker.tell()))
        counts = {int(index): int(count) for index, count in unpacker.unpack() or ()}
    except Exception as error:  # msgpack and the conversions raise many types; all mean the same
        raise CodecError(f"a malformed batch: {type(error).__name__}: {error}") from error
    used = 0
    for index, (start, end) in enumerate(spans):
        own = frames[used : used + counts.get(index, 0)]
        used += len(own)
        try:
            out.append(codec.decode(data[start:end], own))
        except CodecError as error:
            try:
                head = packing.unpack(data[start:end], _opaque)
            except Exception:  # not even its head can be read
                head = None
            out.append(Unreadable(head, error))
    return out


def _array_of(size: int) -> bytes:
    """How msgpack begins an array."""
    return bytes((0x90 | size,)) if size < 16 else b"\xdc" + size.to_bytes(2, "big")


def _opaque(code: int, data: bytes) -> None:
    return None


def is_well_formed(parts: Any) -> bool:
    """Whether an envelope has a known kind and that kind's length."""
    if not isinstance(parts, list) or not parts:
        return False
    listed = cast("list[Any]", parts)
    return isinstance(listed[0], int) and LENGTHS.get(listed[0]) == len(listed)
