"""The cores of a worker: carries out what its shards and its pool of handlers ask for, and watches the disk under them.
Decides nothing."""

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from talka.clock import boottime_ns, monotonic_ns
from talka.control.load.core_effects import CoreEffect, KillCore, StartCore, TellCore
from talka.control.worker.effects import EndHandlers, ExitFacts, StartHandlers, TellHandlers
from talka.engine.handlers.handler_supervisor import HandlerSupervisor
from talka.engine.load.supervisor import Supervisor
from talka.errors import Invalid
from talka.nodes.confinement import Confinement
from talka.store.files.blobs import Blobs
from talka.wire.shards import Arm, BundleSource, FromCore, Go, Totals
from talka.wire.tasks import FromHandlers, Load

DISK_LEAST_BYTES: Final = 64 * 1024 * 1024
"""Free under the data folder. With less, tasks that write anything would fail on this worker and not on others."""

HandlerOrder: TypeAlias = StartHandlers | TellHandlers | EndHandlers


class HandlerProcesses:
    """One per worker. `on_said` and `on_exit` are told in the order in which things happened."""

    def __init__(
        self,
        share_bytes: int,
        on_said: Callable[[int, FromHandlers], None],
        on_exit: Callable[[int, ExitFacts], None],
        confinement: Confinement | None = None,
        *,
        bundles: Blobs,
        folder: Path,
    ) -> None:
        """`share_bytes` of memory are for each core that has no bound of its own. `bundles` are unpacked in
        `folder`."""
        self._bundles = bundles
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        self._share_bytes = share_bytes
        self._confinement = confinement
        self._on_exit = on_exit
        self.supervisor = HandlerSupervisor(
            on_said, self._exited, None if confinement is None else confinement.confines
        )

    def do(self, order: HandlerOrder) -> None:
        match order:
            case TellHandlers(core=core, message=Load(bundle=BundleSource() as source) as load):
                self.supervisor.tell(core, msgspec.structs.replace(load, bundle=self._placed(core, source)))
            case TellHandlers(core=core, message=message):
                self.supervisor.tell(core, message)
            case StartHandlers(core=core, memory_bytes=memory_bytes, cpu_ms=cpu_ms, files=files):
                self.supervisor.start(
                    core,
                    memory_bytes=memory_bytes,
                    share_bytes=self._share_bytes,
                    cpu_ms=cpu_ms,
                    files=files,
                    folder=None if self._confinement is None else self._confinement.folder_for(f"handlers-{core}"),
                )
            case EndHandlers(core=core, hard=hard, shows_stack=shows_stack):
                self.supervisor.end(core, hard=hard, shows_stack=shows_stack)

    def _placed(self, core: int, source: BundleSource) -> BundleSource:
        """With where it is, and may be unpacked. What cannot be made ready is for the core to say."""
        confinement, path = self._confinement, self._bundles.path(source.digest)
        own = None if confinement is None else confinement.folder_for(f"handlers-{core}")
        folder = self._folder / str(core) if own is None else Path(own) / "code"
        with contextlib.suppress(OSError):
            if confinement is None or own is None:
                self._folder.mkdir(mode=0o700, exist_ok=True)
            else:
                path = confinement.within_reach(path, own)
        return msgspec.structs.replace(source, path=str(path), folder=str(folder))

    async def close(self) -> None:
        await self.supervisor.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _exited(self, core: int, facts: ExitFacts) -> None:
        shutil.rmtree(self._folder / str(core), ignore_errors=True)
        if self._confinement is not None:
            self._confinement.remove(f"handlers-{core}")
        self._on_exit(core, facts)


class LoadCores:
    """One per worker. Orders are carried out one after the other: a core is started before it is told anything.

    Cores count by the monotonic clock, leases by one that does not stand still while the machine sleeps: times are
    shifted on their way."""

    def __init__(
        self,
        arm_for: Callable[[int], Arm | None],
        share_bytes: int,
        on_message: Callable[[int, FromCore], None],
        on_lines: Callable[[int, list[str]], None],
        on_exit: Callable[[int, str], None],
        on_turn: Callable[[int], None],
        *,
        folder: Path,
        life: int,
        bundles: Blobs,
        confinement: Confinement | None = None,
    ) -> None:
        """`arm_for` says what an attempt runs; None: nobody wants it any more. `share_bytes` of memory are for each
        core. Bundles are unpacked in `folder`; `life` is this start's number."""
        self._arm_for = arm_for
        self._on_message = on_message
        self._on_exit = on_exit
        self._folder = folder
        self._life = life
        self._bundles = bundles
        self._confinement = confinement
        # Bounded by the cores and by one report of each.
        self._orders: asyncio.Queue[CoreEffect] = asyncio.Queue()
        self._folders: dict[int, Path] = {}
        self._shift_ns: dict[int, int] = {}
        self.supervisor = Supervisor(
            self._said,
            self._exited,
            on_lines,
            on_turn,
            has_lease=True,
            confines=None if confinement is None else confinement.confines,
            share_bytes=share_bytes,
        )
        shutil.rmtree(folder, ignore_errors=True)

    def do(self, order: CoreEffect) -> None:
        self._orders.put_nowait(order)

    async def obey(self) -> None:
        while True:
            match await self._orders.get():
                case StartCore(attempt=attempt, process=process):
                    arm = self._arm_for(attempt)
                    if arm is None:
                        self._exited(attempt, "was given up before it started")
                        continue
                    arm, folder = self._placed(attempt, arm, process)
                    await self.supervisor.start(attempt, arm, process, folder)
                case TellCore(attempt=attempt, message=Go() as go):
                    shift = self._shift_ns[attempt] = monotonic_ns() - boottime_ns()
                    shifted = Go(go.start_at_ns + shift, go.origin_ns + shift, go.job_origin_ns + shift)
                    self.supervisor.send(attempt, shifted)
                case TellCore(attempt=attempt, message=message):
                    self.supervisor.send(attempt, message)
                case KillCore(attempt=attempt):
                    self.supervisor.end(attempt)

    def _placed(self, attempt: int, arm: Arm, process: int) -> tuple[Arm, str | None]:
        """With where its bundle is and may be unpacked; and the folder that is its process's, which unpacks it once:
        its number is that of its first attempt."""
        source, name, confinement = arm.source, f"{process}-{self._life:x}", self._confinement
        own = None if confinement is None else confinement.folder_for(name)
        folder = self._folder / name if own is None else Path(own)
        if own is not None or isinstance(source, BundleSource):
            self._folders[attempt] = folder
        if not isinstance(source, BundleSource):
            return arm, own
        path = self._bundles.path(source.digest)
        if confinement is None or own is None:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        else:
            path, folder = confinement.within_reach(path, own), folder / "test"
        source = msgspec.structs.replace(source, path=str(path), folder=str(folder))
        return msgspec.structs.replace(arm, source=source), own

    def _said(self, attempt: int, message: FromCore) -> None:
        shift = self._shift_ns.get(attempt, 0)
        if isinstance(message, Totals) and shift:
            message = msgspec.structs.replace(
                message,
                started_at_ns=message.started_at_ns - shift if message.started_at_ns else 0,
                ended_at_ns=message.ended_at_ns - shift if message.ended_at_ns else 0,
                made_at_ns=message.made_at_ns - shift if message.made_at_ns else 0,
            )
        self._on_message(attempt, message)

    def _exited(self, attempt: int, cause: str) -> None:
        self._shift_ns.pop(attempt, None)
        folder = self._folders.pop(attempt, None)
        if folder is not None and folder not in self._folders.values():
            shutil.rmtree(folder, ignore_errors=True)
        self._on_exit(attempt, cause)

    async def close(self) -> None:
        await self.supervisor.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def files_of(paths: tuple[Path, ...]) -> tuple[str, ...]:
    """As cores find them wherever they are started. One that is not there is no worker's to wait for."""
    for path in paths:
        if not path.is_file():
            raise Invalid(f"there is no file {path} with handlers: name a Python file with --handlers")
    return tuple(str(path.resolve()) for path in paths)


def short_of_disk(folder: Path, least_bytes: int = DISK_LEAST_BYTES) -> str:
    """Why this worker should not be given tasks; empty when there is room."""
    try:
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        return f"disk: the data folder {folder} cannot be looked at: {error.strerror or error}"
    if free_bytes >= least_bytes:
        return ""
    least = least_bytes // (1024 * 1024)
    return f"disk: {free_bytes // (1024 * 1024)} MiB are free under {folder}, less than {least} MiB: make room there"
