"""Every promise of the pages has its test in `make test`, and every test that is named there is one."""

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.e2e import conftest
from tests.e2e.promises import ALSO, EXAMPLES, OPERATIONS, README, named

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PROSE = ("One test, many machines", "Pipelines that are never lost")
SENTENCE = re.compile(r"(?<=[.!])\s+(?=[A-Z`])")
BOLD = re.compile(r"\*\*(.+?)\*\*", re.DOTALL)


def section(page: str, title: str) -> str:
    """Without what stands in fences."""
    _, _, rest = (ROOT / page).read_text().partition(f"\n## {title}\n")
    assert rest, f"{page} has no section {title!r}"
    text = rest.partition("\n## ")[0]
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def promises_of_the_readme() -> list[str]:
    bullets = re.findall(r"^- (.+?)(?=^- |\Z)", section("README.md", "What you can rely on"), re.DOTALL | re.MULTILINE)
    bold = [" ".join(found[1].split()) for bullet in bullets if (found := BOLD.match(bullet))]
    assert len(bold) == len(bullets)
    prose = [sentence for title in PROSE for part in paragraphs(section("README.md", title)) for sentence in
             SENTENCE.split(part)]  # fmt: skip
    return bold + prose


def promises_of_operations() -> list[str]:
    text = section("docs/operations.md", "When something dies")
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")]
    bold = [found[1] for part in paragraphs(text) if (found := BOLD.match(part))]
    return [row for row in rows if row.strip("-")] + bold


def unmatched(promises: Iterable[str], entries: Mapping[str, str]) -> list[str]:
    """Promises that have no entry or several, and entries that have no promise."""
    promises = list(promises)
    found = {promise: longest([key for key in entries if promise.startswith(key)]) for promise in promises}
    taken = [key for key in found.values() if key]
    alone = [promise for promise, key in found.items() if not key]
    return alone + [key for key in entries if taken.count(key) != 1]


def longest(keys: list[str]) -> str:
    """`the only manager of one` and not `the only manager`."""
    return max(keys, key=len, default="")


@pytest.mark.parametrize(
    ("promises", "entries"),
    [
        pytest.param(promises_of_the_readme, README, id="README.md"),
        pytest.param(promises_of_operations, OPERATIONS, id="operations.md"),
    ],
)
def test_every_promise_has_one_test_and_every_entry_one_promise(promises, entries) -> None:
    assert len(promises()) >= 14
    assert unmatched(promises(), entries) == []


def test_what_has_no_entry_or_no_promise_is_found() -> None:
    entries = {"a worker": "x", "a worker is cut off": "y", "a disk": "z"}

    assert unmatched(["a worker dies", "a worker is cut off", "a disk is full"], entries) == []
    assert unmatched(["a worker dies", "a core dies"], entries) == ["a core dies", "a worker is cut off", "a disk"]
    assert unmatched(["a disk is full", "a disk is gone", "a worker", "a worker is cut off"], entries) == ["a disk"]


@pytest.mark.parametrize("test", sorted(named()))
def test_what_is_named_is_a_test_of_every_run(test: str) -> None:
    file, _, name = test.partition("::")
    tree = ast.parse((TESTS / file).read_text())
    functions = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == name.partition("[")[0]]
    assert len(functions) == 1, f"tests/{file} has no {name}"
    marks = [ast.unparse(decorator) for decorator in functions[0].decorator_list]
    assert not any(mark.startswith(("pytest.mark.long", "pytest.mark.serial")) for mark in marks), marks


@pytest.mark.parametrize("mark", ["long", "serial"])
def test_a_promised_test_that_its_file_or_a_parameter_keeps_from_every_run_is_found(mark: str) -> None:
    file, _, name = README["Exact counts."].removeprefix("e2e/").partition("::")

    class Item:
        path = conftest.HERE / file
        nodeid = f"{file}::{name}[slow]"

        def __init__(self, *marks: str) -> None:
            self.name, self.originalname, self.marks = f"{name}[slow]", name, marks

        def get_closest_marker(self, asked: str) -> bool:
            return asked in self.marks

    config = SimpleNamespace(args=["tests/e2e/one.py::one"])
    conftest.pytest_collection_modifyitems(config, [Item("patient")])  # type: ignore[arg-type, list-item]
    with pytest.raises(pytest.UsageError, match=f"names {re.escape(Item.nodeid)}, which is marked {mark}"):
        conftest.pytest_collection_modifyitems(config, [Item("patient", mark)])  # type: ignore[arg-type, list-item]


def test_every_example_is_run() -> None:
    """Files by their names, and the folder by its own test."""
    assert {path.name for path in (ROOT / "examples").iterdir() if path.is_dir() and path.name != "__pycache__"} == {
        "etl"
    }
    text = (TESTS / EXAMPLES[0].partition("::")[0]).read_text()
    assert '"examples").glob("*.py")' in text


def test_reasons_are_given() -> None:
    assert all(ALSO.values())
