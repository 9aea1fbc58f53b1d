"""What the API reads of a request, how long it waits, and how much it has open at once."""

from typing import Final

import msgspec

from talka.client.dags import DAG_LIMIT_BYTES, SUBMITS_LIMIT
from talka.client.requests import BUNDLE_LIMIT_BYTES
from talka.work.dags.dag import TASKS_LIMIT


class ApiLimits(msgspec.Struct, frozen=True):
    """Limits of one application."""

    call_s: float = 30
    """Seconds until a request is given up that nobody answers."""
    chunk_s: float = 10
    """Seconds until the next part of a bundle or of a stream of tasks is there."""
    bundle_bytes: int = BUNDLE_LIMIT_BYTES
    dag_bytes: int = DAG_LIMIT_BYTES
    line_bytes: int = 2 * 1024 * 1024
    """Bytes of a line of a stream of tasks."""
    lines: int = TASKS_LIMIT + 1_000_000
    """Lines of a stream of tasks, the empty ones too."""
    add_s: float = 60
    """Seconds until the store has taken a part of a stream."""
    sockets: int = 256
    """WebSockets on which jobs are submitted."""
    submits: int = SUBMITS_LIMIT
    """Submissions of one WebSocket that wait for their answer, or to be told it."""
    ends: int = 16_384
    """Jobs of one WebSocket whose end is waited for: no more frames are read meanwhile."""
    wait_s: float = 300
    """Seconds for which a submission may wait for the end of its job."""
    watchers: int = 256
    first_s: float = 15
    """Seconds until a watched job is first heard of."""
    send_s: float = 20
    """A watcher that has not taken an update for so many seconds is gone, or as good as gone."""
    close_s: float = 1
    """Seconds that a watcher has to take the end of its watch."""


API_LIMITS: Final = ApiLimits()


class HttpLimits(msgspec.Struct, frozen=True):
    """Limits of one connection."""

    head_s: float = 10
    """Seconds until the head of a request is whole; with TLS, until the handshake is."""
    linger_s: float = 5
    """Seconds until the rest of a request is there that was answered before it was whole."""
    rest_bytes: int = 256 * 1024
    """Bytes of that rest. What is beyond is not read, but for the part in which it was found."""
    deaf_s: float = 1
    """Whoever still sends then has so many seconds to read the answer."""


HTTP_LIMITS: Final = HttpLimits()
