"""Managers, workers and clients as real processes: what they cost beside the core process, and how evenly cores
start."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil
from job_progress import NotMeasured

TALKA: Final = (sys.executable, "-m", "talka")
CORE: Final = "talka.engine.load.core_process"
VUS: Final = 64
READY_S: Final = 30.0
JOB_S: Final = 120.0
WORKERS: Final = 4
BARE_DELAY_NS: Final = 60_000_000
"""Between telling the instant and the instant: as long as a manager gives its workers."""

WORKFLOW: Final = """
from talka import URL, HTTPResponse, Workflow, step

class Plain(Workflow):
    vus = {vus}
    duration = "{seconds}s"

    @step()
    async def get(self, url: URL = "{url}/") -> HTTPResponse:
        return await self.client.http.get(url)
"""

BARE: Final = """
import socket, sys, time
for line in sys.stdin:
    at_ns, port = map(int, line.split())
    time.sleep(max(0, at_ns - time.monotonic_ns()) / 1e9)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET / HTTP/1.1\\r\\nHost: bench\\r\\n\\r\\n")
        connection.recv(4096)
    print("done", flush=True)
"""

ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Overhead(msgspec.Struct):
    """CPU seconds of one submitted test, and requests of it and of the same test by `talka run`."""

    core_s: float
    nodes_s: float
    """Of the process of manager and worker, and of its guard."""
    client_s: float
    requests: int
    requests_alone: int

    @property
    def share(self) -> float:
        return (self.nodes_s + self.client_s) / self.core_s

    @property
    def rate(self) -> float:
        return self.requests / self.requests_alone


class Skews(msgspec.Struct):
    """Milliseconds between the first and the last first request, for each start."""

    jobs_ms: list[float] = []
    bare_ms: list[float] = []
    told_ms: list[float] = []
    """As the result tells it: when each core began, by its own clock."""


# Processes


def others() -> list[int]:
    """Processors for everything but core processes: the server's own where there are only two."""
    return list(range(2, os.cpu_count() or 1)) or [0]


class Node:
    """A command that tells what happens as JSON lines. Ended with the block."""

    def __init__(self, *arguments: str, cpus: list[int] | None = None) -> None:
        self._pinned = ["taskset", "-c", ",".join(map(str, cpus))] if cpus else []
        self.process = subprocess.Popen(
            [*self._pinned, *TALKA, *arguments, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._events: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self._events.append(json.loads(line))
                self._changed.notify_all()

    def told(self, word: str) -> dict[str, Any]:
        """Wait for an event of this name."""
        deadline = time.monotonic() + READY_S
        with self._changed:
            while True:
                found = next((event for event in self._events if event["event"] == word), None)
                if found is not None:
                    return found
                if self.process.poll() is not None or not self._changed.wait(deadline - time.monotonic()):
                    raise NotMeasured(f"a node did not tell {word!r} in {READY_S:.0f} s")

    def __enter__(self) -> "Node":
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(5)


@contextmanager
def demo_server() -> Iterator[str]:
    """Pinned to the first processor; its URL."""
    process = subprocess.Popen(
        ["taskset", "-c", "0", *TALKA, "demo-server", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait()


def cores_of(owner: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in owner.children():
        with contextlib.suppress(psutil.Error):
            if CORE in child.cmdline():
                found.append(child)
    return found


def pin_cores(owner: psutil.Process, until: threading.Event) -> None:
    """Put every core process of the owner on the second processor as soon as it is there."""
    while not until.wait(0.02):
        with contextlib.suppress(psutil.Error):
            for core in cores_of(owner):
                core.cpu_affinity([1])


@contextmanager
def pinning(owner: psutil.Process) -> Iterator[None]:
    over = threading.Event()
    thread = threading.Thread(target=pin_cores, args=(owner, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# What the cluster costs


class Used(msgspec.Struct, frozen=True):
    """CPU seconds of a node so far: its own and those of children that live, and those of children that have ended."""

    nodes_s: float
    ended_s: float

    @classmethod
    def by(cls, node: psutil.Process) -> "Used":
        own = node.cpu_times()
        total_s = own.user + own.system
        for child in node.children():
            with contextlib.suppress(psutil.Error):
                times = child.cpu_times()
                total_s += times.user + times.system
        return cls(total_s, own.children_user + own.children_system)


def overhead(seconds: int) -> Overhead:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="talka-bench-")))
        file = folder / "plain.py"
        url = stack.enter_context(demo_server())
        file.write_text(WORKFLOW.format(vus=VUS, seconds=seconds, url=url))
        alone = run_alone(file, folder)
        arguments = ("up", "--port", "0", "--cores", "1", "--data-dir", str(folder / "up"))
        node = stack.enter_context(Node(*arguments, cpus=others()))
        address = node.told("up")["address"]
        process = psutil.Process(node.process.pid)
        with pinning(process):
            before = Used.by(process)
            client_s, requests = submitted(file, folder, address)
            wait_for_cores(process)
            after = Used.by(process)
    core_s = after.ended_s - before.ended_s
    if core_s <= 0:
        raise NotMeasured("no core process of the cluster used any CPU")
    return Overhead(core_s, after.nodes_s - before.nodes_s, client_s, requests, alone)


def wait_for_cores(owner: psutil.Process) -> None:
    deadline = time.monotonic() + READY_S
    while cores_of(owner):
        if time.monotonic() > deadline:
            raise NotMeasured("a core process outlives its job")
        time.sleep(0.02)


def pinned_command(*arguments: str) -> list[str]:
    return ["taskset", "-c", ",".join(map(str, others())), *TALKA, *arguments]


def submitted(file: Path, folder: Path, address: str) -> tuple[float, int]:
    """CPU seconds of the client, and requests of the test."""
    result = folder / "submitted.json"
    command = pinned_command("submit", str(file), "--to", address, "--ui", "none", "--no-keep", "--json", str(result))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise NotMeasured(f"talka submit ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, requests_of(result)


def run_alone(file: Path, folder: Path) -> int:
    result = folder / "alone.json"
    command = pinned_command("run", str(file), "--cores", "1", "--ui", "none", "--no-keep", "--json", str(result))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    with pinning(psutil.Process(process.pid)):
        if process.wait():
            raise NotMeasured(f"talka run ended with {process.returncode}")
    return requests_of(result)


def requests_of(result: Path) -> int:
    return int(json.loads(result.read_bytes())["totals"]["requests"])


# How evenly cores start


class FirstRequests(asyncio.Protocol):
    """When the first bytes came on each connection."""

    def __init__(self, arrived_ns: list[int]) -> None:
        self._arrived_ns = arrived_ns
        self._is_first = True
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        if self._is_first:
            self._is_first = False
            self._arrived_ns.append(now)
        assert self._transport is not None
        self._transport.write(ANSWER)


async def skews(starts: int) -> Skews:
    found = Skews([], [])
    arrived_ns: list[int] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: FirstRequests(arrived_ns), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="talka-bench-")))
        address = await asyncio.to_thread(cluster_of, WORKERS, folder, stack)
        bare = [await bare_process() for _ in range(WORKERS)]
        try:
            for number in range(1, starts + 1):
                arrived_ns.clear()
                found.told_ms.append(await start_job(address, port, folder / "result.json"))
                found.jobs_ms.append(spread_ms(arrived_ns, f"start {number} of a job"))
                arrived_ns.clear()
                await start_bare(bare, port)
                found.bare_ms.append(spread_ms(arrived_ns, f"start {number} of bare processes"))
                print(
                    f"  start {number:>2}: job {found.jobs_ms[-1]:.2f} ms, bare {found.bare_ms[-1]:.2f} ms", flush=True
                )
        finally:
            for process in bare:
                process.kill()
                await process.wait()
    server.close()
    return found


def cluster_of(workers: int, folder: Path, stack: ExitStack) -> str:
    """The address of the API of a manager with so many workers of one core each."""
    secret = folder / "secret"
    secret.touch(mode=0o600)
    secret.write_text("the secret of a cluster that is only a benchmark\n")
    trusted = ("--secret-file", str(secret))
    here = ("--bind", "127.0.0.1:0", "--api", "127.0.0.1:0", "--data-dir", str(folder / "manager"))
    manager = stack.enter_context(Node("manager", "--name", "manager", *here, *trusted))
    seed = manager.told("ready")["address"]
    api = str(manager.told("api")["address"])
    nodes = []
    for name in [f"w{number}" for number in range(1, workers + 1)]:
        there = ("--seed", seed, "--cores", "1", "--data-dir", str(folder / name))
        nodes.append(stack.enter_context(Node("worker", "--name", name, *there, *trusted)))
    for node in nodes:
        node.told("lease")
    return api


async def start_job(address: str, port: int, result: Path) -> float:
    """One request of each worker's core. Answers with the skew that the result tells."""
    users = ("--vus", str(WORKERS), "--iterations", str(WORKERS), "--json", str(result))
    command = (*TALKA, "submit", f"http://127.0.0.1:{port}/", "--to", address, *users, "--ui", "none", "--no-keep")
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(JOB_S):
        _, said = await process.communicate()
    if process.returncode:
        raise NotMeasured(f"talka submit ended with {process.returncode}: {said.decode().strip()[-300:]}")
    content = await asyncio.to_thread(result.read_bytes)
    return float(msgspec.json.decode(content)["start_skew_ms"])


async def bare_process() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", BARE, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )


async def start_bare(processes: list[asyncio.subprocess.Process], port: int) -> None:
    at_ns = time.monotonic_ns() + BARE_DELAY_NS
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{at_ns} {port}\n".encode())
    for process in processes:
        assert process.stdout is not None
        async with asyncio.timeout(READY_S):
            await process.stdout.readline()


def spread_ms(arrived_ns: list[int], what: str) -> float:
    if len(arrived_ns) != WORKERS:
        raise NotMeasured(f"{what}: {len(arrived_ns)} first requests arrived, not {WORKERS}")
    return (max(arrived_ns) - min(arrived_ns)) / 1e6
