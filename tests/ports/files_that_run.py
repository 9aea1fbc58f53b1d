"""Which files of ours take part in something."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import talka

SOURCES = Path(talka.__file__).parent
TESTS = Path(__file__).parents[1]


class FilesThatRun:
    def __init__(self) -> None:
        self.of_talka: list[str] = []
        """Below its package."""
        self.of_tests: list[str] = []
        """Names, this file apart."""


@contextmanager
def files_that_run() -> Iterator[FilesThatRun]:
    """Files whose functions are called meanwhile, known at the end."""
    codes: set[CodeType] = set()
    found = FilesThatRun()

    def note(frame: FrameType, event: str, argument: object) -> None:
        codes.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)
        files = sorted({Path(code.co_filename) for code in codes})
        found.of_talka = [str(file.relative_to(SOURCES)) for file in files if file.is_relative_to(SOURCES)]
        found.of_tests = [file.name for file in files if file.is_relative_to(TESTS) and file != Path(__file__)]
