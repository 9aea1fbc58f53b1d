"""The target of the fastest comparisons: epoll_server.c, compiled with this machine's compiler, on a core of its
own."""

import contextlib
import hashlib
import http.client
import json
import os
import select
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil
from load_server import HOST, READY_S, SERVER_CORE, Counted, NotMeasured

SOURCE: Final = Path(__file__).resolve().with_suffix(".c")
BUILD: Final = SOURCE.parent.parent / "build"
FLAGS: Final = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")
COMPILE_S: Final = 120


def compiler() -> list[str]:
    """Its command, or nothing where none is installed."""
    command = shlex.split(os.environ.get("CC") or "cc")
    return command if command and shutil.which(command[0]) else []


def compiled(folder: Path = BUILD, *, flags: tuple[str, ...] = FLAGS) -> Path:
    """The program, compiled anew only when its source or the flags have changed."""
    command = compiler()
    if not command:
        raise NotMeasured("no C compiler is installed (Debian package gcc; or name one in CC)")
    digest = hashlib.sha256(SOURCE.read_bytes() + repr((command, flags)).encode()).hexdigest()[:16]
    program = folder / f"epoll_server-{digest}"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = program.with_name(f"{program.name}.{os.getpid()}")
        done = subprocess.run(
            [*command, *flags, "-o", str(partial), str(SOURCE)],
            capture_output=True,
            text=True,
            timeout=COMPILE_S,
            check=False,
        )
        if done.returncode:
            raise NotMeasured(f"{SOURCE.name} does not compile:\n{done.stderr}")
        partial.replace(program)
    return program


class EpollServer:
    """The server while `started`; asked for its counts as `load_server.Server` is, so that `load_meter` reads
    either."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        self.port = port
        self.url = f"http://{HOST}:{port}"
        self.worker = psutil.Process(process.pid)
        self.asked = 0
        """How often it was asked for its counts."""
        self._counts = http.client.HTTPConnection(HOST, port, timeout=READY_S)

    @classmethod
    @contextlib.contextmanager
    def started(cls, *, core: int | None = SERVER_CORE, program: Path | None = None) -> "Iterator[EpollServer]":
        command = [str(program or compiled()), "0", *([] if core is None else [str(core)])]
        # It ends with its standard input, so it outlives nobody who started it, however that one ended.
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            server = None
            try:
                server = cls(process, port_of(process))
                yield server
            finally:
                if server is not None:
                    server._counts.close()
                process.kill()

    def counts(self) -> dict[str, Any]:
        """`requests`, `connections` (that of the question included), and how many by `paths` and by `names`."""
        try:
            self._counts.request("GET", "/counts")
            document: dict[str, Any] = json.loads(self._counts.getresponse().read())
        except (OSError, http.client.HTTPException) as error:
            self._counts.close()
            raise ConnectionError(f"the server does not tell its counts: {error}") from None
        self.asked += 1
        return document

    def counted(self) -> Counted:
        """As nginx tells it: questions are requests as well, and the connection they come on does not count."""
        document = self.counts()
        return Counted(time.monotonic(), document["requests"] + self.asked, document["connections"] - 1)


def port_of(process: "subprocess.Popen[bytes]") -> int:
    assert process.stdout is not None and process.stderr is not None
    if not select.select([process.stdout], [], [], READY_S)[0]:
        raise NotMeasured(f"the server said nothing within {READY_S:.0f} s")
    words = process.stdout.readline().split()
    if len(words) != 2:
        raise NotMeasured(f"the server did not start: {process.stderr.read().decode(errors='replace').strip()}")
    return int(words[1])
