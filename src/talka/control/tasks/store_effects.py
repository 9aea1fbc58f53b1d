"""What a keeper of tasks asks of the shell that has its store, and what it tells.

Decision: docs/decisions/0021-dag-jobs-live-in-one-store.md.
"""

from typing import TypeAlias

import msgspec

from talka.control.tasks.worker_link import ToWorker
from talka.errors import TalkaError
from talka.wire.attempts import Dropped
from talka.work.dags.records import Change, TaskKey
from talka.work.lifecycle import JobState


class Commit(msgspec.Struct, frozen=True, gc=False):
    """Make these changes durable, after all that were asked for before, together with those asked for meanwhile. Answer
    with `on_committed`; one that fails is tried again until it holds."""

    ticket: int
    changes: tuple[Change, ...]
    partition: int = 0
    """Whose they are: they are made under its lease, and its keeper is answered."""


class ReadOutputs(msgspec.Struct, frozen=True, gc=False):
    """Read what memory does not hold: specs of tasks that are to be given out, outputs of those they depend on. Answer
    with `on_fetched`."""

    ticket: int
    specs: tuple[TaskKey, ...]
    outputs: tuple[TaskKey, ...]
    partition: int = 0
    """Whose keeper is answered."""


class RaiseEpoch(msgspec.Struct, frozen=True, gc=False):
    """Let the partition have this epoch in the store, if its own is below, and answer with `on_epoch`: `worker`
    remembers the one before. Until then it is given nothing."""

    epoch: int
    worker: str
    remembered: int
    is_own: bool
    """It remembers it of this very life of the store: what is open here is an older copy, put back together with the
    folder that would have told."""
    partition: int = 0
    """Whose epoch it is: those of others stay as they are."""


class WorkerDropped(msgspec.Struct, frozen=True, gc=False):
    """News: a worker held attempts of another store, or of another life of this one, and has forgotten them."""

    worker: str
    dropped: Dropped


class WorkerTooOld(msgspec.Struct, frozen=True, gc=False):
    """News, once for each: a worker does not say to which store its attempts belong, and is given none."""

    worker: str


class CallAnswered(msgspec.Struct, frozen=True, gc=False):
    """News: what was asked under this number is durable, or cannot be."""

    call: int
    job: str
    error: TalkaError | None = None


class DagEnded(msgspec.Struct, frozen=True, gc=False):
    """News: a job has ended, and that is on record."""

    job: str
    state: JobState
    reason: str
    counts: dict[str, int] = {}
    """Its tasks by state."""


StoreEffect: TypeAlias = Commit | ReadOutputs | RaiseEpoch | WorkerDropped | WorkerTooOld | CallAnswered | DagEnded
"""All that a shell with a store carries out."""
DagEffect: TypeAlias = StoreEffect | ToWorker
"""With what workers are to hear, which a link carries."""
