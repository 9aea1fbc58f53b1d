"""Inputs of tasks that came before their task: those too large for the message that hands it out."""

from typing import Final

from talka.units import NEVER, SECOND
from talka.wire.tasks import INPUTS_LIMIT_BYTES

TASKS_LIMIT: Final = 1024
TOTAL_LIMIT_BYTES: Final = 64 * 1024 * 1024
KEPT_NS: Final = 30 * SECOND
"""Inputs whose task has not come by then are forgotten."""


class EarlyInputs:
    def __init__(self) -> None:
        self.next_tick_at = NEVER
        self.inputs: dict[int, tuple[int, dict[str, bytes]]] = {}
        """By fence: when the first came, and all of them by name."""
        self._bytes = 0

    def put(self, now: int, fence: int, inputs: dict[str, bytes]) -> int:
        """How many tasks lost their inputs by it: this one, whose are too large together, or the oldest."""
        came_at = self.inputs[fence][0] if fence in self.inputs else now
        together = {**self.take(fence), **inputs}
        size_bytes = _bytes_of(together)
        if size_bytes > INPUTS_LIMIT_BYTES:
            return 1
        self.inputs[fence] = (came_at, together)
        self._bytes += size_bytes
        self.next_tick_at = min(self.next_tick_at, came_at + KEPT_NS)
        lost = 0
        while len(self.inputs) > TASKS_LIMIT or self._bytes > TOTAL_LIMIT_BYTES:
            self.take(next(iter(self.inputs)))
            lost += 1
        return lost

    def take(self, fence: int) -> dict[str, bytes]:
        _, inputs = self.inputs.pop(fence, (0, {}))
        self._bytes -= _bytes_of(inputs)
        return inputs

    def tick(self, now: int) -> None:
        for fence in [fence for fence, (came_at, _) in self.inputs.items() if now >= came_at + KEPT_NS]:
            self.take(fence)
        self.next_tick_at = min((came_at + KEPT_NS for came_at, _ in self.inputs.values()), default=NEVER)


def _bytes_of(inputs: dict[str, bytes]) -> int:
    return sum([len(content) for content in inputs.values()])
