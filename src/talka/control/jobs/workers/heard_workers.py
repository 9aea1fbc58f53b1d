"""The workers whose beats a manager hears, for the view of members: each beats to all managers, whoever leads."""

from collections import OrderedDict
from typing import Final

import msgspec

from talka.cluster.effects import HANDLE
from talka.control.jobs.workers.fleet import REAP_NS, WORKERS_LIMIT, Fleet
from talka.control.jobs.workers.health import SILENT_NS
from talka.control.jobs.workers.worker_life import said_readiness
from talka.control.member.admin_queries import MemberFacts
from talka.control.member.three_signals import HealthSignals, Liveness, decide
from talka.wire.condition import measured
from talka.wire.jobs import Beat
from talka.work.durations import tenths_text

ROLE: Final = "worker"


class HeardWorker(msgspec.Struct, frozen=True):
    boot: int
    source: str
    heard_at: int
    beat: Beat


class HeardWorkers:
    def __init__(self, limit: int = WORKERS_LIMIT) -> None:
        self._limit = limit
        self._heard: OrderedDict[str, HeardWorker] = OrderedDict()
        """The one heard last is the last."""

    def beat(self, now: int, name: str, boot: int, source: str, beat: Beat) -> None:
        """Of two workers of one name, only the leader knows whose it is: here the later beat counts."""
        self._heard[name] = HeardWorker(boot, source, now, beat)
        self._heard.move_to_end(name)
        first = next(iter(self._heard))
        if len(self._heard) > self._limit or now - self._heard[first].heard_at >= REAP_NS:
            del self._heard[first]

    def left(self, name: str, boot: int) -> None:
        if name in self._heard and self._heard[name].boot == boot:
            del self._heard[name]

    def all(self, now: int, fleet: Fleet | None) -> list[MemberFacts]:
        """`fleet`: as the leader judges them, where this manager leads; elsewhere what is heard is all that is
        known."""
        return [_facts(now, name, heard, fleet) for name, heard in self._heard.items()]


def _facts(now: int, name: str, heard: HeardWorker, fleet: Fleet | None) -> MemberFacts:
    beat, facts = heard.beat, heard.beat.facts
    condition = beat.condition
    life = None if fleet is None else fleet.life(name, heard.boot)
    if life is None:
        silent_ns = now - heard.heard_at
        is_silent = silent_ns >= SILENT_NS
        readiness, why = said_readiness(beat)
        decision = decide(HealthSignals(Liveness.SILENT if is_silent else Liveness.HEARD, readiness))
        state: str = "silent" if is_silent else facts.state
        why = f"nothing is heard of it for {tenths_text(silent_ns)}" if is_silent else why
        free = condition.free
    else:
        state = "silent" if life.is_silent and not life.is_lost else life.state
        decision, why, free = life.decision, life.reason, life.free if life.is_usable else 0
    return MemberFacts(
        name,
        state,
        "" if heard.source.startswith(HANDLE) else heard.source,
        str(heard.boot),
        0,
        role=ROLE,
        datacenter=facts.datacenter,
        software=facts.version,
        datagrams=True,
        cores=facts.cores,
        free=free,
        queue=condition.queue,
        cpu_percent=measured(condition.cpu_percent),
        memory_percent=measured(condition.memory_percent),
        overload=condition.overload_word if condition.cores else "",
        health=condition.health_word if condition.cores else "",
        decision=decision.word,
        why=why,
    )
