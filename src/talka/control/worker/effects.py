"""What a worker tells its shell, its log and its checkers."""

import msgspec

from talka.wire.attempts import Dropped
from talka.wire.jobs import ManagerAt


class NeedBundle(msgspec.Struct, frozen=True):
    """A bundle is not here, and is being fetched."""

    digest: str
    size_bytes: int


class ManagersLearned(msgspec.Struct, frozen=True):
    """These are the managers now. Keep a connection to each."""

    managers: tuple[ManagerAt, ...]


class LeaseGranted(msgspec.Struct, frozen=True):
    """A leader counts on this worker."""

    leader: str


class LeaseEnded(msgspec.Struct, frozen=True):
    """Nobody renewed the lease; the tasks that ran are killed."""

    reason: str


class TaskArmed(msgspec.Struct, frozen=True):
    job: str
    attempt: int
    reason: str = ""


class TaskStarted(msgspec.Struct, frozen=True):
    job: str
    attempt: int
    reason: str = ""


class TaskEnded(msgspec.Struct, frozen=True):
    """It came to a result, or was refused; a reason says what went wrong."""

    job: str
    attempt: int
    reason: str = ""


class TaskKilled(msgspec.Struct, frozen=True):
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
