"""What a member answers to those who ask it: its view, its leader, its verdicts, its keys and its figures."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from talka.cluster.membership.members import Status
from talka.control.member.announcement import Announcement, announced_readiness, standing_of, zone_of
from talka.control.member.composite import ClusterMember
from talka.control.member.key_distribution import KeyDistribution, KeyEffect
from talka.control.member.metrics import Counted, metrics_text
from talka.control.member.three_signals import HealthSignals, Liveness, decide
from talka.errors import Invalid
from talka.units import SECOND
from talka.wire.asking import (
    AddKey,
    AskAudit,
    AskKeys,
    AskLeader,
    AskLease,
    AskMembers,
    AskMetrics,
    ChangeLease,
    Question,
    RepairKeys,
    RetireKey,
    UseKey,
    encode_content,
)
from talka.wire.condition import measured
from talka.wire.security.keys import checked_secrets
from talka.wire.views import HealthDecisionName

PAGE_LIMIT: Final = 150
"""So many fit an answer, however long their names are."""
STATES: Final = {Status.ALIVE: "alive", Status.SUSPECT: "suspect", Status.DEAD: "dead", Status.LEFT: "left"}


class MemberFacts(msgspec.Struct, frozen=True):
    name: str
    state: str
    """alive, suspect, dead or left"""
    address: str
    boot: str
    """A number too large for some readers of JSON."""
    incarnation: int
    zone: str = ""
    role: str = ""
    datacenter: str = ""
    software: str = ""
    accuser: str = ""
    reason: str = ""
    datagrams: bool = True
    """Whether datagrams reach it from here; without them it is probed over the stream."""
    self: bool = False
    """Whether it is the member that answers."""
    protocol: str = ""
    """The version that the member that answers speaks with it; of itself, its own. Empty: it is not there."""
    region: str = ""
    cores: int = 0
    """Of a worker: its own. Of the manager that leads: those of all workers."""
    free: int = 0
    queue: int = 0
    """Of a worker: tasks that wait there. Of the manager that leads: jobs that wait for cores."""
    cpu_percent: int | None = None
    """Of a worker: of its machine's processors. Of a manager: of one processor, used by its process."""
    memory_percent: int | None = None
    """Of its machine's memory, in use."""
    overload: str = ""
    """normal, busy, stressed or overloaded."""
    health: str = ""
    """normal, elevated, high, severe or critical: how late it handles things, and how well its probes go."""
    decision: HealthDecisionName = "route"
    """What is made of it by its three signals, as this member sees them."""
    why: str = ""
    """Why it is not given work as others are, in a sentence."""


class MembersPage(msgspec.Struct, frozen=True):
    members: list[MemberFacts]
    next: str = ""
    """Ask for what is after this name; empty at the end."""


class LeaderFacts(msgspec.Struct, frozen=True):
    leader: str
    """Empty when none is known."""
    term: int
    token: list[int]
    """Only the leader itself knows the token it commands with."""
    voters: list[str]
    role: str
    phase: str
    answering: list[str]
    """The voters the answering one has heard from lately."""


class VerdictFacts(msgspec.Struct, frozen=True):
    seconds_ago: float
    subject: str
    verdict: str
    accuser: str
    reason: str
    own: bool
    boot: str
    incarnation: int


class KeyFacts(msgspec.Struct, frozen=True):
    id: str
    is_primary: bool


class KeysFacts(msgspec.Struct, frozen=True):
    keys: list[KeyFacts]
    version: int
    unconfirmed: list[str]
    """Members that have not confirmed to hold the same keys."""


def answer(
    member: ClusterMember[Any],
    now: int,
    question: Question,
    *,
    asked_with: str = "",
    expected: tuple[str, ...] = (),
    counts: Mapping[str, Counted] | None = None,
    workers: Sequence[MemberFacts] = (),
    page_limit: int = PAGE_LIMIT,
) -> tuple[bytes, Sequence[KeyEffect]]:
    """The content of the answer, and what it makes the member do. `Invalid` when it cannot be answered.

    `asked_with`: the key of the question. `expected`: names of members remembered from earlier. `counts`: what the
    shell around the member has counted. `workers`: those that are heard here.
    """
    keys = () if member.admission is None else member.admission.ring.accepted()
    if asked_with and asked_with not in keys and not isinstance(question, RepairKeys | AskKeys):
        raise Invalid(f"key {asked_with} is no longer accepted: with it, only talka cluster keys --repair can be asked")
    match question:
        case AskMembers(after=after):
            return encode_content(_members(member, after, workers, page_limit)), []
        case AskLeader():
            return encode_content(_leader(member, now)), []
        case AskAudit():
            return encode_content(_audit(member, now)), []
        case AskKeys():
            return encode_content(_keys(member, expected)), []
        case AskMetrics():
            return metrics_text(member, now, counts or {}).encode(), []
        case AddKey(secret=secret):
            return _changed(member, expected, lambda: _key_distribution(member).add(secret))
        case UseKey(key_id=key_id):
            return _changed(member, expected, lambda: _key_distribution(member).seal_with(key_id))
        case RetireKey(key_id=key_id) if key_id == asked_with and key_id != _key_distribution(member).ring.primary_id:
            raise Invalid(f"this question came under key {key_id} itself: ask with the new secret, then retire it")
        case AskLease() | ChangeLease():
            raise Invalid(f"{member.name} is not a manager: ask a manager for the lease of workers")
        case RetireKey(key_id=key_id, force=force):
            return _changed(
                member, expected, lambda: _key_distribution(member).retire(key_id, expected=expected, force=force)
            )
        case RepairKeys(secrets=secrets):  # pragma: no branch - the type checker sees that no other is left
            return _changed(member, expected, lambda: _key_distribution(member).repair(now, checked_secrets(secrets)))


def _members(member: ClusterMember[Any], after: str, workers: Sequence[MemberFacts], page_limit: int) -> MembersPage:
    membership = member.membership
    if membership is None:
        raise Invalid(f"{member.name} has no view of members")
    me = membership.me
    mine = member.admission.me if member.admission is not None else None
    facts = [
        MemberFacts(
            me.name,
            "left" if membership.has_left else "alive",
            me.address,
            str(me.boot),
            me.incarnation,
            zone_of(me.zone, mine.datacenter if mine else ""),
            mine.role if mine else "",
            mine.datacenter if mine else "",
            mine.software if mine else "",
            self=True,
            protocol=str(member.agreements.mine.version),
            region=member.announcer.region if member.announcer else "",
            **_condition_of(Status.ALIVE, None if member.announcer is None else member.announcer.told),
        ),
        *workers,
    ]
    for other in membership.members():
        standing = standing_of(other)
        is_accused = other.status in (Status.SUSPECT, Status.DEAD)
        facts.append(
            MemberFacts(
                other.name,
                STATES[other.status],
                other.address,
                str(other.boot),
                other.incarnation,
                zone_of(other.zone, standing.datacenter if standing else ""),
                standing.role if standing else "",
                standing.datacenter if standing else "",
                standing.software if standing else "",
                other.accuser if is_accused else "",
                other.reason if is_accused else "",
                not other.blocked,
                protocol="" if other.status > Status.SUSPECT else str(member.agreements.of(other.name).version),
                region=standing.region if standing else "",
                **_condition_of(other.status, standing),
            )
        )
    later = sorted((fact for fact in facts if fact.name > after), key=lambda fact: fact.name)
    page = later[:page_limit]
    # A worker may have the name of a member: both are on the same page.
    page += [fact for fact in later[page_limit:] if fact.name == page[-1].name]
    return MembersPage(page, page[-1].name if len(later) > len(page) else "")


def _condition_of(status: Status, standing: Announcement | None) -> dict[str, Any]:
    """How a member does, by what it announced, and what is made of it."""
    readiness, unready = announced_readiness(standing)
    liveness = _LIVENESS[status]
    decision = decide(HealthSignals(liveness, readiness))
    why = unready if liveness is Liveness.HEARD else "it left" if status is Status.LEFT else "it does not answer"
    if standing is None:
        return {"decision": decision.word, "why": why}
    condition = standing.condition
    return {
        "cores": condition.cores,
        "free": condition.free,
        "queue": condition.queue,
        "cpu_percent": measured(condition.cpu_percent),
        "memory_percent": measured(condition.memory_percent),
        "overload": condition.overload_word,
        "health": condition.health_word,
        "decision": decision.word,
        "why": why,
    }


_LIVENESS: Final = {
    Status.ALIVE: Liveness.HEARD,
    Status.SUSPECT: Liveness.SILENT,
    Status.DEAD: Liveness.GONE,
    Status.LEFT: Liveness.GONE,
}


def _leader(member: ClusterMember[Any], now: int) -> LeaderFacts:
    if member.voter is None:
        return _leader_by_hearsay(member)
    election, token = member.voter.election, member.voter.token
    shown = [token.parent, token.term, token.sequence] if token is not None and election.is_leading(now) else []
    return LeaderFacts(
        election.leader,
        election.term,
        shown,
        list(election.config.names()),
        election.role.value,
        election.phase.value,
        election.electorate.answering(now),
    )


def _leader_by_hearsay(member: ClusterMember[Any]) -> LeaderFacts:
    """What one that does not vote knows: which member says that it leads, in the latest term."""
    leader, term = "", 0
    for other in [] if member.membership is None else member.membership.alive():
        standing = standing_of(other)
        if standing is not None and standing.leads > term:
            leader, term = other.name, standing.leads
    return LeaderFacts(leader, term, [], [], "no voter", "", [])


def _audit(member: ClusterMember[Any], now: int) -> list[VerdictFacts]:
    if member.membership is None:
        raise Invalid(f"{member.name} has no view of members")
    return [
        VerdictFacts(
            round((now - verdict.at) / SECOND, 3),
            verdict.subject,
            verdict.verdict,
            verdict.accuser,
            verdict.reason,
            verdict.own,
            str(verdict.boot),
            verdict.incarnation,
        )
        for verdict in member.membership.audit
    ]


def _keys(member: ClusterMember[Any], expected: tuple[str, ...]) -> KeysFacts:
    key_distribution = _key_distribution(member)
    ring = key_distribution.ring
    keys = [KeyFacts(id, id == ring.primary_id) for id in ring.accepted()]
    return KeysFacts(keys, ring.version, key_distribution.missing(expected))


def _changed(
    member: ClusterMember[Any], expected: tuple[str, ...], change: Callable[[], Sequence[KeyEffect]]
) -> tuple[bytes, Sequence[KeyEffect]]:
    effects = change()
    return encode_content(_keys(member, expected)), effects


def _key_distribution(member: ClusterMember[Any]) -> KeyDistribution:
    if member.key_distribution is None:
        raise Invalid(f"{member.name} seals nothing and has no keys")
    return member.key_distribution
