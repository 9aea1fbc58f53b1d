"""Datagrams in and out of one socket, drained before any timer may fire.

An event loop that reads one datagram per turn runs due timers before the answers that wait in the socket: after a stall
it would blame peers that answered in time. So a turn reads up to `DRAIN_LIMIT`, whoever runs timers calls `drain`
first, and every datagram comes with the time it waited since the kernel took it.

Decision: docs/decisions/0015-one-member-one-loop.md.
"""

import asyncio
import contextlib
import errno
import socket
import struct
from collections.abc import Callable
from typing import Final, TypeAlias

from talka.clock import boottime_ns, realtime_ns
from talka.control.member.token_bucket import TokenBuckets
from talka.units import SECOND
from talka.wire.addresses import format_address, ip_target

DRAIN_LIMIT: Final = 64
LARGEST_BYTES: Final = 2048
"""More than a sealed datagram may have; what is longer is cut, and then its seal does not hold."""
BUFFER_BYTES: Final = 1024 * 1024
"""Some thousand datagrams: what arrives while the process does not run for a few seconds."""
RATE_PER_S: Final = 2000
STALE_NS: Final = 2 * SECOND
STALE_LIMIT: Final = 4096
"""Stale datagrams thrown away in one call; throwing one away costs a twentieth of handling it."""
NAMES_LIMIT: Final = 16_384
SO_TIMESTAMPNS: Final = 35  # Linux; the module does not name it
_TIMESPEC: Final = struct.Struct("@ll")
_ROOM: Final = socket.CMSG_SPACE(_TIMESPEC.size)
MAPPED: Final = "::ffff:"
"""How a socket of IPv6 names hosts of IPv4."""

OnDatagram: TypeAlias = Callable[[str, bytes, int], None]
"""(source, content, how long it waited in nanoseconds; -1 where the kernel does not say)"""


class Datagrams:
    def __init__(
        self,
        sock: socket.socket,
        on_datagram: OnDatagram,
        *,
        rate_per_s: int = RATE_PER_S,
        stale_ns: int = STALE_NS,
        on_stale: Callable[[int], None] | None = None,
        stale_limit: int = STALE_LIMIT,
        names_limit: int = NAMES_LIMIT,
        stamp_option: int = SO_TIMESTAMPNS,
    ) -> None:
        """Datagrams that waited for longer than `stale_ns` are not opened, only told to `on_stale`: whoever cannot keep
        up should spend what time it has on questions that somebody still waits for."""
        self.stale = 0
        self.received = self.received_bytes = self.sent = self.sent_bytes = self.unsent = 0
        self._sock = sock
        self._on_datagram = on_datagram
        self._stale_ns = stale_ns
        self._stale_limit = stale_limit
        self._names_limit = names_limit
        self._on_stale = on_stale
        self._buckets = TokenBuckets(rate_per_s, 2 * rate_per_s)
        self._names: dict[tuple[str, int], str] = {}
        self._targets: dict[str, tuple[str, int] | None] = {}
        self._is_mapped = sock.family == socket.AF_INET6
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # where the kernel has no such stamps, ages are not known
            sock.setsockopt(socket.SOL_SOCKET, stamp_option, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)

    @property
    def refused(self) -> int:
        """Datagrams of sources that sent too many, thrown away unread."""
        return self._buckets.refused

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_reader(self._sock.fileno(), self.drain)

    def stop(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._sock.fileno())
        self._sock.close()

    def drain(self) -> int:
        """Handle what has arrived, up to `DRAIN_LIMIT`; how many there were, stale ones included."""
        receive, stale_limit = self._sock.recvmsg, self._stale_limit
        handled = stale = 0
        while handled < DRAIN_LIMIT and stale < stale_limit:
            try:
                content, ancillary, _, source = receive(LARGEST_BYTES, _ROOM)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:  # a peer's port was closed; the kernel tells it to the next call, whoever that concerns
                handled += 1
                continue
            self.received += 1
            self.received_bytes += len(content)
            age_ns = _age_ns(ancillary)
            if age_ns > self._stale_ns:
                stale += 1
                if self._on_stale is not None:
                    self._on_stale(age_ns)
                continue
            handled += 1
            if self._buckets.allows(boottime_ns(), source[0]):
                self._on_datagram(self._name_of(source[:2]), content, age_ns)
        self.stale += stale
        return handled + stale

    def send(self, address: str, content: bytes) -> None:
        """What cannot be sent at this instant is lost, as a datagram may be."""
        target = self._target_of(address)
        if target is None:
            self.unsent += 1
            return
        try:
            self._sock.sendto(content, target)
        except (BlockingIOError, InterruptedError):
            self.unsent += 1
        except OSError as error:
            # An earlier datagram was refused by its receiver: the news comes here and this one was not sent.
            if error.errno == errno.ECONNREFUSED:
                self._send_again(target, content)
            else:
                self.unsent += 1
        else:
            self.sent += 1
            self.sent_bytes += len(content)

    def _send_again(self, target: tuple[str, int], content: bytes) -> None:
        try:
            self._sock.sendto(content, target)
            self.sent += 1
            self.sent_bytes += len(content)
        except OSError:
            self.unsent += 1

    def _name_of(self, source: tuple[str, int]) -> str:
        name = self._names.get(source)
        if name is None:
            if len(self._names) >= self._names_limit:
                self._names.clear()
            host, port = source
            name = self._names[source] = format_address(host.removeprefix(MAPPED), port)
        return name

    def _target_of(self, address: str) -> tuple[str, int] | None:
        """None for what is no IP address and port. Peers say where they are: a name of theirs is never looked up."""
        if address not in self._targets:
            if len(self._targets) >= self._names_limit:
                self._targets.clear()
            target = ip_target(address)
            if target is not None and self._is_mapped and ":" not in target[0]:
                target = (MAPPED + target[0], target[1])
            self._targets[address] = target
        return self._targets[address]


def _age_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    for _, kind, stamp in ancillary:
        if kind == SO_TIMESTAMPNS and len(stamp) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(stamp)
            age_ns: int = realtime_ns() - seconds * SECOND - nanoseconds
            return max(0, age_ns)  # the clock may have been set back meanwhile
    return -1
