"""The run history: what a kept run is, what a history can do, and which one an address means.

A document is kept as it was written. What it says is not read here: whoever keeps a run names the few numbers to list.
"""

import abc
import math
import re
import zlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from talka.errors import Invalid, Unavailable
from talka.store.sql_text import SCHEME, is_storable
from talka.units import NEVER
from talka.work.retention import Keep, Retention

KEPT: Final = Retention(Keep(NEVER, 10_000), Keep(NEVER, 10_000))
"""Of runs that passed and of the others so many of the newest stay, unless the history is opened with other rules."""
MOST_LISTED: Final = 10_000
MOST_DOCUMENT_BYTES: Final = 16 << 20
"""Of one document, compressed."""
MOST_JSON_BYTES: Final = 256 << 20
"""Of one document, unpacked. A shared history holds what others wrote: a few bytes must not become a full memory."""
MOST_ID_CHARACTERS: Final = 64
MOST_TEXT_CHARACTERS: Final = 1000
MOST_BASELINES: Final = 1000
BUSY_S: Final = 10
"""How long another writer of a file is waited for. Keeping a run takes milliseconds, so this is a crowd or a stopped
process."""
CONNECT_S: Final = 10
"""How long a server may take to answer."""
"""Runs that a baseline names are never let go: so many at most."""
BASELINE_NAME: Final = re.compile(r"[^\W\d_][\w.-]{0,63}")
LARGEST_COUNT: Final = 2**63 - 1
SHOWN_IDS: Final = 3
HistoryType = TypeVar("HistoryType", bound="History")


class BadStore(Invalid):
    """The address of the history, or what is found there, cannot be used."""


class NewerStore(BadStore):
    """A later version of Talka wrote this history."""

    def __init__(self, place: str, *, found: int, known: int) -> None:
        super().__init__(
            f"{place} was written by a later version of talka (its schema is {found}, known here is {known}): "
            "use that version or a newer one, or name another --store"
        )


class StoreUnavailable(Unavailable):
    """The history cannot be reached, or is busy for too long."""


class BadRun(Invalid):
    """A run that cannot be kept, or a kept one that cannot be read."""


class AmbiguousRun(Invalid):
    """The beginning of an id that several kept runs have."""

    def __init__(self, id: str, ids: Sequence[str]) -> None:
        shown = ", ".join(ids[:SHOWN_IDS]) + (", …" if len(ids) > SHOWN_IDS else "")
        super().__init__(f"several kept runs begin with {id!r} ({shown}): write more of the id")


class BadBaseline(Invalid):
    """A baseline that cannot be set, or the name of none."""


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A kept run as a list shows it."""

    id: str
    name: str
    status: str
    exit_code: int
    started_at: datetime
    duration_s: float
    requests: int
    rate_per_s: float
    failed: int
    p50_ms: float | None
    """Response time over all measured steps; None without a sample."""
    p99_ms: float | None

    def __post_init__(self) -> None:
        if not 0 < len(self.id) <= MOST_ID_CHARACTERS or not self.id.isprintable():
            raise BadRun(
                f"a run cannot be kept as {self.id!r}: an id is 1 to {MOST_ID_CHARACTERS} printable characters"
            )
        for what, text in (("name", self.name), ("status", self.status)):
            if len(text) > MOST_TEXT_CHARACTERS or not is_storable(text):
                raise BadRun(
                    f"run {self.id}: its {what} is over {MOST_TEXT_CHARACTERS} characters long or no plain text"
                )
        if self.started_at.tzinfo is None:
            raise BadRun(f"run {self.id}: the time of its start lacks a time zone")
        if not all(0 <= count <= LARGEST_COUNT for count in (self.exit_code, self.requests, self.failed)):
            raise BadRun(f"run {self.id}: a count is below 0 or too large")
        if not all(math.isfinite(value or 0) for value in (self.duration_s, self.rate_per_s, self.p50_ms, self.p99_ms)):
            raise BadRun(f"run {self.id}: a measurement is no number")


class KeptRun(RunFacts, frozen=True, kw_only=True):
    document: bytes
    """The result document, as `packed` makes it out of its JSON."""

    def __post_init__(self) -> None:
        RunFacts.__post_init__(self)
        if len(self.document) > MOST_DOCUMENT_BYTES:
            raise BadRun(
                f"run {self.id}: its result takes {len(self.document) / (1 << 20):.1f} MiB compressed and a history "
                f"keeps {MOST_DOCUMENT_BYTES >> 20} MiB at most: write it to a file with --json"
            )

    def json(self, most_bytes: int = MOST_JSON_BYTES) -> bytes:
        """The result document as it was when it was kept."""
        unpacking = zlib.decompressobj()
        try:
            content = unpacking.decompress(self.document, most_bytes)
        except zlib.error:
            raise BadRun(f"run {self.id}: its result is damaged and cannot be read") from None
        if not unpacking.eof:
            raise BadRun(f"run {self.id}: its result is cut off, or unpacks into over {most_bytes >> 20} MiB")
        return content


class StepColumns(msgspec.Struct, frozen=True):
    """A step of a run, or with `call` its calls of one name: what queries are about. Times are milliseconds."""

    workflow: str
    step: str
    call: str
    measured: bool
    count: int
    ok: int
    failed: int
    interrupted: int
    skipped: int
    rate_per_s: float
    mean_ms: float | None
    p50_ms: float | None
    p90_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    service_p50_ms: float | None
    service_p99_ms: float | None


class MetricColumns(msgspec.Struct, frozen=True):
    workflow: str
    name: str
    kind: str
    count: int
    total: float
    rate_per_s: float
    min: float | None
    mean: float | None
    max: float | None
    p50: float | None
    p99: float | None


class CheckColumns(msgspec.Struct, frozen=True):
    workflow: str
    name: str
    passed: int
    failed: int


class RunRows(NamedTuple):
    """What is kept of a run beside its document, in the order of the result."""

    steps: Sequence[StepColumns] = ()
    metrics: Sequence[MetricColumns] = ()
    checks: Sequence[CheckColumns] = ()

    def by_query(self, run: str) -> dict[str, list[tuple[Any, ...]]]:
        """Values of the statements that keep them."""
        parts: dict[str, Sequence[msgspec.Struct]] = {
            "keep_step": self.steps,
            "keep_metric": self.metrics,
            "keep_check": self.checks,
        }
        return {
            query: [(run, number, *msgspec.structs.astuple(row)) for number, row in enumerate(part)]
            for query, part in parts.items()
        }


NO_ROWS: Final = RunRows()
Runs: TypeAlias = list[RunFacts]
Rows: TypeAlias = Sequence[Any]
COLUMNS: Final = RunFacts.__struct_fields__


def packed(json: bytes) -> bytes:
    return zlib.compress(json)


class HistoryLimits(msgspec.Struct, frozen=True):
    baselines: int = MOST_BASELINES
    busy_s: float = BUSY_S
    connect_s: float = CONNECT_S


HISTORY_LIMITS: Final = HistoryLimits()


class History(abc.ABC):
    """Kept runs, in one place, for any number of processes at once.

    A place that is not there yet is empty; `prepare` and `keep` make it. Whatever goes wrong is a `TalkaError`.
    Every verb may be called from any thread, and waits until it is done.
    """

    place: str
    """For people. Without a password."""
    limits: "HistoryLimits"

    @abc.abstractmethod
    def prepare(self) -> None:
        """Make the place if it is not there, and say now what would be wrong with it later."""

    @abc.abstractmethod
    def keep(self, run: KeptRun, rows: RunRows = NO_ROWS) -> None:
        """Keep the run with its rows, and let go of those that are too old or too many. A run kept before is
        replaced."""

    def list(self, limit: int = 50, name: str | None = None) -> Runs:
        """The newest runs, newest first; with `name`, only those of that name."""
        if name is not None and not is_storable(name):
            return []
        if not 1 <= limit <= MOST_LISTED:
            raise BadRun(f"{limit} runs cannot be listed: write a number from 1 to {MOST_LISTED:,}")
        return self._facts("list_runs", limit=limit, name=name)

    def find(self, id: str) -> RunFacts | None:
        """The run with this id, or the only one whose id begins so."""
        if not id or not is_storable(id):
            return None
        found = self._facts("find_runs", start=id, limit=SHOWN_IDS + 1)
        # In order of ids, so a whole id is the first of those that begin with it.
        if len(found) > 1 and found[0].id != id:
            raise AmbiguousRun(id, [run.id for run in found])
        return found[0] if found else None

    def load(self, id: str) -> KeptRun | None:
        """As `find`, with the document."""
        facts = self.find(id)
        if facts is None:
            return None
        for (document,) in self._read("load_document", id=facts.id):
            return KeptRun(**msgspec.structs.asdict(facts), document=document)
        return None

    @abc.abstractmethod
    def forget(self, ids: Iterable[str]) -> int:
        """Remove the runs with these whole ids, all at once; how many there were. What a baseline names stays."""

    def set_baseline(self, name: str, id: str) -> None:
        """Give the kept run with this whole id a name to compare with. Another run of that name loses it."""
        if BASELINE_NAME.fullmatch(name) is None:
            raise BadBaseline(
                f"{name!r} cannot name a baseline: write a letter and then up to 63 letters, digits, dots, - or _"
            )
        if not is_storable(id) or not self._change("set_baseline", name=name, id=id, most=self.limits.baselines):
            raise BadBaseline(
                f"run {id} cannot become a baseline of {self.place}: it is no longer kept, or there are "
                f"{self.limits.baselines:,} baselines already"
            )

    def baselines(self) -> dict[str, str]:
        """The id of the run that each baseline names, in order of names."""
        return dict(self._read("baselines"))

    def drop_baseline(self, name: str) -> bool:
        """The run stays, and may be let go from now on. False: there was no such name."""
        return is_storable(name) and self._change("drop_baseline", name=name) > 0

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of the place. The next call takes it up again."""

    @abc.abstractmethod
    def _read(self, query: str, **values: object) -> Rows:
        """Nothing where the place is not there."""

    @abc.abstractmethod
    def _change(self, query: str, **values: object) -> int:
        """How many rows it changed; 0 where the place is not there."""

    def _facts(self, query: str, **values: object) -> Runs:
        return [self._run_of(dict(zip(COLUMNS, row, strict=True))) for row in self._read(query, **values)]

    def _run_of(self, values: dict[str, Any]) -> RunFacts:
        return RunFacts(**values)

    def __enter__(self: HistoryType) -> HistoryType:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_history(url: str, *, kept: Retention = KEPT, limits: HistoryLimits = HISTORY_LIMITS) -> History:
    """The history at `sqlite:///PATH`, a plain path, `sqlite:///:memory:` or `postgresql://…`. Nothing is touched
    yet."""
    scheme = SCHEME.match(url)
    if scheme is not None and scheme[1].lower() in ("postgresql", "postgres"):
        return open_postgres(url, kept, limits)
    if scheme is not None and not url.startswith("sqlite:///"):
        known = "sqlite:///PATH, postgresql://USER@HOST/DATABASE or the path of a file"
        raise BadStore(f"{scheme[1]}:// is not the address of a history: write {known}")
    path = url.removeprefix("sqlite:///")
    if not path or path.endswith("/") or not is_storable(path):
        raise BadStore(f"{url!r} names no file for the history: write sqlite:///PATH or the path of a file")
    from talka.store.history.sqlite import SqliteHistory

    return SqliteHistory(path, kept, limits)


def open_postgres(url: str, kept: Retention, limits: HistoryLimits) -> History:
    try:
        from talka.store.history.postgres import PostgresHistory
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise BadStore("a history in PostgreSQL needs the package asyncpg: pip install 'talka[postgres]'") from None
    return PostgresHistory(url, kept, limits)
