"""CSV: two files that any reader opens, with numbers that are numbers."""

import csv
from pathlib import Path
from typing import Any

import msgspec
import pytest

from talka.report.document import ResultDocument, TimelineRow, Times
from talka.report.outputs.csv_files import CsvFiles
from talka.report.outputs.output import JobInfo


def read(file: Path) -> list[dict[str, Any]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def write(target: str, result: ResultDocument, windows: list[TimelineRow], job: JobInfo) -> None:
    output = CsvFiles(target, "it")
    output.rows(windows[:5], job)
    output.rows(windows[5:], job)
    output.finish(result)
    output.close()


def test_windows_are_read_back_as_they_were(
    tmp_path: Path, result: ResultDocument, windows: list[TimelineRow], job: JobInfo
) -> None:
    write(f"{tmp_path}/new/", result, windows, job)
    found = read(tmp_path / "new" / "windows.csv")
    assert [
        msgspec.convert({k: v or None for k, v in row.items()}, TimelineRow, strict=False) for row in found
    ] == windows
    assert found[3]["response_p50_ms"] == ""


def test_steps_have_a_line_each_with_typed_columns(
    tmp_path: Path, result: ResultDocument, windows: list[TimelineRow], job: JobInfo
) -> None:
    write(str(tmp_path), result, windows, job)
    found = read(tmp_path / "steps.csv")
    assert [(row["workflow"], row["step"], row["measured"]) for row in found] == [
        ("Shop", "login", "true"),
        ("Shop", "pay", "true"),
        ("Shop", "tidy", "false"),
        ('La"te, one\\', "nothing", "true"),
    ]
    pay = result.workflows[0].steps[1]
    assert [int(found[1][name]) for name in ("count", "ok", "failed", "interrupted")] == [5, 2, 2, 1]
    for name in Times.__struct_fields__:
        assert float(found[1][f"response_{name}_ms"]) == getattr(pay.response_time_ms, name)
        assert float(found[1][f"service_{name}_ms"]) == getattr(pay.service_time_ms, name)
        assert found[2][f"response_{name}_ms"] == found[3][f"service_{name}_ms"] == ""


@pytest.mark.parametrize("target", ["run1", "run1.csv"])
def test_a_name_that_is_no_folder_is_a_prefix(
    target: str, tmp_path: Path, result: ResultDocument, windows: list[TimelineRow], job: JobInfo
) -> None:
    write(str(tmp_path / target), result, windows, job)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run1-steps.csv", "run1-windows.csv"]


def test_a_job_without_windows_has_a_file_with_a_head(tmp_path: Path, result: ResultDocument) -> None:
    output = CsvFiles(str(tmp_path), "it")
    output.finish(result)
    output.close()
    assert (tmp_path / "windows.csv").read_text() == ",".join(TimelineRow.__struct_fields__[:-1]) + "\n"
