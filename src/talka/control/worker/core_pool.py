"""The cores of a worker: which attempts run in which process, whose each is, and how many are really free.

An attempt has two numbers: its manager's, which names shards of a job on this worker (`AttemptKey`), and for each of
those shards one that is drawn here, of the try that runs now.

Decision: docs/decisions/0031-whose-attempt-it-is.md.
"""

from collections.abc import Sequence
from typing import Final

from talka.units import NEVER, SECOND
from talka.wire.jobs import Assign

LEAVE_LIMIT_NS: Final = 5 * SECOND
"""An attempt that has said its last word ends by itself; one that has not by then is killed."""
DEATH_LIMIT_NS: Final = 10 * SECOND
"""An attempt that was killed is no longer counted after this, whatever is heard of it."""

AttemptKey = tuple[str, int]
"""A job, and its manager's number of an attempt: what an `Assign` names."""
SeatKey = tuple[str, int, int]
"""A core that a job may use: the job, 0, and its number; or, used by one attempt alone, the job, the attempt and a
number."""


class CorePool:
    """A core is busy from when the first attempt on it is drawn until its process has ended.

    Attempts at one seat share a process while one of them runs there: its number is that of the first of them.
    """

    __slots__ = ("_leaving", "_number", "_owners", "_processes", "cores", "next_tick_at")

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.next_tick_at = NEVER
        self._number = 0
        """Of the newest attempt."""
        self._owners: dict[int, AttemptKey] = {}
        """By attempt that is not about to end."""
        self._processes: dict[int, tuple[int, SeatKey]] = {}
        """By attempt that has not ended: its process, and where."""
        self._leaving: dict[int, tuple[int, bool]] = {}
        """Until when it may take, and whether it was killed."""

    @property
    def free(self) -> int:
        if not self._processes:
            return self.cores
        return self.cores - len({process for process, _ in self._processes.values()})

    def has_room(self, seats: Sequence[SeatKey]) -> bool:
        """Whether attempts can be drawn at all of these now."""
        return sum(not self._process_at(seat) for seat in seats) <= self.free

    def draw(self, owner: AttemptKey, seat: SeatKey) -> tuple[int, int]:
        """The numbers of a new attempt and of its process."""
        self._number += 1
        process = self._process_at(seat) or self._number
        self._owners[self._number] = owner
        self._processes[self._number] = (process, seat)
        return self._number, process

    def _process_at(self, seat: SeatKey) -> int:
        """The process at this seat in which something runs that is not about to end; 0: none."""
        running = [self._processes[attempt] for attempt in self._owners]
        return next((process for process, where in running if where == seat), 0)

    def process_of(self, attempt: int) -> int:
        """The number of the process that runs it; 0: it has ended."""
        return self._processes.get(attempt, (0, None))[0]

    def attempts_in(self, process: int) -> list[int]:
        """Those in this process that have not ended."""
        return [attempt for attempt, (number, _) in self._processes.items() if number == process]

    def owner_of(self, attempt: int) -> AttemptKey | None:
        """Whose it is; None: it is over, or about to end."""
        return self._owners.get(attempt)

    def leaves(self, now: int, attempt: int) -> None:
        """It has said its last word."""
        self._leave(attempt, now + LEAVE_LIMIT_NS, is_killed=False)

    def killed(self, now: int, attempt: int) -> None:
        self._leave(attempt, now + DEATH_LIMIT_NS, is_killed=True)

    def exited(self, attempt: int) -> None:
        """It is gone, and its process too if it was the last one there."""
        self._owners.pop(attempt, None)
        self._leaving.pop(attempt, None)
        self._processes.pop(attempt, None)

    def tick(self, now: int) -> list[int]:
        """Attempts that are to be killed."""
        if now < self.next_tick_at:
            return []
        over = [attempt for attempt, (until_ns, _) in self._leaving.items() if now >= until_ns]
        stuck = [attempt for attempt in over if not self._leaving[attempt][1]]
        for attempt in over:
            if attempt not in stuck:
                self.exited(attempt)
        for attempt in stuck:
            self._leaving[attempt] = (now + DEATH_LIMIT_NS, True)
        self.next_tick_at = min((until_ns for until_ns, _ in self._leaving.values()), default=NEVER)
        return stuck

    def _leave(self, attempt: int, until_ns: int, *, is_killed: bool) -> None:
        if attempt not in self._processes:
            return
        self._owners.pop(attempt, None)
        self._leaving[attempt] = (until_ns, is_killed)
        self.next_tick_at = min(self.next_tick_at, until_ns)


def seat_at(assign: Assign, number: int) -> SeatKey:
    """The core of this number there. Where the manager names no cores, they are shared by nobody."""
    return (assign.job, 0 if assign.seats else assign.attempt, number)


def seats_of(assign: Assign) -> tuple[SeatKey, ...]:
    """The cores that an attempt is to run on, per shard."""
    return tuple(seat_at(assign, number) for number in assign.seats or range(assign.count))
