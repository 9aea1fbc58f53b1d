"""Take each safeguard away and see what breaks: proof that it is needed, and that the checkers would tell.

Each has a wrong variant in `variants.py`, of which neither the code nor the checkers know. Each row keeps a seed that
catches the removal; `make test` replays it both ways.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from talka.errors import Invalid
from talka.work.lifecycle import IllegalMove
from tests.sim import (
    certified,
    dags,
    elections,
    health,
    jobs,
    late,
    leases,
    membership_figures,
    overload,
    paused,
    queues,
    searching,
    skew,
    stalls,
    zones,
)
from tests.sim.variants import without

DOCUMENT: Final = Path(__file__).parent.parent.parent / "docs" / "ablation.md"
MARK: Final = "<!-- measured -->"
CHUNK: Final = 20
NO_END: Final = "no end"
ILLEGAL_MOVE: Final = "illegal move"
"""A manager decided on a state that cannot follow: it ends before anything of it is written."""
CRASHED: Final = "crash"
"""A node ended by what a hostile member told it."""
"""What is violated when a node asks for its next tick at once, again and again."""


class Row(msgspec.Struct, frozen=True):
    """One removal."""

    name: str
    lacking: tuple[str, ...]
    """Which safeguards are taken away."""
    invariants: tuple[str, ...]
    """Which invariants the removal breaks; any of them catches it."""
    seed: int
    """Caught by this one."""
    budget: int = 400
    """Seeds run for the table."""
    drift_limit_ppm: int = elections.DRIFT_LIMIT_PPM
    is_focused: bool = False
    """Only crashes for moments and cuts (see `elections.run`)."""
    is_mixed: bool = False
    """Voters count a leader's lease differently."""
    is_of_jobs: bool = False
    """Histories of jobs instead of elections."""
    is_of_dags: bool = False
    """Of dag jobs."""
    has_fans: bool = False
    """Of dag jobs whose tasks are fanned out."""
    has_late: bool = False
    """Of dag jobs whose tasks take longer than their timeouts."""
    has_code: bool = False
    """Of dag jobs of which some bring their handlers along."""
    has_forger: bool = False
    """Of jobs, and somebody who has read a worker's secret gives out tasks."""
    has_blocked: bool = False
    """Of jobs, and event loops of core processes are blocked."""
    has_hostile: bool = False
    """With a hostile member that has a worker's certificate."""
    is_certified: bool = False
    """Of sealed members with certificates, somebody who has the secret alone, and a manager that lies."""
    is_of_leases: bool = False
    """Of jobs whose managers were told different leases, which are changed meanwhile."""
    is_of_overload: bool = False
    """Of jobs whose managers have too much to do now and then."""
    is_of_stalls: bool = False
    """Of dag jobs whose manager stands still while a worker dies."""
    is_of_queues: bool = False
    """Of jobs of all sizes that queue for few cores."""
    is_of_skew: bool = False
    """Of hosts of two releases."""
    is_of_searching: bool = False
    """Of workers that find managers again."""
    is_of_zones: bool = False
    """Of jobs on managers and workers in several zones."""
    is_of_late: bool = False
    """Of jobs that run longer than they may, whose manager falls meanwhile."""
    is_of_pauses: bool = False
    """Of jobs that are put aside and resumed, while managers and workers fall."""
    is_of_health: bool = False
    """Of jobs, and managers or workers that do badly, fall silent together, or get on with nothing."""


def _jobs(name: str, safeguard: str, invariants: tuple[str, ...], seed: int, *, has_hostile: bool = False) -> Row:
    return Row(name, (safeguard,), invariants, seed, 200, is_of_jobs=True, has_hostile=has_hostile)


def _dags(name: str, safeguard: str, invariants: tuple[str, ...], seed: int, *, has_hostile: bool = False) -> Row:
    return Row(name, (safeguard,), invariants, seed, 200, is_of_dags=True, has_hostile=has_hostile)


def _blocked(name: str, safeguard: str, seed: int) -> Row:
    return Row(name, (safeguard,), ("T1", "I14"), seed, 200, is_of_jobs=True, has_blocked=True)


def _code(name: str, safeguard: str, seed: int) -> Row:
    return Row(name, (safeguard,), ("D13",), seed, 200, is_of_dags=True, has_code=True)


def _certified(name: str, lacking: tuple[str, ...], invariants: tuple[str, ...], seed: int, budget: int = 200) -> Row:
    return Row(name, lacking, invariants, seed, budget, is_certified=True)


def _leases(name: str, safeguard: str, invariants: tuple[str, ...], seed: int) -> Row:
    return Row(name, (safeguard,), invariants, seed, 200, is_of_leases=True)


def _health(name: str, safeguard: str, invariants: tuple[str, ...], seed: int) -> Row:
    return Row(name, (safeguard,), invariants, seed, 120, is_of_health=True)


def _skew(name: str, safeguard: str, seed: int) -> Row:
    return Row(name, (safeguard,), ("V1",), seed, 400, is_of_skew=True)


def _overload(name: str, safeguard: str, seed: int) -> Row:
    return Row(name, (safeguard,), ("shed",), seed, 100, is_of_overload=True)


INTACT: Final = (
    Row("nothing", (), (), 0, 2000),
    Row("nothing, only crashes and cuts", (), (), 0, 800, is_focused=True),
    Row("nothing, voters of different leases", (), (), 0, 400, is_mixed=True),
    Row("nothing, jobs", (), (), 0, 600, is_of_jobs=True),
    Row("nothing, jobs and a forger", (), (), 0, 200, is_of_jobs=True, has_forger=True),
    Row("nothing, jobs and cores that are blocked", (), (), 0, 200, is_of_jobs=True, has_blocked=True),
    Row("nothing, dag jobs", (), (), 0, 600, is_of_dags=True),
    Row("nothing, dag jobs with tasks that are fanned out", (), (), 0, 200, is_of_dags=True, has_fans=True),
    Row("nothing, dag jobs whose tasks are late", (), (), 0, 200, is_of_dags=True, has_late=True),
    Row("nothing, dag jobs that bring their handlers", (), (), 0, 200, is_of_dags=True, has_code=True),
    Row("nothing, jobs with a hostile member", (), (), 0, 200, is_of_jobs=True, has_hostile=True),
    Row("nothing, dag jobs with a hostile member", (), (), 0, 200, is_of_dags=True, has_hostile=True),
    _certified("nothing, with certificates and somebody who has the secret", (), (), 0, 400),
    Row("nothing, different leases", (), (), 0, 200, is_of_leases=True),
    Row("nothing, managers with too much to do", (), (), 0, 100, is_of_overload=True),
    Row("nothing, a worker that dies in a stall of the manager", (), (), 0, 200, is_of_stalls=True),
    Row("nothing, jobs of all sizes that queue", (), (), 0, 200, is_of_queues=True),
    Row("nothing, hosts of two releases", (), (), 0, 800, is_of_skew=True),
    Row("nothing, workers that find managers again", (), (), 0, 100, is_of_searching=True),
    Row("nothing, managers and workers in several zones", (), (), 0, 40, is_of_zones=True),
    Row("nothing, jobs that run longer than they may", (), (), 0, 200, is_of_late=True),
    Row("nothing, jobs that are put aside and resumed", (), (), 0, 200, is_of_pauses=True),
    Row("nothing, managers and workers that do badly", (), (), 0, 120, is_of_health=True),
)


# Two keep them out: what only managers may say, and what admission asks of keys.
KEYS_FROM_ANYBODY: Final = ("ring_from_managers", "role_table")

ROWS: Final = (
    Row(
        "term and vote not on disk, no wait after a restart",
        ("persist_vote", "vote_hold_down"),
        ("I1", "I2", "I8"),
        6,
    ),
    Row("term and vote not on disk (`persist_vote`)", ("persist_vote",), ("I1", "I2", "I8"), 6),
    Row(
        "votes at once after a restart (`vote_hold_down`), only crashes and cuts",
        ("vote_hold_down",),
        ("I4", "I4 key"),
        39,
        is_focused=True,
    ),
    Row("majority of those seen alive (`configured_majority`)", ("configured_majority",), ("I1", "I4", "I8"), 1),
    Row("lease counted from the answer (`lease_from_send`)", ("lease_from_send",), ("I4", "I4 key"), 11),
    Row("no margin for drift (`drift_margin`)", ("drift_margin",), ("I4", "I4 key"), 24, 800),
    Row("clocks off by 15 % where 2 % are allowed for", (), ("I4", "I4 key"), 16, 800, 150_000),
    Row(
        "voters of different leases hear each other (`one_leader_lease`)",
        ("one_leader_lease",),
        ("I4", "I4 key"),
        68,
        is_mixed=True,
    ),
    Row("receivers do not check tokens (`fencing`)", ("fencing",), ("I3",), 4),
    Row("no pre-vote (`pre_vote`)", ("pre_vote",), ("I14",), 1),
    Row("no check-quorum (`check_quorum`)", ("check_quorum",), ("I14",), 44),
    Row("no write-back at take-over (`write_back`)", ("write_back",), ("I8",), 28, 800),
    Row("frames admitted again (`replay_window`)", ("replay_window",), ("I12",), 3),
    _certified("keys from anybody (`ring_from_managers`), and roles not asked", KEYS_FROM_ANYBODY, ("keys",), 1),
    _certified("keys as far ahead as one likes (`ring_jump`)", ("ring_jump",), ("keys",), 1),
    _certified("members are where anybody says (`signed_records`)", ("signed_records",), ("address",), 1),
    _skew("older hosts are told what is newer than they (`agreed_versions`)", "agreed_versions", 1),
    _skew("whoever is not known counts as new (`oldest_presumed`)", "oldest_presumed", 2),
    _skew("older lives hear what newer ones were told (`one_life`)", "one_life", 1),
    _jobs("workers obey managers that were replaced (`worker_fence`)", "worker_fence", ("I3",), 1),
    _jobs("workers go on without a lease (`worker_lease`)", "worker_lease", ("I4 task",), 2),
    _jobs("cores go on while their worker is frozen (`core_deadline`)", "core_deadline", ("I4 task",), 6),
    _jobs("results count as often as they come (`result_key`)", "result_key", ("I6", "I9"), 11),
    _jobs("managers take over without asking (`takeover_barrier`)", "takeover_barrier", ("I4 task",), 1),
    _jobs("workers are told first (`account_first`)", "account_first", ("I4 task", "I6", "I9"), 24),
    _jobs("reports are added up (`cumulative_counters`)", "cumulative_counters", ("I6", "I9"), 0),
    _jobs("submissions have no key (`idempotency_key`)", "idempotency_key", ("one job per key",), 15),
    _jobs("silent workers are given up at once (`correlated_hold`)", "correlated_hold", ("eviction storm",), 10),
    Row(
        "workers run what nobody has signed (`signed_bundles`), with a forger",
        ("signed_bundles",),
        ("signed",),
        1,
        200,
        is_of_jobs=True,
        has_forger=True,
    ),
    _blocked("a core that is blocked is waited for (`silence_deadline`)", "silence_deadline", 1),
    _blocked("a worker with a blocked core is given nothing (`cores_apart`)", "cores_apart", 1),
    _jobs("variables travel open (`sealed_variables`)", "sealed_variables", ("variables",), 2),
    _dags("handlers go on while their worker is frozen (`core_deadline`)", "core_deadline", ("D5", "D6"), 18),
    _jobs("everybody may say everything (`role_table`)", "role_table", ("role",), 1, has_hostile=True),
    _dags("dag jobs: everybody may say everything (`role_table`)", "role_table", ("role",), 2, has_hostile=True),
    _dags("workers tell of each other's attempts (`own_attempts`)", "own_attempts", ("D2", "D4"), 1, has_hostile=True),
    _dags(
        "attempts that were given up bring results (`attempt_fence`)", "attempt_fence", (ILLEGAL_MOVE, "D2", "D4"), 12
    ),
    _leases("managers go by the lease they were told (`one_worker_lease`)", "one_worker_lease", ("I4 task",), 7),
    _overload("what must pass is shed first, statistics last (`class_order`)", "class_order", 1),
    _overload("statistics are taken at every level (`statistics_refused`)", "statistics_refused", 1),
    _overload("what workers say once is refused with their counts (`milestones_pass`)", "milestones_pass", 1),
    _leases("a changed lease counts at once (`longer_lease`)", "longer_lease", ("I4 task",), 26),
    Row(
        "workers that were heard have the grace of others (`heard_lives`)",
        ("heard_lives",),
        ("given up",),
        2,
        200,
        is_of_stalls=True,
    ),
    Row(
        "workers forget where managers are (`remembered_managers`)",
        ("remembered_managers",),
        ("found",),
        10,
        100,
        is_of_searching=True,
    ),
    Row(
        "who does not lead names nobody (`named_managers`)",
        ("named_managers",),
        ("found",),
        3,
        100,
        is_of_searching=True,
    ),
    Row("far managers are asked first (`near_first`)", ("near_first",), ("near",), 6, 40, is_of_zones=True),
    _health(
        "silent managers are given up at once (`correlated_managers`)", "correlated_managers", ("held managers",), 2
    ),
    _health("a job stays with a manager that does nothing about it (`passed_on`)", "passed_on", ("I14",), 3),
    _health("managers that take no work are given jobs (`ready_managers`)", "ready_managers", ("ready managers",), 5),
    _health("workers that are late are given work (`late_workers`)", "late_workers", ("late worker",), 4),
    _health(
        "voters that do badly stand as others do (`unwell_candidates`)", "unwell_candidates", ("unwell leader",), 6
    ),
    Row(
        "more time is forgotten with the manager that gave it (`kept_deadlines`)",
        ("kept_deadlines",),
        ("T2",),
        7,
        200,
        is_of_late=True,
    ),
    Row(
        "what is put aside goes on by itself (`resumed_by_people`)",
        ("resumed_by_people",),
        ("I14",),
        0,
        200,
        is_of_pauses=True,
    ),
    Row(
        "small jobs pass the one that is next whenever they fit (`reservation`)",
        ("reservation",),
        ("no delay",),
        30,
        200,
        is_of_queues=True,
    ),
    _dags(
        "results of tasks count as often as they come (`task_result_key`)", "task_result_key", (ILLEGAL_MOVE, "D2"), 1
    ),
    _dags("limits are forgotten with the manager (`leased_limits`)", "leased_limits", ("D5",), 52),
    _dags("results count whatever store gave the attempt out (`store_life`)", "store_life", ("D9",), 7),
    _dags("workers are given tasks under epochs they obeyed for another (`epoch_floor`)", "epoch_floor", ("D1",), 1),
    Row(
        "neither store, life nor epoch of an attempt is asked for (`store_life`, `epoch_floor`)",
        ("store_life", "epoch_floor"),
        ("D1", "D9"),
        1,
        200,
        is_of_dags=True,
    ),
    _dags("dag jobs: told before it is durable (`commit_first`)", "commit_first", ("D1", "D3", "D5", "D6"), 2),
    _dags("a manager writes to a store that another took (`store_fence`)", "store_fence", ("D1", "D2", "D7"), 8),
    Row(
        "elements of a task are written apart (`whole_fan_out`)",
        ("whole_fan_out",),
        ("D12",),
        1,
        200,
        is_of_dags=True,
        has_fans=True,
    ),
    Row(
        "a manager that is started anew forgets what it has given (`kept_times`)",
        ("kept_times",),
        ("D14",),
        8,
        200,
        is_of_dags=True,
        has_late=True,
    ),
    _code("code is given to anybody (`code_takers`)", "code_takers", 1),
    _code("bundles share the cores of a worker's own files (`cores_of_code`)", "cores_of_code", 1),
    _dags("tasks that a manager read are not counted by handler (`restored_counts`)", "restored_counts", ("D16",), 1),
    _dags("tasks whose time has come are counted as delayed (`delays_end`)", "delays_end", ("D16",), 1),
    _dags("schedules of a clock that was ahead stay (`schedule_mending`)", "schedule_mending", ("D10",), 14),
    _dags("ended jobs are dropped by the clock of the day (`aged_retention`)", "aged_retention", ("D1", "D11"), 14),
)


class Found(msgspec.Struct):
    seeds: int = 0
    caught: int = 0
    first: int = 0
    by: dict[str, int] = {}


def violated(seed: int, row: Row) -> str:
    """The invariant this seed shows violated, empty when none is."""
    with without(*row.lacking):
        return _violated(seed, row)


def _violated(seed: int, row: Row) -> str:
    if row.is_of_dags:
        story = dags.Story(_plan_of_dags(seed, row), None)
        world = story.world
        try:
            story.run()
        except IllegalMove:
            return world.violations[0].invariant if world.violations else ILLEGAL_MOVE
        except Invalid:
            return NO_END
        except Exception:
            # Neither nodes nor checkers can bear what a hostile member wrote that got in.
            if not row.has_hostile:
                raise
            if not world.violations:
                return CRASHED
    elif row.is_certified:
        world = certified.run(seed)
    elif row.is_of_skew:
        world = skew.run(seed)
    elif row.is_of_health:
        world = health.run(seed)
    elif row.is_of_stalls:
        world = stalls.run(seed)
    elif row.is_of_searching:
        world = searching.run(seed)
    elif row.is_of_zones:
        world = zones.run(seed)
    elif row.is_of_late:
        world = late.run(seed)
    elif row.is_of_pauses:
        world = paused.run(seed)
    elif row.is_of_queues:
        world = queues.run(seed)
    elif row.is_of_overload:
        world = overload.run(seed)
    elif row.is_of_leases:
        world = leases.run(seed)
    elif row.is_of_jobs:
        world = jobs.run(seed, has_forger=row.has_forger, has_hostile=row.has_hostile, has_blocked=row.has_blocked)
    else:
        world = elections.run(
            seed, drift_limit_ppm=row.drift_limit_ppm, is_focused=row.is_focused, is_mixed=row.is_mixed
        )
    return world.violations[0].invariant if world.violations else ""


def _plan_of_dags(seed: int, row: Row) -> dags.Plan:
    return dags.plan_of(
        seed, has_hostile=row.has_hostile, has_fans=row.has_fans, has_code=row.has_code, has_late=row.has_late
    )


def some(first: int, count: int, row: Row) -> list[tuple[int, str]]:
    return [(seed, violated(seed, row)) for seed in range(first, first + count)]


def measure(pool: ProcessPoolExecutor, row: Row) -> Found:
    found = Found(by={})
    firsts = range(1, row.budget + 1, CHUNK)
    chunks = [pool.submit(some, first, CHUNK, row) for first in firsts]
    for chunk in chunks:
        for seed, invariant in chunk.result():
            found.seeds += 1
            if invariant:
                found.caught += 1
                found.first = found.first or seed
                found.by[invariant] = found.by.get(invariant, 0) + 1
    return found


def table() -> list[str]:
    lines = ["| taken away | seeds | caught | first seed | violated |", "|---|---|---|---|---|"]
    print("\n".join(lines))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for row in (*INTACT, *ROWS):
            found = measure(pool, row)
            by = ", ".join(f"{invariant} {count}" for invariant, count in sorted(found.by.items())) or "–"
            lines.append(f"| {row.name} | {found.seeds:,} | {found.caught} | {found.first or '–'} | {by} |")
            print(lines[-1], flush=True)
    return lines


def main(is_written: bool) -> int:
    lines = table()
    rates = membership_figures.rate_table()
    print("\n".join(["", *rates]))
    if is_written:
        head, _, _ = DOCUMENT.read_text().partition(MARK)
        DOCUMENT.write_text("\n".join([head + MARK, "", *lines, "", *rates, ""]))
    return 0
