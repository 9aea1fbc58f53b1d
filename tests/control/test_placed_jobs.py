"""A load job whose cores are on workers: a task is some shards of a plan on as many cores of one worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.load.core_effects import JobEnded, KillCore, StartCore, TellCore
from talka.control.load.load_job import START_DELAY_NS
from talka.control.load.shard_group import STOP_SLACK_NS
from talka.control.load.shard_run import LostShard
from talka.stats.tally import Tally
from talka.stats.windows import Window
from talka.units import SECOND
from talka.wire.shards import Armed, Gap, Go, Stop
from talka.work.lifecycle import TaskState
from talka.work.load import PlanSlice
from talka.work.shapes import ConstantRate, ConstantVUs, IterationsPerVU, SharedIterations

if TYPE_CHECKING:
    from tests.control.conftest import Driven

JobOf = Callable[..., "Driven"]
ARRIVALS = {"shape": ConstantRate(100, "10s", max_vus=12)}
quick = settings(deadline=None, derandomize=True, max_examples=60)


def tasks(driven: Driven) -> list[tuple[str, int, int, int]]:
    """Place, first shard, how many, and of how many, of everything that runs."""
    found = []
    for _, shard, attempt in driven.job.attempts.values():
        assert isinstance(shard.shard, PlanSlice)
        found.append((attempt.place, shard.shard.first, shard.shard.count, shard.shard.of))
    return found


def gaps(driven: Driven) -> list[tuple[int, float, float, int]]:
    """Shard, from, to, and arrivals missing."""
    return [(lost.shard, lost.from_ns / SECOND, lost.to_ns / SECOND, lost.arrivals_missing) for lost in driven.job.lost]


# -- starting


def test_a_workflow_is_spread_over_workers_those_with_most_room_first(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, cores=8, places={"w2": 2, "w3": 4, "w1": 2})

    effects = driven.start()

    assert tasks(driven) == [("w3", 0, 4, 8), ("w1", 4, 2, 8), ("w2", 6, 2, 8)]
    assert [effect.place for effect in effects if isinstance(effect, StartCore)] == ["w3", "w1", "w2"]
    assert list(driven.done.values()) == [
        (0,) * 4,
        (0,) * 2,
        (0,) * 2,
    ]
    assert [(part.index, part.of) for part in driven.parts.values()] == [(first, 8) for first in (0, 4, 6)]
    assert driven.job.cores == driven.job.workflows["Shop"].cores == 8


def test_a_worker_holds_tasks_of_several_workflows_up_to_its_cores(job_of: JobOf) -> None:
    driven = job_of({"A": {"priority": "normal"}, "B": {}}, cores=1, places={"w1": 3, "w2": 1})
    driven.job.pool = 4

    driven.start()

    assert sum(count for place, _, count, _ in tasks(driven) if place == "w1") == 3
    assert sum(count for place, _, count, _ in tasks(driven) if place == "w2") == 1
    assert driven.job.attempts_at("w2") == [core for core, start in driven.starts.items() if start.place == "w2"]


def test_shares_by_priority_are_of_the_pool_but_no_workflow_waits_for_more_than_the_job_has(job_of: JobOf) -> None:
    low = job_of({"Shop": {**ARRIVALS, "priority": "low"}}, places={"w1": 8})
    low.job.pool = 16
    high = job_of({"Shop": {**ARRIVALS, "priority": "high"}}, places={"w1": 4})
    high.job.pool = 16

    low.start()
    high.start()

    assert tasks(low) == [("w1", 0, 4, 4)]
    assert tasks(high) == [("w1", 0, 4, 4)]


def test_without_a_worker_nothing_starts_until_one_is_granted(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={})
    assert driven.start() == []
    assert driven.states == {"Shop": "ready"}

    driven.job.workers = {"w1": 2}
    driven.start()

    assert tasks(driven) == [("w1", 0, 2, 2)]


def test_a_workflow_shares_cores_of_workers_that_are_left_not_those_of_lost_ones(job_of: JobOf) -> None:
    driven = job_of({"A": {"shape": ConstantVUs(2, "10s")}, "B": {"after": {"C"}}, "C": {"is_test": False}}, cores=3)
    driven.job.workers = {"w1": 2, "w2": 1}
    driven.start()
    driven.arm(*driven.alive)
    driven.job.workers = {"w1": 2}

    driven.result(driven.cores("C")[0])

    (b,) = driven.cores("B")
    _, _, attempt = driven.job.attempts[b]
    assert (driven.starts[b].place, attempt.seats) == ("w1", (0, 1))
    assert list(driven.job.workflows["B"].shares_with) == ["A"]


def test_without_a_core_of_its_job_a_workflow_waits(job_of: JobOf) -> None:
    driven = job_of({"A": {}}, places={})

    assert driven.start() == []
    driven.job.workers = {"w2": 1}
    driven.start()

    assert driven.states["A"] == "assigned"


MIX = {name: {"shape": ConstantRate(20, "10s")} for name in "ABCD"}


def test_workflows_of_a_job_share_the_cores_it_was_granted(job_of: JobOf) -> None:
    driven = job_of(MIX, places={"w1": 1, "w2": 1})

    driven.run()

    assert set(driven.states.values()) == {"running"}
    assert sorted(place for place, *_ in tasks(driven)) == ["w1", "w1", "w2", "w2"]
    assert all(attempt.seats == (0,) for _, _, attempt in driven.job.attempts.values())


def test_what_shared_a_lost_core_may_share_another_and_does_not_crowd_those_that_live(job_of: JobOf) -> None:
    driven = job_of(MIX, places={"w1": 1, "w2": 1})
    driven.run()
    gone = driven.job.attempts_at("w2")
    driven.later(2)
    driven.job.workers = {"w1": 1}
    assert [driven.job.room_besides(core) for core in gone] == [0, 0], "w1 is as full as the lost one was"
    driven.job.workers = {"w1": 1, "w3": 1}
    assert [driven.job.room_besides(core) for core in gone] == [1, 1]

    for core in gone:
        driven.exit(core)

    assert len(driven.job.attempts_at("w3")) == 2
    assert set(driven.states.values()) == {"running"}


# -- results


def test_a_result_ends_a_task_and_replaces_its_reports(job_of: JobOf) -> None:
    driven = job_of({"Shop": {"shape": IterationsPerVU(4, 10)}}, places={"w1": 2, "w2": 2})
    driven.run()
    driven.later(1).report(1, Tally(started=5, iterations=5), [Window(0, started=5)], shares=(2, 3), spread_ns=70)
    (first, second) = driven.job.workflows["Shop"].shards
    assert (first.current.spread_ns, first.done_by_shard, first.has_more_to_run) == (70, (2, 3), True)

    effects = driven.later(1).result(
        1,
        Tally(started=20, iterations=20),
        [Window(0, started=5), Window(9, started=15)],
        shares=(10, 10),
        started_at_ns=500,
        ended_at_ns=SECOND,
        spread_ns=80,
        engine="python",
        notes=("the seed was 7",),
        provided={"token": b"t"},
    )

    assert effects == []
    assert (first.is_done, first.current.spread_ns, first.done_by_shard, first.has_more_to_run) == (
        True,
        80,
        (10, 10),
        False,
    )
    assert (first.current.started_at_ns, first.current.ended_at_ns) == (
        driven.job.origin_ns + 500,
        driven.job.origin_ns + SECOND,
    )
    assert driven.result(2, Tally(started=20, iterations=20), notes=("the seed was 7",), engine="native/task") == [
        JobEnded()
    ]
    assert driven.job.tally().started == 40
    assert [span.window.started for span in driven.job.timeline.spans()] == [5, 15]
    assert driven.job.engine == "native/task, python", "machines may differ"
    assert driven.job.workflows["Shop"].notes == ["the seed was 7"]
    assert driven.job.workflows["Shop"].provided == {"token": b"t"}
    assert second.current.started_at_ns == 0


def test_a_result_of_an_attempt_that_nobody_waits_for_changes_nothing(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 1, "w2": 1})
    driven.run()
    driven.result(1, Tally(started=5))

    assert driven.result(1, Tally(started=99)) == []
    assert driven.result(77, Tally(started=99)) == []
    assert driven.job.tally().started == 5


def test_a_failure_in_a_result_fails_the_workflow(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 1})
    driven.run()

    driven.result(1, failure="token raised KeyError")

    assert driven.states == {"Shop": "failed"}
    assert driven.job.workflows["Shop"].failure == "token raised KeyError"


def test_cores_that_a_worker_replaced_by_itself_are_among_what_was_lost(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 2, "w2": 1})
    driven.run()
    inner = Gap(1, "was killed by SIGKILL", SECOND, 2 * SECOND, 4, 33)

    driven.later(3).report(1, gaps=(inner,))
    assert driven.job.lost == [LostShard("Shop", 1, "was killed by SIGKILL", SECOND, 2 * SECOND, 4, 33)]
    driven.exit(2)
    driven.result(1, gaps=(inner, inner))

    assert [lost.shard for lost in driven.job.lost] == [2, 1, 1]
    assert len(driven.job.own_lost) == 1


def test_of_a_report_that_does_not_tell_shares_all_counts_as_the_first_shards(job_of: JobOf) -> None:
    driven = job_of({"Shop": {"shape": SharedIterations(4, 100)}}, places={"w1": 3})
    driven.run()

    driven.report(1, Tally(started=7), shares=(1, 2))

    assert driven.job.workflows["Shop"].shards[0].done_by_shard == (7, 0, 0)


# -- losses


def test_a_lost_task_goes_to_a_worker_with_room_for_all_of_it(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 2, "w2": 2})
    driven.run()
    driven.later(2).report(1, Tally(started=100, iterations=100), shares=(60, 40))
    driven.job.workers = {"w2": 2, "w3": 1, "w4": 3}
    assert driven.job.room_besides(1) == 4

    (started,) = driven.later(1).exit(1, "its lease is over")
    assert isinstance(started, StartCore)
    assert (started.place, driven.done[started.attempt]) == ("w4", (60, 40))
    assert driven.job.room_besides(1) == 0, "it runs no more"
    driven.later(1).arm(started.attempt)

    assert gaps(driven) == [(0, 2.0, 4.0, 100)]
    assert len(driven.job.workflows["Shop"].shards) == 2
    driven.report(started.attempt, Tally(started=9), shares=(4, 5))
    assert driven.job.workflows["Shop"].shards[0].done_by_shard == (64, 45)


def test_a_task_that_is_gone_while_its_worker_lives_may_go_back_there(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 2, "w2": 2})
    driven.run()
    assert driven.job.room_besides(1) == 2, "its own cores"

    (started,) = driven.later(1).exit(1, "is gone from its worker w1")

    assert isinstance(started, StartCore)
    assert started.place == "w1"


def test_a_lost_task_is_cut_where_no_worker_has_room_for_all_of_it(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 3, "w2": 1})
    driven.run()
    driven.later(2).report(1, Tally(started=150), shares=(70, 50, 30))
    driven.job.workers = {"w2": 1, "w3": 2, "w4": 1}

    effects = driven.later(1).exit(1, "its lease is over")

    assert [(effect.place, driven.done[effect.attempt]) for effect in effects if isinstance(effect, StartCore)] == [
        ("w3", (70, 50)),
        ("w4", (30,)),
    ]
    assert gaps(driven) == [(0, 2.0, 3.0, 0), (2, 2.0, 3.0, 0)], "so far"
    assert [lost.vus_missing for lost in driven.job.lost] == [6, 3]
    run = driven.job.workflows["Shop"]
    assert run.cores == 4, "a shard that was cut counts by its parts"
    driven.later(1).arm(3)
    driven.later(1).arm(4)
    assert gaps(driven) == [(0, 2.0, 4.0, 100), (2, 2.0, 5.0, 75)]
    for core in (2, 3, 4):
        driven.later(1).result(core, Tally(started=10), provided={"token": str(core).encode()})

    assert driven.states == {"Shop": "completed"}
    assert driven.job.tally().started == 180, "what the lost one had counted stays"


def test_of_a_task_that_was_cut_the_lowest_shard_still_decides_what_is_handed_on(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 3, "w2": 1})
    driven.run()
    driven.job.workers = {"w2": 1, "w3": 2, "w4": 1}
    driven.later(1).exit(1, "its lease is over")
    driven.later(1).arm(3, 4)

    driven.result(2, provided={"token": b"of shard 3", "last": b"of shard 3"})
    driven.result(4, provided={"token": b"of shard 2"})
    driven.result(3, provided={"token": b"of shard 0"})

    assert driven.job.workflows["Shop"].provided == {"token": b"of shard 0", "last": b"of shard 3"}


def test_attempts_of_a_task_that_was_cut_count_for_its_parts(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 2})
    driven.run()
    driven.job.workers = {"w1": 1, "w2": 1}
    driven.later(1).exit(1)
    for core in (2, 4, 5):
        driven.arm(core)
        effects = driven.later(1).exit(core)

    assert effects == [], "four attempts, one of them as a whole"
    assert driven.job.workflows["Shop"].shards[1].tries == 4


def test_what_finds_no_room_is_missing_to_the_end_while_the_rest_goes_on(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 3, "w2": 1})
    driven.run()
    driven.later(2).report(1)
    driven.job.workers = {"w2": 1, "w3": 1}

    effects = driven.later(1).exit(1, "its lease is over")

    assert [effect.place for effect in effects if isinstance(effect, StartCore)] == ["w3"]
    driven.later(1).arm(3)
    assert gaps(driven) == [(0, 2.0, 4.0, 50), (1, 2.0, 3.0, 0)]
    driven.later(6).result(2)
    driven.result(3)
    assert driven.states == {"Shop": "completed"}
    assert gaps(driven) == [(0, 2.0, 4.0, 50), (1, 2.0, 10.0, 400)], "two of four shards for eight seconds"


def test_without_any_room_the_gap_runs_to_the_end_of_the_plan(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 1, "w2": 1})
    driven.run()
    driven.job.workers = {"w2": 1}

    assert driven.later(1).exit(1) == []
    assert gaps(driven) == [(0, 0.0, 10.0, 500)]


def test_a_part_that_dies_before_it_begins_leaves_its_gap_open(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 2})
    driven.run()
    driven.job.workers = {"w2": 1, "w3": 1}
    driven.later(1).exit(1)

    driven.job.workers = {"w3": 1, "w4": 1}
    (started,) = driven.later(1).exit(2)
    assert isinstance(started, StartCore)
    driven.later(1).arm(started.attempt, 3)

    assert gaps(driven) == [(0, 0.0, 3.0, 150), (1, 0.0, 3.0, 150)]


def test_a_task_lost_while_it_gets_ready_goes_elsewhere_and_all_start_together(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 2, "w2": 1})
    driven.start()
    driven.arm(2)
    driven.job.workers = {"w2": 1, "w3": 1, "w4": 1}

    effects = driven.exit(1, "its lease is over")
    assert [effect.place for effect in effects if isinstance(effect, StartCore)] == ["w3", "w4"]
    assert driven.arm(3) == []
    effects = driven.arm(4)

    start_ns = driven.now + START_DELAY_NS
    assert effects == [TellCore(core, Go(start_ns, start_ns, start_ns)) for core in (2, 3, 4)]
    assert driven.job.lost == []


def test_a_task_lost_while_it_gets_ready_fails_the_workflow_if_there_is_no_room_for_all_of_it(job_of: JobOf) -> None:
    for places in ({"w2": 1}, {"w2": 1, "w3": 1}):
        driven = job_of({"Shop": ARRIVALS}, places={"w1": 2, "w2": 1})
        driven.start()
        driven.job.workers = places

        assert driven.exit(1, "its lease is over") == [KillCore(2), JobEnded()]
        assert driven.states == {"Shop": "failed"}
        assert driven.job.workflows["Shop"].failure == (
            "the worker it was given was lost before it could start, and there was no room on others"
        )


def test_a_task_that_says_twice_that_it_is_ready_is_told_once_to_go(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 1, "w2": 1})
    driven.run()

    assert driven.later(1).say(1, Armed()) == []
    assert driven.job.lost == []
    assert driven.job.attempts[1][2].go_at_ns == driven.job.origin_ns


# -- another manager's attempts


def taken_up(job_of: JobOf) -> Driven:
    """A job whose workflow runs for a second, of whose two tasks one was never told to go."""
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 1, "w2": 1})
    driven.run()
    run = driven.job.workflows["Shop"]
    for shard in run.shards:
        driven.job.adopt(run, shard, shard.current)
    run.shards[1].current.armed, run.shards[1].current.go_at_ns = False, 0
    driven.later(1)
    return driven


def test_a_task_that_the_manager_before_did_not_start_begins_late_and_that_is_told(job_of: JobOf) -> None:
    driven = taken_up(job_of)

    assert driven.arm(2) == [TellCore(2, Go(driven.now, driven.job.origin_ns, driven.job.origin_ns))]

    assert gaps(driven) == [(1, 0.0, 1.0, 50)]
    assert driven.job.lost[0].cause == "was told to start late: its manager was lost"


def test_a_task_that_was_not_started_before_its_plan_was_over_is_missing_whole(job_of: JobOf) -> None:
    driven = taken_up(job_of)

    assert KillCore(2) in driven.later(10).tick()

    assert gaps(driven) == [(1, 0.0, 10.0, 500)]
    assert driven.job.lost[0].cause == "was never told to start: its manager was lost"


def test_a_task_that_a_cancel_ended_before_the_manager_heard_of_it_cancels_the_job(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS, "Later": {"after": {"Shop"}}}, places={"w1": 1, "w2": 1})
    driven.run()

    assert driven.later(1).result(1, is_cancelled=True) == [TellCore(2, Stop())]
    assert driven.result(2, is_cancelled=True) == [JobEnded()]

    assert driven.states == {"Shop": "cancelled", "Later": "cancelled"}
    assert driven.job.interrupted_by == "cancel"


def test_a_task_that_a_cancel_ended_before_it_began_cancels_the_job(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 1, "w2": 1})
    driven.start()

    assert driven.result(1, is_cancelled=True) == [KillCore(2), JobEnded()]

    assert driven.states == {"Shop": "cancelled"}


def test_the_clock_of_a_job_goes_on_when_one_of_its_workflows_is_started_anew(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS, "Bank": ARRIVALS}, places={"w1": 1, "w2": 1})
    driven.run()
    job, bank = driven.job, driven.job.workflows["Bank"]
    origin_ns = job.origin_ns

    job.start_anew(bank)

    assert (bank.state, bank.origin_ns, job.origin_ns) == (TaskState.ASSIGNED, 0, origin_ns)


def test_a_task_that_is_lost_before_anybody_started_it_leaves_a_gap_too(job_of: JobOf) -> None:
    driven = taken_up(job_of)

    driven.exit(2, "its lease is over")
    driven.later(1).arm(3)

    assert gaps(driven) == [(1, 0.0, 2.0, 100)]
    assert driven.job.lost[0].cause == "its lease is over"


def test_a_task_whose_result_is_on_its_way_is_not_killed_for_being_late(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 1, "w2": 1}, grace_s=1)
    driven.run()
    driven.later(10.1).tick()
    driven.job.arriving = {1: None}
    driven.now = driven.job.origin_ns + 11 * SECOND + STOP_SLACK_NS + 1

    assert driven.tick() == [KillCore(2)]
    assert driven.result(1, Tally(started=5)) == [JobEnded()]


def test_a_manager_that_took_over_gives_tasks_their_time_to_stop_anew(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 1}, grace_s=1)
    driven.run()
    driven.later(10.1).tick()
    driven.later(50)
    driven.job.taken_up_ns = driven.now

    assert driven.tick() == []
    driven.now += SECOND + STOP_SLACK_NS
    assert driven.tick() == []
    driven.now += 1
    assert driven.tick() == [KillCore(1), JobEnded()]


def test_tasks_are_told_again_to_stop(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS, "Late": {"after": {"Shop"}}}, places={"w1": 1, "w2": 1})
    driven.run()
    driven.interrupt()

    assert driven.later(1).take(driven.job.stop_again(driven.now)) == [TellCore(1, Stop()), TellCore(2, Stop())]
    assert driven.states == {"Shop": "running", "Late": "cancelled"}
    assert driven.job.workflows["Shop"].stopped_ns == driven.now - SECOND


# -- as on one machine


@given(
    shape=st.sampled_from(
        [ConstantVUs(9, "5s"), ConstantRate(70, "5s"), IterationsPerVU(8, 10), SharedIterations(7, 90, "8s")]
    ),
    workers=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    counted=st.lists(st.integers(0, 9), min_size=12, max_size=12),
    lost=st.booleans(),
)
@quick
def test_a_job_on_workers_comes_to_the_same_as_on_one_machine(
    job_of: JobOf, shape: ConstantVUs, workers: list[int], counted: list[int], lost: bool
) -> None:
    places = {f"w{turn}": cores for turn, cores in enumerate(workers)}
    workflow = {"Shop": {"shape": shape}}
    local = job_of(workflow, cores=sum(workers))
    placed = job_of(workflow, cores=sum(workers), places=places)
    local.run()
    placed.run()

    def shards_of(core: int) -> list[int]:
        first, count = placed.parts[core].index, len(placed.done[core])
        return list(range(first, first + count))

    assert [shard for core in placed.parts for shard in shards_of(core)] == [
        arm.shard.index for arm in local.arms.values()
    ]
    for driven in (local, placed):
        driven.later(1)
    of = local.arms[1].shard.of
    before = dict(enumerate(counted[:of]))
    for core in sorted(local.alive):
        local.report(core, Tally(started=before[core - 1]))
    for core in sorted(placed.alive):
        shares = tuple(before[shard] for shard in shards_of(core))
        placed.report(core, Tally(started=sum(shares)), shares=shares)
    if lost:
        for driven in (local, placed):
            driven.later(1)
        for shard in shards_of(1):
            local.exit(shard + 1)
        assert placed.job.workers is not None
        placed.job.workers = {"spare": 4, **{name: n for name, n in places.items() if name != placed.starts[1].place}}
        placed.exit(1)
        for driven in (local, placed):
            driven.later(1)
            driven.arm(*sorted(core for core in driven.alive if not driven.job.attempts[core][2].armed))
        done = {core: placed.done[core] for core in placed.alive}
        again = [arm for core, arm in local.arms.items() if core > of]
        assert [arm.iterations_done for arm in again] == [
            before[shard]
            for core in sorted(placed.alive)
            if placed.starts[core].place == "spare"
            for shard in shards_of(core)
        ]
        assert sum(sum(each) for each in done.values()) == sum(arm.iterations_done for arm in again)
    for driven in (local, placed):
        assert driven.later(1).tick() == []
        for core in sorted(driven.alive):
            shards = [driven.arms[core].shard.index] if driven is local else shards_of(core)
            (placed.result if driven is placed else local.finish)(
                core, Tally(started=sum(before[shard] + 1 for shard in shards), iterations=len(shards))
            )

    assert placed.states == local.states == {"Shop": "completed"}
    assert placed.job.tally() == local.job.tally()
    assert sum(lost.arrivals_missing for lost in placed.job.lost) == sum(
        lost.arrivals_missing for lost in local.job.lost
    )
    assert sum(lost.vus_missing for lost in placed.job.lost) == sum(lost.vus_missing for lost in local.job.lost)
    assert placed.job.ended_ns == local.job.ended_ns
