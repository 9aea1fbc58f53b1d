"""Who may say what: a row for every message between nodes, a column for every role that a certificate can prove.

It is asked wherever certificates are in use, for every frame, once its sender's role is known and before it is heard.
What no row names, nobody may say. Where there are no certificates nobody can prove a role: whoever has the secret is a
node, and the table is not asked. `python -m talka.wire.security.permissions` prints it as docs/security.md shows it.

Decision: docs/decisions/0028-one-table-of-roles.md.
"""

import sys
from typing import Any, Final, TypeAlias, get_args

from talka.wire import asking, greeting, jobs, leadership, leases, manager_calls, membership, tasks
from talka.wire.channels import Channel
from talka.wire.security.roles import Role

Column: TypeAlias = Role | None
"""None: nothing proves who says it, as with every datagram."""
Senders: TypeAlias = tuple[Column, ...]
"""Few, and compared by identity: a set would hash a name for every frame."""

COLUMNS: Final[tuple[Column, ...]] = (
    Role.MANAGER,
    Role.WORKER,
    Role.OUTSIDE_WORKER,
    Role.CLIENT,
    Role.GATE,
    None,
)
MANAGERS: Final[Senders] = (Role.MANAGER,)
WORKERS: Final[Senders] = (Role.MANAGER, Role.WORKER, Role.OUTSIDE_WORKER)
ASKERS: Final[Senders] = (Role.MANAGER, Role.CLIENT, Role.GATE)
MEMBERS: Final[Senders] = (Role.MANAGER, None)
WATCHERS: Final[Senders] = (Role.MANAGER, Role.GATE, None)
ANYBODY: Final[Senders] = COLUMNS
NOBODY_MAY: Final[Senders] = ()

CHANNELS: Final[dict[int, Channel[Any]]] = {
    channel.number: channel
    for channel in (
        membership.CHANNEL,
        leadership.CHANNEL,
        leases.CHANNEL,
        greeting.CHANNEL,
        asking.CHANNEL,
        jobs.CHANNEL,
    )
}
"""Every conversation between nodes, by its number in a packet."""
ENVELOPES: Final[dict[type, tuple[type, ...]]] = {
    asking.Ask: get_args(asking.Question),
    manager_calls.ManagerCall: manager_calls.CALLS,
}
"""Messages that stand in no row themselves, and what may be in them."""
MESSAGES: Final[list[tuple[int, type]]] = [
    (number, row)
    for number, channel in CHANNELS.items()
    for kind in channel.kinds
    for row in ENVELOPES.get(kind, (kind,))
]
"""Every message between nodes, with the number of its conversation. A question stands for the Ask around it, a call for
the ManagerCall."""

TABLE: Final[dict[type, Senders]] = {
    # Members probe each other over datagrams, which no certificate covers; records travel over streams alone.
    membership.Ping: MEMBERS,
    membership.ProbeAck: MEMBERS,
    membership.PingRequest: MEMBERS,
    membership.Nack: MEMBERS,
    membership.Gossip: MEMBERS,
    membership.SyncOffer: MANAGERS,
    membership.SyncReply: MANAGERS,
    membership.SyncRecords: MANAGERS,
    membership.WatchGroup: WATCHERS,
    membership.WatchReply: WATCHERS,
    # Whoever may connect may greet: what it says of itself is compared with its certificate.
    greeting.GreetingHello: ANYBODY,
    greeting.GreetingWelcome: ANYBODY,
    greeting.Challenge: ANYBODY,
    greeting.Proof: ANYBODY,
    greeting.GreetingRefusal: ANYBODY,
    greeting.ShareRing: MANAGERS,
    # Questions change nothing; what changes keys does.
    asking.AskMembers: ASKERS,
    asking.AskLeader: ASKERS,
    asking.AskAudit: ASKERS,
    asking.AskKeys: ASKERS,
    asking.AskMetrics: ASKERS,
    asking.AddKey: MANAGERS,
    asking.UseKey: MANAGERS,
    asking.RetireKey: MANAGERS,
    asking.RepairKeys: MANAGERS,
    asking.AskLease: ASKERS,
    asking.ChangeLease: MANAGERS,
    asking.AskAnswer: MANAGERS,
    # Only managers vote, hold keys and are commanded by whom they elected.
    **dict.fromkeys(leadership.CHANNEL.kinds, MANAGERS),
    **dict.fromkeys(leases.CHANNEL.kinds, MANAGERS),
    # What a worker tells of itself and of what it was given.
    jobs.Beat: WORKERS,
    jobs.Goodbye: WORKERS,
    jobs.WorkerSnapshot: WORKERS,
    jobs.Report: WORKERS,
    jobs.Finished: WORKERS,
    jobs.Stale: WORKERS,
    jobs.NoTask: WORKERS,
    jobs.Synced: WORKERS,
    jobs.TaskDeclined: WORKERS,
    jobs.LogLines: WORKERS,
    jobs.WantBlob: WORKERS,
    jobs.Piece: WORKERS,
    tasks.Done: WORKERS,
    tasks.TaskProgress: WORKERS,
    tasks.Held: WORKERS,
    # What workers obey.
    jobs.Renew: MANAGERS,
    jobs.Elsewhere: MANAGERS,
    jobs.Assign: MANAGERS,
    jobs.Start: MANAGERS,
    jobs.Halt: MANAGERS,
    jobs.Acknowledge: MANAGERS,
    jobs.ResultAccepted: MANAGERS,
    jobs.Reconcile: MANAGERS,
    jobs.Sync: MANAGERS,
    tasks.AssignTasks: MANAGERS,
    tasks.Recall: MANAGERS,
    tasks.ResultsStored: MANAGERS,
    tasks.AskHeld: MANAGERS,
    tasks.TaskInputs: MANAGERS,
    tasks.TimeAnswers: MANAGERS,
    # Calls carry what a user may do, and only managers know their users.
    **dict.fromkeys(manager_calls.CALLS, MANAGERS),
    # What managers say to each other.
    jobs.KeepBlob: MANAGERS,
    jobs.Kept: MANAGERS,
    jobs.Lead: MANAGERS,
    jobs.StoreCheckpoint: MANAGERS,
    jobs.CheckpointStored: MANAGERS,
    jobs.Leaderless: MANAGERS,
    manager_calls.CallAnswer: MANAGERS,
    jobs.WatchJob: MANAGERS,
    jobs.ViewUpdate: MANAGERS,
}
OWN: Final = {jobs.WantBlob: "bundles of jobs of which it was granted cores"}
"""What workers may say about their own alone, beyond what the table can tell."""


def may_say(role: Column, message: object) -> bool:
    return role in TABLE.get(type(_spoken(message)), NOBODY_MAY)


def name_of(message: object) -> str:
    """For counters and people: one word for each row of the table."""
    return _name(type(_spoken(message)))


def _spoken(message: object) -> object:
    """What is in an envelope, or the message itself."""
    if isinstance(message, asking.Ask):
        return message.question
    return message.call if isinstance(message, manager_calls.ManagerCall) else message


def _name(kind: Any) -> str:
    """Some conversations use the same words."""
    name: str = kind.__name__
    return f"{kind.__module__.rpartition('.')[2]}.{name}" if name in _SHARED else name


_NAMES: Final = [kind.__name__ for _, kind in MESSAGES]
_SHARED: Final = frozenset(name for name in _NAMES if _NAMES.count(name) > 1)


def rows() -> list[tuple[str, str, Senders]]:
    """(conversation, message, who may say it), by the number of the channel."""
    return [(CHANNELS[number].name, _name(kind), TABLE[kind]) for number, kind in MESSAGES]


def markdown() -> str:
    """The table for docs/security.md."""
    heads = [str(role) if role is not None else "unproven" for role in COLUMNS]
    lines = [f"| conversation | message | {' | '.join(heads)} |", "|---" * (len(heads) + 2) + "|"]
    own = {_name(kind) for kind in OWN}
    for conversation, name, who in rows():
        cells = [("own" if name in own and role in OWN_ROLES else "yes") if role in who else "" for role in COLUMNS]
        lines.append(f"| {conversation} | `{name}` | {' | '.join(cells)} |")
    notes = [f"own: {text} (`{_name(kind)}`)." for kind, text in OWN.items()]
    return "\n".join([*lines, "", *notes])


OWN_ROLES: Final = (Role.WORKER, Role.OUTSIDE_WORKER)


if __name__ == "__main__":  # pragma: no cover - the test of the page calls markdown()
    sys.stdout.write(markdown() + "\n")
