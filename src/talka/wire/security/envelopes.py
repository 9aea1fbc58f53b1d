"""Variables of a job, sealed to one life of the one worker that runs a task of it.

A worker draws an X25519 key pair for each of its lives and tells the public key. Whoever seals draws another pair for
each envelope: the key is HKDF-SHA256 of what the two share, the cipher AES-256-GCM, and job, attempt, worker and life
are authenticated with it. Randomness is passed in. An envelope is the sealer's public key, then ciphertext and tag.

X25519: RFC 7748 section 6.1. HKDF: RFC 5869 section 2.
Decision: docs/decisions/0029-signed-by-managers-sealed-to-workers.md.
"""

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from talka.errors import Untrusted
from talka.wire.security.bundles import VOUCHER_LIMIT_BYTES

KEY_BYTES: Final = 32
ENVELOPE_LIMIT_BYTES: Final = 128 * 1024
"""More than an order may hold."""
SEALING_LIMIT_BYTES: Final = VOUCHER_LIMIT_BYTES + 128
SEALING_PURPOSE: Final = "opens variables"
"""Of a voucher for the key of a worker."""

_LABEL: Final = b"talka variables 1"
_NONCE: Final = bytes(12)
"""A key seals one envelope."""


class BadEnvelope(Untrusted):
    """An envelope that is not for whoever tried to open it, or was changed."""


class SealingKey(msgspec.Struct, frozen=True, array_like=True):
    """What a worker tells of the key that variables are sealed to."""

    public: Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    voucher: Annotated[bytes, msgspec.Meta(max_length=VOUCHER_LIMIT_BYTES)] = b""
    """By the worker's certificate; empty where there are no certificates."""

    def encode(self) -> bytes:
        return _encoder.encode(self)


class Purpose(msgspec.Struct, frozen=True, array_like=True):
    """What an envelope is for, and for nothing else."""

    group: str
    job: str
    attempt: int
    worker: str
    boot: int


_encoder = msgspec.msgpack.Encoder()
_key_decoder: msgspec.msgpack.Decoder[SealingKey] = msgspec.msgpack.Decoder(SealingKey)
_decoder: msgspec.msgpack.Decoder[dict[str, str]] = msgspec.msgpack.Decoder(dict[str, str])


def read_sealing_key(content: bytes) -> SealingKey | None:
    try:
        return _key_decoder.decode(content)
    except (msgspec.MsgspecError, RecursionError):
        return None


def vouched_for(public: bytes, boot: int) -> bytes:
    """What a worker's certificate signs: the key, and the life whose it is."""
    return public + boot.to_bytes(8)


def seal_variables(variables: Mapping[str, str], purpose: Purpose, *, to: bytes, drawn: bytes) -> bytes:
    """`to` is the worker's public key, `drawn` 32 random bytes that are used for nothing else."""
    mine = X25519PrivateKey.from_private_bytes(drawn)
    public = mine.public_key().public_bytes_raw()
    try:
        shared = mine.exchange(X25519PublicKey.from_public_bytes(to))
    except ValueError:  # a point of small order: everybody knows what it would share
        raise BadEnvelope(f"the key that worker {purpose.worker} tells cannot be sealed to") from None
    cipher = AESGCM(_derived(shared, public, to))
    return public + cipher.encrypt(_NONCE, _encoder.encode(dict(variables)), _encoder.encode(purpose))


class Opener:
    """The key pair of one life of a worker; `drawn` are 32 random bytes that are kept nowhere else."""

    def __init__(self, drawn: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(drawn)
        self.public = self._key.public_key().public_bytes_raw()

    def open(self, envelope: bytes, purpose: Purpose) -> dict[str, str]:
        public = envelope[:KEY_BYTES]
        try:
            shared = self._key.exchange(X25519PublicKey.from_public_bytes(public))
            cipher = AESGCM(_derived(shared, public, self.public))
            return _decoder.decode(cipher.decrypt(_NONCE, envelope[KEY_BYTES:], _encoder.encode(purpose)))
        except (ValueError, InvalidTag, msgspec.MsgspecError, RecursionError):
            raise BadEnvelope(
                "the variables were sealed to another worker, job or attempt, or were changed on their way"
            ) from None


def _derived(shared: bytes, sealer: bytes, opener: bytes) -> bytes:
    return HKDF(SHA256(), 32, salt=sealer + opener, info=_LABEL).derive(shared)
