"""What happens in a member's life, as people and programs read it."""

from typing import Any, Final, TypeAlias, assert_never

from msgspec.structs import asdict

from talka.cluster.leadership.lease_terms import LeaseDiffers
from talka.cluster.leadership.news import (
    ConfigChanged,
    Elected,
    LeaderChanged,
    LeadershipAlarm,
    LeaseExtended,
    PhaseChanged,
    ReadEnded,
    SteppedDown,
    WriteEnded,
)
from talka.cluster.leases import LeaseExpired, LeaseGranted, LeaseLost, RenewDue
from talka.cluster.membership.federation import GroupMemberReachable, GroupMemberUnreachable, GroupStateLearned
from talka.cluster.membership.news import (
    DatagramsBlocked,
    DatagramsRestored,
    MemberJoined,
    MemberLeft,
    MemberLost,
    MemberReturned,
    MemberSuspected,
    Namesake,
    Refuted,
    StateLearned,
)
from talka.control.member.agreements import VersionDiffers
from talka.control.member.composite import NodeNews
from talka.control.member.receiver import Applied
from talka.control.member.role_check import RoleRefused
from talka.control.member.voter import CommandEnded

Event: TypeAlias = dict[str, Any]

WORDS: Final = {
    "ready": "ready at {address}",
    "joined": "{name} joined ({address})",
    "suspected": "{name} is suspected by {accuser}: {reason}",
    "returned": "{name} is alive after all",
    "lost": "{name} is lost, says {accuser}: {reason}",
    "left": "{name} left",
    "refuted": "was declared dead and refuted it",
    "leader": "{name} leads since term {term}",
    "no-leader": "no leader is known",
    "elected": "leads from now on, term {term}",
    "stepped-down": "no longer leads: {reason}",
    "udp-blocked": "datagrams to {name} are lost, it is reached over TCP: open the UDP port between the two",
    "udp-restored": "datagrams reach {name} again",
    "refused": "{text}",
    "alarm": "{text}",
    "keys": "keys in use: {keys}, sealing with {primary}",
    "key-change": "{who} ({source}) asked to {what} keys; in use: {keys}, sealing with {primary}",
    "version": "{name} speaks protocol {theirs}, this node {mine}: {agreed} is spoken with it",
    "certificate": "{text}",
    "searching": "{text}",
    "stopped": "stopped",
}


def event_of(news: NodeNews) -> Event | None:
    """The event that some news of a member is, if it is one."""
    match news:
        case MemberJoined(name=name, boot=boot, address=address):
            return {"event": "joined", "name": name, "address": address, "boot": str(boot)}
        case Namesake(name=name, address=address, other=other):
            text = (
                f"two nodes call themselves {name!r}, at {address} and at {other}: stop one, or start it with "
                "another --name"
            )
            return {"event": "alarm", "kind": "name", "name": name, "text": text}
        case MemberSuspected(name=name, accuser=accuser, reason=reason):
            return {"event": "suspected", "name": name, "accuser": accuser, "reason": reason}
        case MemberReturned(name=name):
            return {"event": "returned", "name": name}
        case MemberLost(boot=boot):
            return {"event": "lost", **asdict(news), "boot": str(boot)}
        case MemberLeft(name=name):
            return {"event": "left", "name": name}
        case Refuted(incarnation=incarnation):
            return {"event": "refuted", "incarnation": incarnation}
        case DatagramsBlocked(name=name):
            return {"event": "udp-blocked", "name": name}
        case DatagramsRestored(name=name):
            return {"event": "udp-restored", "name": name}
        case LeaderChanged(leader=leader, term=term):
            return {"event": "leader", "name": leader, "term": term}
        case Elected(token=token):
            return {"event": "elected", "term": token.term, "token": [token.parent, token.term, token.sequence]}
        case SteppedDown(term=term, reason=reason):
            return {"event": "stepped-down", "term": term, "reason": reason}
        case RoleRefused(name=name, role=role, message=message, source=source):
            facts = {"address": source, "reason": "role", "name": name, "role": role, "message": message}
            return {"event": "refused", **facts, "text": news.text}
        case VersionDiffers():
            return {"event": "version", **asdict(news)}
        case LeadershipAlarm(kind=kind, text=text):
            return {"event": "alarm", "kind": kind, "text": text}
        case StateLearned() | LeaseExtended() | WriteEnded() | ReadEnded() | ConfigChanged() | PhaseChanged():
            return None
        case LeaseDiffers() | LeaseGranted() | LeaseLost() | RenewDue() | LeaseExpired() | Applied():
            return None
        case GroupMemberReachable() | GroupMemberUnreachable() | GroupStateLearned() | CommandEnded():
            return None
        case _:
            assert_never(news)


def sentence_of(event: Event) -> str:
    """The same for people."""
    word = event["event"]
    if word == "leader" and not event["name"]:
        word = "no-leader"
    if word == "suspected" and not event["accuser"]:
        return f"{event['name']} is suspected: {event['reason']}"
    sentence = WORDS[word].format(**event)
    if word == "keys" and event["by"]:
        return f"{sentence}, says {event['by']}"
    if word == "handlers" and "bundle" in event:
        return f"{sentence} of the bundle {event['bundle']}"
    if word == "key-change" and event["problem"]:
        return f"{sentence}; refused: {event['problem']}"
    return sentence
