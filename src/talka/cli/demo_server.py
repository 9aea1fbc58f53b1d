"""A small HTTP/1.1 server to aim load at: its answers are known and its count of requests is exact.

Every route answers every method alike, save HEAD (no body) and OPTIONS (what is allowed). No task is ever started: a
connection is a protocol that answers from its callbacks, in the order in which it was asked. Answers carry no `Date`, as those
of a server without a clock, so that the plain ones are bytes made once.
"""

import asyncio
import gc
import re
import signal
import socket
import tempfile
import zlib
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, cast

import httptools
import msgspec

from talka.clock import MILLISECOND, monotonic_ns, utc_now
from talka.errors import Invalid, Unavailable

HEAD_LIMIT_BYTES: Final = 64 * 1024
BODY_LIMIT_BYTES: Final = 16 * 1024 * 1024
ANSWER_LIMIT_BYTES: Final = 64 * 1024 * 1024
WAIT_LIMIT_MS: Final = 60_000
QUEUE_LIMIT: Final = 64
"""Requests a connection may have waiting; beyond it we stop reading."""
SLICE_BYTES: Final = 16 * 1024
"""Most bytes parsed at one go: what one slice holds is by how much a queue can overshoot its limit."""
DROP_LIMIT: Final = 1024
"""Different N of `/drop/N` we keep a counter for."""
IDLE_S: Final = 75.0
LINGER_S: Final = 2.0
CLOSE_S: Final = 1.0
BACKLOG: Final = 4096

BLOCK: Final = bytes(range(256)) * 1024
CHUNK_BYTES: Final = 4096
BLOCKS_PER_TURN: Final = 4

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
BINARY: Final = "application/octet-stream"
ALLOWED: Final = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
PHRASES: Final = {int(status): status.phrase for status in HTTPStatus}
COOKIE: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+=[!#-+\--:<-\[\]-~]*")


class CannotListen(Unavailable):
    """The address is taken or not ours to use: choose another."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(f"The demo server cannot listen on {host} port {port}: {reason}. Choose another host or port.")
        self.host, self.port = host, port


class TLSFiles(NamedTuple):
    cert: Path
    key: Path


class Answer(NamedTuple):
    """What to send. `head` is the status line and headers without the blank line that ends them."""

    head: bytes
    body: bytes = b""
    stream_bytes: int | None = None
    """The body is that many bytes of the pattern instead, sent as fast as the client reads."""
    is_chunked: bool = False
    delay_ms: int = 0
    closes: bool = False


class Request:
    """One request, fully received, or what is wrong with the one that was not."""

    __slots__ = ("argument", "body", "headers", "is_old", "keeps_alive", "method", "path", "query", "refusal", "route")

    def __init__(self, method: bytes, url: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.method, self.headers, self.body = method, headers, body
        self.path, self.query = split_url(url)
        self.route, self.argument = find_route(self.path)
        self.keeps_alive = True
        self.is_old = False  # HTTP/1.0
        self.refusal: Answer | None = None

    def header(self, name: bytes) -> bytes | None:
        values = [value for known, value in self.headers if known == name]
        return (b"; " if name == b"cookie" else b", ").join(values) if values else None


Handler = Callable[["DemoServer", Request, int], Answer | None]


class Route(NamedTuple):
    family: str
    handle: Handler
    """Gets the number in the path, or 0 where there is none. No answer means: close the connection without one."""
    numbers: range | None = None


def answer(status: int, body: bytes | str = b"", kind: str = TEXT, *headers: str, closes: bool = False) -> Answer:
    """An answer with a body of known length. `headers` are whole lines."""
    body = body.encode() if isinstance(body, str) else body
    lines = [status_line(status), *headers]
    if status != 204 and status != 304:
        lines += [f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    return Answer("".join(f"{line}\r\n" for line in lines).encode("latin-1"), body, closes=closes)


def status_line(status: int) -> str:
    return f"HTTP/1.1 {status} {PHRASES.get(status, '')}"


def json_answer(value: object) -> Answer:
    return answer(200, msgspec.json.encode(value), JSON)


def refusal(status: int, sentence: str) -> Answer:
    return answer(status, sentence + "\n", closes=True)


def text_of(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def split_url(url: bytes) -> tuple[bytes, bytes]:
    """Path and query as sent. The address of an absolute URL, as proxies are sent, is left out."""
    if not url.startswith(b"/") and b"://" in url:
        rest = url.partition(b"://")[2]
        start = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
        url = rest[start:] if rest[start : start + 1] == b"/" else b"/" + rest[start:]
    path, _, query = url.partition(b"#")[0].partition(b"?")
    return path, query


def find_route(path: bytes) -> tuple[Route, bytes]:
    """The route of a path and what follows its name."""
    route = ROUTES.get(path)
    if route is not None:
        return route, b""
    end = path.find(b"/", 1)
    route, argument = ROUTES.get(path[:end]), path[end + 1 :]
    return (route, argument) if route is not None and route.numbers is not None else (UNKNOWN, b"")


def respond(server: "DemoServer", request: Request) -> Answer | None:
    """What the route of a request says to it."""
    route, argument = request.route, request.argument
    if request.method == b"OPTIONS" and route is not UNKNOWN and route.family != "/echo":
        return answer(204, b"", TEXT, f"Allow: {ALLOWED if route.handle is not reset else 'POST, OPTIONS'}")
    if route.numbers is None:
        return route.handle(server, request, 0)
    # Nine digits hold every limit; a longer number is not worth the work of reading it.
    if argument.isdigit() and len(argument) <= 9 and int(argument) in route.numbers:
        return route.handle(server, request, int(argument))
    lowest, highest = route.numbers[0], route.numbers[-1]
    return answer(400, f"{route.family}/N wants a whole number from {lowest} to {highest}.\n")


def not_found(server: "DemoServer", request: Request, number: int) -> Answer:
    if request.method == b"OPTIONS" and request.path == b"*":
        return answer(204, b"", TEXT, f"Allow: {ALLOWED}")
    return NOT_FOUND


def echo(server: "DemoServer", request: Request, number: int) -> Answer:
    names = dict.fromkeys(name for name, _ in request.headers)
    return json_answer(
        {
            "method": text_of(request.method),
            "path": text_of(request.path),
            "query": text_of(request.query),
            "headers": {text_of(name): text_of(request.header(name) or b"") for name in names},
            "body": text_of(request.body),
        }
    )


def delay(server: "DemoServer", request: Request, number: int) -> Answer:
    return OK._replace(delay_ms=number)


@lru_cache(maxsize=512)
def status_answer(status: int) -> Answer:
    return answer(status, f"{status_line(status)[9:].rstrip()}\n" if status not in (204, 205, 304) else b"")


def drop(server: "DemoServer", request: Request, number: int) -> Answer | None:
    if number not in server.drops and len(server.drops) >= DROP_LIMIT:
        return answer(400, f"/drop/N is in use with {DROP_LIMIT} different N; POST /count/reset forgets them.\n")
    server.drops[number] += 1
    return None if server.drops[number] % number == 0 else OK


def redirect(server: "DemoServer", request: Request, number: int) -> Answer:
    return answer(302, b"", TEXT, f"Location: /redirect/{number - 1}") if number else OK


def set_cookies(server: "DemoServer", request: Request, number: int) -> Answer:
    cookies = request.query.split(b"&")
    # Nothing is decoded, and only what a cookie may hold is passed on: a query must not write headers of its own.
    if not all(COOKIE.fullmatch(cookie) for cookie in cookies):
        return answer(400, "/cookie/set wants ?name=value, of characters a cookie may hold.\n")
    return answer(200, "ok\n", TEXT, *(f"Set-Cookie: {text_of(cookie)}; Path=/" for cookie in cookies))


def cookies(server: "DemoServer", request: Request, number: int) -> Answer:
    pairs = (pair.partition(b"=") for pair in (request.header(b"cookie") or b"").split(b";") if b"=" in pair)
    return json_answer({text_of(name.strip()): text_of(value.strip()) for name, _, value in pairs})


def authorization(server: "DemoServer", request: Request, number: int) -> Answer:
    given = request.header(b"authorization")
    return UNAUTHORIZED if given is None else answer(200, given)


def stall(server: "DemoServer", request: Request, number: int) -> Answer:
    server.stall(number)
    return OK


def count(server: "DemoServer", request: Request, number: int) -> Answer:
    return json_answer({"requests": server.requests, "paths": dict(server.counts)})


def reset(server: "DemoServer", request: Request, number: int) -> Answer:
    if request.method != b"POST":
        return answer(405, "/count/reset wants POST.\n", TEXT, "Allow: POST, OPTIONS")
    server.counts.clear()
    server.drops.clear()
    return count(server, request, number)


def fixed(known: Answer) -> Handler:
    return lambda server, request, number: known


def data(size: int, *, is_chunked: bool) -> Answer:
    length = "" if is_chunked else f"Content-Length: {size}\r\n"
    head = f"{status_line(200)}\r\nContent-Type: {BINARY}\r\n{length}"
    return Answer(head.encode(), stream_bytes=size, is_chunked=is_chunked)


def blocks(size: int) -> Iterator[bytes]:
    """`size` bytes of the pattern, a block at a time. The first is there even if it is empty."""
    yield BLOCK[:size]
    for start in range(len(BLOCK), size, len(BLOCK)):
        yield BLOCK[: size - start]


def chunked_blocks(size: int) -> Iterator[bytes]:
    """The same bytes in chunked coding."""
    left = size
    for block in blocks(size):
        left -= len(block)
        chunks = (block[start : start + CHUNK_BYTES] for start in range(0, len(block), CHUNK_BYTES))
        framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
        yield framed if left else framed + b"0\r\n\r\n"


def coded(coding: str, window_bits: int) -> Answer:
    packer = zlib.compressobj(wbits=window_bits)
    text = msgspec.json.encode({"coding": coding, "text": "Talka tells the truth. " * 20})
    return answer(200, packer.compress(text) + packer.flush(), JSON, f"Content-Encoding: {coding}")


OK: Final = answer(200, "ok\n")
HELLO: Final = answer(200, "Hello from Talka's demo server.\n")
SMALL_JSON: Final = answer(200, b'{"message":"hello","ok":true,"items":[1,2,3]}', JSON)
NOT_FOUND: Final = answer(404, "There is nothing at this path.\n")
UNAUTHORIZED: Final = answer(401, "Say who you are.\n", TEXT, 'WWW-Authenticate: Basic realm="demo"')
TOO_LARGE: Final = refusal(413, f"The request's body is larger than {BODY_LIMIT_BYTES} bytes.")
HEAD_TOO_LARGE: Final = refusal(431, f"The request's head is larger than {HEAD_LIMIT_BYTES} bytes.")
MALFORMED: Final = refusal(400, "This is not a request of HTTP/1.1.")
BAD_HOST: Final = refusal(400, "A request of HTTP/1.1 has exactly one Host header.")
BAD_VERSION: Final = refusal(505, "This server speaks HTTP/1.0 and HTTP/1.1.")
NO_UPGRADE: Final = refusal(501, "This server does not upgrade connections; send a body without asking for it.")
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

UNKNOWN: Final = Route("other", not_found)
ROUTES: Final[dict[bytes, Route]] = {
    b"/": Route("/", fixed(HELLO)),
    b"/json": Route("/json", fixed(SMALL_JSON)),
    b"/echo": Route("/echo", echo),
    b"/delay": Route("/delay", delay, range(WAIT_LIMIT_MS + 1)),
    b"/status": Route("/status", lambda server, request, number: status_answer(number), range(200, 600)),
    b"/bytes": Route(
        "/bytes", lambda server, request, number: data(number, is_chunked=False), range(ANSWER_LIMIT_BYTES + 1)
    ),
    b"/chunked": Route(
        "/chunked", lambda server, request, number: data(number, is_chunked=True), range(ANSWER_LIMIT_BYTES + 1)
    ),
    b"/gzip": Route("/gzip", fixed(coded("gzip", 31))),
    b"/deflate": Route("/deflate", fixed(coded("deflate", 15))),
    b"/drop": Route("/drop", drop, range(1, 1_000_001)),
    b"/redirect": Route("/redirect", redirect, range(1_000_001)),
    b"/cookie/set": Route("/cookie", set_cookies),
    b"/cookie": Route("/cookie", cookies),
    b"/auth": Route("/auth", authorization),
    b"/stall": Route("/stall", stall, range(WAIT_LIMIT_MS + 1)),
    b"/close": Route("/close", fixed(OK._replace(closes=True))),
    b"/count": Route("/count", count),
    b"/count/reset": Route("/count", reset),
}
PLAIN: Final = {
    path: (ROUTES[path].family, known.head + b"\r\n" + known.body)
    for path, known in ((b"/", HELLO), (b"/json", SMALL_JSON))
}


class Connection(asyncio.Protocol):
    """One client's connection: parses, counts, queues, and answers in order."""

    def __init__(self, server: "DemoServer") -> None:
        self._server = server
        self._timer: asyncio.Handle | None = None
        self._queue: deque[Request] = deque()
        self._under_way: tuple[Request, Answer] | None = None
        """An answer that is delayed, held back by a stall, or sent in part."""
        self._parts: Iterator[bytes] | None = None
        self._held = b""
        """Read but not parsed: the queue was full."""
        self._unfinished_bytes = 0
        self._has_progressed = self._has_seen_eof = self._is_reading_paused = self._is_writing_paused = False
        self._is_deaf = False
        """Nothing more is taken from this client: its last request is here."""
        self._is_last = False
        self.is_active = True
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
        self.is_active = True
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
        self.is_active = True
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
        request = Request(self._parser.get_method(), self._url, self._headers, b"".join(self._body))
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

    def _refuse(self, why: Answer) -> None:
        self._begin()
        self._is_deaf = True
        request = Request(b"GET", b"/", [], b"")
        request.refusal, request.keeps_alive = why, False
        self._take(request)

    def _take(self, request: Request) -> None:
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

    def _answer(self, request: Request) -> None:
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

    def _send(self, request: Request, known: Answer) -> None:
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
            self._pump()
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
        self._timer = self._server.loop.call_later(LINGER_S, self._transport.abort)

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
        """Closes the connection if the client did nothing since the last call and nobody but the client is waited for."""
        if self.is_active or (self._is_pending() and not self._is_writing_paused):
            self.is_active = False
        elif self._is_writing_paused:
            self.abort()
        else:
            self.finish()


class DemoServer:
    """A server that listens. Close it, or use it with `async with`."""

    counts: dict[str, int]
    """Requests received, by family of paths; those to `/count` are left out."""

    def __init__(self, *, idle_s: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.counts = Counter()
        self.drops: Counter[int] = Counter()
        self.is_stalled = False
        self.port = 0
        self.url = ""
        self._idle_s = idle_s
        self._is_closed = False
        self._listener: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._waiting: OrderedDict[Connection, None] = OrderedDict()
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
                raise Invalid(f"The certificate {tls.cert} with the key {tls.key} is of no use: {error}.") from error
            context.set_alpn_protocols(["http/1.1"])
            secure = {"ssl": context, "ssl_handshake_timeout": 5.0}
        try:
            self._listener = await self.loop.create_server(
                lambda: Connection(self), address, port, backlog=BACKLOG, **secure
            )
        except OSError as error:
            raise CannotListen(host, port, str(error.strerror or error)) from error
        self.port = self._listener.sockets[0].getsockname()[1]
        reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        shown = f"[{reachable}]" if ":" in reachable else reachable
        self.url = f"{'http' if tls is None else 'https'}://{shown}:{self.port}"

    def remember(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._all_gone.clear()
        if self._is_closed:
            connection.abort()

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._waiting.pop(connection, None)
        if not self._connections:
            self._all_gone.set()

    def wait(self, connection: Connection) -> None:
        """Puts a connection in the line of those to wake when the stall is over."""
        self._waiting[connection] = None

    def stall(self, stall_ms: int) -> None:
        """Answers nobody for that long."""
        self.is_stalled = True
        self._stall_ends_ns = monotonic_ns() + stall_ms * MILLISECOND
        self._stall_timer = self.loop.call_later(stall_ms / 1000, self._end_stall)

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
    host: str = "127.0.0.1", port: int = 0, *, tls: TLSFiles | None = None, idle_s: float = IDLE_S
) -> DemoServer:
    """Starts the server in the running loop. Port 0 takes any free one.

    A connection on which nothing happened for `idle_s` is closed before twice that time is over.
    """
    server = DemoServer(idle_s=idle_s)
    try:
        await server.listen(host, port, tls)
    except BaseException:
        await server.close()
        raise
    return server


def serve(host: str, port: int, *, tls: bool, on_ready: Callable[[str], None]) -> None:
    """Runs the server until SIGINT or SIGTERM. `on_ready` gets the address once it listens."""

    async def run(files: TLSFiles | None) -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with await start_demo_server(host, port, tls=files) as server:
            gc.collect()
            gc.freeze()  # what is here stays: collections then look at the connections alone, and are short
            on_ready(server.url)
            await stop.wait()

    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    try:
        import uvloop

        loop_factory = uvloop.new_event_loop
    except ImportError:
        pass  # asyncio's own loop will do
    with (
        tempfile.TemporaryDirectory(prefix="talka-demo-") as folder,
        asyncio.Runner(loop_factory=loop_factory) as runner,
    ):
        runner.run(run(make_certificate(Path(folder), host) if tls else None))


def make_certificate(folder: Path, host: str) -> TLSFiles:
    """A certificate signed by its own key, for `host` and every name of the loopback. Clients must be told to trust it."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    except ImportError as error:
        raise Invalid("To make a certificate, the package cryptography is needed: install talka[tls].") from error
    from datetime import timedelta

    names: list[x509.GeneralName] = []
    for name in dict.fromkeys([host, "localhost", "127.0.0.1", "::1"]):
        try:
            names.append(x509.IPAddress(ip_address(name)))
        except ValueError:
            names.append(x509.DNSName(name))
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Talka demo server")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    now = utc_now()
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks differ
        .not_valid_after(now + timedelta(days=365))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = TLSFiles(folder / "demo-cert.pem", folder / "demo-key.pem")
    files.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files.key.touch(mode=0o600)
    files.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files
