"""Runs: what one was opened with, what it has spent of what, and its latest calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from counterseal.desk.base import NotThere, Page, findable, iso
from counterseal.desk.calls import CallRow, CallsDesk, CallSearch
from counterseal.storage.base import Budgets, RunRecord

__all__ = ["BudgetRow", "RunPage", "RunsDesk"]

_APART: Final = ("by_effect", "ask", "seconds", "repairs")
"""What is no counter: the clock runs by itself, and repairs are counted with refusals."""
_DAY: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRow:
    """What was spent of one budget."""

    of: str
    """run, or tenant: then it is today's."""
    name: str
    spent: float
    limit: float | None
    """None: it has none."""

    def record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """A run: what it was opened with, what it has spent, and its latest calls."""

    run_id: str
    started_at: float
    objective: str | None
    allowed_tools: Sequence[str] | None
    deadline: float | None
    turn: int
    pins: Mapping[str, str]
    budgets: Sequence[BudgetRow]
    calls: Page[CallRow]

    def record(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "started_at": iso(self.started_at),
            "objective": self.objective,
            "allowed_tools": None if self.allowed_tools is None else list(self.allowed_tools),
            "deadline": iso(self.deadline),
            "turn": self.turn,
            "pins": dict(self.pins),
            "budgets": [row.record() for row in self.budgets],
            "calls": self.calls.record(),
        }


class RunsDesk(CallsDesk):
    """Runs of this tenant, for every viewer."""

    async def run(self, run_id: str) -> RunPage:
        """NotThere."""
        found = await self._run(run_id)
        allowed = found.allowed_tools
        return RunPage(
            run_id=run_id,
            started_at=found.started_at,
            objective=found.objective,
            allowed_tools=None if allowed is None else sorted(allowed),
            deadline=found.deadline,
            turn=found.turn,
            pins=dict(found.pins),
            budgets=await self._spent(found),
            calls=await self.calls(CallSearch(run=run_id)),
        )

    async def budgets(self, run_id: str | None = None) -> list[BudgetRow]:
        """What was spent of what: of the tenant's today, and of a run's. NotThere for the run."""
        return await self._spent(None if run_id is None else await self._run(run_id))

    async def _run(self, run_id: str) -> RunRecord:
        found = await self.runtime.store.find_run(self.tenant, run_id) if findable(run_id) else None
        if found is None:
            raise NotThere("run")
        return found

    async def _spent(self, run: RunRecord | None) -> list[BudgetRow]:
        run_id = "" if run is None else run.run_id
        memory = await self.runtime.store.recall(self.tenant, run_id, None)
        rows = [] if run is None else list(_rows("run", memory.run_counters, run.budgets))
        today = f"/{int(self.runtime.clock() // _DAY)}"
        spent = {
            name.removesuffix(today): amount
            for name, amount in memory.tenant_counters.items()
            if name.endswith(today)
        }
        tenant = self.runtime.tenants.get(self.tenant)
        limits = tenant.budgets if tenant else None
        return [*rows, *_rows("tenant", spent, limits or Budgets())]


def _rows(of: str, spent: Mapping[str, float], limits: Budgets) -> Iterator[BudgetRow]:
    """Every budget that there is, and everything else that is counted."""
    known: dict[str, float | None] = {
        one.name: getattr(limits, one.name) for one in fields(Budgets) if one.name not in _APART
    }
    known |= {f"effect.{effect}": limit for effect, limit in limits.by_effect.items()}
    for name in sorted({*known, *spent}):
        if known.get(name) is not None or name in spent:
            yield BudgetRow(of=of, name=name, spent=spent.get(name, 0.0), limit=known.get(name))
