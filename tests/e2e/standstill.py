"""How long the machine kept processes from running that wanted to: a promise in fractions of a second says nothing of
that time. It is what the kernel has counted for each process, no more; how often a promise needed it is reported."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

LOOK_S: Final = 0.005
PROCESSES: Final = Path("/proc")


class Tally(msgspec.Struct):
    """Of all that was judged in this process."""

    judged: int = 0
    fired: int = 0
    """How many of these held only because the machine had kept somebody from running."""
    longest_s: float = 0.0
    """The most of such time that one of them needed."""

    def add(self, judged: int, fired: int, longest_s: float) -> None:
        self.judged += judged
        self.fired += fired
        self.longest_s = max(self.longest_s, longest_s)

    def text(self) -> str:
        needed = f", which needed up to {self.longest_s:.2f} s" if self.fired else ""
        return f"{self.fired} of {self.judged} times were judged by when the machine let processes run{needed}"


TALLY: Final = Tally()


def waited_s(pid: int, processes: Path = PROCESSES) -> float:
    """For which the threads of a process were ready to run and did not, by the kernel's count; 0: it has ended."""
    waited_ns = 0
    with suppress(OSError):
        for thread in (processes / str(pid) / "task").iterdir():
            with suppress(OSError, ValueError, IndexError):
                waited_ns += int((thread / "schedstat").read_text().split()[1])
    return waited_ns / 1e9


class Standstill:
    def __init__(
        self, pids: Iterable[int] = (), *, tally: Tally = TALLY, waited: Callable[[int], float] = waited_s
    ) -> None:
        """`pids`: of those whose doings are judged."""
        self.longest_s = 0.0
        """For which a thread of this process that wanted to run did not."""
        self._late_s = 0.0
        self._tally = tally
        self._waited = waited
        self._before = {pid: waited(pid) for pid in pids}
        self._is_over = threading.Event()

    @property
    def slack_s(self) -> float:
        """How much longer what happened meanwhile may have taken: as long as those it is about waited for a processor
        one after the other, and no less than a thread of this process did."""
        waits = [max(0.0, self._waited(pid) - before) for pid, before in self._before.items()]
        return max(self._late_s, sum(waits))

    def allows(self, taken_s: float, limit_s: float) -> bool:
        """Whether a promise of `limit_s` was held."""
        slack_s = self.slack_s
        needed_s = taken_s - limit_s
        is_needed = 0 < needed_s <= slack_s
        self._tally.add(1, int(is_needed), needed_s if is_needed else 0.0)
        return needed_s <= slack_s

    def excuses(self, gap_s: float) -> bool:
        """Whether something went wrong that must when nobody runs for as long as `gap_s`."""
        is_excused = self.longest_s >= gap_s
        self._tally.add(1, int(is_excused), self.longest_s if is_excused else 0.0)
        return is_excused

    def watch(self) -> None:
        seen_s = time.monotonic()
        while not self._is_over.wait(LOOK_S):
            now_s = time.monotonic()
            late_s = now_s - seen_s - LOOK_S
            self.longest_s = max(self.longest_s, late_s)
            self._late_s += max(0.0, late_s)
            seen_s = now_s

    def end(self) -> None:
        self._is_over.set()


@contextmanager
def standstill(pids: Iterable[int] = ()) -> Iterator[Standstill]:
    seen = Standstill(pids)
    watcher = threading.Thread(target=seen.watch, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        seen.end()
        watcher.join()
