"""Statements that a node signs with the key of its certificate: they can be passed on, and are still its own.

A connection proves who is at its other end. What is told further (a member's address, the key a manager signs bundles
with, the key a worker is sealed to) needs a proof that travels with it. A signature is over purpose and statement, so
that none can be used for another purpose. This module knows no clock: `now` is of UTC.

Decision: docs/decisions/0030-keys-and-addresses-have-owners.md.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

from talka.errors import Untrusted
from talka.net.certificates import NO_CERTIFICATE, BadCertificate, identity_in, is_issued_by, load, load_key
from talka.net.tls import CertFiles, PeerIdentity
from talka.wire.security.roles import Role, id_problem

CERTIFICATE_LIMIT_BYTES: Final = 8 * 1024
SIGNATURE_LIMIT_BYTES: Final = 1024
"""RSA of 8,192 bits; of the keys that `talka certs` makes at most 72."""
_PREFIX: Final = b"talka statement 1\x00"

PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey
PublicKey: TypeAlias = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey


class BadVoucher(Untrusted):
    """A statement that nobody vouches for whom this cluster's authority knows."""


class Voucher:
    """Signs statements of this node."""

    def __init__(self, files: CertFiles) -> None:
        certificate = load(files.certificate)[0]
        if not any(is_issued_by(certificate, authority) for authority in load(files.ca)):
            raise BadCertificate(
                f"{files.certificate} was not issued by the authority of {files.ca} itself:"
                " what this node says could not be checked by others"
            )
        key = load_key(files.key)
        if not isinstance(key, PrivateKey):
            raise BadCertificate(f"{files.key} is a key that cannot sign: use one of EC, Ed25519 or RSA")
        self.certificate = certificate.public_bytes(serialization.Encoding.DER)
        """What others need to check what is signed here."""
        self._key: PrivateKey = key

    def sign(self, purpose: str, statement: bytes) -> bytes:
        said = _said(purpose, statement)
        if isinstance(self._key, ec.EllipticCurvePrivateKey):
            return self._key.sign(said, ec.ECDSA(hashes.SHA256()))
        if isinstance(self._key, ed25519.Ed25519PrivateKey):
            return self._key.sign(said)
        return self._key.sign(said, _PSS, hashes.SHA256())


class Known:
    """A certificate that was checked: whose it is, until when, and what it signed."""

    def __init__(self, certificate: x509.Certificate, identity: PeerIdentity, role: Role, key: PublicKey) -> None:
        self.identity = identity
        self.role = role
        self.not_before = certificate.not_valid_before_utc
        self.not_after = certificate.not_valid_after_utc
        self._key = key

    def has_signed(self, purpose: str, statement: bytes, signature: bytes) -> bool:
        said = _said(purpose, statement)
        try:
            if isinstance(self._key, ec.EllipticCurvePublicKey):
                self._key.verify(signature, said, ec.ECDSA(hashes.SHA256()))
            elif isinstance(self._key, ed25519.Ed25519PublicKey):
                self._key.verify(signature, said)
            else:
                self._key.verify(signature, said, _PSS, hashes.SHA256())
        except InvalidSignature:
            return False
        return True


class Authority:
    """Checks certificates of one cluster and environment, and what was signed with them."""

    def __init__(self, ca: Path, *, cluster: str, environment: str) -> None:
        self._authorities: Sequence[x509.Certificate] = load(ca)
        self._cluster = cluster
        self._environment = environment

    def know(self, certificate: bytes, now: datetime, *, even_ended: bool = False) -> Known:
        """Whose certificate (DER) it is. `BadVoucher` when it is of another authority, cluster or time, or no
        certificate. `even_ended`: it need not hold any more.

        It costs a signature check: keep what comes of it, and ask again after `not_after`.
        """
        if len(certificate) > CERTIFICATE_LIMIT_BYTES:
            raise BadVoucher(f"a certificate of {len(certificate):,} bytes: at most {CERTIFICATE_LIMIT_BYTES:,}")
        try:
            parsed = x509.load_der_x509_certificate(certificate)
            identity = identity_in(parsed)
            key = parsed.public_key()
        except NO_CERTIFICATE:
            raise BadVoucher("what should be a certificate cannot be read as one") from None
        if not any(is_issued_by(parsed, authority) for authority in self._authorities):
            raise BadVoucher("the certificate is of another authority than this cluster's")
        until = now if even_ended else parsed.not_valid_after_utc
        if not parsed.not_valid_before_utc <= now <= until:
            raise BadVoucher(f"the certificate of {identity.name[:80]!r} has expired, or is not valid yet")
        if (identity.cluster, identity.environment) != (self._cluster, self._environment):
            raise BadVoucher(
                f"the certificate of {identity.name[:80]!r} is of cluster {identity.cluster[:80]!r},"
                f" environment {identity.environment[:80]!r}"
            )
        try:
            role = Role(identity.role)
        except ValueError:
            raise BadVoucher(f"the certificate of {identity.name[:80]!r} says no role that is known") from None
        if problem := id_problem("name", identity.name):
            raise BadVoucher(f"the certificate says nobody's name: {problem}")
        if not isinstance(key, PublicKey):
            raise BadVoucher(f"the key of {identity.name!r} cannot sign")
        return Known(parsed, identity, role, key)

    def check(
        self,
        purpose: str,
        statement: bytes,
        certificate: bytes,
        signature: bytes,
        now: datetime,
        *,
        even_ended: bool = False,
    ) -> Known:
        """Who signed the statement; `BadVoucher` when nobody did whom the authority knows."""
        known = self.know(certificate, now, even_ended=even_ended)
        if not known.has_signed(purpose, statement, signature):
            raise BadVoucher(f"the signature of {known.identity.name!r} is invalid: it is over another statement")
        return known


_PSS: Final = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)


def _said(purpose: str, statement: bytes) -> bytes:
    return _PREFIX + purpose.encode() + b"\x00" + statement
