"""Jobs on a cluster: drawn histories, and what they must add up to."""

from functools import partial

import msgspec
import pytest

from talka.control.member.composite import ClusterMember
from talka.testing.host import Host
from talka.units import SECOND
from talka.wire.security.permissions import rows
from talka.wire.security.roles import Role
from tests.sim import job_orders, jobs
from tests.sim.checkers.gaps import GapsBeginWithTheLoad
from tests.sim.seeds import first_of, fresh, stored

PER_TEST = 20


@pytest.mark.parametrize("seed", stored("jobs"))
def test_a_history_that_once_broke_an_invariant_is_clean(seed: int) -> None:
    assert jobs.run(seed).violations == []


@pytest.mark.parametrize("seed", stored("hostile"))
def test_a_history_with_a_hostile_member_that_once_broke_an_invariant_is_clean(seed: int) -> None:
    assert jobs.run(seed, has_hostile=True).violations == []


@pytest.mark.parametrize("seed", stored("blocked"))
def test_a_history_with_blocked_cores_that_once_broke_an_invariant_is_clean(seed: int) -> None:
    assert jobs.run(seed, has_blocked=True).violations == []


@fresh(220, PER_TEST)
def test_no_history_of_jobs_breaks_an_invariant(seeds: range) -> None:
    broken = []
    for seed in seeds:
        plan = jobs.plan_of(seed)
        world = jobs.run(seed)
        broken += [f"make sim SEED={seed} KIND=jobs: {violation}" for violation in world.violations]
        assert plan.managers >= 3 and len(plan.cores) >= 4 and len(plan.errands) >= 3
        assert len(plan.classes) >= 3
        assert world.violations or (world.now >= 60 * SECOND and world.struck)

    assert not broken, "\n".join(broken)


@fresh(100, PER_TEST)
def test_no_history_with_a_hostile_member_breaks_an_invariant(seeds: range) -> None:
    """It has a worker's certificate, and says everything to everybody: nothing is accepted that may not be."""
    broken = []
    for seed in seeds:
        story = jobs.Story(jobs.plan_of(seed, has_hostile=True), None)
        world = story.run()
        broken += [f"seed {seed} with a hostile member: {violation}" for violation in world.violations]
        assert story.hostility is not None
        assert world.violations or sum(story.hostility.sent.values()) > 1000

    assert not broken, "\n".join(broken)


@fresh(100, PER_TEST)
def test_no_history_with_cores_that_are_blocked_breaks_an_invariant(seeds: range) -> None:
    broken = []
    for seed in seeds:
        world = jobs.run(seed, has_blocked=True)
        broken += [f"seed {seed} with blocked cores: {violation}" for violation in world.violations]

    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("seed", [12, 16, 48])
def test_cores_that_are_blocked_are_replaced_while_other_work_goes_on_beside_them(seed: int) -> None:
    """In the last one some are those of a workflow that measures nothing, whose deadline is its own."""
    story = jobs.Story(jobs.plan_of(seed, has_blocked=True), None)

    assert story.run().violations == []
    assert story.blocked.told > 0, "the leader knew of it"
    assert story.blocked.for_good > 0, "only a kill could end it"


@pytest.mark.parametrize("seed", range(2))
def test_where_nothing_else_is_wrong_blocked_cores_are_all_that_is_lost(seed: int) -> None:
    story = jobs.Story(jobs.plan_of(seed, classes=(), has_blocked=True), None)

    assert story.run().violations == []
    assert story.cores.blocked and story.history.ended


@pytest.mark.long
def test_histories_with_cores_that_are_blocked_have_what_is_hard_in_them() -> None:
    stories = [jobs.Story(jobs.plan_of(seed, has_blocked=True), None) for seed in range(30)]

    for story in stories:
        story.run()

    blocked = [process for story in stories for process in story.cores.blocked]
    assert len(blocked) >= 90
    assert sum(process.is_computing for process in blocked) >= 20
    assert sum(story.blocked.told for story in stories) >= 300
    assert sum(story.blocked.for_good for story in stories) >= 5
    assert sum(story.blocked.beside for story in stories) >= 5, "others were given to their workers"


def test_hostile_member_says_every_message_there_is_and_is_refused() -> None:
    stories = [jobs.Story(jobs.plan_of(seed, classes=(), has_hostile=True), None) for seed in range(2)]
    for story in stories:
        assert not story.run().violations
    said = {word for story in stories if story.hostility is not None for word in story.hostility.sent}
    refused: dict[str, int] = {}
    for host in stories[0].world.hosts.values():
        if isinstance(host.node, ClusterMember):
            for word, number in host.node.roles.refused.items():
                refused[word] = refused.get(word, 0) + number
    assert said == {name for _, name, _ in rows()}
    allowed = {name for _, name, who in rows() if Role.WORKER in who}
    assert refused.keys() <= said - allowed
    assert sum(refused.values()) > 500


@pytest.mark.parametrize("seed", range(2))
def test_without_faults_every_iteration_that_ran_counts(seed: int) -> None:
    story = jobs.Story(jobs.plan_of(seed, classes=()), None)

    world = story.run()

    assert not world.violations
    ran = sum(run.started for runs in story.ledger.cores.values() for run in runs)
    assert story.counts.counted == ran > 0
    assert story.counts.lost_results == 0 and story.storm.lost == 0


@pytest.mark.long
def test_faults_cost_results_workers_and_owners_in_some_histories() -> None:
    stories = [jobs.Story(jobs.plan_of(seed), None) for seed in range(12)]

    for story in stories:
        story.run()

    assert sum(story.counts.lost_results for story in stories) >= 3
    assert sum(story.storm.lost for story in stories) >= 3
    assert sum(story.history.owner_changes for story in stories) >= 3
    assert sum(story.history.updates for story in stories) >= 500
    assert len({state for story in stories for state in story.history.ended.values()}) >= 3


def test_a_fault_of_the_plan_that_never_struck_fails_the_run() -> None:
    story = jobs.Story(jobs.plan_of(1), None)
    story.faults.begin = lambda until: None  # type: ignore[method-assign]

    world = story.run()

    assert "plan" in {violation.invariant for violation in world.violations}


def test_jobs_whose_managers_are_gone_for_good_are_told() -> None:
    story = jobs.Story(jobs.plan_of(3, classes=()), None)
    story.faults.stop = lambda: None  # type: ignore[method-assign]
    for name in ("m0", "m1", "m2"):
        story.world.at(10 * SECOND, partial(story.world.hosts[name].crash))

    world = story.run()

    assert "I14" in {violation.invariant for violation in world.violations}


def a_mix(seed: int, classes: tuple[str, ...]) -> jobs.Story:
    """Two jobs, each of six kinds of users on two cores."""
    errands = tuple(
        job_orders.mix(number, workflows=6, cores=2, at_ns=(3 + 9 * number) * SECOND) for number in range(2)
    )
    plan = jobs.plan_for(seed, errands, (1, 1, 2, 1), classes=classes)
    return jobs.Story(plan, None)


def test_kinds_of_users_of_one_job_run_at_the_same_time_on_fewer_cores() -> None:
    story = a_mix(1, ())

    world = story.run()

    assert not world.violations
    assert len(story.ledger.cores) == 2
    for runs in story.ledger.cores.values():
        by_kind = {run.arm.workflow: run for run in runs}
        assert len(by_kind) == len(runs) == 6
        assert {kind: run.started for kind, run in by_kind.items()} == dict.fromkeys(by_kind, 160), "as planned"
        assert max(run.began_at for run in runs) < min(run.ended_at for run in runs), "all at the same time"
        assert len({(run.host.name, run.process) for run in runs}) == 2, "on two cores"


@pytest.mark.parametrize("seed", range(2))
def test_a_core_that_dies_takes_all_it_held_and_every_one_of_them_is_replaced(seed: int) -> None:
    story = a_mix(seed, ("core dies",))

    world = story.run()

    assert not world.violations
    died = [run for runs in story.ledger.cores.values() for run in runs if run.final == "died"]
    assert len(died) >= 2
    assert any(len([run for run in died if run.ended_at == other.ended_at]) >= 2 for other in died)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_no_history_of_mixes_breaks_an_invariant(seed: int) -> None:
    story = a_mix(seed, jobs.plan_of(seed).classes)

    world = story.run()

    assert not world.violations, f"seed {seed}: {world.violations}"


@pytest.mark.parametrize("seed", first_of(range(20), 2))
def test_gaps_begin_where_the_load_ended_although_the_only_manager_stood_still(seed: int) -> None:
    plan = msgspec.structs.replace(jobs.plan_of(seed, classes=()), managers=1)
    story = jobs.Story(plan, None)
    world, manager = story.world, story.world.hosts["m0"]
    gaps = GapsBeginWithTheLoad(story.ledger)
    world.observers.append(gaps)

    def lose_a_worker() -> None:
        busy = [run.host for runs in story.ledger.working.values() for run in runs]
        if busy:
            busy[0].crash()
            world.after(15 * SECOND, partial(_start, busy[0]))

    for at_s in (9, 24):
        world.at(at_s * SECOND, partial(manager.stall, 6 * SECOND))
        world.at(at_s * SECOND + 3 * SECOND // 2, lose_a_worker)
    story.run()

    assert not world.violations
    assert gaps.gaps >= 1


def _start(host: Host) -> None:
    host.start()
