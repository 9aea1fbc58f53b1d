"""The test of our own before the user's."""

import asyncio
import gc
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from talka.engine.clients.custom import CUSTOM
from talka.engine.clients.http_kind import HTTP, Partner, rehearsed
from talka.engine.clients.port import Rehearsal
from talka.engine.load.warm_up import ITERATIONS, USERS, rehearse
from talka.engine.process_start import new_event_loop


class Counted(Partner):
    """Counts what it is asked."""

    connections = 0
    requests = 0
    lost: asyncio.Queue[None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Counted.connections += 1
        super().connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.put_nowait(None)

    def data_received(self, data: bytes) -> None:
        Counted.requests += data.count(b"GET / HTTP/1.1")
        super().data_received(data)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, new_event_loop], ids=["asyncio", "of cores"])
def test_a_rehearsal_opens_connections_and_sends_requests_to_itself_and_leaves_nothing(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    Counted.connections = Counted.requests = 0
    Counted.lost = asyncio.Queue()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(rehearsal_left_nothing())


async def rehearsal_left_nothing() -> None:
    random.seed("the user's")
    before = random.getstate()
    await rehearse(clients={"http": replace(HTTP, rehearsal=Rehearsal(Counted, rehearsed)), "other": CUSTOM})
    assert (Counted.connections, Counted.requests) == (USERS, ITERATIONS)
    async with asyncio.timeout(60):
        for _ in range(USERS):
            await Counted.lost.get()
    assert random.getstate() == before
    assert asyncio.all_tasks() == {asyncio.current_task()}
    gc.collect()  # a transport left open would warn


async def test_a_machine_that_allows_no_server_starts_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    async def refused(factory: Callable[[], Any], host: str, port: int) -> None:
        tried.append(host)
        raise PermissionError("not here")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_server", refused, raising=False)
    await rehearse()
    assert tried == ["127.0.0.1"]
