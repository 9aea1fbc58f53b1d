"""How long leases are: one number for all voters of a group, whatever each was told."""

from typing import Any

import msgspec
import pytest

from talka.cluster.fencing import Token
from talka.cluster.leadership.lease_terms import (
    BY_LIMIT,
    LONGEST_NS,
    WORKER_LEASE_KEY,
    LeaseDiffers,
    LeaseFit,
    LeaseTerms,
    OwnLease,
    decode_terms,
    encode_terms,
    told,
)
from talka.cluster.leadership.news import LeadershipAlarm
from talka.cluster.leadership.register import RECORD_KEY, VoterRecord
from talka.cluster.leadership.timings import LAN
from talka.units import SECOND
from talka.wire.leadership import (
    VALUE_LIMIT_BYTES,
    WORKER_LEASE_LIMIT_BYTES,
    Heartbeat,
    HeartbeatReply,
    PreVote,
    PreVoteReply,
    Vote,
    VoteReply,
    decode,
    encode,
)
from tests.sim.variants import without

LONG = msgspec.structs.replace(LAN, lease_ns=4 * LAN.lease_ns)
TWO = OwnLease(2 * SECOND, "--lease")
FIVE = OwnLease(5 * SECOND, "--lease")
TOKEN = Token(0, 7, 1)


# -- the value


def test_while_it_changes_there_is_a_shorter_and_a_longer_one() -> None:
    steady, shrinking, growing = LeaseTerms(5), LeaseTerms(5, 2), LeaseTerms(2, 5)

    assert [(one.shorter_ns, one.longer_ns) for one in (steady, shrinking, growing)] == [(5, 5), (2, 5), (2, 5)]


def test_what_is_written_is_read_and_nothing_else_is() -> None:
    terms = LeaseTerms(5, 2, "--lease of a", TOKEN)
    assert decode_terms(encode_terms(terms)) == terms
    for content in (b"", b"\xc1", b"\xff" * 9, encode_terms(LeaseTerms(0)), encode_terms(LeaseTerms(LONGEST_NS + 1))):
        assert decode_terms(content) is None
    assert decode_terms(msgspec.msgpack.encode([["x"] * 3])) is None
    assert decode_terms(encode_terms(LeaseTerms(5, -1))) is None


def test_a_lease_of_the_longest_length_is_read_and_so_is_a_change_to_it() -> None:
    for terms in (LeaseTerms(LONGEST_NS), LeaseTerms(5, LONGEST_NS)):
        assert decode_terms(encode_terms(terms)) == terms
    assert decode_terms(encode_terms(LeaseTerms(5, LONGEST_NS + 1))) is None


def test_what_a_heartbeat_tells_of_it_is_read_by_whoever_hears_it() -> None:
    fit = LeaseFit(LAN.lease_ns, OwnLease(SECOND, "ü" * 9999))
    content = fit.founding("ü" * 128, TOKEN)
    assert content is not None and len(content) <= WORKER_LEASE_LIMIT_BYTES < VALUE_LIMIT_BYTES

    heard = decode(encode(Heartbeat(1, 1, 1, 1, told(content))))

    assert isinstance(heard, Heartbeat)
    terms = decode_terms(heard.worker_lease)
    assert terms is not None and len(terms.by) == BY_LIMIT
    assert told(None) == told(bytes(WORKER_LEASE_LIMIT_BYTES + 1)) == b""


# -- whether a voter fits


def test_who_was_told_nothing_fits_everywhere_and_who_leads_no_workers_says_nothing() -> None:
    for own in (None, OwnLease()):
        assert LeaseFit(1, own).objection(LeaseTerms(9 * SECOND)) == ""
    assert LeaseFit(1, None).founding("a", TOKEN) is None
    content = LeaseFit(1, OwnLease()).founding("a", TOKEN)
    assert content is not None
    assert decode_terms(content) == LeaseTerms(5 * SECOND, 0, "a, which was told none", TOKEN)


def test_who_was_told_another_one_is_told_what_holds_where_it_comes_from_and_how_to_change_it() -> None:
    fit = LeaseFit(1, TWO)
    text = fit.objection(LeaseTerms(5 * SECOND, 0, "--lease of a"))

    assert text == (
        "--lease is 2s, and the lease of this cluster is 5s (set by --lease of a): leave --lease away or write 5s; "
        "to change it for all managers: talka cluster lease 2s --to HOST:PORT"
    )
    assert fit.is_misfit
    assert fit.objection(LeaseTerms(5 * SECOND)) == "", "said once"


def test_while_it_changes_both_values_fit() -> None:
    for terms in (LeaseTerms(2 * SECOND), LeaseTerms(2 * SECOND, 5 * SECOND), LeaseTerms(5 * SECOND, 2 * SECOND)):
        fit = LeaseFit(1, TWO)
        assert fit.objection(terms) == "" and not fit.is_misfit
    text = LeaseFit(1, OwnLease(SECOND, "TALKA_LEASE")).objection(LeaseTerms(5 * SECOND, 2 * SECOND))
    assert text.startswith(
        "TALKA_LEASE is 1s, and the lease of this cluster is 5s, which is being changed to 2s (set by "
    )


def test_what_the_group_changes_later_is_no_reason_to_stop_who_fitted_once() -> None:
    fit = LeaseFit(1, TWO)
    assert fit.objection(LeaseTerms(2 * SECOND)) == ""

    assert fit.objection(LeaseTerms(9 * SECOND)) == "" and not fit.is_misfit


def test_what_nobody_can_read_and_what_no_safeguard_looks_at_is_no_objection() -> None:
    assert LeaseFit(1, TWO).objection(None) == ""
    with without("one_worker_lease"):
        assert LeaseFit(1, TWO).objection(LeaseTerms(5)) == ""


def test_a_leaders_lease_differs_only_from_one_that_was_told() -> None:
    fit = LeaseFit(5, None)

    assert [fit.is_other(ns) for ns in (0, 5, 6)] == [False, False, True]
    with without("one_leader_lease"):
        assert not fit.is_other(6)


# -- the lease of workers in a group


def terms_at(group: Any, name: str) -> LeaseTerms | None:
    return decode_terms(group.voters[name].held()[WORKER_LEASE_KEY])


def test_the_first_leader_writes_its_lease_and_later_ones_leave_it(group: Any) -> None:
    group.crash(*group.names)
    for name in group.names:
        group.disks[name] = {}
    group.start(own_lease=OwnLease())
    first = group.elect()
    written = terms_at(group, first)
    assert written is not None and written.by == f"{first}, which was told none"
    assert written.token == group.voters[first].leader_term._token
    group.isolate(first)

    second = group.elect(but=first)

    assert terms_at(group, second) == written


def group_id(make_group: Any, own: OwnLease) -> Any:
    group = make_group("a", "b", "c")
    group.start(own_lease=own)
    group.elect()
    group.run(SECOND)
    return group


def test_a_follower_that_was_told_another_lease_says_so_and_leads_nothing(make_group: Any) -> None:
    group = group_id(make_group, FIVE)
    name = group.followers()[0]
    group.crash(name)
    group.start(name, own_lease=TWO)
    group.run(4 * SECOND)

    (told,) = group.told(LeaseDiffers, name)
    assert told.text.startswith("--lease is 2s, and the lease of this cluster is 5s (set by --lease of ")
    group.crash(group.leader())
    group.run(20 * SECOND)
    assert group.leader() not in (name, ""), "it votes for others"


def test_a_voter_that_is_elected_and_was_told_another_lease_steps_down_before_it_leads(make_group: Any) -> None:
    group = group_id(make_group, FIVE)
    group.crash("a", "b", "c")
    group.start("a", own_lease=TWO)
    group.start("b", own_lease=TWO)
    group.news.clear()
    group.run(20 * SECOND)

    assert {told.text[:13] for told in group.told(LeaseDiffers)} == {"--lease is 2s"}
    assert len(group.told(LeaseDiffers)) == 2, "each of them once"
    assert group.leader() == ""
    group.start("c", own_lease=OwnLease())
    assert group.elect() == "c"
    held = terms_at(group, "c")
    assert held is not None and held.lease_ns == 5 * SECOND


def test_the_only_voter_is_refused_too(make_group: Any) -> None:
    group = make_group("a")
    group.start(own_lease=FIVE)
    group.elect()
    group.crash("a")
    group.start("a", own_lease=TWO)
    group.run(10 * SECOND)

    assert len(group.told(LeaseDiffers)) == 1 and group.leader() == ""


# -- the lease of leaders


def test_voters_that_count_a_leaders_lease_otherwise_hear_each_other_not(make_group: Any) -> None:
    group = make_group("a", "b", "c")
    group.start("a", "b")
    group.start("c", config=LONG)
    group.run(20 * SECOND)

    assert group.leader() in ("a", "b")
    assert group.voters["c"].leader == ""
    texts = {told.text for told in group.told(LeadershipAlarm, "c")}
    assert (
        f"'{group.leader()}' counts a leader's lease as 1.5s, 'c' as 6s: it was refused; give all the same --preset"
        in texts
    )
    assert any(
        "'c' counts a leader's lease as 6s" in told.text
        for told in group.told(LeadershipAlarm, "a") + group.told(LeadershipAlarm, "b")
    )


def test_no_vote_is_given_to_one_that_counts_otherwise(group: Any) -> None:
    group.quiet()
    term, config = group.voters["b"].term + 1, group.voters["b"]._acceptor.version_of("config")
    vote = Vote(term, config, lease_ns=LONG.lease_ns)

    assert group.votes("b", "a", vote) == [False]
    group.heal()
    (answer,) = [one for _, one in group.tell("b", "a", PreVote(term, 1, config, lease_ns=LONG.lease_ns))]
    assert isinstance(answer, PreVoteReply) and not answer.granted
    assert group.votes("b", "a", msgspec.structs.replace(vote, lease_ns=0)) == [True], (
        "an earlier version does not tell"
    )


def test_a_heartbeat_of_one_that_counts_otherwise_is_not_answered(group: Any) -> None:
    group.quiet()
    beat = Heartbeat(group.voters["b"].term + 5, 1, 0, LONG.lease_ns)

    assert [one for _, one in group.tell("b", "a", beat) if isinstance(one, HeartbeatReply | VoteReply)] == []
    assert group.voters["b"].leader == ""


def record(group: Any, name: str) -> VoterRecord:
    return msgspec.msgpack.decode(group.disks[name][RECORD_KEY], type=VoterRecord)


def test_a_voter_that_starts_with_a_shorter_lease_waits_for_the_one_it_promised_by(make_group: Any) -> None:
    group = make_group("a", "b", "c")
    group.start(config=LONG)
    leader = group.elect(40 * SECOND)
    others = group.followers()
    group.isolate(leader)
    group.crash(*others)
    group.start(*others, config=LAN)

    leaders = group.watch(20 * SECOND)

    assert leaders[0] == leader and leaders[-1] in others, "never both: that fails the watch"
    assert {record(group, name).lease_ns for name in others} == {LAN.lease_ns}, "by then it is over"


def test_the_longer_lease_is_waited_for_again_by_one_that_is_started_twice(make_group: Any) -> None:
    group = make_group("a")
    group.start(config=LONG)
    group.elect(40 * SECOND)
    for _ in range(2):
        group.crash("a")
        group.start("a", config=LAN)
        assert record(group, "a").lease_ns == LONG.lease_ns
        group.run(LONG.lease_ns)
        assert group.leader() == ""


@without("one_leader_lease")
def test_without_its_safeguard_a_voter_waits_for_its_own_lease_only(make_group: Any) -> None:
    group = make_group("a")
    group.start(config=LONG)
    group.elect(40 * SECOND)
    group.crash("a")
    group.start("a", config=LAN)
    group.run(LONG.lease_ns)

    assert group.leader() == "a" and record(group, "a").lease_ns == 0


def test_a_disk_that_starts_over_does_not_forget_for_how_long_it_promised(make_group: Any) -> None:
    group = make_group("a")
    group.start(config=LONG)
    acceptor = group.voters["a"]._acceptor

    acceptor.start_over(99)

    assert acceptor.record.lease_ns == LONG.lease_ns and acceptor.record.disk_id == 99


@pytest.mark.parametrize("is_on", [True, False])
def test_votes_are_kept_without_their_safeguard_as_before(make_group: Any, is_on: bool) -> None:
    with without(*() if is_on else ("persist_vote",)):
        group = make_group("a")
        group.start()
        group.elect()

    kept = record(group, "a")
    assert (kept.term > 0, kept.voted_for) == ((True, "a") if is_on else (False, ""))
    assert kept.lease_ns == LAN.lease_ns and kept.admitted
