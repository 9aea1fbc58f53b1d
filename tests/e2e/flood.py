"""Fifty clients that ask one manager for far more than it can answer, in a process of their own.

python -m tests.e2e.flood API [--key-file FILE] [--ca FILE] [--clients N] [--connections N]

Each has a token of its own, where a key is given, and asks on several connections at once, on each for several things
before the first is answered. It goes on until its input ends; then it prints a JSON document: how often each operation
had which status.
"""

import argparse
import asyncio
import json
import ssl
import sys
from collections import Counter
from itertools import cycle
from pathlib import Path
from typing import Final

from talka.cli.nodes.token import read_keys
from talka.clock import realtime_ns
from talka.units import SECOND
from talka.web.auth import Tokens

CLIENTS: Final = 50
CONNECTIONS: Final = 4
AT_ONCE: Final = 8
"""Requests on a connection that wait for their answers."""
ASKED: Final = {
    "jobs": "GET /v1/jobs?limit=500",
    "workers": "GET /v1/workers",
    "cluster": "GET /v1/cluster",
    "job": "GET /v1/jobs/nosuch01",
    "submit": "POST /v1/jobs",
}
BODY: Final = b'{"name": "flood", "workflows": []}'
"""Of a submission: it is refused once it was read."""
CLUSTER: Final = "default"
AGAIN_S: Final = 0.2
"""Before a connection that was refused is tried again."""


class Flood:
    def __init__(self, api: str, tokens: list[str], *, tls: ssl.SSLContext | None = None, connections: int) -> None:
        self.statuses: dict[str, Counter[int]] = {name: Counter() for name in ASKED}
        self.refused = 0
        """Connections that were refused or broken off."""
        self._host, _, port = api.rpartition(":")
        self._port = int(port)
        self._tokens = tokens
        self._tls = tls
        self._connections = connections

    async def run(self, over: asyncio.Event) -> None:
        """Until this event."""
        askers = [
            asyncio.create_task(self._ask_again(token, number))
            for number, token in enumerate(self._tokens)
            for _ in range(self._connections)
        ]
        await over.wait()
        for asker in askers:
            asker.cancel()
        await asyncio.gather(*askers, return_exceptions=True)

    async def _ask_again(self, token: str, number: int) -> None:
        while True:
            try:
                await self._ask(token, number)
            except (OSError, EOFError, ValueError):
                self.refused += 1
                await asyncio.sleep(AGAIN_S)

    async def _ask(self, token: str, number: int) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        try:
            names = cycle(ASKED)
            for _ in range(number % len(ASKED)):  # not all for the same at once
                next(names)
            while True:
                asked = [next(names) for _ in range(AT_ONCE)]
                writer.write(b"".join([self._request(name, token) for name in asked]))
                for name in asked:
                    self.statuses[name][await _status(reader)] += 1
        finally:
            writer.close()

    def _request(self, name: str, token: str) -> bytes:
        body = BODY if name == "submit" else b""
        head = f"{ASKED[name]} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n"
        if token:
            head += f"authorization: Bearer {token}\r\n"
        if body:
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        return head.encode() + b"\r\n" + body


async def _status(reader: asyncio.StreamReader) -> int:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    _, _, after = head.partition(b"content-length:")
    await reader.readexactly(int(after.partition(b"\r\n")[0] or b"0"))
    return int(head.split(None, 2)[1])


def tokens_of(key_file: Path, clients: int) -> list[str]:
    tokens = Tokens(read_keys(str(key_file), "the key"), CLUSTER)
    until_s = realtime_ns() // SECOND + 3600
    return [tokens.issue(f"flood-{number}", "submitter", until_s, f"t{number}") for number in range(clients)]


async def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.flood")
    parser.add_argument("api")
    parser.add_argument("--key-file", type=Path)
    parser.add_argument("--ca")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    asked = parser.parse_args(words)
    tls = ssl.create_default_context(cafile=asked.ca) if asked.ca else None
    tokens = tokens_of(asked.key_file, asked.clients) if asked.key_file else [""] * asked.clients
    flood = Flood(asked.api, tokens, tls=tls, connections=asked.connections)
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), over.set)
    await flood.run(over)
    told = {"refused": flood.refused, **{name: dict(found) for name, found in flood.statuses.items()}}
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
