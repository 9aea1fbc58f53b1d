"""Messages and updates of membership. Golden bytes hold them to what was released."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Untrusted
from talka.wire import membership
from talka.wire.membership import (
    ADDRESS_LIMIT,
    BUCKETS,
    DIGEST_BYTES,
    PAYLOAD_LIMIT_BYTES,
    PEERS_LIMIT,
    REASON_LIMIT,
    ZONE_LIMIT,
    Alive,
    BadMembershipMessage,
    Dead,
    Gossip,
    MemberHasLeft,
    MemberRecord,
    MembershipMessage,
    MemberState,
    MemberUpdate,
    Message,
    Nack,
    PeerAddress,
    Ping,
    PingRequest,
    ProbeAck,
    Stated,
    Suspect,
    SyncOffer,
    SyncRecords,
    SyncReply,
    Update,
    WatchGroup,
    WatchReply,
    decode,
    decode_update,
    encode,
    encode_update,
)
from talka.wire.packets import NAME_LIMIT, PROTOCOL

GOLDEN = Path(__file__).parent / "golden" / f"protocol-{PROTOCOL}"
PREFIX = "membership-"
quick = settings(deadline=None, derandomize=True, max_examples=200)

STATE = MemberState(7, b"\x01busy")
ME = Alive("w-1", 2**61 + 5, 3, "10.0.0.1:7000", "eu-1", b"meta")
RECORD = MemberRecord("w-2", 12, 4, "10.0.0.2:7000", "eu-2", b"", 2, STATE, "w-1", "no answer")
MESSAGES: dict[str, MembershipMessage] = {
    "ping": Ping(300, "w-2", 2**61 + 1, STATE, 6, True),
    "ack": ProbeAck(300, STATE, 6),
    "ping-request": PingRequest(301, "wörker", 12, "10.0.0.2:7000"),
    "nack": Nack(301),
    "gossip": Gossip(),
    "sync-offer": SyncOffer(ME, STATE, bytes(range(16))),
    "sync-reply": SyncReply(ME, [0, 63], [RECORD]),
    "sync-records": SyncRecords([RECORD]),
    "watch": WatchGroup(9, "m-1", True),
    "watch-reply": WatchReply(9, "m-1", 2**61 + 7, 3, STATE, [PeerAddress("m-2", 8, "10.0.0.3:7000", 1)]),
}
UPDATES: dict[str, MemberUpdate] = {
    "alive": ME,
    "suspect": Suspect("w-2", 12, 4, "w-1", "no answer"),
    "dead": Dead("w-2", 12, 4, "w-1", "no answer"),
    "left": MemberHasLeft("w-2", 12, 4),
    "stated": Stated("w-2", 12, STATE),
    "alive-signed": msgspec.structs.replace(ME, certificate=b"certificate", signature=b"signature"),
    "stated-signed": Stated("w-2", 12, MemberState(8, b"", b"signature")),
}
ALL: dict[str, Message] = {**MESSAGES, **UPDATES}


def written(name: str) -> bytes:
    return encode(MESSAGES[name]) if name in MESSAGES else encode_update(UPDATES[name])


def decoder_of(name: str) -> Callable[[bytes], Message]:
    return decode if name in MESSAGES else decode_update


@pytest.mark.parametrize("name", ALL)
def test_golden_bytes_are_read_as_the_message_and_written_from_it(name: str) -> None:
    golden = bytes.fromhex((GOLDEN / f"{PREFIX}{name}.hex").read_text())

    assert decoder_of(name)(golden) == ALL[name]
    assert written(name) == golden


@pytest.mark.parametrize(
    ("name", "earlier"),
    [
        ("alive", "9715a3772d31cf200000000000000503ad31302e302e302e313a37303030a465752d31c4046d657461"),
        ("stated", "9419a3772d320c9207c4050162757379"),
        (
            "sync-records",
            "9208919aa3772d320c04ad31302e302e302e323a37303030a465752d32c40002"
            "9207c4050162757379a3772d31a96e6f20616e73776572",
        ),
    ],
)
def test_what_an_earlier_release_wrote_is_read_as_unsigned(name: str, earlier: str) -> None:
    assert decoder_of(name)(bytes.fromhex(earlier)) == ALL[name]


def test_there_are_golden_bytes_of_every_message_and_of_nothing_else() -> None:
    kinds = {kind for kind in vars(membership).values() if isinstance(kind, type) and issubclass(kind, Message)}

    assert {type(message) for message in ALL.values()} == kinds - {Message, Update}
    assert {path.stem for path in GOLDEN.glob(f"{PREFIX}*.hex")} == {PREFIX + name for name in ALL}


def test_no_two_messages_share_a_number() -> None:
    assert {type(message): written(name)[1] for name, message in ALL.items()} == {
        Ping: 1,
        ProbeAck: 2,
        PingRequest: 3,
        Nack: 4,
        Gossip: 5,
        SyncOffer: 6,
        SyncReply: 7,
        SyncRecords: 8,
        WatchGroup: 9,
        WatchReply: 10,
        Alive: 21,
        Suspect: 22,
        Dead: 23,
        MemberHasLeft: 24,
        Stated: 25,
    }


def test_fields_with_a_default_may_be_missing_as_in_messages_of_an_older_protocol() -> None:
    assert decode(msgspec.msgpack.encode([1, 5, "a", 6])) == Ping(5, "a", 6)
    assert decode_update(msgspec.msgpack.encode([21, "a", 6, 0, "a:1"])) == Alive("a", 6, 0, "a:1")


def test_fields_of_a_newer_protocol_are_ignored() -> None:
    assert decode(msgspec.msgpack.encode([4, 300, "new"])) == Nack(300)


def test_updates_are_no_messages_and_messages_are_no_updates() -> None:
    for name in ALL:
        other: Callable[[bytes], Message] = decode_update if name in MESSAGES else decode
        with pytest.raises(BadMembershipMessage):
            other(written(name))


def test_an_update_is_read_where_it_lies_in_a_packet() -> None:
    assert decode_update(msgspec.Raw(written("dead"))) == UPDATES["dead"]
    assert decode(msgspec.Raw(written("ping"))) == MESSAGES["ping"]


def test_errors_are_sentences() -> None:
    with pytest.raises(BadMembershipMessage, match="^a member sent a malformed membership message: "):
        decode(b"")
    with pytest.raises(BadMembershipMessage, match="^a member sent a malformed membership update: "):
        decode_update(b"")


@pytest.mark.parametrize(
    ("reason", "content"),
    [
        ("an empty name", [1, 1, "", 1]),
        ("a long name", [1, 1, "x" * (NAME_LIMIT + 1), 1]),
        ("a negative sequence", [4, -1]),
        ("a number beyond all", [4, 2**62 + 1]),
        ("a long address", [3, 1, "a", 1, "x" * (ADDRESS_LIMIT + 1)]),
        ("a large state", [2, 1, [1, bytes(PAYLOAD_LIMIT_BYTES + 1)]]),
        ("too many digests", [6, [21, "a", 1, 0, "a"], None, bytes(BUCKETS * DIGEST_BYTES + 1)]),
        ("a bucket that does not exist", [7, [21, "a", 1, 0, "a"], [BUCKETS], []]),
        ("too many buckets", [7, [21, "a", 1, 0, "a"], [1] * (BUCKETS + 1), []]),
        ("a status that does not exist", [8, [["a", 1, 0, "a", "", b"", 4]]]),
        ("too many records", [8, [["a", 1, 0, "a", "", b"", 0]] * (membership.RECORDS_LIMIT + 1)]),
        ("too many peers", [10, 1, "a", 1, 1, None, [["a", 1, "a", 0]] * (PEERS_LIMIT + 1)]),
        ("a message of another number", [11]),
    ],
)
def test_messages_beyond_their_limits_are_untrusted(reason: str, content: list[object]) -> None:
    with pytest.raises(Untrusted):
        decode(msgspec.msgpack.encode(content))


@pytest.mark.parametrize(
    ("reason", "content"),
    [
        ("a long zone", [21, "a", 1, 0, "a", "z" * (ZONE_LIMIT + 1)]),
        ("large metadata", [21, "a", 1, 0, "a", "", bytes(PAYLOAD_LIMIT_BYTES + 1)]),
        ("a long reason", [22, "a", 1, 0, "b", "x" * (REASON_LIMIT + 1)]),
        ("a long accuser", [23, "a", 1, 0, "x" * (NAME_LIMIT + 1), ""]),
    ],
)
def test_updates_beyond_their_limits_are_untrusted(reason: str, content: list[object]) -> None:
    with pytest.raises(Untrusted):
        decode_update(msgspec.msgpack.encode(content))


@given(name=st.sampled_from(sorted(ALL)), data=st.data())
@quick
def test_spoilt_messages_raise_nothing_but_untrusted(name: str, data: st.DataObject) -> None:
    content = bytearray(written(name))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3)) or b"\xc1"
    try:
        decoder_of(name)(bytes(content))
    except Untrusted:
        pass
