"""What the manager that leads a job wants stored, and what waits until it is.

One checkpoint at a time is on its way to the leader; what changes meanwhile goes with the next. Nothing that was held is
done before a majority has the checkpoint on disk in which it was decided.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from talka.cluster.effects import Lane
from talka.control.member.speech import Speak
from talka.wire.jobs import CheckpointStored, Fence, StoreCheckpoint
from talka.work.lifecycle import JobState

SECOND: Final = 1_000_000_000
AGAIN_NS: Final = SECOND // 2

Held: TypeAlias = Callable[[int], list[object]]


class Checkpoints:
    def __init__(self, job: str, fence: Fence, life: int, *, is_needed: bool = True) -> None:
        """`life`: the boot of this manager. Not `is_needed`: nothing waits for anything."""
        self._job = job
        self._fence = fence
        self._life = life
        self._is_needed = is_needed
        self._revision = 0
        self._stored = 0
        self._sent = 0
        self._sent_at = 0
        self._content = b""
        self._final: StoreCheckpoint | None = None
        self._held: list[tuple[int, Held]] = []
        """What waits for a checkpoint to be on disk; bounded by the attempts."""

    @property
    def is_closing(self) -> bool:
        return self._final is not None

    @property
    def is_closed(self) -> bool:
        """Whether the end of the job is stored."""
        return self._final is not None and self._stored >= self._final.revision

    @property
    def is_under_way(self) -> bool:
        return self._sent > self._stored

    @property
    def has_untold(self) -> bool:
        """Whether something waits to be said, and nothing is under way."""
        return not self.is_under_way and (not self._content or self._revision > self._stored)

    def touch(self) -> None:
        """Something is to be told that the checkpoint's content does not show."""
        self._content = b""

    def hold(self, now: int, then: Held) -> list[object]:
        """Do this once everything decided so far is stored."""
        if not self._is_needed:
            return then(now)
        self._held.append((self._revision + 1, then))
        self.touch()  # what waits is worth a revision of its own
        return []

    def drop(self) -> None:
        self._held.clear()

    def say(self, now: int, content: bytes, state: JobState, unfit: tuple[str, ...]) -> list[object]:
        """Tell the leader, if this is news. Not while a checkpoint is under way."""
        if content != self._content:
            self._content = content
            self._revision += 1
        if self._revision <= self._stored:
            return []
        checkpoint = StoreCheckpoint(
            self._job, self._fence, self._revision, state, content, unfit=unfit, life=self._life
        )
        return self._send(now, checkpoint)

    def close(self, now: int, state: JobState, reason: str, result: str, exit_code: int) -> list[object]:
        """The last checkpoint: the job has ended, and nothing of it need survive but this."""
        self._revision += 1
        self._final = StoreCheckpoint(
            self._job,
            self._fence,
            self._revision,
            state,
            b"",
            reason=reason,
            result=result,
            exit_code=exit_code,
            life=self._life,
        )
        return self._send(now, self._final)

    def _send(self, now: int, checkpoint: StoreCheckpoint) -> list[object]:
        self._sent, self._sent_at = checkpoint.revision, now
        return [Speak("", checkpoint, Lane.CONTROL)]

    def say_again(self, now: int) -> list[object]:
        """A checkpoint that was not answered: the last one as it is, another is made anew by whoever knows more."""
        if not self.is_under_way or now - self._sent_at < AGAIN_NS:
            return []
        if self._final is not None:
            return self._send(now, self._final)
        self._sent = self._stored
        return []

    def ask(self) -> Speak:
        """Who leads the job? Revision 0 is never written; the answer says it."""
        return Speak("", StoreCheckpoint(self._job, self._fence, 0, "", b"", life=self._life), Lane.CONTROL)

    def is_mine(self, message: CheckpointStored) -> bool:
        return message.fence == self._fence and message.life == self._life

    def on_stored(self, now: int, revision: int) -> list[object]:
        """What was held and may be done now."""
        self._stored = max(self._stored, revision)
        effects: list[object] = []
        while self._held and self._held[0][0] <= self._stored:
            _, then = self._held.pop(0)
            effects += then(now)
        return effects
