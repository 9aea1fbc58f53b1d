"""Does a change cost a node at rest anything? Clusters of two wheels, up side by side, measured in the same seconds.

OLD and NEW are revisions of this repository or wheels (NEW also "." for the files as they are). Of each there are three
managers, two workers and two members that do nothing. Told are, for each role, the CPU time of a node, and the bytes
that it sends in datagrams: medians of the ratios of windows, with the range between which half of them are. CPU time is
the scheduler's own count in nanoseconds, of the node and the processes that it started. Exits with 1 if a median is
above the bound.
"""

import argparse
import json
import platform
import re
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psutil
from load import aligned, say
from load_server import NotMeasured
from wheels import HOME, ROOT, Wheel, wheel_of

RATIO_MOST: Final = 1.10
SETTLE_S: Final = 20.0
READY_S: Final = 180.0
ROLES: Final = {"manager": ("m1", "m2", "m3"), "worker": ("w1", "w2"), "member": ("x1", "x2")}
SENT: Final = re.compile(r"^talka_datagram_bytes_sent_total (\d+)", re.MULTILINE)


class Settings(argparse.Namespace):
    old: str
    new: str
    windows: int
    seconds: float
    output: Path


def settings_of(arguments: list[str]) -> Settings:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", help="a revision or a wheel")
    parser.add_argument("new", nargs="?", default=".", help="likewise; . (as it comes) for the files as they are")
    parser.add_argument("--windows", type=int, default=9, help="windows that are measured (9)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each (20)")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench-idle.json", help="JSON file")
    settings = parser.parse_args(arguments, namespace=Settings())
    if settings.windows < 3 or settings.seconds < 1:
        parser.error("--windows must be at least 3, and --seconds 1")
    return settings


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


class IdleCluster:
    """Nodes of one wheel. Ended with the block."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._python = python
        self._folder = folder
        folder.mkdir()
        self._secret = folder / "secret"
        self._secret.write_text(secrets.token_urlsafe(32) + "\n")
        self._secret.chmod(0o600)
        names = [name for of_role in ROLES.values() for name in of_role]
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "IdleCluster":
        seeds = [f"--seed=127.0.0.1:{self._ports[name]}" for name in ROLES["manager"]]
        voters = ",".join(ROLES["manager"])
        for role, names in ROLES.items():
            for name in names:
                own = f"127.0.0.1:{self._ports[name]}"
                words = {
                    "manager": ["--bind", own, "--voters", voters, "--api", "127.0.0.1:0"],
                    "worker": ["--cores", "1"],
                    "member": ["--bind", own],
                }[role]
                self._start(role, name, [*words, *seeds])
        return self

    def _start(self, role: str, name: str, words: list[str]) -> None:
        command = [str(self._python), "-m", "talka", role, "--name", name, *words]
        command += ["--secret-file", str(self._secret), "--data-dir", str(self._folder / name), "--json"]
        log = (self._folder / f"{name}.log").open("wb")
        with log:
            self._nodes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def __exit__(self, *exception: object) -> None:
        for process in self._nodes.values():
            process.terminate()
        for process in self._nodes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def settle(self) -> None:
        """Until every worker is registered; then for a while."""
        deadline = time.monotonic() + READY_S
        while not all(b'"lease"' in self._said(name) for name in ROLES["worker"]):
            gone = [name for name, process in self._nodes.items() if process.poll() is not None]
            if gone or time.monotonic() > deadline:
                name = gone[0] if gone else ROLES["worker"][0]
                last = self._said(name).decode(errors="replace").strip().splitlines()[-1:]
                raise NotMeasured(f"{name} did not come up: {' '.join(last) or 'it said nothing'}")
            time.sleep(0.2)

    def _said(self, name: str) -> bytes:
        return (self._folder / f"{name}.log").read_bytes()

    def cpu_ns(self, name: str) -> int:
        try:
            own = psutil.Process(self._nodes[name].pid)
            return sum(scheduled_ns(process.pid) for process in [own, *own.children(recursive=True)])
        except psutil.Error:
            raise NotMeasured(f"{name} has ended") from None

    def sent(self, name: str) -> int:
        """Bytes in datagrams; 0 of a worker, which nobody can ask."""
        if name in ROLES["worker"]:
            return 0
        asked = [str(self._python), "-m", "talka", "cluster", "metrics", "--to", f"127.0.0.1:{self._ports[name]}"]
        asked += ["--secret-file", str(self._secret)]
        told = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=READY_S).stdout
        found = SENT.search(told)
        if found is None:
            raise NotMeasured(f"{name} tells no metrics")
        return int(found[1])


def scheduled_ns(pid: int) -> int:
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread that has ended
    return total


def measured(clusters: dict[str, IdleCluster], settings: Settings) -> dict[str, dict[str, list[float]]]:
    """For each figure and wheel: one value a window. CPU is told in µs a second and node."""
    found: dict[str, dict[str, list[float]]] = {}
    for window in range(settings.windows):
        before = {key: cluster_cpu(cluster) for key, cluster in clusters.items()}
        began = time.monotonic()
        time.sleep(settings.seconds)
        took_s = time.monotonic() - began
        for key, cluster in clusters.items():
            after = cluster_cpu(cluster)
            for role, names in ROLES.items():
                spent = sum(after[name] - before[key][name] for name in names) / len(names)
                found.setdefault(f"{role}: CPU, µs a second", {}).setdefault(key, []).append(spent / 1000 / took_s)
        say(f"window {window + 1} of {settings.windows}")
    return found


def cluster_cpu(cluster: IdleCluster) -> dict[str, int]:
    return {name: cluster.cpu_ns(name) for names in ROLES.values() for name in names}


def sent_by(clusters: dict[str, IdleCluster]) -> dict[str, dict[str, int]]:
    """By role, of nodes that can be asked."""
    roles = [role for role in ROLES if role != "worker"]
    return {key: {r: sum(cluster.sent(name) for name in ROLES[r]) for r in roles} for key, cluster in clusters.items()}


def main() -> int:
    settings = settings_of(sys.argv[1:])
    HOME.mkdir(parents=True, exist_ok=True)
    wheels = {"old": Wheel("old", wheel_of(settings.old)), "new": Wheel("new", wheel_of(settings.new))}
    for wheel in wheels.values():
        wheel.install()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        clusters = {
            key: stack.enter_context(IdleCluster(wheel.python, Path(folder) / key)) for key, wheel in wheels.items()
        }
        for cluster in clusters.values():
            cluster.settle()
        time.sleep(SETTLE_S)
        before = sent_by(clusters)
        found = measured(clusters, settings)
        after = sent_by(clusters)
    span_s = settings.windows * settings.seconds
    for role in before["old"]:
        title = f"{role}: datagrams, bytes a second"
        found[title] = {key: [(after[key][role] - before[key][role]) / span_s / len(ROLES[role])] for key in wheels}
    rows, is_fine = [["", "old", "new", "new / old", "half of them"]], True
    for title, values in found.items():
        ratios = sorted(new / old for old, new in zip(values["old"], values["new"], strict=True))
        ratio = statistics.median(ratios)
        is_fine = is_fine and ratio <= RATIO_MOST
        quarter = len(ratios) // 4
        spread = f"{ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f}"
        old, new = (statistics.median(values[key]) for key in ("old", "new"))
        rows.append([title, f"{old:,.0f}", f"{new:,.0f}", f"{ratio:.3f}", spread])
    say(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {platform.machine()}, {psutil.cpu_count()} processors")
    say(aligned(rows))
    say(f"every median at most {RATIO_MOST:g}: {'yes' if is_fine else 'NO'}")
    settings.output.parent.mkdir(parents=True, exist_ok=True)
    settings.output.write_text(json.dumps(found, indent=1))
    return 0 if is_fine else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NotMeasured as problem:
        say(f"not measured: {problem}")
        sys.exit(1)
