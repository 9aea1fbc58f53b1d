"""What nodes on real sockets say of how they do, and where it is seen."""

import json
from pathlib import Path

from talka.clock import boottime_ns
from talka.control.member.admin_queries import answer
from talka.control.member.announcement import NUMBERS_EVERY_NS, announcement_in
from talka.nodes.manager import ManagerNode
from talka.wire.asking import AskMembers
from talka.wire.membership import PAYLOAD_LIMIT_BYTES
from tests.nodes.small_cluster import small_cluster


def members_of(node: ManagerNode) -> dict[str, dict[str, object]]:
    """As `talka cluster members` is told them."""
    now = boottime_ns()
    content, _ = answer(node.member, now, AskMembers(), workers=node.manager.workers_heard(now))
    return {one["name"]: one for one in json.loads(content)["members"]}


def look_at_itself(node: ManagerNode) -> None:
    """As it does once a second; numbers are told some seconds after those before."""
    now = boottime_ns()
    assert node.member.announcer is not None
    node.member.announcer.note(now + NUMBERS_EVERY_NS, *node.manager.announcement(now))


async def test_workers_and_managers_are_in_view_with_how_they_do(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, "m") as cluster:
        await cluster.start_worker()
        leader = cluster.managers["m"]
        look_at_itself(leader)

        members, view = members_of(leader), await leader.control.cluster()
        (worker,) = await leader.control.workers()
        state = leader.member.membership.state if leader.member.membership is not None else None
        counts = leader.counts()

    assert [(name, one["role"], one["decision"]) for name, one in sorted(members.items())] == [
        ("m", "manager", "route"),
        ("w", "worker", "route"),
    ]
    assert (members["w"]["cores"], members["w"]["free"], members["w"]["health"]) == (1, 1, worker.health)
    assert (worker.decision, view.managers[0].decision, view.managers[0].reason) == ("route", "route", "")
    assert (counts["workers_by_decision"], counts["managers_by_decision"]) == ({"route": 1}, {"route": 1})
    assert state is not None and len(state.payload) <= PAYLOAD_LIMIT_BYTES
    said = announcement_in(state)
    assert said is not None and (said.phase, said.condition.cores) == ("active", 1)
