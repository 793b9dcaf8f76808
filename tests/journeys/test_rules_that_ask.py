"""Rules that ask: the caller's risk level, the state of the world, and an operator's exceptions."""

import pytest

from counterseal import Principal, Proposal
from counterseal.codes import Code
from counterseal.reconcile import Reconciler
from counterseal.testing import approver, fake_tool, runtime_for

UPDATE = {"effect": "internal_mutation", "consequence": "The case is updated."}


def principal(**more):
    return Principal(tenant="acme", agent="agent", user="u_1", **more)


def proposal(tool="update_case", **arguments):
    return Proposal(tool=tool, arguments=arguments, run_id="run_1")


def rules_of(observation):
    return [one.record()["rule"] for one in observation.decisions]


@pytest.mark.parametrize("level", ["low", "medium", "high"])
async def test_internal_change_below_critical_asks_nobody(level):
    tool = fake_tool("update_case", {"ok": True}, **UPDATE)
    async with runtime_for(tool) as runtime:
        observation = await runtime.submit(proposal(), principal(risk_level=level))
    assert observation.code is Code.SUCCESS


async def test_internal_change_at_critical_asks_and_keeps_the_level_until_it_is_executed():
    tool = fake_tool("update_case", {"ok": True}, **UPDATE)
    async with runtime_for(tool) as runtime:
        held = await runtime.submit(proposal(), principal(risk_level="critical"))
        assert (held.code, tool.calls) == (Code.CONFIRMATION_MISSING, [])
        assert "default.critical-level" in rules_of(held)
        await runtime.approvals.answer(approver())
        await Reconciler(runtime).once()
        again = await runtime.submit(proposal(), principal(risk_level="critical"))
    assert (again.code, len(tool.calls)) == (Code.SUCCESS, 1)


async def test_repeat_at_critical_is_answered_from_the_ledger_and_asks_nobody_again():
    tool = fake_tool("update_case", {"ok": True}, **UPDATE)
    async with runtime_for(tool) as runtime:
        await runtime.submit(proposal(), principal())
        again = await runtime.submit(proposal(), principal(risk_level="critical"))
        assert (again.code, again.idempotency_hit) == (Code.SUCCESS, True)
    assert len(tool.calls) == 1
