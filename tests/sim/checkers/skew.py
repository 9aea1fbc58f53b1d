"""What must hold between hosts of two releases, judged only by what they hear."""

from typing import Final

from talka.control.member.composite import ClusterMember
from talka.testing.host import Host
from talka.testing.world import Observer, World
from talka.units import SECOND
from talka.wire.channels import Message

RECENT_NS: Final = 4 * SECOND


class Told(Observer):
    """V1: nobody hears what it does not know. V2: at the end everybody has lately heard from everybody what both know,
    and some voter leads.

    Who receives tells of it with `hear`, and who starts with `begin`.
    """

    def __init__(self, world: World) -> None:
        self.heard = 0
        """Messages that a newer release brought."""
        self._world = world
        self._minors: dict[str, int] = {}
        self._last: dict[tuple[str, str, int], int] = {}
        """(receiver, sender, what it needs) to when it was heard last."""

    def begin(self, name: str, minor: int) -> None:
        self._minors[name] = minor
        for receiver, sender, needs in list(self._last):
            if receiver == name:
                del self._last[receiver, sender, needs]

    def hear(self, name: str, sender: str, minor: int, message: Message) -> None:
        if message.needs > minor:
            word = type(message).__name__
            self._world.violate(
                "V1", f"{sender} told {name} of minor {minor} {word}, which minor {message.needs} brought"
            )
        self.heard += message.needs > 0
        self._last[name, sender, message.needs] = self._world.now

    def at_end(self, world: World) -> None:
        newest = max(self._minors.values())
        for name in self._minors:
            for sender in self._minors:
                if sender == name:
                    continue
                both = min(self._minors[name], self._minors[sender])
                for needs in (0, newest) if both == newest else (0,):
                    at = self._last.get((name, sender, needs))
                    if at is None or at < world.now - RECENT_NS:
                        world.violate(
                            "V2", f"{name} has not heard lately what {sender} says, which needs minor {needs}"
                        )
        if not any(_leads(host) for host in world.hosts.values()):
            world.violate("V2", "no voter leads at the end")


def _leads(host: Host) -> bool:
    node = host.node
    return isinstance(node, ClusterMember) and node.voter is not None and node.voter.election.leader_term is not None
