"""Messages between the voters of a group. Golden bytes hold them to what was released.

When a message gains a field, its bytes change: the old file moves to a test that it is still read, and a new one is
added under the next protocol's number.
"""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Untrusted
from talka.wire import leadership
from talka.wire.framing import FRAME_LIMIT_BYTES
from talka.wire.leadership import (
    ENTRIES_PER_PAGE,
    KEY_LIMIT,
    PAGE_LIMIT_BYTES,
    PAGES_LIMIT,
    VALUE_LIMIT_BYTES,
    BadLeadershipMessage,
    Collect,
    Collected,
    Heartbeat,
    HeartbeatReply,
    LeadershipMessage,
    Message,
    PreVote,
    PreVoteReply,
    ProposalAccepted,
    ProposalRefused,
    Propose,
    RegisterEntry,
    RegisterSnapshot,
    Released,
    SnapshotReply,
    Version,
    Vote,
    VoteReply,
    VoterHello,
    VoterWelcome,
    decode,
    encode,
    pages,
)
from talka.wire.packets import NAME_LIMIT

GOLDEN = Path(__file__).parent / "golden" / "protocol-1"
PREFIX = "leadership-"
quick = settings(deadline=None, derandomize=True, max_examples=200)

STORAGE = 2**61 + 17
FOUNDED = 2**60 + 5
ENTRY = RegisterEntry("job/b4k7", Version(7, 3), b"\x91\x01")

ALL: dict[str, LeadershipMessage] = {
    "hello": VoterHello(STORAGE, 12, True, FOUNDED, 2**50, 2**39 + 1),
    "welcome": VoterWelcome(STORAGE, 11, FOUNDED, STORAGE, Version(7, 1), 8, 2**39 + 2),
    "pre-vote": PreVote(8, 3, Version(7, 1), FOUNDED, 7, 1_500_000_000),
    "pre-vote-reply": PreVoteReply(7, 3, True),
    "vote": Vote(8, Version(7, 1), FOUNDED, 7, 1_500_000_000),
    "vote-reply": VoteReply(8, True, STORAGE, 12),
    "heartbeat": Heartbeat(8, 300, FOUNDED, 1_500_000_000, b"\x91\xce"),
    "heartbeat-reply": HeartbeatReply(8, 300, STORAGE, 12, Version(7, 1), 2),
    "collect": Collect(8, "job/b4k7"),
    "collected": Collected(8, "", (ENTRY,), True),
    "propose": Propose(8, 4, (ENTRY, RegisterEntry("leader", Version(8, 1), "Jörg".encode()))),
    "accepted": ProposalAccepted(8, 4, STORAGE, 13),
    "refused": ProposalRefused(9),
    "snapshot": RegisterSnapshot(8, 5, 1, 3, (ENTRY,), FOUNDED),
    "snapshot-reply": SnapshotReply(8, 5, 1, STORAGE),
    "released": Released(8, "manager-2"),
}


@pytest.mark.parametrize("name", ALL)
def test_golden_bytes_are_read_as_the_message_and_written_from_it(name: str) -> None:
    golden = bytes.fromhex((GOLDEN / f"{PREFIX}{name}.hex").read_text())

    assert decode(golden) == ALL[name]
    assert encode(ALL[name]) == golden


def test_there_are_golden_bytes_of_every_message_and_of_nothing_else() -> None:
    kinds = {kind for kind in vars(leadership).values() if isinstance(kind, type) and issubclass(kind, Message)}

    assert {type(message) for message in ALL.values()} == kinds - {Message}
    assert {path.stem for path in GOLDEN.glob(f"{PREFIX}*.hex")} == {PREFIX + name for name in ALL}


def test_no_two_messages_share_a_number() -> None:
    numbers = {type(message): encode(message)[1] for message in ALL.values()}

    assert numbers == {
        VoterHello: 1,
        VoterWelcome: 2,
        PreVote: 3,
        PreVoteReply: 4,
        Vote: 5,
        VoteReply: 6,
        Heartbeat: 7,
        HeartbeatReply: 8,
        Collect: 9,
        Collected: 10,
        Propose: 11,
        ProposalAccepted: 12,
        ProposalRefused: 13,
        RegisterSnapshot: 14,
        SnapshotReply: 15,
        Released: 16,
    }


@pytest.mark.parametrize(
    ("parts", "meant"),
    [
        pytest.param([1, 5, 12, True, 6, 4], VoterHello(5, 12, True, 6, 4), id="hello"),
        pytest.param([2, 5, 11, 6, 5, [7, 1], 8], VoterWelcome(5, 11, 6, 5, Version(7, 1), 8), id="welcome"),
        pytest.param([3, 8, 3, [7, 1]], PreVote(8, 3, Version(7, 1)), id="pre-vote"),
        pytest.param([5, 8, [7, 1]], Vote(8, Version(7, 1)), id="vote"),
        pytest.param([7, 8, 300, 6], Heartbeat(8, 300, 6), id="heartbeat"),
        pytest.param([9, 8], Collect(8), id="collect"),
    ],
)
def test_fields_with_a_default_may_be_missing_as_in_messages_of_an_older_protocol(
    parts: list[object], meant: LeadershipMessage
) -> None:
    assert decode(msgspec.msgpack.encode(parts)) == meant


def test_fields_of_a_newer_protocol_are_ignored() -> None:
    assert decode(msgspec.msgpack.encode([13, 9, "new", {"a": 1}])) == ProposalRefused(9)


def entry_parts(key: str = "k", version: object = (1, 1), value: object = b"") -> list[object]:
    return [key, version, value]


@pytest.mark.parametrize(
    ("reason", "parts"),
    [
        ("a term below zero", [13, -1]),
        ("a term no group reaches", [13, 2**62]),
        ("a term that is no number", [13, "9"]),
        ("a key of no letters", [11, 8, 1, [entry_parts(key="")]]),
        ("a key that is too long", [11, 8, 1, [entry_parts(key="k" * (KEY_LIMIT + 1))]]),
        ("a value that is too large", [11, 8, 1, [entry_parts(value=bytes(VALUE_LIMIT_BYTES + 1))]]),
        ("a version of one number", [11, 8, 1, [entry_parts(version=[1])]]),
        ("a version below zero", [11, 8, 1, [entry_parts(version=[1, -1])]]),
        ("more entries than a page has", [11, 8, 1, [entry_parts()] * (ENTRIES_PER_PAGE + 1)]),
        ("a welcome to a group of no configuration", [2, 1, 1, 1, 1]),
        ("a seat below zero", [2, 1, 1, 1, -1, [7, 1], 8]),
        ("a welcome by a voter of no term", [2, 1, 1, 1, 1, [7, 1]]),
        ("a nonce no voter draws", [2, 1, 1, 1, 1, [7, 1], 8, 2**62]),
        ("an echo below zero", [1, 1, 1, True, 1, 1, -1]),
        ("an answer to a heartbeat by nobody's configuration", [8, 8, 300, 1, 12]),
        ("a configuration below the first", [8, 8, 300, 1, 12, [-1, 0], 0]),
        ("an answer to a heartbeat that says nothing of its health", [8, 8, 300, 1, 12, [7, 1]]),
        ("a health below zero", [8, 8, 300, 1, 12, [7, 1], -1]),
        ("a place to go on that is no key", [9, 8, "k" * (KEY_LIMIT + 1)]),
        ("a page number beyond the last", [14, 8, 5, PAGES_LIMIT, PAGES_LIMIT, [], 1]),
        ("a snapshot of no pages", [14, 8, 5, 0, 0, [], 1]),
        ("a snapshot of too many pages", [14, 8, 5, 0, PAGES_LIMIT + 1, [], 1]),
        ("a page learned by no disk", [15, 8, 5, 1]),
        ("a page learned by a disk of no number", [15, 8, 5, 1, -1]),
        ("a name that is too long", [16, 8, "n" * (NAME_LIMIT + 1)]),
        ("a number of no message", [17, 8]),
    ],
)
def test_what_is_beyond_a_limit_is_untrusted(reason: str, parts: list[object]) -> None:
    with pytest.raises(BadLeadershipMessage, match="^a voter sent a malformed message: "):
        decode(msgspec.msgpack.encode(parts))


def test_what_is_just_within_the_limits_is_read() -> None:
    entry = RegisterEntry("k" * KEY_LIMIT, Version(2**62 - 1, 2**62 - 1), bytes(VALUE_LIMIT_BYTES))
    message = RegisterSnapshot(2**62 - 1, 5, PAGES_LIMIT - 1, PAGES_LIMIT, (entry,), 1)

    assert decode(encode(message)) == message
    assert decode(encode(Released(8, "n" * NAME_LIMIT))) == Released(8, "n" * NAME_LIMIT)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(msgspec.msgpack.encode([16, 8, "xx"]).replace(b"xx", b"\xc3\x28"), id="text that is not UTF-8"),
        pytest.param(b"\x93\x0d\x09" + b"\x91" * 100_000 + b"\xc0", id="deeper than any message"),
        pytest.param(b"\x94\x0b\x08\x01\xdd\xff\xff\xff\xff", id="a length without content"),
    ],
)
def test_bytes_that_are_no_message_are_untrusted(content: bytes) -> None:
    with pytest.raises(Untrusted):
        decode(content)


@given(name=st.sampled_from(sorted(ALL)), data=st.data())
@quick
def test_spoilt_messages_raise_nothing_but_untrusted(name: str, data: st.DataObject) -> None:
    content = bytearray(encode(ALL[name]))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3)) or b"\xc1"
    try:
        decode(bytes(content))
    except Untrusted:
        pass


# -- versions


@given(
    first=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    second=st.tuples(st.integers(0, 9), st.integers(0, 9)),
)
@quick
def test_a_version_is_later_by_its_term_first_and_by_its_place_second(
    first: tuple[int, int], second: tuple[int, int]
) -> None:
    assert (Version(*first) < Version(*second)) == (first < second)


# -- pages

sizes = st.sampled_from([0, 1, 1_000, 100_000, VALUE_LIMIT_BYTES])
runs = st.lists(st.tuples(sizes, st.integers(1, 40), st.sampled_from([1, KEY_LIMIT])), max_size=6)


@given(runs=runs)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_pages_hold_every_entry_once_in_order_and_each_fits_a_message(runs: list[tuple[int, int, int]]) -> None:
    entries = [
        RegisterEntry("ü" * length, Version(1, 1), bytes(size)) for size, count, length in runs for _ in range(count)
    ]

    parts = pages(entries)

    assert [entry for part in parts for entry in part] == entries
    assert all(parts) or parts == [()]
    for part in parts:
        assert len(part) <= ENTRIES_PER_PAGE
        assert sum(len(entry.value) for entry in part) <= PAGE_LIMIT_BYTES
        message = RegisterSnapshot(2**62 - 1, 2**62 - 1, 0, PAGES_LIMIT, part, 2**62 - 1)
        assert len(encode(message)) < min(FRAME_LIMIT_BYTES, PAGE_LIMIT_BYTES + 1_000)


def test_a_page_is_not_cut_before_it_is_full() -> None:
    small = [RegisterEntry(f"k{number}", Version(1, 1), b"") for number in range(ENTRIES_PER_PAGE + 1)]
    large = [RegisterEntry("k", Version(1, 1), bytes(100_000))] * 7

    assert [len(page) for page in pages(small)] == [ENTRIES_PER_PAGE, 1]
    assert [len(page) for page in pages(large)] == [5, 2]


def test_nothing_is_one_empty_page() -> None:
    assert pages([]) == [()]


def test_a_full_page_of_the_longest_keys_is_within_what_a_message_may_have() -> None:
    entries = [RegisterEntry("k" * KEY_LIMIT, Version(1, 1), b"")] * (2 * ENTRIES_PER_PAGE)

    assert all(decode(encode(Propose(1, 1, part))) for part in pages(entries))
