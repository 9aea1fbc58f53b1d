"""What a manager finds out before it leads a job that another one led."""

from talka.cluster.effects import Lane, Send
from talka.control.jobs.take_over import ASK_EVERY_NS, FENCE_ROUNDS, REMIND_EVERY_NS, TakeOver
from talka.units import SECOND
from talka.wire.jobs import CHANNEL, Reconcile, TaskFacts, WorkerSnapshot

FENCE = (1, 2, 1)
NOW = 1_000 * SECOND


def take_over() -> TakeOver:
    return TakeOver("b4k7", FENCE)


def asked(number: int, *workers: str) -> list[object]:
    return [Send(CHANNEL, worker, Reconcile("b4k7", FENCE, number), Lane.CONTROL) for worker in workers]


def snapshot(*tasks: TaskFacts, fence: tuple[int, int, int] = FENCE) -> WorkerSnapshot:
    return WorkerSnapshot("b4k7", fence, 1, tasks)


def test_workers_are_asked_until_they_have_answered() -> None:
    finds = take_over()

    assert finds.ask(NOW, ["w1", "w2"]) == asked(1, "w1", "w2")
    assert finds.ask(NOW + ASK_EVERY_NS - 1, ["w1", "w2"]) == []
    finds.on_snapshot(NOW, "w1", snapshot())
    assert finds.ask(NOW + ASK_EVERY_NS, ["w1", "w2"]) == asked(2, "w2")
    finds.on_snapshot(NOW, "w2", snapshot())
    assert finds.ask(NOW + 2 * ASK_EVERY_NS, ["w1", "w2"]) == []


def test_an_answer_tells_what_the_worker_has() -> None:
    finds = take_over()
    running = TaskFacts(4, "running", SECOND, SECOND)

    assert not finds.has_all(["w1"])
    finds.on_snapshot(NOW, "w1", snapshot(running))

    assert finds.has_all(["w1"])
    assert finds.facts("w1", 4) == running
    assert finds.facts("w1", 5) is None


def test_an_answer_under_another_fence_is_none() -> None:
    finds = take_over()
    finds.also_tell(["w2"])

    finds.on_snapshot(NOW, "w1", snapshot(fence=(1, 1, 9)))
    finds.on_snapshot(NOW, "w2", snapshot(fence=(1, 1, 9)))

    assert not finds.has_all(["w1"])
    assert finds.ask(NOW, ["w1"]) == asked(1, "w1")
    assert finds.remind(NOW) == asked(2, "w2")


def test_workers_that_are_skipped_have_nothing_and_are_not_asked() -> None:
    finds = take_over()

    finds.skip(["w1", "w2"])

    assert finds.ask(NOW, ["w1", "w2"]) == []
    assert finds.has_all(["w1"])
    assert finds.facts("w2", 1) is None
    assert finds.origins(0, 0) == (0, {})


def test_lost_workers_are_told_for_half_a_minute_and_not_waited_for() -> None:
    finds = take_over()
    finds.also_tell(["w8", "w9"])

    words = [finds.remind(NOW + number * REMIND_EVERY_NS) for number in range(FENCE_ROUNDS + 2)]

    assert words[:FENCE_ROUNDS] == [asked(number + 1, "w8", "w9") for number in range(FENCE_ROUNDS)]
    assert words[FENCE_ROUNDS:] == [[], []]
    assert FENCE_ROUNDS * REMIND_EVERY_NS == 30 * SECOND


def test_lost_workers_are_told_once_a_second_until_they_answer() -> None:
    finds = take_over()
    assert finds.remind(NOW) == []
    finds.also_tell(["w8", "w9"])

    assert finds.remind(NOW) == asked(1, "w8", "w9")
    assert finds.remind(NOW + REMIND_EVERY_NS - 1) == []
    finds.on_snapshot(NOW + 1, "w8", snapshot())

    assert finds.remind(NOW + REMIND_EVERY_NS) == asked(2, "w9")


def test_a_lost_worker_that_has_answered_before_is_not_told_again() -> None:
    finds = take_over()
    finds.on_snapshot(NOW, "w8", snapshot())

    finds.also_tell(["w8", "w9"])

    assert finds.remind(NOW) == asked(1, "w9")


def test_when_the_load_began_is_told_by_the_workers_of_what_runs_or_has_ended() -> None:
    finds = take_over()
    finds.on_snapshot(NOW, "w1", snapshot(TaskFacts(1, "running", 3 * SECOND, 8 * SECOND), TaskFacts(2, "arming")))
    finds.on_snapshot(
        NOW + SECOND,
        "w2",
        snapshot(TaskFacts(3, "ended", 9 * SECOND, 9 * SECOND + 5, "a" * 64, 9), TaskFacts(4, "armed")),
    )

    origin_ns, origins = finds.origins(77, 5)

    assert origin_ns == NOW - 8 * SECOND - 5, "the earliest of what they tell"
    assert origins == {1: NOW - 3 * SECOND, 3: NOW - 8 * SECOND}


def test_the_wall_clock_is_asked_only_where_no_worker_knows_when_the_load_began() -> None:
    finds = take_over()
    finds.on_snapshot(NOW, "w1", snapshot(TaskFacts(1, "armed"), TaskFacts(2, "ended", digest="a" * 64)))

    assert finds.origins(5_000, 2 * SECOND) == (3 * SECOND, {})
    assert finds.origins(0, 2 * SECOND) == (0, {})
