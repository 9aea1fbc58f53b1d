"""What a test prints: lines of an attempt's cores on its worker, and of a job's workers at the manager that leads it.

They are shown to whoever follows the job. They are no result: rings are bounded, and what is shed on the way is not
sent again; numbers tell that something is missing.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from talka.units import SECOND
from talka.wire.jobs import LINE_CHARACTERS_LIMIT, LINES_LIMIT, LogLines
from talka.wire.views import LogLine

KEPT_OF_AN_ATTEMPT: Final = 200
KEPT_OF_A_JOB: Final = 500
TOLD_FOR_NS: Final = 5 * SECOND
"""So long a line is in every update: some of them are lost or overtaken."""
SOURCES_LIMIT: Final = 4096


class ShardLines:
    """On the worker: `add` what cores print, `take` what was not told yet."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=KEPT_OF_AN_ATTEMPT)
        self._count = 0
        self._told = 0

    @property
    def has_news(self) -> bool:
        return self._told < self._count

    def add(self, lines: Sequence[str]) -> None:
        self._count += len(lines)
        # What would be pushed out again is not even cut to its length.
        self._lines.extend(text[:LINE_CHARACTERS_LIMIT] for text in lines[-KEPT_OF_AN_ATTEMPT:])

    def take(self) -> tuple[int, tuple[str, ...]]:
        """The number of the first line, and as many lines as fit one message."""
        first = max(self._told, self._count - len(self._lines))
        offset = first - (self._count - len(self._lines))
        lines = tuple(self._lines)[offset : offset + LINES_LIMIT]
        self._told = first + len(lines)
        return first, lines

    def reset(self) -> None:
        """A new manager leads: it has none of them."""
        self._told = 0


class JobLines:
    """At the manager that leads the job: the newest lines of all its workers, in the order in which they came."""

    def __init__(self) -> None:
        self._lines: deque[tuple[int, LogLine]] = deque(maxlen=KEPT_OF_A_JOB)
        self._count = 0
        self._next: dict[tuple[str, int], int] = {}
        """Number of the line that comes next, by worker and attempt."""

    def add(self, now: int, worker: str, message: LogLines) -> None:
        key = (worker, message.attempt)
        known = self._next.pop(key, 0)
        if len(self._next) >= SOURCES_LIMIT:
            del self._next[next(iter(self._next))]
        self._next[key] = max(known, message.first + len(message.lines))
        for text in message.lines[max(0, known - message.first) :]:
            self._count += 1
            self._lines.append((now, LogLine(self._count, worker, text)))

    def all(self) -> list[LogLine]:
        return [line for _, line in self._lines]

    def recent(self, now: int) -> list[LogLine]:
        """Those that whoever listens may not have been told yet."""
        return [line for heard_at, line in self._lines if now - heard_at <= TOLD_FOR_NS]


def news_in(lines: Sequence[LogLine], after: int) -> tuple[list[LogLine], int]:
    """The lines above a number, and how many between it and them nobody told of."""
    news = [line for line in lines if line.number > after]
    return news, news[0].number - after - 1 if news and after else 0
