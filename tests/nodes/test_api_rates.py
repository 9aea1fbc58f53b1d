"""Whose requests a manager limits."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from talka.control.clients.overload import DEFAULT, Level
from talka.control.clients.rate_limits import LIMITS
from talka.control.clients.request_classes import CLASSES
from talka.control.clients.shedding import Shedding
from talka.nodes.control import ManagerControl
from talka.nodes.manager import SAMPLE_S
from talka.units import SECOND
from talka.web.auth import LOCAL, Identity
from tests.nodes.small_cluster import small_cluster

SHEDDABLE = [name for rule in CLASSES.values() if rule.shed_from is not None for name in rule.operations]


class IdleNode:
    """As much of a manager's node as is asked about rates."""

    retry_after_s = 0.3

    def __init__(self, level: Level = Level.NORMAL) -> None:
        self.manager = SimpleNamespace(shedding=Shedding())
        self.manager.shedding.level = level


def test_tokens_use_up_none_of_each_others_requests_and_without_tokens_nobody_is_counted() -> None:
    node: Any = IdleNode()
    control = ManagerControl(node)
    often = 2 * LIMITS["cancel"].requests

    def passed(identity: Identity) -> int:
        return sum(control.limiter("cancel", identity.counted_as) == 0 for _ in range(often))

    assert 0 < passed(Identity("ann", "submitter", "t1")) < often
    first = control.refused["rate"]
    assert control.limiter("cancel", Identity("ann", "submitter", "t2").counted_as) == 0
    assert control.limiter("cancel", Identity("ben", "submitter").counted_as) == 0
    assert passed(LOCAL) == often
    assert control.refused == {"rate": first}


@pytest.mark.parametrize(
    ("level", "shed"),
    [
        (Level.NORMAL, []),
        (Level.BUSY, []),
        (Level.STRESSED, ["watch"]),
        (Level.OVERLOADED, ["watch"]),
    ],
)
def test_of_the_one_user_of_a_machine_only_watches_are_shed(level: Level, shed: list[str]) -> None:
    node: Any = IdleNode(level)
    control = ManagerControl(node)

    assert [operation for operation in SHEDDABLE if control.limiter(operation, LOCAL.counted_as)] == shed
    assert control.refused.get("overload", 0) == len(shed)


def test_whoever_is_shed_is_told_when_to_come_again() -> None:
    node: Any = IdleNode(Level.OVERLOADED)
    control = ManagerControl(node)

    waits_s = {control.limiter(operation, Identity("ann", "submitter", "t1").counted_as) for operation in SHEDDABLE}

    assert waits_s == {node.retry_after_s}
    assert control.refused == {"overload": len(SHEDDABLE)}


async def test_a_node_that_does_well_tells_to_wait_until_its_level_may_fall(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, "m") as cluster:
        node = cluster.managers["m"]
        assert 0 < node.retry_after_s <= DEFAULT.calm * SAMPLE_S


def test_requests_whose_answers_are_short_show_how_long_clients_wait() -> None:
    node: Any = IdleNode()
    control = ManagerControl(node)
    control.times.led(-SECOND, "m")
    for operation, status in (("job", 200), ("submit", 201), ("watch", 101), ("cancel", 200), ("jobs", 503)):
        control.end(control.begin(operation), status)

    assert control.times.take() is not None, "of the job that was looked at"
    control.end(control.begin("jobs"), 429)
    assert control.times.take() is None
