"""How many cores each workflow gets, out of the whole pool, by priority.

Decision: docs/decisions/0020-cores-are-granted-per-job.md.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from talka.wire.orders import JobOrder, WorkflowOrder
from talka.work.dsl import Priority
from talka.work.graph import ancestors_of
from talka.work.load import RATE_PER_S
from talka.work.specs import WorkflowSpec

RANK: Final[dict[Priority, int]] = {"exclusive": 0, "high": 1, "normal": 2, "auto": 3, "low": 4}
WIDTH_LIMIT: Final = 64
"""Workflows of a job beyond which all of them count as running at the same time: their order costs too much to look
at."""


Seat: TypeAlias = tuple[str, int]
"""One core that a job may use: the worker it is on (empty: this machine), and its number there from 0."""
UNEVEN: Final = 1.1
"""Where one core would carry this much more than the mean, its heaviest workflow is split further."""


class CoreClaim(msgspec.Struct, frozen=True):
    """A workflow that could start now. `useful` is the number of cores beyond which a shard would be empty."""

    name: str
    priority: Priority
    is_test: bool
    useful: int
    weight: float = 1.0
    """The load to expect: arrivals a second at the peak of its plan, or virtual users. Used only to pack shards."""

    @property
    def runs_alone(self) -> bool:
        return self.is_test and self.priority == "exclusive"

    def range_of(self, total: int, own: int) -> tuple[int, int]:
        """The fewest and the most cores it may have of a pool of `total`, of which its job has `own`."""
        fewest, most = core_range(self.priority, total) if self.is_test else (1, 1)
        return min(fewest, own, self.useful), min(most, self.useful)


def claim_of(workflow: WorkflowOrder | WorkflowSpec, cores: int) -> CoreClaim:
    plan = workflow.plan
    rates = [max(part.start, part.end) / RATE_PER_S for part in plan.segments] if plan.model == "open" else []
    weight = max(rates, default=float(plan.vus))
    return CoreClaim(workflow.name, workflow.priority, workflow.is_test, plan.shards_for(cores), weight)


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


def allocate(
    claims: Sequence[CoreClaim], loads: Mapping[Seat, float | None], *, total: int
) -> dict[str, tuple[Seat, ...]]:
    """Cores for every claim that may start now: a shard of it runs on each.

    `loads` has the cores of the job and what each carries; None: nothing runs on it. Workflows of a job that may run at
    the same time do. While there are empty cores for all of them each gets its own: the fewest that its priority may
    have of a pool of `total`, highest priority first, and what is left goes round until everybody has the most it may
    have or can use. Where there are fewer empty cores than claims, cores are shared, as evenly as their loads allow.
    Only an exclusive workflow waits, for all cores of the job, and nobody starts before it or beside it.
    """
    ordered = sorted(claims, key=lambda claim: (not claim.runs_alone, RANK[claim.priority]))
    empty = [seat for seat, load in loads.items() if load is None]
    if not ordered or not loads:
        return {}
    if ordered[0].runs_alone:
        wanted = min(ordered[0].useful, len(loads))
        return {ordered[0].name: by_room(empty)[:wanted]} if len(empty) == len(loads) else {}
    if len(ordered) > len(empty):
        return _packed(ordered, loads, total)
    found: dict[str, tuple[Seat, ...]] = {}
    for name, cores in _dealt(ordered, total, len(loads), len(empty)).items():
        found[name] = by_room(empty)[:cores]
        empty = [seat for seat in empty if seat not in found[name]]
    return found


def planned(claims: Sequence[CoreClaim], waiting: Collection[str], cores: int) -> dict[str, tuple[Seat, ...]]:
    """Cores of each workflow of a job that has not run: side by side for those that start at once, alone for those in
    `waiting`. Of those that start at once, one that runs alone makes the others wait: they get none."""
    empty: dict[Seat, float | None] = {("", number): None for number in range(cores)}
    found = {claim.name: () for claim in claims} | allocate(
        [c for c in claims if c.name not in waiting], empty, total=cores
    )
    for claim in claims:
        if claim.name in waiting:
            found |= allocate([claim], empty, total=cores)
    return found


def sharing(seats: Mapping[str, Collection[Seat]], waiting: Collection[str]) -> dict[str, list[str]]:
    """For each workflow those that have a core in common with it, of those that start at once."""
    return {
        name: [
            other
            for other, theirs in seats.items()
            if other != name and not {name, other} & set(waiting) and not set(own).isdisjoint(theirs)
        ]
        for name, own in seats.items()
    }


def _dealt(ordered: Sequence[CoreClaim], total: int, own: int, free: int) -> dict[str, int]:
    """How many cores each gets of at least as many as there are claims."""
    ranges = {claim.name: claim.range_of(total, own) for claim in ordered}
    found = dict.fromkeys(ranges, 1)
    for bound in (0, 1):
        while (left := free - sum(found.values())) and (growing := [n for n in found if found[n] < ranges[n][bound]]):
            for name in growing[:left]:
                found[name] += 1
    return found


def by_room(empty: Sequence[Seat]) -> tuple[Seat, ...]:
    """Those of workers that have the most first: fewer workers are fewer that can be lost."""
    room = Counter(place for place, _ in empty)
    return tuple(sorted(empty, key=lambda seat: (-room[seat[0]], seat[0])))


def _packed(
    ordered: Sequence[CoreClaim], loads: Mapping[Seat, float | None], total: int
) -> dict[str, tuple[Seat, ...]]:
    """One shard each, the heaviest first to the core that carries least. What then is uneven is split further."""
    most = {claim.name: min(claim.range_of(total, len(loads))[1], len(loads)) for claim in ordered}
    parts = dict.fromkeys(most, 1)
    mean = (sum(load or 0.0 for load in loads.values()) + sum(claim.weight for claim in ordered)) / len(loads)
    while True:
        found, carried = _pack(ordered, parts, loads)
        fullest = max(carried, key=lambda seat: carried[seat])
        there = [claim for claim in ordered if fullest in found[claim.name] and parts[claim.name] < most[claim.name]]
        if carried[fullest] <= UNEVEN * mean or not there:
            return {name: tuple(sorted(seats, key=list(loads).index)) for name, seats in found.items()}
        parts[max(there, key=lambda claim: claim.weight / parts[claim.name]).name] += 1


def _pack(
    ordered: Sequence[CoreClaim], parts: Mapping[str, int], loads: Mapping[Seat, float | None]
) -> tuple[dict[str, list[Seat]], dict[Seat, float]]:
    """No core gets two shards of one workflow."""
    carried = {seat: load or 0.0 for seat, load in loads.items()}
    sitting = {seat: int(load is not None) for seat, load in loads.items()}
    found: dict[str, list[Seat]] = {claim.name: [] for claim in ordered}
    for claim in sorted(ordered, key=lambda claim: -claim.weight / parts[claim.name]):
        for _ in range(parts[claim.name]):
            others = [seat for seat in carried if seat not in found[claim.name]]
            seat = min(others, key=lambda seat: (carried[seat], sitting[seat]))
            found[claim.name].append(seat)
            carried[seat] += claim.weight / parts[claim.name]
            sitting[seat] += 1
    return found, carried


def demand(order: JobOrder, total: int) -> tuple[int, int]:
    """The fewest cores with which a job starts, and the most it may have, of a pool of `total`.

    Workflows that can run at the same time add up, to the whole pool at most: where that is less than they would have,
    they share cores. A job that asks for a number of cores gets no other, except where
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


def still_needed(workflows: Sequence[WorkflowOrder], running: Mapping[str, int], total: int) -> int:
    """The most cores that workflows which have not ended can use at the same time. `running` are those under way, and
    the cores they use; each of the others can have what its priority allows of a pool of `total`."""
    weights = {one.name: running.get(one.name, _range(one, max(total, 1))[1]) for one in workflows}
    return _widest(_ancestors(workflows), weights)


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
