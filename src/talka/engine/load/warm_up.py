"""A test of our own before the user's: the first request of a cold process takes fifty times as long as the next ones.

Cores that start together are only as even as their first requests are short, above all where several share a processor.
"""

import asyncio
import contextlib
from typing import Final, cast

from talka.clock import monotonic_ns
from talka.engine.load.shard_runtime import ShardRuntime
from talka.engine.loader import url_workflow
from talka.errors import Invalid
from talka.work.inspection import inspect_workflows
from talka.work.load import Plan

USERS: Final = 8
"""Each opens a connection of its own."""
ITERATIONS: Final = 48
LIMIT_S: Final = 1.0
ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"


class Partner(asyncio.Protocol):
    """The server of the rehearsal: the same answer to whatever comes."""

    _transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's are of no class of asyncio's

    def data_received(self, data: bytes) -> None:
        self._transport.write(ANSWER)


async def rehearse(engine: str = "auto") -> None:
    """Some requests to ourselves, counted by nobody. A machine that does not allow them starts cold."""
    with contextlib.suppress(OSError, TimeoutError, Invalid):
        async with asyncio.timeout(LIMIT_S):
            server = await asyncio.get_running_loop().create_server(Partner, "127.0.0.1", 0)
            try:
                await _play(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", engine)
            finally:
                server.close()


async def _play(url: str, engine: str) -> None:
    (spec,) = inspect_workflows([url_workflow(url)])
    (shard,) = Plan("closed", USERS, shared_iterations=ITERATIONS).split(1)
    stage = ShardRuntime(spec, {}, shard, engine=engine)
    try:
        await stage.set_up()
        now = monotonic_ns()
        stage.recorder.start(now, now)
        await stage.executor(shard, grace_ns=0).run(now, now)
    finally:
        await stage.close()
