"""What must hold of schedules and of ended jobs whatever the clock of the day shows meanwhile."""

from collections.abc import Sequence

from talka.testing.store_chores import StoreChores
from talka.testing.store_shell import StoreShell
from talka.testing.world import Observer, World
from talka.work.dags.records import Change, MoveJob
from talka.work.lifecycle import is_final


class SchedulesFire(Observer):
    """D10: a schedule fires within its period once the clock is right and the manager is well. `right_from` says since
    when."""

    def __init__(self, chores: StoreChores, shell: StoreShell, period_ns: int, right_from: int) -> None:
        self._chores = chores
        self._shell = shell
        self._period_ns = period_ns
        self._right_from = right_from

    def at_end(self, world: World) -> None:
        if world.now < self._right_from + self._period_ns:
            return  # it may still come
        for row in self._shell.records.schedules():
            if not any(at >= self._right_from for at in self._chores.fired.get(row.name, [])):
                text = f"was not followed for {(world.now - self._right_from) / 1e9:.0f} s of a right clock"
                world.violate("D10", f"schedule {row.name} {text}: it waits for {row.next_ms}")


class EndedJobsStay(Observer):
    """D11: no job is dropped before it has been ended for as long as it is to be kept."""

    def __init__(self, world: World, chores: StoreChores, shell: StoreShell, kept_ns: int) -> None:
        self._chores = chores
        self._kept_ns = kept_ns
        self._world = world
        self._ended: dict[int, int] = {}
        self._seen = 0
        shell.applied.append(self.applied)

    def applied(self, changes: Sequence[Change], changed: list[int]) -> None:
        for change in changes:
            if isinstance(change, MoveJob):
                self._ended.pop(change.job, None)
                if is_final(change.state):
                    self._ended[change.job] = self._world.now

    def on_second(self, world: World) -> None:
        for number, at in self._chores.swept[self._seen :]:
            kept_ns = at - self._ended.get(number, at)
            if kept_ns < self._kept_ns:
                world.violate("D11", f"job number {number} was dropped {kept_ns / 1e9:.0f} s after its end")
        self._seen = len(self._chores.swept)
