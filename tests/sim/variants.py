"""Wrong variants of the cluster's protocols: each lacks one safeguard, so that a history shows what it is for.

`without` takes safeguards away for as long as its block lasts: it puts wrong methods in the place of right ones, in this
process. The code itself knows nothing of it, and neither do the checkers. `docs/ablation.md` has a row for each.
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
from talka.cluster.leadership.election import Election
from talka.cluster.leadership.leader_term import LeaderTerm
from talka.cluster.leadership.lease_terms import LeaseFit, LeaseTerms
from talka.cluster.leadership.register import RECORD_KEY, Acceptor
from talka.cluster.leadership.timings import LeadershipConfig
from talka.cluster.leadership.voters import Electorate
from talka.cluster.leases import LeaseHolder
from talka.cluster.membership.local_health import LocalHealth
from talka.cluster.membership.members import DEAD
from talka.cluster.membership.membership import Membership
from talka.cluster.membership.prober import Relays
from talka.cluster.membership.suspicion import Suspicion, SuspicionBounds
from talka.cluster.membership.updates import Updates
from talka.cluster.membership.vouched import Vouched
from talka.cluster.safeguards import Safeguards
from talka.control.jobs.entries import EntryBook
from talka.control.jobs.fleet import Fleet
from talka.control.jobs.health import CorrelatedFailure
from talka.control.jobs.lease_rule import LeaseRule
from talka.control.member.replay_guard import ReplayWindow
from talka.control.member.ring_guard import RingGuard
from talka.control.member.role_check import RoleCheck
from talka.control.member.signers import Signers
from talka.control.worker.composite import Worker
from talka.control.worker.fences import JobFences
from talka.control.worker.handlers_pool import HandlerPool
from talka.control.worker.lease import WorkerLease
from talka.control.worker.variables import WorkerVariables
from talka.units import NEVER


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
            assert safeguard in VARIANTS or safeguard in Safeguards.__struct_fields__, safeguard
            for owner, name, wrong in VARIANTS.get(safeguard, ()):
                taken_away.enter_context(patch.object(owner, name, _in_place_of(getattr(owner, name), wrong)))
        yield


def switches(*safeguards: str) -> Safeguards:
    """Those of them that are still taken away where the code asks for them."""
    return Safeguards(**{name: name not in safeguards for name in Safeguards.__struct_fields__})


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


@variant("vote_hold_down", Election, "__init__")
def votes_at_once(right, self, *, now, **named):
    """A voter that starts gives no vote for one lease: it may have promised one that it forgot."""
    right(self, now=now, **named)
    self._votes_from = now


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


@variant("one_leader_lease", Election, "_promised_ns")
def waits_for_its_own_lease(right, self):
    """Voters that count the leader's lease otherwise do not hear each other, and what was promised is waited for."""
    return self._voter_lease_ns


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
    epoch = max(message.epoch, self._obeyed.epoch)
    return right(self, now, sender, msgspec.structs.replace(message, epoch=epoch))


@variant("worker_lease", WorkerLease, "next_check_at")
def never_ends(right, self):
    """A worker stops its tasks when nobody renewed its lease, before anybody else may have them."""
    return NEVER


@variant("core_deadline", Worker, "_tell_cores")
def tells_no_core(right, self):
    """A core stops by its own clock when its worker's lease is over, also while the worker stands still."""
    right(self)
    return []


@variant("idempotency_key", EntryBook, "by_key")
def knows_no_key(right, self, key):
    """The same submission sent twice is one job."""
    return None


@variant("heard_lives", Fleet, "__init__")
def forgets_whom_it_heard(right, self, *arguments, heard=None, **named):
    """A worker that this process has heard is given up with its lease; the grace is for those it never heard."""
    right(self, *arguments, **named)


@variant("correlated_hold", CorrelatedFailure, "holds")
def gives_all_up_at_once(right, self, now, silent_since, known, *, is_due):
    """When many workers fall silent at once, the fault is looked for nearer home before they are given up."""
    return False


@variant("signed_bundles", Signers, "judge")
def runs_what_comes(right, self, now, digest, content):
    """A worker runs only what a manager of its cluster has signed."""
    return "holds"


@variant("sealed_variables", WorkerVariables, "opened")
def takes_open_variables(right, self, assign):
    return assign if assign.bundle.env else right(self, assign)


@variant("store_life", HandlerPool, "on_message")
def obeys_other_stores(right, self, now, sender, message):
    if message.epoch == self._obeyed.epoch:
        message = msgspec.structs.replace(message, of=self._obeyed.life)
    return right(self, now, sender, message)


@variant("store_life", HandlerPool, "_drop_others")
def keeps_what_is_of_others(right, self, now):
    self._outbox.life = self._obeyed.life
    return []
