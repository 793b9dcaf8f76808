"""Tools, grants, kills and quarantine, and what operators do about them."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from counterseal.contract.effects import Effect, RiskClass
from counterseal.registry.grants import Mode
from counterseal.web.api.shapes.base import (
    WHOLE,
    Given,
    JsonObject,
    Moment,
    Reason,
    Shape,
    Value,
    When,
)

__all__ = [
    "Accept",
    "Because",
    "CatalogueEntry",
    "Change",
    "DefinitionChange",
    "Grant",
    "GrantGiven",
    "Kill",
    "KillGiven",
    "KillScope",
    "OfVersion",
    "Quarantined",
    "Rollout",
    "Share",
    "Stopped",
    "Tool",
    "ToolRow",
    "ToolUse",
    "ToolVersion",
]

_Name = Annotated[
    str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f]$")
]


class ToolRow(Shape):
    """One tool: its newest version, and what stops it."""

    name: str
    version: str
    versions: int
    effect: str | None
    risk: str
    owner: str
    status: str
    drift: int
    grants: int
    kills: list[str]


class CatalogueEntry(Shape):
    """A tool as an agent may use it, in the words of MCP."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    name: str
    title: str
    description: str
    inputSchema: JsonObject  # noqa: N815 - MCP's name
    outputSchema: JsonObject | None = None  # noqa: N815 - as above
    annotations: JsonObject
    effect: str | None
    version: str


class Deprecation(Shape):
    deprecated_at: Moment | None
    removal_at: Moment | None
    replacement_tool: str | None
    reason: str


class ToolVersion(Shape):
    tool: str
    version: str
    contract_hash: str
    effect: str | None
    risk_class: str
    enabled: bool
    note: str
    allowed_agent_roles: list[str]
    allowed_tenants: list[str]
    rollout_percentage: int
    deprecation: Deprecation | None
    status: str
    drift: list[JsonObject]


class Grant(Shape):
    """Permission for one agent to use one tool."""

    id: str
    agent: str
    tool: str
    version: str
    mode: str
    max_calls_per_run: int | None
    scopes: list[str]
    risk_limit: str | None
    expires_at: Moment | None
    tenant: str | None


class Kill(Shape):
    """One pull of the switch. With neither tool nor effect it covers everything."""

    id: str
    tool: str | None
    effect: str | None
    reason: str
    by: str
    at: Moment


class Stopped(Shape):
    """A tool that a kill would stop."""

    tool: str
    version: str
    effect: str | None
    risk_class: str


class Change(Shape):
    """What an operator changed."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    number: int
    op: str
    reason: str
    by: str
    at: Moment


class Quarantined(Shape):
    """A tool that nobody may use until somebody has looked at it."""

    name: str
    server: str
    tool: str
    why: str
    definition: str
    pinned: str


class DefinitionChange(Shape):
    pointer: str
    kind: str
    before: Value
    after: Value
    text: str


class StepBack(Shape):
    """A rollout that can be undone."""

    version: str
    now: int
    before: int
    by: str
    reason: str


class Share(Shape):
    """Of a hundred new runs, how many get a version."""

    version: str = Field(description="Empty: those that get none.")
    now: int
    then: int


class Tool(ToolRow):
    """A tool's card."""

    contract: JsonObject
    version_list: list[ToolVersion]
    grant_list: list[Grant]
    kill_list: list[Kill]
    changes: list[Change]
    quarantine: Quarantined | None
    definition_changes: list[DefinitionChange]
    steps_back: list[StepBack]
    may_operate: bool


class ToolUse(Shape):
    """How a tool's latest calls ended."""

    window: str
    calls: int
    codes: dict[str, int]
    more: bool


# --- what operators send --------------------------------------------------------------------------


class Because(Given):
    reason: Reason


class OfVersion(Because):
    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "fixed in 1.2"}]})

    version: str | None = Field(None, max_length=100, description="Left out: all of them.")


class Rollout(Because):
    version: str = Field(max_length=100)
    percentage: Annotated[int, Field(strict=True, ge=0, le=100), WHOLE]


class KillScope(Given):
    """With neither: everything."""

    tool: _Name | None = None
    effect: Effect | None = None


class KillGiven(KillScope):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"tool": "send_notice", "reason": "it sends twice"}]}
    )

    reason: Reason


class GrantGiven(Given):
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
    risk_limit: RiskClass | None = None
    expires_at: When | None = None
    everywhere: bool = Field(
        default=False, strict=True, description="In every tenant, not only in this one."
    )
    reason: Reason


class Accept(Given):
    definition: str = Field(max_length=200, description="The hash of what was shown.")
