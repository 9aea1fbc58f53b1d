"""A hostile member among jobs: it has the secret, and neither reads variables nor has anything run."""

from tests.sim import jobs
from tests.sim.seeds import fresh

PER_TEST = 20


@fresh(40, PER_TEST)
def test_no_history_with_a_forger_breaks_an_invariant(seeds: range) -> None:
    broken, forged, opened = [], 0, 0
    for seed in seeds:
        story = jobs.Story(jobs.plan_of(seed), None, has_forger=True)
        world = story.run()
        broken += [f"seed {seed} with a forger: {violation}" for violation in world.violations]
        forged += len(story.forger.jobs)
        opened += story.variables.opened

    assert not broken, "\n".join(broken)
    assert forged > PER_TEST and opened > PER_TEST, "otherwise this proves nothing"
