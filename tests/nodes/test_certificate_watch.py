"""A node takes certificates that were replaced while it runs, and says in time that one ends."""

import os
import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from talka.clock import realtime_ns, utc_now
from talka.cluster.membership.members import Member
from talka.control.member.expiry import DAY
from talka.net.certificates import describe, issue, make_authority, renew
from talka.net.endorsing import Endorser
from talka.net.identity import Certified
from talka.net.tls import CertFiles, TlsChannel, cert_files, find_certs, server_context
from talka.net.vouching import Authority, Voucher
from talka.nodes.certificate_watch import CertificateWatch
from talka.nodes.shown_certificates import SHOWN_LIMIT, certificates_of
from talka.units import SECOND
from talka.wire.membership import Alive
from talka.wire.security.envelopes import KEY_BYTES, SealingKey
from talka.wire.security.roles import Role
from talka.wire.views import CertificateView


class Watched:
    """Node `a`, its files, and what it tells."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_authority(folder, "shop", "staging", now=utc_now())
        issue(folder, name="a", role="manager", hosts=("127.0.0.1",), days=60, now=utc_now())
        issue(folder, name="b", role="manager", now=utc_now())
        self.ahead_ns = 0
        """How far the clock of the day is moved."""
        self.events: list[dict[str, Any]] = []
        self.certified = self.certified_as("a")
        self.watch = CertificateWatch(
            self.certified,
            folder,
            name="a",
            cluster="shop",
            environment="staging",
            tell=self.events.append,
            now_ns=lambda: realtime_ns() + self.ahead_ns,
        )
        self.taken: list[tuple[Voucher, Authority]] = []
        self.watch.on_renewed.append(lambda *renewed: self.taken.append(renewed))

    @property
    def files(self) -> CertFiles:
        return cert_files(self.folder, "a")

    def certified_as(self, name: str) -> Certified:
        return Certified(self.folder, name=name, role=Role.MANAGER, cluster="shop", environment="staging")

    def look(self, times: int = 2) -> list[str]:
        """What was told meanwhile."""
        before = len(self.events)
        for _ in range(times):
            self.watch.look()
        return [event["text"] for event in self.events[before:]]

    def shown(self) -> bytes:
        """The certificate that a new connection shows, as another node sees it."""
        here, there = self.certified.channel(server_side=True), self.certified_as("b").channel(server_side=False)
        _shake(there, here)
        assert there.identity.name == "a"
        return there._ssl.getpeercert(binary_form=True) or b""


def _shake(one: TlsChannel, other: TlsChannel) -> None:
    for _ in range(4):
        other.receive(one.to_send())
        one.receive(other.to_send())


def der(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "certs")


def test_a_replaced_certificate_is_shown_by_new_connections_and_given_to_whoever_uses_it(watched: Watched) -> None:
    first = watched.shown()
    assert first == der(watched.files.certificate) and watched.look() == []
    renew(watched.folder, "a", days=90, now=utc_now())

    (text,) = watched.look()

    until = describe(watched.files.certificate, now=utc_now()).not_after
    assert text == f"{watched.files.certificate} was replaced: new connections use it, until {until:%Y-%m-%d %H:%M} UTC"
    assert watched.events[-1]["what"] == "renewed"
    assert watched.shown() == der(watched.files.certificate) != first
    ((voucher, _),) = watched.taken
    assert voucher.certificate == der(watched.files.certificate)
    assert watched.watch.expires_s()["own"] == pytest.approx(90 * DAY / SECOND, abs=120)
    assert watched.look() == []


def test_a_connection_from_before_goes_on(watched: Watched) -> None:
    here, there = watched.certified.channel(server_side=True), watched.certified_as("b").channel(server_side=False)
    _shake(there, here)
    renew(watched.folder, "a", now=utc_now())
    watched.look()

    there.write(b"still here")
    assert here.receive(there.to_send()) == b"still here"


def test_files_that_change_still_are_looked_at_the_next_time(watched: Watched) -> None:
    renew(watched.folder, "a", days=80, now=utc_now())
    assert watched.look(1) == []
    renew(watched.folder, "a", days=90, now=utc_now())

    assert watched.look(1) == [] and watched.taken == []
    assert len(watched.look(1)) == len(watched.taken) == 1


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda folder: (folder / "a.crt").write_text("nonsense"), "holds no certificate in PEM form"),
        (lambda folder: (folder / "a.crt").write_bytes((folder / "b.crt").read_bytes()), "is not the private key of"),
        (lambda folder: (folder / "a.crt").unlink(), "cannot be read: No such file or directory"),
        (lambda folder: os.chmod(folder / "a.key", 0o644), "the private key"),
        (
            lambda folder: renew(folder, "a", days=1, now=utc_now() - timedelta(days=2)),
            "cannot be used: it expired on",
        ),
        (
            lambda folder: issue(folder, name="a", role="worker", now=utc_now(), replace=True),
            "is for role 'worker', and this is 'manager'",
        ),
    ],
    ids=["nonsense", "another key", "gone", "open to others", "ended", "another role"],
)
def test_what_does_not_hold_is_refused_with_a_sentence_and_the_former_stays_in_use(
    watched: Watched, spoil: Callable[[Path], object], sentence: str
) -> None:
    first, ends = watched.shown(), dict(watched.watch.ends)
    spoil(watched.folder)
    (watched.folder / "a.key").touch()  # a change of rights alone is none of the file

    (text,) = watched.look()

    assert text.startswith("the certificate that was in use stays in use, as its files have changed and do not hold: ")
    assert sentence in text
    assert (watched.events[-1]["event"], watched.events[-1]["kind"]) == ("alarm", "certificate")
    assert watched.taken == [] and watched.watch.ends == ends
    assert watched.look() == [], "it is told once"
    issue(watched.folder, name="a", role="manager", now=utc_now(), replace=True)
    assert len(watched.look()) == 1 and watched.shown() == der(watched.files.certificate) != first


def test_another_key_is_taken_too(watched: Watched) -> None:
    issue(watched.folder, name="a", role="manager", now=utc_now(), replace=True)

    assert len(watched.look()) == 1
    assert watched.shown() == der(watched.files.certificate)


def test_the_api_shows_the_new_one_too(watched: Watched) -> None:
    context = server_context(find_certs(watched.folder, "a"))
    context.verify_mode = ssl.CERT_NONE
    watched.watch.shown_by(context)
    renew(watched.folder, "a", now=utc_now())
    watched.look()

    client = ssl.create_default_context(cafile=str(watched.files.ca))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    browser = client.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    back, forth = ssl.MemoryBIO(), ssl.MemoryBIO()
    api = context.wrap_bio(back, forth, server_side=True)
    for end in (browser, api, browser):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            pass
        back.write(outgoing.read())
        incoming.write(forth.read())

    assert browser.getpeercert(binary_form=True) == der(watched.files.certificate)


def test_the_end_of_a_certificate_is_told_thirty_days_before_and_when_it_has_come(watched: Watched) -> None:
    file = watched.files.certificate
    watched.ahead_ns = 29 * DAY
    assert watched.look() == []

    watched.ahead_ns = 31 * DAY
    (text,) = watched.look()
    assert text.startswith(f"{file} ends in 28 days (") and text.endswith("the node takes it by itself")
    assert watched.events[-1]["what"] == "own"
    watched.ahead_ns = 59 * DAY + DAY // 2
    assert [text.partition(" (")[0] for text in watched.look()] == [f"{file} ends within a day"]
    watched.ahead_ns = 61 * DAY
    assert [text.partition(" (")[0] for text in watched.look()] == [f"{file} has ended"]
    watched.ahead_ns = 3640 * DAY
    assert [text.partition(":")[0].partition(" (")[0] for text in watched.look()] == [
        f"{watched.files.ca} ends in 9 days"
    ]


def shown_of(watched: Watched, *members: Member, workers: dict[str, bytes]) -> list[CertificateView]:
    now = realtime_ns() + watched.ahead_ns
    return certificates_of(watched.watch, "a", members, workers, now)


def test_certificates_of_members_and_workers_are_shown_with_what_ends_first_first(watched: Watched) -> None:
    issue(watched.folder, name="w", role="worker", days=20, now=utc_now())
    endorser = Endorser(watched.folder, name="w", cluster="shop", environment="staging")
    sealing = SealingKey(bytes(KEY_BYTES), endorser.vouch("opens", b"key")).encode()
    b = Member(Alive("b", 1, 0, "at-b", "", b"", der(watched.folder / "b.crt"), b"signature"), 0)
    silent = Member(Alive("c", 1, 0, "at-c"), 0)

    shown = shown_of(watched, b, silent, workers={"w": sealing, "old": b"", "odd": b"\xc1"})

    assert [(one.name, one.role, one.note) for one in shown] == [
        ("w", "worker", "ends soon"),
        ("a", "manager", ""),
        ("b", "manager", ""),
        ("a", "authority", ""),
    ]
    assert shown[0].days in (19, 20) and shown[0].until.endswith("Z")
    watched.ahead_ns = 61 * DAY
    assert [one.note for one in shown_of(watched, b, workers={"w": sealing})] == ["ended", "ended", "", ""]


def test_so_many_certificates_are_shown_at_most(watched: Watched) -> None:
    endorser = Endorser(watched.folder, name="b", cluster="shop", environment="staging")
    sealing = SealingKey(bytes(KEY_BYTES), endorser.vouch("opens", b"key")).encode()

    shown = shown_of(watched, workers={f"w{number}": sealing for number in range(SHOWN_LIMIT + 1)})

    assert len(shown) == SHOWN_LIMIT
