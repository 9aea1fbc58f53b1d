"""Workflows of a job from start to report; `test_load_job_ends.py` and `test_lost_shards.py` have the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import pytest

from talka.control.load.core_effects import JobEnded, StartCore, TellCore
from talka.control.load.load_job import START_DELAY_NS
from talka.stats.tally import MetricTally, StepTally, Tally
from talka.stats.windows import Window
from talka.units import SECOND
from talka.wire.shards import (
    CONTEXT_PREFIX,
    RECEIVED_LIMIT_BYTES,
    VALUE_LIMIT_BYTES,
    Ack,
    Armed,
    Go,
    Hello,
    MetricTotals,
    Refused,
    StepTotals,
    Totals,
)
from talka.work.shapes import ConstantRate, ConstantVUs
from tests.report.documents import view_of

if TYPE_CHECKING:
    from tests.control.conftest import Driven

JobOf = Callable[..., "Driven"]
ONE_USER = {"shape": ConstantVUs(1, "10s")}


# Starting.


def test_a_workflow_gets_cores_by_its_priority_out_of_the_whole_pool(job_of: JobOf) -> None:
    driven = job_of({"Shop": {"priority": "high"}, "Admin": {"priority": "low"}}, cores=4)

    driven.start()

    assert (len(driven.cores("Shop")), len(driven.cores("Admin"))) == (3, 1)


def test_each_core_is_given_its_own_shard_of_the_plan(job_of: JobOf) -> None:
    driven = job_of({"Shop": {"shape": ConstantVUs(5, "10s")}}, cores=2)

    effects = driven.start()

    assert all(isinstance(effect, StartCore) for effect in effects)
    arms = list(driven.arms.values())
    assert [(arm.job, arm.workflow, arm.source, arm.settings) for arm in arms] == [
        ("job", "Shop", driven.job.spec.source, driven.job.spec.settings)
    ] * 2
    assert [arm.shard for arm in arms] == list(ConstantVUs(5, "10s").plan().split(2))
    assert [arm.iterations_done for arm in arms] == [0, 0]


def test_no_core_goes_before_all_are_armed_and_then_all_start_at_one_instant(job_of: JobOf) -> None:
    driven = job_of({"Shop": {}}, cores=3)
    driven.start()

    assert driven.arm(3, 1) == []
    effects = driven.later(1).arm(2)

    start_ns = driven.now + 20_000_000
    assert effects == [TellCore(core, Go(start_ns, start_ns, start_ns)) for core in (1, 2, 3)]
    assert driven.states == {"Shop": "running"}


def test_workflows_that_depend_on_nothing_run_side_by_side_with_an_origin_each(job_of: JobOf) -> None:
    driven = job_of({"Shop": ONE_USER, "Admin": ONE_USER})
    driven.start()
    driven.arm(1)

    effects = driven.later(3).arm(2)

    first_ns = driven.job.workflows["Shop"].origin_ns
    start_ns = driven.now + START_DELAY_NS
    assert effects == [TellCore(2, Go(start_ns, start_ns, first_ns))]
    assert driven.job.origin_ns == first_ns


def test_a_workflow_starts_when_all_it_depends_on_have_completed(job_of: JobOf) -> None:
    driven = job_of({"A": ONE_USER, "B": ONE_USER, "C": {**ONE_USER, "after": {"A", "B"}}})
    driven.run()

    driven.finish(1)
    assert driven.cores("C") == []
    driven.finish(2)

    assert driven.states == {"A": "completed", "B": "completed", "C": "assigned"}
    assert driven.cores("C") == [3]


def test_a_high_priority_does_not_keep_others_from_running_beside_it(job_of: JobOf) -> None:
    driven = job_of({"A": {}, "B": {}, "C": {"priority": "high"}}, cores=4)

    driven.start()

    assert [len(driven.cores(name)) for name in "ABC"] == [1, 1, 2], "three of four would leave one for two of them"
    assert len(processes(driven)) == 4


@pytest.mark.parametrize("cores", [1, 2])
def test_workflows_of_one_job_run_at_the_same_time_whatever_the_number_of_cores(job_of: JobOf, cores: int) -> None:
    driven = job_of({name: {"shape": ConstantRate(20, "4s")} for name in "ABCD"}, cores=cores)

    driven.run()

    assert set(driven.states.values()) == {"running"}
    sharing = [len(attempts) for attempts in processes(driven).values()]
    assert sharing == [4 // cores] * cores
    assert [len(driven.cores(name)) for name in "ABCD"] == [1, 1, 1, 1]
    shares = {name: list(run.shares_with) for name, run in driven.job.workflows.items()}
    assert shares["A"] == (["B", "C", "D"] if cores == 1 else ["C"])


def test_workflows_that_get_ready_on_one_core_start_at_one_instant(job_of: JobOf) -> None:
    driven = job_of({name: {"shape": ConstantRate(20, "4s")} for name in "ABC"}, cores=1)
    driven.start()
    assert driven.arm(1) == []
    assert driven.later(1).arm(3) == [], "B would disturb it while it gets ready"

    effects = driven.later(1).arm(2)

    start_ns = driven.now + START_DELAY_NS
    assert sorted(effects, key=str) == [TellCore(core, Go(start_ns, start_ns, start_ns)) for core in (1, 2, 3)]


def test_a_workflow_that_cannot_start_does_not_keep_those_on_its_core(job_of: JobOf) -> None:
    driven = job_of({name: {"shape": ConstantRate(20, "4s")} for name in "AB"}, cores=1)
    driven.start()
    driven.arm(1)

    driven.say(2, Refused("setup", "no account"))

    assert driven.states == {"A": "running", "B": "failed"}


def test_while_cores_suffice_each_workflow_has_its_own(job_of: JobOf) -> None:
    driven = job_of({name: {"shape": ConstantVUs(8, "4s")} for name in "ABC"}, cores=4)

    driven.run()

    assert [len(driven.cores(name)) for name in "ABC"] == [2, 1, 1]
    assert all(len(attempts) == 1 for attempts in processes(driven).values())
    assert not any(run.shares_with for run in driven.job.workflows.values())


def test_a_dependent_that_becomes_ready_while_all_cores_are_busy_starts_at_once(job_of: JobOf) -> None:
    driven = job_of({"Seed": {"is_test": False}, "Long": {}, "Shop": {"after": {"Seed"}}}, cores=1)
    driven.run()
    assert driven.states["Shop"] == "pending"

    driven.finish(driven.cores("Seed")[0])

    (shop,) = driven.cores("Shop")
    assert driven.starts[shop].process == driven.starts[driven.cores("Long")[0]].process
    assert list(driven.job.workflows["Shop"].shares_with) == ["Long"]


def test_a_core_whose_shards_have_ended_gets_a_new_process(job_of: JobOf) -> None:
    driven = job_of({"First": {}, "Then": {"after": {"First"}}}, cores=1)
    driven.run()

    driven.finish(1)

    assert driven.starts[2].process == 2
    assert not driven.job.workflows["Then"].shares_with


def test_the_death_of_a_shared_process_is_a_gap_for_each_shard_it_held(job_of: JobOf) -> None:
    driven = job_of({name: {"shape": ConstantRate(20, "4s")} for name in "AB"}, cores=1)
    driven.run()
    driven.later(1).report(1, Tally(started=20))
    driven.report(2, Tally(started=20))

    driven.later(1).exit(1)
    driven.exit(2)

    assert [(lost.workflow, lost.from_ns, lost.to_ns) for lost in driven.job.lost] == [
        ("A", SECOND, 2 * SECOND),
        ("B", SECOND, 2 * SECOND),
    ]
    assert len({driven.starts[core].process for core in (3, 4)}) == 1, "those that take their place share one again"
    assert [driven.arms[core].workflow for core in (3, 4)] == ["A", "B"]


def processes(driven: Driven) -> dict[int, list[int]]:
    """Attempts that live, by their process."""
    found: dict[int, list[int]] = {}
    for core in sorted(driven.alive):
        found.setdefault(driven.starts[core].process, []).append(core)
    return found


def test_an_exclusive_workflow_runs_alone_even_when_it_cannot_use_all_cores(job_of: JobOf) -> None:
    driven = job_of({"Alone": {**ONE_USER, "priority": "exclusive"}, "Other": {}})
    driven.run()
    assert driven.states == {"Alone": "running", "Other": "ready"}

    driven.finish(1)

    assert driven.states == {"Alone": "completed", "Other": "assigned"}


def test_an_exclusive_workflow_waits_for_those_that_run(job_of: JobOf) -> None:
    driven = job_of(
        {"Seed": {"is_test": False}, "Other": ONE_USER, "Alone": {"priority": "exclusive", "after": {"Seed"}}}
    )
    driven.run()

    driven.finish(driven.cores("Seed")[0])
    assert driven.states["Alone"] == "ready"
    driven.finish(driven.cores("Other")[0])

    assert len(driven.cores("Alone")) == 4


def test_a_workflow_that_measures_nothing_runs_on_one_core(job_of: JobOf) -> None:
    driven = job_of({"Seed": {"is_test": False, "priority": "exclusive"}, "Shop": {"priority": "low"}})

    driven.start()

    assert (len(driven.cores("Seed")), len(driven.cores("Shop"))) == (1, 1)


def test_a_workflow_that_measures_nothing_leaves_the_rest_of_the_pool_to_others(job_of: JobOf) -> None:
    driven = job_of(
        {
            "Seed": {"is_test": False, "priority": "exclusive"},
            "Shop": ONE_USER,
            "Late": {**ONE_USER, "after": {"Shop"}},
        }
    )
    driven.run()

    driven.finish(driven.cores("Shop")[0])

    assert driven.states == {"Seed": "running", "Shop": "completed", "Late": "assigned"}


def test_a_job_without_workflows_ends_at_once(job_of: JobOf) -> None:
    driven = job_of({})

    assert driven.start() == [JobEnded()]
    assert driven.job.ended_ns == driven.now


# Values that workflows hand on.


def test_values_reach_only_those_on_whom_both_sides_agreed(job_of: JobOf) -> None:
    flows = [("Login", "token")]
    driven = job_of(
        {
            "Login": ONE_USER,
            "Shop": {**ONE_USER, "after": {"Login"}, "flows": flows},
            "Admin": {**ONE_USER, "after": {"Login"}},
        }
    )
    driven.run()

    driven.finish(1, provided={"token": b"t", "secret": b"s"})

    assert [arm.values for arm in driven.arms.values()] == [{}, {"Login": {"token": b"t"}}, {}]


def test_a_value_that_nobody_provided_is_left_out(job_of: JobOf) -> None:
    flows = [("Login", "token"), ("Login", "name")]
    driven = job_of({"Login": ONE_USER, "Shop": {**ONE_USER, "after": {"Login"}, "flows": flows}})
    driven.run()

    driven.finish(1, provided={"name": b"n"})

    assert driven.arms[2].values == {"Login": {"name": b"n"}}


def test_values_that_would_not_fit_a_frame_fail_their_receiver_and_skip_what_depends_on_it(job_of: JobOf) -> None:
    sources = ["One", "Two", "Three", "Four"]
    driven = job_of(
        {
            **{name: ONE_USER for name in sources},
            "Shop": {**ONE_USER, "after": set(sources), "flows": [(name, "much") for name in sources]},
            "Report": {**ONE_USER, "after": {"Shop"}},
        },
        cores=4,
    )
    driven.run()
    for core in (1, 2, 3):
        driven.finish(core, provided={"much": bytes(VALUE_LIMIT_BYTES)})

    driven.finish(4, provided={"much": b"!"})

    assert driven.has_ended
    assert (driven.states["Shop"], driven.states["Report"]) == ("failed", "skipped")
    assert driven.job.workflows["Shop"].refused is not None
    assert f"receives {RECEIVED_LIMIT_BYTES + 1} bytes" in (driven.job.workflows["Shop"].failure or "")


def test_metrics_are_applied_with_the_totals_that_close_their_report(job_of: JobOf) -> None:
    driven = job_of({"Shop": ONE_USER})
    driven.run()
    driven.say(1, MetricTotals(1, "size", MetricTally("count", values=3)))
    assert driven.job.tally().metrics == {}

    driven.report(1)
    driven.say(1, MetricTotals(1, "size", MetricTally("count", values=9)))  # a repeated frame of an old report
    driven.report(1)

    assert driven.job.tally().metrics["size"].values == 3


def test_of_several_shards_the_lowest_with_a_value_wins(job_of: JobOf) -> None:
    flows = [("Login", "token"), ("Login", "name")]
    driven = job_of({"Login": {}, "Shop": {**ONE_USER, "after": {"Login"}, "flows": flows}}, cores=3)
    driven.run()

    driven.finish(3, provided={"token": b"third", "name": b"third"})
    driven.finish(2, provided={"token": b"second"})
    driven.finish(1)

    assert driven.arms[4].values == {"Login": {"token": b"second", "name": b"third"}}


# Reports.


def test_totals_are_cumulative_and_the_latest_wins(job_of: JobOf) -> None:
    driven = job_of({"Shop": {}}, cores=2)
    driven.run()

    assert driven.report(1, Tally(started=10, iterations=8)) == [TellCore(1, Ack(1))]
    assert driven.report(1, Tally(started=30, iterations=29)) == [TellCore(1, Ack(2))]
    assert driven.report(2, Tally(started=5, iterations=5)) == [TellCore(2, Ack(1))]

    assert (driven.job.tally().started, driven.job.tally().iterations) == (35, 34)


def test_a_repeated_or_older_report_is_acknowledged_and_not_applied(job_of: JobOf) -> None:
    driven = job_of({"Shop": ONE_USER})
    driven.run()
    driven.report(1, Tally(started=10), [Window(0, started=10)])
    driven.report(1, Tally(started=20), [Window(1, started=10)])

    for sequence in (1, 2):
        driven.sequences[1] = sequence - 1
        assert driven.report(1, Tally(started=99), [Window(2, started=79)]) == [TellCore(1, Ack(sequence))]

    assert driven.job.tally().started == 20
    assert [span.window.started for span in driven.job.timeline.spans()] == [10, 10]


def test_step_totals_count_only_once_their_report_is_closed(job_of: JobOf) -> None:
    driven = job_of({"Shop": ONE_USER})
    driven.run()

    assert driven.say(1, StepTotals(1, "buy", StepTally(ok=3), True)) == []
    driven.say(1, StepTotals(1, "log_in", StepTally(ok=2), False))
    assert driven.job.tally().steps == {}
    driven.report(1, Tally(started=3))

    assert {name: step.ok for name, step in driven.job.tally().steps.items()} == {"buy": 3}
    assert {name: step.ok for name, step in driven.job.tally().actions.items()} == {"log_in": 2}


def test_a_step_that_did_not_change_keeps_what_was_known_of_it(job_of: JobOf) -> None:
    driven = job_of({"Shop": ONE_USER})
    driven.run()
    driven.say(1, StepTotals(1, "buy", StepTally(ok=3), True))
    driven.say(1, StepTotals(1, "look", StepTally(ok=5), True))
    driven.report(1)

    driven.say(1, StepTotals(2, "look", StepTally(ok=6), True))
    driven.report(1)

    assert {name: step.ok for name, step in driven.job.tally().steps.items()} == {"buy": 3, "look": 6}


def test_step_totals_of_an_older_report_change_nothing(job_of: JobOf) -> None:
    driven = job_of({"Shop": ONE_USER})
    driven.run()
    driven.say(1, StepTotals(1, "buy", StepTally(ok=3), True))
    driven.report(1)

    driven.say(1, StepTotals(2, "buy", StepTally(ok=4), True))
    driven.say(1, StepTotals(1, "buy", StepTally(ok=3), True))
    driven.report(1)

    assert driven.job.tally().steps["buy"].ok == 4


def test_windows_land_once_although_a_last_report_repeats_what_was_not_acknowledged(job_of: JobOf) -> None:
    driven = job_of({"Shop": {}}, cores=2)
    driven.run()
    first, second, third = Window(0, requests=5, vus=1), Window(1, requests=6, vus=2), Window(2, requests=7, vus=2)

    driven.report(1, windows=[first, second])
    driven.report(2, windows=[Window(1, requests=100, vus=3)])
    driven.report(1, windows=[])
    driven.finish(1, windows=[first, second, third])

    seen = [(span.start_ns, span.window.requests, span.window.vus) for span in driven.job.timeline.spans()]
    assert seen == [(0, 5, 1), (100_000_000, 106, 5), (200_000_000, 7, 2)]


def test_active_users_are_those_of_the_latest_reports_of_cores_that_run(job_of: JobOf) -> None:
    driven = job_of({"Shop": {}}, cores=2)
    driven.run()
    assert view_of(driven.job).active_vus() == 0

    driven.report(1, vus=1)
    driven.report(1, vus=2)
    driven.report(2, vus=2)
    assert view_of(driven.job).active_vus() == 4
    driven.finish(2, vus=2)

    assert view_of(driven.job).active_vus() == 2


def test_when_a_core_really_started_is_known_from_its_reports(job_of: JobOf) -> None:
    driven = job_of({"Shop": ONE_USER})
    driven.run()
    (shard,) = driven.job.workflows["Shop"].shards
    assert shard.current.started_at_ns == 0

    driven.say(1, Totals(1, Tally(), [], 1, driven.now + 70_000))

    assert shard.current.started_at_ns == driven.now + 70_000


def test_the_engine_is_the_one_the_cores_name(job_of: JobOf) -> None:
    driven = job_of({"Shop": ONE_USER})
    driven.start()
    assert driven.job.engine == ""

    assert driven.say(1, Hello(4711, "3.13.1", "python")) == []
    assert driven.job.engine == "python"


def test_cores_of_one_job_may_run_on_several_engines(job_of: JobOf) -> None:
    driven = job_of({"Login": ONE_USER, "Shop": ONE_USER}, cores=2)
    driven.start()
    for core, engine in ((1, "native/task"), (2, "native/direct")):
        driven.say(core, Hello(4711, "3.13.1", ""))
        driven.say(core, Armed(engine))

    assert driven.job.engine == "native/direct, native/task"


def test_time_counts_from_the_starting_instant_to_the_last_end(job_of: JobOf) -> None:
    driven = job_of({"Shop": {}}, cores=2)
    driven.start()
    assert driven.job.elapsed_ns(driven.now) == driven.job.workflows["Shop"].elapsed_ns(driven.now) == 0
    driven.arm(1, 2)
    assert driven.job.elapsed_ns(driven.now) == driven.job.workflows["Shop"].elapsed_ns(driven.now) == 0, "not yet"

    driven.now = driven.job.origin_ns
    driven.later(3).finish(2)
    assert driven.job.elapsed_ns(driven.now) == 3 * SECOND
    driven.later(1).finish(1)
    driven.later(60)

    assert driven.job.elapsed_ns(driven.now) == driven.job.workflows["Shop"].elapsed_ns(driven.now) == 4 * SECOND


def test_a_workflow_ended_when_its_core_said_and_not_when_the_word_arrived(job_of: JobOf) -> None:
    driven = job_of({"Shop": ONE_USER})
    driven.run()
    driven.later(3)

    driven.report(1, final=True, ended_at_ns=driven.now - SECOND // 2)

    assert driven.job.elapsed_ns(driven.now) == 2 * SECOND + SECOND // 2


# Context by @depends.


def context(**values: object) -> dict[str, bytes]:
    return {f"{CONTEXT_PREFIX}{key}": msgspec.msgpack.encode(value) for key, value in values.items()}


def test_what_a_workflow_left_in_its_context_reaches_those_that_depend_on_it(job_of: JobOf) -> None:
    driven = job_of({"Seed": {"is_test": False}, "Shop": {"after": {"Seed"}}, "Other": {}})
    driven.run()

    driven.finish(driven.cores("Seed")[0], provided={"token": b"t", **context(user=7)})

    assert driven.arms[driven.cores("Shop")[0]].values == {"Seed": context(user=7)}, (
        "what is provided goes by its flows"
    )
    assert driven.arms[driven.cores("Other")[0]].values == {}


def test_the_lowest_shard_that_has_a_key_decides_what_dependents_find(job_of: JobOf) -> None:
    driven = job_of({"Seed": {}, "Shop": {"after": {"Seed"}}}, cores=3)
    driven.run()
    driven.finish(3, provided=context(user=3, last=3))
    driven.finish(1, provided=context(first=1))

    driven.finish(2, provided=context(user=2))

    assert driven.arms[driven.cores("Shop")[0]].values == {"Seed": context(user=2, last=3, first=1)}


def test_two_parents_with_the_same_value_for_a_key_agree(job_of: JobOf) -> None:
    driven = job_of({"A": ONE_USER, "B": ONE_USER, "Shop": {"after": {"A", "B"}}})
    driven.run()

    driven.finish(1, provided=context(limits={"a": 1, "b": 2}, mine=1))
    driven.finish(2, provided=context(limits={"b": 2, "a": 1}))

    assert driven.states["Shop"] == "assigned"


@pytest.mark.parametrize("other", [context(user=2), {f"{CONTEXT_PREFIX}user": b"\xc1"}])
def test_two_parents_with_different_values_for_a_key_are_an_error_that_names_it(
    job_of: JobOf, other: dict[str, bytes]
) -> None:
    driven = job_of({"A": ONE_USER, "B": ONE_USER, "Shop": {"after": {"A", "B"}}})
    driven.run()
    driven.finish(1, provided={**context(user=1), "colour": b"red"})

    driven.finish(2, provided={**other, "colour": b"blue"})

    run = driven.job.workflows["Shop"]
    assert driven.states["Shop"] == "failed" and run.refused is not None
    assert run.failure == (
        "A and B, on which it depends, left different values in self.context['user']: use different keys, or delete "
        "one "
        "of them in a teardown"
    )
