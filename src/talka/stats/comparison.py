"""Whether two runs differ: estimates with intervals, their difference, and one of three answers (decision 10).

*Same*: the interval of the difference lies within what was called no difference. *Different*: the difference is beyond
chance and beyond what runs of one thing differ by anyway. *Cannot tell*: neither is known.

Requests of a run are no independent samples: one pause of the server or of the machine slows many of them. So a run is
cut into blocks of time. How much the blocks scatter tells how many independent requests the run is worth (its design
effect), and intervals are made for so many.

A run whose fifths differ may well have differed as a whole, so every interval is widened by how far the parts of its
own run drifted apart. All of that shrinks with the square root of a run's length.

Two runs of the same thing differ by more than that, for machines have better and worse minutes, and no length of a run
shows it. So a difference is called only if it is also beyond what runs differ at best (`RUN_SPREAD` and what follows
it), and beyond what the generator's own timers were late, which is not blamed on the target.

All intervals of a comparison hold together with 95 %: each is made at 1 - 0.05 / rows (Bonferroni).

Decision: docs/decisions/0010-noise-is-called-noise.md.
"""

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist, fmean, stdev
from typing import Final, Literal, NamedTuple

import msgspec

from talka.stats.histogram import Histogram

LEVEL: Final = 0.95
ONE_ROW: Final = NormalDist().inv_cdf(0.5 + LEVEL / 2)
BLOCKS_WANTED: Final = 25
FEWEST_BLOCKS: Final = 6
"""With fewer nothing is known about the noise of a run."""
PARTS: Final = 5
"""Of a run, to see it drift."""
MOST_CORRELATION: Final = 0.8
"""Of neighbouring blocks. Beyond, a few dozen blocks cannot tell it from a trend."""

RUN_SPREAD: Final = 0.02
"""Standard deviation from run to run of a median, a mean or a rate, as a share of its value."""
RUN_SPREAD_TAIL: Final = 0.04
"""The same at p99."""
RUN_SPREAD_MS: Final = 0.05
"""And of every time on top: timers are good to one millisecond, and where in it a run starts is chance."""

ENDS_LATE: Final = 2
"""A target on the same machine is as late as the generator, and a time holds the lag of both."""

LEAST_SHARE_OF_VALUE: Final = 0.02
LEAST_MS: Final = 0.1
LEAST_SHARE: Final = 0.001
"""Smaller differences of a time or rate, of a time, and of a share of failures concern nobody."""

WITHIN: Final = 0.05
"""Values of a time or a rate that differ by no more than this share are the same, unless somebody says otherwise."""
SHARE_WITHIN: Final = 0.2
"""Of that, in points, for shares of failures: one point for 5 %."""
LONGER: Final = (1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 40, 50, 70, 100, 150, 200, 300, 400, 500, 700, 1000)
"""How many times as long a run may have to be to tell; beyond, nobody would wait for it."""
TAIL_WANTED: Final = 10
"""Values above a percentile with which its interval begins to mean something."""

Unit = Literal["time", "rate", "share"]
Answer = Literal["same", "different", "cannot tell"]
Need = Literal["length", "repeats", "no lag"]
"""What would tell what cannot be told: longer runs, runs of both in turn, or a generator that is less late."""
Verdict = Literal[
    "same", "slower", "faster", "higher rate", "lower rate", "more failures", "fewer failures", "cannot tell"
]
"""An answer, where *different* is said with its direction."""
WORDS: Final[dict[Unit, tuple[Verdict, Verdict]]] = {
    "time": ("faster", "slower"),
    "rate": ("lower rate", "higher rate"),
    "share": ("fewer failures", "more failures"),
}
"""What a falling and a rising value is called."""
WORSE: Final[frozenset[Verdict]] = frozenset({"slower", "lower rate", "more failures"})


class TimeSlice(msgspec.Struct, frozen=True):
    """What was counted in a stretch of time, over all steps."""

    width_s: float
    requests: int
    failed: int
    p50_ms: float | None
    p99_ms: float | None


class Weighed(NamedTuple):
    """The value of a block, and how much it counts; nothing is known of it at 0."""

    value: float
    weight: float


class Noise(msgspec.Struct, frozen=True):
    """How a run scattered.

    A design effect is by how much fewer independent requests the run is worth than it made. A drift is the standard
    deviation of the parts of the run, as a share of the value.
    """

    blocks: int
    middle: float
    """Design effect of the median."""
    tail: float
    """Of p99."""
    failures: float
    """Of the share of failures."""
    mean_error: float
    """Standard error of a mean time that comes from its blocks, as a share of it."""
    rate_error: float
    """The same of the request rate."""
    middle_drift: float
    tail_drift: float
    rate_drift: float

    def at(self, percent: float) -> float:
        """The design effect at a percentile: between the median's and p99's by the logarithm of what lies above."""
        depth = min(max(math.log(2 * (1 - percent / 100)) / math.log(0.02), 0.0), 1.0)
        return math.exp((1 - depth) * math.log(self.middle) + depth * math.log(self.tail))


class Estimate(msgspec.Struct, frozen=True):
    """A value and the ends of its interval, which allow for chance within the run."""

    value: float
    low: float
    high: float
    luck: float = 0.0
    """By how much runs of the same thing differ anyway, to either side."""
    less: float = 0.0
    """By how much the value may be too high through the generator's own lag."""
    more: float = 0.0
    """And too low."""

    @property
    def down(self) -> float:
        """How far below the value the truth may lie, whatever the cause."""
        return min(self.value, self.less + math.hypot(self.value - self.low, self.luck))

    @property
    def up(self) -> float:
        return self.more + math.hypot(self.high - self.value, self.luck)

    def after(self, times_as_long: float) -> "Estimate":
        """As a longer run would have it: what is chance shrinks with the square root of the length."""
        share = 1 / math.sqrt(times_as_long)
        low, high = self.value - (self.value - self.low) * share, self.value + (self.high - self.value) * share
        return msgspec.structs.replace(self, low=low, high=high)


class Difference(msgspec.Struct, frozen=True):
    """B less A. Times in milliseconds, rates per second, shares from 0 to 1."""

    absolute: float
    low: float
    high: float
    """The interval of the difference: chance within the two runs."""
    relative: float | None
    """As a share of A; None if A is 0."""
    verdict: Verdict
    is_beyond_noise: bool
    """Beyond chance, beyond what runs differ by anyway and beyond the generator's lag, whatever counts as same."""
    at_least: float = 0.0
    """What of the difference is left after all of that; 0 within noise."""
    need: Need | None = None
    """None: it is known."""
    times_as_long: float | None = None
    """How many times as long the runs would have to be, where length is what they need."""


# How a run scattered.


def noise_of(slices: Sequence[TimeSlice], times: Histogram) -> Noise | None:
    """From the slices of a run and the response times of all its steps; None for a run too short to tell."""
    blocks = blocks_of([part for part in slices if part.width_s > 0])
    if len(blocks) < FEWEST_BLOCKS:
        return None
    middles, tails = [
        [time_within(block, time_of) for block in blocks]
        for time_of in (lambda part: part.p50_ms, lambda part: part.p99_ms)
    ]
    middle_ms, middle_error = error_of_times(middles)
    tail_ms, tail_error = error_of_times(tails)
    tail_drift = drift_of(parts_of(tails))
    return Noise(
        blocks=len(blocks),
        middle=effect_of_times(middle_ms, times, 50),
        tail=effect_of_times(tail_ms, times, 99),
        failures=effect_of_failures(blocks),
        # Where steps of different length meet at the median it jumps between them. A tail does not, and a true drift
        # of the median shows in the tail too.
        mean_error=(min(middle_error, tail_error) + tail_error) / 2,
        # The last block is cut short by the end of the run.
        rate_error=error_of_rate(blocks[:-1]),
        middle_drift=min(drift_of(parts_of(middles)), tail_drift),
        tail_drift=tail_drift,
        rate_drift=drift_of(parts_of([rate_within(block) for block in blocks[:-1]])),
    )


def blocks_of(slices: Sequence[TimeSlice]) -> list[list[TimeSlice]]:
    """Neighbouring slices in blocks of about equal time. A slice is never cut, so wide ones stand alone."""
    length_s = sum(part.width_s for part in slices) / BLOCKS_WANTED
    blocks: list[list[TimeSlice]] = []
    room_s = 0.0
    for part in slices:
        # Half a slice of tolerance: sums of tenths are not exact.
        if room_s < part.width_s / 2:
            blocks.append([])
            room_s = length_s
        blocks[-1].append(part)
        room_s -= part.width_s
    return blocks


def parts_of(blocks: Sequence[Weighed]) -> list[Weighed]:
    """The means of as many parts as `PARTS`, each of as many neighbouring blocks."""
    ends = [number * len(blocks) // PARTS for number in range(PARTS + 1)]
    return [mean_of_blocks(blocks[start:end]) for start, end in zip(ends, ends[1:], strict=False)]


def mean_of_blocks(blocks: Sequence[Weighed]) -> Weighed:
    whole = sum(block.weight for block in blocks)
    return Weighed(sum(block.value * block.weight for block in blocks) / whole if whole else 0.0, whole)


def drift_of(parts: Sequence[Weighed]) -> float:
    values = [part.value for part in parts if part.weight]
    if len(values) < 2 or not any(values):
        return 0.0
    return stdev(values) / fmean(values)


def time_within(block: Sequence[TimeSlice], time_of: Callable[[TimeSlice], float | None]) -> Weighed:
    """The mean of the times of slices, by their requests."""
    # An answer may fall into a slice in which no request is counted.
    known = [Weighed(time_ms, part.requests or 1) for part in block if (time_ms := time_of(part)) is not None]
    return mean_of_blocks(known)


def rate_within(block: Sequence[TimeSlice]) -> Weighed:
    """Requests per second, by the seconds."""
    width_s = total(block, lambda part: part.width_s)
    return Weighed(total(block, lambda part: part.requests) / width_s, width_s)


def error_of_times(blocks: Sequence[Weighed]) -> tuple[float, float]:
    """The standard error of their mean in milliseconds, and as a share of it; 0 if too few are known."""
    known = [block for block in blocks if block.weight]
    mean_ms = mean_of_blocks(known).value
    if len(known) < FEWEST_BLOCKS or not mean_ms:
        return 0.0, 0.0
    error_ms = error_of_mean(known)
    return error_ms, error_ms / mean_ms


def effect_of_times(error_ms: float, times: Histogram, percent: float) -> float:
    if not times.count:
        return 1.0
    low_us, high_us = ranks_around(times, percent, times.count, deviations=1.0)
    independent_ms = (high_us - low_us) / 2000
    # A histogram cannot tell an error below its own resolution: 1 part in 1024, and a microsecond.
    finest_ms = max(times.percentile(percent) / 1024, 1) / 1000
    return max(1.0, (error_ms / max(independent_ms, finest_ms)) ** 2)


def effect_of_failures(blocks: Sequence[Sequence[TimeSlice]]) -> float:
    counts = [(total(block, lambda part: part.failed), total(block, lambda part: part.requests)) for block in blocks]
    counts = [(failed, requests) for failed, requests in counts if requests]
    failed, requests = sum(failed for failed, _ in counts), sum(requests for _, requests in counts)
    if len(counts) < FEWEST_BLOCKS or not 0 < failed < requests:
        return 1.0
    found = error_of_mean([Weighed(failed / requests, requests) for failed, requests in counts])
    share = failed / requests
    return max(1.0, found**2 * requests / (share * (1 - share)))


def error_of_rate(blocks: Sequence[Sequence[TimeSlice]]) -> float:
    rates = [rate_within(block) for block in blocks]
    per_s = mean_of_blocks(rates).value
    return error_of_mean(rates) / per_s if per_s else 0.0


def total(block: Sequence[TimeSlice], number_of: Callable[[TimeSlice], float]) -> float:
    return float(sum(number_of(part) for part in block))


def error_of_mean(blocks: Sequence[Weighed]) -> float:
    """The standard error of a weighted mean of neighbours: the more they are alike, the less each of them tells."""
    count, mean = len(blocks), mean_of_blocks(blocks)
    apart = [block.value - mean.value for block in blocks]
    squares = sum((block.weight * part) ** 2 for block, part in zip(blocks, apart, strict=True))
    if not squares:
        return 0.0
    together = sum(one * other for one, other in zip(apart, apart[1:], strict=False)) / sum(part**2 for part in apart)
    correlation = min(max(together, 0.0), MOST_CORRELATION)
    return math.sqrt(squares * count / (count - 1) * (1 + correlation) / (1 - correlation)) / mean.weight


# Estimates.


def quantile(rows: int, blocks: int) -> float:
    """How many standard errors each side of an interval reaches, for so many rows and blocks: Student's t."""
    z = NormalDist().inv_cdf(1 - (1 - LEVEL) / 2 / max(rows, 1))
    freedom = blocks - 1
    # Abramowitz and Stegun 26.7.5.
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


def percentile_of(times: Histogram, percent: float, noise: Noise, lag_ms: float, rows: int) -> Estimate | None:
    """In milliseconds, from microseconds. None where less than one value lies above the percentile.

    `lag_ms` is how late the generator's own timers were at that percentile.
    """
    if times.count * (1 - percent / 100) < 1:
        return None
    low, high = ranks_around(times, percent, times.count / noise.at(percent), quantile(rows, noise.blocks))
    depth = min(max((percent - 50) / 49, 0.0), 1.0)
    # Between what holds for the median and for p99.
    spread, drift = (
        (1 - depth) * middle + depth * tail
        for middle, tail in ((RUN_SPREAD, RUN_SPREAD_TAIL), (noise.middle_drift, noise.tail_drift))
    )
    return time_estimate(times.percentile(percent) / 1000, low / 1000, high / 1000, spread, drift, lag_ms)


def mean_of(times: Histogram, noise: Noise, lag_ms: float, rows: int) -> Estimate | None:
    """In milliseconds, from microseconds."""
    if times.count < 2:
        return None
    error = math.hypot(times.stdev / math.sqrt(times.count), times.mean * noise.mean_error)
    half = quantile(rows, noise.blocks) * error
    drift = (noise.middle_drift + noise.tail_drift) / 2
    low, high = (times.mean - half) / 1000, (times.mean + half) / 1000
    return time_estimate(times.mean / 1000, low, high, RUN_SPREAD, drift, lag_ms)


def share_of(part: int, whole: int, noise: Noise, rows: int) -> Estimate | None:
    """Wilson's interval of a share, which is right also near none and all."""
    if not whole:
        return None
    share, count, reach = part / whole, whole / noise.failures, quantile(rows, noise.blocks)
    middle = (share + reach**2 / (2 * count)) / (1 + reach**2 / count)
    half = reach / (1 + reach**2 / count) * math.sqrt(share * (1 - share) / count + reach**2 / (4 * count**2))
    return Estimate(share, min(max(middle - half, 0.0), share), max(min(middle + half, 1.0), share))


def rate_of(per_s: float, noise: Noise, lag_share: float, rows: int) -> Estimate:
    """`lag_share` is the part of every response that the generator's own lag may have taken from the rate."""
    half = per_s * math.hypot(quantile(rows, noise.blocks) * noise.rate_error, ONE_ROW * noise.rate_drift)
    luck = ONE_ROW * per_s * RUN_SPREAD
    return Estimate(per_s, max(0.0, per_s - half), per_s + half, luck, more=ENDS_LATE * lag_share * per_s)


def time_estimate(
    value_ms: float, low_ms: float, high_ms: float, spread: float, drift: float, lag_ms: float
) -> Estimate:
    # All rows of a run share its luck, so neither drift nor spread needs a correction for their number.
    drift_ms = ONE_ROW * value_ms * drift
    return Estimate(
        value_ms,
        max(0.0, value_ms - math.hypot(value_ms - low_ms, drift_ms)),
        value_ms + math.hypot(high_ms - value_ms, drift_ms),
        luck=ONE_ROW * math.hypot(value_ms * spread, RUN_SPREAD_MS),
        # Lag can only have made a time longer.
        less=ENDS_LATE * lag_ms,
    )


def ranks_around(times: Histogram, percent: float, count: float, deviations: float) -> tuple[int, int]:
    """The values at the ranks so many standard deviations below and above that of the percentile."""
    share = percent / 100
    half = 100 * deviations * math.sqrt(share * (1 - share) / count)
    value = times.percentile(percent)
    low, high = times.percentile(max(percent - half, 0.0)), times.percentile(min(percent + half, 100.0))
    # At 0 percent a histogram answers with the lowest value of a counter, else with the highest.
    return min(low, value), high


# Differences.


def difference(a: Estimate, b: Estimate, unit: Unit, within: float = WITHIN) -> Difference:
    """B less A. Within that share of A they are the same."""
    low, high = interval(a, b, unit)
    verdict = verdict_of(a, b, unit, within)
    need, longer = need_of(a, b, unit, within) if verdict == "cannot tell" else (None, None)
    apart = b.value - a.value
    is_beyond = is_beyond_noise(a, b, unit, within)
    return Difference(
        absolute=apart,
        low=low,
        high=high,
        relative=apart / a.value if a.value else None,
        verdict=verdict,
        is_beyond_noise=is_beyond,
        at_least=math.copysign(abs(apart) - reach_to_none(a, b), apart) if is_beyond else 0.0,
        need=need,
        times_as_long=longer,
    )


def need_of(a: Estimate, b: Estimate, unit: Unit, within: float) -> tuple[Need, float | None]:
    """What would tell, and for longer runs how many times as long."""
    for times in LONGER:
        if verdict_of(a.after(times), b.after(times), unit, within) != "cannot tell":
            return "length", float(times)
    prompt_a, prompt_b = (msgspec.structs.replace(side.after(LONGER[-1]), less=0.0, more=0.0) for side in (a, b))
    is_lag = verdict_of(prompt_a, prompt_b, unit, within) != "cannot tell"
    return "no lag" if is_lag else "repeats", None


def interval(a: Estimate, b: Estimate, unit: Unit) -> tuple[float, float]:
    """Put together from those of A and B (Newcombe's method), which need not be symmetric.

    Beside the A that was measured, no B is below nothing, and no share above all.
    """
    apart = b.value - a.value
    low = apart - math.hypot(b.value - b.low, a.high - a.value)
    high = apart + math.hypot(b.high - b.value, a.value - a.low)
    return max(low, -a.value), min(high, 1 - a.value) if unit == "share" else high


def verdict_of(a: Estimate, b: Estimate, unit: Unit, within: float) -> Verdict:
    low, high = interval(a, b, unit)
    # A hundred more failures of a million requests are within a point, and no user would call them none.
    is_beyond, is_share = is_beyond_noise(a, b, unit, within), unit == "share"
    if max(-low, high) <= tolerance_of(a.value, unit, within) and not (is_share and is_beyond):
        return "same"
    return WORDS[unit][b.value > a.value] if is_beyond else "cannot tell"


def is_beyond_noise(a: Estimate, b: Estimate, unit: Unit, within: float) -> bool:
    apart = abs(b.value - a.value)
    return apart > reach_to_none(a, b) and apart >= least_that_matters(a.value, unit, within)


def reach_to_none(a: Estimate, b: Estimate) -> float:
    """How far the interval of the difference, with everything that may have caused it, reaches towards none."""
    return math.hypot(b.down, a.up) if b.value > a.value else math.hypot(b.up, a.down)


def tolerance_of(value: float, unit: Unit, within: float) -> float:
    """The greatest difference from A that is called none."""
    if unit == "share":
        return max(within * SHARE_WITHIN, LEAST_SHARE)
    return max(value * within, LEAST_MS) if unit == "time" else value * within


def least_that_matters(value: float, unit: Unit, within: float) -> float:
    if unit == "share":
        return LEAST_SHARE
    least = value * min(LEAST_SHARE_OF_VALUE, within)
    return max(least, LEAST_MS) if unit == "time" else least


def answer_of(verdict: Verdict) -> Answer:
    return verdict if verdict == "same" or verdict == "cannot tell" else "different"


def times_as_long_for(count: int, percent: float) -> float | None:
    """How many times as long a run with so many values must be to know a percentile at all; None: it had none."""
    return max(TAIL_WANTED / (count * (1 - percent / 100)), 1.0) if count else None
