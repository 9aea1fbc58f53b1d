"""Which cores a load job may have, where tasks of dag jobs run on them too: one book for both.

A core is taken by the load job that was granted it, or kept busy by tasks. The next load job gets cores that are
neither. Where there are not enough, cores are held: they get no new tasks, and the job starts when those that run there
have ended, and after a while beside them. When a load job ends while tasks wait, they come first for a moment.

Decision: docs/decisions/0056-one-book-of-cores.md.
"""

from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Final, Protocol

import msgspec

from talka.control.jobs.workers.fleet import Fleet
from talka.control.tasks.quarantine import Denied
from talka.units import SECOND
from talka.wire.entries import Grant

Picks = list[tuple[str, int, int]]
"""Worker, boot and cores."""


class TasksSeen(Protocol):
    """What a leader knows of tasks, if the keepers of dag jobs are beside it."""

    def busy_cores(self, name: str) -> int | None:
        """Cores of this worker that tasks keep busy; None: nobody here knows, and its beats tell."""

    def are_waiting(self) -> bool:
        """Whether tasks are ready that some worker has the handler of."""

    def denied(self, now: int) -> Mapping[str, Denied]:
        """Workers that get no tasks, whatever they could run."""


class NoTasks:
    """Where there are no keepers."""

    def busy_cores(self, name: str) -> int | None:
        return None

    def are_waiting(self) -> bool:
        return False

    def denied(self, now: int) -> Mapping[str, Denied]:
        return {}


class SharingLimits(msgspec.Struct, frozen=True):
    patience_ns: int = 30 * SECOND
    """For so long a load job waits for tasks on the cores that are held for it. One of them may wait for this very
    job."""
    turn_ns: int = 5 * SECOND
    """So long tasks that wait come before the next load job, when one has ended."""


SHARING_LIMITS: Final = SharingLimits()


class CoreSharing:
    """Call `choose` for the load job that is next, and `ended` when one has ended."""

    def __init__(self, fleet: Fleet, tasks: TasksSeen, rng: Random, limits: SharingLimits = SHARING_LIMITS) -> None:
        self._fleet = fleet
        self._tasks = tasks
        self._rng = rng
        self._limits = limits
        self._held_for = ""
        self._held_since = 0
        self._turn_until = 0
        self._now = 0
        self._short_since: dict[str, int] = {}
        """Jobs that run and have lost cores, of which not all are replaced."""

    def count_tasks(self, now: int) -> None:
        """What tasks take of each worker, as the keepers know it where there are any."""
        denied = self._tasks.denied(now)
        for life in self._fleet.lives():
            self._fleet.note_tasks(life.name, self._tasks.busy_cores(life.name), denied.get(life.name))

    def choose(self, now: int, job: str, least: int, most: int) -> Picks | None:
        """Cores for this job; None: it waits."""
        fleet, self._now = self._fleet, now
        if least < 1:
            return None
        if now < self._turn_until and self._tasks.are_waiting():
            return None
        free = fleet.total_free()
        if least <= free:
            self.let_go()
            return fleet.choose(min(most, free), rng=self._rng)
        if least > fleet.total_unreserved():
            self.let_go()  # other load jobs have them: tasks may run there until those end
            return None
        if self._held_for != job:
            self.let_go()
            self._held_for, self._held_since = job, now
        if fleet.held() < least:
            fleet.hold(job, least, rng=self._rng)
        if now - self._held_since < self._limits.patience_ns:
            return None
        self.let_go()
        return fleet.choose(least, rng=self._rng, beside_tasks=True)

    def pass_by(self, now: int, least: int, most: int) -> Picks | None:
        """Cores for a job that starts before the one that is next, which waits for other load jobs: such as nobody has.
        None: there are not enough."""
        if not 0 < least <= (free := self._fleet.total_free()):
            return None
        return self._fleet.choose(min(most, free), rng=self._rng)

    def give_back(self, lost: Sequence[Grant]) -> Picks | None:
        """Of a worker that was restarted, cores in place of these, which a job has lost with its earlier life: also
        where tasks are quicker to take them. Results of what ran there may be on its disk, and only who has cores is
        asked for any."""
        name, folder = lost[0].worker, lost[0].folder
        life = self._fleet.life(name)
        if life is None or not life.folder == folder != 0:
            return None
        cores = min(life.unreserved, sum(grant.cores for grant in lost))  # one that is lost has none
        return [(name, life.boot, cores)] if cores else None

    def replace(self, now: int, job: str, cores: int, bad: Collection[str]) -> Picks | None:
        """In place of so many cores that a job has lost, as many as can be had, of `bad` workers only where others have
        none; None: it waits. Nothing is held for it, but after the same time it gets cores beside tasks."""
        fleet = self._fleet
        self.count_tasks(now)  # beats are older
        beside_tasks = now - self._short_since.setdefault(job, now) >= self._limits.patience_ns
        found = min(cores, fleet.total_unreserved() if beside_tasks else fleet.total_free())
        if found < 1:
            return None
        if found == cores:
            del self._short_since[job]
        picks = fleet.choose(found, rng=self._rng, exclude=bad, beside_tasks=beside_tasks)
        return picks or fleet.choose(found, rng=self._rng, beside_tasks=beside_tasks)

    def let_go(self) -> None:
        """Nothing is held for anybody."""
        self._held_for = ""
        self._fleet.let_go()

    def ended(self, now: int, job: str) -> None:
        """A load job has ended."""
        self._short_since.pop(job, None)
        if self._tasks.are_waiting():
            self._turn_until = now + self._limits.turn_ns

    def waiting_for_tasks(self, job: str) -> str:
        """Why this job, which is next, waits though no load job has so many cores; empty: it does not."""
        now = self._now
        if now < self._turn_until and self._tasks.are_waiting():
            left_s = -(-(self._turn_until - now) // SECOND)
            return f"waits for tasks of pipelines, which come first after a load test: for {left_s} s at most"
        if self._held_for != job:
            return ""
        left_s = -(-(self._held_since + self._limits.patience_ns - now) // SECOND)
        return (
            "waits for tasks that run on the cores held for it, which get no new ones: "
            f"in {max(0, left_s)} s it starts beside those that are left"
        )
