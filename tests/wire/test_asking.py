"""What is special to questions; what holds for every conversation is in `test_channels.py`."""

from typing import get_args

import msgspec

from talka.wire import asking
from talka.wire.asking import (
    ANSWER_LIMIT_BYTES,
    Ask,
    AskAnswer,
    AskLeader,
    AskMembers,
    Question,
    RetireKey,
    decode,
    encode,
    encode_content,
)
from talka.wire.framing import FRAME_LIMIT_BYTES
from talka.wire.packets import GROUP_LIMIT, NAME_LIMIT, PROTOCOL, Packet, encode_packet
from talka.wire.security.sealing import SEAL_BYTES
from tests.wire.samples import ASKING


def test_there_are_golden_bytes_of_every_question_and_no_two_share_a_number() -> None:
    numbers = {type(each.question): encode(each)[4] for each in ASKING.values() if isinstance(each, Ask)}

    assert set(numbers) == set(get_args(Question))
    assert sorted(numbers.values()) == list(range(1, 12))


def test_fields_of_a_question_may_be_missing_in_an_older_protocol_and_more_in_a_newer() -> None:
    assert decode(msgspec.msgpack.encode([20, 1, [1]])) == Ask(1, AskMembers(""), 10_000)
    assert decode(msgspec.msgpack.encode([20, 1, [8, "id"]])) == Ask(1, RetireKey("id", False))
    assert decode(msgspec.msgpack.encode([20, 1, [2, "new"], 1, {"a": 1}])) == Ask(1, AskLeader(), 1)


def test_the_largest_answer_fits_a_frame_with_all_that_is_around_it() -> None:
    largest = AskAnswer(2**62, "ü" * 4096, bytes(ANSWER_LIMIT_BYTES))
    packet = Packet(
        PROTOCOL,
        "g" * GROUP_LIMIT,
        "ü" * NAME_LIMIT,
        2**64 - 1,
        2**64 - 1,
        asking.CHANNEL.number,
        msgspec.Raw(encode(largest)),
    )

    assert decode(encode(largest)) == largest
    assert len(encode_packet(packet)) + 1 + SEAL_BYTES <= FRAME_LIMIT_BYTES


def test_the_content_of_an_answer_is_json() -> None:
    assert encode_content({"leader": "ä", "term": 3}) == '{"leader":"ä","term":3}'.encode()
