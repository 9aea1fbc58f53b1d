"""`self.context` goes from workflow to workflow by `@depends`."""

from pathlib import Path

import pytest

ENGINES = ("native", "python")
HANDED = Path(__file__).parent / "workflows" / "handed.py"


def everybody_found_it(document) -> None:
    assert document["status"] == "completed"
    checks = {workflow["name"]: workflow["checks"] for workflow in document["workflows"]}
    for name in ("Buy", "Leave"):
        assert [(check["passed"], check["failed"]) for check in checks[name]] == [(6, 0)]
    assert any("self.context['client'] of Login is not handed on" in warning for warning in document["warnings"])


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_workflow_leaves_in_its_context_reaches_its_dependents(command) -> None:
    ended = command.run_file("handed.py", "--cores", "2")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    everybody_found_it(command.document())


def test_what_a_workflow_leaves_in_its_context_reaches_its_dependents_on_a_cluster(shared_jobs) -> None:
    ended = shared_jobs.submit(HANDED)

    assert ended.code == 0, ended.text
    everybody_found_it(ended.document())
