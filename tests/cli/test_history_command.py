"""`talka history`: what it lists, shows and forgets, and what it says when it cannot."""

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from talka.cli.config import CliSettings, read_settings
from talka.cli.history import NoPlace, keep_result, kept_rows, kept_run, open_store, own_store, table
from talka.cli.jobs import kept_in_history
from talka.cli.main import run_command
from talka.errors import Invalid
from talka.report.document import Call, Check, Metric, ResultDocument, read
from talka.report.summary import summary
from talka.stats import hdr
from talka.stats.histogram import Histogram
from talka.store.history.runs import History, packed


class Done(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def history(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `talka history` for somebody whose home is the empty folder."""
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    capsys.readouterr()

    def run(*arguments: str) -> Done:
        return Done(run_command(["history", *arguments]), *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def result(started_server, tmp_path_factory: pytest.TempPathFactory) -> ResultDocument:
    """Of a real run."""
    file = tmp_path_factory.mktemp("result") / "result.json"
    assert run_command(["run", f"{started_server.url}/", "--iterations", "5", "--ui", "none", "--json", str(file)]) == 0
    return read(file.read_bytes())


@pytest.fixture
def kept(history: Run) -> Iterator[History]:
    """The user's own history."""
    with open_store(None) as kept:
        yield kept


def renamed(result: ResultDocument, id: str, **changes: Any) -> ResultDocument:
    job = msgspec.structs.replace(result.job, id=id, name=changes.pop("name", "shop.py"))
    return msgspec.structs.replace(result, job=job, **changes)


# Keeping.


def test_rows_of_a_kept_run_are_those_of_its_document(result: ResultDocument) -> None:
    (workflow,) = result.workflows
    (step,) = workflow.steps
    assert step.response_time_ms is not None and step.service_time_ms is not None
    call = Call("GET /\0a", 3, 2, 1, 0, 0.5, step.response_time_ms, None, {}, {}, [], None, None)
    step = msgspec.structs.replace(step, calls=[call], skipped=4)
    metrics = [
        Metric("items", "distribution", 3, 6.0, 0.5, 1.0, 2.0, 3.0, {"p50": 2.0, "p99": 3.0}),
        Metric("carts", "count", 2, 2.0, 0.2, None, None, None, None),
    ]
    changed = msgspec.structs.replace(
        workflow, steps=[step], metrics=metrics, checks=[Check("x" * 2000, passed=4, failed=1, samples=[])]
    )
    rows = kept_rows(msgspec.structs.replace(result, workflows=[changed]))
    of_step, of_call = rows.steps
    assert (of_step.step, of_step.call, of_step.count, of_step.skipped) == (step.name, "", 5, 4)
    assert (of_step.p99_ms, of_step.service_p50_ms) == (step.response_time_ms.p99, step.service_time_ms.p50)
    assert (of_call.step, of_call.call, of_call.failed, of_call.skipped) == (step.name, "GET /\ufffda", 1, 0)
    assert (of_call.max_ms, of_call.service_p99_ms) == (step.response_time_ms.max, None)
    assert [(row.name, row.count, row.p99) for row in rows.metrics] == [("items", 3, 3.0), ("carts", 2, None)]
    assert [(len(row.name), row.passed, row.failed) for row in rows.checks] == [(1000, 4, 1)]


def test_rows_are_kept_with_the_result(kept: History, result: ResultDocument, folder: Path) -> None:
    keep_result(kept, renamed(result, "k7fw"), is_own=True)
    with contextlib.closing(sqlite3.connect(folder / ".local" / "state" / "talka" / "history.sqlite")) as connection:
        assert connection.execute("SELECT run, call, ok FROM talka_run_steps").fetchall() == [("k7fw", "", 5)]


@pytest.mark.parametrize(
    ("settings", "completed", "failed"),
    [
        ({}, "10000", "10000"),
        ({"keep_history": "90d,500"}, "90d,500", "90d,500"),
        ({"keep_history": 20, "keep_failed_history": "1d"}, "20", "1d,10000"),
        ({"keep_failed_history": 5}, "10000", "5"),
    ],
)
def test_how_long_runs_are_kept_is_a_setting(settings: dict[str, Any], completed: str, failed: str) -> None:
    kept = kept_in_history(CliSettings(**settings))
    assert (str(kept.completed), str(kept.failed)) == (completed, failed)


def test_rule_for_the_history_that_says_nothing_is_refused_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALKA_KEEP_HISTORY", "soon")
    with pytest.raises(Invalid, match='TALKA_KEEP_HISTORY = "soon" is not a duration'):
        read_settings({})


def test_kept_result_is_announced_with_the_command_that_shows_it(
    kept: History, result: ResultDocument, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_result(kept, renamed(result, "k7fw"), is_own=True)
    place = folder / ".local" / "state" / "talka" / "history.sqlite"
    assert capsys.readouterr() == ("", f"kept in {place}: talka history show k7fw\n")
    assert place.is_file()


def test_result_kept_elsewhere_is_looked_for_with_its_store(
    result: ResultDocument, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_store("team.sqlite") as kept:
        keep_result(kept, renamed(result, "k7fw"), is_own=False)
    assert capsys.readouterr().err == f"kept in {folder / 'team.sqlite'}: talka history show k7fw --store …\n"


def test_facts_of_a_kept_run_are_those_of_its_document(result: ResultDocument) -> None:
    run = kept_run(result)
    assert (run.id, run.name, run.status, run.exit_code) == (result.job.id, result.job.name, "completed", 0)
    assert (run.requests, run.failed, run.rate_per_s) == (5, 0, result.totals.rate_per_s)
    assert run.started_at.isoformat(timespec="milliseconds") == result.started_at
    assert run.json() == result.to_json()


def test_percentiles_of_a_kept_run_are_over_all_steps_together(result: ResultDocument) -> None:
    quick, slow = Histogram(), Histogram()
    quick.record(1000, times=98)
    slow.record(500_000, times=2)
    (workflow,) = result.workflows
    (step,) = workflow.steps
    steps = [msgspec.structs.replace(step, histogram=hdr.encode(times)) for times in (quick, slow)]
    steps.append(msgspec.structs.replace(step, measured=False, histogram=None))
    run = kept_run(msgspec.structs.replace(result, workflows=[msgspec.structs.replace(workflow, steps=steps)]))
    assert run.p50_ms == pytest.approx(1, rel=0.01) and run.p99_ms == pytest.approx(500, rel=0.01)


def test_run_without_a_sample_has_no_percentiles(result: ResultDocument) -> None:
    run = kept_run(msgspec.structs.replace(result, workflows=[]))
    assert run.p50_ms is None and run.p99_ms is None


def test_endless_name_is_cut_for_the_list_alone(result: ResultDocument) -> None:
    run = kept_run(renamed(result, "k7fw", name="x" * 5000))
    assert run.name == "x" * 1000
    assert read(run.json()).job.name == "x" * 5000


# Listing.


def test_history_without_runs_says_so_and_makes_nothing(history: Run, folder: Path) -> None:
    done = history()
    place = folder / ".local" / "state" / "talka" / "history.sqlite"
    assert done == (0, "", f"no run is kept in {place}: talka run … --keep keeps one\n")
    assert not (folder / ".local").exists()


@pytest.mark.parametrize("arguments", [[], ["list"]])
def test_runs_are_listed_newest_first(history: Run, kept: History, result: ResultDocument, arguments) -> None:
    kept.keep(kept_run(renamed(result, "old", started_at="2026-05-04T23:59:00.000+02:00")))
    kept.keep(
        kept_run(renamed(result, "new", started_at="2026-05-05T10:00:00.000+00:00", status="failed", exit_code=1))
    )
    code, out, err = history(*arguments)
    assert (code, err) == (0, "")
    heads, new, old = [line.split() for line in out.splitlines()]
    assert heads[:4] == ["ID", "STARTED", "(UTC)", "STATUS"] and heads[-1] == "NAME"
    assert new[:5] == ["new", "2026-05-05", "10:00", "✗", "failed"] and new[-1] == "shop.py"
    assert old[:5] == ["old", "2026-05-04", "21:59", "✓", "completed"]


def test_list_for_programs_is_one_json_document(history: Run, kept: History, result: ResultDocument) -> None:
    kept.keep(kept_run(renamed(result, "k7fw")))
    (run,) = json.loads(history("--json").out)["runs"]
    assert (run["id"], run["name"], run["requests"], run["started_at"][-1]) == ("k7fw", "shop.py", 5, "Z")
    assert "document" not in run
    assert json.loads(history("list", "--json", "--name", "other").out) == {"runs": []}


def test_list_ends_at_its_limit_and_says_so(history: Run, kept: History, result: ResultDocument) -> None:
    for id in ("a", "b", "c"):
        kept.keep(kept_run(renamed(result, id)))
    done = history("--limit", "2")
    assert [line.split()[0] for line in done.out.splitlines()] == ["ID", "c", "b"]
    assert done.err == "these are the newest 2; --limit N shows more\n"


def test_list_of_a_name_that_nobody_has_names_it(history: Run, kept: History, result: ResultDocument) -> None:
    kept.keep(kept_run(renamed(result, "k7fw")))
    assert history("--name", "shop").err.startswith("no run of 'shop' is kept in ")
    assert "k7fw" in history("--name", "shop.py").out


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_table_fits_and_shows_no_control_characters(result: ResultDocument, width: int) -> None:
    runs = [kept_run(renamed(result, "k7fwk7fwk7", name=name)) for name in ("https://shop.example/" * 9, "a\x1b[2Jb")]
    lines = table(runs, width=width).splitlines()
    assert len(lines) == 3 and all(len(line) <= width and line.isprintable() for line in lines)
    assert all("k7fwk7fwk7" in line for line in lines[1:])


# Showing.


def test_show_prints_the_summary_of_that_run(history: Run, kept: History, result: ResultDocument) -> None:
    document = renamed(result, "k7fw")
    kept.keep(kept_run(document))
    assert history("show", "k7") == (0, summary(document) + "\n", "")


def test_show_writes_the_document_as_it_was(history: Run, kept: History, result: ResultDocument, folder: Path) -> None:
    document = renamed(result, "k7fw")
    kept.keep(kept_run(document))
    done = history("show", "k7fw", "--json", "result.json")
    assert done.code == 0 and "COMPLETED" in done.out
    assert (folder / "result.json").read_bytes() == document.to_json()


def test_show_prints_the_document_instead(history: Run, kept: History, result: ResultDocument) -> None:
    document = renamed(result, "k7fw")
    kept.keep(kept_run(document))
    assert history("show", "k7fw", "--json", "-") == (0, document.to_json().decode() + "\n", "")


def test_document_of_another_schema_is_a_sentence(history: Run, kept: History, result: ResultDocument) -> None:
    run = kept_run(renamed(result, "k7fw"))
    kept.keep(msgspec.structs.replace(run, document=packed(b'{"schema": "talka.result/9"}')))
    done = history("show", "k7fw")
    assert done.code == 2 and done.err.startswith("run k7fw: this is not a result of talka")


# Forgetting.


def test_forgotten_runs_are_gone(history: Run, kept: History, result: ResultDocument) -> None:
    for id in ("k7fw", "9wzz", "stay"):
        kept.keep(kept_run(renamed(result, id)))
    assert history("forget", "k7", "9wzz", "k7fw") == (0, "forgot 2 runs\n", "")
    assert [run.id for run in kept.list()] == ["stay"]


def test_nothing_is_forgotten_when_one_of_them_is_not_there(
    history: Run, kept: History, result: ResultDocument
) -> None:
    kept.keep(kept_run(renamed(result, "k7fw")))
    done = history("forget", "k7fw", "zz", "yy")
    assert done == (2, "", f"there is no run 'zz' and no run 'yy' in {kept.place}: talka history lists what is kept\n")
    assert [run.id for run in kept.list()] == ["k7fw"]


# What can be wrong.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "zz"], "there is no run 'zz' in "),
        (["show", ""], "there is no run '' in "),
        (["show"], "Missing argument 'ID'."),
        (["forget"], "Missing argument 'ID…'."),
        (["shwo"], "There is no command 'shwo'. Did you mean show?"),
        (["--limit", "0"], "Invalid value for '--limit'"),
        (["--what"], "No such option"),
        (["--store", "mysql://host/db"], "mysql:// is not the address of a history"),
        (["--store", ""], "'' names no file for the history"),
        (["--store", "."], "is a folder: name a file in it with --store"),
        (["--store", "notes.txt"], "is not a database of SQLite"),
        (["show", "k", "--store", "notes.txt"], "is not a database of SQLite"),
        (["show", "k7fw", "--json", "no/such/folder"], "--json: no/such/folder cannot be written"),
    ],
)
def test_mistake_on_the_command_line_is_a_sentence(history: Run, folder: Path, arguments: list[str], said: str) -> None:
    (folder / "notes.txt").write_text("dear diary, " * 100)
    done = history(*arguments)
    assert done.code == 2 and said in done.err and "Traceback" not in done.err and done.out == ""


def test_beginning_of_several_ids_asks_for_more(history: Run, kept: History, result: ResultDocument) -> None:
    for id in ("k7fw", "k7aa"):
        kept.keep(kept_run(renamed(result, id)))
    done = history("show", "k7")
    assert done == (2, "", "several kept runs begin with 'k7' (k7aa, k7fw): write more of the id\n")
    assert history("forget", "k7").code == 2 and len(kept.list()) == 2


# Baselines.


def test_baseline_is_set_shown_listed_and_let_go(history: Run, kept: History, result: ResultDocument) -> None:
    kept.keep(kept_run(renamed(result, "k7fw")))
    assert history("baseline") == (
        0,
        "",
        f"no baseline is named in {kept.place}: talka history baseline NAME ID names one\n",
    )
    done = history("baseline", "main", "k7")
    assert done == (0, "the baseline main is k7fw: talka compare --baseline main RESULT\n", "")
    assert history("baseline", "main") == (0, "k7fw\n", "")
    assert history("baseline") == (0, "main  k7fw\n", "")
    assert history("baseline", "main", "--forget") == (0, "forgot the baseline main\n", "")
    assert kept.baselines() == {} and kept.find("k7fw") is not None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["main", "none"], "there is no run 'none' in"),
        (["two words", "k7fw"], "'two words' cannot name a baseline"),
        (["other"], "there is no baseline 'other' in"),
        (["other", "--forget"], "(it has main)"),
        (["--forget"], "write talka history baseline NAME --forget"),
        (["main", "k7fw", "--forget"], "write talka history baseline NAME --forget"),
    ],
)
def test_wrong_baseline_is_a_sentence(
    history: Run, kept: History, result: ResultDocument, arguments: list[str], words: str
) -> None:
    kept.keep(kept_run(renamed(result, "k7fw")))
    kept.set_baseline("main", "k7fw")
    code, out, err = history("baseline", *arguments)
    assert (code, out) == (2, "") and words in err


def test_run_that_was_measured_by_other_rules_becomes_no_baseline(
    history: Run, kept: History, result: ResultDocument
) -> None:
    kept.keep(kept_run(renamed(result, "old", measures=1)))
    code, out, err = history("baseline", "main", "old")
    assert (code, out) == (2, "")
    assert "run old was measured by rules 1 and this version measures by rules 2" in err and "Run the test again" in err
    assert kept.baselines() == {}


def test_run_that_is_a_baseline_is_not_forgotten_by_the_way(
    history: Run, kept: History, result: ResultDocument
) -> None:
    kept.keep(kept_run(renamed(result, "k7fw")))
    kept.keep(kept_run(renamed(result, "other")))
    kept.set_baseline("main", "k7fw")
    done = history("forget", "other", "k7fw")
    assert done.code == 2 and "run k7fw is the baseline 'main': talka history baseline main --forget" in done.err
    assert kept.find("other") is not None


def test_history_of_a_later_version_is_a_sentence(history: Run, kept: History, result: ResultDocument) -> None:
    kept.keep(kept_run(renamed(result, "k7fw")))
    with contextlib.closing(sqlite3.connect(kept.place, isolation_level=None)) as connection:
        connection.execute("INSERT INTO talka_history_version VALUES (99)")
    done = history()
    assert done.code == 2 and "was written by a later version of talka" in done.err


def test_server_that_is_not_there_is_no_mistake_of_the_command_line(history: Run) -> None:
    pytest.importorskip("asyncpg")
    done = history("--store", "postgresql://user:hunter2@127.0.0.1:1/db")
    assert done == (1, "", "postgresql://127.0.0.1:1/db cannot be reached: nothing listens there\n")


def test_without_a_home_a_store_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(NoPlace, match="no home folder to keep results in: name a file with --store"):
        own_store()


# Help.


@pytest.mark.parametrize("arguments", [[], ["list"], ["show"], ["forget"]])
def test_help_starts_with_examples(history: Run, arguments: list[str]) -> None:
    done = history(*arguments, "--help")
    assert done.code == 0 and done.err == ""
    assert 0 < done.out.index("Examples:") < done.out.index("Usage: talka history")
