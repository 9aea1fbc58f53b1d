"""What workers were told of each attempt of a job: said again until it is answered, and asked after when all is silent."""

from typing import Final

import msgspec

from talka.cluster.effects import Lane, Send
from talka.units import SECOND
from talka.wire.jobs import CHANNEL, Fence, Halt, JobMessage

AGAIN_NS: Final = SECOND
"""After which a command that nobody answered is given again."""
SILENCE_NS: Final = 3 * SECOND
"""Without a word from a running task its worker is asked whether it still has it."""


class _Command(msgspec.Struct):
    to: str
    message: JobMessage
    again_at: int
    lane: Lane = Lane.STREAM


class Commands:
    """Bounded by the attempts under way: whoever gives a command drops it when the attempt is over."""

    def __init__(self, job: str, fence: Fence) -> None:
        self._job = job
        self._fence = fence
        self._open: dict[int, _Command] = {}
        self._heard: dict[int, int] = {}

    def give(self, now: int, attempt: int, to: str, message: JobMessage, lane: Lane = Lane.STREAM) -> Send[JobMessage]:
        self._open[attempt] = _Command(to, message, now + AGAIN_NS, lane)
        return Send(CHANNEL, to, message, lane)

    def kill(self, attempt: int, worker: str) -> Send[JobMessage]:
        """Said once: a worker that did not hear it is told by the leader that nobody waits for the job."""
        command = self._open.get(attempt)
        if command is None or command.to == worker:
            self.drop(attempt)
            self._heard.pop(attempt, None)
        return Send(CHANNEL, worker, Halt(self._job, self._fence, attempt, "kill"), Lane.RESULTS)

    def pending(self, attempt: int) -> JobMessage | None:
        """What has not been answered."""
        command = self._open.get(attempt)
        return None if command is None else command.message

    def drop(self, attempt: int) -> None:
        self._open.pop(attempt, None)

    def heard(self, now: int, attempt: int) -> None:
        self._heard[attempt] = now

    def is_silent(self, now: int, attempt: int) -> bool:
        """Whether it is time to ask after an attempt; then not again before a while."""
        if attempt in self._open or now - self._heard.setdefault(attempt, now) < SILENCE_NS:
            return False
        self._heard[attempt] = now - SILENCE_NS + AGAIN_NS
        return True

    def again(self, now: int) -> list[object]:
        effects: list[object] = []
        for command in self._open.values():
            if now >= command.again_at:
                command.again_at = now + AGAIN_NS
                effects.append(Send(CHANNEL, command.to, command.message, command.lane))
        return effects
