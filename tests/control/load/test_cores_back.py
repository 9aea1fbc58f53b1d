"""Which cores a load job needs no more, and when it gives back those that it keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.load.cores_back import CLOSING_NS, READY_NS, TimeLeft, cores_back, spare_cores, time_of
from talka.control.load.load_job import JobSpec
from talka.stats.tally import Tally
from talka.units import SECOND
from talka.wire.jobs import BACK_LIMIT, CoresBack
from talka.wire.orders import BundleFacts, JobOrder
from talka.wire.shards import FileSource, Settings, Totals
from talka.work.lifecycle import TaskState
from talka.work.shapes import ConstantVUs, IterationsPerVU, SharedIterations
from tests.control.conftest import Driven, workflow_of

JobOf = Callable[..., Driven]
GRACE_NS = 2 * SECOND
quick = settings(deadline=None, derandomize=True, max_examples=60)


def ended(driven: Driven, attempt: int, *places: int) -> None:
    """The worker of this attempt tells that these of its shards have ended."""
    driven.sequences[attempt] = sequence = driven.sequences.get(attempt, 0) + 1
    totals = Totals(sequence, Tally(), [], vus=0, started_at_ns=0, ended=places)
    driven.take(driven.job.on_message(driven.now, attempt, totals))


def time_text(time: TimeLeft) -> tuple[Any, ...]:
    return tuple(None if ns is None else ns / SECOND for ns in msgspec.structs.astuple(time))


def order_of(**workflows: dict[str, Any]) -> JobOrder:
    orders = tuple(workflow_of(name, **more) for name, more in workflows.items())
    return JobOrder("shop", BundleFacts("0" * 64, 0, b"", "shop.py"), orders, Settings(GRACE_NS))


# -- cores that are not needed


def test_a_job_whose_shards_all_run_has_none_to_spare(job_of: JobOf) -> None:
    driven = job_of({"Shop": {"shape": ConstantVUs(8, "10s")}}, places={"w1": 2, "w2": 1})
    driven.run()

    assert spare_cores(driven.job) == {}


def test_the_core_of_a_shard_that_has_ended_is_spare_while_others_of_it_run(job_of: JobOf) -> None:
    driven = job_of({"Shop": {"shape": IterationsPerVU(8, 10)}}, places={"w1": 3, "w2": 1})
    driven.run()
    (one,) = driven.job.attempts_at("w1")

    ended(driven, one, 1)
    assert spare_cores(driven.job) == {"w1": 1}
    ended(driven, one, 0)
    ended(driven, one, 0, 7)

    assert spare_cores(driven.job) == {"w1": 2}, "what was told once holds, and there is no eighth"
    (two,) = driven.job.attempts_at("w2")
    driven.result(two)
    assert spare_cores(driven.job) == {"w1": 2, "w2": 1}


def test_cores_are_kept_for_a_workflow_that_is_still_to_come(job_of: JobOf) -> None:
    later = {"shape": ConstantVUs(3, "10s"), "after": {"First"}}
    driven = job_of({"First": {"shape": ConstantVUs(4, "10s")}, "Then": later}, places={"w1": 3, "w2": 1})
    driven.run()

    driven.result(*driven.job.attempts_at("w1"))

    assert spare_cores(driven.job) == {"w1": 1}, "it can use three"
    driven.job.workers = {"w1": 2, "w2": 1}
    driven.result(*driven.job.attempts_at("w2"))
    assert driven.states == {"First": "completed", "Then": "assigned"}
    assert sum(len(attempt.seats) for _, _, attempt in driven.job.attempts.values()) == 3


def test_cores_are_kept_for_what_takes_the_place_of_a_lost_shard(job_of: JobOf) -> None:
    driven = job_of(
        {"A": {"shape": ConstantVUs(1, "10s")}, "B": {"shape": ConstantVUs(1, "20s")}}, places={"w1": 1, "w2": 1}
    )
    driven.run()
    (lost,) = driven.job.attempts_at("w2")
    (over,) = driven.job.attempts_at("w1")
    driven.job.gone = [lost]
    driven.job.workers = {"w1": 1}

    driven.result(over)

    assert spare_cores(driven.job) == {}
    assert driven.job.room_besides(lost) == 1


def test_a_core_that_workflows_share_is_needed_until_the_last_of_them_has_ended(job_of: JobOf) -> None:
    shapes = {name: {"shape": ConstantVUs(1, "10s")} for name in "ABCD"}
    driven = job_of(shapes, places={"w1": 2})
    driven.run()
    first, second = (
        [core for core, (_, _, attempt) in driven.job.attempts.items() if attempt.seats == (seat,)] for seat in (0, 1)
    )

    driven.result(first[0])
    assert spare_cores(driven.job) == {}
    driven.result(first[1])

    assert spare_cores(driven.job) == {"w1": 1}
    driven.job.workers = {"w1": 1}
    assert list(driven.job._sitting()) == [("w1", 1)], "the core that is used is the one that is left"
    assert spare_cores(driven.job) == {}
    assert len(second) == 2


def test_neither_a_job_on_this_machine_nor_one_that_has_ended_gives_anything_back(job_of: JobOf) -> None:
    here = job_of({"Shop": {}}, cores=4)
    here.run()
    over = job_of({"Shop": {"shape": ConstantVUs(1, "10s")}}, places={"w1": 2})
    over.run()
    over.result(*over.alive)

    assert spare_cores(here.job) == spare_cores(over.job) == {}


def test_workers_with_little_to_do_for_the_job_are_given_back_first(job_of: JobOf) -> None:
    driven = job_of(
        {
            "A": {"shape": ConstantVUs(6, "10s"), "priority": "high"},
            "B": {"shape": ConstantVUs(2, "9s"), "after": {"A"}},
        },
        cores=6,
        places={"w1": 3, "w2": 3},
    )
    driven.run()

    ended(driven, driven.job.attempts_at("w1")[0], 0)
    ended(driven, driven.job.attempts_at("w2")[0], 0, 1)

    assert spare_cores(driven.job) == {"w2": 2, "w1": 1}


@given(
    shards=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    then=st.integers(0, 12),
    ends=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12),
)
@quick
def test_a_job_never_gives_back_a_core_that_it_uses_or_is_to_need(
    shards: list[int], then: int, ends: list[tuple[int, int]]
) -> None:
    from tests.control.conftest import Driven

    places = {f"w{number}": cores for number, cores in enumerate(shards)}
    workflows = [workflow_of("First", shape=IterationsPerVU(sum(shards), 10))]
    if then:
        workflows.append(workflow_of("Then", shape=ConstantVUs(then, "10s"), after={"First"}))
    driven = Driven(JobSpec("job", FileSource("shop.py"), tuple(workflows), 1, Settings(GRACE_NS)))
    driven.job.workers = dict(places)
    driven.job.pool = sum(shards)
    driven.run()
    for place, number in ends:
        for attempt in driven.job.attempts_at(f"w{place}"):
            shard = driven.job.attempts[attempt][1]
            left = [one for one in shard.left if one != number]
            if left and number in shard.left:
                ended(driven, attempt, number)
            elif not left:
                driven.result(attempt)
        spare = spare_cores(driven.job)
        workers = driven.job.workers
        assert workers is not None
        driven.job.workers = {name: cores - spare.get(name, 0) for name, cores in workers.items()}
        used = [place for place, _ in driven.job.used_seats()]
        assert all(used.count(name) <= cores for name, cores in driven.job.workers.items())
        still = then if driven.states["First"] == "running" else 0
        assert driven.job.ended_ns or driven.job.cores >= min(sum(shards), max(len(used), still))
        assert driven.job.ended_ns or driven.job.cores == max(len(used), min(sum(shards), still)), "and keeps no more"


# -- what takes the place of a slice of which some has ended


def test_only_shards_that_have_not_ended_are_run_on_when_their_worker_is_lost(job_of: JobOf) -> None:
    driven = job_of({"Shop": {"shape": IterationsPerVU(8, 10)}}, cores=8, places={"w1": 4, "w2": 4})
    driven.run()
    (lost,) = driven.job.attempts_at("w1")
    ended(driven, lost, 1)
    driven.job.workers = {"w2": 4, "w3": 3}

    driven.exit(lost)

    parts: dict[str, list[Any]] = {attempt.place: [] for _, _, attempt in driven.job.attempts.values()}
    for _, shard, attempt in driven.job.attempts.values():
        parts[attempt.place].append((shard.shard.first, shard.shard.count, attempt.seats))
    assert parts == {"w2": [(4, 4, (0, 1, 2, 3))], "w3": [(0, 1, (0,)), (2, 2, (1, 2))]}
    assert sum(lost.vus_missing for lost in driven.job.lost) == 3


def test_what_finds_no_room_of_such_a_slice_is_told_as_missing(job_of: JobOf) -> None:
    driven = job_of({"Shop": {"shape": IterationsPerVU(8, 10)}}, cores=8, places={"w1": 4, "w2": 4})
    driven.run()
    (lost,) = driven.job.attempts_at("w1")
    ended(driven, lost, 1)
    driven.job.workers = {"w2": 4, "w3": 1}

    driven.exit(lost)

    assert [(gap.shard, gap.vus_missing) for gap in driven.job.lost] == [(0, 1), (2, 2)]


# -- when they come back


def test_how_long_a_job_takes_is_known_where_its_plans_end_in_time() -> None:
    over_ns = (READY_NS + GRACE_NS + CLOSING_NS) / SECOND
    timed, counted = {"shape": ConstantVUs(4, "10s")}, {"shape": IterationsPerVU(4, 9)}

    assert time_text(time_of(order_of(A=timed))) == (10, 10, 10 + over_ns)
    assert time_text(time_of(order_of(A=timed, B={"shape": ConstantVUs(4, "60s")}))) == (10, 60, 60 + over_ns)
    assert time_text(time_of(order_of(A=timed, B={**timed, "after": {"A"}}))) == (10, 20, 20 + 2 * over_ns)
    assert time_text(time_of(order_of(A=timed, B={**timed, "priority": "exclusive"}))) == (10, 20, 20 + 2 * over_ns)
    assert time_text(time_of(order_of(A=timed, B=counted))) == (0, None, None)
    within = {"shape": SharedIterations(4, 9, max_duration="30s")}
    assert time_text(time_of(order_of(A=within))) == (0, None, 30 + over_ns)


def test_cores_come_back_when_the_plans_on_them_are_over(job_of: JobOf) -> None:
    driven = job_of({"A": {"shape": ConstantVUs(1, "10s")}, "B": {"shape": ConstantVUs(2, "60s")}}, places={"w1": 3})
    driven.run()
    driven.now += 4 * SECOND
    origin_s = (driven.now - driven.job.origin_ns) / SECOND

    short, long = sorted(cores_back(driven.job, driven.now), key=lambda one: one.least_ns)

    left = (GRACE_NS + CLOSING_NS) / SECOND - origin_s
    assert (short.cores, short.least_ns / SECOND, short.most_ns / SECOND) == (1, 10 - origin_s, 10 + left)
    assert (long.cores, long.least_ns / SECOND, long.most_ns / SECOND) == (2, 60 - origin_s, 60 + left)
    assert (short.likely_ns, long.likely_ns) == (short.least_ns, long.least_ns)


def test_a_job_with_workflows_to_come_gives_all_back_when_the_last_is_over_and_may_give_some_back_before(
    job_of: JobOf,
) -> None:
    driven = job_of(
        {"A": {"shape": ConstantVUs(2, "10s")}, "B": {"shape": ConstantVUs(2, "30s"), "after": {"A"}}}, places={"w1": 2}
    )
    driven.start()

    (whole,) = cores_back(driven.job, driven.now)

    assert (whole.cores, whole.least_ns, whole.likely_ns) == (2, 10 * SECOND, 40 * SECOND)
    waiting = job_of({"A": {}}, places={})
    waiting.start()
    assert [one.least_ns for one in cores_back(waiting.job, waiting.now)] == [0]


def test_of_plans_without_an_end_in_time_nothing_is_told_and_of_a_workflow_that_stops_only_until_when(
    job_of: JobOf,
) -> None:
    driven = job_of({"A": {"shape": IterationsPerVU(2, 9)}}, places={"w1": 2})
    driven.run()
    assert cores_back(driven.job, driven.now) == (CoresBack(2, 0, -1, -1),)

    driven.take(driven.job.interrupt(driven.now, "cancel"))

    assert cores_back(driven.job, driven.now) == (CoresBack(2, 0, 0, GRACE_NS + CLOSING_NS),)


def test_more_instants_than_a_message_has_room_for_are_told_as_one(job_of: JobOf) -> None:
    count = BACK_LIMIT + 1
    shapes = {f"W{one}": {"shape": ConstantVUs(1, f"{10 + one}s")} for one in range(count)}
    driven = job_of(shapes, places={"w1": count})
    driven.run()

    (whole,) = cores_back(driven.job, driven.job.origin_ns)

    assert (whole.cores, whole.least_ns, whole.likely_ns) == (count, 10 * SECOND, (10 + count - 1) * SECOND)
    assert driven.job.workflows["W0"].state is TaskState.RUNNING


@pytest.mark.parametrize("vus", [1, 5])
def test_how_many_users_are_left_of_a_slice_is_told_without_those_of_shards_that_have_ended(
    vus: int, job_of: JobOf
) -> None:
    driven = job_of({"Shop": {"shape": IterationsPerVU(3 * vus, 10)}}, places={"w1": 3})
    driven.run()
    (attempt,) = driven.alive
    _, shard, _ = driven.job.attempts[attempt]
    assert shard.vus_left == 3 * vus

    ended(driven, attempt, 0)

    assert (shard.vus_left, shard.left) == (2 * vus, [1, 2])
