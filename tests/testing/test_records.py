"""The simulated store does with changes what the real one does."""

from random import Random

import msgspec
import pytest

from talka.store.dags.sqlite import SqliteRecords
from talka.testing.records import RowStore
from talka.work.dag import TaskSpec, encode_task
from talka.work.lifecycle import JobState, TaskState, is_final
from talka.work.records import (
    AttemptRow,
    Change,
    Claim,
    Complete,
    DropJob,
    EventRow,
    Extend,
    JobRow,
    LogRow,
    MoveJob,
    PutAttempt,
    PutEvent,
    PutJob,
    PutLogs,
    PutTasks,
    Release,
    Reset,
    TaskRow,
)

ENDS = [state for state in TaskState if is_final(state)]
TASKS = 4


def put(number: int, rng: Random) -> list[Change]:
    row = JobRow(
        number=number,
        id=f"job{number}",
        name="n",
        state=JobState.RUNNING,
        submitted_ms=number,
        started_ms=number,
        settings=b"{}",
        tasks=TASKS,
        key=f"key {number}" if number % 2 else "",
    )
    rows = [
        TaskRow(
            job=number,
            index=index,
            id=f"t{index}",
            state=TaskState.PENDING,
            spec=encode_task(TaskSpec(id=f"t{index}", handler="h", priority=rng.randrange(1, 11))),
            depends_on=tuple(range(index)),
        )
        for index in range(TASKS)
    ]
    return [PutJob(row), PutTasks(tuple(rows))]


def drawn(rng: Random, jobs: int) -> Change:
    job, index, fence = rng.randrange(1, jobs + 2), rng.randrange(TASKS + 1), rng.choice((0, 0, 5, 6, 7))
    match rng.randrange(10):
        case 0 | 1:
            return Claim(job, index, rng.randrange(1, 4), max(fence, 1), rng.choice(("a#1#2", "b#2#3")), 11)
        case 2:
            output, key = b'"%d"' % rng.randrange(9), rng.choice(("", "k", "l"))
            return Complete(job, index, fence, TaskState.COMPLETED, 12, output, worker="a#1#2", attempts=2, key=key)
        case 3:
            return Complete(job, index, fence, rng.choice(ENDS), 13, error="e", cause="c")
        case 4:
            return Release(job, index, fence, rng.randrange(3), 2, 1, "c", "e", 1)
        case 5:
            return Extend(job, index, fence, b"%d" % rng.randrange(9))
        case 6:
            spec = encode_task(TaskSpec(id=f"t{index}", handler="other")) if rng.randrange(2) else b""
            return Reset(job, index, spec)
        case 7:
            state = rng.choice((JobState.PAUSED, JobState.RUNNING, JobState.PARTIAL, JobState.CANCELLING))
            return MoveJob(job, state, 14, "r", counts={"completed": 1} if is_final(state) else None)
        case 8:
            return PutLogs((LogRow(job=1, index=0, attempt=1, at_ms=1, text="t"),))
        case _:
            return PutEvent(EventRow(job=1, at_ms=1, kind="k"))


def assert_same(rows: RowStore, real: SqliteRecords, jobs: int) -> None:
    assert rows.live_jobs() == real.live_jobs()
    assert rows.next_number() == real.next_number()
    assert rows.keyed(["k", "l"]) == {key: (one.output, one.blob) for key, one in real.keyed(["k", "l"]).items()}
    keys = [(job, index) for job in range(1, jobs + 1) for index in range(TASKS)]
    assert rows.outputs(keys) == {key: output for key, (output, _) in real.outputs(keys).items()}
    specs = real.specs(keys)
    assert rows.specs(keys) == {
        key: (msgspec.json.decode(spec, type=TaskSpec), checkpoint) for key, (spec, checkpoint) in specs.items()
    }
    for job in range(1, jobs + 1):
        assert rows.job(f"job{job}") == real.job(f"job{job}")
        assert rows.job_by_key(f"key {job}") == real.job_by_key(f"key {job}")
        assert rows.live_tasks(job) == real.live_tasks(job, -1, 100)
        assert rows.tasks.get(job, []) == real.tasks(job, (), -1, 100)
        counts = {state: count for state, count in real.counts(job).items() if count}
        assert rows.counts(job) == counts


@pytest.mark.parametrize("seed", range(20))
def test_any_changes_leave_the_same_rows_as_in_sqlite(seed: int) -> None:
    rng = Random(seed)
    rows, real = RowStore(), SqliteRecords(":memory:")
    jobs = 0
    for _ in range(15):
        changes: list[Change] = []
        if jobs < 3:
            jobs += 1
            changes += put(jobs, rng)
        changes += [drawn(rng, jobs) for _ in range(rng.randrange(12))]
        assert rows.apply(changes) == real.apply(changes)
        assert_same(rows, real, jobs)
    assert rows.apply([DropJob(1), DropJob(9)]) == real.apply([DropJob(1), DropJob(9)])
    assert_same(rows, real, jobs)


def test_attempts_are_kept_until_their_job_is_dropped() -> None:
    rows = RowStore()
    row = AttemptRow(job=1, index=0, attempt=1, fence=5, worker="w", started_ms=1, ended_ms=2, cause="c")
    rows.apply([*put(1, Random(1)), PutAttempt(row)])
    assert rows.attempts == [row]
    rows.apply([DropJob(1)])
    assert rows.attempts == [] and rows.live_tasks(1) == []


def test_every_life_of_a_manager_has_an_epoch_of_its_own() -> None:
    rows = RowStore()
    assert [rows.acquire(), rows.acquire()] == [1, 2]
