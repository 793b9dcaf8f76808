"""Needs attention: work that only a person can settle, and the actions for it.

The list holds unknown outcomes, failed verifications, failed compensations, approved calls that
could not be executed, and notifications that could not be delivered. On the wire it is called
`concerns`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field

from counterseal.accounts.users import Role
from counterseal.audit import EventType
from counterseal.ledger.entry import EntryStatus, Phase
from counterseal.ledger.records import Concern, DueKind
from counterseal.ledger.requests import EventFilter
from counterseal.operations.attention import NeedsAttention
from counterseal.storage.store import Store
from counterseal.views.base import (
    MAX_PAGE,
    Moment,
    NotFoundError,
    Page,
    RowModel,
    TenantSection,
    page_size,
    read_cursor,
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
_TELLING: Final = (EventType.REQUESTED.value, EventType.APPROVAL_REQUIRED.value)
"""Events that say what a call is about."""
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
    resource: str | None = Field(description="What the call acts on.")
    consequence: str | None = Field(description="What the call does, in a sentence, redacted.")
    actions: list[str]


async def attention_row(store: Store, concern: Concern) -> AttentionRow:
    """Return a stored item as a row: what the call is about, and the actions for its kind."""
    wanted = EventFilter(call_id=concern.call_id, types=_TELLING, limit=1)
    events = await store.search(concern.tenant, wanted)
    body = events[0][1].body if events else {}
    return AttentionRow(
        **{**concern._asdict(), "since": concern.since or None},
        resource=body.get("resource"),
        consequence=body.get("consequence"),
        actions=list(ACTIONS.get(concern.kind, ())),
    )


class AttentionViews(TenantSection):
    """Items of a tenant. Viewers may read; actions require the role operator and a reason."""

    async def rows(self, *, limit: int = 50, cursor: str | None = None) -> Page[AttentionRow]:
        """Return what waits for a person, oldest first; the first thousand items."""
        limit = page_size(limit)
        after = None if cursor is None else read_cursor(cursor, float, str, str)
        stored = await self.runtime.store.concerns(self.tenant, _MAX_LISTED)
        listed = [((one.since, one.kind, one.key), one) for one in stored]
        if after is not None:
            listed = [(position, one) for position, one in listed if position > after]
        more = write_cursor(*listed[limit - 1][0]) if len(listed) > limit else None
        rows = [await attention_row(self.runtime.store, one) for _, one in listed[:limit]]
        return Page[AttentionRow](items=rows, next=more)

    async def count(self) -> int:
        """Return how many items wait, up to `MAX_PAGE`."""
        return len(await self.runtime.store.concerns(self.tenant, MAX_PAGE))

    async def act(
        self,
        kind: str,
        key: str,
        action: str,
        *,
        reason: str,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Carry out an action by its name. Raises NotFoundError if this kind of item lacks it.

        `data` is the result of a call that happened.
        """
        self.require(Role.OPERATOR)
        is_text = key.encode(errors="replace").decode() == key and "\0" not in key
        storable = is_text and 0 < len(key) <= _MAX_KEY
        offered = storable and action in ACTIONS.get(kind, ())
        if not offered or not await self._applies(action, kind, key):
            raise NotFoundError("concern")
        operator, tenant = NeedsAttention(self.runtime, by=self.person.name), self.tenant
        match action:
            case "happened":
                await operator.happened(tenant, key, reason=reason, data=data)
            case "did_not_happen":
                await operator.did_not_happen(tenant, key, reason=reason)
            case "compensate":
                await operator.compensate(tenant, key, reason=reason)
            case "again":
                await operator.again(tenant, DueKind(kind), key, reason=reason)
            case "dismiss":
                await operator.dismiss(tenant, DueKind(kind), key, reason=reason)

    async def _applies(self, action: str, kind: str, key: str) -> bool:
        """Return whether the item waits for this action."""
        if kind == "unknown" or action == "compensate":
            kept = await self.runtime.store.look_up(self.tenant, key)
            if kept is None or kind != "unknown":
                return kept is not None
            return kept.entry.phase is Phase.ESCALATED and kept.entry.status is EntryStatus.PENDING
        work = await self.runtime.store.find_due(self.tenant, DueKind(kind), key)
        return work is not None and work.failed is not None
