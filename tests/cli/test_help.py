"""Help is there at once, starts with examples, and fits."""

import subprocess
import sys

import pytest

from talka.cli.main import COMMANDS, run_command, talka
from talka.version import VERSION
from talka.work.outcome import EXIT_CODES

HEAVY = {"asyncio", "cryptography", "httptools", "msgspec", "psutil", "rich", "socket", "ssl", "starlette", "uvloop"}
LIST_MODULES = """
import sys
from talka.cli.main import run_command
assert run_command(sys.argv[1:]) == 0
print(*sorted(sys.modules), file=sys.stderr)
"""


def help_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run_command([*arguments, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["demo", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIST_MODULES, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    assert not HEAVY & set(done.stderr.split())


def test_listing_commands_imports_none_of_their_modules() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIST_MODULES, "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    homes = {f"talka.cli.{entry.home.partition(':')[0]}" for entry in COMMANDS.values()}
    assert not homes & set(done.stderr.split())


def test_help_shows_examples_before_anything_to_look_up(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys)
    order = [text.index(part) for part in ("Examples:", "talka demo", "Usage:", "Run:", "Look:", "Set up:", "Options:")]
    assert order == sorted(order)


def test_help_lists_every_command_with_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.split(maxsplit=1) for line in help_of(capsys).splitlines()]
    for name, entry in COMMANDS.items():
        assert [name, entry.summary] in lines


def test_help_of_run_starts_with_three_examples(capsys: pytest.CaptureFixture[str]) -> None:
    opening, usage, _ = help_of(capsys, "run").partition("Usage:")
    assert usage and len([line for line in opening.splitlines() if line.startswith("  talka run ")]) == 3


@pytest.mark.parametrize("columns", ["80", "200"])
def test_no_line_of_help_is_longer_than_a_hundred_columns(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for arguments in ([], *([name] for name in COMMANDS), ["config", "show"]):
        assert max(map(len, help_of(capsys, *arguments).splitlines())) <= min(int(columns), 100)
    run_command(["help", "exit-codes"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_list_exists_under_its_name(name: str) -> None:
    with talka.make_context("talka", ["--", name], resilient_parsing=True) as context:
        command = talka.get_command(context, name)
    assert command is not None and command.name == name and command.help


def test_help_command_is_the_same_as_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    for topic in ([], ["run"], ["config", "show"]):
        expected = help_of(capsys, *topic)
        assert run_command(["help", *topic]) == 0
        assert capsys.readouterr().out == expected


def test_every_exit_code_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["help", "exit-codes"]) == 0
    text = capsys.readouterr().out
    assert [int(line[:4]) for line in text.splitlines() if line[:4].strip()] == [int(code) for code in EXIT_CODES]
    assert all(meaning in " ".join(text.split()) for meaning in EXIT_CODES.values())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rnu"], ["rnu", "Did you mean run?", "talka --help"]),
        (["help", "rnu"], ["rnu", "Did you mean run?"]),
        (["help", "run", "more"], ["run more"]),
        (["help", "exit-code"], ["Did you mean exit-codes?"]),
        (["run", "--vsu", "3"], ["--vsu", "--vus", "talka run --help"]),
        (["run"], ["TARGET", "talka run --help"]),
        (["run", "shop.py", "--vus"], ["--vus", "talka run --help"]),
        (["run", "a.py", "b.py"], ["b.py", "talka run --help"]),
        (["completion", "tcsh"], ["tcsh", "zsh", "talka completion --help"]),
    ],
)
def test_wrong_usage_is_told_in_a_few_lines(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and len(printed.err.splitlines()) <= 2
    assert all(word in printed.err for word in words)


def test_without_a_command_the_help_is_shown_and_nothing_was_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([]) == 2
    printed = capsys.readouterr()
    assert "Examples:" in printed.err + printed.out and "Try '" not in printed.err


def test_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--version"]) == 0
    assert capsys.readouterr().out == f"talka {VERSION}\n"


def test_internal_error_is_one_line_and_tells_how_to_see_more(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a slip\nof ours")

    monkeypatch.delenv("TALKA_TRACEBACK", raising=False)
    monkeypatch.setattr("talka.cli.shell.exit_codes", fail)
    assert run_command(["help", "exit-codes"]) == 1
    text = capsys.readouterr().err
    assert text.splitlines()[0] == "internal error: ZeroDivisionError: a slip of ours"
    assert "TALKA_TRACEBACK=1" in text and "Traceback" not in text

    monkeypatch.setenv("TALKA_TRACEBACK", "1")
    assert run_command(["help", "exit-codes"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_outside_a_run_has_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("talka.cli.shell.exit_codes", interrupt)
    assert run_command(["help", "exit-codes"]) == 130
