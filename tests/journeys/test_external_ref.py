"""The destination's own reference, from the output to everything that people look at."""

import pytest

from counterseal import ContractError, Proposal, tool
from counterseal.accounts.users import Person
from counterseal.approvals.packet_formats import WHOLE, RowKey, outline
from counterseal.ledger.records import HeldStatus
from counterseal.operations.attention import NeedsAttention
from counterseal.reconcile import Reconciler
from counterseal.testing import fake_tool, runtime_for, someone
from counterseal.views import TenantView

OUTPUT = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "number": {"type": "integer"}},
    "additionalProperties": False,
}


def paying(answer, effect="draft", **more):
    return fake_tool("pay", answer, effect=effect, output_schema=OUTPUT, **more)


async def paid(runtime):
    return await runtime.submit(Proposal(tool="pay", arguments={}, run_id="run_1"), someone())


async def test_a_reference_is_on_observation_event_ledger_and_page():
    runtime = runtime_for(paying({"id": "pay_77"}, external_ref="/id"))
    seen = await paid(runtime)
    assert seen.external_ref == "pay_77"
    *_, (_, ending) = await runtime.store.events("acme", call_id=seen.call_id)
    assert ending.external_ref == "pay_77"
    viewer = Person(name="vic", tenant="acme", roles=frozenset({"viewer"}))
    page = await TenantView(runtime, viewer).calls.page(seen.call_id)
    assert page.call.external_ref == page.ledger.external_ref == "pay_77"


async def test_a_repeated_call_has_the_reference_of_the_first():
    runtime = runtime_for(paying({"id": "pay_77"}, external_ref="/id"))
    await paid(runtime)
    again = await paid(runtime)
    assert again.idempotency_hit
    assert again.external_ref == "pay_77"


async def test_it_is_no_part_of_the_envelope():
    runtime = runtime_for(paying({"id": "pay_77"}, external_ref="/id"))
    assert "external_ref" not in (await paid(runtime)).envelope()


@pytest.mark.parametrize(("answer", "reference"), [({"number": 12}, "12"), ({}, None)])
async def test_a_number_is_a_reference_and_a_missing_field_is_none(answer, reference):
    runtime = runtime_for(paying(answer, external_ref="/number"))
    assert (await paid(runtime)).external_ref == reference


def test_a_pointer_that_leads_nowhere_is_refused():
    runtime = runtime_for()
    with pytest.raises(ContractError, match="external_ref"):
        runtime.register(paying({}, external_ref="/nowhere").tool)


def test_a_contract_that_declares_none_keeps_its_hash():
    @tool(effect="draft", version="1.0.0", owner="tests")
    async def save() -> None:
        """Save."""

    assert save.contract.hash == save.contract.model_copy(update={"external_ref": None}).hash
    assert save.contract.hash != save.contract.model_copy(update={"external_ref": "/id"}).hash


async def test_the_approver_of_a_reversal_sees_the_reference_of_the_original():
    sends = {"effect": "external_notification"}
    runtime = runtime_for(
        paying({"id": "pay_77"}, external_ref="/id", compensation_tool="refund"),
        fake_tool("refund", {}, **sends),
    )
    seen = await paid(runtime)
    await NeedsAttention(runtime, by="ops").compensate("acme", seen.call_id, reason="Mistake.")
    assert await Reconciler(runtime).once() == {"waiting": 1}
    (held,) = await runtime.store.list_held("acme", HeldStatus.WAITING, 9)
    packet = runtime.approvals.packet(held)
    reverses = {"call_id": seen.call_id, "tool": "pay", "external_ref": "pay_77"}
    assert packet.record()["reverses"] == reverses
    rows = {row.key: row for group in outline(packet, WHOLE, now=None).groups for row in group}
    (line,) = rows[RowKey.REVERSES].lines
    told = "".join(part.text for part in line.parts)
    assert told == f"pay, call {seen.call_id}, reference pay_77"
    viewer = Person(name="vic", tenant="acme", roles=frozenset({"approver"}))
    page = await TenantView(runtime, viewer).approvals.page(held.approval_id)
    assert page.reverses.model_dump() == reverses
