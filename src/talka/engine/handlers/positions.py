"""YAML and JSON read so that every value knows its line, and everything that is wrong is found at once.

Of YAML it is the part that people mean: words such as yes, on, 1:30 and 007 are text (as in YAML 1.2), tags and merge
keys are refused. Nothing recurses: a file of a million brackets is a sentence, not a crash.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import msgspec
import yaml

from talka.work.durations import shown
from talka.work.specs import SpecProblem

DEPTH_LIMIT: Final = 100
ALIASED_LIMIT: Final = 100_000
"""Values that aliases stand for, all together: a few lines of aliases of aliases can mean billions."""
PROBLEMS_LIMIT: Final = 100
LOWEST: Final = -(1 << 63)
HIGHEST: Final = (1 << 64) - 1
NO_KEY: Final = "a key must be text"

Scalar: TypeAlias = str | int | float | bool | None

_WORDS: Final[dict[str, Scalar]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_BASED: Final = re.compile(r"0x[0-9A-Fa-f]+|0o[0-7]+")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NO_NUMBER: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_PLAIN_TAG: Final = "tag:yaml.org,2002:"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")

# What JSON is made of; a text may not hold a line's end, so every one of these stands between two values.
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[-0-9.eE+]+|true|false|null|[{}\[\]:,\n]')

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Located(msgspec.Struct):
    """A value and its line. `value` is a scalar, a list of these, or a mapping of keys to their lines and these."""

    value: "Scalar | list[Located] | dict[str, tuple[int, Located]]"
    line: int
    size: int = 1
    """Values in it, itself included."""

    def plain(self) -> Any:
        """Without lines. As deep as DEPTH_LIMIT at most."""
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        if isinstance(self.value, dict):
            return {key: item.plain() for key, (_, item) in self.value.items()}
        return self.value

    def at(self, path: str) -> "Located":
        """What stands at a path such as `retry.backoff` or `limits[0].rate`, as far as there is something."""
        found = self
        for key, position in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
            value = found.value
            if key and isinstance(value, dict) and key in value:
                found = value[key][1]
            elif position and isinstance(value, list) and int(position) < len(value):
                found = value[int(position)]
            else:
                break
        return found


class Unreadable(Exception):
    """The rest of the file has no meaning. Its reader adds this to the problems found before."""

    def __init__(self, text: str, line: int) -> None:
        super().__init__(text)
        self.text, self.line = text, line


class _Open(msgspec.Struct):
    """A list or a mapping that has not ended."""

    value: list[Located] | dict[str, tuple[int, Located]]
    line: int
    anchor: str | None
    size: int = 1
    key: str | None = None
    """Of a mapping: whose value comes next."""
    key_line: int = 0
    is_dropped: bool = False
    """What comes next belongs to a key that cannot be."""


class Builder:
    """Puts together what a reader finds, and complains about what fits no place."""

    def __init__(self, file: str) -> None:
        self.problems: list[SpecProblem] = []
        self.root: Located | None = None
        self._file = file
        self._open: list[_Open] = []
        self._anchors: dict[str, Located] = {}
        self._aliased = 0

    def complain(self, text: str, line: int) -> None:
        if len(self.problems) < PROBLEMS_LIMIT:
            self.problems.append(SpecProblem(text, self._file, line))

    def scalar(self, value: Scalar, text: str, line: int, anchor: str | None = None) -> None:
        """`text` is how it is written, and what it is as a key."""
        if isinstance(value, str) and _SURROGATE.search(value):
            self.complain("half a character: \\ud800 to \\udfff come in pairs", line)
            value = text = ""
        elif isinstance(value, int) and not LOWEST <= value <= HIGHEST:
            self.complain(f"the number {shown(text)} is too large: write it in quotes", line)
            value = 0
        elif isinstance(value, float) and value - value != 0:
            self.complain(f"{shown(text)} is not a number that JSON can hold: write it in quotes", line)
            value = 0
        if self._expects_key():
            self._key(text, line)
        else:
            self._add(Located(value, line), anchor)

    def begin(
        self, value: list[Located] | dict[str, tuple[int, Located]], line: int, anchor: str | None = None
    ) -> None:
        if len(self._open) >= DEPTH_LIMIT:
            raise Unreadable(f"this is nested more than {DEPTH_LIMIT} deep", line)
        if self._expects_key():
            raise Unreadable(NO_KEY, line)
        self._open.append(_Open(value, line, anchor))

    def end(self) -> None:
        ended = self._open.pop()
        self._add(Located(ended.value, ended.line, ended.size), ended.anchor)

    def alias(self, name: str, line: int) -> None:
        found = self._anchors.get(name)
        if found is None:
            if any(other.anchor == name for other in self._open):
                self.complain(f"*{name} stands inside of what it names", line)
            else:
                self.complain(f"*{name} names nothing: there is no &{name} before it", line)
            found = Located(None, line)
        self._aliased += found.size
        if self._aliased > ALIASED_LIMIT:
            raise Unreadable(f"aliases stand for more than {ALIASED_LIMIT:,} values", line)
        if not self._expects_key():
            self._add(found, None)
        elif isinstance(found.value, str):
            self._key(found.value, line)
        else:
            raise Unreadable(NO_KEY, line)

    def _expects_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].value, dict) and self._open[-1].key is None

    def _key(self, text: str, line: int) -> None:
        top = self._open[-1]
        assert isinstance(top.value, dict)
        top.key, top.key_line, top.is_dropped = text, line, True
        if text == "<<":
            self.complain("merge keys are not read: write the fields out", line)
        elif text in top.value:
            self.complain(f"{shown(text)} is there twice: first in line {top.value[text][0]}", line)
        else:
            top.is_dropped = False

    def _add(self, located: Located, anchor: str | None) -> None:
        if anchor is not None:
            self._anchors[anchor] = located
        if not self._open:
            self.root = located
            return
        top = self._open[-1]
        top.size += located.size
        if isinstance(top.value, list):
            top.value.append(located)
        else:
            assert top.key is not None
            if not top.is_dropped:
                top.value[top.key] = (top.key_line, located)
            top.key, top.is_dropped = None, False


def read_located(text: str, file: str) -> tuple[Located | None, list[SpecProblem]]:
    """What a file of this name holds, None when it is empty or cannot be read, and what is wrong with it."""
    builder = Builder(file)
    try:
        if file.endswith(".json"):
            _take_json(builder, text)
        else:
            for event in _events(text):
                _take(builder, event)
    except Unreadable as error:
        builder.complain(error.text, error.line)
        return None, builder.problems
    return builder.root, builder.problems


def _events(text: str) -> Iterator[Any]:
    try:
        yield from yaml.parse(text, Loader=_Loader)
    except yaml.reader.ReaderError as error:
        raise Unreadable(f"the character {error.character!r} cannot be in a file", _line_of(text, error)) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        found = "".join(text.splitlines()[line - 1 : line])
        if "\t" in found[: len(found) - len(found.lstrip())]:
            raise Unreadable("a tab stands where the line begins: indent with spaces", line) from None
        context = f" ({error.context} of line {error.context_mark.line + 1})" if error.context_mark else ""
        raise Unreadable(f"this is not YAML: {error.problem}{context}", line) from None


def _line_of(text: str, error: Any) -> int:
    # Where it was read from is told in characters or in bytes, depending on the reader.
    found = text.find(error.character) if isinstance(error.character, str) else text.find(chr(error.character))
    return text.count("\n", 0, max(0, found)) + 1


def _take(builder: Builder, event: Any) -> None:
    line = event.start_mark.line + 1
    if isinstance(event, yaml.DocumentStartEvent):
        if builder.root is not None:
            raise Unreadable("a second document begins here: one file holds one pipeline", line)
    elif isinstance(event, yaml.ScalarEvent):
        is_plain = event.implicit[0] and event.style in (None, "")
        tag = (event.tag or "").removeprefix(_PLAIN_TAG)
        if tag not in ("", "!", "str", "int", "float", "bool", "null"):
            builder.complain(f"the tag {event.tag} is not read: leave it out", line)
        value = (
            _resolved(event.value)
            if (is_plain and tag == "") or tag in ("int", "float", "bool", "null")
            else event.value
        )
        builder.scalar(value, event.value, line, event.anchor)
    elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
        if event.tag not in (None, "!", f"{_PLAIN_TAG}seq", f"{_PLAIN_TAG}map"):
            builder.complain(f"the tag {event.tag} is not read: leave it out", line)
        builder.begin([] if isinstance(event, yaml.SequenceStartEvent) else {}, line, event.anchor)
    elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
        builder.end()
    elif isinstance(event, yaml.AliasEvent):
        builder.alias(event.anchor or "", line)


def _resolved(text: str) -> Scalar:
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text) if len(text) < 40 else HIGHEST + 1
    if _BASED.fullmatch(text):
        return int(text, 0) if len(text) < 40 else HIGHEST + 1
    if _FLOAT.fullmatch(text):
        return float(text)
    return float("nan") if _NO_NUMBER.fullmatch(text) else text


def _check_syntax(text: str) -> None:
    def refuse(constant: str) -> None:
        raise Unreadable(f"{constant} is not JSON: write it in quotes", _line_of_word(text, constant))

    try:
        # Numbers are read afterwards, where their line is known.
        json.loads(text, parse_constant=refuse, parse_int=str, parse_float=str)
    except json.JSONDecodeError as error:
        raise Unreadable(f"this is not JSON: {error.msg[:1].lower()}{error.msg[1:]}", error.lineno) from None
    except RecursionError:
        raise Unreadable(f"this is nested more than {DEPTH_LIMIT} deep", 1) from None


def _line_of_word(text: str, word: str) -> int:
    outside_of_text = re.sub(r'"(?:[^"\\]|\\.)*"', lambda found: " " * len(found[0]), text)
    return text.count("\n", 0, max(0, outside_of_text.find(word))) + 1


def _take_json(builder: Builder, text: str) -> None:
    if text.strip():
        _check_syntax(text)
    line = 1
    for found in _TOKEN.finditer(text):
        token = found[0]
        match token[0]:
            case "\n":
                line += 1
            case '"':
                value = json.loads(token) if "\\" in token else token[1:-1]
                builder.scalar(value, value, line)
            case "{":
                builder.begin({}, line)
            case "[":
                builder.begin([], line)
            case "}" | "]":
                builder.end()
            case ":" | ",":
                pass
            case _:
                builder.scalar(_resolved(token), token, line)
