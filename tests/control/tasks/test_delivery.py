"""Tasks that were given out become messages that fit their frames, with all that their handlers need."""

from itertools import count
from random import Random
from typing import Any

import msgspec
import pytest

from talka.control.dags.keeper_limits import KeeperLimits
from talka.control.tasks import delivery
from talka.control.tasks.delivery import Delivery, DeliveryLimits, worker_key, worker_of
from talka.control.tasks.epoch_floor import EpochFloor
from talka.control.tasks.store_effects import ReadOutputs
from talka.wire.attempts import NOWHERE, StoreLife
from talka.wire.framing import FRAME_LIMIT_BYTES, framed, packed, unpacked
from talka.wire.jobs import decode, encode
from talka.wire.output_tail import STREAM_LIMIT_BYTES, STREAMS, StreamTail
from talka.wire.security.sealing import SEAL_BYTES
from talka.wire.tasks import (
    BATCH_LIMIT_BYTES,
    AssignTasks,
    Done,
    HandlerProgress,
    TaskInputs,
    TaskProgress,
    TaskResult,
)
from talka.work.dags.dag import CONFIG_LIMIT_BYTES, EMPTY, OUTPUT_LIMIT_BYTES, Bounds, Retry, Timeouts
from talka.work.lifecycle import JobState, TaskState

Play = Any


def text_of(size: int) -> bytes:
    """JSON of so many bytes."""
    return b'"' + b"x" * (size - 2) + b'"'


def test_a_task_is_handed_with_all_that_its_spec_says(play: Play) -> None:
    play.beat("w")
    bounds = Bounds(memory="1MB", cpu="2s", files=17)
    fields = {"config": msgspec.Raw(b'{"x":1}'), "key": "k", "timeouts": Timeouts(attempt="9s"), "bounds": bounds}
    id = play.submit({"a": fields, "b": ""})
    (task,) = [task for task in play.handed.values() if task.id == "a"]
    assert (task.job, task.handler, task.attempt, task.config) == (id, "h", 1, b'{"x":1}')
    assert (task.attempt_ms, task.key, task.alone) == (9000, "k", True)
    assert (task.memory_bytes, task.cpu_ms, task.files, task.fed) == (1_000_000, 2000, 17, 0)
    (plain,) = [task for task in play.handed.values() if task.id == "b"]
    assert (plain.alone, plain.memory_bytes, plain.cpu_ms, plain.files) == (False, 0, 0, 0)


def test_inputs_are_the_outputs_of_those_that_completed(play: Play) -> None:
    play.beat("w")
    play.submit({"a": "", "b": "", "c": "ab"}, on_failure="continue", retry=Retry(max=0))
    play.done("a", output=b"[1]")
    play.result(play.fence("b"), "failed")
    assert play.handed[play.fence("c")].inputs == {"a": b"[1]"}


def test_large_inputs_travel_in_feeds_before_their_task_which_says_how_many(play: Play) -> None:
    play.beat("w", cores=8, boot=3)
    play.submit({"a": "", "b": "", "c": "", "z": "abc"})
    output = text_of(300_000)
    for id in "abc":
        play.done(id, output=output)
    words = [message for message in play.said(object) if isinstance(message, TaskInputs | AssignTasks)][-4:]
    fence = play.fence("z")
    assert [(word.fence, list(word.inputs)) for word in words[:3]] == [(fence, ["a"]), (fence, ["b"]), (fence, ["c"])]
    (task,) = words[3].tasks
    assert (task.inputs, task.fed) == ({}, 3)
    assert [word.boot for word in words] == [3] * 4


def test_small_inputs_share_a_feed(play: Play) -> None:
    play.beat("w", cores=8)
    play.submit({**dict.fromkeys("abcd", ""), "z": "abcd"})
    for id in "abcd":
        play.done(id, output=text_of(150_000))
    assert [list(feed.inputs) for feed in play.said(TaskInputs)] == [["a", "b", "c"], ["d"]]


def test_inputs_are_fed_where_they_do_not_fit_beside_config_and_checkpoint(play: Play) -> None:
    play.beat("w")
    config = msgspec.Raw(text_of(CONFIG_LIMIT_BYTES))
    play.submit({"a": "", "z": {"depends_on": ("a",), "config": config}}, retry=Retry(max=1, backoff=0.0))
    play.done("a", output=text_of(OUTPUT_LIMIT_BYTES - 1000))
    play.hear("w", TaskProgress(progress=(HandlerProgress(play.fence("z"), text_of(256 * 1024)),)))
    play.result(play.fence("z"), "failed")
    assert play.handed[play.fence("z")].attempt == 2
    assert play.handed[play.fence("z")].fed == 1
    assert all([len(encode(one.message)) < FRAME_LIMIT_BYTES for one in play.told_all])


def test_the_largest_output_fits_a_frame_to_its_keeper_and_one_to_who_depends_on_it() -> None:
    noise = Random(7)
    output = noise.randbytes(OUTPUT_LIMIT_BYTES)
    tails = tuple([StreamTail(one, noise.randbytes(STREAM_LIMIT_BYTES), 1 << 60) for one in STREAMS])
    longest = TaskResult(1 << 60, "completed", output, took_us=1 << 60, job="j" * 200, task="t" * 128, tails=tails)
    life = StoreLife(1 << 60, 1 << 60, 1 << 60)
    words: list[Done | TaskInputs] = [
        Done((longest,), life),
        TaskInputs(1 << 60, 1 << 60, {"t" * 128: output}, 1 << 60, life),
    ]
    for word in words:
        content = packed(encode(word))
        assert len(content) > OUTPUT_LIMIT_BYTES, "compressing it helps nobody"
        assert len(framed(content)) + SEAL_BYTES <= FRAME_LIMIT_BYTES
        assert decode(unpacked(content)) == word


def test_frames_hold_as_many_tasks_as_fit(play: Play) -> None:
    play.beat("w", cores=64)
    large = {"config": msgspec.Raw(text_of(200_000))}
    play.submit({f"t{number}": large for number in range(5)})
    assert [len(hand.tasks) for hand in play.said(AssignTasks)] == [2, 2, 1]


@pytest.mark.parametrize("play", [KeeperLimits(delivery=DeliveryLimits(tasks=3))], indirect=True)
def test_many_small_tasks_go_in_several_frames(play: Play) -> None:
    play.beat("w", cores=64)
    play.submit({f"u{number}": "" for number in range(7)})
    assert [len(hand.tasks) for hand in play.said(AssignTasks)] == [3, 3, 1]


def test_checkpoints_and_names_of_inputs_count_in_a_frame(play: Play) -> None:
    play.beat("w", cores=8)
    tasks = {f"t{number}": "" for number in range(6)}
    play.submit(tasks, retry=Retry(max=1, backoff=0.0))
    words = tuple([HandlerProgress(play.fence(id), text_of(256_000)) for id in tasks])
    play.hear("w", TaskProgress(progress=words))
    play.hold()
    for id in tasks:
        play.result(play.fence(id), "failed")
    play.release()
    assert all([len(encode(one.message)) < FRAME_LIMIT_BYTES for one in play.told_all])
    before = {f"{'n' * 100}{number}": "" for number in range(7000)}
    play.submit({**before, "sink": {"depends_on": tuple(before)}})
    told: dict[str, None] = {}
    while "sink" not in play.names():
        fresh = {task.id: task.fence for _, task in play.hands if task.id in before and task.id not in told}
        told.update(dict.fromkeys(fresh))
        play.results([TaskResult(fence, "completed", b"1", took_us=1) for fence in fresh.values()])
    assert play.handed[play.fence("sink")].fed == 7000
    assert all([len(encode(one.message)) < FRAME_LIMIT_BYTES for one in play.told_all])


@pytest.mark.parametrize("play", [KeeperLimits(delivery=DeliveryLimits(outputs_bytes=6))], indirect=True)
def test_outputs_that_memory_does_not_hold_are_read(play: Play) -> None:
    play.hold_reads()
    play.beat("w")
    play.submit({"a": "", "b": "", "c": "ab"})
    play.done("a", output=b'"aaa"')
    play.done("b", output=b'"bbb"')
    assert play.fetches == [ReadOutputs(1, (), ((1, 0),))]
    assert "c" not in play.names()
    play.submit({"x": "", "y": "x"})
    play.done("x", output=b'"xxx"')  # after which memory does not have that of b either
    play.fetched()
    assert play.handed[play.fence("c")].inputs == {"a": b'"aaa"', "b": b'"bbb"'}


@pytest.mark.parametrize("play", [KeeperLimits(delivery=DeliveryLimits(outputs_bytes=0))], indirect=True)
def test_an_output_that_is_lost_fails_who_needs_it(play: Play) -> None:
    play.hold_reads()
    play.beat("w")
    play.submit({"a": "", "b": "a"})
    play.done("a")
    play.fetched(outputs={})
    task = play.row(1)
    assert (task.state, task.error) == (TaskState.FAILED, "the output of task a is lost: run that one again")
    assert [one.state for one in play.ended] == [JobState.FAILED]


def test_an_output_that_replaces_another_counts_once() -> None:
    one = Delivery(EpochFloor(1, NOWHERE), lambda worker: 0, count(1), DeliveryLimits(outputs_bytes=10))
    for _ in range(5):
        one.keep_output((1, 0), b"12345")
    one.keep_output((1, 1), b"12345")
    assert one._outputs == {(1, 0): b"12345", (1, 1): b"12345"}
    one.keep_output((1, 2), b"1")
    assert list(one._outputs) == [(1, 1), (1, 2)], "the oldest went"


def test_specs_of_tasks_that_ended_leave_memory(play: Play) -> None:
    play.beat("w")
    id = play.submit({"a": "", "b": ""})
    play.submit({"c": {"config": msgspec.Raw(b"[1,2]")}})
    sizes = play.keeper._delivery
    assert sizes.specs_bytes == 3 * delivery.SPEC_BYTES + 2 * len(EMPTY) + len(b"[1,2]")
    play.done("c")
    assert sizes.specs_bytes == 2 * (delivery.SPEC_BYTES + len(EMPTY))
    play.change(id, "cancel", "")
    play.result(play.fence("a"), "cancelled")
    play.result(play.fence("b"), "cancelled")
    assert sizes.specs_bytes == 0


def test_a_life_of_a_worker_has_a_key() -> None:
    for life in (("w", 1, 7), ("a#b", 0xDEAD, 0), ("", 0, (1 << 62) - 1)):
        assert worker_of(worker_key(*life)) == life


def test_nothing_to_give_is_nothing_to_say() -> None:
    given = Delivery(EpochFloor(1, NOWHERE), lambda worker: 0, count(1)).give([])
    assert (given.effects, given.fences, given.unfit) == ([], [], [])
    assert BATCH_LIMIT_BYTES < FRAME_LIMIT_BYTES
