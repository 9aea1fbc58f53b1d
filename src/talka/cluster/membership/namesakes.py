"""Notices that two nodes have one name: a life that was replaced, and goes on speaking.

A node that was restarted is another life too, and frames of the earlier one may be on the way for a moment. After that
nobody speaks any more whose place was taken, unless there are two.
"""

from collections import OrderedDict
from typing import Final

from talka.cluster.effects import Lane, Send
from talka.cluster.membership.members import Member
from talka.cluster.membership.news import MembershipEffect, Namesake
from talka.units import SECOND
from talka.wire.membership import CHANNEL, Alive, Gossip, encode_update

PATIENCE_NS: Final = 10 * SECOND
LIVES_LIMIT: Final = 64
AGAIN_NS: Final = SECOND


class Namesakes:
    """What one member knows of them. Effects are appended to the `out` that is passed in."""

    def __init__(self, lives_limit: int = LIVES_LIMIT) -> None:
        self._lives_limit = lives_limit
        self._first: OrderedDict[tuple[str, int], int] = OrderedDict()
        """Lives whose name another life has, and when each was first heard of."""
        self._told: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._answered_at = -AGAIN_NS

    def heard(self, now: int, source: str, boot: int, member: Member, out: list[MembershipEffect]) -> None:
        """A life speaks that `member` has replaced. It is told so: nobody else talks to it."""
        if not self._lasts(now, member.name, boot):
            return
        if now >= self._answered_at + AGAIN_NS:
            self._answered_at = now
            said = (member.name, member.boot, member.incarnation, member.address, member.zone, member.meta)
            news = encode_update(Alive(*said, member.certificate, member.signature))
            out.append(Send(CHANNEL, source, Gossip(), Lane.DATAGRAM, [news]))
        self._tell(member.name, boot, member.address, source, out)

    def told_of(self, now: int, me: Alive, other: Alive, out: list[MembershipEffect]) -> None:
        """Somebody says that another life of this member's own name is alive."""
        if self._lasts(now, other.name, other.boot):
            self._tell(me.name, other.boot, me.address, other.address, out)

    def _lasts(self, now: int, name: str, boot: int) -> bool:
        first = self._first.setdefault((name, boot), now)
        if len(self._first) > self._lives_limit:
            self._first.popitem(last=False)
        return now - first >= PATIENCE_NS

    def _tell(self, name: str, boot: int, address: str, other: str, out: list[MembershipEffect]) -> None:
        if (name, boot) in self._told:
            return
        self._told[(name, boot)] = None
        if len(self._told) > self._lives_limit:
            self._told.popitem(last=False)
        out.append(Namesake(name, address, other))
