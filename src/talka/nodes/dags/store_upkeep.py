"""What is dropped from a store in time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeVar

from talka.clock import boottime_ns, realtime_ns
from talka.control.tasks.clock_watch import ClockWatch
from talka.control.tasks.partition import LEASE
from talka.store.dags.records import Store
from talka.units import MILLISECOND, SECOND
from talka.work.retention import MANAGER_KEEPS, ManagerKeeps

Answer = TypeVar("Answer")

SWEPT_AT_ONCE: Final = 100
BLOBS_KEPT_S: Final = 3600.0
"""A file is there before the row that names it. One that is older than this and not named belongs to nothing."""


class UpkeepLimits(NamedTuple):
    keeps: ManagerKeeps = MANAGER_KEEPS
    swept_at_once: int = SWEPT_AT_ONCE
    blobs_kept_s: float = BLOBS_KEPT_S


class StoreUpkeep:
    """Call `sweep` now and then."""

    def __init__(
        self,
        store: Store,
        clock: ClockWatch,
        limits: UpkeepLimits,
        wall_ns: Callable[[], int] = realtime_ns,
    ) -> None:
        self._store = store
        self._clock = clock
        self._limits = limits
        self._wall_ns = wall_ns
        self._swept_at = boottime_ns()
        self._has_files = False
        """Of jobs that are no more, perhaps."""

    async def sweep(self) -> None:
        """Drop jobs that ended long ago, and their files. In steps, with a pause after each that is as long: commits
        wait for one of them and not for all."""
        limits = self._limits
        now = boottime_ns()
        grown_ms = (now - self._swept_at) // MILLISECOND
        swept = await self._swept(grown_ms)
        self._swept_at += grown_ms * MILLISECOND  # not before it is kept
        await self._clear()
        while swept:
            swept = await self._swept(0)
            await self._clear()
        while await self._paced(self._store.sweep_output(limits.keeps.output, LEASE)):
            pass
        # Files are as old as the clock of the day says: not after it was set.
        if self._has_files and self._clock.is_steady(now, round(limits.blobs_kept_s * SECOND)):
            await self._store.sweep_blobs(limits.blobs_kept_s, self._wall_ns() / SECOND)
            self._has_files = False

    async def _swept(self, grown_ms: int) -> int:
        limits = self._limits
        swept = await self._paced(self._store.sweep(grown_ms, limits.keeps.jobs, limits.swept_at_once, LEASE))
        self._has_files |= bool(swept)
        return swept

    async def _clear(self) -> None:
        while await self._paced(self._store.clear(LEASE)):
            pass

    async def _paced(self, step: Coroutine[Any, Any, Answer]) -> Answer:
        began = boottime_ns()
        answer = await step
        await asyncio.sleep((boottime_ns() - began) / SECOND)
        return answer
