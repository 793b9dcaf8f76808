"""Parts that all views share: row models, pages and cursors, time windows, and role checks.

A row is a frozen pydantic model. The HTTP API returns it and documents it, the console's templates
read it, the command line prints it, and the Python client parses it. Rows of another tenant answer
exactly like rows that do not exist.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
    WithJsonSchema,
)

from counterseal.accounts.users import Person, Role
from counterseal.audit import Event
from counterseal.audit.chain import UnknownEventIdError
from counterseal.canonical import thaw
from counterseal.errors import CountersealError
from counterseal.gates.parse import is_id
from counterseal.ledger.requests import CallFilter

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

T = TypeVar("T")
Position = tuple[Any, ...]
"""The place of a row in its list, from which the list goes on."""

# --- rows -----------------------------------------------------------------------------------------

_PLAIN: Final = BeforeValidator(thaw)
"""Turns frozen mappings and tuples into the dicts and lists that JSON writers know."""
JsonObject = Annotated[dict[str, Any], _PLAIN, WithJsonSchema({"type": "object"})]
JsonValue = Annotated[Any, _PLAIN, WithJsonSchema({})]
Moment = Annotated[
    datetime,
    BeforeValidator(lambda value: utc(value) if isinstance(value, float) else value),
    PlainSerializer(datetime.isoformat, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A time in UTC, also made from seconds since the epoch. JSON has it with its offset and, unless
they are zero, its microseconds."""
Number = Annotated[int | float, WithJsonSchema({"type": "number"})]
"""A number that stays whole in JSON if it is."""
ROW_CONFIG: Final = ConfigDict(
    frozen=True, extra="ignore", json_schema_extra={"additionalProperties": False}
)
"""Rows are exact in the OpenAPI document; an older client ignores fields that it does not know."""


class RowModel(BaseModel):
    """Base of the rows. Fields without a default are always present."""

    model_config = ROW_CONFIG


class Page(RowModel, Generic[T]):
    """Some rows, and the cursor of the next page."""

    items: list[T]
    next: str | None = Field(description="Pass it as `cursor` to get the next page.")


class Items(RowModel, Generic[T]):
    """A complete list."""

    items: list[T]


def utc(moment: float) -> datetime:
    """Return seconds since the epoch as a time in UTC."""
    return datetime.fromtimestamp(moment, UTC)


def iso(moment: float | None) -> str | None:
    """Return seconds since the epoch as ISO 8601 text in UTC."""
    return None if moment is None else utc(moment).isoformat()


# --- errors ---------------------------------------------------------------------------------------


class NotFoundError(CountersealError):
    """The tenant has no such object. `kind` is call, approval, run, tool, ..."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"There is no such {kind}.")
        self.kind = kind


class RoleRequiredError(CountersealError):
    """The person lacks the role that is needed. `role` names it."""

    def __init__(self, role: Role, *, everywhere: bool = False) -> None:
        where = " for all tenants, because all of them share it" if everywhere else ""
        super().__init__(f"This requires the role {role.value}{where}.")
        self.role = role
        self.everywhere = everywhere


# --- sections of a tenant view --------------------------------------------------------------------


class TenantSection:
    """Base of the sections of a `TenantView`: the runtime, the person, and a role check."""

    def __init__(self, runtime: Runtime, person: Person) -> None:
        self.runtime = runtime
        self.person = person

    @property
    def tenant(self) -> str:
        return self.person.tenant

    def require(self, role: Role) -> None:
        """Raise RoleRequiredError unless the person has this role in the tenant."""
        if not self.person.may(role):
            raise RoleRequiredError(role)

    async def _latest_calls(self, query: CallFilter) -> list[tuple[str, Event]]:
        """Return the events that ended calls, latest first, with their ids."""
        try:
            return list(await self.runtime.store.calls(self.tenant, query))
        except UnknownEventIdError:
            raise cursor_error() from None


# --- pages and cursors ----------------------------------------------------------------------------

MAX_PAGE: Final = 200
"""Rows of one page at most."""
MAX_SCANNED: Final = 2000
"""Rows that are read for one page of those that match."""
_MAX_CURSOR: Final = 1000


def write_cursor(*position: Any) -> str:
    """Return the position of a row in its list as text that fits into a URL."""
    text = json.dumps(position, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(text: str, *kinds: type) -> tuple[Any, ...]:
    """Return the position of a cursor. Raises ValueError if its parts have other types."""
    expected: TypeAdapter[tuple[Any, ...]] = TypeAdapter(tuple[kinds])  # type: ignore[valid-type]
    try:
        padded = text[:_MAX_CURSOR].encode("ascii") + b"=" * (-len(text) % 4)
        position = base64.b64decode(padded, altchars=b"-_", validate=True)
        return expected.validate_json(position, strict=True)
    except ValueError:
        raise cursor_error() from None


def cursor_error() -> ValueError:
    """Return the error for a cursor that no list has issued."""
    return ValueError("cursor: not a cursor of this list. Leave it out to start at the first page.")


def page_size(limit: int) -> int:
    """Return the number of rows of a page, between 1 and `MAX_PAGE`."""
    return max(1, min(int(limit), MAX_PAGE))


async def scanned_page(
    candidates: AsyncGenerator[tuple[Position, T | None]], limit: int
) -> tuple[list[T], str | None]:
    """Return the first `limit` rows of a list, and the cursor of the next page.

    `candidates` are positions, each with its row, or with None where it does not match. A page ends
    after `MAX_SCANNED` of them, so that a rare match does not read the whole record.
    """
    rows: list[T] = []
    scanned, last, shown = 0, ("",), ("",)
    async with aclosing(candidates):
        async for position, row in candidates:
            if scanned == MAX_SCANNED:
                return rows, write_cursor(*last)
            scanned, last = scanned + 1, position
            if row is None:
                continue
            if len(rows) == limit:
                return rows, write_cursor(*shown)
            rows.append(row)
            shown = position
    return rows, None


def storable(*values: str | None) -> bool:
    """Return whether a store can hold these ids and names; others match no row."""
    return all(value is None or is_id(value) for value in values)


# --- time windows ---------------------------------------------------------------------------------

WINDOWS: Final = ("15m", "1h", "6h", "24h", "7d", "30d")
"""Windows that the console offers; others of this form work as well."""
_WINDOW: Final = re.compile(r"(\d{1,4})([mhd])")
_UNITS: Final = {"m": 60, "h": 3600, "d": 86_400}
_MAX_WINDOW: Final = 366 * 86_400


def window_seconds(window: str) -> float:
    """Return the length of a window such as 15m, 24h or 7d. Raises ValueError for other text."""
    match = _WINDOW.fullmatch(window)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < seconds <= _MAX_WINDOW:
        raise ValueError("window: expected minutes, hours or days up to 366d: 15m, 24h, 7d")
    return float(seconds)
