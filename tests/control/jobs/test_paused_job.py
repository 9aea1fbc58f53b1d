"""A job whose workflow is put aside, at the manager that leads it: what is stored first, what it gives back, and how it
goes on, also under the next manager."""

from __future__ import annotations

import msgspec

from talka.control.jobs.effects import JobLate
from talka.control.jobs.led_job import LedJob
from talka.control.member.clock_offsets import ClockOffsets
from talka.testing.trust import keys_of_workers
from talka.units import HOUR, SECOND
from talka.wire.entries import Grant, JobEntry, decode_checkpoint
from talka.wire.jobs import Assign, Halt, Reconcile, SpareCores, StoreCheckpoint, WorkerSnapshot
from talka.wire.orders import WorkflowOrder
from talka.work.lifecycle import JobState, TaskState
from talka.work.shapes import IterationsPerVU
from tests.control.jobs.test_led_job import FENCE, LIFE, Led, said, told, workflow

NEXT = (1, 2, 1)
WHY = "it ran longer than its timeout of 20 s"


def order() -> WorkflowOrder:
    return workflow("Shop", shape=IterationsPerVU(2, 100), timeout_ns=20 * SECOND, on_timeout="pause")


def put_aside() -> Led:
    """Nine of its iterations were started."""
    led = Led(order(), cores=2, workers=("w1",)).started()
    led.later(21).tick()
    led.stored()
    led.finish("w1", 1, shares=(4, 5))
    return led


def at_rest() -> Led:
    led = put_aside()
    led.on_entry(grants=(Grant("w1", 7, 0),), granted=0, state=JobState.RUNNING)
    return led


def test_a_workflow_is_stopped_once_it_is_stored_why() -> None:
    led = Led(order(), cores=2, workers=("w1",)).started()

    effects = led.later(21).tick()

    assert said(effects, Halt) == []
    (run,) = decode_checkpoint(led.checkpoints()[-1].content).workflows
    assert (run.put_aside_for, run.aside_ns, run.state) == (WHY, -1, TaskState.RUNNING)
    assert [halt.how for halt in said(led.stored(), Halt)] == ["stop"]


def test_its_cores_are_given_back_and_then_it_is_paused() -> None:
    led = put_aside()

    checkpoint = led.checkpoints()[-1]
    assert JobLate("b4k7", "Shop", "put aside", f"it is put aside: {WHY}") in led.effects
    assert (checkpoint.state, checkpoint.spare) == ("running", (SpareCores("w1", 7, 2, 0),))
    assert checkpoint.reason.startswith("Shop is put aside since 1970-01-01T00:17:01") and WHY in checkpoint.reason
    assert "talka jobs resume b4k7 goes on with it, until 1970-01-02T00:17:01" in checkpoint.reason
    led.on_entry(grants=(Grant("w1", 7, 0),), granted=0, state=JobState.RUNNING)
    checkpoint = led.checkpoints()[-1]
    assert (checkpoint.state, checkpoint.spare, led.led.facts().state) == ("paused", (), JobState.PAUSED)


def test_resumed_it_does_the_rest_and_says_that_it_knows() -> None:
    led = at_rest()
    led.stored()

    led.on_entry(grants=(Grant("w1", 7, 0), Grant("w2", 7, 2)), granted=2, state=JobState.RUNNING, resumes=1)

    checkpoint = led.checkpoints()[-1]
    assert (checkpoint.state, checkpoint.resumes, checkpoint.reason, checkpoint.spare) == ("running", 1, "", ())
    ((worker, assign),) = told(led.stored(), Assign)
    assert (worker, assign.attempt, assign.iterations_done) == ("w2", 2, (4, 5))
    assert led.counted == 9


def heir(led: Led, *, resumes: int) -> tuple[LedJob, list[object]]:
    """Another manager takes the job over, and w1 has nothing of it any more."""
    grants = (Grant("w1", 7, 2 if resumes else 0),)
    entry: JobEntry = msgspec.structs.replace(
        led.led.entry,
        fence=NEXT,
        checkpoint=led.checkpoints()[-1].content,
        grants=grants,
        resumes=resumes,
        state=JobState.RUNNING if resumes else JobState.PAUSED,
    )
    clocks = ClockOffsets()
    found = LedJob(entry, life=LIFE + 1, clocks=clocks, keys=keys_of_workers(1), wall_offset_ns=0)
    effects = found.start(led.now)
    (digest,) = [attempt.digest for attempt in decode_checkpoint(entry.checkpoint).workflows[0].shards[0].attempts]
    effects += found.on_blob(led.now, digest.hex(), led.result(1, shares=(4, 5)))
    assert said(effects, Reconcile)
    return found, [*effects, *found.on_message(led.now, "w1", WorkerSnapshot("b4k7", NEXT, 1, ()))]


def test_the_next_manager_finds_it_paused_and_starts_nothing() -> None:
    found, effects = heir(at_rest(), resumes=0)

    assert said(effects, Assign) == [] and found.facts().state is JobState.PAUSED
    assert found.job is not None
    assert (found.job.workflows["Shop"].aside_ns, found.job.tally().started) == (1_021 * SECOND, 9)
    assert found.tick(1_021 * SECOND + HOUR) != [] and found.facts().state is JobState.PAUSED


def test_the_next_manager_goes_on_with_what_a_person_resumed() -> None:
    found, effects = heir(at_rest(), resumes=1)

    (checkpoint,) = said(effects, StoreCheckpoint)
    assert (checkpoint.state, checkpoint.resumes) == ("running", 1)
    (run,) = decode_checkpoint(checkpoint.content).workflows
    assert (run.state, run.behind_ns > 0, run.shards[0].aside) == (TaskState.ASSIGNED, True, 1)
    assert found.fence == NEXT != FENCE


def test_the_next_manager_stops_what_the_one_before_was_about_to() -> None:
    led = Led(order(), cores=2, workers=("w1",)).started()
    led.later(21).tick()

    assert led.led.job is not None
    assert led.led.job.stop_again(led.now) != []
