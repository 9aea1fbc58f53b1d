"""Keys reach every member, whatever is lost or overtaken, and none is retired that somebody needs."""

from collections.abc import Iterable
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.effects import Lane, Send, Transmit
from talka.cluster.leadership.news import LeadershipAlarm
from talka.cluster.membership.members import ALIVE, DEAD, LEFT
from talka.cluster.membership.membership import Membership
from talka.cluster.membership.news import StateLearned
from talka.cluster.membership.presets import PRESETS
from talka.control.member.admission import Admission, RingChanged, Welcomed
from talka.control.member.announcement import Announcement, standing_of
from talka.control.member.composite import ClusterMember
from talka.control.member.key_distribution import (
    AGAIN_LIMIT,
    AGAIN_NS,
    KeyDistribution,
    NotConfirmed,
    _some,
)
from talka.control.member.life_proofs import ArrivedPacket
from talka.control.member.replay_guard import ReplayGuard
from talka.control.member.ring_guard import KEPT_LIMIT, RingGuard
from talka.units import SECOND
from talka.wire import greeting
from talka.wire.greeting import Self, ShareRing
from talka.wire.membership import Alive, Gossip, MemberState, encode_update
from talka.wire.packets import PROTOCOL, Packet
from talka.wire.security.keys import JUMP_LIMIT, Keyring, decode_ring, encode_ring, key_id
from talka.wire.security.roles import Proven, Role
from talka.wire.security.sealing import Seal

NAMES = ("a", "b", "c", "d", "e")
OLD = "kD7wq2Zr-9xMvB4tYpLs8HnGfJc3RaEu"
NEW = "Vb5nXz1Qm_Ke6WtSy0UhDgLr7AoPi2Cj"
THIRD = "Zx3cVb7nMq-Lk9jHg5fDs1aPo8iUy4tR"
K1, K2, K3 = key_id(OLD), key_id(NEW), key_id(THIRD)
ME = Self("shop", "staging", "manager", "1.0", [], [], "east", "", "0.1")


def member_of(
    name: str, *, boot: int, seeds: Iterable[str] = (), ring: Keyring | None = None, is_certified: bool = False
) -> ClusterMember:
    replay_guard = ReplayGuard(group="shop/staging", name=name, boot=boot)
    rng = Random(f"{name}:{boot}")
    seal = Seal(ring or Keyring.of((OLD,)), boot, (OLD,))
    admission = Admission(replay_guard=replay_guard, seal=seal, name=name, me=ME, rng=rng, certified=is_certified)
    membership = Membership(
        name=name, boot=boot, address=f"at-{name}", group="shop/staging", config=PRESETS["fast"], rng=rng, now=0
    )
    seeds = tuple(f"at-{seed}" for seed in seeds if seed != name)
    return ClusterMember(
        group="shop/staging",
        name=name,
        boot=boot,
        membership=membership,
        replay_guard=replay_guard,
        admission=admission,
        seeds=seeds,
    )


def keyholder_of(member: ClusterMember) -> KeyDistribution:
    assert member.key_distribution is not None
    return member.key_distribution


class Group:
    """Members, and a network that brings frames in any order it likes, some of them twice and datagrams perhaps
    never."""

    def __init__(self, *members: ClusterMember, seed: int = 1, loss: float = 0.0) -> None:
        self.rng = Random(seed)
        self.loss = loss
        self.now = 0
        self.members: dict[str, ClusterMember] = {}
        self.pending: list[tuple[str, Transmit]] = []
        self.news: list[tuple[str, object]] = []
        for member in members:
            self.add(member)

    def add(self, member: ClusterMember) -> None:
        self.members[f"at-{member.name}"] = member
        self.carry_out(member, member.start(self.now))

    def named(self, name: str) -> ClusterMember:
        return self.members[f"at-{name}"]

    def key_distribution(self, name: str) -> KeyDistribution:
        return keyholder_of(self.named(name))

    def act(self, name: str, effects: list[object]) -> None:
        self.carry_out(self.named(name), self.named(name).act(self.now, effects))

    def carry_out(self, member: ClusterMember, effects: list[object]) -> None:
        for effect in effects:
            if isinstance(effect, Transmit):
                self.pending.append((f"at-{member.name}", effect))
            else:
                self.news.append((member.name, effect))

    def deliver(self) -> None:
        source, sent = self.pending.pop(self.rng.randrange(len(self.pending)))
        to = self.members.get(sent.to)
        if to is None or (sent.lane is Lane.DATAGRAM and self.rng.random() < self.loss):
            return
        for _ in range(1 + (self.rng.random() < self.loss)):
            proven = Proven(self.members[source].name, Role.MANAGER)
            self.carry_out(to, to.on_frame(self.now, source, sent.frame, sent.lane, 0, proven))

    def run(self, seconds: float) -> None:
        until = self.now + round(seconds * SECOND)
        while True:
            if self.pending and self.rng.randrange(8):
                self.deliver()
                continue
            member = min(self.members.values(), key=lambda each: each.next_tick_at)
            if member.next_tick_at > until:
                break
            self.now = max(self.now, member.next_tick_at)
            self.carry_out(member, member.tick(self.now))
        self.now = until

    def use(self, name: str, key_id: str, tries: int = 20) -> None:
        """As somebody at a keyboard: ask again until it is allowed."""
        for _ in range(tries):
            try:
                self.act(name, self.key_distribution(name).seal_with(key_id))
                return
            except NotConfirmed:
                self.run(0.5)
        raise AssertionError(f"{name} may not use {key_id}")

    def rings(self) -> list[Keyring]:
        rings = [member.admission.ring for member in self.members.values() if member.admission is not None]
        return [ring for number, ring in enumerate(rings) if ring not in rings[:number]]


def group_of(names: Iterable[str] = NAMES, *, seed: int = 1, loss: float = 0.0, seconds: float = 5) -> Group:
    names = tuple(names)
    members = [member_of(name, boot=10 + number, seeds=names[:1]) for number, name in enumerate(names)]
    group = Group(*members, seed=seed, loss=loss)
    group.run(seconds)
    for member in members:
        assert member.membership is not None
        assert len(member.membership.alive()) == len(names) - 1
    return group


# -- standing


def test_a_member_says_in_its_state_which_keys_it_has_and_what_it_is() -> None:
    group = group_of("ab")
    seen = group.named("b").membership
    assert seen is not None
    a = seen.get("a")
    assert a is not None

    assert standing_of(a) == Announcement(Keyring.of((OLD,)).digest, "manager", "1.0", "east", "0.1")


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x91\x01", b"\x91\xa2\xc3\x28", b"\x91\xd9\x41" + b"x" * 65])
def test_a_state_that_nobody_can_read_says_nothing_and_confirms_nothing(payload: bytes) -> None:
    group = group_of("ab")
    membership = group.named("b").membership
    assert membership is not None
    a = membership.get("a")
    assert a is not None
    a.state = MemberState(99, payload)

    assert standing_of(a) is None
    assert group.key_distribution("b").missing() == ["a"]


def test_a_member_of_which_no_state_is_known_has_confirmed_nothing() -> None:
    group = group_of("ab")
    membership = group.named("b").membership
    assert membership is not None
    a = membership.get("a")
    assert a is not None
    a.state = None

    assert standing_of(a) is None
    assert group.key_distribution("b").missing() == ["a"]


# -- rotation


def test_a_key_that_is_added_at_one_member_is_soon_accepted_everywhere_and_sealed_with_nowhere() -> None:
    group = group_of()

    group.act("c", group.key_distribution("c").add(NEW))
    group.run(3)

    (ring,) = group.rings()
    assert set(ring.accepted()) == {K1, K2}
    assert ring.primary_id == K1
    assert all(group.key_distribution(name).missing() == [] for name in NAMES)


def test_a_key_is_not_used_before_all_that_are_alive_have_confirmed_it() -> None:
    group = group_of()
    group.act("a", group.key_distribution("a").add(NEW))

    with pytest.raises(NotConfirmed, match=f"^key {K2} cannot be used yet: b, c, d, e did not confirm it"):
        group.key_distribution("a").seal_with(K2)

    assert group.named("a").key_distribution is not None
    assert group.key_distribution("a").ring.primary_id == K1
    group.run(3)
    group.act("a", group.key_distribution("a").seal_with(K2))
    group.run(3)
    (ring,) = group.rings()
    assert ring.primary_id == K2


def test_one_that_is_dead_does_not_hinder_the_use_of_a_key_but_that_an_old_one_is_retired() -> None:
    group = group_of("abc")
    del group.members["at-c"]
    group.run(20)
    membership = group.named("a").membership
    assert membership is not None
    gone = membership.get("c")
    assert gone is not None and gone.status == DEAD
    group.act("a", group.key_distribution("a").add(NEW))
    group.run(3)

    group.use("a", K2, tries=1)
    group.run(3)

    with pytest.raises(NotConfirmed, match=f"^key {K1} cannot be retired yet: c did not confirm the newer keys"):
        group.key_distribution("a").retire(K1)
    group.act("a", group.key_distribution("a").retire(K1, force=True))
    group.run(3)
    (ring,) = group.rings()
    assert ring.accepted() == (K2,)


def test_a_key_is_not_retired_while_a_remembered_member_has_not_confirmed() -> None:
    group = group_of("ab")
    group.act("a", group.key_distribution("a").add(NEW))
    group.run(3)
    group.use("a", K2)
    group.run(3)

    assert group.key_distribution("a").missing(("b", "a")) == []
    with pytest.raises(NotConfirmed, match=f"^key {K1} cannot be retired yet: x, z did not confirm"):
        group.key_distribution("a").retire(K1, expected=("z", "b", "a", "x"))
    group.act("a", group.key_distribution("a").retire(K1, expected=("b", "a")))
    group.run(3)
    (ring,) = group.rings()
    assert ring.accepted() == (K2,)


def test_one_that_said_good_bye_needs_no_key_any_more() -> None:
    group = group_of("abc")
    leaving = group.named("c").membership
    assert leaving is not None
    group.act("c", list(leaving.leave(group.now)))
    group.run(3)
    del group.members["at-c"]
    group.act("a", group.key_distribution("a").add(NEW))
    group.run(3)
    group.use("a", K2)
    group.run(3)
    membership = group.named("a").membership
    assert membership is not None
    gone = membership.get("c")
    assert gone is not None and gone.status == LEFT

    group.act("a", group.key_distribution("a").retire(K1, expected=("c",)))

    assert group.key_distribution("a").ring.accepted() == (K2,)


def test_many_names_are_told_by_some_and_their_number() -> None:
    names = [f"m{number:02}" for number in range(13)]

    assert _some(names) == "m00, m01, m02, m03, m04, m05, m06, m07, m08, m09 and 3 more"
    assert _some(names[:10]).endswith(", m09")


@pytest.mark.parametrize("greets", [True, False], ids=["greets", "only joins"])
def test_one_that_was_down_during_a_rotation_is_welcomed_under_its_old_key_and_learns_the_new_ones(
    greets: bool,
) -> None:
    group = group_of("abc")
    del group.members["at-c"]
    group.run(20)
    group.act("a", group.key_distribution("a").add(NEW))
    group.run(3)
    group.use("a", K2)
    group.run(3)
    assert {member.admission.ring.primary_id for member in group.members.values() if member.admission} == {K2}

    back = member_of("c", boot=99, seeds=() if greets else ("a",))
    group.add(back)
    assert back.admission is not None and back.membership is not None
    if greets:
        group.carry_out(back, back.admission.hello(group.now, "at-a"))
        group.run(1)
        assert "a" in [news.name for who, news in group.news if who == "c" and isinstance(news, Welcomed)]
        group.act("c", list(back.membership.join(group.now, ["at-a"])))
    group.run(10)

    (ring,) = group.rings()
    assert ring.primary_id == K2
    assert [member.name for member in back.membership.alive()] == ["a", "b"]
    assert [news.ring for who, news in group.news if who == "c" and isinstance(news, RingChanged)][-1] == ring
    assert group.key_distribution("a").missing() == [], "it has confirmed, so the old key may go"
    refused = back.replay_guard.refused.get("key", 0)
    heard = back.frames_admitted
    group.run(5)
    assert back.replay_guard.refused.get("key", 0) == refused
    assert back.frames_admitted > heard, "it reads frames under the new key"


def test_one_that_was_down_during_a_rotation_and_asks_nobody_is_found_under_the_key_it_had() -> None:
    group = group_of("abc")
    del group.members["at-c"]
    group.run(20)
    group.act("a", group.key_distribution("a").add(NEW))
    group.run(3)
    group.use("a", K2)
    group.run(3)
    assert group.key_distribution("a").key_for(group.now, "at-c") == K1
    assert group.key_distribution("a").key_for(group.now, "at-b") == ""

    back = member_of("c", boot=99)
    group.add(back)
    group.run(60)

    (ring,) = group.rings()
    assert ring.primary_id == K2
    assert back.membership is not None
    assert sorted(member.name for member in back.membership.alive()) == ["a", "b"]


def test_with_one_key_in_use_there_is_nothing_to_choose() -> None:
    group = group_of("ab")

    assert group.key_distribution("a").key_for(group.now, "at-b") == ""


def test_two_rotations_at_two_members_at_once_end_in_equal_rings_everywhere() -> None:
    group = group_of()
    group.act("a", group.key_distribution("a").add(NEW))
    group.act("e", group.key_distribution("e").add(THIRD))
    group.run(3)
    (ring,) = group.rings()
    assert set(ring.accepted()) == {K1, K2, K3}

    first, second = group.key_distribution("a").seal_with(K2), group.key_distribution("e").seal_with(K3)
    group.act("a", first)
    group.act("e", second)
    group.run(5)

    (ring,) = group.rings()
    assert ring.primary_id == max(K2, K3), "the versions were equal, so the ids decide"
    first, second = group.key_distribution("a").retire(K1), group.key_distribution("e").retire(min(K2, K3))
    group.act("a", first)
    group.act("e", second)
    group.run(5)
    (ring,) = group.rings()
    assert ring.accepted() == (max(K2, K3),)
    assert all(group.key_distribution(name).missing() == [] for name in NAMES)


@settings(deadline=None, derandomize=True, max_examples=12)
@given(seed=st.integers(0, 2**32), loss=st.sampled_from([0.0, 0.05, 0.2]), data=st.data())
def test_in_whatever_order_frames_come_keys_become_the_same_at_all_of_five_members(
    seed: int, loss: float, data: st.DataObject
) -> None:
    group = group_of(seed=seed, seconds=8)
    group.loss = loss
    changes = data.draw(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from((NEW, THIRD))), max_size=4))
    for name, secret in changes:
        key_distribution = group.key_distribution(name)
        if key_id(secret) not in key_distribution.ring.accepted():
            group.act(name, key_distribution.add(secret))
        else:
            try:
                group.act(name, key_distribution.seal_with(key_id(secret)))
            except NotConfirmed:
                pass
        group.run(data.draw(st.sampled_from([0.0, 0.1, 0.7])))

    group.loss = 0.0
    group.run(6)

    (ring,) = group.rings()
    assert set(ring.accepted()) == {K1, *(key_id(secret) for _, secret in changes)}
    assert all(group.key_distribution(name).missing() == [] for name in NAMES)
    assert not any(member.replay_guard.refused.get("key") for member in group.members.values())


# -- telling


def alone(*, names: Iterable[str] = ("x",), has_state: bool = True) -> tuple[ClusterMember, KeyDistribution]:
    """Member a, which has heard of others that hold other keys. What it sends goes nowhere."""
    member = member_of("a", boot=1)
    member.start(0)
    assert member.membership is not None
    updates = [encode_update(Alive(name, 7, 0, f"at-{name}")) for name in names]
    member.membership.on_message(0, "at-x", "x", 7, Gossip(), updates, 0)
    assert len(member.membership.alive()) == len(tuple(names))
    return member, keyholder_of(member)


def test_one_that_says_it_has_other_keys_is_sent_ours_and_the_same_once_a_second_only() -> None:
    member, key_distribution = alone()
    news = StateLearned("x", 1, b"")

    assert key_distribution.hear(0, news) == [
        Send(greeting.CHANNEL, "at-x", ShareRing(encode_ring(key_distribution.ring)), Lane.STREAM)
    ]
    assert key_distribution.hear(SECOND - 1, news) == []
    assert len(key_distribution.hear(SECOND, news)) == 1


def test_other_keys_are_told_at_once() -> None:
    member, key_distribution = alone()
    key_distribution.hear(0, StateLearned("x", 1, b""))
    key_distribution.add(NEW)

    (greet,) = [
        effect for effect in key_distribution.hear(1, RingChanged(key_distribution.ring)) if isinstance(effect, Send)
    ]

    assert isinstance(greet.message, ShareRing)
    assert decode_ring(greet.message.ring) == key_distribution.ring


def test_one_that_is_not_known_or_not_there_or_has_the_same_keys_is_told_nothing() -> None:
    member, key_distribution = alone()
    assert member.membership is not None
    x = member.membership.get("x")
    assert x is not None
    assert key_distribution.hear(0, StateLearned("nobody", 1, b"")) == []

    x.state = MemberState(1, msgspec.msgpack.encode(Announcement(key_distribution.ring.digest)))
    assert key_distribution.hear(0, StateLearned("x", 1, x.state.payload)) == []
    x.state = None
    x.status = DEAD
    assert key_distribution.hear(0, StateLearned("x", 1, b"")) == []


def test_keys_from_one_that_lacks_some_are_answered_with_all_of_them() -> None:
    member, key_distribution = alone()
    assert member.membership is not None
    x = member.membership.get("x")
    assert x is not None
    theirs = Keyring.of((OLD,)).with_key(NEW)
    x.state = MemberState(1, msgspec.msgpack.encode(Announcement(key_distribution.ring.merge(theirs).digest)))

    out = key_distribution.learn(0, told_by("x"), theirs, key_distribution.ring.merge(theirs))
    assert out == [RingChanged(theirs, "x")], "nothing is lacking"
    mine = key_distribution.ring.with_key(THIRD)
    merged = mine.merge(theirs)
    # It said before that it has them all: what it sends now counts.
    x.state = MemberState(2, msgspec.msgpack.encode(Announcement(merged.digest)))
    out = key_distribution.learn(0, told_by("x"), theirs, merged)
    assert out == [
        RingChanged(merged, "x"),
        Send(greeting.CHANNEL, "at-x", ShareRing(encode_ring(merged)), Lane.STREAM),
    ]
    assert key_distribution.learn(0, told_by("stranger"), theirs, merged) == []


# -- keys that nobody could expect


def told_by(name: str, boot: int = 7, key: str = K1) -> ArrivedPacket:
    """Some frame of this life."""
    packet = Packet(PROTOCOL, "shop/staging", name, boot, 1, greeting.CHANNEL.number, msgspec.Raw(b""))
    return ArrivedPacket(packet, f"at-{name}", 0, key)


def alarms(effects: list[object]) -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, LeadershipAlarm) and effect.kind == "keys"]


def agreeing() -> tuple[ClusterMember, KeyDistribution]:
    """With x, whose keys are ours."""
    member, key_distribution = alone()
    assert member.membership is not None
    x = member.membership.get("x")
    assert x is not None
    x.state = MemberState(1, msgspec.msgpack.encode(Announcement(key_distribution.ring.digest)))
    key_distribution.hear(0, StateLearned("x", 1, x.state.payload))
    return member, key_distribution


def test_one_change_told_by_a_member_in_view_is_expected_and_more_or_from_a_stranger_is_an_alarm() -> None:
    _, key_distribution = agreeing()
    one = key_distribution.ring.with_key(NEW)
    three = one.with_primary(K2).with_key(THIRD)

    assert alarms(key_distribution.learn(0, told_by("x"), one, one)) == []
    assert key_distribution.ring == one
    out = key_distribution.learn(0, told_by("x"), three, three)
    assert alarms(out) == [
        "'x' at at-x brought keys that were not expected, and they hold from now on: "
        f"version 3, keys {', '.join(three.accepted())}, sealing with {K2}; "
        f"before: version 1, keys {', '.join(one.accepted())}, sealing with {K1}; "
        "if nobody of you changed them, see `talka cluster keys --repair`"
    ]
    assert key_distribution.ring == three, "a change is told of, not refused"

    for who in (told_by("stranger"), told_by("x", boot=2)):
        later = key_distribution.ring.with_primary(K1 if key_distribution.ring.primary_id == K2 else K2)
        assert len(alarms(key_distribution.learn(0, who, later, later))) == 1


def test_a_ring_that_changes_nothing_is_no_alarm_whoever_brings_it() -> None:
    _, key_distribution = agreeing()

    assert key_distribution.learn(0, told_by("stranger"), key_distribution.ring, key_distribution.ring) == []


def test_one_that_was_away_expects_many_changes_from_whom_it_knows_and_none_from_a_stranger() -> None:
    member, key_distribution = alone()
    assert member.admission is not None
    two = key_distribution.ring.with_key(NEW).with_primary(K2)
    four = two.with_key(THIRD).with_primary(K3)
    six = four.with_primary(K1).with_primary(K2)

    assert alarms(key_distribution.learn(0, told_by("x"), two, two)) == []
    member.admission.rings.asked("seed", 7)
    assert alarms(key_distribution.learn(0, told_by("seed", 7), four, four)) == []
    assert len(alarms(key_distribution.learn(0, told_by("stranger"), six, six))) == 1


def test_one_that_was_left_alone_may_have_missed_changes() -> None:
    member, key_distribution = agreeing()
    assert member.membership is not None and member.admission is not None
    x = member.membership.get("x")
    assert x is not None
    x.status = DEAD
    key_distribution.tick(AGAIN_NS)
    x.status = ALIVE
    three = key_distribution.ring.with_key(NEW).with_primary(K2).with_key(THIRD)

    assert alarms(key_distribution.learn(AGAIN_NS, told_by("x"), three, three)) == []


def test_a_new_era_is_always_an_alarm_to_one_that_agreed_with_somebody() -> None:
    member, key_distribution = agreeing()
    assert member.admission is not None
    repaired = key_distribution.ring.repaired((NEW,))

    (text,) = alarms(key_distribution.learn(0, told_by("x"), repaired, repaired))

    assert f"version 0 of era 1, keys {K2}" in text
    assert member.admission.rings.unexpected == 1


def test_keys_too_far_ahead_change_nothing_and_are_told_of_once() -> None:
    member, key_distribution = agreeing()
    assert member.admission is not None
    before = key_distribution.ring
    ahead = msgspec.structs.replace(before.with_key(NEW), primary=(JUMP_LIMIT + 1, K2))

    told = [alarms(key_distribution.learn(now * SECOND, told_by("x"), ahead, before.merge(ahead))) for now in range(3)]

    assert key_distribution.ring == before and member.admission.rings.refused["jump"] == 3
    assert [len(each) for each in told] == [1, 0, 0]
    assert "'x' at at-x sent keys too far ahead to be true, which were refused: version 1048577" in told[0][0]
    other = alarms(key_distribution.learn(0, told_by("y"), ahead, before.merge(ahead)))
    assert other == [], "not more than one a second"
    assert len(alarms(key_distribution.learn(SECOND, told_by("y"), ahead, before.merge(ahead)))) == 1


def test_under_a_key_that_is_not_in_use_only_a_later_era_counts() -> None:
    member, key_distribution = agreeing()
    assert member.admission is not None
    same, later = key_distribution.ring.with_key(NEW), key_distribution.ring.repaired((NEW,))

    (text,) = alarms(key_distribution.learn(0, told_by("x", key=K3), same, same))
    assert "under a key that is not accepted any more" in text and member.admission.rings.refused["key"] == 1
    key_distribution.learn(0, told_by("x", key=K3), later, later)
    assert key_distribution.ring == later


def test_refusals_that_were_told_are_kept_up_to_a_limit() -> None:
    guard = RingGuard(certified=True)

    told = [guard.refuse(n * SECOND, "role", f"n{n}", "from", b"\xc1") for n in range(KEPT_LIMIT + 1)]

    assert all(len(each) == 1 for each in told)
    assert told[0] == [
        LeadershipAlarm("keys", "'n0' at from is not a manager; the keys it sent were refused: no ring at all")
    ]
    assert guard.refuse(KEPT_LIMIT * 2 * SECOND, "role", "n1", "from", b"") == []
    assert len(guard.refuse(KEPT_LIMIT * 3 * SECOND, "role", "n0", "from", b"")) == 1, "it was forgotten"


# -- a ring that was taken over, or spoilt


def test_a_repaired_ring_is_told_to_everybody_in_view_at_once_and_taken_over() -> None:
    group = group_of("abcd")
    taken = group.key_distribution("a").ring.with_key(NEW)
    for name in "abcd":
        key_distribution = group.key_distribution(name)
        key_distribution.learn(group.now, told_by("stranger"), taken, taken)
    group.pending.clear()

    group.act("a", group.key_distribution("a").repair(group.now, (OLD,)))
    assert sorted(sent.to for _, sent in group.pending if sent.lane is Lane.STREAM)[:3] == ["at-b", "at-c", "at-d"]
    group.run(5)

    (ring,) = group.rings()
    assert (ring.accepted(), ring.era, ring.version) == ((K1,), 1, 0)


def test_with_certificates_a_ring_of_others_keys_alone_is_repaired_from_one_member_on() -> None:
    group = Group(*(member_of(name, boot=i + 10, seeds="abc", is_certified=True) for i, name in enumerate("abc")))
    group.run(5)
    taken = Keyring.of((OLD,)).with_key(NEW).with_primary(K2).without(K1)
    for name in "abc":
        group.act(name, group.key_distribution(name).learn(group.now, told_by("stranger"), taken, taken))
    group.run(5)
    assert [ring.accepted() for ring in group.rings()] == [(K2,)]

    group.act("b", group.key_distribution("b").repair(group.now, (THIRD,)))
    group.run(10)

    (ring,) = group.rings()
    assert (ring.accepted(), ring.era) == ((K3,), 1)
    assert all(len(member.membership.alive()) == 2 for member in group.members.values() if member.membership)


def test_keys_that_were_lost_on_the_way_are_sent_again() -> None:
    group = group_of("ab")
    group.act("a", group.key_distribution("a").add(NEW))
    lost = [sent for _, sent in group.pending if sent.lane is Lane.STREAM]
    assert lost
    while any(sent.lane is Lane.STREAM for _, sent in group.pending):
        group.pending = [(source, sent) for source, sent in group.pending if sent.lane is not Lane.STREAM]
        group.run(0.05)

    group.run(2 * AGAIN_NS / SECOND)

    assert len(group.rings()) == 1


def test_those_that_lack_keys_are_told_again_some_at_a_time_and_each_in_its_turn() -> None:
    names = [f"x{number:02}" for number in range(3 * AGAIN_LIMIT)]
    member, key_distribution = alone(names=["x", *names])

    rounds = [key_distribution.tick(number * AGAIN_NS) for number in range(4)]

    assert [len(each) for each in rounds] == [AGAIN_LIMIT] * 4
    assert {greet.to for each in rounds for greet in each if isinstance(greet, Send)} == {
        f"at-{name}" for name in ["x", *names]
    }
    assert key_distribution.tick(4 * AGAIN_NS - 1) == []


def test_who_was_told_is_remembered_for_so_many_only() -> None:
    member, _ = alone(names=["x", "y", "z"])
    assert member.admission is not None and member.membership is not None and member.announcer is not None
    key_distribution = KeyDistribution(member.admission, member.membership, member.announcer, told_limit=2)
    for name in ("x", "y", "z"):
        assert len(key_distribution.hear(0, StateLearned(name, 1, b""))) == 1

    assert list(key_distribution._told) == ["y", "z"]
    assert key_distribution.hear(0, StateLearned("z", 1, b"")) == []
    assert len(key_distribution.hear(0, StateLearned("x", 1, b""))) == 1
