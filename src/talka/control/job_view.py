"""How a job stands, as those who watch it are told."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from talka.control.load_job import ENDED, LoadJob, WorkflowRun
from talka.stats.tally import Tally
from talka.stats.windows import WINDOW_NS, Window
from talka.wire.jobs import VIEW_LIMIT_BYTES
from talka.wire.records import JobRecord
from talka.wire.views import JobFacts, JobUpdate, LogLine, LostPart, WorkflowUpdate, instant_text
from talka.work.lifecycle import is_final

SETTLE_WINDOWS: Final = 10
"""Windows of the last second may still grow: the reports of some workers come later than those of others."""
WINDOWS_LIMIT: Final = 2000
"""In one update; the rest follows."""

_encoder = msgspec.msgpack.Encoder()


def facts_of(record: JobRecord, position: int | None = None, waits_for: str = "") -> JobFacts:
    live = [grant for grant in record.grants if not grant.lost]
    ended = is_final(record.state)
    return JobFacts(
        id=record.job,
        name=record.order.name,
        state=record.state,
        reason=record.reason,
        submitted_at=instant_text(record.submitted_ms),
        ended_at=instant_text(record.ended_ms),
        owner=record.owner,
        position=position,
        waits_for=waits_for,
        cores=0 if ended else sum(grant.cores for grant in live),
        workers=list(dict.fromkeys(grant.worker for grant in live)),
        exit_code=record.exit_code if ended else None,
        submitted_by=record.order.submitted_by,
        cancel=record.cancel,
    )


def update_of(
    job: LoadJob,
    facts: JobFacts,
    now: int,
    *,
    sequence: int,
    windows_after: int,
    steps: Mapping[str, Tally] | None = None,
    logs: Sequence[LogLine] = (),
) -> JobUpdate:
    """`steps`: what each workflow has counted, where that is to be told in full."""
    gaps = {id(shard.gap) for run in job.workflows.values() for shard in run.shards if shard.gap is not None}
    return JobUpdate(
        job=facts,
        sequence=sequence,
        elapsed_ns=job.elapsed_ns(now),
        origin=bool(job.origin_ns),
        workflows=[_workflow(run, now, steps) for run in job.workflows.values()],
        windows=windows_of(job, now, windows_after),
        lost=[
            LostPart(
                lost.workflow,
                lost.shard,
                lost.cause,
                lost.from_ns,
                lost.to_ns,
                lost.vus_missing,
                lost.arrivals_missing,
                id(lost) in gaps,
            )
            for lost in job.lost
        ],
        engine=job.engine,
        logs=list(logs),
    )


def windows_of(job: LoadJob, now: int, after: int) -> list[Window]:
    """Windows that have settled, each told once; long ago they are merged, and told where their stretch begins."""
    settled = job.elapsed_ns(now) // WINDOW_NS - (0 if job.ended_ns else SETTLE_WINDOWS)
    found = []
    for span in job.timeline.spans():
        index = span.start_ns // WINDOW_NS
        if after < index < settled:
            found.append(msgspec.structs.replace(span.window, index=index))
    return found[:WINDOWS_LIMIT]


def fitting(update: JobUpdate) -> bytes:
    """The update as the content of a View. Without its steps where those of all workflows would hardly leave room for
    windows, and with as many windows as fit: the others follow."""
    content = _encoder.encode(update)
    if len(content) <= VIEW_LIMIT_BYTES:
        return content
    if len(_encoder.encode(update.workflows)) > VIEW_LIMIT_BYTES // 2:
        workflows = [
            msgspec.structs.replace(workflow, tally=_without_steps(workflow.tally)) for workflow in update.workflows
        ]
        update = msgspec.structs.replace(update, workflows=workflows)
    while len(content := _encoder.encode(update)) > VIEW_LIMIT_BYTES and update.windows:
        update = msgspec.structs.replace(update, windows=update.windows[: len(update.windows) // 2])
    return content


def _without_steps(tally: Tally | None) -> Tally | None:
    return None if tally is None else msgspec.structs.replace(tally, steps={}, actions={}, metrics={})


def _workflow(run: WorkflowRun, now: int, steps: Mapping[str, Tally] | None) -> WorkflowUpdate:
    tally = None
    if run.origin_ns:
        tally = run.counts()
        if steps is not None and run.spec.name in steps:
            # Counts are of now, like those told in between; what takes long to merge may be older.
            tally = msgspec.structs.replace(
                steps[run.spec.name],
                iterations=tally.iterations,
                started=tally.started,
                dropped=tally.dropped,
                exchanges=tally.exchanges,
            )
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
    )
