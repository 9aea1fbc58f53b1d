"""A job that runs elsewhere, as the updates of its manager tell it."""

from collections.abc import Iterable, Sequence
from typing import Final

from talka.control.jobs.job_checkpoint import spec_of
from talka.control.jobs.job_view import with_counts_of
from talka.control.load.shard_run import LostShard
from talka.report.job_view import JobView, Loss, WorkflowView
from talka.stats.tally import Tally
from talka.stats.windows import Timeline, Window
from talka.wire.orders import JobOrder
from talka.wire.views import JobFacts, JobUpdate, WorkflowUpdate
from talka.work.lifecycle import JobState, TaskState, is_final

ALL_CORES: Final = 0
"""Under which number a view has what all cores of the cluster have counted: updates do not tell them apart."""


class WatchedJob:
    """`view` is what the updates told so far."""

    def __init__(self, id: str, order: JobOrder) -> None:
        self.view = JobView(spec_of(id, order, order.cores))
        self.facts: JobFacts | None = None

    def apply(self, now: int, update: JobUpdate) -> None:
        """`now` is when the update came, by the clock of whoever looks at the job."""
        view = self.view
        self.facts = update.job
        if update.job.cores:  # none once it has ended, and then those that it had are of interest
            view.cores = update.job.cores
        if update.job.cancel or update.job.state is JobState.CANCELLING:
            view.interrupted_by = "cancel"
        if update.origin:
            view.origin_ns = began(now, update.elapsed_ns, view.origin_ns)
        for workflow in update.workflows:
            if workflow.name in view.workflows:
                apply_workflow(now, view.workflows[workflow.name], workflow)
        if update.workflows:
            view.losses = [
                Loss(
                    LostShard(
                        part.workflow,
                        part.shard,
                        part.cause,
                        part.from_ns,
                        part.to_ns,
                        part.vus_missing,
                        part.arrivals_missing,
                    ),
                    part.is_open,
                )
                for part in update.lost
            ]
        show(view.timeline, update.windows, update.recent)
        if (update.final or is_final(update.job.state)) and not view.ended_ns:
            view.ended_ns = view.origin_ns + update.elapsed_ns if update.origin else now


def apply_workflow(now: int, run: WorkflowView, update: WorkflowUpdate) -> None:
    run.state, run.failure, run.notes = update.state, update.failure, list(update.notes)
    run.late = update.late
    run.stopped_ns = (run.stopped_ns or now) if update.stopped else 0  # one that was put aside may go on
    if update.tally is not None:
        # While it is put aside its time stands still.
        known_ns = 0 if run.state is TaskState.PENDING else run.origin_ns
        run.origin_ns = began(now, update.elapsed_ns, known_ns)
        run.tallies[ALL_CORES] = with_rows_of(run.tallies.get(ALL_CORES, Tally()), update.tally)
        counted_ns = run.origin_ns + update.counted_ns
        run.counted_at_ns = min(now, counted_ns) if update.counted_ns else now
    if update.ended:
        run.ended_ns = run.ended_ns or (run.origin_ns + update.elapsed_ns if run.origin_ns else now)
    run.cores = update.cores or run.cores
    run.vus = 0 if update.ended else update.vus
    show(run.timeline, update.windows, update.recent)


def show(timeline: Timeline, windows: Iterable[Window], recent: Sequence[Window]) -> None:
    for window in windows:
        timeline.add(window)
    if recent:
        timeline.lay_over(recent)


def with_rows_of(before: Tally, tally: Tally) -> Tally:
    """Steps and whatever else takes long to merge are told now and then: until the next time they stay as they were."""
    if tally.steps or tally.actions or tally.metrics:
        return tally
    return with_counts_of(before, tally)


def began(now: int, elapsed_ns: int, known_ns: int) -> int:
    """When something began, by the local clock. Updates travel, so the earliest instant found is the nearest."""
    at_ns = now - elapsed_ns
    return min(known_ns, at_ns) if known_ns else at_ns
