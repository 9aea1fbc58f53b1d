"""Statements signed with the key of a certificate, and passed on."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa

from talka.net.certificates import BadCertificate, issue, make_authority
from talka.net.tls import CertFiles, PeerIdentity
from talka.net.vouching import CERTIFICATE_LIMIT_BYTES, Authority, BadVoucher, Voucher
from talka.wire.security.roles import Role

NOW = datetime(2030, 5, 6, 7, 8, 9, tzinfo=UTC)
DAY = timedelta(days=1)
PEM = serialization.Encoding.PEM


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    folder = tmp_path / "certs"
    make_authority(folder, "shop", "staging", now=NOW)
    return folder


def authority(folder: Path) -> Authority:
    return Authority(folder / "ca.crt", cluster="shop", environment="staging")


def manager(folder: Path, name: str = "m1") -> Voucher:
    return Voucher(issue(folder, name=name, role=Role.MANAGER, now=NOW))


def made_by_hand(
    folder: Path,
    key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey | dsa.DSAPrivateKey,
    claims: PeerIdentity,
) -> CertFiles:
    """A certificate of the cluster's authority that `talka certs` would not make."""
    ca = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    ca_key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    uris = [x509.UniformResourceIdentifier(uri) for uri in claims.uris()]
    certificate = (
        x509.CertificateBuilder(ca.subject, x509.Name([]), key.public_key(), 7)
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + DAY)
        .add_extension(x509.SubjectAlternativeName(uris), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    files = CertFiles(folder / "ca.crt", folder / "own.crt", folder / "own.key")
    files.certificate.write_bytes(certificate.public_bytes(PEM))
    files.key.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    return files


def test_what_a_node_signed_is_its_own_wherever_it_is_read(certs: Path) -> None:
    voucher = manager(certs)
    signature = voucher.sign("address", b"m1 is at 10.0.0.1")
    known = authority(certs).check("address", b"m1 is at 10.0.0.1", voucher.certificate, signature, NOW)
    assert (known.identity.name, known.role) == ("m1", Role.MANAGER)
    assert known.not_before < NOW < known.not_after


@pytest.mark.parametrize(
    ("purpose", "statement"), [("address", b"m1 is at 10.0.0.2"), ("bundle", b"m1 is at 10.0.0.1"), ("addres", b"sm1")]
)
def test_a_signature_is_of_one_statement_for_one_purpose(certs: Path, purpose: str, statement: bytes) -> None:
    voucher = manager(certs)
    signature = voucher.sign("address", b"m1 is at 10.0.0.1")
    with pytest.raises(BadVoucher, match="signature of 'm1' is invalid"):
        authority(certs).check(purpose, statement, voucher.certificate, signature, NOW)


def test_one_node_cannot_sign_for_another(certs: Path) -> None:
    voucher, other = manager(certs), manager(certs, "m2")
    with pytest.raises(BadVoucher, match="signature of 'm1' is invalid"):
        authority(certs).check("address", b"x", voucher.certificate, other.sign("address", b"x"), NOW)


@pytest.mark.parametrize(
    "key", [ed25519.Ed25519PrivateKey.generate(), rsa.generate_private_key(65537, 2048)], ids=["ed25519", "rsa"]
)
def test_keys_that_others_made_sign_as_well(certs: Path, key: ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey) -> None:
    voucher = Voucher(made_by_hand(certs, key, PeerIdentity("w1", "worker", "shop", "staging")))
    signature = voucher.sign("address", b"x")
    known = authority(certs).check("address", b"x", voucher.certificate, signature, NOW)
    assert known.role is Role.WORKER
    assert not known.has_signed("address", b"y", signature)


def test_a_certificate_of_another_authority_vouches_for_nothing(certs: Path, tmp_path: Path) -> None:
    make_authority(tmp_path / "theirs", "shop", "staging", now=NOW)
    voucher = manager(tmp_path / "theirs")
    with pytest.raises(BadVoucher, match="another authority"):
        authority(certs).know(voucher.certificate, NOW)


@pytest.mark.parametrize("now", [NOW - 2 * DAY, NOW + 366 * DAY])
def test_a_certificate_vouches_only_while_it_is_valid(certs: Path, now: datetime) -> None:
    with pytest.raises(BadVoucher, match="has expired, or is not valid yet"):
        authority(certs).know(manager(certs).certificate, now)


def test_a_certificate_of_another_cluster_or_environment_vouches_for_nothing(certs: Path) -> None:
    files = issue(certs, name="m1", role=Role.MANAGER, environment="production", now=NOW)
    with pytest.raises(BadVoucher, match="environment 'production'"):
        authority(certs).know(Voucher(files).certificate, NOW)


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        (PeerIdentity("m1", "king", "shop", "staging"), "no role that is known"),
        (PeerIdentity("m 1", "manager", "shop", "staging"), "nobody's name"),
    ],
)
def test_a_certificate_without_a_role_or_a_name_vouches_for_nothing(
    certs: Path, claims: PeerIdentity, problem: str
) -> None:
    claims = PeerIdentity(claims.name.replace(" ", "%20"), claims.role, claims.cluster, claims.environment)
    voucher = Voucher(made_by_hand(certs, ec.generate_private_key(ec.SECP256R1()), claims))
    with pytest.raises(BadVoucher, match=problem):
        authority(certs).know(voucher.certificate, NOW)


@pytest.mark.parametrize("certificate", [b"", b"\x30\x03abc", b"x" * 100, b"\x30" * (CERTIFICATE_LIMIT_BYTES + 1)])
def test_bytes_that_are_no_certificate_are_refused(certs: Path, certificate: bytes) -> None:
    with pytest.raises(BadVoucher, match="cannot be read as one|at most"):
        authority(certs).know(certificate, NOW)


def test_a_key_that_cannot_sign_is_refused_at_both_ends(certs: Path) -> None:
    files = made_by_hand(certs, dsa.generate_private_key(1024), PeerIdentity("m1", "manager", "shop", "staging"))
    with pytest.raises(BadCertificate, match="cannot sign"):
        Voucher(files)
    certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    with pytest.raises(BadVoucher, match="cannot sign"):
        authority(certs).know(certificate.public_bytes(serialization.Encoding.DER), NOW)


def test_a_node_says_at_once_that_its_certificate_can_vouch_for_nothing(certs: Path, tmp_path: Path) -> None:
    files = issue(certs, name="m1", role=Role.MANAGER, now=NOW)
    make_authority(tmp_path / "theirs", "shop", "staging", now=NOW)
    with pytest.raises(BadCertificate, match="was not issued by the authority"):
        Voucher(files._replace(ca=tmp_path / "theirs" / "ca.crt"))
    shutil.copy(files.certificate, files.key)
    with pytest.raises(BadCertificate, match="not a private key"):
        Voucher(files)
