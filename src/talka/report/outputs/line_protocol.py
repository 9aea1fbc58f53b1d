"""InfluxDB's line protocol, over HTTP or UDP: windows while the job runs, and the result at its end."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias
from urllib.parse import parse_qs, urlsplit

from talka.report.document import Call, ResultDocument, Step, TimelineRow, Totals
from talka.report.files import BadOutput
from talka.report.measurements import ended_ns, tag_labels, times_of_step
from talka.report.outputs.output import JobInfo
from talka.report.outputs.targets import SEND_LIMITS, HttpPlace, SendLimits, TargetDatagrams, address, http_place
from talka.units import SECOND

NANOSECONDS: Final = ("ns", "n", "nanosecond", "auto")
HEADERS: Final = {"Content-Type": "text/plain; charset=utf-8"}

Value: TypeAlias = float | str | bool | None


class LineProtocol:
    name = "influx"

    def __init__(self, send: Callable[[list[bytes]], None], close: Callable[[], None]) -> None:
        self._send, self._close = send, close

    def rows(self, rows: Sequence[TimelineRow], job: JobInfo) -> None:
        self._send([window_line(row, job) for row in rows])

    def finish(self, document: ResultDocument) -> None:
        self._send(list(result_lines(document)))

    def close(self) -> None:
        self._close()


def line_protocol(target: str, what: str, limits: SendLimits = SEND_LIMITS) -> LineProtocol:
    if target.startswith("udp://"):
        datagrams = TargetDatagrams(address(target.removeprefix("udp://").removesuffix("/"), what), limits.timeout_s)
        return LineProtocol(datagrams.send, datagrams.close)
    place = http_place(target, what, default_path="/write", limits=limits)
    precision = parse_qs(urlsplit(target).query).get("precision", ["ns"])[-1]
    if precision not in NANOSECONDS:
        raise BadOutput(f"{what}: timestamps are sent in nanoseconds: leave out precision={precision}")
    return LineProtocol(lambda lines: post(place, lines, limits.lines), lambda: None)


def post(place: HttpPlace, lines: Sequence[bytes], at_once: int) -> None:
    for start in range(0, len(lines), at_once):
        place.post(b"\n".join(lines[start : start + at_once]), HEADERS)


# What is told.


def window_line(row: TimelineRow, job: JobInfo) -> bytes:
    fields = {name: getattr(row, name) for name in TimelineRow.__struct_fields__ if name not in ("t_s", "errors")}
    return line("talka_window", {"job": job.name}, fields, job.started_ns + round(row.t_s * SECOND))


def result_lines(document: ResultDocument) -> Iterable[bytes]:
    at_ns, job = ended_ns(document), {"job": document.job.name}
    facts: dict[str, Value] = {name: getattr(document.totals, name) for name in Totals.__struct_fields__}
    facts |= {"status": document.status, "exit_code": document.exit_code, "duration_s": document.duration_s}
    facts |= {"lost_shards": len(document.lost_shards), "saturated": document.generator.saturated}
    yield line("talka_job", job, facts, at_ns)
    for rule in document.thresholds:
        tags = {**job, "workflow": rule.workflow or "", "rule": rule.rule}
        yield line("talka_threshold", tags, {"passed": rule.passed, "value": rule.value}, at_ns)
    for workflow in document.workflows:
        tags = {**job, "workflow": workflow.name}
        for step in workflow.steps:
            named = {**tags, "step": step.name, **tag_labels(step)}
            yield line("talka_step", named, {**fields_of(step), "skipped": step.skipped}, at_ns)
            for call in step.calls:
                yield line("talka_call", {**named, "call": call.name}, fields_of(call), at_ns)
        for check in workflow.checks:
            counts: dict[str, Value] = {"passed": check.passed, "failed": check.failed}
            yield line("talka_check", {**tags, "check": check.name}, counts, at_ns)


def fields_of(row: Step | Call) -> dict[str, Value]:
    fields: dict[str, Value] = {name: getattr(row, name) for name in ("count", "ok", "failed", "interrupted")}
    return fields | {"rate_per_s": row.rate_per_s, **times_of_step(row)}


# How it is written.


def line(measurement: str, tags: Mapping[str, str], fields: Mapping[str, Value], at_ns: int) -> bytes:
    """One point. Tags without a value and fields without a number are left out; at least one field must be left."""
    head = [measurement, *(f"{key}={escaped(value)}" for key, value in tags.items() if value)]
    told = [f"{key}={text}" for key, value in fields.items() if (text := value_text(value)) is not None]
    return f"{','.join(head)} {','.join(told)} {at_ns}".encode("utf-8", "replace")


def escaped(text: str) -> str:
    """A tag's value. Line breaks cannot be escaped, and servers disagree about a backslash before another escape."""
    text = "".join(char if char.isprintable() else " " for char in text).replace("\\", "/")
    for char in ",= ":
        text = text.replace(char, f"\\{char}")
    return text


def value_text(value: Value) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case int():
            return f"{value}i"
        case float():
            return repr(value) if math.isfinite(value) else None
        case str():
            inner = value.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{inner}"'
