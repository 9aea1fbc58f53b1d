"""Jobs in words: what people are shown of one, whatever its kind. Nothing here asks anybody."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from talka.report.text import counted_text, cut, seconds_text, time_text
from talka.wire.task_views import DagFacts, NoticeView, TaskView
from talka.wire.views import JobFacts
from talka.work.dags.params import text_of
from talka.work.lifecycle import JobState, TaskState, is_final

NOTE_COLUMNS: Final = 60
TASKS_SHOWN: Final = 50


class JobSheet(msgspec.Struct, frozen=True):
    """What people are shown of a job: `talka jobs show` prints it, and a dashboard needs to know nothing else."""

    id: str
    kind: str
    name: str
    state: JobState
    rows: list[tuple[str, str]]
    """A word and what it is, in the order in which to show them. Empty ones are left out."""
    columns: list[str] = []
    """Headings of the table of its parts."""
    lines: list[list[str]] = []
    """The table, a text for each heading."""
    note: str = ""
    """A sentence about what the table leaves out."""


def load_sheet(facts: JobFacts) -> JobSheet:
    rows = [
        ("job", facts.id),
        ("name", facts.name),
        ("state", state_text(facts.state, facts.reason)),
        ("queue", queue_text(facts)),
        ("cancelled", facts.cancel),
        ("late", "; ".join(facts.late)),
        ("cores", str(facts.cores or "")),
        ("workers", ", ".join(facts.workers)),
        ("led by", facts.owner),
        ("submitted", instant(facts.submitted_at)),
        ("by", facts.submitted_by),
        ("ended", instant(facts.ended_at)),
        ("exit code", "" if facts.exit_code is None else str(facts.exit_code)),
    ]
    return JobSheet(facts.id, "load", facts.name, facts.state, filled(rows))


def dag_sheet(facts: DagFacts, tasks: Sequence[TaskView]) -> JobSheet:
    """`tasks` are its first."""
    rows = [
        ("job", facts.id),
        ("name", facts.name),
        ("state", state_text(facts.state, facts.reason)),
        ("params", one_line(", ".join(f"{name} = {text_of(value)}" for name, value in facts.params.items()))),
        ("tasks", f"{facts.tasks:,}{f': {counts_text(facts.counts)}' if facts.counts else ''}"),
        ("queue", "" if facts.position is None else position_text(facts.position)),
        ("submitted", instant(facts.submitted_at)),
        ("by", facts.submitted_by),
        ("started", instant(facts.started_at)),
        ("ended", instant(facts.ended_at)),
        ("exit code", "" if facts.exit_code is None else str(facts.exit_code)),
        *(("notified", notice_text(notice)) for notice in facts.notifications),
    ]
    lines = [
        [
            task.id,
            task.state,
            task.handler,
            str(task.attempts or ""),
            task.worker.partition("#")[0],
            took_text(task.started_at, task.ended_at),
            one_line(": ".join(part for part in (why_text(cause_of(task), task.error), elements_text(task)) if part)),
        ]
        for task in tasks
    ]
    note = ""
    if len(tasks) < facts.tasks:
        note = (
            f"these are the first {len(tasks)} of {facts.tasks:,} tasks: talka jobs result {facts.id} --json lists more"
        )
    columns = ["TASK", "STATE", "HANDLER", "TRIES", "WORKER", "TOOK", "NOTE"]
    return JobSheet(facts.id, facts.kind, facts.name, facts.state, filled(rows), columns, lines, note)


def notice_text(notice: NoticeView) -> str:
    tries = "1 try" if notice.tries == 1 else f"{notice.tries} tries"
    told = f"{notice.to} of {notice.on}"
    if notice.state == "sent":
        return f"{told}: sent {instant(notice.settled_at)}, {tries}"
    why = f": {' '.join(notice.error.split())}" if notice.error else ""
    if notice.state == "given_up":
        return f"{told}: given up {instant(notice.settled_at)} after {tries}{why}"
    return f"{told}: waiting, {tries} so far, next {instant(notice.next_at)}{why}"


def filled(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(word, text) for word, text in rows if text]


# Parts of it.


def state_text(state: JobState, reason: str) -> str:
    return f"{state}{f': {reason}' if reason else ''}"


def waiting_text(facts: JobFacts) -> str:
    """What a load job waits for before it begins."""
    match facts.state:
        case JobState.SUBMITTED | JobState.QUEUED:
            place = "" if facts.position is None else f", position {facts.position}"
            return f"queued{place}{f': {facts.waits_for}' if facts.waits_for else ''}"
        case JobState.DISPATCHING:
            where = f" of {counted_text(len(facts.workers), 'worker')}" if facts.workers else ""
            return f"starting on {counted_text(facts.cores, 'core')}{where}" if facts.cores else "starting"
        case _:
            return ""


def queue_text(facts: JobFacts) -> str:
    return waiting_text(facts).removeprefix("queued").removeprefix(", ").removeprefix(": ")


def position_text(position: int) -> str:
    return f"{counted_text(position, 'ready task')} of other jobs {'comes' if position == 1 else 'come'} first"


def counts_text(counts: Mapping[str, int]) -> str:
    """In the order of a task's life."""
    return ", ".join(f"{counts[state]:,} {state}" for state in TaskState if counts.get(state))


def elements_text(task: TaskView) -> str:
    """Of a task that is fanned out, how its elements stand."""
    count = sum(task.elements.values())
    return f"{counted_text(count, 'element')}: {counts_text(task.elements)}" if count else ""


def ended_count(counts: Mapping[str, int]) -> int:
    return sum(count for state, count in counts.items() if state in list(TaskState) and is_final(TaskState(state)))


def instant(text: str) -> str:
    """Of RFC 3339, to the second."""
    return f"{text[:19].replace('T', ' ')} UTC" if text else ""


def took_s(started_at: str, ended_at: str) -> float | None:
    """None where one of them has not come."""
    try:
        return (datetime.fromisoformat(ended_at) - datetime.fromisoformat(started_at)).total_seconds()
    except (ValueError, TypeError):
        return None


def took_text(started_at: str, ended_at: str) -> str:
    seconds = took_s(started_at, ended_at)
    if seconds is None or seconds < 0:  # below 0: the clock was set back meanwhile
        return ""
    if seconds == 0:
        return "< 1 ms"  # instants are kept in milliseconds
    return seconds_text(seconds) if seconds >= 1 else time_text(seconds * 1000)


def cause_of(task: TaskView) -> str:
    """Where its state does not say it."""
    return task.cause if task.cause != task.state else ""


def why_text(cause: str, error: str) -> str:
    """Why something ended, the word for it said once: an error mostly begins with it."""
    if not cause or error.startswith(cause):
        return error
    return f"{cause}: {error}" if error else cause


def without_cause(cause: str, error: str) -> str:
    """What an error says beside its cause, which stands in a column of its own."""
    if not cause or not error.startswith(cause):
        return error
    return error.removeprefix(cause).removeprefix(":").strip()


def one_line(text: str, room: int = NOTE_COLUMNS) -> str:
    return cut(" ".join(text.split()), room)
