"""What the register holds of jobs, and what clients order."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Untrusted
from talka.units import SECOND
from talka.wire.channels import BadMessage
from talka.wire.entries import (
    AttemptEntry,
    Grant,
    JobCheckpoint,
    JobEntry,
    ShardEntry,
    WorkflowEntry,
    decode_checkpoint,
    decode_entry,
    encode_checkpoint,
    encode_entry,
    encode_order,
)
from talka.wire.orders import BundleFacts, JobOrder, WorkflowOrder
from talka.wire.shards import Gap, Refused, Settings
from talka.work.lifecycle import JobState, TaskState
from talka.work.shapes import ConstantRate, IterationsPerVU
from talka.work.specs import NodeOutline
from talka.work.thresholds import Verdict, parse_threshold

quick = settings(deadline=None, derandomize=True, max_examples=200)


def workflow(name: str = "Shop", **more: Any) -> WorkflowOrder:
    return WorkflowOrder(
        **{
            "name": name,
            "plan": ConstantRate(100, "10s", max_vus=4).plan(),
            "priority": "high",
            "is_test": True,
            "depends_on": ("Login",),
            "timeout_ns": 70 * SECOND,
            "thresholds": (parse_threshold("failed < 1% abort after 5s"),),
            "flows": (("Login", "token"),),
            "load": "100/s for 10 s",
            "nodes": (NodeOutline("buy", "step", True, {"page": "cart"}), NodeOutline("size", "metric", False)),
            "announcements": ("it starts late",),
            **more,
        }
    )


ORDER = JobOrder(
    name="shop",
    bundle=BundleFacts("0" * 64, 70_000, bytes(64), "shop.py"),
    workflows=(workflow("Login", depends_on=(), flows=(), plan=IterationsPerVU(1, 1).plan()), workflow()),
    settings=Settings(30 * SECOND, seed=7),
    thresholds=(parse_threshold("rate > 50/s"),),
    cores=6,
    allow_partial=True,
    submitted_by="ada",
    priority=9,
)
ENTRY = JobEntry(
    job="b4k7",
    key="once",
    order=ORDER,
    state=JobState.RUNNING,
    reason="it was granted 6 cores",
    number=12,
    submitted_ms=1_790_000_000_123,
    owner="m2",
    fence=(0, 7, 300),
    pool=16,
    granted=6,
    grants=(Grant("w1", 2**61, 4), Grant("w2", 5, 2, "its lease is over")),
    revision=4,
    checkpoint=b"\x80",
    version=17,
)
CHECKPOINT = JobCheckpoint(
    attempts=5,
    workflows=(
        WorkflowEntry(
            "Login",
            TaskState.FAILED,
            (ShardEntry(0, 1, 1, (AttemptEntry(1, "w1", bytes(32)),), is_done=True),),
            0,
            5 * SECOND,
            4 * SECOND,
            True,
            "it ran longer than its timeout of 4 s",
            Refused("setup", "no such host"),
            ("the seed was 7",),
        ),
        WorkflowEntry(
            "Shop",
            TaskState.RUNNING,
            (
                ShardEntry(0, 2, 3, (AttemptEntry(2, "w1"), AttemptEntry(3, "w2"))),
                ShardEntry(2, 1, 3, (), (70,), 2, False, True, 0),
            ),
        ),
    ),
    origin_ms=1_790_000_000_200,
    lost=(("Shop", Gap(2, "its lease is over", SECOND, 2 * SECOND, 1, 40)),),
    interrupted=True,
    aborted=Verdict("failed < 1%", 0.5, False, "50 %"),
    engine="python",
)


def test_registers_written_before_checkpoints_had_their_name_are_still_read() -> None:
    assert msgspec.msgpack.decode(encode_entry(ENTRY))["account"] == ENTRY.checkpoint


def test_an_entry_and_a_checkpoint_are_read_as_they_were_written() -> None:
    assert decode_entry(encode_entry(ENTRY)) == ENTRY
    assert decode_checkpoint(encode_checkpoint(CHECKPOINT)) == CHECKPOINT


def test_what_is_left_out_has_its_default_as_in_entries_of_an_older_version() -> None:
    order = msgspec.msgpack.decode(encode_order(ORDER))
    short = {"job": "b4k7", "order": order, "state": "queued", "number": 1}

    assert decode_entry(msgspec.msgpack.encode(short)) == JobEntry(
        job="b4k7", order=ORDER, state=JobState.QUEUED, number=1
    )
    checkpoint = msgspec.msgpack.encode({"attempts": 0, "workflows": [["Shop", "pending"]]})
    assert decode_checkpoint(checkpoint) == JobCheckpoint(0, (WorkflowEntry("Shop", TaskState.PENDING),))


def test_what_a_newer_version_wrote_in_addition_is_ignored() -> None:
    newer = msgspec.msgpack.encode({**msgspec.msgpack.decode(encode_entry(ENTRY)), "new": [1]})

    assert decode_entry(newer) == ENTRY


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(encode_order(ORDER), id="an order"),
        pytest.param(encode_entry(ENTRY).replace(b"once", b"\xc3\x28ce"), id="text that is not UTF-8"),
        pytest.param(b"\x81\xa1x" + b"\x91" * 100_000 + b"\xc0", id="deeper than any entry"),
        pytest.param(encode_entry(ENTRY).replace(b"\xa3vus\x04", b"\xa3vus\x00"), id="a plan of nothing"),
        pytest.param(encode_entry(ENTRY).replace(b"\xa7running", b"\xa7walking"), id="a state that no job has"),
    ],
)
def test_what_is_no_entry_is_untrusted(content: bytes) -> None:
    with pytest.raises(BadMessage, match="^the register holds a malformed entry of a job: "):
        decode_entry(content)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(encode_entry(ENTRY), id="an entry"),
        pytest.param(
            encode_checkpoint(CHECKPOINT).replace(b"\xa7running", b"\xa7walking"), id="a state that no task has"
        ),
        pytest.param(encode_checkpoint(CHECKPOINT).replace(b"Login", b"\xc3\x28gin"), id="text that is not UTF-8"),
    ],
)
def test_what_is_no_checkpoint_is_untrusted(content: bytes) -> None:
    with pytest.raises(BadMessage, match="^the checkpoint of a job cannot be read: "):
        decode_checkpoint(content)


shards = st.builds(
    ShardEntry,
    st.integers(0, 9),
    st.integers(1, 9),
    st.integers(1, 20),
    st.lists(st.builds(AttemptEntry, st.integers(0, 99), st.text(max_size=5), st.binary(max_size=32)), max_size=3).map(
        tuple
    ),
    st.lists(st.integers(0, 2**40), max_size=3).map(tuple),
    st.integers(0, 4),
    st.booleans(),
    st.booleans(),
    st.integers(-1, 5),
)
entries = st.builds(
    WorkflowEntry,
    st.text(max_size=5),
    st.sampled_from(list(TaskState)),
    st.lists(shards, max_size=3).map(tuple),
    st.integers(-1, 2**60),
    st.integers(-1, 2**60),
    st.integers(-1, 2**60),
    st.booleans(),
    st.none() | st.text(max_size=5),
    st.none() | st.builds(Refused, st.sampled_from(["file", "setup", "unreachable"]), st.text(max_size=5)),
    st.lists(st.text(max_size=5), max_size=2).map(tuple),
)


@given(
    checkpoint=st.builds(
        JobCheckpoint, st.integers(0, 2**40), st.lists(entries, max_size=3).map(tuple), st.integers(0, 2**50)
    )
)
@quick
def test_every_checkpoint_is_read_as_it_was_written(checkpoint: JobCheckpoint) -> None:
    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint


@given(which=st.integers(0, 1), data=st.data())
@quick
def test_what_was_spoilt_raises_nothing_but_what_is_said(which: int, data: st.DataObject) -> None:
    content = bytearray((encode_entry(ENTRY), encode_checkpoint(CHECKPOINT))[which])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3)) or b"\xc1"
    try:
        (decode_entry, decode_checkpoint)[which](bytes(content))
    except Untrusted:
        pass


def test_nothing_of_what_is_on_disk_minds_a_field_it_does_not_know() -> None:
    def longer(content: bytes) -> bytes:
        return msgspec.msgpack.encode({**msgspec.msgpack.decode(content), "new": ["new", {"of": [1, None]}]})

    assert decode_entry(longer(encode_entry(ENTRY))) == ENTRY
    assert decode_checkpoint(longer(encode_checkpoint(CHECKPOINT))) == CHECKPOINT
