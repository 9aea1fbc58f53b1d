"""Who may hold a connection to the API, and who gives way when there are too many.

Strangers can open as many connections as they like, so what a connection costs depends on what it has shown. One whose
request is not whole yet stands in a line of its own, in which the oldest of whoever has most there gives way. A whole
request takes a place, and keeps it as long as it is served; a connection that rests between requests gives its place
up to whoever asks. A probe that finds no place is served in a reserve: however many connections others hold, it is
answered.

Decision: docs/decisions/0035-strangers-give-way.md.
"""

import ipaddress
from collections import OrderedDict
from typing import Final, Generic, NamedTuple, TypeVar

from talka.errors import Invalid

SPARE_FILES: Final = 512
"""For everything else a node has open: its peers, strangers at its own port, its store and its cores."""
LEAST_FILES: Final = 128

Key = TypeVar("Key")


class ConnectionLimits(NamedTuple):
    """How many connections there may be of each kind."""

    places: int = 1024
    """Of requests that are served, and of connections that rest between two."""
    heads: int = 512
    """Of requests that are not whole yet."""
    heads_of_one: int = 256
    """Of those, from one source."""
    probes: int = 64
    """The reserve."""
    burst: int = 512
    """So many more heads, and probes, there may be until it was looked which of them are whole, and answered, by
    now."""

    @property
    def files(self) -> int:
        return self.places + self.heads + self.probes + 2 * self.burst


WANTED_FILES: Final = ConnectionLimits().files + SPARE_FILES


def limits_for(files: int) -> ConnectionLimits:
    """The limits of a process that may have so many files open: smaller ones where these are few."""
    if files < LEAST_FILES:
        raise Invalid(f"{files} files are too few for an API: it needs at least {LEAST_FILES}")
    whole, left = ConnectionLimits(), files - min(SPARE_FILES, files // 2)
    if left >= whole.files:
        return whole
    return ConnectionLimits(*(max(1, limit * left // whole.files) for limit in whole))


def source_of(address: str) -> str:
    """Whom an address stands for. A network of IPv6 is one source: whoever has one has 2^64 addresses."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))


class ConnectionLine(Generic[Key]):
    """Connections in the order in which they came, by source. All of it takes the same time however many there are."""

    def __init__(self) -> None:
        self._sources: dict[Key, str] = {}
        # Ordered ones: taking the oldest from a plain dict walks over all that were deleted before it.
        self._by_source: dict[str, OrderedDict[Key, None]] = {}
        self._by_size: dict[int, OrderedDict[str, None]] = {}
        self.largest = 0
        """How many the source has that has most."""

    def __len__(self) -> int:
        return len(self._sources)

    def __contains__(self, key: Key) -> bool:
        return key in self._sources

    def add(self, key: Key, source: str) -> None:
        own = self._by_source.setdefault(source, OrderedDict())
        self._sources[key] = source
        own[key] = None
        self._resize(source, len(own) - 1, len(own))

    def drop(self, key: Key) -> str | None:
        """Its source; None when it is not here."""
        source = self._sources.pop(key, None)
        if source is not None:
            own = self._by_source[source]
            del own[key]
            self._resize(source, len(own) + 1, len(own))
            if not own:
                del self._by_source[source]
        return source

    def pop(self) -> Key:
        """The oldest of the source that has most."""
        source = next(iter(self._by_size[self.largest]))
        key = next(iter(self._by_source[source]))
        self.drop(key)
        return key

    def _resize(self, source: str, before: int, now: int) -> None:
        if before:
            del self._by_size[before][source]
            if not self._by_size[before]:
                del self._by_size[before]
        if now:
            self._by_size.setdefault(now, OrderedDict())[source] = None
        if now > self.largest or self.largest not in self._by_size:
            self.largest = now


class PlaceVerdict(NamedTuple, Generic[Key]):
    """What becomes of a request that is whole."""

    is_served: bool
    is_last: bool
    """The connection ends with the answer."""
    gives_way: Key | None = None
    """Whose connection is closed for it."""


class ConnectionPlaces(Generic[Key]):
    """All connections of one API. Each call names one; what it answers is to be carried out."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._heads: ConnectionLine[Key] = ConnectionLine()
        self._busy: dict[Key, str] = {}
        self._idle: ConnectionLine[Key] = ConnectionLine()
        self._probes: ConnectionLine[Key] = ConnectionLine()

    def __len__(self) -> int:
        return len(self._heads) + len(self._busy) + len(self._idle) + len(self._probes)

    def arrive(self, key: Key, source: str) -> Key | None:
        """It is connected. Who has to give way for it at once, if anybody."""
        self._heads.add(key, source)
        return self._heads.pop() if len(self._heads) > self._limits.heads + self._limits.burst else None

    @property
    def is_crowded(self) -> bool:
        """Whether somebody has to give way, soon: not before it was looked whose request is whole by now."""
        limits, heads = self._limits, self._heads
        return len(heads) > limits.heads or heads.largest > limits.heads_of_one or len(self._probes) > limits.probes

    def give_way(self) -> list[Key]:
        """Who does, so that nobody has to any longer."""
        limits, heads, gone = self._limits, self._heads, []
        while len(heads) > limits.heads or heads.largest > limits.heads_of_one:
            gone.append(heads.pop())
        while len(self._probes) > limits.probes:
            gone.append(self._probes.pop())
        return gone

    def ask(self, key: Key, *, is_probe: bool) -> PlaceVerdict[Key]:
        """Its request is whole. One that is not served stays in line, to be told so, and gives way like the others."""
        if key in self._busy:
            return PlaceVerdict(is_served=True, is_last=False)
        if (source := self._idle.drop(key)) is not None:
            self._busy[key] = source
            return PlaceVerdict(is_served=True, is_last=False)
        is_full = len(self._busy) + len(self._idle) >= self._limits.places
        if key not in self._heads or (is_full and not is_probe and not self._idle):
            return PlaceVerdict(is_served=False, is_last=True)
        source = self._heads.drop(key)
        assert source is not None
        if is_full and is_probe:
            self._probes.add(key, source)
            is_over = len(self._probes) > self._limits.probes + self._limits.burst
            return PlaceVerdict(is_served=True, is_last=True, gives_way=self._probes.pop() if is_over else None)
        gives_way = self._idle.pop() if is_full else None
        self._busy[key] = source
        return PlaceVerdict(is_served=True, is_last=False, gives_way=gives_way)

    def rest(self, key: Key) -> None:
        """It was answered, and nothing else is asked on it for now."""
        if (source := self._busy.pop(key, None)) is not None:
            self._idle.add(key, source)

    def leave(self, key: Key) -> None:
        self._busy.pop(key, None)
        for line in (self._heads, self._idle, self._probes):
            line.drop(key)
