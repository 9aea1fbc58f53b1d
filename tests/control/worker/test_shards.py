"""A task on a worker: several shards on a core each, told of as one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.load.core_effects import KillCore, LoadEffect, StartCore, TellCore
from talka.control.load.shard_group import ARM_LIMIT_NS, STOP_SLACK_NS
from talka.control.worker.core_pool import CorePool
from talka.control.worker.report import REMEMBERED
from talka.control.worker.shards import ORDERED_SLACK_NS, WorkerShards, encoded_within
from talka.stats.tally import CheckTally, MetricTally, StepTally, Tally
from talka.stats.windows import Window
from talka.units import NEVER, SECOND
from talka.wire.jobs import Assign, AttemptResult, Start, decode_result, encode_result
from talka.wire.orders import BundleFacts
from talka.wire.shards import (
    Ack,
    Arm,
    Armed,
    FileSource,
    FromCore,
    Gap,
    Go,
    Hello,
    MetricTotals,
    Refused,
    Settings,
    ShardAnswer,
    StepTotals,
    Stop,
    TimeAsked,
    TimeOver,
    Totals,
)
from talka.work.deadlines import Allowance
from talka.work.load import Plan
from talka.work.shapes import ConstantRate, ConstantVUs, LoadShape, SharedIterations

START_NS = 1_000 * SECOND
GRACE_NS = 30 * SECOND
FENCE = (0, 1, 1)


class Driven:
    """A task, its clock and its cores."""

    def __init__(self, plan: Plan, *, count: int = 2, first: int = 0, of: int | None = None, **more: Any) -> None:
        self.now = START_NS
        self.arms: dict[int, Arm] = {}
        self.alive: set[int] = set()
        self.sequences: dict[int, int] = {}
        assign = Assign(
            job="job",
            fence=FENCE,
            attempt=7,
            workflow="Shop",
            plan=plan,
            first=first,
            count=count,
            of=of or count,
            iterations_done=more.pop("done", (0,) * count),
            values={"Seed": {"token": b"t"}},
            settings=Settings(grace_ns=GRACE_NS),
            bundle=BundleFacts("0" * 64, 1, b"", "shop.py"),
            **more,
        )
        self.task = WorkerShards(assign, FileSource("shop.py"), CorePool(count), worker="w1")

    def take(self, effects: list[LoadEffect]) -> list[LoadEffect]:
        for effect in effects:
            match effect:
                case StartCore(attempt=core):
                    arm = self.task.arm_for(core)
                    assert arm is not None
                    self.arms[core] = arm
                    self.alive.add(core)
                case TellCore(attempt=core):
                    assert core in self.alive, "a message to a core that does not live"
                case KillCore(attempt=core):
                    assert core in self.alive, "a core is killed that does not live"
                    self.alive.discard(core)
        return effects

    def later(self, seconds: float) -> Driven:
        self.now += round(seconds * SECOND)
        return self

    def start(self) -> list[LoadEffect]:
        return self.take(self.task.start(self.now))

    def say(self, core: int, message: FromCore) -> list[LoadEffect]:
        return self.take(self.task.on_message(self.now, core, message))

    def arm(self, *cores: int) -> list[LoadEffect]:
        return [effect for core in cores for effect in self.say(core, Armed())]

    def go(self) -> list[LoadEffect]:
        return self.take(self.task.go(self.now, Start("job", FENCE, 7, self.now, self.now, self.now)))

    def run(self) -> Driven:
        self.start()
        self.arm(*sorted(self.alive))
        self.go()
        return self

    def report(self, core: int, tally: Tally | None = None, windows: Any = (), vus: int = 0, **more: Any) -> Any:
        self.sequences[core] = self.sequences.get(core, 0) + 1
        began = more.pop("began", self.now)
        return self.say(core, Totals(self.sequences[core], tally or Tally(), list(windows), vus, began, **more))

    def finish(self, core: int, tally: Tally | None = None, **more: Any) -> list[LoadEffect]:
        effects = self.report(core, tally, final=True, ended_at_ns=self.now, **more)
        self.alive.discard(core)
        return list(effects)

    def step(self, core: int, name: str, tally: StepTally, measured: bool = True) -> None:
        self.say(core, StepTotals(self.sequences.get(core, 0) + 1, name, tally, measured))

    def exit(self, core: int, cause: str = "was killed by SIGKILL") -> list[LoadEffect]:
        self.alive.discard(core)
        return self.take(self.task.on_exit(self.now, core, cause))

    def tick(self) -> list[LoadEffect]:
        return self.take(self.task.tick(self.now))

    def stop(self) -> list[LoadEffect]:
        return self.take(self.task.stop(self.now))

    @property
    def stage(self) -> str:
        return self.task.stage

    def totals(self, **more: bool) -> Totals:
        (*_, last) = self.task.report(self.now, **more)
        assert isinstance(last, Totals)
        return last


def vus(count: int = 4, duration: str = "60s") -> Plan:
    return plan_of(ConstantVUs(count, duration))


def plan_of(shape: LoadShape) -> Plan:
    return shape.plan()


def window(index: int, started: int = 1, vus: int = 1) -> Window:
    return Window(index, started=started, vus=vus)


# Getting ready.


def test_each_shard_gets_a_core_and_what_earlier_attempts_have_done() -> None:
    driven = Driven(plan_of(SharedIterations(10, 100)), count=2, first=3, of=5, done=(4, 9))

    effects = driven.start()

    assert [type(effect) for effect in effects] == [StartCore, StartCore]
    arms = list(driven.arms.values())
    assert [(arm.shard.index, arm.shard.of, arm.iterations_done) for arm in arms] == [(3, 5, 4), (4, 5, 9)]
    assert {arm.workflow for arm in arms} == {"Shop"}
    assert arms[0].values == {"Seed": {"token": b"t"}}
    assert arms[0].source == FileSource("shop.py")
    assert arms[0].settings.grace_ns == GRACE_NS


def test_it_is_armed_once_all_cores_are() -> None:
    driven = Driven(vus())
    driven.start()

    driven.arm(2)
    assert driven.stage == "arming"
    driven.arm(1)

    assert driven.task.stage == "armed"


def test_one_refusal_ends_all_of_it() -> None:
    driven = Driven(vus())
    driven.start()

    effects = driven.say(2, Refused("file", "no such class"))

    assert effects == [KillCore(1), KillCore(2)]
    assert (driven.task.stage, driven.task.group.refused) == ("ended", Refused("file", "no such class"))
    assert driven.task.next_tick_at == NEVER


def test_a_core_that_dies_while_it_loads_is_started_again_three_times_and_then_it_is_the_files_fault() -> None:
    driven = Driven(vus(), count=1)
    driven.start()

    for core in (1, 2, 3):
        assert isinstance(driven.exit(core)[0], StartCore)
    assert driven.exit(4) == []

    assert driven.task.group.refused == Refused(
        "setup", "the core process of Shop was killed by SIGKILL while it loaded the test"
    )


def test_one_that_is_not_ready_in_time_is_refused() -> None:
    driven = Driven(vus())
    driven.start()
    driven.arm(1)
    assert driven.task.next_tick_at == START_NS + ARM_LIMIT_NS

    driven.now = driven.task.next_tick_at - 1
    assert driven.tick() == []
    driven.now += 1
    effects = driven.tick()

    assert effects == [KillCore(1), KillCore(2)]
    assert driven.task.group.refused == Refused("setup", "Shop was not ready to start within 60 s")


# Starting.


def test_all_cores_go_at_the_instant_it_is_told() -> None:
    driven = Driven(vus())
    driven.start()
    driven.arm(1, 2)

    start = Start("job", FENCE, 7, start_at_ns=driven.now + 50, origin_ns=driven.now - 20, job_origin_ns=5)
    effects = driven.take(driven.task.go(driven.now, start))

    assert effects == [TellCore(core, Go(driven.now + 50, driven.now - 20, 5)) for core in (1, 2)]
    assert driven.task.stage == "running"
    assert driven.task.go(driven.now, start) == [], "said twice"


def test_it_does_not_go_before_it_is_armed() -> None:
    driven = Driven(vus())
    driven.start()
    driven.arm(1)

    assert driven.go() == []
    assert driven.task.stage == "arming"


def test_a_core_that_died_while_all_waited_joins_late_and_leaves_a_gap() -> None:
    driven = Driven(vus())
    driven.start()
    driven.arm(1, 2)
    assert isinstance(driven.exit(1)[0], StartCore)
    assert driven.task.stage == "armed", "what was said is not taken back"

    assert [effect.attempt for effect in driven.go() if isinstance(effect, TellCore)] == [2]
    origin_ns = driven.now
    effects = driven.later(3).arm(3)

    assert effects == [TellCore(3, Go(driven.now, origin_ns, origin_ns))]
    assert driven.totals().gaps == (Gap(0, "was killed by SIGKILL", 0, 3 * SECOND, 2, 0),)


def test_a_core_that_is_armed_again_before_the_start_goes_with_the_others() -> None:
    driven = Driven(vus())
    driven.start()
    driven.arm(1, 2)
    driven.exit(1)
    driven.arm(3)

    assert len(driven.go()) == 2
    assert driven.totals().gaps == ()


# Counts.


def test_each_report_of_a_core_is_acknowledged_at_once_also_one_that_came_twice() -> None:
    driven = Driven(vus()).run()

    assert driven.report(1, Tally(started=3)) == [TellCore(1, Ack(1))]
    assert driven.say(1, Totals(1, Tally(started=9), [], 0, 0)) == [TellCore(1, Ack(1))]

    assert driven.totals().tally.started == 3


def test_a_report_merges_what_all_cores_counted() -> None:
    driven = Driven(vus()).run()
    for core in (1, 2):
        driven.step(core, "buy", StepTally(ok=core, outcomes={"200": core}))
        driven.step(core, "log in", StepTally(failed=core), measured=False)
        metric = MetricTally("count", values=1, total=core)
        driven.say(core, MetricTotals(1, "items", metric))
        driven.report(core, Tally(started=core, checks={"fast": CheckTally(passed=core)}), vus=core)

    report = driven.task.report(driven.now)

    assert [(m.name, m.tally.ok, m.tally.failed, m.measured) for m in report if isinstance(m, StepTotals)] == [
        ("buy", 3, 0, True),
        ("log in", 0, 3, False),
    ]
    assert [(m.name, m.tally.total) for m in report if isinstance(m, MetricTotals)] == [("items", 3)]
    totals = report[-1]
    assert isinstance(totals, Totals)
    assert (totals.tally.started, totals.tally.checks["fast"].passed, totals.vus) == (3, 3, 3)
    assert (totals.tally.steps, totals.tally.actions, totals.tally.metrics) == ({}, {}, {})
    assert (totals.shares, totals.final) == ((1, 2), False)
    assert {message.sequence for message in report if not isinstance(message, Hello | Armed | Refused)} == {1}


def test_a_report_tells_how_iterations_ended_on_all_cores() -> None:
    driven = Driven(vus()).run()
    for core in (1, 2):
        driven.report(core, Tally(started=9, iterations=4 + core, interrupted_iterations=core, dropped=core))

    tally = driven.totals().tally

    assert (tally.started, tally.iterations, tally.interrupted_iterations, tally.dropped) == (18, 11, 3, 3)


def test_a_report_tells_calls_of_all_cores_by_method_and_name_and_again_only_when_they_change() -> None:
    driven = Driven(vus()).run()
    for core in (1, 2):
        driven.say(core, StepTotals(1, "buy", StepTally(ok=core), False, "page"))
        driven.say(core, StepTotals(1, "look", StepTally(ok=4), False, "look"))
        driven.report(core, Tally(started=9))
    first = [one for one in driven.task.report(driven.now) if isinstance(one, StepTotals)]
    assert [(one.name, one.call, one.tally.ok) for one in first] == [("buy", "page", 3), ("look", "look", 8)]

    assert driven.task.reports.acknowledged(1)
    driven.say(1, StepTotals(2, "buy", StepTally(ok=5), False, "page"))
    driven.report(1, Tally(started=10))
    again = [one for one in driven.task.report(driven.now) if isinstance(one, StepTotals)]
    assert [(one.name, one.call, one.tally.ok) for one in again] == [("buy", "page", 7)]


def test_a_report_of_one_core_is_what_the_core_said() -> None:
    driven = Driven(vus(), count=1).run()
    driven.step(1, "buy", StepTally(ok=2))
    driven.say(1, MetricTotals(1, "items", MetricTally("count", values=1, total=1)))
    driven.report(1, Tally(started=2))

    steps, metrics, totals = driven.task.report(driven.now)

    assert isinstance(steps, StepTotals) and steps.tally == StepTally(ok=2)
    assert isinstance(metrics, MetricTotals) and metrics.tally.total == 1
    assert isinstance(totals, Totals) and totals.tally == Tally(started=2)


def test_a_report_tells_how_old_its_oldest_counts_are() -> None:
    driven = Driven(vus())
    driven.start()
    driven.arm(1, 2)
    driven.task.go(driven.now, Start("job", FENCE, 7, driven.now + SECOND, driven.now + SECOND, driven.now + SECOND))

    assert driven.totals().age_ns == 0, "it has not begun"
    assert driven.later(3).totals().age_ns == 2 * SECOND, "nothing was told since the start"
    driven.report(1)
    driven.later(0.5).report(2)
    assert driven.later(0.25).totals().age_ns == 750_000_000

    driven.finish(1)
    driven.finish(2)
    assert driven.totals().age_ns == 0, "nothing more will come"


def test_what_did_not_change_since_the_last_acknowledged_report_is_not_told_again() -> None:
    driven = Driven(vus(), count=1).run()
    driven.step(1, "buy", StepTally(ok=1))
    driven.step(1, "look", StepTally(ok=1))
    driven.say(1, MetricTotals(1, "items", MetricTally("count", values=1, total=1)))
    driven.report(1)

    def told() -> list[str]:
        report = driven.task.report(driven.now)
        return [message.name for message in report if isinstance(message, StepTotals | MetricTotals)]

    assert told() == ["buy", "look", "items"]
    assert told() == ["buy", "look", "items"], "nobody acknowledged the first"
    assert driven.task.reports.acknowledged(2)
    assert told() == []
    driven.step(1, "look", StepTally(ok=2))
    driven.report(1)
    assert told() == ["look"]
    driven.task.reports.reset()
    assert told() == ["buy", "look", "items"]


def test_an_answer_that_comes_after_the_next_report_still_counts() -> None:
    driven = Driven(vus(), count=1).run()
    driven.report(1, windows=[window(0)])
    assert len(driven.totals().windows) == 1
    assert len(driven.totals().windows) == 1

    assert driven.task.reports.acknowledged(1)
    assert not driven.task.reports.acknowledged(1), "it is no news twice"

    assert driven.totals().windows == []


def test_an_answer_to_a_report_of_long_ago_says_nothing() -> None:
    driven = Driven(vus(), count=1).run()
    for _ in range(REMEMBERED + 1):
        driven.task.report(driven.now)

    assert not driven.task.reports.acknowledged(1)
    assert driven.task.reports.acknowledged(2)
    assert not driven.task.reports.acknowledged(99)


def test_the_start_and_its_spread_are_those_of_the_first_core_of_each_shard() -> None:
    driven = Driven(vus()).run()
    origin_ns = driven.now
    assert (driven.totals().started_at_ns, driven.totals().spread_ns) == (0, 0)

    driven.report(1, began=origin_ns + 4)
    driven.report(2, began=origin_ns + 9)
    driven.exit(1)
    driven.later(2).arm(3)
    driven.report(3, began=driven.now)

    assert (driven.totals().started_at_ns, driven.totals().spread_ns) == (origin_ns + 4, 5)


# Windows.


def test_a_window_goes_out_once_every_core_has_told_it() -> None:
    driven = Driven(vus()).run()

    driven.report(1, windows=[window(0), window(1)])
    assert driven.totals().windows == []
    driven.report(2, windows=[window(0, started=4, vus=2)])

    assert driven.totals().windows == [window(0, started=5, vus=3)]


def test_windows_are_sent_until_they_are_acknowledged_and_then_no_more() -> None:
    driven = Driven(vus(), count=1).run()
    driven.report(1, windows=[window(0), window(1)])

    assert [w.index for w in driven.totals().windows] == [0, 1]
    driven.report(1, windows=[window(2)])
    assert [w.index for w in driven.totals().windows] == [0, 1, 2]
    driven.task.reports.acknowledged(1)

    assert [w.index for w in driven.totals().windows] == [2]


def test_a_core_that_has_finished_holds_no_window_back() -> None:
    driven = Driven(vus()).run()
    driven.report(1, windows=[window(0), window(1)])

    driven.finish(2, windows=[window(0)])

    assert [w.started for w in driven.totals().windows] == [2, 1]


def test_a_replacement_that_loads_holds_back_only_the_window_that_is_open() -> None:
    driven = Driven(vus()).run()
    driven.report(2, windows=[window(0)])
    driven.exit(2)

    driven.later(0.25)
    driven.report(1, windows=[window(0), window(1), window(2)])
    assert [w.index for w in driven.totals().windows] == [0, 1]
    driven.arm(3)
    driven.report(3, windows=[window(2)])

    assert [w.started for w in driven.totals().windows] == [2, 1, 2]


def test_a_new_manager_is_told_everything_again_under_later_numbers() -> None:
    driven = Driven(vus(), count=1).run()
    driven.step(1, "buy", StepTally(ok=1))
    driven.report(1, windows=[window(0), window(1)])
    driven.task.report(driven.now)
    driven.task.reports.acknowledged(1)
    driven.task.report(driven.now)

    driven.task.reports.reset()
    assert not driven.task.reports.acknowledged(2), "the earlier manager's word says nothing of this one"
    report = driven.task.report(driven.now)

    assert [type(message) for message in report] == [StepTotals, Totals]
    assert isinstance(report[1], Totals)
    assert (report[1].sequence, [w.index for w in report[1].windows]) == (3, [0, 1])


# Losses.


def test_a_lost_core_is_replaced_at_once_and_its_counts_stay() -> None:
    driven = Driven(plan_of(SharedIterations(2, 100)), count=2, done=(10, 0)).run()
    driven.later(1).report(1, Tally(started=5))

    effects = driven.later(0.5).exit(1)

    assert [type(effect) for effect in effects] == [StartCore]
    assert driven.arms[3].iterations_done == 15
    driven.later(1).arm(3)
    driven.report(3, Tally(started=2))
    totals = driven.totals()
    assert (totals.tally.started, totals.shares) == (7, (7, 0))
    assert totals.gaps == (Gap(0, "was killed by SIGKILL", SECOND, 2 * SECOND + SECOND // 2, 1, 0),)


def test_arrivals_that_were_due_in_a_gap_are_counted() -> None:
    driven = Driven(plan_of(ConstantRate(10, "60s", max_vus=10)), count=2, first=1, of=4).run()
    driven.exit(2)

    driven.later(2).arm(3)

    (gap,) = driven.totals().gaps
    assert (gap.shard, gap.from_ns, gap.to_ns, gap.arrivals_missing) == (2, 0, 2 * SECOND, 5)


def test_a_replacement_that_dies_before_it_began_leaves_one_gap() -> None:
    driven = Driven(vus()).run()
    driven.exit(1)
    driven.later(1).exit(3)
    driven.later(1).arm(4)

    (gap,) = driven.totals().gaps
    assert (gap.from_ns, gap.to_ns) == (0, 2 * SECOND)


def test_a_replacement_that_is_not_ready_in_time_is_replaced() -> None:
    driven = Driven(vus(duration="10m")).run()
    driven.exit(1)

    driven.now = driven.task.next_tick_at
    effects = driven.tick()

    assert [type(effect) for effect in effects] == [KillCore, StartCore]
    assert driven.task.stage == "running"


def test_after_three_replacements_the_gap_runs_to_the_end_of_the_plan() -> None:
    driven = Driven(vus(duration="60s")).run()
    driven.finish(2)
    for core in (1, 3, 4):
        driven.exit(core)
        driven.arm(max(driven.arms))

    assert driven.exit(5) == []

    assert driven.task.stage == "ended"
    result = driven.task.result()
    assert (len(result.gaps), result.gaps[-1].to_ns) == (4, 60 * SECOND)
    assert result.failure is None, "of a test it is no failure: the result is incomplete"


def test_of_a_plan_without_an_end_the_last_gap_ends_when_the_core_was_lost() -> None:
    driven = Driven(plan_of(SharedIterations(2, 100)), count=1).run()
    for core in (1, 2, 3):
        driven.exit(core)
        driven.arm(max(driven.arms))

    driven.later(4).exit(4)

    assert driven.task.result().gaps[-1].to_ns == 4 * SECOND


@pytest.mark.parametrize("is_test", [True, False])
def test_a_core_that_is_lost_for_good_fails_what_measures_nothing(is_test: bool) -> None:
    driven = Driven(plan_of(SharedIterations(1, 1)), count=1, is_test=is_test).run()
    driven.report(1, Tally(started=1))

    assert driven.exit(1) == [], "nothing is left to run"

    assert driven.task.result().failure == (None if is_test else "its core was killed by SIGKILL")


def test_what_was_told_to_stop_and_dies_is_no_failure() -> None:
    driven = Driven(plan_of(SharedIterations(1, 9)), count=1, is_test=False).run()
    driven.stop()

    driven.exit(1)

    assert (driven.task.stage, driven.task.result().failure) == ("ended", None)


def test_a_core_that_dies_after_the_plan_is_over_is_not_replaced() -> None:
    driven = Driven(vus(duration="10s"), count=1).run()

    assert driven.later(10).exit(1) == []

    assert driven.task.stage == "ended"


def test_the_end_of_a_core_that_was_given_up_is_no_news() -> None:
    driven = Driven(vus(), count=1).run()
    driven.finish(1)

    assert driven.exit(1) == []
    assert driven.say(1, Armed()) == []


# Ending.


def test_a_stop_lets_those_that_run_finish_and_kills_those_that_load() -> None:
    driven = Driven(vus()).run()
    driven.exit(2)

    effects = driven.later(1).stop()

    assert effects == [TellCore(1, Stop()), KillCore(3)]
    assert driven.stop() == [], "once is enough"
    assert driven.stage == "running"
    (gap,) = driven.totals().gaps
    assert gap.to_ns == SECOND
    driven.finish(1)
    assert driven.task.stage == "ended"
    assert driven.stop() == []


def test_one_that_is_stopped_before_it_began_ends_with_nothing() -> None:
    driven = Driven(vus())
    driven.start()
    driven.arm(1, 2)

    assert driven.stop() == [KillCore(1), KillCore(2)]

    result = driven.task.result()
    assert (driven.task.stage, result.tally, result.started_at_ns, result.ended_at_ns) == ("ended", Tally(), 0, 0)


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_the_result_tells_whether_it_ended_with_its_job(is_cancelled: bool) -> None:
    driven = Driven(vus(), count=1).run()
    driven.take(driven.task.stop(driven.now, is_cancelled=is_cancelled))
    driven.take(driven.task.stop(driven.now, is_cancelled=not is_cancelled))

    driven.finish(1)

    assert driven.task.result().is_cancelled is is_cancelled


def test_cores_that_do_not_stop_in_time_are_killed() -> None:
    driven = Driven(vus()).run()
    driven.later(1).stop()
    assert driven.task.next_tick_at == driven.now + GRACE_NS + ORDERED_SLACK_NS + 1

    driven.now = driven.task.next_tick_at - 1
    assert driven.tick() == []
    driven.now += 1

    assert driven.tick() == [KillCore(1), KillCore(2)]
    assert driven.task.stage == "ended"
    assert [gap.cause for gap in driven.task.result().gaps] == ["did not stop in time and was killed"] * 2


def test_cores_that_run_on_after_the_end_of_the_plan_are_killed_too() -> None:
    driven = Driven(vus(duration="10s")).run()
    driven.now = driven.task.next_tick_at
    assert driven.now == START_NS + 10 * SECOND + 1
    assert driven.tick() == []

    assert driven.task.next_tick_at == START_NS + 10 * SECOND + GRACE_NS + STOP_SLACK_NS + 1
    driven.now = driven.task.next_tick_at
    assert len(driven.tick()) == 2


def test_a_plan_without_an_end_in_time_needs_no_look() -> None:
    driven = Driven(plan_of(SharedIterations(2, 9))).run()

    assert driven.task.next_tick_at == NEVER
    assert driven.tick() == []


def test_a_kill_ends_it_at_once_and_only_once() -> None:
    driven = Driven(vus()).run()

    assert driven.take(driven.task.kill(driven.now)) == [KillCore(1), KillCore(2)]

    assert driven.task.stage == "ended"
    assert driven.task.kill(driven.now) == []


def test_the_result_names_every_engine_its_cores_run_on() -> None:
    driven = Driven(vus())
    driven.start()
    for core, engine in zip(sorted(driven.alive), ("native/direct", "python"), strict=True):
        driven.say(core, Hello(core, "3.12", ""))
        driven.say(core, Armed(engine))

    driven.go()
    for core in sorted(driven.alive):
        driven.finish(core)

    assert driven.task.result().engine == "native/direct, python"


def test_the_result_has_everything_of_all_cores() -> None:
    driven = Driven(vus(), first=2, of=4).run()
    driven.say(1, Hello(1, "3.12", "python"))
    driven.step(1, "buy", StepTally(ok=1))
    driven.step(2, "buy", StepTally(ok=2))
    driven.report(1, windows=[window(0)], began=driven.now + 1)
    driven.later(2)
    driven.finish(2, Tally(started=3), windows=[window(0)], provided={"a": b"2", "b": b"2"}, notes=["slow"])
    driven.later(1)
    driven.finish(
        1, Tally(started=2), provided={"a": b"1"}, notes=["slow", "odd"], failure="it raised", began=START_NS + 1
    )

    result = driven.task.result()

    assert (result.job, result.attempt, result.engine, result.worker) == ("job", 7, "python", "w1")
    assert (result.tally.started, result.tally.steps["buy"].ok, result.shares) == (5, 3, (2, 3))
    assert [(w.index, w.started) for w in result.windows] == [(0, 2)]
    assert result.provided == {"a": b"1", "b": b"2"}, "the lowest shard with a value wins"
    assert (result.failure, result.notes) == ("it raised", ("slow", "odd"))
    assert (result.started_at_ns, result.ended_at_ns, result.spread_ns) == (1, 3 * SECOND, 2 * SECOND - 1)
    assert decode_result(encode_result(result)) == result


def test_of_a_core_that_was_lost_the_end_is_its_last_report() -> None:
    driven = Driven(vus(duration="10s"), count=1).run()
    driven.later(9.5).report(1)

    driven.later(1).exit(1)

    assert driven.task.result().ended_at_ns == 9 * SECOND + SECOND // 2


def test_a_result_that_is_too_large_loses_its_oldest_windows_and_says_so() -> None:
    result = AttemptResult("job", 7, Tally(), [window(index) for index in range(40)], worker="w1")
    whole = encode_result(result)

    assert encoded_within(result, len(whole)) == whole
    kept = decode_result(encoded_within(result, len(whole) // 2))

    assert [w.index for w in kept.windows] == list(range(30, 40))
    assert kept.notes == ("the timeline of worker w1 begins late: its 30 oldest windows were left out",)
    assert decode_result(encoded_within(result, 0)).windows == []


# In any order.


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.data())
def test_whatever_happens_counts_only_grow_and_the_end_has_all_that_was_told(data: st.DataObject) -> None:
    """Cores report, die and finish, reports are lost or acknowledged late, managers change."""
    driven = Driven(vus(duration="10m"), count=3).run()
    counts = dict.fromkeys(range(1, 4), 0)
    told: dict[int, int] = {}  # what a manager that keeps windows by index would have
    acknowledged: list[int] = []
    before = 0
    for _ in range(data.draw(st.integers(1, 25))):
        driven.later(0.1)
        for core in sorted(driven.alive):
            if not driven.arms[core] or driven.task.stage != "running":
                continue
            what = data.draw(st.sampled_from(["report", "report", "die", "quiet"]))
            if what == "report" and core in counts:
                counts[core] += 1
                index = (driven.now - START_NS) // (SECOND // 10) - 1
                driven.report(core, Tally(started=counts[core]), [window(index)])
            elif what == "die" and len(driven.arms) < 6:
                for effect in driven.exit(core):
                    assert isinstance(effect, StartCore)
                    counts[effect.attempt] = 0
                    driven.arm(effect.attempt)
        totals = driven.totals()
        assert totals.tally.started >= before
        assert totals.tally.started == sum(totals.shares) == sum(counts.values())
        before = totals.tally.started
        for got in totals.windows:
            assert got.index not in told or told[got.index] == got.started, "a window that was sent does not change"
            told[got.index] = got.started
        acknowledged.append(totals.sequence)
        if data.draw(st.booleans()):
            driven.task.reports.acknowledged(data.draw(st.sampled_from(acknowledged)))
        if data.draw(st.integers(0, 9)) == 0:
            driven.task.reports.reset()
    for core in sorted(driven.alive):
        driven.finish(core, Tally(started=counts[core]))
    result = driven.task.result()
    assert result.tally.started == sum(counts.values())
    assert sum(w.started for w in result.windows) == sum(counts.values())
    assert msgspec.msgpack.decode(encode_result(result))["attempt"] == 7


def test_a_blurred_report_has_the_same_windows_with_fewer_counters_and_the_result_has_them_sharp() -> None:
    driven = Driven(vus(), count=1).run()
    sharp = window(0)
    for value in range(1000, 1100):
        sharp.response_time.record(value)
    driven.report(1, windows=[sharp])

    (told,) = [part for part in driven.task.report(driven.now, blurred=True) if isinstance(part, Totals)]

    assert [one.response_time for one in told.windows] == [sharp.response_time.blurred()]
    assert driven.totals().windows == [sharp]


# More time.

ASK = TimeAsked(4, 30 * SECOND, "the index is built")
MORE = Allowance(15 * SECOND, 4, 20 * SECOND)


def test_what_a_core_asks_is_told_in_every_report_until_it_is_answered() -> None:
    driven = Driven(vus()).run()
    assert driven.totals().asked is None

    driven.report(1, asked=ASK)

    assert driven.totals().asked == TimeAsked(1, 30 * SECOND, "the index is built")
    assert driven.totals().asked == TimeAsked(1, 30 * SECOND, "the index is built")
    assert driven.take(driven.task.on_answer(ShardAnswer(1, MORE))) == [TellCore(1, ShardAnswer(4, MORE))]
    assert driven.totals().asked is None
    assert driven.report(1, asked=ASK) == [TellCore(1, Ack(2))], "it had not heard the answer yet"
    assert driven.task.on_answer(ShardAnswer(1, MORE)) == [], "said again"


def test_cores_that_ask_meanwhile_get_the_same_answer() -> None:
    driven = Driven(vus()).run()
    driven.report(1, asked=ASK)
    driven.totals()
    driven.report(2, asked=TimeAsked(9, SECOND))

    effects = driven.take(driven.task.on_answer(ShardAnswer(1, MORE)))

    assert effects == [TellCore(1, ShardAnswer(4, MORE)), TellCore(2, ShardAnswer(9, MORE))]
    driven.report(2, asked=TimeAsked(10, SECOND))
    assert driven.totals().asked == TimeAsked(2, SECOND)
    assert driven.task.on_answer(ShardAnswer(1, MORE)) == [], "to the one before"


def test_a_core_that_died_after_it_asked_is_told_nothing() -> None:
    driven = Driven(vus()).run()
    driven.report(1, asked=ASK)
    driven.exit(1)

    assert driven.task.on_answer(ShardAnswer(1, MORE)) == []


def test_a_warning_reaches_each_core_once_and_what_takes_the_place_of_a_lost_one() -> None:
    driven = Driven(vus()).run()
    over = TimeOver(10 * SECOND)

    assert driven.take(driven.task.warn(over)) == [TellCore(1, over), TellCore(2, over)]

    assert driven.task.warn(TimeOver(9 * SECOND)) == []
    driven.exit(2)
    assert TellCore(3, over) in driven.arm(3)


def test_what_cores_save_after_a_warning_is_told_until_a_report_with_it_was_acknowledged() -> None:
    driven = Driven(vus()).run()
    driven.report(1, provided={"self.context/at": b"1"})
    assert driven.totals().provided == {}, "before a warning nobody saves"
    driven.task.warn(TimeOver(10 * SECOND))
    driven.report(1, provided={"self.context/at": b"2"})

    first = driven.totals()

    assert first.provided == driven.totals().provided == {"self.context/at": b"2"}
    driven.task.reports.acknowledged(first.sequence)
    assert driven.totals().provided == {}
    driven.task.reports.reset()
    assert driven.totals().provided == {"self.context/at": b"2"}, "another manager has nothing of it"


def test_without_anything_saved_a_warning_adds_nothing_to_reports() -> None:
    driven = Driven(vus()).run()
    driven.task.warn(TimeOver(10 * SECOND))

    assert driven.totals().provided == {}
