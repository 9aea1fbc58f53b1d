"""Connections that begin with TLS. asyncio's own server counts nobody before a handshake is over, and strangers need
not end one: here each stands in line from the moment it is accepted.

Decision: docs/decisions/0035-strangers-give-way.md.
"""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Final

from talka.web.crowd import Crowd, Guest

AT_ONCE: Final = 64
"""So many are accepted before others have a turn."""
PAUSE_S: Final = 1.0
"""Without descriptors nobody can be accepted: it is tried again then."""


class TlsListener:
    """As much of an `asyncio.Server` as is needed."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        crowd: Crowd,
        protocol: Callable[[Guest], asyncio.Protocol],
        *,
        handshake_s: float,
    ) -> None:
        """`protocol` makes what a guest is served by once its handshake is over."""
        self._listener = listener
        self._context = context
        self._crowd = crowd
        self._protocol = protocol
        self._handshake_s = handshake_s
        self._shaking: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(listener.fileno(), self._accept)

    def close(self) -> None:
        """Nobody is accepted any longer, and whose handshake is under way is let go."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._listener.fileno())
        if self._pause is not None:
            self._pause.cancel()
        for task in list(self._shaking):
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._shaking, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._loop.remove_reader(self._listener.fileno())
                    self._pause = self._loop.call_later(PAUSE_S, self._resume)
                return
            sock.setblocking(False)
            guest = Guest(self._crowd, str(address[0]))
            task = self._loop.create_task(self._shake(sock, guest))
            guest.drop = task.cancel
            self._shaking.add(task)
            task.add_done_callback(self._shaking.discard)
            task.add_done_callback(lambda task, sock=sock, guest=guest: _end(task, sock, guest))  # type: ignore[misc]
            self._crowd.arrived(guest)

    def _resume(self) -> None:
        self._loop.add_reader(self._listener.fileno(), self._accept)

    async def _shake(self, sock: socket.socket, guest: Guest) -> None:
        await self._loop.connect_accepted_socket(
            lambda: self._protocol(guest), sock, ssl=self._context, ssl_handshake_timeout=self._handshake_s
        )


def _end(task: "asyncio.Task[None]", sock: socket.socket, guest: Guest) -> None:
    """It does not speak TLS, or not ours, or not in time; or it gave way. Whatever it was, it was a stranger's
    doing."""
    if task.cancelled() or task.exception() is not None:
        guest.left()
        with contextlib.suppress(OSError):
            sock.close()  # a task that was cancelled before its first step never had it
