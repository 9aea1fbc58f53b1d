"""More time is given as often as it may be and no oftener, whoever leads the job; and nobody is warned twice."""

from talka.control.load.core_effects import TellCore
from talka.control.load.more_time import terms_of
from talka.testing.cores import Cores
from talka.testing.host import Host
from talka.testing.world import Observer, World
from talka.wire.entries import decode_checkpoint
from talka.wire.orders import WorkflowOrder
from talka.wire.shards import ShardAnswer, TimeOver
from talka.work.deadlines import DeadlineRecord
from tests.sim.checkers.jobs import leading_registry


class MoreTimeIsGivenOnce(Observer):
    """T2, of jobs of one workflow."""

    def __init__(self, cores: Cores) -> None:
        self.given: dict[str, dict[tuple[int, int], int]] = {}
        """By job, attempt and instant: what its cores were told. All cores of an attempt get one answer at once."""
        self.warned: dict[tuple[str, int], None] = {}
        """Jobs and attempts of which a core was warned."""
        self.stored: dict[str, DeadlineRecord] = {}
        """As the leader had it last."""
        self._cores = cores
        self._orders: dict[str, WorkflowOrder] = {}

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if type(effect) is not TellCore:
            return
        run = next((run for run in self._cores.runs_on(host) if run.number == effect.attempt), None)
        if run is None:
            return
        job, word = run.arm.job, effect.message
        if isinstance(word, TimeOver):
            self.warned[job, run.attempt] = None
        elif isinstance(word, ShardAnswer) and word.answer:
            if (job, run.attempt) in self.warned:
                world.violate("T2", f"job {job}: {word.answer.granted_ns} ns more were given after the warning")
            self.given.setdefault(job, {})[run.attempt, world.now] = word.answer.granted_ns

    def on_second(self, world: World) -> None:
        registry = leading_registry(world)
        for job, entry in {} if registry is None else registry.entries.items():
            if len(entry.order.workflows) != 1:
                continue
            self._orders[job] = entry.order.workflows[0]
            if not entry.checkpoint:
                continue
            record = decode_checkpoint(entry.checkpoint).workflows[0].deadline
            if record is not None:
                self.stored[job] = record

    def at_end(self, world: World) -> None:
        for job, given in self.given.items():
            terms = terms_of(self._orders[job])
            left = [terms.extension_ns(number) for number in range(terms.extensions)]
            for (attempt, _), ns in given.items():
                if ns not in left:
                    world.violate("T2", f"job {job}, attempt {attempt}: {ns} ns more were not left: {given}")
                    return
                left.remove(ns)
        for job, runs in self._cores.ledger.cores.items():
            for run in runs:
                if len(run.warned_at) > 1:
                    world.violate("T2", f"job {job}: a core was warned {len(run.warned_at)} times")
