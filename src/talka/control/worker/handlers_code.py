"""Where the handlers of tasks come from: the worker's own files, or a bundle that travelled with a job. Each has cores
of its own, for two bundles may call different things by one name.

Decision: docs/decisions/0050-handlers-that-travel.md.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from talka.control.worker.handlers_attempt import HandlerAttempt
from talka.units import NEVER
from talka.wire.tasks import Load

OWN: Final = ""
"""Instead of a digest: the worker's own files."""


@dataclass(slots=True, eq=False)
class HandlerCode:
    """What is known of it, and the attempts that wait for a core that has loaded it."""

    digest: str
    """Of the bundle; `OWN`."""
    load: Load
    """The first word to its cores."""
    is_here: bool = True
    """Else the bundle is on its way."""
    waiting: OrderedDict[int, HandlerAttempt] = field(default_factory=OrderedDict)
    alone: OrderedDict[int, HandlerAttempt] = field(default_factory=OrderedDict)
    """Those that want a core of their own."""
    claims: int = 0
    """So many of its cores that load are for attempts that want to be alone."""
    handlers: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    """Names, as a core told them last."""
    weights: dict[str, int] = field(default_factory=dict)
    """Of plain handlers."""
    lengths_us: dict[str, float] = field(default_factory=dict)
    """How long they take, averaged with the latest weighing most; 0 before the first."""
    problem: str = ""
    """Why it cannot be used; empty when it can, or nobody knows yet."""
    is_known: bool = False
    """A core told what is in it, or why it cannot be used."""
    failed_starts: int = 0
    retry_at: int = NEVER
    """When it is tried again."""
    turn: int = 0
    """Grows with every core that is started for it: whoever got one longest ago comes first."""

    @property
    def is_usable(self) -> bool:
        return bool(self.load.files) and self.is_here and not self.problem

    @property
    def has_waiting(self) -> bool:
        return bool(self.waiting or self.alone)
