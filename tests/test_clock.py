"""Time zones, as this machine knows them."""

from zoneinfo import ZoneInfo

import pytest

from talka.clock import BadZone, time_zone

SOME = ("Europe/Berlin", "Europe/Vilnius", "America/New_York", "UTC")


def test_a_zone_is_known_by_its_name_and_without_one_it_is_utc() -> None:
    assert time_zone("Europe/Berlin") == ZoneInfo("Europe/Berlin")
    assert time_zone("") is None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Europe/Berlim", "there is no time zone 'Europe/Berlim' (did you mean Europe/Berlin?)"),
        ("europe/berlin ", "(did you mean Europe/Berlin?)"),
        ("new york", "(did you mean America/New_York?)"),
        ("Nirgends", "there is no time zone 'Nirgends': write one such as Europe/Berlin"),
        ("../../etc/passwd", "there is no time zone"),
        ("Europe", "there is no time zone"),
        ("a\0b", "there is no time zone"),
        ("right/Europe/Berlin", "there is no time zone"),
        ("localtime", "there is no time zone"),
    ],
)
def test_an_unknown_zone_is_told_with_the_one_that_may_be_meant(name: str, says: str) -> None:
    with pytest.raises(BadZone) as caught:
        time_zone(name, lambda: SOME)
    assert says in str(caught.value)


def test_on_a_machine_without_zones_it_is_said_what_to_install() -> None:
    with pytest.raises(BadZone, match="has no database of time zones: install tzdata"):
        time_zone("Nowhere/AtAll", tuple)
