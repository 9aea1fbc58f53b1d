"""What this node and each of its peers agreed on: asked before anything is said that an older side does not know.

It is learned where a life of a peer becomes known: from its greeting, from its proof that it lives, and from what it
says of itself to all members. It is of that life: the next one may be of another release. Of a peer that nothing is
known of, the oldest is presumed.

Decision: docs/decisions/0063-what-two-sides-agreed-on.md.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from talka.cluster.effects import HANDLE
from talka.errors import Invalid
from talka.wire.channels import Message
from talka.wire.security.permissions import name_of
from talka.wire.versions import OLDEST, VERSION, Agreed, NotCompatible, Offer, names_until, negotiate, offer_of

PEERS_LIMIT: Final = 16_384


class VersionDiffers(msgspec.Struct, frozen=True):
    """News: a life of a peer became known that speaks another minor than this node."""

    name: str
    mine: str
    theirs: str
    agreed: str
    capabilities: tuple[str, ...]


class Agreement(msgspec.Struct, frozen=True):
    boot: int
    """The life of the peer that it holds for."""
    agreed: Agreed
    source: str = ""
    """The connection that goes with this life; empty: none does."""


class Agreements:
    """By peer, of its latest life. Who is known longest is forgotten first; if it speaks, it is asked again."""

    def __init__(self, mine: Offer, presumed: Agreed | None = None, *, peers_limit: int = PEERS_LIMIT) -> None:
        """`presumed`: agreed on with whoever nothing is known of; None: the oldest version, and nothing else."""
        self.mine = mine
        self.unsaid: dict[str, int] = {}
        """Messages that were not said, by name, as the peer is older than they."""
        self._presumed = presumed or Agreed(OLDEST, names_until(OLDEST.minor))
        self._peers_limit = peers_limit
        self._peers: dict[str, Agreement] = {}
        self._names: dict[str, str] = {}
        """Of those that go with a connection."""

    @classmethod
    def alike(cls) -> "Agreements":
        """For a cluster in which nobody says a version: all are of this release."""
        names = names_until(VERSION.minor)
        return cls(Offer(VERSION, names), Agreed(VERSION, names))

    # -- questions

    def of(self, name: str) -> Agreed:
        peer = self._peers.get(name)
        return self._presumed if peer is None else peer.agreed

    def life_of(self, name: str) -> int:
        """The life that it was agreed on with; 0: nothing is known of this peer."""
        peer = self._peers.get(name)
        return 0 if peer is None else peer.boot

    def may_say(self, name: str, message: Message) -> bool:
        """Whether this peer understands this message. Counted where it does not."""
        if message.needs <= self.of(name).version.minor:
            return True
        word = name_of(message)
        self.unsaid[word] = self.unsaid.get(word, 0) + 1
        return False

    def by_version(self) -> dict[str, int]:
        """How many peers there are with which each version is spoken."""
        counts: dict[str, int] = {}
        for peer in self._peers.values():
            version = str(peer.agreed.version)
            counts[version] = counts.get(version, 0) + 1
        return counts

    # -- what is learned

    def meet(
        self, name: str, boot: int, version: str, capabilities: Sequence[str] = (), source: str = ""
    ) -> list[VersionDiffers]:
        """This life of a peer says this of itself. `NotCompatible` or `Invalid` where it cannot be talked with."""
        theirs = offer_of(version, capabilities)
        agreed = negotiate(self.mine, theirs)
        is_new = self.life_of(name) != boot
        self._drop(name)
        if len(self._peers) >= self._peers_limit:
            self._drop(next(iter(self._peers)))
        self._peers[name] = Agreement(boot, agreed, source if source.startswith(HANDLE) else "")
        if source.startswith(HANDLE):
            self._names[source] = name
        if not is_new or theirs.version.minor == self.mine.version.minor:
            return []
        return [
            VersionDiffers(name, str(self.mine.version), str(theirs.version), str(agreed.version), agreed.capabilities)
        ]

    def hear(self, name: str, boot: int, version: str) -> list[VersionDiffers]:
        """This life of a member says its version to all. Whatever it said to this node itself says more, and news of an
        earlier life may come late."""
        if name in self._peers:
            return []
        try:
            return self.meet(name, boot, version)
        except (Invalid, NotCompatible):
            return []

    def end(self, name: str, boot: int) -> None:
        """This life of a peer is over."""
        if self.life_of(name) == boot:
            self._drop(name)

    def gone(self, source: str) -> None:
        """A connection that was opened from outside is closed: who spoke on it tells again what it is."""
        name = self._names.pop(source, "")
        if name:
            self._drop(name)

    def _drop(self, name: str) -> None:
        peer = self._peers.pop(name, None)
        if peer is not None:
            self._names.pop(peer.source, None)
