"""The timer of a node: it follows what its core wants, and never fires before it is time."""

import asyncio

import pytest

from talka.clock import boottime_ns
from talka.engine.process_start import new_event_loop
from talka.nodes import runtime
from talka.nodes.runtime import TickTimer
from talka.units import MILLISECOND, NEVER


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
