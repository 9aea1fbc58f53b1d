"""The word of a manager for a bundle: it holds for one key, cluster and digest, and only who has the key can give
it."""

import hmac

import msgspec
import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from talka.wire.security.bundles import KEY_BYTES, BundleSigner, BundleWord, read_word, sign_for_earlier

quick = settings(deadline=None, derandomize=True, max_examples=100)
DIGEST = "5e" * 32
GROUP = "shop/staging"
SEED = bytes(range(KEY_BYTES))
SECRET = "a key of the cluster, long enough"
RELEASED = (
    "869d9103a6aa15641c55915c340ea855cd926123b9c87e37428f96a456b9e042"
    "74bd2727f5eaf964ebb315af5704c3ce446bd784c64f52405eb1652bec732306"
)
seeds = st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES)


def word_of(signer: BundleSigner, digest: str = DIGEST) -> BundleWord:
    word = read_word(signer.sign(digest))
    assert word is not None
    return word


def test_words_stay_what_was_released() -> None:
    word = word_of(BundleSigner(SEED, GROUP))

    assert word.signer.hex() == "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"
    assert word.signature.hex() == RELEASED


@given(seeds, st.text(), st.text())
@quick
def test_a_word_holds_for_what_it_was_given_for(seed: bytes, group: str, digest: str) -> None:
    assert word_of(BundleSigner(seed, group), digest).holds(group, digest)


@given(seeds, seeds)
@quick
def test_a_word_cannot_be_claimed_for_another_key(seed: bytes, other: bytes) -> None:
    assume(seed != other)
    word = word_of(BundleSigner(seed, GROUP))

    claimed = msgspec.structs.replace(word, signer=BundleSigner(other, GROUP).public)

    assert not claimed.holds(GROUP, DIGEST)


@pytest.mark.parametrize(
    ("group", "digest"),
    [("shop/staging", "5f" + DIGEST[2:]), ("shop/production", DIGEST), ("shop/stagin", "g" + DIGEST), ("", DIGEST)],
)
def test_a_word_holds_for_no_other_bundle_and_no_other_cluster(group: str, digest: str) -> None:
    assert not word_of(BundleSigner(SEED, GROUP)).holds(group, digest)


def test_a_signature_that_was_changed_holds_for_nothing() -> None:
    word = word_of(BundleSigner(SEED, GROUP))
    for at in range(len(word.signature)):
        changed = bytearray(word.signature)
        changed[at] ^= 1
        assert not msgspec.structs.replace(word, signature=bytes(changed)).holds(GROUP, DIGEST)


@pytest.mark.parametrize("key", [bytes(KEY_BYTES), b"\xff" * KEY_BYTES, b"\x02" + bytes(KEY_BYTES - 1)])
def test_what_is_no_key_has_signed_nothing(key: bytes) -> None:
    word = word_of(BundleSigner(SEED, GROUP))

    assert not msgspec.structs.replace(word, signer=key).holds(GROUP, DIGEST)


def test_a_voucher_travels_with_the_word() -> None:
    signer = BundleSigner(SEED, GROUP)
    signer.voucher = b"by its certificate"

    assert word_of(signer).voucher == b"by its certificate"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"signed",
        b"\xc0",
        msgspec.msgpack.encode([bytes(32)]),
        msgspec.msgpack.encode([bytes(31), bytes(64)]),
        msgspec.msgpack.encode([bytes(32), bytes(65)]),
        sign_for_earlier(SECRET, DIGEST),
        b"\x91" * 2000,
    ],
)
def test_what_is_no_word_is_read_as_none(content: bytes) -> None:
    assert read_word(content) is None


@given(st.binary(max_size=200))
@quick
def test_any_bytes_are_a_word_or_none(content: bytes) -> None:
    assert read_word(content) is None


@given(seeds, st.binary(min_size=64, max_size=64))
@quick
def test_any_key_and_any_signature_are_checked_and_hold_for_nothing(key: bytes, signature: bytes) -> None:
    assert not BundleWord(key, signature).holds(GROUP, DIGEST)


def test_what_workers_of_protocol_1_0_look_for_is_an_hmac_under_a_key_derived_from_the_secret() -> None:
    derived = HKDF(SHA256(), 32, salt=b"talka cluster secret 1", info=b"talka bundle").derive(SECRET.encode())
    signature = sign_for_earlier(SECRET, DIGEST)

    assert signature == hmac.digest(derived, DIGEST.encode(), "sha256")
    assert signature.hex() == "fb1c239464def8a38c8f0bbbb20c631a45e4c8a91441b9c1d7e788dfbfbdd08c"
