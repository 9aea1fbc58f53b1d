"""How a dag job ends of which nothing is left to be done, and attempts of one that is to end."""

from talka.control.dags.book import STOPPING, DagBook
from talka.control.dags.rows import failed_text, total_timeout_text
from talka.control.tasks.retries import RetryVerdict
from talka.control.tasks.task import DagTask
from talka.work.lifecycle import JobState, TaskState


def end_of(job: DagBook) -> tuple[JobState, str]:
    """The state, and why."""
    completed, total = job.count(TaskState.COMPLETED), job.size
    if completed == total:
        return JobState.COMPLETED, ""
    if job.state is JobState.CANCELLING:
        return JobState.CANCELLED, job.reason
    failed = job.first_failed
    if job.settings.on_failure == "fail_fast" and failed is not None:
        return JobState.FAILED, job.reason or failed_text(failed)
    if job.state is JobState.COMPLETING:
        return JobState.TIMEOUT, job.reason
    first = "" if failed is None else f" {failed_text(failed)}"
    text = f"{total - completed} of {total} tasks did not complete.{first}"
    return JobState.PARTIAL if completed else JobState.FAILED, text


def stopped(job: DagBook, task: DagTask) -> RetryVerdict | None:
    """Of an attempt that was told to stop, whichever way it ended; None: it was not."""
    if job.state in STOPPING:
        return RetryVerdict(TaskState.CANCELLED, "cancelled", job.reason)
    return RetryVerdict(TaskState.TIMEOUT, "timeout", total_timeout_text(task)) if task.recall else None
