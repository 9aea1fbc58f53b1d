"""Calls of one thread reach a node in their order, whatever becomes of its host."""

from talka.testing.host import Host
from talka.testing.line import CallLine
from talka.testing.world import World
from talka.units import SECOND
from tests.sim.quiet import Quiet


def started() -> tuple[World, Host, CallLine, list[int]]:
    world = World(1)
    host = world.add_host("a", Quiet)
    host.start()
    return world, host, CallLine(world, host), []


def put(line: CallLine, heard: list[int], *numbers: int) -> None:
    for number in numbers:
        line.put(lambda now, number=number: heard.append(number) or [])  # type: ignore[misc]


def test_a_call_is_handled_at_once_by_a_host_that_is_up() -> None:
    _, _, line, heard = started()
    put(line, heard, 1, 2)
    assert heard == [1, 2]


def test_calls_wait_for_a_host_that_stands_still_and_keep_their_order() -> None:
    world, host, line, heard = started()
    host.stall(SECOND)
    put(line, heard, 1, 2)
    world.run_until(SECOND // 2)
    put(line, heard, 3)
    assert heard == []
    world.run_until(2 * SECOND)
    assert heard == [1, 2, 3]


def test_what_was_said_to_an_earlier_life_is_not_heard_by_a_later_one() -> None:
    world, host, line, heard = started()
    host.stall(SECOND)
    put(line, heard, 1)
    host.crash()
    host.start()
    world.run_until(2 * SECOND)
    put(line, heard, 2)
    assert heard == []
