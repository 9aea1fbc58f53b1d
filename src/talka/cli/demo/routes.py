"""What the demo server answers: its routes, and the answers to requests it refuses."""

import re
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from talka.cli.demo.server import DemoServer

HEAD_LIMIT_BYTES: Final = 64 * 1024
BODY_LIMIT_BYTES: Final = 16 * 1024 * 1024
ANSWER_LIMIT_BYTES: Final = 64 * 1024 * 1024
WAIT_LIMIT_MS: Final = 60_000
DROP_LIMIT: Final = 1024
"""Different N of `/drop/N` we keep a counter for."""
BLOCK: Final = bytes(range(256)) * 1024
CHUNK_BYTES: Final = 4096
TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
BINARY: Final = "application/octet-stream"
ALLOWED: Final = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
PHRASES: Final = {int(status): status.phrase for status in HTTPStatus}
COOKIE: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+=[!#-+\--:<-\[\]-~]*")


class DemoAnswer(NamedTuple):
    """What to send. `head` is the status line and headers without the blank line that ends them."""

    head: bytes
    body: bytes = b""
    stream_bytes: int | None = None
    """The body is that many bytes of the pattern instead, sent as fast as the client reads."""
    is_chunked: bool = False
    delay_ms: int = 0
    closes: bool = False


class DemoRequest:
    """One request, fully received, or what is wrong with the one that was not."""

    __slots__ = ("argument", "body", "headers", "is_old", "keeps_alive", "method", "path", "query", "refusal", "route")

    def __init__(self, method: bytes, url: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.method, self.headers, self.body = method, headers, body
        self.path, self.query = split_url(url)
        self.route, self.argument = find_route(self.path)
        self.keeps_alive = True
        self.is_old = False  # HTTP/1.0
        self.refusal: DemoAnswer | None = None

    def header(self, name: bytes) -> bytes | None:
        values = [value for known, value in self.headers if known == name]
        return (b"; " if name == b"cookie" else b", ").join(values) if values else None


Handler = Callable[["DemoServer", DemoRequest, int], DemoAnswer | None]


class Route(NamedTuple):
    family: str
    handle: Handler
    """Gets the number in the path, or 0 where there is none. No answer means: close the connection without one."""
    numbers: range | None = None


def answer(status: int, body: bytes | str = b"", kind: str = TEXT, *headers: str, closes: bool = False) -> DemoAnswer:
    """An answer with a body of known length. `headers` are whole lines."""
    body = body.encode() if isinstance(body, str) else body
    lines = [status_line(status), *headers]
    if status != 204 and status != 304:
        lines += [f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    return DemoAnswer("".join(f"{line}\r\n" for line in lines).encode("latin-1"), body, closes=closes)


def status_line(status: int) -> str:
    return f"HTTP/1.1 {status} {PHRASES.get(status, '')}"


def json_answer(value: object) -> DemoAnswer:
    return answer(200, msgspec.json.encode(value), JSON)


def refusal(status: int, sentence: str) -> DemoAnswer:
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


def respond(server: "DemoServer", request: DemoRequest) -> DemoAnswer | None:
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


def not_found(server: "DemoServer", request: DemoRequest, number: int) -> DemoAnswer:
    if request.method == b"OPTIONS" and request.path == b"*":
        return answer(204, b"", TEXT, f"Allow: {ALLOWED}")
    return NOT_FOUND


def echo(server: "DemoServer", request: DemoRequest, number: int) -> DemoAnswer:
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


def delay(server: "DemoServer", request: DemoRequest, number: int) -> DemoAnswer:
    return OK._replace(delay_ms=number)


@lru_cache(maxsize=512)
def status_answer(status: int) -> DemoAnswer:
    return answer(status, f"{status_line(status)[9:].rstrip()}\n" if status not in (204, 205, 304) else b"")


def drop(server: "DemoServer", request: DemoRequest, number: int) -> DemoAnswer | None:
    if number not in server.drops and len(server.drops) >= server.drop_limit:
        return answer(400, f"/drop/N is in use with {server.drop_limit} different N; POST /count/reset forgets them.\n")
    server.drops[number] += 1
    return None if server.drops[number] % number == 0 else OK


def redirect(server: "DemoServer", request: DemoRequest, number: int) -> DemoAnswer:
    return answer(302, b"", TEXT, f"Location: /redirect/{number - 1}") if number else OK


def set_cookies(server: "DemoServer", request: DemoRequest, number: int) -> DemoAnswer:
    cookies = request.query.split(b"&")
    # Nothing is decoded, and only what a cookie may hold is passed on: a query must not write headers of its own.
    if not all(COOKIE.fullmatch(cookie) for cookie in cookies):
        return answer(400, "/cookie/set wants ?name=value, of characters a cookie may hold.\n")
    return answer(200, "ok\n", TEXT, *(f"Set-Cookie: {text_of(cookie)}; Path=/" for cookie in cookies))


def cookies(server: "DemoServer", request: DemoRequest, number: int) -> DemoAnswer:
    pairs = (pair.partition(b"=") for pair in (request.header(b"cookie") or b"").split(b";") if b"=" in pair)
    return json_answer({text_of(name.strip()): text_of(value.strip()) for name, _, value in pairs})


def authorization(server: "DemoServer", request: DemoRequest, number: int) -> DemoAnswer:
    given = request.header(b"authorization")
    return UNAUTHORIZED if given is None else answer(200, given)


def stall(server: "DemoServer", request: DemoRequest, number: int) -> DemoAnswer:
    server.stall(number)
    return OK


def count(server: "DemoServer", request: DemoRequest, number: int) -> DemoAnswer:
    return json_answer({"requests": server.requests, "paths": dict(server.counts)})


def reset(server: "DemoServer", request: DemoRequest, number: int) -> DemoAnswer:
    if request.method != b"POST":
        return answer(405, "/count/reset wants POST.\n", TEXT, "Allow: POST, OPTIONS")
    server.counts.clear()
    server.drops.clear()
    return count(server, request, number)


def fixed(known: DemoAnswer) -> Handler:
    return lambda server, request, number: known


def data(size: int, *, is_chunked: bool) -> DemoAnswer:
    length = "" if is_chunked else f"Content-Length: {size}\r\n"
    head = f"{status_line(200)}\r\nContent-Type: {BINARY}\r\n{length}"
    return DemoAnswer(head.encode(), stream_bytes=size, is_chunked=is_chunked)


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


def coded(coding: str, window_bits: int) -> DemoAnswer:
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
