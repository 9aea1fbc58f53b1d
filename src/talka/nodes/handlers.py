"""The handler cores of a worker: carries out what its pool asks for, and watches the disk under it. Decides nothing."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from talka.control.worker.effects import AttemptsDropped, HandlersBroken, HandlersLoaded
from talka.control.worker.handlers_effects import EndHandlers, ExitFacts, StartHandlers, TellHandlers
from talka.engine.handlers.handler_supervisor import HandlerSupervisor
from talka.errors import Invalid
from talka.nodes.confinement import Confinement
from talka.nodes.dag_events import dropped_text
from talka.nodes.member_events import WORDS, Event
from talka.wire.tasks import FromHandlers

DISK_LEAST_BYTES: Final = 64 * 1024 * 1024
"""Free under the data folder. With less, tasks that write anything would fail on this worker and not on others."""

HANDLER_WORDS: Final = {"handlers": "has the handlers {handlers}"}
WORDS.update(HANDLER_WORDS)

HandlerOrder: TypeAlias = StartHandlers | TellHandlers | EndHandlers


class HandlerCores:
    """One per worker. `on_said` and `on_exit` are told in the order in which things happened."""

    def __init__(
        self,
        share_bytes: int,
        on_said: Callable[[int, FromHandlers], None],
        on_exit: Callable[[int, ExitFacts], None],
        confinement: Confinement | None = None,
    ) -> None:
        """`share_bytes` of memory are for each core that has no bound of its own."""
        self._share_bytes = share_bytes
        self._confinement = confinement
        self._on_exit = on_exit
        self._supervisor = HandlerSupervisor(
            on_said, self._exited, None if confinement is None else confinement.confines
        )

    def do(self, order: HandlerOrder) -> None:
        match order:
            case TellHandlers(core=core, message=message):
                self._supervisor.tell(core, message)
            case StartHandlers(core=core, memory_bytes=memory_bytes, cpu_ms=cpu_ms, files=files):
                self._supervisor.start(
                    core,
                    memory_bytes=memory_bytes,
                    share_bytes=self._share_bytes,
                    cpu_ms=cpu_ms,
                    files=files,
                    folder=None if self._confinement is None else self._confinement.folder_for(f"handlers-{core}"),
                )
            case EndHandlers(core=core, hard=hard):
                self._supervisor.end(core, hard=hard)

    def _exited(self, core: int, facts: ExitFacts) -> None:
        if self._confinement is not None:
            self._confinement.remove(f"handlers-{core}")
        self._on_exit(core, facts)

    def tell_end(self, end_ns: int) -> None:
        self._supervisor.tell_end(end_ns)

    def pids(self) -> dict[int, int]:
        return self._supervisor.pids()

    def look(self) -> None:
        """Now and then."""
        self._supervisor.look()

    async def close(self) -> None:
        await self._supervisor.close()


def files_of(paths: tuple[Path, ...]) -> tuple[str, ...]:
    """As cores find them wherever they are started. One that is not there is no worker's to wait for."""
    for path in paths:
        if not path.is_file():
            raise Invalid(f"there is no file {path} with handlers: name a Python file with --handlers")
    return tuple(str(path.resolve()) for path in paths)


def short_of_disk(folder: Path) -> str:
    """Why this worker should not be given tasks; empty when there is room."""
    try:
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        return f"disk: the data folder {folder} cannot be looked at: {error.strerror or error}"
    if free_bytes >= DISK_LEAST_BYTES:
        return ""
    least = DISK_LEAST_BYTES // (1024 * 1024)
    return f"disk: {free_bytes // (1024 * 1024)} MiB are free under {folder}, less than {least} MiB: make room there"


def handler_event_of(news: object) -> Event | None:
    """The event that some news about handlers is, if it is one."""
    match news:
        case HandlersLoaded(handlers=handlers):
            return {"event": "handlers", "handlers": ", ".join(handlers)}
        case HandlersBroken(text=text):
            return {"event": "alarm", "kind": "handlers", "text": f"the handlers cannot be used: {text}"}
        case AttemptsDropped(dropped=dropped):
            return {"event": "attempts-dropped", "text": f"held {dropped_text(dropped)}"}
        case _:
            return None
