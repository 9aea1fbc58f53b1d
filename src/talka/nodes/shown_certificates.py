"""The certificates of a cluster as one of its managers knows them: its own, those that members sign with, and those
that vouch for the keys of workers. Imported only where there are certificates."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from cryptography import x509

from talka.cluster.membership.members import Member, Status
from talka.control.member.expiry import DAY, WARNINGS
from talka.net.certificates import NO_CERTIFICATE, identity_in
from talka.net.endorsing import certificate_in
from talka.nodes.certificate_watch import OWN, CertificateWatch
from talka.units import SECOND
from talka.wire.security.envelopes import read_sealing_key
from talka.wire.security.roles import Role
from talka.wire.views import CertificateView

SHOWN_LIMIT: Final = 500
"""Those that end first."""


def certificates_of(
    watch: CertificateWatch, name: str, members: Iterable[Member], workers: Mapping[str, bytes], now_ns: int
) -> list[CertificateView]:
    """`name`: of this manager, which also tells of the authority whose certificate it has. `workers`: by name, the
    `SealingKey` each has told. `now_ns` is of the clock of the day. Those that end first are the first."""
    found = [_view(name, Role.MANAGER if what == OWN else what, end, now_ns) for what, end in watch.ends.items()]
    for member in members:
        if member.status <= Status.SUSPECT:
            found += _read(member.certificate, now_ns)
    for told in workers.values():
        key = read_sealing_key(told)
        if key is not None:
            found += _read(certificate_in(key.voucher), now_ns)
    return sorted(found, key=lambda one: (one.until, one.role, one.name))[:SHOWN_LIMIT]


def _read(certificate: bytes, now_ns: int) -> list[CertificateView]:
    try:
        parsed = x509.load_der_x509_certificate(certificate)
        identity = identity_in(parsed)
    except NO_CERTIFICATE:
        return []
    return [_view(identity.name, identity.role, round(parsed.not_valid_after_utc.timestamp()) * SECOND, now_ns)]


def _view(name: str, role: str, end_ns: int, now_ns: int) -> CertificateView:
    left = end_ns - now_ns
    until = f"{datetime.fromtimestamp(end_ns // SECOND, UTC):%Y-%m-%dT%H:%M:%SZ}"
    note = "ended" if left <= 0 else "ends soon" if left <= WARNINGS[0] else ""
    return CertificateView(name, role, until, left // DAY, note)
