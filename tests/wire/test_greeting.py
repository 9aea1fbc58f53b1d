"""How nodes meet. Golden bytes hold the messages to what was released."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Untrusted
from talka.wire import greeting
from talka.wire.framing import FRAME_LIMIT_BYTES
from talka.wire.greeting import (
    NONCE_BYTES,
    RING_LIMIT_BYTES,
    TEXT_LIMIT,
    BadGreeting,
    Challenge,
    GreetingHello,
    GreetingMessage,
    GreetingRefusal,
    GreetingWelcome,
    Message,
    Proof,
    Self,
    ShareRing,
    decode,
    encode,
)
from talka.wire.packets import DATAGRAM_LIMIT_BYTES

GOLDEN = Path(__file__).parent / "golden" / "protocol-1" / "greeting"
quick = settings(deadline=None, derandomize=True, max_examples=200)

A, B = bytes(range(NONCE_BYTES)), bytes(range(100, 100 + NONCE_BYTES))
ME = Self("shop", "staging", "manager", "1.0", ["challenge"], ["keyring"], "east", "eu", "0.1.0")

ALL: dict[str, GreetingMessage] = {
    "hello": GreetingHello(ME, A),
    "hello-of-few-words": GreetingHello(Self("shop", "staging", "worker", "1.0"), A),
    "welcome": GreetingWelcome(ME, A, B),
    "challenge": Challenge(B),
    "proof": Proof(B, 300),
    "refusal": GreetingRefusal(A, "cluster", "'a' is of cluster 'shop', not of 'bank'"),
    "share-ring": ShareRing(b"\x92\x90\x92\x00\xa0"),
}


@pytest.mark.parametrize("name", ALL)
def test_golden_bytes_are_read_as_the_message_and_written_from_it(name: str) -> None:
    golden = bytes.fromhex((GOLDEN / f"{name}.hex").read_text())

    assert decode(golden) == ALL[name]
    assert encode(ALL[name]) == golden


def test_there_are_golden_bytes_of_every_message_and_of_nothing_else() -> None:
    kinds = {kind for kind in vars(greeting).values() if isinstance(kind, type) and issubclass(kind, Message)}

    assert {type(message) for message in ALL.values()} == kinds - {Message}
    assert {path.stem for path in GOLDEN.iterdir()} == set(ALL)


def test_no_two_messages_share_a_number() -> None:
    numbers = {type(message): encode(message)[1] for message in ALL.values()}

    assert numbers == {GreetingHello: 1, GreetingWelcome: 2, Challenge: 3, Proof: 4, GreetingRefusal: 5, ShareRing: 6}


def test_fields_with_a_default_may_be_missing_as_in_messages_of_an_older_protocol() -> None:
    assert decode(msgspec.msgpack.encode([1, ["c", "e", "gate", "1.0"], A])) == GreetingHello(
        Self("c", "e", "gate", "1.0"), A
    )


def test_fields_of_a_newer_protocol_are_ignored() -> None:
    assert decode(msgspec.msgpack.encode([3, A, "new", {"a": 1}])) == Challenge(A)
    newer = [*msgspec.to_builtins(ME), "new"]
    assert decode(msgspec.msgpack.encode([1, newer, A])) == GreetingHello(ME, A)


WORD = "w" * 65
MINE = ["c", "e", "r", "1.0"]


@pytest.mark.parametrize(
    ("reason", "parts"),
    [
        ("a nonce that is too short", [3, bytes(NONCE_BYTES - 1)]),
        ("a nonce that is too long", [3, bytes(NONCE_BYTES + 1)]),
        ("an echo that is too short", [4, bytes(NONCE_BYTES - 1), 0]),
        ("an echo of no bytes", [5, b"", "cluster", ""]),
        ("a floor below zero", [4, A, -1]),
        ("a floor no counter reaches", [4, A, 2**62 + 1]),
        ("a cluster that is too long", [1, [WORD, *MINE[1:]], A]),
        ("a role that is too long", [1, [*MINE[:2], WORD, "1.0"], A]),
        ("too many capabilities", [1, [*MINE, ["c"] * 65], A]),
        ("a capability that is too long", [1, [*MINE, [WORD]], A]),
        ("too many things required", [2, [*MINE, [], ["c"] * 65], A, B]),
        ("a node that says nothing of itself", [1, [], A]),
        ("a reason that is too long", [5, A, WORD, ""]),
        ("a sentence that is too long", [5, A, "role", "x" * (TEXT_LIMIT + 1)]),
        ("a ring that is too large", [6, bytes(RING_LIMIT_BYTES + 1)]),
        ("a number of no message", [7, A]),
    ],
)
def test_what_is_beyond_a_limit_is_untrusted(reason: str, parts: list[object]) -> None:
    with pytest.raises(BadGreeting, match="^a node sent a malformed greeting: "):
        decode(msgspec.msgpack.encode(parts))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(encode(ALL["refusal"]).replace(b"bank", b"ba\xc3\x28"), id="text that is not UTF-8"),
        pytest.param(encode(Challenge(A)) + b"\xc0", id="more than one message"),
        pytest.param(b"\x93\x03\xc4\x10" + A + b"\x91" * 100_000 + b"\xc0", id="deeper than any message"),
    ],
)
def test_bytes_that_are_no_message_are_untrusted(content: bytes) -> None:
    with pytest.raises(Untrusted):
        decode(content)


def test_a_common_greeting_fits_a_datagram_and_the_largest_ring_fits_a_frame() -> None:
    capabilities = ["capability-" + "x" * 9] * 20
    talkative = Self("c" * 64, "e" * 64, "outside-worker", "1.0", capabilities, capabilities[:2], "d" * 64, "", "1.2.3")
    assert len(encode(GreetingWelcome(talkative, A, B))) < DATAGRAM_LIMIT_BYTES - 400

    largest = ShareRing(bytes(RING_LIMIT_BYTES))
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
