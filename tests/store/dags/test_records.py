"""What every store of dag jobs does, whichever engine it is on: one suite for all of them."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Invalid
from talka.store.dags.records import AlreadyKept, Fetched, KeyedRow, Lease, Store, StoreTaken
from talka.store.dags.sqlite import SqliteRecords
from talka.store.dags.sqlite_store import SqliteStore
from talka.store.files.blobs import Blobs
from talka.units import MILLISECOND
from talka.work.dags.records import (
    JOB_STATES,
    TASK_STATES,
    AttemptRow,
    Change,
    ClaimRange,
    ClaimTask,
    Complete,
    CompleteRange,
    DropElements,
    DropJob,
    DropSchedule,
    EventRow,
    Extend,
    FanOut,
    FanRow,
    JobRow,
    LiveTask,
    LogRow,
    MoveJob,
    MoveNotice,
    NoticeRow,
    PutAttempt,
    PutEvent,
    PutJob,
    PutLogs,
    PutNotice,
    PutSchedule,
    PutStreams,
    PutTasks,
    PutTime,
    Release,
    Reset,
    ScheduleRow,
    StreamRow,
    TaskKey,
    TaskRow,
    TimeRow,
)
from talka.work.lifecycle import JobState, TaskState, is_final
from talka.work.retention import Keep, Retention
from tests.ports.dict_store import DictPlace, DictStore
from tests.store.dags.engines import Crash, Engine, opened

NOON_MS = 1_790_000_000_000
WHOLE_JOB = 1 << 31


EMPTY_STORES: dict[str, Callable[[str], Store]] = {
    "sqlite": lambda folder: SqliteStore(SqliteRecords(":memory:"), Blobs(Path(folder) / "blobs")),
    "dict": lambda folder: DictStore(DictPlace("empty")),
}


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


async def filled(store: Store, tasks: int = 1, number: int = 1) -> None:
    await store.apply(
        [PutJob(job(number, tasks=tasks)), PutTasks(tuple(task(index, number) for index in range(tasks)))]
    )


async def only(store: Store, index: int = 0, number: int = 1) -> TaskRow:
    row = await store.task(number, f"t{index}")
    assert row is not None
    return row


async def everything(store: Store) -> list[object]:
    """All that can be read."""
    numbers = [row.number for row in await store.jobs((), WHOLE_JOB, 1000)]
    keys = [(row.job, row.index) for number in numbers for row in await store.tasks(number, (), -1, 1000)]
    return [
        await store.jobs((), WHOLE_JOB, 1000),
        [await store.tasks(number, (), -1, 1000) for number in numbers],
        [await store.events(number, 0, 1000) for number in numbers],
        [await store.logs(*key, 0, 1000) for key in keys],
        await store.attempts(keys),
        [await store.streams(row.job, row.index, row.fence) for key in keys for row in await store.stream_sizes(*key)],
        [await store.times(*key) for key in keys],
        await store.schedules(),
        await store.keyed(["k0", "k1", "k2"]),
        await store.leases(""),
    ]


# Jobs.


async def test_a_task_is_fanned_out_with_its_elements_and_they_go_with_all_that_is_theirs(store: Store) -> None:
    await filled(store, 2)
    fan, other = FanOut(1, 0, 2, 3, 5), FanOut(1, 1, 5, 0, 5)
    rows = PutTasks(tuple(task(index) for index in (2, 3, 4)))
    assert await store.apply([rows, fan, other]) == [3, 1, 1]
    assert await store.fans(1) == [FanRow(0, 2, 3), FanRow(1, 5, 0)] and await store.fans(2) == []
    found = await store.job("job-1")
    assert found is not None and found.tasks == 5
    assert await store.apply([msgspec.structs.replace(fan, count=1)]) == [0], "it is fanned out already"
    await store.apply([claim(3), completed(3, key="k0"), claim(4, 8)])
    attempt = AttemptRow(job=1, index=4, attempt=1, fence=8, worker="w", started_ms=1, ended_ms=2, cause="E")
    await store.apply([PutAttempt(attempt), PutLogs((LogRow(job=1, index=4, attempt=1, at_ms=1, text="x"),))])
    assert await store.counts_of(1, FanRow(0, 2, 3)) == {"pending": 1, "assigned": 1, "completed": 1}
    assert await store.counts_of(1, FanRow(1, 5, 0)) == {}
    assert await store.apply([DropElements(1, 0, 2, 2, 2), Reset(1, 0), DropElements(1, 0, 2, 3, 2)]) == [0, 1, 1]
    assert [row.index for row in await store.live_tasks(1, -1, 9)] == [0, 1]
    assert await store.fans(1) == [FanRow(1, 5, 0)] and await store.keyed(["k0"]) == {}
    assert await store.attempts([(1, 4)]) == [] and await store.logs(1, 4, 0, 9) == []
    found = await store.job("job-1")
    assert found is not None and found.tasks == 2
    await store.apply([DropJob(1)])
    assert await store.fans(1) == []


async def test_a_job_is_read_as_it_was_put(store: Store) -> None:
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
    assert await store.apply([PutJob(row)]) == [1]
    assert await store.job("job-3") == await store.job_by_key("monday") == row
    assert await store.job("job-4") is None and await store.job_by_key("tuesday") is None


async def test_jobs_without_a_key_are_not_found_by_the_empty_one(store: Store) -> None:
    await store.apply([PutJob(job(1)), PutJob(job(2))])
    assert await store.job_by_key("") is None


async def test_the_values_that_a_job_runs_with_are_kept(store: Store) -> None:
    with_params = job(1, params=b'{"day":"2026-11-16"}')
    await store.apply([PutJob(with_params), PutJob(job(2))])
    assert await store.job("job-1") == with_params
    assert [row.params for row in await store.live_jobs()] == [with_params.params, b""]


@pytest.mark.parametrize(
    "again",
    [PutJob(job(1, id="other")), PutJob(job(2, id="job-1")), PutJob(job(2, key="monday")), PutTasks((task(0),))],
    ids=["number", "id", "key", "task"],
)
async def test_what_is_kept_already_is_refused_with_its_whole_batch(store: Store, again: Change) -> None:
    await store.apply([PutJob(job(1, key="monday")), PutTasks((task(0),))])
    before = await everything(store)
    with pytest.raises(AlreadyKept, match="kept already"):
        await store.apply([PutTasks((task(1),)), MoveJob(1, JobState.PAUSED, 9), again])
    assert await everything(store) == before


async def test_numbers_of_jobs_are_never_used_twice(engine: Engine) -> None:
    store = await engine.open()
    assert await store.next_number() == 1
    await store.apply([PutJob(job(41)), PutJob(job(7))])
    assert await store.next_number() == 42
    await store.apply([DropJob(41)])
    await store.close()
    async with opened(engine) as again:
        assert await again.next_number() == 42


async def test_jobs_are_live_until_they_end_and_when_they_are_run_again(store: Store) -> None:
    await store.apply([PutJob(job(number, state=state)) for number, state in enumerate(JOB_STATES, 1)])
    live = [number for number, state in enumerate(JOB_STATES, 1) if not is_final(state)]
    assert [row.number for row in await store.live_jobs()] == live
    await store.apply([MoveJob(len(JOB_STATES), JobState.RUNNING, 9), MoveJob(1, JobState.CANCELLED, 9)])
    assert [row.number for row in await store.live_jobs()] == [*live[1:], len(JOB_STATES)]


async def test_jobs_are_listed_newest_first_by_state_and_page(store: Store) -> None:
    states = [JobState.FAILED, JobState.RUNNING, JobState.FAILED, JobState.PAUSED]
    await store.apply([PutJob(job(number, state=state)) for number, state in enumerate(states, 1)])

    async def numbers(*asked: Any) -> list[int]:
        return [row.number for row in await store.jobs(*asked)]

    assert await numbers((), 1000, 10) == [4, 3, 2, 1]
    assert await numbers((), 3, 1) == [2]
    assert await numbers(("failed", JobState.PAUSED), 1000, 10) == [4, 3, 1]
    assert await numbers((), 1000, 0) == []
    with pytest.raises(Invalid, match="no state 'done': write one of submitted, queued"):
        await store.jobs(("done",), 1000, 10)


async def test_moves_of_a_job_tell_when_it_started_and_ended(store: Store) -> None:
    await store.apply([PutJob(job(state=JobState.SUBMITTED))])
    assert await store.apply([MoveJob(1, JobState.RUNNING, 10, tasks=3), MoveJob(2, JobState.RUNNING, 10)]) == [1, 0]
    await store.apply([MoveJob(1, JobState.PAUSED, 11, reason="by ada"), MoveJob(1, JobState.RUNNING, 12)])
    running = job(started_ms=10, tasks=3)
    assert await store.job("job-1") == running
    await store.apply([MoveJob(1, JobState.FAILED, 13, reason="t1 failed", counts={"failed": 3})])
    ended = msgspec.structs.replace(
        running, state=JobState.FAILED, ended_ms=13, reason="t1 failed", counts={"failed": 3}
    )
    assert await store.job("job-1") == ended
    await store.apply([MoveJob(1, JobState.CANCELLED, 14)])
    assert await store.job("job-1") == msgspec.structs.replace(ended, state=JobState.CANCELLED, ended_ms=14, reason="")
    await store.apply([MoveJob(1, JobState.RUNNING, 15)])
    assert await store.job("job-1") == running


async def test_a_large_job_that_was_dropped_is_gone_at_once_and_what_it_had_goes_part_by_part(store: Store) -> None:
    number = 3000
    await store.apply([PutJob(job(1)), PutJob(job(2)), PutTasks((task(0, 2),))])
    await store.apply([PutTasks(tuple(task(index) for index in range(number)))])
    await store.apply([claim(0, 7), completed(0, 7, key="k")])
    await store.apply([claim(1, 8), Complete(1, 1, 8, TaskState.DEAD, NOON_MS)])
    await store.apply([PutEvent(EventRow(job=1, at_ms=at_ms, kind="started")) for at_ms in range(number)])
    assert len(await store.dead_letters((0, -1), 9)) == 1
    await store.apply([DropJob(1)])
    assert await store.job("job-1") is None and await store.keyed(["k"]) == {}
    assert await store.dead_letters((0, -1), 9) == []
    while await store.clear():
        pass
    assert await store.counts(1) == {} and await store.events(1, 0, 9) == []
    assert await store.counts(2) == {"pending": 1} and not await store.clear()


async def test_a_dropped_job_takes_all_that_is_its_own_with_it_and_nothing_else(store: Store) -> None:
    for number in (1, 2):
        await filled(store, 2, number)
        await store.apply(
            [
                claim(0, 7, number),
                completed(0, 7, number, key=f"k{number}", output=b"1"),
                PutAttempt(attempt(1, 3, number)),
                PutEvent(EventRow(job=number, at_ms=1, kind="started")),
                PutLogs((LogRow(job=number, index=0, attempt=1, at_ms=1, text="hello"),)),
                PutStreams((stream(0, 7, number),), 4),
                PutTime(time_of(0, 7, number)),
            ]
        )
    assert await store.apply([DropJob(1), DropJob(9)]) == [1, 0]
    assert await store.job("job-1") is None and await store.task(1, "t0") is None and await store.counts(1) == {}
    assert not await store.attempts([(1, 1)]) and not await store.events(1, 0, 9) and not await store.logs(1, 0, 0, 9)
    assert await store.stream_sizes(1, 0) == await store.streams(1, 0, 7) == await store.times(1, 0) == []
    assert list(await store.keyed(["k1", "k2"])) == ["k2"]
    assert await store.job("job-2") is not None and await store.counts(2) == {"pending": 1, "completed": 1}
    assert (
        len(await store.attempts([(2, 1)]))
        == len(await store.events(2, 0, 9))
        == len(await store.logs(2, 0, 0, 9))
        == len(await store.stream_sizes(2, 0))
        == 1
    )


# Tasks.


async def test_a_task_is_read_as_it_was_put(store: Store) -> None:
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
    assert await store.apply([PutTasks((row, task(6)))]) == [2]
    assert await store.task(1, "t5") == row
    assert await store.task(1, "t7") is None and await store.task(2, "t5") is None
    assert await store.tasks(1, (), -1, 10) == [row, task(6)]


async def test_live_tasks_have_what_a_manager_must_know_page_by_page(store: Store) -> None:
    await filled(store, 5)
    await store.apply([PutTasks((task(5, depends_on=(1, 258)),)), PutTasks((task(0, 2),)), claim(3, 9)])
    pages = [await store.live_tasks(1, after, 2) for after in (-1, 1, 3, 5)]
    assert [[one.index for one in page] for page in pages] == [[0, 1], [2, 3], [4, 5], []]
    assert pages[1][1] == LiveTask(3, 2, "t3", b"", 1, 9, "ada#1", 0, 0, "sum", 4, 0, NOON_MS)
    assert pages[2][1].depends_on == bytes([1, 0, 0, 0, 2, 1, 0, 0])
    await store.apply([Release(1, 3, 9, 88, 2, deaths=1, cause="exit", error="it broke", failures=2)])
    so_far = (2, NOON_MS, "exit", "it broke")
    assert await store.live_tasks(1, 2, 1) == [LiveTask(3, 0, "t3", b"", 2, 9, "ada#1", 88, 1, "sum", 4, *so_far)]


async def test_tasks_are_listed_and_counted_by_state(store: Store) -> None:
    await filled(store, 4)
    await store.apply([claim(1, 5), claim(2, 6), completed(2, 6)])
    assert await store.counts(1) == {"pending": 2, "assigned": 1, "completed": 1}
    assert [row.index for row in await store.tasks(1, ("pending", "assigned"), 0, 2)] == [1, 3]
    assert [row.index for row in await store.tasks(1, (), -1, 0)] == []
    with pytest.raises(Invalid, match="no state 'done'"):
        await store.tasks(1, ("done",), -1, 10)


async def test_specs_and_outputs_are_fetched_for_many_tasks_at_once(store: Store) -> None:
    await filled(store, 3)
    await store.apply([claim(0, 5), Extend(1, 0, 5, b"[3]"), completed(0, 5, output=b"12"), claim(1, 6)])
    await store.apply([completed(1, 6, blob="e" * 64)])
    keys: list[TaskKey] = [(1, 1), (1, 0), (1, 2), (1, 9), (1, 1)]
    assert await store.fetch(keys, keys) == Fetched(
        {
            (1, 1): (task(1).spec, b""),
            (1, 0): (task(0).spec, b"[3]"),
            (1, 2): (task(2).spec, b""),
        },
        {(1, 0): b"12"},
    )
    assert await store.fetch([], []) == ({}, {})


async def test_a_spec_that_is_no_json_is_refused_with_its_whole_batch(store: Store) -> None:
    with pytest.raises(Invalid, match="no JSON of a task"):
        await store.apply([PutJob(job()), PutTasks((task(spec=b"{"),))])
    assert await store.job("job-1") is None


async def test_a_number_that_no_store_can_hold_is_refused(store: Store) -> None:
    with pytest.raises(Invalid, match="a number is too large"):
        await store.apply([PutJob(job()), PutTasks((task(ready_ms=1 << 70),))])
    assert await store.job("job-1") is None


# Attempts and their fences.


async def test_a_claimed_task_is_assigned_under_its_fence(store: Store) -> None:
    await filled(store)
    assert await store.apply([ClaimTask(1, 0, 2, 7, "ada#1", NOON_MS)]) == [1]
    wanted = task(state=TaskState.ASSIGNED, attempts=2, fence=7, worker="ada#1", started_ms=NOON_MS)
    assert await only(store) == wanted


async def test_a_claim_below_the_fence_of_a_task_changes_nothing(store: Store) -> None:
    await filled(store)
    assert await store.apply([claim(fence=7), claim(fence=6), claim(fence=8), claim(index=1)]) == [1, 0, 1, 0]
    assert await store.apply([claim(fence=8)]) == [1]  # a batch that is made once more
    assert (await only(store)).fence == 8


async def test_a_completed_task_has_its_output_and_keeps_who_ran_it(store: Store) -> None:
    await filled(store)
    await store.apply([claim()])
    assert await store.apply([completed(output=b"[1]", cause="c", error="e")]) == [1]
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
    assert await only(store) == wanted


async def test_an_end_may_tell_better_who_ran_it_and_since_when(store: Store) -> None:
    await filled(store)
    await store.apply([claim(), completed(worker="bob#2", started_ms=NOON_MS + 1, attempts=4)])
    row = await only(store)
    assert (row.worker, row.started_ms, row.attempts) == ("bob#2", NOON_MS + 1, 4)


async def test_the_memory_of_the_last_attempt_is_kept_until_its_task_is_run_again(store: Store) -> None:
    await filled(store, 2)
    await store.apply([claim(), completed(memory_bytes=1 << 40), claim(1), completed(1)])
    assert [(await only(store, index)).memory_bytes for index in range(2)] == [1 << 40, 0]
    await store.apply([Reset(1, 0)])
    assert (await only(store)).memory_bytes == 0
    await store.apply([CompleteRange(1, 0, 2, 0, TaskState.COMPLETED, 9)])
    assert (await only(store)).memory_bytes == 0


async def test_a_result_under_another_fence_changes_nothing(store: Store) -> None:
    await filled(store)
    await store.apply([claim(fence=7)])
    before = await only(store)
    stale: list[Change] = [completed(fence=6, output=b"1"), Release(1, 0, 8, 5, 1), Extend(1, 0, 6, b"1")]
    assert await store.apply(stale) == [0, 0, 0]
    assert await only(store) == before


async def test_of_two_results_under_one_fence_the_first_counts(store: Store) -> None:
    await filled(store)
    await store.apply([claim()])
    assert await store.apply([completed(output=b"1"), completed(output=b"2")]) == [1, 0]
    assert (await only(store)).output == b"1"


@pytest.mark.parametrize("state", [state for state in TASK_STATES if is_final(state)])
async def test_a_task_that_has_ended_is_never_changed_again(store: Store, state: TaskState) -> None:
    row = task(state=state, fence=7, attempts=1, output=b"1")
    await store.apply([PutTasks((row,))])
    late: list[Change] = [
        claim(fence=9),
        completed(),
        completed(fence=0),
        Release(1, 0, 7, 1, 1),
        Release(1, 0, 0, 1, 1),
    ]
    assert await store.apply([*late, Extend(1, 0, 7, b"2")]) == [0] * 6
    assert await only(store) == row


@pytest.mark.parametrize("state", [state for state in TASK_STATES if not is_final(state)])
async def test_a_task_that_has_not_ended_may_be_ended_whatever_its_fence(store: Store, state: TaskState) -> None:
    await store.apply([PutTasks((task(state=state, fence=7),))])
    assert await store.apply([Complete(1, 0, 0, TaskState.SKIPPED, 9, cause="skipped")]) == [1]
    assert ((await only(store)).state, (await only(store)).fence) == (TaskState.SKIPPED, 7)


async def test_a_released_task_waits_again_and_its_next_attempt_has_a_higher_fence(store: Store) -> None:
    await filled(store)
    await store.apply([claim(fence=7)])
    assert await store.apply([Release(1, 0, 7, 99, 1, 1, "exit", "code 3", 1), Release(1, 0, 0, 98, 2)]) == [1, 1]
    assert await store.apply([Release(1, 0, 7, 99, 1, 1, "exit", "code 3", 1)]) == [1]
    row = await only(store)
    assert (row.state, row.ready_ms, row.deaths, row.failures) == (TaskState.PENDING, 99, 1, 1)
    assert (row.cause, row.error, row.fence) == ("exit", "code 3", 7)
    assert await store.apply([claim(fence=8), completed(fence=7), completed(fence=8)]) == [1, 0, 1]


async def test_the_last_checkpoint_stays_for_the_next_attempt(store: Store) -> None:
    await filled(store)
    await store.apply(
        [claim(), Extend(1, 0, 7, b"[1]"), Extend(1, 0, 7, b"[2]"), Release(1, 0, 7, 0, 1), claim(fence=8)]
    )
    assert (await store.fetch([(1, 0)], [])).specs[1, 0] == (task().spec, b"[2]")


async def test_a_task_that_is_run_again_forgets_all_but_its_spec(store: Store) -> None:
    await filled(store, 2)
    await store.apply([claim(), Extend(1, 0, 7, b"[1]"), completed(output=b"1", blob="b", error="e", cause="c")])
    spec = b'{"id":"t1","handler":"product","priority":9}'
    assert await store.apply([Reset(1, 0), Reset(1, 1, spec), Reset(1, 2)]) == [1, 1, 0]
    assert await only(store) == msgspec.structs.replace(task(), attempts=1)
    assert (await only(store, 1)).spec == spec
    assert [(one.handler, one.priority) for one in await store.live_tasks(1, -1, 9)] == [("sum", 1), ("product", 9)]


async def test_a_result_of_before_is_not_taken_for_one_of_a_task_that_is_run_again(store: Store) -> None:
    await filled(store)
    await store.apply([claim(), completed(output=b"1"), Reset(1, 0)])
    assert await store.apply([completed(output=b"2")]) == [0]
    assert await store.apply([claim(fence=8), completed(fence=7), completed(fence=8, output=b"3")]) == [1, 0, 1]
    assert (await only(store)).output == b"3"


def attempt(index: int = 0, fence: int = 7, number: int = 1, **values: Any) -> AttemptRow:
    row = AttemptRow(
        job=number, index=index, attempt=1, fence=fence, worker="ada#1", started_ms=1, ended_ms=2, cause="exit"
    )
    return msgspec.structs.replace(row, **values)


def stream(index: int = 0, fence: int = 7, number: int = 1, **values: Any) -> StreamRow:
    content = values.pop("content", b"said")
    row = StreamRow(
        job=number, index=index, attempt=1, fence=fence, stream="stderr", written=9, kept=len(content), content=content
    )
    return msgspec.structs.replace(row, **values)


async def test_what_attempts_wrote_is_kept_by_attempt_and_stream_and_how_much_of_it_with_the_job(store: Store) -> None:
    await filled(store, 3)
    first, later = stream(1, 8), stream(1, 9, attempt=2, stream="traceback", content=b"Tr\xff")
    out = stream(1, 9, attempt=2, stream="stdout", content=b"")
    assert await store.apply([PutStreams((later, out), 5), PutStreams((first, stream(2)), 12)]) == [2, 2]

    sizes = [msgspec.structs.replace(row, content=b"") for row in (first, out, later)]
    assert await store.stream_sizes(1, 1) == sizes
    assert await store.streams(1, 1, 9) == [out, later]
    assert await store.streams(1, 0, 9) == await store.stream_sizes(2, 1) == []
    job = await store.job("job-1")
    assert job is not None and job.output_bytes == 12

    longer = stream(1, 8, content=b"said more", written=10)
    assert await store.apply([PutStreams((longer,), 17)]) == [1]
    assert await store.streams(1, 1, 8) == [longer], "what is there already is replaced"


def time_of(index: int = 0, fence: int = 7, number: int = 1, kept: bytes = b"{}") -> TimeRow:
    return TimeRow(job=number, index=index, attempt=1, fence=fence, kept=kept)


async def test_what_attempts_were_given_is_kept_by_attempt_and_told_of_many_tasks_at_once(store: Store) -> None:
    await filled(store, 3)
    rows = [time_of(0), time_of(1, 8), time_of(1, 9, kept=b"[1]"), time_of(2)]
    assert await store.apply([PutTime(row) for row in (*reversed(rows), time_of(0, number=2))]) == [1] * 5
    assert await store.times(1, 1) == rows[1:3]
    assert await store.times(1, 0, 2) == rows[:3]
    assert await store.times(1, 1, 1 << 32) == rows[1:], "and none of the next job"

    assert await store.apply([PutTime(time_of(1, 8, kept=b"[2]"))]) == [1]
    assert [row.kept for row in await store.times(1, 1)] == [b"[2]", b"[1]"], "in place of what was"


async def test_what_attempts_wrote_is_told_of_many_tasks_at_once(store: Store) -> None:
    await filled(store, 3)
    rows = [stream(0), stream(1, 8), stream(1, 9, stream="stdout"), stream(2)]
    await store.apply([PutStreams(tuple(rows), 16), PutStreams((stream(0, number=2),), 4)])
    sizes = [msgspec.structs.replace(row, content=b"") for row in rows]
    assert await store.stream_sizes(1, 0, 2) == sizes[:3]
    assert await store.stream_sizes(1, 1, 1 << 32) == sizes[1:], "and none of the next job"
    assert await store.stream_sizes(1, 0, 0) == []


async def test_what_elements_wrote_goes_with_them_and_the_job_has_so_much_less(store: Store) -> None:
    await filled(store, 2)
    await store.apply([PutTasks((task(2), task(3))), FanOut(1, 0, 2, 2, 4), FanOut(1, 1, 4, 0, 4)])
    await store.apply([PutStreams((stream(0), stream(2), stream(2, 8, content=b"again"), stream(3, content=b"")), 13)])
    await store.apply([DropElements(1, 1, 4, 0, 4)])
    job = await store.job("job-1")
    assert job is not None and job.output_bytes == 13
    await store.apply([DropElements(1, 0, 2, 2, 2)])
    assert [row.index for row in await store.stream_sizes(1, 0, 9)] == [0]
    job = await store.job("job-1")
    assert job is not None and job.output_bytes == 4


async def test_attempts_of_before_a_task_is_run_again_stay_with_the_one_that_completed_it(store: Store) -> None:
    await filled(store, 2)
    tried = attempt(0, 7, outcome="failed")
    await store.apply([claim(), PutAttempt(tried), Release(1, 0, 7, 0, 1)])
    await store.apply([ClaimTask(1, 0, 2, 8, "w#1", NOON_MS), completed(fence=8, started_ms=NOON_MS)])
    assert await store.apply([Reset(1, 0), Reset(1, 1)]) == [1, 1]
    last = attempt(
        0, 8, attempt=2, worker="w#1", started_ms=NOON_MS, ended_ms=NOON_MS + 5, cause="completed", outcome="completed"
    )
    assert await store.attempts([(1, 0), (1, 1)]) == [tried, last]
    assert (await only(store)).attempts == 2, "numbers go on"
    assert await store.apply([Reset(1, 0)]) == [1]
    assert await store.attempts([(1, 0)]) == [tried, last]


async def test_failed_attempts_are_kept_in_order(store: Store) -> None:
    second = attempt(1, 9, attempt=2, error="e", exit_code=3, signal="SIGKILL", memory_bytes=1 << 40)
    rows = [attempt(1, 8), second, attempt(0, 7), attempt(2, 6)]
    assert await store.apply([PutAttempt(row) for row in [second, *rows]]) == [1] * 5
    assert await store.attempts([(1, 1), (1, 0), (1, 5)]) == [attempt(0, 7), attempt(1, 8), second]


# Idempotency keys.


async def test_what_completed_under_a_key_is_found_by_it(store: Store) -> None:
    await filled(store, 3)
    changes: list[Change] = [claim(index, 7 + index) for index in range(3)]
    changes += [completed(0, 7, key="k0", output=b"5"), completed(1, 8), completed(2, 9, key="k2", blob="f" * 64)]
    assert await store.apply(changes) == [1] * 6
    wanted = {"k0": KeyedRow("job-1", "t0", b"5", ""), "k2": KeyedRow("job-1", "t2", b"", "f" * 64)}
    assert await store.keyed(["k2", "k0", "k1", "k0\0"]) == wanted


async def test_a_key_that_no_store_can_keep_is_found_nowhere(store: Store) -> None:
    await filled(store)
    await store.apply([claim(), completed(key="k0", output=b"5")])
    assert await store.keyed(["k0\ud800", "k0", "\0"]) == {"k0": KeyedRow("job-1", "t0", b"5", "")}


async def test_a_key_is_remembered_of_no_result_that_was_refused(store: Store) -> None:
    await filled(store, 2)
    await store.apply([claim(0, 7), claim(1, 8)])
    await store.apply([completed(0, 6, key="k0"), Complete(1, 1, 8, TaskState.DEAD, 1, key="k1")])
    await store.apply([completed(0, 7), completed(0, 6, key="k0")])
    assert await store.keyed(["k0", "k1"]) == {}


async def test_a_key_is_forgotten_while_its_task_is_run_again(store: Store) -> None:
    await filled(store)
    await store.apply([claim(), completed(key="k0", output=b"1"), Reset(1, 0)])
    assert await store.keyed(["k0"]) == {}
    await store.apply([claim(fence=8), completed(fence=8, key="k0", output=b"2")])
    assert await store.keyed(["k0"]) == {"k0": KeyedRow("job-1", "t0", b"2", "")}


async def test_the_latest_that_completed_under_a_key_is_its_task(store: Store) -> None:
    await filled(store, 2)
    await store.apply([completed(0, 0, key="k0", output=b"1"), completed(1, 0, key="k0", output=b"2")])
    assert await store.keyed(["k0"]) == {"k0": KeyedRow("job-1", "t1", b"2", "")}


# Events, logs, dead letters, schedules.


async def test_events_of_a_job_are_read_on_from_a_number(store: Store) -> None:
    await store.apply(
        [PutEvent(EventRow(job=1 + n % 2, at_ms=n, kind=f"kind {n}", index=n - 1, text="x")) for n in range(6)]
    )
    first = await store.events(1, 0, 2)
    assert [(row.kind, row.at_ms, row.index, row.text) for row in first] == [
        ("kind 0", 0, -1, "x"),
        ("kind 2", 2, 1, "x"),
    ]
    assert 0 < first[0].number < first[1].number
    assert [row.kind for row in await store.events(1, first[1].number, 9)] == ["kind 4"]


async def test_lines_of_a_log_are_read_on_from_a_number(store: Store) -> None:
    lines = tuple(LogRow(job=1, index=n % 2, attempt=1, at_ms=n, text=f"line {n}") for n in range(6))
    assert await store.apply([PutLogs(lines[:4]), PutLogs(()), PutLogs(lines[4:])]) == [4, 0, 2]
    first = await store.logs(1, 1, 0, 2)
    assert [(row.text, row.at_ms, row.attempt, row.index) for row in first] == [
        ("line 1", 1, 1, 1),
        ("line 3", 3, 1, 1),
    ]
    assert [row.text for row in await store.logs(1, 1, first[1].number, 9)] == ["line 5"]
    assert await store.logs(2, 1, 0, 9) == []


async def test_dead_letters_are_listed_across_jobs_page_by_page(store: Store) -> None:
    for number in (2, 1, 3):
        await filled(store, 3, number)
    dead = [(1, 2), (2, 0), (2, 2), (3, 1)]
    await store.apply([Complete(number, index, 0, TaskState.DEAD, 9) for number, index in reversed(dead)])
    await store.apply([Complete(1, 0, 0, TaskState.FAILED, 9)])
    assert [(row.job, row.index) for row in await store.dead_letters((0, -1), 9)] == dead
    assert [(row.job, row.index) for row in await store.dead_letters((1, 2), 2)] == dead[1:3]
    assert [(row.job, row.index) for row in await store.dead_letters((2, -1), 1)] == [(2, 0)]
    await store.apply([Reset(2, 0)])
    assert [(row.job, row.index) for row in await store.dead_letters((1, 2), 1)] == [(2, 2)]


async def test_schedules_are_put_replaced_and_dropped(store: Store) -> None:
    nightly = ScheduleRow(name="nightly", cron="0 3 * * *", spec=b"{}", next_ms=5, last_job="job-1", submitted_by="ada")
    hourly = ScheduleRow(name="hourly", cron="0 * * * *", spec=b"{}", next_ms=6)
    await store.apply([PutSchedule(nightly), PutSchedule(hourly)])
    later = msgspec.structs.replace(nightly, next_ms=9)
    assert await store.apply([PutSchedule(later), DropSchedule("weekly")]) == [1, 0]
    assert await store.schedules() == [hourly, later]
    zoned = msgspec.structs.replace(
        later, timezone="Europe/Berlin", catch_up="all", is_paused=True, ran_ms=4, ran_job="job-2"
    )
    await store.apply([PutSchedule(zoned)])
    found = await store.schedules()
    assert found == [hourly, zoned] and found[1].is_paused is True
    await store.apply([PutSchedule(later)])
    assert await store.apply([DropSchedule("hourly"), PutSchedule(hourly), DropSchedule("hourly")]) == [1, 1, 1]
    assert await store.schedules() == [later]


def notice(id: str, number: int = 1, **values: Any) -> NoticeRow:
    return NoticeRow(id=id, job=number, job_id=f"job-{number}", url="https://a.example/", body=b"{}", **values)


async def test_notices_are_put_with_the_end_of_their_job_moved_until_they_are_settled_and_dropped_with_it(
    store: Store,
) -> None:
    await store.apply([PutJob(job(1)), PutJob(job(2))])
    end = MoveJob(1, JobState.FAILED, 9, counts={})
    rows = [notice("n2", next_ms=5), notice("n1", next_ms=7), notice("n3", 2, next_ms=5)]
    assert await store.apply([end, *(PutNotice(row) for row in rows)]) == [1, 1, 1, 1]
    assert await store.notices(1) == [rows[1], rows[0]] and await store.notices(3) == []
    assert [row.id for row in await store.waiting_notices(9)] == ["n2", "n3", "n1"]
    assert [row.id for row in await store.waiting_notices(2)] == ["n2", "n3"]
    assert [row.id for row in await store.waiting_notices(9, (5, "n2"))] == ["n3", "n1"]
    assert await store.waiting_notices(9, (7, "n1")) == []
    moves = [
        MoveNotice("n2", "waiting", 1, 11, "500"),
        MoveNotice("n1", "sent", 1, 8),
        MoveNotice("n1", "waiting", 2, 9, "late"),
        MoveNotice("n9", "sent", 1, 8),
    ]
    assert await store.apply(moves) == [1, 1, 0, 0]
    assert [row.id for row in await store.waiting_notices(9)] == ["n3", "n2"]
    assert await store.notices(1) == [
        notice("n1", state="sent", tries=1, next_ms=8),
        notice("n2", tries=1, next_ms=11, error="500"),
    ]
    assert await store.apply([DropJob(1)]) == [1]
    assert await store.notices(1) == [] and [row.id for row in await store.waiting_notices(9)] == ["n3"]


async def test_a_job_whose_notice_waits_is_swept_by_its_age_alone(store: Store) -> None:
    rows = [notice("n1", 1, next_ms=5), notice("n2", 1, next_ms=5), notice("n3", 2, next_ms=5)]
    await store.apply([*(ended(number, number) for number in (1, 2, 3, 4)), *(PutNotice(row) for row in rows)])
    await store.apply([MoveNotice("n2", "sent", 1, 8), MoveNotice("n3", "given_up", 1, 8)])
    assert await store.sweep(0, kept_for(100, 1), 1) == 1 and await kept(store) == [1, 3, 4]
    assert await store.sweep(0, kept_for(100, 1), 10) == 1 and await kept(store) == [1, 4]
    assert await store.sweep(0, kept_for(100, 0), 10) == 1 and await kept(store) == [1]
    assert await store.waiting_notices(9) == [rows[0]]
    assert await store.sweep(99, kept_for(100, 0), 10) == 0
    await store.apply([ended(5, 5), PutNotice(notice("n4", 5, next_ms=5))])
    assert await store.sweep(1, kept_for(100, 0), 10) == 1 and await kept(store) == [5]
    await store.apply([MoveNotice("n4", "sent", 1, 8)])
    assert await store.sweep(0, kept_for(100, 0), 10) == 1 and await kept(store) == []


async def test_jobs_are_found_by_how_their_keys_begin(store: Store) -> None:
    for number, key in enumerate(["a/1/x", "a/2/", "a/20", "b", "", "a/3", "a/2/\U0010fffd"], start=1):
        await store.apply([PutJob(job(number, key=key))])
    assert await store.jobs_keyed(["a/2/", "a/1/", "c", "b"]) == [
        ("a/1/x", "job-1"),
        ("a/2/", "job-2"),
        ("a/2/\U0010fffd", "job-7"),
        ("b", "job-4"),
    ]
    assert await store.jobs_keyed([]) == []


# Retention.


def kept_for(age_ms: int, count: int, failed: tuple[int, int] | None = None) -> Retention:
    """Both alike, unless `failed` says otherwise."""
    rules = [Keep(each_ms * MILLISECOND, most) for each_ms, most in ((age_ms, count), failed or (age_ms, count))]
    return Retention(*rules)


def ended(number: int, ended_ms: int) -> PutJob:
    return PutJob(job(number, state=JobState.COMPLETED, ended_ms=ended_ms))


async def kept(store: Store) -> list[int]:
    return sorted(row.number for row in await store.jobs((), 1000, 100))


async def test_jobs_are_swept_by_the_age_of_the_store_and_never_before_they_end(store: Store) -> None:
    await store.apply([ended(1, 50), PutJob(job(4)), PutTasks((task(0, 2), task(0, 1)))])
    assert await store.sweep(0, kept_for(100, 100), 10) == 0, "its end is seen now"
    await store.apply([ended(2, 10), ended(3, 49)])
    assert await store.sweep(60, kept_for(100, 100), 10) == 0
    assert await store.sweep(39, kept_for(100, 100), 10) == 0
    assert await store.sweep(1, kept_for(100, 100), 10) == 1
    assert await kept(store) == [2, 3, 4]
    assert await store.counts(1) == {} and await store.counts(2) == {"pending": 1}
    assert await store.sweep(59, kept_for(100, 100), 10) == 0
    assert await store.sweep(1, kept_for(100, 100), 1) == 1
    assert await store.sweep(0, kept_for(100, 100), 10) == 1
    assert await kept(store) == [4]


@pytest.mark.parametrize("wrong_ms", [1, 1 << 50], ids=["long ago", "far ahead"])
async def test_an_end_that_a_wrong_clock_put_down_is_kept_as_long_as_any_other(store: Store, wrong_ms: int) -> None:
    await store.apply([ended(1, NOON_MS), ended(2, wrong_ms)])
    assert await store.sweep(0, kept_for(100, 100), 10) == 0
    assert await store.sweep(99, kept_for(100, 100), 10) == 0
    assert await store.sweep(1, kept_for(100, 100), 10) == 2


async def test_a_job_that_runs_again_is_as_old_as_its_last_end(store: Store) -> None:
    await store.apply([ended(1, 50)])
    await store.sweep(0, kept_for(100, 100), 10)
    await store.apply([MoveJob(1, JobState.RUNNING, 60)])
    assert await store.sweep(200, kept_for(100, 100), 10) == 0
    await store.apply([MoveJob(1, JobState.COMPLETED, 61)])
    assert await store.sweep(50, kept_for(100, 100), 10) == 0
    assert await store.sweep(99, kept_for(100, 100), 10) == 0
    assert await store.sweep(1, kept_for(100, 100), 10) == 1


async def test_the_age_of_a_store_never_falls_and_outlives_its_process(engine: Engine) -> None:
    for grown_ms, gone in [(0, 0), (60, 0), (-1000, 0), (40, 1)]:
        store = await engine.open()
        if not gone and not await store.jobs((), 1000, 1):
            await store.apply([ended(1, 50)])
        assert await store.sweep(grown_ms, kept_for(100, 100), 10) == gone
        await store.close()


async def test_jobs_are_swept_by_count_the_one_that_ended_first_goes_first(store: Store) -> None:
    await store.apply([ended(1, 50), ended(2, 10), ended(3, 30), PutJob(job(4)), ended(5, 40)])
    assert await store.sweep(0, kept_for(1000, 2), 1) == 1
    assert await kept(store) == [1, 3, 4, 5]
    assert await store.sweep(0, kept_for(1000, 2), 10) == 1
    assert await kept(store) == [1, 4, 5]
    await store.apply([ended(6, 1)])
    assert await store.sweep(1, kept_for(1000, 1), 10) == 2
    assert await kept(store) == [4, 6], "whatever the clock says, that was seen later"
    assert await store.sweep(0, kept_for(1000, 0), 10) == 1
    assert await kept(store) == [4]


async def test_jobs_that_completed_and_others_are_swept_apart(store: Store) -> None:
    others = [JobState.FAILED, JobState.PARTIAL, JobState.CANCELLED, JobState.TIMEOUT]
    await store.apply([ended(number, number) for number in (1, 2, 3)])
    await store.apply([PutJob(job(number, state=state, ended_ms=9)) for number, state in enumerate(others, start=4)])
    assert await store.sweep(0, kept_for(100, 1, (1000, 3)), 10) == 3
    assert await kept(store) == [3, 5, 6, 7]
    assert await store.sweep(100, kept_for(100, 1, (1000, 3)), 10) == 1
    assert await kept(store) == [5, 6, 7]
    assert await store.sweep(900, kept_for(100, 1, (1000, 3)), 2) == 2, "no more at once"
    assert await store.sweep(0, kept_for(100, 1, (1000, 3)), 2) == 1


def written(number: int, fence: int = 1) -> list[Change]:
    wrote = StreamRow(job=number, index=0, fence=fence, stream="stdout", attempt=1, written=3, kept=3, content=b"abc")
    line = LogRow(job=number, index=0, attempt=1, at_ms=5, text="begins")
    return [PutStreams((wrote,), 3), PutLogs((line,))]


async def with_output(store: Store) -> list[int]:
    """Jobs of which something is kept that their attempts wrote and logged, and that say no other of themselves."""
    found = []
    for row in await store.jobs((), 1000, 100):
        kept = [*await store.logs(row.number, 0, 0, 9), *await store.streams(row.number, 0, 1)]
        assert len(kept) == (0 if row.output_gone else 2)
        assert row.output_bytes == (0 if row.output_gone else 3)
        found += [] if row.output_gone else [row.number]
    return sorted(found)


async def swept_of_output(store: Store, kept: Retention) -> list[int]:
    while await store.sweep_output(kept):
        pass
    return await with_output(store)


async def test_what_attempts_wrote_goes_before_their_job_by_rules_of_its_own(store: Store) -> None:
    for number in (1, 2, 3, 4, 5, 6):
        state = JobState.FAILED if number > 3 else JobState.COMPLETED
        await store.apply([PutJob(job(number)), PutTasks((task(0, number),))])
        await store.apply(written(number))
        if number != 6:
            await store.apply([MoveJob(number, state, number, counts={})])
    assert await swept_of_output(store, kept_for(0, 0)) == [1, 2, 3, 4, 5, 6], "none was seen to end"
    await store.sweep(0, kept_for(1000, 100), 10)
    assert await swept_of_output(store, kept_for(100, 2, (100, 100))) == [2, 3, 4, 5, 6]
    await store.sweep(100, kept_for(1000, 100), 10)
    assert await swept_of_output(store, kept_for(200, 2, (100, 100))) == [2, 3, 6]
    assert await swept_of_output(store, kept_for(100, 2, (100, 100))) == [6], "which has not ended"
    assert await kept(store) == [1, 2, 3, 4, 5, 6]
    await store.apply([MoveJob(1, JobState.RUNNING, 60)])
    await store.apply(written(1))
    assert await with_output(store) == [1, 6], "it writes again"


async def test_less_than_none_is_none_for_a_sweep(store: Store) -> None:
    await store.apply([ended(1, 10), ended(2, 20), PutJob(job(3))])
    assert await store.sweep(0, kept_for(1000, 0), -1) == 0
    assert await kept(store) == [1, 2, 3]
    assert await store.sweep(0, kept_for(1000, 0), 10) == 2
    assert await kept(store) == [3]


# Leases.


async def test_a_free_key_is_leased_until_it_is_let_go_however_long_that_takes(store: Store) -> None:
    wanted = [Lease("a", "ada", 1, 0), Lease("b", "ada", 1, 0)]
    assert sorted(await store.acquire(["b", "a", "b"], "ada")) == wanted == await store.leases("")
    assert [lease.key for lease in await store.acquire(["a", "c"], "bob")] == ["c"]
    assert await store.release("ada", [("a", 1)]) == 1
    assert [(lease.key, lease.owner, lease.epoch) for lease in await store.acquire(["a", "b"], "bob")] == [
        ("a", "bob", 2)
    ]


async def test_a_lease_that_is_merely_held_on_keeps_its_epoch_and_its_beat_grows(store: Store) -> None:
    (first,) = await store.acquire(["a"], "ada")
    (again,) = await store.acquire(["a"], "ada")
    (renewed,) = await store.renew("ada", [("a", 1)])
    assert [lease.epoch for lease in (first, again, renewed)] == [1, 1, 1]
    assert first.beat < again.beat < renewed.beat
    assert await store.leases("") == [renewed]


async def test_a_lease_is_taken_only_as_it_was_seen(store: Store) -> None:
    seen = await store.acquire(["a", "b"], "ada")
    await store.renew("ada", [("a", 1)])
    assert [(lease.key, lease.owner, lease.epoch) for lease in await store.take("bob", seen)] == [("b", "bob", 2)]
    assert await store.take("eve", seen) == []
    now = await store.leases("")
    assert [(lease.key, lease.owner) for lease in now] == [("a", "ada"), ("b", "bob")]
    assert [lease.owner for lease in await store.take("eve", now)] == ["eve", "eve"]


async def test_a_lease_that_was_taken_over_cannot_be_renewed_or_released(store: Store) -> None:
    (held,) = await store.take("bob", await store.acquire(["a"], "ada"))
    assert await store.renew("ada", [("a", 1)]) == await store.renew("ada", [("a", 2)]) == []
    assert await store.renew("bob", [("a", 1)]) == []
    assert await store.release("ada", [("a", 1)]) == await store.release("bob", [("a", 1)]) == 0
    assert await store.leases("") == [held]


async def test_epochs_outlive_release_take_over_and_a_restart(engine: Engine) -> None:
    for epoch in range(1, 7):
        store = await engine.open()
        found = await store.take(f"boot-{epoch}", await store.leases("")) or await store.acquire(["a"], f"boot-{epoch}")
        assert [lease.epoch for lease in found] == [epoch]
        if epoch % 2:
            assert await store.release(f"boot-{epoch}", [("a", epoch), ("b", 1)]) == 1
            assert await store.leases("") == []
        await store.close()


async def test_leases_are_listed_by_the_beginning_of_their_key(store: Store) -> None:
    await store.acquire(["limit/a", "limit/b", "limits", "manager", "limit%"], "ada")
    assert [lease.key for lease in await store.leases("limit/")] == ["limit/a", "limit/b"]
    assert [lease.key for lease in await store.leases("limit%")] == ["limit%"]
    assert [lease.key for lease in await store.leases("manager")] == ["manager"]


async def test_many_leases_are_renewed_and_released_at_once(store: Store) -> None:
    keys = [f"slot/{number}" for number in range(300)]
    held = [(lease.key, lease.epoch) for lease in await store.acquire(keys, "ada")]
    assert len(await store.renew("ada", [*held, ("slot/0", 9), ("else", 1)])) == 300
    assert await store.release("ada", held[:100]) == 100
    assert await store.release("ada", held[:101]) == 1
    assert len(await store.leases("slot/")) == 199


@pytest.mark.parametrize(("key", "owner"), [("a\0b", "ada"), ("a", "")], ids=["key", "owner"])
async def test_a_lease_that_could_be_mistaken_for_another_is_refused(store: Store, key: str, owner: str) -> None:
    with pytest.raises(Invalid, match="an owner has a name"):
        await store.acquire(["b", key], owner)
    assert await store.leases("") == []
    assert await store.renew("ada", [("a\0b", 1)]) == await store.take("ada", [Lease("a\0b", "", 1, 0)]) == []
    with pytest.raises(Invalid, match="an owner has a name"):
        await store.take("", await store.acquire(["b"], "ada"))


# Changes under a lease.


async def test_who_lost_its_lease_changes_nothing_whatever_it_tries(engine: Engine) -> None:
    async with opened(engine) as ada, opened(engine) as bob:
        (held,) = await ada.acquire(["manager"], "ada")
        ada.fence(held)
        await filled(ada, 2)
        (taken,) = await bob.take("bob", [held])
        bob.fence(taken)
        before = await everything(bob)
        for changes in ([PutJob(job(2))], [claim()], [completed(fence=0)], [], [claim(), completed(5)]):
            with pytest.raises(StoreTaken, match="another manager has taken the store"):
                await ada.apply(changes)
        with pytest.raises(StoreTaken):
            await ada.sweep(1000, kept_for(0, 0), 10)
        assert await everything(bob) == before
        assert await bob.apply([claim()]) == [1]


async def test_who_let_its_lease_go_changes_nothing_until_it_has_another(engine: Engine) -> None:
    async with opened(engine) as ada:
        (held,) = await ada.acquire(["manager"], "ada")
        ada.fence(held)
        await ada.release("ada", [("manager", 1)])
        with pytest.raises(StoreTaken):
            await ada.apply([PutJob(job(1))])
        (again,) = await ada.acquire(["manager"], "ada")
        with pytest.raises(StoreTaken):
            await ada.apply([PutJob(job(1))])
        ada.fence(again)
        assert await ada.apply([PutJob(job(1))]) == [1]


async def test_the_lease_is_looked_up_in_the_transaction_of_the_change(engine: Engine, store: Store) -> None:
    (held,) = await store.acquire(["manager"], "ada")
    store.fence(held)
    engine.calls.clear()
    await store.apply([PutJob(job(1))])
    assert len(engine.calls) == engine.calls_of_a_change + engine.calls_of_more


# One round trip for a batch, and all of it or nothing.


READS: dict[str, Callable[[Store, int], Awaitable[object]]] = {
    "next_number": lambda store, count: store.next_number(),
    "live_jobs": lambda store, count: store.live_jobs(),
    "live_tasks": lambda store, count: store.live_tasks(1, -1, count),
    "job": lambda store, count: store.job("job-1"),
    "job_by_key": lambda store, count: store.job_by_key("k"),
    "jobs": lambda store, count: store.jobs(("running",), 1000, count),
    "specs": lambda store, count: store.fetch([(1, index) for index in range(count)], []),
    "outputs": lambda store, count: store.fetch([], [(1, index) for index in range(count)]),
    "tasks_at": lambda store, count: store.tasks_at([(1, index) for index in range(count)]),
    "keyed": lambda store, count: store.keyed([f"k{index}" for index in range(count)]),
    "tasks": lambda store, count: store.tasks(1, ("pending",), -1, count),
    "task": lambda store, count: store.task(1, "t1"),
    "counts": lambda store, count: store.counts(1),
    "attempts": lambda store, count: store.attempts([(1, index) for index in range(count)]),
    "events": lambda store, count: store.events(1, 0, count),
    "logs": lambda store, count: store.logs(1, 0, 0, count),
    "dead_letters": lambda store, count: store.dead_letters((0, -1), count),
    "schedules": lambda store, count: store.schedules(),
    "notices": lambda store, count: store.notices(1),
    "waiting_notices": lambda store, count: store.waiting_notices(count),
    "jobs_keyed": lambda store, count: store.jobs_keyed([f"k{number}/" for number in range(count)]),
    "leases": lambda store, count: store.leases(""),
}


@pytest.mark.parametrize("verb", READS)
async def test_every_question_is_one_round_trip_however_much_is_asked(engine: Engine, store: Store, verb: str) -> None:
    await filled(store, 200)
    for count in (1, 200):
        engine.calls.clear()
        await READS[verb](store, count)
        assert len(engine.calls) == engine.calls_of_a_read


LEASE_VERBS: dict[str, Callable[[Store, int], Awaitable[object]]] = {
    "acquire": lambda store, count: store.acquire([f"k{number}" for number in range(count)], "bob"),
    "renew": lambda store, count: store.renew("ada", [(f"k{number}", 1) for number in range(count)]),
    "take": lambda store, count: store.take("bob", [Lease(f"k{number}", "ada", 1, 1) for number in range(count)]),
    "release": lambda store, count: store.release("ada", [(f"k{number}", 1) for number in range(count)]),
}


@pytest.mark.parametrize("verb", LEASE_VERBS)
async def test_every_verb_of_leases_is_one_round_trip_for_all_keys(engine: Engine, store: Store, verb: str) -> None:
    await store.acquire([f"k{number}" for number in range(200)], "ada")
    for count in (1, 200):
        engine.calls.clear()
        await LEASE_VERBS[verb](store, count)
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
    "put_streams": lambda count: [PutStreams((stream(number),), 9) for number in range(count)],
    "put_time": lambda count: [PutTime(time_of(number)) for number in range(count)],
    "move_job": lambda count: [MoveJob(1, JobState.RUNNING, 1)] * count,
    "put_schedule": lambda count: [
        PutSchedule(ScheduleRow(name=f"s{number}", cron="", spec=b"", next_ms=1)) for number in range(count)
    ],
}


TWOFOLD = ("reset", "put_streams")
"""They change rows of two kinds."""


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("count", [1, 200])
async def test_changes_of_one_kind_are_one_round_trip_however_many(
    engine: Engine, store: Store, kind: str, count: int
) -> None:
    await filled(store, 200)
    await store.apply([claim(index, 7) for index in range(200)])
    engine.calls.clear()
    assert await store.apply(CHANGES[kind](count)) == [1] * count
    more = engine.calls_of_more if kind in TWOFOLD else 0
    assert len(engine.calls) == engine.calls_of_a_change + more


async def test_changes_of_many_tasks_in_turns_are_as_few_round_trips_as_they_have_kinds(
    engine: Engine, store: Store
) -> None:
    await filled(store, 100)
    await store.apply([claim(index, 7) for index in range(50)])
    changes: list[Change] = []
    for index in range(50):
        changes += [
            completed(index, 7),
            claim(index + 50, 8),
            PutEvent(EventRow(job=1, at_ms=index, kind="x")),
            MoveJob(1, JobState.RUNNING, 1),
        ]
    engine.calls.clear()
    assert await store.apply(changes) == [1] * 200
    assert len(engine.calls) == engine.calls_of_a_change + 3 * engine.calls_of_more
    assert await store.counts(1) == {"assigned": 50, "completed": 50}
    assert [row.at_ms for row in await store.events(1, 0, 100)] == list(range(50))


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
async def test_a_crash_between_any_two_statements_leaves_all_of_a_batch_or_nothing(
    engine: Engine, with_refusals: bool
) -> None:
    async with opened(engine) as store:
        await filled(store, 2)
        await store.apply([PutSchedule(ScheduleRow(name="hourly", cron="", spec=b"{}", next_ms=5)), PutJob(job(3))])
        before = await everything(store)
    changes = [change for change in all_kinds() if with_refusals or change != completed(1, 3, 2)]
    crashed = 0
    while True:
        async with opened(engine) as store:
            engine.crash_at = crashed
            try:
                await store.apply(changes)
            except Crash:
                crashed += 1
            else:
                break
            finally:
                engine.crash_at = None
        async with opened(engine) as store:
            assert await everything(store) == before
    async with opened(engine) as store:
        assert await everything(store) != before
        assert await store.counts(2) == {"pending": 2, "completed": 1} and await store.job("job-3") is None
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
            case ClaimRange() | CompleteRange():
                return sum([self.change(one) for one in change.each()])
            case _:
                raise AssertionError(change)

    def of_task(self, row: TaskRow, change: ClaimTask | Complete | Release | Extend | Reset) -> dict[str, Any]:
        if isinstance(change, Reset):
            plain = TaskRow(
                job=row.job, index=row.index, id=row.id, state=TaskState.PENDING, spec=change.spec or row.spec
            )
            return msgspec.structs.asdict(plain) | {"attempts": row.attempts}
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
                    "memory_bytes": change.memory_bytes,
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
of_ranges: st.SearchStrategy[ClaimRange | CompleteRange] = st.one_of(
    st.builds(
        ClaimRange, numbers, indexes, small, small, st.integers(1, 4), st.sampled_from(["ada#1", "bob#2"]), small
    ),
    st.builds(CompleteRange, numbers, indexes, small, fences, ends, small, output=contents, error=texts, cause=texts),
)
any_change: st.SearchStrategy[Change] = st.one_of(
    of_tasks,
    of_tasks,
    of_tasks,
    of_ranges,
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
    asyncio.run(check_against_model(engine_name, batches))


async def check_against_model(engine_name: str, batches: list[list[Change]]) -> None:
    model = Model()
    with tempfile.TemporaryDirectory() as folder:
        store = EMPTY_STORES[engine_name](folder)
        for batch in [begun, *batches]:
            wanted = model.apply(batch)
            if wanted is None:
                with pytest.raises(AlreadyKept):
                    await store.apply(batch)
            else:
                assert await store.apply(batch) == wanted
        assert await store.jobs((), 1000, 100) == [model.jobs[number] for number in sorted(model.jobs, reverse=True)]
        found = [row for number in (1, 2) for row in await store.tasks(number, (), -1, 100)]
        assert found == [model.tasks[key] for key in sorted(model.tasks)]
        dead = [key for key in sorted(model.tasks) if model.tasks[key].state is TaskState.DEAD]
        assert [(row.job, row.index) for row in await store.dead_letters((0, -1), 100)] == dead
        assert {key: keyed.output for key, keyed in (await store.keyed(["k0", "k1"])).items()} == model.keyed()
        await store.close()


# Runs of tasks in one change.


async def states_of(store: Store, number: int = 1) -> list[tuple[str, int]]:
    return [(row.state.value, row.fence) for row in await store.tasks(number, (), -1, 100)]


async def test_a_run_of_tasks_is_claimed_under_fences_in_a_row(store: Store) -> None:
    await filled(store, 5)
    assert await store.apply([ClaimRange(1, 1, 3, 2, 40, "ada#1", NOON_MS)]) == [3]
    assert await states_of(store) == [
        ("pending", 0),
        ("assigned", 40),
        ("assigned", 41),
        ("assigned", 42),
        ("pending", 0),
    ]
    claimed = msgspec.structs.replace(
        task(2), state=TaskState.ASSIGNED, attempts=2, fence=41, worker="ada#1", started_ms=NOON_MS
    )
    assert await only(store, 2) == claimed


async def test_a_claim_of_a_run_passes_by_what_has_ended_or_has_a_higher_fence(store: Store) -> None:
    await filled(store, 4)
    await store.apply([claim(0, 7), completed(0, 7), claim(2, 50)])
    assert await store.apply([ClaimRange(1, 0, 4, 1, 40, "bob#2", NOON_MS)]) == [2]
    assert await states_of(store) == [("completed", 7), ("assigned", 41), ("assigned", 50), ("assigned", 43)]
    assert await store.apply([ClaimRange(1, 0, 4, 1, 48, "bob#2", NOON_MS)]) == [3], "the same fence is a repetition"


async def test_a_run_of_tasks_is_completed_each_under_its_own_fence(store: Store) -> None:
    await filled(store, 4)
    await store.apply([ClaimRange(1, 0, 4, 1, 40, "ada#1", NOON_MS), claim(2, 90)])
    end = CompleteRange(1, 0, 4, 40, TaskState.COMPLETED, NOON_MS + 5, output=b"null")
    assert await store.apply([end]) == [3], "one was given to another since"
    assert await store.apply([end]) == [0], "a result is accepted once"
    assert await states_of(store) == [("completed", 40), ("completed", 41), ("assigned", 90), ("completed", 43)]
    assert (await only(store, 3)).output == b"null"
    assert (await only(store, 1)).worker == "ada#1" and (await only(store, 1)).attempts == 1


async def test_a_run_that_was_not_given_out_is_ended_whatever_its_fences_are(store: Store) -> None:
    await filled(store, 3)
    await store.apply([claim(1, 7)])
    assert await store.apply(
        [CompleteRange(1, 0, 3, 0, TaskState.CANCELLED, 9, error="by ada", cause="cancelled")]
    ) == [3]
    assert [(row.state, row.error, row.cause) for row in await store.tasks(1, (), -1, 9)] == [
        (TaskState.CANCELLED, "by ada", "cancelled")
    ] * 3


async def test_a_run_ends_with_its_job_however_long_it_is(store: Store) -> None:
    await filled(store, 2, 1)
    await filled(store, 2, 2)
    long = 1 << 33
    claimed, ended = ClaimRange(1, 1, long, 1, 5, "ada#1", 1), CompleteRange(1, 1, long, 5, TaskState.COMPLETED, 2)
    assert await store.apply([claimed, ended, ClaimRange(1, 0, 0, 1, 9, "ada#1", 1)]) == [1, 1, 0]
    assert await states_of(store) == [("pending", 0), ("completed", 5)]
    assert await states_of(store, 2) == [("pending", 0)] * 2


async def test_a_run_of_tasks_is_one_statement(engine: Engine, store: Store) -> None:
    await filled(store, 50)
    for change in (ClaimRange(1, 0, 50, 1, 7, "ada#1", 1), CompleteRange(1, 0, 50, 7, TaskState.COMPLETED, 2)):
        engine.calls.clear()
        assert await store.apply([change]) == [50]
        assert len(engine.calls) == engine.calls_of_a_change


@pytest.mark.parametrize("engine_name", EMPTY_STORES)
@settings(deadline=None, derandomize=True, max_examples=100)
@given(before=st.lists(of_tasks, max_size=8), ranges=st.lists(of_ranges, min_size=1, max_size=4))
def test_a_change_of_a_run_is_the_same_as_single_changes_one_by_one(
    engine_name: str, before: list[Change], ranges: list[ClaimRange | CompleteRange]
) -> None:
    asyncio.run(check_ranges(engine_name, before, ranges))


async def check_ranges(engine_name: str, before: list[Change], ranges: list[ClaimRange | CompleteRange]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        by_range, one_by_one = (EMPTY_STORES[engine_name](tempfile.mkdtemp(dir=folder)) for _ in range(2))
        for store in (by_range, one_by_one):
            await store.apply([*begun, *before])
        counts = await by_range.apply(ranges)
        singles = [sum([sum(await one_by_one.apply([one])) for one in change.each()]) for change in ranges]
        assert counts == singles
        assert await everything(by_range) == await everything(one_by_one)
        for store in (by_range, one_by_one):
            await store.close()
