"""The event loop stays awake for what comes in a moment, and sleeps where that was in vain."""

import asyncio

from talka.engine.handlers.short_wait import ShortWait


class Clock:
    def __init__(self) -> None:
        self.now = 1

    def __call__(self) -> int:
        return self.now


def wait_of(clock: Clock) -> ShortWait:
    return ShortWait(100, clock)


def passes(clock: Clock, wait: ShortWait, ns: int) -> None:
    wait.begin()
    clock.now += ns
    wait.end()


async def turn() -> None:
    await asyncio.sleep(0)


async def test_the_loop_sleeps_until_a_core_was_quick_once_and_then_turns_until_it_is_heard() -> None:
    clock = Clock()
    wait = wait_of(clock)
    wait.begin()
    assert not wait.is_awake, "nobody knows yet how long it takes"
    clock.now += 100
    wait.end()
    wait.begin()
    for _ in range(3):
        await turn()
        assert wait.is_awake
    wait.end()
    await turn()
    assert not wait.is_awake


async def test_the_loop_sleeps_after_a_moment_and_also_the_next_time_where_that_was_in_vain() -> None:
    clock = Clock()
    wait = wait_of(clock)
    passes(clock, wait, 50)
    await turn()
    wait.begin()
    assert wait.is_awake
    clock.now += 101
    await turn()
    assert not wait.is_awake
    wait.end()
    wait.begin()
    assert not wait.is_awake, "it took longer than a moment"
    clock.now += 50
    wait.end()
    wait.begin()
    assert wait.is_awake, "it was quick again"
    wait.end()
    await turn()


async def test_what_is_heard_while_nothing_is_waited_for_says_nothing() -> None:
    clock = Clock()
    wait = wait_of(clock)
    passes(clock, wait, 50)
    clock.now += 1000
    wait.end()
    await turn()
    wait.begin()
    assert wait.is_awake
    wait.end()
    await turn()


async def test_more_to_do_begins_the_wait_anew_and_the_loop_turns_once_in_a_turn() -> None:
    clock = Clock()
    wait = wait_of(clock)
    passes(clock, wait, 50)
    await turn()
    wait.begin()
    clock.now += 90
    wait.begin()
    clock.now += 90
    await turn()
    assert wait.is_awake
    clock.now += 11
    await turn()
    assert not wait.is_awake
