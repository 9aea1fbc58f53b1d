"""What follows from one bad attempt, what a spec asks for, who waits for whom, and when something is due."""

from random import Random
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.dags.graph import Dependents, downstream
from talka.control.tasks.retries import REFUSALS_LIMIT, Terms, judged, policy_of
from talka.control.tasks.task import DagTask, Needs, packed, unpacked
from talka.control.tasks.timers import QUEUE, SPARE, TOTAL, WAKE, Timers
from talka.units import NEVER, SECOND
from talka.wire.tasks import Outcome, TaskResult
from talka.work.dags.dag import Bounds, DagSettings, Limit, Retry, TaskSpec, Timeouts
from talka.work.lifecycle import TaskState


def a_task(index: int = 0, after: tuple[int, ...] = (), *, state: TaskState = TaskState.ASSIGNED) -> DagTask:
    task = DagTask(cast(Any, SimpleNamespace()), index, f"t{index}", state, "h", 5, packed(after))
    task.attempts, task.fence, task.worker = 1, 7, "w#1"
    return task


def ended(outcome: Outcome, **fields: Any) -> TaskResult:
    return TaskResult(7, outcome, **fields)


def judge(task: DagTask, result: TaskResult, retry: Retry | None = None):
    policy = policy_of(TaskSpec(id="a", handler="h", retry=retry), DagSettings())
    return judged(task, policy, result, Random(1))


# A handler that raises.


def test_a_failure_is_tried_again_after_a_wait_that_grows_up_to_its_cap() -> None:
    retry = Retry(max=1000, backoff="1s", factor=2.0, cap="4s")
    task = a_task()
    policy = policy_of(TaskSpec(id="a", handler="h", retry=retry), DagSettings())
    rng = Random(3)
    waits = [judged(task, policy, ended("failed"), rng).wait_ns for _ in range(300)]
    assert all(wait <= min(4, 2**n) * SECOND for n, wait in enumerate(waits))
    assert waits[0] <= SECOND < max(waits[1:]) <= 4 * SECOND
    assert min(waits[3:]) < SECOND / 2, "the jitter is a full one"


def test_a_task_is_given_up_after_as_many_retries_as_it_has() -> None:
    task = a_task()
    states = [judge(task, ended("failed", error="E", cause="ValueError"), Retry(max=2)).state for _ in range(3)]
    assert states == [None, None, TaskState.DEAD]


def test_without_retries_the_first_failure_is_the_last() -> None:
    assert judge(a_task(), ended("timeout"), Retry(max=0)).state is TaskState.DEAD


def test_without_backoff_it_is_tried_again_at_once() -> None:
    assert judge(a_task(), ended("failed"), Retry(backoff=0)).wait_ns == 0
    assert judge(a_task(), ended("failed"), Retry(cap=0)).wait_ns == 0


def test_a_class_that_is_never_retried_ends_it_also_by_one_of_its_bases() -> None:
    retry = Retry(max=9, never=("LookupError",))
    assert judge(a_task(), ended("failed", classes=("KeyError", "LookupError")), retry).state is TaskState.DEAD
    assert judge(a_task(), ended("failed", classes=("ValueError",)), retry).state is None


def test_a_verdict_has_a_cause_and_a_sentence_also_when_the_result_has_none() -> None:
    told = {outcome: judge(a_task(), ended(outcome)) for outcome in ("failed", "timeout", "refused", "cancelled")}
    assert {outcome: (verdict.cause, verdict.error) for outcome, verdict in told.items()} == {
        "failed": ("failed", "the attempt failed"),
        "timeout": ("timeout", "the attempt took longer than allowed"),
        "refused": ("refused", "the attempt was refused"),
        "cancelled": ("cancelled", "the attempt was cancelled"),
    }
    assert judge(a_task(), ended("died", exit_code=3)).error == "its process died: exit code 3"
    assert judge(a_task(), ended("died", signal="SIGKILL")).error == "its process died: SIGKILL"


# A process that dies.


def test_a_death_among_others_is_not_counted() -> None:
    task = a_task()
    assert judge(task, ended("died", signal="SIGSEGV"), Retry(max=0)).state is None
    assert (task.deaths, task.failures) == (0, 0)


def test_a_task_that_was_to_run_alone_did_whatever_its_worker_says() -> None:
    task = a_task()
    task.alone = True
    assert judge(task, ended("died", signal="SIGSEGV")).state is None
    assert judge(task, ended("died", signal="SIGSEGV")).state is TaskState.DEAD


# A worker that cannot.


def test_a_task_is_not_given_up_because_workers_have_no_room_or_leave() -> None:
    task = a_task()
    verdicts = [judge(task, ended("refused", cause="draining"), Retry(max=0)) for _ in range(REFUSALS_LIMIT + 1)]
    assert {verdict.state for verdict in verdicts} == {None}
    assert task.refusals == 0


def test_a_refused_task_waits_a_little_and_is_given_up_after_ten_refusals() -> None:
    task = a_task()
    verdicts = [judge(task, ended("refused", error="no such file"), Retry(max=0)) for _ in range(REFUSALS_LIMIT + 1)]
    assert all(verdict.state is None and verdict.wait_ns <= 30 * SECOND for verdict in verdicts[:-1])
    assert verdicts[-1].state is TaskState.FAILED
    assert verdicts[-1].error == "refused 11 times: no such file"
    assert task.failures == 0


def test_what_a_worker_stopped_on_its_own_is_tried_again_and_costs_nothing() -> None:
    task = a_task()
    assert judge(task, ended("cancelled"), Retry(max=0)).state is None
    assert task.failures == 0


# What a spec asks for.


def test_a_task_has_its_own_rules_or_the_jobs() -> None:
    job = DagSettings(retry=Retry(max=7), timeouts=Timeouts(queue="1m", attempt=5, total="1h"))
    usual = policy_of(TaskSpec(id="a", handler="h"), job)
    own = policy_of(TaskSpec(id="a", handler="h", retry=Retry(max=1), timeouts=Timeouts(), delay="2s"), job)
    assert (usual.retries, usual.queue_ns, usual.attempt_ns) == (7, 60 * SECOND, 5 * SECOND)
    assert (usual.total_ns, usual.delay_ns) == (3600 * SECOND, 0)
    assert (own.retries, own.queue_ns, own.attempt_ns) == (1, 0, 300 * SECOND)
    assert (own.total_ns, own.delay_ns) == (0, 2 * SECOND)


def learnt(terms: Terms, spec: TaskSpec) -> DagTask:
    task = a_task()
    terms.learn(task, spec)
    return task


def test_tasks_that_ask_for_the_same_share_one_object() -> None:
    terms = Terms(DagSettings())
    plain = [learnt(terms, TaskSpec(id="a", handler="h")), learnt(terms, TaskSpec(id="b", handler="h"))]
    wants = {
        "capabilities": ("gpu",),
        "min_memory": "2GB",
        "limits": (Limit("db", 3),),
        "bounds": Bounds(files=9),
    }
    rich = [learnt(terms, TaskSpec(id=id, handler="h", delay=1, key=id, **wants)) for id in "cd"]
    assert plain[0].needs is plain[1].needs
    assert plain[0].policy is plain[1].policy is terms.usual
    assert rich[0].needs is rich[1].needs
    assert rich[0].policy is rich[1].policy is not terms.usual
    assert rich[0].needs == Needs("h", ("gpu",), 2_000_000_000, (Limit("db", 3),), alone=True)
    assert [task.key for task in rich] == ["c", "d"]


def test_a_task_that_is_to_run_alone_waits_in_another_queue() -> None:
    terms = Terms(DagSettings())
    first, second = learnt(terms, TaskSpec(id="a", handler="h")), learnt(terms, TaskSpec(id="b", handler="h"))
    terms.isolate(first)
    terms.isolate(second)
    terms.isolate(second)
    assert first.needs == Needs("h", alone=True)
    assert first.needs is second.needs
    assert first.alone


def test_a_task_whose_spec_is_not_known_yet_runs_alone_once_it_is() -> None:
    terms = Terms(DagSettings())
    task = a_task()
    terms.isolate(task)
    assert task.needs is None
    terms.learn(task, TaskSpec(id="a", handler="h"))
    assert task.needs == Needs("h", alone=True)


# Who waits for whom.


@st.composite
def graphs(draw: st.DrawFn) -> list[tuple[int, ...]]:
    count = draw(st.integers(1, 12))
    order = draw(st.permutations(range(count)))
    places = {index: place for place, index in enumerate(order)}
    return [
        tuple(other for other in range(count) if places[other] < places[index] and draw(st.booleans()))
        for index in range(count)
    ]


@given(graphs())
@settings(deadline=None, derandomize=True)
def test_dependents_are_the_dependencies_turned_round(graph: list[tuple[int, ...]]) -> None:
    tasks = [a_task(index, after) for index, after in enumerate(graph)]
    dependents = Dependents(tasks)
    for index in range(len(graph)):
        expected = [other for other, after in enumerate(graph) if index in after]
        assert list(dependents.of(index)) == expected
        assert tasks[index].depends_on == graph[index]


@given(graphs(), st.data())
@settings(deadline=None, derandomize=True)
def test_downstream_is_everything_that_can_be_reached(graph: list[tuple[int, ...]], data: st.DataObject) -> None:
    start = data.draw(st.lists(st.integers(0, len(graph) - 1)))
    reached = set(start)
    for _ in graph:
        reached |= {index for index, after in enumerate(graph) if reached & set(after)}
    dependents = Dependents([a_task(index, after) for index, after in enumerate(graph)])
    assert downstream(start, dependents.of) == sorted(reached)


@given(st.lists(st.integers(0, 2**32 - 1)).map(tuple))
@settings(deadline=None, derandomize=True)
def test_indexes_are_packed_and_unpacked(indexes: tuple[int, ...]) -> None:
    assert unpacked(packed(indexes)) == indexes
    assert len(packed(indexes)) == 4 * len(indexes)


# When something is due.


def waiting(index: int, ready_at: int) -> DagTask:
    task = a_task(index, state=TaskState.PENDING)
    task.ready_at = ready_at
    return task


def test_what_is_due_comes_in_order_and_once() -> None:
    tasks = [waiting(0, 30), waiting(1, 10), waiting(2, 20), waiting(3, 99)]
    timers = Timers(tasks)
    for task in tasks:
        timers.wake(task)
    assert timers.next_at == 10
    assert timers.due(9) == []
    assert timers.due(30) == [(WAKE, tasks[1]), (WAKE, tasks[2]), (WAKE, tasks[0])]
    assert timers.due(30) == []
    assert timers.next_at == 99
    timers.due(99)
    assert timers.next_at == NEVER


def test_an_entry_that_does_not_fit_its_task_any_more_counts_for_nothing() -> None:
    moved, later, waits, left, again, unknown = tasks = [waiting(index, 10) for index in range(6)]
    timers = Timers(tasks)
    for task in (moved, later, waits):
        timers.wake(task)
    for task in (left, again, unknown):
        Terms(DagSettings(timeouts=Timeouts(queue=1))).learn(task, TaskSpec(id="a", handler="h"))
        task.state, task.queued_at = TaskState.READY, 5
        timers.queue(task, SECOND)
    moved.state, later.ready_at, waits.waits_for = TaskState.READY, 11, 1
    left.state, again.queued_at, unknown.policy = TaskState.ASSIGNED, 6, None
    assert timers.due(2 * SECOND) == []


def test_a_ready_task_that_nobody_took_is_due() -> None:
    task = waiting(0, 0)
    Terms(DagSettings(timeouts=Timeouts(queue=1))).learn(task, TaskSpec(id="a", handler="h"))
    task.state, task.queued_at = TaskState.READY, 5
    timers = Timers([task])
    timers.queue(task, SECOND)
    assert timers.due(SECOND + 4) == []
    assert timers.due(SECOND + 5) == [(QUEUE, task)]


def test_tasks_whose_time_ends_together_have_one_entry() -> None:
    tasks = [waiting(index, 0) for index in range(3)]
    timers = Timers(tasks)
    for task, at in zip(tasks, (50, 50, 60), strict=True):
        timers.expire(task, at)
    assert timers.due(55) == [(TOTAL, tasks[0]), (TOTAL, tasks[1])]
    assert timers.due(60) == [(TOTAL, tasks[2])]


def test_entries_that_count_for_nothing_do_not_pile_up() -> None:
    task, other = tasks = [waiting(0, 0), waiting(1, 7)]
    timers = Timers(tasks)
    timers.wake(other)
    timers.expire(other, 10**9)
    for at in range(1, 10 * SPARE):
        task.ready_at = 10**6 + at
        timers.wake(task)
        assert len(timers._heap) <= SPARE + 2 * len(tasks)
    assert timers.due(10**9) == [(WAKE, other), (WAKE, task), (TOTAL, other)]
