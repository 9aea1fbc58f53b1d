"""A small HTTP/1.1 server to aim load at: its answers are known and its count of requests is exact.

Every route answers every method alike, save HEAD (no body) and OPTIONS (what is allowed). No task is ever started: a
connection is a protocol that answers from its callbacks, in the order in which it was asked. Answers carry no `Date`,
as those of a server without a clock, so that the plain ones are bytes made once.
"""

import asyncio
import contextlib
import gc
import signal
import socket
import tempfile
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, cast

import httptools

from talka.cli.demo.certificate import TLSFiles, make_certificate, write_certificate
from talka.cli.demo.routes import (
    BAD_HOST,
    BAD_VERSION,
    BLOCK,
    BODY_LIMIT_BYTES,
    CONTINUE,
    DROP_LIMIT,
    HEAD_LIMIT_BYTES,
    HEAD_TOO_LARGE,
    MALFORMED,
    NO_UPGRADE,
    PLAIN,
    TOO_LARGE,
    DemoAnswer,
    DemoRequest,
    blocks,
    chunked_blocks,
    echo,
    find_route,
    respond,
    split_url,
)
from talka.clock import monotonic_ns
from talka.errors import Invalid, Unavailable
from talka.units import MILLISECOND

QUEUE_LIMIT: Final = 64
"""Requests a connection may have waiting; beyond it we stop reading."""
SLICE_BYTES: Final = 16 * 1024
"""Most bytes parsed at one go: what one slice holds is by how much a queue can overshoot its limit."""
IDLE_S: Final = 75.0
LINGER_S: Final = 2.0
CLOSE_S: Final = 1.0
BACKLOG: Final = 4096

BLOCKS_PER_TURN: Final = 4


class DemoCannotListen(Unavailable):
    """The address is taken or not ours to use: choose another."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(f"The demo server cannot listen on {host} port {port}: {reason}. Choose another host or port.")
        self.host, self.port = host, port


class DemoConnection(asyncio.Protocol):
    """One client's connection: parses, counts, queues, and answers in order."""

    def __init__(self, server: "DemoServer") -> None:
        self._server = server
        self._timer: asyncio.Handle | None = None
        self._queue: deque[DemoRequest] = deque()
        self._under_way: tuple[DemoRequest, DemoAnswer] | None = None
        """An answer that is delayed, held back by a stall, or sent in part."""
        self._parts: Iterator[bytes] | None = None
        self._held = b""
        """Read but not parsed: the queue was full."""
        self._unfinished_bytes = 0
        """Parsed without a request or a piece of a body coming of it."""
        self._has_progressed = self._has_seen_eof = self._is_reading_paused = self._is_writing_paused = False
        self._is_deaf = False
        """Nothing more is taken from this client: its last request is here."""
        self._is_last = False
        """The answer under way is the last."""
        self._is_active = True
        self._parser: Any = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._hosts = 0
        self._has_connection_header = self._is_in_body = self._awaits_continue = False
        if self._body_bytes:
            self._body, self._body_bytes = [], 0

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Both asyncio and uvloop set TCP_NODELAY on every connection they accept.
        self._transport = cast(asyncio.Transport, transport)
        self._server.remember(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_deaf = True
        self._forget()
        self._server.forget(self)
        del self._parser  # it refers to us: without this, every connection would be left to the garbage collector

    def data_received(self, data: bytes) -> None:
        self._is_active = True
        if self._is_deaf:
            return
        if len(data) <= SLICE_BYTES and not self._held and not self._is_reading_paused:
            self._parse(data)
            if self._queue or self._awaits_continue:
                self._advance()
        else:
            self._held += data
            self._advance()

    def eof_received(self) -> bool:
        self._has_seen_eof = True
        # TLS has no half-closed connections.
        return self._is_pending() and self._transport.can_write_eof()

    def pause_writing(self) -> None:
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        self._is_active = True
        if self._parts is None:
            self._advance()
        elif self._timer is None:
            self._pump()

    # What the parser calls.

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_body:
            return  # a trailer
        name = name.lower()
        self._headers.append((name, value))
        if name == b"host":
            self._hosts += 1
        elif name == b"connection":
            self._has_connection_header = True
        elif name == b"expect":
            self._awaits_continue = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        self._is_in_body = True
        if self._is_deaf:
            return
        if self._unfinished_bytes and self._head_bytes() > HEAD_LIMIT_BYTES:
            self._refuse(HEAD_TOO_LARGE)
        elif self._hosts != 1 and (self._hosts > 1 or self._parser.get_http_version() == "1.1"):
            self._refuse(BAD_HOST)
        elif self._has_connection_header or self._awaits_continue:
            headers = dict(self._headers)
            announced = headers.get(b"content-length", b"0")
            has_body = announced != b"0" or b"transfer-encoding" in headers
            if has_body and self._parser.should_upgrade():
                self._refuse(NO_UPGRADE)  # the parser takes its body for another protocol
            elif self._awaits_continue and int(announced) > BODY_LIMIT_BYTES:
                self._refuse(TOO_LARGE)
            elif not has_body or self._parser.get_http_version() != "1.1":
                self._awaits_continue = False

    def on_body(self, body: bytes) -> None:
        self._has_progressed = True
        self._awaits_continue = False
        if self._is_deaf:
            return
        if self._body_bytes == 0:
            self._keeps_body = find_route(split_url(self._url)[0])[0].handle is echo
        self._body_bytes += len(body)
        if self._body_bytes > BODY_LIMIT_BYTES:
            self._refuse(TOO_LARGE)
        elif self._keeps_body:
            self._body.append(body)

    def on_message_complete(self) -> None:
        self._has_progressed = True
        if self._is_deaf:
            return
        plain = PLAIN.get(self._url)
        if (
            plain is not None
            and not self._has_connection_header  # so whoever keeps alive speaks HTTP/1.1
            and not self._queue
            and self._under_way is None
            and not self._is_writing_paused
            and not self._server.is_stalled
            and self._parser.should_keep_alive()
            and self._parser.get_method() == b"GET"
        ):
            self._server.counts[plain[0]] += 1
            self._begin()
            self._transport.write(plain[1])
            return
        request = DemoRequest(self._parser.get_method(), self._url, self._headers, b"".join(self._body))
        request.keeps_alive = self._parser.should_keep_alive()
        if self._has_connection_header or not request.keeps_alive:
            version = self._parser.get_http_version()
            if version not in ("1.0", "1.1"):
                return self._refuse(BAD_VERSION)
            request.is_old = version == "1.0"
        self._is_deaf = not request.keeps_alive
        self._begin()
        if request.route.family != "/count":
            self._server.counts[request.route.family] += 1
        self._take(request)

    # What we do about it.

    def _parse(self, data: bytes) -> None:
        self._has_progressed = False
        rest = data
        while rest and not self._is_deaf:
            try:
                self._parser.feed_data(rest)
                break
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]  # we go on as if nobody had asked
            except httptools.HttpParserCallbackError:
                raise
            except httptools.HttpParserError:
                if not self._is_deaf:
                    self._refuse(MALFORMED)
        if self._has_progressed:
            # One at least while a head is open: `on_headers_complete` measures those that came in pieces.
            self._unfinished_bytes = 1 if self._url else 0
        else:
            self._unfinished_bytes += len(data)
            if self._unfinished_bytes > HEAD_LIMIT_BYTES and not self._is_deaf:
                self._refuse(HEAD_TOO_LARGE)

    def _head_bytes(self) -> int:
        return len(self._url) + sum(len(name) + len(value) + 4 for name, value in self._headers)

    def _refuse(self, why: DemoAnswer) -> None:
        self._begin()
        self._is_deaf = True
        request = DemoRequest(b"GET", b"/", [], b"")
        request.refusal, request.keeps_alive = why, False
        self._take(request)

    def _take(self, request: DemoRequest) -> None:
        if not self._queue and self._may_answer():
            self._answer(request)
        else:
            self._queue.append(request)

    def _is_pending(self) -> bool:
        return bool(self._queue or self._held) or self._under_way is not None

    def _may_answer(self) -> bool:
        if self._under_way is not None or self._is_writing_paused:
            return False
        if self._server.is_stalled:
            self._server.wait(self)
            return False
        return True

    def _advance(self) -> None:
        """Answers what is waiting, as far as that is possible now."""
        while True:
            while self._queue and self._may_answer():
                self._answer(self._queue.popleft())
            if not self._held or len(self._queue) >= QUEUE_LIMIT:
                break
            data, self._held = self._held[:SLICE_BYTES], self._held[SLICE_BYTES:]
            self._parse(data)
        if (len(self._queue) >= QUEUE_LIMIT) != self._is_reading_paused:
            self._is_reading_paused = not self._is_reading_paused
            if self._is_reading_paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
        if not self._is_pending():
            if self._awaits_continue:
                self._awaits_continue = False
                self._transport.write(CONTINUE)
            if self._has_seen_eof:
                self._transport.close()

    def _answer(self, request: DemoRequest) -> None:
        known = request.refusal or respond(self._server, request)
        if known is None:
            self.finish()
        elif known.delay_ms:
            self._under_way = request, known
            self._due_ns = monotonic_ns() + known.delay_ms * MILLISECOND
            self._timer = self._server.loop.call_later(known.delay_ms / 1000, self._come_due)
        else:
            self._send(request, known)

    def _come_due(self) -> None:
        assert self._under_way is not None
        self._timer = None
        if monotonic_ns() < self._due_ns:  # uvloop counts whole milliseconds and may be early
            self._timer = self._server.loop.call_later(0.001, self._come_due)
        elif self._server.is_stalled:
            self._server.wait(self)
        else:
            self._send(*self._under_way)
            self._advance()

    def wake(self) -> None:
        """The stall is over."""
        if self._under_way is not None:
            self._come_due()
        else:
            self._advance()

    def _send(self, request: DemoRequest, known: DemoAnswer) -> None:
        head, body, parts = known.head, known.body, None
        self._is_last = known.closes or not request.keeps_alive
        if known.stream_bytes is not None:
            is_framed = known.is_chunked and not request.is_old
            if is_framed:
                head += b"Transfer-Encoding: chunked\r\n"
            elif known.is_chunked:
                self._is_last = True  # HTTP/1.0 has no chunks: the end of the connection ends the body
            parts = chunked_blocks(known.stream_bytes) if is_framed else blocks(known.stream_bytes)
            body = next(parts)
        if self._is_last:
            head += b"Connection: close\r\n"
        elif request.is_old:
            head += b"Connection: keep-alive\r\n"
        self._under_way = None
        if request.method == b"HEAD":
            body, parts = b"", None
        self._transport.write(b"%b\r\n%b" % (head, body))
        if request.refusal is not None:
            self._linger()
        elif parts is not None and (known.stream_bytes or 0) > len(BLOCK):
            self._under_way, self._parts = (request, known), parts
            # Not at once: we may be inside the parser, and the end of the body takes up parsing again.
            self._timer = self._server.loop.call_soon(self._pump)
        elif self._is_last:
            self.finish()

    def _pump(self) -> None:
        """Writes on at a body sent in parts, a few at a time lest others wait."""
        self._timer = None
        assert self._parts is not None
        for _ in range(BLOCKS_PER_TURN):
            if self._is_writing_paused:
                return
            part = next(self._parts, None)
            if part is None:
                self._under_way = self._parts = None
                return self.finish() if self._is_last else self._advance()
            self._transport.write(part)
        if not self._is_writing_paused:
            self._timer = self._server.loop.call_soon(self._pump)

    def _linger(self) -> None:
        # Closed with bytes unread, the connection would be reset, and the client might never see why.
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._timer = self._server.loop.call_later(self._server.linger_s, self._transport.abort)

    def finish(self) -> None:
        """Closes the connection once what was answered is sent."""
        self._is_deaf = True
        self._forget()
        self._transport.close()

    def _forget(self) -> None:
        self._queue.clear()
        self._held = b""
        self._under_way = self._parts = None
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        self._transport.abort()

    def rest(self) -> None:
        """Closes the connection if the client did nothing since the last call and nobody but the client is waited
        for."""
        if self._is_active or (self._is_pending() and not self._is_writing_paused):
            self._is_active = False
        elif self._is_writing_paused:
            self.abort()
        else:
            self.finish()


class DemoServer:
    """A server that listens. Close it, or use it with `async with`."""

    counts: dict[str, int]
    """Requests received, by family of paths; those to `/count` are left out."""

    def __init__(self, *, idle_s: float, drop_limit: int, linger_s: float) -> None:
        self.drop_limit = drop_limit
        self.linger_s = linger_s
        self.loop = asyncio.get_running_loop()
        self.counts = Counter()
        self.drops: Counter[int] = Counter()
        self.is_stalled = False
        self.port = 0
        self.url = ""
        self._idle_s = idle_s
        self._is_closed = False
        self._listener: asyncio.Server | None = None
        self._connections: set[DemoConnection] = set()
        self._waiting: OrderedDict[DemoConnection, None] = OrderedDict()
        self._all_gone = asyncio.Event()
        self._all_gone.set()
        self._stall_timer: asyncio.TimerHandle | None = None
        self._idle_timer = self.loop.call_later(idle_s, self._close_idle)

    @property
    def requests(self) -> int:
        return sum(self.counts.values())

    async def listen(self, host: str, port: int, tls: TLSFiles | None) -> None:
        if not 0 <= port <= 65535:
            raise Invalid(f"Port {port} does not exist: give one from 0 (any free one) to 65535.")
        try:
            found = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise Invalid(f"The host {host!r} has no address here: give a name or address of this machine.") from error
        # One address only: with port 0, each of several would get a port of its own.
        address = str(min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0])
        secure: dict[str, Any] = {}
        if tls is not None:
            import ssl

            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            try:
                context.load_cert_chain(tls.cert, tls.key)
            except OSError as error:
                raise Invalid(f"The certificate {tls.cert} with the key {tls.key} cannot be used: {error}.") from error
            context.set_alpn_protocols(["http/1.1"])
            secure = {"ssl": context, "ssl_handshake_timeout": 5.0}
        try:
            self._listener = await self.loop.create_server(
                lambda: DemoConnection(self), address, port, backlog=BACKLOG, **secure
            )
        except OSError as error:
            raise DemoCannotListen(host, port, str(error.strerror or error)) from error
        self.port = self._listener.sockets[0].getsockname()[1]
        reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        shown = f"[{reachable}]" if ":" in reachable else reachable
        self.url = f"{'http' if tls is None else 'https'}://{shown}:{self.port}"

    def remember(self, connection: DemoConnection) -> None:
        self._connections.add(connection)
        self._all_gone.clear()
        if self._is_closed:
            connection.abort()

    def forget(self, connection: DemoConnection) -> None:
        self._connections.discard(connection)
        self._waiting.pop(connection, None)
        if not self._connections:
            self._all_gone.set()

    def wait(self, connection: DemoConnection) -> None:
        """Puts a connection in the line of those to wake when the stall is over."""
        self._waiting[connection] = None

    def stall(self, ms: int) -> None:
        """Answers nobody for that long."""
        self.is_stalled = True
        self._stall_ends_ns = monotonic_ns() + ms * MILLISECOND
        self._stall_timer = self.loop.call_later(ms / 1000, self._end_stall)

    def _end_stall(self) -> None:
        if monotonic_ns() < self._stall_ends_ns:  # uvloop, as above
            self._stall_timer = self.loop.call_later(0.001, self._end_stall)
            return
        self.is_stalled = False
        # One of those who waited may ask for the next stall.
        while self._waiting and not self.is_stalled:
            self._waiting.popitem(last=False)[0].wake()

    def _close_idle(self) -> None:
        for connection in list(self._connections):
            connection.rest()
        self._idle_timer = self.loop.call_later(self._idle_s, self._close_idle)

    async def close(self) -> None:
        """Closes the listening socket and every connection, and waits until they are gone."""
        self._is_closed = True
        self._idle_timer.cancel()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections):
            connection.finish()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._all_gone.wait()
        except TimeoutError:
            # A client that does not read, or does not end TLS: it had its time.
            for connection in list(self._connections):
                connection.abort()
            await self._all_gone.wait()
        if self._listener is not None:
            await self._listener.wait_closed()

    async def __aenter__(self) -> "DemoServer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def start_demo_server(
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    tls: TLSFiles | None = None,
    idle_s: float = IDLE_S,
    drop_limit: int = DROP_LIMIT,
    linger_s: float = LINGER_S,
) -> DemoServer:
    """Starts the server in the running loop. Port 0 takes any free one.

    A connection on which nothing happened for `idle_s` is closed before twice that time is over.
    """
    server = DemoServer(idle_s=idle_s, drop_limit=drop_limit, linger_s=linger_s)
    try:
        await server.listen(host, port, tls)
    except BaseException:
        await server.close()
        raise
    return server


def serve(host: str, port: int, *, tls: bool, on_ready: Callable[[str], None], certificate: Path | None = None) -> None:
    """Runs the server until SIGINT or SIGTERM. `on_ready` gets the address once it listens.

    With TLS, `certificate` is where clients find what to trust.
    """

    async def run() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        # The files go as soon as they are loaded: then nothing is left behind, however we end.
        with contextlib.ExitStack() as until_loaded:
            files = None
            if tls:
                folder = until_loaded.enter_context(tempfile.TemporaryDirectory(prefix="talka-demo-"))
                files = make_certificate(Path(folder), host)
                if certificate is not None:
                    write_certificate(files, certificate)
            server = await start_demo_server(host, port, tls=files)
        async with server:
            gc.collect()
            gc.freeze()  # what is here stays: collections then look at the connections alone, and are short
            on_ready(server.url)
            await stop.wait()

    from talka.engine.process_start import new_event_loop

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run())
