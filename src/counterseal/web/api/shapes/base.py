"""What all shapes have in common."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
)

__all__ = [
    "WHOLE",
    "Given",
    "Items",
    "JsonObject",
    "Moment",
    "Page",
    "Reason",
    "Shape",
    "Value",
    "When",
]

JsonObject = Annotated[dict[str, Any], WithJsonSchema({"type": "object"})]
Value = Annotated[Any, WithJsonSchema({})]
"""Any JSON."""
Moment = datetime


def _written(given: object) -> object:
    """Numbers of seconds are not taken for a moment: one can't be told from another."""
    if isinstance(given, datetime) or (isinstance(given, str) and _MOMENT.fullmatch(given)):
        return given
    raise ValueError("write it like 2026-01-31T12:00:00Z")


_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
When = Annotated[AwareDatetime, BeforeValidator(_written)]
"""A moment that is sent, with its time zone."""


def _whole(given: object) -> object:
    """JSON knows one kind of number: 3.0 is 3."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


WHOLE = BeforeValidator(_whole)
"""For a whole number that is sent; strict, so that no text that looks like one will do."""
Reason = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500, pattern=r"\S")
]
"""Why somebody does something; it goes on record."""

T = TypeVar("T")


class Shape(BaseModel):
    """Something that is answered. Fields without a default are always there."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", json_schema_extra={"additionalProperties": False}
    )


class Given(BaseModel):
    """Something that is sent."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Page(Shape, Generic[T]):
    """Some rows, and where to go on."""

    items: list[T]
    next: str | None = Field(description="Give it as `cursor` for the rows behind these.")


class Items(Shape, Generic[T]):
    """All there are."""

    items: list[T]
