"""What happened when: windows of 100 ms that add up, and a timeline of them that stays small however long a job runs.

A shard records windows and keeps them until they were acknowledged; the timeline merges those of all shards. Recent
time is kept window by window, older time in spans of 10 s, older still in spans of a minute.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from talka.stats.histogram import CoarseHistogram, add_counts

WINDOW_NS: Final = 100_000_000
COUNTERS_PER_REPORT: Final = 60_000
"""Of all histograms of a report's windows: about half a frame, which leaves room for the generator's own."""
UNACKNOWLEDGED_LIMIT: Final = 600
"""A minute of windows. A receiver that acknowledged none for so long has lost the oldest."""
SPANS: Final = ((1, 600), (100, 360), (600, 10_080))
"""(windows in a span, spans kept at least): 100 ms for 60 s, 10 s for an hour, 1 min for a week."""


class StepWindow(msgspec.Struct, array_like=True):
    """What one step did in a window."""

    count: int = 0
    failed: int = 0
    errors: dict[str, int] = {}
    """Failures by kind."""
    response_time: CoarseHistogram = msgspec.field(default_factory=CoarseHistogram)

    def add(self, other: "StepWindow") -> None:
        self.count += other.count
        self.failed += other.failed
        add_counts(self.errors, other.errors)
        self.response_time.merge(other.response_time)


class Window(msgspec.Struct):
    """One slice of time of one shard or of several. `vus` is the most that were active in it."""

    index: int
    started: int = 0
    requests: int = 0
    failed: int = 0
    vus: int = 0
    response_time: CoarseHistogram = msgspec.field(default_factory=CoarseHistogram)
    """Of all steps together."""
    steps: dict[str, StepWindow] = {}
    """Steps that ended in it."""

    @property
    def counters(self) -> int:
        """How many numbers its histograms take: what its size on the wire goes by."""
        return len(self.response_time.counts) + sum(8 + len(step.response_time.counts) for step in self.steps.values())

    def add(self, other: "Window", *, with_steps: bool = True) -> None:
        self.started += other.started
        self.requests += other.requests
        self.failed += other.failed
        self.response_time.merge(other.response_time)
        for name, step in other.steps.items() if with_steps else ():
            self.steps.setdefault(name, StepWindow()).add(step)

    def blurred(self) -> "Window":
        """With coarser histograms, which are a quarter of the work to whoever merges those of many workers."""
        steps = {
            name: msgspec.structs.replace(step, response_time=step.response_time.blurred())
            for name, step in self.steps.items()
        }
        return msgspec.structs.replace(self, response_time=self.response_time.blurred(), steps=steps)


class Span(msgspec.Struct, frozen=True):
    """A stretch of the timeline, as it is shown."""

    start_ns: int
    length_ns: int
    window: Window


class WindowLog:
    """The windows of one shard that its receiver has not acknowledged yet."""

    def __init__(self) -> None:
        self.lost = 0
        self._closed: dict[int, Window] = {}

    def close(self, window: Window) -> None:
        self._closed[window.index] = window
        if len(self._closed) > UNACKNOWLEDGED_LIMIT:
            del self._closed[next(iter(self._closed))]
            self.lost += 1

    def open_windows(self) -> list[Window]:
        return list(self._closed.values())

    def oldest(self, most: int, counters: int) -> list[Window]:
        """As many as a report carries: at most so many with at most so many counters together, but at least one."""
        taken: list[Window] = []
        for window in self._closed.values():
            counters -= window.counters
            if taken and (counters < 0 or len(taken) == most):
                break
            taken.append(window)
        return taken

    def acknowledge(self, windows: Iterable[Window]) -> None:
        for window in windows:
            self._closed.pop(window.index, None)


class Timeline:
    """Windows of all shards, merged. Each shard gives a window once; its receiver sees to that."""

    def __init__(self, *, with_steps: bool = True, kept: Sequence[tuple[int, int]] = SPANS) -> None:
        """A timeline of several workflows has no steps: two of them may have a step of the same name. `kept` says how
        wide spans are and how many of that width there are, the newest first."""
        self._kept = kept
        self._with_steps = with_steps
        self._levels: tuple[dict[int, Window], ...] = tuple({} for _ in kept)
        self._oldest = [0 for _ in kept]
        """The first span each level holds. It starts a span of the next level: no time is told in two widths."""
        self._newest = -1
        self._recent: list[Window] = []

    def add(self, window: Window) -> None:
        if window.index > self._newest:
            self._newest = window.index
            self._age()
        for level, (width, _) in enumerate(self._kept):
            span = window.index // width
            if span >= self._oldest[level]:
                into = self._levels[level].setdefault(span, Window(span))
                into.add(window, with_steps=self._with_steps)
                # Shards of one instant add up; over a longer span the highest count is the telling one.
                into.vus = into.vus + window.vus if width == 1 else max(into.vus, window.vus)
                return

    def _age(self) -> None:
        for level, (width, kept) in enumerate(self._kept):
            wider = self._kept[level + 1][0] if level + 1 < len(self._kept) else width
            oldest = (self._newest // width - kept + 1) * width // wider * wider // width
            if oldest > self._oldest[level]:
                self._oldest[level] = oldest
                self._move_on(level, wider)

    def _move_on(self, level: int, wider: int) -> None:
        """What is too old for the level goes to the next, and from the last one away."""
        spans, width = self._levels[level], self._kept[level][0]
        for index in [index for index in spans if index < self._oldest[level]]:
            old = spans.pop(index)
            if level + 1 < len(self._kept):
                span = index * width // wider
                into = self._levels[level + 1].setdefault(span, Window(span))
                into.add(old)
                into.vus = max(into.vus, old.vus)

    def lay_over(self, recent: Sequence[Window]) -> None:
        """Show these as well, until others take their place: what is known so far of windows that will be added
        later."""
        self._recent = list(recent)

    @property
    def recent(self) -> list[Window]:
        """Those laid over that were not added since; oldest first."""
        return [window for window in self._recent if window.index > self._newest]

    def after(self, index: int) -> list[Window]:
        """What was added of windows after this one, oldest first. Spans have the index of their first window."""
        found: list[Window] = []
        for (width, _), spans, oldest in reversed(list(zip(self._kept, self._levels, self._oldest, strict=True))):
            for span in range(max(index // width + 1, oldest), self._newest // width + 1):
                if span in spans:
                    found.append(msgspec.structs.replace(spans[span], index=span * width))
        return found

    def spans(self) -> list[Span]:
        """Oldest first."""
        added = [
            Span(window.index * width * WINDOW_NS, width * WINDOW_NS, window)
            for (width, _), spans in reversed(list(zip(self._kept, self._levels, strict=True)))
            for window in sorted(spans.values(), key=lambda window: window.index)
        ]
        return added + [Span(window.index * WINDOW_NS, WINDOW_NS, window) for window in self.recent]
