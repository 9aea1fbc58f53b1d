"""The port `Store`, proven by a store over dicts: one file, and one line in the table of engines."""

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

import talka
from talka.cli.main import run_command
from talka.nodes.manager import ManagerNode, ManagerOptions
from talka.nodes.member import MemberOptions
from talka.nodes.worker import WorkerNode, WorkerOptions
from talka.store.dags import opening
from talka.store.dags.opening import kind_of, open_store
from talka.store.dags.records import BadRecords
from talka.work.dags.dag import DagSpec, TaskSpec
from talka.work.lifecycle import JobState
from tests.ports import dict_store
from tests.ports.dict_store import DictKind
from tests.store.dags.engines import ENGINES

SECRET = "vQ8d0sLk3mZx7Yp2Rt5Wn9Bc4Hf6Jg1A"
HANDLERS = """
from talka import handler

@handler("double")
async def double(task):
    return 2 * task.config

@handler("add")
async def add(task):
    return 1 + task.inputs["a"]
"""


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> DictKind:
    """The one line."""
    kind = DictKind()
    monkeypatch.setitem(opening.STORES, "dict", kind)
    return kind


def test_it_is_one_file_and_one_line_in_the_table() -> None:
    """Whatever else knew of engines would name the one there is."""
    root = Path(talka.__file__).parent
    naming = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if "talka.store.dags.sqlite" in path.read_text() and not path.name.startswith("sqlite")
    }
    assert naming == {"store/dags/opening.py", "testing/store_shell.py"}
    lines = (root / "store/dags/opening.py").read_text().splitlines()
    assert [line.strip() for line in lines if "SqliteKind(" in line] == ['"sqlite": SqliteKind(),']
    assert Path(dict_store.__file__).read_text().count("sqlite") == 0


def test_the_suite_of_every_store_runs_on_it() -> None:
    assert set(ENGINES) == {*opening.STORES, "dict"}


async def test_an_address_chooses_its_engine(kind: DictKind) -> None:
    assert kind_of("dict:///jobs") is kind
    store = await open_store("dict:///jobs")
    assert store.place == "dict:///jobs" and list(kind.places) == ["dict:///jobs"]
    with pytest.raises(BadRecords, match="write dict:///NAME"):
        kind_of("dict:///")
    with pytest.raises(BadRecords, match="mysql:// is not the address of a store"):
        kind_of("mysql://ada:secret@db/jobs")


def test_commands_look_after_it(kind: DictKind, capsys: pytest.CaptureFixture[str]) -> None:
    def say(*arguments: str) -> str:
        run_command(["store", *arguments, "--store", "dict:///jobs"])
        out, err = capsys.readouterr()
        return out + err

    assert say("check") == "there is no store dict:///jobs\n"
    assert say("migrate") == "dict:///jobs was made, with schema 1\n"
    assert say("migrate") == "dict:///jobs has schema 1 already\n"
    assert say("check") == "dict:///jobs is whole: 0 jobs, 0 tasks\n"
    assert say("backup", "dict:///copy") == "dict:///jobs was copied to dict:///copy\n"
    assert list(kind.places) == ["dict:///jobs", "dict:///copy"]


class Nodes:
    """A manager with this store and a worker, in this process, on real sockets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.handlers = folder / "handlers.py"
        self.handlers.write_text(HANDLERS)
        self.running: list[asyncio.Task[None]] = []

    async def start(self) -> tuple[ManagerNode, WorkerNode]:
        member = MemberOptions(
            name="m",
            bind=("127.0.0.1", 0),
            secrets=(SECRET,),
            data_dir=self.folder / "m",
            voters=("m",),
            preset="fast",
        )
        manager = ManagerNode(ManagerOptions(member=member, store="dict:///jobs"), lambda event: None)
        await manager.open_store()
        worker = WorkerNode(
            WorkerOptions(
                name="w",
                seeds=(manager.runtime.address,),
                secrets=(SECRET,),
                data_dir=self.folder / "w",
                cores=1,
                handlers=(self.handlers,),
                core_user=str(os.geteuid()),
            ),
            lambda event: None,
        )
        self.running = [asyncio.create_task(manager.run()), asyncio.create_task(worker.run())]
        await worker.is_registered.wait()
        return manager, worker

    async def stop(self, manager: ManagerNode, worker: WorkerNode) -> None:
        worker.stop()
        worker.stop()
        await self.running[1]
        manager.stop()
        await self.running[0]


async def test_a_manager_runs_a_pipeline_on_it_and_finds_it_again(kind: DictKind, tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    tasks = (
        TaskSpec(id="a", handler="double", config=msgspec.Raw(b"21")),
        TaskSpec(id="b", handler="add", depends_on=("a",)),
    )
    async with asyncio.timeout(60):
        manager, worker = await nodes.start()
        assert manager.dags is not None
        facts = await manager.dags.submit_dag(DagSpec(name="n", tasks=tasks), "key", "me")
        seen = [one async for one in manager.dags.watch_dag(facts.id)]
        assert (seen[-1].state, seen[-1].counts) == (JobState.COMPLETED, {"completed": 2})
        assert bytes((await manager.dags.dag_task(facts.id, "b")).output) == b"43"
        await nodes.stop(manager, worker)
        epoch = kind.places["dict:///jobs"].rows.leases["manager"].epoch

        manager, worker = await nodes.start()
        assert manager.dags is not None
        assert (await manager.dags.submit_dag(DagSpec(name="n", tasks=tasks), "key", "me")).id == facts.id
        lease = kind.places["dict:///jobs"].rows.leases["manager"]
        assert lease.epoch == epoch + 1 and lease.owner
        await nodes.stop(manager, worker)
        assert not kind.places["dict:///jobs"].rows.leases["manager"].owner, "it was let go"
