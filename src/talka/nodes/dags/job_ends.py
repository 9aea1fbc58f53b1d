"""Who waits for the end of which dag job."""

from collections.abc import Callable
from itertools import count

from talka.client.dags import DagEnd, Ended
from talka.errors import TalkaError


class JobEnds:
    """Bounded by whoever calls `wait`: each is told once, or gives up."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[int, Ended]] = {}
        self._numbers = count()

    def wait(self, job: str, told: Ended) -> Callable[[], None]:
        """What is returned gives it up."""
        number = next(self._numbers)
        self._waiting.setdefault(job, {})[number] = told

        def give_up() -> None:
            waiting = self._waiting.get(job)
            if waiting is not None:
                waiting.pop(number, None)
                if not waiting:
                    del self._waiting[job]

        return give_up

    def tell(self, job: str, end: DagEnd | TalkaError) -> None:
        for told in self._waiting.pop(job, {}).values():
            told(end)

    def fail(self, error: TalkaError, is_meant: Callable[[str], bool] = lambda job: True) -> None:
        """Nobody will hear of the ends of these jobs here."""
        for job in [job for job in self._waiting if is_meant(job)]:
            self.tell(job, error)
