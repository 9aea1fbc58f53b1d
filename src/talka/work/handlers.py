"""Handlers as users write them: functions and command lines that run the tasks of dag jobs.

A declaration is remembered in the module it is written in, so that importing a file again begins anew. Nothing here
runs anything; `engine` does, in processes of its own.
"""

import inspect
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, Protocol, TypeVar

import msgspec

from talka.work.durations import shown
from talka.work.specs import BadWorkflows, SpecProblem

NAME: Final = re.compile(r"[A-Za-z0-9._:@/-]{1,64}")
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DECLARED: Final = "__talka_handlers__"
"""A name among the globals of every module that declares handlers."""
MARK: Final = "__talka_handler__"
"""An attribute of every function that is one, by which it is known where it is imported."""

Function = TypeVar("Function", bound=Callable[..., Any])
Callback = TypeVar("Callback", bound=Callable[[], Any])


class GivenTime(msgspec.Struct, frozen=True):
    """What an attempt was answered that asked for more time."""

    granted_s: float
    """0: none."""
    left: int
    """How often it may be given more."""
    why_not: str = ""
    """Why it was given none."""


class AskedTime(Protocol):
    """More time that was asked for. It is asked for whether the answer is waited for or not."""

    def wait(self) -> GivenTime:
        """In a plain function: the answer, some seconds later at most."""

    def __await__(self) -> Generator[Any, None, GivenTime]:
        """In an async handler: `await task.extend(...)`."""


class HandlerTask(Protocol):
    """What a handler is given: one attempt of one task."""

    @property
    def id(self) -> str:
        """The id of the task in its job."""

    @property
    def job(self) -> str:
        """The id of the job."""

    @property
    def config(self) -> Any:
        """The config of the task, as it was submitted; `{}` where nothing was."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Outputs of the tasks it depends on, by task id. A task that was skipped or given up has no output here."""

    @property
    def item(self) -> Any:
        """The element of the list that this task is for, of one that is fanned out with `for_each`; None for others."""

    @property
    def index(self) -> int | None:
        """The place of `item` in the list, from 0 on; None for a task that is not an element of one."""

    @property
    def attempt(self) -> int:
        """The number of this attempt at the task; the first is 1."""

    @property
    def fence(self) -> int:
        """A number that grows with every attempt at any task. A system that the handler writes to can refuse a fence
        that is smaller than the largest it has seen."""

    @property
    def key(self) -> str:
        """The idempotency key of the task, as it was submitted."""

    @property
    def checkpoint(self) -> Any:
        """What an earlier attempt gave to `heartbeat` last; None if it gave nothing."""

    @property
    def is_cancelled(self) -> bool:
        """Whether this attempt was asked to stop. An async handler is cancelled too; a plain function has to look
        here."""

    @property
    def is_evicted(self) -> bool:
        """Whether the time of this attempt is over and it is to be ended soon: save what the next one needs with
        `heartbeat`, and return. Who looks here, or gives a function to `on_evict`, has 10 s to."""

    def heartbeat(self, details: Any = None) -> None:
        """Report progress. The latest details are shown to people, and given to the next attempt as `checkpoint`. An
        attempt that reports something new has advanced: when its timeout comes near it is given more time by itself, a
        few times, each time half as much."""

    def extend(self, more: float | str, reason: str = "", *, progress: float | None = None) -> AskedTime:
        """Ask for more time: "30s" or seconds, for how much longer it will take. `progress`: from 0 to 1. Only an
        attempt that has advanced is given any, and never as much as it had: `wait()` or `await` tells how much."""

    def on_evict(self, callback: Callback) -> Callback:
        """The function is called once, without arguments, when the time of this attempt is over; it may be async. Also
        as a decorator."""

    def log(self, text: str) -> None:
        """Write a line to the log of the task."""


class HandlerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One declaration. Either `function` or `command` is there."""

    name: str
    function: Callable[..., Any] | None = None
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    """Of the command, besides the environment of its worker."""
    is_async: bool = False
    file: str = ""
    line: int = 0


class BadHandlers(BadWorkflows):
    """What is wrong with the handlers of a file, all of it."""


class _Declaration(msgspec.Struct):
    """What was written, unchecked: whoever imports the file is told all that is wrong with it at once."""

    name: object
    function: Any
    command: object
    env: object
    file: str
    line: int


def handler(name: str) -> Callable[[Function], Function]:
    """Decorator: the function runs tasks whose handler is `name`. It gets one argument, a `HandlerTask`, and returns
    the output of the task: anything that JSON can hold."""
    frame = _caller()
    if callable(name):  # @handler without parentheses
        _declare(frame.f_globals, _Declaration(None, name, None, None, *_place_of(name, frame)))
        return name

    def decorate(function: Function) -> Function:
        _declare(frame.f_globals, _Declaration(name, function, None, None, *_place_of(function, frame)))
        return function

    return decorate


def command(name: str, arguments: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
    """Tasks whose handler is `name` are run by a program. It reads `{"config", "inputs", "checkpoint"}` as JSON from
    its standard input, with `"item"` and `"index"` for an element of a list that a task is fanned out over, has
    TALKA_TASK, TALKA_JOB, TALKA_ATTEMPT and TALKA_FENCE in its environment, and what it writes to its standard output
    is the task's output: JSON, or else text. Any exit code but 0 is a failure."""
    frame = _caller()
    declaration = _Declaration(
        name, None, arguments, {} if env is None else env, frame.f_code.co_filename, frame.f_lineno
    )
    _declare(frame.f_globals, declaration)


def handlers_of(module: ModuleType) -> dict[str, HandlerSpec]:
    """Handlers that are declared in the module, and functions declared in others that it has imported by name. Raises
    `BadHandlers` with all that is wrong with them."""
    declared: list[_Declaration] = list(vars(module).get(DECLARED, ()))
    problems: list[SpecProblem] = []
    for value in list(vars(module).values()):
        mark = getattr(value, MARK, None) if inspect.isfunction(value) else None
        if not isinstance(mark, _Declaration):
            continue
        if mark.function is not value:  # functools.wraps copied the mark
            problems.append(SpecProblem("has a decorator above @handler: put @handler on top", mark.file, mark.line))
        elif not any(mark is other for other in declared):
            declared.append(mark)
    found: dict[str, HandlerSpec] = {}
    for declaration in declared:
        texts = list(_wrong_with(declaration))
        problems += (SpecProblem(text, declaration.file, declaration.line) for text in texts)
        if texts:
            continue
        spec = _spec(declaration)
        if other := found.get(spec.name):
            text = f"there are two handlers named {spec.name}: the other one is in {other.file}:{other.line}"
            problems.append(SpecProblem(text, spec.file, spec.line))
        found[spec.name] = spec
    if problems:
        raise BadHandlers(problems)
    return found


def _caller() -> Any:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None and frame.f_back.f_back is not None  # this is CPython
    return frame.f_back.f_back


def _place_of(function: object, frame: Any) -> tuple[str, int]:
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    return (frame.f_code.co_filename, frame.f_lineno) if code is None else (code.co_filename, code.co_firstlineno)


def _declare(home: dict[str, Any], declaration: _Declaration) -> None:
    declared: list[_Declaration] = home.setdefault(DECLARED, [])
    # A module that is loaded anew keeps its globals: what stands in the same place is the same declaration.
    place = (declaration.name, declaration.file, declaration.line)
    declared[:] = [other for other in declared if (other.name, other.file, other.line) != place]
    declared.append(declaration)
    if inspect.isfunction(declaration.function):
        setattr(declaration.function, MARK, declaration)


def _wrong_with(declaration: _Declaration) -> Iterator[str]:
    name, function = declaration.name, declaration.function
    if name is None:
        yield f'@handler without a name: write @handler("{getattr(function, "__name__", "name")}")'
        return
    if not isinstance(name, str) or not NAME.fullmatch(name):
        yield f"{shown(name)} is not a name of a handler: write 1 to 64 letters, digits and . _ : @ / -"
        return
    if function is None:
        yield from _wrong_with_command(f"command {name}", declaration.command, declaration.env)
        return
    label = f"handler {name}"
    if not inspect.isroutine(function):
        yield f"{label} is not a function"
    elif inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        yield f"{label} yields: return its output instead"
    else:
        try:
            inspect.signature(function).bind(None)
        except (TypeError, ValueError):
            yield f"{label} must take one argument, the task: write def {getattr(function, '__name__', name)}(task)"


def _wrong_with_command(label: str, arguments: object, env: object) -> Iterator[str]:
    if isinstance(arguments, str):
        yield f'{label} is one text: write a list, such as ["convert", "--fast"]; no shell reads it'
    elif not isinstance(arguments, Sequence) or not arguments:
        yield f"{label} names no program: write a list of the program and its arguments"
    elif not all(isinstance(word, str) and "\0" not in word for word in arguments) or not arguments[0]:
        yield f"{label} has an argument that is not text"
    if not isinstance(env, Mapping) or not all(
        isinstance(key, str) and VARIABLE.fullmatch(key) and isinstance(value, str) and "\0" not in value
        for key, value in env.items()
    ):
        yield f"{label} has an env that does not map names of variables to text"


def _spec(declaration: _Declaration) -> HandlerSpec:
    arguments: Any = declaration.command or ()
    env: Any = declaration.env or {}
    return HandlerSpec(
        name=str(declaration.name),
        function=declaration.function,
        command=tuple(arguments),
        env=dict(env),
        is_async=inspect.iscoroutinefunction(declaration.function),
        file=declaration.file,
        line=declaration.line,
    )
