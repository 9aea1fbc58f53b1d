"""What a worker asks its shell to do, and what it tells its log and its checkers."""

from typing import TypeAlias

import msgspec

from talka.cluster.effects import Persist, PersistBlob, Send
from talka.control.load.core_effects import CoreEffect
from talka.control.worker.handlers_effects import EndHandlers, StartHandlers, TellHandlers
from talka.wire.attempts import Dropped
from talka.wire.jobs import JobMessage, ManagerAt


class CoresUntil(msgspec.Struct, frozen=True):
    """Each core stops itself at this instant of its machine's clock, with all that it started, unless it is told a
    later one before. Told with each renewal: a worker that stands still tells nothing, and its cores end by themselves.

    See docs/decisions/0032-a-core-ends-by-its-own-clock.md.
    """

    end_ns: int


class NeedBundle(msgspec.Struct, frozen=True):
    """A bundle is not here, and is being fetched."""

    digest: str
    size_bytes: int


class ManagersLearned(msgspec.Struct, frozen=True):
    """These are the managers now. Keep a connection to each."""

    managers: tuple[ManagerAt, ...]


class WorkerLeaseGranted(msgspec.Struct, frozen=True):
    """A leader counts on this worker."""

    leader: str


class LeaseEnded(msgspec.Struct, frozen=True):
    """Nobody renewed the lease; what ran is killed."""

    reason: str


class ShardsArmed(msgspec.Struct, frozen=True):
    """An attempt at shards of a job is ready to start."""

    job: str
    attempt: int
    reason: str = ""


class ShardsStarted(msgspec.Struct, frozen=True):
    """It was told to start."""

    job: str
    attempt: int
    reason: str = ""


class ShardsEnded(msgspec.Struct, frozen=True):
    """It came to a result, or was refused; a reason says what went wrong."""

    job: str
    attempt: int
    reason: str = ""


class ShardsKilled(msgspec.Struct, frozen=True):
    """It was ended before its time, and leaves no result."""

    job: str
    attempt: int
    reason: str = ""


class HandlersLoaded(msgspec.Struct, frozen=True):
    """A core has loaded the handlers' files, and these are in them; told when it differs from what was told before."""

    handlers: tuple[str, ...]


class HandlersBroken(msgspec.Struct, frozen=True):
    """The handlers' files cannot be used; it is tried again."""

    text: str


class AttemptsDropped(msgspec.Struct, frozen=True):
    """What was held of another store, or of another life of it, was forgotten."""

    dropped: Dropped


class Drained(msgspec.Struct, frozen=True):
    """The worker was to take no more tasks, and nothing is left on it that anybody wants."""


HandlerEffect: TypeAlias = (
    StartHandlers
    | TellHandlers
    | EndHandlers
    | Send[JobMessage]
    | Persist
    | HandlersLoaded
    | HandlersBroken
    | AttemptsDropped
)
"""Of the pool of handler cores."""
ShardsNews: TypeAlias = ShardsArmed | ShardsStarted | ShardsEnded | ShardsKilled
ShardsEffect: TypeAlias = CoreEffect | Send[JobMessage] | Persist | PersistBlob | NeedBundle | ShardsNews
"""Of what a worker holds of load jobs."""
WorkerEffect: TypeAlias = (
    ShardsEffect | HandlerEffect | CoresUntil | ManagersLearned | WorkerLeaseGranted | LeaseEnded | Drained
)
