"""What the manager that leads a job wants on record, and what waits until it is.

One account at a time is on its way to the leader; what changes meanwhile goes with the next. Nothing that was held is
done before a majority has the account on disk in which it was decided.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from talka.cluster.effects import Lane, Send
from talka.units import SECOND
from talka.wire.jobs import CHANNEL, Account, Accounted, Fence, JobMessage
from talka.work.lifecycle import JobState

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
        self._recorded = 0
        self._sent = 0
        self._sent_at = 0
        self._content = b""
        self._final: Account | None = None
        self._held: list[tuple[int, Held]] = []
        """What waits for an account to be on disk; bounded by the attempts."""

    @property
    def is_closing(self) -> bool:
        return self._final is not None

    @property
    def is_closed(self) -> bool:
        """Whether the end of the job is on record."""
        return self._final is not None and self._recorded >= self._final.revision

    @property
    def is_under_way(self) -> bool:
        return self._sent > self._recorded

    @property
    def has_untold(self) -> bool:
        """Whether something waits to be said, and nothing is under way."""
        return not self.is_under_way and (not self._content or self._revision > self._recorded)

    def touch(self) -> None:
        """Something is to be told that the account's content does not show."""
        self._content = b""

    def hold(self, now: int, then: Held) -> list[object]:
        """Do this once everything decided so far is on record."""
        if not self._is_needed:
            return then(now)
        self._held.append((self._revision + 1, then))
        self.touch()  # what waits is worth a revision of its own
        return []

    def drop(self) -> None:
        self._held.clear()

    def say(self, now: int, content: bytes, state: JobState, unfit: tuple[str, ...]) -> list[object]:
        """Tell the leader, if this is news. Not while an account is under way."""
        if content != self._content:
            self._content = content
            self._revision += 1
        if self._revision <= self._recorded:
            return []
        account = Account(self._job, self._fence, self._revision, state, content, unfit=unfit, life=self._life)
        return self._send(now, account)

    def close(self, now: int, state: JobState, reason: str, result: str, exit_code: int) -> list[object]:
        """The last account: the job has ended, and nothing of it need survive but this."""
        self._revision += 1
        self._final = Account(
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

    def _send(self, now: int, account: Account) -> list[object]:
        self._sent, self._sent_at = account.revision, now
        return [Send(CHANNEL, "", account, Lane.CONTROL)]

    def say_again(self, now: int) -> list[object]:
        """An account that was not answered: the last one as it is, another is made anew by whoever knows more."""
        if not self.is_under_way or now - self._sent_at < AGAIN_NS:
            return []
        if self._final is not None:
            return self._send(now, self._final)
        self._sent = self._recorded
        return []

    def ask(self) -> Send[JobMessage]:
        """Who leads the job? Revision 0 is never written; the answer says it."""
        return Send(CHANNEL, "", Account(self._job, self._fence, 0, "", b"", life=self._life), Lane.CONTROL)

    def is_mine(self, message: Accounted) -> bool:
        return message.fence == self._fence and message.life == self._life

    def on_recorded(self, now: int, revision: int) -> list[object]:
        """What was held and may be done now."""
        self._recorded = max(self._recorded, revision)
        effects: list[object] = []
        while self._held and self._held[0][0] <= self._recorded:
            _, then = self._held.pop(0)
            effects += then(now)
        return effects
