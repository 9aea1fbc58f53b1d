"""How much of what is said to a worker is on its way at once: a connection holds only so much, and breaks with what it
refuses. What is more waits here, and is said as soon as there is room. What hurries nobody is said together.

Decision: docs/decisions/0053-credits-in-bytes-and-fewer-turns.md.
"""

from collections import deque
from typing import Final, TypeAlias

import msgspec

from talka.cluster.effects import Send
from talka.control.tasks.frame_link import FRAMES
from talka.control.tasks.worker_link import ToWorker
from talka.units import MILLISECOND, NEVER
from talka.wire.attempts import StoreLife
from talka.wire.tasks import TASKS_LIMIT, AskHeld, ResultsStored, TaskMessage


class RoomWanted(msgspec.Struct, frozen=True):
    """Say `on_room` of this worker once half of what its connection may hold is free, or there is no connection."""

    worker: str


class PaceLimits(msgspec.Struct, frozen=True):
    window_bytes: int = 2 * 1024 * 1024
    """What is said to a worker before it is asked whether there is room: a quarter of what a connection holds."""
    window_frames: int = 1024
    """In no more messages than these: a quarter of the frames that it holds."""
    stored_ns: int = 5 * MILLISECOND
    """So long it may take until a worker hears that results are stored: they are told together. It waits for nothing
    but their memory, and tells them again after a second."""
    waiting_bytes: int = 256 * 1024 * 1024
    """What waits for one worker. More is lost as a frame may be, and found by asking what the worker holds."""


PACE_LIMITS: Final = PaceLimits()
Paced: TypeAlias = Send[TaskMessage] | RoomWanted


class _Way:
    """To one worker."""

    __slots__ = ("is_full", "said_bytes", "said_frames", "waiting", "waiting_bytes")

    def __init__(self) -> None:
        self.said_bytes = self.said_frames = 0
        """Since it was heard that there is room."""
        self.is_full = False
        """Until it is heard again."""
        self.waiting: deque[ToWorker] = deque()
        self.waiting_bytes = 0


class PacedFrames:
    """Tell it what is to be said, that there is room, and which workers are gone; `tick` once `next_tick_at` has
    come."""

    def __init__(self, limits: PaceLimits = PACE_LIMITS) -> None:
        self.lost = 0
        """Messages for which there was no room here either."""
        self._limits = limits
        self._ways: dict[str, _Way] = {}
        """Of workers that were given something since they were last known to be gone."""
        self._stored: dict[tuple[str, StoreLife, int], list[int]] = {}
        """Fences of results that are stored, by worker, life and epoch."""
        self.next_tick_at = NEVER

    def to_worker(self, now: int, said: ToWorker) -> list[Paced]:
        """Few bytes overtake what waits, but for the question of what is held: its answer is of what came before."""
        message = said.message
        if type(message) is ResultsStored:
            return self._put_stored(now, said.worker, message)
        if not said.size_bytes:
            way = self._ways.get(said.worker)
            if way is None or not way.is_full or type(message) is not AskHeld:
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
        way.is_full, way.said_bytes, way.said_frames = False, 0, 0
        effects: list[Paced] = []
        while way.waiting and not way.is_full:
            said = way.waiting.popleft()
            way.waiting_bytes -= said.size_bytes
            effects += self._say(way, said)
        return effects

    def forget(self, worker: str) -> None:
        """It is gone: what waited for it is told to nobody."""
        self._ways.pop(worker, None)
        for key in [key for key in self._stored if key[0] == worker]:
            del self._stored[key]

    def tick(self, now: int) -> list[Paced]:
        stored, self._stored, self.next_tick_at = self._stored, {}, NEVER
        return [
            FRAMES.to_worker(ToWorker(worker, ResultsStored(epoch, tuple(fences), life)))
            for (worker, life, epoch), fences in stored.items()
        ]

    def _put_stored(self, now: int, worker: str, message: ResultsStored) -> list[Paced]:
        key = worker, message.of, message.epoch
        effects: list[Paced] = []
        fences = self._stored.setdefault(key, [])
        if len(fences) + len(message.fences) > TASKS_LIMIT:
            effects.append(FRAMES.to_worker(ToWorker(worker, ResultsStored(message.epoch, tuple(fences), message.of))))
            fences.clear()
        fences += message.fences
        self.next_tick_at = min(self.next_tick_at, now + self._limits.stored_ns)
        return effects

    def _say(self, way: _Way, said: ToWorker) -> list[Paced]:
        way.said_bytes += said.size_bytes
        way.said_frames += 1
        way.is_full = way.said_bytes >= self._limits.window_bytes or way.said_frames >= self._limits.window_frames
        send = FRAMES.to_worker(said)
        return [send, RoomWanted(said.worker)] if way.is_full else [send]
