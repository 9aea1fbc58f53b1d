"""The conversation of members about who is alive: probes, gossip and anti-entropy. Channel 1 of a packet.

A message goes from one member to another. An update is news of one member that rides on messages, encoded on its own,
so that it is passed on without being encoded again. Everything that grows is bounded when it is decoded.

SWIM (Das, Gupta, Motivala, 2002) sections 3 and 4.
Decision: docs/decisions/0013-membership-measures-itself.md.
"""

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from talka.wire.channels import Channel, Message, Number
from talka.wire.packets import NAME_LIMIT

ADDRESS_LIMIT: Final = 256
ZONE_LIMIT: Final = 64
REASON_LIMIT: Final = 64
PAYLOAD_LIMIT_BYTES: Final = 512
"""Of a member's state and of its metadata: both must fit a datagram."""
CERTIFICATE_LIMIT_BYTES: Final = 8 * 1024
SIGNATURE_LIMIT_BYTES: Final = 1024
PAGE_LIMIT_BYTES: Final = 256 * 1024
"""A frame of anti-entropy stays below it."""
RECORDS_LIMIT: Final = 4096
"""Records of one page."""
BUCKETS: Final = 64
DIGEST_BYTES: Final = 8
PEERS_LIMIT: Final = 16
"""Members a watcher of another group is told of."""

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=NAME_LIMIT)]
Address: TypeAlias = Annotated[str, Meta(min_length=1, max_length=ADDRESS_LIMIT)]
Zone: TypeAlias = Annotated[str, Meta(max_length=ZONE_LIMIT)]
Accuser: TypeAlias = Annotated[str, Meta(max_length=NAME_LIMIT)]
Reason: TypeAlias = Annotated[str, Meta(max_length=REASON_LIMIT)]
Payload: TypeAlias = Annotated[bytes, Meta(max_length=PAYLOAD_LIMIT_BYTES)]
Certificate: TypeAlias = Annotated[bytes, Meta(max_length=CERTIFICATE_LIMIT_BYTES)]
Signature: TypeAlias = Annotated[bytes, Meta(max_length=SIGNATURE_LIMIT_BYTES)]


class Update(Message, frozen=True):
    """News of one life of one member: (name, boot)."""


class MemberState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a member says of itself. Within one boot the higher version is the later one."""

    version: Number
    payload: Payload
    signature: Signature = b""
    """The member's own, where there are certificates."""


class Alive(Update, frozen=True, tag=21):
    """The member lives and has this address. Only the member itself raises its incarnation."""

    name: Name
    boot: Number
    incarnation: Number
    address: Address
    zone: Zone = ""
    meta: Payload = b""
    certificate: Certificate = b""
    """The member's, where there are certificates. Who knows this life with this address needs neither of the two."""
    signature: Signature = b""
    """Over all but the incarnation, with the key of the certificate."""


class Accusation(Update, frozen=True):
    name: Name
    boot: Number
    incarnation: Number
    accuser: Accuser
    reason: Reason


class Suspect(Accusation, frozen=True, tag=22):
    """`accuser` had no answer from the member. It may refute."""


class Dead(Accusation, frozen=True, tag=23):
    """`accuser` waited for a refutation and none came."""


class MemberHasLeft(Update, frozen=True, tag=24):
    """The member went on purpose. This life of it does not come back."""

    name: Name
    boot: Number
    incarnation: Number


class Stated(Update, frozen=True, tag=25):
    """The member's state, for those who do not probe it soon."""

    name: Name
    boot: Number
    state: MemberState


class MemberRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All that a member knows of another, for anti-entropy."""

    name: Name
    boot: Number
    incarnation: Number
    address: Address
    zone: Zone
    meta: Payload
    status: Annotated[int, Meta(ge=0, le=3)]
    state: MemberState | None = None
    accuser: Accuser = ""
    reason: Reason = ""
    certificate: Certificate = b""
    signature: Signature = b""


class PeerAddress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A member as a watcher of another group is told of it."""

    name: Name
    boot: Number
    address: Address
    status: Annotated[int, Meta(ge=0, le=3)]


class Ping(Message, frozen=True, tag=1):
    """Are you there? Only this life of this name answers."""

    sequence: Number
    target: Name
    target_boot: Number
    state: MemberState | None = None
    """The sender's, when the target does not have it yet."""
    knows: Number = 0
    """The version of the target's state that the sender has; the target answers with a later one only."""
    stream: bool = False
    """Asked over the stream, to be answered over it."""


class ProbeAck(Message, frozen=True, tag=2):
    """The target is there. From the target itself, or from a helper that it answered."""

    sequence: Number
    state: MemberState | None = None
    knows: Number = 0


class PingRequest(Message, frozen=True, tag=3):
    """Ping this member for me."""

    sequence: Number
    target: Name
    target_boot: Number
    address: Address


class Nack(Message, frozen=True, tag=4):
    """A helper's word that it has no answer yet, and so that it and the way to it are well."""

    sequence: Number


class Gossip(Message, frozen=True, tag=5):
    """Nothing but the updates that ride on it."""


class SyncOffer(Message, frozen=True, tag=6):
    """Who I am, and a digest of each bucket of what I know. Joining is an offer of one who knows nobody."""

    me: Alive
    state: MemberState | None
    digests: Annotated[bytes, Meta(max_length=BUCKETS * DIGEST_BYTES)]


class SyncReply(Message, frozen=True, tag=7):
    """Who I am, which buckets differ, and what I have in them (the rest of it follows as `SyncRecords`)."""

    me: Alive
    buckets: Annotated[list[Annotated[int, Meta(ge=0, lt=BUCKETS)]], Meta(max_length=BUCKETS)]
    records: Annotated[list[MemberRecord], Meta(max_length=RECORDS_LIMIT)]


class SyncRecords(Message, frozen=True, tag=8):
    """What I have in the buckets that differ. Asks for no answer."""

    records: Annotated[list[MemberRecord], Meta(max_length=RECORDS_LIMIT)]


class WatchGroup(Message, frozen=True, tag=9):
    """A watcher of another group asks whether this name is there, in whichever life."""

    sequence: Number
    target: Name
    stream: bool = False


class WatchReply(Message, frozen=True, tag=10):
    sequence: Number
    name: Name
    boot: Number
    living: Number
    """Members of the group that the answering one holds alive, itself included."""
    state: MemberState | None = None
    peers: Annotated[list[PeerAddress], Meta(max_length=PEERS_LIMIT)] = []


GroupMessage: TypeAlias = Ping | ProbeAck | PingRequest | Nack | Gossip | SyncOffer | SyncReply | SyncRecords
"""Between members of one group."""
MembershipMessage: TypeAlias = GroupMessage | WatchGroup | WatchReply
MemberUpdate: TypeAlias = Alive | Suspect | Dead | MemberHasLeft | Stated


CHANNEL: Final[Channel[MembershipMessage]] = Channel(
    1, "membership", MembershipMessage, "a member sent a malformed membership message"
)
encode, decode = CHANNEL.encode, CHANNEL.decode
UPDATES: Final[Channel[MemberUpdate]] = Channel(
    0, "updates", MemberUpdate, "a member sent a malformed membership update"
)
decode_update = UPDATES.decode
_encode = msgspec.msgpack.Encoder().encode


def encode_update(update: MemberUpdate) -> bytes:
    if isinstance(update, Alive) and not update.certificate:
        # Most news is of members that are known: without the two fields more of it fits a datagram.
        tag = Alive.__struct_config__.tag
        return _encode((tag, update.name, update.boot, update.incarnation, update.address, update.zone, update.meta))
    return UPDATES.encode(update)
