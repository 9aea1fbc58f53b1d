"""A node for tests of what is around it."""

from talka.cluster.effects import Lane
from talka.testing.world import Boot
from talka.units import NEVER


class Quiet:
    """A node that does nothing."""

    def __init__(self, boot: Boot) -> None:
        self.next_tick_at = NEVER
        self.frames_admitted = 0

    def start(self, now: int) -> list[object]:
        return []

    def on_frame(self, now: int, source: str, frame: bytes, lane: Lane, age_ns: int) -> list[object]:
        return []

    def tick(self, now: int) -> list[object]:
        return []

    def on_persisted(self, now: int, ticket: int) -> list[object]:
        return []
