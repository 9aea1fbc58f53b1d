"""The secrets of a cluster: what a good one is, what is derived from it, and the ring of them that members share.

A ring is a value that merges: members that meet take over what the other knows, in any order and any number of times,
and one that was away during a rotation learns of it. A ring that was repaired begins another era.

HKDF: RFC 5869 section 2.
Decision: docs/decisions/0030-keys-and-addresses-have-owners.md.
"""

import hmac
from collections import Counter
from hashlib import blake2b
from math import log2
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from talka.errors import Invalid, Untrusted

SECRET_LEAST: Final = 32
SECRET_LIMIT: Final = 1024
"""Of characters and of their bytes."""
KEYS_LIMIT: Final = 8
"""Secrets of a file, and keys in use when another is to be added."""
RETIRED_LIMIT: Final = 256
"""Retired keys of a ring; only their ids are kept. A key a week for five years."""
MERGED_KEYS_LIMIT: Final = 32
"""Keys in use that a ring may have after merging: merging drops none, or its order would matter."""
MERGED_RETIRED_LIMIT: Final = 512
JUMP_LIMIT: Final = 2**20
"""How far ahead a ring may be that is believed, in versions and in eras: as far as terms may be. No ring made by
changes gets that far in its era, so none that is honest is refused; and however often somebody tries, there is room
above."""
RING_LIMIT_BYTES: Final = 64 * 1024
"""More than the largest ring there can be."""
HINT: Final = "Make a good one with: talka secret -o FILE"

_DIFFERENT_LEAST: Final = 10
_BITS_LEAST: Final = 80
_RUN: Final = 4
"""As many characters in order are no accident; three of them may be."""
_PIECE: Final = 4
_ROWS: Final = ("0123456789abcdefghijklmnopqrstuvwxyz", "1234567890", "qwertyuiopasdfghjklzxcvbnm")
_NEXT: Final = {row[place : place + 2] for row in _ROWS for place in range(len(row) - 1)}

_SALT: Final = b"talka cluster secret 1"
_ID_LABEL: Final = b"talka key id 1"
_BOOT_LABEL: Final = b"talka boot key 1"


def derived(secret: str, information: bytes) -> bytes:
    """HKDF-SHA256 (RFC 5869) of one block: 32 bytes."""
    extracted = hmac.digest(_SALT, secret.encode(), "sha256")
    return hmac.digest(extracted, information + b"\x01", "sha256")


def key_id(secret: str) -> str:
    """The name of a key in headers and tables: 8 hexadecimal characters that tell nothing of the key."""
    return derived(secret, _ID_LABEL)[:4].hex()


def boot_key(secret: str, boot: int) -> bytes:
    """The key that one life of one member seals with: 32 bytes."""
    return derived(secret, _BOOT_LABEL + boot.to_bytes(8, "big"))


def weakness(secret: str) -> str:
    """Why a secret must not be used; empty when it may. The secret itself is never told."""
    length = len(secret)
    if length < SECRET_LEAST:
        return f"it has {length} characters, at least {SECRET_LEAST} are needed"
    if not secret.isprintable():
        return "it has a character that cannot be seen"
    if (size := len(secret.encode())) > SECRET_LIMIT:
        return f"it has {size} bytes, at most {SECRET_LIMIT} are allowed"
    counts = Counter(secret)
    if len(counts) < _DIFFERENT_LEAST:
        return f"it has only {len(counts)} different characters, at least {_DIFFERENT_LEAST} are needed"
    if 3 * max(counts.values()) > length:
        return "one character makes up more than a third of it"
    # A shorter unit has fewer different characters than were just counted.
    sizes = range(_DIFFERENT_LEAST, length // 2 + 1)
    unit = next((size for size in sizes if secret.startswith(secret[size:])), length)
    if unit < SECRET_LEAST:
        return f"it repeats the same {unit} characters"
    if 2 * _in_order(secret.lower()) > length:
        return "most of it is characters in order, or one and the same again and again"
    bits = _bits(secret, counts)
    if bits < _BITS_LEAST:
        return f"it is worth about {bits} bits, at least {_BITS_LEAST} are needed"
    return ""


def _in_order(text: str) -> int:
    """Characters that are part of a run: upwards, downwards or the same, of the alphabet, the digits or a keyboard."""
    found, length, before = 0, 1, ""
    for first, second in zip(text, [*text[1:], ""], strict=True):
        if first == second:
            step = "same"
        elif first + second in _NEXT:
            step = "up"
        else:
            step = "down" if second and second + first in _NEXT else ""
        if step and step == before:
            length += 1
            continue
        found += length if length >= _RUN else 0
        length, before = (2 if step else 1), step
    return found


def _bits(secret: str, counts: Counter[str]) -> int:
    """Shannon's estimate. A character that ends a piece seen before adds nothing."""
    length = len(secret)
    each = -sum(count / length * log2(count / length) for count in counts.values())
    pieces = [secret[place : place + _PIECE] for place in range(length - _PIECE + 1)]
    return int(each * (length - len(pieces) + len(dict.fromkeys(pieces))))


def parse_secrets(text: str, where: str) -> tuple[str, ...]:
    """The secrets of a file, the primary first: one a line, without empty lines and those that begin with `#`."""
    lines: dict[str, int] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        secret = line.strip()
        if not secret or secret.startswith("#"):
            continue
        if problem := weakness(secret):
            raise Invalid(f"{where} line {number}: the secret cannot be used: {problem}. {HINT}")
        if secret in lines:
            raise Invalid(f"{where} line {number}: the secret is the same as in line {lines[secret]}. Remove one")
        if len(lines) == KEYS_LIMIT:
            raise Invalid(f"{where} line {number}: there are more than {KEYS_LIMIT} secrets. Remove the oldest")
        lines[secret] = number
    if not lines:
        raise Invalid(f"{where} line 1: there is no secret. {HINT}")
    return tuple(lines)


def checked_secrets(secrets: tuple[str, ...]) -> tuple[str, ...]:
    """The same, if all of them may be used."""
    for number, secret in enumerate(secrets, 1):
        if problem := weakness(secret):
            raise Invalid(f"secret {number} cannot be used: {problem}. {HINT}")
    return secrets


class BadRing(Untrusted):
    """Bytes that are no ring, or a ring that nobody could have made."""


Number = Annotated[int, Meta(ge=0, lt=2**62)]


class Key(msgspec.Struct, frozen=True, array_like=True):
    """One key of a ring. The numbers are versions of the ring."""

    id: Annotated[str, Meta(pattern="^[0-9a-f]{8}$", max_length=8)]
    added: Number
    retired: Number
    """0 while it is in use."""
    secret: Annotated[str, Meta(max_length=SECRET_LIMIT)]
    """Empty once the key is retired, unless it is the primary one."""

    def __repr__(self) -> str:
        return f"Key({self.id}, added={self.added}, retired={self.retired})"


class Keyring(msgspec.Struct, frozen=True, array_like=True):
    """The keys that members accept, and the one they seal with.

    A retired key stays retired: its id is kept. A primary key is in use whatever else was said of it, so two members
    that each retire the other's primary do not end up without any key.
    """

    keys: tuple[Key, ...]
    """By id."""
    primary: tuple[Number, str]
    """(version, key id): the highest wins."""
    era: Number = 0
    """How often the ring was replaced as a whole, to repair it. A later era outranks all that was before."""

    @classmethod
    def of(cls, secrets: tuple[str, ...]) -> "Keyring":
        """The ring of a secret file: all at version 0, the first one is the primary."""
        if not 1 <= len(secrets) <= KEYS_LIMIT:
            raise Invalid(f"a ring begins with 1 to {KEYS_LIMIT} secrets, not {len(secrets)}")
        keys = {key_id(secret): Key(key_id(secret), 0, 0, secret) for secret in secrets}
        if len(keys) < len(secrets):
            raise Invalid(f"two of the secrets are the same or have the same key id. Replace one. {HINT}")
        return cls(_sorted(keys), (0, next(iter(keys))))

    @property
    def version(self) -> int:
        """The highest number in it. Two rings of one version may still differ; their digests tell."""
        return max([self.primary[0], *(max(key.added, key.retired) for key in self.keys)])

    @property
    def digest(self) -> str:
        """16 hexadecimal characters, equal for equal rings. The secrets take part by their ids only."""
        # Earlier releases know the first era only, and must agree on its digests.
        era = (self.era,) if self.era else ()
        facts = ([[key.id, key.added, key.retired] for key in self.keys], self.primary, *era)
        return blake2b(_encoder.encode(facts), digest_size=8).hexdigest()

    @property
    def primary_id(self) -> str:
        return self.primary[1]

    @property
    def primary_secret(self) -> str:
        return self.secrets()[self.primary[1]]

    def accepted(self) -> tuple[str, ...]:
        """The ids of the keys in use."""
        return tuple(self.secrets())

    def secrets(self) -> dict[str, str]:
        """Key id to secret, of the keys in use."""
        return {key.id: key.secret for key in self.keys if key.secret}

    def merge(self, other: "Keyring") -> "Keyring":
        """What both know together. The order of merging never matters."""
        if self == other:
            return self
        if self.era != other.era:
            return max(self, other, key=lambda ring: ring.era)
        keys = {key.id: key for key in self.keys}
        for key in other.keys:
            mine = keys.get(key.id, key)
            keys[key.id] = Key(
                key.id, max(mine.added, key.added), max(mine.retired, key.retired), max(mine.secret, key.secret)
            )
        return _bounded(_ring(keys, max(self.primary, other.primary), self.era))

    def is_reached_by(self, other: "Keyring") -> bool:
        """Whether a member that has this ring may believe the other one: it is not further ahead than changes can bring
        it."""
        if other.era == self.era:
            return other.version - self.version <= JUMP_LIMIT
        return other.era - self.era <= JUMP_LIMIT and (other.era < self.era or other.version <= JUMP_LIMIT)

    def repaired(self, secrets: tuple[str, ...]) -> "Keyring":
        """The ring of these secrets alone, in place of this one and of all that it was ever merged with."""
        return msgspec.structs.replace(Keyring.of(secrets), era=self.era + 1)

    def with_key(self, secret: str) -> "Keyring":
        """The ring with one more key in use. It is not the primary yet: first everybody must know it."""
        if problem := weakness(secret):
            raise Invalid(f"the secret cannot be used: {problem}. {HINT}")
        new = key_id(secret)
        keys = {key.id: key for key in self.keys}
        if new in keys:
            state = "in use already" if keys[new].secret else "retired; a retired key does not come back"
            raise Invalid(f"key {new} is {state}. {HINT}")
        if len(self.accepted()) >= KEYS_LIMIT:
            raise Invalid(f"{KEYS_LIMIT} keys are in use, which is the limit. Retire one first")
        keys[new] = Key(new, self._next(), 0, secret)
        return _ring(keys, self.primary, self.era)

    def with_primary(self, id: str) -> "Keyring":
        """The ring with another key to seal with."""
        self._must_be_in_use(id)
        return _ring({key.id: key for key in self.keys}, (self._next(), id), self.era)

    def without(self, id: str) -> "Keyring":
        """The ring with one key retired, for ever."""
        self._must_be_in_use(id)
        if id == self.primary_id:
            raise Invalid(f"key {id} is the primary one. Make another key primary, then retire this one")
        if sum(1 for key in self.keys if not key.secret) >= RETIRED_LIMIT:
            raise Invalid(f"{RETIRED_LIMIT} keys were retired, which is the limit. Start the cluster with a new secret")
        keys = {key.id: key for key in self.keys}
        keys[id] = msgspec.structs.replace(keys[id], retired=self._next())
        return _ring(keys, self.primary, self.era)

    def _next(self) -> int:
        """The version of a change."""
        if self.version >= JUMP_LIMIT:
            raise Invalid(
                f"the ring is at version {self.version}, and a member that is new believes none above {JUMP_LIMIT}: "
                "start over with talka cluster keys --repair FILE"
            )
        return self.version + 1

    def _must_be_in_use(self, id: str) -> None:
        accepted = self.accepted()
        if id not in accepted:
            raise Invalid(f"there is no key {id!r} in use. These are: {', '.join(accepted)}")


def _sorted(keys: dict[str, Key]) -> tuple[Key, ...]:
    return tuple(keys[id] for id in sorted(keys))


def _ring(keys: dict[str, Key], primary: tuple[int, str], era: int) -> Keyring:
    # A ring always has the secret of its own primary, so whichever primary wins a merge, its secret is there.
    for key in list(keys.values()):
        if key.retired and key.secret and key.id != primary[1]:
            keys[key.id] = Key(key.id, key.added, key.retired, "")
    return Keyring(_sorted(keys), primary, era)


def _bounded(ring: Keyring) -> Keyring:
    in_use = len(ring.accepted())
    retired = len(ring.keys) - in_use
    if in_use > MERGED_KEYS_LIMIT or retired > MERGED_RETIRED_LIMIT:
        raise BadRing(
            f"a ring of {in_use} keys in use and {retired} retired ones is over the limit"
            f" of {MERGED_KEYS_LIMIT} and {MERGED_RETIRED_LIMIT}"
        )
    return ring


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Keyring)


def encode_ring(ring: Keyring) -> bytes:
    """The ring with its secrets: for sealed frames and files only the member may read."""
    return _encoder.encode(ring)


def decode_ring(data: bytes | msgspec.Raw) -> Keyring:
    if len(memoryview(data)) > RING_LIMIT_BYTES:
        raise BadRing(f"a ring of {len(memoryview(data))} bytes is over the limit of {RING_LIMIT_BYTES}")
    try:
        ring = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRing(f"what was sent is not a key ring: {error}") from None
    _bounded(ring)
    ids = [key.id for key in ring.keys]
    if ids != sorted(dict.fromkeys(ids)):
        raise BadRing("what was sent is not a key ring: its keys are not in order")
    if ring.primary_id not in ring.accepted():
        raise BadRing("what was sent is not a key ring: its primary key is not in it")
    for key in ring.keys:
        if bool(key.secret) != (key.retired == 0 or key.id == ring.primary_id):
            raise BadRing(f"what was sent is not a key ring: key {key.id} is retired and has a secret, or neither")
        if key.secret and key_id(key.secret) != key.id:
            raise BadRing(f"what was sent is not a key ring: key {key.id} has the secret of another")
    return ring
