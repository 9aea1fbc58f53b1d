"""The windows of an attempt, merged over its cores: each goes out once, and all are kept for whoever asks again."""

from collections.abc import Iterator
from itertools import chain
from typing import Final

from talka.stats.windows import COUNTERS_PER_REPORT, SPANS, Window
from talka.wire.shards import WINDOWS_PER_REPORT

LAG_LIMIT: Final = SPANS[0][1]
"""Windows by which a core may be behind the others before they are no longer held back for it."""
WIDEST: Final = SPANS[-1][0]


class ShardWindows:
    """Those of the last minute one by one, older ones merged as the timeline shows them.

    A merged window has the index of the first it is made of. Spans are merged when all of their windows were
    acknowledged or none was sent: a receiver never gets a part of a span twice.
    """

    __slots__ = ("_acknowledged", "_from", "_levels", "_newest", "_ready", "_sent")

    def __init__(self) -> None:
        self._levels: tuple[dict[int, Window], ...] = tuple({} for _ in SPANS)
        self._from = [0 for _ in SPANS]
        """The first index each level holds; a multiple of the next level's width."""
        self._newest = -1
        self._ready = self._sent = self._acknowledged = -1

    @property
    def has_more(self) -> bool:
        """Whether a window waits that was not sent."""
        return self._sent < self._ready

    def add(self, window: Window) -> None:
        """Of one core; it may come in any order."""
        index = window.index
        if self._newest < 0:
            base = max(0, index - LAG_LIMIT) // WIDEST * WIDEST
            self._from = [base for _ in SPANS]
            self._ready = self._sent = self._acknowledged = base - 1
        self._newest = max(self._newest, index)
        for level in range(len(SPANS)):
            if index >= self._from[level]:
                self._put(level, window)
                return

    def advance(self, frontier: int | None) -> None:
        """Every core has told all up to `frontier`; None: all there will ever be."""
        ready = self._newest if frontier is None else min(frontier, self._newest)
        self._ready = max(self._ready, ready, self._newest - LAG_LIMIT)
        self._age()

    def take(self) -> list[Window]:
        """What a report carries: the oldest that are not acknowledged."""
        taken: list[Window] = []
        counters = 0
        for window in self._waiting():
            counters += window.counters
            if taken and (counters > COUNTERS_PER_REPORT or len(taken) == WINDOWS_PER_REPORT):
                break
            taken.append(window)
        if taken:
            self._sent = max(self._sent, taken[-1].index)
        elif self._acknowledged < self._ready:
            self._acknowledged = self._sent = self._ready  # nothing ran in between
        return taken

    def acknowledge(self, index: int) -> None:
        """Everything up to this one has arrived."""
        self._acknowledged = max(self._acknowledged, index)

    def reset(self) -> None:
        """Somebody else receives now, and has nothing."""
        self._sent = self._acknowledged = self._from[-1] - 1

    def all(self) -> list[Window]:
        """Oldest first."""
        return [spans[first] for spans in reversed(self._levels) for first in sorted(spans)]

    def _waiting(self) -> Iterator[Window]:
        after, ready, single = self._acknowledged, self._ready, self._levels[0]
        if after + 1 >= self._from[0]:
            return (single[index] for index in range(after + 1, ready + 1) if index in single)
        older = (spans[first] for spans in reversed(self._levels[1:]) for first in sorted(spans) if first > after)
        return chain(older, (single[index] for index in sorted(single) if after < index <= ready))

    def _age(self) -> None:
        for level, (width, kept) in enumerate(SPANS):
            wider = SPANS[min(level + 1, len(SPANS) - 1)][0]
            while self._ready - self._from[level] >= kept * width + wider - 1:
                end = self._from[level] + wider
                if self._from[level] <= self._sent and self._acknowledged < end - 1:
                    if self._ready - end < 2 * kept * width:
                        break
                    # Nobody has acknowledged it for as long again: it goes on in the result alone.
                    self._acknowledged = end - 1
                    self._sent = max(self._sent, end - 1)
                self._merge(level, end)

    def _merge(self, level: int, end: int) -> None:
        """Everything of the level below `end` goes to the next, and from the last one away."""
        spans = self._levels[level]
        self._from[level] = end
        for first in [first for first in spans if first < end]:
            old = spans.pop(first)
            if level + 1 < len(SPANS):
                self._put(level + 1, old)

    def _put(self, level: int, window: Window) -> None:
        width = SPANS[level][0]
        first = window.index // width * width
        into = self._levels[level].setdefault(first, Window(first))
        into.add(window)
        into.vus = into.vus + window.vus if width == 1 else max(into.vus, window.vus)
