from heapq import heappop, heappush
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.leases import (
    REQUESTS_LIMIT,
    TTL_LEAST_NS,
    TTL_MOST_NS,
    Busy,
    Ended,
    GrantedNow,
    HeldLease,
    LeaseExpired,
    LeaseGranted,
    LeaseHolder,
    LeaseLost,
    LeaseRecord,
    LeaseRequest,
    LeasesFull,
    LeaseTable,
    RenewDue,
    Write,
    decode_record,
    encode_record,
    margin_ns,
)
from talka.errors import Unavailable, Untrusted
from talka.units import NEVER
from talka.wire.channels import BadMessage
from tests.sim.variants import without

TTL = 900_000_000
LONGER = TTL + TTL // 50
SHORTER = TTL - TTL // 50


def table_with(*, owner: str = "a", epoch: int = 5, limit: int = 10, now: int = 0) -> LeaseTable:
    """A leader that took over at `now`, when `owner` held the key k."""
    table = LeaseTable(limit=limit)
    table.take_over(now, {"k": encode_record(LeaseRecord(owner, epoch, TTL))})
    return table


def empty_table(limit: int = 10) -> LeaseTable:
    table = LeaseTable(limit=limit)
    table.take_over(0, {})
    return table


def holder_with(*, epoch: int = 5, asked_at: int = 0) -> LeaseHolder:
    """A holder that asked for the key k and was granted it at once."""
    holder = LeaseHolder(1)
    number = holder.requested(asked_at, "k").number
    assert holder.granted(asked_at, "k", number, epoch, TTL) == [LeaseGranted("k", epoch, asked_at + SHORTER)]
    return holder


# Records.


@pytest.mark.parametrize(
    "content",
    [b"", b"\xc1", b"\x93\xa1a\x00\x05", b"\x93\xa1a\x05\x00", b"\x93\xa1\xff\x05\x05"],
    ids=["empty", "no-msgpack", "epoch-0", "no-ttl", "no-text"],
)
def test_a_value_that_is_no_lease_stops_the_leader_that_reads_it(content: bytes) -> None:
    with pytest.raises(BadMessage, match="the register holds a value that is no lease") as caught:
        LeaseTable().take_over(0, {"k": content})
    assert isinstance(caught.value, Untrusted)


def test_a_record_comes_back_as_it_was_written() -> None:
    record = LeaseRecord("a", 7, TTL)
    assert decode_record(encode_record(record)) == record


@given(st.integers(1, 10**13))
@settings(deadline=None, derandomize=True)
def test_the_margin_is_rounded_to_the_safe_side(ttl_ns: int) -> None:
    assert 0 <= margin_ns(ttl_ns) * 100 - ttl_ns * 2 < 100


# The leader's half.


def test_a_leader_that_has_not_taken_over_answers_nobody() -> None:
    table = LeaseTable()
    assert table.acquire(0, "k", "a", TTL) == Busy()
    table.take_over(0, {})
    assert isinstance(table.acquire(0, "k", "a", TTL), Write)


def test_a_leader_that_stepped_down_answers_nobody_and_remembers_nothing() -> None:
    table = table_with()
    table.stepped_down()
    assert table.acquire(0, "k", "a", TTL, epoch=5) == Busy()
    assert table.holder(0, "k") is None
    assert table.next_tick_at == NEVER
    assert table.expire(10 * TTL) == []


def test_a_grant_takes_effect_when_its_write_is_committed() -> None:
    table = empty_table()
    answer = table.acquire(0, "k", "a", TTL, number=3)
    assert answer == Write("k", encode_record(LeaseRecord("a", 1, TTL)), 1)
    assert table.holder(0, "k") is None
    assert table.committed(10, "k", 1) == GrantedNow("k", "a", 1, TTL, number=3)
    assert table.holder(10, "k") == LeaseRecord("a", 1, TTL)


def test_a_lease_counts_longer_from_the_instant_of_the_answer() -> None:
    table = empty_table()
    table.acquire(0, "k", "a", TTL)
    table.committed(10, "k", 1)
    assert table.next_tick_at == 10 + LONGER
    assert table.acquire(10 + LONGER - 1, "k", "b", TTL) == HeldLease("a", 1, wait_ns=1)
    answer = table.acquire(10 + LONGER, "k", "b", TTL)
    assert answer == Write("k", encode_record(LeaseRecord("b", 2, TTL)), 2)


@without("drift_margin")
def test_without_the_margin_a_lease_counts_as_long_as_it_is() -> None:
    table = LeaseTable()
    table.take_over(0, {"k": encode_record(LeaseRecord("a", 5, TTL))})
    assert table.next_tick_at == TTL


def test_a_renewal_is_answered_from_memory_and_keeps_the_written_time_to_live() -> None:
    table = table_with()
    assert table.acquire(100, "k", "a", 3 * TTL, epoch=5, number=8) == GrantedNow("k", "a", 5, TTL, number=8)
    assert table.acquire(100 + LONGER - 1, "k", "b", TTL) == HeldLease("a", 5, wait_ns=1)


@pytest.mark.parametrize(("owner", "epoch"), [("a", 4), ("a", 6), ("b", 5)])
def test_a_renewal_of_anything_but_the_current_lease_has_ended(owner: str, epoch: int) -> None:
    table = table_with()
    assert table.acquire(100, "k", owner, TTL, epoch=epoch) == Ended(epoch)
    assert table.holder(LONGER, "k") is None


def test_a_renewal_of_an_unknown_key_has_ended_and_takes_no_room() -> None:
    table = empty_table()
    assert table.acquire(0, "k", "a", TTL, epoch=1) == Ended(1)
    assert len(table) == 0


def test_a_lease_that_ran_out_is_not_renewed_even_before_its_end_was_told() -> None:
    table = table_with()
    assert table.acquire(LONGER, "k", "a", TTL, epoch=5) == Ended(5)


def test_an_owner_that_lost_its_memory_gets_a_new_epoch_at_once() -> None:
    table = table_with()
    answer = table.acquire(1, "k", "a", TTL)
    assert isinstance(answer, Write)
    assert answer.epoch == 6
    table.committed(2, "k", 6)
    assert table.acquire(3, "k", "a", TTL, epoch=5) == Ended(5)


def test_a_key_that_is_being_written_is_busy_for_everybody() -> None:
    table = empty_table()
    table.acquire(0, "k", "a", TTL)
    assert table.acquire(1, "k", "a", TTL) == Busy()
    assert table.acquire(1, "k", "b", TTL) == Busy()
    assert isinstance(table.acquire(1, "other", "b", TTL), Write)


def test_an_abandoned_write_grants_nothing_and_its_epoch_is_not_used_again() -> None:
    table = empty_table()
    table.acquire(0, "k", "a", TTL)
    table.abandoned("k", 1)
    answer = table.acquire(1, "k", "b", TTL)
    assert isinstance(answer, Write)
    assert answer.epoch == 2
    assert table.committed(2, "k", 1) is None
    table.abandoned("k", 1)
    assert table.committed(3, "k", 2) == GrantedNow("k", "b", 2, TTL, number=0)


def test_word_of_a_write_nobody_waits_for_changes_nothing() -> None:
    table = table_with()
    assert table.committed(1, "k", 6) is None
    assert table.committed(1, "unknown", 1) is None
    table.abandoned("k", 6)
    table.abandoned("unknown", 1)
    assert table.holder(1, "k") == LeaseRecord("a", 5, TTL)
    assert len(table) == 1


def test_a_released_key_is_free_at_once_and_cannot_be_renewed() -> None:
    table = table_with()
    assert table.release("k", "a", 5)
    assert table.acquire(1, "k", "a", TTL, epoch=5) == Ended(5)
    answer = table.acquire(1, "k", "b", TTL)
    assert isinstance(answer, Write)
    assert answer.epoch == 6
    assert not table.release("k", "a", 5)
    table.committed(2, "k", 6)
    assert table.holder(2, "k") == LeaseRecord("b", 6, TTL)


@pytest.mark.parametrize(("key", "owner", "epoch"), [("k", "b", 5), ("k", "a", 4), ("unknown", "a", 5)])
def test_only_the_holder_releases(key: str, owner: str, epoch: int) -> None:
    table = table_with()
    assert not table.release(key, owner, epoch)
    assert table.holder(1, "k") == LeaseRecord("a", 5, TTL)


def test_the_end_of_a_lease_is_told_once() -> None:
    table = table_with()
    assert table.expire(LONGER - 1) == []
    assert table.expire(LONGER) == [LeaseExpired("k", "a", 5)]
    assert table.expire(2 * LONGER) == []
    assert table.next_tick_at == NEVER


def test_a_pass_over_the_leases_finds_the_next_to_end() -> None:
    table = table_with()
    for at, key in enumerate(["later", "latest"], start=1):
        table.acquire(at, key, "b", TTL)
        table.committed(at, key, 1)
    table.acquire(5, "k", "a", TTL, epoch=5)
    table.acquire(5, "being written", "a", TTL)
    assert table.next_tick_at == LONGER  # renewed since, so this is only a bound
    assert table.expire(LONGER) == []
    assert table.next_tick_at == LONGER + 1
    assert table.expire(LONGER + 1) == [LeaseExpired("later", "b", 1)]
    assert table.next_tick_at == LONGER + 2


def test_a_new_leader_counts_every_lease_as_renewed_at_that_moment() -> None:
    table = table_with(now=1000)
    assert table.acquire(1000, "k", "b", TTL) == HeldLease("a", 5, wait_ns=LONGER)
    assert isinstance(table.acquire(1000, "k", "a", TTL, epoch=5), GrantedNow)


def test_a_full_table_refuses_new_keys_and_serves_the_ones_it_has() -> None:
    table = table_with(limit=1)
    assert table.acquire(0, "other", "b", TTL) == LeasesFull(1)
    assert isinstance(table.acquire(0, "k", "a", TTL), Write)
    assert len(table) == 1


@pytest.mark.parametrize(("asked", "granted"), [(-1, TTL_LEAST_NS), (TTL, TTL), (10**18, TTL_MOST_NS)])
def test_the_time_to_live_is_brought_within_the_limits(asked: int, granted: int) -> None:
    answer = empty_table().acquire(0, "k", "a", asked)
    assert isinstance(answer, Write)
    assert decode_record(answer.value).ttl_ns == granted


# The owner's half.


def test_a_lease_counts_shorter_from_before_it_was_asked_for() -> None:
    holder = LeaseHolder(1)
    request = holder.requested(100, "k")
    assert request == LeaseRequest("k", 1, epoch=0)
    assert holder.holds(100, "k") is None
    assert holder.ends_at("k") is None
    assert holder.granted(400, "k", 1, 5, TTL) == [LeaseGranted("k", 5, 100 + SHORTER)]
    assert holder.holds(100 + SHORTER - 1, "k") == 5
    assert holder.holds(100 + SHORTER, "k") is None
    assert holder.ends_at("k") == 100 + SHORTER
    assert holder.ends_at("unknown") is None


@pytest.mark.parametrize(("lacking", "until"), [("drift_margin", 100 + TTL), ("lease_from_send", 400 + SHORTER)])
def test_each_safeguard_is_only_its_part_of_the_count(lacking: str, until: int) -> None:
    with without(lacking):
        holder = LeaseHolder(1)
        holder.requested(100, "k")
        assert holder.granted(400, "k", 1, 5, TTL) == [LeaseGranted("k", 5, until)]


def test_an_answer_counts_from_the_request_it_answers() -> None:
    holder = LeaseHolder(1)
    first = holder.requested(100, "k").number
    second = holder.requested(300, "k").number
    assert holder.granted(400, "k", first, 5, TTL) == [LeaseGranted("k", 5, 100 + SHORTER)]
    assert holder.granted(500, "k", second, 5, TTL) == []
    assert holder.holds(300 + SHORTER - 1, "k") == 5


def test_an_answer_that_was_overtaken_or_comes_twice_is_ignored() -> None:
    holder = LeaseHolder(1)
    first = holder.requested(100, "k").number
    second = holder.requested(300, "k").number
    holder.granted(400, "k", second, 5, TTL)
    for number in (first, second):
        assert holder.granted(500, "k", number, 6, TTL) == []
    assert holder.holds(500, "k") == 5


def test_an_answer_to_nobodys_question_is_ignored() -> None:
    holder = LeaseHolder(100)
    assert holder.granted(0, "k", 1, 5, TTL) == []
    holder.requested(0, "k")
    assert holder.granted(0, "k", 1, 5, TTL) == []
    assert holder.holds(0, "k") is None


def test_only_so_many_open_requests_are_remembered() -> None:
    holder = LeaseHolder(0)
    for at in range(REQUESTS_LIMIT + 1):
        holder.requested(at, "k")
    assert holder.granted(50, "k", 0, 5, TTL) == []
    assert holder.granted(50, "k", 1, 5, TTL) == [LeaseGranted("k", 5, 1 + SHORTER)]


def test_a_grant_that_has_run_out_on_its_way_is_none() -> None:
    holder = LeaseHolder(1)
    holder.requested(0, "k")
    assert holder.granted(SHORTER, "k", 1, 5, TTL) == []
    assert len(holder) == 0


def test_a_renewal_is_asked_with_the_epoch_held_and_is_no_news() -> None:
    holder = holder_with()
    request = holder.requested(1000, "k")
    assert request.epoch == 5
    assert holder.granted(1100, "k", request.number, 5, TTL) == []
    assert holder.holds(1000 + SHORTER - 1, "k") == 5


def test_a_lease_that_ran_out_is_asked_for_anew() -> None:
    holder = holder_with()
    request = holder.requested(SHORTER, "k")
    assert request.epoch == 0
    assert holder.granted(SHORTER, "k", request.number, 6, TTL) == [
        LeaseLost("k", 5),
        LeaseGranted("k", 6, 2 * SHORTER),
    ]


def test_an_epoch_is_one_unbroken_hold() -> None:
    holder = holder_with()
    number = holder.requested(SHORTER - 1, "k").number
    assert holder.granted(SHORTER, "k", number, 5, TTL) == [LeaseLost("k", 5)]
    assert holder.holds(SHORTER, "k") is None
    assert holder.tick(NEVER) == []


def test_a_grant_of_an_earlier_epoch_is_ignored() -> None:
    holder = holder_with()
    number = holder.requested(1, "k").number
    assert holder.granted(2, "k", number, 4, TTL) == []
    assert holder.holds(2, "k") == 5


def test_a_refusal_leaves_what_is_held_and_forgets_what_is_not() -> None:
    holder = holder_with()
    holder.refused("k", holder.requested(1, "k").number)
    assert holder.holds(1, "k") == 5
    number = holder.requested(1, "other").number
    holder.refused("other", number + 1)
    assert len(holder) == 2
    holder.refused("other", number)
    holder.refused("unknown", number)
    assert len(holder) == 1


def test_a_lease_the_leader_has_ended_is_lost_at_once() -> None:
    holder = holder_with()
    number = holder.requested(1, "k").number
    assert holder.lost("k", 5) == [LeaseLost("k", 5)]
    assert holder.holds(1, "k") is None
    assert holder.granted(2, "k", number, 5, TTL) == []


def test_word_that_another_lease_has_ended_changes_nothing() -> None:
    holder = holder_with()
    holder.requested(0, "asked")
    assert holder.lost("k", 4) == []
    assert holder.lost("unknown", 5) == []
    assert holder.lost("asked", 0) == []
    assert holder.holds(1, "k") == 5
    assert len(holder) == 2


def test_a_released_key_is_no_longer_held_and_its_epoch_is_given_back() -> None:
    holder = holder_with()
    assert holder.released("k") == 5
    assert holder.holds(1, "k") is None
    assert holder.released("k") is None
    holder.requested(1, "k")
    assert holder.released("k") is None


def test_a_renewal_is_due_at_a_third_and_then_every_ninth_until_it_is_answered() -> None:
    holder = holder_with()
    assert holder.next_tick_at == TTL // 3
    assert holder.tick(TTL // 3 - 1) == []
    assert holder.tick(TTL // 3) == [RenewDue("k")]
    number = holder.requested(TTL // 3, "k").number
    assert holder.next_tick_at == TTL // 3 + TTL // 9
    assert holder.tick(holder.next_tick_at) == [RenewDue("k")]
    holder.requested(TTL // 3 + TTL // 9, "k")
    holder.granted(TTL // 2, "k", number, 5, TTL)
    holder.tick(holder.next_tick_at)
    assert holder.next_tick_at == 2 * (TTL // 3)


def test_a_late_answer_brings_the_next_renewal_forward() -> None:
    holder = holder_with()
    holder.tick(TTL // 3)
    number = holder.requested(TTL // 3, "k").number
    for ninth in (4, 5, 6):
        holder.tick(ninth * TTL // 9)
    holder.granted(6 * TTL // 9 + 1, "k", number, 5, TTL)
    assert holder.tick(6 * TTL // 9 + 1) == [RenewDue("k")]


def test_renewals_that_are_nearly_due_go_together() -> None:
    holder = holder_with()
    number = holder.requested(TTL // 12, "near").number
    holder.granted(TTL // 12, "near", number, 1, TTL)
    number = holder.requested(TTL // 12 + 1, "far").number
    holder.granted(TTL // 12 + 1, "far", number, 1, TTL)
    assert holder.tick(TTL // 3) == [RenewDue("k"), RenewDue("near")]
    assert holder.next_tick_at == TTL // 3 + TTL // 12 + 1


def test_retries_do_not_run_ahead_with_the_renewals_of_others() -> None:
    holder = holder_with()
    holder.tick(TTL // 3)
    holder.requested(TTL // 3, "k")
    number = holder.requested(TTL // 9 - 1, "other").number
    holder.granted(TTL // 9 - 1, "other", number, 1, TTL)
    assert holder.tick(TTL // 3 + TTL // 9 - 1) == [RenewDue("other")]


def test_a_lease_nobody_renews_is_lost_at_its_end_and_told_once() -> None:
    holder = holder_with()
    holder.requested(0, "asked")
    holder.tick(TTL // 3)
    assert holder.tick(SHORTER) == [LeaseLost("k", 5)]
    assert holder.tick(2 * SHORTER) == []
    assert holder.next_tick_at == NEVER
    assert len(holder) == 1


def test_a_full_holder_forgets_what_it_only_asked_for_before_it_refuses() -> None:
    holder = LeaseHolder(1, limit=2)
    number = holder.requested(0, "first").number
    holder.granted(0, "first", number, 1, TTL)
    number = holder.requested(0, "second").number
    third = holder.requested(0, "third").number
    assert holder.granted(0, "second", number, 1, TTL) == []
    holder.granted(0, "third", third, 1, TTL)
    with pytest.raises(Unavailable, match="lease of 'fourth': this node holds 2 leases"):
        holder.requested(0, "fourth")


# Both halves, with clocks that drift, messages that take their time, and leaders that come and go.


class Clock:
    """Runs at `percent` of true time."""

    def __init__(self, percent: int, offset: int) -> None:
        self.percent, self.offset = percent, offset

    def at(self, true: int) -> int:
        return self.offset + true * self.percent // 100

    def true_of(self, local: int) -> int:
        """The first true instant at which this clock shows `local`."""
        return -(-(local - self.offset) * 100 // self.percent)


class Contest:
    """Owners compete for one key. `holds` are (from, to, owner, epoch) in true time."""

    OWNERS = 3
    SHORT_TTL = 20_000_000

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.heap: list[tuple[int, int, str, tuple[object, ...]]] = []
        self.count = 0
        self.register: dict[str, bytes] = {}
        self.leader_term = 0
        self.serving = True
        self.table = LeaseTable()
        self.leader_clock = self.clock()
        self.table.take_over(self.leader_clock.at(0), {})
        self.clocks = [self.clock() for _ in range(self.OWNERS)]
        self.holders = [LeaseHolder(self.rng.randrange(1000)) for _ in range(self.OWNERS)]
        self.holds: list[tuple[int, int, int, int]] = []
        self.committed_epochs: list[int] = []

    def clock(self) -> Clock:
        return Clock(self.rng.choice((98, 98, 100, 102, 102)), self.rng.randrange(10**12))

    def later(self, at: int, what: str, *facts: object) -> None:
        self.count += 1
        heappush(self.heap, (at, self.count, what, facts))

    def send(self, now: int, what: str, *facts: object) -> None:
        if self.rng.random() > 0.1:
            slowest = self.rng.choice((100, 1_000_000, 15_000_000))
            self.later(now + self.rng.randrange(10, slowest), what, *facts)

    def run(self, until: int = 2_000_000_000) -> None:
        for me in range(self.OWNERS):
            self.later(self.rng.randrange(self.SHORT_TTL), "ask", me)
        self.later(self.rng.randrange(until), "depose")
        self.later(self.rng.randrange(until), "depose")
        while self.heap and self.heap[0][0] < until:
            assert self.count < 50_000, "the contest does not move on"
            now, _, what, facts = heappop(self.heap)
            getattr(self, what)(now, *facts)

    def ask(self, now: int, me: int) -> None:
        local = self.clocks[me].at(now)
        holder = self.holders[me]
        holder.tick(local)
        if holder.holds(local, "k") is not None and self.rng.random() < 0.05:
            epoch = holder.released("k")
            self.cut_short(now, me)
            self.send(now, "told_release", me, epoch)
        elif self.rng.random() < 0.9:
            request = holder.requested(local, "k")
            self.send(now, "told_request", me, request.epoch, request.number)
        self.later(now + self.SHORT_TTL // self.rng.choice((1, 3, 5, 40)), "ask", me)

    def told_request(self, now: int, me: int, epoch: int, number: int) -> None:
        local = self.leader_clock.at(now)
        answer = self.table.acquire(local, "k", str(me), self.SHORT_TTL, epoch, number)
        match answer:
            case Write():
                self.later(now + self.rng.randrange(10, 2_000_000), "written", self.leader_term, answer)
            case GrantedNow():
                self.send(now, "told_grant", me, answer)
            case HeldLease():
                # The keenest rival there can be: it asks again when the leader's count ends, and is heard at once.
                request = self.holders[me].requested(self.clocks[me].at(now), "k")
                wake = max(now + 10, self.leader_clock.true_of(local + answer.wait_ns))
                self.later(wake, "told_request", me, 0, request.number)
            case Ended():
                self.send(now, "told_end", me, answer.epoch)
            case _:
                pass

    def written(self, now: int, leader_term: int, write: Write) -> None:
        if leader_term != self.leader_term or not self.serving:
            return  # its leader is gone; the others refused it
        if self.rng.random() < 0.1:
            self.table.abandoned("k", write.epoch)  # unknown to the leader: it may be there or not
            if self.rng.random() < 0.5:
                self.register["k"] = write.value
            return
        self.register["k"] = write.value
        granted = self.table.committed(self.leader_clock.at(now), "k", write.epoch)
        assert granted is not None
        self.committed_epochs.append(granted.epoch)
        self.send(now, "told_grant", int(granted.owner), granted)

    def told_grant(self, now: int, me: int, granted: GrantedNow) -> None:
        clock, holder = self.clocks[me], self.holders[me]
        before = holder.holds(clock.at(now), "k")
        holder.granted(clock.at(now), "k", granted.number, granted.epoch, granted.ttl_ns)
        epoch = holder.holds(clock.at(now), "k")
        if epoch is None:
            return
        if before is not None and before != epoch:
            self.cut_short(now, me)
        end = holder.ends_at("k")
        assert end is not None
        assert holder.holds(end - 1, "k") == epoch
        assert holder.holds(end, "k") is None
        self.holds.append((now, clock.true_of(end), me, epoch))

    def told_end(self, now: int, me: int, epoch: int) -> None:
        if self.holders[me].lost("k", epoch):
            self.cut_short(now, me)

    def told_release(self, now: int, me: int, epoch: int) -> None:
        self.table.release("k", str(me), epoch)

    def cut_short(self, now: int, me: int) -> None:
        self.holds = [
            (start, min(end, now) if owner == me else end, owner, epoch) for start, end, owner, epoch in self.holds
        ]

    def depose(self, now: int) -> None:
        self.table.stepped_down()
        self.serving = False
        self.later(now + self.rng.randrange(10, self.SHORT_TTL), "elect")

    def elect(self, now: int) -> None:
        self.leader_term += 1
        self.serving = True
        self.leader_clock = self.clock()
        self.table = LeaseTable()
        self.table.take_over(self.leader_clock.at(now), self.register)

    def overlaps(self) -> bool:
        """Whether two owners ever held the key at one true instant."""
        furthest = {owner: 0 for owner in range(self.OWNERS)}
        for start, end, owner, _ in sorted(self.holds):
            if any(start < there for other, there in furthest.items() if other != owner):
                return True
            furthest[owner] = max(furthest[owner], end)
        return False


def contest(seed: int) -> Contest:
    run = Contest(seed)
    run.run()
    return run


@given(st.integers(0, 2**32))
@settings(deadline=None, derandomize=True, max_examples=30)
def test_no_two_owners_hold_a_key_at_once_and_epochs_only_grow(seed: int) -> None:
    run = contest(seed)
    assert not run.overlaps()
    assert run.committed_epochs == sorted(set(run.committed_epochs))
    epochs = [epoch for _, _, _, epoch in sorted(run.holds)]
    assert epochs == sorted(epochs)


def test_the_contest_has_many_owners_and_many_grants() -> None:
    runs = [contest(seed) for seed in range(5)]
    assert all(len({owner for _, _, owner, _ in run.holds}) == Contest.OWNERS for run in runs)
    assert sum(len(run.committed_epochs) for run in runs) > 100


@pytest.mark.parametrize("lacking", ["drift_margin", "lease_from_send"])
def test_without_a_safeguard_two_owners_hold_a_key_at_once(lacking: str) -> None:
    with without(lacking):
        assert any(contest(seed).overlaps() for seed in range(30))
