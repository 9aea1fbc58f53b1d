"""What every store of dag jobs does, whichever engine it is on: one suite for all of them."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Invalid
from talka.store.dags.records import KeyedRow, Lease, StoreTaken
from talka.store.dags.sqlite import SqliteRecords
from talka.store.dags.sqlite_file import AlreadyKept
from talka.work.lifecycle import JobState, TaskState, is_final
from talka.work.records import (
    JOB_STATES,
    TASK_STATES,
    AttemptRow,
    Change,
    ClaimTask,
    Complete,
    DropJob,
    DropSchedule,
    EventRow,
    Extend,
    JobRow,
    LiveTask,
    LogRow,
    MoveJob,
    PutAttempt,
    PutEvent,
    PutJob,
    PutLogs,
    PutSchedule,
    PutTasks,
    Release,
    Reset,
    ScheduleRow,
    TaskKey,
    TaskRow,
)

NOON_MS = 1_790_000_000_000
WHOLE_JOB = 1 << 31

Store: TypeAlias = SqliteRecords
"""The engines there are."""


class Crash(Exception):
    """The process ends here."""


class Engine(Protocol):
    """A place for one store, and what goes on between it and whoever uses it."""

    calls: list[str]
    """What was sent, in order."""
    crash_at: int | None
    """Before the statement of this number nothing reaches the store any more."""
    calls_of_a_read: int
    calls_of_a_change: int
    """Of changes of one kind, together with what begins and ends them."""

    def open(self) -> Store: ...


class SqliteEngine:
    calls_of_a_read = 1
    calls_of_a_change = 3

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: list[str] = []
        self.crash_at: int | None = None

    def open(self) -> Store:
        store = SqliteRecords(str(self.path))
        self.calls.clear()
        return store

    def send(self, statement: str) -> None:
        if self.crash_at is not None and len(self.calls) >= self.crash_at:
            raise Crash
        self.calls.append(statement)


@pytest.fixture(params=["sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = SqliteEngine(tmp_path / "jobs.sqlite")

    class Counted(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            engine.send(sql)
            return super().execute(sql, *values)

        def executemany(self, sql: str, *values: Any) -> sqlite3.Cursor:
            engine.send(sql)
            return super().executemany(sql, *values)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *places, **options: connect(*places, factory=Counted, **options))
    return engine


@pytest.fixture
def store(engine: Engine) -> Iterator[Store]:
    with contextlib.closing(engine.open()) as store:
        yield store


EMPTY_STORES: dict[str, Callable[[], Store]] = {"sqlite": lambda: SqliteRecords(":memory:")}


def job(number: int = 1, **values: Any) -> JobRow:
    row = JobRow(number=number, id=f"job-{number}", name="etl", state=JobState.RUNNING, submitted_ms=1, settings=b"{}")
    return msgspec.structs.replace(row, **values)


def task(index: int = 0, number: int = 1, handler: str = "sum", **values: Any) -> TaskRow:
    id = f"t{index}"
    spec = msgspec.json.encode({"id": id, "handler": handler, "priority": 1 + index % 10})
    row = TaskRow(job=number, index=index, id=id, state=TaskState.PENDING, spec=spec)
    return msgspec.structs.replace(row, **values)


def claim(index: int = 0, fence: int = 7, number: int = 1) -> ClaimTask:
    return ClaimTask(number, index, 1, fence, "ada#1", NOON_MS)


def completed(index: int = 0, fence: int = 7, number: int = 1, **values: Any) -> Complete:
    return Complete(number, index, fence, TaskState.COMPLETED, NOON_MS + 5, **values)


def filled(store: Store, tasks: int = 1, number: int = 1) -> None:
    store.apply([PutJob(job(number, tasks=tasks)), PutTasks(tuple(task(index, number) for index in range(tasks)))])


def only(store: Store, index: int = 0, number: int = 1) -> TaskRow:
    row = store.task(number, f"t{index}")
    assert row is not None
    return row


def everything(store: Store) -> list[object]:
    """All that can be read."""
    numbers = [row.number for row in store.jobs((), WHOLE_JOB, 1000)]
    keys = [(row.job, row.index) for number in numbers for row in store.tasks(number, (), -1, 1000)]
    return [
        store.jobs((), WHOLE_JOB, 1000),
        [store.tasks(number, (), -1, 1000) for number in numbers],
        [store.events(number, 0, 1000) for number in numbers],
        [store.logs(*key, 0, 1000) for key in keys],
        store.attempts(keys),
        store.schedules(),
        store.keyed(["k0", "k1", "k2"]),
        list(store.leases("")),
    ]


# Jobs.


def test_a_job_is_read_as_it_was_put(store: Store) -> None:
    row = job(
        3,
        tasks=2,
        key="monday",
        digest="abc",
        submitted_by="ada",
        started_ms=5,
        ended_ms=6,
        reason="why",
        state=JobState.PARTIAL,
        counts={"completed": 1, "dead": 1},
        settings=b'{"on_failure":"continue"}',
    )
    assert store.apply([PutJob(row)]) == [1]
    assert store.job("job-3") == store.job_by_key("monday") == row
    assert store.job("job-4") is None and store.job_by_key("tuesday") is None


def test_jobs_without_a_key_are_not_found_by_the_empty_one(store: Store) -> None:
    store.apply([PutJob(job(1)), PutJob(job(2))])
    assert store.job_by_key("") is None


@pytest.mark.parametrize(
    "again",
    [PutJob(job(1, id="other")), PutJob(job(2, id="job-1")), PutJob(job(2, key="monday")), PutTasks((task(0),))],
    ids=["number", "id", "key", "task"],
)
def test_what_is_kept_already_is_refused_with_its_whole_batch(store: Store, again: Change) -> None:
    store.apply([PutJob(job(1, key="monday")), PutTasks((task(0),))])
    before = everything(store)
    with pytest.raises(AlreadyKept, match="kept already"):
        store.apply([PutTasks((task(1),)), MoveJob(1, JobState.PAUSED, 9), again])
    assert everything(store) == before


def test_numbers_of_jobs_are_never_used_twice(engine: Engine) -> None:
    store = engine.open()
    assert store.next_number() == 1
    store.apply([PutJob(job(41)), PutJob(job(7))])
    assert store.next_number() == 42
    store.apply([DropJob(41)])
    store.close()
    with contextlib.closing(engine.open()) as again:
        assert again.next_number() == 42


def test_jobs_are_live_until_they_end_and_when_they_are_run_again(store: Store) -> None:
    store.apply([PutJob(job(number, state=state)) for number, state in enumerate(JOB_STATES, 1)])
    live = [number for number, state in enumerate(JOB_STATES, 1) if not is_final(state)]
    assert [row.number for row in store.live_jobs()] == live
    store.apply([MoveJob(len(JOB_STATES), JobState.RUNNING, 9), MoveJob(1, JobState.CANCELLED, 9)])
    assert [row.number for row in store.live_jobs()] == [*live[1:], len(JOB_STATES)]


def test_jobs_are_listed_newest_first_by_state_and_page(store: Store) -> None:
    states = [JobState.FAILED, JobState.RUNNING, JobState.FAILED, JobState.PAUSED]
    store.apply([PutJob(job(number, state=state)) for number, state in enumerate(states, 1)])

    def numbers(*asked: Any) -> list[int]:
        return [row.number for row in store.jobs(*asked)]

    assert numbers((), 1000, 10) == [4, 3, 2, 1]
    assert numbers((), 3, 1) == [2]
    assert numbers(("failed", JobState.PAUSED), 1000, 10) == [4, 3, 1]
    assert numbers((), 1000, 0) == []
    with pytest.raises(Invalid, match="no state 'done': write one of submitted, queued"):
        store.jobs(("done",), 1000, 10)


def test_moves_of_a_job_tell_when_it_started_and_ended(store: Store) -> None:
    store.apply([PutJob(job(state=JobState.SUBMITTED))])
    assert store.apply([MoveJob(1, JobState.RUNNING, 10, tasks=3), MoveJob(2, JobState.RUNNING, 10)]) == [1, 0]
    store.apply([MoveJob(1, JobState.PAUSED, 11, reason="by ada"), MoveJob(1, JobState.RUNNING, 12)])
    running = job(started_ms=10, tasks=3)
    assert store.job("job-1") == running
    store.apply([MoveJob(1, JobState.FAILED, 13, reason="t1 failed", counts={"failed": 3})])
    ended = msgspec.structs.replace(
        running, state=JobState.FAILED, ended_ms=13, reason="t1 failed", counts={"failed": 3}
    )
    assert store.job("job-1") == ended
    store.apply([MoveJob(1, JobState.CANCELLED, 14)])
    assert store.job("job-1") == msgspec.structs.replace(ended, state=JobState.CANCELLED, ended_ms=14, reason="")
    store.apply([MoveJob(1, JobState.RUNNING, 15)])
    assert store.job("job-1") == running


def test_a_dropped_job_takes_all_that_is_its_own_with_it_and_nothing_else(store: Store) -> None:
    for number in (1, 2):
        filled(store, 2, number)
        store.apply(
            [
                claim(0, 7, number),
                completed(0, 7, number, key=f"k{number}", output=b"1"),
                PutAttempt(attempt(1, 3, number)),
                PutEvent(EventRow(job=number, at_ms=1, kind="started")),
                PutLogs((LogRow(job=number, index=0, attempt=1, at_ms=1, text="hello"),)),
            ]
        )
    assert store.apply([DropJob(1), DropJob(9)]) == [1, 0]
    assert store.job("job-1") is None and store.task(1, "t0") is None and store.counts(1) == {}
    assert not store.attempts([(1, 1)]) and not store.events(1, 0, 9) and not store.logs(1, 0, 0, 9)
    assert list(store.keyed(["k1", "k2"])) == ["k2"]
    assert store.job("job-2") is not None and store.counts(2) == {"pending": 1, "completed": 1}
    assert len(store.attempts([(2, 1)])) == len(store.events(2, 0, 9)) == len(store.logs(2, 0, 0, 9)) == 1


# Tasks.


def test_a_task_is_read_as_it_was_put(store: Store) -> None:
    row = task(
        5,
        depends_on=(0, 70_000, 4_000_000_000),
        attempts=2,
        fence=(3 << 32) + 9,
        worker="ada#1",
        ready_ms=1,
        started_ms=2,
        ended_ms=3,
        output=b'"\x00\xff"',
        blob="d" * 64,
        error="it broke\0here",
        cause="exit",
        deaths=1,
        checkpoint=b"[1]",
        state=TaskState.DEAD,
        failures=4,
    )
    assert store.apply([PutTasks((row, task(6)))]) == [2]
    assert store.task(1, "t5") == row
    assert store.task(1, "t7") is None and store.task(2, "t5") is None
    assert store.tasks(1, (), -1, 10) == [row, task(6)]


def test_live_tasks_have_what_a_manager_must_know_page_by_page(store: Store) -> None:
    filled(store, 5)
    store.apply([PutTasks((task(5, depends_on=(1, 258)),)), PutTasks((task(0, 2),)), claim(3, 9)])
    pages = [store.live_tasks(1, after, 2) for after in (-1, 1, 3, 5)]
    assert [[one.index for one in page] for page in pages] == [[0, 1], [2, 3], [4, 5], []]
    assert pages[1][1] == LiveTask(3, 2, "t3", b"", 1, 9, "ada#1", 0, 0, "sum", 4, 0)
    assert pages[2][1].depends_on == bytes([1, 0, 0, 0, 2, 1, 0, 0])
    store.apply([Release(1, 3, 9, 88, 2, deaths=1, failures=2)])
    assert store.live_tasks(1, 2, 1) == [LiveTask(3, 0, "t3", b"", 2, 9, "ada#1", 88, 1, "sum", 4, 2)]


def test_tasks_are_listed_and_counted_by_state(store: Store) -> None:
    filled(store, 4)
    store.apply([claim(1, 5), claim(2, 6), completed(2, 6)])
    assert store.counts(1) == {"pending": 2, "assigned": 1, "completed": 1}
    assert [row.index for row in store.tasks(1, ("pending", "assigned"), 0, 2)] == [1, 3]
    assert [row.index for row in store.tasks(1, (), -1, 0)] == []
    with pytest.raises(Invalid, match="no state 'done'"):
        store.tasks(1, ("done",), -1, 10)


def test_specs_and_outputs_are_fetched_for_many_tasks_at_once(store: Store) -> None:
    filled(store, 3)
    store.apply([claim(0, 5), Extend(1, 0, 5, b"[3]"), completed(0, 5, output=b"12"), claim(1, 6)])
    store.apply([completed(1, 6, blob="e" * 64)])
    keys: list[TaskKey] = [(1, 1), (1, 0), (1, 2), (1, 9), (1, 1)]
    assert store.specs(keys) == {
        (1, 1): (task(1).spec, b""),
        (1, 0): (task(0).spec, b"[3]"),
        (1, 2): (task(2).spec, b""),
    }
    assert store.outputs(keys) == {(1, 1): (b"", "e" * 64), (1, 0): (b"12", "")}
    assert not store.specs([]) and not store.outputs([])


def test_a_spec_that_is_no_json_is_refused_with_its_whole_batch(store: Store) -> None:
    with pytest.raises(Invalid, match="no JSON of a task"):
        store.apply([PutJob(job()), PutTasks((task(spec=b"{"),))])
    assert store.job("job-1") is None


def test_a_number_that_no_store_can_hold_is_refused(store: Store) -> None:
    with pytest.raises(Invalid, match="a number is too large"):
        store.apply([PutJob(job()), PutTasks((task(ready_ms=1 << 70),))])
    assert store.job("job-1") is None


# Attempts and their fences.


def test_a_claimed_task_is_assigned_under_its_fence(store: Store) -> None:
    filled(store)
    assert store.apply([ClaimTask(1, 0, 2, 7, "ada#1", NOON_MS)]) == [1]
    wanted = task(state=TaskState.ASSIGNED, attempts=2, fence=7, worker="ada#1", started_ms=NOON_MS)
    assert only(store) == wanted


def test_a_claim_below_the_fence_of_a_task_changes_nothing(store: Store) -> None:
    filled(store)
    assert store.apply([claim(fence=7), claim(fence=6), claim(fence=8), claim(index=1)]) == [1, 0, 1, 0]
    assert store.apply([claim(fence=8)]) == [1]  # a batch that is made once more
    assert only(store).fence == 8


def test_a_completed_task_has_its_output_and_keeps_who_ran_it(store: Store) -> None:
    filled(store)
    store.apply([claim()])
    assert store.apply([completed(output=b"[1]", cause="c", error="e")]) == [1]
    wanted = task(
        state=TaskState.COMPLETED,
        attempts=1,
        fence=7,
        worker="ada#1",
        started_ms=NOON_MS,
        ended_ms=NOON_MS + 5,
        output=b"[1]",
        cause="c",
        error="e",
    )
    assert only(store) == wanted


def test_an_end_may_tell_better_who_ran_it_and_since_when(store: Store) -> None:
    filled(store)
    store.apply([claim(), completed(worker="bob#2", started_ms=NOON_MS + 1, attempts=4)])
    row = only(store)
    assert (row.worker, row.started_ms, row.attempts) == ("bob#2", NOON_MS + 1, 4)


def test_a_result_under_another_fence_changes_nothing(store: Store) -> None:
    filled(store)
    store.apply([claim(fence=7)])
    before = only(store)
    stale: list[Change] = [completed(fence=6, output=b"1"), Release(1, 0, 8, 5, 1), Extend(1, 0, 6, b"1")]
    assert store.apply(stale) == [0, 0, 0]
    assert only(store) == before


def test_of_two_results_under_one_fence_the_first_counts(store: Store) -> None:
    filled(store)
    store.apply([claim()])
    assert store.apply([completed(output=b"1"), completed(output=b"2")]) == [1, 0]
    assert only(store).output == b"1"


@pytest.mark.parametrize("state", [state for state in TASK_STATES if is_final(state)])
def test_a_task_that_has_ended_is_never_changed_again(store: Store, state: TaskState) -> None:
    row = task(state=state, fence=7, attempts=1, output=b"1")
    store.apply([PutTasks((row,))])
    late: list[Change] = [
        claim(fence=9),
        completed(),
        completed(fence=0),
        Release(1, 0, 7, 1, 1),
        Release(1, 0, 0, 1, 1),
    ]
    assert store.apply([*late, Extend(1, 0, 7, b"2")]) == [0] * 6
    assert only(store) == row


@pytest.mark.parametrize("state", [state for state in TASK_STATES if not is_final(state)])
def test_a_task_that_has_not_ended_may_be_ended_whatever_its_fence(store: Store, state: TaskState) -> None:
    store.apply([PutTasks((task(state=state, fence=7),))])
    assert store.apply([Complete(1, 0, 0, TaskState.SKIPPED, 9, cause="skipped")]) == [1]
    assert (only(store).state, only(store).fence) == (TaskState.SKIPPED, 7)


def test_a_released_task_waits_again_and_its_next_attempt_has_a_higher_fence(store: Store) -> None:
    filled(store)
    store.apply([claim(fence=7)])
    assert store.apply([Release(1, 0, 7, 99, 1, 1, "exit", "code 3", 1), Release(1, 0, 0, 98, 2)]) == [1, 1]
    assert store.apply([Release(1, 0, 7, 99, 1, 1, "exit", "code 3", 1)]) == [1]
    row = only(store)
    assert (row.state, row.ready_ms, row.deaths, row.failures) == (TaskState.PENDING, 99, 1, 1)
    assert (row.cause, row.error, row.fence) == ("exit", "code 3", 7)
    assert store.apply([claim(fence=8), completed(fence=7), completed(fence=8)]) == [1, 0, 1]


def test_the_last_checkpoint_stays_for_the_next_attempt(store: Store) -> None:
    filled(store)
    store.apply([claim(), Extend(1, 0, 7, b"[1]"), Extend(1, 0, 7, b"[2]"), Release(1, 0, 7, 0, 1), claim(fence=8)])
    assert store.specs([(1, 0)])[1, 0] == (task().spec, b"[2]")


def test_a_task_that_is_run_again_forgets_all_but_its_spec(store: Store) -> None:
    filled(store, 2)
    store.apply([claim(), Extend(1, 0, 7, b"[1]"), completed(output=b"1", blob="b", error="e", cause="c")])
    spec = b'{"id":"t1","handler":"product","priority":9}'
    assert store.apply([Reset(1, 0), Reset(1, 1, spec), Reset(1, 2)]) == [1, 1, 0]
    assert only(store) == task()
    assert only(store, 1).spec == spec
    assert [(one.handler, one.priority) for one in store.live_tasks(1, -1, 9)] == [("sum", 1), ("product", 9)]


def test_a_result_of_before_is_not_taken_for_one_of_a_task_that_is_run_again(store: Store) -> None:
    filled(store)
    store.apply([claim(), completed(output=b"1"), Reset(1, 0)])
    assert store.apply([completed(output=b"2")]) == [0]
    assert store.apply([claim(fence=8), completed(fence=7), completed(fence=8, output=b"3")]) == [1, 0, 1]
    assert only(store).output == b"3"


def attempt(index: int = 0, fence: int = 7, number: int = 1, **values: Any) -> AttemptRow:
    row = AttemptRow(
        job=number, index=index, attempt=1, fence=fence, worker="ada#1", started_ms=1, ended_ms=2, cause="exit"
    )
    return msgspec.structs.replace(row, **values)


def test_failed_attempts_are_kept_in_order(store: Store) -> None:
    second = attempt(1, 9, attempt=2, error="e", exit_code=3, signal="SIGKILL", memory_bytes=1 << 40)
    rows = [attempt(1, 8), second, attempt(0, 7), attempt(2, 6)]
    assert store.apply([PutAttempt(row) for row in [second, *rows]]) == [1] * 5
    assert store.attempts([(1, 1), (1, 0), (1, 5)]) == [attempt(0, 7), attempt(1, 8), second]


# Idempotency keys.


def test_what_completed_under_a_key_is_found_by_it(store: Store) -> None:
    filled(store, 3)
    changes: list[Change] = [claim(index, 7 + index) for index in range(3)]
    changes += [completed(0, 7, key="k0", output=b"5"), completed(1, 8), completed(2, 9, key="k2", blob="f" * 64)]
    assert store.apply(changes) == [1] * 6
    wanted = {"k0": KeyedRow("job-1", "t0", b"5", ""), "k2": KeyedRow("job-1", "t2", b"", "f" * 64)}
    assert store.keyed(["k2", "k0", "k1", "k0\0"]) == wanted


def test_a_key_is_remembered_of_no_result_that_was_refused(store: Store) -> None:
    filled(store, 2)
    store.apply([claim(0, 7), claim(1, 8)])
    store.apply([completed(0, 6, key="k0"), Complete(1, 1, 8, TaskState.DEAD, 1, key="k1")])
    store.apply([completed(0, 7), completed(0, 6, key="k0")])
    assert store.keyed(["k0", "k1"]) == {}


def test_a_key_is_forgotten_while_its_task_is_run_again(store: Store) -> None:
    filled(store)
    store.apply([claim(), completed(key="k0", output=b"1"), Reset(1, 0)])
    assert store.keyed(["k0"]) == {}
    store.apply([claim(fence=8), completed(fence=8, key="k0", output=b"2")])
    assert store.keyed(["k0"]) == {"k0": KeyedRow("job-1", "t0", b"2", "")}


def test_the_latest_that_completed_under_a_key_is_its_task(store: Store) -> None:
    filled(store, 2)
    store.apply([completed(0, 0, key="k0", output=b"1"), completed(1, 0, key="k0", output=b"2")])
    assert store.keyed(["k0"]) == {"k0": KeyedRow("job-1", "t1", b"2", "")}


# Events, logs, dead letters, schedules.


def test_events_of_a_job_are_read_on_from_a_number(store: Store) -> None:
    store.apply([PutEvent(EventRow(job=1 + n % 2, at_ms=n, kind=f"kind {n}", index=n - 1, text="x")) for n in range(6)])
    first = store.events(1, 0, 2)
    assert [(row.kind, row.at_ms, row.index, row.text) for row in first] == [
        ("kind 0", 0, -1, "x"),
        ("kind 2", 2, 1, "x"),
    ]
    assert 0 < first[0].number < first[1].number
    assert [row.kind for row in store.events(1, first[1].number, 9)] == ["kind 4"]


def test_lines_of_a_log_are_read_on_from_a_number(store: Store) -> None:
    lines = tuple(LogRow(job=1, index=n % 2, attempt=1, at_ms=n, text=f"line {n}") for n in range(6))
    assert store.apply([PutLogs(lines[:4]), PutLogs(()), PutLogs(lines[4:])]) == [4, 0, 2]
    first = store.logs(1, 1, 0, 2)
    assert [(row.text, row.at_ms, row.attempt, row.index) for row in first] == [
        ("line 1", 1, 1, 1),
        ("line 3", 3, 1, 1),
    ]
    assert [row.text for row in store.logs(1, 1, first[1].number, 9)] == ["line 5"]
    assert store.logs(2, 1, 0, 9) == []


def test_dead_letters_are_listed_across_jobs_page_by_page(store: Store) -> None:
    for number in (2, 1, 3):
        filled(store, 3, number)
    dead = [(1, 2), (2, 0), (2, 2), (3, 1)]
    store.apply([Complete(number, index, 0, TaskState.DEAD, 9) for number, index in reversed(dead)])
    store.apply([Complete(1, 0, 0, TaskState.FAILED, 9)])
    assert [(row.job, row.index) for row in store.dead_letters((0, -1), 9)] == dead
    assert [(row.job, row.index) for row in store.dead_letters((1, 2), 2)] == dead[1:3]
    assert [(row.job, row.index) for row in store.dead_letters((2, -1), 1)] == [(2, 0)]
    store.apply([Reset(2, 0)])
    assert [(row.job, row.index) for row in store.dead_letters((1, 2), 1)] == [(2, 2)]


def test_schedules_are_put_replaced_and_dropped(store: Store) -> None:
    nightly = ScheduleRow(name="nightly", cron="0 3 * * *", spec=b"{}", next_ms=5, last_job="job-1", submitted_by="ada")
    hourly = ScheduleRow(name="hourly", cron="0 * * * *", spec=b"{}", next_ms=6)
    store.apply([PutSchedule(nightly), PutSchedule(hourly)])
    later = msgspec.structs.replace(nightly, next_ms=9)
    assert store.apply([PutSchedule(later), DropSchedule("weekly")]) == [1, 0]
    assert store.schedules() == [hourly, later]
    assert store.apply([DropSchedule("hourly"), PutSchedule(hourly), DropSchedule("hourly")]) == [1, 1, 1]
    assert store.schedules() == [later]


# Retention.


def ended(number: int, ended_ms: int) -> PutJob:
    return PutJob(job(number, state=JobState.COMPLETED, ended_ms=ended_ms))


def kept(store: Store) -> list[int]:
    return sorted(row.number for row in store.jobs((), 1000, 100))


def test_jobs_are_swept_by_the_age_of_the_store_and_never_before_they_end(store: Store) -> None:
    store.apply([ended(1, 50), PutJob(job(4)), PutTasks((task(0, 2), task(0, 1)))])
    assert store.sweep(0, 100, 100, 10) == 0, "its end is seen now"
    store.apply([ended(2, 10), ended(3, 49)])
    assert store.sweep(60, 100, 100, 10) == 0
    assert store.sweep(39, 100, 100, 10) == 0
    assert store.sweep(1, 100, 100, 10) == 1
    assert kept(store) == [2, 3, 4]
    assert store.counts(1) == {} and store.counts(2) == {"pending": 1}
    assert store.sweep(59, 100, 100, 10) == 0
    assert store.sweep(1, 100, 100, 1) == 1
    assert store.sweep(0, 100, 100, 10) == 1
    assert kept(store) == [4]


@pytest.mark.parametrize("wrong_ms", [1, 1 << 50], ids=["long ago", "far ahead"])
def test_an_end_that_a_wrong_clock_put_down_is_kept_as_long_as_any_other(store: Store, wrong_ms: int) -> None:
    store.apply([ended(1, NOON_MS), ended(2, wrong_ms)])
    assert store.sweep(0, 100, 100, 10) == 0
    assert store.sweep(99, 100, 100, 10) == 0
    assert store.sweep(1, 100, 100, 10) == 2


def test_a_job_that_runs_again_is_as_old_as_its_last_end(store: Store) -> None:
    store.apply([ended(1, 50)])
    store.sweep(0, 100, 100, 10)
    store.apply([MoveJob(1, JobState.RUNNING, 60)])
    assert store.sweep(200, 100, 100, 10) == 0
    store.apply([MoveJob(1, JobState.COMPLETED, 61)])
    assert store.sweep(50, 100, 100, 10) == 0
    assert store.sweep(99, 100, 100, 10) == 0
    assert store.sweep(1, 100, 100, 10) == 1


def test_the_age_of_a_store_never_falls_and_outlives_its_process(engine: Engine) -> None:
    for grown_ms, gone in [(0, 0), (60, 0), (-1000, 0), (40, 1)]:
        store = engine.open()
        if not gone and not store.jobs((), 1000, 1):
            store.apply([ended(1, 50)])
        assert store.sweep(grown_ms, 100, 100, 10) == gone
        store.close()


def test_jobs_are_swept_by_count_the_one_that_ended_first_goes_first(store: Store) -> None:
    store.apply([ended(1, 50), ended(2, 10), ended(3, 30), PutJob(job(4)), ended(5, 40)])
    assert store.sweep(0, 1000, 2, 1) == 1
    assert kept(store) == [1, 3, 4, 5]
    assert store.sweep(0, 1000, 2, 10) == 1
    assert kept(store) == [1, 4, 5]
    store.apply([ended(6, 1)])
    assert store.sweep(1, 1000, 1, 10) == 2
    assert kept(store) == [4, 6], "whatever the clock says, that was seen later"
    assert store.sweep(0, 1000, 0, 10) == 1
    assert kept(store) == [4]


# Leases.


def test_a_free_key_is_leased_until_it_is_let_go_however_long_that_takes(store: Store) -> None:
    wanted = [Lease("a", "ada", 1, 0), Lease("b", "ada", 1, 0)]
    assert sorted(store.acquire(["b", "a", "b"], "ada")) == wanted == list(store.leases(""))
    assert [lease.key for lease in store.acquire(["a", "c"], "bob")] == ["c"]
    assert store.release("ada", [("a", 1)]) == 1
    assert [(lease.key, lease.owner, lease.epoch) for lease in store.acquire(["a", "b"], "bob")] == [("a", "bob", 2)]


def test_a_lease_that_is_merely_held_on_keeps_its_epoch_and_its_beat_grows(store: Store) -> None:
    (first,) = store.acquire(["a"], "ada")
    (again,) = store.acquire(["a"], "ada")
    (renewed,) = store.renew("ada", [("a", 1)])
    assert [lease.epoch for lease in (first, again, renewed)] == [1, 1, 1]
    assert first.beat < again.beat < renewed.beat
    assert list(store.leases("")) == [renewed]


def test_a_lease_is_taken_only_as_it_was_seen(store: Store) -> None:
    seen = store.acquire(["a", "b"], "ada")
    store.renew("ada", [("a", 1)])
    assert [(lease.key, lease.owner, lease.epoch) for lease in store.take("bob", seen)] == [("b", "bob", 2)]
    assert store.take("eve", seen) == []
    now = list(store.leases(""))
    assert [(lease.key, lease.owner) for lease in now] == [("a", "ada"), ("b", "bob")]
    assert [lease.owner for lease in store.take("eve", now)] == ["eve", "eve"]


def test_a_lease_that_was_taken_over_cannot_be_renewed_or_released(store: Store) -> None:
    (held,) = store.take("bob", store.acquire(["a"], "ada"))
    assert store.renew("ada", [("a", 1)]) == store.renew("ada", [("a", 2)]) == []
    assert store.renew("bob", [("a", 1)]) == []
    assert store.release("ada", [("a", 1)]) == store.release("bob", [("a", 1)]) == 0
    assert list(store.leases("")) == [held]


def test_epochs_outlive_release_take_over_and_a_restart(engine: Engine) -> None:
    for epoch in range(1, 7):
        store = engine.open()
        found = store.take(f"boot-{epoch}", list(store.leases(""))) or store.acquire(["a"], f"boot-{epoch}")
        assert [lease.epoch for lease in found] == [epoch]
        if epoch % 2:
            assert store.release(f"boot-{epoch}", [("a", epoch), ("b", 1)]) == 1
            assert list(store.leases("")) == []
        store.close()


def test_leases_are_listed_by_the_beginning_of_their_key(store: Store) -> None:
    store.acquire(["limit/a", "limit/b", "limits", "manager", "limit%"], "ada")
    assert [lease.key for lease in store.leases("limit/")] == ["limit/a", "limit/b"]
    assert [lease.key for lease in store.leases("limit%")] == ["limit%"]
    assert [lease.key for lease in store.leases("manager")] == ["manager"]


def test_many_leases_are_renewed_and_released_at_once(store: Store) -> None:
    keys = [f"slot/{number}" for number in range(300)]
    held = [(lease.key, lease.epoch) for lease in store.acquire(keys, "ada")]
    assert len(store.renew("ada", [*held, ("slot/0", 9), ("else", 1)])) == 300
    assert store.release("ada", held[:100]) == 100
    assert store.release("ada", held[:101]) == 1
    assert len(list(store.leases("slot/"))) == 199


@pytest.mark.parametrize(("key", "owner"), [("a\0b", "ada"), ("a", "")], ids=["key", "owner"])
def test_a_lease_that_could_be_mistaken_for_another_is_refused(store: Store, key: str, owner: str) -> None:
    with pytest.raises(Invalid, match="an owner has a name"):
        store.acquire(["b", key], owner)
    assert list(store.leases("")) == []
    assert store.renew("ada", [("a\0b", 1)]) == store.take("ada", [Lease("a\0b", "", 1, 0)]) == []
    with pytest.raises(Invalid, match="an owner has a name"):
        store.take("", store.acquire(["b"], "ada"))


# Changes under a lease.


def test_who_lost_its_lease_changes_nothing_whatever_it_tries(engine: Engine) -> None:
    with contextlib.closing(engine.open()) as ada, contextlib.closing(engine.open()) as bob:
        (held,) = ada.acquire(["manager"], "ada")
        ada.fence(held)
        filled(ada, 2)
        (taken,) = bob.take("bob", [held])
        bob.fence(taken)
        before = everything(bob)
        for changes in ([PutJob(job(2))], [claim()], [completed(fence=0)], [], [claim(), completed(5)]):
            with pytest.raises(StoreTaken, match="another manager has taken the store"):
                ada.apply(changes)
        with pytest.raises(StoreTaken):
            ada.sweep(1000, 0, 0, 10)
        assert everything(bob) == before
        assert bob.apply([claim()]) == [1]


def test_who_let_its_lease_go_changes_nothing_until_it_has_another(engine: Engine) -> None:
    with contextlib.closing(engine.open()) as ada:
        (held,) = ada.acquire(["manager"], "ada")
        ada.fence(held)
        ada.release("ada", [("manager", 1)])
        with pytest.raises(StoreTaken):
            ada.apply([PutJob(job(1))])
        (again,) = ada.acquire(["manager"], "ada")
        with pytest.raises(StoreTaken):
            ada.apply([PutJob(job(1))])
        ada.fence(again)
        assert ada.apply([PutJob(job(1))]) == [1]


def test_the_lease_is_looked_up_in_the_transaction_of_the_change(engine: Engine, store: Store) -> None:
    (held,) = store.acquire(["manager"], "ada")
    store.fence(held)
    engine.calls.clear()
    store.apply([PutJob(job(1))])
    assert len(engine.calls) == engine.calls_of_a_change + 1


# One round trip for a batch, and all of it or nothing.


READS: dict[str, Callable[[Store, int], object]] = {
    "next_number": lambda store, count: store.next_number(),
    "live_jobs": lambda store, count: store.live_jobs(),
    "live_tasks": lambda store, count: store.live_tasks(1, -1, count),
    "job": lambda store, count: store.job("job-1"),
    "job_by_key": lambda store, count: store.job_by_key("k"),
    "jobs": lambda store, count: store.jobs(("running",), 1000, count),
    "specs": lambda store, count: store.specs([(1, index) for index in range(count)]),
    "outputs": lambda store, count: store.outputs([(1, index) for index in range(count)]),
    "keyed": lambda store, count: store.keyed([f"k{index}" for index in range(count)]),
    "tasks": lambda store, count: store.tasks(1, ("pending",), -1, count),
    "task": lambda store, count: store.task(1, "t1"),
    "counts": lambda store, count: store.counts(1),
    "attempts": lambda store, count: store.attempts([(1, index) for index in range(count)]),
    "events": lambda store, count: store.events(1, 0, count),
    "logs": lambda store, count: store.logs(1, 0, 0, count),
    "dead_letters": lambda store, count: store.dead_letters((0, -1), count),
    "schedules": lambda store, count: store.schedules(),
    "leases": lambda store, count: list(store.leases("")),
}


@pytest.mark.parametrize("verb", READS)
def test_every_question_is_one_round_trip_however_much_is_asked(engine: Engine, store: Store, verb: str) -> None:
    filled(store, 200)
    for count in (1, 200):
        engine.calls.clear()
        READS[verb](store, count)
        assert len(engine.calls) == engine.calls_of_a_read


LEASE_VERBS: dict[str, Callable[[Store, int], object]] = {
    "acquire": lambda store, count: store.acquire([f"k{number}" for number in range(count)], "bob"),
    "renew": lambda store, count: store.renew("ada", [(f"k{number}", 1) for number in range(count)]),
    "take": lambda store, count: store.take("bob", [Lease(f"k{number}", "ada", 1, 1) for number in range(count)]),
    "release": lambda store, count: store.release("ada", [(f"k{number}", 1) for number in range(count)]),
}


@pytest.mark.parametrize("verb", LEASE_VERBS)
def test_every_verb_of_leases_is_one_round_trip_for_all_keys(engine: Engine, store: Store, verb: str) -> None:
    store.acquire([f"k{number}" for number in range(200)], "ada")
    for count in (1, 200):
        engine.calls.clear()
        LEASE_VERBS[verb](store, count)
        assert len(engine.calls) == engine.calls_of_a_change


CHANGES: dict[str, Callable[[int], list[Change]]] = {
    "put_job": lambda count: [PutJob(job(10 + number)) for number in range(count)],
    "put_tasks": lambda count: [PutTasks((task(number, 10),)) for number in range(count)],
    "claim": lambda count: [claim(index, 9) for index in range(count)],
    "complete": lambda count: [completed(index, 7) for index in range(count)],
    "release": lambda count: [Release(1, index, 7, 0, 1) for index in range(count)],
    "extend": lambda count: [Extend(1, index, 7, b"1") for index in range(count)],
    "reset": lambda count: [Reset(1, index) for index in range(count)],
    "put_attempt": lambda count: [PutAttempt(attempt(index)) for index in range(count)],
    "put_event": lambda count: [PutEvent(EventRow(job=1, at_ms=1, kind="x")) for _ in range(count)],
    "put_logs": lambda count: [PutLogs((LogRow(job=1, index=0, attempt=1, at_ms=1, text="x"),))] * count,
    "move_job": lambda count: [MoveJob(1, JobState.RUNNING, 1)] * count,
    "put_schedule": lambda count: [
        PutSchedule(ScheduleRow(name=f"s{number}", cron="", spec=b"", next_ms=1)) for number in range(count)
    ],
}


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("count", [1, 200])
def test_changes_of_one_kind_are_one_round_trip_however_many(
    engine: Engine, store: Store, kind: str, count: int
) -> None:
    filled(store, 200)
    store.apply([claim(index, 7) for index in range(200)])
    engine.calls.clear()
    assert store.apply(CHANGES[kind](count)) == [1] * count
    assert len(engine.calls) == engine.calls_of_a_change


def test_changes_of_many_tasks_in_turns_are_as_few_round_trips_as_they_have_kinds(engine: Engine, store: Store) -> None:
    filled(store, 100)
    store.apply([claim(index, 7) for index in range(50)])
    changes: list[Change] = []
    for index in range(50):
        changes += [
            completed(index, 7),
            claim(index + 50, 8),
            PutEvent(EventRow(job=1, at_ms=index, kind="x")),
            MoveJob(1, JobState.RUNNING, 1),
        ]
    engine.calls.clear()
    assert store.apply(changes) == [1] * 200
    assert len(engine.calls) == engine.calls_of_a_change + 3
    assert store.counts(1) == {"assigned": 50, "completed": 50}
    assert [row.at_ms for row in store.events(1, 0, 100)] == list(range(50))


def all_kinds() -> list[Change]:
    """At least one of every kind, some of them refused and some about one task."""
    return [
        PutJob(job(2)),
        PutTasks((task(0, 2), task(1, 2), task(2, 2))),
        claim(0, 7, 2),
        completed(0, 7, 2, key="k0", output=b"1"),
        claim(1, 8, 2),
        completed(1, 3, 2),
        Extend(2, 1, 8, b"[1]"),
        Release(2, 1, 8, 5, 1),
        PutAttempt(attempt(1, 8, 2)),
        Reset(1, 0, b'{"id":"t0","handler":"other"}'),
        PutEvent(EventRow(job=2, at_ms=1, kind="started")),
        PutLogs((LogRow(job=2, index=0, attempt=1, at_ms=1, text="hello"),)),
        PutSchedule(ScheduleRow(name="nightly", cron="0 3 * * *", spec=b"{}", next_ms=5)),
        DropSchedule("hourly"),
        MoveJob(2, JobState.COMPLETED, 9, counts={"completed": 1, "pending": 2}),
        DropJob(3),
    ]


@pytest.mark.parametrize("with_refusals", [False, True], ids=["all changes are made", "some changes are refused"])
def test_a_crash_between_any_two_statements_leaves_all_of_a_batch_or_nothing(
    engine: Engine, with_refusals: bool
) -> None:
    def begun_store() -> Store:
        store = engine.open()
        filled(store, 2)
        store.apply([PutSchedule(ScheduleRow(name="hourly", cron="", spec=b"{}", next_ms=5)), PutJob(job(3))])
        return store

    changes = [change for change in all_kinds() if with_refusals or change != completed(1, 3, 2)]
    with contextlib.closing(begun_store()) as store:
        before = everything(store)
    crashed = 0
    while True:
        with contextlib.closing(engine.open()) as store:
            engine.crash_at = crashed
            try:
                store.apply(changes)
            except Crash:
                crashed += 1
            else:
                break
            finally:
                engine.crash_at = None
        with contextlib.closing(engine.open()) as store:
            assert everything(store) == before
    with contextlib.closing(engine.open()) as store:
        assert everything(store) != before
        assert store.counts(2) == {"pending": 2, "completed": 1} and store.job("job-3") is None
    # Begin, commit, and as many statements between them as there are kinds at the least.
    assert crashed > len({type(change) for change in changes}) + 2


# Against a model.


class Model:
    """What the changes mean, in the plainest way. It makes them one by one."""

    def __init__(self) -> None:
        self.jobs: dict[int, JobRow] = {}
        self.tasks: dict[TaskKey, TaskRow] = {}
        self.keys: dict[str, TaskKey] = {}

    def apply(self, changes: Sequence[Change]) -> list[int] | None:
        """None: something is kept already, and nothing was changed."""
        before = dict(self.jobs), dict(self.tasks), dict(self.keys)
        try:
            return [self.change(change) for change in changes]
        except KeyError:
            self.jobs, self.tasks, self.keys = before
            return None

    def change(self, change: Change) -> int:
        match change:
            case PutJob(row):
                if row.number in self.jobs:
                    raise KeyError
                self.jobs[row.number] = row
                return 1
            case PutTasks(rows):
                for new in rows:
                    if (new.job, new.index) in self.tasks:
                        raise KeyError
                    self.tasks[new.job, new.index] = new
                return len(rows)
            case MoveJob(number, state, at_ms, reason):
                if number not in self.jobs:
                    return 0
                old = self.jobs[number]
                started_ms = old.started_ms or (at_ms if state is JobState.RUNNING else 0)
                self.jobs[number] = msgspec.structs.replace(
                    old, state=state, reason=reason, started_ms=started_ms, ended_ms=at_ms if is_final(state) else 0
                )
                return 1
            case DropJob(number):
                self.tasks = {key: row for key, row in self.tasks.items() if key[0] != number}
                return int(self.jobs.pop(number, None) is not None)
            case ClaimTask() | Complete() | Release() | Extend() | Reset():
                found = self.tasks.get((change.job, change.index))
                values = {} if found is None else self.of_task(found, change)
                if found is None or not values:
                    return 0
                self.tasks[change.job, change.index] = msgspec.structs.replace(found, **values)
                return 1
            case _:
                raise AssertionError(change)

    def of_task(self, row: TaskRow, change: ClaimTask | Complete | Release | Extend | Reset) -> dict[str, Any]:
        if isinstance(change, Reset):
            plain = TaskRow(
                job=row.job, index=row.index, id=row.id, state=TaskState.PENDING, spec=change.spec or row.spec
            )
            return msgspec.structs.asdict(plain)
        if is_final(row.state):
            return {}
        match change:
            case ClaimTask():
                if row.fence > change.fence:
                    return {}
                return {
                    "state": TaskState.ASSIGNED,
                    "attempts": change.attempt,
                    "fence": change.fence,
                    "worker": change.worker,
                    "started_ms": change.at_ms,
                }
            case Extend():
                return {"checkpoint": change.checkpoint} if change.fence == row.fence else {}
            case Complete() | Release() if change.fence not in (0, row.fence):
                return {}
            case Complete():
                if change.key and change.state is TaskState.COMPLETED:
                    self.keys[change.key] = (change.job, change.index)
                return {
                    "state": change.state,
                    "ended_ms": change.at_ms,
                    "output": change.output,
                    "cause": change.cause,
                    "error": change.error,
                    "attempts": change.attempts or row.attempts,
                }
            case Release():
                return {
                    "state": TaskState.PENDING,
                    "ready_ms": change.ready_ms,
                    "attempts": change.attempts,
                    "deaths": change.deaths,
                    "failures": change.failures,
                    "cause": change.cause,
                    "error": change.error,
                }

    def keyed(self) -> dict[str, bytes]:
        found = {key: self.tasks.get(place) for key, place in self.keys.items()}
        return {
            key: row.output
            for key, row in found.items()
            if row is not None and row.state is TaskState.COMPLETED and row.job in self.jobs
        }


numbers = st.integers(1, 2)
indexes = st.integers(0, 2)
fences = st.integers(0, 4)
small = st.integers(0, 3)
texts = st.sampled_from(["", "x"])
contents = st.sampled_from([b"", b"1", b'"two"'])
keys = st.sampled_from(["", "", "k0", "k1"])
ends = st.sampled_from([TaskState.COMPLETED, TaskState.COMPLETED, TaskState.DEAD, TaskState.SKIPPED])
job_states = st.sampled_from([JobState.RUNNING, JobState.PAUSED, JobState.FAILED])
specs = st.sampled_from([b"", b'{"id":"t","handler":"h"}'])
of_tasks: st.SearchStrategy[Change] = st.one_of(
    st.builds(ClaimTask, numbers, indexes, small, st.integers(1, 4), st.sampled_from(["ada#1", "bob#2"]), small),
    st.builds(
        Complete,
        numbers,
        indexes,
        fences,
        ends,
        small,
        output=contents,
        error=texts,
        cause=texts,
        attempts=small,
        key=keys,
    ),
    st.builds(Release, numbers, indexes, fences, small, small, small, texts, texts, small),
    st.builds(Extend, numbers, indexes, fences, contents),
    st.builds(Reset, numbers, indexes, specs),
)
any_change: st.SearchStrategy[Change] = st.one_of(
    of_tasks,
    of_tasks,
    of_tasks,
    st.builds(PutTasks, st.lists(st.builds(task, indexes, numbers), max_size=2).map(tuple)),
    st.builds(PutJob, st.builds(job, numbers)),
    st.builds(MoveJob, numbers, job_states, small, texts),
    st.builds(DropJob, numbers),
)
begun: list[Change] = [
    PutJob(job(1)),
    PutJob(job(2)),
    PutTasks(tuple(task(index, number) for number in (1, 2) for index in (0, 1))),
]


@pytest.mark.parametrize("engine_name", EMPTY_STORES)
@settings(deadline=None, derandomize=True, max_examples=60)
@given(batches=st.lists(st.lists(any_change, max_size=12), max_size=4))
def test_any_changes_in_any_batches_mean_what_they_mean_one_by_one(
    engine_name: str, batches: list[list[Change]]
) -> None:
    model = Model()
    with contextlib.closing(EMPTY_STORES[engine_name]()) as store:
        for batch in [begun, *batches]:
            wanted = model.apply(batch)
            if wanted is None:
                with pytest.raises(AlreadyKept):
                    store.apply(batch)
            else:
                assert store.apply(batch) == wanted
        assert store.jobs((), 1000, 100) == [model.jobs[number] for number in sorted(model.jobs, reverse=True)]
        found = [row for number in (1, 2) for row in store.tasks(number, (), -1, 100)]
        assert found == [model.tasks[key] for key in sorted(model.tasks)]
        dead = [key for key in sorted(model.tasks) if model.tasks[key].state is TaskState.DEAD]
        assert [(row.job, row.index) for row in store.dead_letters((0, -1), 100)] == dead
        assert {key: keyed.output for key, keyed in store.keyed(["k0", "k1"]).items()} == model.keyed()
