"""Jobs that are paused, as the cluster's leader keeps them: they have no cores, and a person lets them go on.

A job that is resumed waits for its cores in the queue, and is paused until it has them. It is run by them when the
entry says so, which whoever leads the job compares with what its checkpoint says.

Decision: docs/decisions/0058-more-time-is-asked-for.md.
"""

import msgspec

from talka.control.jobs.job_checkpoint import aside_of
from talka.control.jobs.queue import JobQueue
from talka.wire.entries import JobEntry
from talka.wire.jobs import StoreCheckpoint
from talka.work.lifecycle import JobState, is_final, move


def cannot_resume(entry: JobEntry) -> str:
    """Why not, in a sentence; empty: it is paused, or it was and runs again, as who asks asks again until it is
    answered."""
    aside, _ = aside_of(entry)
    if entry.state is JobState.PAUSED or (entry.resumes and not aside and not is_final(entry.state)):
        return ""
    text = f"job {entry.job} is {entry.state}: only a job that is paused can be resumed"
    if aside and not is_final(entry.state):
        text += f". {', '.join(aside)} is put aside, and the job is paused when nothing else of it runs"
    return text


def wait_for_cores(now: int, queue: JobQueue, entry: JobEntry) -> JobEntry:
    """In the place that it had at first. Raises QueueFull."""
    if entry.state is not JobState.PAUSED or entry.is_resumed:
        return entry
    queue.push(now, entry.job, entry.order.priority, entry.number)
    return msgspec.structs.replace(entry, is_resumed=True)


def with_its_cores(entry: JobEntry) -> JobEntry:
    """It goes on."""
    return msgspec.structs.replace(
        entry, state=move(entry.state, JobState.RUNNING), is_resumed=False, resumes=entry.resumes + 1, reason=""
    )


def state_told(entry: JobEntry, state: JobState, checkpoint: StoreCheckpoint) -> JobState:
    """What a checkpoint says of the state, where its owner does not know yet that the job was resumed."""
    if state is JobState.PAUSED and checkpoint.resumes < entry.resumes:
        return JobState.RUNNING
    return state
