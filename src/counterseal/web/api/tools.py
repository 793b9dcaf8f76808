"""Routes for tools, grants, the kill switch and quarantine."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field

from counterseal.contract.effects import Effect, RiskClass
from counterseal.gateway.catalogue import EFFECT, EXECUTED_BY, VERSION
from counterseal.proposal import RiskLevel
from counterseal.registry import Grant, Mode
from counterseal.views.base import Items
from counterseal.views.tools import (
    CatalogueEntry,
    ChangeRow,
    DefinitionChangeRow,
    GrantRow,
    KillRow,
    QuarantineRow,
    RolloutShare,
    StoppedTool,
    ToolPage,
    ToolRow,
    ToolUse,
    ToolVersion,
)
from counterseal.web.api.dependencies import (
    Caller,
    Context,
    Filter,
    ForPeople,
    ForPeopleAndAgents,
    Reason,
    When,
    Window,
)
from counterseal.web.problems import WHOLE, RequestBody

router = APIRouter()

_Name = Annotated[
    str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f]$")
]

# --- bodies ---------------------------------------------------------------------------------------


class ReasonBody(RequestBody):
    """An operator's reason."""

    reason: Reason


class VersionBody(RequestBody):
    """A version of a tool, or all of them."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "fixed in 1.2"}]})

    reason: Reason
    version: str | None = Field(None, max_length=100, description="All versions by default.")


class AcceptedVersionBody(RequestBody):
    """A version that is held for review, and the reason to accept it."""

    reason: Reason
    version: str = Field(max_length=100)


class RolloutBody(RequestBody):
    """The percentage of new runs that get a version."""

    reason: Reason
    version: str = Field(max_length=100)
    percentage: Annotated[int, Field(strict=True, ge=0, le=100), WHOLE]


class KillScope(RequestBody):
    """A tool, an effect, or (with neither) everything."""

    tool: _Name | None = None
    effect: Effect | None = None


class KillBody(RequestBody):
    """A tool, an effect, or (with neither) everything; and the reason to stop it."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"tool": "send_notice", "reason": "it sends twice"}]}
    )

    tool: _Name | None = None
    effect: Effect | None = None
    everywhere: bool | None = Field(
        default=None,
        strict=True,
        description="In every tenant (true) or in this one (false). By default in every tenant if "
        "your roles hold there, else in this one.",
    )
    reason: Reason


class GrantBody(RequestBody):
    """A grant for an agent, and the reason for it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"agent": "desk", "tool": "look_up_case", "reason": "the pilot"}]
        }
    )

    agent: _Name
    tool: _Name
    version: str = Field("*", max_length=100, description="A range, such as `>=1.0,<2`.")
    mode: Mode = Mode.EXECUTE
    max_calls_per_run: Annotated[int, Field(strict=True, ge=0, le=1_000_000_000), WHOLE] | None = (
        None
    )
    scopes: list[_Name] = Field(default_factory=list, max_length=100)
    risk_limit: RiskClass | RiskLevel | None = None
    expires_at: When | None = None
    max_effect: Effect | None = Field(
        None, description="The highest effect. By default, what the tool does now."
    )
    everywhere: bool = Field(
        default=False, strict=True, description="In every tenant instead of this one."
    )
    reason: Reason


class AcceptBody(RequestBody):
    """The definition that an operator accepts."""

    definition: str = Field(max_length=200, description="The hash of the definition shown.")


# --- tools ----------------------------------------------------------------------------------------


@router.get("/v1/tools", tags=["tools"])
async def list_tools(
    view: ForPeopleAndAgents,
    caller: Caller,
    context: Context,
    run: Annotated[Filter, Query(description="For an agent: the tools of this run.")] = None,
) -> Items[ToolRow] | Items[CatalogueEntry]:
    """List the tenant's tools; to an agent, those that it may use, in MCP's form."""
    if caller.principal is None:
        return Items[ToolRow](items=view.tools.rows())
    entries = []
    for tool in await context.state.catalogue.tools(caller.principal, run):
        fields, meta = {name: tool[name] for name in tool if name != "_meta"}, tool["_meta"]
        fields |= {"effect": meta[EFFECT], "version": meta[VERSION]}
        entries.append(CatalogueEntry(**fields, executed_by=meta.get(EXECUTED_BY, "server")))
    return Items[CatalogueEntry](items=entries)


@router.get("/v1/tools/{name}", tags=["tools"])
async def show_tool(view: ForPeople, name: str) -> ToolPage:
    """Show a tool: contract, versions, grants, kills, operators' changes, quarantine."""
    return view.tools.page(name)


@router.get("/v1/tools/{name}/versions", tags=["tools"])
async def tool_versions(view: ForPeople, name: str) -> Items[ToolVersion]:
    """List a tool's versions, newest first."""
    return Items[ToolVersion](items=view.tools.versions(name))


@router.get("/v1/tools/{name}/use", tags=["tools"])
async def tool_use(view: ForPeople, name: str, window: Window = "24h") -> ToolUse:
    """Show how a tool's latest calls ended."""
    return await view.tools.use(name, window)


@router.post("/v1/tools/{name}/enable", tags=["tools"])
async def enable_tool(view: ForPeople, name: str, given: VersionBody) -> ChangeRow:
    """Enable a tool. Requires the role operator."""
    return await view.tools.enable(name, given.version, reason=given.reason)


@router.post("/v1/tools/{name}/disable", tags=["tools"])
async def disable_tool(view: ForPeople, name: str, given: VersionBody) -> ChangeRow:
    """Disable a tool. Requires the role operator."""
    return await view.tools.disable(name, given.version, reason=given.reason)


@router.post("/v1/tools/{name}/accept", tags=["tools"])
async def accept_version(view: ForPeople, name: str, given: AcceptedVersionBody) -> ChangeRow:
    """Accept a version that is held for review, as its contract is now.

    Requires the role operator. `held` of the version lists the changes that are accepted.
    """
    return await view.tools.accept_version(name, given.version, reason=given.reason)


@router.get("/v1/tools/{name}/rollout", tags=["tools"])
async def preview_rollout(
    view: ForPeople,
    name: str,
    version: Annotated[str, Query(min_length=1, max_length=100)],
    percentage: Annotated[int, Query(ge=0, le=100)],
) -> Items[RolloutShare]:
    """Preview which versions new runs would get. Requires the role operator."""
    shares = await view.tools.preview_rollout(name, version, percentage)
    return Items[RolloutShare](items=shares)


@router.post("/v1/tools/{name}/rollout", tags=["tools"])
async def roll_out_tool(view: ForPeople, name: str, given: RolloutBody) -> ChangeRow:
    """Set the percentage of new runs that get a version. Requires the role operator."""
    return await view.tools.set_rollout(name, given.version, given.percentage, reason=given.reason)


# --- quarantine -----------------------------------------------------------------------------------


@router.get("/v1/quarantine", tags=["tools"])
async def list_quarantined(view: ForPeople) -> Items[QuarantineRow]:
    """List the tools that wait for an operator to accept them."""
    return Items[QuarantineRow](items=view.tools.quarantined())


@router.get("/v1/quarantine/{name}/changes", tags=["tools"])
async def quarantine_changes(view: ForPeople, name: str) -> Items[DefinitionChangeRow]:
    """List how a definition differs from the accepted one."""
    return Items[DefinitionChangeRow](items=view.tools.definition_changes(name))


@router.post("/v1/quarantine/{name}/accept", tags=["tools"], status_code=204)
async def accept_definition(view: ForPeople, name: str, given: AcceptBody) -> None:
    """Accept exactly this definition. Requires the role operator for all tenants."""
    await view.tools.accept(name, given.definition)


@router.post("/v1/quarantine/{name}/refuse", tags=["tools"], status_code=204)
async def refuse_definition(view: ForPeople, name: str, given: ReasonBody) -> None:
    """Record that a definition is refused. Requires the role operator for all tenants."""
    await view.tools.refuse(name, reason=given.reason)


# --- grants ---------------------------------------------------------------------------------------


@router.get("/v1/grants", tags=["grants"])
async def list_grants(
    view: ForPeople, tool: Filter = None, agent: Filter = None
) -> Items[GrantRow]:
    """List the grants that apply in this tenant."""
    return Items[GrantRow](items=view.tools.grants(tool=tool, agent=agent))


@router.post("/v1/grants", tags=["grants"], status_code=201)
async def give_grant(view: ForPeople, given: GrantBody) -> GrantRow:
    """Grant a tool to an agent. Requires the role operator."""
    grant = Grant(
        tenant=None if given.everywhere else view.tenant,
        **given.model_dump(exclude={"everywhere", "reason"}),
    )
    return await view.tools.grant(grant, reason=given.reason)


@router.delete("/v1/grants/{grant_id}", tags=["grants"])
async def revoke_grant(
    view: ForPeople, grant_id: str, reason: Annotated[Reason, Query()]
) -> ChangeRow:
    """Revoke a grant. Requires the role operator."""
    return await view.tools.revoke(grant_id, reason=reason)


# --- the kill switch ------------------------------------------------------------------------------


@router.get("/v1/kills", tags=["kills"])
async def list_kills(view: ForPeople) -> Items[KillRow]:
    """List the kills in force."""
    return Items[KillRow](items=view.tools.kills())


@router.post("/v1/kills/preview", tags=["kills"])
async def preview_kill(view: ForPeople, given: KillScope) -> Items[StoppedTool]:
    """Preview what a kill would stop in this tenant. Requires the role operator."""
    stopped = await view.tools.preview_kill(tool=given.tool, effect=given.effect)
    return Items[StoppedTool](items=stopped)


@router.post("/v1/kills", tags=["kills"], status_code=201)
async def kill(view: ForPeople, given: KillBody) -> KillRow:
    """Stop a tool, every tool of an effect, or everything. Requires the role operator.

    For every tenant, the role must hold in every tenant.
    """
    return await view.tools.kill(**given.model_dump())


@router.delete("/v1/kills/{kill_id}", tags=["kills"])
async def restore(view: ForPeople, kill_id: str, reason: Annotated[Reason, Query()]) -> ChangeRow:
    """Undo a kill. Requires the role operator."""
    return await view.tools.restore(kill_id, reason=reason)
