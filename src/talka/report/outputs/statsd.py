"""StatsD over UDP and Graphite over TCP: numbers under names with dots."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from talka.report.document import Call, ResultDocument, Step, TimelineRow, Totals
from talka.report.measurements import ended_ns, times_of_step
from talka.report.outputs.output import JobInfo
from talka.report.outputs.targets import SEND_LIMITS, SendLimits, TargetAddress, TargetDatagrams, send_over_tcp
from talka.units import SECOND

NAME_CHARACTERS: Final = 100
NOT_A_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")


class StatsD:
    """Counts and gauges, sent as windows end. StatsD has no timestamps: it takes them for now, a second late."""

    name = "statsd"

    def __init__(self, address: TargetAddress, limits: SendLimits = SEND_LIMITS) -> None:
        self._datagrams = TargetDatagrams(address, limits.timeout_s)

    def rows(self, rows: Sequence[TimelineRow], job: JobInfo) -> None:
        lines = []
        for row in rows:
            counts = {"requests": row.requests, "failed": row.failed, "iterations": row.iterations_started}
            # As gauges, not as timers: a server would make percentiles of percentiles.
            gauges = {"vus": row.vus, "response_p50_ms": row.response_p50_ms, "response_p99_ms": row.response_p99_ms}
            lines += [f"{path(job.name, name)}:{count}|c" for name, count in counts.items() if count]
            lines += [f"{path(job.name, name)}:{value}|g" for name, value in gauges.items() if value is not None]
        self._datagrams.send(line.encode() for line in lines)

    def finish(self, document: ResultDocument) -> None:
        self._datagrams.send(f"{name}:{value}|g".encode() for name, value in numbers_of(document))

    def close(self) -> None:
        self._datagrams.close()


class Second(msgspec.Struct):
    """The windows of one second. What is kept of percentiles is the highest: no average of them means anything."""

    number: int
    requests: int = 0
    failed: int = 0
    iterations: int = 0
    vus: int = 0
    highest_response_p50_ms: float | None = None
    highest_response_p99_ms: float | None = None

    def add(self, row: TimelineRow) -> None:
        self.requests += row.requests
        self.failed += row.failed
        self.iterations += row.iterations_started
        self.vus = max(self.vus, row.vus)
        self.highest_response_p50_ms = highest(self.highest_response_p50_ms, row.response_p50_ms)
        self.highest_response_p99_ms = highest(self.highest_response_p99_ms, row.response_p99_ms)


class Graphite:
    """A value for each second: Graphite keeps one for each, so windows within a second would replace each other."""

    name = "graphite"

    def __init__(self, address: TargetAddress, limits: SendLimits = SEND_LIMITS) -> None:
        self._address = address
        self._timeout_s = limits.timeout_s
        self._second: Second | None = None
        """The last one, of which more may come."""
        self._job_name = ""

    def rows(self, rows: Sequence[TimelineRow], job: JobInfo) -> None:
        self._job_name = job.name
        ended = []
        for row in rows:
            number = (job.started_ns + round(row.t_s * SECOND)) // SECOND
            if self._second is None or self._second.number != number:
                ended += [self._second] if self._second else []
                self._second = Second(number)
            self._second.add(row)
        self._send(line for second in ended for line in self._lines(second))

    def finish(self, document: ResultDocument) -> None:
        last = [] if self._second is None else list(self._lines(self._second))
        at_s = ended_ns(document) // SECOND
        self._send([*last, *(f"{name} {value} {at_s}\n" for name, value in numbers_of(document))])

    def close(self) -> None:
        pass

    def _lines(self, second: Second) -> Iterable[str]:
        for name in Second.__struct_fields__[1:]:
            value = getattr(second, name)
            if value is not None:
                yield f"{path(self._job_name, name)} {value} {second.number}\n"

    def _send(self, lines: Iterable[str]) -> None:
        content = "".join(lines).encode()
        if content:
            send_over_tcp(self._address, content, self._timeout_s)


def numbers_of(document: ResultDocument) -> Iterable[tuple[str, float]]:
    """The result, apart from the names of the windows: these are for the whole job."""
    job = document.job.name
    for name in Totals.__struct_fields__:
        yield path(job, "result", name), getattr(document.totals, name)
    yield path(job, "result", "duration_s"), document.duration_s
    yield path(job, "result", "exit_code"), document.exit_code
    for workflow in document.workflows:
        for step in workflow.steps:
            place = (job, "result", workflow.name, step.name)
            yield from numbers_of_row(place, step)
            yield path(*place, "skipped"), step.skipped
            for call in step.calls:
                yield from numbers_of_row((*place, "calls", call.name), call)


def numbers_of_row(place: Sequence[str], row: Step | Call) -> Iterable[tuple[str, float]]:
    numbers = {name: getattr(row, name) for name in ("ok", "failed", "interrupted", "rate_per_s")}
    for name, value in {**numbers, **times_of_step(row)}.items():
        if math.isfinite(value):
            yield path(*place, name), value


def path(*names: str) -> str:
    """Only letters and digits of ASCII, - and _ are safe in both systems."""
    return ".".join(["talka", *(NOT_A_NAME.sub("_", name)[:NAME_CHARACTERS] for name in names)])


def highest(one: float | None, other: float | None) -> float | None:
    return max((value for value in (one, other) if value is not None), default=None)
