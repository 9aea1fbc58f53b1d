"""How soon a lost leader is followed by another, and what a restart of all voters at once leaves behind.

python -m tests.sim.election_figures
"""

from functools import partial
from statistics import median
from typing import Final

from talka.cluster.leadership.news import Elected, ReadEnded, WriteEnded
from talka.control.member.composite import ClusterMember
from talka.testing.host import Clock, Host
from talka.testing.world import Observer, World
from talka.units import MILLISECOND, SECOND
from tests.sim.checkers.leadership import NothingGoesBack, OneLeaderPerTerm, OneLeaseAtATime, RegisterIsLinearizable
from tests.sim.elections import DRIFT_LIMIT_PPM, member_of, voter_of, voter_starter

PATIENCE_NS: Final = 30 * SECOND


class Group(Observer):
    """Voters on a good network, and who of them was elected last."""

    def __init__(self, seed: int, voters: int) -> None:
        self.world = world = World(seed)
        self.names = tuple(f"v{index}" for index in range(voters))
        self.elected: tuple[int, str] = (0, "")
        self.register = RegisterIsLinearizable()
        self._open: dict[int, int] = {}
        self._ref = 0
        rng = world.rng("plan")
        for name in self.names:
            clock = Clock(rng.randrange(100) * SECOND, rng.choice((-DRIFT_LIMIT_PPM, 0, DRIFT_LIMIT_PPM)))
            world.add_host(name, voter_starter(self.names), clock=clock)
        world.observers += [
            OneLeaderPerTerm(),
            NothingGoesBack(),
            OneLeaseAtATime(DRIFT_LIMIT_PPM),
            self.register,
            self,
        ]

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if isinstance(effect, Elected):
            self.elected = (world.now, host.name)
        elif isinstance(effect, WriteEnded | ReadEnded):
            value = effect.value if isinstance(effect, ReadEnded) else None
            self.register.history.ended(world.now, self._open.pop(effect.ref), effect.outcome, value)

    def wait_for_leader(self, since: int) -> str:
        """Run until somebody is elected after `since`."""
        deadline = since + PATIENCE_NS
        while self.elected[0] <= since:
            if self.world.stopped or self.world.now > deadline:
                raise AssertionError(f"no leader {PATIENCE_NS // SECOND} s after {since} ns: {self.world.violations}")
            self.world.run_until(self.world.now + 20 * MILLISECOND)
        return self.elected[1]

    def ask(self, name: str, kind: str) -> int:
        """Write a new value under the one key, or read it; the operation."""
        host = self.world.hosts[name]
        self._ref += 1
        ref, value = self._ref, b"%d" % self._ref
        history = self.register.history
        if kind == "write":
            operation = history.invoke(self.world.now, "k", "write", value)
            call = partial(voter_of(host).write, ref=ref, key="k", value=value)
        else:
            operation = history.invoke(self.world.now, "k", "read", None)
            call = partial(voter_of(host).read, ref=ref, key="k")
        self._open[ref] = operation
        member = member_of(host, host.boot)
        host.act(lambda now: member.act(now, call(now)))
        return operation

    def all_active(self) -> bool:
        for name in self.names:
            node = self.world.hosts[name].node
            if not isinstance(node, ClusterMember) or node.voter is None:
                return False
            if node.voter.election.phase.value != "active" or not node.voter.election.leader:
                return False
        return True


def leader_losses(seed: int, voters: int, kills: int) -> list[int]:
    """For each kill of the leader, the time until another one held the lease and its token was on a majority."""
    group = Group(seed, voters)
    world = group.world
    rng = world.rng("kills")
    for name in group.names:
        world.hosts[name].start()
    leader = group.wait_for_leader(0)
    times = []
    for _ in range(kills):
        while not group.all_active():
            world.run_until(world.now + 50 * MILLISECOND)
        world.run_until(world.now + rng.randrange(2 * SECOND))
        leader = group.elected[1]
        world.hosts[leader].crash()
        killed_at = world.now
        group.wait_for_leader(killed_at)
        times.append(group.elected[0] - killed_at)
        world.hosts[leader].start()
    world.finish()
    assert not world.violations, world.violations
    return times


def cold_restarts(seed: int, voters: int, restarts: int) -> int:
    """Crash all voters at once, in the middle of writing, and start them again: how many times it went well.

    After each restart the last value a majority held must be read, under the same founding, or the run fails.
    """
    group = Group(seed, voters)
    world = group.world
    rng = world.rng("restarts")
    for name in group.names:
        world.hosts[name].start()
    leader = group.wait_for_leader(0)
    group_id = voter_of(world.hosts[leader]).election.config.group_id
    for _ in range(restarts):
        group.ask(leader, "write")
        world.run_until(world.now + rng.randrange(5 * MILLISECOND))
        crashed_at = world.now
        for name in group.names:
            world.hosts[name].crash()
            world.after(rng.randrange(1, 300) * MILLISECOND, world.hosts[name].start)
        leader = group.wait_for_leader(crashed_at)
        operation = group.ask(leader, "read")
        world.run_until(world.now + 300 * MILLISECOND)
        found = voter_of(world.hosts[leader]).election.config.group_id
        assert found == group_id, f"the group was founded twice: {group_id} and {found}"
        assert group.register.history.operation(operation).outcome == "accepted"
    world.finish()
    assert not world.violations, world.violations
    return restarts


def main() -> None:
    print("leader lost → new leader with its token (s)")
    for voters in (3, 5):
        times = [ns / SECOND for seed in range(10) for ns in leader_losses(seed, voters, 50)]
        print(f"  {voters} voters, {len(times)} kills: median {median(times):.2f}, worst {max(times):.2f}")
    done = sum(cold_restarts(seed, voters, 50) for seed in range(50) for voters in (3, 5))
    print(f"cold restart of all voters: {done} times, no divergence")


if __name__ == "__main__":
    main()
