"""The hostile member in histories of jobs and of dag jobs, and what must not come of it."""

from collections.abc import Callable
from typing import Final

import msgspec

from talka.testing.host import Host
from talka.testing.world import Boot, Observer, World
from talka.wire.orders import JobOrder
from talka.wire.security.roles import Role
from talka.wire.tasks import HandlerProgress, TaskResult
from tests.sim.checkers.jobs import leading_registry, manager_on
from tests.sim.hostile_node import HostileNode, Known, identities

NAME: Final = "x0"
PLANNED: Final = "planned"
"""The reason of every cancel that a client asked for."""


class Hostility(Observer):
    """Adds the hostile member to a world, and sees that nobody did what it said. It knows everybody's names."""

    def __init__(self, world: World, known: Callable[[], Known], *, keys: tuple[str, ...], until: int) -> None:
        self.heard: dict[str, object] = {}
        self.sent: dict[str, int] = {}
        self.targets = tuple(world.hosts)
        self._keys = keys
        world.add_host(NAME, lambda boot: self._node(boot, world, known, until))
        world.identities = identities(world.hosts, lambda name: not name.startswith("m"))
        assert world.identities[NAME].role is Role.WORKER
        world.observers.append(self)

    def _node(self, boot: Boot, world: World, known: Callable[[], Known], until: int) -> HostileNode:
        return HostileNode(boot, world, self.targets, known, heard=self.heard, sent=self.sent, until=until)

    def on_second(self, world: World) -> None:
        for word, message in self.heard.items():
            world.violate("role", f"the hostile member was told {word}: {message!r:.200}")
            return
        registry = leading_registry(world)
        if registry is None:
            return
        for record in registry.entries.values():
            if record.key not in self._keys:
                world.violate("role", f"job {record.job} is of nobody: {record.order.name!r}")
            if record.cancel not in ("", PLANNED):
                world.violate("role", f"job {record.job} was cancelled by nobody: {record.cancel!r}")
        for life in registry.fleet.lives():
            if life.is_drained:
                world.violate("role", f"worker {life.name} was drained by nobody")

    def at_end(self, world: World) -> None:
        self.on_second(world)


def known_of(world: World, hosts: tuple[str, ...]) -> Known:
    """What is in everybody's records just now."""
    known: dict[str, list[object]] = {
        "worker": [name for name in hosts if name.startswith("w")],
        "leader": [name for name in hosts if name.startswith("m")],
        "owner": [name for name in hosts if name.startswith("m")],
        "candidate": [NAME, *hosts],
        "name": list(hosts),
        "folder": [1, 2, 3],
        "boot": [host.boot for host in world.hosts.values()],
    }
    registry = leading_registry(world)
    if registry is None:
        return known
    records = list(registry.entries.values())
    token = (registry.token.parent, registry.token.term, registry.token.sequence)
    later = (registry.token.parent, registry.token.term + 1, 1)
    known |= {
        "job": [record.job for record in records],
        "name": [*hosts, *(record.job for record in records)],
        "fence": [*(record.fence for record in records), later],
        "highest": [later],
        "token": [token, later],
        "term": [registry.token.term, registry.token.term + 1],
        "attempt": [1, 2, 3, 4],
        "revision": [record.revision + 1 for record in records],
        "digest": [digest for record in records for digest in (record.order.bundle.digest, record.result) if digest],
        "order": [_without_values(record.order) for record in records],
        "key": [""],
        "life": [host.boot for host in world.hosts.values()],
    }
    return {name: values for name, values in known.items() if values}


def _without_values(order: JobOrder) -> JobOrder:
    """As it can be read on workers' machines, where values of variables are sealed for others."""
    bundle = order.bundle
    return msgspec.structs.replace(order, bundle=msgspec.structs.replace(bundle, env=dict.fromkeys(bundle.env, "")))


def known_of_dags(world: World, manager: Host, hosts: tuple[str, ...]) -> Known:
    """The same with attempts at tasks, by their whole names: store, life, job, task and fence."""
    known = dict(known_of(world, hosts))
    found = manager_on(manager)
    if found is None or not found.dags:
        return known
    running = {fence: task for keeper in found.dags for fence, task in keeper.attempts.running.items()}
    if running:
        fences = list(running)
        known |= {"fence": fences, "fences": [tuple(fences[:3])], "began": [tuple(fences[:3])]}
        known["results"] = [
            (TaskResult(fence, "completed", b'{"fence":0}', job=task.job.row.id, task=task.id),)
            for fence, task in running.items()
        ]
        known["progress"] = [(HandlerProgress(fence, b'"stolen"'),) for fence in fences]
    floors = [keeper.floor for keeper in found.dags]
    return known | {"epoch": [floor.epoch for floor in floors], "of": [floor.life for floor in floors]}
