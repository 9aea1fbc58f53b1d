"""What people are shown of dag jobs, from rows and from memory."""

from datetime import datetime
from random import Random

import msgspec
import pytest

from talka.clock import time_zone
from talka.control.dags.job import DagJob
from talka.nodes.dags.dag_views import (
    attempt_view,
    dead_letter,
    event_view,
    exit_code_of,
    facts_of,
    line_view,
    live_facts,
    schedule_view,
    task_view,
)
from talka.work.dags.dag import DagSettings, TaskSpec, encode_task
from talka.work.dags.records import AttemptRow, EventRow, JobRow, LogRow, ScheduleRow, TaskRow
from talka.work.lifecycle import JobState, TaskState

AT_MS = 1_700_000_000_000
AT = "2023-11-14T22:13:20.000Z"
ROW = JobRow(number=1, id="j", name="n", state=JobState.RUNNING, submitted_ms=AT_MS, settings=b"{}", submitted_by="me")
SPEC = TaskSpec("a", "h", priority=7, depends_on=("b",))
TASK = TaskRow(job=1, index=0, id="a", state=TaskState.PENDING, spec=encode_task(SPEC))
ATTEMPT = AttemptRow(
    job=1, index=0, attempt=2, fence=9, worker="w#1#7", started_ms=AT_MS, ended_ms=AT_MS, cause="E", error="E: no"
)


def replaced(row: TaskRow, **fields: object) -> TaskRow:
    return msgspec.structs.replace(row, **fields)


def test_an_instant_that_was_not_is_empty() -> None:
    assert (facts_of(ROW, {}).submitted_at, facts_of(ROW, {}).ended_at) == (AT, "")


@pytest.mark.parametrize("state", list(JobState), ids=str)
def test_the_exit_code_says_how_a_job_ended(state: JobState) -> None:
    codes = {"completed": 0, "partial": 6, "failed": 8, "cancelled": 8, "timeout": 8}
    assert exit_code_of(state) == codes.get(state)


def test_a_job_as_the_store_has_it() -> None:
    row = msgspec.structs.replace(ROW, state=JobState.PARTIAL, ended_ms=AT_MS, reason="why", tasks=3)
    facts = facts_of(row, {"completed": 2, "dead": 1})
    assert (facts.id, facts.name, facts.state, facts.kind, facts.reason) == ("j", "n", "partial", "dag", "why")
    assert (facts.submitted_at, facts.started_at, facts.ended_at) == (AT, AT, AT)
    assert (facts.tasks, facts.counts, facts.exit_code) == (3, {"completed": 2, "dead": 1}, 6)
    assert facts_of(msgspec.structs.replace(ROW, started_ms=AT_MS + 1000), {}).started_at == AT.replace("20.0", "21.0")


def test_a_job_as_memory_has_it() -> None:
    job = DagJob(ROW, DagSettings(), Random(1), lambda now: AT_MS)
    job.add(0, [TaskSpec("a", "h")], [()])
    job.start(0)
    facts = live_facts(job, 4)
    assert (facts.state, facts.tasks, facts.counts, facts.position) == ("running", 1, {"ready": 1}, 4)
    assert (facts.submitted_by, facts.ended_at, facts.exit_code) == ("me", "", None)
    job.cancel(0, "no")
    job.end(0)
    facts = live_facts(job, None)
    assert job.state is JobState.CANCELLED
    assert (facts.state, facts.reason, facts.exit_code) == ("completing", "no", None), "its end is not kept yet"


def test_a_task() -> None:
    view = task_view(TASK, b"")
    assert (view.id, view.state, view.handler, view.priority, view.depends_on) == ("a", "pending", "h", 7, ["b"])
    assert (view.worker, view.output, view.progress) == ("", msgspec.Raw(b"null"), msgspec.Raw(b"null"))
    row = replaced(TASK, worker="a#b#1#7", checkpoint=b"[1]", ready_ms=AT_MS, started_ms=AT_MS, attempts=2)
    view = task_view(row, b'"out"')
    assert (view.worker, view.output, view.progress) == ("a#b", msgspec.Raw(b'"out"'), msgspec.Raw(b"[1]"))
    assert (view.ready_at, view.started_at, view.ended_at, view.attempts) == (AT, AT, "", 2)
    ended = task_view(replaced(row, ended_ms=AT_MS, state=TaskState.DEAD, cause="E", error="E: no"), b"")
    assert (ended.ready_at, ended.ended_at, ended.cause, ended.error) == ("", AT, "E", "E: no")


@pytest.mark.parametrize(("state", "failures"), [(TaskState.COMPLETED, 3), (TaskState.DEAD, 4), (TaskState.PENDING, 3)])
def test_a_task_tells_how_many_of_its_attempts_count_against_it(state: TaskState, failures: int) -> None:
    row = replaced(TASK, state=state, attempts=7, failures=2, deaths=1)
    assert (task_view(row, b"").attempts, task_view(row, b"").failures) == (7, failures)


def test_memory_that_was_not_measured_is_not_shown_as_none_used() -> None:
    known = attempt_view(msgspec.structs.replace(ATTEMPT, memory_bytes=1 << 20))
    task = task_view(replaced(TASK, memory_bytes=7), b"")
    told = [msgspec.to_builtins(view).get("memory_bytes") for view in (attempt_view(ATTEMPT), known)]
    assert told == [None, 1 << 20]
    assert (task.memory_bytes, b"memory" in msgspec.json.encode(task_view(TASK, b""))) == (7, False)


def test_attempts_of_a_dead_letter() -> None:
    letter = dead_letter("j", replaced(TASK, state=TaskState.DEAD, cause="E", error="E: no", ended_ms=AT_MS), [ATTEMPT])
    assert (letter.id, letter.job, letter.task, letter.handler) == ("j/a", "j", "a", "h")
    assert (letter.cause, letter.error, letter.ended_at) == ("E", "E: no", AT)
    assert letter.attempts == [attempt_view(ATTEMPT)]
    (attempt,) = letter.attempts
    assert (attempt.attempt, attempt.worker, attempt.started_at, attempt.ended_at) == (2, "w", AT, AT)
    assert (attempt.cause, attempt.error, attempt.exit_code, attempt.signal) == ("E", "E: no", None, "")


def test_events_lines_and_schedules() -> None:
    event = event_view(EventRow(job=1, at_ms=AT_MS, kind="retry", index=0, text="t", number=5), "a")
    assert (event.at, event.kind, event.task, event.text, event.number) == (AT, "retry", "a", "t", 5)
    line = line_view(LogRow(job=1, index=0, attempt=2, at_ms=AT_MS, text="x"))
    assert (line.at, line.attempt, line.text) == (AT, 2, "x")
    row = ScheduleRow(name="s", cron="* * * * *", spec=b"", next_ms=AT_MS, last_job="j", timezone="Europe/Berlin")
    schedule = schedule_view(row, time_zone)
    assert (schedule.name, schedule.cron, schedule.next_at, schedule.last_job) == ("s", "* * * * *", AT, "j")
    assert (schedule.timezone, schedule.last_at, schedule.last_in_zone) == ("Europe/Berlin", "", "")
    assert datetime.fromisoformat(schedule.next_in_zone).utcoffset() and not schedule.paused
    lost = schedule_view(msgspec.structs.replace(row, timezone="Nowhere"), time_zone)
    assert lost.next_in_zone.endswith("+00:00"), "it is told in UTC at least"
