"""Where a tool may connect: checked by host name, and again by every address of that name.

Pure: nothing here resolves a name or opens a connection; the network layer of `execution` does, and
asks here first. The messages name the place, the reason and what to declare. They are for operators
and never for a model.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, NamedTuple, Self

from counterseal.contract.model import Contract, EgressPolicy
from counterseal.contract.schemas import word_set
from counterseal.errors import EgressError

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
    map(
        ip_address,
        word_set(
            # 168.63.129.16 is in no special range, but answered by the cloud's own host.
            "169.254.169.254 fd00:ec2::254 fd20:ce::254 169.254.170.2 169.254.170.23 fd00:ec2::23 "
            "100.100.100.200 168.63.129.16 192.0.0.192 169.254.0.23 169.254.42.42 fd00:42::42"
        ),
    )
)
"""Where clouds serve the credentials of a machine or a container."""
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")


def kind(address: Address) -> str:
    """Return `public`, or the kind of special address that it is."""
    if address in METADATA:
        return "metadata"
    for network, word in _KINDS:
        if address in network:
            return word
    return "public" if address.version == 4 or address in _GLOBAL_UNICAST else "reserved"


def possible_destinations(address: Address) -> tuple[Address, ...]:
    """Return the addresses where packets to this one may arrive: IPv6 can embed IPv4."""
    if isinstance(address, IPv4Address):
        return (address,)
    plain = IPv6Address(int(address))  # without a zone, which would break comparisons
    if plain.ipv4_mapped is not None:
        return (plain.ipv4_mapped,)
    if plain in _NAT64:
        return (IPv4Address(int(plain) & 0xFFFF_FFFF),)
    if plain.sixtofour is not None:
        return (plain, plain.sixtofour)
    return (plain, *(plain.teredo or ()))


def literal(host: str) -> Address | None:
    """Return the address that a host spells out in any notation: `127.1`, `0x7f000001`, `[::1]`."""
    text = host.removesuffix(".")
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    try:
        return ip_address(text)
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(text))  # reads odd spellings like a resolver
    except (OSError, ValueError):
        return None


_METADATA_NAMES: Final = word_set(
    "metadata metadata.goog metadata.google.internal instance-data instance-data.ec2.internal "
    "metadata.tencentyun.com"
)
"""Refused unless a contract lists them by name; `*.internal` does not include them."""

# --- entries of a contract ------------------------------------------------------------------------

_NAME: Final = re.compile(
    r"(?=.{1,253}$)(?:[a-z0-9_](?:[a-z0-9_-]{0,62})\.)*(?=[^.]*[a-z])[a-z0-9_][a-z0-9_-]{0,62}"
)


def _normal(host: str) -> str:
    """Return a host name in its wire form: ASCII, lower case, no trailing dot."""
    name = host.removesuffix(".")
    if not name.isascii():
        import idna  # noqa: PLC0415 - loads large tables, and few names need it

        name = idna.encode(name, uts46=True).decode("ascii")
    name = name.lower()
    if not _NAME.fullmatch(name):
        raise ValueError(f"{host!r} is not a host name")
    return name


def split_port(text: str) -> tuple[str, int | None]:
    """Split off the port of `host:8443`, `[::1]:9000` or `10.1.0.0/16:8080`, if it has one."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]") or (":" in host and not host.endswith("]")):
        return text, None
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise ValueError(f"{port!r} is not a port")
    return host, int(port)


class EgressEntry(NamedTuple):
    """One entry of a contract's egress: a name, all names below one, or a network; and a port."""

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
        # A network stands for the author's machines, never for the cloud's credential service.
        return address not in METADATA or self.network.num_addresses == 1

    def _on(self, port: int) -> bool:
        return port in (80, 443) if self.port is None else port == self.port


def parse_entry(text: str) -> EgressEntry:
    """Parse one entry of a contract's egress. ValueError says how to write it."""
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
        raise ValueError("write the host only, without scheme and path")
    host, port = split_port(text)
    network = _network(host)
    if network is not None:
        return EgressEntry(network=network, port=port)
    name = host.removeprefix("*.")
    if "*" in name:
        raise ValueError("a star is allowed at the front only, before a dot")
    return EgressEntry(_normal(name), below=name != host, port=port)


def _network(host: str) -> IPv4Network | IPv6Network | None:
    address = literal(host)
    text = host.removeprefix("[").removesuffix("]")
    if address is not None and str(address) != text.lower() and address.version == 4:
        raise ValueError(f"write the address in full: {address}")
    if address is None and "/" not in text:
        return None
    network = ip_network(text)
    if possible_destinations(network.network_address)[0].version != network.version:
        raise ValueError("write the IPv4 address that it embeds")
    return network


# --- the check ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Egress:
    """The parsed egress of a contract."""

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
        """Raise EgressError if a request to this host is not allowed. Resolves no name."""
        if scheme not in ("http", "https"):
            raise EgressError(f"{scheme}://{host}: only http and https are supported")
        if not 0 < port < 65536:
            raise EgressError(f"{host}:{port}: the port is out of range")
        self._check_any(host, port)
        address = literal(host)
        if address is not None:
            destination = possible_destinations(address)[0]
            if self._must_be_listed and not self._declared(destination, port):
                raise self._unlisted(str(destination), port)
            self.check_address(host, port, str(address))
            return
        try:
            name = _normal(host)
        except ValueError as error:
            raise EgressError(f"{host!r}:{port}: {error}") from None
        matches = [entry for entry in self._parsed if entry.names(name, port)]
        if name in _METADATA_NAMES:
            if all(entry.below for entry in matches):
                raise EgressError(
                    f"{name}:{port} serves a machine's credentials; the contract's egress must "
                    "list both the name and its address"
                )
        elif self._must_be_listed and not matches:
            raise self._unlisted(name, port)

    def check_address(self, host: str, port: int, address: str) -> None:
        """Raise EgressError if a connection to this address of that host is not allowed."""
        self._check_any(host, port)
        try:
            parsed = ip_address(address)
        except ValueError:
            raise EgressError(
                f"{host}:{port}: the name resolved to {address!r}, which is not an IP address"
            ) from None
        for destination in possible_destinations(parsed):
            self._check_destination(f"{host}:{port}", destination, port)

    def _check_any(self, host: str, port: int) -> None:
        if self.policy is EgressPolicy.NONE:
            raise EgressError(
                f"{host}:{port}: the tool may not connect anywhere, because its contract declares "
                "egress_policy none; set it to allowlisted_domains and list the host in egress"
            )

    def _check_destination(self, place: str, address: Address, port: int) -> None:
        category = kind(address)
        private_only = self.policy is EgressPolicy.PRIVATE_NETWORK_ONLY
        if category == "public" and private_only:
            raise EgressError(
                f"{place}: {address} is public, and egress_policy private_network_only "
                "allows private addresses only"
            )
        if category == ("private" if private_only else "public") or self._declared(address, port):
            return
        how = "the address itself, not its network" if category == "metadata" else "or its network"
        raise EgressError(
            f"{place}: {address} is a {category} address, and the contract's egress does not "
            f"declare it; add {entry_for(str(address), port)!r}, {how}, if the tool should reach it"
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
            f"add {entry_for(host, port)!r} if the tool should reach it"
        )


def entry_for(host: str, port: int) -> str:
    """Return the egress entry that allows one host and port."""
    if port in (80, 443):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
