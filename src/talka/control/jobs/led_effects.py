"""What a job that is led asks of the manager around it, and what it tells."""

import msgspec


class KeepWanted(msgspec.Struct, frozen=True):
    """Put this on a majority of managers' disks, then say `on_kept`."""

    job: str
    digest: str
    content: bytes


class BlobWanted(msgspec.Struct, frozen=True):
    """Get this blob, from here or from one of the holders, then say `on_blob`."""

    job: str
    digest: str
    size_bytes: int
    """0 when it is not known."""
    holders: tuple[str, ...]


class DocumentWanted(msgspec.Struct, frozen=True):
    """The job has ended: make its result document, then say `on_document`."""

    job: str


class JobOver(msgspec.Struct, frozen=True):
    """Everything is on record; or another manager leads the job."""

    job: str
    superseded: bool = False


class TaskLost(msgspec.Struct, frozen=True):
    job: str
    attempt: int
    worker: str
    cause: str


class AttemptAccepted(msgspec.Struct, frozen=True):
    """The result of an attempt counts from now on."""

    job: str
    attempt: int
    digest: str
