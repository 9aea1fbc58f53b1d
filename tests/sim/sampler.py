"""Messages of any type, made out of their annotations: for whoever sends what it should not.

What is known of a world (names of jobs, fences, digests) stands in `known` by the name of the field, and is used more
often than not: a message that names nothing real would be refused for that alone.
"""

import string
from collections.abc import Mapping, Sequence
from functools import cache
from random import Random
from typing import Any, Final, get_args

import msgspec
from msgspec import inspect

from talka.units import SECOND
from talka.wire import asking, jobs
from talka.wire.entries import JobEntry, encode_entry
from talka.wire.manager_calls import CALLS, ManagerCall
from talka.wire.orders import JobOrder
from talka.wire.security.keys import Keyring, encode_ring
from talka.wire.security.permissions import MESSAGES, TABLE, Column
from talka.work.load import Plan, Segment

LENGTH: Final = 24
"""Of words and bytes, where nothing says more."""
ITEMS: Final = 2
KNOWN_SHARE: Final = 0.8
PLAN: Final = Plan.of_vus((Segment(SECOND, 1, 1),))


_info: Final = cache(inspect.type_info)


class Sampler:
    """Everything it makes can be read again as what it is."""

    def __init__(self, rng: Random, known: Mapping[str, Sequence[object]] | None = None) -> None:
        self._rng = rng
        self.known = dict(known or {})

    def any(self, role: Column | None = None) -> tuple[int, object]:
        """(channel, message), each kind as likely as another. With `role` only what that one may say."""
        channel, kind = self._rng.choice([pair for pair in MESSAGES if role is None or role in TABLE[pair[1]]])
        return channel, self.message(kind)

    def message(self, kind: type) -> Any:
        """A message of this kind, as it travels: a question inside its Ask, a call inside its ManagerCall."""
        if kind in get_args(asking.Question):
            return asking.Ask(self._rng.getrandbits(30), self.value(kind))
        if kind in CALLS:
            return msgspec.structs.replace(self.value(ManagerCall), call=self.value(kind))
        made = self.value(kind)
        if kind is jobs.Lead:
            return jobs.Lead(encode_entry(self.value(JobEntry)))
        if "ring" in made.__struct_fields__:
            return kind(encode_ring(Keyring.of((self._word(40),))))
        return made

    def order(self) -> JobOrder:
        made: JobOrder = self.value(JobOrder)
        return made

    def value(self, kind: Any) -> Any:
        """Of a struct, or of any type a field may have."""
        return self._value("", _info(kind), 0)

    def _value(self, name: str, info: inspect.Type, depth: int) -> Any:
        known = [value for value in self.known.get(name, ()) if _fits(value, info)]
        if known and self._rng.random() < KNOWN_SHARE:
            return self._rng.choice(known)
        rng = self._rng
        match info:
            case inspect.StructType(cls=cls) if cls is Plan:
                return PLAN  # drawn ones are refused by their own rules
            case inspect.StructType(cls=cls, fields=fields) | inspect.DataclassType(cls=cls, fields=fields):
                # What is optional is left out at times, and always where it would go on for ever.
                told = [field for field in fields if field.required or (depth < 3 and rng.random() < 0.5)]
                return cls(**{field.name: self._value(field.name, field.type, depth + 1) for field in told})
            case inspect.UnionType(types=types):
                return self._value("", rng.choice(types), depth)
            case inspect.TupleType(item_types=types):
                return tuple(self._value("", each, depth + 1) for each in types)
            case inspect.VarTupleType(item_type=item):
                return tuple(self._value("", item, depth + 1) for _ in range(self._count(info, depth)))
            case inspect.ListType(item_type=item):
                return [self._value("", item, depth + 1) for _ in range(self._count(info, depth))]
            case inspect.DictType(key_type=key, value_type=value):
                return {
                    self._value("", key, depth + 1): self._value("", value, depth + 1)
                    for _ in range(self._count(info, depth))
                }
            case _:
                return self._plain(info)

    def _plain(self, info: inspect.Type) -> Any:
        rng = self._rng
        match info:
            case inspect.IntType(ge=ge, gt=gt, le=le, lt=lt):
                least = ge if ge is not None else (gt + 1 if gt is not None else 0)
                most = (
                    le if le is not None else lt - 1 if lt is not None else least + rng.choice((10, 1 << 20, 1 << 40))
                )
                return rng.randrange(int(least), int(most) + 1)
            case inspect.StrType(min_length=least, max_length=most, pattern=pattern):
                if pattern is not None:  # digests are the only ones that have one
                    return f"{rng.getrandbits(256):064x}"
                return self._word(max(least or 0, min(LENGTH, LENGTH if most is None else most)))
            case inspect.BytesType(min_length=least, max_length=most):
                return rng.randbytes(max(least or 0, min(LENGTH, LENGTH if most is None else most)))
            case inspect.BoolType():
                return rng.random() < 0.5
            case inspect.FloatType():
                return rng.random()
            case inspect.LiteralType(values=values):
                return rng.choice(values)
            case inspect.EnumType(cls=cls):
                return rng.choice(list(cls))
            case inspect.RawType():
                return msgspec.Raw(b"\xc0")
            case _:
                return None

    def _count(self, info: Any, depth: int) -> int:
        if depth > 4:
            return info.min_length or 0
        return max(info.min_length or 0, self._rng.randrange(ITEMS + 1))

    def _word(self, length: int) -> str:
        return "".join(self._rng.choice(string.ascii_lowercase) for _ in range(length))


def _fits(value: object, info: inspect.Type) -> bool:
    """Fields of one name are not of one type everywhere."""
    match info:
        case inspect.IntType():
            return isinstance(value, int)
        case inspect.StrType():
            return isinstance(value, str)
        case inspect.BytesType():
            return isinstance(value, bytes)
        case inspect.TupleType(item_types=types):
            return isinstance(value, tuple) and len(value) == len(types)
        case inspect.VarTupleType():
            return isinstance(value, tuple)
        case inspect.StructType(cls=cls):
            return isinstance(value, cls)
        case _:
            return False
