"""Vouchers for keys: they hold for one purpose and one key, of a node with the right role and name."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from talka.clock import utc_now
from talka.net import endorsing
from talka.net.certificates import issue, make_authority, renew
from talka.net.endorsing import KEPT_LIMIT, Endorser, certificate_in
from talka.net.tls import cert_files
from talka.net.vouching import Authority, Voucher
from talka.wire.security.roles import Role

MANAGERS, WORKERS = (Role.MANAGER,), (Role.WORKER, Role.OUTSIDE_WORKER)
NODES = {"m1": Role.MANAGER, "w1": Role.WORKER, "w2": Role.OUTSIDE_WORKER, "c1": Role.CLIENT}


def certs_of(folder: Path, cluster: str = "shop") -> Path:
    make_authority(folder, cluster, "staging", now=utc_now())
    for name, role in NODES.items():
        issue(folder, name=name, role=role, now=utc_now())
    return folder


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    return certs_of(tmp_path / "certs")


def endorser(folder: Path, name: str, cluster: str = "shop", **limits: int) -> Endorser:
    return Endorser(folder, name=name, cluster=cluster, environment="staging", **limits)


def test_a_key_that_a_manager_vouches_for_is_believed(certs: Path) -> None:
    voucher = endorser(certs, "m1").vouch("signs", b"key")

    assert endorser(certs, "w1").doubt("signs", b"key", voucher, roles=MANAGERS) == ""
    assert endorser(certs, "w1").doubt("signs", b"key", voucher, roles=MANAGERS, name="m1") == ""


def test_a_voucher_is_for_one_key_and_one_purpose(certs: Path) -> None:
    voucher, judge = endorser(certs, "m1").vouch("signs", b"key"), endorser(certs, "w1")

    assert "is invalid" in judge.doubt("signs", b"other", voucher, roles=MANAGERS)
    assert "is invalid" in judge.doubt("opens", b"key", voucher, roles=MANAGERS)


@pytest.mark.parametrize("name", ["w1", "w2", "c1"])
def test_nobody_but_a_manager_vouches_for_a_managers_key(certs: Path, name: str) -> None:
    voucher = endorser(certs, name).vouch("signs", b"key")

    doubt = endorser(certs, "w1").doubt("signs", b"key", voucher, roles=MANAGERS)

    assert doubt == f"{name} is a {NODES[name]}, and a manager is needed"


def test_no_worker_vouches_for_another(certs: Path) -> None:
    voucher = endorser(certs, "w2").vouch("opens", b"key")

    doubt = endorser(certs, "m1").doubt("opens", b"key", voucher, roles=WORKERS, name="w1")

    assert doubt == "the certificate is of w2, and not of w1"


def test_another_authority_of_the_same_names_vouches_for_nothing(certs: Path, tmp_path: Path) -> None:
    voucher = endorser(certs_of(tmp_path / "other"), "m1").vouch("signs", b"key")

    assert "another authority" in endorser(certs, "w1").doubt("signs", b"key", voucher, roles=MANAGERS)


@pytest.mark.parametrize("voucher", [b"", b"voucher", b"\x92\xc4\x00\xc4\x00", b"\x91" * 2000])
def test_what_is_no_voucher_vouches_for_nothing(certs: Path, voucher: bytes) -> None:
    assert endorser(certs, "w1").doubt("signs", b"key", voucher, roles=MANAGERS)


def test_what_was_checked_holds_until_its_certificate_ends(certs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    voucher, judge = endorser(certs, "m1").vouch("signs", b"key"), endorser(certs, "w1")
    assert judge.doubt("signs", b"key", voucher, roles=MANAGERS) == ""
    check, checked = judge._authority.check, []
    monkeypatch.setattr(judge._authority, "check", lambda *said, **how: checked.append(said) or check(*said, **how))

    assert judge.doubt("signs", b"key", voucher, roles=MANAGERS) == ""
    assert checked == []
    later = utc_now() + timedelta(days=20_000)
    monkeypatch.setattr(endorsing, "utc_now", lambda: later)
    assert "has expired" in judge.doubt("signs", b"key", voucher, roles=MANAGERS)


def test_so_many_checks_are_kept_and_no_more(certs: Path) -> None:
    mine, judge = endorser(certs, "m1"), endorser(certs, "w1", kept_limit=3)
    for number in range(5):
        key = bytes([number])
        assert judge.doubt("signs", key, mine.vouch("signs", key), roles=MANAGERS) == ""

    assert len(judge._kept) == 3 < KEPT_LIMIT


def test_an_endorser_needs_the_files_of_its_node(certs: Path) -> None:
    shutil.copy(certs / "m1.crt", certs / "m2.crt")
    with pytest.raises(Exception, match="m2.key"):
        endorser(certs, "m2")


def test_after_its_certificate_was_renewed_a_node_vouches_with_the_new_one_and_believes_as_before(certs: Path) -> None:
    m1, w1 = endorser(certs, "m1"), endorser(certs, "w1")
    former = m1.vouch("signs", b"key")
    renew(certs, "m1", now=utc_now())
    files = cert_files(certs, "m1")

    m1.use(Voucher(files), Authority(files.ca, cluster="shop", environment="staging"))
    again = m1.vouch("signs", b"key")

    assert certificate_in(again) != certificate_in(former) != b""
    assert w1.doubt("signs", b"key", former, roles=MANAGERS) == w1.doubt("signs", b"key", again, roles=MANAGERS) == ""
    assert m1.doubt("opens", b"key", w1.vouch("opens", b"key"), roles=WORKERS) == ""


@pytest.mark.parametrize("is_known", [True, False])
def test_a_voucher_may_be_believed_after_its_certificate_has_ended_and_never_before_it_holds(
    certs: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    voucher, judge = endorser(certs, "m1").vouch("signs", b"key"), endorser(certs, "w1")
    if is_known:
        assert judge.doubt("signs", b"key", voucher, roles=MANAGERS) == ""

    monkeypatch.setattr(endorsing, "utc_now", lambda: utc_now() + timedelta(days=20_000))
    assert "has expired" in judge.doubt("signs", b"key", voucher, roles=MANAGERS)
    assert judge.doubt("signs", b"key", voucher, roles=MANAGERS, even_ended=True) == ""
    assert "is invalid" in judge.doubt("signs", b"other", voucher, roles=MANAGERS, even_ended=True)
    monkeypatch.setattr(endorsing, "utc_now", lambda: utc_now() - timedelta(days=20_000))
    assert "is not valid yet" in judge.doubt("signs", b"key", voucher, roles=MANAGERS, even_ended=True)


def test_what_is_no_voucher_has_no_certificate_in_it() -> None:
    assert certificate_in(b"") == certificate_in(b"\xc1") == b""
