"""Cores that die: who takes their place, what is known of the gap, and when nobody does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

from talka.control.load.core_effects import JobEnded, KillCore, LoadEffect, StartCore, TellCore
from talka.control.load.load_job import START_DELAY_NS
from talka.control.load.shard_group import ARM_LIMIT_NS
from talka.control.load.shard_run import ATTEMPTS_LIMIT, LostShard
from talka.stats.tally import Tally
from talka.units import SECOND
from talka.wire.shards import Ack, Armed, Gap, Go, Refused, Stop
from talka.work.load import Shard
from talka.work.shapes import ConstantRate, ConstantVUs, IterationsPerVU, SharedIterations
from tests.report.documents import view_of

if TYPE_CHECKING:
    from tests.control.conftest import Driven

JobOf = Callable[..., "Driven"]
ONE_USER = {"shape": ConstantVUs(1, "10s")}
ARRIVALS = {"shape": ConstantRate(100, "10s", max_vus=10)}
"""Ten seconds of 100 arrivals a second."""


def gaps(driven: Driven) -> list[tuple[float, float, int]]:
    """From, to, and arrivals missing."""
    return [(lost.from_ns / SECOND, lost.to_ns / SECOND, lost.arrivals_missing) for lost in driven.job.lost]


def did(count: int, **more: int) -> Tally:
    return Tally(started=count, iterations=count, **more)


def replacement(effects: Sequence[LoadEffect]) -> StartCore:
    (started,) = effects
    assert isinstance(started, StartCore)
    return started


# A replacement.


def test_a_gap_begins_when_the_last_counts_were_made_not_when_they_arrived(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, cores=1)
    driven.run()
    driven.later(2).report(1, Tally(started=180, iterations=180), age_ns=SECOND // 5)

    started = replacement(driven.later(1).exit(1, "was killed by SIGKILL"))
    driven.arm(started.attempt)

    assert gaps(driven) == [(1.8, 3.0, 120)]


def test_a_gap_begins_when_the_last_counts_were_made_however_late_the_owner_reads_them(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, cores=1)
    driven.run()
    made_at_ns = driven.now + 2 * SECOND
    # The owner stood still for five seconds: it reads what was said before, and that the core is gone.
    driven.later(7).report(1, did(200), made_at_ns=made_at_ns)

    started = replacement(driven.exit(1, "was killed by SIGKILL"))
    driven.later(1).arm(started.attempt)

    assert gaps(driven) == [(2.0, 8.0, 600)]


def test_counts_that_seem_to_be_of_later_than_now_are_of_now(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, cores=1)
    driven.run()
    driven.later(2).report(1, did(200), made_at_ns=driven.now + SECOND)

    driven.arm(replacement(driven.later(1).exit(1)).attempt)

    assert gaps(driven) == [(2.0, 3.0, 100)]


def test_what_is_counted_and_what_is_missing_is_the_plan(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, cores=1)
    driven.run()
    # Of 200 arrivals three are late, five were dropped, four under way and one was cut.
    tally = Tally(started=192, iterations=187, interrupted_iterations=1, dropped=5)
    driven.later(2).report(1, tally)
    second = replacement(driven.later(0.5).exit(1)).attempt
    driven.later(0.5).arm(second)
    driven.later(1).report(second, Tally(started=100, iterations=98, dropped=0))
    third = replacement(driven.later(0.5).exit(second)).attempt
    driven.later(0.5).arm(third)
    driven.now = driven.job.origin_ns + 10 * SECOND
    driven.finish(third, did(500))

    (one, two) = driven.job.lost
    whole = driven.job.workflows["Shop"].tally()
    counted = whole.iterations + whole.interrupted_iterations + whole.dropped
    assert (one.arrivals_missing, two.arrivals_missing) == (100 + 7, 100 + 2)
    assert counted + one.arrivals_missing + two.arrivals_missing == 1000


def test_what_a_worker_has_told_as_missing_is_not_missing_again(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, cores=1)
    driven.run()
    gap = Gap(0, "was killed by SIGKILL", SECOND, 2 * SECOND, 0, 60)
    driven.later(3).report(1, did(240), gaps=(gap,))
    driven.arm(replacement(driven.later(1).exit(1)).attempt)

    assert gaps(driven) == [(3.0, 4.0, 100), (1.0, 2.0, 60)]


def test_a_lost_core_is_replaced_for_the_remaining_plan(job_of: JobOf) -> None:
    driven = job_of({"Shop": {"shape": ConstantVUs(4, "10s")}}, cores=2)
    driven.run()
    driven.later(2).report(2, Tally(started=20, iterations=19))
    driven.tick()

    started = replacement(driven.later(1).exit(2, "was killed by SIGKILL"))
    assert gaps(driven) == [(2.0, 3.0, 0)], "so far"
    effects = driven.later(0.5).arm(started.attempt)

    assert driven.arms[started.attempt].shard == driven.arms[2].shard
    assert driven.arms[started.attempt].iterations_done == 20
    origin_ns = driven.job.origin_ns
    assert effects == [TellCore(started.attempt, Go(driven.now, origin_ns, origin_ns))]
    assert driven.job.lost == [
        LostShard("Shop", 1, "was killed by SIGKILL", 2 * SECOND, 3_500_000_000, vus_missing=2, arrivals_missing=0)
    ]


def test_the_dead_ones_last_totals_stay_and_its_successors_are_added(job_of: JobOf) -> None:
    driven = job_of({"Shop": ONE_USER})
    driven.run()
    driven.later(1).report(1, Tally(started=20, iterations=19))
    driven.exit(1)
    driven.arm(2)

    driven.later(1).report(2, Tally(started=5, iterations=5))
    assert (driven.job.tally().started, driven.job.tally().iterations) == (25, 24)
    driven.later(8).finish(2, Tally(started=9, iterations=9))

    assert (driven.job.tally().started, driven.job.tally().iterations) == (29, 28)
    assert driven.states == {"Shop": "completed"}
    assert driven.has_ended


def test_what_a_dead_core_still_says_is_ignored(job_of: JobOf) -> None:
    driven = job_of({"Shop": ONE_USER})
    driven.run()
    driven.later(1).exit(1)

    assert driven.report(1, Tally(started=99)) == []
    assert driven.exit(1) == []
    assert driven.job.tally().started == 0


def test_a_gap_begins_at_the_start_when_nothing_was_reported(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS})
    driven.run()

    driven.later(1).exit(1)
    driven.later(0.5).arm(driven.cores("Shop")[-1])

    assert gaps(driven) == [(0.0, 1.5, 38)], "a quarter of 150, dealt out in turn"


def test_arrivals_of_the_gap_are_counted_as_missing_and_not_made_up_for(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, cores=1)
    driven.run()
    driven.later(2).report(1, did(200))

    driven.later(1).exit(1)
    driven.later(1).arm(2)

    assert gaps(driven) == [(2.0, 4.0, 200)]
    # From its start on the successor has exactly the arrivals that are not missing.
    shard = driven.arms[2].shard
    assert len(list(shard.arrivals(4 * SECOND))) == 1000 - 200 - 200


def test_a_gap_of_a_later_workflow_is_told_in_the_time_of_the_job_and_counted_in_that_of_its_plan(
    job_of: JobOf,
) -> None:
    driven = job_of({"First": ONE_USER, "Shop": {**ARRIVALS, "after": {"First"}}}, cores=1)
    driven.run()
    driven.later(20).finish(1)
    driven.arm(2)
    driven.now = driven.job.workflows["Shop"].origin_ns
    driven.later(9).report(2, did(900))

    driven.later(0.5).exit(2)
    driven.arm(3)

    begun_s = 20 + START_DELAY_NS / SECOND
    assert gaps(driven) == [(begun_s + 9, begun_s + 9.5, 50)]


def test_a_replacement_that_dies_while_it_loads_is_replaced_in_the_same_gap(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, cores=1)
    driven.run()
    driven.later(1).exit(1, "was killed by SIGKILL")

    started = replacement(driven.later(1).exit(2, "exited with status 1"))
    driven.later(1).arm(started.attempt)

    assert gaps(driven) == [(0.0, 3.0, 300)]


def test_two_losses_leave_two_gaps(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, cores=1)
    driven.run()
    driven.later(1).exit(1)
    driven.later(1).arm(2)
    driven.later(1).report(2, did(100))
    driven.later(1).exit(2)
    driven.later(1).arm(3)

    assert gaps(driven) == [(0.0, 2.0, 200), (3.0, 5.0, 200)]


def test_a_core_that_dies_between_the_order_and_the_instant_leaves_no_gap_when_replaced_in_time(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, cores=1)
    driven.start()
    driven.arm(1)

    driven.exit(1)
    effects = driven.arm(2)

    start_ns = driven.now + START_DELAY_NS
    assert effects == [TellCore(2, Go(start_ns, start_ns, start_ns))], "not before the plan begins"
    assert gaps(driven) == [(0.0, 0.0, 0)]


def test_a_report_that_comes_before_the_instant_does_not_move_the_gap_before_the_start(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, cores=1)
    driven.start()
    driven.arm(1)
    driven.report(1)

    driven.later(1).exit(1)

    assert driven.job.lost[0].from_ns == 0


def test_a_replacement_that_refuses_fails_the_workflow_and_closes_the_gap(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, cores=2)
    driven.run()
    driven.later(1).exit(1)

    effects = driven.later(1).say(3, Refused("unreachable", "no such host"))

    assert effects == [KillCore(2), KillCore(3), JobEnded()]
    assert driven.states == {"Shop": "failed"}
    assert gaps(driven) == [(0.0, 2.0, 100)]


def test_a_value_of_a_replacement_is_handed_on(job_of: JobOf) -> None:
    driven = job_of({"Login": ONE_USER, "Shop": {**ONE_USER, "after": {"Login"}, "flows": [("Login", "token")]}})
    driven.run()
    driven.later(1).exit(1)
    driven.arm(2)

    driven.finish(2, provided={"token": b"t"})

    assert driven.arms[3].values == {"Login": {"token": b"t"}}


# Iterations.


@pytest.mark.parametrize("shape", [IterationsPerVU(2, 10), SharedIterations(2, 20)])
def test_iterations_that_were_started_are_not_run_again(
    job_of: JobOf, shape: IterationsPerVU | SharedIterations
) -> None:
    driven = job_of({"Shop": {"shape": shape}}, cores=1)
    driven.run()
    driven.later(1).report(1, Tally(started=8))
    driven.exit(1)
    driven.arm(2)
    driven.later(1).report(2, Tally(started=5))

    started = replacement(driven.exit(2))

    assert driven.arms[started.attempt].iterations_done == 13


@pytest.mark.parametrize("shape", [IterationsPerVU(2, 10), SharedIterations(2, 20)])
def test_a_core_that_had_started_its_last_iteration_is_not_replaced(
    job_of: JobOf, shape: IterationsPerVU | SharedIterations
) -> None:
    driven = job_of({"Shop": {"shape": shape}}, cores=1)
    driven.run()
    driven.later(1).report(1, Tally(started=20, iterations=18))

    assert driven.later(1).exit(1) == [JobEnded()]
    assert gaps(driven) == [(1.0, 2.0, 0)]


# Attempts.


def test_after_four_attempts_the_gap_runs_to_the_end_of_the_plan(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, cores=2)
    driven.run()
    driven.later(1)
    for core, successor in ((1, 3), (3, 4), (4, 5)):
        driven.exit(core)
        driven.arm(successor)

    assert driven.later(1).exit(5) == [], "the other shard runs on"
    assert len(driven.job.workflows["Shop"].shards[0].attempts) == ATTEMPTS_LIMIT
    assert gaps(driven)[-1] == (1.0, 10.0, 450)
    driven.later(8).finish(2)
    assert driven.states == {"Shop": "completed"}


def test_the_gap_runs_to_the_end_of_the_plan_also_when_the_last_attempts_never_began(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, cores=1)
    driven.run()
    driven.later(1)

    for core in (1, 2, 3):
        driven.exit(core)
    effects = driven.exit(4)

    assert effects == [JobEnded()]
    assert gaps(driven) == [(0.0, 10.0, 1000)]


def test_without_an_end_in_time_the_gap_of_the_last_attempt_ends_with_it(job_of: JobOf) -> None:
    driven = job_of({"Shop": {"shape": IterationsPerVU(1, 10)}})
    driven.run()
    for core in (1, 2, 3):
        driven.later(1).exit(core)
        driven.arm(core + 1)

    assert driven.later(1).exit(4) == [JobEnded()]
    assert gaps(driven)[-1] == (3.0, 4.0, 0)


def test_a_core_that_dies_while_it_loads_is_tried_again_and_then_refused(job_of: JobOf) -> None:
    driven = job_of({"Shop": {}, "Late": {"after": {"Shop"}}}, cores=2)
    driven.start()
    driven.arm(1)

    for core in (2, 3, 4):
        replacement(driven.exit(core))
    effects = driven.exit(5, "exited with status 3")

    assert effects == [KillCore(1), JobEnded()]
    assert driven.states == {"Shop": "failed", "Late": "skipped"}
    assert driven.job.workflows["Shop"].refused == Refused(
        "setup", "the core process of Shop exited with status 3 while it loaded the test"
    )
    assert driven.job.workflows["Shop"].failure == driven.job.workflows["Shop"].refused.text
    assert driven.job.lost == [], "nothing had run yet"


def test_the_others_wait_for_the_one_that_is_tried_again_and_all_start_together(job_of: JobOf) -> None:
    driven = job_of({"Shop": {}}, cores=2)
    driven.start()
    driven.arm(1)
    driven.exit(2)

    effects = driven.later(5).arm(3)

    start_ns = driven.now + START_DELAY_NS
    assert effects == [TellCore(core, Go(start_ns, start_ns, start_ns)) for core in (1, 3)]


def test_a_replacement_that_is_not_ready_in_time_is_killed_and_tried_again(job_of: JobOf) -> None:
    driven = job_of({"Shop": {"shape": IterationsPerVU(2, 1000)}}, cores=2)
    driven.run()
    driven.later(1).exit(1, "was killed by SIGKILL")

    driven.now += ARM_LIMIT_NS - 1
    assert driven.tick() == []
    driven.now += 1
    killed, *started = driven.tick()

    assert killed == KillCore(3)
    assert replacement(started).attempt == 4
    assert [lost.cause for lost in driven.job.lost] == ["was killed by SIGKILL"]


def test_replacements_that_are_never_ready_are_given_up_in_the_end(job_of: JobOf) -> None:
    driven = job_of({"Seed": {"shape": IterationsPerVU(1, 1), "is_test": False}})
    driven.run()
    driven.exit(1)
    for _ in range(3):
        driven.later(60).tick()

    assert driven.cores("Seed") == [1, 2, 3, 4]
    assert driven.states == {"Seed": "failed"}
    assert driven.job.workflows["Seed"].failure == "its core was not ready to start within 60 s"


# When nobody takes its place.


def test_a_core_that_dies_after_the_end_of_the_plan_is_not_replaced(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, cores=1)
    driven.run()
    driven.later(9.9).report(1, did(990))

    assert driven.later(1).exit(1) == [JobEnded()]
    assert gaps(driven) == [(9.9, 10.9, 10)], "arrivals end with the plan"


def test_a_core_that_dies_at_the_very_end_of_the_plan_is_not_replaced(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, cores=1)
    driven.run()
    driven.later(9).report(1, did(900))

    assert driven.later(1).exit(1) == [JobEnded()]
    assert gaps(driven) == [(9.0, 10.0, 100)]


def test_a_replacement_that_dies_after_the_end_of_the_plan_is_not_replaced(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, cores=1)
    driven.run()
    driven.later(9).exit(1)

    assert driven.later(2).exit(2) == [JobEnded()]
    assert gaps(driven) == [(0.0, 11.0, 1000)]


def test_a_core_that_dies_after_it_was_told_to_stop_is_not_replaced(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, cores=1)
    driven.run()
    driven.later(2.9).report(1, did(290))
    driven.later(0.1).interrupt()

    assert driven.later(1).exit(1) == [JobEnded()]
    assert driven.states == {"Shop": "cancelled"}
    assert gaps(driven) == [(2.9, 4.0, 10)], "after the order to stop no arrival was wanted"


def test_a_replacement_that_has_not_begun_is_killed_when_all_is_stopped(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, cores=2)
    driven.run()
    driven.later(1).exit(1)

    assert driven.later(1).interrupt() == [TellCore(2, Stop()), KillCore(3)]

    assert gaps(driven) == [(0.0, 2.0, 100)]
    assert driven.say(3, Armed()) == [], "it would not know that it must not begin"
    assert driven.finish(2) == [TellCore(2, Ack(1)), JobEnded()]


def test_a_workflow_whose_only_core_is_being_replaced_ends_at_once_when_stopped(job_of: JobOf) -> None:
    driven = job_of({"Shop": {"shape": IterationsPerVU(1, 10), "timeout_s": 5}, "Late": {"after": {"Shop"}}})
    driven.run()
    driven.later(1).exit(1)

    assert driven.later(5).tick() == [KillCore(2), JobEnded()]
    assert driven.states == {"Shop": "timeout", "Late": "skipped"}


def test_a_replacement_that_has_not_begun_when_the_plan_ends_is_not_waited_for(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, cores=1)
    driven.run()
    driven.later(9).exit(1)

    assert driven.later(1.1).tick() == [KillCore(2), JobEnded()]

    assert gaps(driven) == [(0.0, 10.0, 1000)]
    assert len(driven.job.lost) == 1


def test_the_end_of_a_workflow_includes_the_last_report_of_a_lost_core(job_of: JobOf) -> None:
    driven = job_of({"Shop": {"shape": IterationsPerVU(2, 10)}}, cores=2)
    driven.run()
    driven.later(1).finish(1)
    driven.later(3).report(2, Tally(started=10))

    driven.later(1).exit(2)

    assert driven.has_ended
    assert driven.job.elapsed_ns(driven.now) == 4 * SECOND


def test_a_lost_core_fails_a_workflow_that_measures_nothing(job_of: JobOf) -> None:
    driven = job_of(
        {"Seed": {"shape": IterationsPerVU(1, 1), "is_test": False}, "Shop": {**ONE_USER, "after": {"Seed"}}}
    )
    driven.run()
    driven.later(1).report(1, Tally(started=1))

    driven.later(1).exit(1, "was killed by SIGKILL")

    assert driven.states == {"Seed": "failed", "Shop": "skipped"}
    assert driven.job.workflows["Seed"].failure == "its core was killed by SIGKILL"


def test_a_lost_core_does_not_hide_why_a_workflow_was_stopped(job_of: JobOf) -> None:
    driven = job_of({"Seed": {"shape": IterationsPerVU(1, 1), "is_test": False, "timeout_s": 5}})
    driven.run()
    driven.later(6).tick()
    driven.exit(1)

    assert driven.states == {"Seed": "timeout"}
    assert driven.job.workflows["Seed"].failure == "it ran longer than its timeout of 5 s"


def test_a_lost_core_that_was_replaced_fails_nothing(job_of: JobOf) -> None:
    driven = job_of({"Seed": {"shape": IterationsPerVU(1, 1), "is_test": False}})
    driven.run()
    driven.later(1).exit(1)
    driven.arm(2)
    driven.finish(2)

    assert driven.states == {"Seed": "completed"}


def test_a_lost_core_does_not_turn_an_interrupted_workflow_into_a_failed_one(job_of: JobOf) -> None:
    driven = job_of({"Seed": {"shape": IterationsPerVU(1, 1), "is_test": False}})
    driven.run()
    driven.interrupt()
    driven.exit(1)

    assert driven.states == {"Seed": "cancelled"}


def test_the_cores_of_a_lost_shard_have_no_active_users(job_of: JobOf) -> None:
    driven = job_of({"Shop": {}}, cores=2)
    driven.run()
    driven.report(1, vus=2)
    driven.report(2, vus=2)

    driven.exit(2)

    assert view_of(driven.job).active_vus() == 2


def test_the_missing_users_are_those_of_the_shard(job_of: JobOf) -> None:
    driven = job_of({"Shop": {"shape": ConstantVUs(5, "10s")}}, cores=2)
    driven.run()
    driven.exit(1)
    driven.exit(2)

    plan = ConstantVUs(5, "10s").plan()
    assert [lost.vus_missing for lost in driven.job.lost] == [Shard(plan, index, 2).vus for index in (0, 1)] == [2, 3]
