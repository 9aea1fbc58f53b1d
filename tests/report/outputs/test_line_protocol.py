"""Line protocol: what is escaped, and that it arrives over HTTP and UDP."""

import re
import socket
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from talka.report.document import ResultDocument, TimelineRow
from talka.report.outputs.line_protocol import Value, line, result_lines
from talka.report.outputs.output import JobInfo, parse_output
from tests.report.conftest import PATIENT, patient_output

STARTED_NS = 1_794_744_000_000_000_000
TAGS = r'job=my\ shop\,\ "a\=b".py'


def parts_of(text: bytes) -> tuple[str, dict[str, str], dict[str, str], int]:
    """Measurement, tags, fields and instant, read as the specification says."""
    head, fields, instant = re.split(r"(?<!\\) ", text.decode())
    measurement, *tags = re.split(r"(?<!\\),", head)

    def pair(text: str) -> tuple[str, str]:
        key, value = re.split(r"(?<!\\)=", text)
        return key, re.sub(r"\\([,= ])", r"\1", value)

    return measurement, dict(map(pair, tags)), dict(map(pair, fields.split(","))), int(instant)


def test_a_window_is_a_line_with_typed_fields_at_its_start(
    http_server: Any, windows: list[TimelineRow], job: JobInfo
) -> None:
    patient_output(f"influx={http_server.url}/write?db=talka").rows(windows, job)
    request = http_server.next()
    assert request.path == "/write?db=talka"
    lines = request.body.split(b"\n")
    assert len(lines) == len(windows)
    assert lines[1].decode() == (
        f"talka_window,{TAGS} width_s=0.1,iterations_started=11i,requests=20i,failed=1i,vus=1i,"
        f"response_p50_ms=1.5,response_p99_ms=9.25 {STARTED_NS + 100_000_000}"
    )
    assert b"response_p50_ms" not in lines[3]


def test_the_result_is_read_back(result: ResultDocument) -> None:
    found = [parts_of(text) for text in result_lines(result)]
    assert {tags["job"] for _, tags, _, _ in found} == {result.job.name}
    assert {instant for _, _, _, instant in found} == {STARTED_NS + 500_000_000 + 10_020_000_000}
    kinds = [measurement for measurement, _, _, _ in found]
    assert kinds == ["talka_job", *["talka_threshold"] * 3, *["talka_step"] * 3, *["talka_check"] * 3, "talka_step"]
    _, _, fields, _ = found[0]
    assert (fields["requests"], fields["status"], fields["saturated"]) == ("9i", '"partial"', "false")
    _, tags, fields, _ = found[1]
    assert tags == {"job": result.job.name, "rule": "response_time.p99 < 250ms"}, "an empty tag is left out"
    assert fields == {"passed": "true", "value": "7.0"}
    _, tags, fields, _ = found[5]
    assert (tags["workflow"], tags["step"], fields["failed"]) == ("Shop", "pay", "2i")
    assert float(fields["response_max_ms"]) == 7.0
    assert found[-1][1]["workflow"] == 'La"te, one/', "a backslash would escape what follows it"


@pytest.mark.parametrize(
    ("tag", "written"),
    [
        ("a b", r"a\ b"),
        ("a,b", r"a\,b"),
        ("a=b", r"a\=b"),
        ('a"b', 'a"b'),
        ("a\nb", r"a\ b"),
        ("c:\\", "c:/"),
        ("né", "né"),
        ("\ud800", r"\ "),
    ],
)
def test_tags_are_escaped(tag: str, written: str) -> None:
    assert line("m", {"t": tag}, {"f": 1}, 5) == f"m,t={written} f=1i 5".encode()


def test_fields_are_typed_and_those_without_a_number_left_out() -> None:
    fields: dict[str, Value] = {
        "a": 1,
        "b": 1.0,
        "c": True,
        "d": 'x"\\',
        "e": None,
        "f": float("nan"),
        "g": float("inf"),
    }
    assert line("m", {}, fields, 5) == rb'm a=1i,b=1.0,c=true,d="x\"\\" 5'


def test_many_lines_go_in_several_requests(http_server: Any, windows: list[TimelineRow], job: JobInfo) -> None:
    parse_output(f"influx={http_server.url}", limits=replace(PATIENT, lines=5)).rows(windows, job)
    requests = [http_server.next() for _ in range(3)]
    assert [len(request.body.split(b"\n")) for request in requests] == [5, 5, 2]
    assert requests[0].path == "/write"


def test_datagrams_hold_whole_lines(
    udp: socket.socket, received: Callable[[bytes], list[bytes]], windows: list[TimelineRow], job: JobInfo
) -> None:
    output = patient_output(f"influx=udp://127.0.0.1:{udp.getsockname()[1]}")
    output.rows(windows, job)
    output.close()
    lines = received(f" {STARTED_NS + 1_100_000_000}".encode())
    assert [parts_of(line)[3] for line in lines] == [STARTED_NS + number * 100_000_000 for number in range(12)]
