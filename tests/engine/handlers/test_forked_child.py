"""Children that handlers fork, in cores as real processes: what they write is the worker's own output, they say nothing
of their parent's, and the attempt goes on as if they were not there."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from talka.wire.output_tail import StreamTail
from talka.wire.tasks import HandedTask, Ran, RunTasks, Said, TaskResult
from tests.engine.handlers.test_handler_supervisor import WAIT_S, Owner, pids_of
from tests.engine.loops import LOOPS

HANDLERS = """
import asyncio, os, socket, sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from talka import handler

def child_ends(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def speak():
    print("hello from the child")
    print("careful", file=sys.stderr)

def speak_and_fail():
    speak()
    raise KeyError("of the child")

def by_fork(task, work):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    return child_ends(pid)

def by_process(task, work):
    process = get_context("fork").Process(target=work)
    process.start()
    process.join()
    return process.exitcode

def by_pool(task, work):
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        return 1 if pool.submit(work).exception() else 0

WAYS = {"fork": by_fork, "process": by_process, "pool": by_pool}

def run(task):
    print("before")
    ended = WAYS[task.config["way"]](task, speak_and_fail if task.config["fails"] else speak)
    print("after")
    return ended

@handler("plain")
def plain(task):
    return run(task)

@handler("coroutine")
async def coroutine(task):
    output = run(task)
    await asyncio.sleep(0)
    return output

@handler("exit")
def exit(task):
    return by_fork(task, lambda: sys.exit(task.config))

@handler("return-plainly")
def return_plainly(task):
    pid = os.fork()
    return child_ends(pid) if pid else "of the child"

@handler("return")
async def return_from_coroutine(task):
    return return_plainly(task)

@handler("say")
async def say(task):
    def work():
        task.log("a line of the child")
        task.heartbeat({"row": 7})
    return by_fork(task, work)

@handler("left-open")
async def left_open(task):
    def work():
        # So many have all the low numbers that are free, such as those of what was closed in the child.
        ends = [end for _ in range(32) for end in socket.socketpair()]
        for number in range(3):
            print("hello from the child", number)
            task.log(f"line {number}")
            task.heartbeat(number)
        for end in ends:
            end.setblocking(False)
            try:
                os.write(2, b"in a socket of its own: " + end.recv(65536))
                os._exit(9)
            except BlockingIOError:
                pass
    return by_fork(task, work)

@handler("held")
def held(task):
    print("before")
    with task.output._lock:
        pid = os.fork()
        if pid == 0:
            print("hello from the child")
            return
        return child_ends(pid)

@handler("await")
async def wait_in_child(task):
    future = asyncio.get_running_loop().create_future()
    print("before")
    pid = os.fork()
    if pid == 0:
        await future
    return child_ends(pid)

@handler("beside")
async def beside(task):
    print("before")
    for _ in range(100):
        await asyncio.sleep(0)
    return os.getpid()
"""


@pytest.fixture(params=LOOPS)
async def owner(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Owner]:
    """Of cores with either loop. Each test starts its own: what this process writes, which is their own output too, is
    captured from then on."""
    if request.param == "asyncio":
        (tmp_path / "without").mkdir()
        (tmp_path / "without" / "uvloop.py").write_text("raise ImportError('it is not installed')\n")
        request.getfixturevalue("monkeypatch").setenv("PYTHONPATH", str(tmp_path / "without"))
    made = Owner(tmp_path)
    made.file.write_text(HANDLERS)
    yield made
    await made.supervisor.close()


async def completed(owner: Owner, handler: str, config: object = None) -> tuple[object, dict[str, bytes]]:
    """What it returned, and what it wrote."""
    if not pids_of(owner.supervisor):
        await owner.start()
    result = await owner.result_of(handler, config)
    assert result.outcome == "completed", result
    return json.loads(result.output), {tail.stream: tail.content for tail in result.tails}


def said_of(owner: Owner) -> list[Said]:
    return [message for message in owner.said if isinstance(message, Said)]


@pytest.mark.parametrize("handler", ["plain", "coroutine"])
async def test_what_a_forked_child_writes_goes_to_the_workers_own_output(
    owner: Owner, handler: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for way in ("fork", "process", "pool"):
        status, wrote = await completed(owner, handler, {"way": way, "fails": False})

        assert (status, wrote) == (0, {"stdout": b"before\nafter\n"}), way
        assert capfd.readouterr().err.splitlines() == ["hello from the child", "careful"], way
    assert "child" not in repr(said_of(owner))


@pytest.mark.parametrize("handler", ["plain", "coroutine"])
async def test_the_traceback_of_a_forked_child_goes_there_too_and_it_ends(
    owner: Owner, handler: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for way in ("fork", "process"):  # a pool hands it to the parent
        status, wrote = await completed(owner, handler, {"way": way, "fails": True})

        assert (status, wrote) == (1, {"stdout": b"before\nafter\n"}), way
        told = capfd.readouterr().err
        assert "in speak_and_fail" in told and told.endswith("KeyError: 'of the child'\n"), told
        assert "handler_run.py" not in told


async def test_a_forked_child_that_exits_has_the_status_that_it_asked_for(
    owner: Owner, capfd: pytest.CaptureFixture[str]
) -> None:
    for code, status in ((None, 0), (3, 3), ("a word", 1)):
        assert await completed(owner, "exit", code) == (status, {})

    assert capfd.readouterr().err == "a word\n"


async def test_a_forked_child_that_returns_ends_well_and_its_parents_output_is_the_only_one(owner: Owner) -> None:
    for handler in ("return", "return-plainly", "return"):
        assert await completed(owner, handler) == (0, {})


async def test_a_forked_child_says_nothing_in_a_descriptor_of_its_own(
    owner: Owner, capfd: pytest.CaptureFixture[str]
) -> None:
    status, wrote = await completed(owner, "left-open")

    told = capfd.readouterr().err
    assert (status, wrote) == (0, {}), told
    assert told.count("hello from the child") == 3
    assert not [line for said in said_of(owner) for line in said.lines]


async def test_lines_that_a_forked_child_logs_are_the_workers_and_its_progress_is_nobodys(
    owner: Owner, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await completed(owner, "say") == (0, {})

    assert capfd.readouterr().err == "a line of the child\n"
    assert said_of(owner) == []


async def test_a_forked_child_waits_for_no_lock_that_was_held_when_it_was_forked(
    owner: Owner, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await completed(owner, "held") == (0, {"stdout": b"before\n"})
    assert capfd.readouterr().err == "hello from the child\n"


async def test_a_forked_child_that_goes_back_to_the_loop_of_its_parent_ends_and_runs_no_other_attempt(
    owner: Owner, capfd: pytest.CaptureFixture[str]
) -> None:
    pid = await owner.start()
    tasks = [HandedTask(number, "job", f"t{number}", "beside", 1, b"null") for number in range(1, 4)]
    tasks[1:1] = [HandedTask(9, "job", "t9", "await", 1, b"null")]
    owner.supervisor.tell(1, RunTasks(tuple(tasks)))
    results: dict[int, TaskResult] = {}
    async with asyncio.timeout(WAIT_S):
        while len(results) < len(tasks):
            for result in (await owner.next(Ran)).results:
                assert result.fence not in results, "each ends once"
                results[result.fence] = result

    assert (results[9].outcome, results[9].output) == ("completed", b"1")
    assert {results[number].output for number in (1, 2, 3)} == {str(pid).encode()}
    assert all(result.tails == (StreamTail("stdout", b"before\n", 7),) for result in results.values())
    assert "a forked child cannot go on in the event loop of its parent" in capfd.readouterr().err
