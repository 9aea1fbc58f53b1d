"""Cores for jobs, as the cluster's leader grants them: who starts, what takes the place of lost cores, what comes back.

Decisions: docs/decisions/0020-cores-are-granted-per-job.md, 0064-cores-come-back-one-by-one.md.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

import msgspec

from talka.control.jobs.job_checkpoint import aside_of
from talka.control.jobs.outlook import Outlook, Waiting
from talka.control.jobs.queue import JobQueue, expected_text, waiting_reason
from talka.control.jobs.workers.fleet import Fleet
from talka.control.jobs.workers.sharing import CoreSharing, Picks, SharingLimits, TasksSeen
from talka.control.load.allocation import demand
from talka.control.load.cores_back import TimeLeft, time_of
from talka.wire.entries import Grant, JobEntry
from talka.wire.jobs import SpareCores
from talka.work.lifecycle import JobState

GRANTS_LIMIT: Final = 2048
"""Grants in one entry, lost ones included."""
DECLINED: Final = "declined: "
ENDLESS: Final = TimeLeft(0, None, None)
"""Of what a person resumes nobody knows how long it takes: it took longer than it may before."""


class _Needs(msgspec.Struct, frozen=True):
    """Of a job that waits."""

    pool: int
    """Of so many cores."""
    least: int
    most: int
    time: TimeLeft


class Begun(msgspec.Struct, frozen=True):
    """A job starts."""

    entry: JobEntry
    """With its cores."""
    ahead_of: str = ""
    """The job that is next and cannot start yet; empty: it was next itself."""


class Granting:
    """Call `next` until nobody starts, `freed` once an entry is on disk whose cores were given back, and `ended` for
    each job that has."""

    def __init__(
        self,
        fleet: Fleet,
        queue: JobQueue,
        tasks: TasksSeen,
        rng: Random,
        sharing: SharingLimits,
        grants_limit: int = GRANTS_LIMIT,
    ) -> None:
        self.outlook = Outlook()
        self._fleet = fleet
        self._queue = queue
        self._sharing = CoreSharing(fleet, tasks, rng, sharing)
        self._grants_limit = grants_limit
        self._needs: dict[str, _Needs] = {}
        """Of jobs that wait: it takes a while to find out."""
        self._passed = 0
        self._given_back = 0

    # Starting.

    def look(self, now: int) -> None:
        """Before `next`: what tasks take of the workers may have changed."""
        self._sharing.count_tasks(now)
        if not len(self._queue):
            self._sharing.let_go()
        if len(self._needs) > len(self._queue):
            self._needs = {job: needs for job, needs in self._needs.items() if self._queue.position(job)}

    def next(self, now: int, entries: Mapping[str, JobEntry]) -> Begun | None:
        """The job that starts now; it has its cores from now on. That is the one that is next, or while it waits for
        other load jobs one behind it, which has surely ended when it can start."""
        jobs = self._queue.jobs()
        if not jobs:
            return None
        needs = self._needs_of(entries[jobs[0]])
        picks = self._sharing.choose(now, jobs[0], needs.least, needs.most)
        if picks:
            return self._begin(now, entries[jobs[0]], picks)
        if len(jobs) > 1 and needs.least > self._fleet.total_unreserved():
            return self._next_behind(now, jobs, entries)
        return None

    def _next_behind(self, now: int, jobs: Sequence[str], entries: Mapping[str, JobEntry]) -> Begun | None:
        until = self._reservation(now, self._needs_of(entries[jobs[0]]).least)
        for job in jobs[1:]:
            needs = self._needs_of(entries[job])
            if self._is_over_by(now, needs.time, until):
                picks = self._sharing.pass_by(now, needs.least, needs.most)
                if picks:
                    self._passed += 1
                    return self._begin(now, entries[job], picks, jobs[0])
        return None

    def _reservation(self, now: int, least: int) -> int | None:
        """The instant from which on so many cores are kept for the job that is next; None: when it can start is not
        known, so it is any."""
        return self.outlook.earliest(now, self._fleet.total_unreserved_soon(), least, self._fleet.reserved())

    def _is_over_by(self, now: int, time: TimeLeft, until: int | None) -> bool:
        """Whether a job that starts now has surely ended then. Nobody passes on a guess."""
        return until is not None and time.most_ns is not None and now + time.most_ns <= until

    def _begin(self, now: int, entry: JobEntry, picks: Picks, ahead_of: str = "") -> Begun:
        needs = self._needs_of(entry)
        self._queue.remove(entry.job)
        granted = sum(cores for _, _, cores in picks)
        self.outlook.begun(now, entry.job, granted, needs.time)
        self._needs.pop(entry.job, None)
        grants = self._grants(entry.job, picks)
        if entry.state is JobState.PAUSED:
            grants = _together(entry.grants, grants)[-self._grants_limit :]
        return Begun(msgspec.structs.replace(entry, pool=needs.pool, granted=granted, grants=grants), ahead_of)

    def _needs_of(self, entry: JobEntry) -> _Needs:
        total, known = self._fleet.total(), self._needs.get(entry.job)
        if entry.state is JobState.PAUSED:
            _, cores = aside_of(entry)
            return _Needs(total, cores, cores, ENDLESS)
        if known is None or known.pool != total:
            time = time_of(entry.order) if known is None else known.time
            known = self._needs[entry.job] = _Needs(total, *demand(entry.order, total), time)
        return known

    # What is told of those that wait.

    def waits_for(self, now: int, entry: JobEntry, position: int, starts_at: int | None) -> str:
        """In a sentence, with when it is expected to start. Not where there is no worker."""
        fleet = self._fleet
        for_tasks = self._sharing.waiting_for_tasks(self._queue.jobs()[0])
        if for_tasks and position == 1:
            return for_tasks
        least, total, free = self._needs_of(entry).least, fleet.total(), fleet.total_free()
        reason = waiting_reason(least, free=free, total=total, ahead=position - 1)
        if for_tasks or least > total or (position == 1 and least <= free):
            return reason
        if starts_at is not None:
            return f"{reason}; {expected_text(starts_at - now)}"
        endless = self.outlook.endless(now, fleet.reserved())
        why = f": when job {endless} ends is not known" if endless else ""
        return f"{reason}; when it starts cannot be told{why}"

    def expected_starts(self, now: int, entries: Mapping[str, JobEntry]) -> dict[str, int]:
        """Of those that wait for other load jobs, as far as it is known."""
        jobs = self._queue.jobs()
        if not jobs or self._sharing.waiting_for_tasks(jobs[0]):
            return {}
        waiting = [Waiting(job, (needs := self._needs_of(entries[job])).least, needs.time.likely_ns) for job in jobs]
        fleet = self._fleet
        return self.outlook.starts(now, fleet.total_unreserved(), fleet.total(), waiting, fleet.reserved(usable=True))

    # Giving back.

    def spared(self, entry: JobEntry, spare: Sequence[SpareCores]) -> JobEntry:
        """Without cores that its owner gives back. Others get them once this is on disk: a job that another leader
        finds with more would use them."""
        grants, count = list(entry.grants), 0
        for one in spare:
            places = [place for place, grant in enumerate(grants) if _is_of(grant, one)]
            more = sum(grants[place].cores for place in places) - one.keeps
            if more + one.keeps != one.had:
                continue  # they have changed since
            for place in reversed(places):
                less = min(max(more, 0), grants[place].cores)
                grants[place] = msgspec.structs.replace(grants[place], cores=grants[place].cores - less)
                more, count = more - less, count + less
        if not count:
            return entry
        return msgspec.structs.replace(entry, grants=tuple(grants), granted=entry.granted - count)

    def freed(self, written: JobEntry, decided: JobEntry) -> int:
        """How many cores nobody has from now on, as a job that runs has them neither on disk nor by what was decided
        since."""
        on_disk, later = _cores_of(written), _cores_of(decided)
        count = 0
        for (worker, boot), cores in on_disk.items():
            count += self._fleet.shrink(written.job, worker, boot, max(cores, later.get((worker, boot), 0)))
        self._given_back += count
        return count

    # In place of lost ones.

    def regrant(self, now: int, entry: JobEntry) -> JobEntry:
        """Cores in place of lost ones, as many as can be had."""
        missing = entry.granted - sum(grant.cores for grant in entry.grants if not grant.lost)
        if missing < 1 or entry.state in (JobState.CANCELLING, JobState.COMPLETING, JobState.PAUSED):
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
        self.outlook.forget(job)

    def counts(self) -> dict[str, int]:
        """Jobs that started ahead of one that was next, and cores that came back before their job had ended."""
        return {"jobs_passed_total": self._passed, "cores_given_back_total": self._given_back}

    def _granted(self, entry: JobEntry, picks: Picks | None) -> JobEntry:
        if not picks or len(entry.grants) >= self._grants_limit:
            return entry
        return msgspec.structs.replace(entry, grants=(*entry.grants, *self._grants(entry.job, picks)))

    def _grants(self, job: str, picks: Picks) -> tuple[Grant, ...]:
        """From now on it has these cores."""
        for worker, boot, cores in picks:
            self._fleet.reserve(job, worker, cores, boot)
        return tuple(Grant(worker, boot, cores, "", self._fleet.folder(worker)) for worker, boot, cores in picks)


def _together(grants: Sequence[Grant], more: Sequence[Grant]) -> tuple[Grant, ...]:
    """More cores of a worker that a job has a grant of go into that."""
    found = list(grants)
    for one in more:
        place = next((place for place, grant in enumerate(found) if _is_of(grant, one)), None)
        if place is None:
            found.append(one)
        else:
            found[place] = msgspec.structs.replace(found[place], cores=found[place].cores + one.cores)
    return tuple(found)


def _cores_of(entry: JobEntry) -> dict[tuple[str, int], int]:
    """By worker and boot."""
    cores: dict[tuple[str, int], int] = {}
    for grant in entry.grants:
        if not grant.lost:
            cores[grant.worker, grant.boot] = cores.get((grant.worker, grant.boot), 0) + grant.cores
    return cores


def _is_of(grant: Grant, spare: SpareCores | Grant) -> bool:
    return (grant.worker, grant.boot) == (spare.worker, spare.boot) and not grant.lost
