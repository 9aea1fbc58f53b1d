"""What only the engine in C has to fear: references, ends in any order, calls that are awaited oddly, reused
answers."""

import asyncio
import functools
import gc
import gzip
import inspect
import os
import socket
import ssl
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from talka.clock import monotonic_ns
from talka.engine.calls import ExchangeFailed, current_call
from talka.engine.clients.deadlines import SLOT_NS, Timeout
from talka.engine.clients.http_kind import engine_class
from talka.engine.clients.requests import prepare_headers
from talka.engine.clients.urls import parse_url
from talka.engine.load import native
from talka.stats.tally import Exchanges
from talka.units import MILLISECOND, SECOND
from talka.work.responses import BrokenBody, HTTPResponse
from tests.engine.loops import LOOPS, STANDSTILL_S
from tests.engine.node_runs import Told, node_run

pytestmark = pytest.mark.skipif(native.available() is not None, reason=f"no native engine: {native.available()}")

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Answer = Callable[[bytes], bytes | None]


def on_both_loops(scenario: Callable[..., Awaitable[None]]) -> Any:
    @pytest.mark.parametrize("loop_name", LOOPS)
    @functools.wraps(scenario)
    def test(loop_name: str, **fixtures: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(STANDSTILL_S):
                await scenario(**fixtures)

        with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
            runner.run(bounded())

    wanted = list(inspect.signature(scenario).parameters.values())
    added = inspect.Parameter("loop_name", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    test.__signature__ = inspect.Signature([added, *wanted])  # type: ignore[attr-defined]
    del test.__wrapped__  # type: ignore[attr-defined]
    return test


def always_ok(request: bytes) -> bytes:
    return OK


class Protocol(asyncio.Protocol):
    """A server that answers each request by a function; None is no answer, ever."""

    def __init__(self, server: "Server") -> None:
        self.server = server
        self.received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.server.transports.append(transport)

    def data_received(self, data: bytes) -> None:
        self.received += data
        while b"\r\n\r\n" in self.received:
            request, _, self.received = self.received.partition(b"\r\n\r\n")
            self.server.requests += 1
            self.server.asked.set()
            answer = self.server.answer(request)
            if answer is not None:
                self.transport.write(answer)


class Server:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests = 0
        self.asked = asyncio.Event()
        self.transports: list[Any] = []
        self.url = ""


@asynccontextmanager
async def serving(answer: Answer = always_ok) -> AsyncIterator[Server]:
    server = Server(answer)
    listener = await asyncio.get_running_loop().create_server(lambda: Protocol(server), "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
    try:
        yield server
    finally:
        listener.close()
        for transport in server.transports:
            transport.abort()
        await asyncio.sleep(0)


def new_engine(**options: Any) -> Any:
    return engine_class(is_native=True)(Exchanges(), version="1", **options)


@asynccontextmanager
async def running_engine(**options: Any) -> AsyncIterator[Any]:
    engine = new_engine(**options)
    try:
        yield engine
    finally:
        await engine.close()


def counted(engine: Any) -> dict[str, int]:
    exchanges = engine.exchanges
    names = ("ok", "failed", "interrupted", "not_sent", "connections", "reconnects")
    return {name: getattr(exchanges, name) for name in names if getattr(exchanges, name)}


# References


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@on_both_loops
async def test_requests_leave_nothing_behind() -> None:
    answers = [
        OK,
        OK.replace(b"200", b"404"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        b"garbage\r\n",
        b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: /next\r\nContent-Length: 0\r\n\r\n",
    ]
    turn = 0

    def varied(request: bytes) -> bytes:
        nonlocal turn
        turn += 1
        return answers[turn // 50 % len(answers)] if b"/varied" in request else OK

    async with serving(varied) as server, running_engine() as engine:
        headers = prepare_headers({"X": "y"})

        async def some(count: int) -> None:
            client, plain = engine.new_client(), engine.new_client()
            current_call.set(node_run(expect={404}))
            for number in range(count):
                try:
                    response = await client.get(server.url + "varied", redirects=number % 2, headers=headers)
                    assert response.json() if response.body == b"[1]" else response.headers is not None
                except ExchangeFailed:
                    pass
                response = await plain.get(server.url)
                assert (response.status, response.text) == (200, "ok")
                never = asyncio.ensure_future(plain.get(server.url))
                if number % 3 == 0:
                    await asyncio.sleep(0)
                never.cancel()
                await asyncio.wait([never])
            client.close()
            plain.close()
            # Failures and what told of them are cycles. In a process as large as a test's they would wait for long.
            gc.collect()

        def held() -> tuple[int, int, int]:
            gc.collect()
            # Python's cache of attributes holds the names that C asks for by text, each a new string, in up to 4,096
            # places: it fills for thousands of requests, and is no leak.
            sys._clear_type_cache()
            return sys.getallocatedblocks(), len(gc.get_objects()), len(os.listdir("/dev/fd"))

        for _ in range(3):
            await some(700)
        server.transports.clear()
        before, resident = held(), resident_bytes()
        for _ in range(4):
            await some(700)
        server.transports.clear()
        after = held()
        assert after[0] - before[0] < 300, (before, after)  # 4,200 requests: one block each would be seen
        assert after[1] - before[1] < 100, (before, after)
        assert after[2] - before[2] < 10, (before, after)
        assert resident_bytes() - resident < 4_000_000


@on_both_loops
async def test_every_answer_that_is_kept_stays_as_it_was() -> None:
    def numbered(request: bytes) -> bytes:
        number = request.split(b" ")[1][1:]
        return b"HTTP/1.1 200 OK\r\nX: %b\r\nContent-Length: %d\r\n\r\n%b" % (number, len(number), number)

    async with serving(numbered) as server, running_engine() as engine:
        client = engine.new_client()
        kept = [await client.get(f"{server.url}{number}") for number in range(600)]

        async def look(number: int) -> bool:
            response = kept[number]
            return bool(response.body == response.headers["x"].encode() == str(number).encode())

        assert all(await asyncio.gather(*(look(number) for number in range(600))))
        assert len({id(response) for response in kept}) == 600
    await asyncio.sleep(0)
    assert [response.text for response in kept[:3]] == ["0", "1", "2"]  # also when the engine is gone


@on_both_loops
async def test_an_answer_nobody_holds_is_used_again() -> None:
    async with serving() as server, running_engine() as engine:
        client = engine.new_client()
        seen = set()
        for _ in range(50):
            response = await client.get(server.url)
            seen.add(id(response))
            del response
        assert len(seen) <= 2


# What an answer looks like


def both_answers(answer: bytes) -> Any:
    """The answer as each engine gives it."""
    from talka.engine.clients.http import HTTPEngine

    async def scenario() -> list[HTTPResponse]:
        found = []
        async with serving(lambda request: answer) as server:
            for make in (HTTPEngine, engine_class(is_native=True)):
                engine = make(Exchanges(), version="1")
                found.append(await engine.new_client().get("http://127.0.0.1:" + server.url.split(":")[-1]))
                await engine.close()
        return found

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    "answer",
    [
        OK,
        b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"a":[1]}',
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=latin-1\r\nContent-Length: 1\r\n\r\n\xe4",
        b"HTTP/1.1 200 OK\r\nA: 1\r\na: 2\r\nA:\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b"
        % (len(gzip.compress(b'{"a":1}', mtime=0)), gzip.compress(b'{"a":1}', mtime=0)),
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nno",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=none\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=punycode\r\nContent-Length: 400000\r\n\r\n"
        + b"9" * 400_000,
        b"HTTP/1.1 503 Sorry\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_an_answer_shows_the_same_as_that_of_the_engine_in_python(answer: bytes) -> None:
    def shown(response: HTTPResponse, name: str) -> object:
        try:
            value = getattr(response, name)
            return value() if callable(value) else dict(value) if name == "headers" else value
        except BrokenBody as error:
            return str(error)

    python, other = both_answers(answer)
    names = "method url status status_code raw_headers headers body content text json accepted connect_ns tls_ns"
    for name in names.split():
        if name == "connect_ns":
            assert (getattr(python, name) > 0) is (getattr(other, name) > 0)
        else:
            assert shown(python, name) == shown(other, name), name
    assert isinstance(other, HTTPResponse) and repr(python) == repr(other)
    assert 0 < other.intended_ns <= other.sent_ns <= other.first_byte_ns <= other.done_ns
    assert other.timings.total_ms == (other.done_ns - other.sent_ns) / 1e6


@pytest.mark.parametrize("charset", ["punycode", "idna", "unicode_escape", "rot13", "hex", "zlib"])
def test_a_servers_charset_is_no_codec_that_it_chooses(charset: str) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset={charset}\r\nContent-Length: 400000\r\n\r\n"

    for response in both_answers(head.encode() + b"9" * 400_000):
        assert len(response.body) == 400_000
        with pytest.raises(BrokenBody, match=f"names a charset that cannot be read: '{charset}'"):
            _ = response.text


def test_what_may_be_set_on_an_answer_can_be_set() -> None:
    _, response = both_answers(OK)
    for name, value in {
        "status": 404,
        "accepted": False,
        "intended_ns": 5,
        "sent_ns": 6,
        "first_byte_ns": 7,
        "done_ns": 8,
        "connect_ns": 9,
        "tls_ns": 10,
        "method": "PUT",
        "url": "http://other/",
        "raw_headers": [(b"Content-Encoding", b"identity")],
        "body": b"[1]",
    }.items():
        setattr(response, name, value)
        assert getattr(response, name) == value
    assert response.json() == [1] and response.headers["content-encoding"] == "identity"
    for name, bad in (("status", -1), ("status", "x"), ("sent_ns", "x")):
        with pytest.raises((TypeError, ValueError)):
            setattr(response, name, bad)
    with pytest.raises(AttributeError):
        response.other = 1
    with pytest.raises(TypeError):
        type(response)("GET", "http://h/", 200, [], b"")


def test_nothing_of_an_answer_can_be_deleted() -> None:
    """Once a large body was read its buffer is gone: to read it anew handed out memory of others."""
    body = bytes(range(256)) * 1000
    _, response = both_answers(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    assert response.body == body
    for name in ("body", "raw_headers", "method", "url", "_content", "sent_ns", "accepted", "status"):
        with pytest.raises(AttributeError, match="not deleted"):
            delattr(response, name)
    assert response.body == body


def test_an_answer_that_the_collector_cleared_hands_out_no_memory_of_others() -> None:
    body = bytes(range(256)) * 1000
    _, response = both_answers(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    assert response.body == body
    seen = []

    class Last:
        """Kept by the answer, asks it once more when both are collected."""

        def __init__(self, answer: HTTPResponse) -> None:
            self.answer = answer

        def __del__(self) -> None:
            seen.append(self.answer.body)

    response.url = Last(response)
    del response
    gc.collect()
    assert len(seen) == 1 and seen[0] in (body, b"")


def test_an_answer_that_leads_to_itself_is_collected() -> None:
    _, response = both_answers(OK)
    response.body = [response]
    kind = type(response)
    del response
    gc.collect()
    assert not any(type(found) is kind and isinstance(found.body, list) for found in gc.get_objects())


# Awaiting


@on_both_loops
async def test_a_call_that_is_never_awaited_sends_nothing_and_says_so() -> None:
    async with serving() as server, running_engine() as engine:
        client = engine.new_client()
        await client.get(server.url)
        with pytest.warns(RuntimeWarning, match="never awaited"):
            client.get(server.url)
        assert server.requests == 1
        assert counted(engine) == {"ok": 1, "connections": 1}


@on_both_loops
async def test_a_call_is_sent_when_it_is_awaited_and_not_before() -> None:
    async with serving() as server, running_engine() as engine:
        client = engine.new_client()
        await client.get(server.url)
        later = client.get(server.url)
        before = monotonic_ns()
        response = await later
        assert response.sent_ns >= before


@on_both_loops
async def test_a_call_is_awaited_once() -> None:
    async with serving(lambda request: None) as server, running_engine() as engine:
        call = engine.new_client().get(server.url)
        first = asyncio.ensure_future(call)
        await server.asked.wait()
        with pytest.raises(RuntimeError, match="awaited already"):
            await call
        first.cancel()
        await asyncio.wait([first])
        with pytest.raises(RuntimeError, match="already awaited"):
            await call
        assert counted(engine) == {"interrupted": 1, "connections": 1}


@on_both_loops
async def test_calls_are_coroutines_to_everything_in_asyncio() -> None:
    async with serving() as server, running_engine() as engine:
        client = engine.new_client()
        assert asyncio.iscoroutine(call := client.get(server.url))
        assert (await call).status == 200
        assert (await asyncio.create_task(client.get(server.url))).status == 200
        assert (await asyncio.wait_for(client.get(server.url), 5)).status == 200
        assert [one.status for one in await asyncio.gather(*(client.get(server.url) for _ in range(3)))] == [200] * 3
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(client.get(server.url)) for _ in range(3)]
        assert [task.result().status for task in tasks] == [200] * 3
        assert counted(engine) == {"ok": 9, "connections": 3}


@on_both_loops
async def test_a_timeout_around_a_call_interrupts_it() -> None:
    async with serving(lambda request: None if b"slow" in request else OK) as server, running_engine() as engine:
        client = engine.new_client()
        await client.get(server.url)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await client.get(server.url + "slow")
        assert (await client.get(server.url)).status == 200
        assert counted(engine) == {"ok": 2, "interrupted": 1, "connections": 2, "reconnects": 1}


@pytest.mark.parametrize("rounds", range(12))
@on_both_loops
async def test_a_call_may_be_cancelled_at_any_point(rounds: int) -> None:
    async with serving() as server, running_engine() as engine:
        client = engine.new_client()
        task = asyncio.create_task(client.get(server.url))
        for _ in range(rounds):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        seen = engine.exchanges
        if task.cancelled():
            assert seen.ok + seen.interrupted + seen.not_sent <= 1  # none when it had not begun
        else:
            assert task.result().status == 200 and seen.ok == 1
        assert not any(connection.is_busy for connection in engine.connections)
        assert (await client.get(server.url)).status == 200


@on_both_loops
async def test_a_call_that_is_closed_or_dropped_under_way_is_interrupted() -> None:
    async with serving(lambda request: None) as server, running_engine() as engine:
        client = engine.new_client()
        for end in ("close", "drop", "throw"):
            # A connection is needed before the call can be driven by hand.
            await opened(client, server.url)
            call = client.get(server.url)
            call.send(None)
            if end == "close":
                call.close()
                call.close()
            elif end == "throw":
                with pytest.raises(ZeroDivisionError, match="given"):
                    call.throw(ZeroDivisionError, "given", None)
            else:
                del call
        assert counted(engine)["interrupted"] == 3
        for given in (ZeroDivisionError(), ZeroDivisionError):
            with pytest.raises(ZeroDivisionError):
                client.get(server.url).throw(given)
        with pytest.raises(TypeError):
            client.get(server.url).throw("no exception")


async def opened(client: Any, url: str) -> None:
    """Put an open connection into the pool."""
    parsed = parse_url(url)
    request = client._engine.bare_request("GET", url)
    connection = await client._connect(request, client._engine.timeout, monotonic_ns() + 60 * SECOND)
    client._pools[parsed.origin].put(connection)


@on_both_loops
async def test_bad_arguments_are_refused_when_the_call_is_made() -> None:
    async with running_engine() as engine:
        client = engine.new_client()
        for positions, named in ((("http://h/", 1), {}), ((), {}), (("http://h/",), {"other": 1}), ((), {"json": 1})):
            with pytest.raises(TypeError):
                client.get(*positions, **named)
        client.get(url="http://h/", headers=None).close()


# Ends


@on_both_loops
async def test_an_engine_may_be_closed_from_within_a_pump() -> None:
    def close(*_: object) -> None:
        engine.core.close()

    async with serving() as server:
        engine = new_engine(trace=close)
        clients = [engine.new_client() for _ in range(3)]
        outcomes = await asyncio.gather(*(client.get(server.url) for client in clients), return_exceptions=True)
        assert any(isinstance(outcome, HTTPResponse) for outcome in outcomes)
        assert not engine.connections
        await engine.close()


@on_both_loops
async def test_a_client_may_be_closed_from_within_a_pump() -> None:
    def close(*_: object) -> None:
        for client in clients:
            client.close()

    async with serving() as server, running_engine(trace=close) as engine:
        clients = [engine.new_client() for _ in range(5)]
        outcomes = await asyncio.gather(*(client.get(server.url) for client in clients), return_exceptions=True)
        answered = sum(isinstance(outcome, HTTPResponse) for outcome in outcomes)
        assert answered and all(isinstance(one, HTTPResponse | asyncio.CancelledError) for one in outcomes)
        assert engine.exchanges.ok == answered


@pytest.mark.parametrize("order", ["engine first", "client first", "loop first", "nothing is closed"])
@pytest.mark.parametrize("loop_name", LOOPS)
def test_ends_may_come_in_any_order(order: str, loop_name: str) -> None:
    LOOPS[loop_name]().close()  # the first one of a process leaves descriptors open that all later ones use
    descriptors = len(os.listdir("/dev/fd"))

    async def begin() -> tuple[Any, Any, Any]:
        loop = asyncio.get_running_loop()
        server = Server(lambda request: None if b"slow" in request else OK)
        listener = await loop.create_server(lambda: Protocol(server), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
        engine = new_engine()
        client = engine.new_client()
        response = await client.get(url)
        pending = loop.create_task(client.get(url + "slow"))
        server.asked.clear()
        await server.asked.wait()
        listener.close()
        for transport in server.transports:
            transport.abort()
        if order == "engine first":
            await engine.close()
        elif order == "client first":
            client.close()
        if order in ("engine first", "client first"):
            await asyncio.gather(pending, return_exceptions=True)
            await engine.close()
        else:
            pending.cancel()
            if order == "nothing is closed":
                await asyncio.gather(pending, return_exceptions=True)
        await asyncio.sleep(0)
        return engine, client, response

    loop = LOOPS[loop_name]()
    engine, client, response = loop.run_until_complete(begin())
    loop.close()
    assert response.text == "ok"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tasks nobody waited for
        del engine, client, response, loop, begin
        gc.collect()
    gc.collect()
    assert len(os.listdir("/dev/fd")) <= descriptors


@on_both_loops
async def test_a_closed_engine_refuses_and_closes_again() -> None:
    async with serving() as server:
        engine = new_engine()
        client = engine.new_client()
        await client.get(server.url)
        await engine.close()
        await engine.close()
        engine.core.pump()
        with pytest.raises(RuntimeError, match="closed"):
            await client.get(server.url)
        assert counted(engine) == {"ok": 1, "not_sent": 1, "connections": 1}


# Time


@on_both_loops
async def test_deadlines_are_never_early_and_hardly_late() -> None:
    waits_ms = [5, 12, 12, 25, 40, 41, 42, 80, 120, 1500, 1600, 3000, 3100]  # a pause meets neighbours alike
    async with serving(lambda request: None) as server, running_engine() as engine:

        async def late(wait_ms: int) -> int:
            client = engine.new_client()
            await opened(client, server.url)  # connecting takes none of the time
            before = monotonic_ns()
            with pytest.raises(ExchangeFailed, match="no answer"):
                await client.get(server.url, timeout=Timeout(response_s=wait_ms / 1000))
            return monotonic_ns() - before - wait_ms * MILLISECOND

        overshoots = await asyncio.gather(*(late(wait_ms) for wait_ms in waits_ms))
        assert min(overshoots) >= 0
        assert min(overshoots) < 3 * SLOT_NS  # each may meet a pause of the machine; not all of them do
        assert counted(engine) == {"failed": len(waits_ms), "connections": len(waits_ms)}


@on_both_loops
async def test_a_deadline_beyond_the_ring_is_kept() -> None:
    async with serving(lambda request: None) as server, running_engine() as engine:
        client = engine.new_client()
        long = asyncio.create_task(client.get(server.url, timeout=3600))
        await server.asked.wait()
        with pytest.raises(ExchangeFailed, match="no answer"):
            await client.get(server.url, timeout=Timeout(response_s=0.02))
        assert not long.done()
        long.cancel()
        await asyncio.wait([long])


@on_both_loops
async def test_the_core_can_be_woken_at_an_instant() -> None:
    async with running_engine() as engine:
        woken: asyncio.Queue[int] = asyncio.Queue()

        def pump() -> None:
            woken.put_nowait(monotonic_ns())
            engine.core.pump()

        loop = asyncio.get_running_loop()
        loop.remove_reader(engine.core.fileno())
        loop.add_reader(engine.core.fileno(), pump)
        start = monotonic_ns()
        engine.core.wake_at(start + 30 * SECOND)
        engine.core.wake_at(start + 5 * MILLISECOND)
        first = await woken.get()
        assert start + 5 * MILLISECOND <= first < start + 30 * SECOND
        engine.core.wake_at(first + MILLISECOND)  # the earlier wish is spent, and so is the one it took the place of
        assert await woken.get() >= first + MILLISECOND


# Under way


@on_both_loops
async def test_a_request_larger_than_the_sockets_buffer_is_sent_whole() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        body = bytes(range(256)) * 40_000
        async with running_engine() as engine:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
            call = asyncio.create_task(engine.new_client().post(url, data=body))
            peer, _ = await loop.sock_accept(listener)
            with peer:
                received = b""
                while not received.endswith(body[-1000:]) or len(received) < len(body):
                    received += await loop.sock_recv(peer, 1 << 20)
                await loop.sock_sendall(peer, OK)
                assert (await call).status == 200
                assert received.partition(b"\r\n\r\n")[2] == body
            assert engine.exchanges.bytes_sent == len(received)


@on_both_loops
async def test_an_answer_before_the_request_was_through_ends_the_connection() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        async with running_engine() as engine:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
            call = asyncio.create_task(engine.new_client().post(url, data=bytes(1 << 25)))
            peer, _ = await loop.sock_accept(listener)
            with peer:
                await loop.sock_recv(peer, 1000)
                await loop.sock_sendall(peer, OK)
                assert (await call).status == 200
            assert not engine.connections


class HalfTls:
    """Stands for an SSLObject and both its buffers: what it has to say is put into `says`."""

    def __init__(self) -> None:
        self.says = b""

    def read(self, *_: object) -> int:
        raise ssl.SSLWantReadError

    def write(self, payload: bytes) -> int:
        self.says += payload
        return len(payload)


class Outgoing:
    def __init__(self, tls: HalfTls) -> None:
        self.tls = tls

    def read(self) -> bytes:
        said, self.tls.says = self.tls.says, b""
        return said


class Incoming:
    def write(self, content: bytes) -> int:
        return len(content)

    def write_eof(self) -> None:
        pass


@on_both_loops
async def test_what_tls_says_on_an_idle_connection_is_kept_until_the_socket_takes_it() -> None:
    """An answer to a key update, say: without it nothing after it can be read by the server."""
    from talka._native import Connection, Pool

    async with running_engine() as engine:
        near, far = socket.socketpair()
        near.setblocking(False)
        with far:
            filler = 0
            with pytest.raises(BlockingIOError):
                while True:
                    filler += near.send(bytes(1 << 16))
            tls, pool = HalfTls(), Pool()
            connection = Connection(engine.core, pool, near.detach(), (tls, Incoming(), Outgoing(tls)))
            pool.put(connection)
            for word in (b"[first]", b"[second]"):
                tls.says = word
                far.send(b"x")
                engine.core.pump()
            client = engine.new_client()
            client._pools[parse_url("http://h/").origin] = pool
            call = asyncio.create_task(client.get("http://h/"))
            far.setblocking(False)
            loop, received = asyncio.get_running_loop(), b""
            while not received.endswith(b"\r\n\r\n"):
                received += await loop.sock_recv(far, 1 << 20)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        said = received[filler:]
        assert said.startswith(b"[first][second]GET / HTTP/1.1\r\n")


# What a call tells the run that made it.


@on_both_loops
async def test_a_call_tells_its_run_once_what_came_of_it() -> None:
    told = Told()

    def answer(request: bytes) -> bytes | None:
        if b"/away" in request:
            return b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"
        return b"nonsense\r\n\r\n" if b"/broken" in request else OK

    async with serving(answer) as server, running_engine() as engine:
        client = engine.new_client()
        run = node_run(42, rows=told)
        current_call.set(run)
        first = await client.get(server.url + "away", name="first")
        second = await client.get(server.url)
        assert told.calls == [("answered", "first", first), ("answered", None, second)]
        assert (first.intended_ns, run.has_waited, run.failure) == (42, True, None)
        told.calls.clear()
        for url, name in ((server.url + "broken", "broken"), ("http://127.0.0.1:1/", "refused")):
            with pytest.raises(ExchangeFailed):
                await client.get(url, name=name)
        assert [(what, name, error.kind) for what, name, error in told.calls] == [
            ("failed", "broken", "protocol"),
            ("failed", "refused", "refused"),
        ]
        assert run.failure is not None and run.failure.kind == "protocol"


@on_both_loops
async def test_a_call_that_is_given_up_tells_its_run_that_it_was_cut() -> None:
    told = Told()
    async with serving(lambda request: None) as server, running_engine() as engine:
        client = engine.new_client()
        current_call.set(node_run(rows=told))
        waiting = asyncio.create_task(client.get(server.url, name="waiting"))
        await server.asked.wait()
        waiting.cancel()
        connecting = asyncio.create_task(client.get(server.url, name="connecting"))
        await asyncio.sleep(0)
        connecting.cancel()
        await asyncio.gather(waiting, connecting, return_exceptions=True)
        assert told.calls == [("cut", "waiting", None), ("cut", "connecting", None)]
        told.calls.clear()
        closed = client.get(server.url, name="closed")
        closed.send(None)
        closed.close()
        closed.close()
        assert told.calls == [("cut", "closed", None)]
        told.calls.clear()
        client.get(server.url, name="never").close()
        assert told.calls == []


@on_both_loops
async def test_a_run_that_cannot_be_told_fails_the_call() -> None:
    class Deaf(Told):
        def answered(self, name: str | None, response: Any) -> None:
            raise ValueError("deaf")

    async with serving() as server, running_engine() as engine:
        current_call.set(node_run(rows=Deaf()))
        with pytest.raises(ValueError, match="deaf"):
            await engine.new_client().get(server.url)


@on_both_loops
async def test_a_name_that_is_no_text_is_refused_before_anything_is_sent() -> None:
    async with serving() as server, running_engine() as engine:
        with pytest.raises(
            TypeError, match="name=b'page' is not a text: it is the row under which the call is counted"
        ):
            await engine.new_client().get(server.url, name=b"page")
        engine.core.pour()
        assert (engine.exchanges.not_sent, server.requests) == (1, 0)


# Pauses.


@on_both_loops
async def test_a_pause_lasts_as_long_as_it_says_in_any_task() -> None:
    async with running_engine() as engine:
        before = monotonic_ns()
        assert await engine.pause(20 * MILLISECOND) is None
        assert monotonic_ns() - before >= 19 * MILLISECOND  # a loop may round its timers
        await asyncio.gather(*(asyncio.create_task(as_coroutine(engine.pause(0))) for _ in range(3)))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await engine.pause(60 * SECOND)
        long = asyncio.create_task(as_coroutine(engine.pause(60 * SECOND)))
        await asyncio.sleep(0)
        long.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long


async def as_coroutine(pause: Any) -> None:
    await pause


@on_both_loops
async def test_a_pause_is_awaited_once() -> None:
    async with running_engine() as engine:
        once = engine.pause(0)
        await once
        with pytest.raises(RuntimeError, match="already awaited"):
            await once
        closed = engine.pause(SECOND)
        closed.send(None)
        closed.close()
        with pytest.raises(RuntimeError, match="already awaited"):
            closed.send(None)
        thrown = engine.pause(SECOND)
        with pytest.raises(KeyError):
            thrown.throw(KeyError("x"))
        with pytest.raises(TypeError):
            thrown.throw()
        for length in (-1, "1s", 1 << 64):
            with pytest.raises((ValueError, TypeError, OverflowError)):
                engine.pause(length)


@on_both_loops
async def test_pauses_leave_nothing_behind() -> None:
    async with running_engine() as engine:

        async def some(count: int) -> int:
            for _ in range(count):
                await engine.pause(0)
                engine.pause(1)
            gc.collect()
            return len(gc.get_objects())

        await some(10)
        before = await some(10)
        assert abs(await some(1_000) - before) < 50
