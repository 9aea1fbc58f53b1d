"""One HTTP/1.1 request and its answer, on a connection of its own. Every wait has an end and every size a limit."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlsplit

import httptools

from talka.client.requests import API_PORT
from talka.errors import Invalid, Unavailable
from talka.net.tls import peer_identity, reason_of
from talka.wire.security.roles import Role

CONNECT_TIMEOUT_S: Final = 5
HEAD_LIMIT_BYTES: Final = 64 * 1024
READ_BYTES: Final = 256 * 1024
WRITE_BYTES: Final = 256 * 1024

Connection = TypeVar("Connection")
Body: TypeAlias = bytes | AsyncIterator[bytes]
"""Whole, or in chunks none of which is empty."""


class ApiSilent(Unavailable):
    """Nobody answered there, or not to the end. Another manager may."""


class ApiAddress(NamedTuple):
    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class HttpAnswer(NamedTuple):
    status: int
    headers: dict[str, str]
    """Names in small letters."""
    body: bytes


def parse_address(text: str, *, is_tls: bool = False) -> ApiAddress:
    """HOST, HOST:PORT or a URL of these. Without a scheme it is https where `is_tls`."""
    given = text if "://" in text else f"{'https' if is_tls else 'http'}://{text}"
    try:
        parts = urlsplit(given)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    is_bare = parts.path in ("", "/") and not parts.query and not parts.fragment and parts.username is None
    if not host or parts.scheme not in ("http", "https") or not is_bare:
        raise Invalid(f"{text!r} is not the address of a manager: write HOST, HOST:PORT or https://HOST:PORT")
    return ApiAddress(parts.scheme, host, API_PORT if port is None else port)


def trust(ca: str | None) -> ssl.SSLContext:
    """With the cluster's own authority, managers are known by their role; else by the name in a public certificate."""
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise Invalid(f"{ca} cannot be used as a certificate authority: {error}") from None
    if ca is not None:
        context.check_hostname = False
        # Looked at inside the handshake: afterwards the token would already be on its way.
        context.sslobject_class = ManagersOnly
    return context


class ManagersOnly(ssl.SSLObject):
    """The authority vouches for workers too, and none of them may pass for a manager."""

    def do_handshake(self) -> None:
        super().do_handshake()
        role = peer_identity(self).role
        if role not in (Role.MANAGER, Role.GATE):
            refusal = ssl.SSLCertVerificationError()
            refusal.verify_code = 0
            refusal.verify_message = f"it is not a manager's but says {role or 'no role'}"
            raise refusal


async def call(
    address: ApiAddress,
    method: str,
    path: str,
    *,
    headers: Mapping[str, str],
    body: Body = b"",
    timeout_s: float,
    limit_bytes: int,
    tls: ssl.SSLContext | None = None,
) -> HttpAnswer:
    try:
        async with asyncio.timeout(timeout_s):
            encrypted = tls if address.scheme == "https" else None
            reader, writer = await reached(address, asyncio.open_connection(address.host, address.port, ssl=encrypted))
            try:
                return await exchange(
                    reader, writer, request_head(address, method, path, headers, body), body, limit_bytes
                )
            finally:
                # Nothing is lost by not saying goodbye properly. Not closed first: if the peer has closed a TLS
                # connection too, Python up to 3.11.4 cannot abort it any more.
                writer.transport.abort()
                with contextlib.suppress(OSError, ssl.SSLError):
                    await writer.wait_closed()
    except TimeoutError:
        raise ApiSilent(f"{address} did not answer within {timeout_s:g} s") from None
    except (OSError, EOFError) as error:
        raise ApiSilent(f"{address} broke the connection: {error or type(error).__name__}") from None
    except httptools.HttpParserError as error:
        raise ApiSilent(f"{address} does not answer as a manager does: {error}") from None


async def reached(address: ApiAddress, connecting: Awaitable[Connection]) -> Connection:
    """What connects, within `CONNECT_TIMEOUT_S`."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            return await connecting
    except ssl.SSLError as error:
        raise ApiSilent(f"{address}: {reason_of(error)[1]}") from None
    except TimeoutError:
        raise ApiSilent(f"{address} did not answer within {CONNECT_TIMEOUT_S} s") from None
    except OSError as error:
        # asyncio's own words for it are of no use to people.
        reason = "nothing listens there" if isinstance(error, ConnectionRefusedError) else error.strerror or error
        raise ApiSilent(f"{address} cannot be reached: {reason}") from None


def request_head(address: ApiAddress, method: str, path: str, headers: Mapping[str, str], body: Body) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"host: {address}", "connection: close"]
    if not isinstance(body, bytes):
        lines.append("transfer-encoding: chunked")
    elif body or method in ("PUT", "POST"):
        lines.append(f"content-length: {len(body)}")
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            raise Invalid(f"{name} has characters that cannot be sent: {value[:50]!r}")
        lines.append(f"{name}: {value}")
    return "\r\n".join([*lines, "", ""]).encode("ascii")


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes, body: Body, limit_bytes: int
) -> HttpAnswer:
    """A server may answer before it has read everything, so both go on at once."""
    answer = asyncio.ensure_future(read_answer(reader, head.startswith(b"HEAD "), limit_bytes))
    sending = asyncio.ensure_future(send(writer, head, body))
    # What cannot be sent because nobody reads it is not the trouble: the answer says, or its absence. What the body's
    # own source raises is.
    sending.add_done_callback(lambda done: answer.cancel() if has_failed(done) else None)
    try:
        return await answer
    except asyncio.CancelledError:
        if sending.done() and has_failed(sending):
            await sending
        raise
    finally:
        answer.cancel()
        sending.cancel()
        await asyncio.gather(answer, sending, return_exceptions=True)


def has_failed(sending: "asyncio.Future[None]") -> bool:
    return (
        not sending.cancelled()
        and isinstance(error := sending.exception(), Exception)
        and not isinstance(error, OSError)
    )


async def send(writer: asyncio.StreamWriter, head: bytes, body: Body) -> None:
    writer.write(head)
    if not isinstance(body, bytes):
        async for chunk in body:
            writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        return
    for offset in range(0, len(body), WRITE_BYTES):
        writer.write(memoryview(body)[offset : offset + WRITE_BYTES])
        await writer.drain()


async def read_answer(reader: asyncio.StreamReader, is_head: bool, limit_bytes: int) -> HttpAnswer:
    collector = Collector()
    parser: Any = httptools.HttpResponseParser(collector)
    received = 0
    while not collector.is_whole and not (is_head and collector.has_head):
        data = await reader.read(READ_BYTES)
        if not data and collector.ends_with_connection:
            break
        if not data:
            raise EOFError("it ended before the answer did")
        received += len(data)
        if not collector.has_head and received > HEAD_LIMIT_BYTES + READ_BYTES:
            raise httptools.HttpParserError("the head of the answer never ends")
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # it is no kind of the error that all others are
            raise httptools.HttpParserError("it changed to another protocol") from None
        if len(collector.body) > limit_bytes:
            raise httptools.HttpParserError(f"the answer has more than {limit_bytes} bytes")
        collector.status = collector.status or (parser.get_status_code() if collector.has_head else 0)
    return HttpAnswer(collector.status, collector.headers, bytes(collector.body))


class Collector:
    """What the parser finds."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.has_head = False
        self.is_whole = False

    @property
    def ends_with_connection(self) -> bool:
        has_length = "content-length" in self.headers or "transfer-encoding" in self.headers
        return self.has_head and not has_length

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_head:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.is_whole = True
