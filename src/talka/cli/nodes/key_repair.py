"""Repairs the keys of a node that does not run, and writes down who changed keys. Imported when it is needed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from talka.cli.output import say, tell
from talka.errors import Invalid

AUDIT_NAME = "audit.log"


def repair_folder(data_dir: str, secrets: tuple[str, ...]) -> int:
    """Replace what the node keeps of its keys, damaged or not. It is kept aside."""
    from talka.clock import realtime_ns
    from talka.store.files.folder import DataFolder, StoreFailed, set_aside
    from talka.store.files.keyring import KeyringFile
    from talka.wire.security.keys import BadRing, Keyring, decode_ring, encode_ring

    folder = Path(data_dir).expanduser()
    if not folder.is_dir():
        raise Invalid(f"{folder} is not the data folder of a node: name the one that it is started with")
    with DataFolder(folder):
        file = KeyringFile(folder)
        ring = Keyring.of(secrets)
        kept = None
        try:
            kept = file.load()
            before = ring if kept is None else decode_ring(kept)
        except (StoreFailed, BadRing):
            before = ring
        if kept is not None or file.path.exists():
            tell(f"what it had is kept as {set_aside(file.path).name}")
        repaired = before.repaired(secrets)
        file.save(encode_ring(repaired))
        keys = ", ".join(repaired.accepted())
        note(folder, realtime_ns(), "repair", "", "", f"in its folder; keys {keys}, sealing with {repaired.primary_id}")
    say(f"{folder}: keys {keys}, sealing with {repaired.primary_id}")
    tell("start the node with a secret file that holds them; do the same for every node of the cluster")
    return 0


def audited(tell_event: Callable[[dict[str, Any]], None], folder: Path) -> Callable[[dict[str, Any]], None]:
    """The same, and each change of keys that somebody asked for is a line of the audit log."""

    def event(event: dict[str, Any]) -> None:
        if event["event"] == "key-change":
            text = event["problem"] or f"keys {event['keys']}, sealing with {event['primary']}"
            status = 422 if event["problem"] else 200
            note(folder, round(event["at"] * 1e9), event["what"], event["who"], event["source"], text, status)
        tell_event(event)

    return event


def note(folder: Path, at_ns: int, what: str, who: str, source: str, text: str, status: int = 200) -> None:
    from talka.web.audit import append_line

    try:
        append_line(folder / AUDIT_NAME, at_ns, f"keys: {what}", status, who=who, source=source, text=text)
    except OSError as error:
        tell(f"{folder / AUDIT_NAME} did not take a line: {error.strerror}")
