"""Rows and tasks in memory as people are shown them."""

import contextlib
from collections.abc import Mapping, Sequence
from datetime import tzinfo
from typing import Final

import msgspec

from talka.control.dags.job import DagJob
from talka.control.tasks.attempt_time import decoded_time
from talka.control.tasks.schedules import Zones, zoned_text
from talka.errors import Invalid
from talka.units import SECOND
from talka.wire.task_views import (
    AttemptView,
    BackfillRun,
    BackfillView,
    DagFacts,
    DeadLetter,
    EventView,
    ExtensionView,
    JobNotice,
    LogLineView,
    NoticeView,
    ScheduleView,
    StreamText,
    StreamView,
    TaskView,
)
from talka.wire.views import instant_text
from talka.work.dags.cron import LAST_MS
from talka.work.dags.dag import TaskSpec
from talka.work.dags.elements import kept_element
from talka.work.dags.notify import target_of
from talka.work.dags.params import values_in
from talka.work.dags.records import (
    AttemptRow,
    EventRow,
    JobRow,
    LogRow,
    NoticeRow,
    ScheduleRow,
    StreamRow,
    TaskRow,
    TimeRow,
)
from talka.work.deadlines import DeadlineRecord
from talka.work.lifecycle import JobState, TaskState, is_final
from talka.work.outcome import ExitCode

NO_TIMES: Final[Mapping[int, TimeRow]] = {}
NULL: Final = msgspec.Raw(b"null")
_spec_decoder = msgspec.json.Decoder(TaskSpec)


def exit_code_of(state: JobState) -> int | None:
    if not is_final(state):
        return None
    if state is JobState.COMPLETED:
        return ExitCode.HELD
    return ExitCode.INCOMPLETE if state is JobState.PARTIAL else ExitCode.JOB_FAILED


def stopped_of(state: JobState, counts: Mapping[str, int]) -> int | None:
    """Of a job that was cancelled, how many tasks: those that were stopped, and those that are being stopped."""
    if state not in (JobState.CANCELLING, JobState.CANCELLED):
        return None
    return sum(count for name, count in counts.items() if name == "cancelled" or not is_final(TaskState(name)))


def facts_of(row: JobRow, counts: dict[str, int], datacenter: str = "") -> DagFacts:
    """Of a job as the store has it."""
    return DagFacts(
        id=row.id,
        name=row.name,
        state=row.state,
        reason=row.reason,
        submitted_at=instant_text(row.submitted_ms),
        started_at=instant_text(row.started_ms or row.submitted_ms),
        ended_at=instant_text(row.ended_ms),
        submitted_by=row.submitted_by,
        tasks=row.tasks,
        counts=counts,
        exit_code=exit_code_of(row.state),
        params=values_in(row.params),
        stopped=stopped_of(row.state, counts),
        datacenter=datacenter,
    )


def _live_state(job: DagJob) -> JobState:
    """Of a job in memory: its end is not shown before it is kept."""
    return JobState.COMPLETING if job.has_ended else job.state


def brief_facts(job: DagJob) -> DagFacts:
    """As `live_facts`, of no more than id, name and state: thousands a second are asked for."""
    return DagFacts(job.row.id, job.row.name, _live_state(job))


def live_facts(job: DagJob, position: int | None, datacenter: str = "") -> DagFacts:
    """Of a job in memory: it may be a moment ahead of the store, but its end is not shown before it is kept."""
    row, counts = job.row, job.counts()
    return DagFacts(
        id=row.id,
        name=row.name,
        state=_live_state(job),
        reason=job.reason,
        submitted_at=instant_text(row.submitted_ms),
        started_at=instant_text(row.submitted_ms),
        ended_at="",
        submitted_by=row.submitted_by,
        tasks=job.size,
        counts=counts,
        position=position,
        exit_code=None,
        params=values_in(row.params),
        to_fan_out=job.to_fan_out,
        stopped=stopped_of(job.state, counts),
        datacenter=datacenter,
    )


def spec_of(content: bytes) -> TaskSpec:
    return _spec_decoder.decode(content)


def handler_of(content: bytes) -> str:
    """As the store keeps a spec, also that of an element."""
    own = kept_element(content)
    return spec_of(content).handler if own is None else own.handler


def task_view(row: TaskRow, output: bytes) -> TaskView:
    own = kept_element(row.spec)
    if own is None:
        spec = spec_of(row.spec)
    else:  # the rest is its task's
        spec = TaskSpec(own.id, own.handler, priority=own.priority)
    return TaskView(
        id=row.id,
        state=row.state,
        handler=spec.handler,
        attempts=row.attempts,
        output=msgspec.Raw(output) if output else NULL,
        error=row.error,
        cause=row.cause,
        worker=_name_of(row.worker),
        depends_on=list(spec.depends_on),
        priority=spec.priority,
        ready_at=instant_text(row.ready_ms) if not row.ended_ms else "",
        started_at=instant_text(row.started_ms),
        ended_at=instant_text(row.ended_ms),
        progress=msgspec.Raw(row.checkpoint) if row.checkpoint else NULL,
        for_each=spec.for_each,
        element_of="" if own is None else own.id.rpartition("[")[0],
        item=NULL if own is None else own.item,
        memory_bytes=row.memory_bytes or msgspec.UNSET,
        failures=row.counted,
    )


def _name_of(worker: str) -> str:
    """Without which life of it."""
    return worker.rsplit("#", 2)[0]


def attempt_view(row: AttemptRow, streams: Sequence[StreamRow] = (), time: TimeRow | None = None) -> AttemptView:
    kept = DeadlineRecord(0) if time is None else decoded_time(time.kept).record
    return AttemptView(
        attempt=row.attempt,
        worker=_name_of(row.worker),
        started_at=instant_text(row.started_ms),
        ended_at=instant_text(row.ended_ms),
        cause=row.cause,
        error=row.error,
        exit_code=row.exit_code,
        signal=row.signal,
        memory_bytes=row.memory_bytes or msgspec.UNSET,
        outcome=row.outcome or row.cause,
        streams=[StreamView(one.stream, one.written, one.kept) for one in streams],
        extensions=[
            ExtensionView(one.at_ns / SECOND, one.ns / SECOND, one.reason, one.estimate_ns / SECOND)
            for one in kept.extensions
        ],
        denied=kept.denied,
        warned=kept.is_warned,
    )


def last_attempt(row: TaskRow) -> AttemptRow | None:
    """The attempt that is in the task's own row alone: it runs, or has completed the task."""
    is_under_way = row.state is TaskState.ASSIGNED
    if not row.fence or not (is_under_way or (row.state is TaskState.COMPLETED and row.attempts)):
        return None
    outcome = "running" if is_under_way else "completed"
    return AttemptRow(
        job=row.job,
        index=row.index,
        attempt=row.attempts,
        fence=row.fence,
        worker=row.worker,
        started_ms=row.started_ms,
        ended_ms=0 if is_under_way else row.ended_ms,
        cause="" if is_under_way else outcome,
        memory_bytes=row.memory_bytes,
        outcome=outcome,
    )


def stream_text(row: StreamRow) -> StreamText:
    content = row.content
    if row.kept < row.written:
        # It may begin within a character, of which at most three bytes are here.
        start = next((n for n, byte in enumerate(content[:3]) if byte & 0xC0 != 0x80), min(3, len(content)))
        content = content[start:]
    return StreamText(row.stream, row.written, row.kept, content.decode(errors="replace"))


def event_view(row: EventRow, task: str) -> EventView:
    return EventView(instant_text(row.at_ms), row.kind, task, row.text, row.number)


def line_view(row: LogRow) -> LogLineView:
    return LogLineView(instant_text(row.at_ms), row.attempt, row.text)


def dead_letter(
    job: str, row: TaskRow, attempts: list[AttemptRow], times: Mapping[int, TimeRow] = NO_TIMES
) -> DeadLetter:
    """`times`: by fence."""
    return DeadLetter(
        id=f"{job}/{row.id}",
        job=job,
        task=row.id,
        handler=handler_of(row.spec),
        cause=row.cause,
        error=row.error,
        ended_at=instant_text(row.ended_ms),
        attempts=[attempt_view(one, (), times.get(one.fence)) for one in attempts],
    )


def notice_view(row: NoticeRow) -> NoticeView:
    return NoticeView(
        row.id,
        target_of(row.url).place,
        row.state,
        msgspec.json.decode(row.body, type=JobNotice).state,
        row.tries,
        next_at=instant_text(row.next_ms) if row.state == "waiting" else "",
        settled_at="" if row.state == "waiting" else instant_text(row.next_ms),
        error=row.error,
    )


def schedule_view(row: ScheduleRow, zones: Zones) -> ScheduleView:
    zone = None
    with contextlib.suppress(Invalid):  # which this machine does not know any more: in UTC it can be told
        zone = zones(row.timezone)
    is_known = row.next_ms < LAST_MS
    return ScheduleView(
        row.name,
        row.cron,
        instant_text(row.next_ms) if is_known else "",
        row.ran_job or row.last_job,
        timezone=row.timezone,
        catch_up=row.catch_up,
        paused=row.is_paused,
        next_in_zone=zoned_text(row.next_ms, zone) if is_known else "",
        last_at=instant_text(row.ran_ms),
        last_in_zone=zoned_text(row.ran_ms, zone) if row.ran_ms else "",
    )


def backfill_view(
    row: ScheduleRow,
    instants: Sequence[int],
    known: Mapping[int, str],
    submitted: Mapping[int, str],
    zone: tzinfo | None,
) -> BackfillView:
    """`known` and `submitted`: the jobs of instants that were run before, and now."""
    runs = [
        BackfillRun(
            zoned_text(instant, zone),
            instant_text(instant),
            "known" if instant in known else "submitted" if instant in submitted else "due",
            known.get(instant) or submitted.get(instant, ""),
        )
        for instant in instants
    ]
    return BackfillView(row.name, runs, row.timezone)
