"""The authority of a cluster, what it issues, and what is said about it."""

import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from talka.net.certificates import BadCertificate, describe, issue, make_authority, renew
from talka.net.tls import find_certs

NOW = datetime(2030, 5, 6, 7, 8, 9, tzinfo=UTC)
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
PEM = serialization.Encoding.PEM


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    folder = tmp_path / "certs"
    make_authority(folder, "shop", "staging", now=NOW)
    return folder


def loaded(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def self_made(*names: x509.GeneralName) -> bytes:
    """A certificate as somebody else may have made it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody")])
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 7)
    builder = builder.not_valid_before(NOW - DAY).not_valid_after(NOW + DAY)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(PEM)


# The authority.


def test_authority_signs_certificates_of_nodes_and_no_further_authorities(certs: Path) -> None:
    extensions = loaded(certs / "ca.crt").extensions
    constraints = extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical and constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    usage = extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical and usage.value.key_cert_sign and not usage.value.digital_signature


def test_authority_says_which_cluster_it_is_of_and_for_how_long(certs: Path) -> None:
    facts = describe(certs / "ca.crt", now=NOW)
    assert (facts.name, facts.role, facts.cluster, facts.environment) == ("", "", "shop", "staging")
    assert facts.is_authority and facts.problem == ""
    assert (facts.not_before, facts.not_after) == (NOW - HOUR, NOW + 3650 * DAY)


def test_only_the_owner_can_read_keys(certs: Path) -> None:
    files = issue(certs, name="a", role="manager", now=NOW)
    assert mode_of(certs / "ca.key") == mode_of(files.key) == 0o600


@pytest.mark.parametrize("left", ["ca.crt", "ca.key"])
def test_authority_that_is_there_is_never_overwritten(certs: Path, left: str) -> None:
    for file in list(certs.iterdir()):
        if file.name != left:
            file.unlink()
    before = (certs / left).read_bytes()
    with pytest.raises(BadCertificate, match=rf"{left} is there already"):
        make_authority(certs, "shop", "staging", now=NOW)
    assert {file.name: file.read_bytes() for file in certs.iterdir()} == {left: before}


def test_link_that_leads_nowhere_counts_as_an_authority(tmp_path: Path) -> None:
    (tmp_path / "ca.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadCertificate, match=r"ca\.key is there already"):
        make_authority(tmp_path, "shop", "staging", now=NOW)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("cluster", "environment", "days", "sentence"),
    [
        ("a shop", "staging", 1, "cluster 'a shop' is not an id"),
        ("shop", "", 1, "environment '' is not an id"),
        ("shop", "staging", 0, "cannot be valid for 0 days: use 1 to 36,500"),
        ("shop", "staging", 36_501, "cannot be valid for 36501 days"),
    ],
    ids=["cluster", "environment", "no day", "too long"],
)
def test_authority_of_nonsense_is_refused(
    tmp_path: Path, cluster: str, environment: str, days: int, sentence: str
) -> None:
    with pytest.raises(BadCertificate, match=sentence):
        make_authority(tmp_path, cluster, environment, days=days, now=NOW)
    assert list(tmp_path.iterdir()) == []


def test_longest_ids_fit(tmp_path: Path) -> None:
    longest = "x" * 64
    make_authority(tmp_path, longest, longest, days=36_500, now=NOW)
    files = issue(tmp_path, name=longest, role="outside-worker", datacenter=longest, now=NOW)
    facts = describe(files.certificate, now=NOW)
    assert (facts.name, facts.cluster, facts.environment, facts.datacenter) == (longest,) * 4


# Issuing.


def test_certificate_carries_its_owner_as_uris(certs: Path) -> None:
    files = issue(certs, name="a", role="manager", datacenter="eu", hosts=["a.example", "10.0.0.1", "::1"], now=NOW)
    names = loaded(files.certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [
        "talka://name/a",
        "talka://role/manager",
        "talka://cluster/shop",
        "talka://env/staging",
        "talka://dc/eu",
    ]
    facts = describe(files.certificate, now=NOW)
    assert (facts.name, facts.role, facts.cluster, facts.environment) == ("a", "manager", "shop", "staging")
    assert facts.datacenter == "eu" and facts.hosts == ("a.example", "10.0.0.1", "::1")
    assert not facts.is_authority and facts.problem == ""


def test_certificate_serves_both_ends_of_a_connection_and_signs_no_other(certs: Path) -> None:
    extensions = loaded(issue(certs, name="a", role="gate", now=NOW).certificate).extensions
    uses = set(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    assert uses == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def test_certificate_and_key_fit_each_other_and_the_authority(certs: Path) -> None:
    files = issue(certs, name="a", role="manager", now=NOW)
    assert find_certs(certs, "a") == files
    assert files.ca == certs / "ca.crt"


def test_certificate_holds_a_year_from_an_hour_ago(certs: Path) -> None:
    facts = describe(issue(certs, name="a", role="manager", now=NOW).certificate, now=NOW)
    assert (facts.not_before, facts.not_after) == (NOW - HOUR, NOW + 365 * DAY)


def test_certificate_ends_with_its_authority(certs: Path) -> None:
    late = NOW + 3640 * DAY
    facts = describe(issue(certs, name="a", role="manager", now=late).certificate, now=late)
    assert facts.not_after == NOW + 3650 * DAY


def test_authority_that_has_ended_issues_nothing(certs: Path) -> None:
    with pytest.raises(BadCertificate, match="ended on 2040-05-03 07:08 UTC: make one in a new folder"):
        issue(certs, name="a", role="manager", now=NOW + 3650 * DAY)


def test_other_clusters_and_environments_can_be_named(certs: Path) -> None:
    files = issue(certs, name="a", role="manager", cluster="bank", environment="live", now=NOW)
    facts = describe(files.certificate, now=NOW)
    assert (facts.cluster, facts.environment, facts.problem) == ("bank", "live", "")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "a/b"}, "name 'a/b' is not an id"),
        ({"name": "../a"}, "name '../a' is not an id"),
        ({"name": "CA"}, "'CA' cannot be the name of a node"),
        ({"role": "boss"}, "no role 'boss': use client, worker, outside-worker, manager, gate"),
        ({"datacenter": "e u"}, "datacenter 'e u' is not an id"),
        ({"cluster": "é"}, "cluster 'é' is not an id"),
        ({"environment": "/"}, "environment '/' is not an id"),
        ({"days": 0}, "cannot be valid for 0 days"),
        ({"hosts": ["a b"]}, "host 'a b' is neither a DNS name nor an IP address"),
        ({"hosts": ["ok", ""]}, "host '' is neither"),
        ({"hosts": ["é.example"]}, "host 'é.example' is neither"),
        ({"hosts": ["x." * 130 + "x"]}, "is neither a DNS name"),
    ],
    ids=[
        "slash",
        "parent",
        "ca",
        "role",
        "datacenter",
        "cluster",
        "environment",
        "days",
        "host",
        "empty",
        "idn",
        "long",
    ],
)
def test_certificate_of_nonsense_is_refused_and_nothing_is_written(
    certs: Path, changes: dict[str, Any], sentence: str
) -> None:
    asked: dict[str, Any] = {"name": "a", "role": "manager", "now": NOW} | changes
    with pytest.raises(BadCertificate, match=sentence):
        issue(certs, **asked)
    assert sorted(file.name for file in certs.iterdir()) == ["ca.crt", "ca.key"]


@pytest.mark.parametrize("left", ["a.crt", "a.key"])
def test_certificate_that_is_there_stays_unless_it_is_to_be_replaced(certs: Path, left: str) -> None:
    files = issue(certs, name="a", role="manager", now=NOW)
    before = files.certificate.read_bytes(), files.key.read_bytes()
    for file in (files.certificate, files.key):
        if file.name != left:
            file.unlink()
    with pytest.raises(BadCertificate, match=rf"{left} is there already: --replace"):
        issue(certs, name="a", role="manager", now=NOW)
    files.key.write_bytes(before[1])
    files.key.chmod(0o644)
    issue(certs, name="a", role="gate", now=NOW, replace=True)
    assert find_certs(certs, "a") == files
    assert files.key.read_bytes() != before[1] and mode_of(files.key) == 0o600
    assert describe(files.certificate, now=NOW).role == "gate"
    assert sorted(file.name for file in certs.iterdir()) == ["a.crt", "a.key", "ca.crt", "ca.key"]


@pytest.mark.parametrize("missing", ["ca.crt", "ca.key"])
def test_without_the_authority_nothing_is_issued(certs: Path, missing: str) -> None:
    (certs / missing).unlink()
    with pytest.raises(BadCertificate, match=rf"{missing} is not in .*: talka certs init"):
        issue(certs, name="a", role="manager", now=NOW)


def other_key() -> bytes:
    private = serialization.PrivateFormat.PKCS8
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(PEM, private, serialization.NoEncryption())


def rsa_key() -> bytes:
    key = rsa.generate_private_key(65_537, 2048)
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def locked_key() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"word"))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (other_key, r"ca\.key is not the private key of"),
        (rsa_key, r"ca\.key is not the private key of"),
        (locked_key, r"ca\.key is not a private key in PEM form without a password"),
        (lambda: b"no key", r"ca\.key is not a private key in PEM form"),
    ],
    ids=["another", "rsa", "locked", "nonsense"],
)
def test_wrong_key_of_the_authority_is_found_out(certs: Path, make: Callable[[], bytes], sentence: str) -> None:
    (certs / "ca.key").write_bytes(make())
    with pytest.raises(BadCertificate, match=sentence):
        issue(certs, name="a", role="manager", now=NOW)


def test_folder_that_takes_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadCertificate, match="file did not take the certificate and key: File exists"):
        make_authority(tmp_path / "file", "shop", "staging", now=NOW)


@pytest.mark.parametrize("replace", [False, True])
def test_disk_that_fails_leaves_nothing_behind(certs: Path, monkeypatch: pytest.MonkeyPatch, replace: bool) -> None:
    synced: list[int] = []

    def full(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(BadCertificate, match="No space left on device"):
        issue(certs, name="a", role="manager", now=NOW, replace=replace)
    # A key that took the place of another cannot be undone; a new one is.
    left = ["a.key"] if replace else []
    assert sorted(file.name for file in certs.iterdir()) == [*left, "ca.crt", "ca.key"]


# Describing.


def test_expired_certificate_is_said_to_be_so(certs: Path) -> None:
    files = issue(certs, name="a", role="manager", days=1, now=NOW)
    assert describe(files.certificate, now=NOW + DAY).problem == ""
    assert describe(files.certificate, now=NOW + DAY + HOUR).problem == "it expired on 2030-05-07 07:08 UTC"


def test_certificate_of_the_future_is_said_to_be_so(certs: Path) -> None:
    files = issue(certs, name="a", role="manager", now=NOW + 10 * DAY)
    assert describe(files.certificate, now=NOW).problem == "it is not valid before 2030-05-16 06:08 UTC"


def test_certificate_of_another_authority_is_foreign_even_if_that_has_the_same_name(
    certs: Path, tmp_path: Path
) -> None:
    make_authority(tmp_path / "other", "shop", "staging", now=NOW)
    foreign = issue(tmp_path / "other", name="a", role="manager", now=NOW)
    moved = certs / "a.crt"
    moved.write_bytes(foreign.certificate.read_bytes())
    assert describe(foreign.certificate, now=NOW).problem == ""
    assert describe(moved, now=NOW).problem == "another authority issued it than the one whose ca.crt is used here"
    assert describe(moved, now=NOW, ca=foreign.ca).problem == ""


def test_two_authorities_in_one_file_are_both_good_while_one_replaces_the_other(certs: Path, tmp_path: Path) -> None:
    make_authority(tmp_path / "other", "shop", "staging", now=NOW)
    files = issue(tmp_path / "other", name="a", role="manager", now=NOW)
    both = (certs / "ca.crt").read_bytes() + files.ca.read_bytes()
    assert describe(files.certificate.read_bytes(), now=NOW, ca=both).problem == ""


def test_certificate_in_pem_form_is_measured_by_the_authority_given(certs: Path) -> None:
    pem = issue(certs, name="a", role="manager", now=NOW).certificate.read_bytes()
    assert describe(pem, now=NOW).problem == ""
    assert describe(pem, now=NOW, ca=self_made()).problem.startswith("another authority issued it")


def test_fingerprint_is_that_of_the_certificate(certs: Path) -> None:
    assert (
        describe(certs / "ca.crt", now=NOW).fingerprint == loaded(certs / "ca.crt").fingerprint(hashes.SHA256()).hex()
    )


def test_certificate_of_others_says_nothing_of_ours() -> None:
    facts = describe(self_made(), now=NOW)
    assert (facts.name, facts.role, facts.cluster, facts.hosts, facts.issuer) == ("", "", "", (), "CN=somebody")
    assert not facts.is_authority


def test_certificate_with_two_claims_of_one_kind_has_neither() -> None:
    uris = [x509.UniformResourceIdentifier(f"talka://role/{role}") for role in ("client", "manager")]
    assert describe(self_made(*uris), now=NOW).role == "client,manager"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "holds no certificate in PEM form"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "holds no certificate"),
        (b"\x00\xff" * 100, "holds no certificate"),
    ],
    ids=["empty", "broken", "binary"],
)
def test_what_is_no_certificate_is_named(tmp_path: Path, content: bytes, sentence: str) -> None:
    file = tmp_path / "a.crt"
    file.write_bytes(content)
    with pytest.raises(BadCertificate, match=rf"a\.crt {sentence}"):
        describe(file, now=NOW)
    with pytest.raises(BadCertificate, match="what was given holds no certificate"):
        describe(content, now=NOW)


def test_key_in_place_of_a_certificate_is_told_apart(certs: Path) -> None:
    with pytest.raises(BadCertificate, match=r"ca\.key holds a private key and no certificate: name the \.crt"):
        describe(certs / "ca.key", now=NOW)


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadCertificate, match=r"a\.crt cannot be read: No such file"):
        describe(tmp_path / "a.crt", now=NOW)
    with pytest.raises(BadCertificate, match="cannot be read: Is a directory"):
        describe(tmp_path, now=NOW)


# Renewing them.


def test_a_renewed_certificate_has_the_same_key_claims_and_hosts_and_another_end(certs: Path) -> None:
    issue(certs, name="a", role="manager", datacenter="eu", hosts=("a.example", "10.0.0.1"), days=40, now=NOW)
    key, former = (certs / "a.key").read_bytes(), describe(certs / "a.crt", now=NOW)

    files = renew(certs, "a", days=90, now=NOW + 30 * DAY)

    again = describe(files.certificate, now=NOW + 30 * DAY)
    assert (again.not_after, again.problem) == (NOW + 120 * DAY, "")
    assert (certs / "a.key").read_bytes() == key
    assert again.fingerprint != former.fingerprint
    for fact in ("name", "role", "cluster", "environment", "datacenter", "hosts", "issuer"):
        assert getattr(again, fact) == getattr(former, fact)
    assert find_certs(certs, "a") == files
    assert mode_of(files.certificate) == 0o644
    assert [file.name for file in certs.iterdir() if file.name.startswith(".")] == []


def test_a_renewed_certificate_holds_no_longer_than_its_authority(certs: Path) -> None:
    issue(certs, name="a", role="manager", now=NOW)

    renew(certs, "a", days=36_500, now=NOW)

    assert describe(certs / "a.crt", now=NOW).not_after == describe(certs / "ca.crt", now=NOW).not_after


def test_what_cannot_be_renewed_is_a_sentence_and_stays_as_it_is(certs: Path, tmp_path: Path) -> None:
    issue(certs, name="a", role="manager", now=NOW)
    other = tmp_path / "other"
    make_authority(other, "shop", "staging", now=NOW)
    for name in ("a.crt", "a.key"):
        (other / name).write_bytes((certs / name).read_bytes())
        (other / name).chmod(0o600)
    before = (certs / "a.crt").read_bytes()

    def refused(folder: Path, name: str, now: datetime = NOW) -> str:
        with pytest.raises(BadCertificate) as raised:
            renew(folder, name, now=now)
        return str(raised.value)

    assert refused(certs, "ca").startswith("the authority's own certificate cannot be renewed: make another one")
    assert refused(certs, "b").startswith(f"b.crt is not in {certs}: talka certs issue {certs} --name b")
    assert "was issued by another authority than the one in" in refused(other, "a")
    assert refused(certs, "a", NOW + 20 * 365 * DAY).startswith(f"the authority in {certs} ended on 2040")
    assert refused(certs, "../a").startswith("name")
    assert (certs / "a.crt").read_bytes() == before
    issue(certs, name="b", role="manager", now=NOW)
    (certs / "a.key").write_bytes((certs / "b.key").read_bytes())
    assert refused(certs, "a").startswith(f"{certs / 'a.key'} is not the private key of {certs / 'a.crt'}")
    (certs / "ca.key").unlink()
    assert "only where its key is can it issue" in refused(certs, "b")
