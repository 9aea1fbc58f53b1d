"""OTLP over HTTP in JSON, as a receiver gets it."""

import json
from typing import Any

import pytest

from talka.report.document import ResultDocument, TimelineRow
from talka.report.measurements import families_of
from talka.report.outputs.otel import rejection
from talka.report.outputs.output import JobInfo, Outputs
from tests.report.conftest import patient_output

LIMIT_S = 30
STARTED_NS = 1_794_744_000_000_000_000
JOB = 'my shop, "a=b".py'


def attributes(found: list[dict[str, Any]]) -> dict[str, str]:
    return {pair["key"]: pair["value"]["stringValue"] for pair in found}


def metrics_of(body: bytes) -> dict[str, dict[str, Any]]:
    (resource,) = json.loads(body)["resourceMetrics"]
    found = attributes(resource["resource"]["attributes"])
    assert (found["service.name"], found["talka.job.id"], found["talka.job.name"]) == ("talka", "job-7", JOB)
    (scope,) = resource["scopeMetrics"]
    assert scope["scope"]["name"] == "talka"
    metrics = {metric["name"]: metric for metric in scope["metrics"]}
    assert len(metrics) == len(scope["metrics"])
    return metrics


def test_windows_are_cumulative_sums_and_gauges(http_server: Any, windows: list[TimelineRow], job: JobInfo) -> None:
    output = patient_output(f"otlp={http_server.url}")
    output.rows(windows, job)
    request = http_server.next()
    assert request.path == "/v1/metrics"
    assert request.headers["Content-Type"] == "application/json"
    metrics = metrics_of(request.body)
    requests = metrics["talka.progress_requests"]
    assert requests["unit"] == "1"
    assert requests["sum"]["aggregationTemporality"] == 2 and requests["sum"]["isMonotonic"] is True
    points = requests["sum"]["dataPoints"]
    assert [point["asInt"] for point in points] == [str(20 * number) for number in range(1, 13)]
    assert {point["startTimeUnixNano"] for point in points} == {str(STARTED_NS)}
    assert points[-1]["timeUnixNano"] == str(STARTED_NS + 1_200_000_000)
    times = metrics["talka.progress_response_time"]
    assert times["unit"] == "s"
    assert [point["asDouble"] for point in times["gauge"]["dataPoints"]][:2] == [0.0015, 0.00925]


def test_the_result_has_every_family_and_its_times_as_summaries(http_server: Any, result: ResultDocument) -> None:
    output = patient_output(f"otlp={http_server.url}/otlp/v1/metrics")
    output.finish(result)
    request = http_server.next()
    assert request.path == "/otlp/v1/metrics"
    metrics = metrics_of(request.body)
    assert list(metrics) == [f"talka.{family.name}" for family in families_of(result)]
    assert metrics["talka.received"]["unit"] == "By"
    failed = [
        point["asInt"]
        for point in metrics["talka.requests"]["sum"]["dataPoints"]
        if attributes(point["attributes"])["status"] == "failed"
    ]
    assert failed == ["2"]
    (pay,) = [
        point
        for point in metrics["talka.step_response_time"]["summary"]["dataPoints"]
        if attributes(point["attributes"])["step"] == "pay"
    ]
    assert pay["count"] == "3" and pay["sum"] == pytest.approx(0.018, rel=0.01)
    assert [pair["quantile"] for pair in pay["quantileValues"]] == [0.5, 0.9, 0.95, 0.99, 0.999]
    assert pay["quantileValues"][-1]["value"] == pytest.approx(0.007, rel=0.01)


def test_points_a_server_rejects_are_told(http_server: Any, result: ResultDocument) -> None:
    http_server.answers = [(200, b'{"partialSuccess":{"rejectedDataPoints":"3","errorMessage":"too old"}}')]
    (warning,) = Outputs([patient_output(f"otlp={http_server.url}")]).finish(result, LIMIT_S)
    assert warning.endswith("rejected 3 data points: too old")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{}",
        b"[]",
        b"\x0a\x00",
        b'{"partialSuccess":{}}',
        b'{"partialSuccess":null}',
        b'{"partialSuccess":{"rejectedDataPoints":"x"}}',
    ],
)
def test_any_other_answer_means_that_all_was_taken(answer: bytes) -> None:
    assert rejection(answer) == ""
