"""What one manager asks the leader for somebody: who it was, for the leader's own log."""

from talka.control.jobs.effects import Forwarded
from talka.errors import Invalid
from talka.wire.jobs import ManagerCall
from talka.wire.manager_calls import CancelCall, NameCall, SubmitCall, decode
from talka.wire.security.access import CHANGES

TAKEN, REFUSED = 202, 403


def forwarded(through: str, call: ManagerCall, problem: str) -> list[Forwarded]:
    """A line for each change and each refusal; questions that were answered leave none."""
    if not problem and call.what not in CHANGES:
        return []
    status = REFUSED if problem else TAKEN
    return [Forwarded(through, call.what, call.asker, status, _subject(call), problem)]


def _subject(call: ManagerCall) -> str:
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
