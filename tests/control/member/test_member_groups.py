"""Members of one group that watch those of another."""

from random import Random

import msgspec

from talka.cluster.effects import Lane, Transmit
from talka.cluster.membership.federation import (
    FederatedProber,
    GroupMemberReachable,
    GroupMemberUnreachable,
    GroupStateLearned,
)
from talka.cluster.membership.local_health import LocalHealth
from talka.cluster.membership.membership import Membership
from talka.cluster.membership.presets import PRESETS
from talka.cluster.safeguards import ALL
from talka.control.member.composite import ClusterMember
from talka.control.member.owner import Owner
from talka.control.member.receiver import Receiver
from talka.control.member.replay_guard import ReplayGuard
from talka.control.member.voter import Voter
from talka.units import MILLISECOND, SECOND
from talka.wire import leadership, leases, membership
from talka.wire.leadership import Heartbeat
from talka.wire.leases import LeaseCommand
from talka.wire.membership import MemberState, Ping, WatchGroup, WatchReply
from talka.wire.packets import decode_packet

VOTERS = ("a", "b", "c")
CONFIG = PRESETS["default"]
BOOT = 5


def membership_of(name: str, group: str) -> Membership:
    return Membership(name=name, boot=BOOT, address=f"at-{name}", group=group, config=CONFIG, rng=Random(BOOT), now=0)


def watched_member() -> ClusterMember:
    """Member b of group g, which has parts that watchers must not reach."""
    return ClusterMember(
        group="g",
        name="b",
        boot=BOOT,
        membership=membership_of("b", "g"),
        voter=Voter(name="b", voters=VOTERS, stored={}, rng=Random(1), now=0),
        receiver=Receiver({}),
        watchers=("h",),
    )


def watcher_of_b(*, has_membership: bool = False, has_owner: bool = False) -> ClusterMember:
    """Gate w of group h, which watches b of group g."""
    members = membership_of("w", "h") if has_membership else None
    health = LocalHealth(CONFIG, ALL) if members is None else members.health
    gate = ClusterMember(
        group="h",
        name="w",
        boot=1,
        membership=members,
        prober=FederatedProber(config=CONFIG, health=health, rng=Random(1)),
        owner=Owner(voters=VOTERS, rng=Random(1)) if has_owner else None,
        watchers=("g",),
    )
    assert gate.prober is not None
    gate.prober.watch(0, "g", "b", "at-b")
    gate.start(0)
    return gate


class Peer:
    """Somebody who speaks with a member over the wire."""

    def __init__(self, name: str, *, group: str, boot: int = 77) -> None:
        self.replay_guard = ReplayGuard(group=group, name=name, boot=boot)
        self.source = f"from-{name}"

    def say(self, member: ClusterMember, now: int, channel: int, message: object, *, age_ns: int = 0) -> list[object]:
        frame = self.replay_guard.wrap(channel, msgspec.msgpack.encode(message))
        return member.on_frame(now, self.source, frame, Lane.STREAM, age_ns)

    def reply(self, member: ClusterMember, now: int, reply: WatchReply, *, age_ns: int = 0) -> list[object]:
        return self.say(member, now, membership.CHANNEL.number, reply, age_ns=age_ns)


def said(effects: list[object]) -> list[tuple[str, object]]:
    """What the membership frames of these effects say, with where they go."""
    return [
        (effect.to, membership.decode(decode_packet(effect.frame).body))
        for effect in effects
        if isinstance(effect, Transmit)
    ]


def test_a_watcher_of_another_group_may_ask_and_say_nothing_else() -> None:
    member = watched_member()
    watcher = Peer("w", group="h")

    ((to, reply),) = said(watcher.say(member, 0, membership.CHANNEL.number, WatchGroup(5, "b")))
    assert to == watcher.source
    assert isinstance(reply, WatchReply) and (reply.sequence, reply.name) == (5, "b")
    assert watcher.reply(member, 0, WatchReply(5, "w", 77, 1)) == []
    assert member.replay_guard.refused == {}

    assert watcher.say(member, 0, membership.CHANNEL.number, Ping(1, "b", 1)) == []
    assert watcher.say(member, 0, leadership.CHANNEL.number, Heartbeat(1, 1, 0)) == []
    assert watcher.say(member, 0, leases.CHANNEL.number, LeaseCommand((0, 9, 1), 1, b"")) == []
    assert member.replay_guard.refused == {"group": 3}


def test_a_member_asks_those_it_watches_when_its_prober_wants_to() -> None:
    gate = watcher_of_b()
    assert gate.prober is not None
    at = gate.next_tick_at
    assert at == gate.prober.next_tick_at <= CONFIG.probe_interval_ns

    assert gate.tick(at - 1) == []
    effects = gate.tick(at)

    assert said(effects) == [("at-b", WatchGroup(1, "b"))]
    assert [effect.lane for effect in effects if isinstance(effect, Transmit)] == [Lane.DATAGRAM]
    assert gate.next_tick_at == gate.prober.next_tick_at == at + CONFIG.probe_interval_ns


def test_a_member_asks_for_its_next_tick_also_for_what_it_watches() -> None:
    gate = watcher_of_b(has_membership=True, has_owner=True)
    assert gate.prober is not None and gate.membership is not None
    firsts = set()

    for _ in range(50):
        parts = {"prober": gate.prober.next_tick_at, "membership": gate.membership.next_tick_at}
        assert gate.next_tick_at == min(parts.values())
        firsts.add(min(parts, key=parts.__getitem__))
        gate.tick(gate.next_tick_at)

    assert sorted(firsts) == ["membership", "prober"]


def test_a_reply_to_a_watch_reaches_the_prober_with_the_group_and_life_of_who_replied() -> None:
    gate = watcher_of_b(has_membership=True)
    assert gate.prober is not None
    at = gate.prober.next_tick_at
    gate.tick(at)
    peer = Peer("b", group="g", boot=5)
    reply = WatchReply(1, "b", 5, 3, MemberState(2, b"load"))

    assert Peer("b", group="h").reply(gate, at, reply) == [], "it is of another group than the one watched"
    assert Peer("c", group="g").reply(gate, at, reply) == [], "nobody watches it"
    assert peer.reply(gate, at, reply) == [
        GroupMemberReachable("g", "b", 5),
        GroupStateLearned("g", "b", 2, b"load"),
    ]
    assert peer.reply(gate, at, reply) == [], "it is answered"
    assert gate.replay_guard.refused == {}


def test_a_reply_that_waited_for_long_shows_that_the_watcher_itself_is_late() -> None:
    gate = watcher_of_b(has_membership=True)
    assert gate.prober is not None and gate.membership is not None
    at = gate.prober.next_tick_at
    gate.tick(at)
    peer = Peer("b", group="g")
    assert gate.membership.health.score == 0

    peer.reply(gate, at, WatchReply(1, "b", 77, 1), age_ns=CONFIG.lag_limit_ns)
    assert not gate.membership.health.gate_closed(at)

    peer.reply(gate, at, WatchReply(1, "b", 77, 1), age_ns=CONFIG.lag_limit_ns + 1)
    assert gate.membership.health.gate_closed(at)
    assert gate.membership.health.score == 1


def test_two_groups_watch_each_other_through_their_members() -> None:
    gate = watcher_of_b()
    watched = ClusterMember(group="g", name="b", boot=BOOT, membership=membership_of("b", "g"), watchers=("h",))
    watched.start(0)
    news: list[object] = []

    def run(since: int, until: int, *, is_up: bool) -> None:
        for now in range(since, until, 10 * MILLISECOND):
            for effect in gate.tick(now):
                if not isinstance(effect, Transmit):
                    news.append(effect)
                elif is_up:
                    for answer in watched.on_frame(now, "at-w", effect.frame, effect.lane, 0):
                        assert isinstance(answer, Transmit), "to watch is not to join"
                        assert answer.to == "at-w"
                        news.extend(gate.on_frame(now, "at-b", answer.frame, answer.lane, 0))

    run(0, SECOND, is_up=True)
    assert news == [GroupMemberReachable("g", "b", BOOT)]
    assert watched.replay_guard.refused == gate.replay_guard.refused == {}

    run(SECOND, 11 * SECOND, is_up=False)
    assert news[1:] == [GroupMemberUnreachable("g", "b", BOOT)]
