"""A cluster's own authority, the certificates it issues, and what stands in them.

The key of the authority signs and does nothing else: members need ca.crt only, and ca.key belongs where no member runs.

X.509: RFC 5280 section 4.
Decisions: docs/decisions/0028-one-table-of-roles.md, docs/decisions/0067-certificates-that-are-renewed.md.
"""

import os
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from talka.errors import Invalid
from talka.net.private_files import openness
from talka.net.tls import AUTHORITY, CertFiles, PeerIdentity, cert_files, identity_of
from talka.wire.security.roles import Role, id_problem

AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 365
MOST_DAYS: Final = 36_500
SLACK: Final = timedelta(hours=1)
"""A certificate holds from before it was made: clocks differ."""
FILE_LIMIT_BYTES: Final = 1024 * 1024
_HOST: Final = re.compile(
    r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*"
)
_Issuable: TypeAlias = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey
NO_CERTIFICATE: Final = (
    ValueError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


class BadCertificate(Invalid):
    """A certificate that is not one, or cannot be made as asked."""


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a certificate. What it does not say is empty."""

    name: str
    role: str
    cluster: str
    environment: str
    datacenter: str
    hosts: tuple[str, ...]
    is_authority: bool
    not_before: datetime
    not_after: datetime
    issuer: str
    fingerprint: str
    """SHA-256 of the certificate, in hexadecimal."""
    problem: str
    """Why a peer will not accept it, as a sentence; empty when there is no reason."""


# Making them. `now` is of UTC.


def make_authority(
    folder: str | os.PathLike[str], cluster: str, environment: str, *, days: int = AUTHORITY_DAYS, now: datetime
) -> Path:
    """Make ca.crt and ca.key in the folder, which may be new. An authority that is there stays: all depends on it."""
    _check_ids(cluster=cluster, environment=environment)
    until = _end(now, days)
    files = cert_files(Path(folder), AUTHORITY)
    for file in (files.certificate, files.key):
        if os.path.lexists(file):
            raise BadCertificate(f"{file} is there already: every certificate of it would be worth nothing without it")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject("Talka authority", cluster, environment)
    claims = PeerIdentity("", "", cluster, environment)
    certificate = (
        _builder(subject, subject, key.public_key(), key, claims, ())
        .not_valid_before(now - SLACK)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    _store(files, key, certificate, replace=False)
    return files.certificate


def issue(
    folder: str | os.PathLike[str],
    *,
    name: str,
    role: Role | str,
    cluster: str = "",
    environment: str = "",
    datacenter: str = "",
    hosts: Sequence[str] = (),
    days: int = CERTIFICATE_DAYS,
    now: datetime,
    replace: bool = False,
) -> CertFiles:
    """Make NAME.crt and NAME.key, signed by the authority in the folder.

    Cluster and environment are the authority's unless others are named. It never holds longer than the authority
    itself.
    """
    authority, authority_key = _authority(Path(folder))
    own = identity_in(authority)
    claims = PeerIdentity(name, role, cluster or own.cluster, environment or own.environment, datacenter)
    _check_ids(name=name, cluster=claims.cluster, environment=claims.environment)
    if datacenter:
        _check_ids(datacenter=datacenter)
    if name.lower() == AUTHORITY:
        raise BadCertificate(f"{name!r} cannot be the name of a node: its files would be those of the authority")
    if role not in list(Role):
        raise BadCertificate(f"there is no role {str(role)[:80]!r}: use {', '.join(Role)}")
    until = min(_end(now, days), authority.not_valid_after_utc)
    _check_ahead(until, authority, folder, now)
    files = cert_files(Path(folder), name)
    for file in (files.certificate, files.key):
        if os.path.lexists(file) and not replace:
            raise BadCertificate(f"{file} is there already: --replace makes a new certificate and key in its place")
    names = tuple(_host(host) for host in dict.fromkeys(hosts))
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _issued(claims, names, key.public_key(), authority, authority_key, now, until)
    _store(files, key, certificate, replace=replace)
    return files


def renew(folder: str | os.PathLike[str], name: str, *, days: int = CERTIFICATE_DAYS, now: datetime) -> CertFiles:
    """Put another NAME.crt in the place of the one in the folder: for the same key and with the same claims and hosts,
    and valid from now on.

    The key stays, so that one file is replaced at once, and what a running node has signed is still its own.
    """
    if name.lower() == AUTHORITY:
        raise BadCertificate(
            "the authority's own certificate cannot be renewed: make another one in a new folder with talka certs init"
        )
    _check_ids(name=name)
    files = cert_files(Path(folder), name)
    if not files.certificate.is_file():
        raise BadCertificate(
            f"{files.certificate.name} is not in {folder}: talka certs issue {folder} --name {name} --role … makes it"
        )
    authority, authority_key = _authority(Path(folder))
    former, key = load(files.certificate)[0], load_key(files.key)
    if not is_issued_by(former, authority):
        raise BadCertificate(
            f"{files.certificate} was issued by another authority than the one in {folder}: renew it where that one is"
        )
    if not isinstance(key, _Issuable) or key.public_key() != former.public_key():
        raise BadCertificate(f"{files.key} is not the private key of {files.certificate}: issue them together")
    until = min(_end(now, days), authority.not_valid_after_utc)
    _check_ahead(until, authority, folder, now)
    hosts = tuple(_host(host) for host in _hosts(former))
    certificate = _issued(identity_in(former), hosts, key.public_key(), authority, authority_key, now, until)
    try:
        _write(files.certificate, certificate.public_bytes(serialization.Encoding.PEM), 0o644, replace=True)
    except OSError as error:
        raise BadCertificate(f"{folder} did not take the certificate: {error.strerror}") from None
    return files


def _check_ahead(until: datetime, authority: x509.Certificate, folder: str | os.PathLike[str], now: datetime) -> None:
    if until <= now:
        ended = f"{authority.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        raise BadCertificate(
            f"the authority in {folder} ended on {ended}: make one in a new folder with talka certs init"
        )


def _issued(
    claims: PeerIdentity,
    hosts: tuple[x509.GeneralName, ...],
    key: ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    now: datetime,
    until: datetime,
) -> x509.Certificate:
    """The certificate of a node."""
    subject = _subject(claims.name, claims.cluster, claims.environment)
    return (
        _builder(subject, authority.subject, key, authority_key, claims, hosts)
        .not_valid_before(now - SLACK)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        # A node dials and is dialled with the same certificate.
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )


def _check_ids(**ids: str) -> None:
    for what, text in ids.items():
        if problem := id_problem(what, text):
            raise BadCertificate(problem)


def _end(now: datetime, days: int) -> datetime:
    if not 1 <= days <= MOST_DAYS:
        raise BadCertificate(f"a certificate cannot be valid for {days} days: use 1 to {MOST_DAYS:,}")
    return now + timedelta(days=days)


def _subject(common_name: str, cluster: str, environment: str) -> x509.Name:
    """Each part has room for one id, and not for two. Peers look at the URIs only."""
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, environment),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        if len(host) > 253 or not _HOST.fullmatch(host):
            raise BadCertificate(f"host {host[:80]!r} is neither a DNS name nor an IP address") from None
        return x509.DNSName(host)


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    claims: PeerIdentity,
    hosts: tuple[x509.GeneralName, ...],
) -> x509.CertificateBuilder:
    uris = [x509.UniformResourceIdentifier(uri) for uri in claims.uris()]
    return (
        x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number())
        .add_extension(x509.SubjectAlternativeName([*uris, *hosts]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    files = cert_files(folder, AUTHORITY)
    for file in (files.certificate, files.key):
        if not file.is_file():
            hint = f"talka certs init {folder} makes an authority; only where its key is can it issue"
            raise BadCertificate(f"{file.name} is not in {folder}: {hint}")
    authority = load(files.certificate)[0]
    if problem := openness(files.key.stat(), files.key, "the private key"):
        raise BadCertificate(problem)
    key = load_key(files.key)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != authority.public_key():
        raise BadCertificate(f"{files.key} is not the private key of {files.certificate}")
    return authority, key


# Storing them.


def _store(files: CertFiles, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate, *, replace: bool) -> None:
    """The key first: a certificate without its key is what a node cannot start with."""
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    folder = files.key.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(files.key, private, 0o600, replace=replace)
        try:
            _write(files.certificate, certificate.public_bytes(pem), 0o644, replace=replace)
        except BaseException:
            if not replace:
                files.key.unlink()
            raise
    except OSError as error:
        raise BadCertificate(f"{folder} did not take the certificate and key: {error.strerror}") from None


def _write(path: Path, content: bytes, mode: int, *, replace: bool) -> None:
    """There is no moment in which others could read a key. What is replaced is whole or the old one."""
    target = path.with_name(f".{path.name}-{os.urandom(6).hex()}.part") if replace else path
    with open(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if replace:
                os.replace(target, path)
        except BaseException:
            target.unlink()
            raise


# Reading them.


def describe(
    source: str | os.PathLike[str] | bytes, *, now: datetime, ca: str | os.PathLike[str] | bytes | None = None
) -> Certificate:
    """The facts of a certificate in a file, or of one in PEM form.

    `ca`: the authority it should be of, as a file or in PEM form. Without it, that is the ca.crt beside the file, if
    any.
    """
    if ca is None and not isinstance(source, bytes):
        beside = Path(source).parent / f"{AUTHORITY}.crt"
        ca = beside if beside.is_file() else None
    certificate = load(source)[0]
    return Certificate(
        **msgspec.structs.asdict(identity_in(certificate)),
        hosts=_hosts(certificate),
        is_authority=_is_authority(certificate),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        issuer=certificate.issuer.rfc4514_string(),
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
        problem=_problem(certificate, [] if ca is None else load(ca), now),
    )


def _problem(certificate: x509.Certificate, authorities: Sequence[x509.Certificate], now: datetime) -> str:
    if now > certificate.not_valid_after_utc:
        return f"it expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    if now < certificate.not_valid_before_utc:
        return f"it is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
    if authorities and not any(is_issued_by(certificate, authority) for authority in authorities):
        return "another authority issued it than the one whose ca.crt is used here"
    return ""  # nothing is issued for longer than its authority holds


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def identity_in(certificate: x509.Certificate) -> PeerIdentity:
    names = _alternative_names(certificate)
    return identity_of(names.get_values_for_type(x509.UniformResourceIdentifier) if names else ())


def _hosts(certificate: x509.Certificate) -> tuple[str, ...]:
    names = _alternative_names(certificate)
    if names is None:
        return ()
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    return (*names.get_values_for_type(x509.DNSName), *addresses)


def _alternative_names(certificate: x509.Certificate) -> x509.SubjectAlternativeName | None:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def load(source: str | os.PathLike[str] | bytes) -> list[x509.Certificate]:
    """At least one, all of whose parts can be looked at."""
    where = "what was given" if isinstance(source, bytes) else os.fspath(source)
    content = source if isinstance(source, bytes) else read(Path(source))
    if b"PRIVATE KEY-----" in content and b"BEGIN CERTIFICATE-----" not in content:
        raise BadCertificate(f"{where} holds a private key and no certificate: name the .crt beside it")
    try:
        certificates = x509.load_pem_x509_certificates(content)
        for certificate in certificates:
            # They are read when they are first asked for, and only then complain.
            _ = certificate.extensions, certificate.issuer, certificate.subject
    except NO_CERTIFICATE:
        raise BadCertificate(f"{where} holds no certificate in PEM form, or none that can be understood") from None
    return certificates


def load_key(path: Path) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(read(path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it has a password
        raise BadCertificate(f"{path} is not a private key in PEM form without a password") from None


def read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(FILE_LIMIT_BYTES)
    except OSError as error:
        raise BadCertificate(f"{path} cannot be read: {error.strerror}") from None
