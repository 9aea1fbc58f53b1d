"""The certificate of a node while it runs: its files are looked at now and then, new ones are taken without a restart,
and its end is told of in time.

Decision: docs/decisions/0067-certificates-that-are-renewed.md.
"""

import asyncio
import os
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from talka.clock import realtime_ns
from talka.control.member.expiry import DAY, ExpiryWarnings
from talka.errors import TalkaError
from talka.net.certificates import load
from talka.net.identity import Certified
from talka.net.tls import CertFiles, cert_files, show
from talka.net.vouching import Authority, Voucher
from talka.nodes.member_events import Event
from talka.units import SECOND

LOOK_EVERY_S: Final = 5.0
OWN: Final = "own"
AUTHORITY: Final = "authority"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Renewed = Callable[[Voucher, Authority], None]


class CertificateWatch:
    """Give `on_renewed` whoever has made something of the files. Then `follow`, or `look`."""

    def __init__(
        self,
        certified: Certified,
        folder: Path,
        *,
        name: str,
        cluster: str,
        environment: str,
        tell: Callable[[Event], None],
        now_ns: Callable[[], int] = realtime_ns,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        self.on_renewed: list[Renewed] = []
        self.ends: dict[str, int] = {}
        """Of the certificate in use and of its authority, by the clock of the day."""
        self._certified = certified
        self._files: CertFiles = cert_files(folder, name)
        self._cluster = cluster
        self._environment = environment
        self._tell = tell
        self._now_ns = now_ns
        self._look_every_s = look_every_s
        self._warnings = ExpiryWarnings()
        self._seen = self._changed = self._marks()
        self.ends = self._read_ends()

    async def follow(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(self._look_every_s)

    def shown_by(self, context: ssl.SSLContext) -> None:
        """Connections of this context show the certificate too: those of the API."""
        self.on_renewed.append(lambda voucher, authority: show(context, self._files))

    def look(self) -> None:
        """Take files that have changed, if they hold; tell of what ends soon."""
        marks = self._marks()
        # Key and certificate are replaced one after the other: what changes still is looked at the next time.
        if marks != self._seen and marks == self._changed:
            self._seen = marks
            self._take()
        self._changed = marks
        for what in self._warnings.due(self.ends, self._now_ns()):
            self._tell({"event": "certificate", "what": what, **self._facts(what), "text": self._warning(what)})

    def expires_s(self) -> dict[str, float]:
        """In so many seconds each of them ends; below 0 it has."""
        now = self._now_ns()
        return {what: (end - now) / SECOND for what, end in self.ends.items()}

    def _take(self) -> None:
        try:
            voucher = Voucher(self._files)
            authority = Authority(self._files.ca, cluster=self._cluster, environment=self._environment)
            ends = self._read_ends()
            self._certified.reload()
            self.ends = ends
            for renewed in self.on_renewed:
                renewed(voucher, authority)
        except TalkaError as error:
            text = f"the certificate that was in use stays in use, as its files have changed and do not hold: {error}"
            self._tell({"event": "alarm", "kind": "certificate", "text": text})
            return
        facts = self._facts(OWN)
        text = f"{self._files.certificate} was replaced: new connections use it, until {facts['until']}"
        self._tell({"event": "certificate", "what": "renewed", **facts, "text": text})

    def _read_ends(self) -> dict[str, int]:
        own, authorities = load(self._files.certificate)[0], load(self._files.ca)
        until = min(authority.not_valid_after_utc for authority in authorities)
        return {OWN: _ns_of(own.not_valid_after_utc), AUTHORITY: _ns_of(until)}

    def _marks(self) -> tuple[tuple[int, int, int], ...]:
        """What changes when a file does."""
        return tuple(_mark(file) for file in self._files)

    def _facts(self, what: str) -> Event:
        file = self._files.ca if what == AUTHORITY else self._files.certificate
        return {"file": str(file), "until": _told(self.ends[what])}

    def _warning(self, what: str) -> str:
        facts = self._facts(what)
        left = self.ends[what] - self._now_ns()
        when = f"ends in {max(1, left // DAY)} days" if left >= DAY else "ends within a day"
        if left <= 0:
            when = "has ended"
        remedy = "talka certs init in a new folder makes another authority, which every node needs beside this one"
        if what == OWN:
            remedy = "renew it with talka certs renew and put it in its place; the node takes it by itself"
        return f"{facts['file']} {when} ({facts['until']}): {remedy}"


def _mark(file: Path) -> tuple[int, int, int]:
    try:
        found = os.stat(file)
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def _ns_of(instant: datetime) -> int:
    return (instant - _EPOCH) // timedelta(microseconds=1) * 1000


def _told(instant_ns: int) -> str:
    return f"{datetime.fromtimestamp(instant_ns // SECOND, UTC):%Y-%m-%d %H:%M} UTC"
