"""Wheels have the native engine where it can be compiled, and work without it."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
Wheel = Callable[..., tuple[Path, str]]


@pytest.fixture
def wheel(tmp_path: Path) -> Wheel:
    """Builds a wheel as `pip install` does; returns what is in it, in a folder, and what the build said."""

    def build(**variables: str) -> tuple[Path, str]:
        arguments = ("wheel", "--verbose", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", tmp_path)
        done = subprocess.run(
            [sys.executable, "-m", "pip", *arguments, ROOT],
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
            env={**os.environ, **variables},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (made,) = tmp_path.glob("*.whl")
        folder = tmp_path / made.stem
        zipfile.ZipFile(made).extractall(folder)
        return folder, done.stdout + done.stderr

    return build


def engine_line(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "talka", "doctor"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    (line,) = (line for line in done.stdout.splitlines() if line[1:].split()[:1] == ["engine"])
    return line


def names_in(folder: Path) -> set[str]:
    return {path.name for path in (folder / "talka").iterdir()}


def sql_in(folder: Path) -> set[str]:
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*.sql")}
    assert "talka/store/dags/sqlite.sql" in found
    return found


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"CC": "/nonexistent"}, "the compiler /nonexistent does not run"),
        ({"CC": "false"}, "false failed"),
        ({"TALKA_NO_NATIVE": "1"}, "TALKA_NO_NATIVE is set"),
    ],
)
def test_wheel_that_cannot_have_the_native_engine_is_pure_works_and_says_so(
    wheel: Wheel, variables: dict[str, str], reason: str
) -> None:
    folder, said = wheel(**variables)

    assert f"the native engine was not built, the Python engine will run: {reason}" in said
    assert folder.name.endswith("-py3-none-any")
    assert not [name for name in names_in(folder) if name.endswith(".so")]
    assert sql_in(folder) == sql_in(ROOT / "src")
    assert "python; there is no native one: it was not built" in engine_line(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="the native engine needs Linux")
def test_wheel_has_the_native_engine_for_this_python_and_platform(wheel: Wheel) -> None:
    folder, said = wheel()
    if "was not built" in said:
        pytest.skip(said)

    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{tag}-{tag}-linux_" in folder.name
    (name,) = (name for name in names_in(folder) if name.endswith(".so"))
    assert name.startswith("_native.cpython-")
    line = engine_line(folder)
    assert line.split()[-1] == "native", line


def test_source_distribution_has_what_the_native_engine_is_built_from(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=60,
    )
    (made,) = tmp_path.glob("*.tar.gz")
    listed = subprocess.run(["tar", "tzf", made], capture_output=True, text=True, check=True).stdout.splitlines()
    there = {name.partition("/")[2] for name in listed}
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "native").iterdir() if path.suffix in (".c", ".h")}
    assert sources | {"native/compile.py", "hatch_build.py", "pyproject.toml"} <= there
    assert not [name for name in there if name.endswith(".so")]


def test_the_set_up_of_a_clone_keeps_the_engine_that_was_compiled_beside_it(tmp_path: Path) -> None:
    """As `make` installs it: the engine is compiled by a rule of its own, and may be there first."""
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "native", "src"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    built = tmp_path / "src" / "talka" / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    built.write_bytes(b"as it was built")

    subprocess.run(
        [
            sys.executable,
            "-m",
            "hatchling",
            "build",
            "--target",
            "wheel:editable",
            "--hooks-only",
            "--directory",
            tmp_path / "made",
        ],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=60,
        env={**os.environ, "TALKA_NO_NATIVE": "apart"},
    )

    assert built.read_bytes() == b"as it was built"
