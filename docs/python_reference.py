"""Writes the reference of the public Python names, from their docstrings, to stdout."""

import ast
import dataclasses
import importlib
import inspect
import typing
from functools import cache

import talka

TITLE = """# The Python names

Written from the docstrings by `make docs`; `help(talka.NAME)` says the same. Everything here is imported from `talka`.
"""
GROUPS = {
    "Load tests": "Workflow step check action setup teardown on_start on_stop on_evict metric state depends Provide "
    "Use Skip Feed between",
    "Load shapes": (
        "ConstantVUs RampingVUs ConstantRate RampingRate IterationsPerVU SharedIterations CustomVUs CustomRate"
    ),
    "Arguments that are prepared once": "URL Headers Params Cookies Auth Data File Directory FileGlob",
    "Calls and responses": "HTTPResponse CustomResponse Timeout Form",
    "Running a test from Python": "run run_blocking ResultDocument",
    "Pipelines": "Dag handler command HandlerTask run_dag_inline",
    "A cluster from Python": "Client",
    "Errors": "TalkaError Invalid",
}


class Entry(typing.NamedTuple):
    """A method or a field of a class."""

    name: str
    shown: str
    text: str


@cache
def fields(thing: type) -> tuple[Entry, ...]:
    """The public fields of a class as they are written, each with the string below it."""
    source = inspect.getsource(importlib.import_module(thing.__module__))
    (body,) = (
        node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == thing.__name__
    )
    found = []
    for one, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and not one.target.id.startswith("_"):
            is_told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            text = " ".join(str(after.value.value).split()) if is_told else ""
            found.append(Entry(one.target.id, f"{one.target.id}: {ast.unparse(one.annotation)}", text))
    return tuple(found)


def methods(thing: type) -> list[Entry]:
    found = []
    for name, value in vars(thing).items():
        if name.startswith("_"):
            continue
        if isinstance(value, property):
            found.append(Entry(name, name, own_text(value.fget)))
        elif inspect.isfunction(value) or isinstance(value, classmethod | staticmethod):
            function = getattr(value, "__func__", value)
            text = inspect.getdoc(function) or ""  # also what it inherits
            found.append(Entry(name, f"{name}{signature(function, is_method=True)}", text))
    return found


def own_text(thing: object) -> str:
    return inspect.cleandoc(thing.__doc__ or "")


def signature(function: object, *, is_method: bool = False) -> str:
    """Names and defaults, without types: those are in the editor."""
    shown = []
    marked = False
    for parameter in list(inspect.signature(function).parameters.values())[is_method:]:
        if parameter.kind is parameter.VAR_POSITIONAL:
            marked = True
            shown.append(f"*{parameter.name}")
        elif parameter.kind is parameter.VAR_KEYWORD:
            shown.append(f"**{parameter.name}")
        else:
            if parameter.kind is parameter.KEYWORD_ONLY and not marked:
                marked = True
                shown.append("*")
            has_default = parameter.default is not parameter.empty
            shown.append(f"{parameter.name}={parameter.default!r}" if has_default else parameter.name)
    return f"({', '.join(shown)})"


def text_of(name: str) -> str:
    """What `help` says first about a public name."""
    thing = getattr(talka, name)
    return own_text(thing)


def undocumented() -> list[str]:
    """Public names, their public methods and fields about which nothing is said."""
    missing = []
    for name in talka.__all__:
        thing = getattr(talka, name)
        text = text_of(name)
        if not text or (not inspect.isclass(thing) and text == own_text(type(thing))):
            missing.append(name)
        if inspect.isclass(thing):
            missing += [f"{name}.{entry.name}" for entry in methods(thing) if not entry.text]
            missing += [
                f"{name}.{entry.name}" for entry in fields(thing) if not entry.text and f"`{entry.name}`" not in text
            ]
    return missing


def show(name: str) -> None:
    thing = getattr(talka, name)
    head = f"### {name}"
    if inspect.isfunction(thing):
        print(f"{head}\n\n`{name}{signature(thing)}`\n")
    elif inspect.isclass(thing) and dataclasses.is_dataclass(thing):
        print(f"{head}\n\n`{name}{signature(thing)}`\n")
    else:
        print(f"{head}\n")
    print(f"{text_of(name)}\n")
    if not inspect.isclass(thing):
        return
    told = [entry for entry in fields(thing) if entry.text]
    if told:
        print("| Field | Meaning |\n|---|---|")
        for entry in told:
            print(f"| `{entry.shown.replace('|', chr(92) + '|')}` | {entry.text} |")
        print()
    if methods(thing):
        print("| Method | What it does |\n|---|---|")
        for entry in methods(thing):
            print(f"| `{entry.shown.replace('|', chr(92) + '|')}` | {' '.join(entry.text.split())} |")
        print()


def main() -> None:
    print(TITLE)
    for group, names in GROUPS.items():
        print(f"## {group}\n")
        for name in names.split():
            show(name)


if __name__ == "__main__":
    main()
