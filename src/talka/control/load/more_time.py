"""Until when a workflow of a load job may run, and what it is given and told when it runs longer.

Its cores ask for more time with their reports, or by reporting at all: a core that reports turns its event loop.
Decision: docs/decisions/0058-more-time-is-asked-for.md.
"""

from typing import Final

from talka.control.load import pausing
from talka.control.load.core_effects import CoreEffect, LateNews, WorkflowLate
from talka.control.load.shard_group import ShardGroup
from talka.units import SECOND
from talka.wire.orders import WorkflowOrder
from talka.wire.shards import ShardAnswer, TimeAsked, TimeOver
from talka.work.deadlines import (
    EXTENSION_BASE_NS,
    GRACE_NS,
    Allowance,
    Deadline,
    DeadlineTerms,
    Evict,
    Granted,
    PutAside,
    Warned,
    more_time,
    told,
)
from talka.work.durations import format_duration
from talka.work.lifecycle import TaskState

NOT_HERE: Final = 'on_timeout = "pause" is for clusters: nobody could resume it here, so it was ended'


def terms_of(order: WorkflowOrder) -> DeadlineTerms:
    """Of what runs for seconds, extensions are shares of its timeout. Where no method hears the warning, nobody needs a
    grace."""
    return DeadlineTerms(
        base_ns=min(EXTENSION_BASE_NS, order.timeout_ns),
        grace_ns=GRACE_NS if order.saves else 0,
        on_timeout=order.on_timeout,
        last_ns=order.timeout_ns,
    )


def deadline_of(run: ShardGroup) -> Deadline:
    """Of a workflow that runs."""
    if run.deadline is None:
        terms = terms_of(run.spec)
        until = run.origin_ns + run.behind_ns + run.spec.timeout_ns  # who was resumed has all of its time again
        run.deadline = Deadline(until, terms, began_ns=run.origin_ns)
    return run.deadline


def on_asked(now: int, run: ShardGroup, attempt: int, asked: TimeAsked, news: list[WorkflowLate]) -> list[CoreEffect]:
    """`news` is added to."""
    if run.state is not TaskState.RUNNING:
        return []  # whoever took the job over has not taken up the workflow yet: it is asked again
    if run.stopped_ns:
        return run.answer(attempt, ShardAnswer(asked.number, Allowance(why_not="it starts nothing new any more")))
    deadline, name = deadline_of(run), f"{attempt}/{asked.number}"
    answer = deadline.ask(now, run.reports, asked.reason, estimate_ns=asked.estimate_ns, name=name)
    if isinstance(answer, Granted):
        given, reason = format_duration(answer.ns), asked.reason or "no reason told"
        news += _noted(run, "given", f"it asked for more time and was given {given} more: {reason}")
    return run.answer(attempt, ShardAnswer(asked.number, more_time(now, answer)))


def look(now: int, run: ShardGroup, news: list[WorkflowLate], *, can_wait: bool = False) -> list[CoreEffect]:
    """What a running workflow is told now, if its time is over. `news` is added to. `can_wait`: somebody could resume
    it."""
    if now - run.origin_ns - run.behind_ns <= run.spec.timeout_ns:
        return []
    deadline = deadline_of(run)
    effects: list[CoreEffect] = []
    if deadline.is_warned and not deadline.is_over:
        # Whoever led the job before may have decided it and told nobody.
        effects += _warn(run, deadline.until - now)
    while (turn := deadline.tick(now, run.reports)) is not None:
        match turn:
            case Granted(ns=ns):
                text = f"it was late and its cores worked, so it was given {format_duration(ns)} more"
                news += _noted(run, "given", text)
            case Warned(until=until):
                if until > now:
                    news += _noted(run, "warned", _warning(run, until - now))
                effects += _warn(run, until - now)
            case PutAside() if can_wait:
                effects += pausing.stop_for_now(now, run, _reason(run, deadline))
            case Evict() | PutAside():  # pragma: no branch - the type checker sees that no turn is left
                run.has_timed_out, run.failure = True, _reason(run, deadline)
                if run.spec.on_timeout == "pause":
                    run.failure += f"; {NOT_HERE}"
                effects += run.stop(now)
    return effects


def _reason(run: ShardGroup, deadline: Deadline) -> str:
    reason = f"it ran longer than its timeout of {run.spec.timeout_ns / SECOND:g} s"
    return f"{reason}: {told(deadline.extensions)}" if deadline.extensions else reason


def _warn(run: ShardGroup, left_ns: int) -> list[CoreEffect]:
    return run.warn(TimeOver(max(0, left_ns))) if run.spec.saves else []


def _warning(run: ShardGroup, left_ns: int) -> str:
    left = format_duration(left_ns)
    if run.spec.on_timeout == "notify":
        return f"its time is over: it goes on, for {left} at most"
    return f"its time is over: it was warned, and has {left} to save"


def _noted(run: ShardGroup, what: LateNews, text: str) -> list[WorkflowLate]:
    run.note(text)
    return [WorkflowLate(run.spec.name, what, text)]
