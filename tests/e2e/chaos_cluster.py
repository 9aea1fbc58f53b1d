"""The cluster that chaos strikes, and what is true of it besides what it says: a server's count and a ledger."""

import asyncio
import ctypes
import json
import math
import os
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from talka.client.client import Client
from talka.clock import utc_now
from talka.errors import TalkaError
from talka.net.certificates import issue, make_authority
from talka.units import SECOND
from tests import processes
from tests.e2e.job_cluster import CORE, JobCluster, until
from tests.e2e.moved_clock import MovedClock
from tests.e2e.networks import Loopback, Namespaces, Network, part
from tests.processes import TALKA

LEDGER = Path(__file__).parent / "workflows" / "ledger.py"
MANAGERS, WORKERS = 3, 4
OBSERVER, CLIENT, TARGET = "observer", "client", "target"
HOSTILE = "x1"
"""Has a worker's certificate, and is none."""
TARGET_PORT = 8400
CLONE_NEWNET = 0x40000000
TOKEN_KEY = "token.key"
SILENCE_NS = SECOND
"""Counts of a job that runs well grow several times in it."""
UNSHOWN = 100
"""Iterations at the end of a job that nobody need have seen before its result."""


class ChaosCluster(JobCluster):
    """Three managers and four workers with a core each, a server to aim at, and a client that may be cut off as well.

    Where namespaces can be made, this process moves into one of its own, so that every link can be cut.
    """

    def __init__(self, folder: Path, network: Network | None = None) -> None:
        self._own_namespace: int | None = None
        self.can_cut = isinstance(network, Namespaces)
        super().__init__(folder, MANAGERS, WORKERS, 1, network=network or Loopback(), preset="default")
        self.certs = self._make_certs()
        self.token = self._make_token() if self.can_cut else None
        self.clocks: dict[str, MovedClock] = {}
        """Of managers, where clocks can be moved."""
        if not MovedClock.why_not():
            for name in self.managers:
                (folder / f"clock-{name}").mkdir()
                self.clocks[name] = MovedClock(folder / f"clock-{name}")
                self.own_environment[name] = self.clocks[name].environment
        self._server: subprocess.Popen[str] | None = None

    def open(self) -> "ChaosCluster":
        if self.can_cut:
            self._enter(self.place(OBSERVER).prefix[-1])
        self._start_server()
        self.start_nodes()
        self.wait_until_whole()
        return self

    def close(self) -> None:
        for life in self.up.values():  # one that is stopped cannot be waited for
            with suppress(ProcessLookupError):
                life.process.kill()
        if self._server is not None:
            self._server.kill()
            self._server.communicate()
        if self._own_namespace is not None:
            self._set_namespace(self._own_namespace)
            os.close(self._own_namespace)
        super().close()

    def _make_certs(self) -> Path:
        """Every node has one, and so have two who are no nodes: whoever asks, and whoever misuses a worker's."""
        certs = self.folder / "certs"
        make_authority(certs, "default", "default", now=utc_now())
        for name in self.managers:
            host = self.place(name).bind.rpartition(":")[0]
            issue(certs, name=name, role="manager", hosts=(host,), now=utc_now())
        for name in (*self.workers, HOSTILE):
            issue(certs, name=name, role="worker", now=utc_now())
        issue(certs, name="client", role="client", now=utc_now())
        options = ["--certs", str(certs)]
        self._manager_options += options
        self._worker_options += options
        self._environment["TALKA_CA"] = str(certs / "ca.crt")
        return certs

    def _make_token(self) -> str:
        """An API that is not on the loopback wants one."""
        key = self.folder / TOKEN_KEY
        talka = [*TALKA, "token"]
        processes.run([*talka, "key", "-o", str(key)], check=True, timeout=60, capture_output=True)
        words = [*talka, "issue", "--key-file", str(key), "--role", "operator", "--name", "chaos"]
        self._manager_options += ["--token-key-file", str(key)]
        return processes.run(words, check=True, timeout=60, capture_output=True, text=True).stdout.strip()

    def _enter(self, name: str) -> None:
        self._own_namespace = os.open("/proc/self/ns/net", os.O_RDONLY)
        other = os.open(f"/run/netns/{name}", os.O_RDONLY)
        try:
            self._set_namespace(other)
        finally:
            os.close(other)

    @staticmethod
    def _set_namespace(descriptor: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")

    def _start_server(self) -> None:
        prefix: tuple[str, ...] = ()
        host, port = "127.0.0.1", 0
        if self.can_cut:
            place = self.place(TARGET)
            host, port, prefix = place.bind.rpartition(":")[0], TARGET_PORT, place.prefix
        words = [*prefix, *TALKA, "demo-server", "--host", host, "--port", str(port)]
        self._server = processes.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self._server.stdout is not None
        self.target = self._server.stdout.readline().split()[-1]
        self._environment["TARGET"] = self.target

    # Commands

    def _client_prefix(self) -> tuple[str, ...]:
        return self.place(CLIENT).prefix if self.can_cut else ()

    def start_talka(self, *words: str, env: dict[str, str] | None = None) -> Any:
        return super().start_talka(*words, env={**(env or {}), **({"TALKA_TOKEN": self.token} if self.token else {})})

    def asks(self) -> Client:
        """For this process."""
        return Client([self.api(name) for name in self.managers], self.token, str(self.certs / "ca.crt"))

    # Cuts

    def cut_off(self, name: str) -> None:
        """A manager from everyone; a worker or a client from the managers, so that what it does then is still seen."""
        others = [*self.managers, *self.workers, CLIENT, OBSERVER] if name in self.managers else self.managers
        part(self.network, [name], [other for other in others if other != name])

    # Floods

    def flood(self, manager: str) -> "subprocess.Popen[str]":
        """Fifty clients ask it for more than it can answer, until they are told to end; see `tests/e2e/flood.py`."""
        words = [*self._client_prefix(), sys.executable, "-m", "tests.e2e.flood", self.api(manager)]
        words += ["--ca", str(self.certs / "ca.crt")]
        if self.token:
            words += ["--key-file", str(self.folder / TOKEN_KEY)]
        return processes.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def overload_level(self, manager: str) -> float:
        content = self._read(manager, "/metrics") or b""
        found = [line for line in content.decode().splitlines() if line.startswith("talka_overload_level ")]
        return float(found[0].split()[1]) if found else math.inf

    # Truth

    def served(self) -> int:
        with urllib.request.urlopen(f"{self.target}/count", timeout=10) as answer:
            return int(json.load(answer)["requests"])

    def result_at(self, manager: str, job: str) -> bytes | None:
        """The result as this manager gives it; None if it does not."""
        return self._read(manager, f"/v1/jobs/{job}/result")

    def _read(self, manager: str, path: str) -> bytes | None:
        headers = {"authorization": f"Bearer {self.token}"} if self.token else {}
        request = urllib.request.Request(f"https://{self.api(manager)}{path}", headers=headers)
        trust = ssl.create_default_context(cafile=str(self.certs / "ca.crt"))
        try:
            with urllib.request.urlopen(request, timeout=40, context=trust) as answer:
                return bytes(answer.read())
        except (urllib.error.URLError, OSError):
            return None

    def cores_left(self) -> list[psutil.Process]:
        """Of any worker, also of one that is dead."""
        found = []
        for process in self.processes():
            with suppress(psutil.Error):
                if CORE in process.cmdline():
                    found.append(process)
        return found

    # Between rounds

    def make_whole(self) -> None:
        """Whoever is down is started again, and all have found each other."""
        if self.can_cut:
            self.network.mend()
        for clock in self.clocks.values():
            clock.set(0)
        for name in [*self.managers, *self.workers]:
            if name not in self.up or self.up[name].is_over:
                self.up.pop(name, None)
                self.restart(name)
        self.wait_until_whole()

    def wait_until_whole(self, within_s: float = 40) -> None:
        self.wait_for_leader(within_s)
        until(self._is_whole, self, within_s, f"every node to be well: {self.faults()}")

    def _is_whole(self) -> bool:
        return not self.faults()

    def faults(self) -> str:
        """What is not as it should be before a round."""

        async def ask() -> str:
            ca = str(self.certs / "ca.crt")
            client = Client([self.api(name) for name in self.managers], self.token, ca, question_s=3.0)
            workers = {worker.name: worker for worker in await client.workers()}
            view = await client.cluster()
            told = [
                f"{name} {worker.state if worker else 'is not there'} with {worker.free if worker else 0} free"
                for name in self.workers
                for worker in [workers.get(name)]
                if worker is None or worker.state != "healthy" or worker.free != 1
            ]
            told += [f"{manager.name} is {manager.state}" for manager in view.managers if manager.state != "active"]
            return ", ".join(told)

        try:
            return asyncio.run(ask())
        except TalkaError as error:
            return str(error)


class Ledger:
    """What the steps of one job wrote down themselves: when each iteration was done, by core process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def lines(self) -> dict[int, list[int]]:
        found = {}
        for file in sorted(self.folder.iterdir()):
            whole, _, _ = file.read_text().rpartition("\n")
            found[int(file.name)] = [int(line) for line in whole.split()]
        return found

    def count(self) -> int:
        return sum(map(len, self.lines().values()))

    def first_of_others(self, known: list[int], after_ns: int) -> int | None:
        """When the first iteration was done by a core that is none of these."""
        times = [
            time_ns
            for pid, times in self.lines().items()
            if pid not in known
            for time_ns in times
            if time_ns > after_ns
        ]
        return min(times, default=None)

    def last_of(self, pids: list[int] | None = None) -> int:
        lines = self.lines()
        return max((time_ns for pid in (lines if pids is None else pids) for time_ns in lines.get(pid, [])), default=0)


class Watcher:
    """Somebody else who watches a job: how much had been counted, at which instant, and whether the end came."""

    def __init__(self, client: Client, job: str) -> None:
        self.seen: list[tuple[int, int]] = []
        self.problem = ""
        self.has_ended = False
        self.ended_ns = 0
        self._client, self._job = client, job
        self._thread = threading.Thread(target=lambda: asyncio.run(self._watch()), daemon=True)
        self._thread.start()

    async def _watch(self) -> None:
        try:
            async for update in self._client.watch(self._job):
                if update.workflows:  # others only tell how the job stands
                    counted = sum(run.tally.iterations for run in update.workflows if run.tally is not None)
                    self.seen.append((time.monotonic_ns(), counted))
                self.has_ended = update.final
            self.ended_ns = time.monotonic_ns()
        except TalkaError as error:
            self.problem = str(error)

    def join(self, within_s: float) -> bool:
        self._thread.join(within_s)
        return not self._thread.is_alive() and self.has_ended

    def counted(self) -> int:
        return max((counted for _, counted in self.seen), default=0)

    def decrease(self) -> str:
        """Where counts went down, which they never do."""
        for (_, before), (_, after) in zip(self.seen, self.seen[1:], strict=False):
            if after < before:
                return f"the count went from {before} to {after}"
        return ""

    def flows_again_ns(self, struck_ns: int, all_counted: int) -> int | None:
        """Where much of `all_counted` was never shown, counts grew again with the end of the job."""
        seen = self.seen
        if self.has_ended and all_counted - self.counted() > UNSHOWN:
            seen = [*seen, (self.ended_ns, all_counted)]
        return flows_again_ns(seen, struck_ns)


def flows_again_ns(seen: list[tuple[int, int]], struck_ns: int) -> int | None:
    """When counts grew again after the blow: the end of the last silence, or the first growth if there was none."""
    counted = max((counted for at_ns, counted in seen if at_ns <= struck_ns), default=0)
    growths = []
    for at_ns, now_counted in seen:
        if at_ns > struck_ns and now_counted > counted:
            growths.append(at_ns)
            counted = now_counted
    if not growths:
        return None
    pairs = zip([struck_ns, *growths], growths, strict=False)
    return max((end for begin, end in pairs if end - begin > SILENCE_NS), default=growths[0])
