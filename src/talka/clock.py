"""The only reader of time, and of time zones.

`monotonic_ns` is CLOCK_MONOTONIC: one clock for every process of a machine, so instants may be sent between them.
"""

import time
import zoneinfo
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, tzinfo
from difflib import get_close_matches
from typing import Final

from talka.errors import Invalid
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


class BadZone(Invalid):
    """There is no time zone of this name, or none at all on this machine."""


def time_zone(name: str, known: Callable[[], Iterable[str]] = zoneinfo.available_timezones) -> tzinfo | None:
    """The time zone of this name, as this machine knows it; None where it is empty: UTC. `known`: all there are, for
    whoever has written another."""
    if not name:
        return None
    try:
        if not name.startswith(NO_ZONES):
            return zoneinfo.ZoneInfo(name)
    except (OSError, ValueError, zoneinfo.ZoneInfoNotFoundError):
        pass
    names = sorted(known())
    if not names:
        raise BadZone(
            f"timezone {name!r}: this machine has no database of time zones: install tzdata, as a package of its "
            "system or with pip install tzdata"
        )
    lower = {one.lower(): one for one in names}
    close = [lower[one] for one in get_close_matches(name.lower(), lower, n=1)]
    if not close:  # people know the city
        close = [one for one in names if one.rpartition("/")[2].lower() == name.lower().replace(" ", "_")]
    hint = f" (did you mean {close[0]}?)" if close else ": write one such as Europe/Berlin"
    raise BadZone(f"timezone: there is no time zone {name[:64]!r}{hint}")


NO_ZONES: Final = ("posix", "right/", "localtime", "Factory")
"""Files beside those of zones: another machine has others, or counts leap seconds in them."""


def sleep_until(instant_ns: int) -> None:
    """Stand still until this instant of the monotonic clock, to a tenth of a millisecond. For waits that are short."""
    left_ns = instant_ns - monotonic_ns()
    if left_ns > 0:
        time.sleep(left_ns / SECOND)
