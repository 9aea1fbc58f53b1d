"""What a field means that was left out: older senders do not have it, so its default is part of the protocol."""

import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec

import talka.wire

GOLDEN = Path(__file__).parent / "golden" / "defaults.txt"


def executed_anew(name: str) -> ModuleType:
    """Defaults are made when a module is executed. Here that is part of the test, so whoever measures which lines a
    test executes finds them."""
    spec = importlib.import_module(name).__spec__
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shown(field: msgspec.structs.FieldInfo) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return repr(field.default_factory())
    return f"Raw({bytes(field.default)!r})" if isinstance(field.default, msgspec.Raw) else repr(field.default)


def defaults() -> Iterator[str]:
    for found in pkgutil.walk_packages(talka.wire.__path__, "talka.wire."):
        for kind in vars(executed_anew(found.name)).values():
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == found.name:
                place = f"{found.name.removeprefix('talka.wire.')}.{kind.__qualname__}"
                for field in msgspec.structs.fields(kind):
                    if not field.required:
                        yield f"{place}.{field.name} = {shown(field)}"


def test_a_field_that_was_left_out_means_what_it_did_when_it_was_released() -> None:
    stored, found = set(GOLDEN.read_text().splitlines()), set(defaults())

    assert (sorted(stored - found), sorted(found - stored)) == ([], []), (
        f"Lines that only {GOLDEN.name} has, and lines that it lacks. Older senders leave fields out and mean what is "
        "stored: when a default is changed on purpose, see that both sides still understand each other, then change "
        "its line. A new field gets a line; a line goes only with its field"
    )
