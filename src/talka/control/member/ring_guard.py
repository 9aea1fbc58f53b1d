"""Who may bring keys, how far ahead they may be, and what is an alarm.

Where there are certificates keys count only on a stream from a proven manager: a datagram proves nothing but the
secret. A ring is expected when it is one change ahead and a member in view tells it, and from whom this node asked to
be let in as long as it agreed with nobody yet: it may have been away. Every other change is an alarm, and so is what
was refused.

docs/decisions/0030-keys-and-addresses-have-owners.md.
"""

from collections import OrderedDict
from typing import Final

from talka.cluster.effects import Lane
from talka.cluster.leadership.news import LeadershipAlarm
from talka.units import SECOND
from talka.wire.security.keys import BadRing, Keyring, decode_ring
from talka.wire.security.roles import Proven, Role

KEPT_LIMIT: Final = 64
"""Refusals that were told, by reason and sender, and nodes that let this one in."""
REPAIR: Final = "if nobody of you changed them, see `talka cluster keys --repair`"


class RingGuard:
    def __init__(self, *, certified: bool = False) -> None:
        self.refused: dict[str, int] = {"datagram": 0, "role": 0, "jump": 0, "key": 0}
        """Rings that were not looked at further, by reason."""
        self.unexpected = 0
        """Rings that were taken over and that this node did not expect."""
        self._certified = certified
        self._told: OrderedDict[tuple[str, object], None] = OrderedDict()
        self._told_at = -SECOND
        self._asked: OrderedDict[tuple[str, object], None] = OrderedDict()
        self._agreed = False

    # -- what may be looked at

    def bars(self, lane: Lane, proven: Proven) -> str:
        """Why keys that came so do not count, as a word; empty when they do."""
        if not self._certified:
            return ""
        if lane is Lane.DATAGRAM:
            return "datagram"
        return "" if proven.role is Role.MANAGER else "role"

    def is_too_far(self, mine: Keyring, theirs: Keyring) -> bool:
        return not mine.is_reached_by(theirs)

    def refuse(self, now: int, reason: str, sender: str, source: str, ring: bytes | Keyring) -> list[LeadershipAlarm]:
        """Count it, and tell of each sender and reason once, and no oftener than once a second."""
        self.refused[reason] += 1
        about = (reason, sender)
        if about in self._told or now - self._told_at < SECOND:
            return []
        self._told_at = now
        _keep(self._told, about)
        return [LeadershipAlarm("keys", f"{_WHY[reason].format(sender=sender, source=source)}: {_facts(ring)}")]

    # -- what is expected

    def asked(self, name: str, boot: int) -> None:
        """This node asked that one to be let in, and was."""
        _keep(self._asked, (name, boot))

    def agree(self, with_anybody: bool) -> None:
        """Whether somebody in view has the same keys; once so, until nobody is in view any more."""
        self._agreed = with_anybody

    def is_expected(self, sender: str, boot: int, in_view: bool, before: Keyring, after: Keyring) -> bool:
        """`in_view`: this life of the sender is alive in the view of members."""
        if not self._agreed and (in_view or (sender, boot) in self._asked):
            return True
        return in_view and after.era == before.era and after.version - before.version <= 1

    def alarm(self, sender: str, source: str, before: Keyring, after: Keyring) -> list[LeadershipAlarm]:
        """The keys changed, and nobody could expect it."""
        self.unexpected += 1
        text = f"{sender!r} at {source} brought keys that were not expected, and they hold from now on: {_facts(after)}"
        return [LeadershipAlarm("keys", f"{text}; before: {_facts(before)}; {REPAIR}")]


_WHY: Final = {
    "datagram": "keys in a datagram, which no certificate covers, were refused; {sender!r} at {source} sent them",
    "role": "{sender!r} at {source} is not a manager; the keys it sent were refused",
    "jump": "{sender!r} at {source} sent keys too far ahead to be true, which were refused",
    "key": "{sender!r} at {source} sent keys under a key that is not accepted any more, which were refused",
}


def _keep(kept: OrderedDict[tuple[str, object], None], key: tuple[str, object]) -> None:
    kept[key] = None
    if len(kept) > KEPT_LIMIT:
        kept.popitem(last=False)


def _facts(ring: bytes | Keyring) -> str:
    if not isinstance(ring, Keyring):
        try:
            ring = decode_ring(ring)
        except BadRing:
            return "no ring at all"
    era = f" of era {ring.era}" if ring.era else ""
    return f"version {ring.version}{era}, keys {', '.join(ring.accepted())}, sealing with {ring.primary_id}"
