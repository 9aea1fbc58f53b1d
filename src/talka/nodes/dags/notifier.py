"""Notices of a manager's store: each is sent until it is taken or given up, and what became of it is put down.

Decision: docs/decisions/0052-ends-of-jobs-are-told-from-the-store.md.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from talka.clock import realtime_ns
from talka.control.tasks.notices import NOTICE_LIMITS, NoticeLimits, chosen, given_up_text, refused, taken
from talka.errors import Unavailable
from talka.nodes.dags.notice_sender import NotDelivered
from talka.nodes.member_events import Event
from talka.store.dags.records import Store, StoreLost
from talka.units import MILLISECOND
from talka.work.dags.notify import target_of
from talka.work.dags.records import MoveNotice, NoticeRow

AGAIN_S = 1.0
FIRST = (-1, "")
"""Before all notices, by when they are due and their ids."""


class Notifier:
    """Call `look` every second, and `close` at the end: what is under way then is sent again by the next life."""

    def __init__(
        self,
        store: Store,
        send: Callable[[NoticeRow], Awaitable[None]],
        lease_of: Callable[[str], str | None],
        tell: Callable[[Event], None],
        rng: Random,
        *,
        now_ns: Callable[[], int] = realtime_ns,
        limits: NoticeLimits = NOTICE_LIMITS,
        again_s: float = AGAIN_S,
    ) -> None:
        """`lease_of`: the key of the lease under which a job is written to; None: it is another manager's."""
        self._store = store
        self._send = send
        self._lease_of = lease_of
        self._tell = tell
        self._rng = rng
        self._now_ns = now_ns
        self._limits = limits
        self._again_s = again_s
        self._under_way: dict[str, str] = {}
        """By id, where they go. As many as may be sent at the same time."""
        self._due: dict[str, NoticeRow] = {}
        """What was read last, without what was tried since."""
        self._tried_meanwhile: set[str] = set()
        """Since the store was asked: what it says of these may be older."""
        self._after = FIRST
        """Where the next page begins."""
        self._sending: set[asyncio.Task[None]] = set()
        self.counts = {"sent": 0, "failed": 0, "given_up": 0}
        """Tries by how they ended; `failed` are tried again."""

    async def look(self) -> None:
        """Begin to send what is due."""
        if len(self._under_way) >= self._limits.at_once:
            return
        self._tried_meanwhile.clear()
        waiting = await self._store.waiting_notices(self._limits.page, self._after)
        own = [row for row in waiting if self._lease_of(row.job_id) is not None]
        self._due = {row.id: row for row in own if row.id not in self._tried_meanwhile}
        # All of a page may be for one server that is slow: those behind it are looked at the next time.
        last = waiting[-1] if len(waiting) == self._limits.page else None
        self._after = FIRST if last is None or last.next_ms > self._now_ms() else (last.next_ms, last.id)
        self._begin()

    def _begin(self) -> None:
        for row in chosen(self._due.values(), self._now_ms(), self._under_way, self._limits):
            self._under_way[row.id] = target_of(row.url).place
            task = asyncio.create_task(self._tried(row))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def close(self) -> None:
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    async def _tried(self, row: NoticeRow) -> None:
        try:
            try:
                await self._send(row)
            except NotDelivered as error:
                move = self._refused(row, str(error), is_final=error.is_final)
            except Exception as error:  # noqa: BLE001 - told with the job; else it is sent again each second for ever
                move = self._refused(row, f"{type(error).__name__}: {error}")
            else:
                move = taken(row, self._now_ms())
            if not await self._put_down(row, move):
                self._due.clear()
            self.counts["failed" if move.state == "waiting" else move.state] += 1
            if move.state == "given_up":
                self._tell({"event": "alarm", "kind": "notify", "text": given_up_text(row, move)})
        finally:
            del self._under_way[row.id]
            self._due.pop(row.id, None)
            self._tried_meanwhile.add(row.id)
        self._begin()

    def _refused(self, row: NoticeRow, error: str, *, is_final: bool = False) -> MoveNotice:
        return refused(row, self._now_ms(), error, self._rng, is_final=is_final, limits=self._limits)

    async def _put_down(self, row: NoticeRow, move: MoveNotice) -> bool:
        """It is not sent again while that cannot be put down. False: the job is another manager's, which sends it
        again."""
        while (lease := self._lease_of(row.job_id)) is not None:
            try:
                await self._store.apply([move], lease)
                return True
            except Unavailable:
                await asyncio.sleep(self._again_s)
            except StoreLost:
                break
        return False

    def _now_ms(self) -> int:
        return self._now_ns() // MILLISECOND
