"""What a core does that does not turn: it cannot answer, and is seen all the same."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from talka.clock import monotonic_ns
from talka.engine import core_stack
from talka.engine.core_stack import STACK_BYTES_LIMIT, CoreLook, StackPipe, cpu_of, last_calls, readable
from talka.engine.load import native
from talka.engine.load.supervisor import Supervisor
from talka.units import SECOND
from talka.wire.shards import Ack, Arm, Armed, FileSource, FromCore, Go, Settings, Totals
from talka.work.shapes import ConstantVUs

WAIT_S = 60
FOREVER = ConstantVUs(1, "1h").plan()
BLOCKED = """
import time
from pathlib import Path
from talka import CustomResponse, Workflow, step

class Shop(Workflow):
    @step()
    async def go(self) -> CustomResponse[int]:
        Path(__file__).with_name("blocks").touch()
        waits_for_ever_in_the_users_code()
        return CustomResponse(1)

def waits_for_ever_in_the_users_code():
    while not Path(__file__).with_name("go_on").exists():
        time.sleep(0.01)
"""
WAITS = """
from talka import HTTPResponse, Workflow, step

class Shop(Workflow):
    @step()
    async def go(self) -> HTTPResponse:
        return await self.client.http.get("{url}")
"""


class Cores:
    """One core, its turns, and what is seen of it."""

    def __init__(self) -> None:
        self.turns: asyncio.Queue[int] = asyncio.Queue()
        self.looks: asyncio.Queue[CoreLook] = asyncio.Queue()
        self.heard: asyncio.Queue[FromCore] = asyncio.Queue()
        self.supervisor = Supervisor(self._on_message, lambda core, cause: None, on_turn=self.turns.put_nowait)

    def _on_message(self, core: int, message: FromCore) -> None:
        if isinstance(message, Totals):
            self.supervisor.send(core, Ack(message.sequence))
        self.heard.put_nowait(message)

    async def start(self, file: Path, engine: str = "python") -> None:
        settings = Settings(grace_ns=0, engine=engine)
        arm = Arm("job", FileSource(str(file)), "Shop", FOREVER.split(1)[0], 0, {}, settings)
        await self.supervisor.start(7, arm)
        async with asyncio.timeout(WAIT_S):
            while not isinstance(message := await self.heard.get(), Armed):
                assert not isinstance(message, Totals)
        now = monotonic_ns()
        self.supervisor.send(7, Go(now, now, now))

    async def turned(self) -> int:
        async with asyncio.timeout(WAIT_S):
            return await self.turns.get()

    async def stack(self) -> str:
        """The first that is not empty."""
        self.supervisor.look(7, self.looks.put_nowait)
        async with asyncio.timeout(WAIT_S):
            while not (look := await self.looks.get()).stack:
                assert look.cpu_ns > 0
        return look.stack


@pytest.fixture
async def cores() -> AsyncIterator[Cores]:
    cores = Cores()
    yield cores
    await cores.supervisor.close()


async def test_the_stack_of_a_core_that_blocks_its_loop_names_the_users_line_and_its_turns_stop(
    cores: Cores, tmp_path: Path
) -> None:
    file = tmp_path / "shop.py"
    file.write_text(BLOCKED)
    await cores.start(file)
    assert await cores.turned() == 7
    async with asyncio.timeout(WAIT_S):
        while not (tmp_path / "blocks").exists():  # noqa: ASYNC110 - processes send no events
            await asyncio.sleep(0.005)

    stack = await cores.stack()

    first = stack.split("\n\n")[0]
    assert "waits_for_ever_in_the_users_code" in first and "shop.py" in first, "its thread comes first"
    while not cores.turns.empty():
        cores.turns.get_nowait()
    (tmp_path / "go_on").touch()
    assert await cores.turned() == 7, "and it is heard again when it goes on"


@pytest.mark.parametrize(
    "engine",
    ["python", pytest.param("native", marks=pytest.mark.skipif(native.available() is not None, reason="no engine"))],
)
async def test_a_core_whose_users_wait_for_a_slow_target_turns(cores: Cores, tmp_path: Path, engine: str) -> None:
    asked = asyncio.Event()

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()  # until the client has gone
        writer.close()

    server = await asyncio.start_server(never_answer, "127.0.0.1", 0)
    async with server:
        file = tmp_path / "shop.py"
        file.write_text(WAITS.format(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"))
        await cores.start(file, engine)
        async with asyncio.timeout(WAIT_S):
            await asked.wait()
        while not cores.turns.empty():
            cores.turns.get_nowait()

        assert [await cores.turned() for _ in range(3)] == [7, 7, 7]
        cores.supervisor.kill(7)


async def test_a_core_that_is_stopped_says_nothing_and_its_time_is_known(cores: Cores, tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text(BLOCKED)
    await cores.start(file)
    await cores.turned()
    pid = cores.supervisor.pids()[7]
    os.kill(pid, signal.SIGSTOP)
    try:
        cores.supervisor.look(7, cores.looks.put_nowait)

        look = await cores.looks.get()
        assert (look.stack, look.cpu_ns > SECOND // 100) == ("", True)
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_core_that_is_not_there_is_not_looked_at(cores: Cores) -> None:
    cores.supervisor.look(8, cores.looks.put_nowait)

    assert cores.looks.empty()
    assert cpu_of(2**22 + 1) == 0


async def test_more_than_a_stack_may_be_is_dropped_and_a_late_answer_belongs_to_nobody() -> None:
    pipe = StackPipe(settle_s=0)
    looks: asyncio.Queue[CoreLook] = asyncio.Queue()
    signal.signal(signal.SIGRTMIN + 5, signal.SIG_IGN)
    try:
        os.write(pipe.theirs, b"late")
        pipe.ask(os.getpid(), looks.put_nowait)
        assert (await looks.get()).stack == ""
        os.write(pipe.theirs, b"x" * (STACK_BYTES_LIMIT + 5))

        assert len((await looks.get()).stack) == 4000
        pipe.ask(os.getpid(), looks.put_nowait)
        pipe.started()
        await asyncio.sleep(0)
    finally:
        pipe.close()
        signal.signal(signal.SIGRTMIN + 5, signal.SIG_DFL)


def test_the_thread_that_was_interrupted_comes_first() -> None:
    other, current = "Thread 0x1 (most recent call first):\n  File a", "Current thread 0x2:\n  File b"

    assert readable(f"{other}\n\n{current}\n".encode()) == f"{current}\n\n{other}"
    assert readable(b"abcdefgh", limit=7) == "abc\n..."


# What a process left, as a traceback.

TALKA = str(Path(core_stack.__file__).parents[1])
RUN = f"{TALKA}/engine/handlers/handler_run.py"
LOOP = """  File "/lib/python3/asyncio/runners.py", line 118 in run
  File "{TALKA}/engine/handlers/handler_core.py", line 478 in main
""".replace("{TALKA}", TALKA)
CRASH = f"""Fatal Python error: Segmentation fault

Thread 0x0000000000000001 (most recent call first):
  File "{TALKA}/engine/own_end.py", line 55 in watch
  File "/lib/python3/threading.py", line 982 in run

Thread 0x0000000000000002 (most recent call first):
  File "/home/etl.py", line 9 in helper
  File "/lib/python3/threading.py", line 982 in run

Current thread 0x0000000000000003 (most recent call first):
  File "/home/etl.py", line 4 in inner
  File "/home/etl.py", line 7 in resize
  File "{RUN}", line 248 in run_plain
  File "{TALKA}/engine/handlers/handler_core.py", line 240 in _work

Thread 0x0000000000000004 (most recent call first):
{LOOP}
Extension modules: msgspec._core, uvloop.loop (total: 2)
"""


def test_the_calls_of_a_crash_are_in_the_order_of_a_traceback_and_end_with_what_it_was() -> None:
    assert (
        last_calls(CRASH.encode(), RUN).decode()
        == """Thread 0x0000000000000002 (most recent call last):
  File "/lib/python3/threading.py", line 982 in run
  File "/home/etl.py", line 9 in helper

Current thread 0x0000000000000003 (most recent call last):
  File "/home/etl.py", line 7 in resize
  File "/home/etl.py", line 4 in inner
Fatal Python error: Segmentation fault
"""
    )


def test_a_process_whose_loop_waits_has_nothing_to_show_unless_it_crashed_there() -> None:
    waits = f"Current thread 0x0000000000000004 (most recent call first):\n{LOOP}"

    assert last_calls(waits.encode(), RUN) == b""
    crashed = last_calls(f"Fatal Python error: Aborted\n\n{waits}".encode(), RUN).decode()
    assert crashed.splitlines()[1:] == [*reversed(LOOP.splitlines()), "Fatal Python error: Aborted"]


def test_code_of_the_user_that_no_attempt_called_is_shown_from_its_beginning() -> None:
    task = f"""Current thread 0x0000000000000004 (most recent call first):
  File "/home/etl.py", line 4 in in_a_task
  File "/lib/python3/asyncio/events.py", line 80 in _run
{LOOP}"""

    assert last_calls(task.encode(), RUN).decode().splitlines()[1:] == [
        *reversed(LOOP.splitlines()),
        '  File "/lib/python3/asyncio/events.py", line 80 in _run',
        '  File "/home/etl.py", line 4 in in_a_task',
    ]


def test_what_is_no_stack_is_not_shown_as_one() -> None:
    assert last_calls(b"", RUN) == b""
    assert last_calls(b"\xff whatever the user's code wrote there\n  File\n", RUN) == b""
    assert last_calls(b"Fatal Python error: Aborted\n\n<no Python frame>\n", RUN) == b"Fatal Python error: Aborted\n"


def test_what_a_process_wrote_is_there_after_its_end_and_no_more_than_fits() -> None:
    pipe = StackPipe()
    try:
        assert pipe.rest() == b"", "nobody waits for one that says nothing"
        os.write(pipe.theirs, b"x" * 10)
        os.close(pipe.theirs)
        assert pipe.rest() == b"x" * 10
        assert pipe.rest() == b"x" * 10
    finally:
        pipe.close()


async def test_what_was_read_of_a_stack_before_the_end_is_there_after_it() -> None:
    pipe = StackPipe(settle_s=0)
    looks: asyncio.Queue[CoreLook] = asyncio.Queue()
    before = signal.signal(signal.SIGRTMIN + 5, signal.SIG_IGN)
    try:
        pipe.ask(os.getpid(), looks.put_nowait)
        assert (await looks.get()).stack == ""
        os.write(pipe.theirs, b"one ")
        assert (await looks.get()).stack == "one"
        os.write(pipe.theirs, b"two")
        pipe.started()
        assert pipe.rest() == b"one two"
    finally:
        pipe.close()
        signal.signal(signal.SIGRTMIN + 5, before)
