"""What the virtual users of a shard are given, and what the shard hands on: clients, and values between workflows."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import msgspec

from talka.engine.clients.port import ClientEngine, ClientParts, UserClient
from talka.engine.clients.table import CLIENTS
from talka.engine.load.recorder import Recorder, described
from talka.engine.load.time_asks import TimeAsks
from talka.errors import Invalid
from talka.wire.shards import CONTEXT_PREFIX, VALUE_LIMIT_BYTES
from talka.work.feeds import Between, between
from talka.work.specs import WorkflowSpec

VALUES_LIMIT_BYTES = 2 * VALUE_LIMIT_BYTES
"""The most one workflow may hand on: its last report must carry all of it in one frame."""
PAUSES_KEPT = 256
"""Lengths of pauses that are read once; those computed anew each time must not fill memory."""
NOTES_LIMIT = 8
"""Of keys that cannot be handed on: the first few show what is wrong."""


class UserClients:
    """`self.client` of one virtual user: an attribute for each row of the table."""

    __slots__ = tuple(CLIENTS)

    def __init__(self, engines: Mapping[str, ClientEngine]) -> None:
        for name, engine in engines.items():
            setattr(self, name, engine.new_client())

    def _all(self) -> Iterable[UserClient]:
        return (getattr(self, name) for name in self.__slots__)

    def forget(self, *, session: bool, connections: bool) -> None:
        for client in self._all():
            client.forget(session=session, connections=connections)

    def close(self) -> None:
        for client in self._all():
            client.close()


class ShardEngines:
    """What the clients of all users of a shard stand on, by the names of the clients."""

    def __init__(self, parts: ClientParts) -> None:
        self.by_name = {name: kind.new_engine(parts) for name, kind in CLIENTS.items()}

    def new_clients(self) -> UserClients:
        return UserClients(self.by_name)

    async def prepare(self, arguments: Mapping[str, Mapping[str, Any]]) -> None:
        """With the prepared arguments of every node."""
        values = [value for node in arguments.values() for value in node.values()]
        for engine in self.by_name.values():
            await engine.prepare(values)

    async def close(self) -> None:
        async with AsyncExitStack() as closing:  # each of them, whatever the others do
            for engine in self.by_name.values():
                closing.push_async_callback(engine.close)


class ShardHooks:
    """What `self.pause`, `self.metric` and `self.extend` of the users of a shard reach."""

    def __init__(
        self, recorder: Recorder, pause: Callable[[int], Awaitable[None]], random: Random, asks: TimeAsks
    ) -> None:
        self.metric = recorder.metric
        self.extend = asks.ask
        self._pause = pause
        self._random = random
        self._pauses: dict[tuple[str | float, str | float | None], Between] = {}

    def pause(self, low: str | float, high: str | float | None = None) -> Awaitable[None]:
        found = self._pauses.get((low, high))
        if found is None:
            found = between(low, low if high is None else high, what="pause")
            if len(self._pauses) >= PAUSES_KEPT:
                self._pauses.clear()
            self._pauses[low, high] = found
        return self._pause(found.draw_ns(self._random))


def received_values(spec: WorkflowSpec, values: Mapping[str, Mapping[str, bytes]]) -> dict[str, dict[str, Any]]:
    """For each `Use` method the values of its parameters, from the first of its sources that gave one."""
    received: dict[str, dict[str, Any]] = {}
    for use in spec.uses:
        found = received.setdefault(use.method, {})
        for source in use.sources:
            for key, type_ in use.types.items():
                if key not in found and key in values.get(source, {}):
                    try:
                        found[key] = msgspec.msgpack.decode(values[source][key], type=type_)
                    except msgspec.ValidationError as error:
                        raise Invalid(
                            f"{spec.name}.{use.method}: {key} from {source} is not what its annotation says: {error}"
                        ) from None
    return received


def received_context(values: Mapping[str, Mapping[str, bytes]]) -> dict[str, Any]:
    """What workflows before this one left in `self.context`. Where two have a key, they have the same value for it."""
    return {
        key.removeprefix(CONTEXT_PREFIX): msgspec.msgpack.decode(content)
        for provided in values.values()
        for key, content in provided.items()
        if key.startswith(CONTEXT_PREFIX)
    }


def handed_on(spec: WorkflowSpec, context: Mapping[str, Any], room_bytes: int) -> tuple[dict[str, bytes], list[str]]:
    """What the shard leaves in `self.context` for its dependents, encoded, and what of it cannot be handed on, in
    words.

    Nobody asked for it by name, so what does not fit is no failure: a context may well hold things that are no data.
    """
    found: dict[str, bytes] = {}
    notes: list[str] = []
    for key, value in context.items():
        what = f"self.context[{key!r}] of {spec.name} is not handed on to those that depend on it"
        if not isinstance(key, str):
            notes.append(f"{what}: keys are to be strings")
            continue
        try:
            content = msgspec.msgpack.encode(value)
        except Exception:  # noqa: BLE001 - also what users' own objects raise when they are looked at
            notes.append(f"{what}: it holds a {type(value).__name__}, or something in it is no data")
            continue
        if len(content) > VALUE_LIMIT_BYTES:
            notes.append(f"{what}: it has {len(content)} bytes, and may have {VALUE_LIMIT_BYTES}")
        elif len(content) > room_bytes:
            notes.append(f"{what}: with all else it has more than {VALUES_LIMIT_BYTES} bytes")
        else:
            found[CONTEXT_PREFIX + key] = content
            room_bytes -= len(content)
    return found, notes[:NOTES_LIMIT]


async def provided_values(
    spec: WorkflowSpec, last: Mapping[str, Any], context: dict[str, Any]
) -> tuple[dict[str, bytes], str | None]:
    """What the shard hands on, encoded, and why something could not be. Each `Provide` runs once, in the end.

    `last` holds the shard's last response of each step: what `self.login.response` means to a `Provide`.
    """
    provided: dict[str, bytes] = {}
    if not spec.provides:
        return provided, None
    try:
        workflow = spec.workflow()
    except Exception as error:  # noqa: BLE001 - the user's own __init__ may raise anything
        return provided, f"{spec.name} cannot be made to provide values: {described(error)}"
    workflow.context = context
    for name, response in last.items():
        getattr(workflow, name).last = response
    for provide in spec.provides:
        try:
            value = provide.function(workflow)
            if provide.is_async:
                value = await value
            encoded = b"" if value is None else msgspec.msgpack.encode(value)
        except Exception as error:  # noqa: BLE001 - users' code may raise anything
            return provided, f"{spec.name}.{provide.key} could not be provided: {described(error)}"
        if len(encoded) > VALUE_LIMIT_BYTES:
            return provided, (
                f"{spec.name}.{provide.key} provides {len(encoded)} bytes: at most {VALUE_LIMIT_BYTES} are handed on"
            )
        if encoded:
            provided[provide.key] = encoded
        if (total := sum(len(value) for value in provided.values())) > VALUES_LIMIT_BYTES:
            return {}, f"{spec.name} provides {total} bytes together: at most {VALUES_LIMIT_BYTES} are handed on"
    return provided, None
