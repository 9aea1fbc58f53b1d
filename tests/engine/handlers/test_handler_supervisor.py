"""Handler cores as real processes: what they say, how they end, what bounds them, and that nothing outlives them."""

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil
import pytest

from talka.control.worker.effects import (
    EndHandlers,
    ExitFacts,
    HandlersBroken,
    HandlersLoaded,
    StartHandlers,
    TellHandlers,
)
from talka.engine.bundle import PackedHandlers, pack_handlers
from talka.engine.containment import MemoryGroup
from talka.engine.handlers import handler_supervisor
from talka.engine.handlers.handler_core import load_handlers
from talka.engine.handlers.handler_supervisor import HandlerSupervisor
from talka.errors import Invalid
from talka.nodes.cores import HandlerProcesses, files_of, short_of_disk
from talka.nodes.job_events import worker_event_of
from talka.nodes.member_events import sentence_of
from talka.store.files.blobs import Blobs
from talka.wire.output_tail import StreamTail, Wrote
from talka.wire.shards import BundleSource
from talka.wire.tasks import FromHandlers, HandedTask, Load, Loaded, Ran, RunTasks, Said, Spent, StopTasks, TaskResult

AnyThing = TypeVar("AnyThing")
WAIT_S = 60
LOOK_EVERY_S = 0.005
MEBIBYTE = 1024 * 1024

HANDLERS = """
import asyncio, ctypes, os, resource, signal, subprocess, sys, time
from pathlib import Path
from talka import command, handler

def note(pid):
    place = Path(__file__).with_name("child.new")
    place.write_text(str(pid))
    place.rename(place.with_name("child"))

def child():
    note(subprocess.Popen(["sleep", "1000"]).pid)

@handler("give")
async def give(task):
    return task.config

@handler("give-plainly")
def give_plainly(task):
    return task.config

@handler("measure")
async def measure(task):
    return sum(len(value) for value in task.inputs.values())

@handler("wait")
async def wait(task):
    task.log("began")
    await asyncio.Event().wait()

@handler("wait-with-child")
async def wait_with_child(task):
    child()
    await asyncio.Event().wait()

@handler("fail-with-child")
async def fail_with_child(task):
    child()
    raise ConnectionError("nobody is there")

@handler("block")
async def block(task):
    print("blocks", file=sys.stderr, flush=True)
    time.sleep(1000)

@handler("spin")
def spin(task):
    while True:
        pass

@handler("segfault")
async def segfault(task):
    ctypes.string_at(0)

@handler("print-and-segfault")
def print_and_segfault(task):
    print("reads row 7", file=sys.stderr)
    ctypes.string_at(0)

@handler("exit")
def exit(task):
    os._exit(task.config)

@handler("fill")
def fill(task):
    held = bytearray(task.config << 20)
    for place in range(0, len(held), 4096):
        held[place] = 1

@handler("end-soon")
async def end_soon(task):
    await asyncio.sleep(0.05)
    os._exit(7)

@handler("die")
async def die(task):
    child()
    os.kill(os.getpid(), task.config)

@handler("leave")
async def leave(task):
    if os.fork() == 0:
        note(os.getpid())
        time.sleep(1000)
    return "left"

@handler("escape")
def escape(task):
    if task.config == "fork":
        if os.fork() == 0:
            os.setsid()
            note(os.getpid())
            time.sleep(1000)
    else:
        note(subprocess.Popen(["sleep", "1000"], start_new_session=True, close_fds=False).pid)
    while not Path(__file__).with_name("child").exists():
        time.sleep(0.001)
    os._exit(7)

@handler("print")
def print_much(task):
    for _ in range(task.config):
        print("x" * 100)
    return "printed"

@handler("chatter")
def chatter(task):
    for number in range(task.config):
        task.log(f"line {number}")
        task.heartbeat(number)

@handler("speak")
async def speak(task):
    os.write(int(sys.argv[1]), bytes.fromhex(task.config))
    await asyncio.Event().wait()

@handler("stubborn")
async def stubborn(task):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    task.log("began")
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

@handler("eat")
def eat(task):
    kept = []
    while True:
        kept.append(bytearray(1024 * 1024))

@handler("keep")
def keep(task):
    keep.content = b"x" * task.config

@handler("limits")
def limits(task):
    return {name: resource.getrlimit(getattr(resource, name)) for name in ("RLIMIT_DATA", "RLIMIT_NOFILE")}

command("cat", ["cat"])
command("linger", ["sh", "-c", f"sleep 1000 & echo $! > {Path(__file__).with_name('child')}; wait"])
"""


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def happens(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - processes send no events
            await asyncio.sleep(LOOK_EVERY_S)


def pids_of(supervisor: HandlerSupervisor) -> dict[int, int]:
    return {core: process.child.pid for core, process in supervisor._cores.items()}


class Owner:
    """Starts cores and keeps what happened, in its order."""

    def __init__(self, folder: Path, **limits: float) -> None:
        self.file = folder / "handlers.py"
        self.file.write_text(HANDLERS)
        self.happened: asyncio.Queue[tuple[int, FromHandlers | ExitFacts]] = asyncio.Queue()
        self.supervisor = HandlerSupervisor(self._on_happened, self._on_happened, **limits)
        self.said: list[FromHandlers] = []
        self._fence = 0

    def _on_happened(self, core: int, what: FromHandlers | ExitFacts) -> None:
        self.happened.put_nowait((core, what))

    async def next(self, kind: type[AnyThing], core: int = 1) -> AnyThing:
        """The next thing of this kind; others are kept."""
        async with asyncio.timeout(WAIT_S):
            while True:
                number, what = await self.happened.get()
                if number == core and isinstance(what, kind):
                    return what
                assert not isinstance(what, ExitFacts), what
                self.said.append(what)

    async def start(self, core: int = 1, **bounds: int) -> int:
        self.supervisor.start(core, **bounds)
        self.supervisor.tell(core, Load((str(self.file),)))
        loaded = await self.next(Loaded, core)
        assert loaded.problem == ""
        return loaded.pid

    def hand(self, handler: str, config: object = None, core: int = 1, **fields: Any) -> int:
        self._fence += 1
        fence = os.getpid() << 20 | self._fence
        task = HandedTask(fence, "job", "task", handler, 1, msgspec.json.encode(config), **fields)
        self.supervisor.tell(core, RunTasks((task,)))
        return fence

    async def result_of(self, handler: str, config: object = None, core: int = 1, **fields: Any) -> TaskResult:
        fence = self.hand(handler, config, core, **fields)
        (result,) = (await self.next(Ran, core)).results
        assert result.fence == fence
        return result

    async def child(self) -> int:
        place = self.file.with_name("child")
        await happens(lambda: place.exists() and place.read_text().strip() != "")
        return int(place.read_text())


@pytest.fixture
async def owner(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Owner]:
    """With a parameter: limits of its supervisor."""
    made = Owner(tmp_path, **getattr(request, "param", {}))
    yield made
    await made.supervisor.close()
    place = tmp_path / "child"
    if place.exists() and not is_gone(pid := int(place.read_text())):  # one that a test expects to be left
        os.kill(pid, signal.SIGKILL)


# What is said.


async def test_core_loads_its_files_and_runs_what_it_is_told(owner: Owner) -> None:
    pid = await owner.start()

    assert pids_of(owner.supervisor) == {1: pid}
    for handler in ("give", "give-plainly"):
        result = await owner.result_of(handler, {"a": 1})
        assert (result.outcome, result.output) == ("completed", b'{"a":1}')
    result = await owner.result_of("cat", 5)
    assert msgspec.json.decode(result.output) == {"config": 5, "inputs": {}, "checkpoint": None}


async def test_core_is_told_things_before_it_is_there(owner: Owner) -> None:
    owner.supervisor.start(1)
    owner.supervisor.tell(1, Load((str(owner.file),)))
    owner.hand("give", 1)
    fence = owner.hand("wait")
    owner.supervisor.tell(1, StopTasks((fence,)))

    assert (await owner.next(Loaded)).problem == ""
    results = [*(await owner.next(Ran)).results]
    if len(results) == 1:
        results += (await owner.next(Ran)).results
    assert [result.outcome for result in results] == ["completed", "cancelled"]


async def test_file_may_run_a_loop_of_its_own_while_it_is_imported(owner: Owner) -> None:
    owner.file.write_text("import asyncio\nasyncio.run(asyncio.sleep(0))\n" + HANDLERS)

    await owner.start()

    assert (await owner.result_of("give", 1)).output == b"1"


async def test_file_with_a_mistake_is_told_and_nothing_runs(owner: Owner) -> None:
    owner.file.write_text("\nimport nothing_of_this_name\n")
    owner.supervisor.start(1)
    owner.supervisor.tell(1, Load((str(owner.file),)))

    loaded = await owner.next(Loaded)

    assert loaded.problem.startswith(f"{owner.file}:2: raised ModuleNotFoundError") and loaded.handlers == ()
    assert (await owner.result_of("give")).outcome == "refused"


async def test_inputs_far_over_the_limit_of_a_frame_elsewhere_arrive(owner: Owner) -> None:
    await owner.start()
    content = msgspec.json.encode("x" * MEBIBYTE)

    result = await owner.result_of("measure", inputs={f"input-{number}": content for number in range(16)})

    assert result.output == str(16 * MEBIBYTE).encode()


async def test_command_that_is_stopped_ends_with_its_children(owner: Owner) -> None:
    await owner.start()
    fence = owner.hand("linger")
    child = await owner.child()

    owner.supervisor.tell(1, StopTasks((fence,)))

    assert (await owner.next(Ran)).results[0].outcome == "cancelled"
    await happens(lambda: is_gone(child))


@pytest.mark.parametrize("reason", ["cancelled", "timeout", None])
async def test_core_tells_of_the_child_of_an_attempt_that_did_not_return(owner: Owner, reason: Any) -> None:
    await owner.start()
    fence = owner.hand("wait-with-child" if reason else "fail-with-child")
    child = await owner.child()
    if reason:
        owner.supervisor.tell(1, StopTasks((fence,), reason))
    assert (await owner.next(Ran)).results[0].outcome == (reason or "failed")

    assert await owner.next(Spent) == Spent(1)
    owner.supervisor.end(1, hard=False)

    await owner.next(ExitFacts)
    await happens(lambda: is_gone(child))


async def test_handler_that_prints_and_says_a_lot_harms_nobody(owner: Owner) -> None:
    await owner.start()

    assert (await owner.result_of("print", 10_000)).outcome == "completed"
    assert (await owner.result_of("chatter", 30_000)).outcome == "completed"

    said = [message for message in owner.said if isinstance(message, Said)]
    # Where the worker reads more slowly than is written, the result comes first.
    while not any(one.details == b"29999" for message in said for one in message.progress):
        said.append(await owner.next(Said))
    assert [one.details for message in said for one in message.progress][-1] == b"29999"
    assert said[-1].lines or said[-2].lines
    assert len(said) < 1000, "they travel together"


async def test_blocked_event_loop_holds_back_its_own_core_alone(owner: Owner) -> None:
    await owner.start(1)
    await owner.start(2)
    owner.hand("block")

    assert (await owner.result_of("give", 1, core=2)).output == b"1"
    owner.supervisor.end(1, hard=True)
    assert (await owner.next(ExitFacts)).cause == "SIGKILL"


async def test_what_was_printed_before_the_event_loop_was_blocked_is_told(owner: Owner) -> None:
    await owner.start()
    fence = owner.hand("block")

    (wrote,) = (await owner.next(Said)).wrote
    assert wrote == Wrote(fence, (StreamTail("stderr", b"blocks\n", 7),))


async def test_what_a_function_printed_at_once_before_its_process_died_is_told(owner: Owner) -> None:
    await owner.start()
    fence = owner.hand("print-and-segfault")

    (wrote,) = (await owner.next(Said)).wrote
    assert wrote == Wrote(fence, (StreamTail("stderr", b"reads row 7\n", 12),))
    assert (await owner.next(ExitFacts)).cause == "SIGSEGV"


async def test_core_that_says_nonsense_is_killed(owner: Owner) -> None:
    await owner.start()

    owner.hand("speak", "ffffffff")

    facts = await owner.next(ExitFacts)
    assert (facts.cause, facts.text) == ("SIGKILL", "the process was killed by SIGKILL: it sent a malformed message")


# How it ends.


@pytest.mark.parametrize("code", [0, 3])
async def test_exit_is_told_with_its_code(owner: Owner, code: int) -> None:
    await owner.start()

    owner.hand("exit", code)

    facts = await owner.next(ExitFacts)
    assert (facts.cause, facts.exit_code, facts.signal) == ("exit", code, "")
    assert pids_of(owner.supervisor) == {}


async def test_segmentation_fault_is_told(owner: Owner) -> None:
    await owner.start()

    owner.hand("segfault")

    facts = await owner.next(ExitFacts)
    assert (facts.cause, facts.signal) == ("SIGSEGV", "SIGSEGV")


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGABRT", "SIGBUS"])
async def test_signal_of_a_stranger_is_told_and_children_go_too(owner: Owner, name: str) -> None:
    await owner.start()

    owner.hand("die", signal.Signals[name])

    facts = await owner.next(ExitFacts)
    assert (facts.cause, facts.signal) == (name, name)
    if name in ("SIGKILL", "SIGTERM"):
        assert facts.text.endswith("which its worker did not send")
    child = await owner.child()
    await happens(lambda: is_gone(child))


async def test_what_was_said_before_a_death_is_told_before_it(owner: Owner) -> None:
    pid = await owner.start()
    for number in range(20):
        owner.hand("give", number)
    owner.hand("end-soon")

    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - nobody reads meanwhile

    assert (await owner.next(ExitFacts)).exit_code == 7
    results = [result for message in owner.said if isinstance(message, Ran) for result in message.results]
    assert [result.output for result in results] == [str(number).encode() for number in range(20)]


async def test_memory_of_a_core_that_was_killed_is_known_from_looking(owner: Owner) -> None:
    pid = await owner.start()
    owner.supervisor.look()

    os.kill(pid, signal.SIGKILL)

    assert (await owner.next(ExitFacts)).memory_bytes > 10 * MEBIBYTE


async def test_memory_seen_of_an_earlier_attempt_is_not_that_of_one_in_which_the_core_died(owner: Owner) -> None:
    await owner.start()
    owner.hand("fill", 300)
    await owner.next(Ran)
    owner.supervisor._cores[1]._peak_bytes = 300 * MEBIBYTE  # as if it had been looked at while that one ran
    owner.hand("end-soon")

    facts = await owner.next(ExitFacts)

    assert facts.memory_bytes < 250 * MEBIBYTE


async def test_forked_child_that_is_left_behind_ends_with_its_core(owner: Owner) -> None:
    await owner.start()

    assert (await owner.result_of("leave")).output == b'"left"'
    child = await owner.child()
    owner.supervisor.end(1, hard=False)

    await owner.next(ExitFacts)
    await happens(lambda: is_gone(child))


@pytest.mark.parametrize("how", ["fork", "start"])
async def test_child_that_left_the_group_holds_nothing_back(owner: Owner, how: str) -> None:
    await owner.start()

    owner.hand("escape", how)

    assert (await owner.next(ExitFacts)).exit_code == 7


@pytest.mark.parametrize("owner", [{"end_s": WAIT_S}], indirect=True)
async def test_core_that_is_asked_ends_by_itself(owner: Owner) -> None:
    await owner.start()
    fence = owner.hand("wait")
    await owner.next(Said)

    owner.supervisor.end(1, hard=False)

    result = (await owner.next(Ran)).results[0]
    assert (result.fence, result.outcome) == (fence, "cancelled")
    facts = await owner.next(ExitFacts)
    assert (facts.cause, facts.exit_code) == ("exit", 0)
    assert facts.text == "the process exited with status 0: its worker no longer needed it"


@pytest.mark.parametrize("owner", [{"end_s": 0.1}], indirect=True)
async def test_core_that_does_not_end_when_asked_is_killed(owner: Owner) -> None:
    await owner.start()
    owner.hand("stubborn")
    await owner.next(Said)

    owner.supervisor.end(1, hard=False)

    assert (await owner.next(ExitFacts)).cause == "SIGKILL"


async def test_core_that_is_not_there_yet_can_be_ended(owner: Owner) -> None:
    owner.supervisor.start(1)

    owner.supervisor.end(1, hard=False)

    assert (await owner.next(ExitFacts)).cause == "SIGKILL"


async def test_what_is_told_to_a_core_that_has_ended_is_dropped(owner: Owner) -> None:
    await owner.start()
    owner.supervisor.end(1, hard=True)
    await owner.next(ExitFacts)

    owner.hand("give")
    owner.supervisor.end(1, hard=True)
    owner.supervisor.end(1, hard=False)

    assert owner.happened.empty()


async def test_core_that_cannot_be_started_is_told_as_ended(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)

    owner.supervisor.start(1)

    facts = await owner.next(ExitFacts)
    assert facts.cause == "start" and "Resource temporarily unavailable" in facts.text


async def test_after_a_core_was_killed_the_next_one_runs_tasks(owner: Owner) -> None:
    pid = await owner.start()
    owner.hand("wait")
    os.kill(pid, signal.SIGKILL)
    await owner.next(ExitFacts)

    await owner.start(2)

    assert (await owner.result_of("give", 1, core=2)).output == b"1"


# Bounds.


async def test_bounds_of_a_task_are_set_by_the_kernel(owner: Owner) -> None:
    await owner.start(1, memory_bytes=100 * MEBIBYTE, files=100)
    await owner.start(2, share_bytes=2048 * MEBIBYTE, files=3)
    await owner.start(3)

    bound, shared, free = [
        msgspec.json.decode((await owner.result_of("limits", core=core)).output) for core in (1, 2, 3)
    ]

    data = 100 * MEBIBYTE + handler_supervisor.DATA_MARGIN_BYTES
    assert bound == {"RLIMIT_DATA": [data, data], "RLIMIT_NOFILE": [100, 100]}
    assert shared["RLIMIT_DATA"] == [2048 * MEBIBYTE] * 2
    assert shared["RLIMIT_NOFILE"] == [handler_supervisor.FILES_AT_LEAST] * 2
    own = {name: list(resource.getrlimit(getattr(resource, name))) for name in free}
    assert free == own


async def test_too_much_processor_time_ends_the_core(owner: Owner) -> None:
    await owner.start(1, cpu_ms=1)

    owner.hand("spin", cpu_ms=1, alone=True)

    facts = await owner.next(ExitFacts)
    assert (facts.cause, facts.signal) == ("SIGXCPU", "SIGXCPU")
    assert "than the 1 ms it may" in facts.text


async def test_core_without_a_bound_of_processor_time_is_not_said_to_have_passed_it(owner: Owner) -> None:
    await owner.start()

    owner.hand("die", signal.SIGXCPU)

    assert (await owner.next(ExitFacts)).text == "the process was killed by SIGXCPU"


async def test_too_much_memory_without_a_control_group_is_a_failure(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryGroup, "bounded", lambda pid, limit_bytes: None)
    await owner.start(1, memory_bytes=64 * MEBIBYTE)

    result = await owner.result_of("eat", alone=True)

    assert (result.outcome, result.cause) == ("failed", "MemoryError")
    assert result.memory_bytes > 32 * MEBIBYTE


@pytest.fixture
def control_groups() -> Iterator[None]:
    """Skips where the system lends no control group with a bound of memory."""
    sleeper = subprocess.Popen(["sleep", "1000"])
    group = MemoryGroup.bounded(sleeper.pid, 64 * MEBIBYTE)
    sleeper.kill()
    sleeper.wait()
    if group is None:
        pytest.skip("control groups of memory cannot be made here: that needs root, or a delegated group")
    while not group.remove():
        pass
    yield


async def test_too_much_memory_in_a_control_group_is_an_oom(owner: Owner, control_groups: None) -> None:
    limit = 80 * MEBIBYTE
    await owner.start(1, memory_bytes=limit)

    owner.hand("eat", alone=True)

    facts = await owner.next(ExitFacts)
    assert (facts.cause, facts.signal) == ("oom", "SIGKILL")
    assert limit * 0.9 <= facts.memory_bytes <= limit
    assert facts.text.endswith("it used more memory than the 80 MiB it may")


async def test_kill_by_a_stranger_in_a_control_group_is_no_oom(owner: Owner, control_groups: None) -> None:
    pid = await owner.start(1, memory_bytes=200 * MEBIBYTE)
    await owner.result_of("keep", 30 * MEBIBYTE)  # what it has from before it was put into the group is not counted

    os.kill(pid, signal.SIGKILL)

    facts = await owner.next(ExitFacts)
    assert facts.cause == "SIGKILL" and facts.memory_bytes > 30 * MEBIBYTE


async def test_child_that_left_the_group_does_not_leave_the_control_group(owner: Owner, control_groups: None) -> None:
    await owner.start(1, memory_bytes=200 * MEBIBYTE)

    owner.hand("escape", "start")

    await owner.next(ExitFacts)
    child = await owner.child()
    await happens(lambda: is_gone(child))


# Nothing outlives its owner.


async def test_no_process_survives_a_killed_worker(owner: Owner) -> None:
    # given a worker in a process of its own, whose core started a child and blocks
    script = f"""
import asyncio
from talka.engine.handlers.handler_core import load_handlers
from talka.engine.handlers.handler_supervisor import HandlerSupervisor
from talka.wire.tasks import HandedTask, Load, RunTasks

async def main():
    heard = asyncio.Event()
    supervisor = HandlerSupervisor(lambda core, message: heard.set(), lambda core, facts: None)
    supervisor.start(1)
    supervisor.tell(1, Load(({str(owner.file)!r},)))
    await heard.wait()
    for fence, handler in enumerate(("leave", "block")):
        supervisor.tell(1, RunTasks((HandedTask({os.getpid()} << 20 | fence, "job", "task", handler, 1, b"null"),)))
    print(supervisor._cores[1].child.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    assert worker.stdout is not None
    async with asyncio.timeout(WAIT_S):
        core = int(await worker.stdout.readline())
    child = await owner.child()

    # when it is killed
    worker.kill()
    await worker.wait()

    # then the core and the child are gone
    await happens(lambda: is_gone(core) and is_gone(child))


async def test_core_ends_when_its_worker_is_gone_already() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-P", "-m", "talka.engine.handlers.handler_core", str(theirs.fileno()), "1"]
        process = await asyncio.create_subprocess_exec(*command, pass_fds=(theirs.fileno(),), start_new_session=True)
        async with asyncio.timeout(WAIT_S):
            assert await process.wait() == 1


async def test_closing_ends_every_core(owner: Owner) -> None:
    pids = [await owner.start(core) for core in (1, 2)]
    owner.hand("stubborn")

    await owner.supervisor.close()

    assert all(is_gone(pid) for pid in pids) and pids_of(owner.supervisor) == {}


# As a worker's node uses them.


def processes(owner: Owner, folder: Path) -> HandlerProcesses:
    blobs = Blobs(folder / "bundles")
    return HandlerProcesses(
        1024 * MEBIBYTE, owner._on_happened, owner._on_happened, bundles=blobs, folder=folder / "handlers"
    )


async def test_orders_of_the_pool_are_carried_out(owner: Owner, tmp_path: Path) -> None:
    cores = processes(owner, tmp_path)
    try:
        cores.do(StartHandlers(1))
        cores.do(TellHandlers(1, Load((str(owner.file),))))
        loaded = await owner.next(Loaded)
        assert pids_of(cores.supervisor) == {1: loaded.pid}
        cores.do(TellHandlers(1, RunTasks((HandedTask(1, "job", "task", "limits", 1, b"null"),))))
        limits = msgspec.json.decode((await owner.next(Ran)).results[0].output)
        assert limits["RLIMIT_DATA"][0] == 1024 * MEBIBYTE
        cores.supervisor.look()
        cores.do(EndHandlers(1, hard=True))
        assert (await owner.next(ExitFacts)).cause == "SIGKILL"
    finally:
        await cores.supervisor.close()


def packed(folder: Path, version: int) -> PackedHandlers:
    """A file with a handler, a module that it needs and data beside it."""
    home = folder / f"v{version}"
    home.mkdir()
    (home / f"travelling_{version}.py").write_text(
        f"import os\nfrom talka import handler\nimport beside_{version}\n"
        "@handler('tell')\n"
        f"def tell(task):\n    return [beside_{version}.VERSION, open('words.txt').read(), os.getcwd()]\n"
        "@handler('fails')\n"
        "async def fails(task):\n    raise KeyError('gone')\n"
    )
    (home / f"beside_{version}.py").write_text(f"VERSION = {version}\n")
    (home / "words.txt").write_text(f"words {version}")
    path = str(home / f"travelling_{version}.py")
    load_handlers((path,))
    return pack_handlers([path, str(home / "words.txt")])


def source_of(bundle: PackedHandlers) -> BundleSource:
    return BundleSource(f"blob:{bundle.digest}", bundle.digest, bundle.files[0], "", {})


async def test_two_bundles_with_a_handler_of_one_name_run_side_by_side_in_cores_of_their_own(
    owner: Owner, tmp_path: Path
) -> None:
    bundles = [packed(tmp_path, 1), packed(tmp_path, 2)]
    blobs = Blobs(tmp_path / "bundles")
    for bundle in bundles:
        blobs.put(bundle.digest, bundle.content)
    cores = processes(owner, tmp_path)
    try:
        for core, bundle in enumerate(bundles, 1):
            cores.do(StartHandlers(core))
            cores.do(TellHandlers(core, Load(bundle.files, 1, "w", source_of(bundle))))
            loaded = await owner.next(Loaded, core)
            assert (loaded.problem, loaded.handlers, loaded.plain) == ("", ("tell", "fails"), ("tell",))
        folders = []
        for core in (1, 2):
            cores.do(TellHandlers(core, RunTasks((HandedTask(core, "job", "task", "tell", 1, b"null"),))))
            output = msgspec.json.decode((await owner.next(Ran, core)).results[0].output)
            assert output[:2] == [core, f"words {core}"]
            folders.append(Path(output[2]))
        assert [folder.parent for folder in folders] == [tmp_path / "handlers"] * 2 and folders[0] != folders[1]
        cores.do(TellHandlers(1, RunTasks((HandedTask(9, "job", "task", "fails", 1, b"null"),))))
        (result,) = (await owner.next(Ran)).results
        assert result.error == "KeyError: 'gone' (travelling_1.py:9)"
        cores.do(EndHandlers(1, hard=True))
        await owner.next(ExitFacts)
        assert not folders[0].exists() and folders[1].is_dir(), "what was unpacked goes with its process"
    finally:
        await cores.close()
    assert not (tmp_path / "handlers").exists()


async def test_a_bundle_that_was_damaged_on_disk_is_not_run(owner: Owner, tmp_path: Path) -> None:
    bundle = packed(tmp_path, 3)
    blobs = Blobs(tmp_path / "bundles")
    blobs.put(bundle.digest, bundle.content)
    blobs.path(bundle.digest).write_bytes(b"something else")
    cores = processes(owner, tmp_path)
    try:
        cores.do(StartHandlers(1))
        cores.do(TellHandlers(1, Load(bundle.files, 1, "w", source_of(bundle))))
        assert (await owner.next(Loaded)).problem.startswith(f"the bundle {bundle.digest} is damaged on this worker")
    finally:
        await cores.close()


async def test_a_file_that_raises_in_a_bundle_is_named_as_it_is_inside(owner: Owner, tmp_path: Path) -> None:
    bundle = packed(tmp_path, 4)
    source = tmp_path / "v4" / "travelling_4.py"
    source.write_text(source.read_text() + "raise ValueError('only on workers')\n")
    bundle = pack_handlers([str(source)])
    Blobs(tmp_path / "bundles").put(bundle.digest, bundle.content)
    cores = processes(owner, tmp_path)
    try:
        cores.do(StartHandlers(1))
        cores.do(TellHandlers(1, Load(bundle.files, 1, "w", source_of(bundle))))
        text = "travelling_4.py:10: raised ValueError: only on workers when it was imported"
        assert (await owner.next(Loaded)).problem == text
    finally:
        await cores.close()


def test_files_of_handlers_are_named_so_that_cores_find_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "etl.py").write_text("")

    assert files_of((Path("etl.py"),)) == (str(tmp_path / "etl.py"),)
    with pytest.raises(Invalid, match="there is no file other.py with handlers"):
        files_of((Path("etl.py"), Path("other.py")))


def test_little_room_on_the_disk_is_told(tmp_path: Path) -> None:
    assert short_of_disk(tmp_path) == ""
    assert short_of_disk(tmp_path, least_bytes=1 << 62).startswith("disk: ")
    assert "cannot be looked at: No such file or directory" in short_of_disk(tmp_path / "gone")


def test_news_of_handlers_are_events_with_words() -> None:
    loaded = worker_event_of(HandlersLoaded(("a", "b")))
    broken = worker_event_of(HandlersBroken("etl.py:3: syntax error"))

    assert loaded is not None and sentence_of(loaded) == "has the handlers a, b"
    assert broken is not None and sentence_of(broken) == "the handlers cannot be used: etl.py:3: syntax error"


def test_news_of_handlers_that_travelled_say_in_which_bundle() -> None:
    loaded = worker_event_of(HandlersLoaded(("a", "b"), "0123456789abcdef"))
    broken = worker_event_of(HandlersBroken("etl.py:3: syntax error", "0123456789abcdef"))

    assert loaded == {"event": "handlers", "handlers": "a, b", "bundle": "0123456789ab"}
    assert sentence_of(loaded) == "has the handlers a, b of the bundle 0123456789ab"
    assert broken is not None
    assert sentence_of(broken) == "the handlers of the bundle 0123456789ab cannot be used: etl.py:3: syntax error"
