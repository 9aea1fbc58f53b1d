"""Whatever happens to its tasks, a dag job ends; and from its rows it can be built again at any moment and goes on."""

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.dags.flow import DagStep
from talka.control.dags.job import DagJob
from talka.control.tasks.task import DagTask, Needs, packed
from talka.errors import Invalid
from talka.units import MILLISECOND, SECOND
from talka.wire.tasks import Outcome, TaskResult
from talka.work.dags.dag import DagSettings, Retry, TaskSpec, Timeouts
from talka.work.dags.records import (
    TASK_STATES,
    Change,
    ClaimTask,
    Complete,
    JobRow,
    LiveTask,
    MoveJob,
    PutAttempt,
    PutEvent,
    Release,
    Reset,
    TaskRow,
)
from talka.work.lifecycle import JOB_MOVES, TASK_MOVES, JobState, TaskState, is_final

START = 50 * SECOND


def wall_ms(now: int) -> int:
    return 1_700_000_000_000 + now // MILLISECOND


class Rows:
    """A store as simple as can be: what a change does to a row, and to whom it does nothing."""

    def __init__(self, job: JobRow, tasks: list[TaskRow]) -> None:
        self.job = job
        self.tasks = list(tasks)

    def apply(self, changes: list[Change]) -> None:
        for change in changes:
            match change:
                case MoveJob():
                    begins = change.state is JobState.RUNNING and is_final(self.job.state)
                    started_ms = change.at_ms if begins else self.job.started_ms
                    self.job = msgspec.structs.replace(
                        self.job, state=change.state, reason=change.reason, started_ms=started_ms
                    )
                case PutAttempt() | PutEvent():
                    pass
                case _:
                    self.tasks[change.index] = self._changed(self.tasks[change.index], change)

    def _changed(self, row: TaskRow, change: Any) -> TaskRow:
        replace = msgspec.structs.replace
        if isinstance(change, Reset):
            blank = TaskRow(job=row.job, index=row.index, id=row.id, state=TaskState.PENDING, spec=row.spec)
            return replace(blank, depends_on=row.depends_on, spec=change.spec or row.spec)
        assert not is_final(row.state), "what has ended is changed"
        if isinstance(change, ClaimTask):
            assert change.fence > row.fence
            return replace(
                row, state=TaskState.ASSIGNED, fence=change.fence, worker=change.worker, attempts=change.attempt
            )
        assert change.fence in (0, row.fence)
        if isinstance(change, Complete):
            return replace(row, state=change.state, attempts=change.attempts, worker=change.worker)
        assert isinstance(change, Release)
        return replace(
            row,
            state=TaskState.PENDING,
            ready_ms=change.ready_ms,
            attempts=change.attempts,
            deaths=change.deaths,
            failures=change.failures,
        )

    def live(self) -> list[LiveTask]:
        return [
            LiveTask(
                row.index,
                TASK_STATES.index(row.state),
                row.id,
                packed(row.depends_on),
                row.attempts,
                row.fence,
                row.worker,
                row.ready_ms,
                row.deaths,
                "h",
                5,
                row.failures,
                row.started_ms,
                row.cause,
                row.error,
            )
            for row in self.tasks
        ]


class World:
    """A job, its store, its queue and its workers, in which anything happens. What must always hold is checked after
    every step."""

    def __init__(self, specs: list[TaskSpec], graph: list[tuple[int, ...]], rules: DagSettings, seed: int) -> None:
        self.rng = Random(seed)
        self.now = START
        self.specs = specs
        self.rules = rules
        row = JobRow(number=1, id="j", name="n", state=JobState.RUNNING, submitted_ms=wall_ms(START), settings=b"")
        self.job = DagJob(row, rules, Random(seed + 1), wall_ms)
        self.queue: dict[int, DagTask] = {}
        self.loading: list[DagTask] = []
        self.fence = 0
        self.unkept: list[tuple[list[Change], DagTask | None]] = []
        """What is on its way to the store, and the task to be told of when it is there."""
        self.rows = Rows(row, self.job.rows(self.job.add(self.now, specs, graph)))
        self.before = [task.state for task in self.job.tasks]
        self.take(self.job.start(self.now))

    # Doing.

    def take(self, step: DagStep) -> None:
        for task in step.unqueue:
            assert self.queue.pop(task.index) is task
        for task in step.ready:
            assert task.index not in self.queue
            self.queue[task.index] = task
        for task in step.recalls:
            assert task.worker
        self.unkept.append((list(step.changes), None))
        self.loading += step.load
        while self.loading:
            task = self.loading.pop()
            self.take(self.job.loaded(self.now, task, self.specs[task.index], b""))
        self.check()

    def keep(self, count: int | None = None) -> None:
        """The store has made the first so many batches durable."""
        kept, self.unkept = self.unkept[:count], self.unkept[len(self.unkept[:count]) :]
        for changes, task in kept:
            self.rows.apply(changes)
            if task is not None:
                self.take(self.job.completed(self.now, task))
        if self.job.is_over and not self.job.has_ended:
            self.unkept.append((self.job.end(self.now), None))

    def give(self) -> None:
        if self.queue:
            task = self.queue.pop(self.rng.choice(sorted(self.queue)))
            for index in task.depends_on:
                assert self.job.tasks[index].is_settled, "it runs before what it depends on has ended"
            self.fence += 1
            self.unkept.append((self.job.claimed(self.now, task, f"w{self.rng.randrange(3)}#1", self.fence), None))
            self.check()
            if self.rng.random() < 0.5:
                self.job.began(self.now, task)
                self.check()

    def finish(self, chance: float) -> None:
        running = self.job.given_out()
        if not running:
            return
        task = self.rng.choice(running)
        if self.rng.random() < chance:
            self.unkept.append((self.job.completing(self.now, task, b"1", "", 1000), task))
            self.check()
            return
        outcome: Outcome = self.rng.choice(("failed", "died", "timeout", "cancelled", "refused"))
        signal = self.rng.choice(("SIGSEGV", "SIGKILL", "SIGTERM", "")) if outcome == "died" else ""
        alone = outcome == "died" and self.rng.random() < 0.7
        result = TaskResult(task.fence, outcome, error="e", signal=signal, alone=alone)
        self.take(self.job.failed(self.now, task, result))

    def lose(self) -> None:
        for task in self.job.given_out():
            if task.worker == "w1#1":
                self.take(self.job.lost(self.now, task, "gone"))

    def pass_time(self) -> None:
        self.now += self.rng.choice((1, 1, 5, 40)) * SECOND
        self.catch_up()

    def catch_up(self) -> None:
        while self.job.next_tick_at <= self.now:
            self.take(self.job.tick(self.now))

    def ask(self) -> None:
        """What people do, sensible or not. What is refused changes nothing."""
        ids = [task.id for task in self.job.tasks if self.rng.random() < 0.2]
        ask = self.rng.choice(
            (
                self.job.pause,
                self.job.resume,
                self.job.resume,
                lambda now: self.job.skip(now, ids),
                lambda now: self.job.rerun(now, ids) if self.rng.random() < 0.3 else DagStep(),
                lambda now: self.job.cancel(now, "stop") if self.rng.random() < 0.1 else DagStep(),
            )
        )
        try:
            step = ask(self.now)
        except Invalid:
            self.check()
        else:
            again = any(isinstance(change, Reset) for change in step.changes)
            if again:
                self.before = [task.state for task in self.job.tasks]
            self.take(step)

    def restart(self) -> None:
        """What the store does not have is lost with the manager; a new one has its rows."""
        self.keep(self.rng.randrange(len(self.unkept) + 1))
        self.unkept = []
        self.queue = {}
        self.fence += 1000
        self.job = self.copy()
        self.before = [task.state for task in self.job.tasks]
        self.take(self.job.restored(self.now))

    def copy(self) -> DagJob:
        job = DagJob(self.rows.job, self.rules, Random(5), wall_ms)
        live = self.rows.live()
        job.restore(self.now, live[:2])
        job.restore(self.now, live[2:])
        return job

    # What always holds.

    def check(self) -> None:
        tasks = self.job.tasks
        counts: dict[str, int] = {}
        for task, before in zip(tasks, self.before, strict=True):
            state = task.state
            counts[state.value] = counts.get(state.value, 0) + 1
            assert state is before or state in TASK_MOVES[before], f"{before} became {state}"
            assert (state is TaskState.READY) == (task.index in self.queue)
            assert bool(task.worker) == (state in (TaskState.ASSIGNED, TaskState.RUNNING))
            if not is_final(state):
                assert task.waits_for == sum(not tasks[index].is_settled for index in task.depends_on)
        assert self.job.counts() == counts
        assert self.job.is_over == all(task.is_settled for task in tasks)
        self.before = [task.state for task in tasks]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    count = draw(st.integers(1, 9))
    order = draw(st.permutations(range(count)))
    places = {index: place for place, index in enumerate(order)}
    graph = [
        tuple(other for other in range(count) if places[other] < places[index] and draw(st.integers(0, 2)) == 0)
        for index in range(count)
    ]
    rules = DagSettings(
        on_failure=draw(st.sampled_from(["fail_fast", "continue", "skip_dependents"])),
        retry=Retry(max=draw(st.integers(0, 2)), backoff=2),
        timeouts=Timeouts(queue=draw(st.sampled_from([None, 30])), total=draw(st.sampled_from([None, 90]))),
        timeout=draw(st.sampled_from([None, None, 200])),
    )
    delays = draw(st.lists(st.sampled_from([0, 0, 3]), min_size=count, max_size=count))
    specs = [TaskSpec(id=f"t{index}", handler="h", delay=delay) for index, delay in enumerate(delays)]
    return World(specs, graph, rules, draw(st.integers(0, 2**32)))


def live_through(world: World, steps: int, *, restarts: bool) -> None:
    chances = {"give": 6, "finish": 6, "keep": 4, "pass_time": 1, "lose": 1, "ask": 1, "restart": 1 if restarts else 0}
    for name in world.rng.choices(list(chances), list(chances.values()), k=steps):
        if name == "finish":
            world.finish(0.6)
        elif name == "keep":
            world.keep(world.rng.randrange(1, 4))
        else:
            getattr(world, name)()


def bring_to_an_end(world: World) -> None:
    """From now on everything completes."""
    for _ in range(2000):
        world.keep()
        if world.job.has_ended:
            world.keep()
            return
        if world.job.state is JobState.PAUSED:
            world.take(world.job.resume(world.now))
        world.give()
        world.finish(1.0)
        if not world.queue and not world.job.given_out():
            world.pass_time()
    raise AssertionError(f"the job does not end: {world.job.counts()}")


@given(worlds())
@settings(deadline=None, derandomize=True, max_examples=80)
def test_every_task_ends_and_none_runs_before_what_it_depends_on(world: World) -> None:
    live_through(world, 60, restarts=True)
    bring_to_an_end(world)
    states = [task.state for task in world.job.tasks]
    assert all(is_final(state) for state in states)
    assert [row.state for row in world.rows.tasks] == states
    assert world.rows.job.state is world.job.state
    done, failed = states.count(TaskState.COMPLETED), [state for state in states if state in FAILED]
    match world.job.state:
        case JobState.COMPLETED:
            assert done == len(states)
        case JobState.PARTIAL:
            assert 0 < done < len(states)
        case JobState.FAILED:
            assert failed if world.rules.on_failure == "fail_fast" and done else done < len(states)
        case JobState.CANCELLED | JobState.TIMEOUT:
            assert TaskState.CANCELLED in states
        case _:
            raise AssertionError(world.job.state)


FAILED = (TaskState.DEAD, TaskState.FAILED, TaskState.TIMEOUT)


@given(worlds(), st.integers(0, 60))
@settings(deadline=None, derandomize=True, max_examples=80)
def test_built_again_from_its_rows_it_is_the_same(world: World, steps: int) -> None:
    live_through(world, steps, restarts=False)
    world.keep()
    world.keep()
    world.catch_up()
    world.keep()
    old, new = world.job, world.copy()
    ready: list[int] = []
    steps_taken = [new.restored(world.now)]
    while steps_taken:
        step = steps_taken.pop()
        ready += [task.index for task in step.ready]
        steps_taken += [new.loaded(world.now, task, world.specs[task.index], b"") for task in step.load]
    assert (new.state, new.is_over, new.has_ended) == (old.state, old.is_over, old.has_ended)
    for one, other in zip(old.tasks, new.tasks, strict=True):
        if is_final(one.state):
            assert other.state is one.state
            continue
        facts = [
            (task.attempts, task.failures, task.deaths, task.worker, task.waits_for, task.depends_on)
            for task in (one, other)
        ]
        assert facts[0] == facts[1]
        assert abs(max(one.ready_at, world.now) - max(other.ready_at, world.now)) <= MILLISECOND
        if one.worker:
            assert (other.state, other.fence) == (TaskState.ASSIGNED, one.fence)
        elif not world.now < one.ready_at <= world.now + MILLISECOND:
            assert other.state is one.state
    assert sorted(ready) == [task.index for task in new.tasks if task.state is TaskState.READY]


def test_every_move_of_a_dag_job_is_in_the_table() -> None:
    for state in (JobState.RUNNING, JobState.PAUSED):
        assert {JobState.COMPLETING, JobState.CANCELLING} <= JOB_MOVES[state]


# Named cases.


def restored(
    states: list[TaskState], *, job: JobState = JobState.RUNNING, rules: DagSettings | None = None, **row: Any
):
    first = JobRow(number=1, id="j", name="n", state=job, submitted_ms=wall_ms(START), settings=b"", **row)
    dag = DagJob(first, rules or DagSettings(), Random(1), wall_ms)
    live = [
        LiveTask(index, TASK_STATES.index(state), f"t{index}", b"", 1, 9, "w#1", 0, 0, "h", 5)
        for index, state in enumerate(states)
    ]
    dag.restore(START, live)
    return dag, dag.restored(START)


def test_a_ready_task_goes_into_the_queues_once_its_spec_was_read_and_only_once() -> None:
    dag, step = restored([TaskState.PENDING, TaskState.READY, TaskState.ASSIGNED])
    assert [task.index for task in step.load] == [2, 0, 1]
    assert step.ready == []
    assert dag.tasks[0].needs is None
    spec = TaskSpec(id="t0", handler="h")
    assert dag.loaded(START, dag.tasks[0], spec, b"7").ready == [dag.tasks[0]]
    assert dag.tasks[0].checkpoint == b"7"
    assert dag.loaded(START, dag.tasks[0], spec, b"7").ready == []
    assert dag.loaded(START, dag.tasks[2], spec, b"").ready == []


def test_a_task_that_is_not_in_the_queues_yet_does_not_leave_them() -> None:
    for change in (
        lambda dag: dag.pause(START),
        lambda dag: dag.cancel(START, ""),
        lambda dag: dag.skip(START, ["t0"]),
        lambda dag: dag.rerun(START, ["t0"]),
    ):
        dag, _ = restored([TaskState.PENDING])
        assert change(dag).unqueue == []


def test_a_spec_that_is_read_while_the_job_is_paused_waits_until_it_goes_on() -> None:
    dag, _ = restored([TaskState.PENDING])
    dag.pause(START)
    assert dag.loaded(START, dag.tasks[0], TaskSpec(id="t0", handler="h"), b"").ready == []
    assert dag.resume(START).ready == [dag.tasks[0]]


def test_a_spec_that_is_read_after_the_end_of_its_task_changes_nothing() -> None:
    dag, _ = restored([TaskState.COMPLETED, TaskState.PENDING])
    assert dag.loaded(START, dag.tasks[0], TaskSpec(id="t0", handler="h"), b"") == DagStep()


def test_a_result_that_is_here_before_the_spec_is_judged_by_the_rules_of_the_job() -> None:
    dag, _ = restored([TaskState.ASSIGNED], rules=DagSettings(retry=Retry(max=0)))
    dag.failed(START, dag.tasks[0], TaskResult(9, "failed"))
    assert dag.tasks[0].state is TaskState.DEAD


def test_a_task_that_killed_its_process_before_runs_alone_also_afterwards() -> None:
    dag = DagJob(
        JobRow(number=1, id="j", name="n", state=JobState.RUNNING, submitted_ms=0, settings=b""),
        DagSettings(),
        Random(1),
        wall_ms,
    )
    dag.restore(START, [LiveTask(0, 0, "t0", b"", 1, 9, "w#1", 0, 1, "h", 5)])
    (task,) = dag.restored(START).load
    dag.loaded(START, task, TaskSpec(id="t0", handler="h"), b"")
    assert task.needs == Needs("h", alone=True)


@pytest.mark.parametrize("state", [JobState.CANCELLING, JobState.COMPLETING])
def test_a_job_that_was_being_stopped_goes_on_stopping(state: JobState) -> None:
    dag, step = restored([TaskState.PENDING, TaskState.ASSIGNED], job=state, reason="why")
    assert step.recalls == [dag.tasks[1]]
    assert dag.tasks[0].state is TaskState.CANCELLED
    dag.lost(START, dag.tasks[1], "gone")
    dag.end(START)
    ends = {JobState.CANCELLING: JobState.CANCELLED, JobState.COMPLETING: JobState.TIMEOUT}
    assert (dag.state, dag.reason) == (ends[state], "why")


def test_the_failed_task_is_named_also_when_its_error_is_not_in_memory() -> None:
    dag, _ = restored([TaskState.DEAD, TaskState.COMPLETED, TaskState.DEAD], rules=DagSettings(on_failure="continue"))
    dag.end(START)
    assert (dag.state, dag.reason) == (JobState.PARTIAL, "2 of 3 tasks did not complete. Task t0 failed.")


def test_the_attempts_of_a_task_that_was_given_up_before_a_restart_are_told_as_then() -> None:
    rules = DagSettings(on_failure="continue", retry=Retry(max=1, backoff=0.0))
    row = JobRow(number=1, id="j", name="n", state=JobState.RUNNING, submitted_ms=wall_ms(START), settings=b"")
    dag = DagJob(row, rules, Random(1), wall_ms)
    dead, done = TASK_STATES.index(TaskState.DEAD), TASK_STATES.index(TaskState.COMPLETED)
    # The row of one that failed twice of three times: the last end is in its state alone.
    told = LiveTask(0, dead, "t0", b"", 3, 9, "", 0, 0, "h", 5, failures=1, cause="E", error="E: no")
    dag.restore(START, [told, LiveTask(1, done, "t1", b"", 1, 8, "", 0, 0, "h", 5)])
    dag.restored(START)
    dag.end(START)
    assert dag.reason == ("1 of 2 tasks did not complete. Task t0 failed after 2 attempts that count (3 in all): E: no")


def test_a_job_that_has_ended_is_read_to_be_run_again() -> None:
    dag, step = restored([TaskState.COMPLETED, TaskState.DEAD], job=JobState.PARTIAL)
    assert step == DagStep()
    assert dag.has_ended
    again = dag.rerun(START, [])
    assert again.load == [dag.tasks[1]]
    assert dag.state is JobState.RUNNING


def test_the_time_of_a_job_goes_on_where_it_was() -> None:
    rules = DagSettings(timeout=30)
    dag, _ = restored([TaskState.PENDING], rules=rules, started_ms=wall_ms(START - 10 * SECOND))
    assert dag.next_tick_at == START + 20 * SECOND


@pytest.mark.parametrize(
    ("spec", "wait_s", "longest_s"),
    [
        pytest.param(TaskSpec(id="t0", handler="h"), 30 * 86_400, 60, id="no task waits a month to be tried again"),
        pytest.param(TaskSpec(id="t0", handler="h", delay="2h"), 7000, 7000, id="this one was told to wait so long"),
        pytest.param(TaskSpec(id="t0", handler="h", retry=Retry(max=1, cap=600.0)), 900, 600, id="a cap of its own"),
        pytest.param(TaskSpec(id="t0", handler="h", retry=Retry(max=1, backoff=0.0)), 900, 60, id="no backoff"),
    ],
)
def test_a_wait_that_a_wrong_clock_put_down_is_no_longer_than_the_task_may_wait(
    spec: TaskSpec, wait_s: int, longest_s: int
) -> None:
    row = JobRow(number=1, id="j", name="n", state=JobState.RUNNING, submitted_ms=wall_ms(START), settings=b"")
    dag = DagJob(row, DagSettings(), Random(1), wall_ms)
    ready_ms = wall_ms(START) + wait_s * 1000
    dag.restore(START, [LiveTask(0, 0, "t0", b"", 1, 9, "", ready_ms, 0, "h", 5)])
    step = dag.restored(START)
    assert step.load == [dag.tasks[0]], "its spec tells"
    assert dag.loaded(START, dag.tasks[0], spec, b"").ready == []
    assert dag.next_tick_at == START + longest_s * 1_000_000_000
    assert dag.tick(dag.next_tick_at).ready == [dag.tasks[0]]


def test_a_short_wait_is_believed() -> None:
    row = JobRow(number=1, id="j", name="n", state=JobState.RUNNING, submitted_ms=wall_ms(START), settings=b"")
    dag = DagJob(row, DagSettings(), Random(1), wall_ms)
    dag.restore(START, [LiveTask(0, 0, "t0", b"", 1, 9, "", wall_ms(START) + 60_000, 0, "h", 5)])
    assert dag.restored(START).load == []


def test_a_page_that_is_missing_is_told() -> None:
    dag = DagJob(
        JobRow(number=1, id="j", name="n", state=JobState.RUNNING, submitted_ms=0, settings=b"", tasks=5),
        DagSettings(),
        Random(1),
        wall_ms,
    )
    dag.restore(START, [])
    dag.restore(START, [LiveTask(4, 0, "t4", b"", 0, 0, "", 0, 0, "h", 5)])
    with pytest.raises(Invalid, match="tasks of job j are missing"):
        dag.restored(START)
