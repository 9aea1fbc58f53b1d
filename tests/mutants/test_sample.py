"""The sample is the seed's, and has some of every room."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mutants.operators import Mutant
from tests.mutants.sample import drawn, shares

WEIGHTS = st.dictionaries(st.text(min_size=1, max_size=3), st.integers(1, 10_000), min_size=1, max_size=8)
LINES = {"cluster": 900, "wire": 90, "work": 10}
MUTANTS = {
    room: [
        Mutant(f"{room}/{folder}/a.py", line, 0, "if-true", 0, 1, "", line)
        for folder in ("one", "two")
        for line in range(200)
    ]
    for room in LINES
}


@settings(max_examples=50)
@given(WEIGHTS, st.integers(0, 1000), st.integers(0, 100))
def test_shares_add_up_and_none_is_below_the_least_that_all_can_have(weights, total: int, least: int) -> None:
    parts = shares(weights, total, least)

    assert sum(parts.values()) == total and parts.keys() == weights.keys()
    assert min(parts.values()) >= min(least, total // len(weights))


def test_a_seed_gives_one_sample_and_another_seed_another() -> None:
    assert drawn(MUTANTS, LINES, 200, 1) == drawn(MUTANTS, LINES, 200, 1)
    assert set(drawn(MUTANTS, LINES, 200, 1)) != set(drawn(MUTANTS, LINES, 200, 2))


def test_every_room_and_folder_has_its_part_and_no_mutant_is_drawn_twice() -> None:
    sample = drawn(MUTANTS, LINES, 200, 1)
    rooms = Counter(mutant.file.partition("/")[0] for mutant in sample)
    folders = Counter(mutant.file.rpartition("/")[0] for mutant in sample)

    assert len(set(sample)) == len(sample) == 200
    assert rooms["cluster"] > rooms["wire"] > rooms["work"] >= 40
    assert all(abs(folders[f"{room}/one"] - folders[f"{room}/two"]) <= 1 for room in LINES)


def test_a_room_with_fewer_mutants_than_its_share_gives_all_it_has() -> None:
    few = {**MUTANTS, "work": MUTANTS["work"][:3]}

    assert Counter(mutant.file.partition("/")[0] for mutant in drawn(few, LINES, 200, 1))["work"] == 3


def test_the_first_mutants_are_of_several_rooms() -> None:
    assert len({mutant.file.partition("/")[0] for mutant in drawn(MUTANTS, LINES, 200, 1)[:20]}) > 1
