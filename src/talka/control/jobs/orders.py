"""What can be wrong with an order, whoever made it. Nothing of it has been run yet, and nothing is believed.

Decision: docs/decisions/0018-who-may-act-on-a-job.md.
"""

from typing import Final

from talka.control.jobs.queue import PRIORITY_LEAST, PRIORITY_MOST
from talka.errors import Invalid
from talka.wire.orders import JobOrder

WORKFLOWS_LIMIT: Final = 256
NODES_LIMIT: Final = 1024
CORES_LIMIT: Final = 65_536
GRACE_LIMIT_NS: Final = 3_600_000_000_000
NAME_LIMIT: Final = 256
ENV_LIMIT: Final = 256


class BadOrder(Invalid):
    """The order cannot be carried out as it is."""


def check_order(order: JobOrder) -> None:
    """Raises `BadOrder` for the first thing that is wrong."""
    if not order.workflows:
        raise BadOrder("the order has no workflows: nothing would run")
    if len(order.workflows) > WORKFLOWS_LIMIT:
        raise BadOrder(f"the order has {len(order.workflows)} workflows: {WORKFLOWS_LIMIT} are the most")
    if not 0 < len(order.name) <= NAME_LIMIT:
        raise BadOrder(f"the name of a job has 1 to {NAME_LIMIT} characters, not {len(order.name)}")
    if not PRIORITY_LEAST <= order.priority <= PRIORITY_MOST:
        raise BadOrder(f"priority {order.priority}: it is from {PRIORITY_LEAST} to {PRIORITY_MOST}, the highest")
    if not 0 <= order.cores <= CORES_LIMIT:
        raise BadOrder(f"cores = {order.cores}: at least 1, or 0 for as many as priorities allow")
    if not 0 <= order.settings.grace_ns <= GRACE_LIMIT_NS:
        raise BadOrder("the grace period is between 0 and an hour")
    if not order.bundle.url and not order.bundle.file:
        raise BadOrder("the order names neither a file of its bundle nor a URL")
    if len(order.bundle.env) > ENV_LIMIT:
        raise BadOrder(f"{len(order.bundle.env)} variables would travel: {ENV_LIMIT} are the most")
    known: dict[str, None] = {}
    for workflow in order.workflows:
        if not 0 < len(workflow.name) <= NAME_LIMIT or workflow.name in known:
            raise BadOrder(f"workflow {workflow.name[:80]!r}: names are unique and have 1 to {NAME_LIMIT} characters")
        if len(workflow.nodes) > NODES_LIMIT:
            raise BadOrder(f"{workflow.name} has {len(workflow.nodes)} methods: {NODES_LIMIT} are the most")
        if workflow.timeout_ns < 1:
            raise BadOrder(f"{workflow.name}: its timeout is above 0")
        # Each comes after those it depends on: so there is no circle either.
        for other in (*workflow.depends_on, *(source for source, _ in workflow.flows)):
            if other not in known:
                raise BadOrder(f"{workflow.name} depends on {other[:80]!r}, which does not come before it")
        known[workflow.name] = None
