"""No process that Talka started outlives its owner: groups, a guard, and control groups where the system lends them.

Each core leads a process group of its own; children of the user's code are in it. Whoever sees a core end kills the
group. If the owner itself is killed, the kernel kills the cores (they ask for it), and a guard kills their groups.
Where a version 2 control group can be made, `cgroup.kill` also reaches children that left their group.

Decision: docs/decisions/0004-no-process-is-left-behind.md.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from talka.clock import boottime_ns

# A shell is the smallest process that can wait for the end of a pipe and then act. It reads "+group" and "-group".
GUARD = """
groups=" "
while read -r line; do
  case $line in
    +*) groups="$groups${line#+} " ;;
    -*) gone=${line#-}; groups="${groups%% "$gone" *} ${groups#* "$gone" }" ;;
  esac
done
for group in $groups; do kill -s KILL -- "-$group" 2>/dev/null; done
"""
TIMED_GUARD = [sys.executable, "-P", "-m", "talka.engine.guard"]
CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
PROCESSES = Path("/proc")
KILL_ROUNDS = 10
"""Of looking who is in a group: one that is killed may have started another meanwhile."""


class Guard:
    """A process that kills the given groups when this one is gone. Started when first needed, again if it was killed.

    With a lease it also kills them when the instant comes that it was told of last, for this process may stand still.
    """

    def __init__(
        self, *, has_lease: bool = False, env: Mapping[str, str] | None = None, timed: Sequence[str] = TIMED_GUARD
    ) -> None:
        """`env` is what it finds in its environment; None: what this process does. `timed` is the program of one with a
        lease."""
        self._env = None if env is None else dict(env)
        self._command = timed if has_lease else ["/bin/sh", "-c", GUARD]
        self._end_ns = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._groups: set[int] = set()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def watch(self, group: int) -> None:
        self._groups.add(group)
        self._tell(f"+{group}")

    def forget(self, group: int) -> None:
        self._groups.discard(group)
        if self._process is not None:  # a guard that was closed stays so
            self._tell(f"-{group}")

    def tell_end(self, end_ns: int) -> None:
        """Of all groups. Of a guard with a lease."""
        self._end_ns = end_ns
        if self._process is not None:
            self._tell(f"={end_ns}")

    def restart_if_gone(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            self._drop()
            self._start()

    def close(self) -> None:
        if self._process is not None:
            self._drop()

    def _tell(self, line: str) -> None:
        if self._process is None:
            self._start()
            return  # it was told of every group
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), line.encode() + b"\n")
        except (BrokenPipeError, BlockingIOError):  # it is gone, or stands still
            self._drop()
            self._start()

    def _start(self) -> None:
        # A session of its own: Ctrl-C at the terminal must not reach it before it reaches us.
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=self._env,
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        with contextlib.suppress(BrokenPipeError):
            told = [f"+{group}" for group in sorted(self._groups)]
            if self._end_ns > boottime_ns():
                told.append(f"={self._end_ns}")
            os.write(self._process.stdin.fileno(), "".join(f"{line}\n" for line in told).encode())

    def _drop(self) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.kill()
        self._process.stdin.close()
        self._process.wait()
        self._process = None


class ControlGroup:
    """A control group for one core and everything it starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def around(cls, pid: int, root: Path = CGROUP_ROOT, own: str | None = None) -> "ControlGroup | None":
        """None where there is no version 2 hierarchy, or it is not ours to change.

        `own` is the place below `root` to make it in; by default that of this process.
        """
        try:
            if own is None:
                own = own_control_group()
            folder = root / own.strip("/") / f"talka-{pid}"
            if not (folder.parent / "cgroup.kill").exists() and not (folder.parent / "cgroup.procs").exists():
                return None
            folder.mkdir()
        except OSError:
            return None
        group = cls(folder)
        try:
            if not (folder / "cgroup.kill").exists():  # before Linux 5.14
                raise FileNotFoundError
            (folder / "cgroup.procs").write_text(str(pid))
        except OSError:
            group.remove()
            return None
        return group

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            (self.folder / "cgroup.kill").write_text("1")

    def remove(self) -> bool:
        """True once it is gone; the kernel refuses while a killed process is still leaving."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()
        return not self.folder.exists()


class MemoryGroup(ControlGroup):
    """A control group of one core and everything it starts, with a bound of memory. Of version 2 where that has one,
    else of version 1."""

    @classmethod
    def bounded(
        cls, pid: int, limit_bytes: int, root: Path = CGROUP_ROOT, listing: Path = OWN_CGROUPS
    ) -> "MemoryGroup | None":
        """None where there is none, or it is not ours to change."""
        for parent in own_groups(root, listing):
            group = cls(parent / f"talka-{pid}")
            try:
                group.folder.mkdir()
            except OSError:
                continue
            try:
                group._limit(limit_bytes)
                (group.folder / "cgroup.procs").write_text(str(pid))
            except OSError:
                group.remove()
            else:
                return group
        return None

    def _limit(self, limit_bytes: int) -> None:
        version_2 = self.folder / "memory.max"
        if version_2.exists():
            version_2.write_text(str(limit_bytes))
            with contextlib.suppress(OSError):
                (self.folder / "memory.swap.max").write_text("0")
            return
        (self.folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
        with contextlib.suppress(OSError):  # only where swap is counted
            (self.folder / "memory.memsw.limit_in_bytes").write_text(str(limit_bytes))

    def kill(self) -> None:
        if (self.folder / "cgroup.kill").exists():
            super().kill()
            return
        for _ in range(KILL_ROUNDS):
            pids = processes_in(self.folder)
            if not pids:
                return
            for pid in pids:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def peak_bytes(self) -> int:
        for name in ("memory.peak", "memory.max_usage_in_bytes"):
            with contextlib.suppress(OSError, ValueError):
                return int((self.folder / name).read_text())
        return 0


def processes_in(folder: Path) -> list[int]:
    try:
        return [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def own_groups(root: Path = CGROUP_ROOT, listing: Path = OWN_CGROUPS) -> list[Path]:
    """Folders of the groups that count this process's memory: version 2 first, then version 1."""
    try:
        lines = listing.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in sorted(lines, key=lambda one: not one.startswith("0::")):
        _, _, rest = line.partition(":")
        controllers, _, own = rest.partition(":")
        if controllers == "":
            place = root
        elif "memory" in controllers.split(","):
            place = root / "memory"
        else:
            continue
        # In a container the listing may name a place that only its host sees; then it is the topmost here.
        found += [folder for folder in dict.fromkeys([place / own.strip("/"), place]) if _counts(folder)][:1]
    return found


def _counts(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("memory.events", "memory.oom_control", "cgroup.subtree_control"))


def own_control_group(listing: Path = OWN_CGROUPS) -> str:
    """This process's place in the version 2 hierarchy, which is the one with the number 0."""
    for line in listing.read_text().splitlines():
        if line.startswith("0::"):
            return line.removeprefix("0::")
    raise FileNotFoundError("this process is in no version 2 control group")


def kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # real-time signals have no names


def peak_of(pid: int | str = "self") -> int:
    """The most bytes of memory that a living process has had; 0: not known."""
    try:
        lines = (PROCESSES / str(pid) / "status").read_text().splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
    except (OSError, ValueError):
        return 0
