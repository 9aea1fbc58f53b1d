"""Changes of a run of tasks mean single changes."""

from hypothesis import given
from hypothesis import strategies as st

from talka.work.dags.records import ClaimRange, ClaimTask, Complete, CompleteRange
from talka.work.lifecycle import TaskState

numbers = st.integers(0, 50)


@given(first=numbers, count=numbers, fence=st.integers(1, 1 << 40))
def test_a_claimed_run_has_a_fence_of_its_own_for_each_task(first: int, count: int, fence: int) -> None:
    claims = list(ClaimRange(1, first, count, 2, fence, "ada#1", 9).each())

    assert claims == [ClaimTask(1, first + n, 2, fence + n, "ada#1", 9) for n in range(count)]


@given(first=numbers, count=numbers, fence=st.integers(0, 1 << 40))
def test_a_completed_run_names_the_fence_of_each_task_or_none(first: int, count: int, fence: int) -> None:
    ends = list(CompleteRange(1, first, count, fence, TaskState.FAILED, 9, b"1", "it broke", "exit").each())

    assert [end.index for end in ends] == [*range(first, first + count)]
    assert [end.fence for end in ends] == [fence + n if fence else 0 for n in range(count)]
    assert all(
        end == Complete(1, end.index, end.fence, TaskState.FAILED, 9, b"1", "", "it broke", "exit") for end in ends
    )


def test_a_run_of_two_is_two_single_changes() -> None:
    end = (TaskState.COMPLETED, 9)

    assert [*ClaimRange(1, 5, 2, 3, 40, "ada#1", 9).each()] == [
        ClaimTask(1, 5, 3, 40, "ada#1", 9),
        ClaimTask(1, 6, 3, 41, "ada#1", 9),
    ]
    assert [*CompleteRange(1, 5, 2, 40, *end).each()] == [Complete(1, 5, 40, *end), Complete(1, 6, 41, *end)]
    assert [*CompleteRange(1, 5, 1, 0, *end).each()] == [Complete(1, 5, 0, *end)]
