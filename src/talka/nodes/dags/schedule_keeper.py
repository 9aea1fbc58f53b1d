"""Schedules of a manager's store: followed each second, and mended when the clock of this machine was set.

Decisions: docs/decisions/0034-no-clock-decides-who-has-the-store.md, docs/decisions/0051-when-a-schedule-is-due.md.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from talka.client.requests import NoSuchSchedule
from talka.clock import both_clocks, time_zone
from talka.control.tasks.partition import LEASE
from talka.control.tasks.schedules import (
    SCHEDULE_LIMITS,
    ScheduleLimits,
    Zones,
    after_job,
    after_run,
    ahead_text,
    backfill_key,
    backfilled,
    due,
    due_values,
    jump_text,
    known_keys,
    known_runs,
    mended,
    resumed,
    run_key,
    turn,
)
from talka.errors import Invalid, Unavailable
from talka.nodes.dags.dag_views import backfill_view, schedule_view
from talka.nodes.member_events import Event
from talka.store.dags.records import Store
from talka.units import MILLISECOND, SECOND
from talka.wire.task_views import BackfillRequest, BackfillView, DagFacts, ScheduleView
from talka.work.dags.cron import LAST_MS, Cron
from talka.work.dags.dag import DagSpec, check_schedule, checked
from talka.work.dags.params import SCHEDULE_SAMPLES, filled
from talka.work.dags.records import DropSchedule, PutSchedule, ScheduleRow

MEND_NS: Final = 60 * SECOND
"""A clock may also have been set while no manager looked."""
NO_SCHEDULE: Final[Mapping[str, str]] = {"schedule": "", "timezone": "", "catch_up": "one"}
"""Of the job that is submitted: it is not scheduled again."""


class ScheduleKeeper:
    """Call `follow` every second, and `on_jump` when the clock of the day was set."""

    def __init__(
        self,
        store: Store,
        submit: Callable[[DagSpec, str, str], Awaitable[DagFacts]],
        submitted: Callable[[str], Awaitable[DagFacts | None]],
        tell: Callable[[Event], None],
        clocks: Callable[[], tuple[int, int]] = both_clocks,
        zones: Zones = time_zone,
        limits: ScheduleLimits = SCHEDULE_LIMITS,
    ) -> None:
        """`submitted`: the job of a key, once that is durable. `clocks`: the one nobody sets, and that of the day."""
        self._store = store
        self._clocks = clocks
        self._zones = zones
        self._limits = limits
        self._turn = asyncio.Lock()
        """Of whoever changes schedules: nobody comes in between."""
        self._running = asyncio.Lock()
        """Of whoever submits a job for an instant, until that is noted: no instant is run by two of them, and none
        after the answer to a change that forbids it. It is taken before `_turn`."""
        self._submit = submit
        self._submitted = submitted
        self._tell = tell
        self._jump_ns = 0
        """That nobody was told of yet."""
        self._mend_at = 0

    def on_jump(self, jump_ns: int) -> None:
        self._jump_ns += jump_ns
        self._mend_at = 0

    # What people ask for.

    async def schedules(self) -> list[ScheduleView]:
        return [schedule_view(row, self._zones) for row in await self._store.schedules()]

    async def put(self, spec: DagSpec, by: str) -> ScheduleView:
        cron = Cron.parse(spec.schedule)
        check_schedule(spec)
        zone = self._zones(spec.timezone)
        checked(filled(spec, builtin=SCHEDULE_SAMPLES).tasks)
        content = msgspec.json.encode(msgspec.structs.replace(spec, **NO_SCHEDULE))
        row = ScheduleRow(
            name=spec.name,
            cron=spec.schedule,
            spec=content,
            next_ms=cron.next_after(self._now_ms(), zone),
            submitted_by=by,
            timezone=spec.timezone,
            catch_up=spec.catch_up,
        )
        async with self._running, self._turn:
            before = next((one for one in await self._store.schedules() if one.name == spec.name), None)
            if before is not None:  # whoever paused it did not mean this version of it
                kept = ("last_job", "is_paused", "ran_ms", "ran_job")
                row = msgspec.structs.replace(row, **{name: getattr(before, name) for name in kept})
            await self._store.apply([PutSchedule(row)], LEASE)
        return schedule_view(row, self._zones)

    async def drop(self, name: str) -> None:
        async with self._running, self._turn:
            dropped = await self._store.apply([DropSchedule(name)], LEASE)
        if not sum(dropped):
            raise NoSuchSchedule.named(name)

    async def pause(self, name: str) -> ScheduleView:
        return await self._changed(name, lambda row: msgspec.structs.replace(row, is_paused=True))

    async def resume(self, name: str) -> ScheduleView:
        now_ms = self._now_ms()
        return await self._changed(name, lambda row: resumed(row, now_ms, self._zones(row.timezone)))

    async def run_now(self, name: str, key: str, by: str) -> DagFacts:
        """The job for this moment, whether it is paused or not. What it is due for stays as it is."""
        key = key and f"run/{name}/{key}"
        async with self._running:
            # Whoever asks again does so at another moment, and means the job of the first.
            known = await self._submitted(key) if key else None
            if known is not None and known.name == name:
                return known
            row, now_ms = await self._row(name), self._now_ms()
            facts = await self._submit_for(row, now_ms, key, by)
            await self._put(row, after_job(row, now_ms, facts.id))
        return facts

    async def backfill(self, name: str, request: BackfillRequest, by: str) -> BackfillView:
        row = await self._row(name)
        zone = self._zones(row.timezone)
        instants = backfilled(row, request.begin, request.end, self._now_ms(), zone, self._limits.backfilled)
        known = await self._known(name, instants)
        submitted: dict[int, str] = {}
        for instant in instants:
            if instant in known or request.dry_run:
                continue
            async with self._running:  # the schedule may have run it meanwhile
                known |= await self._known(name, [instant])
                if instant not in known:
                    facts = await self._submit_for(row, instant, backfill_key(name, instant), by)
                    submitted[instant] = facts.id
        return backfill_view(row, instants, known, submitted, zone)

    async def _known(self, name: str, instants: list[int]) -> dict[int, str]:
        """Jobs of instants that were run, as far as they are kept."""
        return known_runs(name, instants, dict(await self._store.jobs_keyed(known_keys(name, instants))))

    async def _row(self, name: str) -> ScheduleRow:
        for row in await self._store.schedules():
            if row.name == name:
                return row
        raise NoSuchSchedule.named(name)

    async def _changed(self, name: str, change: Callable[[ScheduleRow], ScheduleRow]) -> ScheduleView:
        async with self._running, self._turn:
            row = change(await self._row(name))
            await self._store.apply([PutSchedule(row)], LEASE)
        return schedule_view(row, self._zones)

    # What is done each second.

    async def follow(self) -> None:
        """Submit what is due. Raises `Unavailable` if that cannot be done of one of them now, after the others."""
        now, wall_ns = self._clocks()
        now_ms = wall_ns // MILLISECOND
        if now >= self._mend_at:
            count = await self._mend(now_ms)
            self._mend_at = now + MEND_NS
            self._tell_of_mending(count)
        waits: Unavailable | None = None
        for row in due(await self._store.schedules(), now_ms):
            try:
                await self._follow(row, now_ms)
            except Unavailable as error:  # there may be no room for its job, and for those of others there is
                waits = waits or error
        if waits is not None:
            raise waits

    def _tell_of_mending(self, count: int) -> None:
        jump_ns, self._jump_ns = self._jump_ns, 0
        if jump_ns:
            self._tell({"event": "alarm", "kind": "clock", "text": jump_text(jump_ns, count)})
        elif count:
            self._tell({"event": "alarm", "kind": "clock", "text": ahead_text(count)})

    async def _follow(self, row: ScheduleRow, now_ms: int) -> None:
        try:
            zone = self._zones(row.timezone)
            instants, following, text = turn(row, now_ms, zone, self._limits)
        except Invalid as error:  # its zone is not known here: it is looked at again when it was mended
            self._complain(row, error)
            await self._put(row, msgspec.structs.replace(row, next_ms=LAST_MS))
            return
        if following != row and not await self._put(row, following):
            return
        if text:
            self._tell({"event": "alarm", "kind": "schedule", "text": text})
        row = following
        for instant in instants:
            # The key makes it one job for each instant, also when this manager dies in between.
            async with self._running:
                if row not in await self._store.schedules():  # somebody changed it, and was told that it is so
                    return
                job = ""
                try:
                    filled_in = await self._store.job_by_key(backfill_key(row.name, instant))
                    key = run_key(row, instant)
                    job = (filled_in or await self._submit_for(row, instant, key, row.submitted_by)).id
                except (Invalid, msgspec.MsgspecError) as error:  # the next one may do better; this one never will
                    self._complain(row, error)
                after = after_run(row, instant, job, zone)
                if not await self._put(row, after):
                    return
                row = after

    async def _submit_for(self, row: ScheduleRow, instant_ms: int, key: str, by: str) -> DagFacts:
        """The job of an instant, which it knows."""
        spec = msgspec.json.decode(row.spec, type=DagSpec)
        return await self._submit(filled(spec, builtin=due_values(instant_ms, self._zones(row.timezone))), key, by)

    def _complain(self, row: ScheduleRow, error: Exception) -> None:
        text = f"the schedule {row.name} could not be followed: {error}"
        self._tell({"event": "alarm", "kind": "schedule", "text": text})

    async def _mend(self, now_ms: int) -> int:
        async with self._turn:
            rows = mended(await self._store.schedules(), now_ms, self._zones)
            if rows:
                await self._store.apply([PutSchedule(row) for row in rows], LEASE)
        return len(rows)

    async def _put(self, before: ScheduleRow, after: ScheduleRow) -> bool:
        """Unless somebody has replaced or dropped it meanwhile."""
        async with self._turn:
            if before not in await self._store.schedules():
                return False
            await self._store.apply([PutSchedule(after)], LEASE)
            return True

    def _now_ms(self) -> int:
        return self._clocks()[1] // MILLISECOND
