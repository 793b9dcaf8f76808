"""What the configuration says of each upstream's tools: which overlay, which names, for whom."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal

from counterseal.config import Settings
from counterseal.config.build import later_grants
from counterseal.contract.model import Contract
from counterseal.contract.sources.mcp import (
    Definition,
    Lock,
    Overlay,
    contract_of,
    read_overlay,
    shown_name,
)
from counterseal.errors import ContractError
from counterseal.gateway.passing import pass_through
from counterseal.runtime import Runtime

__all__ = ["Plan", "plans", "register_pinned"]

_MOST_KEPT: Final = 10_000
"""So many contracts are kept of one upstream: it can change its mind as often as it likes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one upstream's tools are put under contract."""

    server: str
    overlay: Overlay | None = None
    prefix: str = ""
    unlisted: Literal["hidden", "gated"] = "hidden"
    tenants: tuple[str, ...] = ()
    resources: bool = False
    prompts: bool = False
    _made: dict[tuple[str, int], Contract | ContractError | None] = field(
        default_factory=dict, repr=False, compare=False
    )
    """Making one takes milliseconds, and an upstream may have a thousand tools."""

    def name(self, tool: str) -> str | None:
        """The name that agents have for a tool; None: it is hidden."""
        return shown_name(tool, self.overlay, prefix=self.prefix, unlisted=self.unlisted)

    def contract(self, definition: Definition, revision: int) -> Contract | None:
        """None: the tool is hidden. ContractError when there is no sound contract for it."""
        key = (definition.hash, revision)
        if key not in self._made:
            if len(self._made) >= _MOST_KEPT:
                self._made.clear()
            self._made[key] = self._make(definition, revision)
        made = self._made[key]
        if isinstance(made, ContractError):
            raise ContractError(made.problems)
        return made

    def _make(self, definition: Definition, revision: int) -> Contract | ContractError | None:
        try:
            return contract_of(
                definition,
                self.overlay,
                server=self.server,
                prefix=self.prefix,
                unlisted=self.unlisted,
                revision=revision,
            )
        except ContractError as error:
            return error


def plans(settings: Settings) -> dict[str, Plan]:
    """What the configuration says of each upstream. ContractError when an overlay can't be used."""
    found = {}
    for server, table in settings.upstreams.items():
        path = settings.overlay_path(server)
        found[server] = Plan(
            server=server,
            overlay=None if path is None else read_overlay(path),
            prefix=table.prefix,
            unlisted=table.unlisted,
            tenants=table.tenants or (),
            resources=table.resources,
            prompts=table.prompts,
        )
    return found


def register_pinned(runtime: Runtime, settings: Settings) -> None:
    """Take in the contracts of what is accepted of all upstreams, and connect to none of them.

    For whoever decides on a call or looks into one, and makes none. What can't be taken in is left
    out: whoever serves it is told.
    """
    grants = later_grants(settings, {record.name for record in runtime.registry.records})
    for plan, contract in _pinned(settings):
        mine = [grant for grant in grants if grant.tool == contract.name]
        if not runtime.registry.versions(contract.name):
            with suppress(ContractError):
                runtime.register(contract, grants=mine, allowed_tenants=plan.tenants)


def _pinned(settings: Settings) -> Iterator[tuple[Plan, Contract]]:
    lock = Lock.load(settings.lock_path())
    for server, plan in plans(settings).items():
        for pin in lock.servers.get(server, {}).values():
            with suppress(ContractError):
                contract = plan.contract(pin.definition, pin.revision)
                if contract is not None:
                    yield plan, contract
        for contract in pass_through(plan):
            yield plan, contract
