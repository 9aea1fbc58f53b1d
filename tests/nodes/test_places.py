"""Where managers and workers stand, and how a worker comes to know of managers."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from talka.control.worker.effects import ManagersLearned
from talka.nodes.worker import WorkerNode
from talka.wire.jobs import ManagerAt
from tests.nodes.small_cluster import LIMIT_S, SmallCluster

VOTERS = ("a", "b", "c")


class Told:
    """Waits for what managers tell a worker of where they are."""

    def __init__(self, worker: WorkerNode) -> None:
        self._news = asyncio.Event()
        self._learn = worker._on_managers
        worker._on_managers = self._on_managers  # type: ignore[method-assign]

    def _on_managers(self, news: ManagersLearned) -> None:
        self._learn(news)
        self._news.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                await self._news.wait()
                self._news.clear()


async def led(cluster: SmallCluster) -> str:
    def leaders() -> list[str]:
        return [name for name, node in cluster.managers.items() if node.manager.registry is not None]

    await cluster.until(lambda: leaders() and all(node.manager.leader for node in cluster.managers.values()))
    return leaders()[0]


async def test_a_worker_that_was_given_a_manager_that_does_not_lead_finds_the_leader_and_learns_where_all_stand(
    tmp_path: Path,
) -> None:
    cluster = SmallCluster(tmp_path, VOTERS, certified=False)
    try:
        for number, name in enumerate(VOTERS):
            cluster.start_manager(name, zone=f"z{number}", datacenter="d1", region="r1")
        leader = await led(cluster)
        (given, _) = [name for name in VOTERS if name != leader]

        worker = await cluster.start_worker(seeds=(given,), zone="z2", datacenter="d1", region="r1")

        expected = {
            name: ManagerAt(name, node.runtime.address, f"z{VOTERS.index(name)}", "d1", "r1")
            for name, node in cluster.managers.items()
        }
        told = Told(worker)
        await told.until(lambda: {one.name: one for one in worker.worker.search.remembered} == expected)
        control = cluster.managers[given].control
        (shown,) = await control.workers()
        assert (shown.zone, shown.datacenter, shown.region) == ("z2", "d1", "r1")
        view = await control.cluster()
        assert {one.name: (one.zone, one.datacenter, one.region) for one in view.managers} == {
            name: (at.zone, at.datacenter, at.region) for name, at in expected.items()
        }
        assert worker.worker.search.name_at(cluster.managers[leader].runtime.address) == leader
        assert not worker.worker.search.is_seeking
    finally:
        await cluster.close()


async def test_a_worker_started_again_greets_whom_it_was_told_of(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, ("m",), certified=False)
    try:
        manager = cluster.start_manager("m")
        await cluster.until(lambda: manager.runtime.address and manager.manager.registry)
        await cluster.start_worker()
        await cluster.stop("w")

        again = await cluster.start_worker()

        assert again.worker.search.addresses == [manager.runtime.address]
        counts = again.worker.counts_of_peers()
        assert (counts["worker_manager_addresses"], counts["worker_manager_greetings_total"] >= 1) == (1, True)
    finally:
        await cluster.close()
