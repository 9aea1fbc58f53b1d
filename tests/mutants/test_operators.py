"""Every mutant is a program, and another one than the original."""

import ast
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mutants.operators import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "talka").rglob("*.py"))


def texts(source: str) -> dict[str, str]:
    """What each mutant writes in the place of what it replaces, by operator."""
    return {mutant.operator: mutant.diff(source).partition("\n+ ")[2] for mutant in mutants_of(source, "a.py")}


@settings(max_examples=20)
@given(st.sampled_from(SOURCES), st.data())
def test_every_mutant_parses_differs_and_has_as_many_lines(path: Path, data: st.DataObject) -> None:
    source = path.read_text()
    mutants = mutants_of(source, path.name)
    if mutants:
        changed = data.draw(st.sampled_from(mutants)).applied(source)

        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
        assert changed.count("\n") == source.count("\n")


@pytest.mark.parametrize("path", SOURCES[::25], ids=lambda path: path.name)
def test_no_two_mutants_of_a_file_have_one_name_or_one_text(path: Path) -> None:
    mutants = mutants_of(path.read_text(), path.name)

    assert len({mutant.name for mutant in mutants}) == len(mutants)
    assert len({(mutant.start, mutant.end, mutant.text) for mutant in mutants}) == len(mutants)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a < b", {"lt-lte": "x = (a <= b)"}),
        ("x = a is None", {"is-isnot": "x = (a is not None)"}),
        ("x = a and b", {"and-or": "x = (a or b)"}),
        ("x = not a", {"drop-not": "x = (a)"}),
        ("x = a - b", {"minus-plus": "x = (a + b)"}),
        ("x = 'a' + b", {}),
        ("x = min(a)", {"min-max": "x = max(a)"}),
        (
            "x = [a for a in b if c]",
            {"if-true": "x = [a for a in b if True]", "if-false": "x = [a for a in b if False]"},
        ),
        ("x = a[0]", {"int+1": "x = a[1]", "int-1": "x = a[-1]"}),
        ("while a: break", {"if-false": "while False: break", "break-continue": "while a: continue"}),
        (
            "def f(): return a == b",
            {"return-not": "def f(): return not (a == b)", "eq-noteq": "def f(): return (a != b)"},
        ),
        ("def f(): return True", {"return-not": "def f(): return False"}),
        ("def f(): return a", {"return-none": "def f(): return None"}),
        ("def f(): return None", {}),
        ("a.b(c)", {"drop-call": "pass"}),
        ("async def f(): await b()", {"drop-call": "async def f(): pass"}),
        ("a += b", {"drop-change": "pass", "plus-minus": "a -= b"}),
        ("def f(self): self.a = b", {"drop-change": "def f(self): pass"}),
        ("def __init__(self): self.a = b", {}),
    ],
)
def test_each_operator_changes_what_its_name_says(source: str, expected: dict[str, str]) -> None:
    assert texts(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""One, 2."""',
        "x: Annotated[int, 3]",
        "limit: Final = 3",
        "_LIMIT = 3 + 1",
        "Name: TypeAlias = Literal[1, 2]",
        "if TYPE_CHECKING:\n    f(1)",
        "class Port(Protocol):\n    def f(self, n: int = 1) -> None: g()",
        "def __repr__(self):\n    return str(1 + 2)",
        "x = f'{a + 1}'",
        "raise Invalid(1 + n)",
        "__slots__ = ('a', 1)",
        "assert_never(x)",
        "@timed(3)\ndef f() -> Literal[3]: ...",
    ],
)
def test_what_is_no_behaviour_has_no_mutant(source: str) -> None:
    assert mutants_of(source, "a.py") == []


def test_sums_that_begin_at_one_place_have_names_of_their_own() -> None:
    source = "x = a + b + c"

    assert [mutant.name for mutant in mutants_of(source, "a.py")] == ["a.py:1:8:plus-minus", "a.py:1:12:plus-minus"]


def test_a_span_of_several_lines_after_letters_of_several_bytes_is_replaced_exactly() -> None:
    source = "é = 'ü'; f(\n    a,\n)  # ö\nb = 1\n"
    [call] = [mutant for mutant in mutants_of(source, "a.py") if mutant.operator == "drop-call"]

    assert call.applied(source) == "é = 'ü'; pass  # ö\n\n\nb = 1\n"
    assert call.diff(source) == "- é = 'ü'; f( a, ) # ö\n+ é = 'ü'; pass # ö"
    assert isinstance(call, Mutant) and call.line_text(source) == "é = 'ü'; f("
