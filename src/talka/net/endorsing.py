"""What a node's certificate says of its other keys, and what those of others say of theirs.

A voucher that travels is the certificate and a signature of it. Imported only where there are certificates.

Decision: docs/decisions/0029-signed-by-managers-sealed-to-workers.md.
"""

from collections import OrderedDict
from pathlib import Path
from typing import Annotated, Final

import msgspec

from talka.clock import utc_now
from talka.net.tls import find_certs
from talka.net.vouching import CERTIFICATE_LIMIT_BYTES, SIGNATURE_LIMIT_BYTES, Authority, BadVoucher, Known, Voucher
from talka.wire.security.roles import Role

KEPT_LIMIT: Final = 4096
"""Vouchers that were checked: the one checked longest ago is forgotten first."""


class Endorsement(msgspec.Struct, frozen=True, array_like=True):
    certificate: Annotated[bytes, msgspec.Meta(max_length=CERTIFICATE_LIMIT_BYTES)]
    signature: Annotated[bytes, msgspec.Meta(max_length=SIGNATURE_LIMIT_BYTES)]


_decoder: msgspec.msgpack.Decoder[Endorsement] = msgspec.msgpack.Decoder(Endorsement)


def certificate_in(voucher: bytes) -> bytes:
    """The certificate (DER) of who vouches, unchecked; empty where there is none."""
    try:
        return _decoder.decode(voucher).certificate
    except (msgspec.MsgspecError, RecursionError):
        return b""


class Endorser:
    """Vouches for keys of this node, and judges what vouches for those of others."""

    def __init__(
        self, folder: Path, *, name: str, cluster: str, environment: str, kept_limit: int = KEPT_LIMIT
    ) -> None:
        self._kept_limit = kept_limit
        files = find_certs(folder, name)
        self._voucher = Voucher(files)
        self._authority = Authority(files.ca, cluster=cluster, environment=environment)
        self._kept: OrderedDict[tuple[str, bytes, bytes], Known] = OrderedDict()

    def use(self, voucher: Voucher, authority: Authority) -> None:
        """Vouch and judge by these from now on: the files were replaced."""
        self._voucher, self._authority = voucher, authority
        self._kept.clear()

    def vouch(self, purpose: str, statement: bytes) -> bytes:
        """An encoded `Endorsement`."""
        return msgspec.msgpack.encode(Endorsement(self._voucher.certificate, self._voucher.sign(purpose, statement)))

    def doubt(
        self,
        purpose: str,
        statement: bytes,
        voucher: bytes,
        *,
        roles: tuple[Role, ...],
        name: str = "",
        even_ended: bool = False,
    ) -> str:
        """Why the voucher does not hold for the statement; empty when it does. With `name`, it must be of that node;
        `even_ended`: its certificate need not hold any more."""
        try:
            known = self._known(purpose, statement, voucher, even_ended)
        except BadVoucher as error:
            return str(error)
        who = known.identity.name
        if known.role not in roles:
            return f"{who} is a {known.role}, and a {' or '.join(roles)} is needed"
        if name and who != name:
            return f"the certificate is of {who}, and not of {name}"
        return ""

    def _known(self, purpose: str, statement: bytes, voucher: bytes, even_ended: bool) -> Known:
        now, key = utc_now(), (purpose, statement, voucher)
        known = self._kept.get(key)
        if known is not None and known.not_before <= now and (even_ended or now <= known.not_after):
            self._kept.move_to_end(key)
            return known
        try:
            endorsement = _decoder.decode(voucher)
        except (msgspec.MsgspecError, RecursionError):
            raise BadVoucher("no certificate vouches for it") from None
        known = self._authority.check(
            purpose, statement, endorsement.certificate, endorsement.signature, now, even_ended=even_ended
        )
        self._kept[key] = known
        if len(self._kept) > self._kept_limit:
            self._kept.popitem(last=False)
        return known
