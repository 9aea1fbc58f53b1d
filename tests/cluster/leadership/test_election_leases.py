"""Leases: how long a leader may act, and what voters wait for."""

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from talka.cluster.leadership.news import LeaderChanged, ReadEnded, SteppedDown, WriteEnded
from talka.cluster.leadership.timings import LAN
from talka.cluster.safeguards import ALL, Safeguards
from talka.units import MILLISECOND, SECOND
from talka.wire.leadership import (
    Heartbeat,
    HeartbeatReply,
    PreVote,
    Propose,
    Released,
    Version,
    Vote,
)

LATER = Version(2**40, 0)
"""As new a configuration as any: it is no reason to refuse a vote."""
VOTER_LEASE = LAN.voter_lease_ns(ALL)
LEADER_LEASE = LAN.leader_lease_ns(ALL)
MakeGroup = Callable[..., Any]


def reply_of(group: Any, name: str, number: int) -> HeartbeatReply:
    """What a voter answers to this round of the first leader."""
    return HeartbeatReply(1, number, group.record(name).disk_id, 1, LATER, 0)


# -- leases


def partly_cut(group: Any) -> tuple[str, str, str]:
    """The leader lives on the answers of one voter; the other hears nothing of it and would take over."""
    leader = group.elect()
    supporter, doubter = group.followers()
    group.cut |= {(leader, doubter), (doubter, leader)}
    group.run(3 * SECOND)
    assert group.leader() == leader
    return leader, supporter, doubter


def test_a_restarted_voter_gives_no_vote_while_a_lease_it_forgot_may_run(group: Any) -> None:
    leader, supporter, doubter = partly_cut(group)
    group.isolate(leader)
    group.crash(supporter)
    group.start(supporter)

    leaders = group.watch(4 * SECOND)

    assert leaders[0] == leader
    assert doubter in leaders or supporter in leaders


def test_without_its_safeguard_a_restarted_voter_breaks_the_lease_it_forgot(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c")
    group.start()
    leader, supporter, _ = partly_cut(group)
    group.isolate(leader)
    group.crash(supporter)
    group.start(supporter, safeguards=Safeguards(vote_hold_down=False))

    with pytest.raises(AssertionError, match="lead at once"):
        group.watch(4 * SECOND)


def test_a_leader_stops_before_the_lease_is_over_and_a_voter_waits_until_after(group: Any) -> None:
    leader = group.elect()
    group.run(SECOND)
    voter, candidate = group.followers()
    until = group.voters[leader].leader_term.lease_until
    sent_at = until - LEADER_LEASE
    term = group.voters[leader].term
    group.isolate(leader)
    assert sent_at <= group.now

    group.run(until - 1 - group.now)
    assert group.voters[leader].is_leading(group.now)
    group.run(1)
    assert not group.voters[leader].is_leading(group.now)
    group.run(sent_at + VOTER_LEASE - 1 - group.now)
    assert group.votes(voter, candidate, Vote(term + 1, LATER)) == [False]
    group.run(1)
    assert group.votes(voter, candidate, Vote(term + 1, LATER)) == [True]


def test_answers_that_come_late_do_not_make_a_lease_longer(group: Any) -> None:
    leader = group.elect()
    until = group.voters[leader].leader_term.lease_until
    group.lose(HeartbeatReply)
    group.run(LAN.heartbeat_ns + 10 * MILLISECOND)
    number = group.messages(Heartbeat, leader)[-1][2].round
    group.run(SECOND // 2)
    assert group.voters[leader].leader_term.lease_until == until

    group.heal()
    group.tell(leader, group.followers()[0], reply_of(group, group.followers()[0], number))

    assert group.voters[leader].leader_term.lease_until == until + LAN.heartbeat_ns


def test_an_answer_from_another_disk_than_the_one_recorded_renews_no_lease(group: Any) -> None:
    leader = group.elect()
    voter = group.followers()[0]
    until = group.voters[leader].leader_term.lease_until
    group.lose(HeartbeatReply)
    group.run(LAN.heartbeat_ns + 10 * MILLISECOND)
    number = group.messages(Heartbeat, leader)[-1][2].round
    group.heal()
    answer = reply_of(group, voter, number)

    group.tell(leader, voter, msgspec.structs.replace(answer, disk_id=answer.disk_id + 1))
    assert group.voters[leader].leader_term.lease_until == until

    group.tell(leader, voter, answer)
    assert group.voters[leader].leader_term.lease_until == until + LAN.heartbeat_ns


def test_frequent_reads_do_not_cost_the_lease_where_answers_take_long(group: Any) -> None:
    leader = group.elect()
    late: deque[tuple[int, str, HeartbeatReply]] = deque()

    def is_lost(sender: str, to: str, message: object) -> bool:
        if not isinstance(message, HeartbeatReply) or any(message is word for word in arrived):
            return False
        late.append((group.now + SECOND, sender, message))
        return True

    arrived: list[HeartbeatReply] = []
    group.is_lost = is_lost
    for number in range(400):
        group.ask(leader, "read", number, "x")
        group.run(10 * MILLISECOND)
        while late and late[0][0] <= group.now:
            _, sender, message = late.popleft()
            arrived[:] = [message]
            group.tell(leader, sender, message)

    assert group.told(SteppedDown) == []
    assert [read.outcome for read in group.told(ReadEnded)[:100]] == ["accepted"] * 100


def test_a_leader_that_stalled_gives_leadership_up_before_it_does_anything_else(group: Any) -> None:
    leader = group.elect()
    group.paused.add(leader)
    group.run(700 * MILLISECOND)
    group.paused.clear()
    assert group.voters[leader].leader_term.holds_lease(group.now)
    assert not group.voters[leader].is_leading(group.now)

    told = group.ask(leader, "write", 1, "x", b"v")

    assert [type(news) for news in told] == [SteppedDown, LeaderChanged, WriteEnded]
    assert told[0].reason.startswith("stalled for ")
    assert told[2] == WriteEnded(1, "refused", reason="this voter does not lead")
    assert group.messages(Propose, leader)[-1][2].entries[0].key != "x"


@pytest.mark.parametrize("woken_by", ["message", "disk", "timer", "read", "change", "hand-over", "drain"])
def test_whatever_wakes_a_leader_that_stalled_ends_its_leadership(group: Any, woken_by: str) -> None:
    leader = group.elect()
    group.paused.add(leader)
    group.run(700 * MILLISECOND)
    group.paused.clear()
    match woken_by:
        case "message":
            group.tell(leader, group.followers()[0], reply_of(group, group.followers()[0], 1))
        case "disk":
            group.ask(leader, "on_persisted", 1)
        case "timer":
            group.ask(leader, "tick")
        case "read":
            assert group.ask(leader, "read", 1, "x")[-1].outcome == "refused"
        case "change":
            assert group.ask(leader, "change_voters", 1, ("a", "b"))[-1].outcome == "refused"
        case "hand-over":
            group.ask(leader, "hand_over")
        case _:
            group.ask(leader, "drain")

    assert group.told(SteppedDown)[0].reason.startswith("stalled for ")


def test_the_only_voter_goes_on_after_a_stall_within_its_lease(make_group: MakeGroup) -> None:
    group = make_group("a")
    group.start()
    group.elect()
    group.run(SECOND)
    group.paused.add("a")
    group.run(LEADER_LEASE - LAN.heartbeat_ns - 10 * MILLISECOND)
    group.paused.clear()
    assert group.voters["a"].is_leading(group.now)

    told = group.ask("a", "write", 1, "x", b"v")
    group.run(3 * SECOND)

    assert SteppedDown not in [type(news) for news in told]
    assert [(ended.ref, ended.outcome) for ended in group.told(WriteEnded)] == [(1, "accepted")]
    assert group.leader() == "a"
    assert group.told(SteppedDown) == []


def test_the_only_voter_that_slept_through_its_lease_is_elected_anew(make_group: MakeGroup) -> None:
    group = make_group("a")
    group.start()
    group.elect()
    first = group.voters["a"].leader_term.term
    group.paused.add("a")
    group.run(LEADER_LEASE + 10 * MILLISECOND)
    group.paused.clear()
    assert not group.voters["a"].is_leading(group.now)

    group.ask("a", "tick")
    group.run(5 * SECOND)

    assert [news.reason[:12] for news in group.told(SteppedDown)] == ["stalled for "]
    assert group.voters["a"].leader_term.term > first


def test_a_short_stall_costs_nothing(group: Any) -> None:
    leader = group.elect()
    group.paused.add(leader)
    group.run(400 * MILLISECOND)
    group.paused.clear()
    group.run(SECOND)

    assert group.leader() == leader
    assert group.told(SteppedDown) == []


# -- leases that are given up


def test_only_the_leader_can_give_its_lease_up(group: Any) -> None:
    leader = group.elect()
    group.run(SECOND)
    voter, candidate = group.followers()
    group.crash(leader)

    group.tell(voter, candidate, Released(1, candidate))
    assert group.voters[voter].leader == leader
    assert group.votes(voter, candidate, Vote(2, LATER)) == [False]

    group.tell(voter, leader, Released(1, candidate))
    assert group.votes(voter, candidate, Vote(2, LATER)) == [True]


def test_a_leader_that_a_voter_gave_up_for_lost_can_still_give_its_lease_up(group: Any) -> None:
    leader = group.elect()
    group.isolate(leader)
    group.lose(Vote)
    group.run(VOTER_LEASE + LAN.lease_ns // 2)
    voter = next(name for name, node in group.voters.items() if name != leader and not node.leader)
    group.crash(leader)
    group.heal()

    group.tell(voter, leader, Released(1, voter))

    assert group.voters[voter].next_tick_at == group.now


def test_a_candidate_cannot_claim_that_a_lease_of_a_later_term_was_given_up(group: Any) -> None:
    leader = group.elect()
    voter, candidate = group.followers()
    group.crash(leader)

    for released in (2, 9, 2**40):
        assert group.tell(voter, candidate, PreVote(2, 1, LATER, released=released))[0][1].granted is False
        assert group.votes(voter, candidate, Vote(2, LATER, released=released)) == [False]

    assert group.votes(voter, candidate, Vote(2, LATER, released=1)) == [True]


# -- hints of membership


def test_a_hint_never_lets_a_voter_break_the_lease_it_answered_itself(group: Any) -> None:
    leader, supporter, doubter = partly_cut(group)
    until = group.voters[leader].leader_term.lease_until
    heard_at = until - LEADER_LEASE
    group.isolate(leader)
    term = group.voters[doubter].term

    for _ in range(20):
        group.ask(supporter, "suspect_leader", leader)
        group.watch(50 * MILLISECOND)  # two that lead at once fail the test
    assert group.now < until
    assert group.leader() == leader
    assert group.voters[supporter].leader == leader
    assert group.voters[supporter].term == term

    assert group.voters[supporter].next_tick_at <= heard_at + VOTER_LEASE
    assert group.elect(but=leader) == supporter
    assert group.now < heard_at + VOTER_LEASE + 50 * MILLISECOND


def test_a_death_that_membership_made_up_changes_nothing_while_voters_hear_the_leader(group: Any) -> None:
    leader = group.elect()
    for name in group.followers():
        group.ask(name, "suspect_leader", leader)
    group.watch(3 * SECOND)

    assert group.leader() == leader
    assert group.told(SteppedDown) == []
    assert group.voters[leader].term == 1


def test_a_death_that_membership_noticed_shortens_the_wait_before_the_question(group: Any) -> None:
    leader = group.elect()
    group.crash(leader)
    group.run(VOTER_LEASE)
    later = max(group.voters, key=lambda name: group.voters[name].next_tick_at)
    before = group.voters[later].next_tick_at
    assert before > group.now

    group.ask(later, "suspect_leader", leader)

    assert group.voters[later].next_tick_at <= min(before, group.now + LAN.lease_ns // 5)


def test_a_death_of_somebody_else_is_no_reason_to_stand(group: Any) -> None:
    leader = group.elect()
    voter, other = group.followers()
    before = [group.voters[name].next_tick_at for name in (leader, voter)]

    group.ask(voter, "suspect_leader", other)
    group.ask(leader, "suspect_leader", leader)

    assert [group.voters[name].next_tick_at for name in (leader, voter)] == before
