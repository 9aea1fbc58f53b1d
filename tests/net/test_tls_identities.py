"""Who a peer is, whether it may be one, the files of a node, and what is said of errors."""

import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from talka.net.certificates import issue, make_authority
from talka.net.tls import (
    BadCerts,
    CertFiles,
    PeerIdentity,
    check_identity,
    client_context,
    find_certs,
    identity_of,
    reason_of,
    server_context,
)
from talka.wire.security.roles import Role

START = datetime(2020, 1, 1, tzinfo=UTC)


# Identities.


def check(identity: PeerIdentity, *, role_here: Role = Role.MANAGER, **options: object) -> tuple[str, str] | None:
    asked = {"cluster": "shop", "environment": "staging", "initiated_by_peer": True} | options
    return check_identity(identity, role_here=role_here, **asked)  # type: ignore[arg-type]


WORKER = PeerIdentity("w", "worker", "shop", "staging")


def test_direction_of_the_connection_decides() -> None:
    assert check(WORKER) is None
    assert check(WORKER, initiated_by_peer=False) is None
    gate = PeerIdentity("g", "gate", "shop", "staging")
    assert check(gate, role_here=Role.WORKER) is not None
    outside = PeerIdentity("o", "outside-worker", "shop", "staging")
    assert check(outside) is None
    refused = check(outside, initiated_by_peer=False)
    assert refused is not None and refused[0] == "role"
    assert refused[1].startswith("a manager may not connect to an outside-worker, only to a worker or")


def test_two_of_one_role_that_must_not_meet_are_both_named() -> None:
    assert check(WORKER, role_here=Role.WORKER) == (
        "role",
        "a worker may not connect to a worker, only to a manager ('w' and this node)",
    )


@pytest.mark.parametrize(
    ("identity", "refused"),
    [
        (identity_of([]), ("cluster", "a peer without a name is of no cluster, this manager of 'shop'")),
        (
            PeerIdentity("w", "worker", "shop", ""),
            ("environment", "'w' is of no environment, this manager of 'staging'"),
        ),
        (
            PeerIdentity("w", "", "shop", "staging"),
            (
                "role",
                "the certificate of 'w' says no role to this manager; roles are"
                " client, worker, outside-worker, manager, gate",
            ),
        ),
        (
            PeerIdentity("w", "boss", "shop", "staging"),
            (
                "role",
                "the certificate of 'w' says 'boss' to this manager; roles are"
                " client, worker, outside-worker, manager, gate",
            ),
        ),
        (
            PeerIdentity("", "worker", "shop", "staging"),
            (
                "name",
                "the certificate of this worker says nobody's name to this manager:"
                " name '' is not an id: use 1 to 64 letters, digits, '.', '_' or '-'",
            ),
        ),
    ],
    ids=["nothing", "environment", "role", "strange role", "name"],
)
def test_certificate_that_leaves_something_out_is_refused(identity: PeerIdentity, refused: tuple[str, str]) -> None:
    assert check(identity) == refused


def test_what_is_wrong_first_is_what_is_said() -> None:
    nobody = PeerIdentity("", "boss", "bank", "live")
    reasons = []
    for field, value in [("cluster", "shop"), ("environment", "staging"), ("role", "worker"), ("name", "w")]:
        refused = check(nobody)
        assert refused is not None
        reasons.append(refused[0])
        nobody = PeerIdentity(**{name: getattr(nobody, name) for name in nobody.__struct_fields__} | {field: value})
    assert reasons == ["cluster", "environment", "role", "name"]
    assert check(nobody) is None


def test_identity_is_read_back_from_its_uris() -> None:
    identity = PeerIdentity("a", "manager", "shop", "staging", "eu")
    assert identity_of(identity.uris()) == identity
    assert identity_of(WORKER.uris()) == WORKER and len(WORKER.uris()) == 4


@pytest.mark.parametrize(
    "uri",
    ["talka://role", "talka://roles/manager", "http://role/manager", "TALKA://role/manager", "talka:/role/manager", ""],
)
def test_uris_of_others_say_nothing(uri: str) -> None:
    assert identity_of([uri]) == PeerIdentity("", "", "", "")


def test_two_claims_of_one_kind_fit_nothing() -> None:
    two = identity_of([*WORKER.uris(), "talka://role/manager"])
    refused = check(two)
    assert refused is not None and refused[0] == "role" and "'worker,manager'" in refused[1]
    both_clusters = check(identity_of([*WORKER.uris(), "talka://cluster/bank"]))
    assert both_clusters is not None and both_clusters[0] == "cluster"


# Files.


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    make_authority(tmp_path, "shop", "staging", now=START)
    issue(tmp_path, name="a", role="manager", now=START)
    return tmp_path


def test_files_of_a_node_are_found(certs: Path) -> None:
    assert find_certs(str(certs), "a") == CertFiles(certs / "ca.crt", certs / "a.crt", certs / "a.key")


def test_contexts_ask_both_ends_for_a_certificate_and_speak_the_newest_tls_only(certs: Path) -> None:
    files = find_certs(certs, "a")
    for context in (server_context(files), client_context(files)):
        assert context.verify_mode is ssl.CERT_REQUIRED and not context.check_hostname
        assert context.minimum_version is context.maximum_version is ssl.TLSVersion.TLSv1_3
        assert [authority["subject"][2] for authority in context.get_ca_certs()] == [
            (("commonName", "Talka authority"),)
        ]


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        (["a.crt"], "a.crt is not in {folder}: talka certs issue {folder} --name a --role … makes them"),
        (["a.crt", "a.key"], "a.crt and a.key are not in {folder}: talka certs issue {folder} --name a --role …"),
        (["ca.crt"], "ca.crt is not in {folder}: copy it from the folder in which talka certs init made it"),
    ],
    ids=["certificate", "both", "authority"],
)
def test_missing_files_are_named_with_a_remedy(certs: Path, missing: list[str], sentence: str) -> None:
    for name in missing:
        (certs / name).unlink()
    with pytest.raises(BadCerts) as caught:
        find_certs(certs, "a")
    assert str(caught.value).startswith(sentence.format(folder=certs))


def test_missing_folder_and_strange_name_are_named(certs: Path) -> None:
    with pytest.raises(BadCerts, match="none is not a folder of certificates: talka certs init"):
        find_certs(certs / "none", "a")
    with pytest.raises(BadCerts, match=r"name '\.\./a' is not an id"):
        find_certs(certs, "../a")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o610])
def test_key_that_others_may_use_is_refused(certs: Path, mode: int) -> None:
    (certs / "a.key").chmod(mode)
    with pytest.raises(BadCerts, match=r"may use the private key .*a\.key: chmod 600 .*a\.key"):
        find_certs(certs, "a")


def of_another(certs: Path) -> str:
    issue(certs, name="b", role="manager", now=START)
    (certs / "a.key").write_bytes((certs / "b.key").read_bytes())
    return "a.key is not the private key of {certs}/a.crt: issue them together"


def locked(certs: Path) -> str:
    key = serialization.load_pem_private_key((certs / "a.key").read_bytes(), None)
    content = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"word"),
    )
    (certs / "a.key").write_bytes(content)
    return "the private key {certs}/a.key is encrypted: store it without a password"


def no_certificate(certs: Path) -> str:
    (certs / "a.crt").write_text("nonsense")
    return "{certs}/a.crt and {certs}/a.key are not a certificate and a key in PEM form"


def no_authority(certs: Path) -> str:
    (certs / "ca.crt").write_text("nonsense")
    return "{certs}/ca.crt holds no certificate in PEM form"


@pytest.mark.parametrize("spoil", [of_another, locked, no_certificate, no_authority], ids=lambda spoil: spoil.__name__)
def test_files_that_do_not_fit_are_refused_before_anybody_connects(certs: Path, spoil: Callable[[Path], str]) -> None:
    sentence = spoil(certs).format(certs=certs)
    with pytest.raises(BadCerts) as caught:
        find_certs(certs, "a")
    assert str(caught.value).endswith(sentence)


def test_files_that_went_away_are_named(certs: Path) -> None:
    files = find_certs(certs, "a")
    files.key.unlink()
    with pytest.raises(BadCerts, match=r"a\.crt or .*a\.key cannot be read: No such file"):
        server_context(files)
    files.ca.unlink()
    with pytest.raises(BadCerts, match=r"ca\.crt cannot be read: No such file"):
        client_context(files)


def test_key_that_cannot_be_looked_at_is_named(certs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def stat(path: Path, *, follow_symlinks: bool = True) -> object:
        # `is_file` looks first and finds it.
        looks.append(path)
        if path.name == "a.key" and looks.count(path) == 2:
            raise PermissionError(13, "Permission denied")
        return original(path, follow_symlinks=follow_symlinks)

    original = Path.stat
    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(BadCerts, match=r"a\.key cannot be looked at: Permission denied"):
        find_certs(certs, "a")


# What went wrong.


def ssl_error(reason: str | None) -> ssl.SSLError:
    error = ssl.SSLError(1, "something")
    error.reason = reason  # type: ignore[assignment]
    return error


def verification_error(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "something")
    error.verify_code, error.verify_message = code, "a certificate was revoked"
    return error


@pytest.mark.parametrize(
    ("error", "word", "sentence"),
    [
        (verification_error(7), "foreign", "of another authority"),
        (verification_error(18), "foreign", "of another authority"),
        (verification_error(23), "tls", "the peer's certificate is not valid: a certificate was revoked"),
        (ssl_error("TLSV1_ALERT_DECRYPT_ERROR"), "foreign", "refused our certificate"),
        (ssl_error("TLS_ALERT_UNKNOWN_CA"), "foreign", "refused our certificate"),
        (ssl_error("WRONG_VERSION_NUMBER"), "not-tls", "the peer does not speak TLS"),
        (ssl_error("HTTP_REQUEST"), "not-tls", "the peer does not speak TLS"),
        (ssl_error("BAD_EXTENSION"), "tls", "the TLS connection failed: bad extension"),
        (ssl_error(None), "tls", "the TLS connection failed: "),
        (ssl.SSLEOFError(8, "EOF"), "tls", "the peer closed the connection during the TLS handshake"),
        (ConnectionResetError(104, "reset"), "tls", "the peer closed the connection during the TLS handshake"),
        (BrokenPipeError(32, "pipe"), "tls", "the peer closed the connection during the TLS handshake"),
        (TimeoutError(), "tls", "the TLS handshake was not over in time"),
    ],
    ids="7 18 23 decrypt unknown wrong-version http extension nameless eof reset pipe time".split(),
)
def test_errors_have_a_word_and_a_sentence(error: OSError, word: str, sentence: str) -> None:
    said = reason_of(error)
    assert said[0] == word and sentence in said[1]
