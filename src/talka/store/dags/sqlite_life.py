"""Which store a file is, and which of its lives: drawn anew when it is a copy put in the place of another.

A copy gives out numbers again that attempts already have, so it must not pass for the file it was made of. Three things
tell: `talka store backup` marks what it makes; the manager's folder remembers how far the file had come that it served;
and a file this folder does not know of was at another place before.

Decision: docs/decisions/0031-whose-attempt-it-is.md.
"""

import os
import sqlite3
from collections.abc import Callable

from talka.store.dags.memory import OpenedLife, StoreMemory, why_new
from talka.store.dags.sqlite import SqliteRecords
from talka.store.dags.sqlite_file import QUERIES
from talka.store.files.folder import StoreFailed


def open_life(records: SqliteRecords, epoch: int, memory: StoreMemory, draw: Callable[[], int]) -> OpenedLife:
    """Of a store that a manager has just taken, under this epoch. A new life is durable once this returns."""
    inode = inode_of(records.place)

    def act(connection: sqlite3.Connection) -> OpenedLife:
        row = connection.execute(QUERIES["life"]).fetchone()
        if row is None:  # it was made just now, or by a version that knew of no lives
            opened = OpenedLife(draw(), draw(), "")
        else:
            store, life, inode_before, is_copy = row
            reason = why_new(life, epoch, memory.of(store), memory, bool(is_copy), inode == inode_before)
            opened = OpenedLife(store, draw() if reason else life, reason)
        values = {"store": opened.store, "life": opened.life, "inode": inode}
        connection.execute(QUERIES["put_life"], values)
        return opened

    return records.file.write(act)


def inode_of(place: str) -> int:
    """0 of a store in memory."""
    try:
        return os.stat(place).st_ino & ((1 << 63) - 1)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StoreFailed(f"{place} cannot be looked at ({error.strerror or error})") from error
