"""A job that another manager goes on with: when its counts can be told again."""

from __future__ import annotations

import msgspec

from talka.cluster.effects import Send
from talka.control.jobs.led_job import LedJob
from talka.control.member.clock_offsets import ClockOffsets
from talka.stats.tally import Tally
from talka.testing.trust import keys_of_workers
from talka.units import SECOND
from talka.wire.entries import Grant, JobEntry
from talka.wire.jobs import Assign, CheckpointStored, Report, StoreCheckpoint, TaskFacts, WorkerSnapshot
from talka.wire.orders import BundleFacts, JobOrder, WorkflowOrder
from talka.wire.shards import Armed, Settings, Totals, encode
from talka.work.lifecycle import JobState
from talka.work.shapes import ConstantRate

START_NS = 1_000 * SECOND
WORKERS = {"w1": 1, "w2": 2}
"""With the number of the task of each."""


def entry_of(fence: tuple[int, int, int], **more: object) -> JobEntry:
    workflow = WorkflowOrder(
        name="Shop",
        plan=ConstantRate(100, "60s", max_vus=12).plan(),
        priority="auto",
        is_test=True,
        depends_on=(),
        timeout_ns=120 * SECOND,
        thresholds=(),
        flows=(),
        load="100/s",
        nodes=(),
    )
    order = JobOrder("shop", BundleFacts("0" * 64, 70, b"", "shop.py"), (workflow,), Settings(30 * SECOND), (), cores=2)
    grants = tuple(Grant(worker=name, boot=7, cores=1) for name in WORKERS)
    return msgspec.structs.replace(
        JobEntry(
            job="b4k7", order=order, state=JobState.RUNNING, number=1, fence=fence, pool=2, granted=2, grants=grants
        ),
        **more,
    )


def led_by(entry: JobEntry) -> LedJob:
    clocks = ClockOffsets()
    for worker in WORKERS:
        clocks.heard(START_NS, worker, clocks.asked(START_NS, worker), START_NS)
    return LedJob(entry, life=3, clocks=clocks, keys=keys_of_workers(1), wall_offset_ns=0)


def stored(job: LedJob, effects: list[object]) -> list[Send]:
    """What it says, while every checkpoint of it is stored at once."""
    said = [effect for effect in effects if isinstance(effect, Send)]
    for word in said:  # it grows
        if isinstance(word.message, StoreCheckpoint):
            more = job.on_checkpoint_stored(
                START_NS, CheckpointStored("b4k7", job.fence, word.message.revision, life=3)
            )
            said += [effect for effect in more if isinstance(effect, Send)]
    return said


def taken_over(states: dict[str, str]) -> LedJob:
    """A job whose tasks were in these states when their workers were asked, two seconds after the load began."""
    first = led_by(entry_of((1, 1, 1)))
    said = stored(first, first.start(START_NS))
    assigned = {word.to: word.message.attempt for word in said if isinstance(word.message, Assign)}
    assert assigned == WORKERS
    for worker, attempt in WORKERS.items():
        said += stored(first, first.on_message(START_NS, worker, Report("b4k7", attempt, encode(Armed()))))
    checkpoints = [word.message for word in said if isinstance(word.message, StoreCheckpoint)]

    second = led_by(entry_of((1, 2, 1), checkpoint=checkpoints[-1].content, version=2))
    second.start(START_NS + 2 * SECOND)
    for worker, attempt in WORKERS.items():
        state = states[worker]
        ages = (2 * SECOND, 2 * SECOND) if state in ("running", "ended") else (0, 0)
        digest = "a" * 64 if state == "ended" else ""
        facts = TaskFacts(attempt, state, *ages, digest, 9)  # type: ignore[arg-type]
        second.on_message(START_NS + 2 * SECOND, worker, WorkerSnapshot("b4k7", (1, 2, 1), 1, (facts,)))
    assert second.job is not None
    return second


def tell(job: LedJob, worker: str) -> None:
    totals = Totals(5, Tally(started=90, iterations=90), [], 1, START_NS)
    job.on_message(START_NS + 3 * SECOND, worker, Report("b4k7", WORKERS[worker], encode(totals)))


def test_counts_are_whole_again_once_every_task_that_ran_has_told_them() -> None:
    job = taken_over({"w1": "running", "w2": "running"})

    assert not job.is_caught_up()
    tell(job, "w1")
    assert not job.is_caught_up()
    tell(job, "w2")

    assert job.is_caught_up()


def test_a_task_that_is_lost_is_not_waited_for() -> None:
    job = taken_over({"w1": "running", "w2": "running"})
    tell(job, "w1")

    lost = tuple(Grant(worker=name, boot=7, cores=1, lost="died" if name == "w2" else "") for name in WORKERS)
    job.on_entry(START_NS + 4 * SECOND, msgspec.structs.replace(job.entry, grants=lost, version=3))

    assert job.is_caught_up()


def test_a_result_that_is_on_its_way_is_waited_for() -> None:
    job = taken_over({"w1": "running", "w2": "ended"})
    tell(job, "w1")

    assert not job.is_caught_up()


def test_tasks_that_have_not_begun_have_nothing_to_tell() -> None:
    assert taken_over({"w1": "armed", "w2": "armed"}).is_caught_up()


def test_before_workers_have_told_what_they_have_there_is_nothing_to_wait_for() -> None:
    assert led_by(entry_of((1, 1, 1))).is_caught_up()
