"""The result document of jobs that were driven message by message, without a process or a clock."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hdrh.histogram import HdrHistogram

from talka.control.load.core_effects import JobEnded, KillCore, LoadEffect, StartCore, TellCore, WorkflowLate
from talka.control.load.load_job import LoadJob
from talka.control.load.planning import plan_load_job
from talka.report.building import Meta, build, loop_lag_of
from talka.report.document import SCHEMA, BadResult, MoreTimeGiven, ResultDocument, failures_of, read
from talka.report.summary import facts_of
from talka.stats.machine import Machine
from talka.stats.tally import CheckTally, Exchanges, GeneratorTally, MetricTally, Sample, StepTally, Tally
from talka.stats.windows import StepWindow, Window
from talka.units import SECOND
from talka.wire.shards import Armed, FromCore, Go, Hello, MetricTotals, Refused, Settings, StepTotals, Totals, UrlSource
from talka.work.deadlines import Deadline
from talka.work.dsl import Workflow
from talka.work.failures import Failures
from talka.work.feeds import between
from talka.work.shapes import ConstantRate, ConstantVUs, IterationsPerVU, LoadShape, RampingVUs
from talka.work.specs import NodeSpec, WorkflowSpec, default_timeout_ns
from talka.work.thresholds import parse_threshold

TEN_SECONDS = ConstantVUs(4, "10s")
META = Meta(name="shop.py", file="tests/shop.py", started_at="2026-11-15T12:00:00.000+00:00", version="1.2.3")


# Given: workflows, and a job whose cores say what the test wants.


def node(name: str, kind: str = "step", *, measured: bool | None = None, tags: dict[str, str] = {}) -> NodeSpec:
    return NodeSpec(
        name=name,
        kind=kind,
        function=None,
        is_async=True,
        after=frozenset(),
        inputs=(),
        optimized={},
        measured=kind == "step" if measured is None else measured,
        tags=tags,
    )


def workflow(
    name: str = "Shop",
    shape: LoadShape = TEN_SECONDS,
    *nodes: NodeSpec,
    after: Iterable[str] = (),
    thresholds: Sequence[str] = (),
    announcements: tuple[str, ...] = (),
) -> WorkflowSpec:
    return WorkflowSpec(
        name=name,
        workflow=Workflow,
        file=None,
        line=None,
        shape=shape,
        plan=shape.plan(),
        priority="auto",
        timeout_ns=default_timeout_ns(shape.plan()),
        thresholds=tuple(parse_threshold(rule) for rule in thresholds),
        layers=((nodes or (node("get"),)),),
        depends_on=frozenset(after),
        provides=(),
        uses=(),
        announcements=announcements,
    )


def step_tally(times_ms: Sequence[float] = (), *, ok: int | None = None, failed: int = 0) -> StepTally:
    """Times in milliseconds; the service took half of each."""
    tally = StepTally(ok=len(times_ms) if ok is None else ok)
    for time_ms in times_ms:
        tally.response_time.record(round(time_ms * 1000))
        tally.service_time.record(round(time_ms * 500))
    for number in range(failed):
        tally.fail(Sample(number * SECOND, "status", "GET http://shop.test/ answered 503", 503))
    return tally


def counted(step: StepTally, name: str = "get", **more: Any) -> Tally:
    """What a core counted that ran one step, one request each time."""
    more = {"iterations": step.count, "started": step.count} | more
    exchanges = Exchanges(ok=step.ok, failed=step.failed, interrupted=step.interrupted, bytes_sent=7, connections=1)
    return Tally(steps={name: step}, **{"exchanges": exchanges} | more)


class Drive:
    """A load job and the cores it asked for. `now` moves only when a test says so."""

    def __init__(self, *specs: WorkflowSpec, cores: int = 1, thresholds: Sequence[str] = ()) -> None:
        self.specs = specs
        self.job = LoadJob(
            plan_load_job(
                specs,
                job="job-7",
                source=UrlSource("http://shop.test/"),
                cores=cores,
                settings=Settings(grace_ns=SECOND),
                thresholds=[parse_threshold(rule) for rule in thresholds],
            )
        )
        self.now = 100 * SECOND
        self.running: dict[tuple[str, int], int] = {}
        self.went: dict[int, int] = {}
        self.has_ended = False
        self._sequence = 0
        self.carry_out(self.job.start(self.now))

    def carry_out(self, effects: list[LoadEffect]) -> None:
        for effect in effects:
            match effect:
                case StartCore(attempt=core):
                    group, shard, _ = self.job.attempts[core]
                    self.running[group.spec.name, shard.shard.index] = core
                case TellCore(attempt=core, message=Go(start_at_ns=at_ns)):
                    self.went[core] = at_ns
                case JobEnded():
                    self.has_ended = True
                case TellCore() | KillCore() | WorkflowLate():
                    pass

    def say(self, where: tuple[str, int], message: FromCore) -> None:
        self.carry_out(self.job.on_message(self.now, self.running[where], message))

    def arm(self, *names: str) -> "Drive":
        """Every core of these workflows, or of all that were started so far, is ready."""
        for where in [where for where in self.running if not names or where[0] in names]:
            self.say(where, Hello(1, "3.11", "python"))
            self.say(where, Armed())
        return self

    def at(self, second: float) -> "Drive":
        """So long after the first request could be sent."""
        self.now = self.job.origin_ns + round(second * SECOND)
        return self

    def report(self, tally: Tally, *, of: str = "Shop", shard: int = 0, final: bool = True, **more: Any) -> "Drive":
        self._sequence += 1
        for name, step in [*tally.steps.items(), *tally.actions.items()]:
            self.say((of, shard), StepTotals(self._sequence, name, step, name in tally.steps))
        for node_name, calls in tally.calls.items():
            for name, call in calls.items():
                self.say((of, shard), StepTotals(self._sequence, node_name, call, False, name))
        for name, metric in tally.metrics.items():
            self.say((of, shard), MetricTotals(self._sequence, name, metric))
        rest = msgspec.structs.replace(tally, steps={}, actions={}, metrics={}, calls={})
        core = self.running[of, shard]
        more = {"windows": [], "vus": 2, "started_at_ns": self.went[core], "ended_at_ns": self.now * final} | more
        self.say((of, shard), Totals(self._sequence, rest, final=final, **more))
        return self

    def die(self, of: str = "Shop", shard: int = 0, cause: str = "was killed by SIGKILL") -> "Drive":
        self.carry_out(self.job.on_exit(self.now, self.running[of, shard], cause))
        return self

    def document(self, **meta: Any) -> ResultDocument:
        assert self.has_ended
        return build(self.job, self.specs, msgspec.structs.replace(META, **meta))


def good_job(*, thresholds: Sequence[str] = ()) -> Drive:
    return Drive(workflow(), thresholds=thresholds).arm().at(10).report(counted(step_tally([10, 20, 30])))


# Numbers.


def test_totals_are_those_of_all_shards() -> None:
    drive = Drive(workflow(), cores=2).arm().at(10)
    exchanges = Exchanges(2, 1, 1, 5, bytes_sent=100, bytes_received=900, connections=2, reconnects=1)
    for shard in (0, 1):
        drive.report(counted(step_tally([10, 20], failed=1), exchanges=exchanges), shard=shard)
    totals = drive.document().totals
    assert (totals.requests, totals.ok, totals.failed, totals.interrupted, totals.not_sent) == (8, 4, 2, 2, 10)
    assert (totals.bytes_sent, totals.bytes_received, totals.connections, totals.reconnects) == (200, 1800, 4, 2)
    assert (totals.iterations, totals.dropped_iterations, totals.rate_per_s) == (6, 0, 0.8)


def test_duration_is_from_the_first_start_to_the_end_of_the_last_workflow() -> None:
    document = good_job().document()
    assert (document.duration_s, document.workflows[0].duration_s) == (10.0, 10.0)


def test_a_step_has_its_counts_its_times_and_its_rate() -> None:
    drive = Drive(workflow("Shop", TEN_SECONDS, node("get", tags={"page": "home"}))).arm().at(10)
    tally = step_tally([10, 20, 30, 40], failed=2)
    tally.interrupted = 1
    tally.saw("503")
    tally.saw("200")
    (step,) = drive.report(counted(tally)).document().workflows[0].steps
    assert (step.name, step.measured, step.tags) == ("get", True, {"page": "home"})
    assert (step.count, step.ok, step.failed, step.interrupted, step.rate_per_s) == (7, 4, 2, 1, 0.6)
    assert step.response_time_ms is not None and step.service_time_ms is not None
    assert (step.response_time_ms.min, step.response_time_ms.mean, step.response_time_ms.max) == (10.0, 25.0, 40.0)
    assert step.response_time_ms.stdev == pytest.approx(11.18, rel=1e-3)
    assert step.service_time_ms.p50 == pytest.approx(10.0, rel=1e-3)
    assert step.status_codes == {"200": 1, "503": 1}
    assert step.errors == {"status": 2}
    assert [(sample.t_s, sample.kind) for sample in step.samples] == [(0.0, "status"), (1.0, "status")]


def test_a_step_that_never_ran_is_listed_without_times() -> None:
    drive = Drive(workflow("Shop", TEN_SECONDS, node("get"), node("pay"))).arm().at(10)
    get, pay = drive.report(counted(step_tally([10]))).document().workflows[0].steps
    assert (get.count, pay.count) == (1, 0)
    assert pay.response_time_ms is None and pay.service_time_ms is None


def test_what_is_not_measured_is_counted_and_has_no_histogram() -> None:
    drive = (
        Drive(workflow("Shop", TEN_SECONDS, node("get"), node("tidy", "action"), node("size", "metric"))).arm().at(10)
    )
    tally = counted(step_tally([10]), actions={"tidy": StepTally(ok=3), "size": StepTally(ok=3)})
    get, tidy = drive.report(tally).document().workflows[0].steps
    assert (tidy.name, tidy.measured, tidy.count, tidy.histogram) == ("tidy", False, 3, None)
    assert get.histogram is not None and get.service_histogram is not None


@pytest.mark.parametrize("field", ["response_time_ms", "service_time_ms"])
def test_the_histogram_decodes_to_the_percentiles_shown(field: str) -> None:
    times_ms = [number**3 / 1000 for number in range(1, 500)]
    (step,) = Drive(workflow()).arm().at(10).report(counted(step_tally(times_ms))).document().workflows[0].steps
    times, text = getattr(step, field), step.histogram if field == "response_time_ms" else step.service_histogram
    decoded = HdrHistogram.decode(text)
    assert decoded.get_total_count() == 499
    shown = [times.p50, times.p90, times.p95, times.p99, times.p99_9]
    # The encoding does not hold the exact greatest value, only its counter.
    of_oracle = [min(decoded.get_value_at_percentile(percent) / 1000, times.max) for percent in (50, 90, 95, 99, 99.9)]
    assert shown == of_oracle
    assert decoded.get_value_at_percentile(100) / 1000 == pytest.approx(times.max, rel=1e-3)


def test_checks_and_metrics_are_reported_by_workflow() -> None:
    check = CheckTally(passed=9)
    check.fail(Sample(2 * SECOND, "check", "paid returned False"))
    metrics = {"size": MetricTally("distribution"), "orders": MetricTally("count"), "unused": MetricTally("sample")}
    for value in (1, 2, 3.5):
        metrics["size"].add(value)
        metrics["orders"].add(value)
    tally = counted(step_tally([10]), checks={"paid": check}, metrics=metrics)
    (shop,) = Drive(workflow()).arm().at(10).report(tally).document().workflows
    (paid,) = shop.checks
    assert (paid.name, paid.passed, paid.failed, paid.samples[0].text) == ("paid", 9, 1, "paid returned False")
    size, orders, unused = shop.metrics
    assert (size.values, size.min, size.max, size.mean) == (3, 1.0, 3.5, pytest.approx(6.5 / 3))
    assert size.percentiles is not None and list(size.percentiles) == ["p50", "p90", "p95", "p99", "p99_9"]
    assert size.percentiles["p50"] == pytest.approx(2.0, rel=1e-3)
    assert (orders.kind, orders.total, orders.rate_per_s, orders.percentiles) == ("count", 6.5, 0.65, None)
    assert (unused.values, unused.min, unused.mean, unused.max) == (0, None, None, None)


def test_timeline_rows_add_up_to_the_totals() -> None:
    drive = Drive(workflow(), cores=2).arm()
    for shard in (0, 1):
        windows = [Window(index, started=1, requests=3, failed=1, vus=2) for index in range(5)]
        for window in windows:
            window.response_time.record(10_000, 3)
        early = counted(step_tally([10] * 6, failed=3), exchanges=Exchanges(ok=6, failed=3))
        drive.at(1).report(early, shard=shard, final=False, windows=windows[:3])
        late = counted(step_tally([10] * 10, failed=5), exchanges=Exchanges(ok=10, failed=5))
        drive.at(10).report(late, shard=shard, windows=windows[3:])
    document = drive.document()
    rows = document.timeline
    assert sum(row.requests for row in rows) == document.totals.requests == 30
    assert sum(row.failed for row in rows) == document.totals.failed == 10
    assert sum(row.iterations_started for row in rows) == 10
    assert [(row.t_s, row.width_s, row.vus) for row in rows[:2]] == [(0.0, 0.1, 4), (0.1, 0.1, 4)]
    assert rows[0].response_p50_ms == pytest.approx(10, rel=0.01)
    assert rows[0].response_p50_ms <= (rows[0].response_p95_ms or 0) <= (rows[0].response_p99_ms or 0)


def test_a_timeline_row_without_an_answer_has_no_times() -> None:
    drive = Drive(workflow()).arm().at(10).report(counted(step_tally([10])), windows=[Window(0, vus=2)])
    (row,) = drive.document().timeline
    assert (row.response_p50_ms, row.response_p95_ms, row.response_p99_ms) == (None, None, None)


# Calls.


def with_calls(step: StepTally, **calls: StepTally) -> Tally:
    return counted(step, calls={"get": calls})


def test_calls_of_several_names_have_rows_below_their_step_and_the_step_has_all_their_statuses() -> None:
    page, login = step_tally([10, 20, 30], failed=1), step_tally([50])
    page.saw("200", 3)
    page.saw("503")
    login.saw("201")
    step = StepTally(ok=1, failed=1)
    step.response_time.record(80_000, 2)
    (get,) = (
        Drive(workflow()).arm().at(10).report(with_calls(step, page=page, login=login)).document().workflows[0].steps
    )
    assert (get.count, get.status_codes) == (2, {"200": 3, "201": 1, "503": 1})
    assert [(call.name, call.count, call.ok, call.failed, call.rate_per_s) for call in get.calls] == [
        ("login", 1, 1, 0, 0.1),
        ("page", 4, 3, 1, 0.4),
    ]
    assert get.calls[1].errors == {"status": 1} and len(get.calls[1].samples) == 1
    assert get.calls[1].status_codes == {"200": 3, "503": 1}
    assert get.outcomes == get.calls[1].outcomes == {}
    assert get.response_time_ms is not None and get.response_time_ms.min == pytest.approx(80, rel=0.01)
    assert get.service_time_ms is not None and get.service_time_ms.max == pytest.approx(25, rel=0.01)
    for times, text in [
        (get.calls[1].response_time_ms, get.calls[1].histogram),
        (get.service_time_ms, get.service_histogram),
    ]:
        assert times is not None
        assert HdrHistogram.decode(text).get_value_at_percentile(50) / 1000 == times.p50


def test_a_step_whose_calls_have_its_own_name_is_one_row() -> None:
    tally = with_calls(step_tally([10, 20]), get=step_tally([10, 20]))
    (get,) = Drive(workflow()).arm().at(10).report(tally).document().workflows[0].steps
    assert (get.calls, get.count) == ([], 2)


def test_a_step_that_calls_in_a_loop_tells_how_often() -> None:
    tally = with_calls(step_tally([30]), get=step_tally([10, 10, 10]))
    (get,) = Drive(workflow()).arm().at(10).report(tally).document().workflows[0].steps
    assert [(call.name, call.count) for call in get.calls] == [("get", 3)]


def test_an_action_whose_calls_failed_has_a_row_of_them() -> None:
    drive = Drive(workflow("Shop", TEN_SECONDS, node("get"), node("tidy", "action"))).arm().at(10)
    calls = {"tidy": {"tidy": step_tally([5], failed=2)}}
    tally = counted(step_tally([10]), actions={"tidy": StepTally(ok=3)}, calls=calls)
    _, tidy = drive.report(tally).document().workflows[0].steps
    assert (tidy.ok, tidy.failed) == (3, 0)
    assert [(call.name, call.ok, call.failed, call.errors) for call in tidy.calls] == [("tidy", 1, 2, {"status": 2})]


def test_a_call_of_another_name_alone_has_a_row() -> None:
    tally = with_calls(step_tally([10]), page=step_tally([10]))
    (get,) = Drive(workflow()).arm().at(10).report(tally).document().workflows[0].steps
    assert [call.name for call in get.calls] == ["page"]


def test_actions_checks_and_methods_of_users_that_made_calls_have_rows() -> None:
    nodes = (node("get"), node("tidy", "action"), node("paid", "check"), node("fresh", "check"))
    drive = Drive(workflow("Shop", TEN_SECONDS, *nodes)).arm().at(10)
    calls = {"tidy": {"sweep": step_tally([5])}, "paid": {"paid": step_tally([7])}, "login": {"login": step_tally([9])}}
    tally = counted(
        step_tally([10]),
        actions={"tidy": StepTally(ok=1)},
        checks={"paid": CheckTally(passed=2, failed=1), "fresh": CheckTally(passed=1)},
        calls=calls,
    )
    tally.steps["login"] = step_tally([9])
    steps = {step.name: step for step in drive.report(tally).document().workflows[0].steps}
    assert list(steps) == ["get", "tidy", "paid", "login"]
    assert [call.name for call in steps["tidy"].calls] == ["sweep"]
    paid = steps["paid"]
    assert (paid.measured, paid.ok, paid.failed, paid.errors) == (False, 2, 1, {})
    assert paid.response_time_ms is not None and paid.response_time_ms.max == pytest.approx(7, rel=0.01)
    assert (steps["login"].measured, steps["login"].count) == (True, 1)


def test_skipped_runs_and_interrupted_iterations_are_told_and_in_no_other_count() -> None:
    step = step_tally([10])
    step.skipped = 4
    document = Drive(workflow()).arm().at(10).report(counted(step, interrupted_iterations=3)).document()
    (shop,) = document.workflows
    assert (shop.steps[0].count, shop.steps[0].skipped) == (1, 4)
    assert (shop.interrupted_iterations, document.totals.interrupted_iterations, shop.iterations) == (3, 3, 1)


def test_arrivals_keep_users_busy_while_their_calls_are_answered() -> None:
    drive = Drive(workflow("Shop", ConstantRate("10/s", "10s"))).arm().at(10)
    tally = with_calls(StepTally(ok=100), a=step_tally([100] * 100), b=step_tally([100] * 100))
    (shop,) = drive.report(tally).document().workflows
    assert shop.implied_vus == 1.0  # the service took half of each


# Rates.


def test_rates_are_over_the_plan_and_not_over_the_time_in_which_the_last_iterations_end() -> None:
    tally = with_calls(step_tally([10] * 100), a=step_tally([10] * 100), b=step_tally([10] * 50))
    tally.metrics["orders"] = MetricTally("count")
    tally.metrics["orders"].add(30)
    document = Drive(workflow()).arm().at(14).report(tally).document()
    (shop,) = document.workflows
    assert (document.duration_s, shop.duration_s) == (14.0, 14.0)
    assert (document.totals.rate_per_s, shop.steps[0].rate_per_s, shop.metrics[0].rate_per_s) == (10.0, 10.0, 3.0)
    assert [call.rate_per_s for call in shop.steps[0].calls] == [10.0, 5.0]


def test_rates_of_a_stopped_job_are_over_the_time_until_it_was_stopped() -> None:
    drive = Drive(workflow(), thresholds=["rate > 9/s"]).arm().at(2)
    drive.carry_out(drive.job.interrupt(drive.now, "SIGINT"))
    document = drive.at(5).report(counted(step_tally([10] * 20))).document()
    assert (document.totals.rate_per_s, document.workflows[0].steps[0].rate_per_s) == (10.0, 10.0)
    assert document.thresholds[0].value == 10.0


def test_rates_of_the_whole_job_are_over_the_time_to_the_end_of_its_last_plan() -> None:
    first, second = workflow("Seed", ConstantVUs(4, "4s")), workflow("Shop", TEN_SECONDS, after=["Seed"])
    drive = Drive(first, second).arm("Seed").at(6).report(counted(step_tally([10] * 8)), of="Seed")
    drive.arm("Shop").at(20).report(counted(step_tally([10] * 10)))
    document = drive.document()
    assert [row.steps[0].rate_per_s for row in document.workflows] == [2.0, 1.0]
    assert document.totals.rate_per_s == pytest.approx(18 / 16, rel=0.01)  # 6 s, and a plan of 10 s


# Steps over time.


def step_window(index: int, *times_ms: float, failed: int = 0, name: str = "get") -> Window:
    step = StepWindow(len(times_ms) + failed, failed, {"status": failed} if failed else {})
    for time_ms in times_ms:
        step.response_time.record(round(time_ms * 1000))
    return Window(
        index, requests=step.count, failed=failed, vus=1, response_time=step.response_time, steps={name: step}
    )


def test_each_step_is_told_over_time_with_its_kinds_of_failures() -> None:
    windows = [step_window(0, 10, 20), step_window(1, failed=3), step_window(2, 30, name="pay")]
    document = Drive(workflow()).arm().at(10).report(counted(step_tally([10])), windows=windows).document()
    rows = document.workflows[0].timeline
    assert [(row.step, row.t_s, row.width_s, row.count, row.failed, row.errors) for row in rows] == [
        ("get", 0.0, 0.1, 2, 0, {}),
        ("get", 0.1, 0.1, 3, 3, {"status": 3}),
        ("get", 0.2, 0.1, 0, 0, {}),
        ("pay", 0.0, 0.1, 0, 0, {}),
        ("pay", 0.1, 0.1, 0, 0, {}),
        ("pay", 0.2, 0.1, 1, 0, {}),
    ]
    assert rows[0].p50_ms == pytest.approx(10, rel=0.01) and rows[0].p99_ms == pytest.approx(20, rel=0.01)
    assert (rows[1].p50_ms, rows[1].p95_ms, rows[1].p99_ms) == (None, None, None)
    assert [row.errors for row in document.timeline] == [{}, {"status": 3}, {}]


@pytest.mark.parametrize("seconds", [29, 31, 500, 5_000, 20_000])
def test_steps_over_time_are_told_in_few_rows_that_add_up(seconds: int) -> None:
    drive = Drive(workflow("Shop", ConstantVUs(4, f"{seconds}s"))).arm()
    for second in range(seconds):
        drive.at(second + 1).report(
            Tally(), final=False, windows=[step_window(second * 10 + part, 10, failed=1) for part in (0, 3, 9)]
        )
    document = drive.report(counted(step_tally([10]))).document()
    rows = document.workflows[0].timeline
    assert len(rows) <= 300
    assert sum(row.count for row in rows) == seconds * 6 and sum(row.failed for row in rows) == seconds * 3
    assert all(before.t_s + before.width_s <= after.t_s + 0.001 for before, after in pairwise(rows))
    assert sum(row.errors.get("status", 0) for row in document.timeline) == seconds * 3


def test_a_workflow_of_many_steps_has_fewer_rows_of_each() -> None:
    windows = [step_window(index, 10, name=f"step{index % 100}") for index in range(600)]
    document = Drive(workflow()).arm().at(60).report(counted(step_tally([10])), windows=windows).document()
    rows = document.workflows[0].timeline
    assert len(rows) <= 6_000 and {row.step for row in rows} == {f"step{number}" for number in range(100)}
    assert sum(row.count for row in rows) == 600


# Thresholds and what the job amounts to.


def test_thresholds_tell_value_verdict_and_workflow() -> None:
    drive = Drive(workflow(thresholds=["failed < 1%"]), thresholds=["response_time.max < 15ms", "metrics.x.max < 1"])
    document = drive.arm().at(10).report(counted(step_tally([10, 20]))).document()
    found = [(rule.rule, rule.workflow, rule.value, rule.passed, rule.shown) for rule in document.thresholds]
    assert found == [
        ("response_time.max < 15ms", None, 20.0, False, "20 ms"),
        ("metrics.x.max < 1", None, None, False, "no sample"),
        ("failed < 1%", "Shop", 0.0, True, "0 %"),
    ]


def test_a_job_whose_thresholds_held_ends_with_0() -> None:
    document = good_job(thresholds=["response_time.p99 < 1s"]).document()
    assert (document.status, document.exit_code, document.reasons) == ("completed", 0, [])
    assert [row.status for row in document.workflows] == ["completed"]


def test_a_crossed_threshold_ends_with_4() -> None:
    document = good_job(thresholds=["response_time.p99 < 1ms"]).document()
    assert (document.status, document.exit_code) == ("completed", 4)


def test_an_abort_rule_ends_with_5() -> None:
    drive = Drive(workflow(), thresholds=["failed < 1% abort"]).arm().at(1)
    tally = counted(step_tally([10], failed=1))
    drive.report(tally, final=False)
    drive.carry_out(drive.job.tick(drive.now))
    document = drive.at(2).report(tally).document()
    assert (document.status, document.exit_code) == ("failed", 5)


@pytest.mark.parametrize("tally", [counted(step_tally([], failed=3)), Tally()], ids=["no success", "no sample"])
def test_without_one_success_it_ends_with_6(tally: Tally) -> None:
    document = Drive(workflow()).arm().at(10).report(tally).document()
    assert (document.status, document.exit_code) == ("failed", 6)


def test_a_workflow_without_one_success_ends_with_6_though_another_went_well() -> None:
    drive = Drive(workflow("Browse"), workflow("Buy"), cores=2).arm().at(10)
    drive.report(counted(step_tally([10] * 50)), of="Browse")
    document = drive.report(counted(step_tally([], failed=3)), of="Buy").document()
    assert (document.status, document.exit_code) == ("partial", 6)
    assert document.reasons == ["Buy: requests were sent and not one step succeeded."]


def test_many_workflows_without_a_success_are_named_in_part() -> None:
    names = [f"Buy{number}" for number in range(7)]
    drive = Drive(workflow("Browse"), *map(workflow, names), cores=8).arm().at(10)
    for name in names:
        drive.report(counted(step_tally([], failed=3)), of=name)
    document = drive.report(counted(step_tally([10])), of="Browse").document()
    assert document.reasons == [
        "Buy0, Buy1, Buy2, Buy3, Buy4 and 2 more: requests were sent and not one step succeeded."
    ]


def test_a_workflow_of_which_every_step_was_skipped_is_a_warning() -> None:
    drive = Drive(workflow("Browse"), workflow("Buy"), cores=2).arm().at(10)
    drive.report(counted(step_tally([10] * 50)), of="Browse")
    document = drive.report(Tally(started=4, iterations=4, steps={"get": StepTally(skipped=4)}), of="Buy").document()
    assert (document.status, document.exit_code) == ("completed", 0)
    assert [text for text in document.warnings if "skipped" in text] == [
        "every step of Buy was skipped, every time: it says nothing about the target"
    ]


def test_a_workflow_of_actions_whose_requests_all_failed_has_no_success() -> None:
    drive = Drive(workflow("Browse"), workflow("Tidy", TEN_SECONDS, node("tidy", "action")), cores=2).arm().at(10)
    drive.report(counted(step_tally([10])), of="Browse")
    tidy = Tally(started=1, iterations=1, exchanges=Exchanges(failed=2, not_sent=1), actions={"tidy": StepTally(ok=1)})
    assert drive.report(tidy, of="Tidy").document().exit_code == 6


def test_failed_of_a_result_is_the_worse_of_its_steps_and_its_requests() -> None:
    tally = counted(step_tally([10] * 4), exchanges=Exchanges(ok=4, failed=3, not_sent=1))
    assert failures_of(Drive(workflow()).arm().at(10).report(tally).document()) == Failures("request", 4, 8)
    tally = counted(step_tally([10] * 4, failed=6), exchanges=Exchanges(ok=10))
    assert failures_of(Drive(workflow()).arm().at(10).report(tally).document()) == Failures("step", 6, 10)


def test_an_unreachable_target_ends_with_6_and_its_sentence() -> None:
    drive = Drive(workflow())
    drive.say(("Shop", 0), Refused("unreachable", "shop.test does not resolve"))
    document = drive.document()
    assert (document.status, document.exit_code, document.reasons[0]) == ("failed", 6, "shop.test does not resolve")
    assert (document.workflows[0].status, document.duration_s) == ("failed", 0.0)


def test_a_workflow_that_cannot_be_made_ends_with_3() -> None:
    drive = Drive(workflow())
    drive.say(("Shop", 0), Refused("setup", "Shop cannot be made: KeyError: 'TOKEN'"))
    document = drive.document()
    assert (document.exit_code, document.reasons) == (3, ["Shop: Shop cannot be made: KeyError: 'TOKEN'"])


def test_a_failed_workflow_that_measures_nothing_ends_with_3_and_its_dependents_are_skipped() -> None:
    seed = workflow("Seed", IterationsPerVU(1, 1), node("fill", "action"))
    drive = Drive(seed, workflow("Shop", TEN_SECONDS, after=["Seed"])).arm().at(1)
    fill = StepTally()
    fill.fail(Sample(0, "exception", "KeyError: 'x'"))
    document = drive.report(Tally(actions={"fill": fill}), of="Seed").document()
    assert (document.exit_code, document.reasons) == (3, ["Seed: fill raised KeyError: 'x'"])
    assert [(row.status, row.cores, row.duration_s) for row in document.workflows] == [
        ("failed", 1, 1.0),
        ("skipped", 0, 0.0),
    ]
    assert "Seed.fill failed once: KeyError: 'x'" in document.warnings


@pytest.mark.parametrize(("signal", "exit_code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_an_interrupted_job_keeps_its_numbers_and_ends_with_the_signal(signal: Any, exit_code: int) -> None:
    drive = Drive(workflow()).arm().at(2)
    drive.carry_out(drive.job.interrupt(drive.now, signal))
    document = drive.at(3).report(counted(step_tally([10, 20]))).document()
    assert (document.status, document.exit_code) == ("cancelled", exit_code)
    assert (document.totals.requests, document.workflows[0].status) == (2, "cancelled")


def test_a_job_interrupted_before_its_first_request_has_no_negative_duration() -> None:
    drive = Drive(workflow()).arm()  # it is to start a moment later
    for _ in range(2):
        drive.carry_out(drive.job.interrupt(drive.now, "SIGINT"))
    document = drive.document()
    assert (document.duration_s, document.workflows[0].duration_s, document.totals.rate_per_s) == (0.0, 0.0, 0.0)


def test_dropped_arrivals_are_held_against_arrivals_and_not_against_iterations_of_other_workflows() -> None:
    drive = (
        Drive(workflow("Busy", ConstantVUs(1, "10s")), workflow("Shop", ConstantRate(10, "10s")), cores=2).arm().at(10)
    )
    drive.report(counted(step_tally([1] * 1000)), of="Busy")
    document = drive.report(counted(step_tally([10] * 95), dropped=5)).document()
    assert (document.status, document.exit_code) == ("partial", 6)
    assert document.reasons == [
        "5 of 100 arrivals were dropped, more than the 1 % allowed; the target saw less load than was asked for."
    ]
    assert [row.dropped_iterations for row in document.workflows] == [0, 5]


# Lost shards.


def lost_and_replaced() -> Drive:
    drive = Drive(workflow("Shop", ConstantRate(10, "10s")), cores=2).arm().at(3)
    drive.report(counted(step_tally([10] * 3)), shard=1, final=False).at(4).die(shard=1)
    drive.at(5)
    drive.say(("Shop", 1), Armed())
    drive.at(10).report(counted(step_tally([20] * 5)), shard=0)
    return drive.report(counted(step_tally([30] * 2)), shard=1)


def test_a_lost_shard_makes_the_result_partial_and_ends_with_6() -> None:
    document = lost_and_replaced().document()
    assert (document.status, document.exit_code, document.workflows[0].status) == ("partial", 6, "partial")
    (lost,) = document.lost_shards
    assert (lost.workflow, lost.shard, lost.cause) == ("Shop", 1, "was killed by SIGKILL")
    assert (lost.from_s, lost.to_s, lost.vus_missing) == (3.0, 5.0, 50)
    assert lost.arrivals_missing == 5 * 5 - 3, "of those due by then, all that were not counted"
    assert any("was killed by SIGKILL" in warning and "22 arrivals" in warning for warning in document.warnings)


def test_what_a_lost_core_had_reported_stays_in_the_totals() -> None:
    document = lost_and_replaced().document()
    assert document.totals.requests == 3 + 5 + 2
    assert [core.attempt for core in document.generator.cores if core.shard == 1] == [1, 2]


def test_lost_shards_that_are_allowed_do_not_spoil_the_exit_code() -> None:
    document = lost_and_replaced().document(allow_partial=True)
    assert (document.status, document.exit_code) == ("partial", 0)


def test_a_core_lost_at_the_very_end_makes_its_workflow_partial_though_nothing_replaced_it() -> None:
    drive = Drive(workflow()).arm().at(9)
    document = drive.report(counted(step_tally([10])), final=False).at(11).die().document()
    assert (document.status, document.workflows[0].status) == ("partial", "partial")


def test_a_core_replaced_before_the_start_costs_nothing() -> None:
    drive = Drive(workflow()).die()
    document = drive.arm().at(10).report(counted(step_tally([10]))).document()
    assert (document.status, document.exit_code, document.workflows[0].status) == ("completed", 0, "completed")
    assert document.lost_shards == []


# The generator.


def test_start_skew_is_the_most_by_which_shards_started_apart() -> None:
    drive = Drive(workflow(), cores=2).arm().at(10)
    for shard, late_ns in ((0, 0), (1, 2_500_000)):
        drive.report(counted(step_tally([10])), shard=shard, started_at_ns=drive.job.origin_ns + late_ns)
    assert drive.document().start_skew_ms == 2.5


@pytest.mark.parametrize(
    ("told", "engine", "driver", "text"),
    [
        ("", "", "", "unknown"),
        ("python", "python", "", "python"),
        ("native/direct", "native", "direct", "native (direct)"),
        ("native/direct, native/task, python", "native, python", "direct, task", "native, python (direct, task)"),
    ],
)
def test_the_engines_of_all_cores_are_named_and_their_drivers(told: str, engine: str, driver: str, text: str) -> None:
    drive = Drive(workflow()).arm().at(10).report(counted(step_tally([10])))
    drive.job.engine = told
    generator = drive.document().generator
    assert (generator.engine, generator.driver, generator.engine_text) == (engine, driver, text)


@pytest.mark.parametrize(
    ("cpu_ns", "lag_us", "loop_lag_us", "verdict"),
    [
        (5 * SECOND, 900, 100, "on time"),
        (9 * SECOND, 900, 100, "on time"),
        (9 * SECOND, 9_000, 100, "saturated"),
        (5 * SECOND, 9_000, 6_000, "saturated"),
        (SECOND // 10, 9_000, 6_000, "disturbed"),
    ],
)
def test_the_generator_is_judged_by_its_lag_and_by_how_busy_it_was(
    cpu_ns: int, lag_us: int, loop_lag_us: int, verdict: str
) -> None:
    machine = Machine(2, 0.021, 0.31, 5.25)
    health = GeneratorTally(cpu_ns=cpu_ns, wall_ns=10 * SECOND, max_rss_bytes=5, machine=machine)
    health.start_lag.record(lag_us)
    health.loop_lag.record(loop_lag_us)
    drive = Drive(workflow()).arm().at(10).report(counted(step_tally([10]), generator=health))
    document = drive.document()
    generator = document.generator
    assert generator.machine == machine
    assert (generator.engine, generator.version, generator.cpu) == ("python", "1.2.3", cpu_ns / 1e10)
    assert (generator.verdict, generator.saturated) == (verdict, verdict == "saturated")
    assert generator.start_lag_ms is not None
    assert generator.start_lag_ms.p99 == pytest.approx(lag_us / 1000, rel=1e-3)
    assert any("bottleneck" in warning for warning in document.warnings) == (verdict == "saturated")
    assert [warning for warning in document.warnings if "idle" in warning] == [
        "starts were late by 9.0 ms at p99 while the generator was idle (its busiest core used 1% of a CPU): the "
        "machine,"
        " or code of the test that blocks, delayed it (steal 2.1%, something waited for a CPU in 31% of the time, run"
        " queue 5.2 on 2 CPUs)"
    ] * (verdict == "disturbed")


def test_the_lag_that_is_told_is_that_of_the_core_it_was_judged_by() -> None:
    """Of all cores together p99 was 0.8 ms, below what counts as late, under a warning that starts were late."""
    drive = Drive(workflow(), cores=2).arm().at(10)
    for shard, lags_us in ((0, [100] * 990 + [5_000] * 10), (1, [100] * 10_000)):
        health = GeneratorTally(cpu_ns=1, wall_ns=10 * SECOND)
        for lag_us in lags_us:
            health.start_lag.record(lag_us)
        health.start_lag.record(5_000)
        drive.report(counted(step_tally([10]), generator=health), shard=shard)
    document = drive.document()
    assert document.generator.start_lag_ms is not None and document.generator.start_lag_ms.p99 < 1
    assert [
        text for text in document.warnings if text.startswith("starts were late by 5.0 ms at p99 on the latest core")
    ]


def test_of_several_machines_that_of_the_latest_core_is_quoted() -> None:
    drive = Drive(workflow(), cores=3).arm().at(10)
    for shard, (lag_us, machine) in enumerate([(200, Machine(4, 0.5)), (9_000, Machine(2, 0.25)), (10_000, None)]):
        health = GeneratorTally(cpu_ns=1, wall_ns=10 * SECOND, machine=machine)
        health.start_lag.record(lag_us)
        drive.report(counted(step_tally([10]), generator=health), shard=shard)
    document = drive.document()
    assert document.generator.machine == Machine(2, 0.25), "of the third nothing is known"
    assert [text for text in document.warnings if text.endswith("delayed it (steal 25.0%)")]


def test_what_the_machine_does_not_tell_is_not_quoted() -> None:
    health = GeneratorTally(cpu_ns=1, wall_ns=10 * SECOND)
    health.start_lag.record(9_000)
    document = Drive(workflow()).arm().at(10).report(counted(step_tally([10]), generator=health)).document()
    (warning,) = document.warnings
    assert warning.endswith("delayed it")


# Workflows that were late.


def test_a_workflow_that_was_given_more_time_tells_when_how_much_and_why() -> None:
    drive = Drive(workflow()).arm().at(10)
    deadline = Deadline(drive.now + SECOND, began_ns=drive.now - 10 * SECOND)
    deadline.ask(drive.now, 1, "the index is built", estimate_ns=30 * SECOND)
    drive.job.workflows["Shop"].deadline = deadline
    (told,) = drive.report(counted(step_tally([10]))).document().workflows

    assert told.more_time == [MoreTimeGiven(10, 15, "the index is built", 30)]
    assert told.was_warned is False


def test_a_workflow_that_was_in_time_was_given_nothing() -> None:
    (told,) = Drive(workflow()).arm().at(10).report(counted(step_tally([10]))).document().workflows

    assert (told.more_time, told.was_warned) == ([], False)


# Cores that several workflows share.


def shared(*names: str, cores: int, processes: Sequence[int]) -> ResultDocument:
    """One shard each, which all measured the same lag of 3 ms once, in these processes."""
    drive = Drive(*(workflow(name) for name in names), cores=cores).arm().at(10)
    for name, process in zip(names, processes, strict=True):
        health = GeneratorTally(cpu_ns=SECOND, wall_ns=10 * SECOND, process=process)
        health.loop_lag.record(3_000)
        drive.report(counted(step_tally([10]), generator=health), of=name)
    return drive.document()


def test_the_result_says_who_shared_a_core_with_whom() -> None:
    document = shared("A", "B", "C", "D", cores=2, processes=[11, 12, 11, 12])

    assert {one.name: one.shares_cores_with for one in document.workflows} == {
        "A": ["C"],
        "B": ["D"],
        "C": ["A"],
        "D": ["B"],
    }
    text = "there were fewer cores (2) than workflows, so that some shared one: A and C; B and D"
    assert text in document.warnings
    assert [core.process for core in document.generator.cores] == ["11", "12", "11", "12"]


def test_nobody_is_said_to_share_where_each_has_its_own() -> None:
    document = shared("A", "B", cores=2, processes=[11, 12])

    assert not any(one.shares_cores_with for one in document.workflows)
    assert not any("shared" in warning for warning in document.warnings)


@pytest.mark.parametrize(("processes", "counted_once"), [([11, 11, 11], 1), ([11, 12, 11], 2), ([0, -1, 11], 3)])
def test_the_lag_of_a_shared_event_loop_is_counted_once(processes: list[int], counted_once: int) -> None:
    drive_lag = shared("A", "B", "C", cores=1, processes=processes).generator
    drive = Drive(*(workflow(name) for name in "ABC"), cores=1).arm().at(10)
    for name, process in zip("ABC", processes, strict=True):
        health = GeneratorTally(wall_ns=SECOND, process=process)
        health.loop_lag.record(3_000)
        drive.report(counted(step_tally([10]), generator=health), of=name)

    assert loop_lag_of(drive.job).count == counted_once
    assert drive_lag.loop_lag_ms is not None and drive_lag.loop_lag_ms.p99 == pytest.approx(3, rel=1e-2)


# The self-check: users = throughput x (latency + think time).


def test_the_users_that_the_numbers_stand_for_are_told_beside_those_there_were() -> None:
    drive = Drive(workflow("Shop", ConstantVUs(4, "10s"))).arm().at(10)
    (shop,) = drive.report(counted(step_tally([100] * 390))).document().workflows
    assert (shop.implied_vus, shop.mean_vus) == (3.9, 4.0)


def test_pauses_are_part_of_what_users_do() -> None:
    spec = replace(workflow("Shop", ConstantVUs(4, "10s")), think=between("50ms", "150ms"))
    tally = counted(step_tally([100] * 195), busy_ns=round(19.5 * SECOND))
    (shop,) = Drive(spec).arm().at(10).report(tally).document().workflows
    assert (shop.implied_vus, shop.busy_vus) == (3.9, 1.95)


def test_users_of_a_ramp_are_told_by_their_mean() -> None:
    drive = Drive(workflow("Shop", RampingVUs([(10, "5s"), (10, "5s")]))).arm().at(10)
    (shop,) = drive.report(counted(step_tally([100]))).document().workflows
    assert shop.mean_vus == pytest.approx(7.5, rel=0.01)


def test_arrivals_keep_users_busy_from_the_send_on() -> None:
    drive = Drive(workflow("Shop", ConstantRate("10/s", "10s"))).arm().at(10)
    (shop,) = drive.report(counted(step_tally([100] * 100))).document().workflows
    assert (shop.implied_vus, shop.mean_vus) == (0.5, None)  # the service took half of each


def test_warnings_hold_what_was_given_and_what_was_announced() -> None:
    drive = Drive(workflow(announcements=("Shop.tidy runs but is not measured",)))
    document = drive.arm().at(10).report(counted(step_tally([10]))).document(warnings=("few open files",))
    assert document.warnings == ["few open files", "Shop.tidy runs but is not measured"]


# The schema.


def test_it_reads_back_as_it_was_written() -> None:
    document = lost_and_replaced().document()
    assert read(document.to_json()) == document


def test_unknown_fields_of_later_versions_are_ignored() -> None:
    document = good_job().document()
    later = msgspec.json.decode(document.to_json()) | {"invented_later": 1}
    assert read(msgspec.json.encode(later)) == document


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not a result of talka"),
        (b'{"schema": "talka.result/1"}', "missing required field"),
        (good_job().document().to_json().replace(b"talka.result/1", b"talka.result/9"), "talka.result/9"),
    ],
)
def test_what_is_no_result_is_refused_with_a_sentence(content: bytes, said: str) -> None:
    with pytest.raises(BadResult, match=said):
        read(content)


def test_the_promised_fields_are_there_by_their_names() -> None:
    check = CheckTally(passed=1)
    tally = counted(step_tally([10]), checks={"paid": check}, metrics={"size": MetricTally("count")})
    drive = Drive(workflow("Shop", ConstantRate(10, "10s")), cores=2, thresholds=["failed < 1%"]).arm()
    drive.at(4).die(shard=1)
    drive.say(("Shop", 1), Armed())
    for shard in (0, 1):
        drive.at(10).report(tally, shard=shard, windows=[Window(0, requests=1)])
    written = msgspec.json.decode(drive.document().to_json())

    def has(part: Any, names: str) -> None:
        assert set(names.split()) <= set(part), set(names.split()) - set(part)

    has(written, "schema job status exit_code started_at duration_s totals workflows thresholds timeline lost_shards")
    has(written, "datacenters start_skew_ms generator warnings")
    assert (written["schema"], SCHEMA) == ("talka.result/1", "talka.result/1")
    assert written["job"] == {"id": "job-7", "name": "shop.py", "file": "tests/shop.py"}
    assert written["started_at"] == "2026-11-15T12:00:00.000+00:00"
    has(written["totals"], "requests ok failed interrupted not_sent rate_per_s bytes_sent bytes_received")
    has(written["totals"], "iterations dropped_iterations")
    (shop,) = written["workflows"]
    has(shop, "name status vus cores steps checks metrics")
    (get,) = shop["steps"]
    has(
        get,
        "name count ok failed interrupted rate_per_s response_time_ms service_time_ms status_codes errors histogram",
    )
    has(get["response_time_ms"], "min mean stdev p50 p90 p95 p99 p99_9 max")
    has(get["service_time_ms"], "min mean stdev p50 p90 p95 p99 p99_9 max")
    has(shop["checks"][0], "name passed failed")
    has(written["thresholds"][0], "rule value passed")
    has(written["timeline"][0], "t_s requests failed vus response_p50_ms response_p99_ms response_p95_ms errors")
    has(written["lost_shards"][0], "workflow shard cause from_s to_s")
    has(written["generator"], "engine cpu start_lag_ms saturated verdict")
    assert written["datacenters"] == []
    named = build(drive.job, drive.specs, msgspec.structs.replace(META, datacenters=("fra1",)))
    assert named.datacenters == ["fra1"]
    assert "in fra1" in facts_of(named)
    assert written["measures"] == 2
    has(written["totals"], "interrupted_iterations")
    has(shop, "interrupted_iterations timeline")
    has(get, "skipped calls tags")


def test_a_result_of_before_says_by_its_silence_how_it_was_measured() -> None:
    before = msgspec.json.decode(good_job().document().to_json())
    del before["measures"]
    assert read(msgspec.json.encode(before)).measures == 1


def test_workflows_tell_their_load_and_cores() -> None:
    drive = Drive(workflow("Shop", ConstantVUs(3, "10s")), cores=2).arm().at(10)
    for shard in (0, 1):
        drive.report(counted(step_tally([10])), shard=shard)
    (shop,) = drive.document().workflows
    assert (shop.model, shop.load, shop.vus, shop.cores, shop.iterations) == ("closed", "3 VUs for 10s", 3, 2, 2)
