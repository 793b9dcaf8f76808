"""What everything at a desk has in common: whose it is, pages, and the two ways to say no.

A desk is one person's in one tenant. What is another tenant's is not there, in the same words as
what never was.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from counterseal.accounts.users import Person, Role
from counterseal.errors import CountersealError
from counterseal.gates.parse import is_id

if TYPE_CHECKING:
    from counterseal.runtime import Runtime

__all__ = [
    "MOST",
    "Cursor",
    "NotAllowed",
    "NotThere",
    "Page",
    "Recordable",
    "Seat",
    "bounded",
    "findable",
    "iso",
    "read_cursor",
    "write_cursor",
]

MOST: Final = 200
"""How many rows a page has at most."""
_LONGEST_CURSOR: Final = 1000

T = TypeVar("T")


class Recordable(Protocol):
    """Something that can be given as plain JSON data."""

    def record(self) -> dict[str, Any]: ...


R_co = TypeVar("R_co", bound=Recordable, covariant=True)


class NotThere(CountersealError):  # noqa: N818 - it is an answer, not a fault
    """There is no such thing in this tenant. `what` is its kind: call, approval, run, tool."""

    def __init__(self, what: str) -> None:
        super().__init__(f"There is no such {what}.")
        self.what = what


class NotAllowed(CountersealError):  # noqa: N818 - it is an answer, not a fault
    """The person's roles are not enough. `role` is the one that is needed."""

    def __init__(self, role: Role, *, everywhere: bool = False) -> None:
        where = " for all tenants, because all of them share it" if everywhere else ""
        super().__init__(f"This takes the role {role.value}{where}.")
        self.role = role
        self.everywhere = everywhere


@dataclass(frozen=True, slots=True)
class Page(Generic[R_co]):
    """Some rows, and where to go on."""

    items: Sequence[R_co]
    next: str | None = None
    """Give it as `cursor` for the rows behind these; None: there are none."""

    def record(self) -> dict[str, Any]:
        return {"items": [item.record() for item in self.items], "next": self.next}


class Seat:
    """Whose desk it is, and what they may do."""

    def __init__(self, runtime: Runtime, person: Person) -> None:
        self.runtime = runtime
        self.person = person

    @property
    def tenant(self) -> str:
        return self.person.tenant

    def needs(self, role: Role) -> None:
        """NotAllowed unless the person's roles in this tenant are enough."""
        if not self.person.may(role):
            raise NotAllowed(role)


# --- cursors --------------------------------------------------------------------------------------

Cursor = tuple[Any, ...]
"""The place of a row in its order."""


def write_cursor(place: Cursor) -> str:
    """As text that fits into a URL."""
    text = json.dumps(place, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(text: str, *kinds: type) -> Cursor:
    """What was written; ValueError for anything else. It comes from outside, and may be made up."""
    try:
        if len(text) > _LONGEST_CURSOR:
            raise ValueError("too long")  # noqa: TRY301 - one answer for every bad cursor
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        place = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        fits = isinstance(place, list) and len(place) == len(kinds)
        if fits and all(map(_is, place, kinds)):
            return tuple(place)
    except (ValueError, binascii.Error, RecursionError):
        pass
    raise ValueError("cursor: is none that was given out; leave it out to begin at the top")


def _is(value: object, kind: type) -> bool:
    """JSON writes a whole number of seconds without a fraction."""
    return type(value) is kind or (kind is float and type(value) is int)


def bounded(limit: int) -> int:
    """How many rows a page has that was asked for so many."""
    return max(1, min(int(limit), MOST))


def findable(*given: str | None) -> bool:
    """Whether any store could hold such values; what can't be kept is not there."""
    return all(one is None or is_id(one) for one in given)


def iso(moment: float | None) -> str | None:
    """Seconds since the epoch as ISO text in UTC."""
    return None if moment is None else datetime.fromtimestamp(moment, UTC).isoformat()
