"""The cores of a worker, from when they are drawn until their processes have ended."""

from talka.control.worker.core_pool import DEATH_LIMIT_NS, LEAVE_LIMIT_NS, CorePool
from talka.units import NEVER

NOW = 1_000_000_000
TASK = ("job", 1)
OTHER = ("job", 2)
SEATS = [("job", 0, number) for number in range(4)]


def test_an_attempt_has_a_number_of_its_own_and_belongs_to_its_task() -> None:
    pool = CorePool(4)

    assert [pool.draw(TASK, SEATS[0]), pool.draw(OTHER, SEATS[1])] == [(1, 1), (2, 2)]

    assert (pool.owner_of(1), pool.owner_of(2), pool.owner_of(3)) == (TASK, OTHER, None)
    assert pool.free == 2


def test_a_core_is_free_again_when_its_process_has_ended() -> None:
    pool = CorePool(2)
    pool.draw(TASK, SEATS[0])
    pool.draw(TASK, SEATS[1])

    pool.exited(1)
    pool.leaves(NOW, 2)
    assert (pool.free, pool.owner_of(2)) == (1, None)
    pool.exited(2)
    pool.exited(9)

    assert pool.free == 2
    assert pool.draw(TASK, SEATS[0]) == (3, 3), "numbers are not given twice"


def test_attempts_at_one_seat_share_a_process_and_take_one_core() -> None:
    pool = CorePool(2)
    pool.draw(TASK, SEATS[0])

    assert pool.draw(OTHER, SEATS[0]) == (2, 1)

    assert pool.free == 1
    assert pool.has_room(SEATS[:2])
    assert not pool.has_room(SEATS[1:3])


def test_a_shared_core_is_free_when_its_last_attempt_has_ended() -> None:
    pool = CorePool(1)
    pool.draw(TASK, SEATS[0])
    pool.draw(OTHER, SEATS[0])

    pool.exited(1)
    assert pool.free == 0
    assert pool.draw(TASK, SEATS[0]) == (3, 1), "the process still runs"
    pool.exited(2)
    pool.exited(3)

    assert pool.free == 1


def test_nobody_joins_a_process_that_is_about_to_end() -> None:
    pool = CorePool(2)
    pool.draw(TASK, SEATS[0])
    pool.leaves(NOW, 1)

    assert pool.has_room(SEATS[:1])
    assert pool.draw(OTHER, SEATS[0]) == (2, 2)
    assert pool.free == 0
    pool.exited(1)

    assert pool.draw(TASK, SEATS[0]) == (3, 2)


def test_a_core_that_does_not_end_after_its_last_word_is_killed() -> None:
    pool = CorePool(2)
    pool.draw(TASK, SEATS[0])
    pool.draw(TASK, SEATS[1])
    pool.leaves(NOW, 1)
    pool.leaves(NOW + 1, 2)
    assert pool.next_tick_at == NOW + LEAVE_LIMIT_NS

    assert pool.tick(NOW + LEAVE_LIMIT_NS - 1) == []
    assert pool.tick(NOW + LEAVE_LIMIT_NS) == [1]
    assert pool.tick(NOW + LEAVE_LIMIT_NS + 1) == [2]

    assert pool.free == 0, "a process that was killed may take a while to end"


def test_a_core_that_was_killed_is_not_counted_for_ever() -> None:
    pool = CorePool(1)
    pool.draw(TASK, SEATS[0])
    pool.killed(NOW, 1)
    assert (pool.free, pool.next_tick_at) == (0, NOW + DEATH_LIMIT_NS)

    assert pool.tick(NOW + DEATH_LIMIT_NS) == []

    assert (pool.free, pool.next_tick_at) == (1, NEVER)


def test_an_attempt_that_has_ended_is_not_counted_when_it_is_killed() -> None:
    pool = CorePool(1)
    pool.draw(TASK, SEATS[0])
    pool.exited(1)

    pool.killed(NOW, 1)

    assert (pool.free, pool.next_tick_at) == (1, NEVER)
