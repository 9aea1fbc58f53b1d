"""What a node shows at `/metrics`: what its member counts, and what the shell around it has counted."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from talka.cluster.membership.members import Status
from talka.control.member.composite import ClusterMember
from talka.control.member.metrics_table import GROUPS, METRICS, MetricLine
from talka.errors import Invalid
from talka.stats.time_buckets import TimeBuckets
from talka.units import SECOND

PREFIX: Final = "talka_"
Counted: TypeAlias = float | Mapping[str, float] | TimeBuckets
"""One sample, one for each value of a label, or times."""


def metrics_text(member: ClusterMember[Any], now: int, counts: Mapping[str, Counted]) -> str:
    """Prometheus' text format. `Invalid` where something is counted that is not in the table of metrics."""
    counted = {**_counts_of(member, now), **counts}
    if unknown := sorted(counted.keys() - METRICS.keys()):
        raise Invalid(f"{', '.join(unknown)} is no metric: give it a line in control/member/metrics_table.py")
    lines: list[str] = []
    for group in GROUPS:
        for line in group.lines:
            if line.name in counted:
                lines += _lines(line, counted[line.name])
    return "\n".join(lines) + "\n"


def _counts_of(member: ClusterMember[Any], now: int) -> dict[str, Counted]:
    counted: dict[str, Counted] = {
        "frames_admitted_total": member.frames_admitted,
        "frames_refused_total": member.replay_guard.refused,
        "frames_refused_by_role_total": member.roles.refused,
        "peers": member.agreements.by_version(),
        "messages_unsaid_total": member.agreements.unsaid,
    }
    if (membership := member.membership) is not None:
        others = membership.members()
        states = Counter(other.status for other in others)
        states[Status.ALIVE] += 1
        counted |= {
            "members": {status.name.lower(): states[status] for status in Status},
            "local_health_score": membership.health.score,
            "lag_gate_closed": int(membership.health.gate_closed(now)),
            "incarnation": membership.incarnation,
            "recent_verdicts": Counter(verdict.verdict for verdict in membership.audit),
            "datagrams_blocked": sum(1 for other in others if other.blocked),
            "refused_updates_total": membership.refused_updates,
            "records_disbelieved_total": membership.disbelieved,
        }
    if member.voter is not None:
        election = member.voter.election
        counted |= {
            "term": election.term,
            "is_leader": int(election.is_leading(now)),
            "voters": len(election.config.names()),
            "voters_answering": len(election.electorate.answering(now)),
            "quorum_breaker_open": int(member.voter.is_breaker_open),
        }
    if member.admission is not None:
        rings = member.admission.rings
        counted |= {
            "challenges_total": member.admission.lives.challenged,
            "keys": len(member.admission.ring.accepted()),
            "rings_unexpected_total": rings.unexpected,
            "rings_refused_total": rings.refused,
        }
    return counted


def _lines(line: MetricLine, counted: Counted) -> list[str]:
    name = PREFIX + line.name
    assert isinstance(counted, Mapping) == bool(line.label), f"{name} is counted by {line.label or 'nothing'}"
    lines = [f"# HELP {name} {line.text}", f"# TYPE {name} {line.kind}"]
    if isinstance(counted, TimeBuckets):
        found = counted.up_to()
        lines += [f'{name}_bucket{{le="{_bound(bound)}"}} {count}' for bound, count in found]
        lines += [f"{name}_sum {counted.total_ns / SECOND}", f"{name}_count {found[-1][1]}"]
    elif isinstance(counted, Mapping):
        lines += [f'{name}{{{line.label}="{_escaped(key)}"}} {value}' for key, value in sorted(counted.items())]
    else:
        lines.append(f"{name} {counted}")
    return lines


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else f"{bound:g}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
