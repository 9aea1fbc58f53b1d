"""What must hold when a member is hostile that has the secret: it reads no variables, and nothing of it runs."""

from collections.abc import Callable, Mapping

from talka.cluster.effects import Lane
from talka.control.load.core_effects import StartCore
from talka.testing.cores import worker_of
from talka.testing.host import Host
from talka.testing.world import Observer, World
from talka.wire.shards import BundleSource


class VariablesStaySealed(Observer):
    """Cores get the variables of their job, and no frame to a worker shows a value. `by_digest` are those of
    bundles."""

    def __init__(
        self, world: World, by_digest: Mapping[str, Mapping[str, str]], is_worker: Callable[[str], bool]
    ) -> None:
        self.opened = 0
        self._world = world
        self._by_digest = by_digest
        self._is_worker = is_worker
        self._values = [value.encode() for env in by_digest.values() for value in env.values()]
        world.network.tap(self._look)

    def _look(self, source: str, to: str, sealed: bytes, lane: Lane) -> None:
        if self._is_worker(to) and any(value in sealed for value in self._values):
            self._world.violate("variables", f"a frame from {source} to {to} shows the value of a variable")

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        arm = worker_of(host).shards.arm_for(effect.attempt) if type(effect) is StartCore else None
        if arm is not None and isinstance(arm.source, BundleSource):
            source = arm.source
            expected = self._by_digest.get(source.digest, {})
            self.opened += bool(expected)
            if source.env != expected:
                text = f"a core of job {arm.job} on {host.name} has variables {source.env}, not {expected}"
                world.violate("variables", text)


class NothingForgedRuns(Observer):
    """No worker starts a core for a job that no manager has accepted. `forged` are the names of those."""

    def __init__(self, forged: Mapping[str, object]) -> None:
        self._forged = forged

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        arm = worker_of(host).shards.arm_for(effect.attempt) if type(effect) is StartCore else None
        if arm is not None and arm.job in self._forged:
            world.violate("signed", f"{host.name} runs {arm.job}, which no manager has signed")
