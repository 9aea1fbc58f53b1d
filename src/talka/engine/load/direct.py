"""Which workflows may be driven without Tasks: a look at the users' code before it runs.

The direct driver can wait for nothing but calls of Talka's HTTP client, and pauses. So every `await` that a step can
reach must be on one, as far as reading the code tells; in doubt, Tasks run the workflow. Code of libraries is not read:
a step may call it, but not await it. Should a foreign await slip through, the driver meets it and the step fails.

Decision: docs/decisions/0026-direct-driver.md.
"""

import ast
import builtins
import linecache
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache
from inspect import CO_COROUTINE, getattr_static
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Final, Literal, NamedTuple, TypeGuard, cast

from talka.engine.load import native
from talka.work.dsl import Declaration, Workflow
from talka.work.specs import NodeSpec, WorkflowSpec

DIRECT: Final = "http"
"""The client whose calls the direct driver can wait for: its engine has the driver's core."""
Kind = Literal["workflow", "clients", "http", "method", "call"]
"""What an expression stands for: `self`, `self.client`, its `http`, a method of that, and what calling it returns.

`self.pause` is such a method too."""
Kinds = Mapping[str, Kind | None]
"""Of names. None: anything."""
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

METHODS: Final = frozenset({"get", "post", "put", "patch", "delete", "head", "options"})
SCHEDULERS: Final = frozenset(
    "asyncio _asyncio anyio concurrent contextvars _contextvars curio eventlet gevent greenlet multiprocessing signal"
    " sniffio threading _thread trio uvloop".split()
)
"""Modules whose use says that code cares about who runs it."""
CONTEXT_TYPES: Final = ("ContextVar", "Context", "Token")
"""They call themselves builtins."""
UNREADABLE: Final = frozenset({"eval", "exec", "compile", "__import__", "setattr", "delattr"})
REFLECTIVE: Final = frozenset({"getattr", "vars", "globals", "locals", "dir"})
HOOKS: Final = ("client", "__getattr__", "__getattribute__", "__setattr__")
PLAIN: Final = (FunctionType, staticmethod, classmethod, Declaration)
"""What a class may have that does nothing but be there when it is asked for."""
MAX_NODES: Final = 64
MAX_ARGUMENTS: Final = 64
TALKA: Final = Path(__file__).parents[2]
ROUNDS: Final = 8
"""Names that stand for names that stand for names: further than this nobody looks."""


class Choice(NamedTuple):
    """Which driver runs a workflow on the native engine."""

    driver: Literal["direct", "task"]
    reason: str
    """Why it is this one."""
    keeps_last: frozenset[str] = frozenset()
    """The steps whose last response the users' code may ask for."""
    changes_users: bool = True
    """Whether the users' code may leave anything on its user, so that the next iteration would find it."""


class Doubt(Exception):
    """The code may do something the direct driver cannot wait for."""


def driver_for(spec: WorkflowSpec) -> Choice:
    steps = frozenset(node.name for node in spec.nodes if node.kind == "step")
    if spec.driver == "task":
        return Choice("task", "the workflow asks for it", steps)
    obstacle = shape_obstacle(spec)
    if obstacle is not None:
        return Choice("task", obstacle, steps)
    look = Look(spec.workflow, steps)
    try:
        look.at_workflow(spec.nodes)
    except Doubt as doubt:
        if spec.driver == "direct":
            return Choice("direct", "the workflow asks for it", steps)
        return Choice("task", str(doubt), steps)
    finally:
        definitions_in.cache_clear()  # a core needs its memory for users
    return Choice(
        "direct",
        "its steps await nothing but self.client.http and self.pause",
        frozenset(look.asked_for),
        look.changes_users,
    )


def engine_for(spec: WorkflowSpec, setting: str) -> tuple[str, str]:
    """For people: what would run a workflow on this machine, with a setting of auto, native or python, and why."""
    if setting == "python":
        return "python", ""
    if (obstacle := native.available()) is not None:
        return "python", f"there is no native engine here, {obstacle}"
    choice = driver_for(spec)
    return f"native, {'direct driver' if choice.driver == 'direct' else 'tasks'}", choice.reason


def shape_obstacle(spec: WorkflowSpec) -> str | None:
    """Why the direct driver could not run these nodes, whatever is in them."""
    for layer in spec.layers:
        waiting = [node.name for node in layer if node.is_async]
        if len(waiting) > 1:
            return f"{', '.join(waiting[:-1])} and {waiting[-1]} run at the same time"
    if len(spec.nodes) > MAX_NODES:
        return f"it has {len(spec.nodes)} methods, and the direct driver takes {MAX_NODES}"
    for node in spec.nodes:
        if len(node.inputs) + len(node.optimized) > MAX_ARGUMENTS:
            return f"{node.name} has more than {MAX_ARGUMENTS} arguments"
    return None


class Look:
    """At the code of one workflow. Raises `Doubt`; else `asked_for` holds the steps that are asked for by name."""

    def __init__(self, workflow: type[Workflow], steps: frozenset[str]) -> None:
        self._workflow = workflow
        self._steps = steps
        self._own_files: set[str] = set()
        self._seen: set[tuple[CodeType, frozenset[tuple[str, Kind | None]]]] = set()
        self.asked_for: set[str] = set()
        self.changes_users = False

    def at_workflow(self, nodes: list[NodeSpec]) -> None:
        for home in self._workflow.__mro__:
            if home not in (Workflow, object):
                for hook in HOOKS:
                    if hook in vars(home):
                        raise Doubt(f"{home.__name__} has its own {hook}")
                if "__init__" in vars(home) or "__new__" in vars(home):
                    self.changes_users = True  # who knows what each user gets
        for node in nodes:
            function = node.function
            if not isinstance(function, FunctionType):
                raise Doubt(f"{node.name} is not a function written in Python")
            if node.is_async != is_coroutine_function(function):
                raise Doubt(f"{node.name} is not written with async def")
            self._own_files.add(function.__code__.co_filename)
        for node in nodes:
            self.at_function(node.function, ["workflow"], {})
        for home in self._workflow.__mro__:
            if home not in (Workflow, object):
                for value in vars(home).values():
                    self._note_mentions(value)

    def _note_mentions(self, value: object) -> None:
        """Steps that a method asks for which no step was seen to call: what it makes of them may be used all the
        same."""
        if isinstance(value, property):
            value = value.fget
        function = underlying(value)
        if not isinstance(function, FunctionType) or function.__code__ in {code for code, _ in self._seen}:
            return
        try:
            definitions = definitions_of(function.__code__)
        except Doubt:
            self.note_escape()
            return
        first = function.__code__.co_varnames[:1]
        for definition in definitions:
            owners = {id(node.value) for node in ast.walk(definition) if isinstance(node, ast.Attribute)}
            for node in ast.walk(definition):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    self.note_step(node.attr)
                if isinstance(node, ast.Name) and node.id in first and id(node) not in owners:
                    self.note_escape()

    def at_function(
        self, function: FunctionType, positional: list[Kind | None], named: Mapping[str, Kind | None]
    ) -> None:
        """A function that is called with arguments of these kinds."""
        code = function.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        kinds = {**dict.fromkeys(names), **dict(zip(code.co_varnames[: code.co_argcount], positional, strict=False))}
        kinds |= {name: kind for name, kind in named.items() if name in kinds}
        key = (code, frozenset(kinds.items()))
        if key in self._seen:
            return
        self._seen.add(key)
        for definition in definitions_of(code):
            CodeReading(self, function, definition, kinds).read()

    def is_readable(self, function: FunctionType) -> bool:
        """Whether it is code of the users', which must be read, and not a library's."""
        file = function.__code__.co_filename
        return file in self._own_files or is_users_own(file)

    def attribute(self, name: str) -> object:
        """What the workflow's class has under this name."""
        found = getattr_static(self._workflow, name, None)
        if found is None and name.startswith("__") and not name.endswith("__"):
            for home in self._workflow.__mro__:
                found = found or vars(home).get(f"_{home.__name__.lstrip('_')}{name}")
        return found

    def attribute_above(self, owner: object, name: str) -> object:
        """What `super()` finds from a method of `owner` on."""
        order = self._workflow.__mro__
        if owner in order:
            for home in order[order.index(owner) + 1 :]:
                if name in vars(home):
                    return vars(home)[name]
        return None

    def note_step(self, name: str) -> None:
        if name in self._steps:
            self.asked_for.add(name)

    def note_escape(self) -> None:
        """Whoever has the workflow may ask for anything, and change it."""
        self.asked_for |= self._steps
        self.changes_users = True


class CodeReading:
    """Of one definition. Nested functions and lambdas count as part of it."""

    def __init__(self, look: Look, function: FunctionType, definition: Definition, kinds: Kinds) -> None:
        self._look = look
        self._function = function
        self._definition = definition
        self._kinds: dict[str, Kind | None] = dict(kinds)
        code = function.__code__
        self._locals = {*code.co_varnames, *code.co_cellvars}
        self._closure = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))

    def read(self) -> None:
        self._bind_names()
        body = self._definition.body
        for part in body if isinstance(body, list) else [body]:
            self._visit(part, None)

    # Names.

    def _bind_names(self) -> None:
        """What each local name stands for: a name that stands for two things stands for anything."""
        given = dict(self._kinds)
        bindings = list(bindings_in(self._definition))
        for _ in range(ROUNDS):
            found = dict(given)
            for name, value in bindings:
                kind = None if value is None else self._kind(value)
                found[name] = kind if name not in found or found[name] == kind else None
            if found == self._kinds:
                return
            self._kinds = found
        self._kinds = dict.fromkeys(self._kinds)

    def _kind(self, node: ast.expr) -> Kind | None:
        match node:
            case ast.Name(id=name):
                return self._kinds.get(name)
            case ast.Attribute(value=value, attr=attr):
                match self._kind(value), attr:
                    case "workflow", "client":
                        return "clients"
                    case "workflow", "pause" if self._look.attribute("pause") is Workflow.pause:
                        return "method"
                    case "clients", _ if attr == DIRECT:
                        return "http"
                    case "http", _ if attr in METHODS:
                        return "method"
            case ast.Call(func=func):
                target = self._target(func)
                if self._kind(func) == "method" or (is_coroutine_function(target) and self._look.is_readable(target)):
                    return "call"
            case ast.IfExp(body=body, orelse=orelse):
                return self._kind(body) if self._kind(body) == self._kind(orelse) else None
            case ast.NamedExpr(value=value):
                return self._kind(value)
            case _:
                pass
        return None

    def _value(self, node: ast.expr) -> object:
        """The object an expression stands for, where that can be known; else None."""
        match node:
            case ast.Name(id=name):
                if name in self._closure:
                    try:
                        return cast(object, self._closure[name].cell_contents)
                    except ValueError:
                        return None
                if name in self._locals or name in self._kinds:
                    return None
                return self._function.__globals__.get(name, getattr(builtins, name, None))
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"), args=[]), attr=attr):
                cell = self._closure.get("__class__")
                return None if cell is None else self._look.attribute_above(cell.cell_contents, attr)
            case ast.Attribute(value=value, attr=attr):
                if self._kind(value) == "workflow":
                    return self._look.attribute(attr)
                owner = self._value(value)
                if isinstance(owner, ModuleType | type):
                    return getattr_static(owner, attr, None)
            case _:
                pass
        return None

    def _target(self, node: ast.expr) -> object:
        """The function behind an expression that is called."""
        return underlying(self._value(node))

    # The walk.

    def _visit(self, node: ast.AST, parent: ast.AST | None) -> None:
        match node:
            case ast.AsyncFor() | ast.AsyncWith():
                self._doubt(node, f"uses async {'for' if isinstance(node, ast.AsyncFor) else 'with'}")
            case ast.comprehension(is_async=is_async) if is_async:
                self._doubt(node.iter, "uses an asynchronous comprehension")
            case ast.AsyncFunctionDef():
                self._doubt(node, f"defines {node.name}, another async function")
            case ast.Yield() | ast.YieldFrom() if isinstance(self._definition, ast.AsyncFunctionDef):
                self._doubt(node, "yields")
            case ast.Import(names=names):
                for alias in names:
                    self._judge_module(node, alias.name)
            case ast.ImportFrom(module=module):
                self._judge_module(node, module or "")
            case ast.Await(value=value):
                self._judge_await(value)
            case ast.Call():
                self._follow(node)
            case ast.Name(id=name, ctx=ast.Load()):
                self._judge_name(node, name, parent)
            case ast.Attribute():
                self._judge_attribute(node)
            case _:
                pass
        for child in ast.iter_child_nodes(node):
            self._visit(child, node)

    def _judge_await(self, value: ast.expr) -> None:
        match value:
            case ast.IfExp(body=body, orelse=orelse):
                self._judge_await(body)
                self._judge_await(orelse)
            case ast.NamedExpr(value=inner):
                self._judge_await(inner)
            case _ if self._kind(value) != "call":
                self._doubt(value, f"awaits {ast.unparse(value)[:60]}, which may be no call of self.client.http")

    def _judge_name(self, node: ast.Name, name: str, parent: ast.AST | None) -> None:
        if self._kinds.get(name) == "workflow" and not isinstance(parent, ast.Attribute | ast.Call | ast.keyword):
            self._look.note_escape()
        value = self._value(node)
        if name in UNREADABLE and value is getattr(builtins, name):
            self._doubt(node, f"uses {name}")
        if name in REFLECTIVE and value is getattr(builtins, name):
            self._look.note_escape()
        self._judge_value(node, value)

    def _judge_attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            if node.attr in ("client", DIRECT):
                self._doubt(node, f"changes {ast.unparse(node)}")
            self._look.changes_users = True
            return
        if node.attr == "__dict__":
            self._look.note_escape()
        if self._kind(node.value) == "workflow":
            self._look.note_step(node.attr)
        found = self._value(node)
        self._judge_value(node, found)
        if isinstance(found, property) and isinstance(found.fget, FunctionType) and self._look.is_readable(found.fget):
            self._look.at_function(found.fget, [self._kind(node.value)], {})
        elif self._kind(node.value) == "workflow" and not isinstance(found, PLAIN) and hasattr(type(found), "__get__"):
            self._look.note_escape()  # a cached property, for instance, leaves its value on the user

    def _judge_value(self, node: ast.expr, value: object) -> None:
        if isinstance(value, ModuleType):
            self._judge_module(node, value.__name__)
        elif isinstance(value, FunctionType | BuiltinFunctionType | MethodType):
            self._judge_module(node, value.__module__ or "")
            if isinstance(value, FunctionType) and not is_coroutine_function(value) and self._look.is_readable(value):
                self._look.at_function(value, [], {})  # handed on, and called by somebody
        elif type(value).__name__ in CONTEXT_TYPES:
            self._judge_module(node, "contextvars")
        else:
            for home in (value if isinstance(value, type) else type(value)).__mro__:
                self._judge_module(node, home.__module__)

    def _judge_module(self, node: ast.AST, name: str) -> None:
        top = name.partition(".")[0]
        if top in SCHEDULERS:
            self._doubt(node, f"uses {top.lstrip('_')}")

    def _follow(self, call: ast.Call) -> None:
        """Read the users' own function that is called here."""
        positional = [self._kind(argument) for argument in call.args]
        named = {keyword.arg: self._kind(keyword.value) for keyword in call.keywords if keyword.arg is not None}
        found = self._value(call.func)
        target = self._target(call.func)
        if isinstance(target, type):
            self._follow_class(target)
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        is_own = owner is not None and (self._kind(owner) == "workflow" or ast.unparse(owner) == "super()")
        if not (isinstance(target, FunctionType) and self._look.is_readable(target)):
            # A method that the workflow has from another library than this one may do anything with it.
            is_of_library = is_own and isinstance(target, FunctionType) and target not in vars(Workflow).values()
            if is_of_library or "workflow" in (*positional, *named.values()):
                self._look.note_escape()
            if is_coroutine_function(target):
                self._doubt(call, f"calls {ast.unparse(call.func)}, a coroutine function of a library")
            return
        if any(isinstance(argument, ast.Starred) for argument in call.args):
            positional = []
        if owner is not None and isinstance(found, classmethod):
            positional = [None, *positional]
        elif is_own and not isinstance(found, staticmethod):
            positional = ["workflow", *positional]
        self._look.at_function(target, positional, named)

    def _follow_class(self, found: type) -> None:
        """What its methods do may happen as soon as there is an object of it."""
        for value in vars(found).values():
            if isinstance(value, FunctionType) and not is_coroutine_function(value) and self._look.is_readable(value):
                self._look.at_function(value, [], {})

    def _doubt(self, node: ast.AST, text: str) -> None:
        code = self._function.__code__
        raise Doubt(
            f"{code.co_name} {text} ({Path(code.co_filename).name}:{getattr(node, 'lineno', code.co_firstlineno)})"
        )


def bindings_in(definition: Definition) -> Iterator[tuple[str, ast.expr | None]]:
    """(name, the expression it is bound to): None for names bound in any other way."""
    simple: dict[int, ast.expr] = {}
    for node in ast.walk(definition):
        match node:
            case ast.Assign(targets=[ast.Name() as target], value=value):
                simple[id(target)] = value
            case ast.NamedExpr(target=target, value=value):
                simple[id(target)] = value
            case ast.AnnAssign(target=ast.Name() as target, value=value) if value is not None:
                simple[id(target)] = value
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name, simple.get(id(node))
            case ast.FunctionDef() | ast.Lambda() | ast.AsyncFunctionDef() if node is not definition:
                yield from ((argument.arg, None) for argument in ast.walk(node.args) if isinstance(argument, ast.arg))
                if not isinstance(node, ast.Lambda):
                    yield node.name, None
            case ast.ClassDef(name=name) | ast.ExceptHandler(name=str() as name):
                yield name, None
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                yield from ((name, None) for name in names)
            case ast.MatchAs(name=str() as name) | ast.MatchStar(name=str() as name):
                yield name, None
            case ast.MatchMapping(rest=str() as name):
                yield name, None
            case _:
                pass


def underlying(value: object) -> object:
    """The function inside a declaration or a method; anything else as it is."""
    if isinstance(value, Declaration):
        value = value.function
    if isinstance(value, staticmethod | classmethod | MethodType):
        value = value.__func__
    return value


def is_coroutine_function(function: object) -> TypeGuard[FunctionType]:
    return isinstance(function, FunctionType) and bool(function.__code__.co_flags & CO_COROUTINE)


def definitions_of(code: CodeType) -> list[Definition]:
    """Where the function is written; of lambdas all that begin in the same line."""
    found = definitions_in(code.co_filename).get((code.co_name, code.co_firstlineno))
    if not found:
        raise Doubt(f"the source of {code.co_name} cannot be read")
    return found


@cache
def definitions_in(file: str) -> dict[tuple[str, int], list[Definition]]:
    """By name and first line, decorators included. Empty when there is no source."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[tuple[str, int], list[Definition]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda):
            found.setdefault(("<lambda>", node.lineno), []).append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found.setdefault((node.name, line), []).append(node)
    return found


@cache
def is_users_own(file: str) -> bool:
    """Whether a file is neither of Python, nor of an installed package, nor of Talka."""
    if file.startswith("<"):  # made by a program
        return False
    return not any(Path(file).is_relative_to(home) for home in libraries())


@cache
def libraries() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    homes = {Path(path) for name in names if (path := sysconfig.get_path(name))}
    return (*homes, TALKA)
