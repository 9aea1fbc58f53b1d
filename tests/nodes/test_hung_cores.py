"""A core process that blocks its event loop for good: its worker tells of it, kills it and starts another in its place.

Decision: docs/decisions/0045-a-core-works-while-its-loop-turns.md.
"""

import os
import re
from pathlib import Path

import msgspec
import psutil

from talka.client.ordering import OrderOptions, submission_of_file
from talka.control.load.planning import Overrides
from talka.control.worker.core_turns import TurnLimits
from talka.units import SECOND
from talka.work.lifecycle import JobState
from tests.nodes.small_cluster import small_cluster

ITERATIONS = 5
QUICK = TurnLimits(look_ns=SECOND // 4, stalled_ns=SECOND, stuck_ns=3 * SECOND // 2, deadline_ns=2 * SECOND)
TEST = """
import os

from talka import CustomResponse, Workflow, step

class Shop(Workflow):
    @step()
    async def go(self) -> CustomResponse[int]:
        try:
            os.close(os.open({hung!r}, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return CustomResponse(1)
        open({gate!r}).close()  # waits in C, and the loop with it: nobody ever writes there
"""


async def test_a_core_that_blocks_its_loop_is_killed_and_another_does_the_rest_of_its_plan(tmp_path: Path) -> None:
    gate, file = tmp_path / "gate", tmp_path / "shop.py"
    os.mkfifo(gate)
    file.write_text(TEST.format(hung=str(tmp_path / "hung"), gate=str(gate)))
    options = OrderOptions(overrides=Overrides(vus=1, iterations=ITERATIONS), cores=1)
    order, bundle, _ = submission_of_file(str(file), (), options)
    async with small_cluster(tmp_path, "m") as cluster:
        manager = cluster.managers["m"]
        await cluster.start_worker(turn_limits=QUICK)
        await manager.control.put_bundle(order.bundle.digest, bundle)
        job = await manager.control.submit(order, "")

        await cluster.until(lambda: cluster.told("core-given-up"))
        given_up = cluster.told("core-given-up")[0]
        ended = await cluster.ended(job.id)
        result = msgspec.json.decode(await manager.control.result(job.id))

    states = [event["state"] for event in cluster.told("core-quiet") if event["pid"] == given_up["pid"]]
    assert (given_up["job"], given_up["workflows"], states) == (job.id, "Shop", ["stalled", "stuck"])
    assert not psutil.pid_exists(given_up["pid"])
    assert (ended.state, result["totals"]["iterations"]) == (JobState.PARTIAL, ITERATIONS)
    lost = result["lost_shards"][0]
    assert re.fullmatch(r"did not turn its event loop for \d+ s and was killed", lost["cause"])
    assert lost["to_s"] > lost["from_s"], "the gap is in the result"
