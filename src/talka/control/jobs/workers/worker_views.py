"""A worker as people are shown it: every number and every decision is that by which the leader goes."""

from talka.cluster.effects import HANDLE
from talka.control.jobs.workers.worker_life import WorkerLife
from talka.units import MILLISECOND
from talka.wire.views import LEVELS, QuietCoreView, WorkerDecision, WorkerView, instant_text


def view_of(life: WorkerLife, now: int, wall_offset_ns: int) -> WorkerView:
    def instant(at: int) -> str:
        return instant_text((at + wall_offset_ns) // MILLISECOND)

    facts = life.facts
    return WorkerView(
        name=life.name,
        state=life.state,
        reason=life.reason,
        cores=facts.cores if facts else 0,
        free=life.free if life.is_usable else 0,
        memory_bytes=facts.memory_bytes if facts else 0,
        gpus=facts.gpus if facts else 0,
        capabilities=list(facts.capabilities) if facts else [],
        version=facts.version if facts else "",
        jobs=list(life.reserved),
        lease_ms=0 if life.is_lost else max(0, life.until - now) // MILLISECOND,
        address="" if life.source.startswith(HANDLE) else life.source,
        decisions=[WorkerDecision(one.what, one.reason, instant(one.since)) for one in life.decisions],
        quiet_cores=[
            QuietCoreView(
                core.job,
                list(core.workflows),
                core.pid,
                core.state,
                instant(life.heard_at - core.quiet_ms * MILLISECOND),
                core.stack,
            )
            for core in life.quiet
        ],
        tasks=life.tasks.running,
        tasks_waiting=life.tasks.waiting,
        task_cores=life.busy_cores,
        load_cores=life.used,
        level=LEVELS[facts.overload if facts else 0],
    )
