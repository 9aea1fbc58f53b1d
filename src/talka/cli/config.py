"""Settings and where they come from: flag > environment > talka.toml > [tool.talka] in pyproject.toml > default.

The only reader of the environment and of configuration files.
"""

import json
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TextIO, TypeAlias, cast

import click

from talka.cli.command import CliCommand, did_you_mean
from talka.cli.output import say
from talka.errors import Invalid
from talka.units import NEVER
from talka.work.durations import parse_duration, parse_rate, shown
from talka.work.retention import MOST_KEPT, Keep, parse_keep
from talka.work.shapes import MOST_ITERATIONS, MOST_VUS
from talka.work.thresholds import BadThreshold, parse_threshold

MOST_CORES = 1024
MOST_SEED = 2**63 - 1
WHOLE = re.compile(r"[+-]?[0-9]{1,20}")
SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class BadSetting(Invalid):
    """A value on the command line, in the environment or in a configuration file that cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CliSettings:
    """Every setting, checked. None: what the test file or the machine says."""

    vus: int | None = None
    rate: str | float | None = None
    duration: str | float | None = None
    iterations: int | None = None
    cores: int | None = None
    thresholds: tuple[str, ...] = ()
    json: str | None = None
    html: str | None = None
    junit: str | None = None
    summary: str | None = None
    outputs: tuple[str, ...] = ()
    keep: bool = False
    store: str | None = None
    keep_history: str | int | None = None
    keep_failed_history: str | int | None = None
    seed: int | None = None
    ui: Literal["auto", "full", "ci", "none"] = "auto"
    engine: Literal["auto", "native", "python"] = "auto"
    grace: str | float = "30s"
    allow_partial: bool = False
    to: str | None = None
    token_file: str | None = None
    ca: str | None = None
    priority: int = 5
    workers_have: tuple[str, ...] = ()
    zone: str | None = None
    """Where commands are given: of several managers a near one is asked first."""
    datacenter: str | None = None
    region: str | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    """Setting to where its value comes from, for those that have no default value."""

    def named(self, name: str) -> str:
        """The setting as whoever set it knows it."""
        return self.origins.get(name, name)


class GivenSetting(NamedTuple):
    """A value as it was found."""

    value: object
    origin: str
    """For `talka config show`."""
    label: str
    """For errors: names the flag, the variable, or the file and the key."""


Layer: TypeAlias = dict[str, GivenSetting]


# Each value passes one of these, which gets its label and returns it in its own type.


def whole(least: int, most: int) -> Callable[[str, object], int]:
    def check(label: str, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        raise BadSetting(f"{label} = {shown(value)} is not possible: write a whole number from {least} to {most:,}")

    return check


def above_zero(noun: str, parse: Callable[..., object]) -> Callable[[str, object], object]:
    def check(label: str, value: object) -> object:
        if parse(value, what=label) == 0:
            raise BadSetting(f"{label} = {shown(value)} means that nothing would run: write a {noun} above 0")
        return value

    return check


def checked_grace(label: str, value: object) -> object:
    parse_duration(cast(str, value), what=label)
    return value


def texts(nouns: str, example: str) -> Callable[[str, object], tuple[str, ...]]:
    def check(label: str, value: object) -> tuple[str, ...]:
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list | tuple) or not all(isinstance(text, str) and text for text in found):
            raise BadSetting(f'{label} = {shown(value)} is not a list of {nouns} such as ["{example}"]')
        return tuple(found)

    return check


def checked_rules(label: str, value: object) -> tuple[str, ...]:
    rules = texts("rules", "failed < 1%")(label, value)
    for rule in rules:
        try:
            parse_threshold(rule)
        except BadThreshold as error:
            raise BadSetting(f"{label}: {error}") from None
    return rules


def named(what: str) -> Callable[[str, object], str]:
    def check(label: str, value: object) -> str:
        if isinstance(value, str) and value:
            return value
        raise BadSetting(f"{label} = {shown(value)} is not the {what}")

    return check


checked_path = named("name of a file")


def checked_summary(label: str, value: object) -> str:
    from talka.report.summary import parse_stats  # not before it is needed: the help must be quick

    if not isinstance(value, str):
        raise BadSetting(f'{label} = {shown(value)} is not a list of columns such as "p50,p95,p99.9"')
    try:
        return ",".join(parse_stats(value))
    except Invalid as error:
        raise BadSetting(f"{label}: {error}") from None


def checked_keep(label: str, value: object) -> object:
    parse_keep(value, Keep(NEVER, MOST_KEPT), what=label)
    return value


def one_of(*choices: str) -> Callable[[str, object], str]:
    def check(label: str, value: object) -> str:
        if isinstance(value, str) and value in choices:
            return value
        raise BadSetting(f"{label} = {shown(value)} is not known: write one of {', '.join(choices)}")

    return check


def switch(label: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise BadSetting(f"{label} = {shown(value)} is not possible: write true or false")


CHECKS: Mapping[str, Callable[[str, object], object]] = {
    "vus": whole(1, MOST_VUS),
    "rate": above_zero("rate", parse_rate),
    "duration": above_zero("duration", parse_duration),
    "iterations": whole(1, MOST_ITERATIONS),
    "cores": whole(1, MOST_CORES),
    "thresholds": checked_rules,
    "json": checked_path,
    "html": checked_path,
    "junit": checked_path,
    "summary": checked_summary,
    "outputs": texts("outputs", "jsonl=windows.jsonl"),
    "keep": switch,
    "store": checked_path,
    "keep_history": checked_keep,
    "keep_failed_history": checked_keep,
    "seed": whole(0, MOST_SEED),
    "ui": one_of("auto", "full", "ci", "none"),
    "engine": one_of("auto", "native", "python"),
    "grace": checked_grace,
    "allow_partial": switch,
    "to": named("address of a manager: write HOST:PORT"),
    "token_file": checked_path,
    "ca": checked_path,
    "priority": whole(1, 10),
    "workers_have": texts("modules", "pandas"),
    "zone": named("id of a zone"),
    "datacenter": named("id of a datacenter"),
    "region": named("id of a region"),
}
# Flags and variables are texts. What does not read as its type stays a text, and its check says what is wrong.
FROM_TEXT: Mapping[str, Callable[[str], object]] = {
    **dict.fromkeys(
        ("vus", "iterations", "cores", "seed", "priority", "port"),
        lambda text: int(text) if WHOLE.fullmatch(text) else text,
    ),
    **dict.fromkeys(
        ("allow_partial", "keep", "accept_code", "allow_private_notify"), lambda text: SWITCH.get(text.lower(), text)
    ),
    "outputs": lambda text: [output.strip() for output in text.split(";") if output.strip()],
    "thresholds": lambda text: [rule.strip() for rule in text.split(";") if rule.strip()],
    "workers_have": lambda text: [name.strip() for name in text.split(",") if name.strip()],
}
FLAGS = {
    "thresholds": "--threshold",
    "outputs": "--output",
    "seeds": "--seed",
    "capabilities": "--capability",
    "tags": "--tag",
}
PATHS = ("json", "html", "junit", "token_file", "ca")
EXCLUSIVE = ("rate", "iterations")
NODES = ("up", "manager", "worker")
"""Tables with the settings of a node, beside those of a job."""


def read_settings(flags: Mapping[str, object]) -> CliSettings:
    """The value of every setting from the highest place that has one. `flags` may hold None for those not given."""
    return settled([*layers_of_files(Path.cwd()), layer_of_environment(CHECKS), layer_of_flags(flags)])


def settled(layers: Iterable[Layer]) -> CliSettings:
    """What the layers say, the lowest given first."""
    chosen: Layer = {}
    for layer in layers:
        # How fast and how many exclude each other: whoever says one sets a lower place's other aside.
        for name, other in (EXCLUSIVE, EXCLUSIVE[::-1]):
            if name in layer and other not in layer:
                chosen.pop(other, None)
        chosen |= layer
    values: dict[str, Any] = {name: CHECKS[name](given.label, given.value) for name, given in chosen.items()}
    return CliSettings(**values, origins={name: given.origin for name, given in chosen.items()})


def layer_of_flags(flags: Mapping[str, object]) -> Layer:
    layer = {}
    for name, value in flags.items():
        if value is not None and value != ():
            flag = FLAGS.get(name, "--" + name.replace("_", "-"))
            layer[name] = GivenSetting(from_text(name, value), flag, flag)
    return layer


def layer_of_environment(known: Iterable[str]) -> Layer:
    layer = {}
    for name in known:
        variable = f"TALKA_{name.upper()}"
        if text := os.environ.get(variable):
            layer[name] = GivenSetting(from_text(name, text), variable, variable)
    return layer


def from_text(name: str, value: object) -> object:
    return FROM_TEXT[name](value) if isinstance(value, str) and name in FROM_TEXT else value


def layers_of_files(folder: Path) -> list[Layer]:
    return [layer_of_table(table, path, section, CHECKS, PATHS) for table, path, section in tables_of_files(folder)]


def tables_of_files(folder: Path) -> list[tuple[object, Path, str]]:
    """Of pyproject.toml and of talka.toml, the nearest of each, up to the root of the repository: their table, the
    file, and what to call the place of the table in it."""
    project: list[tuple[object, Path, str]] = []
    own: list[tuple[object, Path, str]] = []
    for place in (folder, *folder.parents):
        if not own and (place / "talka.toml").is_file():
            own.append((read_toml(place / "talka.toml"), place / "talka.toml", ""))
        if not project and (place / "pyproject.toml").is_file():
            tools = read_toml(place / "pyproject.toml").get("tool", {})
            if table := tools.get("talka", {}) if isinstance(tools, dict) else {}:
                project.append((table, place / "pyproject.toml", "[tool.talka] "))
        if (place / ".git").exists():
            break
    return [*project, *own]


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadSetting(f"{shown_path(path)} cannot be read: {reason}") from None


def layer_of_table(table: object, path: Path, section: str, known: Collection[str], paths: Collection[str]) -> Layer:
    place = shown_path(path)
    if not isinstance(table, dict):
        raise BadSetting(f"{place}: {section.strip()} is not a table")
    layer = {}
    for key, value in table.items():
        if key in NODES and known is CHECKS:
            continue  # settings of a node, which the command that is one reads
        if key not in known:
            hint = did_you_mean(key, known) or f" There are {', '.join(known)}."
            raise BadSetting(f"{place}: {section}has no setting {key!r}.{hint}")
        if key in paths and isinstance(value, str) and value not in ("", "-"):
            # Beside the file that names it, from whatever folder the command is called.
            value = os.path.relpath(path.parent / os.path.expanduser(value))
        layer[key] = GivenSetting(value, f"{place} {section}".strip(), f"{place}: {section}{key}")
    return layer


def layer_of_node(kind: str, flags: Mapping[str, object], known: Collection[str], paths: Collection[str]) -> Layer:
    """What is given for a node: flag > TALKA_* > [kind] in talka.toml > [tool.talka.kind] in pyproject.toml.

    `flags` may hold None for those not given. Nothing is checked yet.
    """
    layer: Layer = {}
    for table, path, section in tables_of_files(Path.cwd()):
        part = table.get(kind, {}) if isinstance(table, dict) else {}
        layer |= layer_of_table(part, path, f"[tool.talka.{kind}] " if section else f"[{kind}] ", known, paths)
    return (
        layer
        | layer_of_environment(known)
        | layer_of_flags({name: value for name, value in flags.items() if name in known})
    )


def shown_path(path: Path) -> str:
    return os.path.relpath(path)


# The environment, for whatever else needs it.

CORE_VARIABLES: Final = frozenset(
    "PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR VIRTUAL_ENV SSL_CERT_FILE SSL_CERT_DIR"
    " HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy".split()
)
CORE_PREFIXES: Final = ("LC_", "PYTHON", "LD_", "CUDA_", "NVIDIA_", "OMP_")
OWN_PREFIX: Final = "TALKA_"


def core_environment(named: Iterable[str]) -> dict[str, str]:
    """What cores of a worker find there: what programs need to run at all, and what is named. Nothing else of the
    worker's environment is theirs to read."""
    names = list(named)
    for name in names:
        if name.startswith(OWN_PREFIX):
            raise BadSetting(
                f"--core-env {name} is not possible: settings of Talka are not for tests and handlers to read"
            )
        if name not in os.environ:
            raise BadSetting(
                f"--core-env {name} is not possible: there is no such variable here; set it, or leave it out"
            )
    return {name: text for name, text in os.environ.items() if name in names or is_for_cores(name)}


def is_for_cores(name: str) -> bool:
    return name in CORE_VARIABLES or name.startswith(CORE_PREFIXES)


def own_environment() -> dict[str, str]:
    """All of it except settings of Talka: where everything is one user's, so is what he runs."""
    return {name: text for name, text in os.environ.items() if not name.startswith(OWN_PREFIX)}


def pass_variables(given: Iterable[str]) -> dict[str, str]:
    """Sets NAME=VALUE for this process and those it starts; NAME alone must be set already. Returns all that are
    named."""
    pairs = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or "\0" in text:
            raise BadSetting(f"--env {shown(text)} names no variable: write NAME or NAME=VALUE")
        if not equals and name not in os.environ:
            raise BadSetting(f"--env {name}: the variable {name} is not set here: set it, or write {name}=VALUE")
        pairs[name] = value if equals else os.environ[name]
    os.environ.update(pairs)
    return pairs


def wants_color(stream: TextIO) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0", "false"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def wants_live_view(ui: str, stream: TextIO) -> bool:
    """Only where it can be drawn: on a terminal that can move its cursor. Unasked, not in a CI."""
    can_draw = stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")
    is_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    return can_draw and (ui == "full" or (ui == "auto" and not is_ci))


def step_summary() -> str | None:
    """Where GitHub's runners want a summary of a step, if this is one."""
    return os.environ.get("GITHUB_STEP_SUMMARY") or None


def own_secret_file() -> str | None:
    return os.environ.get("TALKA_SECRET_FILE") or None


def own_token() -> str | None:
    return os.environ.get("TALKA_TOKEN") or None


def wants_traceback() -> bool:
    return os.environ.get("TALKA_TRACEBACK", "0") not in ("", "0")


# The command.


@click.group("config", help="Settings: flag > TALKA_* > talka.toml > [tool.talka] in pyproject.toml > default.")
def config() -> None:
    pass


@config.command(
    "show",
    cls=CliCommand,
    examples=[("talka config show", "a table"), ("TALKA_VUS=5 talka config show --json", "for programs")],
    help="Show every setting, its value, and where the value comes from.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def show(as_json: bool) -> int:
    settings = read_settings({})
    rows = {
        part.name: (getattr(settings, part.name), settings.origins.get(part.name, "default"))
        for part in fields(settings)
        if part.name != "origins"
    }
    if as_json:
        say(json.dumps({name: {"value": value, "origin": origin} for name, (value, origin) in rows.items()}, indent=1))
        return 0
    table = [("SETTING", "VALUE", "ORIGIN")]
    table += [(name, shown_value(value), origin) for name, (value, origin) in rows.items()]
    widths = [max(len(row[column]) for row in table) for column in (0, 1)]
    for name, text, origin in table:
        say(f"{name:{widths[0]}}  {text:{widths[1]}}  {origin}")
    return 0


def shown_value(value: object) -> str:
    if value is None or value == ():
        return "-"
    if isinstance(value, tuple):
        return "; ".join(str(part) for part in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
