"""How many cores each workflow gets, out of the whole pool, by priority."""

from collections.abc import Sequence
from typing import Final

import msgspec

from talka.work.dsl import Priority

RANK: Final[dict[Priority, int]] = {"exclusive": 0, "high": 1, "normal": 2, "auto": 3, "low": 4}


class Claim(msgspec.Struct, frozen=True):
    """A workflow that could start now. `useful` is the number of cores beyond which a shard would be empty."""

    name: str
    priority: Priority
    is_test: bool
    useful: int


def core_range(priority: Priority, total: int) -> tuple[int, int]:
    """The fewest and the most cores a priority may have of a pool of `total`."""
    quarter, three_quarters = -(-total // 4), -(-3 * total // 4)
    match priority:
        case "low":
            return 1, quarter
        case "normal":
            return quarter, three_quarters
        case "high":
            return three_quarters, total
        case "exclusive":
            return total, total
        case "auto":  # pragma: no branch - the type checker sees that no priority is left
            return 1, total


def allocate(claims: Sequence[Claim], *, total: int, free: int) -> dict[str, int]:
    """Cores for those claims that can start with `free` cores; the others wait.

    Higher priorities come first and are not overtaken by lower ones. Each that fits gets the fewest it may have; what
    is left goes round, highest priority first, until everybody has the most it may have or can use. An exclusive
    workflow waits for the whole pool and then runs alone, also where it cannot use all of it.
    """
    granted: dict[str, int] = {}
    most: dict[str, int] = {}
    left = free
    for claim in sorted(claims, key=lambda claim: RANK[claim.priority]):
        fewest, limit = core_range(claim.priority, total) if claim.is_test else (1, 1)
        runs_alone = claim.is_test and claim.priority == "exclusive"
        wanted = min(fewest, claim.useful)
        if (fewest if runs_alone else wanted) > left:
            break
        granted[claim.name] = wanted
        most[claim.name] = min(limit, claim.useful)
        left -= wanted
        if runs_alone:
            break
    while left and (growing := [name for name in granted if granted[name] < most[name]]):
        for name in growing[:left]:
            granted[name] += 1
            left -= 1
    return granted
