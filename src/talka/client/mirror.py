"""A job that runs elsewhere, as a load job here: what shows a local job then shows a remote one as well."""

from collections.abc import Iterable, Sequence
from typing import Final

from talka.client.requests import JobFacts, JobOrder, JobUpdate, LostPart, WorkflowUpdate
from talka.control.jobs.job_checkpoint import spec_of
from talka.control.jobs.job_view import with_counts_of
from talka.control.load.load_job import LoadJob, WorkflowRun
from talka.control.load.shard_run import LostShard, ShardAttempt, ShardRun
from talka.stats.tally import Tally
from talka.stats.windows import Timeline, Window
from talka.work.lifecycle import JobState, is_final
from talka.work.load import PlanSlice, Shard

EVERYWHERE: Final = "the cluster"
"""The one place at which a mirrored job has its cores."""


class Mirror:
    """`job` is what the updates told so far. It is looked at, never driven: everything is decided elsewhere.

    Of each workflow it has one shard with one attempt, which holds what all cores have counted.
    """

    def __init__(self, id: str, order: JobOrder) -> None:
        self.job = LoadJob(spec_of(id, order, order.cores))
        self.facts: JobFacts | None = None
        self._attempts = {
            name: (ShardRun(Shard(run.spec.plan, 0, 1)), ShardAttempt(number, 0, EVERYWHERE, ()))
            for number, (name, run) in enumerate(self.job.workflows.items())
        }

    def apply(self, now: int, update: JobUpdate) -> None:
        """`now` is when the update came, by the clock of whoever looks at the job."""
        job = self.job
        self.facts = update.job
        if update.job.cores:  # none once it has ended, and then those that it had are of interest
            job.places = {EVERYWHERE: update.job.cores}
        job.engine = update.engine or job.engine
        if update.job.cancel or update.job.state is JobState.CANCELLING:
            job.interrupted_by = "cancel"
        if update.origin:
            job.origin_ns = began(now, update.elapsed_ns, job.origin_ns)
        for workflow in update.workflows:
            if workflow.name in job.workflows:
                self._apply_workflow(now, job.workflows[workflow.name], workflow)
        if update.workflows:
            self._apply_lost(update.lost)
        show(job.timeline, update.windows, update.recent)
        if (update.final or is_final(update.job.state)) and not job.ended_ns:
            job.ended_ns = job.origin_ns + update.elapsed_ns if update.origin else now

    def _apply_workflow(self, now: int, run: WorkflowRun, update: WorkflowUpdate) -> None:
        run.state, run.failure, run.notes = update.state, update.failure, list(update.notes)
        if update.tally is not None:
            run.origin_ns = began(now, update.elapsed_ns, run.origin_ns)
        if update.stopped:
            run.stopped_ns = run.stopped_ns or now
        if update.ended:
            run.ended_ns = run.ended_ns or (run.origin_ns + update.elapsed_ns if run.origin_ns else now)
        shard, attempt = self._attempts[run.spec.name]
        if update.cores:
            if not shard.attempts:
                shard.attempts.append(attempt)
                self.job.adopt(run, shard, attempt)
            shard.shard = PlanSlice(run.spec.plan, 0, update.cores, update.cores)
            run.shards = [shard]
        shard.is_done = update.ended
        attempt.armed, attempt.go_at_ns = update.tally is not None, run.origin_ns
        attempt.vus = update.vus
        if update.tally is not None:
            attempt.tally = with_rows_of(attempt.tally, update.tally)
            attempt.reported_ns = min(now, run.origin_ns + update.counted_ns) if update.counted_ns else now
        show(run.timeline, update.windows, update.recent)

    def _apply_lost(self, parts: Iterable[LostPart]) -> None:
        job = self.job
        job.own_lost = []
        for run in job.workflows.values():
            run.shards = [shard for shard in run.shards if not shard.is_replaced]
        for part in parts:
            lost = LostShard(
                part.workflow,
                part.shard,
                part.cause,
                part.from_ns,
                part.to_ns,
                part.vus_missing,
                part.arrivals_missing,
            )
            job.own_lost.append(lost)
            if part.is_open and part.workflow in job.workflows:
                job.workflows[part.workflow].shards.append(gap_of(job.workflows[part.workflow], lost))


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


def gap_of(run: WorkflowRun, lost: LostShard) -> ShardRun:
    """A shard that stands for nothing but its gap: it has no attempts, and none of the workflow's cores."""
    shard = ShardRun(Shard(run.spec.plan, 0, 1))
    shard.is_done = shard.is_replaced = True
    shard.gap = lost
    return shard


def began(now: int, elapsed_ns: int, known_ns: int) -> int:
    """When something began, by the local clock. Updates travel, so the earliest instant found is the nearest."""
    at_ns = now - elapsed_ns
    return min(known_ns, at_ns) if known_ns else at_ns
