"""The conversation between those who hold keys or are commanded, and the leader of the group.

An owner asks for a key and is answered; the leader commands under its token and is told whether the command was
applied. Any of it may be lost or doubled.

Leases (Gray, Cheriton, 1989) section 2.
Decision: docs/decisions/0012-the-holes-of-leadership.md.
"""

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from talka.wire.channels import Channel, Message
from talka.wire.leadership import KEY_LIMIT, Count, Name

BODY_LIMIT_BYTES: Final = 256 * 1024
LEASE_KEY_LIMIT: Final = KEY_LIMIT - 6
"""Leases are kept in the register under a prefix of six characters."""

LeaseKey = Annotated[str, msgspec.Meta(min_length=1, max_length=LEASE_KEY_LIMIT)]


class AcquireLease(Message, frozen=True, tag=1):
    """Give me this key, or let me keep `epoch` of it."""

    key: LeaseKey
    number: Count
    epoch: Count
    ttl_ns: Count


class LeaseAnswer(Message, frozen=True, tag=2):
    key: LeaseKey
    number: Count
    answer: Literal["granted", "held", "ended", "busy", "full", "elsewhere"]
    epoch: Count = 0
    ttl_ns: Count = 0
    wait_ns: Count = 0
    leader: Name = ""
    """Whom to ask instead, when the answer is `elsewhere`; empty when nobody is known to lead."""


class ReleaseLease(Message, frozen=True, tag=3):
    key: LeaseKey
    epoch: Count


class LeaseCommand(Message, frozen=True, tag=4):
    """Do this, if no later leader has commanded you."""

    token: tuple[Count, Count, Count]
    """Parent term, term, sequence: compared from the left."""
    number: Count
    body: Annotated[bytes, msgspec.Meta(max_length=BODY_LIMIT_BYTES)]


class CommandAnswer(Message, frozen=True, tag=5):
    number: Count
    is_applied: bool
    highest: tuple[Count, Count, Count]


LeaseMessage: TypeAlias = AcquireLease | LeaseAnswer | ReleaseLease | LeaseCommand | CommandAnswer


CHANNEL: Final[Channel[LeaseMessage]] = Channel(3, "leases", LeaseMessage, "a peer sent a malformed message")
encode, decode = CHANNEL.encode, CHANNEL.decode
