"""Whether the generator kept up, by one rule for the live view and for the result.

A core is *late* when its starts lag behind the plan, at p99, by more than a millisecond and by more than a twentieth of
the response time's median: less cannot be told from the numbers themselves. Late and busy, it was *saturated*: the
target may be faster than the numbers. Late and idle, it was *disturbed*: the machine, or code of the test that blocks,
held it up. Where nothing is due at an instant (the closed model) there is no lag to look at, and a core is saturated
when it had no CPU left.
"""

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

from talka.stats.histogram import merged
from talka.stats.tally import GeneratorTally, StepTally
from talka.units import SECOND

Verdict: TypeAlias = Literal["on time", "saturated", "disturbed"]
BUSY_CPU: Final = 0.85
"""A core from this share of one CPU on has no room to be on time."""
BUSY_FROM_NS: Final = SECOND
"""Shorter runs are mostly opening of connections: they say nothing about how busy a core would be."""
IDLE_CPU: Final = 0.2
"""Below this share a late event loop was not late by work of its own."""
LATE_US: Final = 1_000
LATE_SHARE: Final = 20
"""Of the response time's median, one part in so many."""
EXPLAINED: Final = 2
"""An event loop that woke up late by at least one part in so many of the start lag explains it."""


def cpu_of(health: GeneratorTally) -> float:
    return health.cpu_ns / health.wall_ns if health.wall_ns else 0.0


def late_from_us(median_us: int) -> int:
    return max(LATE_US, median_us // LATE_SHARE)


def median_of(steps: Iterable[StepTally]) -> int:
    """Of all response times, in microseconds; 0 without one."""
    return merged(step.response_time for step in steps).percentile(50)


def verdict_of(health: GeneratorTally, start_lag_us: int | None, late_from_us: int) -> Verdict:
    """On one core. `start_lag_us`: at p99; None where nothing was due at an instant."""
    cpu = cpu_of(health)
    is_busy = cpu >= BUSY_CPU and health.wall_ns >= BUSY_FROM_NS
    if start_lag_us is None:
        return "saturated" if is_busy else "on time"
    if start_lag_us <= late_from_us:
        return "on time"
    loop_lag_us = health.loop_lag.percentile(99) if health.loop_lag.count else 0
    is_own_work = cpu >= IDLE_CPU and loop_lag_us * EXPLAINED >= start_lag_us
    return "saturated" if is_busy or is_own_work else "disturbed"


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    found = set(verdicts)
    if "saturated" in found:
        return "saturated"
    return "disturbed" if "disturbed" in found else "on time"
