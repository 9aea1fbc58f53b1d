"""Managers and workers as processes, and `talka submit` as users run it. Every wait has an end and an explanation."""

import http.client
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from talka.client.sync import Client
from tests import processes
from tests.e2e.cluster import SOON_S, Cluster, Life
from tests.e2e.networks import Loopback, Network, free_port
from tests.e2e.standstill import Standstill, standstill
from tests.processes import TALKA

MARK = "TEST_CLUSTER"
"""The variable by which processes of a cluster are found, also those whose parents are gone."""
CORE = "talka.engine.load.core_process"
LEFT_BEHIND_S = 30.0
NEXT = Path(__file__).parent / "next_version" / "talka_next.py"
"""`talka` as its next minor release might be."""


class JobCluster(Cluster):
    """`up` has the present life of each node, by name: managers `m1`, `m2` …, workers `w1`, `w2` ….

    Made, it has started nothing: `start_nodes` does, until managers have a leader and workers a lease. `target` is the
    server that workflows are sent as their variable TARGET. `environment` is added to that of nodes and commands.
    """

    def __init__(
        self,
        folder: Path,
        managers: int = 3,
        workers: int = 2,
        cores: int = 1,
        *,
        network: Network | None = None,
        target: str = "",
        preset: str = "fast",
        manager_options: Iterable[str] = (),
        worker_options: Iterable[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder, network or Loopback())
        self.managers = [f"m{number}" for number in range(1, managers + 1)]
        self.workers = [f"w{number}" for number in range(1, workers + 1)]
        self.cores = cores
        self.target = target
        self.preset = preset
        self.apis: dict[str, str] = {}
        self.mark = secrets.token_hex(8)
        self._manager_options, self._worker_options = list(manager_options), list(worker_options)
        own = {MARK: self.mark, **(environment or {})}
        # What a test's files are is closed to others: its cores are of the same user.
        known = {"TALKA_CORE_USER": str(os.geteuid()), "TALKA_CORE_ENV": ",".join(own)}
        self._environment = {**os.environ, "TARGET": target, **known, **own}
        self.own_environment: dict[str, dict[str, str]] = {}
        """What is added for single nodes."""
        self.are_next: set[str] = set()
        """Nodes that are started as those of the next version."""
        self._results = 0
        self._commands: list[subprocess.Popen[str]] = []
        self._clients: list[Client] = []

    # Starting

    def start_nodes(self, within_s: float = SOON_S) -> "JobCluster":
        for name in self.managers:
            self.start_manager(name)
        for name in self.workers:
            self.start_worker(name)
        self.wait_until_ready(within_s)
        return self

    def wait_until_ready(self, within_s: float = SOON_S) -> None:
        """One leader that all managers agree on, and a lease for every worker that is up."""
        self.wait_for_leader(within_s)
        for name in [name for name in self.workers if name in self.up]:
            self.wait_for(name, "lease", within_s)

    def start_manager(self, name: str, *options: str, secret_file: Path | None = None, data: str = "") -> Life:
        place = self.place(name)
        words = [
            *(*place.prefix, *TALKA, "manager", "--name", name),
            *("--voters", ",".join(self.managers), "--bind", place.bind, "--api", self.api(name)),
            *(() if place.advertised == place.bind else ("--advertise", place.advertised)),
            *(word for other in self.managers if other != name for word in ("--seed", self.place(other).advertised)),
            *("--secret-file", str(secret_file or self.secret_file), "--data-dir", str(self.data(data or name))),
            *("--preset", self.preset, "--json", *self._manager_options, *options),
        ]
        return self._spawn(name, words, self._environment | self.own_environment.get(name, {}))

    def start_worker(
        self,
        name: str,
        *options: str,
        cores: int | None = None,
        seeds: Iterable[str] = (),
        secret_file: Path | None = None,
        data: str = "",
    ) -> Life:
        """A name that is not among `workers` is added to them. `seeds` are names of managers: all of them."""
        if name not in self.workers:
            self.workers.append(name)
        words = [
            *(*self._prefix(name), *TALKA, "worker", "--name", name),
            *(word for seed in (seeds or self.managers) for word in ("--seed", self.place(seed).advertised)),
            *("--secret-file", str(secret_file or self.secret_file), "--data-dir", str(self.data(data or name))),
            *("--cores", str(cores or self.cores), "--json", *self._worker_options, *options),
        ]
        return self._spawn(name, words, self._environment)

    def _prefix(self, name: str) -> tuple[str, ...]:
        """A worker listens nowhere: on the loopback it needs no place."""
        return () if isinstance(self.network, Loopback) else self.place(name).prefix

    def _spawn(self, name: str, words: list[str], environment: dict[str, str] | None = None) -> Life:
        if name in self.are_next:
            at = words.index("-m")
            assert words[at + 1] == "talka"
            words = [*words[:at], str(NEXT), *words[at + 2 :]]
        return super()._spawn(name, words, environment)

    def data(self, name: str) -> Path:
        return self.folder / f"data-{name}"

    def api(self, name: str) -> str:
        """Where this manager answers clients: the same in every life."""
        if name not in self.apis:
            host = self.place(name).bind.rpartition(":")[0]
            self.apis[name] = f"{host}:{free_port() if host == '127.0.0.1' else 8470}"
        return self.apis[name]

    @property
    def to(self) -> str:
        """Every API, for --to."""
        return ",".join(self.api(name) for name in self.managers)

    # Ending. `kill` of one or more nodes and `stop`, which is SIGTERM, are those of every cluster.

    def stop_process(self, name: str) -> None:
        """SIGSTOP, until `continue_process`."""
        self.signal(name, signal.SIGSTOP)

    def continue_process(self, name: str) -> None:
        self.signal(name, signal.SIGCONT)

    def restart(self, name: str, *options: str, **more: Any) -> Life:
        """A new life on the same data and addresses; the old one is killed if it is still there."""
        if name in self.up:
            self.kill(name)
        start = self.start_manager if name in self.managers else self.start_worker
        return start(name, *options, **more)

    def processes(self) -> list[psutil.Process]:
        """Everything that runs for this cluster: nodes, commands, cores, guards, and children of users' code."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def standstill(self, *, is_seen_here: bool) -> AbstractContextManager[Standstill]:
        """What is judged is done by managers and a worker with its cores; `is_seen_here`: by this process as well."""
        pids = {name: life.process.pid for name, life in self.up.items()}
        shared = [pids[name] for name in self.managers if name in pids] + [os.getpid()] * is_seen_here
        return standstill(shared, [pids[name] for name in self.workers if name in pids])

    def close(self) -> None:
        """Kill -9 everything this cluster was told to start; what that leaves behind is a mistake of the product."""
        for client in self._clients:
            client.close()
        for command in self._commands:
            if command.poll() is None:
                command.kill()
            command.communicate()
        super().close()
        self.network.close()
        _, left = psutil.wait_procs(self.processes(), timeout=LEFT_BEHIND_S)
        names = []
        for process in left:
            with suppress(psutil.Error):  # it has ended just now
                if process.is_running():
                    names.append(f"{process.pid}: {' '.join(process.cmdline())[:200]}")
                process.kill()
        assert not names, f"left behind {LEFT_BEHIND_S:g} s after all nodes were killed: {names}"

    def members_up(self) -> dict[str, Life]:
        """Workers are no members."""
        return {name: self.up[name] for name in self.managers if name in self.up}

    @staticmethod
    def now() -> float:
        """By the clock of events' `at`."""
        return time.time()

    # Core processes

    def core_processes(self, name: str) -> list[psutil.Process]:
        """Of this worker, in the order in which they were started."""
        found = []
        with suppress(psutil.Error):
            for child in psutil.Process(self.up[name].process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if CORE in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                        found.append(child)
        return sorted(found, key=lambda process: (process.create_time(), process.pid))

    def busy_workers(self) -> list[str]:
        return [name for name in self.workers if name in self.up and self.core_processes(name)]

    def wait_until_idle(self, within_s: float = SOON_S) -> None:
        """No core runs anywhere."""
        self.wait(lambda: not self.busy_workers(), within_s, "every core process to end")

    # What became of jobs

    def owner(self, job: str) -> str:
        """The manager that leads the job, by the last word of a cluster leader; empty before there is one."""
        told = [event for _, event in self.said("job-owner", job=job)]
        return str(max(told, key=lambda event: event["at"])["owner"]) if told else ""

    def wait_for_owner(self, job: str, within_s: float = SOON_S) -> str:
        self.wait(lambda: self.owner(job), within_s, f"job {job} to be led")
        return self.owner(job)

    def running_tasks(self, job: str) -> dict[str, list[int]]:
        """Worker to its attempts of this job that have started and not ended."""
        found: dict[str, list[int]] = {}
        for name in self.workers:
            life = self.up.get(name)
            if life is not None:
                over = {
                    event["attempt"] for kind in ("task-ended", "task-killed") for event in life.said(kind, job=job)
                }
                begun = {event["attempt"] for event in life.said("task-started", job=job)}
                if begun - over:
                    found[name] = sorted(begun - over)
        return found

    def wait_until_running(self, job: str, tasks: int = 1, within_s: float = SOON_S) -> dict[str, list[int]]:
        """Until so many tasks of the job run."""
        self.wait(
            lambda: sum(map(len, self.running_tasks(job).values())) >= tasks, within_s, f"{tasks} tasks of job {job}"
        )
        return self.running_tasks(job)

    # Asking

    def client(self) -> Client:
        """Closed with the cluster."""
        self._clients.append(Client([self.api(name) for name in self.managers]))
        return self._clients[-1]

    def status(self, name: str, path: str) -> int:
        """Of one answer of this manager to a question, without our client, which would ask others too."""
        link = http.client.HTTPConnection(self.api(name), timeout=SOON_S)
        try:
            link.request("GET", path)
            return link.getresponse().status
        finally:
            link.close()

    def talka(self, *words: str, env: dict[str, str] | None = None, timeout_s: float = SOON_S) -> "Ended":
        """A command as a user runs it; --to is given where the command can take it."""
        return self.start_talka(*words, env=env).ended(timeout_s)

    def start_talka(self, *words: str, env: dict[str, str] | None = None) -> "Started":
        process = processes.Popen(
            [*self._client_prefix(), *TALKA, *words],
            cwd=self.folder,
            env={**self._environment, "TALKA_TO": self.to, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._commands.append(process)
        return Started(self, process)

    def _client_prefix(self) -> tuple[str, ...]:
        return self.place(self.managers[0]).prefix

    def start_submit(self, target: str | Path, *options: str, env: dict[str, str] | None = None) -> "Started":
        """`talka submit`, with its result in a file of its own; TARGET travels where the file reads it."""
        self._results += 1
        result = self.folder / f"result-{self._results}.json"
        words = ["submit", str(target), "--json", str(result), "--ui", "ci", *options]
        if Path(target).exists() and "TARGET" in Path(target).read_text():
            words += ["--env", "TARGET"]
        started = self.start_talka(*words, env=env)
        started.result = result
        return started

    def submit(
        self, target: str | Path, *options: str, timeout_s: float = SOON_S, env: dict[str, str] | None = None
    ) -> "Ended":
        """`talka submit` to its end."""
        return self.start_submit(target, *options, env=env).ended(timeout_s)


class Started:
    """A command that runs. Its cluster is heard while it is waited for."""

    def __init__(self, cluster: JobCluster, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.result: Path | None = None
        self._cluster = cluster
        self._out = self._err = ""
        assert process.stdout is not None and process.stderr is not None
        for stream in (process.stdout, process.stderr):
            os.set_blocking(stream.fileno(), False)

    def ended(self, timeout_s: float = SOON_S) -> "Ended":
        until = time.monotonic() + timeout_s
        while self.process.poll() is None:
            self._read()
            if time.monotonic() > until:
                self.process.kill()
                self._read()
                told = f"{self.process.args}\n{self._out}{self._err}\n{self._cluster.story()}"
                raise AssertionError(f"waited {timeout_s:g} s in vain for {told}")
            self._cluster.hear(0.05)
        self._read()
        return Ended(self.process.returncode, self._out, self._err, self.result)

    def wait_for_text(self, text: str, within_s: float = SOON_S) -> str:
        """What it has said, once `text` is in it."""

        def is_said() -> bool:
            self._read()
            return text in self._out + self._err

        self._cluster.wait(is_said, within_s, f"{text!r} from {self.process.args}: {self._out}{self._err}")
        return self._out + self._err

    def job(self, within_s: float = SOON_S) -> str:
        """The id of the job it submitted."""
        text = self.wait_for_text(" as job ", within_s)
        return text.partition(" as job ")[2].split()[0]

    def _read(self) -> None:
        out, err = self.process.stdout, self.process.stderr
        assert out is not None and err is not None
        with suppress(BlockingIOError):
            self._out += _all_of(out.fileno())
        with suppress(BlockingIOError):
            self._err += _all_of(err.fileno())


def _all_of(descriptor: int) -> str:
    parts = b""
    try:
        while data := os.read(descriptor, 1 << 16):
            parts += data
    except BlockingIOError:
        pass
    return parts.decode(errors="replace")


class Ended:
    """What a command said, and what it wrote."""

    def __init__(self, code: int, out: str, err: str, result: Path | None) -> None:
        self.code, self.out, self.err = code, out, err
        self._result = result

    @property
    def text(self) -> str:
        return f"exit {self.code}\n{self.out}{self.err}"

    @property
    def job(self) -> str:
        assert " as job " in self.err, self.text
        return self.err.partition(" as job ")[2].split()[0]

    def document(self) -> Any:
        assert self._result is not None and self._result.exists(), f"no result was written: {self.text}"
        return json.loads(self._result.read_bytes())


@contextmanager
def job_cluster(folder: Path, *numbers: int, start: bool = True, **more: Any) -> Iterator[JobCluster]:
    """Started, closed in the end, and free of internal errors."""
    cluster = JobCluster(folder, *numbers, **more)
    try:
        yield cluster.start_nodes() if start else cluster
        mistakes = cluster.mistakes()
    finally:
        cluster.close()
    assert not any("internal error" in text or "Traceback" in text for text in mistakes.values()), mistakes


def until(is_so: Callable[[], object], cluster: Cluster, within_s: float, what: str) -> None:
    """Of what no event tells: asked for again and again, while the cluster is heard."""
    end = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < end, f"waited {within_s:g} s for {what} in vain\n{cluster.story()}"
        cluster.hear(0.05)
