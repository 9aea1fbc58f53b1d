"""Elections as a group of voters shows them: one leader, whatever is cut off."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest

from talka.cluster.leadership.election import VoterRole
from talka.cluster.leadership.news import Elected, LeaderChanged, SteppedDown, WriteEnded
from talka.cluster.leadership.quorum import BadVoters
from talka.cluster.leadership.timings import LAN
from talka.cluster.safeguards import Safeguards
from talka.units import SECOND
from talka.wire.leadership import (
    Version,
)

MakeGroup = Callable[..., Any]


# -- one leader


def test_a_group_elects_one_leader_and_all_follow_it(group: Any) -> None:
    leader = group.elect()
    group.run(5 * SECOND)

    assert group.leader() == leader
    assert {voter.leader for voter in group.voters.values()} == {leader}
    assert {voter.term for voter in group.voters.values()} == {1}
    assert [voter.role for name, voter in group.voters.items() if name != leader] == [VoterRole.FOLLOWER] * 2
    assert group.told(LeaderChanged) == [LeaderChanged(leader, 1)] * 3


def test_a_leader_that_dies_is_followed_by_another_within_two_leases(group: Any) -> None:
    first = group.elect()
    group.run(SECOND)
    group.crash(first)

    second = group.elect(2 * LAN.lease_ns)

    assert second != first
    assert group.voters[second].term > 1


def test_a_group_of_one_leads_itself(make_group: MakeGroup) -> None:
    group = make_group("a")
    group.start()

    assert group.elect() == "a"
    assert group.ask("a", "write", 1, "x", b"v") == [WriteEnded(1, "accepted", Version(1, 2))]
    group.run(10 * SECOND)
    assert group.leader() == "a"


def test_two_voters_are_refused_unless_they_are_wanted(make_group: MakeGroup) -> None:
    with pytest.raises(BadVoters, match="the loss of either stops the group"):
        make_group("a", "b").start()

    group = make_group("a", "b", allow_two=True)
    group.start()
    leader = group.elect()
    group.crash("b" if leader == "a" else "a")
    group.run(10 * SECOND)
    assert group.leader() == ""


# -- majorities and partitions


def test_fewer_than_a_majority_of_the_configured_voters_never_elect(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c", "d", "e")
    group.start("a", "b")
    group.run(20 * SECOND)
    assert group.told(Elected) == []
    assert [voter.term for voter in group.voters.values()] == [0, 0]


def test_of_two_parts_only_the_one_with_a_majority_elects(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c", "d", "e")
    group.start()
    first = group.elect()
    small = [first, group.followers()[0]]
    group.cut = {(x, y) for x in "abcde" for y in "abcde" if (x in small) != (y in small)}

    leaders = group.watch(6 * SECOND)

    assert leaders[-1] not in ("", *small)
    assert [group.voters[name].term for name in small] == [1, 1]


def test_a_leader_that_can_speak_but_not_hear_steps_down_and_another_leads(group: Any) -> None:
    leader = group.elect()
    group.cut = {(name, leader) for name in "abc"}

    leaders = group.watch(8 * SECOND)

    assert group.told(SteppedDown, leader) == [SteppedDown(1, "no majority answered within the lease")]
    assert leaders[-1] not in ("", leader)


def test_without_its_safeguard_a_leader_nobody_answers_keeps_all_quiet(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c", safeguards=Safeguards(check_quorum=False))
    group.start()
    leader = group.elect()
    group.cut = {(name, leader) for name in "abc"}
    group.run(8 * SECOND)

    assert group.told(SteppedDown) == []
    assert group.leader() == ""
    assert group.voters[leader].role is VoterRole.LEADER


LINKS = [(sender, to) for sender in "abc" for to in "abc" if sender != to]


@pytest.mark.parametrize("cut", range(2 ** len(LINKS)))
def test_whatever_links_are_cut_at_most_one_leads_and_a_connected_majority_finds_one(
    make_group: MakeGroup, cut: int
) -> None:
    group = make_group("a", "b", "c")
    group.start()
    group.elect()
    group.cut = {link for number, link in enumerate(LINKS) if cut >> number & 1}

    leaders = group.watch(9 * SECOND)

    if any((x, y) not in group.cut and (y, x) not in group.cut for x, y in combinations("abc", 2)):
        assert leaders[-1]


def test_a_voter_without_company_does_not_raise_its_term_and_does_not_disturb_when_it_returns(group: Any) -> None:
    leader = group.elect()
    lonely = group.followers()[0]
    group.isolate(lonely)
    group.run(60 * SECOND)
    assert group.voters[lonely].term == 1

    group.heal()
    group.run(5 * SECOND)

    assert group.leader() == leader
    assert group.told(SteppedDown) == []


def test_without_its_safeguard_a_lonely_voter_raises_its_term_and_deposes_the_leader(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c", safeguards=Safeguards(pre_vote=False))
    group.start()
    group.elect()
    lonely = group.followers()[0]
    group.isolate(lonely)
    group.run(20 * SECOND)
    assert group.voters[lonely].term > 5

    group.heal()
    group.run(5 * SECOND)

    assert group.told(SteppedDown)


# -- doubts


def test_a_group_whose_voters_are_all_unwell_elects_one_of_them_though_later(make_group: MakeGroup) -> None:
    times = {}
    for score in (0, 8):
        group = make_group("a", "b", "c")
        group.start()
        group.elect()
        for voter in group.voters.values():
            voter.set_health(score)
        group.run(SECOND)
        group.crash(group.leader())
        began = group.now
        assert group.elect()
        times[score] = group.now - began

    assert times[0] < times[8] < 5 * LAN.lease_ns
