"""Outputs other than the summary and `--json`: one small interface, and a runner that keeps them off the job's back.

Nothing an output does raises into the job or delays it. What it could not deliver becomes a warning.

Decision: docs/decisions/0009-outputs-cannot-spoil-a-run.md.
"""

import difflib
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

import msgspec

from talka.clock import monotonic_ns, utc_now
from talka.report.document import ResultDocument, TimelineRow
from talka.report.files import BadOutput, reason_of
from talka.report.job_view import JobView
from talka.report.outputs.targets import SEND_LIMITS, SendLimits
from talka.report.over_time import row_of, with_errors
from talka.report.text import cleaned, counted_text, cut
from talka.stats.windows import Span
from talka.units import SECOND

MOST_WAITING: Final = 6_000
"""Rows kept for an output that is slow: ten minutes of windows."""
FINISH_LIMIT_S: Final = 5.0
SETTLED_NS: Final = SECOND
"""Cores report five times a second; a window this old has been reported by all of them."""
REASON_CHARACTERS: Final = 300
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
EXAMPLES: Final[dict[str, str]] = {
    "jsonl": "windows.jsonl",
    "csv": "results/",
    "junit": "junit.xml",
    "markdown": "summary.md",
    "prometheus": "talka.prom",
    "remote-write": "http://localhost:9090/api/v1/write",
    "otlp": "http://localhost:4318",
    "influx": "http://localhost:8086/write?db=talka",
    "statsd": "localhost:8125",
    "graphite": "localhost:2003",
    "custom": "my_output.py:MyOutput",
}


class JobInfo(msgspec.Struct, frozen=True):
    """Which job the rows belong to, and when its clock stood at zero: in nanoseconds since 1970."""

    id: str
    name: str
    started_ns: int


class Output(Protocol):
    """Something that takes results. All calls come from one thread of its own, `rows` never after `finish`."""

    name: str

    def rows(self, rows: Sequence[TimelineRow], job: JobInfo) -> None:
        """Windows that are final, each once, oldest first."""

    def finish(self, document: ResultDocument) -> None:
        """The result, once, when the job is over."""

    def close(self) -> None:
        """The last call, also when there was no result."""


class ResultOutput:
    """Takes the result alone, as bytes, at the end of the job."""

    def __init__(self, name: str, written: Callable[[ResultDocument], bytes], take: Callable[[bytes], None]) -> None:
        self.name = name
        self._written, self._take = written, take

    def rows(self, rows: Sequence[TimelineRow], job: JobInfo) -> None:
        pass

    def finish(self, document: ResultDocument) -> None:
        self._take(self._written(document))

    def close(self) -> None:
        pass


class Outputs:
    """Runs each output in a daemon thread of its own. No call waits for an output, except `finish`, which has a
    limit."""

    def __init__(self, outputs: Sequence[Output]) -> None:
        self._lanes = [OutputLane(output) for output in outputs]

    def rows(self, rows: Sequence[TimelineRow], job: JobInfo) -> None:
        if rows:
            for lane in self._lanes:
                lane.rows(rows, job)

    def finish(self, document: ResultDocument | None, limit_s: float = FINISH_LIMIT_S) -> list[str]:
        """Give all outputs the result, if there is one, and this long, together. A warning for each that failed or is
        late."""
        deadline_ns = monotonic_ns() + round(limit_s * SECOND)
        for lane in self._lanes:
            lane.end(document)
        for lane in self._lanes:
            lane.done.wait(max(0, deadline_ns - monotonic_ns()) / SECOND)
        verdicts = [lane.verdict(limit_s) for lane in self._lanes]
        return [verdict for verdict in verdicts if verdict is not None]


class OutputLane:
    """One output, its thread, and the rows that wait for it."""

    def __init__(self, output: Output) -> None:
        self.done = threading.Event()
        self._output, self._name = output, output.name
        self._changed = threading.Condition()
        """Held for moments only, never while the output is called."""
        self._waiting: list[TimelineRow] = []
        self._job: JobInfo | None = None
        self._document: ResultDocument | None = None
        self._is_over = self._is_given_up = False
        self._under_way = self._lost = 0
        self._problem: str | None = None
        try:
            threading.Thread(target=self._run, name=f"output {self._name}", daemon=True).start()
        except RuntimeError as error:  # no more threads
            self._problem = str(error)
            self._is_given_up = True
            self.done.set()

    def rows(self, rows: Sequence[TimelineRow], job: JobInfo) -> None:
        with self._changed:
            room = 0 if self._is_given_up else MOST_WAITING - len(self._waiting)
            self._waiting += rows[:room]
            self._lost += max(0, len(rows) - room)
            self._job = job
            self._changed.notify()

    def end(self, document: ResultDocument | None) -> None:
        with self._changed:
            self._document, self._is_over = document, True
            self._changed.notify()

    def verdict(self, limit_s: float) -> str | None:
        """What went wrong, in a sentence. Whatever is not done by now is given up."""
        with self._changed:
            problem, lost = self._problem, self._lost
            if not self.done.is_set():
                self._is_given_up = True
                problem = problem or f"it was not done within {limit_s:g} s"
                lost += len(self._waiting) + self._under_way
        if problem is None and not lost:
            return None
        text = f"the output {self._name} failed: {problem or 'it was too slow'}"
        return f"{text}; {counted_text(lost, 'row')} {'was' if lost == 1 else 'were'} lost" if lost else text

    def _run(self) -> None:
        while rows := self._next_rows():
            self._deliver(rows)
        document = self._document
        if document is not None and not self._is_given_up:
            self._call(lambda: self._output.finish(document))
        self._call(self._output.close)
        self.done.set()

    def _deliver(self, rows: list[TimelineRow]) -> None:
        job = self._job
        assert job is not None  # it came with the rows
        is_delivered = self._call(lambda: self._output.rows(rows, job))
        with self._changed:
            self._lost += 0 if is_delivered else len(rows)
            self._under_way = 0

    def _next_rows(self) -> list[TimelineRow]:
        """Not one: it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_over)
            if self._is_given_up:
                return []
            rows, self._waiting = self._waiting, []
            self._under_way = len(rows)
            return rows

    def _call(self, action: Callable[[], object]) -> bool:
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - whatever it is, also sys.exit, it ends here and is told
            with self._changed:
                # The first one tells most: later ones often follow from it.
                self._problem = self._problem or told(error)
            return False
        return True


def told(error: BaseException) -> str:
    try:
        return cut(cleaned(reason_of(error)), REASON_CHARACTERS)
    except Exception:  # noqa: BLE001 - the user's own __str__ may raise anything
        return type(error).__name__


# From a running job to its outputs.


class WindowFeed:
    """Gives the windows of one job to its outputs, each once. Call it while the job runs, `finish` when it has
    ended."""

    def __init__(self, outputs: Outputs, name: str) -> None:
        self._outputs, self._name = outputs, name
        self._job: JobInfo | None = None
        self._sent_until_ns = 0

    def __call__(self, job: JobView, now: int) -> None:
        if self._job is None:
            self._job = JobInfo(job.id, self._name, since_1970(utc_now()) - (now - job.origin_ns))
        rows, self._sent_until_ns = new_rows(job.timeline.spans(), self._sent_until_ns)
        self._outputs.rows(with_errors(rows, [run.timeline for run in job.workflows.values()]), self._job)

    def finish(self, document: ResultDocument, limit_s: float = FINISH_LIMIT_S) -> list[str]:
        rest = [row for row in document.timeline if round(row.t_s * SECOND) >= self._sent_until_ns]
        self._outputs.rows(rest, self._job or job_info(document))
        return self._outputs.finish(document, limit_s)


def new_rows(spans: Sequence[Span], sent_until_ns: int, *, is_over: bool = False) -> tuple[list[TimelineRow], int]:
    """The rows that are final and were not sent yet, and the instant to give next time. `is_over`: all are final.

    What a core reports later than a second after the others is in the result and not in the rows: a row is sent once.
    """
    newest_ns = max((span.start_ns + span.length_ns for span in spans), default=0)
    until_ns = newest_ns if is_over else newest_ns - SETTLED_NS
    fresh = [span for span in spans if span.start_ns >= sent_until_ns and span.start_ns + span.length_ns <= until_ns]
    rows = [row_of(span) for span in fresh]
    return rows, max([sent_until_ns, *(span.start_ns + span.length_ns for span in fresh)])


def job_info(document: ResultDocument) -> JobInfo:
    return JobInfo(document.job.id, document.job.name, since_1970(datetime.fromisoformat(document.started_at)))


def since_1970(instant: datetime) -> int:
    """Nanoseconds; whole numbers all the way, for a float of this size has lost its microseconds."""
    return (instant - EPOCH) // timedelta(microseconds=1) * 1000


# From the command line.


def parse_output(text: str, what: str = "--output", limits: SendLimits = SEND_LIMITS) -> Output:
    """The output that `KIND=TARGET` names. Files are checked now; servers are first talked to when there is a
    result."""
    kind, equals, target = text.partition("=")
    if kind not in EXAMPLES:
        close = difflib.get_close_matches(kind, EXAMPLES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(EXAMPLES)}"
        raise BadOutput(f"{what}: there is no output {cut(kind, 40)!r} ({hint})")
    if not equals or not target:
        raise BadOutput(f"{what} {kind} names no target: write {kind}={EXAMPLES[kind]}")
    # Most runs need none of them.
    from talka.report.outputs.kinds import made

    return made(kind, target, f"{what} {kind}", limits)
