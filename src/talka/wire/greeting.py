"""How nodes meet: who is there, of which cluster, and is it alive now or a recording? Channel 4 of a packet.

A nonce is answered by its echo, so that a frame kept by somebody else proves nothing. The newest keys travel here too:
one that was away while keys changed reads this conversation with the key it still has.

Sides that have not met speak here: no message of this channel may ever need more than protocol 1.0.

Decision: docs/decisions/0014-sealed-and-alive.md.
"""

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from talka.wire.channels import Channel, Message, Number

NONCE_BYTES: Final = 16
TEXT_LIMIT: Final = 512
RING_LIMIT_BYTES: Final = 64 * 1024

Nonce: TypeAlias = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Word: TypeAlias = Annotated[str, Meta(max_length=64)]
Text: TypeAlias = Annotated[str, Meta(max_length=TEXT_LIMIT)]
Capabilities: TypeAlias = Annotated[list[Word], Meta(max_length=64)]


class Self(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a node says of itself before anything else is said."""

    cluster: Word
    environment: Word
    role: Word
    version: Word
    """Of the protocol, MAJOR.MINOR."""
    capabilities: Capabilities = []
    required: Capabilities = []
    """Capabilities without which it does not talk."""
    datacenter: Word = ""
    region: Word = ""
    software: Word = ""
    """For people only."""


class GreetingHello(Message, frozen=True, tag=1):
    """May I come in?"""

    me: Self
    nonce: Nonce


class GreetingWelcome(Message, frozen=True, tag=2):
    """Yes. `echo` is the nonce of the GreetingHello, `nonce` is to be proven."""

    me: Self
    echo: Nonce
    nonce: Nonce


class Challenge(Message, frozen=True, tag=3):
    """Frames of a life came that is not known to be alive: prove it, or they are forgotten."""

    nonce: Nonce


class Proof(Message, frozen=True, tag=4):
    """The echo of a nonce. Frames numbered below `floor` were sent some time ago: nobody should take them any more."""

    echo: Nonce
    floor: Number
    version: Word = ""
    """Of the protocol, as in Self; sides of 1.0 do not say it."""
    capabilities: Capabilities = []


class GreetingRefusal(Message, frozen=True, tag=5):
    """No, and why."""

    echo: Nonce
    reason: Word
    """A word for counters: cluster, environment, role, version."""
    text: Text


class ShareRing(Message, frozen=True, tag=6):
    """The keys of the cluster, for one that may lack the newest."""

    ring: Annotated[bytes, Meta(max_length=RING_LIMIT_BYTES)]


GreetingMessage: TypeAlias = GreetingHello | GreetingWelcome | Challenge | Proof | GreetingRefusal | ShareRing


CHANNEL: Final[Channel[GreetingMessage]] = Channel(4, "greeting", GreetingMessage, "a node sent a malformed greeting")
encode, decode = CHANNEL.encode, CHANNEL.decode
