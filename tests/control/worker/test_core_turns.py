"""A core works while its event loop turns; silence is told, and ends at a deadline."""

from talka.control.worker.core_turns import CoreTurns, QuietNews, TurnLimits
from talka.units import NEVER, SECOND


def turns_after(seconds: int, turns: CoreTurns | None = None, *, start: int = 0) -> tuple[CoreTurns, list[QuietNews]]:
    """Looked at every second, with nothing heard since the start."""
    if turns is None:
        turns = CoreTurns()
        turns.turned(start * SECOND, 1)
    news: list[QuietNews] = []
    for second in range(start + 1, start + seconds + 1):
        news += turns.tick(second * SECOND)
    return turns, news


def told(turns: CoreTurns) -> list[tuple[int, str, int]]:
    return [(process, one.condition, one.quiet_ns // SECOND) for process, one in turns]


def test_ten_seconds_without_a_turn_are_stalled_and_thirty_are_stuck() -> None:
    turns, news = turns_after(9)
    assert (told(turns), news) == ([], [])

    turns, news = turns_after(31)

    assert news == [QuietNews(1, "stalled", 10 * SECOND), QuietNews(1, "stuck", 30 * SECOND)]
    assert told(turns) == [(1, "stuck", 31)]
    assert [one.since_ns for _, one in turns] == [0]


def test_a_core_that_turns_is_never_quiet_whatever_it_waits_for() -> None:
    turns = CoreTurns()
    for second in range(600):
        assert turns.turned(second * SECOND, 1) == []
        assert turns.tick(second * SECOND) == []


def test_a_core_that_turns_again_is_told_and_starts_afresh() -> None:
    turns, _ = turns_after(12)
    version = turns.version

    assert turns.turned(12 * SECOND, 1) == [QuietNews(1, "turns", 12 * SECOND)]

    assert turns.version > version and told(turns) == []
    turns, news = turns_after(10, turns, start=12)
    assert [one.state for one in news] == ["stalled"]


def test_while_the_worker_itself_stood_still_nobody_was_silent() -> None:
    turns = CoreTurns()
    turns.turned(0, 1)

    assert turns.tick(3600 * SECOND) == []
    assert told(turns) == []
    turns, news = turns_after(7, turns, start=3600)
    assert news == []
    turns, news = turns_after(1, turns, start=3607)
    assert [one.state for one in news] == ["stalled"], "two seconds of the hour count"


def test_silence_counts_between_two_looks_too_so_that_it_began_when_it_began() -> None:
    turns, _ = turns_after(12)
    (quiet,) = [one for _, one in turns]

    begins = [now - turns.silence_ns(now, quiet) for now in (12 * SECOND, 12 * SECOND + SECOND // 2, 13 * SECOND)]

    assert begins == [0, 0, 0]
    assert turns.silence_ns(3600 * SECOND, quiet) == 14 * SECOND, "the worker stood still"


def test_who_never_said_a_word_is_not_judged_and_nobody_is_looked_at_for_nothing() -> None:
    turns = CoreTurns()
    assert (turns.next_tick_at, turns.tick(SECOND)) == (NEVER, [])

    turns.turned(SECOND, 1)
    assert (turns.next_tick_at, turns.tick(SECOND)) == (2 * SECOND, [])
    turns.turned(SECOND, 2)
    turns.gone(1)
    assert turns.next_tick_at == 2 * SECOND
    turns.gone(2)
    turns.gone(3)
    assert turns.next_tick_at == NEVER


def test_the_stack_of_a_quiet_core_is_looked_at_now_and_then_and_told_when_it_is_first_known() -> None:
    turns, _ = turns_after(10)
    assert (turns.to_look_at(10 * SECOND), turns.to_look_at(14 * SECOND)) == ([1], [])
    assert turns.to_look_at(15 * SECOND) == [1]

    assert not turns.saw(1, SECOND, "")
    version = turns.version
    assert turns.saw(1, SECOND, "go")
    assert turns.version == version + 1
    assert not turns.saw(1, SECOND, "go on")
    assert not turns.saw(1, SECOND, "")
    assert [one.stack for _, one in turns] == ["go on"]
    assert not turns.saw(2, SECOND, "of one that is gone")
    turns.turned(16 * SECOND, 1)
    assert not turns.saw(1, SECOND, "of one that turns")


def test_a_quiet_core_that_ends_is_told_of_no_more() -> None:
    turns, _ = turns_after(10)
    version = turns.version

    turns.gone(1)

    assert (told(turns), turns.version) == ([], version + 1)


def test_one_that_waits_is_given_up_after_a_minute_and_told_once() -> None:
    turns, _ = turns_after(59)
    turns.saw(1, 5 * SECOND, "waits")
    assert turns.overdue(lambda process: True) == []

    turns, _ = turns_after(1, turns, start=59)
    assert turns.overdue(lambda process: False) == [], "it may not be ended yet"
    turns.saw(1, 5 * SECOND + SECOND // 2, "waits")

    assert turns.overdue(lambda process: True) == [(1, 60 * SECOND)]
    assert turns.overdue(lambda process: True) == []


def test_one_that_computes_gets_five_extensions_and_no_sixth() -> None:
    turns = CoreTurns(TurnLimits())
    turns.turned(0, 1)
    given_up = []
    for second in range(1, 120):
        turns.tick(second * SECOND)
        turns.saw(1, second * SECOND, "computes")
        given_up += turns.overdue(lambda process: True)

    assert given_up == [(1, 90 * SECOND)], "half a minute more, at the next look after each end"
