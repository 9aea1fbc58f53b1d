"""Optimized arguments are prepared once, relative to the test file, or everything wrong with them is said."""

from pathlib import Path

import pytest

from talka.engine.clients.requests import (
    Form,
    PreparedAuth,
    PreparedCookies,
    PreparedData,
    PreparedFile,
    PreparedHeaders,
    PreparedParams,
)
from talka.engine.clients.urls import PreparedURL
from talka.engine.load.prepare import prepare, prepared
from talka.work.arguments import URL, Auth, Cookies, Data, Directory, File, FileGlob, Headers, Params
from talka.work.dsl import Workflow, step
from talka.work.inspection import inspect_workflows
from talka.work.responses import HTTPResponse
from talka.work.specs import BadWorkflows

FORM = Form({"name": "Ada"})


@pytest.fixture
def folder(tmp_path):
    """A test file's folder with some files to send."""
    (tmp_path / "bodies" / "deeper").mkdir(parents=True)
    for name in ("b.json", "a.json", "c.txt", "deeper/d.json"):
        (tmp_path / "bodies" / name).write_text(name)
    (tmp_path / "empty").mkdir()
    return tmp_path


def spec_of(workflow, file=None):
    (spec,) = inspect_workflows([workflow], file=file)
    return spec


def arguments_of(workflow, folder, **limits):
    return prepare(spec_of(workflow, str(folder / "shop.py")), **limits)


def problem_of(kind, value, folder, **limits):
    """What is wrong with this default."""

    async def order(self, given=value) -> HTTPResponse: ...

    order.__annotations__["given"] = kind
    workflow = type("Shop", (Workflow,), {"order": step()(order), "__module__": __name__})
    with pytest.raises(BadWorkflows) as caught:
        arguments_of(workflow, folder, **limits)
    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == (str(folder / "shop.py"), order.__code__.co_firstlineno)
    start = "Shop.order, given: "
    assert problem.text.startswith(start)
    return problem.text.removeprefix(start)


class Shop(Workflow):
    @step()
    async def login(
        self,
        url: URL = "http://shop/login",
        headers: Headers = {"accept": "text/html"},
        data: Data = {"name": "Ada"},
        params: Params = {"page": 2},
        cookies: Cookies = {"a": "b"},
        auth: Auth = ("u", "p"),
        bearer: Auth = "token",
        form: Data = FORM,
    ) -> HTTPResponse: ...

    @step("login")
    async def order(
        self,
        url: URL = "http://shop/order",
        file: File = "bodies/c.txt",
        files: Directory = "bodies",
        found: FileGlob = "bodies/*.json",
        maybe: URL | None = None,
    ) -> HTTPResponse: ...

    @step("order")
    async def leave(self) -> HTTPResponse: ...


def test_every_kind_is_prepared_for_its_node(folder):
    arguments = arguments_of(Shop, folder)

    assert list(arguments) == ["login", "order"]
    login = arguments["login"]
    assert {name: type(value) for name, value in login.items()} == {
        "url": PreparedURL,
        "headers": PreparedHeaders,
        "data": PreparedData,
        "params": PreparedParams,
        "cookies": PreparedCookies,
        "auth": PreparedAuth,
        "bearer": PreparedAuth,
        "form": PreparedData,
    }
    assert (login["url"], login["url"].host) == ("http://shop/login", "shop")
    assert login["headers"] == {"accept": "text/html"}
    assert (login["data"].body, login["data"].content_type) == (b'{"name":"Ada"}', "application/json")
    assert login["params"].encoded == "page=2"
    assert login["cookies"].encoded == b"a=b"
    assert login["auth"].encoded == b"Basic dTpw"
    assert login["bearer"].encoded == b"Bearer token"
    assert login["form"].body == b"name=Ada"


def test_files_are_found_beside_the_test_file_and_read(folder):
    order = arguments_of(Shop, folder)["order"]

    assert isinstance(order["file"], PreparedFile)
    assert (order["file"], order["file"].content) == (str(folder / "bodies" / "c.txt"), b"c.txt")
    assert order["file"].content_type == "text/plain"
    assert [file.content for file in order["files"]] == [b"a.json", b"b.json", b"c.txt"]
    assert [Path(file).name for file in order["found"]] == ["a.json", "b.json"]


def test_an_argument_that_may_be_none_stays_none(folder):
    assert arguments_of(Shop, folder)["order"]["maybe"] is None


def test_a_test_file_given_by_a_relative_path_is_found_from_the_current_folder(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)

    order = prepare(spec_of(Shop, f"{folder.name}/shop.py"))["order"]

    assert order["file"] == str(folder / "bodies" / "c.txt")


def test_classes_without_a_file_find_theirs_in_the_current_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)

    assert prepare(spec_of(Shop))["order"]["file"].content == b"c.txt"


def test_a_workflow_without_optimized_arguments_has_nothing_to_prepare():
    class Plain(Workflow):
        @step()
        async def login(self, count: int = 3) -> HTTPResponse: ...

    assert prepare(spec_of(Plain)) == {}


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("bodies/**/*.json", ["a.json", "b.json", "d.json"]),
        ("../{folder}/bodies/c.*", ["c.txt"]),
        ("{path}/bodies/*.json", ["a.json", "b.json"]),
    ],
)
def test_a_pattern_may_go_deeper_or_elsewhere_or_be_absolute(folder, pattern, names):
    pattern = pattern.format(folder=folder.name, path=folder)

    assert sorted(Path(file).name for file in prepared("glob", pattern, folder)) == names


def test_a_pattern_is_found_though_the_folder_itself_looks_like_one(folder):
    odd = folder / "[odd]"
    odd.mkdir()
    (odd / "x.json").write_text("x")

    assert [file.content for file in prepared("glob", "*.json", odd)] == [b"x"]


@pytest.mark.parametrize("kind", ["file", "directory", "glob"])
def test_a_path_may_be_a_path_object_and_absolute(folder, kind):
    path = folder / "bodies" if kind == "directory" else folder / "bodies" / "c.txt"

    found = prepared(kind, path, Path("/nowhere"))

    assert b"c.txt" in [file.content for file in ([found] if kind == "file" else found)]


# What is wrong


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        (URL, "shop/login", "URL 'shop/login' has no scheme; begin it with http:// or https://"),
        (URL, 5, "URL 5 is not a text"),
        (Headers, ["accept"], "headers must be a mapping of names to values, not list"),
        (Headers, {"a b": "c"}, "header name 'a b' is not a token"),
        (Data, object(), "data of type object has no known form as a body"),
        (Params, 5, "params must be a mapping of names to values, not int"),
        (Cookies, {"a": "b;c"}, "cookie 'a' has a space, comma, semicolon or control character"),
        (Auth, 5, "auth must be (user, password) or a text, not int"),
        (File, 5, "5 is not a path"),
        (Directory, ["a"], "['a'] is not a path"),
        (FileGlob, b"*", "b'*' is not a path"),
        (File, "missing.json", "there is no file {folder}/missing.json"),
        (File, "bodies", "there is no file {folder}/bodies"),
        (File, "a\0b", "there is no file {folder}/a\0b"),
        (Directory, "missing", "there is no folder {folder}/missing"),
        (Directory, "bodies/c.txt", "there is no folder {folder}/bodies/c.txt"),
        (Directory, "empty", "the folder {folder}/empty has no files"),
        (FileGlob, "*.xml", "no file matches *.xml in {folder}"),
        (FileGlob, "/surely/not/there/*.xml", "no file matches /surely/not/there/*.xml in /"),
        (FileGlob, "", "no file matches . in {folder}"),
        (FileGlob, "x**/*.json", "no file matches x**/*.json in {folder}"),
    ],
)
def test_a_default_that_cannot_be_prepared_is_a_problem_with_file_and_line(folder, kind, value, problem):
    assert problem_of(kind, value, folder).startswith(problem.format(folder=folder))


def test_a_folder_that_cannot_be_read_is_a_problem(folder, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)

    assert problem_of(Directory, "bodies", folder) == (
        f"the folder {folder}/bodies has no files: [Errno 13] Permission denied"
    )


def test_a_file_that_cannot_be_read_is_a_problem(folder, monkeypatch):
    def refuse(path, mode):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)

    assert "cannot be read" in problem_of(File, "bodies/c.txt", folder)


@pytest.mark.parametrize(("kind", "value"), [(File, "bodies/a.json"), (Directory, "bodies"), (FileGlob, "bodies/a*")])
def test_files_that_would_fill_memory_are_a_problem(folder, kind, value):
    problem = problem_of(kind, value, folder, files_limit_bytes=5)

    total = 17 if kind is Directory else 6
    assert problem == f"these files have {total} bytes together: at most 5 are held in memory"


def test_files_up_to_the_limit_are_read(folder):
    assert len(prepared("directory", "bodies", folder, files_limit_bytes=17)) == 3


def test_all_that_is_wrong_is_said_at_once(folder):
    class Wrong(Workflow):
        @step()
        async def login(self, url: URL = "shop", headers: Headers = {"a b": "c"}) -> HTTPResponse: ...

        @step()
        async def order(self, file: File = "missing", fine: URL = "http://shop/") -> HTTPResponse: ...

    with pytest.raises(BadWorkflows) as caught:
        arguments_of(Wrong, folder)

    lines = [Wrong.login.line, Wrong.login.line, Wrong.order.line]
    names = ["Wrong.login, url", "Wrong.login, headers", "Wrong.order, file"]
    assert [problem.line for problem in caught.value.problems] == lines
    assert [problem.text.split(":")[0] for problem in caught.value.problems] == names


def test_a_problem_of_an_inherited_step_is_said_with_the_file_it_is_written_in(folder):
    class Base(Workflow):
        @step()
        async def login(self, url: URL = "shop") -> HTTPResponse: ...

    mine = type("Mine", (Base,), {"__module__": "shop"})

    with pytest.raises(BadWorkflows) as caught:
        arguments_of(mine, folder)

    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == (Base.login.function.__code__.co_filename, Base.login.line)
