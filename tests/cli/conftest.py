import http.client
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from talka.cli.demo.command import running_demo_server
from talka.cli.main import run_command
from talka.client.calls import LAST_TRY_S
from talka.client.client import Client
from talka.web.auth import Tokens
from tests import processes
from tests.cli.remote_cluster import RemoteCluster
from tests.processes import TALKA

LIMIT_S = 60
OURS = ("TALKA_", "NO_COLOR", "FORCE_COLOR", "CI", "COLUMNS", "PYTHONWARNINGS", "PYTHONUNBUFFERED")


class Server:
    """The demo server in a process of its own."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, method: str, path: str) -> bytes:
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=LIMIT_S)
        try:
            connection.request(method, path)
            return connection.getresponse().read()
        finally:
            connection.close()

    @property
    def requests(self) -> int:
        return int(json.loads(self.ask("GET", "/count"))["requests"])


@pytest.fixture(scope="session")
def started_server() -> Iterator[Server]:
    with running_demo_server() as url:
        yield Server(url)


@pytest.fixture
def server(started_server: Server) -> Server:
    started_server.ask("POST", "/count/reset")
    return started_server


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder: empty, and above it no configuration is looked for. Others cannot read what is written."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o077)
    yield tmp_path
    os.umask(before)


@pytest.fixture
def environment() -> dict[str, str]:
    """Ours, without what steers Talka."""
    return {name: value for name, value in os.environ.items() if not name.startswith(OURS)} | {"TERM": "xterm"}


Talka = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def talka(folder: Path, environment: dict[str, str]) -> Talka:
    """Runs the real command in the empty folder; keywords are variables of its environment."""

    def run(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        return processes.run(
            [*TALKA, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env=environment | variables,
        )

    return run


@pytest.fixture
def here(folder: Path, capsys: pytest.CaptureFixture[str]) -> Talka:
    """As `talka`, in this process: for what is refused or answered before another one is started."""

    def run(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in os.environ if name.startswith(OURS) or name == "GITHUB_STEP_SUMMARY"]:
                patch.delenv(name)
            for name, value in {"TERM": "xterm", **variables}.items():
                patch.setenv(name, value)
            code = run_command(arguments)
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return run


@pytest.fixture
def shop(folder: Path, server: Server) -> Path:
    """A test of two workflows, one of which depends on the other."""
    file = folder / "shop.py"
    file.write_text(
        f'''
import os

from talka import URL, HTTPResponse, Workflow, check, depends, step

print("the file was imported")


class Browse(Workflow):
    vus = 2

    @step()
    async def home(self, url: URL = "{server.url}/") -> HTTPResponse:
        return await self.client.http.get(url)

    @check()
    def is_fine(self, home: HTTPResponse) -> bool:
        return home.status == 200


@depends(Browse)
class Buy(Workflow):
    @step()
    async def order(self, url: URL = "{server.url}/" + os.environ.get("PAGE", "json")) -> HTTPResponse:
        return await self.client.http.get(url)
'''
    )
    return file


# Commands that ask a cluster.


class Done(NamedTuple):
    code: int
    out: str
    err: str


Ask = Callable[..., Done]


@pytest.fixture
def remote() -> Iterator[RemoteCluster]:
    """A cluster on loopback that wants no token."""
    cluster = RemoteCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands ask a cluster that is not there once: their patience ends before a second try would."""
    monkeypatch.setattr("talka.client.client.Client", partial(Client, question_s=LAST_TRY_S / 2))


@pytest.fixture
def token_key() -> bytes:
    return b"the key of the cluster's tokens, long enough"


@pytest.fixture
def guarded(token_key: bytes) -> Iterator[RemoteCluster]:
    """A cluster that wants tokens."""
    cluster = RemoteCluster(Tokens([token_key], "default"))
    yield cluster
    cluster.close()


@pytest.fixture
def command(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Runs a command in this process, in an empty folder, with nothing of Talka's in the environment."""
    for name in list(os.environ):
        if name.startswith(OURS) or name == "GITHUB_STEP_SUMMARY":
            monkeypatch.delenv(name)

    def run(*arguments: str) -> Done:
        return Done(run_command(arguments), *capsys.readouterr())

    return run
