"""What is left undone first, and what never: every operation of the API and every message between nodes that a manager
takes is in one class, and classes are shed in their order.

Decision: docs/decisions/0060-what-is-left-undone-under-load.md.
"""

from enum import StrEnum
from typing import Final, NamedTuple

from talka.control.clients.overload import Level
from talka.wire import asking, greeting, jobs, leadership, leases, manager_calls, membership, tasks


class RequestClass(StrEnum):
    """In the order in which they are shed."""

    STATISTICS = "statistics"
    LISTS = "lists"
    READS = "reads"
    SUBMISSIONS = "submissions"
    CHANGES = "changes"
    RESULTS = "results"
    VITAL = "vital"


class ClassRule(NamedTuple):
    shed_from: Level | None
    """From which level on clients are refused it. None: never."""
    operations: tuple[str, ...]
    """Of the API, and those that operators ask a manager's node for."""
    messages: tuple[type, ...] = ()
    """That nodes tell a manager."""


CLASSES: Final[dict[RequestClass, ClassRule]] = {
    # What is told of running work: it is told again, as counts are cumulative, and the result has all of it.
    RequestClass.STATISTICS: ClassRule(Level.STRESSED, ("watch",), (jobs.Report, jobs.LogLines, tasks.TaskProgress)),
    # Many things at once, and what people look into when something is odd.
    RequestClass.LISTS: ClassRule(
        Level.STRESSED,
        ("jobs", "workers", "cluster", "dead_letters", "schedules", "queues", "audit", "openapi", "who_could_run"),
    ),
    # One thing.
    RequestClass.READS: ClassRule(
        Level.OVERLOADED,
        (
            *("job", "view", "order", "tasks", "task", "why", "logs", "attempts", "output", "events", "graph"),
            *("retry_plan", "has_bundle", "worker", "lease"),
        ),
    ),
    # New work.
    RequestClass.SUBMISSIONS: ClassRule(
        Level.OVERLOADED,
        ("submit", "submit_dag", "execute", "bulk", "submit_frames", "put_bundle", "run_schedule", "backfill"),
    ),
    # What makes work of what there is.
    RequestClass.CHANGES: ClassRule(Level.OVERLOADED, ("retry", "skip", "replay", "put_schedule", "resume_schedule")),
    # What ends work or holds it back, and what work that ended has come to: it makes the load smaller.
    RequestClass.RESULTS: ClassRule(
        None,
        ("cancel", "result", "pause", "resume", "drain", "undrain", "drop_schedule", "pause_schedule"),
        (
            *(jobs.Finished, jobs.WantBlob, jobs.Piece, jobs.KeepBlob, jobs.Kept, jobs.TaskDeclined, jobs.NoTask),
            *(tasks.Done, tasks.Held, jobs.WatchJob, jobs.ViewUpdate, manager_calls.ManagerCall),
            manager_calls.CallAnswer,
        ),
    ),
    # Who is there, who leads, and who may act.
    RequestClass.VITAL: ClassRule(
        None,
        ("livez", "readyz", "metrics"),
        (
            *(jobs.Beat, jobs.Goodbye, jobs.WorkerSnapshot, jobs.Stale, jobs.Synced, jobs.Lead, jobs.StoreCheckpoint),
            *(jobs.CheckpointStored, jobs.Leaderless),
            *(*membership.CHANNEL.kinds, *leadership.CHANNEL.kinds, *leases.CHANNEL.kinds),
            *(*greeting.CHANNEL.kinds, *asking.CHANNEL.kinds),
        ),
    ),
}
"""What a ManagerCall asks for is in the class of the operation by which it was asked. Whoever watches a job is told its
end by what is told of it: under load that is told less often (`Audience`)."""

CLASS_OF: Final[dict[str, RequestClass]] = {
    operation: name for name, rule in CLASSES.items() for operation in rule.operations
}
CLASS_OF_MESSAGE: Final[dict[type, RequestClass]] = {
    message: name for name, rule in CLASSES.items() for message in rule.messages
}
SHED_OF_ALL: Final = frozenset({RequestClass.STATISTICS})
"""Those that are also refused to whoever is not counted: what is told to watchers costs time again and again. Who asks
one thing after the other asks no more than is answered."""
