"""Schedules of a manager's store: followed each second, and mended when the clock of this machine was set.

Decision: docs/decisions/0034-no-clock-decides-who-has-the-store.md.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from talka.client.requests import NoSuchSchedule
from talka.clock import both_clocks, realtime_ns
from talka.control.tasks.partition import LEASE
from talka.control.tasks.schedules import after_run, ahead_text, due, due_values, jump_text, mended, run_key
from talka.errors import Invalid
from talka.nodes.dags.dag_views import schedule_view
from talka.nodes.member_events import Event
from talka.store.dags.records import Store
from talka.units import MILLISECOND, SECOND
from talka.wire.task_views import DagFacts, ScheduleView
from talka.work.dags.cron import Cron
from talka.work.dags.dag import DagSpec, checked
from talka.work.dags.params import SCHEDULE_SAMPLES, filled
from talka.work.dags.records import DropSchedule, PutSchedule, ScheduleRow

MEND_NS: Final = 60 * SECOND
"""A clock may also have been set while no manager looked."""


class ScheduleKeeper:
    """Call `follow` every second, and `on_jump` when the clock of the day was set."""

    def __init__(
        self,
        store: Store,
        submit: Callable[[DagSpec, str, str], Awaitable[DagFacts]],
        tell: Callable[[Event], None],
        clocks: Callable[[], tuple[int, int]] = both_clocks,
    ) -> None:
        """`clocks`: the one that nobody sets, and that of the day."""
        self._store = store
        self._clocks = clocks
        self._turn = asyncio.Lock()
        """Of whoever changes schedules: nobody comes in between."""
        self._submit = submit
        self._tell = tell
        self._jump_ns = 0
        """That nobody was told of yet."""
        self._mend_at = 0

    def on_jump(self, jump_ns: int) -> None:
        self._jump_ns += jump_ns
        self._mend_at = 0

    async def put(self, spec: DagSpec, by: str) -> ScheduleView:
        cron = Cron.parse(spec.schedule)
        checked(filled(spec, {}, SCHEDULE_SAMPLES).tasks)
        content = msgspec.json.encode(msgspec.structs.replace(spec, schedule=""))
        next_ms = cron.next_after(realtime_ns() // MILLISECOND)
        row = ScheduleRow(name=spec.name, cron=spec.schedule, spec=content, next_ms=next_ms, submitted_by=by)
        async with self._turn:
            await self._store.apply([PutSchedule(row)], LEASE)
        return schedule_view(row)

    async def drop(self, name: str) -> None:
        async with self._turn:
            dropped = await self._store.apply([DropSchedule(name)], LEASE)
        if not sum(dropped):
            raise NoSuchSchedule.named(name)

    async def follow(self) -> None:
        """Submit what is due."""
        now, wall_ns = self._clocks()
        now_ms = wall_ns // MILLISECOND
        if now >= self._mend_at:
            count = await self._mend(now_ms)
            self._mend_at = now + MEND_NS
            self._tell_of_mending(count)
        for row in due(await self._store.schedules(), now_ms):
            await self._run(row, now_ms)

    def _tell_of_mending(self, count: int) -> None:
        jump_ns, self._jump_ns = self._jump_ns, 0
        if jump_ns:
            self._tell({"event": "alarm", "kind": "clock", "text": jump_text(jump_ns, count)})
        elif count:
            self._tell({"event": "alarm", "kind": "clock", "text": ahead_text(count)})

    async def _run(self, row: ScheduleRow, now_ms: int) -> None:
        """The key makes it one job for each instant, also when this manager dies in between."""
        last = row.last_job
        try:
            spec = filled(msgspec.json.decode(row.spec, type=DagSpec), {}, due_values(row.next_ms))
            last = (await self._submit(spec, run_key(row), row.submitted_by)).id
        except (Invalid, msgspec.MsgspecError) as error:  # the next one may do better; this one never will
            text = f"the schedule {row.name} could not be followed: {error}"
            self._tell({"event": "alarm", "kind": "schedule", "text": text})
        await self._put(row, after_run(row, now_ms, last))

    async def _mend(self, now_ms: int) -> int:
        async with self._turn:
            rows = mended(await self._store.schedules(), now_ms)
            if rows:
                await self._store.apply([PutSchedule(row) for row in rows], LEASE)
        return len(rows)

    async def _put(self, before: ScheduleRow, after: ScheduleRow) -> None:
        """Unless somebody has replaced or dropped it meanwhile."""
        async with self._turn:
            if before in await self._store.schedules():
                await self._store.apply([PutSchedule(after)], LEASE)
