"""The cores of a worker, from when they are drawn until their processes have ended."""

from talka.control.core_pool import DEATH_LIMIT_NS, LEAVE_LIMIT_NS, NEVER, CorePool

NOW = 1_000_000_000
TASK = ("job", 1)


def test_a_core_has_a_number_of_its_own_and_belongs_to_its_task() -> None:
    pool = CorePool(4)

    assert [pool.draw(TASK), pool.draw(("job", 2))] == [1, 2]

    assert (pool.task_of(1), pool.task_of(2), pool.task_of(3)) == (TASK, ("job", 2), None)
    assert pool.free == 2


def test_a_core_is_free_again_when_its_process_has_ended() -> None:
    pool = CorePool(2)
    pool.draw(TASK)
    pool.draw(TASK)

    pool.exited(1)
    pool.leaves(NOW, 2)
    assert (pool.free, pool.task_of(2)) == (1, None)
    pool.exited(2)
    pool.exited(9)

    assert pool.free == 2
    assert pool.draw(TASK) == 3, "numbers are not given twice"


def test_a_core_that_does_not_end_after_its_last_word_is_killed() -> None:
    pool = CorePool(2)
    pool.draw(TASK)
    pool.draw(TASK)
    pool.leaves(NOW, 1)
    pool.leaves(NOW + 1, 2)
    assert pool.next_tick_at == NOW + LEAVE_LIMIT_NS

    assert pool.tick(NOW + LEAVE_LIMIT_NS - 1) == []
    assert pool.tick(NOW + LEAVE_LIMIT_NS) == [1]
    assert pool.tick(NOW + LEAVE_LIMIT_NS + 1) == [2]

    assert pool.free == 0, "a process that was killed may take a while to end"


def test_a_core_that_was_killed_is_not_counted_for_ever() -> None:
    pool = CorePool(1)
    pool.draw(TASK)
    pool.killed(NOW, 1)
    assert (pool.free, pool.next_tick_at) == (0, NOW + DEATH_LIMIT_NS)

    assert pool.tick(NOW + DEATH_LIMIT_NS) == []

    assert (pool.free, pool.next_tick_at) == (1, NEVER)
