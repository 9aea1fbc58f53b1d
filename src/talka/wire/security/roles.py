"""What a node is, and which nodes may open a connection to which.

Decision: docs/decisions/0028-one-table-of-roles.md.
"""

import re
from enum import StrEnum
from typing import Final, NamedTuple

_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


class Role(StrEnum):
    CLIENT = "client"
    WORKER = "worker"
    OUTSIDE_WORKER = "outside-worker"
    """A worker behind a firewall or in another network: it can dial, and cannot be dialled."""
    MANAGER = "manager"
    GATE = "gate"


ROLES: Final = frozenset(str(role) for role in Role)


class Proven(NamedTuple):
    """Whom the certificate of a connection names. What comes without one is of `NOBODY`, whatever it says."""

    name: str = ""
    role: Role | None = None

    @staticmethod
    def of(name: str, role: str) -> "Proven":
        """As a certificate says it. A role that is not known here is none."""
        return Proven(name, Role(role) if role in ROLES else None)


NOBODY: Final = Proven()

MATRIX: Final[dict[Role, tuple[Role, ...]]] = {
    Role.CLIENT: (Role.GATE, Role.MANAGER),  # submits; to a manager only where there are no gates
    Role.GATE: (Role.MANAGER, Role.GATE, Role.CLIENT),  # forwards, asks its peers, pushes
    Role.MANAGER: (Role.WORKER, Role.MANAGER, Role.GATE, Role.CLIENT),  # dispatches, asks its peers, reports, pushes
    Role.WORKER: (Role.MANAGER,),  # reports progress
    Role.OUTSIDE_WORKER: (Role.MANAGER, Role.GATE),  # asks for work; it is answered on its own connection
}
"""Initiator to those it may connect to."""


def may_connect(initiator: Role, target: Role, *, has_gates: bool = False) -> str:
    """Nothing, or a sentence that says why the connection must not be. `has_gates`: the cluster has gates
    configured."""
    targets = MATRIX[initiator]
    if target not in targets:
        allowed = " or ".join(a(role) for role in targets)
        return f"{a(initiator)} may not connect to {a(target)}, only to {allowed}"
    if has_gates and initiator is Role.CLIENT and target is Role.MANAGER:
        return "a client may not connect to a manager where there are gates: connect to a gate"
    return ""


def a(role: str) -> str:
    """The role with its article."""
    return f"an {role}" if role[0] in "aeiou" else f"a {role}"


def id_problem(what: str, text: str) -> str:
    """Nothing, or a sentence. Ids of clusters, environments, datacenters and nodes are made of the same characters."""
    if _ID.fullmatch(text):
        return ""
    return f"{what} {text[:80]!r} is not an id: use 1 to 64 letters, digits, '.', '_' or '-'"
