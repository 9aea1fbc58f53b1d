"""What every node needs beside its sockets: a timer that follows its core, and a thread for its disk."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from talka.clock import boottime_ns
from talka.units import MILLISECOND, NEVER


class CoreTimer:
    """Calls `fire` once the core's next tick has come. Say `follow` after everything the core was told."""

    def __init__(self, next_tick_at: Callable[[], int], fire: Callable[[], None]) -> None:
        self._next_tick_at = next_tick_at
        self._fire = fire
        self._handle: asyncio.TimerHandle | None = None
        self._at = NEVER
        self._is_over = False

    @property
    def is_set(self) -> bool:
        return self._handle is not None

    def follow(self) -> None:
        at = self._next_tick_at()
        if at == self._at or self._is_over:
            return
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._at = at
        if at < NEVER:
            self._wait()

    def _wait(self) -> None:
        # In whole milliseconds, rounded up: uvloop rounds to the nearest.
        delay_ms = -(-max(0, self._at - boottime_ns()) // MILLISECOND)
        self._handle = asyncio.get_running_loop().call_later(delay_ms / 1000, self._on_due)

    def _on_due(self) -> None:
        if boottime_ns() < self._at:  # uvloop counts from the millisecond that has begun: up to one too early
            self._wait()
            return
        self._handle, self._at = None, NEVER
        try:
            self._fire()
        finally:
            self.follow()

    def close(self) -> None:
        self._is_over = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class DiskThread:
    """One write after the other, in a thread of its own: a slow disk must not keep the node from answering."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._writes: set[asyncio.Future[None]] = set()

    @property
    def is_idle(self) -> bool:
        return not self._writes

    def do(self, work: Callable[..., None], *arguments: object) -> "asyncio.Future[None]":
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="disk")
        write = asyncio.get_running_loop().run_in_executor(self._pool, partial(work, *arguments))
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)
        return write

    async def close(self, within_s: float) -> None:
        if self._writes:
            await asyncio.wait(self._writes, timeout=within_s)
        if self._pool is not None:
            self._pool.shutdown(wait=True)
