"""Addresses as people write them: HOST:PORT, where HOST is an IPv4 address, an IPv6 address in brackets, or a name."""

import re
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from talka.errors import Invalid
from talka.work.durations import shown

ADDRESS_LIMIT: Final = 320
"""The longest name, an IPv6 zone or a port beside it, and some spare: more is never looked at."""
NAME_LIMIT: Final = 253
HIGHEST_PORT: Final = 65_535

# Underscores: services and many internal names have them, though host names should not.
_LABEL: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_ALL_DIGITS: Final = re.compile(r"[0-9.]+")


class BadAddress(Invalid):
    """What was written is no address, or not one that can be used here."""


def parse_address(text: str, *, is_port_0_allowed: bool = False) -> tuple[str, int]:
    """(host, port) of "HOST:PORT". An IP address comes back in its shortest form, a name in small letters.

    Port 0, "any that is free", is for addresses to listen on.
    """
    if len(text) > ADDRESS_LIMIT:
        raise BadAddress(f"the address {shown(text)} is too long: write HOST:PORT in at most {ADDRESS_LIMIT} letters")
    host, colon, port_text = text.strip().rpartition(":")
    if not colon:
        raise BadAddress(f"the address {shown(text)} has no port: write HOST:PORT, such as 10.0.0.5:7400")
    if not host:
        raise BadAddress(f"the address {shown(text)} has no host: write HOST:PORT, such as 10.0.0.5:7400")
    # The digits are bounded and plain: `int` also reads underscores, signs and other scripts.
    is_number = port_text.isascii() and port_text.isdigit() and len(port_text) <= 5
    port = int(port_text) if is_number else -1
    lowest = 0 if is_port_0_allowed else 1
    if not lowest <= port <= HIGHEST_PORT:
        raise BadAddress(
            f"the address {shown(text)} has no usable port: it is a number from {lowest} to {HIGHEST_PORT}"
        )
    return _host(host, text), port


def format_address(host: str, port: int) -> str:
    """What `parse_address` reads: an IPv6 address gets its brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_ip(host: str) -> bool:
    """Whether a host is an address already and needs no look-up. IPv6 without brackets."""
    kind = IPv6Address if ":" in host else IPv4Address
    try:
        kind(host)
    except ValueError:
        return False
    return True


def ip_target(address: str) -> tuple[str, int] | None:
    """(host, port) of an address whose host is an IP address; None for any other text, whoever sent it."""
    try:
        host, port = parse_address(address)
    except BadAddress:
        return None
    return (host, port) if is_ip(host) else None


def parse_name(text: str) -> str:
    """A name of the DNS in small letters; a final dot, which says that the name is complete, is kept."""
    name = text.strip()
    labels = name.removesuffix(".").split(".")
    if len(name) > NAME_LIMIT or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadAddress(
            f"{shown(text)} is not a host name: it has parts of 1 to 63 letters, digits, - and _, with dots between "
            "them"
        )
    return name.lower()


def _host(host: str, text: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(IPv6Address(host[1:-1]))
        except ValueError:
            raise BadAddress(f"the address {shown(text)} has no IPv6 address within its brackets") from None
    if ":" in host:
        raise BadAddress(
            f"the address {shown(text)} has too many colons: write an IPv6 address in brackets, [::1]:7400"
        )
    if _ALL_DIGITS.fullmatch(host):
        try:
            return str(IPv4Address(host))
        except ValueError:
            raise BadAddress(
                f"the address {shown(text)} has no IPv4 address before its port: that is four numbers from 0 to 255"
            ) from None
    return parse_name(host)
