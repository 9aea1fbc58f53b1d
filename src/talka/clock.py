"""The only reader of time.

`monotonic_ns` is CLOCK_MONOTONIC: one clock for every process of a machine, so instants may be sent between them.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime

SECOND = 1_000_000_000
MILLISECOND = 1_000_000
MICROSECOND = 1_000

monotonic_ns: Callable[[], int] = time.monotonic_ns
cpu_ns: Callable[[], int] = time.process_time_ns


def utc_now() -> datetime:
    return datetime.now(UTC)
