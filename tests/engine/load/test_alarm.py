"""A timer good to microseconds, on a timer of the kernel and without one."""

import asyncio
import os
import statistics
from typing import Any

import pytest

from talka.clock import monotonic_ns
from talka.engine.load.alarm import LIBC, Alarm
from talka.units import MILLISECOND, SECOND


@pytest.fixture(params=["kernel", "loop"])
def libc(request: pytest.FixtureRequest) -> Any:
    if request.param == "loop":
        return None
    if LIBC is None:
        pytest.skip("this system has no timers of the kernel")
    return LIBC


async def later(libc: Any) -> None:
    """After whatever was to ring by now."""
    rung = asyncio.Event()
    alarm = Alarm(rung.set, libc)
    alarm.set(monotonic_ns() + 5 * MILLISECOND)
    await rung.wait()
    alarm.close()


def descriptors() -> set[str]:
    return set(os.listdir("/dev/fd"))


async def test_it_rings_once_and_not_before_its_instant(libc: Any) -> None:
    rung: list[int] = []
    heard = asyncio.Event()
    alarm = Alarm(lambda: (rung.append(monotonic_ns()), heard.set())[0], libc)
    for left_ns in (3 * MILLISECOND, 400_000, 0, -SECOND):
        at_ns = monotonic_ns() + left_ns
        heard.clear()
        alarm.set(at_ns)
        assert alarm.is_set
        await heard.wait()
        assert rung[-1] >= at_ns and not alarm.is_set
    await later(libc)
    assert len(rung) == 4
    alarm.close()


async def test_setting_it_again_replaces_what_it_was_set_to(libc: Any) -> None:
    rung: list[int] = []
    heard = asyncio.Event()
    alarm = Alarm(lambda: (rung.append(monotonic_ns()), heard.set())[0], libc)
    alarm.set(monotonic_ns() + MILLISECOND)
    later_ns = monotonic_ns() + 30 * MILLISECOND
    alarm.set(later_ns)
    await heard.wait()
    assert len(rung) == 1 and rung[0] >= later_ns
    alarm.close()


async def test_what_was_cleared_or_closed_does_not_ring_even_if_its_instant_had_come(libc: Any) -> None:
    rung: list[int] = []
    cleared, closed = Alarm(lambda: rung.append(1), libc), Alarm(lambda: rung.append(2), libc)
    for alarm in (cleared, closed):
        alarm.set(monotonic_ns() - 1)
    cleared.clear()
    closed.close()
    await later(libc)
    assert rung == [] and not cleared.is_set and not closed.is_set
    cleared.set(monotonic_ns())
    await later(libc)
    assert rung == [1]
    cleared.close()


async def test_no_descriptor_is_left_when_it_is_closed(libc: Any) -> None:
    before = descriptors()
    for _ in range(3):
        alarm = Alarm(lambda: None, libc)
        alarm.set(monotonic_ns() + SECOND)
        alarm.close()
    assert descriptors() == before


async def test_a_loop_whose_timers_are_early_does_not_make_it_ring_before_its_instant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    call_at = loop.call_at
    monkeypatch.setattr(loop, "call_at", lambda when, *arguments: call_at(when - 0.002, *arguments))
    rung: list[int] = []
    heard = asyncio.Event()
    alarm = Alarm(lambda: (rung.append(monotonic_ns()), heard.set())[0], None)
    at_ns = monotonic_ns() + 5 * MILLISECOND
    alarm.set(at_ns)
    await heard.wait()
    assert len(rung) == 1 and rung[0] >= at_ns
    alarm.close()


async def test_without_a_descriptor_to_be_had_it_rings_by_the_loop() -> None:
    class NoDescriptors:
        @staticmethod
        def timerfd_create(clock: int, flags: int) -> int:
            return -1

    heard = asyncio.Event()
    alarm = Alarm(heard.set, NoDescriptors)
    at_ns = monotonic_ns() + MILLISECOND
    alarm.set(at_ns)
    await heard.wait()
    assert monotonic_ns() >= at_ns and not alarm.is_set
    alarm.close()


@pytest.mark.serial
async def test_it_is_nearer_to_its_instant_than_a_timer_of_the_loop() -> None:
    if LIBC is None:
        pytest.skip("this system has no timers of the kernel")
    heard = asyncio.Event()
    by_kernel = Alarm(heard.set)
    by_loop = Alarm(heard.set, None)
    late: dict[Alarm, list[int]] = {by_kernel: [], by_loop: []}
    for turn in range(200):
        for alarm, by_ns in late.items():
            at_ns = monotonic_ns() + 3 * MILLISECOND + turn * 37_000 % MILLISECOND
            heard.clear()
            alarm.set(at_ns)
            await heard.wait()
            by_ns.append(monotonic_ns() - at_ns)
    by_kernel.close()
    by_loop.close()
    assert 2 * statistics.median(late[by_kernel]) < statistics.median(late[by_loop])
