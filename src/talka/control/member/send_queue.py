"""What waits to be sent on one connection: strict lanes, so that a flood of statistics never delays a vote.

Decision: docs/decisions/0015-one-member-one-loop.md.
"""

from collections import deque
from enum import IntEnum
from typing import Final

import msgspec

from talka.errors import Invalid
from talka.units import MILLISECOND


class Class(IntEnum):
    """The lanes; a lower number goes first, always."""

    CONTROL = 0
    """Probes, votes, leases, fences. Never shed."""
    RESULTS = 1
    """Results and cancels. Never shed."""
    JOBS = 2
    """Job control. Shed when too old, and only when no statistics wait."""
    STATISTICS = 3
    """Statistics and logs. Shed first; the newest goes first, since it says more than the old."""


class LaneLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What each lane may hold, and how long a frame that may be shed waits at most."""

    frames: int = 4096
    """In each lane."""
    size_bytes: int = 8 * 1024 * 1024
    """In each lane: several frames of the largest size."""
    jobs_age_ns: int = 10_000 * MILLISECOND
    statistics_age_ns: int = 2_000 * MILLISECOND

    def __post_init__(self) -> None:
        if self.frames < 1 or self.size_bytes < 1:
            raise Invalid(
                f"a lane must hold at least 1 frame and 1 byte, not {self.frames} frames and {self.size_bytes} bytes"
            )
        if not 1 <= self.statistics_age_ns <= self.jobs_age_ns:
            raise Invalid(
                "statistics_age_ns must be at least 1 and at most jobs_age_ns, "
                f"not {self.statistics_age_ns} and {self.jobs_age_ns}: statistics are shed first"
            )


DEFAULT_LIMITS: Final = LaneLimits()


class _Lane:
    __slots__ = ("frames", "size_bytes")

    def __init__(self) -> None:
        # (pushed at, frame), the oldest on the left.
        self.frames: deque[tuple[int, bytes]] = deque()
        self.size_bytes = 0


class SendQueue:
    """The frames waiting for one connection.

    Shedding goes by age, not by length: a long queue that moves is healthy, a short one that stands is not. Frames of
    CONTROL and RESULTS are never dropped. When one of them finds no room, `push` refuses it and `is_stuck` stays True:
    the owner closes the connection, so that the loss is seen on both ends.
    The counters are lists by class, and `pushed` = `sent` + `shed` + what waits.
    """

    __slots__ = ("_lanes", "_limits", "is_stuck", "pushed", "refused", "sent", "shed")

    def __init__(self, limits: LaneLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._lanes = [_Lane() for _ in Class]
        self.is_stuck = False
        self.pushed = [0] * len(Class)
        self.sent = [0] * len(Class)
        self.shed = [0] * len(Class)
        self.refused = [0] * len(Class)
        """Frames that found no room and were never in the queue; `push` said so."""

    def __len__(self) -> int:
        return sum(len(lane.frames) for lane in self._lanes)

    @property
    def size_bytes(self) -> int:
        return sum(lane.size_bytes for lane in self._lanes)

    def is_half_free(self, cls: Class) -> bool:
        """Whether the lane has taken less than half of what it may."""
        lane, limits = self._lanes[cls], self._limits
        return 2 * lane.size_bytes <= limits.size_bytes and 2 * len(lane.frames) <= limits.frames

    def waiting(self, cls: Class) -> int:
        """How many frames of one class wait."""
        return len(self._lanes[cls].frames)

    def push(self, now: int, cls: Class, frame: bytes) -> bool:
        """Whether the frame is taken. Full lanes: statistics push out their oldest, the others refuse the new one."""
        self._shed_old(now)
        lane = self._lanes[cls]
        size_bytes = len(frame)
        if cls is Class.STATISTICS and size_bytes <= self._limits.size_bytes:
            while self._is_full(lane, size_bytes):
                self._drop_oldest(Class.STATISTICS)
        elif self._is_full(lane, size_bytes):
            self.refused[cls] += 1
            if cls <= Class.RESULTS:
                self.is_stuck = True
            return False
        lane.frames.append((now, frame))
        lane.size_bytes += size_bytes
        self.pushed[cls] += 1
        return True

    def pop(self, now: int) -> bytes | None:
        """The frame to be sent next; None when nothing waits that is worth sending."""
        self._shed_old(now)
        for cls, lane in enumerate(self._lanes):
            if lane.frames:
                _, frame = lane.frames.pop() if cls == Class.STATISTICS else lane.frames.popleft()
                lane.size_bytes -= len(frame)
                self.sent[cls] += 1
                return frame
        return None

    def _is_full(self, lane: _Lane, size_bytes: int) -> bool:
        limits = self._limits
        return len(lane.frames) >= limits.frames or lane.size_bytes + size_bytes > limits.size_bytes

    def _shed_old(self, now: int) -> None:
        jobs, statistics = self._lanes[Class.JOBS].frames, self._lanes[Class.STATISTICS].frames
        oldest = now - self._limits.statistics_age_ns
        while statistics and statistics[0][0] < oldest:
            self._drop_oldest(Class.STATISTICS)
        oldest = now - self._limits.jobs_age_ns
        if jobs and jobs[0][0] < oldest:
            # Young statistics too: no job's message is lost while there is anything of less worth.
            while statistics:
                self._drop_oldest(Class.STATISTICS)
            while jobs and jobs[0][0] < oldest:
                self._drop_oldest(Class.JOBS)

    def _drop_oldest(self, cls: Class) -> None:
        lane = self._lanes[cls]
        _, frame = lane.frames.popleft()
        lane.size_bytes -= len(frame)
        self.shed[cls] += 1
