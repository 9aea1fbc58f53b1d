"""Managers and workers of one cluster in this process, on real sockets, with a disk each."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from talka.clock import utc_now
from talka.control.worker.core_turns import TURN_LIMITS, TurnLimits
from talka.net.certificates import issue, make_authority
from talka.nodes.manager import ManagerNode, ManagerOptions
from talka.nodes.member import MemberOptions
from talka.nodes.runtime import be_neighbours
from talka.nodes.worker import WorkerNode, WorkerOptions
from talka.wire.machines import Tag
from talka.wire.security.roles import Role
from talka.wire.views import JobFacts

LIMIT_S = 60.0
SECRET = "vQ8d0sLk3mZx7Yp2Rt5Wn9Bc4Hf6Jg1A"
Event = dict[str, Any]


class SmallCluster:
    """`events` are of all nodes; `managers` and `workers` are those that are up, by name."""

    def __init__(self, folder: Path, voters: tuple[str, ...], *, certified: bool, store: str = "") -> None:
        self.folder = folder
        self.events: list[Event] = []
        self.managers: dict[str, ManagerNode] = {}
        self.workers: dict[str, WorkerNode] = {}
        self.certs: Path | None = None
        self._voters = voters
        self._store = store
        self._news = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        if certified:
            self.certs = folder / "certs"
            make_authority(self.certs, "default", "default", now=utc_now())

    def _certified(self, name: str, role: Role) -> None:
        if self.certs is not None and not (self.certs / f"{name}.crt").exists():
            issue(self.certs, name=name, role=role, now=utc_now())

    def start_manager(self, name: str, **place: str) -> ManagerNode:
        self._certified(name, Role.MANAGER)
        options = MemberOptions(
            name=name,
            bind=("127.0.0.1", 0),
            secrets=(SECRET,),
            data_dir=self.folder / name,
            voters=self._voters,
            seeds=tuple(node.runtime.address for node in self.managers.values()),
            preset="fast",
            certs=self.certs,
            **place,
        )
        node = self.managers[name] = ManagerNode(ManagerOptions(member=options, store=self._store), self._on_event)
        self._tasks[name] = asyncio.create_task(self._run(node))
        return node

    @staticmethod
    async def _run(node: ManagerNode) -> None:
        await node.open_store()
        await node.run()

    async def start_worker(
        self,
        name: str = "w",
        *,
        handlers: tuple[Path, ...] = (),
        beside: str = "",
        cores: int = 1,
        turn_limits: TurnLimits = TURN_LIMITS,
        tags: tuple[Tag, ...] = (),
        seeds: tuple[str, ...] = (),
        **place: str,
    ) -> WorkerNode:
        """Until it has a lease. `beside`: the manager whose neighbour it is, as in `talka up`. `seeds` are names of
        managers: all of them."""
        self._certified(name, Role.WORKER)
        options = WorkerOptions(
            name=name,
            seeds=tuple(self.managers[manager].runtime.address for manager in seeds or self.managers),
            secrets=(SECRET,),
            data_dir=self.folder / name,
            certs=self.certs,
            cores=cores,
            handlers=handlers,
            turn_limits=turn_limits,
            tags=tags,
            **place,
        )
        node = self.workers[name] = WorkerNode(options, self._on_event)
        if beside:
            be_neighbours(self.managers[beside].runtime, node.runtime)
        self._tasks[name] = asyncio.create_task(node.run())
        await self.until(node.is_registered.is_set)
        return node

    async def stop(self, name: str) -> None:
        node = self.managers.pop(name, None) or self.workers.pop(name)
        node.stop()
        if isinstance(node, WorkerNode):
            node.stop()
        async with asyncio.timeout(LIMIT_S):
            await self._tasks.pop(name)

    async def close(self) -> None:
        for name in [*self.workers, *self.managers]:
            await self.stop(name)

    def _on_event(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    def told(self, *words: str) -> list[Event]:
        return [event for event in self.events if event["event"] in words]

    async def until(self, holds: Callable[[], object]) -> None:
        """Every change is told as an event."""
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                self._news.clear()
                await self._news.wait()

    async def leader(self, *, but: str = "") -> ManagerNode:
        await self.until(lambda: [name for name in self._leading() if name != but])
        return self.managers[next(name for name in self._leading() if name != but)]

    def _leading(self) -> list[str]:
        return [name for name, node in self.managers.items() if node.manager.registry is not None]

    async def ended(self, job: str) -> JobFacts:
        node = next(iter(self.managers.values()))
        async with asyncio.timeout(LIMIT_S):
            async for update in node.control.watch(job, False):
                if update.final:
                    return update.job
        raise AssertionError(f"nobody told the end of {job}")


@asynccontextmanager
async def small_cluster(
    folder: Path, *managers: str, certified: bool = False, store: str = ""
) -> AsyncIterator[SmallCluster]:
    """With these managers, one of which leads; no worker. `store` is for dag jobs, which one manager alone keeps."""
    cluster = SmallCluster(folder, managers, certified=certified, store=store)
    try:
        for name in managers:
            cluster.start_manager(name)
        await cluster.leader()
        yield cluster
    finally:
        await cluster.close()
