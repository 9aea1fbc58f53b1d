from collections import deque
from collections.abc import Mapping
from random import Random

import msgspec
import pytest

from talka.cluster.effects import Lane, Persist, Send, Transmit
from talka.cluster.fencing import Token
from talka.cluster.leadership.election_timeouts import CLEARLY
from talka.cluster.leadership.news import Elected, LeaderChanged, SteppedDown, WriteEnded
from talka.cluster.leadership.timings import LAN
from talka.cluster.leases import LeaseGranted, LeaseLost
from talka.cluster.membership.local_health import Degradation
from talka.cluster.membership.membership import Membership
from talka.cluster.membership.news import MemberJoined, MemberLost
from talka.cluster.membership.presets import PRESETS
from talka.control.member.announcement import Announcement, announcement_in
from talka.control.member.composite import ADDRESSES_LIMIT, ClusterMember
from talka.control.member.owner import Owner
from talka.control.member.receiver import Applied, Receiver
from talka.control.member.replay_guard import ReplayGuard
from talka.control.member.three_signals import MemberDoubted
from talka.control.member.voter import CommandEnded, Voter
from talka.units import MILLISECOND, NEVER, SECOND
from talka.wire import leadership, leases, membership
from talka.wire.condition import NodeCondition
from talka.wire.leadership import Heartbeat, LeadershipMessage, PreVote, Version, VoterWelcome
from talka.wire.leases import (
    CHANNEL,
    AcquireLease,
    CommandAnswer,
    LeaseAnswer,
    LeaseCommand,
    LeaseMessage,
    ReleaseLease,
)
from talka.wire.membership import Alive, Dead, Gossip, MembershipMessage, MemberUpdate, Ping, WatchGroup, WatchReply
from talka.wire.packets import Packet, decode_packet

TTL = 4 * SECOND
VOTERS = ("a", "b", "c")
CONFIG = PRESETS["default"]
TOKEN = (0, 9, 1)
NEVER_WRITTEN = Version(0, 0)
VOTER_LEASE = LAN.voter_lease_ns()
Conversation = MembershipMessage | LeadershipMessage | LeaseMessage
GOSSIP = msgspec.msgpack.encode(Gossip())
CODECS = {membership.CHANNEL.number: membership, leadership.CHANNEL.number: leadership, leases.CHANNEL.number: leases}


def member_of(
    name: str,
    *,
    group: str = "g",
    voters: tuple[str, ...] = VOTERS,
    has_membership: bool = False,
    has_voter: bool = False,
    has_receiver: bool = False,
    has_owner: bool = False,
    seeds: tuple[str, ...] = (),
    stored: Mapping[str, bytes] | None = None,
    addresses: Mapping[str, str] | None = None,
    watchers: tuple[str, ...] = (),
    now: int = 0,
    seed: int = 1,
    addresses_limit: int = ADDRESSES_LIMIT,
) -> ClusterMember:
    stored = stored or {}
    member = ClusterMember(
        group=group,
        name=name,
        boot=seed,
        membership=Membership(
            name=name, boot=seed, address=f"at-{name}", group=group, config=CONFIG, rng=Random(seed), now=now
        )
        if has_membership
        else None,
        voter=Voter(name=name, voters=voters, stored=stored, rng=Random(seed), now=now) if has_voter else None,
        receiver=Receiver(stored) if has_receiver else None,
        owner=Owner(voters=voters, rng=Random(seed)) if has_owner else None,
        seeds=seeds,
        watchers=watchers,
        addresses_limit=addresses_limit,
    )
    for known, address in (addresses or {}).items():
        member.note_address(known, address)
    return member


class Peer:
    """Somebody who speaks with a member over the wire."""

    def __init__(self, name: str, *, group: str = "g", boot: int = 77) -> None:
        self.replay_guard = ReplayGuard(group=group, name=name, boot=boot)
        self.source = f"from-{name}"

    def frame(self, message: Conversation, updates: tuple[MemberUpdate, ...] = ()) -> bytes:
        channel = next(
            number
            for number, codec in CODECS.items()
            if type(message).__module__.endswith(codec.__name__.split(".")[-1])
        )
        return self.replay_guard.wrap(
            channel, msgspec.msgpack.encode(message), [membership.encode_update(update) for update in updates]
        )

    def say(
        self, member: ClusterMember, now: int, message: Conversation, *updates: MemberUpdate, age_ns: int = 0
    ) -> list[object]:
        return member.on_frame(now, self.source, self.frame(message, updates), Lane.STREAM, age_ns)


def said(effects: list[object]) -> list[tuple[str, object]]:
    """What frames of these effects say, with where they go."""
    result: list[tuple[str, object]] = []
    for effect in effects:
        if isinstance(effect, Transmit):
            packet = decode_packet(effect.frame)
            result.append((effect.to, CODECS[packet.channel].decode(packet.body)))
    return result


class Cluster:
    """Members with an instant network and disks that write at once."""

    def __init__(self, *members: ClusterMember) -> None:
        self.now = 0
        self.members = {f"at-{member.name}": member for member in members}
        self.news: list[tuple[str, object]] = []
        self._frames: deque[tuple[str, str, Transmit]] = deque()
        for address, member in self.members.items():
            self.carry_out(address, member.start(0))

    def carry_out(self, address: str, effects: list[object]) -> None:
        todo = deque(effects)
        while todo:
            effect = todo.popleft()
            if isinstance(effect, Transmit):
                self._frames.append((address, effect.to, effect))
            elif isinstance(effect, Persist):
                todo.extend(self.members[address].on_persisted(self.now, effect.ticket))
            else:
                self.news.append((self.members[address].name, effect))

    def settle(self) -> None:
        while self._frames:
            source, to, sent = self._frames.popleft()
            if to in self.members:
                self.carry_out(to, self.members[to].on_frame(self.now, source, sent.frame, sent.lane, 0))

    def run(self, until: int) -> None:
        self.settle()
        while True:
            address = min(self.members, key=lambda address: self.members[address].next_tick_at)
            if self.members[address].next_tick_at > until:
                break
            self.now = max(self.now, self.members[address].next_tick_at)
            self.carry_out(address, self.members[address].tick(self.now))
            self.settle()
        self.now = until

    def leader(self) -> ClusterMember:
        for _ in range(200):
            for member in self.members.values():
                if member.voter is not None and member.voter.election.is_leading(self.now):
                    return member
            self.run(self.now + 50 * MILLISECOND)
        raise AssertionError("nobody leads")

    def of(self, kind: type[object], name: str | None = None) -> list[object]:
        return [news for who, news in self.news if isinstance(news, kind) and name in (None, who)]


def cluster_of(*, has_membership: bool = False) -> Cluster:
    addresses = {name: f"at-{name}" for name in (*VOTERS, "x")}
    voters = [
        member_of(
            name,
            has_voter=True,
            has_membership=has_membership,
            addresses=addresses,
            seeds=tuple(addresses.values()),
            seed=seed,
        )
        for seed, name in enumerate(VOTERS, 1)
    ]
    return Cluster(*voters, member_of("x", has_owner=True, has_receiver=True, addresses=addresses, seed=9))


def follower_of_a(*, has_met_peers: bool = True) -> tuple[ClusterMember, int, dict[str, Peer]]:
    """Voter b, which has just become active and follows a; the time; and its peers."""
    member = member_of("b", has_voter=True, has_membership=True)
    peers = {name: Peer(name) for name in ("a", "c")}
    persists = [effect for effect in member.start(0) if isinstance(effect, Persist)]
    for persist in persists:
        member.on_persisted(0, persist.ticket)
    assert member.voter is not None
    now = LAN.hello_ns
    assert any(isinstance(message, leadership.VoterHello) for _, message in said(member.tick(now)))
    for peer in peers.values():
        peer.say(member, now, VoterWelcome(0, 0, 0, 0, NEVER_WRITTEN, 0))
    while member.voter.election.phase.value == "syncing":
        now = max(now, member.next_tick_at)
        for effect in member.tick(now):
            if isinstance(effect, Persist):
                member.on_persisted(now, effect.ticket)
    if has_met_peers:
        peers["c"].say(member, now, Gossip(), Alive("c", 77, 0, "at-c"), Alive("a", 77, 0, "at-a"))
    for effect in peers["a"].say(member, now, Heartbeat(1, 1, 0)):
        if isinstance(effect, Persist):
            member.on_persisted(now, effect.ticket)
    assert member.voter.election.leader == "a"
    return member, now, peers


# -- what comes in


def test_a_member_without_a_part_ignores_what_is_for_it() -> None:
    member = member_of("n")
    peer = Peer("a")

    assert member.start(0) == []
    assert member.next_tick_at == NEVER
    assert member.tick(0) == []
    messages: list[Conversation] = [
        Gossip(),
        Heartbeat(1, 1, 0),
        AcquireLease("k", 1, 0, TTL),
        ReleaseLease("k", 1),
        LeaseAnswer("k", 1, "busy"),
        LeaseCommand(TOKEN, 1, b""),
        CommandAnswer(1, False, TOKEN),
        WatchGroup(1, "n"),
        WatchReply(1, "a", 77, 1),
    ]
    for message in messages:
        assert peer.say(member, 0, message) == []
    assert (member.frames_admitted, member.replay_guard.refused) == (len(messages), {})


# -- where frames go


def test_of_too_many_addresses_the_one_known_longest_is_forgotten() -> None:
    member = member_of("b", has_voter=True, addresses_limit=2)
    assert member.voter is not None
    peers = {name: Peer(name) for name in ("x", "y", "z")}
    for name in ("x", "y", "x", "z"):  # speaking again makes nobody known for shorter
        peers[name].say(member, 0, ReleaseLease("k", 1))

    replies: list[object] = [Send(CHANNEL, name, LeaseAnswer("k", 1, "busy"), Lane.CONTROL) for name in peers]

    assert [to for to, _ in said(member.act(0, replies))] == ["x", "from-y", "from-z"]


def test_an_answer_goes_to_where_the_question_came_from() -> None:
    member = member_of("b", has_voter=True)

    ((to, answer),) = said(Peer("x").say(member, 0, AcquireLease("k", 3, 0, TTL)))

    assert to == "from-x"
    assert answer == LeaseAnswer("k", 3, "elsewhere")


def test_a_peer_of_no_known_address_is_sent_to_by_its_name() -> None:
    member = member_of("x", has_owner=True, voters=("a",))
    assert member.owner is not None

    ((to, _),) = said(member.act(0, member.owner.want(0, "k", TTL)))

    assert to == "a"


def test_a_peer_is_sent_to_where_membership_says_it_is() -> None:
    member = member_of("x", has_owner=True, has_membership=True, voters=("a",))
    assert member.owner is not None
    news = Peer("c").say(member, 0, Gossip(), Alive("a", 77, 0, "at-a"), Alive("c", 77, 0, "at-c"))
    assert MemberJoined("a", 77, "at-a") in news

    ((to, _),) = said(member.act(0, member.owner.want(0, "k", TTL)))

    assert to == "at-a"


def test_votes_and_leases_travel_on_the_lane_that_is_never_shed() -> None:
    member = member_of("b", has_voter=True, has_owner=True)
    assert member.owner is not None
    effects = [*member.start(0), *member.act(0, member.owner.want(0, "k", TTL))]
    for effect in effects:
        if isinstance(effect, Persist):
            effects += member.on_persisted(0, effect.ticket)

    lanes = [effect.lane for effect in effects if isinstance(effect, Transmit)]

    assert len(lanes) >= 3
    assert set(lanes) == {Lane.CONTROL}


def test_every_peer_gets_a_frame_of_its_own_of_what_is_said_to_all() -> None:
    member = member_of("b", has_voter=True)
    (persist,) = [effect for effect in member.start(0) if isinstance(effect, Persist)]

    frames = [effect.frame for effect in member.on_persisted(0, persist.ticket) if isinstance(effect, Transmit)]

    packets: list[Packet] = [decode_packet(frame) for frame in frames]
    assert [packet.counter for packet in packets] == [1, 2]
    assert bytes(packets[0].body) == bytes(packets[1].body)


# -- tickets


def test_tickets_of_voter_and_receiver_are_kept_apart() -> None:
    member = member_of("b", has_voter=True, has_receiver=True)
    (of_voter,) = [effect for effect in member.start(0) if isinstance(effect, Persist)]
    (of_receiver,) = Peer("a").say(member, 0, LeaseCommand(TOKEN, 1, b"work"))
    assert isinstance(of_receiver, Persist)
    assert of_voter.ticket < of_receiver.ticket

    greetings = said(member.on_persisted(0, of_voter.ticket))
    assert [type(message) for _, message in greetings] == [leadership.VoterHello, leadership.VoterHello]

    effects = member.on_persisted(0, of_receiver.ticket)
    assert [effect.body for effect in effects if isinstance(effect, Applied)] == [b"work"]
    assert said(effects) == [("from-a", CommandAnswer(1, True, TOKEN))]


def test_a_receiver_alone_keeps_what_it_has_seen_over_a_restart() -> None:
    member = member_of("w", has_receiver=True)
    (persist,) = Peer("a").say(member, 0, LeaseCommand(TOKEN, 1, b"work"))
    assert isinstance(persist, Persist)
    assert any(isinstance(effect, Applied) for effect in member.on_persisted(0, persist.ticket))

    restarted = member_of("w", has_receiver=True, stored={key: value for key, value in persist.puts if value})

    assert said(Peer("a").say(restarted, 0, LeaseCommand((0, 8, 1), 2, b"late"))) == [
        ("from-a", CommandAnswer(2, False, TOKEN))
    ]


def test_a_ticket_is_answered_once_and_another_answer_is_a_mistake_of_the_shell() -> None:
    voter = member_of("b", has_voter=True)
    (persist,) = [effect for effect in voter.tick(0) if isinstance(effect, Persist)]
    voter.on_persisted(0, persist.ticket)

    with pytest.raises(KeyError):
        voter.on_persisted(0, persist.ticket)


# -- the parts together


def test_members_elect_a_leader_and_an_owner_gets_its_key_from_it() -> None:
    cluster = cluster_of()
    leader = cluster.leader()
    owner = cluster.members["at-x"]
    assert owner.owner is not None

    cluster.carry_out("at-x", owner.act(cluster.now, owner.owner.want(cluster.now, "k", TTL)))
    cluster.run(cluster.now + SECOND)

    assert owner.owner.holds(cluster.now, "k") == 1
    assert [news for news in cluster.of(LeaseGranted) if isinstance(news, LeaseGranted) and news.key == "k"]
    cluster.run(cluster.now + 3 * TTL)
    assert owner.owner.holds(cluster.now, "k") == 1, "it is renewed in time"
    assert cluster.of(LeaseLost) == []
    assert leader.voter is not None
    assert leader.voter.leases.holder(cluster.now, "k") is not None

    cluster.carry_out("at-x", owner.act(cluster.now, owner.owner.unwant(cluster.now, "k")))
    cluster.settle()
    assert leader.voter.leases.holder(cluster.now, "k") is None


def test_a_leader_commands_a_receiver_and_is_told_what_became_of_it() -> None:
    cluster = cluster_of()
    leader = cluster.leader()
    assert leader.voter is not None

    cluster.carry_out(f"at-{leader.name}", leader.act(cluster.now, leader.voter.command(cluster.now, "x", 1, b"work")))
    cluster.settle()
    (applied,) = cluster.of(Applied)
    assert isinstance(applied, Applied)
    token = leader.voter.token
    assert token is not None
    assert (applied.sender, applied.token, applied.body) == (leader.name, token, b"work")
    assert cluster.of(CommandEnded) == [CommandEnded("x", 1, True, token)]

    receiver = cluster.members["at-x"]
    cluster.carry_out("at-x", Peer("z").say(receiver, cluster.now, LeaseCommand((0, 50, 1), 9, b"later")))
    cluster.carry_out(f"at-{leader.name}", leader.act(cluster.now, leader.voter.command(cluster.now, "x", 2, b"more")))
    cluster.settle()

    assert [news.body for news in cluster.of(Applied) if isinstance(news, Applied)] == [b"work", b"later"]
    assert cluster.of(CommandEnded, leader.name)[1:] == [CommandEnded("x", 2, False, Token(0, 50, 1))]
    assert leader.voter.election.is_leading(cluster.now), "who leads is for voters to say"
    assert cluster.of(SteppedDown) == []


def test_what_a_caller_asks_of_a_part_is_carried_out_like_everything_else() -> None:
    cluster = cluster_of()
    leader = cluster.leader()
    assert leader.voter is not None

    cluster.carry_out(
        f"at-{leader.name}", leader.act(cluster.now, leader.voter.write(cluster.now, 1, "job/1", b"value"))
    )
    cluster.settle()

    assert [news.outcome for news in cluster.of(WriteEnded) if isinstance(news, WriteEnded)] == ["accepted"]


def test_a_member_asks_for_its_next_tick_when_its_first_part_does() -> None:
    member = member_of("b", has_membership=True, has_voter=True, has_owner=True)
    member.start(0)
    assert member.membership is not None and member.voter is not None and member.owner is not None

    parts = [member.membership.next_tick_at, member.voter.next_tick_at, member.owner.next_tick_at]
    assert member.next_tick_at == min(parts)

    member.act(0, member.owner.want(0, "k", TTL))
    for _ in range(50):
        parts = [member.membership.next_tick_at, member.voter.next_tick_at, member.owner.next_tick_at]
        assert member.next_tick_at == min(parts)
        member.tick(member.next_tick_at)


def test_a_member_joins_through_its_seeds() -> None:
    cluster = Cluster(
        member_of("a", has_membership=True, seed=1), member_of("b", has_membership=True, seeds=("at-a",), seed=2)
    )

    cluster.settle()

    assert cluster.of(MemberJoined, "a") == [MemberJoined("b", 2, "at-b")]
    assert cluster.of(MemberJoined, "b") == [MemberJoined("a", 1, "at-a")]


# -- news from one part to another


def asks_at(member: ClusterMember, now: int) -> int:
    """When the member asks the other voters whether they would vote for it."""
    while True:
        now = max(now, member.next_tick_at)
        if any(isinstance(message, PreVote) for _, message in said(member.tick(now))):
            return now


def test_a_leader_found_dead_by_membership_is_asked_about_sooner() -> None:
    told, now, peers = follower_of_a()
    untold, _, _ = follower_of_a()

    effects = peers["c"].say(told, now, Gossip(), Dead("a", 77, 0, "c", "no answer"))

    assert [effect.name for effect in effects if isinstance(effect, MemberLost)] == ["a"]
    assert asks_at(told, now) == now + VOTER_LEASE, "a lease that it answered itself it waits out"
    assert asks_at(untold, now) > now + VOTER_LEASE


def test_the_death_of_one_who_does_not_lead_hurries_nobody() -> None:
    told, now, peers = follower_of_a()

    effects = peers["a"].say(told, now, Gossip(), Dead("c", 77, 0, "a", "no answer"))

    assert [effect.name for effect in effects if isinstance(effect, MemberLost)] == ["c"]
    assert asks_at(told, now) > now + VOTER_LEASE


def test_a_member_without_a_vote_bears_the_death_of_others() -> None:
    member = member_of("x", has_membership=True)
    peer = Peer("c")
    peer.say(member, 0, Gossip(), Alive("a", 77, 0, "at-a"), Alive("c", 77, 0, "at-c"))

    effects = peer.say(member, 0, Gossip(), Dead("a", 77, 0, "c", "no answer"))

    assert [effect.name for effect in effects if isinstance(effect, MemberLost)] == ["a"]
    assert member.tick(member.next_tick_at) != []


def test_a_member_that_doubts_itself_stands_later() -> None:
    waits = []
    for age_ns in (0, CONFIG.lag_limit_ns + 1):
        member, now, peers = follower_of_a(has_met_peers=False)
        for number in range(2, 12):
            now += CONFIG.probe_interval_ns
            while member.next_tick_at <= now:
                member.tick(member.next_tick_at)
            peers["a"].say(member, now, Heartbeat(1, number, 0))
            peers["c"].say(member, now, Gossip(), age_ns=age_ns)
        waits.append(asks_at(member, now) - now)

    well_ns, unwell_ns = waits
    assert well_ns <= LAN.lease_ns * 3 // 2 < unwell_ns


def test_a_member_at_critical_health_hands_leadership_over() -> None:
    cluster = cluster_of(has_membership=True)
    leader = cluster.leader()
    cluster.run(cluster.now + SECOND)
    assert leader.voter is not None and leader.membership is not None
    assert leader.voter.election.is_leading(cluster.now)

    # Datagrams waited for more than four probe intervals before they were handled.
    peer, late = Peer("z"), 4 * CONFIG.probe_interval_ns + 1
    before = len(cluster.news)
    for _ in range(10 * CLEARLY):  # a probe that is answered meanwhile lowers the score again
        peer.say(leader, cluster.now, Gossip(), age_ns=late)
        assert leader.membership.health.level.must_not_lead
        is_clear = leader.membership.health.score >= CLEARLY
        cluster.run(cluster.now + CONFIG.probe_interval_ns)
        if cluster.of(SteppedDown):
            assert is_clear, "once is no reason"
            break
    cluster.run(cluster.now + 800 * MILLISECOND)

    assert [news.reason for _, news in cluster.news[before:] if isinstance(news, SteppedDown)] == ["handed over"]
    successors = [name for name, news in cluster.news[before:] if isinstance(news, Elected)]
    assert len(successors) == 1 and successors != [leader.name]


def announcing(said: list[NodeCondition]) -> ClusterMember:
    """A member that tells how its part does: the first of these, for as long as it is there."""
    return ClusterMember(
        group="g",
        name="a",
        boot=1,
        membership=Membership(name="a", boot=1, address="at-a", group="g", config=CONFIG, rng=Random(1), now=0),
        announced=lambda now: (said[0], "active"),
    )


def ticked(member: ClusterMember, until: int) -> list[object]:
    effects: list[object] = []
    while member.next_tick_at <= until:
        effects += member.tick(member.next_tick_at)
    return effects


def told_by(member: ClusterMember) -> Announcement:
    assert member.membership is not None and member.membership.state is not None
    found = announcement_in(member.membership.state)
    assert found is not None
    return found


def test_a_member_tells_how_its_part_does_and_how_it_does_itself() -> None:
    said = [NodeCondition(8, 8)]
    member = announcing(said)
    ticked(member, 2 * SECOND)
    assert (told_by(member).condition, told_by(member).phase) == (NodeCondition(8, 8), "active")

    said[0] = NodeCondition(8, 7)
    assert member.membership is not None
    member.membership.health.score = 8
    ticked(member, member.next_tick_at + 9 * SECOND)

    assert told_by(member).condition == NodeCondition(8, 7, health=int(Degradation.CRITICAL))


def test_a_member_at_rest_tells_nothing_new() -> None:
    member = announcing([NodeCondition(8, 8, cpu_percent=3)])
    ticked(member, 2 * SECOND)
    assert member.membership is not None and member.membership.state is not None
    version = member.membership.state.version

    ticked(member, 300 * SECOND)

    assert member.membership.state.version == version


def test_one_that_is_doubted_is_asked_out_of_its_turn() -> None:
    member = announcing([NodeCondition()])
    for number in range(8):
        Peer(f"p{number}").say(member, 0, Gossip(), Alive(f"p{number}", 77, 0, f"at-p{number}"))

    member.act(0, [MemberDoubted("p5")])
    pings = [to for to, word in said(ticked(member, CONFIG.probe_interval_ns)) if isinstance(word, Ping)]

    assert pings[0] == "at-p5"
    no_view = member_of("a", has_voter=True)
    assert no_view.act(0, [MemberDoubted("p5")]) == [MemberDoubted("p5")]


def test_a_leader_that_is_well_goes_on_leading() -> None:
    cluster = cluster_of(has_membership=True)
    leader = cluster.leader()

    cluster.run(cluster.now + 20 * SECOND)

    assert cluster.leader() is leader
    assert cluster.of(SteppedDown) == []
    assert [news.leader for news in cluster.of(LeaderChanged, "a") if isinstance(news, LeaderChanged)] == [leader.name]


def test_a_member_that_leads_grants_to_its_own_owner_and_commands_its_own_receiver() -> None:
    member = member_of("a", voters=("a",), has_voter=True, has_owner=True, has_receiver=True)
    cluster = Cluster(member)
    cluster.leader()
    assert member.voter is not None and member.owner is not None

    cluster.carry_out("at-a", member.act(cluster.now, member.owner.want(cluster.now, "k", TTL)))
    cluster.carry_out("at-a", member.act(cluster.now, member.voter.command(cluster.now, "a", 1, b"work")))
    cluster.run(cluster.now + SECOND)

    assert member.owner.holds(cluster.now, "k") == 1
    assert [news.body for news in cluster.of(Applied) if isinstance(news, Applied)] == [b"work"]
    assert member.replay_guard.refused == {}
