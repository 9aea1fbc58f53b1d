"""What a protocol client is to the engine. `table.py` lists them; CONTRIBUTING.md says how to add one.

A client tells `engine/calls.py` of every call once. `Measuring` in `measuring.py` does that, and all else that calls
have in common, for clients that wait with plain asyncio.

Decision: docs/decisions/0037-a-protocol-is-one-file.md.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from talka.engine.calls import ExchangeFailed
from talka.stats.tally import Exchanges
from talka.work.arguments import ArgumentKind
from talka.work.dsl import Workflow
from talka.work.responses import Response

Trace = Callable[[Sequence[str], Response | ExchangeFailed], None]
"""Told of every exchange: the lines that were sent, and what came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientParts:
    """What the clients of one shard are made with."""

    exchanges: Exchanges
    """Counts what is put on the wire, every exchange once: as ok, failed, interrupted or not sent."""
    verify: bool | str = True
    """Of TLS. True: the system's authorities; False: trust anybody; a path: the authorities in that file."""
    trace: Trace | None = None
    is_native: bool = False
    """Whether the engine in C runs the shard."""


class UserClient(Protocol):
    """What one virtual user finds as `self.client.NAME`. Its calls are what the protocol has."""

    def forget(self, *, session: bool, connections: bool) -> None:
        """The next to use it is another user: who has none of its session, such as cookies, or of its connections."""

    def close(self) -> None:
        """Its user is gone. Calls still under way are cancelled."""


class ClientEngine(Protocol):
    """What the clients of one shard share. Made inside the running event loop, it opens nothing by itself."""

    def new_client(self) -> UserClient: ...

    async def prepare(self, arguments: Iterable[Any]) -> None:
        """Find out before the clock starts what calls will need, such as the addresses of hosts. `arguments` are all
        that were prepared for steps, those of other clients too."""

    async def close(self) -> None:
        """Close every connection."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Calls of a cold process to itself, so that the users' first ones are not the slow ones."""

    partner: Callable[[], asyncio.BaseProtocol]
    """The server's side of a connection."""
    workflow: Callable[[str, int], type[Workflow]]
    """What calls the partner that listens at this host and port."""


@dataclass(frozen=True, slots=True)
class ClientKind:
    """One row of the table."""

    new_engine: Callable[[ClientParts], ClientEngine]
    encoders: Mapping[ArgumentKind, Callable[[Any], Any]] = field(default_factory=dict)
    """How arguments of these kinds are prepared. They raise `Invalid`."""
    rehearsal: Rehearsal | None = None
