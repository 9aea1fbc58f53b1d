"""A task that is fanned out: the list it is fanned out over, and its elements, which are tasks of their own.

An element has all that the fanned-out task says, its item of the list, and an id with its place: `clean[3]`. In a store
only what is its own is kept; the rest stands once, with the fanned-out task.

Decision: docs/decisions/0049-fan-out-over-a-result.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from talka.errors import Invalid
from talka.work.dags.dag import CONFIG_LIMIT_BYTES, ELEMENTS_LIMIT, NULL, TaskSpec, encode_task
from talka.work.dags.records import TaskKey
from talka.work.durations import shown

OWN: Final = b'{"fan":'
"""How what is kept of an element begins, and nothing else does."""
NAMES_SHOWN: Final = 5
Read = TypeVar("Read")


class ElementSpec(TaskSpec, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The whole spec of an element."""

    fan: int = 0
    """The index of the fanned-out task."""
    place: int = 0
    """In the list, from 0 on."""
    item: msgspec.Raw = NULL
    has_own_config: bool = False
    """It was given another config than the fanned-out task has."""


class KeptElement(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a store keeps of an element's spec."""

    fan: int
    place: int
    id: str
    handler: str
    item: msgspec.Raw
    priority: int = 5
    config: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Its own."""


_kept: Final = msgspec.json.Decoder(KeptElement)
_encoder: Final = msgspec.json.Encoder()
_spec: Final = msgspec.json.Decoder(TaskSpec)


class ElementMaker:
    """Makes elements of one fanned-out task: there may be many."""

    def __init__(self, spec: TaskSpec, fan: int) -> None:
        """`fan`: the index of the fanned-out task, which has this spec."""
        plain = msgspec.structs.replace(spec, depends_on=(), delay=0.0, for_each="", key="")
        self._id = spec.id
        self._rest = msgspec.structs.astuple(plain)[1:]
        self._fan = fan

    def spec(self, place: int, item: msgspec.Raw) -> ElementSpec:
        values: tuple[Any, ...] = (f"{self._id}[{place}]", *self._rest, self._fan, place, item)
        return ElementSpec(*values)


def encode_spec(spec: TaskSpec) -> bytes:
    """As a store keeps it."""
    if not isinstance(spec, ElementSpec):
        return encode_task(spec)
    config = spec.config if spec.has_own_config else msgspec.UNSET
    return _encoder.encode(KeptElement(spec.fan, spec.place, spec.id, spec.handler, spec.item, spec.priority, config))


def kept_element(content: bytes) -> KeptElement | None:
    """What is kept of an element; None: it is the spec of another task."""
    return _kept.decode(content) if content.startswith(OWN) else None


def fans_of(found: Mapping[TaskKey, tuple[bytes, bytes]]) -> list[TaskKey]:
    """The fanned-out tasks whose specs are needed too, to make those of elements whole."""
    fans: dict[TaskKey, None] = {}
    for (job, _), (content, _) in found.items():
        own = kept_element(content)
        if own is not None:
            fans[job, own.fan] = None
    return list(fans)


def whole_specs(
    found: Mapping[TaskKey, tuple[bytes, bytes]], fans: Mapping[TaskKey, tuple[bytes, bytes]]
) -> dict[TaskKey, tuple[TaskSpec, bytes]]:
    """Specs with their checkpoints. `fans`: those that `fans_of` asks for; what is not there any more is left out, with
    its elements."""
    makers = {key: ElementMaker(_spec.decode(content), key[1]) for key, (content, _) in fans.items()}
    specs: dict[TaskKey, tuple[TaskSpec, bytes]] = {}
    for key, (content, checkpoint) in found.items():
        own = kept_element(content)
        if own is None:
            specs[key] = _spec.decode(content), checkpoint
            continue
        maker = makers.get((key[0], own.fan))
        if maker is not None:
            specs[key] = _whole(own, maker), checkpoint
    return specs


def _whole(own: KeptElement, maker: ElementMaker) -> ElementSpec:
    spec = maker.spec(own.place, own.item)
    if own.config is msgspec.UNSET:
        return spec
    return msgspec.structs.replace(spec, config=own.config, has_own_config=True)


def with_config(spec: TaskSpec, config: msgspec.Raw) -> TaskSpec:
    """The same with another config."""
    if isinstance(spec, ElementSpec):
        return msgspec.structs.replace(spec, config=config, has_own_config=True)
    return msgspec.structs.replace(spec, config=config)


# The list.


def listed(content: bytes, names: Sequence[str], source: str, *, most: int = ELEMENTS_LIMIT) -> list[msgspec.Raw]:
    """The elements of the list that lies at `names` in an output. `source`: whose, for the sentence of `Invalid` where
    there is none that can be fanned out over."""
    at = source
    for name in names:
        fields = _read(content, dict[str, msgspec.Raw])
        if fields is None:
            raise Invalid(f"{at} is {_kind(content)} and has no {shown(name)}: {_advice(source)}")
        if name not in fields:
            has = ", ".join(list(fields)[:NAMES_SHOWN]) or "no fields"
            raise Invalid(f"{at} has no {shown(name)} (it has {has:.200}): {_advice(source)}")
        content, at = bytes(fields[name]), f"{at}.{name}"
    items = _read(content, list[msgspec.Raw])
    if items is None:
        raise Invalid(f"{at} is {_kind(content)}, not a list: {_advice(source)}")
    if len(items) > most:
        raise Invalid(
            f"{at} has {len(items):,} elements, and {most:,} can be fanned out over: let {source} return larger parts"
        )
    for place, item in enumerate(items):
        if len(memoryview(item)) > CONFIG_LIMIT_BYTES:
            raise Invalid(
                f"element {place} of {at} has {len(memoryview(item)):,} bytes, more than {CONFIG_LIMIT_BYTES:,}: let"
                f" {source} return where it is, not what it is"
            )
    return items


def joined(outputs: Iterable[bytes | None]) -> bytes:
    """The output of a fanned-out task: those of its elements in order, null where one has none."""
    return b"[" + b",".join([output or b"null" for output in outputs]) + b"]"


def _advice(source: str) -> str:
    return f"let {source} return a list there, or correct for_each"


def _read(content: bytes, kind: type[Read]) -> Read | None:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError:
        return None


def _kind(content: bytes) -> str:
    first = content.lstrip()[:1]
    return {b"{": "an object", b"[": "a list", b'"': "text", b"t": "true", b"f": "false", b"n": "null"}.get(
        first, "a number" if first else "nothing"
    )
