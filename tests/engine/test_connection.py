"""The connection on its own: bytes in, answers out. The one in Python needs no socket, the one in C a pair of them."""

import asyncio
import functools
import gc
import socket
from collections.abc import Callable, Iterator
from typing import Any

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.clock import monotonic_ns
from talka.engine.calls import ExchangeFailed
from talka.engine.clients.connection import MAX_HEAD_BYTES, Connection, Pool, SharedPool
from talka.engine.clients.deadlines import Timeout
from talka.engine.clients.requests import Request, prepare_headers, serialise
from talka.engine.clients.urls import parse_url
from talka.engine.load import native
from talka.stats.tally import Exchanges
from talka.units import SECOND
from talka.work.responses import HTTPResponse

URL = parse_url("http://h/")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Socket:
    """Takes what it is told to take."""

    def __init__(self, takes: int | OSError | None = None) -> None:
        self.takes = takes
        self.sent = b""

    def send(self, payload: bytes) -> int:
        if isinstance(self.takes, OSError):
            raise self.takes
        part = payload if self.takes is None else payload[: self.takes]
        self.sent += part
        return len(part)


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.waiting = 0
        self.ended = ""

    def write(self, data: object) -> None:
        self.written += bytes(data)  # type: ignore[call-overload]

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = "aborted"


class Wire:
    """A connection with a fake transport, and the other end of it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: Socket | None = None, max_body_bytes: int = 1 << 26
    ) -> None:
        self.shared = SharedPool(loop, Exchanges(), max_body_bytes=max_body_bytes)
        self.pool = Pool()
        self.socket = sock if sock is not None else Socket()
        self.connection = Connection(self.shared, self.pool, self.socket)  # type: ignore[arg-type]
        self.transport = Transport()
        self.connection.connection_made(self.transport)

    def ask(self, method: str = "GET", headers: dict[str, str] | None = None) -> "asyncio.Future[HTTPResponse]":
        request = serialise(method, URL, "t", prepare_headers(headers or {}))
        return self.send(request)

    def send(self, request: Request) -> "asyncio.Future[HTTPResponse]":
        due = monotonic_ns() + 60 * SECOND
        return self.connection.send(request, due, due + SECOND)

    @property
    def sent(self) -> bytes:
        return self.socket.sent

    @property
    def exchanges(self) -> Exchanges:
        return self.shared.exchanges

    @property
    def pulse(self) -> int:
        return self.shared.pulse

    @property
    def is_open(self) -> bool:
        return self.connection.is_open

    @property
    def is_cut(self) -> bool:
        return self.transport.ended == "aborted"

    def end(self) -> None:
        self.connection.eof_received()

    def lose(self) -> None:
        self.connection.connection_lost(None)

    def receive(self, *parts: bytes) -> None:
        for part in parts:
            # As an event loop would: never more than the buffer takes, and nothing after the end.
            for start in range(0, len(part), 256 * 1024):
                piece = part[start : start + 256 * 1024]
                if self.transport.ended:
                    return
                self.connection.get_buffer(-1)[: len(piece)] = piece
                self.connection.buffer_updated(len(piece))


class Asked:
    """A call on a `NativeWire`, driven by hand as its Task would."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.future: asyncio.Future[None] = call.send(None)
        self.response: HTTPResponse | None = None

    def done(self) -> bool:
        return self.future.done()

    def cancel(self) -> None:
        self.future.cancel()

    def cancelled(self) -> bool:
        return self.future.cancelled()

    def result(self) -> HTTPResponse:
        if self.response is None:
            with pytest.raises(StopIteration) as stop:
                self.call.send(None)
            self.response = stop.value.value
        assert self.response is not None
        return self.response

    def exception(self) -> BaseException:
        if not hasattr(self, "error"):
            with pytest.raises(ExchangeFailed) as caught:
                self.call.send(None)
            self.error = caught.value
        return self.error


class NativeWire:
    """The same for a connection of the engine in C, which has a socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_body_bytes: int = 1 << 26) -> None:
        from talka._native import Connection, Engine, Pool
        from talka.engine.clients.native_http import NativeHTTPClient

        self.exchanges = Exchanges()
        self.headers: dict[str, str] = {}
        self.core = Engine(self, loop, self.exchanges, Timeout(), max_body_bytes, None)
        near, self.far = socket.socketpair()
        near.setblocking(False)
        self.far.setblocking(False)
        self.pool = Pool()
        self.connection = Connection(self.core, self.pool, near.detach())
        self.sent = b""
        wire = self

        class Client(NativeHTTPClient):
            def _made(self, method: str, url: str, *arguments: Any) -> Request:
                return serialise(method, URL, "t", prepare_headers(wire.headers))

            async def _connect(self, *arguments: Any) -> Any:
                return wire.connection

        self.client = Client(self)
        self.client._pools[URL.origin] = self.pool  # type: ignore[assignment]

    def ask(self, method: str = "GET", headers: dict[str, str] | None = None) -> Asked:
        self.headers = headers or {}
        asked = Asked(getattr(self.client, method.lower())(URL))
        self.sent += self.far.recv(1 << 16)
        self.core.pour()
        return asked

    def receive(self, *parts: bytes) -> None:
        for part in parts:
            rest = memoryview(part)
            while rest and self.is_open:
                rest = rest[self.far.send(rest[: 256 * 1024]) :]
                self.core.pump()

    def end(self) -> None:
        self.far.shutdown(socket.SHUT_WR)
        self.core.pump()

    def lose(self) -> None:
        self.far.close()

    def on_all_gone(self) -> None:
        """The engine tells its owner."""

    def close(self) -> None:
        self.core.close()
        self.far.close()

    @property
    def pulse(self) -> int:
        return self.core.pulse

    @property
    def is_open(self) -> bool:
        return self.connection.is_open

    @property
    def is_cut(self) -> bool:
        return self.connection.fileno() < 0


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


NewWire = Callable[..., Any]


@pytest.fixture(params=["python", "native"])
def new_wire(request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop) -> Iterator[NewWire]:
    if request.param == "python":
        yield functools.partial(Wire, loop)
        return
    if (obstacle := native.available()) is not None:
        pytest.skip(f"no native engine: {obstacle}")
    made: list[NativeWire] = []

    def new(max_body_bytes: int = 1 << 26) -> NativeWire:
        made.append(NativeWire(loop, max_body_bytes))
        return made[-1]

    yield new
    for wire in made:
        wire.close()


def failure(future: "asyncio.Future[HTTPResponse]") -> str:
    error = future.exception()
    assert isinstance(error, ExchangeFailed)
    assert str(error).startswith(("GET http://h/: ", "HEAD http://h/: "))
    return f"{error.kind}: {error}"


# Whole answers


def test_an_answer_is_complete_with_its_last_byte(new_wire: NewWire) -> None:
    wire = new_wire()
    before = monotonic_ns()
    future = wire.ask()
    wire.receive(OK[:-1])
    assert not future.done()
    wire.receive(OK[-1:])
    response = future.result()
    assert (response.status, response.body, response.method, response.url) == (200, b"ok", "GET", URL)
    assert response.raw_headers == [(b"Content-Length", b"2")]
    assert before <= response.sent_ns <= response.first_byte_ns <= response.done_ns <= monotonic_ns()
    assert wire.sent == serialise("GET", URL, "t").payload
    counted = wire.exchanges
    assert (counted.bytes_sent, counted.bytes_received, counted.connections) == (len(wire.sent), len(OK), 1)
    assert wire.pulse == 1
    assert wire.is_open


def test_first_byte_and_end_are_taken_at_different_reads(new_wire: NewWire) -> None:
    wire = new_wire()
    future = wire.ask()
    wire.receive(OK[:10])
    between = monotonic_ns()
    wire.receive(OK[10:])
    response = future.result()
    assert response.first_byte_ns <= between <= response.done_ns


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (OK, 200, b"ok"),
        (CHUNKED + b"5;x=y\r\nhello\r\n1\r\n!\r\n0\r\nTrailer: t\r\n\r\n", 200, b"hello!"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n", 304, b""),
        (b"HTTP/1.1 404\r\nContent-Length: 0\r\n\r\n", 404, b""),
        (b"HTTP/1.1 100 Continue\r\nA: b\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK, 200, b"ok"),
    ],
)
def test_answers_may_be_split_at_any_byte_and_leave_the_connection_fit(
    new_wire: NewWire, answer: bytes, status: int, body: bytes
) -> None:
    for split in range(len(answer) + 1):
        wire = new_wire()
        for _ in range(3):
            future = wire.ask()
            wire.receive(answer[:split], answer[split:])
            response = future.result()
            assert (response.status, response.body) == (status, body)
            names = {name for name, _ in response.raw_headers}
            assert names <= {b"Content-Length", b"Transfer-Encoding"}  # neither trailers nor those of interim answers
        assert wire.is_open


@pytest.mark.parametrize("answer", [OK, CHUNKED + b"2\r\nok\r\n0\r\n\r\n"])
def test_an_answer_may_come_byte_by_byte(new_wire: NewWire, answer: bytes) -> None:
    wire = new_wire()
    future = wire.ask()
    wire.receive(*(answer[index : index + 1] for index in range(len(answer))))
    assert future.result().body == b"ok"


def test_a_body_larger_than_the_buffer_is_put_together(new_wire: NewWire) -> None:
    wire = new_wire()
    body = bytes(range(256)) * 4096
    for _ in range(2):
        future = wire.ask()
        wire.receive(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert future.result().body == body


def test_kept_answers_do_not_change_when_the_buffer_is_used_again(new_wire: NewWire) -> None:
    wire = new_wire()
    first = wire.ask()
    wire.receive(b"HTTP/1.1 200 OK\r\nX: first\r\nContent-Length: 5\r\n\r\nfirst")
    second = wire.ask()
    wire.receive(b"HTTP/1.1 200 OK\r\nX: other\r\nContent-Length: 5\r\n\r\nother")
    assert (first.result().body, first.result().headers["x"]) == (b"first", "first")
    assert (second.result().body, second.result().headers["x"]) == (b"other", "other")


def test_a_body_without_a_length_ends_with_the_connection(new_wire: NewWire) -> None:
    for head in (b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n"):
        for parts in ((b"to the ", b"end"), (b"to the end",)):
            wire = new_wire()
            future = wire.ask()
            wire.receive(head, *parts)
            assert not future.done()
            wire.end()
            assert future.result().body == b"to the end"
            assert not wire.is_open


def test_an_empty_body_without_a_length_ends_with_the_connection(new_wire: NewWire) -> None:
    wire = new_wire()
    future = wire.ask()
    wire.receive(b"HTTP/1.0 200 OK\r\n\r\n")
    wire.end()
    assert future.result().body == b""


# HEAD


@pytest.mark.parametrize(
    ("head", "keeps"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: Keep-Alive\r\n\r\n", True),
    ],
)
def test_an_answer_to_head_ends_with_its_headers(new_wire: NewWire, head: bytes, keeps: bool) -> None:
    for split in range(len(head)):
        wire = new_wire()
        future = wire.ask("HEAD")
        wire.receive(head[:split])
        assert not future.done()
        wire.receive(head[split:])
        assert (future.result().status, future.result().body) == (200, b"")
        assert wire.is_open is keeps
        if keeps:
            following = wire.ask()
            wire.receive(OK)
            assert following.result().body == b"ok"


def test_a_body_in_answer_to_head_is_a_protocol_error(new_wire: NewWire) -> None:
    wire = new_wire()
    future = wire.ask("HEAD")
    wire.receive(OK)
    assert "protocol" in failure(future) and "HEAD" in failure(future)
    assert wire.is_cut


# Keep-alive


@pytest.mark.parametrize(
    ("answer", "headers", "keeps"),
    [
        (OK, {}, True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", {}, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", {}, False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", {}, True),
        (OK, {"Connection": "close"}, False),
    ],
)
def test_either_side_may_ask_to_close_after_the_answer(
    new_wire: NewWire, answer: bytes, headers: dict[str, str], keeps: bool
) -> None:
    wire = new_wire()
    future = wire.ask(headers=headers)
    wire.receive(answer)
    assert future.result().status == 200
    assert wire.is_open is keeps
    assert wire.is_cut is not keeps
    assert (wire.connection in wire.pool.open) is keeps


def test_bytes_on_an_idle_connection_end_it(loop: asyncio.AbstractEventLoop) -> None:
    wire = Wire(loop)
    wire.pool.idle.append(wire.connection)
    wire.receive(OK)
    assert not wire.connection.is_open
    assert wire.transport.ended == "aborted"
    assert wire.pool.idle == [] and wire.pool.lost == 1


def test_the_end_of_an_idle_connection_takes_it_out_of_the_pool_at_once(loop: asyncio.AbstractEventLoop) -> None:
    wire = Wire(loop)
    wire.pool.idle.append(wire.connection)
    wire.connection.eof_received()
    assert wire.pool.idle == [] and wire.pool.open == []
    wire.connection.connection_lost(None)
    assert wire.pool.lost == 1
    assert wire.shared.connections == set() and wire.shared.all_gone.is_set()


def test_what_replaces_a_lost_connection_is_a_reconnect_and_more_is_not(loop: asyncio.AbstractEventLoop) -> None:
    wire = Wire(loop)
    wire.connection.connection_lost(None)
    for _ in range(2):
        Connection(wire.shared, wire.pool).connection_made(Transport())
    assert (wire.shared.exchanges.connections, wire.shared.exchanges.reconnects) == (3, 1)


# Broken answers


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"garbage\r\n\r\n", "not HTTP/1.1"),
        (b"SSH-2.0-OpenSSH\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nBad Name: x\r\n\r\n", "not HTTP/1.1"),
        (CHUNKED + b"zz\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 099 Odd\r\nContent-Length: 0\r\n\r\n", "its status is "),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "101"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "101"),
        (OK + OK, "more than the answer"),
        (OK + b"H", "more than the answer"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\nmore", "more than the answer"),
        (b"HTTP/1.1 204 None\r\n\r\nbody", "more than the answer"),
    ],
)
def test_a_malformed_answer_fails_the_exchange_and_ends_the_connection(
    new_wire: NewWire, answer: bytes, words: str
) -> None:
    wire = new_wire()
    future = wire.ask()
    wire.receive(answer)
    assert failure(future).startswith("protocol: ") and words in failure(future)
    assert wire.is_cut
    assert wire.pool.open == []
    assert wire.pulse == 1


def test_a_head_of_more_than_64_kib_is_refused_however_it_comes(new_wire: NewWire) -> None:
    line = b"X: " + b"x" * 995 + b"\r\n"
    endless = b"HTTP/1.1 200 OK\r\n" + line * 70
    whole = endless + b"Content-Length: 2\r\n\r\nok"
    one_header = b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD_BYTES
    interim = b"HTTP/1.1 100 Continue\r\n\r\n" * 4000
    for parts in ((endless,), (whole,), (whole[:100], whole[100:]), (one_header,), (interim,)):
        wire = new_wire()
        future = wire.ask()
        wire.receive(*parts)
        assert failure(future).startswith("protocol: ") and "head is larger than 65536" in failure(future)
        assert wire.is_cut


def test_a_head_just_below_the_bound_is_fine(new_wire: NewWire) -> None:
    wire = new_wire()
    future = wire.ask()
    wire.receive(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000 + b"Content-Length: 70000\r\n\r\n" + b"z" * 70_000)
    assert len(future.result().raw_headers) == 10_001
    assert len(future.result().body) == 70_000


def test_framing_is_bounded_between_parts_of_the_body_not_over_all(new_wire: NewWire) -> None:
    wire = new_wire()
    future = wire.ask()
    wire.receive(CHUNKED)
    for _ in range(5):
        wire.receive(b"1;" + b"e" * 30_000 + b"\r\n", b"x\r\n")
    wire.receive(b"0\r\n\r\n")
    assert future.result().body == b"xxxxx"


def test_bounds_are_those_of_one_answer_not_of_the_connection(new_wire: NewWire) -> None:
    wire = new_wire()
    answer = b"HTTP/1.1 200 OK\r\nX: " + b"x" * 40_000 + b"\r\nContent-Length: 0\r\n\r\n"
    for _ in range(3):
        future = wire.ask()
        wire.receive(answer[:-4], answer[-4:])
        assert future.result().status == 200


def test_endless_trailers_are_refused(new_wire: NewWire) -> None:
    wire = new_wire()
    future = wire.ask()
    wire.receive(CHUNKED + b"2\r\nok\r\n0\r\n", b"T: t\r\n" * 12_000)
    assert "protocol" in failure(future) and "behind its chunks" in failure(future)


def test_endless_chunk_extensions_are_refused(new_wire: NewWire) -> None:
    wire = new_wire(max_body_bytes=1000)
    future = wire.ask()
    wire.receive(CHUNKED, *(b"1;" + b"e" * 30_000 + b"\r\nx\r\n" for _ in range(3)))
    assert "protocol" in failure(future) and "larger than 1000" in failure(future)


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_body_above_the_bound_is_refused_however_it_comes(new_wire: NewWire, head: bytes) -> None:
    for parts in ((head + b"x" * 11,), (head, b"x" * 11), (head + b"x" * 10, b"x")):
        wire = new_wire(max_body_bytes=10)
        future = wire.ask()
        wire.receive(*parts)
        if not future.done():
            wire.end()
        assert "protocol" in failure(future) and "larger than 10 bytes" in failure(future)


def test_a_body_at_the_bound_is_fine(new_wire: NewWire) -> None:
    wire = new_wire(max_body_bytes=10)
    future = wire.ask()
    wire.receive(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345", b"67890")
    assert future.result().body == b"1234567890"


# Broken connections


@pytest.mark.parametrize(
    ("received", "words"),
    [
        (b"", "without an answer"),
        (b"HTTP/1.1 2", "in the middle"),
        (b"HTTP/1.1 200 OK\r\nA: b\r\n", "in the middle"),
        (OK[:-1], "in the middle"),
        (CHUNKED + b"2\r\nok\r\n", "in the middle"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "in the middle"),
    ],
)
def test_a_connection_closed_before_the_answer_is_complete_is_a_reset(
    new_wire: NewWire, received: bytes, words: str
) -> None:
    wire = new_wire()
    future = wire.ask()
    wire.receive(received)
    wire.end()
    assert failure(future).startswith("reset: ") and words in failure(future)
    wire.lose()
    assert wire.pulse == 1


def test_a_connection_lost_with_an_error_says_which(loop: asyncio.AbstractEventLoop) -> None:
    wire = Wire(loop)
    future = wire.ask()
    wire.receive(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")
    wire.connection.connection_lost(ConnectionResetError(104, "Connection reset by peer"))
    assert failure(future).startswith("reset: ") and "reset by peer" in failure(future)


def test_a_write_that_fails_is_a_reset(loop: asyncio.AbstractEventLoop) -> None:
    wire = Wire(loop, Socket(BrokenPipeError(32, "Broken pipe")))
    future = wire.ask()
    assert failure(future).startswith("reset: ") and "Broken pipe" in failure(future)
    assert not wire.connection.is_open


@pytest.mark.parametrize("takes", [5, BlockingIOError(11, "again")])
def test_what_the_socket_does_not_take_goes_through_the_transport(
    loop: asyncio.AbstractEventLoop, takes: int | OSError
) -> None:
    wire = Wire(loop, Socket(takes))
    future = wire.ask()
    assert wire.socket.sent + wire.transport.written == serialise("GET", URL, "t").payload
    wire.receive(OK)
    assert future.result().status == 200
    assert wire.connection.is_open


def test_an_answer_before_the_request_was_through_ends_the_connection(loop: asyncio.AbstractEventLoop) -> None:
    wire = Wire(loop, Socket(5))
    future = wire.ask()
    wire.transport.waiting = 10
    wire.receive(OK)
    assert future.result().status == 200
    assert not wire.connection.is_open


def test_without_a_socket_the_transport_takes_the_request(loop: asyncio.AbstractEventLoop) -> None:
    wire = Wire(loop)
    wire.connection.socket = None  # as under TLS
    wire.ask()
    assert wire.transport.written == serialise("GET", URL, "t").payload


def test_deadlines_say_in_which_phase_they_struck(loop: asyncio.AbstractEventLoop) -> None:
    for received, words in ((b"", "no answer after"), (b"HTTP", "not complete after")):
        wire = Wire(loop)
        future = wire.ask()
        wire.receive(received)
        wire.connection.on_deadline(monotonic_ns())
        assert failure(future).startswith("timeout: ") and words in failure(future)
        assert wire.transport.ended == "aborted"
        wire.connection.on_deadline(monotonic_ns())


def test_the_first_byte_moves_the_deadline_to_that_of_the_whole_call(loop: asyncio.AbstractEventLoop) -> None:
    wire = Wire(loop)
    wire.ask()
    assert wire.connection.due_ns == wire.connection.total_due_ns - SECOND
    wire.receive(b"H")
    assert wire.connection.due_ns == wire.connection.total_due_ns


def test_an_answer_in_the_round_of_its_cancellation_is_let_go(new_wire: NewWire) -> None:
    wire = new_wire()
    future = wire.ask()
    future.cancel()
    wire.receive(OK)
    assert future.cancelled()
    broken = new_wire()
    future = broken.ask()
    future.cancel()
    broken.receive(b"garbage\r\n")
    assert future.cancelled()


def test_close_cancels_what_is_under_way(loop: asyncio.AbstractEventLoop) -> None:
    wire = Wire(loop)
    future = wire.ask()
    wire.connection.close()
    assert future.cancelled()
    assert wire.transport.ended == "aborted"
    idle = Wire(loop)
    idle.connection.close()
    assert idle.transport.ended == "closed"
    idle.connection.connection_lost(None)
    idle.connection.close()


def test_a_lost_connection_needs_no_garbage_collector(loop: asyncio.AbstractEventLoop) -> None:
    def alive() -> int:
        return sum(isinstance(found, Connection) for found in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = alive()
        wire = Wire(loop)
        for method, answer in (("GET", OK), ("HEAD", OK[:-2])):
            future = wire.ask(method)
            wire.receive(answer)
            assert future.result().status == 200
        assert alive() == before + 1
        wire.connection.connection_lost(None)
        del wire, future
        assert alive() == before
    finally:
        gc.enable()


# Against a strict reference


names = st.from_regex(r"X-[A-Za-z0-9]{1,10}", fullmatch=True)
values = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20).map(str.strip)


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """One valid answer, perhaps with interim answers before it."""
    status = draw(st.sampled_from([200, 201, 204, 205, 301, 304, 404, 500, 599]))
    lines = [f"{name}: {value}" for name, value in draw(st.lists(st.tuples(names, values), max_size=5))]
    if draw(st.booleans()):
        lines.append(draw(st.sampled_from(["Connection: close", "Connection: keep-alive"])))
    body = draw(st.binary(max_size=400))
    framing = draw(st.sampled_from(["length", "chunks", "end"]))
    if status in (204, 304):
        body, wire = b"", b""
    elif framing == "length":
        lines.append(f"Content-Length: {len(body)}")
        wire = body
    elif framing == "chunks":
        lines.append("Transfer-Encoding: chunked")
        cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=5)))
        parts = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True) if start < end]
        extension = draw(st.sampled_from([b"", b";a=b"]))
        wire = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
        wire += b"0\r\n" + draw(st.sampled_from([b"", b"X-Trailer: t\r\n"])) + b"\r\n"
    else:
        wire = body
    interim = draw(
        st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nX-L: y\r\n\r\n"])
    )
    head = "\r\n".join([f"HTTP/1.1 {status} Some Reason", *lines]).encode()
    return interim + head + b"\r\n\r\n" + wire


def reference(method: str, answer: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes, bool]:
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("Host", "h")]))
    client.send(h11.EndOfMessage())
    client.receive_data(answer)
    head, body, ended = None, b"", False
    while not isinstance(event := client.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            client.receive_data(b"")
            ended = True
        elif isinstance(event, h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
    assert head is not None
    return head.status_code, head.headers.raw_items(), body, not ended and client.our_state is h11.DONE


@pytest.mark.parametrize("engine", ["python", "native"])
@settings(deadline=None, derandomize=True, max_examples=200)
@given(answers(), st.lists(st.integers(0, 600), max_size=8), st.sampled_from(["GET", "HEAD"]))
def test_answers_are_read_as_a_strict_reference_reads_them(
    engine: str, answer: bytes, cuts: list[int], method: str
) -> None:
    if engine == "native" and (obstacle := native.available()) is not None:
        pytest.skip(f"no native engine: {obstacle}")
    if method == "HEAD":
        final = answer.rindex(b"Some Reason")
        answer = answer[: answer.index(b"\r\n\r\n", final) + 4]
    loop = asyncio.new_event_loop()
    wire: Any = Wire(loop) if engine == "python" else NativeWire(loop)
    try:
        future = wire.ask(method)
        edges = sorted({0, len(answer), *(cut for cut in cuts if cut < len(answer))})
        wire.receive(*(answer[start:end] for start, end in zip(edges, edges[1:], strict=False)))
        if not future.done():
            wire.end()
        response = future.result()
        status, headers, body, keeps = reference(method, answer)
        assert (response.status, response.body) == (status, body)
        assert [(name.lower(), value) for name, value in response.raw_headers] == [
            (name.lower(), value) for name, value in headers
        ]
        assert wire.is_open is keeps
    finally:
        if engine == "native":
            wire.close()
        loop.close()
