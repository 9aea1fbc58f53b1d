"""What a worker tells of its attempts at tasks of a partition: results until they are taken, and what runs tells of
itself.

Each partition has an outbox with its part of what may be held, so that one whose keeper is silent fills no other.

See docs/decisions/0022-who-runs-a-task.md and 0040-partitions-of-jobs.md.
"""

from collections import deque
from collections.abc import Container, Iterable, Sequence
from typing import Final, TypeAlias

import msgspec

from talka.control.tasks.parts import in_parts
from talka.control.tasks.worker_link import ToKeeper
from talka.control.worker.handlers_attempt import HandlerAttempt
from talka.units import NEVER, SECOND
from talka.wire.attempts import NOWHERE
from talka.wire.output_tail import Wrote, tails_bytes
from talka.wire.tasks import (
    BATCH_LIMIT_BYTES,
    TASKS_LIMIT,
    Done,
    HandlerProgress,
    MoreTime,
    Said,
    TaskLine,
    TaskProgress,
    TaskResult,
)

RESULT_BYTES: Final = 256
"""What a result takes beside its output and its error."""
AGAIN_NS: Final = SECOND
"""After so long a result that was not taken is told again; the latest progress is told a second time."""
FLUSH_NS: Final = SECOND // 10
LINES_OF_TASK_LIMIT: Final = 1000
"""Between two flushes."""
LINES_LIMIT: Final = 8192
"""Of all tasks, between two flushes."""
PROGRESS_LIMIT_BYTES: Final = 256 * 1024
"""Of one."""
WORD_BYTES: Final = 32
"""What a line or a progress takes beside its text."""


WROTE_NS: Final = SECOND
"""So often the last of what an attempt writes is told while it runs."""
WROTE_BYTES: Final = 4 * 1024
"""Of each of its streams. All that is kept goes with its result."""
WROTE_LIMIT_BYTES: Final = 256 * 1024
"""Of all attempts together, each time; the others follow the next time."""

Word: TypeAlias = HandlerProgress | TaskLine | MoreTime | int
"""What runs tells of itself; a number is the fence of an attempt that has begun."""


class HandlerLimits(msgspec.Struct, frozen=True):
    """What a worker keeps in memory of attempts at tasks."""

    waiting: int = 16_384
    """Tasks that wait for room; more are refused."""
    waiting_bytes: int = 256 * 1024 * 1024
    closed: int = 65_536
    """Attempts that are over and remembered at least: one that is assigned late must not begin again."""
    held: int = 65_536
    """Fences in one part of what is told to be held."""
    results: int = 65_536
    """Results that nobody took; with more, nothing new is begun."""
    results_bytes: int = 256 * 1024 * 1024
    told_bytes: int = 4 * 1024 * 1024
    """Bytes of results that were told and not taken, unless one alone is larger: half of what a connection holds."""
    progress_bytes: int = 64 * 1024 * 1024
    """Bytes of the latest progress of all attempts together."""
    bundles: int = 64
    """Bundles that travelled with jobs and are in use at the same time."""
    idle_ns: int = 60 * SECOND
    """A core that has nothing to do for so long ends, unless it is the first of the worker's own."""
    turn_ns: int = SECOND
    """A core is busy for so long before it gives its place to other code that waits for one."""


HANDLER_LIMITS: Final = HandlerLimits()


class HandlerOutbox:
    """Results are put in, and told with the next `flush`; what they are told to is whoever commanded last."""

    def __init__(self, limits: HandlerLimits = HANDLER_LIMITS) -> None:
        self._limits = limits
        self.keeper = ""
        self.life = NOWHERE
        """Whose attempts all of these are."""
        self.lines_dropped = 0
        self.progress_dropped = 0
        self.results: dict[int, TaskResult] = {}
        """Told or not, and not taken, by fence."""
        self.size_bytes = 0
        self._fresh: list[TaskResult] = []
        """To be told with the next flush."""
        self._fresh_bytes = 0
        self._told: deque[tuple[int, tuple[int, ...]]] = deque()
        """When, and which; the oldest first."""
        self._began: list[int] = []
        self._asked: list[MoreTime] = []
        self._latest: dict[int, bytes] = {}
        """The progress told last of every attempt that has not ended."""
        self._latest_bytes = 0
        self._progress: dict[int, bytes] = {}
        """To be told with the next words."""
        self._again: dict[int, None] = {}
        """Whose progress was told once."""
        self._again_at = NEVER
        self._repeats: dict[int, None] = {}
        """Whose progress, to be told next, was told before."""
        self._lines: list[TaskLine] = []
        self._lines_of: dict[int, int] = {}
        self._dropped: dict[int, tuple[int, int]] = {}
        """Of an attempt: how many lines, and the instant of the latest."""
        self._writers: dict[int, HandlerAttempt] = {}
        """Attempts that run, and have written what was not told yet."""
        self._wrote_at = NEVER
        """When they are told of."""
        self._flush_at = 0
        """Words are not told before this."""

    @property
    def is_full(self) -> bool:
        share = self.life.partitions
        return (
            len(self.results) >= self._limits.results // share or self.size_bytes >= self._limits.results_bytes // share
        )

    @property
    def _told_bytes(self) -> int:
        """Partitions may be of one manager, with one connection."""
        return max(1, self._limits.told_bytes // self.life.partitions)  # one result in any case

    @property
    def next_tick_at(self) -> int:
        at = min(self._again_at, self._wrote_at)
        if self._told:
            at = min(at, self._told[0][0] + AGAIN_NS)
        return min(at, self._flush_at) if self._has_words else at

    # What is to be told.

    def put(self, results: Iterable[TaskResult]) -> None:
        kept, fresh, latest = self.results, self._fresh, self._latest
        for result in results:
            fence = result.fence
            size = result_bytes(result)
            fresh.append(result)
            self._fresh_bytes += size
            if latest and fence in latest:
                self._latest_bytes -= len(latest.pop(fence))
            if self._writers:
                self._writers.pop(fence, None)
            if result.outcome == "refused" and self.is_full:
                continue  # said once: if that is lost, the manager finds it missing when it asks what is here
            kept[fence] = result
            self.size_bytes += size

    def began(self, fences: list[int]) -> None:
        """These run since longer than a moment."""
        self._began += fences

    def ask(self, asked: list[MoreTime]) -> None:
        """It comes again until it is answered."""
        self._asked += asked

    def wrote(self, now: int, attempt: HandlerAttempt) -> None:
        """It runs, and has written more."""
        if not self._writers:
            self._wrote_at = now + WROTE_NS
        self._writers[attempt.fence] = attempt

    def said(self, message: Said, held: Container[int]) -> None:
        """What handlers told of themselves: the latest progress wins, lines that are too many are counted. `held` are
        the attempts that have not ended."""
        for progress in message.progress:
            if progress.fence in held:
                self._put_progress(progress.fence, progress.details)
        most = LINES_LIMIT // self.life.partitions
        for line in message.lines:
            fence = line.fence
            count = self._lines_of.get(fence, 0)
            if count >= LINES_OF_TASK_LIMIT or len(self._lines) >= most:
                self.lines_dropped += 1
                if fence in self._dropped or len(self._dropped) < most:
                    self._dropped[fence] = (self._dropped.get(fence, (0, 0))[0] + 1, line.at_ms)
                continue
            self._lines_of[fence] = count + 1
            self._lines.append(line)

    def _put_progress(self, fence: int, details: bytes) -> None:
        known = self._latest.get(fence, b"")
        size = self._latest_bytes + len(details) - len(known)
        if len(details) > PROGRESS_LIMIT_BYTES or size > self._limits.progress_bytes // self.life.partitions:
            self.progress_dropped += 1
            return
        self._latest_bytes = size
        self._latest[fence] = self._progress[fence] = details
        self._again.pop(fence, None)
        self._repeats.pop(fence, None)

    def stored(self, fences: Iterable[int]) -> None:
        for fence in fences:
            result = self.results.pop(fence, None)
            if result is not None:
                self.size_bytes -= result_bytes(result)
        # What was taken is not looked at when its time has come: that would be a tick for each.
        while self._told and self.results.keys().isdisjoint(self._told[0][1]):
            self._told.popleft()

    def tell_again(self, fences: Iterable[int]) -> None:
        """Those of these that are here are told with the next flush."""
        for fence in fences:
            result = self.results.get(fence)
            if result is not None:
                self._fresh.append(result)
                self._fresh_bytes += result_bytes(result)

    def tell_all(self) -> None:
        """Somebody new commands: everything that was not taken is told, and the latest progress of what runs."""
        self._told.clear()
        self._fresh, self._fresh_bytes = list(self.results.values()), self.size_bytes
        self._progress = {**self._latest, **self._progress}

    def drop_all(self) -> None:
        """Nobody wants to hear of any of these."""
        self.results, self.size_bytes = {}, 0
        self._fresh, self._fresh_bytes = [], 0
        self._told.clear()
        self._began, self._asked, self._lines, self._lines_of, self._dropped = [], [], [], {}, {}
        self._latest, self._latest_bytes, self._progress = {}, 0, {}
        self._again, self._again_at, self._repeats = {}, NEVER, {}
        self._writers, self._wrote_at = {}, NEVER

    # Telling it.

    def flush(self, now: int) -> list[ToKeeper]:
        effects: list[ToKeeper] = []
        while self._told and now >= self._told[0][0] + AGAIN_NS:
            self.tell_again(self._told.popleft()[1])
        if now >= self._again_at:
            self._repeats = {fence: None for fence in self._again if fence in self._latest}
            self._progress = {fence: self._latest[fence] for fence in self._repeats} | self._progress
            self._again, self._again_at = {}, NEVER
        fresh = self._fresh
        if self._has_words and (now >= self._flush_at or any(result.outcome != "completed" for result in fresh)):
            # Before the results: the next attempt goes on from the last progress of this one.
            effects += self._words(now)
        if now >= self._wrote_at:
            effects += self._wrote(now)
        if fresh and self.size_bytes > self._told_bytes:
            effects += self._told_in_turn(now)
        elif fresh:
            if len(fresh) <= TASKS_LIMIT and self._fresh_bytes <= BATCH_LIMIT_BYTES:
                effects.append(self._done(now, fresh))  # the usual case, in which nothing is counted once more
            else:
                parts = in_parts(fresh, result_bytes, BATCH_LIMIT_BYTES, TASKS_LIMIT)
                effects += [self._done(now, part) for part in parts]
            self._fresh, self._fresh_bytes = [], 0
        return effects

    def _told_in_turn(self, now: int) -> list[ToKeeper]:
        """As many of the fresh ones as may be on their way: the others follow when those were taken, or are told
        again."""
        left = self._told_bytes - max(0, self.size_bytes - self._fresh_bytes)
        count = size = 0
        for result in self._fresh:
            if size >= left:
                break
            count += 1
            size += result_bytes(result)
        told, self._fresh = self._fresh[:count], self._fresh[count:]
        self._fresh_bytes -= size
        return [self._done(now, part) for part in in_parts(told, result_bytes, BATCH_LIMIT_BYTES, TASKS_LIMIT)]

    def _wrote(self, now: int) -> list[ToKeeper]:
        writers, size = self._writers, 0
        told: list[Wrote] = []
        for fence in list(writers):
            if size >= WROTE_LIMIT_BYTES:
                break
            tails = writers.pop(fence).latest(WROTE_BYTES)
            size += tails_bytes(tails) + WORD_BYTES
            told.append(Wrote(fence, tails))
        self._wrote_at = now + WROTE_NS if writers else NEVER
        return [ToKeeper(self.keeper, TaskProgress(of=self.life, wrote=tuple(told)))] if told else []

    @property
    def _has_words(self) -> bool:
        return bool(self._lines or self._progress or self._began or self._asked)

    def _done(self, now: int, results: list[TaskResult]) -> ToKeeper:
        self._told.append((now, tuple([result.fence for result in results])))
        return ToKeeper(self.keeper, Done(tuple(results), self.life))

    def _words(self, now: int) -> list[ToKeeper]:
        self._flush_at = now + FLUSH_NS
        for fence, (count, at_ms) in self._dropped.items():
            self._lines.append(TaskLine(fence, at_ms, f"[{count} lines came too fast and were dropped]"))
        once = [fence for fence in self._progress if fence in self._latest and fence not in self._repeats]
        if once:
            self._again |= dict.fromkeys(once)
            self._again_at = min(self._again_at, now + AGAIN_NS)
        self._repeats = {}
        words: list[Word] = [*self._began, *self._asked]
        words += [HandlerProgress(fence, details) for fence, details in self._progress.items()]
        words += self._lines
        self._began, self._asked, self._progress = [], [], {}
        self._lines, self._lines_of, self._dropped = [], {}, {}
        return [self._underway(part) for part in in_parts(words, _word_bytes, BATCH_LIMIT_BYTES)]

    def _underway(self, words: Sequence[Word]) -> ToKeeper:
        began = tuple(word for word in words if isinstance(word, int))
        progress = tuple(word for word in words if isinstance(word, HandlerProgress))
        lines = tuple(word for word in words if isinstance(word, TaskLine))
        asked = tuple(word for word in words if isinstance(word, MoreTime))
        return ToKeeper(self.keeper, TaskProgress(began, progress, lines, self.life, more_time=asked))


def result_bytes(result: TaskResult) -> int:
    size = len(result.output) + len(result.error) + RESULT_BYTES
    return size + tails_bytes(result.tails) if result.tails else size


def _word_bytes(word: Word) -> int:
    if isinstance(word, HandlerProgress):
        return WORD_BYTES + len(word.details)
    text = word.text if isinstance(word, TaskLine) else word.reason if isinstance(word, MoreTime) else ""
    return WORD_BYTES + 4 * len(text)  # of a letter at most, as UTF-8
