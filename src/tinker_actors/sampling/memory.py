"""Who has which part of the pool: running sequences, and finished ones until their memory is wanted."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from tinker_actors.data import ImageChunk
from tinker_actors.errors import ConfigError
from tinker_actors.sampling.extents import Extent, Extents, extent_size
from tinker_actors.sampling.kv_pool import KVPool, KVShape
from tinker_actors.sampling.prefixes import PrefixIndex, Stretch

_ROOM = 32  # places for tokens to come that a new sequence gets at once


class Memory:
    """Places of the pool under one budget.

    Args:
        pool: Keys and values.
        longest: The longest sequence.
        prefix_caching: Whether finished sequences stay for later prompts.

    Attributes:
        evicted: Finished sequences that gave up their places because others wanted them.
    """

    def __init__(self, pool: KVPool, longest: int, *, prefix_caching: bool = True) -> None:
        self.pool = pool
        self.extents = Extents(pool.places, longest)
        self.index = PrefixIndex()
        self._caches = prefix_caching
        self.evicted = 0

    @classmethod
    def within(
        cls,
        budget: int,
        shape: KVShape,
        dtype: torch.dtype,
        *,
        longest: int,
        most: int,
        prefix_caching: bool = True,
        device: torch.device | None = None,
    ) -> Memory:
        """Places for as many tokens as so many bytes hold, and for at most `most` of the longest sequences.

        Raises:
            ConfigError: They don't hold one.
        """
        size, token = extent_size(longest), shape.nbytes(dtype)
        places = min(budget // token // size, most) * size
        if not places:
            raise ConfigError(
                f"kv_memory is {budget} bytes; a sequence of {longest} tokens needs {size * token}: give more, or a "
                "smaller context_length"
            )
        return cls(KVPool(shape, places, dtype, device), longest, prefix_caching=prefix_caching)

    @property
    def running(self) -> int:
        """Places of running sequences."""
        return self.extents.taken - self.index.cached

    def begin(
        self,
        owner: Hashable,
        tokens: list[int],
        images: Sequence[tuple[int, ImageChunk]],
        *,
        expected: int,
        reuse: int,
    ) -> Stretch | None:
        """Give a sequence its places, with what is computed of it already; None if there is no room.

        Args:
            owner: The snapshot.
            tokens: The sequence so far; the list is kept and read as it grows.
            images: By position.
            expected: Tokens that will surely be added.
            reuse: How many computed tokens may be taken over; the last one never is, as its logits are wanted.
        """
        found, length = None, 0
        if reuse and self._caches:
            found, length = self.index.find(owner, tokens, images, min(len(tokens) - 1, reuse))
        wanted = len(tokens) + min(expected, _ROOM)
        if found is not None and self.index.is_finished(found) and length == found.held:
            # the conversation goes on where it ended: nothing to copy unless it needs a larger place
            self.index.remove(found)
            found.tokens, found.images = tokens, images
            if found.extent.size >= wanted or self._move(found, wanted):
                self.index.update(found)
                return found
            self.extents.give(found.extent)
            return None
        extent = self._take(wanted, besides=found)
        if extent is None and found is not None:  # what it has in common may be what is in the way
            found, extent = None, self._take(wanted)
        if extent is None:
            return None
        stretch = Stretch(owner=owner, tokens=tokens, images=images, extent=extent)
        if found is not None:
            self.pool.copy(found.extent.start, extent.start, length)
            stretch.held = length
            self.index.touch(found)
            self.index.update(stretch)
        return stretch

    def fork(self, source: Stretch, tokens: list[int], *, expected: int) -> Stretch | None:
        """A second sequence that begins like a running one, all of whose tokens are computed."""
        extent = self._take(len(tokens) + min(expected, _ROOM))
        if extent is None:
            return None
        self.pool.copy(source.extent.start, extent.start, source.held)
        return Stretch(owner=source.owner, tokens=tokens, images=source.images, extent=extent, held=source.held)

    def room(self, stretch: Stretch, tokens: int) -> bool:
        """See to it that a sequence may have so many tokens; False if there is no memory for it."""
        return tokens <= stretch.extent.size or self._move(stretch, tokens)

    def computed(self, stretch: Stretch, count: int) -> None:
        """So many more tokens of a sequence are computed."""
        stretch.held += count
        if self._caches:
            self.index.update(stretch)

    def end(self, stretch: Stretch, *, broken: bool = False) -> None:
        """Nothing runs on a sequence any more.

        Args:
            stretch: The sequence.
            broken: Its numbers may not be finite: nobody is to read them.
        """
        if broken:
            self.pool.wipe(stretch.extent.start, stretch.extent.size)
        if self._caches and not broken and stretch.keys:
            stretch.tokens = stretch.tokens[: stretch.held]
            self.index.finish(stretch)
        else:
            self.drop(stretch)

    def drop(self, stretch: Stretch) -> None:
        """Free a sequence's places."""
        self.index.remove(stretch)
        self.extents.give(stretch.extent)

    def forget(self, owner: Hashable) -> None:
        """Free what finished sequences of a snapshot hold."""
        for stretch in self.index.of(owner):
            self.drop(stretch)

    def _move(self, stretch: Stretch, tokens: int) -> bool:
        extent = self._take(tokens, besides=stretch)
        if extent is None:
            return False
        self.pool.copy(stretch.extent.start, extent.start, stretch.held)
        self.extents.give(stretch.extent)
        stretch.extent = extent
        return True

    def _take(self, tokens: int, besides: Stretch | None = None) -> Extent | None:
        while (extent := self.extents.take(tokens)) is None:
            oldest = self.index.oldest(besides)
            if oldest is None:
                return None
            self.drop(oldest)
            self.evicted += 1
        return extent
