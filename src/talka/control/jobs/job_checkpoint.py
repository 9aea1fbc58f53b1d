"""What must be known to lead a job on, taken out of a load job and put into another one."""

import contextlib
from collections.abc import Iterator, Mapping

import msgspec

from talka.control.load.load_job import ENDED, JobSpec, LoadJob
from talka.control.load.more_time import terms_of
from talka.control.load.shard_group import ShardGroup
from talka.control.load.shard_run import LostShard, ShardAttempt, ShardRun
from talka.units import MILLISECOND
from talka.wire.channels import BadMessage
from talka.wire.entries import AttemptEntry, JobCheckpoint, JobEntry, ShardEntry, WorkflowEntry, decode_checkpoint
from talka.wire.jobs import AttemptResult
from talka.wire.orders import JobOrder
from talka.wire.shards import BundleSource, Source, UrlSource
from talka.work.deadlines import Deadline, DeadlineRecord
from talka.work.lifecycle import TaskState
from talka.work.load import PlanSlice


def spec_of(job: str, order: JobOrder, cores: int) -> JobSpec:
    """The job as the planner sees it. Workers put the bundle's real place in."""
    bundle = order.bundle
    source: Source = (
        UrlSource(bundle.url, bundle.request) if bundle.url else BundleSource("", bundle.digest, bundle.file, "")
    )
    return JobSpec(
        job=job,
        source=source,
        workflows=order.workflows,
        cores=cores,
        settings=order.settings,
        thresholds=order.thresholds,
    )


def checkpoint_of(job: LoadJob, closed: Mapping[int, str], wall_offset_ns: int) -> JobCheckpoint:
    """`closed`: digests of the results that were accepted, by attempt."""
    numbers = {id(lost): number for number, lost in enumerate(job.own_lost)}
    return JobCheckpoint(
        attempts=job.cores_started,
        workflows=tuple(_workflow_entry(job, run, closed, numbers) for run in job.workflows.values()),
        origin_ms=(job.origin_ns + wall_offset_ns) // MILLISECOND if job.origin_ns else 0,
        lost=tuple((lost.workflow, lost.gap()) for lost in job.own_lost),
        interrupted=job.interrupted_by is not None,
        aborted=job.aborted,
        engine=job.engine,
        resumes=job.resumes,
    )


def _workflow_entry(
    job: LoadJob, run: ShardGroup, closed: Mapping[int, str], numbers: Mapping[int, int]
) -> WorkflowEntry:
    def since_origin(at_ns: int) -> int:
        # What ended between the order to go and the instant itself ended with the instant.
        return max(0, at_ns - job.origin_ns) if at_ns and job.origin_ns else -1

    return WorkflowEntry(
        name=run.spec.name,
        state=run.state,
        shards=tuple(_shard_entry(shard, closed, numbers) for shard in run.shards),
        origin_ns=since_origin(run.origin_ns),
        ended_ns=since_origin(run.ended_ns),
        stopped_ns=since_origin(run.stopped_ns),
        has_timed_out=run.has_timed_out,
        failure=run.failure,
        refused=run.refused,
        notes=tuple(run.notes),
        shares_with=tuple(run.shares_with),
        deadline=_deadline_record(run.deadline),
        put_aside_for=run.put_aside_for,
        aside_ns=since_origin(run.aside_ns),
        behind_ns=run.behind_ns,
    )


def _deadline_record(deadline: Deadline | None) -> DeadlineRecord | None:
    """None where it stands as it would if it were made anew. Why more time was denied last is not worth a write."""
    if deadline is None or not (deadline.extensions or deadline.is_warned):
        return None
    return msgspec.structs.replace(deadline.record(), denied="")


def _shard_entry(shard: ShardRun, closed: Mapping[int, str], numbers: Mapping[int, int]) -> ShardEntry:
    part = shard.shard
    assert isinstance(part, PlanSlice)  # on a cluster every shard is one
    return ShardEntry(
        part.first,
        part.count,
        part.of,
        tuple(
            AttemptEntry(
                attempt.number,
                attempt.place,
                bytes.fromhex(closed.get(attempt.number, "")),
                attempt.seats,
                attempt.life,
            )
            for attempt in shard.attempts
        ),
        shard.done_before,
        shard.tries_before,
        shard.is_done,
        shard.is_replaced,
        -1 if shard.gap is None else numbers[id(shard.gap)],
        shard.ended,
        shard.aside,
    )


def open_workflows(entry: JobEntry) -> int:
    """How many of its workflows have not ended, as far as is on disk."""
    ended = 0
    if entry.checkpoint:
        with contextlib.suppress(BadMessage):  # whoever leads the job tells of that
            ended = sum(workflow.state in ENDED for workflow in decode_checkpoint(entry.checkpoint).workflows)
    return len(entry.order.workflows) - ended


def aside_of(entry: JobEntry) -> tuple[list[str], int]:
    """Its workflows that are put aside, as far as its owner has told, and how many cores those need that go on."""
    names: list[str] = []
    most = 0
    seats: dict[tuple[str, int], None] = {}
    with contextlib.suppress(BadMessage):
        checkpoint = decode_checkpoint(entry.checkpoint) if entry.checkpoint else JobCheckpoint(0, ())
        is_current = checkpoint.resumes >= entry.resumes  # else they have gone on since
        for one in checkpoint.workflows if is_current else ():
            if one.put_aside_for and one.state is TaskState.PENDING:
                names.append(one.name)
                shards = [shard for shard in one.shards if not shard.is_replaced]
                most = max(most, sum(shard.count for shard in shards))
                last = [attempt for shard in shards for attempt in shard.attempts[-1:]]
                seats |= {(attempt.place, seat): None for attempt in last for seat in attempt.seats}
    return names, max(most, len(seats))


def closed_of(checkpoint: JobCheckpoint) -> dict[int, str]:
    """Attempts whose results were accepted, with their digests."""
    return {attempt.number: attempt.digest.hex() for attempt in _attempts(checkpoint) if attempt.digest}


def lives_of(checkpoint: JobCheckpoint) -> dict[int, int]:
    """Who drew the number of each attempt."""
    return {attempt.number: attempt.life for attempt in _attempts(checkpoint)}


def _attempts(checkpoint: JobCheckpoint) -> Iterator[AttemptEntry]:
    return (attempt for workflow in checkpoint.workflows for shard in workflow.shards for attempt in shard.attempts)


def resume(
    spec: JobSpec,
    checkpoint: JobCheckpoint,
    results: Mapping[int, AttemptResult],
    *,
    now: int,
    origin_ns: int,
    start_delay_ns: int,
) -> LoadJob:
    """The job as another manager left it. `origin_ns` is when its load began, by this manager's clock; 0: not yet."""
    job = LoadJob(spec, start_delay_ns=start_delay_ns)
    job.origin_ns = origin_ns
    job.taken_up_ns = now
    job.cores_started = checkpoint.attempts
    job.engine = checkpoint.engine
    job.resumes = checkpoint.resumes
    job.interrupted_by = "cancel" if checkpoint.interrupted else None
    job.aborted = checkpoint.aborted
    job.own_lost = [LostShard(workflow, *msgspec.structs.astuple(gap)) for workflow, gap in checkpoint.lost]
    for entry in checkpoint.workflows:
        run = job.workflows[entry.name]
        run.state = entry.state
        run.origin_ns = origin_ns + entry.origin_ns if entry.origin_ns >= 0 else 0
        run.ended_ns = origin_ns + entry.ended_ns if entry.ended_ns >= 0 else 0
        run.stopped_ns = origin_ns + entry.stopped_ns if entry.stopped_ns >= 0 else 0
        run.has_timed_out, run.failure, run.refused = entry.has_timed_out, entry.failure, entry.refused
        run.notes = list(entry.notes)
        run.put_aside_for, run.behind_ns = entry.put_aside_for, entry.behind_ns
        run.aside_ns = origin_ns + entry.aside_ns if entry.aside_ns >= 0 else 0
        if entry.deadline is not None:
            run.deadline = Deadline.restored(entry.deadline, run.origin_ns, terms_of(run.spec))
            run.reports = round(entry.deadline.done)  # of its reports so far: what comes now is an advance
        run.shares_with = dict.fromkeys(entry.shares_with)
        # What the manager before told to stop, this one counts as told before it tells it again.
        is_to_stop = job.is_stopping or run.has_timed_out or bool(entry.put_aside_for)
        run.is_told_to_stop = run.state is TaskState.RUNNING and is_to_stop
        if entry.state in ENDED and not run.ended_ns:
            run.ended_ns = now
        run.shards = [_restored(job, run, shard, results, now) for shard in entry.shards]
        if entry.state in ENDED or run.behind_ns:
            run.collect_provided()
    return job


def _restored(
    job: LoadJob, run: ShardGroup, entry: ShardEntry, results: Mapping[int, AttemptResult], now: int
) -> ShardRun:
    part = PlanSlice(run.spec.plan, entry.first, entry.count, entry.of)
    shard = ShardRun(part, entry.done_before, entry.tries_before)
    shard.is_done, shard.is_replaced, shard.aside = entry.is_done, entry.is_replaced, entry.aside
    shard.gap = job.own_lost[entry.gap] if entry.gap >= 0 else None
    shard.missing = sum(
        lost.arrivals_missing
        for lost in job.own_lost
        if lost is not shard.gap and (lost.workflow, lost.shard) == (run.spec.name, part.index)
    )
    for known in entry.attempts:
        attempt = ShardAttempt(known.number, now, known.place, known.seats or tuple(range(entry.count)))
        attempt.life = known.life
        shard.attempts.append(attempt)
        result = results.get(known.number)
        if result is None or (known is entry.attempts[-1] and not entry.is_done):
            continue  # it runs, or what its end means for the job has yet to be worked out
        attempt.armed = True
        attempt.go_at_ns = run.origin_ns
        for window in attempt.on_result(now, result, job.origin_ns):
            run.timeline.add(window)
            job.timeline.add(window)
        shard.provided = result.provided or shard.provided
    for attempt in shard.attempts[-1:]:
        attempt.ended = entry.ended
    return shard
