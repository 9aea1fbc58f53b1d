"""A test of our own before the user's: the first request of a cold process takes fifty times as long as the next ones.

Cores that start together are only as even as their first requests are short, above all where several share a processor.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final

from talka.clock import monotonic_ns
from talka.engine.clients.port import ClientKind
from talka.engine.clients.table import CLIENTS
from talka.engine.load.shard_runtime import ShardRuntime
from talka.errors import Invalid
from talka.work.dsl import Workflow
from talka.work.inspection import inspect_workflows
from talka.work.load import Plan

USERS: Final = 8
"""Each opens a connection of its own."""
ITERATIONS: Final = 48
LIMIT_S: Final = 1.0


async def rehearse(engine: str = "auto", clients: Mapping[str, ClientKind] = CLIENTS) -> None:
    """Some calls to ourselves by every client that has some, counted by nobody. A machine that does not allow them
    starts cold."""
    with contextlib.suppress(OSError, TimeoutError, Invalid):
        async with asyncio.timeout(LIMIT_S):
            for rehearsal in [kind.rehearsal for kind in clients.values() if kind.rehearsal is not None]:
                server = await asyncio.get_running_loop().create_server(rehearsal.partner, "127.0.0.1", 0)
                try:
                    await _play(rehearsal.workflow(*server.sockets[0].getsockname()), engine)
                finally:
                    server.close()


async def _play(workflow: type[Workflow], engine: str) -> None:
    (spec,) = inspect_workflows([workflow])
    (shard,) = Plan("closed", USERS, shared_iterations=ITERATIONS).split(1)
    stage = ShardRuntime(spec, {}, shard, engine=engine)
    try:
        await stage.set_up()
        now = monotonic_ns()
        stage.recorder.start(now, now)
        await stage.executor(shard, grace_ns=0).run(now, now)
    finally:
        await stage.close()
