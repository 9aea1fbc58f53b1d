"""Reads workflow classes into specifications, and finds what is wrong with them before anything is sent."""

import difflib
import inspect
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any, Final

import msgspec

from talka.errors import Invalid
from talka.stats.tally import MetricKind
from talka.work.arguments import ArgumentKind, Optimized
from talka.work.calling import calls_client, makes_metrics
from talka.work.clients import TYPED
from talka.work.dsl import (
    RESERVED,
    AtTimeout,
    Bare,
    Check,
    Connections,
    Declaration,
    Driver,
    Flow,
    Function,
    Metric,
    OnEvict,
    OnStart,
    OnStop,
    Priority,
    Setup,
    State,
    Step,
    Teardown,
    Users,
    Workflow,
    code_of,
)
from talka.work.durations import parse_duration
from talka.work.feeds import Between, Feed, pause_of
from talka.work.graph import Cycle, ancestors_of, layers_of
from talka.work.load import SHARES_LIMIT
from talka.work.once import with_once
from talka.work.responses import Response
from talka.work.shapes import ConstantVUs, IterationsPerVU, LoadShape, OpenShape
from talka.work.specs import BadWorkflows, NodeSpec, ProvideSpec, SpecProblem, UseSpec, WorkflowSpec, default_timeout_ns
from talka.work.thresholds import Names, Threshold, parse_threshold

METRIC_KINDS: Final = typing.get_args(MetricKind)
TAGS_LIMIT: Final = 10
TAG_CHARACTERS_LIMIT: Final = 64


def inspect_workflows(
    classes: Sequence[type[Workflow]],
    *,
    file: str | None = None,
    lines: Mapping[str, int] | None = None,
    load: object = None,
    clients: Set[str] = TYPED,
) -> tuple[WorkflowSpec, ...]:
    """Specifications of the classes, in an order in which dependencies come first.

    `lines` tells where things stand in `file`: `"Class"` and `"Class.attribute"` to line numbers. `load` is what the
    file has under this name: the load that classes with a `share` share. `clients` are the names under `self.client`: a
    step that calls one of them is measured.
    """
    reader = ClassReader(file, lines or {}, load, clients)
    return reader.read(classes)


class ClassReader:
    """Collects problems while it reads, so that a user sees all of them at once."""

    def __init__(self, file: str | None, lines: Mapping[str, int], load: object, clients: Set[str]) -> None:
        self.file = file
        self.lines = lines
        self.load = load
        self.clients = clients
        self.problems: list[SpecProblem] = []
        self.provides: dict[str, tuple[ProvideSpec, ...]] = {}
        self.uses: dict[str, tuple[UseSpec, ...]] = {}

    def read(self, classes: Sequence[type[Workflow]]) -> tuple[WorkflowSpec, ...]:
        by_name: dict[str, type[Workflow]] = {}
        for workflow in classes:
            if workflow.__name__ in by_name:
                self.complain(f"there are two workflows named {workflow.__name__}", workflow)
            by_name[workflow.__name__] = workflow
        waits_for = {name: self.dependencies(workflow, by_name) for name, workflow in by_name.items()}
        order = list(by_name)
        try:
            order = [name for layer in layers_of(waits_for) for name in layer]
        except Cycle as cycle:
            self.complain(f"@depends: {cycle}", by_name[cycle.circle[0]])
        found = [self.workflow(by_name[name], waits_for[name], by_name) for name in order]
        specs = tuple(spec for spec in found if spec is not None)
        self.match_states(by_name, waits_for)
        self.match_shares(specs, waits_for)
        if self.problems:
            raise BadWorkflows(self.problems)
        return with_once(specs)

    def complain(
        self,
        text: str,
        workflow: type[Workflow],
        *,
        attribute: str | None = None,
        function: Function | None = None,
    ) -> None:
        """`function` or `attribute` is where the mistake stands; without them it is the class."""
        code = code_of(function)
        line = self.lines.get(workflow.__name__) if code is None else code.co_firstlineno
        for home in reversed(workflow.__mro__):
            if home.__module__ == workflow.__module__:
                line = self.lines.get(f"{home.__name__}.{attribute}", line)
        self.problems.append(SpecProblem(text, self.file_elsewhere(workflow, function) or self.file, line))

    def file_elsewhere(self, workflow: type[Workflow], function: Function | None) -> str | None:
        """The file of a method that was inherited from another file than the one that is read."""
        code = code_of(function)
        if self.file is None or code is None or getattr(function, "__module__", None) == workflow.__module__:
            return None
        return code.co_filename

    # Workflows among each other.

    def dependencies(self, workflow: type[Workflow], by_name: Mapping[str, type[Workflow]]) -> frozenset[str]:
        given = setting(workflow, "depends_on")
        return frozenset(self.workflow_names(workflow, given, by_name, f"@depends of {workflow.__name__}"))

    def workflow_names(
        self,
        workflow: type[Workflow],
        given: Iterable[object],
        by_name: Mapping[str, type[Workflow]],
        label: str,
        function: Function | None = None,
    ) -> list[str]:
        names = []
        for other in given:
            name = other.__name__ if isinstance(other, type) else str(other)
            if name in by_name:
                names.append(name)
            else:
                text = f"{label} names {name}, {no_such('workflow', name, by_name)}"
                self.complain(text, workflow, function=function)
        return names

    def match_states(self, by_name: Mapping[str, type[Workflow]], waits_for: Mapping[str, Collection[str]]) -> None:
        """A value flows only when the provider names the user and the user names the provider."""
        for name, workflow in by_name.items():
            before = ancestors_of(name, waits_for)
            for use in self.uses[name]:
                label = f"{name}.{use.method} uses"
                texts = [
                    f"{label} state of {source}, which need not have run: add @depends({source!r})"
                    for source in use.sources
                    if source not in before
                ]
                for key in use.types if use.sources else ():
                    offers = {
                        source: provide.targets
                        for source in use.sources
                        for provide in self.provides[source]
                        if provide.key == key
                    }
                    if not offers:
                        texts.append(
                            f"{label} {key!r}, but nobody provides it: no @state method named "
                            f"{key} with -> Provide[…] in {' or '.join(use.sources)}"
                        )
                    elif not any(name in targets for targets in offers.values()):
                        texts.append(
                            f"{label} {key!r}, which {' and '.join(offers)} provides to others only: "
                            f"name {name} in its @state(…)"
                        )
                for text in texts:
                    self.complain(text, workflow, function=use.function)

    def match_shares(self, specs: Sequence[WorkflowSpec], waits_for: Mapping[str, Collection[str]]) -> None:
        """All that measure share the load, or none does; and those that share it run at the same time."""
        sharing = [spec.name for spec in specs if spec.share is not None]
        for spec in specs:
            if not sharing:
                return
            if spec.share is None and spec.is_test:
                text = (
                    f"{spec.name} has no share, but {sharing[0]} has: give one to every class that measures, or to none"
                )
                self.complain(text, spec.workflow)
            elif spec.share is not None and not spec.is_test:
                text = f"{spec.name} measures nothing and has no part of the load: leave share out"
                self.complain(text, spec.workflow, attribute="share")
            elif spec.share is not None:
                for other in sorted(ancestors_of(spec.name, waits_for) & set(sharing)):
                    text = f"{spec.name} depends on {other}: classes that share a load run at the same time"
                    self.complain(text, spec.workflow)

    # One workflow.

    def workflow(
        self, workflow: type[Workflow], depends_on: frozenset[str], by_name: Mapping[str, type[Workflow]]
    ) -> WorkflowSpec | None:
        problems_before = len(self.problems)
        self.complain_about_lost(workflow)
        declared = declarations_of(workflow)
        for name, found in declared.items():
            label = f"{workflow.__name__}.{name}"
            if name in RESERVED:
                text = f"{label} has a name Talka keeps for itself: choose another"
            elif isinstance(found, Bare):
                text = f"{label} is under @{found.decorator} without parentheses: write @{found.decorator}()"
            elif found.name != name:
                text = f"{label} is the same method as {found.name}: write it a second time"
            else:
                continue
            self.complain(text, workflow, function=found.function)
        states = {name: found for name, found in declared.items() if isinstance(found, State)}
        hooks = {
            name: found
            for name, found in declared.items()
            if isinstance(found, Setup | Teardown | OnStart | OnStop | OnEvict)
        }
        runs = {name: found for name, found in declared.items() if name not in states and name not in hooks}
        if not runs and not states:
            self.complain(f"{workflow.__name__} has no steps: decorate a method with @step()", workflow)
        nodes = {name: self.node(workflow, found, runs) for name, found in runs.items()}
        once = {name: self.node(workflow, found, {}) for name, found in hooks.items()}
        for_job = {name for name, found in hooks.items() if isinstance(found, Setup | Teardown) and found.once}

        def hooks_of(kind: str, *, of_job: bool = False) -> tuple[NodeSpec, ...]:
            return tuple(node for name, node in once.items() if node.kind == kind and (name in for_job) is of_job)

        layers = self.layers(workflow, nodes)
        # Rules that name a step with a problem of its own are not wrong for that.
        known: Names = (
            names_for_thresholds({workflow.__name__: [*nodes.values(), *once.values()]})
            if len(self.problems) == problems_before
            else {}
        )
        provides, uses = self.states(workflow, states, by_name)
        self.provides[workflow.__name__], self.uses[workflow.__name__] = provides, uses
        shape = self.shape(workflow)
        thresholds = self.thresholds(workflow, known)
        priority = self.choice(workflow, "priority", Priority, str(setting(workflow, "priority")).lower())
        driver = self.choice(workflow, "driver", Driver, setting(workflow, "driver"))
        # What is no text is an attribute of the test's own, such as a feed.
        users, connections, on_timeout = (
            self.choice(workflow, name, choices, value if isinstance(value, str) else getattr(Workflow, name))
            for name, choices in (("users", Users), ("connections", Connections), ("on_timeout", AtTimeout))
            for value in [setting(workflow, name)]
        )
        timeout_ns = self.timeout(workflow, shape)
        think = self.think(workflow, shape)
        if shape is None:
            return None
        return WorkflowSpec(
            name=workflow.__name__,
            workflow=workflow,
            file=self.file,
            line=self.lines.get(workflow.__name__),
            shape=shape,
            plan=shape.plan(),
            priority=priority,
            timeout_ns=timeout_ns,
            thresholds=thresholds,
            layers=tuple(tuple(nodes[name] for name in layer) for layer in layers),
            depends_on=depends_on,
            provides=provides,
            uses=uses,
            announcements=announcements_of(workflow, nodes.values()),
            setups=hooks_of("setup"),
            teardowns=hooks_of("teardown"),
            once_before=hooks_of("setup", of_job=True),
            once_after=hooks_of("teardown", of_job=True),
            feeds=feeds_of(workflow),
            think=think,
            driver=driver,
            starts=hooks_of("on_start"),
            stops=hooks_of("on_stop"),
            evictions=hooks_of("on_evict"),
            on_timeout=on_timeout,
            users=users,
            connections=connections,
            share=setting(workflow, "share"),
            clients=frozenset(self.clients),
            whole=shape if self.load is not None and setting(workflow, "share") is not None else None,
        )

    def choice(self, workflow: type[Workflow], name: str, choices: Any, value: Any) -> Any:
        """A setting that is one of some words."""
        if value not in (words := typing.get_args(choices)):
            text = f"{workflow.__name__}: {name} = {value!r} is not one of {', '.join(words)}"
            self.complain(text, workflow, attribute=name)
        return value

    def complain_about_lost(self, workflow: type[Workflow]) -> None:
        """Methods that were declared, and that Python dropped without a word."""
        for home in workflow.__mro__:
            for name, function in vars(home).get("__duplicates__", ()):
                self.complain(f"{home.__name__} has two methods named {name}", workflow, function=function)
            for name, value in vars(home).items():
                hidden = getattr(value, "__wrapped__", None)
                if isinstance(hidden, Declaration):
                    text = f"{home.__name__}.{name} has a decorator above @{hidden.kind}: put @{hidden.kind} on top"
                    self.complain(text, workflow, function=hidden.function)

    def shape(self, workflow: type[Workflow]) -> LoadShape | None:
        load, vus, duration = (setting(workflow, name) for name in ("load", "vus", "duration"))
        if setting(workflow, "share") is not None:
            return self.shared_shape(workflow)
        try:
            if load is not None:
                if is_set_with(workflow, "load", "vus") or is_set_with(workflow, "load", "duration"):
                    raise Invalid("it has load and also vus or duration: load already says both")
                if not isinstance(load, LoadShape):
                    raise Invalid(f"load = {load!r} is not a load shape: write one such as ConstantVUs(10, '1m')")
                shape: LoadShape = load
            elif duration is None:
                shape = IterationsPerVU(vus, 1)
            else:
                shape = ConstantVUs(vus, duration)
            shape.plan()
        except Invalid as error:
            attribute = "load" if load is not None else "duration" if "duration = " in str(error) else "vus"
            self.complain(f"{workflow.__name__}: {error}", workflow, attribute=attribute)
            return None
        return shape

    def shared_shape(self, workflow: type[Workflow]) -> LoadShape | None:
        """The load of the whole file; a stand-in where it comes with the command."""
        share = setting(workflow, "share")
        own = [name for name in ("load", "vus", "duration") if is_set_in(workflow, name)]
        try:
            if not isinstance(share, int) or isinstance(share, bool) or not 1 <= share <= SHARES_LIMIT:
                raise Invalid(f"share = {share!r} is not possible: write a whole number from 1 to {SHARES_LIMIT:,}")
            if own:
                raise Invalid(f"it has share and also {' and '.join(own)}: a share is of the load of the whole file")
            if str(setting(workflow, "priority")).lower() == "exclusive":
                raise Invalid("it has share and the priority exclusive: those that share a load run at the same time")
            if self.load is None:
                return IterationsPerVU(1, 1)
            if not isinstance(self.load, LoadShape):
                raise Invalid(f"the file's load = {self.load!r} is not a load shape such as ConstantRate('50/s', '1m')")
            self.load.plan()
        except Invalid as error:
            self.complain(f"{workflow.__name__}: {error}", workflow, attribute="share")
            return None
        return self.load

    def think(self, workflow: type[Workflow], shape: LoadShape | None) -> Between | None:
        try:
            pause = pause_of(setting(workflow, "think"))
            if pause is not None and isinstance(shape, OpenShape):
                raise Invalid(
                    "think has no meaning with an arrival rate, where users do not come back:"
                    " write await self.pause(…) in a step"
                )
        except Invalid as error:
            self.complain(f"{workflow.__name__}: {error}", workflow, attribute="think")
            return None
        return pause

    def timeout(self, workflow: type[Workflow], shape: LoadShape | None) -> int:
        timeout = setting(workflow, "timeout")
        if timeout is not None:
            try:
                if timeout_ns := parse_duration(timeout, what="timeout"):
                    return timeout_ns
                raise Invalid(f"timeout = {timeout!r} leaves no time to run: write a duration above 0")
            except Invalid as error:
                self.complain(f"{workflow.__name__}: {error}", workflow, attribute="timeout")
        return 0 if shape is None else default_timeout_ns(shape.plan())

    def thresholds(self, workflow: type[Workflow], known: Names) -> tuple[Threshold, ...]:
        rules = setting(workflow, "thresholds")
        rules = [rules] if isinstance(rules, str) else rules
        parsed = []
        if not isinstance(rules, Collection) or not all(isinstance(rule, str) for rule in rules):
            text = f"{workflow.__name__}: thresholds = {rules!r} is not a list of rules such as 'failed < 1%'"
            self.complain(text, workflow, attribute="thresholds")
            return ()
        for rule in rules:
            try:
                parsed.append(parse_threshold(rule, **known))
            except Invalid as error:
                self.complain(f"{workflow.__name__}: {error}", workflow, attribute="thresholds")
        return tuple(parsed)

    def layers(self, workflow: type[Workflow], nodes: Mapping[str, NodeSpec]) -> list[list[str]]:
        waits_for = {name: node.after for name, node in nodes.items()}
        try:
            layers = layers_of(waits_for)
        except Cycle as cycle:
            self.complain(f"steps of {workflow.__name__}: {cycle}", workflow, function=nodes[cycle.circle[0]].function)
            return []
        for name, node in nodes.items():
            for other in node.inputs:
                if other not in ancestors_of(name, waits_for):
                    self.complain(
                        f"{workflow.__name__}.{name} takes the result of {other}, but does not run after it: "
                        f"add {other!r} to its decorator",
                        workflow,
                        function=node.function,
                    )
        return layers

    # One method.

    def node(self, workflow: type[Workflow], found: Declaration[Any], runs: Mapping[str, Declaration[Any]]) -> NodeSpec:
        label = f"{workflow.__name__}.{found.name}"
        problems_before = len(self.problems)

        def complain(text: str) -> None:
            self.complain(f"{label} {text}", workflow, function=found.function)

        after = self.step_names(workflow, found, runs)
        hints = self.hints(workflow, found)
        if hints is None:
            hints = {"return": None}
        returns = hints.pop("return", inspect.Parameter.empty)
        inputs: list[str] = []
        optimized: dict[str, tuple[ArgumentKind, Any]] = {}
        parameters = list(inspect.signature(found.function).parameters.values())
        if not parameters:
            complain("is a method and needs the parameter self")
        for parameter in parameters[1:]:
            mark = mark_of(hints.get(parameter.name), Optimized)
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                complain(f"has the parameter {parameter}: only plain and keyword parameters can be filled")
            elif mark is not None:
                if parameter.default is parameter.empty:
                    complain(f"needs a default for {parameter.name}: it is what gets prepared before the run")
                optimized[parameter.name] = (mark.kind, parameter.default)
            elif isinstance(runs.get(parameter.name), Check | Metric) and parameter.name != found.name:
                complain(f"takes the result of {parameter.name}, {leaves_nothing(runs[parameter.name])}")
            elif parameter.name in runs and parameter.name != found.name:
                inputs.append(parameter.name)
            elif parameter.default is parameter.empty:
                complain(f"has the parameter {parameter.name}, {no_such('step', parameter.name, runs)} and no default")
        is_async = inspect.iscoroutinefunction(found.function)
        if found.kind == "step" and not is_async:
            complain("must be an async method: write async def")
        measured = isinstance(found, OnStart | OnStop) or (
            found.kind == "step" and (is_response(returns) or calls_client(found.function, workflow, self.clients))
        )
        if isinstance(found, Metric) and found.metric_kind not in METRIC_KINDS:
            complain(f"has the kind {found.metric_kind!r}, which is not one of {', '.join(METRIC_KINDS)}")
        if isinstance(found, Check | Metric) and not found.after:
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
        return NodeSpec(
            name=found.name,
            kind=found.kind,
            function=found.function,
            is_async=is_async,
            after=after,
            # One mistake, one complaint: where a name in the decorator is wrong, so is the order that follows from it.
            inputs=tuple(inputs) if len(self.problems) == problems_before else (),
            optimized=optimized,
            measured=measured,
            expect=expect,
            tags=tags,
            metric_kind=found.metric_kind if isinstance(found, Metric) else None,
            line=found.line,
            file=self.file_elsewhere(workflow, found.function),
        )

    def step_names(
        self, workflow: type[Workflow], found: Declaration[Any], runs: Mapping[str, Declaration[Any]]
    ) -> frozenset[str]:
        names = set()
        for other in found.after:
            name = other if isinstance(other, str) else getattr(other, "name", getattr(other, "__name__", str(other)))
            if isinstance(other, Declaration) and runs.get(name) is not other and other.owner not in workflow.__mro__:
                home = other.owner.__name__ if other.owner else "another class"
                text = f"names {name} of {home}: steps see only their own workflow; hand values on with @state"
            elif name not in runs:
                text = f"names {name!r}, {no_such('step', name, runs)}"
            elif name == found.name:
                text = "names itself"
            elif isinstance(runs[name], Check | Metric):
                text = f"names {name}, {leaves_nothing(runs[name])}"
            else:
                names.add(name)
                continue
            self.complain(f"{workflow.__name__}.{found.name} {text}", workflow, function=found.function)
        return frozenset(names)

    def hints(self, workflow: type[Workflow], found: Declaration[Any]) -> dict[str, Any] | None:
        try:
            return typing.get_type_hints(found.function, include_extras=True)
        except Exception as error:  # noqa: BLE001 - an annotation written as a string is the user's code
            text = f"{workflow.__name__}.{found.name} has an annotation that cannot be read: {error}"
            self.complain(text, workflow, function=found.function)
            return None

    def states(
        self, workflow: type[Workflow], states: Mapping[str, State[Any]], by_name: Mapping[str, type[Workflow]]
    ) -> tuple[tuple[ProvideSpec, ...], tuple[UseSpec, ...]]:
        provides, uses = [], []
        for name, found in states.items():
            label, function = f"@state of {workflow.__name__}.{name}", found.function
            names = self.workflow_names(workflow, found.after, by_name, label, function)
            hints = self.hints(workflow, found)
            if hints is None:
                continue
            returns = hints.get("return")
            flow = mark_of(returns, Flow)
            if flow is None:
                text = f"{label} needs the return annotation Provide[…] (to hand a value on) or Use[…] (to receive one)"
                self.complain(text, workflow, function=function)
                continue
            parameters = list(inspect.signature(function).parameters.values())[1:]
            types_ = {parameter.name: hints.get(parameter.name, Any) for parameter in parameters}
            if flow.provides:
                if any(parameter.default is parameter.empty for parameter in parameters):
                    text = f"{label} hands a value on and takes no parameters: read self.STEP.response instead"
                    self.complain(text, workflow, function=function)
                types_ = {name: returns}
                is_async = inspect.iscoroutinefunction(function)
                provides.append(ProvideSpec(key=name, function=function, is_async=is_async, targets=frozenset(names)))
            else:
                uses.append(UseSpec(method=name, function=function, sources=tuple(names), types=types_))
            for key, hint in types_.items():
                if (reason := why_not_handed_on(hint)) is not None:
                    self.complain(f"{label}: {key} cannot be handed on: {reason}", workflow, function=function)
        return tuple(provides), tuple(uses)


def setting(workflow: type[Workflow], name: str) -> Any:
    """The value of an attribute; the default when a method took its name, which is a mistake of its own."""
    value = getattr(workflow, name)
    return getattr(Workflow, name) if isinstance(value, Declaration) else value


def is_set_in(workflow: type[Workflow], name: str) -> bool:
    """Whether the class sets it, or one that it inherits from."""
    return any(name in vars(home) for home in workflow.__mro__ if home is not Workflow)


def is_set_with(workflow: type[Workflow], name: str, other: str) -> bool:
    """Whether `other` is set by the class that sets `name`, or by one that inherits from it."""
    homes = [vars(home) for home in workflow.__mro__]
    first = next(position for position, home in enumerate(homes) if name in home)
    return any(other in home for home in homes[: first + 1])


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


def feeds_of(workflow: type[Workflow]) -> dict[str, Feed]:
    """Every feed of the class, inherited ones included."""
    found = {name: value for home in reversed(workflow.__mro__) for name, value in vars(home).items()}
    return {name: value for name, value in found.items() if isinstance(value, Feed)}


def announcements_of(workflow: type[Workflow], nodes: Iterable[NodeSpec]) -> tuple[str, ...]:
    return tuple(
        f"{workflow.__name__}.{node.name} runs but is not measured: it calls no client, and its return annotation is "
        "not a "
        f"client's response (write @action if that is what you want)"
        for node in nodes
        if node.kind == "step" and not node.measured
    )


def names_for_thresholds(workflows: Mapping[str, Iterable[NodeSpec]]) -> Names:
    """The names a threshold may speak of, of workflows with these methods."""
    nodes = [node for methods in workflows.values() for node in methods]
    names = Names(
        steps=[node.name for node in nodes if node.measured],
        checks=[node.name for node in nodes if node.kind == "check"],
        metrics=[node.name for node in nodes if node.kind == "metric"],
        workflows={
            name: {node.name: node.tags for node in methods if node.measured} for name, methods in workflows.items()
        },
        methods=[node.name for node in nodes],
    )
    if any(makes_metrics(node.function) for node in nodes):
        del names["metrics"]  # `self.metric` takes any name
    return names


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


def why_not_handed_on(hint: Any) -> str | None:
    try:
        msgspec.msgpack.Decoder(hint)
    except TypeError as error:
        return str(error)
    try:
        # The decoder takes any class and leaves it to a hook, which we do not have; a schema refuses such classes.
        msgspec.json.schema(hint)
    except TypeError:
        return "use numbers, text, lists, dicts, dataclasses or msgspec structs"
    return None


def expected(given: Any) -> Collection[int]:
    statuses: set[int] = set()
    try:
        for part in [given] if isinstance(given, int | range) else given:
            values = part if isinstance(part, range) else range(part, part + 1)
            # Ends first: a range may be too long to be gone through.
            if bad := [status for status in (*values[:1], *values[-1:]) if not 100 <= status <= 599]:
                raise Invalid(f"expects the status {bad[0]}: statuses go from 100 to 599")
            statuses.update(values)
    except TypeError:
        raise Invalid(f"expects {given!r}: give a status such as 404, a range, or a list of them") from None
    return frozenset(statuses)


def checked_tags(tags: Mapping[str, str]) -> Mapping[str, str]:
    if len(tags) > TAGS_LIMIT:
        raise Invalid(f"has {len(tags)} tags: at most {TAGS_LIMIT} are kept")
    for tag in tags.items():
        if not all(isinstance(text, str) and len(text) <= TAG_CHARACTERS_LIMIT for text in tag):
            raise Invalid(
                f"has the tag {tag[0]!r}: names and values are strings of at most {TAG_CHARACTERS_LIMIT} characters"
            )
    return dict(tags)


def leaves_nothing(judge: Declaration[Any]) -> str:
    return f"but a {judge.kind} leaves no result and nothing runs after it: name the step it looks at"


def no_such(what: str, name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"but there is no such {what}" + (f" (did you mean {close[0]}?)" if close else "")
