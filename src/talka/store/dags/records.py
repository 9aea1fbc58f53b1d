"""What a store of dag jobs can do: records with atomic changes.

Every verb is one round trip for a whole batch. Calls block: whoever has a loop calls them in one thread of their own.

Decision: docs/decisions/0021-dag-jobs-live-in-one-store.md.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from talka.errors import Invalid, Superseded, Unavailable
from talka.work.records import (
    AttemptRow,
    Change,
    EventRow,
    JobRow,
    LiveTask,
    LogRow,
    ScheduleRow,
    TaskKey,
    TaskRow,
)


class RecordsUnavailable(Unavailable):
    """The store cannot be written or read now: the disk is full, the file is locked. Nothing of the batch was done."""


class BadRecords(Invalid):
    """The file is no store, is of a later version, or is damaged."""


class StoreLost(Superseded):
    """This process may write nothing to the store any more, and nothing of the batch was done."""


class StoreTaken(StoreLost):
    """Another manager has the store."""


class StoreGone(StoreLost):
    """What is open here is not what lies where the store was: it was deleted, or another is there."""


class Lease(NamedTuple):
    key: str
    owner: str
    epoch: int
    beat: int
    """Grows with every renewal. One that does not while somebody looks on for long is nobody's any more."""


class KeyedRow(NamedTuple):
    """The task that completed under an idempotency key."""

    job: str
    task: str
    output: bytes
    blob: str


class DagStore(Protocol):
    """Jobs and tasks."""

    is_quick: bool
    """Its commits do not wait for the disk, and a power cut may take the last of them."""

    def fence(self, lease: Lease) -> None:
        """From now on every change of this handle is made under this lease: whether it is still held is looked up in
        the same transaction. If it is not, `StoreTaken` is raised and nothing is done."""

    def checkpoint(self) -> None:
        """Bring what the log has to its place. Waits for the disk, which commits do not have to do then."""

    def apply(self, changes: Sequence[Change]) -> list[int]:
        """All of them in one durable transaction, in order, or none. How many rows each changed: 0 of a fenced change
        means that its fence was not the row's."""

    def next_number(self) -> int:
        """The number of the next new job: one above the highest ever used."""

    def live_jobs(self) -> list[JobRow]:
        """Those that have not ended, oldest first."""

    def live_tasks(self, job: int, after: int, limit: int) -> list[LiveTask]:
        """All tasks of a job in order of their index, those above `after` (from -1 on)."""

    def job(self, id: str) -> JobRow | None: ...
    def job_by_key(self, key: str) -> JobRow | None:
        """The job that was submitted with this idempotency key."""

    def jobs(self, states: Sequence[str], before: int, limit: int) -> list[JobRow]:
        """Newest first, of numbers below `before`; states empty: all."""

    def specs(self, keys: Sequence[TaskKey]) -> dict[TaskKey, tuple[bytes, bytes]]:
        """Spec and checkpoint of each."""

    def outputs(self, keys: Sequence[TaskKey]) -> dict[TaskKey, tuple[bytes, str]]:
        """Output and blob of each that has completed."""

    def keyed(self, keys: Sequence[str]) -> dict[str, KeyedRow]: ...
    def tasks(self, job: int, states: Sequence[str], after: int, limit: int) -> list[TaskRow]: ...
    def task(self, job: int, id: str) -> TaskRow | None: ...
    def counts(self, job: int) -> dict[str, int]:
        """Tasks by state."""

    def attempts(self, keys: Sequence[TaskKey]) -> list[AttemptRow]: ...
    def events(self, job: int, after: int, limit: int) -> list[EventRow]: ...
    def logs(self, job: int, index: int, after: int, limit: int) -> list[LogRow]: ...
    def dead_letters(self, after: TaskKey, limit: int) -> list[TaskRow]:
        """Tasks in state DEAD, oldest job first, those above `after`."""

    def schedules(self) -> list[ScheduleRow]: ...
    def sweep(self, grown_ms: int, kept_ms: int, keep: int, limit: int) -> int:
        """The store has grown older by so much. Drop jobs whose end was seen when it was at least `kept_ms` younger,
        and the oldest above `keep`; at most `limit` of them. How many went.

        Its age is what its managers have counted while they had it; clocks that can be set have no say in it."""
