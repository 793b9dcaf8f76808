"""The tools that a caller may see, as entries of `tools/list`.

An entry is made once for each contract. The registry decides which entries a caller gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from time import monotonic
from typing import Any, Final

from counterseal.contract.formats import mcp
from counterseal.contract.model import Contract
from counterseal.gates.parse import is_id
from counterseal.gateway.results import publishes_output
from counterseal.ledger.records import RunRecord
from counterseal.proposal import Principal
from counterseal.registry import RegistryRecord
from counterseal.runtime import Runtime

EFFECT: Final = "counterseal/effect"
VERSION: Final = "counterseal/version"
_FRESH: Final = 1.0
"""Seconds for which a caller's list is kept while the registry does not change."""
_MAX_LISTS: Final = 4096


class Catalogue:
    """The tools of each caller."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._entries: dict[str, dict[str, Any]] = {}
        """By the contract's hash."""
        self._lists: dict[tuple[Principal, str | None], tuple[float, list[dict[str, Any]]]] = {}
        """With the time when they were made, because grants and versions end by date."""
        self._epoch = -1

    async def tools(self, principal: Principal, run_id: str | None) -> list[dict[str, Any]]:
        """Return the entries for a caller, ordered by name."""
        runtime = self._runtime
        await runtime.catch_up()
        if runtime.registry.epoch != self._epoch:
            self._lists.clear()
            self._entries.clear()
            self._epoch = runtime.registry.epoch
        run = await self._run(principal, run_id)
        if run is not None and (run.pins or run.allowed_tools is not None):
            # The pins of a run limit what it may use, and may grow with every call: no cache.
            records = runtime.registry.catalogue(principal, run.run_id, run.pins)
            allowed = run.allowed_tools
            return self._entries_of([r for r in records if allowed is None or r.name in allowed])
        key = (principal, run_id if run is None else run.run_id)
        made, entries = self._lists.get(key, (-inf, []))
        if monotonic() - made > _FRESH:
            if len(self._lists) > _MAX_LISTS:
                self._lists.clear()
            entries = self._entries_of(runtime.registry.catalogue(principal, key[1] or ""))
            self._lists[key] = (monotonic(), entries)
        return entries

    async def _run(self, principal: Principal, run_id: str | None) -> RunRecord | None:
        """Return the run in which a call would be made, if it has begun."""
        store, tenant = self._runtime.store, principal.tenant
        if run_id is None:
            now = self._runtime.clock()
            return await store.find_implicit_run(tenant, principal.agent, principal.user, now)
        return await store.find_run(tenant, run_id) if is_id(run_id) else None

    def fingerprint(self, principal: Principal) -> tuple[tuple[str, str], ...]:
        """Return a value that changes whenever the catalogue of a caller does."""
        records = self._runtime.registry.catalogue(principal, "")
        return tuple((record.name, record.contract.hash) for record in records if _is_tool(record))

    def _entries_of(self, records: Sequence[RegistryRecord]) -> list[dict[str, Any]]:
        return [self._entry(record.contract) for record in records if _is_tool(record)]

    def _entry(self, contract: Contract) -> dict[str, Any]:
        entry = self._entries.get(contract.hash)
        if entry is None:
            entry = mcp(contract).tool
            if not publishes_output(contract):
                entry.pop("outputSchema", None)
            effect = None if contract.effect is None else contract.effect.value
            entry["_meta"] = {EFFECT: effect, VERSION: contract.version}
            self._entries[contract.hash] = entry
        return entry


def _is_tool(record: RegistryRecord) -> bool:
    """Return False for resources and prompts of upstreams, which have contracts, too."""
    binding = record.contract.mcp
    return binding is None or binding.kind == "tool"
