"""What is inside calls, answers and views."""

from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Invalid
from talka.stats.tally import Tally
from talka.stats.windows import Window
from talka.wire.manager_calls import KEY_LIMIT, REASON_LIMIT, CancelJob, LeaderAnswer, LeaderCall, SubmitJob
from talka.wire.orders import BundleFacts, JobOrder, WorkflowOrder
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
from talka.work.load import Plan, Segment
from tests.wire import samples

quick = settings(deadline=None, derandomize=True, max_examples=100)
ORDER = JobOrder("shop", BundleFacts("0" * 64, 1, b"", "shop.py"), (), Settings(0))
FACTS = JobFacts("b4k7", "shop", JobState.QUEUED, position=2, workers=["w1"], exit_code=None)
ALL: list[msgspec.Struct] = [
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
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(content), type=type(content)) == content
    assert msgspec.json.decode(msgspec.json.encode(content), type=type(content)) == content, "the API speaks JSON"


def test_there_are_golden_bytes_of_every_call_and_answer_and_no_two_share_a_tag() -> None:
    assert [kind.__struct_config__.tag for kind in get_args(LeaderCall)] == list(range(1, 14))
    assert [kind.__struct_config__.tag for kind in get_args(LeaderAnswer)] == list(range(1, 9))
    assert [type(call) for call in samples.CALLS.values()] == list(get_args(LeaderCall))
    assert [type(answer) for answer in samples.ANSWERS.values()] == list(get_args(LeaderAnswer))


def test_an_order_that_may_be_put_aside_is_for_leaders_that_know_it() -> None:
    plan = Plan.of_vus((Segment(1, 1, 1),))
    late = WorkflowOrder("Late", plan, "auto", True, (), 1, (), (), "", (), on_timeout="pause")

    assert SubmitJob(ORDER).needs == 0
    assert SubmitJob(msgspec.structs.replace(ORDER, workflows=(late,))).needs == 1


def test_keys_and_reasons_have_a_limit() -> None:
    assert SubmitJob(ORDER, "k" * KEY_LIMIT) and CancelJob("j", "x" * REASON_LIMIT)
    with pytest.raises(Invalid, match="^an idempotency key has at most 200 characters, this one 201$"):
        SubmitJob(ORDER, "k" * (KEY_LIMIT + 1))
    with pytest.raises(Invalid, match="^a reason has at most 1000 characters, this one 1001$"):
        CancelJob("j", "x" * (REASON_LIMIT + 1))


def test_an_instant_is_told_to_the_millisecond_in_utc() -> None:
    assert instant_text(0) == "", "it has not happened"
    assert instant_text(1) == "1970-01-01T00:00:00.001Z"
    assert instant_text(1_790_000_000_007) == "2026-09-21T14:13:20.007Z"


def test_an_instant_outside_of_all_years_that_a_worker_told_is_the_nearest_there_is() -> None:
    assert instant_text(-(2**62)) == "0001-01-01T00:00:00.000Z"
    assert instant_text(2**62) == "9999-12-31T23:59:59.999Z"


@given(earlier=st.integers(1, 10**13), later=st.integers(1, 10**13))
@quick
def test_instants_sort_as_their_texts_do(earlier: int, later: int) -> None:
    assert (earlier < later) == (instant_text(earlier) < instant_text(later))
