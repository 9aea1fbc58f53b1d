"""From a URL to an open connection: the address, the socket, the TLS handshake."""

import asyncio
import errno
import os
import socket
from typing import TYPE_CHECKING, Final

from talka.clock import monotonic_ns
from talka.engine.calls import ExchangeFailed
from talka.engine.clients.connection import Connection, Pool, SharedPool
from talka.engine.clients.urls import Address, PreparedURL
from talka.errors import Invalid

if TYPE_CHECKING:
    from ssl import SSLContext

MAX_HOSTS_KEPT: Final = 4096


class BadCertificates(Invalid):
    """The file of certificate authorities cannot be used."""


class Resolver:
    """Asks for the addresses of each host and port once, however many users want to know. Failures are not kept."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hosts: int = MAX_HOSTS_KEPT) -> None:
        self._hosts = hosts
        self._loop = loop
        self._addresses: dict[tuple[str, int], list[Address]] = {}
        self._asking: dict[tuple[str, int], asyncio.Task[list[Address] | str]] = {}

    async def addresses_of(self, host: str, port: int) -> list[Address]:
        key = (host, port)
        found: list[Address] | str | None = self._addresses.get(key)
        if found is None:
            task = self._asking.get(key)
            if task is None:
                task = self._asking[key] = self._loop.create_task(self._ask(host, port))
            # Shielded: one user's end must not fail the others that wait for the same name.
            found = await asyncio.shield(task)
        if isinstance(found, str):
            raise ExchangeFailed("dns", found)
        return found

    async def close(self) -> None:
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(self, host: str, port: int) -> list[Address] | str:
        """The addresses, or a sentence on why there are none: an error might find nobody left to take it."""
        try:
            found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            return f"the address of {host!r} cannot be found: {getattr(error, 'strerror', None) or error}"
        finally:
            del self._asking[(host, port)]
        addresses: list[Address] = [(family, target) for family, _, _, _, target in found]
        if not addresses:
            return f"the address of {host!r} cannot be found: the name has none"
        if len(self._addresses) >= self._hosts:
            self._addresses.clear()
        self._addresses[(host, port)] = addresses
        return addresses


def tls_context(verify: bool | str) -> "SSLContext":
    """`verify` is True for the system's authorities, False to trust anybody, or a file of authorities."""
    import ssl  # only now: loading it and the authorities takes a while, and most tests never need it

    try:
        context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    except OSError as error:
        raise BadCertificates(
            f"the certificate authorities in {verify!r} cannot be loaded: {error.strerror or error}"
        ) from None
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context


async def open_connection(
    shared: SharedPool, pool: Pool, url: PreparedURL, addresses: list[Address], tls: "SSLContext | None"
) -> Connection:
    """Connect to the first address that answers. Raises `ExchangeFailed`; time limits are the caller's."""
    loop = shared.loop
    started_ns = monotonic_ns()
    sock = await connected_socket(loop, url, addresses)
    connected_ns = monotonic_ns()
    connection = Connection(shared, pool, sock if tls is None else None)
    # From here on the transport owns the socket, and closes it when anything goes wrong.
    try:
        if tls is None:
            await loop.create_connection(lambda: connection, sock=sock)
        else:
            await loop.create_connection(
                lambda: connection, sock=sock, ssl=tls, server_hostname=url.host.rstrip("."), ssl_shutdown_timeout=1.0
            )
            connection.tls_ns = monotonic_ns() - connected_ns
        connection.connect_ns = connected_ns - started_ns
        if not connection.is_open:
            raise ConnectionResetError(errno.ECONNRESET, "closed at once")
    except BaseException as error:
        if not isinstance(loop, asyncio.BaseEventLoop):
            # uvloop closes the descriptor, but may tell neither the protocol nor the socket object. The object would
            # close the same number once more when it goes: by then it may belong to another connection.
            sock.detach()
            connection.connection_lost(None)
        if not isinstance(error, OSError):
            raise
        kind, what = ("reset", "opening the connection") if tls is None else ("tls", "the TLS handshake")
        raise ExchangeFailed(kind, f"{url}: {what} failed: {reason_of(error)}") from None
    return connection


async def connected_socket(
    loop: asyncio.AbstractEventLoop, url: PreparedURL, addresses: list[Address]
) -> socket.socket:
    failure: OSError | None = None
    for address in tuple(addresses):
        family, target = address
        sock: socket.socket | None = None
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, target)
        except OSError as error:
            failure = failure or error
            if sock is not None:
                sock.close()
        except BaseException:
            if sock is not None:
                sock.close()
            raise
        else:
            if failure is not None and address in addresses:
                addresses.remove(address)
                addresses.insert(0, address)  # the next connection need not knock at closed doors first
            return sock
    # A refusal may come without the loop having run; a user that tries again at once must not stop all others.
    await asyncio.sleep(0)
    raise connect_failure(url, failure)


def connect_failure(url: PreparedURL, error: OSError | None) -> ExchangeFailed:
    number = error.errno if error is not None else None
    if number in (errno.EMFILE, errno.ENFILE):
        return ExchangeFailed("refused", f"{url}: this machine has no file left for a connection; raise `ulimit -n`")
    if number == errno.EADDRNOTAVAIL:
        return ExchangeFailed("refused", f"{url}: this machine has no free port left, or the address is not reachable")
    kinds = {errno.ETIMEDOUT: "timeout", errno.ECONNRESET: "reset"}  # the latter was accepted, and dropped at once
    kind = "refused" if number is None else kinds.get(number, "refused")
    reason = "it has no address" if error is None else reason_of(error)
    return ExchangeFailed(kind, f"{url}: cannot connect to {url.host} port {url.port}: {reason}")


def reason_of(error: Exception | None) -> str:
    """What the system says, in its words."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0 and not hasattr(error, "reason"):
        return os.strerror(error.errno).lower()
    return str(error) or "closed"
