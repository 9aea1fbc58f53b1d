"""How long leases are: two numbers that all voters of a group must count alike.

The lease of workers is a value of the register. The first leader writes it; a voter that was told another one is not
let in, and whoever leads goes by the register. It is changed by a command (`control/jobs/workers/lease_rule.py`).

The leader's own lease comes with the preset. It is promised before there is a register, so voters compare it with every
vote and heartbeat, and a voter that starts with a shorter one than it promised by waits for the longer.

docs/decisions/0033-one-lease.md.
"""

from typing import Final

import msgspec

from talka.cluster.fencing import Token
from talka.errors import Invalid
from talka.units import SECOND
from talka.wire.leadership import WORKER_LEASE_LIMIT_BYTES
from talka.work.durations import format_duration

WORKER_LEASE_KEY: Final = "worker-lease"
USUAL_NS: Final = 5 * SECOND
LONGEST_NS: Final = 60 * SECOND
BY_LIMIT: Final = 500
"""Characters; what a heartbeat tells of it stays within its limit."""


class LeaseTerms(msgspec.Struct, frozen=True, array_like=True):
    """The value in the register. While it changes, renewals are of the shorter one, and the longer one is waited
    for."""

    lease_ns: int
    next_ns: int = 0
    """What it is being changed to; 0: it is not."""
    by: str = ""
    """Where it comes from, to go after "set by"."""
    token: Token = Token(0, 0, 0)
    """Of the leader that wrote it."""

    @property
    def shorter_ns(self) -> int:
        return min(self.lease_ns, self.next_ns or self.lease_ns)

    @property
    def longer_ns(self) -> int:
        return max(self.lease_ns, self.next_ns)


class OwnLease(msgspec.Struct, frozen=True):
    """The lease of workers as a manager was told it."""

    ns: int = USUAL_NS
    label: str = ""
    """The setting as whoever set it knows it; empty: nobody did, and whatever the register has is right."""


_decoder = msgspec.msgpack.Decoder(LeaseTerms)


def encode_terms(terms: LeaseTerms) -> bytes:
    return msgspec.msgpack.encode(terms)


def decode_terms(content: bytes) -> LeaseTerms | None:
    """None: bytes that this version cannot read, or that make no sense."""
    try:
        terms = _decoder.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return terms if 0 < terms.lease_ns <= LONGEST_NS and 0 <= terms.next_ns <= LONGEST_NS else None


def told(content: bytes | None) -> bytes:
    """As a heartbeat tells it."""
    return content if content is not None and len(content) <= WORKER_LEASE_LIMIT_BYTES else b""


class LeaseFit:
    """Whether this voter counts as its group does. Once it was found to, later changes are the group's own."""

    __slots__ = ("_has_fitted", "is_misfit", "leader_ns", "own")

    def __init__(self, leader_ns: int, own: OwnLease | None) -> None:
        """`own`: None where no workers are led."""
        self.leader_ns = leader_ns
        self.own = own
        self.is_misfit = False
        """It must not lead: it was told another lease of workers than the register has."""
        self._has_fitted = own is None or not own.label

    def founding(self, name: str, token: Token) -> bytes | None:
        """What is written where the register has nothing yet."""
        if self.own is None:
            return None
        by = f"{self.own.label} of {name}" if self.own.label else f"{name}, which was told none"
        return encode_terms(LeaseTerms(self.own.ns, 0, by[:BY_LIMIT], token))

    def objection(self, terms: LeaseTerms | None) -> str:
        """Why this voter does not fit what a majority of the group holds; empty when it does."""
        if terms is None or self._has_fitted or self.is_misfit:
            return ""  # said once, if it is to be said
        assert self.own is not None
        if self.own.ns in (terms.lease_ns, terms.next_ns):
            self._has_fitted = True
            return ""
        self.is_misfit = True
        own, held, label = format_duration(self.own.ns), format_duration(terms.lease_ns), self.own.label
        changing = f", which is being changed to {format_duration(terms.next_ns)}" if terms.next_ns else ""
        return (
            f"{label} is {own}, and the lease of this cluster is {held}{changing} (set by {terms.by or 'its leader'}): "
            f"leave {label} away or write {held}; to change it for all managers: talka cluster lease {own} --to "
            "HOST:PORT"
        )

    def is_other(self, leader_ns: int) -> bool:
        """Whether another voter counts the leader's lease otherwise. One of an earlier version does not tell: 0."""
        return bool(leader_ns) and leader_ns != self.leader_ns


class OtherLease(Invalid):
    """What a manager was told does not fit its cluster: starting it again does not help."""


class LeaseDiffers(msgspec.Struct, frozen=True):
    """News: this voter was told another lease of workers than its group has. It leads nothing, and is to be stopped."""

    text: str
