"""Needs attention: work that only a person can settle, and the actions for it.

The list holds unknown outcomes, failed verifications, failed compensations, approved calls that
could not be executed, and notifications that could not be delivered. On the wire it is called
`concerns`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from counterseal.accounts.users import Role
from counterseal.ledger.entry import EntryStatus, Phase
from counterseal.ledger.records import Concern, DueKind
from counterseal.operations.attention import NeedsAttention
from counterseal.views.base import (
    Moment,
    NotFoundError,
    Page,
    RowModel,
    TenantSection,
    page_size,
    read_cursor,
    utc,
    write_cursor,
)

ACTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "unknown": ("happened", "did_not_happen"),
    DueKind.VERIFY.value: ("again", "compensate", "dismiss"),
    DueKind.COMPENSATE.value: ("again", "dismiss"),
    DueKind.EXECUTE.value: ("again", "dismiss"),
    DueKind.NOTIFY.value: ("again", "dismiss"),
}
"""The actions for each kind of item."""
_MAX_LISTED: Final = 1000
_MAX_KEY: Final = 1000


class AttentionRow(RowModel):
    """Something that only a person can settle."""

    kind: str
    key: str
    call_id: str
    run_id: str
    tool: str
    version: str
    since: Moment | None
    reason: str
    actions: list[str]


def attention_row(concern: Concern) -> AttentionRow:
    """Return a stored item as a row, with the actions for its kind."""
    return AttentionRow(
        kind=concern.kind,
        key=concern.key,
        call_id=concern.call_id,
        run_id=concern.run_id,
        tool=concern.tool,
        version=concern.version,
        since=utc(concern.since) if concern.since else None,
        reason=concern.reason,
        actions=list(ACTIONS.get(concern.kind, ())),
    )


class AttentionViews(TenantSection):
    """Items of a tenant. Viewers may read; actions require the role operator and a reason."""

    async def rows(self, *, limit: int = 50, cursor: str | None = None) -> Page[AttentionRow]:
        """Return what waits for a person, oldest first; the first thousand items."""
        limit = page_size(limit)
        after = None if cursor is None else read_cursor(cursor, float, str, str)
        concerns = [
            concern
            for concern in await self.runtime.store.concerns(self.tenant, _MAX_LISTED)
            if after is None or _position(concern) > after
        ]
        more = write_cursor(*_position(concerns[limit - 1])) if len(concerns) > limit else None
        return Page[AttentionRow](
            items=[attention_row(concern) for concern in concerns[:limit]], next=more
        )

    async def act(
        self,
        kind: str,
        key: str,
        action: str,
        *,
        reason: str,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Carry out an action by its name. NotFoundError if this kind of item has no such action.

        `data` is the result of a call that happened.
        """
        self.require(Role.OPERATOR)
        if action not in ACTIONS.get(kind, ()):
            raise NotFoundError("concern")
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

    async def happened(
        self, key: str, *, reason: str, data: Mapping[str, Any] | None = None
    ) -> None:
        """Record that a call with an unknown outcome took effect. NotFoundError."""
        operator = await self._for_unknown(key)
        await operator.happened(self.tenant, key, reason=reason, data=data)

    async def did_not_happen(self, key: str, *, reason: str) -> None:
        """Record that a call had no effect, which frees its key. NotFoundError."""
        operator = await self._for_unknown(key)
        await operator.did_not_happen(self.tenant, key, reason=reason)

    async def compensate(self, key: str, *, reason: str) -> None:
        """Request the reversal of a call. NotFoundError if the ledger has no such key."""
        operator = self._operator()
        if not _is_key(key) or await self.runtime.store.look_up(self.tenant, key) is None:
            raise NotFoundError("concern")
        await operator.compensate(self.tenant, key, reason=reason)

    async def again(self, kind: str, key: str, *, reason: str) -> None:
        """Have failed work tried again. NotFoundError."""
        operator, due = await self._for_failed(kind, key)
        await operator.again(self.tenant, due, key, reason=reason)

    async def dismiss(self, kind: str, key: str, *, reason: str) -> None:
        """Remove failed work from the list. NotFoundError."""
        operator, due = await self._for_failed(kind, key)
        await operator.dismiss(self.tenant, due, key, reason=reason)

    # --- inside -----------------------------------------------------------------------------------

    def _operator(self) -> NeedsAttention:
        self.require(Role.OPERATOR)
        return NeedsAttention(self.runtime, by=self.person.name)

    async def _for_unknown(self, key: str) -> NeedsAttention:
        operator = self._operator()
        kept = await self.runtime.store.look_up(self.tenant, key) if _is_key(key) else None
        escalated = kept is not None and kept.entry.phase is Phase.ESCALATED
        if kept is None or not escalated or kept.entry.status is not EntryStatus.PENDING:
            raise NotFoundError("concern")
        return operator

    async def _for_failed(self, kind: str, key: str) -> tuple[NeedsAttention, DueKind]:
        operator = self._operator()
        if kind not in DueKind.__members__.values() or not _is_key(key):
            raise NotFoundError("concern")
        work = await self.runtime.store.find_due(self.tenant, DueKind(kind), key)
        if work is None or work.failed is None:
            raise NotFoundError("concern")
        return operator, DueKind(kind)


def _position(concern: Concern) -> tuple[float, str, str]:
    return concern.since, concern.kind, concern.key


def _is_key(key: str) -> bool:
    """Return whether a store can hold this key."""
    is_text = key.encode(errors="replace").decode() == key
    return 0 < len(key) <= _MAX_KEY and "\0" not in key and is_text
