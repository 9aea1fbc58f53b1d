"""Histograms of non-negative integers that merge exactly and never outgrow a fixed number of counters.

The layout is log-linear, as in HdrHistogram with lowest value 1 and highest value 3,600,000,000: values below
2 ** (precision + 1) have a counter of their own; above, each doubling of the value shares 2 ** precision counters. A
value is therefore known to 1 part in 2 ** precision: three significant digits at 10 bits, two at 7. Talka records
microseconds, so the range ends at one hour.

Counters are kept sparsely, by their index. What is decoded from a peer is held to the same indexes.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, TypeVar

import msgspec

HIGHEST: Final = 3_600_000_000
"""Values above are recorded as this one."""
PRECISION: Final = 10
"""Bits kept below a value's leading one: 1 part in 1024."""
COARSE_PRECISION: Final = 7
"""1 part in 128."""
COUNTERS: Final = 23 << PRECISION
"""Room of HdrHistogram's layout; indexes stay below."""
COARSE_COUNTERS: Final = 26 << COARSE_PRECISION

Index = Annotated[int, msgspec.Meta(ge=0, lt=COUNTERS)]
CoarseIndex = Annotated[int, msgspec.Meta(ge=0, lt=COARSE_COUNTERS)]
Times = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
Key = TypeVar("Key")


class Histogram(msgspec.Struct):
    """Values with three significant digits; their number, sum, least and greatest exactly."""

    counts: dict[Index, Times] = {}
    """Counter index to count; see `index_of`."""
    count: NotNegative = 0
    total: NotNegative = 0
    min: NotNegative = 0
    """The least value; 0 while empty, like `max`."""
    max: NotNegative = 0

    def record(self, value: int, times: int = 1) -> None:
        """Count a value, `times` (at least 1) at once. Below 0 it counts as 0, above `HIGHEST` as `HIGHEST`."""
        # Called for every request: `index_of` is spelled out and its numbers are literals.
        if value < 2048:
            if value < 0:
                value = 0
            index = value
        else:
            if value > 3_600_000_000:
                value = 3_600_000_000
            bits = value.bit_length() - 11
            index = (bits << 10) + (value >> bits)
        counts = self.counts
        counts[index] = counts.get(index, 0) + times
        if value > self.max:
            self.max = value
            if not self.count:
                self.min = value
        elif value < self.min:
            self.min = value
        self.count += times
        self.total += value * times

    def merge(self, other: "Histogram") -> None:
        """Count what the other has counted. Nothing is lost, and the order of merges does not matter."""
        if other.count and (not self.count or other.min < self.min):
            self.min = other.min
        self.max = max(self.max, other.max)
        self.count += other.count
        self.total += other.total
        add_counts(self.counts, other.counts)

    def copy(self) -> "Histogram":
        return Histogram(self.counts.copy(), self.count, self.total, self.min, self.max)

    def percentile(self, percent: float) -> int:
        """The value that `percent` (0 to 100) of the recorded ones do not exceed; 0 while empty.

        It is the highest value of its counter, but never above `max`; at 0 percent it is the lowest of its counter.
        """
        index = _index_at(self.counts, self.count, percent)
        return min(highest_of(index) if percent > 0 else lowest_of(index), self.max)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    @property
    def stdev(self) -> float:
        """Of the population, with each value taken as the middle of its counter; 0.0 while empty."""
        # Whole numbers up to the last step: neither the order of the counters nor cancellation can change the result.
        count = total = squares = 0
        for index, times in self.counts.items():
            middle = middle_of(index)
            count += times
            total += middle * times
            squares += middle * middle * times
        return math.sqrt((count * squares - total * total) / (count * count)) if count else 0.0


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """A new one; the given ones stay as they are."""
    whole = Histogram()
    for histogram in histograms:
        whole.merge(histogram)
    return whole


class CoarseHistogram(msgspec.Struct):
    """Values with two significant digits, for the many short windows of a run."""

    counts: dict[CoarseIndex, Times] = {}
    """Counter index to count; see `index_of` at `COARSE_PRECISION`."""
    count: NotNegative = 0
    max: NotNegative = 0
    """The greatest value; 0 while empty."""

    def record(self, value: int, times: int = 1) -> None:
        """Count a value, `times` (at least 1) at once. Below 0 it counts as 0, above `HIGHEST` as `HIGHEST`."""
        # Spelled out for the same reason as in `Histogram`.
        if value < 256:
            if value < 0:
                value = 0
            index = value
        else:
            if value > 3_600_000_000:
                value = 3_600_000_000
            bits = value.bit_length() - 8
            index = (bits << 7) + (value >> bits)
        counts = self.counts
        counts[index] = counts.get(index, 0) + times
        if value > self.max:
            self.max = value
        self.count += times

    def merge(self, other: "CoarseHistogram") -> None:
        """Count what the other has counted. Nothing is lost, and the order of merges does not matter."""
        self.max = max(self.max, other.max)
        self.count += other.count
        add_counts(self.counts, other.counts)

    def blurred(self) -> "CoarseHistogram":
        """The same to 1 part in 32: a quarter of the counters, each the highest of four, so that no value looks
        lower."""
        counts: dict[int, int] = {}
        for index, times in self.counts.items():
            index = index | 3 if index >= 2 << COARSE_PRECISION else index
            counts[index] = counts.get(index, 0) + times
        return CoarseHistogram(counts, self.count, self.max)

    def percentile(self, percent: float) -> int:
        """As in `Histogram`, to 1 part in 128."""
        index = _index_at(self.counts, self.count, percent)
        lowest, highest = lowest_of(index, COARSE_PRECISION), highest_of(index, COARSE_PRECISION)
        return min(highest if percent > 0 else lowest, self.max)


def index_of(value: int, precision: int = PRECISION) -> int:
    """The counter of a value."""
    if value < 2 << precision:
        return value
    bits = value.bit_length() - precision - 1
    return (bits << precision) + (value >> bits)


def lowest_of(index: int, precision: int = PRECISION) -> int:
    """The lowest value of a counter."""
    bits = _bits_dropped(index, precision)
    return index - (bits << precision) << bits


def highest_of(index: int, precision: int = PRECISION) -> int:
    """The highest value of a counter."""
    return lowest_of(index, precision) + (1 << _bits_dropped(index, precision)) - 1


def middle_of(index: int, precision: int = PRECISION) -> int:
    """The value that stands for all values of a counter in sums."""
    return lowest_of(index, precision) + ((1 << _bits_dropped(index, precision)) >> 1)


def _bits_dropped(index: int, precision: int) -> int:
    return max((index >> precision) - 1, 0)


def _index_at(counts: dict[int, int], count: int, percent: float) -> int:
    """The counter at which `percent` of `count` values are reached; the last one if they never are."""
    # HdrHistogram's rounding, float for float: tools that read the same data must not differ by a counter.
    wanted = int(percent * count / 100 + 0.5)
    index = reached = 0
    for index in sorted(counts):
        reached += counts[index]
        if reached >= wanted:
            break
    return index


def add_counts(into: dict[Key, int], more: Mapping[Key, int]) -> None:
    for key, count in more.items():
        into[key] = into.get(key, 0) + count
