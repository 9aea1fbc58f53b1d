"""Calls, tags and skipped runs, in every place that results are sent to."""

import csv
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from talka.report.building import fold_rows
from talka.report.document import Call, ResultDocument, StepRow
from talka.report.markdown import markdown
from talka.report.measurements import families_of
from talka.report.outputs.csv_files import CsvFiles
from talka.report.outputs.jsonl import JsonLines
from talka.report.outputs.line_protocol import result_lines
from talka.report.outputs.otel import export_request
from talka.report.outputs.output import job_info
from talka.report.outputs.prometheus import exposition
from talka.report.outputs.statsd import numbers_of
from talka.stats.tally import OTHER_CALLS, StepTally, Tally
from tests.report.conftest import histogram_of, measured_step


@pytest.fixture
def with_calls(result: ResultDocument) -> ResultDocument:
    """The step pay calls under two names, one of which is as hard as users can make it."""
    histogram = histogram_of(1000, 2000)
    whole = measured_step("pay", histogram, ok=3, failed=1)
    fields = {name: getattr(whole, name) for name in Call.__struct_fields__}
    calls = [Call(**fields | {"name": name, "outcomes": {"BUSY": 1}}) for name in ("card", 'GET "/a, b.html"|x')]
    shop, late = result.workflows
    steps = [
        msgspec.structs.replace(step, calls=calls, skipped=7, tags={"kind": "page", "a-b": "x,y"})
        if step.name == "pay"
        else step
        for step in shop.steps
    ]
    rows = [StepRow("pay", 0.0, 0.1, 4, 1, {"status": 1}, 1.5, 1.9, 2.0), StepRow("pay", 0.1, 0.1, 0, 0)]
    shop = msgspec.structs.replace(shop, steps=steps, timeline=rows, interrupted_iterations=3)
    totals = msgspec.structs.replace(result.totals, interrupted_iterations=3)
    return msgspec.structs.replace(result, workflows=[shop, late], totals=totals)


def test_csv_has_a_line_for_each_name_of_calls(tmp_path: Path, with_calls: ResultDocument) -> None:
    output = CsvFiles(str(tmp_path), "it")
    output.finish(with_calls)
    output.close()
    with (tmp_path / "steps.csv").open(newline="") as lines:
        found = [row for row in csv.DictReader(lines) if row["step"] == "pay"]
    assert [(row["call"], row["skipped"], row["count"]) for row in found] == [
        ("", "7", "5"),
        ("card", "", "4"),
        ('GET "/a, b.html"|x', "", "4"),
    ]
    assert {row["tags"] for row in found} == {"a-b=x,y;kind=page"}
    assert float(found[1]["response_max_ms"]) == 2.0


def test_prometheus_has_calls_by_a_label_of_their_own_and_tags_as_labels(with_calls: ResultDocument) -> None:
    text = exposition(with_calls).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    failed = [sample for sample in families["talka_calls"].samples if sample.labels["status"] == "failed"]
    assert [(sample.labels["call"], sample.value) for sample in failed] == [("card", 1.0), ('GET "/a, b.html"|x', 1.0)]
    assert {(sample.labels["tag_kind"], sample.labels["tag_a_b"]) for sample in failed} == {("page", "x,y")}
    assert all("call" not in sample.labels for sample in families["talka_step_runs"].samples)
    assert sum(sample.value for sample in families["talka_step_skipped"].samples) == 7
    assert sum(sample.value for sample in families["talka_interrupted_iterations"].samples) == 3
    for name in ("talka_call_response_time_seconds", "talka_call_service_time_seconds"):
        assert [s.value for s in families[name].samples if s.name.endswith("_count")] == [2.0, 2.0]
    assert [s.labels["status"] for s in families["talka_call_responses"].samples] == ["200", "503", "BUSY"] * 2
    assert [s.labels["kind"] for s in families["talka_call_errors"].samples] == ["status"] * 2


def test_opentelemetry_has_the_same_labels(with_calls: ResultDocument) -> None:
    request = export_request(families_of(with_calls), job_info(with_calls))
    metrics = {found["name"]: found for found in request["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]}
    labels = [
        {pair["key"]: pair["value"]["stringValue"] for pair in point["attributes"]}
        for point in metrics["talka.calls"]["sum"]["dataPoints"]
    ]
    assert {label["call"] for label in labels} == {"card", 'GET "/a, b.html"|x'}
    assert {label["tag_kind"] for label in labels} == {"page"}


def test_line_protocol_has_points_for_calls(with_calls: ResultDocument) -> None:
    lines = [line.decode() for line in result_lines(with_calls)]
    calls = [line for line in lines if line.startswith("talka_call,")]
    assert len(calls) == 2 and ",step=pay,tag_a_b=x\\,y,tag_kind=page,call=card " in calls[0]
    assert "count=4i,ok=3i,failed=1i" in calls[0] and "response_max_ms=2.0" in calls[0]
    (pay,) = [line for line in lines if line.startswith("talka_step,") and ",step=pay," in line]
    assert "skipped=7i" in pay


def test_statsd_and_graphite_have_calls_below_their_step(with_calls: ResultDocument) -> None:
    found = dict(numbers_of(with_calls))
    place = "talka.my_shop_a_b_py.result.Shop.pay"
    assert found[f"{place}.calls.card.failed"] == 1
    assert found[f"{place}.calls.GET_a_b_html_x.response_max_ms"] == 2.0
    assert found[f"{place}.skipped"] == 7
    assert found["talka.my_shop_a_b_py.result.interrupted_iterations"] == 3


def test_json_lines_have_steps_over_time_and_no_histograms(tmp_path: Path, with_calls: ResultDocument) -> None:
    file = tmp_path / "windows.jsonl"
    output = JsonLines(str(file), "it")
    output.finish(with_calls)
    output.close()
    *steps, last = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert [(row["type"], row["workflow"], row["step"], row["count"]) for row in steps] == [
        ("step", "Shop", "pay", 4),
        ("step", "Shop", "pay", 0),
    ]
    assert steps[0]["errors"] == {"status": 1} and steps[0]["p95_ms"] == 1.9
    assert last["type"] == "result" and b"histogram" not in file.read_bytes()
    assert [call["name"] for call in last["workflows"][0]["steps"][1]["calls"]] == ["card", 'GET "/a, b.html"|x']


def test_markdown_has_rows_of_calls_below_their_step_and_says_who_failed(with_calls: ResultDocument) -> None:
    shop, late = with_calls.workflows
    pay = msgspec.structs.replace(shop.steps[1], ok=1, failed=3)
    shop = msgspec.structs.replace(shop, steps=[shop.steps[0], pay])
    text = markdown(msgspec.structs.replace(with_calls, workflows=[shop, late]))
    head, _, rest = text.partition("### Thresholds")
    assert "**Shop.pay: 3 of 4 runs failed \\(75.00 %\\), mostly by their status.**" in head
    assert r"| &emsp;└ card | 4 calls  0.400/s  failed 1 \(25.00 %\) | 1.00 ms |" in rest
    assert r'| &emsp;└ GET "/a, b.html"\|x |' in rest
    assert r"skipped 7  \{a\-b=x,y, kind=page\}" in rest
    assert "| iterations | 5 | 0 dropped, 3 cut off |" in rest


# A bounded number of rows.


def many_calls(workflows: int, names: int) -> dict[str, Tally]:
    return {
        f"W{workflow}": Tally(
            steps={"get": StepTally(ok=names)},
            calls={
                "get": {f"/item/{name}": StepTally(ok=1 + (name == 0)) for name in range(names)} | {"get": StepTally(1)}
            },
        )
        for workflow in range(workflows)
    }


def test_calls_beyond_a_thousand_rows_are_counted_as_others_with_a_warning_that_shows_one() -> None:
    tallies = many_calls(workflows=7, names=200)
    (warning,) = fold_rows(tallies)
    rows = [(workflow, name) for workflow, tally in tallies.items() for name in tally.calls["get"]]
    assert len([name for _, name in rows if name not in ("get", OTHER_CALLS)]) == 1_000 - 7
    # The most frequent stay, and nothing is lost.
    assert all("/item/0" in tally.calls["get"] and "get" in tally.calls["get"] for tally in tallies.values())
    assert {sum(call.ok for call in tally.calls["get"].values()) for tally in tallies.values()} == {202}
    assert warning == (
        "a result has at most 1,000 rows: calls of 407 names, such as '/item/99' in W6.get, are counted as (other);"
        " leave ids out of name="
    )


def test_as_many_rows_as_fit_are_all_kept() -> None:
    tallies = many_calls(workflows=2, names=200)
    before: Any = msgspec.to_builtins(tallies)
    assert fold_rows(tallies) == []
    assert msgspec.to_builtins(tallies) == before
