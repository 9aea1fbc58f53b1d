"""One node as a process: its lines are read as they come, and waited for. Clusters of them: `tests/e2e/cluster.py`."""

import json
import queue
import signal as signals
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from tests import processes
from tests.processes import LIMIT_S, own_environment


class NodeProcess:
    """`flags` are for the interpreter, `before` is called in the new process before anything else."""

    def __init__(
        self,
        *words: str,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        flags: tuple[str, ...] = (),
        before: Callable[[], None] | None = None,
    ) -> None:
        self.lines: list[str] = []
        """Those that were waited for or passed by; after `wait` all of them."""
        self.errors = ""
        """What it said on standard error, once it has ended."""
        self._waiting: queue.Queue[str | None] = queue.Queue()
        self.process = processes.Popen(
            [sys.executable, *flags, "-m", "talka", *words],
            cwd=folder,
            preexec_fn=before,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=own_environment() if environment is None else dict(environment),
        )
        out, err = self.process.stdout, self.process.stderr
        assert out is not None and err is not None
        self._threads = [
            threading.Thread(target=self._read, args=(out,)),
            threading.Thread(target=self._hear, args=(err,)),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, stream: BinaryIO) -> None:
        with stream:
            for line in stream:
                self._waiting.put(line.decode())
        self._waiting.put(None)

    def _hear(self, stream: BinaryIO) -> None:
        with stream:
            self.errors = stream.read().decode()

    # Hearing

    def line(self, holds: Callable[[str], bool]) -> str:
        """The next line of which this holds."""
        until = time.monotonic() + LIMIT_S
        while True:
            line = self._waiting.get(timeout=max(0.0, until - time.monotonic()))
            if line is None:
                self._waiting.put(None)
                self.wait()
                raise AssertionError(f"it ended, and said: {self.lines} {self.errors}")
            self.lines.append(line)
            if holds(line):
                return line

    def until(self, word: str, **fields: Any) -> dict[str, Any]:
        """The next such event, of one that prints JSON."""

        def fits(line: str) -> bool:
            event = json.loads(line)
            return event["event"] == word and all(event.get(name) == value for name, value in fields.items())

        found: dict[str, Any] = json.loads(self.line(fits))
        return found

    # Ending

    def signal(self, number: signals.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Its code, once it has ended by itself and everything it said is there."""
        code = self.process.wait(LIMIT_S)
        for thread in self._threads:
            thread.join(LIMIT_S)
        while (line := self._waiting.get_nowait()) is not None:
            self.lines.append(line)
        self._waiting.put(None)
        return code

    def stop(self, number: signals.Signals = signals.SIGTERM) -> int:
        self.signal(number)
        return self.wait()

    def close(self) -> None:
        """However it is: it is not there afterwards."""
        self.process.kill()
        self.wait()


@contextmanager
def nodes() -> Iterator[Callable[..., NodeProcess]]:
    """Starts nodes, which end with the context."""
    made: list[NodeProcess] = []

    def start(*words: str, **more: Any) -> NodeProcess:
        made.append(NodeProcess(*words, **more))
        return made[-1]

    try:
        yield start
    finally:
        for node in made:
            node.process.kill()
        for node in made:
            node.wait()
