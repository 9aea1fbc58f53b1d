"""A load job whose cores do what a test says, at the time it says; and managers of a cluster that hear each other."""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any, Protocol

import pytest

from talka.cluster.effects import Persist, PersistBlob, Send
from talka.cluster.leadership.lease_terms import OwnLease
from talka.cluster.leadership.news import Elected, SteppedDown, WriteEnded
from talka.control.dags.keeper_limits import KEEPER_LIMITS
from talka.control.load.core_effects import JobEnded, KillCore, LoadEffect, StartCore, TellCore, WorkflowLate
from talka.control.load.load_job import JobSpec, LoadJob
from talka.control.member.voter import Voter
from talka.stats.tally import Tally
from talka.stats.windows import Window
from talka.testing.disk import BLOB_PREFIX
from talka.units import SECOND
from talka.wire import leadership
from talka.wire.jobs import AttemptResult
from talka.wire.leadership import LeadershipMessage
from talka.wire.orders import BundleFacts, JobOrder, WorkflowOrder
from talka.wire.shards import Arm, Armed, FileSource, FromCore, Settings, Totals
from talka.work.dsl import AtTimeout, Priority
from talka.work.load import PlanSlice, Shard
from talka.work.shapes import ConstantVUs, LoadShape
from talka.work.specs import default_timeout_ns
from talka.work.thresholds import parse_threshold
from tests.control.dag_play import DagPlay

START_NS = 1_000 * SECOND


class Driven:
    """A job and its clock. Every effect is kept, and checked against what was started before."""

    def __init__(self, spec: JobSpec) -> None:
        self.job = LoadJob(spec)
        self.now = START_NS
        self.effects: list[LoadEffect] = []
        self.arms: dict[int, Arm] = {}
        """Of attempts on this machine: workers arm their own."""
        self.starts: dict[int, StartCore] = {}
        self.done: dict[int, tuple[int, ...]] = {}
        """Iterations done, per shard, when each attempt was started."""
        self.parts: dict[int, Shard | PlanSlice] = {}
        self.workflows: dict[int, str] = {}
        self.alive: set[int] = set()
        self.sequences: dict[int, int] = {}

    # What happens.

    def take(self, effects: list[LoadEffect]) -> list[LoadEffect]:
        for effect in effects:
            assert not self.has_ended, "nothing follows the end"
            match effect:
                case StartCore(attempt=core, place=place):
                    assert core not in self.starts, "a number is given to one attempt only"
                    group, shard, _ = self.job.attempts[core]
                    self.starts[core], self.done[core], self.parts[core] = effect, shard.done_by_shard, shard.shard
                    self.workflows[core] = group.spec.name
                    if not place:
                        arm = self.job.arm_for(core)
                        assert arm is not None
                        self.arms[core] = arm
                    self.alive.add(core)
                case TellCore(attempt=core):
                    assert core in self.alive, "a message to a core that does not live"
                case KillCore(attempt=core):
                    assert core in self.alive, "a core is killed that does not live"
                    self.alive.discard(core)
                case WorkflowLate() | JobEnded():
                    pass
            self.effects.append(effect)
        return effects

    def start(self) -> list[LoadEffect]:
        return self.take(self.job.start(self.now))

    def run(self) -> None:
        """Start, arm every core, and wait for the starting instant."""
        self.start()
        self.arm(*self.alive)
        self.now = self.job.origin_ns

    def later(self, seconds: float) -> "Driven":
        self.now += round(seconds * SECOND)
        return self

    def say(self, core: int, message: FromCore) -> list[LoadEffect]:
        return self.take(self.job.on_message(self.now, core, message))

    def arm(self, *cores: int) -> list[LoadEffect]:
        return [effect for core in cores for effect in self.say(core, Armed())]

    def report(
        self, core: int, tally: Tally | None = None, windows: Sequence[Window] = (), vus: int = 0, **more: Any
    ) -> list[LoadEffect]:
        """The core's next report."""
        self.sequences[core] = self.sequences.get(core, 0) + 1
        return self.say(core, Totals(self.sequences[core], tally or Tally(), list(windows), vus, 0, **more))

    def finish(self, core: int, tally: Tally | None = None, **more: Any) -> list[LoadEffect]:
        """The core's last report. Its process ends later, and that is no news."""
        return self.report(core, tally, final=True, ended_at_ns=self.now, **more)

    def result(
        self, core: int, tally: Tally | None = None, windows: Sequence[Window] = (), **more: Any
    ) -> list[LoadEffect]:
        """The whole result of a task. Its instants are told since the start of the job."""
        more = {"ended_at_ns": self.now - self.job.origin_ns, **more}
        result = AttemptResult("job", core, tally or Tally(), list(windows), **more)
        return self.take(self.job.on_result(self.now, core, result))

    def exit(self, core: int, cause: str = "was killed by SIGKILL") -> list[LoadEffect]:
        self.alive.discard(core)
        return self.take(self.job.on_exit(self.now, core, cause))

    def tick(self) -> list[LoadEffect]:
        return self.take(self.job.tick(self.now))

    def interrupt(self) -> list[LoadEffect]:
        return self.take(self.job.interrupt(self.now, "SIGINT"))

    # What is seen.

    def cores(self, workflow: str) -> list[int]:
        """The cores that were started for it, earliest first."""
        return [core for core, name in self.workflows.items() if name == workflow]

    @property
    def states(self) -> dict[str, str]:
        return {name: str(run.state) for name, run in self.job.workflows.items()}

    @property
    def has_ended(self) -> bool:
        return JobEnded() in self.effects


def workflow_of(
    name: str,
    *,
    shape: LoadShape = ConstantVUs(4, "10s"),  # noqa: B008 - it never changes
    priority: Priority = "auto",
    is_test: bool = True,
    after: Collection[str] = (),
    timeout_s: float | None = None,
    thresholds: Sequence[str] = (),
    flows: Sequence[tuple[str, str]] = (),
    is_teardown: bool = False,
    on_timeout: AtTimeout = "kill",
    saves: bool = False,
) -> WorkflowOrder:
    plan = shape.plan()
    return WorkflowOrder(
        name=name,
        plan=plan,
        priority=priority,
        is_test=is_test,
        depends_on=tuple(after),
        timeout_ns=default_timeout_ns(plan) if timeout_s is None else round(timeout_s * SECOND),
        thresholds=tuple(parse_threshold(rule) for rule in thresholds),
        flows=tuple(flows),
        load="",
        nodes=(),
        is_teardown=is_teardown,
        on_timeout=on_timeout,
        saves=saves,
    )


@pytest.fixture(scope="session")
def job_of() -> Callable[..., Driven]:
    """Makes jobs of workflows: their names, and what is not as by default."""

    def make(
        workflows: Mapping[str, Mapping[str, Any]],
        *,
        cores: int = 4,
        grace_s: float = 2,
        thresholds: Sequence[str] = (),
        places: Mapping[str, int] | None = None,
    ) -> Driven:
        spec = JobSpec(
            job="job",
            source=FileSource("shop.py"),
            workflows=tuple(workflow_of(name, **more) for name, more in workflows.items()),
            cores=cores,
            settings=Settings(round(grace_s * SECOND)),
            thresholds=tuple(parse_threshold(rule) for rule in thresholds),
        )
        driven = Driven(spec)
        driven.job.workers = None if places is None else dict(places)
        return driven

    return make


class Part(Protocol):
    """What stands beside a voter."""

    next_tick_at: int

    def on_news(self, now: int, news: object) -> list[object]: ...
    def tick(self, now: int) -> list[object]: ...


class Cabinet:
    """Voters and what stands beside them, with an instant network and disks that write at once, unless told otherwise.

    What is said to one of them whose part hears messages arrives there; everything else is kept in `out`.
    """

    def __init__(
        self,
        *names: str,
        part_of: Callable[["Cabinet", str], Part] | None = None,
        seed: int = 1,
        leases: Mapping[str, OwnLease] = {},
    ) -> None:
        self.now = START_NS
        self.leases = dict(leases)
        """Of workers, as each was told it; who is not here was not."""
        self.names = names
        self.disks: dict[str, dict[str, bytes]] = {name: {} for name in names}
        self.voters: dict[str, Voter] = {}
        self.parts: dict[str, Any] = {}
        self.out: list[tuple[str, Any]] = []
        self.lost: list[type] = []
        """Kinds of messages that the network between them loses."""
        self.boot = 0
        self._part_of = part_of
        self._seed = seed
        self._held: list[tuple[str, Persist]] | None = None
        self._mail: deque[tuple[str, str, Any]] = deque()
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        self.boot += 1
        rng = Random(f"{self._seed}:{self.boot}")
        own = self.leases.get(name, OwnLease())
        stored = dict(self.disks[name])
        voter = Voter(name=name, voters=self.names, stored=stored, rng=rng, now=self.now, own_lease=own)
        self.voters[name] = voter
        if self._part_of is not None:
            self.parts[name] = self._part_of(self, name)
        self.act(name, voter.tick(self.now))

    def stop(self, name: str) -> None:
        del self.voters[name]
        self.parts.pop(name, None)

    def hold(self) -> None:
        """Disks write only when told to."""
        self._held = []

    def write(self) -> list[Any]:
        """Disks catch up, and are quick from now on."""
        held, self._held = self._held or [], None
        before = len(self.out)
        for name, persist in held:
            self.act(name, self._persist(name, persist))
        return [effect for _, effect in self.out[before:]]

    def act(self, name: str, effects: list[Any]) -> list[Any]:
        """Carry out what one of them asks for, and all that follows; what it comes to for others."""
        before = len(self.out)
        self._carry_out(name, effects)
        while self._mail:
            sender, to, message = self._mail.popleft()
            if to in self.voters and type(message) not in self.lost:
                hear = (
                    self.voters[to].on_message if isinstance(message, LeadershipMessage) else self.parts[to].on_message
                )
                self._carry_out(to, hear(self.now, sender, message))
        return [effect for _, effect in self.out[before:]]

    def _carry_out(self, name: str, effects: list[Any]) -> None:
        todo = deque(effects)
        while todo:
            effect = todo.popleft()
            if isinstance(effect, Send) and effect.channel == leadership.CHANNEL:
                self._mail.append((name, effect.to, effect.message))
            elif isinstance(effect, Send) and effect.to in self.names and hasattr(self.parts.get(name), "on_message"):
                assert effect.to != name, "a manager speaks to itself inside"
                self._mail.append((name, effect.to, effect.message))
            elif isinstance(effect, Persist | PersistBlob) and self._held is not None:
                self._held.append((name, effect))
            elif isinstance(effect, Persist | PersistBlob):
                todo.extend(self._persist(name, effect))
            else:
                self.out.append((name, effect))
                if name in self.parts and isinstance(effect, Elected | SteppedDown | WriteEnded):
                    todo.extend(self.parts[name].on_news(self.now, effect))

    def _persist(self, name: str, persist: Persist | PersistBlob) -> list[object]:
        if isinstance(persist, PersistBlob):
            self.disks[name][BLOB_PREFIX + persist.digest] = persist.content
            kept: list[object] = self.parts[name].on_persisted(self.now, persist.ticket)
            return kept
        for key, content in persist.puts:
            if content is None:
                self.disks[name].pop(key, None)
            else:
                self.disks[name][key] = content
        return self.voters[name].on_persisted(self.now, persist.ticket)

    def run(self, seconds: float) -> list[Any]:
        """Let time pass: what it comes to for others."""
        until, before = self.now + round(seconds * SECOND), len(self.out)
        while True:
            due = [(one.next_tick_at, kind, name) for kind in (0, 1) for name, one in self._timed(kind).items()]
            at, kind, name = min(due)
            if at > until:
                break
            self.now = max(self.now, at)
            self.act(name, self._timed(kind)[name].tick(self.now))
        self.now = until
        return [effect for _, effect in self.out[before:]]

    def _timed(self, kind: int) -> Mapping[str, Any]:
        return self.parts if kind else self.voters

    def leader(self) -> str:
        """Let time pass until somebody leads: its name."""
        for _ in range(400):
            for name, voter in self.voters.items():
                if voter.election.is_leading(self.now):
                    return name
            self.run(0.05)
        raise AssertionError("nobody leads")


@pytest.fixture(scope="session")
def cabinet_of() -> Callable[..., Cabinet]:
    """Makes voters of these names, started, with what `part_of` makes beside each."""
    return Cabinet


@pytest.fixture
def play_of() -> Callable[..., DagPlay]:
    """Makes keepers of dag jobs."""
    return DagPlay


@pytest.fixture
def play(play_of: Callable[..., DagPlay], request: pytest.FixtureRequest) -> DagPlay:
    """With a parameter: limits of its keeper."""
    return play_of(limits=getattr(request, "param", KEEPER_LIMITS))


@pytest.fixture(scope="session")
def order_of() -> Callable[..., JobOrder]:
    """Makes orders of one workflow that wants so many cores."""

    def make(cores: int = 1, name: str = "shop", **more: Any) -> JobOrder:
        workflow = workflow_of("Shop", shape=ConstantVUs(64, "10s"))
        more = {"bundle": BundleFacts("0" * 64, 70, b"", "shop.py"), "settings": Settings(2 * SECOND), **more}
        return JobOrder(name=name, workflows=(workflow,), cores=cores, **more)

    return make
