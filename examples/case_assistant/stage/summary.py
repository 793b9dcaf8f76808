"""The summary's figures, read from the product's record only.

    figures = await gather(client)       # one tenant's, over the HTTP API, with a viewer's key

Events are counted in `/v1/events`. Figures about whole runs, such as proposals and repairs, come
from `/v1/metrics`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

from counterseal.client import Client
from counterseal.views.audit_log import EventRow

__all__ = ["Figures", "gather", "settled", "table", "total"]

EVERYTHING = "366d"
"""The longest window of the metrics."""
PATIENCE = 60.0
LOOKED_AT = ("tool.verified", "tool.unverified")
GATES = ("parse", "schema", "scope", "semantics", "policy", "state", "approval", "budget", "ledger")
"""The gates that can refuse, in order; the ledger refuses a call that is in progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    proposals: int = 0
    repaired: int = 0
    corrected: int = 0
    denied: Mapping[str, int] = field(default_factory=dict)
    """Refusals by gate."""
    approved: int = 0
    rejected: int = 0
    executed: int = 0
    settled: int = 0
    """Unknown outcomes that were found out at the destination."""
    replayed: int = 0
    verified: int = 0
    waiting: int = 0
    needs_attention: int = 0
    """What an operator has to settle: unknown outcomes."""

    def record(self) -> dict[str, Any]:
        return asdict(self)


async def settled(client: Client) -> None:
    """Wait until the gateway has verified every change in the background."""
    async with asyncio.timeout(PATIENCE):
        while True:
            events = [event async for event in client.events(limit=200)]
            due = {event.call_id for event in events if event.body.get("verify")}
            looked_at = {event.call_id for event in events if event.type in LOOKED_AT}
            if due <= looked_at:
                return
            await asyncio.sleep(0.2)


async def gather(client: Client) -> Figures:
    """Return the figures of the client's tenant."""
    events = [event async for event in client.events(limit=200)]
    kinds = Counter(event.type for event in events)
    metrics = {metric.name: metric for metric in await client.metrics(EVERYTHING)}
    return Figures(
        proposals=round(metrics["schema_valid_call_rate"].denominator),
        repaired=round(metrics["repair_success_rate"].numerator),
        corrected=sum(1 for event in events if event.body.get("corrections")),
        denied=_by_gate(events),
        approved=kinds["approval.granted"],
        rejected=kinds["approval.rejected"],
        executed=round(metrics["observation_normalization_failure_rate"].denominator),
        settled=kinds["tool.reconciled"],
        replayed=kinds["tool.replayed"],
        verified=kinds["tool.verified"],
        waiting=len([one async for one in client.approvals.list()]),
        needs_attention=len([one async for one in client.concerns.list()]),
    )


def _by_gate(events: Iterable[EventRow]) -> dict[str, int]:
    said_no = Counter(event.body["gate"] for event in events if event.type == "tool.denied")
    return {gate: said_no[gate] for gate in GATES}


def total(figures: Mapping[str, Figures]) -> Figures:
    """Return the sums over all tenants."""
    summed: Counter[str] = Counter()
    denied: Counter[str] = Counter()
    for one in figures.values():
        told = one.record()
        denied.update(told.pop("denied"))
        summed.update(told)
    return Figures(**summed, denied=dict(denied))


def table(figures: Mapping[str, Figures]) -> Table:
    """Return a table with a column per tenant and one for all."""
    columns = {**figures, "together": total(figures)}
    shown = Table(box=None, pad_edge=False, header_style="dim")
    shown.add_column("")
    for name in columns:
        shown.add_column(name, justify="right")

    def row(title: str, *numbers: int, style: str = "") -> None:
        shown.add_row(title, *map(str, numbers), style=style)

    def each(name: str) -> list[int]:
        return [getattr(one, name) for one in columns.values()]

    row("proposals", *each("proposals"))
    row("repaired", *each("repaired"))
    row("corrected", *each("corrected"))
    row("denied", *(sum(one.denied.values()) for one in columns.values()))
    for gate in GATES:
        numbers = [one.denied.get(gate, 0) for one in columns.values()]
        if any(numbers):
            row(f"  by {gate}", *numbers, style="dim")
    for name in ("approved", "rejected", "executed", "settled", "replayed", "verified"):
        row(name, *each(name))
    for name, title in (("waiting", "still waiting"), ("needs_attention", "needs attention")):
        if any(each(name)):
            row(title, *each(name), style="yellow")
    return shown
