"""Tells a bad machine from a bad task: by processes that died with one task alone in them.

A task that dies on several workers is to blame itself. A worker on which several tasks die that died nowhere else is
to blame, and gets no tasks for a while.

Decision: docs/decisions/0023-a-core-that-dies.md.
"""

from collections import OrderedDict
from typing import Final, TypeAlias

from talka.errors import Invalid
from talka.units import MINUTE, NEVER
from talka.wire.views import DecisionName
from talka.work.dags.records import TaskKey

Denied: TypeAlias = tuple[DecisionName, str]
"""What was decided of a worker that gets no tasks, whatever it could run, and why."""
QUARANTINED: Final = "it gets no tasks for a while: tasks died on it that died nowhere else"
DEATHS: Final = 3
"""Of different tasks."""
WITHIN_NS: Final = 10 * MINUTE
LASTS_NS: Final = 5 * MINUTE
TASKS_LIMIT: Final = 10_000
"""Tasks whose deaths are remembered; the one that died longest ago is forgotten first."""
WORKERS_LIMIT: Final = 8
"""Remembered of one task; two would do to acquit them."""


class Quarantine:
    """`until` says for each worker in quarantine when it ends. Whether there is another worker is for others to know.

    Call `expire` once `next_end_at` has come.
    """

    def __init__(self, tasks_limit: int = TASKS_LIMIT) -> None:
        if tasks_limit < DEATHS:
            raise Invalid(f"a quarantine needs a tasks_limit of at least {DEATHS}, not {tasks_limit}")
        self._tasks_limit = tasks_limit
        self._deaths: OrderedDict[TaskKey, dict[str, int]] = OrderedDict()
        """For each task when it last died on which workers; the one that died last comes last."""
        self.until: dict[str, int] = {}
        self.next_end_at = NEVER

    def died(self, now: int, task: TaskKey, worker: str) -> bool:
        """A process died with this task alone in it. Whether `until` is another now."""
        before = dict(self.until)
        self._forget(now)
        deaths = self._deaths.setdefault(task, {})
        self._deaths.move_to_end(task)
        deaths[worker] = now
        if len(deaths) > WORKERS_LIMIT:
            del deaths[next(iter(deaths))]
        if len(self._deaths) > self._tasks_limit:
            self._deaths.popitem(last=False)
        if self.evidence(now, worker) >= DEATHS:
            self.until[worker] = now + LASTS_NS
        # What died here too is to blame itself: those that are in quarantine for it may be acquitted.
        for other in [name for name in deaths if name != worker and name in self.until]:
            if self.evidence(now, other) < DEATHS:
                del self.until[other]
        self._settle()
        return self.until != before

    def evidence(self, now: int, worker: str) -> int:
        """Tasks that died on this worker lately, and nowhere else."""
        since = now - WITHIN_NS
        return sum(1 for deaths in self._deaths.values() if len(deaths) == 1 and deaths.get(worker, since) > since)

    def expire(self, now: int) -> bool:
        """Whether any quarantine has ended. The evidence stays as long as it would: one more death may be enough."""
        if now < self.next_end_at:
            return False
        self.until = {worker: until for worker, until in self.until.items() if now < until}
        self._settle()
        return True

    def _forget(self, now: int) -> None:
        """Tasks that have not died for so long that they prove nothing."""
        deaths = self._deaths
        while deaths and max(deaths[next(iter(deaths))].values()) <= now - WITHIN_NS:
            deaths.popitem(last=False)

    def _settle(self) -> None:
        self.next_end_at = min(self.until.values(), default=NEVER)
