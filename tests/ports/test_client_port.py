"""A protocol is one file and two lines: a client for a line protocol is put into a copy of Talka, and all of it works.

The copy is run as users run Talka: its commands, its cores and its nodes are processes that import nothing else.
"""

import ast
import asyncio
import difflib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import talka
from tests.e2e.job_cluster import job_cluster

SOURCES = Path(talka.__file__).parent
FILE = Path(__file__).with_name("line_client.py")
TABLE = Path("engine/clients/table.py")
LINES = {
    "from talka.engine.clients.port import ClientKind\n": "from talka.engine.clients.line import LINE\n",
    '    "custom": CUSTOM,\n': '    "line": LINE,\n',
}
"""Each new line of the table, by the line before or after which it stands."""
NAMED = ('"http"', '"custom"')
"""The clients that are there, as code would name them."""
COUNTED = ("engine", "control", "stats", "wire", "work")
"""Where calls are made and counted. Elsewhere such texts are words of addresses."""
LIMIT_S = 60.0
VUS, ITERATIONS = 2, 10
TALK = f"""
import os

from talka import IterationsPerVU, Workflow, check, step

TARGET = os.environ["TARGET"]


class Talk(Workflow):
    load = IterationsPerVU(vus={VUS}, iterations={ITERATIONS})
    thresholds = ["response_time.p99 < 60s"]

    @step()
    async def ping(self):
        return await self.client.line.ask(TARGET, "PING")

    @check("ping")
    def has_pong(self, ping):
        return ping.text == "OK pong"

    @step("ping")
    async def order(self):
        await self.client.line.ask(TARGET, "BUY", name="buy")
        return await self.client.line.ask(TARGET, "PAY", name="pay")

    @step("ping")
    async def leave(self):
        return await self.client.line.ask(TARGET, "QUIT")
"""


class LineServer:
    """PING is answered OK, BUY in turns OK and BUSY, PAY always DENIED; QUIT ends the connection."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname())
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := (await reader.readline()).decode().strip():
                self.asked[line] += 1
                if line == "QUIT":
                    break
                bought = "BUSY try later" if self.asked[line] % 2 else "OK yours"
                answer = {"PING": "OK pong", "BUY": bought, "PAY": "DENIED no money"}[line]
                self.answered[answer.split()[0]] += 1
                writer.write(f"{answer}\n".encode())
        finally:
            writer.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


@pytest.fixture
def server() -> Iterator[LineServer]:
    made = LineServer()
    yield made
    made.close()


class Copy:
    """Talka with one client more."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = folder / "talka"
        shutil.copytree(SOURCES, self.package)
        shutil.copyfile(FILE, self.package / TABLE.with_name("line.py"))
        text = (SOURCES / TABLE).read_text()
        for line, added in LINES.items():
            assert text.count(line) == 1
            text = text.replace(line, f"{added}{line}")
        (self.package / TABLE).write_text(text)
        self.test = folder / "talk.py"
        self.test.write_text(TALK)
        self.variables = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}

    def talka(self, *words: object, target: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "talka", *map(str, words)],
            env={**os.environ, **self.variables, "TARGET": target},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    def run(self, name: str, target: str, *options: object) -> tuple[Any, str]:
        """The result of a run, and what it printed."""
        json_file = self.folder / f"{name}.json"
        ran = self.talka(
            *("run", self.test, "--cores", 1, "--json", json_file, "--ui", "none", "--no-keep", *options), target=target
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return json.loads(json_file.read_text()), ran.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("copy"))


def files_of(folder: Path) -> dict[Path, str]:
    return {path.relative_to(folder): path.read_text() for path in folder.rglob("*.py")}


def steps_of(document: Any) -> dict[str, Any]:
    [workflow] = document["workflows"]
    return {step["name"]: step for step in workflow["steps"]}


def test_a_client_is_one_file_and_two_lines_of_the_table(copy: Copy) -> None:
    before, after = files_of(SOURCES), files_of(copy.package)
    assert after.keys() - before.keys() == {TABLE.with_name("line.py")}
    assert {path for path in before if before[path] != after[path]} == {TABLE}
    changes = difflib.ndiff(before[TABLE].splitlines(), after[TABLE].splitlines())
    assert [line[2:].strip() for line in changes if line[0] in "+-"] == [line.strip() for line in LINES.values()]


def test_nothing_but_the_direct_driver_names_a_client_outside_of_their_room() -> None:
    """Neither by importing what implements one, nor by its name under `self.client`."""
    importing, naming = set(), set()
    for path in SOURCES.rglob("*.py"):
        file = path.relative_to(SOURCES)
        text = path.read_text()
        if file.is_relative_to(TABLE.parent) or not any(word in text for word in ("engine.clients.", *NAMED)):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("talka.engine.clients."):
                importing.add((str(file), str(node.module).rpartition(".")[2]))
            if isinstance(node, ast.Constant) and f'"{node.value}"' in NAMED and file.parts[0] in COUNTED:
                naming.add(str(file))
    # What is public of HTTP's, and commands that are given a URL in place of a file.
    public = {("__init__.py", "deadlines"), ("__init__.py", "requests")}
    public |= {("cli/jobs.py", "urls"), ("cli/url_request.py", "requests")}
    assert {(file, module) for file, module in importing if module not in ("port", "table")} == public
    # The direct driver waits for calls of one client alone: the one whose engine has its core.
    assert naming == {"engine/load/direct.py"}


def test_its_calls_are_measured_counted_by_label_shown_and_compared(copy: Copy, server: LineServer) -> None:
    page = copy.folder / "page.html"
    runs = VUS * ITERATIONS

    first, text = copy.run("first", server.address, "--html", page)

    assert server.asked == {"PING": runs, "BUY": runs, "PAY": runs, "QUIT": runs}
    totals, steps = first["totals"], steps_of(first)
    assert (totals["ok"], totals["failed"]) == (runs + runs // 2, runs // 2 + 2 * runs)
    assert (totals["requests"], totals["not_sent"], totals["interrupted"]) == (4 * runs, 0, 0)
    assert totals["bytes_sent"] == sum(len(line) + 1 for line in server.asked.elements())
    assert first["generator"]["driver"] in ("task", ""), "the direct driver cannot wait for it"
    assert first["workflows"][0]["checks"][0]["passed"] == runs
    ping, order, leave = steps["ping"], steps["order"], steps["leave"]
    assert (ping["count"], ping["ok"], ping["outcomes"], ping["status_codes"]) == (runs, runs, {"OK": runs}, {})
    for times in (ping["response_time_ms"], ping["service_time_ms"]):
        assert 0 < times["p50"] <= times["max"]
    assert order["outcomes"] == {label: count for label, count in server.answered.items() if label != "OK"} | {
        "OK": runs // 2
    }
    buy, pay = order["calls"]
    assert (buy["name"], buy["ok"], buy["failed"], buy["outcomes"]) == (
        "buy",
        *(runs // 2, runs // 2),
        {"BUSY": runs // 2, "OK": runs // 2},
    )
    assert (pay["name"], pay["failed"], pay["outcomes"], pay["errors"]) == (
        *("pay", runs),
        *({"DENIED": runs}, {"status": runs}),
    )
    assert pay["samples"][0]["text"] == "PAY answered DENIED no money"
    assert (leave["failed"], leave["errors"], leave["outcomes"]) == (runs, {"reset": runs}, {})
    assert f"outcome   OK × {runs}" in text and f"outcome   DENIED × {runs}" in text
    assert f"DENIED × {runs}" in page.read_text()

    second, _ = copy.run("second", server.address, "--engine", "python")

    assert [steps_of(second)[name]["outcomes"] for name in steps] == [step["outcomes"] for step in steps.values()]
    compared = copy.talka("compare", "first.json", "second.json", "--json", "-")
    assert compared.returncode == 0, compared.stdout + compared.stderr
    rows = json.loads(compared.stdout)["rows"]
    assert {row["step"] for row in rows} >= {"ping", "order", "leave"}


def test_debug_shows_its_lines_and_what_came(copy: Copy, server: LineServer) -> None:
    ran = copy.talka("debug", copy.test, target=server.address)
    said = ran.stdout.splitlines()
    assert said[1] == "> PING", ran.stdout + ran.stderr
    assert said[2].startswith("< PING answered OK pong in ") and said[2].endswith(" ms")
    assert "✓ ping" in said
    assert "< reset: QUIT: the connection was closed before the answer was complete" in said
    assert any(line.startswith("✗ order: BUY answered BUSY") for line in said)


def test_it_runs_on_a_cluster(copy: Copy, server: LineServer, tmp_path: Path) -> None:
    with job_cluster(tmp_path, 1, 1, target=server.address, environment=copy.variables) as cluster:
        ended = cluster.submit(copy.test, timeout_s=LIMIT_S)
        assert ended.code == 0, ended.err
        steps = steps_of(ended.document())
    runs = VUS * ITERATIONS
    assert server.asked == {"PING": runs, "BUY": runs, "PAY": runs, "QUIT": runs}
    assert (steps["ping"]["outcomes"], steps["ping"]["ok"]) == ({"OK": runs}, runs)
    assert steps["order"]["outcomes"] == {"BUSY": runs // 2, "DENIED": runs, "OK": runs // 2}
