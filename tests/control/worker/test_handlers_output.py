"""What attempts write, at their worker: told now and then while they run, whole with their result, and as far as it had
arrived when their process died."""

from __future__ import annotations

from typing import Any

import msgspec

from talka.control.worker.effects import EndHandlers, ExitFacts
from talka.control.worker.handlers_attempt import SHARED_STACK_BYTES
from talka.control.worker.handlers_outbox import WROTE_BYTES, WROTE_LIMIT_BYTES, WROTE_NS, HandlerLimits
from talka.control.worker.handlers_room import STOP_LIMIT_NS
from talka.units import MILLISECOND, SECOND
from talka.wire.output_tail import STREAM_LIMIT_BYTES, StreamTail, Wrote
from talka.wire.tasks import BATCH_LIMIT_BYTES, Done, HandlerProgress, Said, TaskProgress, TaskResult
from tests.control.worker.test_handlers_pool import FIRST, SEGFAULT, Rig, task


def out(content: bytes, written: int = 0, stream: Any = "stdout") -> StreamTail:
    return StreamTail(stream, content, written or len(content))


STACK = b'  File "etl.py", line 7 in resize\nFatal Python error: Segmentation fault\n'
CRASHED = msgspec.structs.replace(SEGFAULT, stack=STACK)


def killed(stack: bytes = b"") -> ExitFacts:
    return ExitFacts("SIGKILL", signal="SIGKILL", stack=stack)


def tracebacks(rig: Rig) -> list[str]:
    """Of each result; empty: none."""
    told = [{tail.stream: tail.content.decode() for tail in result.tails} for result in rig.results]
    return [tails.get("traceback", "") for tails in told]


def wrote(rig: Rig, number: int, *tails: StreamTail) -> None:
    rig.say(rig.core_of.get(FIRST + number, 1), Said(wrote=(Wrote(FIRST + number, tails),)))


def told(rig: Rig) -> list[Wrote]:
    return [one for message in rig.all(TaskProgress) for one in message.wrote]


def test_of_a_process_that_dies_its_attempts_have_what_had_arrived() -> None:
    rig = Rig(cores=1)
    rig.hand(task(1), task(2))
    wrote(rig, 1, out(b"begun\n"), out(b"oh\n", stream="stderr"))
    wrote(rig, 1, out(b"half\n", 11))
    rig.exit(1, SEGFAULT)

    first, second = rig.results
    assert first.tails == (out(b"begun\nhalf\n"), out(b"oh\n", stream="stderr"))
    assert (first.outcome, second.outcome, second.tails) == ("died", "died", ())


def test_a_result_says_all_that_its_attempt_wrote() -> None:
    rig = Rig(cores=1)
    rig.hand(task(1))
    wrote(rig, 1, out(b"begun\n"))
    rig.ran(1, tails=(out(b"other\n"),))

    assert [result.tails for result in rig.results] == [(out(b"other\n"),)]


def test_what_is_written_is_told_once_a_second_while_its_attempt_runs() -> None:
    rig = Rig(cores=1)
    rig.hand(task(1), task(2))
    rig.later(SECOND)
    wrote(rig, 1, out(b"one\n"))
    wrote(rig, 1, out(b"two\n", 8))
    assert told(rig) == []
    rig.later(WROTE_NS)
    assert told(rig) == [Wrote(FIRST + 1, (out(b"one\ntwo\n"),))]
    rig.later(5 * WROTE_NS)
    assert len(told(rig)) == 1, "nothing new was written"
    wrote(rig, 2, out(b"x" * WROTE_BYTES + b"end"))
    rig.later(WROTE_NS)
    assert told(rig)[1:] == [Wrote(FIRST + 2, (out((b"x" * WROTE_BYTES + b"end")[3:], WROTE_BYTES + 3),))]


def test_what_ends_before_its_turn_is_told_with_its_result_alone() -> None:
    rig = Rig(cores=1)
    rig.hand(task(1), task(2))
    wrote(rig, 1, out(b"one\n"))
    wrote(rig, 2, out(b"two\n"))
    rig.ran(1, tails=(out(b"one\n"),))
    rig.later(WROTE_NS)

    assert [one.fence for one in told(rig)] == [FIRST + 2]
    rig.ran(2)
    rig.took(1, 2)
    assert rig.pool.next_tick_at > rig.now


def test_of_many_that_write_much_the_rest_is_told_the_next_time() -> None:
    rig = Rig(cores=2)
    count = WROTE_LIMIT_BYTES // WROTE_BYTES + 10
    rig.hand(*(task(number) for number in range(1, count + 1)))
    for number in range(1, count + 1):
        wrote(rig, number, out(b"x" * WROTE_BYTES))
    rig.later(WROTE_NS)
    first = len(told(rig))
    assert 0 < first < count
    rig.later(WROTE_NS)
    assert sorted(one.fence for one in told(rig)) == [FIRST + number for number in range(1, count + 1)]


def test_words_of_attempts_that_are_not_here_are_passed_over() -> None:
    rig = Rig(cores=1)
    rig.hand(task(1))
    rig.say(1, Said(wrote=(Wrote(FIRST + 9, (out(b"?"),)),)))
    rig.say(77, Said(wrote=(Wrote(FIRST + 1, (out(b"?"),)),)))
    rig.later(2 * WROTE_NS)

    assert told(rig) == []


def test_results_with_long_output_travel_in_messages_that_are_not_too_large() -> None:
    rig = Rig(cores=2)
    numbers = range(1, 21)
    rig.hand(*(task(number) for number in numbers))
    rig.forget()
    long = (out(b"x" * STREAM_LIMIT_BYTES), out(b"y" * STREAM_LIMIT_BYTES, stream="stderr"))
    rig.ran(*numbers, tails=long)

    assert len(rig.results) == 20
    for done in rig.all(Done):
        assert sum(len(tail.content) for result in done.results for tail in result.tails) <= BATCH_LIMIT_BYTES


def test_output_counts_for_what_a_worker_may_hold() -> None:
    rig = Rig(cores=1, limits=HandlerLimits(results_bytes=3 * STREAM_LIMIT_BYTES))
    rig.hand(task(1), task(2))
    rig.ran(1, tails=(out(b"x" * STREAM_LIMIT_BYTES),) * 3)
    assert rig.count("results_untaken_bytes") > 3 * STREAM_LIMIT_BYTES
    rig.forget()
    rig.hand(task(3))
    assert rig.outcomes == [(3, "refused", "full")]
    rig.took(1, 3)
    rig.ran(2)
    rig.took(2)
    assert rig.count("results_untaken_bytes") == 0


def test_what_was_forgotten_is_not_told_of() -> None:
    rig = Rig(cores=1)
    rig.hand(task(1))
    wrote(rig, 1, out(b"one\n"))
    rig.pool._partitions[0].outbox.drop_all()
    rig.later(2 * WROTE_NS)

    assert told(rig) == []


def test_progress_and_output_of_one_word_both_arrive() -> None:
    rig = Rig(cores=1)
    rig.hand(task(1))
    rig.say(1, Said((HandlerProgress(FIRST + 1, b"1"),), (), (Wrote(FIRST + 1, (out(b"a"),)),)))
    rig.later(WROTE_NS)

    words = rig.all(TaskProgress)
    assert [one.details for message in words for one in message.progress] == [b"1", b"1"]
    assert [one.tails for message in words for one in message.wrote] == [(out(b"a"),)]


def test_nothing_of_output_is_told_or_waited_for_where_nothing_is_written() -> None:
    rig = Rig(cores=1)
    rig.hand(task(1))
    rig.ran(1)
    rig.took(1)

    assert rig.all(TaskProgress) == [] and rig.results[0] == TaskResult(FIRST + 1, "completed")


# Where a process was at its end.


def test_an_attempt_alone_in_a_process_that_crashed_has_its_stack() -> None:
    rig = Rig(cores=1)
    rig.hand(task(1))
    wrote(rig, 1, out(b"begun\n"))
    rig.exit(1, CRASHED)

    (result,) = rig.results
    traceback = b"It was here when it died:\n" + STACK
    assert result.tails == (out(b"begun\n"), out(traceback, stream="traceback"))
    assert (result.outcome, result.signal, result.alone) == ("died", "SIGSEGV", True)


def test_of_several_in_a_process_that_crashed_each_has_the_end_of_its_stack_and_whose_it_is() -> None:
    rig = Rig(cores=1)
    rig.hand(task(1), task(2), task(3))
    rig.exit(1, msgspec.structs.replace(CRASHED, stack=b"x" * SHARED_STACK_BYTES + STACK))

    head = "Its process, which 3 attempts shared, was here when it died:\n"
    assert [text[: len(head)] for text in tracebacks(rig)] == [head] * 3
    assert all(text.endswith(STACK.decode()) for text in tracebacks(rig))
    assert all(len(text) == len(head) + SHARED_STACK_BYTES for text in tracebacks(rig))


def test_a_process_that_left_no_stack_adds_nothing() -> None:
    rig = Rig(cores=1)
    rig.hand(task(1))
    rig.exit(1, SEGFAULT)

    assert [result.tails for result in rig.results] == [()]


def test_before_a_core_is_killed_for_an_attempt_that_did_not_stop_it_is_looked_at() -> None:
    rig = Rig(cores=1)
    rig.hand(task(1, attempt_ms=50), task(2))
    rig.later(50 * MILLISECOND + STOP_LIMIT_NS)
    assert rig.all(EndHandlers) == [EndHandlers(1, hard=True, shows_stack=True)]

    rig.exit(1, killed(STACK))

    # The neighbour ran well: it is not what the stack is about.
    head = "Its process, which 2 attempts shared, was here before it was killed:\n"
    assert tracebacks(rig) == [head + STACK.decode(), ""]
    assert [result.outcome for result in rig.results] == ["timeout", "died"]


def test_an_attempt_that_has_told_where_it_hangs_is_killed_at_once() -> None:
    rig = Rig(cores=1, plain=("resize",))
    rig.hand(task(1, attempt_ms=50))
    rig.later(50 * MILLISECOND)
    wrote(rig, 1, out(b"It was here when it was told to stop:\n", stream="traceback"))
    rig.later(STOP_LIMIT_NS)

    assert rig.all(EndHandlers) == [EndHandlers(1, hard=True)]
    rig.exit(1, killed())
    assert tracebacks(rig) == ["It was here when it was told to stop:\n"]


def test_one_that_was_recalled_and_did_not_stop_is_looked_at_too() -> None:
    rig = Rig(cores=1)
    rig.hand(task(1))
    rig.recall(1, grace_ms=100)
    rig.later(100 * MILLISECOND)
    assert rig.all(EndHandlers) == [EndHandlers(1, hard=True, shows_stack=True)]

    rig.exit(1, killed(STACK))

    assert tracebacks(rig) == ["It was here before it was killed:\n" + STACK.decode()]
    assert [result.outcome for result in rig.results] == ["cancelled"]


def test_a_crash_while_it_was_to_stop_is_told_after_where_it_hung() -> None:
    rig = Rig(cores=1, plain=("resize",))
    rig.hand(task(1, attempt_ms=50))
    rig.later(50 * MILLISECOND)
    wrote(rig, 1, out(b"It was here when it was told to stop:\n", stream="traceback"))
    rig.exit(1, CRASHED)

    assert tracebacks(rig) == [
        "It was here when it was told to stop:\nIt was here when it died:\n" + STACK.decode(),
    ]


def test_what_the_end_of_a_lease_kills_is_not_looked_at() -> None:
    rig = Rig(cores=1)
    rig.hand(task(1))
    rig.take(rig.pool.lease_ended(rig.now))
    assert rig.all(EndHandlers) == [EndHandlers(1, hard=True)]

    rig.exit(1, killed(STACK))

    assert tracebacks(rig) == [""]
