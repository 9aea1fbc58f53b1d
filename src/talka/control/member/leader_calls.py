"""Questions of this node to the cluster's leader: asked again until they are answered, or it takes too long."""

from random import Random
from typing import Final, TypeAlias

import msgspec

from talka.cluster.effects import Lane, Send
from talka.units import NEVER, SECOND
from talka.wire.jobs import CHANNEL, JobMessage
from talka.wire.manager_calls import CALLED_BY, CallAnswer, LeaderAnswer, LeaderCall, ManagerCall
from talka.wire.security.access import Asker, own

AGAIN_NS: Final = SECOND
ELSEWHERE_NS: Final = SECOND // 5
LIMIT_NS: Final = 20 * SECOND
OPEN_LIMIT: Final = 4096


class CallEnded(msgspec.Struct, frozen=True):
    number: int
    problem: str
    """As in `CallAnswer`; empty when it was answered."""
    answer: LeaderAnswer | None = None
    text: str = ""
    """The problem as a sentence."""
    retry_after_ms: int = 0


CallEffect: TypeAlias = Send[JobMessage] | CallEnded


class _Open(msgspec.Struct):
    call: ManagerCall
    ends_at: int
    again_at: int


class LeaderCalls:
    def __init__(self, rng: Random) -> None:
        self._number = rng.getrandbits(40)
        self._open: dict[int, _Open] = {}
        self.next_tick_at = NEVER

    def ask(self, now: int, call: LeaderCall, leader: str, asker: Asker | None = None) -> tuple[int, list[CallEffect]]:
        """`asker`: for whom; without one this manager asks for itself."""
        self._number += 1
        number = self._number
        if len(self._open) >= OPEN_LIMIT:
            return number, [
                CallEnded(number, "busy", text="this manager has too many questions open", retry_after_ms=1000)
            ]
        said = ManagerCall(number, call, asker or own(CALLED_BY[type(call)][0]))
        again_at = now + (AGAIN_NS if leader else ELSEWHERE_NS)
        self._open[number] = _Open(said, now + LIMIT_NS, again_at)
        self.next_tick_at = min(self.next_tick_at, again_at)
        return number, [Send(CHANNEL, leader, said, Lane.RESULTS)] if leader else []

    def on_answer(self, now: int, answer: CallAnswer) -> list[CallEffect]:
        asked = self._open.get(answer.number)
        if asked is None:
            return []
        if answer.problem == "elsewhere":
            asked.again_at = now + ELSEWHERE_NS
            self.next_tick_at = min(self.next_tick_at, asked.again_at)
            return []
        del self._open[answer.number]
        if not self._open:  # else a tick that comes early finds the next instant
            self.next_tick_at = NEVER
        return [CallEnded(answer.number, answer.problem, answer.answer, answer.text, answer.retry_after_ms)]

    def tick(self, now: int, leader: str) -> list[CallEffect]:
        effects: list[CallEffect] = []
        for number, asked in list(self._open.items()):
            if now >= asked.ends_at:
                del self._open[number]
                text = "no manager leads the cluster: a majority of managers must be there"
                if leader:
                    text = f"the leader {leader} did not answer within {LIMIT_NS // SECOND} s"
                effects.append(CallEnded(number, "unavailable", text=text))
            elif now >= asked.again_at:
                asked.again_at = now + (AGAIN_NS if leader else ELSEWHERE_NS)
                if leader:
                    effects.append(Send(CHANNEL, leader, asked.call, Lane.RESULTS))
        self.next_tick_at = min((min(one.again_at, one.ends_at) for one in self._open.values()), default=NEVER)
        return effects
