"""How a voter finds its place when it starts: is its disk still the one its promises are on?

A voter asks its peers what they remember of it. One whose disk is older than they have seen, or was replaced, has
forgotten promises: it starts over, without a vote, until the leader has brought it up to date. The first voters of a
group have nothing to be told: a majority of them founds it.

Raft (Ongaro's dissertation) §3.8 persisted state and server restarts; a disk that was lost is beyond it.
docs/decisions/0012-the-holes-of-leadership.md.
"""

from enum import Enum
from random import Random
from typing import Final

from talka.cluster.leadership.register import Acceptor
from talka.cluster.leadership.voters import CONFIG_KEY, Electorate, VoterConfig, VoterEntry, digest_of
from talka.wire.leadership import RegisterEntry, RegisterSnapshot, VoterHello, VoterWelcome

PEERS_LIMIT: Final = 64


class Lesson(Enum):
    GOES_ON = "goes on"
    LEARNED = "learned"
    TOO_MUCH = "too much"
    """More keys than a voter may hold: nothing was taken."""


class VoterStartup:
    """What this voter has seen of others' disks, and what they say of its own."""

    def __init__(self, *, name: str, voters: tuple[str, ...], acceptor: Acceptor, rng: Random) -> None:
        self.founders = VoterConfig(0, 0, tuple(VoterEntry(voter) for voter in sorted(voters)))
        """The voters this one was configured with; what the register holds counts more."""
        self.digest = digest_of(voters)
        self.name = name
        self._acceptor = acceptor
        self._rng = rng
        self._seen: dict[str, tuple[int, int]] = {}  # a peer's disk and its latest revision
        self._welcomes: dict[str, VoterWelcome] = {}
        self._asked: dict[
            str, tuple[int, int]
        ] = {}  # the disk each peer last said VoterHello with, and the nonce for it
        self._nonce = rng.getrandbits(40)
        self._echoes: dict[str, int] = {}  # the nonces to send back
        self._pages: dict[int, tuple[RegisterEntry, ...]] = {}
        self._pages_of: tuple[str, int, int] | None = None

    # -- what others are told

    def see(self, name: str, disk_id: int, revision: int) -> None:
        """A peer spoke with this disk, which was written this often."""
        known = self._seen.get(name)
        if known is None:
            if len(self._seen) < PEERS_LIMIT:
                self._seen[name] = (disk_id, revision)
        elif known[0] != disk_id or known[1] < revision:
            self._seen[name] = (disk_id, revision)

    def hello(self, to: str) -> VoterHello:
        record = self._acceptor.record
        echo = self._echoes.get(to, 0)
        return VoterHello(record.disk_id, record.revision, record.admitted, record.group_id, self.digest, echo)

    def is_fresh(self, sender: str, message: VoterHello) -> bool:
        """Whether this VoterHello was said after the last VoterWelcome, with the disk that one was for. A leader acts
        on no other: one that was delayed, or played back, may be of a life whose disk is gone."""
        return message.echo > 0 and self._asked.get(sender) == (message.disk_id, message.echo)

    def welcome(self, sender: str, message: VoterHello, config: VoterConfig) -> VoterWelcome:
        """What this voter remembers of one that starts; from now on, what it says of itself."""
        self._nonce += 1
        if sender in self._asked or len(self._asked) < PEERS_LIMIT:
            self._asked[sender] = (message.disk_id, self._nonce)
        disk_id, revision = self._seen.get(sender, (0, 0))
        if disk_id != message.disk_id or revision < message.revision:
            self.see(sender, message.disk_id, message.revision)
        record = self._acceptor.record
        version = self._acceptor.version_of(CONFIG_KEY)
        return VoterWelcome(
            disk_id, revision, record.group_id, config.disk_id_of(sender) or 0, version, record.term, self._nonce
        )

    def founding(self) -> VoterConfig:
        """The group's first configuration, with the disks of those who have spoken."""
        disks = {name: disk_id for name, (disk_id, _) in self._seen.items()}
        disks[self.name] = self._acceptor.record.disk_id
        voters = tuple(VoterEntry(voter.name, disks.get(voter.name, 0)) for voter in self.founders.voters)
        return VoterConfig(self._rng.getrandbits(62) | 1, 1, voters)

    # -- what others say

    def judge(self, sender: str, message: VoterWelcome) -> str:
        """Compare the disk with what a peer remembers. A sentence when it cannot be trusted and was given up."""
        if sender in self._echoes or len(self._echoes) < PEERS_LIMIT:
            self._echoes[sender] = message.nonce
        record = self._acceptor.record
        is_older = message.disk_id == record.disk_id and message.revision > record.revision
        is_newer_config = message.config > self._acceptor.version_of(CONFIG_KEY)
        is_replaced = record.admitted and message.seat not in (0, record.disk_id) and is_newer_config
        if not is_older and not is_replaced:
            return ""
        self._acceptor.start_over(self._rng.getrandbits(62) | 1)
        self._welcomes.clear()
        what = "is older than" if is_older else "was replaced since, as"
        return f"the disk of {self.name!r} {what} {sender!r} has seen it: it starts over without a vote"

    def heard(self, sender: str, message: VoterWelcome) -> None:
        """Bounded by the voters there are: the caller lets nobody else speak."""
        self._welcomes[sender] = message

    def is_settled(self, now: int, electorate: Electorate) -> bool:
        """Whether a majority has answered and this disk may be acted upon."""
        answered: dict[str, object] = {self.name: None, **self._welcomes}
        if not electorate.is_majority(now, answered):
            return False
        if self._acceptor.record.admitted:
            return True
        # Where there was an election, a majority has its disks: they can do without this one, and a leader of theirs
        # brings it up to date. Where there was none, this is how a group begins.
        return not any(welcome.term for welcome in self._welcomes.values())

    def learn(self, sender: str, message: RegisterSnapshot) -> Lesson:
        """Take a page of what the leader holds. Learning something twice changes nothing."""
        key = (sender, message.term, message.number)
        if self._pages_of != key:
            self._pages_of = key
            self._pages = {}
        self._pages[message.page] = message.entries
        if len(self._pages) < message.pages:
            return Lesson.GOES_ON
        entries = tuple(entry for page in sorted(self._pages) for entry in self._pages[page])
        self._pages = {}
        if not self._acceptor.accept(entries):
            return Lesson.TOO_MUCH
        if message.group_id:
            self._acceptor.confirm(message.group_id)
        return Lesson.LEARNED
