"""People are warned of the end of a certificate in time, and not with every look."""

from talka.control.member.expiry import DAY, WARNINGS, ExpiryWarnings
from talka.units import SECOND

END = 100 * DAY


def test_a_certificate_is_told_of_once_at_each_step_towards_its_end() -> None:
    warnings = ExpiryWarnings()
    told = []

    for now in range(0, END + 3 * DAY, DAY // 4):
        told += [(END - now) // DAY for name in warnings.due({"own": END}, now) if name == "own"]

    assert told == [30, 7, 1, 0]
    assert [before // DAY for before in WARNINGS] == told


def test_one_that_is_first_seen_late_is_told_of_once() -> None:
    warnings = ExpiryWarnings()

    assert warnings.due({"own": END, "authority": 900 * DAY}, END - SECOND) == ["own"]
    assert warnings.due({"own": END, "authority": 900 * DAY}, END - SECOND) == []
    assert warnings.due({"own": END, "authority": 900 * DAY}, END) == ["own"]


def test_a_renewed_one_is_told_of_anew_when_it_ends_soon_too() -> None:
    warnings = ExpiryWarnings()
    assert warnings.due({"own": END}, END - DAY) == ["own"]

    assert warnings.due({"own": END + 300 * DAY}, END - DAY) == []
    assert warnings.due({"own": END + 300 * DAY}, END + 299 * DAY) == ["own"]
    assert warnings.due({"own": END + 300 * DAY}, END - DAY) == [], "a clock that was set back tells nothing"
    assert warnings.due({"own": END + 301 * DAY}, END + 299 * DAY) == ["own"]


def test_one_that_was_renewed_for_a_few_days_is_told_of_though_the_former_was_nearer_to_its_end() -> None:
    warnings = ExpiryWarnings()
    assert warnings.due({"own": END}, END - DAY) == ["own"]

    assert warnings.due({"own": END + 5 * DAY}, END - DAY) == ["own"]
