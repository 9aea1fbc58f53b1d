"""`talka up` whose store takes long to read: what it tells meanwhile, and what who asks is answered."""

import asyncio
import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from talka.cli.nodes import life as module
from talka.cli.nodes.life import Api, Life, live_up
from talka.nodes.dags.kept_partitions import KeptPartitions
from talka.nodes.manager import ManagerOptions
from talka.nodes.member import MemberOptions
from talka.nodes.worker import WorkerOptions
from talka.web.server import listen
from talka.wire.addresses import format_address

SECRET = "vQ8d0sLk3mZx7Yp2Rt5Wn9Bc4Hf6Jg1A"
LIMIT_S = 60.0


async def status_of(address: str, path: str) -> int:
    def ask() -> int:
        connection = http.client.HTTPConnection(address, timeout=LIMIT_S)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()

    return await asyncio.to_thread(ask)


class Told:
    """What it tells."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.life = Life(self.hear)
        self._news = asyncio.Event()

    def hear(self, event: dict[str, Any]) -> None:
        self.words.append(event["event"])
        self._news.set()

    async def until(self, word: str) -> None:
        async with asyncio.timeout(LIMIT_S):
            while word not in self.words:
                self._news.clear()
                await self._news.wait()


async def test_up_says_that_it_is_ready_when_its_store_was_read_and_nobody_is_refused_after_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_be_read, load, told = asyncio.Event(), KeptPartitions.load, Told()

    async def slowly(kept: KeptPartitions) -> None:
        await may_be_read.wait()
        await load(kept)

    @contextmanager
    def in_this_process(as_json: bool, sentence: object) -> Iterator[Life]:
        yield told.life

    monkeypatch.setattr(KeptPartitions, "load", slowly)
    monkeypatch.setattr(module, "told_life", in_this_process)
    listener = listen("127.0.0.1", 0, has_tokens=False)
    address = format_address(*listener.getsockname()[:2])
    member = MemberOptions(
        name="u", bind=("127.0.0.1", 0), secrets=(SECRET,), data_dir=tmp_path / "manager", voters=("u",)
    )
    options = ManagerOptions(member=member, api=address, store=f"sqlite:///{tmp_path / 'jobs.sqlite'}")

    def worker_at(manager: str) -> WorkerOptions:
        return WorkerOptions(name="w", seeds=(manager,), secrets=(SECRET,), data_dir=tmp_path / "worker", cores=1)

    with listener:
        living = asyncio.create_task(live_up(options, Api(listener, address, None, None), worker_at, True))
        await told.until("worker-registered")
        await told.until("api")
        assert (await status_of(address, "/v1/jobs"), await status_of(address, "/readyz")) == (503, 503)
        assert "up" not in told.words

        may_be_read.set()
        await told.until("up")
        assert (await status_of(address, "/v1/jobs"), await status_of(address, "/readyz")) == (200, 200)

        told.life.on_signal()
        assert await living == 0
