"""Jobs that wait for cores: highest priority first, then who came first.

Decision: docs/decisions/0020-cores-are-granted-per-job.md.
"""

from bisect import bisect_left, insort
from typing import Final

import msgspec

from talka.errors import Invalid, Unavailable
from talka.units import NEVER, SECOND

QUEUE_LIMIT: Final = 256
QUEUE_TIMEOUT_NS: Final = 300 * SECOND
PRIORITY_LEAST: Final = 1
PRIORITY_MOST: Final = 10
"""The highest priority; the default is 5."""


class QueueFull(Unavailable):
    """No further job can wait."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} jobs wait already, and that is the most: submit again when some have started")
        self.limit = limit


class QueueTimedOut(msgspec.Struct, frozen=True):
    """News: a job waited too long and has left the queue."""

    job: str
    waited_ns: int

    @property
    def reason(self) -> str:
        return f"it waited {self.waited_ns // SECOND} s for cores and got none"


class _Place(msgspec.Struct, frozen=True, order=True):
    """Compared from the left."""

    descending: int
    """Priority, negated."""
    number: int
    job: str


class JobQueue:
    """Call `tick` once `next_tick_at` has come, and `remove` for each job that starts or is cancelled."""

    __slots__ = ("_limit", "_ordered", "_places", "_since", "_timeout_ns", "next_tick_at")

    def __init__(self, limit: int = QUEUE_LIMIT, timeout_ns: int = QUEUE_TIMEOUT_NS) -> None:
        if limit < 1 or timeout_ns < 1:
            raise Invalid(f"a queue needs a limit and a timeout_ns of at least 1, not {limit} and {timeout_ns}")
        self._limit = limit
        self._timeout_ns = timeout_ns
        self._ordered: list[_Place] = []
        self._places: dict[str, _Place] = {}
        self._since: dict[str, int] = {}
        self.next_tick_at = NEVER

    def __len__(self) -> int:
        return len(self._ordered)

    def __contains__(self, job: str) -> bool:
        return job in self._places

    @property
    def is_full(self) -> bool:
        return len(self._ordered) >= self._limit

    def push(self, now: int, job: str, priority: int, number: int) -> None:
        """Let the job wait. `number` counts submissions up. A job that waits already keeps its place."""
        if job in self._places:
            return
        if not PRIORITY_LEAST <= priority <= PRIORITY_MOST:
            raise Invalid(
                f"job {job}: priority {priority} is out of range; it is from {PRIORITY_LEAST} to {PRIORITY_MOST}"
            )
        if self.is_full:
            raise QueueFull(self._limit)
        place = _Place(-priority, number, job)
        insort(self._ordered, place)
        self._places[job] = place
        self._since[job] = now
        self.next_tick_at = min(self.next_tick_at, now + self._timeout_ns)

    def remove(self, job: str) -> bool:
        """Whether it waited."""
        place = self._places.pop(job, None)
        if place is None:
            return False
        del self._ordered[bisect_left(self._ordered, place)]
        del self._since[job]
        return True

    def jobs(self) -> list[str]:
        """In the order in which they should start."""
        return [place.job for place in self._ordered]

    def position(self, job: str) -> int | None:
        """1 is the next to start; None for a job that does not wait."""
        place = self._places.get(job)
        return None if place is None else bisect_left(self._ordered, place) + 1

    def tick(self, now: int) -> list[QueueTimedOut]:
        """Those that waited too long, in their order; they wait no longer."""
        if now < self.next_tick_at:
            return []
        late = [
            QueueTimedOut(place.job, now - self._since[place.job])
            for place in self._ordered
            if now - self._since[place.job] >= self._timeout_ns
        ]
        for news in late:
            self.remove(news.job)
        self.next_tick_at = min(self._since.values(), default=NEVER - self._timeout_ns) + self._timeout_ns
        return late


def waiting_reason(least: int, *, free: int, total: int, ahead: int = 0) -> str:
    """Why a job that needs `least` cores does not start, for people. `ahead`: jobs that come before it."""
    if not total:
        return "no workers"
    if least > total:
        return f"waits for {_cores(least)}: the pool has {total}"
    if least > free:
        return f"waits for {_cores(least)}: {free} of {total} are free"
    if not ahead:
        return "is about to start"
    return f"waits behind {ahead} other {'job' if ahead == 1 else 'jobs'}"


def _cores(count: int) -> str:
    return f"{count} core" if count == 1 else f"{count} cores"
