"""`talka up`, `talka manager` and `talka worker`: how they start, what they refuse, and how they stop."""

import asyncio
import contextlib
import json
import os
import resource
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from talka.cli.nodes.life import Api, Life, ReadyWithWorker, all_ready, brief_sentence, sentence
from talka.cli.nodes.token import write_secretly
from talka.client.kinds import JobDirectory
from talka.client.load_kind import LoadKind
from talka.errors import Invalid, TalkaError
from talka.nodes.manager import ManagerNode
from talka.nodes.worker import WorkerNode
from tests import processes
from tests.node_process import NodeProcess, nodes
from tests.processes import TALKA

SECRET = "vQ8d0sLk3mZx7Yp2Rt5Wn9Bc4Hf6Jg1A"
LIMIT_S = 60


# Real ones.


Started = Callable[..., NodeProcess]


@pytest.fixture
def started(folder: Path) -> Iterator[Started]:
    with nodes() as start:
        yield lambda *words, files=0: start(*words, "--json", before=with_files(files) if files else None)


def test_up_is_a_whole_cluster_that_takes_jobs(started: Started, command: Any, server: Any, folder: Path) -> None:
    node = started("up", "--port", "0", "--cores", "1", "--data-dir", "up")
    to = node.until("up")["address"]
    assert to.startswith("127.0.0.1:")
    code, out, err = command("submit", server.url, "--iterations", "5", "--vus", "1", "--to", to)
    assert code == 0, err
    assert "COMPLETED" in out and server.requests == 5
    assert "completed" in command("jobs", "--to", to).out
    assert stat.S_IMODE((folder / "up" / "secret").stat().st_mode) == 0o600
    assert node.stop() == 0
    drawn = (folder / "up" / "secret").read_text()
    again = started("up", "--port", "0", "--cores", "1", "--data-dir", "up")
    to = again.until("up")["address"]
    assert "completed" in command("jobs", "--to", to).out  # it remembers
    assert (folder / "up" / "secret").read_text() == drawn
    assert again.stop() == 0


def test_manager_and_worker_find_each_other_and_let_in_who_has_a_token(
    started: Started, command: Any, folder: Path
) -> None:
    (folder / "secret").write_text(SECRET + "\n")
    write_secretly("key", "k" * 40)
    (folder / "token").write_text(
        command("token", "issue", "--key-file", "key", "--role", "operator", "--name", "ada").out
    )
    manager = started(
        *("manager", "--name", "m", "--bind", "127.0.0.1:0", "--api", "127.0.0.1:0", "--token-key-file", "key"),
        *("--secret-file", "secret", "--data-dir", "manager", "--preset", "fast"),
    )
    seed, to = manager.until("ready")["address"], manager.until("api")["address"]
    worker = started(
        *("worker", "--name", "w", "--seed", seed, "--secret-file", "secret", "--data-dir", "worker"),
        *("--cores", "2", "--capability", "ssd", "--tag", "rack=7", "--tag", "spare"),
    )
    worker.until("lease")
    [found] = json.loads(command("workers", "--json", "--to", to, "--token-file", "token").out)["workers"]
    assert (found["name"], found["cores"], found["capabilities"]) == ("w", 2, ["ssd"])
    shown: Any = None
    while not shown:  # it looks at its machine while it begins to work
        told = json.loads(command("workers", "show", "w", "--json", "--to", to, "--token-file", "token").out)
        shown = told["machine"]
    assert (shown["pid"], shown["tags"]) == (worker.process.pid, {"rack": "7", "spare": ""})
    assert command("workers", "--to", to).code == 7
    assert worker.stop() == 0 and manager.stop() == 0


def test_a_manager_that_is_told_another_lease_is_refused_until_the_lease_is_changed(
    started: Started, command: Any, folder: Path
) -> None:
    (folder / "secret").write_text(SECRET + "\n")
    (folder / "secret").chmod(0o600)

    def manager(name: str, *more: str) -> NodeProcess:
        return started(
            *("manager", "--name", name, "--voters", "a,b,c", "--bind", "127.0.0.1:0", "--api", "127.0.0.1:0"),
            *("--secret-file", "secret", "--data-dir", name, "--preset", "fast", *more),
        )

    first = manager("a", "--lease", "1s")
    seed = first.until("ready")["address"]
    second = manager("b", "--seed", seed, "--lease", "1s")
    asked = second.until("ready")["address"]
    second.until("leader")
    where = ("--to", asked, "--secret-file", "secret")
    before = json.loads(command("cluster", "lease", *where, "--json").out)
    assert (before["lease_ms"], before["next_ms"]) == (1000, 0) and before["by"] in ("--lease of a", "--lease of b")

    # Who was told another one says so and is gone, with the code of a wrong setting.
    refused = manager("c", "--seed", seed, "--lease", "3s")
    assert refused.wait() == 2
    said = refused.errors
    assert f"--lease is 3s, and the lease of this cluster is 1s (set by {before['by']}): leave" in said
    assert "talka cluster lease 3s --to HOST:PORT" in said and "Traceback" not in said

    code, out, err = command("cluster", "lease", "3s", *where)
    assert code == 0 and out.splitlines()[0].split() == ["lease", "3s"], err
    assert "when the longer of the two has passed" in err
    manager("c", "--seed", seed, "--lease", "3s").until("leader")
    code, _, err = command("cluster", "lease", "3ms", *where)
    assert code == 2 and "the lease = '3ms' is not possible: write 500ms to 1m" in err


def test_data_folder_of_another_process_is_left_alone(started: Started, talka: Any) -> None:
    node = started("up", "--port", "0", "--cores", "1", "--data-dir", "up")
    node.until("ready")
    done = talka("up", "--port", "0", "--data-dir", "up")
    assert done.returncode == 2 and "in use by process" in done.stderr
    assert node.stop() == 0


def test_manager_at_every_address_must_say_where_it_is_reached(talka: Any, folder: Path) -> None:
    (folder / "secret").write_text(SECRET + "\n")
    flags = ["--bind", "0.0.0.0:0", "--api", "127.0.0.1:0", "--secret-file", "secret", "--data-dir", "m"]
    done = talka("manager", *flags)
    assert done.returncode == 2 and "--advertise" in done.stderr


# How many files they may have open.


def with_files(number: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))


def test_a_low_limit_of_files_makes_fewer_connections_and_is_told(started: Started) -> None:
    node = started("up", "--port", "0", "--cores", "1", "--data-dir", "up", files=256)
    told = node.until("few-files")
    assert told["files"] == 256 and told["connections"] < 128
    assert "may have 256 files open" in sentence(told) and "raise the limit to" in sentence(told)
    node.until("up")
    assert node.stop() == 0


def test_too_low_a_limit_of_files_is_named_as_the_cause(folder: Path) -> None:
    done = processes.run(
        [*TALKA, "up", "--port", "0", "--data-dir", "up"],
        preexec_fn=with_files(64),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 2
    assert "may have 64 files and sockets open at once, and talka up needs at least 128" in done.stderr


# What they refuse.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["manager", "--api", "0.0.0.0:0"], ["0.0.0.0", "--token-key-file"]),
        (["manager", "--secret-file", "nowhere"], ["nowhere"]),
        (["manager", "--name", "a b"], ["--name", "'a b'"]),
        (["manager", "--bind", "here"], ["here", "no port"]),
        (["manager", "--seed", "127.0.0.1:1"], ["--voters"]),
        (["manager", "--name", "a", "--voters", "b,c,d"], ["--voters", "leaves out a"]),
        (["manager", "--name", "a", "--voters", "a,b c"], ["--voters", "'b c'"]),
        (["manager", "--preset", "slow"], ["--preset", "serf-lan"]),
        (["manager", "--token-key-file", "nowhere"], ["--token-key-file", "nowhere"]),
        (["manager", "--certs", "nowhere"], ["nowhere"]),
        (["manager", "--api", "8470"], ["8470", "port"]),
        (["worker"], ["--seed"]),
        (["worker", "--seed", "nonsense"], ["nonsense"]),
        (["worker", "--seed", "127.0.0.1:1", "--cores", "0"], ["--cores"]),
        (["worker", "--seed", "127.0.0.1:1", "--capability", "a b"], ["--capability", "'a b'"]),
        (["worker", "--seed", "127.0.0.1:1", "--grace", "soon"], ["--grace"]),
        (["up", "--port", "70000"], ["--port"]),
        (["up", "--data-dir", "secret/below"], ["secret/below"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_is_a_sentence(
    arguments: list[str], words: list[str], command: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "secret").write_text(SECRET + "\n")
    monkeypatch.setenv("TALKA_SECRET_FILE", str(folder / "secret"))
    monkeypatch.setenv("HOME", str(folder))
    kind, *flags = arguments
    if kind == "manager" and "--bind" not in flags:
        flags += ["--bind", "127.0.0.1:0"]
    if kind == "manager" and "--api" not in flags:
        flags += ["--api", "127.0.0.1:0"]
    code, out, err = command(kind, *flags)
    assert (code, out) == (2, "") and all(word in err for word in words)


@pytest.mark.parametrize("kind", ["manager", "worker"])
def test_node_without_a_secret_does_not_start(kind: str, command: Any) -> None:
    code, _, err = command(
        kind, "--seed", "127.0.0.1:1", "--name", "a", *(["--voters", "a"] if kind == "manager" else [])
    )
    assert code == 2 and "--secret-file" in err


def test_port_that_is_taken_is_a_sentence(command: Any, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, err = command("up", "--port", str(taken.getsockname()[1]), "--data-dir", "up")
    assert code == 2 and "cannot listen" in err


# How the parts of one process live and end.


class Part:
    """A manager or worker that ends when it is told to, or not."""

    def __init__(self, name: str, log: list[str], *, is_stubborn: bool = False, error: Exception | None = None) -> None:
        self.name, self.log, self.is_stubborn, self.error = name, log, is_stubborn, error
        self.failure: TalkaError | None = None
        self.is_registered = asyncio.Event()
        self.is_loading = False
        self.control = self
        self.kinds = JobDirectory(LoadKind(cast(Any, self)))
        self.folder = Path.cwd()
        self.limiter = lambda operation, client: 0.0
        self.running = asyncio.Event()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self.log.append(f"stop {self.name}")
        if not self.is_stubborn:
            self._stopping.set()

    async def run(self) -> None:
        self.running.set()
        try:
            if self.error is not None:
                raise self.error
            await self._stopping.wait()
            self.log.append(f"{self.name} ended")
        except asyncio.CancelledError:
            self.log.append(f"{self.name} was cut off")
            raise

    def is_ready(self) -> str:
        return "not yet" if self.is_stubborn else ""


class Lived:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.life = Life(self.events.append)

    def worker(self, **facts: Any) -> Part:
        part = Part("worker", self.log, **facts)
        self.life.add_worker(cast(WorkerNode, part))
        return part

    def manager(self, **facts: Any) -> Part:
        part = Part("manager", self.log, **facts)
        api = Api(socket.create_server(("127.0.0.1", 0)), "127.0.0.1:1", None, None)
        api.listener.setblocking(False)
        self.life.add_manager(cast(ManagerNode, part), api, None)
        return part

    def words(self) -> list[str]:
        return [event["event"] for event in self.events]


async def test_worker_ends_before_the_manager_that_must_hear_of_its_results(folder: Path) -> None:
    lived = Lived()
    parts = [lived.manager(), lived.worker()]
    ending = asyncio.create_task(lived.life.run())
    for part in parts:
        await part.running.wait()
    lived.life.on_signal()
    assert await ending == 0
    assert lived.log == ["stop worker", "worker ended", "stop manager", "manager ended"]
    assert lived.words() == ["api", "stopping"] or lived.words() == ["stopping", "api"]


async def test_second_signal_ends_everything_at_once() -> None:
    lived = Lived()
    part = lived.worker(is_stubborn=True)
    ending = asyncio.create_task(lived.life.run())
    await part.running.wait()
    lived.life.on_signal()
    lived.life.on_signal()
    lived.life.on_signal()  # a third one changes nothing
    assert await ending == 0
    assert lived.log[-1] == "worker was cut off" and lived.words() == ["stopping"]


async def test_part_that_ends_by_itself_takes_the_others_along(folder: Path) -> None:
    lived = Lived()
    manager, worker = lived.manager(), lived.worker()
    ending = asyncio.create_task(lived.life.run())
    await manager.running.wait()
    worker.failure = Invalid("the disk is full")
    worker.stop()
    assert await ending == 1
    assert "manager ended" in lived.log


async def test_error_of_a_part_is_raised_once_the_others_have_ended(folder: Path) -> None:
    lived = Lived()
    lived.manager()
    lived.worker(error=ZeroDivisionError("a slip"))
    with pytest.raises(ZeroDivisionError, match="a slip"):
        await lived.life.run()
    assert lived.log[-1] == "manager ended"


async def test_life_that_is_cut_short_leaves_nothing_running() -> None:
    lived = Lived()
    part = lived.worker()
    ending = asyncio.create_task(lived.life.run())
    await part.running.wait()
    ending.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await ending
    assert lived.log == ["worker was cut off"]


@pytest.mark.parametrize("is_stubborn", [True, False])
async def test_up_is_ready_once_its_worker_is_registered(is_stubborn: bool) -> None:
    manager, worker = Part("manager", [], is_stubborn=is_stubborn), Part("worker", [])
    control = ReadyWithWorker(cast(Any, manager), cast(Any, worker))
    assert control.is_ready() == ("not yet" if is_stubborn else "the worker beside this manager is not registered yet")
    worker.is_registered.set()
    worker.is_loading = True
    assert control.is_ready() == ("not yet" if is_stubborn else "the worker beside this manager loads its handlers")
    worker.is_loading = False
    assert control.is_ready() == ("not yet" if is_stubborn else "")
    assert control.name == "manager"  # everything else is the manager's


# What they say.


def test_events_are_sentences() -> None:
    assert sentence({"at": 1, "event": "api", "url": "http://127.0.0.1:8470"}) == "the API is at http://127.0.0.1:8470"
    assert sentence({"at": 1, "event": "joined", "name": "b", "address": "h:1"}) == "b joined (h:1)"
    assert sentence({"at": 1, "event": "odd", "reason": "why", "number": 3}) == "odd: reason why, number 3"
    assert sentence({"at": 1, "event": "odd"}) == "odd"


def test_whoever_has_everything_on_one_machine_is_spared_what_parts_say_to_each_other() -> None:
    assert brief_sentence({"at": 1, "event": "ready", "address": "127.0.0.1:4711"}) == ""
    assert brief_sentence({"at": 1, "event": "stopped", "worker": "w"}) == ""
    assert brief_sentence({"at": 1, "event": "stopped"}) == "stopped"
    for what in ("busy", "healthy"):
        judged = {"at": 1, "event": "worker-judged", "name": "w", "what": what, "text": f"worker w is {what}"}
        assert brief_sentence(judged) == "", "there is no other worker, and its own load is no news"
        assert sentence(judged) == f"worker w is {what}"
    stuck = {"at": 1, "event": "worker-judged", "name": "w", "what": "stuck", "text": "worker w is stuck"}
    assert brief_sentence(stuck) == "worker w is stuck"
    told = brief_sentence({"at": 1, "event": "up", "address": "127.0.0.1:8470", "cores": 2})
    assert "talka submit FILE --to 127.0.0.1:8470" in told


# Files that may be open.


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["up", "--port", "0"], id="up"),
        pytest.param(["manager", "--name", "m", "--bind", "127.0.0.1:0", "--api", "127.0.0.1:0"], id="manager"),
        pytest.param(["manager", "--name", "m", "--store", "sqlite:///jobs.sqlite"], id="manager with a store"),
        pytest.param(["worker", "--name", "w", "--seed", "127.0.0.1:1"], id="worker"),
        pytest.param(["member", "--name", "m", "--bind", "127.0.0.1:0"], id="member"),
        pytest.param(["run", "http://127.0.0.1:1/", "--duration", "1s"], id="run"),
    ],
)
def test_a_limit_of_20_open_files_is_named_as_the_cause(words: list[str], tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    write_secretly(secret, SECRET)
    more = [] if words[0] == "run" else ["--data-dir", str(tmp_path / "data")]
    more += ["--secret-file", str(secret)] if words[0] in ("manager", "worker", "member") else []
    told = processes.run(
        ["sh", "-c", 'ulimit -n 20; exec "$0" "$@"', *TALKA, *words, *more],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={name: value for name, value in os.environ.items() if not name.startswith("TALKA_")},
    )
    assert told.returncode == 2, told
    assert "this process may" in told.stderr and "20 files" in told.stderr, told.stderr
    assert "ulimit -n" in told.stderr and "Traceback" not in told.stderr
    assert not (tmp_path / "data").exists() and not (tmp_path / "jobs.sqlite").exists()


def parts_of_up() -> tuple[Any, Any]:
    """A manager that has read nothing yet, and a worker that is not registered."""
    worker = SimpleNamespace(name="w", is_registered=asyncio.Event(), is_loading=False)
    dags = SimpleNamespace(loaded=asyncio.Event(), has_heard=lambda worker: True)
    return SimpleNamespace(dags=dags, why_not_ready=str), worker


async def some_turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_it_is_ready_when_the_worker_is_there_and_the_store_was_read() -> None:
    manager, worker = parts_of_up()
    ready = asyncio.create_task(all_ready(manager, worker, look_s=0))
    worker.is_registered.set()
    await some_turns()
    assert not ready.done(), "whoever asks now is told that the store is still being read"
    manager.dags.loaded.set()
    await ready

    manager.dags = None  # without a store nothing is read
    await all_ready(manager, worker, look_s=0)


async def test_it_is_not_ready_while_the_worker_loads_its_handlers_or_the_manager_does_not_know_them() -> None:
    manager, worker = parts_of_up()
    heard: list[str] = []
    manager.dags.has_heard = lambda worker: worker in heard
    worker.is_loading = True
    worker.is_registered.set()
    manager.dags.loaded.set()
    ready = asyncio.create_task(all_ready(manager, worker, look_s=0))
    await some_turns()
    assert not ready.done(), "nobody knows what it can run"
    worker.is_loading = False
    await some_turns()
    assert not ready.done(), "whoever submits now is told that no worker is known"
    heard.append("w")
    await ready


async def test_it_is_not_ready_while_the_manager_must_be_elected_again_since_reading_its_store_took_too_long() -> None:
    manager, worker = parts_of_up()
    problem = [""]
    manager.why_not_ready = lambda: problem[0]
    ready = asyncio.create_task(all_ready(manager, worker, look_s=0))
    worker.is_registered.set()
    await some_turns()
    manager.dags.loaded.set()
    problem[0] = "no manager leads"  # noticed right after
    await some_turns()
    assert not ready.done()
    problem[0] = ""
    await ready
