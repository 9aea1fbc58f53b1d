"""Whether the machine itself stood still: a promise in fractions of a second says nothing of such a time."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

LOOK_S = 0.005
LIMIT_S = 0.1
SLACK_S = 5.0


class Standstill:
    def __init__(self) -> None:
        self.longest_s = 0.0
        """For which a thread that wanted to run did not."""
        self._is_over = threading.Event()

    @property
    def slack_s(self) -> float:
        """How much longer what happened meanwhile may have taken: no longer, where the machine ran."""
        return SLACK_S if self.longest_s > LIMIT_S else 0.0

    def watch(self) -> None:
        seen_s = time.monotonic()
        while not self._is_over.wait(LOOK_S):
            now_s = time.monotonic()
            self.longest_s = max(self.longest_s, now_s - seen_s - LOOK_S)
            seen_s = now_s

    def end(self) -> None:
        self._is_over.set()


@contextmanager
def standstill() -> Iterator[Standstill]:
    seen = Standstill()
    watcher = threading.Thread(target=seen.watch, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        seen.end()
        watcher.join()
