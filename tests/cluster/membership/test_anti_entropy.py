import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.membership.anti_entropy import (
    bucket_of,
    differing,
    digests,
    not_in,
    own_record,
    pages,
    record_of,
    records_in,
)
from talka.cluster.membership.members import DEAD, LEFT, SUSPECT, Member
from talka.wire.membership import (
    ADDRESS_LIMIT,
    BUCKETS,
    DIGEST_BYTES,
    PAGE_LIMIT_BYTES,
    PAYLOAD_LIMIT_BYTES,
    REASON_LIMIT,
    RECORDS_LIMIT,
    ZONE_LIMIT,
    Alive,
    MemberRecord,
    MemberState,
    SyncReply,
    encode,
)
from talka.wire.packets import NAME_LIMIT

quick = settings(deadline=None, derandomize=True, max_examples=100)
ME = Alive("me", 1, 0, "me:1")
EVERYWHERE = list(range(BUCKETS))


def member(name: str, boot: int = 1, incarnation: int = 0, version: int = 0) -> Member:
    made = Member(Alive(name, boot, incarnation, f"{name}:1"), 0)
    if version:
        made.state = MemberState(version, b"")
    return made


def crowd(count: int) -> list[Member]:
    return [member(f"m{number}") for number in range(count)]


@given(others=st.permutations(crowd(10)))
@quick
def test_views_with_the_same_content_have_the_same_digests_in_whatever_order_it_was_learned(
    others: list[Member],
) -> None:
    assert digests(ME, None, others) == digests(ME, None, crowd(10))
    assert len(digests(ME, None, others)) == BUCKETS * DIGEST_BYTES


def test_two_members_that_know_each_other_have_the_same_digests() -> None:
    other = Alive("other", 2, 3, "other:1")

    mine = digests(ME, MemberState(4, b"x"), [member("other", 2, 3, version=5)])
    its = digests(other, MemberState(5, b"y"), [member("me", 1, 0, version=4)])

    assert mine == its


def test_another_life_incarnation_or_state_shows_in_the_bucket_of_the_member_alone() -> None:
    ours = digests(ME, None, crowd(10))
    for changed in (member("m3", boot=2), member("m3", incarnation=1), member("m3", version=1)):
        others = [changed if old.name == "m3" else old for old in crowd(10)]
        assert differing(ours, digests(ME, None, others)) == [bucket_of("m3")]
    assert differing(ours, digests(ME, MemberState(1, b""), crowd(10))) == [bucket_of("me")]


def test_suspicions_and_the_forgotten_dead_make_no_difference_but_somebody_held_dead_does() -> None:
    suspected, dead, left = crowd(3)
    suspected.status, dead.status, left.status = SUSPECT, DEAD, LEFT

    view = digests(ME, None, [suspected, dead, left])

    assert differing(view, digests(ME, None, [member("m0")])) == []
    assert differing(view, digests(ME, None, [member("m0"), member("m1")])) == [bucket_of("m1")]


def test_all_buckets_differ_from_digests_of_another_length() -> None:
    assert differing(digests(ME, None, []), b"") == EVERYWHERE


def test_records_of_the_asked_buckets_are_given_the_living_first() -> None:
    others = crowd(30)
    others[0].status = DEAD
    others[1].status = SUSPECT
    others[0].accuser, others[0].reason, others[0].state = "m5", "no answer", MemberState(2, b"s")

    records = records_in(EVERYWHERE, ME, MemberState(1, b"mine"), others)

    assert [record.status for record in records] == [0] * 29 + [1, 2]
    assert records[0] == MemberRecord("m10", 1, 0, "m10:1", "", b"", 0)
    assert records[-1] == MemberRecord("m0", 1, 0, "m0:1", "", b"", 2, MemberState(2, b"s"), "m5", "no answer")
    assert own_record(ME, MemberState(1, b"mine")) in records
    assert records_in([bucket_of("m7")], ME, None, others) == [
        record_of(other) for other in others if bucket_of(other.name) == bucket_of("m7")
    ]
    assert records_in([], ME, None, others) == []


def test_what_the_other_side_just_sent_is_not_sent_back() -> None:
    mine = [record_of(member("a")), record_of(member("b", incarnation=2)), record_of(member("c", version=2))]
    theirs = [record_of(member("a")), record_of(member("b", incarnation=1)), record_of(member("c", version=1))]

    assert [record.name for record in not_in(mine, theirs)] == ["b", "c"]
    assert not_in(mine, []) == mine
    assert not_in(mine[2:], mine[2:]) == []


def test_no_records_are_one_empty_page() -> None:
    assert pages([]) == [[]]


def test_pages_of_the_largest_records_stay_below_their_limit_and_lose_nothing() -> None:
    name, address = "ü" * 124, "€" * 256
    large = [
        MemberRecord(
            f"{number:04}{name}",
            2**62,
            2**62,
            address,
            "€" * 64,
            bytes(PAYLOAD_LIMIT_BYTES),
            2,
            MemberState(2**62, bytes(PAYLOAD_LIMIT_BYTES)),
            "€" * 128,
            "€" * 64,
        )
        for number in range(200)
    ]

    made = pages(large)

    assert [record for page in made for record in page] == large
    me = Alive(name, 2**62, 2**62, address, "€" * 64, bytes(PAYLOAD_LIMIT_BYTES))
    assert all(0 < len(encode(SyncReply(me, EVERYWHERE, page))) < PAGE_LIMIT_BYTES for page in made)


@pytest.mark.parametrize(
    ("field", "limit"),
    [
        ("name", NAME_LIMIT),
        ("address", ADDRESS_LIMIT),
        ("zone", ZONE_LIMIT),
        ("accuser", NAME_LIMIT),
        ("reason", REASON_LIMIT),
    ],
)
def test_each_text_of_a_record_counts_for_the_limit_of_its_page(field: str, limit: int) -> None:
    record = msgspec.structs.replace(MemberRecord("a", 1, 0, "a", "", b"", 0), **{field: "𝄞" * limit})

    made = pages([record] * 1200)

    assert sum(len(page) for page in made) == 1200
    assert all(len(encode(SyncReply(ME, EVERYWHERE, page))) < PAGE_LIMIT_BYTES for page in made)


def test_pages_of_the_longest_characters_are_nearly_full() -> None:
    name, address, zone, reason = ("𝄞" * limit for limit in (NAME_LIMIT, ADDRESS_LIMIT, ZONE_LIMIT, REASON_LIMIT))
    record = MemberRecord(name, 1, 0, address, zone, b"", 2, None, name, reason)

    *full, _ = pages([record] * 300)

    assert len(full) > 1
    assert all(len(encode(SyncReply(ME, EVERYWHERE, page))) > PAGE_LIMIT_BYTES * 9 // 10 for page in full)


def test_a_page_has_no_more_records_than_are_read() -> None:
    tiny = [MemberRecord("a", 1, 0, "a", "", b"", 0)] * (RECORDS_LIMIT + 1)

    assert all(len(page) <= RECORDS_LIMIT for page in pages(tiny))
