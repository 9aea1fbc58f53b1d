"""Workflows that are put aside when their time is over, until a person resumes the rest of them.

What they counted and left in `self.context` is kept. Their plans go on where they were stopped: time that passed
meanwhile is no time of theirs. Decision: docs/decisions/0058-more-time-is-asked-for.md.
"""

from collections.abc import Mapping
from typing import Final

from talka.control.load.core_effects import CoreEffect, WorkflowLate
from talka.control.load.shard_group import ShardGroup
from talka.units import HOUR
from talka.work.lifecycle import TaskState, move

PAUSE_LIMIT_NS: Final = 24 * HOUR
"""A workflow that nobody resumes ends after this, so that no job is kept for ever."""
NOBODY_RESUMED: Final = "it was put aside, and nobody resumed it within a day"


def stop_for_now(now: int, run: ShardGroup, why: str) -> list[CoreEffect]:
    """What is under way ends first."""
    run.put_aside_for = why
    return run.stop(now)


def is_to_wait(run: ShardGroup) -> bool:
    """Whether it is put aside, now that nothing of it runs: not where nothing is left of its plan."""
    length_ns = run.spec.plan.length_ns
    is_over = length_ns is not None and run.stopped_ns - run.origin_ns >= length_ns
    is_wanted = bool(run.put_aside_for) and not run.failure and not is_over
    return is_wanted and any(shard.rest for shard in run.shards if not shard.is_replaced)


def put_aside(now: int, run: ShardGroup) -> WorkflowLate:
    run.state, run.aside_ns = move(run.state, TaskState.PENDING), now
    run.behind_ns = run.stopped_ns - run.origin_ns
    return _noted(run, WorkflowLate(run.spec.name, "put aside", f"it is put aside: {run.put_aside_for}"))


def resume(run: ShardGroup) -> WorkflowLate:
    """It is ready to go on, with all of its time again."""
    run.state, run.put_aside_for = move(run.state, TaskState.READY), ""
    run.aside_ns = run.stopped_ns = run.reports = 0
    run.is_told_to_stop, run.deadline, run.warning = False, None, None
    return _noted(run, WorkflowLate(run.spec.name, "resumed", "it was resumed, and goes on with the rest of its plan"))


def _noted(run: ShardGroup, news: WorkflowLate) -> WorkflowLate:
    run.note(news.text)
    return news


def held_up(workflows: Mapping[str, ShardGroup]) -> set[str]:
    """Those that are put aside, and all that wait for them."""
    found: set[str] = set()
    for name, run in workflows.items():  # they come after those they depend on
        if run.aside_ns or (run.state is TaskState.PENDING and found.intersection(run.spec.depends_on)):
            found.add(name)
    return found
