"""An office with two tenants: a runtime with a few tools, and views for people at it."""

import pytest

from counterseal.accounts.users import Person
from counterseal.ledger.records import Due, DueKind
from counterseal.ledger.requests import Claim, FinishRequest
from counterseal.proposal import Proposal
from counterseal.registry import Grant
from counterseal.runtime import Runtime
from counterseal.testing import fake_tool, someone
from counterseal.views import TenantView

NUMBER = {
    "type": "object",
    "properties": {"n": {"type": "integer", "description": "A number."}},
    "required": ["n"],
    "additionalProperties": False,
}
OUTPUT = {"type": "object", "properties": {"ok": {"type": "boolean"}}}


class Office:
    """Calls are made here, and people look at them."""

    def __init__(self, runtime, tools):
        self.runtime = runtime
        self.tools = tools

    async def call(self, tool, arguments=None, *, tenant="acme", agent="agent", **more):
        proposal = Proposal(
            tool=tool,
            arguments={"n": 1} if arguments is None else arguments,
            run_id=more.pop("run_id", "run_1"),
            **more,
        )
        return await self.runtime.submit(proposal, someone(agent, tenant))

    async def fail(self, key, call_id="call_1", tenant="acme"):
        """Put a verification on the operator's list."""
        store = self.runtime.store
        due = Due(tenant, DueKind.VERIFY, key, call_id, "run_1", "save", "1.0.0")
        await store.schedule(0.0, due, [])
        (work,) = [one for one in await store.claim_due(Claim("w", 9.0)) if one.key == key]
        await store.finish(FinishRequest(work, failed="It was not so."))

    def view(self, *roles, tenant="acme", name="ann", everywhere=(), quarantine=None):
        held = frozenset(roles or ("viewer",)) | frozenset(everywhere)
        person = Person(name=name, tenant=tenant, roles=held, everywhere=frozenset(everywhere))
        return TenantView(self.runtime, person, quarantine=quarantine)


def tools_of():
    return {
        "look": fake_tool("look", input_schema=NUMBER),
        "save": fake_tool("save", effect="draft", input_schema=NUMBER, output_schema=OUTPUT),
        "send": fake_tool("send", effect="external_notification", input_schema=NUMBER),
        "wipe": fake_tool("wipe", effect="irreversible", input_schema=NUMBER, resource="case:{n}"),
    }


@pytest.fixture
async def office():
    tools = tools_of()
    async with Runtime.open("memory:") as runtime:
        runtime.register(*(one.tool for one in tools.values()))
        runtime.register(fake_tool("ours").tool, grants=[], allowed_tenants=["acme"])
        runtime.register(fake_tool("theirs").tool, allowed_tenants=["zeta"])
        for name in tools:
            runtime.registry.grant(Grant(agent="agent", tool=name, max_calls_per_run=9))
        yield Office(runtime, tools)
