"""Core processes as their owner sees them: what they say, how they end, and that nothing outlives them."""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from talka.clock import monotonic_ns
from talka.engine import core_child
from talka.engine.containment import ControlGroup
from talka.engine.core_child import CoreChildren
from talka.engine.load.supervisor import CORE_MODULE, CoreThread, Lines, Supervisor
from talka.engine.loader import in_memory
from talka.units import MILLISECOND, SECOND
from talka.wire.framing import framed
from talka.wire.shards import (
    Ack,
    Arm,
    Armed,
    FileSource,
    FromCore,
    Go,
    Hello,
    MemorySource,
    Refused,
    Settings,
    Source,
    StepTotals,
    Stop,
    Totals,
    encode,
    enveloped,
)
from talka.work.dsl import Workflow, step
from talka.work.load import Plan
from talka.work.responses import CustomResponse
from talka.work.shapes import ConstantVUs, IterationsPerVU

AnyMessage = TypeVar("AnyMessage")
WAIT_S = 60
LOOK_EVERY_S = 0.005
FOREVER = ConstantVUs(1, "1h").plan()
ONCE = IterationsPerVU(1, 1).plan()

HEAD = '''
import asyncio, contextlib, os, signal, socket, subprocess, sys, time
from pathlib import Path
from talka import CustomResponse, Workflow, step

def child(*command):
    found = subprocess.Popen(command or ["sleep", "1000"])
    place = Path(__file__).with_name("child.new")
    place.write_text(str(found.pid))
    place.rename(place.with_name("child"))
    return found

def flood(name):
    """Send as much as the socket holds, without waiting, and write down how many messages that were."""
    from talka.wire.framing import framed
    from talka.wire.shards import Refused, encode, enveloped
    ours, sent = socket.socket(fileno=os.dup(int(sys.argv[1]))), 0
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    frame = framed(enveloped(1, encode(Refused("file", "x" * 30_000))))
    with contextlib.suppress(BlockingIOError):
        while sent < 20 and ours.send(frame) == len(frame):
            sent += 1
    Path(__file__).with_name(name).write_text(str(sent))

class Shop(Workflow):
    @step()
    async def go(self) -> CustomResponse[int]:
'''


def written(folder: Path, body: str) -> FileSource:
    """A file with one workflow, whose one step does what `body` says and returns."""
    path = folder / "shop.py"
    path.write_text(HEAD + f"        {body}\n        await asyncio.sleep(0.01)\n        return CustomResponse(1)\n")
    return FileSource(str(path))


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_ns = monotonic_ns() + WAIT_S * SECOND
    while not condition():
        assert monotonic_ns() < deadline_ns, "it did not happen in time"
        time.sleep(LOOK_EVERY_S)


async def happens(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - processes send no events
            await asyncio.sleep(LOOK_EVERY_S)


def guards() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.name() == "sh"]


class Owner:
    """Starts cores and keeps what happened, in its order."""

    def __init__(self, folder: Path, **limits: float) -> None:
        self.folder = folder
        self.happened: asyncio.Queue[tuple[int, FromCore | str]] = asyncio.Queue()
        self.told: set[int] = set()
        """Those that messages came from."""
        self.ends: list[tuple[int, str]] = []
        self.supervisor = Supervisor(self.on_message, self.on_exit, **limits)

    def on_message(self, core: int, message: FromCore) -> None:
        if isinstance(message, Totals):
            self.supervisor.send(core, Ack(message.sequence))
        self.told.add(core)
        self.happened.put_nowait((core, message))

    def on_exit(self, core: int, cause: str) -> None:
        self.ends.append((core, cause))
        self.happened.put_nowait((core, cause))

    async def start(self, body: str | Source, plan: Plan = ONCE, *, core: int = 1) -> None:
        """A core that is on its way: armed, and told to go."""
        source = written(self.folder, body) if isinstance(body, str) else body
        # Where the order of what it says counts, nothing is told before the end, however long that takes.
        report_every_ns = 3600 * SECOND if plan is ONCE else 100 * MILLISECOND
        settings = Settings(grace_ns=0, report_every_ns=report_every_ns)
        await self.supervisor.start(core, Arm("job", source, "Shop", plan.split(1)[0], 0, {}, settings))
        assert (await self.until(Hello)).pid == self.supervisor.pids()[core]
        await self.until(Armed)
        now = monotonic_ns()
        self.supervisor.send(core, Go(now, now, now))

    async def next(self, kind: type[AnyMessage]) -> AnyMessage:
        async with asyncio.timeout(WAIT_S):
            _, message = await self.happened.get()
        assert isinstance(message, kind), message
        return message

    async def until(self, kind: type[AnyMessage]) -> AnyMessage:
        """The next message of this kind; others are passed over."""
        async with asyncio.timeout(WAIT_S):
            while True:
                _, message = await self.happened.get()
                if isinstance(message, kind):
                    return message

    async def until_a_step_is_done(self) -> None:
        while not (await self.until(StepTotals)).tally.ok:
            pass

    def child(self) -> int:
        """The process the step has started."""
        return int((self.folder / "child").read_text())


@pytest.fixture
async def owner(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Owner]:
    """With a parameter: limits of its supervisor."""
    before = psutil.Process().children()
    made = Owner(tmp_path, **getattr(request, "param", {}))
    yield made
    await made.supervisor.close()
    assert made.supervisor.pids() == {}
    assert psutil.Process().children() == before, "neither a core nor a guard is left"


# Messages and ends.


async def test_a_core_says_what_it_did_and_ends(owner: Owner) -> None:
    await owner.start("pass")
    assert (await owner.next(StepTotals)).tally.ok == 1
    totals = await owner.next(Totals)
    assert totals.final and totals.tally.iterations == 1
    assert await owner.next(str) == "exited with status 0"
    assert owner.supervisor.pids() == {}


async def test_what_a_core_said_before_it_was_killed_arrives_before_its_end(owner: Owner) -> None:
    await owner.start("pass", FOREVER)
    await owner.until_a_step_is_done()
    os.kill(owner.supervisor.pids()[1], signal.SIGKILL)
    assert await owner.until(str) == "was killed by SIGKILL"
    assert owner.happened.empty()


async def test_everything_a_core_said_arrives_even_if_its_end_is_seen_first(owner: Owner) -> None:
    await owner.start("flood('sent'); os._exit(3)")
    # The loop stands still until the core is gone, so that it finds its words and its end together.
    os.waitid(os.P_PID, owner.supervisor.pids()[1], os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222
    sent = int((owner.folder / "sent").read_text())
    assert sent > 5
    for _ in range(sent):
        await owner.next(Refused)
    assert await owner.next(str) == "exited with status 3"


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("os._exit(3)", "exited with status 3"),
        ("sys.exit(3)", "exited with status 3"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
    ],
)
async def test_the_end_of_a_core_is_told_in_words(owner: Owner, body: str, cause: str) -> None:
    await owner.start(body)
    assert await owner.until(str) == cause


async def test_cores_are_told_apart(owner: Owner) -> None:
    await owner.start("pass", FOREVER, core=1)
    await owner.start("pass", FOREVER, core=2)
    assert len(owner.supervisor.pids()) == len(set(owner.supervisor.pids().values())) == 2
    owner.supervisor.kill(2)
    await owner.until(str)
    assert owner.ends == [(2, "was killed by SIGKILL")]
    assert list(owner.supervisor.pids()) == [1]


async def test_messages_and_kills_for_a_core_that_is_gone_do_nothing(owner: Owner) -> None:
    owner.supervisor.send(7, Stop())
    owner.supervisor.kill(7)
    assert owner.happened.empty()


async def test_a_core_that_was_waited_for_is_not_killed_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    children = CoreChildren(CORE_MODULE, has_lease=False)
    child, ours = children.start()
    with ours:
        child.kill()
        assert (await child.ended()).text == "was killed by SIGKILL"
        monkeypatch.setattr(core_child, "kill_group", killed.append)
        child.kill()
    await children.close(0)
    assert killed == [], "by now the number may be somebody else's"


async def test_the_end_is_seen_without_process_descriptors_too(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    await owner.start("pass")
    assert await owner.until(str) == "exited with status 0"


async def test_ctrl_c_reaches_a_core_only_through_its_owner(owner: Owner) -> None:
    await owner.start("pass", FOREVER)
    await owner.until_a_step_is_done()
    os.kill(owner.supervisor.pids()[1], signal.SIGINT)
    await owner.until_a_step_is_done()
    owner.supervisor.send(1, Stop())
    assert await owner.until(str) == "exited with status 0"


async def test_a_core_that_sends_garbage_is_killed(owner: Owner) -> None:
    await owner.start("os.write(int(sys.argv[1]), bytes(range(255, 155, -1))); await asyncio.sleep(1000)")
    assert await owner.until(str) == "was killed by SIGKILL"


async def test_what_is_said_for_an_attempt_that_is_not_there_is_passed_over(owner: Owner) -> None:
    said = framed(enveloped(2, encode(Refused("file", "its last words"))))
    await owner.start(f"os.write(int(sys.argv[1]), {said!r})")
    assert await owner.until(str) == "exited with status 0"
    assert owner.told == {1}


async def test_close_ends_every_core_that_is_left(owner: Owner) -> None:
    await owner.start("pass", FOREVER, core=1)
    await owner.start("pass", FOREVER, core=2)
    pids = owner.supervisor.pids()
    await owner.supervisor.close()
    assert all(is_gone(pid) for pid in pids.values())
    assert sorted(owner.ends) == [(1, "was killed by SIGKILL"), (2, "was killed by SIGKILL")]


# Children.


async def test_children_die_when_their_core_is_killed(owner: Owner) -> None:
    await owner.start("child(); await asyncio.sleep(1000)")
    await happens((owner.folder / "child").exists)
    child = owner.child()
    assert not is_gone(child)
    os.kill(owner.supervisor.pids()[1], signal.SIGKILL)
    await owner.until(str)
    await happens(lambda: is_gone(child))


@pytest.mark.parametrize("body", ["child()", "child(); os._exit(0)"])
async def test_children_die_when_their_core_ends_by_itself(owner: Owner, body: str) -> None:
    await owner.start(body)
    assert await owner.until(str) == "exited with status 0"
    child = owner.child()
    await happens(lambda: is_gone(child))


ASKED = """
import pathlib, signal, sys, time
def asked(*_):
    pathlib.Path(sys.argv[1]).touch()
signal.signal(signal.SIGTERM, asked)
pathlib.Path(sys.argv[2]).touch()
time.sleep(1000)
"""


@pytest.mark.parametrize("owner", [{"terminate_s": WAIT_S}], indirect=True)  # nobody is killed before
async def test_children_are_asked_to_end_together_with_their_core(owner: Owner) -> None:
    (owner.folder / "asked.py").write_text(ASKED)
    command = "*(str(Path(__file__).with_name(name)) for name in ('asked.py', 'asked', 'listens'))"
    await owner.start(
        f"signal.signal(signal.SIGTERM, signal.SIG_IGN); child(sys.executable, {command}); await asyncio.sleep(1000)"
    )
    await happens((owner.folder / "listens").exists)
    owner.supervisor.end(1)
    await happens((owner.folder / "asked").exists)
    owner.supervisor.kill(1)
    await owner.until(str)


async def test_children_die_when_the_owner_kills_their_core(owner: Owner) -> None:
    await owner.start("child(); await asyncio.sleep(1000)")
    await happens((owner.folder / "child").exists)
    owner.supervisor.kill(1)
    await owner.until(str)
    child = owner.child()
    await happens(lambda: is_gone(child))


@pytest.mark.serial
async def test_a_child_that_left_its_group_and_holds_the_socket_does_not_hide_the_end(owner: Owner) -> None:
    await owner.start(
        "subprocess.Popen(['setsid', 'sleep', '1000'], pass_fds=[int(sys.argv[1])]);"
        " (Path(__file__).parent / 'done').touch(); await asyncio.sleep(1000)"
    )
    await happens((owner.folder / "done").exists)
    pid = owner.supervisor.pids()[1]
    [runaway] = psutil.Process(pid).children()
    await happens(lambda: os.getsid(runaway.pid) == runaway.pid)
    os.kill(pid, signal.SIGKILL)
    assert await owner.until(str) == "was killed by SIGKILL"
    runaway.kill()


@pytest.fixture
def hierarchy(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "cgroup"
    root.mkdir()
    if sys.platform != "linux":
        pytest.skip("control groups are Linux's")
    mounted = subprocess.run(["mount", "-t", "cgroup2", "none", str(root)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a version 2 hierarchy cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield root
    subprocess.run(["umount", str(root)], check=True)


async def test_with_a_control_group_children_that_left_their_group_die_too(
    hierarchy: Path, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ours(ControlGroup):
        @classmethod
        def around(cls, pid: int, root: Path = hierarchy, own: str | None = "/") -> "ControlGroup | None":
            return super().around(pid, root, own)

    monkeypatch.setattr(core_child, "ControlGroup", Ours)
    await owner.start("child('setsid', 'sleep', '1000'); await asyncio.sleep(1000)")
    await happens((owner.folder / "child").exists)
    child, pid = owner.child(), owner.supervisor.pids()[1]
    await happens(lambda: os.getsid(child) == child)
    folder = hierarchy / f"talka-{pid}"
    assert folder.exists()
    os.kill(pid, signal.SIGKILL)
    assert await owner.until(str) == "was killed by SIGKILL"
    await happens(lambda: is_gone(child))
    assert not folder.exists()


async def test_a_core_may_set_aside_no_more_than_its_share() -> None:
    share_bytes = 2048 * 1024 * 1024
    children = CoreChildren(CORE_MODULE, has_lease=False)
    child, ours = children.start()
    with ours:
        child.limit(data_bytes=share_bytes)
        assert resource.prlimit(child.pid, resource.RLIMIT_DATA) == (share_bytes, share_bytes)
        child.kill()
        await child.ended()
    await children.close(0)


# The guard.


async def test_a_guard_that_was_killed_is_replaced(owner: Owner) -> None:
    await owner.start("pass", FOREVER)
    [guard] = guards()
    owner.supervisor.children.guard.restart_if_gone()
    assert guards() == [guard]
    guard.kill()
    await happens(lambda: is_gone(guard.pid))
    owner.supervisor.children.guard.restart_if_gone()
    [successor] = guards()
    assert successor != guard


OWNER = """
import sys
import talka
from shop import Shop

if __name__ == "__main__":
    print("result", talka.run_blocking(Shop, cores=1, grace=0).status, flush=True)
"""


@contextlib.contextmanager
def owner_process(folder: Path, body: str) -> Iterator["subprocess.Popen[str]"]:
    """A program of its own that runs the workflow on a core."""
    written(folder, body)
    (folder / "owner.py").write_text(OWNER)
    process = subprocess.Popen(
        [sys.executable, "owner.py"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_killed_owner_leaves_no_core_no_child_and_no_guard(tmp_path: Path) -> None:
    with owner_process(tmp_path, "child(); await asyncio.sleep(1000)") as process:
        wait_until((tmp_path / "child").exists)
        family = psutil.Process(process.pid).children(recursive=True)
        names = sorted(
            "core" if "talka.engine.load.core_process" in member.cmdline() else member.name() for member in family
        )
        assert names == ["core", "sh", "sleep"]
        process.kill()
        process.wait()
        for member in family:
            wait_until(lambda pid=member.pid: is_gone(pid))  # type: ignore[misc]


def test_what_a_core_prints_does_not_reach_the_owners_output(tmp_path: Path) -> None:
    with owner_process(tmp_path, "print('noise', flush=True)") as process:
        out, err = process.communicate(timeout=WAIT_S)
    assert out == "result completed\n"
    assert err == "noise\n"


# Cores in a thread.


async def in_a_thread(owner: Owner, work: Callable[[], Any], plan: Plan = ONCE) -> None:
    class Shop(Workflow):
        @step()
        async def go(self) -> CustomResponse[Any]:
            return await self.client.custom.call(work())

    in_memory["test"] = (Shop,)
    try:
        await owner.start(MemorySource("test"), plan)
    finally:
        del in_memory["test"]


async def test_classes_in_memory_run_in_a_thread_of_this_process(owner: Owner) -> None:
    async def work() -> int:
        return os.getpid()

    await in_a_thread(owner, work)
    assert owner.supervisor.pids() == {1: os.getpid()}
    step, call = await owner.next(StepTotals), await owner.next(StepTotals)
    assert (step.call, step.tally.ok, call.call, call.tally.ok) == (None, 1, "go", 1)
    await owner.next(Totals)
    assert await owner.next(str) == "ended"
    assert guards() == []


async def test_a_thread_ends_when_it_is_killed(owner: Owner) -> None:
    async def work() -> None:
        await asyncio.sleep(0.001)

    await in_a_thread(owner, work, FOREVER)
    await owner.until_a_step_is_done()
    owner.supervisor.kill(1)
    assert await owner.until(str) == "ended"


async def test_a_user_that_exits_ends_its_thread_and_not_its_owner(owner: Owner) -> None:
    async def work() -> None:
        sys.exit(3)

    await in_a_thread(owner, work, FOREVER)
    assert (await owner.until(str)).startswith("ended with SystemExit: 3 (")


@pytest.mark.parametrize(("said", "status"), [(b"", 0), (framed(b"x"), 1)], ids=["nothing", "nonsense"])
async def test_a_thread_that_ended_with_an_error_has_the_status_of_such_a_process(said: bytes, status: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours:
        thread = CoreThread(theirs)
        ours.sendall(said)
    async with asyncio.timeout(WAIT_S):
        assert (await thread.ended()).status == status


# The process itself, without a supervisor.


@contextlib.contextmanager
def bare_core(parent: int) -> Iterator[tuple["subprocess.Popen[bytes]", socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "talka.engine.load.core_process", str(theirs.fileno()), str(parent)],
                pass_fds=(theirs.fileno(),),
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        try:
            yield process, ours
        finally:
            process.kill()
            process.communicate()


def test_a_core_whose_owner_died_before_it_was_ready_ends_at_once() -> None:
    with bare_core(parent=1) as (process, _):
        assert process.wait(WAIT_S) == 1


def test_a_core_whose_owner_closes_the_socket_ends_with_its_whole_group() -> None:
    with bare_core(os.getpid()) as (process, ours):
        ours.close()
        assert process.wait(WAIT_S) == -signal.SIGKILL


def test_a_core_that_cannot_go_on_says_so_in_one_line() -> None:
    with bare_core(os.getpid()) as (process, ours):
        ours.sendall(b"\xff\xff\xff\xff")
        _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    [line] = err.decode().splitlines()
    assert line.startswith("talka: internal error in a core process: FrameTooLong: a frame of 4294967295 bytes")


async def test_a_refusal_arrives_and_the_core_ends(owner: Owner, tmp_path: Path) -> None:
    source = FileSource(str(tmp_path / "none.py"))
    await owner.supervisor.start(1, Arm("job", source, "Shop", ONCE.split(1)[0], 0, {}, Settings(grace_ns=0)))
    await owner.next(Hello)
    assert (await owner.next(Refused)).reason == "file"
    assert await owner.next(str) == "exited with status 0"


# Several attempts in one process.

ENDLESS = "        return await self.client.custom.call(asyncio.sleep(0.005))"
STUCK = """        Path(__file__).with_name("stuck").write_text("")
        time.sleep(1000)"""


async def shared(owner: Owner, *bodies: str, plan: Plan = FOREVER) -> None:
    """Attempts 1, 2 … in process 1, armed and told to go: the class `Shop` of each body, which are in one file."""
    parts = [
        HEAD,
        *(
            f"{body}\n\nclass Shop{n}(Workflow):\n    @step()\n    async def go(self) -> CustomResponse[int]:\n"
            for n, body in enumerate(bodies)
        ),
    ]
    (owner.folder / "shared.py").write_text("".join(parts) + ENDLESS + "\n")
    source = FileSource(str(owner.folder / "shared.py"))
    settings = Settings(grace_ns=0, report_every_ns=50 * MILLISECOND)
    names = ["Shop", *(f"Shop{n}" for n in range(len(bodies) - 1))]
    for core, name in enumerate(names, 1):
        await owner.supervisor.start(core, Arm("job", source, name, plan.split(1)[0], 0, {}, settings), process=1)
    for _ in names:
        await owner.until(Armed)
    now = monotonic_ns()
    for core in range(1, len(names) + 1):
        owner.supervisor.send(core, Go(now, now, now))


async def counts_of(owner: Owner, core: int) -> None:
    """Until this attempt has counted a step."""
    async with asyncio.timeout(WAIT_S):
        while True:
            of, message = await owner.happened.get()
            if of == core and isinstance(message, StepTotals) and message.tally.ok:
                return


async def test_attempts_of_one_process_run_side_by_side_in_it(owner: Owner) -> None:
    await shared(owner, ENDLESS, ENDLESS)

    await counts_of(owner, 1)
    await counts_of(owner, 2)

    assert len(set(owner.supervisor.pids().values())) == 1
    owner.supervisor.send(1, Stop())
    assert await ended(owner) == (1, "ended")
    assert list(owner.supervisor.pids()) == [2], "the other goes on"
    await counts_of(owner, 2)
    owner.supervisor.send(2, Stop())
    assert await ended(owner) == (2, "exited with status 0")


async def ended(owner: Owner) -> tuple[int, str]:
    async with asyncio.timeout(WAIT_S):
        while True:
            core, message = await owner.happened.get()
            if isinstance(message, str):
                return core, message


async def test_the_death_of_a_process_is_the_end_of_every_attempt_in_it(owner: Owner) -> None:
    await shared(owner, ENDLESS, ENDLESS)
    os.kill(owner.supervisor.pids()[1], signal.SIGKILL)

    assert [await ended(owner), await ended(owner)] == [(1, "was killed by SIGKILL"), (2, "was killed by SIGKILL")]


@pytest.mark.parametrize("how", ["kill", "end"])
async def test_killing_one_attempt_leaves_the_others_of_its_process(owner: Owner, how: str) -> None:
    await shared(owner, ENDLESS, ENDLESS)
    await counts_of(owner, 1)

    getattr(owner.supervisor, how)(1)

    assert await ended(owner) == (1, "ended")
    await counts_of(owner, 2)


@pytest.mark.parametrize("owner", [{"break_off_s": 0.1}], indirect=True)
async def test_an_attempt_that_does_not_end_takes_its_process_and_the_others_are_told_why(owner: Owner) -> None:
    await shared(owner, ENDLESS, STUCK)
    await happens((owner.folder / "stuck").exists)

    owner.supervisor.kill(2)

    why = "was killed with Shop0, which shared its core and did not end"
    assert sorted([await ended(owner), await ended(owner)]) == [(1, why), (2, why)]


async def late(owner: Owner) -> int:
    """Attempt 2 comes to the process of attempt 1, which has ended; nobody has seen that yet. Its number."""
    source = written(owner.folder, "pass")
    settings = Settings(grace_ns=0)
    arm = Arm("job", source, "Shop", ONCE.split(1)[0], 0, {}, settings)
    await owner.supervisor.start(1, arm, process=1)
    await owner.until(Armed)
    pid = owner.supervisor.pids()[1]
    now = monotonic_ns()
    owner.supervisor.send(1, Go(now, now, now))
    await owner.until(Totals)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - so that the supervisor does not see it yet
    await owner.supervisor.start(2, arm, process=1)
    assert owner.supervisor.pids() == {1: pid, 2: pid}
    return pid


async def test_an_attempt_that_comes_when_its_process_ends_gets_another(owner: Owner) -> None:
    pid = await late(owner)

    assert await ended(owner) == (1, "exited with status 0")
    await owner.until(Armed)
    assert owner.supervisor.pids()[2] != pid


async def test_an_attempt_that_comes_when_its_process_ends_gets_no_other_while_all_are_closed(owner: Owner) -> None:
    await late(owner)

    await owner.supervisor.close()

    assert owner.ends == [(1, "exited with status 0"), (2, "exited with status 0")]


async def test_a_process_of_a_number_that_was_used_before_is_a_new_one(owner: Owner) -> None:
    await owner.start("pass")
    first = owner.supervisor.pids()[1]
    assert await ended(owner) == (1, "exited with status 0")

    await owner.supervisor.start(
        2,
        Arm("job", FileSource(str(owner.folder / "shop.py")), "Shop", ONCE.split(1)[0], 0, {}, Settings(grace_ns=0)),
        1,
    )

    await owner.until(Armed)
    assert owner.supervisor.pids()[2] != first


# What cores print.


async def test_what_a_core_prints_is_told_line_by_line_before_its_end(tmp_path: Path, capfd) -> None:
    told: list[tuple[int, str]] = []
    owner = Owner(tmp_path)

    def on_lines(core: int, lines: list[str]) -> None:
        assert not owner.ends
        told.extend((core, line) for line in lines)

    owner.supervisor = Supervisor(owner.on_message, owner.on_exit, on_lines)
    try:
        await owner.start("print('one'); print('two', file=sys.stderr); sys.stdout.write('without an end')", core=7)
        await owner.until(str)
    finally:
        await owner.supervisor.close()

    assert sorted(told) == [(7, "one"), (7, "two"), (7, "without an end")]
    assert "one\n" in capfd.readouterr().err, "it is in our own log, too"


async def test_child_that_keeps_the_pipe_open_does_not_keep_its_core(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    owner.supervisor = Supervisor(owner.on_message, owner.on_exit, lambda core, lines: None)
    left = "subprocess.Popen(['sleep', '1000'], start_new_session=True)"
    try:
        await owner.start(f"Path(__file__).with_name('child').write_text(str({left}.pid)); print('left')")
        assert await owner.until(str) == "exited with status 0"
    finally:
        await owner.supervisor.close()
        os.kill(owner.child(), signal.SIGKILL)


def test_lines_are_cut_out_of_whatever_pieces_they_come_in() -> None:
    lines = Lines()

    assert lines.feed(b"a") == []
    assert lines.feed(b"b\r\nc\n\xff") == ["ab", "c"]
    assert lines.rest() == ["\N{REPLACEMENT CHARACTER}"]
    assert lines.rest() == []
    assert lines.feed(b"x" * 5000) == ["x" * 5000], "one without an end is not waited for"
