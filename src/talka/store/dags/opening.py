"""Which stores of dag jobs there are: the only place that knows.

Decision: docs/decisions/0039-the-store-is-a-port.md.
"""

from typing import Final

from talka.store.dags.records import BadRecords, Store, StoreKind
from talka.store.dags.sqlite_store import SqliteKind
from talka.store.sql_text import SCHEME

STORES: Final[dict[str, StoreKind]] = {
    "sqlite": SqliteKind(),
}
"""By the scheme of their addresses. One without a scheme is the path of a file of SQLite."""
LATER: Final = ("postgresql", "postgres", "redis", "rediss", "valkey")


def kind_of(url: str) -> StoreKind:
    """Raises `BadRecords` when the address is of no store. Nothing is opened."""
    scheme = SCHEME.match(url)
    kind = STORES.get("sqlite" if scheme is None else scheme[1].lower())
    # Not the whole address in what is said: it may have a password in it.
    if kind is None and scheme is not None and scheme[1].lower() in LATER:
        raise BadRecords(
            f"{scheme[1]}:// comes later, this version keeps dag jobs in SQLite only: write sqlite:///FILE"
        )
    if kind is None:
        given = "" if scheme is None else scheme[1]
        raise BadRecords(f"{given}:// is not the address of a store: write sqlite:///FILE or the path of a file")
    kind.check_url(url)
    return kind


async def open_store(url: str) -> Store:
    """Made if it is not there, and brought to this version."""
    return await kind_of(url).open(url)
