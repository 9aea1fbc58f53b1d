"""The run history: one suite of behaviours for every engine, then what can be wrong with each."""

import contextlib
import errno
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest

from talka.errors import Invalid, TalkaError, Unavailable
from talka.store.history import sqlite
from talka.store.history.runs import (
    MOST_DOCUMENT_BYTES,
    MOST_LISTED,
    AmbiguousRun,
    BadBaseline,
    BadRun,
    BadStore,
    CheckColumns,
    History,
    HistoryLimits,
    KeptRun,
    MetricColumns,
    NewerStore,
    RunFacts,
    RunRows,
    StepColumns,
    StoreUnavailable,
    open_history,
    packed,
)
from talka.store.sql_text import Migration
from talka.units import NEVER, SECOND
from talka.work.retention import Keep, Retention

NOW = datetime(2026, 5, 4, 12, 30, 15, 123456, tzinfo=UTC)
LIMIT_S = 60
KEEP_MANY = """
import sys
from datetime import UTC, datetime
from talka.store.history.runs import KeptRun, open_history, packed

url, writer, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.stdin.readline()
with open_history(url) as history:
    for number in range(count):
        history.keep(KeptRun(
            id=f"{writer}-{number}", name="crowd", status="completed", exit_code=0,
            started_at=datetime(2026, 1, 1, tzinfo=UTC), duration_s=1.0, requests=number, rate_per_s=1.0, failed=0,
            p50_ms=None, p99_ms=None, document=packed(b"{}" * 5000),
        ))
"""


# Given: runs, and every engine.


def a_run(id: str = "k7fw", *, age_s: float = 0, **changes: Any) -> KeptRun:
    run = KeptRun(
        id=id,
        name="shop.py",
        status="completed",
        exit_code=0,
        started_at=NOW - timedelta(seconds=age_s),
        duration_s=10.25,
        requests=500,
        rate_per_s=49.954,
        failed=3,
        p50_ms=0.553,
        p99_ms=2.609,
        document=packed(b'{"schema": "talka.result/1"}'),
    )
    return msgspec.structs.replace(run, **changes)


def newest(count: int) -> Retention:
    return Retention(Keep(NEVER, count), Keep(NEVER, count))


def facts_of(run: KeptRun) -> RunFacts:
    return RunFacts(**{name: getattr(run, name) for name in RunFacts.__struct_fields__})


def ids(history: History, **options: Any) -> list[str]:
    return [run.id for run in history.list(**options)]


class Place:
    """Where a history is, as its engine sees it."""

    def __init__(self, url: str, execute: Callable[[str], Any]) -> None:
        self.url, self.execute = url, execute


def place_of(engine: str, request: pytest.FixtureRequest) -> Place:
    if engine == "postgres":
        server = request.getfixturevalue("postgres")
        return Place(server.url(), server.execute)
    path = request.getfixturevalue("tmp_path") / "state" / "history.sqlite"

    def execute(sql: str) -> Any:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            row = connection.execute(sql).fetchone()
            return None if row is None else row[0]

    return Place(f"sqlite:///{path}", execute)


@pytest.fixture(params=["file", "memory", "postgres"])
def history(request: pytest.FixtureRequest) -> Iterator[History]:
    in_memory = request.param == "memory"
    with open_history("sqlite:///:memory:" if in_memory else place_of(request.param, request).url) as history:
        yield history


@pytest.fixture(params=["file", "postgres"])
def place(request: pytest.FixtureRequest) -> Place:
    """Of a history that outlives its process."""
    return place_of(request.param, request)


# Keeping and loading.


def test_kept_run_is_loaded_as_it_was(history: History) -> None:
    run = a_run()
    history.keep(run)
    assert history.load("k7fw") == run


@pytest.mark.parametrize(
    "changes",
    [
        {"p50_ms": None, "p99_ms": None},
        {"name": 'it\'s 50 % \\ "ready"; DROP TABLE — Привет 🎉'},
        {"name": ""},
        {"requests": 2**63 - 1, "failed": 2**40, "exit_code": 130},
        {"duration_s": 1e-9, "rate_per_s": 1e300},
        {"started_at": datetime(1901, 1, 1, tzinfo=UTC)},
        {"started_at": datetime(2999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)},
        {"document": b""},
        {"document": bytes(range(256))},
    ],
)
def test_unusual_values_survive(history: History, changes: dict[str, Any]) -> None:
    run = a_run(**changes)
    history.keep(run)
    assert history.load(run.id) == run


def test_start_is_the_same_instant_in_whatever_zone_it_was_given(history: History) -> None:
    history.keep(a_run(started_at=NOW.astimezone(timezone(timedelta(hours=5, minutes=30)))))
    (found,) = history.list()
    assert found.started_at == NOW and found.started_at.utcoffset() == timedelta()


def test_largest_document_is_kept_and_a_larger_one_refused(history: History) -> None:
    largest = b"\xa5" * MOST_DOCUMENT_BYTES
    history.keep(a_run(document=largest))
    loaded = history.load("k7fw")
    assert loaded is not None and loaded.document == largest
    with pytest.raises(BadRun, match=r"run k7fw: its result takes 16\.0 MiB .* --json"):
        a_run(document=largest + b".")


def test_run_kept_again_is_replaced(history: History) -> None:
    history.keep(a_run(status="failed"))
    history.keep(a_run(status="completed", document=packed(b"[]")))
    (found,) = history.list()
    assert found.status == "completed"
    loaded = history.load("k7fw")
    assert loaded is not None and loaded.json() == b"[]"


def test_oldest_runs_beyond_the_limit_are_let_go_when_one_is_kept(place: Place) -> None:
    with open_history(place.url, kept=newest(3)) as history:
        for number in range(5):
            history.keep(a_run(f"r{number}", age_s=10 - number))
        assert ids(history) == ["r4", "r3", "r2"]
        history.keep(a_run("ancient", age_s=1000))
        assert ids(history) == ["r4", "r3", "r2"]


def test_runs_that_passed_and_others_are_let_go_apart(place: Place) -> None:
    with open_history(place.url, kept=Retention(Keep(NEVER, 1), Keep(NEVER, 3))) as history:
        for number in range(5):
            history.keep(a_run(f"passed{number}", age_s=20 - number))
            history.keep(a_run(f"failed{number}", age_s=10 - number, status="failed", exit_code=4))
        assert ids(history) == ["failed4", "failed3", "failed2", "passed4"]


def test_runs_that_are_too_old_are_let_go_when_one_is_kept(place: Place) -> None:
    now = datetime.now(UTC)
    day_ns = 86_400 * SECOND
    with open_history(place.url, kept=Retention(Keep(day_ns, 10), Keep(30 * day_ns, 10))) as history:
        for exit_code in (0, 1):
            for days in (0, 2, 40):
                run = a_run(f"{exit_code}-{days}", exit_code=exit_code, started_at=now - timedelta(days=days))
                history.keep(run)
        assert sorted(ids(history)) == ["0-0", "1-0", "1-2"]


# Rows for queries.


def rows() -> RunRows:
    return RunRows(
        [
            StepColumns("Shop", "login", "", True, 7, 5, 1, 1, 2, 3.5, 1.5, 1.0, 2.0, 2.5, 3.0, 4.0, 0.5, 0.75),
            StepColumns("Shop", "login", "GET /a", True, 7, 5, 1, 1, 0, 3.5, *[None] * 8),
        ],
        [MetricColumns("Shop", "items", "trend", 3, 6.0, 0.5, 1.0, 2.0, 3.0, 2.0, 3.0)],
        [CheckColumns("Shop", "is there", 4, 1)],
    )


def test_steps_metrics_and_checks_of_a_run_can_be_asked_for_in_sql(place: Place) -> None:
    with open_history(place.url) as history:
        history.keep(a_run("a"), rows())
        history.keep(a_run("b"))
    of_login = (
        "SELECT s.{} FROM talka_run_steps s JOIN talka_runs r ON r.id = s.run WHERE r.id = 'a' AND step = 'login'"
    )
    assert place.execute(of_login.format("p99_ms") + " AND call = ''") == 3.0
    assert place.execute(of_login.format("service_p99_ms") + " AND call = ''") == 0.75
    assert place.execute(of_login.format("skipped") + " AND call = ''") == 2
    assert place.execute(of_login.format("interrupted") + " AND call = 'GET /a'") == 1
    assert place.execute(of_login.format("max_ms") + " AND call = 'GET /a'") is None
    assert place.execute("SELECT mean FROM talka_run_metrics WHERE name = 'items' AND kind = 'trend'") == 2.0
    assert place.execute("SELECT p99 FROM talka_run_metrics") == 3.0
    assert place.execute("SELECT passed * 10 + failed FROM talka_run_checks WHERE name = 'is there'") == 41
    assert place.execute("SELECT count(*) FROM talka_run_steps WHERE run = 'b'") == 0


def counts_of_rows(place: Place) -> list[int]:
    return [place.execute(f"SELECT count(*) FROM talka_run_{part}") for part in ("steps", "metrics", "checks")]


def test_rows_go_with_their_run_however_it_goes(place: Place) -> None:
    with open_history(place.url, kept=newest(2)) as history:
        for number in range(4):
            history.keep(a_run(f"r{number}", age_s=10 - number), rows())
        assert counts_of_rows(place) == [4, 2, 2]
        history.keep(a_run("r3"), RunRows(checks=rows().checks))
        assert counts_of_rows(place) == [2, 1, 2]
        history.forget(["r3"])
        assert counts_of_rows(place) == [2, 1, 1]


def test_history_of_before_there_were_rows_gets_them_with_the_next_run(place: Place) -> None:
    with open_history(place.url) as history:
        history.keep(a_run("old"))
    for part in ("steps", "metrics", "checks"):
        place.execute(f"DROP TABLE talka_run_{part}")
    place.execute("DELETE FROM talka_history_version WHERE version > 2")
    with open_history(place.url) as history:
        history.keep(a_run("new"), rows())
        assert sorted(ids(history)) == ["new", "old"]
    assert counts_of_rows(place) == [2, 1, 1]


# Baselines.


def test_baseline_names_a_run_until_it_names_another(history: History) -> None:
    history.keep(a_run("old", age_s=10))
    history.keep(a_run("new"))
    history.set_baseline("main", "old")
    history.set_baseline("before-2.0", "old")
    history.set_baseline("main", "new")
    assert history.baselines() == {"before-2.0": "old", "main": "new"}
    assert history.drop_baseline("main") and not history.drop_baseline("main")
    assert history.baselines() == {"before-2.0": "old"} and ids(history) == ["new", "old"]


def test_run_that_a_baseline_names_is_neither_forgotten_nor_let_go(place: Place) -> None:
    with open_history(place.url, kept=newest(2)) as history:
        history.keep(a_run("base", age_s=1000))
        history.set_baseline("main", "base")
        for number in range(4):
            history.keep(a_run(f"r{number}", age_s=10 - number))
        assert ids(history) == ["r3", "r2", "base"]
        assert history.forget(["base", "r2"]) == 1
        assert history.forget(["r3", "base"]) == 1
        assert ids(history) == ["base"]
        history.drop_baseline("main")
        assert history.forget(["base"]) == 1


def test_baseline_of_a_run_that_is_not_kept_is_refused(history: History) -> None:
    with pytest.raises(BadBaseline, match="run none cannot become a baseline"):
        history.set_baseline("main", "none")
    history.keep(a_run())
    for id in ("none", "k7", "nul\0", "half\udc80"):
        with pytest.raises(BadBaseline, match="cannot become a baseline"):
            history.set_baseline("main", id)
    assert history.baselines() == {} and not history.drop_baseline("half\udc80")


@pytest.mark.parametrize("name", ["", "1st", "-x", "two words", "a" * 65, "nul\0", "half\udc80", "a/b"])
def test_name_that_a_command_line_would_mistake_is_refused(history: History, name: str) -> None:
    history.keep(a_run())
    with pytest.raises(BadBaseline, match="cannot name a baseline: write a letter"):
        history.set_baseline(name, "k7fw")


def test_history_that_is_not_there_has_no_baselines_and_is_not_made(place: Place) -> None:
    with open_history(place.url) as history:
        assert history.baselines() == {} and not history.drop_baseline("main")


def test_baselines_are_limited_and_the_last_can_still_move(history: History) -> None:
    history.limits = HistoryLimits(baselines=2)
    history.keep(a_run("a"))
    history.keep(a_run("b"))
    history.set_baseline("one", "a")
    history.set_baseline("two", "a")
    with pytest.raises(BadBaseline, match="baselines already"):
        history.set_baseline("three", "a")
    history.set_baseline("two", "b")
    assert history.baselines() == {"one": "a", "two": "b"}


def test_baseline_is_there_for_the_next_who_opens_the_history(place: Place) -> None:
    with open_history(place.url) as history:
        history.keep(a_run())
        history.set_baseline("main", "k7fw")
    with open_history(place.url) as history:
        assert history.baselines() == {"main": "k7fw"}


# Listing.


def test_list_shows_the_newest_first_without_documents(history: History) -> None:
    runs = [a_run("old", age_s=20), a_run("new", age_s=0), a_run("middle", age_s=10)]
    for run in runs:
        history.keep(run)
    assert history.list() == [facts_of(run) for run in (runs[1], runs[2], runs[0])]


def test_runs_of_the_same_instant_have_one_order(history: History) -> None:
    for id in ("b", "Z", "a", "9"):
        history.keep(a_run(id))
    assert ids(history) == ["b", "a", "Z", "9"]


def test_list_ends_at_its_limit(history: History) -> None:
    for number in range(4):
        history.keep(a_run(f"r{number}", age_s=number))
    assert ids(history, limit=2) == ["r0", "r1"]


def test_list_of_a_name_has_no_other(history: History) -> None:
    for id, name in (("a", "shop.py"), ("b", "shop"), ("c", "SHOP.PY"), ("d", "shop_py")):
        history.keep(a_run(id, name=name))
    assert ids(history, name="shop.py") == ["a"]
    assert ids(history, name="%") == ids(history, name="half\udc80") == ids(history, name="nul\0") == []


@pytest.mark.parametrize("limit", [0, -1, MOST_LISTED + 1])
def test_impossible_limit_is_refused(history: History, limit: int) -> None:
    with pytest.raises(BadRun, match=rf"{limit} runs cannot be listed: write a number from 1 to 10,000"):
        history.list(limit=limit)


# Finding.


def test_unique_beginning_of_an_id_is_enough(history: History) -> None:
    for id in ("k7fw", "k8aa", "9zzz"):
        history.keep(a_run(id))
    loaded = history.load("k7")
    assert loaded is not None and loaded.id == "k7fw"
    found = history.find("9")
    assert found is not None and found.id == "9zzz"


def test_beginning_of_several_ids_is_refused_and_names_some(history: History) -> None:
    for id in ("k7fw", "k8aa", "k9bb", "kkkk", "zzzz"):
        history.keep(a_run(id))
    with pytest.raises(AmbiguousRun) as caught:
        history.load("k")
    assert str(caught.value) == "several kept runs begin with 'k' (k7fw, k8aa, k9bb, …): write more of the id"


def test_whole_id_is_found_though_others_begin_with_it(history: History) -> None:
    for id in ("k7", "k7fw", "k"):
        history.keep(a_run(id))
    found = history.find("k7")
    assert found is not None and found.id == "k7"


@pytest.mark.parametrize("id", ["", "x", "k7fwx", "K7", "%", "_7fw", "k%", "*", "nul\0", "half\udc80", "k7fw "])
def test_unknown_id_is_nothing(history: History, id: str) -> None:
    history.keep(a_run("k7fw"))
    assert history.find(id) is None
    assert history.load(id) is None


# Forgetting.


def test_forgotten_runs_are_gone_and_counted(history: History) -> None:
    for id in ("a", "b", "ab", "c"):
        history.keep(a_run(id))
    assert history.forget(["a", "c", "c", "unknown", "half\udc80", ""]) == 2
    assert ids(history) == ["b", "ab"]
    assert history.forget([]) == 0


# A place that is not there, and one from other times.


def test_place_that_is_not_there_is_empty_and_is_not_made_by_looking(place: Place, tmp_path: Path) -> None:
    with open_history(place.url) as history:
        assert history.list() == []
        assert history.find("k7fw") is None
        assert history.forget(["k7fw"]) == 0
    assert not (tmp_path / "state").exists()
    if place.url.startswith("postgresql"):
        assert place.execute("SELECT to_regclass('talka_runs')") is None


def test_prepared_place_is_there_and_empty(place: Place) -> None:
    with open_history(place.url) as history:
        history.prepare()
        assert place.execute("SELECT count(*) FROM talka_runs") == 0
        history.prepare()
        history.keep(a_run())
        history.prepare()
        assert ids(history) == ["k7fw"]


def test_history_outlives_its_opening(place: Place) -> None:
    with open_history(place.url) as history:
        history.keep(a_run())
    with open_history(place.url) as history:
        assert ids(history) == ["k7fw"]


def test_closed_history_opens_again_when_it_is_used(place: Place) -> None:
    history = open_history(place.url)
    history.keep(a_run())
    history.close()
    history.close()
    assert ids(history) == ["k7fw"]
    history.close()


def test_history_of_a_later_version_is_refused_and_left_alone(place: Place) -> None:
    with open_history(place.url) as history:
        history.keep(a_run())
        place.execute("INSERT INTO talka_history_version (version) VALUES (7)")
        for call in (history.list, history.prepare, lambda: history.keep(a_run("b")), lambda: history.forget(["k7fw"])):
            with pytest.raises(NewerStore, match=r"later version of talka \(its schema is 7, known here is 3\)"):
                call()
    assert place.execute("SELECT count(*) FROM talka_runs") == 1


@pytest.mark.parametrize("call", ["list", "prepare"])
def test_history_of_an_earlier_version_is_brought_up_to_date(
    place: Place, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_history(place.url) as history:
        history.keep(a_run())
    with open_history(place.url) as later:
        queries = later._queries  # type: ignore[attr-defined]
        note = Migration(4, "-- A note; for people.\nALTER TABLE talka_runs ADD COLUMN note text;\n")
        monkeypatch.setattr(queries, "migrations", (*queries.migrations, note))
        getattr(later, call)()
        assert ids(later) == ["k7fw"]
    assert place.execute("SELECT max(version) FROM talka_history_version") == 4
    assert place.execute("SELECT note FROM talka_runs") is None


# Many at once.


def test_processes_that_keep_at_once_lose_nothing(place: Place) -> None:
    writers, each = 4, 15
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", KEEP_MANY, place.url, f"w{number}", str(each)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(writers)
    ]
    # Not before all of them have been started: they race for making the place, too.
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, said = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, said) == (0, "")
    with open_history(place.url) as history:
        assert sorted(ids(history, limit=MOST_LISTED)) == sorted(
            f"w{number}-{run}" for number in range(writers) for run in range(each)
        )


def test_threads_share_a_history(history: History) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: history.keep(a_run(f"r{number}")), range(12)))
    assert len(history.list()) == 12


async def test_history_is_used_within_a_running_loop(history: History) -> None:
    history.keep(a_run())
    assert ids(history) == ["k7fw"]


def test_last_one_to_keep_among_full_histories_stays_within_the_limit(place: Place) -> None:
    histories = [open_history(place.url, kept=newest(4)) for _ in range(3)]
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda number: histories[number % 3].keep(a_run(f"r{number}", age_s=number)), range(12)))
    for history in histories:
        history.close()
    with open_history(place.url) as history:
        assert ids(history) == ["r0", "r1", "r2", "r3"]


# Runs that cannot be kept.


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"id": ""}, "an id is 1 to 64 printable characters"),
        ({"id": "x" * 65}, "an id is 1 to 64"),
        ({"id": "nul\0"}, "an id is 1 to 64"),
        ({"id": "half\udc80"}, "an id is 1 to 64"),
        ({"name": "x" * 1001}, "its name is over 1000 characters long"),
        ({"name": "nul\0"}, "its name is over"),
        ({"status": "half\udc80"}, "its status is over"),
        ({"started_at": datetime(2026, 1, 1)}, "lacks a time zone"),  # noqa: DTZ001 - that is the point
        ({"requests": -1}, "a count is below 0"),
        ({"failed": 2**63}, "too large"),
        ({"p99_ms": float("nan")}, "a measurement is no number"),
        ({"rate_per_s": float("inf")}, "a measurement is no number"),
    ],
)
def test_run_that_no_engine_could_keep_is_refused_with_a_reason(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRun, match=said):
        a_run(**changes)


def test_document_comes_back_as_it_was_packed() -> None:
    assert a_run(document=packed(b'{"a": 1}\n')).json() == b'{"a": 1}\n'


@pytest.mark.parametrize(
    ("document", "said"),
    [(b"what is this", "is damaged"), (packed(b"x" * 1000)[:-4], "is cut off"), (b"", "is cut off")],
)
def test_damaged_document_is_a_sentence(document: bytes, said: str) -> None:
    with pytest.raises(BadRun, match=f"run k7fw: its result {said}"):
        a_run(document=document).json()


def test_document_that_unpacks_beyond_all_measure_is_refused() -> None:
    assert len(a_run(document=zlib.compress(bytes((1 << 20) - 1))).json(1 << 20)) == (1 << 20) - 1
    with pytest.raises(BadRun, match="unpacks into over 1 MiB"):
        a_run(document=zlib.compress(bytes(1 << 22))).json(1 << 20)


# Addresses.


@pytest.mark.parametrize(
    "url", ["", "sqlite:///", "sqlite://file", "sqlite:/file", "mysql://host/db", "http://host", "folder/", "nul\0"]
)
def test_address_of_no_history_is_refused(url: str) -> None:
    with pytest.raises(BadStore, match=r"write sqlite:///PATH"):
        open_history(url)


@pytest.mark.parametrize("url", ["some where/é.sqlite", "sqlite:///some where/é.sqlite"])
def test_plain_path_is_a_file_of_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.chdir(tmp_path)
    with open_history(url) as history:
        monkeypatch.chdir("/")
        history.keep(a_run())
        assert history.place == str(tmp_path / "some where" / "é.sqlite")
    assert (tmp_path / "some where" / "é.sqlite").read_bytes().startswith(b"SQLite format 3")


def test_missing_driver_is_named_with_the_extra_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "talka.store.history.postgres", raising=False)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(BadStore, match=r"needs the package asyncpg: pip install 'talka\[postgres\]'"):
        open_history("postgresql://host/db")


# SQLite alone.


def sentence_of(call: Callable[[], object], kind: type[TalkaError]) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def test_sqlite_writes_ahead_and_waits_for_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    history = sqlite.SqliteHistory(str(path), newest(10))
    history.keep(a_run())
    assert history._connection is not None
    full = 2
    assert history._connection.execute("PRAGMA synchronous").fetchone() == (full,)
    assert history._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    history.close()
    assert [file.name for file in tmp_path.iterdir()] == ["history.sqlite"]


def test_who_only_looks_leaves_the_kind_of_journal_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    with open_history(str(path)) as history:
        history.keep(a_run())

    def journal(pragma: str = "journal_mode") -> str:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return str(connection.execute(f"PRAGMA {pragma}").fetchone()[0])

    assert journal("journal_mode = DELETE") == "delete"
    with open_history(str(path)) as history:
        assert ids(history) == ["k7fw"]
    assert journal() == "delete"
    with open_history(str(path)) as history:
        history.keep(a_run("m2xd"))
    assert journal() == "wal"


def test_folder_made_for_a_history_is_its_owners_alone(tmp_path: Path) -> None:
    with open_history(str(tmp_path / "talka" / "history.sqlite")) as history:
        history.keep(a_run())
    assert (tmp_path / "talka").stat().st_mode & 0o777 == 0o700


def test_prepared_file_is_let_go_so_that_one_put_in_its_place_is_used(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    with open_history(str(path)) as history:
        history.prepare()
        path.unlink()
        history.keep(a_run())
    with open_history(str(path)) as history:
        assert ids(history) == ["k7fw"]


@pytest.mark.parametrize("call", ["list", "prepare"])
def test_file_that_is_no_database_is_left_alone(tmp_path: Path, call: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary, " * 500)
    with open_history(str(path)) as history:
        said = sentence_of(getattr(history, call), Invalid)
    assert said == f"{path} is not a database of SQLite: name another file with --store"
    assert path.read_text() == "dear diary, " * 500


@pytest.mark.parametrize("call", ["list", "prepare"])
def test_database_of_something_else_is_left_alone(tmp_path: Path, call: str) -> None:
    path = tmp_path / "places.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    before = path.read_bytes()
    with open_history(str(path)) as history:
        assert "is a database of something else" in sentence_of(getattr(history, call), BadStore)
    assert path.read_bytes() == before


def test_empty_file_becomes_a_history(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    path.touch()
    with open_history(str(path)) as history:
        assert history.list() == []
        assert path.stat().st_size == 0
        history.keep(a_run())
        assert ids(history) == ["k7fw"]


def test_folder_is_no_file(tmp_path: Path) -> None:
    with open_history(str(tmp_path)) as history:
        assert sentence_of(history.list, Invalid) == f"{tmp_path} is a folder: name a file in it with --store"


def test_file_within_a_file_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with open_history(str(tmp_path / "file" / "history.sqlite")) as history:
        assert sentence_of(history.prepare, Invalid).endswith(f"cannot be made: {tmp_path / 'file'} is not a folder")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc here")
def test_folder_that_cannot_be_made_is_a_sentence() -> None:
    with open_history("/proc/talka/history.sqlite") as history:
        assert "/proc/talka/history.sqlite cannot be made" in sentence_of(history.prepare, Invalid)
    with open_history("/proc/history.sqlite") as history:
        said = sentence_of(history.prepare, Invalid)
    assert said.startswith("/proc/history.sqlite cannot be written: check the permissions")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM], ids=["EACCES", "EPERM"])
def test_folder_that_one_may_not_write_to_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(folder: str, **_: object) -> None:
        raise OSError(code, os.strerror(code), folder)

    monkeypatch.setattr(os, "makedirs", refuse)
    path = tmp_path / "state" / "history.sqlite"
    with open_history(str(path)) as history:
        assert sentence_of(history.prepare, Invalid) == f"{path} cannot be made: you may not write to its folder"


def test_damaged_database_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    with open_history(str(path)) as history:
        for number in range(50):
            history.keep(a_run(f"r{number}", document=bytes(2000)))
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with open_history(str(path)) as history:
        assert "is damaged" in sentence_of(history.list, Invalid)


def test_file_that_others_keep_busy_is_unavailable_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    with open_history(str(path), limits=HistoryLimits(busy_s=0.05)) as history:
        history.keep(a_run("a"))
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert "is in use by other writers" in sentence_of(lambda: history.keep(a_run("b")), Unavailable)
            assert ids(history) == ["a"]
            other.execute("ROLLBACK")
        history.keep(a_run("b"))
        assert ids(history) == ["b", "a"]


def test_full_disk_loses_nothing_that_was_kept(tmp_path: Path) -> None:
    history = sqlite.SqliteHistory(str(tmp_path / "history.sqlite"), newest(10))
    history.keep(a_run("a"))
    assert history._connection is not None
    history._connection.execute("PRAGMA max_page_count = 20")
    said = sentence_of(lambda: history.keep(a_run("b", document=bytes(1 << 20))), Unavailable)
    assert said.endswith("cannot be written: the disk is full")
    assert ids(history) == ["a"]
    history.close()


# PostgreSQL alone.


def test_wrong_password_is_a_sentence_without_the_password(postgres) -> None:
    with open_history(postgres.url(password="hunter2")) as history:
        said = sentence_of(history.list, Invalid)
    assert said.startswith(
        f"postgresql://127.0.0.1:{postgres.port}/postgres lets nobody in with this user and password"
    )
    assert "PGPASSWORD" in said and "hunter2" not in said


def test_unknown_user_is_a_sentence(postgres) -> None:
    with open_history(postgres.url(user="mallory")) as history:
        assert "lets nobody in" in sentence_of(history.prepare, Invalid)


def test_unknown_database_is_a_sentence(postgres) -> None:
    with open_history(postgres.url(database="nowhere")) as history:
        said = sentence_of(history.list, Invalid)
    assert said.endswith('database "nowhere" does not exist: create it, or name another one in the URL')


def test_user_without_rights_gets_a_sentence_and_may_still_look(postgres) -> None:
    postgres.execute("DROP ROLE IF EXISTS reader")
    postgres.execute("CREATE ROLE reader LOGIN PASSWORD 'reader'")
    with open_history(postgres.url(user="reader", password="reader")) as reader:
        assert reader.list() == []
        assert "permission denied" in sentence_of(reader.prepare, Invalid)
        with open_history(postgres.url()) as history:
            history.keep(a_run())
        postgres.execute("GRANT SELECT ON talka_runs, talka_history_version TO reader")
        assert ids(reader) == ["k7fw"]
        assert "the user needs" in sentence_of(lambda: reader.keep(a_run("b")), Invalid)
    postgres.execute("DROP OWNED BY reader")
    postgres.execute("DROP ROLE reader")


def test_tables_of_others_in_the_same_database_are_no_hindrance(postgres) -> None:
    postgres.execute("CREATE TABLE IF NOT EXISTS bookmarks (url text)")
    with open_history(postgres.url()) as history:
        history.keep(a_run())
        assert ids(history) == ["k7fw"]
    assert postgres.execute("SELECT count(*) FROM bookmarks") == 0
    postgres.execute("DROP TABLE bookmarks")


def test_connection_cut_in_between_is_not_missed(postgres) -> None:
    with open_history(postgres.url()) as history:
        history.keep(a_run("a"))
        postgres.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'talka'"
        )
        history.keep(a_run("b"))
        assert ids(history) == ["b", "a"]


def test_server_that_is_not_there_is_unavailable() -> None:
    pytest.importorskip("asyncpg")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        port = taken.getsockname()[1]
        with open_history(f"postgresql://user:hunter2@127.0.0.1:{port}/db") as history:
            said = sentence_of(history.list, Unavailable)
    assert said == f"postgresql://127.0.0.1:{port}/db cannot be reached: nothing listens there"


def test_name_that_does_not_resolve_is_unavailable() -> None:
    pytest.importorskip("asyncpg")
    with open_history("postgresql://user:hunter2@nowhere.invalid/db") as history:
        said = sentence_of(history.list, Unavailable)
    assert said.startswith("postgresql://nowhere.invalid/db cannot be reached: ")


def test_server_that_says_nothing_is_given_up() -> None:
    pytest.importorskip("asyncpg")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://user@127.0.0.1:{silent.getsockname()[1]}/db"
        with open_history(url, limits=HistoryLimits(connect_s=0.1)) as history:
            assert "does not answer" in sentence_of(history.list, Unavailable)


def test_server_that_speaks_something_else_is_a_sentence() -> None:
    pytest.importorskip("asyncpg")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            # One connection for the question whether TLS is spoken, and perhaps another without it.
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(1000)
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with open_history(f"postgresql://user@127.0.0.1:{server.getsockname()[1]}/db") as history:
            assert "cannot be" in sentence_of(history.list, StoreUnavailable)
        server.shutdown(socket.SHUT_RDWR)
        thread.join(timeout=LIMIT_S)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:hun/ter2@host/db",
        "postgresql://user:hun?ter2@host/db",
        "postgresql://user:hun#ter2@host/db",
        "postgresql://user:hun@ter2/@host/db",
        "postgresql://user:x@[hunter2/db",
        "postgresql://host:hunter2x/db?password=hunter2@x",
    ],
)
def test_password_that_breaks_the_address_is_not_shown(url: str) -> None:
    pytest.importorskip("asyncpg")
    with open_history(url) as history:
        with pytest.raises(TalkaError) as caught:
            history.list()
    assert "hun" not in str(caught.value) and "ter2" not in str(caught.value)
