"""Two CSV files for spreadsheets and data frames: a line for each step and for each name of its calls, and one for each
window."""

import csv
import io
import os
from collections.abc import Iterable, Sequence
from typing import Final

from talka.report.document import Call, ResultDocument, Step, TimelineRow, Times
from talka.report.files import BadOutput, FilePlace, reason_of
from talka.report.measurements import times_of_step
from talka.report.outputs.output import JobInfo

WINDOW_COLUMNS: Final = tuple(name for name in TimelineRow.__struct_fields__ if name != "errors")
"""Kinds of errors are not known before the first of them, and a file's columns are."""
TIME_COLUMNS: Final = tuple(
    f"{label}_{field}_ms" for label in ("response", "service") for field in Times.__struct_fields__
)
COUNT_COLUMNS: Final = ("count", "ok", "failed", "interrupted", "rate_per_s")
STEP_COLUMNS: Final = ("workflow", "step", "measured", *COUNT_COLUMNS, *TIME_COLUMNS, "call", "skipped", "tags")


class CsvFiles:
    """`steps.csv` and `windows.csv` in a folder, or `PREFIX-steps.csv` and `PREFIX-windows.csv`."""

    name = "csv"

    def __init__(self, target: str, what: str) -> None:
        prefix = prefix_of(target, what)
        self._steps = FilePlace(f"{prefix}steps.csv", what)
        self._windows = FilePlace(f"{prefix}windows.csv", what).stream()

    def rows(self, rows: Sequence[TimelineRow], job: JobInfo) -> None:
        head = [WINDOW_COLUMNS] if self._windows.is_new else []
        cells = [[getattr(row, column) for column in WINDOW_COLUMNS] for row in rows]
        self._windows.write(written([*head, *cells]))

    def finish(self, document: ResultDocument) -> None:
        self._steps.replace(written([STEP_COLUMNS, *steps_of(document)]))
        if self._windows.is_new:
            self._windows.write(written([WINDOW_COLUMNS]))

    def close(self) -> None:
        self._windows.close()


def prefix_of(target: str, what: str) -> str:
    if not target.endswith(os.sep) and not os.path.isdir(target):
        return f"{target.removesuffix('.csv')}-"
    try:
        os.makedirs(target, exist_ok=True)
    except (OSError, ValueError) as error:
        raise BadOutput(f"{what}: the folder {target} cannot be made: {reason_of(error)}") from None
    return os.path.join(target, "")


def steps_of(document: ResultDocument) -> Iterable[Sequence[object]]:
    for workflow in document.workflows:
        for step in workflow.steps:
            tags = ";".join(f"{key}={value}" for key, value in sorted(step.tags.items()))
            yield (*cells_of(workflow.name, step, step), None, step.skipped, tags)
            for call in step.calls:
                yield (*cells_of(workflow.name, step, call), call.name, None, tags)


def cells_of(workflow: str, step: Step, row: Step | Call) -> Sequence[object]:
    times = times_of_step(row)
    return (
        workflow,
        step.name,
        str(step.measured).lower(),
        *(getattr(row, column) for column in COUNT_COLUMNS),
        *(times.get(column) for column in TIME_COLUMNS),
    )


def written(lines: Iterable[Sequence[object]]) -> bytes:
    """None becomes an empty cell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode("utf-8", "replace")
