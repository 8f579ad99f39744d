"""Which sequences have keys and values in the pool, found by what they begin with.

A key holds the snapshot and the images as well as the tokens: what one snapshot computed is never another's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from tinker_actors.data import ImageChunk
from tinker_actors.sampling.extents import Extent

BLOCK = 16


@dataclass(slots=True, kw_only=True, eq=False)
class Stretch:
    """The keys and values of one sequence.

    Attributes:
        owner: What computed them: one loaded snapshot.
        tokens: The sequence, as far as it is known.
        images: By the position of their first placeholder.
        extent: Where they are.
        held: How many tokens are computed.
        keys: What it is found under, a key for each whole block.
    """

    owner: Hashable
    tokens: list[int]
    images: Sequence[tuple[int, ImageChunk]]
    extent: Extent
    held: int = 0
    keys: list[int] = field(default_factory=list[int])

    def block_key(self, number: int, before: int) -> int:
        """The key of one block, from that of the one before."""
        return _key(self.owner, self.tokens, self.images, number, before)


class PrefixIndex:
    """Running sequences and finished ones, the longest unused first to go."""

    def __init__(self) -> None:
        self._by_key: dict[int, list[Stretch]] = {}
        self._finished: OrderedDict[int, Stretch] = OrderedDict()
        self.cached = 0  # places of the finished ones

    def update(self, stretch: Stretch) -> None:
        """Let a sequence be found by the blocks that it has computed since."""
        whole = stretch.held // BLOCK
        while len(stretch.keys) < whole:
            number = len(stretch.keys)
            key = stretch.block_key(number, stretch.keys[-1] if number else 0)
            stretch.keys.append(key)
            self._by_key.setdefault(key, []).append(stretch)

    def find(
        self, owner: Hashable, tokens: Sequence[int], images: Sequence[tuple[int, ImageChunk]], most: int
    ) -> tuple[Stretch | None, int]:
        """The sequence with the longest common beginning, and how many tokens of it, at most `most`."""
        best: Stretch | None = None
        key = number = 0
        while (number + 1) * BLOCK <= most:
            key = _key(owner, tokens, images, number, key)
            candidates = self._by_key.get(key)
            if not candidates:
                break
            best = candidates[-1]
            number += 1
        if best is None:
            return None, 0
        length = number * BLOCK
        if best.owner is not owner or list(tokens[:length]) != best.tokens[:length]:
            return None, 0  # two keys met
        if not images and not best.images:
            limit = min(most, best.held)
            while length < limit and best.tokens[length] == tokens[length]:
                length += 1
        for start, image in images:
            if start < length < start + image.token_count:
                length = start
        return best, length

    def finish(self, stretch: Stretch) -> None:
        """Keep a sequence that no sample runs on any more, until its memory is wanted."""
        self._finished[id(stretch)] = stretch
        self.cached += stretch.extent.size

    def is_finished(self, stretch: Stretch) -> bool:
        """Whether nothing runs on a sequence."""
        return id(stretch) in self._finished

    def touch(self, stretch: Stretch) -> None:
        """A finished sequence was of use."""
        if id(stretch) in self._finished:
            self._finished.move_to_end(id(stretch))

    def remove(self, stretch: Stretch) -> None:
        """Forget a sequence."""
        for key in stretch.keys:
            found = self._by_key[key]
            found.remove(stretch)
            if not found:
                del self._by_key[key]
        stretch.keys.clear()
        if self._finished.pop(id(stretch), None) is not None:
            self.cached -= stretch.extent.size

    def oldest(self, besides: Stretch | None = None) -> Stretch | None:
        """The finished sequence that was longest of no use."""
        return next((stretch for stretch in self._finished.values() if stretch is not besides), None)

    def of(self, owner: Hashable) -> list[Stretch]:
        """The finished sequences of one snapshot."""
        return [stretch for stretch in self._finished.values() if stretch.owner is owner]


def _key(
    owner: Hashable, tokens: Sequence[int], images: Sequence[tuple[int, ImageChunk]], number: int, before: int
) -> int:
    low, high = number * BLOCK, (number + 1) * BLOCK
    seen = tuple((start, hash(image)) for start, image in images if low <= start < high)
    return hash((id(owner) if not number else 0, before, tuple(tokens[low:high]), seen))
