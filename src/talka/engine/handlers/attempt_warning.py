"""The time of an attempt, as its handler sees it: more is asked for, and the warning that it is over is passed on.

Decision: docs/decisions/0059-more-time-for-tasks.md.
"""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from typing import Any, Final, Protocol

from talka.errors import Invalid, sendable, text_of
from talka.units import MILLISECOND
from talka.wire.tasks import TimeTold, TimeWanted
from talka.work.deadlines import REASON_LIMIT
from talka.work.durations import parse_duration, shown
from talka.work.handlers import GivenTime

ANSWER_S: Final = 10.0
"""So long an answer is waited for: the manager may be away."""
CALLBACKS_LIMIT: Final = 64
"""Of one attempt."""


_lock: Final = threading.Lock()
"""Of all attempts: it is held for a moment, and one for each would cost more."""


class TellsTime(Protocol):
    """Where what concerns its time goes. Every thread may speak."""

    def wants(self, wanted: TimeWanted) -> None: ...
    def heeds(self, fence: int) -> None: ...


class TimeRequest:
    """More time that was asked for."""

    def __init__(self, answer_s: float) -> None:
        self.answer: Future[GivenTime] = Future()
        self._answer_s = answer_s

    def wait(self) -> GivenTime:
        try:
            return self.answer.result(self._answer_s)
        except NoAnswer:
            return self._none()

    def __await__(self) -> Generator[Any, None, GivenTime]:
        return self._answered().__await__()

    async def _answered(self) -> GivenTime:
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self.answer)), self._answer_s)
        except TimeoutError:
            return self._none()

    def _none(self) -> GivenTime:
        return GivenTime(0.0, 0, f"nobody has answered for {self._answer_s:g} s: its manager may be away")


class AttemptWarning:
    """Of one attempt. Handlers call from their threads, the core from its loop."""

    def __init__(self, fence: int, tells: TellsTime, *, answer_s: float = ANSWER_S) -> None:
        self.is_warned = False
        self.granted_ms = 0
        self._fence = fence
        self._tells = tells
        self._answer_s = answer_s
        self._done = 0
        """How often it has advanced."""
        self._details: bytes | None = None
        """What it reported last."""
        self._progress = 0.0
        self._calls = 0
        self._open: dict[int, TimeRequest] = {}
        """By the number of their call."""
        self._callbacks: list[Callable[[], Any]] = []
        self._is_heeding = False

    # What its handler does.

    def advanced(self, details: bytes) -> int:
        """It has reported this: how often it has advanced now."""
        with _lock:
            self._done += details != self._details
            self._details = details
            return self._done

    def ask(self, more: float | str, reason: str, progress: float | None) -> TimeRequest:
        estimate_ms = parse_duration(more, what="more") // MILLISECOND
        if not estimate_ms:
            raise Invalid(f'more = {shown(more)} is no time: write how much longer it takes, such as "30s"')
        request = TimeRequest(self._answer_s)
        with _lock:
            if progress is not None:
                if not 0 <= progress <= 1:
                    raise Invalid(f"progress = {shown(progress)} is not between 0 and 1")
                self._done += progress > self._progress
                self._progress = max(self._progress, progress)
                reason = f"{reason} (at {progress:.0%})".strip()
            self._calls += 1
            call = self._calls
            self._open[call] = request
            wanted = TimeWanted(self._fence, call, self._done, sendable(reason, REASON_LIMIT), estimate_ms)
        self._tells.wants(wanted)
        return request

    def heed(self) -> None:
        """Its code does something when it is warned: it is given time to."""
        if not self._is_heeding:
            self._is_heeding = True
            self._tells.heeds(self._fence)

    def on_evict(self, callback: Callable[[], Any]) -> None:
        if not callable(callback):
            raise Invalid(f"on_evict = {shown(callback)} is not a function: give it one without arguments")
        with _lock:
            if len(self._callbacks) >= CALLBACKS_LIMIT:
                raise Invalid(f"on_evict has {CALLBACKS_LIMIT} functions already: give it one that calls the others")

            self._callbacks.append(callback)
        self.heed()

    # What its core does.

    def told(self, told: TimeTold) -> None:
        """An answer has come."""
        self.granted_ms += told.granted_ms
        request = self._open.pop(told.call, None)
        if request is not None and not request.answer.done():
            request.answer.set_result(GivenTime(told.granted_ms / 1000, told.left, told.why))

    def warn(self) -> list[Callable[[], Any]]:
        """Its time is over: what is to be called now. Only the first warning counts."""
        with _lock:
            callbacks = [] if self.is_warned else list(self._callbacks)
            self.is_warned = True
        return callbacks


def call_in_loop(callbacks: Iterable[Callable[[], Any]], failed: Callable[[str], None]) -> list[asyncio.Task[None]]:
    """Those that are async go on as tasks. `failed` is told of those that raise."""
    going: list[asyncio.Task[None]] = []
    for callback in callbacks:
        try:
            answer = callback()
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything, and others follow it
            failed(_raised(error))
            continue
        if inspect.isawaitable(answer):
            going.append(asyncio.create_task(_watched(answer, failed)))
    return going


def call_in_thread(callbacks: Iterable[Callable[[], Any]], failed: Callable[[str], None]) -> None:
    """Beside a plain function, which goes on meanwhile."""

    async def call_all() -> None:
        await asyncio.gather(*call_in_loop(callbacks, failed))

    asyncio.run(call_all())


async def _watched(answer: Awaitable[Any], failed: Callable[[str], None]) -> None:
    try:
        await answer
    except Exception as error:  # noqa: BLE001 - a user's function may raise anything
        failed(_raised(error))


def _raised(error: Exception) -> str:
    return f"on_evict raised {type(error).__name__}: {text_of(error)}"
