import ast
import asyncio
import importlib.util
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast

import h11
import psutil
import pytest

from talka.cli.demo import server as demo_server
from talka.cli.demo.certificate import TLSFiles, make_certificate
from talka.cli.demo.server import DemoCannotListen, DemoServer, start_demo_server
from talka.clock import monotonic_ns
from talka.errors import Invalid
from talka.units import MILLISECOND

PATTERN = bytes(range(256))


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    interim: list[int]

    def json(self) -> dict[str, object]:
        value = json.loads(self.body)
        assert isinstance(value, dict)
        return value


LIMIT_S = 60


class Client:
    """One connection, its answers read by a strict parser."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.transport = cast(asyncio.Transport, writer.transport)
        self.unread = b""

    def send(self, raw: bytes) -> None:
        self.writer.write(raw)

    async def reply(self, method: str = "GET") -> Reply:
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method=method, target="/", headers=[("host", "a")]))
        parser.send(h11.EndOfMessage())
        status, headers, body, interim = 0, dict[str, str](), list[bytes](), list[int]()
        if self.unread:
            parser.receive_data(self.unread)
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                async with asyncio.timeout(LIMIT_S):
                    parser.receive_data(await self.reader.read(65536))
            elif isinstance(event, h11.InformationalResponse):
                interim.append(event.status_code)
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode(): value.decode() for name, value in event.headers}
                headers["set-cookie"] = "\n".join(v.decode() for n, v in event.headers if n == b"set-cookie")
            elif isinstance(event, h11.Data):
                body.append(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self.unread = parser.trailing_data[0]
                return Reply(status, headers, b"".join(body), interim)
            else:
                raise ConnectionResetError(f"no answer but {event!r}")

    async def ask(self, path: str, method: str = "GET", body: bytes = b"", **headers: str) -> Reply:
        self.send(request(path, method, body, **headers))
        return await self.reply(method)

    async def head(self) -> bytes:
        async with asyncio.timeout(LIMIT_S):
            while b"\r\n\r\n" not in self.unread:
                self.unread += await self.reader.read(65536)
        head, _, self.unread = self.unread.partition(b"\r\n\r\n")
        return head

    async def is_closed(self) -> bool:
        """Waits for the end of the connection and says whether nothing came before it."""
        async with asyncio.timeout(LIMIT_S):
            return self.unread + await self.reader.read() == b""


def request(path: str, method: str = "GET", body: bytes = b"", version: str = "1.1", **headers: str) -> bytes:
    headers = {"Host": "demo"} | {name.replace("_", "-"): value for name, value in headers.items()}
    if body:
        headers["Content-Length"] = str(len(body))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/{version}\r\n{lines}\r\n".encode() + body


class Counts(Counter[str]):
    """A server's counts that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Event()

    def __setitem__(self, family: str, count: int) -> None:
        super().__setitem__(family, count)
        self.changed.set()

    async def reach(self, family: str, count: int) -> None:
        async with asyncio.timeout(LIMIT_S):
            while self[family] < count:
                self.changed.clear()
                await self.changed.wait()


def end_stall(server: DemoServer) -> None:
    """Now, and not when its time is over."""
    assert server._stall_timer is not None
    server._stall_timer.cancel()
    server._stall_ends_ns = 0
    server._end_stall()


def close_idle_every(server: DemoServer, seconds: float) -> None:
    """From now on: who has not asked yet, on a busy machine, is not idle."""
    server._idle_timer.cancel()
    server._idle_s = seconds
    server._close_idle()


async def received(server: DemoServer, family: str, count: int) -> None:
    """Waits until that many requests of a family were counted."""
    assert isinstance(server.counts, Counts)
    await server.counts.reach(family, count)


@pytest.fixture
async def server(request: pytest.FixtureRequest) -> AsyncIterator[DemoServer]:
    """With a parameter: its limits."""
    async with await start_demo_server(**getattr(request, "param", {})) as server:
        server.counts = Counts()
        yield server


class Clients:
    """Opens connections and closes them all."""

    def __init__(self, server: DemoServer, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self.server, self.tls, self.host = server, tls, host
        self.opened: list[Client] = []

    async def open(self) -> Client:
        pair = await asyncio.open_connection(self.host, self.server.port, ssl=self.tls)
        self.opened.append(Client(*pair))
        return self.opened[-1]

    async def __aenter__(self) -> "Clients":
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self.opened:
            client.transport.abort()
            try:
                await client.writer.wait_closed()
            except (OSError, ssl.SSLError):
                pass


async def ask(server: DemoServer, path: str, method: str = "GET", body: bytes = b"", **headers: str) -> Reply:
    async with Clients(server) as clients:
        return await (await clients.open()).ask(path, method, body, **headers)


async def test_plain_routes_answer_what_they_promise(server: DemoServer) -> None:
    root, small = await ask(server, "/"), await ask(server, "/json?cache=no")
    assert (root.status, root.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert root.body and root.headers["content-length"] == str(len(root.body))
    assert (small.status, small.headers["content-type"]) == (200, "application/json")
    assert small.json()["message"] == "hello"
    assert (await ask(server, "http://demo/json")).body == small.body
    assert (await ask(server, "/json", "POST", b"ignored")).body == small.body


async def test_echo_says_what_was_sent(server: DemoServer) -> None:
    reply = await ask(server, "/echo?a=1&b=%20", "PATCH", b"caf\xc3\xa9 \xff", X_Thing="One")
    assert reply.json() == {
        "method": "PATCH",
        "path": "/echo",
        "query": "a=1&b=%20",
        "headers": {"host": "demo", "x-thing": "One", "content-length": "7"},
        "body": "café �",
    }
    assert (await ask(server, "/echo", "OPTIONS")).json()["method"] == "OPTIONS"
    async with Clients(server) as clients:
        client = await clients.open()
        client.send(
            b"POST /echo HTTP/1.1\r\nHost: a\r\nA: 1\r\nA: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: x\r\n\r\n"
        )
        told = (await client.reply()).json()
        assert told["body"] == "abcde"
        assert told["headers"] == {"host": "a", "a": "1, 2", "transfer-encoding": "chunked"}


async def test_delay_is_never_short_and_holds_up_nobody_else(server: DemoServer) -> None:
    async with Clients(server) as clients:
        slow, quick = await clients.open(), await clients.open()
        sent_ns = monotonic_ns()
        slow.send(request("/delay/60") * 2)
        quick_at = [(await quick.ask("/"), monotonic_ns())[1] for _ in range(3)]
        first, first_ns = await slow.reply(), monotonic_ns()
        second, second_ns = await slow.reply(), monotonic_ns()
        assert first.status == second.status == 200
        assert quick_at[-1] < first_ns
        assert first_ns - sent_ns >= 60 * MILLISECOND
        assert second_ns - sent_ns >= 120 * MILLISECOND
        assert (await quick.ask("/delay/0")).status == 200


async def test_timers_that_fire_early_shorten_neither_delay_nor_stall(
    server: DemoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hasty(delay_s: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        return on_time(delay_s / 2, callback)

    on_time = server.loop.call_later
    monkeypatch.setattr(server, "loop", SimpleNamespace(call_later=hasty))
    async with Clients(server) as clients:
        client = await clients.open()
        asked_ns = monotonic_ns()
        await client.ask("/delay/20")
        assert monotonic_ns() - asked_ns >= 20 * MILLISECOND
        asked_ns = monotonic_ns()
        await client.ask("/stall/20")
        await client.ask("/")
        assert monotonic_ns() - asked_ns >= 20 * MILLISECOND


@pytest.mark.parametrize("status", [200, 201, 204, 205, 304, 404, 418, 503, 599])
async def test_status_answers_with_the_code_asked_for(server: DemoServer, status: int) -> None:
    async with Clients(server) as clients:
        client = await clients.open()
        reply = await client.ask(f"/status/{status}")
        assert reply.status == status
        assert bool(reply.body) == (status not in (204, 205, 304))
        assert ("content-length" in reply.headers) == (status not in (204, 304))
        assert (await client.ask("/")).status == 200


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 262_144, 262_145, 3_000_001])
async def test_bytes_and_chunked_give_that_many_bytes(server: DemoServer, size: int) -> None:
    expected = (PATTERN * (size // 256 + 1))[:size]
    async with Clients(server) as clients:
        client = await clients.open()
        plain, chunked = await client.ask(f"/bytes/{size}"), await client.ask(f"/chunked/{size}")
        assert plain.headers["content-length"] == str(size)
        assert chunked.headers["transfer-encoding"] == "chunked" and "content-length" not in chunked.headers
        assert plain.body == chunked.body == expected


async def test_a_client_that_does_not_read_holds_up_nobody_and_is_sent_little(server: DemoServer) -> None:
    async with Clients(server) as clients:
        lazy, other = await clients.open(), await clients.open()
        lazy.transport.pause_reading()
        lazy.send(request("/bytes/16777216") + request("/json"))
        while (await other.ask("/count")).json()["requests"] != 2:
            pass
        (waiting,) = [one for one in server._connections if one._is_pending()]
        assert waiting._transport.get_write_buffer_size() < 2**19
        lazy.transport.resume_reading()
        reply = await lazy.reply()
        assert len(reply.body) == 2**24 and reply.body[-256:] == PATTERN
        assert (await lazy.reply()).json()["message"] == "hello"


async def test_coded_answers_decode_to_json(server: DemoServer) -> None:
    for path, bits in (("gzip", 31), ("deflate", 15)):
        reply = await ask(server, f"/{path}")
        assert reply.headers["content-encoding"] == path
        assert json.loads(zlib.decompress(reply.body, bits))["coding"] == path


async def test_drop_closes_on_exactly_every_nth_request_and_counts_all(server: DemoServer) -> None:
    answered = []
    for _ in range(10):
        try:
            answered.append((await ask(server, "/drop/3")).status)
        except h11.RemoteProtocolError:
            answered.append(0)
        assert (await ask(server, "/drop/1000")).status == 200
    assert answered == [200, 200, 0, 200, 200, 0, 200, 200, 0, 200]
    assert server.counts["/drop"] == 20


async def test_drop_closes_without_a_byte_and_after_the_answers_before_it(server: DemoServer) -> None:
    async with Clients(server) as clients:
        client = await clients.open()
        client.send(request("/json") + request("/drop/1") + request("/json"))
        assert (await client.reply()).status == 200
        assert await client.is_closed()


@pytest.mark.parametrize("server", [{"drop_limit": 2}], indirect=True)
async def test_drop_remembers_a_bounded_number_of_counters(server: DemoServer) -> None:
    for number in (10, 20):
        assert (await ask(server, f"/drop/{number}")).status == 200
    refused = await ask(server, "/drop/30")
    assert refused.status == 400 and b"/count/reset" in refused.body
    assert (await ask(server, "/drop/10")).status == 200
    await ask(server, "/count/reset", "POST")
    assert (await ask(server, "/drop/30")).status == 200


async def test_redirects_count_down_to_an_answer(server: DemoServer) -> None:
    path, hops = "/redirect/3", 0
    async with Clients(server) as clients:
        client = await clients.open()
        while (reply := await client.ask(path)).status == 302:
            path, hops = reply.headers["location"], hops + 1
        assert (reply.status, path, hops) == (200, "/redirect/0", 3)


async def test_cookies_are_set_and_echoed(server: DemoServer) -> None:
    reply = await ask(server, "/cookie/set?a=1&b=x%20y")
    assert reply.headers["set-cookie"] == "a=1; Path=/\nb=x%20y; Path=/"
    assert (await ask(server, "/cookie", Cookie="a=1; b=x=y;c")).json() == {"a": "1", "b": "x=y"}
    assert (await ask(server, "/cookie")).json() == {}
    for query in ("", "?a", "?=1", "?a=1;Domain=x"):
        assert (await ask(server, f"/cookie/set{query}")).status == 400


async def test_auth_wants_a_header_and_echoes_it(server: DemoServer) -> None:
    refused = await ask(server, "/auth")
    assert refused.status == 401 and refused.headers["www-authenticate"].startswith("Basic ")
    granted = await ask(server, "/auth", Authorization="Bearer abc")
    assert (granted.status, granted.body) == (200, b"Bearer abc")


async def test_close_answers_and_ends_the_connection(server: DemoServer) -> None:
    async with Clients(server) as clients:
        client = await clients.open()
        reply = await client.ask("/close")
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert await client.is_closed()


async def test_count_is_exact_over_several_connections(server: DemoServer) -> None:
    async with Clients(server) as clients:
        opened = [await clients.open() for _ in range(8)]
        for client in opened:
            client.send(request("/") * 50 + request("/json") * 25 + request("/nowhere") + request("/delay/x"))
        for client in opened:
            for _ in range(77):
                await client.reply()
        unfinished = await clients.open()
        unfinished.send(request("/", "POST", b"12345")[:-1])
        await opened[1].ask("/count?x")
        told = (await opened[0].ask("/count")).json()
        assert told == {"requests": 616, "paths": {"/": 400, "/json": 200, "other": 8, "/delay": 8}}
        assert (server.requests, server.counts) == (616, told["paths"])
        assert (await opened[0].ask("/count/reset")).status == 405
        assert (await opened[0].ask("/count/reset", "POST")).json() == {"requests": 0, "paths": {}}
        unfinished.send(b"5")
        await unfinished.reply()
        assert server.counts == {"/": 1}


async def test_a_stall_holds_every_answer_back_and_releases_them_in_order(server: DemoServer) -> None:
    async with Clients(server) as clients:
        a, b, c, slow = [await clients.open() for _ in range(4)]
        slow.send(request("/delay/20") + request("/json"))
        await received(server, "/delay", 1)
        started_ns = monotonic_ns()
        assert (await a.ask("/stall/80")).status == 200
        for position, client in enumerate((a, b, c), 1):
            client.send(request("/drop/3") + request("/"))
            await received(server, "/drop", position)
        assert (await a.reply()).status == 200
        assert monotonic_ns() - started_ns >= 80 * MILLISECOND
        assert (await b.reply()).status == 200
        assert await c.is_closed()  # it came third, so it was answered third
        assert (await a.reply()).body == (await b.reply()).body
        assert (await slow.reply()).body == b"ok\n"
        assert (await slow.reply()).json()["message"] == "hello"


async def test_a_delay_that_ends_during_a_stall_is_answered_after_it(server: DemoServer) -> None:
    async with Clients(server) as clients:
        slow, other = await clients.open(), await clients.open()
        slow.send(request("/delay/20"))
        await received(server, "/delay", 1)
        started_ns = monotonic_ns()
        assert (await other.ask("/stall/80")).status == 200
        assert (await slow.reply()).status == 200
        assert monotonic_ns() - started_ns >= 80 * MILLISECOND


async def test_a_stall_asked_for_during_a_stall_follows_it(server: DemoServer) -> None:
    async with Clients(server) as clients:
        a, b = await clients.open(), await clients.open()
        await a.ask("/stall/60000")
        a.send(request("/stall/40"))
        await received(server, "/stall", 2)
        gone = await clients.open()
        gone.send(request("/stall/60000"))
        await received(server, "/stall", 3)
        # Reset rather than ended: who only ends its half still wants its answers.
        reset = struct.pack("ii", 1, 0)
        gone.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        is_gone = asyncio.Event()
        forget = server.forget
        server.forget = lambda connection: (forget(connection), is_gone.set())  # type: ignore[method-assign]
        gone.transport.abort()
        async with asyncio.timeout(LIMIT_S):
            await is_gone.wait()
        ended_ns = monotonic_ns()
        end_stall(server)
        assert (await b.ask("/")).status == 200
        assert monotonic_ns() - ended_ns >= 40 * MILLISECOND


@pytest.mark.parametrize(
    "path",
    ["/delay", "/delay/", "/delay/x", "/delay/-1", "/delay/1_0", "/delay/60001", "/delay/1/2", "/stall/60001"]
    + ["/status/100", "/status/199", "/status/600", "/bytes/67108865", "/chunked/67108865", "/bytes/" + "9" * 5000]
    + ["/drop/0", "/drop/+1", "/redirect/a"],
)
async def test_wrong_numbers_are_refused_with_a_sentence(server: DemoServer, path: str) -> None:
    reply = await ask(server, path)
    family = "/" + path.split("/")[1]
    assert reply.status == 400
    assert reply.body.startswith(f"{family}/N wants a whole number from ".encode())
    assert server.counts == {family: 1}


@pytest.mark.parametrize("path", ["/nowhere", "/json/", "/json/x", "//", "/count/x", "/cookie/x", "*"])
async def test_unknown_paths_are_not_found_and_counted_together(server: DemoServer, path: str) -> None:
    async with Clients(server) as clients:
        client = await clients.open()
        assert (await client.ask(path)).status == 404
        assert (await client.ask("/")).status == 200
        assert server.counts == {"other": 1, "/": 1}


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/json",
        "/gzip",
        "/bytes/300000",
        "/chunked/300000",
        "/status/404",
        "/delay/1",
        "/auth",
        "/nowhere",
        "/bytes/x",
    ],
)
async def test_head_gives_the_headers_of_get_without_a_body(server: DemoServer, path: str) -> None:
    async with Clients(server) as clients:
        client = await clients.open()
        get, head, after = await client.ask(path), await client.ask(path, "HEAD"), await client.ask("/json")
        assert (head.status, head.headers, head.body) == (get.status, get.headers, b"")
        assert after.json()["message"] == "hello"


async def test_options_says_what_is_allowed(server: DemoServer) -> None:
    for path in ("/", "/delay/60000", "/drop/1", "*"):
        reply = await ask(server, path, "OPTIONS")
        assert (reply.status, reply.body) == (204, b"") and "GET, HEAD" in reply.headers["allow"]
    assert (await ask(server, "/count/reset", "OPTIONS")).headers["allow"] == "POST, OPTIONS"
    assert (await ask(server, "/nowhere", "OPTIONS")).status == 404


async def test_connections_are_kept_by_the_rules_of_each_version(server: DemoServer) -> None:
    async with Clients(server) as clients:
        for path in ("/", "/json?x", "/status/404"):
            new, asked = await clients.open(), await clients.open()
            for _ in range(3):
                assert "connection" not in (await new.ask(path, Connection="keep-alive")).headers
            assert (await new.ask(path, Connection="close")).headers["connection"] == "close"
            assert await new.is_closed()
            for _ in range(3):
                asked.send(request(path, version="1.0", Connection="Keep-Alive"))
                assert (await asked.reply()).headers["connection"] == "keep-alive"
            asked.send(request(path, version="1.0").replace(b"Host: demo\r\n", b""))
            assert (await asked.reply()).headers["connection"] == "close"
            assert await asked.is_closed()


async def test_chunks_are_not_sent_to_http_1_0(server: DemoServer) -> None:
    async with Clients(server) as clients:
        client = await clients.open()
        client.send(request("/chunked/300000", version="1.0", Connection="keep-alive"))
        async with asyncio.timeout(LIMIT_S):
            head, _, body = (await client.reader.read()).partition(b"\r\n\r\n")
        assert b"Transfer-Encoding" not in head and b"Connection: close" in head
        assert len(body) == 300_000


async def test_pipelined_requests_are_answered_in_order(server: DemoServer) -> None:
    paths = ["/delay/5", "/json", "/chunked/600000", "/", "/status/404", "/delay/1", "/bytes/600000", "/echo", "/close"]
    async with Clients(server) as clients:
        alone = [await ask(server, path) for path in paths]
        client = await clients.open()
        client.send(b"".join(map(request, paths)) + request("/never"))
        assert [(reply.status, reply.body) for reply in [await client.reply() for _ in paths]] == [
            (reply.status, reply.body) for reply in alone
        ]
        assert await client.is_closed()


async def test_reading_pauses_while_many_requests_wait_and_none_is_lost(server: DemoServer) -> None:
    async with Clients(server) as clients:
        client = await clients.open()
        await client.ask("/stall/60000")
        client.send(request("/json") * 3000 + request("/echo", "POST", b"last"))
        await received(server, "/json", demo_server.QUEUE_LIMIT)
        (paused,) = server._connections
        assert not paused._transport.is_reading()
        overshoot = demo_server.SLICE_BYTES // len(request("/json")) + 1
        assert server.counts["/json"] <= demo_server.QUEUE_LIMIT + overshoot
        assert server.is_stalled
        end_stall(server)
        for _ in range(3000):
            assert (await client.reply()).status == 200
        assert (await client.reply()).json()["body"] == "last"
        assert server.counts["/json"] == 3000


async def test_many_large_answers_in_a_row_are_all_sent(server: DemoServer) -> None:
    async with Clients(server) as clients:
        client = await clients.open()
        client.send(request("/bytes/262145", X="x" * 400) * 60 + request("/json"))
        for _ in range(60):
            assert len((await client.reply()).body) == 262_145
        assert (await client.reply()).json()["message"] == "hello"


async def test_answers_wait_for_a_client_that_does_not_read(server: DemoServer) -> None:
    async with Clients(server) as clients:
        lazy, other = await clients.open(), await clients.open()
        lazy.transport.pause_reading()
        lazy.send(request("/bytes/200000") * 1000)
        await received(server, "/bytes", demo_server.QUEUE_LIMIT)
        await other.ask("/")
        (waiting,) = [one for one in server._connections if one._is_pending()]
        assert waiting._transport.get_write_buffer_size() < 2**21
        lazy.transport.resume_reading()
        for _ in range(100):
            assert len((await lazy.reply()).body) == 200_000


async def test_a_full_queue_is_let_go_when_its_connection_is_dropped(server: DemoServer) -> None:
    async with Clients(server) as clients:
        client = await clients.open()
        await client.ask("/stall/20")
        client.send(request("/drop/1") + request("/json") * 300)
        assert await client.is_closed()
        assert (await (await clients.open()).ask("/")).status == 200


async def test_requests_in_single_bytes_are_understood(server: DemoServer) -> None:
    async with Clients(server) as clients:
        client = await clients.open()
        client.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request("/echo?q", "POST", b"body"):
            client.send(bytes([byte]))
            await asyncio.sleep(0)
        told = (await client.reply()).json()
        assert (told["query"], told["body"]) == ("q", "body")


async def test_expectation_of_continue_is_met_in_its_turn(server: DemoServer) -> None:
    head, body = request("/echo", "POST", b"12345", Expect="100-continue")[:-5], b"12345"
    async with Clients(server) as clients:
        client = await clients.open()
        client.send(request("/delay/5") + head)
        assert (await client.reply()).interim == []
        assert await client.head() == b"HTTP/1.1 100 Continue"
        client.send(body)
        assert (await client.reply()).json()["body"] == "12345"
        client.send(head + body)
        assert (await client.reply()).interim == []  # the body was there already
        assert (await client.ask("/", Expect="100-continue")).interim == []  # there is none to wait for
        client.send(request("/echo", "POST", Expect="100-continue", Content_Length="99999999"))
        refused = await client.reply()
        assert (refused.status, refused.interim) == (413, [])


async def test_upgrades_are_declined_by_answering_as_usual(server: DemoServer) -> None:
    async with Clients(server) as clients:
        client = await clients.open()
        client.send((request("/json", Upgrade="h2c", Connection="Upgrade") + request("demo:80", "CONNECT")) * 2)
        assert [(await client.reply()).status for _ in range(4)] == [200, 404, 200, 404]
        assert (await client.ask("/echo", "POST", b"body", Upgrade="h2c", Connection="Upgrade")).status == 501
        assert await client.is_closed()


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET nonsense\r\n\r\n", 400),
        (b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbodyGET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"GET /\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 90_000, 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 65_600 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 90_000, 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 12_000 + b"\r\n", 431),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: " + b"x" * 99_000, 431),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 17000000\r\n\r\n" + b"x" * 16_900_000, 413),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"100000\r\n" + b"x" * 2**20, 0),
    ],
)
@pytest.mark.parametrize("server", [{"linger_s": 60.0}], indirect=True)  # the client must not need it to see the end
async def test_bad_input_is_refused_in_its_turn_and_not_counted(server: DemoServer, raw: bytes, status: int) -> None:
    if status == 0:  # a body too large in chunks
        raw, status = raw + (b"\r\n100000\r\n" + b"x" * 2**20) * 16, 413
    async with Clients(server) as clients:
        client = await clients.open()
        client.send(request("/delay/5") + raw)
        assert (await client.reply()).status == 200
        refused = await client.reply()
        assert (refused.status, refused.headers["connection"]) == (status, "close")
        assert refused.body.endswith(b".\n")
        assert await client.is_closed()
        assert server.counts == {"/delay": 1}


async def test_heads_and_bodies_within_the_limits_are_taken(server: DemoServer) -> None:
    value, body = "x" * 65_000, b"y" * 2**24
    async with Clients(server) as clients:
        client = await clients.open()
        client.send(request("/") + request("/echo", X=value) + request("/json", "POST", body) + request("/echo"))
        assert (await client.reply()).status == 200
        headers = (await client.reply()).json()["headers"]
        assert isinstance(headers, dict) and headers["x"] == value
        assert (await client.reply()).status == 200
        assert (await client.reply()).json()["body"] == ""
        assert (await client.ask("/echo", "PUT", b"once")).json()["body"] == "once"
        assert (await client.ask("/echo")).json()["body"] == ""


async def test_a_client_that_ends_its_half_still_gets_its_answers(server: DemoServer) -> None:
    async with Clients(server) as clients:
        client = await clients.open()
        client.send(request("/delay/5") + request("/bytes/900000"))
        client.writer.write_eof()
        assert (await client.reply()).status == 200
        assert len((await client.reply()).body) == 900_000
        assert await client.is_closed()


async def test_idle_connections_are_closed_and_busy_ones_are_not() -> None:
    async with await start_demo_server() as server, Clients(server) as clients:
        server.counts = Counts()
        idle, busy = await clients.open(), await clients.open()
        busy.send(request("/delay/150"))
        await received(server, "/delay", 1)
        close_idle_every(server, 0.02)
        assert await idle.is_closed()
        assert (await busy.reply()).status == 200


async def test_a_client_that_never_reads_is_given_up() -> None:
    async with await start_demo_server() as server, Clients(server) as clients:
        lazy = await clients.open()
        lazy.transport.pause_reading()
        server.counts = Counts()
        lazy.send(request("/bytes/67108864"))
        await received(server, "/bytes", 1)
        close_idle_every(server, 0.02)
        async with asyncio.timeout(LIMIT_S):
            await server._all_gone.wait()


async def test_every_connection_sends_at_once(server: DemoServer) -> None:
    async with Clients(server) as clients:
        await (await clients.open()).ask("/")
        (connection,) = server._connections
        accepted = connection._transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_close_leaves_no_task_and_no_socket_behind() -> None:
    me, before = psutil.Process(), psutil.Process().num_fds()
    server = await start_demo_server()
    server.counts = Counts()
    async with Clients(server) as clients:
        opened = [await clients.open() for _ in range(5)]
        await opened[0].ask("/")
        opened[1].send(request("/delay/60000"))
        opened[2].send(request("/bytes/67108864"))
        opened[2].transport.pause_reading()
        await received(server, "/bytes", 1)
        await opened[3].ask("/stall/60000")
        opened[4].send(request("/"))
        await received(server, "/", 2)
        await server.close()
        assert await opened[0].is_closed()
        with pytest.raises(ConnectionRefusedError):
            await clients.open()
        assert not [c for c in me.net_connections("tcp") if c.laddr[1] == server.port and c.status != "NONE"]
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert server._stall_timer is not None and server._stall_timer.cancelled()
    assert me.num_fds() == before
    await server.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TLSFiles:
    return make_certificate(tmp_path_factory.mktemp("tls"), "demo.example")


async def test_tls_is_spoken_by_those_who_trust_the_certificate(files: TLSFiles) -> None:
    trusting = ssl.create_default_context(cafile=str(files.cert))
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    async with await start_demo_server(tls=files) as server:
        assert server.url == f"https://127.0.0.1:{server.port}"
        for host in ("127.0.0.1", "localhost"):
            async with Clients(server, trusting, host) as clients:
                client = await clients.open()
                client.send(request("/json") * 100 + request("/delay/1") + request("/bytes/900000"))
                assert all([(await client.reply()).status == 200 for _ in range(101)])
                assert len((await client.reply()).body) == 900_000
                assert (await client.ask("/", Connection="close")).status == 200
                assert await client.is_closed()
                garbled = await clients.open()
                assert (await garbled.ask("/", Host="a\r\nbad")).status == 400
        with pytest.raises(ssl.SSLCertVerificationError):
            async with Clients(server, ssl.create_default_context()) as clients:
                await clients.open()


def test_a_certificate_names_the_host_and_the_loopback(files: TLSFiles, tmp_path: Path) -> None:
    from cryptography import x509

    def names(path: Path) -> list[str]:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return [str(name.value) for name in found]

    assert names(files.cert) == ["demo.example", "localhost", "127.0.0.1", "::1"]
    assert names(make_certificate(tmp_path, "127.0.0.1").cert) == ["127.0.0.1", "localhost", "::1"]
    assert files.key.stat().st_mode & 0o777 == 0o600


async def test_what_cannot_be_listened_on_is_told_in_a_sentence(server: DemoServer, tmp_path: Path) -> None:
    with pytest.raises(DemoCannotListen, match=f"127.0.0.1 port {server.port}: .*Choose another"):
        await start_demo_server(port=server.port)
    with pytest.raises(Invalid, match="Port 65536 does not exist"):
        await start_demo_server(port=65536)
    with pytest.raises(Invalid, match="has no address here"):
        await start_demo_server("no such host")
    (tmp_path / "x").write_text("not a certificate")
    with pytest.raises(Invalid, match="cannot be used"):
        await start_demo_server(tls=TLSFiles(tmp_path / "x", tmp_path / "x"))


async def test_the_address_can_be_dialled() -> None:
    for host, shown in (("localhost", "localhost"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]")):
        try:
            server = await start_demo_server(host)
        except DemoCannotListen:
            assert host == "::1"  # a machine may be without it
            continue
        async with server:
            assert server.url == f"http://{shown}:{server.port}"
            async with Clients(server, host=shown.strip("[]")) as clients:
                assert (await (await clients.open()).ask("/")).status == 200


@pytest.mark.parametrize(
    "behaviour",
    [
        test_plain_routes_answer_what_they_promise,
        test_delay_is_never_short_and_holds_up_nobody_else,
        test_a_client_that_does_not_read_holds_up_nobody_and_is_sent_little,
        test_drop_closes_without_a_byte_and_after_the_answers_before_it,
        test_a_stall_holds_every_answer_back_and_releases_them_in_order,
        test_count_is_exact_over_several_connections,
        test_pipelined_requests_are_answered_in_order,
        test_reading_pauses_while_many_requests_wait_and_none_is_lost,
        test_many_large_answers_in_a_row_are_all_sent,
        test_answers_wait_for_a_client_that_does_not_read,
        test_a_full_queue_is_let_go_when_its_connection_is_dropped,
        test_a_client_that_ends_its_half_still_gets_its_answers,
        test_every_connection_sends_at_once,
    ],
)
def test_uvloop_changes_nothing(behaviour: Callable[[DemoServer], Awaitable[None]]) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def run() -> None:
        async with await start_demo_server() as server:
            server.counts = Counts()
            await behaviour(server)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


PROGRAM = """
import sys, urllib.request, ssl
if {without!r}:
    sys.modules[{without!r}] = None
import asyncio
from talka.cli.demo.server import serve
def ready(url):
    print(type(asyncio.get_running_loop()).__module__, url, flush=True)
serve("127.0.0.1", 0, tls={tls}, on_ready=ready)
"""


@pytest.mark.parametrize(
    ("without", "tls", "number"),
    [("", False, signal.SIGTERM), ("uvloop", False, signal.SIGINT), ("", True, signal.SIGINT)],
)
def test_serve_runs_until_a_signal_and_ends_cleanly(without: str, tls: bool, number: signal.Signals) -> None:
    program = PROGRAM.format(without=without, tls=tls)
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        loop, url = process.stdout.readline().split()
        has_uvloop = importlib.util.find_spec("uvloop") is not None
        assert loop.partition(".")[0] == ("uvloop" if has_uvloop and not without else "asyncio")
        assert url.startswith("https://" if tls else "http://")
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=LIMIT_S) as plain:
            if not tls:
                plain.sendall(request("/"))
                assert plain.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
            process.send_signal(number)
            output, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, output, errors) == (0, "", "")


def test_nothing_optional_is_imported_before_it_is_needed() -> None:
    tree = ast.parse(Path(demo_server.__file__).read_text())
    named = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    assert not named & {"ssl", "uvloop", "cryptography"}
    program = "import sys, talka.cli.demo.server; print({'uvloop', 'cryptography'} & set(sys.modules))"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    assert output.stdout == "set()\n"
