"""`talka compare` as people call it: its output, its exit codes, and what it says about wrong input."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from talka.cli.history import kept_run, open_store
from talka.cli.main import run_command
from talka.report.document import Generator, Job, ResultDocument, Step, TimelineRow, Totals, Workflow, read
from talka.stats import hdr
from talka.stats.histogram import Histogram
from talka.store.history.runs import History


def result(path: Path, *, ms: int, step: str = "get", failed: int = 0, measures: int = 1) -> Path:
    """A run of 2000 requests in 5 s, each of which took as long."""
    times = Histogram()
    times.record(ms * 1000, 2000)
    text = hdr.encode(times)
    found = Step(step, True, 2000, 2000 - failed, failed, 0, 400.0, None, None, {}, {}, [], text, text, {})
    document = ResultDocument(
        job=Job(path.stem, "shop.py", None),
        status="completed",
        exit_code=0,
        reasons=[],
        started_at="2026-11-15T12:00:00+00:00",
        duration_s=5.0,
        totals=Totals(2000, 2000 - failed, failed, 0, 0, 400.0, 0, 0, 2000, 0, 2, 0),
        workflows=[Workflow("Shop", "completed", "open", "400/s for 5s", 9, 2, 5.0, 2000, 0, None, [found], [], [])],
        thresholds=[],
        timeline=[TimelineRow(at / 10, 0.1, 40, 40, failed // 50, 1, float(ms), float(ms)) for at in range(50)],
        lost_shards=[],
        datacenters=[],
        start_skew_ms=0.0,
        generator=Generator("python", "1", 0.1, None, None, False, []),
        warnings=[],
        measures=measures,
    )
    path.write_bytes(document.to_json())
    return path


Compare = Callable[..., tuple[int, str, str]]


@pytest.fixture
def compare(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Compare:
    """Calls the command beside the results a.json (50 ms), b.json (60 ms, 200 failed) and same.json (as a.json)."""
    result(folder / "a.json", ms=50)
    result(folder / "b.json", ms=60, failed=200)
    result(folder / "same.json", ms=50)
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run_command(["compare", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_difference_is_shown_and_alone_fails_nothing(compare: Compare) -> None:
    code, out, err = compare("a.json", "b.json")
    assert (code, err) == (0, "")
    assert out.startswith("B fails more often") and "slower" in out and "a.json" in out and "b.json" in out


def test_equal_runs_show_no_difference(compare: Compare) -> None:
    code, out, _ = compare("a.json", "same.json", "--fail-on", "response_time.p99 +0%")
    assert code == 0 and out.startswith("Same: all 14 figures are within ± 5 %.")


@pytest.mark.parametrize("rule", ["response_time.p99 +10%", "failed +1%", "get.response_time.p95 +5ms"])
def test_broken_rule_ends_with_exit_code_4(compare: Compare, rule: str) -> None:
    code, out, err = compare("a.json", "b.json", "--fail-on", "rate -5%", "--fail-on", rule)
    assert (code, err) == (4, "")
    assert f"✗ {rule}" in out and "✓ rate -5%" in out


def test_rules_that_hold_end_with_exit_code_0(compare: Compare) -> None:
    assert compare("a.json", "b.json", "--fail-on", "response_time.p99 +30%", "--fail-on", "failed +12%")[0] == 0


def short(folder: Path) -> str:
    """A result of too few windows to know its noise."""
    document = read((folder / "a.json").read_bytes())
    (folder / "short.json").write_bytes(msgspec.structs.replace(document, timeline=document.timeline[:3]).to_json())
    return "short.json"


def test_rule_that_cannot_be_told_is_no_silent_pass(compare: Compare, folder: Path) -> None:
    code, out, err = compare("a.json", short(folder), "--fail-on", "response_time.p99 +10%")
    assert (code, err) == (6, "") and "? response_time.p99 +10%  cannot tell: too few samples" in out
    assert compare("a.json", "short.json", "--fail-on", "failed +1%", "--allow-unknown")[0] == 0
    assert compare("a.json", "short.json")[0] == 0, "without a rule there is nothing to fail"


def test_rule_that_is_broken_counts_for_more_than_one_that_cannot_be_told(compare: Compare, folder: Path) -> None:
    code, _, _ = compare("a.json", "b.json", short(folder), "--fail-on", "response_time.p99 +10%", "--allow-unknown")
    assert code == 4


def test_what_counts_as_the_same_is_an_option(compare: Compare) -> None:
    _, out, _ = compare("a.json", "b.json", "--within", "25%", "--json", "-")
    rows = json.loads(out)["rows"]
    assert {row["answer"] for row in rows if row["measure"] == "response_time"} == {"same"}


def test_several_results_are_compared_with_the_first(compare: Compare, folder: Path) -> None:
    code, out, _ = compare("a.json", "b.json", "same.json", "--html", "diff.html", "--json", "diff.json")
    assert code == 0 and "C: Same: all 14 figures" in out and "B fails more often" in out
    data = json.loads((folder / "diff.json").read_text())
    assert [one["b"]["file"] for one in data["comparisons"]] == ["b.json", "same.json"]
    assert "C as seen from A" in (folder / "diff.html").read_text()


# Runs of the history.


@pytest.fixture
def kept(folder: Path, monkeypatch: pytest.MonkeyPatch, compare: Compare) -> Iterator[History]:
    """The user's own history, with the runs k7fw (as a.json) and k9wz (as b.json); k7fw is the baseline main."""
    monkeypatch.setenv("HOME", str(folder))
    with open_store(None) as kept:
        for id, file in (("k7fw", "a.json"), ("k9wz", "b.json")):
            document = read((folder / file).read_bytes())
            renamed = msgspec.structs.replace(document.job, id=id)
            kept.keep(kept_run(msgspec.structs.replace(document, job=renamed)))
        kept.set_baseline("main", "k7fw")
        yield kept


@pytest.mark.parametrize(
    "arguments", [["k7fw", "k9wz"], ["k7", "k9"], ["a.json", "k9wz"], ["--baseline", "main", "k9wz"]]
)
def test_kept_runs_are_compared_by_their_ids_and_names(compare: Compare, kept: History, arguments: list[str]) -> None:
    code, out, err = compare(*arguments)
    assert (code, err) == (0, "") and out.startswith("B fails more often")


def test_baseline_is_the_base_of_all_others(compare: Compare, kept: History) -> None:
    _, out, _ = compare("--baseline", "main", "same.json", "b.json", "--json", "-")
    data = json.loads(out)
    assert data["base"]["file"] == "the baseline main" and data["base"]["job"] == "k7fw"
    assert [one["different"] for one in data["comparisons"]] == [False, True]


def test_file_goes_before_a_run_of_the_same_name(compare: Compare, kept: History, folder: Path) -> None:
    (folder / "k9wz").write_bytes((folder / "a.json").read_bytes())
    assert compare("k7fw", "k9wz")[1].startswith("Same: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["k7fw", "none"], "none is neither a file here nor a run kept in"),
        (["k7fw", "k"], "several kept runs begin with 'k'"),
        (["--baseline", "other", "a.json"], "there is no baseline 'other' in"),
        (["--baseline", "main"], "Name two results to compare, or one and --baseline NAME."),
        (["--baseline", "main", "new.json"], "Run what the baseline main is of again with this version"),
    ],
)
def test_run_that_cannot_be_compared_is_a_sentence(
    compare: Compare, kept: History, folder: Path, arguments: list[str], words: str
) -> None:
    result(folder / "new.json", ms=50, measures=2)
    code, out, err = compare(*arguments)
    assert (code, out) == (2, "") and words in err


def test_history_elsewhere_is_named_with_its_store(compare: Compare, kept: History, folder: Path) -> None:
    with open_store(str(folder / "team.sqlite")) as team:
        run = kept.load("k9wz")
        assert run is not None
        team.keep(msgspec.structs.replace(run, id="team"))
    assert compare("a.json", "team", "--store", "team.sqlite")[0] == 0
    assert compare("a.json", "team")[0] == 2


def test_page_and_document_are_written_beside_the_text(compare: Compare, folder: Path) -> None:
    code, out, _ = compare("a.json", "b.json", "--html", "diff.html", "--json", "diff.json", "--fail-on", "failed +1%")
    assert code == 4 and out.startswith("B fails more often")
    assert (folder / "diff.html").read_text().startswith("<!doctype html>")
    data = json.loads((folder / "diff.json").read_text())
    assert data["schema"] == "talka.comparison/1" and data["rules"][0]["broken"] is True
    assert (data["a"]["file"], data["b"]["file"]) == ("a.json", "b.json")


def test_document_can_be_printed_alone(compare: Compare) -> None:
    code, out, _ = compare("a.json", "b.json", "--json", "-")
    assert code == 0 and json.loads(out)["different"] is True


def test_page_can_be_printed_alone(compare: Compare) -> None:
    _, out, _ = compare("a.json", "b.json", "--html", "-")
    assert out.startswith("<!doctype html>") and out.rstrip().endswith("</html>")


def test_same_file_twice_is_allowed_and_said(compare: Compare) -> None:
    code, out, _ = compare("a.json", "a.json")
    assert code == 0 and out.startswith("Same: ") and "A and B are the same run" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Name two results to compare"),
        (["a.json"], "Name two results to compare"),
        (["a.json", "b.json", "--within", "5"], "write a share above 0 %"),
        (["a.json", "none.json"], "none.json cannot be read: No such file"),
        (["a.json", "."], ". cannot be read: Is a directory"),
        (["a.json", "text.json"], "text.json: this is not a result of talka"),
        (["other.json", "a.json"], "other.json: this is a document of schema 'talka.result/9'"),
        (["a.json", "apart.json"], "no step in common"),
        (["a.json", "b.json", "--fail-on", "response_time.p99"], 'Write it like "response_time.p99 +10%"'),
        (["none.json", "b.json", "--fail-on", "nonsense"], 'The rule "nonsense" is wrong'),
        (["a.json", "b.json", "--fail-on", "login.rate -5%"], 'no step "login" is in both runs'),
        (["a.json", "b.json", "--json", "-", "--html", "-"], "cannot both be printed"),
        (["a.json", "b.json", "--html", "none/diff.html"], "--html: none/diff.html cannot be written"),
    ],
)
def test_wrong_input_ends_with_a_sentence_and_exit_code_2(
    compare: Compare, folder: Path, arguments: list[str], words: str
) -> None:
    (folder / "text.json").write_text("hello")
    (folder / "other.json").write_text((folder / "a.json").read_text().replace("talka.result/1", "talka.result/9"))
    result(folder / "apart.json", ms=50, step="elsewhere")
    code, out, err = compare(*arguments)
    assert (code, out) == (2, "") and words in err and "Traceback" not in err and "internal error" not in err


@pytest.mark.serial  # with other tests beside it, the noise of a short run may hide ten milliseconds, and rightly
def test_run_that_answers_ten_milliseconds_later_is_called_slower(compare: Compare, talka, server, folder) -> None:
    for delay in (50, 60):
        done = talka(
            *("run", f"{server.url}/delay/{delay}", "--rate", "100/s", "--duration", "4s"),
            *("--json", f"real{delay}.json", "--ui", "none"),
        )
        assert done.returncode == 0, done.stderr
    code, out, _ = compare("real50.json", "real60.json", "--json", "-", "--fail-on", "service_time.p50 +10%")
    (row,) = [row for row in json.loads(out)["rows"] if (row["measure"], row["stat"]) == ("service_time", "p50")]
    assert row["verdict"] == "slower" and 8 < row["difference"] < 12 and code == 4
