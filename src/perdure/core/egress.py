"""Which network addresses `http:` may connect to.

A flow's author chooses the URL, and the worker's network position is not theirs to use: an address that is not on the public
internet is refused unless the worker's configuration allows it. The rule is about addresses, never about the spelling of a host:
`localhost`, `0x7f.1` and `[::ffff:127.0.0.1]` are all 127.0.0.1 once resolved. The caller resolves a name once, checks every
address here, and connects to an address that was checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import msgspec

from perdure.core.errors import InvalidInput
from perdure.core.limits import HTTP_ALLOW_MAX

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network

LOOPBACK: Final = ("localhost", "127.0.0.0/8", "::1")
"""Entries that allow this machine."""

_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_SIXTOFOUR: Final = IPv6Network("2002::/16")
_COMPATIBLE: Final = IPv6Network("::/96")
_RESERVED: Final[tuple[tuple[IpNetwork, str], ...]] = (
    # Special-purpose blocks that `ipaddress` of some supported Python versions calls global, and of others private.
    (IPv4Network("192.0.0.0/24"), "reserved for protocols"),
    (IPv4Network("192.88.99.0/24"), "a 6to4 relay"),
    (IPv6Network("3fff::/20"), "reserved for documentation"),
    (IPv6Network("64:ff9b:1::/48"), "not an address of the public internet"),
)
_CGNAT: Final = IPv4Network("100.64.0.0/10")


class Allowed(msgspec.Struct, frozen=True):
    """One entry of an allow-list: a name or a network, at one port or at all (0)."""

    name: str = ""
    """`host` exactly, or `*.domain` for every name below the domain."""
    network: IpNetwork | None = None
    port: int = 0

    def covers(self, host: str, address: IpAddress, port: int) -> bool:
        if self.port not in (0, port):
            return False
        if self.network is not None:
            return address.version == self.network.version and address in self.network
        if self.name.startswith("*."):
            return host.endswith(self.name[1:])
        return host == self.name


class Egress:
    """The addresses that one worker's `http:` may reach: the public internet, and what `allowed` adds."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        entries = [entry for entry in map(str.strip, allowed) if entry]
        if len(entries) > HTTP_ALLOW_MAX:
            raise InvalidInput(f"http_allow has {len(entries)} entries; HTTP_ALLOW_MAX={HTTP_ALLOW_MAX} are allowed")
        self.allowed = tuple(map(parse_allowed, entries))

    def refusal(self, host: str, addresses: Iterable[str], port: int) -> str | None:
        """Why a connection to `host`, which resolved to `addresses`, is refused; None if every address may be reached."""
        host = host.lower().removesuffix(".")
        for text in addresses:
            reason = self._refusal(host, ip_address(text.partition("%")[0]), port)
            if reason is not None:
                return reason if text == host else f"{host} is {text}, and {reason}"
        return None

    def _refusal(self, host: str, address: IpAddress, port: int) -> str | None:
        address = _unmapped(address)
        if any(entry.covers(host, address, port) for entry in self.allowed):
            return None
        reason = special(address)
        if reason is not None:
            return f"{address} is {reason}"
        for inner in _embedded(address):
            if not any(entry.covers(host, inner, port) for entry in self.allowed):
                reason = special(inner)
                if reason is not None:
                    return f"{address} leads to {inner}, which is {reason}"
        return None


def parse_allowed(text: str) -> Allowed:
    """`host`, `*.domain`, an address, each with an optional `:port`; or a network such as 10.0.0.0/8."""
    try:
        if "/" in text:
            return Allowed(network=ip_network(text))
        host, port = _split(text)
        try:
            return Allowed(network=ip_network(_unmapped(ip_address(host))), port=port)
        except ValueError:
            pass
        name = host.lower().removesuffix(".")
        if not name.removeprefix("*.") or not all(
            c.isascii() and (c.isalnum() or c in "-_.") for c in name.removeprefix("*.")
        ):
            raise ValueError("it is neither a host name nor an address")
        return Allowed(name=name, port=port)
    except ValueError as error:
        raise InvalidInput(
            f"http_allow: cannot read {text!r}: {error}. Write a host, host:port, *.domain, an address or a network such as 10.0.0.0/8."
        ) from None


def _split(text: str) -> tuple[str, int]:
    """Host and port; 0 without one."""
    if text.count(":") > 1 and not text.startswith("["):
        return text, 0  # an IPv6 address without brackets
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text, "0"
    elif not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise ValueError(f"{port!r} is not a port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def special(address: IpAddress) -> str | None:
    """What kind of address this is if it is not one of the public internet; None if it is."""
    kinds = (
        (address.is_unspecified, "the unspecified address, which means this machine"),
        (address.is_loopback, "a loopback address"),
        (address.is_link_local, "a link-local address, where cloud metadata is served"),
        (address.is_multicast, "a multicast address"),
        (isinstance(address, IPv4Address) and address in _CGNAT, "a shared address of a carrier (CGNAT)"),
        *((address in network, kind) for network, kind in _RESERVED if address.version == network.version),
    )
    for holds, kind in kinds:
        if holds:
            return kind
    if isinstance(address, IPv6Address) and (address in _NAT64 or address in _SIXTOFOUR):
        return None  # what counts is where it leads to; Python versions differ in what they call it
    if address.is_private:
        return "a private or reserved address"
    is_unicast = isinstance(address, IPv4Address) or address in _GLOBAL_UNICAST
    return None if is_unicast and address.is_global else "not an address of the public internet"


def _unmapped(address: IpAddress) -> IpAddress:
    """::ffff:127.0.0.1 is 127.0.0.1 for the socket that connects to it; so is the older ::127.0.0.1 for some systems."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _COMPATIBLE and int(address) > 0xFFFF:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _embedded(address: IpAddress) -> Iterator[IPv4Address]:
    """IPv4 addresses that a gateway behind an IPv6 address forwards to: NAT64, 6to4, Teredo."""
    if isinstance(address, IPv4Address):
        return
    if address in _NAT64:
        yield IPv4Address(int(address) & 0xFFFFFFFF)
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
