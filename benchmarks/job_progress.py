"""What a thousand workers' reports cost the manager that leads their job: its real code, fed with real sealed frames.

One process, no sockets: a member with its admission, seal, voter and manager, and workers as certificates prove them.
The latter are what it takes to make their frames; those are made outside the measured time, and what the manager sends
is opened outside it too.
"""

import cProfile
import gc
import io
import pstats
import statistics
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

import msgspec

from talka.cluster.effects import HANDLE, Lane, Persist, PersistBlob, Transmit
from talka.cluster.membership.membership import Membership
from talka.cluster.membership.presets import PRESETS
from talka.control.clients.overload import Level
from talka.control.clients.shedding import report_interval_ms
from talka.control.jobs.effects import JobAcceptedNews, Updated
from talka.control.manager import Manager, ManagerEffect
from talka.control.member.admission import Admission
from talka.control.member.composite import ClusterMember, MemberEffect
from talka.control.member.replay_guard import ReplayGuard
from talka.control.member.voter import Voter
from talka.control.tasks.parts import in_parts
from talka.stats.tally import StepTally, Tally
from talka.stats.windows import Window
from talka.testing.trust import keys_of_workers
from talka.units import SECOND
from talka.wire import jobs, manager_calls, shards
from talka.wire.greeting import Self
from talka.wire.jobs import (
    REPORT_LIMIT_BYTES,
    Acknowledge,
    Assign,
    Beat,
    JobMessage,
    ManagerAt,
    Renew,
    Report,
    Running,
    Start,
    Sync,
    Synced,
    WorkerFacts,
)
from talka.wire.orders import BundleFacts, JobOrder, WorkflowOrder
from talka.wire.security.keys import Keyring
from talka.wire.security.roles import Proven, Role
from talka.wire.security.sealing import Seal
from talka.wire.shards import Armed, Settings, StepTotals, Totals
from talka.wire.versions import VERSION as PROTOCOL_VERSION
from talka.work.lifecycle import TaskState
from talka.work.shapes import ConstantVUs
from talka.work.specs import NodeOutline

MANAGER: Final = "manager"
CLUSTER: Final = "bench"
GROUP: Final = f"{CLUSTER}/{CLUSTER}"
SECRET: Final = "the secret of a cluster that is only a benchmark"
CORES: Final = 8
STEPS: Final = 5
KINDS: Final = 8
"""Workers that count alike: drawing values for each of a thousand would take minutes."""
REQUESTS_PER_STEP: Final = 400
"""Of one worker in a second: 2,000 requests a second in all of its steps."""
SECONDS_BEFORE: Final = 60
"""Of load, drawn at once: histograms are as wide as after a minute."""
WARM_UP: Final = 2


class NotMeasured(Exception):
    """What was to be measured did not come about."""


class Cost(msgspec.Struct):
    workers: int
    every_ms: int
    cpu_s: list[float]
    """Of each simulated second."""
    report_bytes: int
    """Of one report of one worker, before compression."""
    frame_bytes: int
    """Of all frames of one second, as they came."""
    frames: int
    told_steps: int
    """Updates with every step: of so many workers they are merged little by little."""
    profile: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.cpu_s)


def porter_of(name: str, boot: int, role: Role, rng: Random) -> tuple[ReplayGuard, Admission]:
    replay_guard = ReplayGuard(group=GROUP, name=name, boot=boot)
    me = Self(CLUSTER, CLUSTER, role, str(PROTOCOL_VERSION), [], [], "", "", "bench")
    return replay_guard, Admission(
        replay_guard=replay_guard, seal=Seal(Keyring.of((SECRET,)), boot), name=name, me=me, rng=rng, certified=True
    )


class Counts:
    """What workers of one kind have counted."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._steps = {f"step {index}": StepTally() for index in range(STEPS)}
        self._tally = Tally()
        self._count(SECONDS_BEFORE * REQUESTS_PER_STEP)

    def report(self, sequence: int, indexes: range, started_at_ns: int, requests: int) -> list[bytes]:
        """The contents of a report after so many more requests of each step, with these windows."""
        self._count(requests)
        windows = [self._window(index) for index in indexes]
        parts = [StepTotals(sequence, name, step, True) for name, step in self._steps.items()]
        shares = (self._tally.started // CORES,) * CORES
        closing = Totals(
            sequence, self._tally, windows, 2 * CORES, started_at_ns, shares=shares, spread_ns=1, parts=len(parts)
        )
        return [shards.encode_unread(part) for part in (*parts, closing)]

    def _count(self, requests: int) -> None:
        for index, step in enumerate(self._steps.values()):
            for _ in range(requests):
                response_us = self._time_us(index)
                step.response_time.record(response_us)
                step.service_time.record(response_us - response_us // 16)
            step.ok += requests
            step.outcomes["200"] = step.ok
        tally = self._tally
        tally.started = tally.iterations = tally.started + requests
        tally.exchanges.ok += requests * STEPS
        for _ in range(requests // 40):
            tally.generator.loop_lag.record(self._time_us(0) // 20)

    def _window(self, index: int) -> Window:
        requests = REQUESTS_PER_STEP * STEPS // 10
        window = Window(index, started=requests // STEPS, requests=requests, vus=2 * CORES)
        for number in range(requests):
            window.response_time.record(self._time_us(number % STEPS))
        # As workers do that report once a second.
        window.response_time = window.response_time.blurred()
        return window

    def _time_us(self, step: int) -> int:
        return int(self._rng.lognormvariate(8 + step / 4, 0.4))


class SimulatedWorker:
    """Makes frames and answers what a manager asks before the load begins."""

    def __init__(self, number: int, boot: int, rng: Random) -> None:
        self.name = f"w{number:04d}"
        self.source = f"{HANDLE}{number}"
        self.proven = Proven(self.name, Role.WORKER)
        self.attempt = 0
        self.job = ""
        self.job_origin_ns = 0
        self.acknowledged = 0
        self.every_ms = 0
        self.renewed = 0
        self._beats = 0
        self._facts = WorkerFacts(cores=CORES, memory_bytes=1 << 34, version="bench", folder=number + 1, life=1)
        _, self._admission = porter_of(self.name, boot, Role.WORKER, rng)

    def hello(self, now: int) -> bytes:
        return next(one.frame for one in self._admission.hello(now, MANAGER) if isinstance(one, Transmit))

    def frame(self, now: int, message: JobMessage) -> bytes:
        return self._admission.wrap(now, jobs.CHANNEL.number, jobs.encode(message), to=MANAGER)

    def beat(self, now: int) -> bytes:
        self._beats += 1
        running = (Running(self.job, self.attempt, CORES, "running"),) if self.attempt else ()
        return self.frame(now, Beat(self._beats, self._facts, running))

    def hear(self, now: int, frame: bytes) -> list[bytes]:
        """Frames that answer this one."""
        arrivals, said = self._admission.receive(now, MANAGER, frame, Lane.STREAM, -1, Proven(MANAGER, Role.MANAGER))
        answers = [one.frame for one in said if isinstance(one, Transmit)]
        for arrival in arrivals:
            match jobs.decode(arrival.packet.body):
                case Sync(number=number):
                    answers.append(self.frame(now, Synced(number, now)))
                case Assign(job=job, attempt=attempt):
                    self.job, self.attempt = job, attempt
                    answers.append(self.frame(now, Report(job, attempt, shards.encode(Armed()))))
                case Start(job_origin_ns=job_origin_ns):
                    self.job_origin_ns = job_origin_ns
                case Acknowledge(sequence=sequence, every_ms=every_ms):
                    self.acknowledged, self.every_ms = max(self.acknowledged, sequence), every_ms
                case Renew(number=number):
                    self.renewed = number
                case _:
                    pass
        return answers


class Bench:
    def __init__(self, workers: int, seed: int, profile: cProfile.Profile | None) -> None:
        rng = Random(seed)
        self.now = 1000 * SECOND
        self.cpu_s = 0.0
        self.told_steps = 0
        self.accepted = ""
        self.sent: list[Transmit] = []
        self._profile = profile
        self._workers = [SimulatedWorker(number, number + 2, rng) for number in range(workers)]
        self._by_source = {worker.source: worker for worker in self._workers}
        self._reports_per_second = 1000 // report_interval_ms(Level.NORMAL, workers)
        self._kinds = [Counts(Random(f"{seed} {kind}")) for kind in range(KINDS)]
        self._make_manager(rng)

    def _make_manager(self, rng: Random) -> None:
        boot, now, address = 1, self.now, "127.0.0.1:8471"
        replay_guard, admission = porter_of(MANAGER, boot, Role.MANAGER, rng)
        voter = Voter(name=MANAGER, voters=(MANAGER,), stored={}, rng=rng, now=now)
        here = (ManagerAt(MANAGER, address),)
        self.manager = Manager(
            name=MANAGER,
            boot=boot,
            voter=voter,
            rng=rng,
            wall_offset_ns=0,
            keys=keys_of_workers(boot),
            managers=lambda: here,
            blobs=(),
        )
        members = Membership(
            name=MANAGER,
            boot=boot,
            address=address,
            zone="",
            group=GROUP,
            config=PRESETS["default"],
            rng=rng,
            now=now,
        )
        self.member = ClusterMember(
            group=GROUP,
            name=MANAGER,
            boot=boot,
            membership=members,
            voter=voter,
            part=self.manager,
            replay_guard=replay_guard,
            admission=admission,
        )

    # The manager's shell.

    def carry_out(self, effects: Sequence[MemberEffect | ManagerEffect]) -> None:
        for effect in effects:
            match effect:
                case Transmit():
                    self.sent.append(effect)
                case Persist(ticket=ticket) | PersistBlob(ticket=ticket):
                    self.carry_out(self.member.on_persisted(self.now, ticket))
                case Updated(update=update):
                    self.told_steps += any(one.tally is not None and one.tally.steps for one in update.workflows)
                    msgspec.json.encode(update)  # as the API does for who watches
                case JobAcceptedNews(job=job):
                    self.accepted = job
                case _:
                    pass

    def ask(self, effects: Sequence[ManagerEffect]) -> None:
        self.carry_out(self.member.act(self.now, effects))

    def tick_until(self, until: int) -> None:
        while self.member.next_tick_at <= until:
            self.now = max(self.now, self.member.next_tick_at)
            self.carry_out(self.member.tick(self.now))
        self.now = max(self.now, until)

    def frame(self, source: str, frame: bytes) -> None:
        proven = self._by_source[source].proven
        self.carry_out(self.member.on_frame(self.now, source, frame, Lane.STREAM, -1, proven))

    def deliver(self) -> None:
        """What the manager has sent reaches the workers, and their answers the manager, until all are silent."""
        while self.sent:
            sent, self.sent = self.sent, []
            for one in sent:
                worker = self._by_source.get(one.to)
                for answer in worker.hear(self.now, one.frame) if worker is not None else ():
                    self.frame(one.to, answer)

    # From an empty cluster to a running job.

    def begin(self) -> None:
        self.carry_out(self.member.start(self.now))
        self._until(lambda: self.manager.registry is not None, "a leader")
        for worker in self._workers:
            self.frame(worker.source, worker.hello(self.now))
        self.deliver()
        self._beat()
        registry = self.manager.registry
        assert registry is not None
        self._until(lambda: registry.fleet.total() == CORES * len(self._workers), "that all workers are registered")
        submission = manager_calls.SubmitJob(order_for(len(self._workers)), "bench")
        self.ask(self.manager.call(self.now, submission)[1])
        self._until(self._is_running, "that the load has begun", beats=True)
        self.ask(self.manager.watch(self.now, self.accepted, steps=True)[1])
        # The first report has the windows of the first second.
        self.tick_until(self._workers[0].job_origin_ns + SECOND)
        self.deliver()

    def _is_running(self) -> bool:
        led = self.manager.led.get(self.accepted)
        is_started = all(worker.job_origin_ns for worker in self._workers)
        return (
            is_started
            and led is not None
            and led.job is not None
            and all(run.state is TaskState.RUNNING for run in led.job.workflows.values())
        )

    def _until(self, holds: Callable[[], bool], what: str, beats: bool = False) -> None:
        for number in range(200):
            if holds():
                return
            self.tick_until(self.now + SECOND // 10)
            self.deliver()
            if beats and number % 10 == 9:
                self._beat()
        raise NotMeasured(f"waited 20 simulated seconds for {what}, in vain")

    def _beat(self) -> None:
        for worker in self._workers:
            self.frame(worker.source, worker.beat(self.now))
        self.deliver()

    # One second of load.

    def second(self, number: int) -> tuple[int, int, int]:
        """Bytes of a report, bytes and number of the frames that came."""
        begun = self.now
        origin_ns = self._workers[0].job_origin_ns
        size, each = len(self._workers), self._reports_per_second
        arrivals: list[tuple[int, str, bytes]] = []
        for index, worker in enumerate(self._workers):
            # Beats and reports of all are spread over the second.
            at = begun + SECOND * index // size
            arrivals.append((at, worker.source, worker.beat(at)))
        for turn in range(each):
            before = each * (number - 1) + turn
            indexes = range(10 * before // each, 10 * (before + 1) // each)
            contents = [kind.report(before + 1, indexes, origin_ns, REQUESTS_PER_STEP // each) for kind in self._kinds]
            for index, worker in enumerate(self._workers):
                at = begun + SECOND * (size * turn + index * 7919 % size) // (size * each)
                for parts in in_parts(contents[index % KINDS], len, REPORT_LIMIT_BYTES):
                    report = Report(worker.job, worker.attempt, parts[0], tuple(parts[1:]))
                    arrivals.append((at, worker.source, worker.frame(at, report)))
        arrivals.sort(key=lambda arrival: arrival[0])
        gc.collect()
        if self._profile is not None:
            self._profile.enable()
        before_s = time.process_time()
        for at, source, frame in arrivals:
            self.tick_until(at)
            self.frame(source, frame)
        self.tick_until(begun + SECOND)
        self.cpu_s = time.process_time() - before_s
        if self._profile is not None:
            self._profile.disable()
        self.deliver()
        behind = sum(worker.acknowledged != each * number for worker in self._workers)
        if behind:
            raise NotMeasured(f"second {number}: {behind} workers' reports were not acknowledged")
        return sum(map(len, contents[0])), sum(len(frame) for _, _, frame in arrivals), len(arrivals)

    def every_ms(self) -> int:
        return max(worker.every_ms for worker in self._workers)


def order_for(workers: int) -> JobOrder:
    plan = ConstantVUs(2 * CORES * workers, "3600s").plan()
    nodes = tuple(NodeOutline(f"step {index}", "step", True) for index in range(STEPS))
    workflow = WorkflowOrder("Shop", plan, "auto", True, (), 7200 * SECOND, (), (), "constant", nodes)
    bundle = BundleFacts("0" * 64, 0, b"", "", url="http://127.0.0.1:1/")
    return JobOrder("bench", bundle, (workflow,), Settings(grace_ns=SECOND))


def measure(*, workers: int, seconds: int, seed: int, has_profile: bool) -> Cost:
    profile = cProfile.Profile() if has_profile else None
    bench = Bench(workers, seed, profile)
    bench.begin()
    wanted_ms = report_interval_ms(Level.NORMAL, workers)
    cost = Cost(workers, 0, [], 0, 0, 0, 0)
    for number in range(1, WARM_UP + seconds + 1):
        if number == WARM_UP + 1:
            bench.told_steps = 0
            if profile is not None:
                profile.clear()
        report_bytes, frame_bytes, frames = bench.second(number)
        if number > WARM_UP:
            cost.cpu_s.append(bench.cpu_s)
            cost.report_bytes, cost.frame_bytes, cost.frames = report_bytes, frame_bytes, frames
    cost.every_ms, cost.told_steps = bench.every_ms(), bench.told_steps
    if cost.every_ms != wanted_ms:
        raise NotMeasured(f"the manager asked for a report every {cost.every_ms} ms, not every {wanted_ms} ms")
    if profile is not None:
        cost.profile = told(profile)
    return cost


def told(profile: cProfile.Profile) -> str:
    text = io.StringIO()
    for order in ("tottime", "cumulative"):
        pstats.Stats(profile, stream=text).strip_dirs().sort_stats(order).print_stats(10)
    return text.getvalue()
