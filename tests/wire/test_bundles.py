"""Signatures of bundles: they hold for the key and the digest they were made of, and for nothing else."""

import hmac

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from talka.wire.bundles import holds, sign

quick = settings(deadline=None, derandomize=True, max_examples=100)
DIGEST = "5e" * 32
KEY = b"a key of the cluster, long enough"


def test_a_signature_is_an_hmac_under_a_key_that_hkdf_derives_for_bundles() -> None:
    derived = HKDF(SHA256(), 32, salt=b"talka cluster secret 1", info=b"talka bundle").derive(KEY)

    assert sign(KEY, DIGEST) == hmac.digest(derived, DIGEST.encode(), "sha256")


def test_signatures_stay_what_was_released() -> None:
    assert sign(KEY, DIGEST).hex() == "fb1c239464def8a38c8f0bbbb20c631a45e4c8a91441b9c1d7e788dfbfbdd08c"


@given(st.binary(), st.text())
@quick
def test_a_signature_holds_for_what_it_was_made_of(key: bytes, digest: str) -> None:
    assert holds(key, digest, sign(key, digest))


@given(st.binary(min_size=32, max_size=40), st.binary(min_size=32, max_size=40))
@quick
def test_a_signature_does_not_hold_under_another_key(key: bytes, other: bytes) -> None:
    assume(key != other)
    assert not holds(other, DIGEST, sign(key, DIGEST))


def test_a_signature_does_not_hold_for_another_digest() -> None:
    assert not holds(KEY, "5f" + DIGEST[2:], sign(KEY, DIGEST))


def test_what_was_cut_or_made_longer_or_changed_does_not_hold() -> None:
    whole = sign(KEY, DIGEST)

    for changed in (b"", whole[:-1], whole + b"\0", bytes([whole[0] ^ 1]) + whole[1:]):
        assert not holds(KEY, DIGEST, changed)
