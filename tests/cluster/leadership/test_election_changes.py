"""How leadership is given up on purpose, and how the voters of a group change."""

from collections.abc import Callable
from typing import Any

import pytest

from talka.cluster.leadership.election import Phase, VoterRole
from talka.cluster.leadership.election_timeouts import CLEARLY
from talka.cluster.leadership.news import (
    ConfigChanged,
    LeaderChanged,
    LeadershipAlarm,
    PhaseChanged,
    SteppedDown,
    WriteEnded,
)
from talka.cluster.leadership.peer_checks import ALARMS_LIMIT
from talka.cluster.leadership.timings import LAN
from talka.units import MILLISECOND, SECOND
from talka.wire.leadership import (
    Collected,
    Heartbeat,
    HeartbeatReply,
    PreVote,
    ProposalAccepted,
    Propose,
    RegisterEntry,
    RegisterSnapshot,
    Released,
    SnapshotReply,
    Version,
    Vote,
)

LATER = Version(2**40, 0)
VOTER_LEASE = LAN.voter_lease_ns()
MakeGroup = Callable[..., Any]


# -- giving leadership up


def test_leadership_that_is_handed_over_is_taken_at_once_by_the_one_invited(group: Any) -> None:
    first = group.elect()
    group.run(SECOND)

    told = group.ask(first, "hand_over")
    invited = group.messages(Released, first)[0][2].invited
    group.run(20 * MILLISECOND)

    assert told[0] == SteppedDown(1, "handed over")
    assert invited in group.voters and invited != first
    assert group.leader() == invited


def test_a_lease_that_was_given_up_binds_nobody_even_those_who_missed_the_word(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c", "d", "e")
    group.start()
    first = group.elect()
    group.is_lost = lambda sender, to, message: isinstance(message, Released) and to != message.invited

    group.ask(first, "hand_over")
    group.run(20 * MILLISECOND)

    assert group.leader() == group.messages(Released, first)[0][2].invited


def test_word_of_a_leadership_given_up_earlier_does_not_end_the_present_one(group: Any) -> None:
    first = group.elect()
    group.ask(first, "hand_over")
    second = group.elect()
    voter = next(name for name in group.voters if name not in (first, second))

    group.tell(voter, first, Released(1, voter))
    group.tell(second, first, Released(1, second))

    assert group.voters[voter].leader == second
    assert group.leader() == second
    assert group.tell(voter, first, PreVote(9, 1, LATER, released=1))[0][1].granted is False
    assert group.tell(voter, first, PreVote(9, 1, LATER, released=2))[0][1].granted is True


def test_a_heartbeat_that_the_word_of_its_leaders_end_has_overtaken_is_not_followed(group: Any) -> None:
    first = group.elect()
    voter = group.followers()[0]
    group.crash(first)
    group.tell(voter, first, Released(1, ""))

    assert group.tell(voter, first, Heartbeat(1, 99, 0)) == []
    assert group.voters[voter].leader == ""


def test_those_who_are_not_invited_let_the_invited_one_go_first_and_stand_when_it_does_not(group: Any) -> None:
    first = group.elect()
    invited, other = group.followers()
    group.is_lost = lambda sender, to, message: isinstance(message, Released) and to == invited
    group.crash(invited)

    group.ask(first, "hand_over")

    assert group.voters[other].leader == ""
    assert LAN.lease_ns // 20 <= group.voters[other].next_tick_at - group.now <= LAN.lease_ns
    group.elect(SECOND)


def test_handing_over_what_one_does_not_have_changes_nothing(group: Any) -> None:
    leader = group.elect()

    assert group.ask(group.followers()[0], "hand_over") == []
    assert group.leader() == leader


def test_leadership_is_handed_to_the_one_that_doubts_itself_least(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c", "d", "e")
    group.start()
    first = group.elect()
    *others, best = group.followers()
    for name in others:
        group.voters[name].set_health(2)
    group.voters[best].set_health(1)
    group.run(SECOND)

    group.ask(first, "hand_over")

    assert {word.invited for _, _, word in group.messages(Released, first)} == {best}


@pytest.mark.parametrize(("own", "others", "is_handed"), [(CLEARLY, 0, True), (CLEARLY - 1, 0, False), (8, 6, False)])
def test_an_unwell_leader_hands_over_only_to_one_that_is_clearly_better_off(
    group: Any, own: int, others: int, is_handed: bool
) -> None:
    leader = group.elect()
    for name, voter in group.voters.items():
        voter.set_health(own if name == leader else others)
    group.run(SECOND)

    told = group.ask(leader, "hand_over_if_worse")

    assert [news.reason for news in told if isinstance(news, SteppedDown)] == ["handed over"] * is_handed
    assert (group.leader() == leader) is not is_handed


def test_leadership_is_not_handed_to_one_that_has_just_lost_it_because_nobody_answered(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c", "d", "e")
    group.start()
    flapping = group.elect()
    group.isolate(flapping)
    unwell = group.elect(but=flapping)
    group.heal()
    for name, voter in group.voters.items():
        voter.set_health({flapping: 0, unwell: CLEARLY}.get(name, 1))
    group.run(SECOND)

    assert group.ask(unwell, "hand_over_if_worse") == []
    for name, voter in group.voters.items():
        voter.set_health({flapping: 0, unwell: CLEARLY + 1}.get(name, 1))
    group.run(SECOND)
    group.ask(unwell, "hand_over_if_worse")

    (invited,) = {word.invited for _, _, word in group.messages(Released, unwell)}
    assert invited not in (flapping, unwell)


def test_nobody_hands_over_for_its_health_what_it_does_not_have_or_nobody_can_take(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c")
    group.start()
    leader = group.elect()
    follower = group.followers()[0]
    group.voters[follower].set_health(8)
    assert group.ask(follower, "hand_over_if_worse") == []
    assert group.leader() == leader

    alone = make_group("a")
    alone.start()
    alone.elect()
    alone.voters["a"].set_health(8)
    assert alone.ask("a", "hand_over_if_worse") == []
    assert alone.leader() == "a"


def test_a_leader_that_handed_over_stands_again_no_sooner_than_others(group: Any) -> None:
    first = group.elect()
    group.ask(first, "hand_over")

    assert group.voters[first].next_tick_at >= group.now + VOTER_LEASE


def test_a_voter_that_drains_leads_no_more_and_goes_on_voting(group: Any) -> None:
    first = group.elect()
    group.is_lost = lambda sender, to, message: isinstance(message, PreVote) and sender != first

    told = group.ask(first, "drain")
    before = len(group.messages(PreVote, first))
    group.run(20 * SECOND)

    assert told[:2] == [PhaseChanged("draining"), SteppedDown(1, "draining")]
    assert group.leader() == ""
    assert len(group.messages(PreVote, first)) == before
    assert group.ask(first, "drain") == []
    group.crash(group.followers()[1])
    group.heal()
    assert group.elect() != first  # by its vote: there is no other


def test_a_voter_that_drains_before_it_knows_its_promises_never_votes(group: Any) -> None:
    leader = group.elect()
    drained, other = group.followers()
    group.crash(drained)
    group.start(drained)
    group.ask(drained, "drain")
    group.crash(leader)
    group.run(10 * SECOND)

    assert group.leader() == ""
    assert group.tell(drained, other, Vote(9, LATER))[0][1].granted is False


def test_leadership_given_up_on_purpose_is_no_reason_to_wait_longer(group: Any) -> None:
    for _ in range(9):
        leader = group.elect()
        group.ask(leader, "hand_over")

        assert group.voters[leader].next_tick_at < group.now + LAN.lease_ns * 3 // 2


def test_everybody_is_told_once_who_leads_and_that_nobody_does(group: Any) -> None:
    first = group.elect()
    voter = group.followers()[0]
    group.run(SECOND)
    group.ask(first, "hand_over")
    second = group.elect()
    group.run(SECOND)

    told = group.told(LeaderChanged, voter)

    assert told[0] == LeaderChanged(first, 1)
    assert told[1].leader == ""
    assert told[-1].leader == second
    assert len(told) == 3


# -- other voters


def joined(group: Any, name: str) -> str:
    """A group of voters and one more, started and brought up to date; the leader."""
    leader = group.elect()
    group.ask(leader, "write", 1, "x", b"v")
    group.start(name, voters=(*group.names, name))
    group.run(2 * SECOND)
    assert group.leader() == leader
    return str(leader)


def test_one_that_wants_to_join_learns_first_and_has_no_vote(group: Any) -> None:
    leader = joined(group, "d")

    assert group.disks["d"]["entry/x"] == group.disks[leader]["entry/x"]
    assert group.voters["d"].phase is Phase.SYNCING
    assert group.voters[leader].config.names() == ("a", "b", "c")
    for question in (Vote(9, LATER), PreVote(9, 1, LATER), Heartbeat(1, 1, 0)):
        assert group.tell("d", "a", question) == []
    group.crash(leader)
    group.run(VOTER_LEASE)
    voter = next(name for name in "abc" if name != leader)
    version = group.entry(voter, "config").version
    assert group.tell(voter, "d", PreVote(9, 1, version))[0][1].granted is False


def test_a_voter_that_was_added_votes_and_can_lead(group: Any) -> None:
    leader = joined(group, "d")

    told = group.ask(leader, "change_voters", 2, ("a", "b", "c", "d"))
    group.run(3 * SECOND)

    assert [type(news) for news in told] == [ConfigChanged, WriteEnded]
    assert {voter.config.names() for voter in group.voters.values()} == {("a", "b", "c", "d")}
    assert {voter.phase for voter in group.voters.values()} == {Phase.ACTIVE}
    group.is_lost = lambda sender, to, message: isinstance(message, PreVote) and sender != "d"
    group.crash(leader)
    assert group.elect() == "d"
    assert group.voters["d"].leader_term.value_of("x") == b"v"


def test_a_newcomer_is_admitted_by_the_last_lesson_of_its_change(group: Any) -> None:
    leader = joined(group, "d")
    group.is_lost = lambda sender, to, message: isinstance(message, Propose) and to == "d"

    told = group.ask(leader, "change_voters", 2, ("a", "b", "c", "d"))

    assert told[-1].outcome == "accepted"
    assert group.record("d").admitted
    assert group.voters["d"].phase is Phase.ACTIVE
    assert group.entry("d", "config") == group.entry(leader, "config")
    assert group.entry("d", "x").value == b"v"


def test_a_newcomer_that_drains_is_admitted_and_goes_on_draining(group: Any) -> None:
    leader = joined(group, "d")
    group.ask("d", "drain")

    group.ask(leader, "change_voters", 2, ("a", "b", "c", "d"))

    assert group.voters["d"].is_admitted
    assert group.voters["d"].phase is Phase.DRAINING


def test_a_newcomer_counts_with_the_disk_it_learned_with_also_before_the_change_is_done(group: Any) -> None:
    leader = joined(group, "d")
    group.lose(ProposalAccepted)
    group.ask(leader, "change_voters", 2, ("a", "b", "c", "d"))
    group.ask(leader, "write", 3, "y", b"w")
    group.heal()
    voter = next(name for name in "abc" if name != leader)
    batch = group.messages(Propose, leader)[-1][2].batch
    disk_id = group.record("d").disk_id

    group.tell(
        leader, voter, ProposalAccepted(1, batch, group.record(voter).disk_id, 1)
    )  # two of three, and two of four
    group.tell(leader, "d", ProposalAccepted(1, batch, disk_id + 1, 1))
    assert group.told(WriteEnded, leader)[1:] == []

    group.tell(leader, "d", ProposalAccepted(1, batch, disk_id, 1))
    assert [(told.ref, told.outcome) for told in group.told(WriteEnded, leader)[1:]] == [(3, "accepted")]


def test_voters_with_their_disks_elect_again_whatever_a_newcomer_missed(group: Any) -> None:
    leader = joined(group, "d")
    other, lost = [name for name in "abc" if name != leader]
    group.crash(lost)
    group.lose_disk(lost)
    group.lose(RegisterSnapshot)
    group.ask(leader, "change_voters", 2, ("a", "b", "c", "d"))
    group.run(SECOND)

    group.crash(leader)
    group.start(leader)

    # Two of three; had they heard of the change, they would be two of four.
    assert group.elect() in (leader, other)
    assert group.voters[other].config.names() == ("a", "b", "c")
    group.heal()
    group.start(lost)
    group.run(10 * SECOND)
    assert group.voters[lost].phase is Phase.ACTIVE


def test_a_newcomer_that_does_not_learn_in_time_leaves_the_voters_as_they_are(group: Any) -> None:
    leader = joined(group, "d")
    group.lose(RegisterSnapshot)
    assert group.ask(leader, "change_voters", 2, ("a", "b", "c", "d")) == []

    group.run(3 * SECOND)

    assert group.told(WriteEnded)[1:] == [WriteEnded(2, "unknown", reason="'d' did not learn in time")]
    assert {voter.config.names() for voter in group.voters.values()} == {("a", "b", "c")}
    group.heal()
    assert group.ask(leader, "change_voters", 3, ("a", "b", "c", "d"))[-1].outcome == "accepted"


def test_a_newcomer_whose_leader_is_lost_before_it_asks_the_others_can_finish_the_change(group: Any) -> None:
    leader = joined(group, "d")
    group.lose(SnapshotReply)
    group.ask(leader, "change_voters", 2, ("a", "b", "c", "d"))
    group.heal()
    assert group.voters["d"].config.names() == ("a", "b", "c", "d")
    group.ask(leader, "drain")
    assert group.told(WriteEnded)[1:] == [WriteEnded(2, "unknown", reason="leadership ended")]
    group.crash(leader)

    group.is_lost = lambda sender, to, message: isinstance(message, PreVote) and sender != "d"

    assert group.elect() == "d"
    group.run(SECOND)
    assert {voter.config.names() for voter in group.voters.values()} == {("a", "b", "c", "d")}
    assert group.voters["d"].leader_term.value_of("x") == b"v"


def test_a_newcomer_whose_answer_was_lost_can_be_added_later(group: Any) -> None:
    leader = joined(group, "d")
    group.lose(SnapshotReply)
    group.ask(leader, "change_voters", 2, ("a", "b", "c", "d"))
    group.run(3 * SECOND)
    assert group.voters["d"].phase is Phase.ACTIVE  # it says Hello no more
    group.heal()

    assert group.ask(leader, "change_voters", 3, ("a", "b", "c", "d"))[-1].outcome == "accepted"
    group.run(SECOND)
    assert {voter.config.names() for voter in group.voters.values()} == {("a", "b", "c", "d")}


@pytest.mark.parametrize("is_removal", [False, True], ids=["then another joins", "then one is removed"])
def test_a_newcomer_that_learned_in_vain_makes_no_second_group(make_group: MakeGroup, is_removal: bool) -> None:
    group = make_group("a", "b", "c", "d")
    group.start()
    leader = group.elect()
    second, third, fourth = group.followers()
    for name in "ef":
        group.start(name, voters=("a", "b", "c", "d", name))
    group.run(2 * SECOND)
    group.lose(SnapshotReply)
    group.ask(leader, "change_voters", 1, ("a", "b", "c", "d", "e"))
    group.run(3 * SECOND)
    assert group.voters["e"].config.names() == ("a", "b", "c", "d", "e")

    # Another change is known to one voter, or newcomer, alone.
    group.lose(Propose, SnapshotReply)
    names = (leader, second, third) if is_removal else ("a", "b", "c", "d", "f")
    group.ask(leader, "change_voters", 2, names)
    group.crash(leader)
    group.start(leader)
    assert group.voters[leader if is_removal else "f"].config.names() == tuple(sorted(names))
    group.heal()
    half = (leader, second) if is_removal else (leader, second, "f")
    group.cut = {(one, other) for one in "abcdef" for other in "abcdef" if (one in half) != (other in half)}

    # Each half had a majority: two of the three that are left, or three of five, and three of the five with `e`.
    assert not {"e", third, fourth} & set(group.watch(20 * SECOND))


def test_those_who_spoke_lately_are_known_and_none_that_is_no_voter(group: Any) -> None:
    leader = joined(group, "d")
    other, down = [name for name in "abc" if name != leader]
    assert group.voters[leader].electorate.answering(group.now) == ["a", "b", "c"]

    group.crash(down)
    group.run(4 * SECOND)

    assert group.voters[leader].electorate.answering(group.now) == sorted((leader, other))


def test_it_is_known_for_how_long_a_voter_has_been_silent(group: Any) -> None:
    leader = group.elect()
    other, down = group.followers()
    group.run(SECOND)
    group.crash(down)

    group.run(4 * SECOND)

    voter = group.voters[leader]
    assert voter.electorate.silent_ns(group.now, leader) == 0
    assert voter.electorate.silent_ns(group.now, other) <= LAN.heartbeat_ns
    assert 4 * SECOND <= voter.electorate.silent_ns(group.now, down) <= 4 * SECOND + LAN.heartbeat_ns


def test_a_voter_can_be_added_while_another_one_is_down(group: Any) -> None:
    leader = group.elect()
    group.crash(group.followers()[0])
    group.start("d", voters=("a", "b", "c", "d"))
    group.run(2 * SECOND)

    told = group.ask(leader, "change_voters", 1, ("a", "b", "c", "d"))
    group.run(20 * SECOND)

    assert told[-1].outcome == "accepted"
    assert group.leader() == leader
    assert group.told(SteppedDown) == []
    assert {voter.config.names() for voter in group.voters.values()} == {("a", "b", "c", "d")}


def test_a_group_of_one_can_grow(make_group: MakeGroup) -> None:
    group = make_group("a")
    group.start()
    group.elect()
    for names in (("a", "b"), ("a", "b", "c")):
        group.start(names[-1], voters=names, allow_two=True)
        group.run(2 * SECOND)
        assert group.ask("a", "change_voters", 1, names, allow_two=True)[-1].outcome == "accepted"
        group.run(10 * SECOND)

        assert group.leader() == "a"
        assert {voter.phase for voter in group.voters.values()} == {Phase.ACTIVE}

    group.crash("a")
    assert group.elect() in ("b", "c")


@pytest.mark.parametrize(("allow_two", "outcome"), [(False, "refused"), (True, "accepted")])
def test_two_voters_are_reached_by_removal_only_when_they_are_wanted(group: Any, allow_two: bool, outcome: str) -> None:
    leader = group.elect()
    kept = tuple(sorted((leader, group.followers()[0])))

    told = group.ask(leader, "change_voters", 1, kept, allow_two=allow_two)

    assert told[-1].outcome == outcome
    assert (group.voters[leader].config.names() == kept) is allow_two


def test_one_that_never_learned_is_not_added(group: Any) -> None:
    leader = group.elect()

    told = group.ask(leader, "change_voters", 1, ("a", "b", "c", "d"))

    assert told[0].outcome == "refused"
    assert group.voters[leader].config.names() == ("a", "b", "c")


def test_three_voters_cannot_become_five_in_one_step(group: Any) -> None:
    leader = joined(group, "d")
    group.start("e", voters=("a", "b", "c", "d", "e"))
    group.run(2 * SECOND)

    told = group.ask(leader, "change_voters", 2, ("a", "b", "c", "d", "e"))

    assert told[0].outcome == "refused"
    assert told[0].reason.startswith("voters change one at a time")


def test_a_change_only_a_minority_knows_makes_no_second_group(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c", "d")
    group.start()
    first = group.elect()
    group.run(SECOND)
    group.isolate(first)
    dropped = group.followers()[0]
    group.ask(first, "change_voters", 1, tuple(name for name in "abcd" if name != dropped))
    second = group.elect(but=first)
    assert group.told(WriteEnded, first) == [WriteEnded(1, "unknown", reason="leadership ended")]
    assert group.voters[second].config.names() == ("a", "b", "c", "d")

    group.heal()
    for _ in range(200):
        group.run(25 * MILLISECOND)
        assert group.leader() in (second, "")

    assert group.leader() == second
    assert group.voters[second].config.names() == ("a", "b", "c", "d")


def test_a_change_that_never_was_does_not_keep_a_majority_from_electing(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c", "d", "e")
    group.start()
    first = group.elect()
    group.run(SECOND)
    dropped, second, third, late = group.followers()
    group.isolate(first)
    group.ask(first, "change_voters", 1, tuple(name for name in "abcde" if name != dropped))
    # The next leader writes its configuration to all but the first one and the late one, and is lost with another.
    group.is_lost = lambda sender, to, message: (
        (isinstance(message, PreVote | Vote) and sender != second) or (isinstance(message, Propose) and to == late)
    )
    assert group.elect(but=first) == second
    group.run(SECOND)
    assert group.entry(dropped, "config").version > group.entry(first, "config").version
    group.crash(second, third)
    group.heal()

    # Three of five are left: who holds the newest configuration is no voter by the one the first leader holds.
    group.elect(60 * SECOND)

    group.run(SECOND)
    assert {voter.config.names() for voter in group.voters.values()} == {("a", "b", "c", "d", "e")}


def test_a_change_that_its_leader_did_not_finish_is_finished_by_the_one_who_finds_it(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c", "d", "e")
    group.start()
    first = group.elect()
    group.run(SECOND)
    heir, gone, *_ = group.followers()
    names = tuple(name for name in "abcde" if name != gone)
    group.cut = {(first, name) for name in "abcde" if name != heir}
    group.ask(first, "change_voters", 1, names)
    assert group.voters[heir].config.names() == names
    group.crash(first)
    group.heal()

    # Whoever holds the newer configuration does not vote for one that does not: only the heir can find a majority
    # with it, or three others without it.
    group.is_lost = lambda sender, to, message: isinstance(message, PreVote) and sender != heir
    second = group.elect()
    group.run(SECOND)

    assert second == heir
    assert {voter.config.names() for name, voter in group.voters.items() if name != gone} == {names}


def test_a_voter_that_was_removed_is_asked_nothing_and_disturbs_nobody(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c", "d")
    group.start()
    leader = group.elect()
    removed = group.followers()[0]
    rest = tuple(name for name in "abcd" if name != removed)
    assert group.ask(leader, "change_voters", 1, rest)[-1].outcome == "accepted"
    group.run(10 * SECOND)

    assert group.leader() == leader
    assert group.told(SteppedDown) == []
    assert group.voters[leader].term == 1
    group.tell(leader, removed, HeartbeatReply(9, 1, group.record(removed).disk_id, 1, LATER, 0))
    assert group.leader() == leader
    asked = next(name for name in rest if name != leader)
    group.crash(leader)
    group.run(VOTER_LEASE)
    assert group.votes(asked, removed, Vote(2, group.entry(asked, "config").version)) == [False]
    assert group.votes(asked, next(name for name in rest if name not in (leader, asked)), Vote(2, LATER)) == [True]


def test_a_leader_that_is_removed_finishes_the_change_and_leaves(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c", "d")
    group.start()
    first = group.elect()
    rest = tuple(name for name in "abcd" if name != first)

    told = group.ask(first, "change_voters", 1, rest)
    second = group.elect(but=first)
    group.run(10 * SECOND)

    assert [type(news) for news in told[:3]] == [ConfigChanged, WriteEnded, SteppedDown]
    assert told[1].outcome == "accepted"
    assert told[2].reason == "no longer a voter"
    assert second in rest
    assert group.leader() == second
    assert group.voters[first].role is VoterRole.FOLLOWER


def test_an_answer_to_a_snapshot_of_another_term_or_disk_or_to_a_follower_says_nothing(group: Any) -> None:
    leader = joined(group, "d")
    follower, down = [name for name in "abc" if name != leader]
    group.crash(down)
    disk_id = group.record("d").disk_id
    group.lose(SnapshotReply)
    assert group.ask(leader, "change_voters", 2, ("a", "b", "c", "d")) == []
    number = group.messages(RegisterSnapshot, leader)[-1][2].number
    group.heal()

    assert group.tell(leader, "d", SnapshotReply(9, number, 0, disk_id)) == []
    assert group.tell(leader, "d", SnapshotReply(1, number, 0, disk_id + 1)) == []
    assert group.tell(follower, "d", SnapshotReply(1, number, 0, disk_id)) == []
    assert group.told(WriteEnded, leader)[1:] == []
    assert group.leader() == leader

    group.tell(leader, "d", SnapshotReply(1, number, 0, disk_id))
    assert [told.outcome for told in group.told(WriteEnded, leader)[1:]] == ["accepted"]


# -- alarms


UNREADABLE = (RegisterEntry("config", Version(9, 9), b"\xc1"),)


@pytest.mark.parametrize(
    "message",
    [Propose(1, 9, UNREADABLE), Collected(1, "", UNREADABLE, False), RegisterSnapshot(1, 9, 0, 1, UNREADABLE, 0)],
    ids=["propose", "collected", "snapshot"],
)
def test_a_configuration_nobody_can_read_is_not_taken_and_is_an_alarm(group: Any, message: Any) -> None:
    leader = group.elect()
    voter = group.followers()[0]
    before = dict(group.disks[voter])

    assert group.tell(voter, leader, message) == []

    assert group.disks[voter] == before
    assert [alarm.kind for alarm in group.told(LeadershipAlarm, voter)] == ["configuration"]


def test_alarms_have_a_limit_whatever_is_made_up(group: Any) -> None:
    group.elect()
    group.run(SECOND)
    voter = group.followers()[0]
    group_id = group.voters[voter].config.group_id

    for number in range(2 * ALARMS_LIMIT):
        group.tell(voter, f"x{number}", Heartbeat(1, 1, group_id + 1))

    assert len(group.told(LeadershipAlarm, voter)) == ALARMS_LIMIT


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_a_group_lives_on_without_any_one_of_its_voters(group: Any, name: str) -> None:
    group.elect()
    group.run(SECOND)
    group.crash(name)

    assert group.elect() != name
