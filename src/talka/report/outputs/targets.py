"""Addresses that outputs send to, checked when they are named and used when there is something to send.

Every wait here has a limit. Errors name the place without user, password and headers, for they are shown and logged.
"""

import base64
import http.client
import re
import socket
import threading
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from talka.report.files import BadOutput, CannotDeliver, reason_of
from talka.version import VERSION
from talka.wire.addresses import format_address

RETRIES: Final = 2
DATAGRAM_BYTES: Final = 1400
"""Fits one Ethernet frame with all headers: larger datagrams are lost whole when one fragment is."""
ANSWER_BYTES: Final = 64 * 1024
ANSWER_CHARACTERS_SHOWN: Final = 200
HEADER_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
HEADER_VALUE: Final = re.compile(r"[ -~]+")

TargetAddress: TypeAlias = tuple[str, int]
"""Host and port of a server, looked up when it is first needed: names may take long."""


class SendLimits(msgspec.Struct, frozen=True):
    """How outputs send."""

    timeout_s: float = 2.0
    """Of each wait for a socket. A monitoring system that needs longer for one batch a second has lost already."""
    backoff_s: float = 0.25
    """Seconds before a server is asked again; twice as many before the next time."""
    lines: int = 5_000
    """Lines in one request of the line protocol."""


SEND_LIMITS: Final = SendLimits()


class HttpPlace:
    """A server that takes POST requests. Each goes over a connection of its own: there is about one a second."""

    def __init__(self, parts: SplitResult, headers: Mapping[str, str], default_path: str, limits: SendLimits) -> None:
        self._limits = limits
        self.place = parts.netloc.rpartition("@")[2]
        self._host, self._port = str(parts.hostname), parts.port
        self._is_tls = parts.scheme == "https"
        path = parts.path if parts.path not in ("", "/") else default_path
        self._target = f"{path}?{parts.query}" if parts.query else path
        self._headers = headers

    def post(self, body: bytes, headers: Mapping[str, str]) -> bytes:
        """The answer to it. Asks again when that may help, a few times."""
        problem = CannotDeliver("")
        for attempt in range(RETRIES + 1):
            if attempt:
                threading.Event().wait(self._limits.backoff_s * 2 ** (attempt - 1))
            try:
                status, reason, answer = self._ask(body, headers)
            except (OSError, http.client.HTTPException) as error:
                problem = CannotDeliver(f"{self.place} cannot be reached: {reason_of(error)}")
                continue
            if 200 <= status < 300:
                return answer
            text = answer.decode("utf-8", "replace").strip()[:ANSWER_CHARACTERS_SHOWN]
            problem = CannotDeliver(f"{self.place} answered {status} {reason}{': ' if text else ''}{text}")
            if status < 500 and status != 429:
                break  # it would be refused again
        raise problem

    def _ask(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, str, bytes]:
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._limits.timeout_s)
        try:
            own = {"User-Agent": f"talka/{VERSION}"}
            connection.request("POST", self._target, body, {**own, **headers, **self._headers})
            answer = connection.getresponse()
            return answer.status, answer.reason, answer.read(ANSWER_BYTES)
        finally:
            connection.close()


def http_place(target: str, what: str, *, default_path: str = "/", limits: SendLimits = SEND_LIMITS) -> HttpPlace:
    """`http(s)://[user:password@]host[:port]/path?query[#Header=value&…]`; the headers are sent, the fragment is
    not."""
    if not target.isascii() or not target.isprintable() or " " in target:
        raise BadOutput(f"{what}: an address has printable ASCII characters only and no spaces: write others as %XX")
    try:
        parts = urlsplit(target)
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole:
        raise BadOutput(f"{what}: this is not the address of a server: write http://host:port/path or https://…")
    headers = {}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    for name, value in parse_qsl(parts.fragment, keep_blank_values=True):
        if not HEADER_NAME.fullmatch(name) or not HEADER_VALUE.fullmatch(value):
            raise BadOutput(f"{what}: what follows # must be headers, as #Authorization=Token+abc")
        headers[name] = value
    return HttpPlace(parts, headers, default_path, limits)


def address(target: str, what: str) -> TargetAddress:
    try:
        parts = urlsplit(f"//{target}")
        if parts.hostname and parts.port and parts.netloc == target and "@" not in target and target.isprintable():
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise BadOutput(f"{what}: {target!r} is not an address: write host:port")


class TargetDatagrams:
    """Lines sent over UDP, as many in each datagram as fit. Nobody says whether they arrived."""

    def __init__(self, address: TargetAddress, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None

    def send(self, lines: Iterable[bytes]) -> None:
        try:
            for datagram in packed(lines):
                self._opened().send(datagram)
        except OSError as error:
            raise CannotDeliver(f"{format_address(*self._address)} cannot be reached: {reason_of(error)}") from None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _opened(self) -> socket.socket:
        if self._socket is None:
            found = socket.getaddrinfo(*self._address, type=socket.SOCK_DGRAM)
            family, kind, protocol, _, place = found[0]
            self._socket = socket.socket(family, kind, protocol)
            self._socket.settimeout(self._timeout_s)
            # Connected, so that a machine on which nobody listens can say so.
            self._socket.connect(place)
        return self._socket


def packed(lines: Iterable[bytes]) -> Iterable[bytes]:
    datagram = b""
    for line in lines:
        if datagram and len(datagram) + 1 + len(line) > DATAGRAM_BYTES:
            yield datagram
            datagram = b""
        datagram = datagram + b"\n" + line if datagram else line
    if datagram:
        yield datagram


def send_over_tcp(address: TargetAddress, content: bytes, timeout_s: float) -> None:
    """Over a connection of its own: one that was kept might have been closed at the other end unnoticed."""
    try:
        with socket.create_connection(address, timeout=timeout_s) as connection:
            connection.sendall(content)
    except OSError as error:
        raise CannotDeliver(f"{format_address(*address)} cannot be reached: {reason_of(error)}") from None
