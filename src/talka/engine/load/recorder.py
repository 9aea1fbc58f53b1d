"""Writes down what the steps of one shard did. Everything on the hot path of measuring is here."""

from collections import Counter
from traceback import walk_tb
from types import TracebackType
from typing import Final, Protocol

from talka.clock import monotonic_ns
from talka.engine.calls import ExchangeFailed
from talka.engine.load.direct import is_users_own
from talka.errors import Invalid, sendable, text_of
from talka.stats.histogram import Histogram
from talka.stats.tally import (
    CALL_NAMES_KEPT,
    OTHER_CALLS,
    CheckTally,
    MetricKind,
    MetricTally,
    Sample,
    StepTally,
    Tally,
    is_status,
)
from talka.stats.windows import UNACKNOWLEDGED_LIMIT, WINDOW_NS, StepWindow, Window, WindowLog
from talka.units import MICROSECOND
from talka.work.responses import BrokenBody, NotJSON, Response
from talka.work.specs import WorkflowSpec

SAMPLE_CHARACTERS_LIMIT: Final = 300
FILLED_LIMIT: Final = UNACKNOWLEDGED_LIMIT // 2
"""Windows filled in after a stall: never so many that measured ones would be pushed out."""
NAME_CHARACTERS_LIMIT: Final = 200
"""Of a call's name, which is sent and kept as often as there are shards."""
METRIC_NAMES_LIMIT: Final = 200
METRIC_LIMIT: Final = 1e15
"""Sums of such values stay exact to a few digits; beyond it is no measurement."""


class BadMetric(Invalid):
    """A value that cannot be counted under the name it was given."""


class CallSource(Protocol):
    """Something that counts by itself, faster than this, and hands over what it has."""

    def pour(self, window: Window) -> None:
        """Add to the tallies, and to the present window, all that was counted since the last time."""

    def close_window(self, window: Window) -> None:
        """Add what windows tell of steps: it comes often, and the rest can wait. The whole is made of the steps."""

    def open_window(self, ends_ns: int) -> None:
        """The next window has begun. What is done at `ends_ns` or later is none of its business: `roll` first."""


class Recorder:
    """Counts for one shard. `start` gives it the instant from which windows and samples are counted.

    Times and outcomes are sorted in by heaps, as most of a heap are equal: the tallies are complete after `settle`,
    which also brings in what `sources` have counted.
    """

    def __init__(self, spec: WorkflowSpec) -> None:
        self.tally = Tally(
            steps={node.name: StepTally() for node in spec.nodes if node.measured},
            actions={node.name: StepTally() for node in spec.every_node if node.kind != "check" and not node.measured},
            checks={node.name: CheckTally() for node in spec.every_node if node.kind == "check"},
            metrics={node.name: MetricTally(node.metric_kind) for node in spec.nodes if node.metric_kind},
        )
        self.exchanges = self.tally.exchanges
        self.notes: list[str] = []
        """What a reader of the result should know."""
        self._names_left = CALL_NAMES_KEPT
        self.sources: list[CallSource] = []
        self._times: dict[str, tuple[StepTally, list[int]]] = {}
        """Of steps that ended well in the present window."""
        self.heaps: list[tuple[Histogram, list[int]]] = []
        """Other times, each with the histogram it is for."""
        self.answers: list[tuple[StepTally, list[str | int]]] = []
        """Outcomes of calls, each with the row it is for."""
        self.log = WindowLog()
        self.vus = 0
        self._origin_ns = 0
        self._window = Window(0)
        self.window_ends_ns = 0
        self._started_before = self._requests_before = self._failed_before = 0

    def start(self, now: int, origin_ns: int) -> None:
        self._origin_ns = origin_ns
        self._open_window(now)

    def user_came(self) -> None:
        """An arrival is under way; `vus` counts it until it is over. A window shows the most there were at once."""
        self.vus += 1
        if self.vus > self._window.vus:
            self._window.vus = self.vus

    def iteration(self, now: int) -> None:
        """An iteration starts."""
        if now >= self.window_ends_ns:
            self.roll(now)
        self.tally.started += 1

    def times_of(self, name: str, tally: StepTally) -> list[int]:
        """Where the microseconds of runs that went well go: see `ended_well`."""
        _, times = self._times.setdefault(name, (tally, []))
        return times

    def ended_well(self, times: list[int], now: int, intended_ns: int) -> None:
        """A measured method ended. What follows from its time, also that it went well, is counted by heaps."""
        if now >= self.window_ends_ns:
            self.roll(now)
        times.append((now - intended_ns) // MICROSECOND)

    def ended_badly(
        self, name: str, tally: StepTally, now: int, intended_ns: int, failure: Sample, *, has_time: bool
    ) -> None:
        """A measured method failed."""
        if now >= self.window_ends_ns:
            self.roll(now)
        step = self._window.steps.setdefault(name, StepWindow())
        step.count += 1
        step.failed += 1
        step.errors[failure.kind] = step.errors.get(failure.kind, 0) + 1
        tally.fail(failure)
        if has_time:
            response_us = (now - intended_ns) // MICROSECOND
            tally.response_time.record(response_us)
            step.response_time.record(response_us)

    def sample(self, error: BaseException, now: int) -> Sample:
        """What was raised, as it is shown."""
        return Sample(now - self._origin_ns, kind_of(error), described(error))

    def rejected(self, response: Response) -> Sample:
        """An answer that counts as a failure, as it is shown."""
        text, label = sendable(response.describe(), SAMPLE_CHARACTERS_LIMIT), response.label
        return Sample(response.done_ns - self._origin_ns, "status", text, int(label) if is_status(label) else 0)

    def metric(self, name: str, value: float, kind: MetricKind) -> None:
        """A number that a step told by itself."""
        metrics = self.tally.metrics
        found = metrics.get(name)
        if found is None:
            if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS_LIMIT:
                raise BadMetric(
                    f"{name!r} is not the name of a metric: write text of 1 to {NAME_CHARACTERS_LIMIT} characters"
                )
            if len(metrics) >= METRIC_NAMES_LIMIT:
                raise BadMetric(f"there are {METRIC_NAMES_LIMIT} metrics already, so {name!r} cannot be one more")
            found = metrics[name] = MetricTally(kind)
        if found.kind != kind:
            raise BadMetric(f"the metric {name!r} is a {found.kind} and cannot be a {kind} too")
        found.add(number(value))

    def new_row(self, node: str, name: str) -> tuple[str, StepTally]:
        """For calls under a name that was not seen in this method before, or for those that are too many."""
        rows = self.tally.calls.setdefault(node, {})
        name = sendable(name, NAME_CHARACTERS_LIMIT)
        if name != node and name not in rows:
            if self._names_left == 0:
                if OTHER_CALLS not in rows:
                    self.notes.append(
                        f"{node} makes calls under more names than the {CALL_NAMES_KEPT} that are kept: others, such as"
                        f" {name!r}, are counted as {OTHER_CALLS}; leave ids out of name="
                    )
                name = OTHER_CALLS
            else:
                self._names_left -= 1
        return name, rows.setdefault(name, StepTally())

    def check_failed(self, name: str, text: str, now: int) -> None:
        text = sendable(text, SAMPLE_CHARACTERS_LIMIT)
        self.tally.checks[name].fail(Sample(now - self._origin_ns, "check", text))

    # Windows.

    def roll(self, now: int) -> None:
        """Close the window if its time is over."""
        if now < self.window_ends_ns:
            return
        self._close_window()
        self._fill_up_to(now)
        self._open_window(now)

    def _fill_up_to(self, now: int) -> None:
        """A loop that stood still for longer than a window skips some. Its users were there all the same: without
        windows that say so, the sum over all shards would show them leave and come back."""
        if not self.vus:
            return
        first, beyond = self._window.index + 1, (now - self._origin_ns) // WINDOW_NS
        for index in range(max(first, beyond - FILLED_LIMIT), beyond):
            self.log.close(Window(index, vus=self.vus))

    def finish(self) -> None:
        self._close_window()
        self.settle()

    def settle(self) -> None:
        """Bring in what the sources have counted, and sort in what was timed."""
        self._sort_in()
        for source in self.sources:
            source.pour(self._window)

    def _sort_in(self) -> None:
        steps = self._window.steps
        for name, (tally, times) in self._times.items():
            if times:
                step = steps.setdefault(name, StepWindow())
                step.count += len(times)
                tally.ok += len(times)
                for value, count in Counter(times).items():
                    tally.response_time.record(value, count)
                    step.response_time.record(value, count)
                times.clear()
        for histogram, times in self.heaps:
            if times:
                for value, count in Counter(times).items():
                    histogram.record(value, count)
                times.clear()
        for tally, outcomes in self.answers:
            if outcomes:
                for outcome, count in Counter(outcomes).items():
                    tally.saw(str(outcome), count)
                outcomes.clear()

    def _close_window(self) -> None:
        window, exchanges = self._window, self.exchanges
        self._sort_in()
        for source in self.sources:
            source.close_window(window)
        for step in window.steps.values():
            window.response_time.merge(step.response_time)
        window.vus = max(window.vus, self.vus)
        window.started = self.tally.started - self._started_before
        window.requests = exchanges.requests - self._requests_before
        window.failed = exchanges.failed - self._failed_before
        self._started_before += window.started
        self._requests_before += window.requests
        self._failed_before += window.failed
        self.log.close(window)

    def _open_window(self, now: int) -> None:
        index = max(0, now - self._origin_ns) // WINDOW_NS
        self._window = Window(index, vus=self.vus)
        self.window_ends_ns = self._origin_ns + (index + 1) * WINDOW_NS
        for source in self.sources:
            source.open_window(self.window_ends_ns)


class StepRecord:
    """Calls of one name, with their times and outcomes that are not sorted in yet."""

    __slots__ = ("tally", "response_us", "service_us", "outcomes")

    def __init__(self, tally: StepTally, recorder: Recorder) -> None:
        self.tally = tally
        self.response_us: list[int] = []
        self.service_us: list[int] = []
        self.outcomes: list[str | int] = []
        recorder.heaps += ((tally.response_time, self.response_us), (tally.service_time, self.service_us))
        recorder.answers.append((tally, self.outcomes))


class StepRecords:
    """The calls of one method, by name."""

    __slots__ = ("_recorder", "_node", "_rows", "_by_tally")

    def __init__(self, recorder: Recorder, node: str) -> None:
        self._recorder = recorder
        self._node = node
        self._rows: dict[str | None, StepRecord] = {}
        """By the names that were kept, so there are no more of them."""
        self._by_tally: dict[str, StepRecord] = {}
        """By the names under which calls are counted: many names may be one row."""

    def row(self, name: str | None) -> StepRecord:
        row = self._rows.get(name)
        if row is None:
            kept, tally = self._recorder.new_row(self._node, self._node if name is None else name)
            row = self._by_tally.get(kept)
            if row is None:
                row = self._by_tally[kept] = StepRecord(tally, self._recorder)
            if name is None or kept == name:  # names that are folded or cut short could be any number
                self._rows[name] = row
        return row

    def answered(self, name: str | None, response: Response) -> Sample | None:
        row = self._rows.get(name) or self.row(name)
        tally, done_ns = row.tally, response.done_ns
        row.response_us.append((done_ns - response.intended_ns) // MICROSECOND)
        row.service_us.append((done_ns - response.sent_ns) // MICROSECOND)
        row.outcomes.append(response.outcome)
        if response.accepted:
            tally.ok += 1
            return None
        failure = self._recorder.rejected(response)
        tally.fail(failure)
        return failure

    def failed(self, name: str | None, error: BaseException, intended_ns: int) -> Sample:
        row = self.row(name)
        now = monotonic_ns()
        failure = self._recorder.sample(error, now)
        if failure.kind == "timeout":
            # Somebody waited that long: leaving it out would make a dying server look fast.
            row.response_us.append((now - intended_ns) // MICROSECOND)
        row.tally.fail(failure)
        return failure

    def cut(self, name: str | None) -> None:
        self.row(name).tally.interrupted += 1


def number(value: object) -> float:
    """What a metric was given, if it can be counted."""
    counted = float(value)  # type: ignore[arg-type] # what cannot be a number raises, and the step has failed
    if not abs(counted) <= METRIC_LIMIT:  # also for NaN
        raise ValueError(f"a metric cannot count {counted}: values go up to {METRIC_LIMIT:g}")
    return counted


def kind_of(error: BaseException) -> str:
    if isinstance(error, ExchangeFailed):
        return error.kind
    if isinstance(error, AssertionError):
        return "check"
    if isinstance(error, BrokenBody) and not isinstance(error, NotJSON):
        return "protocol"
    return "exception"


def described(error: BaseException) -> str:
    """One line: what was raised, and the deepest line of the users' own code that it came from."""
    text = text_of(error)
    if not isinstance(error, ExchangeFailed | BrokenBody):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if kind_of(error) in ("exception", "check") and (place := place_of(error.__traceback__)):
        text = f"{text[: max(0, SAMPLE_CHARACTERS_LIMIT - len(place) - 3)]} ({place})"
    return sendable(text, SAMPLE_CHARACTERS_LIMIT)


def place_of(trace: TracebackType | None) -> str:
    """File and line of the deepest frame that is the users' own; the deepest of all where none is."""
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(trace)]
    own = [place for place in frames if is_users_own(place[0])] or frames
    return f"{own[-1][0]}:{own[-1][1]}" if own else ""
