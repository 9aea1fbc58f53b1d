"""The only reader of time.

`monotonic_ns` is CLOCK_MONOTONIC: one clock for every process of a machine, so instants may be sent between them.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime

from talka.units import MILLISECOND, SECOND

monotonic_ns: Callable[[], int] = time.monotonic_ns
cpu_ns: Callable[[], int] = time.process_time_ns
realtime_ns: Callable[[], int] = time.time_ns
"""Nanoseconds since 1970. It may be set and jump: only for telling people, and for ages of what the kernel stamped."""


def boottime_ns() -> int:
    """Goes on while the machine sleeps, so that a lease does not outlive a closed lid."""
    return time.clock_gettime_ns(_BOOTTIME)


def both_clocks() -> tuple[int, int]:
    """Boot time and the clock of the day, read at one instant: a process that is stopped in between reads again."""
    while True:
        before = boottime_ns()
        wall_ns = realtime_ns()
        if boottime_ns() - before < READ_NS:
            return before, wall_ns


READ_NS = 50 * MILLISECOND

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS: its monotonic clock is what there is


def utc_now() -> datetime:
    return datetime.now(UTC)


def sleep_until(instant_ns: int) -> None:
    """Stand still until this instant of the monotonic clock, to a tenth of a millisecond. For waits that are short."""
    left_ns = instant_ns - monotonic_ns()
    if left_ns > 0:
        time.sleep(left_ns / SECOND)
