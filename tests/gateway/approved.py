"""What tests of approvals over MCP share: a client that is asked, and how answers look."""

from __future__ import annotations

import mcp_types as types

from tests.gateway.served import facts, said

LETTER = {"to": "ann"}
ACCEPT = types.ElicitResult(action="accept")


class Asked:
    """What the client in front is asked, and how it answers."""

    def __init__(self, action="accept", then=None):
        self.action = action
        self.then = then
        self.asked = []

    async def __call__(self, context, params):
        self.asked.append(params)
        if self.then is not None:
            await self.then()
        return types.ElicitResult(action=self.action)


async def first_round(client, arguments=LETTER, **how):
    return await client.session.call_tool("send", arguments, allow_input_required=True, **how)


async def second_round(client, first, answer=ACCEPT, arguments=LETTER, **how):
    """With an answer, or without any."""
    given = {} if answer is None else {"approval": answer}
    how.setdefault("request_state", first.request_state)
    return await first_round(client, arguments, input_responses=given, **how)


def needs_approval(result, served):
    """A structured "approval required", with where to decide."""
    assert result.is_error
    told = facts(result)
    assert told["code"] == "CONFIRMATION_MISSING"
    assert told["response"]["requires_approval"] is True
    assert told["response"]["next_action"] == "await_approval"
    link = told["approval"]
    assert link["url"] == f"https://console.test/approvals/{link['id']}"
    assert link["url"] in said(result)
    assert result.structured_content["approval"] == link
    return link["id"]


def rejected(result):
    """The approval was rejected: there is nothing to wait for."""
    assert result.is_error
    told = facts(result)
    assert told["code"] == "CONFIRMATION_MISSING"
    assert told["response"]["next_action"] == "replan"
    assert "A person has rejected this call." in said(result)
    assert "make the same call again" not in said(result)
    assert "url" not in told["approval"]
