"""Dag jobs in a file of SQLite: addresses, troubles of the file and the disk, a killed process, copies and checks."""

import contextlib
import errno
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from talka.control.tasks.store_hold import LEASE_NS
from talka.errors import TalkaError
from talka.store.dags import sqlite_file
from talka.store.dags.opening import kind_of
from talka.store.dags.records import BadRecords, RecordsBroken, RecordsUnavailable, StoreGone
from talka.store.dags.sqlite import ClearLimits, SqliteRecords, place_of
from talka.store.dags.sqlite_changes import JOB_NUMBERS, STEPS, TASK_NUMBERS
from talka.store.dags.sqlite_file import LOOK_NS, QUERIES, FileLimits, SqliteFile, WriterBusy
from talka.units import SECOND
from talka.work.dags.records import (
    JOB_STATES,
    AttemptRow,
    Change,
    ClaimTask,
    Complete,
    DropJob,
    EventRow,
    JobRow,
    LogRow,
    MoveJob,
    PutAttempt,
    PutEvent,
    PutJob,
    PutLogs,
    PutStreams,
    PutTasks,
    Reset,
    StreamRow,
    TaskRow,
)
from talka.work.lifecycle import JobState, TaskState, is_final
from talka.work.retention import Keep, Retention

SPEC = b'{"id":"t","handler":"sum"}'
PAGE_BYTES = 4096
TENTH_S = Retention(Keep(SECOND // 10, 9), Keep(SECOND // 10, 9))
ROOT = Path(__file__).parents[3]


def batch(number: int, tasks: int = 20) -> list[Change]:
    """A job that is over at once."""
    row = JobRow(
        number=number,
        id=f"job-{number}",
        name="etl",
        state=JobState.RUNNING,
        submitted_ms=1,
        settings=b"{}",
        tasks=tasks,
    )
    rows = tuple(
        TaskRow(job=number, index=index, id=f"t{index}", state=TaskState.PENDING, spec=SPEC) for index in range(tasks)
    )
    return [
        PutJob(row),
        PutTasks(rows),
        *(ClaimTask(number, index, 1, 7, "ada#1", 1) for index in range(tasks)),
        *(Complete(number, index, 7, TaskState.COMPLETED, 2, output=b"1") for index in range(tasks)),
        MoveJob(number, JobState.COMPLETED, 3, counts={"completed": tasks}),
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteRecords]:
    with SqliteRecords(str(path)) as store:
        yield store


def test_ends_of_jobs_and_tasks_are_where_the_queries_look_for_them() -> None:
    assert [is_final(state) for state in TASK_NUMBERS] == [number >= 4 for number in TASK_NUMBERS.values()]
    assert [is_final(state) for state in JOB_NUMBERS] == [number >= 7 for number in JOB_NUMBERS.values()]
    assert TASK_NUMBERS[TaskState.PENDING] == 0 and TASK_NUMBERS[TaskState.ASSIGNED] == 2
    assert TASK_NUMBERS[TaskState.COMPLETED] == 4 and TASK_NUMBERS[TaskState.DEAD] == 9
    assert JOB_NUMBERS[JobState.SUBMITTED] == 0


def test_every_kind_of_change_has_its_statements() -> None:
    assert set(STEPS) == set(Change.__args__)


# Addresses.


@pytest.mark.parametrize(
    ("url", "path", "synchronous"),
    [
        ("sqlite:///jobs.sqlite", "jobs.sqlite", "FULL"),
        ("sqlite:////var/lib/jobs.sqlite", "/var/lib/jobs.sqlite", "FULL"),
        ("sqlite:///jobs.sqlite?synchronous=normal", "jobs.sqlite", "NORMAL"),
        ("sqlite:///jobs.sqlite?synchronous=FULL&", "jobs.sqlite", "FULL"),
        ("what?.sqlite", "what?.sqlite", "FULL"),
        ("sqlite:///:memory:", ":memory:", "FULL"),
    ],
)
def test_an_address_names_a_file_and_how_it_is_written(url: str, path: str, synchronous: str) -> None:
    assert place_of(url) == (path, synchronous)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://ada:secret@db/jobs", "postgresql:// comes later, this version keeps dag jobs in SQLite only"),
        ("redis://:secret@db/0", "redis:// comes later, this version keeps dag jobs in SQLite only"),
        ("mysql://ada:secret@db/jobs", "mysql:// is not the address of a store: write sqlite:///FILE"),
        ("sqlite://jobs.sqlite", "sqlite:// is not the address of a store"),
        ("sqlite:///", "names no file"),
        ("sqlite:///folder/", "names no file"),
        ("", "names no file"),
        ("a\0b", "names no file"),
        ("sqlite:///f?synchronous=OFF", "'synchronous=OFF' is not a setting of a store: write ?synchronous=FULL or"),
        ("sqlite:///f?cache=1", "'cache=1' is not a setting of a store"),
    ],
)
def test_an_address_that_cannot_be_used_gets_a_sentence_without_its_password(url: str, says: str) -> None:
    with pytest.raises(BadRecords) as raised:
        kind_of(url)
    assert says in str(raised.value) and "secret" not in str(raised.value)


@pytest.mark.parametrize(("synchronous", "number"), [("FULL", 2), ("NORMAL", 1)])
def test_it_is_written_as_durably_as_its_address_says(path: Path, synchronous: str, number: int) -> None:
    with SqliteRecords(*place_of(f"sqlite:///{path}?synchronous={synchronous}")) as store:
        found = store.file.write(lambda connection: connection.execute("PRAGMA synchronous").fetchone())
        mode = store.file.write(lambda connection: connection.execute("PRAGMA journal_mode").fetchone())
    assert (found, mode) == ((number,), ("wal",))


# The file.


def test_a_new_store_is_for_the_eyes_of_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "jobs.sqlite"
    with SqliteRecords(str(path)) as store:
        store.apply(batch(1))
        assert store.place == str(path)
        files = sorted(path.parent.iterdir())
        assert len(files) > 1
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_what_was_kept_is_there_after_a_restart(path: Path) -> None:
    with SqliteRecords(str(path)) as store:
        store.apply(batch(1))
    with SqliteRecords(str(path)) as store:
        assert store.counts(1) == {"completed": 20}
        assert store.file.found_version == store.file.version


def test_a_closed_store_says_so(store: SqliteRecords) -> None:
    store.close()
    store.close()
    for act in (store.live_jobs, lambda: store.apply(batch(1))):
        with pytest.raises(RecordsUnavailable, match="has been closed: open it again"):
            act()


def test_who_reads_does_not_wait_for_one_who_writes(store: SqliteRecords) -> None:
    store.apply(batch(1))
    is_writing, may_end = threading.Event(), threading.Event()

    def act(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM talka_jobs")
        is_writing.set()
        may_end.wait(30)

    writer = threading.Thread(target=store.file.write, args=[act])
    writer.start()
    assert is_writing.wait(30)
    assert store.job("job-1") is not None
    may_end.set()
    writer.join(30)
    assert store.job("job-1") is None


def test_in_memory_who_reads_waits_for_one_who_writes() -> None:
    with SqliteRecords(":memory:") as store:
        assert store.file.write(lambda connection: store.file._reading.locked()), "there is but one connection"


def test_a_million_tasks_need_no_more_than_a_page_at_a_time(store: SqliteRecords) -> None:
    rows = tuple(
        TaskRow(job=1, index=index, id=f"t{index}", state=TaskState.PENDING, spec=SPEC) for index in range(3000)
    )
    store.apply([PutTasks(rows)])
    after, found = -1, 0
    while page := store.live_tasks(1, after, 1000):
        assert len(page) <= 1000
        after, found = page[-1].index, found + len(page)
    assert found == 3000


def not_a_database(path: Path) -> None:
    path.write_bytes(b"this is a letter to somebody" * 1000)


def a_folder(path: Path) -> None:
    path.mkdir()


def of_something_else(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")


def of_a_later_version(path: Path) -> None:
    SqliteRecords(str(path)).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO talka_tasks_version VALUES (99)")
        connection.commit()


def under_a_file(path: Path) -> None:
    path.symlink_to(path.parent / "letter" / "jobs.sqlite")
    (path.parent / "letter").write_text("dear ada")


BAD_FILES: list[tuple[Callable[[Path], None], str]] = [
    (not_a_database, "is not a database of SQLite: name another file with --store"),
    (a_folder, "is a folder: name a file in it"),
    (of_something_else, "is a database of something else: name another file"),
    (of_a_later_version, r"was written by a later version of talka \(its schema is 99, known here is \d+\)"),
    (under_a_file, "cannot be made: .* is not a folder"),
]


@pytest.mark.parametrize(("make", "says"), BAD_FILES, ids=[make.__name__ for make, _ in BAD_FILES])
def test_a_file_that_cannot_be_the_store_gets_a_sentence_and_is_left_alone(
    path: Path, make: Callable[[Path], None], says: str
) -> None:
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(BadRecords, match=says) as raised:
        SqliteRecords(str(path))
    assert str(path) in str(raised.value)
    assert before == (path.read_bytes() if path.is_file() else None)


def test_tables_are_made_once_by_whoever_is_first(path: Path) -> None:
    both = threading.Barrier(2)
    problems: list[TalkaError] = []

    def open_it() -> None:
        both.wait(30)
        try:
            SqliteRecords(str(path)).close()
        except TalkaError as error:
            problems.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    with SqliteRecords(str(path)) as store:
        assert store.file.problems() == []


def spoil(path: Path) -> None:
    """Write over everything but the first page."""
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.seek(PAGE_BYTES)
        file.write(b"\xa5" * (size - PAGE_BYTES))


def test_a_damaged_file_is_told_of_whatever_is_asked_of_it(path: Path) -> None:
    with SqliteRecords(str(path)) as store:
        for number in range(1, 20):
            store.apply(batch(number))
    spoil(path)
    with pytest.raises(BadRecords, match=r"is damaged \(.*\): put a copy made by talka store backup in its place"):
        with SqliteRecords(str(path)) as store:
            store.counts(5)


def test_a_locked_file_is_waited_for_and_then_told_of(path: Path) -> None:
    now = FileLimits(busy_s=0)
    with (
        SqliteRecords(str(path), limits=now) as store,
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RecordsUnavailable, match="is in use by another process for over 0 s: stop that one"):
            store.apply(batch(1))
        with pytest.raises(RecordsUnavailable, match="is in use by another process"):
            SqliteRecords(str(path), limits=now)
        assert store.live_jobs() == []
        other.execute("ROLLBACK")
        assert sum(store.apply(batch(1))) == 62


def test_a_full_disk_stops_a_batch_and_not_those_before_and_after(small_disk: Path) -> None:
    path, ballast = small_disk / "jobs.sqlite", small_disk / "ballast"
    with SqliteRecords(str(path)) as store:
        store.apply(batch(1))
        with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
            while file.write(b"x" * PAGE_BYTES) == PAGE_BYTES:
                pass
        with pytest.raises(RecordsUnavailable, match=r"cannot be written \(the disk is full\): free some space there"):
            store.apply(batch(2, 1000))
        assert [row.id for row in store.jobs((), 99, 9)] == ["job-1"]
        ballast.unlink()
        store.apply(batch(3))
    with SqliteRecords(str(path)) as store:
        assert [row.id for row in store.jobs((), 99, 9)] == ["job-3", "job-1"]
        assert store.file.problems() == []


def test_a_store_that_may_grow_no_more_stops_a_batch_and_not_those_before(store: SqliteRecords) -> None:
    store.apply(batch(1))
    store.file.write(lambda connection: connection.execute("PRAGMA max_page_count = 1").fetchone())
    with pytest.raises(RecordsUnavailable, match="the disk is full"):
        store.apply(batch(2, 1000))
    store.file.write(lambda connection: connection.execute("PRAGMA max_page_count = 100000").fetchone())
    store.apply(batch(3))
    assert [row.id for row in store.jobs((), 99, 9)] == ["job-3", "job-1"]
    assert store.counts(2) == {}


def failing(monkeypatch: pytest.MonkeyPatch, statement: str, code: int) -> list[bool]:
    """Connections made from now on fail with this code at this statement, while the list says so."""
    is_on = [False]

    class Failing(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if is_on[0] and sql == statement:
                error = sqlite3.OperationalError("made up")
                error.sqlite_errorcode = code
                raise error
            return super().execute(sql, *values)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *places, **options: connect(*places, factory=Failing, **options))
    return is_on


def test_nothing_is_written_any_more_once_the_disk_did_not_keep_something(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_failing = failing(monkeypatch, "COMMIT", sqlite3.SQLITE_IOERR_FSYNC)
    with SqliteRecords(str(path)) as store:
        is_failing[0] = True
        with pytest.raises(RecordsBroken, match=r"did not keep what was written: made up\): look after the disk"):
            store.apply(batch(1))
        is_failing[0] = False
        with pytest.raises(
            RecordsBroken, match=r"nothing more is written to .* by this process \(.*\): start it again"
        ):
            store.apply(batch(2))
        assert store.live_jobs() == []
    with SqliteRecords(str(path)) as store:
        assert store.jobs((), 99, 9) == []
        store.apply(batch(2))


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (sqlite3.SQLITE_READONLY, BadRecords, "cannot be written: check the permissions of the file and of its folder"),
        (sqlite3.SQLITE_CANTOPEN, BadRecords, "cannot be written: check the permissions"),
        (sqlite3.SQLITE_IOERR_WRITE, RecordsUnavailable, "look after the disk"),
    ],
    ids=["read-only", "no rights", "input and output"],
)
def test_a_store_that_cannot_be_written_says_what_to_do_and_can_be_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[TalkaError], says: str
) -> None:
    is_failing = failing(monkeypatch, "BEGIN IMMEDIATE", code)
    with SqliteRecords(str(path)) as store:
        is_failing[0] = True
        with pytest.raises(RecordsUnavailable, match=says):  # it could be written a moment ago
            store.apply(batch(1))
        with pytest.raises(kind, match=says):
            SqliteRecords(str(path))
        is_failing[0] = False
        store.apply(batch(1))


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_file_without_rights_to_write_is_told_of_when_it_is_opened(path: Path) -> None:
    SqliteRecords(str(path)).close()
    path.chmod(0o400)
    with pytest.raises(BadRecords, match="check the permissions"):
        SqliteRecords(str(path))


# A killed process.


APPLY_FOR_EVER = """
import itertools, sys
from talka.store.dags.sqlite import SqliteRecords
from tests.store.dags.test_sqlite import batch
store = SqliteRecords(sys.argv[1])
for number in itertools.count(store.next_number()):
    store.apply(batch(number))
    print(number, flush=True)
"""


def test_every_batch_acknowledged_before_a_kill_is_there_and_none_by_half(path: Path) -> None:
    acknowledged = 0
    for enough in (1, 7, 20):
        command = [sys.executable, "-c", APPLY_FOR_EVER, str(path)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert child.stdout is not None
        with child.stdout as lines:
            for _ in range(enough):
                acknowledged = int(lines.readline())
            child.send_signal(signal.SIGKILL)
            # Those that it could still tell of count too.
            acknowledged = max([acknowledged, *(int(line) for line in lines if line.endswith("\n"))])
        assert child.wait(30) == -signal.SIGKILL
        with SqliteRecords(str(path)) as store:
            jobs = store.jobs((), 1 << 31, 100_000)
            assert jobs[0].number in (acknowledged, acknowledged + 1)
            assert [job.number for job in jobs] == list(range(jobs[0].number, 0, -1))
            assert {job.state for job in jobs} == {JobState.COMPLETED}
            assert all(store.counts(job.number) == {"completed": 20} for job in jobs)
            assert store.file.problems() == []


# Copies, checks, blobs.


def test_a_copy_is_of_one_instant_while_others_write(store: SqliteRecords, path: Path, tmp_path: Path) -> None:
    store.apply(batch(1))
    copy = tmp_path / "copy.sqlite"

    def act(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM talka_jobs")
        with contextlib.closing(SqliteFile(str(path), as_it_is=True)) as file:
            file.backup(copy)

    store.file.write(act)
    assert store.job("job-1") is None
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert sorted(file.name for file in tmp_path.iterdir() if "copy" in file.name) == ["copy.sqlite"]
    with SqliteRecords(str(copy)) as copied:
        assert copied.job("job-1") is not None and copied.file.problems() == []


def test_a_copy_never_takes_the_place_of_a_file(store: SqliteRecords, tmp_path: Path) -> None:
    target = tmp_path / "letter"
    target.write_text("dear ada")
    with pytest.raises(BadRecords, match="letter is there already: name a new file for the copy"):
        store.file.backup(target)
    assert target.read_text() == "dear ada"


def test_a_copy_that_was_broken_off_is_no_obstacle(store: SqliteRecords, tmp_path: Path) -> None:
    (tmp_path / "copy.new").write_text("half of it")
    store.file.backup(tmp_path / "copy")
    assert not (tmp_path / "copy.new").exists() and (tmp_path / "copy").exists()


def test_the_name_of_a_copy_is_on_disk_before_it_is_told_of(
    store: SqliteRecords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[Path, bool]] = []
    monkeypatch.setattr(sqlite_file, "sync_folder", lambda path: synced.append((path, (tmp_path / "copy").exists())))
    store.file.backup(tmp_path / "copy")
    assert synced == [(tmp_path, True)]


def test_a_copy_without_a_folder_is_told_of(store: SqliteRecords, tmp_path: Path) -> None:
    with pytest.raises(BadRecords, match="copy cannot be written: .*No such file or directory"):
        store.file.backup(tmp_path / "nowhere" / "copy")


def test_a_copy_that_does_not_fit_leaves_nothing_behind(store: SqliteRecords, small_disk: Path) -> None:
    store.apply(batch(1, 20_000))
    with pytest.raises(RecordsUnavailable, match=r"could not be copied to .*copy.new \(.*\): free some space there"):
        store.file.backup(small_disk / "copy")
    assert list(small_disk.iterdir()) == []


def test_a_whole_store_has_no_problems(store: SqliteRecords) -> None:
    store.apply(batch(1))
    store.apply([change for change in batch(2) if not isinstance(change, MoveJob)])
    assert store.file.problems() == []
    assert store.file.sizes() == (2, 40)


BELONGINGS: list[Change] = [
    PutAttempt(AttemptRow(job=1, index=0, attempt=1, fence=1, worker="", started_ms=1, ended_ms=1, cause="")),
    PutEvent(EventRow(job=1, at_ms=1, kind="started")),
    PutLogs((LogRow(job=1, index=0, attempt=1, at_ms=1, text="hello"),)),
    PutStreams((StreamRow(job=1, index=0, attempt=1, fence=1, stream="stdout", written=1, kept=1, content=b"x"),), 1),
]


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("DELETE FROM talka_jobs", "there are tasks without their job: 20, the first of job number 1"),
        ("DELETE FROM talka_jobs", "events without their job: 1,"),
        ("DELETE FROM talka_tasks", "attempts without their task: 1,"),
        ("DELETE FROM talka_tasks", "lines of logs without their task: 1,"),
        ("DELETE FROM talka_tasks", "what attempts wrote without their task: 1,"),
        ("INSERT INTO talka_keys VALUES ('k', 5)", "idempotency keys without their task: 1,"),
        ("DELETE FROM talka_tasks WHERE id = 't3'", "job job-1 says that it has 20 tasks, and 19 are there"),
        (
            "UPDATE talka_tasks SET state = 0 WHERE id = 't3'",
            "job job-1 has ended, and its tasks are not in the states",
        ),
    ],
)
def test_what_does_not_fit_together_is_told(store: SqliteRecords, sql: str, says: str) -> None:
    store.apply([*batch(1), *BELONGINGS])
    assert store.file.problems() == []
    store.file.write(lambda connection: connection.execute(sql))
    assert says in "\n".join(store.file.problems())


def test_what_was_dropped_leaves_nothing_that_does_not_fit_together(store: SqliteRecords) -> None:
    store.apply([*batch(1), *BELONGINGS, Complete(1, 0, 7, TaskState.COMPLETED, 1, key="k")])
    store.apply([DropJob(1)])
    assert store.file.problems() == [] and store.file.sizes() == (0, 0)


def rows_of(store: SqliteRecords) -> tuple[int, int]:
    """Tasks and events."""
    (tasks,), (events,) = store.file.write(
        lambda connection: connection.execute(
            "SELECT count(*) FROM talka_tasks UNION ALL SELECT count(*) FROM talka_events"
        ).fetchall()
    )
    return tasks, events


def test_what_a_large_job_had_goes_by_so_many_rows_at_a_time_also_after_a_restart(path: Path) -> None:
    few = ClearLimits(rows=10)
    with SqliteRecords(str(path), clearing=few) as store:
        store.apply([*batch(1, 25), PutEvent(EventRow(job=1, at_ms=1, kind="started"))])
        store.apply([PutEvent(EventRow(job=1, at_ms=at_ms, kind="slow")) for at_ms in range(24)])
        store.apply([DropJob(1)])
        assert rows_of(store) == (15, 25) and store.file.problems() == []
        assert store.clear() and rows_of(store)[0] == 5
        assert store.clear() and rows_of(store)[0] == 0, "its events take what is left"
    with SqliteRecords(str(path), clearing=few) as again:
        before = rows_of(again)[1]
        while again.clear():
            assert before - 10 <= rows_of(again)[1] < before and again.file.problems() == []
            before = rows_of(again)[1]
        assert rows_of(again) == (0, 0) and not again.clear()


def test_what_a_job_of_large_tasks_had_goes_by_so_many_bytes_at_a_time(path: Path) -> None:
    with SqliteRecords(str(path), clearing=ClearLimits(bytes=250_000)) as store:
        store.apply(batch(1))
        spec = b'{"handler":"sum","config":"' + b"x" * 100_000 + b'"}'
        store.apply([Reset(1, index, spec=spec) for index in range(20)])
        left = 20
        store.apply([DropJob(1)])
        while True:
            left -= 3
            assert rows_of(store)[0] == max(left, 0)
            if not store.clear():
                break
        assert store.file.sizes() == (0, 0)


def test_many_dropped_jobs_go_in_parts_too(path: Path) -> None:
    with SqliteRecords(str(path), clearing=ClearLimits(rows=10)) as store:
        for number in range(1, 31):
            store.apply(batch(number, 1))
        store.apply([DropJob(number) for number in range(1, 31)])
        assert store.file.sizes() == (0, 25) and store.file.problems() == []
        while store.clear():
            assert store.file.problems() == []
        assert store.file.sizes() == (0, 0)


def test_who_does_not_wait_for_another_writer_is_told_that_there_is_one(store: SqliteRecords) -> None:
    began, may = threading.Event(), threading.Event()

    def takes_long(_: object) -> None:
        began.set()
        assert may.wait(30)

    other = threading.Thread(target=store.file.write, args=(takes_long,))
    other.start()
    assert began.wait(30)
    with pytest.raises(WriterBusy):
        store.apply(batch(1), waits=False)
    may.set()
    other.join(30)
    store.apply(batch(1), waits=False)
    assert store.file.sizes() == (1, 20)


def test_a_state_that_a_job_counted_none_of_is_no_problem(store: SqliteRecords) -> None:
    *changes, _ = batch(1)
    store.apply([*changes, MoveJob(1, JobState.COMPLETED, 3, counts={"completed": 20, "failed": 0})])
    assert store.file.problems() == []


def test_a_store_without_tables_is_to_be_migrated(path: Path) -> None:
    sqlite3.connect(path).close()
    path.touch()
    with contextlib.closing(SqliteFile(str(path), as_it_is=True)) as file:
        assert file.problems() == [f"its schema is 0, and {file.version} is known: run talka store migrate"]


def test_who_only_looks_makes_nothing(path: Path) -> None:
    with pytest.raises(BadRecords, match="there is no store .*: check --store, or make one with talka store migrate"):
        SqliteFile(str(path), as_it_is=True)
    assert not path.exists()


def test_blobs_that_are_kept_are_listed_once_each(store: SqliteRecords) -> None:
    rows = [
        TaskRow(job=1, index=index, id=f"t{index}", state=TaskState.COMPLETED, spec=SPEC, blob=blob)
        for index, blob in enumerate(["c", "a", "", "b", "a"])
    ]
    store.apply([PutTasks(tuple(rows))])
    assert store.blobs("", 2) == ["a", "b"]
    assert store.blobs("b", 2) == ["c"]


# What lies in its place.


@pytest.mark.parametrize("name", ["jobs.sqlite", "jobs.sqlite-wal"], ids=["the file", "its log"])
@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_nothing_is_acknowledged_once_the_file_is_not_the_one_that_is_open(path: Path, name: str, how: str) -> None:
    with SqliteRecords(str(path), limits=FileLimits(look_ns=-1)) as store:  # it was not looked for long
        store.apply(batch(1))
        place = path.with_name(name)
        away = place.with_name("away")
        if how == "deleted":
            place.rename(away)  # an inode that is kept is not given to another
            says = f"{name} was deleted while this manager had it: nothing more is kept or acknowledged"
        else:
            shutil.copy(place, away)
            os.replace(away, place)
            says = f"another file is in the place of .*{name} while this manager had it"
        for ask in (lambda: store.apply(batch(2)), lambda: store.sweep(0, TENTH_S, 1), store.file.check_place):
            with pytest.raises(StoreGone, match=says):
                ask()
        assert [row.number for row in store.jobs((), 9, 9)] == [1], "what was kept can still be read"


def test_the_place_of_a_file_is_looked_at_now_and_then_and_with_every_commit_once_it_is_gone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [10**15]
    monkeypatch.setattr(sqlite_file, "monotonic_ns", lambda: now[0])
    with SqliteRecords(str(path)) as store:
        path.rename(path.with_name("away"))
        store.apply(batch(1))
        now[0] += LOOK_NS + 1
        for number in (2, 3):
            with pytest.raises(StoreGone):
                store.apply(batch(number))
        assert LOOK_NS < LEASE_NS


def test_a_file_that_is_in_its_place_is_left_alone(path: Path) -> None:
    with SqliteRecords(str(path)) as store, SqliteRecords(str(path)) as other:
        for number in range(1, 4):
            store.apply(batch(number))
            store.checkpoint()
            store.file.check_place()
        other.close()
        store.apply(batch(5))
    with SqliteRecords(":memory:") as memory:
        memory.file.check_place()
    with pytest.raises(RecordsUnavailable, match="has been closed: open it again"):
        memory.file.check_place()


def test_a_place_that_cannot_be_looked_at_is_tried_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = os.stat

    def fail(place: Any, **more: Any) -> os.stat_result:
        if str(place) == str(path):
            raise OSError(errno.EIO, "Input/output error")
        return look(place, **more)

    with SqliteRecords(str(path), limits=FileLimits(look_ns=-1)) as store:
        monkeypatch.setattr(os, "stat", fail)
        with pytest.raises(RecordsUnavailable, match="cannot be looked at"):
            store.apply(batch(1))
        monkeypatch.undo()
        store.apply(batch(1))


# Of earlier versions.


def first_version(path: Path) -> sqlite3.Connection:
    """A store of the first schema, with a job that ended and a manager that has it."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(QUERIES.migrations[0].sql)
    connection.execute("INSERT INTO talka_tasks_version VALUES (1)")
    connection.execute("INSERT INTO talka_leases VALUES ('manager', 'earlier', 7, ?)", (1_790_000_000_000,))
    connection.execute(
        "INSERT INTO talka_jobs VALUES (1, 'j', 'n', ?, 1, x'7b7d', 0, '', '', '', 1, 1, '', x'7b7d')",
        (JOB_STATES.index(JobState.COMPLETED),),
    )
    return connection


def test_a_manager_of_an_earlier_version_is_seen_to_live(path: Path) -> None:
    with contextlib.closing(first_version(path)) as earlier, SqliteRecords(str(path)) as store:
        seen = list(store.leases("manager"))
        assert [(lease.owner, lease.epoch) for lease in seen] == [("earlier", 7)]
        earlier.execute("UPDATE talka_leases SET until_ms = until_ms + 10000")  # as it renews
        assert store.take("now", seen) == []
        assert [lease.epoch for lease in store.take("now", list(store.leases("manager")))] == [8]


def test_a_job_that_ended_in_an_earlier_version_is_kept_for_its_whole_time_from_now_on(path: Path) -> None:
    first_version(path).close()
    with SqliteRecords(str(path)) as store:
        assert [store.sweep(grown_ms, TENTH_S, 9) for grown_ms in (0, 99, 1)] == [0, 0, 1]


# The length of its log.


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def test_commits_are_written_over_a_log_that_was_made_long_before(path: Path) -> None:
    limits = FileLimits(log_bytes=2_000_000)
    with SqliteRecords(str(path), limits=limits) as store:
        store.apply(batch(1))
        store.file.lengthen_log()
        for number in range(2, 20):
            store.apply(batch(number))
        assert log_of(path).stat().st_size == 2_000_000
        store.file.lengthen_log()
        for number in range(20, 100):
            store.apply(batch(number))
        length = log_of(path).stat().st_size
        assert length > 2_000_000, "it grows where that was not enough"
        store.file.lengthen_log()
        assert log_of(path).stat().st_size == length, "a longer one is left alone"
        assert len(store.live_jobs()) + len(store.jobs((), 1000, 1000)) >= 99


def test_what_was_committed_to_a_long_log_is_found_after_a_power_cut(path: Path, tmp_path: Path) -> None:
    with SqliteRecords(str(path)) as store:
        store.apply(batch(1))
        store.file.lengthen_log()
        after_one = log_of(path).read_bytes()
        store.apply(batch(2))
        for name, log in (("none.sqlite", after_one), ("both.sqlite", log_of(path).read_bytes())):
            shutil.copy(path, tmp_path / name)
            log_of(tmp_path / name).write_bytes(log)
    for name, jobs in (("none.sqlite", ["job-1"]), ("both.sqlite", ["job-2", "job-1"])):
        with SqliteRecords(str(tmp_path / name)) as found:
            assert [row.id for row in found.jobs((), 9, 9)] == jobs
            assert found.file.problems() == []


@pytest.mark.parametrize("written", [0, 1], ids=["nothing fits", "a part fits"])
def test_a_log_stays_as_it_is_where_the_disk_has_no_room(
    path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    write, calls = os.pwrite, []

    def full(file: int, content: bytes, at: int) -> int:
        calls.append(at)
        if len(calls) > written:
            raise OSError(errno.ENOSPC, "no space left on device")
        return write(file, content, at)

    with SqliteRecords(str(path)) as store:
        store.apply(batch(1))
        before = log_of(path).read_bytes()
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            store.file.lengthen_log()
        assert len(calls) == written + 1 and log_of(path).read_bytes() == before
        store.apply(batch(2))
        assert [row.id for row in store.jobs((), 9, 9)] == ["job-2", "job-1"]


def test_no_log_is_made_longer_that_is_not_there_or_that_no_commit_waits_for(path: Path) -> None:
    sqlite_file.lengthen(str(path), 1000)
    assert not path.exists()
    SqliteFile(":memory:").lengthen_log()
    with SqliteRecords(str(path), "NORMAL") as store:
        store.apply(batch(1))
        before = log_of(path).stat().st_size
        store.file.lengthen_log()
        assert log_of(path).stat().st_size == before


def test_a_log_is_not_made_longer_while_another_process_writes_to_it(path: Path) -> None:
    with SqliteRecords(str(path), limits=FileLimits(busy_s=0)) as store:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            before = log_of(path).stat().st_size
            with pytest.raises(RecordsUnavailable):
                store.file.lengthen_log()
            assert log_of(path).stat().st_size == before
            other.execute("ROLLBACK")
        store.file.lengthen_log()
        assert log_of(path).stat().st_size > before


# Two processes.

HOLDER = """
import sys
from talka.store.dags.records import StoreLost
from talka.store.dags.sqlite import SqliteRecords
from talka.work.lifecycle import JobState
from talka.work.dags.records import JobRow, PutJob

store = SqliteRecords(sys.argv[1])
(lease,) = store.acquire(["manager"], "other process")
store.fence(lease)
print("has it", flush=True)
for line in sys.stdin:
    number = int(line)
    row = JobRow(number=number, id=str(number), name="n", state=JobState.RUNNING, submitted_ms=1, settings=b"{}")
    try:
        print(store.apply([PutJob(row)]), flush=True)
    except StoreLost as error:
        print(type(error).__name__, flush=True)
"""


def test_a_process_whose_store_was_taken_commits_nothing_more(path: Path) -> None:
    words = [sys.executable, "-c", HOLDER, str(path)]
    with (
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
        SqliteRecords(str(path)) as store,
    ):
        assert other.stdin is not None and other.stdout is not None

        def ask(number: int) -> str:
            other.stdin.write(f"{number}\n")  # type: ignore[union-attr]
            other.stdin.flush()  # type: ignore[union-attr]
            return other.stdout.readline().strip()  # type: ignore[union-attr]

        assert other.stdout.readline() == "has it\n"
        assert ask(1) == "[1]"
        (taken,) = store.take("this process", list(store.leases("manager")))
        store.fence(taken)
        assert ask(2) == "StoreTaken"
        assert store.apply([PutJob(job_row(2))]) == [1], "its number was not used"
        assert [row.number for row in store.live_jobs()] == [1, 2]
        other.stdin.close()


def job_row(number: int) -> JobRow:
    return JobRow(number=number, id=f"j{number}", name="n", state=JobState.RUNNING, submitted_ms=1, settings=b"{}")


def test_a_store_takes_all_that_another_has_in_place_of_its_own(store: SqliteRecords) -> None:
    store.apply(batch(1))
    other = SqliteRecords(":memory:")
    other.apply(batch(2))
    store.file.copy_into(other.file, is_marked=True)
    store.apply(batch(3))
    assert [row.id for row in other.jobs((), 9, 9)] == ["job-1"]
    assert other.file.problems() == []
