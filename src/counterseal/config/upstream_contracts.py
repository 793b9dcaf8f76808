"""How the tools, resources and prompts of upstreams get their contracts.

Resources and prompts have contracts so that they go the way of every call. They are no tools: no
list shows them, and a grant for `NAME.resources` or `NAME.prompts` lets an agent use them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from counterseal.config import Settings
from counterseal.config.build import grants_for_upstream_tools
from counterseal.config.tables import UpstreamTable
from counterseal.contract.model import Contract
from counterseal.contract.sources.mcp.definition import Definition
from counterseal.contract.sources.mcp.lock import Lock
from counterseal.contract.sources.mcp.overlay import contract_of, shown_name
from counterseal.contract.sources.mcp.overlay_files import Overlay, read_overlay
from counterseal.errors import ContractError
from counterseal.runtime import Runtime

_MAX_CONTRACTS: Final = 10_000
"""The most contracts that are kept for one upstream, which may change its tools at will."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamContracts:
    """The configured contracts of one upstream."""

    server: str
    table: UpstreamTable
    overlay: Overlay | None
    _contracts: dict[tuple[str, int], Contract | ContractError | None] = field(
        default_factory=dict, repr=False, compare=False
    )
    """A cache: making a contract takes milliseconds, and an upstream may have a thousand tools."""

    @property
    def tenants(self) -> tuple[str, ...]:
        """The tenants that may use it; empty for all."""
        return self.table.tenants or ()

    def name(self, tool: str) -> str | None:
        """Return the name that agents see for a tool, or None if it is hidden."""
        table = self.table
        return shown_name(tool, self.overlay, prefix=table.prefix, unlisted=table.unlisted)

    def contract(self, definition: Definition, revision: int) -> Contract | None:
        """Return the contract for a definition, or None if the tool is hidden.

        Raises ContractError if there is no sound contract for it.
        """
        key = (definition.hash, revision)
        if key not in self._contracts:
            if len(self._contracts) >= _MAX_CONTRACTS:
                self._contracts.clear()
            try:
                self._contracts[key] = contract_of(
                    definition,
                    self.overlay,
                    server=self.server,
                    prefix=self.table.prefix,
                    unlisted=self.table.unlisted,
                    revision=revision,
                )
            except ContractError as error:
                self._contracts[key] = error
        contract = self._contracts[key]
        if isinstance(contract, ContractError):
            raise ContractError(contract.problems)
        return contract


def upstream_contracts(settings: Settings) -> dict[str, UpstreamContracts]:
    """Return the contracts of each upstream. Raises ContractError for a broken overlay."""
    contracts = {}
    for server, table in settings.upstreams.items():
        path = settings.overlay_path(server)
        overlay = None if path is None else read_overlay(path)
        contracts[server] = UpstreamContracts(server=server, table=table, overlay=overlay)
    return contracts


def register_without_connections(runtime: Runtime, settings: Settings) -> None:
    """Register the accepted contracts of all upstreams, without a connection to any of them.

    For programs that decide on calls or show them, and make none. Contracts that can't be
    registered are left out; the gateway reports them.
    """
    registered = {record.name for record in runtime.registry.records}
    grants = grants_for_upstream_tools(settings, registered)
    lock = Lock.load(settings.lock_path())
    for contracts in upstream_contracts(settings).values():
        accepted: list[Contract | None] = []
        for pin in lock.servers.get(contracts.server, {}).values():
            with suppress(ContractError):
                accepted.append(contracts.contract(pin.definition, pin.revision))
        for contract in filter(None, (*accepted, *resource_contracts(contracts))):
            own_grants = [grant for grant in grants if grant.tool == contract.name]
            if not runtime.registry.versions(contract.name):
                with suppress(ContractError):
                    runtime.register(contract, grants=own_grants, allowed_tenants=contracts.tenants)


# --- resources and prompts ------------------------------------------------------------------------

_INPUTS: Final[dict[str, dict[str, Any]]] = {
    "resource": {"uri": {"type": "string", "maxLength": 4096, "description": "Which resource."}},
    "prompt": {
        "name": {"type": "string", "maxLength": 256, "description": "Which prompt."},
        "arguments": {
            "type": "object",
            "description": "What is filled in.",
            "maxProperties": 100,
            "additionalProperties": {"type": "string", "maxLength": 100_000},
        },
    },
}
"""By kind: the arguments. The first one is required."""


def resource_contracts(contracts: UpstreamContracts) -> Iterator[Contract]:
    """Return the contracts for an upstream's resources and prompts, as far as they are wanted."""
    server, table = contracts.server, contracts.table
    wanted = {"resource": table.resources, "prompt": table.prompts}
    for kind in (kind for kind in _INPUTS if wanted[kind]):
        input_schema = {
            "type": "object",
            "additionalProperties": False,
            "required": list(_INPUTS[kind])[:1],
            "properties": _INPUTS[kind],
        }
        yield Contract.model_validate(
            {
                "identity": {"name": f"{server}.{kind}s", "version": "1.0.0"},
                "effect": "retrieve",
                "usage": f"When a client asks for a {kind} of {server}.",
                "affordance": {
                    "model_description": f"Get a {kind} of {server}. Changes nothing.",
                    "input_schema": input_schema,
                    "output_schema": {"type": "object"},
                },
                "max_output_bytes": 10 * 1024 * 1024,
                "mcp": {"server": server, "kind": kind},
            }
        )
