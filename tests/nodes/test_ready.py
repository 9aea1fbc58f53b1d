"""A manager whose store is large: what it does once that was read."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from talka.clock import boottime_ns
from talka.control.clients.overload import Level, Overload
from talka.control.clients.request_classes import CLASSES, RequestClass
from talka.control.dags.keeper import DagKeeper
from talka.units import SECOND
from tests.nodes.small_cluster import LIMIT_S, small_cluster

SHED_FROM = CLASSES[RequestClass.LISTS].shed_from


async def test_nobody_is_refused_because_reading_the_store_kept_the_loop_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    was_late = asyncio.Event()
    refused: list[Level] = []
    sample, restored = Overload.sample, DagKeeper.restored

    def noted(overload: Overload, now: int, **more: Any) -> Any:
        level = sample(overload, now, **more)
        if more["lag_ns"] >= SECOND // 2:
            was_late.set()
            refused.extend([level] if level >= SHED_FROM else [])
        return level

    def long(keeper: DagKeeper, now: int) -> Any:
        """As long as for a million tasks."""
        while boottime_ns() < now + SECOND:
            pass
        return restored(keeper, now)

    monkeypatch.setattr(Overload, "sample", noted)
    monkeypatch.setattr(DagKeeper, "restored", long)
    async with small_cluster(tmp_path, "m", store=f"sqlite:///{tmp_path / 'jobs.sqlite'}") as cluster:
        node = cluster.managers["m"]
        async with asyncio.timeout(LIMIT_S):
            await was_late.wait()
        assert node.dags is not None and node.dags.is_loaded
    assert not refused
