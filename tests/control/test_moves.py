"""Every state of a job or a task in `control` changes through `work.lifecycle`, which knows the legal moves."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import talka.control

ROOT = Path(talka.control.__file__).parent
MOVES = ("move", "begin_again")
NO_MOVES = {
    ("member/breaker.py", "*"),  # a breaker's states are its own
    ("jobs/job_checkpoint.py", "state"),  # read from what an earlier leader of the job kept
    ("jobs/led_job.py", "state"),  # facts for whoever asks: nothing is changed
    ("jobs/registry.py", "state"),  # told by the manager that leads the job, which has made the moves
}
"""Files, and what is assigned there."""


def changes(tree: ast.Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What a state of something that is there already is set to, and where: `x.state = …` and `replace(x, state=…)`."""
    makers = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    made = {id(node) for maker in makers for node in ast.walk(maker)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and id(node) not in made:
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple):
                    values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value] * len(target.elts)
                    pairs = list(zip(target.elts, values, strict=True))
                yield from ((to, value) for to, value in pairs if isinstance(to, ast.Attribute) and to.attr == "state")
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("replace"):
            yield from ((word.value, word.value) for word in node.keywords if word.arg == "state")


def is_moved(value: ast.expr) -> bool:
    """Or a word that is no state of a job or a task, as a worker's."""
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) in MOVES
    return isinstance(value, ast.Constant)


def strays(file: str, content: str) -> list[str]:
    names = {what for name, what in NO_MOVES if name == file}
    return [
        f"{file}:{place.lineno}: {ast.unparse(value)}"
        for place, value in changes(ast.parse(content))
        if not is_moved(value) and not names & {"*", ast.unparse(value).rpartition(".")[2]}
    ]


def test_every_state_changes_by_a_move() -> None:
    found = [
        one for path in sorted(ROOT.rglob("*.py")) for one in strays(str(path.relative_to(ROOT)), path.read_text())
    ]
    assert not found, "\n".join(["these states do not change through move() of work/lifecycle.py:", *found])


@pytest.mark.parametrize(
    ("content", "count"),
    [
        ("run.state = TaskState.READY", 1),
        ("run.state, run.at = TaskState.READY, 5", 1),
        ("self.state, self.reason = self._end()", 1),
        ("record = replace(record, state=JobState.QUEUED)", 1),
        ("run.state = move(run.state, TaskState.READY)", 0),
        ("facts = replace(facts, state='draining')", 0),
        ("class A:\n    def __init__(self):\n        self.state = TaskState.PENDING", 0),
    ],
)
def test_a_state_that_is_set_without_a_move_is_found(content: str, count: int) -> None:
    assert len(strays("some.py", content)) == count
