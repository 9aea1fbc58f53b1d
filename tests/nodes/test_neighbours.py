"""A manager and a worker of one process: what they say to each other of tasks needs no frame, and is worth the same."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from talka.cluster.effects import Lane, Send
from talka.control.member.composite import ClusterMember, ToNeighbour
from talka.control.tasks.paced_frames import PACE_LIMITS
from talka.nodes.manager import ManagerNode
from talka.nodes.runtime import ASIDE_LIMIT, NodeOptions, NodeRuntime, be_neighbours
from talka.wire.attempts import StoreLife
from talka.wire.jobs import CHANNEL
from talka.wire.security.roles import Role
from talka.wire.task_views import DagFacts
from talka.wire.tasks import AssignTasks, ResultsStored, TaskMessage
from talka.work.dags.dag import DagSpec, TaskSpec
from tests.nodes.small_cluster import LIMIT_S, SECRET, small_cluster

HANDLERS = """
from talka import HandlerTask, handler

@handler("add")
async def add(task: HandlerTask) -> int:
    return 1 + sum(task.inputs.values())

@handler("length")
async def length(task: HandlerTask) -> int:
    return len(task.config)
"""


class Hearing:
    """The part of a node: keeps what it was told, and answers it as often as it is told to."""

    next_tick_at = 1 << 62

    def __init__(self) -> None:
        self.heard: list[tuple[str, int, object]] = []
        self.answers: list[ResultsStored] = []
        self.mistake = False

    def on_message(self, now: int, sender: str, message: object, boot: int) -> list[Any]:
        self.heard.append((sender, boot, message))
        if self.mistake:
            raise ZeroDivisionError
        return [Send(CHANNEL, sender, self.answers.pop(0), Lane.RESULTS)] if self.answers else []


class Node:
    """A runtime with a member whose part keeps what it hears. `hears`: whether it may look at what arrives."""

    def __init__(self, folder: Path, name: str) -> None:
        self.hears = True
        self.part = Hearing()
        self.heard_meanwhile: list[int] = []
        """How much its neighbour had heard, each time it said something."""
        options = NodeOptions(name=name, secrets=(SECRET,), data_dir=folder / name)
        self.runtime: NodeRuntime[Any] = NodeRuntime(
            options,
            Role.WORKER,
            on_event=lambda event: None,
            carry_out=self.carry_out,
            hears=lambda: self.hears,
        )
        self.runtime.member = ClusterMember(
            group="g", name=name, boot=self.runtime.boot, part=cast(Any, self.part), admission=self.runtime.admission
        )

    def carry_out(self, effect: object) -> None:
        neighbour = self.runtime.neighbour
        assert neighbour is not None
        self.heard_meanwhile.append(len(cast(Hearing, neighbour.member.jobs).heard))
        self.runtime.tell_neighbour(cast(ToNeighbour, effect))

    def say(self, to: str, *numbers: int) -> None:
        self.runtime.act([Send(CHANNEL, to, stored(number), Lane.RESULTS) for number in numbers])

    def heard(self) -> list[object]:
        return [message for _, _, message in self.part.heard]


def stored(number: int) -> ResultsStored:
    return ResultsStored(1, (number,), StoreLife(1, 1))


@pytest.fixture
def nodes(tmp_path: Path) -> Any:
    one, other = Node(tmp_path, "m"), Node(tmp_path, "w")
    be_neighbours(one.runtime, other.runtime)
    yield one, other
    one.runtime.release()
    other.runtime.release()


async def test_what_is_said_is_heard_in_its_order_and_not_in_the_midst_of_what_is_done(nodes: Any) -> None:
    one, other = nodes
    one.say("w", 1, 2)
    one.say("w", 3)
    assert other.part.heard == [("m", one.runtime.boot, stored(number)) for number in (1, 2, 3)]
    assert one.heard_meanwhile == [0, 0, 2]
    other.say("m", 4)
    assert one.part.heard == [("w", other.runtime.boot, stored(4))]


async def test_an_answer_is_heard_after_what_was_said_before_it(nodes: Any) -> None:
    one, other = nodes
    other.part.answers = [stored(11), stored(12)]
    one.part.answers = [stored(3)]
    one.say("w", 1, 2)
    assert one.heard() == [stored(11), stored(12)]
    assert other.heard() == [stored(1), stored(2), stored(3)]


async def test_a_long_exchange_lets_others_have_their_turn(nodes: Any) -> None:
    one, other = nodes
    one.part.answers = [stored(number) for number in range(ASIDE_LIMIT)]
    other.part.answers = [stored(number) for number in range(ASIDE_LIMIT)]
    one.say("w", 0)
    assert len(one.heard()) + len(other.heard()) == ASIDE_LIMIT
    one.say("w", 1)  # which waits behind what is on its way
    assert len(one.heard()) + len(other.heard()) > ASIDE_LIMIT
    for _ in range(3):
        await asyncio.sleep(0)
    assert (len(one.heard()), len(other.heard())) == (ASIDE_LIMIT, ASIDE_LIMIT + 2)


async def test_a_mistake_of_who_hears_is_none_of_who_speaks(nodes: Any) -> None:
    one, other = nodes
    mistakes: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: mistakes.append(context["exception"]))
    other.part.mistake = True
    one.say("w", 1, 2)
    assert [type(mistake) for mistake in mistakes] == [ZeroDivisionError, ZeroDivisionError]
    assert other.heard() == [stored(1), stored(2)]


async def test_what_is_said_to_a_node_that_has_ended_or_may_not_hear_is_lost(nodes: Any) -> None:
    one, other = nodes
    other.hears = False
    one.say("w", 1)
    other.hears = True
    one.say("w", 2)
    await other.runtime.quiet()
    one.say("w", 3)
    assert other.heard() == [stored(2)]
    other.say("m", 4)  # what it said at last
    assert one.heard() == [stored(4)]


def noting(hear: Callable[..., Any], ways: dict[str, set[str]]) -> Callable[..., Any]:
    """What it is told comes from an address if it came in a frame."""

    def noted(
        now: int, sender: str, message: object, boot: int, source: str = "", role: Role | None = None
    ) -> list[Any]:
        ways.setdefault(type(message).__name__, set()).add("frame" if source else "aside")
        return [*hear(now, sender, message, boot, source, role)]

    return noted


async def test_a_pipeline_on_the_worker_beside_its_manager_needs_no_frame_of_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "handlers.py").write_text(HANDLERS)
    async with small_cluster(tmp_path, "m", store=f"sqlite:///{tmp_path / 'jobs.sqlite'}") as cluster:
        manager = cluster.managers["m"]
        worker = await cluster.start_worker(handlers=(tmp_path / "handlers.py",), beside="m")
        ways: dict[str, set[str]] = {}
        for part in (manager.manager, worker.worker):
            monkeypatch.setattr(part, "on_message", noting(part.on_message, ways))
        tasks = [TaskSpec(id=f"t{n}", handler="add", depends_on=(f"t{n - 1}",) if n else ()) for n in range(20)]
        id = await completed(manager, DagSpec(name="chain", tasks=tuple(tasks), wait_for_workers=True))
        assert manager.dags is not None
        assert bytes((await manager.dags.dag_task(id, "t19")).output) == b"20"
        said = {kind: found for kind, found in ways.items() if kind in {one.__name__ for one in TaskMessage.__args__}}
        assert {"AssignTasks", "Done"} <= said.keys() and all(found == {"aside"} for found in said.values())
        assert ways.get("Beat", {"frame"}) == {"frame"}


async def test_no_more_bytes_wait_for_a_neighbour_than_the_window_to_a_worker_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "handlers.py").write_text(HANDLERS)
    async with small_cluster(tmp_path, "m", store=f"sqlite:///{tmp_path / 'jobs.sqlite'}") as cluster:
        manager = cluster.managers["m"]
        worker = await cluster.start_worker(handlers=(tmp_path / "handlers.py",), beside="m")
        waiting, most = 0, 0
        tell, hear = manager.runtime.tell_neighbour, worker.runtime.hear_neighbour

        def size_of(message: object) -> int:
            return sum(len(task.config) for task in message.tasks) if isinstance(message, AssignTasks) else 0

        def told(said: ToNeighbour) -> None:
            nonlocal waiting, most
            waiting += size_of(said.message)
            most = max(most, waiting)
            tell(said)

        def heard(boot: int, message: Any) -> None:
            nonlocal waiting
            waiting -= size_of(message)
            hear(boot, message)

        monkeypatch.setattr(manager.runtime, "tell_neighbour", told)
        monkeypatch.setattr(worker.runtime, "hear_neighbour", heard)
        config = b'"' + b"x" * 250_000 + b'"'
        tasks = [TaskSpec(id=f"t{n}", handler="length", config=msgspec.Raw(config)) for n in range(40)]
        await completed(manager, DagSpec(name="large", tasks=tuple(tasks), wait_for_workers=True))
        assert len(config) < most <= PACE_LIMITS.window_bytes + 1_000_000  # and what went in the last message of it


async def test_what_a_connection_to_a_worker_does_not_hold_waits_until_it_takes_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "handlers.py").write_text(HANDLERS)
    async with small_cluster(tmp_path, "m", store=f"sqlite:///{tmp_path / 'jobs.sqlite'}") as cluster:
        manager = cluster.managers["m"]
        await cluster.start_worker(handlers=(tmp_path / "handlers.py",), cores=2)
        await completed(manager, large_dag("short", 1, 10))
        streams, asked = manager.runtime.streams, asyncio.Event()
        address = manager.member.address_of("w")
        link = streams._accepted[address]
        when_room = streams.when_room

        def noted(address: str, told: Callable[[], None]) -> None:
            when_room(address, told)
            asked.set()

        monkeypatch.setattr(streams, "when_room", noted)
        undeliverable = streams.counts.get("undeliverable", 0)
        link.pause_writing()  # as if the worker did not read
        assert manager.dags is not None
        spec = large_dag("large", 60, 250_000)
        job = await manager.dags.submit_dag(spec, "", "")
        async with asyncio.timeout(LIMIT_S):
            await asked.wait()
        for _ in range(20):  # whoever is told that there is room is told in the next turn
            await asyncio.sleep(0)
        assert (await manager.dags.dag(job.id)).counts == {"assigned": 60}, "more than a connection holds"
        assert PACE_LIMITS.window_bytes < link.queue.size_bytes
        assert not any(link.queue.refused) and streams._accepted.get(address) is link
        link.resume_writing()
        await completed_job(manager, job)
        assert streams._accepted[address] is link and not link.queue.is_stuck
        assert streams.counts.get("undeliverable", 0) == undeliverable and not any(link.queue.refused)


def large_dag(name: str, count: int, size: int) -> DagSpec:
    config = msgspec.Raw(b'"' + b"x" * size + b'"')
    tasks = [TaskSpec(id=f"t{n}", handler="length", config=config) for n in range(count)]
    return DagSpec(name=name, tasks=tuple(tasks), wait_for_workers=True)


async def completed(manager: ManagerNode, spec: DagSpec) -> str:
    assert manager.dags is not None
    return await completed_job(manager, await manager.dags.submit_dag(spec, "", ""))


async def completed_job(manager: ManagerNode, facts: DagFacts) -> str:
    assert manager.dags is not None
    async with asyncio.timeout(LIMIT_S):
        async for seen in manager.dags.watch_dag(facts.id):
            facts = seen
    assert (facts.state, facts.counts) == ("completed", {"completed": facts.tasks}), facts
    return facts.id
