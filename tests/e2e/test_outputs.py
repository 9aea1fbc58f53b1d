"""Outputs that hang or fail change nothing but a warning."""

import socket
from pathlib import Path

import pytest


@pytest.fixture
def deaf():
    """An address where connections are taken by the kernel and nobody ever reads."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full disk to write to")
def test_two_outputs_that_hang_or_fail_leave_the_numbers_and_the_exit_code_alone(command, server, deaf) -> None:
    ended = command.run_file(
        "plain.py", "--iterations", "200", "--output", f"influx=http://{deaf}/write", "--output", "jsonl=/dev/full"
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    document = command.document()
    assert document["totals"]["requests"] == 200 == server.count()
    warned = [warning for warning in document["warnings"] if "output" in warning]
    assert len(warned) == 2 and any("jsonl" in text for text in warned) and any("influx" in text for text in warned)
    assert all(text.split(":")[0] in ended.stdout for text in warned)


def test_every_file_of_a_run_is_written(command) -> None:
    page, cases, kept = (str(command.folder / name) for name in ("report.html", "junit.xml", "history.sqlite"))
    ended = command.run_file(
        "plain.py", "--iterations", "50", "--html", page, "--junit", cases, "--keep", "--store", kept,
        "--output", f"csv={command.folder}/tables/", "--threshold", "failed < 1%",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert 5_000 < Path(page).stat().st_size < 200_000
    assert "failed &lt; 1%" in Path(cases).read_text()
    assert (command.folder / "tables" / "steps.csv").read_text().count("\n") == 2
    listed = command.run("history", "--store", kept)
    assert command.document()["job"]["id"] in listed.stdout


def test_store_without_keep_is_a_mistake(command, server) -> None:
    ended = command.run("run", server.url, "--store", "kept.sqlite")
    assert ended.returncode == 2 and "--store goes with --keep" in ended.stderr
