"""Gaps in results are told by the clock of who counted: a manager that stood still moves none of them."""

from typing import Final

import msgspec

from talka.control.jobs.effects import JobEndStored
from talka.testing.core_runs import CoreRun, Ledger
from talka.testing.host import Host
from talka.testing.world import Observer, World
from talka.units import SECOND
from tests.sim.checkers.jobs import Document, blob_of

SLACK_NS: Final = 3 * SECOND // 2
"""What clocks that were read over a slow network may be off, and the time between two reports."""
DRIFT_PERCENT: Final = 5
"""Two clocks, each off by 2 %, and what is lost when one of them is estimated."""


class GapsBeginWithTheLoad(Observer):
    """I6 gap: where a gap begins, a core of that shard ran or began; never in between, when all of them were gone."""

    def __init__(self, ledger: Ledger) -> None:
        self.gaps = 0
        self._ledger = ledger

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if not isinstance(effect, JobEndStored) or not effect.result:
            return
        content = blob_of(world, effect.result)
        if content is None:
            return  # told by another checker
        document = msgspec.json.decode(content, type=Document)
        runs = [run for run in self._ledger.cores.get(effect.job, ()) if run.began_at and run.go is not None]
        for workflow, shard, from_ns, _ in document.lost:
            mine = [run for run in runs if run.arm.workflow == workflow and run.arm.shard.index >= shard]
            # One that was told to begin and never did: its gap goes on where the one before it was thought to end.
            is_more = any(to_ns == from_ns for other, _, _, to_ns in document.lost if other == workflow)
            if mine and not is_more:
                self.gaps += 1
                self._check(world, f"job {effect.job}, {workflow}, shard {shard}", from_ns, mine, runs)

    def _check(self, world: World, what: str, from_ns: int, mine: list[CoreRun], runs: list[CoreRun]) -> None:
        origin = min(run.host.true_of(run.go.job_origin_ns) for run in runs if run.go is not None)
        slack_ns = SLACK_NS + from_ns * DRIFT_PERCENT // 100
        lives = [(run.began_at - origin, (run.ended_at or world.now) - origin) for run in mine]
        # One that was gone before it began leaves a gap from the start of the plan.
        starts = [run.host.true_of(run.go.origin_ns) - origin for run in mine if run.go is not None]
        if any(abs(from_ns - start) <= slack_ns for start in starts):
            return
        if not any(began - slack_ns <= from_ns <= ended + slack_ns for began, ended in lives):
            told = ", ".join(f"{began / SECOND:.1f} to {ended / SECOND:.1f} s" for began, ended in lives)
            world.violate(
                "I6 gap", f"{what}: its gap begins at {from_ns / SECOND:.1f} s, and its cores ran from {told}"
            )
