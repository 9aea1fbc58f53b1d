"""How long the machine kept processes from running that wanted to: a promise in fractions of a second says nothing of
that time. It is what the kernel has counted for each process, no more; how often a promise needed it is reported."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

COUNT_S: Final = 0.02
"""Between two counts of what processes waited: as little as costs a few hundredths of a processor."""
PROCESSES: Final = Path("/proc")


class Tally(msgspec.Struct):
    """Of all that was judged in this process, and of what was forgiven unjudged."""

    judged: int = 0
    fired: int = 0
    """How many of these held only because the machine had kept somebody from running."""
    longest_s: float = 0.0
    """The most of such time that one of them needed."""
    asked_again: dict[int, int] = {}
    """How often an API was asked once more, by the status that it had answered with."""

    def add(self, judged: int, fired: int, longest_s: float) -> None:
        self.judged += judged
        self.fired += fired
        self.longest_s = max(self.longest_s, longest_s)

    def add_asked(self, status: int, number: int = 1) -> None:
        self.asked_again[status] = self.asked_again.get(status, 0) + number

    def add_all(self, other: "Tally") -> None:
        self.add(other.judged, other.fired, other.longest_s)
        for status, number in other.asked_again.items():
            self.add_asked(status, number)

    def text(self) -> str:
        needed = f", which needed up to {self.longest_s:.2f} s" if self.fired else ""
        judged = f"{self.fired} of {self.judged} times were judged by when the machine let processes run{needed}"
        by_status = ", ".join(f"{number} × {status}" for status, number in sorted(self.asked_again.items()))
        return f"{judged}; asked again {sum(self.asked_again.values())} times" + (f": {by_status}" if by_status else "")


TALLY: Final = Tally()


def waits_of(pid: int, processes: Path = PROCESSES) -> dict[int, float]:
    """For how many seconds each thread of a process and of its children was ready to run and did not, by the kernel's
    count. Of this process without its children: they are whom it judges."""
    waited: dict[int, float] = {}
    families = [pid]
    while families:
        with suppress(OSError):  # it has ended
            for thread in os.scandir(processes / str(families.pop()) / "task"):
                with suppress(OSError, ValueError, IndexError):
                    waited[int(thread.name)] = int(_read(f"{thread.path}/schedstat").split()[1]) / 1e9
                    if pid != os.getpid():
                        families += map(int, _read(f"{thread.path}/children").split())
    return waited


def _read(file: str) -> str:
    with open(file, "rb", buffering=0) as stream:
        return stream.read().decode()


class Standstill:
    """When those who carry what is judged were kept waiting for a processor.

    The longest wait of one of them would be too little: a recovery goes from process to process, and may wait at each.
    The sum would be too much: who waits beside another delays nothing more, and nothing does before the blow or after
    the recovery. So what counts is for how long, between the two, somebody on the way was waiting. The way leads
    through any of the managers, but only one worker and its cores: others may wait as long as they like.
    """

    def __init__(
        self,
        shared: Iterable[int] = (),
        either: Iterable[int] = (),
        *,
        tally: Tally = TALLY,
        waits: Callable[[int], Mapping[int, float]] = waits_of,
        begun_s: float | None = None,
    ) -> None:
        """Processes that any way may lead through, and those of which it leads through one."""
        self.begun_s = time.monotonic() if begun_s is None else begun_s
        self._tally = tally
        self._waits = waits
        self._ways = [[*shared, one] for one in either] or [list(shared)]
        self._held: list[list[tuple[float, float]]] = [[] for _ in self._ways]
        """For each way from when until when somebody was kept waiting."""
        self._counted = {pid: dict(waits(pid)) for way in self._ways for pid in way}
        self._counted_s = self.begun_s
        self._is_over = threading.Event()

    def count(self, now_s: float) -> None:
        since_s, self._counted_s = now_s - self._counted_s, now_s
        grown = {pid: self._grown(pid) for pid in self._counted}
        for way, held in zip(self._ways, self._held, strict=True):
            waits = [wait_s for pid in way for wait_s in grown[pid]]
            # Between two counts nobody knows who waited after whom, so that waits add up there, but never beyond it.
            # A longer one is counted at its end.
            held_s = min(sum(waits), max(since_s, *waits, 0.0))
            if held_s > 0:
                held.append((now_s - held_s, now_s))

    def _grown(self, pid: int) -> list[float]:
        before, now = self._counted[pid], self._waits(pid)
        looking = threading.get_native_id()
        grown = [max(0.0, waited_s - before.get(thread, 0.0)) for thread, waited_s in now.items() if thread != looking]
        before.update(now)  # not replaced: the kernel may leave out a child while another of its parent ends
        return grown

    def slack_s(self, taken_s: float, begun_s: float | None = None) -> float:
        """How much longer what took so long, since `begun_s` or all the time, may have taken."""
        begun_s = self.begun_s if begun_s is None else begun_s
        return max(_covered_s(held, begun_s, begun_s + taken_s) for held in self._held)

    def allows(self, taken_s: float, limit_s: float, begun_s: float | None = None) -> bool:
        """Whether a promise of `limit_s` was held, once this is over."""
        slack_s = self.slack_s(taken_s, begun_s)
        needed_s = taken_s - limit_s
        is_needed = 0 < needed_s <= slack_s
        self._tally.add(1, int(is_needed), needed_s if is_needed else 0.0)
        return needed_s <= slack_s

    def excuses(self, gap_s: float, since_s: float, until_s: float) -> bool:
        """Whether something went wrong that must when who carries it does not run for as long as `gap_s` meanwhile."""
        held_s = self.slack_s(until_s - since_s, since_s)
        is_excused = held_s >= gap_s
        self._tally.add(1, int(is_excused), held_s if is_excused else 0.0)
        return is_excused

    def watch(self) -> None:
        while not self._is_over.wait(COUNT_S):
            self.count(time.monotonic())
        self.count(time.monotonic())

    def end(self) -> None:
        self._is_over.set()


def _covered_s(parts: list[tuple[float, float]], begun_s: float, ended_s: float) -> float:
    """How much of a time is in any of these parts of it."""
    covered_s = 0.0
    for begins_s, ends_s in sorted(parts):
        begins_s, ends_s = max(begins_s, begun_s), min(ends_s, ended_s)
        if ends_s > begins_s:
            covered_s += ends_s - begins_s
            begun_s = ends_s
    return covered_s


@contextmanager
def standstill(shared: Iterable[int] = (), either: Iterable[int] = ()) -> Iterator[Standstill]:
    seen = Standstill(shared, either)
    watcher = threading.Thread(target=seen.watch, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        seen.end()
        watcher.join()
