"""The operator's list, the record, numbers, and who asks."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from counterseal.web.api.shapes.base import Given, JsonObject, Moment, Reason, Shape

__all__ = ["Act", "Chain", "ConcernRow", "Me", "Metric", "Report", "Series"]


class ConcernRow(Shape):
    """Something that no machine will settle."""

    kind: str
    key: str
    call_id: str
    run_id: str
    tool: str
    version: str
    since: Moment | None
    reason: str
    actions: list[str]


class Act(Given):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"reason": "the bank says that it was paid"}]}
    )

    reason: Reason
    data: JsonObject | None = Field(None, description="What came of it, for `happened`.")


class Chain(Shape):
    """How far the record is sealed."""

    checkpoints: int
    sealed_at: Moment | None
    sealed_hash: str | None
    segments: int
    unsealed: int | None
    has_key: bool


class Finding(Shape):
    kind: str
    message: str
    event_id: str | None
    segment: str | None
    place: int | None
    checkpoint: int | None


class Report(Shape):
    """What came of checking the record."""

    tenant: str
    ok: bool
    events: int
    segments: int
    sealed: int
    unsealed: int
    erased: int
    erased_unsealed: int
    checkpoints: int
    found: int
    findings: list[Finding]


class MetricLink(Shape):
    """What is behind the numbers, as parameters of `/v1/calls`; null where no list is just that."""

    numerator: dict[str, str]
    denominator: dict[str, str] | None
    rest: dict[str, str] | None = Field(description="What is not counted of the denominator.")


class Metric(Shape):
    """One number, and how it came about."""

    name: str
    title: str
    formula: str
    meaning: str
    unit: str
    window: str
    since: Moment
    until: Moment
    numerator: float
    denominator: float
    value: float | None
    link: MetricLink


class Series(Shape):
    """One metric over time, oldest first."""

    metric: str
    window: str
    values: list[float | None]


class Me(Shape):
    """Who asks, as this server knows them."""

    kind: Literal["agent", "person"]
    tenant: str
    agent: str | None
    user: str | None
    roles: list[str]
    scopes: list[str]
    everywhere: list[str] = Field(description="Roles of a person that count in every tenant.")
