"""A throw-away client for servers that answer each line with a line: all that a protocol needs, in one file.

`test_client_port.py` puts it beside the clients of Talka, and two lines into their table.
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from talka.clock import monotonic_ns
from talka.engine.clients.measuring import Measuring
from talka.engine.clients.port import ClientKind, ClientParts
from talka.work.responses import Response

GOOD: Final = "OK"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class LineResponse(Response):
    """`text` is the line that came; its first word says whether it is good."""

    __slots__ = ("asked", "text")

    def __init__(self, asked: str, text: str) -> None:
        super().__init__()
        self.asked, self.text = asked, text
        self.accepted = self.label == GOOD

    @property
    def label(self) -> str:
        return self.text.partition(" ")[0]

    def describe(self) -> str:
        return f"{self.asked} answered {self.text}"


class LineEngine:
    """Shared by the users of a shard."""

    def __init__(self, parts: ClientParts) -> None:
        self.exchanges = parts.exchanges
        self.measuring = Measuring(parts)
        self.open: set[asyncio.StreamWriter] = set()

    def new_client(self) -> "LineClient":
        return LineClient(self)

    async def prepare(self, arguments: Iterable[Any]) -> None:
        """Addresses are given with each call."""

    async def close(self) -> None:
        for writer in list(self.open):
            self.drop(writer)

    def drop(self, writer: asyncio.StreamWriter) -> None:
        self.open.discard(writer)
        writer.close()


class LineClient:
    """Of one virtual user: `await self.client.line.ask("host:port", "PING")`."""

    def __init__(self, engine: LineEngine) -> None:
        self._engine = engine
        self._idle: dict[str, list[Streams]] = {}

    def forget(self, *, session: bool, connections: bool) -> None:
        if connections:
            self.close()

    def close(self) -> None:
        for _, writer in [streams for idle in self._idle.values() for streams in idle]:
            self._engine.drop(writer)
        self._idle.clear()

    async def ask(
        self, address: str, line: str, *, timeout: float | None = None, name: str | None = None
    ) -> LineResponse:
        return await self._engine.measuring.call(
            partial(self._exchange, address, line), [line], timeout=timeout, name=name
        )

    async def _exchange(self, address: str, line: str) -> LineResponse:
        idle, counts = self._idle.setdefault(address, []), self._engine.exchanges
        reader, writer = idle.pop() if idle else await self._connected(address)
        sent_ns, request = monotonic_ns(), f"{line}\n".encode()
        try:
            writer.write(request)
            counts.bytes_sent += len(request)
            answer = await reader.readuntil()
        except BaseException:
            self._engine.drop(writer)
            raise
        counts.bytes_received += len(answer)
        idle.append((reader, writer))
        response = LineResponse(line, answer.decode().rstrip("\n"))
        response.sent_ns = sent_ns
        return response

    async def _connected(self, address: str) -> Streams:
        host, _, port = address.rpartition(":")
        streams = await asyncio.open_connection(host, int(port))
        self._engine.open.add(streams[1])
        self._engine.exchanges.connections += 1
        return streams


LINE: Final = ClientKind(LineEngine)
