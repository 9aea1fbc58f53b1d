"""The event loops that there are here. uvloop is an extra: what runs with it must run without it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
with suppress(ImportError):
    import uvloop

    LOOPS["uvloop"] = uvloop.new_event_loop
STANDSTILL_S = 240
"""After so long a test that computes for seconds stands still, however busy the machine is."""
