"""A manager with a store, workers with handlers, and `talka up`, as processes; and the ledger in which handlers write
what they did. Every wait has an end and an explanation."""

import http.client
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from talka.work.dags.records import TASK_STATES
from tests.e2e.cluster import SOON_S, Life
from tests.e2e.job_cluster import Ended, JobCluster
from tests.e2e.networks import free_port
from tests.e2e.standstill import TALLY
from tests.processes import TALKA

HANDLER_CORE = "talka.engine.handlers.handler_core"
UP = "up"
HANDLERS = '''
import asyncio
import os
import signal
import time

from talka import command, handler

LEDGER = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def note(word, task, text=""):
    """One line, written at once: the kernel keeps lines of all processes whole."""
    words = (word, task.job, task.id, task.fence, task.attempt, os.getpid(), time.time_ns(), text)
    os.write(LEDGER, (" ".join(map(str, words)) + "\\n").encode())


def is_open(gate):
    """The test opens it, when it has seen what it waits for."""
    return os.path.exists(os.path.join(os.path.dirname(os.environ["LEDGER"]), gate))


def hold(what):
    """So many seconds, or until the gate of this name is open."""
    if isinstance(what, str):
        while not is_open(what):
            time.sleep(0.02)
    else:
        time.sleep(what)


@handler("echo")
async def echo(task):
    note("began", task, ",".join(f"{id}={output}" for id, output in task.inputs.items() if isinstance(output, int)))
    task.log(f"attempt {task.attempt} of {task.id}")
    note("ended", task)
    return {"config": task.config, "inputs": dict(task.inputs)}


@handler("mark")
async def mark(task):
    """Its output is its fence: whoever has read it knows which attempt counts."""
    note("began", task, ",".join(f"{id}={output}" for id, output in task.inputs.items()))
    if task.config:
        await asyncio.sleep(task.config)
    note("ended", task)
    return task.fence


@handler("until")
async def until(task):
    """Until the gate its config names is open, however long that takes the test."""
    note("began", task)
    while not is_open(task.config):
        await asyncio.sleep(0.02)
    note("ended", task)
    return task.fence


@handler("work")
def work(task):
    """A plain function: it holds its core."""
    note("began", task)
    hold(task.config)
    note("ended", task)
    return task.fence


@handler("block")
async def block(task):
    """What no asynchronous function should do: nothing else of its process goes on meanwhile."""
    note("began", task)
    hold(task.config)
    note("ended", task)
    return task.attempt


@handler("fails")
async def fails(task):
    """The first so many attempts."""
    note("began", task)
    if task.attempt <= task.config:
        raise ConnectionError(f"attempt {task.attempt} finds nobody")
    return task.attempt


@handler("wrong")
async def wrong(task):
    note("began", task)
    raise ValueError("it never works")


@handler("steps")
async def steps(task):
    """Goes on where the last attempt was. The first one gets no further than the middle."""
    note("began", task, str(task.checkpoint))
    for number in range(task.checkpoint or 0, task.config):
        if task.checkpoint is None and number == task.config // 2:
            await asyncio.Event().wait()
        task.heartbeat(number + 1)
    return task.config


@handler("end")
async def end(task):
    """Ends its process in the way its config says."""
    note("began", task)
    match task.config:
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit":
            os._exit(3)
        case "memory":
            held = bytearray(1 << 30)
            for place in range(0, len(held), 4096):
                held[place] = 1
    return "it lives"


command("shell", ["sh", "-c", "cat >/dev/null; echo '{\\"by\\": \\"'$TALKA_TASK'\\"}'"])
'''
BEATS = '''

def go_on(task):
    """So often that nobody could begin between two of them unseen."""
    note("alive", task)
    if is_open(task.config):
        note("ended", task)
        return False
    return True


@handler("go-on")
async def go_on_async(task):
    while go_on(task):
        await asyncio.sleep(0.01)


@handler("go-on-blocked")
async def go_on_blocked(task):
    while go_on(task):
        time.sleep(0.01)


@handler("go-on-plain")
def go_on_plain(task):
    while go_on(task):
        time.sleep(0.01)


command("go-on-command", ["sh", "-c", """
read -r given
gate=$(dirname "$LEDGER")/$(echo "$given" | sed 's/.*"config":"\\\\([^"]*\\\\)".*/\\\\1/')
while [ ! -e "$gate" ]; do
  echo "alive $TALKA_JOB $TALKA_TASK $TALKA_FENCE $TALKA_ATTEMPT $$ $(date +%s%N) " >> "$LEDGER"
  sleep 0.01
done
"""])
'''
"""Handlers that tell all the time that they run, until the gate their config names is open. To go after HANDLERS."""


class Line(NamedTuple):
    """Of the ledger."""

    word: str
    job: str
    task: str
    fence: int
    attempt: int
    pid: int
    at_ns: int
    text: str


class StoredTask(NamedTuple):
    job: str
    id: str
    state: str
    attempts: int
    fence: int
    checkpoint: Any
    output: Any


class DagCluster(JobCluster):
    """One manager `m1` with a store and its workers; or, with `is_up`, all of it in one process, `up`."""

    def __init__(
        self,
        folder: Path,
        workers: int = 2,
        cores: int = 1,
        *,
        is_up: bool = False,
        handlers: str = HANDLERS,
        store: Path | None = None,
        environment: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.store = store or folder / "jobs.sqlite"
        self.ledger_file = folder / "ledger"
        self.handlers_file = folder / "handlers.py"
        self.handlers_file.write_text(handlers)
        self.is_up = is_up
        super().__init__(
            folder,
            1,
            0 if is_up else workers,
            cores,
            manager_options=("--store", self.url, *more.pop("manager_options", ())),
            worker_options=("--handlers", str(self.handlers_file), *more.pop("worker_options", ())),
            environment={"LEDGER": str(self.ledger_file), **(environment or {})},
            **more,
        )
        if is_up:
            self.managers = [UP]
        self._lines: list[Line] = []
        self._ledger_bytes = 0

    @property
    def url(self) -> str:
        return f"sqlite:///{self.store}"

    def start_nodes(self, within_s: float = SOON_S) -> "DagCluster":
        if self.is_up:
            self.start_up(within_s)
        else:
            super().start_nodes(within_s)
        return self

    def wait_until_ready(self, within_s: float = SOON_S) -> None:
        """And what its store has was read: that goes on beside the election, and until then it tells of no jobs."""
        super().wait_until_ready(within_s)
        self.wait_until_loaded(within_s)

    def wait_until_loaded(self, within_s: float = SOON_S) -> None:
        def is_so() -> bool:
            self.hear(0.05)
            with suppress(ConnectionRefusedError):  # it speaks with others before it listens for clients
                return self.ask_api_once("GET", "/readyz").status == 200
            return False

        self.wait(is_so, within_s, f"{self.managers[0]} to be ready")

    def start_up(self, within_s: float = SOON_S, *options: str) -> Life:
        if UP not in self.apis:
            self.apis[UP] = f"127.0.0.1:{free_port()}"
        words = [
            *(*TALKA, "up", "--data-dir", str(self.data(UP)), "--cores", str(self.cores)),
            *("--port", self.apis[UP].rpartition(":")[2], "--store", self.url, "--handlers", str(self.handlers_file)),
            *("--json", *options),
        ]
        life = self._spawn(UP, words, self._environment)
        self.wait(lambda: life.said("up") or life.is_over, within_s, "talka up to be ready")
        assert life.said("up"), life.errors.read_text()
        self.wait_until_loaded(within_s)
        return life

    def core_processes(self, name: str) -> list[psutil.Process]:
        """Of this node, those that run handlers, in the order in which they were started."""
        found = []
        with suppress(psutil.Error):
            for child in psutil.Process(self.up[name].process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if HANDLER_CORE in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                        found.append(child)
        return sorted(found, key=lambda process: (process.create_time(), process.pid))

    # What handlers did

    def ledger(self, *, task: str = "", word: str = "", job: str = "") -> list[Line]:
        self._read_ledger()
        return [
            line
            for line in self._lines
            if (not task or line.task == task) and (not word or line.word == word) and (not job or line.job == job)
        ]

    def _read_ledger(self) -> None:
        """What was written since the last time."""
        if not self.ledger_file.exists():
            return
        with self.ledger_file.open("rb") as file:
            file.seek(self._ledger_bytes)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._lines += [_line(text) for text in whole.decode().splitlines()]
        self._ledger_bytes += len(whole) + len(newline)

    def wait_for_lines(self, number: int = 1, within_s: float = SOON_S, **which: str) -> list[Line]:
        """Nobody tells of lines: they are looked for."""

        def is_there() -> bool:
            self.hear(0.02)
            return len(self.ledger(**which)) >= number

        self.wait(is_there, within_s, f"{number} lines {which} in the ledger")
        return self.ledger(**which)

    def wait_until_begun_again(self, job: str, within_s: float = SOON_S) -> None:
        """A task of this job that tells that it runs was given out once more than until now."""
        before = {line.fence for line in self.ledger(job=job, word="alive")}

        def is_so() -> bool:
            self.hear(0.02)
            return bool({line.fence for line in self.ledger(job=job, word="alive")} - before)

        self.wait(is_so, within_s, f"job {job} to begin elsewhere")

    def wait_until_leased(self, within_s: float = SOON_S) -> None:
        """Every worker is heard, and holds a lease."""

        def is_so() -> bool:
            self.hear(0.05)
            workers = self.ask_api("GET", "/v1/workers").good()
            return set(self.workers) <= {one["name"] for one in workers if one["lease_ms"]}

        self.wait(is_so, within_s, f"{', '.join(self.workers)} to have a lease")

    def open_gate(self, name: str) -> None:
        """Every `until`, `work` and `block` with this config goes on."""
        (self.folder / name).touch()

    # What the store has

    def stored(self) -> list[StoredTask]:
        """All tasks of all jobs, read beside whoever writes."""
        with closing(sqlite3.connect(f"file:{self.store}?mode=ro", uri=True)) as connection:
            rows = connection.execute(
                "SELECT j.id, t.id, t.state, t.attempts, t.fence, t.checkpoint, t.output FROM talka_tasks t"
                " JOIN talka_jobs j ON j.number = t.key >> 32 ORDER BY t.key"
            ).fetchall()
        return [
            StoredTask(*row[:2], TASK_STATES[row[2]].value, *row[3:5], _value(row[5]), _value(row[6])) for row in rows
        ]

    # Asking

    def pipeline(self, name: str, *tasks: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> Path:
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps({"name": name, "tasks": tasks, **({"settings": settings} if settings else {})}))
        return file

    def dag(self, name: str, *tasks: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> str:
        """Submitted over HTTP, whether its workers are there yet or not; its id."""
        body = {"kind": "dag", "name": name, "tasks": tasks, **({"settings": settings} if settings else {})}
        body["wait_for_workers"] = True
        answer = self.ask_api("POST", "/v1/jobs", body)
        assert answer.status == 201, answer
        return str(answer.body["id"])

    def ask_api(
        self, method: str, path: str, body: Any = None, *, timeout_s: float = SOON_S, **more: str
    ) -> "ApiAnswer":
        """As `ask_api_once`, and again as long as it is told to come back, as every client does: a manager that a busy
        machine kept waiting refuses what it is asked for a moment, and one that stood still leads nobody for a
        while. How often that was so is told beside what else the machine was allowed."""
        again = () if isinstance(body, Iterator) else (429, 503) if method == "GET" else (429,)
        until = time.monotonic() + timeout_s
        while True:
            answer = self.ask_api_once(method, path, body, timeout_s=timeout_s, **more)
            if answer.status not in again or time.monotonic() >= until:
                return answer
            TALLY.add_asked(answer.status)
            self.listen(0.2)

    def ask_api_once(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: str = "application/json",
        token: str = "",
        key: str = "",
        timeout_s: float = SOON_S,
    ) -> "ApiAnswer":
        """`body` is bytes, parts of bytes that are sent as they come, or what is to be JSON."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        if key:
            headers["idempotency-key"] = key
        content: bytes | Iterator[bytes] | None = None
        if body is not None:
            content = body if isinstance(body, bytes | Iterator) else json.dumps(body).encode()
            headers["content-type"] = kind
        connection = http.client.HTTPConnection(self.api(self.managers[0]), timeout=timeout_s)
        try:
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        with suppress(ValueError):
            return ApiAnswer(answer.status, json.loads(text), dict(answer.getheaders()))
        return ApiAnswer(answer.status, text.decode(errors="replace"), dict(answer.getheaders()))

    def facts(self, job: str) -> Any:
        return self.ask_api("GET", f"/v1/jobs/{job}").good()

    def tasks(self, job: str) -> dict[str, Any]:
        """By their id, as the API shows them."""
        found: dict[str, Any] = {}
        cursor = ""
        while True:
            page = self.ask_api(
                "GET", f"/v1/jobs/{job}/tasks?limit=500" + (f"&cursor={cursor}" if cursor else "")
            ).good()
            found |= {task["id"]: task for task in page["items"]}
            cursor = page["next"]
            if not cursor:
                return found

    def wait_for_end(self, job: str, within_s: float = SOON_S) -> Any:
        def has_ended() -> bool:
            self.hear(0.05)
            return self.facts(job)["exit_code"] is not None

        self.wait(has_ended, within_s, f"job {job} to end: {self.facts(job)}")
        return self.facts(job)

    def wait_for_task(self, job: str, task: str, state: str, within_s: float = SOON_S) -> Any:
        def is_so() -> bool:
            self.hear(0.05)
            return bool(self.ask_api("GET", f"/v1/jobs/{job}/tasks/{task}").good()["state"] == state)

        self.wait(is_so, within_s, f"task {task} of job {job} to be {state}")
        return self.ask_api("GET", f"/v1/jobs/{job}/tasks/{task}").good()

    def metric(self, name: str) -> float:
        text = self.ask_api("GET", "/metrics").good()
        lines = [line for line in text.splitlines() if line.startswith(f"talka_{name} ")]
        return float(lines[0].split()[1]) if lines else 0.0

    def document(self, ended: Ended) -> tuple[Any, dict[str, Any]]:
        """The job and its tasks by id, as `talka submit --json` wrote them."""
        document = ended.document()
        return document["job"], {task["id"]: task for task in document["tasks"]}


class ApiAnswer(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]

    def good(self) -> Any:
        assert self.status == 200, self
        return self.body


def one_after_the_other(lines: list[Line]) -> None:
    """Each attempt had told for the last time that it runs before the next one told it for the first time."""
    times: dict[int, list[int]] = {}
    for line in lines:
        times.setdefault(line.fence, []).append(line.at_ns)
    ordered = [times[fence] for fence in sorted(times)]
    assert len(ordered) > 1, "it never began again"
    for first, second in zip(ordered, ordered[1:], strict=False):
        assert max(first) < min(second), f"both ran for {(max(first) - min(second)) / 1e9:.3f} s"


def _line(text: str) -> Line:
    word, job, task, fence, attempt, pid, at_ns, *rest = text.split(" ")
    return Line(word, job, task, int(fence), int(attempt), int(pid), int(at_ns), " ".join(rest))


def _value(content: bytes) -> Any:
    return json.loads(content) if content else None


@contextmanager
def dag_cluster(folder: Path, *numbers: int, start: bool = True, **more: Any) -> Iterator[DagCluster]:
    """Started, closed in the end, and free of internal errors."""
    cluster = DagCluster(folder, *numbers, **more)
    try:
        yield cluster.start_nodes() if start else cluster
        mistakes = cluster.mistakes()
    finally:
        cluster.close()
    assert not any("internal error" in text or "Traceback" in text for text in mistakes.values()), mistakes


def kill_process(pid: int) -> None:
    """kill -9; gone already is as good."""
    with suppress(ProcessLookupError):
        os.kill(pid, 9)
