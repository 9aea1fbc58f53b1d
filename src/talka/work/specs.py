"""What a checked test file says: its workflows and their methods, or what is wrong with them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from talka.errors import Invalid
from talka.stats.tally import MetricKind
from talka.units import MINUTE
from talka.work.arguments import ArgumentKind
from talka.work.dsl import AtTimeout, Connections, Driver, Priority, Users, Workflow
from talka.work.feeds import Between, Feed
from talka.work.load import Plan
from talka.work.shapes import LoadShape
from talka.work.thresholds import Threshold

OPEN_END_NS: Final = 3_600_000_000_000
"""How long a plan without an end of its own may run by default: an hour."""


class SpecProblem(msgspec.Struct, frozen=True):
    text: str
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        if self.file is None:
            return self.text
        return f"{self.file}:{self.line}: {self.text}" if self.line else f"{self.file}: {self.text}"


class BadWorkflows(Invalid):
    """What is wrong with a test file, all of it."""

    def __init__(self, problems: Sequence[SpecProblem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class NodeOutline(msgspec.Struct, frozen=True):
    """A step, action, check or metric, as far as a report shows it."""

    name: str
    kind: str
    measured: bool
    tags: dict[str, str] = {}
    metric_kind: MetricKind | None = None


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
    file: str | None = None
    """Where it is written, when that is not the workflow's own file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvideSpec:
    key: str
    function: Any
    is_async: bool
    targets: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class UseSpec:
    method: str
    function: Any = None
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
    setups: tuple[NodeSpec, ...] = ()
    teardowns: tuple[NodeSpec, ...] = ()
    feeds: Mapping[str, Feed] = field(default_factory=dict)
    think: Between | None = None
    driver: Driver = "auto"
    starts: tuple[NodeSpec, ...] = ()
    """What a user does first, one after the other."""
    stops: tuple[NodeSpec, ...] = ()
    users: Users = "auto"
    connections: Connections = "warm"
    share: int | None = None
    whole: LoadShape | None = None
    """With a share: the load of the file, if it says one. `shape` is then the whole's too; `plan` is this
    workflow's."""
    once_before: tuple[NodeSpec, ...] = ()
    """Setups that run once for the job: see `work/once.py`, which makes a workflow of them. `once_after` likewise."""
    once_after: tuple[NodeSpec, ...] = ()
    clients: frozenset[str] = frozenset()
    """Names of the clients that its steps can call."""
    evictions: tuple[NodeSpec, ...] = ()
    """What runs when its time is over, one after the other."""
    on_timeout: AtTimeout = "kill"
    is_teardown: bool = False
    """It cleans up after those it depends on, whatever became of them."""

    @property
    def load(self) -> str:
        """The load shape in words."""
        part = self.plan.share
        return f"{part.weight} in {part.total} of {self.shape.describe()}" if part else self.shape.describe()

    @property
    def think_ns(self) -> int:
        return 0 if self.think is None else (self.think.low_ns + self.think.high_ns) // 2

    @property
    def nodes(self) -> list[NodeSpec]:
        """All that users run, in its order."""
        return [*self.starts, *(node for layer in self.layers for node in layer), *self.stops]

    @property
    def has_fresh_users(self) -> bool:
        """Whether every iteration is a user of its own."""
        return self.users == "fresh" or (self.users == "auto" and self.plan.model == "open")

    @property
    def every_node(self) -> list[NodeSpec]:
        """Also those that run once, before and after."""
        return [*self.setups, *self.nodes, *self.evictions, *self.teardowns]

    @property
    def is_test(self) -> bool:
        """Whether it measures anything: only then it runs on more than one core."""
        return any(node.measured for layer in self.layers for node in layer)


def default_timeout_ns(plan: Plan) -> int:
    return (OPEN_END_NS if plan.length_ns is None else plan.length_ns) + MINUTE
