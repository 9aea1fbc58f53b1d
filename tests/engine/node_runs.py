"""A run of a method that clients tell of their calls, for tests without a recorder."""

from collections.abc import Container
from typing import Any

from talka.engine.calls import NodeRun
from talka.stats.tally import Sample
from talka.work.responses import Response


class Told:
    """Rows that remember what they were told, as (what, name, of what)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str | None, Any]] = []

    def answered(self, name: str | None, response: Response) -> Sample | None:
        self.calls.append(("answered", name, response))
        return None if response.accepted else Sample(0, "status", "not accepted")

    def failed(self, name: str | None, error: BaseException, intended_ns: int) -> Sample:
        self.calls.append(("failed", name, error))
        return Sample(0, getattr(error, "kind", "exception"), str(error))

    def cut(self, name: str | None) -> None:
        self.calls.append(("cut", name, None))


def node_run(intended_ns: int = 0, expect: Container[int] = (), rows: Told | None = None) -> NodeRun:
    return NodeRun(intended_ns, rows or Told(), expect)
