"""The language users write: a `Workflow` class, and decorators that say what its methods are.

Nothing here runs or checks anything; `inspection` reads the declarations, `engine` runs them.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from inspect import unwrap
from types import CodeType, FunctionType
from typing import Annotated, Any, ClassVar, Final, Generic, Literal, TypeAlias, TypeVar, cast, overload

import msgspec

from talka.errors import Invalid
from talka.stats.tally import MetricKind
from talka.work.clients import Clients, Hooks
from talka.work.deadlines import Allowance
from talka.work.feeds import Between
from talka.work.shapes import LoadShape

Result = TypeVar("Result")
Value = TypeVar("Value")
AnyWorkflow = TypeVar("AnyWorkflow", bound="type[Workflow]")
Function: TypeAlias = Callable[..., Any]
Priority = Literal["low", "normal", "high", "exclusive", "auto"]
Driver = Literal["auto", "direct", "task"]
Users = Literal["auto", "fresh", "kept"]
Connections = Literal["warm", "fresh"]
AtTimeout = Literal["kill", "notify", "pause"]
Expect: TypeAlias = int | range | Iterable[int | range]


class Flow(msgspec.Struct, frozen=True):
    """The mark inside `Provide` and `Use`."""

    provides: bool


Provide: TypeAlias = Annotated[Value, Flow(provides=True)]
Provide.__doc__ = """Return annotation of a `@state` method that hands a value on. The name of the method is the key."""
Use: TypeAlias = Annotated[Value, Flow(provides=False)]
Use.__doc__ = """Return annotation of a `@state` method that gets values. Its parameters are the keys."""


class NoResponse(Invalid):
    """A step was asked for its last response before it had one."""


class Skip(Exception):
    """Raise it in a step that has nothing to do this time. The step is counted as skipped, not as failed."""


def code_of(function: Function | None) -> CodeType | None:
    """Where a function stands, also one inside another decorator; None for what is not written in Python."""
    return getattr(unwrap(function), "__code__", None) if function is not None else None


class Declaration(Generic[Result]):
    """A decorated method. Its name and its class are filled in when the class is made."""

    kind: ClassVar[str]

    def __init__(self, function: Function, after: tuple[object, ...]) -> None:
        self.function = function
        self.after = after
        self.name: str = function.__name__
        self.owner: type | None = None
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner, self.name = owner, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @property
    def line(self) -> int:
        code = code_of(self.function)
        return 0 if code is None else code.co_firstlineno


class BoundStep(Generic[Result]):
    """A step of one virtual user: callable, and it remembers its last response."""

    __slots__ = ("_step", "_workflow", "last")

    def __init__(self, step: "Step[Result]", workflow: "Workflow") -> None:
        self._step = step
        self._workflow = workflow
        self.last: Result | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Awaitable[Result]:
        return cast(Awaitable[Result], self._step.function(self._workflow, *args, **kwargs))

    @property
    def response(self) -> Result:
        if self.last is None:
            raise NoResponse(f"step {self._step.name} has no response yet")
        return self.last


class Step(Declaration[Result]):
    kind = "step"

    def __init__(
        self, function: Function, after: tuple[object, ...], expect: Expect, tags: Mapping[str, str] | None
    ) -> None:
        super().__init__(function, after)
        # A generator gives its values once, and a step is read more than once.
        self.expect = tuple(expect) if isinstance(expect, Iterator) else expect
        self.tags = dict(tags or {})

    @overload
    def __get__(self, workflow: None, owner: type) -> "Step[Result]": ...
    @overload
    def __get__(self, workflow: "Workflow", owner: type) -> BoundStep[Result]: ...
    def __get__(self, workflow: "Workflow | None", owner: type) -> "Step[Result] | BoundStep[Result]":
        if workflow is None:
            return self
        if getattr(type(workflow), self.name, None) is not self:
            return BoundStep(
                self, workflow
            )  # asked for through super(): the name belongs to the step that overrides it
        bound = workflow.__dict__.get(self.name)
        if bound is None:
            # Kept under the step's own name: this descriptor defines no __set__, so the next look-up finds it directly.
            bound = workflow.__dict__[self.name] = BoundStep(self, workflow)
        return cast(BoundStep[Result], bound)


class Method(Declaration[Result]):
    """A declaration that stays an ordinary method on instances."""

    @overload
    def __get__(self, workflow: None, owner: type) -> "Method[Result]": ...
    @overload
    def __get__(self, workflow: "Workflow", owner: type) -> Callable[..., Result]: ...
    def __get__(self, workflow: "Workflow | None", owner: type) -> "Method[Result] | Callable[..., Result]":
        return self if workflow is None else self.bind(workflow)

    def bind(self, workflow: "Workflow") -> Callable[..., Result]:
        return cast(Callable[..., Result], self.function.__get__(workflow))


class Action(Method[Result]):
    kind = "action"


class Hook(Method[Result]):
    def __init__(self, function: Function, after: tuple[object, ...], once: bool = False) -> None:
        super().__init__(function, after)
        self.once = once
        """Once for the job, not on every core."""


class Setup(Hook[Result]):
    """Runs once on every core, before the clock starts."""

    kind = "setup"


class Teardown(Hook[Result]):
    """Runs once on every core, after its last iteration."""

    kind = "teardown"


class OnStart(Method[Result]):
    """Runs when a user begins; measured."""

    kind = "on_start"


class OnStop(Method[Result]):
    """Runs when a user leaves; measured."""

    kind = "on_stop"


class OnEvict(Method[Result]):
    """Runs once on every core when the time of the workflow is over, before it is ended."""

    kind = "on_evict"


class Check(Method[Result]):
    kind = "check"


class Metric(Method[Result]):
    kind = "metric"

    def __init__(self, function: Function, after: tuple[object, ...], metric_kind: MetricKind) -> None:
        super().__init__(function, after)
        self.metric_kind = metric_kind


class State(Method[Result]):
    """`after` holds the workflows this state goes to (`Provide`) or comes from (`Use`)."""

    kind = "state"

    def bind(self, workflow: "Workflow") -> Callable[..., Result]:
        def call(**given: Any) -> Result:
            return cast(Result, self.function(workflow, **{**workflow.received.get(self.name, {}), **given}))

        return call


class Bare(Method[Result]):
    """A method under `@step` without parentheses. It would vanish from the workflow; so it can be complained about."""

    kind = "bare"

    def __init__(self, function: Function, decorator: str) -> None:
        super().__init__(function, ())
        self.decorator = decorator

    @classmethod
    def found_in(cls, given: tuple[object, ...], decorator: str) -> Any:
        is_bare = len(given) == 1 and isinstance(given[0], FunctionType)
        return cls(cast(Function, given[0]), decorator) if is_bare else None


class Namespace(dict[str, Any]):
    """The body of a workflow class while it is read. Python would let a second definition hide the first."""

    def __init__(self) -> None:
        super().__init__()
        self.duplicates: list[tuple[str, Function]] = []

    def __setitem__(self, name: str, value: Any) -> None:
        before = self.get(name)
        if isinstance(value, Declaration) and before is not None:
            self.duplicates.append((name, value.function))
        elif isinstance(before, Declaration):
            self.duplicates.append((name, value if code_of(value) else before.function))
        super().__setitem__(name, value)


class WorkflowType(type):
    # Dunder: every other name belongs to the users' steps.
    __duplicates__: Sequence[tuple[str, Function]]

    @classmethod
    def __prepare__(metacls, name: str, bases: tuple[type, ...], /, **kwargs: Any) -> Namespace:
        return Namespace()

    def __new__(metacls, name: str, bases: tuple[type, ...], body: dict[str, Any], **kwargs: Any) -> "WorkflowType":
        made = super().__new__(metacls, name, bases, dict(body), **kwargs)
        # A class made by `type(name, bases, body)` brings a plain dict.
        made.__duplicates__ = tuple(body.duplicates) if isinstance(body, Namespace) else ()
        return made


class Workflow(metaclass=WorkflowType):
    """One kind of user: what it does, how many there are, for how long.

    Give `vus` and `duration`, or a load shape as `load`. With neither, one user runs the workflow once.
    """

    vus: int = 1
    """How many virtual users there are."""
    duration: str | float | None = None
    """How long they run: "30s", "5m", or seconds."""
    load: LoadShape | None = None
    """A load shape, instead of `vus` and `duration`."""
    share: int | None = None
    """Its part of one load for the whole file, in proportion to the shares of the others: 7 and 3 are 70 % and 30 %."""
    priority: Priority = "auto"
    """How large a part of the cores it may get: low, normal, high, exclusive (all of them, alone), or auto."""
    timeout: str | float | None = None
    """The longest the workflow may run; by default the length of its plan and a minute. While it advances it gets more
    time, up to five times, ever less of it."""
    on_timeout: AtTimeout = "kill"
    """What happens when its time is over and it gets no more. kill: `@on_evict` methods have 10 s, then it is ended.
    notify: they are called, and it goes on for as long as its timeout again. pause, on a cluster: after the 10 s it is
    stopped and put aside, until a person resumes the rest of it; `talka run` ends it."""
    thresholds: Sequence[str] = ()
    """Rules that the job must keep, such as "failed < 1%" or "response_time.p99 < 250ms"."""
    think: Between | str | float | None = None
    """The pause of a user between two iterations (closed model): a duration, or `between("0.5s", "2s")`."""
    verify: bool | str = True
    """TLS: True checks against the system's authorities, a string names a file of them, False checks nothing."""
    driver: Driver = "auto"
    """Who runs its users on the native engine: the direct driver, which waits for nothing but calls of `client.http`,
    or Tasks, which wait for anything. By default the direct one where reading the code shows that it will do."""
    users: Users = "auto"
    """fresh: every iteration is a user of its own, with a new object and no cookies. kept: users go on as they are. By
    default those of an arrival rate are fresh, those in a loop are kept."""
    connections: Connections = "warm"
    """warm: connections stay open for whoever comes next. fresh: every iteration opens its own."""
    abstract: bool = False
    """True on a class that only others inherit from (it is not inherited itself)."""
    depends_on: ClassVar[tuple[object, ...]] = ()
    """Workflows that must end before this one starts; `@depends` fills it."""

    client: Clients
    """What steps call: `self.client.http`, `self.client.custom`."""
    context: dict[str, Any]
    """Shared by all virtual users of a shard; starts with the values other workflows provided."""
    _hooks: Hooks

    def __init__(self) -> None:
        self.received: Mapping[str, Mapping[str, Any]] = {}

    def pause(self, low: str | float, high: str | float | None = None) -> Awaitable[None]:
        """Wait inside a step: `await self.pause("1s")`, or `await self.pause("1s", "3s")` for any time in between."""
        return self._hooks.pause(low, high)

    def metric(self, name: str, value: float, kind: MetricKind = "distribution") -> None:
        """Count `value` under the metric `name`, from anywhere in a step."""
        self._hooks.metric(name, value, kind)

    def extend(self, estimate: str | float, reason: str = "") -> Awaitable[Allowance]:
        """Ask for more time, because the work takes `estimate` from now: `self.extend("30s", "the index is built")`.

        The answer can be awaited, and need not be: it is true if there is more time, and has `granted_s`, `left` (how
        often it may be given more), `ends_in_s` and `why_not` (if there is none).
        """
        return self._hooks.extend(estimate, reason)


RESERVED: Final = frozenset(
    {"vus", "duration", "load", "share", "priority", "timeout", "thresholds", "think", "verify", "driver", "abstract"}
    | {"depends_on", "client", "context", "received", "_hooks"}
)


def step(
    *after: str | Declaration[Any], expect: Expect = (), tags: Mapping[str, str] | None = None
) -> Callable[[Callable[..., Awaitable[Result]]], Step[Result]]:
    """Decorator: the method is a step, which runs after the steps in `after`.

    It is measured if it calls a client or if its return annotation is a client's response. `expect` lists statuses of
    400 and above that are not failures here; `tags` are shown with its row of the result.
    """

    def decorate(function: Callable[..., Awaitable[Result]]) -> Step[Result]:
        return Step(function, after, expect, tags)

    return Bare.found_in(after, "step") or decorate


def action(*after: str | Declaration[Any]) -> Callable[[Callable[..., Any]], Action[Any]]:
    """Decorator: the method runs in its place among the steps and is not measured."""
    return Bare.found_in(after, "action") or (lambda function: Action(function, after))


def setup(*given: Any, once: bool = False) -> Callable[[Callable[..., Any]], Setup[Any]]:
    """Decorator: the method runs once on every core before the load starts, for instance to fill `self.context`.

    If it raises, no step runs. With `once` it runs once for the whole job, before the workflow starts anywhere; what it
    returns is in `self.context` of every core under the name of the method.
    """
    return Bare.found_in(given, "setup") or (lambda function: Setup(function, given, once))


def teardown(*given: Any, once: bool = False) -> Callable[[Callable[..., Any]], Teardown[Any]]:
    """Decorator: the method runs once on every core after its last iteration, or with `once` after all cores ended."""
    return Bare.found_in(given, "teardown") or (lambda function: Teardown(function, given, once))


def on_start(*given: Any) -> Callable[[Callable[..., Any]], OnStart[Any]]:
    """Decorator: the method runs when a user begins, before its first step, and is measured: for instance a login."""
    return Bare.found_in(given, "on_start") or (lambda function: OnStart(function, given))


def on_stop(*given: Any) -> Callable[[Callable[..., Any]], OnStop[Any]]:
    """Decorator: the method runs when a user ends, after its last step, and is measured."""
    return Bare.found_in(given, "on_stop") or (lambda function: OnStop(function, given))


def on_evict(*given: Any) -> Callable[[Callable[..., Any]], OnEvict[Any]]:
    """Decorator: the method runs once on every core when the time of the workflow is over, and has 10 s to save what is
    to be kept: in `self.context`, by `self.metric`, or wherever it likes."""
    return Bare.found_in(given, "on_evict") or (lambda function: OnEvict(function, given))


def check(*after: str | Declaration[Any]) -> Callable[[Callable[..., Any]], Check[Any]]:
    """Decorator: the method judges results of steps, which are its parameters by name.

    The check fails when the method raises, or returns False or an exception.
    """
    return Bare.found_in(after, "check") or (lambda function: Check(function, after))


def metric(kind: MetricKind, *after: str | Declaration[Any]) -> Callable[[Callable[..., Any]], Metric[Any]]:
    """Decorator: the number that the method returns is counted as a metric of this `kind`; None counts nothing."""
    return Bare.found_in((kind,), "metric") or (lambda function: Metric(function, after, kind))


def state(*workflows: str | type[Workflow]) -> Callable[[Callable[..., Any]], State[Any]]:
    """Decorator: the method hands a value to other workflows (`-> Provide[T]`), or gets values of them (`->
    Use[T]`)."""
    return Bare.found_in(workflows, "state") or (lambda function: State(function, workflows))


def depends(*workflows: str | type[Workflow]) -> Callable[[AnyWorkflow], AnyWorkflow]:
    """Decorator: the workflow starts after the named workflows have ended."""

    def decorate(workflow: AnyWorkflow) -> AnyWorkflow:
        # Of this class alone: one decorator above another adds to it, a subclass starts anew.
        workflow.depends_on = (*workflows, *vars(workflow).get("depends_on", ()))
        return workflow

    return decorate
