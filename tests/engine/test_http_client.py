"""The client against scripted servers on the loopback interface, with both engines on both event loops."""

import asyncio
import errno
import functools
import gc
import inspect
import os
import select
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import trustme

from talka.clock import monotonic_ns
from talka.engine.calls import ExchangeFailed, current_call
from talka.engine.clients import deadlines, opening
from talka.engine.clients.connection import Connection
from talka.engine.clients.deadlines import BadTimeout, Timeout
from talka.engine.clients.http import HTTPEngine, HTTPLimits, TooManyConnections
from talka.engine.clients.http_kind import engine_class
from talka.engine.clients.opening import BadCertificates, Resolver, connect_failure
from talka.engine.clients.requests import (
    BadBody,
    BadHeader,
    Form,
    Request,
    prepare_auth,
    prepare_cookies,
    prepare_data,
    prepare_file,
    prepare_headers,
    prepare_params,
)
from talka.engine.clients.urls import BadURL, parse_url
from talka.engine.load import native
from talka.stats.tally import Exchanges
from talka.work.responses import HTTPResponse
from tests.engine.loops import LOOPS, STANDSTILL_S
from tests.engine.node_runs import node_run

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LAST = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nlast"
LOOPBACK_6 = ("::1", 0)
HERE = "http://127.0.0.1:1/"
NO_ARGUMENTS = (None, None, None, None, None, None)


engine_name: ContextVar[str] = ContextVar("engine_name")
"""Which one the test is about."""


def on_both_loops(scenario: Callable[..., Awaitable[None]], engines: tuple[str, ...] = ("python", "native")) -> Any:
    """The scenario as a test, once for each engine and event loop."""

    @pytest.mark.parametrize("loop_name", LOOPS)
    @pytest.mark.parametrize("engine", engines)
    @functools.wraps(scenario)
    def test(engine: str, loop_name: str, **fixtures: Any) -> None:
        if engine == "native" and (obstacle := native.available()) is not None:
            pytest.skip(f"no native engine: {obstacle}")

        async def bounded() -> None:
            engine_name.set(engine)
            async with asyncio.timeout(STANDSTILL_S):
                await scenario(**fixtures)

        with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
            runner.run(bounded())

    wanted = list(inspect.signature(scenario).parameters.values())
    added = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("engine", "loop_name")]
    test.__signature__ = inspect.Signature([*added, *wanted])  # type: ignore[attr-defined]
    del test.__wrapped__  # type: ignore[attr-defined]
    return test


in_python_on_both_loops = functools.partial(on_both_loops, engines=("python",))


class Hold:
    """Writes some bytes and then nothing more, until the test lets it."""

    def __init__(self, before: bytes = b"") -> None:
        self.before = before
        self.reached = asyncio.Event()
        self.release = asyncio.Event()


class Close:
    """Writes some bytes and closes, politely or with a reset."""

    def __init__(self, before: bytes = b"", reset: bool = False) -> None:
        self.before = before
        self.reset = reset


Answer = bytes | Hold | Close | Callable[[bytes], bytes]


class Server:
    """Gives the scripted answers, one for each request, and then the last one for ever."""

    def __init__(self, answers: tuple[Answer, ...]) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.connections = 0
        self.base = ""
        self.handlers: set[asyncio.Task[Any]] = set()

    def url(self, path: str = "/") -> str:
        return self.base + path

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.handlers.add(task)
        self.connections += 1
        try:
            while True:
                request = await read_request(reader)
                self.requests.append(request)
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                match answer:
                    case Hold():
                        writer.write(answer.before)
                        answer.reached.set()
                        await answer.release.wait()
                        writer.write(OK)
                    case Close():
                        writer.write(answer.before)
                        await writer.drain()
                        if answer.reset:
                            sock = writer.get_extra_info("socket")
                            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                            writer.transport.abort()
                        return
                    case bytes():
                        writer.write(answer)
                    case _:
                        writer.write(answer(request))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self.handlers.discard(task)


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
    )
    return head + await reader.readexactly(length)


@asynccontextmanager
async def serving(
    *answers: Answer, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    server = Server(answers or (OK,))
    listener = await asyncio.start_server(server.handle, host, 0, ssl=tls, limit=1 << 24)
    port = listener.sockets[0].getsockname()[1]
    server.base = f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        yield server
    finally:
        listener.close()
        handlers = list(server.handlers)
        for task in handlers:
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
        await asyncio.sleep(0)


@asynccontextmanager
async def running_engine(**options: Any) -> AsyncIterator[HTTPEngine]:
    make = engine_class(is_native=True) if engine_name.get() == "native" else HTTPEngine
    engine = make(Exchanges(), version="1", **options)
    try:
        yield engine
    finally:
        await engine.close()
        assert engine.connections == set()


def counted(engine: HTTPEngine) -> dict[str, int]:
    """The counters that are not zero, without the bytes."""
    exchanges = engine.exchanges
    names = ("ok", "failed", "interrupted", "not_sent", "connections", "reconnects")
    return {name: getattr(exchanges, name) for name in names if getattr(exchanges, name)}


async def fails(call: Awaitable[Any], kind: str, words: str = "") -> ExchangeFailed:
    with pytest.raises(ExchangeFailed) as caught:
        await call
    assert caught.value.kind == kind, str(caught.value)
    assert words in str(caught.value)
    return caught.value


@asynccontextmanager
async def closed_port() -> AsyncIterator[int]:
    """A port that refuses connections, held so that nobody else begins to listen there."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield int(sock.getsockname()[1])


def lines(request: bytes) -> list[bytes]:
    return request.partition(b"\r\n\r\n")[0].split(b"\r\n")


# Calls and answers


@on_both_loops
async def test_every_method_asks_once_and_brings_the_answer() -> None:
    async with serving() as server, running_engine() as engine:
        client = engine.new_client()
        for name in ("get", "post", "put", "patch", "delete", "options"):
            response = await getattr(client, name)(server.url("/a?b=c"))
            assert (response.status, response.body, response.method) == (200, b"ok", name.upper())
            assert response.url == server.url("/a?b=c")
            assert lines(server.requests[-1])[0] == f"{name.upper()} /a?b=c HTTP/1.1".encode()
        assert len(server.requests) == 6
        assert counted(engine) == {"ok": 6, "connections": 1}
        assert engine.exchanges.bytes_sent == sum(len(request) for request in server.requests)
        assert engine.exchanges.bytes_received == 6 * len(OK)
        assert engine.pulse == 6


@on_both_loops
async def test_head_needs_no_body_and_keeps_the_connection() -> None:
    async with serving(OK[:-2], OK) as server, running_engine() as engine:
        client = engine.new_client()
        response = await client.head(server.url())
        assert (response.status, response.body, response.headers["content-length"]) == (200, b"", "2")
        assert (await client.get(server.url())).body == b"ok"
        assert counted(engine) == {"ok": 2, "connections": 1}


@on_both_loops
async def test_an_error_status_is_an_answer_and_a_failed_exchange() -> None:
    async with serving(OK.replace(b"200", b"404")) as server, running_engine() as engine:
        response = await engine.new_client().get(server.url())
        assert response.status == 404 and not response.accepted
        assert counted(engine) == {"failed": 1, "connections": 1}


@on_both_loops
async def test_a_status_the_step_expects_is_a_success() -> None:
    async with serving(OK.replace(b"200", b"404")) as server, running_engine() as engine:
        current_call.set(node_run(expect={404}))
        response = await engine.new_client().get(server.url())
        assert response.accepted
        assert counted(engine) == {"ok": 1, "connections": 1}


@on_both_loops
async def test_only_the_first_call_of_a_step_takes_its_intended_start() -> None:
    async with serving() as server, running_engine() as engine:
        client = engine.new_client()
        current_call.set(node_run(42))
        first = await client.get(server.url())
        before = monotonic_ns()
        second = await client.get(server.url())
        assert first.intended_ns == 42
        assert before <= second.intended_ns <= second.sent_ns


@on_both_loops
async def test_times_are_in_order_and_connecting_is_told_once() -> None:
    async with serving() as server, running_engine() as engine:
        client = engine.new_client()
        before = monotonic_ns()
        first = await client.get(server.url())
        second = await client.get(server.url())
        assert before <= first.intended_ns <= first.sent_ns <= first.first_byte_ns <= first.done_ns <= monotonic_ns()
        assert 0 < first.connect_ns <= first.sent_ns - before
        assert (first.tls_ns, second.connect_ns, second.tls_ns) == (0, 0, 0)


@on_both_loops
async def test_a_large_body_goes_both_ways() -> None:
    body = bytes(range(256)) * 16_384  # more than any socket buffer takes at once

    def echo(request: bytes) -> bytes:
        _, _, content = request.partition(b"\r\n\r\n")
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content

    async with serving(echo) as server, running_engine() as engine:
        client = engine.new_client()
        for _ in range(2):
            assert (await client.post(server.url(), data=body)).body == body
        assert counted(engine) == {"ok": 2, "connections": 1}


@on_both_loops
async def test_chunked_answers_and_answers_until_the_end() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    async with serving(chunked, Close(b"HTTP/1.1 200 OK\r\n\r\nto the end")) as server, running_engine() as engine:
        client = engine.new_client()
        assert (await client.get(server.url())).body == b"hello"
        assert (await client.get(server.url())).body == b"to the end"
        assert counted(engine) == {"ok": 2, "connections": 1}


# What is sent


@on_both_loops
async def test_arguments_reach_the_server(tmp_path: Path) -> None:
    path = tmp_path / "note.txt"
    path.write_bytes(b"from a file")
    async with serving() as server, running_engine() as engine:
        client = engine.new_client()
        response = await client.post(
            server.url("/a?x=1#frag"),
            headers={"X-One": "1"},
            params={"q": ["a b", 2]},
            cookies={"c": "d"},
            auth=("user", "pass"),
            json={"key": [1]},
        )
        seen = lines(server.requests[-1])
        assert seen[0] == b"POST /a?x=1&q=a%20b&q=2 HTTP/1.1"
        assert response.url == server.url("/a?x=1&q=a%20b&q=2#frag")
        for line in (
            b"X-One: 1",
            b"Cookie: c=d",
            b"Authorization: Basic dXNlcjpwYXNz",
            b"Content-Type: application/json",
        ):
            assert line in seen
        assert server.requests[-1].endswith(b'\r\n\r\n{"key":[1]}')

        for data, body in (
            ({"a": 1}, b'{"a":1}'),
            (Form({"a": "b c"}), b"a=b+c"),
            (b"raw", b"raw"),
            ("text", b"text"),
            (prepare_file(str(path)), b"from a file"),
            (prepare_data([1]), b"[1]"),
        ):
            await client.put(server.url(), data=data)
            assert server.requests[-1].endswith(b"\r\n\r\n" + body)
        await client.get(server.url(), auth="token", headers={"Host": "other"})
        assert b"Authorization: Bearer token" in lines(server.requests[-1])
        assert [line for line in lines(server.requests[-1]) if line.startswith(b"Host:")] == [b"Host: other"]


@on_both_loops
async def test_requests_of_prepared_arguments_are_made_once() -> None:
    async with serving() as server, running_engine() as engine:
        url = parse_url(server.url("/prepared"))
        prepared: dict[str, Any] = {
            "headers": prepare_headers({"X": "y"}),
            "params": prepare_params({"p": 1}),
            "cookies": prepare_cookies({"c": "1"}),
            "auth": prepare_auth("token"),
            "data": prepare_data({"a": 1}),
        }
        clients = [engine.new_client(), engine.new_client()]
        for client in clients:
            await client.post(url, **prepared)
            await client.get(url)
            await client.get(str(url))
        assert len(set(server.requests)) == 2
        assert len(engine.prepared) == 1
        assert list(engine.bare["GET"]) == [url]
        # Anything plain among them, and the request is made anew.
        await clients[0].post(url, **(prepared | {"data": {"a": 2}}))
        assert server.requests[-1].endswith(b'{"a":2}')
        assert len(engine.prepared) == 1


@on_both_loops
async def test_what_is_kept_is_bounded() -> None:
    async with serving() as server, running_engine(limits=HTTPLimits(requests=2, urls=2)) as engine:
        client = engine.new_client()
        for number in range(5):
            await client.get(server.url(f"/{number}"))
            await client.get(server.url(f"/{number}"), headers=prepare_headers({"N": number}))
            await client.get(server.url(), timeout=10 + number)
            assert len(engine.bare["GET"]) <= 2 and len(engine.prepared) <= 2
        assert len(server.requests) == 15
        assert len(engine._urls) <= 2
    async with serving() as server, running_engine(limits=HTTPLimits(request_bytes=10)) as engine:
        client = engine.new_client()
        for number in range(3):
            await client.get(server.url(), headers=prepare_headers({"N": number}))
            assert len(engine.prepared) == 1
        for number in range(100):
            deadlines.kept_timeout(number + 1.0)
        assert deadlines._timeout_of_seconds.cache_info().currsize <= 64


@on_both_loops
async def test_requests_of_64_mib_are_kept_and_one_byte_more_begins_afresh() -> None:
    async with running_engine() as engine:
        for key, size in (("small", 1000), ("large", 64 * 1024 * 1024 - 1000)):
            engine.keep((key,), Request("POST", parse_url(HERE), bytes(size), False, False), NO_ARGUMENTS)
        kept = list(engine.prepared)
        assert kept == [("small",), ("large",)]
        engine.keep(("more",), Request("POST", parse_url(HERE), b"x", False, False), NO_ARGUMENTS)
        kept = list(engine.prepared)
        assert kept == [("more",)]


@on_both_loops
async def test_arguments_that_make_no_request_are_refused_and_counted_as_not_sent() -> None:
    async with serving() as server, running_engine() as engine:
        client = engine.new_client()
        url = server.url()
        refused: list[tuple[type[Exception], Awaitable[HTTPResponse]]] = [
            (BadURL, client.get("no-scheme")),
            (BadURL, client.get(["http://h/"])),  # type: ignore[arg-type]
            (BadURL, client.get(["http://h/"], params={"a": 1})),  # type: ignore[arg-type]
            (BadURL, client.get(5)),  # type: ignore[arg-type]
            (BadHeader, client.get(url, headers={"A\n": "b"})),
            (BadHeader, client.get(url, headers={"Cookie": "a=b"}, cookies={"c": "d"})),
            (BadBody, client.post(url, data=b"x", json={})),
            (BadTimeout, client.get(url, timeout=0)),
        ]
        for error, call in refused:
            with pytest.raises(error):
                await call
        assert server.requests == []
        assert counted(engine) == {"not_sent": len(refused)}


# Connections


@on_both_loops
async def test_a_connection_closed_while_idle_is_replaced_and_nothing_is_repeated() -> None:
    async with serving(Close(OK), OK) as server, running_engine() as engine:
        client = engine.new_client()
        await client.get(server.url())
        await engine.all_gone.wait()
        await client.get(server.url())
        assert (server.connections, len(server.requests)) == (2, 2)
        assert counted(engine) == {"ok": 2, "connections": 2, "reconnects": 1}


@on_both_loops
async def test_a_connection_the_server_will_close_is_not_used_again() -> None:
    async with serving(LAST, LAST, OK) as server, running_engine() as engine:
        client = engine.new_client()
        for body in (b"last", b"last", b"ok"):
            assert (await client.get(server.url())).body == body
        assert counted(engine) == {"ok": 3, "connections": 3, "reconnects": 2}


@on_both_loops
async def test_calls_at_the_same_time_use_connections_of_their_own() -> None:
    hold = Hold()
    async with serving(hold, OK) as server, running_engine() as engine:
        client = engine.new_client()
        slow = asyncio.create_task(client.get(server.url("/slow")))
        await hold.reached.wait()
        assert (await client.get(server.url("/fast"))).status == 200
        hold.release.set()
        assert (await slow).status == 200
        await asyncio.gather(client.get(server.url()), client.get(server.url()))
        assert counted(engine) == {"ok": 4, "connections": 2}


@on_both_loops
async def test_users_do_not_share_connections() -> None:
    async with serving() as server, running_engine() as engine:
        for _ in range(2):
            client = engine.new_client()
            await client.get(server.url())
            client.close()
        assert counted(engine) == {"ok": 2, "connections": 2}


@on_both_loops
async def test_one_user_may_not_open_connections_without_end() -> None:
    hold = Hold()
    async with serving(hold) as server, running_engine() as engine:
        client = engine.new_client()
        calls = [asyncio.create_task(client.get(server.url())) for _ in range(engine.limits.connections)]
        await hold.reached.wait()
        with pytest.raises(TooManyConnections, match="64 calls"):
            await client.get(server.url())
        hold.release.set()
        await asyncio.gather(*calls)
        assert counted(engine) == {"ok": 64, "connections": 64, "not_sent": 1}


@on_both_loops
async def test_connections_to_forgotten_origins_are_closed() -> None:
    hold = Hold()
    limits = HTTPLimits(origins=1)
    async with serving() as first, serving(OK, hold) as second, running_engine(limits=limits) as engine:
        client = engine.new_client()
        await client.get(first.url())
        await client.get(second.url())
        assert list(client._pools) == [parse_url(second.url()).origin]
        busy = asyncio.create_task(client.get(second.url()))
        await hold.reached.wait()
        with pytest.raises(TooManyConnections, match="hosts"):
            await client.get(first.url())
        hold.release.set()
        await busy
        assert counted(engine) == {"ok": 3, "connections": 2, "not_sent": 1}


@on_both_loops
async def test_closing_a_client_cancels_its_calls_as_interrupted() -> None:
    hold = Hold()
    async with serving(OK, hold) as server, running_engine() as engine:
        client = engine.new_client()
        await client.get(server.url())
        call = asyncio.create_task(client.get(server.url()))
        await hold.reached.wait()
        client.close()
        with pytest.raises(asyncio.CancelledError):
            await call
        await engine.all_gone.wait()
        assert counted(engine) == {"ok": 1, "interrupted": 1, "connections": 1}


@on_both_loops
async def test_ipv6() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(LOOPBACK_6)
    except OSError:
        pytest.skip("no IPv6 here")
    async with serving(host="::1") as server, running_engine() as engine:
        assert (await engine.new_client().get(server.url())).status == 200
        assert f"Host: [::1]:{parse_url(server.url()).port}".encode() in lines(server.requests[0])


# Failures


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("received", [b"", b"HTTP/1.1 200 OK\r\nContent-", OK[:-1]])
@on_both_loops
async def test_a_connection_that_dies_under_way_is_a_reset_and_never_a_retry(received: bytes, reset: bool) -> None:
    async with serving(OK, Close(received, reset), OK) as server, running_engine() as engine:
        client = engine.new_client()
        await client.get(server.url())
        await fails(client.get(server.url("/dies")), "reset", "/dies")
        assert len(server.requests) == 2
        assert counted(engine) == {"ok": 1, "failed": 1, "connections": 1}
        await client.get(server.url())
        assert counted(engine) == {"ok": 2, "failed": 1, "connections": 2, "reconnects": 1}


@on_both_loops
async def test_garbage_is_a_protocol_failure() -> None:
    async with serving(b"SSH-2.0-OpenSSH\r\n") as server, running_engine() as engine:
        await fails(engine.new_client().get(server.url()), "protocol", "not HTTP/1.1")
        assert counted(engine) == {"failed": 1, "connections": 1}


@on_both_loops
async def test_bodies_above_the_bound_are_a_protocol_failure() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + b"x" * 100
    async with serving(answer) as server, running_engine(max_body_bytes=99) as engine:
        await fails(engine.new_client().get(server.url()), "protocol", "larger than 99")
        assert counted(engine) == {"failed": 1, "connections": 1}


@on_both_loops
async def test_a_refused_connection_was_not_sent() -> None:
    async with running_engine() as engine, closed_port() as port:
        await fails(engine.new_client().get(f"http://127.0.0.1:{port}/"), "refused", f"port {port}")
        assert counted(engine) == {"not_sent": 1}
        assert engine.exchanges.bytes_sent == 0


@on_both_loops
async def test_every_address_is_tried_and_the_good_one_remembered() -> None:
    async with serving() as server, running_engine() as engine, closed_port() as closed:
        url = parse_url(server.url())
        bad = (socket.AF_INET, ("127.0.0.1", closed))
        good = (socket.AF_INET, ("127.0.0.1", url.port))
        url.addresses = [bad, good]
        assert (await engine.new_client().get(url)).status == 200
        assert url.addresses == [good, bad]


class Names:
    """A loop whose resolver is scripted."""

    def __init__(self, found: Any) -> None:
        self.found = found
        self.asked: list[tuple[str, int]] = []
        self.create_task = asyncio.get_running_loop().create_task

    async def getaddrinfo(self, host: str, port: int, type: int) -> Any:
        self.asked.append((host, port))
        await asyncio.sleep(0)
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def scripted_names(engine: HTTPEngine, found: Any) -> Names:
    names = Names(found)
    engine._resolver = Resolver(names, engine.limits.hosts)  # type: ignore[arg-type]
    return names


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (UnicodeError("label too long"), "label too long"),
        ([], "has none"),
    ],
)
@on_both_loops
async def test_a_name_without_an_address_is_a_dns_failure(found: Any, words: str) -> None:
    async with running_engine() as engine:
        names = scripted_names(engine, found)
        for _ in range(2):
            failure = await fails(engine.new_client().get("http://nowhere.invalid/"), "dns", "'nowhere.invalid'")
            assert words in str(failure)
        await fails(engine.resolve(parse_url("http://nowhere.invalid/")), "dns")
        assert counted(engine) == {"not_sent": 2}
        assert len(names.asked) == 3  # a failure is not remembered


@on_both_loops
async def test_a_name_is_looked_up_once_for_all() -> None:
    async with serving() as server, running_engine(limits=HTTPLimits(hosts=1)) as engine:
        port = parse_url(server.url()).port
        names = scripted_names(engine, [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))])
        url = f"http://some.name:{port}/"
        cancelled = asyncio.create_task(engine.new_client().get(url))
        others = [asyncio.create_task(engine.new_client().get(url)) for _ in range(5)]
        await asyncio.sleep(0)  # let them all ask
        cancelled.cancel()
        assert [response.status for response in await asyncio.gather(*others)] == [200] * 5
        prepared = parse_url(url)
        await engine.resolve(prepared)
        assert prepared.addresses == [(socket.AF_INET, ("127.0.0.1", port))]
        assert names.asked == [("some.name", port)]
        await engine.resolve(parse_url(f"http://other.name:{port}/"))
        assert len(engine._resolver._addresses) == 1
        assert counted(engine) == {"ok": 5, "connections": 5, "not_sent": 1}


@on_both_loops
async def test_a_lookup_under_way_ends_with_the_engine() -> None:
    async with running_engine() as engine:
        names = scripted_names(engine, None)
        started = asyncio.Event()

        async def never(host: str, port: int, type: int) -> None:
            started.set()
            await asyncio.Event().wait()

        names.getaddrinfo = never  # type: ignore[method-assign]
        call = asyncio.create_task(engine.new_client().get("http://some.name/"))
        await started.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await engine.close()
        assert engine._resolver._asking == {}
        assert counted(engine) == {"not_sent": 1}


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ECONNREFUSED, "refused", "cannot connect to h port 80: connection refused"),
        (errno.ENETUNREACH, "refused", "network is unreachable"),
        (errno.EHOSTUNREACH, "refused", "no route to host"),
        (errno.ETIMEDOUT, "timeout", "connection timed out"),
        (errno.EMFILE, "refused", "ulimit -n"),
        (errno.EADDRNOTAVAIL, "refused", "no free port"),
        (None, "refused", "it has no address"),
    ],
)
def test_failures_to_connect_say_why(number: int | None, kind: str, words: str) -> None:
    error = None if number is None else OSError(number, "told by the loop")
    failure = connect_failure(parse_url("http://h/"), error)
    assert failure.kind == kind
    assert words in str(failure)


@on_both_loops
async def test_a_machine_without_files_left_was_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    async with serving() as server, running_engine() as engine:
        url = parse_url(server.url())
        await engine.resolve(url)
        with monkeypatch.context() as patch:
            patch.setattr(opening.socket, "socket", no_more)
            await fails(engine.new_client().get(url), "refused", "ulimit -n")
        assert counted(engine) == {"not_sent": 1}


@in_python_on_both_loops
async def test_a_connection_lost_as_soon_as_it_was_open_is_a_request_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Connection.connection_made

    def made_and_lost(self: Connection, transport: asyncio.BaseTransport) -> None:
        made(self, transport)
        self.drop()

    monkeypatch.setattr(Connection, "connection_made", made_and_lost)
    async with serving() as server, running_engine() as engine:
        await fails(
            engine.new_client().get(server.url()), "reset", "opening the connection failed: connection reset by peer"
        )
        assert counted(engine) == {"failed": 1, "connections": 1}


# Timeouts


@asynccontextmanager
async def deaf_listener() -> AsyncIterator[int]:
    """A port where connecting hangs: the queue of connections nobody accepts is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = []
        try:
            for _ in range(3):
                sock = socket.socket()
                sock.setblocking(False)
                sock.connect_ex(listener.getsockname())
                waiting.append(sock)
                select.select([listener], [], [], 60)  # until the first is in the queue, which is full with it
            yield int(listener.getsockname()[1])
        finally:
            for sock in waiting:
                sock.close()


@on_both_loops
async def test_connecting_has_a_time_limit_and_was_not_sent() -> None:
    async with deaf_listener() as port, running_engine(timeout=Timeout(connect_s=0.05)) as engine:
        await fails(engine.new_client().get(f"http://127.0.0.1:{port}/"), "timeout", "no connection within 0.05 s")
        limits = Timeout(connect_s=0.03)  # of a plain number, what the call took before it connects would be missing
        await fails(engine.new_client().get(f"http://127.0.0.1:{port}/", timeout=limits), "timeout", "within 0.03 s")
        assert counted(engine) == {"not_sent": 2}


@on_both_loops
async def test_a_tls_handshake_has_a_time_limit_too() -> None:
    async with serving(Hold()) as server, running_engine(timeout=Timeout(connect_s=0.05)) as engine:
        await fails(engine.new_client().get(server.url().replace("http", "https")), "timeout", "no connection")
        assert counted(engine) == {"not_sent": 1}


@on_both_loops
async def test_the_first_byte_has_a_time_limit() -> None:
    async with serving(Hold()) as server, running_engine(timeout=Timeout(response_s=0.05)) as engine:
        before = monotonic_ns()
        await fails(engine.new_client().get(server.url()), "timeout", "no answer after")
        assert monotonic_ns() - before >= 50_000_000
        assert counted(engine) == {"failed": 1, "connections": 1}


async def begun(engine: HTTPEngine) -> None:
    """Until the first byte of an answer is there."""
    async with asyncio.timeout(60):
        while True:
            if any(connection.first_byte_ns for connection in engine.connections):
                return
            await asyncio.sleep(0)


def make_due(engine: HTTPEngine) -> None:
    """The time of the call under way is over."""
    [connection] = engine.connections
    engine.deadlines.add(connection, monotonic_ns())


@in_python_on_both_loops
async def test_the_whole_answer_has_a_time_limit() -> None:
    limits = Timeout(response_s=15, total_s=60)
    async with serving(Hold(OK[:-1])) as server, running_engine() as engine:
        before = monotonic_ns()
        call = asyncio.create_task(engine.new_client().get(server.url(), timeout=limits))
        await begun(engine)
        [connection] = engine.connections
        assert connection.due_ns - before >= 60_000_000_000
        make_due(engine)
        await fails(call, "timeout", "not complete after")
        assert counted(engine) == {"failed": 1, "connections": 1}


@on_both_loops
async def test_an_answer_that_is_never_whole_ends_with_its_time_limit() -> None:
    limits = Timeout(response_s=60, total_s=0.5)
    async with serving(OK, Hold(OK[:-1])) as server, running_engine() as engine:
        client = engine.new_client()
        await client.get(server.url())  # connecting takes none of the time
        before = monotonic_ns()
        await fails(client.get(server.url(), timeout=limits), "timeout", " after ")
        assert 500_000_000 <= monotonic_ns() - before < 60_000_000_000
        assert counted(engine) == {"ok": 1, "failed": 1, "connections": 1}


@on_both_loops
async def test_waiting_for_the_first_byte_ends_with_the_whole_call() -> None:
    limits = Timeout(response_s=60, total_s=0.03)
    async with serving(OK, Hold()) as server, running_engine() as engine:
        client = engine.new_client()
        await client.get(server.url())  # connecting takes none of the time
        before = monotonic_ns()
        await fails(client.get(server.url(), timeout=limits), "timeout", "no answer after")
        assert 30_000_000 <= monotonic_ns() - before < 60_000_000_000
        assert counted(engine) == {"ok": 1, "failed": 1, "connections": 1}


@in_python_on_both_loops
async def test_redirects_share_the_time_limit_of_the_call() -> None:
    redirected_ns: list[int] = []

    def redirect(request: bytes) -> bytes:
        redirected_ns.append(monotonic_ns())
        return b"HTTP/1.1 302 Found\r\nLocation: /next\r\nContent-Length: 0\r\n\r\n"

    hold = Hold()
    async with serving(redirect, hold) as server, running_engine() as engine:
        call = asyncio.create_task(engine.new_client().get(server.url(), timeout=60))
        await hold.reached.wait()
        [connection] = engine.connections
        assert connection.due_ns < redirected_ns[0] + 60_000_000_000
        make_due(engine)
        await fails(call, "timeout", "/next")
        assert counted(engine) == {"ok": 1, "failed": 1, "connections": 1}


@on_both_loops
async def test_a_redirect_gives_a_call_no_more_time() -> None:
    redirect = b"HTTP/1.1 302 Found\r\nLocation: /next\r\nContent-Length: 0\r\n\r\n"
    async with serving(OK, redirect, Hold()) as server, running_engine() as engine:
        client = engine.new_client()
        await client.get(server.url())  # connecting takes none of the time
        await fails(client.get(server.url(), timeout=5), "timeout", "/next")
        assert counted(engine) == {"ok": 2, "failed": 1, "connections": 1}


@on_both_loops
async def test_a_short_limit_holds_on_a_connection_that_had_a_long_one() -> None:
    async with serving(OK, Hold()) as server, running_engine() as engine:
        client = engine.new_client()
        await client.get(server.url())
        await fails(client.get(server.url(), timeout=0.03), "timeout", "no answer")
        assert counted(engine) == {"ok": 1, "failed": 1, "connections": 1}


# Cancellation


@on_both_loops
async def test_a_call_cancelled_after_the_write_is_interrupted_and_its_connection_closed() -> None:
    hold = Hold()
    async with serving(hold, OK) as server, running_engine() as engine:
        client = engine.new_client()
        call = asyncio.create_task(client.get(server.url()))
        await hold.reached.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert counted(engine) == {"interrupted": 1, "connections": 1}
        await client.get(server.url())
        assert counted(engine) == {"ok": 1, "interrupted": 1, "connections": 2, "reconnects": 1}
        assert len(server.requests) == 2


@on_both_loops
async def test_a_call_cancelled_while_connecting_was_not_sent() -> None:
    async with deaf_listener() as port, running_engine() as engine:
        client = engine.new_client()
        call = asyncio.create_task(client.get(f"http://127.0.0.1:{port}/"))
        await engine.resolve(parse_url(f"http://127.0.0.1:{port}/"))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert counted(engine) == {"not_sent": 1}
        assert [pool.opening for pool in client._pools.values()] == [0]


@in_python_on_both_loops
async def test_a_call_cancelled_as_its_connection_opens_closes_it_exactly_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Connection.connection_made

    def made_and_cancelled(self: Connection, transport: asyncio.BaseTransport) -> None:
        made(self, transport)
        call.cancel()

    async with serving() as server, running_engine() as engine:
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "connection_made", made_and_cancelled)
            call = asyncio.create_task(engine.new_client().get(server.url()))
            with pytest.raises(asyncio.CancelledError):
                await call
            await engine.all_gone.wait()
        assert counted(engine) == {"not_sent": 1, "connections": 1}
        # A descriptor closed twice would now be that of this connection.
        client = engine.new_client()
        await client.get(server.url())
        gc.collect()
        await client.get(server.url())
        assert counted(engine) == {"ok": 2, "not_sent": 1, "connections": 2}


@pytest.mark.parametrize(
    ("answer", "expect", "outcome"),
    [
        (OK, (), "ok"),
        (OK.replace(b"200", b"500"), (), "failed"),
        (OK.replace(b"200", b"500"), {500}, "ok"),
        (b"x\r\n", (), "failed"),
    ],
)
@on_both_loops
async def test_a_call_cancelled_just_after_its_end_counts_as_it_ended(
    answer: bytes, expect: Any, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def and_cancel(*arguments: Any, original: Callable[..., None] | None = None) -> None:
        if original is not None:
            original(*arguments)
        call.cancel()

    # The engine in C traces an exchange when it ends, the one in Python when its caller goes on.
    options = {"trace": and_cancel} if engine_name.get() == "native" else {}
    async with serving(answer) as server, running_engine(**options) as engine:
        client = engine.new_client()
        current_call.set(node_run(expect=expect))
        call = asyncio.create_task(client.get(server.url()))
        for name in ("finish", "fail"):
            patched = functools.partialmethod(and_cancel, original=getattr(Connection, name))
            monkeypatch.setattr(Connection, name, patched)
        with pytest.raises(asyncio.CancelledError):
            await call
        assert counted(engine) == {outcome: 1, "connections": 1}
        assert sum(len(pool.idle) for pool in client._pools.values()) == (0 if answer == b"x\r\n" else 1)


# Redirects


def redirect_to(location: str, status: int = 302) -> bytes:
    return f"HTTP/1.1 {status} Moved\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("status", "method", "becomes"),
    [
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (303, "POST", "GET"),
        (303, "PUT", "GET"),
        (303, "HEAD", "HEAD"),
        (301, "PUT", "PUT"),
        (302, "DELETE", "DELETE"),
        (307, "POST", "POST"),
        (308, "PATCH", "PATCH"),
        (301, "GET", "GET"),
    ],
)
@on_both_loops
async def test_redirects_keep_or_change_the_method(status: int, method: str, becomes: str) -> None:
    final = OK[:-2] if becomes == "HEAD" else OK
    async with serving(redirect_to("../b?c=d", status), final) as server, running_engine() as engine:
        options = {} if method in ("GET", "HEAD") else {"data": "body", "headers": {"content-type": "x/y", "X": "z"}}
        current_call.set(node_run(42))
        call = getattr(engine.new_client(), method.lower())
        response = await call(server.url("/a/x"), params={"p": 1}, **options)
        assert (response.status, response.method, response.url) == (200, becomes, server.url("/b?c=d"))
        assert response.intended_ns == 42
        assert lines(server.requests[1])[0] == f"{becomes} /b?c=d HTTP/1.1".encode()
        assert server.requests[1].endswith(b"body") == (becomes == method and bool(options))
        assert (b"content-type: x/y" in lines(server.requests[1])) == (becomes == method and bool(options))
        assert (b"X: z" in lines(server.requests[1])) == bool(options)
        assert counted(engine) == {"ok": 2, "connections": 1}


@on_both_loops
async def test_times_of_a_redirected_call_are_those_of_the_last_hop() -> None:
    seen: list[Any] = []
    async with serving(redirect_to("/b"), OK) as server:
        async with running_engine(trace=lambda result, request: seen.append((result, request))) as engine:
            response = await engine.new_client().get(server.url("/a"))
        first, last = (result for result, _ in seen)
        assert last is response
        assert first.done_ns <= response.sent_ns < response.done_ns
        assert first.intended_ns == response.intended_ns
        assert (first.status, [request for _, request in seen]) == (302, server.requests)


@on_both_loops
async def test_redirects_are_bounded() -> None:
    async with serving(redirect_to("/again")) as server, running_engine() as engine:
        client = engine.new_client()
        await fails(client.get(server.url()), "protocol", "more than 10 redirects")
        assert len(server.requests) == 11
        assert counted(engine) == {"ok": 11, "connections": 1}
        await fails(client.get(server.url(), redirects=2), "protocol", "more than 2 redirects")
        assert len(server.requests) == 14
        for switch in (False, 0):
            response = await client.get(server.url(), redirects=switch)
            assert (response.status, response.headers["location"]) == (302, "/again")
        await fails(client.get(server.url(), redirects=True), "protocol", "more than 10 redirects")


@on_both_loops
async def test_a_redirect_status_without_a_location_or_of_another_kind_is_an_answer() -> None:
    plain = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n"
    async with serving(plain, redirect_to("/x", 300)) as server, running_engine() as engine:
        client = engine.new_client()
        assert (await client.get(server.url())).status == 302
        assert (await client.get(server.url())).status == 300


@pytest.mark.parametrize("location", ["ftp://h/", "http://[::1", "http://u:p@h/", "//h:x/"])
@on_both_loops
async def test_a_redirect_to_a_bad_url_is_a_protocol_failure(location: str) -> None:
    async with serving(redirect_to(location)) as server, running_engine() as engine:
        await fails(engine.new_client().get(server.url()), "protocol", repr(location))
        assert counted(engine) == {"ok": 1, "connections": 1}


@on_both_loops
async def test_odd_locations_are_understood() -> None:
    async with serving(redirect_to("/ä b?c"), OK) as server, running_engine() as engine:
        await engine.new_client().get(server.url())
        assert lines(server.requests[1])[0] == b"GET /%C3%A4%20b?c HTTP/1.1"


@on_both_loops
async def test_secrets_stay_with_the_origin_they_were_meant_for() -> None:
    async with serving() as other, running_engine() as engine:
        async with serving(redirect_to("/same"), redirect_to(other.url("/other"))) as server:
            await engine.new_client().get(
                server.url(), auth="token", cookies={"a": "b"}, headers={"X": "y", "Host": "virtual"}
            )
            await engine.new_client().get(server.url(), headers={"Authorization": "x", "COOKIE": "a=b"})
        secrets = (b"Authorization:", b"Cookie:", b"COOKIE:")
        assert [sum(line.startswith(secrets) for line in lines(request)) for request in server.requests] == [2, 2, 2]
        for request in other.requests:
            assert not any(line.startswith(secrets) or b"virtual" in line for line in lines(request))
        assert b"X: y" in lines(other.requests[0])


@on_both_loops
async def test_a_redirect_to_a_closed_port_was_not_sent() -> None:
    async with closed_port() as closed, running_engine() as engine:
        async with serving(redirect_to(f"http://127.0.0.1:{closed}/")) as server:
            await fails(engine.new_client().get(server.url()), "refused")
            assert counted(engine) == {"ok": 1, "not_sent": 1, "connections": 1}


# Cookies


def sets(*cookies: str, answer: bytes = OK) -> bytes:
    head, rest = answer.split(b"\r\n", 1)
    return head + b"\r\n" + "".join(f"Set-Cookie: {cookie}\r\n" for cookie in cookies).encode() + rest


def cookies_of(request: bytes) -> list[bytes]:
    return [line for line in lines(request) if line.lower().startswith(b"cookie")]


@on_both_loops
async def test_cookies_come_back_to_the_server_that_set_them() -> None:
    script = (sets("a=1", "b=2; Path=/deep"), OK, OK, sets("a=; Max-Age=0"), OK)
    async with serving(*script) as server, running_engine() as engine:
        client = engine.new_client()
        for path in ("/", "/deep/x", "/", "/", "/"):
            await client.get(server.url(path))
        assert [cookies_of(request) for request in server.requests] == [
            [],
            [b"Cookie: b=2; a=1"],
            [b"Cookie: a=1"],
            [b"Cookie: a=1"],
            [],
        ]
        await client.get(server.url("/deep/"), cookies={"b": "mine", "c": "3"})
        await client.get(server.url("/deep/"), headers={"cookie": "all=mine"})
        assert cookies_of(server.requests[-2]) == [b"Cookie: b=mine; c=3"]
        assert cookies_of(server.requests[-1]) == [b"cookie: all=mine"]
        await engine.new_client().get(server.url("/deep/"))
        assert cookies_of(server.requests[-1]) == []


@on_both_loops
async def test_cookies_of_a_redirect_are_sent_to_its_target() -> None:
    async with serving(sets("a=1", answer=redirect_to("/next")), OK) as server, running_engine() as engine:
        await engine.new_client().get(server.url())
        assert cookies_of(server.requests[1]) == [b"Cookie: a=1"]


@on_both_loops
async def test_requests_with_cookies_are_not_kept_for_others() -> None:
    async with serving(sets("a=1"), OK) as server, running_engine() as engine:
        client = engine.new_client()
        headers = prepare_headers({"X": "y"})
        for _ in range(2):
            await client.get(server.url(), headers=headers)
        await engine.new_client().get(server.url(), headers=headers)
        assert [cookies_of(request) for request in server.requests] == [[], [b"Cookie: a=1"], []]


# TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


@pytest.fixture
def authority_file(authority: trustme.CA, tmp_path: Path) -> str:
    path = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


@on_both_loops
async def test_https_with_a_trusted_certificate(authority: trustme.CA, authority_file: str) -> None:
    body = b"x" * 300_000
    large = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with serving(OK, large, LAST, OK, tls=server_context(authority, "127.0.0.1")) as server:
        async with running_engine(verify=authority_file) as engine:
            client = engine.new_client()
            first = await client.get(server.url())
            assert (first.body, first.connect_ns > 0, first.tls_ns > 0) == (b"ok", True, True)
            second = await client.post(server.url(), data=b"y" * 300_000)
            assert (second.body, second.connect_ns, second.tls_ns) == (body, 0, 0)
            assert (await client.get(server.url())).body == b"last"
            assert (await client.get(server.url())).body == b"ok"
            assert counted(engine) == {"ok": 4, "connections": 2, "reconnects": 1}
            # Plain bytes are counted, not what TLS makes of them.
            assert engine.exchanges.bytes_sent == sum(len(request) for request in server.requests)
            assert engine.exchanges.bytes_received == 2 * len(OK) + len(large) + len(LAST)


@on_both_loops
async def test_authorities_are_read_once_for_all(authority: trustme.CA, authority_file: str) -> None:
    async with serving(tls=server_context(authority, "127.0.0.1")) as server:
        async with running_engine(verify=authority_file) as engine:
            assert (await engine.new_client().get(server.url())).status == 200
            os.unlink(authority_file)
            assert (await engine.new_client().get(server.url())).status == 200
            assert counted(engine) == {"ok": 2, "connections": 2}


@on_both_loops
async def test_a_certificate_nobody_vouches_for_is_a_tls_failure(authority: trustme.CA, authority_file: str) -> None:
    async with serving(tls=server_context(authority, "127.0.0.1")) as server:
        async with running_engine() as engine:
            await fails(engine.new_client().get(server.url()), "tls", "certificate")
            assert counted(engine) == {"not_sent": 1}
        async with running_engine(verify=False) as engine:
            assert (await engine.new_client().get(server.url())).status == 200
    async with serving(tls=server_context(authority, "other.example")) as server:
        async with running_engine(verify=authority_file) as engine:
            await fails(engine.new_client().get(server.url()), "tls", "certificate")
            assert counted(engine) == {"not_sent": 1}


@on_both_loops
async def test_a_server_that_does_not_speak_tls_is_a_tls_failure() -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answers.pop())
        writer.close()

    answers = [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"]
    listener = await asyncio.start_server(rude, "127.0.0.1", 0)
    async with running_engine() as engine:
        url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
        for _ in range(2):
            await fails(engine.new_client().get(url), "tls", "handshake failed")
        assert counted(engine) == {"not_sent": 2}
    listener.close()


@on_both_loops
async def test_a_server_that_dies_under_tls_is_a_reset(authority: trustme.CA, authority_file: str) -> None:
    async with serving(Close(OK[:-1]), tls=server_context(authority, "127.0.0.1")) as server:
        async with running_engine(verify=authority_file) as engine:
            await fails(engine.new_client().get(server.url()), "reset")
            assert counted(engine) == {"failed": 1, "connections": 1}


@on_both_loops
async def test_authorities_that_cannot_be_loaded_are_refused(tmp_path: Path) -> None:
    async with running_engine(verify=str(tmp_path / "missing.pem")) as engine:
        with pytest.raises(BadCertificates, match=r"missing\.pem"):
            await engine.new_client().get("https://127.0.0.1:1/")
        assert counted(engine) == {"not_sent": 1}


@on_both_loops
async def test_a_peer_that_will_not_part_is_cut(authority: trustme.CA, authority_file: str) -> None:
    limits = HTTPLimits(close_s=0.5)  # also for the end of a connection that was cut
    stuck = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        writer.transport.pause_reading()  # so it will never see that the client wants to part
        await stuck.wait()
        writer.transport.abort()

    listener = await asyncio.start_server(deaf, "127.0.0.1", 0, ssl=server_context(authority, "127.0.0.1"))
    async with running_engine(verify=authority_file, limits=limits) as engine:
        await engine.new_client().get(f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}/")
    stuck.set()
    listener.close()
    await asyncio.sleep(0)


@on_both_loops
async def test_no_failure_leaves_a_descriptor_behind(authority: trustme.CA) -> None:
    async def after_failures() -> int:
        hold = Hold()
        limits = Timeout(connect_s=0.02)
        async with running_engine() as engine, deaf_listener() as deaf, closed_port() as closed:
            async with serving(Close(), tls=server_context(authority, "127.0.0.1")) as untrusted:
                async with serving(Close(b"HTTP"), b"garbage\r\n", hold) as plain:
                    client = engine.new_client()
                    await fails(client.get(untrusted.url()), "tls")
                    await fails(client.get(plain.url()), "reset")
                    await fails(client.get(plain.url()), "protocol")
                    await fails(client.get(f"http://127.0.0.1:{closed}/"), "refused")
                    await fails(client.get(f"http://127.0.0.1:{deaf}/", timeout=limits), "timeout")
                    await fails(client.get(f"https://127.0.0.1:{deaf}/", timeout=limits), "timeout")
                    await fails(client.get(plain.url().replace("http", "https"), timeout=limits), "timeout")
                    call = asyncio.create_task(client.get(plain.url()))
                    await hold.reached.wait()
                    call.cancel()
                    await asyncio.gather(call, return_exceptions=True)
        for _ in range(20):
            await asyncio.sleep(0)  # transports close in a later round of the loop
        return len(os.listdir("/dev/fd"))

    gc.collect()
    expected = await after_failures()  # with what the loop and the modules open once
    for _ in range(2):
        assert await after_failures() <= expected


# Tracing


@on_both_loops
async def test_every_exchange_is_traced_also_those_that_failed() -> None:
    seen: list[tuple[str, bytes]] = []

    def trace(result: HTTPResponse | ExchangeFailed, request: bytes) -> None:
        seen.append((result.kind if isinstance(result, ExchangeFailed) else str(result.status), request))

    limits = Timeout(connect_s=0.05)
    async with (
        serving(OK, Close()) as server,
        deaf_listener() as deaf,
        closed_port() as closed,
        running_engine(trace=trace) as engine,
    ):
        client = engine.new_client()
        await client.get(server.url())
        await fails(client.get(server.url()), "reset")
        await fails(client.get(f"http://127.0.0.1:{closed}/"), "refused")
        await fails(client.get(f"http://127.0.0.1:{deaf}/", timeout=limits), "timeout")
        assert [kind for kind, _ in seen] == ["200", "reset", "refused", "timeout"]
        assert [request for _, request in seen[:2]] == server.requests
        assert all(request.startswith(b"GET / HTTP/1.1\r\n") for _, request in seen)
