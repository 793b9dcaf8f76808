"""Calls: the search, one call's whole story, and the runs that calls are part of."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response
from starlette.routing import Route

from counterseal.codes import Code
from counterseal.views import METRICS, BudgetRow, CallPage, CallSearch
from counterseal.views.base import WINDOWS
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
        page = await visit.view.calls.search(asked)
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
        names=[row.name for row in visit.view.tools.rows()],
        agents=sorted({grant.agent for grant in visit.view.tools.grants()}),
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
    page = await visit.view.calls.page(call_id)
    return await visit.render(
        "call.html",
        title=f"{page.call.tool}: {page.call.code or 'in progress'}"[:_SHORT],
        path="/calls",
        shows=address("v1", "calls", call_id),
        page=page,
        row=page.call,
        bars=bars(page.gates),
        gates_took=lasted(sum(gate.microseconds or 0 for gate in page.gates)),
        ran=_ran(page),
        follows=_follows(page),
        copies=[
            ("CLI", page.copy_as.cli),
            ("curl", page.copy_as.curl.replace("{base}", _origin(visit))),
        ],
    )


def _follows(page: CallPage) -> str | None:
    """What is another text when something has happened to the call; None once nothing will."""
    ledger, approval = page.ledger, page.approval
    waits = approval is not None and approval.status in ("waiting", "approved")
    due = any(one and one.state in _DUE for one in (page.verification, page.compensation))
    pending = ledger is not None and ledger.status == "PENDING"
    if page.call.code is not None and not (pending or waits or due):
        return None
    return f"{len(page.events)} {approval and approval.approved} {ledger and ledger.phase}"


def _origin(visit: Visit) -> str:
    """Where this server is reached: as the browser has it, if that is one of ours."""
    url, known = visit.request.base_url, sorted(visit.house.origins)
    here = f"{url.scheme}://{url.netloc}"
    return here if here in known or not known else known[0]


def _ran(page: CallPage) -> str:
    """How long the tool itself took, where that is kept."""
    extra = page.observation.model_extra if page.observation else None
    took = ((extra or {}).get("execution_metadata") or {}).get("latency_ms")
    return lasted(took * 1000) if isinstance(took, int | float) else ""


# --- a run ----------------------------------------------------------------------------------------


async def runs(visit: Visit) -> Response:
    """Runs, those with the latest calls first."""
    agent, user = visit.asked("agent"), visit.asked("user")
    with understood():
        page = await visit.view.runs.search(agent=agent, user=user, cursor=visit.asked("cursor"))
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
        agents=sorted({grant.agent for grant in visit.view.tools.grants()}),
    )


async def run(visit: Visit) -> Response:
    """What a run was opened with, has spent and holds, and its latest calls."""
    run_id: str = visit.request.path_params["run_id"]
    page = await visit.view.runs.page(run_id)
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
