"""Workflows that run longer than they may: what they are given, what they are told, and how they end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from talka.control.load.core_effects import JobEnded, LoadEffect, TellCore, WorkflowLate
from talka.stats.tally import Tally
from talka.units import SECOND
from talka.wire.shards import Ack, Go, ShardAnswer, Stop, TimeAsked, TimeOver
from talka.work.deadlines import Allowance, Extension
from talka.work.shapes import IterationsPerVU

if TYPE_CHECKING:
    from tests.control.conftest import Driven

JobOf = Callable[..., "Driven"]
LONG = {"shape": IterationsPerVU(1, 1000), "timeout_s": 60}
REASON = "the index is built"
LATE = "it was late and its cores worked, so it was given {} more"


def running(job_of: JobOf, **workflow: object) -> Driven:
    driven = job_of({"Shop": {**LONG, **workflow}}, cores=1)
    driven.run()
    return driven


def ask(driven: Driven, number: int = 1, estimate_s: int = 30, core: int = 1) -> list[LoadEffect]:
    return driven.report(core, asked=TimeAsked(number, estimate_s * SECOND, REASON))


def answers(effects: list[LoadEffect]) -> list[Allowance]:
    words = [effect.message for effect in effects if isinstance(effect, TellCore)]
    return [word.answer for word in words if isinstance(word, ShardAnswer)]


def given(driven: Driven, workflow: str = "Shop") -> list[float]:
    deadline = driven.job.workflows[workflow].deadline
    return [] if deadline is None else [extension.ns / SECOND for extension in deadline.extensions]


# -- asking


def test_a_core_that_asks_is_answered_what_it_has_now(job_of: JobOf) -> None:
    driven = running(job_of)

    effects = ask(driven.later(50))

    assert effects == [
        TellCore(1, Ack(1)),
        TellCore(1, ShardAnswer(1, Allowance(15 * SECOND, 4, 25 * SECOND))),
        WorkflowLate("Shop", "given", f"it asked for more time and was given 15s more: {REASON}"),
    ]
    deadline = driven.job.workflows["Shop"].deadline
    assert deadline is not None
    assert deadline.extensions == [Extension(15 * SECOND, REASON, 50 * SECOND, 30 * SECOND, "1/1")]


def test_an_ask_without_a_reason_is_noted_as_one(job_of: JobOf) -> None:
    driven = running(job_of)

    driven.later(50).report(1, asked=TimeAsked(1, 30 * SECOND))

    assert driven.job.workflows["Shop"].notes == ["it asked for more time and was given 15s more: no reason told"]


def test_an_ask_that_is_repeated_until_it_was_heard_is_given_once(job_of: JobOf) -> None:
    driven = running(job_of)
    ask(driven.later(50))

    assert answers(ask(driven)) == []

    assert given(driven) == [15]
    assert answers(ask(driven, 2)) == [Allowance(7.5 * SECOND, 3, 32.5 * SECOND)]


def test_an_ask_long_before_the_end_costs_nothing(job_of: JobOf) -> None:
    driven = running(job_of)

    (answer,) = answers(ask(driven.later(10)))

    assert (answer.granted_ns, answer.left) == (0, 5)
    assert answer.why_not == "it has 50.0 s left, which is enough for the 30s that it asked for"
    assert driven.job.workflows["Shop"].notes == []


def test_what_is_being_stopped_gets_no_more_time(job_of: JobOf) -> None:
    driven = running(job_of)
    driven.interrupt()

    assert answers(ask(driven.later(1))) == [Allowance(why_not="it starts nothing new any more")]
    assert given(driven) == []


def test_an_ask_before_its_workflow_runs_is_not_answered_yet(job_of: JobOf) -> None:
    driven = job_of({"Shop": LONG}, cores=1)
    driven.start()

    assert answers(ask(driven)) == []


def test_the_last_word_of_a_core_is_not_answered(job_of: JobOf) -> None:
    driven = running(job_of)

    effects = driven.later(59).finish(1, asked=TimeAsked(1, 30 * SECOND, REASON))

    assert effects[-1] == JobEnded() and answers(effects) == []
    assert driven.states == {"Shop": "completed"}


# -- advancing


def test_a_core_that_reports_is_given_more_time_on_this_machine_too(job_of: JobOf) -> None:
    driven = running(job_of)
    for _ in range(7):
        driven.report(1, Tally(started=1))
        driven.later(60 if not given(driven) else given(driven)[-1])
        driven.now += 1
        driven.tick()

    assert given(driven) == [15, 7.5, 3.75, 1.875, 1]
    failure = "it ran longer than its timeout of 60 s: it was given 29.125s more, in 5 extensions"
    assert driven.job.workflows["Shop"].failure == failure
    assert Stop() in [effect.message for effect in driven.effects if isinstance(effect, TellCore)]


def test_of_a_short_timeout_extensions_are_shares(job_of: JobOf) -> None:
    driven = running(job_of, timeout_s=8)
    driven.later(8.1).report(1)

    assert driven.tick() == [WorkflowLate("Shop", "given", LATE.format("4s"))]


# -- the end


def test_what_can_save_is_warned_and_has_ten_seconds_for_it(job_of: JobOf) -> None:
    driven = running(job_of, saves=True)

    assert driven.later(60.1).tick() == [
        TellCore(1, TimeOver(10 * SECOND)),
        WorkflowLate("Shop", "warned", "its time is over: it was warned, and has 10s to save"),
    ]
    assert driven.later(1).tick() == [], "it is told once"
    assert driven.later(8.9).tick() == []
    driven.report(1)
    assert answers(ask(driven)) == [
        Allowance(0, 0, SECOND // 10, "it was warned that its time is over, and has 0.1 s to save")
    ]
    assert driven.later(0.1).tick() == [TellCore(1, Stop())]
    driven.finish(1)

    assert driven.states == {"Shop": "timeout"}


def test_what_has_nothing_to_save_is_stopped_at_once(job_of: JobOf) -> None:
    driven = running(job_of)

    assert driven.later(60.1).tick() == [TellCore(1, Stop())]


def test_what_ends_by_itself_after_the_warning_is_complete(job_of: JobOf) -> None:
    driven = running(job_of, saves=True)
    driven.later(60.1).tick()

    driven.later(5).finish(1)

    assert driven.states == {"Shop": "completed"}


def test_what_only_notifies_goes_on_for_as_long_as_its_timeout_again(job_of: JobOf) -> None:
    driven = running(job_of, on_timeout="notify")

    assert driven.later(60.1).tick() == [
        WorkflowLate("Shop", "warned", "its time is over: it goes on, for 1m at most"),
    ]
    assert driven.later(59.9).tick() == []
    assert driven.later(0.1).tick() == [TellCore(1, Stop())]


def test_a_core_that_takes_the_place_of_a_lost_one_is_warned_too(job_of: JobOf) -> None:
    driven = running(job_of, saves=True)
    driven.later(60.1).tick()
    driven.later(1).exit(1)

    effects = driven.arm(2)

    words = [effect.message for effect in effects if isinstance(effect, TellCore)]
    assert [type(word) for word in words] == [Go, TimeOver]


def test_what_a_core_saved_is_kept_when_it_is_lost(job_of: JobOf) -> None:
    driven = running(job_of, saves=True)
    driven.later(60.1).tick()
    driven.report(1, Tally(started=3), provided={"self.context/at": b"\x07"})
    driven.report(1, Tally(started=4))
    driven.later(10).tick()
    driven.exit(1)

    run = driven.job.workflows["Shop"]
    assert driven.states == {"Shop": "timeout"}
    assert run.provided == {"self.context/at": b"\x07"}
    assert run.tally().started == 4


@pytest.mark.parametrize("saves", [True, False])
def test_a_workflow_that_ends_in_time_is_told_nothing(job_of: JobOf, saves: bool) -> None:
    driven = running(job_of, saves=saves)
    driven.later(59).finish(1)

    assert driven.job.workflows["Shop"].deadline is None
