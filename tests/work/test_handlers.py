"""Handlers as users declare them, and what is said of those that cannot be."""

import functools
from types import ModuleType
from typing import Any

import pytest

from talka.work.handlers import BadHandlers, HandlerSpec, handlers_of
from talka.work.specs import BadWorkflows


def module_of(text: str, *, module: ModuleType | None = None, **names: Any) -> ModuleType:
    """A module whose file is `handlers.py` and whose second line is the first of `text`."""
    module = module or ModuleType("handlers")
    vars(module).update(names)
    exec(compile(f"from talka.work.handlers import command, handler\n{text}", "handlers.py", "exec"), vars(module))
    return module


def problems_of(text: str, **names: Any) -> list[str]:
    with pytest.raises(BadHandlers) as caught:
        handlers_of(module_of(text, **names))
    assert isinstance(caught.value, BadWorkflows)  # to whoever calls it is a wrong file like any other
    return str(caught.value).splitlines()


def test_async_and_plain_functions_are_handlers() -> None:
    module = module_of(
        '@handler("resize")\nasync def resize(task):\n    return task\n\n@handler("clean:rows")\ndef clean(task, '
        "fast=True):\n    return 1\n"
    )

    found = handlers_of(module)

    assert list(found) == ["resize", "clean:rows"]
    resize, clean = found.values()
    assert resize == HandlerSpec(
        name="resize", function=vars(module)["resize"], is_async=True, file="handlers.py", line=2
    )
    assert (clean.is_async, clean.line, clean.command) == (False, 6, ())
    assert clean.function is not None and clean.function(None) == 1


def test_the_function_stays_what_it_was() -> None:
    module = module_of('@handler("a")\ndef a(task):\n    return task + 1\n')

    assert vars(module)["a"](1) == 2


def test_command_lines_are_handlers() -> None:
    module = module_of('command("convert", ["convert", "--fast"], env={"LANG": "C"})\ncommand("ls", ("ls",))\n')

    convert, ls = handlers_of(module).values()

    assert convert == HandlerSpec(
        name="convert", command=("convert", "--fast"), env={"LANG": "C"}, file="handlers.py", line=2
    )
    assert (ls.function, ls.command, ls.env, ls.line) == (None, ("ls",), {}, 3)


def test_only_a_handler_that_a_file_declares_has_a_place() -> None:
    declared = handlers_of(module_of('@handler("a")\ndef a(task): pass\n'))["a"]
    given = HandlerSpec(name="a", function=len)

    assert declared.line > 0
    assert (given.file, given.line) == ("", 0)


def test_a_module_without_handlers_has_none() -> None:
    assert handlers_of(ModuleType("empty")) == {}


def test_functions_of_other_modules_are_handlers_where_they_are_imported() -> None:
    shared = module_of('@handler("a")\ndef a(task): pass\n\n@handler("b")\ndef b(task): pass\n')

    found = handlers_of(module_of('@handler("c")\ndef c(task): pass\n', a=vars(shared)["a"], plain=len))

    assert list(found) == ["c", "a"]


def test_a_module_that_is_loaded_anew_declares_the_same_handlers_and_not_others() -> None:
    module = module_of('@handler("a")\ndef a(task): return 1\n\ncommand("b", ["b"])\n')

    again = module_of('@handler("a")\ndef a(task): return 2\n\ncommand("b", ["c"])\n', module=module)

    found = handlers_of(again)
    assert list(found) == ["a", "b"]
    assert found["a"].function is not None and found["a"].function(None) == 2
    assert found["b"].command == ("c",)


def test_a_function_inside_another_decorator_is_told_by_its_own_line() -> None:
    def loud(function: Any) -> Any:
        @functools.wraps(function)
        def wrapped(task: Any) -> Any:
            return function(task)

        return wrapped

    assert handlers_of(module_of('@handler("a")\n@loud\ndef a(task): pass\n', loud=loud))["a"].line == 2
    assert problems_of('@loud\n@handler("a")\ndef a(task): pass\n', loud=loud) == [
        "handlers.py:2: has a decorator above @handler: put @handler on top"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("@handler\ndef resize(task): pass\n", '2: @handler without a name: write @handler("resize")'),
        ('@handler("two words")\ndef a(task): pass\n', '2: "two words" is not a name of a handler'),
        ('@handler("")\ndef a(task): pass\n', '2: "" is not a name of a handler'),
        ("@handler(5)\ndef a(task): pass\n", "2: 5 is not a name of a handler"),
        (f'@handler("{"x" * 65}")\ndef a(task): pass\n', "is not a name of a handler"),
        ('@handler("a")\ndef a(): pass\n', "2: handler a must take one argument, the task: write def a(task)"),
        ('@handler("a")\nasync def b(task, other): pass\n', "2: handler a must take one argument"),
        ('@handler("a")\ndef b(*, task): pass\n', "2: handler a must take one argument"),
        ('@handler("a")\ndef b(task): yield 1\n', "2: handler a yields: return its output instead"),
        ('@handler("a")\nasync def b(task): yield 1\n', "2: handler a yields"),
        ('handler("a")(5)\n', "2: handler a is not a function"),
        ('@handler("a")\nclass A: pass\n', "2: handler a is not a function"),
        ('command("a", "convert --fast")\n', "2: command a is one text: write a list"),
        ('command("a", [])\n', "2: command a names no program"),
        ('command("a", 5)\n', "2: command a names no program"),
        ('command("a", ["x", 5])\n', "2: command a has an argument that is not text"),
        ('command("a", [""])\n', "2: command a has an argument that is not text"),
        ('command("a", ["x\\0y"])\n', "2: command a has an argument that is not text"),
        ('command("a", ["x"], env={"A B": "c"})\n', "2: command a has an env that does not map"),
        ('command("a", ["x"], env={"A": 5})\n', "2: command a has an env that does not map"),
        ('command("a", ["x"], env=["A"])\n', "2: command a has an env that does not map"),
        ('command("a b", ["x"])\n', '2: "a b" is not a name of a handler'),
    ],
)
def test_what_cannot_be_a_handler_is_told_with_its_line(text: str, problem: str) -> None:
    (told,) = problems_of(text)

    assert told.startswith("handlers.py:2: ") and problem in told


def test_a_built_in_function_is_told_by_the_line_that_declares_it() -> None:
    assert list(handlers_of(module_of('handler("a")(len)\n'))) == ["a"]
    assert problems_of('\nhandler("a b")(len)\n')[0].startswith("handlers.py:3: ")


def test_two_handlers_of_one_name_are_told_with_both_lines() -> None:
    assert problems_of('@handler("a")\ndef one(task): pass\n\ncommand("a", ["x"])\n') == [
        "handlers.py:5: there are two handlers named a: the other one is in handlers.py:2"
    ]


def test_all_problems_of_a_file_are_told_at_once() -> None:
    told = problems_of('@handler\ndef a(task): pass\n\n@handler("b")\ndef b(): pass\n\ncommand("c", "c")\n')

    assert [line.split(":")[1] for line in told] == ["2", "5", "8"]
