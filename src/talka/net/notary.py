"""Signs what a member says of itself, and checks what members signed. Imported only where there are certificates.

Decision: docs/decisions/0030-keys-and-addresses-have-owners.md.
"""

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from typing import Final

from talka.clock import utc_now
from talka.net.tls import CertFiles
from talka.net.vouching import Authority, BadVoucher, Known, Voucher
from talka.wire.security.roles import Role

KNOWN_LIMIT: Final = 4096
"""Certificates that were checked and are kept."""


class CertificateNotary:
    """Of one member. Only managers are members: what another certificate signs of a member holds nothing."""

    def __init__(
        self,
        files: CertFiles,
        *,
        cluster: str,
        environment: str,
        now: Callable[[], datetime] = utc_now,
        known_limit: int = KNOWN_LIMIT,
    ) -> None:
        self._known_limit = known_limit
        self._voucher = Voucher(files)
        self._authority = Authority(files.ca, cluster=cluster, environment=environment)
        self._now = now
        self._known: OrderedDict[bytes, Known] = OrderedDict()
        self.certificate = self._voucher.certificate

    def use(self, voucher: Voucher, authority: Authority) -> None:
        """Sign and judge by these from now on: the files were replaced."""
        self._voucher, self._authority = voucher, authority
        self.certificate = voucher.certificate
        self._known.clear()

    def sign(self, purpose: str, statement: bytes) -> bytes:
        return self._voucher.sign(purpose, statement)

    def has_signed(self, name: str, purpose: str, statement: bytes, signature: bytes, certificate: bytes) -> bool:
        known = self._know(certificate)
        if known is None or known.identity.name != name or known.role is not Role.MANAGER:
            return False
        if not known.not_before <= self._now() <= known.not_after:
            return False
        return known.has_signed(purpose, statement, signature)

    def _know(self, certificate: bytes) -> Known | None:
        if certificate in self._known:
            self._known.move_to_end(certificate)
            return self._known[certificate]
        try:
            known = self._authority.know(certificate, self._now())
        except BadVoucher:  # not kept: by another clock than ours it may hold, and soon by ours
            return None
        if len(self._known) >= self._known_limit:
            self._known.popitem(last=False)
        self._known[certificate] = known
        return known
