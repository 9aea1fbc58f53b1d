"""The keys a node starts with, and what it tells of changes of them."""

from typing import Final

from talka.control.member.composite import Asked
from talka.nodes.member_events import Event
from talka.store.files.keyring import KeyringFile
from talka.wire.asking import AddKey, RepairKeys, RetireKey, UseKey
from talka.wire.security.keys import BadRing, Keyring, decode_ring, key_id

CHANGES: Final = {AddKey: "add", UseKey: "use", RetireKey: "retire", RepairKeys: "repair"}


def first_ring(secrets: tuple[str, ...], file: KeyringFile) -> Keyring:
    """What the file of secrets says, and what members agreed on since. What is spoilt is set aside and told of."""
    ring = Keyring.of(secrets)
    kept = file.load()
    if kept is None:
        return ring
    try:
        return ring.merge(decode_ring(kept))
    except BadRing:
        file.spoilt()
        return ring


def unknown_secrets(secrets: tuple[str, ...], ring: Keyring) -> str:
    """A sentence where none of the secret file's keys is in use: who asks with that file is not understood."""
    ids = [key_id(secret) for secret in secrets]
    if any(id in ring.accepted() for id in ids):
        return ""
    return (
        f"the secret file has {', '.join(ids)}, and the keys in use are {', '.join(ring.accepted())}: "
        "put a secret that is in use into the file, or repair the keys with talka cluster keys --repair FILE"
    )


def change_event(asked: Asked, ring: Keyring, problem: str) -> Event | None:
    """Somebody asked for a change of keys: who, from where, and what became of it."""
    what = CHANGES.get(type(asked.ask.question))
    if what is None:
        return None
    event = {"event": "key-change", "what": what, "who": asked.sender, "source": asked.source}
    return {**event, "keys": ", ".join(ring.accepted()), "primary": ring.primary_id, "problem": problem}
