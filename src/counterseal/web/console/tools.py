"""Pages about tools: the registry, one tool with its contract, rollouts, and the kill switch.

`words.yaml` lists the parts of a contract. Parts that it does not name are shown at the end, so
that a new part is visible before it gets a place.
"""

from __future__ import annotations

import json
import re
from asyncio import to_thread
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple, Self

from starlette.responses import Response
from starlette.routing import Route

from counterseal.accounts import Role
from counterseal.canonical import at, pointer, thaw
from counterseal.contract.effects import EFFECTS, Effect, RiskClass
from counterseal.contract.schema_diff import ChangeKind
from counterseal.contract.schemas import Parameter, parameters
from counterseal.contract.sources.foreign_text import visible
from counterseal.errors import CountersealError, GrantError, RegistryError, StoreError
from counterseal.evaluation.report import EvaluationReport
from counterseal.registry import Grant, Mode
from counterseal.views.base import NotFoundError, RoleRequiredError
from counterseal.views.calls import CallSearch
from counterseal.views.tools import ChangeRow, DefinitionChangeRow, ToolRow
from counterseal.web.console.page_request import ConsoleState, PageRequest, read_time
from counterseal.web.console.rendering import WORDS, address
from counterseal.web.problems import RequestProblemError


def routes(state: ConsoleState) -> list[Route]:
    """Return the registry, a tool's page with its forms, and the kill switch."""
    return [
        state.get("/tools", registry),
        state.get("/tools/{name}", show),
        *state.form("/tools/{name}/use", switch),
        *state.form("/tools/{name}/grant", grant),
        *state.form("/tools/{name}/revoke", revoke),
        *state.form("/tools/{name}/quarantine", quarantine),
        state.get("/tools/{name}/rollout", preview_rollout),
        state.post("/tools/{name}/rollout", roll_out),
        state.get("/evaluation", evaluation),
        state.get("/kill", kill_switch),
        state.post("/kill", stop),
        *state.form("/kill/restore", restore),
    ]


# --- the registry ---------------------------------------------------------------------------------

_PAGE: Final = 50
_MAX_COUNTED: Final = 100
"""Calls of one tool that are counted for the list; more are shown as `100+`."""
_DAY: Final = 86_400.0
_STATUSES: Final = (
    *("active", "deprecated", "disabled", "held_for_review", "killed", "sunset", "quarantined"),
)


async def registry(request: PageRequest) -> Response:
    """Show tools by name, quarantined ones first."""
    exact = {name: request.parameter(name) or "" for name in ("status", "effect", "risk")}
    chosen = {"text": request.parameter("text") or "", **exact}
    text = chosen["text"].lower()
    rows = [
        row
        for row in request.view.tools.rows()
        if all(value in ("", getattr(row, name)) for name, value in exact.items())
        and (text in row.name.lower() or text in row.owner.lower())
    ]
    rows.sort(key=lambda row: (row.status != "quarantined", row.name))
    start = request.parameter("from") or "0"
    if not start.isdecimal():
        raise RequestProblemError("invalid-request", "from: expected a whole number of 0 or more")
    first = int(start[:9])
    shown = rows[first : first + _PAGE]
    rest = first + _PAGE < len(rows)
    return await request.render(
        "tools.html",
        title="Tools",
        shows=address("v1", "tools"),
        rows=[{"row": row, "use": await _use(request, row)} for row in shown],
        count=len(rows),
        held=sum(row.status == "quarantined" for row in rows),
        chosen=chosen,
        filtered=any(chosen.values()),
        done=_WORDS["done"].get(request.parameter("done"), ""),
        more=address("tools", **chosen, **{"from": str(first + _PAGE)}) if rest else None,
        statuses=_STATUSES,
        effects=[effect.value for effect in Effect],
        risks=[risk.value for risk in RiskClass],
    )


async def _use(request: PageRequest, row: ToolRow) -> dict[str, Any]:
    """Return how often a tool was called in a day, and how often without success."""
    since = request.state.clock() - _DAY
    search = CallSearch(tool=row.name, since=since, limit=_MAX_COUNTED)
    page = await request.view.calls.search(search)
    failed = sum(call.code not in ("SUCCESS", None) for call in page.items)
    count = f"{_MAX_COUNTED}+" if page.next else str(len(page.items))
    return {"count": count, "failed": failed, "any": bool(page.items)}


# --- the last evaluation --------------------------------------------------------------------------


async def evaluation(request: PageRequest) -> Response:
    """Show what came of every mode for each tool of this tenant, when it was last recorded."""
    file = request.state.evaluation
    try:
        report = None if file is None else await to_thread(EvaluationReport.read, file)
        wrong = ""
    except ValueError as error:
        report, wrong = None, str(error)
    names = {row.name for row in request.view.tools.rows()}
    shown = [] if report is None else [tool for tool in report.tools if tool.name in names]
    rows = []
    for tool in shown:
        known = request.view.tools.page(tool.name).version_list
        hashes = {one.contract_hash for one in known if one.version == tool.version}
        rows.append({"tool": tool, "changed": tool.contract_hash not in hashes})
    failures = [] if report is None else [one for one in report.failures if one[0].tool in names]
    return await request.render(
        "evaluation.html",
        title="Evaluation",
        path="/tools",
        report=report,
        rows=rows,
        failures=failures,
        wrong=wrong,
    )


# --- one tool -------------------------------------------------------------------------------------

_WORDS: Final = WORDS["tools"]


async def show(
    request: PageRequest,
    error: str = "",
    status: int = 200,
    *,
    wrong: str = "",
    rollout: Mapping[str, Any] | None = None,
    shows: str | None = None,
) -> Response:
    """Show a tool. `wrong` names the form with the error, `rollout` is a preview."""
    name, view, person = request.segment("name"), request.view, request.person
    page = view.tools.page(name)
    operator, everywhere = person.may(Role.OPERATOR), person.may_everywhere(Role.OPERATOR)
    refusal = RoleRequiredError(Role.OPERATOR, everywhere=operator)
    return await request.render(
        "tool.html",
        title=name,
        path="/tools",
        shows=shows or address("v1", "tools", name),
        status=status,
        page=page,
        used=await view.tools.use(name) if page.version else None,
        sections=contract_sections(page.contract),
        changes=[_change(change) for change in page.changes],
        quarantined=_WORDS["quarantined"],
        definition_changes=shown_changes(page.definition_changes),
        operator=operator,
        everywhere=everywhere,
        refusal="" if page.may_operate else str(refusal),
        modes=[mode.value for mode in Mode],
        risks=[risk.value for risk in RiskClass],
        rollout=rollout,
        error=error,
        wrong=wrong,
        form=request.form,
        done=_WORDS["done"].get(request.parameter("done"), ""),
    )


def _change(change: ChangeRow) -> dict[str, Any]:
    """Return an operator's change in words."""
    extra = change.model_extra or {}
    given, percentage = extra.get("grant") or {}, extra.get("percentage")
    rollout = None if percentage is None else f"{percentage} %"
    details = (given.get("agent"), extra.get("version"), rollout)
    withdrawn = change.op == "accept_risk" and extra.get("contract_hash") is None
    return {
        "row": change,
        "title": "Acceptance withdrawn"
        if withdrawn
        else _WORDS["changes"].get(change.op, change.op),
        "details": ", ".join(detail for detail in details if detail),
    }


def _done(request: PageRequest, what: str) -> Response:
    """Go back to the tool, or to the list if the tool is no longer offered."""
    name = request.segment("name")
    known = any(row.name == name for row in request.view.tools.rows())
    return request.redirect(address("tools", *([name] if known else []), done=what))


# --- changes --------------------------------------------------------------------------------------


async def switch(request: PageRequest) -> Response:
    """Enable or disable one version, or all of them; or accept one that is held for review."""
    name, version = request.segment("name"), request.form_value("version") or None
    action, reason = request.form_value("action"), request.form_value("reason")
    tools = request.view.tools
    try:
        if action == "accept":
            await tools.accept_version(name, version or "", reason=reason)
        elif action == "enable":
            await tools.enable(name, version, reason=reason)
        else:
            await tools.disable(name, version, reason=reason)
    except RegistryError as error:
        return await show(request, str(error), 422, wrong="held" if action == "accept" else "use")
    done = {"accept": "version_accepted", "enable": "enabled"}
    return _done(request, done.get(action, "disabled"))


async def grant(request: PageRequest) -> Response:
    """Grant the tool to an agent, in this tenant or in all of them."""
    try:
        await request.view.tools.grant(_new_grant(request), reason=request.form_value("reason"))
    except (RegistryError, GrantError, ValueError) as error:
        return await show(request, str(error), 422, wrong="grant")
    return _done(request, "granted")


def _new_grant(request: PageRequest) -> Grant:
    calls = request.form_value("max_calls_per_run")
    expires_at = read_time("expires_at", request.form_value("expires_at") or None)
    if calls and not calls.isdecimal():
        raise GrantError(f"max_calls_per_run: expected a whole number of 0 or more, got {calls!r}")
    return Grant(
        agent=request.form_value("agent"),
        tool=request.segment("name"),
        version=request.form_value("version") or "*",
        mode=request.form_value("mode") or Mode.EXECUTE,
        max_calls_per_run=int(calls) if calls else None,
        risk_limit=request.form_value("risk_limit") or None,
        expires_at=None if expires_at is None else datetime.fromtimestamp(expires_at, UTC),
        tenant=None if request.form_value("everywhere") else request.person.tenant,
    )


async def revoke(request: PageRequest) -> Response:
    """Revoke a grant."""
    grant_id, reason = request.form_value("grant"), request.form_value("reason")
    try:
        await request.view.tools.revoke(grant_id, reason=reason)
    except RegistryError as error:
        return await show(request, str(error), 422, wrong="revoke")
    return _done(request, "revoked")


async def quarantine(request: PageRequest) -> Response:
    """Accept exactly the definition that was shown, or refuse it."""
    name, accept = request.segment("name"), request.form_value("action") == "accept"
    try:
        if accept:
            await request.view.tools.accept(name, request.form_value("definition"))
        else:
            await request.view.tools.refuse(name, reason=request.form_value("reason"))
    except (NotFoundError, RoleRequiredError, StoreError):
        raise
    except CountersealError as error:
        return await show(request, str(error), 409, wrong="quarantine")
    return _done(request, "accepted" if accept else "refused")


# --- rollouts -------------------------------------------------------------------------------------


async def preview_rollout(request: PageRequest) -> Response:
    """Show the tool with which versions new runs would get."""
    name, version = request.segment("name"), request.parameter("version")
    text = request.parameter("percentage")
    if version is None or text is None:
        return request.redirect(address("tools", name))
    percentage = _percentage(text)
    try:
        shares = await request.view.tools.preview_rollout(name, version, percentage)
    except RegistryError as error:
        return await show(request, str(error), 422, wrong="rollout")
    rollout = {"version": version, "percentage": percentage, "shares": shares}
    shows = address("v1", "tools", name, "rollout", version=version, percentage=str(percentage))
    return await show(request, rollout=rollout, shows=shows)


async def roll_out(request: PageRequest) -> Response:
    """Set the percentage of new runs that get a version."""
    version, reason = request.form_value("version"), request.form_value("reason")
    try:
        percentage = _percentage(request.form_value("percentage"))
        await request.view.tools.set_rollout(
            request.segment("name"), version, percentage, reason=reason
        )
    except (RegistryError, ValueError) as error:
        return await show(request, str(error), 422, wrong="rollout")
    return _done(request, "rolled_out")


def _percentage(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= len("100")):
        raise ValueError("percentage: expected a whole number from 0 to 100")
    return int(text)


# --- the kill switch ------------------------------------------------------------------------------

_EVERYTHING: Final = "everything"
_HERE: Final = "here"
"""The value of `where` for a kill in this tenant only."""


class KillTarget(NamedTuple):
    """What is to be stopped: a tool, an effect, or everything; in every tenant or in this one."""

    tool: str | None = None
    effect: str | None = None
    everything: bool = False
    everywhere: bool = False

    @classmethod
    def read(cls, value: Callable[[str], str | None], *, may_everywhere: bool) -> Self:
        """Return what an address or a form names.

        It is for every tenant if the person may do that, unless they say no.
        """
        everywhere = may_everywhere and value("where") != _HERE
        everything = value("scope") == _EVERYTHING
        return cls(value("tool") or None, value("effect") or None, everything, everywhere)

    def __bool__(self) -> bool:
        return bool(self.tool or self.effect or self.everything)


async def kill_switch(request: PageRequest) -> Response:
    """Show what is stopped now, and a preview of what the chosen kill would stop."""
    everywhere = request.person.may_everywhere(Role.OPERATOR)
    return await _kill_page(request, KillTarget.read(request.parameter, may_everywhere=everywhere))


async def _kill_page(
    request: PageRequest, target: KillTarget, error: str = "", status: int = 200
) -> Response:
    view, may = request.view, request.person.may(Role.OPERATOR)
    refusal = "" if may else str(RoleRequiredError(Role.OPERATOR))
    stopped: list[tuple[str, list[str]]] = []
    if target and may:
        versions: dict[str, list[str]] = {}
        for tool in await view.tools.preview_kill(tool=target.tool, effect=target.effect):
            versions.setdefault(tool.tool, []).append(tool.version)
        stopped = sorted(versions.items())
    return await request.render(
        "kill.html",
        title="Kill switch",
        path="/tools",
        shows=address("v1", "kills"),
        status=status,
        scope=target,
        stopped=stopped,
        refusal=refusal,
        may=may,
        effects=[(effect.value, EFFECTS[effect].disclosure) for effect in Effect],
        names=[row.name for row in view.tools.rows() if row.version],
        error=error,
        form=request.form,
        everything=_EVERYTHING,
        here=_HERE,
        may_everywhere=request.person.may_everywhere(Role.OPERATOR),
        restorable={kill.id for kill in view.tools.kills() if view.tools.may_restore(kill)},
        done=_WORDS["done"].get(request.parameter("done"), ""),
    )


async def stop(request: PageRequest) -> Response:
    """Use the switch."""
    everywhere = request.person.may_everywhere(Role.OPERATOR)
    target = KillTarget.read(request.form_value, may_everywhere=everywhere)
    if not target:
        return await _kill_page(request, target, "Choose what to stop.", 422)
    try:
        await request.view.tools.kill(
            tool=target.tool,
            effect=target.effect,
            everywhere=target.everywhere,
            reason=request.form_value("reason"),
        )
    except RegistryError as error:
        return await _kill_page(request, target, str(error), 422)
    return request.redirect(address("kill", done="stopped"))


async def restore(request: PageRequest) -> Response:
    """Undo a kill."""
    kill_id, reason = request.form_value("kill"), request.form_value("reason")
    try:
        await request.view.tools.restore(kill_id, reason=reason)
    except RegistryError as error:
        return await _kill_page(request, KillTarget(), str(error), 422)
    return request.redirect(address("kill", done="restored"))


# --- contracts, as a tool's page shows them ------------------------------------------------------

_SECTIONS: Final[Mapping[str, Mapping[str, str] | str]] = WORDS["contract"]
"""For each section, the label and JSON Pointer of its parts, or the pointer of a schema."""
_ELSEWHERE: Final = frozenset({"/identity/name", "/identity/version"})
"""Shown in the page's heading."""
_UNITS: Final = {
    "/runtime/timeout_ms": "ms",
    "/memory_mb": "MB",
    "/max_output_bytes": "bytes",
    "/verify_after": "s",
}
_HIDDEN_AT_ZERO: Final = frozenset({"/verify_after"})
_KNOWN: Final = _ELSEWHERE.union(
    *([rows] if isinstance(rows, str) else rows.values() for rows in _SECTIONS.values())
)


class ContractFact(NamedTuple):
    """One line: text, or JSON if text is not enough."""

    label: str
    text: str
    json: Any = None


class ContractPart(NamedTuple):
    """A section of a contract: facts, or the fields of a schema."""

    title: str
    facts: tuple[ContractFact, ...] = ()
    fields: tuple[Parameter, ...] = ()
    note: str = ""


def contract_sections(contract: Mapping[str, Any]) -> list[ContractPart]:
    """Return the sections of a contract's record that have content."""
    sections = [_section(title, rows, contract) for title, rows in _SECTIONS.items()]
    sections.append(ContractPart("Other", tuple(_other(contract, ()))))
    return [section for section in sections if section.facts or section.fields or section.note]


def _section(
    title: str, rows: Mapping[str, str] | str, contract: Mapping[str, Any]
) -> ContractPart:
    if not isinstance(rows, str):
        facts = (_fact(label, place, at(contract, place)) for label, place in rows.items())
        return ContractPart(title, tuple(fact for fact in facts if fact is not None))
    schema = at(contract, rows)
    if not isinstance(schema, Mapping):
        return ContractPart(title)
    fields = tuple(parameters(schema))
    closed = schema.get("additionalProperties") is False
    note = "" if fields else "No fields." if closed else "Any object."
    return ContractPart(title, fields=fields, note=note)


def _fact(label: str, place: str, value: Any) -> ContractFact | None:
    plain = thaw(value)
    empty = plain is None or plain in ("", [], {})
    if empty or (plain == 0 and place in _HIDDEN_AT_ZERO):
        return None
    words = _words(plain)
    if words is None:
        return ContractFact(label, "", plain)
    unit = _UNITS.get(place)
    return ContractFact(label, f"{words} {unit}" if unit else words)


def _words(value: Any) -> str | None:
    """Return a plain value, a list or pairs of such as text; None if it needs more than a line."""
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,g}"
        case str():
            return value
        case list() if all(isinstance(item, str) for item in value):
            return ", ".join(value)
        case dict() if all(_flat(item) for item in value.values()):
            given = {name: item for name, item in value.items() if item not in (None, [])}
            return "; ".join(
                f"{name.replace('_', ' ')} {_words(item)}" for name, item in given.items()
            )
    return None


def _flat(value: Any) -> bool:
    texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return value is None or texts or isinstance(value, str | int | float)


def _other(value: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[ContractFact]:
    """Yield the parts that no section names."""
    for name, part in value.items():
        place = pointer(*path, name)
        if place in _KNOWN:
            continue
        inside = any(known.startswith(f"{place}/") for known in _KNOWN)
        if inside and isinstance(part, Mapping):
            yield from _other(part, (*path, name))
        elif (fact := _fact(place, place, part)) is not None:
            yield fact


# --- changed definitions --------------------------------------------------------------------------

_TOKEN: Final = re.compile(r"⟨[^⟩]*⟩|\s+|\w+|[^\w\s]")
_MOST_TOKENS: Final = 2_000
_TONES: Final = {
    ChangeKind.LOOSER: ("bad", "wider"),
    ChangeKind.TIGHTER: ("info", "stricter"),
    ChangeKind.OTHER: ("warn", "different"),
    ChangeKind.WORDS: ("warn", "words"),
}


class TextPiece(NamedTuple):
    """A piece of a changed text."""

    how: str
    """same, removed or added."""
    text: str


class ShownChange(NamedTuple):
    """One change of a definition, with invisible characters spelt out."""

    pointer: str
    tone: str
    kind: str
    text: str
    pieces: tuple[TextPiece, ...]
    """Both texts merged; empty if one is missing or too long."""
    before: str
    after: str


def shown_changes(changes: Sequence[DefinitionChangeRow]) -> list[ShownChange]:
    """Return every change of a definition, in its order."""
    shown = []
    for change in changes:
        tone, kind = _TONES[ChangeKind(change.kind)]
        texts = isinstance(change.before, str) and isinstance(change.after, str)
        pieces = tuple(_pieces(change.before, change.after)) if texts else ()
        before, after = _as_text(change.before), _as_text(change.after)
        place = visible(change.pointer)
        shown.append(ShownChange(place, tone, kind, change.text, pieces, before, after))
    return shown


def _as_text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return visible(value or "")
    return visible(json.dumps(thaw(value), ensure_ascii=False, indent=2))


def _pieces(before: str, after: str) -> Iterator[TextPiece]:
    old, new = _TOKEN.findall(visible(before)), _TOKEN.findall(visible(after))
    if len(old) > _MOST_TOKENS or len(new) > _MOST_TOKENS:
        return
    for what, first, last, start, end in SequenceMatcher(None, old, new).get_opcodes():
        if what == "equal":
            yield TextPiece("same", "".join(old[first:last]))
            continue
        if first < last:
            yield TextPiece("removed", "".join(old[first:last]))
        if start < end:
            yield TextPiece("added", "".join(new[start:end]))
