import asyncio
import heapq
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.clock import monotonic_ns
from talka.engine.clients.deadlines import SLOT_NS, BadTimeout, Deadlines, Timeout, timeout_of
from talka.units import MILLISECOND, NEVER, SECOND
from tests.engine.loops import LOOPS


class Timer:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeLoop:
    """An event loop of nothing but time. Like real ones it may wake a little early."""

    def __init__(self, early_ns: int = 0) -> None:
        self.now_ns = 1_000 * SECOND + 123
        self.early_ns = early_ns
        self.heap: list[tuple[float, int, Callable[..., None], tuple[object, ...], Timer]] = []
        self.made = 0

    def time(self) -> float:
        return self.now_ns / SECOND

    def now(self) -> int:
        return self.now_ns

    def call_at(self, when: float, callback: Callable[..., None], *arguments: object) -> Timer:
        timer = Timer()
        self.made += 1
        heapq.heappush(self.heap, (when, self.made, callback, arguments, timer))
        return timer

    def run_until(self, end_ns: int) -> None:
        while self.heap and round(self.heap[0][0] * SECOND) - self.early_ns <= end_ns:
            when, _, callback, arguments, timer = heapq.heappop(self.heap)
            self.now_ns = max(self.now_ns, round(when * SECOND) - self.early_ns)
            if not timer.cancelled:
                callback(*arguments)
        self.now_ns = max(self.now_ns, end_ns)


class Watched:
    def __init__(self) -> None:
        self.due_ns = self.look_ns = NEVER
        self.fired_at: list[int] = []

    def on_deadline(self, now_ns: int) -> None:
        self.fired_at.append(now_ns)


def wheel(early_ns: int = 0) -> tuple[FakeLoop, Deadlines]:
    loop = FakeLoop(early_ns)
    return loop, Deadlines(loop, loop.now)  # type: ignore[arg-type]


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 2 * SECOND), min_size=1, max_size=40), st.sampled_from([0, MILLISECOND // 3]))
def test_no_deadline_is_early_and_none_is_later_than_a_slot(waits: list[int], early_ns: int) -> None:
    loop, deadlines = wheel(early_ns)
    start = loop.now_ns
    items = [Watched() for _ in waits]
    for item, wait in zip(items, waits, strict=True):
        deadlines.add(item, start + wait)
    loop.run_until(start + 3 * SECOND)
    for item, wait in zip(items, waits, strict=True):
        (fired,) = item.fired_at
        assert start + wait <= fired <= start + wait + SLOT_NS + MILLISECOND  # the last for waking early
    assert not deadlines._slots and not deadlines._timers


def test_items_of_one_slot_share_one_timer() -> None:
    loop, deadlines = wheel()
    at = loop.now_ns + SECOND
    for offset in range(1000):
        deadlines.add(Watched(), at + offset)
    assert loop.made == 1


def test_a_removed_item_never_fires_and_is_not_held() -> None:
    loop, deadlines = wheel()
    item, other = Watched(), Watched()
    deadlines.add(item, loop.now_ns + SECOND)
    deadlines.add(other, loop.now_ns + SECOND)
    deadlines.remove(item)
    deadlines.remove(item)
    assert not any(item in items for items in deadlines._slots.values())
    loop.run_until(loop.now_ns + 2 * SECOND)
    assert item.fired_at == [] and len(other.fired_at) == 1


def test_a_deadline_moved_later_by_its_owner_is_found_at_its_new_time() -> None:
    loop, deadlines = wheel()
    start = loop.now_ns
    item = Watched()
    deadlines.add(item, start + SECOND)
    item.due_ns = start + 2 * SECOND
    loop.run_until(start + 2 * SECOND - 1)
    assert item.fired_at == []
    loop.run_until(start + 3 * SECOND)
    assert len(item.fired_at) == 1
    assert start + 2 * SECOND <= item.fired_at[0] <= start + 2 * SECOND + SLOT_NS


def test_a_deadline_added_again_later_stays_in_its_slot_until_that_comes() -> None:
    loop, deadlines = wheel()
    start = loop.now_ns
    item = Watched()
    deadlines.add(item, start + SECOND)
    deadlines.add(item, start + 2 * SECOND)
    assert loop.made == 1
    loop.run_until(start + 3 * SECOND)
    assert [at >= start + 2 * SECOND for at in item.fired_at] == [True]


def test_a_deadline_moved_to_earlier_fires_at_the_earlier_time_only() -> None:
    loop, deadlines = wheel()
    start = loop.now_ns
    item = Watched()
    deadlines.add(item, start + 2 * SECOND)
    deadlines.add(item, start + SECOND)
    loop.run_until(start + 3 * SECOND)
    assert len(item.fired_at) == 1
    assert item.fired_at[0] <= start + SECOND + SLOT_NS


def test_a_deadline_set_to_never_is_let_go_when_its_slot_comes() -> None:
    loop, deadlines = wheel()
    item = Watched()
    deadlines.add(item, loop.now_ns + SECOND)
    item.due_ns = NEVER
    loop.run_until(loop.now_ns + 2 * SECOND)
    assert item.fired_at == [] and item.look_ns == NEVER
    assert not deadlines._slots


def test_close_cancels_every_timer() -> None:
    loop, deadlines = wheel()
    items = [Watched(), Watched()]
    deadlines.add(items[0], loop.now_ns + SECOND)
    deadlines.add(items[1], loop.now_ns + 2 * SECOND)
    deadlines.close()
    assert all(timer.cancelled for *_, timer in loop.heap)
    loop.run_until(loop.now_ns + 3 * SECOND)
    assert all(item.fired_at == [] and item.look_ns == NEVER for item in items)


@pytest.mark.parametrize("factory", LOOPS.values(), ids=LOOPS)
def test_a_real_loop_is_never_early(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def scenario() -> None:
        deadlines = Deadlines(asyncio.get_running_loop())
        done = asyncio.Event()

        class Last(Watched):
            def on_deadline(self, now_ns: int) -> None:
                super().on_deadline(now_ns)
                done.set()

        start = monotonic_ns()
        items = [Watched() for _ in range(20)]
        waits = [index * MILLISECOND + 17 for index in range(20)]
        for item, wait in zip(items, waits, strict=True):
            deadlines.add(item, start + wait)
        deadlines.add(Last(), start + 40 * MILLISECOND)
        async with asyncio.timeout(60):
            await done.wait()
        for item, wait in zip(items, waits, strict=True):
            (fired,) = item.fired_at
            assert fired >= start + wait

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(scenario())


def test_a_number_bounds_every_part_of_a_call() -> None:
    assert timeout_of(2) == Timeout(2, 2, 2)
    assert timeout_of(0.5).response_ns == 500 * MILLISECOND
    assert timeout_of(Timeout(total_s=7)).total_ns == 7 * SECOND


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "5", None])
def test_a_senseless_timeout_is_refused(value: object) -> None:
    with pytest.raises(BadTimeout, match="seconds above 0"):
        timeout_of(value)  # type: ignore[arg-type]
