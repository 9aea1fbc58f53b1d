"""Processes that belong to this one: those of its process group, which is its own."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FENCE: Final = "TALKA_FENCE"
"""Commands that are handlers have this in their environment, and their children with them."""
PROCESSES: Final = Path("/proc")


def kin(processes: Path = PROCESSES) -> Iterator[int]:
    """Others in this group that live. One that has ended and that nobody has waited for does not."""
    own, group = os.getpid(), os.getpgid(0)
    for pid in all_pids(processes):
        with contextlib.suppress(OSError):
            if pid != own and os.getpgid(pid) == group and not has_ended(pid, processes):
                yield pid


def all_pids(processes: Path) -> list[int]:
    if processes.is_dir():
        return [int(name) for name in os.listdir(processes) if name.isdigit()]
    import psutil  # where there is no /proc; a core that needs none of this need not load it

    return psutil.pids()


def has_ended(pid: int, processes: Path) -> bool:
    try:
        # The state is the first word after the name, which may hold anything.
        return (processes / str(pid) / "stat").read_bytes().rpartition(b") ")[2][:1] in (b"Z", b"X")
    except OSError:
        return False


def is_of_command(pid: int) -> bool:
    """They end with their command; of one whose environment cannot be read nobody knows."""
    try:
        content = (PROCESSES / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return any(word.startswith(FENCE.encode() + b"=") for word in content.split(b"\0"))
