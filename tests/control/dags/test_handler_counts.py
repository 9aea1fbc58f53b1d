"""Tasks by handler: what waits and runs is what jobs have, what ended is counted, and there are never too many rows."""

from random import Random

import pytest

from talka.control.dags.handler_counts import COUNTS, OTHERS, SLOT_NS, HandlerCounts, HandlerRow
from talka.control.dags.job import DagJob
from talka.control.dags.turns import DagTurns
from talka.units import MILLISECOND, SECOND
from talka.wire.task_views import QueueView
from talka.wire.tasks import TaskResult
from talka.work.dags.dag import DagSettings, Retry, TaskSpec
from talka.work.dags.records import JobRow
from talka.work.lifecycle import JobState, TaskState


def job_of(counts: HandlerCounts, *specs: TaskSpec, after: tuple[tuple[int, ...], ...] = ()) -> DagJob:
    settings = DagSettings(on_failure="continue")
    row = JobRow(number=1, id="j1", name="n", state=JobState.SUBMITTED, submitted_ms=0, started_ms=0, settings=b"{}")
    job = DagJob(row, settings, Random(1), lambda now: now // MILLISECOND, handlers=counts)
    job.add(0, specs, after or ((),) * len(specs))
    return job


def seen(counts: HandlerCounts, handler: str = "h") -> tuple[int, ...]:
    """Blocked, delayed, ready, running, completed, failed."""
    row = counts.row(handler)
    return (row.blocked, row.delayed, row.ready, row.running, row.completed, row.failed)


def test_a_task_is_counted_where_it_is() -> None:
    counts = HandlerCounts()
    job = job_of(
        counts, TaskSpec(id="a", handler="h"), TaskSpec(id="b", handler="h", retry=Retry(max=0)), after=((), (0,))
    )
    first, second = job.tasks
    assert seen(counts) == (2, 0, 0, 0, 0, 0)

    job.start(0)
    assert seen(counts) == (1, 0, 1, 0, 0, 0)
    job.claimed(0, first, "w#1", 7)
    job.began(0, first)
    assert seen(counts) == (1, 0, 0, 1, 0, 0)
    job.completing(1, first, b"1", "", 0)
    assert seen(counts) == (1, 0, 0, 0, 1, 0)
    job.completed(1, first)
    job.claimed(2, second, "w#1", 8)
    job.failed(3, second, TaskResult(8, "failed", error="no"))

    assert seen(counts) == (0, 0, 0, 0, 1, 1)
    job.end(3)
    job.rerun(4, ["b"])
    assert seen(counts) == (0, 0, 1, 0, 1, 1), "it waits again; that it failed once was so"


def test_what_waits_for_its_time_alone_is_delayed() -> None:
    counts = HandlerCounts()
    spec = TaskSpec(id="a", handler="h", delay="5s", retry=Retry(max=1, backoff="10s"))
    job = job_of(counts, spec)
    job.start(0)
    assert seen(counts) == (0, 1, 0, 0, 0, 0)

    job.tick(5 * SECOND)
    assert seen(counts) == (0, 0, 1, 0, 0, 0)
    job.claimed(5 * SECOND, job.tasks[0], "w#1", 7)
    job.failed(6 * SECOND, job.tasks[0], TaskResult(7, "failed", error="no"))
    assert seen(counts) == (0, 1, 0, 0, 0, 0)

    job.pause(7 * SECOND)
    assert seen(counts) == (0, 1, 0, 0, 0, 0)
    job.tick(60 * SECOND)
    assert seen(counts) == (1, 0, 0, 0, 0, 0), "its time has come, and its job is paused"
    job.resume(61 * SECOND)
    assert seen(counts) == (0, 0, 1, 0, 0, 0)


def test_a_delayed_task_that_is_skipped_or_whose_job_is_dropped_waits_no_more() -> None:
    counts = HandlerCounts()
    specs = [TaskSpec(id=id, handler="h", delay="5s") for id in "abc"]
    job = job_of(counts, *specs)
    job.start(0)
    job.skip(1, ["a"])
    assert seen(counts) == (0, 2, 0, 0, 0, 0)

    job.let_go()

    assert seen(counts) == (0, 0, 0, 0, 0, 0)


def test_what_a_job_does_that_is_another_managers_now_is_not_counted() -> None:
    counts = HandlerCounts()
    job = job_of(counts, TaskSpec(id="a", handler="h"))
    job.start(0)

    job.uncount()
    job.claimed(0, job.tasks[0], "w#1", 7)

    assert seen(counts) == (0, 0, 0, 0, 0, 0)


def test_the_rate_is_of_the_last_minute_and_of_less_at_first() -> None:
    row, at = HandlerRow(), 1_000 * SLOT_NS
    assert row.rate_per_s(at) == 0
    for _ in range(30):
        row.ended(at)
    assert row.rate_per_s(at) == 3, "as if it had begun ten seconds ago"
    assert row.rate_per_s(at + 20 * SECOND) == 1.5
    assert row.rate_per_s(at + 69 * SECOND) == pytest.approx(30 / 69)
    assert row.rate_per_s(at + 70 * SECOND) == 0

    row.ended(at + 1_000 * SLOT_NS)
    assert row.rate_per_s(at + 1_000 * SLOT_NS) == pytest.approx(1 / 60)


def test_an_instant_that_is_earlier_than_the_last_is_of_its_slot() -> None:
    row = HandlerRow()
    row.ended(100 * SLOT_NS)
    row.ended(99 * SLOT_NS)

    assert row.rate_per_s(100 * SLOT_NS) == 0.2


def test_handlers_beyond_the_limit_are_counted_together_for_good() -> None:
    counts = HandlerCounts(limit=2)
    assert [name for name, _ in counts.rows()] == []
    for handler in ("b", "a", "c", "d", "c"):
        counts.row(handler).states[TaskState.READY] += 1

    assert [(name, row.ready) for name, row in counts.rows()] == [("b", 1), ("a", 1), (OTHERS, 3)]


def test_metrics_tell_the_first_handlers_apart() -> None:
    counts = HandlerCounts()
    assert set(counts.metrics({})) == {*COUNTS, "queue_oldest_seconds"}
    for number, handler in enumerate(("a", "b", "c"), 1):
        row = counts.row(handler)
        row.states[TaskState.READY] = number
        row.states[TaskState.RUNNING] = row.states[TaskState.DEAD] = 10 * number

    found = counts.metrics({"b": 5.0, "c": 2.0}, most=1)

    assert found["queue_waiting"] == {"a": 1, OTHERS: 5}
    assert found["queue_active"] == found["queue_failed_total"] == {"a": 10, OTHERS: 50}
    assert found["queue_oldest_seconds"] == {"a": 0, OTHERS: 5.0}


def test_people_see_counts_beside_the_workers_that_have_a_handler() -> None:
    turns = DagTurns(Random(1))
    row = turns.handlers.row("b")
    row.states[TaskState.READY], row.states[TaskState.COMPLETED], row.delayed = 3, 2, 1
    row.states[TaskState.PENDING] = 5

    assert turns.queues(0).queues == [QueueView("b", 3, 0, 0, 0.0, delayed=1, blocked=4, completed=2)]
