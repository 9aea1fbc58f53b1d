"""Virtual time: an event loop in which a second costs nothing and is never late."""

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import talka.clock
from talka.units import MICROSECOND, SECOND


class Selector(selectors.DefaultSelector):
    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "nothing is due and nobody is busy: it would wait for ever"
        self.loop.now_ns += max(self.loop.turn_ns, math.ceil(timeout * SECOND))
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that jumps to the next timer. Each of its turns takes ten microseconds."""

    turn_ns = 10 * MICROSECOND

    def __init__(self) -> None:
        self.now_ns = 1_000 * SECOND
        selector = Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now_ns / SECOND


class CoarseLoop(VirtualLoop):
    """One whose timers are good to a millisecond, early or late."""

    def call_at(self, when: float, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
        return super().call_at(round(when, 3), *arguments, **options)


def now() -> int:
    loop = asyncio.get_running_loop()
    return loop.now_ns if isinstance(loop, VirtualLoop) else talka.clock.monotonic_ns()


def stand_still_until(instant_ns: int) -> None:
    """By the clock that the loop goes by: the machine's may have begun a minute ago."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualLoop):
        loop.now_ns = max(loop.now_ns, instant_ns)
    else:
        talka.clock.sleep_until(instant_ns)


def virtually(work: Coroutine[Any, Any, None], new_loop: Callable[[], asyncio.AbstractEventLoop] = VirtualLoop) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(work)
