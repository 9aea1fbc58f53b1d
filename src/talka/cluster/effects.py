"""What state machines of the cluster ask for. A composite or a shell carries it out, in order.

News (`MemberLost`, `Elected` …) live in the room that tells them: `membership/news.py`, `leadership/news.py`.
"""

from enum import IntEnum
from typing import Any, Final, Generic, TypeVar

import msgspec

from talka.wire.channels import Channel


class Lane(IntEnum):
    """How a frame travels."""

    DATAGRAM = 0
    """UDP: may be lost, doubled or overtaken; within the MTU."""
    STREAM = 1
    """TCP: in order on its link, up to a frame's limit; lost when the link stays cut."""
    CONTROL = 2
    """Votes, leases and fences: a stream of its own that is never shed. Cores must bear loss and repetition on it."""
    RESULTS = 3
    """Results and cancels: like STREAM, and never shed."""
    STATISTICS = 4
    """Like STREAM, and shed first."""


MessageT = TypeVar("MessageT", bound=msgspec.Struct, covariant=True)


class Send(msgspec.Struct, Generic[MessageT], frozen=True, gc=False):
    """Send this message. Whether it arrives is not known. The composite puts it into a packet."""

    channel: Channel[Any]
    """The conversation it belongs to: a `CHANNEL` of `talka.wire`."""
    to: str
    """A node's name; in membership and greetings, where a name may not be known yet, an address."""
    message: MessageT
    lane: Lane
    updates: list[bytes] = []
    """Membership only: encoded updates of members that ride on the message."""
    key_id: str = ""
    """Greetings only: the key to seal it with. Empty: the one the node is known to have."""


class Persist(msgspec.Struct, frozen=True):
    """Write all of `puts` durably, as one: all or nothing survives a crash. Then say `on_persisted(ticket)`.

    Tickets of one node grow and are answered in order.
    """

    ticket: int
    puts: tuple[tuple[str, bytes | None], ...]
    """Key and content; None removes the key."""


class PersistBlob(msgspec.Struct, frozen=True):
    """Write a blob durably under its digest. Then say `on_persisted(ticket)`, or `on_not_persisted`: a node can do
    without.

    Tickets are numbered together with those of `Persist`.
    """

    ticket: int
    digest: str
    content: bytes
    removed: tuple[str, ...] = ()
    """Digests of blobs that make room for it."""


HANDLE: Final = "#"
"""An address that begins so is a connection somebody opened: good for answers, gone with it."""


class Transmit(msgspec.Struct, frozen=True):
    """Put this frame on its way to an address. Whether it arrives is not known."""

    to: str
    frame: bytes
    lane: Lane
