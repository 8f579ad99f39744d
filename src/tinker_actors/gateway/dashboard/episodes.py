"""The episodes that a run recorded: an index that grows with the file, and single ones read by their place in it."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

Order: TypeAlias = Literal["newest", "oldest", "best", "worst"]

_FILES = 16
"""Files whose index is kept."""


class _Seat(msgspec.Struct):
    seat: str
    policy: str | None = None
    trainable: bool = False
    reward: float = 0.0
    action_tokens: int = 0
    turns: list[msgspec.Raw] = []


class _Record(msgspec.Struct):
    id: str
    environment: str
    end: str
    step: int = 0
    error: str | None = None
    seats: list[_Seat] = []


_decode = msgspec.json.Decoder(_Record).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One episode in the index.

    Attributes:
        id: Its own.
        step: Of which step.
        phase: What it was played for, such as `train`.
        end: How it ended.
        failed: Whether it is an error.
        reward: The sum over the seats that learn; over all if none does, since others' would cancel theirs.
        turns: Of all seats.
        tokens: Sampled ones, of all seats.
        seats: Each one's name, policy, reward, and whether it learns.
        start: Where its record begins in the file.
        length: Bytes of it.
    """

    id: str
    step: int
    phase: str
    end: str
    failed: bool
    reward: float
    turns: int
    tokens: int
    seats: tuple[tuple[str, str | None, float, bool], ...]
    start: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which episodes, in which order.

    Attributes:
        order: By step, or by reward.
        step: Of this step alone.
        seat: With a seat of this name.
        policy: With a seat that this policy played.
        failed: Failed ones alone.
    """

    order: Order = "newest"
    step: int | None = None
    seat: str | None = None
    policy: str | None = None
    failed: bool = False

    def chosen(self, entries: Sequence[Entry]) -> list[Entry]:
        """Those of an index, in order."""
        found = [entry for entry in entries if self._fits(entry)]
        if self.order == "newest":
            found.reverse()
        elif self.order != "oldest":
            found.sort(key=lambda entry: entry.reward, reverse=self.order == "best")
        return found

    def _fits(self, entry: Entry) -> bool:
        return (
            self.step in (None, entry.step)
            and (entry.failed or not self.failed)
            and (self.seat is None or any(seat == self.seat for seat, *_ in entry.seats))
            and (self.policy is None or any(policy == self.policy for _, policy, *_ in entry.seats))
        )


@dataclass(slots=True)
class _Index:
    file: int = 0
    read: int = 0
    entries: list[Entry] = field(default_factory=list)
    growing: threading.Lock = field(default_factory=threading.Lock)

    def grow(self, path: Path) -> None:
        """Read what the file has gained."""
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                if self.file != status.st_ino or status.st_size < self.read:  # another has taken its place
                    self.file, self.read, self.entries = status.st_ino, 0, []
                file.seek(self.read)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    if (entry := _entry(line, self.read)) is not None:
                        self.entries.append(entry)
                    self.read += len(line)
        except FileNotFoundError:
            self.file, self.read, self.entries = 0, 0, []


class EpisodeIndexes:
    """The indexes of the files that were asked for last. For any threads; those that ask for one file wait in turn."""

    def __init__(self) -> None:
        self._known: OrderedDict[Path, _Index] = OrderedDict()
        self._choosing = threading.Lock()

    def entries(self, path: Path) -> list[Entry]:
        """All whole records of a file, oldest first; empty if it isn't there."""
        with self._choosing:
            index = self._known.setdefault(path, _Index())
            self._known.move_to_end(path)
            if len(self._known) > _FILES:
                self._known.popitem(last=False)
        with index.growing:
            index.grow(path)
            return list(index.entries)


def read_episode(path: Path, entry: Entry) -> dict[str, Any]:
    """The record of an entry.

    Raises:
        LookupError: The file has changed, and it isn't there any more.
    """
    try:
        with path.open("rb") as file:
            file.seek(entry.start)
            record: dict[str, Any] = msgspec.json.decode(file.read(entry.length))
    except (FileNotFoundError, msgspec.DecodeError):
        record = {}
    if record.get("id") != entry.id:
        raise LookupError(f"episode {entry.id} is no longer in {path}")
    return record


def _entry(line: bytes, start: int) -> Entry | None:
    try:
        record = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):  # a line that a killed process left unfinished
        return None
    learning = [seat for seat in record.seats if seat.trainable] or record.seats
    return Entry(
        id=record.id,
        step=record.step,
        phase=record.id.partition("-")[0],
        end=record.end,
        failed=record.error is not None,
        reward=sum(seat.reward for seat in learning),
        turns=sum(len(seat.turns) for seat in record.seats),
        tokens=sum(seat.action_tokens for seat in record.seats),
        seats=tuple((seat.seat, seat.policy, seat.reward, seat.trainable) for seat in record.seats),
        start=start,
        length=len(line),
    )
