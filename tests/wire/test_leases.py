"""What is special to leases; what holds for every conversation is in `test_channels.py`."""

from talka.wire import leadership
from talka.wire.framing import FRAME_LIMIT_BYTES
from talka.wire.leadership import Propose, RegisterEntry, Version
from talka.wire.leases import BODY_LIMIT_BYTES, LEASE_KEY_LIMIT, AcquireLease, LeaseCommand, decode, encode


def test_the_longest_key_is_read_and_fits_the_register_behind_its_prefix() -> None:
    longest = AcquireLease("ü" * LEASE_KEY_LIMIT, 1, 1, 1)
    kept = Propose(1, 1, (RegisterEntry("lease/" + longest.key, Version(1, 1), b""),))

    assert decode(encode(longest)) == longest
    assert leadership.decode(leadership.encode(kept)) == kept


def test_the_largest_command_fits_a_frame() -> None:
    largest = LeaseCommand((2**62 - 1,) * 3, 2**62 - 1, bytes(BODY_LIMIT_BYTES))

    assert decode(encode(largest)) == largest
    assert len(encode(largest)) < FRAME_LIMIT_BYTES
