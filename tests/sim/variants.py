"""Wrong variants of the cluster's protocols: each lacks one safeguard, so that a history shows what it is for.

`without` takes safeguards away for as long as its block lasts: it puts wrong methods in the place of right ones, in
this process. The code itself knows nothing of it, and neither do the checkers. `docs/ablation.md` has a row for each.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec

from talka.cluster import leases
from talka.cluster.fencing import APPLY, Fence, Refuse
from talka.cluster.leadership.ballot import Ballot
from talka.cluster.leadership.election_timeouts import ElectionTimeouts
from talka.cluster.leadership.leader_term import LeaderTerm
from talka.cluster.leadership.lease_terms import LeaseFit, LeaseTerms
from talka.cluster.leadership.register import RECORD_KEY, Acceptor
from talka.cluster.leadership.timings import LeadershipConfig
from talka.cluster.leadership.voter_sync import VoterSync
from talka.cluster.leadership.voters import Electorate
from talka.cluster.leases import LeaseHolder
from talka.cluster.membership.local_health import LocalHealth
from talka.cluster.membership.members import DEAD
from talka.cluster.membership.membership import Membership
from talka.cluster.membership.prober import Relays
from talka.cluster.membership.suspicion import Suspicion, SuspicionBounds
from talka.cluster.membership.updates import Updates
from talka.cluster.membership.vouched import Vouched
from talka.control.clients import shedding
from talka.control.clients.request_classes import RequestClass
from talka.control.clients.shedding import Shedding
from talka.control.dags.book import DagBook
from talka.control.dags.handler_counts import HandlerCounts
from talka.control.dags.keeper import DagKeeper
from talka.control.jobs import job_checkpoint, managers
from talka.control.jobs.checkpoints import Checkpoints
from talka.control.jobs.commands import Assignments
from talka.control.jobs.entries import EntryBook
from talka.control.jobs.granting import Granting
from talka.control.jobs.managers import Managers
from talka.control.jobs.remote_load import RemoteLoad
from talka.control.jobs.take_over import TakeOver
from talka.control.jobs.workers.fleet import Fleet
from talka.control.jobs.workers.granted_workers import GrantedWorkers
from talka.control.jobs.workers.health import CorrelatedFailure
from talka.control.jobs.workers.lease_rule import LeaseRule
from talka.control.jobs.workers.worker_life import WorkerLife
from talka.control.load.load_job import LoadJob
from talka.control.manager import Manager
from talka.control.member import peer_pool
from talka.control.member.agreements import Agreements
from talka.control.member.manager_search import ManagerSearch
from talka.control.member.replay_guard import ReplayGuard, ReplayWindow
from talka.control.member.ring_guard import RingGuard
from talka.control.member.role_check import RoleCheck
from talka.control.member.signers import Signers
from talka.control.member.three_signals import Readiness
from talka.control.tasks import attempts
from talka.control.tasks.attempts import Attempts
from talka.control.tasks.dispatch import Dispatcher
from talka.control.tasks.dispatch_workers import DispatchWorkers
from talka.control.tasks.epoch_floor import EpochFloor
from talka.control.tasks.store_effects import Commit
from talka.control.worker.composite import Worker
from talka.control.worker.core_turns import CoreTurns
from talka.control.worker.fences import JobFences
from talka.control.worker.handlers_code import OWN
from talka.control.worker.handlers_pool import HandlerPool
from talka.control.worker.handlers_room import HandlerRoom
from talka.control.worker.lease import WorkerLease
from talka.control.worker.variables import WorkerVariables
from talka.store.dags.sqlite import SqliteRecords
from talka.testing import store_chores
from talka.testing.store_chores import StoreChores
from talka.testing.store_shell import jobs_in
from talka.units import MILLISECOND, NEVER
from talka.wire.condition import NodeCondition
from talka.wire.shards import Totals
from talka.wire.versions import Agreed
from talka.work.dags.records import DropJob, FanOut, PutTasks
from talka.work.lifecycle import is_final


class Wrong(NamedTuple):
    owner: Any
    """The class, or the module, that has the right one."""
    name: str
    wrong: Callable[..., Any]
    """Called with the right one before its own arguments."""


VARIANTS: dict[str, list[Wrong]] = {}
"""What is put in the place of what, by the safeguard that it takes away."""


def variant(safeguard: str, owner: Any, *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def note(wrong: Callable[..., Any]) -> Callable[..., Any]:
        VARIANTS.setdefault(safeguard, []).extend(Wrong(owner, name, wrong) for name in names)
        return wrong

    return note


@contextmanager
def without(*safeguards: str) -> Iterator[None]:
    """Nodes that start and run meanwhile lack these. Also a decorator of tests."""
    with ExitStack() as taken_away:
        for safeguard in safeguards:
            for owner, name, wrong in VARIANTS[safeguard]:
                taken_away.enter_context(patch.object(owner, name, _in_place_of(getattr(owner, name), wrong)))
        yield


def _in_place_of(right: Any, wrong: Callable[..., Any]) -> Any:
    if isinstance(right, property):
        return property(lambda self: wrong(right.fget, self))

    @wraps(right)
    def called(*arguments: Any, **named: Any) -> Any:
        return wrong(right, *arguments, **named)

    return called


# Membership.


@variant("local_health", LocalHealth, "_change")
def never_doubts_itself(right, self, delta):
    """A member that fails its probes doubts itself first: its periods and timeouts grow."""


@variant("local_health", Updates, "_needs_confirmation")
def trusts_itself(right, self, suspicion):
    return False


@variant("nack", LocalHealth, "probe_failed")
def takes_silence_of_helpers_for_nothing(right, self, nacks_expected, nacks_received):
    """A helper that cannot reach the target says so; silence of helpers then speaks against the prober."""
    right(self, 0, nacks_received)


@variant("nack", Relays, "begin")
def never_says_nack(right, self, *arguments):
    right(self, *arguments)
    self._nacks.clear()
    self.next_nack_at = NEVER


@variant("buddy", Membership, "_is_told_of_it")
def tells_only_the_dead(right, self, member):
    """A suspected member is told so by whoever probes it, and can refute at once."""
    return member.status == DEAD


@variant("buddy", Suspicion, "is_to_be_asked")
def asks_nobody_a_last_time(right, self):
    return False


@variant("confirmations", Suspicion, "confirm")
def counts_one_accuser(right, self, now, accuser, zone):
    """A lone accuser waits long; each independent accuser shortens the wait."""
    return False


@variant("confirmations", Updates, "_bounds")
def waits_for_nobody(right, self):
    shortest_ns = right(self).min_ns
    return SuspicionBounds(shortest_ns, shortest_ns, 0)


@variant("lag_gate", LocalHealth, "_observe_late")
def never_feels_late(right, self, now, lag_ns):
    """A member that handles its datagrams late gives no verdicts."""


@variant("replay_window", ReplayWindow, "admit")
def admits_again(right, self, counter):
    """A frame is accepted once."""
    right(self, counter)
    return True


@variant("role_table", RoleCheck, "check")
def hears_everybody(right, self, proven, message):
    """Where certificates are in use, what a node says counts only if its proven role may say it."""


@variant("ring_from_managers", RingGuard, "bars")
def takes_keys_from_anybody(right, self, lane, proven):
    """With certificates keys count only on a stream from a proven manager."""
    return ""


@variant("ring_jump", RingGuard, "is_too_far")
def believes_every_jump(right, self, mine, theirs):
    """Keys too far ahead of one's own are not believed."""
    return False


@variant("signed_records", Vouched, "believes", "believes_state")
def believes_hearsay(right, self, *said):
    """With certificates a member's address and state count only when the member itself signed them."""
    return True


# Versions.


@variant("agreed_versions", Agreements, "may_say")
def says_all_to_everybody(right, self, name, message):
    """What a peer does not know is not said to it."""
    return True


@variant("oldest_presumed", Agreements, "of")
def presumes_its_own(right, self, name):
    """Of a peer that nothing is known of, the oldest version is presumed."""
    return right(self, name) if self.life_of(name) else Agreed(self.mine.version, self.mine.capabilities)


@variant("one_life", ReplayGuard, "_is_meant")
def hears_what_earlier_lives_were_told(right, self, packet):
    """What only newer releases know is heard by no other life than the one that was found to know it."""
    return True


# Leadership.


@variant("persist_vote", Acceptor, "flush")
def forgets_term_and_vote(right, self):
    """Term and vote are on disk before the vote is given."""
    persist = right(self)
    if persist is None:
        return None
    record = msgspec.structs.replace(self.record, term=0, voted_for="")
    (key, _), *entries = persist.puts
    assert key == RECORD_KEY
    return msgspec.structs.replace(persist, puts=((key, msgspec.msgpack.encode(record)), *entries))


@variant("vote_hold_down", VoterSync, "__init__")
def votes_at_once(right, self, now, *arguments):
    """A voter that starts gives no vote for one lease: it may have promised one that it forgot."""
    right(self, now, *arguments)
    self.votes_from = now


@variant("configured_majority", Electorate, "_covers")
def counts_those_seen_alive(right, self, now, config, names, excluding):
    """A majority is one of the configured voters, never of those seen alive."""
    seats = sum(self._is_live(now, voter.name) for voter in config.voters)
    return 2 * sum(voter.name in names and voter.name != excluding for voter in config.voters) > seats


@variant("lease_from_send", LeaderTerm, "_confirm")
def leads_from_the_answer_on(right, self, now, number, out):
    """A leader counts its lease from before it asked, not from when it was answered."""
    turn = self._rounds[number]
    if not turn.is_confirmed and self._electorate.is_majority(now, turn.replies):
        turn.sent_at = now
    right(self, now, number, out)


@variant("lease_from_send", LeaseHolder, "granted")
def holds_from_the_answer_on(right, self, now, key, number, epoch, ttl_ns):
    claim = self._claims.get(key)
    if claim is not None and number in claim.asked:
        claim.asked[number] = now
    return right(self, now, key, number, epoch, ttl_ns)


@variant("drift_margin", LeadershipConfig, "leader_lease_ns", "voter_lease_ns")
def trusts_its_clock(right, self):
    """Leader and voters count a lease shorter and longer than it is, by the drift clocks may have."""
    return self.lease_ns


@variant("drift_margin", leases, "margin_ns")
def leaves_no_margin(right, ttl_ns):
    return 0


@variant("fencing", Fence, "admit")
def obeys_old_tokens(right, self, token):
    """A receiver refuses commands with a token below the highest it has seen."""
    answer = right(self, token)
    return APPLY if isinstance(answer, Refuse) else answer


@variant("pre_vote", Ballot, "ask")
def asks_nobody_first(right, self, now, out):
    """A term is raised only when a majority would vote for it."""
    return True


@variant("check_quorum", LeaderTerm, "deadline")
def leads_alone(right, self):
    """A leader that no majority answers steps down."""
    return NEVER


@variant("write_back", LeaderTerm, "_propose")
def serves_what_it_read(right, self, now, entries, out, *, is_takeover=False, **named):
    """A new leader writes what it read from a majority to a majority before it serves."""
    if is_takeover:
        for entry in entries:
            if entry.version.sequence == 0:
                self._commit(entry)
        entries = tuple(entry for entry in entries if entry.version.sequence)
    if entries:
        right(self, now, entries, out, is_takeover=is_takeover, **named)


@variant("one_leader_lease", VoterSync, "_promised_ns")
def waits_for_its_own_lease(right, self):
    """Voters that count the leader's lease otherwise do not hear each other, and what was promised is waited for."""
    return self._config.voter_lease_ns()


@variant("one_leader_lease", Acceptor, "count_with")
def counts_as_it_likes(right, self, lease_ns):
    pass


@variant("one_leader_lease", LeaseFit, "is_other")
def hears_other_leases(right, self, leader_ns):
    return False


# Jobs.


@variant("one_worker_lease", LeaseFit, "objection")
def never_objects(right, self, terms):
    """The lease of workers is the register's, whatever a manager was told."""
    return ""


@variant("one_worker_lease", LeaseRule, "_read")
def goes_by_what_it_was_told(right, self, content):
    own = self._voter.election.fit.own
    return right(self, content) if own is None else LeaseTerms(own.ns, 0, "this manager alone", self._token)


@variant("longer_lease", LeaseRule, "count_ns")
def counts_the_new_lease_at_once(right, self):
    """While the lease of workers is changed, the longer one is waited for, by every leader anew."""
    return self.terms.next_ns or self.terms.lease_ns


@variant("longer_lease", LeaseRule, "_end_of_wait")
def waits_for_no_lease(right, self, now):
    return now if self.terms.next_ns else NEVER


@variant("worker_fence", JobFences, "admit")
def obeys_old_managers(right, self, now, job, fence):
    """A worker refuses commands of a manager that no longer leads the job."""
    answer = right(self, now, job, fence)
    return APPLY if isinstance(answer, Refuse) else answer


@variant("worker_fence", JobFences, "is_stale")
def finds_nothing_stale(right, self, job, fence):
    return False


@variant("worker_fence", HandlerPool, "on_message")
def obeys_old_epochs(right, self, now, sender, message):
    epoch = max(message.epoch, self._served(message.of.partition).obeyed.epoch)
    return right(self, now, sender, msgspec.structs.replace(message, epoch=epoch))


@variant("worker_lease", WorkerLease, "next_check_at")
def never_ends(right, self):
    """A worker stops its tasks when nobody renewed its lease, before anybody else may have them."""
    return NEVER


@variant("remembered_managers", ManagerSearch, "told")
def writes_nobody_down(right, self, now, managers):
    """A worker keeps on its disk where managers are, and greets them when it is started again."""
    right(self, now, managers)
    return None


@variant("named_managers", Manager, "_named_to")
def names_nobody(right, self, seeks):
    """A manager that does not lead tells a worker without a lease where the others are."""
    return ()


@variant("near_first", peer_pool, "tier_of")
def takes_all_for_near(right, own, other):
    """Of several that can all do the same a near one is asked first."""
    return peer_pool.Tier.ANY


@variant("core_deadline", Worker, "_tell_cores")
def tells_no_core(right, self):
    """A core stops by its own clock when its worker's lease is over, also while the worker stands still."""
    right(self)
    return []


@variant("idempotency_key", EntryBook, "by_key")
def knows_no_key(right, self, key):
    """The same submission sent twice is one job."""
    return None


@variant("kept_deadlines", job_checkpoint, "_deadline_record")
def forgets_deadlines(right, deadline):
    """Who takes a job over knows what more time it was given, and whether it was warned."""
    return None


@variant("resumed_by_people", LoadJob, "resume")
def resumes_by_itself(right, self, now, times):
    """What was put aside goes on when a person resumed the job, and once for each time."""
    return right(self, now, self.resumes + 1)


@variant("heard_lives", Fleet, "__init__")
def forgets_whom_it_heard(right, self, *arguments, heard=None, **named):
    """A worker that this process has heard is given up with its lease; the grace is for those it never heard."""
    right(self, *arguments, **named)


@variant("correlated_hold", CorrelatedFailure, "holds")
def gives_all_up_at_once(right, self, now, silent_since, known, *, is_due):
    """When many workers fall silent at once, the fault is looked for nearer home before they are given up."""
    return False


@variant("correlated_managers", Managers, "_is_held")
def gives_all_managers_up_at_once(right, self, now, silent_since, known, *, is_due):
    """When most managers are silent at once, the fault is looked for nearer home before their jobs get others."""
    return False


@variant("passed_on", Managers, "_why_handed_over")
def leaves_jobs_where_nothing_is_done(right, self, now, entry, owned_ns):
    """A job of which its owner dispatches nothing gets another one."""
    return ""


@variant("ready_managers", managers, "announced_readiness")
def believes_all_are_ready(right, announcement):
    """A manager that says it is overloaded, or leaves, gets no jobs."""
    return Readiness.READY, ""


@variant("late_workers", WorkerLife, "_readiness")
def takes_late_workers_for_ready(right, self):
    """A worker that says it handles everything late is given nothing."""
    late, self.condition = self.condition, NodeCondition()
    try:
        return right(self)
    finally:
        self.condition = late


@variant("unwell_candidates", ElectionTimeouts, "others_go_first_until")
def stands_however_it_does(right, self, now):
    """Who does badly lets others stand first."""
    return now


@variant("signed_bundles", Signers, "judge")
def runs_what_comes(right, self, now, digest, content):
    """A worker runs only what a manager of its cluster has signed."""
    return "holds"


@variant("reservation", Granting, "_is_over_by")
def lets_anybody_pass(right, self, now, time, until):
    """Who starts before the job that is next has surely ended when that can start."""
    return True


@variant("result_key", RemoteLoad, "on_finished")
def fetches_every_result(right, self, now, sender, message):
    """An attempt's result is accepted once."""
    if not self._results.is_fetched(message.attempt):
        return [self._results.fetch(message.attempt, message.digest, message.size_bytes, sender)]
    return right(self, now, sender, message)


@variant("result_key", RemoteLoad, "_is_settled")
def finds_nothing_settled(right, self, result):
    return False


@variant("result_key", RemoteLoad, "_count")
def counts_again(right, self, now, digest, result):
    """Without a key for each attempt, a result belongs to whatever runs in its place."""
    if not result.is_lost and self._running(result.attempt) is None:
        for run in self.job.workflows.values():
            for shard in run.shards:
                if any(attempt.number == result.attempt for attempt in shard.attempts):
                    shard.current.tally.merge(result.tally)
    return right(self, now, digest, result)


@variant("takeover_barrier", TakeOver, "ask")
def takes_it_that_workers_have_nothing(right, self, now, workers):
    """A manager that takes a job over has its fence on every worker before it acts."""
    if not self._numbers:
        self._snapshots = {worker: {} for worker in workers}
    return right(self, now, workers)


@variant("takeover_barrier", TakeOver, "also_tell")
def tells_none_that_was_lost(right, self, workers):
    pass


@variant("account_first", Checkpoints, "hold")
def acts_before_it_is_stored(right, self, what):
    """What a manager decides is on a majority of disks before workers are told."""
    return [what]


@variant("cumulative_counters", LoadJob, "on_message")
def adds_reports_up(right, self, now, number, message):
    """Reports say everything counted so far, and the latest wins; a repeated one changes nothing."""
    if isinstance(message, Totals) and not message.final:
        attempt = self.attempts[number][2]
        message.tally.merge(attempt.tally)
        message = msgspec.structs.replace(message, sequence=attempt.sequence + 1)
    return right(self, now, number, message)


@variant("sealed_variables", Assignments, "_sealed")
def sends_variables_open(right, self, *worker):
    """Variables of a job travel sealed to the worker that runs it."""
    return self._entry.order.bundle, b""


@variant("sealed_variables", WorkerVariables, "opened")
def takes_open_variables(right, self, assign):
    return assign if assign.bundle.env else right(self, assign)


@variant("silence_deadline", CoreTurns, "overdue")
def waits_for_every_core(right, self, may_end):
    """A core of a load test whose event loop does not turn is killed when its deadline is over, and replaced."""
    return []


@variant("cores_apart", WorkerLife, "is_usable")
def takes_the_worker_for_its_core(right, self):
    """A core that hangs concerns no other core of its worker."""
    return right(self) and not self.quiet


@variant("own_attempts", GrantedWorkers, "was_granted")
def hears_strangers(right, self, worker):
    """What a worker tells counts for attempts that it was given, and for nobody else's."""
    return True


@variant("own_attempts", Attempts, "of_others")
def finds_none_of_others(right, self, results, sender):
    return set()


@variant("own_attempts", attempts, "_is_others")
def takes_every_word(right, worker, sender):
    return False


# Dag jobs.


def _stays_open(right, self, task):
    running, self.running = self.running, {}
    right(self, task)
    self.running = running


@variant("attempt_fence", DagKeeper, "_lost")
def leaves_open_what_it_gave_up(right, self, now, task, cause):
    """A result counts if it is of the attempt that was given out last; one that was given up brings none any more."""
    with patch.object(Attempts, "gone", _in_place_of(Attempts.gone, _stays_open)):
        right(self, now, task, cause)


@variant("task_result_key", DagKeeper, "_on_result")
def takes_results_again(right, self, now, sender, result):
    """The result of an attempt at a task is accepted once, however often it is told."""
    with patch.object(Attempts, "gone", _in_place_of(Attempts.gone, _stays_open)):
        right(self, now, sender, result)


@variant("leased_limits", Dispatcher, "restore")
def forgets_what_is_held(right, self, now, task):
    """An attempt holds its limits until it is over, also when the manager that gave it out was started anew."""


@variant("kept_times", DagKeeper, "restore_times")
def forgets_what_was_given(right, self, job, times):
    """More time that an attempt was given stays given, also when the manager that gave it was started anew."""


@variant("commit_first", DagKeeper, "_out")
def tells_before_it_is_durable(right, self, now):
    """Nobody is told of anything before it is durable: no client, no worker, no task that waits for another."""
    effects = right(self, now)
    own = self.partition.number
    tickets = [effect.ticket for effect in effects if isinstance(effect, Commit) and effect.partition == own]
    return [*effects, *(word for ticket in tickets for word in self.on_committed(now, ticket))]


@variant("whole_fan_out", DagKeeper, "_out")
def writes_elements_apart(right, self, now):
    """The elements of a task that is fanned out become durable together, with the word that it has them."""
    effects = []
    for effect in right(self, now):
        if isinstance(effect, Commit) and any(isinstance(change, FanOut) for change in effect.changes):
            rows = tuple(change for change in effect.changes if isinstance(change, PutTasks))
            rest = tuple(change for change in effect.changes if not isinstance(change, PutTasks))
            effects += [Commit(0, rows, effect.partition), msgspec.structs.replace(effect, changes=rest)]
        else:
            effects.append(effect)
    return effects


@variant("code_takers", DispatchWorkers, "_unfit")
def gives_code_to_anybody(right, self, facts, needs, now):
    """A task whose handler travels with its job is given only to workers that accept code."""
    return right(self, msgspec.structs.replace(facts, accepts_code=True), needs, now)


@variant("cores_of_code", HandlerRoom, "add")
def runs_all_code_in_the_same_cores(right, self, task, size_bytes, partition, digest):
    """Each bundle has cores of its own, for modules of one name would meet in one."""
    right(self, task, size_bytes, partition, OWN)


@variant("schedule_mending", store_chores, "mended")
def mends_nothing(right, rows, now_ms, zones):
    """A schedule whose next instant was reckoned by a clock that was ahead gets another when that is right again."""
    return []


@variant("store_life", DagKeeper, "on_message")
def hears_of_other_stores(right, self, now, sender, message):
    """A result counts for the store, the life of it, the job and the task it was made for; workers drop all others."""
    return right(self, now, sender, msgspec.structs.replace(message, of=self.floor.life))


@variant("store_life", DagKeeper, "_on_result")
def takes_results_of_other_tasks(right, self, now, sender, result):
    task = self.attempts.running.get(result.fence)
    if task is not None:
        result = msgspec.structs.replace(result, task=task.id, job=task.job.row.id)
    right(self, now, sender, result)


@variant("store_life", Attempts, "heard")
def finds_nobody_foreign(right, self, *arguments, is_foreign, **named):
    return right(self, *arguments, is_foreign=False, **named)


@variant("store_life", HandlerPool, "on_message")
def obeys_other_stores(right, self, now, sender, message):
    obeyed = self._served(message.of.partition).obeyed
    if message.epoch == obeyed.epoch:
        message = msgspec.structs.replace(message, of=obeyed.life)
    return right(self, now, sender, message)


@variant("store_life", HandlerPool, "_drop_others")
def keeps_what_is_of_others(right, self, now, served):
    served.outbox.life = served.obeyed.life
    return []


@variant("epoch_floor", EpochFloor, "is_below")
def gives_out_under_any_epoch(right, self, epoch, life):
    """A manager gives a worker nothing under an epoch that this worker has obeyed for another."""
    return False


@variant("store_fence", SqliteRecords, "fence")
def writes_to_a_store_that_was_taken(right, self, lease):
    """A manager whose store another has taken changes nothing in it: its epoch is looked up within every
    transaction."""


@variant("aged_retention", StoreChores, "_sweep")
def sweeps_by_the_clock_of_the_day(right, self, now):
    """Ended jobs are dropped by how long the store was seen to grow older, not by a clock that can be set."""
    before_ms = self._shell.wall_ns() // MILLISECOND - self._kept_ms

    def sweep(right, records, *bounds):
        old = [row for row in jobs_in(records) if is_final(row.state) and row.ended_ms < before_ms]
        records.apply([DropJob(row.number) for row in old])

    with patch.object(SqliteRecords, "sweep", _in_place_of(SqliteRecords.sweep, sweep)):
        right(self, now)


@variant("restored_counts", DagBook, "restore")
def counts_new_tasks_alone(right, self, now, live, streams=()):
    own, self._handlers = self._handlers, HandlerCounts()
    right(self, now, live, streams)
    self._handlers = own


@variant("delays_end", DagBook, "_delays_no_more")
def goes_on_counting_it_as_delayed(right, self, task):
    pass


@variant("class_order", Shedding, "_is_shed")
def sheds_the_last_class_first(right, self, kind):
    """What must pass in any case is in the last classes, statistics are in the first."""
    order = list(RequestClass)
    return right(self, order[-1 - order.index(kind)])


@variant("statistics_refused", Shedding, "refuses")
def takes_whatever_is_told(right, self, message):
    """A manager with too much to do leaves statistics before it leaves what clients want."""
    return False


@variant("milestones_pass", shedding, "_is_milestone")
def takes_every_report_for_statistics(right, report):
    """What a worker says once, that it is armed or cannot run, travels as its counts do, and is none of them."""
    return False
