"""What this manager leaves undone at its level, and how often it has.

Decision: docs/decisions/0060-what-is-left-undone-under-load.md.
"""

from enum import IntEnum
from typing import Final

from talka.control.clients.overload import Level
from talka.control.clients.request_classes import CLASS_OF, CLASS_OF_MESSAGE, CLASSES, SHED_OF_ALL, RequestClass
from talka.errors import Untrusted
from talka.wire.jobs import JobMessage, Report
from talka.wire.security.access import Asker
from talka.wire.shards import Armed, Refused, Totals, decode_unread
from talka.wire.tasks import TaskProgress


class Backpressure(IntEnum):
    """What workers are asked to bear."""

    NONE = 0
    THROTTLE = 1
    """They report less often."""
    REJECT = 2
    """What they report is refused: as counts are cumulative, the next report that is taken brings all of it."""


BACKPRESSURE: Final[dict[Level, Backpressure]] = {
    Level.NORMAL: Backpressure.NONE,
    Level.BUSY: Backpressure.THROTTLE,
    Level.STRESSED: Backpressure.THROTTLE,
    Level.OVERLOADED: Backpressure.REJECT,
}
REPORT_LEAST_MS: Final = 50
REPORT_MOST_MS: Final = 1000
REPORT_MS: Final[dict[Level, int]] = {
    Level.NORMAL: REPORT_LEAST_MS,
    Level.BUSY: 200,
    Level.STRESSED: 500,
    Level.OVERLOADED: REPORT_MOST_MS,
}


def report_interval_ms(level: Level, workers: int) -> int:
    """How often each of so many workers should report: at most a thousand reports a second in all, fewer under load."""
    return min(REPORT_MOST_MS, max(REPORT_MS[level], workers))


class Shedding:
    """Set `level` whenever it changes. Ask `sheds` for what a client wants, `sheds_call` for what another manager
    passes on, and `refuses` for what a node tells: all that is refused is counted."""

    def __init__(self) -> None:
        self.level = Level.NORMAL
        self.shed: dict[str, int] = {}
        """Requests of clients, by class."""
        self.statistics_refused = 0

    @property
    def backpressure(self) -> Backpressure:
        return BACKPRESSURE[self.level]

    def sheds(self, operation: str, *, is_counted: bool) -> bool:
        """`is_counted` is False of the one user of a machine, where no tokens are used."""
        # A kind of job may bring a rate of its own for its submissions.
        kind = CLASS_OF.get(operation, RequestClass.SUBMISSIONS)
        if not self._is_shed(kind) or not (is_counted or kind in SHED_OF_ALL):
            return False
        self.shed[kind] = self.shed.get(kind, 0) + 1
        return True

    def sheds_call(self, asker: Asker | None) -> bool:
        """What is asked again and again for somebody who watches is not asked for more than it was: a watch is refused
        when it begins."""
        if asker is None or asker.operation == "watch" or asker.operation not in CLASS_OF:
            return False
        return self.sheds(asker.operation, is_counted=bool(asker.name or asker.token))

    def refuses(self, message: JobMessage) -> bool:
        """Whatever is no statistics is taken at every level."""
        if self.backpressure is not Backpressure.REJECT:
            return False
        if not self._is_shed(CLASS_OF_MESSAGE.get(type(message), RequestClass.VITAL)):
            return False
        if _is_awaited(message):
            return False
        self.statistics_refused += 1
        return True

    def _is_shed(self, kind: RequestClass) -> bool:
        shed_from = CLASSES[kind].shed_from
        return shed_from is not None and self.level >= shed_from


def _is_awaited(message: JobMessage) -> bool:
    """Something in it is no statistics: an answer to it is waited for."""
    if isinstance(message, TaskProgress):
        return bool(message.more_time)
    return isinstance(message, Report) and _is_milestone(message)


def _is_milestone(report: Report) -> bool:
    """Without it the job does not go on, or is ended before its time, or loses what it has saved before that."""
    try:
        last = decode_unread(report.contents[-1])
    except Untrusted:
        return False
    return isinstance(last, Armed | Refused) or (isinstance(last, Totals) and bool(last.asked or last.provided))
