"""Brings the newest keys to every member, and knows who has them.

Each member says in its state which keys it has, as a digest. Whoever sees another digest sends its own keys; merging
makes both equal. So one that was away learns them when it is back, and an old key is retired only when nobody needs it.

docs/decisions/0014-sealed-and-alive.md, docs/decisions/0030-keys-and-addresses-have-owners.md.
"""

from collections.abc import Iterable
from typing import Final, TypeAlias

from talka.cluster.effects import Lane, Send
from talka.cluster.leadership.news import LeadershipAlarm
from talka.cluster.membership.members import LEFT, SUSPECT, Member
from talka.cluster.membership.membership import Membership
from talka.cluster.membership.news import MembershipEffect, StateLearned
from talka.control.member.admission import Admission, RingChanged
from talka.control.member.announcement import Announcer, standing_of
from talka.control.member.life_proofs import ArrivedPacket
from talka.errors import Invalid
from talka.units import SECOND
from talka.wire.greeting import CHANNEL, ShareRing
from talka.wire.security.keys import Keyring, encode_ring

TOLD_LIMIT: Final = 16_384
AGAIN_NS: Final = 5 * SECOND
"""How often members that still have other keys are told again: what was sent may be lost."""
AGAIN_LIMIT: Final = 8
"""How many of them at a time."""


KeyEffect: TypeAlias = Send[ShareRing] | MembershipEffect | RingChanged | LeadershipAlarm


class NotConfirmed(Invalid):
    """Members have not confirmed the keys in use: one of them cannot be sealed with, or retired, yet."""


def _some(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


class KeyDistribution:
    def __init__(
        self, admission: Admission, membership: Membership, announcer: Announcer, told_limit: int = TOLD_LIMIT
    ) -> None:
        self._told_limit = told_limit
        self._admission = admission
        self._membership = membership
        self._announcer = announcer
        self._told: dict[str, tuple[str, int]] = {}
        """Which keys each member was sent last, and when."""
        self._again_at = 0
        self._older: dict[str, str] = {}
        """Addresses of members that may lack our key, and the key they used last. Looked up again once a second."""
        self._keys_of: Keyring | None = None
        self._keys_until = 0
        self._turn = membership.me.boot % 1009  # not everybody tells the same ones

    @property
    def ring(self) -> Keyring:
        return self._admission.ring

    def hear(self, now: int, news: StateLearned | RingChanged) -> list[KeyEffect]:
        if isinstance(news, RingChanged):
            self._announcer.tell(now, spread=True)
            return self._tell_some(now)
        speaker = self._membership.get(news.name)
        if speaker is None:
            return []
        if self._confirmed(speaker):
            self._admission.rings.agree(True)
        return self._tell(now, speaker)

    def key_for(self, now: int, address: str) -> str:
        """The key to seal with for the node at this address, where ours might not open there; else nothing.

        One that went away before the keys changed is spoken to under the key it had, or it could not hear that it is
        missed.
        """
        if len(self.ring.accepted()) == 1:
            return ""
        if now >= self._keys_until or self._keys_of != self.ring:
            self._keys_until, self._keys_of = now + SECOND, self.ring
            lacking = (member for member in self._membership.members() if not self._confirmed(member))
            self._older = {member.address: key for member in lacking if (key := self._admission.key_of(member.name))}
        return self._older.get(address, "")

    def tick(self, now: int) -> list[KeyEffect]:
        """May be called at any time."""
        if now < self._again_at:
            return []
        self._again_at = now + AGAIN_NS
        if not self._membership.alive():
            self._admission.rings.agree(False)
        return self._tell_some(now)

    def _tell_some(self, now: int) -> list[KeyEffect]:
        """A few at a time: those who are told tell others, and whoever was left out is told with a later tick."""
        out: list[KeyEffect] = []
        lacking = [member for member in self._membership.alive() if not self._confirmed(member)]
        for _ in range(min(len(lacking), AGAIN_LIMIT)):
            self._turn += 1
            out += self._tell(now, lacking[self._turn % len(lacking)])
        return out

    def learn(self, now: int, arrival: ArrivedPacket, theirs: Keyring, merged: Keyring) -> list[KeyEffect]:
        """Keys that a live member told, and what they and ours make together. One that lacks some is told in turn."""
        rings, before, sender = self._admission.rings, self.ring, arrival.packet.sender
        if rings.is_too_far(before, theirs):
            return [*rings.refuse(now, "jump", sender, arrival.source, theirs)]
        if arrival.key_id not in before.accepted() and theirs.era <= before.era:
            return [*rings.refuse(now, "key", sender, arrival.source, theirs)]
        member = self._membership.get(sender)
        in_view = member is not None and member.boot == arrival.packet.boot and member.status <= SUSPECT
        out: list[KeyEffect] = [*self._admission.use(merged, by=sender)]
        if out and not rings.is_expected(sender, arrival.packet.boot, in_view, before, merged):
            out += rings.alarm(sender, arrival.source, before, merged)
        if member is not None and theirs != merged:
            out += self._tell(now, member, lacks=True)
        return out

    def add(self, secret: str) -> list[RingChanged]:
        """Accept this secret here, and soon everywhere."""
        return self._admission.use(self.ring.with_key(secret))

    def repair(self, now: int, secrets: tuple[str, ...]) -> list[KeyEffect]:
        """Have these secrets and no others from now on, whatever the ring was, and bring that to everybody in view.

        They may hold us for lost soon: they seal with keys that we do not have any more. So all are told now.
        """
        out: list[KeyEffect] = [*self._admission.use(self.ring.repaired(secrets))]
        for member in self._membership.alive():
            out += self._tell(now, member, lacks=True)
        return out

    def seal_with(self, key_id: str) -> list[RingChanged]:
        ring = self.ring.with_primary(key_id)
        lacking = [member.name for member in self._membership.alive() if not self._confirmed(member)]
        if lacking:
            raise NotConfirmed(
                f"key {key_id} cannot be used yet: {_some(sorted(lacking))} did not confirm it. "
                "That takes a second or two after it was added: ask again"
            )
        return self._admission.use(ring)

    def retire(self, key_id: str, *, expected: Iterable[str] = (), force: bool = False) -> list[RingChanged]:
        """`expected`: members remembered from earlier, beside those in view."""
        ring = self.ring.without(key_id)
        missing = self.missing(expected)
        if missing and not force:
            raise NotConfirmed(
                f"key {key_id} cannot be retired yet: {_some(missing)} did not confirm the newer keys. Bring them back "
                "first, or retire it by force: then they must be given the new secret by hand"
            )
        return self._admission.use(ring)

    def missing(self, expected: Iterable[str] = ()) -> list[str]:
        """Members that did not go for good and have not confirmed to hold the same keys."""
        known = {member.name: member for member in self._membership.members()}
        names = [name for name in expected if name not in known and name != self._membership.me.name]
        names += [name for name, member in known.items() if member.status != LEFT and not self._confirmed(member)]
        return sorted(names)

    def _confirmed(self, member: Member) -> bool:
        standing = standing_of(member)
        return standing is not None and standing.ring == self.ring.digest

    def _tell(self, now: int, member: Member, *, lacks: bool = False) -> list[KeyEffect]:
        """Send our keys to a member that has others; the same ones once a second at most."""
        digest = self.ring.digest
        if member.status > SUSPECT or (not lacks and self._confirmed(member)):
            return []
        told, at = self._told.pop(member.name, ("", 0))
        if told == digest and now - at < SECOND:
            self._told[member.name] = (told, at)
            return []
        if len(self._told) >= self._told_limit:
            del self._told[next(iter(self._told))]
        self._told[member.name] = (digest, now)
        share = ShareRing(encode_ring(self.ring))
        # One that missed a repair may have none of these keys, and still reads those of its operator's file.
        spare = self._admission.spare_ids if self.ring.era else ()
        return [Send(CHANNEL, member.address, share, Lane.STREAM, key_id=key_id) for key_id in ("", *spare)]
