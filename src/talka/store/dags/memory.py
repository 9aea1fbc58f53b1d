"""What a manager's folder remembers of the stores it served, and what it tells of one that is opened again.

Decision: docs/decisions/0031-whose-attempt-it-is.md.
"""

from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from talka.store.files.folder import read_file, replace_file

MEMORY_NAME: Final = "stores"
MEMORY_LIMIT_BYTES: Final = 64 * 1024
STORES_LIMIT: Final = 64
"""That one folder remembers; the oldest is forgotten."""


class OpenedLife(NamedTuple):
    store: int
    life: int
    reason: str
    """Why it is a new life of a store that was there before; empty: it is not."""


class Remembered(msgspec.Struct, frozen=True):
    """How far a store had come when this folder served it last."""

    life: int
    epoch: int


class StoreMemory:
    """A file in a manager's data folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / MEMORY_NAME
        self._stores: dict[int, Remembered] = {}
        self.is_damaged = False
        content = read_file(self._path, MEMORY_LIMIT_BYTES)
        if content is not None:
            try:
                self._stores = msgspec.json.decode(content, type=dict[int, Remembered])
            except (msgspec.MsgspecError, UnicodeDecodeError):
                self.is_damaged = True  # whatever it remembered: what is opened now begins a new life

    def of(self, store: int) -> Remembered | None:
        return self._stores.get(store)

    def remember(self, store: int, life: int, epoch: int) -> None:
        """Durable once this returns."""
        self._stores.pop(store, None)
        self._stores[store] = Remembered(life, epoch)
        while len(self._stores) > STORES_LIMIT:
            del self._stores[next(iter(self._stores))]
        replace_file(self._path, msgspec.json.encode(self._stores))
        self.is_damaged = False


def why_new(
    life: int, epoch: int, known: Remembered | None, memory: StoreMemory, is_copy: bool, is_same_file: bool
) -> str:
    """Why a file that was a store before begins a new life; empty: it goes on."""
    if is_copy:
        return "it is a copy made by talka store backup"
    if memory.is_damaged:
        return "what this data folder remembered of it is damaged"
    if known is None:
        return "" if is_same_file else "it was copied here from another place"
    if known.life != life:
        return "it is a copy of before this data folder served it last"
    if epoch <= known.epoch:
        return f"it is an older copy: its epoch is {epoch}, and epoch {known.epoch} was served from this data folder"
    return ""
