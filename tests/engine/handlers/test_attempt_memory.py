"""What is known of the memory of an attempt, and of what nothing is known."""

import asyncio
import os
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from talka.engine.handlers.attempt_memory import FRESH_NS, SHORT_US, MemoryMeter, seen_peak
from talka.engine.handlers.command_run import run_command
from talka.engine.handlers.handler_run import HandlerRun
from talka.engine.handlers.measured_process import start_measured
from talka.wire.tasks import HandedTask, TaskLine, TaskResult

MEBIBYTE = 1 << 20
PAGE = 4096
FILL = f"held = bytearray(int({{}}) << 20)\nfor place in range(0, len(held), {PAGE}): held[place] = 1"
fences = count(os.getpid() << 32)


class Silent:
    def progress(self, fence: int, details: bytes) -> None: ...
    def line(self, line: TaskLine) -> None: ...


@pytest.fixture
def meter() -> Iterator[MemoryMeter]:
    made = MemoryMeter()
    yield made
    made.close()


def filled(size: int) -> bytearray:
    held = bytearray(size * MEBIBYTE)
    for place in range(0, len(held), PAGE):
        held[place] = 1
    return held


def python(size: int) -> list[str]:
    """A program that uses so many MiB beside its own."""
    return [sys.executable, "-I", "-S", "-c", FILL.format(size)]


@pytest.fixture
def floor() -> int:
    """In MiB: the kernel counts for a command what its parent had at most when it was forked. What uses more is
    measured exactly."""
    return -(-seen_peak(os.getpid()) // MEBIBYTE)


async def ran(command: list[str], meter: MemoryMeter | None) -> TaskResult:
    handed = HandedTask(next(fences), "job-1", "task-1", "run", 1, b"")
    return await run_command(HandlerRun(handed, Silent(), meter), command, {})


# Functions.


def test_a_peak_is_that_of_the_attempt_and_not_of_what_was_before(meter: MemoryMeter) -> None:
    held = filled(200)
    del held
    meter.begin(1)
    small = meter.end(1, SHORT_US)
    meter.begin(2)
    held = filled(200)
    del held
    large = meter.end(2, SHORT_US)
    assert 0 < small < large - 150 * MEBIBYTE


def test_who_had_others_beside_it_at_any_time_is_not_measured(meter: MemoryMeter) -> None:
    meter.begin(1)
    meter.begin(2)
    assert (meter.end(1, SHORT_US), meter.end(2, SHORT_US)) == (0, 0)
    meter.begin(3)
    meter.begin(4)
    assert meter.end(4, SHORT_US) == 0
    meter.begin(5)
    assert (meter.end(3, SHORT_US), meter.end(5, SHORT_US)) == (0, 0)
    meter.begin(6)
    assert meter.end(6, SHORT_US) > 0


def test_a_very_short_one_is_measured_unless_others_wait_for_it() -> None:
    waiting = [True]
    meter = MemoryMeter(lambda: waiting[0])
    meter.begin(1)
    assert meter.end(1, SHORT_US - 1) == 0
    meter.begin(2)
    assert meter.end(2, SHORT_US) > 0
    waiting[0] = False
    meter.begin(3)
    assert meter.end(3, SHORT_US - 1) > 0
    meter.close()


def test_where_the_kernel_says_nothing_nothing_is_told(tmp_path: Path) -> None:
    meter = MemoryMeter(processes=tmp_path)
    meter.begin(1)
    assert meter.end(1, SHORT_US) == 0
    meter.close()


class Kernel:
    """What it tells of a process, in files; and what the meter is told of page faults and the time."""

    def __init__(self, folder: Path) -> None:
        self._own = folder / "self"
        self._own.mkdir()
        self._set_back = self._own / "clear_refs"
        self._set_back.touch()
        self.faults = 7
        self.now_ns = 0
        self.use(100, peak=100)

    def use(self, pages: int, peak: int) -> None:
        (self._own / "statm").write_text(f"9999 {pages} 5 1 0 50 0\n")
        (self._own / "status").write_text(f"Name:\tpython\nVmHWM:\t{peak * PAGE // 1024:>8} kB\n")

    @property
    def looks(self) -> int:
        """How often the peak was set back."""
        return self._set_back.stat().st_size

    def meter(self) -> MemoryMeter:
        return MemoryMeter(processes=self._own.parent, faults=lambda: self.faults, now=lambda: self.now_ns)


def test_who_touched_no_new_memory_had_what_was_in_use_when_it_began(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    meter = kernel.meter()
    meter.begin(1)
    kernel.use(60, peak=4000)
    assert meter.end(1, 5) == 100 * PAGE
    meter.begin(2)
    kernel.faults += 1
    assert meter.end(2, 5) == 4000 * PAGE
    meter.close()


def test_what_was_seen_while_nothing_ran_serves_the_next_one_if_it_is_new_and_nothing_was_touched_since(
    tmp_path: Path,
) -> None:
    kernel = Kernel(tmp_path)
    meter = kernel.meter()

    def told(fence: int) -> tuple[int, int]:
        """Pages, and how often it was looked since the last time."""
        before = kernel.looks
        meter.begin(fence)
        return meter.end(fence, 5) // PAGE, kernel.looks - before

    meter.rest()
    kernel.use(40, peak=100)
    assert told(1) == (100, 0)
    kernel.now_ns += FRESH_NS
    assert told(2) == (40, 1), "it may have given memory back since"
    kernel.use(50, peak=50)
    kernel.faults += 1
    assert told(3) == (50, 1)
    meter.begin(4)
    before = kernel.looks
    meter.rest()
    assert kernel.looks == before, "the peak of who runs is not set back"
    meter.close()


def test_nothing_is_told_of_a_process_that_is_not_there() -> None:
    assert seen_peak(1 << 30) == 0


# Commands.


@pytest.mark.parametrize("in_shell", [False, True], ids=["itself", "its child"])
async def test_a_large_command_is_measured_exactly(meter: MemoryMeter, floor: int, in_shell: bool) -> None:
    size = floor + 200
    command = python(size)
    if in_shell:
        command = ["sh", "-c", '"$@"; exit 0', "sh", *command]
    result = await ran(command, meter)
    assert result.outcome == "completed"
    assert size * MEBIBYTE < result.memory_bytes < (size + 60) * MEBIBYTE


class Ended(asyncio.SubprocessProtocol):
    def __init__(self) -> None:
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        self.exited.set()


async def test_a_small_command_does_not_have_the_memory_of_its_core(meter: MemoryMeter) -> None:
    held = filled(300)
    command = Ended()
    process = await start_measured(command, ["sh", "-c", "read line"], os.environ, meter)
    async with asyncio.timeout(60):
        while not process.seen_bytes:  # noqa: ASYNC110 - it looks now and then, and tells nobody
            await asyncio.sleep(0.001)
        stdin = process.get_pipe_transport(0)
        assert stdin is not None
        stdin.close()
        await command.exited.wait()
    process.close()
    del held
    assert process.memory_bytes == process.seen_bytes
    assert 0 < process.memory_bytes < 100 * MEBIBYTE, "the kernel counts what its parent had when it was forked"


async def test_a_small_command_that_nobody_has_looked_at_is_not_measured(meter: MemoryMeter) -> None:
    process = await start_measured(command := Ended(), ["true"], os.environ, meter)
    process.stop_looking()
    async with asyncio.timeout(60):
        await command.exited.wait()
    process.close()
    assert process.memory_bytes == process.seen_bytes


async def test_a_command_that_failed_tells_its_memory_too(meter: MemoryMeter, floor: int) -> None:
    size = floor + 200
    result = await ran([*python(size)[:-1], FILL.format(size) + "\nraise SystemExit(3)"], meter)
    assert (result.outcome, result.exit_code) == ("failed", 3)
    assert result.memory_bytes > size * MEBIBYTE


async def test_commands_side_by_side_are_measured_each(meter: MemoryMeter, floor: int) -> None:
    size = floor + 150
    large, larger = await asyncio.gather(ran(python(size), meter), ran(python(size + 150), meter))
    at_least, most = size * MEBIBYTE, (size + 100) * MEBIBYTE
    assert at_least < large.memory_bytes < most < larger.memory_bytes


async def test_where_nobody_wants_to_know_nothing_is_measured() -> None:
    assert (await ran(python(400), None)).memory_bytes == 0
