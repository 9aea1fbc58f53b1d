"""Until when the cores of a worker may run, whatever becomes of the worker itself."""

import msgspec


class CoresUntil(msgspec.Struct, frozen=True):
    """Each core stops itself at this instant of its machine's clock, with all that it started, unless it is told a later
    one before. Told with each renewal: a worker that stands still tells nothing, and its cores end by themselves."""

    end_ns: int
