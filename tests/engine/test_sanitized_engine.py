"""The whole engine in C under the address and undefined-behaviour sanitizers, against a server that is hostile."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from talka.engine.load import native
from tests.engine.hostile_server import BEHAVIOURS

ROOT = Path(__file__).parents[2]
SANITIZERS = ("-g", "-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
OUTCOMES = {"answered", "cancelled", "protocol", "reset", "timeout", "direct: answered", "direct: failed"}

pytestmark = pytest.mark.skipif(native.available() is not None, reason="the native engine is not built")


def compiling() -> ModuleType:
    spec = importlib.util.spec_from_file_location("native_compile", ROOT / "native" / "compile.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """(the extension, what must be loaded before Python so that it runs)."""
    extension = tmp_path_factory.mktemp("sanitized") / "_native.so"
    command: list[str] = compiling().command(extension)
    libraries = []
    for name in ("libasan.so", "libubsan.so"):
        found = subprocess.run([command[0], f"-print-file-name={name}"], capture_output=True, text=True, check=False)
        if found.returncode or not Path(found.stdout.strip()).is_absolute():
            pytest.skip(f"the compiler has no {name}")
        libraries.append(found.stdout.strip())
    subprocess.run([*command, *SANITIZERS], check=True)
    return extension, " ".join(libraries)


def test_the_hostile_server_knows_more_than_fifty_ways() -> None:
    assert len(BEHAVIOURS) >= 50 + len([name for name in BEHAVIOURS if name.startswith("ok")])


@pytest.mark.serial
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_server_makes_the_engine_touch_memory_that_is_not_its_own(sanitized: tuple[Path, str], seed: int) -> None:
    extension, libraries = sanitized
    options = {
        "LD_PRELOAD": libraries,
        "PYTHONMALLOC": "malloc",  # else objects lie in pools that the sanitizer cannot see into
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself lets go of little when it ends
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.hostile_run", extension, "--calls", "2000", "--seed", str(seed)],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        cwd=ROOT,
        env={**os.environ, **options},
    )
    assert done.returncode == 0, done.stderr  # a sanitizer ends the process at once
    outcomes = dict(line.rsplit(": ", 1) for line in done.stdout.splitlines())
    assert set(outcomes) >= OUTCOMES
