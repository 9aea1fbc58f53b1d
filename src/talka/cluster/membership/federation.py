"""Watches members of other groups without joining them, as gates watch the managers of each datacenter.

No node uses this yet: gates will.
"""

from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Final, TypeAlias

import msgspec

from talka.cluster.effects import Lane, Send
from talka.cluster.membership.local_health import LocalHealth
from talka.cluster.membership.presets import MembershipConfig
from talka.errors import Invalid
from talka.units import NEVER
from talka.wire.membership import CHANNEL, MembershipMessage, MemberState, PeerAddress, WatchGroup, WatchReply

TARGETS_LIMIT: Final = 256


class GroupMemberReachable(msgspec.Struct, frozen=True):
    """It answers, in this life of it. Told again when another life answers."""

    group: str
    name: str
    boot: int


class GroupMemberUnreachable(msgspec.Struct, frozen=True):
    """Several watches in a row stayed unanswered. Whether it is dead, its own group knows."""

    group: str
    name: str
    boot: int
    """0 when it never answered."""


class GroupStateLearned(msgspec.Struct, frozen=True):
    group: str
    name: str
    version: int
    payload: bytes


FederationNews: TypeAlias = GroupMemberReachable | GroupMemberUnreachable | GroupStateLearned
FederationEffect: TypeAlias = Send[MembershipMessage] | FederationNews


class Target:
    """One watched member."""

    __slots__ = (
        "address",
        "answered",
        "asked",
        "boot",
        "group",
        "living",
        "misses",
        "name",
        "peers",
        "reachable",
        "state",
    )

    def __init__(self, group: str, name: str, address: str) -> None:
        self.group = group
        self.name = name
        self.address = address
        self.boot = 0
        self.reachable: bool | None = None
        """None until the first news of it."""
        self.asked = 0
        """The sequence of the last watch; `answered` is that of the last reply."""
        self.answered = 0
        self.misses = 0
        self.state: MemberState | None = None
        self.living = 0
        """Members its group has, as it last said; `peers` are some of them."""
        self.peers: list[PeerAddress] = []


class FederatedProber:
    """Asks each target once per interval. Call `tick` once `next_tick_at` has come, `on_reply` for every reply."""

    __slots__ = ("_config", "_due", "_health", "_order", "_rng", "_sequence", "_targets", "next_tick_at")

    def __init__(self, *, config: MembershipConfig, health: LocalHealth, rng: Random) -> None:
        self._config = config
        self._health = health
        """That of this member's own group: it is told there how late this member is."""
        self._rng = rng
        self._sequence = 0
        self._order = count()
        self._targets: dict[tuple[str, str], Target] = {}
        self._due: list[tuple[int, int, Target]] = []
        self.next_tick_at = NEVER

    def watch(self, now: int, group: str, name: str, address: str) -> None:
        """Watch this member from now on, or at another address than before."""
        target = self._targets.get((group, name))
        if target is not None:
            target.address = address
            return
        if len(self._targets) >= TARGETS_LIMIT:
            raise Invalid(f"{name} of {group} cannot be watched: one member watches at most {TARGETS_LIMIT} others")
        target = self._targets[group, name] = Target(group, name, address)
        self._wait(now + int(self._rng.random() * self._config.probe_interval_ns), target)

    def forget(self, group: str, name: str) -> None:
        # Its entry among the due is dropped when its time comes.
        self._targets.pop((group, name), None)

    def targets(self) -> list[Target]:
        """To be read, not changed."""
        return list(self._targets.values())

    def tick(self, now: int) -> list[FederationEffect]:
        out: list[FederationEffect] = []
        due = self._due
        while due and due[0][0] <= now:
            target = heappop(due)[2]
            if self._targets.get((target.group, target.name)) is not target:
                continue
            self._judge(now, target, out)
            self._sequence += 1
            target.asked = self._sequence
            # After a miss the stream is tried: datagrams alone may be blocked.
            stream = target.misses % 2 == 1
            lane = Lane.STREAM if stream else Lane.DATAGRAM
            out.append(Send(CHANNEL, target.address, WatchGroup(self._sequence, target.name, stream), lane, []))
            self._wait(now + self._config.probe_interval_ns * self._health.multiplier, target)
        self.next_tick_at = due[0][0] if due else NEVER
        return out

    def on_reply(
        self, now: int, group: str, sender: str, sender_boot: int, reply: WatchReply
    ) -> list[FederationEffect]:
        """A reply to any watch since the last one answered counts: between sites it may come after the next was
        sent."""
        out: list[FederationEffect] = []
        target = self._targets.get((group, sender))
        if target is None or not target.answered < reply.sequence <= target.asked:
            return out
        target.answered = reply.sequence
        target.misses = 0
        target.living = reply.living
        target.peers = reply.peers
        if target.boot != sender_boot:
            target.boot = sender_boot
            target.state = None
            target.reachable = None
        if not target.reachable:
            target.reachable = True
            out.append(GroupMemberReachable(group, sender, sender_boot))
        state = reply.state
        if state is not None and (target.state is None or state.version > target.state.version):
            target.state = state
            out.append(GroupStateLearned(group, sender, state.version, state.payload))
        return out

    def _judge(self, now: int, target: Target, out: list[FederationEffect]) -> None:
        # Late itself, this member may have the reply in its socket.
        if target.asked <= target.answered or self._health.gate_closed(now):
            return
        target.misses += 1
        if target.misses >= self._config.suspicion_multiplier and target.reachable is not False:
            target.reachable = False
            out.append(GroupMemberUnreachable(target.group, target.name, target.boot))

    def _wait(self, until: int, target: Target) -> None:
        heappush(self._due, (until, next(self._order), target))
        if until < self.next_tick_at:
            self.next_tick_at = until
