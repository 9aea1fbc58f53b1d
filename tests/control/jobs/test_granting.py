"""Who starts on which cores, who may pass, and cores that come back: what the leader decides of them.

Properties run whole queues: whoever passes delays nobody as long as plans are over when they say, and everybody starts
in the end also where they are not.
"""

from random import Random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.jobs.granting import Granting
from talka.control.jobs.queue import JobQueue
from talka.control.jobs.workers.fleet import Fleet
from talka.control.jobs.workers.sharing import NoTasks, SharingLimits
from talka.control.load.cores_back import time_of
from talka.units import HOUR, SECOND
from talka.wire.entries import Grant, JobEntry
from talka.wire.jobs import Beat, CoresBack, SpareCores, WorkerFacts
from talka.wire.orders import BundleFacts, JobOrder
from talka.wire.shards import Settings
from talka.work.lifecycle import JobState
from talka.work.shapes import ConstantVUs, IterationsPerVU, LoadShape
from tests.control.conftest import workflow_of
from tests.sim.variants import without

GRACE_NS = 2 * SECOND
quick = settings(deadline=None, derandomize=True, max_examples=200)


def entry_of(job: str, cores: int, shape: LoadShape, *, priority: int = 5, number: int = 1) -> JobEntry:
    order = JobOrder(
        name=job,
        bundle=BundleFacts("0" * 64, 0, b"", "shop.py"),
        workflows=(workflow_of("Shop", shape=shape, priority="auto"),),
        settings=Settings(GRACE_NS),
        cores=cores,
        priority=priority,
    )
    return JobEntry(job=job, order=order, state=JobState.QUEUED, number=number)


class Counter:
    """A leader's desk with one worker, and jobs that end when the test says."""

    def __init__(self, cores: int = 8, *, passes: bool = True) -> None:
        self.fleet, self.queue = Fleet(), JobQueue(timeout_ns=1000 * HOUR)
        self.granting = Granting(self.fleet, self.queue, NoTasks(), Random(1), SharingLimits())
        self.entries: dict[str, JobEntry] = {}
        self.started: dict[str, int] = {}
        self.ahead: dict[str, str] = {}
        self.now = 0
        self.passes = passes
        self.beat(cores)

    def beat(self, cores: int, name: str = "w1", **facts: Any) -> None:
        self.fleet.beat(self.now, name, 1, "#1", Beat(self.now, WorkerFacts(cores, folder=1, **facts)))

    def submit(self, entry: JobEntry) -> None:
        self.entries[entry.job] = entry
        self.queue.push(self.now, entry.job, entry.order.priority, entry.number)

    def add(self, job: str, cores: int, shape: LoadShape | None = None, **more: Any) -> None:
        self.submit(entry_of(job, cores, shape or ConstantVUs(64, "10s"), number=len(self.entries) + 1, **more))

    def start(self, *, at_s: float = 0) -> list[str]:
        """Those that start now."""
        self.now = max(self.now, round(at_s * SECOND))
        self.granting.look(self.now)
        found = []
        while (begun := self.granting.next(self.now, self.entries)) is not None:
            job = begun.entry.job
            self.entries[job] = msgspec.structs.replace(begun.entry, state=JobState.RUNNING)
            self.started[job] = self.now
            if begun.ahead_of:
                self.ahead[job] = begun.ahead_of
            found.append(job)
        return found

    def end(self, job: str) -> None:
        self.granting.ended(self.now, job)
        self.entries[job] = msgspec.structs.replace(self.entries[job], state=JobState.COMPLETED)

    def waits_for(self, job: str) -> str:
        position = self.queue.position(job)
        assert position is not None
        starts = self.granting.expected_starts(self.now, self.entries)
        return self.granting.waits_for(self.now, self.entries[job], position, starts.get(job))


# -- passing


def test_a_job_that_surely_ends_in_time_passes_one_that_waits_for_others() -> None:
    desk = Counter(8)
    desk.add("running", 6, ConstantVUs(64, "10m"))
    desk.add("large", 8)
    desk.add("small", 2, ConstantVUs(64, "60s"))

    assert desk.start() == ["running", "small"]
    assert desk.ahead == {"small": "large"}
    assert desk.granting.counts() == {"jobs_passed_total": 1, "cores_given_back_total": 0}
    assert desk.waits_for("large") == "waits for 8 cores: 0 of 8 are free; expected to start in 10m"


def test_nobody_passes_who_would_still_run_or_whose_end_is_not_known() -> None:
    desk = Counter(8)
    desk.add("running", 6, ConstantVUs(64, "60s"))
    desk.add("large", 8)
    desk.add("long", 2, ConstantVUs(64, "50s"))
    desk.add("counted", 2, IterationsPerVU(64, 1))
    desk.add("fitting", 2, ConstantVUs(64, "10s"))

    assert desk.start() == ["running", "fitting"]


def test_nobody_passes_while_when_the_next_job_starts_is_not_known() -> None:
    desk = Counter(8)
    desk.add("running", 6, IterationsPerVU(64, 1))
    desk.add("large", 8)
    desk.add("small", 1, ConstantVUs(64, "1s"))

    assert desk.start() == ["running"]
    reason = "when it starts cannot be told: when job running ends is not known"
    assert desk.waits_for("large") == f"waits for 8 cores: 2 of 8 are free; {reason}"
    assert desk.waits_for("small") == f"waits behind 1 other job; {reason}"


def test_nobody_passes_a_job_that_wants_more_than_the_pool_has() -> None:
    desk = Counter(8)
    desk.add("running", 6, ConstantVUs(64, "10m"))
    desk.add("large", 9)
    desk.add("small", 1, ConstantVUs(64, "1s"))

    assert desk.start() == ["running"]
    assert desk.waits_for("large") == "waits for 9 cores: the pool has 8"


def test_a_core_that_may_be_back_at_any_moment_is_kept_for_the_next_job() -> None:
    desk = Counter(6)
    desk.beat(2, "w2")
    desk.add("running", 6, ConstantVUs(64, "10m"))
    assert desk.start() == ["running"]
    desk.now = 4 * SECOND
    desk.beat(6)
    desk.fleet.tick(desk.now)
    assert desk.fleet.total() == 6, "nothing is heard of w2"
    desk.beat(1, "w3")
    desk.add("large", 3)
    desk.add("small", 1, ConstantVUs(64, "1s"))

    assert desk.start() == [], "with w2 the next job could start"

    desk.fleet.drain("w2", "an operator")
    assert desk.start() == ["small"]


def test_who_passes_takes_no_more_than_is_free_and_waits_where_there_is_not_enough() -> None:
    desk = Counter(8)
    desk.add("running", 5, ConstantVUs(64, "10m"))
    desk.add("large", 8)
    desk.add("too large", 4, ConstantVUs(64, "1s"))
    desk.add("small", 0, ConstantVUs(64, "1s"))

    assert desk.start() == ["running", "small"]
    assert desk.entries["small"].granted == 3


def test_where_all_that_are_there_are_left_alone_nobody_passes() -> None:
    desk = Counter(8)
    desk.fleet.drain("w1")
    desk.add("large", 8)
    desk.add("small", 1, ConstantVUs(64, "1s"))

    assert desk.start() == []


@without("reservation")
def test_the_reservation_is_what_keeps_the_next_job_from_being_passed_for_ever() -> None:
    desk = Counter(8)
    desk.add("running", 6, ConstantVUs(64, "60s"))
    desk.add("large", 8)
    desk.add("long", 2, ConstantVUs(64, "10m"))

    assert desk.start() == ["running", "long"]


def test_what_is_known_of_jobs_that_left_the_queue_is_forgotten() -> None:
    desk = Counter(1)
    for number in range(5):
        desk.add(f"j{number}", 4)
    desk.start()
    desk.waits_for("j4")
    for number in range(4):
        desk.queue.remove(f"j{number}")

    desk.start()

    assert list(desk.granting._needs) == ["j4"]


# -- giving back


def running(desk: Counter, *grants: Grant) -> JobEntry:
    entry = entry_of("job", sum(grant.cores for grant in grants), ConstantVUs(64, "10s"))
    for grant in grants:
        if not grant.lost:
            desk.fleet.reserve("job", grant.worker, grant.cores, grant.boot)
    granted = sum(grant.cores for grant in grants)
    return msgspec.structs.replace(entry, grants=grants, granted=granted, state=JobState.RUNNING)


def test_cores_that_were_given_back_are_free_once_that_is_on_disk() -> None:
    desk = Counter(8)
    entry = running(desk, Grant("w1", 1, 3), Grant("w1", 1, 2))

    less = desk.granting.spared(entry, [SpareCores("w1", 1, 5, 2)])

    assert [grant.cores for grant in less.grants] == [2, 0]
    assert less.granted == 2
    assert desk.fleet.total_free() == 3, "not yet"
    assert desk.granting.freed(less, less) == 3
    assert desk.fleet.total_free() == 6
    assert desk.granting.freed(less, less) == 0
    assert desk.granting.counts()["cores_given_back_total"] == 3


def test_a_job_may_give_back_all_it_has_of_a_worker() -> None:
    desk = Counter(8)
    desk.beat(2, "w2")
    entry = running(desk, Grant("w1", 1, 3), Grant("w2", 1, 2))

    less = desk.granting.spared(entry, [SpareCores("w2", 1, 2, 0)])

    assert less.grants == (Grant("w1", 1, 3), Grant("w2", 1, 0))
    assert desk.granting.freed(less, less) == 2
    assert desk.fleet.reserved() == {"job": 3}
    desk.fleet.left(0, "w2", 1)
    assert desk.granting.freed(less, less) == 0


def test_a_job_that_gives_back_its_last_core_has_none() -> None:
    desk = Counter(8)
    entry = running(desk, Grant("w1", 1, 3))

    less = desk.granting.spared(entry, [SpareCores("w1", 1, 3, 0)])

    assert desk.granting.freed(less, less) == 3
    assert desk.fleet.reserved() == {}


def test_nothing_is_given_back_of_grants_that_have_changed_since() -> None:
    desk = Counter(8)
    lost = msgspec.structs.replace(Grant("w1", 9, 2), lost="it left")
    entry = running(desk, Grant("w1", 1, 3), lost)

    for spare in (SpareCores("w1", 1, 4, 1), SpareCores("w1", 9, 2, 0), SpareCores("w2", 1, 3, 0)):
        assert desk.granting.spared(entry, [spare]) is entry
    assert desk.granting.spared(entry, [SpareCores("w1", 1, 3, 7)]) is entry, "nobody gives back less than nothing"


def test_cores_that_were_granted_again_meanwhile_are_not_free() -> None:
    desk = Counter(8)
    entry = running(desk, Grant("w1", 1, 3))
    less = desk.granting.spared(entry, [SpareCores("w1", 1, 3, 1)])
    later = msgspec.structs.replace(less, grants=(*less.grants, Grant("w1", 1, 1)))

    assert desk.granting.freed(less, later) == 1


def test_when_its_owner_tells_that_cores_come_back_sooner_the_next_job_is_expected_then() -> None:
    desk = Counter(4)
    desk.add("running", 4, IterationsPerVU(64, 1))
    desk.add("next", 2)
    desk.start()

    desk.granting.outlook.told(0, "running", [CoresBack(2, 5 * SECOND, 5 * SECOND, 9 * SECOND), CoresBack(2, 0)])

    assert desk.waits_for("next") == "waits for 2 cores: 0 of 4 are free; expected to start in 5 s"


# -- whole queues

JOBS = st.lists(
    st.tuples(
        st.integers(1, 6),  # cores
        st.sampled_from((5, 20, 60, 100, 200, None)),  # seconds of its plan; None: it has no end in time
        st.integers(0, 150),  # when it comes
        st.sampled_from((5, 5, 5, 8)),  # priority
        st.floats(0, 1),  # where between its shortest and its longest it ends
    ),
    min_size=2,
    max_size=12,
)


def played(jobs: list[tuple[int, int | None, int, int, float]], *, passes: bool, holds: bool = True) -> Counter:
    """The whole queue; with `holds`, every plan is over when its job said when it began."""
    desk = Counter(6)
    ends: dict[str, int] = {}
    comes = {at * SECOND for _, _, at, _, _ in jobs}
    while comes or ends:
        desk.now = min([*comes, *ends.values()])
        comes.discard(desk.now)
        desk.beat(6)
        for job in [job for job, end in ends.items() if desk.now >= end]:
            desk.end(job)
            del ends[job]
        for number, (cores, length_s, at, priority, _) in enumerate(jobs):
            if at * SECOND == desk.now and f"j{number}" not in desk.entries:
                shape = IterationsPerVU(64, 1) if length_s is None else ConstantVUs(64, f"{length_s}s")
                desk.submit(entry_of(f"j{number}", cores, shape, priority=priority, number=number + 1))
        if not passes:
            desk.granting._is_over_by = lambda *_: False  # type: ignore[method-assign]
        for job in desk.start():
            number = int(job.removeprefix("j"))
            ends[job] = desk.now + taken(desk.entries[job], jobs[number], holds=holds)
    return desk


def taken(entry: JobEntry, job: tuple[int, int | None, int, int, float], *, holds: bool) -> int:
    """How long it takes in the end."""
    time, part = time_of(entry.order), job[4]
    if not holds or time.most_ns is None:
        return round(part * 300) * SECOND + SECOND
    return time.least_ns + round(part * (time.most_ns - time.least_ns) / SECOND) * SECOND


@given(jobs=JOBS)
@quick
def test_nobody_starts_later_because_others_passed_as_long_as_plans_are_over_when_they_say(
    jobs: list[tuple[int, int | None, int, int, float]],
) -> None:
    # All of one priority: who comes later with a higher one finds cores taken, by whoever runs.
    jobs = [(cores, length_s, at, 5, part) for cores, length_s, at, _, part in sorted(jobs, key=lambda job: job[2])]

    plain, passed = played(jobs, passes=False), played(jobs, passes=True)

    assert not plain.ahead and len(plain.started) == len(passed.started) == len(jobs)
    assert all(passed.started[job] <= at for job, at in plain.started.items())


@given(jobs=JOBS)
@quick
def test_everybody_starts_in_the_end_also_where_plans_take_longer_or_shorter_than_they_say(
    jobs: list[tuple[int, int | None, int, int, float]],
) -> None:
    desk = played(jobs, passes=True, holds=False)

    assert len(desk.started) == len(jobs)
    assert desk.fleet.total_unreserved() >= 0


@without("reservation")
def test_without_a_reservation_the_property_shows_a_job_that_is_delayed() -> None:
    jobs: list[tuple[int, int | None, int, int, float]] = [(4, 20, 0, 5, 0.0), (6, 5, 1, 5, 0.0), (2, 200, 2, 5, 0.0)]

    plain, passed = played(jobs, passes=False), played(jobs, passes=True)

    assert passed.started["j1"] > plain.started["j1"]
