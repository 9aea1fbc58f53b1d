"""A handler core as its worker hears it, in this process: what attempts are given, what they say and how they end."""

import asyncio
import contextvars
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from talka.clock import cpu_ns
from talka.engine.handlers import handler_core
from talka.engine.handlers.handler_core import (
    HANDLER_CORE_LIMITS,
    HandlerCore,
    HandlerCoreLimits,
    first_word,
    framed_message,
    limit_cpu,
    loaded,
    new_deframer,
)
from talka.engine.handlers.handler_run import (
    DETAILS_LIMIT_BYTES,
    HandlerRun,
    TooMuchDetail,
    classes_of,
    described,
)
from talka.engine.handlers.kin import is_of_command, kin
from talka.errors import sendable
from talka.units import SECOND
from talka.wire.channels import BadMessage
from talka.wire.tasks import (
    ERROR_LIMIT,
    LOG_LINE_LIMIT,
    FromHandlers,
    HandedTask,
    Load,
    Ran,
    RunTasks,
    Said,
    Spent,
    StopTasks,
    TaskResult,
    decode_from_handlers,
)
from talka.work.dags.dag import ELEMENTS_LIMIT, OUTPUT_LIMIT_BYTES
from talka.work.handlers import HandlerSpec, HandlerTask

WAIT_S = 60
MEBIBYTE = 1 << 20
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="untouched")


class Heard:
    """The worker's end of the socket."""

    def __init__(self) -> None:
        self.messages: list[FromHandlers] = []
        self.written = 0
        self._deframer = new_deframer()
        self._arrived = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.written += 1
        self.messages += [decode_from_handlers(frame) for frame in self._deframer.feed(data)]
        self._arrived.set()

    @property
    def results(self) -> list[TaskResult]:
        return [result for message in self.messages if isinstance(message, Ran) for result in message.results]

    @property
    def lines(self) -> list[str]:
        return [line.text for message in self.messages if isinstance(message, Said) for line in message.lines]

    @property
    def progress(self) -> list[object]:
        said = [message for message in self.messages if isinstance(message, Said)]
        return [msgspec.json.decode(one.details) for message in said for one in message.progress]

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._arrived.clear()
                await self._arrived.wait()


class Bench:
    """A core with some handlers, and who hears it."""

    def __init__(self, limits: HandlerCoreLimits = HANDLER_CORE_LIMITS, **functions: Callable[..., Any]) -> None:
        specs = {
            name: HandlerSpec(
                name=name, function=function, is_async=asyncio.iscoroutinefunction(function), file=__file__
            )
            for name, function in functions.items()
        }
        self.heard = Heard()
        self.core = HandlerCore(specs, limits=limits)
        self.core.connection_made(cast(asyncio.Transport, self.heard))
        self._fence = 0

    def hand(self, handler: str, config: object = None, **fields: Any) -> int:
        self._fence += 1
        content = msgspec.json.encode(config)
        task = HandedTask(self._fence, "job-1", f"task-{self._fence}", handler, 1, content, **fields)
        self.core.on_message(RunTasks((task,)))
        return self._fence

    async def result_of(self, handler: str, config: object = None, **fields: Any) -> TaskResult:
        fence = self.hand(handler, config, **fields)
        await self.heard.until(lambda: any(result.fence == fence for result in self.heard.results))
        return next(result for result in self.heard.results if result.fence == fence)


async def give_config(task: HandlerTask) -> object:
    return task.config


def give_config_plainly(task: HandlerTask) -> object:
    return task.config


KINDS = pytest.mark.parametrize("kind", ["coroutine", "plain"])


def of(kind: str, body: Callable[[HandlerTask], object]) -> Callable[..., Any]:
    """`body` as a handler of either kind."""
    if kind == "plain":
        return body

    async def coroutine(task: HandlerTask) -> object:
        return body(task)

    return coroutine


# What a handler is given.


@KINDS
async def test_handler_is_given_all_of_its_attempt(kind: str) -> None:
    seen: list[HandlerTask] = []
    bench = Bench(look=of(kind, seen.append))

    await bench.result_of("look", {"n": 1}, inputs={"a": b"[1]", "b": b"null"}, key="once", checkpoint=b'{"row":7}')

    task = seen[0]
    assert (task.id, task.job, task.attempt, task.fence, task.key) == ("task-1", "job-1", 1, 1, "once")
    assert task.config == {"n": 1} and task.config is task.config
    assert task.inputs == {"a": [1], "b": None} and task.inputs is task.inputs
    assert task.checkpoint == {"row": 7} and task.checkpoint is task.checkpoint
    assert not task.is_cancelled


async def test_first_attempt_has_no_checkpoint() -> None:
    seen: list[HandlerTask] = []
    bench = Bench(look=of("plain", seen.append))

    await bench.result_of("look")

    assert seen[0].checkpoint is None and seen[0].config is None and seen[0].inputs == {}


async def test_config_is_empty_where_nothing_was_written() -> None:
    bench = Bench(look=of("plain", lambda task: task.config))

    bench.core.on_message(RunTasks((HandedTask(1, "job-1", "task-1", "look", 1, b""),)))
    await bench.heard.until(lambda: bool(bench.heard.results))

    assert [result.output for result in bench.heard.results] == [b"{}"]


@KINDS
async def test_output_is_what_it_returns(kind: str) -> None:
    bench = Bench(give=of(kind, lambda task: task.config))

    result = await bench.result_of("give", {"a": [1, None, "ü"]})

    assert (result.outcome, result.output) == ("completed", '{"a":[1,null,"ü"]}'.encode())
    assert (await bench.result_of("give", None)).output == b"null"


async def test_the_end_of_the_only_attempt_is_told_at_once_and_ends_of_several_together() -> None:
    """A turn of the loop is a tenth of what a short task takes."""
    heard_after: list[int] = []

    async def look(task: HandlerTask) -> None:
        asyncio.get_running_loop().call_soon(lambda: heard_after.append(len(bench.heard.results)))

    bench = Bench(look=look)
    await bench.result_of("look")
    await asyncio.sleep(0)
    assert heard_after == [1]

    bench.heard.messages.clear()
    for _ in range(3):
        bench.hand("look")
    await bench.heard.until(lambda: len(bench.heard.results) == 3)
    assert [len(message.results) for message in bench.heard.messages if isinstance(message, Ran)] == [3]


async def test_attempts_do_not_share_a_context() -> None:
    def touch(task: HandlerTask) -> str:
        before = variable.get()
        variable.set("touched")
        return before

    for kind in ("coroutine", "plain"):
        bench = Bench(touch=of(kind, touch))
        await bench.result_of("touch")
        assert (await bench.result_of("touch")).output == b'"untouched"'


async def test_coroutine_runs_in_a_task_of_its_own() -> None:
    async def strict(task: HandlerTask) -> int:
        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
            child = group.create_task(asyncio.sleep(0, 41))
        current = asyncio.current_task()
        return child.result() + (current is not None)

    assert (await Bench(strict=strict).result_of("strict")).output == b"42"


async def test_coroutines_run_side_by_side_and_plain_functions_one_by_one() -> None:
    # given coroutines that wait for one another, and plain functions that count how many are within
    gate = asyncio.Barrier(3)
    within: list[int] = []
    most: list[int] = []

    async def meet(task: HandlerTask) -> None:
        await gate.wait()

    def alone(task: HandlerTask) -> None:
        within.append(1)
        most.append(len(within))
        within.pop()

    bench = Bench(meet=meet, alone=alone)

    # when several of each are told
    for handler in ["meet", "alone"] * 3:
        bench.hand(handler)
    await bench.heard.until(lambda: len(bench.heard.results) == 6)

    # then all ended, and no two plain functions met
    assert [result.outcome for result in bench.heard.results] == ["completed"] * 6
    assert most == [1, 1, 1]


async def test_results_of_one_turn_travel_together() -> None:
    bench = Bench(give=give_config)

    for number in range(50):
        bench.hand("give", number)
    await bench.heard.until(lambda: len(bench.heard.results) == 50)

    assert bench.heard.written == 1
    assert [result.output for result in bench.heard.results] == [str(number).encode() for number in range(50)]


async def test_large_outputs_travel_in_several_frames() -> None:
    bench = Bench(HandlerCoreLimits(batch_bytes=1000), give=give_config)

    for _ in range(5):
        bench.hand("give", "x" * 700)
    await bench.heard.until(lambda: len(bench.heard.results) == 5)

    assert [len(cast(Ran, message).results) for message in bench.heard.messages] == [2, 2, 1]


async def test_attempt_that_is_told_twice_runs_once() -> None:
    runs: list[str] = []
    bench = Bench(count=of("plain", lambda task: runs.append(task.id)), give=give_config)
    task = HandedTask(9, "job", "task", "count", 1, b"null")

    bench.core.on_message(RunTasks((task, task)))
    await bench.heard.until(lambda: bench.heard.results)
    await bench.result_of("count")

    assert runs == ["task", "task-1"]


async def test_asynchronous_attempt_that_is_told_again_while_it_runs_is_not_begun_again() -> None:
    runs: list[str] = []
    gate = asyncio.Event()

    async def count(task: HandlerTask) -> None:
        runs.append(task.id)
        await gate.wait()

    bench = Bench(count=count, give=give_config)
    task = HandedTask(9, "job", "task", "count", 1, b"null")

    bench.core.on_message(RunTasks((task, task)))
    bench.core.on_message(RunTasks((task,)))
    await bench.result_of("give")
    gate.set()
    await bench.heard.until(lambda: len(bench.heard.results) == 2)
    await bench.result_of("give")

    assert runs == ["task"]
    assert [result.fence for result in bench.heard.results].count(9) == 1


async def test_plain_attempt_that_is_told_again_while_it_runs_is_not_begun_again() -> None:
    runs: list[str] = []
    began, gate = threading.Event(), threading.Event()

    def count(task: HandlerTask) -> None:
        runs.append(task.id)
        began.set()
        gate.wait(WAIT_S)

    bench = Bench(count=count)
    task = HandedTask(9, "job", "task", "count", 1, b"null")

    bench.core.on_message(RunTasks((task,)))
    await asyncio.to_thread(began.wait, WAIT_S)
    bench.core.on_message(RunTasks((task,)))
    gate.set()
    await bench.result_of("count")

    assert runs == ["task", "task-1"]


# What an attempt that did not return leaves behind.


class Kin:
    """Processes in the group of a core, as it finds them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *there: int) -> None:
        self.pids = list(there)
        self.looks = 0
        self.looked = asyncio.Event()
        monkeypatch.setattr(handler_core, "kin", self.look)
        monkeypatch.setattr(handler_core, "is_of_command", lambda pid: pid == OF_COMMAND)

    def look(self) -> list[int]:
        self.looks += 1
        self.looked.set()
        return list(self.pids)

    async def next_look(self) -> None:
        self.looked.clear()
        async with asyncio.timeout(WAIT_S):
            await self.looked.wait()


OF_COMMAND = 77


async def fail(task: HandlerTask) -> object:
    raise ConnectionError("nobody is there")


async def stand(task: HandlerTask) -> object:
    await asyncio.Event().wait()
    return None


@pytest.mark.parametrize("reason", [None, "cancelled", "timeout"])
async def test_core_says_that_it_is_spent_when_an_attempt_did_not_return_and_processes_are_left(
    reason: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kin = Kin(monkeypatch, 5)
    bench = Bench(fail=fail, stand=stand, give=give_config)
    kin.pids += [6, OF_COMMAND, 8]
    fence = bench.hand("fail" if reason is None else "stand")
    if reason is not None:
        await bench.result_of("give")
        bench.core.on_message(StopTasks((fence,), reason))

    await bench.heard.until(lambda: Spent(2) in bench.heard.messages)

    assert (await bench.result_of("give", 1)).output == b"1", "what it is told still runs"


async def test_core_is_not_spent_where_nothing_is_left_or_everything_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    kin = Kin(monkeypatch, 5)
    bench = Bench(fail=fail, give=give_config)

    await bench.result_of("fail")
    await kin.next_look()
    kin.pids.append(6)
    await bench.result_of("give")

    assert not [message for message in bench.heard.messages if isinstance(message, Spent)]
    assert kin.looks == 2, "one of them when it began"


async def test_many_attempts_that_fail_are_looked_after_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kin = Kin(monkeypatch)
    bench = Bench(fail=fail)
    looks: list[object] = []
    monkeypatch.setattr(bench.core._loop, "call_later", lambda after, call, *more: looks.append(call))

    for _ in range(50):
        await bench.result_of("fail")

    assert looks == [bench.core._look] and kin.looks == 1


def test_kin_are_processes_of_the_own_group_that_live() -> None:
    child = subprocess.Popen(["sleep", "1000"], env={**os.environ, "TALKA_FENCE": "7"})
    other = subprocess.Popen(["sleep", "1000"])
    away = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        found = set(kin())
        assert {child.pid, other.pid} <= found
        assert away.pid not in found and os.getpid() not in found
        assert is_of_command(child.pid) and not is_of_command(other.pid) and not is_of_command(1 << 30)
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        assert other.pid not in set(kin()), "nobody waited for it, and it has ended"
    finally:
        for one in (child, other, away):
            one.kill()
            one.wait()


def test_where_there_is_no_proc_kin_are_found_otherwise(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "1000"])
    try:
        assert child.pid in set(kin(tmp_path / "none"))
    finally:
        child.kill()
        child.wait()


async def test_unknown_handler_is_refused() -> None:
    result = await Bench().result_of("nobody")

    assert (result.outcome, result.cause) == ("refused", "handler")
    assert result.error == "no file of this worker has a handler nobody"


# What it used.


def fill(task: HandlerTask) -> None:
    """So many MiB, for a moment."""
    held = bytearray(task.config * MEBIBYTE)
    for place in range(0, len(held), 4096):
        held[place] = 1


@pytest.mark.parametrize("alone", [False, True], ids=["shared", "alone"])
@KINDS
async def test_the_memory_of_each_attempt_is_its_own_however_short_it_is(kind: str, alone: bool) -> None:
    bench = Bench(fill=of(kind, fill))

    used = [(await bench.result_of("fill", size, alone=alone)).memory_bytes for size in (0, 200, 1, 100)]

    before, large, small, middle = (count // MEBIBYTE for count in used)
    assert before > 1
    assert large > before + 150
    assert small < large - 100, "what an earlier attempt used is not counted again"
    assert small + 50 < middle < large - 50


async def test_the_memory_of_attempts_that_ran_side_by_side_is_not_told() -> None:
    gates = {name: asyncio.Event() for name in ("first", "second")}

    async def wait(task: HandlerTask) -> None:
        await gates[str(task.config)].wait()

    bench = Bench(wait=wait, give=give_config)
    first, second = bench.hand("wait", "first"), bench.hand("wait", "second")
    await asyncio.sleep(0)
    gates["first"].set()
    await bench.heard.until(lambda: bench.heard.results)
    beside = await bench.result_of("give")
    gates["second"].set()
    await bench.heard.until(lambda: len(bench.heard.results) == 3)
    after = await bench.result_of("give")

    used = {result.fence: result.memory_bytes for result in bench.heard.results}
    assert (used[first], used[second], used[beside.fence]) == (0, 0, 0)
    assert after.memory_bytes > 0


async def test_an_attempt_that_failed_tells_its_memory_too() -> None:
    def fail(task: HandlerTask) -> None:
        fill(task)
        raise ValueError

    bench = Bench(fail=fail)
    small, large = await bench.result_of("fail", 1), await bench.result_of("fail", 200)

    assert (small.outcome, large.outcome) == ("failed", "failed")
    assert small.memory_bytes + 150 * MEBIBYTE < large.memory_bytes


# How it fails.


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class Huge(Exception):
    pass


class Cut(Exception):
    pass


@KINDS
@pytest.mark.parametrize(
    ("error", "begins", "cause", "classes"),
    [
        (ValueError("no such row"), "ValueError: no such row (", "ValueError", ("ValueError", "Exception")),
        (Odd(), "Odd in ", "Odd", ("Odd", "Exception")),
        (Huge("x" * 100_000), "Huge: xxx", "Huge", ("Huge", "Exception")),
        (Cut("half \ud800 of it"), "Cut: half ? of it (", "Cut", ("Cut", "Exception")),
        (SystemExit(3), "SystemExit: 3 (", "SystemExit", ("SystemExit",)),
        (KeyboardInterrupt(), "KeyboardInterrupt in ", "KeyboardInterrupt", ("KeyboardInterrupt",)),
        (GeneratorExit(), "GeneratorExit in ", "GeneratorExit", ("GeneratorExit",)),
        (asyncio.CancelledError(), "CancelledError in ", "CancelledError", ("CancelledError",)),
        (
            ExceptionGroup("both", [ValueError(), TypeError()]),
            "ExceptionGroup: both (2 sub-exceptions) (",
            "ExceptionGroup",
            ("ExceptionGroup", "BaseExceptionGroup", "Exception"),
        ),
    ],
    ids=["usual", "no-text", "long", "half", "exit", "interrupt", "generator", "cancelled", "group"],
)
async def test_whatever_it_raises_is_its_failure(
    kind: str, error: BaseException, begins: str, cause: str, classes: tuple[str, ...]
) -> None:
    def fail(task: HandlerTask) -> None:
        raise error

    bench = Bench(fail=of(kind, fail), give=give_config)

    result = await bench.result_of("fail")

    assert (result.outcome, result.cause) == ("failed", cause)
    assert result.error.startswith(begins) and len(result.error) <= ERROR_LIMIT
    place = f"{Path(__file__).name}:{fail.__code__.co_firstlineno + 1}"
    assert result.error.endswith(f" in {place}" if begins.endswith(" in ") else f" ({place})")
    assert result.classes[: len(classes)] == classes and result.classes[-1] == "BaseException"
    assert (await bench.result_of("give", 1)).output == b"1", "the core goes on"


async def test_place_of_a_failure_is_the_users_line_not_the_librarys() -> None:
    def parse(task: HandlerTask) -> None:
        int.from_bytes(b"1", "big")
        __import__("json").loads("{")

    result = await Bench(parse=parse).result_of("parse")

    assert result.cause == "JSONDecodeError"
    assert result.error.endswith(f"({Path(__file__).name}:{parse.__code__.co_firstlineno + 2})")


def test_failure_outside_of_the_users_files_has_the_deepest_line() -> None:
    try:
        __import__("json").loads("{")
    except ValueError as error:
        assert "(decoder.py:" in described(error, "/nowhere/")


def test_failure_that_was_raised_nowhere_has_no_place() -> None:
    assert described(ValueError("text")) == "ValueError: text"


def test_endless_names_and_families_of_classes_are_cut() -> None:
    family: type[Exception] = type("n" * 1000, (Exception,), {})
    for number in range(100):
        family = type(f"Class{number}", (family,), {})

    names = classes_of(family())

    assert len(names) == 32 and names[0] == "Class99"
    assert len(classes_of(type("n" * 1000, (Exception,), {})())[0]) == 200


@KINDS
@pytest.mark.parametrize("output", [object(), {1: {2: object()}}, "\ud800"], ids=["object", "deep", "half"])
async def test_output_that_is_no_json_fails_with_a_sentence(kind: str, output: object) -> None:
    result = await Bench(give=of(kind, lambda task: output)).result_of("give")

    assert (result.outcome, result.cause) == ("failed", "output")
    assert result.error.startswith("its output is not JSON: ")


async def test_output_that_holds_itself_fails() -> None:
    knot: list[object] = []
    knot.append(knot)

    result = await Bench(give=of("plain", lambda task: knot)).result_of("give")

    assert (result.outcome, result.cause) == ("failed", "output")


async def test_coroutine_that_nobody_awaits_is_no_output() -> None:
    coroutine = asyncio.sleep(0)

    result = await Bench(give=of("plain", lambda task: coroutine)).result_of("give")
    coroutine.close()

    assert (result.outcome, result.cause) == ("failed", "output")


async def test_output_over_the_limit_fails_and_at_the_limit_does_not() -> None:
    bench = Bench(give=of("plain", lambda task: "x" * cast(int, task.config)))

    assert (await bench.result_of("give", OUTPUT_LIMIT_BYTES - 2)).outcome == "completed"
    result = await bench.result_of("give", OUTPUT_LIMIT_BYTES - 1)

    assert (result.outcome, result.cause) == ("failed", "output")
    assert "return where it is, not what it is" in result.error


async def test_as_many_distinct_numbers_as_can_be_fanned_out_over_are_an_output() -> None:
    numbers = list(range(ELEMENTS_LIMIT))
    result = await Bench(give=of("plain", lambda task: numbers)).result_of("give")
    assert (result.outcome, result.error) == ("completed", "")
    assert msgspec.json.decode(result.output) == numbers


# What it says.


@KINDS
async def test_what_an_attempt_says_comes_before_its_result(kind: str) -> None:
    def talk(task: HandlerTask) -> None:
        task.log("first\nsecond")
        task.heartbeat({"row": 1})
        task.heartbeat({"row": 2})
        task.heartbeat()
        task.log("third")

    bench = Bench(talk=of(kind, talk))

    await bench.result_of("talk")

    assert bench.heard.lines == ["first", "second", "third"]
    assert bench.heard.progress[-1] == {"row": 2}
    assert isinstance(bench.heard.messages[-1], Ran)


async def test_progress_of_a_running_attempt_is_told_while_it_runs() -> None:
    go_on = asyncio.Event()

    async def work(task: HandlerTask) -> None:
        task.heartbeat("half")
        await go_on.wait()

    bench = Bench(work=work)
    bench.hand("work")

    await bench.heard.until(lambda: bench.heard.progress)
    assert bench.heard.progress == ["half"] and not bench.heard.results
    go_on.set()
    await bench.heard.until(lambda: bench.heard.results)


async def test_much_that_is_said_travels_together() -> None:
    async def talk(task: HandlerTask) -> None:
        for number in range(100):
            task.log(str(number))
            task.heartbeat(number)
            await asyncio.sleep(0)
        await asyncio.sleep(3 * handler_core.SAY_EVERY_S)

    bench = Bench(talk=talk)

    await bench.result_of("talk")

    assert bench.heard.lines == [str(number) for number in range(100)]
    assert bench.heard.progress[-1] == 99
    assert len(bench.heard.messages) < 50


async def test_line_is_cut_and_made_sendable() -> None:
    bench = Bench(talk=of("plain", lambda task: task.log("\ud800" + "y" * 10_000)))

    await bench.result_of("talk")

    assert bench.heard.lines == ["?" + "y" * (LOG_LINE_LIMIT - 1)]


async def test_lines_beyond_the_limit_are_left_out_and_counted() -> None:
    async def talk(task: HandlerTask) -> None:
        for number in range(10):
            task.log(str(number))

    bench = Bench(HandlerCoreLimits(lines=3, lines_per_frame=2, say_every_s=WAIT_S), talk=talk)

    await bench.result_of("talk")

    assert bench.heard.lines == ["0", "1", "2", "3", "6 lines are left out here: too many at once"]
    said = [len(message.lines) for message in bench.heard.messages if isinstance(message, Said)]
    assert said == [1, 2, 2], "the first at once"


async def test_worker_that_reads_slowly_gets_results_first_and_lines_later() -> None:
    bench = Bench(talk=of("plain", lambda task: task.log("a line")))

    bench.core.pause_writing()
    await bench.result_of("talk")
    assert bench.heard.lines == []
    bench.core.resume_writing()

    await bench.heard.until(lambda: bench.heard.lines)
    assert bench.heard.lines == ["a line"]


def test_heartbeat_that_is_too_large_or_no_json_is_the_handlers_mistake() -> None:
    attempt = HandlerRun(HandedTask(1, "job", "task", "h", 1, b"null"), cast(Any, None))

    with pytest.raises(TooMuchDetail, match="tell where the state is"):
        attempt.heartbeat("x" * DETAILS_LIMIT_BYTES)
    with pytest.raises(TypeError):
        attempt.heartbeat(object())


def test_text_of_one_language_is_not_touched() -> None:
    assert sendable("grüße", 100) == "grüße"
    assert sendable("grüße", 3) == "grü"


# How it is stopped.


@pytest.mark.parametrize(
    ("reason", "says"), [("cancelled", "was cancelled"), ("timeout", "longer than the 500ms that")]
)
async def test_coroutine_that_is_stopped_ends_with_the_reason(reason: Any, says: str) -> None:
    began = asyncio.Event()

    async def wait(task: HandlerTask) -> None:
        began.set()
        await asyncio.Event().wait()

    bench = Bench(wait=wait)
    fence = bench.hand("wait", attempt_ms=500)
    await began.wait()

    bench.core.on_message(StopTasks((fence, 12345), reason))
    await bench.heard.until(lambda: bench.heard.results)

    result = bench.heard.results[0]
    assert (result.outcome, result.cause) == (reason, reason)
    assert says in result.error


async def test_coroutine_that_is_stopped_before_its_first_line_still_has_a_result() -> None:
    bench = Bench(give=give_config)

    fence = bench.hand("give")
    bench.core.on_message(StopTasks((fence,)))
    await bench.heard.until(lambda: bench.heard.results)

    expected = "completed" if sys.version_info >= (3, 12) else "cancelled"
    assert [result.outcome for result in bench.heard.results] == [expected]


async def test_coroutine_may_clean_up_and_even_complete() -> None:
    began = asyncio.Event()

    async def stubborn(task: HandlerTask) -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert task.is_cancelled
            if task.config:
                raise ValueError("while cleaning up") from None
        return "done all the same"

    bench = Bench(stubborn=stubborn)
    for config in (False, True):
        began.clear()
        fence = bench.hand("stubborn", config)
        await began.wait()
        bench.core.on_message(StopTasks((fence,)))
    await bench.heard.until(lambda: len(bench.heard.results) == 2)

    completed, failed = bench.heard.results
    assert (completed.outcome, completed.output) == ("completed", b'"done all the same"')
    assert failed.outcome == "cancelled" and "; ValueError: while cleaning up (" in failed.error


async def test_plain_function_sees_that_it_is_cancelled() -> None:
    loop, began = asyncio.get_running_loop(), asyncio.Event()
    told = threading.Event()

    def work(task: HandlerTask) -> bool:
        loop.call_soon_threadsafe(began.set)
        told.wait(WAIT_S)
        return task.is_cancelled

    bench = Bench(work=work)
    fence = bench.hand("work")
    await began.wait()
    bench.core.on_message(StopTasks((fence,)))
    told.set()
    await bench.heard.until(lambda: bench.heard.results)

    assert bench.heard.results[0].output == b"true"


async def test_plain_function_that_waits_for_its_turn_is_stopped_at_once() -> None:
    # given one that runs, and two behind it
    loop, began = asyncio.get_running_loop(), asyncio.Event()
    go_on = threading.Event()

    def work(task: HandlerTask) -> None:
        loop.call_soon_threadsafe(began.set)
        go_on.wait(WAIT_S)

    bench = Bench(work=work, give=give_config_plainly)
    bench.hand("work")
    second, third = bench.hand("give", 2), bench.hand("give", 3)
    await began.wait()

    # when one of them is stopped
    bench.core.on_message(StopTasks((second,)))
    await bench.heard.until(lambda: bench.heard.results)

    # then it has its result while the first still runs, and is never begun
    assert [(result.fence, result.outcome) for result in bench.heard.results] == [(second, "cancelled")]
    go_on.set()
    await bench.heard.until(lambda: len(bench.heard.results) == 3)
    assert bench.heard.results[2].output == b"3" and bench.heard.results[2].fence == third


async def test_everything_is_stopped_when_the_worker_wants_nothing_more() -> None:
    began = asyncio.Event()

    async def wait(task: HandlerTask) -> None:
        began.set()
        await asyncio.Event().wait()

    bench = Bench(wait=wait)
    bench.hand("wait")
    await began.wait()

    assert bench.core.eof_received() and bench.core.over.is_set()
    await bench.core.stop_all()

    assert [result.outcome for result in bench.heard.results] == ["cancelled"]


async def test_core_whose_worker_is_gone_writes_nothing() -> None:
    bench = Bench(give=give_config)
    bench.core.connection_lost(None)

    bench.hand("give")
    await bench.core.stop_all()

    assert bench.heard.messages == [] and bench.core.over.is_set()


# The conversation.


async def test_frames_are_read_however_they_are_cut() -> None:
    bench = Bench(give=give_config)
    task = HandedTask(1, "job", "task", "give", 1, b"1")
    for byte in framed_message(RunTasks((task,))):
        bench.core.data_received(bytes([byte]))

    await bench.heard.until(lambda: bench.heard.results)
    with pytest.raises(BadMessage, match="loads its files once"):
        bench.core.on_message(Load(()))
    with pytest.raises(BadMessage):
        bench.core.data_received((1).to_bytes(4, "big") + b"?")


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_first_word_is_the_load_and_what_came_with_it_is_kept(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    ours.sendall(framed_message(Load(("a.py",))) + b"rest")

    assert first_word(theirs) == (Load(("a.py",)), b"rest")


def test_first_word_may_come_in_pieces(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    ours.sendall(framed_message(Load(("a.py",))))

    found = first_word(theirs, read_bytes=3)
    assert found is not None and found[0] == Load(("a.py",))


def test_other_first_words_are_refused_and_none_at_all_is_the_end(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    ours.sendall(framed_message(RunTasks(())))
    with pytest.raises(BadMessage, match="RunTasks came before Load"):
        first_word(theirs)
    ours.shutdown(socket.SHUT_WR)
    assert first_word(theirs) is None


# The files.


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


GOOD = "from talka import command, handler\n@handler('{name}')\nasync def run(task): ...\n"


def test_handlers_of_all_files_are_told_and_which_of_them_run_one_by_one(tmp_path: Path) -> None:
    first = written(tmp_path, "core_first.py", GOOD.format(name="a") + "command('c', ['true'])\n")
    second = written(tmp_path, "core_second.py", GOOD.format(name="b").replace("async ", ""))

    handlers, answer = loaded(Load((first, second)))

    assert list(handlers) == ["a", "c", "b"] and answer.problem == ""
    assert (answer.pid, answer.handlers, answer.plain) == (os.getpid(), ("a", "c", "b"), ("c", "b"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = 1\n", "{file}: has no handlers: write @handler"),
        ("def\n", "{file}:1: syntax error"),
        ("\nraise ValueError('no')\n", "{file}:2: raised ValueError: no when it was imported"),
        ("import sys\nsys.exit(3)\n", "{file}:2: raised SystemExit: 3 when it was imported"),
        ("raise KeyboardInterrupt\n", "{file}: raised KeyboardInterrupt"),
        ("from talka import handler\n@handler('a')\ndef run(): ...\n", "{file}:2: handler a must take one argument"),
    ],
    ids=["none", "syntax", "raises", "exits", "interrupt", "arity"],
)
def test_file_that_cannot_be_used_is_told_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    file = written(tmp_path, "core_bad.py", text)

    handlers, answer = loaded(Load((file,)))

    assert handlers == {} and answer.handlers == ()
    assert answer.problem.startswith(problem.format(file=file))


def test_two_files_with_one_name_are_told(tmp_path: Path) -> None:
    first = written(tmp_path, "core_one.py", GOOD.format(name="same"))
    second = written(tmp_path, "core_two.py", "\n" + GOOD.format(name="same"))

    problem = loaded(Load((first, second)))[1].problem

    assert problem.startswith(f"{second}:3: there are two handlers named same: the other one is in {first}:2")


def test_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.py")

    assert loaded(Load((missing,)))[1].problem == f"{missing}: there is no such Python file"


# Bounds.


def test_processor_time_is_bounded_from_now_on(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: kept.append((kind, limits)))

    before_ns = cpu_ns()
    limit_cpu(5_000)
    after_ns = cpu_ns()

    ((kind, (soft, hard)),) = kept
    assert kind == resource.RLIMIT_CPU
    assert before_ns + 5 * SECOND <= soft * SECOND <= after_ns + 6 * SECOND and hard == soft + 1


def test_processor_time_that_is_bounded_already_is_not_bounded_wider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1, 1))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: pytest.fail("it was raised"))

    limit_cpu(3_600_000)


async def test_task_with_a_bound_of_processor_time_sets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds: list[int] = []
    monkeypatch.setattr(handler_core, "limit_cpu", bounds.append)
    bench = Bench(give=give_config)

    await bench.result_of("give", cpu_ms=70)
    await bench.result_of("give")

    assert bounds == [70]
