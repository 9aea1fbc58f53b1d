"""What is inside calls, answers and views."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Invalid
from talka.stats.tally import Tally
from talka.stats.windows import Window
from talka.wire.entries import JobOrder
from talka.wire.jobs import BundleFacts
from talka.wire.manager_calls import KEY_LIMIT, CancelCall, JobsCall, NameCall, SubmitCall, decode, encode
from talka.wire.shards import Settings
from talka.wire.views import (
    ClusterView,
    JobFacts,
    JobsPage,
    JobUpdate,
    LostPart,
    ManagerView,
    WorkerView,
    WorkflowUpdate,
    instant_text,
)
from talka.work.lifecycle import JobState, TaskState

quick = settings(deadline=None, derandomize=True, max_examples=100)
ORDER = JobOrder("shop", BundleFacts("0" * 64, 1, b"", "shop.py"), (), Settings(0))
FACTS = JobFacts("b4k7", "shop", JobState.QUEUED, position=2, workers=["w1"], exit_code=None)
ALL: list[msgspec.Struct] = [
    SubmitCall(ORDER, "once"),
    JobsCall("running", "c3", 20),
    NameCall("b4k7"),
    CancelCall("b4k7", "enough"),
    FACTS,
    JobsPage([FACTS], "c4"),
    WorkerView("w1", "draining", "it is told to", 8, 2, 16 << 30, 1, ["gpu"], "1.0", ["b4k7"], 4_000, "10.0.0.1"),
    ClusterView("prod", "m1", 7, [ManagerView("m1", "active", "10.0.0.1:7701", True, 3)], 5, 40, 8, 1),
    JobUpdate(
        FACTS,
        3,
        1_000,
        True,
        [
            WorkflowUpdate(
                "Shop", TaskState.RUNNING, 1_000, True, False, 4, 2, Tally(started=3), "it failed", ["a note"]
            )
        ],
        [Window(4, started=3)],
        [LostPart("Shop", 1, "was killed", 0, 5, 2, 7, True)],
        "python",
        True,
    ),
]


@pytest.mark.parametrize("content", ALL, ids=lambda content: type(content).__name__)
def test_what_is_asked_and_told_is_read_as_it_was_written(content: msgspec.Struct) -> None:
    assert decode(encode(content), type(content)) == content
    assert msgspec.json.decode(msgspec.json.encode(content), type=type(content)) == content, "the API speaks JSON"


def test_lists_are_read_as_they_were_written() -> None:
    workers: list[msgspec.Struct] = [WorkerView("w1", "healthy"), WorkerView("w2", "offline")]

    assert decode(encode(workers), list[WorkerView]) == workers


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(encode(NameCall("xx")).replace(b"xx", b"\xc3\x28"), id="text that is not UTF-8"),
        pytest.param(b"\x81\xa1x" + b"\x91" * 100_000 + b"\xc0", id="deeper than any question"),
        pytest.param(encode(JobsCall()), id="another question"),
    ],
)
def test_what_cannot_be_read_is_told_to_the_one_who_asked(content: bytes) -> None:
    with pytest.raises(Invalid, match="^what was asked cannot be read: "):
        decode(content, NameCall)


def test_keys_and_reasons_have_a_limit() -> None:
    assert decode(encode(SubmitCall(ORDER, "k" * KEY_LIMIT)), SubmitCall).key == "k" * KEY_LIMIT
    for call, kind in (
        (SubmitCall(ORDER, "k" * (KEY_LIMIT + 1)), SubmitCall),
        (CancelCall("j", "x" * 1001), CancelCall),
    ):
        with pytest.raises(Invalid):
            decode(encode(call), kind)


def test_an_instant_is_told_to_the_millisecond_in_utc() -> None:
    assert instant_text(0) == "", "it has not happened"
    assert instant_text(1) == "1970-01-01T00:00:00.001Z"
    assert instant_text(1_790_000_000_007) == "2026-09-21T14:13:20.007Z"


@given(earlier=st.integers(1, 10**13), later=st.integers(1, 10**13))
@quick
def test_instants_sort_as_their_texts_do(earlier: int, later: int) -> None:
    assert (earlier < later) == (instant_text(earlier) < instant_text(later))
