"""A load job as people and outputs see it while it runs.

The local runner fills it from its job, a client from the updates of a manager: whoever shows a job reads this alone,
and does not know where the job runs.
"""

from collections import Counter

import msgspec

from talka.control.load.load_job import Interruption, JobSpec, LoadJob
from talka.control.load.shard_run import LostShard
from talka.control.load.times import JobTimes, WorkflowTimes
from talka.stats.tally import Tally, fold_calls, merged
from talka.stats.windows import Timeline
from talka.wire.orders import WorkflowOrder
from talka.work.thresholds import Verdict


class Loss(msgspec.Struct, frozen=True):
    """A part of the plan that ran nowhere for a time."""

    shard: LostShard
    is_open: bool
    """Nothing has taken its place yet."""


class WorkflowView(WorkflowTimes):
    def __init__(self, spec: WorkflowOrder) -> None:
        super().__init__(spec)
        self.cores = 0
        self.late = ""
        """What more time it was given, and whether it has none left; empty while it is not late."""
        self.vus = 0
        """Virtual users that are active now."""
        self.counted_at_ns = 0
        """The instant for which the counts hold."""
        self.tallies: dict[int, Tally] = {}
        """What was counted, by the number of the attempt that counted it."""
        self.timeline = Timeline()

    def tally(self) -> Tally:
        """Merges every histogram."""
        whole = merged(list(self.tallies.values()))
        fold_calls(whole.calls)
        return whole


class JobView(JobTimes[WorkflowView]):
    """Instants are of the clock of whoever looks at it."""

    def __init__(self, spec: JobSpec) -> None:
        super().__init__()
        self.id = spec.job
        self.thresholds = spec.thresholds
        """Rules over the whole job; those of one workflow are in its `spec`."""
        self.workflows = {one.name: WorkflowView(one) for one in spec.workflows}
        self.timeline = Timeline(with_steps=False)
        self.cores = spec.cores
        self.losses: list[Loss] = []
        self.interrupted_by: Interruption | None = None
        self.aborted: Verdict | None = None

    def tally(self) -> Tally:
        """Merges every histogram."""
        return merged([run.tally() for run in self.workflows.values()])

    def active_vus(self) -> int:
        return sum(run.vus for run in self.workflows.values())


def refresh(view: JobView, job: LoadJob) -> None:
    """Bring the view to what is known now. It shares tallies and timelines with the job: nothing is copied that
    costs."""
    view.cores = job.cores
    view.origin_ns, view.ended_ns = job.origin_ns, job.ended_ns
    view.interrupted_by, view.aborted = job.interrupted_by, job.aborted
    view.timeline = job.timeline
    vus = Counter[str]()
    for run, _, attempt in job.attempts.values():
        vus[run.spec.name] += attempt.vus
    for name, run in job.workflows.items():
        shown = view.workflows[name]
        shown.state, shown.failure, shown.notes, shown.late = run.state, run.failure, run.notes, run.late_text
        shown.origin_ns, shown.stopped_ns, shown.ended_ns = run.origin_ns, run.stopped_ns, run.ended_ns
        shown.cores, shown.vus, shown.counted_at_ns = run.cores, vus[name], run.counted_at_ns
        shown.tallies = {attempt.number: attempt.tally for shard in run.shards for attempt in shard.attempts}
        shown.timeline = run.timeline
    still_open = {id(shard.gap) for run in job.workflows.values() for shard in run.shards if shard.gap}
    view.losses = [Loss(lost, id(lost) in still_open) for lost in job.lost]
