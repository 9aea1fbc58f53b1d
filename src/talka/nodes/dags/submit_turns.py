"""Jobs that are submitted in the same turn of the loop, as those of frames that arrive together."""

import asyncio
from collections.abc import Callable

from talka.clock import boottime_ns
from talka.control.dags.keeper import DagKeeper
from talka.control.dags.keepers import DagKeepers
from talka.control.tasks.store_effects import DagEffect


class SubmitTurns:
    """The first job of a turn is on its way at once, since it may be alone. Those that follow it are given out and
    committed together at the end of the turn: what is done once for all inputs would cost each of them a fifth."""

    def __init__(self, keepers: DagKeepers, do: Callable[[list[DagEffect]], None]) -> None:
        self._keepers = keepers
        self._do = do
        self._has_begun = False
        self._waiting: dict[int, DagKeeper] = {}
        """Keepers that have jobs of this turn, by the number of their partition."""

    def waits(self, keeper: DagKeeper) -> bool:
        """Whether a job that this keeper is given now waits for the end of the turn."""
        if self._has_begun:
            self._waiting[keeper.partition.number] = keeper
            return True
        self._has_begun = True
        asyncio.get_running_loop().call_soon(self._end)
        return False

    def _end(self) -> None:
        self._has_begun = False
        waiting, self._waiting = self._waiting, {}
        for number, keeper in waiting.items():
            if self._keepers.get(number) is keeper:  # else it was lost meanwhile, and who waits was told
                self._do(keeper.tick(boottime_ns()))
