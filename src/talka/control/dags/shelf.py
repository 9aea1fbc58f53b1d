"""Dag jobs in memory: those under way, and drafts whose tasks still come. By number, by id and by idempotency key.

Decision: docs/decisions/0021-dag-jobs-live-in-one-store.md.
"""

from collections.abc import Callable
from random import Random

import msgspec

from talka.control.dags.handler_counts import HandlerCounts
from talka.control.dags.job import DagJob
from talka.control.dags.keeper_limits import KEEPER_LIMITS, KeeperLimits
from talka.control.tasks.partition import WHOLE, Partition
from talka.errors import Invalid, Unavailable
from talka.ids import new_job_id
from talka.work.dags.dag import DagSettings
from talka.work.dags.records import JobRow
from talka.work.lifecycle import JobState


class NoRoomForJobs(Unavailable):
    """No room for another job now."""


class KeyTaken(Invalid):
    """A job that is under way was submitted with this idempotency key."""

    def __init__(self, key: str, job: str) -> None:
        super().__init__(f"the key {key!r} is of job {job}")
        self.job = job


class DagShelf:
    """What is in memory; what the store has besides, others know."""

    def __init__(
        self,
        next_number: int,
        rng: Random,
        wall_ms: Callable[[int], int],
        partition: Partition = WHOLE,
        limits: KeeperLimits = KEEPER_LIMITS,
        handlers: HandlerCounts | None = None,
    ) -> None:
        """`wall_ms` tells what the clock of the day shows at an instant. All jobs here are of the `partition`."""
        self._limits = limits
        self.partition = partition
        self._number = partition.first_number(next_number)
        """Of the next new job. None is given twice, here or in another partition."""
        self._rng = rng
        self._wall_ms = wall_ms
        self._handlers = handlers
        self.jobs: dict[int, DagJob] = {}
        self.drafts: dict[str, DagJob] = {}
        """By the id of the job to be; they are among `jobs` too."""
        self.tasks = 0
        """Of all of them. Whoever adds some counts them here."""
        self._by_id: dict[str, DagJob] = {}
        self._by_key: dict[str, DagJob] = {}

    def new_job(
        self,
        now: int,
        name: str,
        settings: DagSettings,
        state: JobState,
        *,
        tasks: int = 0,
        key: str = "",
        digest: str = "",
        by: str = "",
        params: bytes = b"",
    ) -> DagJob:
        at_ms = self._wall_ms(now)
        row = JobRow(
            number=self._number,
            id=self._new_id(),
            name=name,
            state=state,
            submitted_ms=at_ms,
            started_ms=at_ms,
            settings=msgspec.json.encode(settings),
            tasks=tasks,
            key=key,
            digest=digest,
            submitted_by=by,
            params=params,
        )
        self._number += self.partition.count
        return self.put(row, settings)

    def _new_id(self) -> str:
        """Drawn until it is one of this partition."""
        while not self.partition.holds(id := new_job_id(self._rng)):
            continue
        return id

    def put(self, row: JobRow, settings: DagSettings) -> DagJob:
        limits = self._limits
        job = DagJob(
            row,
            settings,
            self._rng,
            self._wall_ms,
            self.partition.number,
            limits.tasks_at_once,
            limits.job_output_bytes,
            self._handlers,
        )
        self.jobs[row.number] = self._by_id[row.id] = job
        if row.key:
            self._by_key[row.key] = job
        return job

    def forget(self, job: DagJob) -> None:
        del self.jobs[job.row.number], self._by_id[job.row.id]
        self.drafts.pop(job.row.id, None)
        if job.row.key:
            del self._by_key[job.row.key]
        self.tasks -= job.size

    def uncount(self) -> None:
        """Another process has them all now."""
        for job in self.jobs.values():
            job.uncount()

    @property
    def bundles(self) -> set[str]:
        """Digests of those that jobs here brought."""
        return {job.bundle.digest for job in self.jobs.values() if job.bundle is not None}

    def find(self, id: str) -> DagJob | None:
        return self._by_id.get(id)

    def of_key(self, key: str) -> DagJob | None:
        return self._by_key.get(key)

    def draft(self, id: str) -> DagJob:
        job = self.drafts.get(id)
        if job is None:
            raise Invalid("this job is not being submitted, or was broken off: submit it again")
        return job

    def check_room(self, *, jobs: int, tasks: int) -> None:
        """Raises `NoRoomForJobs` when there is none for so many more."""
        most = self._limits
        if self.tasks + tasks > most.tasks:
            raise NoRoomForJobs(f"{self.tasks} tasks are under way, and {most.tasks} may be: try again later")
        if len(self.jobs) + jobs > most.jobs:
            raise NoRoomForJobs(f"{most.jobs} jobs are under way, which is the most: try again later")

    def check_key(self, key: str) -> None:
        known = self._by_key.get(key) if key else None
        if known is not None:
            raise KeyTaken(key, known.row.id)
