"""Holds keys by lease: asks whoever leads, renews in time, and stops by its own clock when nobody answers.

Pure. `holds` is the question to ask before every effect.

docs/decisions/0012-the-holes-of-leadership.md. No node uses this yet: slots and gates will.
"""

from random import Random
from typing import Final, TypeAlias

import msgspec

from talka.cluster.effects import Lane, Send
from talka.cluster.leases import TTL_LEAST_NS, TTL_MOST_NS, HolderNews, LeaseHolder, RenewDue
from talka.errors import Invalid
from talka.units import MILLISECOND, NEVER
from talka.wire.leases import CHANNEL, LEASE_KEY_LIMIT, AcquireLease, LeaseAnswer, LeaseMessage, ReleaseLease

WANTED_LIMIT: Final = 4096
RETRY_LEAST_NS: Final = MILLISECOND


OwnerEffect: TypeAlias = Send[LeaseMessage] | HolderNews


class _Want(msgspec.Struct):
    ttl_ns: int
    ask_at: int


class Owner:
    """Call `want` and `unwant` for keys, `on_answer` for what arrives, `tick` once `next_tick_at` has come."""

    def __init__(
        self,
        *,
        voters: tuple[str, ...],
        rng: Random,
        retry_ns: int = 500_000_000,
        wanted_limit: int = WANTED_LIMIT,
    ) -> None:
        self._wanted_limit = wanted_limit
        if not voters:
            raise Invalid("an owner of leases must know a voter to ask")
        if retry_ns < RETRY_LEAST_NS:
            raise Invalid(f"an owner of leases asks again after at least 1 ms, not {retry_ns} ns")
        self._voters = voters
        self._rng = rng
        self._retry_ns = retry_ns
        self._holder = LeaseHolder(rng.getrandbits(48))
        self._wanted: dict[str, _Want] = {}
        self._asked = voters[rng.randrange(len(voters))]
        self._silent_since = NEVER
        self.next_tick_at = NEVER

    def holds(self, now: int, key: str) -> int | None:
        """The epoch under which the key is held at this instant."""
        return self._holder.holds(now, key)

    def want(self, now: int, key: str, ttl_ns: int) -> list[OwnerEffect]:
        if len(self._wanted) >= self._wanted_limit and key not in self._wanted:
            raise Invalid(f"lease of {key!r}: an owner may want {self._wanted_limit} keys at once")
        if not 0 < len(key) <= LEASE_KEY_LIMIT:
            raise Invalid(f"a key has 1 to {LEASE_KEY_LIMIT} characters, not {len(key)}: {key[:40]!r}")
        if not TTL_LEAST_NS <= ttl_ns <= TTL_MOST_NS:
            raise Invalid(f"lease of {key!r}: its time to live is between 10 ms and one hour, not {ttl_ns} ns")
        self._wanted[key] = _Want(ttl_ns, now)
        return self.tick(now)

    def unwant(self, now: int, key: str) -> list[OwnerEffect]:
        self._wanted.pop(key, None)
        epoch = self._holder.released(key)
        self._set_timer()
        return [] if epoch is None else [Send(CHANNEL, self._asked, ReleaseLease(key, epoch), Lane.CONTROL)]

    def tick(self, now: int) -> list[OwnerEffect]:
        effects: list[OwnerEffect] = []
        for news in self._holder.tick(now):
            if isinstance(news, RenewDue):
                effects.append(self._ask(now, news.key))
            else:
                effects.append(news)
        for key, want in self._wanted.items():
            if now >= want.ask_at and self._holder.holds(now, key) is None:
                effects.append(self._ask(now, key))
        self._set_timer()
        return effects

    def on_answer(self, now: int, sender: str, answer: LeaseAnswer) -> list[OwnerEffect]:
        self._silent_since = NEVER
        effects: list[HolderNews] = []
        want = self._wanted.get(answer.key)
        if answer.answer == "granted":
            if want is None:
                return [Send(CHANNEL, sender, ReleaseLease(answer.key, answer.epoch), Lane.CONTROL)]
            effects = self._holder.granted(now, answer.key, answer.number, answer.epoch, answer.ttl_ns)
        elif answer.answer == "ended":
            effects = self._holder.lost(answer.key, answer.epoch)
        else:
            self._holder.refused(answer.key, answer.number)
            if answer.answer == "elsewhere" and answer.leader in self._voters:
                self._asked = answer.leader
                if want is not None:
                    want.ask_at = min(want.ask_at, now + self._retry_ns // 10)
            elif answer.answer == "elsewhere":
                self._asked = self._voters[self._rng.randrange(len(self._voters))]
            elif answer.answer == "held" and want is not None:
                want.ask_at = min(max(want.ask_at, now + answer.wait_ns), now + want.ttl_ns)
        self._set_timer()
        return list(effects)

    def _ask(self, now: int, key: str) -> Send[LeaseMessage]:
        want = self._wanted[key]  # nothing is held that is not wanted
        want.ask_at = now + self._retry_ns + self._rng.randrange(self._retry_ns // 4)
        if self._silent_since == NEVER:
            self._silent_since = now
        elif now - self._silent_since >= 2 * self._retry_ns:
            # Whoever was asked is silent: try another.
            self._asked = self._voters[self._rng.randrange(len(self._voters))]
            self._silent_since = now
        request = self._holder.requested(now, key)
        return Send(CHANNEL, self._asked, AcquireLease(key, request.number, request.epoch, want.ttl_ns), Lane.CONTROL)

    def _set_timer(self) -> None:
        at = self._holder.next_tick_at
        for key, want in self._wanted.items():
            if self._holder.ends_at(key) is None and want.ask_at < at:
                at = want.ask_at
        self.next_tick_at = at
