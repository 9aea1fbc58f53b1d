"""`talka` as its next minor release might be: run this file in place of `python -m talka`.

It speaks protocol 1.n+1: a field more in two messages and in the entry of a job, a message more, a capability more. The
fields are said to everybody, as older sides ignore them. The message is handed to the member for everybody: that it
goes to those alone who know it is what the product's own code does. The event `heard` tells what it learns of others,
once for each sender and thing. Nothing else differs.
"""

from functools import reduce
from operator import or_
from typing import Any, get_args

import msgspec

from talka import version
from talka.wire import entries, jobs, versions

MOOD = "cheerful"

# What the protocol has more. Replaced here before the modules are imported that use these names.

version.VERSION += "+next"
MINOR = versions.VERSION.minor + 1
WEATHER_TOLD = versions.Capability("weather", MINOR, "it is told nothing of the weather")
versions.VERSION = versions.ProtocolVersion(versions.VERSION.major, MINOR)  # type: ignore[misc]
versions.CAPABILITIES = (*versions.CAPABILITIES, WEATHER_TOLD)


class Beat(jobs.Beat, frozen=True, tag=1):
    mood: str = ""


class Renew(jobs.Renew, frozen=True, tag=2):
    mood: str = ""


class Weather(jobs.Message, frozen=True, tag=240):
    """Follows every other message that is no statistics."""

    since = MINOR
    text: str


class JobEntry(entries.JobEntry, frozen=True, kw_only=True):
    mood: str = MOOD


WEATHER: Any = Weather("rain later")
newer = {"Beat": Beat, "Renew": Renew}
messages = [newer.get(each.__name__, each) for each in get_args(jobs.JobMessage)]
jobs.Beat, jobs.Renew = Beat, Renew  # type: ignore[misc]
jobs.CHANNEL._read = msgspec.msgpack.Decoder(reduce(or_, [*messages, Weather])).decode
entries.JobEntry = JobEntry  # type: ignore[misc]
entries.ENTRIES._read = msgspec.msgpack.Decoder(JobEntry).decode

from talka.cluster.effects import Lane, Send  # noqa: E402
from talka.control.manager import Manager  # noqa: E402
from talka.control.member.composite import ClusterMember  # noqa: E402
from talka.control.worker.composite import Worker  # noqa: E402
from talka.nodes import runtime  # noqa: E402

put_out, carry_out = ClusterMember._out, runtime.NodeRuntime.do
known: dict[tuple[str, str], None] = {}


class Told(msgspec.Struct, frozen=True):
    """News that only this version has."""

    event: dict[str, Any]


# What it says more.


def say_more(self: ClusterMember, now: int, effects: list[object]) -> list[object]:
    more: list[object] = []
    for effect in effects:
        if not isinstance(effect, Send) or effect.channel != jobs.CHANNEL:
            more.append(effect)
            continue
        message: Any = effect.message
        if isinstance(message, Beat | Renew):
            message = msgspec.structs.replace(message, mood=MOOD)
        more.append(Send(jobs.CHANNEL, effect.to, message, effect.lane))
        if effect.lane is not Lane.STATISTICS:
            more.append(Send(jobs.CHANNEL, effect.to, WEATHER, effect.lane))
    return put_out(self, now, more)


# What it understands more.


def heard(part: type[Manager] | type[Worker]) -> None:
    """Let this part tell of the new message and of the new field."""
    on_message = part.on_message

    def listen(self: Any, now: int, sender: str, message: Any, *rest: Any) -> list[object]:
        if isinstance(message, Weather):
            return tell(sender, "message")
        field = tell(sender, "field") if isinstance(message, Beat | Renew) and message.mood == MOOD else []
        return [*on_message(self, now, sender, message, *rest), *field]

    part.on_message = listen  # type: ignore[method-assign]


def tell(sender: str, what: str) -> list[object]:
    if (sender, what) in known:
        return []
    known[sender, what] = None
    return [Told({"event": "heard", "what": what, "name": sender})]


def tell_and_do(self: Any, effects: list[object]) -> None:
    for effect in effects:
        if isinstance(effect, Told):
            self.tell(effect.event)
    carry_out(self, [effect for effect in effects if not isinstance(effect, Told)])


ClusterMember._out = say_more  # type: ignore[method-assign]
heard(Manager)
heard(Worker)
runtime.NodeRuntime.do = tell_and_do  # type: ignore[assignment,method-assign]

if __name__ == "__main__":
    from talka.__main__ import main

    main()
