"""How a job stands, as those who watch it are told."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from talka.control.load.load_job import ENDED, LoadJob
from talka.control.load.shard_group import ShardGroup
from talka.stats.tally import Tally
from talka.stats.windows import WINDOW_NS, Window
from talka.wire.channels import BadMessage
from talka.wire.entries import JobEntry, decode_checkpoint
from talka.wire.jobs import VIEW_LIMIT_BYTES
from talka.wire.views import JobFacts, JobUpdate, LogLine, LostPart, WorkflowUpdate, instant_text
from talka.work.deadlines import told
from talka.work.lifecycle import is_final

SETTLE_WINDOWS: Final = 10
"""Windows of the last second may still grow: the reports of some workers come later than those of others."""

_encoder = msgspec.msgpack.Encoder()


class UpdateLimits(msgspec.Struct, frozen=True):
    """What one update tells of windows; the rest follows."""

    windows: int = 2000
    """Windows of the job."""
    counters: int = 60_000
    """Counters of the histograms of all windows, those of steps included: about a third of a view."""


UPDATE_LIMITS: Final = UpdateLimits()


def facts_of(entry: JobEntry, position: int | None = None, waits_for: str = "", expected_start: str = "") -> JobFacts:
    live = [grant for grant in entry.grants if grant.cores and not grant.lost]
    ended = is_final(entry.state)
    return JobFacts(
        id=entry.job,
        name=entry.order.name,
        state=entry.state,
        reason=entry.reason,
        submitted_at=instant_text(entry.submitted_ms),
        ended_at=instant_text(entry.ended_ms),
        owner=entry.owner,
        position=position,
        waits_for=waits_for,
        cores=0 if ended else sum(grant.cores for grant in live),
        workers=list(dict.fromkeys(grant.worker for grant in live)),
        exit_code=entry.exit_code if ended else None,
        submitted_by=entry.order.submitted_by,
        cancel=entry.cancel,
        stopped=None if entry.stopped < 0 else entry.stopped,
        datacenter=entry.datacenter,
        expected_start=expected_start,
    )


def late_of(entry: JobEntry) -> list[str]:
    """Of each workflow that is late, what it was given and told, as the entry has it."""
    try:
        workflows = decode_checkpoint(entry.checkpoint).workflows if entry.checkpoint else ()
    except BadMessage:
        return []  # whoever takes the job over will say so
    records = [(workflow.name, workflow.deadline) for workflow in workflows]
    return [
        f"{name}: {told(record.extensions, is_warned=record.is_warned)}"
        for name, record in records
        if record is not None
    ]


def update_of(
    job: LoadJob,
    facts: JobFacts,
    now: int,
    *,
    sequence: int,
    windows_after: int,
    steps: Mapping[str, Tally] | None = None,
    by_step: bool = False,
    logs: Sequence[LogLine] = (),
    limits: UpdateLimits = UPDATE_LIMITS,
) -> JobUpdate:
    """`steps`: what each workflow has counted, where that is to be told in full; `by_step`: tell windows of steps."""
    told = _Windows(job, now, windows_after, limits, by_step=by_step)
    gaps = {id(shard.gap) for run in job.workflows.values() for shard in run.shards if shard.gap is not None}
    return JobUpdate(
        job=facts,
        sequence=sequence,
        elapsed_ns=job.elapsed_ns(now),
        origin=bool(job.origin_ns),
        workflows=[_workflow(run, now, steps, told) for run in job.workflows.values()],
        windows=told.windows,
        lost=[LostPart(**msgspec.structs.asdict(lost), is_open=id(lost) in gaps) for lost in job.lost],
        engine=job.engine,
        logs=list(logs),
        recent=told.recent,
    )


class _Windows:
    """Windows that have settled, each told once, and those that have not. Long ago they are merged, and told where
    their stretch begins.

    Who watches acknowledges windows of the job; those of workflows are told no further than that, and go with them.
    """

    def __init__(self, job: LoadJob, now: int, after: int, limits: UpdateLimits, *, by_step: bool) -> None:
        settled = job.elapsed_ns(now) // WINDOW_NS - (0 if job.ended_ns else SETTLE_WINDOWS)
        known = job.timeline.after(after)
        runs = job.workflows if by_step else {}
        by_workflow = {name: run.timeline.after(after) for name, run in runs.items()}
        waiting = [window for window in known if window.index < settled]
        end = _end_of(waiting, [window for windows in by_workflow.values() for window in windows], limits)
        self.windows = [window for window in waiting if window.index < end]
        self.of_steps = {name: _before(end, windows) for name, windows in by_workflow.items()}
        self.recent: list[Window] = []
        self.recent_of_steps: dict[str, list[Window]] = {}
        if len(self.windows) == len(waiting):  # else those in between are to come first
            self.recent = [window for window in known if window.index >= settled]
            self.recent_of_steps = {
                name: [window for window in windows if window.index >= settled] for name, windows in by_workflow.items()
            }


def _end_of(waiting: Sequence[Window], of_steps: Sequence[Window], limits: UpdateLimits) -> int:
    """Windows of one update are those before this index: after the last of the job's that are told, at least one."""
    if not waiting:
        return 0
    end = waiting[: limits.windows][-1].index + 1
    counters = 0
    for window in sorted([*waiting, *_before(end, of_steps)], key=lambda window: window.index):
        counters += window.counters
        if counters > limits.counters:
            told = [one.index for one in waiting if one.index < window.index] or [waiting[0].index]
            return min(end, told[-1] + 1)
    return end


def _before(end: int, windows: Iterable[Window]) -> list[Window]:
    return [window for window in windows if window.index < end]


def fitting(update: JobUpdate, limit_bytes: int = VIEW_LIMIT_BYTES) -> bytes:
    """The update as the content of a View. What steps have counted goes without windows where both do not fit: they
    follow in the next, which has no such counts. Otherwise there are as many windows as fit, and the others follow."""
    content = _encoder.encode(update)
    if len(content) > limit_bytes and any(map(_has_steps, update.workflows)):
        content = _encoder.encode(_with_windows(update, 0))
        if len(content) > limit_bytes:
            workflows = [
                msgspec.structs.replace(workflow, tally=_without_steps(workflow.tally)) for workflow in update.workflows
            ]
            update = msgspec.structs.replace(update, workflows=workflows)
            content = _encoder.encode(update)
    if len(content) > limit_bytes:
        update = _blurred(update)
        content = _encoder.encode(update)
    count = len(update.windows)
    while len(content) > limit_bytes and count > 1:
        count //= 2
        content = _encoder.encode(_with_windows(update, count))
    if len(content) > limit_bytes:
        content = _encoder.encode(_with_windows(update, 1, by_step=False))
    return content if len(content) <= limit_bytes else _encoder.encode(_with_windows(update, 0))


def _has_steps(update: WorkflowUpdate) -> bool:
    return update.tally is not None and bool(update.tally.steps or update.tally.actions or update.tally.metrics)


def _without_steps(tally: Tally | None) -> Tally | None:
    return None if tally is None else msgspec.structs.replace(tally, steps={}, actions={}, metrics={}, calls={})


def _with_windows(update: JobUpdate, count: int, *, by_step: bool = True) -> JobUpdate:
    """With so many of the job's windows and none that are recent."""
    windows = update.windows[:count]
    end = windows[-1].index + 1 if windows and by_step else 0
    workflows = [
        msgspec.structs.replace(workflow, windows=_before(end, workflow.windows), recent=[])
        for workflow in update.workflows
    ]
    return msgspec.structs.replace(update, windows=windows, workflows=workflows, recent=[])


def _blurred(update: JobUpdate) -> JobUpdate:
    workflows = [
        msgspec.structs.replace(
            workflow,
            windows=[window.blurred() for window in workflow.windows],
            recent=[window.blurred() for window in workflow.recent],
        )
        for workflow in update.workflows
    ]
    return msgspec.structs.replace(update, workflows=workflows)


def with_counts_of(rows: Tally, counts: Tally) -> Tally:
    """What takes long to merge may be older than the counts of now."""
    return msgspec.structs.replace(
        rows,
        iterations=counts.iterations,
        started=counts.started,
        dropped=counts.dropped,
        interrupted_iterations=counts.interrupted_iterations,
        exchanges=counts.exchanges,
    )


def _workflow(run: ShardGroup, now: int, steps: Mapping[str, Tally] | None, told: _Windows) -> WorkflowUpdate:
    tally = None
    if run.origin_ns:
        tally = run.counts()
        if steps is not None and run.spec.name in steps:
            tally = with_counts_of(steps[run.spec.name], tally)
    return WorkflowUpdate(
        name=run.spec.name,
        state=run.state,
        elapsed_ns=run.elapsed_ns(now),
        stopped=bool(run.stopped_ns),
        ended=run.state in ENDED,
        vus=sum(shard.current.vus for shard in run.shards if shard.attempts and not shard.is_done),
        cores=run.cores,
        tally=tally,
        failure=run.failure,
        notes=list(run.notes),
        windows=told.of_steps.get(run.spec.name, []),
        recent=told.recent_of_steps.get(run.spec.name, []),
        counted_ns=max(0, run.counted_at_ns - run.origin_ns) if run.origin_ns else 0,
        late=run.late_text,
    )
