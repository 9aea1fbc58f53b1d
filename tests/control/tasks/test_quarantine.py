"""Bad machines told from bad tasks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.tasks.quarantine import DEATHS, LASTS_NS, TASKS_LIMIT, WITHIN_NS, WORKERS_LIMIT, Quarantine
from talka.errors import Invalid
from talka.units import NEVER, SECOND

quick = settings(deadline=None, derandomize=True, max_examples=100)


def with_deaths(worker: str, tasks: int, now: int = 0) -> Quarantine:
    quarantine = Quarantine()
    for index in range(tasks):
        quarantine.died(now, (1, index), worker)
    return quarantine


def test_a_worker_is_bad_when_three_tasks_died_on_it_alone() -> None:
    quarantine = with_deaths("w1", 2)
    assert quarantine.until == {} and quarantine.next_end_at == NEVER
    assert quarantine.died(SECOND, (1, 2), "w1")
    assert quarantine.until == {"w1": SECOND + LASTS_NS}
    assert quarantine.next_end_at == SECOND + LASTS_NS


def test_one_task_that_dies_again_and_again_is_one_piece_of_evidence() -> None:
    quarantine = Quarantine()
    for now in range(9):
        assert not quarantine.died(now, (1, 1), "w1")
    assert quarantine.evidence(9, "w1") == 1


def test_tasks_that_died_elsewhere_too_prove_nothing() -> None:
    quarantine = Quarantine()
    for index in range(5):
        assert not quarantine.died(0, (1, index), "w1")
        assert not quarantine.died(0, (1, index), "w2")
    assert quarantine.evidence(0, "w1") == quarantine.evidence(0, "w2") == 0


def test_deaths_that_are_long_past_prove_nothing() -> None:
    quarantine = with_deaths("w1", 2)
    assert not quarantine.died(WITHIN_NS, (1, 2), "w1")
    assert len(quarantine._deaths) == 1
    assert not with_deaths("w1", 2).died(WITHIN_NS, (1, 2), "w1")
    assert with_deaths("w1", 2).died(WITHIN_NS - 1, (1, 2), "w1")


def test_evidence_grows_old_without_another_death() -> None:
    quarantine = with_deaths("w1", 2)
    assert quarantine.evidence(WITHIN_NS - 1, "w1") == 2
    assert quarantine.evidence(WITHIN_NS, "w1") == 0


def test_a_quarantine_ends_after_its_time_and_one_more_death_begins_another() -> None:
    quarantine = with_deaths("w1", 3)
    assert not quarantine.expire(LASTS_NS - 1)
    assert quarantine.until == {"w1": LASTS_NS}
    assert quarantine.expire(LASTS_NS)
    assert quarantine.until == {} and quarantine.next_end_at == NEVER
    assert quarantine.died(LASTS_NS, (2, 0), "w1")


def test_a_death_in_quarantine_makes_it_longer() -> None:
    quarantine = with_deaths("w1", 3)
    assert quarantine.died(SECOND, (1, 0), "w1")
    assert quarantine.until == {"w1": SECOND + LASTS_NS}


def test_of_two_quarantines_the_first_to_end_is_waited_for() -> None:
    quarantine = with_deaths("w1", 3)
    for index in range(3):
        quarantine.died(SECOND, (2, index), "w2")
    assert quarantine.next_end_at == LASTS_NS
    assert quarantine.expire(LASTS_NS)
    assert quarantine.until == {"w2": SECOND + LASTS_NS}


def test_a_worker_is_acquitted_when_what_died_on_it_dies_elsewhere() -> None:
    quarantine = with_deaths("w1", 3)
    assert quarantine.died(SECOND, (1, 0), "w2")
    assert quarantine.until == {}


def test_a_worker_with_enough_other_evidence_is_not_acquitted() -> None:
    quarantine = with_deaths("w1", 4)
    assert not quarantine.died(SECOND, (1, 0), "w2")
    assert quarantine.until == {"w1": LASTS_NS}


def test_what_is_remembered_is_bounded() -> None:
    quarantine = Quarantine(tasks_limit=3)
    for index in range(5):
        quarantine.died(0, (1, index), "w1")
    assert len(quarantine._deaths) == 3
    one = Quarantine()
    for index in range(3 * WORKERS_LIMIT):
        one.died(0, (1, 1), f"w{index}")
    assert one.evidence(0, f"w{3 * WORKERS_LIMIT - 1}") == 0
    assert TASKS_LIMIT == 10_000


def test_a_quarantine_must_be_able_to_remember_enough() -> None:
    with pytest.raises(Invalid, match="tasks_limit of at least 3, not 2"):
        Quarantine(2)


@quick
@given(st.lists(st.tuples(st.integers(0, WITHIN_NS // 5), st.integers(0, 5), st.sampled_from("abc")), max_size=40))
def test_the_rule_holds_for_whatever_dies(deaths: list[tuple[int, int, str]]) -> None:
    quarantine = Quarantine()
    now = 0
    last: dict[int, dict[str, int]] = {}
    for gap, task, worker in deaths:
        now += gap
        quarantine.expire(now)
        last = {key: died for key, died in last.items() if max(died.values()) > now - WITHIN_NS}
        last.setdefault(task, {})[worker] = now
        quarantine.died(now, (1, task), worker)
        for name in "abc":
            own = [died for died in last.values() if list(died) == [name] and died[name] > now - WITHIN_NS]
            assert quarantine.evidence(now, name) == len(own)
        assert (quarantine.until.get(worker) == now + LASTS_NS) == (quarantine.evidence(now, worker) >= DEATHS)
        assert all(until > now for until in quarantine.until.values())
