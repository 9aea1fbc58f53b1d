"""Ranges that are drawn from sources, under the rules that hold for tasks of dag jobs."""

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.tasks.dispatch import Dispatcher
from talka.control.tasks.limits import Limits
from talka.control.tasks.quarantine import DEATHS
from talka.control.tasks.ready_queues import ReadyQueues, SourceLane
from talka.control.tasks.source import DrawnRange, Source, TaskRange
from talka.control.tasks.task import DagTask, Needs
from talka.control.tasks.worker_room import (
    DISPATCH_LIMITS,
    MOST_PER_CORE,
    SIDE_BY_SIDE,
    UNKNOWN_PER_CORE,
    DispatchWorker,
)
from talka.units import MINUTE, NEVER, SECOND
from talka.work.dags.dag import Limit
from tests.control.tasks.test_dispatch import new_job, tasks_of
from tests.ports.million_source import MillionTasks

SAME = Needs("resize")
quick = settings(deadline=None, derandomize=True, max_examples=60)


def source(count: int, needs: Needs = SAME, *, job: object = "job", **more: Any) -> MillionTasks:
    return MillionTasks(count, needs, job=job, **more)


def with_workers(*cores: int, length_ns: int | None = 1_000, plain: bool = True) -> Dispatcher:
    """Workers w0, w1 … with so many cores, and what is known of the length of tasks; None: nothing."""
    made = Dispatcher(Random(1))
    for number, count in enumerate(cores):
        set_worker(made, f"w{number}", count, plain=plain)
    if length_ns is not None:
        drawn = made.restore_range(0, source(0), 0, 1, "elsewhere")
        made.ended_range(0, drawn, 1, length_ns)
    return made


def set_worker(dispatcher: Dispatcher, name: str, cores: int = 1, *, plain: bool = True, **more: Any) -> None:
    handlers = ("resize",)
    facts = DispatchWorker(name=name, cores=cores, handlers=handlers, plain=handlers if plain else (), **more)
    dispatcher.workers.set_worker(0, facts)


def drawn(dispatcher: Dispatcher, now: int = 0, limit: int = 4096) -> list[DrawnRange]:
    assert dispatcher.assign(now, limit) == []
    return taken(dispatcher)


def taken(dispatcher: Dispatcher) -> list[DrawnRange]:
    ranges, dispatcher.drawn = dispatcher.drawn, []
    return ranges


def sizes(ranges: list[DrawnRange]) -> list[tuple[str, int]]:
    return [(one.worker, one.count) for one in ranges]


def test_a_range_is_as_long_as_its_worker_has_room() -> None:
    dispatcher = with_workers(1, 3)
    dispatcher.offer(0, source(10_000))
    ranges = drawn(dispatcher)
    assert sorted(sizes(ranges)) == [("w0", MOST_PER_CORE), ("w1", 3 * MOST_PER_CORE)]
    assert [one.first for one in ranges] == [0, ranges[0].count], "one after the other"
    assert drawn(dispatcher) == []

    dispatcher.ended_range(0, ranges[0], 100, None)
    (more,) = drawn(dispatcher)
    assert (more.worker, more.count) == (ranges[0].worker, 100), "what has ended makes room at once"


def test_long_tasks_are_drawn_in_twos_and_unknown_ones_in_a_few() -> None:
    long = with_workers(2, length_ns=SECOND)
    long.offer(0, source(1_000))
    assert sizes(drawn(long)) == [("w0", 4)]
    unknown = with_workers(2, length_ns=None)
    unknown.offer(0, source(1_000))
    assert sizes(drawn(unknown)) == [("w0", 2 * UNKNOWN_PER_CORE)]


def test_handlers_that_wait_are_given_side_by_side() -> None:
    dispatcher = with_workers(1, length_ns=SECOND, plain=False)
    dispatcher.offer(0, source(1_000))
    assert sizes(drawn(dispatcher)) == [("w0", SIDE_BY_SIDE)]


def test_few_tasks_are_spread_over_the_workers() -> None:
    dispatcher = with_workers(2, 2, 2)
    dispatcher.offer(0, source(9))
    had = Counter[str]()
    for worker, count in sizes(drawn(dispatcher)):
        had[worker] += count
    assert had == {"w0": 3, "w1": 3, "w2": 3}


def test_no_more_are_drawn_at_once_than_the_limit_and_the_rest_is_due_at_once() -> None:
    dispatcher = with_workers(4)
    dispatcher.offer(0, source(10_000))
    assert [one.count for one in drawn(dispatcher, now=7, limit=100)] == [100]
    assert dispatcher.next_tick_at == 7
    assert sum(one.count for one in drawn(dispatcher)) == 4 * MOST_PER_CORE - 100
    assert dispatcher.next_tick_at == NEVER


def test_a_worker_has_no_more_than_it_takes() -> None:
    dispatcher = with_workers(100)
    dispatcher.offer(0, source(100_000))
    count = 0
    while ranges := drawn(dispatcher):
        count += sum(one.count for one in ranges)
    assert count == DISPATCH_LIMITS.in_flight


def test_tasks_that_run_alone_fill_a_core_each() -> None:
    dispatcher = with_workers(3)
    dispatcher.offer(0, source(10, Needs("resize", alone=True)))
    (one,) = drawn(dispatcher)
    assert one.count == 3
    dispatcher.ended_range(0, one, 1, None)
    assert sizes(drawn(dispatcher)) == [("w0", 1)]


def test_of_a_limit_no_more_run_than_it_lets() -> None:
    dispatcher = with_workers(4, 4)
    limited = source(1_000, Needs("resize", limits=(Limit("db", 10),)))
    dispatcher.offer(0, limited)
    ranges = drawn(dispatcher)
    assert sum(one.count for one in ranges) == 10
    assert dispatcher.queues(0).limits[0].held == 10
    dispatcher.ended_range(0, ranges[0], 3, None)
    assert sum(one.count for one in drawn(dispatcher)) == 3
    assert dispatcher.queues(0).limits[0].held == 10


def test_of_a_rate_no_more_start_than_it_lets() -> None:
    dispatcher = with_workers(8, 8)
    dispatcher.offer(0, source(100_000, Needs("resize", limits=(Limit("api", rate="100/s"),))))
    started, now = 0, 0
    while now < 10 * SECOND:
        for one in drawn(dispatcher, now):
            started += one.count
            dispatcher.ended_range(now, one, one.count, 1_000)
        assert started <= 100 * now // SECOND + 100 // 10 + 1
        assert dispatcher.next_tick_at > now
        now = dispatcher.next_tick_at
    assert started >= 990


def test_how_many_may_start_at_once_is_as_many_as_would_one_after_the_other() -> None:
    limits = Limits()
    both = (Limit("a", 50, rate="500/s"), Limit("b", rate="300/s"))
    limits.say(0, both)
    for now in range(0, SECOND, SECOND // 7):
        if limits.refusal(both, now) is None:
            told, started = limits.room(both, now, 1_000), 0
            while limits.refusal(both, now) is None:
                started += 1
                limits.take(now + started, both, now)
            assert told == started
            assert limits.room((), now, 17) == 17
        for fence in range(now, now + 60):
            limits.give(fence, now)


def test_a_dag_job_and_a_source_take_turns_task_by_task() -> None:
    dispatcher = with_workers(2)
    big = source(100_000)
    dispatcher.offer(0, big)
    tasks = tasks_of(new_job(), 5_000)
    dispatcher.put(0, tasks)
    given = [task for task, _ in dispatcher.assign(0)]
    ranges = taken(dispatcher)
    assert sum(one.count for one in ranges) == len(given) == MOST_PER_CORE
    assert max(one.count for one in ranges) <= MOST_PER_CORE, "half of the room is left for the other"
    for _ in range(5):  # also when they end in other portions than they began
        for one in ranges:
            dispatcher.ended_range(0, one, one.count, 1_000)
        again = [task for task, _ in dispatcher.assign(0)]
        ranges = taken(dispatcher)
        for task in again:
            dispatcher.ended(0, task, 1_000)
        given += again
    total = 100_000 - big.ready
    assert abs(total - len(given)) <= 2 * MOST_PER_CORE


def test_sources_share_equally_also_with_those_of_other_needs() -> None:
    dispatcher = with_workers(2)
    needs = [SAME, SAME, Needs("resize", limits=(Limit("db", 10_000),))]
    sources = [source(100_000, one, job=number) for number, one in enumerate(needs)]
    for one in sources:
        dispatcher.offer(0, one)
    for _ in range(50):
        for one in drawn(dispatcher):
            dispatcher.ended_range(0, one, one.count, 1_000)
    had = [100_000 - one.ready for one in sources]
    assert min(had) > 5_000
    assert max(had[:2]) - min(had[:2]) <= 2 * MOST_PER_CORE
    # Queues take turns, as lanes do in a queue.
    assert abs(had[2] - had[0] - had[1]) <= 4 * MOST_PER_CORE


def test_a_source_that_had_nothing_for_a_while_still_owes_the_turns_it_had() -> None:
    queues = ReadyQueues(Limits())
    trickle = source(10)

    def lane() -> SourceLane:
        queues.offer(0, trickle)
        queue = queues.best()
        assert queue is not None and isinstance(queue.next, SourceLane)
        return queue.next

    first = lane()
    assert first.debt == 0
    trickle.draw(0, 10)
    queues.gave(0, first, 10)
    assert queues.best() is None
    trickle.put_back(0, 1)
    assert lane().debt == 9
    queues.withdraw(0, trickle)
    assert lane().debt == 0, "it is another one"


def test_alone_a_source_does_not_wait_for_turns() -> None:
    dispatcher = with_workers(1)
    dispatcher.offer(0, source(10_000))
    for _ in range(5):
        (one,) = drawn(dispatcher)
        assert one.count == MOST_PER_CORE
        dispatcher.ended_range(0, one, one.count, 1_000)


def test_a_higher_priority_comes_first_and_a_minute_of_waiting_makes_up_for_a_step() -> None:
    dispatcher = with_workers(1, length_ns=SECOND)
    low, high = source(100, job="low", priority=5), source(100, job="high", priority=6)
    dispatcher.offer(0, low)
    dispatcher.offer(0, high)
    (one, two) = drawn(dispatcher)
    assert (one.source, two.source) == (high, high)
    for ended in (one, two):
        dispatcher.ended_range(0, ended, ended.count, None)
    now = MINUTE + SECOND
    assert [one.source for one in drawn(dispatcher, now)] == [high, low]


def test_what_a_source_has_is_seen_like_any_other() -> None:
    dispatcher = with_workers(length_ns=None)
    (reason,) = dispatcher.reasons(SAME, 0)
    assert reason.constraint == "offline"
    set_worker(dispatcher, "w0", 1)
    dag = new_job()
    big = source(5_000)
    dispatcher.offer(0, big)
    dispatcher.put(2 * MINUTE, tasks_of(dag, 3, at=2 * MINUTE))
    dispatcher.assign(2 * MINUTE, limit=0)
    (queue,) = dispatcher.queues(2 * MINUTE).queues
    assert (queue.handler, queue.waiting, queue.active, queue.oldest_s) == ("resize", 5_003, 0, 120)
    assert dispatcher.position(dag) == 5_000 and dispatcher.position("job") == 0
    dispatcher.assign(2 * MINUTE)
    (queue,) = dispatcher.queues(2 * MINUTE).queues
    assert queue.active == dispatcher.workers.running("w0") == UNKNOWN_PER_CORE
    assert [reason.constraint for reason in dispatcher.reasons(SAME, 0)] == ["slots"]


@pytest.mark.parametrize("state", ["draining", "quarantine", "handler"])
def test_nothing_is_drawn_for_a_worker_that_may_not_have_it(state: str) -> None:
    dispatcher = with_workers(1)
    big = source(10_000, Needs("other") if state == "handler" else SAME)
    if state == "draining":
        set_worker(dispatcher, "w0", 1, state="draining")
    if state == "quarantine":
        set_worker(dispatcher, "w1", 1)
        for index in range(DEATHS):
            dispatcher.workers.died(0, (1, index), "w0")
    dispatcher.offer(0, big)
    assert [one.worker for one in drawn(dispatcher)] == (["w1"] if state == "quarantine" else [])


def test_a_source_waits_without_a_worker_and_starts_with_one() -> None:
    dispatcher = with_workers()
    dispatcher.offer(0, source(10))
    assert drawn(dispatcher) == []
    set_worker(dispatcher, "w9", 1)
    assert sizes(drawn(dispatcher)) == [("w9", 10)]


def test_a_worker_that_is_gone_is_known_until_all_it_had_is_over() -> None:
    dispatcher = with_workers(1)
    dispatcher.offer(0, source(1_000))
    (one,) = drawn(dispatcher)
    dispatcher.workers.remove_worker(0, "w0")
    dispatcher.ended_range(0, one, one.count - 1, None)
    assert (dispatcher.workers.running("w0"), one.left) == (1, 1)
    dispatcher.ended_range(0, one, 5, None)
    assert (dispatcher.workers.running("w0"), one.left) == (0, 0), "no more end than there were"
    dispatcher.ended_range(0, one, 1, None)
    assert one.left == 0


def test_what_an_earlier_life_gave_out_holds_its_room_and_its_limits() -> None:
    dispatcher = with_workers(1)
    limited = source(1_000, Needs("resize", limits=(Limit("db", 100),)))
    before = dispatcher.restore_range(0, limited, 5_000, 60, "w0")
    assert (before.first, before.count, before.worker, dispatcher.drawn) == (5_000, 60, "w0", [])
    assert dispatcher.workers.running("w0") == 60
    dispatcher.offer(0, limited)
    assert sum(one.count for one in drawn(dispatcher)) == 40
    dispatcher.ended_range(0, before, 60, None)
    assert sum(one.count for one in drawn(dispatcher)) == 60


def test_a_source_that_is_over_is_drawn_from_no_more() -> None:
    dispatcher = with_workers(1)
    big = source(10_000)
    dispatcher.offer(0, big)
    (one,) = drawn(dispatcher)
    dispatcher.withdraw(0, big)
    dispatcher.withdraw(0, big)
    dispatcher.ended_range(0, one, one.count, None)
    assert drawn(dispatcher) == []
    dispatcher.offer(0, big)
    assert len(drawn(dispatcher)) == 1


def test_a_source_may_lose_what_it_had_ready() -> None:
    dispatcher = with_workers()
    empty = source(0)
    dispatcher.offer(0, empty)
    empty.put_back(3, 4)
    dispatcher.offer(0, empty)
    assert empty.draw(0, 9) == (3, 4)
    dispatcher.offer(0, empty)
    set_worker(dispatcher, "w0", 1)
    assert drawn(dispatcher) == [] and dispatcher.queues(0).queues[0].waiting == 0


def test_one_that_gives_more_than_it_was_asked_for_is_told() -> None:
    class Greedy(MillionTasks):
        def draw(self, now: int, most: int) -> TaskRange:
            return 0, most + 1

    dispatcher = with_workers(1)
    dispatcher.offer(0, Greedy(10_000, SAME))
    with pytest.raises(AssertionError, match=r"asked for 1024 tasks at the most, and gave 1025"):
        dispatcher.assign(0)


def test_a_job_has_one_source_for_the_same_needs_or_tasks() -> None:
    queues = ReadyQueues(Limits())
    job = new_job()
    queues.offer(0, source(1, job=job))
    with pytest.raises(AssertionError, match="one source"):
        queues.offer(0, source(1, job=job))
    with pytest.raises(AssertionError, match="tasks or sources"):
        queues.put(0, tasks_of(job, 1))


steps = st.lists(
    st.tuples(st.sampled_from(["assign", "end", "lose", "back", "more", "dag", "over"]), st.integers(0, 9)), max_size=60
)


@quick
@given(steps=steps, limit=st.sampled_from([0, 3, 40]), alone=st.booleans())
def test_whatever_happens_every_task_is_given_out_once_at_a_time_and_room_is_kept(
    steps: list[tuple[str, int]], limit: int, alone: bool
) -> None:
    needs = Needs("resize", limits=(Limit("db", limit),) if limit else (), alone=alone)
    dispatcher = with_workers(1, 2)
    sources: list[Source] = [source(300, needs, job="a"), source(40, SAME, job="b", priority=9)]
    job, index = new_job(), 0
    running: list[DrawnRange | DagTask] = []
    for one in sources:
        dispatcher.offer(0, one)
    for what, number in steps:
        if what == "dag":
            dispatcher.put(0, tasks_of(job, number, first=index))
            index += number
        elif what == "more":
            sources[number % 2].put_back(10_000 + index, 1 + number)  # type: ignore[attr-defined]
            index += 1 + number
            dispatcher.offer(0, sources[number % 2])
        elif what == "over" and number == 9:
            dispatcher.withdraw(0, sources[1])
        elif what == "lose":
            dispatcher.workers.remove_worker(0, "w1")
            set_worker(dispatcher, "w1", 1 + number % 3)
        elif what == "assign":
            running += [task for task, _ in dispatcher.assign(0, 1 + 20 * number)]
            running += taken(dispatcher)
        elif running:
            run = running.pop(number % len(running))
            if isinstance(run, DagTask):
                dispatcher.ended(0, run, 1_000)
                continue
            part = min(run.left, 1 + number)
            if what == "back":
                part = run.left
                run.source.put_back(run.first, part)  # type: ignore[attr-defined]
            dispatcher.ended_range(0, run, part, 1_000)
            dispatcher.offer(0, run.source)
            if run.left:
                running.append(run)
        counts = Counter([run.worker for run in running if isinstance(run, DrawnRange) for _ in range(run.left)])
        tasks = [run for run in running if isinstance(run, DagTask)]
        assert dispatcher.workers.running("w0") + dispatcher.workers.running("w1") == counts.total() + len(tasks)
        if limit:
            held = sum(run.left for run in running if isinstance(run, DrawnRange) and run.source is sources[0])
            assert held <= limit
    for run in running:
        if isinstance(run, DagTask):
            dispatcher.ended(0, run, None)
        else:
            dispatcher.ended_range(0, run, run.left, None)
    assert dispatcher.workers.running("w0") == dispatcher.workers.running("w1") == 0
    assert all(worker.load == worker.alone == 0 for worker in dispatcher.workers.here.values())
    assert all(view.held == 0 for view in dispatcher.queues(0).limits)
    assert dispatcher._range_flights == {}
