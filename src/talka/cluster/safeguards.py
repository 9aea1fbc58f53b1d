"""Every safeguard of the cluster's protocols, by name.

All of them are on, always. The switches exist so that the simulator can take one away and show what it is for: a
switch skips only the lines of its safeguard, and no checker knows of it. `docs/ablation.md` has a row for each.
"""

from typing import Final

import msgspec


class Safeguards(msgspec.Struct, frozen=True):
    result_key: bool = True
    """An attempt's result is accepted once."""
    takeover_barrier: bool = True
    """A manager that takes a job over has its fence on every worker before it acts."""
    account_first: bool = True
    """What a manager decides is on a majority of disks before workers are told."""
    cumulative_counters: bool = True
    """Reports say everything counted so far, and the latest wins; a repeated one changes nothing."""
    sealed_variables: bool = True
    """Variables of a job travel sealed to the worker that runs it."""
    own_attempts: bool = True
    """What a worker tells counts for attempts that it was given, and for nobody else's."""
    # dag jobs
    attempt_fence: bool = True
    """A result counts if it is of the attempt that was given out last; one that was given up brings none any more."""
    task_result_key: bool = True
    """The result of an attempt at a task is accepted once, however often it is told."""
    leased_limits: bool = True
    """An attempt holds its limits until it is over, also when the manager that gave it out was started anew."""
    commit_first: bool = True
    """Nobody is told of anything before it is durable: no client, no worker, no task that waits for another."""
    store_fence: bool = True
    """A manager whose store another has taken changes nothing in it: its epoch is looked up within every transaction."""
    schedule_mending: bool = True
    """A schedule whose next instant was reckoned by a clock that was ahead gets another when that is right again."""
    aged_retention: bool = True
    """Ended jobs are dropped by how long the store was seen to grow older, not by a clock that can be set."""
    store_life: bool = True
    """A result counts for the store, the life of it, the job and the task it was made for; workers drop all others."""
    epoch_floor: bool = True
    """A manager gives a worker nothing under an epoch that this worker has obeyed for another."""


ALL: Final = Safeguards()
