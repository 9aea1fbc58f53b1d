"""Whether there is a native engine here, and why not."""

import sys
from pathlib import Path

import pytest

from talka.engine.load import native

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is none elsewhere, whatever was built")


def test_an_extension_that_is_not_there_was_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, native.NAME, None)

    assert native.imported() == (None, "it was not built when Talka was installed")


def test_a_module_that_the_extension_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "_native.py").write_text("import nothing_of_this_name")
    monkeypatch.delitem(sys.modules, native.NAME, raising=False)
    monkeypatch.setattr("talka.__path__", [str(tmp_path)])

    assert native.imported() == (None, "No module named 'nothing_of_this_name'")


def test_an_extension_that_cannot_be_loaded_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "_native.py").write_text("raise ImportError('undefined symbol: nothing')")
    monkeypatch.delitem(sys.modules, native.NAME, raising=False)
    monkeypatch.setattr("talka.__path__", [str(tmp_path)])

    assert native.imported() == (None, "it cannot be loaded (undefined symbol: nothing)")
