"""Which lives of workers this process has renewed the lease of, whenever it led."""

from collections import OrderedDict
from typing import Final

LIVES_LIMIT: Final = 8192


class HeardLives:
    """Outlives a leader_term, and ends with the process.

    A worker may go on without its only manager while that one's address refuses connections. Since this process listens
    none was refused: what it has heard is over with its lease. Only of others the grace has to be waited for.
    """

    __slots__ = ("_limit", "_lives")

    def __init__(self, limit: int = LIVES_LIMIT) -> None:
        self._lives: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._limit = limit

    def add(self, name: str, boot: int) -> None:
        self._lives[name, boot] = None
        self._lives.move_to_end((name, boot))
        if len(self._lives) > self._limit:
            self._lives.popitem(last=False)

    def has(self, name: str, boot: int) -> bool:
        return (name, boot) in self._lives
