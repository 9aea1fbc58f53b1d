"""Handlers that travel with a pipeline: what is packed here, and how it is sent."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from talka.client import sync
from talka.client.code import with_files
from talka.client.ordering import SubmittedByImport
from talka.client.requests import BundleMissing
from talka.engine.bundle import VariableRead
from talka.engine.loader import being_imported
from talka.work.dags.dag import CodeBundle, DagSpec, TaskSpec
from talka.work.dags.pipeline import Dag
from talka.work.specs import BadWorkflows

SPEC = DagSpec(name="nightly", tasks=(TaskSpec(id="a", handler="mine"), TaskSpec(id="b", handler="other")))
MINE = "from talka import command, handler\n@handler('mine')\nasync def mine(task): ...\ncommand('sort', ['sort'])\n"


@pytest.fixture(autouse=True)
def imports_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_a_job_names_the_bundle_that_holds_its_handlers(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    spec, content = with_files(SPEC, ["mine.py"])
    bundle = spec.bundle
    assert bundle is not None and spec.tasks == SPEC.tasks
    assert (bundle.files, bundle.handlers, bundle.plain) == (("mine.py",), ("mine", "sort"), ("sort",))
    assert bundle.size_bytes == len(content)
    assert with_files(SPEC, [Path("mine.py")]) == (spec, content), "the same files are the same bundle"


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("mine.py", "\nraise KeyError('x')\n", "mine.py:2: raised KeyError: 'x' when it was imported"),
        ("mine.py", "x = 1\n", 'mine.py: has no handlers: write @handler("name") above a function'),
        (
            "mine.py",
            MINE.replace("'mine'", "'mein'"),
            "mine.py: no task of nightly names one of its handlers: there are",
        ),
        ("words.txt", "", "words.txt: is no Python file: name one with handlers, which ends in .py"),
    ],
)
def test_what_is_wrong_with_handlers_is_said_here(tmp_path: Path, name: str, text: str, problem: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadWorkflows) as refusal:
        with_files(SPEC, [name])
    assert str(refusal.value.problems[0]).startswith(problem)


def test_variables_that_handlers_read_and_that_do_not_travel_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_URL", "here")
    monkeypatch.setenv("HOME", "/home/ann")
    (tmp_path / "mine.py").write_text(
        "import os\nos.environ['DB_URL'], os.getenv('NOT_SET_HERE'), os.getenv('HOME')\n" + MINE
    )
    notes: list[VariableRead] = []
    with_files(SPEC, ["mine.py"], note=notes.append)
    assert notes == [("DB_URL", "mine.py", 2), ("HOME", "mine.py", 2)]


def test_a_file_that_submits_itself_while_it_is_imported_is_refused(tmp_path: Path) -> None:
    being_imported.add("mine.py")
    try:
        with pytest.raises(SubmittedByImport):
            sync.brought(SPEC, ())
    finally:
        being_imported.discard("mine.py")
    assert sync.brought(SPEC, ()) == (SPEC, b"")


class Managers(sync.AsyncClient):
    """What was asked of them."""

    def __init__(self, *, has: bool, losses: int = 0) -> None:
        self.asked: list[str] = []
        self.specs: list[DagSpec] = []
        self.has = has
        self.losses = losses

    async def learn(self) -> None: ...

    async def has_bundle(self, digest: str) -> bool:
        self.asked.append("has")
        return self.has

    async def put_bundle(self, digest: str, content: bytes) -> None:
        self.asked.append("put")

    async def _ask(self, method: str, path: str, *rest: Any, **more: Any) -> Any:
        self.asked.append(f"{method} {path}")
        self.specs.append(more["value"])
        if self.losses:
            self.losses -= 1
            raise BundleMissing("gone")


BROUGHT = DagSpec(name="n", tasks=SPEC.tasks, bundle=CodeBundle("a" * 64, 1, ("mine.py",), ("mine",)))


async def test_a_bundle_is_sent_before_the_job_where_managers_lack_it() -> None:
    lacking, having, losing = Managers(has=False), Managers(has=True), Managers(has=True, losses=1)
    for one in (lacking, having, losing):
        await one.submit_dag(BROUGHT, code=b"x")
    assert lacking.asked == ["has", "put", "POST /v1/jobs"]
    assert having.asked == ["has", "POST /v1/jobs"]
    assert losing.asked == ["has", "POST /v1/jobs", "put", "POST /v1/jobs"]


async def test_a_pipeline_submits_itself_with_handlers_of_files(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    dag = Dag("nightly")
    dag.task("a", "mine")
    managers = Managers(has=False)
    await dag.submit(managers, with_files=["mine.py"])
    assert managers.asked == ["has", "put", "POST /v1/jobs"]
    (spec,) = managers.specs
    assert spec == with_files(dag.spec(), ["mine.py"])[0] and spec.bundle is not None

    (tmp_path / "mine.py").write_text("x = (\n")
    with pytest.raises(BadWorkflows, match="mine.py:1"):
        await dag.submit(managers, with_files=["mine.py"])
    assert len(managers.specs) == 1


async def test_a_schedule_brings_its_bundle_and_a_job_without_one_asks_for_none() -> None:
    managers = Managers(has=False)
    await managers.put_schedule(BROUGHT, code=b"x")
    await managers.submit_dag(SPEC)
    assert managers.asked == ["has", "put", "PUT /v1/schedules", "POST /v1/jobs"]


async def test_managers_that_lose_a_bundle_again_and_again_are_given_up() -> None:
    managers = Managers(has=True, losses=9)
    with pytest.raises(BundleMissing):
        await managers.submit_dag(BROUGHT, code=b"x")
    assert managers.asked.count("put") == 2
