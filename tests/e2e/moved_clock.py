"""The clock of the day of one process, moved while it runs: a small library that is loaded before all others."""

import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


class MovedClock:
    """`environment` is for the process, `set` moves its clock from then on."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "moved-clock"
        self._file.write_bytes(struct.pack("=q", 0))
        library = folder / "moved_clock.so"
        compiler = shutil.which("cc")
        assert compiler is not None, self.why_not()
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True, timeout=60)
        self.environment = {"LD_PRELOAD": str(library), "TALKA_MOVED_CLOCK": str(self._file)}

    def set(self, seconds: int) -> None:
        """Ahead by so much; below 0: behind. In one write, so that nobody sees half of it."""
        with open(self._file, "r+b", buffering=0) as file:
            file.write(struct.pack("=q", seconds))

    def shown(self) -> float:
        """By how much a process that is started now sees it moved."""
        words = [sys.executable, "-c", "import time; print(time.time())"]
        done = subprocess.run(words, env={**os.environ, **self.environment}, capture_output=True, text=True, timeout=60)
        return float(done.stdout) - time.time()

    @staticmethod
    def why_not() -> str:
        """Why no clock can be moved here; empty: it can."""
        if sys.platform != "linux":
            return "libraries are loaded before others in this way on Linux only"
        return "" if shutil.which("cc") else "there is no C compiler (cc)"
