"""A real node whose API is full of strangers: probes are answered all the same."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

LIMIT_S = 60
MANY = 1150
"""More than there are places."""
HALF = b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-Half: "
IDLE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
SLOW = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-m", "talka", "up", "--port", "0", "--cores", "1", "--data-dir", "up", "--json"]
        + ["--store", "sqlite:///jobs.sqlite"],  # then one address may begin 1,000 submissions at a time
        cwd=tmp_path_factory.mktemp("up"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("TALKA_")},
    )
    try:
        assert process.stdout is not None
        events = (json.loads(line) for line in process.stdout)
        [address] = [next(event["address"] for event in events if event["event"] == "up")]
        yield int(address.rpartition(":")[2])
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)


def stranger(port: int, source: str, said: bytes) -> socket.socket:
    link = socket.socket()
    link.settimeout(LIMIT_S)
    link.bind((source, 0))
    link.connect(("127.0.0.1", port))
    link.sendall(said)
    return link


def status_of(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


@pytest.mark.parametrize("sources", [1, 16], ids=["one-address", "several-addresses"])
@pytest.mark.parametrize("said", [HALF, IDLE, SLOW], ids=["half-heads", "idle", "slow-bodies"])
def test_however_many_strangers_hold_connections_probes_are_answered(port: int, said: bytes, sources: int) -> None:
    with contextlib.ExitStack() as held:
        for number in range(MANY):
            held.enter_context(stranger(port, f"127.0.0.{number % sources + 1}", said))

        for number in range(20):  # and they do not stop
            assert (status_of(port, "/livez"), status_of(port, "/readyz")) == (200, 200)
            for more in range(10):
                held.enter_context(stranger(port, f"127.0.0.{(number + more) % sources + 1}", said))


def test_half_sent_heads_of_strangers_keep_nobody_out(port: int) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(MANY):
            held.enter_context(stranger(port, "127.0.0.2", HALF))

        status = 429
        while status == 429:  # a machine under load asks for patience, and serves
            status = status_of(port, "/v1/jobs")
        assert status == 200
