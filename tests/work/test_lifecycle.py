"""Jobs and tasks move only as the tables say."""

import pytest

from talka.errors import Invalid
from talka.work.lifecycle import JOB_MOVES, TASK_MOVES, IllegalMove, JobState, TaskState, begin_again, is_final, move

TABLES = [(JobState, JOB_MOVES, JobState.SUBMITTED), (TaskState, TASK_MOVES, TaskState.PENDING)]
JOB_ENDS = {JobState.COMPLETED, JobState.PARTIAL, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT}
TASK_ENDS = {
    TaskState.COMPLETED,
    TaskState.FAILED,
    TaskState.CANCELLED,
    TaskState.TIMEOUT,
    TaskState.SKIPPED,
    TaskState.DEAD,
}


def reachable(moves, start):
    seen, open_states = set(), [start]
    while open_states:
        state = open_states.pop()
        if state not in seen:
            seen.add(state)
            open_states.extend(moves[state])
    return seen


@pytest.mark.parametrize(("states", "moves", "start"), TABLES)
def test_every_state_has_a_row_and_can_be_reached(states, moves, start) -> None:
    assert set(moves) == set(states)
    assert reachable(moves, start) == set(states)


@pytest.mark.parametrize(("states", "moves", "start"), TABLES)
def test_every_state_can_reach_a_final_one(states, moves, start) -> None:
    for state in states:
        assert any(is_final(end) for end in reachable(moves, state)), state


def test_final_states_are_those_without_moves() -> None:
    assert {state for state in JobState if is_final(state)} == JOB_ENDS
    assert {state for state in TaskState if is_final(state)} == TASK_ENDS
    assert not any(JOB_MOVES[state] for state in JOB_ENDS)
    assert not any(TASK_MOVES[state] for state in TASK_ENDS)


def test_no_state_moves_to_itself() -> None:
    assert not any(state in moves[state] for states, moves, _ in TABLES for state in states)


def test_values_are_the_names_in_lower_case() -> None:
    assert all(state.value == state.name.lower() for states, _, _ in TABLES for state in states)


def test_a_job_walks_from_submission_to_its_end() -> None:
    walk = [JobState.SUBMITTED, JobState.QUEUED, JobState.DISPATCHING, JobState.RUNNING, JobState.COMPLETING]
    state = walk[0]
    for following in walk[1:]:
        state = move(state, following)
    assert all(move(state, end) is end for end in JOB_ENDS)


def test_a_job_pauses_and_resumes_only_while_running() -> None:
    assert move(move(JobState.RUNNING, JobState.PAUSED), JobState.RUNNING) is JobState.RUNNING
    assert [state for state in JobState if JobState.PAUSED in JOB_MOVES[state]] == [JobState.RUNNING]


def test_every_job_that_has_not_ended_can_be_cancelled_or_fail() -> None:
    for state in set(JobState) - JOB_ENDS - {JobState.CANCELLING}:
        assert {JobState.CANCELLING, JobState.FAILED} <= JOB_MOVES[state], state


def test_a_job_being_cancelled_can_only_end() -> None:
    assert JOB_MOVES[JobState.CANCELLING] == JOB_ENDS


def test_a_task_walks_from_waiting_to_its_end() -> None:
    walk = [TaskState.PENDING, TaskState.READY, TaskState.ASSIGNED, TaskState.RUNNING]
    state = walk[0]
    for following in walk[1:]:
        state = move(state, following)
    assert all(move(state, end) is end for end in TASK_ENDS - {TaskState.SKIPPED})


def test_a_task_goes_back_when_its_worker_is_lost() -> None:
    assert move(TaskState.ASSIGNED, TaskState.READY) is TaskState.READY
    assert move(TaskState.RUNNING, TaskState.READY) is TaskState.READY


def test_only_a_task_that_was_not_given_out_is_skipped() -> None:
    waits = [TaskState.PENDING, TaskState.READY]
    assert [state for state in TaskState if TaskState.SKIPPED in TASK_MOVES[state]] == waits


def test_a_task_waits_again_before_another_try_and_while_its_job_is_paused() -> None:
    before = [TaskState.READY, TaskState.ASSIGNED, TaskState.RUNNING]
    assert [state for state in TaskState if TaskState.PENDING in TASK_MOVES[state]] == before


def test_a_task_that_has_not_ended_can_run_out_of_time_wherever_it_is() -> None:
    assert all(TaskState.TIMEOUT in TASK_MOVES[state] for state in set(TaskState) - TASK_ENDS)


def test_only_a_task_that_was_tried_is_given_up() -> None:
    tried = [TaskState.ASSIGNED, TaskState.RUNNING]
    assert [state for state in TaskState if TaskState.DEAD in TASK_MOVES[state]] == tried


def test_the_last_task_may_end_while_its_job_is_paused() -> None:
    assert move(move(JobState.PAUSED, JobState.COMPLETING), JobState.COMPLETED) is JobState.COMPLETED


def test_an_illegal_move_names_the_legal_ones() -> None:
    with pytest.raises(IllegalMove) as caught:
        move(JobState.QUEUED, JobState.RUNNING)
    assert str(caught.value) == (
        "A job that is queued cannot become running. It can become cancelling, dispatching, failed."
    )
    assert (caught.value.current, caught.value.to) == (JobState.QUEUED, JobState.RUNNING)
    assert isinstance(caught.value, Invalid)


def test_nothing_follows_a_final_state() -> None:
    with pytest.raises(IllegalMove) as caught:
        move(TaskState.DEAD, TaskState.READY)
    assert str(caught.value) == "A task that is dead cannot become ready. It has ended."


def test_tasks_do_not_borrow_the_moves_of_jobs() -> None:
    # Both tables know `running` and `completed`; the strings are equal.
    assert move(TaskState.RUNNING, TaskState.COMPLETED) is TaskState.COMPLETED
    with pytest.raises(IllegalMove):
        move(JobState.RUNNING, JobState.COMPLETED)


def test_what_has_ended_begins_again_and_nothing_else_does() -> None:
    for ends, states, begun in [(JOB_ENDS, JobState, JobState.RUNNING), (TASK_ENDS, TaskState, TaskState.PENDING)]:
        for state in states:
            if state in ends:
                assert begin_again(state) is begun
            else:
                with pytest.raises(IllegalMove):
                    begin_again(state)
