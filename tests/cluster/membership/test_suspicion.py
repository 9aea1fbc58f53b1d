"""How long a suspected member has, and how confirmations shorten it."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.membership.presets import PRESETS
from talka.cluster.membership.suspicion import STRETCH_LIMIT, Suspicion, SuspicionBounds, bounds
from talka.units import SECOND

SERF = PRESETS["serf-lan"]
DEFAULT = PRESETS["default"]
quick = settings(deadline=None, derandomize=True, max_examples=150)


def suspicion_of(wanted: int = 3, min_s: int = 2, max_s: int = 10, zone: str = "", now: int = 0) -> Suspicion:
    return Suspicion(now, SuspicionBounds(min_s * SECOND, max_s * SECOND, wanted), "a", zone, 7)


@pytest.mark.parametrize(("members", "min_ms"), [(10, 4000), (30, 5908), (100, 8000), (1000, 12000), (10_000, 16000)])
def test_the_minimum_grows_with_the_logarithm_of_the_group(members: int, min_ms: int) -> None:
    found = bounds(SERF, members, 0)

    assert found.min_ns // 1_000_000 == min_ms
    assert found.max_ns == 6 * found.min_ns


@pytest.mark.parametrize("members", [0, 1, 2, 9, 10])
def test_a_small_group_waits_as_long_as_one_of_ten(members: int) -> None:
    assert bounds(SERF, members, 0).min_ns == 4 * SECOND


@pytest.mark.parametrize(
    ("multiplier", "members", "wanted"),
    [(4, 100, 2), (4, 4, 2), (4, 3, 0), (4, 2, 0), (3, 3, 1), (3, 2, 0), (2, 100, 0), (1, 100, 0), (1, 1, 0)],
)
def test_two_less_than_the_multiplier_are_wanted_or_none_when_there_are_not_as_many(
    multiplier: int, members: int, wanted: int
) -> None:
    config = msgspec.structs.replace(SERF, suspicion_multiplier=multiplier)

    assert bounds(config, members, 0).wanted == wanted


def test_bad_health_stretches_the_minimum_and_shrinks_the_forgiveness_above_it() -> None:
    found = [bounds(DEFAULT, 10, score) for score in range(9)]

    assert [each.min_ns for each in found] == [1_500_000_000 * (score + 1) for score in range(9)]
    # In units of the healthy minimum: 8 times as long is the preset's own limit, 24 the common one.
    assert [each.max_ns / 1_500_000_000 for each in found] == [8, 16, 24, 24, 24, 24, 24, 24, 24]


@given(
    preset=st.sampled_from(sorted(PRESETS)),
    stretch=st.integers(1, 24),
    members=st.integers(0, 20_000),
    score=st.integers(0, 40),
)
@quick
def test_bounds_are_whole_and_ordered_and_their_stretch_is_limited(
    preset: str, stretch: int, members: int, score: int
) -> None:
    found = bounds(msgspec.structs.replace(PRESETS[preset], suspicion_max=stretch), members, score)

    assert type(found.min_ns) is int and type(found.max_ns) is int
    assert 0 < found.min_ns <= found.max_ns <= stretch * found.min_ns
    assert (score + 1) * found.max_ns <= STRETCH_LIMIT * found.min_ns or found.max_ns == found.min_ns


def test_a_lone_accuser_waits_the_maximum() -> None:
    suspicion = suspicion_of(now=5)

    assert suspicion.is_lone
    assert suspicion.accusers == ["a"]
    assert (suspicion.started_at, suspicion.incarnation) == (5, 7)
    assert suspicion.expires_at == 5 + 10 * SECOND


def test_where_no_confirmation_can_come_the_wait_is_the_minimum_and_nobody_is_lone() -> None:
    suspicion = suspicion_of(wanted=0)

    assert suspicion.expires_at == 2 * SECOND
    assert not suspicion.is_lone
    assert not suspicion.confirm(0, "b", "")
    assert suspicion.accusers == ["a"]


def test_confirmations_shorten_the_wait_along_the_curve_of_lifeguard() -> None:
    suspicion = suspicion_of()
    waits = [suspicion.expires_at]

    for accuser in ("b", "c", "d"):
        assert suspicion.confirm(0, accuser, "")
        waits.append(suspicion.expires_at)

    # 10 − 8·log(c + 1)/log 4
    assert waits == [10 * SECOND, 6 * SECOND, 3_660_149_997, 2 * SECOND]
    assert suspicion.accusers == ["a", "b", "c", "d"]
    assert not suspicion.is_lone


def test_an_accuser_counts_once() -> None:
    suspicion = suspicion_of()

    assert not suspicion.confirm(0, "a", "")
    assert suspicion.is_lone
    assert suspicion.confirm(0, "b", "")
    assert not suspicion.confirm(0, "b", "")
    assert (suspicion.accusers, suspicion.expires_at) == (["a", "b"], 6 * SECOND)


def test_an_accuser_counts_once_also_when_it_names_another_zone() -> None:
    suspicion = suspicion_of(zone="east")

    assert not suspicion.confirm(0, "a", "west")
    assert suspicion.is_lone


def test_a_known_zone_counts_once() -> None:
    suspicion = suspicion_of(zone="east")

    assert not suspicion.confirm(0, "b", "east")
    assert suspicion.is_lone
    assert suspicion.confirm(0, "c", "west")
    assert not suspicion.confirm(0, "d", "west")
    assert suspicion.accusers == ["a", "c"]


def test_accusers_whose_zone_is_not_known_count_each() -> None:
    suspicion = suspicion_of(zone="")

    assert suspicion.confirm(0, "b", "")
    assert suspicion.confirm(0, "c", "east")
    assert suspicion.confirm(0, "d", "")


def test_more_accusers_than_wanted_are_not_kept() -> None:
    suspicion = suspicion_of(wanted=1)

    assert suspicion.confirm(0, "b", "")
    assert not suspicion.confirm(0, "c", "")
    assert (suspicion.accusers, suspicion.expires_at) == (["a", "b"], 2 * SECOND)


def test_a_late_confirmation_ends_the_wait_now_and_not_in_the_past() -> None:
    suspicion = suspicion_of(wanted=1)

    suspicion.confirm(5 * SECOND, "b", "")

    assert suspicion.expires_at == 5 * SECOND


def test_a_confirmation_after_the_end_does_not_put_the_end_off() -> None:
    suspicion = suspicion_of(wanted=1)

    suspicion.confirm(11 * SECOND, "b", "")

    assert suspicion.expires_at == 10 * SECOND


def test_a_rearmed_suspicion_waits_anew_and_keeps_its_start_and_its_accusers() -> None:
    suspicion = suspicion_of()
    suspicion.confirm(0, "b", "")

    suspicion.rearm(20 * SECOND)

    assert suspicion.expires_at == 26 * SECOND
    assert (suspicion.started_at, suspicion.accusers) == (0, ["a", "b"])
    suspicion.confirm(21 * SECOND, "c", "")
    assert suspicion.expires_at == 23_660_149_997


@given(
    wanted=st.integers(0, 5),
    min_ns=st.integers(1, 10**11),
    more_ns=st.integers(0, 10**12),
    told=st.lists(st.tuples(st.integers(0, 10**11), st.sampled_from("abcdefgh"), st.sampled_from(["", "x", "y", "z"]))),
)
@quick
def test_the_end_only_moves_earlier_stays_within_the_bounds_and_each_voice_counts_once(
    wanted: int, min_ns: int, more_ns: int, told: list[tuple[int, str, str]]
) -> None:
    suspicion = Suspicion(0, SuspicionBounds(min_ns, min_ns + more_ns, wanted), "a", "x", 0)
    zones = ["x"]
    now = 0
    for wait_ns, accuser, zone in told:
        now += wait_ns
        before, known = suspicion.expires_at, list(suspicion.accusers)
        counted = suspicion.confirm(now, accuser, zone)

        independent = accuser not in known and (zone == "" or zone not in zones)
        assert counted == (independent and len(known) <= wanted)
        assert suspicion.accusers == known + [accuser] * counted
        zones += [zone] * counted
        assert min_ns <= suspicion.expires_at <= before
        assert counted or suspicion.expires_at == before
    if len(suspicion.accusers) == wanted + 1:
        suspicion.rearm(now)
        assert suspicion.expires_at == now + min_ns


def test_bounds_that_are_stretched_wait_longer_when_all_agree_and_no_longer_than_that_when_nobody_does() -> None:
    short, long = SuspicionBounds(2 * SECOND, 12 * SECOND, 1), SuspicionBounds(2 * SECOND, 5 * SECOND, 1)

    assert short.stretched(1) is short
    assert short.stretched(4) == SuspicionBounds(8 * SECOND, 12 * SECOND, 1)
    assert long.stretched(4) == SuspicionBounds(8 * SECOND, 8 * SECOND, 1)
