"""What one manager asks the leader for somebody: who it was, for the leader's own log.

Decision: docs/decisions/0028-one-table-of-roles.md.
"""

from talka.control.jobs.effects import Forwarded
from talka.wire.manager_calls import (
    CALLED_BY,
    CHANGES,
    CancelJob,
    DrainWorker,
    LeaderCall,
    ManagerCall,
    ResumeJob,
    SubmitJob,
    UndrainWorker,
)

TAKEN, REFUSED = 202, 403


def forwarded(through: str, call: ManagerCall, problem: str) -> list[Forwarded]:
    """A line for each change and each refusal; questions that were answered leave none."""
    asked = call.call
    if not problem and not isinstance(asked, CHANGES):
        return []
    status = REFUSED if problem else TAKEN
    return [Forwarded(through, CALLED_BY[type(asked)][0], call.asker, status, _subject(asked), problem)]


def _subject(asked: LeaderCall) -> str:
    match asked:
        case SubmitJob(order=order):
            return order.name
        case CancelJob(job=job) | ResumeJob(job=job):
            return job
        case DrainWorker(worker=worker) | UndrainWorker(worker=worker):
            return worker
        case _:
            return ""
