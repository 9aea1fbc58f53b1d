"""Puts the native engine into the wheel where it can be compiled; where it cannot, the wheel is pure and says so."""

import os
import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeEngine(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        compile_native = runpy.run_path(str(Path(self.root) / "native" / "compile.py"))
        is_editable = version == "editable"
        if is_editable and os.environ.get(compile_native["SKIP"]) == "apart":
            return  # `make` compiles it by a rule of its own, beside this; what that has built stays
        if is_editable:
            folder = compile_native["PACKAGE"]
        else:
            self._folder = tempfile.TemporaryDirectory(prefix="talka-native-")
            folder = Path(self._folder.name)
        built, line = compile_native["compiled"](folder)
        if built is None:
            self.app.display_warning(line)
            return
        self.app.display_info(line)
        if not is_editable:
            build_data["force_include"][str(built)] = f"talka/{built.name}"
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()
