"""A receiver of commands: nothing of a deposed leader takes effect here.

Pure. The highest token is on disk before a command under it is applied, so a restart forgets nothing.

Fencing as in `cluster/fencing.py`. No node uses this yet: slots and gates will.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from talka.cluster.effects import Lane, Persist, Send
from talka.cluster.fencing import Apply, Fence, PersistFirst, Refuse, Token
from talka.cluster.safeguards import ALL, Safeguards
from talka.wire.leases import CHANNEL, CommandAnswer, LeaseCommand, LeaseMessage

FENCE_KEY: Final = "fence"
WAITING_LIMIT: Final = 1024


class Applied(msgspec.Struct, frozen=True):
    """The command took effect."""

    sender: str
    token: Token
    number: int
    body: bytes


ReceiverEffect: TypeAlias = Send[LeaseMessage] | Persist | Applied


class Receiver:
    def __init__(self, stored: Mapping[str, bytes], safeguards: Safeguards = ALL) -> None:
        self._fence = Fence(stored.get(FENCE_KEY), safeguards)
        self._tickets = 0
        self._waiting: deque[tuple[int, str, Token, LeaseCommand]] = deque()

    @property
    def highest(self) -> Token:
        return self._fence.highest

    def on_command(self, sender: str, command: LeaseCommand) -> list[ReceiverEffect]:
        token = Token(*command.token)
        if len(self._waiting) >= WAITING_LIMIT and token >= self._fence.highest:
            return []  # as if it had been lost on the way: the fence must not rise without a write
        match self._fence.admit(token):
            case Apply():
                return self._apply(sender, token, command)
            case Refuse(highest=highest):
                seen = (highest.parent, highest.term, highest.sequence)
                return [Send(CHANNEL, sender, CommandAnswer(command.number, False, seen), Lane.CONTROL)]
            case PersistFirst(content=content):  # pragma: no branch - the type checker sees that no other is left
                effects: list[ReceiverEffect] = []
                if content is not None:
                    self._tickets += 1
                    effects.append(Persist(self._tickets, ((FENCE_KEY, content),)))
                self._waiting.append((self._tickets, sender, token, command))
                return effects

    def on_persisted(self, ticket: int) -> list[ReceiverEffect]:
        effects: list[ReceiverEffect] = []
        while self._waiting and self._waiting[0][0] <= ticket:
            _, sender, token, command = self._waiting.popleft()
            self._fence.persisted(token)
            if token < self._fence.highest:
                # A later leader has commanded while this waited for the disk.
                effects += self.on_command(sender, command)
            else:
                effects += self._apply(sender, token, command)
        return effects

    def _apply(self, sender: str, token: Token, command: LeaseCommand) -> list[ReceiverEffect]:
        answer = CommandAnswer(command.number, True, command.token)
        return [Applied(sender, token, command.number, command.body), Send(CHANNEL, sender, answer, Lane.CONTROL)]
