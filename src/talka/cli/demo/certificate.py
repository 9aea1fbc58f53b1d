"""A certificate for the demo server, made for the occasion."""

from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from talka.clock import utc_now
from talka.errors import Invalid


class TLSFiles(NamedTuple):
    cert: Path
    key: Path


def write_certificate(files: TLSFiles, target: Path) -> None:
    try:
        target.write_bytes(files.cert.read_bytes())
    except OSError as error:
        raise Invalid(f"The certificate cannot be written to {target}: {error.strerror}.") from None


def make_certificate(folder: Path, host: str) -> TLSFiles:
    """A certificate signed by its own key, for `host` and every name of the loopback. Clients must be told to trust
    it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    names: list[x509.GeneralName] = []
    for name in dict.fromkeys([host, "localhost", "127.0.0.1", "::1"]):
        try:
            names.append(x509.IPAddress(ip_address(name)))
        except ValueError:
            names.append(x509.DNSName(name))
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Talka demo server")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    now = utc_now()
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks differ
        .not_valid_after(now + timedelta(days=365))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = TLSFiles(folder / "demo-cert.pem", folder / "demo-key.pem")
    files.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files.key.touch(mode=0o600)
    files.key.chmod(0o600)  # also if it was there before
    files.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files
