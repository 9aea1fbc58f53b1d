"""What a step finds under `self.client`: the calls, as users write them. `engine/clients` implements them."""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from talka.stats.tally import MetricKind
from talka.work.arguments import Scalar
from talka.work.deadlines import Allowance
from talka.work.responses import CustomResponse, HTTPResponse

Value = TypeVar("Value")


class HTTPMethod(Protocol):
    """One request. `timeout` is seconds or a `Timeout`; `redirects` is how many are followed, or False. `name` is the
    row under which it is counted, by default that of the method that makes it."""

    async def __call__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Scalar | Sequence[Scalar]] | None = None,
        cookies: Mapping[str, str] | None = None,
        auth: str | tuple[str, str] | None = None,
        data: Any = None,
        json: Any = None,
        timeout: Any = None,
        redirects: int | bool | None = None,
        name: str | None = None,
    ) -> HTTPResponse: ...


class HTTP(Protocol):
    """HTTP/1.1 with connections and cookies of this virtual user's own."""

    @property
    def get(self) -> HTTPMethod: ...
    @property
    def post(self) -> HTTPMethod: ...
    @property
    def put(self) -> HTTPMethod: ...
    @property
    def patch(self) -> HTTPMethod: ...
    @property
    def delete(self) -> HTTPMethod: ...
    @property
    def head(self) -> HTTPMethod: ...
    @property
    def options(self) -> HTTPMethod: ...


class Custom(Protocol):
    """Anything that can be awaited, measured."""

    async def call(
        self, awaitable: Awaitable[Value], *, timeout: float | None = None, name: str | None = None
    ) -> CustomResponse[Value]: ...


class Hooks(Protocol):
    """What `self.pause`, `self.metric` and `self.extend` of a user reach."""

    def pause(self, low: str | float, high: str | float | None) -> Awaitable[None]: ...
    def metric(self, name: str, value: float, kind: MetricKind) -> None: ...
    def extend(self, estimate: str | float, reason: str) -> Awaitable[Allowance]: ...


class Clients(Protocol):
    """Those whose calls have types here."""

    @property
    def http(self) -> HTTP: ...
    @property
    def custom(self) -> Custom: ...


TYPED: Final = frozenset(name for name, value in vars(Clients).items() if isinstance(value, property))
