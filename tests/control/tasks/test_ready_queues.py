"""The order in which ready tasks should run."""

from heapq import heapify
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.dags.job import DagJob
from talka.control.tasks import ready_queues
from talka.control.tasks.limits import Limits
from talka.control.tasks.ready_queues import STALE_LIMIT, TURN, Queue, ReadyQueues, TaskLane
from talka.control.tasks.task import DagTask, Needs
from talka.units import MINUTE, NEVER, SECOND
from talka.work.dags.dag import DagSettings, Limit
from talka.work.dags.records import JobRow
from talka.work.lifecycle import JobState, TaskState

quick = settings(deadline=None, derandomize=True, max_examples=60)
SAME = Needs("resize")
OTHER = Needs("upload")
LIMITED = Needs("resize", limits=(Limit("db", 1),))


def new_job(number: int = 1) -> DagJob:
    row = JobRow(number=number, id=f"job-{number}", name="n", state=JobState.RUNNING, submitted_ms=0, settings=b"{}")
    return DagJob(row, DagSettings(), Random(1), lambda now: now // 1_000_000)


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


@pytest.fixture
def queues() -> ReadyQueues:
    return ReadyQueues(Limits())


def took(queues: ReadyQueues, now: int, queue: Queue, part: int = TURN) -> DagTask:
    """The next of this queue, which is the best. `part`: of a core, what it fills."""
    lane = queue.next
    assert isinstance(lane, TaskLane)
    task = queues.take(now, queue, lane)
    queues.gave_task(lane, part)
    return task


def taken(queues: ReadyQueues, count: int, now: int = 0) -> list[str]:
    """Ids of the next ones."""
    ids = []
    for _ in range(count):
        queue = queues.best()
        if queue is None:
            break
        ids.append(took(queues, now, queue).id)
    return ids


def best(queues: ReadyQueues) -> Queue:
    queue = queues.best()
    assert queue is not None
    return queue


def test_tasks_of_a_job_come_in_the_order_in_which_they_became_ready(queues: ReadyQueues) -> None:
    job = new_job()
    queues.put(0, tasks_of(job, 2, at=2, first=4))
    queues.put(0, tasks_of(job, 2, at=1, first=2))
    queues.put(0, tasks_of(job, 2, at=1))
    assert len(queues) == 6
    assert taken(queues, 9) == ["1.2", "1.3", "1.0", "1.1", "1.4", "1.5"]
    assert len(queues) == 0 and queues.best() is None


def test_what_comes_at_the_same_instant_follows_what_is_being_taken(queues: ReadyQueues) -> None:
    job = new_job()
    queues.put(0, tasks_of(job, 2))
    assert taken(queues, 1) == ["1.0"]
    queues.put(0, tasks_of(job, 2, first=2))
    assert taken(queues, 3) == ["1.1", "1.2", "1.3"]


def test_a_minute_of_waiting_counts_as_much_as_a_step_of_priority(queues: ReadyQueues) -> None:
    job = new_job()
    old = tasks_of(job, 1, at=0, priority=4)
    soon = tasks_of(job, 1, at=MINUTE - 1, priority=5, first=1)
    late = tasks_of(job, 1, at=MINUTE + 1, priority=5, first=2)
    high = tasks_of(job, 1, at=MINUTE + 1, priority=10, first=3)
    queues.put(0, late + old + soon + high)
    assert taken(queues, 4) == ["1.3", "1.1", "1.0", "1.2"]


def test_a_task_that_is_put_twice_is_there_once(queues: ReadyQueues) -> None:
    tasks = tasks_of(new_job(), 1)
    queues.put(0, tasks)
    queues.put(0, tasks)
    assert tasks[0] in queues.buckets_of
    assert taken(queues, 2) == ["1.0"]
    assert tasks[0] not in queues.buckets_of


def test_jobs_take_turns_however_many_tasks_they_have(queues: ReadyQueues) -> None:
    queues.put(0, tasks_of(new_job(1), 1000))
    queues.put(0, tasks_of(new_job(2), 2))
    queues.put(0, tasks_of(new_job(3), 1))
    assert taken(queues, 7) == ["1.0", "2.0", "3.0", "1.1", "2.1", "1.2", "1.3"]


def test_of_short_tasks_a_turn_has_several(queues: ReadyQueues) -> None:
    queues.put(0, tasks_of(new_job(1), 5))
    queues.put(0, tasks_of(new_job(2), 4))
    ids = [took(queues, 0, best(queues), TURN // 2).id for _ in range(9)]
    assert ids == ["1.0", "1.1", "2.0", "2.1", "1.2", "1.3", "2.2", "2.3", "1.4"]


def test_a_turn_that_was_not_used_up_ends_when_no_more_is_taken(queues: ReadyQueues) -> None:
    queues.put(0, tasks_of(new_job(1), 3))
    queues.put(0, tasks_of(new_job(2), 3))
    queue = best(queues)
    lane = queue.next
    assert isinstance(lane, TaskLane)
    assert took(queues, 0, queue, 1).id == "1.0"
    queues.end_turn(lane)
    assert took(queues, 0, best(queues), 1).id == "2.0"
    assert took(queues, 0, best(queues), 1).id == "2.1"


def test_a_job_that_comes_later_does_not_wait_behind_those_that_waited_long(queues: ReadyQueues) -> None:
    queues.put(0, tasks_of(new_job(1), 1000))
    for minute in range(30):
        assert len(taken(queues, 1, minute * MINUTE)) == 1
    now = 30 * MINUTE
    queues.put(now, tasks_of(new_job(2), 500, at=now))
    ids = taken(queues, 100, now)
    assert 49 <= sum(id.startswith("2.") for id in ids) <= 51


def test_a_job_that_comes_back_gets_nothing_for_the_time_it_was_away(queues: ReadyQueues) -> None:
    one, two = new_job(1), new_job(2)
    queues.put(0, tasks_of(one, 100))
    queues.put(0, tasks_of(two, 1))
    taken(queues, 50)
    queues.put(0, tasks_of(two, 10, first=1))
    ids = taken(queues, 20)
    assert sum(id.startswith("2.") for id in ids) == 10


def test_a_higher_priority_comes_first_and_a_lower_one_gets_its_turn_within_minutes(queues: ReadyQueues) -> None:
    queues.put(0, tasks_of(new_job(1), 1000, priority=10))
    queues.put(0, tasks_of(new_job(2), 10, priority=1))
    served = []
    for second in range(0, 30 * 60, 10):
        served += [(second, id) for id in taken(queues, 3, second * SECOND) if id.startswith("2.")]
    assert served[0][0] >= 8 * 60
    assert served[0][0] <= 10 * 60
    assert len(served) == 3, "one in nine minutes"


def test_queues_of_other_needs_take_turns_too(queues: ReadyQueues) -> None:
    one = new_job(1)
    queues.put(0, tasks_of(one, 3))
    queues.put(0, tasks_of(one, 3, needs=OTHER, first=10))
    queues.put(0, tasks_of(one, 3, needs=LIMITED, first=20))
    assert taken(queues, 7) == ["1.0", "1.10", "1.20", "1.1", "1.11", "1.21", "1.2"]


def test_a_better_task_is_seen_behind_whatever_waits(queues: ReadyQueues) -> None:
    one, two = new_job(1), new_job(2)
    queues.put(0, tasks_of(two, 2, priority=5, needs=OTHER))
    queues.put(0, tasks_of(one, 2, priority=5))
    assert best(queues).needs is OTHER
    queues.put(0, tasks_of(one, 1, priority=9, first=7))
    assert taken(queues, 2) == ["1.7", "2.0"]


def test_a_better_task_is_seen_behind_a_queue_of_the_same_group(queues: ReadyQueues) -> None:
    one, two = new_job(1), new_job(2)
    queues.put(0, tasks_of(two, 2))
    queues.put(0, tasks_of(one, 2, needs=LIMITED))
    assert best(queues).needs is SAME and len(queues.groups) == 1
    queues.put(0, tasks_of(one, 1, priority=9, needs=LIMITED, first=7))
    assert taken(queues, 2) == ["1.7", "2.0"]


def test_a_task_that_was_removed_does_not_come(queues: ReadyQueues) -> None:
    tasks = tasks_of(new_job(), 4)
    queues.put(0, tasks)
    queues.remove(0, [tasks[0], tasks[2]])
    queues.remove(0, [tasks[0], *tasks_of(new_job(9), 1)])
    assert len(queues) == 2 and best(queues).ready == 2
    assert taken(queues, 4) == ["1.1", "1.3"]


def test_the_last_task_that_is_removed_takes_its_queue_along(queues: ReadyQueues) -> None:
    tasks = tasks_of(new_job(), 2)
    other = tasks_of(new_job(2), 1)
    queues.put(0, tasks + other)
    queues.remove(0, tasks)
    assert [len(queue.lanes) for queue in queues.queues.values()] == [1]
    queues.remove(0, other)
    assert queues.queues == {} and queues.groups == {} and queues.best() is None


def test_a_task_that_was_removed_and_put_again_comes_once_and_in_its_new_place(queues: ReadyQueues) -> None:
    job = new_job()
    tasks = tasks_of(job, 3)
    queues.put(0, tasks)
    queues.remove(0, tasks[:1])
    tasks[0].queued_at = 5
    queues.put(5, tasks[:1])
    queues.remove(5, tasks[1:2])
    queues.put(5, tasks[1:2])
    assert len(queues) == 3
    assert taken(queues, 4) == ["1.2", "1.1", "1.0"]
    assert len(queues) == 0


def test_after_a_removal_the_job_ranks_by_what_is_next(queues: ReadyQueues) -> None:
    one, two = new_job(1), new_job(2)
    low, high = tasks_of(one, 1, at=0, priority=1), tasks_of(one, 2, at=12 * MINUTE, priority=10, first=1)
    queues.put(0, tasks_of(one, 1, at=0, priority=1, first=9) + low)
    assert taken(queues, 1, now=20 * MINUTE) == ["1.9"]
    queues.put(0, tasks_of(two, 3, at=14 * MINUTE, priority=2))
    queues.put(0, high)
    assert best(queues).next.job is two
    queues.remove(0, low)
    assert taken(queues, 2, now=20 * MINUTE) == ["1.1", "1.2"]


def test_a_job_whose_best_task_is_removed_ranks_lower(queues: ReadyQueues) -> None:
    one, two = new_job(1), new_job(2)
    high = tasks_of(one, 1, priority=9)
    queues.put(0, high + tasks_of(one, 1, priority=1, first=1))
    queues.put(0, tasks_of(two, 1))
    assert best(queues).next.job is one
    queues.remove(0, high)
    assert taken(queues, 2) == ["2.0", "1.1"]


def test_places_of_removed_tasks_do_not_pile_up(queues: ReadyQueues) -> None:
    job = new_job()
    tasks = tasks_of(job, STALE_LIMIT) + tasks_of(job, STALE_LIMIT, at=1, first=STALE_LIMIT)
    late = tasks_of(job, 2, at=2, first=1000)
    queues.put(0, tasks + late)
    for _ in range(20):
        queues.remove(0, tasks[1:])
        queues.put(0, tasks[1:])
        lane = best(queues).next
        places = sum(len(bucket.fresh) + len(bucket.turned) for bucket in lane.buckets.values())
        assert places <= 3 * len(queues) + 3 * STALE_LIMIT
    queues.remove(0, tasks)
    assert taken(queues, 3) == ["1.1000", "1.1001"]


def test_jobs_that_are_gone_leave_nothing_in_the_order(queues: ReadyQueues) -> None:
    queues.put(0, tasks_of(new_job(0), 1, priority=10))
    for number in range(1, 10 * STALE_LIMIT):
        tasks = tasks_of(new_job(number), 1, priority=1)
        queues.put(0, tasks)
        queues.remove(0, tasks)
    assert len(best(queues).rotation._heap) <= 2 * STALE_LIMIT
    assert taken(queues, 2) == ["0.0"]


def test_the_order_of_many_jobs_is_cleaned_seldom(queues: ReadyQueues, monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned: list[int] = []

    def counted(heap: list[object]) -> None:
        cleaned.append(len(heap))
        heapify(heap)

    monkeypatch.setattr(ready_queues, "heapify", counted)
    jobs = 10 * STALE_LIMIT
    for number in range(jobs):
        queues.put(0, tasks_of(new_job(number), 1))
    assert 0 < sum(cleaned) <= 2 * jobs, "the place of a job is looked at twice or less, not with every job that comes"
    assert taken(queues, 3) == ["0.0", "1.0", "2.0"]


def test_a_group_that_waits_for_workers_is_passed_over_until_it_is_woken(queues: ReadyQueues) -> None:
    job = new_job()
    queues.put(0, tasks_of(job, 3))
    queues.put(0, tasks_of(job, 3, needs=OTHER, first=10))
    group = best(queues).group
    queues.park_group(group)
    assert taken(queues, 1) == ["1.10"]
    queues.put(0, tasks_of(job, 1, priority=9, first=7))
    assert taken(queues, 1) == ["1.11"]
    queues.wake_group(group)
    assert taken(queues, 3) == ["1.7", "1.12", "1.0"]
    assert not group.is_parked and queues.parked_groups == {}


def test_a_group_that_is_emptied_while_it_waits_is_forgotten(queues: ReadyQueues) -> None:
    tasks = tasks_of(new_job(), 1)
    queues.put(0, tasks)
    queues.park_group(best(queues).group)
    queues.remove(0, tasks)
    assert queues.parked_groups == {}


def test_a_queue_that_waits_for_a_limit_does_not_hold_up_its_neighbours(queues: ReadyQueues) -> None:
    job = new_job()
    queues.put(0, tasks_of(job, 2, needs=LIMITED))
    queues.put(0, tasks_of(job, 1, first=10))
    queue = best(queues)
    assert queue.needs is LIMITED
    queues.park(queue, "db")
    assert taken(queues, 2) == ["1.10"]
    queues.put(0, tasks_of(job, 1, needs=LIMITED, first=5, priority=9))
    assert queues.best() is None
    queues.wake_key("db")
    queues.wake_key("db")
    assert taken(queues, 3) == ["1.5", "1.0", "1.1"]


def test_a_group_of_which_every_queue_waits_is_woken_for_nothing(queues: ReadyQueues) -> None:
    queues.put(0, tasks_of(new_job(), 1, needs=LIMITED))
    queue = best(queues)
    queues.park_group(queue.group)
    queues.park(queue, "db")
    queues.wake_group(queue.group)
    assert queues.best() is None
    queues.park_group(queue.group)
    queues.wake_key("db")
    assert queues.best() is None
    queues.wake_group(queue.group)
    assert taken(queues, 1) == ["1.0"]


def test_a_queue_that_waits_for_a_time_is_woken_when_it_has_come(queues: ReadyQueues) -> None:
    queues.put(0, tasks_of(new_job(), 2, needs=LIMITED))
    assert queues.next_due_at == NEVER
    queues.park(best(queues), "db", 7)
    assert queues.next_due_at == 7
    queues.wake_due(6)
    assert queues.best() is None
    queues.wake_due(7)
    assert taken(queues, 1) == ["1.0"]
    assert queues.next_due_at == NEVER


def test_a_queue_that_was_woken_or_emptied_is_not_waited_for(queues: ReadyQueues) -> None:
    tasks = tasks_of(new_job(), 2, needs=LIMITED)
    queues.put(0, tasks)
    queues.park(best(queues), "db", 7)
    queues.wake_key("db")
    assert queues.next_due_at == NEVER
    queues.park(best(queues), "db", 9)
    queues.remove(0, tasks)
    assert queues.next_due_at == NEVER


def test_two_queues_that_wait_for_one_key_are_woken_together(queues: ReadyQueues) -> None:
    job = new_job()
    queues.put(0, tasks_of(job, 1, needs=LIMITED))
    other = tasks_of(job, 1, needs=Needs("upload", limits=LIMITED.limits), first=10)
    queues.put(0, other)
    queues.park(best(queues), "db")
    queues.park(best(queues), "db")
    queues.remove(0, other)
    queues.put(0, other)
    queues.wake_key("db")
    assert sorted(taken(queues, 3)) == ["1.0", "1.10"]


def test_limits_are_named_while_something_waits_that_has_them() -> None:
    limits = Limits()
    queues = ReadyQueues(limits)
    queues.put(0, tasks_of(new_job(), 1, needs=LIMITED))
    assert [view.key for view in limits.views({})] == ["db"]
    taken(queues, 1)
    assert limits.views({}) == []


def test_what_comes_before_a_job_is_all_of_better_ones_and_one_of_each_that_takes_turns(queues: ReadyQueues) -> None:
    jobs = [new_job(number) for number in range(5)]
    queues.put(0, tasks_of(jobs[0], 100, priority=9))
    queues.put(0, tasks_of(jobs[1], 50))
    queues.put(0, tasks_of(jobs[2], 50, needs=OTHER))
    queues.put(0, tasks_of(jobs[3], 7))
    groups = list(queues.groups.values())
    assert [queues.ahead_of(job, groups) for job in jobs] == [0, 100, 101, 102, None]
    assert queues.ahead_of(jobs[3], groups[:1]) == 101
    assert taken(queues, 1) == ["0.0"]


def test_a_queue_knows_since_when_its_next_ones_wait(queues: ReadyQueues) -> None:
    queues.put(0, tasks_of(new_job(1), 1, at=7, priority=3))
    queues.put(0, tasks_of(new_job(2), 1, at=9, priority=10))
    assert best(queues).oldest_at == 7


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["put", "remove", "take", "take", "park", "wake"]),
        st.integers(0, 3),
        st.integers(0, 5),
        st.integers(1, 10),
        st.sampled_from([0, SECOND, MINUTE]),
    ),
    max_size=80,
)


@quick
@given(MOVES)
def test_every_task_that_is_put_and_not_removed_is_taken_once(moves: list[tuple[str, int, int, int, int]]) -> None:
    queues = ReadyQueues(Limits())
    jobs = [new_job(number) for number in range(4)]
    kinds = [SAME, OTHER, LIMITED]
    tasks = {
        (job, index): tasks_of(jobs[job], 1, first=index, needs=kinds[(job + index) % 3])[0]
        for job in range(4)
        for index in range(6)
    }
    inside: dict[DagTask, None] = {}
    now = 0
    for move, job, index, priority, gap in moves:
        now += gap
        task = tasks[job, index]
        queue = queues.best()
        if move == "put" and task not in inside:
            task.queued_at, task.priority = now, priority
            queues.put(now, [task])
            inside[task] = None
        elif move == "remove":
            queues.remove(now, [task])
            inside.pop(task, None)
        elif move == "take" and queue is not None:
            del inside[took(queues, now, queue)]
        elif move == "park" and queue is not None:
            if index % 2:
                queues.park(queue, "db", now + SECOND)
            else:
                queues.park_group(queue.group)
        elif move == "wake":
            queues.wake_due(now)
            for group in list(queues.parked_groups):
                queues.wake_group(group)
        assert len(queues) == len(inside) == sum(queue.ready for queue in queues.queues.values())
    queues.wake_key("db")
    for group in list(queues.parked_groups):
        queues.wake_group(group)
    rest = taken(queues, 100)
    assert sorted(rest) == sorted(task.id for task in inside)
    assert queues.queues == {} and queues.groups == {}


@quick
@given(st.lists(st.tuples(st.integers(1, 10), st.integers(0, 20)), min_size=1, max_size=40))
def test_one_job_with_one_kind_of_needs_is_served_exactly_by_waiting_and_priority(
    puts: list[tuple[int, int]],
) -> None:
    queues = ReadyQueues(Limits())
    job = new_job()
    model: list[tuple[int, int, str]] = []
    for index, (priority, minutes) in enumerate(puts):
        queues.put(0, tasks_of(job, 1, at=minutes * MINUTE + index, priority=priority, first=index))
        model.append((minutes * MINUTE + index - priority * MINUTE, index, f"1.{index}"))
    assert taken(queues, 100) == [id for _, _, id in sorted(model)]
