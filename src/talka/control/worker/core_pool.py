"""The cores of a worker: which attempts run in which process, which task each belongs to, and how many are really free."""

from collections.abc import Sequence
from typing import Final

from talka.units import NEVER, SECOND

LEAVE_LIMIT_NS: Final = 5 * SECOND
"""An attempt that has said its last word ends by itself; one that has not by then is killed."""
DEATH_LIMIT_NS: Final = 10 * SECOND
"""An attempt that was killed is no longer counted after this, whatever is heard of it."""

TaskKey = tuple[str, int]
SeatKey = tuple[str, int, int]
"""A core that a job may use: the job, 0, and its number; or, used by one task alone, the job, the attempt and a number."""


class CorePool:
    """A core is busy from when the first attempt on it is drawn until its process has ended.

    Attempts at one seat share a process while one of them runs there: its number is that of the first of them.
    """

    __slots__ = ("_leaving", "_number", "_processes", "_seats", "_tasks", "cores", "next_tick_at")

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.next_tick_at = NEVER
        self._number = 0
        self._tasks: dict[int, TaskKey] = {}
        self._seats: dict[SeatKey, int] = {}
        """The process that was last started at each seat. Of those that run."""
        self._processes: dict[int, tuple[int, SeatKey]] = {}
        """By attempt that has not ended: its process, and where."""
        self._leaving: dict[int, tuple[int, bool]] = {}
        """Until when it may take, and whether it was killed."""

    @property
    def free(self) -> int:
        return self.cores - len({process for process, _ in self._processes.values()})

    def has_room(self, seats: Sequence[SeatKey]) -> bool:
        """Whether attempts can be drawn at all of these now."""
        return sum(not self._process_at(seat) for seat in seats) <= self.free

    def draw(self, task: TaskKey, seat: SeatKey) -> tuple[int, int]:
        """The numbers of a new attempt and of its process."""
        self._number += 1
        process = self._process_at(seat) or self._number
        self._tasks[self._number] = task
        self._seats[seat] = process
        self._processes[self._number] = (process, seat)
        return self._number, process

    def _process_at(self, seat: SeatKey) -> int:
        """The process at this seat in which something runs that is not about to end; 0: none."""
        process = self._seats.get(seat, 0)
        return process if any(self._processes[core][0] == process for core in self._tasks) else 0

    def task_of(self, core: int) -> TaskKey | None:
        return self._tasks.get(core)

    def leaves(self, now: int, core: int) -> None:
        """It has said its last word."""
        self._leave(core, now + LEAVE_LIMIT_NS, is_killed=False)

    def killed(self, now: int, core: int) -> None:
        self._leave(core, now + DEATH_LIMIT_NS, is_killed=True)

    def exited(self, core: int) -> None:
        """It is gone, and its process too if it was the last one there."""
        self._tasks.pop(core, None)
        self._leaving.pop(core, None)
        _, seat = self._processes.pop(core, (0, None))
        if seat is not None and not any(other == seat for _, other in self._processes.values()):
            self._seats.pop(seat, None)

    def tick(self, now: int) -> list[int]:
        """Attempts that are to be killed."""
        if now < self.next_tick_at:
            return []
        over = [core for core, (until_ns, _) in self._leaving.items() if now >= until_ns]
        stuck = [core for core in over if not self._leaving[core][1]]
        for core in over:
            if core not in stuck:
                self.exited(core)
        for core in stuck:
            self._leaving[core] = (now + DEATH_LIMIT_NS, True)
        self.next_tick_at = min((until_ns for until_ns, _ in self._leaving.values()), default=NEVER)
        return stuck

    def _leave(self, core: int, until_ns: int, *, is_killed: bool) -> None:
        if core not in self._processes:
            return
        self._tasks.pop(core, None)
        self._leaving[core] = (until_ns, is_killed)
        self.next_tick_at = min(self.next_tick_at, until_ns)
