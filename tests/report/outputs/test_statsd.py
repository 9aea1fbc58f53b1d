"""StatsD over UDP and Graphite over TCP, as received."""

import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from talka.report.document import ResultDocument, TimelineRow
from talka.report.outputs.output import JobInfo, Outputs
from talka.report.outputs.statsd import path
from tests.report.conftest import patient_output

LIMIT_S = 30
STARTED_S = 1_794_744_000
JOB = "talka.my_shop_a_b_py"


# StatsD.


def test_counts_add_up_and_gauges_are_of_the_last_window(
    udp: socket.socket,
    received: Callable[[bytes], list[bytes]],
    windows: list[TimelineRow],
    job: JobInfo,
    result: ResultDocument,
) -> None:
    output = patient_output(f"statsd=127.0.0.1:{udp.getsockname()[1]}")
    output.rows(windows, job)
    output.finish(result)
    output.close()
    lines = received(b"nothing.rate_per_s")
    counts: Counter[str] = Counter()
    gauges: dict[str, float] = {}
    for line in lines:
        name, _, rest = line.decode().partition(":")
        value, kind = rest.split("|")
        if kind == "c":
            counts[name] += int(value)
        else:
            assert kind == "g"
            gauges[name] = float(value)
    assert counts == {
        f"{JOB}.requests": 240,
        f"{JOB}.failed": 12,
        f"{JOB}.iterations": sum(row.iterations_started for row in windows),
    }
    assert gauges[f"{JOB}.vus"] == 11
    assert gauges[f"{JOB}.response_p99_ms"] == 9.25
    assert gauges[f"{JOB}.result.requests"] == 9
    assert gauges[f"{JOB}.result.Shop.pay.failed"] == 2
    assert gauges[f"{JOB}.result.Shop.pay.response_max_ms"] == 7
    assert gauges[f"{JOB}.result.La_te_one_.nothing.ok"] == 0
    assert f"{JOB}.result.La_te_one_.nothing.response_max_ms" not in gauges


def test_names_have_no_character_of_the_format() -> None:
    assert path("http://x:1/a?b=c|d@e", "step") == "talka.http_x_1_a_b_c_d_e.step"
    assert len(path("x" * 1000)) < 200


def test_a_machine_on_which_nobody_listens_is_told(windows: list[TimelineRow], job: JobInfo) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.connect(("127.0.0.1", port))  # it hears but itself, and nobody else can take the port
        outputs = Outputs([patient_output(f"statsd=127.0.0.1:{port}")])
        outputs.rows(windows * 20, job)
        (warning,) = outputs.finish(None, LIMIT_S)
    assert (
        warning
        == f"the output statsd failed: 127.0.0.1:{port} cannot be reached: Connection refused; 240 rows were lost"
    )


# Graphite.


class Carbon:
    """Reads every connection to its end."""

    def __init__(self, listener: socket.socket) -> None:
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        self._listener = listener
        self._lines: list[str] = []
        self._changed = threading.Condition()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed: the test is over
            with connection, connection.makefile("r") as lines:
                found = list(lines)
            with self._changed:
                self._lines += found
                self._changed.notify()

    def until(self, last: str) -> list[tuple[str, float, int]]:
        with self._changed:
            assert self._changed.wait_for(lambda: any(last in line for line in self._lines), LIMIT_S)
            assert all(line.endswith("\n") for line in self._lines)
            parts = [line.split(" ") for line in self._lines]
            return [(name, float(value), int(instant)) for name, value, instant in parts]


@pytest.fixture
def carbon() -> Iterator[Carbon]:
    listener = socket.create_server(("127.0.0.1", 0))
    found = Carbon(listener)
    thread = threading.Thread(target=found.serve)
    thread.start()
    yield found
    listener.shutdown(socket.SHUT_RDWR)
    thread.join(LIMIT_S)
    listener.close()


def test_every_second_has_one_value_for_each_name(
    carbon: Carbon, windows: list[TimelineRow], job: JobInfo, result: ResultDocument
) -> None:
    output = patient_output(f"graphite={carbon.address}")
    output.rows(windows[:4], job)  # a second in two batches
    output.rows(windows[4:], job)
    output.finish(result)
    output.close()
    found = carbon.until("nothing.rate_per_s")
    assert len({(name, instant) for name, _, instant in found}) == len(found)
    values = {(name.removeprefix(f"{JOB}."), instant - STARTED_S): value for name, value, instant in found}
    assert values["requests", 0] == 200 and values["requests", 1] == 40
    assert values["failed", 0] == 10 and values["failed", 1] == 2
    assert values["vus", 0] == 9 and values["vus", 1] == 11
    assert values["highest_response_p99_ms", 0] == 9.25
    assert values["result.requests", 10] == 9
    assert values["result.Shop.pay.failed", 10] == 2


def test_windows_without_an_answer_have_no_times(carbon: Carbon, job: JobInfo, result: ResultDocument) -> None:
    output = patient_output(f"graphite={carbon.address}")
    output.rows([TimelineRow(0, 0.1, 1, 0, 0, 1, None, None)], job)
    output.finish(result)
    names = {name for name, _, _ in carbon.until("nothing.rate_per_s")}
    assert f"{JOB}.vus" in names
    assert not any("highest" in name for name in names)


def test_a_connection_that_is_refused_is_told(result: ResultDocument) -> None:
    # Bound and not listened on: nobody else can take the port, and it refuses.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        outputs = Outputs([patient_output(f"graphite=127.0.0.1:{port}")])
        assert outputs.finish(result, LIMIT_S) == [
            f"the output graphite failed: 127.0.0.1:{port} cannot be reached: Connection refused"
        ]
