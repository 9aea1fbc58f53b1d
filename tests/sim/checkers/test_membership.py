"""Checkers of membership: each fires on what it is for, and is silent on its legitimate neighbour."""

from collections.abc import Callable

import pytest

from talka.cluster.membership import gossip, verdicts
from talka.cluster.membership.members import ALIVE, DEAD, SUSPECT, Status
from talka.cluster.membership.membership import Membership
from talka.cluster.membership.news import MemberLost
from talka.cluster.membership.presets import PRESETS
from talka.control.member.composite import ClusterMember
from talka.testing.world import Boot, Observer, World
from talka.units import SECOND
from tests.sim.checkers import membership as membership_checkers
from tests.sim.checkers.membership import (
    SETTLED_NS,
    DeathIsKnown,
    FalseVerdicts,
    FullViews,
    MembershipWithinLimits,
    detection_bound_ns,
    incomplete_views,
    membership_of,
)

CONFIG = PRESETS["fast"]
NAMES = ("a", "b", "c", "d", "e")
BOUND = detection_bound_ns(CONFIG, len(NAMES))


def start(boot: Boot) -> ClusterMember:
    membership = Membership(
        name=boot.name, boot=boot.boot, address=boot.name, group="g", config=CONFIG, rng=boot.rng, now=boot.now
    )
    return ClusterMember(group="g", name=boot.name, boot=boot.boot, membership=membership, seeds=("a", "b"))


def world_of(*observers: Observer, seconds: int = 15) -> World:
    """Five members on a good network, so many seconds after they started."""
    world = World(1)
    world.stop_at_first = False
    world.observers += observers
    for name in NAMES:
        world.add_host(name, start).start()
    world.run_until(seconds * SECOND)
    return world


def violated(world: World) -> list[str]:
    return [violation.invariant for violation in world.violations]


def view(world: World, name: str) -> Membership:
    membership = membership_of(world.hosts[name])
    assert membership is not None
    return membership


def hold(world: World, holder: str, about: str, status: Status) -> None:
    """Make a member hold another in this state, whatever it has heard."""
    membership = view(world, holder)
    member = membership.get(about)
    assert member is not None
    membership._members.move(member, status, 0)


def isolate(world: World, name: str, *, one_way: bool = False) -> None:
    for other in NAMES:
        if other != name:
            world.network.cut(other, name)
            if not one_way:
                world.network.cut(name, other)


# I10


def verdict(world: World, checker: FalseVerdicts, *, by: str = "a", about: str = "b", own: bool = True) -> None:
    effect = MemberLost(about, world.hosts[about].boot, by, "no answer", own)
    checker.on_effect(world, world.hosts[by], effect)


def test_a_verdict_between_two_that_are_well_is_false() -> None:
    checker = FalseVerdicts()
    world = world_of(checker)

    verdict(world, checker)

    assert violated(world) == ["I10"]
    assert "a declared b dead" in world.violations[0].text
    assert checker.count == 1


def test_one_that_reaches_a_majority_is_well_though_it_does_not_reach_all() -> None:
    checker = FalseVerdicts()
    world = world_of(checker)
    world.network.cut("a", "b")
    world.network.cut("b", "a")
    world.run_until(world.now + SECOND)

    verdict(world, checker)

    assert violated(world) == ["I10"]


@pytest.mark.parametrize("unwell", ["a", "b"], ids=["the one who tells", "the one it is about"])
@pytest.mark.parametrize(
    "trouble",
    [
        lambda world, name: world.hosts[name].stall(2 * SECOND),
        lambda world, name: world.hosts[name].set_service(50_000_000),
        lambda world, name: isolate(world, name),
        lambda world, name: isolate(world, name, one_way=True),
        lambda world, name: (world.hosts[name].crash(), world.hosts[name].start()),
    ],
    ids=["stalled", "slow", "isolated", "deaf", "restarted"],
)
def test_a_verdict_is_excused_until_both_have_been_well_for_a_while(
    unwell: str, trouble: Callable[[World, str], object]
) -> None:
    checker = FalseVerdicts()
    world = world_of(checker)
    trouble(world, unwell)
    world.run_until(world.now + SECOND)
    verdict(world, checker)

    world.run_until(world.now + SECOND)
    world.network.heal_all()
    world.hosts[unwell].set_service(None)
    world.run_until(world.now + SETTLED_NS - 2 * SECOND)
    verdict(world, checker)
    assert violated(world) == []

    world.run_until(world.now + 3 * SECOND)
    verdict(world, checker)
    assert violated(world) == ["I10"]


def test_in_a_minority_nobody_is_well() -> None:
    checker = FalseVerdicts()
    world = world_of(checker)
    for name in ("a", "b"):
        for other in ("c", "d", "e"):
            world.network.cut(name, other)
    world.run_until(world.now + 2 * SECOND)

    verdict(world, checker, by="a", about="b")
    verdict(world, checker, by="c", about="a")
    assert violated(world) == []
    verdict(world, checker, by="c", about="d")
    assert violated(world) == ["I10"]


def test_what_others_decided_and_verdicts_about_former_boots_and_strangers_do_not_count() -> None:
    checker = FalseVerdicts()
    world = world_of(checker)

    verdict(world, checker, own=False)
    checker.on_effect(world, world.hosts["a"], MemberLost("b", 7, "a", "no answer", True))
    checker.on_effect(world, world.hosts["a"], MemberLost("stranger", 7, "a", "no answer", True))
    checker.at_end(world)

    assert (violated(world), checker.count) == ([], 0)


def test_with_a_rate_false_verdicts_are_borne_up_to_it() -> None:
    checker = FalseVerdicts(per_member_hour=100.0)  # five members, 15 s: two are borne
    world = world_of(checker)
    verdict(world, checker)
    verdict(world, checker)
    checker.at_end(world)
    assert violated(world) == []

    verdict(world, checker)
    checker.at_end(world)
    assert violated(world) == ["I10"]


# I11


def test_a_death_that_all_know_in_time_is_no_violation() -> None:
    checker = DeathIsKnown()
    world = world_of(checker)
    world.hosts["e"].crash()

    world.run_until(world.now + BOUND)

    assert (violated(world), checker.judged) == ([], 4)


def test_a_death_that_one_does_not_know_is_a_violation() -> None:
    checker = DeathIsKnown()
    world = world_of(checker)
    world.hosts["e"].crash()
    world.at(world.now + BOUND - 1, lambda: hold(world, "c", "e", SUSPECT))

    world.run_until(world.now + BOUND)

    assert violated(world) == ["I11"]
    assert "e crashed" in world.violations[0].text and "c (suspect)" in world.violations[0].text


def test_who_was_isolated_meanwhile_need_not_know() -> None:
    checker = DeathIsKnown()
    world = world_of(checker)
    world.hosts["e"].crash()
    isolate(world, "c")
    world.at(world.now + BOUND - 1, lambda: hold(world, "c", "e", ALIVE))

    world.run_until(world.now + BOUND)

    assert (violated(world), checker.judged) == ([], 3)


def test_who_knows_the_next_boot_knows_of_the_death() -> None:
    checker = DeathIsKnown()
    world = world_of(checker)
    world.hosts["e"].crash()
    world.hosts["e"].start()

    world.run_until(world.now + BOUND)

    assert (violated(world), checker.judged) == ([], 4)
    assert view(world, "a").get("e") is not None


def test_where_nobody_is_left_nobody_need_know() -> None:
    checker = DeathIsKnown()
    world = world_of(checker)
    for name in NAMES:
        world.hosts[name].crash()

    world.run_until(world.now + BOUND)

    assert (violated(world), checker.judged) == ([], 0)


def test_the_bound_grows_with_the_group_and_with_the_periods() -> None:
    assert detection_bound_ns(PRESETS["default"], 100) > detection_bound_ns(PRESETS["default"], 10)
    assert detection_bound_ns(PRESETS["serf-lan"], 10) > detection_bound_ns(PRESETS["fast"], 10)
    assert detection_bound_ns(PRESETS["default"], 100) == 8 * SECOND // 2 + 5 * 3 * SECOND + 8 * 3 * SECOND // 10


# I13


def test_a_member_that_runs_as_it_should_is_within_its_limits() -> None:
    world = world_of(MembershipWithinLimits())

    assert world.finish() == []


def test_a_datagram_that_is_too_long_is_a_violation() -> None:
    world = world_of(MembershipWithinLimits())
    world.network.drop("mtu", "a", "b")

    world.run_until(world.now + SECOND)

    assert violated(world) == ["I13"]


@pytest.mark.parametrize(
    ("module", "name", "what"),
    [
        (gossip, "QUEUE_LIMIT", "news to pass on"),
        (verdicts, "LIMIT", "verdicts kept"),
        (membership_checkers, "RELAYS_LIMIT", "pings for others"),
    ],
)
def test_what_is_longer_than_its_limit_is_a_violation(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, what: str
) -> None:
    world = world_of(MembershipWithinLimits())
    monkeypatch.setattr(module, name, -1)

    world.run_until(world.now + SECOND)

    assert violated(world) == ["I13"] * len(NAMES)
    assert what in world.violations[0].text


def test_a_table_of_more_members_than_the_limit_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(MembershipWithinLimits())
    monkeypatch.setattr("talka.cluster.membership.members.Members.__len__", lambda members: CONFIG.members_limit + 1)

    world.run_until(world.now + SECOND)

    assert "members; the limit is" in world.violations[0].text


def test_traffic_above_the_cap_is_a_violation() -> None:
    world = world_of(MembershipWithinLimits(bytes_per_s=50))

    world.finish()

    assert violated(world) == ["I13"] * len(NAMES)
    assert "B/s on average" in world.violations[0].text


# I14


def test_views_that_become_full_in_time_are_no_violation() -> None:
    checker = FullViews()
    world = world_of(checker)
    world.hosts["e"].crash()
    checker.begin(world)

    world.run_until(world.now + 60 * SECOND)

    assert world.finish() == []
    assert checker.full_after_ns is not None and checker.full_after_ns > SECOND


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda world: hold(world, "a", "b", DEAD), "a holds b dead"),
        (lambda world: setattr(view(world, "a").get("b"), "boot", 7), "a knows another boot of b"),
        (lambda world: view(world, "a")._members._by_name.pop("b"), "a does not know b"),
        (lambda world: hold(world, "a", "e", ALIVE), "a holds e alive, which is down"),
    ],
    ids=["dead", "another boot", "unknown", "a dead one alive"],
)
def test_a_view_that_is_wrong_when_time_is_up_is_a_violation(spoil: Callable[[World], object], text: str) -> None:
    checker = FullViews(within_ns=10 * SECOND)
    world = world_of(checker)
    world.hosts["e"].crash()
    checker.begin(world)
    world.run_until(world.now + 10 * SECOND - 1)
    assert violated(world) == []
    spoil(world)

    world.run_until(world.now + 1)

    assert violated(world) == ["I14"]
    assert text in world.violations[0].text


def test_a_suspicion_of_the_moment_leaves_a_view_full_once_time_is_up() -> None:
    checker = FullViews(within_ns=10 * SECOND)
    world = world_of(checker)
    checker.begin(world)
    world.run_until(world.now + 10 * SECOND - 1)
    hold(world, "a", "b", SUSPECT)

    world.run_until(world.now + 1)

    assert violated(world) == []
    assert incomplete_views(world) == ["a holds b suspect"]
    assert incomplete_views(world, with_suspects=True) == []


def test_a_run_that_ends_before_its_faults_or_before_the_views_are_full_is_a_violation() -> None:
    checker = FullViews()
    world = world_of(checker)
    world.finish()
    assert violated(world) == ["I14"]

    checker.begin(world)
    world.hosts["e"].crash()
    world.run_until(world.now + SECOND)
    world.finish()
    assert violated(world) == ["I14", "I14"]
    assert "before the views were full" in world.violations[1].text


def test_of_many_problems_a_few_are_told() -> None:
    checker = FullViews(within_ns=SECOND)
    world = world_of(checker)
    checker.begin(world)
    world.run_until(world.now + SECOND - 1)
    for name in ("a", "b"):
        for other in NAMES:
            if other != name:
                hold(world, name, other, DEAD)

    world.run_until(world.now + 1)

    assert world.violations[0].text.count(" holds ") == 5
    assert world.violations[0].text.endswith("and 3 more")


def test_hosts_without_membership_are_left_out() -> None:
    views = FullViews()
    world = World(1)
    world.observers += [views, DeathIsKnown(), MembershipWithinLimits()]
    host = world.add_host("a", lambda boot: ClusterMember(group="g", name=boot.name, boot=boot.boot))
    host.start()
    views.begin(world)
    world.run_until(60 * SECOND)
    host.crash()
    world.run_until(61 * SECOND)

    assert world.finish() == []
