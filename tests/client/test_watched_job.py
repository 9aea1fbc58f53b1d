"""A remote job: what its updates told is what the view, the progress line and the outputs of a job show."""

from typing import Any

import msgspec
import pytest

from talka.cli.live.layout import Size
from talka.cli.live.view import Composer
from talka.client.watched_job import WatchedJob
from talka.control.jobs.job_checkpoint import spec_of
from talka.control.jobs.job_view import update_of
from talka.control.load.core_effects import StartCore
from talka.control.load.load_job import LoadJob
from talka.report.summary import progress_line
from talka.stats.tally import Exchanges, StepTally, Tally
from talka.stats.windows import WINDOW_NS, StepWindow, Window
from talka.units import SECOND
from talka.wire.orders import BundleFacts, JobOrder, WorkflowOrder
from talka.wire.shards import Armed, Settings, Totals
from talka.wire.views import JobFacts, JobUpdate, LostPart, WorkflowUpdate
from talka.work.lifecycle import JobState, TaskState
from talka.work.load import Plan, Segment
from talka.work.specs import NodeOutline
from talka.work.thresholds import parse_threshold
from tests.report.documents import view_of

NOW = 5_000 * SECOND
SIZE = Size(120, 40)


def workflow_order(name: str, *depends_on: str) -> WorkflowOrder:
    plan = Plan.of_vus([Segment(10 * SECOND, 4, 4)])
    nodes = (NodeOutline("home", "step", True),)
    return WorkflowOrder(name, plan, "auto", True, depends_on, 70 * SECOND, (), (), "4 VUs for 10s", nodes)


@pytest.fixture
def order() -> JobOrder:
    return JobOrder(
        name="shop.py",
        bundle=BundleFacts("a" * 64, 3, b"", "shop.py", {}),
        workflows=(workflow_order("Browse"), workflow_order("Buy", "Browse")),
        settings=Settings(grace_ns=SECOND),
        thresholds=(parse_threshold("failed < 1%"),),
    )


@pytest.fixture
def watched(order: JobOrder) -> WatchedJob:
    return WatchedJob("job1", order)


def tally_of(requests: int) -> Tally:
    return Tally(
        iterations=requests, started=requests, exchanges=Exchanges(ok=requests), steps={"home": StepTally(ok=requests)}
    )


def facts_of(state: JobState = JobState.RUNNING, **more: Any) -> JobFacts:
    return JobFacts("job1", "shop.py", state, **{"cores": 3, **more})


def running(requests: int = 40, elapsed_ns: int = 2 * SECOND, **more: Any) -> JobUpdate:
    """Browse runs since `elapsed_ns`, Buy waits for it."""
    browse = WorkflowUpdate("Browse", TaskState.RUNNING, elapsed_ns, vus=4, cores=3, tally=tally_of(requests))
    workflows = [browse, WorkflowUpdate("Buy", TaskState.PENDING)]
    given: dict[str, Any] = {"job": facts_of(), "elapsed_ns": elapsed_ns, "origin": True, "workflows": workflows}
    return JobUpdate(**(given | more))


def text_of(watched: WatchedJob, order: JobOrder, now: int) -> str:
    view = Composer(order.name, order.workflows).view(watched.view, now, SIZE)
    return "\n".join("".join(text for text, _ in line) for line in view.lines)


def test_before_the_first_update_there_is_a_job_of_which_nothing_has_begun(
    watched: WatchedJob, order: JobOrder
) -> None:
    assert list(watched.view.workflows) == ["Browse", "Buy"] and watched.view.id == "job1"
    assert not watched.view.origin_ns and watched.facts is None
    assert "waits" in text_of(watched, order, NOW)


def test_update_is_what_the_job_then_says_of_itself(watched: WatchedJob) -> None:
    watched.apply(NOW, running())
    job = watched.view
    assert job.elapsed_ns(NOW) == 2 * SECOND and job.origin_ns == NOW - 2 * SECOND
    assert job.cores == 3 and job.active_vus() == 4
    assert job.tally().exchanges.requests == 40 and job.workflows["Browse"].cores == 3
    assert job.workflows["Browse"].state is TaskState.RUNNING and job.workflows["Buy"].state is TaskState.PENDING
    assert watched.facts == facts_of()


def test_a_workflow_that_is_late_shows_what_it_was_given(watched: WatchedJob, order: JobOrder) -> None:
    update = running()
    (browse, buy) = update.workflows
    late = msgspec.structs.replace(browse, late="it was given 15s more, in 1 extension")

    watched.apply(NOW, msgspec.structs.replace(update, workflows=[late, buy]))

    assert "it was given 15s more, in 1 extension" in text_of(watched, order, NOW)


def test_later_update_replaces_counts_and_does_not_add_to_them(watched: WatchedJob) -> None:
    watched.apply(NOW, running(40))
    watched.apply(NOW + SECOND, running(70, 3 * SECOND))
    assert watched.view.tally().exchanges.requests == 70 and watched.view.active_vus() == 4


def test_rates_are_over_the_time_in_which_was_counted_not_until_the_update_came(watched: WatchedJob) -> None:
    for travelled_ns in (SECOND, 0, 3 * SECOND):
        update = running(elapsed_ns=2 * SECOND)
        (browse, buy) = update.workflows
        counted = msgspec.structs.replace(browse, counted_ns=SECOND + SECOND // 2)
        watched.apply(NOW + travelled_ns, msgspec.structs.replace(update, workflows=[counted, buy]))

    run = watched.view.workflows["Browse"]
    assert run.counted_at_ns - run.origin_ns == SECOND + SECOND // 2
    watched.apply(NOW + 4 * SECOND, running(elapsed_ns=6 * SECOND))
    assert run.counted_at_ns == NOW + 4 * SECOND, "an earlier version does not tell"


def test_update_that_travelled_long_does_not_move_the_start(watched: WatchedJob) -> None:
    watched.apply(NOW, running(elapsed_ns=2 * SECOND))
    watched.apply(NOW + 3 * SECOND, running(elapsed_ns=3 * SECOND))  # two seconds late
    assert watched.view.origin_ns == watched.view.workflows["Browse"].origin_ns == NOW - 2 * SECOND
    watched.apply(NOW + 4 * SECOND, running(elapsed_ns=7 * SECOND))  # the first one was late as well
    assert watched.view.origin_ns == watched.view.workflows["Browse"].origin_ns == NOW - 3 * SECOND


def test_windows_add_up_to_the_timeline(watched: WatchedJob) -> None:
    watched.apply(NOW, running(windows=[Window(0, requests=5), Window(1, requests=6)]))
    watched.apply(NOW + SECOND, running(windows=[Window(2, requests=7)]))
    spans = watched.view.timeline.spans()
    assert [(span.start_ns // WINDOW_NS, span.window.requests) for span in spans] == [(0, 5), (1, 6), (2, 7)]


def by_step(index: int, count: int) -> Window:
    return Window(index, requests=count, steps={"home": StepWindow(count)})


def with_windows(windows: list[Window], recent: list[Window]) -> JobUpdate:
    update = running()
    browse = msgspec.structs.replace(update.workflows[0], windows=windows, recent=recent)
    return msgspec.structs.replace(update, workflows=[browse], windows=windows, recent=recent)


def test_windows_of_each_step_are_shown_at_once_and_counted_once_when_they_settle(watched: WatchedJob) -> None:
    run = watched.view.workflows["Browse"]

    def shown() -> list[tuple[int, int]]:
        steps = [(span.start_ns // WINDOW_NS, span.window.steps["home"].count) for span in run.timeline.spans()]
        whole = [(span.start_ns // WINDOW_NS, span.window.requests) for span in watched.view.timeline.spans()]
        assert steps == whole
        return steps

    watched.apply(NOW, with_windows([by_step(0, 5)], [by_step(1, 2), by_step(2, 1)]))
    assert shown() == [(0, 5), (1, 2), (2, 1)]
    watched.apply(NOW, with_windows([], [by_step(1, 6), by_step(2, 4), by_step(3, 1)]))
    assert shown() == [(0, 5), (1, 6), (2, 4), (3, 1)], "they replace those of the update before"
    watched.apply(NOW, with_windows([by_step(1, 7), by_step(2, 4)], [by_step(3, 2)]))
    assert shown() == [(0, 5), (1, 7), (2, 4), (3, 2)]


def test_view_of_a_remote_job_has_its_steps_and_kinds_of_errors_over_time(watched: WatchedJob, order: JobOrder) -> None:
    windows = [by_step(index, 4) for index in range(70)]
    for window in windows:
        window.steps["home"].failed, window.steps["home"].errors = 1, {"timeout": 1}
        window.steps["home"].response_time.record(5_000, 4)
    assert "p99 LAST MINUTE" not in text_of(watched, order, NOW)
    watched.apply(NOW, with_windows(windows[:60], windows[60:]))
    text = text_of(watched, order, NOW)
    assert "p99 LAST MINUTE" in text and "timeout" in text and "10.0/s" in text


def test_an_update_without_room_for_recent_windows_takes_none_away(watched: WatchedJob) -> None:
    watched.apply(NOW, with_windows([by_step(0, 5)], [by_step(1, 2), by_step(2, 1)]))
    watched.apply(NOW, with_windows([by_step(1, 3)], []))
    spans = watched.view.workflows["Browse"].timeline.spans()
    assert [(span.start_ns // WINDOW_NS, span.window.requests) for span in spans] == [(0, 5), (1, 3), (2, 1)]


def test_steps_stay_as_they_were_until_they_are_told_again(watched: WatchedJob) -> None:
    watched.apply(NOW, running(40))
    counts = Tally(iterations=50, started=51, interrupted_iterations=1, exchanges=Exchanges(ok=50))
    between = msgspec.structs.replace(running().workflows[0], tally=counts)
    watched.apply(NOW, running(workflows=[between]))
    tally = watched.view.workflows["Browse"].tally()
    assert (tally.iterations, tally.started, tally.exchanges.ok, tally.interrupted_iterations) == (50, 51, 50, 1)
    assert tally.steps["home"].ok == 40
    watched.apply(NOW, running(60))
    assert watched.view.workflows["Browse"].tally().steps["home"].ok == 60


def test_end_of_a_workflow_stops_its_clock_and_its_users(watched: WatchedJob) -> None:
    watched.apply(NOW, running())
    ended = WorkflowUpdate(
        "Browse", TaskState.FAILED, 3 * SECOND, True, True, 0, 3, tally_of(50), "home raised ValueError", ["a note"]
    )
    watched.apply(NOW + 2 * SECOND, running(elapsed_ns=4 * SECOND, workflows=[ended]))
    run = watched.view.workflows["Browse"]
    assert run.elapsed_ns(NOW + 60 * SECOND) == 3 * SECOND and run.stopped_ns
    assert (run.state, run.failure, run.notes) == (TaskState.FAILED, "home raised ValueError", ["a note"])
    assert watched.view.active_vus() == 0 and not watched.view.ended_ns


def test_workflow_that_was_skipped_has_ended_without_having_begun(watched: WatchedJob) -> None:
    skipped = WorkflowUpdate("Buy", TaskState.SKIPPED, ended=True)
    watched.apply(NOW, running(workflows=[skipped]))
    run = watched.view.workflows["Buy"]
    assert run.ended_ns == NOW and not run.origin_ns and not run.tallies


def test_workflow_that_the_order_does_not_name_is_left_out(watched: WatchedJob) -> None:
    watched.apply(NOW, running(workflows=[WorkflowUpdate("Other", TaskState.RUNNING)]))
    assert list(watched.view.workflows) == ["Browse", "Buy"]


def test_final_update_ends_the_job_and_keeps_its_cores(watched: WatchedJob) -> None:
    watched.apply(NOW, running())
    watched.apply(
        NOW + 9 * SECOND,
        JobUpdate(facts_of(JobState.COMPLETED, cores=0), elapsed_ns=10 * SECOND, origin=True, final=True),
    )
    job = watched.view
    assert job.elapsed_ns(NOW + 99 * SECOND) == 10 * SECOND and job.cores == 3
    assert job.tally().exchanges.requests == 40  # an update without workflows takes nothing away


def test_job_that_ended_before_it_began_ends_when_that_is_told(watched: WatchedJob) -> None:
    watched.apply(NOW, JobUpdate(facts_of(JobState.CANCELLED, cores=0), final=True))
    watched.apply(NOW + SECOND, JobUpdate(facts_of(JobState.CANCELLED, cores=0), final=True))
    assert watched.view.ended_ns == NOW and watched.view.elapsed_ns(NOW) == 0


@pytest.mark.parametrize("facts", [facts_of(cancel="enough"), facts_of(JobState.CANCELLING)], ids=["asked", "begun"])
def test_job_that_is_to_stop_is_shown_as_being_cancelled(watched: WatchedJob, order: JobOrder, facts: JobFacts) -> None:
    watched.apply(NOW, running())
    assert "being cancelled" not in text_of(watched, order, NOW)
    watched.apply(NOW, running(job=facts))
    assert "being cancelled" in text_of(watched, order, NOW)


def test_lost_parts_are_told_with_those_still_open(watched: WatchedJob, order: JobOrder) -> None:
    closed = LostPart("Browse", 0, "was killed", SECOND, 2 * SECOND, 2, 5)
    opened = LostPart("Browse", 1, "fell silent", SECOND, SECOND, 2, 0, is_open=True)
    watched.apply(NOW, running(lost=[closed, opened, LostPart("Other", 0, "is strange", 0, 0, 0, 0, is_open=True)]))
    assert [loss.shard.cause for loss in watched.view.losses] == ["was killed", "fell silent", "is strange"]
    text = text_of(watched, order, NOW)
    assert "was killed after 0:01, missing until 0:02, 5 arrivals missing" in text
    assert "fell silent after 0:01, not replaced yet" in text
    assert watched.view.workflows["Browse"].cores == 3  # a gap has no cores of its own
    replaced = msgspec.structs.replace(opened, to_ns=3 * SECOND, is_open=False)
    watched.apply(NOW, running(lost=[closed, replaced]))
    assert len(watched.view.losses) == 2 and "not replaced yet" not in text_of(watched, order, NOW)


def test_view_and_progress_line_show_what_the_cluster_counted(watched: WatchedJob, order: JobOrder) -> None:
    watched.apply(NOW, running(40))
    watched.apply(NOW + SECOND, running(70, 3 * SECOND))
    text = text_of(watched, order, NOW + SECOND)
    assert "3 cores" in text and "4 of 4 VUs" in text and "waits for Browse" in text and "failed < 1%" in text
    line = progress_line(watched.view, NOW + SECOND)
    assert "3s" in line and "active 4 VUs" in line and "70 requests" in line


def test_watcher_sees_what_the_local_runner_would_show(order: JobOrder) -> None:
    job = LoadJob(spec_of("job1", order, 1))
    core = next(effect.attempt for effect in job.start(NOW) if isinstance(effect, StartCore))
    job.on_message(NOW, core, Armed())
    at = job.origin_ns + 3 * SECOND
    windows = [Window(number, requests=2) for number in range(20)]
    job.on_message(at, core, Totals(1, tally_of(40), windows, 4, job.origin_ns))
    tallies = {name: run.tally() for name, run in job.workflows.items()}
    update = update_of(job, facts_of(), at, sequence=1, windows_after=-1, steps=tallies)
    watched = WatchedJob("job1", order)
    watched.apply(at, msgspec.msgpack.decode(msgspec.msgpack.encode(update), type=JobUpdate))
    here, there = view_of(job), watched.view
    assert (there.origin_ns, there.active_vus(), there.tally()) == (here.origin_ns, here.active_vus(), here.tally())
    assert progress_line(there, at) == progress_line(here, at) and "40 requests" in progress_line(here, at)
    assert there.timeline.spans() == here.timeline.spans()
