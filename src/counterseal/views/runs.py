"""Runs: which there were, and what one was opened with, has spent, holds and called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from counterseal.audit import Event
from counterseal.call.hold import bounded_copy as within_bounds
from counterseal.errors import CountersealError
from counterseal.storage.base import Budgets, Calls, RunRecord
from counterseal.views.base import (
    NotThere,
    Page,
    bounded,
    findable,
    iso,
    read_cursor,
    write_cursor,
)
from counterseal.views.calls import CallRow, CallsDesk, CallSearch
from counterseal.views.story import call_row

__all__ = ["BudgetRow", "RunPage", "RunRow", "RunsDesk", "StateRow"]

_APART: Final = ("by_effect", "ask", "seconds", "repairs")
"""What is no counter: the clock runs by itself, and repairs are counted with refusals."""
_DAY: Final = 86_400
_AT_ONCE: Final = 100
_MOST_LOOKED_AT: Final = 2000
"""How many calls are looked at for one page of runs."""


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
class StateRow:
    """What a run's state holds under one key: redacted, as it was when a tool left it there."""

    key: str
    value: Any
    """Within bounds: of what is long, the beginning."""
    changed: int
    """How often it was."""
    untrusted: bool
    """Whether something from outside is in it."""

    def record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run in a list, with its latest call."""

    run_id: str
    started_at: float | None
    """None: it is not remembered any more, or never was more than a name."""
    objective: str | None
    turn: int | None
    latest: CallRow

    def record(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in self.__slots__},
            "started_at": iso(self.started_at),
            "latest": self.latest.record(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """A run: what it was opened with, what it has spent, what it holds, and its latest calls."""

    run_id: str
    started_at: float
    objective: str | None
    allowed_tools: Sequence[str] | None
    deadline: float | None
    turn: int
    pins: Mapping[str, str]
    budgets: Sequence[BudgetRow]
    state: Sequence[StateRow]
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
            "state": [row.record() for row in self.state],
            "calls": self.calls.record(),
        }


class RunsDesk(CallsDesk):
    """Runs of this tenant, for every viewer."""

    async def runs(
        self,
        *,
        agent: str | None = None,
        user: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[RunRow]:
        """Runs in which calls were answered, the latest first; of an agent's or a user's calls.

        A run stands where its latest call does, so that it is on one page only.
        """
        limit, place = bounded(limit), None if cursor is None else read_cursor(cursor, str)[0]
        if not findable(agent, user, place):
            return Page([])
        rows: list[RunRow] = []
        met: set[str] = set()
        looked, shown, full = 0, place, True
        while full:
            found = await self._latest(Calls(agent=agent, user=user, after=place, limit=_AT_ONCE))
            full = len(found) == _AT_ONCE
            for event_id, event in found:
                if looked == _MOST_LOOKED_AT:
                    return Page(rows, write_cursor((place,)))
                looked, place, run_id = looked + 1, event_id, event.caller.run_id
                if run_id in met:
                    continue
                met.add(run_id)
                last = await self._latest(Calls(agent=agent, user=user, run_id=run_id, limit=1))
                if last and last[0][0] == event_id:
                    if len(rows) == limit:
                        return Page(rows, write_cursor((shown,)))
                    rows.append(await self._run_row(event))
                    shown = event_id
        return Page(rows)

    async def _latest(self, search: Calls) -> Sequence[tuple[str, Event]]:
        try:
            return await self.runtime.store.calls(self.tenant, search)
        except CountersealError as error:
            if search.after is not None and str(error).startswith("after:"):
                raise ValueError("cursor: is none that was given out") from None
            raise

    async def _run_row(self, event: Event) -> RunRow:
        run_id = event.caller.run_id
        known = await self.runtime.store.find_run(self.tenant, run_id)
        return RunRow(
            run_id=run_id,
            started_at=None if known is None else known.started_at,
            objective=None if known is None else known.objective,
            turn=None if known is None else known.turn,
            latest=call_row(event),
        )

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
            state=[_state(found, key) for key in sorted(found.state)],
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


def _state(run: RunRecord, key: str) -> StateRow:
    return StateRow(
        key=key,
        value=within_bounds(run.state[key]),
        changed=run.state_versions.get(key, 0),
        untrusted=key in run.untrusted,
    )


def _rows(of: str, spent: Mapping[str, float], limits: Budgets) -> Iterator[BudgetRow]:
    """Every budget that there is, and everything else that is counted."""
    known: dict[str, float | None] = {
        one.name: getattr(limits, one.name) for one in fields(Budgets) if one.name not in _APART
    }
    known |= {f"effect.{effect}": limit for effect, limit in limits.by_effect.items()}
    for name in sorted({*known, *spent}):
        if known.get(name) is not None or name in spent:
            yield BudgetRow(of=of, name=name, spent=spent.get(name, 0.0), limit=known.get(name))
