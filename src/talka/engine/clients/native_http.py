"""The HTTP client on the engine in C. What happens for every call is there; what happens seldom is here.

Import it only where `engine.load.native` says that the extension can be used.
"""

import asyncio
import errno
import socket
from typing import TYPE_CHECKING, Any, Final

from talka._native import Client, Connection, Engine, Pool
from talka.clock import monotonic_ns
from talka.engine.calls import ExchangeFailed
from talka.engine.clients.deadlines import Timeout, kept_timeout
from talka.engine.clients.http import Arguments, Caller, HTTPEngine, TimeoutLike
from talka.engine.clients.opening import connected_socket, reason_of
from talka.engine.clients.requests import Request
from talka.engine.clients.urls import PreparedURL
from talka.errors import Invalid

if TYPE_CHECKING:
    from ssl import MemoryBIO, SSLContext, SSLObject

HANDSHAKE_BYTES: Final = 64 * 1024


class NativeHTTPEngine(HTTPEngine):
    """Sockets, answers, deadlines and counting are the core's; names, TLS contexts and caches are as in Python.

    Counts reach `exchanges` at the end of every pump, and when something is interrupted; `core.pour()` brings them up
    to date in between.
    """

    def _begin(self) -> None:
        self.core = Engine(self, self.loop, self.exchanges, self.timeout, self.max_body_bytes, self.trace)
        # Under the direct driver it needs no Task. One call less for each pause than a method would be.
        self.pause = self.core.pause  # type: ignore[assignment, method-assign]
        self.on_all_gone = self.all_gone.set  # which the core calls
        self.loop.add_reader(self.core.fileno(), self.core.pump)

    @property
    def pulse(self) -> int:
        return self.core.pulse

    @pulse.setter
    def pulse(self, value: int) -> None:
        """The core has its own."""

    @property
    def connections(self) -> set[Any]:
        return self.core.connections

    @connections.setter
    def connections(self, value: set[Any]) -> None:
        """The core has its own."""

    def new_client(self) -> "NativeHTTPClient":
        return NativeHTTPClient(self)

    def new_pool(self) -> Any:
        return Pool()

    async def open(self, pool: Any, url: PreparedURL, tls: "SSLContext | None") -> Any:
        addresses = await self.resolve(url)
        started_ns = monotonic_ns()
        sock = await connected_socket(self.loop, url, addresses)
        connected_ns = monotonic_ns()
        try:
            secured = None if tls is None else await shaken_hands(self.loop, sock, url.host.rstrip("."), tls)
            connection = Connection(self.core, pool, sock.fileno(), secured)
        except OSError as error:
            sock.close()
            kind, what = ("reset", "opening the connection") if tls is None else ("tls", "the TLS handshake")
            raise ExchangeFailed(kind, f"{url}: {what} failed: {reason_of(error)}") from None
        except BaseException:
            sock.close()
            raise
        sock.detach()
        connection.connect_ns = connected_ns - started_ns
        if tls is not None:
            connection.tls_ns = monotonic_ns() - connected_ns
        return connection

    async def close(self) -> None:
        """Close every connection at once, politely under TLS; nobody waits for the other end."""
        if (descriptor := self.core.fileno()) >= 0:
            self.loop.remove_reader(descriptor)
        self.core.close()
        await self._resolver.close()
        self.deadlines.close()


class NativeHTTPClient(Caller, Client):
    """The client of one virtual user. Its calls are the core's, which asks here for what it cannot do itself."""

    __slots__ = ()

    def _made(self, method: str, url: str, *arguments: *Arguments) -> Request:
        """A request that is not at hand."""
        engine = self._engine
        try:
            if self._jar is None and all(argument is None for argument in arguments):
                return engine.bare[method].get(url) or engine.bare_request(method, url)
            return self._request(method, url, *arguments)
        except (Invalid, TypeError) as error:
            raise self._not_made(url, error) from None

    def _limits(self, timeout: TimeoutLike) -> Timeout:
        assert timeout is not None
        try:
            return kept_timeout(timeout)
        except (Invalid, TypeError):
            self._engine.exchanges.not_sent += 1
            raise


async def shaken_hands(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, host: str, context: "SSLContext"
) -> "tuple[SSLObject, MemoryBIO, MemoryBIO]":
    """The handshake on a socket that nobody else uses yet: the TLS object, its inlet and its outlet."""
    import ssl

    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    secured = context.wrap_bio(incoming, outgoing, server_hostname=host)
    is_done = False
    while not is_done:
        try:
            secured.do_handshake()
            is_done = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            if outgoing.pending:
                await loop.sock_sendall(sock, outgoing.read())  # tells the server why
            raise
        if outgoing.pending:
            await loop.sock_sendall(sock, outgoing.read())
        if not is_done:
            received = await loop.sock_recv(sock, HANDSHAKE_BYTES)
            if not received:
                raise ConnectionResetError(errno.ECONNRESET, "closed during the handshake")
            incoming.write(received)
    return secured, incoming, outgoing
