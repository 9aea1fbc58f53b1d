"""A store of dag jobs in a file of SQLite: its verbs awaited, each in the thread that is right for it.

One thread writes commits (`sqlite_thread.py`), one reads and never waits for it, one has the leases and waits for
neither. Large outputs are files in a folder beside the store.

Decisions: docs/decisions/0021-dag-jobs-live-in-one-store.md, docs/decisions/0039-the-store-is-a-port.md.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from talka.store.dags.memory import OpenedLife, StoreMemory
from talka.store.dags.records import (
    CommitListener,
    Condition,
    Fetched,
    KeyedRow,
    Lease,
    Migrated,
    RecordsUnavailable,
    Store,
)
from talka.store.dags.sqlite import SqliteRecords, place_of
from talka.store.dags.sqlite_file import SqliteFile
from talka.store.dags.sqlite_life import open_life
from talka.store.dags.sqlite_thread import USUAL_LIMITS, StoreThread, ThreadLimits
from talka.store.files.blobs import Blobs
from talka.work.dags.records import (
    AttemptRow,
    Change,
    EventRow,
    FanRow,
    JobRow,
    LiveTask,
    LogRow,
    NoticeRow,
    ScheduleRow,
    StreamRow,
    TaskKey,
    TaskRow,
    TimeRow,
)
from talka.work.retention import Retention

BLOBS_PAGE: Final = 20_000
Found = TypeVar("Found")
Asked = ParamSpec("Asked")


class SqliteStore:
    """Has the records from now on: closing it closes them."""

    def __init__(self, records: SqliteRecords, blobs: Blobs, limits: ThreadLimits = USUAL_LIMITS) -> None:
        self._records = records
        self._blobs = blobs
        self._limits = limits
        self._writer: StoreThread | None = None
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="store-reader")
        self._is_closed = False
        self._holder = ThreadPoolExecutor(1, thread_name_prefix="store-leases")

    @property
    def place(self) -> str:
        return self._records.place

    @property
    def problem(self) -> str:
        return "" if self._writer is None else self._writer.problem

    # Commits.

    def start(self, commits: CommitListener) -> None:
        assert self._writer is None, "commits are answered to one alone"
        self._writer = StoreThread(self._records, self._blobs, commits, self._limits)
        self._holder.submit(self._records.file.lengthen_log)  # if it cannot, commits take longer

    def commit(self, ticket: int, changes: Sequence[Change], key: str = "") -> bool:
        assert self._writer is not None, "it was not started"
        return self._writer.commit(ticket, changes, key)

    def give_up(self, key: str = "") -> None:
        if self._writer is not None:
            self._writer.give_up(key)

    async def drain(self) -> None:
        if self._writer is not None:
            await self._writer.close()

    async def close(self) -> None:
        await self.drain()
        self._is_closed = True
        for threads in (self._reader, self._holder):
            await asyncio.to_thread(threads.shutdown, wait=True, cancel_futures=True)
        self._records.close()

    # Changes out of line. In the thread that reads: what is asked one after the other is done in that order.

    async def apply(self, changes: Sequence[Change], key: str = "") -> list[int]:
        return await self._read(self._records.apply, changes, (key,) if key else ())

    async def sweep(self, grown_ms: int, kept: Retention, limit: int, key: str = "") -> int:
        return await self._read(self._records.sweep, grown_ms, kept, limit, (key,) if key else ())

    async def sweep_output(self, kept: Retention, key: str = "") -> bool:
        return await self._read(self._records.sweep_output, kept, (key,) if key else ())

    async def clear(self, key: str = "") -> bool:
        return await self._read(self._records.clear, (key,) if key else ())

    async def sweep_blobs(self, older_than_s: float, now_s: float) -> None:
        def sweep() -> None:
            named: dict[str, None] = {}
            after = ""
            while page := self._records.blobs(after, BLOBS_PAGE):
                named.update(dict.fromkeys(page))
                after = page[-1]
            self._blobs.sweep(named, older_than_s, now_s)

        await self._read(sweep)

    # Leases.

    async def acquire(self, keys: Sequence[str], owner: str) -> list[Lease]:
        return await self._hold(self._records.acquire, keys, owner)

    async def renew(self, owner: str, held: Sequence[tuple[str, int]]) -> list[Lease]:
        def renew() -> list[Lease]:
            self._records.file.check_place()
            return self._records.renew(owner, held)

        return await self._hold(renew)

    async def take(self, owner: str, seen: Sequence[Lease]) -> list[Lease]:
        return await self._hold(self._records.take, owner, seen)

    async def release(self, owner: str, held: Sequence[tuple[str, int]]) -> int:
        return await self._hold(self._records.release, owner, held)

    async def raise_epoch(self, owner: str, held: tuple[str, int], epoch: int) -> int:
        return await self._hold(self._records.raise_epoch, owner, held, epoch)

    async def leases(self, prefix: str) -> list[Lease]:
        return await self._hold(lambda: list(self._records.leases(prefix)))

    def fence(self, lease: Lease) -> None:
        self._records.fence(lease)

    async def open_life(self, epoch: int, memory: StoreMemory, draw: Callable[[], int]) -> OpenedLife:
        return await self._hold(open_life, self._records, epoch, memory, draw)

    # Jobs.

    async def next_number(self) -> int:
        return await self._read(self._records.next_number)

    async def live_jobs(self) -> list[JobRow]:
        return await self._read(self._records.live_jobs)

    async def job(self, id: str) -> JobRow | None:
        return await self._read(self._records.job, id)

    async def job_by_key(self, key: str) -> JobRow | None:
        return await self._read(self._records.job_by_key, key)

    async def jobs_keyed(self, begins: Sequence[str]) -> list[tuple[str, str]]:
        return await self._read(self._records.jobs_keyed, begins)

    async def jobs(self, states: Sequence[str], before: int, limit: int) -> list[JobRow]:
        return await self._read(self._records.jobs, states, before, limit)

    async def events(self, job: int, after: int, limit: int) -> list[EventRow]:
        return await self._read(self._records.events, job, after, limit)

    async def schedules(self) -> list[ScheduleRow]:
        return await self._read(self._records.schedules)

    async def notices(self, job: int) -> list[NoticeRow]:
        return await self._read(self._records.notices, job)

    async def waiting_notices(self, limit: int, after: tuple[int, str] = (-1, "")) -> list[NoticeRow]:
        return await self._read(self._records.waiting_notices, limit, after)

    # Tasks.

    async def live_tasks(self, job: int, after: int, limit: int) -> list[LiveTask]:
        return await self._read(self._records.live_tasks, job, after, limit)

    async def fetch(self, specs: Sequence[TaskKey], outputs: Sequence[TaskKey]) -> Fetched:
        def fetch() -> Fetched:
            found = Fetched(self._records.specs(specs) if specs else {}, {})
            for key, (output, blob) in (self._records.outputs(outputs) if outputs else {}).items():
                content = self._blobs.get(blob) if blob else output
                if content is not None:
                    found.outputs[key] = content
            return found

        return await self._read(fetch)

    async def keyed(self, keys: Sequence[str]) -> dict[str, KeyedRow]:
        return await self._read(self._records.keyed, keys)

    async def tasks(self, job: int, states: Sequence[str], after: int, limit: int) -> list[TaskRow]:
        return await self._read(self._records.tasks, job, states, after, limit)

    async def tasks_at(self, keys: Sequence[TaskKey]) -> list[TaskRow]:
        return await self._read(self._records.tasks_at, keys)

    async def task(self, job: int, id: str) -> TaskRow | None:
        return await self._read(self._records.task, job, id)

    async def blob(self, digest: str) -> bytes | None:
        return await self._read(self._blobs.get, digest)

    async def fans(self, job: int) -> list[FanRow]:
        return await self._read(self._records.fans, job)

    async def counts(self, job: int) -> dict[str, int]:
        return await self._read(self._records.counts, job)

    async def counts_of(self, job: int, fan: FanRow) -> dict[str, int]:
        return await self._read(self._records.counts, job, fan.first, fan.first + fan.count - 1)

    async def attempts(self, keys: Sequence[TaskKey]) -> list[AttemptRow]:
        return await self._read(self._records.attempts, keys)

    async def logs(self, job: int, index: int, after: int, limit: int) -> list[LogRow]:
        return await self._read(self._records.logs, job, index, after, limit)

    async def stream_sizes(self, job: int, index: int, count: int = 1) -> list[StreamRow]:
        return await self._read(self._records.stream_sizes, job, index, count)

    async def times(self, job: int, index: int, count: int = 1) -> list[TimeRow]:
        return await self._read(self._records.times, job, index, count)

    async def streams(self, job: int, index: int, fence: int) -> list[StreamRow]:
        return await self._read(self._records.streams, job, index, fence)

    async def dead_letters(self, after: TaskKey, limit: int) -> list[TaskRow]:
        return await self._read(self._records.dead_letters, after, limit)

    # The threads.

    def _read(self, work: Callable[Asked, Found], *asked: Asked.args, **named: Asked.kwargs) -> "asyncio.Future[Found]":
        return self._given(self._reader, lambda: work(*asked, **named))

    def _hold(self, work: Callable[Asked, Found], *asked: Asked.args, **named: Asked.kwargs) -> "asyncio.Future[Found]":
        return self._given(self._holder, lambda: work(*asked, **named))

    def _given(self, thread: ThreadPoolExecutor, work: Callable[[], Found]) -> "asyncio.Future[Found]":
        if self._is_closed:
            raise RecordsUnavailable(f"{self.place} has been closed: open it again")
        return asyncio.get_running_loop().run_in_executor(thread, work)


class SqliteKind:
    """`sqlite:///FILE`, or the path of a file."""

    name: Final = "SQLite"
    is_shared: Final = False

    def check_url(self, url: str) -> None:
        place_of(url)

    async def open(self, url: str) -> Store:
        path, synchronous = place_of(url)
        records = await asyncio.to_thread(SqliteRecords, path, synchronous)
        try:
            return SqliteStore(records, await asyncio.to_thread(Blobs, Path(f"{path}.blobs")))
        except BaseException:
            records.close()
            raise

    async def migrate(self, url: str) -> Migrated:
        file = await asyncio.to_thread(SqliteFile, *place_of(url))
        file.close()
        return Migrated(file.place, file.found_version, file.version)

    async def look_over(self, url: str) -> Condition:
        def look() -> Condition:
            with contextlib.closing(SqliteFile(*place_of(url), as_it_is=True)) as file:
                problems = file.problems()
                return Condition(file.place, problems, *((0, 0) if problems else file.sizes()))

        return await asyncio.to_thread(look)

    async def backup(self, url: str, target: str) -> str:
        def copy() -> str:
            with contextlib.closing(SqliteFile(*place_of(url), as_it_is=True)) as file:
                file.backup(Path(target))
                return file.place

        return await asyncio.to_thread(copy)
