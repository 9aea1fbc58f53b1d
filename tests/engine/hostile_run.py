"""Drives the whole native engine against a hostile server: `python -m tests.engine.hostile_run EXTENSION --calls 3000`.

EXTENSION is the compiled engine to be used, one with sanitizers: they end the process at the first byte that is not the
engine's own. Calls are cancelled at random, clients closed, answers kept and dropped, and the collector runs all the
time.
"""

import argparse
import asyncio
import contextlib
import gc
import importlib.util
import ssl
import sys
import warnings
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

TIMEOUT_S = 0.25
DIRECT_CALLS = 600


def use_extension(path: str) -> None:
    """As `talka._native`, before anything imports that."""
    spec = importlib.util.spec_from_file_location("talka._native", path)
    assert spec is not None and spec.loader is not None
    import talka

    extension = importlib.util.module_from_spec(spec)
    sys.modules["talka._native"] = extension
    spec.loader.exec_module(extension)
    talka._native = extension  # type: ignore[attr-defined]


def look_at(response: Any, rng: Random) -> None:
    """Everything a test may do with an answer."""
    for name in rng.sample(["body", "content", "text", "headers", "raw_headers", "json", "url", "timings"], 4):
        with contextlib.suppress(Exception):
            value = getattr(response, name)
            if callable(value):
                value()
    with contextlib.suppress(Exception):
        del response.body
    if rng.random() < 0.1:
        response.body = [response]  # a cycle for the collector


class Caller:
    """A client that calls one behaviour after another, and is not careful."""

    def __init__(self, engine: Any, bases: list[str], rng: Random, outcomes: "Counter[str]") -> None:
        from tests.engine.hostile_server import BEHAVIOURS

        self.engine, self.bases, self.rng, self.outcomes = engine, bases, rng, outcomes
        self.names = list(BEHAVIOURS)
        self.client = engine.new_client()
        self.kept: list[Any] = []

    def call(self, name: str) -> Any:
        rng, client = self.rng, self.client
        url = f"{rng.choice(self.bases)}/{name}"
        match rng.randrange(6):
            case 0:
                return client.head(url)
            case 1:
                return client.post(url, data=bytes(rng.choice([0, 10, 70_000, 3_000_000])))
            case 2:
                return client.put(url, json={"a": name})
            case _:
                return client.get(url, **({"headers": {"X-A": "b"}} if rng.random() < 0.3 else {}))

    async def one(self, name: str) -> None:
        from talka.engine.calls import ExchangeFailed

        rng = self.rng
        roll = rng.random()
        if roll < 0.02:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.call(name)  # never awaited
            return
        if roll < 0.03:
            self.client.close()
            self.client = self.engine.new_client()
        try:
            if roll < 0.25:
                async with asyncio.timeout(rng.random() * 0.02):
                    response = await self.call(name)
            else:
                response = await self.call(name)
        except (ExchangeFailed, TimeoutError) as error:
            self.outcomes[getattr(error, "kind", "cancelled")] += 1
            return
        self.outcomes["answered"] += 1
        look_at(response, rng)
        self.kept.append(response)
        del self.kept[: -rng.randint(1, 20)]

    async def run(self, calls: int) -> None:
        """Until all callers together have made so many."""
        while self.outcomes["calls"] < calls:
            self.outcomes["calls"] += 1
            await self.one(self.rng.choice(self.names))


async def tasks(bases: list[str], calls: int, rng: Random, outcomes: "Counter[str]") -> None:
    """Callers side by side as Tasks, one of which is cancelled now and then."""
    from talka.engine.clients.http_kind import engine_class
    from talka.stats.tally import Exchanges

    engine = engine_class(is_native=True)(
        Exchanges(), version="1", timeout=TIMEOUT_S, max_body_bytes=2 << 20, verify=False
    )
    try:
        callers = [Caller(engine, bases, Random(rng.random()), outcomes) for _ in range(8)]
        under_way = {asyncio.create_task(caller.run(calls)) for caller in callers}
        while under_way:
            _, under_way = await asyncio.wait(under_way, timeout=0.05)
            if under_way and rng.random() < 0.1:
                victim = rng.choice(sorted(under_way, key=id))
                victim.cancel()
                fresh = Caller(engine, bases, Random(rng.random()), outcomes)
                under_way.add(asyncio.create_task(fresh.run(calls)))
                outcomes["task cancelled"] += 1
    finally:
        await engine.close()


async def directly(bases: list[str], rng: Random, outcomes: "Counter[str]") -> None:
    """The same behaviours called by users of a workflow under the direct driver, stopped in the middle."""
    from talka.work.dsl import Workflow, step
    from talka.work.responses import HTTPResponse
    from talka.work.shapes import ConstantVUs
    from tests.engine.hostile_server import BEHAVIOURS
    from tests.engine.three_ways import run, until_grown

    names = [name for name in BEHAVIOURS if not name.startswith("stall")]
    seen: list[str] = []

    class Hostile(Workflow):
        load = ConstantVUs(20, duration="1h")

        @step()
        async def get(self) -> HTTPResponse:
            seen.append(rng.choice(names))
            answer = await self.client.http.get(f"{rng.choice(bases)}/{seen[-1]}", timeout=TIMEOUT_S)
            look_at(answer, rng)
            return answer

        @step("get")
        async def post(self) -> HTTPResponse:
            size = rng.choice([0, 10, 70_000])
            return await self.client.http.post(f"{bases[0]}/{rng.choice(names)}", data=bytes(size), timeout=TIMEOUT_S)

    ran = await run(Hostile, "native direct", watch=until_grown(seen, DIRECT_CALLS), grace_s=1)
    outcomes["direct: answered"] += ran.tally.exchanges.ok
    outcomes["direct: failed"] += ran.tally.exchanges.failed


async def main(calls: int, seed: int) -> "Counter[str]":
    from talka.net.certificates import issue, make_authority
    from talka.wire.security.roles import Role
    from tests.engine.hostile_server import Peer, rude, serve

    rng, outcomes = Random(seed), Counter[str]()

    async def polite(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve(Peer(reader, writer, Random(rng.random())))

    async def impolite(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await rude(reader, writer, Random(rng.random()))

    with TemporaryDirectory() as folder:
        make_authority(folder, "c", "e", now=datetime.now(UTC))
        files = issue(folder, name="server", role=Role.MANAGER, hosts=["127.0.0.1"], now=datetime.now(UTC))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        servers = [
            await asyncio.start_server(polite, "127.0.0.1", 0),
            await asyncio.start_server(polite, "127.0.0.1", 0, ssl=context),
            await asyncio.start_server(impolite, "127.0.0.1", 0),
            await asyncio.start_server(impolite, "127.0.0.1", 0, ssl=context),
        ]
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        bases = [f"{'https' if index % 2 else 'http'}://127.0.0.1:{port}" for index, port in enumerate(ports)]
        bases += [*bases[:2] * 3, f"https://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}"]
        try:
            await tasks(bases, calls, rng, outcomes)
            await directly([base for base in bases if base.startswith("http:")], rng, outcomes)
        finally:
            for server in servers:
                server.close()
    return outcomes


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("extension")
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    use_extension(str(Path(arguments.extension).resolve()))
    gc.set_threshold(20, 2, 2)
    warnings.simplefilter("ignore")
    for outcome, count in sorted(asyncio.run(main(arguments.calls, arguments.seed)).items()):
        sys.stdout.write(f"{outcome}: {count}\n")
