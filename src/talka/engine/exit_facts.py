"""How a process ended, as data: its status, whether the kernel killed it for want of memory, and how much it used.

The kernel tells by counters of control groups: of the process's own one where it has a bound and the system lends us
one, else of that which this process is in.

Decision: docs/decisions/0023-a-core-that-dies.md.
"""

import contextlib
import signal
from pathlib import Path
from typing import Final

from talka.control.worker.effects import ExitFacts
from talka.engine.containment import own_groups, signal_name

MEBIBYTE: Final = 1024 * 1024


def memory_kills(folder: Path) -> int | None:
    """Processes of the group that the kernel has killed for want of memory; None: it does not count them."""
    for name in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(OSError, ValueError):
            for line in (folder / name).read_text().splitlines():
                word, _, number = line.partition(" ")
                if word == "oom_kill":
                    return int(number)
    return None


class KillCount:
    """Deaths by want of memory in the groups of this process. Each is told once, and only while it is recent: others
    than cores may have died of it."""

    def __init__(self, folders: list[Path] | None = None) -> None:
        self._folders = own_groups() if folders is None else folders
        self._known = self._recent = self._count()

    def look(self) -> None:
        """Now and then: what was there the last time belongs to nobody any more."""
        self._known, self._recent = self._recent, self._count()

    def has_risen(self) -> bool:
        if self._count() <= self._known:
            return False
        self._known += 1
        self._recent = max(self._recent, self._known)
        return True

    def _count(self) -> int:
        return sum(memory_kills(folder) or 0 for folder in self._folders)


def facts_of(
    status: int,
    *,
    is_out_of_memory: bool,
    doing: str = "",
    memory_bytes: int = 0,
    limit_bytes: int = 0,
    cpu_ms: int = 0,
) -> ExitFacts:
    """`status` as of subprocess: below 0 it is a signal. `doing` says what its worker did to it, if anything."""
    if status >= 0:
        text = f"the process exited with status {status}"
        return ExitFacts("exit", status, "", memory_bytes, _told(text, doing))
    name = signal_name(-status)
    if status == -signal.SIGKILL and is_out_of_memory and not doing:
        bound = f"the {limit_bytes // MEBIBYTE} MiB it may" if limit_bytes else "its machine or container has"
        text = f"the process was killed by the kernel: it used more memory than {bound}"
        return ExitFacts("oom", 0, name, memory_bytes, text)
    text = f"the process was killed by {name}"
    if status == -signal.SIGXCPU and cpu_ms:
        text = f"the process was killed by {name}: it used more processor time than the {cpu_ms} ms it may"
    elif status in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT) and not doing:
        text += ", which its worker did not send"
    return ExitFacts(name, 0, name, memory_bytes, _told(text, doing))


def _told(text: str, doing: str) -> str:
    return f"{text}: {doing}" if doing else text
