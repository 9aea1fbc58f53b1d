"""Cores for jobs, as the cluster's leader grants them: who starts, and what takes the place of lost cores.

Decision: docs/decisions/0020-cores-are-granted-per-job.md.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

import msgspec

from talka.control.jobs.queue import JobQueue
from talka.control.jobs.workers.fleet import Fleet
from talka.control.jobs.workers.sharing import CoreSharing, Picks, SharingLimits, TasksSeen
from talka.control.load.allocation import demand
from talka.wire.entries import Grant, JobEntry
from talka.work.lifecycle import JobState

GRANTS_LIMIT: Final = 2048
"""Grants in one entry, lost ones included."""
DECLINED: Final = "declined: "


class Granting:
    """Call `next` until nobody starts, and `ended` for each job that has."""

    def __init__(
        self,
        fleet: Fleet,
        queue: JobQueue,
        tasks: TasksSeen,
        rng: Random,
        sharing: SharingLimits,
        grants_limit: int = GRANTS_LIMIT,
    ) -> None:
        self._fleet = fleet
        self._queue = queue
        self._sharing = CoreSharing(fleet, tasks, rng, sharing)
        self._grants_limit = grants_limit

    def look(self, now: int) -> None:
        """Before `next`: what tasks take of the workers may have changed."""
        self._sharing.count_tasks(now)
        if not len(self._queue):
            self._sharing.let_go()

    def next(self, now: int, entries: Mapping[str, JobEntry]) -> JobEntry | None:
        """The job that starts now, with its cores, which it has from now on. Nobody is overtaken."""
        for job in self._queue.jobs()[:1]:
            entry, total = entries[job], self._fleet.total()
            picks = self._sharing.choose(now, job, *demand(entry.order, total))
            if picks:
                self._queue.remove(job)
                granted = sum(cores for _, _, cores in picks)
                return msgspec.structs.replace(entry, pool=total, granted=granted, grants=self._grants(job, picks))
        return None

    def regrant(self, now: int, entry: JobEntry) -> JobEntry:
        """Cores in place of lost ones, as many as can be had."""
        missing = entry.granted - sum(grant.cores for grant in entry.grants if not grant.lost)
        if missing < 1 or entry.state in (JobState.CANCELLING, JobState.COMPLETING):
            return entry
        bad = [grant.worker for grant in entry.grants if grant.lost.startswith(DECLINED)]
        return self._granted(entry, self._sharing.replace(now, entry.job, missing, bad))

    def regrant_lost(self, now: int, entry: JobEntry, lost: Sequence[Grant]) -> JobEntry:
        """The same, after a life of a worker was lost: of its next life first."""
        return self.regrant(now, self._granted(entry, self._sharing.give_back(lost)))

    def ended(self, now: int, job: str) -> None:
        """A job has ended."""
        self._fleet.release(job)
        self._sharing.ended(now, job)

    def waiting_for_tasks(self, job: str) -> str:
        """Why this job, which is next, waits though no load job has so many cores; empty: it does not."""
        return self._sharing.waiting_for_tasks(job)

    def _granted(self, entry: JobEntry, picks: Picks | None) -> JobEntry:
        if not picks or len(entry.grants) >= self._grants_limit:
            return entry
        return msgspec.structs.replace(entry, grants=(*entry.grants, *self._grants(entry.job, picks)))

    def _grants(self, job: str, picks: Picks) -> tuple[Grant, ...]:
        """From now on it has these cores."""
        for worker, boot, cores in picks:
            self._fleet.reserve(job, worker, cores, boot)
        return tuple(Grant(worker, boot, cores, "", self._fleet.folder(worker)) for worker, boot, cores in picks)
