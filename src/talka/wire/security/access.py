"""What users may do: their roles, the least one for each operation of the API, and who asked for what is passed on.

The API asks this table before it does anything. A manager that passes a question on says who asked, and the leader asks
the same table again.

Decision: docs/decisions/0028-one-table-of-roles.md.
"""

from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import Meta

UserRole = Literal["viewer", "submitter", "operator", "admin"]
"""Each may do what those before it may. Whoever may submit runs code of their own on the workers."""
USER_ROLES: Final[tuple[UserRole, ...]] = get_args(UserRole)

LEAST: Final[dict[str, UserRole | None]] = {
    "put_bundle": "submitter",
    "has_bundle": "submitter",
    "submit": "submitter",
    "execute": "submitter",
    "bulk": "submitter",
    "submit_frames": "submitter",
    "jobs": "viewer",
    "job": "viewer",
    "view": "viewer",
    "tasks": "viewer",
    "why": "viewer",
    "logs": "viewer",
    "attempts": "viewer",
    "output": "viewer",
    "task": "viewer",
    "events": "viewer",
    "graph": "viewer",
    "pause": "submitter",
    "resume": "submitter",
    "retry": "submitter",
    "retry_plan": "submitter",
    "who_could_run": "submitter",
    "skip": "submitter",
    "queues": "viewer",
    "dead_letters": "viewer",
    "replay": "operator",
    "schedules": "viewer",
    "put_schedule": "operator",
    "drop_schedule": "operator",
    "pause_schedule": "operator",
    "resume_schedule": "operator",
    "run_schedule": "operator",
    "backfill": "operator",
    "order": "viewer",
    "cancel": "submitter",
    "result": "viewer",
    "watch": "viewer",
    "workers": "viewer",
    "worker": "viewer",
    "drain": "operator",
    "undrain": "operator",
    "cluster": "viewer",
    "audit": "admin",
    "openapi": "viewer",
    "livez": None,
    "readyz": None,
    "metrics": "viewer",
}
"""The least role that may do it; None: everybody, without a token."""
OF_NODES: Final[dict[str, UserRole]] = {"lease": "admin"}
"""Likewise what is no operation of the API: operators ask a manager's node for it, with its certificate or the
secret."""


class Asker(msgspec.Struct, frozen=True, array_like=True):
    """Who asked a manager, and for what."""

    operation: Annotated[str, Meta(max_length=32)]
    role: Annotated[str, Meta(max_length=16)]
    name: Annotated[str, Meta(max_length=200)] = ""
    """Of the token; empty where none are used."""
    token: Annotated[str, Meta(max_length=64)] = ""
    """Its id."""
    source: Annotated[str, Meta(max_length=64)] = ""
    """The address that asked."""


def own(operation: str) -> Asker:
    """A manager that asks for itself: nobody else did."""
    return Asker(operation, "admin")


def has_role(role: str, least: UserRole) -> bool:
    return role in USER_ROLES and USER_ROLES.index(role) >= USER_ROLES.index(least)


def objection(asker: Asker | None, operations: tuple[str, ...]) -> str:
    """Nothing, or why what is asked for by these operations may not be done for whoever asked."""
    what = operations[0]
    if asker is None:
        return f"{what!r} was passed on without who asked for it: the manager that did is of an earlier version"
    least = LEAST.get(asker.operation) or OF_NODES.get(asker.operation)
    if least is None or asker.operation not in operations:
        return f"nobody may ask for {what!r} by {asker.operation!r}"
    if not has_role(asker.role, least):
        return f"a {asker.role} may not ask for {what!r}: that takes the role {least}"
    return ""
