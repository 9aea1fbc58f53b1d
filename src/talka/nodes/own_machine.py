"""What a worker finds out about the machine it is on: once, when it starts, and in a thread, as some of it is slow."""

import contextlib
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from talka.wire.machines import FLAG_LIMIT, FLAGS_LIMIT, GPUS_LIMIT, TEXT_LIMIT, GpuFacts, Tag, WorkerMachine

HOSTNAME_LIMIT: Final = 256
GPUS_WITHIN_S: Final = 5.0
"""For a driver that has to wake up."""
GPUS_COMMAND: Final = ("--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
MEBIBYTE: Final = 1 << 20
MOST_MEBIBYTES: Final = 1 << 40
"""More is no memory of a card: what a program writes there is not to break the beat."""
CPU_FILE: Final = Path("/proc/cpuinfo")


def found_machine(
    folder: Path, tags: tuple[Tag, ...] = (), *, cpu_file: Path = CPU_FILE, gpus_within_s: float = GPUS_WITHIN_S
) -> WorkerMachine:
    """Of the machine and of the disk that this folder is on. What cannot be found out is left empty."""
    model, flags = cpu_of(cpu_file)
    disk_bytes, free_bytes = disk_of(folder)
    return WorkerMachine(
        hostname=_line(socket.gethostname, HOSTNAME_LIMIT),
        pid=os.getpid(),
        system=_line(_system),
        architecture=_line(platform.machine),
        cpu_model=model,
        cpu_flags=flags,
        cpus=os.cpu_count() or 0,
        python=_line(lambda: f"{platform.python_implementation()} {platform.python_version()}"),
        disk_bytes=disk_bytes,
        disk_free_bytes=free_bytes,
        gpus=gpus_of(gpus_within_s),
        tags=tags,
    )


def disk_of(folder: Path) -> tuple[int, int]:
    """Size and free bytes."""
    with contextlib.suppress(OSError):
        usage = shutil.disk_usage(folder)
        return usage.total, usage.free
    return 0, 0


def cpu_of(file: Path = CPU_FILE) -> tuple[str, tuple[str, ...]]:
    """Model and flags of the first processor."""
    facts: dict[str, str] = {}
    with contextlib.suppress(OSError), file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            key, colon, value = line.partition(":")
            if not colon:
                break  # the next processor follows
            facts[key.strip()] = value.strip()
    model = facts.get("model name") or _line(platform.processor)
    flags = sorted({flag[:FLAG_LIMIT] for flag in (facts.get("flags") or facts.get("Features", "")).split()})
    return model[:TEXT_LIMIT], tuple(flags[:FLAGS_LIMIT])


def gpus_of(within_s: float) -> tuple[GpuFacts, ...]:
    """As `nvidia-smi` lists them, where it is and answers in time."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        asked = subprocess.run(
            (program, *GPUS_COMMAND), stdin=subprocess.DEVNULL, capture_output=True, timeout=within_s, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return () if asked.returncode else tuple(_gpus_in(asked.stdout.decode(errors="replace")))[:GPUS_LIMIT]


def _gpus_in(text: str) -> Iterator[GpuFacts]:
    for line in text.splitlines():
        name, _, memory = line.rpartition(",")
        if name.strip():
            mebibytes = int(memory) if memory.strip().isdecimal() else 0
            yield GpuFacts(name.strip()[:TEXT_LIMIT], mebibytes * MEBIBYTE if mebibytes < MOST_MEBIBYTES else 0)


def _system() -> str:
    kernel = f"{platform.system()} {platform.release()}"
    with contextlib.suppress(OSError, ValueError):
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {kernel}"
    return kernel


def _line(find: Callable[[], str], limit: int = TEXT_LIMIT) -> str:
    """As it can be sent: what is no text is told as `?`."""
    with contextlib.suppress(OSError, ValueError):
        return find()[:limit].encode(errors="replace").decode()
    return ""
