"""Jobs that wait for cores: highest priority first, then who came first.

Decision: docs/decisions/0020-cores-are-granted-per-job.md.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Final

import msgspec

from talka.errors import Invalid, Unavailable
from talka.units import NEVER, SECOND
from talka.work.durations import format_duration

QUEUE_LIMIT: Final = 256
NAMES_SHOWN: Final = 5
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


class _Waiting(msgspec.Struct, frozen=True, order=True):
    """Compared from the left."""

    rank: int
    """Priority, negated."""
    number: int
    job: str
    since: int


class JobQueue:
    """Call `tick` once `next_tick_at` has come, and `remove` for each job that starts or is cancelled."""

    def __init__(self, limit: int = QUEUE_LIMIT, timeout_ns: int = QUEUE_TIMEOUT_NS) -> None:
        if limit < 1 or timeout_ns < 1:
            raise Invalid(f"a queue needs a limit and a timeout_ns of at least 1, not {limit} and {timeout_ns}")
        self._limit = limit
        self._timeout_ns = timeout_ns
        self._ordered: list[_Waiting] = []
        self._waiting: dict[str, _Waiting] = {}
        self.next_tick_at = NEVER

    def __len__(self) -> int:
        return len(self._ordered)

    @property
    def is_full(self) -> bool:
        return len(self._ordered) >= self._limit

    def push(self, now: int, job: str, priority: int, number: int) -> None:
        """Let the job wait. `number` counts submissions up. A job that waits already keeps its place."""
        if job in self._waiting:
            return
        if not PRIORITY_LEAST <= priority <= PRIORITY_MOST:
            raise Invalid(
                f"job {job}: priority {priority} is out of range; it is from {PRIORITY_LEAST} to {PRIORITY_MOST}"
            )
        if self.is_full:
            raise QueueFull(self._limit)
        waiting = self._waiting[job] = _Waiting(-priority, number, job, now)
        insort(self._ordered, waiting)
        self.next_tick_at = min(self.next_tick_at, now + self._timeout_ns)

    def remove(self, job: str) -> None:
        waiting = self._waiting.pop(job, None)
        if waiting is not None:
            del self._ordered[bisect_left(self._ordered, waiting)]

    def jobs(self) -> list[str]:
        """In the order in which they should start."""
        return [waiting.job for waiting in self._ordered]

    def position(self, job: str) -> int | None:
        """1 is the next to start; None for a job that does not wait."""
        waiting = self._waiting.get(job)
        return None if waiting is None else bisect_left(self._ordered, waiting) + 1

    def tick(self, now: int) -> list[QueueTimedOut]:
        """Those that waited too long, in their order; they wait no longer."""
        if now < self.next_tick_at:
            return []
        late = [waiting for waiting in self._ordered if now - waiting.since >= self._timeout_ns]
        for waiting in late:
            self.remove(waiting.job)
        self.next_tick_at = min((one.since + self._timeout_ns for one in self._ordered), default=NEVER)
        return [QueueTimedOut(waiting.job, now - waiting.since) for waiting in late]


def waiting_reason(least: int, *, free: int, total: int, ahead: int = 0) -> str:
    """Why a job that needs `least` cores does not start, for people. `ahead`: jobs that come before it."""
    if least > total:
        return f"waits for {_cores(least)}: the pool has {total}"
    if least > free:
        return f"waits for {_cores(least)}: {free} of {total} are free"
    if not ahead:
        return "is about to start"
    return f"waits behind {ahead} other {'job' if ahead == 1 else 'jobs'}"


def expected_text(ns: int) -> str:
    """When a job that waits is expected to start, for people: to a second, after two minutes to a minute."""
    seconds = max(1, -(-ns // SECOND))
    whole = f"{seconds} s" if seconds < 120 else format_duration(-(-seconds // 60) * 60 * SECOND)
    return f"expected to start in {whole}"


def no_workers_text(out: Sequence[str]) -> str:
    """Why no core at all can be given. `out`: what is so with each worker that is there."""
    if not out:
        return "no workers"
    more = f" and {len(out) - NAMES_SHOWN} more" if len(out) > NAMES_SHOWN else ""
    return f"no worker takes new work now: {', '.join(out[:NAMES_SHOWN])}{more}"


def _cores(count: int) -> str:
    return f"{count} core" if count == 1 else f"{count} cores"
