"""The envelope around every message between members: who speaks, in which group, and the how-manieth frame it is.

What decides whether a frame is looked at (protocol, group, sender, counter) is read first; the body stays bytes until
the frame has been admitted.

Decision: docs/decisions/0014-sealed-and-alive.md.
"""

from typing import Annotated, Final

import msgspec

from talka.errors import Untrusted

PROTOCOL: Final = 1
"""Raised when an older member could misread a message. A frame of another protocol is refused."""
DATAGRAM_LIMIT_BYTES: Final = 1340
"""What a datagram may carry: 1,400 bytes less the seal around it."""
NAME_LIMIT: Final = 128
GROUP_LIMIT: Final = 160
"""Two ids of 64 characters, and a separator."""


class Packet(msgspec.Struct, frozen=True, array_like=True):
    protocol: int
    group: Annotated[str, msgspec.Meta(max_length=GROUP_LIMIT)]
    sender: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LIMIT)]
    boot: Annotated[int, msgspec.Meta(ge=0)]
    """Drawn at every start of the sender: (sender, boot) is one life of one member."""
    counter: Annotated[int, msgspec.Meta(ge=0)]
    """Grows with every frame of this boot; never repeated."""
    channel: int
    """Which conversation the body belongs to; each has its own decoder."""
    body: msgspec.Raw
    updates: list[msgspec.Raw] = []
    """News of members riding along, each encoded on its own."""
    life: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The boot of the receiver that is meant; 0: whichever life it is."""


class BadPacket(Untrusted):
    """Bytes that are no packet, or one that must not be looked at. `reason` is a word for counters."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Packet)


def encode_packet(packet: Packet) -> bytes:
    if not packet.life:  # nearly all of them: a byte less, and the bytes of protocol 1.0
        return _encoder.encode(
            (
                packet.protocol,
                packet.group,
                packet.sender,
                packet.boot,
                packet.counter,
                packet.channel,
                packet.body,
                packet.updates,
            )
        )
    return _encoder.encode(packet)


def decode_packet(data: bytes) -> Packet:
    """The packet in `data`, its protocol checked and its body untouched."""
    try:
        packet = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadPacket("malformed", f"a frame is not a packet: {error}") from None
    if packet.protocol != PROTOCOL:
        raise BadPacket("protocol", f"{packet.sender!r} speaks protocol {packet.protocol}, this member {PROTOCOL}")
    return packet
