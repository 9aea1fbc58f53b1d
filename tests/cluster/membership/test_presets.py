"""Presets of membership and the checks of what people set themselves."""

import msgspec
import pytest

from talka.cluster.membership.presets import PRESETS, MembershipConfig
from talka.cluster.membership.suspicion import bounds
from talka.errors import Invalid
from talka.units import MILLISECOND, MINUTE, SECOND

DEFAULT = PRESETS["default"]


def changed(**changes: int) -> MembershipConfig:
    return msgspec.structs.replace(DEFAULT, **changes)


@pytest.mark.parametrize(
    ("name", "probe", "timeout", "multiplier", "stretch", "gossip", "fanout"),
    [
        ("default", 500, 200, 3, 8, 100, 3),
        ("fast", 250, 120, 4, 6, 50, 3),
        ("wan", 2000, 1000, 4, 6, 500, 4),
        ("serf-lan", 1000, 500, 4, 6, 200, 3),
    ],
)
def test_each_preset_has_the_periods_it_was_measured_with(
    name: str, probe: int, timeout: int, multiplier: int, stretch: int, gossip: int, fanout: int
) -> None:
    config = PRESETS[name]

    assert config.probe_interval_ns == probe * MILLISECOND
    assert config.probe_timeout_ns == timeout * MILLISECOND
    assert (config.suspicion_multiplier, config.suspicion_max) == (multiplier, stretch)
    assert (config.gossip_interval_ns, config.gossip_fanout) == (gossip * MILLISECOND, fanout)


def test_there_are_four_presets_and_they_share_what_does_not_depend_on_the_network() -> None:
    assert list(PRESETS) == ["default", "fast", "wan", "serf-lan"]
    for config in PRESETS.values():
        assert (config.indirect_probes, config.retransmit_multiplier, config.awareness_max) == (3, 4, 8)
        assert config.reap_ns == 15 * MINUTE
        assert config.rejoin_interval_ns == 30 * SECOND
        assert config.lag_limit_ns == 100 * MILLISECOND
        assert config.members_limit == 10_000


def test_serf_lan_syncs_and_gossips_to_the_dead_as_serf_does() -> None:
    config = PRESETS["serf-lan"]

    assert (config.sync_interval_ns, config.gossip_to_dead_ns) == (30 * SECOND, 30 * SECOND)


def test_news_that_gossip_missed_arrives_within_ten_seconds_by_default() -> None:
    assert DEFAULT.sync_interval_ns <= 10 * SECOND


def test_a_confirmed_death_among_ten_members_between_sites_is_known_within_fifteen_seconds() -> None:
    config = PRESETS["wan"]
    # Found after 1.58 intervals in expectation, and the failed probe lasts one itself.
    found_ns = config.probe_interval_ns * 258 // 100

    assert found_ns + bounds(config, 10, 0).min_ns < 15 * SECOND


@pytest.mark.parametrize("timeout_ns", [-1, 0, DEFAULT.probe_interval_ns, DEFAULT.probe_interval_ns + 1])
def test_a_probe_timeout_outside_its_interval_is_refused(timeout_ns: int) -> None:
    with pytest.raises(Invalid) as refusal:
        changed(probe_timeout_ns=timeout_ns)

    assert str(refusal.value) == (
        f"membership: probe_timeout_ns is {timeout_ns}; "
        "give one above 0 and below probe_interval_ns, which is 500000000"
    )


def test_the_widest_probe_timeouts_are_taken() -> None:
    assert changed(probe_timeout_ns=1).probe_timeout_ns == 1
    assert changed(probe_timeout_ns=DEFAULT.probe_interval_ns - 1).probe_timeout_ns == 499_999_999


def test_a_dead_member_is_not_reaped_while_it_is_still_told_the_news() -> None:
    with pytest.raises(
        Invalid, match="^membership: reap_ns is 29999999999; give at least gossip_to_dead_ns, which is "
    ):
        changed(reap_ns=DEFAULT.gossip_to_dead_ns - 1)

    assert changed(reap_ns=DEFAULT.gossip_to_dead_ns).reap_ns == 30 * SECOND


@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [
        ("indirect_probes", 0, 16),
        ("suspicion_multiplier", 1, 16),
        ("suspicion_max", 1, 24),
        ("gossip_interval_ns", MILLISECOND, 1440 * MINUTE),
        ("gossip_fanout", 1, 16),
        ("retransmit_multiplier", 1, 16),
        ("sync_interval_ns", 100 * MILLISECOND, 1440 * MINUTE),
        ("rejoin_interval_ns", 100 * MILLISECOND, 1440 * MINUTE),
        ("lag_limit_ns", MILLISECOND, 1440 * MINUTE),
        ("awareness_max", 0, 8),
        ("members_limit", 1, 100_000),
    ],
)
def test_each_number_has_a_range_and_the_refusal_names_it(name: str, lowest: int, highest: int) -> None:
    for value in (lowest, highest):
        assert getattr(changed(**{name: value}), name) == value
    for value in (lowest - 1, highest + 1):
        with pytest.raises(Invalid) as refusal:
            changed(**{name: value})
        assert str(refusal.value) == f"membership: {name} is {value}; give {lowest} to {highest}"


def test_ranges_that_depend_on_another_number_hold_too() -> None:
    day = 1440 * MINUTE
    with pytest.raises(Invalid, match="probe_interval_ns is 9999999; give 10000000 to"):
        changed(probe_interval_ns=10 * MILLISECOND - 1, probe_timeout_ns=1)
    with pytest.raises(Invalid, match="probe_interval_ns is 86400000000001; give"):
        changed(probe_interval_ns=day + 1)
    with pytest.raises(Invalid, match="gossip_to_dead_ns is -1; give 0 to"):
        changed(gossip_to_dead_ns=-1)
    with pytest.raises(Invalid, match="gossip_to_dead_ns is 86400000000001; give"):
        changed(gossip_to_dead_ns=day + 1, reap_ns=7 * day)
    with pytest.raises(Invalid, match="reap_ns is 999999999; give 1000000000 to 604800000000000$"):
        changed(reap_ns=SECOND - 1, gossip_to_dead_ns=0)
    with pytest.raises(Invalid, match="reap_ns is 604800000000001; give"):
        changed(reap_ns=7 * day + 1)


def test_a_config_cannot_be_changed_and_takes_no_positions() -> None:
    with pytest.raises(AttributeError):
        DEFAULT.gossip_fanout = 4  # type: ignore[misc]
    with pytest.raises(TypeError):
        MembershipConfig(1, 2)  # type: ignore[call-arg]
