"""Certified members under datagrams made with the secret alone, and under a manager that lies about its keys."""

import pytest

from talka.control.member.composite import ClusterMember
from tests.sim.certified import Story
from tests.sim.checkers.membership import incomplete_views
from tests.sim.seeds import first_of
from tests.sim.variants import without


@pytest.mark.parametrize("seed", first_of(range(1, 13)))
def test_nobody_without_a_certificate_changes_keys_or_addresses_and_nobody_jumps_ahead(seed: int) -> None:
    story = Story(seed)

    world = story.run()

    assert not world.violations, "\n".join([*map(str, world.violations), *world.recent_lines()[-20:]])
    assert incomplete_views(world) == []
    assert story.attack.said > 80 and story.keys.rings == {}
    nodes = [host.node for host in world.hosts.values() if isinstance(host.node, ClusterMember)]
    refused = {"datagram": 0, "jump": 0}
    for node in nodes:
        assert node.admission is not None and node.membership is not None
        for reason in refused:
            refused[reason] += node.admission.rings.refused[reason]
    assert all(refused.values()) and sum(node.membership.disbelieved for node in nodes if node.membership) > 0


@pytest.mark.parametrize(
    ("removed", "invariant"),
    [(("ring_from_managers", "role_table"), "keys"), (("ring_jump",), "keys"), (("signed_records",), "address")],
)
def test_without_the_safeguard_the_attack_is_caught(removed: tuple[str, ...], invariant: str) -> None:
    with without(*removed):
        world = Story(1).run()

    assert {violation.invariant for violation in world.violations} == {invariant}


def test_the_table_of_roles_alone_keeps_keys_out_too() -> None:
    with without("ring_from_managers"):
        assert not Story(1).run().violations


def test_a_seed_is_one_history() -> None:
    once, again, other = (Story(seed).run().trace_hash() for seed in (3, 3, 4))

    assert once == again != other
