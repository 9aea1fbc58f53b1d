"""The timer of a node: it follows what its core wants, and never fires before it is time."""

import asyncio

import pytest

from talka.clock import MILLISECOND, boottime_ns
from talka.engine.beginnings import new_event_loop
from talka.nodes.upkeep import CoreTimer


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, new_event_loop])
def test_the_timer_fires_once_and_not_before_its_time(factory) -> None:
    """Some loops round to whole milliseconds: what came too early would be set again and again until it is time."""

    async def early() -> list[int]:
        found = []
        for part in range(1, 10):  # of a millisecond
            due = boottime_ns() + 3 * MILLISECOND + part * MILLISECOND // 10
            fired: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            timer = CoreTimer(lambda at=due: at, lambda end=fired: end.set_result(boottime_ns()))
            timer.follow()
            found.append(await fired - due)
            timer.close()
        return found

    with asyncio.Runner(loop_factory=factory) as runner:
        assert min(runner.run(early())) >= 0
