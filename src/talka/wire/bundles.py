"""The signature of a bundle: the manager that accepted it vouches for it, and workers run nothing without.

It covers the digest alone, which covers every byte of the bundle.
"""

import hmac
from typing import Final

_SALT: Final = b"talka cluster secret 1"
"""As for every key that is derived from a cluster's secret."""
_LABEL: Final = b"talka bundle"


def sign(key: bytes, digest: str) -> bytes:
    """HMAC-SHA256 of the digest, under a key derived from `key` for this purpose alone: 32 bytes."""
    extracted = hmac.digest(_SALT, key, "sha256")  # HKDF-SHA256 (RFC 5869) of one block
    derived = hmac.digest(extracted, _LABEL + b"\x01", "sha256")
    return hmac.digest(derived, digest.encode(), "sha256")


def holds(key: bytes, digest: str, signature: bytes) -> bool:
    """Whether whoever signed the digest had this key."""
    return hmac.compare_digest(sign(key, digest), signature)
