"""What a keeper of tasks says to a worker and hears from it: the port between the two.

A keeper answers with `ToWorker`s and is told beats, messages and losses. A worker's pool of handlers answers with
`ToKeeper`s and is told messages. Neither knows what carries them: a `WorkerLink` does, `frame_link.FrameLink` between
nodes. A link may lose, double and overtake messages, and needs to say nothing of it: results and recalls are told
again, and what was never got is asked for.

Decision: docs/decisions/0041-a-keeper-does-not-know-what-carries-its-words.md.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec

from talka.control.tasks.worker_room import LOAD_JOBS_HAVE_ALL, CoresForTasks
from talka.wire.attempts import ObeyedLife, StoreLife, obeyed_in
from talka.wire.jobs import WorkerFacts
from talka.wire.tasks import KeeperMessage, WorkerMessage


class ToWorker(msgspec.Struct, frozen=True, gc=False):
    """Let a worker hear this. Whether it does is not known."""

    worker: str
    """As its link calls it: a keeper only gives the name back."""
    message: KeeperMessage
    size_bytes: int = 0
    """About, of one that may be large."""


class ToKeeper(msgspec.Struct, frozen=True, gc=False):
    """Let a keeper hear this. Whether it does is not known."""

    keeper: str
    """As its link called whoever commanded: a pool only gives the name back."""
    message: WorkerMessage


class WorkerBeat(msgspec.Struct, frozen=True):
    """A worker lives and may be given work. Its link vouches for both."""

    worker: str
    boot: int
    """Which life of it this is."""
    number: int
    """Beats of this life are counted."""
    facts: WorkerFacts
    free: int
    """Cores on which tasks may begin."""
    state: str
    """Healthy, degraded or draining, as it is seen from here."""
    epoch: int
    """The highest that it has obeyed in partition 0; 0: none."""
    of: StoreLife
    """Whose that was."""
    names: bool = True
    """It tells whose attempts are that it tells of; one that does not is given none."""
    others: tuple[ObeyedLife, ...] = ()
    """What it has obeyed in other partitions."""
    why_none: str = LOAD_JOBS_HAVE_ALL
    """Why no core is free, where none is."""

    @property
    def cores(self) -> CoresForTasks:
        return CoresForTasks(self.worker, self.free, self.why_none)

    def obeyed(self, partition: int) -> ObeyedLife:
        """Whom it obeys there, as it was when it beat."""
        return obeyed_in(partition, ObeyedLife(self.epoch, self.of), self.others)


Carried_co = TypeVar("Carried_co", covariant=True)
Effect_co = TypeVar("Effect_co", covariant=True)


class WorkerLink(Protocol[Carried_co]):
    """What carries both directions. What it answers is for whoever called it: an effect, or nothing where it was done
    at once."""

    def to_worker(self, said: ToWorker) -> Carried_co: ...

    def to_keeper(self, said: ToKeeper) -> Carried_co: ...


class KeeperEnd(Protocol[Effect_co]):
    """What a link tells a keeper."""

    def on_beat(self, now: int, beat: WorkerBeat) -> Sequence[Effect_co]: ...

    def on_message(self, now: int, worker: str, message: WorkerMessage) -> Sequence[Effect_co]: ...

    def on_worker_lost(self, now: int, worker: str, boot: int, cause: str) -> Sequence[Effect_co]:
        """This life of it runs nothing any more: its link has made sure of that."""
        ...


class WorkerEnd(Protocol[Effect_co]):
    """What a link tells a worker's pool."""

    def on_message(self, now: int, keeper: str, message: KeeperMessage) -> Sequence[Effect_co]: ...
