"""The threads of the store: one writes, and commits that came in while it was busy become one transaction; one reads,
and never waits for the other.

Decision: docs/decisions/0021-dag-jobs-live-in-one-store.md.
"""

import asyncio
import contextlib
import hashlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import msgspec

from talka.clock import monotonic_ns
from talka.errors import TalkaError, Unavailable
from talka.store.dags.records import DagStore
from talka.store.dags.sqlite_file import RecordsBroken
from talka.store.files.blobs import Blobs
from talka.work.dag import INLINE_LIMIT_BYTES
from talka.work.records import Change, ClaimTask, Complete, MoveJob, Release

AGAIN_S: Final = 0.25
"""Between two tries of a transaction that the store did not take."""
CHANGES_AT_ONCE: Final = 20_000
CLOSE_S: Final = 10.0
QUIET_NS: Final = 2_000_000
"""After so long without a commit, a small one does not wait for others to go with it."""
SMALL: Final = 16
"""Changes that take the loop no longer than the thread would take to wake up."""
CHECKPOINT_CHANGES: Final = 500
"""So many of those the loop makes. SQLite would do it in the midst of a commit, after ten times as many."""

SURE: Final = frozenset({ClaimTask, Complete, MoveJob, Release})
"""Changes that the store takes if it has what was written to it. Others may come too late."""

Found = TypeVar("Found")


class RecordsDiffer(RecordsBroken):
    """The store has other rows than those that were decided from."""


class StoreThread:
    """`commit` is answered through `on_committed(tickets)`, in order; `read` with a future."""

    def __init__(
        self,
        records: DagStore,
        blobs: Blobs,
        on_committed: Callable[[list[int]], None],
        on_problem: Callable[[str], None],
        on_broken: Callable[[BaseException], None],
    ) -> None:
        """`on_problem`: what keeps the store from taking changes just now, and an empty text when that is over.
        `on_broken`: it can never take them."""
        self.problem = ""
        self._records = records
        self._blobs = blobs
        self._on_committed = on_committed
        self._on_problem = on_problem
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[int, Sequence[Change]]] = deque()
        self._orders: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="store-reader")
        self._is_quick = records.is_quick
        self._committed_ns = 0
        self._made_here = 0
        self._is_awake = False
        self._is_over = threading.Event()
        self._is_broken = False
        """Something was not written, and nothing that came later may be."""
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    def commit(self, ticket: int, changes: Sequence[Change]) -> bool:
        """Whether it holds already: then it is not answered."""
        if not self._is_awake and self._is_quick and self._is_made_here(changes):
            return True
        if self._is_broken:
            return False  # nothing that waits here would ever be made
        self._waiting.append((ticket, changes))
        self._order(self._write)
        return False

    def _order(self, work: Callable[[], object]) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._orders.put(work)

    def _is_made_here(self, changes: Sequence[Change]) -> bool:
        """A lone commit that need not wait for the disk is made at once: two changes of thread take longer. What goes
        wrong with it is the thread's to find out and to tell."""
        if self._is_broken:
            return False
        now = monotonic_ns()
        is_lone, self._committed_ns = now - self._committed_ns > QUIET_NS, now
        if not is_lone or len(changes) > SMALL or any(is_large(change) for change in changes):
            return False
        try:
            if changes:
                self._apply(changes)
        except RecordsDiffer as error:
            self._is_broken = True
            self._loop.call_soon(self._on_broken, error)
            return False
        except Exception:  # noqa: BLE001 - all of it was taken back
            return False
        self._made_here += len(changes)
        if self._made_here >= CHECKPOINT_CHANGES:
            self._made_here = 0
            self._order(self._checkpoint)
        return True

    def read(self, work: Callable[..., Found], *arguments: Any) -> "asyncio.Future[Found]":
        """Call this with what the store has at that moment."""
        return self._loop.run_in_executor(self._reader, partial(work, *arguments))

    def give_up(self) -> None:
        """Write nothing more, also of what waits: the store is lost."""
        self._is_broken = True

    async def close(self) -> None:
        """Write what waits, and end."""
        self._is_over.set()
        self._orders.put(None)
        await asyncio.to_thread(self._thread.join, CLOSE_S)
        self._reader.shutdown(wait=True, cancel_futures=True)

    # In the thread.

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            order()
        while self._waiting and not self._is_broken and self._write():
            pass

    def _checkpoint(self) -> None:
        with contextlib.suppress(TalkaError):  # the next commit meets the same, and tells
            self._records.checkpoint()
        self._write()

    def _write(self) -> bool:
        """Whether all went well."""
        if self._is_broken:
            return False
        batch: list[tuple[int, Sequence[Change]]] = []
        changes: list[Change] = []
        while self._waiting and len(changes) < CHANGES_AT_ONCE:
            one = self._waiting.popleft()
            batch.append(one)
            changes += one[1]
        try:
            if changes:
                self._apply(self._spilled(changes))
        except TalkaError as error:
            self._waiting.extendleft(reversed(batch))
            if isinstance(error, RecordsBroken) or not isinstance(error, Unavailable):
                self._is_broken = True
                self._tell(self._on_broken, error)
                return False
            self._tell(self._has_problem, str(error))
            if not self._is_over.wait(AGAIN_S):
                self._orders.put(self._write)
            return False
        except BaseException as error:  # noqa: BLE001 - a store that answers so cannot be gone on with
            self._is_broken = True
            self._tell(self._on_broken, error)
            return False
        self._tell(self._written, [ticket for ticket, _ in batch])
        return True

    def _apply(self, changes: Sequence[Change]) -> None:
        counts = self._records.apply(changes)
        if not all(counts):
            refused = [change for change, count in zip(changes, counts, strict=True) if not count]
            sure = next((change for change in refused if type(change) in SURE), None)
            if sure is not None:
                raise RecordsDiffer(
                    f"the store did not take what this manager decided ({sure!r:.200}): what it has is not what was "
                    "written to it, and this manager has to start again from there"
                )

    def _spilled(self, changes: list[Change]) -> list[Change]:
        """Large outputs go into files, which are durable before their rows name them."""
        for position, change in enumerate(changes):
            if is_large(change):
                assert isinstance(change, Complete)
                digest = hashlib.sha256(change.output).hexdigest()
                self._blobs.put(digest, change.output)
                changes[position] = msgspec.structs.replace(change, output=b"", blob=digest)
        return changes

    def _tell(self, told: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(told, *arguments)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    # In the loop.

    def _written(self, tickets: list[int]) -> None:
        if self._waiting:
            self._orders.put(self._write)
        else:
            self._is_awake = False
        if self.problem:
            self.problem = ""
            self._on_problem("")
        self._on_committed(tickets)

    def _has_problem(self, text: str) -> None:
        if not self.problem:
            self._on_problem(text)
        self.problem = text


def is_large(change: Change) -> bool:
    return type(change) is Complete and len(change.output) > INLINE_LIMIT_BYTES
