"""What all shapes have in common."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, WithJsonSchema

__all__ = ["Given", "Items", "JsonObject", "Moment", "Page", "Reason", "Shape", "Value"]

JsonObject = Annotated[dict[str, Any], WithJsonSchema({"type": "object"})]
Value = Annotated[Any, WithJsonSchema({})]
"""Any JSON."""
Moment = datetime
Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500)]
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
