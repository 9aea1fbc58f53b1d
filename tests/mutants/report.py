"""What became of the mutants: for people, for programs, and for `docs/mutants.md`."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.mutants.operators import Mutant
from tests.mutants.runner import KILLED, NOT_REACHED, SURVIVED, TIMED_OUT, Result

WORDS: Final = Path(__file__).parent / "words.toml"
MARK: Final = "<!-- measured -->"
STATES: Final = (KILLED, TIMED_OUT, SURVIVED, NOT_REACHED)
NO_WORD: Final = "**no word yet**"


class Word(NamedTuple):
    """Why a mutant that survives needs no test. Lines move, so its place is the text of the line."""

    file: str
    operator: str
    line: str
    reason: str


class Verdict(NamedTuple):
    mutant: Mutant
    source: str
    result: Result
    left_out: int
    """Tests that reach it as well and were not run."""

    @property
    def room(self) -> str:
        return self.mutant.file.partition("/")[0]

    @property
    def is_alive(self) -> bool:
        return self.result.state in (SURVIVED, NOT_REACHED)


def read_words(path: Path = WORDS) -> list[Word]:
    return [Word(**entry) for entry in tomllib.loads(path.read_text()).get("equal", [])]


def word_for(verdict: Verdict, words: Sequence[Word]) -> str:
    place = (verdict.mutant.file, verdict.mutant.operator, verdict.mutant.line_text(verdict.source))
    return next((word.reason for word in words if (word.file, word.operator, word.line) == place), "")


def table(verdicts: Sequence[Verdict]) -> list[str]:
    rooms = sorted({verdict.room for verdict in verdicts})
    lines = [f"| room | mutants | {' | '.join(STATES)} |", f"|---|---|{'---|' * len(STATES)}"]
    for name, chosen in [*((room, {room}) for room in rooms), ("all", set(rooms))]:
        states = [verdict.result.state for verdict in verdicts if verdict.room in chosen]
        counts = " | ".join(str(states.count(state)) for state in STATES)
        lines.append(f"| {name} | {len(states)} | {counts} |")
    return lines


def survivors(verdicts: Sequence[Verdict], words: Sequence[Word]) -> list[str]:
    lines = []
    for verdict in sorted(verdict for verdict in verdicts if verdict.is_alive):
        word = word_for(verdict, words) or NO_WORD
        lines += [f"`{verdict.mutant.name}` {verdict.result.state}: {word}", "", "```diff"]
        lines += [*verdict.mutant.diff(verdict.source).splitlines(), "```", ""]
    return lines


def page(head: str, said: str, verdicts: Sequence[Verdict], words: Sequence[Word]) -> str:
    """The page with its measured part made anew; `said` tells of the run."""
    before, _, _ = head.partition(MARK)
    return "\n".join([before + MARK, "", said, "", *table(verdicts), "", *survivors(verdicts, words)]).rstrip() + "\n"


def document(verdicts: Sequence[Verdict], words: Sequence[Word], facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **facts,
        "mutants": [
            {
                "name": verdict.mutant.name,
                "diff": verdict.mutant.diff(verdict.source),
                **verdict.result._asdict(),
                "left_out": verdict.left_out,
                "word": word_for(verdict, words),
            }
            for verdict in verdicts
        ],
    }
