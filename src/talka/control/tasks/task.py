"""One task of a dag job as a manager has it in memory: one of millions, so it is small.

Decision: docs/decisions/0021-dag-jobs-live-in-one-store.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, Protocol

import msgspec

from talka.wire.output_tail import StreamTail
from talka.wire.tasks import MoreTime, TimeAnswer
from talka.work.dags.dag import CodeBundle, Limit, TaskSpec
from talka.work.dags.records import Change, JobRow
from talka.work.deadlines import OnTimeout
from talka.work.lifecycle import TaskState
from talka.work.retry import RetryPolicy

INDEX_BYTES: Final = 4
"""Of one index in `DagTask.after`, little end first, as in `work.dags.records.LiveTask`."""
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
    partition: int = 0
    """Of its job: a worker is given it when it obeys the keeper of that one."""
    bundle: str = ""
    """Digest of the code that brought the handler; empty: it is a worker's own."""
    is_plain: bool = True
    """Of a handler that was brought: a core runs one at a time."""


class Policy(msgspec.Struct, frozen=True):
    """How long a task may take and what follows when it fails, its own and the job's put together. Shared."""

    retries: int | None
    """None: nothing is said, and the table of endings counts."""
    backoff: RetryPolicy | None
    """None: it is tried again at once."""
    never: tuple[str, ...]
    """Names of classes of exceptions that are not retried."""
    queue_ns: int
    """0: it waits as long as it must. So for the others."""
    attempt_ns: int
    total_ns: int
    delay_ns: int
    on_timeout: OnTimeout = "kill"
    """What follows once an attempt was warned that its time is over."""


class TaskOwner(Protocol):
    """The job of a task: what whoever gives tasks out asks of it."""

    row: JobRow
    partition: int
    """Its number."""
    bundle: CodeBundle | None
    """Handlers that travel with it."""

    def began(self, now: int, task: "DagTask") -> None:
        """Its handler runs."""

    def more_time(self, now: int, task: "DagTask", asked: MoreTime, changes: list[Change]) -> TimeAnswer | None:
        """Its attempt asks for more time, or was warned: the answer, and among the `changes` what is to be kept of it.
        None: not yet."""

    def needs_of(self, handler: str) -> Needs:
        """Of a task of which no more than this is known."""

    def writes(self, task: "DagTask", tails: tuple[StreamTail, ...]) -> Change:
        """What its attempt has written so far, as it is to be kept."""

    def inputs_of(self, task: "DagTask") -> list["DagTask"]:
        """Those of its dependencies that have an output."""

    def elements_of(self, task: "DagTask") -> "Sequence[DagTask] | None":
        """Those of a task that is fanned out, of whose outputs its own is made; None: it is not."""


@dataclass(slots=True, eq=False)
class DagTask:
    """Changed by its job alone."""

    job: TaskOwner
    index: int
    id: str
    state: TaskState
    handler: str
    priority: int
    after: bytes
    """Indexes of what it depends on, packed."""
    waits_for: int = 0
    """How many of them have not ended."""
    spec: TaskSpec | None = None
    """None: not in memory. Whoever needs it loads it; whoever wants the memory back may drop it."""
    needs: Needs | None = None
    """None, with `policy`, until the spec was seen: after a restart."""
    policy: Policy | None = None
    key: str = ""
    kib: int = 0
    """What it takes to hand it without its inputs, in KiB, once its spec was seen."""
    output_kib: int = 0
    """Of its output once it has completed, as far as that was seen."""
    attempts: int = 0
    """Given out so far, also those that were lost with their worker."""
    failures: int = 0
    """Attempts that count against its retries."""
    deaths: int = 0
    """Processes that died with it alone in them."""
    fence: int = 0
    worker: str = ""
    """`name#boot` while it is assigned or runs."""
    ready_at: int = 0
    """Not before; 0: at once."""
    queued_at: int = 0
    """When it became READY."""
    started_at: int = 0
    """When its attempt was given out."""
    refusals: int = 0
    """How often a worker said that it cannot run it."""
    recall: str = ""
    """Why the attempt under way was told to stop: cancelled or timeout; empty: it was not."""
    alone: bool = False
    """An earlier attempt died among others: it runs in a process with nothing else."""
    is_settled: bool = False
    """Its end was kept, and what waited for it was told."""
    checkpoint: bytes = b""
    cause: str = ""
    error: str = ""
    fan: int = -1
    """The index of the fanned-out task that it is an element of; below 0: it is none."""

    @property
    def depends_on(self) -> tuple[int, ...]:
        return unpacked(self.after)


def packed(indexes: tuple[int, ...]) -> bytes:
    if not indexes:
        return b""
    if len(indexes) == 1:  # most of those that depend on anything at all
        return _one.pack(indexes[0])
    return b"".join([_one.pack(index) for index in indexes])


def unpacked(after: bytes) -> tuple[int, ...]:
    if len(after) == _one.size:
        return _one.unpack(after)
    return tuple([index for (index,) in _one.iter_unpack(after)])
