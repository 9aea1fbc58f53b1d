"""Votes and terms: what is promised, to whom, and what a later term ends."""

from collections.abc import Callable
from typing import Any

import pytest

from talka.cluster.leadership.election import VoterRole
from talka.cluster.leadership.news import LeadershipAlarm, SteppedDown
from talka.cluster.leadership.peer_checks import TERM_JUMP_LIMIT
from talka.cluster.leadership.register import ENTRY_PREFIX, NEVER
from talka.cluster.leadership.timings import LAN
from talka.units import SECOND
from talka.wire.leadership import (
    Collect,
    Collected,
    Heartbeat,
    HeartbeatReply,
    PreVote,
    PreVoteReply,
    ProposalAccepted,
    ProposalRefused,
    Propose,
    RegisterEntry,
    Version,
    Vote,
    VoteReply,
)
from tests.sim.variants import without

LATER = Version(2**40, 0)
"""As new a configuration as any: it is no reason to refuse a vote."""
VOTER_LEASE = LAN.voter_lease_ns()
MakeGroup = Callable[..., Any]


# -- votes are on disk before they are given


def test_a_vote_is_given_only_once_it_is_on_disk(group: Any) -> None:
    group.quiet()
    group.hold_disk("b")

    assert group.tell("b", "a", Vote(1, LATER)) == []
    group.write_disk("b")

    assert [(to, word.granted) for _, to, word in group.messages(VoteReply, "b")] == [("a", True)]


def test_a_voter_that_was_restarted_keeps_to_its_vote(group: Any) -> None:
    group.quiet()
    assert group.votes("b", "a", Vote(1, LATER)) == [True]
    group.crash("b")
    group.start("b")
    group.run(2 * SECOND)

    assert group.votes("b", "c", Vote(1, LATER)) == [False]
    assert group.votes("b", "a", Vote(1, LATER)) == [True]
    assert group.votes("b", "c", Vote(2, LATER)) == [True]


@without("persist_vote")
def test_without_its_safeguard_a_restarted_voter_votes_twice_in_one_term(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c")
    group.start()
    group.quiet()
    assert group.votes("b", "a", Vote(1, LATER)) == [True]
    group.crash("b")
    group.start("b")
    group.run(2 * SECOND)

    assert group.votes("b", "c", Vote(1, LATER)) == [True]


def test_a_vote_that_was_lost_with_a_crash_was_never_spoken_of(group: Any) -> None:
    group.quiet()
    group.hold_disk("b")
    group.tell("b", "a", Vote(1, LATER))
    group.crash("b")
    group.start("b")
    group.run(2 * SECOND)

    assert group.votes("b", "c", Vote(1, LATER)) == [True]
    assert [to for _, to, _ in group.messages(VoteReply, "b")] == ["c"]


def test_a_candidate_asks_for_votes_only_once_its_own_is_on_disk(group: Any) -> None:
    group.quiet()
    for name in "abc":
        group.hold_disk(name)
    group.heal()
    group.run(2 * SECOND)
    assert VoterRole.CANDIDATE in [voter.role for voter in group.voters.values()]
    assert group.messages(Vote) == []

    for name in "abc":
        group.write_disk(name)

    assert group.messages(Vote)
    group.elect()


def test_who_has_voted_leaves_the_candidate_its_time(group: Any) -> None:
    group.quiet()

    group.tell("b", "a", Vote(1, LATER))

    assert group.voters["b"].next_tick_at >= group.now + LAN.ask_timeout_ns


def test_a_refusal_needs_no_disk(group: Any) -> None:
    group.quiet()
    group.hold_disk("b")
    group.tell("b", "a", Vote(1, LATER))

    assert [(word.granted, word.revision) for _, word in group.tell("b", "c", Vote(1, LATER))] == [(False, 0)]


def test_an_answer_of_an_earlier_candidacy_does_not_count(group: Any) -> None:
    group.lose(PreVoteReply, Vote)
    group.run(3 * SECOND)
    candidate = next(name for name, voter in group.voters.items() if voter.role is VoterRole.PRE_CANDIDATE)
    other = next(name for name in "abc" if name != candidate)
    late, current = sorted({word.round for _, _, word in group.messages(PreVote, candidate)})[-2:]

    group.heal()
    group.lose(Vote)
    group.tell(candidate, other, PreVoteReply(0, late, True))
    group.tell(candidate, other, PreVoteReply(0, current, False))
    assert group.voters[candidate].role is VoterRole.PRE_CANDIDATE
    group.tell(candidate, "stranger", PreVoteReply(0, current, True))
    assert group.voters[candidate].role is VoterRole.PRE_CANDIDATE

    group.tell(candidate, other, PreVoteReply(0, current, True))

    assert group.voters[candidate].role is VoterRole.CANDIDATE
    group.tell(candidate, other, VoteReply(1, False, 1, 1))
    group.tell(candidate, "stranger", VoteReply(1, True, 1, 1))
    group.tell(candidate, other, VoteReply(0, True, 1, 1))
    assert group.voters[candidate].role is VoterRole.CANDIDATE


@pytest.mark.parametrize("answer", [PreVoteReply(7, 1, False), VoteReply(7, False, 1, 0)], ids=["pre-vote", "vote"])
def test_a_candidate_that_hears_of_a_later_term_follows_it(group: Any, answer: Any) -> None:
    group.quiet()

    group.tell("a", "b", answer)

    assert group.voters["a"].term == 7
    assert group.voters["a"].role is VoterRole.FOLLOWER


def test_one_that_holds_an_older_configuration_or_asks_for_an_older_term_gets_no_vote(group: Any) -> None:
    leader = group.elect()
    voter, other = group.followers()
    group.crash(leader)
    group.run(VOTER_LEASE)

    assert group.tell(voter, other, PreVote(5, 1, NEVER))[0][1].granted is False
    assert group.tell(voter, other, PreVote(1, 1, LATER))[0][1].granted is False  # its term has been
    assert group.tell(voter, other, PreVote(5, 1, Version(1, 1)))[0][1].granted is True


def test_by_a_newer_configuration_somebody_unknown_may_be_a_voter(group: Any) -> None:
    leader = group.elect()
    voter = group.followers()[0]
    group.crash(leader)
    group.run(VOTER_LEASE)

    assert group.votes(voter, "d", Vote(2, Version(1, 1))) == [False]
    assert group.votes(voter, "d", Vote(2, Version(1, 2))) == [True]


def test_a_vote_counts_only_from_the_disk_that_is_recorded(group: Any) -> None:
    leader = group.elect()
    group.crash(leader)
    group.lose(Vote)
    group.run(2 * LAN.lease_ns)
    candidate = next(name for name, voter in group.voters.items() if voter.role is VoterRole.CANDIDATE)
    other = next(name for name in group.voters if name != candidate)
    term, disk_id = group.voters[candidate].term, group.record(other).disk_id

    group.tell(candidate, other, VoteReply(term, True, disk_id + 1, 1))
    assert group.voters[candidate].role is VoterRole.CANDIDATE

    group.tell(candidate, other, VoteReply(term, True, disk_id, 1))
    assert group.voters[candidate].role is VoterRole.LEADER


# -- terms


def test_a_term_too_far_ahead_is_not_believed_and_somebody_is_told_once(group: Any) -> None:
    leader = group.elect()
    voter, other = group.followers()
    far = 1 + TERM_JUMP_LIMIT + 1
    for _ in range(3):
        assert group.tell(voter, other, Heartbeat(far, 1, 0)) == []
        assert group.tell(voter, other, Propose(far, 1, ())) == []
        assert group.tell(voter, other, Collect(far)) == []
        group.tell(leader, other, HeartbeatReply(far, 1, group.record(other).disk_id, 1, NEVER, 0))

    assert {node.term for node in group.voters.values()} == {1}
    assert [alarm.kind for alarm in group.told(LeadershipAlarm, voter)] == ["term"]
    assert [alarm.kind for alarm in group.told(LeadershipAlarm, leader)] == ["term"]
    assert group.leader() == leader


def test_a_vote_too_far_ahead_is_not_given(group: Any) -> None:
    group.quiet()

    assert group.tell("b", "a", Vote(TERM_JUMP_LIMIT + 1, LATER)) == []
    assert group.votes("b", "a", Vote(TERM_JUMP_LIMIT, LATER)) == [True]


@pytest.mark.parametrize(
    "answer",
    [
        lambda disk_id: HeartbeatReply(9, 1, disk_id, 1, NEVER, 0),
        lambda disk_id: ProposalRefused(9),
        lambda disk_id: ProposalAccepted(9, 1, disk_id, 1),
        lambda disk_id: Collected(9, "", (), False),
        lambda disk_id: PreVoteReply(9, 1, False),
        lambda disk_id: VoteReply(9, False, disk_id, 0),
    ],
    ids=["heartbeat", "refused", "accepted", "collected", "pre-vote", "vote"],
)
def test_a_leader_that_hears_of_a_later_term_from_a_voter_steps_down(group: Any, answer: Callable[[int], Any]) -> None:
    leader = group.elect()
    voter = group.followers()[0]
    disk_id = group.record(voter).disk_id
    group.tell(leader, "stranger", answer(disk_id))
    assert group.leader() == leader

    group.tell(leader, voter, answer(disk_id))

    assert group.told(SteppedDown, leader) == [SteppedDown(1, "term 9 has begun")]
    assert group.voters[leader].term == 9


def test_what_a_leader_of_an_earlier_term_says_is_answered_with_the_later_one(group: Any) -> None:
    first = group.elect()
    group.isolate(first)
    second = group.elect(but=first)
    voter = next(name for name in "abc" if name not in (first, second))
    group.heal()
    term = group.voters[second].term
    group.crash(first)

    assert group.tell(voter, first, Propose(1, 9, (RegisterEntry("x", Version(1, 9), b"stale"),)))[0][
        1
    ] == ProposalRefused(term)
    assert group.tell(voter, first, Collect(1))[0][1] == ProposalRefused(term)
    assert group.tell(voter, first, Heartbeat(1, 9, 0))[0][1].term == term
    assert ENTRY_PREFIX + "x" not in group.disks[voter]


def test_a_second_leader_in_one_term_is_an_alarm(group: Any) -> None:
    leader = group.elect()
    other = group.followers()[0]

    assert group.tell(leader, other, Heartbeat(1, 1, 0)) == []

    assert [alarm.kind for alarm in group.told(LeadershipAlarm, leader)] == ["two leaders"]
    assert group.leader() == leader


def test_nobody_votes_while_it_leads(group: Any) -> None:
    leader = group.elect()

    assert group.votes(leader, group.followers()[0], Vote(2, LATER)) == [False]
    assert group.tell(leader, group.followers()[0], PreVote(2, 1, LATER))[0][1] == PreVoteReply(1, 1, False)


def test_a_leader_whose_lease_is_over_votes_for_another(group: Any) -> None:
    leader = group.elect()
    other = group.followers()[0]
    group.lose(HeartbeatReply)
    group.run(group.voters[leader].leader_term.lease_until - group.now)

    assert group.votes(leader, other, Vote(2, LATER)) == [True]
    assert group.told(SteppedDown, leader) == [SteppedDown(1, "term 2 has begun")]


# -- who should not lead


def test_a_voter_that_does_badly_does_not_lead_while_another_can(group: Any) -> None:
    leader = group.elect()
    unwell, well = group.followers()
    group.voters[unwell].set_health(0, may_lead=False)
    group.crash(leader)

    assert group.elect() == well


def test_an_invitation_to_lead_is_left_to_others_by_one_that_does_badly(group: Any) -> None:
    leader = group.elect()
    for name in group.followers():
        group.voters[name].set_health(0, may_lead=False)

    group.ask(leader, "hand_over")

    assert group.elect() == leader, "it alone does well"


def test_where_all_do_badly_somebody_leads_all_the_same(group: Any) -> None:
    leader = group.elect()
    for voter in group.voters.values():
        voter.set_health(8, may_lead=False)
    group.crash(leader)

    assert group.elect(limit_ns=12 * LAN.lease_ns) != leader


def test_a_voter_alone_leads_however_badly_it_does(make_group: MakeGroup) -> None:
    group = make_group("a")
    group.start()
    group.voters["a"].set_health(8, may_lead=False)

    assert group.elect(limit_ns=3 * LAN.lease_ns) == "a"
