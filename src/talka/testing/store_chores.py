"""What a manager's shell does each second beside its jobs: follows schedules, drops what ended long ago, watches its
clock. And another manager, that takes the store from a live one."""

from functools import partial
from random import Random
from typing import Final

from talka.clock import time_zone
from talka.control.dags.flow import DagStep
from talka.control.dags.job import DagJob
from talka.control.dags.keeper import DagKeeper
from talka.control.dags.keepers import DagKeepers
from talka.control.tasks.clock_watch import ClockWatch
from talka.control.tasks.schedules import after_run, due, mended, run_key, turn
from talka.control.tasks.store_effects import CallAnswered, Commit, DagEffect
from talka.errors import TalkaError
from talka.testing.host import Effects, Host
from talka.testing.line import CallLine
from talka.testing.store_shell import ALL_ROWS, StoreShell, act_on, jobs_in, keepers_on
from talka.testing.world import Observer, World
from talka.units import MILLISECOND
from talka.work.dags.dag import DagSpec
from talka.work.dags.records import PutSchedule, ScheduleRow
from talka.work.lifecycle import JobState
from talka.work.retention import Keep, Retention

FIRST_CALL: Final = 1 << 40
"""Numbers of calls that no client uses."""
RIVAL: Final = "rival"


class StoreChores(Observer):
    """Of the manager on this host. `spec` is what every schedule submits."""

    def __init__(self, world: World, host: Host, shell: StoreShell, spec: DagSpec, kept_ms: int) -> None:
        self.jumps = 0
        self.fired: dict[str, list[int]] = {}
        """When each schedule was followed."""
        self.swept: list[tuple[int, int]] = []
        """Numbers of jobs that were dropped, and when."""
        self._world = world
        self._host = host
        self._shell = shell
        self._spec = spec
        self._kept_ms = kept_ms
        self._line: CallLine | None = None
        self._clock: ClockWatch | None = None
        self._swept_at = 0
        self._calls = FIRST_CALL
        self._asked: dict[int, tuple[ScheduleRow, int]] = {}

    def on_boot(self, world: World, host: Host) -> None:
        if host is self._host:
            self._line, self._clock = CallLine(world, host), None
            self._asked.clear()

    def on_second(self, world: World) -> None:
        if self._line is not None and self._host.state == "up":
            self._line.put(self._chore)

    def _chore(self, now: int) -> Effects:
        keepers = keepers_on(self._host)
        if keepers is None:
            return []
        wall_ns = self._shell.wall_ns()
        if self._clock is None:
            self._clock, self._swept_at = ClockWatch(now, wall_ns), now
        if self._clock.look(now, wall_ns):
            self.jumps += 1
            keepers.set_wall_offset(self._clock.offset_ns)
        self._sweep(now)
        records = self._shell.records
        mends = [PutSchedule(row) for row in mended(records.schedules(), wall_ns // MILLISECOND, time_zone)]
        if mends:
            records.apply(mends)
        effects: list[DagEffect] = []
        for row in due(records.schedules(), wall_ns // MILLISECOND):
            effects += self._submit(keepers, now, row, wall_ns // MILLISECOND)
        return act_on(self._host, now, effects)

    def _sweep(self, now: int) -> None:
        records = self._shell.records
        grown_ms = (now - self._swept_at) // MILLISECOND
        self._swept_at += grown_ms * MILLISECOND
        before = jobs_in(records)
        keep = Keep(self._kept_ms * MILLISECOND, ALL_ROWS)
        records.sweep(grown_ms, Retention(keep, keep), ALL_ROWS)
        while records.clear():
            pass
        kept = dict.fromkeys(row.number for row in jobs_in(records))
        self.swept += [(row.number, self._world.now) for row in before if row.number not in kept]

    def _submit(self, keepers: DagKeepers, now: int, row: ScheduleRow, wall_ms: int) -> list[DagEffect]:
        if any(row.name == asked.name for asked, _ in self._asked.values()):
            return []  # it is on its way
        instant = turn(row, wall_ms, time_zone(row.timezone)).instants[0]
        key = run_key(row, instant)
        known = self._shell.records.job_by_key(key)
        if known is not None:
            self._followed(row, instant, known.id)
            return []
        keeper = keepers.of_key(key)
        assert keeper is not None
        self._calls += 1
        try:
            effects = keeper.submit(now, self._calls, self._spec, key=key)
        except TalkaError:
            return []  # in a second there may be room
        self._asked[self._calls] = (row, instant)
        return effects

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if host is self._host and type(effect) is CallAnswered and effect.call in self._asked:
            row, instant = self._asked.pop(effect.call)
            self._followed(row, instant, effect.job)

    def _followed(self, row: ScheduleRow, instant: int, job: str) -> None:
        self._shell.records.apply([PutSchedule(after_run(row, instant, job, time_zone(row.timezone)))])
        self.fired.setdefault(row.name, []).append(self._world.now)


class StoreRival:
    """Another manager that takes a partition of the store while the first one lives, and changes something. It is gone
    at once: whether the first one notices is what matters."""

    def __init__(self, world: World, shell: StoreShell) -> None:
        self.struck = 0
        self._world = world
        self._shell = shell

    def strike(self, rng: Random) -> bool:
        """Take it and cancel a job. Whether somebody had it, and there was one."""
        shell, records = self._shell, self._shell.records
        live = [row for row in records.live_jobs() if row.state is JobState.RUNNING]
        if not live:
            return False
        id = rng.choice(live).id
        partition = next(one for one in shell.partitions if one.holds(id))
        held = [lease for lease in records.leases(partition.lease_key) if lease.key == partition.lease_key]
        if not held:
            return False
        self.struck += 1
        now = self._world.now
        (taken,) = records.take(RIVAL, held)
        with shell.fenced(taken):
            offset_ns, life = shell.wall_ns() - now, partition.life(0, 0, 0)
            keeper = shell.restored(now, epoch=taken.epoch, rng=rng, wall_offset_ns=offset_ns, life=life)
            self._carry_out(keeper, keeper.restored(now))
            job = keeper.job(id)
            if job is not None and not job.is_over:
                self._carry_out(keeper, keeper.change(now, 1, job.row.id, partial(_cancel, now)))
        records.release(RIVAL, [(taken.key, taken.epoch)])
        return True

    def _carry_out(self, keeper: DagKeeper, effects: list[DagEffect]) -> None:
        for effect in effects:
            if type(effect) is Commit:
                self._shell.apply(effect.changes)
                self._carry_out(keeper, keeper.on_committed(self._world.now, effect.ticket))


def _cancel(now: int, job: DagJob) -> DagStep:
    return job.cancel(now, "by another manager")
