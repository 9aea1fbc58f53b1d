"""Membership under drawn faults: every seed keeps every invariant, and is the same history each time."""

from talka.units import SECOND
from tests.sim.membership import CLASSES, describe, plan_of, run
from tests.sim.seeds import fresh

SEEDS = 104
PER_TEST = 13


@fresh(SEEDS, PER_TEST)
def test_no_seed_violates_an_invariant(seeds: range) -> None:
    told = []
    for seed in seeds:
        world = run(seed)
        for violation in world.violations:
            told += [*describe(seed), f"  {violation.time / SECOND:.3f} s: {violation.invariant}: {violation.text}"]
        told += ["  " + line for line in world.recent_lines()[-20:]] if world.violations else []

    assert not told, "\n".join(told)


def test_the_seeds_are_as_large_as_they_claim_and_have_every_class_of_fault() -> None:
    plans = [plan_of(seed) for seed in range(1, SEEDS + 1)]

    assert all(plan.members >= 16 and plan.ends_at >= 60 * SECOND and len(plan.classes) >= 3 for plan in plans)
    counts = {name: sum(name in plan.classes for plan in plans) for name in CLASSES}
    assert min(counts.values()) >= 10


def test_a_seed_is_one_history_and_keeps_every_invariant() -> None:
    once, again, other = run(3), run(3), run(4)

    assert not once.violations and not other.violations
    assert once.trace_hash() == again.trace_hash() != other.trace_hash()


def test_a_good_bye_that_a_member_cannot_say_is_counted_and_said_later() -> None:
    world = run(34)  # one that crashes, too

    assert world.met_nothing["leave"] and not world.violations
    assert world.struck["leave"] == len(plan_of(34).leaves)


def test_a_plan_is_told_in_lines() -> None:
    lines = describe(12)

    assert lines[0].startswith("seed 12: ")
    assert [line.split()[0] for line in lines[1:]] == ["faults", "links:", "clocks:", "leaves:"]
