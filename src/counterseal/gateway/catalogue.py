"""What a caller may see: its own tools, as MCP lists them; and who is to be told that they changed.

An entry is made once for each record. Which entries a caller gets is the registry's word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from counterseal.contract.formats import mcp
from counterseal.contract.model import Contract
from counterseal.gateway.answering import publishes
from counterseal.proposal import Principal
from counterseal.registry import RegistryRecord
from counterseal.runtime import Runtime

__all__ = ["Catalogue"]

EFFECT: Final = "counterseal/effect"
VERSION: Final = "counterseal/version"


class Catalogue:
    """The tools of each caller, as entries of `tools/list`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._entries: dict[str, dict[str, Any]] = {}
        """By the contract's hash."""
        self._lists: dict[tuple[Principal, str], list[dict[str, Any]]] = {}
        self._epoch = -1

    async def tools(self, principal: Principal, run_id: str | None) -> list[dict[str, Any]]:
        """In the order of their names."""
        runtime = self._runtime
        await runtime.catch_up()
        if runtime.registry.epoch != self._epoch:
            self._lists.clear()
            self._entries.clear()
            self._epoch = runtime.registry.epoch
        run = None if run_id is None else await runtime.store.find_run(principal.tenant, run_id)
        if run is not None and run.pins:
            # What the run has pinned bears on what it may use, and may grow with every call.
            return self._entries_of(runtime.registry.catalogue(principal, run.run_id, run.pins))
        key = (principal, run_id or "")
        if key not in self._lists:
            if len(self._lists) > 4096:
                self._lists.clear()
            found = runtime.registry.catalogue(principal, run_id or "")
            self._lists[key] = self._entries_of(found)
        return self._lists[key]

    def names(self, principal: Principal) -> tuple[tuple[str, str], ...]:
        """What tells one state of a caller's catalogue from another."""
        found = self._runtime.registry.catalogue(principal, "")
        return tuple((record.name, record.contract.hash) for record in found if is_tool(record))

    def _entries_of(self, records: Sequence[RegistryRecord]) -> list[dict[str, Any]]:
        return [self._entry(record.contract) for record in records if is_tool(record)]

    def _entry(self, contract: Contract) -> dict[str, Any]:
        known = self._entries.get(contract.hash)
        if known is None:
            known = mcp(contract).tool
            if not publishes(contract):
                known.pop("outputSchema", None)
            effect = None if contract.effect is None else contract.effect.value
            known["_meta"] = {EFFECT: effect, VERSION: contract.version}
            self._entries[contract.hash] = known
        return known


def is_tool(record: RegistryRecord) -> bool:
    """Resources and prompts of upstreams are under contract, too, and are no tools."""
    binding = record.contract.mcp
    return binding is None or binding.kind == "tool"
