"""How workflows and their job end: done, refused, failed, too late, interrupted, aborted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from talka.control.load.core_effects import JobEnded, KillCore, TellCore
from talka.control.load.shard_group import ARM_LIMIT_NS, STOP_SLACK_NS
from talka.stats.tally import Exchanges, Sample, StepTally, Tally
from talka.units import SECOND
from talka.wire.shards import CONTEXT_PREFIX, RECEIVED_LIMIT_BYTES, Ack, Armed, Refused, StepTotals, Stop
from talka.work.shapes import ConstantVUs, IterationsPerVU

if TYPE_CHECKING:
    from tests.control.conftest import Driven

JobOf = Callable[..., "Driven"]
ONE_USER = {"shape": ConstantVUs(1, "10s")}


def failing(requests: int) -> Tally:
    return Tally(started=requests, exchanges=Exchanges(failed=requests), dropped=requests)


# Ending.


def test_a_job_ends_once_when_its_last_workflow_has_ended(job_of: JobOf) -> None:
    driven = job_of({"A": ONE_USER, "B": ONE_USER})
    driven.run()

    assert driven.later(1).finish(1) == [TellCore(1, Ack(1))]
    assert driven.later(1).finish(2) == [TellCore(2, Ack(1)), JobEnded()]

    assert driven.job.ended_ns == driven.now
    assert driven.states == {"A": "completed", "B": "completed"}


def test_after_the_end_nothing_is_started_stopped_or_said(job_of: JobOf) -> None:
    driven = job_of({"Shop": ONE_USER}, thresholds=["dropped < 1% abort"])
    driven.run()
    driven.later(1).finish(1, failing(5))
    assert driven.has_ended

    assert driven.start() == []
    assert driven.report(1) == []
    assert driven.exit(1) == []
    assert driven.later(1000).tick() == []
    assert driven.job.aborted is None
    assert driven.interrupt() == []
    assert driven.interrupt() == []
    assert driven.states == {"Shop": "completed"}


def test_messages_and_exits_of_cores_nobody_knows_are_ignored(job_of: JobOf) -> None:
    driven = job_of({"Shop": ONE_USER})
    driven.run()

    assert driven.say(77, Armed()) == []
    assert driven.exit(77) == []


def test_a_refusal_fails_the_workflow_kills_its_other_cores_and_skips_dependents(job_of: JobOf) -> None:
    driven = job_of(
        {"Shop": {}, "Admin": {**ONE_USER, "after": {"Shop"}}, "Late": {**ONE_USER, "after": {"Admin"}}}, cores=2
    )
    driven.start()
    driven.arm(1)

    effects = driven.say(2, Refused("file", "shop.py:3: no such step"))

    assert effects == [KillCore(1), KillCore(2), JobEnded()]
    assert driven.states == {"Shop": "failed", "Admin": "skipped", "Late": "skipped"}
    run = driven.job.workflows["Shop"]
    assert run.refused == Refused("file", "shop.py:3: no such step")
    assert run.failure == "shop.py:3: no such step"
    assert driven.job.workflows["Late"].failure == "a workflow it depends on did not complete"
    assert driven.say(1, Armed()) == [], "given up, and ignored"


def test_a_refusal_leaves_other_workflows_alone(job_of: JobOf) -> None:
    driven = job_of({"Shop": ONE_USER, "Admin": ONE_USER})
    driven.start()

    assert driven.say(1, Refused("unreachable", "no such host")) == [KillCore(1)]
    driven.arm(2)
    driven.finish(2)

    assert driven.states == {"Shop": "failed", "Admin": "completed"}


def test_a_core_that_reports_a_failure_of_the_users_code_fails_the_workflow(job_of: JobOf) -> None:
    driven = job_of({"Shop": {}}, cores=2)
    driven.run()

    driven.finish(1, failure="token raised KeyError")
    driven.finish(2, failure="token raised ValueError")

    assert driven.states == {"Shop": "failed"}
    assert driven.job.workflows["Shop"].failure == "token raised KeyError"


def test_a_failed_action_fails_a_workflow_that_measures_nothing(job_of: JobOf) -> None:
    driven = job_of({"Seed": {**ONE_USER, "is_test": False}, "Shop": {"after": {"Seed"}}})
    driven.run()
    action = StepTally()
    action.fail(Sample(0, "exception", "KeyError: 'id' (shop.py:9)"))
    driven.say(1, StepTotals(1, "rest", StepTally(ok=1), False))
    driven.say(1, StepTotals(1, "fill", action, False))

    driven.finish(1)

    assert driven.states == {"Seed": "failed", "Shop": "skipped"}
    assert driven.job.workflows["Seed"].failure == "fill raised KeyError: 'id' (shop.py:9)"


def test_a_failed_action_is_a_result_where_something_is_measured(job_of: JobOf) -> None:
    driven = job_of({"Shop": ONE_USER})
    driven.run()
    action = StepTally()
    action.fail(Sample(0, "exception", "KeyError"))
    driven.say(1, StepTotals(1, "fill", action, False))

    driven.finish(1)

    assert driven.states == {"Shop": "completed"}


def test_a_workflow_that_measures_nothing_and_fails_in_nothing_completes(job_of: JobOf) -> None:
    driven = job_of({"Seed": {**ONE_USER, "is_test": False}})
    driven.run()
    driven.say(1, StepTotals(1, "fill", StepTally(ok=1), False))

    driven.finish(1)

    assert driven.states == {"Seed": "completed"}


# Time limits.


def test_ticks_come_ten_times_a_second(job_of: JobOf) -> None:
    driven = job_of({"Shop": ONE_USER})
    assert driven.job.next_tick_at < driven.now, "the first one at once"
    driven.run()

    assert driven.tick() == []
    assert driven.job.next_tick_at == driven.now + SECOND // 10


def test_a_workflow_that_is_not_armed_in_time_fails(job_of: JobOf) -> None:
    driven = job_of({"Shop": {}}, cores=2)
    driven.start()
    driven.arm(1)

    driven.now += ARM_LIMIT_NS - 1
    assert driven.tick() == []
    driven.now += 1

    assert driven.tick() == [KillCore(1), KillCore(2), JobEnded()]
    assert driven.states == {"Shop": "failed"}
    assert driven.job.workflows["Shop"].refused == Refused("setup", "Shop was not ready to start within 60 s")
    assert driven.job.workflows["Shop"].failure == "Shop was not ready to start within 60 s"


def test_a_core_that_was_tried_again_has_the_whole_time_to_arm(job_of: JobOf) -> None:
    driven = job_of({"Shop": {}}, cores=2)
    driven.start()
    driven.arm(1)
    driven.later(30).exit(2)

    assert driven.later(59).tick() == []
    assert driven.later(1).tick() == [KillCore(1), KillCore(3), JobEnded()]


def test_a_workflow_beyond_its_timeout_is_told_to_stop_and_ends_as_timed_out(job_of: JobOf) -> None:
    driven = job_of({"Shop": {"timeout_s": 5, "shape": IterationsPerVU(2, 100)}, "Admin": ONE_USER}, cores=3)
    driven.run()
    shop = driven.cores("Shop")

    assert driven.later(5).tick() == []
    assert driven.later(0.1).tick() == [TellCore(core, Stop()) for core in shop]
    assert driven.later(0.1).tick() == [], "it is told once"
    for core in shop:
        driven.finish(core)

    assert driven.states == {"Shop": "timeout", "Admin": "running"}
    assert driven.job.workflows["Shop"].failure == "it ran longer than its timeout of 5 s"


def test_dependents_of_a_workflow_that_timed_out_are_skipped(job_of: JobOf) -> None:
    driven = job_of({"Shop": {**ONE_USER, "timeout_s": 5}, "Late": {"after": {"Shop"}}})
    driven.run()

    driven.later(6).tick()
    driven.finish(1)

    assert driven.states == {"Shop": "timeout", "Late": "skipped"}


def test_a_core_that_does_not_stop_within_grace_and_slack_is_killed_and_counted_as_lost(job_of: JobOf) -> None:
    driven = job_of({"Shop": {"timeout_s": 5}}, cores=2, grace_s=2)
    driven.run()
    driven.later(6).tick()
    driven.finish(1)

    driven.now += 2 * SECOND + STOP_SLACK_NS
    assert driven.tick() == []
    driven.now += 1

    assert driven.tick() == [KillCore(2), JobEnded()]
    assert driven.states == {"Shop": "timeout"}
    assert [(lost.shard, lost.cause) for lost in driven.job.lost] == [(1, "did not stop in time and was killed")]


def test_a_core_that_outlives_its_plan_is_killed_after_grace_and_slack(job_of: JobOf) -> None:
    driven = job_of({"Shop": {**ONE_USER, "timeout_s": 100}}, grace_s=2)
    driven.run()

    driven.later(10).tick()
    driven.later(1).tick()
    assert driven.later(6).tick() == []

    assert driven.later(0.1).tick() == [KillCore(1), JobEnded()]
    assert driven.states == {"Shop": "completed"}
    assert len(driven.job.lost) == 1


# Stopping early.


def test_an_interrupt_stops_what_runs_and_cancels_what_waits(job_of: JobOf) -> None:
    driven = job_of(
        {
            "Runs": ONE_USER,
            "Arms": ONE_USER,
            "Waits": {"priority": "exclusive", "after": {"Seed"}},
            "Later": {"after": {"Runs"}},
            "Seed": {"is_test": False},
        },
        cores=3,
    )
    driven.start()
    driven.arm(1)
    driven.arm(*driven.cores("Seed"))
    driven.finish(*driven.cores("Seed"))
    assert driven.states == {
        "Runs": "running",
        "Arms": "assigned",
        "Waits": "ready",
        "Later": "pending",
        "Seed": "completed",
    }

    effects = driven.later(1).interrupt()

    assert effects == [TellCore(1, Stop()), KillCore(2)]
    assert [driven.states[name] for name in ("Runs", "Arms", "Waits", "Later")] == ["running"] + ["cancelled"] * 3
    assert driven.job.interrupted_by == "SIGINT"
    assert driven.finish(1, Tally(started=7)) == [TellCore(1, Ack(1)), JobEnded()]
    assert driven.states["Runs"] == "cancelled"
    assert driven.job.tally().started == 7


def test_nothing_is_started_on_the_cores_an_interrupt_frees(job_of: JobOf) -> None:
    driven = job_of({"Alone": {"priority": "exclusive"}, "Waits": {}, "Later": {"after": {"Waits"}}}, cores=2)
    driven.start()

    assert driven.interrupt() == [KillCore(1), KillCore(2), JobEnded()]
    assert set(driven.states.values()) == {"cancelled"}


def test_a_second_interrupt_kills_at_once(job_of: JobOf) -> None:
    driven = job_of({"A": ONE_USER, "B": ONE_USER})
    driven.run()
    driven.interrupt()
    driven.finish(1)

    assert driven.later(0.5).interrupt() == [KillCore(2), JobEnded()]
    assert driven.states == {"A": "cancelled", "B": "cancelled"}
    assert driven.job.workflows["B"].elapsed_ns(driven.now + SECOND) == driven.now - driven.job.workflows["B"].origin_ns
    assert driven.exit(2) == []


def test_a_failure_while_it_is_interrupted_is_still_a_failure(job_of: JobOf) -> None:
    driven = job_of({"Shop": ONE_USER})
    driven.run()
    driven.interrupt()

    driven.finish(1, failure="token raised KeyError")

    assert driven.states == {"Shop": "failed"}


def test_a_core_that_ignores_an_interrupt_is_killed_after_grace_and_slack(job_of: JobOf) -> None:
    driven = job_of({"Shop": ONE_USER}, grace_s=1)
    driven.run()
    driven.interrupt()

    assert driven.later(6).tick() == []
    assert driven.later(0.1).tick() == [KillCore(1), JobEnded()]
    assert driven.states == {"Shop": "cancelled"}


def test_an_interrupt_during_the_grace_period_does_not_prolong_it(job_of: JobOf) -> None:
    driven = job_of({"Shop": ONE_USER}, grace_s=1)
    driven.run()
    driven.later(10.1).tick()

    assert driven.later(1).interrupt() == [TellCore(1, Stop())]
    assert driven.later(5).tick() == [KillCore(1), JobEnded()]


def test_a_crossed_abort_threshold_stops_every_workflow(job_of: JobOf) -> None:
    driven = job_of(
        {
            "Shop": {**ONE_USER, "thresholds": ["requests >= 1", "failed < 1% abort"]},
            "Admin": ONE_USER,
            "Late": {"after": {"Admin"}},
        }
    )
    driven.run()
    assert driven.tick() == [], "nothing is measured yet"
    driven.report(1, failing(2))
    driven.say(1, StepTotals(2, "buy", StepTally(failed=2), True))
    driven.report(1, failing(2))

    assert driven.later(1).tick() == [TellCore(1, Stop()), TellCore(2, Stop())]

    assert driven.job.aborted is not None and driven.job.aborted.rule == "failed < 1% abort"
    assert driven.tick() == [], "it is said once"
    driven.finish(1)
    driven.finish(2)
    assert driven.states == {"Shop": "cancelled", "Admin": "cancelled", "Late": "cancelled"}


def test_a_crossed_abort_threshold_is_seen_before_a_killed_core_makes_room_for_others(job_of: JobOf) -> None:
    stuck = {**ONE_USER, "priority": "exclusive"}
    driven = job_of({"Stuck": stuck, "Waits": ONE_USER}, cores=1, thresholds=["dropped < 10% abort after 60s"])
    driven.run()
    driven.report(1, failing(1))
    driven.later(11).tick()

    assert driven.later(60).tick() == [TellCore(1, Stop()), KillCore(1), JobEnded()]
    assert driven.states == {"Stuck": "cancelled", "Waits": "cancelled"}


@pytest.mark.parametrize(
    ("of_job", "of_workflow"), [(["dropped < 10% abort after 5s"], []), ([], ["dropped < 10% abort after 5s"])]
)
def test_an_abort_threshold_waits_for_its_grace(job_of: JobOf, of_job: list[str], of_workflow: list[str]) -> None:
    driven = job_of({"Shop": {**ONE_USER, "thresholds": of_workflow}}, thresholds=of_job)
    driven.run()
    driven.report(1, failing(1))

    assert driven.later(4.5).tick() == []
    assert driven.later(0.5).tick() == [TellCore(1, Stop())]


def test_abort_thresholds_are_judged_twice_a_second_and_not_at_every_tick(job_of: JobOf) -> None:
    driven = job_of({"Shop": ONE_USER}, thresholds=["dropped < 10% abort"])
    driven.run()
    assert driven.later(1).tick() == []
    driven.report(1, failing(1))
    assert driven.later(0.4).tick() == []
    assert driven.later(0.1).tick() == [TellCore(1, Stop())]


def test_a_crossed_threshold_without_abort_stops_nothing(job_of: JobOf) -> None:
    driven = job_of({"Shop": ONE_USER}, thresholds=["dropped < 10%"])
    driven.run()
    driven.report(1, failing(1))

    assert driven.later(5).tick() == []
    (verdict,) = driven.job.verdicts(driven.now)
    assert (verdict[0], verdict[2].passed) == (None, False)


def test_after_an_abort_an_interrupt_still_stops_and_a_second_kills(job_of: JobOf) -> None:
    driven = job_of({"Shop": ONE_USER}, thresholds=["dropped < 10% abort"])
    driven.run()
    driven.report(1, failing(1))
    driven.later(1).tick()

    assert driven.interrupt() == [TellCore(1, Stop())]
    assert driven.interrupt() == [KillCore(1), JobEnded()]


def test_verdicts_name_the_workflow_and_judge_its_own_numbers(job_of: JobOf) -> None:
    driven = job_of(
        {"Shop": {**ONE_USER, "thresholds": ["iterations >= 10"]}, "Admin": {**ONE_USER, "thresholds": ["rate > 4/s"]}},
        thresholds=["iterations >= 10"],
    )
    driven.run()
    driven.report(1, Tally(started=6, iterations=6))
    driven.report(2, Tally(started=6, iterations=6, exchanges=Exchanges(ok=10)))

    found = driven.job.verdicts(driven.now + 2 * SECOND)

    assert [(name, verdict.value, verdict.passed) for name, _, verdict in found] == [
        (None, 12.0, True),
        ("Shop", 6.0, False),
        ("Admin", 5.0, True),
    ]


# What rates are over.


def test_the_span_of_a_workflow_ends_with_its_plan_and_not_with_its_last_iteration(job_of: JobOf) -> None:
    driven = job_of({"Shop": {"shape": ConstantVUs(1, "10s")}})
    driven.run()
    run = driven.job.workflows["Shop"]
    assert run.span_ns(run.origin_ns + 4 * SECOND) == driven.job.span_ns(run.origin_ns + 4 * SECOND) == 4 * SECOND
    assert run.span_ns(run.origin_ns + 13 * SECOND) == 10 * SECOND
    assert driven.job.span_ns(run.origin_ns + 13 * SECOND) == 10 * SECOND


def test_the_span_of_a_workflow_that_was_stopped_ends_there(job_of: JobOf) -> None:
    driven = job_of({"Shop": {"shape": IterationsPerVU(1, 100)}})
    driven.run()
    run = driven.job.workflows["Shop"]
    stopped_ns = driven.later(3).now - run.origin_ns
    driven.interrupt()
    assert run.span_ns(driven.later(5).now) == stopped_ns


def test_a_job_that_never_began_has_no_span(job_of: JobOf) -> None:
    driven = job_of({"Shop": {}})
    driven.start()
    assert (driven.job.span_ns(driven.now), driven.job.workflows["Shop"].span_ns(driven.now)) == (0, 0)


# Rules over the whole job.


def test_a_rule_over_the_job_that_names_a_class_looks_at_that_class_alone(job_of: JobOf) -> None:
    one_user = {"shape": ConstantVUs(1, "10s")}
    driven = job_of({"Shop": one_user, "Admin": one_user}, thresholds=["Shop.requests > 5", "Shop.rate > 5/s"])
    driven.run()
    for core, requests in ((1, 20), (2, 80)):
        driven.report(core, Tally(started=1, exchanges=Exchanges(ok=requests)))
    values = [verdict.value for _, _, verdict in driven.job.verdicts(driven.job.origin_ns + 4 * SECOND)]
    assert values == [20.0, None]  # without names, it is a step that is called Shop


def test_a_rule_that_names_a_class_of_another_job_has_no_sample(job_of: JobOf) -> None:
    driven = job_of({"Shop": {}}, thresholds=["Nobody.requests > 5"])
    driven.run()
    assert [verdict.value for _, _, verdict in driven.job.verdicts(driven.now)] == [None]


# Teardowns that run once for the job.

CLEANED = {"Shop": ONE_USER, "Clean": {"is_test": False, "is_teardown": True, "after": {"Shop"}}}


def test_a_teardown_runs_after_what_it_cleans_up(job_of: JobOf) -> None:
    driven = job_of(CLEANED)
    driven.run()
    assert driven.states["Clean"] == "pending"

    driven.finish(1)
    driven.arm(2)

    assert driven.finish(2) == [TellCore(2, Ack(1)), JobEnded()]
    assert driven.states == {"Shop": "completed", "Clean": "completed"}


def test_a_teardown_runs_also_where_what_it_cleans_up_has_failed(job_of: JobOf) -> None:
    driven = job_of(CLEANED)
    driven.run()

    driven.finish(1, failure="virtual user 2 cannot be made")

    assert driven.states == {"Shop": "failed", "Clean": "assigned"}


def test_a_teardown_does_not_run_where_nothing_has(job_of: JobOf) -> None:
    driven = job_of(CLEANED)
    driven.start()

    driven.say(1, Refused("file", "no such step"))

    assert driven.states == {"Shop": "failed", "Clean": "skipped"}
    assert driven.has_ended


def test_an_interrupt_stops_what_runs_and_lets_it_be_cleaned_up(job_of: JobOf) -> None:
    driven = job_of(CLEANED)
    driven.run()
    assert driven.interrupt() == [TellCore(1, Stop())]

    driven.finish(1)
    driven.arm(2)
    driven.finish(2)

    assert driven.states == {"Shop": "cancelled", "Clean": "completed"}
    assert driven.has_ended


def test_a_second_interrupt_ends_the_teardown_too(job_of: JobOf) -> None:
    driven = job_of(CLEANED)
    driven.run()
    driven.interrupt()

    assert driven.interrupt() == [KillCore(1), JobEnded()]
    assert driven.states == {"Shop": "cancelled", "Clean": "cancelled"}


def test_a_cancelled_job_of_a_cluster_begins_no_teardown_and_one_that_was_aborted_does(job_of: JobOf) -> None:
    cancelled = job_of(CLEANED, places={"w1": 1})
    cancelled.run()
    cancelled.interrupt()
    cancelled.result(1)
    assert cancelled.states == {"Shop": "cancelled", "Clean": "cancelled"}

    aborted = job_of(CLEANED, places={"w1": 1}, thresholds=["dropped < 10% abort"])
    aborted.run()
    aborted.report(1, failing(1))
    aborted.later(1).tick()
    aborted.result(1, failing(1))

    assert aborted.states == {"Shop": "cancelled", "Clean": "assigned"}


def test_a_teardown_finds_what_the_class_left_where_it_differs_from_its_setup(job_of: JobOf) -> None:
    driven = job_of(
        {
            "Setup": {"is_test": False},
            "Shop": {**ONE_USER, "after": {"Setup"}},
            "Clean": {"is_test": False, "is_teardown": True, "after": {"Setup", "Shop"}},
        }
    )
    driven.run()
    key = f"{CONTEXT_PREFIX}account"
    driven.finish(1, provided={key: b"\x01"})
    driven.arm(2)

    driven.finish(2, provided={key: b"\x02"})

    assert list(driven.arms[3].values.items()) == [("Setup", {key: b"\x01"}), ("Shop", {key: b"\x02"})]


def test_a_teardown_that_would_receive_too_much_fails(job_of: JobOf) -> None:
    driven = job_of(CLEANED)
    driven.run()

    driven.finish(1, provided={f"{CONTEXT_PREFIX}large": bytes(RECEIVED_LIMIT_BYTES + 1)})

    assert driven.states["Clean"] == "failed"
