"""The benchmarks' server answers, counts and refuses as its head says: a number against it is worth no more than
that."""

import asyncio
import http.client
import json
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from epoll_server import FLAGS, EpollServer, NotMeasured, compiled, compiler

pytestmark = pytest.mark.skipif(not compiler(), reason="no C compiler is installed")

SANITIZED = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
HOST = "127.0.0.1"
WAIT_S = 30.0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled with the sanitizers, so that an access beyond a buffer ends it and with it the test."""
    folder = tmp_path_factory.mktemp("server")
    try:
        return compiled(folder, flags=FLAGS + SANITIZED)
    except NotMeasured:  # not every compiler has them
        return compiled(folder)


@pytest.fixture
def server(program: Path) -> Iterator[EpollServer]:
    with EpollServer.started(core=None, program=program) as server:
        yield server
        server.counts()  # it still lives


@pytest.fixture
def client(server: EpollServer) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=WAIT_S)
    yield connection
    connection.close()


Answer = tuple[int, bytes, http.client.HTTPMessage]


def ask(client: http.client.HTTPConnection, path: str, method: str = "GET", **more: Any) -> Answer:
    client.request(method, path, **more)
    response = client.getresponse()
    return response.status, response.read(), response.headers


def said_to(server: EpollServer, *parts: bytes) -> bytes:
    """All that it answers until it closes; each part is sent by itself."""
    with socket.create_connection((HOST, server.port), WAIT_S) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            peer.sendall(part)
        return read_to_end(peer)


def read_to_end(peer: socket.socket) -> bytes:
    answers = b""
    while chunk := peer.recv(65536):
        answers += chunk
    return answers


def statuses_of(answers: bytes) -> list[int]:
    return [int(rest[:3]) for rest in answers.split(b"HTTP/1.1 ")[1:]]


def request(path: str, *lines: str, method: str = "GET", body: bytes = b"") -> bytes:
    size = [f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *size, *lines, "", ""]).encode() + body


LAST = "Connection: close"


def test_every_documented_path_is_answered_as_documented(client: http.client.HTTPConnection) -> None:
    assert ask(client, "/")[:2] == (200, b"ok")
    status, body, headers = ask(client, "/json")
    assert (status, len(body), headers["content-type"]) == (200, 90, "application/json")
    assert json.loads(body)["id"] == 7
    assert ask(client, "/page")[:2] == (200, body)
    status, body, headers = ask(client, "/redirect")
    assert (status, body, headers["location"]) == (302, b"", "/")
    assert [ask(client, f"/status/{code}")[0] for code in (200, 204, 304, 404, 500, 503, 599)] == [
        200, 204, 304, 404, 500, 503, 599,
    ]  # fmt: skip
    assert ask(client, "/nowhere")[0] == 404
    assert ask(client, "/status/1000")[0] == ask(client, "/status/100")[0] == ask(client, "/status/x")[0] == 400
    assert ask(client, "/delay/60001")[0] == ask(client, "/delay/-1")[0] == 400


def test_visitor_is_known_by_the_cookie_it_was_given(client: http.client.HTTPConnection) -> None:
    _, body, headers = ask(client, "/cookie")
    assert body == b"new"
    cookie = headers["set-cookie"].partition(";")[0]
    assert ask(client, "/cookie", headers={"Cookie": f"a=1; {cookie}"})[1] == b"known"
    assert ask(client, "/cookie")[2]["set-cookie"].partition(";")[0] != cookie


def test_order_needs_the_token_of_a_login(client: http.client.HTTPConnection) -> None:
    assert ask(client, "/login")[0] == 405
    tokens = [json.loads(ask(client, "/login", "POST", body=b'{"user": "ada"}')[1])["token"] for _ in range(2)]
    assert len(set(tokens)) == 2
    assert ask(client, "/order", "POST")[0] == 401
    assert ask(client, "/order", "POST", headers={"Authorization": "Bearer user-3"})[0] == 401
    for token in tokens:
        assert ask(client, "/order", "POST", headers={"Authorization": f"Bearer {token}"})[0] == 201


def test_head_is_answered_without_a_body(client: http.client.HTTPConnection) -> None:
    for path, size in (("/", "2"), ("/json", "90"), ("/status/500", "0"), ("/delay/1", "2")):
        _, body, headers = ask(client, path, "HEAD")
        assert (body, headers["content-length"]) == (b"", size)
    assert ask(client, "/")[1] == b"ok"  # the connection is still in step


def test_counts_are_by_path_and_by_name(server: EpollServer, client: http.client.HTTPConnection) -> None:
    for _ in range(3):
        ask(client, "/page?id=3&name=list")
    ask(client, "/page", headers={"X-Name": "first"})
    ask(client, "/page?name=ignored", headers={"x-name": "first"})
    ask(client, "/nowhere", "POST", body=b"x" * 1000)
    counts = server.counts()
    assert counts["requests"] == 6
    assert counts["paths"] == {"/page": 5, "/nowhere": 1, "(other)": 0}
    assert counts["names"] == {"list": 3, "first": 2, "(other)": 0}
    assert counts["connections"] == 2
    assert server.counted().requests == 6 + 2  # as nginx does, with the questions
    assert server.counted().connections == 1


def test_names_beyond_the_limit_count_as_others(server: EpollServer) -> None:
    paths = [f"/item/{number}" for number in range(1000)]
    asked = [request(path) for path in paths] + [request("/" + "x" * 500), request("/item/0", LAST)]
    assert said_to(server, b"".join(asked)).count(b"HTTP/1.1 404") == 1002
    counts = server.counts()
    assert counts["requests"] == sum(counts["paths"].values()) == 1002
    assert counts["paths"]["/item/0"] == 2
    assert len(counts["paths"]) == 257 and counts["paths"]["(other)"] == 1002 - 257


def test_strange_letters_in_a_name_are_told_as_proper_json(server: EpollServer) -> None:
    said_to(server, b'GET /\xff"\\\x01 HTTP/1.1\r\n' + LAST.encode() + b"\r\n\r\n")
    assert server.counts()["paths"] == {'/\xff"\\\x01': 1, "(other)": 0}


def test_pipelined_requests_are_answered_in_order_also_behind_a_delay(server: EpollServer) -> None:
    asked = [request("/status/201"), request("/delay/30"), request("/status/202", method="POST", body=b"abc")]
    asked += [request("/delay/0", "X-Name: short"), request("/status/203", LAST)]
    answers = said_to(server, b"".join(asked))
    assert statuses_of(answers) == [201, 200, 202, 200, 203]
    assert server.counts()["paths"] == {
        "/status/201": 1, "/delay/30": 1, "/status/202": 1, "/delay/0": 1, "/status/203": 1, "(other)": 0,
    }  # fmt: skip
    assert server.counts()["names"] == {"short": 1, "(other)": 0}


def test_request_may_come_byte_by_byte(server: EpollServer) -> None:
    whole = request("/page?name=slow", "X-Other: 1", LAST, method="POST", body=b"\r\n\r\nGET / HTTP/1.1\r\n\r\n")
    answers = said_to(server, *(bytes([byte]) for byte in whole))
    assert answers.count(b"HTTP/1.1 200 OK") == 1
    counts = server.counts()
    assert counts["paths"] == {"/page": 1, "(other)": 0} and counts["names"] == {"slow": 1, "(other)": 0}


def test_body_of_any_size_is_read_to_its_end_and_is_no_request(server: EpollServer) -> None:
    body = request("/json") * 50_000
    answers = said_to(server, request("/", method="PUT", body=body) + request("/status/404", LAST))
    assert statuses_of(answers) == [200, 404]
    assert server.counts()["paths"] == {"/": 1, "/status/404": 1, "(other)": 0}


async def test_peer_that_does_not_read_gets_all_its_answers_later(server: EpollServer) -> None:
    """Every batch of answers ends with a delayed one, so one of them comes while earlier answers wait for the peer."""
    batches, size = 400, 200
    asked = (request("/json") * size + request("/delay/1")) * batches + request("/status/204", LAST)
    reader, writer = await asyncio.open_connection(HOST, server.port, limit=2**16)
    writer.write(asked)
    drained = asyncio.create_task(writer.drain())
    # Its buffers are full once it stands still; others are answered meanwhile.
    before, after = -1, 0
    while before != after or not after:
        before = after
        await asyncio.sleep(0.05)
        after = (await asyncio.to_thread(server.counts))["requests"]
    assert after < batches * size
    answers = await asyncio.wait_for(reader.read(-1), WAIT_S)
    await drained
    writer.close()
    await writer.wait_closed()
    texts = [rest.rpartition(b"\r\n\r\n")[2] for rest in answers.split(b"HTTP/1.1 ")[1:]]
    assert [len(text) for text in texts] == ([90] * size + [2]) * batches + [0]
    assert server.counts()["requests"] == batches * (size + 1) + 1


@pytest.mark.parametrize(
    ("bad", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET  HTTP/1.1\r\n\r\n", 400),
        (b"GET http://x/ HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"BREW / HTTP/1.1\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n folded: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length:\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 16384, 431),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 16384 + b"\r\n\r\n" + b"x" * 500_000, 431),
        (b"\x16\x03\x01" + b"\x00" * 20_000, 431),
    ],
)
def test_what_is_no_request_is_refused_and_closed(server: EpollServer, bad: bytes, status: int) -> None:
    answers = said_to(server, request("/") + bad)
    assert statuses_of(answers) == [200, status]
    assert b"Connection: close" in answers
    assert server.counts()["paths"] == {"/": 1, "(other)": 0}


def test_refused_peer_may_send_its_rest_but_not_without_end(server: EpollServer) -> None:
    with socket.create_connection((HOST, server.port), WAIT_S) as peer:
        peer.sendall(b"nonsense\r\n\r\n")
        assert statuses_of(read_to_end(peer)) == [400]
        for _ in range(3):
            peer.sendall(b"x" * 1000)
        with pytest.raises(ConnectionError):
            for _ in range(1000):
                peer.sendall(b"x" * 100_000)
    assert server.counts()["connections"] == 1


def test_http_1_0_is_closed_unless_it_asks_for_more(server: EpollServer) -> None:
    assert said_to(server, b"GET / HTTP/1.0\r\n\r\n" + request("/")).count(b"HTTP/1.1 200") == 1
    kept = b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"
    assert said_to(server, kept + request("/", LAST)).count(b"HTTP/1.1 200") == 2


def test_peers_that_vanish_leave_nothing_behind(server: EpollServer) -> None:
    for part in (b"", b"GET / HT", request("/delay/50"), request("/delay/60000") + b"GET", request("/json") * 20_000):
        peer = socket.create_connection((HOST, server.port), WAIT_S)
        peer.setblocking(False)
        peer.send(part)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, at once
        peer.close()
    deadline = time.monotonic() + WAIT_S
    while server.counted().connections and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.counted().connections == 0


async def test_no_delay_of_many_at_once_ends_early(server: EpollServer) -> None:
    async def waited(milliseconds: int) -> float:
        reader, writer = await asyncio.open_connection(HOST, server.port)
        began = time.monotonic()
        writer.write(request(f"/delay/{milliseconds}", LAST))
        assert (await asyncio.wait_for(reader.read(-1), WAIT_S)).endswith(b"ok")
        writer.close()
        await writer.wait_closed()
        return (time.monotonic() - began) * 1000

    delays = [200, 1, 300, 100] * 25
    took = await asyncio.gather(*(waited(milliseconds) for milliseconds in delays))
    assert [lasted >= delay for lasted, delay in zip(took, delays, strict=True)] == [True] * 100


def test_without_free_files_connections_wait_until_others_are_closed(program: Path) -> None:
    with EpollServer.started(core=None, program=program) as server:
        used = len(list(Path(f"/proc/{server.worker.pid}/fd").iterdir()))
        server.counts()
        resource.prlimit(server.worker.pid, resource.RLIMIT_NOFILE, (used + 4, used + 4))
        peers = [socket.create_connection((HOST, server.port), WAIT_S) for _ in range(10)]
        for peer in peers:
            peer.sendall(request("/", LAST))
        for peer in peers:
            assert read_to_end(peer).endswith(b"ok")
            peer.close()
        assert server.counts()["requests"] == 10


def test_server_ends_with_its_standard_input(program: Path) -> None:
    with subprocess.Popen([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline().startswith(b"listening ")
        process.stdin.close()
        assert process.wait(WAIT_S) == 0
