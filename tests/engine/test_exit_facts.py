"""How processes ended, told from statuses and from the kernel's counters in folders that look like its own."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from talka.control.worker.effects import ExitFacts
from talka.engine.containment import MemoryGroup, own_groups, peak_of, processes_in
from talka.engine.exit_facts import KillCount, facts_of, memory_kills

MEBIBYTE = 1024 * 1024


def group_in(folder: Path, **files: str) -> Path:
    """A folder with files as a control group has them; `_` stands for the dot in their names."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("_", ".", 1)).write_text(content)
    return folder


@pytest.mark.parametrize(
    ("status", "facts"),
    [
        (0, ExitFacts("exit", 0, text="the process exited with status 0")),
        (3, ExitFacts("exit", 3, text="the process exited with status 3")),
        (
            -signal.SIGSEGV,
            ExitFacts("SIGSEGV", signal="SIGSEGV", text="the process was killed by SIGSEGV"),
        ),
        (
            -signal.SIGKILL,
            ExitFacts(
                "SIGKILL",
                signal="SIGKILL",
                text="the process was killed by SIGKILL, which its worker did not send",
            ),
        ),
        (
            -signal.SIGTERM,
            ExitFacts(
                "SIGTERM",
                signal="SIGTERM",
                text="the process was killed by SIGTERM, which its worker did not send",
            ),
        ),
        (-63, ExitFacts("signal 63", signal="signal 63", text="the process was killed by signal 63")),
    ],
    ids=["success", "code", "segfault", "kill", "terminate", "nameless"],
)
def test_status_tells_code_or_signal(status: int, facts: ExitFacts) -> None:
    assert facts_of(status, is_out_of_memory=False) == facts


def test_kernel_that_counted_a_kill_makes_sigkill_an_oom() -> None:
    facts = facts_of(-signal.SIGKILL, is_out_of_memory=True, memory_bytes=5, limit_bytes=100 * MEBIBYTE)

    assert (facts.cause, facts.signal, facts.memory_bytes) == ("oom", "SIGKILL", 5)
    assert facts.text == "the process was killed by the kernel: it used more memory than the 100 MiB it may"
    unbound = facts_of(-signal.SIGKILL, is_out_of_memory=True)
    assert unbound.text.endswith("it used more memory than its machine or container has")


def test_other_signals_are_no_oom_though_the_kernel_killed_somebody() -> None:
    assert facts_of(-signal.SIGSEGV, is_out_of_memory=True).cause == "SIGSEGV"
    assert facts_of(1, is_out_of_memory=True).cause == "exit"


def test_what_the_worker_did_is_told_and_is_no_oom() -> None:
    facts = facts_of(-signal.SIGKILL, is_out_of_memory=True, doing="its worker killed it")

    assert facts.cause == "SIGKILL"
    assert facts.text == "the process was killed by SIGKILL: its worker killed it"


def test_too_much_processor_time_is_told_with_its_bound() -> None:
    facts = facts_of(-signal.SIGXCPU, is_out_of_memory=False, cpu_ms=1500)

    assert facts.cause == "SIGXCPU"
    assert facts.text.endswith("it used more processor time than the 1500 ms it may")


def test_kills_are_read_from_both_versions(tmp_path: Path) -> None:
    second = group_in(tmp_path / "2", memory_events="low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\n")
    first = group_in(tmp_path / "1", memory_oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    old = group_in(tmp_path / "0", memory_oom_control="oom_kill_disable 0\nunder_oom 0\n")

    assert [memory_kills(folder) for folder in (second, first, old, tmp_path / "none")] == [3, 4, None, None]


def test_groups_of_this_process_are_found_version_2_first(tmp_path: Path) -> None:
    listing = tmp_path / "listing"
    listing.write_text("4:memory:/box/a\n3:cpuset:/\n0::/box\n")
    first = group_in(tmp_path / "memory" / "box" / "a", memory_oom_control="oom_kill 0\n")
    second = group_in(tmp_path / "box", memory_events="oom_kill 0\n")

    assert own_groups(tmp_path, listing) == [second, first]


def test_place_that_only_the_host_sees_is_the_topmost_here(tmp_path: Path) -> None:
    listing = tmp_path / "listing"
    listing.write_text("4:memory,cpu:/docker/1234\n0::/\n")
    top = group_in(tmp_path / "memory", memory_oom_control="oom_kill 0\n")

    assert own_groups(tmp_path, listing) == [top]


def test_system_without_control_groups_has_none(tmp_path: Path) -> None:
    assert own_groups(tmp_path, tmp_path / "nothing") == []
    assert MemoryGroup.bounded(os.getpid(), MEBIBYTE, tmp_path, tmp_path / "nothing") is None


def test_each_kill_is_told_once(tmp_path: Path) -> None:
    # given a count that stood at 5 from the start
    folder = group_in(tmp_path, memory_events="oom_kill 5\n")
    count = KillCount([folder])
    assert not count.has_risen()

    # when two are killed
    group_in(tmp_path, memory_events="oom_kill 7\n")

    # then two are told
    assert [count.has_risen() for _ in range(3)] == [True, True, False]
    count.look()
    assert not count.has_risen()


def test_kill_that_nobody_asked_about_for_two_looks_is_nobodys(tmp_path: Path) -> None:
    folder = group_in(tmp_path, memory_events="oom_kill 0\n")
    count = KillCount([folder])
    group_in(tmp_path, memory_events="oom_kill 1\n")

    count.look()
    assert count.has_risen(), "one look later it may still be told of"
    group_in(tmp_path, memory_events="oom_kill 2\n")
    count.look()
    count.look()
    assert not count.has_risen()


def test_group_that_refuses_its_bound_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a folder that takes no process
    listing = tmp_path / "listing"
    listing.write_text("0::/box\n")
    box = group_in(tmp_path / "box", memory_events="oom_kill 0\n")

    def refuse(self: MemoryGroup, limit_bytes: int) -> None:
        raise PermissionError

    monkeypatch.setattr(MemoryGroup, "_limit", refuse)

    # then nothing of it is left
    assert MemoryGroup.bounded(1, MEBIBYTE, tmp_path, listing) is None
    assert not (box / "talka-1").exists()


def test_group_of_version_1_gets_its_bound_and_kills_who_is_in_it(tmp_path: Path) -> None:
    # given what a kernel would make of a new folder
    sleeper = subprocess.Popen(["sleep", "1000"])
    listing = tmp_path / "listing"
    listing.write_text("4:memory:/\n")
    group_in(tmp_path / "memory", memory_oom_control="oom_kill 0\n")

    # when it is bounded and killed
    group = MemoryGroup.bounded(sleeper.pid, 3 * MEBIBYTE, tmp_path, listing)
    assert group is not None
    folder = group.folder
    assert (folder / "memory.limit_in_bytes").read_text() == str(3 * MEBIBYTE)
    assert processes_in(folder) == [sleeper.pid]
    (folder / "memory.max_usage_in_bytes").write_text("12345\n")
    assert group.peak_bytes() == 12_345
    group.kill()

    # then the process is gone
    assert sleeper.wait(10) == -signal.SIGKILL


def test_group_of_version_2_is_killed_by_its_switch(tmp_path: Path) -> None:
    folder = group_in(tmp_path / "group", cgroup_kill="", memory_max="max", memory_peak="77")
    group = MemoryGroup(folder)

    group.kill()
    group._limit(MEBIBYTE)

    assert (folder / "cgroup.kill").read_text() == "1"
    assert (folder / "memory.max").read_text() == str(MEBIBYTE)
    assert (folder / "memory.swap.max").read_text() == "0"
    assert group.peak_bytes() == 77


def test_group_that_is_gone_has_nobody_in_it(tmp_path: Path) -> None:
    group = MemoryGroup(tmp_path / "gone")

    group.kill()

    assert processes_in(tmp_path / "gone") == []
    assert group.peak_bytes() == 0
    assert group.remove()


def test_peak_of_a_living_process_is_known_and_of_a_dead_one_not() -> None:
    assert peak_of(os.getpid()) > MEBIBYTE
    assert peak_of(1 << 30) == 0
