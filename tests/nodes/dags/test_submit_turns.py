"""Jobs that are submitted in the same turn of the loop."""

import asyncio
from random import Random

from talka.clock import boottime_ns
from talka.control.dags.keeper import DagKeeper
from talka.control.dags.keepers import DagKeepers
from talka.control.tasks.partition import Partition
from talka.control.tasks.store_effects import Commit, DagEffect
from talka.nodes.dags.submit_turns import SubmitTurns
from talka.work.dags.dag import DagSpec, TaskSpec

SPEC = DagSpec(name="n", tasks=(TaskSpec(id="a", handler="h"),))


def keepers_of(count: int) -> DagKeepers:
    keepers = DagKeepers()
    for partition in Partition.all(count):
        life = partition.life(1, 2, 3)
        keepers.set(DagKeeper(epoch=1, next_number=1, rng=Random(1), wall_offset_ns=0, life=life))
    return keepers


async def test_jobs_of_a_turn_are_committed_together_but_those_of_a_partition_that_was_lost_in_it_are_not() -> None:
    keepers, done = keepers_of(2), list[DagEffect]()
    turns = SubmitTurns(keepers, done.extend)
    first, second = list(keepers)
    assert not turns.waits(first), "it may be alone"
    for keeper in (first, second, first):
        assert turns.waits(keeper)
        assert keeper.submit(boottime_ns(), 1, SPEC, has_more=True) == []
    keepers.drop(boottime_ns(), second.partition.number)
    await asyncio.sleep(0)
    (commit,) = done
    assert isinstance(commit, Commit) and commit.partition == first.partition.number
    assert len(first.jobs) == 2 and not turns.waits(first), "another turn began"
