"""Compiles the native engine into `talka._native`: `python native/compile.py` does so beside the Python sources.

Needs nothing but a C compiler and Python's headers. Without them, or off Linux, Talka runs on its Python engine, so
nothing here fails: one line says what came of it.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

SOURCES = Path(__file__).parent
PACKAGE = SOURCES.parent / "src" / "talka"
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
STRICT = "TALKA_NATIVE_STRICT"
"""Set to 1 by `make check`: a warning is an error there, but not where somebody only wants to run it."""
SKIP = "TALKA_NO_NATIVE"
SECONDS = 300


def file_name() -> str:
    return "_native" + str(sysconfig.get_config_var("EXT_SUFFIX"))


def command(output: Path) -> list[str]:
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    includes = {sysconfig.get_path("include"), sysconfig.get_path("platinclude")}
    flags = [*FLAGS, *(["-Werror"] if os.environ.get(STRICT) == "1" else [])]
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    return [*compiler, "-shared", *flags, *(f"-I{path}" for path in sorted(includes)), "-o", str(output), *sources]


def obstacle() -> str:
    """Why it is not even tried, or nothing."""
    if os.environ.get(SKIP) == "1":
        return f"{SKIP} is set"
    if sys.platform != "linux":
        return "it needs Linux"
    if sys.implementation.name != "cpython":
        return "it needs CPython"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "Python.h is not installed (Debian: python3-dev)"
    return ""


def compiled(folder: Path) -> tuple[Path | None, str]:
    """(the extension in that folder, or None; one line about it). An older one there never outlives this."""
    output = folder / file_name()
    partial = output.with_suffix(".partial")
    reason = obstacle()
    if not reason:
        arguments = command(partial)
        try:
            done = subprocess.run(arguments, capture_output=True, text=True, timeout=SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = f"the compiler {arguments[0]} does not run ({error})"
        else:
            if done.returncode == 0:
                partial.replace(output)  # processes that have the old one keep it
                return output, f"talka: the native engine was built ({output.name}){warnings(done.stderr)}"
            if os.environ.get(STRICT) == "1":
                sys.exit(done.stderr)
            reason = f"{arguments[0]} failed: {first_error(done.stderr)}"
    partial.unlink(missing_ok=True)
    output.unlink(missing_ok=True)
    return None, f"talka: the native engine was not built, the Python engine will run: {reason}"


def warnings(text: str) -> str:
    count = text.count("warning:")
    return f", with {count} warnings" if count else ""


def first_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "it said nothing")


if __name__ == "__main__":
    sys.stdout.write(f"{compiled(PACKAGE)[1]}\n")
