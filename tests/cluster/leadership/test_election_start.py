"""How voters start: what they ask their peers, when they may vote, and how they found a group."""

from collections.abc import Callable
from typing import Any

import pytest

from talka.cluster.leadership.election import Phase
from talka.cluster.leadership.news import Elected, LeadershipAlarm, PhaseChanged
from talka.cluster.leadership.register import NEVER
from talka.cluster.leadership.timings import LAN
from talka.cluster.leadership.voter_startup import PEERS_LIMIT
from talka.cluster.leadership.voters import digest_of
from talka.cluster.safeguards import ALL
from talka.units import MILLISECOND, SECOND
from talka.wire.leadership import (
    Collect,
    Collected,
    Heartbeat,
    PreVote,
    ProposalAccepted,
    Propose,
    RegisterEntry,
    Version,
    Vote,
    VoterHello,
    VoterWelcome,
)

LATER = Version(2**40, 0)
VOTER_LEASE = LAN.voter_lease_ns(ALL)
DIGEST = digest_of(("a", "b", "c"))
MakeGroup = Callable[..., Any]


def value_of(group: Any, key: str) -> bytes:
    return bytes(group.voters[group.leader()].leader_term.value_of(key))


def welcome(
    *, disk_id: int = 0, revision: int = 0, group_id: int = 0, seat: int = 0, config: Version = NEVER
) -> VoterWelcome:
    """What a peer remembers of a voter that starts; by default nothing."""
    return VoterWelcome(disk_id, revision, group_id, seat, config, term=1 if group_id else 0)


# -- VoterHello and VoterWelcome


def test_a_voter_says_hello_until_a_majority_has_answered(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c")
    group.start("a")
    group.run(5 * SECOND)
    hellos = [word for _, to, word in group.messages(VoterHello, "a") if to == "b"]
    assert len(hellos) == 5 * SECOND // LAN.hello_ns
    assert group.told(PhaseChanged) == []

    group.tell("a", "b", welcome())

    assert group.voters["a"].phase is Phase.ACTIVE
    assert group.told(PhaseChanged) == [PhaseChanged("active")]


def test_answers_of_those_who_are_no_voters_do_not_count(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c")
    group.start("a")
    group.run(5 * SECOND)

    for number in range(10):
        group.tell("a", f"x{number}", welcome())

    assert group.voters["a"].phase is Phase.SYNCING


def test_a_majority_of_answers_does_not_end_the_wait_for_a_lease_that_may_run(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c")
    group.start()
    group.run(VOTER_LEASE)
    assert {voter.phase for voter in group.voters.values()} == {Phase.SYNCING}
    assert [granted.granted for _, granted in group.tell("a", "b", PreVote(1, 1, LATER)) if granted] == []

    group.run(LAN.hello_ns)

    assert {voter.phase for voter in group.voters.values()} == {Phase.ACTIVE}


def test_a_hello_says_nothing_of_a_disk_that_is_not_written_yet(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c")
    group.hold_disk("a")
    group.start()
    group.run(3 * SECOND)
    assert group.messages(VoterHello, "a") == []

    group.write_disk("a")

    hello = group.messages(VoterHello, "a")[0][2]
    assert (hello.disk_id, hello.revision) == (group.record("a").disk_id, 1)


def test_a_voter_that_was_restarted_promises_nothing_before_its_peers_have_spoken(group: Any) -> None:
    leader = group.elect()
    group.run(SECOND)
    voter, other = group.followers()
    group.crash("a", "b", "c")
    before = dict(group.disks[voter])
    group.start(voter)
    entry = RegisterEntry("x", Version(1, 9), b"v")
    questions = [Heartbeat(1, 9, 0), Propose(1, 9, (entry,)), Collect(1)]

    for question in questions:
        assert group.tell(voter, leader, question) == []
    assert group.votes(voter, other, Vote(2, LATER)) == [False]
    assert group.disks[voter] == before

    group.run(2 * SECOND)
    group.tell(voter, other, welcome())
    assert [len(group.tell(voter, leader, question)) for question in questions] == [1, 1, 1]


def test_a_voter_remembers_the_latest_it_has_seen_of_a_disk(group: Any) -> None:
    def answered(disk_id: int, revision: int) -> tuple[int, int]:
        answer = group.tell("a", "x", VoterHello(disk_id, revision, False, 0, DIGEST))[0][1]
        return answer.disk_id, answer.revision

    assert answered(7, 5) == (0, 0)
    assert answered(7, 3) == (7, 5)
    assert answered(7, 6) == (7, 5)
    assert answered(8, 1) == (7, 6)
    assert answered(8, 1) == (8, 1)


def test_what_is_remembered_of_peers_has_a_limit(group: Any) -> None:
    for number in range(2 * PEERS_LIMIT):
        group.tell("a", f"x{number}", VoterHello(7, 5, False, 0, DIGEST))

    known = [
        number
        for number in range(2 * PEERS_LIMIT)
        if group.tell("a", f"x{number}", VoterHello(7, 5, False, 0, DIGEST))[0][1].disk_id
    ]
    assert len(known) <= PEERS_LIMIT


def test_a_welcome_that_comes_late_changes_nothing(group: Any) -> None:
    group.elect()
    follower = group.followers()[0]
    before = dict(group.disks[follower])

    group.tell(follower, group.leader(), welcome(disk_id=group.record(follower).disk_id, revision=2**40))

    assert group.disks[follower] == before
    assert group.told(LeadershipAlarm) == []


# -- founding


def test_a_group_is_founded_once_and_keeps_its_number_through_every_restart(group: Any) -> None:
    group.elect()
    group.run(SECOND)
    group_id = {voter.config.group_id for voter in group.voters.values()}
    assert len(group_id) == 1 and 0 not in group_id

    for _ in range(3):
        group.crash("a", "b", "c")
        group.start()
        group.elect()
        group.run(SECOND)

    assert {voter.config.group_id for voter in group.voters.values()} == group_id
    assert group.voters["a"].config.epoch == 1


def test_the_first_configuration_names_the_disks_of_all_who_have_spoken(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c")
    group.start("a", "b")
    leader = group.elect()

    config = group.voters[leader].config

    assert [config.disk_id_of(name) for name in "ab"] == [group.record(name).disk_id for name in "ab"]
    assert config.disk_id_of("c") == 0


def test_a_voter_that_comes_after_the_founding_is_recorded_and_brought_up_to_date(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c")
    group.start("a", "b")
    leader = group.elect()
    group.ask(leader, "write", 1, "x", b"v")
    group.start("c")
    group.run(3 * SECOND)

    assert group.voters["c"].phase is Phase.ACTIVE
    assert group.voters[leader].config.disk_id_of("c") == group.record("c").disk_id
    assert group.disks["c"]["entry/x"] == group.disks[leader]["entry/x"]
    group.crash(leader)
    group.elect()
    assert value_of(group, "x") == b"v"


@pytest.mark.parametrize("pause_ns", [SECOND, 3 * SECOND, 5 * SECOND], ids=["1 s", "3 s", "5 s"])
@pytest.mark.parametrize("names", ["abc", "abcde"])
def test_voters_that_are_started_one_after_the_other_found_one_group(
    make_group: MakeGroup, names: str, pause_ns: int
) -> None:
    group = make_group(*names)
    for name in group.names:
        group.start(name)
        group.run(pause_ns)

    group.elect()
    group.run(5 * SECOND)

    assert len({voter.config.group_id for voter in group.voters.values()}) == 1
    assert {voter.phase for voter in group.voters.values()} == {Phase.ACTIVE}


def test_a_founding_that_was_interrupted_does_not_make_its_leader_a_stranger(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c")
    group.lose(Propose)
    group.start()
    while not group.messages(Collected):
        group.run(10 * MILLISECOND)
    first = group.messages(Collected)[0][1]
    assert group.entry(first, "config")  # its own disk holds a number of the group that nobody else ever saw
    group.crash(first)
    group.heal()
    group.elect()

    group.start(first)
    group.run(10 * SECOND)

    assert group.voters[first].phase is Phase.ACTIVE
    assert group.told(LeadershipAlarm) == []
    assert len({voter.config.group_id for voter in group.voters.values()}) == 1


def test_the_number_of_the_group_is_believed_only_when_its_leader_has_a_majority_for_it(group: Any) -> None:
    group.lose(ProposalAccepted)
    group.run(3 * SECOND)
    assert [name for name in "abc" if "entry/config" in group.disks[name]]
    assert {group.record(name).group_id for name in "abc"} == {0}

    group.heal()
    leader = group.elect()
    group.run(LAN.heartbeat_ns)

    assert {group.record(name).group_id for name in "abc"} == {group.voters[leader].config.group_id}


def test_a_voter_that_follows_but_missed_the_founding_does_not_found_another_group(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c", seed=5)
    group.is_lost = lambda sender, to, message: isinstance(message, Propose) and to == "c"
    group.start()
    leader = group.elect()
    assert leader != "c"
    other = next(name for name in "ab" if name != leader)
    assert group.ask(leader, "write", 1, "x", b"v")[-1].outcome == "accepted"
    group.heal()
    group.run(5 * SECOND)
    assert group.record("c").group_id == group.voters[leader].config.group_id

    group.crash(leader, other)
    group.lose_disk(other)
    group.start(other)
    group.run(20 * SECOND)
    assert group.leader() == ""  # with two of three disks there, one of them empty, nobody can know

    group.start(leader)
    group.elect()
    assert value_of(group, "x") == b"v"


def test_voters_that_were_given_different_lists_do_not_found_a_group_and_say_so(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c")
    group.start("a", voters=("a", "b", "c"))
    group.start("b", voters=("a", "b", "d"))
    group.run(20 * SECOND)

    assert group.told(Elected) == []
    assert [(alarm.kind, alarm.text) for alarm in group.told(LeadershipAlarm, "a")] == [
        ("voters", "'b' was started with other voters than 'a': give all the same list")
    ]
    assert [alarm.kind for alarm in group.told(LeadershipAlarm, "b")] == ["voters"]


def test_a_voter_of_another_group_of_the_same_name_is_refused_by_everybody_and_everywhere(group: Any) -> None:
    leader = group.elect()
    voter, other = group.followers()
    group.run(SECOND)
    own = group.voters[leader].config.group_id
    for _ in range(2):
        assert group.tell(voter, other, Heartbeat(2, 1, own + 1)) == []
        assert group.tell(voter, other, VoterHello(7, 1, True, own + 1, DIGEST)) == []
    assert [(alarm.kind, alarm.text) for alarm in group.told(LeadershipAlarm, voter)] == [
        ("stranger", f"{other!r} belongs to another group of the same name: it was refused")
    ]
    group.crash(leader)
    group.run(VOTER_LEASE)
    assert group.tell(voter, other, PreVote(2, 1, LATER, own + 1))[0][1].granted is False
    assert group.tell(voter, other, Vote(2, LATER, own + 1))[0][1].granted is False
    assert group.tell(voter, other, PreVote(2, 1, LATER, own))[0][1].granted is True
    assert group.voters[voter].term == 1


def test_a_voter_that_starts_is_not_welcomed_into_another_group(group: Any) -> None:
    group.elect()
    group.run(SECOND)
    follower = group.followers()[0]
    own = group.voters[follower].config.group_id
    group.crash("a", "b", "c")
    group.start(follower)
    group.run(2 * SECOND)
    other = next(name for name in "abc" if name != follower)

    group.tell(follower, other, welcome(group_id=own + 1))

    assert group.voters[follower].phase is Phase.SYNCING
    assert [alarm.kind for alarm in group.told(LeadershipAlarm, follower)] == ["stranger"]
    group.tell(follower, other, welcome(group_id=own))
    assert group.told(PhaseChanged, follower)[-1] == PhaseChanged("active")


@pytest.mark.parametrize("count", [1, 3])
def test_a_group_can_be_restarted_as_a_whole_as_often_as_wanted(group: Any, count: int) -> None:
    leader = group.elect()
    group.ask(leader, "write", 1, "x", b"v")
    for _ in range(count):
        group.crash("a", "b", "c")
        group.run(100 * MILLISECOND)
        group.start()
        group.elect()

    assert value_of(group, "x") == b"v"
    assert group.told(LeadershipAlarm) == []


def test_no_second_group_is_founded_before_the_first_heartbeat_told_of_the_founding(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c", seed=5)
    group.is_lost = lambda sender, to, message: isinstance(message, Propose) and to == "c"
    group.start()
    leader = group.elect()
    assert leader != "c"
    other = next(name for name in "ab" if name != leader)
    assert group.ask(leader, "write", 1, "x", b"v")[-1].outcome == "accepted"
    group.heal()
    group.crash(leader, other)
    group.lose_disk(other)
    group.start(other)
    group.run(20 * SECOND)
    assert group.leader() == ""

    group.start(leader)
    group.elect()
    assert group.voters[group.leader()].leader_term.value_of("x") == b"v"
