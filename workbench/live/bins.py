"""A value over the time of a whole run, in a bounded number of points."""

from __future__ import annotations

import math
from dataclasses import dataclass

MOST_BINS = 300


@dataclass(slots=True)
class _Bin:
    number: int
    samples: int
    total: float
    most: float
    last: float
    last_s: float

    def add(self, other: _Bin) -> None:
        self.samples += other.samples
        self.total += other.total
        self.most = max(self.most, other.most)
        if other.last_s >= self.last_s:
            self.last, self.last_s = other.last, other.last_s


class Bins:
    """Samples of one value in bins of equal width; where there would be too many bins, their width doubles.

    ``width_s``: of the first bins, in seconds. Everything that is read of it is exact whatever the width: how many
    samples a bin has, their sum, mean and largest, and the last. Bins without a sample do not exist.
    """

    def __init__(self, width_s: float, most: int = MOST_BINS) -> None:
        self.width_s, self.most = width_s, most
        self._bins: list[_Bin] = []
        self._changed_from = 0

    def __len__(self) -> int:
        return len(self._bins)

    def add(self, at_s: float, value: float) -> None:
        """A sample, which may be somewhat older than the newest."""
        # What falls on an edge belongs to the bin that begins there, whatever the rounding of its time.
        self._put(_Bin(math.floor(at_s / self.width_s + 1e-6), 1, value, value, value, at_s))
        # Bins that lie far apart do not merge at once.
        while len(self._bins) > self.most:
            self._widen()

    def _put(self, sample: _Bin) -> None:
        at = len(self._bins)
        while at and self._bins[at - 1].number > sample.number:
            at -= 1
        if at and self._bins[at - 1].number == sample.number:
            at -= 1
            self._bins[at].add(sample)
        else:
            self._bins.insert(at, sample)
        self._changed_from = min(self._changed_from, at)

    def _widen(self) -> None:
        self.width_s *= 2
        narrow, self._bins = self._bins, []
        for each in narrow:
            each.number //= 2
            self._put(each)
        self._changed_from = 0

    def changed(self) -> int:
        """The first point that is new or has changed since this was last asked; len() where there is none."""
        first, self._changed_from = self._changed_from, len(self._bins)
        return first

    def times(self, first: int = 0) -> list[float]:
        """When the newest sample of each bin was taken, in seconds, from bin ``first`` on."""
        return [each.last_s for each in self._bins[first:]]

    def last(self, first: int = 0) -> list[float]:
        """The newest sample of each bin."""
        return [each.last for each in self._bins[first:]]

    def mean(self, first: int = 0) -> list[float]:
        """The mean of each bin's samples."""
        return [each.total / each.samples for each in self._bins[first:]]

    def most_of(self, first: int = 0) -> list[float]:
        """The largest sample of each bin."""
        return [each.most for each in self._bins[first:]]

    def per_second(self, first: int = 0) -> list[float]:
        """The sum of each bin's samples over its width."""
        return [each.total / self.width_s for each in self._bins[first:]]
