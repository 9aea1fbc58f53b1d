"""Questions to one node and its answers. Golden bytes hold the messages to what was released."""

from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Untrusted
from talka.wire import asking
from talka.wire.asking import (
    ANSWER_LIMIT_BYTES,
    SECRET_LIMIT,
    AddKey,
    Ask,
    AskAnswer,
    AskAudit,
    AskingMessage,
    AskKeys,
    AskLeader,
    AskLease,
    AskMembers,
    AskMetrics,
    BadQuestion,
    ChangeLease,
    Message,
    Question,
    RepairKeys,
    RetireKey,
    UseKey,
    decode,
    encode,
    encode_content,
)
from talka.wire.framing import FRAME_LIMIT_BYTES
from talka.wire.packets import GROUP_LIMIT, NAME_LIMIT, PROTOCOL, Packet, encode_packet
from talka.wire.security.sealing import SEAL_BYTES

GOLDEN = Path(__file__).parent / "golden" / "protocol-1" / "asking"
quick = settings(deadline=None, derandomize=True, max_examples=200)

ALL: dict[str, AskingMessage] = {
    "members": Ask(1, AskMembers()),
    "members-after": Ask(2, AskMembers("m-17"), 500),
    "leader": Ask(3, AskLeader()),
    "audit": Ask(4, AskAudit()),
    "keys": Ask(5, AskKeys()),
    "metrics": Ask(6, AskMetrics()),
    "add-key": Ask(7, AddKey("correct horse battery staple 2026")),
    "use-key": Ask(8, UseKey("0a1b2c3d")),
    "retire-key": Ask(9, RetireKey("0a1b2c3d")),
    "retire-key-by-force": Ask(10, RetireKey("0a1b2c3d", True)),
    "repair-keys": Ask(11, RepairKeys(("correct horse battery staple 2026", "another one, as long as the first"))),
    "lease": Ask(11, AskLease()),
    "change-lease": Ask(12, ChangeLease(2_000_000_000)),
    "answer": AskAnswer(300, "", b'{"leader":"a"}'),
    "answer-of-a-problem": AskAnswer(301, "a is no voter"),
}


@pytest.mark.parametrize("name", ALL)
def test_golden_bytes_are_read_as_the_message_and_written_from_it(name: str) -> None:
    golden = bytes.fromhex((GOLDEN / f"{name}.hex").read_text())

    assert decode(golden) == ALL[name]
    assert encode(ALL[name]) == golden


def test_there_are_golden_bytes_of_every_message_and_of_nothing_else() -> None:
    kinds = {kind for kind in vars(asking).values() if isinstance(kind, type) and issubclass(kind, Message)}
    asked = {type(message.question) for message in ALL.values() if isinstance(message, Ask)}

    assert asked == kinds - {Message} == set(get_args(Question))
    assert {type(message) for message in ALL.values()} == {Ask, AskAnswer}
    assert {path.stem for path in GOLDEN.iterdir()} == set(ALL)


def test_no_two_questions_share_a_number() -> None:
    numbers = {type(each.question): encode(each)[4] for each in ALL.values() if isinstance(each, Ask)}

    assert sorted(numbers.values()) == list(range(1, 12))
    assert (encode(ALL["leader"])[1], encode(ALL["answer"])[1]) == (20, 21)


def test_fields_with_a_default_may_be_missing_as_in_messages_of_an_older_protocol() -> None:
    assert decode(msgspec.msgpack.encode([20, 1, [1]])) == Ask(1, AskMembers(""), 10_000)
    assert decode(msgspec.msgpack.encode([20, 1, [8, "id"]])) == Ask(1, RetireKey("id", False))
    assert decode(msgspec.msgpack.encode([21, 1, "no"])) == AskAnswer(1, "no", b"")


def test_fields_of_a_newer_protocol_are_ignored() -> None:
    assert decode(msgspec.msgpack.encode([20, 1, [2, "new"], 1, {"a": 1}])) == Ask(1, AskLeader(), 1)


@pytest.mark.parametrize(
    ("reason", "parts"),
    [
        ("a number below zero", [20, -1, [2]]),
        ("a number no counter reaches", [20, 2**62 + 1, [2]]),
        ("a wait below zero", [20, 1, [2], -1]),
        ("a wait of more than ten minutes", [20, 1, [2], 600_001]),
        ("a name that is too long", [20, 1, [1, "n" * 129]]),
        ("a secret that is too long", [20, 1, [6, "s" * (SECRET_LIMIT + 1)]]),
        ("a key id that is too long", [20, 1, [7, "k" * 65]]),
        ("a force that is no yes or no", [20, 1, [8, "k", 1]]),
        ("a number of malformed question", [20, 1, [9]]),
        ("malformed question", [20, 1]),
        ("a problem that is too long", [21, 1, "p" * 4097]),
        ("an answer that is too large", [21, 1, "", bytes(ANSWER_LIMIT_BYTES + 1)]),
        ("a number of no message", [22, 1, ""]),
    ],
)
def test_what_is_beyond_a_limit_is_untrusted(reason: str, parts: list[object]) -> None:
    with pytest.raises(BadQuestion, match="^a node sent a malformed question or answer: "):
        decode(msgspec.msgpack.encode(parts))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(encode(ALL["use-key"]).replace(b"0a1b", b"0a\xc3\x28"), id="text that is not UTF-8"),
        pytest.param(encode(ALL["leader"]) + b"\xc0", id="more than one message"),
        pytest.param(b"\x95\x14\x01\x91\x02\x01" + b"\x91" * 100_000 + b"\xc0", id="deeper than any message"),
    ],
)
def test_bytes_that_are_no_message_are_untrusted(content: bytes) -> None:
    with pytest.raises(Untrusted):
        decode(content)


def test_the_largest_answer_fits_a_frame_with_all_that_is_around_it() -> None:
    largest = AskAnswer(2**62, "ü" * 4096, bytes(ANSWER_LIMIT_BYTES))
    packet = Packet(
        PROTOCOL,
        "g" * GROUP_LIMIT,
        "ü" * NAME_LIMIT,
        2**64 - 1,
        2**64 - 1,
        asking.CHANNEL,
        msgspec.Raw(encode(largest)),
    )

    assert decode(encode(largest)) == largest
    assert len(encode_packet(packet)) + 1 + SEAL_BYTES <= FRAME_LIMIT_BYTES


def test_the_content_of_an_answer_is_json() -> None:
    assert encode_content({"leader": "ä", "term": 3}) == '{"leader":"ä","term":3}'.encode()


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
