"""A leader: its lease, its take-over, its writes and reads. How it changes voters is in `test_reign_voters.py`."""

from collections.abc import Mapping

import pytest

from talka.cluster.effects import Lane, Send
from talka.cluster.fencing import Token
from talka.cluster.leadership.leader_term import BATCHES_LIMIT, READS_LIMIT, ROUNDS_KEPT, VALUES_LIMIT_BYTES, LeaderTerm
from talka.cluster.leadership.lease_terms import LeaseFit, OwnLease
from talka.cluster.leadership.news import ConfigChanged, Elected, LeaseExtended, ReadEnded, WriteEnded
from talka.cluster.leadership.register import KEYS_LIMIT, Acceptor
from talka.cluster.leadership.timings import LAN, LeadershipConfig
from talka.cluster.leadership.voters import (
    CONFIG_KEY,
    LEADER_KEY,
    Electorate,
    VoterConfig,
    VoterEntry,
    decode_config,
    encode_config,
)
from talka.cluster.safeguards import ALL, Safeguards
from talka.units import MILLISECOND, SECOND
from talka.wire.leadership import (
    CHANNEL,
    KEY_LIMIT,
    VALUE_LIMIT_BYTES,
    Collect,
    Collected,
    Heartbeat,
    HeartbeatReply,
    LeadershipMessage,
    ProposalAccepted,
    Propose,
    RegisterEntry,
    Version,
)

TERM = 5
START = 1_000 * SECOND
LEADER_LEASE = LAN.leader_lease_ns(ALL)
LATEST = Version(2**40, 0)
"""The configuration of a voter that has missed none."""


def config_of(*names: str, epoch: int = 1) -> VoterConfig:
    return VoterConfig(7, epoch, tuple(VoterEntry(name, 100 + ord(name)) for name in names))


class Driven:
    """The leader `a`. Its own disk is the test's: what it says to itself is answered by `accept`."""

    def __init__(
        self,
        names: str = "abc",
        *,
        held: Mapping[str, bytes] = {},
        founding: VoterConfig | None = None,
        safeguards: Safeguards = ALL,
        timings: LeadershipConfig = LAN,
        own_lease: OwnLease | None = None,
    ) -> None:
        self.now = START
        self.out: list[object] = []
        self.acceptor = Acceptor({}, 100 + ord("a"))
        self.config = config_of(*names)
        if founding is None:
            self.acceptor.accept((RegisterEntry(CONFIG_KEY, Version(1, 1), encode_config(self.config)),))
        self.acceptor.accept(tuple(RegisterEntry(key, Version(1, 2), value) for key, value in held.items()))
        self.electorate = Electorate("a", self.config, 2 * LAN.lease_ns, safeguards)
        self.leader_term = LeaderTerm(
            self.now,
            me="a",
            term=TERM,
            parent=3,
            config=timings,
            electorate=self.electorate,
            acceptor=self.acceptor,
            founding=founding,
            fit=LeaseFit(timings.lease_ns, own_lease, safeguards),
            safeguards=safeguards,
        )

    def begin(self) -> list[object]:
        self.leader_term.begin(self.now, self.out)
        return self.taken()

    def taken(self) -> list[object]:
        out, self.out = self.out, []
        return out

    def collected(self, sender: str, *entries: RegisterEntry, after: str = "", more: bool = False) -> list[object]:
        self.leader_term.on_collected(self.now, sender, Collected(TERM, after, entries, more), self.out)
        return self.taken()

    def beat(self, number: int, *names: str, holding: Version = LATEST, health: int = 0) -> list[object]:
        for name in names:
            reply = HeartbeatReply(TERM, number, 1, 1, holding, health)
            self.leader_term.on_heartbeat_reply(self.now, name, reply, self.out)
        return self.taken()

    def accept(self, batch: int, *names: str) -> list[object]:
        for name in names:
            self.leader_term.on_accepted(self.now, name, ProposalAccepted(TERM, batch, 1, 1), self.out)
        return self.taken()

    def tick(self, wait_ns: int = 0) -> list[object]:
        self.now += wait_ns
        self.leader_term.tick(self.now, self.out)
        return self.taken()

    def write(self, ref: int, key: str, value: bytes = b"") -> list[object]:
        self.leader_term.write(self.now, ref, key, value, self.out)
        return self.taken()

    def read(self, ref: int, key: str) -> list[object]:
        self.leader_term.read(self.now, ref, key, self.out)
        return self.taken()

    def serve(self) -> "Driven":
        """Take over with the answers of everybody."""
        self.begin()
        others = self.electorate.others()
        self.beat(1, *others)
        proposals = [said(self.collected(name), Propose, "a") for name in others]
        for word in [word for words in proposals for word in words]:
            assert isinstance(word.message, Propose)
            self.accept(word.message.batch, "a", *others)
        assert self.leader_term.is_serving
        return self


def said(out: list[object], kind: type, to: str = "") -> list[Send[LeadershipMessage]]:
    return [word for word in out if isinstance(word, Send) and isinstance(word.message, kind) and to in ("", word.to)]


def proposed(out: list[object]) -> Propose:
    message = said(out, Propose)[0].message
    assert isinstance(message, Propose)
    return message


def ended(ref: int, *outs: object) -> WriteEnded | ReadEnded:
    found = [told for told in outs if isinstance(told, WriteEnded | ReadEnded) and told.ref == ref]
    assert len(found) == 1
    return found[0]


# -- the lease


def test_a_lease_is_counted_from_before_the_question_however_late_the_answer() -> None:
    driven = Driven()
    driven.begin()
    driven.now += SECOND

    driven.beat(1, "b")

    assert driven.leader_term.lease_until == START + LEADER_LEASE
    assert driven.leader_term.holds_lease(START + LEADER_LEASE - 1)
    assert not driven.leader_term.holds_lease(START + LEADER_LEASE)


def test_without_its_safeguard_a_lease_is_counted_from_the_answer() -> None:
    driven = Driven(safeguards=Safeguards(lease_from_send=False))
    driven.begin()
    driven.now += SECOND

    driven.beat(1, "b")

    assert driven.leader_term.lease_until == START + SECOND + LEADER_LEASE


def test_answers_of_two_rounds_do_not_add_up_to_a_majority() -> None:
    driven = Driven("abcde")
    driven.begin()
    driven.tick(LAN.heartbeat_ns)

    driven.beat(1, "b")
    driven.beat(2, "c")
    assert not driven.leader_term.holds_lease(driven.now)
    driven.beat(1, "b", "b", "x")
    assert not driven.leader_term.holds_lease(driven.now)

    driven.beat(2, "d")
    assert driven.leader_term.lease_until == START + LAN.heartbeat_ns + LEADER_LEASE


def test_an_answer_to_an_earlier_round_never_shortens_the_lease() -> None:
    driven = Driven().serve()
    driven.tick(LAN.heartbeat_ns)
    driven.tick(LAN.heartbeat_ns)
    assert driven.beat(3, "b") == [LeaseExtended(TERM, START + 2 * LAN.heartbeat_ns + LEADER_LEASE)]

    assert driven.beat(2, "b") == []
    assert driven.beat(3, "c") == []
    assert driven.leader_term.lease_until == START + 2 * LAN.heartbeat_ns + LEADER_LEASE


def test_rounds_of_longer_ago_than_a_lease_are_forgotten() -> None:
    driven = Driven()
    driven.begin()
    while driven.now <= START + LAN.lease_ns:
        driven.tick(LAN.heartbeat_ns)

    assert driven.beat(1, "b", "c") == []
    assert driven.leader_term.lease_until == 0
    driven.beat(2, "b")
    assert driven.leader_term.lease_until == START + LAN.heartbeat_ns + LEADER_LEASE


def test_rounds_of_reads_do_not_displace_those_that_still_renew_the_lease() -> None:
    driven = Driven().serve()
    for number in range((LEADER_LEASE - SECOND // 10) // LAN.read_spacing_ns):
        driven.read(number, "x")
        assert said(driven.tick(LAN.read_spacing_ns), Heartbeat)

    told = driven.beat(2, "b")  # an answer that was more than a second on its way

    assert told[0] == LeaseExtended(TERM, START + LAN.read_spacing_ns + LEADER_LEASE)


def test_rounds_have_a_limit_however_close_to_each_other() -> None:
    driven = Driven(timings=LeadershipConfig(read_spacing_ns=MILLISECOND)).serve()
    for number in range(ROUNDS_KEPT):
        driven.read(number, "x")
        driven.tick(MILLISECOND)

    assert driven.beat(1, "b") == []  # forgotten, so it confirms nothing
    assert driven.leader_term.best_successor() == ("", 0)
    assert driven.beat(2, "b")[0] == LeaseExtended(TERM, START + MILLISECOND + LEADER_LEASE)


def test_leadership_ends_with_the_lease_and_after_one_lease_when_there_never_was_one() -> None:
    driven = Driven()
    driven.begin()
    assert driven.leader_term.deadline() == START + LAN.lease_ns

    driven.beat(1, "b")

    assert driven.leader_term.deadline() == START + LEADER_LEASE


def test_heartbeats_have_their_time() -> None:
    driven = Driven().serve()

    assert driven.tick(LAN.heartbeat_ns - 1) == []
    assert [word.to for word in said(driven.tick(1), Heartbeat)] == ["b", "c"]


# -- who missed a change of the configuration


def test_a_voter_that_holds_an_older_configuration_is_told_the_one_that_counts() -> None:
    driven = Driven().serve()
    current = RegisterEntry(CONFIG_KEY, Version(TERM, 0), encode_config(driven.config))

    told = driven.beat(1, "c", holding=Version(TERM - 1, 9))

    assert told == [Send(CHANNEL, "c", Propose(TERM, 0, (current,)), Lane.CONTROL)]
    assert driven.accept(0, "b", "c") == []
    assert driven.beat(1, "c", holding=Version(TERM, 0)) == []


def test_a_voter_is_told_so_even_by_an_answer_to_a_round_that_is_forgotten() -> None:
    assert said(Driven().serve().beat(99, "c", holding=Version(1, 1)), Propose, "c")


def test_nobody_is_told_a_configuration_that_no_majority_holds_yet() -> None:
    driven = Driven()
    driven.begin()
    assert driven.beat(1, "c", holding=Version(1, 0)) == []
    driven.collected("b")
    driven.accept(1, "a")

    assert driven.beat(1, "c", holding=Version(1, 0)) == []


# -- taking over


def test_a_leader_serves_only_once_its_token_is_on_a_majority_and_it_holds_the_lease() -> None:
    driven = Driven()
    begun = driven.begin()
    assert [word.to for word in said(begun, Collect)] == ["b", "c"]

    driven.beat(1, "b")
    proposal = proposed(driven.collected("b"))
    assert proposal.entries[0] == RegisterEntry(LEADER_KEY, Version(TERM, 1), b"a")
    assert not driven.leader_term.is_serving
    assert driven.accept(proposal.batch, "a") == []

    told = driven.accept(proposal.batch, "c")

    assert told == [Elected(Token(3, TERM, 1), START + LEADER_LEASE)]
    assert driven.accept(proposal.batch, "b") == []


def test_a_leader_whose_take_over_outlasts_its_lease_serves_with_the_next_one() -> None:
    driven = Driven()
    driven.begin()
    driven.beat(1, "b")
    driven.collected("b")
    driven.now += LAN.lease_ns
    assert driven.accept(1, "a", "b") == []

    driven.tick()

    assert driven.beat(2, "c") == [Elected(Token(3, TERM, 1), driven.now + LEADER_LEASE)]


def test_a_lease_alone_does_not_let_a_leader_serve_before_it_has_read_a_majority() -> None:
    driven = Driven()
    driven.begin()

    assert driven.beat(1, "b", "c") == []
    assert driven.write(1, "x") == [WriteEnded(1, "refused", reason="this voter holds no lease")]
    assert driven.read(2, "x") == [ReadEnded(2, "refused", reason="this voter does not lead")]


def test_the_latest_of_what_a_majority_holds_is_written_back_under_the_new_term() -> None:
    driven = Driven(held={"x": b"own", "y": b"own"})
    driven.begin()

    out = driven.collected(
        "b", RegisterEntry("x", Version(1, 1), b"older"), RegisterEntry("y", Version(2, 9), b"newer")
    )

    entries = {entry.key: entry for entry in proposed(out).entries}
    assert entries["x"] == RegisterEntry("x", Version(TERM, 0), b"own")
    assert entries["y"] == RegisterEntry("y", Version(TERM, 0), b"newer")
    assert entries[CONFIG_KEY].version == Version(TERM, 0)
    driven.beat(1, "b")
    driven.accept(1, "a", "b")
    assert driven.leader_term.value_of("y") == b"newer"
    assert driven.leader_term.value_of("z") is None
    assert driven.leader_term.values() == {
        CONFIG_KEY: encode_config(driven.config),
        LEADER_KEY: b"a",
        "x": b"own",
        "y": b"newer",
    }


def test_the_name_of_the_last_leader_is_not_written_back() -> None:
    driven = Driven(held={LEADER_KEY: b"z"})
    driven.begin()

    names = [entry.value for entry in proposed(driven.collected("b")).entries if entry.key == LEADER_KEY]

    assert names == [b"a"]


def test_without_its_safeguard_a_leader_serves_what_it_read_without_writing_it_back() -> None:
    driven = Driven(held={"x": b"own"}, safeguards=Safeguards(write_back=False))
    driven.begin()

    out = driven.collected("b")

    assert [entry.key for entry in proposed(out).entries] == [LEADER_KEY]
    assert driven.leader_term.value_of("x") == b"own"


def test_what_a_voter_holds_is_read_page_by_page_and_a_page_that_was_answered_before_is_not_read_twice() -> None:
    driven = Driven("abcde")
    driven.begin()
    first, second = RegisterEntry("x", Version(2, 1), b"1"), RegisterEntry("y", Version(2, 1), b"2")

    assert driven.collected("b", first, more=True) == [Send(CHANNEL, "b", Collect(TERM, "x"), Lane.CONTROL)]
    assert driven.collected("b", first, more=True) == []
    assert driven.collected("b", second, after="x") == []
    assert driven.collected("b", second, after="x") == []
    out = driven.collected("c", more=True)  # more of nothing is nothing

    assert [entry.key for entry in proposed(out).entries] == [LEADER_KEY, CONFIG_KEY, "x", "y"]
    assert driven.collected("d", RegisterEntry("z", Version(2, 1), b"3")) == []


def test_what_was_not_answered_is_said_again_with_the_next_heartbeat() -> None:
    driven = Driven("abcde")
    driven.begin()
    driven.collected("b", RegisterEntry("x", Version(2, 1), b""), more=True)
    driven.collected("c")

    again = said(driven.tick(LAN.heartbeat_ns), Collect)
    assert [(word.to, word.message) for word in again] == [
        ("b", Collect(TERM, "x")),
        ("d", Collect(TERM)),
        ("e", Collect(TERM)),
    ]
    proposal = proposed(driven.collected("d"))
    driven.accept(proposal.batch, "b")

    out = driven.tick(LAN.heartbeat_ns)

    assert said(out, Collect) == []
    assert [(word.to, word.message) for word in said(out, Propose)] == [(name, proposal) for name in "cdea"]


def test_a_configuration_found_at_a_voter_counts_beside_the_one_before_until_it_is_written_back() -> None:
    driven = Driven()
    driven.begin()
    grown = driven.config.with_storage("d", 999)
    out = driven.collected("b", RegisterEntry(CONFIG_KEY, Version(4, 2), encode_config(grown)))
    assert [word.to for word in said(out, Propose)] == ["b", "c", "d", "a"]

    assert driven.accept(1, "a", "b") == []
    told = driven.accept(1, "c")

    assert told == [ConfigChanged(grown)]
    assert driven.electorate.config == grown


def test_a_leader_that_finds_itself_removed_writes_that_back_and_does_not_serve() -> None:
    driven = Driven("abcd")
    driven.begin()
    driven.beat(1, "b", "c")
    driven.collected("b")
    driven.collected("c", RegisterEntry(CONFIG_KEY, Version(4, 2), encode_config(driven.config.without("a"))))

    told = driven.accept(1, "a", "b", "c")

    assert told == [ConfigChanged(driven.config.without("a"))]
    assert not driven.leader_term.is_serving


def test_the_first_leader_founds_the_group_unless_it_finds_it_founded() -> None:
    founding = config_of("a", "b", "c")
    fresh, late = Driven(founding=founding), Driven(founding=founding)
    fresh.begin()
    late.begin()
    older = VoterConfig(9, 1, founding.voters)

    first = proposed(fresh.collected("b"))
    second = proposed(late.collected("b", RegisterEntry(CONFIG_KEY, Version(2, 1), encode_config(older))))

    assert [decode_config(entry.value) for entry in first.entries if entry.key == CONFIG_KEY] == [founding]
    assert [decode_config(entry.value) for entry in second.entries if entry.key == CONFIG_KEY] == [older]


def test_the_number_of_the_group_is_confirmed_by_a_majority_and_not_before() -> None:
    driven = Driven(founding=config_of("a", "b", "c"))
    assert [word.message for word in said(driven.begin(), Heartbeat)] == [Heartbeat(TERM, 1, 0, LAN.lease_ns)] * 2
    driven.collected("b")
    driven.accept(1, "a")
    assert driven.acceptor.record.group_id == 0

    driven.accept(1, "b")

    assert driven.acceptor.record.group_id == 7
    assert [word.message for word in said(driven.tick(LAN.heartbeat_ns), Heartbeat)] == [
        Heartbeat(TERM, 2, 7, LAN.lease_ns)
    ] * 2


def test_a_configuration_that_stays_the_same_is_no_news() -> None:
    driven = Driven()
    driven.begin()
    driven.collected("b")

    assert driven.accept(1, "a", "b") == []
    assert driven.electorate.config == driven.config


def test_a_group_of_one_needs_no_answers() -> None:
    driven = Driven("a")

    out = driven.begin()

    assert said(out, Heartbeat) == []
    assert driven.accept(1, "a") == [Elected(Token(3, TERM, 1), START + LEADER_LEASE)]


# -- writes


def test_a_write_is_accepted_once_a_majority_of_disks_has_it() -> None:
    driven = Driven().serve()

    out = driven.write(1, "x", b"v")
    proposal = proposed(out)

    assert [word.to for word in said(out, Propose)] == ["b", "c", "a"]
    assert driven.accept(proposal.batch, "b", "b", "x") == []
    assert driven.leader_term.value_of("x") is None
    assert driven.accept(proposal.batch, "c") == [WriteEnded(1, "accepted", Version(TERM, 2))]
    assert driven.leader_term.value_of("x") == b"v"


def test_every_write_of_a_term_has_a_version_of_its_own_above_the_tokens() -> None:
    driven = Driven().serve()

    versions = [proposed(driven.write(number, f"k{number}")).entries[0].version for number in range(5)]

    assert versions == sorted(set(versions))
    assert versions[0] > Version(TERM, 1)


def test_a_write_that_no_majority_answers_in_time_has_an_unknown_outcome_and_is_told_once() -> None:
    driven = Driven().serve()
    proposal = proposed(driven.write(1, "x", b"v"))
    driven.now += LAN.write_timeout_ns

    assert ended(1, *driven.tick()) == WriteEnded(1, "unknown", reason="no majority answered in time")
    assert [told for told in driven.tick(SECOND) if isinstance(told, WriteEnded)] == []
    assert driven.accept(proposal.batch, "a", "b") == []
    assert driven.leader_term.value_of("x") == b"v"


def test_a_second_write_of_a_key_is_refused_while_the_first_is_under_way() -> None:
    driven = Driven().serve()
    proposal = proposed(driven.write(1, "x"))
    assert driven.write(2, "x") == [WriteEnded(2, "refused", reason="another write of this key is under way")]

    driven.accept(proposal.batch, "a", "b")

    assert said(driven.write(3, "x"), Propose)


def test_a_leader_whose_lease_is_over_refuses_to_write() -> None:
    driven = Driven().serve()
    driven.now = driven.leader_term.lease_until

    assert driven.write(1, "x") == [WriteEnded(1, "refused", reason="this voter holds no lease")]


def test_writes_under_way_have_a_limit() -> None:
    driven = Driven().serve()
    for number in range(BATCHES_LIMIT):
        driven.write(number, f"k{number}")

    assert driven.write(-1, "x") == [WriteEnded(-1, "refused", reason="too many writes are under way")]


def test_keys_have_a_limit_and_those_that_exist_can_still_be_written() -> None:
    driven = Driven(held={f"k{number:04}": b"" for number in range(KEYS_LIMIT - 2)}).serve()
    assert len(driven.leader_term.values()) == KEYS_LIMIT

    assert driven.write(1, "x") == [
        WriteEnded(1, "refused", reason=f"the register holds {KEYS_LIMIT} keys already"),
    ]
    assert said(driven.write(2, "k0000"), Propose)


def test_a_value_that_is_too_large_is_refused() -> None:
    driven = Driven().serve()

    assert said(driven.write(1, "x", bytes(VALUE_LIMIT_BYTES)), Propose)
    outcome = ended(2, *driven.write(2, "y", bytes(VALUE_LIMIT_BYTES + 1)))
    assert (outcome.outcome, outcome.reason) == ("refused", "a value may have 262144 bytes, not 262145")


def test_all_values_together_have_a_limit_and_those_that_exist_can_still_be_written_anew() -> None:
    value = bytes(VALUE_LIMIT_BYTES)
    driven = Driven(
        held={f"k{number:03}": value for number in range(VALUES_LIMIT_BYTES // VALUE_LIMIT_BYTES - 1)}
    ).serve()

    outcome = ended(1, *driven.write(1, "x", value))
    assert outcome.outcome == "refused"
    assert outcome.reason.endswith(f"and may hold {VALUES_LIMIT_BYTES}")
    assert said(driven.write(2, "k000", value), Propose)


@pytest.mark.parametrize(
    "key", ["", "k" * (KEY_LIMIT + 1), CONFIG_KEY, LEADER_KEY], ids=["none", "long", "config", "leader"]
)
def test_a_key_that_no_message_may_carry_or_that_is_the_groups_own_is_refused(key: str) -> None:
    driven = Driven().serve()

    reason = "a key has 1 to 200 characters and is not one of the group's own"
    assert driven.write(1, key) == [WriteEnded(1, "refused", reason=reason)]
    assert said(driven.write(2, "k" * KEY_LIMIT), Propose)


# -- reads


def test_a_read_is_answered_by_a_round_that_began_after_it() -> None:
    driven = Driven(held={"x": b"v"}).serve()
    driven.tick(LAN.heartbeat_ns)
    assert driven.read(1, "x") == []
    assert [told for told in driven.beat(2, "b") if isinstance(told, ReadEnded)] == []

    driven.tick(LAN.read_spacing_ns)

    assert ended(1, *driven.beat(3, "b")) == ReadEnded(1, "accepted", b"v")


def test_reads_that_come_together_share_a_round_and_later_ones_wait_for_the_next() -> None:
    driven = Driven(held={"x": b"v"}).serve()
    driven.read(1, "x")
    driven.read(2, "nothing")
    assert driven.tick(LAN.read_spacing_ns - 1) == []
    assert said(driven.tick(1), Heartbeat)
    driven.read(3, "x")

    out = driven.beat(2, "b")

    assert ended(1, *out) == ReadEnded(1, "accepted", b"v")
    assert ended(2, *out) == ReadEnded(2, "accepted", None)
    assert [told for told in out if isinstance(told, ReadEnded) and told.ref == 3] == []


def test_reads_under_way_have_a_limit() -> None:
    driven = Driven().serve()
    for number in range(READS_LIMIT):
        assert driven.read(number, "x") == []

    assert driven.read(-1, "x") == [ReadEnded(-1, "refused", reason="too many reads are under way")]


def test_when_leadership_ends_those_who_wait_are_told_what_is_known() -> None:
    driven = Driven().serve()
    driven.write(1, "x")
    driven.read(2, "x")
    driven.write(3, "y")
    driven.now += LAN.write_timeout_ns
    driven.tick()
    driven.now = START + MILLISECOND
    driven.write(4, "z")

    driven.leader_term.end(driven.out)

    assert driven.taken() == [
        WriteEnded(4, "unknown", reason="leadership ended"),
        ReadEnded(2, "refused", reason="leadership ended"),
    ]
    driven.leader_term.end(driven.out)
    assert driven.taken() == []


# -- the successor


def test_the_voter_that_answered_last_is_invited_and_nobody_when_none_did() -> None:
    driven = Driven()
    driven.begin()
    assert driven.leader_term.best_successor() == ("", 0)
    driven.beat(1, "b")
    driven.tick(LAN.heartbeat_ns)
    driven.tick(LAN.heartbeat_ns)
    assert driven.leader_term.best_successor() == ("b", 0)

    driven.beat(2, "c", health=7)  # doubts of the round before say little about now

    assert driven.leader_term.best_successor() == ("c", 7)


def test_of_those_who_answered_last_the_one_that_doubts_itself_least_is_invited() -> None:
    driven = Driven("abcde")
    driven.begin()

    driven.beat(1, "b", health=3)
    driven.beat(1, "e", "d", health=1)
    driven.beat(1, "c", health=2)

    assert driven.leader_term.best_successor() == ("d", 1)  # of two alike the first by name
    driven.beat(1, "d", health=4)
    assert driven.leader_term.best_successor() == ("e", 1)


def test_a_leader_without_doubts_does_not_invite_itself() -> None:
    driven = Driven()
    driven.begin()

    driven.beat(1, "b", health=8)

    assert driven.leader_term.best_successor() == ("b", 8)
