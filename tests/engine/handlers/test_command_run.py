"""Command lines as handlers, with real programs: what they are given, what becomes of their output, how they end."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from talka.engine.handlers import command_run
from talka.engine.handlers.command_run import family, last_line, output_of, run_command
from talka.engine.handlers.handler_run import HandlerRun
from talka.wire.output_tail import STREAM_LIMIT_BYTES
from talka.wire.tasks import LOG_LINE_LIMIT, HandedTask, HandlerProgress, TaskLine, TaskResult, TimeWanted
from talka.work.dags.dag import OUTPUT_LIMIT_BYTES

WAIT_S = 60
LOOK_EVERY_S = 0.005
# Children are known by their fence: tests beside this one must not have the same.
fences = count(os.getpid() << 32)


class Notes:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.news = asyncio.Event()
        """Something was written."""

    def progress(self, progress: HandlerProgress) -> None: ...
    def wants(self, wanted: TimeWanted) -> None: ...
    def heeds(self, fence: int) -> None: ...
    def line(self, line: TaskLine) -> None:
        self.lines.append(line.text)

    def wrote(self, attempt: HandlerRun, *, ends_line: bool) -> None:
        self.news.set()


def attempt(notes: Notes | None = None, **fields: Any) -> HandlerRun:
    handed = HandedTask(next(fences), "job-1", "task-1", "run", 2, **{"config": b"null", **fields})
    return HandlerRun(handed, notes or Notes())


async def ran(
    script: str, *, notes: Notes | None = None, env: dict[str, str] | None = None, **fields: Any
) -> TaskResult:
    return await run_command(attempt(notes, **fields), ["sh", "-c", script], env or {})


async def happens(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - processes send no events
            await asyncio.sleep(LOOK_EVERY_S)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where a child's process id is written; the child is killed if it is left."""
    path = tmp_path / "child"
    yield path
    if path.exists() and path.read_text().strip() and not is_gone(pid := int(path.read_text())):
        os.kill(pid, signal.SIGKILL)


async def pid_in(place: Path) -> int:
    await happens(lambda: place.exists() and place.read_text().endswith("\n"))
    return int(place.read_text())  # noqa: ASYNC240 - it is a few bytes in memory


# What goes in and out.


async def test_command_is_given_config_inputs_and_checkpoint() -> None:
    result = await ran("cat", config=b'{"n":1}', inputs={"a": b"[1]"}, checkpoint=b'"half"')

    assert result.outcome == "completed"
    assert msgspec.json.decode(result.output) == {"config": {"n": 1}, "inputs": {"a": [1]}, "checkpoint": "half"}


async def test_command_is_given_an_empty_config_where_nothing_was_written() -> None:
    result = await ran("cat", config=b"")
    assert msgspec.json.decode(result.output)["config"] == {}


async def test_the_command_of_an_element_is_given_its_item_and_its_place() -> None:
    result = await ran("cat", item=b'{"part":3}', place=7)

    told = msgspec.json.decode(result.output)
    assert (told["item"], told["index"]) == ({"part": 3}, 7)


async def test_command_knows_which_attempt_it_is_and_has_its_environment() -> None:
    one = attempt()
    script = 'echo "$TALKA_TASK $TALKA_JOB $TALKA_ATTEMPT $TALKA_FENCE $OWN"'

    result = await run_command(one, ["sh", "-c", script], {"OWN": "mine"})

    assert msgspec.json.decode(result.output) == f"task-1 job-1 2 {one.fence} mine"


@pytest.mark.parametrize(
    ("written", "output"),
    [
        (b"", b"null"),
        (b" \n", b"null"),
        (b'{"a": 1}\n', b'{"a": 1}'),
        (b"12", b"12"),
        (b"done\n", b'"done"'),
        (b"{oops", b'"{oops"'),
        (b"NaN", b'"NaN"'),
        (b"\xff\xfe", '"\ufffd\ufffd"'.encode()),
        (b"[" * 100_000, b'"' + b"[" * 100_000 + b'"'),
    ],
    ids=["nothing", "blank", "json", "number", "text", "nearly-json", "nan", "no-text", "deep"],
)
def test_output_is_json_if_it_is_and_text_otherwise(written: bytes, output: bytes) -> None:
    assert output_of(written) == output


async def test_command_need_not_read_what_it_is_given() -> None:
    result = await ran("exec <&-; echo 1", config=b'"' + b"x" * 5_000_000 + b'"')

    assert (result.outcome, result.output) == ("completed", b"1")


async def test_large_input_reaches_a_command_that_reads_it() -> None:
    result = await ran("wc -c", config=b'"' + b"x" * 2_000_000 + b'"')

    assert int(result.output) == len(b'{"config":"","inputs":{},"checkpoint":null}') + 2_000_000


def tails(result: TaskResult) -> dict[str, bytes]:
    return {tail.stream: tail.content for tail in result.tails}


async def test_what_a_command_writes_to_its_standard_error_is_kept() -> None:
    result = await ran("seq 1 100 >&2; printf unended >&2")

    assert result.outcome == "completed"
    assert tails(result) == {"stderr": "".join(f"{number}\n" for number in range(1, 101)).encode() + b"unended"}


async def test_of_much_the_end_is_kept_and_how_much_there_was() -> None:
    result = await ran("head -c 3000000 /dev/zero | tr '\\0' x >&2; echo >&2; echo end >&2; exit 3")

    (tail,) = result.tails
    assert (tail.written, len(tail.content), tail.content[-6:]) == (3_000_005, STREAM_LIMIT_BYTES, b"x\nend\n")
    assert result.error == "its command exited with status 3: end"


@pytest.mark.parametrize(
    ("script", "kept"),
    [
        ("echo '{\"a\": 1}'", {}),
        ("true", {}),
        ("echo done", {"stdout": b"done\n"}),
        ("echo '{\"a\": 1}'; exit 3", {"stdout": b'{"a": 1}\n'}),
        ("echo half; kill -9 $$", {"stdout": b"half\n"}),
    ],
    ids=["json", "nothing", "text", "failed", "killed"],
)
async def test_standard_output_is_kept_where_it_is_no_valid_output(script: str, kept: dict[str, bytes]) -> None:
    assert tails(await ran(script)) == kept


async def test_what_a_command_wrote_before_it_was_stopped_is_kept() -> None:
    notes = Notes()
    one = attempt(notes)
    running = asyncio.ensure_future(run_command(one, ["sh", "-c", "echo begun; sleep 60"], {}))
    one.cancel = running.cancel
    async with asyncio.timeout(WAIT_S):
        await notes.news.wait()
    one.stop("timeout")
    result = await running

    assert (result.outcome, tails(result)) == ("timeout", {"stdout": b"begun\n"})


async def test_last_line_that_says_anything_is_told_and_cut() -> None:
    one = attempt()
    assert last_line(one) == ""
    one.keep("stderr", b"a" * 99_999 + b"\n  \n\n")
    assert last_line(one) == "a" * LOG_LINE_LIMIT


async def test_output_over_the_limit_fails_at_once() -> None:
    result = await ran("yes")

    assert (result.outcome, result.cause) == ("failed", "output")
    assert f"more than the {OUTPUT_LIMIT_BYTES // 1024} KiB" in result.error


async def test_text_that_gets_too_long_as_json_fails() -> None:
    result = await ran(f"head -c {OUTPUT_LIMIT_BYTES} /dev/zero | tr '\\0' '\"'")

    assert (result.outcome, result.cause) == ("failed", "output")


# How it ends.


async def test_exit_code_is_a_failure_told_with_the_last_line() -> None:
    result = await ran("echo early >&2; echo no such table >&2; exit 3")

    assert (result.outcome, result.cause, result.exit_code) == ("failed", "exit", 3)
    assert result.error == "its command exited with status 3: no such table"


async def test_signal_is_a_failure() -> None:
    result = await ran("kill -SEGV $$")

    assert (result.outcome, result.cause, result.signal) == ("failed", "SIGSEGV", "SIGSEGV")
    assert result.error == "its command was killed by SIGSEGV"


async def test_program_that_is_not_there_is_a_failure_with_its_name() -> None:
    result = await run_command(attempt(), ["/nowhere/at-all"], {})

    assert (result.outcome, result.cause) == ("failed", "FileNotFoundError")
    assert "FileNotFoundError" in result.classes and "OSError" in result.classes
    assert result.error.startswith("the command /nowhere/at-all cannot be started: ")


async def test_command_that_was_stopped_before_its_turn_is_not_started(tmp_path: Path) -> None:
    one = attempt()
    one.stop("cancelled")

    result = await run_command(one, ["touch", str(tmp_path / "ran")], {})

    assert result.outcome == "cancelled"
    assert not (tmp_path / "ran").exists()


async def test_child_left_behind_ends_with_its_command_and_does_not_hold_its_output(place: Path) -> None:
    result = await ran(f"sleep 1000 & echo $! > {place}; echo 7")

    assert (result.outcome, result.output) == ("completed", b"7")
    await happens(lambda: is_gone(int(place.read_text())))


def text_of(path: str) -> str:
    return Path(path).read_text()


def started(
    script: str, *, terminate_s: float = command_run.TERMINATE_S, **fields: Any
) -> tuple[HandlerRun, "asyncio.Task[TaskResult]"]:
    """As a core starts it."""
    one = attempt(**fields)
    task = asyncio.create_task(run_command(one, ["sh", "-c", script], {}, terminate_s=terminate_s))
    one.cancel = task.cancel
    return one, task


async def test_command_that_is_stopped_ends_with_its_children(place: Path) -> None:
    one, task = started(f"sleep 1000 & echo $! > {place}; wait", attempt_ms=70)
    child = await pid_in(place)

    one.stop("timeout")
    result = await task

    assert (result.outcome, result.cause) == ("timeout", "timeout")
    assert "longer than the 70ms that" in result.error
    await happens(lambda: is_gone(child))


async def test_command_that_ends_when_asked_may_clean_up(place: Path, tmp_path: Path) -> None:
    script = f"trap 'touch {tmp_path}/cleaned; exit 0' TERM; echo $$ > {place}; while :; do sleep 0.01; done"
    one, task = started(script, terminate_s=WAIT_S)
    await pid_in(place)

    one.stop("cancelled")

    assert (await task).outcome == "cancelled"
    assert (tmp_path / "cleaned").exists()


async def test_children_of_a_command_are_asked_as_it_is(place: Path, tmp_path: Path) -> None:
    child = tmp_path / "child.sh"
    child.write_text(f"trap 'touch {tmp_path}/asked; exit 0' TERM; echo $$ > {place}; while :; do sleep 0.01; done")
    one, task = started(f"trap : TERM; sh {child}; exit 0", terminate_s=WAIT_S)
    await pid_in(place)

    one.stop("cancelled")

    assert (await task).outcome == "cancelled"
    assert (tmp_path / "asked").exists()


async def test_command_that_ignores_being_asked_is_killed(place: Path) -> None:
    script = f"trap '' TERM; echo $$ > {place}; while :; do sleep 0.01; done"
    one, task = started(script, terminate_s=0.05)
    pid = await pid_in(place)

    one.stop("cancelled")

    assert (await task).outcome == "cancelled"
    await happens(lambda: is_gone(pid))


async def test_command_that_is_warned_has_time_until_it_is_stopped_and_has_taken_too_long(place: Path) -> None:
    script = f"trap 'echo saved > {place}.saved; exit 0' TERM; echo $$ > {place}; while :; do sleep 0.01; done"
    one, task = started(script, attempt_ms=30_000)
    await happens(place.exists)
    await happens(lambda: one.end_softly is not None)
    assert one.end_softly is not None
    one.end_softly()
    result = await task

    assert (result.outcome, result.cause) == ("timeout", "timeout")
    assert text_of(f"{place}.saved") == "saved\n"


async def test_command_that_does_not_end_when_it_is_warned_is_killed_once_its_time_is_over(place: Path) -> None:
    script = f"trap 'echo asked >> {place}.asked' TERM; echo $$ > {place}; while :; do sleep 0.01; done"
    one, task = started(script, terminate_s=WAIT_S)
    await happens(place.exists)
    await happens(lambda: one.end_softly is not None)
    assert one.end_softly is not None
    one.end_softly()
    await happens(Path(f"{place}.asked").exists)
    one.stop("timeout")

    assert (await task).outcome == "timeout"
    assert text_of(f"{place}.asked") == "asked\n", "it was asked once"


async def test_command_that_is_only_notified_hears_no_signal() -> None:
    one, task = started("exit 3", on_timeout="notify")

    assert (await task).outcome == "failed" and one.end_softly is None


async def test_command_that_is_stopped_twice_is_killed_at_once(place: Path) -> None:
    script = f"trap 'echo asked >> {place}.asked' TERM; echo $$ > {place}; while :; do sleep 0.01; done"
    one, task = started(script, terminate_s=WAIT_S)
    pid = await pid_in(place)

    one.stop("cancelled")
    await happens(lambda: Path(f"{place}.asked").exists())
    one.stop("timeout")
    async with asyncio.timeout(WAIT_S):
        result = await task

    assert result.outcome == "timeout"
    await happens(lambda: is_gone(pid))


async def test_command_that_is_stopped_while_it_starts_ends_all_the_same() -> None:
    one, task = started("sleep 1000 & wait")
    await happens(lambda: bool(one.began_ns))

    one.stop("cancelled")
    one.stop("cancelled")

    assert (await task).outcome == "cancelled"
    await happens(lambda: list(family([], str(one.fence))) == [])


async def test_only_the_family_of_one_attempt_is_found() -> None:
    one, task = started("sleep 1000 & wait")
    other, neighbour = started("sleep 1000 & wait")
    await happens(lambda: len(list(family([], str(one.fence)))) == 2)
    await happens(lambda: len(list(family([], str(other.fence)))) == 2)

    assert not set(family([], str(one.fence))) & set(family([], str(other.fence)))
    one.stop("cancelled")
    await task
    assert len(list(family([], str(other.fence)))) == 2
    other.stop("cancelled")
    await neighbour
