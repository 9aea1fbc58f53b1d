"""How many tasks of each handler wait, run and ended: counted as they move, over all jobs of a process.

What has not ended is as the store has it, also after a restart, since jobs are counted as they are read. What has ended
is counted from when this process began: the store drops jobs that ended, and their tasks with them.

Decision: docs/decisions/0065-what-a-node-tells-of-itself.md.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from talka.units import SECOND
from talka.work.lifecycle import TaskState

HANDLERS_LIMIT: Final = 1_000
"""Handlers with a row of their own. Tasks of others are counted together, for good: a row is never given up."""
METRICS_LIMIT: Final = 100
"""Handlers that metrics tell apart: each is a label."""
OTHERS: Final = "(other)"
SLOT_NS: Final = 10 * SECOND
SLOTS: Final = 7
"""The one that has begun, and a minute before it."""
COUNTS: Final = (
    "queue_waiting",
    "queue_active",
    "queue_delayed",
    "queue_blocked",
    "queue_completed_total",
    "queue_failed_total",
    "queue_dead_total",
)
BEGUN: Final = (TaskState.ASSIGNED, TaskState.RUNNING)
NOT_COMPLETED: Final = (TaskState.DEAD, TaskState.FAILED, TaskState.TIMEOUT)


class HandlerRow:
    """`states` has of those that have not ended how many there are, and of the others how many came to it."""

    __slots__ = ("_born", "_ends", "_slot", "delayed", "states")

    def __init__(self) -> None:
        self.states = dict.fromkeys(TaskState, 0)
        self.delayed = 0
        """Of those that are pending: they wait for nothing but their time."""
        self._born = 0
        """When the first one ended."""
        self._slot = 0
        self._ends = [0] * SLOTS

    @property
    def ready(self) -> int:
        return self.states[TaskState.READY]

    @property
    def running(self) -> int:
        """Given to workers, also those that have not begun there."""
        return sum([self.states[state] for state in BEGUN])

    @property
    def blocked(self) -> int:
        """They wait for others, or their job is paused."""
        return self.states[TaskState.PENDING] - self.delayed

    @property
    def completed(self) -> int:
        return self.states[TaskState.COMPLETED]

    @property
    def failed(self) -> int:
        return sum([self.states[state] for state in NOT_COMPLETED])

    @property
    def dead(self) -> int:
        """Those of them that became dead letters."""
        return self.states[TaskState.DEAD]

    def ended(self, now: int) -> None:
        """One has, for the rate."""
        self._turn_to(now)
        self._ends[self._slot % SLOTS] += 1
        self._born = self._born or now

    def rate_per_s(self, now: int) -> float:
        """How many ended, over the last minute; of a shorter time where the first one did."""
        if not self._born:
            return 0.0
        self._turn_to(now)
        window_ns = min((SLOTS - 1) * SLOT_NS + now % SLOT_NS, now - self._born)
        return sum(self._ends) * SECOND / max(SLOT_NS, window_ns)

    def _turn_to(self, now: int) -> None:
        slot = now // SLOT_NS
        for passed in range(max(self._slot + 1, slot - SLOTS + 1), slot + 1):
            self._ends[passed % SLOTS] = 0
        self._slot = max(self._slot, slot)


class HandlerCounts:
    def __init__(self, limit: int = HANDLERS_LIMIT) -> None:
        self._limit = limit
        self._rows: dict[str, HandlerRow] = {}
        """In the order in which they were first seen."""
        self._others = HandlerRow()

    def row(self, handler: str) -> HandlerRow:
        row = self._rows.get(handler)
        if row is None:
            if len(self._rows) >= self._limit:
                return self._others
            row = self._rows[handler] = HandlerRow()
        return row

    def rows(self) -> Iterator[tuple[str, HandlerRow]]:
        """By name, those together that came last."""
        yield from self._rows.items()
        if any(self._others.states.values()):
            yield OTHERS, self._others

    def metrics(self, oldest_s: Mapping[str, float], most: int = METRICS_LIMIT) -> dict[str, dict[str, float]]:
        """By name and handler: of the first so many that were seen, the rest together. Which these are never changes,
        so that no counter falls. `oldest_s`: how long the first of each has been ready."""
        found: dict[str, dict[str, float]] = {metric: {} for metric in COUNTS}
        oldest = found["queue_oldest_seconds"] = {}
        for place, (handler, row) in enumerate(self.rows()):
            name = handler if place < most else OTHERS
            oldest[name] = max(oldest.get(name, 0.0), oldest_s.get(handler, 0.0))
            counts = (row.ready, row.running, row.delayed, row.blocked, row.completed, row.failed, row.dead)
            for metric, count in zip(COUNTS, counts, strict=True):
                found[metric][name] = found[metric].get(name, 0) + count
        return found
