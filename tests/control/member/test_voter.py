from collections import deque
from random import Random

import pytest

from talka.cluster.effects import Lane, Persist, Send
from talka.cluster.fencing import Token
from talka.cluster.leadership.news import Elected, LeadershipAlarm, ReadEnded, SteppedDown, WriteEnded
from talka.cluster.leadership.quorum import BadVoters
from talka.cluster.leadership.timings import LAN
from talka.cluster.leases import KEYS_LIMIT, LeaseExpired
from talka.control.member.voter import CommandEnded, Voter
from talka.errors import Invalid
from talka.units import MILLISECOND, SECOND
from talka.wire import leadership
from talka.wire.leadership import (
    LeadershipMessage,
    ProposalAccepted,
    Propose,
    RegisterEntry,
    Released,
    Version,
)
from talka.wire.leases import (
    CHANNEL,
    AcquireLease,
    CommandAnswer,
    LeaseAnswer,
    LeaseCommand,
    ReleaseLease,
)

TTL = 4 * SECOND
LONGER = TTL + TTL // 50
"""What a leader counts a lease of `TTL` for."""


class Group:
    """Voters with an instant network and disks that write at once, unless a test says otherwise."""

    def __init__(self, *names: str) -> None:
        self.now = 0
        self.names = names
        self.disks: dict[str, dict[str, bytes]] = {name: {} for name in names}
        self.voters: dict[str, Voter] = {}
        self.news: list[tuple[str, object]] = []
        self.persists = 0
        self.lost: dict[type[LeadershipMessage], None] = {}
        """Kinds of messages that the network loses."""
        self._starts = 0
        self._mail: deque[tuple[str, str, LeadershipMessage]] = deque()
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        self._starts += 1
        voter = Voter(
            name=name, voters=self.names, stored=dict(self.disks[name]), rng=Random(self._starts), now=self.now
        )
        self.voters[name] = voter
        self.carry_out(name, voter.tick(self.now))

    def stop(self, name: str) -> None:
        del self.voters[name]

    def carry_out(self, name: str, effects: list[object]) -> list[object]:
        """Carry out what a voter asks for; what is for others than voters is kept, and returned."""
        todo = deque(effects)
        news: list[object] = []
        while todo:
            effect = todo.popleft()
            if isinstance(effect, Send) and effect.channel == leadership.CHANNEL:
                if type(effect.message) not in self.lost:
                    self._mail.append((name, effect.to, effect.message))
            elif isinstance(effect, Persist):
                self.persists += 1
                disk = self.disks[name]
                for key, content in effect.puts:
                    if content is None:
                        disk.pop(key, None)
                    else:
                        disk[key] = content
                todo.extend(self.voters[name].on_persisted(self.now, effect.ticket))
            else:
                news.append(effect)
                self.news.append((name, effect))
        return news

    def settle(self) -> list[object]:
        """Deliver everything that is on its way: the news it made."""
        before = len(self.news)
        while self._mail:
            sender, to, message = self._mail.popleft()
            if to in self.voters:
                self.carry_out(to, self.voters[to].on_message(self.now, sender, message))
        return [effect for _, effect in self.news[before:]]

    def run(self, until: int) -> list[object]:
        """Let time pass: the news it brought."""
        before = len(self.news)
        self.settle()
        while self.voters:
            name = min(self.voters, key=lambda name: self.voters[name].next_tick_at)
            if self.voters[name].next_tick_at > until:
                break
            self.now = max(self.now, self.voters[name].next_tick_at)
            self.carry_out(name, self.voters[name].tick(self.now))
            self.settle()
        self.now = until
        return [effect for _, effect in self.news[before:]]

    def leader(self) -> Voter | None:
        return next((voter for voter in self.voters.values() if voter.election.is_leading(self.now)), None)

    def elect(self) -> Voter:
        """Let time pass until somebody leads."""
        for _ in range(200):
            leader = self.leader()
            if leader is not None:
                return leader
            self.run(self.now + 50 * MILLISECOND)
        raise AssertionError("nobody leads")

    def follower(self) -> Voter:
        return next(voter for voter in self.voters.values() if not voter.election.is_leading(self.now))

    def ask(self, voter: Voter, owner: str, key: str = "k", *, epoch: int = 0, number: int = 1) -> list[object]:
        """What the voter answers, without anything else being heard."""
        question = AcquireLease(key, number, epoch, TTL)
        return self.carry_out(voter.name, voter.on_lease_message(self.now, owner, question))

    def grant(self, voter: Voter, owner: str, key: str = "k", number: int = 1) -> LeaseAnswer:
        """Ask anew and wait for the majority."""
        answers = [*self.ask(voter, owner, key, number=number), *self.settle()]
        (answer,) = [effect.message for effect in answers if isinstance(effect, Send)]
        assert isinstance(answer, LeaseAnswer)
        return answer


def stalled_leader() -> tuple[Group, Voter]:
    """A leader that gave the key k to x and then slept: within its lease, and longer than a leader may."""
    group = Group("a", "b", "c")
    leader = group.elect()
    group.grant(leader, "x")
    group.run(group.now + SECOND)
    group.carry_out(leader.name, leader.read(group.now, 9, "job/1"))
    group.now += LAN.lease_ns // 2
    assert leader.election.leader_term is not None and leader.election.leader_term.holds_lease(group.now)
    return group, leader


def answered(owner: str, answer: LeaseAnswer) -> list[object]:
    return [Send(CHANNEL, owner, answer, Lane.CONTROL)]


def test_a_voter_that_is_elected_holds_the_token_of_its_term() -> None:
    group = Group("a", "b", "c")

    leader = group.elect()

    (elected,) = [effect for _, effect in group.news if isinstance(effect, Elected)]
    assert leader.token == elected.token == Token(0, leader.election.term, 1)
    assert [voter.token for voter in group.voters.values() if voter is not leader] == [None, None]


def test_a_voter_alone_in_its_group_leads_and_grants() -> None:
    group = Group("a")

    assert group.grant(group.elect(), "x") == LeaseAnswer("k", 1, "granted", 1, TTL)


def test_the_voters_must_be_a_group_that_decides() -> None:
    with pytest.raises(BadVoters):
        Group("a", "b")


# -- leases


def test_a_grant_is_answered_only_after_a_majority_has_it() -> None:
    group = Group("a", "b", "c")
    leader = group.elect()

    assert group.ask(leader, "x", number=7) == [], "it is on the leader's own disk only"
    assert answered("x", LeaseAnswer("k", 7, "granted", 1, TTL)) == group.settle()
    assert sum(any("lease/k" in key for key in disk) for disk in group.disks.values()) >= 2


def test_a_grant_that_no_majority_confirms_is_not_answered_and_a_later_one_has_a_higher_epoch() -> None:
    group = Group("a", "b", "c")
    leader = group.elect()
    group.lost[ProposalAccepted] = None
    assert group.ask(leader, "x") == []
    news = group.run(group.now + LAN.write_timeout_ns + LAN.heartbeat_ns)
    assert not any(isinstance(effect, Send) for effect in news)
    assert not any(isinstance(effect, WriteEnded) for effect in news), "its own writes are nobody else's news"
    assert leader.election.is_leading(group.now)

    group.lost.clear()
    group.run(group.now + LAN.heartbeat_ns)

    assert group.grant(leader, "y", number=2) == LeaseAnswer("k", 2, "granted", 2, TTL)


def test_while_a_grant_is_being_written_the_key_is_busy() -> None:
    group = Group("a", "b", "c")
    leader = group.elect()
    group.ask(leader, "x")

    assert group.ask(leader, "y", number=2) == answered("y", LeaseAnswer("k", 2, "busy"))


def test_a_renewal_writes_nothing_and_is_answered_at_once() -> None:
    group = Group("a", "b", "c")
    leader = group.elect()
    group.grant(leader, "x")
    persists = group.persists

    assert group.ask(leader, "x", epoch=1, number=2) == answered("x", LeaseAnswer("k", 2, "granted", 1, TTL))

    assert group.persists == persists
    assert group.settle() == []


def test_a_key_that_is_held_is_refused_to_others_with_the_time_to_wait() -> None:
    group = Group("a", "b", "c")
    leader = group.elect()
    group.grant(leader, "x")
    group.run(group.now + SECOND)

    assert group.ask(leader, "y") == answered("y", LeaseAnswer("k", 1, "held", 1, wait_ns=LONGER - SECOND))


def test_a_key_whose_owner_does_not_renew_is_told_to_be_free_once_and_given_to_another() -> None:
    group = Group("a", "b", "c")
    leader = group.elect()
    group.grant(leader, "x")
    granted_at = group.now

    assert not any(isinstance(effect, LeaseExpired) for effect in group.run(granted_at + LONGER - 1))
    assert [effect for effect in group.run(granted_at + LONGER) if isinstance(effect, LeaseExpired)] == [
        LeaseExpired("k", "x", 1)
    ]
    assert not any(isinstance(effect, LeaseExpired) for effect in group.run(group.now + LONGER))
    assert group.grant(leader, "y") == LeaseAnswer("k", 1, "granted", 2, TTL)


def test_an_owner_that_comes_too_late_is_told_that_its_epoch_has_ended() -> None:
    group = Group("a", "b", "c")
    leader = group.elect()
    group.grant(leader, "x")
    group.run(group.now + LONGER)

    assert group.ask(leader, "x", epoch=1) == answered("x", LeaseAnswer("k", 1, "ended", 1))


def test_a_key_that_is_given_back_is_free_at_once() -> None:
    group = Group("a", "b", "c")
    leader = group.elect()
    group.grant(leader, "x")

    assert leader.on_lease_message(group.now, "x", ReleaseLease("k", 1)) == []

    assert group.grant(leader, "y") == LeaseAnswer("k", 1, "granted", 2, TTL)


def test_only_the_owner_can_give_a_key_back() -> None:
    group = Group("a", "b", "c")
    leader = group.elect()
    group.grant(leader, "x")

    leader.on_lease_message(group.now, "y", ReleaseLease("k", 1))

    assert group.grant(leader, "y").answer == "held"


def test_a_voter_that_does_not_lead_says_who_does() -> None:
    group = Group("a", "b", "c")
    leader = group.elect()
    follower = group.follower()

    elsewhere = LeaseAnswer("k", 1, "elsewhere", leader=leader.name)
    assert group.ask(follower, "x") == answered("x", elsewhere)
    assert follower.on_lease_message(group.now, "x", ReleaseLease("k", 1)) == []


def test_a_voter_that_knows_no_leader_says_so() -> None:
    group = Group("a", "b", "c")

    assert group.ask(group.voters["a"], "x") == answered("x", LeaseAnswer("k", 1, "elsewhere"))


def test_a_leader_whose_lease_has_run_out_does_not_point_to_itself() -> None:
    group = Group("a", "b", "c")
    leader = group.elect()
    group.now += LAN.lease_ns  # it has not been woken since

    assert group.ask(leader, "x") == answered("x", LeaseAnswer("k", 1, "elsewhere"))


def test_a_new_leader_makes_other_owners_wait_a_whole_ttl() -> None:
    group = Group("a", "b", "c")
    first = group.elect()
    group.grant(first, "x")
    group.stop(first.name)
    second = group.elect()
    (elected,) = [effect for name, effect in group.news if name == second.name and isinstance(effect, Elected)]
    taken_over_at = elected.until - LAN.leader_lease_ns()

    answer = group.grant(second, "y")
    assert (answer.answer, answer.epoch) == ("held", 1)
    assert group.now + answer.wait_ns == taken_over_at + LONGER

    group.run(group.now + answer.wait_ns)
    assert group.grant(second, "y") == LeaseAnswer("k", 1, "granted", 2, TTL)


def test_an_owner_renews_at_a_new_leader_under_the_same_epoch() -> None:
    group = Group("a", "b", "c")
    first = group.elect()
    group.grant(first, "x")
    group.stop(first.name)

    second = group.elect()

    assert group.ask(second, "x", epoch=1, number=2) == answered("x", LeaseAnswer("k", 2, "granted", 1, TTL))


def test_other_values_of_the_register_are_no_leases() -> None:
    group = Group("a", "b", "c")
    first = group.elect()
    group.carry_out(first.name, first.write(group.now, 1, "job/1", b"a value that is no lease"))
    group.settle()
    group.stop(first.name)

    second = group.elect()

    assert group.grant(second, "x", "job/1") == LeaseAnswer("job/1", 1, "granted", 1, TTL)


def test_an_owner_that_holds_a_key_and_asks_anew_gets_a_new_epoch() -> None:
    group = Group("a", "b", "c")
    leader = group.elect()
    group.grant(leader, "x")

    assert group.grant(leader, "x", number=2) == LeaseAnswer("k", 2, "granted", 2, TTL)


def test_a_full_table_takes_no_new_keys() -> None:
    group = Group("a")
    leader = group.elect()
    for number in range(KEYS_LIMIT):
        leader.on_lease_message(group.now, "x", AcquireLease(f"k{number}", 1, 0, TTL))

    assert group.ask(leader, "x", "one more") == answered("x", LeaseAnswer("one more", 1, "full"))


def test_a_leader_that_steps_down_drops_the_grants_that_were_under_way() -> None:
    group = Group("a", "b", "c")
    first = group.elect()
    group.lost[ProposalAccepted] = None
    group.ask(first, "x")

    news = group.carry_out(first.name, first.hand_over(group.now))

    assert not any(isinstance(effect, Send | WriteEnded) for effect in news)
    assert first.token is None
    group.lost.clear()
    assert not any(isinstance(effect, Send) for effect in group.run(group.now + 3 * SECOND))


def test_a_leader_that_stepped_down_watches_over_no_leases() -> None:
    group = Group("a", "b", "c")
    leader = group.elect()
    ttl_ns = 10 * MILLISECOND
    group.carry_out(leader.name, leader.on_lease_message(group.now, "x", AcquireLease("k", 1, 0, ttl_ns)))
    group.settle()
    assert leader.next_tick_at == group.now + ttl_ns + ttl_ns // 50

    group.carry_out(leader.name, leader.hand_over(group.now))

    assert leader.next_tick_at == leader.election.next_tick_at


def test_a_leader_that_stalled_grants_and_commands_nothing_and_steps_down_when_it_wakes() -> None:
    group, leader = stalled_leader()

    assert not leader.election.is_leading(group.now)
    assert group.ask(leader, "y", "other") == answered("y", LeaseAnswer("other", 1, "elsewhere"))
    assert group.ask(leader, "x", epoch=1) == answered("x", LeaseAnswer("k", 1, "elsewhere")), "nor does it renew"
    assert leader.on_lease_message(group.now, "x", ReleaseLease("k", 1)) == []
    assert leader.command(group.now, "worker", 3, b"work") == []

    assert leader.next_tick_at <= group.now
    news = group.carry_out(leader.name, leader.tick(group.now))
    assert [effect.reason for effect in news if isinstance(effect, SteppedDown)] == ["stalled for 750 ms"]
    assert leader.token is None


def test_a_leader_that_stalled_refuses_to_write_and_steps_down() -> None:
    group, leader = stalled_leader()

    news = group.carry_out(leader.name, leader.write(group.now, 5, "job/1", b"value"))

    assert any(isinstance(effect, SteppedDown) for effect in news)
    ended = [effect for effect in news if isinstance(effect, WriteEnded)]
    assert [(effect.ref, effect.outcome) for effect in ended] == [(5, "refused")]
    assert leader.token is None


def test_with_a_slow_disk_one_write_is_under_way_and_the_next_one_takes_all_that_came_meanwhile() -> None:
    group = Group("a")
    leader = group.elect()

    (first,) = leader.on_lease_message(group.now, "x", AcquireLease("k", 1, 0, TTL))
    assert isinstance(first, Persist)
    assert leader.on_lease_message(group.now, "x", AcquireLease("l", 2, 0, TTL)) == []
    assert leader.on_lease_message(group.now, "y", AcquireLease("m", 3, 0, TTL)) == []

    granted, second = leader.on_persisted(group.now, first.ticket)
    assert granted == Send(CHANNEL, "x", LeaseAnswer("k", 1, "granted", 1, TTL), Lane.CONTROL)
    assert isinstance(second, Persist)
    assert [key for key, _ in second.puts] == ["record", "entry/lease/l", "entry/lease/m"]

    assert leader.on_persisted(group.now, second.ticket) == [
        Send(CHANNEL, "x", LeaseAnswer("l", 2, "granted", 1, TTL), Lane.CONTROL),
        Send(CHANNEL, "y", LeaseAnswer("m", 3, "granted", 1, TTL), Lane.CONTROL),
    ]


# -- commands


def test_a_leader_commands_under_its_token() -> None:
    group = Group("a", "b", "c")
    leader = group.elect()

    effects = leader.command(group.now, "worker", 3, b"work")

    assert effects == [Send(CHANNEL, "worker", LeaseCommand((0, leader.election.term, 1), 3, b"work"), Lane.CONTROL)]


def test_who_does_not_lead_commands_nobody() -> None:
    group = Group("a", "b", "c")
    leader = group.elect()

    assert group.follower().command(group.now, "worker", 3, b"work") == []
    assert leader.command(group.now + LAN.lease_ns, "worker", 3, b"work") == [], "its lease is over by then"


@pytest.mark.parametrize(("is_applied", "ahead"), [(True, 0), (False, 1), (False, 0), (False, -1)])
def test_the_end_of_a_command_is_news_and_deposes_nobody(is_applied: bool, ahead: int) -> None:
    group = Group("a", "b", "c")
    leader = group.elect()
    token, highest = leader.token, Token(0, leader.election.term + ahead, 1)
    answer = CommandAnswer(3, is_applied, (highest.parent, highest.term, highest.sequence))

    assert leader.on_command_answer("worker", answer) == [CommandEnded("worker", 3, is_applied, highest)]

    assert leader.election.is_leading(group.now)
    assert leader.token == token


def test_the_end_of_a_command_is_told_also_by_who_leads_no_more() -> None:
    group = Group("a", "b", "c")
    leader = group.elect()
    group.carry_out(leader.name, leader.hand_over(group.now))

    ended = leader.on_command_answer("worker", CommandAnswer(3, False, (9, 9, 9)))

    assert ended == [CommandEnded("worker", 3, False, Token(9, 9, 9))]


# -- what callers ask of the election


def test_a_value_that_was_written_can_be_read_and_both_ends_are_told_to_the_caller() -> None:
    group = Group("a", "b", "c")
    leader = group.elect()

    news = [*group.carry_out(leader.name, leader.write(group.now, 1, "job/1", b"value")), *group.settle()]
    assert [(effect.ref, effect.outcome) for effect in news if isinstance(effect, WriteEnded)] == [(1, "accepted")]

    news = [*group.carry_out(leader.name, leader.read(group.now, 2, "job/1")), *group.run(group.now + SECOND)]
    assert [effect for effect in news if isinstance(effect, ReadEnded)] == [ReadEnded(2, "accepted", b"value")]


@pytest.mark.parametrize("key", ["config", "leader", "lease/", "lease/k"])
def test_keys_of_the_group_itself_are_not_for_callers(key: str) -> None:
    group = Group("a", "b", "c")
    leader = group.elect()

    with pytest.raises(Invalid, match=f"^key '{key}' is the group's own: take another$"):
        leader.write(group.now, 1, key, b"value")


@pytest.mark.parametrize("ref", [-1, 0, 2**40 + 1])
def test_references_of_the_voter_itself_are_not_for_callers(ref: int) -> None:
    group = Group("a", "b", "c")
    leader = group.elect()

    with pytest.raises(Invalid, match=f"^reference {ref} of a write: give a number from 1 to "):
        leader.write(group.now, ref, "job/1", b"value")
    with pytest.raises(Invalid, match=f"^reference {ref} of a write: give a number from 1 to "):
        leader.change_voters(group.now, ref, ("a",))
    assert group.settle() == []


def test_the_highest_reference_of_a_caller_is_told_to_it_and_taken_for_no_grant() -> None:
    group = Group("a", "b", "c")
    leader = group.elect()
    group.ask(leader, "x")  # the voter's own first reference

    group.carry_out(leader.name, leader.write(group.now, 2**40, "job/1", b"value"))
    news = group.settle()

    assert [effect.ref for effect in news if isinstance(effect, WriteEnded)] == [2**40]
    assert [effect for effect in news if isinstance(effect, Send)] == answered(
        "x", LeaseAnswer("k", 1, "granted", 1, TTL)
    )


def test_a_change_of_voters_is_told_to_the_caller() -> None:
    group = Group("a", "b", "c", "d")
    leader = group.elect()
    kept = tuple(name for name in group.names if name != group.follower().name)

    news = [*group.carry_out(leader.name, leader.change_voters(group.now, 1, kept)), *group.settle()]

    assert [(effect.ref, effect.outcome) for effect in news if isinstance(effect, WriteEnded)] == [(1, "accepted")]
    assert leader.election.config.names() == kept


@pytest.mark.parametrize(("allow_two", "outcome"), [(False, "refused"), (True, "accepted")])
def test_two_voters_are_left_only_when_the_caller_wants_them(allow_two: bool, outcome: str) -> None:
    group = Group("a", "b", "c")
    leader = group.elect()
    kept = tuple(name for name in group.names if name != group.follower().name)

    effects = leader.change_voters(group.now, 1, kept, allow_two=allow_two)
    news = [*group.carry_out(leader.name, effects), *group.settle()]

    assert [effect.outcome for effect in news if isinstance(effect, WriteEnded)] == [outcome]


def test_a_leader_that_drains_is_followed_by_another() -> None:
    group = Group("a", "b", "c")
    first = group.elect()

    group.carry_out(first.name, first.drain(group.now))
    second = group.elect()

    assert second.name != first.name
    group.run(group.now + 10 * SECOND)
    assert not first.election.is_leading(group.now)


def test_who_is_told_that_the_leader_is_dead_asks_about_it_sooner() -> None:
    group = Group("a", "b", "c")
    leader = group.elect()
    follower = group.follower()
    group.stop(leader.name)
    before = follower.next_tick_at

    assert follower.suspect_leader(group.now, leader.name) == []

    assert follower.next_tick_at <= group.now + LAN.lease_ns // 5 < before


def test_a_leader_that_hands_over_is_followed_before_its_lease_would_have_ended() -> None:
    group = Group("a", "b", "c")
    first = group.elect()
    handed_over_at = group.now

    effects = first.hand_over(group.now)
    assert [type(effect.message) for effect in effects if isinstance(effect, Send)] == [Released, Released]
    group.carry_out(first.name, effects)
    group.settle()

    second = group.elect()
    assert second is not first
    assert group.now - handed_over_at < LAN.lease_ns // 2


def test_a_leader_that_nobody_could_follow_does_not_hand_over() -> None:
    group = Group("a")
    leader = group.elect()
    token = leader.token

    assert leader.hand_over(group.now) == []

    assert leader.election.is_leading(group.now)
    assert leader.token == token


def test_a_configuration_that_nobody_can_read_is_refused_and_somebody_is_told() -> None:
    group = Group("a", "b", "c")
    leader = group.elect()
    follower = group.follower()
    term = leader.election.term
    unreadable = Propose(term, 99, (RegisterEntry("config", Version(term, 99), b"\xc1"),))

    (alarm,) = follower.on_message(group.now, leader.name, unreadable)

    assert isinstance(alarm, LeadershipAlarm)
    assert alarm.kind == "configuration"
    assert alarm.text.startswith(f"'{leader.name}': a voter sent a malformed configuration of voters: ")
    assert follower.on_message(group.now, leader.name, unreadable) == [], "one alarm for each peer is enough"
    assert follower.election.config.names() == group.names


def test_a_voter_that_restarts_leads_again_with_a_later_token_and_higher_epochs() -> None:
    group = Group("a")
    voter = group.elect()
    first = voter.token
    assert first is not None
    group.grant(voter, "x")
    group.stop("a")

    group.start("a")
    voter = group.elect()

    assert voter.token is not None and voter.token > first
    assert group.grant(voter, "x") == LeaseAnswer("k", 1, "granted", 2, TTL)


LEFT_ALONE = "the voters failed 3 times within 30 s and are left alone for a while: the next try is in 10 s"
NOT_LEADING = "this voter does not lead"


def refusals(group: Group, voter: Voter, *refs: int) -> list[str]:
    told: list[str] = []
    for ref in refs:
        (ended,) = group.carry_out(voter.name, voter.write(group.now, ref, "k", b"v"))
        assert isinstance(ended, WriteEnded) and ended.outcome == "refused"
        told.append(ended.reason)
    return told


def test_writes_that_no_majority_answers_in_time_count_as_failures() -> None:
    group = Group("a", "b", "c")
    leader = group.elect()
    group.lost[ProposalAccepted] = None
    for ref in (1, 2, 3):
        group.carry_out(leader.name, leader.write(group.now, ref, f"k{ref}", b"v"))

    told = group.run(group.now + 3 * SECOND)

    assert [end.outcome for end in told if isinstance(end, WriteEnded)] == ["unknown"] * 3
    (reason,) = refusals(group, leader, 4)
    assert reason.startswith("the voters failed 3 times within 30 s and are left alone for a while")


def test_a_write_that_another_voter_would_take_is_no_failure_of_the_majority() -> None:
    group = Group("a", "b", "c")
    group.elect()
    group.run(group.now + SECOND)

    assert refusals(group, group.follower(), 1, 2, 3, 4) == [NOT_LEADING] * 4


def test_voters_that_fail_three_times_are_left_alone_for_ten_seconds_and_tried_again() -> None:
    group = Group("a", "b", "c")
    group.stop("b")
    group.stop("c")
    group.run(10 * SECOND)
    alone = group.voters["a"]
    assert refusals(group, alone, 1, 2, 3, 4) == [NOT_LEADING] * 3 + [LEFT_ALONE]

    group.run(group.now + 10 * SECOND)
    assert refusals(group, alone, 5, 6) == [NOT_LEADING, LEFT_ALONE]

    group.start("b")
    group.run(group.now + 15 * SECOND)
    leader = group.elect()
    group.carry_out(leader.name, leader.write(group.now, 7, "k", b"v"))
    assert [ended.outcome for ended in group.settle() if isinstance(ended, WriteEnded)] == ["accepted"]


def test_a_voter_that_is_elected_writes_at_once_however_often_it_failed_before() -> None:
    group = Group("a", "b", "c")
    group.stop("b")
    group.stop("c")
    group.run(10 * SECOND)
    for ref in range(1, 5):
        group.carry_out("a", group.voters["a"].write(group.now, ref, "k", b"v"))
    group.start("b")
    leader = group.elect()
    while leader.name != "a":
        group.carry_out(leader.name, leader.hand_over(group.now))
        group.run(group.now + SECOND)
        leader = group.elect()

    group.carry_out("a", leader.write(group.now, 9, "k", b"v"))

    assert [ended.outcome for ended in group.settle() if isinstance(ended, WriteEnded)] == ["accepted"]
