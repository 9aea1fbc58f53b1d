"""Workflows that are put aside when their time is over: what is kept of them, and how they go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from talka.control.load.core_effects import JobEnded, StartCore, TellCore, WorkflowLate
from talka.control.load.cores_back import cores_back, spare_cores
from talka.control.load.load_job import LoadJob
from talka.control.load.pausing import PAUSE_LIMIT_NS
from talka.stats.tally import Tally
from talka.units import SECOND
from talka.wire.shards import CONTEXT_PREFIX, Go, Stop
from talka.work.shapes import ConstantVUs, IterationsPerVU

if TYPE_CHECKING:
    from tests.control.conftest import Driven

JobOf = Callable[..., "Driven"]
LATE = {"shape": IterationsPerVU(2, 100), "timeout_s": 60, "on_timeout": "pause"}
WHY = "it ran longer than its timeout of 60 s"
LEFT = {CONTEXT_PREFIX + "cursor": b"\x07", "token": b"\x01"}


def late(job_of: JobOf, **places: int) -> Driven:
    """Of two shards, of which nobody reported: they get no more time."""
    driven = job_of({"Late": LATE, "After": {"after": ["Late"]}}, places=places or {"w1": 2})
    driven.run()
    driven.later(60.1).tick()
    return driven


def put_aside(driven: Driven, *shares: tuple[int, ...]) -> None:
    """Every attempt ends, with so many iterations of each of its shards."""
    for core, share in zip(driven.cores("Late"), shares, strict=True):
        tally = Tally(started=sum(share), iterations=sum(share))
        driven.result(core, tally, shares=share, provided=LEFT)


def resume(driven: Driven, times: int = 1, **places: int) -> list[object]:
    driven.job.workers = places or {"w1": 2}
    return list(driven.take(driven.job.resume(driven.now, times)))


def test_it_is_stopped_as_at_the_end_of_its_plan_and_its_job_waits(job_of: JobOf) -> None:
    driven = late(job_of)
    assert [effect.message for effect in driven.effects if isinstance(effect, TellCore)][-1] == Stop()
    assert not driven.job.is_paused, "what is under way ends first"

    put_aside(driven.later(1), (40, 30))

    assert driven.effects[-1] == WorkflowLate("Late", "put aside", f"it is put aside: {WHY}")
    assert driven.job.is_paused and not driven.has_ended
    assert driven.states == {"Late": "pending", "After": "pending"}
    run = driven.job.workflows["Late"]
    assert run.late_text == f"put aside: {WHY}"
    assert (run.elapsed_ns(driven.later(500).now), run.tally().started) == (60.1 * SECOND, 70)


def test_its_cores_are_not_needed_until_it_is_resumed(job_of: JobOf) -> None:
    driven = late(job_of)
    assert spare_cores(driven.job) == {}

    put_aside(driven, (40, 30))

    assert spare_cores(driven.job) == {"w1": 2}
    assert cores_back(driven.job, driven.now) == ()


def test_resumed_it_does_the_rest_on_cores_it_is_given_anew_and_has_all_of_its_time_again(job_of: JobOf) -> None:
    driven = late(job_of)
    put_aside(driven, (40, 30))
    driven.later(1000)

    news = resume(driven, w2=2)

    assert news == [
        StartCore(2, "w2"),
        WorkflowLate("Late", "resumed", "it was resumed, and goes on with the rest of its plan"),
    ]
    assert driven.done[2] == (40, 30)
    run = driven.job.workflows["Late"]
    assert driven.job.values_for(run) == {"Late": {CONTEXT_PREFIX + "cursor": b"\x07"}}, "and no value of its `Provide`"
    (go,) = [effect.message for effect in driven.arm(2) if isinstance(effect, TellCore)]
    assert isinstance(go, Go) and go.start_at_ns - go.origin_ns == 60.1 * SECOND
    driven.now = go.start_at_ns
    assert driven.later(59).tick() == []
    driven.later(1.1).tick()
    assert run.put_aside_for == WHY, "the same again"
    driven.result(2, Tally(started=130, iterations=130), shares=(60, 70))
    assert driven.states == {"Late": "completed", "After": "assigned"}
    assert run.tally().started == 200


def test_it_is_resumed_once_for_each_time_a_person_does(job_of: JobOf) -> None:
    driven = late(job_of)
    put_aside(driven, (40, 30))

    assert resume(driven, 0) == []
    assert len(resume(driven, 1)) == 2
    assert resume(driven, 1) == []


def test_a_shard_that_is_done_is_not_begun_again_and_others_move_to_where_there_are_cores(job_of: JobOf) -> None:
    driven = late(job_of, w1=3)
    put_aside(driven, (100, 30, 0)) if len(driven.job.workflows["Late"].shards[0].left) == 3 else put_aside(
        driven, (100, 30)
    )

    starts = [effect for effect in resume(driven, w2=1, w3=1) if isinstance(effect, StartCore)]

    assert [(start.place, driven.parts[start.attempt].index) for start in starts] == [("w2", 1)]
    assert driven.done[starts[0].attempt] == (30,)


def test_a_slice_is_dealt_out_over_several_workers(job_of: JobOf) -> None:
    driven = late(job_of)
    put_aside(driven, (40, 30))

    starts = [effect for effect in resume(driven, w2=1, w3=1) if isinstance(effect, StartCore)]

    assert [(start.place, driven.done[start.attempt]) for start in starts] == [("w2", (40,)), ("w3", (30,))]


def test_without_as_many_cores_as_it_had_it_waits(job_of: JobOf) -> None:
    driven = late(job_of)
    put_aside(driven, (40, 30))

    assert [type(effect) for effect in resume(driven, w1=1)] == [WorkflowLate]
    assert driven.states["Late"] == "ready"
    assert spare_cores(driven.job) == {}, "it is to go on with them"
    driven.job.workers = {"w1": 2}
    assert driven.take(driven.job.start(driven.now)) == [StartCore(2, "w1")]


def test_one_that_runs_alone_waits_for_others_to_end(job_of: JobOf) -> None:
    driven = job_of({"Late": {**LATE, "priority": "exclusive"}, "Other": {}}, places={"w1": 2})
    driven.start()
    driven.arm(1)
    driven.now = driven.job.origin_ns
    driven.later(60.1).tick()
    put_aside(driven, (40, 30))
    assert driven.states["Other"] == "assigned", "it has its turn meanwhile"

    resume(driven)
    assert driven.states["Late"] == "ready"
    driven.arm(2)
    driven.later(12).result(2)
    assert driven.states["Late"] == "assigned"


def test_where_nothing_is_left_it_has_completed(job_of: JobOf) -> None:
    driven = late(job_of)

    put_aside(driven, (100, 100))

    assert driven.states["Late"] == "completed"


def test_where_nothing_is_left_but_what_was_cut_it_took_too_long(job_of: JobOf) -> None:
    driven = late(job_of)

    (core,) = driven.cores("Late")
    driven.result(core, Tally(started=200, iterations=199, interrupted_iterations=1), shares=(100, 100))

    assert driven.states["Late"] == "timeout" and driven.job.workflows["Late"].failure == WHY


def test_a_plan_that_was_over_by_then_has_completed(job_of: JobOf) -> None:
    shape = ConstantVUs(2, "60s")
    driven = job_of({"Late": {**LATE, "shape": shape, "timeout_s": 60}}, places={"w1": 2})
    driven.run()
    driven.later(60.1).tick()

    put_aside(driven, (40, 30))

    assert driven.states["Late"] == "completed"


def test_of_a_plan_bound_by_time_the_rest_of_the_time_is_left(job_of: JobOf) -> None:
    driven = job_of({"Late": {**LATE, "shape": ConstantVUs(2, "90s")}}, places={"w1": 2})
    driven.run()
    driven.later(60.1).tick()
    put_aside(driven, (40, 30))
    resume(driven.later(100))
    driven.arm(2)
    driven.now = driven.job.workflows["Late"].origin_ns

    driven.later(89).tick()
    assert not driven.job.workflows["Late"].stopped_ns
    driven.later(1.1).tick()
    assert driven.job.workflows["Late"].stopped_ns


def test_a_failure_ends_it(job_of: JobOf) -> None:
    driven = late(job_of)

    (core,) = driven.cores("Late")
    driven.result(core, failure="setup raised")

    assert driven.states == {"Late": "failed", "After": "skipped"}


@pytest.mark.parametrize("is_aside", [True, False])
def test_a_cancel_ends_it_with_what_it_counted(job_of: JobOf, is_aside: bool) -> None:
    driven = late(job_of)
    if is_aside:
        put_aside(driven, (40, 30))
    driven.interrupt()
    if not is_aside:
        put_aside(driven, (40, 30))

    assert driven.states == {"Late": "cancelled", "After": "cancelled"}
    assert driven.effects[-1] == JobEnded() and driven.job.tally().started == 70


def test_nobody_waits_for_ever(job_of: JobOf) -> None:
    driven = late(job_of)
    put_aside(driven, (40, 30))

    driven.later(PAUSE_LIMIT_NS / SECOND - 1).tick()
    assert not driven.has_ended
    driven.later(1).tick()

    assert driven.states == {"Late": "timeout", "After": "skipped"} and driven.has_ended
    failure = driven.job.workflows["Late"].failure
    assert failure == f"{WHY}; it was put aside, and nobody resumed it within a day"


def test_others_go_on_meanwhile_and_the_job_is_paused_after_them(job_of: JobOf) -> None:
    driven = job_of({"Late": LATE, "Other": {"shape": ConstantVUs(2, "90s")}}, places={"w1": 4})
    driven.run()
    driven.later(60.1).tick()
    put_aside(driven, (40, 30))
    assert not driven.job.is_paused and spare_cores(driven.job) == {"w1": 2}

    driven.later(40).result(driven.cores("Other")[0])

    assert driven.job.is_paused and driven.states == {"Late": "pending", "Other": "completed"}


def test_on_this_machine_it_is_ended_as_nobody_could_resume_it(job_of: JobOf) -> None:
    driven = job_of({"Late": LATE}, cores=2)
    driven.run()
    driven.later(60.1).tick()
    for core in driven.cores("Late"):
        driven.finish(core)

    failure = driven.job.workflows["Late"].failure
    assert failure == f'{WHY}; on_timeout = "pause" is for clusters: nobody could resume it here, so it was ended'


def test_a_start_that_nobody_was_told_of_is_decided_again_where_it_goes_on(job_of: JobOf) -> None:
    driven = late(job_of)
    put_aside(driven, (40, 30))
    resume(driven.later(10))
    driven.arm(2)
    run = driven.job.workflows["Late"]
    behind_ns, job_origin_ns = run.behind_ns, driven.job.origin_ns

    driven.job.start_anew(run)

    assert isinstance(driven.job, LoadJob)
    assert (run.behind_ns, driven.job.origin_ns) == (behind_ns, job_origin_ns)
    assert run.elapsed_ns(driven.now) == behind_ns
