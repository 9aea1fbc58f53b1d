"""Changes of dag jobs as statements of SQLite, those of one kind together."""

import struct
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from talka.errors import Invalid
from talka.store.dags.sqlite_file import INDEX_BITS, LAST_INDEX
from talka.wire.output_tail import STREAMS
from talka.work.dags.records import (
    JOB_STATES,
    TASK_STATES,
    Change,
    ClaimRange,
    ClaimTask,
    Complete,
    CompleteRange,
    DropElements,
    DropJob,
    DropSchedule,
    Extend,
    FanOut,
    JobRow,
    MoveJob,
    MoveNotice,
    PutAttempt,
    PutEvent,
    PutJob,
    PutLogs,
    PutNotice,
    PutSchedule,
    PutStreams,
    PutTasks,
    PutTime,
    Release,
    Reset,
)
from talka.work.lifecycle import JobState, is_final

TASK_NUMBERS: Final = {state: number for number, state in enumerate(TASK_STATES)}
JOB_NUMBERS: Final = {state: number for number, state in enumerate(JOB_STATES)}

STREAM_NUMBERS: Final[dict[str, int]] = {stream: number for number, stream in enumerate(STREAMS)}

Row: TypeAlias = tuple[object, ...]


class Gist(msgspec.Struct):
    """What is asked of a task's spec without its whole."""

    handler: str = ""
    priority: int = 5


class ChangeStep(NamedTuple):
    """One statement, for many rows."""

    query: str
    rows: list[Row]
    sizes: list[int] | None = None
    """Rows of each change; empty: it belongs to changes that are counted elsewhere; None: one each."""
    ranges: list[int] | None = None
    """How many rows of the store each row stands for, where that is not one."""


class ChangePlan(NamedTuple):
    steps: list[ChangeStep]
    order: list[int]
    """Which change each count of the steps is of."""


OF_RANGES: Final = ("drop_keys", "drop_logs", "drop_streams", "drop_times", "drop_attempts", "drop_fans", "drop_tasks")
SET_ASIDE: Final = "set_aside"
_gist: Final = msgspec.json.Decoder(Gist)


def plan(changes: Sequence[Change]) -> ChangePlan:
    """As few statements as give the same as all changes in their order.

    Those of one kind go together, past others of which none is about the same row.
    """
    if len(changes) == len({*map(type, changes)}):  # most small ones
        return ChangePlan(
            [step for change in changes for step in STEPS[type(change)]([change])], [*range(len(changes))]
        )
    kinds = [kind for kind, _ in groupby(changes, type)]
    if len(kinds) == len(dict.fromkeys(kinds)):
        steps = [step for kind, group in groupby(changes, type) for step in STEPS[kind](list(group))]
        return ChangePlan(steps, list(range(len(changes))))
    return _regrouped(changes)


def _regrouped(changes: Sequence[Change]) -> ChangePlan:
    made = ChangePlan([], [])
    groups: dict[type, list[int]] = {}
    kind_of: dict[int, type] = {}
    """Of a row: the only kind that may be about it within these groups. Jobs have numbers below 0."""
    for position, change in enumerate(changes):
        kind = type(change)
        if kind in OF_TASKS:  # nearly all
            row = change.job << INDEX_BITS | change.index  # type: ignore[union-attr]
            if kind_of.setdefault(row, kind) is not kind:
                _close(changes, groups, made)
                kind_of = {row: kind}
        else:
            rows = _rows_of(change)
            if kind in BARRIERS or any([kind_of.setdefault(row, kind) is not kind for row in rows]):
                _close(changes, groups, made)
                kind_of = dict.fromkeys(rows, kind)
        group = groups.get(kind)
        if group is None:
            groups[kind] = [position]
        else:
            group.append(position)
        if kind in BARRIERS:
            _close(changes, groups, made)
    _close(changes, groups, made)
    return made


def _rows_of(change: Change) -> list[int]:
    match change:
        case PutJob():
            return [-change.row.number]
        case MoveJob():
            return [-change.job]
        case PutTasks():
            return [row.job << INDEX_BITS | row.index for row in change.rows]
        case _:
            return []  # nothing but this kind is about such rows


def _close(changes: Sequence[Change], groups: dict[type, list[int]], made: ChangePlan) -> None:
    for kind, positions in groups.items():
        made.steps.extend(STEPS[kind]([changes[position] for position in positions]))
        made.order.extend(positions)
    groups.clear()


def as_they_are(query: str, changes: Sequence[msgspec.Struct]) -> list[ChangeStep]:
    """The statement has their fields in order, a task's key as `?1 << 32 | ?2`."""
    return [ChangeStep(query, [msgspec.structs.astuple(change) for change in changes])]


def put_jobs(changes: list[PutJob]) -> list[ChangeStep]:
    def row_of(row: JobRow) -> Row:
        number, id, name, state, *rest, counts, params, output_bytes, gone = msgspec.structs.astuple(row)
        return (number, id, name, JOB_NUMBERS[state], *rest, msgspec.json.encode(counts), params, output_bytes, gone)

    return [ChangeStep("put_job", [row_of(change.row) for change in changes])]


def put_tasks(changes: list[PutTasks]) -> list[ChangeStep]:
    rows: list[Row] = []
    for change in changes:
        for row in change.rows:
            gist = gist_of(row.spec)
            rows.append(
                (
                    row.job << INDEX_BITS | row.index,
                    TASK_NUMBERS[row.state],
                    row.attempts,
                    row.fence,
                    row.ready_ms,
                    row.started_ms,
                    row.ended_ms,
                    row.deaths,
                    row.failures,
                    gist.priority,
                    row.id,
                    gist.handler,
                    row.worker,
                    row.cause,
                    packed_indexes(row.depends_on),
                    row.blob,
                    row.error,
                    row.spec,
                    row.checkpoint,
                    row.output,
                    row.memory_bytes,
                )
            )
    return [ChangeStep("put_task", rows, [len(change.rows) for change in changes])]


def move_jobs(changes: list[MoveJob]) -> list[ChangeStep]:
    def row_of(change: MoveJob) -> Row:
        has_ended = is_final(change.state)
        counts = None if change.counts is None and has_ended else msgspec.json.encode(change.counts or {})
        return (
            JOB_NUMBERS[change.state],
            change.at_ms if change.state is JobState.RUNNING else 0,
            change.at_ms if has_ended else 0,
            change.reason,
            change.tasks,
            counts,
            change.job,
        )

    return [ChangeStep("move_job", [row_of(change) for change in changes])]


def completes(changes: list[Complete]) -> list[ChangeStep]:
    rows: list[Row] = [
        (
            TASK_NUMBERS[change.state],
            change.at_ms,
            change.output,
            change.blob,
            change.error,
            change.cause,
            change.started_ms,
            change.worker,
            change.attempts,
            change.memory_bytes,
            change.job << INDEX_BITS | change.index,
            change.fence,
        )
        for change in changes
    ]
    keys: list[Row] = [
        (change.key, change.job << INDEX_BITS | change.index, change.fence) for change in changes if change.key
    ]
    completed = ChangeStep("complete", rows)
    return [completed, ChangeStep("remember_key", keys, [])] if keys else [completed]


def claim_ranges(changes: list[ClaimRange]) -> list[ChangeStep]:
    rows: list[Row] = [
        (*_keys_of(change), change.attempt, change.fence, change.worker, change.at_ms) for change in changes
    ]
    return [ChangeStep("claim_range", rows, ranges=[change.count for change in changes])]


def complete_ranges(changes: list[CompleteRange]) -> list[ChangeStep]:
    rows: list[Row] = [
        (
            *_keys_of(change),
            change.fence,
            TASK_NUMBERS[change.state],
            change.at_ms,
            change.output,
            change.error,
            change.cause,
        )
        for change in changes
    ]
    return [ChangeStep("complete_range", rows, ranges=[change.count for change in changes])]


def _keys_of(change: ClaimRange | CompleteRange) -> tuple[int, int]:
    """The first and the last, none of another job."""
    job = change.job << INDEX_BITS
    return job | change.first, job | min(change.first + change.count - 1, LAST_INDEX)


def resets(changes: list[Reset]) -> list[ChangeStep]:
    rows: list[Row] = [(change.job << INDEX_BITS | change.index,) for change in changes]
    specs: list[Row] = []
    for change in changes:
        if change.spec:
            gist = gist_of(change.spec)
            specs.append((gist.handler, gist.priority, change.spec, change.job << INDEX_BITS | change.index))
    return [ChangeStep("keep_completed", rows, []), ChangeStep("reset", rows), ChangeStep("replace_spec", specs, [])]


def fan_outs(changes: list[FanOut]) -> list[ChangeStep]:
    rows: list[Row] = [(change.job, change.index, change.first, change.count) for change in changes]
    sizes: list[Row] = [(change.tasks, change.job) for change in changes]
    return [ChangeStep("put_fan", rows), ChangeStep("set_size", sizes, [])]


def drop_elements(changes: list[DropElements]) -> list[ChangeStep]:
    rows: list[Row] = [(change.job, change.index, change.first, change.count) for change in changes]
    ranges: list[Row] = [
        (change.job << INDEX_BITS | change.first, change.job << INDEX_BITS | change.first + change.count - 1)
        for change in changes
    ]
    sizes: list[Row] = [(change.tasks, change.job) for change in changes]
    return [
        ChangeStep("drop_fan", rows),
        ChangeStep("drop_output", ranges, []),
        *(ChangeStep(query, ranges, []) for query in OF_RANGES),
        ChangeStep("set_size", sizes, []),
    ]


def put_events(changes: list[PutEvent]) -> list[ChangeStep]:
    rows: list[Row] = [
        (row.job, row.index, row.at_ms, row.kind, row.text) for row in (change.row for change in changes)
    ]
    return [ChangeStep("put_event", rows)]


def put_logs(changes: list[PutLogs]) -> list[ChangeStep]:
    rows: list[Row] = [
        (row.job << INDEX_BITS | row.index, row.attempt, row.at_ms, row.text)
        for change in changes
        for row in change.rows
    ]
    return [ChangeStep("put_log", rows, [len(change.rows) for change in changes])]


def put_streams(changes: list[PutStreams]) -> list[ChangeStep]:
    rows: list[Row] = []
    sizes: dict[int, int] = {}
    for change in changes:
        for row in change.rows:
            key, stream = row.job << INDEX_BITS | row.index, STREAM_NUMBERS[row.stream]
            rows.append((key, row.attempt, row.fence, stream, row.written, row.content))
            sizes[row.job] = change.output_bytes
    noted: list[Row] = [(output_bytes, job) for job, output_bytes in sizes.items()]
    return [
        ChangeStep("put_stream", rows, [len(change.rows) for change in changes]),
        ChangeStep("note_output", noted, []),
    ]


def drop_jobs(changes: list[DropJob]) -> list[ChangeStep]:
    """What belongs to them goes with `SET_ASIDE`, as much of it as one transaction may hold up."""
    numbers: list[Row] = [(change.job,) for change in changes]
    return [
        ChangeStep("drop_notices", numbers, []),
        ChangeStep(SET_ASIDE, numbers, []),
        ChangeStep("drop_job", numbers),
    ]


STEPS: Final[dict[type, Callable[[list[Any]], list[ChangeStep]]]] = {
    PutJob: put_jobs,
    PutTasks: put_tasks,
    MoveJob: move_jobs,
    ClaimTask: partial(as_they_are, "claim"),
    Complete: completes,
    ClaimRange: claim_ranges,
    CompleteRange: complete_ranges,
    Release: partial(as_they_are, "release"),
    Extend: partial(as_they_are, "extend"),
    Reset: resets,
    FanOut: fan_outs,
    DropElements: drop_elements,
    PutAttempt: lambda changes: as_they_are("put_attempt", [change.row for change in changes]),
    PutEvent: put_events,
    PutLogs: put_logs,
    PutStreams: put_streams,
    PutTime: lambda changes: as_they_are("put_time", [change.row for change in changes]),
    PutSchedule: lambda changes: as_they_are("put_schedule", [change.row for change in changes]),
    DropSchedule: partial(as_they_are, "drop_schedule"),
    PutNotice: lambda changes: as_they_are("put_notice", [change.row for change in changes]),
    MoveNotice: partial(as_they_are, "move_notice"),
    DropJob: drop_jobs,
}


def packed_indexes(indexes: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(indexes)}I", *indexes) if indexes else b""


def gist_of(spec: bytes) -> Gist:
    try:
        return _gist.decode(spec)
    except msgspec.MsgspecError as error:
        raise Invalid(f"the spec of a task cannot be kept ({error}): it is no JSON of a task") from None


OF_TASKS: Final = frozenset({ClaimTask, Complete, Release, Extend, Reset})
BARRIERS: Final = frozenset({DropJob, DropElements, FanOut, PutSchedule, DropSchedule, ClaimRange, CompleteRange})
"""Nothing goes past these: they are rare, or stand for so many rows that each may have a statement of its own."""
