"""The cores of a worker: what they are called, which task each belongs to, and which are really free."""

from typing import Final

SECOND: Final = 1_000_000_000
LEAVE_LIMIT_NS: Final = 5 * SECOND
"""A core that has said its last word ends by itself; one that has not by then is killed."""
DEATH_LIMIT_NS: Final = 10 * SECOND
"""A core that was killed is no longer counted after this, whatever is heard of it."""
NEVER: Final = (1 << 63) - 1

TaskKey = tuple[str, int]


class CorePool:
    """A core is busy from when its number is drawn until its process has ended."""

    __slots__ = ("_leaving", "_number", "_tasks", "cores", "next_tick_at")

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.next_tick_at = NEVER
        self._number = 0
        self._tasks: dict[int, TaskKey] = {}
        self._leaving: dict[int, tuple[int, bool]] = {}
        """Until when it may take, and whether it was killed."""

    @property
    def free(self) -> int:
        return self.cores - len(self._tasks) - len(self._leaving)

    def draw(self, task: TaskKey) -> int:
        self._number += 1
        self._tasks[self._number] = task
        return self._number

    def task_of(self, core: int) -> TaskKey | None:
        return self._tasks.get(core)

    def leaves(self, now: int, core: int) -> None:
        """It has said its last word."""
        self._leave(core, now + LEAVE_LIMIT_NS, is_killed=False)

    def killed(self, now: int, core: int) -> None:
        self._leave(core, now + DEATH_LIMIT_NS, is_killed=True)

    def exited(self, core: int) -> None:
        self._tasks.pop(core, None)
        self._leaving.pop(core, None)

    def tick(self, now: int) -> list[int]:
        """Cores that are to be killed."""
        if now < self.next_tick_at:
            return []
        over = [core for core, (until_ns, _) in self._leaving.items() if now >= until_ns]
        stuck = [core for core in over if not self._leaving[core][1]]
        for core in over:
            del self._leaving[core]
        for core in stuck:
            self._leaving[core] = (now + DEATH_LIMIT_NS, True)
        self.next_tick_at = min((until_ns for until_ns, _ in self._leaving.values()), default=NEVER)
        return stuck

    def _leave(self, core: int, until_ns: int, *, is_killed: bool) -> None:
        self._tasks.pop(core, None)
        self._leaving[core] = (until_ns, is_killed)
        self.next_tick_at = min(self.next_tick_at, until_ns)
