"""The operator's list: what no machine will settle, and what a person can do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from counterseal.accounts.users import Role
from counterseal.ledger.entry import Phase, Status
from counterseal.reconcile import OperatorList
from counterseal.storage.base import Concern, DueKind
from counterseal.views.base import (
    NotThere,
    Page,
    Seat,
    bounded,
    iso,
    read_cursor,
    write_cursor,
)

__all__ = ["ACTIONS", "ConcernRow", "ConcernsDesk"]

ACTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "unknown": ("happened", "did_not_happen"),
    DueKind.VERIFY.value: ("again", "compensate", "dismiss"),
    DueKind.COMPENSATE.value: ("again", "dismiss"),
    DueKind.EXECUTE.value: ("again", "dismiss"),
    DueKind.NOTIFY.value: ("again", "dismiss"),
}
"""What can be done about each kind of concern."""
_MOST: Final = 1000
"""Of a list that people work through."""
_LONGEST_KEY: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcernRow:
    """One line of the list."""

    kind: str
    """unknown, verify, compensate, execute, notify."""
    key: str
    call_id: str
    run_id: str
    tool: str
    version: str
    since: float
    reason: str
    actions: tuple[str, ...]
    """What can be done about it."""

    def record(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in self.__slots__},
            "since": iso(self.since) if self.since else None,
            "actions": list(self.actions),
        }


class ConcernsDesk(Seat):
    """Looking is for every viewer; what is done about it takes an operator, and a reason."""

    async def concerns(self, *, limit: int = 50, cursor: str | None = None) -> Page[ConcernRow]:
        """What waits for a person, oldest first; the first thousand."""
        limit = bounded(limit)
        beyond = None if cursor is None else read_cursor(cursor, float, str, str)
        found = [
            one
            for one in await self.runtime.store.concerns(self.tenant, _MOST)
            if beyond is None or _place(one) > beyond
        ]
        more = write_cursor(_place(found[limit - 1])) if len(found) > limit else None
        return Page([_row(one) for one in found[:limit]], more)

    async def happened(
        self, key: str, *, reason: str, data: Mapping[str, Any] | None = None
    ) -> None:
        """Say that a call took effect. NotThere where none waits under this key."""
        people = await self._about_unknown(key)
        await people.happened(self.tenant, key, reason=reason, data=data)

    async def did_not_happen(self, key: str, *, reason: str) -> None:
        """Say that a call had no effect: its key is free again. NotThere."""
        people = await self._about_unknown(key)
        await people.did_not_happen(self.tenant, key, reason=reason)

    async def compensate(self, key: str, *, reason: str) -> None:
        """Have what a call did reversed. NotThere where nothing is on record under this key."""
        people = self._people()
        if not _fits(key) or await self.runtime.store.look_up(self.tenant, key) is None:
            raise NotThere("concern")
        await people.compensate(self.tenant, key, reason=reason)

    async def again(self, kind: str, key: str, *, reason: str) -> None:
        """Have work that failed tried once more. NotThere."""
        people, due = await self._about_failed(kind, key)
        await people.again(self.tenant, due, key, reason=reason)

    async def dismiss(self, kind: str, key: str, *, reason: str) -> None:
        """Take work that failed off the list. NotThere."""
        people, due = await self._about_failed(kind, key)
        await people.dismiss(self.tenant, due, key, reason=reason)

    async def act(
        self,
        kind: str,
        key: str,
        action: str,
        *,
        reason: str,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Any of the above by name. NotThere for an action that there is not."""
        self.needs(Role.OPERATOR)
        if action not in ACTIONS.get(kind, ()):
            raise NotThere("concern")
        if action == "happened":
            await self.happened(key, reason=reason, data=data)
        elif action == "did_not_happen":
            await self.did_not_happen(key, reason=reason)
        elif action == "compensate":
            await self.compensate(key, reason=reason)
        elif action == "again":
            await self.again(kind, key, reason=reason)
        else:
            await self.dismiss(kind, key, reason=reason)

    # --- inside -----------------------------------------------------------------------------------

    def _people(self) -> OperatorList:
        self.needs(Role.OPERATOR)
        return OperatorList(self.runtime, by=self.person.name)

    async def _about_unknown(self, key: str) -> OperatorList:
        people = self._people()
        kept = await self.runtime.store.look_up(self.tenant, key) if _fits(key) else None
        waits = kept is not None and kept.entry.phase is Phase.ESCALATED
        if kept is None or not waits or kept.entry.status is not Status.PENDING:
            raise NotThere("concern")
        return people

    async def _about_failed(self, kind: str, key: str) -> tuple[OperatorList, DueKind]:
        people = self._people()
        if kind not in DueKind.__members__.values() or not _fits(key):
            raise NotThere("concern")
        work = await self.runtime.store.find_due(self.tenant, DueKind(kind), key)
        if work is None or work.failed is None:
            raise NotThere("concern")
        return people, DueKind(kind)


def _row(one: Concern) -> ConcernRow:
    return ConcernRow(
        kind=one.kind,
        key=one.key,
        call_id=one.call_id,
        run_id=one.run_id,
        tool=one.tool,
        version=one.version,
        since=one.since,
        reason=one.reason,
        actions=ACTIONS.get(one.kind, ()),
    )


def _place(one: Concern) -> tuple[float, str, str]:
    return one.since, one.kind, one.key


def _fits(key: str) -> bool:
    """Whether a store could hold such a key."""
    return 0 < len(key) <= _LONGEST_KEY and "\0" not in key and _is_text(key)


def _is_text(key: str) -> bool:
    return key.encode(errors="replace").decode() == key
