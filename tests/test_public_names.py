"""The public surface of the package: what `talka` exports, and nothing by accident."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import talka
from talka.version import VERSION

NAMES = """
Auth Client ConstantRate ConstantVUs Cookies CustomRate CustomResponse CustomVUs Dag Data Directory Feed File FileGlob
Form HTTPResponse HandlerTask Headers Invalid IterationsPerVU Params Provide RampingRate RampingVUs ResultDocument
SharedIterations Skip TalkaError Timeout URL Use Workflow action between check command depends handler metric on_evict
on_start on_stop run run_blocking run_dag_inline setup state step teardown
""".split()


def imports_for_type_checkers() -> dict[str, str]:
    """Name to module of what the package says it exports to a type checker."""
    tree = ast.parse(Path(talka.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    found = {}
    for node in block.body:
        if not isinstance(node, ast.ImportFrom):
            assert ast.unparse(node) == "__version__: str"
            continue
        for alias in node.names:
            assert alias.asname == alias.name, f"{alias.name}: a strict type checker exports only `X as X`"
            found[alias.name] = str(node.module)
    return found


def in_a_fresh_process(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_public_names_are_these() -> None:
    assert talka.__all__ == sorted(NAMES)


@pytest.mark.parametrize("name", talka.__all__)
def test_every_public_name_can_be_had_from_the_package_and_is_the_one_of_its_module(name: str) -> None:
    module = importlib.import_module(imports_for_type_checkers()[name])

    assert getattr(talka, name) is getattr(module, name)
    assert name in dir(talka)


def test_type_checkers_are_told_the_same_names_from_the_same_modules() -> None:
    told = imports_for_type_checkers()

    assert told == talka._WHERE
    assert sorted(told) == talka.__all__


def test_names_are_loaded_when_they_are_first_used() -> None:
    program = (
        "import sys, talka; names = ' '.join(m for m in ('asyncio', 'msgspec', 'talka.work.dsl') if m in sys.modules);"
        "talka.Workflow; print(names, 'talka.work.dsl' in sys.modules, 'asyncio' in sys.modules)"
    )

    assert in_a_fresh_process(program) == "True False"


def test_a_star_import_brings_every_public_name_and_no_other() -> None:
    program = "before = set(dir()); from talka import *; print(*sorted(set(dir()) - before - {'before'}))"

    assert in_a_fresh_process(program).split() == talka.__all__


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'talka' has no attribute 'Workflw'"):
        _ = talka.Workflw
    with pytest.raises(ImportError):
        from talka import Stepp  # noqa: F401


def test_the_package_has_a_version() -> None:
    assert talka.__version__ == VERSION
    assert all(part.isdigit() for part in VERSION.split(".")[:2])


def test_the_package_tells_type_checkers_that_it_is_typed() -> None:
    assert (Path(talka.__file__).parent / "py.typed").exists()
