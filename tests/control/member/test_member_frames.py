"""Whatever frames arrive at a member, it hears each once or turns it away."""

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.effects import Lane, Persist, Send, Transmit
from talka.cluster.membership.membership import Membership
from talka.cluster.membership.news import MemberSuspected
from talka.cluster.membership.presets import PRESETS
from talka.control.member.admission import Admission, RingChanged
from talka.control.member.announcement import Announcement
from talka.control.member.composite import ClusterMember, QuestionAsked
from talka.control.member.owner import Owner
from talka.control.member.receiver import Receiver
from talka.control.member.replay_guard import ReplayGuard
from talka.control.member.voter import Voter
from talka.wire import asking, greeting, leadership, leases, membership
from talka.wire.asking import Ask, AskAnswer, AskLeader
from talka.wire.greeting import Challenge, Proof, Self, ShareRing
from talka.wire.leadership import Heartbeat
from talka.wire.leases import LeaseCommand, ReleaseLease
from talka.wire.membership import Alive, Gossip, MemberState, Ping, ProbeAck, Stated, encode_update
from talka.wire.packets import decode_packet
from talka.wire.security.keys import Keyring, encode_ring, key_id
from talka.wire.security.roles import NOBODY, Proven, Role
from talka.wire.security.sealing import Seal

VOTERS = ("a", "b", "c")
CONFIG = PRESETS["default"]
CHANNELS = (membership.CHANNEL.number, leadership.CHANNEL.number, leases.CHANNEL.number)
A, C = Proven("a", Role.MANAGER), Proven("c", Role.MANAGER)
GOSSIP = msgspec.msgpack.encode(Gossip())


def whole_member() -> ClusterMember:
    """Member b, which has every part that hears others of its group."""
    return ClusterMember(
        group="g",
        name="b",
        boot=1,
        membership=Membership(name="b", boot=1, address="at-b", group="g", config=CONFIG, rng=Random(1), now=0),
        voter=Voter(name="b", voters=VOTERS, stored={}, rng=Random(1), now=0),
        receiver=Receiver({}),
        owner=Owner(voters=VOTERS, rng=Random(1)),
    )


def door_of_a() -> ReplayGuard:
    return ReplayGuard(group="g", name="a", boot=77)


def test_a_frame_is_handled_once() -> None:
    member = whole_member()
    frame = door_of_a().wrap(leases.CHANNEL.number, msgspec.msgpack.encode(LeaseCommand((0, 9, 1), 1, b"")))

    assert member.on_frame(0, "from-a", frame, Lane.CONTROL, 0) != []
    assert member.on_frame(0, "from-a", frame, Lane.CONTROL, 0) == []
    assert (member.frames_admitted, member.replay_guard.refused) == (1, {"replayed": 1})


def test_bodies_that_nobody_can_read_are_counted_and_nothing_else_happens() -> None:
    member = whole_member()
    member.start(0)
    replay_guard = door_of_a()
    at = member.next_tick_at

    for channel in (0, *CHANNELS, 99):
        assert member.on_frame(0, "from-a", replay_guard.wrap(channel, b"\xc0"), Lane.STREAM, 0) == []

    assert member.replay_guard.refused == {"body": 5}
    assert member.next_tick_at == at


@settings(deadline=None, derandomize=True)
@given(st.sampled_from(CHANNELS), st.recursive(st.integers() | st.text() | st.binary(), st.lists, max_leaves=8))
def test_whatever_a_body_holds_it_never_raises(channel: int, body: object) -> None:
    member = whole_member()
    member.start(0)
    try:
        content = msgspec.msgpack.encode(body)
    except OverflowError:
        return

    member.on_frame(0, "from-a", door_of_a().wrap(channel, content), Lane.STREAM, 0)

    assert member.frames_admitted == 1


@settings(deadline=None, derandomize=True)
@given(st.lists(st.binary(max_size=20), max_size=4))
def test_whatever_rides_along_with_a_body_it_never_raises(news: list[bytes]) -> None:
    member = whole_member()
    updates = [msgspec.msgpack.encode(each) for each in news]

    member.on_frame(0, "from-a", door_of_a().wrap(membership.CHANNEL.number, GOSSIP, updates), Lane.STREAM, 0)

    assert (member.frames_admitted, member.replay_guard.refused) == (1, {})


def test_no_part_hears_of_what_cannot_be_read() -> None:
    member = whole_member()
    replay_guard = door_of_a()
    assert member.membership is not None and member.voter is not None
    too_long = msgspec.msgpack.encode(Heartbeat(2**62, 1, 0))

    assert member.on_frame(0, "from-a", replay_guard.wrap(leadership.CHANNEL.number, too_long), Lane.STREAM, 0) == []
    late = 4 * CONFIG.probe_interval_ns + 1
    assert member.on_frame(0, "from-a", replay_guard.wrap(membership.CHANNEL.number, b"\xc0"), Lane.STREAM, late) == []

    assert member.replay_guard.refused == {"body": 2}
    assert member.voter.election.term == 0
    assert member.membership.health.score == 0, "it was not even measured"


@settings(deadline=None, derandomize=True)
@given(st.binary(max_size=80))
def test_whatever_bytes_arrive_they_never_raise(frame: bytes) -> None:
    member = whole_member()

    assert member.on_frame(0, "from-a", frame, Lane.DATAGRAM, 0) == []


# -- with admission before the replay guard

SECRET = "kD7wq2Zr-9xMvB4tYpLs8HnGfJc3RaEu"
NEW = "Vb5nXz1Qm_Ke6WtSy0UhDgLr7AoPi2Cj"
ME = Self("shop", "staging", "manager", "1.0")
COMMAND = msgspec.msgpack.encode(LeaseCommand((0, 9, 1), 1, b""))


def porter_of(name: str, boot: int, *, secret: str = SECRET, certified: bool = False) -> tuple[ReplayGuard, Admission]:
    replay_guard = ReplayGuard(group="shop/staging", name=name, boot=boot)
    seal = Seal(Keyring.of((secret,)), boot)
    return replay_guard, Admission(
        replay_guard=replay_guard, seal=seal, name=name, me=ME, rng=Random(boot), certified=certified
    )


def sealed_member(
    *, name: str = "b", boot: int = 1, certified: bool = False, has_membership: bool = True
) -> ClusterMember:
    replay_guard, admission = porter_of(name, boot, certified=certified)
    group = "shop/staging"
    members = Membership(name=name, boot=boot, address="at-b", group=group, config=CONFIG, rng=Random(1), now=0)
    return ClusterMember(
        group=group,
        name=name,
        boot=boot,
        membership=members if has_membership else None,
        voter=Voter(name=name, voters=VOTERS, stored={}, rng=Random(1), now=0),
        receiver=Receiver({}),
        owner=Owner(voters=VOTERS, rng=Random(1)),
        replay_guard=replay_guard,
        admission=admission,
    )


class Talker:
    """Somebody with the key who speaks with a member."""

    def __init__(self, name: str = "a", boot: int = 77) -> None:
        self.replay_guard, self.admission = porter_of(name, boot)

    def say(
        self,
        member: ClusterMember,
        channel: int,
        body: bytes,
        *updates: bytes,
        to: str = "b",
        source: str = "from-a",
        proven: Proven = NOBODY,
    ) -> list[object]:
        frame = self.admission.wrap(0, channel, body, list(updates), to=to)
        return member.on_frame(0, source, frame, Lane.STREAM, 0, proven)

    def prove(self, member: ClusterMember, effects: list[object], *, proven: Proven = NOBODY) -> list[object]:
        """Answer the one challenge among these effects."""
        (challenge,) = [effect for effect in effects if isinstance(effect, Transmit)]
        _, (proof,) = self.admission.receive(0, "at-b", challenge.frame, Lane.STREAM, 0)
        assert isinstance(proof, Transmit)
        return member.on_frame(0, "from-a", proof.frame, Lane.STREAM, 0, proven)

    def meet(self, member: ClusterMember, *, proven: Proven = NOBODY) -> None:
        self.prove(member, self.say(member, membership.CHANNEL.number, GOSSIP, to="", proven=proven), proven=proven)


def test_a_sealed_member_hears_a_frame_of_an_unknown_life_only_after_the_proof() -> None:
    member, talker = sealed_member(), Talker()
    said = talker.say(member, membership.CHANNEL.number, GOSSIP, to="")
    assert [type(effect) for effect in said] == [Transmit], "the challenge"
    assert member.frames_admitted == 0

    talker.prove(member, said)

    assert member.frames_admitted == 1


def test_a_sealed_member_obeys_a_command_only_that_was_sent_after_the_proof() -> None:
    member, talker = sealed_member(), Talker()
    said = talker.say(member, leases.CHANNEL.number, COMMAND)

    assert talker.prove(member, said) == [], "an earlier life of this member may have heard it"
    assert member.replay_guard.refused == {"replayed": 1}

    assert len(talker.say(member, leases.CHANNEL.number, COMMAND)) == 1, "what it wants to be written before it obeys"


def test_a_restarted_member_hears_nothing_of_a_recording() -> None:
    member, talker = sealed_member(), Talker()
    frames = [talker.admission.wrap(0, membership.CHANNEL.number, GOSSIP) for _ in range(3)]
    recorded = list(frames)
    (challenge,) = member.on_frame(0, "from-a", frames[0], Lane.CONTROL, 0)
    assert isinstance(challenge, Transmit)
    _, (proof,) = talker.admission.receive(0, "at-b", challenge.frame, Lane.CONTROL, 0)
    assert isinstance(proof, Transmit)
    recorded.append(proof.frame)
    for frame in recorded[1:]:
        member.on_frame(0, "from-a", frame, Lane.CONTROL, 0)
    assert member.frames_admitted == 3

    restarted = sealed_member(boot=2)
    for frame in recorded * 3:
        restarted.on_frame(0, "from-a", frame, Lane.CONTROL, 0)

    assert restarted.frames_admitted == 0


@pytest.mark.parametrize(
    ("channel", "body"),
    [
        pytest.param(leadership.CHANNEL.number, msgspec.msgpack.encode(Heartbeat(1, 1, 0)), id="leadership"),
        pytest.param(leases.CHANNEL.number, COMMAND, id="leases"),
        pytest.param(asking.CHANNEL.number, asking.encode(Ask(1, AskLeader())), id="asking"),
    ],
)
def test_of_control_frames_a_sealed_member_hears_those_only_that_are_addressed_to_it_and_certified(
    channel: int, body: bytes
) -> None:
    member, talker = sealed_member(certified=True), Talker()
    talker.meet(member, proven=A)
    admitted = member.frames_admitted

    assert talker.say(member, channel, body, to="", proven=A) == []
    assert talker.say(member, channel, body, to="c", proven=A) == []
    assert talker.say(member, channel, body, proven=C) == []
    assert member.frames_admitted == admitted
    assert member.replay_guard.refused == {"unaddressed": 1, "forged": 1, "certificate": 1}
    talker.say(member, channel, body, proven=A)
    assert member.frames_admitted == admitted + 1


def test_what_a_sealed_member_says_to_a_voter_only_that_voter_can_open() -> None:
    member, talker = sealed_member(), Talker()
    talker.meet(member)
    talker.say(member, membership.CHANNEL.number, GOSSIP, encode_update(Alive("a", 77, 0, "at-a")), to="")
    assert member.owner is not None

    sent = [effect for effect in member.act(0, member.owner.want(0, "k", 10**9)) if isinstance(effect, Transmit)]

    assert sent
    flags = {effect.frame[1] for effect in sent}
    assert flags == {1}, "each is bound to its recipient"


def test_what_a_voter_says_to_another_only_that_one_can_open() -> None:
    member = sealed_member()
    assert member.voter is not None
    todo = member.start(0)
    said: list[Transmit] = []
    now = 0
    while len(said) < 4:
        for effect in todo:
            if isinstance(effect, Persist):
                said += [each for each in member.on_persisted(now, effect.ticket) if isinstance(each, Transmit)]
            elif isinstance(effect, Transmit) and effect.lane is Lane.CONTROL:
                said.append(effect)
        now = max(now, member.next_tick_at)
        todo = member.tick(now)

    reader = Seal(Keyring.of((SECRET,)), 99)
    assert {effect.to for effect in said} == {"a", "c"}
    assert all(reader.open(effect.frame, me=effect.to).addressed for effect in said)


def test_a_question_is_told_with_the_key_it_came_under_and_its_answer_is_for_the_asker_only() -> None:
    member, talker = sealed_member(), Talker("asker")
    talker.meet(member)
    ask = Ask(3, AskLeader())

    (asked,) = talker.say(member, asking.CHANNEL.number, asking.encode(ask), source="#9")

    assert asked == QuestionAsked("#9", "asker", ask, key_id(SECRET))
    assert isinstance(asked, QuestionAsked)
    (sent,) = member.answer(0, asked, AskAnswer(3, "no"))
    assert isinstance(sent, Transmit)
    assert (sent.to, sent.lane) == ("#9", Lane.STREAM)
    talker.admission.receive(0, "at-b", sent.frame, Lane.STREAM, 0)
    assert talker.admission.opened == 2, "the challenge and the answer"
    _, other = porter_of("other", 5)
    other.receive(0, "at-b", sent.frame, Lane.STREAM, 0)
    assert other.opened == 0


def test_an_answer_that_nobody_asked_for_is_ignored() -> None:
    member, talker = sealed_member(), Talker()
    talker.meet(member)

    assert talker.say(member, asking.CHANNEL.number, asking.encode(AskAnswer(1, ""))) == []
    assert member.replay_guard.refused == {}


def test_a_member_without_a_seal_tells_a_question_too() -> None:
    member = whole_member()
    ask = Ask(3, AskLeader())

    (asked,) = member.on_frame(0, "#9", door_of_a().wrap(asking.CHANNEL.number, asking.encode(ask)), Lane.STREAM, 0)

    assert asked == QuestionAsked("#9", "a", ask)
    assert isinstance(asked, QuestionAsked)
    (sent,) = member.answer(0, asked, AskAnswer(3, ""))
    assert isinstance(sent, Transmit)


def test_the_address_of_a_connection_that_somebody_opened_is_not_remembered() -> None:
    member, talker = sealed_member(), Talker()
    talker.meet(member)
    wants = msgspec.msgpack.encode(ReleaseLease("k", 1))
    talker.say(member, leases.CHANNEL.number, wants, source="from-a")
    talker.say(member, leases.CHANNEL.number, wants, source="#12")

    assert member.address_of("a") == "from-a"


def test_keys_that_a_live_member_tells_are_taken_over_and_told_on() -> None:
    member, talker = sealed_member(), Talker()
    talker.meet(member)
    talker.say(
        member,
        membership.CHANNEL.number,
        GOSSIP,
        encode_update(Alive("a", 77, 0, "at-a")),
        encode_update(Alive("c", 5, 0, "at-c")),
        to="",
    )
    ring = talker.admission.ring.with_key(NEW)

    out = talker.say(member, greeting.CHANNEL.number, greeting.encode(ShareRing(encode_ring(ring))), to="")

    assert RingChanged(ring, "a") in out
    assert member.admission is not None and member.admission.ring == ring
    sent = [effect for effect in out if isinstance(effect, Transmit)]
    assert {(effect.to, effect.lane) for effect in sent} == {("at-a", Lane.STREAM), ("at-c", Lane.STREAM)}


def test_one_that_says_it_has_other_keys_is_told_ours_at_once() -> None:
    member, talker = sealed_member(), Talker()
    talker.meet(member)
    state = MemberState(1, msgspec.msgpack.encode(Announcement("other keys")))
    news = [encode_update(Alive("a", 77, 0, "at-a")), encode_update(Stated("a", 77, state))]

    out = talker.say(member, membership.CHANNEL.number, GOSSIP, *news, to="")

    (sent,) = [effect for effect in out if isinstance(effect, Transmit)]
    assert (sent.to, sent.lane) == ("at-a", Lane.STREAM)


@pytest.mark.parametrize("ring", [b"", b"\xc0", encode_ring(Keyring.of((SECRET,)))[:-1]])
def test_keys_that_nobody_can_read_change_nothing_and_are_counted(ring: bytes) -> None:
    member, talker = sealed_member(), Talker()
    talker.meet(member)
    assert member.admission is not None
    before = member.admission.ring

    assert talker.say(member, greeting.CHANNEL.number, greeting.encode(ShareRing(ring)), to="") == []
    assert member.admission.ring == before
    assert member.replay_guard.refused == {"body": 1}


def test_keys_told_by_one_that_is_only_recorded_change_nothing() -> None:
    member, talker = sealed_member(), Talker()
    ring = encode_ring(talker.admission.ring.with_key(NEW))

    talker.say(member, greeting.CHANNEL.number, greeting.encode(ShareRing(ring)), to="")

    assert member.admission is not None
    assert member.admission.ring == talker.admission.ring


def test_one_that_holds_no_keys_for_others_ignores_theirs() -> None:
    member, talker = sealed_member(has_membership=False), Talker()
    talker.meet(member)
    assert member.key_distribution is None
    ring = encode_ring(talker.admission.ring.with_key(NEW))

    assert talker.say(member, greeting.CHANNEL.number, greeting.encode(ShareRing(ring)), to="") == []
    assert member.replay_guard.refused == {}
    assert RingChanged(talker.admission.ring) in member.act(0, [RingChanged(talker.admission.ring)])
    without_porter = whole_member()
    for message in (ShareRing(ring), Challenge(bytes(16)), Proof(bytes(16), 0)):
        frame = door_of_a().wrap(greeting.CHANNEL.number, greeting.encode(message))
        assert without_porter.on_frame(0, "from-a", frame, Lane.STREAM, 0) == []


def test_a_greeting_of_its_keyholder_goes_over_the_stream() -> None:
    member = sealed_member()
    assert member.admission is not None

    (sent,) = member.act(
        0, [Send(greeting.CHANNEL, "at-x", ShareRing(encode_ring(member.admission.ring)), Lane.STREAM)]
    )

    assert isinstance(sent, Transmit)
    assert (sent.to, sent.lane) == ("at-x", Lane.STREAM)


def test_a_member_that_was_told_of_no_age_takes_it_for_none() -> None:
    member = whole_member()
    assert member.membership is not None
    late = 4 * CONFIG.probe_interval_ns + 1
    replay_guard = door_of_a()
    ping = msgspec.msgpack.encode(Ping(1, "b", 1))

    member.on_frame(0, "from-a", replay_guard.wrap(membership.CHANNEL.number, ping), Lane.STREAM, late)
    score = member.membership.health.score
    for _ in range(5):
        member.on_frame(0, "from-a", replay_guard.wrap(membership.CHANNEL.number, ping), Lane.STREAM, -1)

    assert score > 0
    assert member.membership.health.score == score, "it neither blames nor clears"


@settings(deadline=None, derandomize=True)
@given(st.data())
def test_whatever_arrives_at_a_sealed_member_it_never_raises(data: st.DataObject) -> None:
    member, talker = sealed_member(), Talker()
    talker.meet(member)
    counted = sum(member.replay_guard.refused.values())
    channel = data.draw(st.integers(0, 6))
    body = msgspec.msgpack.encode(data.draw(st.lists(st.integers(0, 9) | st.binary(max_size=16), max_size=4)))
    frame = bytearray(talker.admission.wrap(0, channel, body, to=data.draw(st.sampled_from(["", "b"]))))
    if data.draw(st.booleans()):
        frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))

    out = member.on_frame(0, "from-a", bytes(frame), Lane.STREAM, -1)

    admitted = member.frames_admitted - 1
    assert admitted + len(out) + sum(member.replay_guard.refused.values()) - counted >= 1


def suspects_c(recorded: int) -> bool:
    """Whether member b comes to suspect c, which is gone, while so many answers of c to others are played to it."""
    member, talker = sealed_member(), Talker("c", 5)
    member.start(0)
    talker.meet(member)
    talker.say(member, membership.CHANNEL.number, GOSSIP, encode_update(Alive("c", 5, 0, "at-c")), to="")
    answers = [
        talker.admission.wrap(0, membership.CHANNEL.number, msgspec.msgpack.encode(ProbeAck(2 * n)))
        for n in range(recorded)
    ]
    reader = Seal(talker.admission.ring, 1)
    while member.next_tick_at < 20 * CONFIG.probe_interval_ns:
        now = member.next_tick_at
        effects = member.tick(now)
        if any(isinstance(effect, MemberSuspected) for effect in effects):
            return True
        for effect in effects:
            if isinstance(effect, Transmit) and effect.to == "at-c" and effect.lane is Lane.DATAGRAM:
                said = membership.decode(decode_packet(reader.open(effect.frame).content[1:]).body)
                if isinstance(said, Ping) and said.sequence // 2 < recorded:
                    member.on_frame(now, "at-c", answers[said.sequence // 2], Lane.DATAGRAM, 0)
    return False


def test_a_member_that_is_gone_is_suspected() -> None:
    assert suspects_c(0)


def test_answers_that_one_gave_to_others_before_it_was_gone_do_not_make_it_seem_alive() -> None:
    assert suspects_c(40)
