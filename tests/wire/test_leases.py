"""Messages between owners of keys, the commanded and their leader. Golden bytes hold them to what was released."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Untrusted
from talka.wire import leadership, leases
from talka.wire.framing import FRAME_LIMIT_BYTES
from talka.wire.leadership import Propose, RegisterEntry, Version
from talka.wire.leases import (
    BODY_LIMIT_BYTES,
    LEASE_KEY_LIMIT,
    AcquireLease,
    BadLeaseMessage,
    CommandAnswer,
    LeaseAnswer,
    LeaseCommand,
    LeaseMessage,
    Message,
    ReleaseLease,
    decode,
    encode,
)
from talka.wire.packets import NAME_LIMIT

GOLDEN = Path(__file__).parent / "golden" / "protocol-1"
PREFIX = "leases-"
quick = settings(deadline=None, derandomize=True, max_examples=200)

ALL: dict[str, LeaseMessage] = {
    "acquire": AcquireLease("shard/17", 5, 3, 10_000_000_000),
    "answer-granted": LeaseAnswer("shard/17", 5, "granted", 4, 10_000_000_000),
    "answer-elsewhere": LeaseAnswer("shard/17", 5, "elsewhere", wait_ns=250_000_000, leader="manager-2"),
    "release": ReleaseLease("shard/17", 4),
    "command": LeaseCommand((2, 7, 1), 12, b"\x91\x01"),
    "command-answer": CommandAnswer(12, False, (2, 8, 1)),
}


@pytest.mark.parametrize("name", ALL)
def test_golden_bytes_are_read_as_the_message_and_written_from_it(name: str) -> None:
    golden = bytes.fromhex((GOLDEN / f"{PREFIX}{name}.hex").read_text())

    assert decode(golden) == ALL[name]
    assert encode(ALL[name]) == golden


def test_there_are_golden_bytes_of_every_message_and_of_nothing_else() -> None:
    kinds = {kind for kind in vars(leases).values() if isinstance(kind, type) and issubclass(kind, Message)}

    assert {type(message) for message in ALL.values()} == kinds - {Message}
    assert {path.stem for path in GOLDEN.glob(f"{PREFIX}*.hex")} == {PREFIX + name for name in ALL}


def test_no_two_messages_share_a_number() -> None:
    numbers = {type(message): encode(message)[1] for message in ALL.values()}

    assert numbers == {AcquireLease: 1, LeaseAnswer: 2, ReleaseLease: 3, LeaseCommand: 4, CommandAnswer: 5}


def test_fields_with_a_default_may_be_missing_as_in_messages_of_an_older_protocol() -> None:
    assert decode(msgspec.msgpack.encode([2, "k", 1, "busy"])) == LeaseAnswer("k", 1, "busy")


def test_fields_of_a_newer_protocol_are_ignored() -> None:
    assert decode(msgspec.msgpack.encode([3, "k", 1, "new", {"a": 1}])) == ReleaseLease("k", 1)


@pytest.mark.parametrize(
    ("reason", "parts"),
    [
        ("a key of no letters", [3, "", 1]),
        ("a key that is too long to be kept", [3, "k" * (LEASE_KEY_LIMIT + 1), 1]),
        ("a key that is too long to be asked for", [1, "k" * (LEASE_KEY_LIMIT + 1), 1, 1, 1]),
        ("a key that is too long to be answered", [2, "k" * (LEASE_KEY_LIMIT + 1), 1, "busy"]),
        ("an epoch below zero", [3, "k", -1]),
        ("an epoch no counter reaches", [3, "k", 2**62]),
        ("a lease of negative length", [1, "k", 1, 1, -1]),
        ("an answer nobody gives", [2, "k", 1, "perhaps"]),
        ("a leader's name that is too long", [2, "k", 1, "elsewhere", 0, 0, 0, "n" * (NAME_LIMIT + 1)]),
        ("a token of two numbers", [4, [1, 2], 1, b""]),
        ("a token of four numbers", [4, [1, 2, 3, 4], 1, b""]),
        ("a body that is too large", [4, [1, 2, 3], 1, bytes(BODY_LIMIT_BYTES + 1)]),
        ("a number of no message", [6, "k", 1]),
    ],
)
def test_what_is_beyond_a_limit_is_untrusted(reason: str, parts: list[object]) -> None:
    with pytest.raises(BadLeaseMessage, match="^a peer sent a malformed message: "):
        decode(msgspec.msgpack.encode(parts))


def test_the_longest_key_is_read_and_fits_the_register_behind_its_prefix() -> None:
    longest = AcquireLease("ü" * LEASE_KEY_LIMIT, 1, 1, 1)
    kept = Propose(1, 1, (RegisterEntry("lease/" + longest.key, Version(1, 1), b""),))

    assert decode(encode(longest)) == longest
    assert leadership.decode(leadership.encode(kept)) == kept


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(msgspec.msgpack.encode([3, "xx", 1]).replace(b"xx", b"\xc3\x28"), id="text that is not UTF-8"),
        pytest.param(b"\x93\x03\xa1k\x01" + b"\x91" * 100_000, id="more than one message"),
        pytest.param(b"\x94\x03\xa1k\x01" + b"\x91" * 100_000 + b"\xc0", id="deeper than any message"),
    ],
)
def test_bytes_that_are_no_message_are_untrusted(content: bytes) -> None:
    with pytest.raises(Untrusted):
        decode(content)


def test_the_largest_command_fits_a_frame() -> None:
    largest = LeaseCommand((2**62 - 1,) * 3, 2**62 - 1, bytes(BODY_LIMIT_BYTES))

    assert decode(encode(largest)) == largest
    assert len(encode(largest)) < FRAME_LIMIT_BYTES


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
