"""The envelope around messages between members. Golden bytes hold it to what was released."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Untrusted
from talka.wire.packets import GROUP_LIMIT, NAME_LIMIT, PROTOCOL, BadPacket, Packet, decode_packet, encode_packet

GOLDEN = Path(__file__).parent / "golden" / f"protocol-{PROTOCOL}" / "packet.hex"
quick = settings(deadline=None, derandomize=True, max_examples=200)


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(value))


def packet(sender: str = "manager-1", protocol: int = PROTOCOL) -> Packet:
    return Packet(
        protocol=protocol,
        group="prod/eu",
        sender=sender,
        boot=4_611_686_018_427_387_903,
        counter=300,
        channel=1,
        body=raw([1, 7, "worker-2", 12, None]),
        updates=[raw([21, "worker-3", 5, 0]), raw([23, "wörker-4", 6, 1, "manager-1", "no answer"])],
    )


def test_golden_bytes_are_read_as_the_packet_and_written_from_it() -> None:
    golden = bytes.fromhex(GOLDEN.read_text())

    assert decode_packet(golden) == packet()
    assert encode_packet(packet()) == golden


def test_a_packet_without_news_may_leave_them_out_as_an_older_member_does() -> None:
    short = msgspec.msgpack.encode([PROTOCOL, "g", "a", 1, 2, 3, None])

    assert decode_packet(short) == Packet(PROTOCOL, "g", "a", 1, 2, 3, raw(None), [])


def test_fields_of_a_newer_member_are_ignored() -> None:
    longer = msgspec.msgpack.encode([PROTOCOL, "g", "a", 1, 2, 3, None, [], 4, "new"])

    assert decode_packet(longer) == Packet(PROTOCOL, "g", "a", 1, 2, 3, raw(None), [], 4)


def test_only_a_packet_that_is_meant_for_one_life_says_so() -> None:
    assert msgspec.msgpack.decode(encode_packet(packet()))[8:] == []
    meant = msgspec.structs.replace(packet(), life=2**61)

    assert msgspec.msgpack.decode(encode_packet(meant))[8:] == [2**61]
    assert decode_packet(encode_packet(meant)) == meant


def test_the_body_and_the_news_are_kept_as_bytes_whatever_they_say() -> None:
    content = msgspec.msgpack.encode([PROTOCOL, "g", "a", 1, 2, 3, {"no": "message"}, [None, "nonsense"]])

    decoded = decode_packet(content)

    assert bytes(decoded.body) == msgspec.msgpack.encode({"no": "message"})
    assert [bytes(news) for news in decoded.updates] == [b"\xc0", msgspec.msgpack.encode("nonsense")]


def test_news_of_one_packet_are_not_shared_with_the_next() -> None:
    content = msgspec.msgpack.encode([PROTOCOL, "g", "a", 1, 2, 3, None])
    decode_packet(content).updates.append(raw(1))

    assert decode_packet(content).updates == []


def test_news_add_nothing_to_a_packet_but_their_own_bytes() -> None:
    news = [raw(["x" * size]) for size in (1, 10, 100)]
    alone = msgspec.structs.replace(packet(), updates=[])
    together = msgspec.structs.replace(packet(), updates=news)

    assert len(encode_packet(together)) == len(encode_packet(alone)) + sum(len(bytes(each)) for each in news)


@pytest.mark.parametrize("protocol", [PROTOCOL - 1, PROTOCOL + 1, -1])
def test_another_protocol_is_refused_and_the_sentence_names_both(protocol: int) -> None:
    with pytest.raises(BadPacket) as refusal:
        decode_packet(encode_packet(packet(protocol=protocol)))

    assert refusal.value.reason == "protocol"
    assert str(refusal.value) == f"'manager-1' speaks protocol {protocol}, this member {PROTOCOL}"


@pytest.mark.parametrize(("length", "bound"), [(0, ">= 1"), (NAME_LIMIT + 1, f"<= {NAME_LIMIT}")])
def test_a_sender_without_a_name_or_with_too_long_a_one_is_refused(length: int, bound: str) -> None:
    with pytest.raises(BadPacket, match=f"^a frame is not a packet: .*length {bound} ") as refusal:
        decode_packet(encode_packet(packet(sender="n" * length)))

    assert refusal.value.reason == "malformed"


@pytest.mark.parametrize("length", [1, NAME_LIMIT])
def test_names_of_every_allowed_length_are_taken(length: int) -> None:
    assert decode_packet(encode_packet(packet(sender="n" * length))).sender == "n" * length


@pytest.mark.parametrize("length", [0, GROUP_LIMIT])
def test_a_group_may_have_no_name_or_a_long_one(length: int) -> None:
    named = msgspec.structs.replace(packet(), group="g" * length)

    assert decode_packet(encode_packet(named)) == named


def test_two_ids_of_the_longest_kind_make_a_group() -> None:
    named = msgspec.structs.replace(packet(), group=f"{'c' * 64}/{'e' * 64}")

    assert decode_packet(encode_packet(named)) == named


@pytest.mark.parametrize(
    ("wrong", "content"),
    [
        ("nothing", b""),
        ("no list", msgspec.msgpack.encode({"protocol": 1})),
        ("too short a list", msgspec.msgpack.encode([PROTOCOL, "g", "a", 1, 2, 3])),
        ("a counter that is no number", msgspec.msgpack.encode([PROTOCOL, "g", "a", 1, "2", 3, None])),
        ("a counter below zero", msgspec.msgpack.encode([PROTOCOL, "g", "a", 1, -1, 3, None])),
        ("a boot below zero", msgspec.msgpack.encode([PROTOCOL, "g", "a", -1, 2, 3, None])),
        ("too long a name of a group", msgspec.msgpack.encode([PROTOCOL, "g" * (GROUP_LIMIT + 1), "a", 1, 2, 3, None])),
        ("text that is not UTF-8", encode_packet(packet()).replace(b"prod", b"pr\xc3\x28")),
        ("half a packet", encode_packet(packet())[:-1]),
        ("more than a packet", encode_packet(packet()) + b"\xc0"),
        ("a body deeper than any message", b"\x97\x01\xa1g\xa1a\x01\x02\x03" + b"\x91" * 100_000 + b"\xc0"),
        ("a length without content", b"\x98\x01\xa1g\xa1a\x01\x02\x03\xc0\xdd\xff\xff\xff\xff"),
    ],
)
def test_bytes_that_are_no_packet_are_malformed(wrong: str, content: bytes) -> None:
    with pytest.raises(BadPacket, match="^a frame is not a packet: ") as refusal:
        decode_packet(content)

    assert refusal.value.reason == "malformed", wrong
    assert isinstance(refusal.value, Untrusted)


@given(content=st.binary(max_size=200))
@quick
def test_random_bytes_raise_nothing_but_untrusted(content: bytes) -> None:
    try:
        decode_packet(content)
    except Untrusted:
        pass


@given(data=st.data())
@quick
def test_spoilt_packets_raise_nothing_but_untrusted(data: st.DataObject) -> None:
    content = bytearray(encode_packet(packet()))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3)) or b"\xc1"
    try:
        decode_packet(bytes(content))
    except Untrusted:
        pass


@given(
    group=st.text(max_size=20),
    sender=st.text(min_size=1, max_size=NAME_LIMIT),
    numbers=st.tuples(st.integers(0, 2**63), st.integers(0, 2**64 - 1), st.integers(0, 255)),
    body=st.binary(max_size=100),
    updates=st.lists(st.binary(max_size=40), max_size=20),
)
@quick
def test_what_is_encoded_is_decoded_to_the_same(
    group: str, sender: str, numbers: tuple[int, int, int], body: bytes, updates: list[bytes]
) -> None:
    boot, counter, channel = numbers
    given_packet = Packet(PROTOCOL, group, sender, boot, counter, channel, raw(body), [raw(each) for each in updates])

    assert decode_packet(encode_packet(given_packet)) == given_packet
