from fractions import Fraction

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.leadership.timings import LAN, TIMINGS, WAN, LeadershipConfig
from talka.cluster.safeguards import ALL, Safeguards
from talka.errors import Invalid
from talka.units import MILLISECOND, SECOND

quick = settings(deadline=None, derandomize=True, max_examples=200)


@given(
    lease_us=st.integers(3, 60_000_000),
    limit=st.integers(0, 200),
    leader_drift=st.integers(-1000, 1000),
    voter_drift=st.integers(-1000, 1000),
)
@quick
def test_the_leader_stops_before_any_voter_forgets_it_whatever_their_clocks_do_within_the_limit(
    lease_us: int, limit: int, leader_drift: int, voter_drift: int
) -> None:
    config = LeadershipConfig(heartbeat_ns=lease_us * 1000 // 3, lease_ns=lease_us * 1000, drift_per_mille=limit)
    leader_rate = 1 + Fraction(limit * leader_drift, 1_000_000)  # of local to true time, at most `limit` off
    voter_rate = 1 + Fraction(limit * voter_drift, 1_000_000)

    leader_stops = config.leader_lease_ns(ALL) / leader_rate
    voter_forgets = config.voter_lease_ns(ALL) / voter_rate

    assert leader_stops <= voter_forgets


def test_without_the_margin_leader_and_voters_count_the_same() -> None:
    bare = Safeguards(drift_margin=False)

    assert LAN.leader_lease_ns(bare) == LAN.voter_lease_ns(bare) == LAN.lease_ns
    assert LAN.leader_lease_ns(ALL) == 1470 * MILLISECOND
    assert LAN.voter_lease_ns(ALL) == 1530 * MILLISECOND


def test_a_lease_of_less_than_three_heartbeats_is_refused() -> None:
    assert LeadershipConfig(heartbeat_ns=SECOND, lease_ns=3 * SECOND).lease_ns == 3 * SECOND
    with pytest.raises(Invalid, match="three heartbeats"):
        LeadershipConfig(heartbeat_ns=SECOND, lease_ns=3 * SECOND - 1)
    with pytest.raises(Invalid, match="three heartbeats"):
        LeadershipConfig(heartbeat_ns=0)


@pytest.mark.parametrize("drift", [-1, 201])
def test_a_drift_no_clock_has_is_refused(drift: int) -> None:
    with pytest.raises(Invalid, match="between 0 and 200"):
        LeadershipConfig(drift_per_mille=drift)


@pytest.mark.parametrize("name", ["ask_timeout_ns", "hello_ns", "write_timeout_ns", "read_spacing_ns"])
def test_a_timeout_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(Invalid, match="above zero"):
        LeadershipConfig(**{name: 0})


def test_both_presets_keep_the_rules_and_the_wide_one_waits_longer() -> None:
    assert TIMINGS == {"default": LAN, "wan": WAN}
    lan, wan = msgspec.structs.asdict(LAN), msgspec.structs.asdict(WAN)
    assert all(wan[name] > lan[name] for name in lan if name != "drift_per_mille")
