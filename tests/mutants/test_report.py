"""What is said of survivors; and every word is about a mutant that there is."""

from pathlib import Path

from tests.mutants.operators import mutants_of
from tests.mutants.report import MARK, Verdict, Word, page, read_words, word_for
from tests.mutants.runner import Result

PACKAGE = Path(__file__).parents[2] / "src" / "talka"
SOURCE = "def f(n):\n    return n < 3\n"
WORDS = [Word("wire/a.py", "lt-lte", "return n < 3", "Nobody asks for three.")]


def verdict(operator: str, state: str) -> Verdict:
    [mutant] = [mutant for mutant in mutants_of(SOURCE, "wire/a.py") if mutant.operator == operator]
    return Verdict(mutant, SOURCE, Result(state, "", 1.0, 3), 0)


def lost(words: list[Word]) -> list[Word]:
    """Those without a reason or without a mutant."""
    found = {
        (file, mutant.operator, mutant.line_text(source))
        for file in {word.file for word in words}
        for source in [(PACKAGE / file).read_text()]
        for mutant in mutants_of(source, file)
    }
    return [word for word in words if not word.reason or word[:3] not in found]


def test_every_word_is_about_a_mutant_that_there_is_and_no_place_has_two() -> None:
    words = read_words()

    assert lost(words) == []
    assert len({word[:3] for word in words}) == len(words)


def test_a_word_whose_line_was_changed_is_found() -> None:
    is_there = Word("units.py", "plus-minus", "no such line", "It moved.")

    assert lost([is_there]) == [is_there]


def test_a_word_is_found_by_the_text_of_its_line() -> None:
    assert word_for(verdict("lt-lte", "survived"), WORDS) == "Nobody asks for three."
    assert word_for(verdict("int+1", "survived"), WORDS) == ""


def test_the_page_keeps_its_head_and_shows_the_table_and_each_survivor_with_its_word() -> None:
    verdicts = [verdict("lt-lte", "survived"), verdict("int+1", "not reached"), verdict("return-not", "killed")]

    made = page(f"# Mutants\n\n{MARK}\nof an earlier run\n", "Seed 1.", verdicts, WORDS)

    assert made.startswith(f"# Mutants\n\n{MARK}\n\nSeed 1.\n") and "earlier" not in made
    assert "| wire | 3 | 1 | 0 | 1 | 1 |\n| all | 3 | 1 | 0 | 1 | 1 |" in made
    assert "`wire/a.py:2:15:lt-lte` survived: Nobody asks for three." in made
    assert "`wire/a.py:2:15:int+1` not reached: **no word yet**" in made
    assert "- return n < 3\n+ return (n <= 3)" in made and "return-not" not in made
