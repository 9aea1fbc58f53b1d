"""Runs one generator on a core of its own and reads, in the middle of its load, what it gets done and what it takes.

All are measured alike. Requests are those the server counted between two instants, and the processor time is that used
between them, so that starting up, connecting and reporting are in nobody's numbers. Percentiles are the generator's
own.
"""

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import msgspec
import psutil
from load_server import SERVER_CORE, Counted, NotMeasured, Target

GENERATOR_CORE: Final = 1
START_S: Final = 30.0
"""Until all users are connected."""
END_S: Final = 30.0
"""Beyond the time it was asked to run."""
WARM_UP_S: Final = 0.3
POLL_S: Final = 0.02
CONNECTED: Final = 0.98
"""Of the users: some tools count one or two in another way."""


class Used(msgspec.Struct):
    """Processor seconds."""

    user_s: float = 0.0
    system_s: float = 0.0


class Reading(msgspec.Struct):
    """One generator's middle of the load."""

    per_s: float
    requests: int
    main: Used
    """The process that sends."""
    all: Used
    """That one, its parents and its children."""
    rss_bytes: int
    """Of the process that sends."""
    server_busy: float
    """Share of its core."""
    others_busy: float
    """What neither the server nor the generator took, as a share of one core."""
    served: int = 0
    """All that the server answered, from the start to the end of the program."""
    p50_ms: float | None = None
    p99_ms: float | None = None
    lag_p50_ms: float | None = None
    lag_p99_ms: float | None = None
    warnings: list[str] = []

    @property
    def user_us(self) -> float:
        return self.main.user_s / self.requests * 1e6

    @property
    def system_us(self) -> float:
        return self.main.system_s / self.requests * 1e6

    @property
    def all_user_us(self) -> float:
        return self.all.user_s / self.requests * 1e6


class Instant(msgspec.Struct):
    counted: Counted
    used: dict[int, Used]
    server: Used
    busy_s: float


def instant(server: Target, process: psutil.Process) -> Instant:
    used: dict[int, Used] = {}
    # First what can wait for the server, then all of what cannot.
    counted = server.counted()
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            used[one.pid] = Used(times.user, times.system)
    times = server.worker.cpu_times()
    cores = psutil.cpu_times(percpu=True)
    busy_s = 0.0
    for number in (SERVER_CORE, GENERATOR_CORE):
        core = cores[number]
        busy_s += core.user + core.nice + core.system + core.irq + core.softirq + core.steal
    return Instant(counted, used, Used(times.user, times.system), busy_s)


class Run:
    """A generator that runs. `read` once it is under way; `output` when it has ended."""

    def __init__(self, process: "subprocess.Popen[bytes]", server: Target, output: IO[bytes]) -> None:
        self._process = process
        self._server = server
        self._output = output
        self._before = server.counted()
        self._asked_before = server.asked

    @classmethod
    @contextlib.contextmanager
    def started(cls, command: list[str], server: Target, folder: Path) -> "Iterator[Run]":
        with (folder / "output.txt").open("w+b") as output:
            with subprocess.Popen(
                ["taskset", "-c", str(GENERATOR_CORE), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
            ) as process:
                try:
                    yield cls(process, server, output)
                finally:
                    if process.poll() is None:
                        parent = psutil.Process(process.pid)
                        for one in [*parent.children(recursive=True), parent]:
                            with contextlib.suppress(psutil.NoSuchProcess):
                                one.kill()

    def read(self, vus: int, seconds: float) -> Reading:
        """Between two instants so many seconds apart, the first of which comes when all users are connected."""
        self._wait_for(vus)
        time.sleep(WARM_UP_S)
        process = psutil.Process(self._process.pid)
        first = instant(self._server, process)
        time.sleep(max(0.0, first.counted.at_s + seconds - time.monotonic()))
        self._still_runs()
        last = instant(self._server, process)
        self._still_runs()
        requests = last.counted.requests - first.counted.requests - 1
        used = {
            pid: Used(after.user_s - before.user_s, after.system_s - before.system_s)
            for pid, after in last.used.items()
            for before in [first.used.get(pid, Used())]
        }
        main = max(used, key=lambda pid: used[pid].user_s + used[pid].system_s)
        whole = Used(sum(one.user_s for one in used.values()), sum(one.system_s for one in used.values()))
        lasted_s = last.counted.at_s - first.counted.at_s
        served_s = last.server.user_s + last.server.system_s - first.server.user_s - first.server.system_s
        others_s = last.busy_s - first.busy_s - served_s - whole.user_s - whole.system_s
        return Reading(
            per_s=requests / lasted_s,
            requests=max(1, requests),
            main=used[main],
            all=whole,
            rss_bytes=psutil.Process(main).memory_info().rss,
            server_busy=served_s / lasted_s,
            others_busy=max(0.0, others_s / lasted_s),
        )

    def ended(self, reading: Reading, codes: tuple[int, ...]) -> str:
        """What it printed, if it ended with one of the codes; notes in the reading what the server answered in all."""
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            raise NotMeasured(f"it did not end within {END_S:.0f} s of its time") from None
        text = self._text()
        if self._process.returncode not in codes:
            raise NotMeasured(f"it ended with {self._process.returncode}: {last_line(text)}")
        after = self._server.counted()
        reading.served = after.requests - self._before.requests - (self._server.asked - self._asked_before)
        return text

    def _wait_for(self, vus: int) -> None:
        deadline = time.monotonic() + START_S
        while True:
            self._still_runs()
            counted = self._server.counted()
            done = counted.requests - self._before.requests - (self._server.asked - self._asked_before)
            if counted.connections >= CONNECTED * vus and done > vus:
                return
            if time.monotonic() > deadline:
                raise NotMeasured(
                    f"only {counted.connections} of {vus} users were connected after {START_S:.0f} s, {done} requests"
                )
            time.sleep(POLL_S)

    def _still_runs(self) -> None:
        if self._process.poll() is not None:
            raise NotMeasured(f"it ended too early, with {self._process.returncode}: {last_line(self._text())}")

    def _text(self) -> str:
        self._output.seek(0)
        return self._output.read().decode(errors="replace")


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"
