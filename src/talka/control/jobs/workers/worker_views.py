"""A worker as people are shown it: every number and every decision is that by which the leader goes."""

from collections.abc import Iterable

from talka.cluster.effects import HANDLE
from talka.control.jobs.workers.worker_life import WorkerLife
from talka.units import MILLISECOND
from talka.wire.machines import MachineView
from talka.wire.views import LEVELS, QuietCoreView, WorkerDecision, WorkerView, instant_text


def views_of(lives: Iterable[WorkerLife], now: int, wall_offset_ns: int, name: str = "") -> list[WorkerView]:
    """Of all, or of the one of this name with its handlers and its machine."""
    if not name:
        return [_view_of(life, now, wall_offset_ns, is_whole=False) for life in lives]
    return [_view_of(life, now, wall_offset_ns, is_whole=True) for life in lives if life.name == name]


def _view_of(life: WorkerLife, now: int, wall_offset_ns: int, *, is_whole: bool) -> WorkerView:

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
        load_percent=facts.load_percent if facts else 0,
        registered_at=instant(life.registered_at) if facts else "",
        heard_at=instant(life.heard_at) if facts else "",
        handlers=list(facts.handlers) if facts and is_whole else [],
        machine=MachineView.of(life.machine) if life.machine and is_whole else None,
        zone=facts.zone if facts else "",
        datacenter=facts.datacenter if facts else "",
        region=facts.region if facts else "",
        level=LEVELS[facts.overload if facts else 0],
    )
