"""The checkpoints of a job on their way to the cluster's leader, and what waits until a majority has one on disk.

One checkpoint at a time is on its way; what changes meanwhile goes with the next. Nothing that was held is done before
a majority has the checkpoint on disk in which it was decided. See docs/decisions/0018-who-may-act-on-a-job.md.
"""

from typing import Final, TypeAlias

import msgspec

from talka.cluster.effects import Lane, Send
from talka.units import SECOND
from talka.wire.jobs import (
    CHANNEL,
    AttemptResult,
    CheckpointStored,
    CoresBack,
    Fence,
    JobMessage,
    SpareCores,
    StoreCheckpoint,
)
from talka.wire.shards import Go, ShardAnswer, Stop, TimeOver
from talka.work.lifecycle import JobState

AGAIN_NS: Final = SECOND // 2
EVERY_NS: Final = SECOND
"""How often a checkpoint is made where nothing asks for one: time alone changes little that must survive."""
UNTOLD_NS: Final = 5 * SECOND
"""Without a word from the leader, which speaks once a second, it is asked whether this manager still leads the job."""


class AssignAttempt(msgspec.Struct, frozen=True):
    """Give this attempt to its worker, once the checkpoint names it."""

    attempt: int


class StartAttempt(msgspec.Struct, frozen=True):
    """Tell this attempt when to start, once the checkpoint says that it starts: load that ran must not be unknown to
    the next manager."""

    attempt: int
    go: Go


class TellAttempt(msgspec.Struct, frozen=True):
    """Tell this attempt that it has more time or none, or to stop for that, once the checkpoint says so: the next
    manager must neither take back what was given, nor give it twice, nor take what was stopped for done."""

    attempt: int
    told: ShardAnswer | TimeOver | Stop


class CountResult(msgspec.Struct, frozen=True):
    """Count this result, once the checkpoint names it."""

    digest: str
    result: AttemptResult


Held: TypeAlias = AssignAttempt | StartAttempt | TellAttempt | CountResult
"""What is done once a checkpoint is stored."""


class Checkpoints:
    def __init__(self, job: str, fence: Fence, life: int) -> None:
        """`life`: the boot of this manager."""
        self._job = job
        self._fence = fence
        self._life = life
        self._revision = 0
        """Of the latest checkpoint that was made."""
        self._stored = 0
        """The highest revision on a majority of disks."""
        self._sent = 0
        """The highest revision that the leader was told."""
        self._sent_at = 0
        self._content = b""
        self._final: StoreCheckpoint | None = None
        self._held: list[tuple[int, Held]] = []
        """What waits, with the revision it waits for; bounded by the attempts."""
        self._is_dropped = False
        self._due_at = 0
        self._heard_at = 0
        """When the leader last said that this manager leads the job."""

    @property
    def is_closing(self) -> bool:
        return self._final is not None

    @property
    def is_closed(self) -> bool:
        """Whether the end of the job is stored."""
        return self._final is not None and self._stored >= self._final.revision

    @property
    def is_over(self) -> bool:
        """Whether this manager has nothing more to store: the end of the job is stored, or another manager leads it."""
        return self._is_dropped or self.is_closed

    @property
    def is_under_way(self) -> bool:
        return self._sent > self._stored

    def is_due(self, now: int) -> bool:
        """Whether to make a checkpoint: something waits to be told, or enough time has passed."""
        has_untold = not self.is_under_way and (not self._content or self._revision > self._stored)
        if now < self._due_at and not has_untold:
            return False
        self._due_at = now + EVERY_NS
        return True

    def touch(self) -> None:
        """Something is to be told that the checkpoint's content does not show."""
        self._content = b""

    def hold(self, what: Held) -> list[Held]:
        """Keep this until everything decided so far is stored. Answers with what may be done at once."""
        self._held.append((self._revision + 1, what))
        self.touch()  # what waits is worth a revision of its own
        return []

    def drop(self) -> None:
        """Another manager leads the job."""
        self._is_dropped = True
        self._held.clear()

    def say(
        self,
        now: int,
        content: bytes,
        state: JobState,
        unfit: tuple[str, ...],
        spare: tuple[SpareCores, ...] = (),
        back: tuple[CoresBack, ...] = (),
        reason: str = "",
        resumes: int = 0,
    ) -> list[Send[JobMessage]]:
        """Tell the leader, if the content is news. Not while a checkpoint is under way."""
        if content != self._content:
            self._content = content
            self._revision += 1
        if self._revision <= self._stored:
            return []
        return self._send(
            now,
            StoreCheckpoint(
                self._job,
                self._fence,
                self._revision,
                state,
                content,
                unfit=unfit,
                life=self._life,
                spare=spare,
                back=back,
                reason=reason,
                resumes=resumes,
            ),
        )

    def close(self, now: int, end: StoreCheckpoint) -> list[Send[JobMessage]]:
        """The last checkpoint: the job has ended, and nothing of it need survive but this."""
        self._revision += 1
        self._final = msgspec.structs.replace(end, revision=self._revision)
        return self._send(now, self._final)

    def _send(self, now: int, checkpoint: StoreCheckpoint) -> list[Send[JobMessage]]:
        self._sent, self._sent_at = checkpoint.revision, now
        return [Send(CHANNEL, "", checkpoint, Lane.CONTROL)]

    def say_again(self, now: int) -> list[Send[JobMessage]]:
        """A checkpoint that was not answered: the last one as it is, another is made anew by whoever knows more."""
        if not self.is_under_way or now - self._sent_at < AGAIN_NS:
            return []
        if self._final is not None:
            return self._send(now, self._final)
        self._sent = self._stored
        return []

    def heard_leader(self, now: int) -> None:
        """The leader says that this manager leads the job."""
        self._heard_at = now

    def ask_leader(self, now: int) -> list[Send[JobMessage]]:
        """Ask who leads the job, after a long silence: nobody tells a manager that was replaced while it was cut off.
        Revision 0 is never written; the answer says who leads."""
        self._heard_at = self._heard_at or now
        if now - self._heard_at < UNTOLD_NS:
            return []
        self._heard_at = now
        return [Send(CHANNEL, "", StoreCheckpoint(self._job, self._fence, 0, "", b"", life=self._life), Lane.CONTROL)]

    def is_mine(self, message: CheckpointStored) -> bool:
        return message.fence == self._fence and message.life == self._life

    def on_stored(self, revision: int) -> list[Held]:
        """What was held and may be done now, in the order in which it was decided."""
        self._stored = max(self._stored, revision)
        done = [what for waits_for, what in self._held if waits_for <= self._stored]
        self._held = self._held[len(done) :]  # revisions grow
        return done
