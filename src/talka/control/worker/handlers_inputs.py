"""Inputs of tasks that came before their task: those too large for the message that hands it out."""

from typing import Final, TypeAlias

from talka.units import NEVER, SECOND
from talka.wire.tasks import INPUTS_LIMIT_BYTES

TASKS_LIMIT: Final = 1024
TOTAL_LIMIT_BYTES: Final = 64 * 1024 * 1024
KEPT_NS: Final = 30 * SECOND
"""Inputs whose task has not come by then are forgotten."""


AttemptKey: TypeAlias = tuple[int, int]
"""Number of the partition, and fence."""


class EarlyInputs:
    """Of all partitions together."""

    def __init__(self) -> None:
        self.next_tick_at = NEVER
        self.inputs: dict[AttemptKey, tuple[int, dict[str, bytes]]] = {}
        """When the first came, and all of them by name."""
        self._bytes = 0

    def put(self, now: int, key: AttemptKey, inputs: dict[str, bytes]) -> int:
        """How many tasks lost their inputs by it: this one, whose are too large together, or the oldest."""
        came_at = self.inputs[key][0] if key in self.inputs else now
        together = {**self.take(key), **inputs}
        size_bytes = _bytes_of(together)
        if size_bytes > INPUTS_LIMIT_BYTES:
            return 1
        self.inputs[key] = (came_at, together)
        self._bytes += size_bytes
        self.next_tick_at = min(self.next_tick_at, came_at + KEPT_NS)
        lost = 0
        while len(self.inputs) > TASKS_LIMIT or self._bytes > TOTAL_LIMIT_BYTES:
            self.take(next(iter(self.inputs)))
            lost += 1
        return lost

    def take(self, key: AttemptKey) -> dict[str, bytes]:
        _, inputs = self.inputs.pop(key, (0, {}))
        self._bytes -= _bytes_of(inputs)
        return inputs

    def drop(self, partition: int) -> None:
        """Whatever came for it."""
        for key in [key for key in self.inputs if key[0] == partition]:
            self.take(key)

    def tick(self, now: int) -> None:
        for key in [key for key, (came_at, _) in self.inputs.items() if now >= came_at + KEPT_NS]:
            self.take(key)
        self.next_tick_at = min((came_at + KEPT_NS for came_at, _ in self.inputs.values()), default=NEVER)


def _bytes_of(inputs: dict[str, bytes]) -> int:
    return sum([len(content) for content in inputs.values()])
