"""A process that has this file on its path and is told of a mutant imports it instead of the module.

Every Python process imports `sitecustomize` when it starts, so the processes that tests start have the mutant too.
The source on disk stays as it is.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

VARIABLE = "TALKA_MUTANT"
"""`module=file=text`: the name of the module, its source, and the file that has the text to run instead."""


class MutantLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(Path(self._text).read_text(), self.path, "exec", dont_inherit=True)
        return code


class MutantFinder(importlib.abc.MetaPathFinder):
    def __init__(self, told: str) -> None:
        self.module, self.file, self.text = told.split("=")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.module:
            return None
        folder = [str(Path(self.file).parent)] if self.file.endswith("__init__.py") else None
        loader = MutantLoader(fullname, self.file, self.text)
        return importlib.util.spec_from_file_location(
            fullname, self.file, loader=loader, submodule_search_locations=folder
        )


if VARIABLE in os.environ:
    sys.meta_path.insert(0, MutantFinder(os.environ[VARIABLE]))
