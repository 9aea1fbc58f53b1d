"""Lines for the audit log that no request to this manager's own API leaves: of other managers, and of nodes."""

from typing import Final, Protocol

from talka.control.jobs.effects import Forwarded
from talka.control.member.composite import QuestionAsked
from talka.control.member.role_check import RoleRefused
from talka.nodes.member_keys import CHANGES
from talka.wire.asking import AddKey, ChangeLease, RepairKeys, RetireKey, UseKey
from talka.wire.security.keys import key_id
from talka.work.durations import format_duration

TAKEN: Final = 200
INVALID: Final = 422
REFUSED: Final = 403


class PutDown(Protocol):
    """As `web.audit.Audit.note`."""

    def __call__(
        self,
        what: str,
        status: int,
        *,
        who: str = "",
        role: str = "",
        token: str = "",
        source: str = "",
        job: str = "",
        text: str = "",
    ) -> None: ...


def nowhere(what: str, status: int, **facts: str) -> None:
    """Of a member that keeps no audit log: its events tell the same."""


def put_down_forwarded(put_down: PutDown, news: Forwarded) -> None:
    """A change that another manager passed on."""
    through, asker = f"manager {news.through}", news.asker
    if asker is None:
        put_down(news.what, news.status, source=through, job=news.subject, text=news.text)
        return
    put_down(
        news.what,
        news.status,
        who=asker.name,
        role=asker.role,
        token=asker.token,
        source=f"{asker.source} by {through}".lstrip(),
        job=news.subject,
        text=news.text,
    )


def put_down_refusal(put_down: PutDown, news: RoleRefused) -> None:
    """What nobody of that role may say."""
    role = news.role or "unproven"
    put_down(f"node: {news.message}", REFUSED, who=news.name, role=role, source=news.source, text=news.text)


def put_down_change(put_down: PutDown, asked: QuestionAsked, problem: str) -> None:
    """Who changed the keys that nodes seal with, or the lease. Ids of keys are told, never a secret."""
    match asked.ask.question:
        case UseKey(key_id=value) | RetireKey(key_id=value):
            pass
        case AddKey(secret=secret):
            value = key_id(secret)
        case RepairKeys(secrets=secrets):
            value = ", ".join(map(key_id, secrets))
        case ChangeLease(lease_ns=lease_ns):
            value = format_duration(lease_ns)
        case _:
            return
    word = CHANGES.get(type(asked.ask.question))
    put_down(
        f"keys: {word}" if word else "lease: change",
        INVALID if problem else TAKEN,
        who=asked.sender,
        role=asked.proven.role or "",
        source=asked.source,
        job=value,
        text=problem,
    )
