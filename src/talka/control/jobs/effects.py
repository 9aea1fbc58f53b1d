"""What the parts of a manager that have to do with jobs ask of the manager around them, and what they tell.

`…Wanted` is to be carried out; what is in the past tense is news.
"""

from typing import TypeAlias

import msgspec

from talka.cluster.effects import Send
from talka.control.load.core_effects import LateNews
from talka.control.member.leader_calls import CallEnded
from talka.control.member.three_signals import MemberDoubted
from talka.control.member.voter import VoterEffect
from talka.wire.jobs import JobMessage
from talka.wire.security.access import Asker
from talka.wire.views import DecisionName, HealthDecisionName, JobUpdate
from talka.work.lifecycle import JobState

# Of a job that this manager leads.


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
    """Everything is stored; or another manager leads the job."""

    job: str
    superseded: bool = False


class TaskLost(msgspec.Struct, frozen=True):
    job: str
    attempt: int
    worker: str
    cause: str


class JobLate(msgspec.Struct, frozen=True):
    """A workflow of a job was given more time, or was warned that it has none left."""

    job: str
    workflow: str
    what: LateNews
    text: str


class AttemptAccepted(msgspec.Struct, frozen=True):
    """The result of an attempt counts from now on."""

    job: str
    attempt: int
    digest: str


# Of the jobs of the cluster, while this manager leads it.


class JobAcceptedNews(msgspec.Struct, frozen=True):
    """A submission is on a majority of disks."""

    job: str
    key: str


class OwnerChanged(msgspec.Struct, frozen=True):
    job: str
    owner: str
    fence: tuple[int, int, int]
    reason: str


class JobEndStored(msgspec.Struct, frozen=True):
    """A job has ended, and a majority has it on disk."""

    job: str
    state: JobState
    result: str


class LeadWanted(msgspec.Struct, frozen=True):
    """The owner of a job is to be told its entry."""

    job: str


class Alarmed(msgspec.Struct, frozen=True):
    """A person should look at this."""

    text: str


class LeaseChanged(msgspec.Struct, frozen=True):
    """News: workers have another lease from now on, or will have after a while."""

    lease_ns: int
    next_ns: int
    by: str


class Forwarded(msgspec.Struct, frozen=True):
    """News: a change was asked for through another manager, or something was refused that was passed on."""

    through: str
    """The manager that passed it on."""
    what: str
    asker: Asker | None
    status: int
    subject: str = ""
    """The job, worker, or name of the order."""
    text: str = ""


# Of managers, as the cluster's leader judges them.


class HealthDecided(msgspec.Struct, frozen=True):
    """News: another decision about a manager than before."""

    name: str
    decision: HealthDecisionName
    reason: str
    """Empty of one that is routed."""


class ManagersHeld(msgspec.Struct, frozen=True):
    """News: so many managers fell silent together that none of them is given up yet."""

    names: tuple[str, ...]


ManagerNews: TypeAlias = HealthDecided | ManagersHeld | MemberDoubted


# Of workers.


class WorkerRegistered(msgspec.Struct, frozen=True):
    """News: a life of a worker is heard for the first time."""

    name: str
    boot: int
    cores: int


class WorkerReturned(msgspec.Struct, frozen=True):
    """News: a worker that was given up beats again. What it ran has been given away."""

    name: str
    boot: int


class WorkerLost(msgspec.Struct, frozen=True):
    """News: this life runs nothing any more. Its tasks may be given to others, its cores are released."""

    name: str
    boot: int
    cause: str


class EvictionHeld(msgspec.Struct, frozen=True):
    """News: leases are over, but so many at once that the leader waits a little before it gives anybody up."""

    names: tuple[str, ...]


class NameTaken(msgspec.Struct, frozen=True):
    """News: a worker uses the name of another one that lives. It gets no lease."""

    name: str
    boot: int
    source: str
    holder: str
    """Where the other one is."""


class FleetFull(msgspec.Struct, frozen=True):
    """News: a worker beat, and there is no room for it. It gets no lease."""

    name: str
    limit: int


class WorkerJudged(msgspec.Struct, frozen=True):
    """News: something else than before is so with a worker, or for another reason. Of its registration and its loss
    other news tell."""

    name: str
    what: DecisionName
    reason: str
    since: int
    is_over: bool = False
    """It is so no more."""
    decision: HealthDecisionName = "route"
    """What is made of it all."""


FleetNews: TypeAlias = (
    WorkerJudged | WorkerRegistered | WorkerReturned | WorkerLost | EvictionHeld | NameTaken | FleetFull
)


# Of jobs that clients of this manager watch.


class Updated(msgspec.Struct, frozen=True):
    number: int
    update: JobUpdate


class WatchFailed(msgspec.Struct, frozen=True):
    number: int
    problem: str
    text: str


JobsNews: TypeAlias = (
    TaskLost
    | JobLate
    | AttemptAccepted
    | DocumentWanted
    | JobAcceptedNews
    | OwnerChanged
    | JobEndStored
    | Alarmed
    | LeaseChanged
    | Forwarded
    | FleetNews
    | ManagerNews
    | Updated
    | WatchFailed
)
"""What a manager passes on to its shell."""
JobsEffect: TypeAlias = (
    JobsNews | Send[JobMessage] | KeepWanted | BlobWanted | JobOver | LeadWanted | CallEnded | VoterEffect
)
