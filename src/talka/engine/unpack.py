"""Unpacks a bundle, inside the core process that runs it. Whatever would write outside its folder is refused.

What is unpacked is then run, so none of this protects a worker from a user's code; it keeps damaged and hand-made
bundles from doing harm by accident.
"""

import hashlib
import os
import re
import shutil
import stat
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from talka.errors import Invalid, Unavailable
from talka.wire.jobs import BLOB_LIMIT_BYTES
from talka.wire.shards import BundleSource, Source

NAME_LIMIT: Final = 1024
"""Characters of a name inside a bundle."""
FILES_LIMIT: Final = 2000
UNPACKED_LIMIT_BYTES: Final = 256 * 1024 * 1024
RATIO_LIMIT: Final = 100
"""So many bytes may come out of one."""
SHOWN_CHARACTERS: Final = 100
CHUNK_BYTES: Final = 1024 * 1024
FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
DRIVE: Final = re.compile("[A-Za-z]:")
# What `zipfile` lets through for files that are none, or none it can read.
NO_ZIP: Final = (BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError, zlib.error)


class BadBundle(Invalid):
    """A bundle that must not be unpacked, or holds no test."""


class BundleUnavailable(Unavailable):
    """The bundle may be good, and this machine cannot unpack it."""


def unpack(
    source: BundleSource,
    *,
    bundle_limit_bytes: int = BLOB_LIMIT_BYTES,
    unpacked_limit_bytes: int = UNPACKED_LIMIT_BYTES,
) -> Path:
    """Unpack the bundle into its folder, make that the current one and set its variables; the path of the test file."""
    folder = Path(os.path.abspath(source.folder))
    check_variables(source.env)
    try:
        with open(source.path, "rb") as file:
            if (size := os.fstat(file.fileno()).st_size) > bundle_limit_bytes:
                raise BadBundle(f"the bundle has {size} bytes: it may have {bundle_limit_bytes}")
            if (found := hashlib.file_digest(file, "sha256").hexdigest()) != source.digest:
                raise BundleUnavailable(
                    f"the bundle {source.digest} is damaged on this worker (its content is {found}): submit it again"
                )
            with ZipFile(file) as archive:
                entries = checked(archive, unpacked_limit_bytes)
                if source.file not in entries:
                    raise BadBundle(f"the bundle does not hold the file {shown(source.file)}")
                folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
                folder.chmod(FOLDER_MODE)
                for name, entry in entries.items():
                    extract(archive, entry, folder / name)
        os.chdir(folder)
    except NO_ZIP as error:
        raise BadBundle(f"the bundle cannot be read: {error or type(error).__name__}") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise BundleUnavailable(f"the bundle cannot be unpacked on this worker: {reason}") from None
    os.environ.update(source.env)
    # A pattern of the user's must find here what it found where the bundle was made, and nothing more.
    sys.dont_write_bytecode = True
    return folder / source.file


def checked(archive: ZipFile, limit_bytes: int = UNPACKED_LIMIT_BYTES) -> dict[str, ZipInfo]:
    """Every entry by its name, without the slash at the end of a folder's."""
    infos = archive.infolist()
    if len(infos) > FILES_LIMIT:
        raise BadBundle(f"the bundle holds {len(infos)} files: it may hold {FILES_LIMIT}")
    entries: dict[str, ZipInfo] = {}
    total_bytes = 0
    for info in infos:
        # As it is written there: `filename` ends at the first zero byte.
        name = info.orig_filename.removesuffix("/")
        if flaw := flaw_of_name(name) or flaw_of_entry(info):
            raise BadBundle(f"the bundle holds {shown(info.orig_filename)}, which {flaw}")
        if name in entries:
            raise BadBundle(f"the bundle holds {shown(name)} twice")
        entries[name] = info
        total_bytes += info.file_size
        if total_bytes > limit_bytes:
            raise BadBundle(f"the bundle holds more than {limit_bytes} bytes")
    for name in entries:
        parent = name.rpartition("/")[0]
        while parent:
            if parent in entries and not entries[parent].is_dir():
                raise BadBundle(f"the bundle holds {shown(parent)} as a file and as a folder")
            parent = parent.rpartition("/")[0]
    return entries


def flaw_of_name(name: str) -> str:
    """Why a bundle must not hold a file of this name: words that follow "which"; empty when it may."""
    if len(name) > NAME_LIMIT:
        return f"has a name of {len(name)} characters: it may have {NAME_LIMIT}"
    if name.startswith("/"):
        return "is an absolute path"
    if DRIVE.match(name):
        return "begins with the letter of a drive"
    if "\\" in name or "\0" in name:
        return "has a backslash or a zero byte in its name"
    parts = name.split("/")
    if ".." in parts:
        return "leads out of the bundle"
    if "" in parts or "." in parts:
        return "is not a plain path"
    return ""


def flaw_of_entry(info: ZipInfo) -> str:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind == stat.S_IFLNK:
        return "is a link"
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is neither a file nor a folder"
    if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        return "is packed in a way that is not known here"
    if info.file_size > RATIO_LIMIT * max(1, info.compress_size):
        return f"is packed to less than one byte of {RATIO_LIMIT}"
    return ""


def extract(archive: ZipFile, entry: ZipInfo, path: Path) -> None:
    if entry.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Never through what is there already.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    with open(descriptor, "wb") as target, archive.open(entry) as content:
        shutil.copyfileobj(content, target, CHUNK_BYTES)


def check_variables(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise BadBundle(f"{shown(name)} with its value cannot be a variable of the environment")


def shown(name: str) -> str:
    return repr(name if len(name) <= SHOWN_CHARACTERS else name[:SHOWN_CHARACTERS] + "…")


def as_in_bundle(text: str, source: Source) -> str:
    """The text, with files of the bundle named as inside it: nobody but this machine knows the folder."""
    if isinstance(source, BundleSource):
        for folder in dict.fromkeys((os.path.realpath(source.folder), os.path.abspath(source.folder))):
            text = text.replace(folder + os.sep, "")
    return text
