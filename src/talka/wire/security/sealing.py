"""The seal around every frame between members: AES-256-GCM under a key of the sender's life, its counter as the nonce.

A sealed frame is version (1 byte), flags (1), key id (4), boot (8), counter (8), then ciphertext and tag. The header is
authenticated with it, and so is the name of the recipient when the frame is bound to one. A seal says nothing about
frames being new: see `talka.wire.security.replay`.

AES-GCM: NIST SP 800-38D section 8.2.1 (deterministic nonces). HKDF: RFC 5869 section 2.
Decision: docs/decisions/0014-sealed-and-alive.md.
"""

from collections import OrderedDict
from struct import Struct
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from talka.errors import Invalid, Untrusted
from talka.wire.security.keys import Keyring, boot_key, key_id

SEAL_VERSION: Final = 1
ADDRESSED: Final = 1
"""The flag of a frame that is bound to its recipient."""
SEAL_BYTES: Final = 38
"""How much longer a frame is for being sealed: the header and the tag."""
CIPHERS_LIMIT: Final = 16_384
"""Keys of other members' lives that are kept; the one used longest ago is forgotten first and derived again."""
NUMBER_LIMIT: Final = 2**64
"""Boots and counters are below it."""

_HEADER: Final = Struct(">BB4sQQ")
_HEADER_BYTES: Final = _HEADER.size
_COUNTER_AT: Final = _HEADER_BYTES - 8
_NONCE_START: Final = bytes(4)


class BadSeal(Untrusted):
    """A frame that was not sealed for this member. `reason` is a word for counters: short, version, key, forged."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Opened(msgspec.Struct, frozen=True, gc=False):
    """What was in a sealed frame, and what its seal vouches for."""

    content: bytes
    boot: int
    counter: int
    key_id: str
    addressed: bool
    """Whether it could be opened by this member only."""
    is_spare: bool = False
    """Whether its key is no longer in the ring, and only the operator's own file still has it."""


class _Own:
    """A key of this member's life, and the last counter it was used with."""

    __slots__ = (
        "cipher",
        "id_bytes",
        "last",
    )

    def __init__(self, id_bytes: bytes, cipher: AESGCM, last: int) -> None:
        self.id_bytes, self.cipher, self.last = id_bytes, cipher, last


class Seal:
    """Seals what one life of one member sends, and opens what reaches it.

    `boot` is drawn at random at every start, and a boot has one `Seal`: the same counter sealed twice under one key
    would give both contents away.

    `spare` secrets open what is asked to be opened with them, and seal the answers: a ring that was taken over or
    spoilt can be repaired under them.
    """

    __slots__ = (
        "_boot",
        "_ciphers",
        "_ciphers_limit",
        "_floor",
        "_ids",
        "_own",
        "_primary",
        "_ring",
        "_secrets",
        "_spare",
    )

    def __init__(
        self, ring: Keyring, boot: int, spare: tuple[str, ...] = (), *, ciphers_limit: int = CIPHERS_LIMIT
    ) -> None:
        self._ciphers_limit = ciphers_limit
        if not 0 <= boot < NUMBER_LIMIT:
            raise Invalid(f"boot {boot} does not fit 8 bytes")
        self._boot = boot
        self._spare = {key_id(secret): secret for secret in spare}
        self._own: dict[str, _Own] = {}
        self._floor = -1
        """The highest counter used with a key that has left the ring: no key starts below it."""
        self._ciphers: OrderedDict[tuple[bytes, int], AESGCM] = OrderedDict()
        self.ring = ring

    @property
    def ring(self) -> Keyring:
        return self._ring

    @ring.setter
    def ring(self, ring: Keyring) -> None:
        in_use = ring.secrets()
        secrets = self._spare | in_use
        for id in [each for each in self._own if each not in secrets]:
            self._floor = max(self._floor, self._own.pop(id).last)
        for id, secret in secrets.items():
            if id not in self._own:
                cipher = AESGCM(boot_key(secret, self._boot))
                self._own[id] = _Own(bytes.fromhex(id), cipher, self._floor)
        self._ring = ring
        self._primary = self._own[ring.primary_id]
        self._secrets = {bytes.fromhex(id): secret for id, secret in secrets.items()}
        self._ids = {bytes.fromhex(id): id for id in in_use}
        for known in [each for each in self._ciphers if each[0] not in self._secrets]:
            del self._ciphers[known]

    @property
    def boot(self) -> int:
        return self._boot

    @property
    def spare_ids(self) -> tuple[str, ...]:
        """The spare keys that are not in the ring."""
        in_use = self._ring.accepted()
        return tuple(id for id in self._spare if id not in in_use)

    def seal(self, counter: int, content: bytes, *, key_id: str = "", to: str = "") -> bytes:
        """`content` sealed, under `key_id` when it is in use or spare and else under the primary key.

        The counter must be above every one used before under the same key. With `to`, only the member of that name can
        open it; the name itself is not sent.
        """
        own = self._own.get(key_id, self._primary)
        if not own.last < counter < NUMBER_LIMIT:
            raise Invalid(f"counter {counter} cannot seal a frame: it must be above {own.last} and fit 8 bytes")
        own.last = counter
        header = _HEADER.pack(SEAL_VERSION, ADDRESSED if to else 0, own.id_bytes, self._boot, counter)
        bound = header + to.encode() if to else header
        return header + own.cipher.encrypt(_NONCE_START + header[_COUNTER_AT:], content, bound)

    def open(self, sealed: bytes, *, me: str = "", spare: bool = False) -> Opened:
        """What is in the frame. What costs nothing is checked first; a key is derived only for a known key id.

        With `spare` also under the spare secrets; without, a key counts only as long as it is in the ring.
        """
        if len(sealed) < SEAL_BYTES:
            raise BadSeal("short", f"a frame of {len(sealed)} bytes is shorter than its seal of {SEAL_BYTES}")
        version, flags, key, boot, counter = _HEADER.unpack_from(sealed)
        if version != SEAL_VERSION or flags > ADDRESSED:
            raise BadSeal(
                "version", f"a frame has a seal of version {version} with flags {flags}, this member cannot open it"
            )
        id = self._ids.get(key)
        is_spare = id is None
        if id is None and spare and key.hex() in self._spare:
            id = key.hex()
        if id is None:
            raise BadSeal("key", f"a frame is sealed with key {key.hex()}, which this member does not accept")
        header = sealed[:_HEADER_BYTES]
        life = (key, boot)
        known = self._ciphers.get(life)
        cipher = AESGCM(boot_key(self._secrets[key], boot)) if known is None else known
        try:
            content = cipher.decrypt(
                _NONCE_START + header[_COUNTER_AT:], sealed[_HEADER_BYTES:], header + me.encode() if flags else header
            )
        except InvalidTag:
            raise BadSeal(
                "forged", f"a frame under key {id} was changed, forged, or is bound to another member"
            ) from None
        if known is not None:
            self._ciphers.move_to_end(life)
            return Opened(content, boot, counter, id, flags == ADDRESSED, is_spare)
        # Only now: frames that are forged must not push the keys of members out.
        if len(self._ciphers) >= self._ciphers_limit:
            self._ciphers.popitem(last=False)
        self._ciphers[life] = cipher
        return Opened(content, boot, counter, id, flags == ADDRESSED, is_spare)
