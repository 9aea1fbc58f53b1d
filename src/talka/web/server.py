"""The API on a socket: uvicorn in the loop that is already running, without signal handlers of its own."""

import asyncio
import contextlib
import errno
import functools
import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, cast

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from talka.client.dags import SUBMIT_FRAME_LIMIT_BYTES
from talka.client.requests import API_PORT
from talka.control.clients.connections import LEAST_FILES, WANTED_FILES, ConnectionLimits, limits_for
from talka.errors import Invalid, Unavailable
from talka.net.descriptors import ask_for
from talka.web.answers import STOPPING, answer_to_error
from talka.web.api_limits import HTTP_LIMITS, HttpLimits
from talka.web.crowd import Crowd, Guest, is_probe
from talka.web.tls_listener import TlsListener

BACKLOG: Final = 1024
CROWDED_S: Final = 1
"""After that, a connection may be free."""
HEAD_LIMIT_BYTES: Final = 64 * 1024
KEEP_ALIVE_S: Final = 30
SILENT_PEER_MS: Final = 60_000
GRACE_S: Final = 5
WATCHER_FRAME_LIMIT_BYTES: Final = 4096
"""Of what a watcher says, which means nothing."""
SUBMIT_PATH: Final = "/v1/jobs/submit"
PING_S: Final = 10
WHOLE: Final = ConnectionLimits()


class Exposed(Invalid):
    """The API would be open to the network with nothing to keep anybody out."""


class ApiCannotListen(Invalid):
    """The address is taken, or not of this machine."""


def listen(host: str = "127.0.0.1", port: int = API_PORT, *, has_tokens: bool) -> socket.socket:
    """A listening socket. Without tokens only on loopback."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ApiCannotListen(f"the API cannot listen on {host}: {error.strerror}") from None
    family, _, _, _, address = found[0]
    if not has_tokens and not ipaddress.ip_address(address[0]).is_loopback:
        raise Exposed(
            f"the API would listen on {host} and let everybody in: give it a token key (--token-key-file), or listen on"
            " 127.0.0.1"
        )
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Inherited by connections: a peer that takes nothing of an answer is not waited for.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_PEER_MS)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        advice = "; end what listens there, or choose another port" if error.errno == errno.EADDRINUSE else ""
        raise ApiCannotListen(f"the API cannot listen on {host}:{port}: {error.strerror}{advice}") from None
    return listener


class ListenGranted(NamedTuple):
    """How many connections a server may have, as this process may have so many files open."""

    limits: ConnectionLimits
    files: int
    is_short: bool


def granted_limits(who: str) -> ListenGranted:
    """Asks the system for as many files as the limits take. Smaller ones where it grants fewer."""
    files = ask_for(who, least=LEAST_FILES, wanted=WANTED_FILES)
    return ListenGranted(limits_for(files.files), files.files, files.is_short)


async def serve(
    app: Starlette,
    listener: socket.socket,
    *,
    stop: asyncio.Event,
    tls: ssl.SSLContext | None = None,
    on_started: Callable[[], None] = lambda: None,
    grace_s: int = GRACE_S,
    limits: ConnectionLimits = WHOLE,
    http: HttpLimits = HTTP_LIMITS,
) -> None:
    """Serve until `stop` is set, then finish what is under way for up to `grace_s`. Closes the socket.

    Cancelled, it drops everything at once.
    """
    crowd = Crowd(limits)
    # Inherited by connections. asyncio does it only for sockets that say that they are TCP; without, the second part of
    # an answer waits 40 ms for the first to be acknowledged.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(
        knowing(app, stop),
        http=cast(type[asyncio.Protocol], functools.partial(BoundedHttp, crowd, limits=http)),
        ws=QuietWebSocket,
        ws_max_size=WATCHER_FRAME_LIMIT_BYTES,
        ws_ping_interval=PING_S,
        ws_ping_timeout=PING_S,
        ws_per_message_deflate=False,
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        # Whoever is in front of us could say anything there.
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=grace_s,
    )
    server = QuietServer(config, stop, on_started, crowd, tls, http)
    try:
        await server.serve(sockets=[listener])
    finally:
        server.drop_all()
        listener.close()


def knowing(app: Starlette, stop: asyncio.Event) -> ASGIApp:
    """The same, of which whoever waits for long knows when to end."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        scope[STOPPING] = stop
        await app(scope, receive, send)

    return answer


class QuietServer(uvicorn.Server):
    """Signals are the node's business."""

    def __init__(
        self,
        config: uvicorn.Config,
        stop: asyncio.Event,
        on_started: Callable[[], None],
        crowd: Crowd,
        tls: ssl.SSLContext | None,
        http: HttpLimits,
    ) -> None:
        super().__init__(config)
        self._stop = stop
        self._on_started = on_started
        self._crowd = crowd
        self._tls = tls
        self._http = http

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._tls is None or sockets is None:
            await super().startup(sockets)
            return

        def protocol(guest: Guest) -> asyncio.Protocol:
            uvicorn_needs = {"config": self.config, "server_state": self.server_state, "app_state": {}}
            return BoundedHttp(self._crowd, guest, limits=self._http, **uvicorn_needs)

        listeners = [
            TlsListener(listener, self._tls, self._crowd, protocol, handshake_s=self._http.head_s)
            for listener in sockets
        ]
        self.servers = cast(list[asyncio.base_events.Server], listeners)
        self.started = True

    async def main_loop(self) -> None:
        self._on_started()
        while not self._stop.is_set():
            await self.on_tick(0)  # sets the Date header
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._stop.wait()

    def drop_all(self) -> None:
        for server in getattr(self, "servers", ()):
            server.close()
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        for task in list(self.server_state.tasks):
            task.cancel()


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol with limits: the head of a request is short and comes soon, and so does what is left of a
    request that was answered before it was whole.

    A connection that is closed while something of it was not read is reset, and the answer may be lost with it. So the
    rest is passed over for a moment, and if it is long no longer read before the connection is closed.
    """

    def __init__(
        self, crowd: Crowd, guest: Guest | None = None, *, limits: HttpLimits = HTTP_LIMITS, **named: Any
    ) -> None:
        """`guest`: where it was counted before this was made."""
        super().__init__(**named)
        self._crowd = crowd
        self._guest = guest
        self._bounds = limits
        self._is_refused = False
        self._is_in_head = True
        self._is_whole = True
        self._head_bytes = 0
        self._is_lingering = False
        self._rest_bytes = 0
        self._is_deaf = False
        self._is_last = False
        """The connection ends with the answer that was given."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._gentle = GentleTransport(transport, self._close)
        self._set_timer(self._bounds.head_s)
        if self._guest is None:
            peer = transport.get_extra_info("peername")
            self._guest = Guest(self._crowd, str(peer[0]) if peer else "")
            self._crowd.arrived(self._guest)
        self._guest.drop = transport.abort

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_timer()
        assert self._guest is not None
        self._guest.left()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_lingering:
            self._rest_bytes += len(data)
            if self._rest_bytes > self._bounds.rest_bytes:
                self._stop_reading()
        if self._is_deaf:
            return
        super().data_received(data)
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_LIMIT_BYTES and not self.transport.is_closing():
                self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head, self._is_whole, self._head_bytes = True, False, 0
        self._set_timer(self._bounds.head_s)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head:  # trailers say nothing here
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._unset_timer()
        assert self._guest is not None
        verdict = self._guest.asks(is_probe=is_probe(self.parser.get_method(), self.url))
        if not verdict.is_served:
            self._is_refused, self.app = True, crowded
        super().on_headers_complete()
        if self.cycle is not None:
            self.cycle.transport = self._gentle  # type: ignore[assignment]
            if verdict.is_last:
                self.cycle.keep_alive = False

    def _should_upgrade(self) -> bool:
        return not self._is_refused and super()._should_upgrade()

    def handle_websocket_upgrade(self) -> None:
        super().handle_websocket_upgrade()
        protocol = self.transport.get_protocol()
        assert isinstance(protocol, QuietWebSocket) and self._guest is not None
        protocol.guest = self._guest

    def on_message_complete(self) -> None:
        self._is_whole = True
        if self._is_last:
            self.transport.close()
        elif self._is_lingering:
            # The rest was short: the connection serves on.
            self._is_lingering = False
            self._set_timer(KEEP_ALIVE_S)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        has_more = bool(self.pipeline)
        super().on_response_complete()
        if not has_more:
            assert self._guest is not None
            self._guest.rests()
        if not self._is_whole and not self.pipeline:
            self._linger()

    def _close(self) -> None:
        """After an answer with which the connection is to end."""
        if self._is_whole:
            self.transport.close()
            return
        self._is_last = self._gentle.is_shut = True
        self._end_writing()
        self._linger()

    def _linger(self) -> None:
        """The answer was given early."""
        if not self._is_lingering and not self._is_deaf:
            self._is_lingering, self._rest_bytes = True, 0
            self._set_timer(self._bounds.linger_s)

    def _stop_reading(self) -> None:
        self._is_deaf = self._is_last = self._gentle.is_shut = True
        if not self.transport.is_closing():
            self.transport.pause_reading()
        self._end_writing()
        self._set_timer(self._bounds.deaf_s)

    def _end_writing(self) -> None:
        """So that the other side sees the end of the answer."""
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()

    def _set_timer(self, seconds: float) -> None:
        self._unset_timer()
        # TLS would wait for a goodbye from somebody who is not listened to.
        self._timer = self.loop.call_later(seconds, self.transport.abort if self._is_deaf else self.transport.close)

    def _unset_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def crowded(scope: Scope, receive: Receive, send: Send) -> None:
    answer = answer_to_error(Unavailable("this node serves as many connections as it can: try again"), scope["path"])
    answer.headers["retry-after"] = str(CROWDED_S)
    await answer(scope, receive, send)


class GentleTransport:
    """What an answer is written to: closing it waits for the rest of the request, within limits."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.close = close
        self.is_shut = False
        self.is_closing = transport.is_closing
        self._write = transport.write

    def write(self, data: bytes) -> None:
        # Of several requests on a connection uvicorn tells the last one alone that nobody is there any more.
        if not self.is_shut and not self.is_closing():
            self._write(data)


class QuietWebSocket(WebSocketsSansIOProtocol):
    """uvicorn takes a refusal for a handshake that never ended, and would log every one as an error.

    A watcher that does not read would keep what is meant for it in memory: it is cut off.
    """

    guest: Guest | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self.guest is not None:
            self.guest.left()
        super().connection_lost(exc)

    async def run_asgi(self) -> None:
        await super().run_asgi()
        if not self.writable.is_set():
            self.transport.abort()

    async def send(self, message: Any) -> None:
        if message["type"] == "websocket.accept" and self.scope["path"] == SUBMIT_PATH:
            # Only who was let in may say so much, and only there.
            self.conn.max_message_size = SUBMIT_FRAME_LIMIT_BYTES
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True
