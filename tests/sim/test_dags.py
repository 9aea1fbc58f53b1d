"""Dag jobs of one manager: drawn histories, and what they must add up to."""

from functools import partial
from typing import Any

import pytest

from talka.cluster.placement import partition_of
from talka.testing.store_shell import jobs_in
from talka.units import SECOND
from tests.sim import dags, stalls
from tests.sim.seeds import fresh, stored
from tests.sim.variants import without

PARTITIONED_SEEDS = 3
"""With and without each way to replace a store."""
PER_TEST = 20


@fresh(240, PER_TEST)
def test_no_history_of_dag_jobs_breaks_an_invariant(seeds: range) -> None:
    broken = []
    for seed in seeds:
        plan = dags.plan_of(seed)
        world = dags.run(seed)
        broken += [f"make sim SEED={seed} KIND=dags: {violation}" for violation in world.violations]
        assert len(plan.cores) >= 4 and len(plan.errands) >= 3 and len(plan.classes) >= 3
        assert all(5 <= len(errand.spec.tasks) <= 60 for errand in plan.errands)
        assert world.violations or (world.now >= 60 * SECOND and world.struck)

    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("seed", range(3))
def test_first_histories_of_dag_jobs_are_clean_and_have_faults(seed: int) -> None:
    world = dags.run(seed)

    assert not world.violations
    assert world.now >= 60 * SECOND and world.struck


@fresh(100, PER_TEST)
def test_no_history_with_a_hostile_member_breaks_an_invariant(seeds: range) -> None:
    """It has a worker's certificate, and names attempts of others: nothing is accepted that may not be."""
    broken = []
    for seed in seeds:
        story = dags.Story(dags.plan_of(seed, has_hostile=True), None)
        world = story.run()
        broken += [f"seed {seed} with a hostile member: {violation}" for violation in world.violations]
        assert story.hostility is not None
        assert world.violations or sum(story.hostility.sent.values()) > 1000

    assert not broken, "\n".join(broken)


@fresh(100, PER_TEST)
def test_no_history_with_tasks_that_are_fanned_out_breaks_an_invariant(seeds: range) -> None:
    broken = []
    for seed in seeds:
        story = dags.Story(dags.plan_of(seed, has_fans=True), None)
        broken += [f"seed {seed} with fans: {violation}" for violation in story.run().violations]

    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("seed", stored("fans"))
def test_histories_with_tasks_that_are_fanned_out_that_once_broke_an_invariant_are_clean(seed: int) -> None:
    assert not dags.Story(dags.plan_of(seed, has_fans=True), None).run().violations


@pytest.mark.parametrize("seed", range(2))
def test_first_histories_with_tasks_that_are_fanned_out_are_clean(seed: int) -> None:
    story = dags.Story(dags.plan_of(seed, has_fans=True), None)
    assert not story.run().violations
    assert story.fans.fanned > 0


@pytest.mark.long
def test_histories_with_tasks_that_are_fanned_out_have_what_is_hard_in_them() -> None:
    stories = [dags.Story(dags.plan_of(seed, has_fans=True), None) for seed in range(20)]

    for story in stories:
        story.run()

    assert sum(story.fans.fanned for story in stories) >= 100
    assert sum(story.fans.elements for story in stories) >= 300
    assert sum(story.fans.dropped for story in stories) >= 5, "elements were replaced"
    assert sum(story.shell.lost for story in stories) >= 10


@pytest.mark.parametrize("partitions", [3])
def test_with_several_partitions_tasks_are_fanned_out_too(partitions: int) -> None:
    story = dags.Story(dags.plan_of(3, has_fans=True), None, partitions)
    assert not story.run().violations and story.fans.fanned > 0


@fresh(100, PER_TEST)
def test_no_history_with_tasks_that_are_late_breaks_an_invariant(seeds: range) -> None:
    broken = []
    for seed in seeds:
        story = dags.Story(dags.plan_of(seed, has_late=True), None)
        broken += [f"seed {seed} with late tasks: {violation}" for violation in story.run().violations]

    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("seed", [11, 36, 40, 45, 52, 56, 71, 74, 86])
def test_more_time_that_was_given_stays_given_where_its_manager_dies(seed: int) -> None:
    """Each of these is caught where a manager that is started anew forgets what it has given."""
    story = dags.Story(dags.plan_of(seed, has_late=True), None)
    assert not story.run().violations
    assert story.times.granted > 0 and story.world.hosts[dags.MANAGER].boot > 1

    with without("kept_times"):
        world = dags.Story(dags.plan_of(seed, has_late=True), None).run()
    assert "D14" in {violation.invariant for violation in world.violations}


def test_histories_with_tasks_that_are_late_have_what_is_hard_in_them() -> None:
    stories = [dags.Story(dags.plan_of(seed, has_late=True), None) for seed in range(6)]

    for story in stories:
        story.run()

    runs = [run for story in stories for run in story.ledger.by_number.values()]
    assert sum(story.times.granted for story in stories) >= 150
    assert sum(story.times.warned for story in stories) >= 20
    assert sum(story.resumer.resumed for story in stories) >= 5, "jobs were paused for a task"
    assert any(b"saved" in run.checkpoint for run in runs), "an attempt goes on from what another saved"
    assert {run.on_timeout for run in runs if run.outcome == "timeout"} >= {"kill", "pause"}


@fresh(100, PER_TEST)
def test_no_history_with_jobs_that_bring_their_handlers_breaks_an_invariant(seeds: range) -> None:
    broken = []
    for seed in seeds:
        story = dags.Story(dags.plan_of(seed, has_code=True), None)
        broken += [f"seed {seed} with code: {violation}" for violation in story.run().violations]

    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("seed", [1, 5, 51])
def test_jobs_that_bring_their_handlers_end_where_managers_die_and_stores_are_replaced(seed: int) -> None:
    """Their workers fetch the code from the manager, and at each of its starts it signs for it anew."""
    story = dags.Story(dags.plan_of(seed, has_code=True), None)
    assert not story.run().violations
    assert story.code.given >= story.code.begun > 0
    assert set(story.plan.takers) < set(story.world.hosts), "others take no code"


@pytest.mark.long
def test_histories_with_jobs_that_bring_their_handlers_have_what_is_hard_in_them() -> None:
    stories = [dags.Story(dags.plan_of(seed, has_code=True), None) for seed in range(20)]

    for story in stories:
        story.run()

    assert sum(story.code.given for story in stories) >= 500
    assert sum(story.runs.begun - story.code.begun for story in stories) >= 500, "others beside them"
    assert sum(story.world.hosts[dags.MANAGER].boot > 1 for story in stories) >= 10
    assert all(any(run.code for run in story.ledger.by_number.values()) for story in stories)
    codes = [{run.code for run in story.ledger.by_number.values()} for story in stories]
    assert sum(len(loaded) == 3 for loaded in codes) >= 5, "two bundles, and the workers' own files"


@fresh(80, PER_TEST)
@pytest.mark.parametrize("fault", dags.STORE_FAULTS)
def test_no_history_with_a_store_that_is_replaced_breaks_an_invariant(fault: str, seeds: range) -> None:
    broken = []
    for seed in seeds:
        story = dags.Story(dags.plan_of(seed, store_fault=fault), None)
        world = story.run()
        broken += [f"seed {seed}, {fault}: {violation}" for violation in world.violations]
        assert world.struck[fault] >= 1

    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("partitions", [2, 16])
@pytest.mark.parametrize("fault", ["", *dags.STORE_FAULTS])
def test_no_history_with_several_partitions_breaks_an_invariant(fault: str, partitions: int) -> None:
    broken, served = [], set[int]()
    for seed in range(PARTITIONED_SEEDS):
        story = dags.Story(dags.plan_of(seed, store_fault=fault), None, partitions)
        broken += [f"seed {seed}, {partitions} partitions: {violation}" for violation in story.run().violations]
        rows = jobs_in(story.shell.records)
        assert all(row.number % partitions == partition_of(row.id, partitions) for row in rows)
        served |= {row.number % partitions for row in rows}

    assert not broken, "\n".join(broken)
    assert len(served) > 1, "jobs were in more than one of them"


@pytest.mark.parametrize("fault", dags.STORE_FAULTS)
def test_a_history_with_a_store_that_is_replaced_is_clean(fault: str) -> None:
    world = dags.Story(dags.plan_of(1, store_fault=fault), None).run()

    assert not world.violations and world.struck[fault] >= 1


@pytest.mark.long
@pytest.mark.parametrize("fault", dags.STORE_FAULTS)
def test_histories_with_a_store_that_is_replaced_have_what_is_hard_in_them(fault: str) -> None:
    stories = [dags.Story(dags.plan_of(seed, store_fault=fault), None) for seed in range(20)]

    for story in stories:
        story.run()

    assert sum(story.history.lost for story in stories) >= 5, "acknowledged jobs went with the store"
    assert sum(story.shell.epochs_raised for story in stories) >= 3, "workers remembered a later epoch"
    assert sum(story.results.completed for story in stories) >= 500
    if fault != dags.ROLLED_BACK:
        assert sum(story.shell.dropped for story in stories) >= 10, "workers held what was of another life"


def test_a_clock_that_was_wrong_while_nobody_looked_is_counted_as_that_and_made_wrong_again() -> None:
    plan = dags.plan_of(15)
    assert plan.rare == dags.CLOCK_MOVED

    world = dags.Story(plan, None).run()

    assert world.met_nothing[dags.CLOCK_MOVED] and not world.violations
    assert world.struck[dags.CLOCK_MOVED]


@pytest.mark.parametrize("seed", range(2))
def test_without_faults_every_attempt_that_ran_is_accounted_for(seed: int) -> None:
    story = dags.Story(dags.plan_of(seed, classes=()), None)

    world = story.run()

    assert not world.violations
    assert story.results.completed == story.cores.ends["completed"] > 0
    assert story.shell.lost == 0


@pytest.mark.long
def test_histories_have_what_is_hard_in_them() -> None:
    stories = [dags.Story(dags.plan_of(seed), None) for seed in range(30)]

    for story in stories:
        story.run()

    assert sum(story.shell.lost for story in stories) >= 10
    assert sum(story.runs.again for story in stories) >= 200
    assert sum(story.runs.limited for story in stories) >= 200
    assert sum(story.results.inputs for story in stories) >= 1000
    assert sum(story.refusals.told for story in stories) >= 50
    ends = {how for story in stories for how in story.cores.ends}
    assert ends >= {"completed", "failed", "died", "crash", "timeout", "cancelled"}
    granted = {what for story in stories for what in story.clients.granted}
    assert granted >= {"pause", "resume", "cancel", "skip", "rerun"}
    assert sum(story.rival.struck for story in stories) >= 10
    assert sum(story.shell.refused for story in stories) >= 10
    states = {row.state for story in stories for row in jobs_in(story.shell.records)}
    assert states >= {"completed", "partial", "failed", "cancelled", "timeout"}


@pytest.mark.long
def test_histories_with_a_clock_that_is_moved_have_what_is_hard_in_them() -> None:
    stories = [dags.Story(dags.plan_of(seed, classes=(dags.CLOCK_MOVED,)), None) for seed in range(8)]

    for story in stories:
        story.run()

    assert sum(story.chores.jumps for story in stories) >= 20
    assert sum(len(fired) for story in stories for fired in story.chores.fired.values()) >= 20


def test_commits_that_wait_become_one_write() -> None:
    stories = [dags.Story(dags.plan_of(seed), None) for seed in range(5)]

    for story in stories:
        story.run()

    assert sum(story.shell.commits for story in stories) > sum(story.shell.writes for story in stories) > 0


def test_a_fault_of_the_plan_that_never_struck_fails_the_run() -> None:
    story = dags.Story(dags.plan_of(1), None)
    story.faults.begin = lambda until: None  # type: ignore[method-assign]

    world = story.run()

    assert "plan" in {violation.invariant for violation in world.violations}


def test_jobs_whose_manager_is_gone_for_good_are_told() -> None:
    story = dags.Story(dags.plan_of(3, classes=()), None)
    story.faults.stop = lambda: None  # type: ignore[method-assign]
    story.world.at(10 * SECOND, partial(story.manager.crash))

    world = story.run()

    assert "D1" in {violation.invariant for violation in world.violations}


@fresh(40, PER_TEST)
def test_no_worker_that_dies_in_a_stall_of_the_manager_breaks_an_invariant(seeds: range) -> None:
    broken = [f"seed {seed}: {violation}" for seed in seeds for violation in stalls.run(seed).violations]

    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("seed", range(3))
def test_a_worker_that_dies_while_the_manager_stands_still_is_given_up_within_a_lease_of_its_return(seed: int) -> None:
    assert not stalls.run(seed).violations


@pytest.mark.parametrize(
    ("seed", "more"),
    [
        (7, {}),
        (20, {}),
        (3, {"has_fans": True}),
        (8, {"has_fans": True}),
        (2, {"store_fault": dags.RESTORED}),
        (6, {"store_fault": dags.NEW_STORE}),
    ],
)
def test_tasks_are_counted_by_handler_as_the_store_has_them_where_managers_die(seed: int, more: dict[str, Any]) -> None:
    story = dags.Story(dags.plan_of(seed, **more), None)

    assert not story.run().violations
    assert story.queues.looks > 30 and story.queues.delayed > 0
    assert story.manager.boot > 1, "what is counted was read from the store"
