"""`make demo` is the first contact: it installs what running needs, and what it cannot do it says."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIMIT_S = 60


@pytest.fixture
def make(tmp_path: Path):
    """Runs make in a folder with the Makefile, and nothing else of ours."""
    if shutil.which("make") is None:
        pytest.skip("there is no make here")
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "hatch_build.py"):
        (tmp_path / name).touch()
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "compile.py").touch()

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        return subprocess.run(
            ["make", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, env=environment
        )

    return run


def test_demo_installs_what_running_needs_and_tests_what_developers_need(make) -> None:
    demo, test = (make("--dry-run", target).stdout for target in ("demo", "test-fast"))

    assert "'.[fast]'" in demo and "'.[dev]'" not in demo
    assert "'.[dev]'" in test


def test_python_that_cannot_make_an_environment_is_told_with_what_to_install(make, tmp_path: Path) -> None:
    """As Debian's without python3-venv."""
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\nmkdir -p .venv/bin; echo 'ensurepip is not available'; exit 1\n")
    python.chmod(0o755)

    done = make("demo", f"PYTHON={python}")

    assert done.returncode != 0
    assert "sudo apt install python3-venv" in done.stdout
    assert not (tmp_path / ".venv").exists(), "half an environment would be taken for a whole one the next time"
