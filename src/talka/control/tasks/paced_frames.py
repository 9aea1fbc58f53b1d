"""How much of what is said to a worker is on its way at once: a connection holds only so much, and breaks with what it
refuses. What is more waits here, and is said as soon as there is room.

Decision: docs/decisions/0053-credits-in-bytes-and-fewer-turns.md.
"""

from collections import deque
from typing import Final, TypeAlias

import msgspec

from talka.cluster.effects import Send
from talka.control.tasks.frame_link import FRAMES
from talka.control.tasks.worker_link import ToWorker
from talka.wire.tasks import AskHeld, TaskMessage


class RoomWanted(msgspec.Struct, frozen=True):
    """Say `on_room` of this worker once half of what its connection may hold is free, or there is no connection."""

    worker: str


class PaceLimits(msgspec.Struct, frozen=True):
    window_bytes: int = 2 * 1024 * 1024
    """What is said to a worker before it is asked whether there is room: a quarter of what a connection holds."""
    waiting_bytes: int = 256 * 1024 * 1024
    """What waits for one worker. More is lost as a frame may be, and found by asking what the worker holds."""


PACE_LIMITS: Final = PaceLimits()
Paced: TypeAlias = Send[TaskMessage] | RoomWanted


class _Way:
    """To one worker."""

    __slots__ = ("is_full", "said_bytes", "waiting", "waiting_bytes")

    def __init__(self) -> None:
        self.said_bytes = 0
        """Since it was heard that there is room."""
        self.is_full = False
        """Until it is heard again."""
        self.waiting: deque[ToWorker] = deque()
        self.waiting_bytes = 0


class PacedFrames:
    """Tell it what is to be said, that there is room, and which workers are gone."""

    def __init__(self, limits: PaceLimits = PACE_LIMITS) -> None:
        self.lost = 0
        """Messages for which there was no room here either."""
        self._limits = limits
        self._ways: dict[str, _Way] = {}
        """Of workers that were given something since they were last known to be gone."""

    def to_worker(self, said: ToWorker) -> list[Paced]:
        """Few bytes overtake what waits, but for the question of what is held: its answer is of what came before."""
        if not said.size_bytes:
            way = self._ways.get(said.worker)
            if way is None or not way.is_full or type(said.message) is not AskHeld:
                return [FRAMES.to_worker(said)]
        else:
            way = self._ways.setdefault(said.worker, _Way())
        if way.is_full:
            if way.waiting_bytes + said.size_bytes > self._limits.waiting_bytes:
                self.lost += 1
            else:
                way.waiting.append(said)
                way.waiting_bytes += said.size_bytes
            return []
        return self._say(way, said)

    def on_room(self, worker: str) -> list[Paced]:
        way = self._ways.get(worker)
        if way is None:
            return []
        way.is_full, way.said_bytes = False, 0
        effects: list[Paced] = []
        while way.waiting and not way.is_full:
            said = way.waiting.popleft()
            way.waiting_bytes -= said.size_bytes
            effects += self._say(way, said)
        return effects

    def forget(self, worker: str) -> None:
        """It is gone: what waited for it is told to nobody."""
        self._ways.pop(worker, None)

    def _say(self, way: _Way, said: ToWorker) -> list[Paced]:
        way.said_bytes += said.size_bytes
        way.is_full = way.said_bytes >= self._limits.window_bytes
        send = FRAMES.to_worker(said)
        return [send, RoomWanted(said.worker)] if way.is_full else [send]
