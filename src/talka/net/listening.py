"""The sockets a node listens on: streams and datagrams on one port."""

import socket
from typing import Final

from talka.errors import Invalid
from talka.wire.addresses import format_address

FREE_PORT_TRIES: Final = 16


class CannotListen(Invalid):
    """The address is taken, or not of this machine."""


def listening_sockets(host: str, port: int) -> tuple[socket.socket, socket.socket]:
    """A stream socket and a datagram socket on the same port; port 0 takes one that is free for both."""
    try:
        family, _, _, _, resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise CannotListen(f"cannot listen on {format_address(host, port)}: {error.strerror or error}") from None
    what = ""
    for _ in range(1 if port else FREE_PORT_TRIES):
        stream = socket.socket(family, socket.SOCK_STREAM)
        datagram = socket.socket(family, socket.SOCK_DGRAM)
        try:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            stream.bind(resolved)
            datagram.bind(stream.getsockname())
            stream.setblocking(False)
            return stream, datagram
        except OSError as error:
            stream.close()
            datagram.close()
            what = (error.strerror or str(error)).lower()
    raise CannotListen(f"cannot listen on {format_address(host, port)}, TCP and UDP: {what}")
