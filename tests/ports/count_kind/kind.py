"""Jobs that only count, as a kind of job."""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec

from talka.client.kinds import AnyJob, KindPage, KindUpdate, SubmitBounds
from talka.client.requests import Conflict, NoSuchJob, NotEnded, TooBusy
from talka.client.sheets import JobSheet
from talka.clock import realtime_ns
from talka.ids import new_job_id
from talka.wire.security.access import Asker
from tests.ports.count_kind.job import CountJob
from tests.ports.count_kind.spec import CountSpec, read_spec

JOBS_LIMIT = 1000


class CountKind:
    name = "count"
    bounds = SubmitBounds(1024, "submit_dag")

    def __init__(self, pace: Callable[[], Awaitable[None]]) -> None:
        """`pace` is awaited before each number."""
        self._pace = pace
        self._jobs: dict[str, CountJob] = {}
        self._keys: dict[str, CountJob] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._news = asyncio.Condition()
        self._random = random.Random()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def on_behalf(self, asker: Asker) -> "CountKind":
        return self

    def elsewhere(self, id: str) -> str:
        return f"how far it came is at /v1/jobs/{id}/result"

    async def has(self, id: str) -> bool:
        return id in self._jobs

    async def submit(self, content: bytes, key: str, by: str) -> AnyJob:
        spec = read_spec(content)
        known = self._keys.get(key) if key else None
        if known is not None and known.spec != spec:
            raise Conflict(f"the key {key!r} was used for another job, {known.id}: use a key of its own")
        return (known or self._begin(spec, key, by)).facts()

    def _begin(self, spec: CountSpec, key: str, by: str) -> CountJob:
        if len(self._jobs) >= JOBS_LIMIT:
            raise TooBusy(f"{JOBS_LIMIT} jobs are counted already: try again later")
        job = CountJob(new_job_id(self._random), len(self._jobs) + 1, spec, by, now_ms())
        self._jobs[job.id] = job
        if key:
            self._keys[key] = job
        task = asyncio.create_task(self._count(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    async def _count(self, job: CountJob) -> None:
        while not job.is_over:
            await self._pace()
            if not job.is_over:
                job.count(now_ms())
                await self._tell()

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    def _job(self, id: str) -> CountJob:
        if id not in self._jobs:
            raise NoSuchJob.named(id)
        return self._jobs[id]

    async def get(self, id: str) -> AnyJob:
        return self._job(id).facts()

    async def list(self, state: str, cursor: str, limit: int) -> KindPage:
        before = int(cursor) if cursor else JOBS_LIMIT + 1
        found = [job for job in reversed(self._jobs.values()) if job.number < before and state in ("", job.state)]
        page = found[:limit]
        following = str(page[-1].number) if len(found) > limit else ""
        return KindPage([job.facts() for job in page], [str(job.number + 1) for job in page], following)

    async def cancel(self, id: str, reason: str) -> AnyJob:
        job = self._job(id)
        if not job.is_over:
            job.cancel(reason, now_ms())
            await self._tell()
        return job.facts()

    async def watch(self, id: str, steps: bool) -> AsyncGenerator[KindUpdate, None]:
        job = self._job(id)
        while True:
            facts = job.facts()
            yield KindUpdate(facts, job.is_over)
            if job.is_over:
                return
            async with self._news:
                await self._news.wait_for(lambda told=facts: job.facts() != told)

    async def result(self, id: str) -> bytes:
        job = self._job(id)
        if not job.is_over:
            raise NotEnded.named(id, job.state)
        return msgspec.json.encode({"counted": job.counted})

    async def view(self, id: str) -> JobSheet:
        return self._job(id).sheet()


def now_ms() -> int:
    return realtime_ns() // 1_000_000
