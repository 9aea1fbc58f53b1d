"""Which ready task goes to which worker."""

from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.dags.job import DagJob
from talka.control.tasks.dispatch import Dispatcher
from talka.control.tasks.quarantine import LASTS_NS
from talka.control.tasks.task import DagTask, Needs, packed
from talka.control.tasks.worker_room import CoresForTasks, DispatchLimits, DispatchWorker
from talka.units import MILLISECOND, MINUTE, NEVER, SECOND
from talka.wire.jobs import WorkerFacts
from talka.wire.task_views import LimitView, QueueView, Reason
from talka.work.dags.dag import DagSettings, Limit
from talka.work.dags.records import JobRow
from talka.work.lifecycle import JobState, TaskState

quick = settings(deadline=None, derandomize=True, max_examples=40)
SAME = Needs("resize")
ALONE = Needs("resize", alone=True)
ONE_AT_A_TIME = Needs("resize", limits=(Limit("db", 1),))
TEN_A_SECOND = Needs("resize", limits=(Limit("api", rate="10/s"),))


def new_job(number: int = 1) -> DagJob:
    row = JobRow(number=number, id=f"job-{number}", name="n", state=JobState.RUNNING, submitted_ms=0, settings=b"{}")
    return DagJob(row, DagSettings(), Random(1), lambda now: now // MILLISECOND)


def tasks_of(
    job: DagJob, count: int, *, at: int = 0, priority: int = 5, needs: Needs = SAME, first: int = 0
) -> list[DagTask]:
    made = []
    for index in range(first, first + count):
        task = DagTask(job, index, f"{job.row.number}.{index}", TaskState.READY, needs.handler, priority, b"")
        task.needs = needs
        task.queued_at = at
        made.append(task)
    return made


def worker(name: str = "w1", cores: int = 1, handlers: tuple[str, ...] = ("resize",)) -> DispatchWorker:
    """Its handlers are plain functions."""
    return DispatchWorker(name=name, cores=cores, handlers=handlers, plain=handlers)


def number_of(given: tuple[DagTask, str]) -> int:
    return given[0].job.row.number


def with_workers(*workers: DispatchWorker, length_ns: int | None = None, **bounds: int) -> Dispatcher:
    """A dispatcher that knows these, and that tasks of resize take so long."""
    made = Dispatcher(Random(1), DispatchLimits(**bounds))
    for one in workers:
        made.workers.set_worker(0, one)
    if length_ns is not None:
        learn(made, length_ns)
    return made


def learn(dispatcher: Dispatcher, length_ns: int) -> None:
    """One task of resize ran so long somewhere."""
    task = tasks_of(new_job(99), 1)[0]
    task.worker = "elsewhere#1"
    dispatcher.restore(0, task)
    dispatcher.ended(0, task, length_ns)


def ids(given: Iterable[tuple[DagTask, str]]) -> list[str]:
    return [task.id for task, _ in given]


def why(dispatcher: Dispatcher, needs: Needs = SAME, now: int = 0) -> list[tuple[str, str]]:
    return [
        (reason.worker, reason.constraint) for reason in dispatcher.why(tasks_of(new_job(7), 1, needs=needs)[0], now)
    ]


def text(dispatcher: Dispatcher, needs: Needs = SAME, now: int = 0) -> str:
    """Of the only reason."""
    (reason,) = dispatcher.why(tasks_of(new_job(7), 1, needs=needs)[0], now)
    return reason.text


# Room


def test_a_worker_gets_what_keeps_it_busy_for_a_moment_and_more_as_tasks_end() -> None:
    dispatcher = with_workers(worker(cores=2), length_ns=5 * MILLISECOND)
    dispatcher.put(0, tasks_of(new_job(), 20))
    given = dispatcher.assign(0)
    assert ids(given) == [f"1.{index}" for index in range(8)]
    assert {name for _, name in given} == {"w1"}
    assert dispatcher.workers.running("w1") == 8 and dispatcher.assign(0) == []
    dispatcher.ended(1, given[0][0], 5 * MILLISECOND)
    assert ids(dispatcher.assign(1)) == ["1.8"]


@pytest.mark.parametrize(
    ("length_ns", "per_core"),
    [(0, 1024), (10_000, 1024), (MILLISECOND, 20), (7 * MILLISECOND, 3), (SECOND, 2), (None, 8)],
)
def test_short_tasks_are_given_in_hundreds_and_long_ones_in_pairs(length_ns: int | None, per_core: int) -> None:
    dispatcher = with_workers(worker(cores=3), length_ns=length_ns)
    dispatcher.put(0, tasks_of(new_job(), 4000))
    assert len(dispatcher.assign(0)) == 3 * per_core


# A task that is ready alone


def test_a_task_that_is_ready_alone_goes_to_the_least_loaded_worker_that_can_run_it() -> None:
    dispatcher = with_workers(worker("w1"), worker("w2"), worker("w3", handlers=("zip",)), length_ns=5 * MILLISECOND)
    names = []
    for index in range(6):
        dispatcher.put(0, tasks_of(new_job(index), 1))
        assert dispatcher.ready == 1 and dispatcher.has_ready()
        names += [name for _, name in dispatcher.assign(0)]
        assert dispatcher.ready == 0 and not dispatcher.has_ready()
    assert Counter(names) == {"w1": 3, "w2": 3}


def test_a_task_that_is_ready_alone_waits_for_room_and_is_shown_meanwhile() -> None:
    dispatcher = with_workers(worker(), length_ns=SECOND)
    dispatcher.put(0, tasks_of(new_job(1), 2))
    (first, _), _ = dispatcher.assign(0)
    lone = tasks_of(new_job(2), 1)
    dispatcher.put(0, lone)
    assert dispatcher.assign(0) == [] and dispatcher.ready == 1
    assert dispatcher.queues(0).queues[0].waiting == 1 and dispatcher.position(lone[0].job) == 0
    dispatcher.ended(1, first, SECOND)
    assert ids(dispatcher.assign(1)) == ["2.0"]


def test_of_tasks_that_come_one_by_one_the_better_one_is_first() -> None:
    dispatcher = with_workers(worker(), length_ns=SECOND)
    dispatcher.put(0, tasks_of(new_job(1), 1))
    ((running, _),) = dispatcher.assign(0)
    dispatcher.put(0, tasks_of(new_job(1), 1, first=1, needs=ALONE))
    dispatcher.put(0, tasks_of(new_job(2), 1, priority=1))
    dispatcher.put(0, tasks_of(new_job(3), 1, priority=9))
    assert dispatcher.ready == 3
    dispatcher.ended(0, running, SECOND)
    assert ids(dispatcher.assign(0))[0] == "3.0"


@pytest.mark.parametrize("how", ["removed", "of a partition that was lost"])
def test_a_task_that_is_ready_alone_can_be_taken_back(how: str) -> None:
    dispatcher = with_workers(worker())
    lone = tasks_of(new_job(), 1)
    dispatcher.put(0, lone)
    dispatcher.put(0, lone)  # a second time is none
    if how == "removed":
        dispatcher.remove(lone)
    else:
        dispatcher.drop(0, 0, lone)
    dispatcher.workers.set_worker(0, worker())
    assert dispatcher.assign(0) == [] and dispatcher.ready == 0


def test_jobs_of_one_task_go_in_the_order_in_which_they_came_and_no_more_than_are_asked_for() -> None:
    dispatcher = with_workers(worker("w1"), worker("w2"), length_ns=SECOND)
    for number in range(6):
        dispatcher.put(number, tasks_of(new_job(number), 1, at=number))
    assert ids(dispatcher.assign(6, 3)) == ["0.0", "1.0", "2.0"]
    assert dispatcher.next_tick_at == 6 and dispatcher.ready == 3
    given = dispatcher.assign(6, 3)
    assert ids(given) == ["3.0"], "two workers have room for two each"
    assert dispatcher.next_tick_at == NEVER and dispatcher.ready == 2
    dispatcher.put(7, tasks_of(new_job(9), 2, at=7))
    dispatcher.ended(8, given[0][0], SECOND)
    assert ids(dispatcher.assign(8)) == ["4.0"], "a job that comes later comes after those that wait in line"


def test_one_that_other_workers_can_run_waits_for_nobody_who_came_before() -> None:
    dispatcher = with_workers(worker("w1"), worker("w2", handlers=("zip",)), length_ns=SECOND)
    dispatcher.put(0, tasks_of(new_job(0), 2))
    assert len(dispatcher.assign(0)) == 2
    dispatcher.put(0, tasks_of(new_job(1), 1))
    dispatcher.put(0, tasks_of(new_job(2), 1, needs=Needs("zip")))
    assert [(task.id, name) for task, name in dispatcher.assign(0)] == [("2.0", "w2")]


@pytest.mark.parametrize("better", [{"priority": 9}, {"at": -5 * MINUTE}], ids=["priority", "waits longer"])
def test_one_that_would_not_come_last_stands_in_no_line(better: dict[str, Any]) -> None:
    dispatcher = with_workers(worker(), length_ns=SECOND)
    dispatcher.put(0, tasks_of(new_job(0), 2))
    (first, _), _ = dispatcher.assign(0)
    dispatcher.put(0, tasks_of(new_job(1), 1))
    dispatcher.put(0, tasks_of(new_job(2), 1, **better))
    dispatcher.ended(1, first, SECOND)
    assert ids(dispatcher.assign(1)) == ["2.0"]


@quick
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "assign", "ended"]),
            st.integers(0, 5),
            st.sampled_from([5, 5, 5, 1, 9]),
            st.sampled_from([0, 0, 0, 2 * MINUTE]),
        ),
        max_size=60,
    ),
    st.sampled_from([1, 3, 4096]),
)
def test_whether_anybody_looks_at_the_queues_makes_no_difference(
    moves: list[tuple[str, int, int, int]], limit: int
) -> None:
    found: list[list[str]] = []
    for is_watched in (False, True):
        dispatcher = with_workers(worker("w1"), worker("w2"), length_ns=7 * MILLISECOND)
        running: list[DagTask] = []
        given_out: list[str] = []
        number = now = 0
        jobs = [new_job(job) for job in range(6)]
        for move, job, priority, waited in moves:
            now += MILLISECOND
            if move == "put":
                number += 1
                dispatcher.put(now, tasks_of(jobs[job], 1, first=number, at=now - waited, priority=priority))
            elif move == "ended" and running:
                dispatcher.ended(now, running.pop(0), 7 * MILLISECOND)
            if is_watched:
                dispatcher.queues(now)
            if move != "put":
                for task, name in dispatcher.assign(now, limit):
                    running.append(task)
                    given_out.append(f"{task.id} {name}")
        found.append(given_out)
    assert found[0] == found[1]


def large(job: DagJob, kib: int, count: int = 1000) -> list[DagTask]:
    made = tasks_of(job, count)
    for task in made:
        task.kib = kib
    return made


@pytest.mark.parametrize(("kib", "cores", "most"), [(10, 1, 10), (60, 1, 2), (60, 3, 6), (10, 3, 30), (10, 8, 50)])
def test_short_tasks_that_carry_much_are_given_by_their_bytes_and_each_core_has_two(
    kib: int, cores: int, most: int
) -> None:
    dispatcher = with_workers(worker(cores=cores), length_ns=0, core_kib=100, worker_kib=500)
    dispatcher.put(0, large(new_job(), kib))
    assert len(dispatcher.assign(0)) == most


def test_whoever_gives_back_its_bytes_has_room_again() -> None:
    dispatcher = with_workers(worker(), worker("w2"), length_ns=0, core_kib=100)
    dispatcher.put(0, large(new_job(), 50))
    given = dispatcher.assign(0)
    assert Counter(name for _, name in given) == {"w1": 2, "w2": 2}
    task, name = given[0]
    dispatcher.took(task, 7)
    dispatcher.ended(1, task, 0)
    assert [worker for _, worker in dispatcher.assign(1)] == [name]


def test_tasks_that_come_one_by_one_count_by_their_bytes_too() -> None:
    dispatcher = with_workers(worker(), length_ns=0, core_kib=100)
    given = []
    for index in range(5):
        dispatcher.put(0, large(new_job(index), 40, 1))
        given += dispatcher.assign(0)
    assert ids(given) == ["0.0", "1.0", "2.0"]


def test_outputs_of_those_before_it_count_among_the_bytes_of_a_task() -> None:
    dispatcher = with_workers(worker(), length_ns=0, core_kib=100)
    job = new_job()
    before, *after = tasks_of(job, 6)
    job.tasks += [before, *after]
    before.state, before.output_kib = TaskState.COMPLETED, 34
    for task in after:
        task.after = packed((0,))
    dispatcher.put(0, after)
    assert len(dispatcher.assign(0)) == 3


@pytest.mark.parametrize(("length_ns", "per_core"), [(0, 1024), (SECOND, 32), (None, 32)])
def test_handlers_that_wait_run_side_by_side_however_long_they_take(length_ns: int | None, per_core: int) -> None:
    dispatcher = with_workers(msgspec.structs.replace(worker(cores=3), plain=()), length_ns=length_ns)
    dispatcher.put(0, tasks_of(new_job(), 4000))
    assert len(dispatcher.assign(0)) == 3 * per_core


def test_the_length_of_a_handlers_tasks_is_learned_slowly() -> None:
    dispatcher = with_workers(worker(), length_ns=MILLISECOND)
    dispatcher.put(0, tasks_of(new_job(), 1000))
    learn(dispatcher, 9 * MILLISECOND)
    assert len(dispatcher.assign(0)) == 10, "an average of 2 ms"


def test_an_attempt_that_was_lost_teaches_nothing_of_length() -> None:
    dispatcher = with_workers(worker(), length_ns=MILLISECOND)
    task = tasks_of(new_job(), 1)
    dispatcher.put(0, task)
    dispatcher.assign(0)
    dispatcher.ended(SECOND, task[0], None)
    dispatcher.put(0, tasks_of(new_job(), 100))
    assert len(dispatcher.assign(0)) == 20


def test_no_more_are_given_than_are_asked_for() -> None:
    dispatcher = with_workers(worker(cores=8))
    dispatcher.put(0, tasks_of(new_job(), 20))
    assert len(dispatcher.assign(3, 5)) == 5
    assert dispatcher.next_tick_at == 3, "there is more"
    assert len(dispatcher.assign(3, 50)) == 15
    assert dispatcher.next_tick_at == NEVER


def test_a_worker_takes_no_more_than_it_can_hold() -> None:
    dispatcher = with_workers(worker(cores=8), in_flight=5)
    dispatcher.put(0, tasks_of(new_job(), 20))
    assert len(dispatcher.assign(0)) == 5


def test_tasks_that_run_alone_are_as_many_as_cores() -> None:
    dispatcher = with_workers(worker(cores=3))
    dispatcher.put(0, tasks_of(new_job(), 10, needs=ALONE))
    given = dispatcher.assign(0)
    assert len(given) == 3
    assert why(dispatcher, ALONE) == why(dispatcher, SAME) == [("w1", "slots")]
    dispatcher.ended(0, given[1][0], MILLISECOND)
    assert len(dispatcher.assign(0)) == 1


def test_a_task_that_runs_alone_does_not_starve_in_a_stream_of_short_ones() -> None:
    dispatcher = with_workers(worker(), length_ns=1000)
    dispatcher.put(0, tasks_of(new_job(1), 5000))
    running = dispatcher.assign(0)
    dispatcher.put(1, tasks_of(new_job(2), 1, needs=ALONE, at=1))
    assert ids(dispatcher.assign(1)) == ["2.0"]
    dispatcher.ended(1, running[0][0], 1000)
    assert dispatcher.assign(1) == [], "its core is the lone one's"


def test_a_long_task_does_not_starve_in_a_stream_of_short_ones() -> None:
    dispatcher = with_workers(worker(handlers=("resize", "train")), length_ns=1000)
    dispatcher.put(0, tasks_of(new_job(1), 5000))
    running = dispatcher.assign(0)
    dispatcher.put(1, tasks_of(new_job(2), 1, needs=Needs("train"), at=1))
    assert dispatcher.assign(1) == []
    for task, _ in running[:2]:
        dispatcher.ended(1, task, 1000)
    assert "2.0" in ids(dispatcher.assign(1))


def test_short_tasks_of_many_jobs_are_given_out_job_by_job_and_equally() -> None:
    """Rows of a job lie side by side in the store."""
    dispatcher = with_workers(worker(cores=1), length_ns=1000)
    jobs = [new_job(number) for number in range(1, 101)]
    for job in jobs:
        dispatcher.put(0, tasks_of(job, 20))
    first = dispatcher.assign(0)
    assert [(number, len(list(of_it))) for number, of_it in groupby(first, number_of)] == [
        (number, 16) for number in range(1, 65)
    ]
    for task, _ in first:
        dispatcher.ended(0, task, 1000)
    then = [(number, len(list(of_it))) for number, of_it in groupby(dispatcher.assign(0), number_of)]
    assert then == [(number, 16) for number in range(65, 101)] + [(number, 4) for number in range(1, 101)]


# Which worker


def test_the_least_loaded_worker_is_chosen() -> None:
    dispatcher = with_workers(worker("w1", 1), worker("w2", 3))
    dispatcher.put(0, tasks_of(new_job(), 16))
    assert Counter(name for _, name in dispatcher.assign(0)) == {"w1": 4, "w2": 12}


def test_workers_that_are_alike_take_turns() -> None:
    dispatcher = with_workers(*[worker(f"w{index}") for index in range(5)])
    seen = Counter[str]()
    for index in range(10):
        dispatcher.put(0, tasks_of(new_job(), 1, first=index))
        ((task, name),) = dispatcher.assign(0)
        dispatcher.ended(0, task, MILLISECOND)
        seen[name] += 1
    assert sorted(seen.values()) == [2, 2, 2, 2, 2]


def test_a_degraded_worker_is_the_last_choice() -> None:
    sick = msgspec.structs.replace(worker("w1", 8), state="degraded")
    dispatcher = with_workers(sick, worker("w2"))
    dispatcher.put(0, tasks_of(new_job(), 10))
    assert [name for _, name in dispatcher.assign(0)] == ["w2"] * 8 + ["w1"] * 2


def test_an_overloaded_worker_is_given_tasks_where_they_would_wait_on_all_others() -> None:
    dispatcher = with_workers(msgspec.structs.replace(worker("w1", 8), is_overloaded=True), worker("w2", 2))
    dispatcher.put(0, tasks_of(new_job(), 3))

    assert [name for _, name in dispatcher.assign(0)] == ["w2", "w2", "w1"]


@pytest.mark.parametrize(("overload", "is_overloaded"), [(0, False), (2, False), (3, True)])
def test_what_a_worker_says_of_its_load_is_known_where_tasks_are_given_out(overload: int, is_overloaded: bool) -> None:
    known = DispatchWorker.of(WorkerFacts(4, overload=overload), CoresForTasks("w1", 4), "healthy")

    assert known.is_overloaded is is_overloaded


def test_a_worker_gets_only_what_it_can_run() -> None:
    gpu = DispatchWorker(name="w2", handlers=("resize",), capabilities=("gpu", "x"), memory_bytes=8_000)
    dispatcher = with_workers(worker("w1", 2), gpu, worker("w3", 2, handlers=("upload",)))
    job = new_job()
    kinds = [Needs("resize", ("gpu",)), Needs("resize", (), 4_000), Needs("upload"), Needs("resize", ("gpu",), 9_000)]
    for index, needs in enumerate(kinds):
        dispatcher.put(0, tasks_of(job, 1, needs=needs, first=index))
    given = {task.id: name for task, name in dispatcher.assign(0)}
    assert given["1.0"] == "w2" and given["1.2"] == "w3"
    assert given["1.1"] in ("w1", "w2"), "how much memory w1 has is not known"
    assert "1.3" not in given


def test_a_worker_whose_memory_is_not_known_has_enough() -> None:
    dispatcher = with_workers(worker("w1"))
    dispatcher.put(0, tasks_of(new_job(), 1, needs=Needs("resize", (), 4_000)))
    assert [name for _, name in dispatcher.assign(0)] == ["w1"]


def test_what_nobody_can_run_does_not_hold_up_the_rest() -> None:
    dispatcher = with_workers(worker())
    dispatcher.put(0, tasks_of(new_job(1), 100, needs=Needs("upload"), priority=10))
    dispatcher.put(0, tasks_of(new_job(2), 2))
    assert ids(dispatcher.assign(0)) == ["2.0", "2.1"]
    dispatcher.workers.set_worker(0, worker("w2", handlers=("upload",)))
    assert len(dispatcher.assign(0)) == 8


def test_a_worker_that_changes_is_seen_as_it_is_now() -> None:
    dispatcher = with_workers(worker(cores=1))
    dispatcher.put(0, tasks_of(new_job(), 100))
    assert len(dispatcher.assign(0)) == 8
    dispatcher.workers.set_worker(0, worker(cores=1))
    assert dispatcher.assign(0) == []
    dispatcher.workers.set_worker(0, worker(cores=2))
    assert len(dispatcher.assign(0)) == 8
    dispatcher.workers.set_worker(0, worker(cores=0))
    assert dispatcher.assign(0) == []


def test_a_worker_that_is_gone_gets_nothing_and_its_attempts_count_until_they_ended() -> None:
    dispatcher = with_workers(worker())
    dispatcher.put(0, tasks_of(new_job(), 20))
    given = dispatcher.assign(0)
    dispatcher.workers.remove_worker(0, "w1")
    dispatcher.workers.remove_worker(0, "w1")
    for task, _ in given[:2]:
        dispatcher.ended(0, task, None)
    assert dispatcher.assign(0) == [] and dispatcher.workers.running("w1") == 6
    dispatcher.workers.set_worker(0, worker())
    assert len(dispatcher.assign(0)) == 2
    dispatcher.workers.remove_worker(0, "w1")
    for task in [task for task, _ in given] + tasks_of(new_job(5), 1):
        dispatcher.ended(0, task, None)
    assert dispatcher.workers.running("w1") == 2


def test_a_worker_that_is_gone_and_idle_is_forgotten() -> None:
    dispatcher = with_workers(worker())
    dispatcher.workers.remove_worker(0, "w1")
    assert dispatcher.workers.running("w1") == 0
    assert why(dispatcher) == [("", "offline")]


def test_what_was_under_way_before_a_restart_takes_its_part() -> None:
    dispatcher = Dispatcher(Random(1))
    before = tasks_of(new_job(), 8)
    for task in before:
        task.worker = "w1#1f#3"
        dispatcher.restore(0, task)
    assert dispatcher.workers.running("w1") == 8
    dispatcher.put(0, tasks_of(new_job(2), 20))
    dispatcher.workers.set_worker(0, worker())
    assert dispatcher.assign(0) == []
    dispatcher.ended(0, before[0], None)
    assert len(dispatcher.assign(0)) == 1
    more = tasks_of(new_job(3), 1)[0]
    more.worker = "w1#1f#3"
    dispatcher.restore(0, more)
    assert dispatcher.workers.running("w1") == 9


def test_the_limits_of_what_was_under_way_before_a_restart_are_held_once_its_needs_are_known() -> None:
    dispatcher = with_workers(worker())
    task = tasks_of(new_job(), 1)[0]
    task.worker, task.fence, task.needs = "w1#1#1", 77, None
    dispatcher.restore(0, task)
    task.needs = ONE_AT_A_TIME
    dispatcher.restore(0, task)
    assert dispatcher.workers.running("w1") == 1
    dispatcher.put(0, tasks_of(new_job(2), 1, needs=ONE_AT_A_TIME))
    assert dispatcher.assign(0) == []
    dispatcher.ended(0, task, None)
    assert ids(dispatcher.assign(0)) == ["2.0"]


def test_a_task_that_is_put_while_it_runs_has_ended() -> None:
    dispatcher = with_workers(worker())
    tasks = tasks_of(new_job(), 1, needs=ONE_AT_A_TIME)
    dispatcher.put(0, tasks)
    for _ in range(3):
        assert len(dispatcher.assign(0)) == 1
        assert dispatcher.workers.running("w1") == 1
        dispatcher.put(0, tasks)
    assert dispatcher.workers.running("w1") == 0


def test_a_removed_task_is_not_given_out() -> None:
    dispatcher = with_workers(worker())
    tasks = tasks_of(new_job(), 3)
    dispatcher.put(0, tasks)
    assert dispatcher.ready == 3
    dispatcher.remove(tasks[:2])
    assert dispatcher.ready == 1
    assert ids(dispatcher.assign(0)) == ["1.2"]
    assert dispatcher.ready == 0


# Limits


def test_a_concurrency_limit_holds_across_jobs_and_workers_and_is_given_back_by_the_fence() -> None:
    dispatcher = with_workers(worker("w1"), worker("w2"))
    dispatcher.put(0, tasks_of(new_job(1), 3, needs=ONE_AT_A_TIME))
    dispatcher.put(0, tasks_of(new_job(2), 3, needs=Needs("resize", limits=(Limit("db", 9),))))
    ((task, _),) = dispatcher.assign(0)
    dispatcher.took(task, 42)
    assert dispatcher.assign(0) == []
    dispatcher.ended(0, task, MILLISECOND)
    dispatcher.ended(0, task, MILLISECOND)
    assert len(dispatcher.assign(0)) == 1
    assert dispatcher.next_tick_at == NEVER
    assert dispatcher._limits.freed == {}, "what was freed was seen"


def test_a_fence_is_of_no_use_to_a_task_without_limits() -> None:
    dispatcher = with_workers(worker())
    dispatcher.put(0, tasks_of(new_job(1), 1))
    ((task, _),) = dispatcher.assign(0)
    dispatcher.took(task, 42)
    dispatcher.ended(0, task, MILLISECOND)
    assert dispatcher.workers.running("w1") == 0


def test_a_rate_says_when_it_is_worth_asking_again() -> None:
    dispatcher = with_workers(worker())
    dispatcher.put(0, tasks_of(new_job(), 3, needs=TEN_A_SECOND))
    assert len(dispatcher.assign(0)) == 1
    assert dispatcher.next_tick_at == SECOND // 10
    assert dispatcher.assign(SECOND // 10 - 1) == []
    assert len(dispatcher.assign(SECOND // 10)) == 1


def test_what_waits_for_a_limit_does_not_hold_up_the_rest() -> None:
    dispatcher = with_workers(worker())
    dispatcher.put(0, tasks_of(new_job(1), 3, needs=ONE_AT_A_TIME, priority=10))
    dispatcher.put(0, tasks_of(new_job(2), 2))
    assert ids(dispatcher.assign(0)) == ["1.0", "2.0", "2.1"]


# Quarantine


def test_a_worker_in_quarantine_gets_nothing_until_it_is_over() -> None:
    dispatcher = with_workers(worker("w1"), worker("w2"))
    for index in range(3):
        dispatcher.workers.died(0, (1, index), "w1")
    dispatcher.workers.died(0, (1, 0), "w1")
    assert dispatcher.workers.quarantined(0) == {"w1": LASTS_NS} and dispatcher.next_tick_at == LASTS_NS
    dispatcher.put(0, tasks_of(new_job(), 20))
    assert {name for _, name in dispatcher.assign(0)} == {"w2"}
    reason = dispatcher.why(tasks_of(new_job(), 1)[0], SECOND)[0]
    said = "it is in quarantine for another 4m59s: tasks died on it that died nowhere else"
    assert reason == Reason("w1", "quarantine", said)
    assert {name for _, name in dispatcher.assign(LASTS_NS)} == {"w1"}
    assert dispatcher.workers.quarantined(LASTS_NS) == {} and dispatcher.next_tick_at == NEVER


def test_deaths_that_prove_nothing_change_nothing() -> None:
    dispatcher = with_workers(worker("w1"), worker("w2"))
    dispatcher.workers.died(0, (1, 0), "w1")
    assert dispatcher.workers.quarantined(0) == {}


@pytest.mark.parametrize(
    "other",
    [None, DispatchWorker(name="w2", state="draining")],
    ids=["none", "draining"],
)
def test_the_only_worker_is_not_kept_in_quarantine(other: DispatchWorker | None) -> None:
    dispatcher = with_workers(worker("w1"), *([other] if other else []))
    for index in range(3):
        dispatcher.workers.died(0, (1, index), "w1")
    dispatcher.put(0, tasks_of(new_job(), 1))
    assert len(dispatcher.assign(0)) == 1
    dispatcher.workers.set_worker(0, worker("w2"))
    assert dispatcher.workers.quarantined(0) == {"w1": LASTS_NS}
    dispatcher.workers.remove_worker(0, "w1")
    assert dispatcher.workers.quarantined(0) == {}


# What people ask


def test_why_tells_the_first_thing_in_the_way_for_each_worker() -> None:
    facts = DispatchWorker(name="", handlers=("resize",), capabilities=("gpu",), memory_bytes=100)
    odd: dict[str, dict[str, Any]] = {
        "capable": {"capabilities": ()},
        "drained": {"state": "draining"},
        "fit": {},
        "handless": {"handlers": ("upload",)},
        "small": {"memory_bytes": 99},
        "taken": {"cores": 0},
    }
    dispatcher = with_workers(*[msgspec.structs.replace(facts, name=name, **some) for name, some in odd.items()])
    needs = Needs("resize", ("gpu",), 100)
    assert dispatcher.why(tasks_of(new_job(), 1, needs=needs)[0], 0) == [
        Reason("capable", "capability", 'it lacks the capability "gpu"; it has none'),
        Reason("drained", "draining", "it is draining: it takes no new tasks"),
        Reason("fit", "", "it can run here: it is given out when its turn comes"),
        Reason("handless", "handler", 'it does not have the handler "resize"; it has "upload"'),
        Reason("small", "memory", "it has 99 bytes of memory, and 100 are asked for"),
        Reason("taken", "cores", "load jobs have all of its cores"),
    ]


def test_why_tells_of_slots_and_limits_last() -> None:
    dispatcher = with_workers(worker("w1", 2))
    dispatcher.put(0, tasks_of(new_job(), 9, needs=ONE_AT_A_TIME))
    (running,) = dispatcher.assign(0)
    assert text(dispatcher, ONE_AT_A_TIME) == 'limit "db" lets 1 run at a time, and 1 task that names it runs'
    assert why(dispatcher, ONE_AT_A_TIME) == [("w1", "limit")]
    dispatcher.put(0, tasks_of(new_job(2), 50))
    dispatcher.assign(0)
    assert text(dispatcher, ONE_AT_A_TIME) == "it has all it may have at a time: 16 tasks on 2 cores"
    assert dispatcher.workers.refusal(worker("unheard of"), SAME, 0) is None


def test_why_counts_one_task_and_one_core_in_the_singular() -> None:
    dispatcher = with_workers(worker())
    dispatcher.put(0, tasks_of(new_job(), 1, needs=ALONE))
    dispatcher.assign(0)
    assert text(dispatcher) == "it has all it may have at a time: 1 task on 1 core"


def test_why_tells_of_a_rate() -> None:
    dispatcher = with_workers(worker())
    dispatcher.put(0, tasks_of(new_job(), 2, needs=TEN_A_SECOND))
    dispatcher.assign(0)
    assert why(dispatcher, TEN_A_SECOND) == [("w1", "rate")]


def test_why_names_the_handlers_that_there_are() -> None:
    missing = Needs("resise")
    dispatcher = with_workers(worker("w1", handlers=("upload", "resize")))
    assert text(dispatcher, missing) == 'no worker has the handler "resise": there are "resize", "upload"'
    dispatcher.workers.set_worker(0, worker("w1", handlers=tuple(f"h{index:02}" for index in range(12))))
    assert text(dispatcher, missing).endswith('"h08", "h09" and 2 more')
    dispatcher.workers.set_worker(0, worker("w1", handlers=()))
    expected = 'no worker has the handler "resise", nor any other: start one with a file of handlers'
    assert text(dispatcher, missing) == expected
    dispatcher.workers.set_worker(0, DispatchWorker(name="w1", state="degraded", problem="etl.py:2: SyntaxError"))
    assert text(dispatcher, missing) == "it is degraded and has no handlers: etl.py:2: SyntaxError"
    dispatcher.workers.set_worker(0, worker("w1", handlers=()))
    dispatcher.workers.set_worker(0, worker("w2", handlers=("resise",)))
    reason = dispatcher.why(tasks_of(new_job(), 1, needs=missing)[0], 0)[0]
    assert reason.text == 'it does not have the handler "resise"; it has none'


def test_why_says_when_there_is_no_worker_and_knows_a_handler_without_its_needs() -> None:
    task = tasks_of(new_job(), 1)[0]
    task.needs = None
    expected = 'there is no worker: start one that has the handler "resize"'
    assert Dispatcher(Random(1)).why(task, 0) == [Reason("", "offline", expected)]


def test_the_position_of_a_job_counts_what_can_run_before_it() -> None:
    dispatcher = with_workers(worker())
    jobs = [new_job(number) for number in range(3)]
    dispatcher.put(0, tasks_of(jobs[0], 50, priority=9))
    dispatcher.put(0, tasks_of(jobs[1], 50, priority=9, needs=Needs("nobody's")))
    dispatcher.put(0, tasks_of(jobs[2], 50))
    assert [dispatcher.position(job) for job in jobs] == [0, None, 50]


def test_queues_are_shown_by_handler_and_limits_by_key() -> None:
    dispatcher = with_workers(worker("w1", handlers=("resize", "idle")))
    dispatcher.put(0, tasks_of(new_job(1), 3, needs=ONE_AT_A_TIME))
    dispatcher.put(SECOND, tasks_of(new_job(1), 2, needs=Needs("zip"), at=SECOND))
    dispatcher.assign(SECOND)
    dispatcher.put(SECOND, tasks_of(new_job(2), 4, at=SECOND))
    view = dispatcher.queues(3 * SECOND)
    assert view.queues == [
        QueueView("idle", 0, 0, 1),
        QueueView("resize", 6, 1, 1, 3.0),
        QueueView("zip", 2, 0, 0, 2.0),
    ]
    assert view.limits == [LimitView("db", 1, 1, "", 2)]


# Bounds


def test_what_is_remembered_of_handlers_and_pools_is_bounded() -> None:
    names = tuple(f"h{index}" for index in range(20))
    dispatcher = with_workers(worker(cores=8, handlers=names), handlers=4, pools=4)
    for index, name in enumerate(names):
        dispatcher.put(0, tasks_of(new_job(index), 1, needs=Needs(name)))
        ((task, _),) = dispatcher.assign(0)
        if index:
            dispatcher.ended(0, task, MILLISECOND)
    assert len(dispatcher.workers._pools) <= 4
    assert len(dispatcher.workers.handlers) <= 4
    assert [view.active for view in dispatcher.queues(0).queues if view.active] == [1]


def test_workers_that_got_room_are_remembered_in_bounds_and_nobody_misses_it() -> None:
    dispatcher = with_workers(worker("w1", handlers=("resize", "zip")), log=8)
    dispatcher.put(0, tasks_of(new_job(9), 100, needs=Needs("zip"), priority=1))
    dispatcher.put(0, tasks_of(new_job(1), 1000))
    running = dispatcher.assign(0)
    assert len(running) == 8
    for _ in range(100):
        task, _ = running.pop(0)
        dispatcher.ended(0, task, 5 * MILLISECOND)
        running += dispatcher.assign(0)
        assert len(dispatcher.workers._log) <= 4 + 8 + 1
    dispatcher.remove([task for task in tasks_of(new_job(1), 1)])
    assert dispatcher.workers.running("w1") == len(running)
    for task, _ in running:
        dispatcher.ended(0, task, 5 * MILLISECOND)
    assert dispatcher.assign(0) != []


def test_room_is_seen_by_those_who_did_not_ask_for_long() -> None:
    both = ("resize", "zip")
    dispatcher = with_workers(worker("w1", handlers=both), worker("w2"), log=2)
    zips = tasks_of(new_job(2), 9, needs=Needs("zip"))
    dispatcher.put(0, zips)
    running = dispatcher.assign(0)
    dispatcher.remove(zips[8:])
    assert len(running) == 8, "w1 is full"
    for task, _ in running:
        dispatcher.ended(0, task, None)
    job = new_job(1)
    for index in range(50):
        dispatcher.put(0, tasks_of(job, 1, first=index))
        ((task, _),) = dispatcher.assign(0)
        dispatcher.ended(0, task, None)
    dispatcher.put(0, zips[8:])
    assert ids(dispatcher.assign(0)) == ["2.8"]


def test_room_on_a_worker_is_of_use_to_those_it_can_run_alone() -> None:
    dispatcher = with_workers(worker("w1"), worker("w2", handlers=("zip",)))
    dispatcher.put(0, tasks_of(new_job(1), 20))
    dispatcher.put(0, tasks_of(new_job(2), 20, needs=Needs("zip")))
    running = {name: task for task, name in dispatcher.assign(0)}
    dispatcher.ended(0, running["w1"], None)
    assert [name for _, name in dispatcher.assign(0)] == ["w1"]
    dispatcher.ended(0, running["w2"], None)
    assert [name for _, name in dispatcher.assign(0)] == ["w2"]


def test_ranks_of_workers_do_not_pile_up() -> None:
    dispatcher = with_workers(worker("w1", 2), worker("w2", 2))
    dispatcher.put(0, tasks_of(new_job(), 1000))
    for _ in range(200):
        for task, _ in dispatcher.assign(0, 2):
            dispatcher.ended(0, task, None)
    (pool,) = dispatcher.workers._pools.values()
    assert len(pool.heap) <= 2 * 2 + 16


# Fairness and exactness


def jain(shares: list[int]) -> float:
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


@settings(deadline=None, derandomize=True, max_examples=5)
@given(
    st.lists(st.integers(0, 12), min_size=2, max_size=5),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.integers(100, 400),
)
def test_equal_jobs_share_equally_over_any_five_seconds(begins_s: list[int], cores: list[int], took_ms: int) -> None:
    dispatcher = with_workers(*[worker(f"w{index}", some) for index, some in enumerate(cores)])
    jobs = [new_job(number) for number in range(len(begins_s))]
    started: list[tuple[int, int]] = []
    running: list[tuple[int, DagTask]] = []
    for now in range(0, 24 * SECOND, 200 * MILLISECOND):
        for job, begin_s in zip(jobs, begins_s, strict=True):
            if now == begin_s * SECOND:
                dispatcher.put(now, tasks_of(job, 3000, at=now))
        for _, task in [item for item in running if item[0] <= now]:
            dispatcher.ended(now, task, took_ms * MILLISECOND)
        running = [item for item in running if item[0] > now]
        for task, _ in dispatcher.assign(now):
            started.append((now, task.job.row.number))
            running.append((now + took_ms * MILLISECOND, task))
    assert all(dispatcher.position(job) is not None for job in jobs), "all have tasks left"
    windows = 0
    for window in range(0, 19 * SECOND, SECOND):
        there = [number for number, begin_s in enumerate(begins_s) if begin_s * SECOND <= window]
        counts = Counter(number for at, number in started if window <= at < window + 5 * SECOND)
        if len(there) > 1:
            windows += 1
            assert jain([counts[number] for number in there]) >= 0.9
    assert windows >= 5


def test_a_job_of_one_task_starts_at_once_beside_one_of_many() -> None:
    dispatcher = with_workers(worker("w1", 4), length_ns=MILLISECOND)
    dispatcher.put(0, tasks_of(new_job(1), 5_000))
    running = dispatcher.assign(0)
    later = 100 * SECOND
    dispatcher.put(later, tasks_of(new_job(2), 1, at=later))
    for task, _ in running[:3]:
        dispatcher.ended(later, task, MILLISECOND)
    assert "2.0" in ids(dispatcher.assign(later))


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "assign", "ended", "ended", "remove", "set", "gone", "died", "wait"]),
        st.integers(0, 23),
        st.integers(0, 3),
    ),
    max_size=120,
)


@quick
@given(MOVES, st.integers(0, 9))
def test_whatever_happens_credits_and_limits_are_exact(moves: list[tuple[str, int, int]], seed: int) -> None:
    dispatcher = Dispatcher(Random(seed))
    kinds = [
        SAME,
        ALONE,
        ONE_AT_A_TIME,
        TEN_A_SECOND,
        Needs("zip", ("gpu",)),
        Needs("resize", limits=(Limit("db", 2),)),
    ]
    jobs = [new_job(number) for number in range(3)]
    tasks = [tasks_of(jobs[index % 3], 1, needs=kinds[index % 6], first=index)[0] for index in range(24)]
    ready: dict[DagTask, None] = {}
    flying: dict[DagTask, str] = {}
    workers: dict[str, DispatchWorker] = {}
    fence = now = 0
    for move, index, number in moves:
        task, name = tasks[index], f"w{number}"
        if move == "put":
            flying.pop(task, None)
            dispatcher.put(now, [task])
            ready[task] = None
        elif move == "remove":
            dispatcher.remove([task])
            ready.pop(task, None)
        elif move == "ended":
            dispatcher.ended(now, task, MILLISECOND if number else None)
            flying.pop(task, None)
        elif move == "set":
            workers[name] = DispatchWorker(
                name=name,
                cores=index % 3,
                handlers=("resize", "zip")[: 1 + index % 2],
                capabilities=("gpu",)[: index % 2],
            )
            dispatcher.workers.set_worker(now, workers[name])
        elif move == "gone":
            dispatcher.workers.remove_worker(now, name)
            workers.pop(name, None)
        elif move == "died":
            dispatcher.workers.died(now, (1, index), name)
        elif move == "wait":
            now += SECOND
        else:
            before = {other: dispatcher.why(other, now) for other in ready}
            for given, chosen in dispatcher.assign(now):
                del ready[given]
                refused = {reason.worker: reason.constraint for reason in before[given]}
                assert refused[chosen] == "", "why and the decision agree"
                fence += 1
                dispatcher.took(given, fence)
                flying[given] = chosen
            for other in ready:
                assert all(reason.constraint for reason in dispatcher.why(other, now)), "what can run does"
        for one in ("w0", "w1", "w2", "w3"):
            assert dispatcher.workers.running(one) == sum(chosen == one for chosen in flying.values())
        holding = [given for given in flying if given.needs is not None and given.needs.limits]
        view = dispatcher.queues(now)
        assert sum(limit.held for limit in view.limits) == len(holding)
        assert sum(queue.waiting for queue in view.queues) == len(ready)
        assert sum(queue.active for queue in view.queues) == len(flying)
        on_db = [given.needs for given in holding if given.needs in (ONE_AT_A_TIME, kinds[5])]
        assert len(on_db) <= (1 if ONE_AT_A_TIME in on_db else 2)
        for one in workers:
            assert sum(given.needs is ALONE and chosen == one for given, chosen in flying.items()) <= 2


def test_the_same_seed_gives_the_same_history() -> None:
    def history() -> list[tuple[str, str]]:
        dispatcher = with_workers(*[worker(f"w{index}", 1 + index % 3) for index in range(9)])
        said = []
        for index in range(30):
            dispatcher.put(index, tasks_of(new_job(index % 5), 5, at=index, first=5 * index))
            given = dispatcher.assign(index)
            said += [(task.id, name) for task, name in given]
            for task, _ in given[::2]:
                dispatcher.ended(index, task, index * MILLISECOND)
        return said

    assert history() == history()


def test_why_tells_of_a_worker_that_it_still_loads_its_handlers() -> None:
    dispatcher = with_workers(DispatchWorker(name="w1", is_loading=True))
    assert text(dispatcher) == "it still loads its handlers, and has not told yet which they are"


# What load jobs have to know of tasks.


def test_long_tasks_keep_a_core_busy_each_and_those_that_wait_side_by_side_one() -> None:
    dispatcher = with_workers(worker(cores=4), DispatchWorker(name="w2", cores=2, handlers=("fetch",)))
    assert dispatcher.workers.busy_cores("w1") == 0 and dispatcher.workers.busy_cores("nobody") == 0
    dispatcher.put(0, [*tasks_of(new_job(1), 3), *tasks_of(new_job(2), 20, needs=Needs("fetch"))])
    given = dispatcher.assign(0)

    assert (dispatcher.workers.busy_cores("w1"), dispatcher.workers.busy_cores("w2")) == (3, 1)

    dispatcher.workers.remove_worker(0, "w1")
    assert dispatcher.workers.busy_cores("w1") == 3, "they run on"
    for task, _ in given:
        dispatcher.ended(0, task, None)
    assert (dispatcher.workers.busy_cores("w1"), dispatcher.workers.busy_cores("w2")) == (0, 0)


@pytest.mark.parametrize(
    ("plain", "length_ns", "tasks", "busy"),
    [
        (True, 10_000, 4096, 4),
        (True, 10_000, 1024, 1),
        (True, 10_000, 1, 1),
        (False, None, 128, 4),
        (False, None, 33, 2),
    ],
)
def test_short_tasks_and_those_that_wait_keep_as_many_cores_busy_as_they_fill_together(
    plain: bool, length_ns: int | None, tasks: int, busy: int
) -> None:
    names = ("resize",)
    dispatcher = with_workers(
        DispatchWorker(name="w1", cores=4, handlers=names, plain=names if plain else ()), length_ns=length_ns
    )
    dispatcher.put(0, tasks_of(new_job(), tasks))
    given = dispatcher.assign(0)

    assert (len(given), dispatcher.workers.busy_cores("w1")) == (tasks, busy)

    for task, _ in given:
        dispatcher.ended(0, task, None)
    assert dispatcher.workers.busy_cores("w1") == 0


def test_cores_that_load_jobs_take_or_give_back_count_at_once() -> None:
    dispatcher = with_workers(worker(cores=1))
    dispatcher.put(0, tasks_of(new_job(), 20))
    dispatcher.workers.set_cores(CoresForTasks("w1", 0))
    assert dispatcher.assign(0) == [] and dispatcher.has_ready()
    assert text(dispatcher) == "load jobs have all of its cores"

    dispatcher.workers.set_cores(CoresForTasks("w1", 0, "they are held"))
    assert dispatcher.assign(0) == [] and text(dispatcher) == "they are held"

    dispatcher.workers.set_cores(CoresForTasks("w1", 2))
    dispatcher.workers.set_cores(CoresForTasks("w1", 2))
    dispatcher.workers.set_cores(CoresForTasks("nobody", 2))

    assert len(dispatcher.assign(0)) == 16


def test_tasks_that_no_worker_has_the_handler_of_wait_for_no_core() -> None:
    dispatcher = with_workers(worker())
    assert not dispatcher.has_ready()
    dispatcher.put(0, tasks_of(new_job(), 1, needs=Needs("upload")))
    assert not dispatcher.has_ready()
    dispatcher.put(0, tasks_of(new_job(2), 9))
    assert dispatcher.has_ready()
    dispatcher.assign(0)
    assert dispatcher.has_ready(), "one is left"
