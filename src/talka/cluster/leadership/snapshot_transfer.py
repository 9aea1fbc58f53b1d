"""How a leader brings those without state up to date: all it holds, page by page, until each page was answered.

Those who are taught are voters that lost their disks, and applicants that want to become voters.

Raft (Ongaro's dissertation) §4.2.1 catching up new servers; a register has no log, so all of it is sent.
docs/decisions/0012-the-holes-of-leadership.md.
"""

from typing import Final

import msgspec

from talka.cluster.effects import Lane, Send
from talka.cluster.leadership.news import LeadershipEffect
from talka.wire.leadership import CHANNEL, RegisterEntry, RegisterSnapshot, SnapshotReply, pages

APPLICANTS_LIMIT: Final = 16
"""Of more, the one that applied first is forgotten; it applies again if it is still there."""
PAGES_AT_ONCE: Final = 4


class _Learner(msgspec.Struct):
    disk_id: int
    number: int
    pages: list[tuple[RegisterEntry, ...]]
    missing: dict[int, None]
    is_last: bool
    """Whether the lesson carries the change that makes the learner a voter."""


class SnapshotTransfer:
    """Who is being taught what, and which applicants have learned all there was."""

    def __init__(self, term: int) -> None:
        self.synced: dict[str, int] = {}
        """Applicants that were brought up to date, with their disks."""
        self._term = term
        self._number = 0
        self._learners: dict[str, _Learner] = {}  # bounded: voters, and applicants
        self._applicants: dict[str, int] = {}

    def apply(self, name: str, disk_id: int) -> bool:
        """One that is no voter wants to be. Whether it is to be taught."""
        if self._applicants.get(name) != disk_id:
            self._forget(name)
            if len(self._applicants) >= APPLICANTS_LIMIT:
                self._forget(next(iter(self._applicants)))
            self._applicants[name] = disk_id
        return name not in self.synced

    def stop(self, name: str) -> None:
        """Teach this one no further. What it learned before counts: one that holds its last lesson applies no more."""
        self._learners.pop(name, None)

    def _forget(self, name: str) -> None:
        self._applicants.pop(name, None)
        self.synced.pop(name, None)
        self._learners.pop(name, None)

    def teach(
        self,
        name: str,
        disk_id: int,
        entries: list[RegisterEntry],
        group_id: int,
        out: list[LeadershipEffect],
        *,
        is_last: bool = False,
    ) -> None:
        """Begin a lesson, or go on with the one this disk is being taught. The last one always begins."""
        learner = self._learners.get(name)
        if learner is None or learner.disk_id != disk_id or is_last:
            parts = pages(entries)
            self._number += 1
            learner = _Learner(disk_id, self._number, parts, dict.fromkeys(range(len(parts))), is_last)
            self._learners[name] = learner
        self._send(name, learner, group_id, out)

    def go_on(self, group_id: int, out: list[LeadershipEffect]) -> None:
        """Pages that were not answered may have been lost."""
        for name, learner in self._learners.items():
            self._send(name, learner, group_id, out)

    def _send(self, name: str, learner: _Learner, group_id: int, out: list[LeadershipEffect]) -> None:
        for page in list(learner.missing)[:PAGES_AT_ONCE]:
            content = RegisterSnapshot(
                self._term, learner.number, page, len(learner.pages), learner.pages[page], group_id
            )
            out.append(Send(CHANNEL, name, content, Lane.CONTROL))

    def on_reply(self, sender: str, message: SnapshotReply, group_id: int, out: list[LeadershipEffect]) -> bool:
        """A page was learned. Whether that was all of the last lesson."""
        learner = self._learners.get(sender)
        if learner is None or learner.number != message.number or learner.disk_id != message.disk_id:
            return False
        learner.missing.pop(message.page, None)
        if learner.missing:
            self._send(sender, learner, group_id, out)
            return False
        del self._learners[sender]
        if not learner.is_last and sender in self._applicants:
            self.synced[sender] = learner.disk_id
        return learner.is_last
