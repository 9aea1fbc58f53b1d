"""What attempts write is kept apart, side by side in one process: by print, logging and threads, also of those that
fail."""

# ruff: noqa: T201 - this is about what handlers print

import asyncio
import contextlib
import contextvars
import gc
import io
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from talka.engine.handlers import attempt_output
from talka.engine.handlers.attempt_output import AttemptOutput, UsualStreams, route_streams, routed, traceback_of
from talka.engine.handlers.handler_core import HANDLER_CORE_LIMITS, HandlerCoreLimits
from talka.engine.handlers.handler_run import HandlerRun
from talka.wire.output_tail import STREAM_LIMIT_BYTES, StreamTail, Wrote
from talka.wire.tasks import HandedTask, Said, TaskLine, TaskResult
from talka.work.handlers import HandlerTask
from tests.engine.handlers.test_handler_core import KINDS, WAIT_S, Bench, of


class RoutedBench(Bench):
    """Streams of this process are those of its attempts."""

    def __init__(self, limits: HandlerCoreLimits = HANDLER_CORE_LIMITS, **functions: Callable[..., Any]) -> None:
        super().__init__(limits, **functions)
        self.own = io.StringIO()
        sys.stdout, sys.stderr = (routed(stream, self.own, self.core.sole) for stream in ("stdout", "stderr"))  # type: ignore[arg-type]

    @property
    def wrote(self) -> list[Wrote]:
        return [one for message in self.heard.messages if isinstance(message, Said) for one in message.wrote]


@pytest.fixture(autouse=True)
def streams() -> Iterator[None]:
    before = sys.stdout, sys.stderr
    yield
    sys.stdout, sys.stderr = before


def texts(result: TaskResult) -> dict[str, str]:
    return {tail.stream: tail.content.decode() for tail in result.tails}


@KINDS
async def test_what_an_attempt_prints_and_logs_goes_with_its_result(kind: str) -> None:
    def speak(task: HandlerTask) -> None:
        print("one", task.id)
        print("zwei – 2", file=sys.stderr)
        sys.stdout.buffer.write(b"raw\xff\n")
        logging.StreamHandler().handle(logging.LogRecord("lib", logging.WARNING, "", 1, "careful", (), None))
        sys.stdout.write("half \ud800\n")

    result = await RoutedBench(speak=of(kind, speak)).result_of("speak")

    assert result.outcome == "completed"
    said = {tail.stream: tail.content for tail in result.tails}
    assert said["stdout"] == b"one task-1\nraw\xff\nhalf \\ud800\n"
    assert said["stderr"] == "zwei – 2\ncareful\n".encode()


async def test_attempts_side_by_side_have_each_their_own() -> None:
    meet = asyncio.Barrier(3)

    async def speak(task: HandlerTask) -> None:
        for part in range(3):
            await meet.wait()
            print(task.id, part)
        await asyncio.to_thread(print, task.id, "in a thread")
        await asyncio.create_task(later(task.id))

    async def later(id: str) -> None:
        print(id, "in a task")

    bench = RoutedBench(speak=speak)
    for _ in range(3):
        bench.hand("speak")
    await bench.heard.until(lambda: len(bench.heard.results) == 3)

    for result in bench.heard.results:
        words = ("0", "1", "2", "in a thread", "in a task")
        assert texts(result) == {"stdout": "".join(f"{result.task} {word}\n" for word in words)}
    assert bench.own.getvalue() == ""


async def test_an_attempt_that_wrote_nothing_tells_nothing() -> None:
    async def quiet(task: HandlerTask) -> int:
        return 1

    bench = RoutedBench(quiet=quiet)
    result = await bench.result_of("quiet")

    assert result.tails == () and bench.heard.written == 1


async def test_an_attempt_that_has_ended_is_forgotten_without_the_collector() -> None:
    seen: list[weakref.ref[object]] = []

    async def quiet(task: HandlerTask) -> None:
        seen.append(weakref.ref(task))

    bench = RoutedBench(quiet=quiet)
    gc.disable()
    try:
        await bench.result_of("quiet")
        await bench.result_of("quiet")
        assert seen[0]() is None, "of many that take no time it would have most of the work"
    finally:
        gc.enable()


@KINDS
async def test_a_handler_that_closes_its_streams_takes_them_from_nobody(kind: str) -> None:
    def close(task: HandlerTask) -> None:
        with sys.stdout as stdout:
            stdout.write("half a line")
        sys.stdout.buffer.close()
        sys.stderr.close()

    def speak(task: HandlerTask) -> None:
        print("out")
        print("error", file=sys.stderr)

    bench = RoutedBench(close=of(kind, close), speak=of(kind, speak))
    closed = await bench.result_of("close")
    assert (closed.outcome, texts(closed)) == ("completed", {"stdout": "half a line"})
    assert texts(await bench.result_of("speak")) == {"stdout": "out\n", "stderr": "error\n"}
    assert not sys.stdout.closed


@KINDS
async def test_streams_that_a_handler_replaced_are_there_again_for_one_that_begins_alone(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(task: HandlerTask) -> None:
        print("before")
        sys.stdout = io.StringIO()
        print("captured")

    def speak(task: HandlerTask) -> None:
        print("out")

    bench = RoutedBench(replace=of(kind, replace), speak=of(kind, speak))
    monkeypatch.setattr(attempt_output, "usual", UsualStreams(bench.core.sole))
    assert texts(await bench.result_of("replace")) == {"stdout": "before\n"}
    assert texts(await bench.result_of("speak")) == {"stdout": "out\n"}


async def test_streams_that_an_attempt_under_way_replaced_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    captured, goes_on = io.StringIO(), asyncio.Event()

    async def capture(task: HandlerTask) -> str:
        with contextlib.redirect_stdout(captured):
            await goes_on.wait()
            print("captured")
        return captured.getvalue()

    async def quiet(task: HandlerTask) -> None:
        goes_on.set()

    bench = RoutedBench(capture=capture, quiet=quiet)
    monkeypatch.setattr(attempt_output, "usual", UsualStreams(bench.core.sole))
    await bench.result_of("quiet")
    goes_on.clear()
    fence = bench.hand("capture")
    bench.hand("quiet")
    await bench.heard.until(lambda: len(bench.heard.results) == 3)
    (captured_by,) = (result for result in bench.heard.results if result.fence == fence)
    assert captured_by.output == b'"captured\\n"'


async def test_what_is_printed_outside_of_attempts_goes_where_it_went() -> None:
    async def quiet(task: HandlerTask) -> int:
        return 1

    bench = RoutedBench(quiet=quiet)
    print("loaded")
    await bench.result_of("quiet")
    print("idle", file=sys.stderr)

    assert bench.own.getvalue() == "loaded\nidle\n"


async def test_a_thread_of_the_users_own_speaks_for_the_only_attempt_there_is() -> None:
    def speak(task: HandlerTask) -> None:
        thread = threading.Thread(target=print, args=("from within",))
        thread.start()
        thread.join()

    bench = RoutedBench(speak=speak)

    assert texts(await bench.result_of("speak")) == {"stdout": "from within\n"}


async def test_of_two_attempts_a_thread_of_neither_speaks_for_none() -> None:
    both, spoken = asyncio.Barrier(2), asyncio.Event()

    async def speak(task: HandlerTask) -> None:
        if await both.wait():
            thread = threading.Thread(target=print, args=("whose?",))
            thread.start()
            await asyncio.to_thread(thread.join)
            spoken.set()
        await spoken.wait()

    bench = RoutedBench(speak=speak)
    for _ in range(2):
        bench.hand("speak")
    await bench.heard.until(lambda: len(bench.heard.results) == 2)

    assert [result.tails for result in bench.heard.results] == [(), ()]
    assert bench.own.getvalue() == "whose?\n"


async def test_what_is_said_after_the_result_is_not_the_attempts() -> None:
    ended = asyncio.Event()
    left: list[asyncio.Task[None]] = []

    async def leave(task: HandlerTask) -> None:
        left.append(asyncio.create_task(after()))

    async def after() -> None:
        await ended.wait()
        print("too late")

    bench = RoutedBench(leave=leave)
    result = await bench.result_of("leave")
    ended.set()
    await left[0]

    assert result.tails == () and bench.own.getvalue() == "too late\n"


@KINDS
async def test_a_failure_has_its_traceback_from_the_users_code_on(kind: str) -> None:
    def fail(task: HandlerTask) -> None:
        print("before")
        deeper()

    def deeper() -> None:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second") from None

    result = await RoutedBench(fail=of(kind, fail)).result_of("fail")

    told = texts(result)
    assert told["stdout"] == "before\n"
    lines = told["traceback"].splitlines()
    assert lines[0] == "Traceback (most recent call last):" and lines[-1] == "ValueError: second"
    assert "handler_run.py" not in told["traceback"] and "in deeper" in told["traceback"]


async def test_an_error_without_a_text_is_named_with_its_place() -> None:
    def fail(task: HandlerTask) -> None:
        raise IndexError

    result = await RoutedBench(fail=fail).result_of("fail")

    assert result.error == f"IndexError in test_attempt_output.py:{fail.__code__.co_firstlineno + 1}"


async def test_a_plain_function_that_is_told_to_stop_tells_where_it_hangs() -> None:
    begun, gate = threading.Event(), threading.Event()

    def hang(task: HandlerTask) -> None:
        begun.set()
        gate.wait(WAIT_S)

    bench = RoutedBench(hang=hang)
    fence = bench.hand("hang")
    await asyncio.to_thread(begun.wait, WAIT_S)
    bench.core._stop(fence, "timeout")
    bench.core._stop(fence, "timeout")
    await bench.heard.until(lambda: bench.wrote)
    gate.set()
    await bench.heard.until(lambda: bench.heard.results)

    (wrote,) = bench.wrote
    assert [tail.stream for tail in wrote.tails] == ["traceback"]
    text = wrote.tails[0].content.decode()
    assert text.startswith("It was here when it was told to stop:\n") and "gate.wait(WAIT_S)" in text
    assert "handler_run.py" not in text and text.count("told to stop") == 1


async def test_a_plain_function_that_is_told_to_stop_while_it_prints_tells_the_line_that_does() -> None:
    def speak(task: HandlerTask) -> None:
        print("one")

    bench = RoutedBench(HandlerCoreLimits(heard_within_s=WAIT_S), speak=speak)
    fence = bench.hand("speak")
    attempt, until = bench.core._attempts[fence], time.monotonic() + WAIT_S
    while attempt.output is None:  # it waits for the loop to tell it, which does not turn meanwhile
        assert time.monotonic() < until
    bench.core._stop(fence, "timeout")
    await bench.heard.until(lambda: bench.heard.results)

    text = texts(bench.heard.results[0])["traceback"]
    assert text.splitlines()[2].strip() == 'print("one")', text


async def test_what_is_written_is_told_while_the_attempt_runs_and_whole_with_its_result() -> None:
    gate = asyncio.Event()

    async def speak(task: HandlerTask) -> None:
        print("one")
        await gate.wait()
        print("two")

    bench = RoutedBench(speak=speak)
    fence = bench.hand("speak")
    await bench.heard.until(lambda: bench.wrote)
    assert bench.wrote == [Wrote(fence, (StreamTail("stdout", b"one\n", 4),))]
    gate.set()
    await bench.heard.until(lambda: bench.heard.results)

    (result,) = bench.heard.results
    assert result.tails == (StreamTail("stdout", b"one\ntwo\n", 8),)


async def test_what_a_coroutine_says_is_told_though_it_keeps_the_loop_from_turning() -> None:
    told: list[tuple[bytes, list[str], list[object]]] = []

    async def block(task: HandlerTask) -> None:
        print("one")
        task.log("line")
        task.heartbeat({"row": 7})
        until = time.monotonic() + WAIT_S
        while not bench.heard.progress and time.monotonic() < until:
            print("on")  # no turn of the loop comes in between
        told.append((bench.wrote[0].tails[0].content, bench.heard.lines, bench.heard.progress))

    bench = RoutedBench(block=block)
    result = await bench.result_of("block")

    assert result.outcome == "completed"
    assert told == [(b"one\n", ["line"], [{"row": 7}])]


async def test_what_a_plain_function_says_first_is_told_before_its_next_line() -> None:
    told: list[tuple[list[Wrote], list[str]]] = []

    def die(task: HandlerTask) -> None:
        print("one")
        told.append((list(bench.wrote), bench.heard.lines))

    def log(task: HandlerTask) -> None:
        task.log("line")
        told.append((list(bench.wrote), bench.heard.lines))

    for handler in (die, log):
        bench = RoutedBench(HandlerCoreLimits(heard_within_s=WAIT_S), at_once=handler)
        result = await bench.result_of("at_once")
        assert result.outcome == "completed", result

    (first, _), (_, second) = told
    assert [tail.content for wrote in first for tail in wrote.tails] == [b"one\n"]
    assert second == ["line"]


@KINDS
async def test_what_an_attempt_alone_says_first_is_told_at_once_though_another_has_just_spoken(kind: str) -> None:
    told: list[list[bytes]] = []

    def speak(task: HandlerTask) -> None:
        print(task.config)
        told.append([tail.content for wrote in bench.wrote for tail in wrote.tails])
        print("more")

    # All else is told with its result.
    limits = HandlerCoreLimits(say_every_s=10 * WAIT_S, heard_within_s=WAIT_S)
    bench = RoutedBench(limits, speak=of(kind, speak))
    for word in ("one", "two"):
        await bench.result_of("speak", word)

    assert told == [[b"one\n"], [b"one\n", b"two\n"]]
    assert len(bench.wrote) == 2


async def test_a_thread_that_its_loop_waits_for_says_something_and_goes_on() -> None:
    async def wait_for_it(task: HandlerTask) -> None:
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(print, "one"))
        thread.start()
        thread.join()

    result = await RoutedBench(wait_for_it=wait_for_it).result_of("wait_for_it")

    assert result.tails == (StreamTail("stdout", b"one\n", 4),)


async def test_of_much_output_the_end_is_told_and_how_much_there_was() -> None:
    def speak(task: HandlerTask) -> None:
        for number in range(20_000):
            print(f"line {number}")

    (tail,) = (await RoutedBench(speak=speak).result_of("speak")).tails

    assert len(tail.content) == STREAM_LIMIT_BYTES
    assert tail.written == sum(len(f"line {number}\n") for number in range(20_000))
    assert tail.content.endswith(b"line 19998\nline 19999\n")


def test_streams_of_a_process_are_routed_once_and_keep_what_programs_ask_of_them() -> None:
    own = io.TextIOWrapper(io.FileIO(1, "w", closefd=False))
    sys.stdout = sys.stderr = own
    route_streams(lambda: None)

    assert sys.stdout.fileno() == sys.stderr.fileno() == 1
    assert not sys.stdout.isatty() and sys.stdout.encoding == "utf-8" and sys.stdout.writable()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    assert "stdout" in repr(sys.stdout) and "stderr" in repr(sys.stderr)


def test_a_traceback_that_cannot_be_written_is_told_so() -> None:
    class Hostile(Exception):
        def __getattribute__(self, name: str) -> Any:
            if name == "__cause__":
                raise ZeroDivisionError
            return super().__getattribute__(name)

    assert traceback_of(Hostile(), "") == b"Hostile: its traceback cannot be written (ZeroDivisionError)\n"


def test_what_was_dropped_is_not_told() -> None:
    output = AttemptOutput(7)
    output.write("stdout", b"out")
    output.write("stderr", b"err")
    output.drop("stdout")
    output.drop("traceback")

    assert output.all() == (StreamTail("stderr", b"err", 3),)
    assert output.fresh() == Wrote(7, output.all()) and output.fresh() is None
    assert (output.end_of("stderr"), output.end_of("stdout")) == (b"err", b"")


class Deaf:
    def progress(self, fence: int, details: bytes) -> None: ...
    def line(self, line: TaskLine) -> None: ...
    def wrote(self, attempt: HandlerRun, *, ends_line: bool) -> None: ...


def test_an_attempt_without_a_thread_has_no_stack_to_tell() -> None:
    attempt = HandlerRun(HandedTask(1, "j", "t", "h", 1, b"null"), Deaf())
    attempt.thread = -1
    attempt.stop("timeout")

    assert attempt.tails == ()
