import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.jobs.queue import (
    QUEUE_LIMIT,
    QUEUE_TIMEOUT_NS,
    JobQueue,
    QueueFull,
    QueueTimedOut,
    no_workers_text,
    waiting_reason,
)
from talka.errors import Invalid
from talka.units import NEVER, SECOND

quick = settings(deadline=None, derandomize=True, max_examples=150)


def test_jobs_start_by_priority_and_then_by_age() -> None:
    queue = JobQueue()
    for job, priority, number in [("late", 5, 3), ("low", 1, 1), ("early", 5, 2), ("high", 10, 4)]:
        queue.push(0, job, priority, number)

    assert queue.jobs() == ["high", "early", "late", "low"]
    assert [queue.position(job) for job in queue.jobs()] == [1, 2, 3, 4]
    assert queue.position("other") is None


def test_a_job_that_leaves_lets_the_others_move_up() -> None:
    queue = JobQueue()
    for number, job in enumerate("abc"):
        queue.push(0, job, 5, number)

    queue.remove("a")

    queue.remove("a")
    assert queue.position("a") is None and queue.position("b") == 1
    assert (queue.position("c"), len(queue)) == (2, 2)


def test_a_job_pushed_again_keeps_its_place_and_its_time() -> None:
    queue = JobQueue()
    queue.push(0, "a", 5, 1)
    queue.push(0, "b", 5, 2)

    queue.push(9, "a", 1, 3)

    assert queue.jobs() == ["a", "b"]
    assert [late.waited_ns for late in queue.tick(QUEUE_TIMEOUT_NS)] == [QUEUE_TIMEOUT_NS] * 2


def test_a_full_queue_refuses_with_a_sentence() -> None:
    queue = JobQueue(limit=2)
    queue.push(0, "a", 5, 1)
    assert not queue.is_full
    queue.push(0, "b", 5, 2)
    assert queue.is_full

    with pytest.raises(QueueFull, match="2 jobs wait already") as refused:
        queue.push(0, "c", 10, 3)

    assert refused.value.limit == 2
    assert queue.jobs() == ["a", "b"]
    queue.push(1, "a", 5, 1)  # no new one


def test_so_many_jobs_may_wait_by_default() -> None:
    queue = JobQueue()
    for number in range(QUEUE_LIMIT):
        queue.push(0, f"job {number}", 5, number)

    assert (QUEUE_LIMIT, queue.is_full) == (256, True)


@pytest.mark.parametrize("priority", [0, 11])
def test_a_priority_out_of_range_is_refused(priority: int) -> None:
    with pytest.raises(Invalid, match="from 1 to 10"):
        JobQueue().push(0, "a", priority, 1)


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"timeout_ns": 0}], ids=str)
def test_a_queue_without_room_or_time_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(Invalid, match="at least 1"):
        JobQueue(**wrong)


def test_a_job_that_waited_five_minutes_leaves_the_queue() -> None:
    queue = JobQueue()
    queue.push(0, "a", 5, 1)
    queue.push(SECOND, "b", 9, 2)
    assert queue.next_tick_at == 300 * SECOND

    assert queue.tick(300 * SECOND - 1) == []
    late = queue.tick(300 * SECOND)

    assert late == [QueueTimedOut("a", 300 * SECOND)]
    assert late[0].reason == "it waited 300 s for cores and got none"
    assert (queue.jobs(), queue.next_tick_at) == (["b"], 301 * SECOND)


def test_jobs_that_are_late_together_leave_in_their_order() -> None:
    queue = JobQueue(timeout_ns=SECOND)
    queue.push(0, "low", 1, 1)
    queue.push(0, "high", 9, 2)

    assert [news.job for news in queue.tick(2 * SECOND)] == ["high", "low"]
    assert queue.next_tick_at == NEVER


def test_a_job_that_left_in_time_is_not_late() -> None:
    queue = JobQueue(timeout_ns=SECOND)
    queue.push(0, "a", 5, 1)
    queue.remove("a")

    assert queue.tick(SECOND) == []


@pytest.mark.parametrize(
    ("least", "free", "total", "ahead", "text"),
    [
        (4, 2, 6, 0, "waits for 4 cores: 2 of 6 are free"),
        (1, 0, 6, 3, "waits for 1 core: 0 of 6 are free"),
        (8, 6, 6, 0, "waits for 8 cores: the pool has 6"),
        (2, 4, 6, 1, "waits behind 1 other job"),
        (2, 4, 6, 2, "waits behind 2 other jobs"),
        (2, 4, 6, 0, "is about to start"),
    ],
)
def test_the_reason_for_waiting_is_said(least: int, free: int, total: int, ahead: int, text: str) -> None:
    assert waiting_reason(least, free=free, total=total, ahead=ahead) == text


@given(
    moves=st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.integers(0, 9), st.integers(1, 10)),
            st.tuples(st.just("remove"), st.integers(0, 9), st.just(0)),
        ),
        max_size=30,
    )
)
@quick
def test_the_queue_is_always_in_order_whatever_comes_and_goes(moves: list[tuple[str, int, int]]) -> None:
    queue = JobQueue(limit=10)
    waiting: dict[str, tuple[int, int]] = {}
    for number, (move, job, priority) in enumerate(moves):
        name = f"job {job}"
        if move == "push":
            queue.push(0, name, priority, number)
            waiting.setdefault(name, (-priority, number))
        else:
            queue.remove(name)
            waiting.pop(name, None)

    assert queue.jobs() == sorted(waiting, key=lambda name: waiting[name])


@pytest.mark.parametrize(
    ("out", "text"),
    [
        ([], "no workers"),
        (["w1 is draining"], "no worker takes new work now: w1 is draining"),
        (
            [f"w{n} is silent" for n in range(7)],
            "no worker takes new work now: "
            "w0 is silent, w1 is silent, w2 is silent, w3 is silent, w4 is silent and 2 more",
        ),
    ],
    ids=["none", "one", "many"],
)
def test_a_job_that_finds_no_worker_is_told_what_is_so_with_those_that_are_there(out: list[str], text: str) -> None:
    assert no_workers_text(out) == text
