"""What a client does, by subject."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from counterseal.client.wire import in_path, query_of, request_of
from counterseal.views import (
    ApprovalPage,
    ApprovalRow,
    AttentionRow,
    AuditReport,
    CallPage,
    CallRow,
    ChainStatus,
    EventRow,
    GrantRow,
    KillRow,
    ToolPage,
    ToolRow,
)
from counterseal.views.tools import CatalogueEntry, StoppedTool

if TYPE_CHECKING:
    from counterseal.client import Client

__all__ = ["Approvals", "Audit", "Calls", "Concerns", "Grants", "Kills", "Tools"]


class _Part:
    def __init__(self, client: Client) -> None:
        self._client = client


class Calls(_Part):
    def search(self, **query: Any) -> AsyncIterator[CallRow]:
        """Calls, newest first; takes what `/v1/calls` takes, such as tool, code and since."""
        return self._client.pages("/v1/calls", CallRow, query)

    async def get(self, call_id: str) -> CallPage:
        told = await self._client.get(f"/v1/calls/{in_path(call_id)}")
        return CallPage.model_validate(told)

    async def events(self, call_id: str) -> Sequence[EventRow]:
        path = f"/v1/calls/{in_path(call_id)}/events"
        return await self._client.items(path, EventRow)


class Approvals(_Part):
    def list(self, status: str = "waiting", **query: Any) -> AsyncIterator[ApprovalRow]:
        """What waits, what ends first at the top; or what was decided."""
        query["status"] = status
        return self._client.pages("/v1/approvals", ApprovalRow, query)

    async def get(self, approval_id: str) -> ApprovalPage | ApprovalRow:
        """In full for people, in short for the agent that asked."""
        return request_of(await self._client.get(f"/v1/approvals/{in_path(approval_id)}"))

    async def wait(self, approval_id: str, seconds: float = 30.0) -> ApprovalPage | ApprovalRow:
        """The same once it is decided, or as it is when the time is over; 30 s at most."""
        path = f"/v1/approvals/{in_path(approval_id)}/wait"
        return request_of(await self._client.get(path, {"seconds": min(seconds, 30.0)}))

    async def decide(
        self, approval_id: str, decision: Literal["approve", "reject"], **said: str
    ) -> ApprovalPage | None:
        """Vote; takes comment, justification and typed. None: it can't be shown there."""
        path = f"/v1/approvals/{in_path(approval_id)}/decision"
        told = await self._client.post(path, {"decision": decision, **said})
        return None if told is None else ApprovalPage.model_validate(told)


class Tools(_Part):
    async def list(self) -> Sequence[ToolRow]:
        """For people: every tool of the tenant."""
        return await self._client.items("/v1/tools", ToolRow)

    async def catalogue(self, run: str | None = None) -> Sequence[CatalogueEntry]:
        """For an agent: what it may use."""
        return await self._client.items("/v1/tools", CatalogueEntry, {"run": run})

    async def get(self, name: str) -> ToolPage:
        return ToolPage.model_validate(await self._client.get(f"/v1/tools/{in_path(name)}"))

    async def enable(self, name: str, *, reason: str, version: str | None = None) -> None:
        await self._client.post(
            f"/v1/tools/{in_path(name)}/enable", {"reason": reason, "version": version}
        )

    async def disable(self, name: str, *, reason: str, version: str | None = None) -> None:
        await self._client.post(
            f"/v1/tools/{in_path(name)}/disable", {"reason": reason, "version": version}
        )


class Grants(_Part):
    async def list(self, **query: Any) -> Sequence[GrantRow]:
        return await self._client.items("/v1/grants", GrantRow, query)

    async def give(self, agent: str, tool: str, *, reason: str, **limits: Any) -> GrantRow:
        body = {"agent": agent, "tool": tool, "reason": reason, **query_of(limits)}
        return GrantRow.model_validate(await self._client.post("/v1/grants", body))

    async def revoke(self, grant_id: str, *, reason: str) -> None:
        await self._client.delete(f"/v1/grants/{in_path(grant_id)}", {"reason": reason})


class Kills(_Part):
    async def list(self) -> Sequence[KillRow]:
        return await self._client.items("/v1/kills", KillRow)

    async def preview(
        self, *, tool: str | None = None, effect: str | None = None
    ) -> Sequence[StoppedTool]:
        """What such a kill would stop."""
        told = await self._client.post("/v1/kills/preview", {"tool": tool, "effect": effect})
        return [StoppedTool.model_validate(one) for one in told["items"]]

    async def kill(
        self, *, reason: str, tool: str | None = None, effect: str | None = None
    ) -> KillRow:
        """Stop a tool, every tool of an effect, or everything."""
        body = {"tool": tool, "effect": effect, "reason": reason}
        return KillRow.model_validate(await self._client.post("/v1/kills", body))

    async def restore(self, kill_id: str, *, reason: str) -> None:
        await self._client.delete(f"/v1/kills/{in_path(kill_id)}", {"reason": reason})


class Concerns(_Part):
    def list(self) -> AsyncIterator[AttentionRow]:
        return self._client.pages("/v1/concerns", AttentionRow, {})

    async def act(self, kind: str, key: str, action: str, *, reason: str, **more: Any) -> None:
        """One of its `actions`; `happened` takes `data`."""
        path = f"/v1/concerns/{in_path(kind)}/{in_path(key)}/{in_path(action)}"
        await self._client.post(path, {"reason": reason, **more})


class Audit(_Part):
    async def chain(self) -> ChainStatus:
        """How far the record is sealed."""
        return ChainStatus.model_validate(await self._client.get("/v1/audit"))

    async def verify(self) -> AuditReport:
        """Check all of it."""
        return AuditReport.model_validate(await self._client.post("/v1/audit/verify", {}))

    def export(self, form: Literal["jsonl", "csv"] = "jsonl", **query: Any) -> AsyncIterator[bytes]:
        """All events as they come, in chunks; takes since and until."""
        return self._client.lines("/v1/audit/export", {"format": form, **query})
