"""Until when a worker may go on without hearing from its leader."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.safeguards import Safeguards
from talka.control.worker.lease import BEATS_REMEMBERED, DISCONNECT_GRACE_NS, REFUSAL_COUNTS_NS, WorkerLease
from talka.units import NEVER, SECOND

LEASE_NS = 5 * SECOND
NOW = 100 * SECOND


def renewed(
    lease: WorkerLease, sent_ns: int, *, after_ns: int = 0, sole: bool = False, lease_ns: int = LEASE_NS
) -> bool:
    number = lease.beat(sent_ns)
    return lease.renew(sent_ns + after_ns, "m1", number, lease_ns, sole=sole)


def test_a_worker_begins_without_a_lease() -> None:
    lease = WorkerLease()

    assert not lease.is_held
    assert lease.next_check_at == NEVER
    assert not lease.has_ended(NOW)


def test_a_lease_runs_from_when_the_beat_was_sent_and_a_fifth_shorter() -> None:
    lease = WorkerLease()

    assert renewed(lease, NOW, after_ns=3 * SECOND)

    assert lease.next_check_at == NOW + 4 * SECOND
    assert not lease.has_ended(NOW + 4 * SECOND - 1)
    assert lease.has_ended(NOW + 4 * SECOND)
    assert not lease.is_held
    assert not lease.has_ended(NOW + 9 * SECOND), "it ends once"


def test_an_answer_that_took_longer_than_the_lease_gives_none() -> None:
    lease = WorkerLease()

    assert not renewed(lease, NOW, after_ns=4 * SECOND)

    assert not lease.is_held


def test_an_answer_to_a_beat_nobody_remembers_gives_none() -> None:
    lease = WorkerLease()
    for beat in range(BEATS_REMEMBERED + 1):
        lease.beat(NOW + beat)

    assert not lease.renew(NOW, "m1", 1, LEASE_NS, sole=False)
    assert not lease.renew(NOW, "m1", 99, LEASE_NS, sole=False)
    assert lease.renew(NOW, "m1", 2, LEASE_NS, sole=False)


def test_an_answer_that_was_overtaken_takes_nothing_back() -> None:
    lease = WorkerLease()
    first, second = lease.beat(NOW), lease.beat(NOW + SECOND)

    assert lease.renew(NOW + SECOND, "m1", second, LEASE_NS, sole=False)
    assert lease.renew(NOW + SECOND, "m1", first, LEASE_NS, sole=True)

    assert lease.next_check_at == NOW + 5 * SECOND


def test_a_lease_may_be_had_again() -> None:
    lease = WorkerLease()
    renewed(lease, NOW)
    lease.has_ended(NOW + 9 * SECOND)

    assert renewed(lease, NOW + 10 * SECOND)
    assert lease.is_held


def test_while_the_only_managers_address_refuses_connections_the_worker_goes_on_for_the_grace() -> None:
    lease = WorkerLease()
    renewed(lease, NOW, sole=True)

    at = NOW
    while at < NOW + DISCONNECT_GRACE_NS:
        lease.refused(at, "m1")
        assert not lease.has_ended(at)
        at += SECOND
    lease.refused(at, "m1")

    assert lease.next_check_at == NOW + DISCONNECT_GRACE_NS
    assert lease.has_ended(NOW + DISCONNECT_GRACE_NS)


def test_silence_of_the_only_manager_is_a_cut() -> None:
    lease = WorkerLease()
    renewed(lease, NOW, sole=True)
    lease.refused(NOW + 3 * SECOND, "m1")

    assert not lease.has_ended(NOW + 3 * SECOND + REFUSAL_COUNTS_NS - 1)
    assert lease.has_ended(NOW + 3 * SECOND + REFUSAL_COUNTS_NS)


def test_of_a_short_lease_a_refusal_counts_for_less_than_a_manager_started_since_would_wait() -> None:
    lease, short_ns = WorkerLease(), SECOND // 2
    renewed(lease, NOW, sole=True, lease_ns=short_ns)
    lease.refused(NOW, "m1")

    # Two seconds pass before it can answer at all.
    assert lease.next_check_at == NOW + 2 * SECOND + short_ns * 2 // 5


@pytest.mark.parametrize(
    ("lease_ns", "every_ns", "again_ns", "late_ns"),
    [
        pytest.param(LEASE_NS, SECOND, SECOND // 4, 3 * SECOND // 2, id="usual"),
        pytest.param(60 * SECOND, SECOND, SECOND // 4, 3 * SECOND // 2, id="longest"),
        pytest.param(SECOND // 2, SECOND // 10, SECOND // 40, 3 * SECOND // 20, id="shortest"),
        pytest.param(0, SECOND // 100, SECOND // 100, 0, id="none"),
    ],
)
def test_beats_follow_the_length_of_a_lease_and_are_more_while_a_renewal_is_late(
    lease_ns: int, every_ns: int, again_ns: int, late_ns: int
) -> None:
    lease = WorkerLease()
    assert lease.next_beat_at(NOW) == NOW + SECOND, "nobody has told how long it is"

    is_held = renewed(lease, NOW, lease_ns=lease_ns)

    assert lease.beat_every_ns == every_ns
    assert lease.next_beat_at(NOW + late_ns) == NOW + late_ns + every_ns
    assert is_held == (lease_ns > 0)
    late_at = NOW + late_ns + 1
    assert lease.next_beat_at(late_at) == late_at + again_ns


def test_a_refusal_counts_only_from_the_only_manager() -> None:
    lease = WorkerLease()
    renewed(lease, NOW, sole=True)
    lease.refused(NOW + 3 * SECOND, "another")
    assert lease.next_check_at == NOW + 4 * SECOND

    renewed(lease, NOW + SECOND, sole=False)
    lease.refused(NOW + 4 * SECOND, "m1")
    lease.refused(NOW + 4 * SECOND, "")

    assert lease.next_check_at == NOW + 5 * SECOND


def test_without_its_safeguard_a_lease_never_ends() -> None:
    lease = WorkerLease(Safeguards(worker_lease=False))
    renewed(lease, NOW)

    assert not lease.has_ended(NOW + 1000 * SECOND)
    assert lease.is_held


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 3 * SECOND), st.integers(0, 6 * SECOND), st.booleans()), max_size=20))
def test_it_is_never_held_longer_than_its_share_after_the_last_beat_that_was_answered(
    steps: list[tuple[int, int, bool]],
) -> None:
    lease, now, last_answered = WorkerLease(), NOW, None
    for pause_ns, took_ns, is_answered in steps:
        now += pause_ns
        lease.has_ended(now)
        sent_ns, number = now, lease.beat(now)
        now += took_ns
        lease.has_ended(now)
        if is_answered:
            lease.renew(now, "m1", number, LEASE_NS, sole=False)
            last_answered = sent_ns
        assert lease.is_held == (last_answered is not None and now < last_answered + LEASE_NS * 4 // 5)
