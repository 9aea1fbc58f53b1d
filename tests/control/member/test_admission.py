"""Admission lets in what is sealed, of this cluster, and alive now."""

import zlib
from random import Random

import msgspec
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.effects import Lane, Transmit
from talka.cluster.leadership.news import LeadershipAlarm
from talka.control.member.admission import (
    HELLOS_LIMIT,
    NAMESAKES_LIMIT,
    SHARE_NS,
    WELCOME_NS,
    Admission,
    HelloDeclined,
    RingChanged,
    Welcomed,
)
from talka.control.member.agreements import VersionDiffers
from talka.control.member.life_proofs import ASK_AGAIN_NS, HELD_LIMIT, HELD_LIMIT_BYTES, PROOF_NS, WAITING_LIMIT
from talka.control.member.replay_guard import ReplayGuard
from talka.units import SECOND
from talka.wire import asking, greeting, leadership, leases, membership
from talka.wire.framing import GRACE_BYTES
from talka.wire.greeting import (
    NONCE_BYTES,
    TEXT_LIMIT,
    Challenge,
    GreetingHello,
    GreetingMessage,
    GreetingRefusal,
    GreetingWelcome,
    Proof,
    Self,
    ShareRing,
)
from talka.wire.packets import PROTOCOL, Packet, decode_packet, encode_packet
from talka.wire.security.keys import Keyring, boot_key, decode_ring, encode_ring, key_id
from talka.wire.security.roles import Proven, Role
from talka.wire.security.sealing import Opened, Seal
from tests.sim.variants import without

OLD = "kD7wq2Zr-9xMvB4tYpLs8HnGfJc3RaEu"
NEW = "Vb5nXz1Qm_Ke6WtSy0UhDgLr7AoPi2Cj"
OTHER = "Zx3cVb7nMq-Lk9jHg5fDs1aPo8iUy4tR"
BODY = b"\x91\x05"
ME = Self("shop", "staging", "manager", "1.0")


class Node:
    """A node without a member behind its admission. What it hears and what it is told is kept."""

    def __init__(
        self,
        name: str,
        *,
        boot: int,
        me: Self = ME,
        secrets: tuple[str, ...] = (OLD,),
        certified: bool = False,
        ring: Keyring | None = None,
        spare: tuple[str, ...] = (),
        **limits: int,
    ) -> None:
        self.name, self.boot = name, boot
        self.replay_guard = ReplayGuard(group=f"{me.cluster}/{me.environment}", name=name, boot=boot)
        self.seal = Seal(ring or Keyring.of(secrets), boot, spare)
        self.admission = Admission(
            replay_guard=self.replay_guard,
            seal=self.seal,
            name=name,
            me=me,
            rng=Random(f"{name}:{boot}"),
            certified=certified,
            **limits,
        )
        self.heard: list[int] = []
        self.news: list[object] = []

    def frame(
        self, now: int = 0, *, channel: int = membership.CHANNEL.number, to: str = "", body: bytes = BODY
    ) -> bytes:
        return self.admission.wrap(now, channel, body, to=to)

    def greet(self, message: GreetingMessage, now: int = 0) -> bytes:
        return self.frame(now, channel=greeting.CHANNEL.number, body=greeting.encode(message))

    def get(
        self, frame: bytes, now: int = 0, *, source: str = "from", proven: str = "", lane: Lane = Lane.DATAGRAM
    ) -> list[Transmit]:
        """Hand it a frame; what it sends."""
        arrivals, out = self.admission.receive(now, source, frame, lane, 7, Proven(proven, Role.MANAGER))
        self.heard += [arrival.packet.counter for arrival in arrivals]
        assert all((arrival.source, arrival.age_ns) == (source, 7) for arrival in arrivals)
        self.news += [effect for effect in out if not isinstance(effect, Transmit)]
        return [effect for effect in out if isinstance(effect, Transmit)]

    def read(self, frame: bytes) -> tuple[Opened, GreetingMessage]:
        """What a greeting frame says to one with the same keys; nothing of it is counted."""
        opened = Seal(self.admission.ring, 1).open(frame, me=self.name)
        return opened, greeting.decode(decode_packet(opened.content[1:]).body)


def pair(**more: object) -> tuple[Node, Node]:
    return Node("a", boot=1), Node("b", boot=2, **more)  # type: ignore[arg-type]


def converse(a: Node, b: Node, frame: bytes, now: int = 0) -> list[tuple[str, bytes]]:
    """Bring a frame of `a` to `b`, and all that follows to and fro. The whole recording."""
    recording = []
    todo = [(b, frame)]
    while todo:
        to, frame = todo.pop(0)
        recording.append((to.name, frame))
        other = a if to is b else b
        todo += [(other, sent.frame) for sent in to.get(frame, now, source=f"at-{other.name}")]
    return recording


def met(a: Node, b: Node, now: int = 0) -> None:
    """`b` knows that `a` lives, and nothing is counted as heard."""
    converse(a, b, a.frame(now), now)
    b.heard.clear()


# -- a life that is not known


def test_a_frame_of_an_unknown_life_is_held_and_its_sender_challenged_and_it_is_heard_after_the_proof() -> None:
    a, b = pair()

    (challenge,) = b.get(a.frame(), source="at-a")

    assert b.heard == []
    assert (challenge.to, challenge.lane) == ("at-a", Lane.DATAGRAM)
    opened, message = a.read(challenge.frame)
    assert isinstance(message, Challenge)
    (proof,) = a.get(challenge.frame, source="at-b")
    assert a.read(proof.frame)[1] == Proof(message.nonce, 0, "1.0")
    assert b.get(proof.frame, source="at-a") == []
    assert b.heard == [1]
    assert (b.replay_guard.admitted, b.replay_guard.refused, b.admission.lives.challenged) == (1, {}, 1)


def test_after_the_proof_frames_are_heard_at_once_and_each_of_them_once() -> None:
    a, b = pair()
    met(a, b)
    frame = a.frame()

    assert b.get(frame) == b.get(frame) == []
    assert len(b.heard) == 1
    assert b.replay_guard.refused == {"replayed": 1}


def test_frames_that_were_held_are_heard_in_the_order_they_came_and_doubles_of_them_once() -> None:
    a, b = pair()
    first, second = a.frame(), a.frame()
    (challenge,) = b.get(second)
    for frame in (first, second, first):
        b.get(frame)

    for proof in a.get(challenge.frame):
        b.get(proof.frame)

    assert b.heard == [2, 1]
    assert b.replay_guard.refused == {"replayed": 2}


def test_another_life_of_the_same_name_must_prove_itself_anew() -> None:
    a, b = pair()
    met(a, b)
    again = Node("a", boot=3)

    assert len(b.get(again.frame())) == 1
    assert b.heard == []


def test_the_proof_of_one_life_proves_no_other() -> None:
    a, b = pair()
    other = Node("a", boot=3)
    nonces = []
    for each in (a, other):
        (challenge,) = b.get(each.frame())
        nonces.append(a.read(challenge.frame)[1].nonce)  # type: ignore[union-attr]

    b.get(a.greet(Proof(nonces[1], 0)))
    b.get(Node("c", boot=1).greet(Proof(nonces[0], 0)))

    assert nonces[0] != nonces[1]
    assert (b.heard, b.replay_guard.refused) == ([], {"replayed": 2})


def test_a_nonce_is_good_once_and_for_a_while() -> None:
    a, b = pair()
    (challenge,) = b.get(a.frame())
    b.get(a.frame())
    (early,), (late,) = a.get(challenge.frame), a.get(challenge.frame)

    b.get(early.frame, PROOF_NS)
    b.get(late.frame, PROOF_NS)

    assert b.heard == [1, 2], "the second proof changed nothing"
    assert b.replay_guard.refused == {}


def test_a_proof_that_comes_too_late_proves_nothing_and_the_sender_is_asked_anew() -> None:
    a, b = pair()
    (challenge,) = b.get(a.frame())
    (proof,) = a.get(challenge.frame)

    assert b.get(proof.frame, PROOF_NS + 1) == []
    assert (b.heard, b.replay_guard.refused) == ([], {"replayed": 1})
    (again,) = b.get(a.frame(PROOF_NS + 1), PROOF_NS + 1)
    assert a.read(again.frame)[1] != a.read(challenge.frame)[1]
    b.get(a.get(again.frame, PROOF_NS + 1)[0].frame, PROOF_NS + 1)
    assert b.heard == [3], "what was held for the first nonce went with it"


def test_a_life_is_asked_again_with_the_same_nonce_and_not_with_every_frame() -> None:
    a, b = pair()
    (first,) = b.get(a.frame())

    assert b.get(a.frame(), ASK_AGAIN_NS - 1) == []
    (second,) = b.get(a.frame(), ASK_AGAIN_NS)
    assert a.read(second.frame)[1] == a.read(first.frame)[1]
    assert b.admission.lives.challenged == 1


# -- recordings


def test_a_recording_of_a_whole_conversation_played_to_a_restarted_receiver_is_refused_whole() -> None:
    a, b = pair()
    hellos = [effect for effect in a.admission.hello(0, "at-b") if isinstance(effect, Transmit)]
    recording = converse(a, b, hellos[0].frame)
    frames = [a.frame() for _ in range(5)] + [a.frame(channel=leases.CHANNEL.number, to="b") for _ in range(5)]
    for frame in frames:
        recording += converse(a, b, frame)
    to_b = [frame for to, frame in recording if to == "b"]
    assert len(b.heard) == 10
    assert len(to_b) == 12, "a GreetingHello, a Proof and ten frames"

    restarted = Node("b", boot=9)
    for now in (0, SECOND, PROOF_NS, PROOF_NS + 1, 10 * SECOND):
        for frame in to_b:
            restarted.get(frame, now)

    assert (restarted.heard, restarted.replay_guard.admitted) == ([], 0)


def test_a_recording_of_what_was_said_to_a_node_is_refused_by_it_when_it_is_restarted() -> None:
    a, b = pair()
    hellos = [effect for effect in a.admission.hello(0, "at-b") if isinstance(effect, Transmit)]
    recording = converse(a, b, hellos[0].frame)
    recording += [
        ("a", b.frame(channel=greeting.CHANNEL.number, body=greeting.encode(ShareRing(encode_ring(b.admission.ring)))))
    ]

    restarted = Node("a", boot=9)
    restarted.admission.hello(0, "at-b")
    for to, frame in recording:
        if to == "a":
            restarted.get(frame)

    assert (restarted.heard, restarted.news) == ([], [])
    assert restarted.replay_guard.refused == {"replayed": 1}, "the GreetingWelcome; its nonce is of another life"


def test_a_frame_that_was_sent_long_before_the_proof_is_refused_though_its_sender_lives() -> None:
    a, b = pair()
    old = [a.frame(), a.frame(SECOND // 2)]
    now = 60 * SECOND
    fresh = a.frame(now)

    for frame in (*old, fresh):
        converse(a, b, frame, now)

    assert b.heard == [3]
    assert b.replay_guard.refused == {"replayed": 2}


def test_the_last_frame_before_a_long_silence_is_refused_also_soon_after_the_silence() -> None:
    a, b = pair()
    old = [a.frame(at) for at in (0, 1, SECOND - 1)]
    now = 60 * SECOND
    a.frame(now)

    for frame in old:
        converse(a, b, frame, now + SECOND)

    assert b.heard == []
    assert b.replay_guard.refused == {"replayed": 3}


@settings(deadline=None, derandomize=True, max_examples=60)
@given(gaps=st.lists(st.integers(0, 3 * SECOND) | st.integers(0, 60 * SECOND), min_size=1, max_size=30))
def test_whenever_a_node_spoke_fresh_frames_are_taken_and_older_ones_are_not(gaps: list[int]) -> None:
    a, b = pair()
    now = 0
    sent: list[tuple[int, bytes]] = []
    for gap in gaps:
        now += gap
        sent.append((now, a.frame(now)))
    sent = sent[-HELD_LIMIT:]
    (challenge,) = b.get(sent[0][1], now)
    for _, frame in sent[1:]:
        b.get(frame, now)

    b.get(a.get(challenge.frame, now)[0].frame, now)

    first = len(gaps) - len(sent) + 1
    heard = {number: number in b.heard for number in range(first, len(gaps) + 1)}
    for number, (at, _) in enumerate(sent, first):
        if now - at < PROOF_NS:
            assert heard[number], "it is fresh"
        if now - at >= PROOF_NS + SECOND:
            assert not heard[number], "it is old"


def test_once_a_life_is_known_frames_below_its_floor_are_refused_as_well() -> None:
    a, b = pair()
    old = a.frame()
    now = 60 * SECOND
    met(a, b, now)

    assert b.get(old, now) == []
    assert (b.heard, b.replay_guard.refused) == ([], {"replayed": 1})


def test_what_an_earlier_life_of_the_receiver_has_heard_is_not_heard_by_its_next_life() -> None:
    a, b = pair()
    met(a, b)
    vote = a.frame(channel=leadership.CHANNEL.number, to="b")
    b.get(vote)
    assert len(b.heard) == 1

    restarted = Node("b", boot=9)
    converse(a, restarted, vote, SECOND)  # somebody plays it; the challenge reaches the living sender, which proves

    assert restarted.heard == []


# -- bounds


def test_only_so_many_frames_of_one_life_are_held() -> None:
    a, b = pair()
    (challenge,) = b.get(a.frame())
    for _ in range(HELD_LIMIT + 5):
        b.get(a.frame())

    b.get(a.get(challenge.frame)[0].frame)

    assert b.heard == list(range(1, HELD_LIMIT + 1))


def test_only_so_many_bytes_of_one_life_are_held_however_small_they_were_on_the_wire() -> None:
    a, b = pair()
    long = msgspec.msgpack.encode(bytes(HELD_LIMIT_BYTES // 3))
    frames = [a.frame(body=long) for _ in range(4)]
    assert sum(map(len, frames)) < HELD_LIMIT_BYTES // 10
    (challenge,) = b.get(frames[0])
    for frame in (*frames[1:], a.frame()):
        b.get(frame)

    b.get(a.get(challenge.frame)[0].frame)

    assert b.heard == [1, 2, 5]


def test_what_is_held_for_a_proof_that_never_comes_is_forgotten() -> None:
    b = Node("b", boot=2)
    for number in range(5):
        b.get(Node("a", boot=100 + number).frame(), number)
    assert len(b.admission.lives._lives) == 5

    b.get(Node("c", boot=3).frame(), PROOF_NS + 3)

    assert [boot for _, boot in b.admission.lives._lives] == [103, 104, 3]


def test_only_so_many_lives_are_asked_at_once_and_the_one_asked_longest_ago_is_forgotten_first() -> None:
    b = Node("b", boot=2)
    lives = [Node("a", boot=100 + number) for number in range(WAITING_LIMIT + 1)]
    challenges = [b.get(life.frame())[0] for life in lives]
    assert len(b.admission.lives._lives) == WAITING_LIMIT

    for life, challenge in zip(lives[:2], challenges[:2], strict=True):
        b.get(life.get(challenge.frame)[0].frame)

    assert len(b.heard) == 1, "of the first nothing is known any more"
    assert b.replay_guard.refused == {"replayed": 1}


def test_a_flood_of_hellos_is_bounded_too() -> None:
    b = Node("b", boot=2)
    for number in range(WAITING_LIMIT + 50):
        assert len(b.get(Node("a", boot=100 + number).greet(GreetingHello(ME, bytes(NONCE_BYTES))))) == 1

    assert len(b.admission.lives._lives) == WAITING_LIMIT


def test_only_so_many_of_its_own_hellos_are_remembered() -> None:
    a = Node("a", boot=1)
    sent = [a.admission.hello(0, f"at-{number}") for number in range(HELLOS_LIMIT)]

    assert len(a.admission._hellos) == HELLOS_LIMIT
    b = Node("b", boot=2)
    for effects in (sent[0], sent[-1]):
        for effect in effects:
            assert isinstance(effect, Transmit)
            (welcome,) = b.get(effect.frame)
            a.get(welcome.frame)
    assert [type(news) for news in a.news] == [Welcomed, Welcomed]
    assert a.replay_guard.refused == {"replayed": 2}, "the first two were forgotten"


def test_hellos_that_nobody_answered_are_forgotten() -> None:
    a = Node("a", boot=1)
    a.admission.hello(0, "at-b")
    a.admission.hello(WELCOME_NS, "at-c")
    assert len(a.admission._hellos) == 4

    a.admission.hello(WELCOME_NS + 1, "at-d")

    assert {address for address, _ in a.admission._hellos.values()} == {"at-c", "at-d"}


def test_who_was_sent_keys_is_remembered_for_so_many_only() -> None:
    b = Node("b", boot=2, secrets=(NEW, OLD), shared_limit=2)
    names = ["a", "c", "d"]
    nodes = [Node(name, boot=10 + number) for number, name in enumerate(names)]
    for node in nodes:
        met(node, b)

    assert list(b.admission._shared_at) == ["c", "d"]
    assert len(b.get(nodes[0].frame())) == 1, "it was forgotten, and is told again"
    assert b.get(nodes[2].frame()) == []


# -- who may not come in


def hello_frame(node: Node, me: Self | None = None) -> bytes:
    return node.greet(GreetingHello(me or node.admission.me, bytes(NONCE_BYTES)))


def changed(**fields: object) -> Self:
    return msgspec.structs.replace(ME, **fields)


@pytest.mark.parametrize(
    ("word", "me", "names"),
    [
        ("cluster", changed(cluster="bank"), ("'shop'", "'bank'")),
        ("environment", changed(environment="production"), ("'staging'", "'production'")),
        ("version", changed(version="2.0"), ("1.0", "2.0")),
        ("version", changed(version="one"), ("'one'",)),
        ("version", changed(required=["flight"]), ("'flight'",)),
        ("role", changed(role="king"), ("'king'", "'a'", "'b'")),
        # The most wrong first: what is of another cluster is not looked at any further.
        ("cluster", changed(cluster="bank", environment="production", version="2.0", role="king"), ("'bank'",)),
        ("environment", changed(environment="production", version="2.0", role="king"), ("'production'",)),
        ("version", changed(version="2.0", role="king"), ("2.0",)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_hello_that_does_not_fit_is_refused_with_a_sentence_that_names_both_and_counted(
    word: str, me: Self, names: tuple[str, ...]
) -> None:
    a, b = Node("a", boot=1), Node("b", boot=2)
    stranger = Node("a", boot=1, me=changed(cluster=me.cluster, environment=me.environment))

    (refusal,) = b.get(hello_frame(stranger, me), source="at-a")

    _, message = a.read(refusal.frame)
    assert isinstance(message, GreetingRefusal)
    assert (refusal.to, message.echo, message.reason) == ("at-a", bytes(NONCE_BYTES), word)
    assert all(name in message.text for name in names), message.text
    assert (b.replay_guard.refused, b.admission.lives.challenged, b.heard) == ({word: 1}, 0, [])


def test_a_role_that_may_not_connect_is_refused_and_both_roles_are_named() -> None:
    a = Node("a", boot=1, me=changed(role="worker"))
    b = Node("b", boot=2, me=changed(role="worker"))

    (refusal,) = b.get(hello_frame(a))

    message = a.read(refusal.frame)[1]
    assert isinstance(message, GreetingRefusal)
    assert message.text == "a worker may not connect to a worker, only to a manager"
    assert b.replay_guard.refused == {"role": 1}


def test_with_certificates_a_role_that_is_not_the_certificates_is_refused() -> None:
    """The certificate says manager."""
    a = Node("a", boot=1, me=changed(role="worker"))
    b = Node("b", boot=2, certified=True)

    (refusal,) = b.get(hello_frame(a), proven="a", lane=Lane.STREAM)

    message = a.read(refusal.frame)[1]
    assert isinstance(message, GreetingRefusal)
    assert message.text == "'a' says it is a worker, and its certificate does not"
    assert b.replay_guard.refused == {"role": 1}


def test_with_certificates_a_welcome_of_another_role_than_the_certificates_is_none() -> None:
    a, b = Node("a", boot=1, certified=True), Node("b", boot=2, me=changed(role="gate"))
    (_, hello) = a.admission.hello(0, "at-b")
    assert isinstance(hello, Transmit)
    (welcome,) = b.get(hello.frame, lane=Lane.STREAM)

    assert a.get(welcome.frame, proven="b", lane=Lane.STREAM) == []
    assert (a.news, a.replay_guard.refused) == ([], {"role": 1})


def test_one_that_is_refused_learns_why() -> None:
    a, b = Node("a", boot=1, me=changed(cluster="bank")), Node("b", boot=2)
    (hello, _) = a.admission.hello(0, "at-b")
    assert isinstance(hello, Transmit)
    (refusal,) = b.get(hello.frame)

    assert a.get(refusal.frame) == []
    assert a.news == [HelloDeclined("at-b", "cluster", "'b' is of cluster 'shop', not of 'bank'")]
    a.get(refusal.frame)
    assert len(a.news) == 1, "the answer to one question is heard once"


def test_a_refusal_that_nobody_asked_for_is_no_news() -> None:
    a, b = pair()

    assert a.get(b.greet(GreetingRefusal(bytes(NONCE_BYTES), "cluster", "go away"))) == []
    assert a.news == []


@settings(deadline=None, derandomize=True, max_examples=50)
@given(
    cluster=st.text(alphabet="a\x00\U000e0001'", min_size=64, max_size=64) | st.just("shop"),
    environment=st.text(alphabet="\x00\U000e0001", min_size=64, max_size=64) | st.just("staging"),
    role=st.text(alphabet="\U000e0001", max_size=64),
    version=st.text(max_size=64),
    name=st.text(alphabet="\U000e0001", min_size=1, max_size=128),
)
def test_whatever_words_a_stranger_uses_its_refusal_can_be_read(
    cluster: str, environment: str, role: str, version: str, name: str
) -> None:
    b = Node("b", boot=2)
    stranger = Node(name, boot=1, me=changed(cluster=cluster, environment=environment))

    (refusal,) = b.get(hello_frame(stranger, changed(role=role, version=version)))

    message = b.read(refusal.frame)[1]
    assert isinstance(message, GreetingRefusal)
    assert 0 < len(message.text) <= TEXT_LIMIT


@pytest.mark.parametrize("word", ["cluster", "environment"])
@pytest.mark.parametrize(
    "say",
    [
        pytest.param(lambda node: node.frame(), id="membership"),
        pytest.param(lambda node: node.frame(channel=leadership.CHANNEL.number, to="b"), id="leadership"),
        pytest.param(lambda node: node.frame(channel=leadership.CHANNEL.number), id="leadership, not addressed"),
        pytest.param(lambda node: node.greet(Challenge(bytes(NONCE_BYTES))), id="challenge"),
        pytest.param(lambda node: node.greet(Proof(bytes(NONCE_BYTES), 0)), id="proof"),
        pytest.param(
            lambda node: node.greet(GreetingWelcome(ME, bytes(NONCE_BYTES), bytes(NONCE_BYTES))), id="welcome"
        ),
        pytest.param(lambda node: node.greet(ShareRing(b"")), id="keys"),
        pytest.param(lambda node: node.frame(channel=greeting.CHANNEL.number, body=b"\xc0"), id="no greeting"),
    ],
)
def test_whatever_another_cluster_or_environment_says_is_counted_so_before_anything_else(
    word: str, say: object
) -> None:
    b = Node("b", boot=2)
    stranger = Node("b", boot=1, me=changed(**{word: "other"}))

    assert b.get(say(stranger), proven="x") == []  # type: ignore[operator]
    assert (b.replay_guard.refused, b.admission.lives.challenged) == ({word: 1}, 0)


def test_another_protocol_is_counted_so() -> None:
    b = Node("b", boot=2)
    packet = Packet(PROTOCOL + 1, "shop/staging", "a", 1, 1, membership.CHANNEL.number, msgspec.Raw(BODY))

    assert b.get(Seal(b.admission.ring, 1).seal(1, b"\x00" + encode_packet(packet))) == []
    assert b.replay_guard.refused == {"protocol": 1}


# -- seals


def test_a_frame_addressed_to_one_does_not_open_at_another() -> None:
    a, b = pair()
    c = Node("c", boot=3)
    met(a, b)
    met(a, c)
    frame = a.frame(channel=leadership.CHANNEL.number, to="c")

    assert b.get(frame) == c.get(frame) == []
    assert (b.heard, b.replay_guard.refused) == ([], {"forged": 1})
    assert (len(c.heard), c.replay_guard.refused) == (1, {})


@pytest.mark.parametrize("channel", [leadership.CHANNEL.number, leases.CHANNEL.number, asking.CHANNEL.number, 99])
def test_a_control_frame_that_is_not_addressed_is_refused(channel: int) -> None:
    a, b = pair()
    met(a, b)

    assert b.get(a.frame(channel=channel)) == []
    assert (b.heard, b.replay_guard.refused) == ([], {"unaddressed": 1})
    b.get(a.frame(channel=channel, to="b"))
    assert len(b.heard) == 1


def test_a_control_frame_that_is_not_addressed_is_not_even_held() -> None:
    a, b = pair()

    assert b.get(a.frame(channel=leases.CHANNEL.number)) == []
    assert (b.replay_guard.refused, b.admission.lives.challenged) == ({"unaddressed": 1}, 0)


@pytest.mark.parametrize("channel", [leadership.CHANNEL.number, leases.CHANNEL.number, asking.CHANNEL.number])
def test_with_certificates_a_control_frame_whose_certificate_names_another_is_refused(channel: int) -> None:
    a, b = Node("a", boot=1), Node("b", boot=2, certified=True)
    met(a, b)

    for proven in ("", "b", "A", "a "):
        assert b.get(a.frame(channel=channel, to="b"), proven=proven, lane=Lane.STREAM) == []
    assert b.get(a.frame(channel=channel, to="b"), proven="a", lane=Lane.DATAGRAM) == [], "nothing proves it there"
    assert (b.heard, b.replay_guard.refused) == ([], {"certificate": 5})
    b.get(a.frame(channel=channel, to="b"), proven="a", lane=Lane.STREAM)
    assert len(b.heard) == 1


def test_with_certificates_greetings_over_a_stream_count_only_from_the_one_the_certificate_names() -> None:
    a, b = Node("a", boot=1), Node("b", boot=2, certified=True)

    assert b.get(hello_frame(a), proven="client", lane=Lane.STREAM) == []
    assert b.replay_guard.refused == {"certificate": 1}
    assert len(b.get(hello_frame(a), proven="a", lane=Lane.STREAM)) == 1


def test_with_certificates_membership_and_greetings_still_need_none() -> None:
    a, b = Node("a", boot=1), Node("b", boot=2, certified=True)
    met(a, b)

    b.get(a.frame())
    b.get(hello_frame(a))

    assert (len(b.heard), b.replay_guard.refused) == (1, {})


def test_with_certificates_keys_count_only_on_a_stream_from_a_proven_manager() -> None:
    a, b = Node("a", boot=1), Node("b", boot=2, certified=True)
    met(a, b)
    ring = a.admission.ring.with_key(NEW)

    b.get(a.greet(ShareRing(encode_ring(ring))), source="1.2.3.4:5")
    for role in (Role.WORKER, Role.CLIENT, None):
        frame = a.greet(ShareRing(encode_ring(ring)))
        arrivals, out = b.admission.receive(SECOND, "1.2.3.4:5", frame, Lane.STREAM, 0, Proven("a", role))
        b.news += out
        assert arrivals == []
    assert b.heard == []
    assert (b.replay_guard.refused, b.admission.rings.refused) == (
        {"certificate": 4},
        {"datagram": 1, "role": 3, "jump": 0, "key": 0},
    )
    facts = f"version 1, keys {', '.join(ring.accepted())}, sealing with {key_id(OLD)}"
    assert b.news == [
        LeadershipAlarm(
            "keys",
            "keys in a datagram, which no certificate covers, were refused; 'a' at 1.2.3.4:5 sent them: " + facts,
        ),
        LeadershipAlarm("keys", "'a' at 1.2.3.4:5 is not a manager; the keys it sent were refused: " + facts),
    ]

    b.get(a.greet(ShareRing(encode_ring(ring))), proven="a", lane=Lane.STREAM)
    assert len(b.heard) == 1


@without("ring_from_managers")
def test_without_the_safeguard_a_datagram_brings_keys() -> None:
    a = Node("a", boot=1)
    b = Node("b", boot=2, certified=True)
    met(a, b)

    b.get(a.greet(ShareRing(encode_ring(a.admission.ring))))

    assert len(b.heard) == 1


# -- under a key that the ring has lost


def lost_key(**more: object) -> Node:
    """Its ring has the new key alone; its operator's file has the old one."""
    ring = Keyring.of((NEW,))
    return Node("b", boot=2, ring=ring, spare=(OLD,), **({"certified": True} | more))  # type: ignore[arg-type]


def test_a_proven_manager_is_answered_under_a_key_that_only_the_file_of_the_node_has() -> None:
    a, b = Node("a", boot=1), lost_key()
    hello = [sent for sent in a.admission.hello(0, "at-b") if isinstance(sent, Transmit)][1]

    (welcome,) = b.get(hello.frame, proven="a", lane=Lane.STREAM)
    assert a.read(welcome.frame)[0].key_id == key_id(OLD)
    (proof,) = a.get(welcome.frame)
    (share,) = b.get(proof.frame, proven="a", lane=Lane.STREAM)
    assert a.read(share.frame) == (
        Opened(a.seal.open(share.frame).content, 2, 2, key_id(OLD), False),
        ShareRing(encode_ring(b.admission.ring)),
    ), "it may have missed what was repaired"
    b.get(a.frame(channel=asking.CHANNEL.number, to="b"), proven="a", lane=Lane.STREAM)
    b.get(a.greet(ShareRing(encode_ring(a.admission.ring))), proven="a", lane=Lane.STREAM)
    assert (len(b.heard), b.replay_guard.refused) == (2, {})
    assert b.admission.key_of("a") == "" and b.admission.spare_ids == (key_id(OLD),)

    for channel in (membership.CHANNEL.number, leadership.CHANNEL.number, leases.CHANNEL.number):
        assert b.get(a.frame(channel=channel, to="b"), proven="a", lane=Lane.STREAM) == []
    assert (len(b.heard), b.replay_guard.refused) == (2, {"key": 3})


def test_nobody_else_is_heard_under_a_key_that_the_ring_has_lost() -> None:
    a = Node("a", boot=1)
    for b, role, lane in (
        (lost_key(), Role.WORKER, Lane.STREAM),
        (lost_key(), Role.CLIENT, Lane.STREAM),
        (lost_key(), Role.MANAGER, Lane.DATAGRAM),
        (lost_key(certified=False), Role.MANAGER, Lane.STREAM),
    ):
        assert b.admission.receive(0, "from", hello_frame(a), lane, 0, Proven("a", role)) == ([], [])
        assert b.replay_guard.refused == {"key": 1}
    assert lost_key(certified=False).admission.spare_ids == ()


def test_a_wrong_key_is_counted_and_nothing_is_answered() -> None:
    b = Node("b", boot=2)
    stranger = Node("a", boot=1, secrets=(OTHER,))

    assert b.get(stranger.frame()) == b.get(hello_frame(stranger)) == []
    assert (b.replay_guard.refused, b.admission.opened) == ({"key": 2}, 0)


def test_a_seal_whose_life_is_not_that_of_the_packet_in_it_is_forged() -> None:
    b = Node("b", boot=2)
    seal = Seal(b.admission.ring, 1)
    for number, (boot, counter) in enumerate([(7, 1), (1, 99)], 1):
        packet = Packet(PROTOCOL, "shop/staging", "a", boot, counter, membership.CHANNEL.number, msgspec.Raw(BODY))

        assert b.get(seal.seal(number, b"\x00" + encode_packet(packet))) == []

    assert b.replay_guard.refused == {"forged": 2}


def test_a_frame_of_its_own_name_is_refused_whatever_it_says() -> None:
    b = Node("b", boot=2)
    twin = Node("b", boot=3)
    frames = [
        twin.frame(),
        b.frame(),
        hello_frame(b),
        twin.greet(Challenge(bytes(NONCE_BYTES))),
        twin.greet(Proof(bytes(NONCE_BYTES), 0)),
        twin.greet(GreetingWelcome(ME, bytes(NONCE_BYTES), bytes(NONCE_BYTES))),
        twin.greet(ShareRing(b"")),
    ]

    assert [b.get(frame) for frame in frames] == [[]] * len(frames)
    assert (b.replay_guard.refused, b.admission.lives.challenged) == ({"own": len(frames)}, 0)


def test_another_node_of_its_own_name_that_asks_to_be_let_in_gets_a_sentence_and_each_address_is_told_once() -> None:
    b, twin = Node("b", boot=2), Node("b", boot=3)

    answers = [b.get(hello_frame(twin), source=source) for source in ("at-twin", "at-twin", "elsewhere")]

    for (answer,) in answers:
        refusal = twin.read(answer.frame)[1]
        assert isinstance(refusal, GreetingRefusal)
        assert refusal.reason == "name" and refusal.text.startswith("another node is called 'b' here: start yours with")
    assert b.replay_guard.refused == {"name": 3}
    told = "another node calls itself 'b' as this one does, at {}: start it with another --name"
    assert b.news == [LeadershipAlarm("name", told.format(where)) for where in ("at-twin", "elsewhere")]
    for n in range(NAMESAKES_LIMIT):
        b.get(hello_frame(twin), source=f"at-{n}")
    assert len(b.news) == NAMESAKES_LIMIT


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "malformed"),
        (b"\x07", "malformed"),
        (b"\x00no packet", "malformed"),
        (b"\x01no stream", "malformed"),
        (b"\x01" + zlib.compress(bytes(50 * GRACE_BYTES)), "bomb"),
    ],
    ids=["nothing", "an unknown kind", "no packet", "not compressed", "a bomb"],
)
def test_what_is_sealed_and_still_no_packet_is_counted(content: bytes, reason: str) -> None:
    b = Node("b", boot=2)

    assert b.get(Seal(b.admission.ring, 1).seal(1, content)) == []
    assert (b.replay_guard.refused, b.admission.opened) == ({reason: 1}, 0)


def test_a_greeting_that_nobody_can_read_is_counted() -> None:
    a, b = pair()

    assert b.get(a.frame(channel=greeting.CHANNEL.number, body=b"\xc0")) == []
    assert b.replay_guard.refused == {"body": 1}


@settings(deadline=None, derandomize=True)
@given(st.binary(max_size=120))
def test_garbage_is_counted_and_nothing_is_raised(frame: bytes) -> None:
    b = Node("b", boot=2)

    assert b.get(frame) == []
    assert sum(b.replay_guard.refused.values()) == 1


@settings(deadline=None, derandomize=True)
@given(st.data())
def test_a_turned_bit_or_a_missing_end_is_counted_and_nothing_is_raised(data: st.DataObject) -> None:
    a, b = pair()
    met(a, b)
    says = [
        a.frame(),
        a.frame(channel=leases.CHANNEL.number, to="b"),
        hello_frame(a),
        a.greet(Challenge(bytes(NONCE_BYTES))),
    ]
    frame = bytearray(data.draw(st.sampled_from(says)))
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, 8 * len(frame) - 1))
        frame[place // 8] ^= 1 << place % 8
    else:
        del frame[data.draw(st.integers(0, len(frame) - 1)) :]

    assert b.get(bytes(frame)) == []
    assert (b.heard, sum(b.replay_guard.refused.values())) == ([], 1)


@settings(deadline=None, derandomize=True)
@given(channel=st.integers(-1, 7), body=st.binary(max_size=40), to=st.sampled_from(["", "b", "c"]))
def test_whatever_one_with_the_key_says_it_is_heard_or_answered_or_counted(channel: int, body: bytes, to: str) -> None:
    a, b = pair()
    met(a, b)
    counted = sum(b.replay_guard.refused.values())
    content = msgspec.msgpack.encode(body) if channel != greeting.CHANNEL.number else msgspec.msgpack.encode([5, body])

    sent = b.get(a.frame(channel=channel, body=content, to=to))

    assert len(b.heard) + len(sent) + sum(b.replay_guard.refused.values()) - counted == 1


def test_the_key_of_a_frame_is_of_its_life() -> None:
    a = Node("a", boot=1)
    frame = a.frame()

    nonce, header = bytes(4) + frame[14:22], frame[:22]
    assert AESGCM(boot_key(OLD, 1)).decrypt(nonce, frame[22:], header)[1:] == encode_packet(
        Packet(PROTOCOL, "shop/staging", "a", 1, 1, membership.CHANNEL.number, msgspec.Raw(BODY))
    )


# -- greeting


def test_a_hello_goes_over_both_ways_and_a_welcome_proves_both_to_each_other() -> None:
    a, b = pair()
    sent = [effect for effect in a.admission.hello(0, "at-b") if isinstance(effect, Transmit)]
    assert [(each.to, each.lane) for each in sent] == [("at-b", Lane.DATAGRAM), ("at-b", Lane.STREAM)]

    recording = converse(a, b, sent[1].frame)

    assert [to for to, _ in recording] == ["b", "a", "b"]
    assert a.news == [Welcomed("at-b", "b", ME, Lane.DATAGRAM)]
    a.get(b.frame())
    b.get(a.frame())
    assert (len(a.heard), len(b.heard)) == (1, 1), "neither asks the other again"
    assert (a.replay_guard.refused, b.replay_guard.refused) == ({}, {})


def test_a_welcome_is_heard_once_and_only_as_an_answer() -> None:
    a, b = pair()
    (hello, _) = a.admission.hello(0, "at-b")
    assert isinstance(hello, Transmit)
    (welcome,) = b.get(hello.frame)

    assert len(a.get(welcome.frame)) == 1
    assert a.get(welcome.frame) == []
    assert a.get(b.greet(GreetingWelcome(ME, bytes(NONCE_BYTES), bytes(NONCE_BYTES)))) == []
    assert (len(a.news), a.replay_guard.refused) == (1, {"replayed": 2})


def test_a_welcome_that_was_held_back_for_long_is_no_answer_any_more() -> None:
    a, b = pair()
    (hello, second) = a.admission.hello(0, "at-b")
    assert isinstance(hello, Transmit) and isinstance(second, Transmit)
    (welcome,), (late,) = b.get(hello.frame), b.get(second.frame)
    old = b.frame()

    assert a.get(late.frame, WELCOME_NS + 1) == []
    a.get(old, WELCOME_NS + 1)
    assert (a.news, a.heard, a.replay_guard.refused) == ([], [], {"replayed": 1})
    assert len(a.get(welcome.frame, WELCOME_NS)) == 1


def test_frames_from_before_a_welcome_are_refused() -> None:
    a, b = pair()
    early = b.frame()
    (hello, _) = a.admission.hello(0, "at-b")
    assert isinstance(hello, Transmit)
    (welcome,) = b.get(hello.frame)
    a.get(welcome.frame)

    a.get(early)
    a.get(b.frame())

    assert (a.heard, a.replay_guard.refused) == ([3], {"replayed": 1})


def test_a_welcome_of_a_life_that_is_known_shuts_nothing_out() -> None:
    a, b = pair()
    met(b, a)
    on_its_way = b.frame()
    (hello, _) = a.admission.hello(0, "at-b")
    assert isinstance(hello, Transmit)
    (welcome,) = b.get(hello.frame)
    a.get(welcome.frame)

    a.get(on_its_way)

    assert (len(a.heard), a.replay_guard.refused) == (1, {})


def test_a_hello_and_frames_before_its_proof_share_one_nonce() -> None:
    a, b = pair()
    (welcome,) = b.get(hello_frame(a))
    (challenge,) = b.get(a.frame())

    welcomed, challenged = a.read(welcome.frame)[1], a.read(challenge.frame)[1]

    assert isinstance(welcomed, GreetingWelcome) and isinstance(challenged, Challenge)
    assert welcomed.nonce == challenged.nonce
    assert b.admission.lives.challenged == 1


# -- keys


def test_one_with_only_the_old_key_is_answered_under_it_and_told_the_new_ones_once_a_second() -> None:
    ring = Keyring.of((OLD,)).with_key(NEW)
    b = Node("b", boot=2, ring=ring.with_primary(key_id(NEW)))
    a = Node("a", boot=1)
    hellos = [effect for effect in a.admission.hello(0, "at-b") if isinstance(effect, Transmit)]

    recording = converse(a, b, hellos[0].frame)

    assert [a.read(frame)[0].key_id for _, frame in recording] == [key_id(OLD)] * 4
    shared = a.read(recording[-1][1])[1]
    assert isinstance(shared, ShareRing)
    assert decode_ring(shared.ring) == b.admission.ring
    assert len(a.heard) == 1, "the member behind admission gets it"
    assert b.get(a.frame(), SHARE_NS - 1) == []
    (again,) = b.get(a.frame(), SHARE_NS, source="at-a")
    assert (again.to, again.lane) == ("at-a", Lane.STREAM)


def test_new_keys_hold_for_what_is_sent_and_opened_from_then_on_and_are_told_once() -> None:
    a, b = pair()
    ring = Keyring.of((NEW,))

    assert a.admission.use(a.admission.ring) == []
    assert a.admission.use(ring) == [RingChanged(ring)]
    assert a.admission.ring == ring
    b.get(a.frame())
    assert b.replay_guard.refused == {"key": 1}
    b.admission.use(ring)
    met(a, b)
    assert b.replay_guard.refused == {"key": 1}


def test_the_key_a_node_used_last_is_known_while_it_is_in_use_and_not_ours() -> None:
    b = Node("b", boot=2, keys_noted_limit=2)
    for number, name in enumerate(("a", "c", "d")):
        other = Node(name, boot=10 + number)
        met(other, b)
        b.get(other.frame())
        b.get(other.frame())
    mine = b.admission.ring.primary_id
    assert b.admission.key_of("d") == "", "it is ours"

    ring = b.admission.ring.with_key(OTHER)
    b.admission.use(ring.with_primary(key_id(OTHER)))
    assert [b.admission.key_of(name) for name in ("a", "c", "d", "e")] == ["", mine, mine, ""]

    b.admission.use(b.admission.ring.without(mine))
    assert b.admission.key_of("d") == ""


# -- what was agreed on


NEW_ME = Self("shop", "staging", "manager", "1.1", ["keyring", "one-life"])


def spoken(node: Node, name: str) -> tuple[int, str]:
    """The life it was agreed on with, and the version."""
    return node.admission.agreements.life_of(name), str(node.admission.agreements.of(name).version)


def test_both_sides_of_a_greeting_know_what_they_agreed_on() -> None:
    a, b = Node("a", boot=1, me=NEW_ME), Node("b", boot=2, me=NEW_ME)
    hellos = [effect for effect in a.admission.hello(0, "at-b") if isinstance(effect, Transmit)]

    converse(a, b, hellos[0].frame)

    assert (spoken(a, "b"), spoken(b, "a")) == ((2, "1.1"), (1, "1.1"))
    assert [news for node in (a, b) for news in node.news if isinstance(news, VersionDiffers)] == []


def test_a_life_that_proves_itself_says_what_it_is_and_one_that_says_nothing_speaks_the_oldest() -> None:
    a, b = Node("a", boot=1, me=NEW_ME), Node("b", boot=2, me=NEW_ME)
    met(a, b)
    old = Node("c", boot=3)
    (challenge,) = b.get(old.frame())
    nonce = old.read(challenge.frame)[1].nonce  # type: ignore[union-attr]

    b.get(old.greet(Proof(nonce, 0)))

    assert (spoken(b, "a"), spoken(b, "c")) == ((1, "1.1"), (3, "1.0"))
    assert b.news == [VersionDiffers("c", "1.1", "1.0", "1.0", ("keyring",))]


def test_a_life_that_is_known_and_of_which_nothing_is_agreed_on_is_heard_and_asked() -> None:
    a, b = Node("a", boot=1, me=NEW_ME), Node("b", boot=2, me=NEW_ME)
    met(a, b)
    b.admission.agreements.end("a", 1)

    (challenge,) = b.get(a.frame())
    assert len(b.heard) == 1
    assert b.get(a.frame()) == [], "it is not asked with every frame"
    for proof in a.get(challenge.frame):
        b.get(proof.frame)

    assert spoken(b, "a") == (1, "1.1")
    assert len(b.heard) == 2, "nothing is heard twice"
    assert b.get(a.frame()) == []


@pytest.mark.parametrize("version", ["2.0", "one"])
def test_who_cannot_be_talked_with_proves_nothing_and_welcomes_nobody(version: str) -> None:
    a, b = Node("a", boot=1, me=NEW_ME), Node("b", boot=2, me=NEW_ME)
    (challenge,) = b.get(a.frame())
    nonce = a.read(challenge.frame)[1].nonce  # type: ignore[union-attr]
    b.get(a.greet(Proof(nonce, 0, version)))
    hello = next(effect for effect in a.admission.hello(0, "at-b") if isinstance(effect, Transmit))
    echo = b.read(hello.frame)[1].nonce  # type: ignore[union-attr]
    welcome = GreetingWelcome(msgspec.structs.replace(NEW_ME, version=version), echo, bytes(NONCE_BYTES))

    a.get(b.greet(welcome))

    assert (b.heard, b.replay_guard.refused, a.replay_guard.refused) == ([], {"version": 1}, {"version": 1})
    assert a.news == []


def test_what_is_meant_for_one_life_is_heard_by_no_other() -> None:
    a, b = pair()
    met(a, b)
    channel = leases.CHANNEL.number
    meant = [a.admission.wrap(0, channel, BODY, to="b", life=life) for life in (0, 2, 3)]

    for frame in meant:
        b.get(frame)

    assert len(b.heard) == 2
    assert b.replay_guard.refused == {"life": 1}
