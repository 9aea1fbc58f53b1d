"""More time for a shard: what its users ask for, on its way with the next report, and what they are answered.

Decision: docs/decisions/0058-more-time-is-asked-for.md.
"""

import asyncio
from collections.abc import Generator
from typing import Any, Final

from talka.errors import sendable
from talka.wire.shards import ShardAnswer, TimeAsked
from talka.work.deadlines import REASON_LIMIT, Allowance
from talka.work.durations import parse_duration

ANSWER_WAIT_S: Final = 15.0
"""An owner of an earlier version never answers, and one that is replaced does so late."""


class Asking:
    """The answer to an ask for more time, for whoever awaits it; nobody has to."""

    def __init__(self, answer: asyncio.Future[Allowance]) -> None:
        self._answer = answer

    def __await__(self) -> Generator[Any, None, Allowance]:
        # Several users may wait for one answer: one that is cancelled takes it from nobody.
        return asyncio.shield(self._answer).__await__()


class TimeAsks:
    """At most one ask is under way: users that ask meanwhile get the same answer."""

    def __init__(self, *, wait_s: float = ANSWER_WAIT_S) -> None:
        self.asked: TimeAsked | None = None
        """What the next report asks."""
        self._wait_s = wait_s
        self._number = 0
        self._answer: asyncio.Future[Allowance] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, estimate: str | float, reason: str = "") -> Asking:
        estimate_ns = parse_duration(estimate, what="extend")
        if self._answer is None:
            loop = asyncio.get_running_loop()
            self._number += 1
            self.asked = TimeAsked(self._number, estimate_ns, sendable(str(reason), REASON_LIMIT))
            self._answer = loop.create_future()
            nobody = Allowance(why_not=f"nobody answered within {self._wait_s:g} s")
            self._timer = loop.call_later(self._wait_s, self._settle, nobody)
        return Asking(self._answer)

    def answered(self, message: ShardAnswer) -> None:
        if self.asked is not None and message.number == self.asked.number:
            self._settle(message.answer)

    def close(self) -> None:
        self._settle(Allowance(why_not="the shard has ended"))

    def _settle(self, answer: Allowance) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)
        self.asked = self._answer = self._timer = None
