"""What is measured of a node, and what follows from it."""

import asyncio
import os
from pathlib import Path

import psutil
import pytest

from talka.clock import boottime_ns
from talka.control.clients.overload import Level, OverloadConfig
from talka.nodes.load_sampling import LoadSampler, RunQueue, limited_groups, memory_percent
from talka.nodes.runtime import DiskThread
from talka.units import SECOND
from tests.nodes.small_cluster import LIMIT_S, small_cluster

MIB = 1 << 20


async def test_a_loop_that_does_not_turn_is_late_and_what_waits_is_asked_for() -> None:
    seen: list[Level] = []
    enough = asyncio.Event()

    async def pause(seconds: float) -> None:
        """As if all else had kept the loop for as long again."""
        until = boottime_ns() + round(2 * seconds * SECOND)
        while boottime_ns() < until:
            pass

    def on_sample(now: int, level: Level) -> None:
        seen.append(level)
        if len(seen) == 2:
            enough.set()
            raise asyncio.CancelledError

    config = OverloadConfig(late_ns=(SECOND // 100, SECOND, SECOND), warm_up=100)
    sampler = LoadSampler(0.02, oldest_ns=lambda now: 3 * SECOND, took_ns=lambda: 5, config=config)
    with pytest.raises(asyncio.CancelledError):
        await sampler.run(on_sample, pause)

    assert enough.is_set() and seen == [Level.STRESSED, Level.STRESSED], "by the age of what waits"
    assert sampler.overload.levels["late"] >= Level.BUSY
    counts = sampler.counts()
    assert (counts["overload_level"], counts["overload_queue_seconds"]) == (2, 3)
    assert counts["overload_signal_level"] == {"late": 1, "queue": 2, "latency": 0, "cpu": 0, "memory": 0}


async def test_a_node_that_reads_what_it_begins_with_is_not_judged() -> None:
    seen: list[Level] = []

    def on_sample(now: int, level: Level) -> None:
        seen.append(level)
        raise asyncio.CancelledError

    sampler = LoadSampler(0.001, oldest_ns=lambda now: 9 * SECOND, is_starting=lambda: True)
    with pytest.raises(asyncio.CancelledError):
        await sampler.run(on_sample)

    assert seen == [Level.NORMAL]


def test_for_how_long_a_thread_was_kept_waiting_is_the_kernels_count(tmp_path: Path) -> None:
    file = tmp_path / "schedstat"
    file.write_text("5000 777 12\n")

    with RunQueue(file) as queue:
        assert queue.waited_ns() == 777
        file.write_text("nonsense")
        assert queue.waited_ns() == 0
    with RunQueue(tmp_path / "none") as queue:
        assert queue.waited_ns() == 0


def group(folder: Path, files: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")


def machine_percent() -> int:
    return memory_percent(limited_groups(Path("/nowhere"), Path("/nowhere")))


def test_memory_is_that_of_the_tightest_control_group_without_what_can_be_given_back(tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    group(proc, {"cgroup": "0::/talka/worker"})
    group(cgroups / "talka" / "worker", {"memory.max": "max", "memory.current": 99 * MIB})
    group(
        cgroups / "talka",
        {"memory.max": 100 * MIB, "memory.current": 98 * MIB, "memory.stat": f"anon 5\ninactive_file {MIB}"},
    )

    assert memory_percent(limited_groups(proc, cgroups)) == 97


def test_memory_of_a_control_group_of_version_1_is_asked_for_too(tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    group(proc, {"cgroup": "5:cpu:/other\n4:memory:/talka"})
    group(
        cgroups / "memory" / "talka",
        {"memory.limit_in_bytes": 100 * MIB, "memory.usage_in_bytes": 96 * MIB},
    )

    assert memory_percent(limited_groups(proc, cgroups)) == 96


def test_a_control_group_that_may_have_more_than_there_is_has_no_limit(tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    group(proc, {"cgroup": "0::/talka"})
    huge = 2 * psutil.virtual_memory().total
    group(cgroups / "talka", {"memory.max": huge, "memory.current": huge})

    assert memory_percent(limited_groups(proc, cgroups)) < 100
    assert 0 < machine_percent() < 100


async def test_the_oldest_write_is_waited_for_until_it_is_done() -> None:
    disk = DiskThread()
    reader, writer = os.pipe()
    assert disk.oldest_ns(0) == 0
    begun = boottime_ns()

    write = disk.do(os.read, reader, 1)  # type: ignore[arg-type]
    disk.do(lambda: None)
    assert 0 <= disk.oldest_ns(boottime_ns()) <= boottime_ns() - begun
    assert disk.oldest_ns(begun + 100 * SECOND) > 99 * SECOND
    os.write(writer, b"x")
    await write
    await disk.close(LIMIT_S)

    assert disk.oldest_ns(boottime_ns()) == 0
    os.close(reader)
    os.close(writer)


async def test_a_worker_with_too_much_to_do_says_so_with_its_beat_and_goes_on(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, "m") as cluster:
        worker = await cluster.start_worker()
        manager = cluster.managers["m"]

        worker._on_sample(boottime_ns(), Level.OVERLOADED)
        worker.runtime.act(worker.worker.beat_now(boottime_ns()))
        await cluster.until(lambda: [one for one in cluster.told("worker-judged") if one["what"] == "overloaded"])
        (view,) = await manager.control.workers()

        assert (view.state, view.cores) == ("healthy", 1)
        text = worker.metrics()
        assert "talka_overload_level" in text and "talka_worker_reports_refused_total 0" in text
        await cluster.until(
            lambda: [one for one in cluster.told("worker-judged") if one["what"] == "overloaded" and one["over"]]
        )
