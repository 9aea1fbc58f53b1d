"""Writes down what the steps of one shard did. Everything on the hot path of measuring is here."""

from typing import Protocol

from talka.clock import MICROSECOND
from talka.engine.calls import ExchangeFailed
from talka.stats.tally import CheckTally, MetricTally, Sample, StepTally, Tally
from talka.stats.windows import UNACKNOWLEDGED_LIMIT, WINDOW_NS, Window, WindowLog
from talka.work.responses import BrokenBody, HTTPResponse, Response
from talka.work.specs import WorkflowSpec

SAMPLE_CHARACTERS_LIMIT = 300
FILLED_LIMIT = UNACKNOWLEDGED_LIMIT // 2
"""Windows filled in after a stall: never so many that measured ones would be pushed out."""


class Source(Protocol):
    """Something that counts by itself, faster than this, and hands over what it has."""

    def pour(self, window: Window) -> None:
        """Add to the tallies, and to the present window, all that was counted since the last time."""

    def close_window(self, window: Window) -> None:
        """Add what windows tell: it comes often, and the rest can wait."""

    def open_window(self, ends_ns: int) -> None:
        """The next window has begun. What is done at `ends_ns` or later is none of its business: `roll` first."""


class Recorder:
    """Counts for one shard. `start` gives it the instant from which windows and samples are counted.

    With `sources`, the tallies are complete after `settle`.
    """

    def __init__(self, spec: WorkflowSpec) -> None:
        self.tally = Tally(
            steps={node.name: StepTally() for node in spec.nodes if node.measured},
            actions={node.name: StepTally() for node in spec.every_node if node.kind != "check" and not node.measured},
            checks={node.name: CheckTally() for node in spec.nodes if node.kind == "check"},
            metrics={node.name: MetricTally(node.metric_kind) for node in spec.nodes if node.metric_kind},
        )
        self.exchanges = self.tally.exchanges
        self.sources: list[Source] = []
        self.log = WindowLog()
        self.vus = 0
        self._origin_ns = 0
        self._window = Window(0)
        self.window_ends_ns = 0
        self._started_before = self._requests_before = self._failed_before = 0

    def start(self, now: int, origin_ns: int) -> None:
        self._origin_ns = origin_ns
        self._open_window(now)

    def iteration(self, now: int) -> None:
        """An iteration starts."""
        if now >= self.window_ends_ns:
            self.roll(now)
        self.tally.started += 1

    def response(self, tally: StepTally, response: Response) -> None:
        """A step returned a response: it was measured."""
        done = response.done_ns
        if done >= self.window_ends_ns:
            self.roll(done)
        response_us = (done - response.intended_ns) // MICROSECOND
        tally.response_time.record(response_us)
        tally.service_time.record((done - response.sent_ns) // MICROSECOND)
        self._window.response_time.record(response_us)
        if isinstance(response, HTTPResponse):
            tally.saw_status(response.status)
        if response.accepted:
            tally.ok += 1
        else:
            self.rejected(tally, response)

    def rejected(self, tally: StepTally, response: Response) -> None:
        if isinstance(response, HTTPResponse):
            text, status = printable(f"{response.method} {response.url} answered {response.status}"), response.status
        else:
            text, status = "the answer was not accepted", 0
        tally.fail(Sample(response.done_ns - self._origin_ns, "status", text, status))

    def error(self, tally: StepTally, error: BaseException, now: int, intended_ns: int) -> None:
        """A step or an action raised."""
        kind = kind_of(error)
        if kind == "timeout" and isinstance(error, ExchangeFailed):
            # Somebody waited that long: leaving it out would make a dying server look fast.
            waited_us = (now - intended_ns) // MICROSECOND
            tally.response_time.record(waited_us)
            self._window.response_time.record(waited_us)
        tally.fail(Sample(now - self._origin_ns, kind, described(error)))

    def check_failed(self, name: str, text: str, now: int) -> None:
        self.tally.checks[name].fail(Sample(now - self._origin_ns, "check", printable(text)))

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
        """Bring in what the sources have counted."""
        for source in self.sources:
            source.pour(self._window)

    def _close_window(self) -> None:
        window, exchanges = self._window, self.exchanges
        for source in self.sources:
            source.close_window(window)
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


def kind_of(error: BaseException) -> str:
    if isinstance(error, ExchangeFailed):
        return error.kind
    if isinstance(error, AssertionError):
        return "check"
    if isinstance(error, BrokenBody):
        return "protocol"
    return "exception"


def described(error: BaseException) -> str:
    """One line: what was raised and the deepest line of it that is known."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the user's own __str__ may raise anything
        text = ""
    if not isinstance(error, ExchangeFailed | BrokenBody):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        if trace is not None:
            text = f"{text} ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
    return printable(text)


def printable(text: str) -> str:
    """Short enough to keep, and without the halves of characters that no message can carry."""
    return text[:SAMPLE_CHARACTERS_LIMIT].encode("utf-8", "replace").decode("utf-8")
