"""The live view: what it shows of jobs driven message by message, how often it draws, and that terminals survive it."""

import errno
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from talka.cli.config import wants_live_view
from talka.cli.live.counts import Histograms, Judge, LiveCounts, Trends
from talka.cli.live.layout import (
    BLOCKS,
    FrameView,
    Line,
    Section,
    Size,
    bar,
    chosen,
    clock_text,
    fitted,
    pulse,
    sparkline,
    styled,
)
from talka.cli.live.screen import DRAW_AT_LEAST_EVERY_NS, DRAW_EVERY_NS, DrawPace, LiveView, Printed
from talka.cli.live.view import Composer
from talka.control.load.core_effects import LoadEffect, StartCore, TellCore
from talka.control.load.load_job import LoadJob
from talka.control.load.planning import plan_load_job
from talka.report.building import generator_of
from talka.report.job_view import refresh
from talka.report.text import columns
from talka.stats.histogram import Histogram
from talka.stats.tally import CheckTally, Exchanges, GeneratorTally, MetricTally, Sample, StepTally, Tally
from talka.stats.windows import StepWindow, Timeline, Window
from talka.units import MILLISECOND, SECOND
from talka.wire.shards import Armed, FromCore, Go, Hello, MetricTotals, Refused, Settings, StepTotals, Totals, UrlSource
from talka.work.dsl import Workflow
from talka.work.shapes import ConstantRate, ConstantVUs, LoadShape, RampingRate, SharedIterations
from talka.work.specs import NodeSpec, WorkflowSpec, default_timeout_ns
from talka.work.thresholds import parse_threshold
from tests import processes
from tests.processes import TALKA
from tests.report.documents import view_of

TEN_SECONDS = ConstantVUs(4, "10s")
WIDE = Size(120, 60)
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"
LIMIT_S = 60


# Given: a job whose cores say what the test wants.


def workflow(
    name: str = "Shop",
    shape: LoadShape = TEN_SECONDS,
    *,
    steps: Sequence[str] = ("get",),
    after: Sequence[str] = (),
    thresholds: Sequence[str] = (),
) -> WorkflowSpec:
    nodes = tuple(
        NodeSpec(
            name=step,
            kind="step",
            function=None,
            is_async=True,
            after=frozenset(),
            inputs=(),
            optimized={},
            measured=True,
            tags={"kind": step},
        )
        for step in steps
    )
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
        layers=(nodes,),
        depends_on=frozenset(after),
        provides=(),
        uses=(),
        announcements=(),
    )


def ran(times_ms: Sequence[float], failed: int = 0) -> StepTally:
    tally = StepTally(ok=len(times_ms))
    for time_ms in times_ms:
        tally.response_time.record(round(time_ms * 1000))
    for number in range(failed):
        tally.fail(Sample(number, "status", "GET http://shop.test/ answered 503", 503))
    return tally


def counted(steps: dict[str, StepTally], **more: Any) -> Tally:
    done = sum(step.count for step in steps.values())
    fields: dict[str, Any] = {"iterations": done, "started": done, "exchanges": Exchanges(ok=done)}
    return Tally(steps=steps, **fields | more)


class Drive:
    """A load job, the cores it asked for, and the view of it. `now` moves only when a test says so."""

    def __init__(self, *specs: WorkflowSpec, cores: int = 1, thresholds: Sequence[str] = (), **limits: int) -> None:
        known = {spec.name: {node.name: node.tags for node in spec.nodes} for spec in specs}
        self.job = LoadJob(
            plan_load_job(
                specs,
                job="job-7",
                source=UrlSource("http://shop.test/"),
                cores=cores,
                settings=Settings(grace_ns=SECOND),
                thresholds=[parse_threshold(rule, workflows=known) for rule in thresholds],
            )
        )
        self.composer = Composer("shop.py", specs, **limits)
        self.now = 100 * SECOND
        self.running: dict[tuple[str, int], int] = {}
        self.went: dict[int, int] = {}
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
                case _:
                    pass

    def say(self, where: tuple[str, int], message: FromCore) -> None:
        self.carry_out(self.job.on_message(self.now, self.running[where], message))

    def arm(self) -> "Drive":
        for where in list(self.running):
            self.say(where, Hello(1, "3.11", "python"))
            self.say(where, Armed())
        return self

    def at(self, second: float) -> "Drive":
        self.now = self.job.origin_ns + round(second * SECOND)
        return self

    def report(self, tally: Tally, *, of: str = "Shop", shard: int = 0, final: bool = False, **more: Any) -> "Drive":
        self._sequence += 1
        for name, step in [*tally.steps.items(), *tally.actions.items()]:
            self.say((of, shard), StepTotals(self._sequence, name, step, name in tally.steps))
        for name, calls in tally.calls.items():
            for call, counts in calls.items():
                self.say((of, shard), StepTotals(self._sequence, name, counts, False, call))
        for name, metric in tally.metrics.items():
            self.say((of, shard), MetricTotals(self._sequence, name, metric))
        rest = msgspec.structs.replace(tally, steps={}, actions={}, metrics={}, calls={})
        core = self.running[of, shard]
        fields: dict[str, Any] = {"windows": [], "vus": 2, "started_at_ns": self.went[core]}
        fields |= {"ended_at_ns": self.now * final, "final": final} | more
        self.say((of, shard), Totals(self._sequence, rest, **fields))
        return self

    def tick(self) -> "Drive":
        self.carry_out(self.job.tick(self.now))
        return self

    def view(self, size: Size = WIDE) -> FrameView:
        return self.composer.view(view_of(self.job), self.now, size)

    def text(self, size: Size = WIDE) -> str:
        return self.view(size).text

    def row(self, begin: str, size: Size = WIDE) -> str:
        """The one line that begins so."""
        (line,) = [line for line in self.text(size).splitlines() if line.startswith(begin)]
        return line


def style_of(view: FrameView, text: str) -> str:
    (style,) = {style for line in view.lines for part, style in line if text in part}
    return style


def with_windows(requests: Sequence[int], time_us: int = 10_000) -> list[Window]:
    windows = [Window(index, requests=count) for index, count in enumerate(requests)]
    for window in windows:
        if window.requests:
            window.response_time.record(time_us, window.requests)
    return windows


def percentiles_worked_out(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The count of the histogram each time a percentile is asked for, from now on."""
    worked: list[int] = []
    percentile = Histogram.percentile

    def watched_percentile(self: Histogram, percent: float) -> int:
        worked.append(self.count)
        return percentile(self, percent)

    monkeypatch.setattr(Histogram, "percentile", watched_percentile)
    return worked


# Head: name, state, progress.


def test_the_head_tells_name_state_and_how_long_it_goes_on() -> None:
    drive = Drive(workflow()).arm().at(4)
    head, progress = drive.text().splitlines()[:2]
    assert head.startswith("shop.py") and head.endswith("running  1 core")
    assert progress.endswith("0:04 elapsed, 0:06 left")
    bar_shown = progress.split()[0]
    assert bar_shown.count("━") / len(bar_shown) == pytest.approx(0.4, abs=0.02)


def test_workflows_that_follow_each_other_add_up() -> None:
    drive = Drive(workflow("First"), workflow("Second", after=["First"])).arm().at(4)
    assert "0:16 left" in drive.text()


def test_a_workflow_that_waits_for_one_that_runs_alone_starts_after_it() -> None:
    drive = Drive(replace(workflow("First"), priority="exclusive"), workflow("Second")).arm().at(4)
    assert "waits for cores" in drive.row("Second  ")
    assert "0:16 left" in drive.text()


def test_iterations_fill_the_bar_where_time_does_not() -> None:
    drive = Drive(workflow("Shop", SharedIterations(4, 200))).arm().at(4)
    progress = drive.report(counted({"get": ran([5] * 50)})).text().splitlines()[1]
    assert progress.endswith("0:04 elapsed, 50 of 200 iterations")
    bar_shown = progress.split()[0]
    assert bar_shown.count("━") / len(bar_shown) == pytest.approx(0.25, abs=0.02)


def test_an_open_end_shows_a_bar_that_moves_and_no_time_left() -> None:
    drive = Drive(workflow("First", SharedIterations(1, 5)), workflow("Second")).arm().at(1)
    first = drive.text().splitlines()[1]
    second = drive.at(1.5).text().splitlines()[1]
    assert "left" not in first
    assert first.split()[0] != second.split()[0]
    assert first.split()[0].count("━") == second.split()[0].count("━")


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (lambda drive: drive.job.interrupt(drive.now, "SIGINT"), "stopping, Ctrl-C again ends it at once"),
        (lambda drive: drive.at(10.5).tick(), "waiting for what is under way"),
        (lambda drive: drive.report(counted({"get": ran([5])}), final=True), "ended"),
    ],
)
def test_the_head_tells_when_it_is_about_to_end(happens: Callable[[Drive], object], said: str) -> None:
    drive = Drive(workflow()).arm().at(5)
    happens(drive)
    assert said in drive.text().splitlines()[0]


def test_a_rule_that_aborts_the_job_is_named() -> None:
    drive = Drive(workflow(), thresholds=["failed < 1% abort"]).arm().at(5)
    drive.report(counted({"get": ran([5], failed=5)})).tick()
    assert "stopping: failed < 1% abort was crossed" in drive.text()


def test_nothing_has_started_yet_and_still_there_is_a_view() -> None:
    drive = Drive(workflow(thresholds=["failed < 1%"]))
    assert drive.composer.opening(WIDE).text == "shop.py  starting"
    assert "starting" in drive.row("Shop")
    assert "0:00 elapsed" in drive.text()


# Workflows.


def test_closed_workflows_show_users_beside_those_the_plan_wants() -> None:
    drive = Drive(workflow(), cores=2).arm().at(5)
    for shard in (0, 1):
        drive.report(counted({"get": ran([5] * 7)}), shard=shard, vus=1 + shard)
    assert drive.row("Shop") == "Shop  running  3 of 4 VUs  14 iterations"


def test_open_workflows_show_arrivals_beside_those_the_plan_wants() -> None:
    drive = Drive(workflow("Shop", ConstantRate("50/s", "10s", max_vus=8))).arm()
    for second in (1, 2, 3, 4):
        drive.at(second).report(counted({"get": ran([5])}, started=40 * second, dropped=3), vus=8).view()
    assert drive.row("Shop") == "Shop  running  40.0 of 50.0 arrivals/s  8/8 VUs busy  3 dropped"
    assert style_of(drive.view(), "VUs busy") == style_of(drive.view(), "dropped") == "yellow"


def test_on_a_ramp_arrivals_are_held_against_the_plan_of_the_same_seconds() -> None:
    drive = Drive(workflow("Shop", RampingRate([("100/s", "10s")]))).arm()
    for second in (1, 2, 3, 4):
        drive.at(second).report(counted({"get": ran([5])}, started=5 * second**2)).view()
    assert "30.0 of 30.0 arrivals/s" in drive.row("Shop")


def test_a_workflow_that_failed_says_why() -> None:
    drive = Drive(workflow("First"), workflow("Second", after=["First"]))
    drive.say(("First", 0), Refused("setup", "no such host \x1b[2J"))
    assert drive.row("First  ").startswith("First   failed  no such host")
    assert "\x1b" not in drive.text()
    assert "skipped" in drive.row("Second  ")


def test_a_workflow_names_those_it_waits_for() -> None:
    drive = Drive(workflow("First"), workflow("Second", after=["First"])).arm().at(1)
    assert drive.row("Second  ") == "Second  waits for First"


# Steps.


def test_a_step_shows_rates_counts_and_percentiles_of_all_cores() -> None:
    drive = Drive(workflow(), cores=2).arm().at(10)
    drive.report(counted({"get": ran([10] * 90, failed=5)}), shard=0)
    drive.report(counted({"get": ran([50] * 8 + [200] * 2)}), shard=1)
    header, row = drive.row("STEP"), drive.row("get")
    assert header.split() == ["STEP", "RATE", "AVERAGE", "OK", "FAILED", "p50", "p95", "p99"]
    assert row.split() == ["get", "10.5/s", "10.5/s", "100", "5", "4.76", "%", *"10.0 ms 50.0 ms 200 ms".split()]
    assert style_of(drive.view(), "4.76 %") == "red"


def test_the_rate_is_that_of_the_last_two_seconds_and_the_average_that_of_all() -> None:
    drive = Drive(workflow()).arm()
    for tenth in range(1, 81):
        done = tenth if tenth <= 40 else 40 + (tenth - 40) * 5
        drive.at(tenth / 10).report(counted({"get": ran([5] * done)})).view()
    assert drive.row("get").split()[1:3] == ["50.0/s", "30.0/s"]


def test_the_rate_falls_when_reports_stay_away() -> None:
    drive = Drive(workflow()).arm().at(2).report(counted({"get": ran([5] * 100)}))
    assert drive.row("get").split()[1] == "50.0/s"
    assert drive.at(3.5).row("get").split()[1] == "33.3/s"
    assert drive.at(4.5).row("get").split()[1] == "0/s"


def test_a_step_that_has_not_run_yet_is_listed_without_times() -> None:
    drive = Drive(workflow(steps=["get", "pay"])).arm().at(2).report(counted({"get": ran([5])}))
    assert drive.row("pay").split() == ["pay", "-", "-", "0", "0", "-", "-", "-"]


def test_what_is_not_measured_is_shown_only_when_it_fails() -> None:
    drive = Drive(workflow()).arm().at(2)
    drive.report(counted({"get": ran([5])}, actions={"tidy": StepTally(ok=3)}))
    assert "tidy" not in drive.text()
    drive.report(counted({"get": ran([5])}, actions={"tidy": ran([], failed=2)}))
    assert drive.row("tidy").split()[3:5] == ["0", "2"]


def test_steps_of_several_workflows_are_named_with_them() -> None:
    drive = Drive(workflow("First"), workflow("Second"), cores=2).arm().at(2)
    assert drive.row("First.get") and drive.row("Second.get")


def test_percentiles_are_worked_out_again_only_for_steps_that_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    worked = percentiles_worked_out(monkeypatch)
    drive = Drive(workflow(steps=["get", "pay"])).arm().at(2)
    drive.report(counted({"get": ran([5] * 3), "pay": ran([5] * 7)})).view()
    assert worked == [3, 3, 3, 7, 7, 7]
    drive.view()
    drive.at(2.2).report(counted({"get": ran([5] * 4)})).view()
    assert worked[6:] == [4, 4, 4]


# Sparklines, checks, thresholds, the generator.


def test_sparklines_show_the_whole_seconds_of_the_last_minute() -> None:
    drive = Drive(workflow()).arm().at(4)
    drive.report(counted({"get": ran([5])}), windows=with_windows([1] * 10 + [2] * 10 + [4] * 10 + [9] * 4))
    assert drive.row("requests").split() == ["requests", "40.0/s", "peak", "40.0/s", "▃▅█"]
    assert drive.row("p99").split() == ["p99", "10.0", "ms", "peak", "10.0", "ms", "███"]


def test_a_second_without_an_answer_leaves_a_gap_in_the_times() -> None:
    drive = Drive(workflow()).arm().at(4)
    drive.report(counted({"get": ran([5])}), windows=with_windows([1] * 10 + [0] * 10 + [1] * 10 + [0] * 14))
    assert drive.row("requests").endswith("█▁█▁")
    assert drive.row("p99").endswith("█ █ ")
    assert drive.row("p99").split()[1] == "-"


def test_sparklines_end_after_a_minute_and_fit_narrow_terminals() -> None:
    drive = Drive(workflow()).arm().at(90)
    for start in range(0, 900, 30):
        windows = [Window(index, requests=1) for index in range(start, start + 30)]
        drive.report(counted({"get": ran([5])}), windows=windows)
    # Windows older than a minute have been merged, and the newest second is not over.
    for size, blocks in ((WIDE, 59), (Size(60, 40), 19), (WIDE, 59)):
        assert set(drive.row("requests", size).split()[-1]) == {"█"}
        assert len(drive.row("requests", size).split()[-1]) == blocks


def test_late_windows_of_another_core_are_counted_in() -> None:
    drive = Drive(workflow(), cores=2).arm().at(4)
    drive.report(counted({"get": ran([5])}), shard=0, windows=with_windows([1] * 23, time_us=1_000))
    assert drive.row("p99").split()[1:3] == ["1.00", "ms"]
    drive.report(counted({"get": ran([5])}), shard=1, windows=with_windows([1] * 20, time_us=9_000))
    assert drive.row("requests").split()[1] == "20.0/s"
    assert drive.row("p99").split()[1] == "9.00"


def test_errors_are_listed_the_most_frequent_first_with_their_causes() -> None:
    step = ran([5], failed=2)
    for number in range(7):
        step.fail(Sample(number, "refused", "http://127.0.0.1:9/: cannot connect to 127.0.0.1 port 9"))
    drive = Drive(workflow()).arm().at(4).report(counted({"get": step}))

    lines = drive.text().splitlines()

    at = lines.index("ERRORS")
    assert [line.split() for line in lines[at + 1 : at + 3]] == [
        ["7", "refused", "by", "127.0.0.1:9"],
        ["2", "status", "503", "from", "shop.test"],
    ]


def test_without_errors_there_is_no_list_of_them() -> None:
    assert "ERRORS" not in Drive(workflow()).arm().at(4).report(counted({"get": ran([5])})).text()


def test_checks_show_how_many_passed_or_failed() -> None:
    drive = Drive(workflow()).arm().at(2)
    checks = {"paid": CheckTally(passed=9), "sent": CheckTally(passed=1, failed=3)}
    drive.report(counted({"get": ran([5])}, checks=checks))
    assert drive.row("✓ paid") == "✓ paid  passed 9"
    assert drive.row("✗ sent") == "✗ sent  failed 3 (75.00 %)"


def test_thresholds_follow_what_is_measured() -> None:
    drive = Drive(workflow(thresholds=["failed < 10%"]), thresholds=["requests > 5"]).arm().at(1)
    assert drive.row("- failed").endswith("no sample")
    drive.at(2).report(counted({"get": ran([5] * 3)}))
    assert drive.row("✗ requests > 5").split()[-1] == "3"
    drive.at(3.1).report(counted({"get": ran([5] * 9, failed=3)}))
    assert drive.row("✓ requests > 5").split()[-1] == "12"
    assert drive.row("✗ failed < 10%").endswith("25 %")


def test_thresholds_are_judged_once_a_second_however_often_it_is_drawn() -> None:
    drive = Drive(workflow(), thresholds=["requests > 5"]).arm()
    shown = []
    for tenth in range(10, 40):
        drive.at(tenth / 10).report(counted({"get": ran([5] * tenth)}))
        shown.append(drive.row("✓ requests > 5").split()[-1])
    assert list(dict.fromkeys(shown)) == ["10", "20", "30"]


RULES = [
    "response_time.p99 < 20ms",
    "get.response_time.mean > 1ms",
    "get/page.response_time.max < 20ms",
    "get/page.service_time.max < 20ms",
    "get/nobody.response_time.max < 20ms",
    "get/page.failed < 1%",
    "failed < 1%",
    "requests.failed < 1%",
    "steps.failed < 1%",
    "service_time.max < 1s",
    "get.failed < 10%",
    "checks > 90%",
    "checks.paid > 90%",
    "dropped < 5%",
    "rate > 2/s",
    "get.rate > 2/s",
    "requests > 5",
    "iterations > 5",
    "metrics.size.p95 < 3",
    "metrics.size.total > 10",
]


def test_verdicts_are_those_the_job_itself_would_give() -> None:
    specs = [workflow("First", thresholds=RULES), workflow("Second", thresholds=RULES)]
    of_job = [
        "First.get.response_time.max < 10ms",
        "Second.service_time.max < 10ms",
        "response_time{kind=get}.p99 < 10ms",
        "service_time{kind=get}.p99 < 10ms",
        "First.rate > 1/s",
    ]
    drive = Drive(*specs, cores=4, thresholds=RULES + of_job).arm().at(5)
    for number, (of, shard) in enumerate(drive.running):
        get = ran([number + 1, 30 * number + 1], failed=number)
        get.service_time.record(1000 * number)
        size = MetricTally("distribution")
        size.add(number)
        checks = {"paid": CheckTally(passed=9, failed=number % 2), "sent": CheckTally(passed=5)}
        page = ran([number + 2], failed=number)
        page.service_time.record(500 * number)
        tally = counted({"get": get}, checks=checks, metrics={"size": size}, dropped=number)
        tally.exchanges.failed = tally.exchanges.not_sent = number
        # A core that has made no call yet is among them.
        tally.calls = {"get": {"page": page}, "tidy": {"sweep": page}} if number else {}
        drive.report(tally, of=of, shard=shard)
    shown = view_of(drive.job)
    judged = Judge(Histograms()).verdicts(
        shown, drive.now, {name: LiveCounts(run) for name, run in shown.workflows.items()}
    )
    assert len(drive.running) == 4 and len(judged) == 3 * len(RULES) + len(of_job)
    assert judged == [(of, verdict) for of, _, verdict in drive.job.verdicts(drive.now)]


def test_many_histograms_are_merged_in_turn_and_none_is_forgotten() -> None:
    steps = [f"step_{number}" for number in range(10)]
    drive = Drive(workflow(steps=steps), counters_at_once=25).arm().at(1)
    drive.report(counted({step: ran(range(1, 11)) for step in steps}))
    # Three at once: the third begins within the limit.
    assert [drive.text().count("…  ") for _ in range(5)] == [3 * 7 - 7, 3 * 4 - 4, 3 * 1 - 1, 0, 0]
    for second in range(2, 6):
        times_ms = [1000 + second] * second + list(range(1000, 1010))
        drive.at(second).report(counted({step: ran(times_ms) for step in steps})).view()
    assert all("1.01 s" in drive.row(step) for step in steps)


@pytest.mark.parametrize(
    ("cpu_share", "lag_us", "response_ms", "begin"),
    [
        (0.5, 900, 5, "generator  "),
        (0.9, 900, 5, "generator  "),
        (0.9, 9_000, 5, "! generator saturated: "),
        (0.5, 9_000, 5, "! generator disturbed: "),
        (0.5, 9_000, 190, "generator  "),
    ],
)
def test_the_generator_says_when_it_cannot_keep_up_as_the_result_does(
    cpu_share: float, lag_us: int, response_ms: float, begin: str
) -> None:
    health = GeneratorTally(cpu_ns=round(cpu_share * 10 * SECOND), wall_ns=10 * SECOND)
    health.start_lag.record(lag_us)
    drive = Drive(workflow()).arm().at(5).report(counted({"get": ran([response_ms])}, generator=health))
    lag = "9.00 ms" if lag_us == 9_000 else "900 µs"
    assert drive.row(begin) == f"{begin}busiest core {100 * cpu_share:.0f} % CPU, start lag p99 {lag}"
    verdict = generator_of(drive.job, drive.job.tally(), "1.2.3").verdict
    assert begin == ("generator  " if verdict == "on time" else f"! generator {verdict}: ")


def test_a_closed_workflow_whose_core_has_no_cpu_left_is_saturated() -> None:
    health = GeneratorTally(cpu_ns=9 * SECOND, wall_ns=10 * SECOND)
    drive = Drive(workflow()).arm().at(5).report(counted({"get": ran([5])}, generator=health))
    assert drive.row("! generator") == "! generator saturated: busiest core 90 % CPU"


def test_a_lag_is_held_against_response_times_again_when_there_are_more_of_them() -> None:
    drive = Drive(workflow()).arm().at(5)
    for response_ms, begin in ((5, "! generator disturbed: "), (190, "generator  ")):
        health = GeneratorTally(cpu_ns=5 * SECOND, wall_ns=10 * SECOND)
        health.start_lag.record(9_000, response_ms)
        drive.report(counted({"get": ran([response_ms])}, generator=health))
        assert drive.row(begin)


# Steps over time, calls, and what failed.


def step_window(index: int, time_us: int, *, name: str = "get", **errors: int) -> Window:
    step = StepWindow(5, sum(errors.values()), errors)
    step.response_time.record(time_us, 5)
    return Window(index, requests=5, steps={name: step})


def test_each_step_has_its_p99_of_the_last_minute() -> None:
    drive = Drive(workflow(steps=["get", "pay"])).arm().at(12)
    windows = [step_window(index, 1_000 * (1 + index // 30)) for index in range(120)]
    drive.report(counted({"get": ran([5]), "pay": ran([5])}), windows=windows)
    assert drive.row("STEP").endswith("p99 LAST MINUTE")
    # Three stretches of 3 s are over; of the fourth, windows may still come.
    assert drive.row("get").endswith("▃▆█") and not drive.row("pay").strip().endswith("█")
    assert "LAST MINUTE" not in drive.row("STEP", Size(60, 30))


def test_a_stretch_of_which_windows_may_still_grow_is_looked_at_again() -> None:
    trends, timeline = Trends(), Timeline()
    for index in range(25):
        timeline.add(step_window(index, 1_000, status=1))
    timeline.lay_over([step_window(index, 1_000, status=1) for index in range(25, 33)])
    trends.look(timeline)
    assert (trends.p99_ms("get"), trends.errors()) == ([1.0], {"status": {0: 30}}), "it is shown when it is over"
    for index in range(25, 33):
        timeline.add(step_window(index, 9_000, status=2))
    trends.look(timeline)
    trends.look(timeline)
    assert (trends.p99_ms("get"), trends.errors()) == ([9.0], {"status": {0: 35}})


def test_steps_over_time_are_forgotten_after_a_minute() -> None:
    drive = Drive(workflow("Shop", ConstantVUs(1, "200s"))).arm()
    for second in range(0, 150, 3):
        windows = [step_window(second * 10, 1_000, status=1 if second < 60 else 0)]
        drive.at(second + 1).report(counted({"get": ran([5])}), windows=windows).text()
    assert len(drive.row("get").split()[-1]) == 20
    assert "\nstatus " not in drive.text()


def test_kinds_of_errors_have_a_line_over_time_the_most_frequent_first() -> None:
    drive = Drive(workflow("First"), workflow("Second"), cores=2).arm().at(12)
    for of, kinds in (("First", {"timeout": 1}), ("Second", {"timeout": 1, "status": 3})):
        windows = [step_window(index, 1_000, **(kinds if index < 30 else {})) for index in range(120)]
        drive.report(counted({"get": ran([5])}), of=of, windows=windows)
    lines = [line for line in drive.text().splitlines() if line.startswith(("status", "timeout"))]
    assert [line.split() for line in lines] == [
        ["status", "0/s", "peak", "30.0/s", "█▁▁"],
        ["timeout", "0/s", "peak", "20.0/s", "█▁▁"],
    ]


def test_calls_have_rows_below_their_step_with_rates_of_their_own() -> None:
    drive = Drive(workflow(steps=["get", "pay"])).arm().at(0)
    for second, times in ((1, 10), (3, 30)):
        calls = {"get": {"page": ran([7] * times * 2, failed=2), "get": ran([1])}, "pay": {"pay": ran([5])}}
        drive.at(second).report(counted({"get": ran([20] * times), "pay": ran([5])}, calls=calls)).view()
    lines = drive.text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("get "))
    page, own, pay = (line.split() for line in lines[at + 1 : at + 4])
    assert page[:7] == ["└", "page", "20.0/s", "20.7/s", "60", "2", "3.23"]
    assert page[-6:] == ["7.00", "ms"] * 3
    assert own[:2] == ["└", "get"] and pay[0] == "pay"


def test_a_workflow_tells_the_worse_of_failed_steps_and_failed_requests() -> None:
    drive = Drive(workflow()).arm().at(5)
    drive.report(counted({"get": ran([5] * 9, failed=1)}, exchanges=Exchanges(ok=6, failed=2, not_sent=2)))
    assert drive.row("Shop").endswith("  failed 40.00 %")
    assert style_of(drive.view(), "failed 40.00 %") == "red"


def test_a_lost_core_is_told_until_and_after_it_was_replaced() -> None:
    drive = Drive(workflow("Shop", ConstantRate("10/s", "20s")), cores=2).arm().at(3)
    drive.report(counted({"get": ran([5])}), shard=1).at(5)
    drive.carry_out(drive.job.on_exit(drive.now, drive.running["Shop", 1], "was killed by SIGKILL"))
    assert drive.row("! a core") == "! a core of Shop was killed by SIGKILL after 0:03, not replaced yet"
    drive.at(7).say(("Shop", 1), Armed())
    assert drive.row("! a core").endswith("after 0:03, missing until 0:07, 34 arrivals missing")


# What fits.


def crowded() -> Drive:
    """Everything at once, with long names."""
    steps = [f"step_{number:02}_{'with_a_long_name' * (number % 3)}" for number in range(40)]
    rules = [f"rate > {number}/s" for number in range(6)]
    drive = Drive(workflow(steps=steps), workflow("Älteres商品" * 4), cores=2, thresholds=rules).arm().at(5)
    health = GeneratorTally(cpu_ns=9 * SECOND, wall_ns=10 * SECOND)
    tallies = {
        step: ran([number + 1] * (1000 if number == 20 else number), failed=7 * (number == 3))
        for number, step in enumerate(steps)
    }
    checks = {f"check_{number}": CheckTally(passed=number) for number in range(5)}
    drive.report(counted(tallies, checks=checks, generator=health), windows=with_windows([5] * 40))
    drive.carry_out(drive.job.on_exit(drive.now, drive.running["Shop", 0], "was killed by SIGKILL"))
    return drive


@pytest.mark.parametrize("rows", [1, 2, 5, 10, 24, 50, 200])
@pytest.mark.parametrize("width", [20, 60, 61, 80, 100, 140, 200])
def test_no_line_is_too_wide_and_no_frame_too_high(width: int, rows: int) -> None:
    drive = crowded()
    for _ in range(2):
        lines = drive.text(Size(width, rows)).splitlines()
        assert len(lines) <= max(rows - 1, 1)
        assert max(columns(line) for line in lines) <= width


@pytest.mark.parametrize("width", [60, 80, 200])
def test_percentiles_rates_and_failures_fit_every_width(width: int) -> None:
    header = crowded().row("STEP", Size(width, 50)).split()
    assert {"RATE", "FAILED", "p50", "p95", "p99"} <= set(header)
    assert ("AVERAGE" in header) == (width == 200)


def test_ten_rows_show_what_fails_and_what_is_busiest_and_how_much_is_hidden() -> None:
    text = crowded().text(Size(100, 10))
    assert "step_03" in text
    assert "… and " in text
    assert "generator saturated" in text and "was killed" in text
    assert "" not in text.splitlines()


def test_fifty_rows_show_many_steps_in_their_own_order_and_count_the_rest() -> None:
    drive = crowded()
    text = drive.text(Size(100, 50))
    names = re.findall(r"^Shop\.step_(\d\d)", text, re.MULTILINE)
    assert names == sorted(names) and {"03", "20", "39"} <= set(names)
    (hidden,) = re.findall(r"… and (\d+) more steps", text)
    assert len(names) + int(hidden) == 40 + 1
    assert "… and 0" not in text


def test_percentiles_are_worked_out_only_for_rows_that_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    drive = crowded()
    worked = percentiles_worked_out(monkeypatch)
    drive.view(Size(100, 12))
    assert len(worked) <= 3 * 3


def test_columns_do_not_shrink_again() -> None:
    drive = Drive(workflow()).arm().at(2).report(counted({"get": ran([5] * 50_000)}))
    wide = drive.row("STEP")
    drive.at(9).report(counted({"get": ran([5] * 50_000)}), final=True)
    assert drive.row("STEP") == wide


def section(rank: int, least: int, wish: int, name: str) -> Section:
    return Section(rank, least, wish, lambda room: [styled(9, f"{name}{number}") for number in range(room)])


def shown(lines: Sequence[Line]) -> str:
    return " ".join(line[0][0] if line else "_" for line in lines)


@pytest.mark.parametrize(
    ("room", "lines"),
    [
        (1, "b0"),
        (3, "a0 a1 b0"),
        (5, "a0 a1 b0 b1 b2"),
        (6, "a0 a1 a2 b0 b1 b2"),
        (9, "a0 a1 a2 _ b0 b1 b2"),
    ],
)
def test_sections_get_their_least_by_rank_and_then_their_wish(room: int, lines: str) -> None:
    assert shown(fitted([section(2, 2, 3, "a"), section(1, 1, 3, "b")], room)) == lines


def test_of_too_many_items_the_most_urgent_are_shown_in_their_own_order() -> None:
    def lines(room: int) -> str:
        return shown(chosen([3, 1, 2, 0], room, lambda item: (item,), lambda item: styled(9, str(item))))

    assert lines(4) == "3 1 2 0"
    assert lines(3) == "1 0 … and 2 more"
    assert lines(1) == "0"


# Figures.


def test_sparklines_reach_from_nothing_to_the_highest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == BLOCKS
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([None, 5.0]) == " █"
    assert sparkline([]) == ""


@pytest.mark.parametrize("share", [-1.0, 0.0, 0.333, 0.5, 1.0, 7.0])
def test_a_bar_is_always_as_long_as_its_room(share: float) -> None:
    full, rest = bar(share, 21)
    assert len(full[0]) + len(rest[0]) == 21
    assert len(full[0]) == pytest.approx(21 * min(max(share, 0), 1), abs=1)


def test_a_pulse_goes_from_one_end_to_the_other_and_back() -> None:
    frames = ["".join(part[0] for part in pulse(at * SECOND // 10, 12)) for at in range(40)]
    assert all(len(frame) == 12 for frame in frames)
    assert frames[0] == "━━──────────" and frames[20] == "──────────━━"
    assert frames[10] == frames[30]


def test_clocks_show_hours_only_when_there_are_some() -> None:
    assert [clock_text(ns) for ns in (0, 65 * SECOND, 7265 * SECOND, -5)] == ["0:00", "1:05", "2:01:05", "0:00"]
    assert clock_text(SECOND + 1, up=True) == "0:02"


# How often it draws.


def test_it_draws_at_most_four_times_a_second() -> None:
    pace = DrawPace()
    pace.drew(10 * SECOND, 10 * SECOND + 1 * MILLISECOND)
    assert pace.next_at_ns == 10 * SECOND + DRAW_EVERY_NS
    assert DRAW_EVERY_NS == SECOND // 5


@pytest.mark.parametrize("cost_ms", [1, 5, 6, 20, 80, 150])
def test_drawing_stays_under_three_percent_of_the_time_whatever_it_costs(cost_ms: int) -> None:
    pace, now, draws = DrawPace(), 0, 0
    while now < 60 * SECOND:
        if now >= pace.next_at_ns:
            pace.drew(now, now + cost_ms * MILLISECOND)
            draws += 1
        now += 10 * MILLISECOND
    assert pace.spent_ns / now < 0.03
    assert (draws >= 238) == (cost_ms <= 5)


def test_one_redraw_that_was_held_up_does_not_freeze_the_view() -> None:
    pace = DrawPace()
    pace.drew(0, 30 * SECOND)
    assert pace.next_at_ns == DRAW_AT_LEAST_EVERY_NS


# Where it is shown.


class Stream:
    def __init__(self, is_terminal: bool) -> None:
        self.isatty = lambda: is_terminal


@pytest.mark.parametrize(
    ("ui", "is_terminal", "environment", "is_shown"),
    [
        ("auto", True, {"TERM": "xterm"}, True),
        ("full", True, {"TERM": "xterm", "NO_COLOR": "1"}, True),
        ("auto", True, {"TERM": "xterm", "NO_COLOR": "1"}, True),
        ("auto", True, {"TERM": "dumb"}, False),
        ("auto", True, {}, False),
        ("auto", True, {"TERM": "xterm", "CI": "true"}, False),
        ("auto", True, {"TERM": "xterm", "CI": "false"}, True),
        ("auto", False, {"TERM": "xterm"}, False),
        ("full", True, {"TERM": "xterm", "CI": "true"}, True),
        ("full", True, {"TERM": "dumb"}, False),
        ("full", False, {"TERM": "xterm"}, False),
        ("ci", True, {"TERM": "xterm"}, False),
        ("none", True, {"TERM": "xterm"}, False),
    ],
)
def test_the_view_is_shown_only_where_it_can_be_drawn(
    ui: str, is_terminal: bool, environment: dict[str, str], is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "CI", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert wants_live_view(ui, Stream(is_terminal)) == is_shown  # type: ignore[arg-type]


# On a terminal of its own, in this process.


class Terminal:
    """A pseudo-terminal: `stream` is what a program writes to, `read` what its screen got."""

    def __init__(self, width: int = 100, rows: int = 30) -> None:
        self.ours, self.theirs = pty.openpty()
        os.set_blocking(self.ours, False)
        self.resize(width, rows)
        self.stream = open(os.dup(self.theirs), "w", encoding="utf-8")

    def resize(self, width: int, rows: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, width, 0, 0))

    def read(self) -> str:
        taken = b""
        try:
            while True:
                taken += os.read(self.ours, 65536)
        except BlockingIOError:
            return taken.decode()

    def close(self) -> None:
        self.stream.close()
        os.close(self.theirs)
        os.close(self.ours)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


class FakeClock:
    """Every look at it costs: a redraw, which looks twice, takes `cost_ns`."""

    def __init__(self, cost_ns: int) -> None:
        self.now = 0
        self.cost_ns = cost_ns

    def __call__(self) -> int:
        self.now += self.cost_ns
        return self.now


def test_it_draws_when_it_is_due_and_knows_what_that_cost(terminal: Terminal) -> None:
    drive = Drive(workflow()).arm()
    drawn = []
    with LiveView(drive.composer, terminal.stream, clock=FakeClock(20 * MILLISECOND)) as view:
        terminal.read()
        for tenth in range(1, 101):
            clock = view._clock
            assert isinstance(clock, FakeClock)
            clock.now = drive.at(tenth / 10).now
            view(view_of(drive.job), drive.now)
            if "shop.py" in terminal.read():
                drawn.append(tenth)
    # 20 ms a redraw are 2 % of the time once a second.
    assert len(drawn) == 10
    assert view.cpu_share(10 * SECOND) == pytest.approx(0.02)
    assert view.cpu_share(0) == 0.0


def test_the_cursor_comes_back_and_the_frame_is_gone(terminal: Terminal) -> None:
    drive = Drive(workflow()).arm().at(1)
    with LiveView(drive.composer, terminal.stream) as view:
        view(view_of(drive.job), drive.now)
        assert HIDE_CURSOR in terminal.read()
    last = terminal.read()
    assert SHOW_CURSOR in last
    assert last.endswith("\x1b[1A\x1b[2K")


def test_an_error_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    drive = Drive(workflow()).arm().at(1)
    with pytest.raises(KeyboardInterrupt), LiveView(drive.composer, terminal.stream):
        raise KeyboardInterrupt
    assert SHOW_CURSOR in terminal.read()
    print("as before", file=terminal.stream, flush=True)
    assert terminal.read() == "as before\r\n"


def test_the_last_frame_can_stay(terminal: Terminal) -> None:
    drive = Drive(workflow()).arm().at(3)
    with LiveView(drive.composer, terminal.stream, keep=True, clock=lambda: drive.now) as view:
        shown = view_of(drive.job)
        view(shown, drive.now)
        terminal.read()
        drive.report(counted({"get": ran([5] * 777)}), final=True)
        refresh(shown, drive.job)
    last = terminal.read()
    assert "777" in last and "ended" in last
    assert last.rstrip().endswith(SHOW_CURSOR)


def test_what_others_print_appears_above_the_frame(terminal: Terminal) -> None:
    drive = Drive(workflow()).arm().at(1)
    with LiveView(drive.composer, terminal.stream) as view:
        terminal.read()
        os.write(terminal.stream.fileno(), b"said by a core \x1b[2J\nnot yet a line")
        view(view_of(drive.job), drive.now)
        drawn = terminal.read()
        assert drawn.index("said by a core") < drawn.index("shop.py")
        assert "[2J" in drawn and "\x1b[2J" not in drawn
        assert "not yet" not in drawn
    assert "not yet a line\r\n" in terminal.read()


def test_a_flood_of_prints_neither_blocks_nor_drowns_the_view(terminal: Terminal) -> None:
    printed = Printed(terminal.stream)
    for number in range(1000):
        os.write(terminal.stream.fileno(), b"x" * 2000 + b" %d\n" % number)
        printed.collect()
    lines = printed.take()
    assert lines[0] == "… 950 more lines printed before this"
    assert [line.split()[-1] for line in lines[1:]] == [str(number) for number in range(950, 1000)]
    for _ in range(2):
        os.write(terminal.stream.fileno(), b"y" * 60_000)
        printed.collect()
    assert [len(line) for line in printed.take()] == [120_000]
    printed.close()


def test_another_size_starts_on_a_clear_screen(terminal: Terminal) -> None:
    drive = Drive(workflow()).arm().at(1)
    with LiveView(drive.composer, terminal.stream, clock=lambda: drive.now) as view:
        view(view_of(drive.job), drive.now)
        assert "\x1b[2J" not in terminal.read()
        terminal.resize(60, 20)
        view(view_of(drive.job), drive.now + SECOND)
        drawn = terminal.read()
        assert "\x1b[2J" in drawn
        assert max(len(line) for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", drawn).splitlines()) <= 60


def test_a_terminal_that_is_stopped_is_left_alone(terminal: Terminal) -> None:
    drive = Drive(workflow()).arm().at(1)
    with LiveView(drive.composer, terminal.stream, clock=lambda: drive.now) as view:
        view(view_of(drive.job), drive.now)
        terminal.read()
        termios.tcflow(terminal.theirs, termios.TCOOFF)
        for second in range(2, 6):
            view(view_of(drive.job), drive.at(second).now)
        assert terminal.read() == ""
        termios.tcflow(terminal.theirs, termios.TCOON)
        view(view_of(drive.job), drive.at(6).now)
        assert "0:06 elapsed" in terminal.read()


def test_a_terminal_that_is_gone_does_not_end_the_job() -> None:
    terminal = Terminal()
    drive = Drive(workflow()).arm().at(1)
    with LiveView(drive.composer, terminal.stream, clock=lambda: drive.now) as view:
        os.close(terminal.ours)
        for second in range(2, 6):
            view(view_of(drive.job), drive.at(second).now)
    terminal.stream.close()
    os.close(terminal.theirs)


@pytest.mark.parametrize("color", [True, False])
def test_colours_can_be_left_out(terminal: Terminal, color: bool) -> None:
    drive = Drive(workflow()).arm().at(1)
    with LiveView(drive.composer, terminal.stream, color=color) as view:
        view(view_of(drive.job), drive.now)
    drawn = terminal.read()
    assert "running" in drawn
    assert bool(re.search(r"\x1b\[[0-9;]*m", drawn)) == color


# The whole of it, in a process of its own.

COMMAND = [*TALKA, "run", "--cores", "1", "--ui", "full"]


@pytest.fixture
def long_shop(folder: Path, server: Any) -> None:
    (folder / "shop.py").write_text(
        f"""
import asyncio
import os

from talka import URL, ConstantVUs, HTTPResponse, IterationsPerVU, Workflow, step

said: list[bool] = []


class Shop(Workflow):
    load = ConstantVUs(2, os.environ.get("HOW_LONG", "2s"))

    @step()
    async def home(self, url: URL = "{server.url}/delay/1") -> HTTPResponse:
        if not said:
            said.append(True)
            print("said by a step")
        return await self.client.http.get(url)


class Watched(Shop):
    load = IterationsPerVU(2, 5)

    @step("home")
    async def wait_until_it_was_seen(self) -> None:
        while not os.path.exists("seen"):
            await asyncio.sleep(0.05)
"""
    )


def watched(
    command: list[str],
    environment: dict[str, str],
    *,
    interrupt_at: str | None = None,
    on_drawn: Callable[[str], None] = lambda text: None,
) -> tuple[int, str]:
    """Runs it on a terminal; sends Ctrl-C's signal as soon as the text was drawn."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    process = processes.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    written = b""
    try:
        while part := os.read(ours, 65536):
            written += part
            on_drawn(written.decode(errors="ignore"))
            if interrupt_at and interrupt_at.encode() in written:
                interrupt_at = None
                process.send_signal(signal.SIGINT)
    except OSError as error:
        assert error.errno == errno.EIO  # how Linux says that the other end is closed
    os.close(ours)
    return process.wait(LIMIT_S), written.decode()


def test_a_run_on_a_terminal_is_shown_live_and_ends_with_the_summary(
    long_shop: None, environment: dict[str, str], folder: Path
) -> None:
    times_of_home = re.compile(r"\bhome\b[^\n]*\d+(\.\d+)? (µs|ms)")

    def end_once_it_shows_times(drawn: str) -> None:
        if times_of_home.search(drawn):
            (folder / "seen").touch()

    code, written = watched([*COMMAND, "shop.py:Watched"], environment, on_drawn=end_once_it_shows_times)
    live, _, summary = written.rpartition(SHOW_CURSOR)
    assert code == 0
    assert HIDE_CURSOR in live
    assert times_of_home.search(live)
    assert "p99" in live and re.search(r"0:\d\d elapsed", live)
    assert written.count("said by a step") == 1
    assert "COMPLETED" in summary and "elapsed" not in summary


def test_ctrl_c_leaves_the_cursor_visible_and_the_summary_follows(long_shop: None, environment: dict[str, str]) -> None:
    variables = environment | {"NO_COLOR": "1", "HOW_LONG": "50s"}
    code, written = watched([*COMMAND, "shop.py:Shop"], variables, interrupt_at=" of 2 VUs")
    live, _, summary = written.rpartition(SHOW_CURSOR)
    assert code == 130
    assert HIDE_CURSOR not in summary and "CANCELLED" in summary
    assert not re.search(r"\x1b\[[0-9;]*m", written)


def test_nothing_is_drawn_where_stderr_is_a_pipe(long_shop: None, environment: dict[str, str]) -> None:
    done = subprocess.run([*COMMAND, "shop.py:Shop"], capture_output=True, text=True, env=environment, timeout=LIMIT_S)
    assert done.returncode == 0
    assert "\x1b" not in done.stderr + done.stdout
    assert "elapsed" not in done.stderr
    assert "COMPLETED" in done.stdout


def test_rich_is_not_imported_before_there_is_a_view(environment: dict[str, str]) -> None:
    program = "import sys, talka.cli.live.screen, talka.cli.jobs; raise SystemExit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], env=environment, timeout=LIMIT_S).returncode == 0
