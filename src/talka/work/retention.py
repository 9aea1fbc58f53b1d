"""How long what has ended is kept: up to an age and a number, those that completed apart from all others."""

import re
from typing import Final

import msgspec

from talka.errors import Invalid
from talka.units import HOUR, NEVER
from talka.work.durations import format_duration, parse_duration, shown

DAY_NS: Final = 24 * HOUR
LONGEST_NS: Final = 3650 * DAY_NS
"""Ten years."""
MOST_KEPT: Final = 10_000_000
NUMBER: Final = re.compile(r"[0-9]{1,20}")


class BadKeep(Invalid):
    """What was written does not say how long something is kept."""


class Keep(msgspec.Struct, frozen=True):
    """What is older, or beyond so many newer ones, may be dropped."""

    age_ns: int
    """NEVER: whatever its age."""
    count: int

    def __str__(self) -> str:
        return f"{self.count}" if self.age_ns == NEVER else f"{format_duration(self.age_ns)},{self.count}"


WEEK: Final = Keep(7 * DAY_NS, 10_000)


class Retention(msgspec.Struct, frozen=True):
    completed: Keep
    failed: Keep
    """Of whatever ended otherwise: failed, partial, cancelled or out of time."""

    def of(self, *, is_completed: bool) -> Keep:
        return self.completed if is_completed else self.failed


class ManagerKeeps(msgspec.Struct, frozen=True):
    """What a manager keeps of what has ended."""

    jobs: Retention = Retention(WEEK, WEEK)
    output: Retention = Retention(WEEK, WEEK)
    """What attempts of dag jobs wrote and logged; it goes with its job at the latest."""
    blobs: Keep = WEEK
    """Bundles and results that nothing names any more."""


MANAGER_KEEPS: Final = ManagerKeeps()


def parse_keep(value: object, default: Keep, *, what: str) -> Keep:
    """`7d,1000`: both, `7d` or `1000`: the other one stays as it is by default. `what` names the value in an error."""
    parts = str(value).split(",") if isinstance(value, str | int) and not isinstance(value, bool) else []
    ages = [part.strip() for part in parts if not NUMBER.fullmatch(part.strip())]
    counts = [part.strip() for part in parts if NUMBER.fullmatch(part.strip())]
    if not parts or len(ages) > 1 or len(counts) > 1 or "" in ages:
        raise BadKeep(
            f"{what} = {shown(value)} does not say how long to keep: write an age, a number or both, such as 7d, "
            "1000 or 7d,1000"
        )
    age_ns, count = default.age_ns, default.count
    if ages:
        age_ns = parse_duration(ages[0], what=what, longest_ns=LONGEST_NS)
    if counts:
        count = int(counts[0])
    if age_ns < 1 or not 1 <= count <= MOST_KEPT:
        raise BadKeep(
            f"{what} = {shown(value)} is not possible: write an age above 0, and a number from 1 to {MOST_KEPT:,}"
        )
    return Keep(age_ns, count)
