"""The managers of a cluster as its leader sees them: which live, which take jobs to lead, which get on with theirs.

A manager is heard when it answers the leader's heartbeats. What it announced says whether it would take jobs. It gets
on while it dispatches what it was given: of a job of which it has written nothing for long, it is asked.

Decision: docs/decisions/0061-three-signals-one-table.md.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

import msgspec

from talka.cluster.leadership.voters import Electorate
from talka.control.jobs.effects import HealthDecided, ManagerNews, ManagersHeld
from talka.control.jobs.workers.health import CorrelatedFailure
from talka.control.member.announcement import Announcement, announced_readiness
from talka.control.member.three_signals import (
    HealthDecision,
    HealthSignals,
    Liveness,
    MemberDoubted,
    Progress,
    decide,
)
from talka.units import SECOND
from talka.wire.entries import JobEntry
from talka.wire.views import HealthDecisionName, ManagerView
from talka.work.durations import tenths_text
from talka.work.lifecycle import is_final

OWNER_SILENCE_NS: Final = 3 * SECOND // 2
"""How long a manager may be silent before its jobs get another. A wrong guess costs a moment: the fence keeps order."""
SILENT_NS: Final = OWNER_SILENCE_NS // 2
"""From then on it is given no more jobs."""
SETTLE_NS: Final = 3 * SECOND // 10
"""After an election, the time in which every manager that is there has been heard."""
STALLED_NS: Final = 10 * SECOND
"""How long a manager may have a job of which it dispatches nothing, before somebody looks at it."""
STUCK_NS: Final = 30 * SECOND
"""… and before such jobs get another, where a lease of workers is not longer: who takes a job over may have to wait for
one."""

Announced: TypeAlias = Callable[[str], Announcement | None]
"""What a manager said of itself last."""


def nothing_announced(name: str) -> None:
    """For a leader that sees no members."""


class ManagerHealth(msgspec.Struct, frozen=True):
    signals: HealthSignals
    reason: str = ""
    silent_since: int = 0
    """When it was heard last."""

    @property
    def decision(self) -> HealthDecision:
        return decide(self.signals)


class Managers:
    """Call `look` now and then, and ask for whoever is to lead a job."""

    def __init__(
        self,
        me: str,
        electorate: Electorate,
        announced: Announced,
        correlated: CorrelatedFailure | None = None,
    ) -> None:
        """`correlated`: when most managers fall silent together, how long nobody is given up for it."""
        self._me = me
        self._electorate = electorate
        self._announced = announced
        self._correlated = CorrelatedFailure(least=2, hold_ns=5 * SECOND) if correlated is None else correlated
        self._health: dict[str, ManagerHealth] = {}
        self._stuck_ns = STUCK_NS
        self._in_vain: dict[str, dict[str, None]] = {}
        """Managers that dispatched nothing of a job and lost it for that, by job."""
        self.decided: Counter[HealthDecisionName] = Counter()
        """How often each decision was come to."""

    def look(
        self, now: int, led: Iterable[JobEntry], owned_since: Mapping[str, int], worker_lease_ns: int
    ) -> list[ManagerNews]:
        """`led`: jobs that have an owner and no end yet; `owned_since`: since when, by job."""
        names = self._electorate.config.names()
        # Who takes a job over asks its workers first, and waits for those that do not answer: a lease and more.
        self._stuck_ns = max(STUCK_NS, 2 * worker_lease_ns)
        undispatched: dict[str, int] = {}
        for entry in led:
            if entry.revision == 0:
                since = owned_since.get(entry.job, now)
                undispatched[entry.owner] = min(since, undispatched.get(entry.owner, since))
        found = {name: self._judge(now, name, undispatched.get(name)) for name in names}
        news: list[ManagerNews] = []
        silent = {name: one for name, one in found.items() if one.signals.liveness is not Liveness.HEARD}
        gone = [name for name, one in silent.items() if one.signals.liveness is Liveness.GONE]
        was_held = self._correlated.until is not None
        if self._is_held(now, [one.silent_since for one in silent.values()], len(names), is_due=bool(gone)):
            for name in gone:
                found[name] = _spared(found[name])
            if not was_held:
                news.append(ManagersHeld(tuple(sorted(silent))))
        for name, health in found.items():
            news += self._news_of(name, self._health.get(name), health)
        self._health = found
        return news

    def _is_held(self, now: int, silent_since: list[int], known: int, *, is_due: bool) -> bool:
        """Whether nobody is given up, for the fault is likelier near this leader."""
        return self._correlated.holds(now, silent_since, known, is_due=is_due)

    def _news_of(self, name: str, before: ManagerHealth | None, health: ManagerHealth) -> list[ManagerNews]:
        known = HealthDecision.ROUTE if before is None else before.decision
        if health.decision is known:
            return []
        word = health.decision.word
        self.decided[word] += 1
        news: list[ManagerNews] = [HealthDecided(name, word, health.reason)]
        is_silent = health.signals.liveness is Liveness.SILENT
        if name != self._me and (is_silent or health.decision is HealthDecision.INVESTIGATE):
            news.append(MemberDoubted(name))
        return news

    def health_of(self, name: str) -> ManagerHealth:
        """As of the last look; of one that was not looked at yet nothing bad is known."""
        return self._health.get(name, ManagerHealth(HealthSignals()))

    def for_job(self, now: int, job: str, but: str = "") -> list[str]:
        """Who may be given this job to lead: of those that answer, those of the mildest decision. `but`, and those that
        had it in vain, only where there is no other."""
        answering = self._electorate.answering(now)  # this manager is always among them
        tried = self._in_vain.get(job, {})
        others = [name for name in answering if name != but and name not in tried] or answering
        usable = [name for name in others if self.is_routed(name)]
        if usable:
            return usable
        mildest = min(self.health_of(name).decision for name in others)
        return [name for name in others if self.health_of(name).decision is mildest]

    def is_routed(self, name: str) -> bool:
        """Whether it is given new jobs."""
        return self.health_of(name).decision <= HealthDecision.INVESTIGATE

    def why_another(self, now: int, entry: JobEntry, owned_since: int) -> str:
        """Why a job is to get another owner, as of the last look; empty: it keeps the one it has."""
        owned_ns = now - owned_since
        if self.is_given_up(entry.owner):
            return f"{entry.owner} does not answer" if owned_ns >= SETTLE_NS else ""
        return self._why_handed_over(now, entry, owned_ns)

    def _why_handed_over(self, now: int, entry: JobEntry, owned_ns: int) -> str:
        """Of a job that its owner does nothing about."""
        if entry.revision or owned_ns < self._stuck_ns:
            return ""
        tried = self._in_vain.setdefault(entry.job, {})
        # Each manager is tried once: the fault may be the job's.
        others = [name for name in self.for_job(now, entry.job, entry.owner) if name not in (entry.owner, *tried)]
        if not any(map(self.is_routed, others)):
            return ""
        tried[entry.owner] = None
        return f"{entry.owner} has dispatched nothing of it for {owned_ns // SECOND} s"

    def forget(self, job: str) -> None:
        """It has ended."""
        self._in_vain.pop(job, None)

    def views(self, entries: Iterable[JobEntry] = ()) -> list[ManagerView]:
        """`entries`: all jobs; told is how many each leads."""
        jobs = Counter(entry.owner for entry in entries if entry.owner and not is_final(entry.state))
        return [self._view(name, jobs[name]) for name in dict.fromkeys((*self._electorate.config.names(), *jobs))]

    def _view(self, name: str, jobs: int) -> ManagerView:
        health = self.health_of(name)
        word = health.decision.word
        return ManagerView(name, "", leads=name == self._me, jobs=jobs, decision=word, reason=health.reason)

    def is_given_up(self, name: str) -> bool:
        """Of a manager that votes no more nothing is known at all."""
        return name not in self._health or self._health[name].decision is HealthDecision.EVICT

    def _judge(self, now: int, name: str, since: int | None) -> ManagerHealth:
        silent_ns = self._electorate.silent_ns(now, name)
        liveness, reason = Liveness.HEARD, ""
        if silent_ns >= SILENT_NS:
            liveness = Liveness.GONE if silent_ns >= OWNER_SILENCE_NS else Liveness.SILENT
            reason = "it does not answer"
        readiness, unready = announced_readiness(self._announced(name))
        progress, slow = _progress_of(now, since, self._stuck_ns)
        reasons = "; ".join(filter(None, (reason, unready, slow)))
        return ManagerHealth(HealthSignals(liveness, readiness, progress), reasons, now - silent_ns)


def _progress_of(now: int, since: int | None, stuck_ns: int) -> tuple[Progress, str]:
    if since is None:
        return Progress.IDLE, ""
    if now - since < STALLED_NS:
        return Progress.MOVING, ""
    progress = Progress.STUCK if now - since >= stuck_ns else Progress.STALLED
    return progress, f"it has dispatched nothing of a job since {tenths_text(now - since)}"


def _spared(health: ManagerHealth) -> ManagerHealth:
    signals = health.signals._replace(liveness=Liveness.SILENT)
    reason = f"{health.reason}; too many managers are silent at once, so none is given up yet"
    return msgspec.structs.replace(health, signals=signals, reason=reason)
