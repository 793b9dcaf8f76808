"""Calls: the search, one call's whole story, and the runs that calls are part of."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from starlette.responses import Response
from starlette.routing import Route

from counterseal.codes import Code
from counterseal.views import METRICS, BudgetRow, CallPage, CallSearch
from counterseal.views.windows import WINDOWS
from counterseal.web.console.problems import understood
from counterseal.web.console.rendering import address
from counterseal.web.console.searching import call_search, field_time
from counterseal.web.console.timeline import bars, lasted
from counterseal.web.console.visit import House, Visit

__all__ = ["routes"]

_SHORT: Final = 60
_NAMES: Final = ("tool", "agent", "user", "run", "code", "metric", "part")
_OF_A_METRIC: Final = {"metric", "part", "since", "until"}
"""What the address of a number has in it: whoever follows it has not searched yet."""
_NARROWS: Final = (*_NAMES, "within", "since", "until")
_PER_TENANT: Final = "tenant"
_DUE: Final = ("due", "required")


def routes(house: House) -> list[Route]:
    """Ids are whatever callers chose, so they may have slashes in them."""
    return [
        house.get("/calls", search),
        house.get("/calls/{call_id:path}", show),
        house.get("/runs", runs),
        house.get("/runs/{run_id:path}", run),
    ]


# --- the search -----------------------------------------------------------------------------------


async def search(visit: Visit) -> Response:
    """Calls, newest first, by what is asked in the URL."""
    with understood():
        asked = call_search(visit.asked, visit.house.clock())
        page = await visit.desk.calls(asked)
    narrowed = {name: value for name, value in asked.query().items() if name != "cursor"}
    return await visit.render(
        "calls.html",
        title="Calls",
        shows=address("v1", "calls", **narrowed),
        rows=page.items,
        chosen=_chosen(visit, asked),
        behind=_behind(asked),
        narrowed=bool(narrowed),
        unfolded=bool(narrowed.keys() - (_OF_A_METRIC if asked.metric else set())),
        further=asked.cursor is not None,
        more=_more(visit, page.next),
        codes=[code.value for code in Code],
        windows=WINDOWS,
        names=[row.name for row in visit.desk.tools()],
        agents=sorted({grant.agent for grant in visit.desk.grants()}),
    )


def _chosen(visit: Visit, asked: CallSearch) -> dict[str, str]:
    """The fields as they were filled in. A window is kept as such, so that it goes on moving."""
    told = {name: visit.asked(name) or "" for name in _NAMES}
    within = visit.asked("within") or ""
    since = "" if within and not visit.asked("since") else field_time(asked.since)
    return told | {"within": within, "since": since, "until": field_time(asked.until, up=True)}


def _behind(asked: CallSearch) -> dict[str, str] | None:
    """Which number the rows are behind, in words; None: they are calls as such."""
    if asked.metric is None:
        return None
    formula = METRICS[asked.metric]
    over, _, under = formula.words.replace("_", " ").partition(" / ")
    says = {"denominator": under, "rest": f"{under}, without {over}"}.get(asked.part or "", over)
    return {"title": formula.title, "says": says}


def _more(visit: Visit, cursor: str | None) -> str | None:
    if cursor is None:
        return None
    return address("calls", **{name: visit.asked(name) for name in _NARROWS}, cursor=cursor)


# --- one call -------------------------------------------------------------------------------------


async def show(visit: Visit) -> Response:
    """Everything that is on record about it."""
    call_id: str = visit.request.path_params["call_id"]
    page = await visit.desk.call(call_id)
    return await visit.render(
        "call.html",
        title=f"{page.row.tool}: {page.row.code or 'under way'}"[:_SHORT],
        path="/calls",
        shows=address("v1", "calls", call_id),
        page=page,
        row=page.row,
        bars=bars(page.gates),
        gates_took=lasted(sum(gate.microseconds or 0 for gate in page.gates)),
        ran=_ran(page),
        votes=[_vote(dict(vote)) for vote in page.votes],
        events=[_event(dict(event)) for event in page.events],
        follows=_follows(page),
        copies=[("CLI", page.cli), ("curl", page.curl.replace("{base}", _origin(visit)))],
    )


def _follows(page: CallPage) -> str | None:
    """What is another text when something has happened to the call; None once nothing will."""
    ledger, approval = page.ledger or {}, page.approval
    looked, undone = page.verification or {}, page.compensation or {}
    waits = approval is not None and approval.status in ("waiting", "approved")
    due = looked.get("state") in _DUE or undone.get("state") in _DUE
    if page.row.code is not None and ledger.get("status") != "PENDING" and not (waits or due):
        return None
    return f"{len(page.events)} {approval and approval.approved} {ledger.get('phase')}"


def _origin(visit: Visit) -> str:
    """Where this server is reached: as the browser has it, if that is one of ours."""
    url, known = visit.request.base_url, sorted(visit.house.origins)
    here = f"{url.scheme}://{url.netloc}"
    return here if here in known or not known else known[0]


def _ran(page: CallPage) -> str:
    """How long the tool itself took, where that is kept."""
    told = (page.observation or {}).get("execution_metadata") or {}
    took = told.get("latency_ms")
    return lasted(took * 1000) if isinstance(took, int | float) else ""


def _vote(vote: dict[str, Any]) -> dict[str, Any]:
    """Whatever is stored, with all that the page asks for."""
    voted = vote.get("voted_at")
    return {
        "approver": vote.get("approver"),
        "decision": vote.get("decision"),
        "said": vote.get("comment") or vote.get("justification") or "",
        "at": voted if isinstance(voted, int | float) else None,
    }


def _event(record: dict[str, Any]) -> dict[str, Any]:
    """The record, and its time as a number."""
    at = datetime.fromisoformat(record["occurred_at"]).timestamp()
    return {"record": record, "type": record["type"], "decision": record["decision"], "at": at}


# --- a run ----------------------------------------------------------------------------------------


async def runs(visit: Visit) -> Response:
    """Runs, those with the latest calls first."""
    agent, user = visit.asked("agent"), visit.asked("user")
    with understood():
        page = await visit.desk.runs(agent=agent, user=user, cursor=visit.asked("cursor"))
    more = None
    if page.next is not None:
        more = address("runs", agent=agent, user=user, cursor=page.next)
    return await visit.render(
        "runs.html",
        title="Runs",
        path="/calls",
        shows=address("v1", "runs", agent=agent, user=user),
        rows=page.items,
        chosen={"agent": agent or "", "user": user or ""},
        narrowed=bool(agent or user),
        further=visit.asked("cursor") is not None,
        more=more,
        agents=sorted({grant.agent for grant in visit.desk.grants()}),
    )


async def run(visit: Visit) -> Response:
    """What a run was opened with, has spent and holds, and its latest calls."""
    run_id: str = visit.request.path_params["run_id"]
    page = await visit.desk.run(run_id)
    return await visit.render(
        "run.html",
        title=f"Run {run_id}"[:_SHORT],
        path="/calls",
        shows=address("v1", "runs", run_id),
        page=page,
        rows=page.calls.items,
        more=None
        if page.calls.next is None
        else address("calls", run=run_id, cursor=page.calls.next),
        own=[_spent(row) for row in page.budgets if row.of != _PER_TENANT],
        shared=[_spent(row) for row in page.budgets if row.of == _PER_TENANT],
    )


def _spent(row: BudgetRow) -> dict[str, Any]:
    share = None if not row.limit else min(100.0, round(row.spent / row.limit * 100, 1))
    full = row.limit is not None and row.spent >= row.limit
    return {"name": row.name, "spent": row.spent, "limit": row.limit, "share": share, "full": full}
