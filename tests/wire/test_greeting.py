"""What is special to greeting; what holds for every conversation is in `test_channels.py`."""

from pathlib import Path

import msgspec

from talka.wire.framing import FRAME_LIMIT_BYTES
from talka.wire.greeting import RING_LIMIT_BYTES, GreetingHello, GreetingWelcome, Proof, Self, ShareRing, decode, encode
from talka.wire.packets import DATAGRAM_LIMIT_BYTES
from tests.wire.samples import NODE, A, B

OLDER = Path(__file__).parent / "golden" / "protocol-1" / "older" / "before-agreements"


def test_what_a_node_says_of_itself_may_be_shorter_in_an_older_protocol_and_longer_in_a_newer() -> None:
    older, newer = ["c", "e", "gate", "1.0"], [*msgspec.to_builtins(NODE), "new"]

    assert decode(msgspec.msgpack.encode([1, older, A])) == GreetingHello(Self("c", "e", "gate", "1.0"), A)
    assert decode(msgspec.msgpack.encode([1, newer, A])) == GreetingHello(NODE, A)


def test_a_proof_of_protocol_1_0_says_no_version_and_is_still_read() -> None:
    golden = bytes.fromhex((OLDER / "proof.hex").read_text())

    assert decode(golden) == Proof(B, 300)


def test_a_common_greeting_fits_a_datagram_and_the_largest_ring_fits_a_frame() -> None:
    capabilities = ["capability-" + "x" * 9] * 20
    talkative = Self("c" * 64, "e" * 64, "outside-worker", "1.0", capabilities, capabilities[:2], "d" * 64, "", "1.2.3")
    assert len(encode(GreetingWelcome(talkative, A, B))) < DATAGRAM_LIMIT_BYTES - 400

    largest = ShareRing(bytes(RING_LIMIT_BYTES))
    assert decode(encode(largest)) == largest
    assert len(encode(largest)) < FRAME_LIMIT_BYTES
