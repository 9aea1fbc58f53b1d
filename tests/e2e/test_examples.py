"""Every example runs."""

from pathlib import Path

import pytest

from tests.e2e.conftest import Command

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
MIX = next(path for path in EXAMPLES if path.name == "mix.py")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_runs_and_its_thresholds_hold(tmp_path, job_server, path) -> None:
    # So many that the four which are under way when the machine stands still are less than one in a hundred. Where
    # users pause, there are more of them at a time, and no rule about times.
    iterations, vus = ("100", "25") if "self.pause" in path.read_text() else ("1000", "4")
    command = Command(tmp_path, job_server.url, "auto")
    ended = command.run(
        "run", str(path), "--iterations", iterations, "--vus", vus, "--ui", "none", "--json", str(command.result)
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    document = command.document()
    assert all(workflow["status"] == "completed" for workflow in document["workflows"])
    assert document["totals"]["failed"] == 0
    assert all(check["failed"] == 0 for workflow in document["workflows"] for check in workflow["checks"])


def test_classes_of_the_mix_have_their_parts_of_the_load_and_nothing_is_lost(command, server) -> None:
    ended = command.run("run", str(MIX), "--duration", "3s", "--ui", "none", "--json", str(command.result))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    counts = {workflow["name"]: workflow["iterations"] for workflow in command.document()["workflows"]}
    assert counts == {"Browse": 210, "Buy": 90}
    assert server.count() == 300
