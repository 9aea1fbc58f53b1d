"""What the bench of members needs of the machine: a network of its own, CPU quotas, and what a process costs."""

import ctypes
import fcntl
import os
import shutil
import socket
import statistics
import struct
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from member_processes import LIBC

NEW_USER = 0x1000_0000  # CLONE_NEWUSER
NEW_NETWORK = 0x4000_0000  # CLONE_NEWNET
SET_FLAGS = 0x8914  # SIOCSIFFLAGS
UP_AND_RUNNING = 0x41  # IFF_UP | IFF_RUNNING
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def have(program: str, package: str) -> bool:
    if shutil.which(program) is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for words in (["update", "-qq"], ["install", "-y", "-qq", package]):
            subprocess.run(
                ["apt-get", *words], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=600
            )
    return shutil.which(program) is not None


# The network


def enter_own_network() -> str:
    """Move this process into a network of its own, where only the bench's traffic counts. Why not, if not."""
    if not hasattr(LIBC, "unshare"):
        return "this system has no network namespaces"
    uid = os.geteuid()
    if LIBC.unshare(NEW_NETWORK if uid == 0 else NEW_USER | NEW_NETWORK) != 0:
        return f"no network namespace ({os.strerror(ctypes.get_errno())})"
    if uid != 0:
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1\n")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sH14x", b"lo", UP_AND_RUNNING))
    return ""


def bytes_sent() -> int:
    """By all on the loopback of this network, IP and UDP or TCP headers included."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        device, _, counts = line.partition(":")
        if device.strip() == "lo":
            return int(counts.split()[8])
    return 0


class Backlog(NamedTuple):
    queued_bytes: int
    """Waiting in the kernel, with its overhead."""
    dropped: int


def datagram_backlog(ports: Iterable[int]) -> dict[int, Backlog]:
    """What waits unread at each of these UDP ports."""
    found = {port: Backlog(0, 0) for port in ports}
    for line in Path("/proc/net/udp").read_text().splitlines()[1:]:
        fields = line.split()
        port = int(fields[1].rpartition(":")[2], 16)
        if port in found:
            found[port] = Backlog(int(fields[4].partition(":")[2], 16), int(fields[-1]))
    return found


# Quotas


class Quotas:
    """CPU groups of the bench's own, one for each slowed process. Use in a `with`."""

    def __init__(self) -> None:
        self._groups: list[Path] = []
        self._root, self._is_v2 = _cpu_hierarchy()
        self._own = self._root / f"talka-bench-{os.getpid()}" if self._root else None
        self.why_not = "" if self._own else "no writable cgroup with a cpu controller"
        if self._own is not None:
            try:
                self._own.mkdir()
                if self._is_v2:
                    (self._own / "cgroup.subtree_control").write_text("+cpu")
            except OSError as error:
                self.why_not = f"no CPU group can be made: {error}"

    def __enter__(self) -> "Quotas":
        return self

    def __exit__(self, *_: object) -> None:
        for group in [*self._groups, *([self._own] if self._own else [])]:
            for _attempt in range(50):  # a group empties only when its last process is gone
                try:
                    group.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.1)

    def limit(self, pids: Iterable[int], percent: float, period_us: int) -> Path:
        """These processes together may use so much of a core from now on."""
        assert self._own is not None
        group = self._own / f"slow{len(self._groups)}"
        group.mkdir()
        self._groups.append(group)
        quota_us = max(1000, round(period_us * percent / 100))  # the kernel takes no less than 1 ms
        if self._is_v2:
            (group / "cpu.max").write_text(f"{quota_us} {period_us}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(period_us))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        return group


def throttled_share(group: Path) -> float:
    """In how many of its periods the group used up its quota."""
    counts = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    return int(counts["nr_throttled"]) / max(1, int(counts["nr_periods"]))


def _cpu_hierarchy() -> tuple[Path | None, bool]:
    for line in Path("/proc/mounts").read_text().splitlines():
        _, folder, kind, options, *_ = line.split()
        root = Path(folder)
        if kind == "cgroup" and "cpu" in options.split(",") and os.access(root, os.W_OK):
            return root, False
        if kind == "cgroup2" and "cpu" in (root / "cgroup.controllers").read_text().split():
            try:
                (root / "cgroup.subtree_control").write_text("+cpu")
            except OSError:
                continue
            return root, True
    return None, False


# What a process costs


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


def proportional_bytes(pid: int) -> int | None:
    """Shared pages counted by share; None where the kernel does not say."""
    try:
        rolled_up = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in rolled_up.splitlines() if line.startswith("Pss:")), None)


class Cost(NamedTuple):
    """Of one member of an idle group."""

    bytes_per_s: float | None
    cpu_percent: float
    cpu_percent_worst: float
    resident_mb: float
    resident_mb_worst: float
    proportional_mb: float | None


class Meter:
    """Measures from its making to `read`."""

    def __init__(self, pids: list[int], *, own_network: bool) -> None:
        self._pids = pids
        self._own_network = own_network
        self._cpu_s = [cpu_seconds(pid) for pid in pids]
        self._sent = bytes_sent()
        self._at = time.monotonic()

    def read(self) -> Cost:
        seconds = time.monotonic() - self._at
        sent = (bytes_sent() - self._sent) / seconds / len(self._pids)
        percents = [
            (cpu_seconds(pid) - before) / seconds * 100 for pid, before in zip(self._pids, self._cpu_s, strict=True)
        ]
        resident = [resident_bytes(pid) / 1e6 for pid in self._pids]
        shares = [share / 1e6 for pid in self._pids if (share := proportional_bytes(pid)) is not None]
        return Cost(
            bytes_per_s=sent if self._own_network else None,
            cpu_percent=statistics.fmean(percents),
            cpu_percent_worst=max(percents),
            resident_mb=statistics.median(resident),
            resident_mb_worst=max(resident),
            proportional_mb=statistics.median(shares) if shares else None,
        )
