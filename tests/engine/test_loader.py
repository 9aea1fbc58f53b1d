"""A user's file is imported and its workflows are found, or what is wrong is said with file and line."""

import os
import sys
import textwrap
from pathlib import Path
from typing import Any, cast

import pytest

from talka.engine.load.direct import driver_for
from talka.engine.loader import NoSuchFile, being_imported, in_memory, load, load_file, select, url_workflow
from talka.errors import Invalid
from talka.units import SECOND
from talka.wire.shards import FileSource, MemorySource, UrlRequest, UrlSource
from talka.work.dsl import Workflow, setup, step, teardown
from talka.work.inspection import inspect_workflows
from talka.work.responses import HTTPResponse
from talka.work.shapes import ConstantRate
from talka.work.specs import BadWorkflows

SHOP = """\
from talka import HTTPResponse, Workflow, step

class Shop(Workflow):
    @step()
    async def login(self) -> HTTPResponse: ...
"""


@pytest.fixture(autouse=True)
def imports_of_its_own():
    """What a test imports is gone after it."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder, which is also the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(path: Path, text: str = SHOP) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def names_in(path) -> list[str]:
    return [spec.name for spec in load_file(Path(path))]


def problems_in(path) -> list[str]:
    with pytest.raises(BadWorkflows) as caught:
        load_file(Path(path))
    return [str(problem) for problem in caught.value.problems]


# Finding the file


def test_a_file_is_loaded_by_its_absolute_path_and_by_a_relative_one(folder):
    path = written(folder / "tests" / "shop.py")

    assert names_in(path) == ["Shop"]
    assert names_in("tests/shop.py") == ["Shop"]
    assert names_in("./tests/../tests/shop.py") == ["Shop"]


def test_specifications_know_the_file_as_it_was_given_and_their_line(folder):
    written(folder / "shop.py")

    (spec,) = load_file(Path("shop.py"))

    assert (spec.file, spec.line, spec.nodes[0].line, spec.nodes[0].file) == ("shop.py", 3, 4, None)


def test_a_file_that_is_not_there_is_an_error(folder):
    with pytest.raises(NoSuchFile, match="there is no file missing.py"):
        load_file(Path("missing.py"))


def test_a_folder_is_an_error(folder):
    (folder / "tests.py").mkdir()

    with pytest.raises(NoSuchFile, match="tests.py is a folder: name a Python file"):
        load_file(Path("tests.py"))


def test_a_file_that_is_not_python_is_an_error_by_its_name(folder):
    written(folder / "shop.txt")

    assert problems_in("shop.txt") == ["shop.txt: is not a Python file: its name must end in .py"]


def test_a_file_that_holds_no_text_is_an_error(folder):
    (folder / "shop.py").write_bytes(b"x = 1\0")

    (problem,) = problems_in("shop.py")
    assert problem.startswith("shop.py: ")
    assert "null bytes" in problem


def test_a_file_that_cannot_be_read_is_an_error_with_its_reason(folder, monkeypatch):
    written(folder / "shop.py")

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)

    assert problems_in("shop.py") == ["shop.py: cannot be read: [Errno 13] Permission denied"]


# Importing it


def test_a_file_with_the_name_of_a_library_module_does_not_hide_it(folder, monkeypatch):
    import json

    written(folder / "json.py")
    written(folder / "colorsys.py")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)  # as if nobody had imported the library's by now

    assert names_in("json.py") == names_in("colorsys.py") == ["Shop"]

    import colorsys

    assert sys.modules["json"] is json
    assert colorsys.rgb_to_hsv(0, 0, 0) == (0.0, 0.0, 0)


def test_a_file_is_read_again_when_it_has_changed(folder):
    path = written(folder / "shop.py")
    assert names_in(path) == ["Shop"]

    written(path, SHOP.replace("Shop", "Market"))
    sys.path_importer_cache.clear()
    os.utime(path, (1, 1))  # so that the compiled file is seen to be old

    assert names_in(path) == ["Market"]


def test_a_file_may_import_its_neighbours(folder):
    written(folder / "neighbour_of_shop.py", "USERS = 7")
    written(folder / "shop.py", SHOP + "    from neighbour_of_shop import USERS as vus\n")

    (spec,) = load_file(Path("shop.py"))

    assert spec.shape.vus == 7


def test_its_folder_is_put_on_the_path_once_and_behind_the_library(folder):
    written(folder / "shop.py")

    load_file(Path("shop.py"))
    load_file(Path("shop.py"))

    assert sys.path.count(str(folder)) == 1
    library, installed = (str(Path(file).parent) for file in (os.__file__, Path(pytest.__file__).parent))
    assert sys.path.index(library) < sys.path.index(str(folder)) < sys.path.index(installed)


def test_a_file_in_a_package_may_import_from_it(folder):
    written(folder / "market" / "__init__.py", "")
    written(folder / "market" / "common.py", "USERS = 8")
    written(folder / "market" / "load" / "__init__.py", "")
    text = SHOP + "    from ..common import USERS as vus\n"
    path = written(folder / "market" / "load" / "shop.py", text)

    (spec,) = load_file(path)

    assert spec.shape.vus == 8
    assert spec.workflow.__module__ == "market.load.shop"
    assert load_file(path)[0].workflow is spec.workflow


def test_a_package_whose_name_is_taken_is_an_error(folder):
    for home in ("here", "there"):
        written(folder / home / "market" / "__init__.py", "")
        written(folder / home / "market" / "shop.py")

    assert names_in("here/market/shop.py") == ["Shop"]
    assert problems_in("there/market/shop.py") == [
        "there/market/shop.py: cannot be imported as market.shop: that name belongs to "
        f"{folder}/here/market/shop.py; rename one of them"
    ]


@pytest.mark.parametrize("end", ["", "raise ValueError\n"])
def test_it_is_known_which_file_is_being_imported_and_until_when(folder, end):
    text = "from talka.engine.loader import being_imported\nseen = set(being_imported)\n"
    path = written(folder / "shop.py", SHOP + text + end)

    if end:
        assert problems_in("shop.py")[0].startswith("shop.py:8: raised ValueError")
    else:
        load_file(Path("shop.py"))

    assert sys.modules["talka_file_shop"].seen == {str(path)}
    assert being_imported == set()


# What is wrong with it


def test_a_syntax_error_is_said_with_its_line(folder):
    written(folder / "shop.py", "x = 1\ny = (\n")

    assert problems_in("shop.py") == ["shop.py:2: syntax error: '(' was never closed"]


def test_a_syntax_error_only_the_compiler_sees_is_said_with_its_line(folder):
    written(folder / "shop.py", "x = 1\nreturn x\n")

    assert problems_in("shop.py") == ["shop.py:2: syntax error: 'return' outside function"]


def test_a_syntax_error_of_a_neighbour_is_said_with_its_own_file(folder):
    written(folder / "broken_neighbour.py", "x = 1\n\ny y\n")
    written(folder / "shop.py", "import broken_neighbour\n")

    assert problems_in("shop.py") == [f"{folder}/broken_neighbour.py:3: syntax error: invalid syntax"]


def test_an_exception_is_said_with_the_line_of_the_users_file(folder):
    written(folder / "failing_neighbour.py", "def fail():\n    return {}['missing']\n")
    written(folder / "shop.py", "import failing_neighbour\n\n\ndef outer():\n    failing_neighbour.fail()\n\nouter()\n")

    assert problems_in("shop.py") == ["shop.py:5: raised KeyError: 'missing' when it was imported"]


def test_a_module_that_is_missing_is_said_with_the_line(folder):
    written(folder / "shop.py", "\nimport surely_not_installed\n")

    assert problems_in("shop.py") == [
        "shop.py:2: raised ModuleNotFoundError: No module named 'surely_not_installed' when it was imported"
    ]


def test_an_exception_in_the_package_is_said_without_a_line_of_the_file(folder):
    written(folder / "market" / "__init__.py", "raise RuntimeError")
    written(folder / "market" / "shop.py")

    assert problems_in("market/shop.py") == ["market/shop.py: raised RuntimeError when it was imported"]


@pytest.mark.parametrize(("code", "text"), [("", "SystemExit"), ("3", "SystemExit: 3")])
def test_a_file_that_exits_is_an_error_like_any_other(folder, code, text):
    written(folder / "shop.py", f"import sys\nsys.exit({code})\n")

    assert problems_in("shop.py") == [f"shop.py:2: raised {text} when it was imported"]


def test_ctrl_c_is_not_caught(folder):
    written(folder / "shop.py", "raise KeyboardInterrupt\n")

    with pytest.raises(KeyboardInterrupt):
        load_file(Path("shop.py"))


def test_a_bad_load_shape_is_said_with_its_line(folder):
    written(folder / "shop.py", SHOP + "    from talka import ConstantVUs\n    load = ConstantVUs(0, '1m')\n")

    assert problems_in("shop.py")[0].startswith("shop.py:7: raised BadShape: ConstantVUs: vus = 0 ")


def test_problems_of_workflows_have_the_lines_of_attributes_and_methods(folder):
    written(
        folder / "shop.py",
        """\
        from talka import HTTPResponse, Use, Workflow, depends, state, step

        @depends("Seed")
        class Shop(Workflow):
            vus, spare = 1, 2
            priority = high = "urgent"
            timeout: str = "soon"
            spare.__class__: type
            thresholds: list[str]
            "a docstring"

            @step()
            def login(self) -> HTTPResponse: ...

            @state("Shop")
            def seeded(self, x) -> Use[str]: ...

        def helper(): ...
        """,
    )

    lines = [problem.split(": ")[0] for problem in problems_in("shop.py")]

    assert sorted(lines) == ["shop.py:12", "shop.py:15", "shop.py:15", "shop.py:4", "shop.py:6", "shop.py:7"]


def test_two_classes_of_one_name_are_said_with_the_line_of_the_second_and_with_other_problems(folder):
    written(folder / "shop.py", SHOP + "\n" + SHOP + "    timeout = 'soon'\n")

    first, second = problems_in("shop.py")
    assert first == "shop.py:9: there are two classes named Shop"
    assert second.startswith('shop.py:12: Shop: timeout = "soon" is not a duration')


def test_two_classes_of_one_name_are_an_error_though_the_last_one_is_fine(folder):
    written(folder / "shop.py", SHOP + "\nclass Shop(Shop): ...\nclass Other(Shop): ...\n")

    assert problems_in("shop.py") == ["shop.py:7: there are two classes named Shop"]


def test_problems_of_a_base_class_in_another_file_are_said_with_that_file(folder):
    common = written(folder / "common_to_shops.py", SHOP.replace("async def", "def"))
    written(folder / "shop.py", "from common_to_shops import Shop\n\nclass Mine(Shop): ...\n")

    assert problems_in("shop.py") == [f"{common}:4: Mine.login must be an async method: write async def"]


def test_a_method_in_the_place_of_a_setting_is_said_with_its_line(folder):
    written(folder / "shop.py", SHOP + "\n    def load(self): ...\n")

    assert problems_in("shop.py")[0].startswith("shop.py:7: Shop: load = <function Shop.load at ")


# Which classes are workflows


@pytest.mark.parametrize(
    "text",
    [
        "",
        "from talka import Workflow\n",
        SHOP + "    abstract = True\n",
        SHOP + "\nclass Helper: ...\n\ndel Shop\n",
    ],
)
def test_a_file_without_workflows_is_an_error(folder, text):
    written(folder / "shop.py", text)

    assert problems_in("shop.py") == ["shop.py: has no workflows: write a class that inherits from talka.Workflow"]


def test_workflows_that_were_imported_or_are_abstract_are_not_run(folder):
    written(folder / "common_shop.py")
    written(
        folder / "shop.py",
        """\
        from common_shop import Shop
        from talka import Workflow

        class Base(Shop):
            abstract = True

        class Mine(Base): ...

        class Yours(Shop):
            abstract = False

        class Helper: ...
        """,
    )

    assert names_in("shop.py") == ["Mine", "Yours"]


def test_a_class_with_two_names_is_one_workflow(folder):
    written(folder / "shop.py", SHOP + "\nMarket = Shop\n")

    assert names_in("shop.py") == ["Shop"]


def test_a_step_called_abstract_does_not_make_the_class_abstract(folder):
    written(folder / "shop.py", SHOP.replace("login", "abstract"))

    assert problems_in("shop.py") == ["shop.py:4: Shop.abstract has a name Talka keeps for itself: choose another"]


# Sources


def test_a_file_source_is_the_file(folder):
    written(folder / "shop.py")

    assert [spec.name for spec in load(FileSource("shop.py"))] == ["Shop"]


def test_a_url_source_is_one_get_of_the_url():
    (spec,) = load(UrlSource("http://shop/"))

    assert (spec.name, spec.shape) == ("Url", ConstantRate("50/s", "10s"))
    assert [(node.name, node.measured, node.optimized) for node in spec.nodes] == [
        ("get", True, {"url": ("url", "http://shop/")})
    ]


def test_a_url_source_asks_what_its_request_says():
    request = UrlRequest("PATCH", {"a": "b"}, b"[1]", verify=False, timeout_ns=5 * SECOND)

    (spec,) = load(UrlSource("http://shop/", request))

    assert spec.workflow.verify is False
    assert [(node.name, node.measured, node.optimized) for node in spec.nodes] == [
        ("patch", True, {"url": ("url", "http://shop/"), "headers": ("headers", {"a": "b"}), "data": ("data", b"[1]")})
    ]
    assert driver_for(spec).driver == "direct"


def test_a_method_the_client_does_not_have_is_refused():
    with pytest.raises(Invalid, match="the client has no method 'BREW'"):
        load(UrlSource("http://shop/", UrlRequest("BREW")))


async def test_the_workflow_of_a_url_asks_the_client_for_it():
    class Http:
        async def get(self, url):
            return HTTPResponse("GET", url, 200, [], b"")

    class Clients:
        http = Http()

    workflow = url_workflow("http://shop/")()
    workflow.client = Clients()

    assert (await workflow.get("http://shop/prepared")).url == "http://shop/prepared"


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
async def test_the_workflow_of_a_request_asks_the_client_for_all_it_says(method: str) -> None:
    class Http:
        def __getattr__(self, name: str) -> Any:
            async def ask(url: str, **more: Any) -> tuple[str, str, dict[str, Any]]:
                return name, url, more

            return ask

    class Clients:
        http = Http()

    workflow = url_workflow("http://shop/", UrlRequest(method, {"a": "b"}, b"[1]", timeout_ns=5 * SECOND))()
    workflow.client = cast(Any, Clients())

    said = {"headers": {"a": "c"}, "data": b"[2]"}
    answer = await getattr(workflow, method.lower())("http://shop/prepared", **said)

    assert answer == (method.lower(), "http://shop/prepared", {**said, "timeout": 5.0})


def test_a_memory_source_is_the_classes_under_its_key():
    class Shop(Workflow):
        @step()
        async def login(self) -> HTTPResponse: ...

    in_memory["a key"] = (Shop,)
    try:
        (spec,) = load(MemorySource("a key"))
    finally:
        del in_memory["a key"]

    assert spec.workflow is Shop


# Choosing among them


def chain():
    """Report waits for Shop, which waits for Seed; Other is alone."""

    def made(name, *after):
        async def run(self) -> HTTPResponse: ...

        return type(name, (Workflow,), {"run": step()(run), "depends_on": after})

    return inspect_workflows([made("Other"), made("Report", "Shop", "Seed"), made("Shop", "Seed"), made("Seed")])


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ([], ["Other", "Seed", "Shop", "Report"]),
        (["Other"], ["Other"]),
        (["Shop"], ["Seed", "Shop"]),
        (["Report", "Seed"], ["Seed", "Shop", "Report"]),
    ],
)
def test_the_named_workflows_are_chosen_with_all_they_depend_on(names, chosen):
    assert [spec.name for spec in select(chain(), names, "shop.py")] == chosen


def test_what_runs_once_for_a_job_is_chosen_with_its_class():
    class Shop(Workflow):
        @setup(once=True)
        def account(self): ...

        @step()
        async def run(self) -> HTTPResponse: ...

        @teardown(once=True)
        def close(self): ...

    class Other(Workflow):
        @step()
        async def run(self) -> HTTPResponse: ...

    specs = inspect_workflows([Shop, Other])
    assert [spec.name for spec in select(specs, ["Shop"], "shop.py")] == ["Shop.setup", "Shop", "Shop.teardown"]
    assert [spec.name for spec in select(specs, ["Other"], "shop.py")] == ["Other"]


def test_a_workflow_that_is_not_there_is_an_error_with_a_suggestion():
    with pytest.raises(NoSuchFile) as caught:
        select(chain(), ["Shp"], "shop.py")

    assert str(caught.value) == (
        "shop.py: the workflow Shp is asked for, but there is no such workflow (did you mean Shop?)"
    )


def test_depends_without_parentheses_is_an_error_and_not_a_vanished_class(folder):
    path = written(folder / "shop.py", SHOP + "\nimport talka\n\n@talka.depends\nclass Late(Shop): ...\n")

    assert problems_in(path) == [f"{path}:9: @depends of Late names no workflow: write @depends(Other)"]
