"""JSON lines: a line for each window while the job runs, then what each step did over time, and the result as the last
one."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from talka.report.document import ResultDocument, TimelineRow
from talka.report.files import FilePlace
from talka.report.outputs.output import JobInfo


class JsonLines:
    name = "jsonl"

    def __init__(self, path: str, what: str) -> None:
        self._stream = FilePlace(path, what).stream()

    def rows(self, rows: Sequence[TimelineRow], job: JobInfo) -> None:
        self._stream.write(
            b"".join(line({"type": "window", "job": job.id, **msgspec.to_builtins(row)}) for row in rows)
        )

    def finish(self, document: ResultDocument) -> None:
        self._stream.write(b"".join(step_lines(document)) + line({"type": "result", **short(document)}))

    def close(self) -> None:
        self._stream.close()


def line(content: dict[str, Any]) -> bytes:
    return msgspec.json.encode(content) + b"\n"


def step_lines(document: ResultDocument) -> Iterable[bytes]:
    for workflow in document.workflows:
        place = {"type": "step", "job": document.job.id, "workflow": workflow.name}
        yield from (line({**place, **msgspec.to_builtins(row)}) for row in workflow.timeline)


def short(document: ResultDocument) -> dict[str, Any]:
    """The result without what is long: windows and steps over time, which have lines of their own, and histograms."""
    content: dict[str, Any] = msgspec.to_builtins(document)
    del content["timeline"]
    for workflow in content["workflows"]:
        del workflow["timeline"]
        for step in workflow["steps"]:
            for row in (step, *step["calls"]):
                del row["histogram"], row["service_histogram"]
    return content
