"""A result with something of everything, and servers that keep what they are sent. For the tests of the outputs."""

import http.server
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import pytest

from talka.report.building import times_of
from talka.report.document import (
    Check,
    ErrorSample,
    Generator,
    Job,
    Lost,
    Metric,
    ResultDocument,
    Step,
    Threshold,
    TimelineRow,
    Totals,
)
from talka.report.outputs.output import JobInfo, parse_output
from talka.report.outputs.targets import SendLimits
from talka.stats import hdr
from talka.stats.histogram import Histogram
from tests.report.documents import a_document, a_step, a_workflow

LIMIT_S = 30
STARTED_NS = 1_794_744_000_000_000_000


def histogram_of(*microseconds: int) -> Histogram:
    histogram = Histogram()
    for value in microseconds:
        histogram.record(value)
    return histogram


def measured_step(name: str, histogram: Histogram, **counts: int) -> Step:
    ok, failed, interrupted = counts.get("ok", 0), counts.get("failed", 0), counts.get("interrupted", 0)
    text = "POST http://shop.test/pay answered 503 <b>|x|</b>\x1b[31m"
    return a_step(
        name,
        count=ok + failed + interrupted,
        ok=ok,
        failed=failed,
        interrupted=interrupted,
        rate_per_s=(ok + failed) / 10,
        response_time_ms=times_of(histogram),
        service_time_ms=times_of(histogram),
        status_codes={"200": ok, "503": failed} if ok or failed else {},
        errors={"status": failed} if failed else {},
        samples=[ErrorSample(0.4, "status", text)] if failed else [],
        histogram=hdr.encode(histogram),
        service_histogram=hdr.encode(histogram),
    )


@pytest.fixture
def result() -> ResultDocument:
    """Two workflows, the second of which never ran. Names are as hard as users can make them."""
    tidy = Step("tidy", False, 5, 5, 0, 0, 0.5, None, None, {}, {}, [], None, None, {})
    shop = a_workflow(
        "Shop",
        status="partial",
        duration_s=10.0,
        iterations=5,
        steps=[
            measured_step("login", histogram_of(1000, 2000, 3000, 4000), ok=4),
            measured_step("pay", histogram_of(5000, 6000, 7000), ok=2, failed=2, interrupted=1),
            tidy,
        ],
        checks=[
            Check("paid", 1, 3, [ErrorSample(1.0, "check", "paid returned \x00False & more")]),
            Check("fresh", 4, 0, []),
            Check("never", 0, 0, []),
        ],
        metrics=[Metric("basket", "distribution", 4, 10.0, 1.0, 0.5, 2.5, 4.0, {"p50": 2.0, "p99_9": 4.0})],
    )
    late = a_workflow(
        'La"te, one\\',
        status="skipped",
        model="open",
        load="50/s for 10s",
        vus=0,
        cores=0,
        duration_s=0.0,
        iterations=0,
        failure="Shop failed, which it depends on",
        steps=[measured_step("nothing", Histogram())],
    )
    return a_document(
        job=Job("job-7", 'my shop, "a=b".py', "tests/shop.py"),
        status="partial",
        exit_code=6,
        reasons=["1 shard was lost; what it had not reported is missing."],
        started_at="2026-11-15T12:00:00.500+00:00",
        totals=Totals(9, 6, 2, 1, 3, 0.9, 2_100, 14_300, 5, 0, 20, 1),
        workflows=[shop, late],
        thresholds=[
            Threshold("response_time.p99 < 250ms", 7.0, True, None, "7.00 ms"),
            Threshold("pay.failed < 0.1%", 0.5, False, "Shop", "50 %"),
            Threshold("metrics.basket.p95 < 1", None, False, "Shop", "no sample"),
        ],
        lost_shards=[Lost("Shop", 1, "was killed by SIGKILL", 3.0, 4.2, 10, 0)],
        start_skew_ms=0.4,
        generator=Generator("python", "1.2.3", 0.43, None, None, False, []),
        warnings=["the generator was | the bottleneck"],
    )


@pytest.fixture
def windows() -> list[TimelineRow]:
    """1.2 s of windows, the fourth without an answer."""
    return [
        TimelineRow(number / 10, 0.1, 10 + number, 20, 1, number, *((None, None) if number == 3 else (1.5, 9.25)))
        for number in range(12)
    ]


@pytest.fixture
def job() -> JobInfo:
    return JobInfo("job-7", 'my shop, "a=b".py', STARTED_NS)


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class HttpServer:
    """Keeps every request and answers with the next of `answers`, or with 204."""

    url: str = ""
    answers: list[tuple[int, bytes]] = field(default_factory=list)
    requests: "queue.Queue[Request]" = field(default_factory=queue.Queue)

    def next(self) -> Request:
        return self.requests.get(timeout=LIMIT_S)


PATIENT = SendLimits(timeout_s=LIMIT_S)
"""On a busy machine our servers may answer late."""
patient_output = partial(parse_output, limits=PATIENT)


@pytest.fixture
def http_server() -> Iterator[HttpServer]:
    found = HttpServer()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.requests.put(Request(self.path, dict(self.headers.items()), body))
            status, answer = found.answers.pop(0) if found.answers else (204, b"")
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    server.shutdown()
    thread.join(LIMIT_S)
    server.server_close()


@pytest.fixture
def udp() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(LIMIT_S)
        yield receiver


@pytest.fixture
def received(udp: socket.socket) -> Callable[[bytes], list[bytes]]:
    """Lines of datagrams, up to and with the first that contains the given bytes."""

    def receive(last: bytes) -> list[bytes]:
        lines: list[bytes] = []
        while not any(last in line for line in lines):
            datagram = udp.recv(65_535)
            assert len(datagram) <= 1400
            lines += datagram.split(b"\n")
        return lines

    return receive


@pytest.fixture
def silent_server() -> Iterator[str]:
    """host:port of a listener that never accepts: the system takes connections for it, and nothing ever answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
