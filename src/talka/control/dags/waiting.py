"""What a task of a dag job that is in no queue waits for, in a sentence."""

from collections.abc import Callable
from typing import Final

from talka.control.dags.ended import in_the_way
from talka.control.dags.job import job_of
from talka.control.tasks.delivery import worker_of
from talka.control.tasks.dispatch import Dispatcher
from talka.control.tasks.task import DagTask, Needs
from talka.wire.task_views import WhyView
from talka.work.deadlines import told
from talka.work.durations import tenths_text
from talka.work.lifecycle import JobState, TaskState, is_final

SHOWN: Final = 5
"""Of those it waits for."""


def why(task: DagTask, now: int, dispatcher: Dispatcher, silence_of: Callable[[int, str, int], str]) -> WhyView:
    """Why a task does not run, by the rules that decide whether it does."""
    if task.state is TaskState.READY:
        return WhyView(task.id, task.state, "it is ready to run", dispatcher.why(task, now))
    silence = silence_of(now, *worker_of(task.worker)[:2]) if task.worker else ""
    return WhyView(task.id, task.state, standing(task, now) + silence)


def why_not_yet(now: int, dispatcher: Dispatcher) -> Callable[[DagTask], str]:
    """Why no worker has taken a ready task. Of many that have waited too long few need something different."""
    known: dict[Needs | None, str] = {}

    def why_not(task: DagTask) -> str:
        if task.needs not in known:
            known[task.needs] = in_the_way(task.needs or Needs(task.handler), dispatcher.why(task, now))
        return known[task.needs]

    return why_not


def standing(task: DagTask, now: int) -> str:
    job = job_of(task)
    if is_final(task.state):
        return "it has ended just now, and that is being kept: ask again in a moment"
    if task.state is not TaskState.PENDING:
        kept = job.time_of(task)
        extensions = "" if kept is None else told(kept.record.extensions)
        over = "; it was warned that its time is over" if kept is not None and kept.record.is_warned else ""
        on = f" on {worker_of(task.worker)[0]}" if task.worker else ""
        return f"it is {task.state}{on}" + (f"; {extensions}" if extensions else "") + over
    if job.state is JobState.PAUSED:
        return f"its job is paused: {job.reason}" if job.reason else "its job is paused"
    if task.waits_for:
        elements = job.elements_of(task)
        every = elements or [job.tasks[before] for before in task.depends_on]
        open_ones = [one for one in every if not one.is_settled]
        first = ", ".join(f"{one.id} ({one.state})" for one in open_ones[:SHOWN])
        more = f" and {len(open_ones) - SHOWN} more" if len(open_ones) > SHOWN else ""
        of_all = f"{len(open_ones):,} of its {len(elements):,} elements: " if elements else ""
        return f"it waits for {of_all}{first}{more}"
    if job.asked(task):
        return "it is about to be fanned out"
    if task.ready_at > now:
        what = "to be tried again" if task.fence else "for its delay to be over"
        ended = f": attempt {task.attempts} ended with {task.error}" if task.fence and task.error else ""
        return f"it waits {what} in {tenths_text(task.ready_at - now)}{ended}"
    return "it is about to be ready"
