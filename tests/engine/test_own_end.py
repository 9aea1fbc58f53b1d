"""Cores that end by their own clock, whatever they run and whatever becomes of their worker. Nothing here waits for an
instant: a core that is not ended runs for a thousand seconds."""

import asyncio
import os
import select
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from talka.clock import boottime_ns
from talka.control.worker.effects import ExitFacts
from talka.engine import containment, kernel_timer
from talka.engine import guard as guard_process
from talka.engine.containment import Guard
from talka.engine.kernel_timer import EndWait, timer_calls
from talka.engine.load.supervisor import Supervisor
from talka.engine.own_end import READ_BYTES, EndPipe
from talka.units import MILLISECOND, SECOND
from talka.wire.core_end import last_end
from talka.wire.shards import Arm, FileSource, Hello, Settings
from tests.engine.handlers.test_handler_supervisor import HANDLERS, Owner, happens, is_gone
from tests.engine.load.test_supervisor import ONCE

MORE = (
    HANDLERS
    + """
@handler("hold")
def hold(task):
    note(os.getpid())
    ctypes.PyDLL(None).sleep(1000)  # it never lets go of the interpreter

@handler("block-with-child")
async def block_with_child(task):
    child()
    time.sleep(1000)

@handler("spin-with-child")
def spin_with_child(task):
    child()
    while True:
        pass
"""
)


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    made = Owner(tmp_path)
    made.file.write_text(MORE)
    yield made
    await made.supervisor.close()


def soon() -> int:
    return boottime_ns() + 100 * MILLISECOND


@pytest.mark.parametrize("handler", ["wait-with-child", "spin-with-child", "block-with-child", "linger"])
async def test_core_ends_itself_with_its_children_at_the_end_it_was_told(owner: Owner, handler: str) -> None:
    await owner.start()
    owner.hand(handler)
    child = await owner.child()
    owner.supervisor.children.guard.close()  # nobody else is there to end it

    end_ns = soon()
    for process in owner.supervisor._cores.values():
        process.child.tell_end(end_ns)
    facts = await owner.next(ExitFacts)

    assert facts.signal == "SIGKILL" and boottime_ns() >= end_ns
    await happens(lambda: is_gone(child))


async def test_core_that_never_lets_go_of_its_interpreter_is_ended_by_the_guard(owner: Owner) -> None:
    pid = await owner.start()
    owner.hand("hold")
    assert await owner.child() == pid

    owner.supervisor.children.tell_end(soon())

    assert (await owner.next(ExitFacts)).signal == "SIGKILL"


async def test_core_that_is_told_a_later_end_goes_on(owner: Owner) -> None:
    await owner.start()
    ends = [boottime_ns() + (200 + 40 * number) * MILLISECOND for number in range(10)]
    for end_ns in ends:
        owner.supervisor.children.tell_end(end_ns)
        while boottime_ns() < end_ns - 100 * MILLISECOND:
            assert (await owner.result_of("give", 1)).outcome == "completed"

    assert (await owner.next(ExitFacts)).signal == "SIGKILL"
    assert boottime_ns() >= ends[-1]


async def test_core_that_is_started_when_there_is_no_lease_any_more_has_no_end(owner: Owner) -> None:
    owner.supervisor.children.tell_end(boottime_ns() - 1)

    await owner.start()

    assert (await owner.result_of("give", 1)).outcome == "completed"


async def test_core_has_the_end_that_was_told_before_it_was_started(owner: Owner) -> None:
    owner.supervisor.children.tell_end(boottime_ns() + 2 * SECOND)
    owner.supervisor.start(1)
    owner.supervisor.children.guard.close()

    assert (await owner.next(ExitFacts)).signal == "SIGKILL"


LOAD = """
from talka import *
import time
while True:
    time.sleep(1)
"""


async def test_load_core_ends_itself_at_the_end_it_was_told_also_while_it_is_busy(tmp_path: Path) -> None:
    file = tmp_path / "load.py"
    file.write_text(LOAD)
    happened: asyncio.Queue[object] = asyncio.Queue()
    supervisor = Supervisor(
        lambda core, message: happened.put_nowait(message),
        lambda core, cause: happened.put_nowait(cause),
        has_lease=True,
    )
    arm = Arm("job", FileSource(str(file)), "Shop", ONCE.split(1)[0], 0, {}, Settings(grace_ns=SECOND))
    try:
        await supervisor.start(1, arm)
        assert isinstance(await happened.get(), Hello)
        supervisor.children.guard.close()
        for shared in supervisor._processes.values():
            shared.runs.tell_end(soon())
        assert await happened.get() == "was killed by SIGKILL"
        supervisor.children.tell_end(boottime_ns() - 1)
        await supervisor.start(2, arm)
        causes = [await happened.get()]
        while isinstance(causes[-1], Hello):
            causes.append(await happened.get())
        assert causes[-1] == "was killed by SIGKILL", "what was to run may run elsewhere by now"
    finally:
        await supervisor.close()


# The guard.


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    made = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield made
    made.kill()
    made.wait()


@pytest.fixture
def guard() -> Iterator[Guard]:
    made = Guard(has_lease=True)
    yield made
    made.close()


def test_guard_ends_groups_at_their_end_and_lives_on(guard: Guard, sleeper: "subprocess.Popen[bytes]") -> None:
    guard.watch(sleeper.pid)
    guard.tell_end(soon())
    assert sleeper.wait(60) == -signal.SIGKILL
    other = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    guard.watch(other.pid)
    guard.tell_end(soon())
    assert other.wait(60) == -signal.SIGKILL


def test_guard_that_is_started_anew_knows_the_end(guard: Guard, sleeper: "subprocess.Popen[bytes]") -> None:
    guard.watch(sleeper.pid)
    guard.tell_end(boottime_ns() + 2 * SECOND)
    assert guard.pid is not None
    os.kill(guard.pid, signal.SIGKILL)
    assert guard._process is not None
    guard._process.wait()
    guard.restart_if_gone()
    assert sleeper.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize(("end_ns", "told"), [(1001, "+12\n=1001\n"), (1000, "+12\n"), (999, "+12\n")])
def test_guard_that_is_started_is_told_an_end_only_before_it_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end_ns: int, told: str
) -> None:
    file = tmp_path / "told"
    monkeypatch.setattr(containment, "boottime_ns", lambda: 1000)
    guard = Guard(has_lease=True, timed=["/bin/sh", "-c", 'cat > "$0"', str(file)])
    guard.tell_end(end_ns)
    guard.watch(12)
    assert guard._process is not None and guard._process.stdin is not None
    guard._process.stdin.close()
    assert guard._process.wait(60) == 0
    assert file.read_text() == told
    guard.close()


def test_guard_that_stands_still_is_replaced_and_holds_nobody_up(
    guard: Guard, sleeper: "subprocess.Popen[bytes]"
) -> None:
    guard.watch(sleeper.pid)
    before = guard.pid
    assert before is not None
    os.kill(before, signal.SIGSTOP)
    while guard.pid == before:
        guard.tell_end(boottime_ns() + 1000 * SECOND)
    guard.tell_end(soon())
    assert sleeper.wait(60) == -signal.SIGKILL


def test_groups_read_lines_that_come_in_pieces() -> None:
    groups = guard_process.Groups()
    groups.read(b"+12\n+3")
    groups.read(b"4\n-12\n=5")
    groups.read(b"6\n")
    assert (groups._named, groups.end_ns) == ({34}, 56)


# Waiting and telling.


@pytest.mark.parametrize("has_timers", [True, False])
def test_wait_ends_with_words_or_with_the_instant(has_timers: bool) -> None:
    ours, theirs = os.pipe()
    wait = EndWait(ours, timer_calls() if has_timers else None)
    end_ns = boottime_ns() + 120 * MILLISECOND
    assert not wait.wait(end_ns)
    assert boottime_ns() >= end_ns
    os.write(theirs, b"x")
    assert wait.wait(end_ns), "what was said counts before what is late"
    assert wait.wait(0)
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("has_timers", [True, False])
def test_instant_has_come_when_the_clock_shows_it(has_timers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    nows = iter([1000, 1000])
    monkeypatch.setattr(kernel_timer, "boottime_ns", lambda: next(nows))
    ours, theirs = os.pipe()
    assert not EndWait(ours, timer_calls() if has_timers else None).wait(1000)
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(("has_timers", "wait_ms"), [(True, None), (False, kernel_timer.LOOK_EVERY_MS)])
def test_who_waits_for_no_instant_sleeps_until_something_is_said(has_timers: bool, wait_ms: int | None) -> None:
    ours, theirs = os.pipe()
    wait = EndWait(ours, timer_calls() if has_timers else None)
    waited: list[int | None] = []

    class Poll:
        def poll(self, timeout: int | None) -> list[tuple[int, int]]:
            waited.append(timeout)
            return [(ours, select.POLLIN)]

    wait._poll = cast(Any, Poll())
    assert wait.wait(0)
    assert waited == [wait_ms]
    os.close(ours)
    os.close(theirs)


def test_without_timers_of_the_kernel_nobody_waits_long_without_a_look() -> None:
    assert EndWait(0, None)._look_ms(3600 * SECOND) == kernel_timer.LOOK_EVERY_MS


def test_pipe_that_nobody_reads_holds_what_was_told_last() -> None:
    pipe = EndPipe()
    for end_ns in range(1, 20_000):
        pipe.tell(end_ns)
    assert last_end(os.read(pipe.theirs, READ_BYTES)) == 19_999
    pipe.close()
