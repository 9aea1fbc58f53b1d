"""The port of a store of dag jobs: what every engine can do, in what order, and with which errors.

Every verb is one round trip for a whole batch, and is awaited; threads, connections and queues are the engine's own
affair. `opening.py` says which engines there are.

Decisions: docs/decisions/0021-dag-jobs-live-in-one-store.md, docs/decisions/0039-the-store-is-a-port.md.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from talka.errors import Invalid, Superseded, Unavailable
from talka.store.dags.memory import OpenedLife, StoreMemory
from talka.work.dags.records import (
    AttemptRow,
    Change,
    ClaimTask,
    Complete,
    DropElements,
    EventRow,
    FanOut,
    FanRow,
    JobRow,
    LiveTask,
    LogRow,
    MoveJob,
    NoticeRow,
    Release,
    ScheduleRow,
    StreamRow,
    TaskKey,
    TaskRow,
    TimeRow,
)
from talka.work.retention import Retention


class RecordsUnavailable(Unavailable):
    """The store cannot be written or read now: the disk is full, the file is locked. Nothing of the batch was done."""


class RecordsBroken(Unavailable):
    """What became of a write is not known, and trying again would not tell: this process must start again."""


class RecordsDiffer(RecordsBroken):
    """The store has other rows than those that were decided from."""


class BadRecords(Invalid):
    """The address names no store; or what is there is none, is of a later version, or is damaged."""


class AlreadyKept(Invalid):
    """A job, its id or its key, or a task of the batch is in the store already. Nothing of the batch was done."""


class StoreLost(Superseded):
    """This process may write nothing to the store any more, and nothing of the batch was done."""


class StoreTaken(StoreLost):
    """Another manager has the store, or the part of it that is leased under `key`."""

    key: str = ""

    @classmethod
    def at(cls, place: str, key: str = "") -> "StoreTaken":
        error = cls(
            f"another manager has taken the store {place}, and this one writes nothing more to it: "
            "have one manager for a store, and start this one again when it should have the store"
        )
        error.key = key
        return error


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


class Fetched(NamedTuple):
    """What attempts are given."""

    specs: dict[TaskKey, tuple[bytes, bytes]]
    """Spec and checkpoint of each."""
    outputs: dict[TaskKey, bytes]
    """Whole, of each that has completed; one that is lost is not among them."""


class Migrated(NamedTuple):
    place: str
    """For people."""
    found: int
    """Version of its tables before; 0: there were none."""
    version: int


class Condition(NamedTuple):
    """Of a store that was looked over."""

    place: str
    problems: list[str]
    """Sentences; empty: it is whole."""
    jobs: int
    tasks: int


class CommitListener(NamedTuple):
    """Who is told what becomes of commits, all in the loop that started them."""

    on_committed: Callable[[list[int]], None]
    """Their tickets, in order."""
    on_problem: Callable[[str], None]
    """What keeps the store from taking changes just now, and an empty text when that is over."""
    on_broken: Callable[[BaseException], None]
    """It can never take them. Nothing that came later is made: of `StoreTaken` with a key, nothing under that key."""


SURE: Final = frozenset({ClaimTask, Complete, DropElements, FanOut, MoveJob, Release})
"""Changes that a store takes if it has what was written to it. Others may come too late."""


def check_taken(changes: Sequence[Change], counts: Sequence[int]) -> None:
    """Of a commit. Raises `RecordsDiffer` when memory and store are not of one mind."""
    if all(counts):
        return
    refused = [change for change, count in zip(changes, counts, strict=True) if not count]
    sure = next((change for change in refused if type(change) in SURE), None)
    if sure is not None:
        raise RecordsDiffer(
            f"the store did not take what this manager decided ({sure!r:.200}): what it has is not what was written to "
            "it, and this manager has to start again from there"
        )


class Store(Protocol):
    """Jobs, tasks, schedules and leases, for one process that has it open.

    Verbs raise `RecordsUnavailable` when they may be tried again, `StoreLost` when this process has the store no more,
    `Invalid` when the question is wrong. What reads sees all commits that were answered before it was asked.

    Changes are made under leases: `key` names the one, and whether it is still held is looked up in the same
    transaction; without a key that is asked of every lease that `fence` was called with.
    """

    @property
    def place(self) -> str:
        """For people."""

    @property
    def problem(self) -> str:
        """What keeps it from taking commits just now; empty: nothing."""

    # Commits: in order, and those that come while one is under way go together.

    def start(self, commits: CommitListener) -> None:
        """Once, within the loop and before the first `commit`."""

    def commit(self, ticket: int, changes: Sequence[Change], key: str = "") -> bool:
        """Whether it holds already: then it is not answered. All else is answered to the `CommitListener`, in order,
        once it is durable. What the store cannot take now waits and is tried again; outputs of any size are taken."""

    def give_up(self, key: str = "") -> None:
        """Make no commit any more, also of those that wait: the store is lost, or what is leased under this key."""

    async def drain(self) -> None:
        """Make the commits that wait, if that can be done now, and take no more."""

    async def close(self) -> None:
        """Let it go. What was acknowledged stays."""

    # Changes out of line: not in order with commits.

    async def apply(self, changes: Sequence[Change], key: str = "") -> list[int]:
        """All of them in one durable transaction, in order, or none. How many rows each changed: 0 of a fenced change
        means that its fence was not the row's."""

    async def sweep(self, grown_ms: int, kept: Retention, limit: int, key: str = "") -> int:
        """The store has grown older by so much. Drop jobs whose end was seen when it was so much younger as the rule of
        theirs says, and the oldest beyond its number none of whose notices waits; at most `limit` of them. How many
        went. What is large in them goes with `clear`.

        Its age is what its managers have counted while they had it; clocks that can be set have no say in it."""

    async def sweep_output(self, kept: Retention, key: str = "") -> bool:
        """Delete a part of what attempts of jobs wrote and logged whose end was seen that long ago, or beyond so many
        jobs that have theirs. Whether there may be more."""

    async def clear(self, key: str = "") -> bool:
        """Delete a part of what dropped jobs had, where that was much: nobody finds it any more, and commits wait for a
        part and not for all. Whether there is more."""

    async def sweep_blobs(self, older_than_s: float, now_s: float) -> None:
        """Drop large outputs that no task names and that are older than this. `now_s` is the clock of the day's."""

    # Leases: who holds what. An epoch grows with every new holder of a key, and is kept when the lease is not. No
    # clock is asked: a lease is its holder's until it is released, or taken by somebody who has looked on. These verbs
    # never wait for a long question.

    async def acquire(self, keys: Sequence[str], owner: str) -> list[Lease]:
        """Those that were free or the owner's own; the epoch of a lease that is merely held on stays."""

    async def renew(self, owner: str, held: Sequence[tuple[str, int]]) -> list[Lease]:
        """Those that are still the owner's under the epoch given. Their beats have grown. `StoreGone` is raised when
        the store is not where it was."""

    async def take(self, owner: str, seen: Sequence[Lease]) -> list[Lease]:
        """Those that are still as they were seen, from whoever had them, under new epochs. Only for who has watched
        them for a whole lease by a clock of its own."""

    async def release(self, owner: str, held: Sequence[tuple[str, int]]) -> int:
        """How many were the owner's under the epoch given, and are free now."""

    async def raise_epoch(self, owner: str, held: tuple[str, int], epoch: int) -> int:
        """The epoch of a lease that is held, raised to this one if it is below, or by one; 0: it is not the owner's any
        more. Changes under it go on under the new epoch."""

    async def leases(self, prefix: str) -> list[Lease]:
        """Those that somebody has, in order of their keys."""

    def fence(self, lease: Lease) -> None:
        """From now on changes under the key of this lease are made only while it is held with this epoch by this owner.
        If it is not, `StoreTaken` is raised and nothing is done."""

    async def open_life(self, epoch: int, memory: StoreMemory, draw: Callable[[], int]) -> OpenedLife:
        """Which store this is and which of its lives, of a manager that has just taken it under this epoch. A new life
        is durable once this returns."""

    # Jobs.

    async def next_number(self) -> int:
        """The number of the next new job: one above the highest ever used."""

    async def live_jobs(self) -> list[JobRow]:
        """Those that have not ended, oldest first."""

    async def job(self, id: str) -> JobRow | None: ...
    async def job_by_key(self, key: str) -> JobRow | None:
        """The job that was submitted with this idempotency key."""

    async def jobs_keyed(self, begins: Sequence[str]) -> list[tuple[str, str]]:
        """Idempotency key and id of each job whose key begins with one of these, in order of their keys. None of them
        is the beginning of another."""

    async def jobs(self, states: Sequence[str], before: int, limit: int) -> list[JobRow]:
        """Newest first, of numbers below `before`; states empty: all."""

    async def events(self, job: int, after: int, limit: int) -> list[EventRow]: ...
    async def schedules(self) -> list[ScheduleRow]: ...

    async def notices(self, job: int) -> list[NoticeRow]:
        """Of the ends of a job, in order of their ids."""

    async def waiting_notices(self, limit: int, after: tuple[int, str] = (-1, "")) -> list[NoticeRow]:
        """Those that are sent next, the soonest first. `after`: when the one before them is due, and its id."""

    # Tasks.

    async def live_tasks(self, job: int, after: int, limit: int) -> list[LiveTask]:
        """All tasks of a job in order of their index, those above `after` (from -1 on)."""

    async def fetch(self, specs: Sequence[TaskKey], outputs: Sequence[TaskKey]) -> Fetched:
        """Specs of these, outputs of those."""

    async def keyed(self, keys: Sequence[str]) -> dict[str, KeyedRow]: ...
    async def tasks(self, job: int, states: Sequence[str], after: int, limit: int) -> list[TaskRow]: ...
    async def tasks_at(self, keys: Sequence[TaskKey]) -> list[TaskRow]:
        """Those of them that are there, in order."""

    async def task(self, job: int, id: str) -> TaskRow | None: ...
    async def blob(self, digest: str) -> bytes | None:
        """A large output, by the name that its row has of it; None: it is lost."""

    async def fans(self, job: int) -> list[FanRow]:
        """Its tasks that are fanned out, in order of their index."""

    async def counts(self, job: int) -> dict[str, int]:
        """Tasks by state."""

    async def counts_of(self, job: int, fan: FanRow) -> dict[str, int]:
        """The elements of a task that is fanned out, by state."""

    async def attempts(self, keys: Sequence[TaskKey]) -> list[AttemptRow]: ...
    async def logs(self, job: int, index: int, after: int, limit: int) -> list[LogRow]: ...
    async def stream_sizes(self, job: int, index: int, count: int = 1) -> list[StreamRow]:
        """What is kept of what attempts of so many tasks wrote, from this one on, without contents: in order of the
        tasks, the oldest attempt of each first."""

    async def times(self, job: int, index: int, count: int = 1) -> list[TimeRow]:
        """What is kept of the times of attempts at so many tasks, from this one on, in order of the tasks, the oldest
        attempt of each first."""

    async def streams(self, job: int, index: int, fence: int) -> list[StreamRow]:
        """Of one attempt, with contents."""

    async def dead_letters(self, after: TaskKey, limit: int) -> list[TaskRow]:
        """Tasks in state DEAD, oldest job first, those above `after`."""


class StoreKind(Protocol):
    """How stores of one engine are named, opened and looked after. Its scheme is in `opening.STORES`."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def is_shared(self) -> bool:
        """Managers on several machines may have one such store."""

    def check_url(self, url: str) -> None:
        """Raises `BadRecords` when this names no store. Nothing is opened."""

    async def open(self, url: str) -> Store:
        """Made if it is not there, and brought to this version."""

    async def migrate(self, url: str) -> Migrated:
        """As `open` does, and nothing else."""

    async def look_over(self, url: str) -> Condition:
        """Read all of it. It is not made, changed or brought to this version."""

    async def backup(self, url: str, target: str) -> str:
        """Copy it as it is at one instant, while it is in use; the place of what was copied. The copy begins a life of
        its own when a manager opens it."""
