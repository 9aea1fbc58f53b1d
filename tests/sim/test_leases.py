"""Managers that were told different leases of workers, and a lease that is changed under faults."""

from functools import partial

import pytest

from talka.cluster.leadership.lease_terms import OwnLease
from talka.units import SECOND
from tests.sim import jobs, leases
from tests.sim.checkers.jobs import manager_on
from tests.sim.job_clients import manager_act
from tests.sim.seeds import fresh, stored

PER_TEST = 20


@fresh(40, PER_TEST)
def test_no_history_of_different_and_changing_leases_breaks_an_invariant(seeds: range) -> None:
    broken, refused, begun, held = [], 0, 0, 0
    for seed in seeds:
        story = leases.Story(jobs.plan_of(seed), None)
        world = story.run()
        broken += [f"make sim SEED={seed} KIND=leases: {violation}" for violation in world.violations]
        refused += len(story.operator.refused)
        begun += story.operator.begun
        held += story.operator.held

    assert not broken, "\n".join(broken)
    assert refused >= PER_TEST and begun >= PER_TEST // 2 and held >= PER_TEST // 2


@pytest.mark.parametrize("seed", stored("leases"))
def test_a_history_that_once_broke_an_invariant_is_clean(seed: int) -> None:
    assert leases.run(seed).violations == []


def test_of_managers_that_were_told_different_leases_one_value_is_left() -> None:
    story = leases.Story(jobs.plan_of(1, classes=()), None)

    story.run()

    (first,) = {name for name in story.managers if name not in story.operator.refused}
    led = [manager_on(story.world.hosts[name]) for name in story.managers]
    (registry,) = [one.registry for one in led if one is not None and one.registry is not None]
    assert registry.lease.terms.by == f"--lease of {first}"
    assert registry.lease.renew_ns == registry.lease.count_ns == leases.told_of(story.plan)[first].ns
    assert all(f"(set by --lease of {first})" in text for text in story.operator.refused.values())


def test_a_change_that_was_begun_is_ended_by_the_leader_after_next() -> None:
    plan = jobs.plan_of(1, classes=())
    story = jobs.Story(plan, None, dict.fromkeys((f"m{index}" for index in range(plan.managers)), OwnLease()))
    world = story.world
    seen: list[tuple[int, int, int]] = []

    def leader() -> jobs.Manager:
        (one,) = [one for host in world.hosts.values() if (one := manager_on(host)) is not None and one.registry]
        return one

    def ask() -> None:
        host = world.hosts[leader().name]
        call = leases.SetLease(20 * SECOND, "talka cluster lease")
        manager_act(world, host, host.boot, lambda manager, now: manager.call(now, call)[1])

    def look() -> None:
        registry = leader().registry
        assert registry is not None
        terms = registry.lease.terms
        seen.append((terms.lease_ns // SECOND, terms.next_ns // SECOND, registry.lease.renew_ns // SECOND))

    def fall() -> None:
        look()
        host = world.hosts[leader().name]
        host.crash()
        world.after(3 * SECOND, partial(leases._start, host))

    world.at(8 * SECOND, ask)
    world.at(10 * SECOND, fall)
    world.at(20 * SECOND, fall)
    world.at(35 * SECOND, look)  # 20 s after the first, but not after the last of those who led
    world.at(50 * SECOND, look)
    story.run()

    assert not world.violations
    assert seen == [(5, 20, 5), (5, 20, 5), (5, 20, 5), (20, 0, 20)]
