"""Which of its cores a load job needs no more, and when it will give back the others.

A job keeps what its workflows that are still to come can use: one that had to ask anew could wait for ever, and its own
values with it. How long it takes is known where its plans have an end in time, and otherwise not guessed.

Decision: docs/decisions/0064-cores-come-back-one-by-one.md.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from talka.control.load.allocation import still_needed
from talka.control.load.load_job import ENDED, LoadJob
from talka.control.load.pausing import held_up
from talka.control.load.shard_group import ShardGroup
from talka.units import SECOND
from talka.wire.jobs import BACK_LIMIT, CoresBack
from talka.wire.orders import JobOrder, WorkflowOrder
from talka.work.lifecycle import TaskState

READY_NS: Final = 15 * SECOND
"""What it takes, at most, to get a workflow ready: bundle, imports, preparations."""
CLOSING_NS: Final = 10 * SECOND
"""From the end of its last iteration until its results are stored, at most."""


class TimeLeft(msgspec.Struct, frozen=True):
    """Of a workflow, a chain of them, or a core that they use."""

    least_ns: int
    likely_ns: int | None
    """None: its plan has no end in time."""
    most_ns: int | None

    def then(self, later: "TimeLeft") -> "TimeLeft":
        return TimeLeft(
            self.least_ns + later.least_ns, _sum(self.likely_ns, later.likely_ns), _sum(self.most_ns, later.most_ns)
        )


NO_TIME: Final = TimeLeft(0, 0, 0)


def latest(times: Iterable[TimeLeft]) -> TimeLeft:
    """Until all are over."""
    whole = NO_TIME
    for one in times:
        whole = TimeLeft(
            max(whole.least_ns, one.least_ns),
            _greater(whole.likely_ns, one.likely_ns),
            _greater(whole.most_ns, one.most_ns),
        )
    return whole


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _greater(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)


def spare_cores(job: LoadJob) -> dict[str, int]:
    """By worker, cores on which nothing runs and that nothing of the job is still to need; of workers with little to do
    for it first."""
    if job.workers is None or job.ended_ns:
        return {}
    used = Counter(place for place, _ in job.used_seats())
    surplus = sum(job.workers.values()) - _needed(job)
    spare: dict[str, int] = {}
    for place, cores in sorted(job.workers.items(), key=lambda item: (used[item[0]], item[0])):
        count = min(surplus, cores - used[place])
        if count > 0:
            spare[place] = count
            surplus -= count
    return spare


def _needed(job: LoadJob) -> int:
    # Also those of attempts that were lost: what takes their place needs as many.
    busy = {(attempt.place, number) for _, _, attempt in job.attempts.values() for number in attempt.busy_seats}
    left = _left(job)
    if any(run.behind_ns and run.state is TaskState.READY for run in left):
        return job.cores  # it goes on with as many as it had
    if all(run.is_under_way for run in left):
        return len(busy)
    running = {run.spec.name: _cores_of(run) for run in left if run.is_under_way}
    return max(len(busy), still_needed([run.spec for run in left], running, job.pool))


def _left(job: LoadJob) -> list[ShardGroup]:
    """Workflows that have not ended, without those that a person has to resume first."""
    waiting = held_up(job.workflows)
    return [run for name, run in job.workflows.items() if run.state not in ENDED and name not in waiting]


def _cores_of(run: ShardGroup) -> int:
    return sum(len(attempt.busy_seats) for _, _, attempt in run.attempts())


def cores_back(job: LoadJob, now: int) -> tuple[CoresBack, ...]:
    """Of the cores it uses or keeps, when it gives them back: those together that come at the same time."""
    left = _left(job)
    times = {run.spec.name: _time_left(run, job, now) for run in left}
    running = [run for run in left if run.is_under_way]
    if len(running) < len(left):
        whole = _until_all_are_over([run.spec for run in left], times)
        first = min((times[run.spec.name].least_ns for run in running), default=0)
        return (_told(job.cores, msgspec.structs.replace(whole, least_ns=first)),)
    seats: dict[tuple[str, int], TimeLeft] = {}
    for run, _, attempt in job.attempts.values():
        for number in attempt.busy_seats:
            seat = (attempt.place, number)
            seats[seat] = latest([seats.get(seat, NO_TIME), times[run.spec.name]])
    alike = Counter(seats.values())
    if len(alike) > BACK_LIMIT:
        whole = latest(alike)
        return (_told(len(seats), msgspec.structs.replace(whole, least_ns=min(one.least_ns for one in alike))),)
    return tuple(_told(count, one) for one, count in alike.items())


def time_of(order: JobOrder) -> TimeLeft:
    """How long a job takes that has not begun; its `least_ns`: until the first of its workflows has ended."""
    times = {one.name: _whole_time(one, order.settings.grace_ns) for one in order.workflows}
    whole = _until_all_are_over(order.workflows, times)
    return msgspec.structs.replace(whole, least_ns=min(one.least_ns for one in times.values()))


def _until_all_are_over(workflows: Sequence[WorkflowOrder], times: Mapping[str, TimeLeft]) -> TimeLeft:
    """Each begins when those it depends on have ended, an exclusive one when no other runs."""
    if any(one.is_test and one.priority == "exclusive" for one in workflows):
        whole = NO_TIME
        for time in times.values():
            whole = whole.then(time)
        return whole
    ends: dict[str, TimeLeft] = {}
    for one in workflows:  # they come after those they depend on
        ends[one.name] = latest(ends[name] for name in one.depends_on if name in ends).then(times[one.name])
    return latest(ends.values())


def _whole_time(workflow: WorkflowOrder, grace_ns: int) -> TimeLeft:
    plan = workflow.plan
    if plan.length_ns is None:
        return TimeLeft(0, None, None)
    if plan.iterations_per_vu is not None or plan.shared_iterations is not None:
        return TimeLeft(0, None, READY_NS + plan.length_ns + grace_ns + CLOSING_NS)
    return TimeLeft(plan.length_ns, plan.length_ns, READY_NS + plan.length_ns + grace_ns + CLOSING_NS)


def _time_left(run: ShardGroup, job: LoadJob, now: int) -> TimeLeft:
    grace_ns = job.spec.settings.grace_ns
    whole = _whole_time(run.spec, grace_ns)
    if run.stopped_ns:
        return TimeLeft(0, 0, max(0, run.stopped_ns + grace_ns + CLOSING_NS - now))
    if not run.origin_ns:
        return whole
    since_ns = run.elapsed_ns(now)
    most_ns = None if whole.most_ns is None else max(0, whole.most_ns - READY_NS - since_ns)
    return TimeLeft(
        max(0, whole.least_ns - since_ns),
        None if whole.likely_ns is None else max(0, whole.likely_ns - since_ns),
        most_ns,
    )


def _told(cores: int, time: TimeLeft) -> CoresBack:
    likely_ns = -1 if time.likely_ns is None else time.likely_ns
    return CoresBack(cores, time.least_ns, likely_ns, -1 if time.most_ns is None else time.most_ns)
