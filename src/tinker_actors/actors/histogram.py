"""How long handlers took, in a bounded histogram: logarithmic buckets, the recent ones weighing more."""

from __future__ import annotations

from array import array
from math import frexp, ldexp

PER_OCTAVE = 4  # buckets from one power of two to the next: a quantile is right within 12 %
LOWEST = -20  # 2 ** -20 s is about a microsecond; what is shorter counts as that
OCTAVES = 32  # up to 2 ** 12 s; what is longer counts as that
HALVE_AT = 4096  # samples after which all counts are halved


class TimeHistogram:
    """Counts of durations in seconds. 256 bytes of counts, whatever is recorded."""

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts = array("H", bytes(2 * PER_OCTAVE * OCTAVES))
        self.total = 0

    def record(self, seconds: float) -> None:
        """Count one duration."""
        mantissa, exponent = frexp(seconds)
        octave = exponent - 1 - LOWEST
        if octave < 0:
            bucket = 0
        elif octave >= OCTAVES:
            bucket = PER_OCTAVE * OCTAVES - 1
        else:
            bucket = PER_OCTAVE * octave + int((mantissa - 0.5) * 2 * PER_OCTAVE)
        self._counts[bucket] += 1
        self.total += 1
        if self.total >= HALVE_AT:
            self._counts = array("H", [count >> 1 for count in self._counts])
            self.total = sum(self._counts)

    def quantile(self, share: float) -> float | None:
        """Seconds that `share` (0 to 1) of the recent durations did not exceed; None if there are none."""
        if not self.total:
            return None
        wanted = share * self.total
        seen = 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                octave, step = divmod(bucket, PER_OCTAVE)
                return ldexp(1.0 + (step + 0.5) / PER_OCTAVE, octave + LOWEST)
        return None
