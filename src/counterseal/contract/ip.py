"""What an IP address is: public, or why not; and which one an odd spelling stands for.

What counts as public is written out here instead of asked of `ipaddress`, whose answer differs
between Python's releases.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

__all__ = ["METADATA", "Address", "kind", "literal", "meant"]

Address = IPv4Address | IPv6Address

_KINDS: Final = tuple(
    (ip_network(network), word)
    for word, networks in {
        "unspecified": "0.0.0.0/8 ::/128",
        "loopback": "127.0.0.0/8 ::1/128",
        "private": "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7",
        "link-local": "169.254.0.0/16 fe80::/10",
        "shared (carrier-grade NAT)": "100.64.0.0/10",
        "multicast": "224.0.0.0/4 ff00::/8",
        "benchmarking": "198.18.0.0/15 2001:2::/48",
        "documentation": "192.0.2.0/24 198.51.100.0/24 203.0.113.0/24 2001:db8::/32 3fff::/20",
        "tunnel (Teredo)": "2001::/32",
        "tunnel (6to4)": "192.88.99.0/24 2002::/16",
        "reserved": "192.0.0.0/24 240.0.0.0/4 2001::/23",
    }.items()
    for network in networks.split()
)
METADATA: Final = frozenset(
    ip_address(address)
    for address in (
        "169.254.169.254",  # most clouds
        "fd00:ec2::254",
        "fd20:ce::254",
        "169.254.170.2",  # credentials of containers
        "169.254.170.23",
        "fd00:ec2::23",
        "100.100.100.200",
        "168.63.129.16",  # not in any special range, yet only the cloud's own host answers
        "192.0.0.192",
        "169.254.0.23",
        "169.254.42.42",
        "fd00:42::42",
    )
)
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")


def kind(address: Address) -> str:
    """`public`, or why it is not."""
    if address in METADATA:
        return "metadata"
    for network, word in _KINDS:
        if address in network:
            return word
    return "public" if address.version == 4 or address in _GLOBAL_UNICAST else "reserved"


def meant(address: Address) -> tuple[Address, ...]:
    """The addresses that packets to this one may end at: IPv4 can hide in IPv6."""
    if isinstance(address, IPv4Address):
        return (address,)
    plain = IPv6Address(int(address))  # without a zone, which would make it unequal to itself
    if plain.ipv4_mapped is not None:
        return (plain.ipv4_mapped,)
    if plain in _NAT64:
        return (IPv4Address(int(plain) & 0xFFFF_FFFF),)
    if plain.sixtofour is not None:
        return (plain, plain.sixtofour)
    return (plain, *(plain.teredo or ()))


def literal(host: str) -> Address | None:
    """The address that a host spells out, however oddly: `127.1`, `0x7f000001`, `[::1]`."""
    text = host.removesuffix(".")
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    try:
        return ip_address(text)
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(text))  # reads them as a resolver would
    except (OSError, ValueError):
        return None
