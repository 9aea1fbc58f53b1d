"""What cores of the cluster ask for. A composite or a shell carries it out, in order.

News of a core (`MemberLost`, `Elected` …) live beside the core that tells them.
"""

from enum import IntEnum
from typing import Final

import msgspec


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


class Persist(msgspec.Struct, frozen=True):
    """Write all of `puts` durably, as one: all or nothing survives a crash. Then say `on_persisted(ticket)`.

    Tickets of one node grow and are answered in order.
    """

    ticket: int
    puts: tuple[tuple[str, bytes | None], ...]
    """Key and content; None removes the key."""


HANDLE: Final = "#"
"""An address that begins so is a connection somebody opened: good for answers, gone with it."""


class Transmit(msgspec.Struct, frozen=True):
    """Put this frame on its way to an address. Whether it arrives is not known."""

    to: str
    frame: bytes
    lane: Lane
