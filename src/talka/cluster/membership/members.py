"""The members one knows, and which news about a member outranks which.

Within one life (name, boot) news is ordered by incarnation, then alive < suspect < dead; having left outranks all of it
for good. Merging is taking the greater, so members that heard the same news agree, in whatever order it came.

Between lives of one name nothing tells which is later: a boot is a random number. The rule is:
- A life that was replaced (the last `FORMER_LIMIT` are remembered) is taken back only when it speaks itself and the
  recorded one is dead or has left: then that was the wrong guess.
- A life heard of from the member itself replaces the recorded one at once: its frames are authenticated.
- A life heard of from others replaces a recorded one that is dead or has left.
- A life heard of from others while the recorded one seems alive is verified: it is pinged, and its own answer is word
  from the member itself.
A wrong guess (an older life, taken because the later one was held dead) answers no ping and dies again.

SWIM §4.2: incarnations, and which message overrides which. docs/decisions/0013-membership-measures-itself.md,
docs/decisions/0030-keys-and-addresses-have-owners.md.
"""

from enum import Enum, IntEnum
from random import Random
from typing import Final

from talka.cluster.membership.suspicion import Suspicion
from talka.units import NEVER, SECOND
from talka.wire.membership import Alive, MemberState

FORMER_LIMIT: Final = 8
"""Replaced lives remembered for each name."""
PATIENCE_LIMIT: Final = 4
PATIENCE_NS: Final = 30 * SECOND
"""Refutations further apart than this have nothing to do with each other."""


class Status(IntEnum):
    """In the order of precedence. The numbers travel in records."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3


ALIVE: Final = Status.ALIVE
SUSPECT: Final = Status.SUSPECT
DEAD: Final = Status.DEAD
LEFT: Final = Status.LEFT


class StatusClaim(Enum):
    """What to do about a life of a name that is not the recorded one."""

    TAKE = "take"
    VERIFY = "verify"
    REFUSE = "refuse"


def outranks(status: Status, incarnation: int, other: Status, other_incarnation: int) -> bool:
    """Whether news of a life replaces what is known of the same life."""
    if status == LEFT or other == LEFT:
        return other != LEFT
    return incarnation > other_incarnation or (incarnation == other_incarnation and status > other)


def claim_of(boot: int, former: list[int], recorded: Status, direct: bool) -> StatusClaim:
    """What to do about `boot`, when another life is recorded with this status."""
    if boot in former:
        return StatusClaim.TAKE if direct and recorded >= DEAD else StatusClaim.REFUSE
    return StatusClaim.TAKE if direct or recorded >= DEAD else StatusClaim.VERIFY


class Member:
    """What is known of one member."""

    __slots__ = (
        "accuser",
        "accusations",
        "accusations_since",
        "address",
        "answered_at",
        "blocked",
        "boot",
        "candidate",
        "certificate",
        "challenged_at",
        "former",
        "incarnation",
        "meta",
        "misses",
        "name",
        "reason",
        "refutations",
        "refuted_at",
        "signature",
        "since",
        "state",
        "status",
        "suspicion",
        "told",
        "zone",
    )

    def __init__(self, alive: Alive, now: int) -> None:
        self.name = alive.name
        self.former: list[int] = []
        self.accusations = 0
        """By this member, in the second that began at `accusations_since`."""
        self.accusations_since = 0
        self.begin_life(alive, now)

    def begin_life(self, alive: Alive, now: int) -> None:
        self.boot = alive.boot
        self.status = ALIVE
        self.since = now
        self.accuser = ""
        self.reason = ""
        self.suspicion: Suspicion | None = None
        self.state: MemberState | None = None
        self.told = 0
        """The version of this node's own state that the member is known to have."""
        self.candidate: Alive | None = None
        """Another life that others speak of, until it has answered."""
        self.challenged_at = -NEVER
        self.answered_at = -NEVER
        """When what it said was last answered with what it, or this member, stands accused of."""
        self.misses = 0
        """Probes in a row that were answered over the stream but not by datagram."""
        self.blocked = False
        self.refutations = 0
        self.refuted_at = -NEVER
        self.certificate = b""
        """What its address and its states are signed with; empty where there are no certificates."""
        self.signature = b""
        self.renew(alive)

    def renew(self, alive: Alive) -> None:
        self.incarnation = alive.incarnation
        self.address = alive.address
        self.zone = alive.zone
        self.meta = alive.meta
        if alive.signature:  # a mere sign of life has none
            self.certificate, self.signature = alive.certificate, alive.signature

    def refuted(self, now: int) -> None:
        """It was suspected and has said that it lives."""
        self.refutations = self.refutations + 1 if now - self.refuted_at < PATIENCE_NS else 1
        self.refuted_at = now

    def patience(self, now: int) -> int:
        """How many times as long it is waited for: one that refutes again and again is slow, not dead."""
        if self.refutations < 2 or now - self.refuted_at >= PATIENCE_NS:
            return 1
        return min(self.refutations, PATIENCE_LIMIT)

    @property
    def version(self) -> int:
        return self.state.version if self.state else 0

    def __repr__(self) -> str:
        return f"Member({self.name!r}, boot={self.boot}, {self.status.name} at {self.incarnation})"


class Members:
    """Everybody known but oneself, in an order for probing: each once per round, newcomers at a random place."""

    __slots__ = ("_by_name", "_limit", "_next", "_order", "_rng", "living", "suspected")

    def __init__(self, limit: int, rng: Random) -> None:
        self._limit = limit
        self._rng = rng
        self._by_name: dict[str, Member] = {}
        self._order: list[Member] = []
        self._next = 0
        self.living = 0
        """Alive or suspected."""
        self.suspected = 0

    def __len__(self) -> int:
        return len(self._order)

    def get(self, name: str) -> Member | None:
        return self._by_name.get(name)

    def all(self) -> list[Member]:
        """In the order in which they became known."""
        return list(self._by_name.values())

    def add(self, alive: Alive, now: int) -> Member | None:
        """The new member, or None when the table is full of the living."""
        if len(self._order) >= self._limit and not self._evict():
            return None
        member = self._by_name[alive.name] = Member(alive, now)
        self.living += 1
        place = int(self._rng.random() * (len(self._order) + 1))
        self._order.insert(place, member)
        if place < self._next:
            self._next += 1
        return member

    def move(self, member: Member, status: Status, now: int) -> None:
        self.living += (status <= SUSPECT) - (member.status <= SUSPECT)
        self.suspected += (status == SUSPECT) - (member.status == SUSPECT)
        member.status = status
        member.since = now
        if status != SUSPECT:
            member.suspicion = None
        if status >= DEAD:
            member.misses = 0
            member.blocked = False

    def replace(self, member: Member, alive: Alive, now: int) -> None:
        """Another life of the same name begins; the recorded one is a former one from now on."""
        self.move(member, ALIVE, now)
        if alive.boot in member.former:
            member.former.remove(alive.boot)
        member.former.append(member.boot)
        del member.former[:-FORMER_LIMIT]
        member.begin_life(alive, now)

    def next_to_probe(self) -> Member | None:
        """The next of the living, in a new random order each round."""
        if not self.living:
            return None
        while True:
            if self._next >= len(self._order):
                self._rng.shuffle(self._order)
                self._next = 0
            member = self._order[self._next]
            self._next += 1
            if member.status <= SUSPECT:
                return member

    def pick(
        self, count: int, *, highest: Status = ALIVE, dead_since: int = NEVER, without: Member | None = None
    ) -> list[Member]:
        """Up to `count` different members at random: of status `highest` or below, or dead since `dead_since`."""
        order, draw = self._order, self._rng.random
        total = len(order)
        picked: list[Member] = []
        if total > 4 * count:
            # Most are alive as a rule: drawing is cheaper than looking at everybody.
            for _ in range(3 * count):
                member = order[int(draw() * total)]
                status = member.status
                if (
                    (status <= highest or (status == DEAD and member.since >= dead_since))
                    and member is not without
                    and member not in picked
                ):
                    picked.append(member)
                    if len(picked) == count:
                        return picked
        rest = [
            member
            for member in order
            if (member.status <= highest or (member.status == DEAD and member.since >= dead_since))
            and member is not without
            and member not in picked
        ]
        missing = count - len(picked)
        picked += rest if len(rest) <= missing else self._rng.sample(rest, missing)
        return picked

    def reap(self, before: int) -> list[str]:
        """Forget who has been dead or gone since before that; their names."""
        names = [m.name for m in self._order if m.status >= DEAD and m.since < before]
        for name in names:
            self._forget(self._by_name[name])
        return names

    def _evict(self) -> bool:
        gone = [m for m in self._order if m.status >= DEAD]
        if not gone:
            return False
        self._forget(min(gone, key=lambda member: (member.since, member.name)))
        return True

    def _forget(self, member: Member) -> None:
        place = self._order.index(member)
        del self._order[place]
        if place < self._next:
            self._next -= 1
        del self._by_name[member.name]
