"""TLS between nodes: both ends show a certificate of the cluster's authority, which says who they are.

The name is in the certificate and not in the address, so that a node may move; `check_identity` looks at it. This
module knows no clock: what is valid now is decided by the TLS library.

TLS 1.3: RFC 8446.
Decision: docs/decisions/0014-sealed-and-alive.md.
"""

import os
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from talka.errors import Invalid, Unavailable, Untrusted
from talka.net.private_files import openness
from talka.wire.security.roles import Role, id_problem, may_connect

SCHEME: Final = "talka://"
CLAIMS: Final = {"name": "name", "role": "role", "cluster": "cluster", "env": "environment", "dc": "datacenter"}
"""The word in the certificate's URI to the field it fills."""
AUTHORITY: Final = "ca"
READ_BYTES: Final = 64 * 1024
RECORD_HEADER_BYTES: Final = 5
TLS_FIRST_BYTES: Final = (0x15, 0x16)
"""An alert or a handshake: nothing else can open a TLS connection."""

Reason: TypeAlias = Literal["cluster", "environment", "role", "name"]


class BadCerts(Invalid):
    """The files of a certificate are missing, unsafe or do not fit each other."""


class HandshakeFailed(Untrusted):
    """No TLS connection came about. `reason` is a word for counters."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


# Files and contexts.


class CertFiles(NamedTuple):
    ca: Path
    certificate: Path
    key: Path


def cert_files(folder: Path, name: str) -> CertFiles:
    """Where they are kept, whether they are there or not."""
    return CertFiles(folder / f"{AUTHORITY}.crt", folder / f"{name}.crt", folder / f"{name}.key")


def find_certs(folder: str | os.PathLike[str], name: str) -> CertFiles:
    """The files of `name`, looked at: they are there, only their owner can read the key, and they fit each other."""
    if problem := id_problem("name", name):
        raise BadCerts(problem)
    files = cert_files(Path(folder), name)
    if not files.ca.parent.is_dir():
        raise BadCerts(f"{folder} is not a folder of certificates: talka certs init {folder} makes one")
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        remedy = f"talka certs issue {folder} --name {name} --role … makes them"
        if files.ca.name in missing:
            remedy = "copy it from the folder in which talka certs init made it"
        raise BadCerts(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not in {folder}: {remedy}")
    try:
        problem = openness(files.key.stat(), files.key, "the private key")
    except OSError as error:
        raise BadCerts(f"{files.key} cannot be looked at: {error.strerror}") from None
    if problem:
        raise BadCerts(problem)
    client_context(files)
    return files


def server_context(certs: CertFiles) -> ssl.SSLContext:
    context = _context(ssl.PROTOCOL_TLS_SERVER, certs)
    # One is enough: it tells the client that its certificate was accepted (see `TlsChannel`). None is ever used again.
    context.num_tickets = 1
    return context


def client_context(certs: CertFiles) -> ssl.SSLContext:
    return _context(ssl.PROTOCOL_TLS_CLIENT, certs)


def _context(side: int, certs: CertFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the name is a URI in the certificate
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(certs.ca)
    except ssl.SSLError:
        raise BadCerts(f"{certs.ca} holds no certificate in PEM form") from None
    except OSError as error:
        raise BadCerts(f"{certs.ca} cannot be read: {error.strerror}") from None
    show(context, certs)
    return context


def show(context: ssl.SSLContext, certs: CertFiles) -> None:
    """Have this certificate and key shown by connections from now on."""

    def password() -> str:
        # Without an answer the library would ask at the terminal, and a node would never start.
        raise BadCerts(f"the private key {certs.key} is encrypted: store it without a password")

    try:
        context.load_cert_chain(certs.certificate, certs.key, password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise BadCerts(f"{certs.key} is not the private key of {certs.certificate}: issue them together") from None
        raise BadCerts(f"{certs.certificate} and {certs.key} are not a certificate and a key in PEM form") from None
    except OSError as error:
        raise BadCerts(f"{certs.certificate} or {certs.key} cannot be read: {error.strerror}") from None


# Who the other end is.


class PeerIdentity(msgspec.Struct, frozen=True):
    """What a certificate says about its owner, unchecked. What it does not say is empty."""

    name: str
    role: str
    cluster: str
    environment: str
    datacenter: str = ""

    def uris(self) -> list[str]:
        """As they stand in the certificate."""
        said = ((word, str(getattr(self, field))) for word, field in CLAIMS.items())
        return [f"{SCHEME}{word}/{text}" for word, text in said if text]


def identity_of(uris: Iterable[str]) -> PeerIdentity:
    """Claims of one kind are joined by commas. No id has a comma, so a certificate that claims two is two nobodies."""
    claims: dict[str, str] = dict.fromkeys(CLAIMS.values(), "")
    for uri in uris:
        word, slash, text = uri.removeprefix(SCHEME).partition("/")
        if uri.startswith(SCHEME) and slash and word in CLAIMS:
            field = CLAIMS[word]
            claims[field] = f"{claims[field]},{text}" if claims[field] else text
    return PeerIdentity(**claims)


def peer_identity(ssl_object: ssl.SSLObject | ssl.SSLSocket) -> PeerIdentity:
    """Who the other end is. The handshake must be over: then the authority vouches for it."""
    certificate = ssl_object.getpeercert() or {}
    names = certificate.get("subjectAltName", ())
    return identity_of(str(name[1]) for name in names if name[0] == "URI")


class HandshakeRefused(NamedTuple):
    reason: Reason
    text: str


def check_identity(
    identity: PeerIdentity,
    *,
    cluster: str,
    environment: str,
    role_here: Role,
    initiated_by_peer: bool,
) -> HandshakeRefused | None:
    """Why there must be no connection with this peer, if so."""
    peer = repr(identity.name[:80]) if identity.name else "a peer without a name"
    if identity.cluster != cluster:
        return HandshakeRefused(
            "cluster", f"{peer} is {_of('cluster', identity.cluster)}, this {role_here} of {cluster!r}"
        )
    if identity.environment != environment:
        differing = f"{peer} is {_of('environment', identity.environment)}, this {role_here} of {environment!r}"
        return HandshakeRefused("environment", differing)
    try:
        role = Role(identity.role)
    except ValueError:
        known = ", ".join(Role)
        what = repr(identity.role[:80]) if identity.role else "no role"
        return HandshakeRefused("role", f"the certificate of {peer} says {what} to this {role_here}; roles are {known}")
    initiator, target = (role, role_here) if initiated_by_peer else (role_here, role)
    if sentence := may_connect(initiator, target):
        side = f"{peer} is the {role}, this node the {role_here}"
        return HandshakeRefused(
            "role", f"{sentence} ({side})" if role is not role_here else f"{sentence} ({peer} and this node)"
        )
    if problem := id_problem("name", identity.name):
        return HandshakeRefused(
            "name", f"the certificate of this {role} says nobody's name to this {role_here}: {problem}"
        )
    return None


def _of(what: str, text: str) -> str:
    return f"of {what} {text[:80]!r}" if text else f"of no {what}"


# What went wrong.

_FOREIGN: Final = (
    2,  # no issuer
    7,  # signed by another key of the same name
    18,  # self-signed
    19,  # self-signed in its chain
    20,  # no local issuer
    21,  # nothing to verify with
    24,  # issued by what is no authority
    29,  # of another subject
    30,  # of another key
)
_ALERTS: Final = {
    "CERTIFICATE_EXPIRED": "expired",
    "BAD_CERTIFICATE": "not-yet-valid",  # the only reason for it that files of ours can give
    "UNKNOWN_CA": "foreign",
    "DECRYPT_ERROR": "foreign",
    "CERTIFICATE_REQUIRED": "no-certificate",
}
_NOT_TLS: Final = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "HTTPS_PROXY_REQUEST",
    "UNKNOWN_PROTOCOL",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
    "UNSUPPORTED_RECORD_TYPE",
)
_OLD: Final = ("UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE")
_THEIRS: Final = {
    "expired": "the peer's certificate has expired: issue a new one with talka certs issue, or set the clocks",
    "not-yet-valid": "the peer's certificate is not valid yet: compare the clocks of both machines",
    "foreign": "the peer's certificate is of another authority than ours: both must be issued with the same ca.crt",
    "no-certificate": "the peer showed no certificate: give it one with talka certs issue and --certs",
    "not-tls": "the peer does not speak TLS: give it certificates with --certs, or start this end without them",
}
_OURS: Final = {
    "expired": "the peer refused our certificate, which has expired: issue a new one with talka certs issue",
    "not-yet-valid": "the peer refused our certificate, which is not valid yet by its clock: compare the clocks",
    "foreign": "the peer refused our certificate: it is of another authority; both must be issued with the same ca.crt",
    "no-certificate": "the peer wants a certificate and we showed none: start this end with --certs",
}


def reason_of(error: ssl.SSLError | OSError) -> tuple[str, str]:
    """A word for counters and a sentence for people.

    Words: expired, not-yet-valid, foreign, no-certificate, not-tls, and tls for all else. With TLS 1.3 a client's
    handshake is over before the server has looked at its certificate: the refusal arrives with its first read.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        word = {9: "not-yet-valid", 10: "expired"}.get(error.verify_code)
        if word is None and error.verify_code in _FOREIGN:
            word = "foreign"
        if word is not None:
            return word, _THEIRS[word]
        return "tls", f"the peer's certificate is not valid: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "tls", "the TLS handshake was not over in time"
    if isinstance(error, ssl.SSLEOFError) or not isinstance(error, ssl.SSLError):
        return "tls", "the peer closed the connection during the TLS handshake: its own output says why"
    reason = error.reason or ""
    # The word before it is a protocol's, and not the same in every version of the library.
    alert = reason.partition("_ALERT_")[2]
    if alert in _ALERTS:
        return _ALERTS[alert], _OURS[_ALERTS[alert]]
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "no-certificate", _THEIRS["no-certificate"]
    if reason in _NOT_TLS:
        return "not-tls", _THEIRS["not-tls"]
    if reason in _OLD or alert == "PROTOCOL_VERSION":
        return "tls", "the peer cannot speak TLS 1.3: nodes speak nothing older"
    return "tls", f"the TLS connection failed: {reason.replace('_', ' ').lower() or error}"


# The connection.


class TlsChannel:
    """One end of a TLS connection without its socket: bytes come in, bytes go out.

    Send `to_send()` after every call, also after one that raised: the alert in it tells the other end why. asyncio's
    own TLS throws that alert away, and a refused client would never learn the reason. Only speak once `is_accepted`.
    """

    def __init__(self, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._server_side = server_side
        self._is_first = True
        self._is_shaken = False
        self._answer: bytearray | None = None
        """A client's: what came since its part of the handshake was over, until that is one whole record."""
        self.identity = identity_of(())
        """Of the peer. A client knows it before it `is_accepted`, and may refuse first."""
        self.is_accepted = False
        """Both ends accepted each other. For a client that is the arrival of the server's first record after the
        handshake."""
        self.is_closed = False
        """The other end has said that it sends no more."""
        if not server_side:
            self._shake()

    def receive(self, data: bytes) -> bytes:
        """What the peer said in `data`. Raises HandshakeFailed; nothing may be received after that."""
        if not data:
            return b""
        if self._is_first:
            self._is_first = False
            # Asked here, since what the library makes of other bytes differs with its version.
            if data[0] not in TLS_FIRST_BYTES:
                raise HandshakeFailed("not-tls", _THEIRS["not-tls"])
        self._incoming.write(data)
        try:
            if not self._is_shaken:
                self._shake()
                return self._read() if self._is_shaken else b""
            content = self._read()
        except ssl.SSLError as error:
            raise HandshakeFailed(*reason_of(error)) from None
        if self._answer is not None:
            self._answer += data
            if len(self._answer) >= RECORD_HEADER_BYTES + int.from_bytes(self._answer[3:5], "big"):
                self._answer, self.is_accepted = None, True
        return content

    def write(self, content: bytes) -> None:
        if not self.is_accepted:
            raise Unavailable("nothing can be sent yet: the TLS handshake is not over")
        self._ssl.write(content)

    def to_send(self) -> bytes:
        return self._outgoing.read()

    def _shake(self) -> None:
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return
        self._is_shaken = True
        self.identity = peer_identity(self._ssl)  # now: after an alert the library does not tell any more
        if self._server_side:
            self.is_accepted = True
        else:
            self._answer = bytearray()

    def _read(self) -> bytes:
        parts: list[bytes] = []
        while not self.is_closed:
            try:
                part = self._ssl.read(READ_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:  # both ends have said so
                part = b""
            self.is_closed = not part
            parts.append(part)
        return b"".join(parts)
