"""How long handlers took, in a bounded histogram: logarithmic buckets, the recent ones weighing more."""

from __future__ import annotations

from array import array
from math import frexp, ldexp

PER_OCTAVE = 4  # buckets from one power of two to the next: a quantile is right within 12 %
LOWEST = -20  # 2 ** -20 s is about a microsecond; what is shorter counts as that
OCTAVES = 32  # up to 2 ** 12 s; what is longer counts as that
HALVE_AT = 4096  # samples after which all counts are halved
TOGETHER = 8  # samples that are put into their buckets at one go


class TimeHistogram:
    """Counts of durations in seconds. 256 bytes of counts, whatever is recorded, and the latest few durations."""

    __slots__ = ("_counts", "_recent", "_total")

    def __init__(self) -> None:
        self._counts: array[int] | None = None
        self._total = 0
        self._recent: list[float] = []

    @property
    def total(self) -> int:
        """Durations that count now."""
        return self._total + len(self._recent)

    def record(self, seconds: float) -> None:
        """Count one duration. It runs in the turn of a message: the bucket is found later, for several at once."""
        recent = self._recent
        recent.append(seconds)
        if len(recent) == TOGETHER:
            self._count()

    def _count(self) -> array[int]:
        """Put the latest durations in their buckets."""
        counts = self._counts
        if counts is None:
            counts = self._counts = array("H", bytes(2 * PER_OCTAVE * OCTAVES))
        for seconds in self._recent:
            mantissa, exponent = frexp(seconds)
            octave = exponent - 1 - LOWEST
            if octave < 0:
                bucket = 0
            elif octave >= OCTAVES:
                bucket = PER_OCTAVE * OCTAVES - 1
            else:
                bucket = PER_OCTAVE * octave + int((mantissa - 0.5) * 2 * PER_OCTAVE)
            counts[bucket] += 1
        self._total += len(self._recent)
        self._recent.clear()
        if self._total >= HALVE_AT:
            counts = self._counts = array("H", [count >> 1 for count in counts])
            self._total = sum(counts)
        return counts

    def quantile(self, share: float) -> float | None:
        """Seconds that `share` (0 to 1) of the recent durations did not exceed; None if there are none."""
        if not self.total:
            return None
        counts = self._count()
        wanted = share * self._total
        seen = 0
        for bucket, count in enumerate(counts):
            seen += count
            if count and seen >= wanted:
                octave, step = divmod(bucket, PER_OCTAVE)
                return ldexp(1.0 + (step + 0.5) / PER_OCTAVE, octave + LOWEST)
        return None
