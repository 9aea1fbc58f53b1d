"""A real node whose API is full of strangers: probes are answered all the same."""

import contextlib
import http.client
import socket
import time
from collections.abc import Iterator

import pytest

from tests.node_process import nodes

LIMIT_S = 60
MANY = 1150
"""More than there are places."""
HALF = b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-Half: "
IDLE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
SLOW = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    words = ("up", "--port", "0", "--cores", "1", "--data-dir", "up", "--json")
    store = ("--store", "sqlite:///jobs.sqlite")  # then one address may begin 1,000 submissions at a time
    with nodes() as start:
        node = start(*words, *store, folder=tmp_path_factory.mktemp("up"))
        yield int(node.until("up")["address"].rpartition(":")[2])
        node.stop()


def stranger(port: int, source: str, said: bytes) -> socket.socket:
    link = socket.socket()
    link.settimeout(LIMIT_S)
    link.bind((source, 0))
    link.connect(("127.0.0.1", port))
    link.sendall(said)
    return link


def answer_of(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def is_ready(port: int) -> bool:
    """It answers so, at once or after a moment in which a busy machine starved it; never that it is full."""
    until = time.monotonic() + LIMIT_S
    while True:
        status, body = answer_of(port, "/readyz")
        if status != 503 or b"connections" in body or time.monotonic() > until:
            return status == 200


@pytest.mark.parametrize("sources", [1, 16], ids=["one-address", "several-addresses"])
@pytest.mark.parametrize("said", [HALF, IDLE, SLOW], ids=["half-heads", "idle", "slow-bodies"])
def test_however_many_strangers_hold_connections_probes_are_answered(port: int, said: bytes, sources: int) -> None:
    with contextlib.ExitStack() as held:
        for number in range(MANY):
            held.enter_context(stranger(port, f"127.0.0.{number % sources + 1}", said))

        for number in range(20):  # and they do not stop
            assert answer_of(port, "/livez")[0] == 200
            assert is_ready(port)
            for more in range(10):
                held.enter_context(stranger(port, f"127.0.0.{(number + more) % sources + 1}", said))


def test_half_sent_heads_of_strangers_keep_nobody_out(port: int) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(MANY):
            held.enter_context(stranger(port, "127.0.0.2", HALF))

        status = 429
        while status == 429:  # a machine under load asks for patience, and serves
            status, _ = answer_of(port, "/v1/jobs")
        assert status == 200
