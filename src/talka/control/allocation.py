"""How many cores each workflow gets, out of the whole pool, by priority."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from talka.wire.records import JobOrder, WorkflowOrder
from talka.work.dsl import Priority
from talka.work.graph import ancestors_of

RANK: Final[dict[Priority, int]] = {"exclusive": 0, "high": 1, "normal": 2, "auto": 3, "low": 4}
WIDTH_LIMIT: Final = 64
"""Workflows of a job beyond which all of them count as running at the same time: their order costs too much to look at."""


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


def allocate(claims: Sequence[Claim], *, total: int, free: int, granted: int | None = None) -> dict[str, int]:
    """Cores for those claims that can start with `free` cores; the others wait.

    Higher priorities come first and are not overtaken by lower ones. Each that fits gets the fewest it may have; what
    is left goes round, highest priority first, until everybody has the most it may have or can use. An exclusive
    workflow waits for the whole pool and then runs alone, also where it cannot use all of it. Of a pool that others use
    as well, a job has only `granted` cores: no workflow waits for more than those.
    """
    found: dict[str, int] = {}
    most: dict[str, int] = {}
    left = free
    own = total if granted is None else granted
    for claim in sorted(claims, key=lambda claim: RANK[claim.priority]):
        fewest, limit = core_range(claim.priority, total) if claim.is_test else (1, 1)
        runs_alone = claim.is_test and claim.priority == "exclusive"
        fewest = min(fewest, own)
        wanted = min(fewest, claim.useful)
        if (fewest if runs_alone else wanted) > left or not wanted:
            break
        found[claim.name] = wanted
        most[claim.name] = min(limit, claim.useful)
        left -= wanted
        if runs_alone:
            break
    while left and (growing := [name for name in found if found[name] < most[name]]):
        for name in growing[:left]:
            found[name] += 1
            left -= 1
    return found


def demand(order: JobOrder, total: int) -> tuple[int, int]:
    """The fewest cores with which a job starts, and the most it may have, of a pool of `total`.

    Workflows that can run at the same time add up. A job that asks for a number of cores gets no other, except where
    it cannot use so many. The fewest exceed the pool only when more are asked for than it has, or when it has none:
    then the job waits for the pool to grow.
    """
    pool = max(total, 1)
    before = _ancestors(order.workflows)
    asked = order.cores
    if asked > total and (useful := _widest(before, {one.name: _useful(one, asked) for one in order.workflows})) > pool:
        wanted = min(asked, useful)
        return wanted, wanted
    ranges = {one.name: _range(one, pool) for one in order.workflows}
    most = min(pool, _widest(before, {name: most for name, (_, most) in ranges.items()}))
    if asked:
        wanted = min(asked, most)
        return wanted, wanted
    return min(pool, _widest(before, {name: least for name, (least, _) in ranges.items()})), most


def _useful(workflow: WorkflowOrder, cores: int) -> int:
    return workflow.plan.shards_for(cores) if workflow.is_test else 1


def _range(workflow: WorkflowOrder, total: int) -> tuple[int, int]:
    if not workflow.is_test:
        return 1, 1
    least, most = core_range(workflow.priority, total)
    if workflow.priority == "exclusive":
        return least, most
    useful = _useful(workflow, total)
    return min(least, useful), min(most, useful)


def _ancestors(workflows: Sequence[WorkflowOrder]) -> dict[str, set[str]]:
    """For each workflow all it waits for, near and far. Names that nobody has are left out."""
    names = {one.name for one in workflows}
    waits_for = {one.name: [name for name in one.depends_on if name in names] for one in workflows}
    if len(waits_for) > WIDTH_LIMIT:
        return {name: set() for name in waits_for}
    return {name: ancestors_of(name, waits_for) for name in waits_for}


def _widest(before: Mapping[str, Collection[str]], weights: Mapping[str, int]) -> int:
    """The greatest sum of weights over names of which none is before another.

    Dilworth: it is the least number of chains that cover every name as often as its weight says. Each pair of
    neighbours in a chain saves one, and the most that can be saved is a flow from names to names after them.
    Ford and Fulkerson, "Flows in Networks", II.8.
    """
    after: dict[str, list[str]] = {name: [] for name in before}
    for name, earlier in before.items():
        for one in sorted(earlier):
            after[one].append(name)
    room = dict(weights)
    # To each name, how much from which.
    came: dict[str, dict[str, int]] = {name: {} for name in before}

    def push(name: str, amount: int, seen: set[str]) -> int:
        """Send up to `amount` from `name` to later ones with room, moving what others sent there out of the way."""
        for later in after[name]:
            if room[later]:
                sent = min(amount, room[later])
                room[later] -= sent
                came[later][name] = came[later].get(name, 0) + sent
                return sent
        for later in after[name]:
            if later in seen:
                continue
            seen.add(later)
            for other, held in came[later].items():
                sent = push(other, min(amount, held), seen) if held else 0
                if sent:
                    came[later][other] -= sent
                    came[later][name] = came[later].get(name, 0) + sent
                    return sent
        return 0

    left = 0
    for name, weight in weights.items():
        while weight and (sent := push(name, weight, set())):
            weight -= sent
        left += weight
    return left
