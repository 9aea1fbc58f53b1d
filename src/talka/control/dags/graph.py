"""Who waits for whom in a dag job: eight bytes for a task and four for an edge, as there may be millions."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from struct import unpack
from typing import Final

from talka.control.tasks.task import INDEX_BYTES, DagTask


def downstream(indexes: Iterable[int], dependents_of: Callable[[int], Sequence[int]]) -> list[int]:
    """These and all that depend on them, however far, in order of their index."""
    seen = dict.fromkeys(indexes)
    open_ones = list(seen)
    while open_ones:
        for dependent in dependents_of(open_ones.pop()):
            if dependent not in seen:
                seen[dependent] = None
                open_ones.append(dependent)
    return sorted(seen)


class Dependents:
    """For each task the indexes of those that depend on it, in order, one after the other in one array."""

    __slots__ = ("_first", "_targets")

    def __init__(self, tasks: Sequence[DagTask]) -> None:
        joined = b"".join([task.after for task in tasks])
        self._targets = array("I")
        self._first = array("I")
        """Where those of each task begin; one more than there are tasks. Empty when there is no edge at all."""
        if joined:
            self._fill(tasks, unpack(f"<{len(joined) // INDEX_BYTES}I", joined))

    def of(self, index: int) -> Sequence[int]:
        first = self._first
        return self._targets[first[index] : first[index + 1]] if first else ()

    def _fill(self, tasks: Sequence[DagTask], edges: Sequence[int]) -> None:
        # A counting sort. `places` is at first how many each has, then where its next one goes.
        places = [0] * (len(tasks) + 1)
        for dependency in edges:
            places[dependency + 1] += 1
        total = 0
        for index, count in enumerate(places):
            total += count
            places[index] = total
        self._first = array("I", places)
        targets = self._targets = array("I", bytes(INDEX_BYTES * len(edges)))
        at = 0
        for task in tasks:
            for _ in range(len(task.after) // INDEX_BYTES):
                dependency = edges[at]
                at += 1
                place = places[dependency]
                places[dependency] = place + 1
                targets[place] = task.index


NO_DEPENDENTS: Final = Dependents(())
"""Of tasks of which none waits for another: nearly all small jobs share it."""
