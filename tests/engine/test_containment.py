"""Processes that must not outlive their owner. Each of them sleeps for a thousand seconds unless it is killed."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.clock import monotonic_ns
from talka.engine.containment import GUARD, ControlGroup, Guard, kill_group, own_control_group
from talka.engine.core_child import Confines, CoreChildren
from talka.units import SECOND

Process = subprocess.Popen[bytes]
DEADLINE_S = 60
LOOK_EVERY_S = 0.005


@pytest.fixture
def groups() -> Iterator[list[Process]]:
    """Four process groups of one process each."""
    made = [subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(4)]
    yield made
    for process in made:
        process.kill()
        process.wait()


@pytest.fixture
def guard() -> Iterator[Guard]:
    made = Guard()
    yield made
    made.close()


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_ns = monotonic_ns() + DEADLINE_S * SECOND
    while not condition():
        assert monotonic_ns() < deadline_ns, "it did not happen in time"
        time.sleep(LOOK_EVERY_S)


def wait_until_gone(pid: int) -> None:
    wait_until(lambda: is_gone(pid))


@contextlib.contextmanager
def owner(code: str) -> Iterator[tuple[Process, int]]:
    """A process that does what `code` says with its `guard`, and the guard's id once it is done."""
    script = f"""
import os, sys
from talka.engine.containment import Guard
guard = Guard()
{code}
print(guard.pid, flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def only_these_survive_the_owners_death(survivors: list[int], groups: list[Process], code: str) -> None:
    with owner(code) as (process, guard_pid):
        process.send_signal(signal.SIGKILL)
        wait_until_gone(guard_pid)
    for number, group in enumerate(groups):
        if number not in survivors:
            assert group.wait(DEADLINE_S) == -signal.SIGKILL
    assert [number for number, group in enumerate(groups) if group.poll() is None] == survivors


# The guard.


def test_guard_of_confined_cores_finds_in_its_environment_what_they_do(groups: list[Process]) -> None:
    confines = Confines(env={"COLOUR": "red"})
    guard = CoreChildren("talka.engine.handlers.handler_core", has_lease=False, confines=confines).guard
    try:
        guard.watch(groups[0].pid)
        process = psutil.Process(guard.pid)
        wait_until(lambda: bool(process.environ()))  # a moment after its start the kernel knows none as yet
        assert process.environ() == confines.env
    finally:
        guard.close()


@pytest.mark.parametrize("forgotten", [0, 1, 3])
def test_watched_groups_die_with_the_owner_and_forgotten_ones_live(groups: list[Process], forgotten: int) -> None:
    watch = "".join(f"guard.watch({group.pid})\n" for group in groups)
    only_these_survive_the_owners_death([forgotten], groups, f"{watch}guard.forget({groups[forgotten].pid})")


def test_the_owner_need_not_be_killed_to_be_gone(groups: list[Process]) -> None:
    with owner(f"guard.watch({groups[0].pid})") as (process, guard_pid):
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
        wait_until_gone(guard_pid)
    assert groups[0].wait(DEADLINE_S) == -signal.SIGKILL


# Numbers that contain each other.
GROUPS = st.permutations([1, 2, 12, 21, 112, 121])


@given(GROUPS, GROUPS, st.integers(0, 6), st.integers(0, 6))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_the_guards_list_holds_what_was_named_and_not_taken_back(
    named: list[int], taken_back: list[int], early: int, late: int
) -> None:
    told = "".join(f"+{group}\n" for group in named)
    told += "".join(f"-{group}\n" for group in taken_back[:early])
    told += "".join(f"+{group}\n" for group in taken_back[:early])
    told += "".join(f"-{group}\n" for group in taken_back[:late])
    expected = taken_back[late:]
    # A function in place of the command, so that it tells what it would have killed.
    script = 'kill() { for last; do :; done; echo "$last"; }\n' + GUARD
    answer = subprocess.run(["/bin/sh", "-c", script], input=told.encode(), capture_output=True, check=False)
    assert sorted(answer.stdout.split()) == sorted(f"-{group}".encode() for group in expected)


def test_a_guard_starts_when_it_is_first_needed_and_ends_when_it_is_closed(guard: Guard, groups: list[Process]) -> None:
    assert guard.pid is None
    guard.restart_if_gone()
    assert guard.pid is None
    guard.watch(groups[0].pid)
    pid = guard.pid
    assert pid is not None and psutil.pid_exists(pid)
    guard.restart_if_gone()
    assert guard.pid == pid
    guard.close()
    assert guard.pid is None and not psutil.pid_exists(pid)
    assert groups[0].poll() is None, "it was closed by an owner that is well"


def test_a_closed_guard_does_not_start_again_to_forget(guard: Guard, groups: list[Process]) -> None:
    guard.watch(groups[0].pid)
    guard.close()
    guard.forget(groups[0].pid)
    assert guard.pid is None


KILL_THE_GUARD = """
killed = guard.pid
os.kill(killed, 9)
os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
"""


def test_a_guard_that_was_killed_is_started_again_with_what_it_knew(groups: list[Process]) -> None:
    code = f"""
guard.watch({groups[0].pid}); guard.watch({groups[1].pid}); guard.forget({groups[1].pid})
{KILL_THE_GUARD}
guard.restart_if_gone()
assert guard.pid != killed
"""
    only_these_survive_the_owners_death([1, 2, 3], groups, code)


def test_a_guard_found_dead_when_it_is_told_something_is_started_again(groups: list[Process]) -> None:
    code = f"""
guard.watch({groups[0].pid}); guard.watch({groups[1].pid})
{KILL_THE_GUARD}
guard.forget({groups[1].pid})
assert guard.pid != killed
guard.watch({groups[2].pid})
"""
    only_these_survive_the_owners_death([1, 3], groups, code)


def test_ctrl_c_at_the_terminal_does_not_reach_the_guard(guard: Guard, groups: list[Process]) -> None:
    guard.watch(groups[0].pid)
    assert guard.pid is not None
    assert os.getsid(guard.pid) == guard.pid != os.getsid(0)


def test_a_group_is_killed_with_everyone_in_it() -> None:
    leader = subprocess.Popen(
        ["/bin/sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert leader.stdout is not None
    with leader.stdout:
        child = int(leader.stdout.readline())
        kill_group(leader.pid)
        assert leader.wait(DEADLINE_S) == -signal.SIGKILL
        wait_until_gone(child)
    kill_group(leader.pid)  # nobody is left, which is no error


# Control groups.


@pytest.fixture
def hierarchy(tmp_path: Path) -> Iterator[Path]:
    """A version 2 hierarchy of our own to look at; its groups are the machine's."""
    root = tmp_path / "cgroup"
    root.mkdir()
    if sys.platform != "linux":
        pytest.skip("control groups are Linux's")
    mounted = subprocess.run(["mount", "-t", "cgroup2", "none", str(root)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a version 2 hierarchy cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield root
    subprocess.run(["umount", str(root)], check=True)


@contextlib.contextmanager
def parent_of_a_runaway() -> Iterator[Process]:
    """Once it reads a line it starts a child that leaves its session, and says its id."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", "read line; setsid sleep 1000 & echo $!; wait"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    with process.stdin, process.stdout:
        yield process
        process.kill()
        process.wait()


def test_a_child_that_left_its_group_is_killed_by_the_control_group(hierarchy: Path) -> None:
    with parent_of_a_runaway() as process:
        group = ControlGroup.around(process.pid, hierarchy, "/")
        assert group is not None
        folder = hierarchy / f"talka-{process.pid}"
        assert (folder / "cgroup.procs").read_text().split() == [str(process.pid)]
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        runaway = int(process.stdout.readline())
        wait_until(lambda: os.getsid(runaway) == runaway)
        kill_group(process.pid)
        assert process.wait(DEADLINE_S) == -signal.SIGKILL
        assert not is_gone(runaway), "it is in no group of ours any more"
        assert not group.remove(), "a group with a process in it stays"
        group.kill()
        wait_until_gone(runaway)
        wait_until(group.remove)
        assert not folder.exists()
        assert group.remove(), "gone is gone"


def test_no_control_group_is_left_around_a_process_that_is_gone(hierarchy: Path) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert ControlGroup.around(process.pid, hierarchy, "/") is None
    assert not (hierarchy / f"talka-{process.pid}").exists()


def test_without_a_version_2_hierarchy_there_is_no_control_group(tmp_path: Path) -> None:
    assert ControlGroup.around(os.getpid(), tmp_path, "/") is None
    assert ControlGroup.around(os.getpid(), tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_that_cannot_kill_control_groups_gets_none(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    assert ControlGroup.around(os.getpid(), tmp_path, "/") is None
    assert [path.name for path in tmp_path.iterdir()] == ["cgroup.procs"]


def test_a_control_group_that_is_gone_is_killed_and_removed_without_complaint(tmp_path: Path) -> None:
    group = ControlGroup(tmp_path / "gone")
    group.kill()
    assert group.remove()


def test_the_own_place_is_the_one_in_the_hierarchy_with_number_0(tmp_path: Path) -> None:
    listing = tmp_path / "cgroup"
    listing.write_text("4:memory:/odd::name\n0::/user.slice/one\n")
    assert own_control_group(listing) == "/user.slice/one"
    listing.write_text("4:memory:/odd::name\n")
    with pytest.raises(FileNotFoundError):
        own_control_group(listing)
