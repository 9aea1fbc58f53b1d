"""The lease of workers as the cluster's leader goes by it, and how it is changed.

What the register holds is what counts. A change is written there first, with the lease that holds: from then on
renewals are of the shorter of the two, and silence is counted by the longer, until nobody can have a longer lease than
the new one. Only then the new one is written as the lease that holds. A leader that finds a change begun waits again
from its start.

Decision: docs/decisions/0033-one-lease.md.
"""

from typing import Final

from talka.cluster.effects import Lane, Send
from talka.cluster.leadership.lease_terms import (
    BY_LIMIT,
    LONGEST_NS,
    USUAL_NS,
    WORKER_LEASE_KEY,
    LeaseTerms,
    decode_terms,
    encode_terms,
)
from talka.cluster.leadership.news import WriteEnded
from talka.cluster.leases import margin_ns
from talka.control.jobs.effects import Alarmed, JobsEffect, LeaseChanged
from talka.control.member.voter import Voter
from talka.errors import Invalid, Unavailable
from talka.units import MILLISECOND, NEVER, SECOND
from talka.wire.jobs import CHANNEL, JobMessage
from talka.wire.manager_calls import CallAnswer, LeaseTold
from talka.wire.views import LeaseView
from talka.work.durations import format_duration

AGAIN_NS: Final = SECOND
REFS_FROM: Final = 1 << 39
"""References of its writes; those of entries are smaller."""
SHORTEST_LEASE_NS: Final = SECOND // 2
LONGEST_LEASE_NS: Final = LONGEST_NS
"""What a cluster may be told: with less a node that is busy for a moment loses its work, with more a dead one is waited
for by everybody."""
WAITING_LIMIT: Final = 64


class LeaseRule:
    """Lives as long as a registry. `renew_ns` and `count_ns` are what renewals say and what silence is counted by."""

    def __init__(self, now: int, voter: Voter) -> None:
        assert voter.token is not None and voter.election.leader_term is not None
        self.alarms: list[Alarmed] = []
        self._is_unread = False
        self._write_at = NEVER
        self._voter = voter
        self._token = voter.token
        self._ref = REFS_FROM
        self._writing: LeaseTerms | None = None
        self._waiting: dict[tuple[str, int], None] = {}
        """Who waits for what is being written, and the number of the question."""
        self.terms = self._read(voter.election.leader_term.value_of(WORKER_LEASE_KEY))
        self.earlier_ns = self.count_ns
        """For how long a lease may still run that a leader before this one gave."""
        if self.terms.token == self._token:
            # None was stored: of an earlier version's leaders nothing is known but what they usually gave.
            self.earlier_ns = max(self.earlier_ns, USUAL_NS)
        self._settles_at = self._write_at = self._end_of_wait(now)

    def _read(self, content: bytes | None) -> LeaseTerms:
        if content is None:
            return LeaseTerms(USUAL_NS, 0, "nobody", self._token)
        terms = decode_terms(content)
        if terms is None:
            longest = format_duration(LONGEST_NS)
            text = (
                f"the register's lease of workers cannot be read by this version: {longest} are waited for; "
                "update this manager, or set it again: talka cluster lease D --to HOST:PORT"
            )
            self.alarms.append(Alarmed(text))
            self._is_unread = True
            return LeaseTerms(LONGEST_NS, 0, "a later version", self._token)
        return terms

    @property
    def renew_ns(self) -> int:
        # Of one that cannot be read, whoever can may count less than the longest.
        return SHORTEST_LEASE_NS if self._is_unread else self.terms.shorter_ns

    @property
    def count_ns(self) -> int:
        return self.terms.longer_ns

    def _end_of_wait(self, now: int) -> int:
        if not self.terms.next_ns:
            return NEVER
        return now + self.count_ns + margin_ns(self.count_ns)

    # -- changing it

    def view(self, now: int) -> LeaseView:
        terms = self.terms
        wait_ns = max(0, self._settles_at - now) if terms.next_ns else 0
        return LeaseView(
            terms.lease_ns // MILLISECOND, terms.next_ns // MILLISECOND, -(-wait_ns // MILLISECOND), terms.by
        )

    def answer(self, now: int, sender: str, number: int) -> Send[JobMessage]:
        return _say(sender, CallAnswer(number, LeaseTold(self.view(now))))

    def change(self, now: int, lease_ns: int, by: str, sender: str, number: int) -> list[JobsEffect]:
        """Make it this one. Who asks, and asks again, is answered once that is on a majority of disks."""
        if not SHORTEST_LEASE_NS <= lease_ns <= LONGEST_LEASE_NS:
            shortest, longest = format_duration(SHORTEST_LEASE_NS), format_duration(LONGEST_LEASE_NS)
            raise Invalid(f"a lease of {format_duration(lease_ns)} is not possible: write {shortest} to {longest}")
        terms, wanted = self.terms, self._writing
        if wanted is not None and lease_ns in (wanted.lease_ns, wanted.next_ns):
            if len(self._waiting) < WAITING_LIMIT:
                self._waiting[sender, number] = None
            return []
        if lease_ns == (terms.next_ns or terms.lease_ns):
            return [self.answer(now, sender, number)]
        if terms.next_ns or wanted is not None:
            to_ns = terms.next_ns or (wanted.next_ns if wanted is not None else 0)
            left = f"{max(0, self._settles_at - now) / SECOND:.0f} s" if terms.next_ns else "a moment"
            was, next = format_duration(terms.lease_ns), format_duration(to_ns)
            raise Unavailable(f"the lease is being changed from {was} to {next} already: ask again in {left}")
        self._waiting[sender, number] = None
        return self._write(now, LeaseTerms(terms.lease_ns, lease_ns, by[:BY_LIMIT], self._token))

    def _write(self, now: int, terms: LeaseTerms) -> list[JobsEffect]:
        self._ref += 1
        self._writing = terms
        return [*self._voter.write(now, self._ref, WORKER_LEASE_KEY, encode_terms(terms))]

    def on_write_ended(self, now: int, ended: WriteEnded) -> list[JobsEffect]:
        """Of any write; only its own concerns it."""
        terms = self._writing
        if terms is None or ended.ref != self._ref:
            return []
        self._writing = None
        waiting, self._waiting = self._waiting, {}
        if ended.outcome != "accepted":
            self._write_at = NEVER if self._settles_at == NEVER else now + AGAIN_NS
            text = f"the lease may have been changed or not ({ended.reason}): ask again"
            return [_say(sender, CallAnswer(number, None, "unavailable", text)) for sender, number in waiting]
        self.terms, self._is_unread = terms, False
        self._settles_at = self._write_at = self._end_of_wait(now)
        changed = LeaseChanged(terms.lease_ns, terms.next_ns, terms.by)
        return [changed, *(self.answer(now, sender, number) for sender, number in waiting)]

    def tick(self, now: int) -> list[JobsEffect]:
        """Nobody can have a longer lease than the new one any more: it holds from when that is stored."""
        if now < self._write_at or self._writing is not None:
            return []
        self._write_at = NEVER
        terms = self.terms
        return self._write(now, LeaseTerms(terms.next_ns, 0, terms.by, self._token))


def _say(to: str, answer: CallAnswer) -> Send[JobMessage]:
    return Send(CHANNEL, to, answer, Lane.RESULTS)
