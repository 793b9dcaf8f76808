"""Where a tool may connect: judged by its name, and again by every address that the name has.

Pure. Nothing here looks a name up or opens a connection: `network` does, and asks here first. The
messages name the place, the reason and what to declare; they are for operators, never for a model.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, NamedTuple, Self

from counterseal.contract.model import Contract, EgressPolicy
from counterseal.errors import EgressError

__all__ = [
    "METADATA",
    "Address",
    "Egress",
    "EgressEntry",
    "kind",
    "literal",
    "meant",
    "parse_entry",
    "split_port",
]


# --- ip ---


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


_METADATA_NAMES: Final = frozenset(
    {
        "metadata",
        "metadata.goog",
        "metadata.google.internal",
        "instance-data",
        "instance-data.ec2.internal",
        "metadata.tencentyun.com",
    }
)
"""Refused whatever they resolve to, unless they are written out: nobody means them with a star."""

# --- what a contract writes -----------------------------------------------------------------------

_NAME: Final = re.compile(
    r"(?=.{1,253}$)(?:[a-z0-9_](?:[a-z0-9_-]{0,62})\.)*(?=[^.]*[a-z])[a-z0-9_][a-z0-9_-]{0,62}"
)


def _normal(host: str) -> str:
    """A name as it stands on the wire: ASCII, small letters, no dot at its end."""
    name = host.removesuffix(".")
    if not name.isascii():
        import idna  # noqa: PLC0415 - loads large tables, and few names need it

        name = idna.encode(name, uts46=True).decode("ascii")
    name = name.lower()
    if not _NAME.fullmatch(name):
        raise ValueError(f"{host!r} is no host name")
    return name


def split_port(text: str) -> tuple[str, int | None]:
    """`host:8443`, `[::1]:9000`, `10.1.0.0/16:8080` as two; a bare IPv6 address has no port."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]") or (":" in host and not host.endswith("]")):
        return text, None
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise ValueError(f"{port!r} is no port")
    return host, int(port)


class EgressEntry(NamedTuple):
    """One line of a contract's egress: a name, every name below one, or addresses; and a port."""

    name: str = ""
    below: bool = False
    network: IPv4Network | IPv6Network | None = None
    port: int | None = None

    def names(self, host: str, port: int) -> bool:
        fits = host.endswith(f".{self.name}") if self.below else host == self.name
        return fits and self._on(port)

    def declares(self, address: Address, port: int) -> bool:
        if self.network is None or address not in self.network or not self._on(port):
            return False
        # Who writes a network thinks of their own machines, not of the cloud's credentials.
        return address not in METADATA or self.network.num_addresses == 1

    def _on(self, port: int) -> bool:
        return port in (80, 443) if self.port is None else port == self.port


def parse_entry(text: str) -> EgressEntry:
    """Read one line of a contract's egress; a ValueError says how to write it instead."""
    try:
        return _parsed(text)
    except ValueError as error:
        raise ValueError(
            f"egress {text!r}: {error}; an entry is a host (api.example.org, *.example.org, "
            "api.example.org:8443), an address (127.0.0.1:9000, [::1]:9000) or a network "
            "(10.1.0.0/16)"
        ) from None


def _parsed(text: str) -> EgressEntry:
    if "://" in text or text.endswith("/"):
        raise ValueError("write the host alone, without a scheme and a path")
    host, port = split_port(text)
    network = _network(host)
    if network is not None:
        return EgressEntry(network=network, port=port)
    name = host.removeprefix("*.")
    if "*" in name:
        raise ValueError("a star stands only at the front, before a dot")
    return EgressEntry(_normal(name), below=name != host, port=port)


def _network(host: str) -> IPv4Network | IPv6Network | None:
    address = literal(host)
    text = host.removeprefix("[").removesuffix("]")
    if address is not None and str(address) != text.lower() and address.version == 4:
        raise ValueError(f"write the address in full: {address}")
    if address is None and "/" not in text:
        return None
    network = ip_network(text)
    if meant(network.network_address)[0].version != network.version:
        raise ValueError("write the IPv4 address that it stands for")
    return network


# --- the judge ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Egress:
    """A contract's egress, ready to judge by."""

    policy: EgressPolicy = EgressPolicy.NONE
    entries: tuple[str, ...] = ()
    _parsed: tuple[EgressEntry, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_parsed", tuple(parse_entry(text) for text in self.entries))

    @classmethod
    def of(cls, contract: Contract) -> Self:
        return cls(contract.security.egress_policy, contract.egress)

    def record(self) -> dict[str, Any]:
        return {"policy": self.policy.value, "entries": list(self.entries)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        return cls(EgressPolicy(record["policy"]), tuple(record["entries"]))

    def check_url(self, scheme: str, host: str, port: int) -> None:
        """Whether a request may be made at all. Says nothing of where its name leads."""
        if scheme not in ("http", "https"):
            raise EgressError(f"{scheme}://{host}: only http and https are spoken")
        if not 0 < port < 65536:
            raise EgressError(f"{host}:{port}: there is no such port")
        self._check_any(host, port)
        address = literal(host)
        if address is not None:
            end = meant(address)[0]
            if self._must_be_listed and not self._declared(end, port):
                raise self._unlisted(str(end), port)
            self.check_address(host, port, str(address))
            return
        try:
            name = _normal(host)
        except ValueError as error:
            raise EgressError(f"{host!r}:{port}: {error}") from None
        self._check_name(name, port)

    def check_address(self, host: str, port: int, address: str) -> None:
        """Whether a connection to this address, found for that host, may be opened."""
        self._check_any(host, port)
        try:
            found = ip_address(address)
        except ValueError:
            raise EgressError(
                f"{host}:{port}: looked up as {address!r}, which is no address"
            ) from None
        for end in meant(found):
            self._check_end(f"{host}:{port}", end, port)

    def _check_any(self, host: str, port: int) -> None:
        if self.policy is EgressPolicy.NONE:
            raise EgressError(
                f"{host}:{port}: the tool may connect nowhere, because its contract says "
                "egress_policy none; declare allowlisted_domains and list the host in egress"
            )

    def _check_name(self, name: str, port: int) -> None:
        if name in _METADATA_NAMES:
            if not any(e.names(name, port) and not e.below for e in self._parsed):
                raise EgressError(
                    f"{name}:{port} hands out a machine's credentials; it and its address must "
                    "each be written in the contract's egress"
                )
        elif self._must_be_listed and not any(e.names(name, port) for e in self._parsed):
            raise self._unlisted(name, port)

    def _check_end(self, place: str, address: Address, port: int) -> None:
        what = kind(address)
        private_only = self.policy is EgressPolicy.PRIVATE_NETWORK_ONLY
        if what == "public" and private_only:
            raise EgressError(
                f"{place}: {address} is public, and egress_policy private_network_only "
                "reaches only private addresses"
            )
        if what == ("private" if private_only else "public") or self._declared(address, port):
            return
        how = "as it is, not by a network around it" if what == "metadata" else "or its network"
        raise EgressError(
            f"{place}: {address} is a {what} address, and the contract's egress does not declare "
            f"it; write {_written(str(address), port)!r}, {how}, if the tool should reach it"
        )

    def _declared(self, address: Address, port: int) -> bool:
        return any(entry.declares(address, port) for entry in self._parsed)

    @property
    def _must_be_listed(self) -> bool:
        if self.policy is EgressPolicy.PRIVATE_NETWORK_ONLY:
            return any(entry.name for entry in self._parsed)
        return self.policy is EgressPolicy.ALLOWLISTED_DOMAINS

    def _unlisted(self, host: str, port: int) -> EgressError:
        listed = ", ".join(self.entries) or "nothing"
        return EgressError(
            f"{host}:{port} is not in the contract's egress, which lists {listed}; "
            f"write {_written(host, port)!r} if the tool should reach it"
        )


def _written(host: str, port: int) -> str:
    """How a contract would write it."""
    if port in (80, 443):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
