"""A manager and a worker of one cluster in this process, on real sockets, with a disk each."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from talka.clock import utc_now
from talka.net.certificates import issue, make_authority
from talka.nodes.manager import ManagerNode, ManagerOptions
from talka.nodes.member import MemberOptions
from talka.nodes.worker import WorkerNode, WorkerOptions
from talka.wire.roles import Role
from talka.wire.views import JobFacts

LIMIT_S = 60.0
SECRET = "vQ8d0sLk3mZx7Yp2Rt5Wn9Bc4Hf6Jg1A"
Event = dict[str, Any]


class Pair:
    """`m` leads, `w` has its lease."""

    def __init__(self, folder: Path, certs: Path | None) -> None:
        self.events: list[Event] = []
        self._news = asyncio.Event()
        options = MemberOptions(
            name="m",
            bind=("127.0.0.1", 0),
            secrets=(SECRET,),
            data_dir=folder / "m",
            voters=("m",),
            preset="fast",
            certs=certs,
        )
        self.manager = ManagerNode(ManagerOptions(member=options), self._on_event)
        self._folder, self._certs = folder, certs
        self.worker: WorkerNode
        self.tasks = [asyncio.create_task(self.manager.run())]

    async def add_worker(self) -> None:
        options = WorkerOptions(
            name="w",
            seeds=(self.manager.address,),
            secrets=(SECRET,),
            data_dir=self._folder / "w",
            certs=self._certs,
            cores=1,
        )
        self.worker = WorkerNode(options, self._on_event)
        self.tasks.append(asyncio.create_task(self.worker.run()))
        await self.until(self.worker.is_registered.is_set)

    def _on_event(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                self._news.clear()
                await self._news.wait()

    async def ended(self, job: str) -> JobFacts:
        async with asyncio.timeout(LIMIT_S):
            async for update in self.manager.control.watch(job, False):
                if update.final:
                    return update.job
        raise AssertionError(f"nobody told the end of {job}")

    async def close(self) -> None:
        self.worker.stop()
        self.worker.stop()
        await asyncio.wait(self.tasks[1:], timeout=LIMIT_S)
        self.manager.stop()
        await asyncio.wait(self.tasks, timeout=LIMIT_S)
        for task in self.tasks:
            task.result()


@asynccontextmanager
async def running_pair(folder: Path, *, certified: bool = False) -> AsyncIterator[Pair]:
    certs = None
    if certified:
        certs = folder / "certs"
        make_authority(certs, "default", "default", now=utc_now())
        issue(certs, name="m", role=Role.MANAGER, now=utc_now())
        issue(certs, name="w", role=Role.WORKER, now=utc_now())
    pair = Pair(folder, certs)
    await pair.add_worker()
    try:
        yield pair
    finally:
        await pair.close()
