"""Is a sender alive now, or does somebody play a recording back? A life proves itself by echoing a nonce.

`UnprovenLives` keeps frames of lives that are not known until they did. `SentFrames` says which of this life's own
frames are so young that a peer, to which it proves itself, may take them: older ones could be played back.

docs/decisions/0014-sealed-and-alive.md.
"""

from collections import deque
from random import Random
from typing import Final

import msgspec

from talka.units import SECOND
from talka.wire.greeting import NONCE_BYTES
from talka.wire.packets import Packet
from talka.wire.security.roles import NOBODY, Proven

PROOF_NS: Final = 3 * SECOND
"""How long a nonce may be echoed, how long a frame is kept for its proof, and how old one may be that counts as
fresh."""
ASK_AGAIN_NS: Final = SECOND // 4
WAITING_LIMIT: Final = 1024
"""Lives that are asked for a proof at once; the one asked longest ago is forgotten first."""
HELD_LIMIT: Final = 8
"""Frames of one such life that are kept."""
HELD_LIMIT_BYTES: Final = 64 * 1024
"""And of them together, unpacked: somebody who plays back long ones must not fill the memory."""


class ArrivedPacket(msgspec.Struct, frozen=True):
    """A packet that may be looked at, once its sender's life is proven."""

    packet: Packet
    source: str
    age_ns: int
    key_id: str = ""
    """The key it was sealed with."""
    proven: Proven = NOBODY
    """Whom the certificate names of the connection it came on."""


class UnprovenLife:
    __slots__ = ("_asked_at", "_held_bytes", "held", "nonce", "since")

    def __init__(self, nonce: bytes, now: int) -> None:
        self.nonce = nonce
        self.since = now
        self.held: list[ArrivedPacket] = []
        self._held_bytes = 0
        self._asked_at = now - ASK_AGAIN_NS

    def hold(self, arrival: ArrivedPacket, size_bytes: int) -> None:
        if len(self.held) < HELD_LIMIT and self._held_bytes + size_bytes <= HELD_LIMIT_BYTES:
            self.held.append(arrival)
            self._held_bytes += size_bytes

    def is_to_be_asked(self, now: int) -> bool:
        """Whether it is time to ask (again); then it counts as asked."""
        if now - self._asked_at < ASK_AGAIN_NS:
            return False
        self._asked_at = now
        return True


class UnprovenLives:
    """By sender and boot; the one met longest ago is the first."""

    def __init__(self, rng: Random) -> None:
        self.challenged = 0
        """Lives that were asked for a proof."""
        self._rng = rng
        self._lives: dict[tuple[str, int], UnprovenLife] = {}

    def meet(self, now: int, packet: Packet) -> UnprovenLife:
        """The life that sent this packet, with a nonce that may still be echoed."""
        name = (packet.sender, packet.boot)
        life = self._lives.get(name)
        if life is not None and now - life.since <= PROOF_NS:
            return life
        while self._lives:
            oldest = next(iter(self._lives))
            if len(self._lives) < WAITING_LIMIT and now - self._lives[oldest].since <= PROOF_NS:
                break
            del self._lives[oldest]
        self.challenged += 1
        life = self._lives[name] = UnprovenLife(self._rng.randbytes(NONCE_BYTES), now)
        return life

    def has(self, packet: Packet) -> bool:
        return (packet.sender, packet.boot) in self._lives

    def prove(self, now: int, packet: Packet, echo: bytes) -> UnprovenLife | None:
        """The life whose nonce this packet echoes in time: it is unproven no more. None: it proves nothing."""
        life = self._lives.get((packet.sender, packet.boot))
        if life is None or echo != life.nonce or now - life.since > PROOF_NS:
            return None
        del self._lives[(packet.sender, packet.boot)]
        return life


class SentFrames:
    """When frames were sent, to the second: (instant, the number of the last frame before it)."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, int]] = deque(maxlen=8)

    def note(self, now: int, counter: int) -> None:
        """A frame is about to be sent, and this was the number of the last one."""
        if not self._marks or now - self._marks[-1][0] >= SECOND:
            self._marks.append((now, counter))

    def floor(self, now: int, counter: int) -> int:
        """The number of the first frame that was sent within `PROOF_NS`, or of one before it; `counter` is that of the
        last frame."""
        floor = 0
        ends = [end for _, end in self._marks][1:] + [counter]
        for (at, before), end in zip(self._marks, ends, strict=True):
            if now - at >= PROOF_NS + SECOND:  # what this mark is for was sent within a second of it
                floor = end + 1
            elif now - at >= PROOF_NS:
                floor = before + 1
        return floor
