"""How a job stands, as those who watch it are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from talka.control.jobs.job_checkpoint import checkpoint_of
from talka.control.jobs.job_view import SETTLE_WINDOWS, UpdateLimits, facts_of, fitting, late_of, update_of
from talka.stats.tally import MetricTally, StepTally, Tally
from talka.stats.windows import WINDOW_NS, StepWindow, Window
from talka.units import SECOND
from talka.wire.entries import Grant, JobEntry, encode_checkpoint
from talka.wire.orders import BundleFacts, JobOrder
from talka.wire.shards import Settings
from talka.wire.views import JobFacts, JobUpdate, LostPart, WorkflowUpdate
from talka.work.lifecycle import JobState, TaskState
from talka.work.shapes import ConstantRate, ConstantVUs

if TYPE_CHECKING:
    from tests.control.conftest import Driven

JobOf = Callable[..., "Driven"]
ARRIVALS = {"shape": ConstantRate(100, "10s", max_vus=12)}
ENTRY = JobEntry(
    job="b4k7",
    order=JobOrder("shop", BundleFacts("0" * 64, 1, b"", "shop.py"), (), Settings(0), submitted_by="ada"),
    state=JobState.RUNNING,
    reason="it was granted 5 cores",
    number=1,
    submitted_ms=1_790_000_000_000,
    owner="m2",
    grants=(Grant("w1", 1, 2), Grant("w2", 1, 3, "its lease is over"), Grant("w3", 1, 1), Grant("w1", 1, 2)),
    exit_code=3,
)
FACTS = JobFacts("b4k7", "shop", JobState.RUNNING)


def told(driven: Driven, *, after: int = -1, steps: bool = False, sequence: int = 1, **limits: int) -> JobUpdate:
    tallies = {name: run.tally() for name, run in driven.job.workflows.items()} if steps else None
    return update_of(
        driven.job,
        FACTS,
        driven.now,
        sequence=sequence,
        windows_after=after,
        steps=tallies,
        by_step=steps,
        limits=UpdateLimits(**limits),
    )


def indexes(windows: list[Window]) -> list[int]:
    return [window.index for window in windows]


def window_of(index: int, count: int = 1, *, time_us: int = 1_000) -> Window:
    step = StepWindow(count)
    step.response_time.record(time_us, count)
    return Window(index, requests=count, steps={"buy": step})


def test_facts_are_those_of_the_entry() -> None:
    assert facts_of(ENTRY) == JobFacts(
        id="b4k7",
        name="shop",
        state=JobState.RUNNING,
        reason="it was granted 5 cores",
        submitted_at="2026-09-21T14:13:20.000Z",
        owner="m2",
        cores=5,
        workers=["w1", "w3"],
        submitted_by="ada",
    )


def test_of_a_job_that_waits_it_is_told_where_in_the_queue_and_for_what() -> None:
    queued = msgspec.structs.replace(ENTRY, state=JobState.QUEUED, cancel="enough", grants=())

    facts = facts_of(queued, 3, "4 cores")

    assert (facts.position, facts.waits_for, facts.cancel, facts.cores) == (3, "4 cores", "enough", 0)


def test_a_job_that_has_ended_has_an_exit_code_and_no_cores() -> None:
    ended = msgspec.structs.replace(ENTRY, state=JobState.FAILED, ended_ms=1_790_000_001_000)

    facts = facts_of(ended)

    assert (facts.exit_code, facts.cores, facts.ended_at) == (3, 0, "2026-09-21T14:13:21.000Z")
    assert facts.workers == ["w1", "w3"], "where it ran"


def test_before_its_load_began_a_job_has_nothing_to_tell(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 2})
    driven.start()

    update = told(driven, sequence=4)

    (workflow,) = update.workflows
    assert (update.job, update.sequence, update.elapsed_ns, update.origin) == (FACTS, 4, 0, False)
    assert (update.windows, update.lost, update.final) == ([], [], False)
    assert (workflow.name, workflow.state, workflow.tally, workflow.elapsed_ns) == ("Shop", "assigned", None, 0)
    assert (workflow.stopped, workflow.ended, workflow.vus, workflow.cores) == (False, False, 0, 2)


def test_it_is_told_for_which_instant_counts_hold(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 2, "w2": 1})
    driven.run()
    origin_ns = driven.now
    driven.later(5).report(1, Tally(started=4), made_at_ns=origin_ns + SECOND)
    driven.report(2, Tally(started=4), made_at_ns=origin_ns + 3 * SECOND)

    (workflow,) = told(driven).workflows

    assert (workflow.elapsed_ns, workflow.counted_ns) == (5 * SECOND, 2 * SECOND)


def test_counts_and_users_of_running_workflows_are_told_with_steps_only_for_those_who_asked(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 2, "w2": 1})
    driven.run()
    tally = Tally(started=9, steps={"buy": StepTally(ok=3)}, metrics={"size": MetricTally("count", 1)})
    driven.job.engine = "python"
    driven.later(2)
    driven.result(1, tally, notes=("the seed was 7",))
    driven.report(2, Tally(started=4), vus=3)

    (short,) = told(driven).workflows
    update = told(driven, steps=True)
    (long,) = update.workflows

    assert short.tally is not None and long.tally is not None
    assert (short.tally.started, short.tally.steps, short.tally.metrics) == (13, {}, {})
    assert (long.tally.started, long.tally.steps["buy"].ok, long.tally.metrics["size"].values) == (13, 3, 1)
    assert (long.vus, long.cores, long.notes, long.elapsed_ns) == (3, 3, ["the seed was 7"], 2 * SECOND)
    assert (update.engine, update.origin, update.elapsed_ns) == ("python", True, 2 * SECOND)


def test_a_workflow_that_stops_or_has_ended_says_so(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS, "Side": {"shape": ConstantVUs(1, "5s")}}, places={"w1": 2, "w2": 1})
    driven.run()
    driven.later(5).result(driven.cores("Side")[0], failure="token raised KeyError")
    driven.interrupt()

    shop, side = told(driven).workflows

    assert (shop.stopped, shop.ended, shop.failure) == (True, False, None)
    assert (side.stopped, side.ended, side.failure) == (False, True, "token raised KeyError")


def test_what_was_lost_is_told_and_whether_anything_took_its_place(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 1, "w2": 1})
    driven.run()
    driven.later(1).exit(1, "its lease is over")
    assert told(driven).lost == [LostPart("Shop", 0, "its lease is over", 0, SECOND, 6, 0, True)]
    assert told(driven).workflows[0].vus == 0

    driven.later(1).arm(3)

    assert told(driven).lost == [LostPart("Shop", 0, "its lease is over", 0, 2 * SECOND, 6, 100, False)]


# -- windows


def test_windows_are_told_once_they_have_settled_and_all_of_them_when_the_job_has_ended(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 1})
    driven.run()
    driven.later(2).report(1, windows=[Window(index, started=index) for index in range(20)])

    assert indexes(told(driven).windows) == list(range(20 - SETTLE_WINDOWS))
    assert [window.index for window in told(driven, after=6).windows] == [7, 8, 9]
    driven.result(1)

    assert indexes(told(driven, after=16).windows) == [17, 18, 19]


def test_of_windows_merged_long_ago_it_is_told_where_their_stretch_begins(job_of: JobOf) -> None:
    driven = job_of({"Shop": {"shape": ConstantRate(100, "1h", max_vus=2)}}, places={"w1": 1})
    driven.run()
    driven.later(100).report(1, windows=[Window(index, started=1) for index in range(0, 1000, 10)])

    found = told(driven).windows

    assert [(window.index, window.started) for window in found[:6]] == [
        (0, 10),
        (100, 10),
        (200, 10),
        (300, 1),
        (310, 1),
        (320, 1),
    ]
    assert {span.start_ns // WINDOW_NS for span in driven.job.timeline.spans()} > {window.index for window in found}


def test_windows_that_have_not_settled_are_told_anew_in_every_update_and_never_among_the_others(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 1, "w2": 1})
    driven.run()
    driven.later(2).report(1, windows=[window_of(index) for index in range(20)])

    first = told(driven)
    driven.report(2, windows=[window_of(index, 2) for index in range(20)])
    second = told(driven)

    assert indexes(first.windows) + indexes(first.recent) == list(range(20))
    assert len(first.recent) == SETTLE_WINDOWS
    assert [window.requests for window in first.recent] == [1] * 10
    assert [window.requests for window in second.recent] == [3] * 10
    driven.result(1)
    driven.result(2)
    ended = told(driven)
    assert (indexes(ended.windows), ended.recent) == (list(range(20)), []), "nothing can be added any more"


def test_windows_of_workflows_have_their_steps_for_those_who_asked(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS, "Side": {"shape": ConstantVUs(1, "5s")}}, places={"w1": 2})
    driven.run()
    driven.later(2).report(driven.cores("Shop")[0], windows=[window_of(index, 2) for index in range(20)])
    driven.report(driven.cores("Side")[0], windows=[window_of(index, 5) for index in range(15, 20)])

    update = told(driven, after=6, steps=True)

    shop, side = update.workflows
    assert (indexes(shop.windows), indexes(shop.recent)) == ([7, 8, 9], list(range(10, 20)))
    assert (indexes(side.windows), indexes(side.recent)) == ([], [15, 16, 17, 18, 19])
    assert {window.steps["buy"].count for window in (*shop.windows, *shop.recent)} == {2}
    assert {window.steps["buy"].count for window in side.recent} == {5}
    assert (indexes(update.windows), update.recent[-1].requests, update.recent[-1].steps) == ([7, 8, 9], 7, {})
    for workflow in told(driven).workflows:
        assert (workflow.windows, workflow.recent) == ([], []), "nobody asked for steps"


def test_of_windows_with_much_in_them_an_update_has_few_and_no_recent_ones_until_the_others_are_told(
    job_of: JobOf,
) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 1})
    driven.run()
    driven.later(2).report(1, windows=[window_of(index) for index in range(20)])
    of_one_index = window_of(0).counters + 1  # a counter of the workflow's step, and one of the job

    first = told(driven, steps=True, counters=4 * of_one_index)
    rest = told(driven, after=first.windows[-1].index, steps=True, counters=4 * of_one_index)
    least = told(driven, after=5, steps=True, counters=0)

    assert 0 < len(first.windows) < 10
    for update in (first, least):
        assert indexes(update.workflows[0].windows) == indexes(update.windows)
        assert (update.recent, update.workflows[0].recent) == ([], []), "those in between come first"
    assert rest.windows[0].index == len(first.windows)
    assert indexes(least.windows) == [6], "it goes on, however much there is"


def test_one_update_has_so_many_windows_and_the_next_goes_on(job_of: JobOf) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 1})
    driven.run()
    driven.later(2).report(1, windows=[Window(index) for index in range(20)])

    assert indexes(told(driven, windows=4).windows) == [0, 1, 2, 3]
    assert indexes(told(driven, after=3, windows=4).windows) == [4, 5, 6, 7]


# -- who is late


def test_a_workflow_that_is_late_says_what_it_was_given_and_told(job_of: JobOf) -> None:
    driven = job_of({"Shop": {**ARRIVALS, "timeout_s": 4, "saves": True}}, places={"w1": 1})
    driven.run()
    assert told(driven).workflows[0].late == ""
    driven.later(4.1).report(1)
    driven.tick()
    assert told(driven).workflows[0].late == "it was given 2s more, in 1 extension"
    driven.later(2.1).tick()

    late = "it was given 2s more, in 1 extension; it was warned that its time is over"
    assert told(driven).workflows[0].late == late
    checkpoint = encode_checkpoint(checkpoint_of(driven.job, {}, 0))
    assert late_of(msgspec.structs.replace(ENTRY, checkpoint=checkpoint)) == [f"Shop: {late}"]


def test_of_a_job_without_a_checkpoint_or_with_one_that_cannot_be_read_nobody_is_known_to_be_late(
    job_of: JobOf,
) -> None:
    driven = job_of({"Shop": ARRIVALS}, places={"w1": 1})
    driven.run()
    in_time = encode_checkpoint(checkpoint_of(driven.job, {}, 0))

    for checkpoint in (b"", b"?", in_time):
        assert late_of(msgspec.structs.replace(ENTRY, checkpoint=checkpoint)) == []


# -- what fits a frame


def update_with(windows: int, steps: int) -> JobUpdate:
    tally = Tally(started=7, steps={f"step {turn}": StepTally(ok=turn) for turn in range(steps)})
    workflows = [
        WorkflowUpdate("Late", TaskState.PENDING),
        WorkflowUpdate("Shop", TaskState.RUNNING, tally=tally),
    ]
    return JobUpdate(FACTS, 1, workflows=workflows, windows=[Window(index) for index in range(windows)])


def with_windows_of_steps(windows: int, recent: int, *, times: int = 1, steps: int = 0) -> JobUpdate:
    """Windows have so many different response times."""
    every = []
    for index in range(windows + recent):
        window = Window(index, steps={"buy": StepWindow()})
        for time in range(times):
            window.steps["buy"].response_time.record(1_000_000 + 8_000 * time)
        every.append(window)
    update = update_with(0, steps)
    shop = msgspec.structs.replace(update.workflows[1], windows=every[:windows], recent=every[windows:])
    own = [Window(index) for index in range(windows + recent)]
    return msgspec.structs.replace(update, workflows=[shop], windows=own[:windows], recent=own[windows:])


def read(content: bytes) -> JobUpdate:
    return msgspec.msgpack.decode(content, type=JobUpdate)


def test_what_fits_is_told_whole() -> None:
    for update in (update_with(100, 10), with_windows_of_steps(20, 10, times=50)):
        assert read(fitting(update)) == update


def test_what_steps_have_counted_is_told_without_windows_where_both_do_not_fit() -> None:
    update = with_windows_of_steps(20, 10, steps=100)
    limit_bytes = len(fitting(update)) - 1

    fits = read(fitting(update, limit_bytes))

    assert fits.workflows[0].tally == update.workflows[0].tally
    assert (fits.windows, fits.recent) == ([], []), "they are not taken for told: the next update has them"
    assert (fits.workflows[0].windows, fits.workflows[0].recent) == ([], [])


def test_of_too_many_windows_the_first_are_told() -> None:
    update = with_windows_of_steps(100, 10)
    limit_bytes = len(fitting(update)) - 1

    fits = read(fitting(update, limit_bytes))

    assert fits.windows == update.windows[:50]
    assert indexes(fits.workflows[0].windows) == list(range(50)), "as far as those of the job, which are told"
    assert (fits.recent, fits.workflows[0].recent) == ([], [])


def test_windows_of_steps_are_blurred_before_any_is_left_out() -> None:
    update = with_windows_of_steps(20, 10, times=60)
    limit_bytes = len(fitting(update)) - 1

    fits = read(fitting(update, limit_bytes))

    assert indexes(fits.workflows[0].windows) == list(range(20)) and fits.windows == update.windows
    for known, blurred in (
        (update.workflows[0].windows[3], fits.workflows[0].windows[3]),
        (update.workflows[0].recent[3], fits.workflows[0].recent[3]),
    ):
        assert blurred == known.blurred() != known


def test_steps_that_do_not_fit_by_themselves_are_left_out() -> None:
    update = update_with(5, 100)
    tally = update.workflows[1].tally
    assert tally is not None
    tally.calls["step 1"] = {f"call {turn}": StepTally(ok=turn) for turn in range(10)}
    limit_bytes = len(fitting(update_with(5, 50)))

    late, shop = (fits := read(fitting(update, limit_bytes))).workflows

    assert late.tally is None
    assert shop.tally == Tally(started=7), "nor what their calls have counted"
    assert fits.windows == update.windows


def test_a_window_whose_steps_do_not_fit_is_told_without_them() -> None:
    update = with_windows_of_steps(1, 1, times=60)
    limit_bytes = len(_encoded(with_windows_of_steps(1, 0))) + 10

    fits = read(fitting(update, limit_bytes))

    assert fits.windows == update.windows, "the next update goes on with the next window"
    assert (fits.workflows[0].windows, fits.workflows[0].recent, fits.recent) == ([], [], [])


def test_what_fits_in_no_way_is_told_without_windows() -> None:
    assert read(fitting(update_with(5, 1), limit_bytes=10)).windows == []


def _encoded(update: JobUpdate) -> bytes:
    return msgspec.msgpack.encode(update)
