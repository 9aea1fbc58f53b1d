"""Where a handler core was when it ended, in real processes: by a signal, or killed because it did not stop."""

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from talka.control.worker.effects import EndHandlers, ExitFacts
from talka.nodes.cores import HandlerProcesses
from talka.store.files.blobs import Blobs
from talka.wire.tasks import Said
from tests.engine.handlers.test_handler_supervisor import Owner, happens, pids_of

HANDLERS = """
import asyncio, ctypes, faulthandler, os, signal, subprocess, sys, threading, time
from talka import command, handler

def touches_nothing():
    ctypes.string_at(0)

@handler("crash")
async def crash(task):
    await one_call_deeper()

async def one_call_deeper():
    touches_nothing()

@handler("crash-plainly")
def crash_plainly(task):
    touches_nothing()

@handler("die")
async def die(task):
    os.kill(os.getpid(), task.config)

@handler("die-plainly")
def die_plainly(task):
    os.kill(os.getpid(), task.config); threading.Event().wait()  # it is for the thread of the loop

@handler("spin")
def spin(task):
    while True: pass

@handler("crash-in-child")
def crash_in_child(task):
    pid = os.fork()
    if pid == 0:
        touches_nothing()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

@handler("crash-their-way")
def crash_their_way(task):
    faulthandler.enable(file=sys.stderr)
    touches_nothing()

@handler("block")
async def block(task):
    waits_for_ever()

def waits_for_ever():
    print("blocks"); time.sleep(1000)

@handler("hold")
async def hold(task):
    print("waits")
    await asyncio.Event().wait()

@handler("descriptors")
def descriptors(task):
    (word,) = [word for word in sys.argv if word.startswith("stack=")]
    pipe = os.fstat(int(word.removeprefix("stack="))).st_ino
    seen = subprocess.run(["ls", "-l", "/proc/self/fd"], close_fds=False, capture_output=True, text=True).stdout
    return {"pipe": f"pipe:[{pipe}]", "seen": seen}

command("list", ["ls", "-l", "/proc/self/fd"])
"""
LINE_OF = {name: number for number, name in enumerate(HANDLERS.splitlines(), 1) if name.startswith("    ")}


def place(call: str, function: str) -> str:
    """How a stack names a line of the handlers."""
    return f'handlers.py", line {LINE_OF[f"    {call}"]} in {function}'


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    made = Owner(tmp_path)
    made.file.write_text(HANDLERS)
    yield made
    await made.supervisor.close()


async def stack_of(owner: Owner) -> str:
    return (await owner.next(ExitFacts)).stack.decode()


@pytest.mark.parametrize(
    ("handler", "calls"),
    [
        ("crash", [("await one_call_deeper()", "crash"), ("touches_nothing()", "one_call_deeper")]),
        ("crash-plainly", [("touches_nothing()", "crash_plainly")]),
    ],
)
async def test_a_handler_that_reads_where_nothing_is_leaves_its_stack(
    owner: Owner, handler: str, calls: list[tuple[str, str]]
) -> None:
    await owner.start()
    owner.hand(handler)

    facts = await owner.next(ExitFacts)

    assert facts.signal == "SIGSEGV"
    *before, last = facts.stack.decode().splitlines()
    assert last == "Fatal Python error: Segmentation fault"
    assert before[0].startswith("Current thread"), "nothing else of the user's code ran"
    named = [line.partition("handlers.py")[2].rpartition(" in ")[2] for line in before if "handlers.py" in line]
    assert named == [*(function for _, function in calls), "touches_nothing"]
    assert "in string_at" in before[-1] and "handler_run.py" not in facts.stack.decode()
    assert place("ctypes.string_at(0)", "touches_nothing") in facts.stack.decode()


@pytest.mark.parametrize("name", ["SIGFPE", "SIGABRT", "SIGBUS", "SIGILL"])
async def test_every_signal_of_a_fault_leaves_a_stack(owner: Owner, name: str) -> None:
    await owner.start()
    owner.hand("die", signal.Signals[name])

    facts = await owner.next(ExitFacts)

    assert facts.signal == name
    assert facts.stack.decode().splitlines()[-1].startswith("Fatal Python error: ")
    assert place("os.kill(os.getpid(), task.config)", "die") in facts.stack.decode()


async def test_a_function_that_uses_more_processor_time_than_it_may_leaves_its_stack(owner: Owner) -> None:
    await owner.start(cpu_ms=100)
    owner.hand("spin", cpu_ms=100)

    facts = await owner.next(ExitFacts)

    assert facts.signal == "SIGXCPU" and place("while True: pass", "spin") in facts.stack.decode()


async def test_a_function_beside_the_thread_that_a_signal_met_is_shown_too(owner: Owner) -> None:
    await owner.start()
    owner.hand("die-plainly", signal.SIGABRT)

    assert "in die_plainly" in await stack_of(owner)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_signal_that_is_no_fault_leaves_none(owner: Owner, number: signal.Signals) -> None:
    await owner.start()
    owner.hand("die", number)

    assert await stack_of(owner) == ""


async def test_a_forked_child_that_crashes_shows_its_stack_to_the_worker_alone(
    owner: Owner, capfd: pytest.CaptureFixture[str]
) -> None:
    await owner.start()
    result = await owner.result_of("crash-in-child")
    assert (result.outcome, result.output) == ("completed", str(-signal.SIGSEGV).encode())
    assert "in touches_nothing" in capfd.readouterr().err

    owner.hand("die", signal.SIGTERM)
    assert await stack_of(owner) == ""


async def test_code_that_wants_its_crashes_elsewhere_has_them_there(
    owner: Owner, capfd: pytest.CaptureFixture[str]
) -> None:
    await owner.start()
    owner.hand("crash-their-way")

    assert await stack_of(owner) == ""
    assert "in touches_nothing" in capfd.readouterr().err


async def test_the_pipe_of_the_stack_is_nothing_that_a_command_has(owner: Owner) -> None:
    await owner.start()
    told = json.loads((await owner.result_of("descriptors")).output)

    assert told["seen"].count("->") >= 3 and told["pipe"] not in told["seen"]
    assert told["pipe"] not in json.loads((await owner.result_of("list")).output)


async def test_a_coroutine_that_blocks_its_loop_is_seen_where_it_does_before_it_is_killed(
    owner: Owner, tmp_path: Path
) -> None:
    # given a core whose loop does not turn, as a worker's node has it
    cores = HandlerProcesses(
        0, owner._on_happened, owner._on_happened, bundles=Blobs(tmp_path / "blobs"), folder=tmp_path / "handlers"
    )
    owner.supervisor, unused = cores.supervisor, owner.supervisor
    await unused.close()
    await owner.start()
    owner.hand("block")
    await owner.next(Said)

    # when it is killed, and what it does is wanted
    cores.do(EndHandlers(1, hard=True, shows_stack=True))

    # then its exit tells that
    facts = await owner.next(ExitFacts)
    assert (facts.signal, facts.text) == ("SIGKILL", "the process was killed by SIGKILL: its worker killed it")
    lines = facts.stack.decode().splitlines()
    assert place("waits_for_ever()", "block") in lines[1]
    assert place('print("blocks"); time.sleep(1000)', "waits_for_ever") in lines[2]


async def test_a_core_whose_loop_waits_shows_nothing_and_is_killed(owner: Owner) -> None:
    pid = await owner.start()
    owner.hand("hold")
    await owner.next(Said)
    await happens(lambda: psutil.Process(pid).status() == psutil.STATUS_SLEEPING)

    owner.supervisor.end(1, hard=True, shows_stack=True)

    assert await stack_of(owner) == ""


async def test_a_core_that_cannot_say_what_it_does_is_killed_all_the_same(owner: Owner) -> None:
    pid = await owner.start()
    owner.hand("block")
    await owner.next(Said)
    os.kill(pid, signal.SIGSTOP)

    owner.supervisor.end(1, hard=True, shows_stack=True)

    assert await stack_of(owner) == ""
    assert pids_of(owner.supervisor) == {}


async def test_a_core_that_is_to_be_killed_now_is_not_looked_at(owner: Owner) -> None:
    await owner.start()
    owner.hand("block")
    await owner.next(Said)

    owner.supervisor.end(1, hard=True)

    assert await stack_of(owner) == ""
