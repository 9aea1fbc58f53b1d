from random import Random

import pytest

from talka.cluster.leadership.election_timeouts import (
    CLEARLY,
    DELAY_LIMIT_LEASES,
    FLAP_WINDOW_NS,
    FLAPS_KEPT,
    UNWELL_SCORE,
    WORST_SCORE,
    ElectionTimeouts,
)
from talka.cluster.leadership.timings import LAN, LeadershipConfig

LEASE = LAN.lease_ns
NOW = 10 * FLAP_WINDOW_NS
DRAWS = 300


def candidacy_of(
    config: LeadershipConfig = LAN, *, score: int = 0, losses: int = 0, lost_at: int = NOW
) -> ElectionTimeouts:
    candidacy = ElectionTimeouts(config, Random(1))
    candidacy.score = score
    for _ in range(losses):
        candidacy.lost_leadership(lost_at)
    return candidacy


def waits(candidacy: ElectionTimeouts) -> list[int]:
    return [candidacy.wait_ns(NOW) for _ in range(DRAWS)]


def retries(candidacy: ElectionTimeouts) -> list[int]:
    return [candidacy.retry_ns(NOW) for _ in range(DRAWS)]


def test_a_voter_stands_only_after_the_lease_it_knows_of_is_over_for_every_clock() -> None:
    drawn = waits(candidacy_of())

    assert LAN.voter_lease_ns() <= min(drawn)
    assert max(drawn) < LEASE * 3 // 2
    assert len(set(drawn)) > DRAWS // 2


def test_there_is_a_wait_even_where_drift_leaves_no_room_for_chance() -> None:
    config = LeadershipConfig(heartbeat_ns=1, lease_ns=4, drift_per_mille=0)

    assert set(waits(candidacy_of(config))) == {4, 5}


def test_a_candidacy_that_failed_is_repeated_sooner_than_a_lease() -> None:
    drawn = retries(candidacy_of())

    assert LEASE // 20 <= min(drawn) and max(drawn) < LEASE // 4
    assert len(set(drawn)) > DRAWS // 2


def test_news_of_a_dead_leader_shortens_the_wait() -> None:
    candidacy = candidacy_of()
    drawn = [candidacy.hint_ns() for _ in range(DRAWS)]

    assert 0 <= min(drawn) and max(drawn) < LEASE // 5


def test_a_voter_that_feels_unwell_lets_others_go_first_and_the_more_the_worse_it_feels() -> None:
    shortest = [min(waits(candidacy_of(score=score))) for score in range(UNWELL_SCORE - 1, 9)]

    assert shortest == sorted(set(shortest))
    assert min(waits(candidacy_of(score=UNWELL_SCORE))) >= LAN.voter_lease_ns() + LEASE // 4
    assert max(waits(candidacy_of(score=UNWELL_SCORE - 1))) < LEASE * 3 // 2


def test_one_lost_leadership_is_no_reason_to_wait_longer() -> None:
    assert waits(candidacy_of(losses=1)) == waits(candidacy_of())


def test_a_voter_that_lost_leadership_often_waits_longer_with_chance() -> None:
    few, many = candidacy_of(losses=2), candidacy_of(losses=4)

    assert max(waits(candidacy_of())) < max(waits(few)) < max(waits(many))
    assert len(set(waits(many))) > DRAWS // 2


def test_losses_of_long_ago_are_forgotten() -> None:
    forgotten = candidacy_of(losses=FLAPS_KEPT, lost_at=NOW - FLAP_WINDOW_NS)
    remembered = candidacy_of(losses=FLAPS_KEPT, lost_at=NOW - FLAP_WINDOW_NS + 1)

    assert waits(forgotten) == waits(candidacy_of())
    assert max(waits(remembered)) > LEASE * 2


@pytest.mark.parametrize("score", [0, 8, 10**6])
def test_doubts_delay_and_never_exclude(score: int) -> None:
    candidacy = candidacy_of(score=score, losses=10 * FLAPS_KEPT)

    assert max(waits(candidacy)) < LEASE * 3 // 2 + DELAY_LIMIT_LEASES * LEASE + 1
    assert max(retries(candidacy)) < LEASE // 4 + DELAY_LIMIT_LEASES * LEASE // 4 + 1


@pytest.mark.parametrize(
    ("score", "losses", "doubt"), [(0, 0, 0), (2, 0, 2), (0, 1, CLEARLY), (2, 1, 2 + CLEARLY), (2, 3, WORST_SCORE)]
)
def test_a_voter_that_was_deposed_lately_is_held_for_worse_than_its_health(score: int, losses: int, doubt: int) -> None:
    candidacy = candidacy_of(score=score, losses=losses)

    assert candidacy.doubt(NOW) == doubt
    assert candidacy.doubt(NOW + FLAP_WINDOW_NS) == score


def test_one_that_should_not_lead_lets_all_others_go_first_and_then_stands_all_the_same() -> None:
    candidacy = candidacy_of()
    assert candidacy.others_go_first_until(NOW) == NOW

    candidacy.may_lead = False
    until = candidacy.others_go_first_until(NOW)

    assert until == NOW + DELAY_LIMIT_LEASES * LEASE
    assert candidacy.others_go_first_until(until) == until, "it waits once"
    candidacy.may_lead = True
    assert candidacy.others_go_first_until(NOW + 1) == NOW + 1, "it does better again"


def test_a_word_of_a_leader_begins_the_wait_for_others_anew() -> None:
    candidacy = candidacy_of()
    candidacy.may_lead = False
    first = candidacy.others_go_first_until(NOW)

    candidacy.wait_ns(NOW + LEASE)

    assert candidacy.others_go_first_until(NOW + LEASE) == first + LEASE
