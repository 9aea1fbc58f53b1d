"""`talka report`: a page out of a saved result, and a sentence for whatever is wrong with what was asked."""

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from talka.cli.main import run_command
from talka.cli.saved import ResultUnreadable, saved_result

Report = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Of a real run, of which nothing was answered."""
    file = tmp_path_factory.mktemp("result") / "result.json"
    run_command(
        ["run", "http://127.0.0.1:9/", "--iterations", "3", "--cores", "1", "--ui", "none", "--json", str(file)]
    )
    return file.read_bytes()


@pytest.fixture
def report(folder: Path, result: bytes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Report:
    """Runs the command in a folder with the result; its exit code and what it wrote."""
    Path("result.json").write_bytes(result)

    def run(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run_command(["report", *arguments])
        return code, *capfd.readouterr()

    return run


def test_a_result_becomes_a_page(report: Report) -> None:
    assert report("result.json", "-o", "report.html") == (0, "", "")
    page = Path("report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and page.endswith("</html>\n")
    assert "http://127.0.0.1:9/" in page
    assert sorted(os.listdir()) == [".git", "report.html", "result.json"]


def test_the_exit_code_is_about_the_page_and_not_about_the_result(report: Report, result: bytes) -> None:
    assert b'"exit_code": 6' in result
    assert report("result.json", "--output", "report.html")[0] == 0


def test_a_dash_prints_the_page(report: Report) -> None:
    code, out, err = report("result.json", "-o", "-")
    assert (code, err) == (0, "")
    assert out.startswith("<!doctype html>") and out.rstrip().endswith("</html>")
    assert sorted(os.listdir()) == [".git", "result.json"]


def test_a_dash_reads_the_result_from_stdin(report: Report, result: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(result)))
    assert report("-", "-o", "report.html") == (0, "", "")
    assert Path("report.html").exists()


def test_without_a_place_for_the_page_nothing_is_written(report: Report) -> None:
    code, out, err = report("result.json")
    assert (code, out) == (2, "")
    assert "nothing would be made of the result: name a page with -o FILE" in err
    assert sorted(os.listdir()) == [".git", "result.json"]


def test_the_result_itself_is_never_replaced(report: Report, result: bytes) -> None:
    os.link("result.json", "same.json")
    for name in ("result.json", "./result.json", "same.json"):
        code, _, err = report("result.json", "-o", name)
        assert code == 2
        assert err == f"--output: {name} is the result itself, and the page would replace it: name another file\n"
    assert Path("result.json").read_bytes() == result


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "bad.json: this is not a result of talka (talka.result/1)"),
        (b"[1, 2]", "bad.json: this is not a result of talka (talka.result/1)"),
        (b'{"schema": "talka.plan/1"}', "bad.json: this is not a result of talka (talka.result/1)"),
        (b"\xff\xfe\x00", "bad.json: this is not a result of talka (talka.result/1)"),
    ],
)
def test_a_file_that_is_no_result_is_refused_with_a_sentence(report: Report, content: bytes, said: str) -> None:
    Path("bad.json").write_bytes(content)
    code, out, err = report("bad.json", "-o", "report.html")
    assert (code, out) == (2, "")
    assert err.startswith(said) and err.count("\n") == 1
    assert not Path("report.html").exists()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (b'"schema": "talka.result/1"', b'"schema": "talka.result/9"', "only talka.result/1 can be read"),
        (b'"histogram": "HIST', b'"histogram": "LIST', "is damaged: The HdrHistogram text cannot be read"),
        (b'"requests": 0', b'"requests": ' + b"9" * 400, "numbers no measurement can have"),
    ],
)
def test_a_damaged_result_is_refused_with_a_sentence(
    report: Report, result: bytes, before: bytes, after: bytes, said: str
) -> None:
    Path("bad.json").write_bytes(result.replace(before, after))
    code, _, err = report("bad.json", "-o", "report.html")
    assert code == 2
    assert err.startswith("bad.json: ") and said in err and err.count("\n") == 1


def test_a_file_that_cannot_be_read_is_told(report: Report) -> None:
    hint = "Name a file that talka run --json has written."
    told = f"none.json cannot be read: No such file or directory. {hint}\n"
    assert report("none.json", "-o", "report.html") == (2, "", told)
    assert report(".git", "-o", "report.html") == (2, "", f".git cannot be read: Is a directory. {hint}\n")


def test_a_file_far_too_large_is_not_read_to_its_end(report: Report) -> None:
    with pytest.raises(ResultUnreadable) as caught:  # as for one that cannot be read at all
        saved_result("result.json", most_bytes=1000)
    assert str(caught.value) == "result.json is larger than 1,000 bytes: no result of talka is"


def test_a_place_that_cannot_be_written_is_told_before_the_result_is_read(report: Report) -> None:
    code, _, err = report("none.json", "-o", "nowhere/report.html")
    assert (code, err) == (2, "--output: nowhere/report.html cannot be written: its folder does not exist\n")
    assert "it is a folder" in report("result.json", "-o", ".git")[2]


def test_the_help_starts_with_examples(report: Report) -> None:
    code, out, _ = report("--help")
    assert code == 0
    assert "talka report result.json -o report.html" in out


def test_summary_is_printed_with_the_columns_that_are_asked_for(report: Report) -> None:
    code, out, err = report("result.json", "--summary", "p50,p99.99")
    assert (code, err) == (0, "")
    assert "http://127.0.0.1:9/" in out and "ERRORS" in out
    assert sorted(os.listdir()) == [".git", "result.json"]


def test_page_and_summary_are_made_of_one_reading(
    report: Report, result: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(result)))
    code, out, err = report("-", "-o", "report.html", "--summary", "p50")
    assert (code, err) == (0, "")
    assert "ERRORS" in out and Path("report.html").exists()


def test_wrong_columns_are_told_before_anything_is_written(report: Report) -> None:
    code, out, err = report("result.json", "-o", "report.html", "--summary", "p50,fast")
    assert (code, out) == (2, "")
    assert "--summary: 'fast' is not a column" in err
    assert sorted(os.listdir()) == [".git", "result.json"]
