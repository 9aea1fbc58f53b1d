"""A leader and its voters: those it brings up to date, and how one is added, removed or given another disk."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from talka.cluster.effects import Send
from talka.cluster.leadership.leader_term import LeaderTerm
from talka.cluster.leadership.lease_terms import LeaseFit
from talka.cluster.leadership.news import ConfigChanged, LeaseExtended, WriteEnded
from talka.cluster.leadership.quorum import VOTERS_LIMIT
from talka.cluster.leadership.register import Acceptor
from talka.cluster.leadership.timings import LAN
from talka.cluster.leadership.voters import (
    CONFIG_KEY,
    Electorate,
    VoterConfig,
    VoterEntry,
    decode_config,
    encode_config,
)
from talka.cluster.safeguards import ALL
from talka.units import SECOND
from talka.wire.leadership import (
    VALUE_LIMIT_BYTES,
    Collected,
    Heartbeat,
    HeartbeatReply,
    ProposalAccepted,
    Propose,
    RegisterEntry,
    RegisterSnapshot,
    SnapshotReply,
    Version,
    VoterHello,
    VoterWelcome,
)

TERM = 5
LATEST = Version(2**40, 0)
LEADER_LEASE = LAN.leader_lease_ns(ALL)
MakeGroup = Callable[..., Any]


def disk_id_of(name: str) -> int:
    return 100 + ord(name)


class Leader:
    """The leader `a`, which serves. What it says to its own disk is taken, and is on disk at once."""

    def __init__(self, names: str = "abc", *, held: Mapping[str, bytes] = {}) -> None:
        self.now = 1_000 * SECOND
        self.disks: dict[str, int] = {}
        """With which disk each said VoterHello last."""
        self.config = VoterConfig(7, 1, tuple(VoterEntry(name, disk_id_of(name)) for name in names))
        self.acceptor = Acceptor({}, disk_id_of("a"))
        self.acceptor.accept((RegisterEntry(CONFIG_KEY, Version(1, 1), encode_config(self.config)),))
        self.acceptor.accept(tuple(RegisterEntry(key, Version(1, 2), value) for key, value in held.items()))
        self.electorate = Electorate("a", self.config, 2 * LAN.lease_ns)
        self.leader_term = LeaderTerm(
            self.now,
            me="a",
            term=TERM,
            parent=3,
            config=LAN,
            electorate=self.electorate,
            acceptor=self.acceptor,
            founding=None,
            fit=LeaseFit(LAN.lease_ns, None),
            safeguards=ALL,
        )
        self.begun = self.hear("begin")

    def serve(self) -> "Leader":
        others = self.electorate.others()
        self.beat(1, *others)
        for number in sorted({word.batch for word in proposals(self.begun)}):
            self.accept(number, *others)
        for name in others:
            for word in proposals(self.hear("on_collected", name, Collected(TERM, "", (), False))):
                self.accept(word.batch, *others)
        assert self.leader_term.is_serving
        return self

    def hear(self, method: str, *values: Any, **options: Any) -> list[object]:
        """What comes of this call, without what the leader says to itself."""
        out: list[object] = []
        getattr(self.leader_term, method)(self.now, *values, out, **options)
        for word in out:
            if isinstance(word, Send) and word.to == "a" and isinstance(word.message, Propose):
                assert self.acceptor.accept(word.message.entries)
                self.leader_term.on_accepted(self.now, "a", ProposalAccepted(TERM, word.message.batch, 1, 1), out)
        return [word for word in out if not isinstance(word, Send) or word.to != "a"]

    def beat(self, number: int, *names: str) -> list[object]:
        reply = HeartbeatReply(TERM, number, 1, 1, LATEST, 0)
        return [word for name in names for word in self.hear("on_heartbeat_reply", name, reply)]

    def accept(self, batch: int, *names: str) -> list[object]:
        return [word for name in names for word in self.hear("on_accepted", name, ProposalAccepted(TERM, batch, 1, 1))]

    def tick(self, wait_ns: int = LAN.heartbeat_ns) -> list[object]:
        self.now += wait_ns
        return self.hear("tick")

    def hello(self, sender: str, disk_id: int = 0, admitted: bool = False) -> list[object]:
        self.disks[sender] = disk_id or disk_id_of(sender)
        return self.hear("on_hello", sender, VoterHello(self.disks[sender], 1, admitted, 7, 0))

    def learned(self, sender: str, *parts: RegisterSnapshot) -> list[object]:
        replies = [SnapshotReply(TERM, part.number, part.page, self.disks[sender]) for part in parts]
        return [word for reply in replies for word in self.hear("on_snapshot_reply", sender, reply)]

    def teach(self, name: str, disk_id: int = 555) -> None:
        self.learned(name, *snapshots(self.hello(name, disk_id)))

    def change(self, ref: int, names: str, allow_two: bool = False) -> list[object]:
        return self.hear("change_voters", ref, tuple(names), allow_two=allow_two)

    def join(self, ref: int, names: str) -> list[object]:
        """Add the last of these, which learns at once; what is said because of that."""
        return self.learned(names[-1], *snapshots(self.change(ref, names), names[-1]))

    def wait(self, duration_ns: int) -> list[object]:
        """Go on from heartbeat to heartbeat, which all voters answer."""
        out: list[object] = []
        for _ in range(duration_ns // LAN.heartbeat_ns):
            said = self.tick()
            self.beat(told(said, Heartbeat)[0].round, *self.electorate.others())
            out += said
        return out

    def names(self) -> str:
        return "".join(self.electorate.config.names())


def told(out: list[object], kind: type, to: str = "") -> list[Any]:
    """The messages of this kind, to one voter or to any."""
    words = [word for word in out if isinstance(word, Send) and to in ("", word.to)]
    return [word.message for word in words if isinstance(word.message, kind)]


def proposals(out: list[object], to: str = "") -> list[Propose]:
    return told(out, Propose, to)


def snapshots(out: list[object], to: str = "") -> list[RegisterSnapshot]:
    return told(out, RegisterSnapshot, to)


def config_in(part: RegisterSnapshot) -> VoterConfig:
    return decode_config(next(entry.value for entry in part.entries if entry.key == CONFIG_KEY))


def refused(out: list[object]) -> str:
    assert len(out) == 1 and isinstance(out[0], WriteEnded) and out[0].outcome == "refused"
    return out[0].reason


def not_up_to_date(name: str) -> str:
    return f"{name!r} has not been brought up to date yet: start it, wait, and ask again"


# -- voters without state


def test_nobody_is_brought_up_to_date_before_the_leader_serves() -> None:
    assert Leader().hello("c") == []


def test_a_voter_with_its_own_disk_and_its_state_needs_nothing() -> None:
    assert Leader().serve().hello("c", admitted=True) == []


def test_a_voter_that_is_not_admitted_yet_is_sent_what_the_leader_holds() -> None:
    leader = Leader(held={"x": b"v"}).serve()

    (part,) = snapshots(leader.hello("c"), "c")

    assert (part.term, part.page, part.pages, part.group_id) == (TERM, 0, 1, 7)
    assert list(part.entries) == leader.acceptor.after("")
    assert leader.learned("c", part) == []
    assert snapshots(leader.tick()) == []


def test_a_voter_with_another_disk_is_recorded_by_a_majority_without_its_own_word() -> None:
    leader = Leader("abcde").serve()

    proposal = proposals(leader.hello("c", 999))[0]

    changed = decode_config(proposal.entries[0].value)
    assert (changed.epoch, changed.disk_id_of("c")) == (2, 999)
    assert leader.hello("c", 999) == []  # the change is under way
    assert leader.accept(proposal.batch, "b", "c") == []
    assert leader.accept(proposal.batch, "d") == [ConfigChanged(changed)]
    assert snapshots(leader.hello("c", 999), "c")


def test_pages_that_were_not_answered_are_sent_again_with_the_heartbeat() -> None:
    leader = Leader().serve()
    sent = snapshots(leader.hello("c"))

    assert snapshots(leader.tick()) == sent
    leader.learned("c", *sent)
    assert snapshots(leader.tick()) == []


def test_an_answer_to_another_snapshot_or_of_another_disk_says_nothing() -> None:
    leader = Leader().serve()
    sent = snapshots(leader.hello("c"))
    number, disk = sent[0].number, disk_id_of("c")

    assert leader.hear("on_snapshot_reply", "c", SnapshotReply(TERM, number + 1, 0, disk)) == []
    assert leader.hear("on_snapshot_reply", "c", SnapshotReply(TERM, number, 0, disk + 1)) == []

    assert snapshots(leader.tick()) == sent


def test_an_applicant_that_changes_its_disk_starts_again_with_a_new_snapshot() -> None:
    leader = Leader().serve()
    first = snapshots(leader.hello("x", 1))[0]

    second = snapshots(leader.hello("x", 2))[0]

    assert second.number != first.number
    assert leader.learned("x", first) == []
    assert refused(leader.change(1, "abcx")) == not_up_to_date("x")
    leader.learned("x", second)
    assert snapshots(leader.change(2, "abcx"), "x")


def test_an_applicant_that_changes_its_disk_after_it_was_taught_is_taught_again() -> None:
    leader = Leader().serve()
    leader.teach("x", 1)
    assert leader.hello("x", 1) == []

    (again,) = snapshots(leader.hello("x", 2))

    assert refused(leader.change(1, "abcx")) == not_up_to_date("x")
    leader.learned("x", again)
    assert config_in(*snapshots(leader.change(2, "abcx"))).disk_id_of("x") == 2


# -- adding a voter


def test_a_voter_is_added_only_after_it_was_brought_up_to_date() -> None:
    leader = Leader().serve()
    assert refused(leader.change(1, "abcd")) == not_up_to_date("d")
    leader.teach("d", 555)
    assert leader.hello("d", 555) == []

    out = leader.change(2, "abcd")

    assert config_in(*snapshots(out, "d")) == leader.config.with_storage("d", 555)


def test_one_that_joins_gets_a_last_snapshot_of_all_there_is_with_the_change_in_it() -> None:
    leader = Leader(held={"x": b"old"}).serve()
    leader.teach("d")
    later = proposals(leader.hear("write", 1, "x", b"new"))[0]
    leader.accept(later.batch, "b")

    (part,) = snapshots(leader.change(2, "abcd"), "d")

    held = {entry.key: entry for entry in part.entries}
    assert list(held) == sorted(held) == sorted(leader.acceptor.entries)
    assert held["x"].value == b"new"
    assert held[CONFIG_KEY].version > leader.acceptor.version_of(CONFIG_KEY)


def test_the_others_hear_of_a_change_only_once_the_one_that_joins_has_learned_it() -> None:
    leader = Leader().serve()
    leader.teach("d")

    taught = leader.change(1, "abcd")
    assert [word.to for word in taught if isinstance(word, Send)] == ["d"]
    again = leader.tick()
    assert (proposals(again), snapshots(again)) == ([], snapshots(taught))
    assert leader.electorate.pending is None
    (part,) = snapshots(taught)
    out = leader.learned("d", part)

    change = next(entry for entry in part.entries if entry.key == CONFIG_KEY)
    assert [proposals(out, name)[0].entries for name in "bcd"] == [(change,)] * 3
    assert leader.electorate.pending == config_in(part)
    assert leader.names() == "abc"


def test_one_that_joins_accepts_the_change_by_learning_it() -> None:
    leader = Leader().serve()
    leader.teach("d")
    change = proposals(leader.join(1, "abcd"))[0]

    ended = leader.accept(change.batch, "b")

    assert proposals(ended, "d")[0].entries == tuple(leader.acceptor.after(""))  # written to all of them again
    assert [told for told in ended if not isinstance(told, Send)] == [
        ConfigChanged(leader.electorate.config),
        WriteEnded(1, "accepted", Version(TERM, 2)),
    ]
    assert leader.names() == "abcd"
    assert leader.electorate.pending is None
    assert snapshots(leader.tick()) == []


def test_one_that_joins_has_accepted_nothing_before_it_has_every_page() -> None:
    large = {f"k{number}": bytes(VALUE_LIMIT_BYTES) for number in range(3)}
    leader = Leader(held=large).serve()
    leader.teach("d")
    sent = snapshots(leader.change(1, "abcd"), "d")
    assert len(sent) == sent[0].pages == 3

    out = leader.learned("d", sent[0])
    assert [part.page for part in snapshots(out)] == [1, 2]
    again = leader.tick()
    assert snapshots(again) == sent[1:]
    assert proposals([*out, *again, *leader.learned("d", sent[1])]) == []

    assert proposals(leader.learned("d", sent[2]), "b")


def test_an_answer_to_the_first_snapshot_is_no_word_for_the_change() -> None:
    leader = Leader().serve()
    first = snapshots(leader.hello("d", 555))
    leader.learned("d", *first)
    sent = snapshots(leader.change(1, "abcd"))

    assert leader.learned("d", *first) == []
    assert snapshots(leader.tick()) == sent


def test_one_that_joins_has_accepted_nothing_by_what_another_disk_learned() -> None:
    leader = Leader().serve()
    leader.teach("d", 555)
    (part,) = snapshots(leader.change(1, "abcd"), "d")

    assert leader.hear("on_snapshot_reply", "d", SnapshotReply(TERM, part.number, part.page, 556)) == []

    assert snapshots(leader.tick(), "d") == [part]


def test_a_voter_is_added_by_a_majority_of_the_voters_before() -> None:
    leader = Leader("abcd").serve()
    leader.teach("e")
    change = proposals(leader.join(1, "abcde"))[0]

    assert leader.accept(change.batch, "b") == []  # three of five, and two of four
    assert leader.names() == "abcd"
    leader.accept(change.batch, "c")

    assert leader.names() == "abcde"


def test_one_that_does_not_learn_in_time_is_not_added_and_can_be_tried_again() -> None:
    leader = Leader("abcde").serve()
    leader.teach("x")
    (part,) = snapshots(leader.change(1, "abcdex"))
    before = leader.wait(LAN.write_timeout_ns - LAN.heartbeat_ns)
    assert snapshots(before) == [part] * 7
    assert [word for word in before if isinstance(word, WriteEnded)] == []

    out = leader.wait(LAN.heartbeat_ns)

    ended = WriteEnded(1, "unknown", reason="'x' did not learn in time")
    assert [word for word in out if isinstance(word, WriteEnded)] == [ended]
    assert leader.electorate.pending is None
    assert leader.learned("x", part) == []
    assert snapshots(leader.tick()) == []
    leader.accept(proposals(out)[0].batch, "b", "c")
    assert snapshots(leader.change(2, "abcdex"), "x")


def test_voters_change_again_only_after_what_one_may_have_learned_in_vain_is_outdated() -> None:
    leader = Leader("abcd").serve()
    leader.teach("e")
    (part,) = snapshots(leader.change(1, "abcde"))
    learned = next(entry for entry in part.entries if entry.key == CONFIG_KEY)

    out = leader.wait(LAN.write_timeout_ns)

    (present,) = proposals(out, "b")[0].entries
    assert present.version > learned.version
    assert decode_config(present.value) == leader.config
    batch = proposals(out, "b")[0].batch
    leader.accept(batch, "b")
    assert refused(leader.change(2, "abc")) == "another write of this key is under way"
    assert leader.accept(batch, "c") == []
    assert proposals(leader.change(3, "abc"))


def test_one_that_learned_in_time_is_not_given_up_however_late_the_others_accept() -> None:
    leader = Leader().serve()
    leader.teach("d")
    change = proposals(leader.join(1, "abcd"))[0]

    out = leader.wait(2 * LAN.write_timeout_ns)

    ended = WriteEnded(1, "unknown", reason="no majority answered in time")
    assert [word for word in out if isinstance(word, WriteEnded)] == [ended]
    leader.accept(change.batch, "b")
    assert leader.names() == "abcd"


def test_one_that_changes_its_disk_while_it_joins_is_not_added_with_either() -> None:
    leader = Leader().serve()
    leader.teach("d", 555)
    (last,) = snapshots(leader.change(1, "abcd"))

    (other,) = snapshots(leader.hello("d", 556))

    assert config_in(other) == leader.config
    late = SnapshotReply(TERM, last.number, last.page, 555)
    assert leader.hear("on_snapshot_reply", "d", late) == []
    assert leader.learned("d", other) == []
    out = leader.wait(LAN.write_timeout_ns)
    assert WriteEnded(1, "unknown", reason="'d' did not learn in time") in out
    assert {decode_config(word.entries[0].value) for word in proposals(out)} == {leader.config}


def test_a_group_of_one_grows_to_two_by_the_word_of_the_second_when_two_are_allowed() -> None:
    leader = Leader("a").serve()
    leader.teach("b")
    assert "the loss of either stops the group" in refused(leader.change(1, "ab"))

    out = leader.change(2, "ab", allow_two=True)
    assert leader.names() == "a"
    leader.learned("b", *snapshots(out, "b"))

    assert leader.names() == "ab"


def test_a_lease_too_needs_both_majorities_while_voters_change() -> None:
    leader = Leader("abcde").serve()
    leader.change(1, "abcd")
    leader.tick()

    assert leader.beat(2, "b", "e") == []  # three of five, and two of four
    assert leader.beat(2, "c") == [LeaseExtended(TERM, leader.now + LEADER_LEASE)]


def test_a_lease_needs_the_majority_with_the_newcomer_from_when_it_has_learned_the_change() -> None:
    leader = Leader().serve()
    leader.teach("d")
    taught = snapshots(leader.change(1, "abcd"))
    leader.tick()
    assert leader.beat(2, "b") == [LeaseExtended(TERM, leader.now + LEADER_LEASE)]

    leader.learned("d", *taught)
    leader.tick()

    assert leader.beat(3, "b") == []
    assert leader.beat(3, "d") == [LeaseExtended(TERM, leader.now + LEADER_LEASE)]


def test_a_group_has_no_more_voters_than_the_limit() -> None:
    names = "abcdefghijklmnopq"
    leader = Leader(names[:VOTERS_LIMIT]).serve()
    leader.teach(names[VOTERS_LIMIT])

    assert "16 voters are configured, at most 15 may be" in refused(leader.change(1, names[: VOTERS_LIMIT + 1]))


# -- removing one, and what cannot be changed


def test_a_voter_is_removed_by_majorities_of_the_voters_before_and_after() -> None:
    leader = Leader("abcde").serve()
    out = leader.change(1, "abcd")
    assert snapshots(out) == []

    assert leader.accept(proposals(out)[0].batch, "b", "e") == []
    leader.accept(proposals(out)[0].batch, "c")

    assert leader.names() == "abcd"


def test_everything_is_written_again_to_those_who_are_left_once_one_was_removed() -> None:
    leader = Leader("abcde", held={"x": b"1"}).serve()
    leader.accept(proposals(leader.hear("write", 1, "y", b"2"))[0].batch, "b", "c")
    held = dict(leader.acceptor.entries)
    change = proposals(leader.change(2, "abcd"))[0]

    out = leader.accept(change.batch, "b", "c")

    (again,) = proposals(out, "b")
    assert list(again.entries) == [{**held, CONFIG_KEY: change.entries[0]}[key] for key in sorted(held)]
    assert proposals(out) == [again] * 3  # to the three others, with the versions they have
    assert [told for told in out if not isinstance(told, Send)] == [
        ConfigChanged(leader.config.without("e")),
        WriteEnded(2, "accepted", change.entries[0].version),
    ]
    assert leader.accept(again.batch, "b") == []
    assert proposals(leader.tick()) == [again] * 2  # until a majority has it
    assert leader.accept(again.batch, "c") == []
    assert proposals(leader.tick()) == []


@pytest.mark.parametrize(("names", "kind"), [("abcd", Propose), ("abcdex", RegisterSnapshot)], ids=["removed", "added"])
def test_voters_change_again_only_after_everything_was_written_again(names: str, kind: type) -> None:
    leader = Leader("abcdef", held={f"k{number}": bytes(VALUE_LIMIT_BYTES) for number in range(2)}).serve()
    leader.teach("x")
    out = leader.accept(proposals(leader.change(1, "abcde"))[0].batch, "b", "c", "d")
    numbers = [message.batch for message in proposals(out, "b")]
    assert len(numbers) > 1
    waiting = "everything is still being written to the voters of the last change: ask again"
    for number in numbers:
        assert refused(leader.change(2, names)) == waiting
        leader.accept(number, "b", "c")

    assert told(leader.change(3, names), kind)


def test_a_value_being_written_is_not_written_again_and_is_waited_for() -> None:
    leader = Leader("abcde", held={"x": b"old"}).serve()
    write = proposals(leader.hear("write", 1, "x", b"new"))[0]

    (again,) = proposals(leader.accept(proposals(leader.change(2, "abcd"))[0].batch, "b", "c"), "b")
    assert "x" not in [entry.key for entry in again.entries]
    leader.accept(again.batch, "b", "c")

    assert "still being written" in refused(leader.change(3, "abc"))
    leader.accept(write.batch, "b", "c")
    assert proposals(leader.change(4, "abc"))


def test_nothing_is_written_again_where_a_voter_only_got_another_disk() -> None:
    leader = Leader("abcde").serve()
    out = leader.accept(proposals(leader.hello("e", 999))[0].batch, "b", "c")

    assert [decode_config(leader.leader_term.values()[CONFIG_KEY]).disk_id_of("e"), proposals(out)] == [999, []]


def test_three_voters_become_two_only_where_two_are_allowed() -> None:
    leader = Leader("abc").serve()
    assert "the loss of either stops the group" in refused(leader.change(1, "ab"))

    batch = proposals(leader.change(2, "ab", allow_two=True))[0].batch
    leader.accept(batch, "b")

    assert leader.names() == "ab"


@pytest.mark.parametrize("names", ["abc", "abcca", "abcde", "a", "abd", "xyz"])
def test_voters_change_one_at_a_time(names: str) -> None:
    assert refused(Leader().serve().change(1, names)).startswith("voters change one at a time: ")


def test_the_last_voter_cannot_be_removed() -> None:
    assert refused(Leader("a").serve().change(1, "")) == "no voters are configured: name 1, 3 or 5 of them"


def test_a_second_change_waits_for_the_first() -> None:
    leader = Leader("abcde").serve()
    assert proposals(leader.change(1, "abcd"))

    assert refused(leader.change(2, "abce")) == "another write of this key is under way"
    assert leader.hello("c", 999) == []


def test_a_second_change_waits_for_a_newcomer_that_is_being_taught() -> None:
    leader = Leader("abcde").serve()
    leader.teach("x")
    leader.teach("y")
    assert snapshots(leader.change(1, "abcdex"), "x")

    assert refused(leader.change(2, "abcdey")) == "another write of this key is under way"
    assert refused(leader.change(3, "abcd")) == "another write of this key is under way"
    assert leader.hello("c", 999) == []


def test_voters_are_changed_only_under_the_lease() -> None:
    leader = Leader("abcde").serve()
    leader.now = leader.leader_term.lease_until

    assert refused(leader.change(1, "abcd")) == "this voter holds no lease"
    assert leader.hello("c", 999) == []
    assert leader.electorate.pending is None


def test_a_change_under_way_counts_no_more_once_leadership_ended() -> None:
    leader = Leader("abcd").serve()
    leader.change(1, "abc")
    assert leader.electorate.pending is not None

    out: list[object] = []
    leader.leader_term.end(out)

    assert leader.electorate.pending is None
    assert out == [WriteEnded(1, "unknown", reason="leadership ended")]


def test_nobody_knows_what_became_of_a_newcomer_that_was_being_taught_when_leadership_ended() -> None:
    leader = Leader().serve()
    leader.teach("d")
    leader.change(1, "abcd")

    out: list[object] = []
    leader.leader_term.end(out)

    assert out == [WriteEnded(1, "unknown", reason="leadership ended")]


def test_one_that_missed_a_change_is_told_it_again() -> None:
    leader = Leader("abcde").serve()
    proposal = proposals(leader.change(1, "abcd"))[0]
    leader.accept(proposal.batch, "b", "c")

    out = leader.hear("on_heartbeat_reply", "d", HeartbeatReply(TERM, 1, 1, 1, Version(TERM, 0), 0))

    assert proposals(out, "d") == [Propose(TERM, 0, proposal.entries)]
    assert leader.accept(0, "d") == []


# -- in a group


def test_a_value_a_majority_holds_outlives_the_removal_of_two_who_hold_it(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c", "d", "e")
    group.start()
    leader = group.elect()
    group.run(SECOND)
    second, third, *without = group.followers()
    group.is_lost = lambda sender, to, message: isinstance(message, Propose) and to in without
    assert group.ask(leader, "write", 1, "x", b"v")[-1].outcome == "accepted"
    group.heal()
    group.run(SECOND)

    group.ask(leader, "change_voters", 2, (leader, second, *without))
    group.run(SECOND)
    group.ask(leader, "change_voters", 3, (leader, *without))
    group.run(SECOND)
    assert [told.outcome for told in group.told(WriteEnded)] == ["accepted"] * 3
    assert group.voters[leader].config.names() == tuple(sorted((leader, *without)))
    group.crash(leader, second, third)
    successor = group.elect(60 * SECOND)

    assert group.voters[successor].leader_term.value_of("x") == b"v"


def test_a_voter_that_was_removed_and_returns_with_its_old_disk_learns_what_it_missed(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c", "d")
    group.start()
    leader = group.elect()
    group.run(SECOND)
    *others, gone = group.followers()
    group.crash(gone)
    group.ask(leader, "change_voters", 1, (leader, *others))
    group.run(SECOND)
    assert group.voters[leader].config.disk_id_of(gone) is None
    group.ask(leader, "write", 2, "x", b"v")
    group.is_lost = lambda sender, to, message: isinstance(message, Propose) and to == gone  # lessons alone arrive

    group.start(gone)
    group.run(3 * SECOND)
    group.ask(leader, "change_voters", 3, (leader, *others, gone))
    group.run(SECOND)

    assert [told.outcome for told in group.told(WriteEnded)] == ["accepted"] * 3
    assert group.voters[leader].config.disk_id_of(gone) == group.record(gone).disk_id
    assert group.entry(gone, "x") == group.entry(leader, "x")
    assert group.entry(gone, CONFIG_KEY) == group.entry(leader, CONFIG_KEY)


def test_a_newcomer_whose_disk_was_replaced_before_it_joins_is_not_counted(make_group: MakeGroup) -> None:
    group = make_group("a")
    group.start()
    group.elect()
    group.start("b", voters=("a", "b"), allow_two=True)
    group.run(2 * SECOND)
    group.crash("b")
    group.lose_disk("b")
    group.lose(VoterHello)
    group.start("b", voters=("a", "b"), allow_two=True)

    group.ask("a", "change_voters", 1, ("a", "b"), allow_two=True)
    group.run(SECOND)
    assert group.messages(SnapshotReply, "b")[-1][2].disk_id == group.record("b").disk_id
    group.heal()
    group.run(20 * SECOND)

    assert group.told(WriteEnded) == [WriteEnded(1, "unknown", reason="'b' did not learn in time")]
    assert [told.config.names() for told in group.told(ConfigChanged)] == [("a",)]  # when it was founded


def test_a_disk_that_was_replaced_and_is_put_back_does_not_get_its_seat_again(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c")
    group.start()
    leader = group.elect()
    group.run(SECOND)
    other, replaced = group.followers()
    put_aside = dict(group.disks[replaced])
    group.crash(replaced)
    group.lose_disk(replaced)
    group.start(replaced)
    group.run(10 * SECOND)
    group.is_lost = lambda sender, to, message: isinstance(message, Propose) and to == other
    assert group.ask(leader, "write", 1, "x", b"v")[-1].outcome == "accepted"  # on two disks

    group.crash(replaced)
    group.disks[replaced] = put_aside
    group.lose(VoterWelcome)  # at first nobody can tell it
    group.start(replaced)
    group.heal()
    group.run(10 * SECOND)
    group.crash(leader)
    successor = group.elect(60 * SECOND)

    assert group.voters[successor].leader_term.value_of("x") == b"v"


def test_voters_that_return_with_old_disks_and_miss_their_lessons_outvote_nothing(make_group: MakeGroup) -> None:
    group = make_group("a", "b", "c", "d", "e")
    group.start()
    leader = group.elect()
    group.run(SECOND)
    second, third, fourth, fifth = group.followers()
    group.crash(fourth)
    group.ask(leader, "change_voters", 1, (leader, second, third, fifth))
    group.run(SECOND)
    group.crash(fifth)
    group.ask(leader, "change_voters", 2, (leader, second, third))
    group.run(SECOND)
    group.start(fourth, fifth)
    group.run(5 * SECOND)  # both have learned what there was
    group.is_lost = lambda sender, to, message: isinstance(message, Propose) and to == third
    assert group.ask(leader, "write", 3, "x", b"v")[-1].outcome == "accepted"

    group.lose(RegisterSnapshot)
    for ref, name in ((4, fourth), (5, fifth)):
        group.ask(leader, "change_voters", ref, (leader, second, third, name))
        group.run(3 * SECOND)
    assert [told.outcome for told in group.told(WriteEnded)] == ["accepted"] * 3 + ["unknown"] * 2
    group.heal()
    group.crash(leader, second)
    assert set(group.watch(20 * SECOND)) == {""}
    group.start(second)
    successor = group.elect(60 * SECOND)

    assert group.voters[successor].leader_term.value_of("x") == b"v"


def test_a_value_written_while_a_newcomer_learned_outlives_the_removal_of_one_who_holds_it(group: Any) -> None:
    leader = group.elect()
    group.run(SECOND)
    second, third = group.followers()
    group.start("d", voters=("a", "b", "c", "d"))
    group.run(2 * SECOND)
    group.lose(SnapshotReply)
    group.ask(leader, "change_voters", 1, ("a", "b", "c", "d"))
    group.is_lost = lambda sender, to, message: isinstance(message, Propose) and to == third
    assert group.ask(leader, "write", 2, "x", b"v")[-1].outcome == "accepted"  # on two disks
    group.heal()
    group.run(SECOND)
    assert [told.ref for told in group.told(WriteEnded)] == [2, 1]

    # What is written again after the removal comes too late.
    group.is_lost = lambda sender, to, message: (
        isinstance(message, Propose) and "x" in [entry.key for entry in message.entries]
    )
    group.ask(leader, "change_voters", 3, (leader, third, "d"))
    assert group.told(WriteEnded)[-1].outcome == "accepted"
    group.crash(leader, second)
    group.heal()
    successor = group.elect(60 * SECOND)

    assert group.voters[successor].leader_term.value_of("x") == b"v"
