"""With certificates members are believed to be where they say themselves; that they live needs no signature."""

from hashlib import blake2b
from random import Random

import msgspec
import pytest

from talka.cluster.effects import Lane, Send
from talka.cluster.membership.members import ALIVE, SUSPECT
from talka.cluster.membership.membership import Membership
from talka.cluster.membership.news import MemberJoined, MembershipEffect, Namesake
from talka.cluster.membership.presets import PRESETS
from talka.cluster.membership.vouched import AGAIN, Notary, Vouched
from talka.units import SECOND
from talka.wire.membership import (
    Alive,
    Gossip,
    MemberRecord,
    MembershipMessage,
    MemberState,
    MemberUpdate,
    Stated,
    Suspect,
    SyncOffer,
    SyncRecords,
    SyncReply,
    decode_update,
    encode_update,
)
from tests.sim.variants import without


class Signs:
    """A notary whose signatures are digests. Who has no key of a name cannot make them."""

    def __init__(self, name: str) -> None:
        self.certificate = f"certificate of {name}".encode()
        self.asked = 0
        self._name = name

    def sign(self, purpose: str, statement: bytes) -> bytes:
        return _signature(self._name, purpose, statement)

    def has_signed(self, name: str, purpose: str, statement: bytes, signature: bytes, certificate: bytes) -> bool:
        self.asked += 1
        is_own = certificate == f"certificate of {name}".encode()
        return is_own and signature == _signature(name, purpose, statement)


def _signature(name: str, purpose: str, statement: bytes) -> bytes:
    return blake2b(f"{name} {purpose} ".encode() + statement, digest_size=16).digest()


def member_of(name: str, *, notary: Notary | None = None, boot: int = 1, at: str = "") -> Membership:
    return Membership(
        name=name,
        boot=boot,
        address=at or f"at-{name}",
        group="shop/staging",
        config=PRESETS["fast"],
        rng=Random(name),
        now=0,
        notary=notary,
    )


def hear(
    member: Membership,
    *updates: MemberUpdate,
    message: MembershipMessage | None = None,
    sender: str = "x",
    boot: int = 1,
) -> list[MembershipEffect]:
    raw = [encode_update(update) for update in updates]
    return member.on_message(0, f"at-{sender}", sender, boot, message or Gossip(), raw, 0)


def address_of(member: Membership, name: str) -> str | None:
    known = member.get(name)
    return None if known is None else known.address


def certified(name: str = "a") -> tuple[Membership, Signs]:
    notary = Signs(name)
    return member_of(name, notary=notary), notary


B = member_of("b", notary=Signs("b")).me
B_ELSEWHERE = msgspec.structs.replace(B, address="at-thief", incarnation=9)


def test_a_member_signs_where_it_is_once_for_its_life() -> None:
    b, _ = certified("b")
    first = b.me
    hear(b, Suspect("b", 1, 0, "x", "no answer"))

    assert b.me.incarnation == 1
    assert (b.me.certificate, b.me.signature) == (first.certificate, first.signature) and first.signature


def test_a_signed_record_is_believed_whoever_passes_it_on() -> None:
    for message in (Gossip(), SyncRecords([MemberRecord("b", 1, 0, "at-b", "", b"", 0, None, "", "", *_proof(B))])):
        a, _ = certified()
        out = hear(a, *([B] if isinstance(message, Gossip) else []), message=message)
        assert MemberJoined("b", 1, "at-b") in out and a.disbelieved == 0


def _proof(alive: Alive) -> tuple[bytes, bytes]:
    return alive.certificate, alive.signature


@pytest.mark.parametrize(
    "forged",
    [
        msgspec.structs.replace(B, certificate=b"", signature=b""),
        msgspec.structs.replace(B, signature=b""),
        msgspec.structs.replace(B, address="at-thief"),
        msgspec.structs.replace(B, zone="elsewhere"),
        msgspec.structs.replace(B, meta=b"other"),
        msgspec.structs.replace(B, boot=2),
        msgspec.structs.replace(B, name="c"),
        msgspec.structs.replace(B, certificate=b"certificate of x"),
    ],
    ids=["unsigned", "no signature", "address", "zone", "meta", "life", "name", "certificate"],
)
def test_what_the_member_did_not_sign_introduces_nobody(forged: Alive) -> None:
    a, _ = certified()
    record = MemberRecord(forged.name, forged.boot, 0, forged.address, forged.zone, forged.meta, 0, None, "", "")
    messages: list[MembershipMessage] = [
        Gossip(),
        SyncRecords([msgspec.structs.replace(record, certificate=forged.certificate, signature=forged.signature)]),
        SyncOffer(forged, None, b""),
        SyncReply(forged, [], []),
    ]
    for message in messages:
        updates = [forged] if isinstance(message, Gossip) else []
        hear(a, *updates, message=message, sender=forged.name, boot=forged.boot)

    assert a.members() == []
    assert a.disbelieved == len(messages)


def test_nobody_moves_a_member_to_another_address_and_without_the_safeguard_anybody_does() -> None:
    for lacking, moved in (((), "at-b"), (("signed_records",), "at-thief")):
        with without(*lacking):
            a = member_of("a", notary=Signs("a"))
            hear(a, B)
            hear(a, B_ELSEWHERE)
        assert address_of(a, "b") == moved


def test_another_life_at_another_address_is_neither_taken_nor_asked_for() -> None:
    a, _ = certified()
    hear(a, B)

    out = hear(a, msgspec.structs.replace(B_ELSEWHERE, boot=2), sender="b")

    assert address_of(a, "b") == "at-b"
    assert not [effect for effect in out if isinstance(effect, Send) and effect.to == "at-thief"]


def test_a_sign_of_life_needs_no_signature() -> None:
    a, notary = certified()
    hear(a, B, Suspect("b", 1, 0, "x", "no answer"))
    member = a.get("b")
    assert member is not None and member.status == SUSPECT
    asked = notary.asked

    hear(a, msgspec.structs.replace(B, incarnation=1, certificate=b"", signature=b""))

    assert (member.status, member.incarnation, notary.asked) == (ALIVE, 1, asked)
    assert (member.certificate, member.signature) == _proof(B), "it is kept, to be passed on"


def test_a_refutation_is_small_and_a_sync_brings_the_proof() -> None:
    b, _ = certified("b")
    hear(b, member_of("a", notary=Signs("a")).me, sender="a")
    hear(b, Suspect("b", 1, 0, "a", "no answer"), sender="a")
    news = [
        decode_update(raw) for effect in b.tick(b.next_tick_at) if isinstance(effect, Send) for raw in effect.updates
    ]

    assert msgspec.structs.replace(B, incarnation=1, certificate=b"", signature=b"") in news
    (reply,) = [
        effect.message
        for effect in hear(b, message=SyncOffer(member_of("a", notary=Signs("a")).me, None, b""), sender="a")
        if isinstance(effect, Send) and effect.lane is Lane.STREAM
    ]
    assert isinstance(reply, SyncReply)
    assert _proof(reply.me) == _proof(B)
    assert {record.name: (record.certificate, record.signature) for record in reply.records}["b"] == _proof(B)


def test_a_state_counts_only_when_the_member_signed_it() -> None:
    b, _ = certified("b")
    b.set_state(0, b"api 10.0.0.1:8470")
    signed = b.state
    assert signed is not None and signed.signature
    a, _ = certified()
    hear(a, B)
    member = a.get("b")
    assert member is not None

    for forged in (
        MemberState(1, b"api evil:1"),
        MemberState(1, b"api evil:1", signed.signature),
        MemberState(2, b"api 10.0.0.1:8470", signed.signature),
    ):
        hear(a, Stated("b", 1, forged))
        hear(a, message=SyncRecords([MemberRecord("b", 1, 0, "at-b", "", b"", 0, forged)]))
        assert member.state is None
    assert a.disbelieved == 6
    hear(a, Stated("b", 1, signed))
    assert member.state == signed


def test_without_certificates_nothing_is_signed_and_everything_is_believed() -> None:
    a = member_of("a")
    a.set_state(0, b"busy")

    hear(a, B_ELSEWHERE, Stated("b", 1, MemberState(1, b"api")))

    assert (a.me.certificate, a.me.signature, a.state) == (b"", b"", MemberState(1, b"busy"))
    assert address_of(a, "b") == "at-thief" and a.disbelieved == 0


def test_the_same_news_is_judged_once_and_a_bad_one_again_after_a_while() -> None:
    a, notary = certified()
    for _ in range(AGAIN + 1):
        hear(a, B_ELSEWHERE)
    assert (notary.asked, a.disbelieved) == (1, AGAIN + 1)
    hear(a, B_ELSEWHERE)
    assert notary.asked == 2


def test_the_judgement_made_longest_ago_is_forgotten_first() -> None:
    notary = Signs("a")
    vouched = Vouched(notary, judged_limit=2)
    for boot in (5, 6, 7, 7, 5):
        assert not vouched.believes(msgspec.structs.replace(B_ELSEWHERE, boot=boot), None)
    assert notary.asked == 4, "of the first nothing is known any more"


def test_a_good_judgement_is_kept() -> None:
    a, notary = certified()
    records = [MemberRecord("b", 1, 0, "at-b", "", b"", 0, None, "", "", *_proof(B))]
    c, other = member_of("c", notary=notary), notary.asked
    hear(a, message=SyncRecords(records))
    assert notary.asked == other + 1
    hear(c, message=SyncRecords(records))
    assert notary.asked == other + 2, "each member judges for itself"
    vouched = a._vouched
    assert vouched.believes(B, None) and vouched.believes(B, None) and notary.asked == other + 2


def test_another_life_of_its_own_name_is_no_alarm_when_nobody_signed_it() -> None:
    a, _ = certified()
    forged = Alive("a", 2, 0, "at-thief")

    told = [a.on_message(at * SECOND, "at-x", "x", 1, Gossip(), [encode_update(forged)], 0) for at in (0, 60)]

    assert not [effect for out in told for effect in out if isinstance(effect, Namesake)]
    assert a.disbelieved == 2


# -- certificates that are renewed


class Renewable(Signs):
    """A notary whose certificate can be replaced. Both are of the same key, and one of them may have ended."""

    def __init__(self, name: str, ended: str = "") -> None:
        super().__init__(name)
        self.ended = ended.encode()

    def renew(self, which: str) -> None:
        self.certificate = f"certificate of {self._name}, {which}".encode()

    def sign(self, purpose: str, statement: bytes) -> bytes:
        return super().sign(purpose, statement + self.certificate)  # no two are the same, as with real ones

    def has_signed(self, name: str, purpose: str, statement: bytes, signature: bytes, certificate: bytes) -> bool:
        is_own = certificate.startswith(f"certificate of {name}".encode()) and certificate != self.ended
        return is_own and signature == _signature(name, purpose, statement + certificate)


def renewing() -> tuple[Membership, Renewable]:
    notary = Renewable("b")
    return member_of("b", notary=notary), notary


def test_a_renewed_certificate_takes_the_place_of_the_first_and_its_states_are_believed() -> None:
    a, (b, notary) = member_of("a", notary=Renewable("a", ended="certificate of b")), renewing()
    other = member_of("c", notary=Renewable("c"))
    b.set_state(0, b"first")
    hear(other, b.me, Stated("b", 1, b._updates.state))  # type: ignore[arg-type]
    assert other.get("b").certificate == b"certificate of b"  # type: ignore[union-attr]

    notary.renew("second")
    b.certify_again(0)

    assert (b.me.incarnation, b.me.certificate) == (1, b"certificate of b, second")
    state = b._updates.state
    assert state is not None and (state.version, state.payload) == (2, b"first")
    for one in (other, a):  # who knew the first one, and who comes when that has ended
        hear(one, b.me, Stated("b", 1, state))
        member = one.get("b")
        assert member is not None and (member.certificate, member.version) == (b.me.certificate, 2)
        assert one.disbelieved == 0


def test_a_member_without_a_state_tells_its_renewed_certificate_all_the_same() -> None:
    b, notary = renewing()
    notary.renew("second")

    b.certify_again(0)

    assert b.me.certificate == b"certificate of b, second" and b._updates.state is None


def test_nobody_puts_another_certificate_in_the_place_of_a_members_own() -> None:
    a, (b, _) = member_of("a", notary=Renewable("a")), renewing()
    hear(a, b.me)
    forged = msgspec.structs.replace(b.me, incarnation=5, certificate=b"certificate of b, forged", signature=b"none")

    hear(a, forged)

    member = a.get("b")
    assert member is not None and (member.certificate, member.incarnation) == (b.me.certificate, 0)
    assert a.disbelieved == 1
    hear(a, msgspec.structs.replace(forged, incarnation=0))
    assert a.disbelieved == 1, "what is of no later incarnation changes nothing, and is not looked at"
