"""After how many attempts a task is given up: the table of endings, and what a number in a job says instead."""

from random import Random
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest

from talka.control.tasks.retries import RetryVerdict, judged, policy_of
from talka.control.tasks.task import DagTask
from talka.units import SECOND
from talka.wire.tasks import TaskResult
from talka.work.dags.dag import DagSettings, Retry, TaskSpec
from talka.work.dags.endings import (
    BY_SIGNAL,
    ENDINGS,
    EXITED,
    FAILED,
    FAULT,
    KILLED,
    OTHER_SIGNAL,
    TOLD_TO_STOP,
    TOO_LARGE,
    ending_of,
)
from talka.work.lifecycle import TaskState

CELLS: list[tuple[dict[str, Any], int]] = [
    ({"signal": "SIGSEGV"}, 2),
    ({"signal": "SIGILL"}, 2),
    ({"signal": "SIGBUS"}, 2),
    ({"signal": "SIGFPE"}, 2),
    ({"signal": "SIGKILL"}, 3),
    ({"signal": "SIGKILL", "cause": "oom"}, 3),
    ({"signal": "SIGABRT"}, 3),
    ({"signal": "SIGUSR1"}, 3),
    ({"signal": "signal 34"}, 3),
    ({"exit_code": 1, "cause": "exit"}, 3),
    ({"exit_code": 7, "cause": "exit"}, 3),
]
"""How a process ended, and how many such ends are too many."""
Whose = Literal["function", "command"]
WHOSE: tuple[Whose, ...] = ("function", "command")


def a_task() -> DagTask:
    task = DagTask(cast(Any, SimpleNamespace()), 0, "t0", TaskState.ASSIGNED, "h", 5, b"")
    task.attempts, task.fence, task.worker = 1, 7, "w#1"
    return task


def judge(task: DagTask, result: TaskResult, retry: Retry | None = None) -> RetryVerdict:
    policy = policy_of(TaskSpec(id="a", handler="h", retry=retry), DagSettings())
    return judged(task, policy, result, Random(1))


def end_of(whose: Whose, **fields: Any) -> TaskResult:
    """A function dies with its core; a command ends, and its core tells how."""
    return TaskResult(7, "died", alone=True, **fields) if whose == "function" else TaskResult(7, "failed", **fields)


def attempts_of(task: DagTask, result: TaskResult, retry: Retry | None = None) -> int:
    for number in range(1, 50):
        verdict = judge(task, result, retry)
        if verdict.state is not None:
            assert verdict.state is TaskState.DEAD
            return number
    raise AssertionError("it was never given up")


@pytest.mark.parametrize("whose", WHOSE)
@pytest.mark.parametrize(("fields", "tries"), CELLS, ids=[str(fields) for fields, _ in CELLS])
def test_functions_and_commands_are_given_up_by_one_table(fields: dict[str, Any], tries: int, whose: Whose) -> None:
    assert attempts_of(a_task(), end_of(whose, **fields)) == tries


@pytest.mark.parametrize("whose", WHOSE)
@pytest.mark.parametrize("most", [0, 1, 5])
@pytest.mark.parametrize(("fields", "tries"), CELLS, ids=[str(fields) for fields, _ in CELLS])
def test_a_number_of_retries_that_somebody_wrote_counts_for_every_way_to_end(
    fields: dict[str, Any], tries: int, most: int, whose: Whose
) -> None:
    assert attempts_of(a_task(), end_of(whose, **fields), Retry(max=most)) == most + 1


@pytest.mark.parametrize("whose", WHOSE)
@pytest.mark.parametrize("retry", [None, Retry(max=0)], ids=["nothing said", "max: 0"])
@pytest.mark.parametrize("signal", ["SIGTERM", "SIGINT"])
def test_a_process_that_somebody_told_to_stop_is_never_held_against_its_task(
    signal: str, retry: Retry | None, whose: Whose
) -> None:
    task = a_task()
    for attempt in range(1, 40):
        task.attempts = attempt
        verdict = judge(task, end_of(whose, signal=signal), retry)
        assert verdict.state is None
        assert verdict.wait_ns <= 60 * SECOND
    assert (task.deaths, task.failures) == (0, 0)


@pytest.mark.parametrize("outcome", ["failed", "timeout"])
def test_an_attempt_that_raised_or_took_too_long_has_three_retries(outcome: Literal["failed", "timeout"]) -> None:
    assert attempts_of(a_task(), TaskResult(7, outcome, cause="ValueError", classes=("ValueError",))) == 4


def test_an_output_that_is_too_large_is_given_up_at_once_unless_somebody_wrote_how_often() -> None:
    large = TaskResult(7, "failed", error="its output of 900,000 bytes is over the limit", cause="output")
    assert attempts_of(a_task(), large) == 1
    assert attempts_of(a_task(), large, Retry(max=2)) == 3
    # One that is no JSON has the class of what the encoder raised.
    assert attempts_of(a_task(), TaskResult(7, "failed", cause="output", classes=("TypeError",))) == 4


@pytest.mark.parametrize("whose", WHOSE)
def test_a_function_that_calls_exit_is_given_up_as_a_command_that_exits(whose: Whose) -> None:
    called = TaskResult(7, "failed", cause="SystemExit", classes=("SystemExit",))
    exited = TaskResult(7, "failed", cause="exit", exit_code=7)
    assert attempts_of(a_task(), called if whose == "function" else exited) == 3


def test_a_core_that_exits_with_0_and_leaves_no_result_has_not_completed_its_task() -> None:
    assert attempts_of(a_task(), end_of("function", exit_code=0, cause="exit")) == 3


def test_every_end_that_counts_adds_to_one_number() -> None:
    task = a_task()
    first = judge(task, TaskResult(7, "failed", cause="ValueError"))
    second = judge(task, end_of("function", signal="SIGKILL"))
    third = judge(task, end_of("function", signal="SIGKILL"))
    assert [first.state, second.state, third.state] == [None, None, TaskState.DEAD]
    assert (task.failures, task.deaths) == (1, 2)
    assert third.error == "its process died: SIGKILL (2 processes died with nothing else in them)"


def test_a_process_that_died_and_was_the_only_one_is_told_as_one() -> None:
    only = judge(a_task(), end_of("function", signal="SIGKILL"), Retry(max=0))
    assert only.error == "its process died: SIGKILL (1 process died with nothing else in it)"


def test_a_fault_after_another_failure_is_the_second_one() -> None:
    task = a_task()
    assert judge(task, TaskResult(7, "failed", cause="ValueError")).state is None
    assert judge(task, end_of("command", signal="SIGSEGV")).state is TaskState.DEAD


def test_settings_of_the_job_hold_for_tasks_that_say_nothing() -> None:
    job = DagSettings(retry=Retry(max=1))
    usual = policy_of(TaskSpec(id="a", handler="h"), job)
    own = policy_of(TaskSpec(id="a", handler="h", retry=Retry(backoff=0.0)), job)
    assert (usual.retries, own.retries) == (1, None)


def test_what_died_runs_again_at_once_and_after_another_failure_waits_as_what_failed_does() -> None:
    retry = Retry(max=9, backoff="4s")
    died, failed = end_of("function", signal="SIGSEGV"), end_of("command", signal="SIGSEGV")
    task = a_task()
    waits = [judge(task, died, retry).wait_ns for _ in range(2)]
    assert waits[0] == 0 < waits[1] <= 8 * SECOND
    task = a_task()
    waits = [judge(task, end, retry).wait_ns for end in (failed, died)]
    assert 0 < waits[0] <= 4 * SECOND and 0 < waits[1] <= 8 * SECOND
    assert judge(a_task(), failed, Retry(backoff=0.0)).wait_ns == 0


def test_every_way_to_end_is_in_one_row() -> None:
    signals = [signal for ending in ENDINGS for signal in ending.signals]
    assert len(signals) == len(set(signals)) == len(BY_SIGNAL)
    found = {
        ending_of(has_died=has_died, signal=signal, exit_code=exit_code, is_too_large=is_too_large)
        for has_died in (False, True)
        for signal in ("", "SIGSEGV", "SIGKILL", "SIGTERM", "SIGHUP")
        for exit_code in (0, 1)
        for is_too_large in (False, True)
    }
    assert found == set(ENDINGS) == {FAULT, KILLED, OTHER_SIGNAL, EXITED, TOLD_TO_STOP, FAILED, TOO_LARGE}
