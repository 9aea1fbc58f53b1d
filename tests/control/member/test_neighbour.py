"""What a member says to the node of the same process without a frame, and what it does not."""

from typing import Any

import pytest

from talka.cluster.effects import Lane, Send, Transmit
from talka.control.member.composite import ClusterMember, ToNeighbour
from talka.units import NEVER, SECOND
from talka.wire.attempts import StoreLife
from talka.wire.jobs import CHANNEL, Elsewhere, Renew, Sync
from talka.wire.tasks import AskHeld, AssignTasks, Done, Held, Recall, ResultsStored, TaskInputs, TaskProgress

OF = StoreLife(1, 1)
ASIDE = [
    AssignTasks(1, (), of=OF),
    Recall(1, (1,), 0, of=OF),
    ResultsStored(1, (1,), OF),
    AskHeld(1, of=OF),
    TaskInputs(1, 1, {}, of=OF),
    Done((), OF),
    TaskProgress(of=OF),
    Held(1, (), of=OF),
]


class Hearing:
    """The part of a member: keeps what it was told, and answers."""

    next_tick_at = NEVER

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def on_message(self, *told: Any) -> list[Any]:
        self.heard.append(told)
        return [Send(CHANNEL, "w", Elsewhere("m"), Lane.CONTROL)]


def member(part: Any = None, neighbour: str = "w") -> ClusterMember[Any]:
    made: ClusterMember[Any] = ClusterMember(group="g", name="m", boot=1, part=part)
    made.neighbour = neighbour
    return made


def kinds(effects: Any) -> list[type]:
    return [type(effect) for effect in effects]


@pytest.mark.parametrize("message", ASIDE, ids=lambda message: type(message).__name__)
def test_what_is_said_of_tasks_to_a_neighbour_needs_no_frame(message: Any) -> None:
    said = Send(CHANNEL, "w", message, Lane.RESULTS)
    assert member().act(0, [said]) == [ToNeighbour(message)]
    assert kinds(member(neighbour="").act(0, [said])) == [Transmit]
    assert kinds(member(neighbour="other").act(0, [said])) == [Transmit]


def test_no_task_overtakes_the_lease_it_is_handed_under() -> None:
    renew, handed = Renew((0, 1, 1), 1, SECOND, sole=True), AssignTasks(1, (), of=OF)
    effects = [Send(CHANNEL, "w", renew, Lane.CONTROL), Send(CHANNEL, "w", handed, Lane.RESULTS)]
    assert member().act(0, effects) == [ToNeighbour(renew), ToNeighbour(handed)]


def test_everything_else_is_sealed_also_to_a_neighbour() -> None:
    assert kinds(member().act(0, [Send(CHANNEL, "w", Sync(1), Lane.CONTROL)])) == [Transmit]


def test_what_a_neighbour_says_is_heard_as_if_its_frame_had_come() -> None:
    part = Hearing()
    assert kinds(member(part).on_neighbour(5, 7, ASIDE[5])) == [Transmit]
    assert part.heard == [(5, "w", ASIDE[5], 7)]
    assert member().on_neighbour(5, 7, ASIDE[5]) == []
