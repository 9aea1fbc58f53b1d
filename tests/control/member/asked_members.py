"""Members that are asked, and what they have heard."""

from random import Random
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from talka.cluster.effects import Persist
from talka.cluster.membership.membership import Membership
from talka.cluster.membership.presets import PRESETS
from talka.control.member.admission import Admission
from talka.control.member.composite import ClusterMember
from talka.control.member.metrics import metrics_text
from talka.control.member.replay_guard import ReplayGuard
from talka.control.member.voter import Voter
from talka.wire.greeting import Self
from talka.wire.membership import Gossip, MemberUpdate, encode_update
from talka.wire.security.keys import Keyring, key_id
from talka.wire.security.sealing import Seal

OLD = "kD7wq2Zr-9xMvB4tYpLs8HnGfJc3RaEu"
NEW = "Vb5nXz1Qm_Ke6WtSy0UhDgLr7AoPi2Cj"
K1, K2 = key_id(OLD), key_id(NEW)
ME = Self("shop", "staging", "manager", "1.0", [], [], "east", "", "0.1")
BOOT = 2**61 + 1


def member_of(
    name: str = "b", *, voters: tuple[str, ...] = (), is_sealed: bool = True, has_membership: bool = True
) -> ClusterMember:
    group = "shop/staging"
    replay_guard = ReplayGuard(group=group, name=name, boot=BOOT)
    ring = Keyring.of((OLD,))
    admission = (
        Admission(replay_guard=replay_guard, seal=Seal(ring, BOOT), name=name, me=ME, rng=Random(1))
        if is_sealed
        else None
    )
    membership = Membership(
        name=name,
        boot=BOOT,
        address="10.0.0.1:7",
        zone="z1",
        group=group,
        config=PRESETS["default"],
        rng=Random(1),
        now=0,
    )
    voter = Voter(name=name, voters=voters, stored={}, rng=Random(1), now=0) if voters else None
    member = ClusterMember(
        group=group,
        name=name,
        boot=BOOT,
        membership=membership if has_membership else None,
        voter=voter,
        replay_guard=replay_guard,
        admission=admission,
    )
    for effect in member.start(0):
        if isinstance(effect, Persist):
            member.on_persisted(0, effect.ticket)
    return member


def hear(member: ClusterMember, *updates: MemberUpdate, now: int = 0) -> None:
    assert member.membership is not None
    member.membership.on_message(now, "at-x", "x", 7, Gossip(), [encode_update(update) for update in updates], 0)


def figures(member: ClusterMember, now: int = 0, **counts: Any) -> dict[tuple[str, str], float]:
    """(name, label) to value, as Prometheus' own parser reads it."""
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(metrics_text(member, now, counts)):
        assert family.documentation and family.type in ("gauge", "counter", "histogram")
        for sample in family.samples:
            place = (sample.name, ",".join(sample.labels.values()))
            assert place not in found
            found[place] = sample.value
    return found
