"""What members sign with the keys of their certificates, and what is made of other certificates."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from talka.net.certificates import issue, make_authority, renew
from talka.net.notary import CertificateNotary
from talka.net.tls import cert_files
from talka.net.vouching import Authority, Voucher

NOW = datetime(2026, 11, 16, tzinfo=UTC)


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    folder = tmp_path / "certs"
    make_authority(folder, "shop", "staging", now=NOW)
    for name, role in (("a", "manager"), ("b", "manager"), ("w", "worker")):
        issue(folder, name=name, role=role, now=NOW, days=10)
    return folder


def notary_of(folder: Path, name: str, now: datetime = NOW, **limits: int) -> CertificateNotary:
    files = cert_files(folder, name)
    return CertificateNotary(files, cluster="shop", environment="staging", now=lambda: now, **limits)


def test_what_a_manager_signed_holds_for_its_name_purpose_and_words_alone(certs: Path) -> None:
    a, b = notary_of(certs, "a"), notary_of(certs, "b")
    signature = b.sign("address", b"at 10.0.0.1")

    assert a.has_signed("b", "address", b"at 10.0.0.1", signature, b.certificate)
    assert not a.has_signed("c", "address", b"at 10.0.0.1", signature, b.certificate)
    assert not a.has_signed("b", "state", b"at 10.0.0.1", signature, b.certificate)
    assert not a.has_signed("b", "address", b"at 10.0.0.2", signature, b.certificate)
    assert not a.has_signed("b", "address", b"at 10.0.0.1", signature, a.certificate)
    assert not a.has_signed("b", "address", b"at 10.0.0.1", b"", b.certificate)
    assert not a.has_signed("b", "address", b"at 10.0.0.1", signature, b"no certificate")


def test_a_worker_signs_nothing_of_a_member(certs: Path) -> None:
    a, w = notary_of(certs, "a"), notary_of(certs, "w")

    assert not a.has_signed("w", "address", b"at", w.sign("address", b"at"), w.certificate)


def test_a_certificate_of_another_authority_signs_nothing(certs: Path, tmp_path: Path) -> None:
    make_authority(tmp_path / "other", "shop", "staging", now=NOW)
    issue(tmp_path / "other", name="b", role="manager", now=NOW)
    a, b = notary_of(certs, "a"), notary_of(tmp_path / "other", "b")

    assert not a.has_signed("b", "address", b"at", b.sign("address", b"at"), b.certificate)


def test_a_certificate_counts_only_while_it_holds_also_when_it_is_known(certs: Path) -> None:
    b = notary_of(certs, "b")
    signature = b.sign("address", b"at")
    times = [NOW, NOW + timedelta(days=11), NOW + timedelta(days=1)]
    a = CertificateNotary(cert_files(certs, "a"), cluster="shop", environment="staging", now=lambda: times[0])

    assert a.has_signed("b", "address", b"at", signature, b.certificate)
    times.pop(0)
    assert not a.has_signed("b", "address", b"at", signature, b.certificate), "it has expired"
    times.pop(0)
    assert a.has_signed("b", "address", b"at", signature, b.certificate)


def test_certificates_that_are_known_have_a_limit(certs: Path) -> None:
    a, b = notary_of(certs, "a", known_limit=1), notary_of(certs, "b")

    for one in (a, b, a, a):
        assert a.has_signed("a" if one is a else "b", "state", b"x", one.sign("state", b"x"), one.certificate)


def test_after_its_certificate_was_renewed_a_member_signs_with_the_new_one(certs: Path) -> None:
    a, b = notary_of(certs, "a", NOW + timedelta(days=11)), notary_of(certs, "b")
    former = b.certificate
    renew(certs, "b", days=90, now=NOW)
    files = cert_files(certs, "b")

    b.use(Voucher(files), Authority(files.ca, cluster="shop", environment="staging"))

    signature = b.sign("address", b"at")
    assert a.has_signed("b", "address", b"at", signature, b.certificate)
    assert not a.has_signed("b", "address", b"at", signature, former), "the first one has ended"
