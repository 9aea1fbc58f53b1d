from random import Random

from talka.ids import ALPHABET, new_job_id


def test_the_same_seed_gives_the_same_names() -> None:
    assert [new_job_id(Random(7)) for _ in range(2)] == [new_job_id(Random(7))] * 2


def test_one_source_of_randomness_gives_different_names() -> None:
    random = Random(7)

    assert len({new_job_id(random) for _ in range(1000)}) == 1000


def test_a_name_is_ten_letters_none_of_which_is_easily_misread_or_makes_a_word() -> None:
    random = Random(7)
    letters = set("".join(new_job_id(random) for _ in range(1000)))

    assert len(new_job_id(random)) == 10
    assert letters == set(ALPHABET)
    assert not letters & set("01aeiouly")
