"""The time of attempts at their worker: more is asked for in time, a warning comes before the end, and answers count
once."""

from __future__ import annotations

from typing import Any

import pytest

from talka.control.worker.effects import ExitFacts
from talka.control.worker.handlers_attempt import ASK_AGAIN_NS, WANTED_LIMIT
from talka.control.worker.handlers_outbox import FLUSH_NS, HandlerOutbox
from talka.control.worker.handlers_room import STOP_LIMIT_NS
from talka.units import MILLISECOND, SECOND
from talka.wire.tasks import (
    HandlerProgress,
    MoreTime,
    Said,
    StopTasks,
    TaskProgress,
    TellTime,
    TimeAnswer,
    TimeAnswers,
    TimeTold,
    TimeWanted,
    WarnTasks,
)
from talka.work.deadlines import GRACE_NS
from tests.control.worker.test_handlers_pool import EPOCH, FIRST, Rig, task

FENCE = FIRST + 1


def rig_with(seconds: float = 30, handler: str = "fetch", **more: Any) -> Rig:
    """A worker on which an attempt has just begun."""
    rig = Rig(plain=("resize",))
    rig.hand(task(1, handler, attempt_ms=round(seconds * 1000), **more))
    return rig.forget()


def say(rig: Rig, **more: Any) -> None:
    rig.say(rig.core_of[FENCE], Said(**more))


def advance(rig: Rig, done: int) -> None:
    say(rig, progress=(HandlerProgress(FENCE, b"%d" % done, done),))


def asked(rig: Rig) -> list[MoreTime]:
    return [one for words in rig.all(TaskProgress) for one in words.more_time]


def grant(rig: Rig, number: int, ms: int, left: int = 4, why: str = "") -> None:
    rig.hear(TimeAnswers(EPOCH, (TimeAnswer(FENCE, number, ms, left, why),)))


def ends(rig: Rig) -> list[str]:
    """What cores were told of the end of an attempt."""
    return [type(message).__name__ for message in [*rig.all(WarnTasks), *rig.all(StopTasks)]]


def test_an_attempt_that_advances_asks_for_more_time_before_its_end() -> None:
    rig = rig_with(30)
    advance(rig, 3)
    rig.later(24 * SECOND)
    assert asked(rig) == []

    rig.later(SECOND + FLUSH_NS)
    assert asked(rig) == [MoreTime(FENCE, 1, 25_000, 3)]
    grant(rig, 1, 15_000)
    rig.later(18 * SECOND)
    assert ends(rig) == []
    assert rig.all(TellTime) == [TellTime((TimeTold(FENCE, 0, 15_000, 4),))]
    rig.later(2 * SECOND)
    assert ends(rig) == ["StopTasks"], "it has not advanced since"


def test_with_a_long_timeout_it_asks_ten_seconds_before_its_end() -> None:
    rig = rig_with(300)
    advance(rig, 1)
    rig.later(290 * SECOND - MILLISECOND)
    assert asked(rig) == []
    assert asked(rig.later(FLUSH_NS)) == [MoreTime(FENCE, 1, 290_000, 1)]


def test_what_is_not_answered_is_asked_again_until_the_end() -> None:
    rig = rig_with(30)
    advance(rig, 1)
    rig.later(25 * SECOND + 2 * ASK_AGAIN_NS + FLUSH_NS)

    assert [(one.number, one.ran_ms) for one in asked(rig)] == [(1, 25_000), (1, 26_000), (1, 27_000)]
    rig.later(5 * SECOND)
    assert ends(rig) == ["StopTasks"]


def test_an_attempt_that_does_nothing_when_it_is_warned_is_stopped_at_its_end() -> None:
    rig = rig_with(30)
    rig.later(30 * SECOND)
    assert (rig.all(StopTasks), asked(rig)) == ([StopTasks((FENCE,), "timeout")], [])
    assert (rig.count("attempts_warned_total"), rig.count("attempts_evicted_total")) == (0, 1)

    rig.later(STOP_LIMIT_NS)
    rig.exit(rig.core_of[FENCE], ExitFacts("SIGKILL", signal="SIGKILL"))
    assert rig.outcomes == [(1, "timeout", "timeout")]


def test_one_that_heeds_a_warning_has_ten_seconds() -> None:
    rig = rig_with(30)
    say(rig, heeding=(FENCE,))
    rig.later(30 * SECOND)
    assert rig.all(WarnTasks) == [WarnTasks((FENCE,))] and rig.all(StopTasks) == []

    rig.later(GRACE_NS - MILLISECOND)
    assert ends(rig) == ["WarnTasks"], "it is warned once"
    rig.later(MILLISECOND)
    assert ends(rig) == ["WarnTasks", "StopTasks"]
    assert (rig.count("attempts_warned_total"), rig.count("attempts_evicted_total")) == (1, 1)


def test_a_warning_is_told_until_it_is_answered() -> None:
    rig = rig_with(30)
    say(rig, heeding=(FENCE,))
    rig.later(31 * SECOND + FLUSH_NS)
    assert asked(rig) == [
        MoreTime(FENCE, 1, 30_000, is_warned=True),
        MoreTime(FENCE, 1, 31_000, is_warned=True),
    ]

    grant(rig, 1, 0)
    rig.later(3 * SECOND)
    assert len(asked(rig)) == 2
    assert rig.all(TellTime) == [], "nobody has asked"


def test_one_that_is_only_notified_goes_on_up_to_ten_times_its_timeout() -> None:
    rig = rig_with(30, on_timeout="notify")
    rig.later(30 * SECOND + FLUSH_NS)
    assert ends(rig) == ["WarnTasks"] and asked(rig)[0].is_warned
    grant(rig, 1, 0)
    rig.until(rig.now - FLUSH_NS + 270 * SECOND - MILLISECOND)
    assert ends(rig) == ["WarnTasks"]
    rig.later(MILLISECOND)
    assert ends(rig) == ["WarnTasks", "StopTasks"]


def test_what_a_handler_asks_for_is_asked_at_once_and_one_after_the_other() -> None:
    rig = rig_with(30)
    rig.later(2 * SECOND)
    wanted = TimeWanted(FENCE, 1, 1, "rows", 60_000), TimeWanted(FENCE, 2, 2, "more rows", 90_000)
    say(rig, wanted=wanted)
    rig.later(FLUSH_NS)
    assert asked(rig) == [MoreTime(FENCE, 1, 2_000, 2, "rows", 60_000)]

    grant(rig, 1, 15_000)
    rig.later(FLUSH_NS)
    assert asked(rig)[1:] == [MoreTime(FENCE, 2, 2_100, 2, "more rows", 90_000)]
    grant(rig, 2, 0, why="it has not advanced since it was given more")
    assert [told for message in rig.all(TellTime) for told in message.told] == [
        TimeTold(FENCE, 1, 15_000, 4),
        TimeTold(FENCE, 2, 0, 4, "it has not advanced since it was given more"),
    ]


def test_an_answer_counts_once_and_for_what_was_asked_last() -> None:
    rig = rig_with(30)
    say(rig, wanted=(TimeWanted(FENCE, 1, 1),))
    rig.later(FLUSH_NS)
    grant(rig, 2, 300_000)
    grant(rig, 1, 15_000)
    grant(rig, 1, 15_000)
    rig.hear(TimeAnswers(EPOCH, (TimeAnswer(FIRST + 9, 1, 15_000),)))

    assert len(rig.all(TellTime)) == 1
    rig.until(rig.now - FLUSH_NS + 45 * SECOND - MILLISECOND)
    assert ends(rig) == []
    assert ends(rig.later(MILLISECOND)) == ["StopTasks"]


def test_one_that_may_get_no_more_does_not_ask_for_it_by_itself() -> None:
    rig = rig_with(30)
    advance(rig, 1)
    rig.later(25 * SECOND + FLUSH_NS)
    grant(rig, 1, 1_000, left=0)
    advance(rig, 2)
    rig.later(5 * SECOND)

    assert len(asked(rig)) == 1


def test_a_handler_that_asks_without_end_is_refused() -> None:
    rig = rig_with(30)
    say(rig, wanted=tuple(TimeWanted(FENCE, call) for call in range(1, WANTED_LIMIT + 2)))

    (told,) = rig.all(TellTime)
    assert [one.call for one in told.told] == [WANTED_LIMIT + 1]
    assert told.told[0].why == "it has asked 16 times and was not answered yet"


def test_those_who_wait_for_an_answer_hear_when_the_time_is_over() -> None:
    rig = rig_with(30)
    say(rig, wanted=(TimeWanted(FENCE, 1), TimeWanted(FENCE, 2)))
    rig.later(30 * SECOND)

    (told,) = rig.all(TellTime)
    assert sorted((one.call, one.granted_ms) for one in told.told) == [(1, 0), (2, 0)]
    assert told.told[0].why == "its time was over before that was answered"
    grant(rig, 1, 15_000)
    assert len(rig.all(TellTime)) == 1, "it is too late"


def test_an_answer_that_comes_after_the_end_of_an_attempt_is_passed_over() -> None:
    rig = rig_with(30)
    say(rig, wanted=(TimeWanted(FENCE, 1, 1),))
    rig.later(FLUSH_NS)
    rig.ran(1)
    grant(rig, 1, 15_000)
    say(rig, wanted=(TimeWanted(FENCE, 2, 1),), heeding=(FENCE,), progress=(HandlerProgress(FENCE, b"1", 1),))

    assert rig.all(TellTime) == []


def test_an_answer_from_another_partition_is_passed_over() -> None:
    rig = rig_with(30)
    say(rig, wanted=(TimeWanted(FENCE, 1, 1),))
    rig.later(FLUSH_NS)

    assert rig.pool.room.answered(rig.now, (TimeAnswer(FENCE, 1, 15_000),), partition=1) == []


def test_what_is_recalled_is_warned_no_more() -> None:
    rig = rig_with(30)
    say(rig, heeding=(FENCE,))
    rig.recall(1, grace_ms=60_000)
    rig.later(31 * SECOND)

    assert rig.all(WarnTasks) == []


def test_the_time_of_a_plain_function_begins_with_its_turn() -> None:
    rig = Rig(cores=1, plain=("resize",))
    rig.hand(task(1, attempt_ms=30_000), task(2, attempt_ms=30_000))
    rig.later(20 * SECOND)
    rig.ran(1, took_us=20_000_000)
    second = FIRST + 2
    rig.later(SECOND)
    rig.say(1, Said(wanted=(TimeWanted(second, 1, 1, "rows"),)))
    rig.later(FLUSH_NS)

    assert asked(rig) == [MoreTime(second, 1, 1_000, 1, "rows")]


def test_an_attempt_without_a_timeout_is_never_warned() -> None:
    rig = rig_with(0)
    say(rig, heeding=(FENCE,))
    advance(rig, 1)
    rig.later(3_600 * SECOND)

    assert ends(rig) == [] and asked(rig) == []


@pytest.mark.parametrize(("granted_ms", "told"), [(15_000, "45s"), (0, "30s")])
def test_the_sentence_of_one_that_was_killed_tells_how_much_time_it_had(granted_ms: int, told: str) -> None:
    rig = rig_with(30)
    say(rig, wanted=(TimeWanted(FENCE, 1, 1),))
    rig.later(FLUSH_NS)
    grant(rig, 1, granted_ms)
    rig.later(50 * SECOND)
    rig.exit(rig.core_of[FENCE], ExitFacts("SIGKILL", signal="SIGKILL"))

    assert rig.results[0].error.startswith(f"it ran longer than {told}, did not stop when asked")


def test_what_was_asked_goes_with_the_store_it_was_asked_of() -> None:
    outbox = HandlerOutbox()
    outbox.ask([MoreTime(FENCE, 1, 0)])
    outbox.drop_all()

    assert outbox.flush(SECOND) == []
