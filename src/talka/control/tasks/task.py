"""One task of a dag job as a manager has it in memory: one of millions, so it is small.

Decision: docs/decisions/0021-dag-jobs-live-in-one-store.md.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, Protocol

import msgspec

from talka.work.dag import Limit, TaskSpec
from talka.work.lifecycle import TaskState
from talka.work.records import JobRow
from talka.work.retry import RetryPolicy

INDEX_BYTES: Final = 4
"""Of one index in `DagTask.after`, little end first, as in `work.records.LiveTask`."""
_one = Struct("<I")


class Needs(msgspec.Struct, frozen=True):
    """What a worker must have to run a task. Tasks with equal needs wait in one queue; those of one job share one
    object."""

    handler: str
    capabilities: tuple[str, ...] = ()
    min_memory_bytes: int = 0
    limits: tuple[Limit, ...] = ()
    alone: bool = False
    """In a process with nothing else."""


class Policy(msgspec.Struct, frozen=True):
    """How long a task may take and what follows when it fails, its own and the job's put together. Shared."""

    retries: int
    backoff: RetryPolicy | None
    """None: it is tried again at once."""
    never: tuple[str, ...]
    """Names of classes of exceptions that are not retried."""
    queue_ns: int
    """0: it waits as long as it must. So for the others."""
    attempt_ns: int
    total_ns: int
    delay_ns: int


class TaskOwner(Protocol):
    """The job of a task: what whoever gives tasks out asks of it."""

    row: JobRow

    def began(self, now: int, task: "DagTask") -> None:
        """Its handler runs."""

    def inputs_of(self, task: "DagTask") -> list["DagTask"]:
        """Those of its dependencies that have an output."""

    def dependents_of(self, index: int) -> Sequence[int]:
        """Indexes of the tasks that depend on this one."""


class DagTask:
    """Changed by its job alone."""

    __slots__ = (
        "after",
        "alone",
        "attempts",
        "cause",
        "checkpoint",
        "deaths",
        "died_on",
        "error",
        "failures",
        "fence",
        "handler",
        "id",
        "index",
        "is_settled",
        "job",
        "key",
        "needs",
        "policy",
        "priority",
        "queued_at",
        "ready_at",
        "recall",
        "refusals",
        "spec",
        "started_at",
        "state",
        "waits_for",
        "worker",
    )

    def __init__(
        self, job: TaskOwner, index: int, id: str, state: TaskState, handler: str, priority: int, after: bytes
    ) -> None:
        self.job = job
        self.index = index
        self.id = id
        self.state = state
        self.handler = handler
        self.priority = priority
        self.after = after
        """Indexes of what it depends on, packed."""
        self.waits_for = 0
        """How many of them have not ended."""
        self.spec: TaskSpec | None = None
        """None: not in memory. Whoever needs it loads it; whoever wants the memory back may drop it."""
        self.needs: Needs | None = None
        """None, with `policy`, until the spec was seen: after a restart."""
        self.policy: Policy | None = None
        self.key = ""
        self.attempts = 0
        """Given out so far, also those that were lost with their worker."""
        self.failures = 0
        """Attempts that count against its retries."""
        self.deaths = 0
        """Processes that died with it alone in them."""
        self.fence = 0
        self.worker = ""
        """`name#boot` while it is assigned or runs."""
        self.ready_at = 0
        """Not before; 0: at once."""
        self.queued_at = 0
        """When it became READY."""
        self.started_at = 0
        """When its attempt was given out."""
        self.refusals = 0
        """How often a worker said that it cannot run it."""
        self.recall = ""
        """Why the attempt under way was told to stop: cancelled or timeout; empty: it was not."""
        self.alone = False
        """An earlier attempt died among others: it runs in a process with nothing else."""
        self.is_settled = False
        """Its end was kept, and what waited for it was told."""
        self.checkpoint = b""
        self.cause = ""
        self.error = ""
        self.died_on: tuple[str, ...] = ()
        """Workers on which a process died with it alone in it."""

    @property
    def depends_on(self) -> tuple[int, ...]:
        return unpacked(self.after)

    @property
    def dependents(self) -> list[int] | None:
        return list(self.job.dependents_of(self.index)) or None


def packed(indexes: tuple[int, ...]) -> bytes:
    if len(indexes) == 1:  # most of those that depend on anything at all
        return _one.pack(indexes[0])
    return b"".join([_one.pack(index) for index in indexes])


def unpacked(after: bytes) -> tuple[int, ...]:
    return tuple([index for (index,) in _one.iter_unpack(after)])
