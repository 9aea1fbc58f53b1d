"""Runs a shard three ways: by the engine in Python, by Tasks on the native one, and by its direct driver.

What is counted must be the same. The server is in the same process and the same loop.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from talka.clock import monotonic_ns
from talka.engine.load import native
from talka.engine.load.executor import LEFT_BEHIND_S, Executor
from talka.engine.load.native_executor import NativeExecutor
from talka.engine.load.shard_runtime import ShardRuntime
from talka.stats.tally import CheckTally, StepTally, Tally
from talka.stats.windows import StepWindow
from talka.units import MILLISECOND, SECOND
from talka.work.arguments import URL
from talka.work.dsl import Workflow, step
from talka.work.inspection import inspect_workflows
from talka.work.responses import HTTPResponse
from talka.work.shapes import LoadShape, RampingRate

WAYS = {"python": ("python", "auto"), "native tasks": ("native", "task"), "native direct": ("native", "direct")}
if native.available() is not None:
    WAYS = {"python": WAYS["python"]}
every_way = pytest.mark.parametrize("way", WAYS)
needs_native = pytest.mark.skipif(native.available() is not None, reason="the native engine is not built")
EXCHANGES = ("ok", "failed", "interrupted", "not_sent", "bytes_sent", "bytes_received")
ANSWER = "HTTP/1.1 {} So\r\n{}Content-Length: {}\r\n\r\n{}"
STALL_S = 0.06


class Server(asyncio.Protocol):
    """Answers what the path says: /status/503, /hang (never), /close (by closing), /later (in a moment), /stall (later
    still), /cookie (gives one, and says which it was sent), /to/path (go there), or 200."""

    requests = 0
    connections = 0
    asked = asyncio.Event()
    hung = asyncio.Event()
    _transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        Server.connections += 1

    def data_received(self, data: bytes) -> None:
        Server.requests += 1
        Server.asked.set()
        path = data.split(b" ", 2)[1].decode()
        match path.split("/")[1:]:
            case ["hang"]:
                Server.hung.set()
            case ["close"]:
                self._transport.close()
            case ["later"]:
                asyncio.get_running_loop().call_later(0.02, self._answer, 200, path)
            case ["stall"]:
                asyncio.get_running_loop().call_later(STALL_S, self._answer, 200, path)
            case ["cookie"]:
                sent = [line for line in data.decode().splitlines() if line.lower().startswith("cookie:")]
                self._answer(200, "".join(sent), "Set-Cookie: user=known\r\n")
            case ["to", *rest]:
                self._answer(302, path, f"Location: /{'/'.join(rest)}\r\n")
            case ["status", status]:
                self._answer(int(status), path)
            case _:
                self._answer(200, path)

    def _answer(self, status: int, body: str, headers: str = "") -> None:
        self._transport.write(ANSWER.format(status, headers, len(body), body).encode())


@dataclass
class Ran:
    """What came of it."""

    tally: Tally
    executor: Executor
    stage: ShardRuntime
    windows: list[Any] = field(default_factory=list)

    @property
    def step(self) -> StepTally:
        [only] = self.tally.steps.values()
        return only

    @property
    def call(self) -> StepTally:
        """The calls of the only method that makes any, all under its own name."""
        [(node, rows)] = self.tally.calls.items()
        [(name, row)] = rows.items()
        assert name == node
        return row

    def counts(self) -> dict[str, Any]:
        """All that does not depend on how long things took."""
        tally = self.tally
        return {
            "iterations": (tally.iterations, tally.started, tally.dropped, tally.interrupted_iterations),
            "exchanges": [getattr(tally.exchanges, name) for name in EXCHANGES],
            "steps": {name: counts_of(part) for name, part in (tally.steps | tally.actions).items()},
            "calls": {
                node: {name: counts_of(row) for name, row in rows.items() if row.seen}
                for node, rows in tally.calls.items()
            },
            "checks": {name: (part.passed, part.failed, texts_of(part)) for name, part in tally.checks.items()},
            "metrics": {name: (part.values, part.total, part.min, part.max) for name, part in tally.metrics.items()},
            "windows": tuple(
                sum(numbers)
                for numbers in zip(
                    *((part.started, part.requests, part.failed, part.response_time.count) for part in self.windows),
                    strict=True,
                )
            ),
            "windows of steps": self.windows_of_steps(),
            "notes": sorted(self.stage.recorder.notes),
            "why": (self.executor.failure, self.executor.note),
        }

    def windows_of_steps(self) -> dict[str, tuple[int, int, int, dict[str, int]]]:
        """Of each step: ended, failed, timed, and failures by kind, over all windows."""
        whole: dict[str, StepWindow] = {}
        for window in self.windows:
            for name, part in window.steps.items():
                whole.setdefault(name, StepWindow()).add(part)
        return {name: (part.count, part.failed, part.response_time.count, part.errors) for name, part in whole.items()}


def counts_of(part: StepTally) -> tuple[Any, ...]:
    return (
        (part.ok, part.failed, part.skipped, part.interrupted),
        (part.response_time.count, part.service_time.count),
        (part.outcomes, part.errors, texts_of(part)),
    )


def texts_of(part: StepTally | CheckTally) -> list[str]:
    """Of its samples, in no order and without how long they took."""
    return sorted(re.sub(r"after [\d.]+ s", "in time", sample.text) for sample in part.samples)


@pytest.fixture
async def server() -> AsyncIterator[str]:
    Server.requests, Server.connections = 0, 0
    Server.asked, Server.hung = asyncio.Event(), asyncio.Event()
    listening = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    yield f"http://{host}:{port}"
    listening.close()


async def run(
    workflow: type[Workflow],
    way: str,
    *,
    load: LoadShape | None = None,
    shard: tuple[int, int] = (0, 1),
    grace_s: float = 5,
    already_ns: int = 0,
    late_ns: int = 0,
    iterations_done: int = 0,
    watch: Callable[[Executor], Awaitable[None]] | None = None,
    think: Callable[[], int] | None = None,
    left_behind_s: float = LEFT_BEHIND_S,
) -> Ran:
    engine, driver = WAYS[way]
    body = {"driver": driver} | ({} if load is None else {"load": load})
    [spec] = inspect_workflows([type(workflow.__name__, (workflow,), body)])
    index, of = shard
    part = spec.plan.split(of)[index]
    stage = ShardRuntime(spec, {}, part, engine=engine, iterations_done=iterations_done)
    try:
        await stage.set_up()
        stage.think = think or stage.think
        grace_ns = round(grace_s * SECOND)
        executor = stage.executor(part, grace_ns=grace_ns, iterations_done=iterations_done, left_behind_s=left_behind_s)
        assert isinstance(executor, NativeExecutor) == (way == "native direct")
        start_ns = monotonic_ns() + MILLISECOND - late_ns
        stage.recorder.start(start_ns, start_ns - already_ns)
        watching = asyncio.create_task(watch(executor)) if watch is not None else None  # type: ignore[arg-type]
        async with asyncio.timeout(30):
            await executor.run(start_ns - already_ns, start_ns)
        if watching is not None:
            await watching
        stage.recorder.finish()
        return Ran(stage.recorder.tally, executor, stage, stage.recorder.log.open_windows())
    finally:
        await stage.close()


async def same_every_way(workflow: type[Workflow], **options: Any) -> Ran:
    """Runs it every way. What the first one counted, the others must."""
    first, *others = [await run(workflow, way, **options) for way in WAYS]
    for other in others:
        assert other.counts() == first.counts()
    return first


def ten_arrivals(max_vus: int) -> LoadShape:
    """In a tenth of a second, and then time for those that had to wait for a user: what waits in the end is dropped."""
    return RampingRate([("100/s", "0.1s"), (0, 0), (0, "25s")], start="100/s", max_vus=max_vus)


def until_grown(seen: list[Any], by: int) -> Callable[[Executor], Awaitable[None]]:
    """Stops a run when its users have added so many to a list."""

    async def watch(executor: Executor) -> None:
        enough = len(seen) + by
        while len(seen) < enough:  # noqa: ASYNC110 - users' code sends no events
            await asyncio.sleep(0.002)
        executor.stop()

    return watch


def getting(address: str) -> type[Workflow]:
    class Getting(Workflow):
        @step()
        async def get(self, url: URL = address) -> HTTPResponse:
            return await self.client.http.get(url)

    return Getting
