"""The network between hosts: directed links that delay, lose, double, reorder, squeeze and cut.

Every frame is sealed by a keyed tag of 8 bytes, the stand-in for encryption. The network made the seal of the frames
it carries and never damages one, so it makes and checks tags only where somebody else sees or brings sealed bytes.
"""

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from heapq import heappush
from hmac import compare_digest
from random import Random
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from talka.cluster.effects import Lane
from talka.errors import Invalid
from talka.units import SECOND

if TYPE_CHECKING:
    from talka.testing.host import Host
    from talka.testing.world import World

SEAL_BYTES: Final = 8
HEADER_BYTES: Final = 28
"""IP and UDP, counted on every lane."""
STREAM_QUEUE_FRAMES: Final = 1024
"""What waits on one link's stream behind a frame that does not get through."""
FIRST_RETRY_NS: Final = 200_000_000
STREAM_PATIENCE_NS: Final = 10_000_000_000
OVERHEAD_BYTES: Final = SEAL_BYTES + HEADER_BYTES
_DATAGRAM: Final = Lane.DATAGRAM
_STREAM: Final = Lane.STREAM

Tap: TypeAlias = Callable[[str, str, bytes, Lane], None]
"""Called with source, destination, sealed frame and lane."""


class LinkProfile(msgspec.Struct, frozen=True, kw_only=True):
    """How one direction between two hosts behaves. Probabilities are per frame."""

    latency_ns: int = 250_000
    jitter_ns: int = 100_000
    """Up to this much is added to the latency, evenly drawn."""
    loss: float = 0.0
    burst: tuple[float, float] | None = None
    """Probability that a frame begins a burst in which all are lost; mean length of one, in frames."""
    duplicate: float = 0.0
    reorder: tuple[float, int] | None = None
    """Probability that a frame is held back, and for how long at most, in ns."""
    bandwidth_bytes_per_s: int | None = None
    queue_limit_bytes: int = 256 * 1024
    """What may wait for the bandwidth; more is dropped."""
    mtu_bytes: int = 1400

    def __post_init__(self) -> None:
        probabilities = [self.loss, self.duplicate]
        probabilities += [pair[0] for pair in (self.burst, self.reorder) if pair is not None]
        if not all(0 <= probability <= 1 for probability in probabilities):
            raise Invalid("a link's probabilities are between 0 and 1")
        if self.burst is not None and self.burst[1] < 1:
            raise Invalid(f"a burst has a mean length of at least 1 frame, not {self.burst[1]}")
        if min(self.latency_ns, self.jitter_ns, self.reorder[1] if self.reorder else 0) < 0:
            raise Invalid("a link's delays are not negative")
        if self.bandwidth_bytes_per_s is not None and self.bandwidth_bytes_per_s <= 0:
            raise Invalid("a link's bandwidth is above 0; cut the link instead")

    @property
    def needs_memory(self) -> bool:
        return self.burst is not None or self.bandwidth_bytes_per_s is not None


class _Waiting(msgspec.Struct):
    """A frame of a stream that did not get through yet."""

    frame: bytes
    give_up_at: int
    retry_ns: int = FIRST_RETRY_NS


class _Link:
    """What one direction between two hosts remembers."""

    __slots__ = ("burst_left", "busy_until", "has_own_profile", "profile", "resets", "stream_busy_until", "waiting")

    def __init__(self, profile: LinkProfile) -> None:
        self.profile = profile
        self.has_own_profile = False
        self.burst_left = 0
        self.busy_until = 0
        self.stream_busy_until = 0
        """No frame of the stream arrives before this: it would overtake."""
        self.waiting: deque[_Waiting] = deque()
        self.resets = 0

    def change(self, profile: LinkProfile) -> None:
        self.profile = profile
        self.burst_left = 0


class Port:
    """Where a host meets the network: its links outward, and what was counted. Header and seal count as bytes."""

    __slots__ = (
        "bytes_received",
        "bytes_sent",
        "cuts",
        "frames_received",
        "frames_sent",
        "host",
        "links",
        "name",
        "rng",
    )

    def __init__(self, name: str, rng: Random) -> None:
        self.name = name
        self.rng = rng
        self.host: Host | None = None
        self.links: dict[str, _Link] = {}
        self.cuts: dict[str, int] = {}
        self.frames_sent = 0
        self.bytes_sent = 0
        self.frames_received = 0
        self.bytes_received = 0


class Network:
    """Carries frames. A host's name is its address.

    Datagrams meet everything their link's profile says. Control frames do too, but have no MTU. A stream's frames
    arrive in order and once: loss becomes a delay, behind which the link's other stream frames wait; what could not
    be brought within 10 s is lost. Frames on their way when a link is cut still arrive.
    """

    def __init__(self, world: "World") -> None:
        self.ports: dict[str, Port] = {}
        self.hindered: dict[tuple[str, str], int] = {}
        """Frames that a cut kept from passing, by source and destination: those of a stream once for each try."""
        self.dropped: dict[str, int] = {}
        """Frames by reason: unknown, cut, mtu, loss, burst, queue, down, inbox, forged, stream (it gave up, its queue
        was full or its sender crashed)."""
        self.doubled = 0
        """Frames that were sent on twice."""
        self.held_back = 0
        """Frames that others could overtake because of `reorder`."""
        self.squeezed = 0
        """Frames that waited for the bandwidth behind others, or found no room to."""
        self._world = world
        self._heap = world.heap
        self._sequence = world.sequence
        self._key = world.rng("seal").randbytes(16)
        self._taps: list[Tap] = []
        self.default = LinkProfile()

    # ---- shape

    @property
    def default(self) -> LinkProfile:
        """The profile of every link that has none of its own."""
        return self._default

    @default.setter
    def default(self, profile: LinkProfile) -> None:
        self._default = profile
        # One link for all pairs that need no memory: a thousand hosts have a million pairs.
        self._shared = None if profile.needs_memory else _Link(profile)
        for port in self.ports.values():
            for link in port.links.values():
                if not link.has_own_profile:
                    link.change(profile)

    def set_link(self, source: str, to: str, profile: LinkProfile | None) -> None:
        """Give one direction a profile of its own; None returns it to the default."""
        link = self._link(self._port(source), to)
        link.has_own_profile = profile is not None
        link.change(self._default if profile is None else profile)

    def cut(self, source: str, to: str) -> None:
        """Nothing passes in this direction until as many `heal` came as `cut`."""
        cuts = self._port(source).cuts
        cuts[to] = cuts.get(to, 0) + 1
        self._note("cut", source, to)

    def heal(self, source: str, to: str) -> None:
        cuts = self._port(source).cuts
        count = cuts.pop(to, 0)
        if count > 1:
            cuts[to] = count - 1
        self._note("heal", source, to)

    def _hinder(self, source: str, to: str) -> None:
        self.hindered[source, to] = self.hindered.get((source, to), 0) + 1

    def heal_all(self) -> None:
        """End every cut. A fault that began before must not heal its own cuts afterwards."""
        for port in self.ports.values():
            port.cuts.clear()
        self._note("heal", "", "everything")

    def is_cut(self, source: str, to: str) -> bool:
        port = self.ports.get(source)
        return port is not None and to in port.cuts

    def attach(self, host: "Host") -> Port:
        port = self._port(host.name)
        port.host = host
        return port

    def _note(self, kind: str, source: str, to: str) -> None:
        self._world.trace.pending.append((self._world.now, kind, source, to, 0, None))

    def _port(self, name: str) -> Port:
        port = self.ports.get(name)
        if port is None:
            port = self.ports[name] = Port(name, self._world.rng("net", name))
        return port

    def _link(self, port: Port, to: str) -> _Link:
        link = port.links.get(to)
        if link is None:
            link = port.links[to] = _Link(self._default)
        return link

    # ---- sealed bytes

    def seal(self, frame: bytes) -> bytes:
        return frame + blake2b(frame, key=self._key, digest_size=SEAL_BYTES).digest()

    def unseal(self, sealed: bytes) -> bytes | None:
        """The frame, or None when its tag is wrong."""
        frame = sealed[:-SEAL_BYTES]
        tag = blake2b(frame, key=self._key, digest_size=SEAL_BYTES).digest()
        return frame if compare_digest(tag, sealed[-SEAL_BYTES:]) else None

    def tap(self, listener: Tap) -> None:
        """Show every sealed frame to `listener` as it is sent, also those that will be lost."""
        self._taps.append(listener)

    def inject(self, to: str, source: str, sealed: bytes, lane: Lane) -> None:
        """Bring any bytes to a host now, past all links, as if `source` had sent them."""
        self._world.push(self._world.now, self._deliver_injected, (to, source, sealed, lane))

    def _deliver_injected(self, to: str, source: str, sealed: bytes, lane: Lane) -> None:
        port = self.ports.get(to)
        if port is None or port.host is None:
            self.drop("unknown", source, to)
            return
        frame = self.unseal(sealed)
        if frame is not None:
            port.host.arrive(source, frame, lane)
        elif port.host.state == "down":
            self.drop("down", source, to)
        else:
            port.host.forged_dropped += 1
            self.drop("forged", source, to)

    # ---- carrying

    def drop(self, reason: str, source: str, to: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        self._world.trace.pending.append((self._world.now, "drop", source, to, 0, reason))

    def send(self, port: Port, to: str, frame: bytes, lane: Lane) -> None:
        size_bytes = len(frame) + OVERHEAD_BYTES
        port.frames_sent += 1
        port.bytes_sent += size_bytes
        if self._taps:
            sealed = self.seal(frame)
            for listener in self._taps:
                listener(port.name, to, sealed, lane)
        target = self.ports.get(to)
        host = None if target is None else target.host
        if host is None:
            self.drop("unknown", port.name, to)
            return
        if lane is _STREAM:
            self._send_stream(port, host, frame)
            return
        if port.cuts and to in port.cuts:
            self._hinder(port.name, to)
            self.drop("cut", port.name, to)
            return
        link = port.links.get(to) or self._shared or self._link(port, to)
        profile = link.profile
        if lane is _DATAGRAM and size_bytes > profile.mtu_bytes + HEADER_BYTES:
            self.drop("mtu", port.name, to)
            return
        rng = port.rng
        if (profile.burst is not None or profile.loss) and (reason := _lost(link, rng)):
            self.drop(reason, port.name, to)
            return
        delay_ns = profile.latency_ns + int(rng.random() * profile.jitter_ns)
        if profile.bandwidth_bytes_per_s is not None:
            waits_ns = self._squeeze(link, profile.bandwidth_bytes_per_s, size_bytes)
            if waits_ns is None:
                self.drop("queue", port.name, to)
                return
            delay_ns += waits_ns
        if profile.reorder is not None and rng.random() < profile.reorder[0]:
            delay_ns += int(rng.random() * profile.reorder[1])
            self.held_back += 1
        now = self._world.now
        heappush(self._heap, (now + delay_ns, self._sequence(), host.arrive, (port.name, frame, lane)))
        if profile.duplicate and rng.random() < profile.duplicate:
            self.doubled += 1
            delay_ns += int(rng.random() * (profile.latency_ns + profile.jitter_ns))
            heappush(self._heap, (now + delay_ns, self._sequence(), host.arrive, (port.name, frame, lane)))

    def _send_stream(self, port: Port, host: "Host", frame: bytes) -> None:
        link = self._link(port, host.name)
        if len(link.waiting) >= STREAM_QUEUE_FRAMES:
            self.drop("stream", port.name, host.name)
            return
        link.waiting.append(_Waiting(frame, self._world.now + STREAM_PATIENCE_NS))
        if len(link.waiting) == 1:
            self._pump(port, host, link, link.resets)

    def _pump(self, port: Port, host: "Host", link: _Link, resets: int) -> None:
        """Bring what waits on a stream on its way, in order, up to the first frame that does not get through."""
        if resets != link.resets:
            return
        now = self._world.now
        rng, profile, waiting = port.rng, link.profile, link.waiting
        while waiting:
            head = waiting[0]
            waits_ns: int | None = 0
            if host.name in port.cuts:
                self._hinder(port.name, host.name)
                waits_ns = None
            elif _lost(link, rng):
                waits_ns = None
            elif profile.bandwidth_bytes_per_s is not None:
                size_bytes = len(head.frame) + OVERHEAD_BYTES
                waits_ns = self._squeeze(link, profile.bandwidth_bytes_per_s, size_bytes)
            if waits_ns is not None:
                at = now + waits_ns + profile.latency_ns + int(rng.random() * profile.jitter_ns)
                link.stream_busy_until = at = max(at, link.stream_busy_until)
                self._world.push(at, host.arrive, (port.name, head.frame, _STREAM))
            elif now < head.give_up_at:
                self._world.push(min(now + head.retry_ns, head.give_up_at), self._pump, (port, host, link, resets))
                head.retry_ns *= 2
                return
            else:
                self.drop("stream", port.name, host.name)
            waiting.popleft()

    def _squeeze(self, link: _Link, bandwidth_bytes_per_s: int, size_bytes: int) -> int | None:
        """Time until the frame has left the queue; None when the queue is full."""
        waits_ns = max(link.busy_until - self._world.now, 0)
        if waits_ns:
            self.squeezed += 1
        if waits_ns * bandwidth_bytes_per_s // SECOND + size_bytes > link.profile.queue_limit_bytes:
            return None
        waits_ns += size_bytes * SECOND // bandwidth_bytes_per_s
        link.busy_until = self._world.now + waits_ns
        return waits_ns

    def reset_streams(self, port: Port) -> None:
        """A host crashed: what its streams still had to bring is lost."""
        for to, link in port.links.items():
            link.resets += 1
            for _ in link.waiting:
                self.drop("stream", port.name, to)
            link.waiting.clear()


def _lost(link: _Link, rng: Random) -> str:
    """Why this frame is lost, or nothing."""
    profile = link.profile
    if link.burst_left:
        link.burst_left -= 1
        return "burst"
    if profile.burst is not None and rng.random() < profile.burst[0]:
        stays = 1.0 - 1.0 / profile.burst[1]
        while rng.random() < stays:
            link.burst_left += 1
        return "burst"
    return "loss" if profile.loss and rng.random() < profile.loss else ""
