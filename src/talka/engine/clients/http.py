"""The HTTP client that steps call: `await self.client.http.get(url)`.

There is one `HTTPEngine` for a process and one `HTTPClient` for each virtual user. A client has cookies and
connections of its own and never repeats a request by itself: what the report counts is what the server saw.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin

import msgspec

from talka.clock import monotonic_ns, utc_now
from talka.engine.calls import ExchangeFailed, NodeRun, checked_name, current_call
from talka.engine.clients.connection import MAX_BODY_BYTES, Connection, Pool, SharedPool
from talka.engine.clients.cookies import CookieJar
from talka.engine.clients.deadlines import Timeout, kept_timeout, timeout_of
from talka.engine.clients.opening import MAX_HOSTS_KEPT, Resolver, open_connection, tls_context
from talka.engine.clients.requests import (
    PREPARED,
    BadBody,
    BadHeader,
    PreparedAuth,
    Request,
    prepare_auth,
    prepare_cookies,
    prepare_data,
    prepare_headers,
    prepare_json,
    prepare_params,
    serialise,
    without,
)
from talka.engine.clients.urls import Address, BadURL, PreparedURL, parse_url
from talka.engine.waits import within
from talka.errors import Invalid
from talka.stats.tally import Exchanges
from talka.units import SECOND
from talka.work.responses import HTTPResponse

if TYPE_CHECKING:
    from ssl import SSLContext

MAX_REDIRECTS: Final = 10
DEFAULT_TIMEOUT: Final = Timeout()

METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
FOLLOWED: Final = frozenset({301, 302, 303, 307, 308})
BODY_HEADERS: Final = ("content-type", "content-encoding", "content-language", "content-location", "expect")
ORIGIN_HEADERS: Final = ("authorization", "cookie", "host", "proxy-authorization")

Headers = Mapping[str, Any] | None
Auth = str | tuple[str, str] | PreparedAuth | None
Arguments = tuple[Headers, Headers, Headers, Auth, Any, Any]
"""Headers, parameters, cookies, credentials, data and JSON of a request."""
TimeoutLike = Timeout | float | None
Answer = Coroutine[Any, Any, HTTPResponse]
Trace = Callable[[HTTPResponse | ExchangeFailed, bytes], None]


class TooManyConnections(Invalid):
    """A step started more calls at once than one user may have open."""


class HTTPLimits(msgspec.Struct, frozen=True):
    """What one engine keeps, and how long its end takes."""

    requests: int = 1024
    """Requests kept for the next time, by method where they have no arguments, and together where they have some."""
    request_bytes: int = 64 * 1024 * 1024
    """Bytes of the kept requests that have arguments."""
    urls: int = 4096
    """URLs kept after they were parsed."""
    hosts: int = MAX_HOSTS_KEPT
    """Hosts whose addresses are kept."""
    origins: int = 256
    """Origins one user keeps connections to; redirects could name any number."""
    connections: int = 64
    """Open at the same time for one user and origin."""
    close_s: float = 1.0
    """Seconds that connections have to part; twice, for those that are cut then."""


HTTP_LIMITS: Final = HTTPLimits()


class HTTPEngine(SharedPool):
    """What the clients of one process share. Make it inside the running event loop, and `await close()` in the end."""

    def __init__(
        self,
        exchanges: Exchanges,
        *,
        version: str,
        verify: bool | str = True,
        timeout: Timeout | float = DEFAULT_TIMEOUT,
        max_body_bytes: int = MAX_BODY_BYTES,
        trace: Trace | None = None,
        limits: HTTPLimits = HTTP_LIMITS,
    ) -> None:
        super().__init__(asyncio.get_running_loop(), exchanges, max_body_bytes=max_body_bytes)
        self.limits = limits
        self.user_agent = f"talka/{version}"
        self.verify = verify
        """True: the system's authorities; False: trust anybody; a path: the authorities in that file."""
        self.timeout = timeout_of(timeout)
        self.trace = trace
        """Called after every exchange, and after every one that failed before it began."""
        # What is hot comes back at once, so full caches just start afresh.
        self.bare: dict[str, dict[str, Request]] = {method: {} for method in METHODS}
        self.prepared: dict[tuple[object, ...], tuple[Request, tuple[object, ...]]] = {}
        self._prepared_bytes = 0
        self._urls: dict[str, PreparedURL] = {}
        self._resolver = Resolver(self.loop, limits.hosts)
        self._tls: SSLContext | None = None
        self._begin()

    def _begin(self) -> None:
        """For an engine that has more than this."""

    def new_client(self) -> "Caller":
        """A client for one virtual user."""
        return HTTPClient(self)

    async def prepare(self, arguments: Iterable[Any]) -> None:
        """Find the addresses and authorities of the targets."""
        for url in arguments:
            if isinstance(url, PreparedURL):
                await self.resolve(url)
                self.tls_for(url)

    def new_pool(self) -> Pool:
        return Pool()

    async def open(self, pool: Pool, url: PreparedURL, tls: "SSLContext | None") -> Connection:
        """A new connection of this pool. Time limits are the caller's."""
        return await open_connection(self, pool, url, await self.resolve(url), tls)

    def pause(self, length_ns: int) -> Awaitable[None]:
        """What `self.pause` of a user awaits."""
        return asyncio.sleep(length_ns / SECOND)

    async def resolve(self, url: PreparedURL) -> list[Address]:
        """Find the addresses of the URL's host, once for each host and port."""
        if url.addresses is None:
            url.addresses = await self._resolver.addresses_of(url.host, url.port)
        return url.addresses

    def tls_for(self, url: PreparedURL) -> "SSLContext | None":
        """Made at the first https URL; reading the authorities takes some tens of milliseconds."""
        if url.scheme != "https":
            return None
        if self._tls is None:
            self._tls = tls_context(self.verify)
        return self._tls

    async def close(self) -> None:
        """Close every connection; those that do not part within a second are cut."""
        for part in (Connection.close, Connection.drop):
            for connection in list(self.connections):
                part(connection)
            if self.connections:
                self.all_gone.clear()
                await within(self.limits.close_s, self.all_gone)
        await self._resolver.close()
        self.deadlines.close()

    def url(self, text: str) -> PreparedURL:
        if isinstance(text, PreparedURL):
            return text
        url = self._urls.get(text)
        if url is None:
            url = parse_url(text)
            if len(self._urls) >= self.limits.urls:
                self._urls.clear()
            self._urls[text] = url
        return url

    def bare_request(self, method: str, text: str) -> Request:
        """A request of nothing but a method and a URL, kept for the next time."""
        request = serialise(method, self.url(text), self.user_agent)
        kept = self.bare[method]
        if len(kept) >= self.limits.requests:
            kept.clear()
        kept[text] = request
        return request

    def keep(self, key: tuple[object, ...], request: Request, arguments: Arguments) -> None:
        """Remember a request made of prepared arguments. They are held too, so that no other object gets their id."""
        if all(argument is None or isinstance(argument, PREPARED) for argument in arguments):
            self._prepared_bytes += len(request.payload)
            limits = self.limits
            if len(self.prepared) >= limits.requests or self._prepared_bytes > limits.request_bytes:
                self.prepared.clear()
                self._prepared_bytes = len(request.payload)
            self.prepared[key] = (request, arguments)


def method(verb: str) -> Callable[..., Answer]:
    """A method of `HTTPClient` for requests of this kind; the types users see are those of `work.clients`."""

    def call(
        self: "HTTPClient",
        url: str,
        *,
        headers: Headers = None,
        params: Headers = None,
        cookies: Headers = None,
        auth: Auth = None,
        data: Any = None,
        json: Any = None,
        timeout: TimeoutLike = None,
        redirects: int | None = None,
        name: str | None = None,
    ) -> Answer:
        return self._call(verb, url, headers, params, cookies, auth, data, json, timeout, redirects, name)

    call.__name__ = verb.lower()
    return call


class Caller:
    """What clients of either engine have in common: requests, cookies, redirects, pools. Where they keep it is theirs.

    Calls return once the answer is complete. They raise `ExchangeFailed` when there is none, and `Invalid` when the
    arguments make no request; an answer with an error status is an answer.
    """

    __slots__ = ()

    _engine: HTTPEngine
    _pools: dict[str, Pool]
    _jar: CookieJar | None

    def forget(self, *, session: bool, connections: bool) -> None:
        """The next to use it is another user, who has no cookies of this one, or none of its connections."""
        if session:
            self._jar = None  # type: ignore[misc] # it has a place in every subclass
        if connections:
            for pool in self._pools.values():
                for connection in list(pool.idle):
                    connection.close()

    def close(self) -> None:
        """Close this user's connections. Calls still under way are cancelled."""
        for pool in self._pools.values():
            for connection in list(pool.open):
                connection.close()
        self._pools.clear()

    def _request(
        self,
        method: str,
        text: str,
        headers: Headers,
        params: Headers,
        cookies: Headers,
        auth: Auth,
        data: Any,
        json: Any,
    ) -> Request:
        engine = self._engine
        jar = self._jar
        key = None
        if not jar:
            key = (method, text, id(headers), id(params), id(cookies), id(auth), id(data), id(json))
            kept = engine.prepared.get(key)
            if kept is not None:
                return kept[0]
        url = engine.url(text)
        if params is not None:
            url = url.with_query(prepare_params(params).encoded)
        ready_headers = None if headers is None else prepare_headers(headers)
        names = ready_headers.names if ready_headers is not None else ()
        ready_cookies = prepare_cookies(cookies or {})
        if ready_cookies and "cookie" in names:
            raise BadHeader("cookies are given twice: as cookies= and as the header 'Cookie'")
        cookie_line = ready_cookies.encoded
        if jar and "cookie" not in names:
            now_s = utc_now().timestamp()
            from_jar = jar.header_for(url.host, url.target, url.scheme == "https", now_s, without=ready_cookies)
            cookie_line = b"; ".join(part for part in (from_jar, cookie_line) if part)
        if data is not None and json is not None:
            raise BadBody("a body is given twice: as data= and as json=")
        body = prepare_data(data) if data is not None else prepare_json(json) if json is not None else None
        ready_auth = None if auth is None else prepare_auth(auth)
        request = serialise(method, url, engine.user_agent, ready_headers, cookie_line, ready_auth, body)
        if key is not None:
            engine.keep(key, request, (headers, params, cookies, auth, data, json))
        return request

    def _not_made(self, url: object, error: Exception) -> Exception:
        """Counts a call that makes no request; what it raises."""
        self._engine.exchanges.not_sent += 1
        is_of_url = isinstance(error, TypeError) and not isinstance(url, str)
        return BadURL(url, "is not a text") if is_of_url else error

    async def _connect(self, request: Request, limits: Timeout, total_due_ns: int) -> Connection:
        """A new connection. If there is none, the call was not sent and is counted so.

        Where a server closes what it has just accepted, it depends on the instant who notices it first, we or the
        request that is written: it counts as a request that failed either way.
        """
        engine = self._engine
        url = request.url
        allowed_ns = min(limits.connect_ns, total_due_ns - monotonic_ns())
        pool: Pool | None = None
        try:
            pool = self._pool(url)
            pool.opening += 1
            tls = engine.tls_for(url)
            async with asyncio.timeout(allowed_ns / SECOND):
                return await engine.open(pool, url, tls)
        except TimeoutError:
            engine.exchanges.not_sent += 1
            failure = ExchangeFailed("timeout", f"{url}: no connection within {allowed_ns / SECOND:.2f} s")
            if engine.trace is not None:
                engine.trace(failure, request.payload)
            raise failure from None
        except BaseException as error:
            if isinstance(error, ExchangeFailed) and error.kind == "reset":
                engine.exchanges.failed += 1
            else:
                engine.exchanges.not_sent += 1
            if engine.trace is not None and isinstance(error, ExchangeFailed):
                engine.trace(error, request.payload)
            raise
        finally:
            if pool is not None:
                pool.opening -= 1

    def _pool(self, url: PreparedURL) -> Pool:
        limits = self._engine.limits
        pool = self._pools.get(url.origin)
        if pool is None:
            if len(self._pools) >= limits.origins:
                self._forget_an_origin()
            pool = self._pools[url.origin] = self._engine.new_pool()
        if len(pool.open) + pool.opening >= limits.connections:
            raise TooManyConnections(
                f"{url}: one user has {limits.connections} calls to {url.origin} under way at once, which is the most;"
                " spread them over more users"
            )
        return pool

    def _forget_an_origin(self) -> None:
        for origin, pool in self._pools.items():
            if not pool.opening and len(pool.open) == len(pool.idle):
                for connection in list(pool.idle):
                    connection.close()
                del self._pools[origin]
                return
        most = self._engine.limits.origins
        raise TooManyConnections(f"one user has calls to {most} hosts under way at once, which is the most")

    def _redirected(
        self,
        request: Request,
        response: HTTPResponse,
        url: str,
        headers: Headers,
        params: Headers,
        cookies: Headers,
        auth: Auth,
        data: Any,
        json: Any,
        redirects: int | None,
        hops: int,
    ) -> tuple[Request, Headers, Headers, Auth, Any, Any] | None:
        """The request that follows this answer, and what it is made of besides its URL; None when nothing follows.

        The parameters were those of the first URL; the server has put into its own what it wants to see again.
        """
        locations = () if redirects == 0 else response.headers.get_all("location")
        if not locations:
            return None
        status, method = response.status, request.method
        bound = MAX_REDIRECTS if redirects is None or redirects is True else redirects
        if hops >= bound:
            raise ExchangeFailed(
                "protocol", f"{method} {url}: more than {bound} redirects; the last to {locations[0]!r}"
            )
        target = redirect_target(request, locations[0])
        if (status == 303 and method != "HEAD") or (status in (301, 302) and method == "POST"):
            method, data, json = "GET", None, None
            headers = without(headers, BODY_HEADERS)
        if target.origin != request.url.origin:
            headers, cookies, auth = without(headers, ORIGIN_HEADERS), None, None
        following = self._request(method, target, headers, None, cookies, auth, data, json)
        return following, headers, cookies, auth, data, json

    def _remember(self, set_cookie: bytes, url: PreparedURL) -> None:
        if self._jar is None:
            self._jar = CookieJar()  # type: ignore[misc] # it has a place in every subclass
        self._jar.store(set_cookie, url.host, url.target, utc_now().timestamp())


class HTTPClient(Caller):
    """The client in Python, of one virtual user."""

    __slots__ = ("_engine", "_pools", "_jar")

    def __init__(self, engine: HTTPEngine) -> None:
        self._engine = engine
        self._pools: dict[str, Pool] = {}
        self._jar: CookieJar | None = None  # most users never see a cookie

    get = method("GET")
    post = method("POST")
    put = method("PUT")
    patch = method("PATCH")
    delete = method("DELETE")
    head = method("HEAD")
    options = method("OPTIONS")

    async def _call(
        self,
        method: str,
        url: str,
        headers: Headers,
        params: Headers,
        cookies: Headers,
        auth: Auth,
        data: Any,
        json: Any,
        timeout: TimeoutLike,
        redirects: int | None,
        name: str | None,
    ) -> HTTPResponse:
        started_ns = monotonic_ns()
        engine = self._engine
        exchanges = engine.exchanges
        run = current_call.get(None)
        intended_ns = started_ns
        if run is not None and run.intended_ns:
            intended_ns = run.intended_ns
            run.intended_ns = 0
        try:
            if name is not None:
                checked_name(name)
            limits = engine.timeout if timeout is None else kept_timeout(timeout)
            if (
                self._jar is None
                and headers is None
                and params is None
                and cookies is None
                and auth is None
                and data is None
                and json is None
            ):
                request = engine.bare[method].get(url) or engine.bare_request(method, url)
            else:
                request = self._request(method, url, headers, params, cookies, auth, data, json)
        except (Invalid, TypeError) as error:
            raise self._not_made(url, error) from None
        total_due_ns = started_ns + limits.total_ns
        hops = 0
        try:
            while True:
                pool = self._pools.get(request.url.origin)
                if pool is not None and pool.idle:
                    connection = pool.idle.pop()
                else:
                    connection = await self._connect(request, limits, total_due_ns)
                    started_ns = monotonic_ns()
                due_ns = started_ns + limits.response_ns
                if total_due_ns < due_ns:
                    due_ns = total_due_ns
                waiter = connection.send(request, due_ns, total_due_ns)
                try:
                    response = await waiter
                except ExchangeFailed as error:
                    exchanges.failed += 1
                    if engine.trace is not None:
                        engine.trace(error, request.payload)
                    raise
                except (asyncio.CancelledError, GeneratorExit):
                    self._interrupted(connection, waiter, run)
                    raise
                if connection.is_open:
                    connection.pool.idle.append(connection)
                response.intended_ns = intended_ns
                status = response.status
                if status < 400:
                    exchanges.ok += 1
                elif run is not None and status in run.expect:
                    response.accepted = True
                    exchanges.ok += 1
                else:
                    exchanges.failed += 1
                for header, value in response.raw_headers:
                    if len(header) == 10 and header.lower() == b"set-cookie":
                        self._remember(value, request.url)
                if engine.trace is not None:
                    engine.trace(response, request.payload)

                following = None
                if status in FOLLOWED:
                    following = self._redirected(
                        request, response, url, headers, params, cookies, auth, data, json, redirects, hops
                    )
                if following is None:
                    if run is not None:
                        run.answered(name, response)
                    return response
                request, headers, cookies, auth, data, json = following
                hops += 1
                started_ns = monotonic_ns()
        except ExchangeFailed as error:
            if run is not None:
                run.failed(name, error, intended_ns)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            if run is not None:
                run.cut(name)
            raise

    def _interrupted(self, connection: Connection, waiter: "asyncio.Future[HTTPResponse]", run: NodeRun | None) -> None:
        """The caller was cancelled. If the exchange had ended just before, it counts as it ended."""
        exchanges = self._engine.exchanges
        if waiter.done() and not waiter.cancelled():
            if waiter.exception() is not None:
                exchanges.failed += 1
                return
            status = waiter.result().status
            if status < 400 or (run is not None and status in run.expect):
                exchanges.ok += 1
            else:
                exchanges.failed += 1
            if connection.is_open:
                connection.pool.idle.append(connection)
            return
        exchanges.interrupted += 1
        connection.close()


def redirect_target(request: Request, location: str) -> PreparedURL:
    try:
        # Header bytes beyond ASCII are mostly UTF-8, whatever the RFC says.
        readable = location.encode("latin-1").decode("utf-8", errors="replace")
        return parse_url(urljoin(request.url, readable.replace(" ", "%20")))
    except (BadURL, ValueError) as error:
        raise ExchangeFailed(
            "protocol", f"{request.method} {request.url}: the server redirects to {location!r}: {error}"
        ) from None
