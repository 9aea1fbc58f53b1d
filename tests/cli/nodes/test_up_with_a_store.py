"""`talka up` whose store takes long to read: what it tells meanwhile, and what who asks is answered."""

import asyncio
import http.client
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
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


HANDLERS = """
from talka import HandlerTask, handler


@handler("go")
def go(task: HandlerTask) -> None:
    pass
"""
ONE_TASK = b'{"kind": "dag", "name": "n", "tasks": [{"id": "a", "handler": "go"}]}'


async def answer_of(address: str, path: str, body: bytes = b"") -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        connection = http.client.HTTPConnection(address, timeout=LIMIT_S)
        try:
            connection.request("POST" if body else "GET", path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    return await asyncio.to_thread(ask)


async def status_of(address: str, path: str, body: bytes = b"") -> int:
    return (await answer_of(address, path, body))[0]


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


@asynccontextmanager
async def up(told: Told, folder: Path, monkeypatch: pytest.MonkeyPatch, *handlers: Path) -> AsyncIterator[str]:
    """Where it answers. It ends as after a signal."""

    @contextmanager
    def in_this_process(as_json: bool, sentence: object) -> Iterator[Life]:
        yield told.life

    monkeypatch.setattr(module, "told_life", in_this_process)
    monkeypatch.setattr(module, "all_ready", partial(module.all_ready, look_s=0.001))
    listener = listen("127.0.0.1", 0, has_tokens=False)
    address = format_address(*listener.getsockname()[:2])
    member = MemberOptions(
        name="u", bind=("127.0.0.1", 0), secrets=(SECRET,), data_dir=folder / "manager", voters=("u",)
    )
    options = ManagerOptions(member=member, api=address, store=f"sqlite:///{folder / 'jobs.sqlite'}")

    def worker_at(manager: str) -> WorkerOptions:
        return WorkerOptions(
            name="w", seeds=(manager,), secrets=(SECRET,), data_dir=folder / "worker", cores=1, handlers=handlers
        )

    with listener:
        living = asyncio.create_task(live_up(options, Api(listener, address, None, None), worker_at, True))
        try:
            await told.until("api")
            yield address
        finally:
            told.life.on_signal()
            assert await living == 0


async def test_up_says_that_it_is_ready_when_its_store_was_read_and_nobody_is_refused_after_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_be_read, load, told = asyncio.Event(), KeptPartitions.load, Told()
    handlers = tmp_path / "handlers.py"
    handlers.write_text(HANDLERS)

    async def slowly(kept: KeptPartitions) -> None:
        await may_be_read.wait()
        await load(kept)

    monkeypatch.setattr(KeptPartitions, "load", slowly)
    async with up(told, tmp_path, monkeypatch, handlers) as address:
        await told.until("worker-registered")
        await told.until("handlers")
        assert (await status_of(address, "/v1/jobs"), await status_of(address, "/readyz")) == (503, 503)
        assert "up" not in told.words

        may_be_read.set()
        await told.until("up")
        assert await status_of(address, "/v1/jobs", ONE_TASK) == 201, "the worker's beats were heard as well"
        assert (await status_of(address, "/v1/jobs"), await status_of(address, "/readyz")) == (200, 200)


async def test_up_says_that_it_is_ready_when_its_handlers_are_loaded_and_nobody_is_refused_for_good_before_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, gate, handlers = Told(), tmp_path / "gate", tmp_path / "handlers.py"
    os.mkfifo(gate)
    handlers.write_text(f"open({str(gate)!r}).read()  # it takes as long as a large model\n{HANDLERS}")
    async with up(told, tmp_path, monkeypatch, handlers) as address:
        with await asyncio.to_thread(gate.open, "w"):
            await told.until("lease")
            for _ in range(10):
                status, text = await answer_of(address, "/v1/jobs", ONE_TASK)
                assert status == 503, text
                assert "still loads its handlers" in text or "no worker is known" in text
            assert await status_of(address, "/readyz") == 503
            assert "up" not in told.words
        await told.until("up")
        assert await status_of(address, "/v1/jobs", ONE_TASK) == 201
        assert await status_of(address, "/readyz") == 200
