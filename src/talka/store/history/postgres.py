"""The run history in PostgreSQL, for teams. Imported only where the package asyncpg is installed."""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import urlsplit

import asyncpg

from talka.errors import TalkaError
from talka.store.history.runs import (
    COLUMNS,
    HISTORY_LIMITS,
    NO_ROWS,
    BadStore,
    History,
    HistoryLimits,
    KeptRun,
    NewerStore,
    Rows,
    RunRows,
    StoreUnavailable,
)
from talka.store.sql_text import is_storable, read_queries
from talka.units import NEVER
from talka.work.retention import Retention

CALL_S: Final = 60
"""For one call with everything in it: connecting, waiting for other writers, and a document of 16 MiB."""
QUERIES: Final = read_queries("talka.store.history", "postgres")
Answer = TypeVar("Answer")
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


class PostgresHistory(History):
    """Each call has a connection and a transaction of its own: none is left to go stale during a run of hours."""

    def __init__(self, url: str, kept: Retention, limits: HistoryLimits = HISTORY_LIMITS) -> None:
        self.limits = limits
        self.place = address_of(url)
        self._url, self._kept = url, kept
        self._queries = QUERIES
        # Not in the caller's thread: it may be running a loop of its own, and two do not fit into one.
        self._thread = new_thread()

    def prepare(self) -> None:
        async def act(connection: Connection) -> None:
            pass

        self._perform(act, writes=True, creates=True, otherwise=None)

    def keep(self, run: KeptRun, rows: RunRows = NO_ROWS) -> None:
        values = [getattr(run, name) for name in (*COLUMNS, "document")]

        async def act(connection: Connection) -> None:
            await connection.execute(self._queries["drop_run"], run.id)
            await connection.execute(self._queries["keep_run"], *values)
            for query, parts in rows.by_query(run.id).items():
                await connection.executemany(self._queries[query], parts)
            for passed in (True, False):
                keep = self._kept.of(is_completed=passed)
                age = None if keep.age_ns == NEVER else timedelta(microseconds=keep.age_ns // 1000)
                await connection.execute(self._queries["prune_runs"], passed, age, keep.count)

        self._perform(act, writes=True, creates=True, otherwise=None)

    def forget(self, ids: Iterable[str]) -> int:
        return self._change("forget_runs", ids=[id for id in ids if is_storable(id)])

    def close(self) -> None:
        self._thread.shutdown()
        self._thread = new_thread()

    def _read(self, query: str, **values: object) -> Rows:
        async def act(connection: Connection) -> Rows:
            return await connection.fetch(self._queries[query], *values.values())

        return self._perform(act, writes=False, creates=False, otherwise=[])

    def _change(self, query: str, **values: object) -> int:
        async def act(connection: Connection) -> int:
            return int(await connection.fetchval(self._queries[query], *values.values()))

        return self._perform(act, writes=True, creates=False, otherwise=0)

    def _perform(
        self, act: Callable[[Connection], Awaitable[Answer]], *, writes: bool, creates: bool, otherwise: Answer
    ) -> Answer:
        """Act within a transaction and wait for it. `otherwise` where there is nothing yet and nothing is to be
        made."""

        async def perform() -> Answer:
            async with asyncio.timeout(CALL_S):
                connection = await asyncpg.connect(
                    self._url,
                    timeout=self.limits.connect_s,
                    statement_cache_size=0,  # a pooler in between may give each transaction another server process
                    server_settings={"application_name": "talka"},
                )
                try:
                    async with connection.transaction():
                        if writes:
                            await connection.execute(self._queries["lock"])
                        is_there = await self._is_there(connection, creates=creates)
                        return await act(connection) if is_there else otherwise
                finally:
                    with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                        await connection.close(timeout=self.limits.connect_s)

        with self._sentences():
            return self._thread.submit(asyncio.run, perform()).result()

    async def _is_there(self, connection: Connection, *, creates: bool) -> bool:
        version = await self._version(connection)
        if version > self._queries.version:
            raise NewerStore(self.place, found=version, known=self._queries.version)
        if version == 0 and not creates:
            return False
        if version < self._queries.version:
            await connection.execute(self._queries["lock"])
            # Another process may have been quicker.
            version = await self._version(connection)
            for migration in self._queries.migrations:
                if migration.version > version:
                    await connection.execute(migration.sql)
                    await connection.execute(self._queries["write_version"], migration.version)
        return True

    async def _version(self, connection: Connection) -> int:
        if not await connection.fetchval(self._queries["has_tables"]):
            return 0
        return int(await connection.fetchval(self._queries["read_version"]) or 0)

    @contextlib.contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except TalkaError:
            raise
        except (
            OSError,
            ValueError,
            asyncpg.PostgresError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,
        ) as error:
            raise self._problem(error) from None

    def _problem(self, error: Exception) -> TalkaError:
        said = " ".join(str(error).split())
        match error:
            case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
                return BadStore(
                    f"{self.place} lets nobody in with this user and password ({said}): "
                    "the password stands in the URL, in PGPASSWORD or in ~/.pgpass"
                )
            case asyncpg.InvalidCatalogNameError():
                return BadStore(f"{self.place}: {said}: create it, or name another one in the URL")
            case asyncpg.InsufficientPrivilegeError():
                return BadStore(
                    f"{self.place}: {said}: the user needs CREATE once and then SELECT, INSERT, UPDATE, DELETE"
                )
            case asyncpg.PostgresError():
                return StoreUnavailable(f"{self.place} cannot be used: PostgreSQL says: {said}")
            case ssl.SSLError():
                return BadStore(f"{self.place} cannot be reached with TLS: {said}")
            case TimeoutError():
                return StoreUnavailable(f"{self.place} does not answer: check the address, or try again later")
            case OSError():
                return StoreUnavailable(f"{self.place} cannot be reached: {reason_of(error)}")
            case asyncpg.ClientConfigurationError() | ValueError():
                # Not what the driver says: it would quote a password that was taken for something else.
                return BadStore(
                    f"{self.place} is not the address of a PostgreSQL database: write "
                    "postgresql://USER:PASSWORD@HOST:PORT/DATABASE "
                    "with @ : / ? # % in a password as %40 %3A %2F %3F %23 %25"
                )
            case _:
                return StoreUnavailable(f"{self.place} cannot be used: {said}")


def new_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "talka-history")  # it starts with the first call


def address_of(url: str) -> str:
    """Host, port and database. No user, password or option, also where they were written so that nobody can tell."""
    parts: Any = None
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
    if parts is None or any("@" in part for part in (parts.path, parts.query, parts.fragment)):
        return "postgresql://…"
    return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"


def reason_of(error: OSError) -> str:
    # Of several addresses, the errors come as one text.
    if isinstance(error, ConnectionRefusedError) or "Connect call failed" in str(error):
        return "nothing listens there"
    return error.strerror or str(error) or type(error).__name__
