"""Prometheus: the text format as its own parser reads it, and remote write as decoded by hand."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from talka.report.document import ResultDocument, TimelineRow
from talka.report.measurements import families_of
from talka.report.outputs.output import JobInfo, parse_output
from talka.report.outputs.prometheus import exposition, name_of, snappy, varint
from tests.report.conftest import patient_output

STARTED_MS = 1_794_744_000_000
JOB = 'my shop, "a=b".py'


# The text format.


@pytest.fixture
def families(tmp_path: Path, result: ResultDocument) -> dict[str, Any]:
    file = tmp_path / "talka.prom"
    output = parse_output(f"prometheus={file}")
    output.finish(result)
    output.close()
    return {family.name: family for family in text_string_to_metric_families(file.read_text())}


def values(family: Any, name: str, **labels: str) -> list[float]:
    return [
        sample.value for sample in family.samples if sample.name == name and labels.items() <= sample.labels.items()
    ]


def test_counts_are_read_back_by_status(families: dict[str, Any]) -> None:
    requests = families["talka_requests"]
    assert requests.type == "counter"
    assert {sample.labels["status"]: sample.value for sample in requests.samples} == {
        "ok": 6,
        "failed": 2,
        "interrupted": 1,
    }
    assert all(sample.labels["job"] == JOB for sample in requests.samples)
    assert values(families["talka_received_bytes"], "talka_received_bytes_total") == [14_300]
    runs = families["talka_step_runs"]
    assert values(runs, "talka_step_runs_total", workflow="Shop", step="pay", status="failed") == [2]
    assert values(families["talka_step_responses"], "talka_step_responses_total", step="pay", status="503") == [2]
    assert values(families["talka_checks"], "talka_checks_total", check="paid", status="failed") == [3]
    assert values(families["talka_thresholds"], "talka_thresholds", status="crossed") == [2]


def test_times_are_summaries_in_seconds(families: dict[str, Any], result: ResultDocument) -> None:
    name = "talka_step_response_time_seconds"
    times = families[name]
    pay = result.workflows[0].steps[1].response_time_ms
    assert times.type == "summary" and pay is not None
    assert values(times, name, step="pay", quantile="0.99") == [pytest.approx(pay.p99 / 1000)]
    # Three of its five runs have a time.
    assert values(times, f"{name}_count", step="pay") == [3]
    assert values(times, f"{name}_sum", step="pay") == [pytest.approx(0.018, rel=0.01)]
    assert values(times, name, step="nothing") == [], "what was not measured is not shown"


def test_labels_are_a_bounded_set_and_names_survive(families: dict[str, Any]) -> None:
    labels = {label for family in families.values() for sample in family.samples for label in sample.labels}
    assert labels == {"job", "workflow", "step", "status", "kind", "check", "metric", "statistic", "quantile"}
    names = {sample.labels["workflow"] for sample in families["talka_iterations"].samples}
    assert names == {"Shop", 'La"te, one\\'}


def test_names_end_in_base_units_and_counters_in_total(result: ResultDocument) -> None:
    for family in families_of(result):
        name = name_of(family)
        assert name.endswith("_total") == (family.kind == "counter")
        assert not any(unit in name for unit in ("_ms", "milli", "_kb", "percent"))


def test_no_sample_has_a_timestamp_or_is_told_twice(result: ResultDocument) -> None:
    lines = exposition(result).decode().splitlines()
    samples = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert all(sample.endswith("}") for sample in samples)
    assert len(samples) == len(set(samples))


# Remote write.


def walk(message: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of every field of a protobuf message."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = number()
        match key & 7:
            case 0:
                yield key >> 3, number()
            case 1:
                yield key >> 3, struct.unpack_from("<d", message, at)[0]
                at += 8
            case 2:
                length = number()
                assert at + length <= len(message)
                yield key >> 3, message[at : at + length]
                at += length
            case other:
                raise AssertionError(f"wire type {other}")


def series_of(body: bytes) -> dict[tuple[tuple[str, str], ...], list[tuple[float, int]]]:
    found: dict[tuple[tuple[str, str], ...], list[tuple[float, int]]] = {}
    for number, series in walk(bytes(cramjam.snappy.decompress_raw(body))):
        assert number == 1
        parts = list(walk(series))
        labels = [dict(walk(content)) for number, content in parts if number == 1]
        pairs = tuple((label[1].decode(), label[2].decode()) for label in labels)
        samples = [dict(walk(content)) for number, content in parts if number == 2]
        assert pairs not in found
        found[pairs] = [(sample[1], sample[2]) for sample in samples]
    return found


def test_windows_are_written_as_growing_counters_with_their_instants(
    http_server: Any, windows: list[TimelineRow], job: JobInfo
) -> None:
    output = patient_output(f"remote-write={http_server.url}/api/v1/write")
    output.rows(windows[:5], job)
    output.rows(windows[5:], job)
    first, second = http_server.next(), http_server.next()
    assert first.path == "/api/v1/write"
    assert first.headers["Content-Encoding"] == "snappy"
    assert first.headers["Content-Type"] == "application/x-protobuf"
    assert first.headers["X-Prometheus-Remote-Write-Version"] == "0.1.0"
    key = (("__name__", "talka_progress_requests_total"), ("job", JOB))
    samples = series_of(first.body)[key] + series_of(second.body)[key]
    assert samples == [(20.0 * number, STARTED_MS + 100 * number) for number in range(1, 13)]
    times = series_of(first.body)[
        (("__name__", "talka_progress_response_time_seconds"), ("job", JOB), ("quantile", "0.99"))
    ]
    assert [value for value, _ in times] == [0.00925] * 4, "the window without an answer has no time"


def test_the_result_is_written_with_labels_in_order(http_server: Any, result: ResultDocument) -> None:
    output = patient_output(f"remote-write={http_server.url}")
    output.finish(result)
    request = http_server.next()
    assert request.path == "/api/v1/write"
    series = series_of(request.body)
    assert all(list(labels) == sorted(labels) for labels in series)
    key = (("__name__", "talka_requests_total"), ("job", JOB), ("status", "failed"))
    assert series[key] == [(2.0, STARTED_MS + 500 + 10_020)]


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.binary(max_size=300), st.integers(0, 600))
def test_snappy_gives_back_what_it_was_given(piece: bytes, times: int) -> None:
    content = piece * times
    assert bytes(cramjam.snappy.decompress_raw(snappy(content))) == content


@pytest.mark.parametrize("size", [0, 1, 60, 61, 65_535, 65_536, 65_537, 65_596, 65_597, 200_000])
def test_snappy_at_the_edges_of_its_pieces(size: int) -> None:
    content = bytes(number % 251 for number in range(size))
    assert bytes(cramjam.snappy.decompress_raw(snappy(content))) == content


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\1"), (300, b"\xac\2"), (1 << 40, b"\x80" * 5 + b"\x20")],
)
def test_numbers_are_written_seven_bits_at_a_time(value: int, encoded: bytes) -> None:
    assert varint(value) == encoded
