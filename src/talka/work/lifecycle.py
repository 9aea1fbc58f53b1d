"""The states of jobs and tasks, and the legal moves between them. `move` is the only way a state changes; what has
ended changes only by `begin_again`."""

from enum import StrEnum
from typing import Final, TypeVar

from talka.errors import Invalid


class JobState(StrEnum):
    SUBMITTED = "submitted"
    QUEUED = "queued"
    DISPATCHING = "dispatching"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETING = "completing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    PARTIAL = "partial"
    """Some results are usable, some are missing, and the record says which and why."""
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"


class TaskState(StrEnum):
    PENDING = "pending"
    """Waits for dependencies or for its time."""
    READY = "ready"
    ASSIGNED = "assigned"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    SKIPPED = "skipped"
    DEAD = "dead"
    """Given up after its last attempt and kept for people to look at."""


State = TypeVar("State", JobState, TaskState)

_JOB_ENDS: Final = frozenset(
    {JobState.COMPLETED, JobState.PARTIAL, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT}
)
_STOP: Final = frozenset({JobState.CANCELLING, JobState.FAILED})
"""Open to every job that has not ended."""

JOB_MOVES: Final[dict[JobState, frozenset[JobState]]] = {
    JobState.SUBMITTED: _STOP | {JobState.QUEUED, JobState.RUNNING},  # RUNNING: its tasks wait, not the whole job
    JobState.QUEUED: _STOP | {JobState.DISPATCHING},
    JobState.DISPATCHING: _STOP | {JobState.RUNNING},
    JobState.RUNNING: _STOP | {JobState.COMPLETING, JobState.PAUSED},
    JobState.PAUSED: _STOP | {JobState.RUNNING, JobState.COMPLETING},  # what runs goes on, and may be the last
    JobState.COMPLETING: _STOP | _JOB_ENDS,
    JobState.CANCELLING: _JOB_ENDS,  # not only CANCELLED: the work may have been done already
    **{end: frozenset() for end in _JOB_ENDS},
}

TASK_MOVES: Final[dict[TaskState, frozenset[TaskState]]] = {
    TaskState.PENDING: frozenset(
        {
            TaskState.READY,
            TaskState.COMPLETED,  # another with its key was, or all of its elements have ended
            TaskState.FAILED,  # there is no list to fan it out over
            TaskState.SKIPPED,
            TaskState.CANCELLED,
            TaskState.TIMEOUT,
        }
    ),
    TaskState.READY: frozenset(
        {
            TaskState.ASSIGNED,
            TaskState.PENDING,  # its job is paused, or it is to be run from the start
            TaskState.COMPLETED,  # another with its key was
            TaskState.FAILED,  # it fits nowhere
            TaskState.SKIPPED,
            TaskState.CANCELLED,
            TaskState.TIMEOUT,
        }
    ),
    TaskState.ASSIGNED: frozenset(
        {
            TaskState.RUNNING,
            TaskState.READY,  # refused, or its worker is lost
            TaskState.PENDING,  # the same, and it has to wait before another try
            TaskState.COMPLETED,  # nobody said that it runs before it was done
            TaskState.FAILED,  # it could not be started
            TaskState.CANCELLED,
            TaskState.TIMEOUT,
            TaskState.DEAD,
        }
    ),
    TaskState.RUNNING: frozenset(
        {
            TaskState.COMPLETED,
            TaskState.FAILED,
            TaskState.CANCELLED,
            TaskState.TIMEOUT,
            TaskState.DEAD,
            TaskState.READY,  # its worker is lost
            TaskState.ASSIGNED,  # its start was decided, and nobody was told: it is decided again
            TaskState.PENDING,  # it waits before another try
        }
    ),
    TaskState.COMPLETED: frozenset(),
    TaskState.FAILED: frozenset(),
    TaskState.CANCELLED: frozenset(),
    TaskState.TIMEOUT: frozenset(),
    TaskState.SKIPPED: frozenset(),
    TaskState.DEAD: frozenset(),
}


class IllegalMove(Invalid):
    """The state cannot follow the current one. Nothing was changed."""

    def __init__(self, current: JobState | TaskState, to: JobState | TaskState) -> None:
        thing = "job" if isinstance(current, JobState) else "task"
        choices = ", ".join(sorted(_moves_of(current)))
        rest = f"It can become {choices}." if choices else "It has ended."
        super().__init__(f"A {thing} that is {current} cannot become {to}. {rest}")
        self.current, self.to = current, to


def move(current: State, to: State) -> State:
    """`to`, if it may follow `current`. Staying is not a move."""
    if to not in (JOB_MOVES[current] if isinstance(current, JobState) else TASK_MOVES[current]):
        raise IllegalMove(current, to)
    return to


def begin_again(ended: State) -> State:
    """How something that has ended begins once more, because somebody asks for it."""
    to = JobState.RUNNING if isinstance(ended, JobState) else TaskState.PENDING
    if not is_final(ended):
        raise IllegalMove(ended, to)
    return to


def is_final(state: JobState | TaskState) -> bool:
    return not _moves_of(state)


def _moves_of(state: JobState | TaskState) -> frozenset[JobState] | frozenset[TaskState]:
    # Two tables, never one: `JobState.RUNNING` and `TaskState.RUNNING` are equal strings and would share a key.
    return JOB_MOVES[state] if isinstance(state, JobState) else TASK_MOVES[state]
