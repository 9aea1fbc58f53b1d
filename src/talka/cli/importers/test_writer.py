"""Turns requests into a readable test: constants from the environment, a class for each origin, a step per request.

Whatever comes from outside is written as a literal, a checked name or a cleaned comment: it can never become code.
"""

import keyword
import re
import textwrap
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote

from talka.work.dsl import RESERVED

COLUMNS: Final = 120
STEP: Final = 4
NAME_CHARACTERS: Final = 48
METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
# In the order the linter sorts imports.
IMPORTED: Final = (
    *("URL", "Auth", "Cookies", "Data", "Form", "Headers", "HTTPResponse", "Params", "Workflow", "action", "step"),
)
STEP_NAMES_TAKEN: Final = RESERVED | {"action", "step", "self", "os", "pause"}
CLASS_NAMES_TAKEN: Final = frozenset(IMPORTED)
CONSTANTS_TAKEN: Final = frozenset({"URL", "TARGET"})
PATH_SAFE: Final = "!$%&()*+,/:;=@~"
"""Neither quotes nor backslashes: a path stands inside an f-string."""
QUOTES: Final = ("'", '"', b"'", b'"')
BOUNDARY: Final = "talka-form-part"
MULTIPART_KIND: Final = f"multipart/form-data; boundary={BOUNDARY}"


@dataclass(frozen=True, slots=True)
class Variable:
    """A value that the test reads from the environment: the name of a constant at its top."""

    name: str


class Fields(dict[str, Any]):
    """A body that is sent as a form."""


Part: TypeAlias = str | Variable


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A line at the top of the test. Without a default, the variable must be set."""

    name: str
    comment: str
    default: str | None = None
    cast: Literal["int", "float"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRequest:
    """What one step sends. Values are literals of any depth, with variables among them."""

    name: str
    """As wished for; the writer makes it unique."""
    method: str
    path: Sequence[Part]
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, Part] = field(default_factory=dict)
    cookies: Mapping[str, Part] = field(default_factory=dict)
    auth: Variable | tuple[Variable, Variable] | None = None
    data: Any = None
    """A dict or a list is sent as JSON, `Fields` as a form, anything else as it is."""
    expect: Sequence[int | range] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    comment: str = ""
    pause_s: float = 0.0
    """How long the user does nothing before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Journey:
    """The requests to one origin: a workflow."""

    name: str
    base: Variable
    requests: Sequence[DraftRequest]
    comment: str = ""
    is_off: bool = False
    """Written, but it does not run until somebody says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A test before it is written, and what its reader has to tell about it."""

    title: str
    constants: Sequence[Constant]
    journeys: Sequence[Journey]
    notes: Sequence[str] = ()

    @property
    def needed(self) -> list[str]:
        """Variables without which the test does not start."""
        return [constant.name for constant in self.constants if constant.default is None]


# Names.


def words_of(text: str) -> list[str]:
    """The words of a name in any convention, in lower case and ASCII."""
    plain = unicodedata.normalize("NFKD", text[:1000]).encode("ascii", "ignore").decode()
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", plain)
    return [word.lower() for word in re.findall(r"[A-Za-z0-9]+", parted)]


def step_name(text: str, otherwise: str = "request") -> str:
    name = "_".join(words_of(text))[:NAME_CHARACTERS].strip("_") or otherwise
    return f"call_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name


def class_name(text: str, otherwise: str) -> str:
    name = "".join(word.capitalize() for word in words_of(text))[:NAME_CHARACTERS] or otherwise
    name = f"Host{name}" if name[0].isdigit() else name
    return f"{name}Test" if keyword.iskeyword(name) else name


def constant_name(text: str, otherwise: str = "SECRET") -> str:
    name = "_".join(words_of(text)).upper()[:NAME_CHARACTERS].strip("_") or otherwise
    return f"VALUE_{name}" if name[0].isdigit() else name


def unique(name: str, taken: Collection[str]) -> str:
    """The name, with a number behind it if need be."""
    if name not in taken:
        return name
    return next(made for number in range(2, len(taken) + 3) if (made := f"{name}_{number}") not in taken)


def request_name(method: str, path: str) -> str:
    """The method and the last words of the path that tell something; ids in the middle do not."""
    segments = [segment for segment in path.split("/") if segment]
    telling = [
        segment
        for position, segment in enumerate(segments)
        if len(segment) <= 24 and not (segment.isdigit() and position < len(segments) - 1)
    ]
    return step_name(f"{method.lower()} {' '.join(telling[-2:]) or 'index'}")


def multipart(fields: Iterable[tuple[str, str]]) -> str:
    """A body of the kind above: fields as browsers send them when there is a file among them."""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="'
    parts = [f'{head}{quote(name, safe=" [].")}"\r\n\r\n{value}\r\n' for name, value in fields]
    return "".join([*parts, f"--{BOUNDARY}--\r\n"])


# Literals.


def quoted(text: str) -> str:
    """A literal in double quotes, unless single ones need fewer escapes: as formatters have it."""
    made = repr(text)
    if '"' not in text:
        return f'"{made[1:-1]}"'
    if "'" in text and text.count('"') <= text.count("'"):
        body = made[1:-1].replace("\\'", "'").replace('"', '\\"')
        return f'"{body}"'
    return made


def flat(value: Any) -> str:
    """The value on one line."""
    match value:
        case Variable():
            return value.name
        case Fields():
            return f"Form({flat(dict(value))})"
        case dict():
            return "{" + ", ".join(f"{flat(key)}: {flat(part)}" for key, part in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(flat, value)) + "]"
        case tuple():
            return "(" + ", ".join(map(flat, value)) + ("," if len(value) == 1 else "") + ")"
        case str():
            return quoted(value)
        case bytes():
            return "b" + quoted(value.decode("latin-1")) if value.isascii() else repr(value)
        case _:
            return repr(value)


def laid_out(value: Any, indent: int, used: int, after: int = 1) -> str:
    """The value as it stands in a file: on one line if it fits, else in several.

    `used` columns of the first line are taken already, and `after` are needed behind the last.
    """
    whole = flat(value)
    if used + len(whole) + after <= COLUMNS:
        return whole
    inner, pad, end = indent + STEP, " " * (indent + STEP), " " * indent
    match value:
        case Fields():
            return f"Form(\n{pad}{laid_out(dict(value), inner, inner, 0)}\n{end})"
        case dict():
            lines = []
            for key, part in value.items():
                shown = laid_out(key, inner, inner, 2)
                lines.append(f"{pad}{shown}: {laid_out(part, inner, len(pad + shown.splitlines()[-1]) + 2)},\n")
            return "{\n" + "".join(lines) + end + "}"
        case list():
            return "[\n" + "".join(f"{pad}{laid_out(part, inner, inner)},\n" for part in value) + end + "]"
        case str() | bytes():
            return "(\n" + "".join(f"{pad}{flat(piece)}\n" for piece in pieces(value, COLUMNS - inner - 3)) + end + ")"
        case _:
            return whole


def pieces(value: str | bytes, room: int) -> Iterable[str | bytes]:
    """The value in parts whose literals have at most `room` columns between their quotes, ended at spaces if it may."""
    start = columns = 0
    for position in range(len(value)):
        # A quote may have to be escaped in one part and not in another, so each counts as if it were.
        one = value[position : position + 1]
        columns += len(flat(one)) - len(flat(one[:0])) + (one in QUOTES)
        if columns > room:
            space = value.rfind(" " if isinstance(value, str) else b" ", start, position)  # type: ignore[arg-type]
            end = space + 1 if space - start > room // 2 else position
            yield value[start:end]
            start = end
            columns = len(flat(value[start : position + 1])) - len(flat(one[:0]))
    yield value[start:]


def address(base: Variable, path: Sequence[Part], indent: int, used: int) -> str:
    """An f-string of the base and the path, in several parts if it is long."""
    written = "".join(
        f"{{{part.name}}}" if isinstance(part, Variable) else braced(quote(part, safe=PATH_SAFE)) for part in path
    )
    whole = f'f"{{{base.name}}}{written}"'
    if used + len(whole) + 1 <= COLUMNS:
        return whole
    pad = " " * (indent + STEP)
    # A variable or a doubled brace must not be torn apart.
    atoms = re.findall(r"\{[A-Z0-9_]+\}|\{\{|\}\}|.", f"{{{base.name}}}{written}")
    lines, line = [], ""
    for atom in atoms:
        if len(pad) + len(line) + len(atom) + 3 > COLUMNS:
            lines.append(line)
            line = ""
        line += atom
    shown = (f'{pad}{"f" if "{" in line or "}" in line else ""}"{line}"\n' for line in (*lines, line))
    return "(\n" + "".join(shown) + " " * indent + ")"


def braced(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def comment_lines(text: str, indent: int = 0) -> list[str]:
    pad = " " * indent + "# "
    return textwrap.wrap(plain_line(text), COLUMNS, initial_indent=pad, subsequent_indent=pad) if text else []


def plain_line(text: str) -> str:
    """One line without anything that could end a comment or a docstring."""
    return "".join(char if char.isprintable() and char not in '"\\' else " " for char in text)


# The file.


def written(draft: Draft) -> str:
    """The whole test, formatted."""
    classes = [lines_of_journey(journey) for journey in draft.journeys]
    used = names_used(request for journey in draft.journeys for request in journey.requests)
    opening = textwrap.wrap(plain_line(draft.title), COLUMNS - 3)
    lines = [
        '"""' + "\n".join(opening),
        "",
        "Review it before you use it: `talka check` shows the plan and sends nothing, `talka debug` runs one user once",
        "and shows every request.",
        '"""',
        "",
        "import os",
        "",
        f"from talka import {', '.join(used)}",
        "",
    ]
    for constant in draft.constants:
        lines += [*comment_lines(constant.comment), line_of_constant(constant)]
    for journey_lines in classes:
        lines += ["", "", *journey_lines]
    return "\n".join(lines) + "\n"


def names_used(requests: Iterable[DraftRequest]) -> list[str]:
    used = {"URL", "HTTPResponse", "Workflow", "step"}
    for request in requests:
        used.update(kind for kind, _ in arguments_of(request).values())
        used.update(["Form"] if isinstance(request.data, Fields) else [])
        used.update(["action"] if request.pause_s else [])
    return [name for name in IMPORTED if name in used]


def arguments_of(request: DraftRequest) -> dict[str, tuple[str, Any]]:
    """Parameter to its annotation and its default, for those the request has."""
    arguments = {
        "headers": ("Headers", dict(request.headers) or None),
        "params": ("Params", dict(request.params) or None),
        "cookies": ("Cookies", dict(request.cookies) or None),
        "auth": ("Auth", request.auth),
        "data": ("Data", request.data),
    }
    return {name: pair for name, pair in arguments.items() if pair[1] is not None}


def line_of_constant(constant: Constant) -> str:
    if constant.default is None:
        value = f'os.environ["{constant.name}"]'
        value = f"{constant.cast}({value})" if constant.cast else value
        return f"{constant.name} = {value}"
    start = f'{constant.name} = os.environ.get("{constant.name}", '
    default = laid_out(constant.default, 0, len(start), len(').rstrip("/")'))
    return f'{start}{default}).rstrip("/")'


def lines_of_journey(journey: Journey) -> list[str]:
    lines = [f"class {journey.name}(Workflow):"]
    lines += comment_lines(journey.comment, STEP)
    if journey.is_off:
        lines.append("    abstract = True")
    lines += ["    vus = 5", '    duration = "30s"', '    thresholds = ["failed < 1%"]']
    taken = set(STEP_NAMES_TAKEN)
    before: str | None = None
    for request in journey.requests:
        name = unique(request.name, taken)
        taken.add(name)
        if request.pause_s and before is not None:
            # A method of its own: what is inside of a step counts as its response time.
            pause = unique(f"pause_before_{name}", taken)
            taken.add(pause)
            lines += ["", f"    @action({before})", f"    async def {pause}(self) -> None:"]
            lines.append(f'        await self.pause("{request.pause_s:.1f}s")')
            before = pause
        lines += ["", *comment_lines(request.comment, STEP), *lines_of_step(journey.base, request, name, before)]
        before = name
    return lines


def lines_of_step(base: Variable, request: DraftRequest, name: str, before: str | None) -> list[str]:
    assert request.method in METHODS
    given = arguments_of(request)
    passed = ", ".join(["url", *(f"{key}={key}" for key in given)])
    call = f"        return await self.client.http.{request.method.lower()}({passed})"
    return [*decorator_lines(request, before), *signature_lines(base, request.path, name, given), call]


def decorator_lines(request: DraftRequest, before: str | None) -> list[str]:
    parts = [before] if before is not None else []
    if request.expect:
        statuses = tuple(request.expect)
        parts.append(f"expect={flat(statuses[0] if len(statuses) == 1 else statuses)}")
    if request.tags:
        parts.append(f"tags={flat(dict(request.tags))}")
    line = f"    @step({', '.join(parts)})"
    if len(line) <= COLUMNS:
        return [line]
    return ["    @step(", *(f"        {part}," for part in parts), "    )"]


def signature_lines(base: Variable, path: Sequence[Part], name: str, given: Mapping[str, tuple[str, Any]]) -> list[str]:
    whole = [f"url: URL = {address(base, path, 0, -10_000)}"]
    whole += [f"{key}: {kind} = {flat(value)}" for key, (kind, value) in given.items()]
    line = f"    async def {name}(self, {', '.join(whole)}) -> HTTPResponse:"
    if len(line) <= COLUMNS:
        return [line]
    pad = " " * (2 * STEP)
    lines = [f"    async def {name}(", f"{pad}self,"]
    start = f"{pad}url: URL = "
    lines.append(f"{start}{address(base, path, len(pad), len(start))},")
    for key, (kind, value) in given.items():
        start = f"{pad}{key}: {kind} = "
        lines.append(f"{start}{laid_out(value, len(pad), len(start))},")
    return [*lines, "    ) -> HTTPResponse:"]
