"""What a caller may see: its own tools, as MCP lists them; and who is to be told that they changed.

An entry is made once for each record. Which entries a caller gets is the registry's word.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from time import monotonic
from typing import Any, Final

from counterseal.contract.formats import mcp
from counterseal.contract.model import Contract
from counterseal.gates.parse import is_id
from counterseal.gateway.answering import publishes
from counterseal.proposal import Principal
from counterseal.registry import RegistryRecord
from counterseal.runtime import Runtime
from counterseal.storage.base import RunRecord

__all__ = ["Catalogue"]

EFFECT: Final = "counterseal/effect"
VERSION: Final = "counterseal/version"
_FRESH: Final = 1.0
"""Seconds for which a caller's list is good, while nobody changes anything."""


class Catalogue:
    """The tools of each caller, as entries of `tools/list`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._entries: dict[str, dict[str, Any]] = {}
        """By the contract's hash."""
        self._lists: dict[tuple[Principal, str | None], tuple[float, list[dict[str, Any]]]] = {}
        """With when they were made: grants end, and so do versions."""
        self._epoch = -1

    async def tools(self, principal: Principal, run_id: str | None) -> list[dict[str, Any]]:
        """In the order of their names."""
        runtime = self._runtime
        await runtime.catch_up()
        if runtime.registry.epoch != self._epoch:
            self._lists.clear()
            self._entries.clear()
            self._epoch = runtime.registry.epoch
        run = await self._run(principal, run_id)
        if run is not None and (run.pins or run.allowed_tools is not None):
            # What the run has pinned bears on what it may use, and may grow with every call.
            found = runtime.registry.catalogue(principal, run.run_id, run.pins)
            wanted = run.allowed_tools
            return self._entries_of([one for one in found if wanted is None or one.name in wanted])
        key = (principal, run_id if run is None else run.run_id)
        made, entries = self._lists.get(key, (-inf, []))
        if monotonic() - made > _FRESH:
            if len(self._lists) > 4096:
                self._lists.clear()
            entries = self._entries_of(runtime.registry.catalogue(principal, key[1] or ""))
            self._lists[key] = (monotonic(), entries)
        return entries

    async def _run(self, principal: Principal, run_id: str | None) -> RunRecord | None:
        """The run that a call would be made in, where it was begun."""
        store, tenant = self._runtime.store, principal.tenant
        if run_id is None:
            now = self._runtime.clock()
            return await store.find_implicit_run(tenant, principal.agent, principal.user, now)
        return await store.find_run(tenant, run_id) if is_id(run_id) else None

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
