"""Every safeguard of the cluster's protocols, by name.

All of them are on, always. The switches exist so that the simulator can take one away and show what it is for: a
switch skips only the lines of its safeguard, and no checker knows of it. `docs/ablation.md` has a row for each.
"""

from typing import Final

import msgspec


class Safeguards(msgspec.Struct, frozen=True):
    # membership
    local_health: bool = True
    """A member that fails its probes doubts itself first: its periods and timeouts grow."""
    nack: bool = True
    """A helper that cannot reach the target says so; silence of helpers then speaks against the prober."""
    buddy: bool = True
    """A suspected member is told so by whoever probes it, and can refute at once."""
    confirmations: bool = True
    """A lone accuser waits long; each independent accuser shortens the wait."""
    lag_gate: bool = True
    """A member that handles its datagrams late gives no verdicts."""
    replay_window: bool = True
    """A frame is accepted once."""
    role_table: bool = True
    """Where certificates are in use, what a node says counts only if its proven role may say it."""
    ring_from_managers: bool = True
    """With certificates keys count only on a stream from a proven manager."""
    ring_jump: bool = True
    """Keys too far ahead of one's own are not believed."""
    signed_records: bool = True
    """With certificates a member's address and state count only when the member itself signed them."""
    # leadership
    persist_vote: bool = True
    """Term and vote are on disk before the vote is given."""
    vote_hold_down: bool = True
    """A voter that starts gives no vote for one lease: it may have promised one that it forgot."""
    configured_majority: bool = True
    """A majority is one of the configured voters, never of those seen alive."""
    lease_from_send: bool = True
    """A leader counts its lease from before it asked, not from when it was answered."""
    drift_margin: bool = True
    """Leader and voters count a lease shorter and longer than it is, by the drift clocks may have."""
    fencing: bool = True
    """A receiver refuses commands with a token below the highest it has seen."""
    pre_vote: bool = True
    """A term is raised only when a majority would vote for it."""
    check_quorum: bool = True
    """A leader that no majority answers steps down."""
    write_back: bool = True
    """A new leader writes what it read from a majority to a majority before it serves."""
    one_leader_lease: bool = True
    """Voters that count the leader's lease otherwise do not hear each other, and what was promised is waited for."""
    # jobs
    one_worker_lease: bool = True
    """The lease of workers is the register's, whatever a manager was told."""
    longer_lease: bool = True
    """While the lease of workers is changed, the longer one is waited for, by every leader anew."""
    worker_fence: bool = True
    """A worker refuses commands of a manager that no longer leads the job."""
    worker_lease: bool = True
    """A worker stops its tasks when nobody renewed its lease, before anybody else may have them."""
    core_deadline: bool = True
    """A core stops by its own clock when its worker's lease is over, also while the worker stands still."""
    result_key: bool = True
    """An attempt's result is accepted once."""
    takeover_barrier: bool = True
    """A manager that takes a job over has its fence on every worker before it acts."""
    account_first: bool = True
    """What a manager decides is on a majority of disks before workers are told."""
    cumulative_counters: bool = True
    """Reports say everything counted so far, and the latest wins; a repeated one changes nothing."""
    idempotency_key: bool = True
    """The same submission sent twice is one job."""
    heard_lives: bool = True
    """A worker that this process has heard is given up with its lease; the grace is for those it never heard."""
    correlated_hold: bool = True
    """When many workers fall silent at once, the fault is looked for nearer home before they are given up."""
    signed_bundles: bool = True
    """A worker runs only what a manager of its cluster has signed."""
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
