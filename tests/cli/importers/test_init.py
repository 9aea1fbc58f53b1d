"""`talka init` writes a project that runs, or nothing."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from talka.cli import main
from talka.cli.config import CHECKS
from talka.cli.importers import init as init_module
from talka.cli.importers.init import FIRST_SETTINGS, INPUT_LIMIT_BYTES, SETTINGS, TEST, WORKFLOW

RECORDINGS = Path(__file__).parent / "recordings"
FILES = [TEST, SETTINGS, WORKFLOW]


@pytest.fixture
def init(folder: Path, capsys: pytest.CaptureFixture[str]):
    """Runs the command in the empty folder and returns its exit code, what it said and what it told."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main.run_command(["init", *arguments])
        done = capsys.readouterr()
        return code, done.out, done.err

    return run


def files_in(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and ".git/" not in str(path)
    )


def test_project_is_written_and_three_lines_say_what_is_next(init, folder: Path) -> None:
    code, out, err = init()
    assert code == 0 and files_in(folder) == sorted(FILES)
    assert len(out.splitlines()) == 3 and "talka demo-server" in out and f"talka run {TEST}" in out
    assert all(name in err for name in FILES)


def test_first_test_runs_against_the_demo_server(init, folder: Path, talka, server) -> None:
    init()
    # So many that a machine that stands still for a moment does not break its threshold on times.
    done = talka("run", TEST, "--iterations", "300", "--env", f"TARGET={server.url}", "--ui", "none", "--cores", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert server.requests == 900


def test_first_test_is_aimed_at_the_demo_server_and_nothing_else(init, folder: Path) -> None:
    init()
    text = "".join((folder / name).read_text() for name in FILES)
    assert {re.sub(r":\d+$", "", url) for url in re.findall(r"https?://[\w.:]+", text)} == {"http://127.0.0.1"}
    assert "secrets." not in text


def test_first_test_is_formatted_checked_and_typed(init, folder: Path) -> None:
    init()
    ruff = [sys.executable, "-m", "ruff"]
    subprocess.run([*ruff, "check", "--isolated", "--select", "F,E9,I", TEST], check=True, capture_output=True)
    subprocess.run([*ruff, "format", "--isolated", "--line-length", "120", "--check", TEST], check=True)
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", TEST], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_settings_name_keys_that_exist_and_each_has_a_value_that_holds() -> None:
    lines = [re.sub(r"^# (?=\w+ = )", "", line) for line in FIRST_SETTINGS.splitlines()]
    values = tomllib.loads("\n".join(lines))
    assert {"vus", "duration", "rate", "iterations", "thresholds", "json", "grace"} < set(values) <= set(CHECKS)
    for name, value in values.items():
        CHECKS[name](name, value)


def test_settings_as_they_are_written_change_nothing(init, talka) -> None:
    init()
    done = talka("config", "show")
    assert done.returncode == 0 and "50/s" not in done.stdout


def test_folder_is_made_and_named_in_what_is_next(init, folder: Path) -> None:
    code, out, _ = init("new folder/deep")
    assert code == 0 and "cd 'new folder/deep' && talka run" in out
    assert files_in(folder / "new folder/deep") == sorted(FILES)


def test_files_that_are_there_are_all_named_and_nothing_is_written(init, folder: Path) -> None:
    (folder / TEST).write_text("mine")
    (folder / SETTINGS).symlink_to("nowhere")
    code, out, err = init()
    assert code == 2 and out == "" and TEST in err and SETTINGS in err and "--force" in err and WORKFLOW not in err
    assert (folder / TEST).read_text() == "mine" and not (folder / ".github").exists()


def test_force_overwrites(init, folder: Path) -> None:
    (folder / TEST).write_text("mine")
    assert init("--force")[0] == 0
    assert "Workflow" in (folder / TEST).read_text()


@pytest.mark.parametrize("blocked", ["there", "there/.github", "there/.github/workflows"])
def test_file_where_a_folder_is_needed_is_told_and_nothing_is_written(blocked: str, init, folder: Path) -> None:
    (folder / blocked).parent.mkdir(parents=True, exist_ok=True)
    (folder / blocked).write_text("a file")
    code, _, err = init("there")
    assert code == 2 and "there" in err and "Traceback" not in err
    assert files_in(folder) == [blocked]


def test_folder_in_place_of_a_file_is_told_even_with_force(init, folder: Path) -> None:
    (folder / WORKFLOW).mkdir(parents=True)
    code, _, err = init("--force")
    assert code == 2 and "is a folder" in err and files_in(folder) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_that_cannot_be_written_is_told(init, folder: Path) -> None:
    (folder / "locked").mkdir(mode=0o500)
    code, _, err = init("locked")
    assert code == 2 and "locked" in err


def test_folders_that_were_made_are_taken_away_when_writing_fails(
    init, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str, what: str) -> None:
        raise init_module.CannotInit("there is no room")

    monkeypatch.setattr(init_module, "ResultFile", fail)
    code, _, err = init("new/deep")
    assert code == 2 and "there is no room" in err and not (folder / "new").exists()


# From a recording or a description.


def test_recording_becomes_a_project(init, folder: Path) -> None:
    code, out, err = init("shop", "--from-har", str(RECORDINGS / "browser.har"))
    assert code == 0 and files_in(folder / "shop") == sorted(FILES)
    assert "Skipped 10 requests: 6 for static assets" in err and "SESSION" in err
    assert len(out.splitlines()) == 3 and "export SESSION=…" in out
    workflow = (folder / "shop" / WORKFLOW).read_text()
    assert "SESSION: ${{ secrets.SESSION }}" in workflow and "push:" not in workflow


def test_description_becomes_a_project(init, folder: Path) -> None:
    code, out, _ = init("--from-openapi", str(RECORDINGS / "shop-3.0.json"))
    assert code == 0 and "async def list_goods" in (folder / TEST).read_text()
    assert len(out.splitlines()) == 3 and f"talka check {TEST}" in out


def test_test_that_lacks_a_variable_says_which(init, here) -> None:
    init("--from-har", str(RECORDINGS / "forms.har"))
    done = here("check", TEST)
    assert done.returncode == 3 and "'PASSWORD'" in done.stderr


@pytest.mark.parametrize("flag", ["--from-har", "--from-openapi"])
@pytest.mark.parametrize("content", ["", "no JSON", "{", "[]", "{}", '{"log": 1}', '{"openapi": 3}'])
def test_bad_input_is_told_and_nothing_is_written(flag: str, content: str, init, folder: Path) -> None:
    (folder / "input").write_text(content)
    code, out, err = init("new", flag, "input")
    assert code == 2 and out == "" and "input" in err and "internal error" not in err
    assert files_in(folder) == ["input"] and not (folder / "new").exists()


@pytest.mark.parametrize("flag", ["--from-har", "--from-openapi"])
def test_input_that_is_too_large_is_told(flag: str, init, folder: Path) -> None:
    with open(folder / "large", "wb") as file:
        file.truncate(INPUT_LIMIT_BYTES + 1)
    code, _, err = init(flag, "large")
    assert code == 2 and "larger than 64 MiB" in err and files_in(folder) == ["large"]


@pytest.mark.parametrize("path", ["nosuch.har", ".", "a\0b"])
def test_input_that_cannot_be_read_is_told(path: str, init, folder: Path) -> None:
    code, _, err = init("--from-har", path)
    assert code == 2 and "cannot be read" in err and files_in(folder) == []


def test_two_inputs_exclude_each_other(init, folder: Path) -> None:
    code, _, err = init("--from-har", "a", "--from-openapi", "b")
    assert code == 2 and "exclude each other" in err
