"""The thread that writes to a store whose calls block: commits that came in while it was busy become one transaction.

Decision: docs/decisions/0021-dag-jobs-live-in-one-store.md.
"""

import asyncio
import contextlib
import hashlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

import msgspec

from talka.clock import monotonic_ns
from talka.errors import TalkaError, Unavailable
from talka.store.dags.records import CommitListener, RecordsBroken, RecordsDiffer, StoreTaken, check_taken
from talka.store.dags.sqlite import SqliteRecords
from talka.store.files.blobs import Blobs
from talka.work.dags.dag import INLINE_LIMIT_BYTES
from talka.work.dags.records import Change, Complete

AGAIN_S: Final = 0.25
"""Between two tries of a transaction that the store did not take."""
CHANGES_AT_ONCE: Final = 20_000
CLOSE_S: Final = 10.0
UNKNOWN: Final = 4
"""How many times as slow as it may be for that a disk is taken for before it was seen."""
QUIET_NS: Final = 2_000_000
"""After so long without a commit, a small one does not wait for others to go with it."""
SMALL: Final = 16
"""Changes that take the loop no longer than the thread would take to wake up."""
HERE_NS: Final = 500_000
"""Where the disk keeps small commits within this time, the loop makes them: changing to the thread and back takes
nearly as long."""
CHECKPOINT_CHANGES: Final = 500
"""So many of those the loop makes. SQLite would do it in the midst of a commit, after ten times as many."""


class ThreadLimits(NamedTuple):
    again_s: float = AGAIN_S
    changes_at_once: int = CHANGES_AT_ONCE
    close_s: float = CLOSE_S
    quiet_ns: int = QUIET_NS
    small: int = SMALL
    checkpoint_changes: int = CHECKPOINT_CHANGES
    here_ns: int = HERE_NS


USUAL_LIMITS: Final = ThreadLimits()


class WaitingCommit(NamedTuple):
    ticket: int
    changes: Sequence[Change]
    key: str


class StoreThread:
    """Made in the loop that is told what becomes of commits."""

    def __init__(
        self,
        records: SqliteRecords,
        blobs: Blobs,
        commits: CommitListener,
        limits: ThreadLimits = USUAL_LIMITS,
        now: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.problem = ""
        self._records = records
        self._blobs = blobs
        self._commits = commits
        self._limits = limits
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[WaitingCommit] = deque()
        self._orders: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._is_quick = records.is_quick
        self._committed_ns = 0
        self._made_here = 0
        self._worst_ns = UNKNOWN * limits.here_ns + 1
        """The longest that a small commit took lately: a slow one counts less with every quicker one."""
        self._is_due = False
        """What waits is made at the end of this turn of the loop, or given to the thread."""
        self._is_awake = False
        self._is_over = threading.Event()
        self._is_broken = False
        """Something was not written, and nothing that came later may be."""
        self._lost: set[str] = set()
        """Keys under which nothing is written any more."""
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    def commit(self, ticket: int, changes: Sequence[Change], key: str = "") -> bool:
        """Whether it holds already: then it is not answered."""
        if self._is_lost(key):
            return False  # nothing that waits here would ever be made
        if self._is_quick and not self._is_awake and not self._waiting and self._is_made_here(changes, key):
            return True
        if self._is_broken:
            return False
        self._waiting.append(WaitingCommit(ticket, changes, key))
        if self._is_awake or self._is_due:
            return False
        if self._worst_ns <= self._limits.here_ns:
            self._is_due = True
            self._loop.call_soon(self._make_here)
        else:
            self._order(self._write)
        return False

    def _make_here(self) -> None:
        """What was asked for in this turn of the loop, if it is little."""
        self._is_due = False
        if self._is_awake or self._is_broken:
            return  # the thread sees to it, or nobody may
        batch = list(self._waiting)
        changes = batch[0].changes if len(batch) == 1 else [change for one in batch for change in one.changes]
        if self._is_for_the_thread(changes) or self._lost:
            self._order(self._write)
            return
        began = self._now()
        if not self._is_applied(changes, keys_of(batch)):
            if not self._is_broken:
                self._order(self._write)
            return
        self._waiting.clear()
        self._note(began)
        self._commits.on_committed([one.ticket for one in batch])

    def _is_for_the_thread(self, changes: Sequence[Change]) -> bool:
        return len(changes) > self._limits.small or has_large(changes)

    def _note(self, began: int) -> None:
        """A small commit was made."""
        self._worst_ns = max(self._now() - began, self._worst_ns * 7 // 8)

    def _order(self, work: Callable[[], object]) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._orders.put(work)

    def _is_lost(self, key: str) -> bool:
        """Without a key it is made under all leases, of which none may be lost."""
        return self._is_broken or (key in self._lost if key else bool(self._lost))

    def _is_made_here(self, changes: Sequence[Change], key: str) -> bool:
        """A lone commit that need not wait for the disk is made at once: two changes of thread take longer. What goes
        wrong with it is the thread's to find out and to tell."""
        now = self._now()
        is_lone, self._committed_ns = now - self._committed_ns > self._limits.quiet_ns, now
        return is_lone and not self._is_for_the_thread(changes) and self._is_applied(changes, (key,) if key else ())

    def _is_applied(self, changes: Sequence[Change], keys: Sequence[str]) -> bool:
        """By the loop. If not, all of it was taken back, or the store is broken."""
        try:
            if changes:
                # Another thread may be at work for long: the loop does not wait for it.
                self._apply(changes, keys, waits=False)
        except RecordsDiffer as error:
            self._is_broken = True
            self._loop.call_soon(self._commits.on_broken, error)
            return False
        except Exception:  # noqa: BLE001 - all of it was taken back
            return False
        self._made_here += len(changes)
        if self._made_here >= self._limits.checkpoint_changes:
            self._made_here = 0
            self._order(self._checkpoint)
        return True

    def give_up(self, key: str = "") -> None:
        """Write nothing more, also of what waits: the store is lost, or what is leased under this key."""
        if key:
            self._lost.add(key)
        else:
            self._is_broken = True

    async def close(self) -> None:
        """Write what waits, and end."""
        self._is_over.set()
        self._is_awake = True  # to its end: nothing is made here any more
        self._orders.put(None)
        await asyncio.to_thread(self._thread.join, self._limits.close_s)

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
        batch: list[WaitingCommit] = []
        changes: list[Change] = []
        while self._waiting and len(changes) < self._limits.changes_at_once:
            one = self._waiting.popleft()
            if not self._is_lost(one.key):
                batch.append(one)
                changes += one.changes
        try:
            if changes:
                began, is_small = self._now(), len(changes) <= self._limits.small
                self._apply(self._spilled(changes), keys_of(batch))
                if is_small:
                    self._note(began)
        except StoreTaken as error:
            self._waiting.extendleft(reversed(batch))
            self.give_up(error.key)
            self._tell(self._commits.on_broken, error)
            return self._write()  # what is leased under other keys
        except TalkaError as error:
            self._waiting.extendleft(reversed(batch))
            if isinstance(error, RecordsBroken) or not isinstance(error, Unavailable):
                self._is_broken = True
                self._tell(self._commits.on_broken, error)
                return False
            self._tell(self._has_problem, str(error))
            if not self._is_over.wait(self._limits.again_s):
                self._orders.put(self._write)
            return False
        except BaseException as error:  # noqa: BLE001 - a store that answers so cannot be gone on with
            self._is_broken = True
            self._tell(self._commits.on_broken, error)
            return False
        self._tell(self._written, [one.ticket for one in batch])
        return True

    def _apply(self, changes: Sequence[Change], keys: Sequence[str], *, waits: bool = True) -> None:
        check_taken(changes, self._records.apply(changes, keys, waits=waits))

    def _spilled(self, changes: list[Change]) -> list[Change]:
        """Large outputs go into files, which are durable before their rows name them."""
        if not has_large(changes):
            return changes
        for position, change in enumerate(changes):
            if isinstance(change, Complete) and len(change.output) > INLINE_LIMIT_BYTES:
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
            self._commits.on_problem("")
        if tickets:
            self._commits.on_committed(tickets)

    def _has_problem(self, text: str) -> None:
        if not self.problem:
            self._commits.on_problem(text)
        self.problem = text


def has_large(changes: Sequence[Change]) -> bool:
    """Whether outputs are among them that do not go into rows."""
    for change in changes:
        if type(change) is Complete and len(change.output) > INLINE_LIMIT_BYTES:
            return True
    return False


def keys_of(batch: Sequence[WaitingCommit]) -> tuple[str, ...]:
    """Of the leases that they need; none: all that there are."""
    keys = tuple(dict.fromkeys([one.key for one in batch]))
    return () if "" in keys else keys
