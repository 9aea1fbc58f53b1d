"""What the majority register holds of a job. Written by the cluster's leader alone.

Decision: docs/decisions/0018-who-may-act-on-a-job.md.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from talka.wire.channels import Codec
from talka.wire.jobs import Fence
from talka.wire.orders import JobOrder
from talka.wire.shards import Gap, Refused
from talka.work.deadlines import DeadlineRecord
from talka.work.lifecycle import JobState, TaskState
from talka.work.thresholds import Verdict

ORDER_LIMIT_BYTES: Final = 96 * 1024
"""Of what was ordered; with grants and checkpoint it stays within a value of the register."""
SLOTS: Final = 512
"""Jobs the register remembers. A new job takes the slot of the one that ended longest ago."""


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """Cores of a worker that a job may use."""

    worker: str
    boot: int
    cores: int
    """0: it has given all of them back, and what it left there may still be told."""
    lost: str = ""
    """Why the worker is gone; empty while it is not."""
    folder: int = 0
    """Of the worker's state: a new life from it proves this one dead."""


class JobEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the register holds of one job, under one key."""

    job: str
    key: str = ""
    """The submitter's idempotency key."""
    order: JobOrder
    state: JobState
    reason: str = ""
    number: int
    """Submissions count up: who came first goes first."""
    submitted_ms: int = 0
    """Wall clock, for people."""
    ended_ms: int = 0
    owner: str = ""
    """The manager that leads it."""
    fence: Fence = (0, 0, 0)
    pool: int = 0
    """Cores of the whole pool when they were granted: shares by priority are of these."""
    granted: int = 0
    """Cores that it was given at first, without those that it gave back: lost ones are replaced up to this number."""
    grants: tuple[Grant, ...] = ()
    cancel: str = ""
    """Why it is to stop; empty when nobody asked."""
    revision: int = 0
    """Of the checkpoint, within the fence."""
    checkpoint: bytes = msgspec.field(default=b"", name="account")
    """What the leading manager keeps: a `JobCheckpoint`. Empty before anything was assigned."""
    result: str = ""
    exit_code: int = 0
    version: int = 0
    """Grows with every write."""
    datacenter: str = ""
    """Where it runs: the leader's that accepted it."""
    stopped: int = -1
    """Workflows that had not ended when it was cancelled; -1: it was not."""
    resumes: int = 0
    """How often it was paused, and people resumed it, and it got its cores."""
    is_resumed: bool = False
    """A person resumes it, and it waits for its cores."""


class AttemptEntry(msgspec.Struct, frozen=True, array_like=True):
    number: int
    place: str
    digest: bytes = b""
    """Of its result, once it was accepted."""
    seats: tuple[int, ...] = ()
    """Per shard: which of the job's cores at this worker runs it, from 0. Several workflows may share one."""
    life: int = 0
    """The boot of the manager that drew the number."""


class ShardEntry(msgspec.Struct, frozen=True, array_like=True):
    first: int
    count: int
    of: int
    attempts: tuple[AttemptEntry, ...]
    done_before: tuple[int, ...] = ()
    tries_before: int = 0
    is_done: bool = False
    is_replaced: bool = False
    gap: int = -1
    """Which of the job's gaps is still open here; -1: none."""
    ended: tuple[int, ...] = ()
    """Places in it of shards that have ended while others run: their cores may have been given back."""
    aside: int = 0
    """Attempts that ended because their workflow was put aside."""


class WorkflowEntry(msgspec.Struct, frozen=True, array_like=True):
    name: str
    state: TaskState
    shards: tuple[ShardEntry, ...] = ()
    origin_ns: int = -1
    """Since the job's own; -1 before it began. `ended_ns` and `stopped_ns` likewise."""
    ended_ns: int = -1
    stopped_ns: int = -1
    has_timed_out: bool = False
    failure: str | None = None
    refused: Refused | None = None
    notes: tuple[str, ...] = ()
    shares_with: tuple[str, ...] = ()
    """Workflows that had shards on one of its cores at the same time."""
    deadline: DeadlineRecord | None = None
    """Once it was given more time, or warned."""
    put_aside_for: str = ""
    """Why it is being put aside, or is."""
    aside_ns: int = -1
    """Since when it is put aside; as `origin_ns`."""
    behind_ns: int = 0
    """How far its plan was when it was put aside last."""


class JobCheckpoint(msgspec.Struct, frozen=True):
    """What a manager must know to lead a job on: who does what, and what has been accepted."""

    attempts: int
    """Given out so far."""
    workflows: tuple[WorkflowEntry, ...]
    origin_ms: int = 0
    """When the load began, by the wall clock: used only where no worker is left that knows how long ago it was."""
    lost: tuple[tuple[str, Gap], ...] = ()
    interrupted: bool = False
    aborted: Verdict | None = None
    engine: str = ""
    resumes: int = 0
    """How often what was put aside went on."""


ENTRIES: Final[Codec[JobEntry]] = Codec(JobEntry, "the register holds a malformed entry of a job")
CHECKPOINTS: Final[Codec[JobCheckpoint]] = Codec(JobCheckpoint, "the checkpoint of a job cannot be read")
encode_entry, decode_entry = ENTRIES.encode, ENTRIES.decode
encode_checkpoint, decode_checkpoint = CHECKPOINTS.encode, CHECKPOINTS.decode
encode_order: Callable[[JobOrder], bytes] = msgspec.msgpack.Encoder().encode
