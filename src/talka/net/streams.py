"""Frames over TCP: connections that are dialled when there is something to send, and those that others dialled.

Votes and leases have a connection of their own to each peer, so that nothing stands before them. With certificates
every connection is TLS and both ends are who they say. Nothing of a stranger is kept for long: until its first good
frame a connection may hold little and lives a few seconds.

Decision: docs/decisions/0015-one-member-one-loop.md.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, cast

import msgspec

from talka.clock import boottime_ns
from talka.cluster.effects import HANDLE
from talka.control.member.breaker import Breaker, BreakerState
from talka.control.member.send_queue import Class, SendQueue
from talka.units import MILLISECOND, SECOND
from talka.wire.addresses import format_address, ip_target
from talka.wire.framing import FRAME_LIMIT_BYTES, HEADER_BYTES, Deframer, FrameTooLong, framed
from talka.wire.security.roles import NOBODY, Proven
from talka.work.retry import RetryPolicy, delay

if TYPE_CHECKING:
    from talka.net.tls import TlsChannel

BREAKER_FAILURES: Final = 6
BREAKER_WINDOW_NS: Final = 10 * SECOND
CONTROL_SILENCE_MS: Final = 3000
"""What the peer's kernel does not confirm within this time breaks the connection: a cut link is not waited for."""
STREAM_SILENCE_MS: Final = 8000
IDLE_NS: Final = 30 * SECOND
STRANGER_NS: Final = 10 * SECOND
"""How long one may be connected without having sent a good frame."""
SWEEP_S: Final = 5.0
STRANGER_FRAME_BYTES: Final = 16 * 1024

OnFrame: TypeAlias = Callable[[str, bytes, Proven], bool]
"""(source, frame, whom its certificate names) → whether its seal was good"""
OnRefused: TypeAlias = Callable[[str, str, str], None]
"""(address, a word for counters, a sentence)"""
OnGone: TypeAlias = Callable[[str, bool], None]
"""(address that was dialled, whether anybody was there at all)"""


class StreamLimits(msgspec.Struct, frozen=True):
    """How long connections are waited for, and how many there may be."""

    dial_s: float = 2.0
    """Seconds for the connection, and once more for its TLS."""
    close_s: float = 1.0
    """Seconds that the last frames may take at the end."""
    retries: RetryPolicy = RetryPolicy(attempts=4, base_ns=50 * MILLISECOND, cap_ns=SECOND, jitter="decorrelated")
    control_probe_ns: int = 300 * MILLISECOND
    """How long votes leave a peer alone that cannot be reached; an election cannot wait for longer."""
    stream_probe_ns: int = 2 * SECOND
    links: int = 4096
    """Connections that were dialled, and as many that others dialled."""
    strangers: int = 256
    """Connections of others without a good frame so far."""


STREAM_LIMITS: Final = StreamLimits()


class Security(Protocol):
    """Makes TLS of a connection, and judges who is at its other end. `net/identity.py` does, when there are
    certificates."""

    def channel(self, *, server_side: bool) -> "TlsChannel": ...

    def judge(self, channel: "TlsChannel", *, initiated_by_peer: bool) -> tuple[str, str]:
        """(a word, a sentence) against this peer, or two empty ones."""


class Link(asyncio.Protocol):
    """One TCP connection."""

    def __init__(
        self, streams: "Streams", source: str, queue: SendQueue, *, is_dialled: bool, is_control: bool
    ) -> None:
        self.source = source
        self.queue = queue
        self.is_dialled = is_dialled
        self.is_control = is_control
        self.is_good = is_dialled
        """Whether it sent a frame whose seal was good, or is one we dialled."""
        self.since = self.used_at = boottime_ns()
        self.peer = source
        self.failed = False
        self._streams = streams
        self._deframer = Deframer() if is_dialled else Deframer(STRANGER_FRAME_BYTES)
        self._header_bytes = 0 if is_dialled else HEADER_BYTES
        """What is still to come of a stranger's first header."""
        self._channel = streams.channel(server_side=not is_dialled)
        self.is_judged = self._channel is None
        self._deadline: asyncio.TimerHandle | None = None
        self._is_closed_here = False
        self._proven = NOBODY
        self._is_writable = True
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = self._transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from it
        self._streams.opened(self)
        sock = transport.get_extra_info("socket")
        silence_ms = CONTROL_SILENCE_MS if self.is_control else STREAM_SILENCE_MS
        with contextlib.suppress(OSError, AttributeError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silence_ms)  # Linux
        if not self.is_dialled:
            self.peer = format_address(*transport.get_extra_info("peername")[:2])
            if not self._streams.accept(self):
                transport.abort()
                return
        if self._channel is not None:
            transport.write(self._channel.to_send())
            if self.is_dialled:
                loop = asyncio.get_running_loop()
                self._deadline = loop.call_later(self._streams.limits.dial_s, self._refuse_for, TimeoutError())
        self.flush()

    def data_received(self, data: bytes) -> None:
        self.used_at = boottime_ns()
        if self._channel is not None:
            data = self._decrypted(data)
        try:
            frames = self._cut(data)
        except FrameTooLong:
            self._streams.count("too-long")
            self.close()
            return
        for frame in frames:
            self._streams.frames_in += 1
            is_good = self._streams.on_frame(self.source, frame, self._proven)
            if is_good and not self.is_good:
                self.is_good = True
                self._streams.befriend(self)
            elif not is_good and not self.is_good:  # who cannot seal has no second word here
                self._refuse("seal", "its first frame is not sealed with a key that is known here")
                return

    def _cut(self, data: bytes) -> list[bytes]:
        """A stranger's first frame must be short. What stands behind it may be longer: it is looked at only if that is
        good."""
        frames: list[bytes] = []
        if self._header_bytes:
            header, data = data[: self._header_bytes], data[self._header_bytes :]
            self._header_bytes -= len(header)
            frames = self._deframer.feed(header)
            if not self._header_bytes:
                self._deframer.lift()
        return frames + self._deframer.feed(data)

    def _decrypted(self, data: bytes) -> bytes:
        from talka.net.tls import HandshakeFailed

        channel, transport = self._channel, self._transport
        assert channel is not None and transport is not None
        try:
            content = channel.receive(data)
        except HandshakeFailed as failure:
            transport.write(channel.to_send())  # the alert tells the other end why
            self._refuse(failure.reason, str(failure))
            return b""
        transport.write(channel.to_send())
        if channel.is_accepted and not self.is_judged:
            reason, text = self._streams.judge(channel, initiated_by_peer=not self.is_dialled)
            if reason:
                self._refuse(reason, text)
                return b""
            self.is_judged = True
            self._let_deadline_go()
            self._streams.judged(self)
            self._proven = Proven.of(channel.identity.name, channel.identity.role)
            self.flush()
        if content and not self.is_judged:  # a server can speak before it has seen our certificate; none of ours does
            self._refuse("tls", "the peer spoke before the TLS handshake was over")
            return b""
        return content

    def _refuse(self, reason: str, text: str) -> None:
        self.failed = True
        self._streams.refuse(self.peer, reason, text)
        self.close()

    def _refuse_for(self, error: OSError) -> None:
        from talka.net.tls import reason_of

        self._refuse(*reason_of(error))

    def _let_deadline_go(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._let_deadline_go()
        if self.is_dialled and not self.is_judged and not self._is_closed_here:
            self._refuse_for(ConnectionResetError())
        self._streams.lost(self)

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self.flush()

    def flush(self) -> None:
        """Write what waits, as long as the kernel takes it."""
        transport, channel = self._transport, self._channel
        if transport is None or transport.is_closing():
            return
        now = boottime_ns()
        while self.is_judged and self._is_writable and (frame := self.queue.pop(now)) is not None:
            self.used_at = now
            self._streams.frames_out += 1
            self._streams.bytes_out += len(frame)
            content = framed(frame)
            if channel is None:
                transport.write(content)
            else:
                channel.write(content)
                transport.write(channel.to_send())
        self._streams.flushed(self)
        if self.queue.is_stuck:
            self._streams.count("stuck")
            transport.abort()

    def close(self) -> None:
        self._is_closed_here = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Dialled:
    """What goes to one address on one kind of connection, over as many connections as it takes."""

    def __init__(self, address: str, target: tuple[str, int], is_control: bool, probe_after_ns: int) -> None:
        self.address = address
        self.target = target
        self.is_control = is_control
        self.queue = SendQueue()
        self.link: Link | None = None
        self.dialling: asyncio.Task[None] | None = None
        self.breaker = Breaker(
            failures=BREAKER_FAILURES,
            window_ns=BREAKER_WINDOW_NS,
            probe_after_ns=probe_after_ns,
        )


class Streams:
    """All connections of one node. Call `send`; what arrives goes to `on_frame`."""

    def __init__(
        self,
        *,
        on_frame: OnFrame,
        on_refused: OnRefused,
        rng: Random,
        security: Security | None = None,
        on_gone: OnGone | None = None,
        on_refusing: Callable[[str], None] | None = None,
        limits: StreamLimits = STREAM_LIMITS,
    ) -> None:
        """`on_refusing`: nobody listens at an address, and the machine there says so."""
        self.limits = limits
        self.on_frame = on_frame
        self.counts: dict[str, int] = {}
        """What went wrong, by a word for it: also why connections were refused."""
        self.frames_in = self.frames_out = self.bytes_out = 0
        self._on_refused = on_refused
        self._on_gone = on_gone
        self._on_refusing = on_refusing
        self._rng = rng
        self._security = security
        self._dialled: dict[tuple[str, bool], Dialled] = {}
        self._accepted: dict[str, Link] = {}
        self._strangers: dict[str, Link] = {}
        self._handles = 0
        self._open: dict[Link, None] = {}
        self._awaited: dict[str, list[Callable[[], None]]] = {}
        """By address, who waits for room in its lane of results."""
        self._is_closed = False
        self._emptied = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._sweeping: asyncio.TimerHandle | None = None

    async def listen(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, sock=sock, backlog=1024)

    async def close(self) -> None:
        """What was written goes out, within `close_s`; what waits behind it does not. Nothing is sent after it."""
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        if self._server is not None:
            self._server.close()
        tasks = [dialled.dialling for dialled in self._dialled.values() if dialled.dialling is not None]
        for task in tasks:
            task.cancel()
        for link in list(self._open):
            link.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.limits.close_s):
                    await self._emptied.wait()
        for link in list(self._open):  # of peers that do not read
            link.abort()
        if self._open:
            await self._emptied.wait()

    @property
    def connections(self) -> int:
        return len(self._accepted) + sum(1 for dialled in self._dialled.values() if dialled.link is not None)

    def breakers(self) -> dict[str, int]:
        """Of the peers that are dialled, by state."""
        states = dict.fromkeys((state.value for state in BreakerState), 0)
        for dialled in self._dialled.values():
            states[dialled.breaker.state.value] += 1
        return states

    def send(self, address: str, frame: bytes, cls: Class) -> None:
        """Send it on its way. Whether it arrives is not known."""
        if self._is_closed or len(frame) > FRAME_LIMIT_BYTES:
            self.count("undeliverable")
            return
        if address.startswith(HANDLE):
            link = self._accepted.get(address)
            if link is None or not link.queue.push(boottime_ns(), cls, frame):
                self.count("undeliverable")
            if link is not None:
                link.flush()
            return
        dialled = self._dialled_to(address, cls is Class.CONTROL)
        if dialled is None:
            self.count("undeliverable")
            return
        if not dialled.queue.push(boottime_ns(), cls, frame):
            self.count("undeliverable")
        if dialled.link is not None:
            dialled.link.flush()
        elif dialled.dialling is None:
            if dialled.breaker.allows(boottime_ns()):
                dialled.dialling = asyncio.get_running_loop().create_task(self._dial(dialled))
            else:
                self._give_up(dialled)

    def when_room(self, address: str, told: Callable[[], None]) -> None:
        """Call it soon after half of the lane of results to this address is free, or nobody is connected there."""
        link = self._link_to(address)
        if link is None or link.queue.is_half_free(Class.RESULTS):
            asyncio.get_running_loop().call_soon(told)
        else:
            self._awaited.setdefault(address, []).append(told)

    def _link_to(self, address: str) -> Link | None:
        if address.startswith(HANDLE):
            return self._accepted.get(address)
        dialled = self._dialled.get((address, False))
        return None if dialled is None else dialled.link

    def flushed(self, link: Link) -> None:
        """Something of what waited on this connection is on its way."""
        if self._awaited and not link.is_control and link.queue.is_half_free(Class.RESULTS):
            self._tell_of_room(link.source)

    def _tell_of_room(self, address: str) -> None:
        for told in self._awaited.pop(address, ()):
            asyncio.get_running_loop().call_soon(told)

    def renew(self, address: str) -> None:
        """A new life is at this address: what failed before says nothing of it."""
        for is_control in (False, True):
            dialled = self._dialled.get((address, is_control))
            if dialled is not None and dialled.link is None and dialled.dialling is None:
                del self._dialled[(address, is_control)]

    def _dialled_to(self, address: str, is_control: bool) -> Dialled | None:
        key = (address, is_control)
        dialled = self._dialled.get(key)
        if dialled is None:
            target = ip_target(address)
            if target is None or len(self._dialled) >= self.limits.links:
                return None
            probe_ns = self.limits.control_probe_ns if is_control else self.limits.stream_probe_ns
            dialled = self._dialled[key] = Dialled(address, target, is_control, probe_ns)
            self._sweep_later()
        return dialled

    async def _dial(self, dialled: Dialled) -> None:
        loop = asyncio.get_running_loop()
        retries = self.limits.retries
        wait_ns = 0
        attempt = 0
        try:
            while len(dialled.queue):
                attempt += 1
                link = Link(self, dialled.address, dialled.queue, is_dialled=True, is_control=dialled.is_control)
                dialled.link = link
                try:
                    async with asyncio.timeout(self.limits.dial_s):
                        await loop.create_connection(lambda link=link: link, *dialled.target)  # type: ignore[misc]
                    if link.is_judged:
                        dialled.breaker.succeeded(boottime_ns())
                    return
                except OSError as error:  # refused, unreachable, not in time
                    dialled.link = None
                    if isinstance(error, ConnectionRefusedError) and self._on_refusing is not None:
                        self._on_refusing(dialled.address)
                    self.count("unreachable")
                    dialled.breaker.failed(boottime_ns())
                if retries.attempts is not None and attempt >= retries.attempts:
                    self._give_up(dialled)
                    return
                if not dialled.breaker.allows(boottime_ns()):
                    self._give_up(dialled)
                    return
                wait_ns = delay(retries, attempt, wait_ns, self._rng)
                await asyncio.sleep(wait_ns / SECOND)
        finally:
            dialled.dialling = None

    def _give_up(self, dialled: Dialled) -> None:
        """Nobody is there: what waited is told to nobody, and cores must bear that."""
        self._forget(dialled)
        if self._on_gone is not None:
            self._on_gone(dialled.address, False)

    def _forget(self, dialled: Dialled) -> None:
        self.count("undeliverable", len(dialled.queue))
        dialled.queue = SendQueue()

    # -- what links call

    def channel(self, *, server_side: bool) -> "TlsChannel | None":
        return None if self._security is None else self._security.channel(server_side=server_side)

    def judge(self, channel: "TlsChannel", *, initiated_by_peer: bool) -> tuple[str, str]:
        assert self._security is not None
        return self._security.judge(channel, initiated_by_peer=initiated_by_peer)

    def _accept(self) -> Link:
        self._handles += 1
        return Link(self, f"{HANDLE}{self._handles}", SendQueue(), is_dialled=False, is_control=False)

    def opened(self, link: Link) -> None:
        self._open[link] = None

    def judged(self, link: Link) -> None:
        dialled = self._dialled.get((link.source, link.is_control)) if link.is_dialled else None
        if dialled is not None:
            dialled.breaker.succeeded(boottime_ns())

    def accept(self, link: Link) -> bool:
        if self._is_closed:
            return False
        if len(self._accepted) >= self.limits.links:
            self.count("crowded")
            return False
        if len(self._strangers) >= self.limits.strangers:
            # The one that has been silent longest gives way: who only connects must not keep others out.
            self.count("crowded")
            oldest = next(iter(self._strangers))
            self._strangers.pop(oldest).close()
        self._accepted[link.source] = self._strangers[link.source] = link
        self._sweep_later()
        return True

    def befriend(self, link: Link) -> None:
        self._strangers.pop(link.source, None)

    def lost(self, link: Link) -> None:
        self._open.pop(link, None)
        if self._is_closed and not self._open:
            self._emptied.set()
        if not link.is_control:
            self._tell_of_room(link.source)
        if not link.is_dialled:
            self._accepted.pop(link.source, None)
            self._strangers.pop(link.source, None)
            if self._on_gone is not None:
                self._on_gone(link.source, True)
            return
        dialled = self._dialled.get((link.source, link.is_control))
        if dialled is None or dialled.link is not link:
            return
        dialled.link = None
        if self._on_gone is not None and not link.failed:
            self._on_gone(dialled.address, True)
        if link.failed:
            dialled.breaker.failed(boottime_ns())
            self._give_up(dialled)
        elif link.queue.is_stuck:  # it never says otherwise again
            self._forget(dialled)
        elif self._is_closed:
            return
        elif len(dialled.queue) and dialled.dialling is None and dialled.breaker.allows(boottime_ns()):
            dialled.dialling = asyncio.get_running_loop().create_task(self._dial(dialled))

    def refuse(self, address: str, reason: str, text: str) -> None:
        self.count(reason)
        self._on_refused(address, reason, text)

    def count(self, reason: str, number: int = 1) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + number

    # -- connections nobody uses

    def _sweep_later(self) -> None:
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = None
        now = boottime_ns()
        for stranger in list(self._strangers.values()):
            if now - stranger.since > STRANGER_NS:
                self.count("silent")
                stranger.close()
        for link in list(self._accepted.values()):
            if now - link.used_at > 2 * IDLE_NS:  # the dialler closes it first
                link.close()
        for key, dialled in list(self._dialled.items()):
            if dialled.link is not None:
                if now - dialled.link.used_at > IDLE_NS:
                    dialled.link.close()
            elif dialled.dialling is None and not len(dialled.queue) and dialled.breaker.allows(now):
                del self._dialled[key]
        if self._accepted or self._dialled:
            self._sweep_later()
