"""What every node has: a timer that never fires before it is time, effects and writes in their order, chores."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from talka.clock import boottime_ns
from talka.engine.process_start import new_event_loop
from talka.errors import Unavailable
from talka.nodes import runtime
from talka.nodes.runtime import NodeOptions, NodeRuntime, TickTimer
from talka.units import MILLISECOND, NEVER
from talka.wire.security.roles import Role

LIMIT_S = 60.0


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, new_event_loop])
def test_the_timer_does_not_fire_before_its_time(factory) -> None:
    """Some loops round to whole milliseconds, and to the one that has begun."""

    async def early() -> list[int]:
        found = []
        for part in range(1, 10):  # of a millisecond
            due = boottime_ns() + 3 * MILLISECOND + part * MILLISECOND // 10
            fired: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            timer = TickTimer(lambda at=due: at, lambda end=fired: end.set_result(boottime_ns()))
            timer.follow()
            found.append(await fired - due)
            timer.close()
        return found

    with asyncio.Runner(loop_factory=factory) as runner:
        assert min(runner.run(early())) >= 0


def test_a_loop_that_calls_too_early_is_asked_to_wait_for_the_rest(monkeypatch) -> None:
    now, due = 1_000 * MILLISECOND, 1_002 * MILLISECOND
    nows = iter([now, due - 1, due - 1, due])  # set; called too early, so set again; called in time
    monkeypatch.setattr(runtime, "boottime_ns", lambda: next(nows))

    async def fired() -> int:
        count = 0
        ticks = iter([due, NEVER])
        over = asyncio.Event()

        def fire() -> None:
            nonlocal count
            count += 1
            over.set()

        timer = TickTimer(lambda: next(ticks), fire)
        timer.follow()
        await over.wait()
        assert not timer.is_set
        return count

    assert asyncio.run(fired()) == 1
    assert list(nows) == []


def test_the_next_tick_is_asked_for_once_in_a_millisecond_however_much_happens(monkeypatch) -> None:
    now = 1_000 * MILLISECOND
    monkeypatch.setattr(runtime, "boottime_ns", lambda: now)

    async def follow() -> None:
        nonlocal now
        asked: list[int] = []
        later = asyncio.Event()

        def ask() -> int:
            asked.append(now)
            if len(asked) == 2:
                later.set()
            return NEVER

        timer = TickTimer(ask, lambda: None)
        for _ in range(100):
            timer.follow()
        assert asked == [now], "at once, when it was not asked for lately"
        now += MILLISECOND
        await later.wait()  # what happened since is not forgotten
        assert asked == [now - MILLISECOND, now]
        timer.follow()
        timer.close()
        now += MILLISECOND
        timer.follow()
        assert not timer.is_set and len(asked) == 3, "what is over waits for nothing"

    asyncio.run(follow())


class Machine:
    """Stands for the member of a node: keeps what it was told."""

    next_tick_at = NEVER

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def act(self, now: int, effects: list[Any]) -> list[Any]:
        return effects

    def tick(self, now: int) -> list[Any]:
        return ["slip"]

    def on_persisted(self, now: int, ticket: int) -> list[Any]:
        self.told.append(("kept", ticket))
        return []

    def on_not_persisted(self, now: int, ticket: int, text: str) -> list[Any]:
        self.told.append(("lost", ticket, text))
        return []


class Node:
    """A runtime, what it carried out and what it told."""

    def __init__(self, folder: Path, then: dict[str, list[str]] | None = None) -> None:
        self.done: list[str] = []
        self.events: list[dict[str, Any]] = []
        self._then = then or {}
        options = NodeOptions(name="n", secrets=("vQ8d0sLk3mZx7Yp2Rt5Wn9Bc4Hf6Jg1A",), data_dir=folder)
        self.runtime: NodeRuntime[str] = NodeRuntime(
            options, Role.WORKER, on_event=self.events.append, carry_out=self._carry_out, marks={"worker": "n"}
        )
        self.machine = Machine()
        self.runtime.member = cast(Any, self.machine)

    def _carry_out(self, effect: str) -> None:
        self.done.append(effect)
        if effect == "slip":
            raise ZeroDivisionError
        self.runtime.act(self._then.get(effect, []))

    def told(self) -> list[str]:
        return [event.get("text", event["event"]) for event in self.events]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path, {"a": ["a1", "a2"], "a1": ["a11"]})
    yield made
    await made.runtime.close()
    made.runtime.release()


async def test_effects_are_carried_out_in_the_order_in_which_they_were_decided(node: Node) -> None:
    node.runtime.do(["a", "b"])
    assert node.done == ["a", "b", "a1", "a2", "a11"]


async def test_after_a_slip_effects_are_carried_out_again(node: Node) -> None:
    with pytest.raises(ZeroDivisionError):
        node.runtime.do(["a", "slip", "c"])
    node.runtime.do(["d"])
    assert node.done == ["a", "slip", "d"]


async def test_a_mistake_in_what_was_due_ends_the_node(node: Node) -> None:
    """It would be due again at once, and nothing else that is due at some instant would be done any more."""
    loop = asyncio.get_running_loop()
    told: list[Any] = []
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    node.machine.next_tick_at = 0
    node.runtime.timer.follow()
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(node.runtime.stopped(), LIMIT_S)
    assert told and node.done[0] == "slip"


async def settled(node: Node) -> None:
    """Every write was made, and told of."""
    await node.runtime.disk.close(LIMIT_S)
    await asyncio.sleep(0)


def full(*_: object) -> None:
    raise Unavailable("the disk is full")


async def test_writes_are_made_and_told_of_in_the_order_in_which_they_were_asked_for(node: Node) -> None:
    written: list[int] = []
    for ticket in range(20):
        node.runtime.persist(ticket, written.append, ticket)
    await settled(node)
    assert written == [*range(20)] and node.machine.told == [("kept", ticket) for ticket in range(20)]


async def test_connection_that_somebody_opened_and_closed_takes_along_what_was_agreed_on(node: Node) -> None:
    agreements = node.runtime.admission.agreements
    agreements.meet("b", 5, "1.1", source="#1")
    agreements.meet("c", 6, "1.1", source="10.0.0.3:8471")

    for address in ("#1", "10.0.0.3:8471"):
        node.runtime.streams._on_gone(address, True)  # type: ignore[misc]

    assert (agreements.life_of("b"), agreements.life_of("c")) == (0, 6)


async def test_what_is_not_vital_and_cannot_be_written_is_told_and_the_node_goes_on(node: Node) -> None:
    node.runtime.persist(1, full, is_vital=False)
    await settled(node)
    assert node.machine.told == [("lost", 1, "the disk is full")] and node.told() == ["the disk is full"]
    assert not node.runtime.stopping.is_set()


async def test_node_that_cannot_write_what_is_vital_stops_and_its_member_hears_of_no_later_write(node: Node) -> None:
    node.runtime.persist(1, full)
    node.runtime.persist(2, lambda: None)
    await settled(node)
    await node.runtime.stopped()
    assert str(node.runtime.failure) == "the disk is full" and node.machine.told == []


async def test_mistake_in_a_chore_ends_the_node(node: Node) -> None:
    async def slip() -> None:
        raise ZeroDivisionError

    assert node.runtime.spawn(slip())
    with pytest.raises(ZeroDivisionError):
        await node.runtime.stopped()


async def test_chores_are_bounded_and_end_with_the_node(node: Node) -> None:
    chores = [node.runtime.spawn(asyncio.sleep(3600)) for _ in range(runtime.CHORES_LIMIT + 1)]
    assert all(chores[:-1]) and not chores[-1]
    await node.runtime.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_node_that_cannot_be_opened_leaves_nothing_behind(tmp_path: Path) -> None:
    node, closed = Node(tmp_path), []
    node.runtime.held.callback(closed.append, "file")
    with pytest.raises(Unavailable), node.runtime.opening():
        full()
    assert closed == ["file"]
    again = Node(tmp_path)  # its folder is free
    again.runtime.release()


async def test_events_have_what_marks_their_node(node: Node) -> None:
    node.runtime.tell({"event": "searching", "text": "nobody is there"})
    (event,) = node.events
    assert (event["worker"], event["text"]) == ("n", "nobody is there") and event["at"] > 0
