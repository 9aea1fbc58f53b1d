"""What a worker finds out about its machine, and that it neither waits nor fails for what cannot be found."""

import asyncio
import os
import platform
import socket
import time
from pathlib import Path

import pytest

from talka.nodes.own_machine import cpu_of, found_machine, gpus_of
from talka.wire.jobs import Beat, WorkerFacts, decode, encode
from talka.wire.machines import FLAGS_LIMIT, GPUS_LIMIT, GpuFacts, MachineView
from tests.nodes.small_cluster import LIMIT_S, small_cluster

CPUS = """processor\t: 0
model name\t: Some CPU @ 2.00GHz
flags\t\t: sse2 avx avx

processor\t: 1
model name\t: another
"""


def fake_smi(folder: Path, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that programs are looked for in first."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def test_the_machine_of_this_test_is_found(tmp_path: Path, on_path: Path) -> None:
    fake_smi(on_path, "printf 'Tesla T4, 15360\\nA card, with a comma, [N/A]\\n\\n'")

    found = found_machine(tmp_path, (("rack", "7"),))

    assert (found.hostname, found.pid, found.tags) == (socket.gethostname(), os.getpid(), (("rack", "7"),))
    assert found.architecture == platform.machine() and platform.release() in found.system
    assert found.cpus == os.cpu_count() and platform.python_version() in found.python
    assert 0 < found.disk_free_bytes < found.disk_bytes
    assert found.gpus == (GpuFacts("Tesla T4", 15360 << 20), GpuFacts("A card, with a comma", 0))
    assert decode(encode(Beat(1, WorkerFacts(1, machine=found)))) == Beat(1, WorkerFacts(1, machine=found))


def test_what_the_system_tells_can_be_sent_whatever_it_is(
    tmp_path: Path, on_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> str:
        raise OSError

    fake_smi(on_path, f"echo 'T4, {10**30}'")
    monkeypatch.setattr(socket, "gethostname", lambda: "h\udcff")
    monkeypatch.setattr(platform, "machine", fails)
    monkeypatch.setattr(platform, "freedesktop_os_release", fails)

    found = found_machine(tmp_path)

    assert (found.hostname, found.architecture, found.gpus) == ("h?", "", (GpuFacts("T4", 0),))
    assert found.system == f"{platform.system()} {platform.release()}"
    assert decode(encode(Beat(1, WorkerFacts(1, machine=found)))) == Beat(1, WorkerFacts(1, machine=found))


def test_model_and_flags_are_those_of_the_first_processor(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(CPUS)
    assert cpu_of(tmp_path / "cpuinfo") == ("Some CPU @ 2.00GHz", ("avx", "sse2"))

    (tmp_path / "cpuinfo").write_text("Features : fp asimd\n")
    assert cpu_of(tmp_path / "cpuinfo")[1] == ("asimd", "fp")
    assert cpu_of(tmp_path / "nothing")[1] == ()


def test_what_is_beyond_the_limits_of_a_beat_is_left_out(tmp_path: Path, on_path: Path) -> None:
    flags = " ".join(f"flag{n}{'x' * 40}" for n in range(600))
    (tmp_path / "cpuinfo").write_text(f"model name : {'m' * 300}\nflags : {flags}\n")
    fake_smi(on_path, f"for n in $(seq 100); do echo '{'g' * 200}, 1'; done")

    found = found_machine(tmp_path, cpu_file=tmp_path / "cpuinfo")

    assert (len(found.cpu_flags), len(found.gpus)) == (FLAGS_LIMIT, GPUS_LIMIT)
    assert decode(encode(Beat(1, WorkerFacts(1, machine=found)))) == Beat(1, WorkerFacts(1, machine=found))


@pytest.mark.parametrize("script", ["echo 'T4, 1'; exit 9", "kill -9 $$", "printf '\\377\\n'", "echo No devices"])
def test_a_program_that_fails_tells_of_no_cards(on_path: Path, script: str) -> None:
    fake_smi(on_path, script)

    assert gpus_of(LIMIT_S) == ()


def test_a_program_that_cannot_be_run_tells_of_no_cards(on_path: Path) -> None:
    (on_path / "nvidia-smi").write_text("no program")
    (on_path / "nvidia-smi").chmod(0o755)

    assert gpus_of(LIMIT_S) == ()


def test_a_program_that_hangs_is_not_waited_for(on_path: Path) -> None:
    fake_smi(on_path, "exec sleep 600")
    began = time.monotonic()

    assert gpus_of(0.2) == ()
    assert time.monotonic() - began < LIMIT_S


async def test_a_worker_tells_the_leader_of_its_machine_and_its_tags_once(tmp_path: Path, on_path: Path) -> None:
    fake_smi(on_path, "echo 'Tesla T4, 15360'")
    async with small_cluster(tmp_path, "m") as cluster:
        worker = await cluster.start_worker(tags=(("rack", "7"),))
        manager = cluster.managers["m"]
        async with asyncio.timeout(LIMIT_S):
            while (shown := await manager.control.worker("w")).machine is None:  # noqa: ASYNC110 - a leader is asked
                await asyncio.sleep(0)
        (listed,) = await manager.control.workers()

    assert shown.machine == MachineView.of(worker.worker.machine.machine)
    assert (shown.machine.tags, shown.machine.gpus[0].name) == ({"rack": "7"}, "Tesla T4")
    assert shown.heard_at >= shown.registered_at > ""
    assert listed.machine is None, "of all workers that would be much"
