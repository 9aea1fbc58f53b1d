"""Tokens and the majority register as a group of voters shows them."""

from collections.abc import Callable
from typing import Any

import pytest

from talka.cluster.leadership.news import Elected, ReadEnded, WriteEnded
from talka.cluster.leadership.register import ENTRY_PREFIX
from talka.cluster.leadership.timings import LAN
from talka.units import SECOND
from talka.wire.leadership import (
    KEY_LIMIT,
    Collect,
    Collected,
    PreVote,
    ProposalAccepted,
    Propose,
    RegisterEntry,
    Version,
)

MakeGroup = Callable[..., Any]


# -- tokens


def test_a_leader_acts_only_once_its_token_is_on_a_majority_of_disks(group: Any) -> None:
    group.lose(ProposalAccepted)
    group.run(5 * SECOND)
    assert group.messages(Propose)
    assert group.told(Elected) == []

    group.heal()
    leader = group.elect()

    token = group.told(Elected)[0].token
    installed = [name for name in "abc" if ENTRY_PREFIX + "leader" in group.disks[name]]
    assert len(installed) >= 2
    assert group.entry(leader, "leader").version == Version(token.term, token.sequence)


def test_tokens_are_numbers_of_the_register_and_only_grow_whoever_leads(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c", parent=4)
    group.start()
    for _ in range(4):
        leader = group.elect()
        group.crash(leader)
        group.elect()
        group.start(leader)
        group.run(3 * SECOND)

    tokens = [elected.token for elected in group.told(Elected)]

    assert len(tokens) >= 5
    assert tokens == sorted(set(tokens))
    assert {token.parent for token in tokens} == {4}


# -- the register


def test_what_was_accepted_survives_its_leader_even_where_the_next_one_missed_it(group: Any) -> None:
    leader = group.elect()
    witness, late = group.followers()
    group.cut = {(leader, late), (late, leader)}
    assert group.ask(leader, "write", 1, "x", b"v")[0].outcome == "accepted"
    group.crash(leader)
    group.heal()
    group.is_lost = lambda sender, to, message: isinstance(message, PreVote) and sender == witness

    assert group.elect() == late

    assert group.voters[late].leader_term.value_of("x") == b"v"
    for name in (late, witness):
        assert group.entry(name, "x") == RegisterEntry("x", Version(group.voters[late].term, 0), b"v")


def test_an_old_value_never_returns_when_a_voter_that_missed_the_new_one_leads(group: Any) -> None:
    leader = group.elect()
    witness, late = group.followers()
    group.ask(leader, "write", 1, "x", b"old")
    group.cut = {(leader, late), (late, leader)}
    group.ask(leader, "write", 2, "x", b"new")
    assert group.entry(late, "x").value == b"old"
    group.crash(leader)
    group.heal()
    group.is_lost = lambda sender, to, message: isinstance(message, PreVote) and sender == witness
    assert group.elect() == late

    assert group.ask(late, "read", 3, "x") == []
    group.run(LAN.heartbeat_ns)

    assert group.told(ReadEnded, late) == [ReadEnded(3, "accepted", b"new")]


def test_a_write_has_three_outcomes_and_an_unknown_one_can_be_asked_again(group: Any) -> None:
    first = group.elect()
    follower = group.followers()[0]
    assert group.ask(follower, "write", 1, "x", b"") == [WriteEnded(1, "refused", reason="this voter does not lead")]
    group.isolate(first)
    assert group.ask(first, "write", 2, "x", b"v") == []
    second = group.elect(but=first)
    assert group.told(WriteEnded, first) == [WriteEnded(2, "unknown", reason="leadership ended")]

    told = group.ask(second, "write", 3, "x", b"v")

    assert told == [WriteEnded(3, "accepted", Version(group.voters[second].term, 2))]


def test_a_value_only_a_minority_holds_is_found_or_not_but_once_found_it_stays(group: Any) -> None:
    first = group.elect()
    group.isolate(first)
    group.ask(first, "write", 1, "x", b"v")
    second = group.elect(but=first)
    assert group.voters[second].leader_term.value_of("x") is None
    group.heal()
    group.run(2 * SECOND)
    group.crash(second)
    third = group.elect()
    found = group.voters[third].leader_term.value_of("x")

    group.start(second)
    group.run(2 * SECOND)
    group.crash(third)

    assert group.voters[group.elect()].leader_term.value_of("x") == found


def test_a_deposed_leader_never_answers_a_read(group: Any) -> None:
    leader = group.elect()
    group.ask(leader, "write", 1, "x", b"v")
    group.isolate(leader)

    assert group.ask(leader, "read", 2, "x") == []
    group.run(4 * SECOND)

    assert group.told(ReadEnded) == [ReadEnded(2, "refused", reason="leadership ended")]


def test_nobody_but_the_leader_reads_or_changes_voters(group: Any) -> None:
    group.elect()
    follower = group.followers()[0]

    assert group.ask(follower, "read", 1, "x") == [ReadEnded(1, "refused", reason="this voter does not lead")]
    assert group.ask(follower, "change_voters", 2, ("a", "b")) == [
        WriteEnded(2, "refused", reason="this voter does not lead")
    ]


def test_nothing_is_accepted_before_it_is_on_disk(group: Any) -> None:
    leader = group.elect()
    for name in group.followers():
        group.hold_disk(name)

    assert group.ask(leader, "write", 1, "x", b"v") == []
    group.write_disk(group.followers()[0])

    assert group.told(WriteEnded) == [WriteEnded(1, "accepted", Version(1, 2))]


def test_a_voter_that_holds_too_many_keys_stays_silent(group: Any) -> None:
    leader = group.elect()
    voter = group.followers()[0]
    group.crash(leader)
    many = [RegisterEntry(f"k{number}", Version(1, 5), b"") for number in range(1024 * 8)]

    answers = [group.tell(voter, leader, Propose(1, page, tuple(many[page * 1024 :][:1024]))) for page in range(8)]

    assert [len(answer) for answer in answers] == [1] * 7 + [0]
    collected = group.tell(voter, leader, Collect(1))[0][1]
    assert isinstance(collected, Collected) and collected.more
    assert collected.entries[0].key < collected.entries[-1].key


@pytest.mark.parametrize(
    "key", ["config", "leader", "", "k" * (KEY_LIMIT + 1)], ids=["config", "leader", "none", "long"]
)
def test_a_key_of_the_group_itself_or_one_that_no_message_may_carry_is_refused(make_group: MakeGroup, key: str) -> None:
    group = make_group("a")
    group.start()
    group.elect()
    before = dict(group.disks["a"])

    assert [told.outcome for told in group.ask("a", "write", 1, key, b"")] == ["refused"]

    assert group.disks["a"] == before
    group.crash("a")
    group.start("a")
    group.elect()


def test_the_longest_key_is_written_and_can_be_read_from_the_disk_again(make_group: MakeGroup) -> None:
    group = make_group("a")
    group.start()
    group.elect()
    assert group.ask("a", "write", 1, "k" * KEY_LIMIT, b"v")[-1].outcome == "accepted"
    group.crash("a")
    group.start("a")
    group.elect()

    assert group.voters["a"].leader_term.value_of("k" * KEY_LIMIT) == b"v"


def test_an_answer_from_another_disk_than_the_one_recorded_accepts_nothing(group: Any) -> None:
    leader = group.elect()
    voter = group.followers()[0]
    disk_id = group.record(voter).disk_id
    batch = 1 + max(word.batch for _, _, word in group.messages(Propose, leader))
    group.lose(Propose)
    group.ask(leader, "write", 1, "x", b"v")

    group.tell(leader, voter, ProposalAccepted(1, batch, disk_id + 1, 1))
    assert group.told(WriteEnded) == []

    group.tell(leader, voter, ProposalAccepted(1, batch, disk_id, 1))
    assert [told.outcome for told in group.told(WriteEnded)] == ["accepted"]


def test_every_voter_knows_what_its_own_disk_holds_though_it_may_be_behind(group: Any) -> None:
    leader = group.elect()
    group.ask(leader, "write", 1, "job/1", b"one")
    behind, other = group.followers()
    group.isolate(behind)

    group.ask(leader, "write", 2, "job/2", b"two")

    held = {name: voter.held() for name, voter in group.voters.items()}
    assert held[leader] == held[other]
    assert (held[other]["job/1"], held[other]["job/2"]) == (b"one", b"two")
    assert held[behind]["job/1"] == b"one" and "job/2" not in held[behind]
