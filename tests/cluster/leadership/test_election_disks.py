"""Voters whose disks were lost, rolled back or replaced, and how their leader brings them up to date."""

from collections.abc import Callable
from typing import Any

from talka.cluster.leadership.election import Phase
from talka.cluster.leadership.news import LeadershipAlarm
from talka.cluster.leadership.register import KEYS_LIMIT, NEVER, RECORD_KEY
from talka.cluster.leadership.timings import LAN
from talka.cluster.leadership.voters import digest_of
from talka.units import SECOND
from talka.wire.leadership import (
    ENTRIES_PER_PAGE,
    Collect,
    Collected,
    Heartbeat,
    PreVote,
    Propose,
    RegisterEntry,
    RegisterSnapshot,
    SnapshotReply,
    Version,
    Vote,
    VoterHello,
    VoterWelcome,
)

LATER = Version(2**40, 0)
MakeGroup = Callable[..., Any]
DIGEST = digest_of(("a", "b", "c"))


def value_of(group: Any, key: str) -> bytes:
    return bytes(group.voters[group.leader()].leader_term.value_of(key))


def welcome(
    *, disk_id: int = 0, revision: int = 0, group_id: int = 0, seat: int = 0, config: Version = NEVER
) -> VoterWelcome:
    """What a peer remembers of a voter that starts; by default nothing."""
    return VoterWelcome(disk_id, revision, group_id, seat, config, term=1 if group_id else 0)


# -- disks that were lost or rolled back


def test_a_voter_that_lost_its_disk_has_no_vote_until_a_majority_recorded_its_new_one(group: Any) -> None:
    leader = group.elect()
    group.ask(leader, "write", 1, "x", b"v")
    lost, other = group.followers()
    group.run(SECOND)
    group.crash(leader, lost)
    group.lose_disk(lost)
    group.start(lost)
    group.run(20 * SECOND)

    # Two of three are up, but what one of them promised is gone.
    assert group.leader() == ""
    assert group.voters[lost].phase is Phase.SYNCING
    for question in (Vote(9, LATER), PreVote(9, 1, LATER), Collect(9), Propose(9, 1, ()), Heartbeat(1, 1, 0)):
        assert group.tell(lost, other, question) == []

    group.start(leader)
    group.elect()
    group.run(5 * SECOND)

    assert group.voters[lost].phase is Phase.ACTIVE
    config = group.voters[group.leader()].config
    assert (config.epoch, config.disk_id_of(lost)) == (2, group.record(lost).disk_id)
    assert group.disks[lost]["entry/x"] == group.disks[group.leader()]["entry/x"]


def test_a_voter_whose_disk_was_rolled_back_starts_over_without_a_vote(group: Any) -> None:
    leader = group.elect()
    victim = group.followers()[0]
    old = dict(group.disks[victim])
    group.ask(leader, "write", 1, "x", b"v")
    disk_id = group.record(victim).disk_id
    group.crash(victim)
    group.disks[victim] = old
    group.start(victim)
    assert group.voters[victim].config.group_id == 0  # nothing of the disk is believed
    group.run(LAN.hello_ns)

    assert [alarm.kind for alarm in group.told(LeadershipAlarm, victim)] == ["disk"]
    assert not group.record(victim).admitted
    assert group.record(victim).disk_id != disk_id
    assert not group.voters[victim].is_admitted
    group.run(5 * SECOND)

    assert group.voters[victim].is_admitted
    assert group.voters[victim].phase is Phase.ACTIVE
    assert group.leader() == leader
    assert group.voters[leader].config.disk_id_of(victim) == group.record(victim).disk_id
    assert group.disks[victim]["entry/x"] == group.disks[leader]["entry/x"]


def test_a_disk_that_was_replaced_and_returns_does_not_count(group: Any) -> None:
    leader = group.elect()
    victim, other = group.followers()
    old = dict(group.disks[victim])
    group.crash(victim)
    group.lose_disk(victim)
    group.start(victim)
    group.run(5 * SECOND)
    assert group.leader() == leader
    group.cut = {(leader, other), (other, leader)}
    assert group.ask(leader, "write", 1, "x", b"v")[-1].outcome == "accepted"  # on the new disk, and not on the other
    group.crash("a", "b", "c")
    group.heal()
    group.disks[victim] = old

    group.start(victim, other)
    group.run(20 * SECOND)

    assert group.leader() == ""
    assert not group.record(victim).admitted
    assert group.told(LeadershipAlarm, victim) == [
        LeadershipAlarm(
            "disk",
            f"the disk of {victim!r} was replaced since, as {other!r} has seen it: it starts over without a vote",
        )
    ]
    group.start(leader)
    group.elect()
    assert value_of(group, "x") == b"v"


def test_a_peer_that_knows_only_an_older_configuration_cannot_say_that_a_disk_was_replaced(group: Any) -> None:
    leader = group.elect()
    victim, other = group.followers()
    group.crash("a", "b", "c")
    before = dict(group.disks[victim])
    group.start(victim)
    own = group.entry(victim, "config").version
    disk_id, group_id = group.record(victim).disk_id, group.record(victim).group_id

    group.tell(victim, other, welcome(group_id=group_id, seat=disk_id + 1, config=own))
    group.tell(victim, leader, welcome(group_id=group_id, seat=disk_id, config=LATER))
    group.tell(victim, leader, welcome(group_id=group_id, seat=0, config=LATER))
    assert group.disks[victim] == before
    assert group.told(LeadershipAlarm) == []

    group.tell(victim, other, welcome(group_id=group_id, seat=disk_id + 1, config=LATER))
    assert [alarm.kind for alarm in group.told(LeadershipAlarm)] == ["disk"]
    assert group.record(victim).disk_id != disk_id


def test_a_welcome_says_which_disk_counts_by_which_configuration(group: Any) -> None:
    leader = group.elect()
    voter, other = group.followers()
    answer = group.tell(leader, "x", VoterHello(7, 1, False, 0, DIGEST))[0][1]
    assert (answer.seat, answer.config) == (0, Version(1, 1))
    group.crash(other)

    answer = group.tell(voter, other, VoterHello(7, 1, False, 0, DIGEST))[0][1]

    assert (answer.seat, answer.config) == (group.record(other).disk_id, Version(1, 1))


def test_a_voter_that_merely_restarted_keeps_its_disk_and_its_seat(group: Any) -> None:
    leader = group.elect()
    victim = group.followers()[0]
    group.ask(leader, "write", 1, "x", b"v")
    disk_id = group.record(victim).disk_id
    group.crash(victim)
    group.start(victim)
    group.run(5 * SECOND)

    assert group.told(LeadershipAlarm) == []
    assert group.record(victim).disk_id == disk_id
    assert group.voters[leader].config.epoch == 1
    assert group.voters[victim].phase is Phase.ACTIVE


# -- snapshots


def test_a_register_of_many_pages_reaches_a_voter_without_state_though_pages_are_lost(group: Any) -> None:
    leader = group.elect()
    for number in range(9):
        group.ask(leader, "write", number, f"k{number}", bytes(200_000))
    victim = group.followers()[0]
    group.crash(victim)
    group.lose_disk(victim)
    group.start(victim)
    counts = [0]

    def is_lost(sender: str, to: str, message: object) -> bool:
        counts[0] += isinstance(message, RegisterSnapshot | SnapshotReply)
        return isinstance(message, RegisterSnapshot | SnapshotReply) and counts[0] % 3 == 1

    group.is_lost = is_lost
    group.run(4 * SECOND)

    assert group.messages(RegisterSnapshot)[0][2].pages > 4
    assert group.voters[victim].phase is Phase.ACTIVE
    for number in range(9):
        assert group.disks[victim][f"entry/k{number}"] == group.disks[leader][f"entry/k{number}"]
    assert group.leader() == leader


def test_an_admitted_voter_answers_a_page_it_has_already(group: Any) -> None:
    group.elect()
    victim = group.followers()[0]
    group.crash(victim)
    group.lose_disk(victim)
    group.start(victim)
    lost: list[object] = []

    def is_lost(sender: str, to: str, message: object) -> bool:
        if lost or not isinstance(message, SnapshotReply):
            return False
        lost.append(message)
        return True

    group.is_lost = is_lost
    group.run(5 * SECOND)
    assert lost
    assert group.voters[victim].phase is Phase.ACTIVE

    before = len(group.messages(RegisterSnapshot))
    group.run(5 * SECOND)

    assert len(group.messages(RegisterSnapshot)) == before


def waiting_voter(group: Any) -> tuple[str, str]:
    """A voter without state that hears its leader only through the test."""
    leader = group.elect()
    victim = group.followers()[0]
    group.crash(victim)
    group.lose_disk(victim)
    group.isolate(victim)
    group.start(victim)
    group.run(SECOND)
    group.heal()
    group.crash(*[name for name in "abc" if name != victim])
    return victim, leader


def page(number: int, page: int, key: str, *, term: int = 3) -> RegisterSnapshot:
    return RegisterSnapshot(term, number, page, 2, (RegisterEntry(key, Version(1, 1), b""),), 5)


def test_a_voter_without_state_says_hello_also_to_a_leader_it_was_not_configured_with(group: Any) -> None:
    victim, leader = waiting_voter(group)
    group.tell(victim, "d", Heartbeat(3, 1, 5))
    group.heard.clear()

    group.run(LAN.hello_ns)

    others = [name for name in "abc" if name != victim]
    assert [to for _, to, _ in group.messages(VoterHello, victim)] == [*others, "d"]


def test_pages_of_two_snapshots_are_never_mixed(group: Any) -> None:
    victim, leader = waiting_voter(group)

    assert group.tell(victim, leader, page(1, 0, "x"))[0][1] == SnapshotReply(3, 1, 0, group.record(victim).disk_id)
    group.tell(victim, leader, page(2, 1, "y"))
    assert [key for key in group.disks[victim] if key != RECORD_KEY] == []

    group.tell(victim, leader, page(2, 0, "z"))

    assert sorted(key for key in group.disks[victim] if key != RECORD_KEY) == ["entry/y", "entry/z"]
    assert group.voters[victim].term == 3


def test_a_snapshot_without_the_voters_own_disk_in_its_configuration_does_not_admit_it(group: Any) -> None:
    victim, leader = waiting_voter(group)

    group.tell(victim, leader, page(1, 0, "x"))
    group.tell(victim, leader, page(1, 1, "y"))

    assert not group.record(victim).admitted
    assert group.tell(victim, leader, page(1, 0, "x"))[0][1] == SnapshotReply(3, 1, 0, group.record(victim).disk_id)


def test_a_snapshot_with_more_keys_than_a_voter_may_hold_is_neither_taken_nor_answered_to_the_end(group: Any) -> None:
    victim, leader = waiting_voter(group)
    parts = KEYS_LIMIT // ENTRIES_PER_PAGE + 1
    answers = []
    for number in range(parts):
        entries = tuple(RegisterEntry(f"k{number}-{place}", Version(1, 1), b"") for place in range(ENTRIES_PER_PAGE))
        answers += group.tell(victim, leader, RegisterSnapshot(3, 1, number, parts, entries, 5))

    assert [reply.page for _, reply in answers] == list(range(parts - 1))
    assert [key for key in group.disks[victim] if key != RECORD_KEY] == []
    assert group.record(victim).group_id == 0


def test_a_snapshot_tells_the_number_of_the_group_if_its_leader_knows_it(group: Any) -> None:
    victim, leader = waiting_voter(group)

    group.tell(victim, leader, RegisterSnapshot(3, 1, 0, 1, (), 0))
    assert group.record(victim).group_id == 0

    group.tell(victim, leader, RegisterSnapshot(3, 2, 0, 1, (), 5))
    assert group.record(victim).group_id == 5


def test_a_snapshot_of_an_earlier_or_an_unbelievable_term_is_ignored(group: Any) -> None:
    victim, leader = waiting_voter(group)
    group.tell(victim, leader, page(1, 0, "x"))

    assert group.tell(victim, leader, page(1, 0, "x", term=2)) == []
    assert group.tell(victim, leader, page(1, 0, "x", term=2**40)) == []
    assert group.tell(victim, leader, Heartbeat(2, 1, 0)) == []
    assert group.voters[victim].term == 3


def test_the_answer_to_a_page_waits_until_the_page_is_on_disk(group: Any) -> None:
    victim, leader = waiting_voter(group)
    group.hold_disk(victim)
    group.tell(victim, leader, page(1, 0, "x"))
    group.tell(victim, leader, page(1, 1, "y"))
    assert group.messages(SnapshotReply, victim) == []

    group.write_disk(victim)

    assert [reply.page for _, _, reply in group.messages(SnapshotReply, victim)] == [0, 1]


def test_a_disk_that_was_lost_right_after_the_founding_is_recorded_anew(group: Any) -> None:
    leader = group.elect()
    lost = group.followers()[0]
    group.crash(leader, lost)
    group.lose_disk(lost)
    group.start(lost)
    group.run(5 * SECOND)
    assert not group.voters[lost].is_admitted

    group.start(leader)
    group.elect()
    group.run(5 * SECOND)

    assert group.voters[group.leader()].config.disk_id_of(lost) == group.record(lost).disk_id
    assert group.voters[lost].is_admitted


def test_a_voter_that_drains_before_it_knows_its_promises_lets_nobody_read_its_disk(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c", "d", "e")
    group.start()
    leader = group.elect()
    group.run(SECOND)
    rolled_back, witness, late, later = group.followers()
    old = dict(group.disks[rolled_back])
    group.cut = {pair for name in (late, later) for pair in ((leader, name), (name, leader))}
    assert group.ask(leader, "write", 1, "x", b"v")[-1].outcome == "accepted"
    group.crash(leader, rolled_back)
    group.disks[rolled_back] = old
    group.heal()
    group.is_lost = lambda sender, to, message: (
        (isinstance(message, PreVote) and sender != late) or (isinstance(message, Collected) and sender == witness)
    )
    group.start(rolled_back)
    group.ask(rolled_back, "drain")
    group.run(10 * SECOND)
    assert group.leader() == ""  # what the witness holds could not be read yet

    group.heal()
    group.elect()
    assert group.voters[group.leader()].leader_term.value_of("x") == b"v"


def test_a_hello_of_an_earlier_life_does_not_give_its_voter_a_disk_back_that_is_gone(group: Any) -> None:
    leader = group.elect()
    lost = group.followers()[0]
    earlier = [hello for _, to, hello in group.messages(VoterHello, lost) if to == leader][-1]
    group.crash(lost)
    group.lose_disk(lost)
    group.start(lost)
    group.run(5 * SECOND)
    assert group.voters[lost].phase is Phase.ACTIVE

    # It was delayed, or somebody plays it back, with the proof it carried in its time.
    for _ in range(3):
        group.tell(leader, lost, earlier)
        group.run(SECOND)

    assert group.voters[leader].config.disk_id_of(lost) == group.record(lost).disk_id != earlier.disk_id
