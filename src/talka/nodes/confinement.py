"""What the cores of a worker are kept from: its environment, and where the system allows it, its files."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from talka.engine.core_child import Confines
from talka.engine.core_user import PLACES, USUAL, CoreFolders, CoreUser, core_user, obstacle
from talka.errors import Invalid


class Confinement:
    """Of one worker. Where its cores run as another user, each process has a folder of its own."""

    def __init__(
        self,
        env: Mapping[str, str],
        user: CoreUser | None = None,
        number: int = 0,
        alarm: str = "",
        places: Sequence[Path] = PLACES,
    ) -> None:
        self.alarm = alarm
        """Why cores run as the worker's own user though it is root; empty where that is as it should be."""
        self._folders = None
        self.confines = Confines(env=env)
        if user is not None:
            self._folders = CoreFolders(user, number, places)
            kept = {name: text for name, text in env.items() if name != "TMPDIR"}  # it may be closed to others
            own = {"USER": user.name, "LOGNAME": user.name}
            self.confines = Confines(env={**kept, **own}, uid=user.uid, gid=user.gid)

    @classmethod
    def of(
        cls, wanted: str, env: Mapping[str, str], files: Sequence[str], number: int, usual: str = USUAL
    ) -> "Confinement":
        """As whom cores run: as `wanted` says; else, where this process is root's, as a user who may do little. `files`
        are those that they import."""
        if wanted:
            user = core_user(wanted)
            if user is not None and (why := obstacle(user, files, env)):
                raise Invalid(f"cores cannot run as {wanted}: {why}; fix that, or name another user with --core-user")
            return cls(env, user, number)
        if os.geteuid() != 0:
            return cls(env)
        try:
            user = core_user(usual)
            why = "" if user is None else obstacle(user, files, env)
        except Invalid as error:
            user, why = None, str(error)
        if not why:
            return cls(env, user, number)
        text = (
            f"cores run as root, as this worker does, and can read the cluster's secret: {why}; "
            "name a user who can with --core-user, or say --core-user root if that is as it should be"
        )
        return cls(env, alarm=text)

    def folder_for(self, name: str) -> str | None:
        """The folder of this process, made if there is none; None where it has none of its own."""
        return None if self._folders is None else str(self._folders.make(name))

    def within_reach(self, file: Path, folder: str | None) -> Path:
        """The file, or a copy where the file cannot be reached from the folder."""
        return file if self._folders is None or folder is None else self._folders.copy(file, Path(folder))

    def remove(self, name: str) -> None:
        if self._folders is not None:
            self._folders.remove(self._folders.root / name)

    def close(self) -> None:
        if self._folders is not None:
            self._folders.close()
