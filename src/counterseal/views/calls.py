"""Calls and the runs they belong to: searches, a run's page, and what was spent of budgets."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Any, Final, Literal

from pydantic import Field

from counterseal.accounts.users import Role
from counterseal.audit import Event, EventType
from counterseal.audit.chain import micros, place_of
from counterseal.audit.events import filed
from counterseal.call.hold import bounded_copy as within_bounds
from counterseal.codes import Code
from counterseal.contract.money import limits_for
from counterseal.errors import CountersealError, RegistryError
from counterseal.gates.budget import limit_source
from counterseal.ledger.records import Budgets, RunRecord
from counterseal.ledger.requests import CallFilter, EventFilter
from counterseal.operations.attention import COMPENSATION_AGENT
from counterseal.operations.auditor import Owner, erase_arguments, find_call, read_arguments
from counterseal.proposal import System
from counterseal.registry import Grant
from counterseal.views.approvals import ApprovalRow
from counterseal.views.audit_log import EventRow, event_row
from counterseal.views.base import (
    MAX_PAGE,
    JsonValue,
    Moment,
    NotFoundError,
    Number,
    Page,
    Position,
    RowModel,
    TenantSection,
    cursor_error,
    iso,
    page_size,
    read_cursor,
    scanned_page,
    storable,
    utc,
    write_cursor,
)
from counterseal.views.call_page import (
    ArgumentsRow,
    CallPage,
    CallRow,
    Events,
    ModelInput,
    arguments_row,
    call_page,
    call_row,
    last_event,
    without_decisions,
)
from counterseal.views.metrics import METRICS, PARTS, Span, Test, counted_events, gauge

# --- searching calls ------------------------------------------------------------------------------

FILTERS: Final = {
    **{name: name for name in ("tool", "version", "agent", "user", "code", "external_ref")},
    "run": "run_id",
    "caller_call_id": "caller_call_id",
    **{name: f"{name}_id" for name in ("workflow", "conversation", "session")},
}
"""The fields of a search that a call must match exactly, each with its name in a row."""
_TEXTS: Final = (*FILTERS, "metric", "part")
_MAX_TIME: Final = 1e11
"""Seconds since the epoch: about three thousand years."""
_DAY: Final = 86_400.0
_MAX_KEY: Final = 1000
_MAX_EVENTS: Final = 500
"""Events of one call: in earlier versions, many calls could have the same id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSearch:
    """A search of calls. A field that is None matches every call."""

    tool: str | None = None
    version: str | None = None
    """The version of the contract."""
    agent: str | None = None
    user: str | None = None
    run: str | None = None
    code: str | None = None
    """One of the 21 codes, such as SUCCESS or PERMISSION_DENIED."""
    external_ref: str | None = None
    """The destination's own reference, such as the id of a payment."""
    caller_call_id: str | None = None
    """The caller's own id of the call, which several calls may have."""
    workflow: str | None = None
    conversation: str | None = None
    session: str | None = None
    metric: str | None = None
    """The name of a metric: one row for each event that it counts, so that the number of rows is
    the metric's number."""
    part: str | None = None
    """Of the metric: numerator (the default), denominator or rest."""
    since: float | None = None
    """Answered at this time or later, in seconds since the epoch."""
    until: float | None = None
    """Answered before this time."""
    cursor: str | None = None
    limit: int = 50

    def query(self) -> dict[str, str]:
        """Return the search as URL parameters, without those that match every call."""
        values = {name: getattr(self, name) for name in _TEXTS}
        values |= {"since": iso(self.since), "until": iso(self.until), "cursor": self.cursor}
        if self.limit != CallSearch.__dataclass_fields__["limit"].default:
            values["limit"] = str(self.limit)
        return {name: value for name, value in values.items() if value is not None}

    def checked(self) -> CallSearch:
        """Return the search with a valid limit. ValueError names a field that is wrong."""
        if self.code is not None and self.code not in Code.__members__:
            raise ValueError(f"code: {ascii(self.code)[:40]} is not one of the codes")
        self.event_test()
        for name in ("since", "until"):
            moment = getattr(self, name)
            if moment is not None and not (isfinite(moment) and abs(moment) < _MAX_TIME):
                raise ValueError(f"{name}: expected seconds since the epoch")
        return replace(self, limit=page_size(self.limit))

    def event_test(self) -> Test | None:
        """Return a test for the events that the metric counts; None without a metric.

        ValueError for an unknown metric, or a part that cannot be listed.
        """
        if self.metric is None:
            if self.part is not None:
                raise ValueError("part: needs a metric; pass its name as metric")
            return None
        if self.metric not in METRICS:
            raise ValueError(f"metric: {ascii(self.metric)[:60]} is not one of the metrics")
        part = self.part or PARTS[0]
        test = METRICS[self.metric].part(part) if part in PARTS else None
        if test is None:
            raise ValueError(f"part: {self.metric} has no {ascii(part)[:40]} that can be listed")
        return test


class CallViews(TenantSection):
    """Calls of a tenant, for every viewer."""

    async def search(self, search: CallSearch | None = None) -> Page[CallRow]:
        """Return calls, newest first. ValueError names a field of the search that is wrong."""
        wanted = (search or CallSearch()).checked()
        after = None if wanted.cursor is None else read_cursor(wanted.cursor, str)[0]
        exact = {row: getattr(wanted, name) for name, row in FILTERS.items()}
        if not storable(*exact.values(), after):
            return Page[CallRow](items=[], next=None)
        test = wanted.event_test()
        if test is not None:
            return await self._counted(wanted, test, after)
        query = CallFilter(
            **exact, since=wanted.since, until=wanted.until, after=after, limit=wanted.limit + 1
        )
        events = await self._latest_calls(query)
        shown = events[: wanted.limit]
        more = write_cursor(shown[-1][0]) if len(events) > wanted.limit else None
        return Page[CallRow](items=[call_row(event) for _, event in shown], next=more)

    async def _counted(self, wanted: CallSearch, test: Test, after: str | None) -> Page[CallRow]:
        """Return a row for each event that a metric counts, newest first."""
        until = self.runtime.clock() + _DAY if wanted.until is None else wanted.until
        end = micros(until)
        if after is not None:
            try:
                end = min(end, place_of(after)[0] + 1)
            except CountersealError:
                raise cursor_error() from None
        span = Span(micros(wanted.since or 0.0), end)
        exact = [(getattr(wanted, name), own) for name, own in FILTERS.items()]

        async def candidates() -> AsyncGenerator[tuple[Position, CallRow | None]]:
            events = counted_events(self.runtime.store, self.tenant, test, span, after)
            async with aclosing(events):
                async for event_id, event in events:
                    row = call_row(event)
                    fits = all(value in (None, getattr(row, own)) for value, own in exact)
                    yield (event_id,), row if fits else None

        rows, more = await scanned_page(candidates(), wanted.limit)
        return Page[CallRow](items=rows, next=more)

    async def page(self, call_id: str, owner: Owner | None = None) -> CallPage:
        """Return the record of a call. Raises NotFoundError or AmbiguousCallError.

        `call_id` is either id of the call, here and below; `owner` limits the search for it.
        """
        return await call_page(self.runtime, self.tenant, await self._existing(call_id, owner))

    async def arguments(self, call_id: str) -> ArgumentsRow:
        """Return the proposal of a call. Raises NotFoundError for an unknown call, or NotKeptError.

        Requires the role operator, and that the person has looked is on record.
        """
        self.require(Role.OPERATOR)
        call_id = (await self._existing(call_id))[0][1].caller.call_id
        runtime, by, now = self.runtime, self.person.name, self.runtime.clock()
        capture = await read_arguments(
            runtime.store, runtime.vault, self.tenant, call_id, by=by, now=now
        )
        return arguments_row(call_id, capture)

    async def erase_arguments(self, call_id: str, reason: str) -> None:
        """Delete what was kept of a call's proposals, on record. Requires the role admin."""
        self.require(Role.ADMIN)
        call_id = (await self._existing(call_id))[0][1].caller.call_id
        runtime, by, now = self.runtime, self.person.name, self.runtime.clock()
        await erase_arguments(runtime.store, self.tenant, call_id, by=by, reason=reason, now=now)

    async def with_approval(self, approval: ApprovalRow) -> CallRow | None:
        """Return the call that was made with an approval, or refused; None before there is one."""
        search = CallSearch(run=approval.run_id, tool=approval.tool, limit=MAX_PAGE)
        for call in (await self.search(search)).items:
            made = call.type != EventType.APPROVAL_REQUIRED
            if made and call.approval_id == approval.approval_id:
                return call
        for _, event in reversed(await self._events(approval.call_id)):
            if event.type is EventType.APPROVAL_NOT_EXECUTED:
                refused = await self._events(str(event.body["by"]))
                return call_row(last_event(refused)) if refused else None
        return None

    async def events(self, call_id: str) -> list[EventRow]:
        """Return a call's events, oldest first. Raises NotFoundError if there are none."""
        return [event_row(event_id, event) for event_id, event in await self._existing(call_id)]

    async def _existing(self, call_id: str, owner: Owner | None = None) -> Events:
        own = await self._own_id(call_id, owner)
        events = await self._events(own) if own is not None else ()
        if not events:
            raise NotFoundError("call")
        return events

    async def _own_id(self, call_id: str, owner: Owner | None = None) -> str | None:
        if not storable(call_id):
            return None
        return await find_call(self.runtime.store, self.tenant, call_id, owner)

    async def _events(self, call_id: str) -> Events:
        latest = EventFilter(call_id=call_id, limit=_MAX_EVENTS, newest_first=True)
        return list(reversed(await self.runtime.store.search(self.tenant, latest)))

    async def observation(
        self,
        *,
        call_id: str | None = None,
        key: str | None = None,
        tool: str | None = None,
        owner: Owner | None = None,
    ) -> dict[str, Any]:
        """Return an observation's record, by its call or its ledger key. Raises NotFoundError.

        With a tool, `key` is the idempotency key that the caller chose. The record is that of
        `KeptObservation`, apart from `approval_url`.
        """
        store, received = self.runtime.store, None
        if call_id is not None:
            received = await self._by_call(await self._own_id(call_id, owner) or call_id)
        elif key is not None:
            ledger_key = key if tool is None else f"call:{tool}:{key}"
            if ledger_key.isprintable() and len(ledger_key) <= _MAX_KEY:
                received = ModelInput.from_ledger(await store.look_up(self.tenant, ledger_key))
        if received is None or received.record is None:
            raise NotFoundError("observation")
        record = without_decisions(received.record)
        return {"caller_call_id": None, **record, "text": received.text, "cut": received.cut}

    async def _by_call(self, call_id: str) -> ModelInput | None:
        if not storable(call_id):
            return None
        events = await self._events(call_id)
        end = last_event(events) if events else None
        if end is not None and "seen" in end.body:
            first = events[0][1].caller
            if (first.agent, first.user) != (end.caller.agent, end.caller.user):
                return None  # two callers have used the same id
            return await ModelInput.from_vault(self.runtime, self.tenant, end)
        for _, event in reversed(events):  # the call whose result answered this one
            if filed(event.type, event.decision, event.body)[0] and "of" in event.body:
                call_id = str(event.body["of"])
                break
        found = await self.runtime.store.look_up_call(self.tenant, call_id)
        return ModelInput.from_ledger(found[0]) if len(found) == 1 else None


# --- rows of runs ---------------------------------------------------------------------------------


class BudgetRow(RowModel):
    """One budget: its limit, and how much of it was spent."""

    of: Literal["run", "tenant"]
    name: str
    spent: Number
    limit: Number | None = Field(description="Null: no limit. 0: nothing is granted.")
    limit_from: str | None = Field(description="The field that changes the limit.")
    currency: str | None = Field(description="Of an amount of money, which is in units.")


class StateRow(RowModel):
    """One key of a run's state, redacted. Long values are cut."""

    key: str
    value: JsonValue
    changed: int
    untrusted: bool = Field(description="Whether it holds data from an untrusted source.")


class RunRow(RowModel):
    """A run, with its latest call."""

    run_id: str
    started_at: Moment | None
    objective: str | None
    turn: int | None
    latest: CallRow


class RunPage(RowModel):
    """A run: its settings, what it has spent, its state, and its latest calls."""

    run_id: str
    started_at: Moment
    objective: str | None
    allowed_tools: list[str] | None
    deadline: Moment | None
    turn: int
    pins: dict[str, str]
    budgets: list[BudgetRow]
    state: list[StateRow] = Field(description="For people.")
    calls: Page[CallRow]


# --- runs -----------------------------------------------------------------------------------------

_NOT_COUNTERS: Final = ("by_effect", "ask", "repairs", "money", "cost")
"""Fields that are no counter of this name: repairs are counted with refusals."""
_MONEY: Final = re.compile(r"(money|cost)\..+\.[A-Z]{3}", re.DOTALL)
"""The name of a counter of money."""
_BATCH: Final = 100


class RunViews(TenantSection):
    """Runs of a tenant, for every viewer."""

    async def search(
        self,
        *,
        agent: str | None = None,
        user: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[RunRow]:
        """Return runs with answered calls, latest first; of one agent's or user's calls.

        A run's position is that of its latest call, so that it is on one page only.
        """
        limit, position = page_size(limit), None if cursor is None else read_cursor(cursor, str)[0]
        if not storable(agent, user, position):
            return Page[RunRow](items=[], next=None)

        async def candidates() -> AsyncGenerator[tuple[Position, RunRow | None]]:
            known: set[str] = set()
            query, full = CallFilter(agent=agent, user=user, after=position, limit=_BATCH), True
            while full:
                batch = await self._latest_calls(query)
                full = len(batch) == _BATCH
                for event_id, event in batch:
                    run_id, row = event.caller.run_id, None
                    if run_id not in known:
                        known.add(run_id)
                        own = CallFilter(agent=agent, user=user, run_id=run_id, limit=1)
                        latest = await self._latest_calls(own)
                        if latest and latest[0][0] == event_id:
                            row = await self._row(event)
                    yield (event_id,), row
                    query = query._replace(after=event_id)

        rows, more = await scanned_page(candidates(), limit)
        return Page[RunRow](items=rows, next=more)

    async def _row(self, event: Event) -> RunRow:
        run = await self.runtime.store.find_run(self.tenant, event.caller.run_id)
        return RunRow(
            run_id=event.caller.run_id,
            started_at=None if run is None else utc(run.started_at),
            objective=None if run is None else run.objective,
            turn=None if run is None else run.turn,
            latest=call_row(event),
        )

    async def page(self, run_id: str) -> RunPage:
        """Return a run with its budgets, state and latest calls. Raises NotFoundError."""
        run = await self._find(run_id)
        calls = CallViews(self.runtime, self.person)
        return RunPage(
            run_id=run_id,
            started_at=utc(run.started_at),
            objective=run.objective,
            allowed_tools=None if run.allowed_tools is None else sorted(run.allowed_tools),
            deadline=None if run.deadline is None else utc(run.deadline),
            turn=run.turn,
            pins=dict(run.pins),
            budgets=await self._budgets(run),
            state=[
                StateRow(
                    key=key,
                    value=within_bounds(run.state[key]),
                    changed=run.state_versions.get(key, 0),
                    untrusted=key in run.untrusted,
                )
                for key in sorted(run.state)
            ],
            calls=await calls.search(CallSearch(run=run_id)),
        )

    async def budgets(self, run_id: str | None = None) -> list[BudgetRow]:
        """Return the spending of the tenant today, and of a run. Raises NotFoundError."""
        return await self._budgets(None if run_id is None else await self._find(run_id))

    async def _find(self, run_id: str) -> RunRecord:
        run = await self.runtime.store.find_run(self.tenant, run_id) if storable(run_id) else None
        if run is None:
            raise NotFoundError("run")
        return run

    async def _budgets(self, run: RunRecord | None) -> list[BudgetRow]:
        run_id, now = "" if run is None else run.run_id, self.runtime.clock()
        memory = await self.runtime.store.recall(self.tenant, run_id, None)
        rows: list[BudgetRow] = []
        tenant = self.runtime.tenants.get(self.tenant)
        daily = (tenant.budgets if tenant else None) or Budgets()
        if run is not None:
            spent = {**memory.run_counters, "seconds": now - run.started_at}
            if run.budgets.seconds is None:
                del spent["seconds"]
            calls = await self._latest_calls(CallFilter(run_id=run.run_id, limit=_BATCH))
            by_tool = {f"tool/{event.caller.tool}": event for _, event in reversed(calls)}
            per_tool = {name: self._tool_limit(event) for name, event in by_tool.items()}
            limits = {**_limits(run.budgets), **per_tool}
            rows += _budget_rows("run", spent, limits)
            rows += self._money_rows("run", spent, {"run": run.budgets, "tenant": daily})
        today = f"/{int(now // _DAY)}"
        spent_today = {
            name.removesuffix(today): amount
            for name, amount in memory.tenant_counters.items()
            if name.endswith(today)
        }
        rows += _budget_rows("tenant", spent_today, _limits(daily))
        return [*rows, *self._money_rows("tenant", spent_today, {"tenant": daily})]

    def _money_rows(
        self,
        of: Literal["run", "tenant"],
        spent: Mapping[str, float],
        declared: Mapping[str, Budgets],
    ) -> Iterator[BudgetRow]:
        """Yield what was spent of money and cost, by window and currency.

        Resources are left out, because there may be many.
        """
        totals = ("run",) if of == "run" else ("day",)
        names = {name for name in spent if _MONEY.fullmatch(name)} | {
            f"{kind}.{key}.{currency}"
            for budgets in declared.values()
            for kind in ("money", "cost")
            for key, limits in getattr(budgets, kind).items()
            for currency in limits
            if key in totals or (of == "tenant" and ":" in key)
        }
        for name in sorted(name for name in names if "resource:" not in name):
            kind, key, currency = name.split(".")[0], name[name.index(".") + 1 : -4], name[-3:]
            window, _, subject = key.partition(":")
            found: list[tuple[int, str]] = [
                (limit, f"{whose}.{kind}.{field}")
                for whose, budgets in declared.items()
                for field, limit in limits_for(getattr(budgets, kind), window, subject, currency)
                if of == "tenant" or window == "run"
            ]
            versions = self.runtime.registry.versions(subject) if window == "tool" else ()
            for record in versions[:1]:
                own = getattr(record.contract, kind) or {}
                total = "run" if of == "run" else "day"
                found += [
                    (limit, f"tool.{kind}.{field}")
                    for field, limit in limits_for(own, total, "", currency)
                ]
            limit, budget = min(found, default=(None, ""))
            yield BudgetRow(
                of=of,
                name=name,
                spent=spent.get(name, 0) / 10**6,
                limit=None if limit is None else limit / 10**6,
                limit_from=None if limit is None else limit_source(budget),
                currency=currency,
            )

    def _tool_limit(self, event: Event) -> float | None:
        """Return the limit for the agent of a call: its grant's, else the contract's."""
        registry, caller = self.runtime.registry, event.caller
        try:
            record = registry.get(caller.tool, caller.version)
        except RegistryError:
            return None
        now, grants = utc(self.runtime.clock()), registry.grants_of(caller.agent, caller.tool)
        if caller.agent == COMPENSATION_AGENT:
            system = System(covered=False, tenant=self.tenant, agent=caller.agent)
            grant = registry.authorize(record, system)
            grants = (grant,) if isinstance(grant, Grant) else ()
        for grant in grants:
            in_force = grant.expires_at is None or grant.expires_at > now
            if in_force and grant.tenant in (None, self.tenant) and grant.covers(record.parsed):
                return grant.calls_per_run(record.contract)
        return None


def _limits(budgets: Budgets) -> dict[str, float | None]:
    """Return the limits by the name of their counter."""
    names = (field.name for field in fields(Budgets) if field.name not in _NOT_COUNTERS)
    by_effect = {f"effect.{effect}": limit for effect, limit in budgets.by_effect.items()}
    return {**{name: getattr(budgets, name) for name in names}, **by_effect}


def _budget_rows(
    of: Literal["run", "tenant"], spent: Mapping[str, float], limits: Mapping[str, float | None]
) -> Iterator[BudgetRow]:
    """Yield every budget with a limit, and everything else that was counted."""
    for name in sorted({*limits, *spent}):
        limit = limits.get(name)
        if (limit is not None or name in spent) and not _MONEY.fullmatch(name):
            source = None if limit is None else limit_source(f"{of}.{name.replace('/', '.', 1)}")
            amount = spent.get(name, 0)
            yield BudgetRow(
                of=of, name=name, spent=amount, limit=limit, limit_from=source, currency=None
            )


def budget_lines(budgets: Mapping[str, Sequence[BudgetRow]]) -> str:
    """Return what tenants have spent of their budgets today in Prometheus' text format."""
    samples = [
        ({"tenant": tenant, "budget": row.name, "currency": row.currency or ""}, row)
        for tenant, rows in budgets.items()
        for row in rows
    ]
    spent = [(labels, row.spent) for labels, row in samples]
    limits = [(labels, row.limit) for labels, row in samples]
    lines = gauge("budget_spent", "What is spent today, in UTC, by budget.", spent)
    lines += gauge("budget_limit", "What is allowed a day, by budget.", limits)
    return "".join(f"{line}\n" for line in lines)
