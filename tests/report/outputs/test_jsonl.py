"""JSON lines: windows as they come, the result last."""

import json
from pathlib import Path

import msgspec

from talka.report.document import ResultDocument, TimelineRow
from talka.report.outputs.jsonl import JsonLines
from talka.report.outputs.output import JobInfo


def test_every_window_has_a_line_and_the_last_line_is_the_result(
    tmp_path: Path, result: ResultDocument, windows: list[TimelineRow], job: JobInfo
) -> None:
    file = tmp_path / "windows.jsonl"
    file.write_text("of an earlier run\n" * 100)
    output = JsonLines(str(file), "it")
    output.rows(windows[:5], job)
    assert len(file.read_bytes().splitlines()) == 5, "lines can be read while the job runs"
    output.rows(windows[5:], job)
    output.finish(msgspec.structs.replace(result, timeline=windows))
    output.close()
    *lines, last = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert [line.pop("type") for line in lines] == ["window"] * len(windows)
    assert {line.pop("job") for line in lines} == {"job-7"}
    assert [msgspec.convert(line, TimelineRow) for line in lines] == windows
    assert last["type"] == "result" and last["schema"] == "talka.result/1"
    assert last["job"]["id"] == "job-7" and last["exit_code"] == 6


def test_the_result_line_has_all_but_timeline_and_histograms(tmp_path: Path, result: ResultDocument) -> None:
    file = tmp_path / "windows.jsonl"
    output = JsonLines(str(file), "it")
    output.finish(result)
    output.close()
    found = json.loads(file.read_bytes())
    whole = json.loads(result.to_json())
    del whole["timeline"]
    for workflow in whole["workflows"]:
        del workflow["timeline"]
        for step in workflow["steps"]:
            del step["histogram"], step["service_histogram"]
    assert found == {"type": "result", **whole}
