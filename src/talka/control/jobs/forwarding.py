"""What one manager asks the leader for somebody: who it was, for the leader's own log."""

import msgspec

from talka.errors import Invalid
from talka.wire.jobs import Call
from talka.wire.manager_calls import CancelCall, NameCall, SubmitCall, decode
from talka.wire.security.access import CHANGES, Asker

TAKEN, REFUSED = 202, 403


class Forwarded(msgspec.Struct, frozen=True):
    """News: a change was asked for through another manager, or something was refused that was passed on."""

    through: str
    """The manager that passed it on."""
    what: str
    asker: Asker | None
    status: int
    subject: str = ""
    """The job, worker, or name of the order."""
    text: str = ""


def forwarded(through: str, call: Call, problem: str) -> list[Forwarded]:
    """A line for each change and each refusal; questions that were answered leave none."""
    if not problem and call.what not in CHANGES:
        return []
    status = REFUSED if problem else TAKEN
    return [Forwarded(through, call.what, call.asker, status, _subject(call), problem)]


def _subject(call: Call) -> str:
    try:
        match call.what:
            case "submit":
                return decode(call.content, SubmitCall).order.name
            case "cancel":
                return decode(call.content, CancelCall).job
            case "drain":
                return decode(call.content, NameCall).name
            case _:
                return ""
    except Invalid:
        return ""
