"""Variables sealed to one worker: whoever else has the bytes, or the purpose, or an earlier key, reads nothing."""

import contextlib
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.wire.security.envelopes import (
    KEY_BYTES,
    BadEnvelope,
    Opener,
    Purpose,
    SealingKey,
    read_sealing_key,
    seal_variables,
    vouched_for,
)

quick = settings(deadline=None, derandomize=True, max_examples=50)
PURPOSE = Purpose("shop/staging", "b4k7", 3, "w1", 77)
VARIABLES = {"SHOP_TOKEN": "räumen-7f3a", "EMPTY": ""}
DRAWN = bytes(range(KEY_BYTES))
keys = st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES)


def sealed(opener: Opener, variables: dict[str, str] | None = None, purpose: Purpose = PURPOSE) -> bytes:
    return seal_variables(VARIABLES if variables is None else variables, purpose, to=opener.public, drawn=DRAWN)


@given(keys, keys, st.dictionaries(st.text(), st.text()))
@quick
def test_whom_variables_were_sealed_to_opens_them(private: bytes, drawn: bytes, variables: dict[str, str]) -> None:
    opener = Opener(private)

    envelope = seal_variables(variables, PURPOSE, to=opener.public, drawn=drawn)

    assert opener.open(envelope, PURPOSE) == variables


def test_an_envelope_is_what_the_words_of_the_module_say() -> None:
    opener = Opener(b"w" * KEY_BYTES)
    envelope = sealed(opener)
    theirs = X25519PrivateKey.from_private_bytes(b"w" * KEY_BYTES)
    shared = theirs.exchange(X25519PublicKey.from_public_bytes(envelope[:32]))
    salt = envelope[:32] + opener.public
    key = HKDF(SHA256(), 32, salt=salt, info=b"talka variables 1").derive(shared)

    content = AESGCM(key).decrypt(bytes(12), envelope[32:], msgspec.msgpack.encode(PURPOSE))

    assert msgspec.msgpack.decode(content) == VARIABLES


def test_nothing_of_the_variables_is_in_the_envelope() -> None:
    envelope = sealed(Opener(b"w" * KEY_BYTES))

    assert not any(word.encode() in envelope for word in ("SHOP_TOKEN", "räumen-7f3a", "EMPTY"))


def test_another_worker_or_another_life_cannot_open_it() -> None:
    envelope = sealed(Opener(b"w" * KEY_BYTES))

    with pytest.raises(BadEnvelope, match="sealed to another worker, job or attempt"):
        Opener(b"x" * KEY_BYTES).open(envelope, PURPOSE)


@pytest.mark.parametrize(
    "other",
    [{"group": "shop/production"}, {"job": "b4k8"}, {"attempt": 4}, {"worker": "w2"}, {"boot": 78}],
    ids=lambda other: next(iter(other)),
)
def test_an_envelope_for_one_purpose_does_not_open_for_another(other: dict[str, Any]) -> None:
    opener = Opener(b"w" * KEY_BYTES)

    with pytest.raises(BadEnvelope):
        opener.open(sealed(opener), msgspec.structs.replace(PURPOSE, **other))


def test_an_envelope_that_was_changed_or_cut_does_not_open() -> None:
    opener = Opener(b"w" * KEY_BYTES)
    envelope = sealed(opener)
    for at in range(len(envelope)):
        changed = bytearray(envelope)
        changed[at] ^= 1
        # The top bit of a public key means nothing, but it is in the key that is derived.
        with pytest.raises(BadEnvelope):
            opener.open(bytes(changed), PURPOSE)
        with pytest.raises(BadEnvelope):
            opener.open(envelope[:at], PURPOSE)


def test_what_is_sealed_and_no_variables_does_not_open() -> None:
    opener = Opener(b"w" * KEY_BYTES)
    with pytest.raises(BadEnvelope):
        opener.open(sealed(opener, {"A": 1}), PURPOSE)  # type: ignore[dict-item]


def test_nothing_is_sealed_to_a_key_whose_secret_everybody_knows() -> None:
    with pytest.raises(BadEnvelope, match="the key that worker w1 tells cannot be sealed to"):
        seal_variables(VARIABLES, PURPOSE, to=bytes(KEY_BYTES), drawn=DRAWN)


@given(st.binary(max_size=200))
@quick
def test_any_bytes_are_an_envelope_that_does_not_open(envelope: bytes) -> None:
    with pytest.raises(BadEnvelope):
        Opener(b"w" * KEY_BYTES).open(envelope, PURPOSE)


@given(keys)
@quick
def test_any_key_is_sealed_to_or_refused(to: bytes) -> None:
    with contextlib.suppress(BadEnvelope):
        assert len(seal_variables(VARIABLES, PURPOSE, to=to, drawn=DRAWN)) > KEY_BYTES


def test_what_a_worker_tells_of_its_key_is_read_as_it() -> None:
    for key in (SealingKey(DRAWN), SealingKey(DRAWN, b"voucher")):
        assert read_sealing_key(key.encode()) == key


@pytest.mark.parametrize(
    "content", [b"", b"key", msgspec.msgpack.encode([bytes(31)]), msgspec.msgpack.encode([1]), b"\x91" * 2000]
)
def test_what_is_no_key_is_read_as_none(content: bytes) -> None:
    assert read_sealing_key(content) is None


def test_a_voucher_is_for_one_key_of_one_life() -> None:
    said = {vouched_for(key, boot) for key in (DRAWN, bytes(KEY_BYTES)) for boot in (0, 1, 1 << 61)}

    assert len(said) == 6
