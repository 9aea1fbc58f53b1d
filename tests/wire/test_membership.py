"""What is special to membership; what holds for every conversation is in `test_channels.py`."""

import pytest

from talka.wire.membership import decode, decode_update
from tests.wire.samples import MEMBERSHIP, UPDATES


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
    content = bytes.fromhex(earlier)

    if name in MEMBERSHIP:
        assert decode(content) == MEMBERSHIP[name]
    else:
        assert decode_update(content) == UPDATES[name]
