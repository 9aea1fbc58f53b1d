"""What a member says of itself, signed with the key of its certificate: others may pass it on and cannot change it.

An address is signed once for a life of a member, a state once for each version. News of a life whose address is known
already is no more than a sign of life and needs no signature: liveness does not depend on certificates. A certificate
that was renewed is told to all with the next incarnation.

docs/decisions/0030-keys-and-addresses-have-owners.md.
"""

from collections import OrderedDict
from hashlib import blake2b
from typing import Final, Protocol

import msgspec

from talka.cluster.membership.members import Member
from talka.wire.membership import Alive, MemberState

JUDGED_LIMIT: Final = 4096
"""Signatures whose judgement is kept, good and bad: the same news comes from many."""
AGAIN: Final = 64
"""A bad one is judged again when it was asked for so often: a certificate that did not hold yet may hold by now."""
GOOD: Final = -1
ADDRESS: Final = "member's address"
STATE: Final = "member's state"


class Notary(Protocol):
    """Signs for this node, and knows who signed what. Where there are certificates, it has them."""

    certificate: bytes

    def sign(self, purpose: str, statement: bytes) -> bytes: ...

    def has_signed(self, name: str, purpose: str, statement: bytes, signature: bytes, certificate: bytes) -> bool:
        """Whether the member of this name signed the statement, with the key of this certificate, which holds."""
        ...


class Vouched:
    """Signs what this member says of itself, and judges what others are told to have said."""

    def __init__(self, notary: Notary | None, judged_limit: int = JUDGED_LIMIT) -> None:
        self._judged_limit = judged_limit
        self.disbelieved = 0
        """Records and states that nobody vouched for."""
        self._notary = notary
        self._judged: OrderedDict[bytes, int] = OrderedDict()
        """How often it is still answered without judging again; of a good one always."""

    def signed(self, me: Alive) -> Alive:
        if self._notary is None:
            return me
        signature = self._notary.sign(ADDRESS, _address(me))
        return msgspec.structs.replace(me, certificate=self._notary.certificate, signature=signature)

    def state(self, me: Alive, version: int, payload: bytes) -> MemberState:
        if self._notary is None:
            return MemberState(version, payload)
        return MemberState(version, payload, self._notary.sign(STATE, _state(me.name, me.boot, version, payload)))

    def believes(self, alive: Alive, member: Member | None) -> bool:
        """Whether the member itself says so. `member`: what is known of it."""
        if self._notary is None:
            return True
        if member is not None and _is_known(alive, member) and not _brings_certificate(alive, member):
            return True
        return self._holds(alive.name, ADDRESS, _address(alive), alive.signature, alive.certificate)

    def believes_state(self, member: Member, state: MemberState) -> bool:
        if self._notary is None:
            return True
        statement = _state(member.name, member.boot, state.version, state.payload)
        return self._holds(member.name, STATE, statement, state.signature, member.certificate)

    def _holds(self, name: str, purpose: str, statement: bytes, signature: bytes, certificate: bytes) -> bool:
        assert self._notary is not None
        parts = _encoder.encode((name, purpose, statement, signature, certificate))
        key = blake2b(parts, digest_size=16).digest()
        left = self._judged.pop(key, 0)
        if left == GOOD:
            holds = True
        elif left:
            holds, left = False, left - 1
        else:
            is_signed = bool(signature and certificate)
            holds = is_signed and self._notary.has_signed(name, purpose, statement, signature, certificate)
            left = GOOD if holds else AGAIN
        if len(self._judged) >= self._judged_limit:
            self._judged.popitem(last=False)
        self._judged[key] = left
        self.disbelieved += not holds
        return holds


def plain(me: Alive) -> Alive:
    """The same for those who know this life already: small enough to ride on anything."""
    return msgspec.structs.replace(me, certificate=b"", signature=b"")


def _is_known(alive: Alive, member: Member) -> bool:
    return (alive.boot, alive.address, alive.zone, alive.meta) == (
        member.boot,
        member.address,
        member.zone,
        member.meta,
    )


def _brings_certificate(alive: Alive, member: Member) -> bool:
    """Whether it would put another certificate or signature in the place of those that are known."""
    is_newer = alive.signature != b"" and alive.incarnation > member.incarnation
    return is_newer and (alive.certificate, alive.signature) != (member.certificate, member.signature)


def _address(alive: Alive) -> bytes:
    return _encoder.encode((alive.name, alive.boot, alive.address, alive.zone, alive.meta))


def _state(name: str, boot: int, version: int, payload: bytes) -> bytes:
    return _encoder.encode((name, boot, version, payload))


_encoder = msgspec.msgpack.Encoder()
