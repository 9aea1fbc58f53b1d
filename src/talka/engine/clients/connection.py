"""One HTTP/1.1 connection: writes a request, reads its answer, and says when both happened.

A connection carries one exchange at a time and never repeats one: if it breaks, the exchange has failed.

HTTP/1.1: RFC 9112.
Decision: docs/decisions/0006-the-http-client.md.
"""

import asyncio
import socket
from dataclasses import dataclass, field
from typing import Final

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from talka.clock import monotonic_ns
from talka.engine.calls import ExchangeFailed
from talka.engine.clients.deadlines import Deadlines
from talka.engine.clients.requests import Request
from talka.stats.tally import Exchanges
from talka.units import NEVER
from talka.work.responses import HTTPResponse

RECEIVE_BUFFER_BYTES: Final = 256 * 1024
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_BODY_BYTES: Final = 64 * 1024 * 1024
MOST_FRAMING: Final = 8
"""Chunks of one byte take six on the wire; beyond this factor the server sends anything but a body."""
LAST_KNOWN_INTERIM: Final = 103
"""The parser knows that answers from 100 to this one have no body. No other below 200 may have one either."""


class SharedPool:
    """What all connections of a process use together.

    One receive buffer serves them all: the event loop asks for it, fills it and hands it over within one callback, and
    everything worth keeping has been copied out before that callback returns. So ten thousand connections need one
    buffer, and no read allocates one.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, exchanges: Exchanges, *, max_body_bytes: int = MAX_BODY_BYTES
    ) -> None:
        self.loop = loop
        self.exchanges = exchanges
        self.max_body_bytes = max_body_bytes
        self.deadlines = Deadlines(loop)
        self.receive_buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self.connections: set[Connection] = set()
        self.all_gone = asyncio.Event()
        """Set when the last connection is lost."""
        self.pulse = 0
        """Grows with every exchange that ended, so that one can tell whether anything was awaited meanwhile."""


@dataclass(slots=True, eq=False)
class Pool:
    """The connections of one virtual user to one origin."""

    idle: "list[Connection]" = field(default_factory=list)
    open: "list[Connection]" = field(default_factory=list)
    """Idle and busy ones."""
    opening: int = 0
    lost: int = 0
    """Closed and not yet replaced: the next to be opened are reconnects."""


class Connection(asyncio.BufferedProtocol):
    """The receiving end of a transport. `send` starts an exchange; the future it returns ends it."""

    __slots__ = (
        "shared",
        "pool",
        "transport",
        "socket",
        "parser",
        "is_open",
        "connect_ns",
        "tls_ns",
        "due_ns",
        "look_ns",
        "total_due_ns",
        "request",
        "waiter",
        "sent_ns",
        "first_byte_ns",
        "status",
        "headers",
        "trailers",
        "chunks",
        "body",
        "received",
        "framing",
        "may_begin",
        "has_head",
        "is_complete",
        "keep_alive",
        "may_linger",
        "on_body",
        "on_message_begin",
    )

    def __init__(self, shared: SharedPool, pool: Pool, sock: socket.socket | None = None) -> None:
        self.shared = shared
        self.pool = pool
        self.socket = sock
        """Set on plain connections only: requests are then written to it directly. See `send`."""
        self.transport: asyncio.Transport | None = None
        self.is_open = False
        """May carry a request, now or after the present one."""
        self.connect_ns = self.tls_ns = 0
        """What opening took; the first answer takes them away."""
        self.due_ns = self.look_ns = self.total_due_ns = NEVER

        self.request: Request | None = None
        self.waiter: asyncio.Future[HTTPResponse] | None = None
        self.sent_ns = self.first_byte_ns = 0
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.trailers: list[tuple[bytes, bytes]] = []
        self.chunks: list[bytes] = []
        """Body parts of the present read."""
        self.body: bytearray | None = None
        """Body parts of earlier reads."""
        self.received = 0
        """Bytes of this answer in earlier reads."""
        self.framing = 0
        """Bytes since anything of the body came: the head, or what stands between and behind chunks."""
        self.may_begin: list[None] = []
        """One entry for each message the server may begin. The parser takes it out itself; a message nobody asked for
        finds none, which is an error in the parser's eyes. So the check costs no Python call."""
        self.has_head = False
        self.is_complete = False
        self.keep_alive = False
        self.may_linger = False
        """Part of the request may still wait in the transport."""

        self.on_body = self.chunks.append
        self.on_message_begin = self.may_begin.pop
        self.parser: HttpResponseParser | None = HttpResponseParser(self)

    # What the client calls

    def send(self, request: Request, due_ns: int, total_due_ns: int) -> "asyncio.Future[HTTPResponse]":
        """Write the request. It is on the wire, or the connection broken, when this returns."""
        shared = self.shared
        payload = request.payload
        self.request = request
        self.total_due_ns = total_due_ns
        self.due_ns = due_ns
        if due_ns < self.look_ns:
            shared.deadlines.add(self, due_ns)
        self.may_begin.append(None)
        waiter = self.waiter = shared.loop.create_future()
        shared.exchanges.bytes_sent += len(payload)
        sock = self.socket
        if sock is None:
            self.may_linger = True
            self.sent_ns = monotonic_ns()
            self.transport.write(payload)  # type: ignore[union-attr]
            return waiter
        # Written past the transport, which is idle whenever a request may start: uvloop's would hold the bytes back
        # until every callback of this round has run, and `sent_ns` would be too early by the work of other users.
        self.sent_ns = monotonic_ns()
        try:
            sent = sock.send(payload)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self.fail("reset", f"the connection broke while the request was written: {error.strerror or error}")
            return waiter
        if sent < len(payload):
            self.may_linger = True
            self.transport.write(memoryview(payload)[sent:])  # type: ignore[union-attr]
        return waiter

    def close(self) -> None:
        """Let go of the connection. An exchange under way is cancelled."""
        self.is_open = False
        self.leave_pool()
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.cancel()
        if self.transport is not None:
            if waiter is None:
                self.transport.close()
            else:
                self.transport.abort()

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.is_open = True
        shared, pool = self.shared, self.pool
        shared.connections.add(self)
        shared.exchanges.connections += 1
        pool.open.append(self)
        if pool.lost:
            pool.lost -= 1
            shared.exchanges.reconnects += 1

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.shared.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        now = monotonic_ns()
        shared = self.shared
        shared.exchanges.bytes_received += nbytes
        if self.waiter is None:
            self.drop()  # nobody asked for these bytes
            return
        if not self.first_byte_ns:
            self.first_byte_ns = now
            self.due_ns = self.total_due_ns
        try:
            if self.request.is_head:  # type: ignore[union-attr]
                self.feed_head(nbytes)
            else:
                self.parser.feed_data(shared.receive_buffer[:nbytes])  # type: ignore[union-attr]
        except (HttpParserError, HttpParserUpgrade) as error:
            self.fail("protocol", self.explain(error))
            return
        if self.is_complete:
            self.finish(now, nbytes)
        else:
            self.expect_more(nbytes)

    def eof_received(self) -> None:
        """The transport closes itself after this; `connection_lost` follows."""
        now = monotonic_ns()
        self.is_open = False
        self.leave_pool()
        if self.waiter is None:
            return
        if self.has_head and not self.is_complete and ends_with_the_connection(self.headers):
            self.keep_alive = False
            self.finish(now, 0)
        elif self.first_byte_ns:
            self.fail("reset", "the server closed the connection in the middle of its answer")
        else:
            self.fail("reset", "the server closed the connection without an answer")

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self.leave_pool()
        if self.waiter is not None:
            reason = getattr(error, "strerror", None) or error or "closed"
            self.fail("reset", f"the connection broke before the answer was complete: {reason}")
        self.shared.deadlines.remove(self)
        self.shared.connections.discard(self)
        if not self.shared.connections:
            self.shared.all_gone.set()
        # The parser holds methods of this object, and this object the parser: without this they would wait for the
        # garbage collector.
        self.parser = None
        self.transport = self.socket = None

    def on_deadline(self, now_ns: int) -> None:
        if self.waiter is None:
            return
        waited_s = (now_ns - self.sent_ns) / 1e9
        if self.first_byte_ns:
            self.fail("timeout", f"the answer was not complete after {waited_s:.2f} s")
        else:
            self.fail("timeout", f"no answer after {waited_s:.2f} s")

    # What the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        self.trailers.append((name, value))

    def on_headers_complete(self) -> None:
        status: int = self.parser.get_status_code()  # type: ignore[union-attr]
        if status >= 200:
            self.status = status
            # Whatever header comes after these is a trailer, which may not pose as a header.
            self.headers, self.trailers = self.trailers, []
            self.has_head = True
            if self.request.is_head:  # type: ignore[union-attr]
                self.is_complete = True
                self.keep_alive = keeps_alive(self.parser.get_http_version(), self.headers)  # type: ignore[union-attr]
        elif status < 100:
            raise ValueError(f"its status is {status}")
        elif status > LAST_KNOWN_INTERIM and announces_a_body(self.trailers):
            # The parser would read that body, and as one of the answer that is still to come.
            raise ValueError(f"it announces a body, and its status is {status}")
        else:
            self.trailers.clear()

    def on_message_complete(self) -> None:
        if not self.has_head:
            self.may_begin.append(None)  # that was an interim answer; the real one is still to come
        elif not self.is_complete:
            self.is_complete = True
            self.keep_alive = self.parser.should_keep_alive()  # type: ignore[union-attr]

    def feed_head(self, nbytes: int) -> None:
        """Feed the parser with a part of an answer to HEAD, of which it cannot know that its head is all of it.

        The last byte comes by itself: a head that is complete before it has something behind it.
        """
        data, parser = self.shared.receive_buffer, self.parser
        assert parser is not None
        parser.feed_data(data[: nbytes - 1])
        if self.is_complete:
            raise HttpParserError
        parser.feed_data(data[nbytes - 1 : nbytes])

    # Ends of an exchange

    def expect_more(self, nbytes: int) -> None:
        self.received += nbytes
        if self.chunks:
            if self.body is None:
                self.body = bytearray()
            for chunk in self.chunks:
                self.body += chunk
            self.chunks.clear()
            self.framing = 0
            if len(self.body) > self.shared.max_body_bytes:
                self.fail("protocol", self.too_large())
        else:
            self.framing += nbytes
            if self.framing > MAX_HEAD_BYTES:
                part = "what stands between or behind its chunks" if self.has_head else "the answer's head"
                self.fail("protocol", f"{part} is larger than {MAX_HEAD_BYTES} bytes")
        if self.received > MOST_FRAMING * self.shared.max_body_bytes + MAX_HEAD_BYTES and self.waiter is not None:
            self.fail("protocol", self.too_large())

    def finish(self, now: int, nbytes: int) -> None:
        """The answer is complete: hand it over and be ready for the next request."""
        request, waiter = self.request, self.waiter
        assert request is not None and waiter is not None
        chunks = self.chunks
        if self.body is not None:
            body = bytes(self.body) + b"".join(chunks)
        elif not chunks:
            body = b""
        elif len(chunks) == 1:
            body = chunks[0]
        else:
            body = b"".join(chunks)
        if self.received + nbytes > MAX_HEAD_BYTES and head_size(self.headers) > MAX_HEAD_BYTES:
            self.fail("protocol", f"the answer's head is larger than {MAX_HEAD_BYTES} bytes")
            return
        if len(body) > self.shared.max_body_bytes:
            self.fail("protocol", self.too_large())
            return
        response = HTTPResponse(request.method, request.url, self.status, self.headers, body)
        response.sent_ns = self.sent_ns
        response.first_byte_ns = self.first_byte_ns
        response.done_ns = now
        if self.connect_ns:
            response.connect_ns = self.connect_ns
            response.tls_ns = self.tls_ns
            self.connect_ns = self.tls_ns = 0
        self.shared.pulse += 1
        self.due_ns = NEVER
        self.waiter = None
        if self.may_linger:
            self.may_linger = False
            if self.transport is not None and self.transport.get_write_buffer_size():
                self.keep_alive = False  # answered before the request was through: the rest may never be read
        if self.keep_alive and not request.is_last and self.is_open:
            self.first_byte_ns = 0
            self.has_head = self.is_complete = False
            if chunks:
                chunks.clear()
            if self.received:
                self.received = self.framing = 0
                self.body = None
            if self.trailers:
                self.trailers.clear()
            if request.is_head:
                self.parser = HttpResponseParser(self)  # the old one may still wait for the body that is not sent
        else:
            self.drop()
        try:
            waiter.set_result(response)
        except asyncio.InvalidStateError:
            pass  # cancelled in this very round, and its task knows

    def fail(self, kind: str, reason: str) -> None:
        request, waiter = self.request, self.waiter
        assert request is not None and waiter is not None
        self.shared.pulse += 1
        self.due_ns = NEVER
        self.waiter = None
        self.drop()
        if not waiter.done():
            waiter.set_exception(ExchangeFailed(kind, f"{request.method} {request.url}: {reason}"))

    def drop(self) -> None:
        self.is_open = False
        self.leave_pool()
        if self.transport is not None:
            self.transport.abort()

    def leave_pool(self) -> None:
        pool = self.pool
        if self in pool.open:
            pool.open.remove(self)
            pool.lost += 1
            if self in pool.idle:
                pool.idle.remove(self)

    def too_large(self) -> str:
        return f"the answer's body is larger than {self.shared.max_body_bytes} bytes"

    def explain(self, error: Exception) -> str:
        if isinstance(error, HttpParserUpgrade) or self.parser.get_status_code() == 101:  # type: ignore[union-attr]
            return "the server switched to another protocol (101), which nobody asked for"
        if self.is_complete:
            is_head = self.request.is_head  # type: ignore[union-attr]
            return "the server sent a body in answer to HEAD" if is_head else "the server sent more than the answer"
        return f"the answer is not HTTP/1.1: {error.__context__ or error}"


def words_of(headers: list[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """The comma-separated values of one header, in lower case."""
    return [
        word.strip().lower()
        for key, value in headers
        if key.lower() == name
        for word in value.split(b",")
        if word.strip()
    ]


def ends_with_the_connection(headers: list[tuple[bytes, bytes]]) -> bool:
    """Neither a length nor chunks say where the body ends, so the end of the connection does."""
    codings = words_of(headers, b"transfer-encoding")
    if codings:
        return codings[-1] != b"chunked"
    return not words_of(headers, b"content-length")


def announces_a_body(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in headers)


def keeps_alive(version: str, headers: list[tuple[bytes, bytes]]) -> bool:
    """For answers to HEAD, of which the parser says that the connection must end with their body."""
    words = words_of(headers, b"connection")
    return b"close" not in words and (version == "1.1" or b"keep-alive" in words)


def head_size(headers: list[tuple[bytes, bytes]]) -> int:
    return sum(len(name) + len(value) + 4 for name, value in headers)
