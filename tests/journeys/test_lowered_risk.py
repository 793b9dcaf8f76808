"""A contract that lowers its risk class: its effect decides until an operator accepts that."""

from contextlib import AsyncExitStack

import pytest

from counterseal import Budgets, Grant, Proposal, Runtime
from counterseal.audit import EventType
from counterseal.codes import Code
from counterseal.contract.effects import RISKS, RiskClass
from counterseal.errors import RegistryError
from counterseal.operations.operator import ALL_TENANTS
from counterseal.testing import FakeClock, fake_tool, someone

WHO = someone()
CASE = {
    "type": "object",
    "properties": {"case_id": {"type": "string", "maxLength": 20, "description": "Which."}},
    "required": ["case_id"],
    "additionalProperties": False,
}
SENTENCE = "Our test system has nothing to lose."


def lowered(effect="irreversible", risk="READ_ONLY", **more):
    more = {"risk_justification": SENTENCE, "budget": 10, **more}
    return fake_tool("erase", effect=effect, risk=risk, input_schema=CASE, **more)


class Worker:
    """A runtime as a process has it: its own registry and tool, and the shared store."""

    def __init__(self, runtime, tool, **grant):
        self.runtime, self.tool = runtime, tool
        runtime.register(tool.tool, grants=[Grant(agent="agent", tool="erase", **grant)])
        self.operator = runtime.operator("u_7")
        self._cases = 0

    async def submit(self, run_id="run_1"):
        self._cases += 1
        arguments = {"case_id": f"c{self._cases}-{id(self)}"[:20]}
        proposal = Proposal(tool="erase", arguments=arguments, run_id=run_id)
        return await self.runtime.submit(proposal, WHO)


@pytest.fixture
async def start(tmp_path):
    """Starts a worker, as often as one likes; all end with the test."""
    clock = FakeClock()
    async with AsyncExitStack() as stack:

        async def start(tool=None, **grant):
            runtime = Runtime.open(f"sqlite:///{tmp_path}/store.db", clock=clock)
            await stack.enter_async_context(runtime)
            return Worker(runtime, tool or lowered(), **grant)

        yield start


async def request_of(worker):
    (held,) = await worker.runtime.approvals.list("acme")
    return held


# --- the floor ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effect", "approvers", "judged"),
    [
        ("irreversible", 2, "CRITICAL_MUTATION"),
        ("external_notification", 1, "HIGH_RISK_EXTERNAL"),
    ],
)
@pytest.mark.parametrize("risk", ["READ_ONLY", "EPHEMERAL_WRITE", "LOW_RISK_INTERNAL"])
async def test_a_sentence_of_the_author_removes_no_approver(start, effect, approvers, judged, risk):
    worker = await start(lowered(effect, risk))
    answer = await worker.submit()
    assert answer.code is Code.CONFIRMATION_MISSING
    assert worker.tool.calls == []
    held = await request_of(worker)
    assert (held.approvers, held.risk) == (approvers, judged)


async def test_approvers_that_the_author_wrote_down_as_none_are_still_asked(start):
    transactional = {"confirmation_required": False}
    worker = await start(lowered(approvers=0, transactional=transactional))
    assert (await worker.submit()).code is Code.CONFIRMATION_MISSING


async def test_consent_of_one_user_does_not_stand_for_two_people(start):
    worker = await start(lowered(approvers=1, approval={"pattern": "user_consent"}))
    assert (await worker.submit()).code is Code.CONFIRMATION_MISSING
    held = await request_of(worker)
    assert (held.approvers, held.demand["pattern"]) == (2, "dual_control")


async def test_change_of_regulated_data_is_approved_whatever_the_author_calls_it(start):
    worker = await start(lowered("internal_mutation", data_classification="regulated"))
    answer = await worker.submit()
    assert answer.code is Code.CONFIRMATION_MISSING
    held = await request_of(worker)
    assert held.rule == "default.sensitive-write"


async def test_limit_of_a_grant_is_compared_with_the_risk_of_the_effect(start):
    worker = await start(risk_limit="MEDIUM_RISK_WRITE")
    answer = await worker.submit()
    assert answer.code is Code.PERMISSION_DENIED
    await worker.operator.accept_risk("erase", "1.0.0", reason="sandboxed")
    assert (await worker.submit()).ok


async def test_budget_for_critical_calls_counts_a_lowered_one(start):
    worker = await start()
    await worker.runtime.run(WHO, "run_1", budgets=Budgets(critical=0))
    assert (await worker.submit()).code is Code.BUDGET_EXHAUSTED


@pytest.mark.parametrize("audit_required", [True, False])
async def test_call_is_on_record_before_it_runs(start, audit_required):
    worker = await start(
        lowered("draft", "READ_ONLY", observability={"audit_required": audit_required})
    )
    assert (await worker.submit()).ok
    kinds = [event.type for _, event in await worker.runtime.store.events("acme")]
    assert EventType.STARTED in kinds


# --- acceptance -----------------------------------------------------------------------------------


async def test_operator_accepts_on_record_and_every_worker_follows(start):
    here, there = await start(), await start()
    change = await here.operator.accept_risk("erase", "1.0.0", reason="test system only")
    await there.runtime.catch_up()
    assert (await there.submit()).ok
    assert there.tool.calls
    ((_, event),) = await here.runtime.store.events(ALL_TENANTS)
    assert event.type is EventType.REGISTRY_CHANGED
    assert (event.caller.user, event.decision) == ("u_7", "accept_risk")
    assert event.body["reason"] == "test system only"
    assert event.body["contract_hash"] == here.tool.contract.hash
    assert change.export()["by"] == "u_7"
    (record,) = there.runtime.registry.export()["records"]
    assert (record["risk_class"], record["judged_as"]) == ("READ_ONLY", "READ_ONLY")
    assert record["risk_accepted"] is True
    (drift,) = record["drift"]
    assert (drift["field"], drift["by"], drift["reason"]) == (
        "risk_accepted",
        "u_7",
        "test system only",
    )


async def test_acceptance_survives_a_restart_and_holds_for_that_contract_only(start):
    here = await start()
    await here.operator.accept_risk("erase", "1.0.0", reason="test system only")
    again = await start()
    assert (await again.submit()).ok
    edited = await start(lowered(usage="Whenever you like."))
    assert (await edited.submit()).code is Code.CONFIRMATION_MISSING
    newer = await start(lowered(version="1.1.0"))
    assert (await newer.submit("run_2")).code is Code.CONFIRMATION_MISSING


async def test_acceptance_is_withdrawn_on_every_worker(start):
    here, there = await start(), await start()
    await here.operator.accept_risk("erase", "1.0.0", reason="test system only")
    await there.runtime.catch_up()
    assert (await there.submit()).ok
    await here.operator.accept_risk("erase", "1.0.0", accepted=False, reason="now it is live")
    answer = await there.submit()
    assert answer.code is Code.CONFIRMATION_MISSING, "the admission knows that the registry changed"
    assert len(there.tool.calls) == 1
    (record,) = there.runtime.registry.export()["records"]
    assert (record["risk_class"], record["judged_as"]) == ("READ_ONLY", "CRITICAL_MUTATION")


@pytest.mark.parametrize(
    ("tool", "version", "reason", "message"),
    [
        (lowered(risk="CRITICAL_MUTATION"), "1.0.0", "x", "does not lower the risk class"),
        (lowered(), "9.9.9", "x", "has no version '9.9.9'"),
        (lowered(), "1.0.0", " ", "reason must be a text"),
    ],
)
async def test_what_is_not_lowered_or_not_there_is_not_accepted(
    start, tool, version, reason, message
):
    worker = await start(tool)
    with pytest.raises(RegistryError, match=message):
        await worker.operator.accept_risk("erase", version, reason=reason)
    assert await worker.runtime.store.events(ALL_TENANTS) == []


def test_every_risk_class_with_approvers_is_on_record():
    rows = [RISKS[risk] for risk in RiskClass]
    assert all(row.audit for row in rows if row.approval.approvers)
