"""A step that talks to a database through its own driver, between two calls of the client: whatever runs it."""

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from talka.engine.load import native
from tests import processes
from tests.processes import TALKA

FILE = """
import os

import asyncpg

from talka import HTTPResponse, IterationsPerVU, Workflow, step

SERVER = os.environ["SHOP"]


class Shop(Workflow):
    load = IterationsPerVU(2, 5)
    {setting}

    @step()
    async def buy(self) -> HTTPResponse:
        await self.client.http.get(SERVER)
        connection = await asyncpg.connect(os.environ["DATABASE"])
        try:
            assert await connection.fetchval("SELECT 6 * 7") == 42
        finally:
            await connection.close()
        return await self.client.http.get(SERVER)
"""


class Shop(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def shop() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Shop) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def run(folder: Path, shop: str, database: str, engine: str, setting: str = "") -> dict:
    (folder / "shop.py").write_text(FILE.format(setting=setting))
    command = [*TALKA, "run", "shop.py", "--engine", engine, "--cores", "1", "--ui", "none"]
    processes.run(
        [*command, "--json", "result.json"],
        cwd=folder,
        env={**os.environ, "SHOP": shop, "DATABASE": database},
        check=False,
        capture_output=True,
        timeout=100,
    )
    return json.loads((folder / "result.json").read_bytes())


@pytest.mark.parametrize("engine", ["python", "native"])
def test_a_step_may_await_a_database(tmp_path: Path, shop: str, postgres, engine: str) -> None:
    if engine == "native" and native.available() is not None:
        pytest.skip(f"no native engine: {native.available()}")
    result = run(tmp_path, shop, postgres.url(), engine)

    [bought] = result["workflows"][0]["steps"]
    assert (bought["ok"], bought["failed"], result["totals"]["requests"]) == (10, 0, 20)
    assert (result["generator"]["engine"], result["generator"]["driver"]) == (
        engine,
        "task" if engine == "native" else "",
    )


@pytest.mark.skipif(native.available() is not None, reason=f"no native engine: {native.available()}")
def test_the_direct_driver_names_the_line_that_awaits_a_database(tmp_path: Path, shop: str, postgres) -> None:
    result = run(tmp_path, shop, postgres.url(), "native", 'driver = "direct"')

    [bought] = result["workflows"][0]["steps"]
    line = FILE.splitlines().index('        connection = await asyncpg.connect(os.environ["DATABASE"])') + 1
    assert (bought["ok"], bought["failed"]) == (0, 10)
    assert f"shop.py:{line}" in json.dumps(result["workflows"][0]), result["workflows"][0]
