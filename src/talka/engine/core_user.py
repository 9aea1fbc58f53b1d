"""Another user for the cores of a worker, so that code of users cannot read what the worker may: who that is, whether
it can run here at all, and folders that it has. The trial, as that user: `engine/load/core_trial.py`."""

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from talka.errors import Invalid

USUAL: Final = "nobody"
"""For a worker that runs as root and was told of none."""
TRIAL_S: Final = 30
PLACES: Final = (Path("/var/tmp"), Path("/tmp"))
"""For folders that another user can reach: data folders are closed to others."""
FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
PASSAGE_MODE: Final = 0o711
"""Others may go through, and not look around."""


class CoreUser(msgspec.Struct, frozen=True):
    name: str
    uid: int
    gid: int


def core_user(name: str) -> CoreUser | None:
    """The user of this name or number; None where it is that of this process."""
    is_number = name.isascii() and name.isdigit() and len(name) < 10
    if is_number and int(name) == os.geteuid():
        return None  # in a container it may have no name
    try:
        entry = pwd.getpwuid(int(name)) if is_number else pwd.getpwnam(name)
    except KeyError:
        raise Invalid(f"there is no user {name} on this machine: make one, or name another with --core-user") from None
    return None if entry.pw_uid == os.geteuid() else CoreUser(entry.pw_name, entry.pw_uid, entry.pw_gid)


def obstacle(user: CoreUser, files: Sequence[str], env: Mapping[str, str]) -> str:
    """What keeps this user from running cores with these files; empty when nothing does."""
    try:
        tried = subprocess.run(
            [sys.executable, "-P", "-m", "talka.engine.load.core_trial", *files],
            user=user.uid,
            group=user.gid,
            extra_groups=[],
            env=dict(env),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=TRIAL_S,
            check=False,
        )
    except PermissionError as error:
        if error.filename is None:
            return f"this process may not start any as the user {user.name}"
        return f"the user {user.name} cannot run {sys.executable}"
    except (OSError, subprocess.SubprocessError) as error:
        return f"the user {user.name} cannot run {sys.executable}: {error}"
    if tried.returncode == 0:
        return ""
    if unread := tried.stdout.strip():
        return f"the user {user.name} cannot read {unread}"
    last = tried.stderr.strip().splitlines()[-1:] or [f"exit status {tried.returncode}"]
    return f"the user {user.name} cannot load Talka: {last[0]}"


class CoreFolders:
    """One folder for each core, of another user. `number` is that of the worker's data folder: what an earlier life
    left behind is found again and removed."""

    def __init__(self, user: CoreUser, number: int, places: Sequence[Path] = PLACES) -> None:
        self._user = user
        self.root = _own_root(f"talka-cores-{number:x}", places)

    def make(self, name: str) -> Path:
        folder = self.root / name
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        os.chown(folder, self._user.uid, self._user.gid)
        return folder

    def copy(self, file: Path, folder: Path) -> Path:
        """Of a file that the user cannot reach where it is."""
        copied = folder / file.name
        with contextlib.suppress(FileExistsError):  # the process has it
            # The folder is the user's, who may have put anything there: never through what is there already.
            descriptor = os.open(copied, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
            with open(descriptor, "wb") as target, file.open("rb") as content:
                shutil.copyfileobj(content, target)
                os.fchown(descriptor, self._user.uid, self._user.gid)
        return copied

    def remove(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


def _own_root(name: str, usual: Sequence[Path]) -> Path:
    places = [place for place in usual if os.access(place, os.W_OK)] or [Path(tempfile.gettempdir())]
    root = places[0] / name
    with contextlib.suppress(OSError):
        if root.lstat().st_uid == os.geteuid() and not root.is_symlink():
            shutil.rmtree(root)
    try:
        root.mkdir(mode=FOLDER_MODE)
    except FileExistsError:  # it is another's: anybody may make folders there
        root = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=places[0]))
    root.chmod(PASSAGE_MODE)
    return root
