"""A call that a person has to approve: where they decide, and how long its client waits for it.

The client only carries the question to somebody: it is shown a link, and its answer means "go on",
never "approved". Who decides signs in where the link leads, or uses the command line. Nobody waits
longer than the given time; the same call made later finds the decision, and is executed once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from counterseal.codes import RESPONSES, Code
from counterseal.contract.tool_context import RefusedError
from counterseal.gateway.asking import Fronted
from counterseal.observation import Observation
from counterseal.operations.approver import ApprovalError
from counterseal.proposal import Principal
from counterseal.runtime import Runtime

__all__ = ["QUESTION", "Waiting", "needs_person"]

QUESTION: Final = "approval"
"""Under which name the client is pointed to a request, beside other questions of a call."""

_AWAITED: Final = RESPONSES[Code.CONFIRMATION_MISSING].next_action
"""What a model is to do while nobody has decided. After a rejection it is something else."""


def needs_person(seen: Observation) -> bool:
    """Whether somebody is asked to decide on a call, and has not yet."""
    return seen.next_action == _AWAITED and seen.approval_id is not None


class Waiting:
    """How clients are told of requests for approval, and wait for them."""

    def __init__(self, runtime: Runtime, *, console: str, seconds: float) -> None:
        self._runtime = runtime
        self._console = console.rstrip("/")
        self.seconds = seconds
        """How long a call waits, for a person or for another that is like it."""

    def link(self, seen: Observation) -> dict[str, Any] | None:
        """Where a person decides, for whoever reads the result."""
        if seen.approval_id is None:
            return None
        return {"id": seen.approval_id, "url": f"{self._console}/approvals/{seen.approval_id}"}

    async def question(self, client: Fronted, seen: Observation, who: Principal) -> dict[str, Any]:
        """What the client is to show, as the params of `elicitation/create`."""
        link = self.link(seen) or {}
        message = await self._message(seen, who)
        if client.can("elicitation.url"):
            return {"mode": "url", "message": message, "url": link["url"]}
        text = f"{message}\nDecide at {link['url']}, then go on here."
        return {"mode": "form", "message": text, "requestedSchema": _NOTHING}

    async def _message(self, seen: Observation, who: Principal) -> str:
        try:
            packet = await self._runtime.approvals.get(who.tenant, seen.approval_id or "")
        except ApprovalError:
            return f"A person has to approve this call of {seen.tool}."
        return f"A person has to approve this: {packet.consequence}"

    async def pointed_out(self, client: Fronted, seen: Observation, who: Principal) -> bool:
        """Send the client the question, and wait for the decision. Whether there may be one."""
        asked = dict(await self.question(client, seen, who))
        if asked["mode"] == "url":
            asked["elicitationId"] = seen.approval_id
        else:
            del asked["mode"]  # a form is what those expect who know no other mode
        asking = asyncio.ensure_future(client.ask("elicitation/create", asked, name=QUESTION))
        deciding = asyncio.ensure_future(self.decided(seen.approval_id, who))
        try:
            await asyncio.wait({asking, deciding}, return_when=asyncio.FIRST_COMPLETED)
            if deciding.done() or await _went_on(asking):
                return await deciding
            return await self.decided(seen.approval_id, who, 0.0)
        finally:
            asking.cancel()
            deciding.cancel()

    async def decided(
        self, approval_id: str | None, who: Principal, seconds: float | None = None
    ) -> bool:
        """Whether somebody decided, after a while at most."""
        most = self.seconds if seconds is None else seconds
        try:
            packet = await self._runtime.approvals.wait(who.tenant, approval_id or "", most)
        except ApprovalError:
            return True  # whatever is wrong with it, the call itself is told
        return packet.status != "waiting"


async def _went_on(asking: asyncio.Future[dict[str, Any]]) -> bool:
    """Whether the client says to go on. That it is gone, or can't be asked, says nothing."""
    try:
        return (await asking).get("action") == "accept"
    except RefusedError:
        return False


_NOTHING: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}
