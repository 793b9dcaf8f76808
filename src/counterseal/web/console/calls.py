"""Pages about calls: the search, one call, runs, and what other rules would have decided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from starlette.responses import Response
from starlette.routing import Route

from counterseal.accounts import Role
from counterseal.approvals.display import Part
from counterseal.codes import Code
from counterseal.contract.money import money_text
from counterseal.documents import read_yaml
from counterseal.errors import ContractError
from counterseal.evaluation.replay import Rules
from counterseal.evaluation.what_if import ReplayReport, replay
from counterseal.ledger.requests import EventFilter
from counterseal.operations.auditor import NOT_CAPTURED as _NOT_KEPT
from counterseal.operations.auditor import AmbiguousCallError, NotKeptError, note_export
from counterseal.policy import Policy, PolicyError
from counterseal.views.base import WINDOWS
from counterseal.views.call_page import ArgumentsRow, GateRow
from counterseal.views.calls import FILTERS, BudgetRow, CallSearch
from counterseal.views.metrics import METRICS
from counterseal.web.console.page_request import ConsoleState, PageRequest, form_time
from counterseal.web.console.rendering import WORDS, address

_MAX_TITLE: Final = 60


def routes(state: ConsoleState) -> list[Route]:
    """Return the pages. Callers choose ids, so an id may contain slashes."""
    return [
        state.get("/calls", search),
        state.post("/calls/{call_id:path}/arguments", show_arguments),
        state.get("/calls/{call_id:path}", show),
        state.get("/what-if", ask_what_if),
        state.post("/what-if", what_if),
        state.get("/runs", runs),
        state.get("/runs/{run_id:path}", run),
    ]


# --- the search -----------------------------------------------------------------------------------

_TEXTS: Final = (*FILTERS, "metric", "part")
_OF_A_METRIC: Final = {"metric", "part", "since", "until"}
"""Parameters of a link from a metric, which leave the search form folded."""


def call_search(request: PageRequest) -> CallSearch:
    """Return the search that the URL asks for. ValueError names a wrong parameter."""
    since, until = request.time_range()
    texts: dict[str, Any] = {name: request.parameter(name) for name in (*_TEXTS, "cursor")}
    return CallSearch(**texts, since=since, until=until).checked()


async def search(request: PageRequest) -> Response:
    """Show calls, newest first."""
    wanted = call_search(request)
    page = await request.view.calls.search(wanted)
    filters = {name: value for name, value in wanted.query().items() if name != "cursor"}
    parameters = {name: request.parameter(name) for name in (*_TEXTS, "within", "since", "until")}
    return await request.render(
        "calls.html",
        title="Calls",
        shows=address("v1", "calls", **filters),
        rows=page.items,
        chosen=_chosen(request, wanted),
        behind=_metric(wanted),
        filtered=bool(filters),
        unfolded=bool(filters.keys() - (_OF_A_METRIC if wanted.metric else set())),
        further=wanted.cursor is not None,
        more=None if page.next is None else address("calls", **parameters, cursor=page.next),
        codes=[code.value for code in Code],
        windows=WINDOWS,
        names=[row.name for row in request.view.tools.rows()],
        agents=_agents(request),
    )


def _agents(request: PageRequest) -> list[str]:
    return sorted({grant.agent for grant in request.view.tools.grants()})


def _chosen(request: PageRequest, wanted: CallSearch) -> dict[str, str]:
    """Return the form's fields as filled in. A window is kept as such, so that it moves on."""
    texts = {name: request.parameter(name) or "" for name in _TEXTS}
    within = request.parameter("within") or ""
    since = "" if within and not request.parameter("since") else form_time(wanted.since)
    return texts | {"within": within, "since": since, "until": form_time(wanted.until, up=True)}


def _metric(wanted: CallSearch) -> dict[str, str] | None:
    """Return the metric whose events are listed, in words; None without one."""
    if wanted.metric is None:
        return None
    formula = METRICS[wanted.metric]
    over, _, under = formula.words.replace("_", " ").partition(" / ")
    parts = {"denominator": under, "rest": f"{under}, without {over}"}
    return {"title": formula.title, "part": parts.get(wanted.part or "", over)}


# --- one call -------------------------------------------------------------------------------------


async def show(request: PageRequest) -> Response:
    """Show everything on record about a call, or the calls that have the caller's id."""
    try:
        return await _call(request)
    except AmbiguousCallError as error:
        return await request.render(
            "error.html",
            title="Several calls have this id",
            message="It is the caller's own id. Choose a call.",
            choices=error.choices,
            status=409,
        )


async def show_arguments(request: PageRequest) -> Response:
    """Show the call with its arguments. That the person has looked goes on record."""
    try:
        return await _call(request, await request.view.calls.arguments(request.segment("call_id")))
    except NotKeptError as error:
        return await _call(request, not_kept=str(error))


async def _call(
    request: PageRequest, arguments: ArgumentsRow | None = None, not_kept: str = ""
) -> Response:
    page = await request.view.calls.page(request.segment("call_id"))
    ledger, approval = page.ledger, page.approval
    # A text that changes whenever the page does.
    state = f"{len(page.events)} {approval and approval.approved} {ledger and ledger.phase}"
    kept = (page.observation.model_extra if page.observation else None) or {}
    took = (kept.get("execution_metadata") or {}).get("latency_ms")
    # The server's address as the browser has it, if that is one of ours.
    url, known = request.http.base_url, sorted(request.state.origins)
    base = f"{url.scheme}://{url.netloc}"
    if known and base not in known:
        base = known[0]
    return await request.render(
        "call.html",
        title=f"{page.call.tool}: {page.call.code or 'in progress'}"[:_MAX_TITLE],
        path="/calls",
        shows=address("v1", "calls", page.call.call_id),
        page=page,
        row=page.call,
        arguments=arguments,
        arguments_not_kept=not_kept or _NOT_KEPT.get(page.asked.not_kept or "", ""),
        may_read=request.person.may(Role.OPERATOR),
        bars=gate_bars(page.gates),
        gates_took=duration(sum(gate.microseconds or 0 for gate in page.gates)),
        tool_took=duration(took * 1000) if isinstance(took, int | float) else "",
        live_key=state if page.in_progress else None,
        copies=[("CLI", page.copy_as.cli), ("curl", page.copy_as.curl.replace("{base}", base))],
    )


# --- gates as bars --------------------------------------------------------------------------------

_TONES: Final = {"allow": "ok", "deny": "bad", "require_approval": "warn"}
_MIN_WIDTH: Final = 0.7
"""Percent, so that a gate that took no time can be seen."""


class GateBar(NamedTuple):
    """One gate. `x` and `width` are percent of the time of all gates."""

    row: GateRow
    tone: str
    x: float
    width: float
    took: str


def duration(microseconds: float | None) -> str:
    """Return a duration for people: 4.5 µs, 1.2 ms, 3.4 s."""
    if microseconds is None:
        return ""
    for size, unit in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= size:
            return f"{microseconds / size:,.2f} {unit}"
    return f"{microseconds:.1f} µs"


def gate_bars(gates: Sequence[GateRow]) -> list[GateBar]:
    """Return a bar for each gate, which begins where the one before it ended."""
    total = sum(gate.microseconds or 0 for gate in gates) or 1.0
    bars, begin = [], 0.0
    for gate in gates:
        share = (gate.microseconds or 0) / total * 100
        width = 0.0 if gate.verdict is None else max(share, _MIN_WIDTH)
        tone = _TONES.get(gate.verdict or "", "dim")
        x, took = min(begin, 100 - width), duration(gate.microseconds)
        bars.append(GateBar(gate, tone, round(x, 2), round(width, 2), took))
        begin += share
    return bars


# --- runs -----------------------------------------------------------------------------------------


async def runs(request: PageRequest) -> Response:
    """Show runs, those with the latest calls first."""
    agent, user = request.parameter("agent"), request.parameter("user")
    cursor = request.parameter("cursor")
    page = await request.view.runs.search(agent=agent, user=user, cursor=cursor)
    more = page.next and address("runs", agent=agent, user=user, cursor=page.next)
    return await request.render(
        "runs.html",
        title="Runs",
        path="/calls",
        shows=address("v1", "runs", agent=agent, user=user),
        rows=page.items,
        chosen={"agent": agent or "", "user": user or ""},
        filtered=bool(agent or user),
        further=cursor is not None,
        more=more,
        agents=_agents(request),
    )


async def run(request: PageRequest) -> Response:
    """Show a run: its settings, what it has spent, its state, and its latest calls."""
    run_id = request.segment("run_id")
    page = await request.view.runs.page(run_id)
    more = page.calls.next
    return await request.render(
        "run.html",
        title=f"Run {run_id}"[:_MAX_TITLE],
        path="/calls",
        shows=address("v1", "runs", run_id),
        page=page,
        rows=page.calls.items,
        more=None if more is None else address("calls", run=run_id, cursor=more),
        own=[_budget(row) for row in page.budgets if row.of == "run"],
        shared=[_budget(row) for row in page.budgets if row.of == "tenant"],
    )


def _budget(row: BudgetRow) -> dict[str, Any]:
    share = None if not row.limit else min(100.0, round(row.spent / row.limit * 100, 1))
    full = row.limit is not None and row.spent >= row.limit
    of_tool, of_effect = row.name.startswith("tool/"), row.name.startswith("effect.")
    title = WORDS["budgets"].get(row.name, row.name)
    if of_tool or of_effect:
        subject = row.name[len("tool/") :] if of_tool else row.name[len("effect.") :]
        title = f"Calls of {subject}" if of_tool else f"Calls with the effect {subject}"
    if row.currency:
        kind, key = row.name.split(".")[0], row.name[row.name.index(".") + 1 : -4]
        what = "Money spent" if kind == "money" else "Cost"
        subject = " of ".join(reversed([part.replace(":", " ") for part in key.split(".")]))
        title = what if key in ("run", "day") else f"{what}, {subject}"
    hint: list[Part] = []
    if full and row.limit_from is not None:
        hint.append(Part("Used up. " if row.limit else "Nothing is granted. "))
        hint.append(Part("An operator can raise "))
        field = enumerate(row.limit_from.split("`"))
        hint += [Part(text, value=number % 2 == 1) for number, text in field if text]
    return {
        "row": row,
        "title": title,
        "of_tool": of_tool,
        "share": share,
        "spent": _amount(row.spent, row.currency),
        "limit": "" if row.limit is None else _amount(row.limit, row.currency),
        "full": full,
        "hint": hint,
    }


def _amount(number: float, currency: str | None) -> str:
    """Return what was spent, or may be, as people read it."""
    return money_text(round(number * 10**6), currency) if currency else f"{number:,.6g}"


# --- other rules ----------------------------------------------------------------------------------

_MOST_REPLAYED: Final = 20_000
"""Calls that one page decides again; `counterseal replay` has no limit."""
_AT_ONCE: Final = 50
"""Calls between which other requests are answered."""
_DAYS: Final = {"1": "the last day", "7": "the last 7 days", "30": "the last 30 days"}
_LONGEST_POLICY: Final = 60_000


async def ask_what_if(
    request: PageRequest, error: str = "", report: ReplayReport | None = None
) -> Response:
    """Show the form for a policy, and what it would have decided."""
    may = request.person.may(Role.OPERATOR)
    return await request.render(
        "what_if.html",
        title="What if",
        path="/calls",
        status=422 if error else 200,
        may=may,
        policy=request.form.get("policy", ""),
        days=request.form.get("days", "7"),
        choices=_DAYS,
        sequential="sequential" in request.form,
        kinds=WORDS["what_if"],
        error=error,
        report=report,
        most=_MOST_REPLAYED,
        longest=_LONGEST_POLICY,
    )


async def what_if(request: PageRequest) -> Response:
    """Decide recorded calls again under the policy of the form. Requires the role operator."""
    view, days = request.view.calls, request.form.get("days", "")
    view.require(Role.OPERATOR)
    text = request.form.get("policy", "")
    if days not in _DAYS or not 0 < len(text) <= _LONGEST_POLICY:
        return await ask_what_if(request, "Write the rules, and choose how far back to look.")
    try:
        data = read_yaml("policy", text).data
        policy = Policy.from_data(data, overlays_of=view.runtime.policy)
    except (ContractError, PolicyError) as error:
        return await ask_what_if(request, "; ".join(str(one) for one in error.problems))
    runtime, now = view.runtime, view.runtime.clock()
    contracts = [record.contract for record in runtime.registry.records]
    calls = f"replay of {_DAYS[days]}"
    await note_export(runtime.store, view.tenant, by=request.person.name, calls=calls, now=now)
    report = await replay(
        *(runtime.store, runtime.vault, view.tenant, Rules(policy, contracts, same=False)),
        EventFilter(since=now - int(days) * 86_400),
        sequential="sequential" in request.form,
        batch=_AT_ONCE,
        most=_MOST_REPLAYED,
    )
    return await ask_what_if(request, report=report)
