"""Every client that steps can call, by its name under `self.client`. A client is one file, and two lines here."""

from collections.abc import Mapping
from typing import Final

from talka.engine.clients.custom import CUSTOM
from talka.engine.clients.http_kind import HTTP
from talka.engine.clients.port import ClientKind

CLIENTS: Final[Mapping[str, ClientKind]] = {
    "http": HTTP,
    "custom": CUSTOM,
}
