"""What workers were told of the attempts of a job, and when it is said again."""

from talka.cluster.effects import Lane, Send
from talka.control.jobs.commands import AGAIN_NS, SILENCE_NS, SYNC_EVERY_NS, Commands
from talka.control.load.shard_run import ShardAttempt
from talka.control.member.clock_offsets import ClockOffsets
from talka.units import SECOND
from talka.wire.jobs import CHANNEL, Acknowledge, Halt, Start
from talka.wire.shards import Go, ShardAnswer, TimeOver
from talka.work.deadlines import Allowance

FENCE = (1, 1, 1)
STOP = Halt("b4k7", FENCE, 1, "stop")
OTHER = Halt("b4k7", FENCE, 2, "stop")


def commands() -> Commands:
    return Commands("b4k7", FENCE, ClockOffsets())


def test_a_command_is_said_again_until_it_is_dropped() -> None:
    told = commands()

    assert told.give(0, 1, "w1", STOP, Lane.RESULTS) == Send(CHANNEL, "w1", STOP, Lane.RESULTS)

    assert told.pending(1) == STOP
    assert told.again(AGAIN_NS - 1) == []
    assert told.again(AGAIN_NS) == [Send(CHANNEL, "w1", STOP, Lane.RESULTS)]
    assert told.again(2 * AGAIN_NS - 1) == []
    assert told.again(2 * AGAIN_NS) == [Send(CHANNEL, "w1", STOP, Lane.RESULTS)]
    told.drop(1)
    told.drop(1)
    assert told.pending(1) is None
    assert told.again(9 * AGAIN_NS) == []


def test_a_later_command_takes_the_place_of_an_earlier_one() -> None:
    told = commands()
    told.give(0, 1, "w1", Acknowledge("b4k7", FENCE, 1, 4))

    told.give(AGAIN_NS, 1, "w1", STOP)

    assert told.again(AGAIN_NS) == []
    assert told.again(2 * AGAIN_NS) == [Send(CHANNEL, "w1", STOP, Lane.STREAM)]


def test_a_kill_is_said_once_and_nothing_else_after_it() -> None:
    told = commands()
    told.give(0, 1, "w1", STOP)
    told.give(0, 2, "w2", OTHER)

    assert told.kill(1, "w1") == Send(CHANNEL, "w1", Halt("b4k7", FENCE, 1, "kill"), Lane.RESULTS)

    assert told.again(AGAIN_NS) == [Send(CHANNEL, "w2", OTHER, Lane.STREAM)]


def test_a_kill_of_what_was_never_told_is_said_all_the_same() -> None:
    assert commands().kill(7, "w1") == Send(CHANNEL, "w1", Halt("b4k7", FENCE, 7, "kill"), Lane.RESULTS)


def test_a_kill_at_another_worker_leaves_the_command_alone() -> None:
    told = commands()
    told.heard(0, 1)
    told.give(0, 1, "w1", STOP)

    assert told.kill(1, "w2") == Send(CHANNEL, "w2", Halt("b4k7", FENCE, 1, "kill"), Lane.RESULTS)

    assert told.pending(1) == STOP


def test_an_attempt_is_asked_after_when_it_has_been_silent_for_a_while_and_then_once_a_second() -> None:
    told = commands()
    told.heard(0, 1)

    assert not told.is_silent(SILENCE_NS - 1, 1)
    assert told.is_silent(SILENCE_NS, 1)
    assert not told.is_silent(SILENCE_NS + AGAIN_NS - 1, 1)
    assert told.is_silent(SILENCE_NS + AGAIN_NS, 1)
    told.heard(SILENCE_NS + AGAIN_NS, 1)
    assert not told.is_silent(SILENCE_NS + 2 * AGAIN_NS, 1)


def test_silence_of_one_that_was_never_heard_counts_from_the_first_look() -> None:
    told = commands()

    assert not told.is_silent(70 * SILENCE_NS, 1)
    assert not told.is_silent(71 * SILENCE_NS - 1, 1)
    assert told.is_silent(71 * SILENCE_NS, 1)


def test_one_that_was_told_something_is_not_asked_after() -> None:
    told = commands()
    told.heard(0, 1)
    told.give(0, 1, "w1", STOP)

    assert not told.is_silent(SILENCE_NS, 1)
    told.drop(1)

    assert told.is_silent(SILENCE_NS, 1)


def test_silence_of_one_that_was_killed_is_forgotten() -> None:
    told = commands()
    told.heard(0, 1)

    told.kill(1, "w1")

    assert not told.is_silent(SILENCE_NS, 1)


def knowing(*workers: str) -> ClockOffsets:
    """Clocks that are a second ahead of this one."""
    clocks = ClockOffsets()
    for worker in workers:
        clocks.heard(0, worker, clocks.asked(0, worker), SECOND)
    return clocks


def test_a_start_is_told_by_the_clock_of_its_worker() -> None:
    told = Commands("b4k7", FENCE, knowing("w1"))

    start = Start("b4k7", FENCE, 1, SECOND + 5, SECOND + 4, SECOND + 3)
    assert told.start(0, 1, "w1", Go(5, 4, 3)) == [Send(CHANNEL, "w1", start, Lane.CONTROL)]

    assert told.pending(1) == start


def test_a_start_waits_until_the_clock_of_its_worker_is_known() -> None:
    clocks = knowing("w2")
    told = Commands("b4k7", FENCE, clocks)
    assert told.start(0, 1, "w1", Go(5, 4, 3)) == []
    assert told.on_clock(1, "w2") == []
    assert told.on_clock(1, "w1") == [], "it said nothing that was asked"

    clocks.heard(2, "w1", clocks.asked(2, "w1"), 2)

    assert told.on_clock(2, "w1") == [Send(CHANNEL, "w1", Start("b4k7", FENCE, 1, 5, 4, 3), Lane.CONTROL)]
    assert told.on_clock(3, "w1") == []


def test_a_start_that_waits_is_forgotten_when_the_attempt_is_stopped_killed_or_over() -> None:
    clocks = ClockOffsets()
    told = Commands("b4k7", FENCE, clocks)
    for attempt in (1, 2, 3, 4):
        told.start(0, attempt, "w1", Go(5, 4, 3))

    told.stop(1, 1, "w1")
    told.kill(2, "w1")
    told.drop(3)
    told.kill(4, "w2")  # of another attempt with this number

    clocks.heard(2, "w1", clocks.asked(2, "w1"), 2)
    assert [said.message for said in told.on_clock(2, "w1")] == [Start("b4k7", FENCE, 4, 5, 4, 3)]


def test_clocks_are_asked_of_workers_that_wait_or_are_unknown_ten_times_a_second() -> None:
    told = Commands("b4k7", FENCE, knowing("w1", "w2"))
    waits, runs, unknown = ShardAttempt(1, 0, "w1"), ShardAttempt(2, 0, "w2"), ShardAttempt(3, 0, "w3")
    runs.go_at_ns = unknown.go_at_ns = 5

    asked = told.ask_clocks(0, [waits, runs, unknown, waits])

    assert [said.to for said in asked] == ["w1", "w3"]
    assert told.ask_clocks(SYNC_EVERY_NS - 1, [waits]) == []
    assert told.ask_clocks(SYNC_EVERY_NS, []) == []


# -- more time


def test_what_an_attempt_is_told_of_its_time_is_said_with_each_acknowledgement_until_it_is_over() -> None:
    told = commands()
    attempt = ShardAttempt(1, 0, "w1")
    attempt.sequence = 4
    answer, over = ShardAnswer(2, Allowance(SECOND, 3, SECOND)), TimeOver(SECOND)

    first = told.tell_time(attempt, answer)
    second = told.tell_time(attempt, over)

    assert first == Send(CHANNEL, "w1", Acknowledge("b4k7", FENCE, 1, 4, 0, answer), Lane.STREAM)
    assert second == Send(CHANNEL, "w1", Acknowledge("b4k7", FENCE, 1, 4, 0, answer, over), Lane.STREAM)
    assert told.acknowledge(1, "w1", 5, Lane.STATISTICS).message == Acknowledge("b4k7", FENCE, 1, 5, 0, answer, over)
    told.drop(1)
    assert told.acknowledge(1, "w1", 6, Lane.STATISTICS).message == Acknowledge("b4k7", FENCE, 1, 6)
