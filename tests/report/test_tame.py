"""Text of others on lines of ours."""

import json
import unicodedata

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.report.tame import tame, tame_json

quick = settings(deadline=None, derandomize=True, max_examples=200)
TURNS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
STEERING = st.text(st.one_of(st.characters(), st.sampled_from("\n\r\t\x1b\x7f\x85\x9b\u2028\u2029\u202e\u200f")))


def is_tame(text: str) -> bool:
    return len(text.splitlines()) <= 1 and not any(
        unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(char) in TURNS
        for char in text.replace("\t", "")
    )


def test_what_cannot_be_printed_is_shown_as_a_program_would_write_it() -> None:
    for plain in ("käse ☃ (1)", "a\tb", "5\u00a0%", "👨\u200d👩\u200d👧"):
        assert tame(plain) == plain
    assert tame("a\n12:00:00.000  b") == "a\\n12:00:00.000  b"
    assert tame("\x1b[2J\x9b2J\r\u2028\u202e\udc80") == "\\x1b[2J\\x9b2J\\r\\u2028\\u202e\\udc80"


@quick
@given(STEERING)
def test_a_line_stays_one_line_and_steers_nothing(text: str) -> None:
    shown = tame(text)

    assert is_tame(shown) and tame(shown) == shown


@quick
@given(st.dictionaries(st.text(st.sampled_from("abc")), STEERING, max_size=3))
def test_a_line_of_json_says_the_same_and_steers_nothing(value: dict[str, str]) -> None:
    value = {name: text.encode("utf-8", "replace").decode() for name, text in value.items()}

    line = tame_json(msgspec.json.encode(value))

    assert is_tame(line.decode())
    assert json.loads(line) == value
