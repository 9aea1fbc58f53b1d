"""How much time an attempt gets: whoever keeps its job decides, and keeps that with the attempt, so that another life
of the manager goes on from there. Whoever runs it says how long it has run: no clock is compared with another.

Decision: docs/decisions/0059-more-time-for-tasks.md.
"""

from typing import Final

import msgspec

from talka.units import MILLISECOND
from talka.wire.tasks import MoreTime, TimeAnswer
from talka.work.deadlines import Deadline, DeadlineRecord, DeadlineTerms, Denied, Granted, OnTimeout

LAST_FACTOR: Final = 10
"""An attempt that is only notified ends after so many times its timeout."""


class KeptTime(msgspec.Struct, frozen=True):
    """What outlives a manager: the deadline, and what was asked last with its answer."""

    record: DeadlineRecord
    number: int
    granted_ms: int = 0
    left: int = 0
    why: str = ""

    def answer(self, fence: int) -> TimeAnswer:
        return TimeAnswer(fence, self.number, self.granted_ms, self.left, self.why)


_decoder: Final = msgspec.json.Decoder(KeptTime)


def encoded(kept: KeptTime) -> bytes:
    """As a store has it."""
    return msgspec.json.encode(kept)


def decoded_time(content: bytes) -> KeptTime:
    return _decoder.decode(content)


def terms_of(limit_ns: int, on_timeout: OnTimeout) -> DeadlineTerms:
    """`limit_ns`: the timeout of an attempt."""
    return DeadlineTerms(base_ns=limit_ns, on_timeout=on_timeout, last_ns=(LAST_FACTOR - 1) * limit_ns)


def decided(kept: KeptTime | None, asked: MoreTime, limit_ns: int, on_timeout: OnTimeout) -> KeptTime:
    """What an attempt is answered that asks for more time. `limit_ns`: its timeout."""
    terms, ran_ns = terms_of(limit_ns, on_timeout), asked.ran_ms * MILLISECOND
    deadline = Deadline(limit_ns, terms) if kept is None else Deadline.restored(kept.record, 0, terms)
    if asked.is_warned:
        deadline.is_warned = True
        return KeptTime(deadline.record(), asked.number)
    match deadline.ask(ran_ns, asked.done, asked.reason, estimate_ns=asked.estimate_ms * MILLISECOND):
        case Granted(ns, left):
            return KeptTime(deadline.record(), asked.number, ns // MILLISECOND, left)
        case Denied(why, left):  # pragma: no branch - the type checker sees that no answer is left
            return KeptTime(deadline.record(), asked.number, 0, left, why)
