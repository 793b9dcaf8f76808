"""Rules on what a contract writes as `egress`. Judged as written: no name is looked up here."""

from __future__ import annotations

from collections.abc import Iterator

from counterseal.contract.egress import Entry, literal, parse_entry
from counterseal.contract.lint.base import Breach, breach, rule
from counterseal.contract.model import Contract, EgressPolicy


def covers(entry: Entry, host: str, port: int) -> bool:
    """Whether an entry lets a host be reached, as far as that can be said before looking it up."""
    address = literal(host)
    if address is not None:
        return entry.declares(address, port)
    return entry.names(host.rstrip(".").lower(), port)


def written(host: str, port: int) -> str:
    """The entry that covers a host and a port, and no more."""
    if port in (80, 443):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def entries(contract: Contract) -> Iterator[Entry]:
    """Those of a contract that can be read."""
    for entry in contract.egress:
        try:
            yield parse_entry(entry)
        except ValueError:
            continue  # reported by egress-unreadable


@rule("egress-unreadable", "egress lists names, addresses and networks")
def egress_unreadable(contract: Contract) -> Iterator[Breach]:
    for index, entry in enumerate(contract.egress):
        try:
            parse_entry(entry)
        except ValueError as error:
            told = str(error).partition(": ")[2].partition("; ")[0]
            yield breach(
                ("egress", index),
                f"{ascii(entry)[:80]}: {told}",
                "Write api.example.org, *.example.org, api.example.org:8443 or 10.1.0.0/16.",
            )


@rule("egress-contradictory", "egress is empty when its policy lets nothing out")
def egress_contradictory(contract: Contract) -> Iterator[Breach]:
    if contract.egress and contract.security.egress_policy is EgressPolicy.NONE:
        yield breach(
            "/security/egress_policy",
            f"is none, but egress names {contract.egress[0]}",
            "Set it to allowlisted_domains, or take egress out.",
        )
