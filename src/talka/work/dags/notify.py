"""Whom a manager tells of the end of a job: addresses, and which of them are public.

Decision: docs/decisions/0052-ends-of-jobs-are-told-from-the-store.md.
"""

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from talka.errors import Invalid
from talka.work.durations import shown

NOTIFY_LIMIT: Final = 8
"""Of one job."""
URL_LIMIT: Final = 2000
HIGHEST_PORT: Final = 65_535
EndState: TypeAlias = Literal["completed", "partial", "failed", "cancelled", "timeout"]
END_STATES: Final[tuple[EndState, ...]] = get_args(EndState)
PORT: Final = 80
TLS_PORT: Final = 443
URL: Final = re.compile(
    r"""(?P<scheme>https?)://
    (?:\[(?P<six>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9._-]{1,253}))
    (?::(?P<port>[0-9]{1,5}))?
    (?P<target>[/?][!"$-~]*)?""",
    re.VERBOSE,
)
NUMERIC: Final = re.compile(r"(?:0[xX][0-9A-Fa-f]*|[0-9]+)")
"""As the last part of a name: old resolvers read 127.1 and 0x7f000001 as addresses."""
NOT_PUBLIC: Final[tuple[IPv4Network | IPv6Network, ...]] = (
    IPv4Network("0.0.0.0/8"),  # this network
    IPv4Network("10.0.0.0/8"),  # private
    IPv4Network("100.64.0.0/10"),  # behind a carrier's NAT
    IPv4Network("127.0.0.0/8"),  # loopback
    IPv4Network("169.254.0.0/16"),  # link-local, where clouds tell machines their credentials
    IPv4Network("172.16.0.0/12"),  # private
    IPv4Network("192.0.0.0/24"),  # protocol assignments
    IPv4Network("192.0.2.0/24"),  # documentation
    IPv4Network("192.88.99.0/24"),  # relays of 6to4
    IPv4Network("192.168.0.0/16"),  # private
    IPv4Network("198.18.0.0/15"),  # benchmarks
    IPv4Network("198.51.100.0/24"),  # documentation
    IPv4Network("203.0.113.0/24"),  # documentation
    IPv4Network("224.0.0.0/3"),  # multicast, reserved, broadcast
    IPv6Network("2001::/23"),  # protocol assignments: Teredo and others that hold an IPv4 address
    IPv6Network("2001:db8::/32"),  # documentation
    IPv6Network("2002::/16"),  # 6to4: holds an IPv4 address
    IPv6Network("3fff::/20"),  # documentation
)
PUBLIC_SIX: Final = IPv6Network("2000::/3")
"""All that was ever given out. Loopback, link-local, unique local, multicast, IPv4-mapped and NAT64 are beyond it."""
LOCAL_NAMES: Final = ("localhost", ".localhost", ".local", ".internal")


class Notify(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Tell a server when the job ends in one of these states."""

    on: Annotated[tuple[EndState, ...], msgspec.Meta(min_length=1, max_length=8)]
    url: Annotated[str, msgspec.Meta(min_length=1, max_length=URL_LIMIT)]
    """A POST with JSON goes there, signed with the manager's secret. http or https."""


Notifies: TypeAlias = Notify | Annotated[tuple[Notify, ...], msgspec.Meta(max_length=NOTIFY_LIMIT)]


class NotifyTarget(NamedTuple):
    scheme: str
    host: str
    """A name or an address, without brackets."""
    port: int
    target: str
    """Path and query."""

    @property
    def place(self) -> str:
        """Without path and query, which may hold what nobody else should know."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == usual_port(self.scheme) else f":{self.port}")


def notifies_of(notify: Notifies) -> tuple[Notify, ...]:
    return (notify,) if isinstance(notify, Notify) else notify


@lru_cache(maxsize=2048)
def target_of(url: str) -> NotifyTarget:
    """Raises `Invalid`, without the path of what was written."""
    found = URL.fullmatch(url)
    if found is None:
        beginning = url.partition("//")[2].partition("/")[0].partition("?")[0].rpartition("@")[2]
        raise Invalid(
            f"url {shown(beginning or url)}: write http://HOST/… or https://HOST/…, without a user, a password, a #"
            " and characters beyond ASCII"
        )
    port = int(found["port"]) if found["port"] else usual_port(found["scheme"])
    target = found["target"] or "/"
    made = NotifyTarget(
        found["scheme"], (found["six"] or found["name"]).lower(), port, target if target[0] == "/" else f"/{target}"
    )
    if not 1 <= port <= HIGHEST_PORT:
        raise Invalid(f"url {made.host}: port {port} is not from 1 to {HIGHEST_PORT}")
    last = made.host.rstrip(".").rpartition(".")[2]
    if (found["six"] or NUMERIC.fullmatch(last)) and address_in(made.host) is None:
        raise Invalid(f"url {shown(made.host)}: is no address: write a name, four numbers with dots, or [IPv6]")
    return made


def usual_port(scheme: str) -> int:
    return TLS_PORT if scheme == "https" else PORT


def address_in(host: str) -> IPv4Address | IPv6Address | None:
    """None: it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address) and (address not in PUBLIC_SIX or address.scope_id is not None):
        return False
    return not any(address in network for network in NOT_PUBLIC if network.version == address.version)


def private_problem(url: str) -> str:
    """Why a manager that tells public addresses alone cannot be asked to tell this one; empty: a name tells only when
    it is looked up."""
    host = target_of(url).host
    address = address_in(host)
    name = host.rstrip(".")
    if address is None and not any(name == one.strip(".") or name.endswith(one) for one in LOCAL_NAMES):
        return ""
    if address is not None and is_public(address):
        return ""
    return f"{host} is not a public address: {ALLOW}"


ALLOW: Final = "a manager tells such ones only if it is started with --allow-private-notify"
STAYS: Final = "has ${: it would stay as it is, for only configs and keys of tasks are filled"
"""Of a text that params do not reach."""


def notify_problems(notify: Notifies) -> list[tuple[str, str]]:
    """Fields, and what is wrong with them."""
    problems = []
    is_list = not isinstance(notify, Notify)
    for position, one in enumerate(notifies_of(notify)):
        field = f"notify[{position}].url" if is_list else "notify.url"
        if "${" in one.url:
            problems.append((field, f"{field}: the address {STAYS}"))
            continue
        try:
            target_of(one.url)
        except Invalid as error:
            problems.append((field, f"{field}: {error}"))
    return problems
