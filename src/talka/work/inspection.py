"""Reads workflow classes into specifications, and finds what is wrong with them before anything is sent."""

import difflib
import inspect
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from talka.errors import Invalid
from talka.stats.tally import MetricKind
from talka.work.arguments import ArgumentKind, Optimized
from talka.work.dsl import RESERVED, Check, Declaration, Flow, Metric, Priority, State, Step, Workflow
from talka.work.durations import parse_duration
from talka.work.graph import Cycle, ancestors_of, layers_of
from talka.work.load import Plan
from talka.work.responses import Response
from talka.work.shapes import ConstantVUs, IterationsPerVU, LoadShape
from talka.work.thresholds import Threshold, parse_threshold

MINUTE_NS: Final = 60_000_000_000
OPEN_END_NS: Final = 3_600_000_000_000
"""How long a plan without an end of its own may run by default: an hour."""
PRIORITIES: Final = typing.get_args(Priority)
METRIC_KINDS: Final = typing.get_args(MetricKind)
TAGS_LIMIT: Final = 10
TAG_CHARACTERS_LIMIT: Final = 64


class Problem(msgspec.Struct, frozen=True):
    text: str
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        if self.file is None:
            return self.text
        return f"{self.file}:{self.line}: {self.text}" if self.line else f"{self.file}: {self.text}"


class BadWorkflows(Invalid):
    """What is wrong with a test file, all of it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One method that runs in every iteration, in its place in the graph."""

    name: str
    kind: str
    function: Any
    is_async: bool
    after: frozenset[str]
    inputs: tuple[str, ...]
    """Parameters that receive the results of the nodes of the same name."""
    optimized: Mapping[str, tuple[ArgumentKind, Any]]
    """Parameters prepared before the run, with how and from what."""
    measured: bool
    expect: Collection[int] = frozenset()
    tags: Mapping[str, str] = field(default_factory=dict)
    metric_kind: MetricKind | None = None
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvideSpec:
    key: str
    function: Any
    is_async: bool
    targets: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class UseSpec:
    method: str
    sources: tuple[str, ...]
    types: Mapping[str, Any]
    """Its parameters, which are the keys, and the types their values are read as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowSpec:
    name: str
    workflow: type[Workflow]
    file: str | None
    line: int | None
    shape: LoadShape
    plan: Plan
    priority: Priority
    timeout_ns: int
    thresholds: tuple[Threshold, ...]
    layers: tuple[tuple[NodeSpec, ...], ...]
    depends_on: frozenset[str]
    provides: tuple[ProvideSpec, ...]
    uses: tuple[UseSpec, ...]
    announcements: tuple[str, ...]

    @property
    def nodes(self) -> list[NodeSpec]:
        return [node for layer in self.layers for node in layer]

    @property
    def is_test(self) -> bool:
        """Whether it measures anything: only then it runs on more than one core."""
        return any(node.measured for node in self.nodes)

    def changed(self, *, shape: LoadShape, plan: Plan, timeout_ns: int) -> "WorkflowSpec":
        return replace(self, shape=shape, plan=plan, timeout_ns=timeout_ns)


def default_timeout_ns(plan: Plan) -> int:
    return (OPEN_END_NS if plan.length_ns is None else plan.length_ns) + MINUTE_NS


def inspect_workflows(
    classes: Sequence[type[Workflow]], *, file: str | None = None, lines: Mapping[str, int] | None = None
) -> tuple[WorkflowSpec, ...]:
    """Specifications of the classes, in an order in which dependencies come first.

    `lines` tells where things stand in `file`: `"Class"` and `"Class.attribute"` to line numbers.
    """
    reader = Reader(file, lines or {})
    return reader.read(classes)


class Reader:
    """Collects problems while it reads, so that a user sees all of them at once."""

    def __init__(self, file: str | None, lines: Mapping[str, int]) -> None:
        self.file = file
        self.lines = lines
        self.problems: list[Problem] = []

    def read(self, classes: Sequence[type[Workflow]]) -> tuple[WorkflowSpec, ...]:
        by_name: dict[str, type[Workflow]] = {}
        for workflow in classes:
            if workflow.__name__ in by_name:
                self.complain(f"there are two workflows named {workflow.__name__}", workflow)
            by_name[workflow.__name__] = workflow
        waits_for = {name: self.dependencies(workflow, by_name) for name, workflow in by_name.items()}
        order: list[str] = []
        try:
            order = [name for layer in layers_of(waits_for) for name in layer]
        except Cycle as cycle:
            self.complain(f"@depends: {cycle}", by_name[cycle.circle[0]])
        specs = [self.workflow(by_name[name], waits_for[name], by_name) for name in order]
        found = [spec for spec in specs if spec is not None]
        if len(found) == len(by_name):
            self.match_states({spec.name: spec for spec in found}, waits_for)
        if self.problems:
            raise BadWorkflows(self.problems)
        return tuple(found)

    def complain(self, text: str, workflow: type[Workflow], attribute: str | None = None, line: int = 0) -> None:
        name = workflow.__name__
        known = self.lines.get(f"{name}.{attribute}") if attribute else None
        self.problems.append(Problem(text, self.file, line or known or self.lines.get(name)))

    # Workflows among each other.

    def dependencies(self, workflow: type[Workflow], by_name: Mapping[str, type[Workflow]]) -> frozenset[str]:
        return frozenset(self.workflow_names(workflow, workflow.depends_on, by_name, "@depends"))

    def workflow_names(
        self, workflow: type[Workflow], given: Iterable[object], by_name: Mapping[str, type[Workflow]], where: str
    ) -> list[str]:
        names = []
        for other in given:
            name = other.__name__ if isinstance(other, type) else str(other)
            if name in by_name:
                names.append(name)
            else:
                self.complain(
                    f"{where} of {workflow.__name__} names {name}, {no_such('workflow', name, by_name)}", workflow
                )
        return names

    def match_states(self, specs: Mapping[str, WorkflowSpec], waits_for: Mapping[str, Collection[str]]) -> None:
        """A value flows only when the provider names the user and the user names the provider."""
        for spec in specs.values():
            before = ancestors_of(spec.name, waits_for)
            for use in spec.uses:
                for source in use.sources:
                    if source not in before:
                        self.complain(
                            f"{spec.name}.{use.method} uses state of {source}, which need not have run: "
                            f"add @depends({source!r})",
                            spec.workflow,
                            use.method,
                        )
                for key in use.types if use.sources else ():
                    offered = [p for source in use.sources for p in specs[source].provides if p.key == key]
                    if not offered:
                        self.complain(
                            f"{spec.name}.{use.method} uses {key!r}, but nobody provides it: no @state method named "
                            f"{key} with -> Provide[…] in {' or '.join(use.sources)}",
                            spec.workflow,
                            use.method,
                        )
                    elif not any(spec.name in p.targets for p in offered):
                        self.complain(
                            f"{spec.name}.{use.method} uses {key!r}, which {use.sources[0]} provides to others only: "
                            f"name {spec.name} in its @state(…)",
                            spec.workflow,
                            use.method,
                        )

    # One workflow.

    def workflow(
        self, workflow: type[Workflow], depends_on: frozenset[str], by_name: Mapping[str, type[Workflow]]
    ) -> WorkflowSpec | None:
        problems_before = len(self.problems)
        for duplicate in workflow.duplicates:
            self.complain(f"{workflow.__name__} has two methods named {duplicate.name}", workflow, line=duplicate.line)
        declared = declarations_of(workflow)
        for name, declaration in declared.items():
            if name in RESERVED:
                self.complain(f"{name} is a name Talka keeps for itself", workflow, line=declaration.line)
        states = {name: found for name, found in declared.items() if isinstance(found, State)}
        runs = {name: found for name, found in declared.items() if not isinstance(found, State)}
        if not runs and not states:
            self.complain(f"{workflow.__name__} has no steps: decorate a method with @step()", workflow)
        nodes = {name: node for name, found in runs.items() if (node := self.node(workflow, found, runs)) is not None}
        layers: list[list[str]] = []
        if len(nodes) == len(runs):
            layers = self.layers(workflow, nodes)
        provides, uses = self.states(workflow, states, by_name)
        shape = self.shape(workflow)
        thresholds = self.thresholds(workflow, nodes)
        priority = str(workflow.priority).lower()
        if priority not in PRIORITIES:
            self.complain(f"priority {workflow.priority!r} is not one of {', '.join(PRIORITIES)}", workflow, "priority")
        timeout_ns = self.timeout(workflow, shape)
        if len(self.problems) > problems_before or shape is None:
            return None
        return WorkflowSpec(
            name=workflow.__name__,
            workflow=workflow,
            file=self.file,
            line=self.lines.get(workflow.__name__),
            shape=shape,
            plan=shape.plan(),
            priority=typing.cast(Priority, priority),
            timeout_ns=timeout_ns,
            thresholds=thresholds,
            layers=tuple(tuple(nodes[name] for name in layer) for layer in layers),
            depends_on=depends_on,
            provides=provides,
            uses=uses,
            announcements=announcements_of(workflow, nodes.values()),
        )

    def shape(self, workflow: type[Workflow]) -> LoadShape | None:
        try:
            if workflow.load is not None:
                if "vus" in vars(workflow) or "duration" in vars(workflow):
                    raise Invalid(f"{workflow.__name__} has load and also vus or duration: load already says both")
                if not isinstance(workflow.load, LoadShape):
                    raise Invalid(f"load of {workflow.__name__} is {workflow.load!r}, which is not a load shape")
                shape: LoadShape = workflow.load
            elif workflow.duration is None:
                shape = IterationsPerVU(workflow.vus, 1)
            else:
                shape = ConstantVUs(workflow.vus, workflow.duration)
            shape.plan()
        except Invalid as error:
            attribute = next((name for name in ("load", "vus", "duration") if name in str(error)), "load")
            self.complain(f"{workflow.__name__}: {error}", workflow, attribute)
            return None
        return shape

    def timeout(self, workflow: type[Workflow], shape: LoadShape | None) -> int:
        if workflow.timeout is not None:
            try:
                return parse_duration(workflow.timeout, what="timeout")
            except Invalid as error:
                self.complain(f"{workflow.__name__}: {error}", workflow, "timeout")
        return 0 if shape is None else default_timeout_ns(shape.plan())

    def thresholds(self, workflow: type[Workflow], nodes: Mapping[str, NodeSpec]) -> tuple[Threshold, ...]:
        rules = [workflow.thresholds] if isinstance(workflow.thresholds, str) else workflow.thresholds
        parsed = []
        for rule in rules:
            try:
                parsed.append(parse_threshold(rule, **names_for_thresholds(nodes.values())))
            except Invalid as error:
                self.complain(f"{workflow.__name__}: {error}", workflow, "thresholds")
        return tuple(parsed)

    def layers(self, workflow: type[Workflow], nodes: Mapping[str, NodeSpec]) -> list[list[str]]:
        waits_for = {name: node.after for name, node in nodes.items()}
        try:
            layers = layers_of(waits_for)
        except Cycle as cycle:
            line = nodes[cycle.circle[0]].line
            self.complain(f"steps of {workflow.__name__}: {cycle}", workflow, line=line)
            return []
        for name, node in nodes.items():
            for other in node.inputs:
                if other not in ancestors_of(name, waits_for):
                    self.complain(
                        f"{workflow.__name__}.{name} takes the result of {other}, but does not run after it: "
                        f"add {other!r} to its decorator",
                        workflow,
                        line=node.line,
                    )
        return layers

    # One method.

    def node(
        self, workflow: type[Workflow], found: Declaration[Any], runs: Mapping[str, Declaration[Any]]
    ) -> NodeSpec | None:
        label = f"{workflow.__name__}.{found.name}"
        problems_before = len(self.problems)

        def complain(text: str) -> None:
            self.complain(f"{label} {text}", workflow, line=found.line)

        after = self.step_names(workflow, found, runs)
        hints = self.hints(workflow, found)
        returns = hints.pop("return", inspect.Parameter.empty)
        if found.kind == "step" and returns is inspect.Parameter.empty:
            complain("has no return annotation: write -> HTTPResponse to measure it, or -> None")
        inputs: list[str] = []
        optimized: dict[str, tuple[ArgumentKind, Any]] = {}
        for parameter in list(inspect.signature(found.function).parameters.values())[1:]:
            mark = mark_of(hints.get(parameter.name), Optimized)
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                complain(f"has the parameter {parameter}: only plain and keyword parameters can be filled")
            elif mark is not None:
                if parameter.default is parameter.empty:
                    complain(f"needs a default for {parameter.name}: it is what gets prepared before the run")
                optimized[parameter.name] = (mark.kind, parameter.default)
            elif parameter.name in runs and parameter.name != found.name:
                inputs.append(parameter.name)
            elif parameter.default is parameter.empty:
                complain(f"has the parameter {parameter.name}, {no_such('step', parameter.name, runs)} and no default")
        is_async = inspect.iscoroutinefunction(found.function)
        if found.kind == "step" and not is_async:
            complain("must be an async method: write async def")
        measured = found.kind == "step" and is_response(returns)
        if isinstance(found, Metric) and found.metric_kind not in METRIC_KINDS:
            complain(f"has the kind {found.metric_kind!r}, which is not one of {', '.join(METRIC_KINDS)}")
        if isinstance(found, Check | Metric) and not after:
            after = frozenset(inputs)
            if not after:
                complain("looks at no step: name steps in its decorator or as its parameters")
        expect: Collection[int] = frozenset()
        tags: Mapping[str, str] = {}
        if isinstance(found, Step):
            try:
                expect, tags = expected(found.expect), checked_tags(found.tags)
            except Invalid as error:
                complain(str(error))
        if len(self.problems) > problems_before:
            return None
        return NodeSpec(
            name=found.name,
            kind=found.kind,
            function=found.function,
            is_async=is_async,
            after=after,
            inputs=tuple(inputs),
            optimized=optimized,
            measured=measured,
            expect=expect,
            tags=tags,
            metric_kind=found.metric_kind if isinstance(found, Metric) else None,
            line=found.line,
        )

    def step_names(
        self, workflow: type[Workflow], found: Declaration[Any], runs: Mapping[str, Declaration[Any]]
    ) -> frozenset[str]:
        names = set()
        for other in found.after:
            name = other if isinstance(other, str) else getattr(other, "name", getattr(other, "__name__", str(other)))
            if isinstance(other, Declaration) and runs.get(name) is not other and other.owner is not workflow:
                home = other.owner.__name__ if other.owner else "another class"
                text = f"names {name} of {home}: steps see only their own workflow; hand values on with @state"
            elif name not in runs:
                text = f"names {name!r}, {no_such('step', name, runs)}"
            elif name == found.name:
                text = "names itself"
            else:
                names.add(name)
                continue
            self.complain(f"{workflow.__name__}.{found.name} {text}", workflow, line=found.line)
        return frozenset(names)

    def hints(self, workflow: type[Workflow], found: Declaration[Any]) -> dict[str, Any]:
        try:
            return typing.get_type_hints(found.function, include_extras=True)
        except (NameError, TypeError, SyntaxError, AttributeError) as error:
            self.complain(
                f"{workflow.__name__}.{found.name} has an annotation that cannot be read: {error}",
                workflow,
                line=found.line,
            )
            return {"return": None}

    def states(
        self, workflow: type[Workflow], states: Mapping[str, State[Any]], by_name: Mapping[str, type[Workflow]]
    ) -> tuple[tuple[ProvideSpec, ...], tuple[UseSpec, ...]]:
        provides, uses = [], []
        for name, found in states.items():
            label = f"@state of {workflow.__name__}.{name}"
            names = self.workflow_names(workflow, found.after, by_name, label)
            hints = self.hints(workflow, found)
            returns = hints.get("return")
            flow = mark_of(returns, Flow)
            if flow is None:
                self.complain(
                    f"{label} needs the return annotation Provide[…] (to hand a value on) or Use[…] (to receive one)",
                    workflow,
                    line=found.line,
                )
                continue
            parameters = list(inspect.signature(found.function).parameters)[1:]
            types_ = {parameter: hints.get(parameter, Any) for parameter in parameters}
            if flow.provides:
                types_ = {name: typing.get_args(returns)[0]}
                is_async = inspect.iscoroutinefunction(found.function)
                provides.append(
                    ProvideSpec(key=name, function=found.function, is_async=is_async, targets=frozenset(names))
                )
            else:
                uses.append(UseSpec(method=name, sources=tuple(names), types=types_))
            for key, hint in types_.items():
                try:
                    msgspec.msgpack.Decoder(hint)
                except TypeError as error:
                    self.complain(f"{label}: {key} cannot be handed on: {error}", workflow, line=found.line)
        return tuple(provides), tuple(uses)


def declarations_of(workflow: type[Workflow]) -> dict[str, Declaration[Any]]:
    """Every declaration of the class, inherited ones first; an override replaces what it overrides, in its place."""
    found: dict[str, Declaration[Any]] = {}
    for home in reversed(workflow.__mro__):
        for name, value in vars(home).items():
            if isinstance(value, Declaration):
                found[name] = value
            elif name in found:
                del found[name]
    return found


def announcements_of(workflow: type[Workflow], nodes: Iterable[NodeSpec]) -> tuple[str, ...]:
    return tuple(
        f"{workflow.__name__}.{node.name} runs but is not measured: its return annotation is not a client's response "
        f"(write @action if that is what you want)"
        for node in nodes
        if node.kind == "step" and not node.measured
    )


def names_for_thresholds(nodes: Iterable[NodeSpec]) -> dict[str, list[str]]:
    """The names a threshold may speak of, as `parse_threshold` wants them."""
    nodes = list(nodes)
    return {
        "steps": [node.name for node in nodes if node.measured],
        "checks": [node.name for node in nodes if node.kind == "check"],
        "metrics": [node.name for node in nodes if node.kind == "metric"],
    }


def mark_of(hint: Any, mark: type[Any]) -> Any:
    """The mark inside an annotation such as `URL` or `URL | None`, if there is one."""
    if typing.get_origin(hint) is typing.Annotated:
        return next((extra for extra in hint.__metadata__ if isinstance(extra, mark)), None)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next((found for option in typing.get_args(hint) if (found := mark_of(option, mark))), None)
    return None


def is_response(hint: Any) -> bool:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(is_response(option) for option in typing.get_args(hint))
    origin = typing.get_origin(hint) or hint
    return isinstance(origin, type) and issubclass(origin, Response)


def expected(given: Any) -> Collection[int]:
    parts = [given] if isinstance(given, int | range) else given
    statuses: set[int] = set()
    try:
        for part in parts:
            statuses.update([part] if isinstance(part, int) else range(part.start, part.stop, part.step))
    except (TypeError, AttributeError):
        raise Invalid(f"expects {given!r}: give a status such as 404, a range, or a list of them") from None
    if bad := [status for status in statuses if not 100 <= status <= 599]:
        raise Invalid(f"expects the status {min(bad)}: statuses go from 100 to 599")
    return frozenset(statuses)


def checked_tags(tags: Mapping[str, str]) -> Mapping[str, str]:
    if len(tags) > TAGS_LIMIT:
        raise Invalid(f"has {len(tags)} tags: at most {TAGS_LIMIT} are kept")
    for name, value in tags.items():
        if not isinstance(value, str) or len(name) > TAG_CHARACTERS_LIMIT or len(value) > TAG_CHARACTERS_LIMIT:
            raise Invalid(
                f"has the tag {name!r}: names and values are strings of at most {TAG_CHARACTERS_LIMIT} characters"
            )
    return dict(tags)


def no_such(what: str, name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"but there is no such {what}" + (f" (did you mean {close[0]}?)" if close else "")
