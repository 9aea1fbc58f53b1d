"""Which workflows are driven without Tasks, by what reading their code tells."""

import asyncio
import contextvars
import json
import threading
from asyncio import sleep
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import choice as drawn
from typing import Any

import pytest

from talka.cli.demo.workflow import Customer
from talka.engine.load import native
from talka.engine.load.direct import Choice, Doubt, Look, driver_for, engine_for, is_users_own
from talka.engine.loader import load, url_workflow
from talka.wire.shards import FileSource
from talka.work.arguments import URL
from talka.work.dsl import Workflow, action, check, metric, on_start, on_stop, step
from talka.work.inspection import inspect_workflows
from talka.work.responses import CustomResponse, HTTPResponse

HERE = "http://127.0.0.1:1/"
NAMES = contextvars.ContextVar("NAMES", default="nobody")
LOCK = threading.Lock()


def choice_of(workflow: type[Workflow]) -> Choice:
    [spec] = inspect_workflows([workflow])
    return driver_for(spec)


def with_step(function: Callable[..., Awaitable[Any]], **more: Any) -> Choice:
    """What is chosen for a workflow whose only step is this one."""
    function.__annotations__["return"] = HTTPResponse
    return choice_of(type("Users", (Workflow,), {"go": step()(function), **more}))


@dataclass
class Row:
    number: int

    def text(self) -> str:
        return json.dumps(self.number)


class Loader:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()


async def fetch(users: Workflow, url: str) -> HTTPResponse:
    return await users.client.http.get(url)


async def fetch_twice(users: Workflow, url: str) -> HTTPResponse:
    await fetch(users, url)
    return await fetch(users=users, url=url)


async def fetch_by_client(http: Any) -> HTTPResponse:
    answer: HTTPResponse = await http.get(HERE)
    return answer


async def rest() -> None:
    await sleep(0)


def noted(row: Row) -> str:
    return row.text()


def whose_task() -> Any:
    return asyncio.current_task()


def itself(number: int) -> int:
    return 0 if number == 0 else itself(number - 1)


class Plain:
    """Steps the direct driver can run."""

    async def one_call(self: Any, url: URL = HERE) -> Any:
        return await self.client.http.get(url)

    async def several_calls(self: Any) -> Any:
        first = await self.client.http.post(HERE, json={"number": 1})
        assert first.status == 200, first.text
        for number in range(3):
            await self.client.http.put(HERE, data=str(number))
        return (await self.client.http.delete(HERE)) if first.json() else await self.client.http.head(HERE)

    async def a_call_kept_under_a_name(self: Any) -> Any:
        call = self.client.http.get(HERE)
        return await call

    async def a_client_kept_under_a_name(self: Any) -> Any:
        http = self.client.http
        get = http.get
        await http.options(HERE)
        return await get(HERE)

    async def one_call_or_another(self: Any) -> Any:
        return await (self.client.http.get(HERE) if drawn([0, 1]) else self.client.http.patch(HERE))

    async def a_helper_of_the_module(self: Any) -> Any:
        noted(Row(itself(3)))
        return await fetch_twice(self, HERE)

    async def a_helper_that_takes_the_client(self: Any) -> Any:
        return await fetch_by_client(self.client.http)

    async def a_call_within_try(self: Any) -> Any:
        try:
            answer = await self.client.http.get(HERE)
        except ValueError as error:
            raise AssertionError("no answer") from error
        else:
            return answer

    async def a_nested_plain_function(self: Any) -> Any:
        def address(number: int) -> str:
            return HERE + str(number)

        answers = [len(address(number)) for number in range(3)]
        return await self.client.http.get(address(max(answers, key=lambda number: -number)))


class Other:
    """Steps it cannot run, or cannot be known to run."""

    async def asyncio_sleep(self: Any) -> Any:
        await asyncio.sleep(0)  # awaits asyncio.sleep(0)

    async def sleep_by_its_own_name(self: Any) -> Any:
        await sleep(0)  # awaits sleep(0)

    async def a_helper_that_sleeps(self: Any) -> Any:
        await rest()
        return await self.client.http.get(HERE)

    async def gather(self: Any) -> Any:
        return await asyncio.gather(self.client.http.get(HERE), self.client.http.get(HERE))  # awaits asyncio.gather(

    async def a_timeout(self: Any) -> Any:
        async with asyncio.timeout(1):  # uses async with
            return await self.client.http.get(HERE)

    async def an_import_inside(self: Any) -> Any:
        import trio  # type: ignore[import-not-found]  # uses trio

        return await trio.lowlevel.checkpoint()

    async def a_context_variable(self: Any) -> Any:
        NAMES.get()  # uses contextvars
        return await self.client.http.get(HERE)

    async def a_lock(self: Any) -> Any:
        with LOCK:  # uses thread
            return await self.client.http.get(HERE)

    async def a_helper_that_asks_for_its_task(self: Any) -> Any:
        whose_task()
        return await self.client.http.get(HERE)

    async def a_helper_that_is_handed_on(self: Any) -> Any:
        list(map(lambda call: call(), [whose_task]))
        return await self.client.http.get(HERE)

    async def a_class_that_asks_for_its_loop(self: Any) -> Any:
        Loader()
        return await self.client.http.get(HERE)

    async def something_of_its_own(self: Any) -> Any:
        return await self.database.fetch(HERE)  # awaits self.database.fetch(HERE)

    async def a_name_for_two_things(self: Any) -> Any:
        call = self.client.http.get(HERE)
        if not HERE:
            call = self.database.fetch(HERE)
        return await call  # awaits call

    async def the_custom_client(self: Any) -> Any:
        return await self.client.custom.call(rest())  # awaits self.client.custom.call

    async def an_async_comprehension(self: Any) -> Any:
        return [row async for row in self.rows()]  # uses an asynchronous comprehension

    async def an_async_for(self: Any) -> Any:
        async for _ in self.rows():  # uses async for
            return await self.client.http.get(HERE)

    async def an_async_function_inside(self: Any) -> Any:
        async def inner() -> None:  # defines inner
            await asyncio.sleep(0)

        return await inner()

    async def another_client(self: Any) -> Any:
        self.client.http = Loader()  # changes self.client.http
        return await self.client.http.get(HERE)

    async def whatever_a_text_says(self: Any) -> Any:
        return await eval("rest()")  # awaits eval(

    async def a_helper_with_unknown_arguments(self: Any) -> Any:
        return await fetch(*[self, HERE])

    async def a_method_of_another_object(self: Any, other: Any = None) -> Any:
        return await other.client.http.get(HERE)  # awaits other.client.http.get(HERE)


def steps_of(home: type) -> list[Any]:
    return [pytest.param(value, id=name) for name, value in vars(home).items() if not name.startswith("__")]


@pytest.mark.parametrize("function", steps_of(Plain))
def test_steps_that_await_only_the_http_client_are_driven_directly(function: Any) -> None:
    choice = with_step(function)
    assert (choice.driver, choice.keeps_last) == ("direct", frozenset()), choice.reason


@pytest.mark.parametrize("function", steps_of(Other))
def test_steps_that_may_await_anything_else_run_as_tasks_and_the_line_is_named(function: Any) -> None:
    choice = with_step(function)
    assert choice.driver == "task"
    lines = Path(__file__).read_text().splitlines()
    line = int(choice.reason.rpartition(":")[2].rstrip(")"))
    said = lines[line - 1].partition("  # ")[2].rpartition("  # ")[2] or lines[line - 1].partition("  # ")[2]
    assert f"(test_direct.py:{line})" in choice.reason
    assert said in choice.reason


def test_the_workflows_that_talka_brings_are_driven_directly() -> None:
    assert choice_of(url_workflow(HERE)).driver == "direct"
    assert choice_of(Customer).driver == "direct"


class LibraryMethods:
    """Methods that were made by a program: nobody can read them."""

    shake = eval("lambda self: None")


class Base(Workflow):
    abstract = True

    @step()
    async def login(self, url: URL = HERE) -> HTTPResponse:
        return await self.client.http.post(url)


class Inheriting(Base):
    @step()
    async def login(self, url: URL = HERE) -> HTTPResponse:
        await super().login(url)
        return await self.__again(url)

    async def __again(self, url: str) -> HTTPResponse:
        return await self.client.http.get(url + self.token)

    @property
    def token(self) -> str:
        return "?" + self.made(3)

    @staticmethod
    def made(length: int) -> str:
        return "x" * length


def test_methods_properties_and_super_are_followed() -> None:
    assert choice_of(Inheriting).driver == "direct"

    class Waiting(Inheriting):
        @property
        def token(self) -> str:
            return str(asyncio.get_running_loop())

    assert "uses asyncio" in choice_of(Waiting).reason


def test_a_step_that_is_asked_for_by_name_keeps_its_last_response() -> None:
    class Asking(Base):
        @step("login")
        async def look(self, url: URL = HERE) -> HTTPResponse:
            return await self.client.http.get(url, headers={"token": self.login.response.text})

    assert choice_of(Asking).keeps_last == {"login"}


def test_every_step_keeps_its_last_response_when_the_workflow_itself_is_handed_on() -> None:
    class Handing(Base):
        @action("login")
        def note(self) -> None:
            repr(self)

    class Reflecting(Base):
        @action("login")
        def note(self) -> None:
            getattr(self, "lo" + "gin")

    assert choice_of(Handing).keeps_last == {"login"}
    assert choice_of(Reflecting).keeps_last == {"login"}
    assert choice_of(Handing).driver == "direct"


def test_steps_are_kept_for_what_only_the_constructor_mentions() -> None:
    class Prepared(Base):
        def __init__(self) -> None:
            super().__init__()
            self.token = lambda: self.login.response.text

        @step("login")
        async def look(self, url: URL = HERE) -> HTTPResponse:
            return await self.client.http.get(url, headers={"token": self.token()})

    class Handing(Base):
        def __init__(self) -> None:
            super().__init__()
            self.rows = [self]

    class Harmless(Base):
        def __init__(self) -> None:
            super().__init__()
            self.rows = [1, 2]

    assert choice_of(Prepared).keeps_last == {"login"}
    assert choice_of(Handing).keeps_last == {"login"}
    assert choice_of(Harmless).keeps_last == frozenset()


class Unchanging:
    """Steps that leave nothing on their user: a fresh one need not be another object."""

    async def calls_in_a_loop(self: Any) -> Any:
        for number in range(3):
            if number != 1:
                await self.client.http.get(HERE, name="page")
        await self.pause("1s", "3s")
        self.metric("pages", 3)
        return self.client.http.get(HERE)

    async def a_pause_under_another_name(self: Any) -> Any:
        rest = self.pause
        waiting = rest("1s") if self.context else self.pause("2s")
        await waiting
        return await self.client.http.get(HERE)

    async def what_is_shared_anyway(self: Any) -> Any:
        self.context["seen"] = next(self.rows)
        return await self.client.http.get(HERE)


class Changing:
    """Steps that may."""

    async def an_attribute(self: Any) -> Any:
        self.token = (await self.client.http.get(HERE)).text

    async def a_sum(self: Any) -> Any:
        self.rounds += 1
        return await self.client.http.get(HERE)

    async def one_that_goes(self: Any) -> Any:
        del self.token
        return await self.client.http.get(HERE)

    async def another_name_for_it(self: Any) -> Any:
        me = self
        me.token = 1
        return await self.client.http.get(HERE)

    async def a_helper_that_does(self: Any) -> Any:
        note(self)
        return await self.client.http.get(HERE)

    async def somebody_elses_function(self: Any) -> Any:
        json.dumps(self, default=lambda what: what.__dict__)
        return await self.client.http.get(HERE)

    async def its_dictionary(self: Any) -> Any:
        vars(self)["token"] = 1
        return await self.client.http.get(HERE)

    async def its_own_step(self: Any) -> Any:
        self.go.last = None
        return await self.client.http.get(HERE)


def note(users: Any) -> None:
    users.token = 1


@pytest.mark.parametrize("function", steps_of(Unchanging))
def test_users_whose_code_leaves_nothing_on_them_need_no_new_object(function: Any) -> None:
    choice = with_step(function)
    assert (choice.driver, choice.changes_users, choice.keeps_last) == ("direct", False, frozenset()), choice.reason


@pytest.mark.parametrize("function", steps_of(Changing))
def test_users_whose_code_may_leave_something_on_them_need_a_new_object(function: Any) -> None:
    choice = with_step(function)
    assert (choice.driver, choice.changes_users) == ("direct", True), choice.reason


def test_users_whose_class_makes_them_in_its_own_way_need_a_new_object() -> None:
    class Numbered(Base):
        def __init__(self) -> None:
            super().__init__()
            self.number = drawn([1, 2])

    class Remembering(Base):
        @cached_property
        def number(self) -> int:
            return drawn([1, 2])

        @step("login")
        async def look(self, url: URL = HERE) -> HTTPResponse:
            return await self.client.http.get(url, params={"number": self.number})

    class Mixed(LibraryMethods, Base):
        @step("login")
        async def look(self, url: URL = HERE) -> HTTPResponse:
            self.shake()
            return await self.client.http.get(url)

    assert choice_of(type("Plain", (Base,), {})).changes_users is False
    assert choice_of(Numbered).changes_users
    assert choice_of(Remembering).changes_users
    assert choice_of(Mixed).changes_users


def test_methods_at_the_begin_and_the_end_of_a_user_are_read_too() -> None:
    class Waiting(Base):
        @on_start()
        async def begin(self) -> None:
            await sleep(1)

    class Ending(Base):
        @on_stop()
        async def end(self) -> None:
            await sleep(1)

    class Fine(Base):
        @on_start()
        async def begin(self) -> None:
            await self.pause("1s")

        @on_stop()
        async def end(self) -> None:
            await self.client.http.get(HERE)

    assert "begin awaits sleep(1)" in choice_of(Waiting).reason
    assert "end awaits sleep(1)" in choice_of(Ending).reason
    assert choice_of(Fine).driver == "direct"


def test_a_pause_of_the_tests_own_is_read_as_what_it_is() -> None:
    class Resting(Base):
        abstract = True

        async def pause(self, low: Any, high: Any = None) -> None:
            await sleep(1)

    async def go(self: Any) -> Any:
        await self.pause("1s")
        return await self.client.http.get(HERE)

    go.__annotations__["return"] = HTTPResponse
    workflow = type("Own", (Workflow,), {"go": step()(go)})
    look = Look(type("Own", (Resting,), {}), frozenset())
    with pytest.raises(Doubt, match=r"pause awaits sleep\(1\)"):
        look.at_function(workflow.go.function, ["workflow"], {})


class Beside(Workflow):
    @step()
    async def first(self, url: URL = HERE) -> HTTPResponse:
        return await self.client.http.get(url)

    @check()
    def is_fine(self, first: HTTPResponse) -> bool:
        return first.status == 200

    @metric("count")
    def size(self, first: HTTPResponse) -> int:
        return len(first.body)

    @step("first")
    async def second(self, url: URL = HERE) -> HTTPResponse:
        return await self.client.http.get(url)


def test_methods_that_wait_for_nothing_may_stand_beside_one_that_does() -> None:
    assert choice_of(Beside).driver == "direct"

    class Both(Beside):
        @step("first")
        async def third(self, url: URL = HERE) -> HTTPResponse:
            return await self.client.http.get(url)

    assert choice_of(Both) == Choice("task", "second and third run at the same time", frozenset(Both_steps))


Both_steps = ("first", "second", "third")


def test_code_whose_source_is_gone_runs_as_tasks() -> None:
    home: dict[str, Any] = {}
    exec("async def go(self):\n    return await self.client.http.get('/')", home)
    assert with_step(home["go"]).reason == "the source of go cannot be read"


def test_a_workflow_with_a_client_of_its_own_runs_as_tasks() -> None:
    assert "has its own client" in with_step(Plain.one_call, client=property(lambda self: None)).reason


def test_a_method_that_only_returns_an_awaitable_runs_as_a_task() -> None:
    def go(self: Any) -> Any:
        return self.client.http.get(HERE)

    class Users(Workflow):
        @step()
        async def call(self) -> CustomResponse[None]:
            return await self.client.custom.call(go(self))

    assert choice_of(Users).driver == "task"


def test_a_workflow_may_ask_for_its_driver() -> None:
    assert with_step(Plain.one_call, driver="task") == Choice("task", "the workflow asks for it", frozenset({"go"}))
    assert with_step(Other.asyncio_sleep, driver="direct").driver == "direct"


def test_people_are_told_what_would_run_a_workflow_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    class Direct(Workflow):
        @step()
        async def go(self, url: URL = HERE) -> HTTPResponse:
            return await self.client.http.get(url)

    class Tasks(Direct):
        driver = "task"

    direct, tasks = (inspect_workflows([workflow])[0] for workflow in (Direct, Tasks))
    monkeypatch.setattr(native, "available", lambda: None)
    assert engine_for(direct, "python") == ("python", "")
    for setting in ("auto", "native"):
        assert engine_for(direct, setting) == ("native, direct driver", driver_for(direct).reason)
        assert engine_for(tasks, setting) == ("native, tasks", "the workflow asks for it")
    monkeypatch.setattr(native, "available", lambda: "it needs Linux")
    assert engine_for(direct, "auto") == ("python", "there is no native engine here, it needs Linux")
    assert engine_for(direct, "python") == ("python", "")


def test_what_runs_at_the_same_time_runs_as_tasks_whatever_is_asked_for() -> None:
    class Both(Beside):
        driver = "direct"

        @step("first")
        async def third(self, url: URL = HERE) -> HTTPResponse:
            return await self.client.http.get(url)

    assert choice_of(Both).driver == "task"


def test_helpers_in_other_files_of_the_users_are_read(tmp_path: Path) -> None:
    (tmp_path / "helping_direct.py").write_text("import asyncio\n\ndef token():\n    return asyncio.current_task()\n")
    file = tmp_path / "shop_direct.py"
    file.write_text(
        "from helping_direct import token\nfrom talka import HTTPResponse, URL, Workflow, step\n\n"
        "class Shop(Workflow):\n    @step()\n    async def go(self, url: URL = 'http://x/') -> HTTPResponse:\n"
        "        token()\n        return await self.client.http.get(url)\n"
    )
    [spec] = load(FileSource(str(file)))
    assert driver_for(spec).reason == "token uses asyncio (helping_direct.py:4)"


def test_files_of_python_of_packages_and_of_programs_are_not_the_users_own() -> None:
    assert is_users_own(__file__)
    assert not is_users_own(json.__file__)
    assert not is_users_own(pytest.__file__)
    assert not is_users_own("<string>")
