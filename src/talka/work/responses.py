"""What a client call returns. A step whose return annotation is one of these is measured."""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

import msgspec

from talka.errors import Untrusted
from talka.work.charsets import codec_of

Value = TypeVar("Value")

DECODED_LIMIT_BYTES: Final = 64 * 1024 * 1024
"""A small compressed body may unfold into gigabytes; beyond this it is refused."""
PIECES_LIMIT: Final = 1000
"""gzip allows one compressed piece behind the other. The rest is copied for each, so there is a limit."""
BODY_SHOWN_BYTES: Final = 400


class BrokenBody(Untrusted):
    """The server's body is not what its headers say."""


class NotJSON(BrokenBody):
    """A test asked for JSON, and the body is none. The answer may be fine: an error of the test, not of the server."""


class Timings(msgspec.Struct, frozen=True):
    """One exchange, in milliseconds. `connect_ms` and `tls_ms` are 0 on a connection that was already open."""

    connect_ms: float = 0.0
    tls_ms: float = 0.0
    first_byte_ms: float = 0.0
    total_ms: float = 0.0


class Response:
    """What every measured call has in common: when it should have started, when it was sent, when it was done; under
    which label it is counted, and how it is told to people."""

    __slots__ = ("intended_ns", "sent_ns", "done_ns", "accepted")

    def __init__(self) -> None:
        self.intended_ns = 0
        self.sent_ns = 0
        self.done_ns = 0
        self.accepted = True
        """False when the answer counts as a failure (for HTTP: a status the step does not expect)."""

    @property
    def label(self) -> str:
        """What the call is counted under, such as "200" or "OK": a word out of few, not what the server sent. Empty: it
        is counted as ok or failed alone. Numbers of three digits are told as status codes."""
        return ""

    @property
    def outcome(self) -> str | int:
        """What `label` is the text of. It is asked for with every call, and a label only where totals are read."""
        return self.label

    def describe(self) -> str:
        """One line that says what was called and what came of it: the sample of an answer that counts as a failure."""
        return f"the call was answered {self.label}" if self.label else "the answer was not accepted"

    def shown(self) -> list[str]:
        """The lines in which `talka debug` shows the answer."""
        return [f"{self.describe()} in {ms_text((self.done_ns - self.sent_ns) / 1e6)}"]


class CustomResponse(Response, Generic[Value]):
    """What `self.client.custom.call(awaitable)` returns: the result of the awaitable in `value`, and its times."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        super().__init__()
        self.value = value


class ResponseHeaders(Mapping[str, str]):
    """Headers by name, in any case. A name that came several times reads as its values joined by commas."""

    __slots__ = ("_raw",)

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._raw = list(raw)

    def __getitem__(self, name: str) -> str:
        values = self.get_all(name)
        if not values:
            raise KeyError(name)
        return ", ".join(values)

    def __iter__(self) -> Iterator[str]:
        return iter({name.decode("latin-1").lower(): None for name, _ in self._raw})

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"ResponseHeaders({dict(self)!r})"

    def get_all(self, name: str) -> list[str]:
        wanted = name.lower()
        return [value.decode("latin-1") for key, value in self._raw if key.decode("latin-1").lower() == wanted]


class HTTPResponse(Response):
    """An HTTP answer: `method`, `url`, `status`, and the body as it came in `body`.

    Headers, content, text and JSON are decoded when they are first read.
    """

    __slots__ = ("method", "url", "status", "raw_headers", "body", "connect_ns", "tls_ns", "first_byte_ns", "_content")

    def __init__(self, method: str, url: str, status: int, raw_headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.method = method
        self.url = url
        self.status = status
        self.raw_headers = raw_headers
        self.body = body
        """The body as it came, before any content coding is undone."""
        self.intended_ns = self.sent_ns = self.first_byte_ns = self.done_ns = 0
        self.connect_ns = self.tls_ns = 0
        self.accepted = status < 400
        self._content: bytes | None = None

    def __repr__(self) -> str:
        return f"<HTTPResponse {self.status} {self.method} {self.url} {len(self.body)} bytes>"

    @property
    def label(self) -> str:
        """The status as text."""
        return str(self.status)

    outcome = property(attrgetter("status"), doc="The status: what `label` is the text of.")

    def describe(self) -> str:
        """What was asked and answered in one line, such as `GET http://shop/cart answered 503`."""
        return f"{self.method} {self.url} answered {self.status}"

    def shown(self) -> list[str]:
        """What `talka debug` shows: status and times, headers, and the beginning of the body."""
        timings = self.timings
        lines = [f"{self.status} in {ms_text(timings.total_ms)} (first byte {ms_text(timings.first_byte_ms)})"]
        lines += (f"{name}: {value}" for name, value in self.headers.items())
        return [*lines, shown_body(self.body)] if self.body else lines

    @property
    def status_code(self) -> int:
        """The HTTP status, such as 200."""
        return self.status

    @property
    def headers(self) -> ResponseHeaders:
        """The headers of the answer; names in any case."""
        return ResponseHeaders(self.raw_headers)

    @property
    def content(self) -> bytes:
        """The body, after content codings such as gzip are undone."""
        if self._content is None:
            self._content = decoded(self.body, self.headers.get("content-encoding", ""))
        return self._content

    @property
    def text(self) -> str:
        """The body as text, in the charset that the answer names, by default UTF-8."""
        charset = "utf-8"
        for part in self.headers.get("content-type", "").split(";")[1:]:
            name, _, value = part.strip().partition("=")
            if name.lower() == "charset":
                charset = value.strip("\"'")
        codec = codec_of(charset)
        if codec is None:
            raise BrokenBody(f"{self.url}: the answer names a charset that cannot be read: {charset[:100]!r}")
        return self.content.decode(codec, errors="replace")

    def json(self) -> Any:
        """The body as JSON. Raises `NotJSON` where it is none."""
        try:
            return msgspec.json.decode(self.content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            start = self.content[:60]
            raise NotJSON(f"{self.url}: the body is not JSON ({error}); it starts with {start!r}") from None

    @property
    def timings(self) -> Timings:
        """How long each part of the exchange took."""
        return Timings(
            connect_ms=self.connect_ns / 1e6,
            tls_ms=self.tls_ns / 1e6,
            first_byte_ms=(self.first_byte_ns - self.sent_ns) / 1e6,
            total_ms=(self.done_ns - self.sent_ns) / 1e6,
        )


def ms_text(ms: float) -> str:
    """Never rounded to none: "0 ms" says that it took no time at all."""
    if 0 < ms < 0.01:
        return "< 0.01 ms"
    return f"{ms:.2f} ms" if ms else "0 ms"


def shown_body(body: bytes) -> str:
    """The beginning of what was sent or received, as people read it."""
    text = body[:BODY_SHOWN_BYTES].decode("utf-8", errors="replace")
    return text if len(body) <= BODY_SHOWN_BYTES else f"{text}… ({len(body)} bytes)"


def decoded(body: bytes, encoding: str, limit_bytes: int = DECODED_LIMIT_BYTES) -> bytes:
    """Undo the content codings, last applied first. An empty body has none: answers to HEAD name it all the same."""
    for coding in reversed([word.strip().lower() for word in encoding.split(",") if word.strip()]):
        match coding:
            case _ if not body:
                break
            case "identity":
                continue
            case "gzip" | "x-gzip":
                body = inflated(body, limit_bytes, wbits=31)
            case "deflate":
                # RFC 9110 means zlib; some servers send the bare stream, whose first byte never looks like zlib's.
                body = inflated(body, limit_bytes, wbits=15 if body[0] & 0x0F == 8 else -15)
            case _:
                raise BrokenBody(f"the answer's content-encoding {coding!r} is not one of gzip, deflate, identity")
    return body


def inflated(body: bytes, limit_bytes: int, *, wbits: int) -> bytes:
    plain = bytearray()
    for _ in range(PIECES_LIMIT):
        inflate = zlib.decompressobj(wbits=wbits)
        try:
            plain += inflate.decompress(body, limit_bytes + 1 - len(plain))
        except zlib.error as error:
            raise BrokenBody(f"the compressed body is broken: {error}") from None
        if len(plain) > limit_bytes:
            raise BrokenBody(f"the compressed body unfolds to more than {limit_bytes} bytes")
        if not inflate.eof:
            raise BrokenBody("the compressed body ends too early")
        body = inflate.unused_data
        if not body:
            return bytes(plain)
    raise BrokenBody(f"the compressed body is made of more than {PIECES_LIMIT} pieces")
