"""What waits on a connection, in strict lanes."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.member.send_queue import Class, LaneLimits, SendQueue
from talka.errors import Invalid
from talka.units import SECOND

quick = settings(deadline=None, derandomize=True, max_examples=150)
CONTROL, RESULTS, JOBS, STATISTICS = Class
SMALL = LaneLimits(frames=2, size_bytes=10, jobs_age_ns=10 * SECOND, statistics_age_ns=2 * SECOND)


def all_of(queue: SendQueue, now: int = 0) -> list[bytes]:
    frames = []
    while (frame := queue.pop(now)) is not None:
        frames.append(frame)
    return frames


def test_an_empty_queue_has_nothing_to_send() -> None:
    queue = SendQueue()
    assert queue.pop(0) is None
    assert (len(queue), queue.size_bytes) == (0, 0)


def test_a_lower_class_goes_first_however_late_it_came() -> None:
    queue = SendQueue()
    for cls in (STATISTICS, JOBS, RESULTS, CONTROL):
        assert queue.push(0, cls, cls.name.encode())
    assert all_of(queue) == [b"CONTROL", b"RESULTS", b"JOBS", b"STATISTICS"]
    assert queue.sent == [1, 1, 1, 1]


@pytest.mark.parametrize("cls", [CONTROL, RESULTS, JOBS], ids=lambda cls: cls.name)
def test_frames_of_a_class_leave_in_the_order_they_came(cls: Class) -> None:
    queue = SendQueue()
    for frame in (b"1", b"2", b"3"):
        queue.push(0, cls, frame)
    assert all_of(queue) == [b"1", b"2", b"3"]


def test_of_statistics_the_newest_leaves_first() -> None:
    queue = SendQueue()
    for frame in (b"1", b"2", b"3"):
        queue.push(0, STATISTICS, frame)
    assert all_of(queue) == [b"3", b"2", b"1"]


def test_statistics_are_shed_by_age_and_the_younger_stay() -> None:
    queue = SendQueue(SMALL)
    queue.push(0, STATISTICS, b"old")
    queue.push(SECOND, STATISTICS, b"young")
    assert all_of(queue, 2 * SECOND + 1) == [b"young"]
    assert queue.shed == [0, 0, 0, 1]


def test_a_frame_exactly_at_its_age_limit_is_still_sent() -> None:
    queue = SendQueue(SMALL)
    queue.push(0, STATISTICS, b"s")
    queue.push(0, JOBS, b"j")
    assert queue.pop(10 * SECOND) == b"j"
    queue.push(10 * SECOND, STATISTICS, b"t")
    assert queue.pop(12 * SECOND) == b"t"


def test_a_job_frame_is_shed_when_too_old_and_all_statistics_go_before_it() -> None:
    queue = SendQueue(SMALL)
    queue.push(0, JOBS, b"old")
    queue.push(9 * SECOND, JOBS, b"young")
    queue.push(10 * SECOND, STATISTICS, b"fresh")
    assert all_of(queue, 10 * SECOND + 1) == [b"young"]
    assert queue.shed == [0, 0, 1, 1]


def test_old_statistics_alone_cost_no_job_frame() -> None:
    queue = SendQueue(SMALL)
    queue.push(0, JOBS, b"job")
    queue.push(0, STATISTICS, b"old")
    assert all_of(queue, 5 * SECOND) == [b"job"]
    assert queue.shed == [0, 0, 0, 1]


def test_control_and_results_are_never_shed() -> None:
    queue = SendQueue(SMALL)
    queue.push(0, CONTROL, b"vote")
    queue.push(0, RESULTS, b"result")
    assert all_of(queue, 3600 * SECOND) == [b"vote", b"result"]
    assert queue.shed == [0, 0, 0, 0]


@pytest.mark.parametrize("cls", [CONTROL, RESULTS], ids=lambda cls: cls.name)
def test_a_full_lane_that_may_not_be_shed_is_stuck_and_says_so(cls: Class) -> None:
    queue = SendQueue(SMALL)
    assert queue.push(0, cls, b"1")
    assert queue.push(0, cls, b"2")
    assert not queue.is_stuck
    assert not queue.push(0, cls, b"3")
    assert queue.is_stuck
    assert queue.refused[cls] == 1
    assert all_of(queue) == [b"1", b"2"]
    assert queue.is_stuck  # The owner closes the connection, also if it moves again.


def test_a_lane_is_full_by_bytes_too() -> None:
    queue = SendQueue(SMALL)
    assert queue.push(0, CONTROL, b"123456")
    assert not queue.push(0, CONTROL, b"12345")
    assert queue.is_stuck
    assert queue.size_bytes == 6


def test_a_full_lane_leaves_the_others_their_room() -> None:
    queue = SendQueue(SMALL)
    for cls in (RESULTS, JOBS, STATISTICS):
        for _ in range(3):
            queue.push(0, cls, b"12345")
    assert queue.push(0, CONTROL, b"12345")
    assert queue.push(0, CONTROL, b"12345")


def test_a_full_lane_of_jobs_refuses_the_new_one_and_is_not_stuck() -> None:
    queue = SendQueue(SMALL)
    queue.push(0, JOBS, b"1")
    queue.push(0, JOBS, b"2")
    assert not queue.push(0, JOBS, b"3")
    assert not queue.is_stuck
    assert (queue.refused, queue.shed) == ([0, 0, 1, 0], [0, 0, 0, 0])
    assert all_of(queue) == [b"1", b"2"]


def test_a_full_lane_makes_room_by_shedding_what_is_too_old() -> None:
    queue = SendQueue(SMALL)
    queue.push(0, JOBS, b"1")
    queue.push(0, JOBS, b"2")
    assert queue.push(10 * SECOND + 1, JOBS, b"3")
    assert queue.waiting(JOBS) == 1


def test_full_statistics_push_out_their_oldest() -> None:
    queue = SendQueue(SMALL)
    for frame in (b"1", b"2", b"3"):
        assert queue.push(0, STATISTICS, frame)
    assert queue.push(0, STATISTICS, b"123456789")
    assert queue.shed == [0, 0, 0, 2]
    assert all_of(queue) == [b"123456789", b"3"]


def test_statistics_larger_than_their_lane_are_refused_and_push_out_nothing() -> None:
    queue = SendQueue(SMALL)
    queue.push(0, STATISTICS, b"1")
    assert not queue.push(0, STATISTICS, b"12345678901")
    assert (queue.refused, queue.shed) == ([0, 0, 0, 1], [0, 0, 0, 0])
    assert not queue.is_stuck
    assert all_of(queue) == [b"1"]


moves = st.lists(
    st.tuples(st.integers(0, SECOND), st.one_of(st.none(), st.tuples(st.sampled_from(Class), st.integers(0, 6)))),
    max_size=60,
)


@quick
@given(moves)
def test_every_frame_is_sent_shed_refused_or_waits_and_limits_hold(
    steps: list[tuple[int, tuple[Class, int] | None]],
) -> None:
    queue = SendQueue(SMALL)
    now = 0
    ages: dict[bytes, tuple[Class, int]] = {}
    sent: Counter[Class] = Counter()
    for number, (step_ns, push) in enumerate(steps):
        now += step_ns
        if push is None:
            frame = queue.pop(now)
            if frame is not None:
                cls, pushed_at = ages[frame]
                sent[cls] += 1
                assert cls < JOBS or now - pushed_at <= (10 if cls is JOBS else 2) * SECOND
        else:
            cls, size_bytes = push
            frame = number.to_bytes(2) + bytes(size_bytes)
            ages[frame] = (cls, now)
            taken = queue.push(now, cls, frame)
            # 8 bytes at most, so one always fits into an empty lane.
            assert taken or cls is not STATISTICS
        for cls in Class:
            assert queue.waiting(cls) <= 2
            assert queue.pushed[cls] == queue.sent[cls] + queue.shed[cls] + queue.waiting(cls)
        assert queue.sent == [sent[cls] for cls in Class]
        assert queue.shed[CONTROL] == queue.shed[RESULTS] == 0
        assert queue.is_stuck == bool(queue.refused[CONTROL] + queue.refused[RESULTS])
        assert queue.size_bytes <= 40


@pytest.mark.parametrize(
    "changes",
    [{"frames": 0}, {"size_bytes": 0}, {"statistics_age_ns": 0}, {"statistics_age_ns": 2, "jobs_age_ns": 1}],
    ids=["frames", "bytes", "no age", "statistics outlive jobs"],
)
def test_limits_that_make_no_sense_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(Invalid, match="at least 1"):
        LaneLimits(**changes)


def test_the_smallest_lane_holds_one_frame_of_one_byte() -> None:
    queue = SendQueue(LaneLimits(frames=1, size_bytes=1, jobs_age_ns=1, statistics_age_ns=1))
    assert [queue.push(0, JOBS, frame) for frame in (b"ab", b"a", b"b")] == [False, True, False]
    assert all_of(queue) == [b"a"]
