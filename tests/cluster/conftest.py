"""Voters in one process that hear each other at once, unless a test says otherwise."""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from talka.cluster.effects import Persist, Send
from talka.cluster.leadership.election import Election, Phase
from talka.cluster.leadership.register import ENTRY_PREFIX, RECORD_KEY, VoterRecord
from talka.cluster.leadership.timings import LAN
from talka.units import MILLISECOND, SECOND
from talka.wire.leadership import LeadershipMessage, PreVote, RegisterEntry, VoteReply, decode, encode


class Group:
    """Some voters, their disks and their clock. News and delivered messages are kept."""

    def __init__(self, *names: str, seed: int = 1, **options: Any) -> None:
        self.names = names
        self.now = 1_000 * SECOND
        self.voters: dict[str, Election] = {}
        self.disks: dict[str, dict[str, bytes]] = {name: {} for name in names}
        self.news: list[tuple[str, Any]] = []
        self.heard: list[tuple[str, str, LeadershipMessage]] = []
        self.cut: set[tuple[str, str]] = set()
        self.is_lost: Callable[[str, str, LeadershipMessage], bool] = lambda sender, to, message: False
        self.held: dict[str, list[Persist]] = {}
        """Disks that write only when told to, and what they were asked to write."""
        self.paused: set[str] = set()
        """Voters whose process stands still: nothing reaches them and their timers wait."""
        self.options = options
        self._rng = Random(seed)
        self._queue: deque[tuple[str, str, LeadershipMessage]] = deque()

    # -- what happens

    def start(self, *names: str, **options: Any) -> None:
        for name in names or self.names:
            arguments: dict[str, Any] = {"voters": self.names, **self.options, **options}
            disk = self.disks.setdefault(name, {})
            rng = Random(self._rng.getrandbits(64))
            self.voters[name] = Election(name=name, stored=dict(disk), rng=rng, now=self.now, **arguments)
        for name in names or self.names:
            self.ask(name, "tick")

    def crash(self, *names: str) -> None:
        for name in names:
            del self.voters[name]
            self.held.pop(name, None)

    def lose_disk(self, name: str) -> None:
        self.disks[name] = {}

    def hold_disk(self, name: str) -> None:
        self.held[name] = []

    def write_disk(self, name: str) -> None:
        """The disk catches up and is quick from now on."""
        for persist in self.held.pop(name):
            self._write(name, persist)
        self._deliver()

    def isolate(self, name: str) -> None:
        self.cut |= {pair for other in [*self.names, *self.voters] for pair in ((name, other), (other, name))}

    def lose(self, *kinds: type) -> None:
        """No message of these kinds arrives from now on."""
        self.is_lost = lambda sender, to, message: isinstance(message, kinds)

    def heal(self) -> None:
        self.cut.clear()
        self.is_lost = lambda sender, to, message: False

    def ask(self, name: str, method: str, *arguments: object, **options: Any) -> list[Any]:
        """Call a method of the voter at the present time, carry out what it wants and give back its news."""
        before = len(self.news)
        self._carry_out(name, getattr(self.voters[name], method)(self.now, *arguments, **options))
        self._deliver()
        return [told for teller, told in self.news[before:] if teller == name]

    def tell(self, to: str, sender: str, message: LeadershipMessage) -> list[tuple[str, LeadershipMessage]]:
        """Deliver a message of the test's own; what was delivered to its sender because of it."""
        self._queue.append((sender, to, message))
        before = len(self.heard)
        self._deliver()
        return [(source, answer) for source, target, answer in self.heard[before:] if target == sender]

    def votes(self, to: str, sender: str, message: LeadershipMessage) -> list[bool]:
        """Ask for a vote in the sender's name; whether it was given, empty when nothing was answered."""
        return [answer.granted for _, answer in self.tell(to, sender, message) if isinstance(answer, VoteReply)]

    def run(self, duration_ns: int) -> None:
        end = self.now + duration_ns
        while True:
            due = [(voter.next_tick_at, name) for name, voter in self.voters.items() if name not in self.paused]
            at, name = min(due, default=(end, ""))
            if at >= end:
                self.now = end
                return
            self.now = max(self.now, at)
            self.ask(name, "tick")

    def elect(self, limit_ns: int = 20 * SECOND, *, but: str = "") -> str:
        """Run until somebody leads, other than `but`; its name."""
        end = self.now + limit_ns
        while self.now < end:
            self.run(LAN.heartbeat_ns // 10)
            if self.leader() not in ("", but):
                return self.leader()
        raise AssertionError(f"nobody leads: {[(name, voter.role) for name, voter in self.voters.items()]}")

    def watch(self, duration_ns: int) -> list[str]:
        """Run, and look often who leads; two at once fail the test."""
        leaders = []
        for _ in range(duration_ns // (25 * MILLISECOND)):
            self.run(25 * MILLISECOND)
            leaders.append(self.leader())
        return leaders

    def quiet(self) -> None:
        """From now on everybody may vote and nobody stands."""
        self.lose(PreVote)
        self.run(2 * SECOND)
        assert {voter.phase for voter in self.voters.values()} == {Phase.ACTIVE}

    # -- what can be seen

    def leader(self) -> str:
        leading = [name for name, voter in self.voters.items() if voter.is_leading(self.now)]
        assert len(leading) <= 1, f"{leading} lead at once"
        return leading[0] if leading else ""

    def followers(self) -> list[str]:
        return [name for name in self.voters if name != self.leader()]

    def told(self, kind: type, name: str = "") -> list[Any]:
        return [told for teller, told in self.news if isinstance(told, kind) and name in ("", teller)]

    def messages(self, kind: type, sender: str = "") -> list[tuple[str, str, Any]]:
        return [word for word in self.heard if isinstance(word[2], kind) and sender in ("", word[0])]

    def record(self, name: str) -> VoterRecord:
        return msgspec.msgpack.decode(self.disks[name][RECORD_KEY], type=VoterRecord)

    def entry(self, name: str, key: str) -> RegisterEntry:
        return msgspec.msgpack.decode(self.disks[name][ENTRY_PREFIX + key], type=RegisterEntry)

    # -- carrying out

    def _carry_out(self, name: str, effects: list[object]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                assert effect.to != name, "a voter speaks to itself inside"
                self._queue.append((name, effect.to, decode(encode(effect.message))))
            elif isinstance(effect, Persist):
                if name in self.held:
                    assert not self.held[name], "one write at a time"
                    self.held[name].append(effect)
                else:
                    self._write(name, effect)
            else:
                self.news.append((name, effect))

    def _write(self, name: str, persist: Persist) -> None:
        for key, content in persist.puts:
            if content is None:
                self.disks[name].pop(key, None)
            else:
                self.disks[name][key] = content
        self._carry_out(name, self.voters[name].on_persisted(self.now, persist.ticket))

    def _deliver(self) -> None:
        while self._queue:
            sender, to, message = self._queue.popleft()
            if (sender, to) in self.cut or self.is_lost(sender, to, message) or to in self.paused:
                continue
            if to in self.voters:
                self.heard.append((sender, to, message))
                self._carry_out(to, self.voters[to].on_message(self.now, sender, message))
            else:
                self.heard.append((sender, to, message))  # a test may speak in the name of somebody absent


@pytest.fixture
def make_group() -> Callable[..., Group]:
    """Voters of the given names, not started yet."""
    return Group


@pytest.fixture
def group() -> Group:
    """Three voters, started; nobody leads yet."""
    group = Group("a", "b", "c")
    group.start()
    return group
