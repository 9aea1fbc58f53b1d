"""How much time attempts of a dag job got that asked for more than their timeout, and which of them were warned.

Decision: docs/decisions/0059-more-time-for-tasks.md.
"""

from collections.abc import Iterable, Sequence

from talka.control.tasks.attempt_time import KeptTime, decided, decoded_time, encoded, terms_of
from talka.control.tasks.task import DagTask
from talka.units import MILLISECOND
from talka.wire.tasks import MoreTime, TaskResult, TimeAnswer
from talka.work.dags.records import Change, EventRow, PutEvent, PutTime, TimeRow
from talka.work.deadlines import told
from talka.work.durations import format_duration


class KeptTimes:
    """Of attempts under way. Tell it what they ask for, and when they are over."""

    def __init__(self, number: int) -> None:
        """Of the job with this number."""
        self._number = number
        self._of: dict[int, KeptTime] = {}
        """By fence."""

    def restore(self, rows: Iterable[TimeRow], tasks: Sequence[DagTask]) -> None:
        for row in rows:
            task = tasks[row.index]
            if task.worker and task.fence == row.fence:
                self._of[row.fence] = decoded_time(row.kept)

    def of(self, task: DagTask) -> KeptTime | None:
        """None: it asked for no more than it has."""
        return self._of.get(task.fence)

    def over(self, fence: int) -> None:
        self._of.pop(fence, None)

    def asked(self, at_ms: int, task: DagTask, asked: MoreTime, changes: list[Change]) -> TimeAnswer | None:
        """See `TaskOwner.more_time`."""
        kept, policy = self._of.get(task.fence), task.policy
        if policy is None or (kept is not None and asked.number < kept.number):
            return None
        if kept is None or asked.number > kept.number:
            known = kept
            kept = self._of[task.fence] = decided(known, asked, policy.attempt_ns, policy.on_timeout)
            if known is None or known.record != kept.record:  # else it is told once more that it gets none
                row = TimeRow(
                    job=self._number, index=task.index, attempt=task.attempts, fence=task.fence, kept=encoded(kept)
                )
                changes.append(PutTime(row))
            kind, text = "", ""
            if asked.is_warned:
                kind, text = "warned", warned_text(task, kept)
            elif kept.granted_ms:
                kind, text = "more-time", extended_text(task, kept)
            if kind:
                event = EventRow(job=self._number, at_ms=at_ms, kind=kind, index=task.index, text=text)
                changes.append(PutEvent(event))
        return kept.answer(task.fence)


def extended_text(task: DagTask, kept: KeptTime) -> str:
    """Of an attempt that was given more time."""
    reason = kept.record.extensions[-1].reason or "it advances"
    more = format_duration(kept.granted_ms * MILLISECOND)
    return f"attempt {task.attempts}: {more} more, and {kept.left} times again at most: {reason}"


def warned_text(task: DagTask, kept: KeptTime) -> str:
    """Of an attempt whose time is over."""
    assert task.policy is not None
    limit_ns, on_timeout = task.policy.attempt_ns, task.policy.on_timeout
    extensions, terms = told(kept.record.extensions), terms_of(limit_ns, on_timeout)
    over = f"its {format_duration(limit_ns)} are over" + (f", though {extensions}" if extensions else "")
    follows = f"it has {format_duration(terms.grace_ns)} to save what it has"
    if on_timeout == "notify":
        follows = f"it goes on for at most {format_duration(terms.after_warning_ns)}"
    elif on_timeout == "pause":
        follows += ", and then its job is paused"
    return f"attempt {task.attempts}: {over}; {follows}"


def put_aside_text(task: DagTask, result: TaskResult) -> str:
    """Why a job is paused."""
    error = result.error or "it was ended"
    return f"attempt {task.attempts} at task {task.id} took too long ({error}): resume the job to run the task again"
