"""The word of a manager for a bundle: whoever accepted it signs for it, and workers run nothing else.

It is an Ed25519 signature over purpose, cluster, environment and digest, which covers every byte of the bundle, or URL
and request where there is none. The key is the manager's own: workers can check what it made and make nothing with it.
Where certificates are in use, a voucher of the manager's certificate for that key travels along.

Ed25519: RFC 8032 section 5.1.
Decision: docs/decisions/0029-signed-by-managers-sealed-to-workers.md.
"""

import hmac
from typing import Annotated, Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from talka.wire.security.keys import derived

KEY_BYTES: Final = 32
VOUCHER_LIMIT_BYTES: Final = 10 * 1024
"""A certificate and a signature: see `net/vouching.py`."""
WORD_LIMIT_BYTES: Final = VOUCHER_LIMIT_BYTES + 256
SIGNER_PURPOSE: Final = "signs bundles"
"""Of a voucher for the key of a manager."""

_PURPOSE: Final = b"talka bundle 2\x00"
_LABEL: Final = b"talka bundle"


class BundleWord(msgspec.Struct, frozen=True, array_like=True):
    signer: Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    """The public key."""
    signature: Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]
    voucher: Annotated[bytes, msgspec.Meta(max_length=VOUCHER_LIMIT_BYTES)] = b""
    """By the manager's certificate, for the public key; empty where there are no certificates."""

    def holds(self, group: str, digest: str) -> bool:
        """Whether the owner of the key signed this digest in this cluster and environment."""
        try:
            Ed25519PublicKey.from_public_bytes(self.signer).verify(self.signature, _said(group, digest))
        except (InvalidSignature, ValueError):  # ValueError: no point of the curve, where the library looks at that
            return False
        return True


class BundleSigner:
    """Signs what one manager accepts. `seed` is its private key, `group` its cluster and environment."""

    def __init__(self, seed: bytes, group: str) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self._group = group
        self.public = self._key.public_key().public_bytes_raw()
        self.voucher = b""

    def sign(self, digest: str) -> bytes:
        """An encoded `BundleWord`."""
        return _encoder.encode(BundleWord(self.public, self._key.sign(_said(self._group, digest)), self.voucher))


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[BundleWord] = msgspec.msgpack.Decoder(BundleWord)


def read_word(content: bytes) -> BundleWord | None:
    """None when nobody gave one."""
    try:
        return _decoder.decode(content)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _said(group: str, digest: str) -> bytes:
    return _PURPOSE + group.encode() + b"\x00" + digest.encode()


def sign_for_earlier(secret: str, digest: str) -> bytes:
    """What workers of protocol 1.0 look for: an HMAC under a key derived from the secret. Later ones do not look at
    it."""
    return hmac.digest(derived(secret, _LABEL), digest.encode(), "sha256")
