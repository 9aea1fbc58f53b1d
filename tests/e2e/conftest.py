"""A demo server in a process of its own, and the command as users run it."""

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from talka.engine.load import native
from tests import processes
from tests.e2e.cluster import Cluster
from tests.e2e.job_cluster import JobCluster, job_cluster
from tests.e2e.networks import Loopback, Namespaces, Network, Relay
from tests.e2e.promises import named
from tests.processes import TALKA

HERE = Path(__file__).parent
WORKFLOWS = HERE / "workflows"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What no page promises is for `make test-all`."""
    wanted, seen = named(), set[str]()
    files = set[str]()
    for item in items:
        if HERE not in item.path.parents:
            continue
        file = f"e2e/{item.path.relative_to(HERE)}"
        files.add(file)
        function = getattr(item, "originalname", item.name)
        names = {f"{file}::{function}", f"{file}::{item.name}"} & wanted
        seen |= names
        if not names:
            item.add_marker(pytest.mark.long)
        elif marks := [mark for mark in ("long", "serial") if item.get_closest_marker(mark)]:
            # A decorator of the test is found by `tests/test_promises.py`; this, one of its file or of a parameter.
            raise pytest.UsageError(f"tests/e2e/promises.py names {item.nodeid}, which is marked {marks[0]}")
    if not any("::" in word for word in config.args):
        missing = {name for name in wanted - seen if name.partition("::")[0] in files}
        if missing:
            raise pytest.UsageError(f"tests/e2e/promises.py names what is not there: {sorted(missing)}")


@dataclass
class Server:
    """The truth: it counts every request it served."""

    url: str

    def count(self) -> int:
        with urllib.request.urlopen(f"{self.url}/count", timeout=60) as answer:
            return int(json.load(answer)["requests"])


@contextmanager
def demo_server() -> Iterator[Server]:
    process = processes.Popen([*TALKA, "demo-server", "--port", "0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        yield Server(line.split()[-1])
    finally:
        process.terminate()
        process.wait(timeout=60)
        process.stdout.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with demo_server() as server:
        yield server


class Command:
    """Runs `talka` as a process. The workflow files under `workflows` read the server's address from TARGET."""

    def __init__(self, folder: Path, target: str, engine: str) -> None:
        self.folder = folder
        self.result = folder / "result.json"
        self.environment = {**os.environ, "TARGET": target, "TALKA_ENGINE": engine}

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return processes.Popen(
            [*TALKA, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        process = self.start(*arguments)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def run_file(self, name: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self.run("run", str(WORKFLOWS / name), "--json", str(self.result), "--ui", "none", *arguments)

    def document(self) -> Any:
        document = json.loads(self.result.read_bytes())
        engine = self.environment["TALKA_ENGINE"]
        assert engine in ("auto", document["generator"]["engine"]), "the result is another engine's"
        return document


@pytest.fixture
def engine() -> str:
    """The default one. Tests of what an engine must get right run on both: `@pytest.mark.parametrize("engine",
    ENGINES)`. `make test-all` runs the others on each once."""
    return os.environ.get("TALKA_TEST_ENGINE", "auto")


@pytest.fixture
def command(tmp_path: Path, server: Server, engine: str) -> Command:
    if engine == "native" and (obstacle := native.available()) is not None:
        pytest.skip(f"there is no native engine: {obstacle}")
    return Command(tmp_path, server.url, engine)


def cores_of(owner: int) -> list[psutil.Process]:
    """The core processes a `talka run` has started."""
    return [
        child
        for child in psutil.Process(owner).children(recursive=True)
        if "talka.engine.load.core" in " ".join(child.cmdline())
    ]


@pytest.fixture
def find_cores() -> Any:
    return cores_of


# Members. Their processes, namespaces and relays end with the test, however it ends.


@pytest.fixture(scope="session")
def namespaces_problem() -> str:
    return Namespaces.why_not()


@contextmanager
def members_on(network: Network, folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(folder, network)
    try:
        yield cluster
        mistakes = cluster.mistakes()
    finally:
        try:
            cluster.close()
        finally:
            network.close()
    assert not any("internal error" in text or "Traceback" in text for text in mistakes.values()), mistakes


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Cluster]:
    """On the loopback."""
    with members_on(Loopback(), tmp_path) as cluster:
        yield cluster


@pytest.fixture
def relayed_members(tmp_path: Path) -> Iterator[Cluster]:
    with members_on(Relay(), tmp_path) as cluster:
        yield cluster


@pytest.fixture(params=["nft", "relay"])
def cut_members(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """On a network that can be cut: by the kernel, and by a relay, which needs no rights."""
    if request.param == "relay":
        network: Network = Relay()
    else:
        problem = request.getfixturevalue("namespaces_problem")
        if problem:
            pytest.skip(f"nft cuts nothing here: {problem}")
        network = Namespaces()
    with members_on(network, tmp_path) as cluster:
        yield cluster


# Clusters that run jobs.


@pytest.fixture(scope="module")
def job_server() -> Iterator[Server]:
    """One for all tests of a module: what counts is by how much its count has grown."""
    with demo_server() as server:
        yield server


@pytest.fixture(scope="module")
def shared_jobs(tmp_path_factory: pytest.TempPathFactory, job_server: Server) -> Iterator[JobCluster]:
    """Three managers and two workers of one core, for tests that leave them as they were."""
    with job_cluster(tmp_path_factory.mktemp("jobs"), 3, 2, target=job_server.url) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def start_jobs(job_server: Server) -> Any:
    """A context: `start_jobs(folder, managers, workers, cores)`."""
    return partial(job_cluster, target=job_server.url)


@pytest.fixture
def make_jobs(tmp_path: Path, job_server: Server) -> Iterator[Any]:
    """Clusters of the test's own: `make_jobs(managers, workers, cores)`."""
    with ExitStack() as stack:

        def make(*numbers: int, **more: Any) -> JobCluster:
            folder = tmp_path / f"jobs{len(list(tmp_path.iterdir()))}"
            return stack.enter_context(job_cluster(folder, *numbers, target=job_server.url, **more))

        yield make
