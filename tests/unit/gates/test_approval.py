"""The approval gate: a call that needs an approval runs only with one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal import Proposal, Registry
from counterseal.approvals.terms import Terms, Then, contract_terms, strictest
from counterseal.canonical import digest
from counterseal.codes import Code
from counterseal.execution.executor import Executor
from counterseal.gates.approval import check
from counterseal.gates.base import GateContext, Learned, Verdict, require_approval
from counterseal.ledger.records import Held, HeldStatus, RunRecord
from counterseal.ledger.requests import Memory
from counterseal.registry import RegistryRecord
from counterseal.testing import fake_tool, someone

REQUIREMENT = require_approval(
    "policy", "It leaves the house.", rule="default.external", approvers=1
)
ARGUMENTS = {"case_id": "case_1", "amount": 3}


RECORD = RegistryRecord(contract=fake_tool("send", effect="draft").contract)


TERMS = strictest([contract_terms(RECORD.contract), Terms(approvers=1)])


def held(status, arguments=ARGUMENTS, **more):
    known = dict.fromkeys(("key", "call_id", "run_id", "tool", "version", "trace_id"), "")
    return Held(
        **known,
        approval_id="appr_1",
        tenant="acme",
        approval_hash=digest(arguments),
        contract_hash=RECORD.contract.hash,
        agent="agent",
        user="u_1",
        reason="",
        rule=None,
        approvers=1,
        risk=RECORD.contract.risk.value,
        demand=TERMS.record(),
        version_seen=None,
        created_at=0.0,
        expires_at=600.0,
        sealed=b"",
        status=status,
        **more,
    )


def context(status=None, *, approved=ARGUMENTS, proposed=ARGUMENTS, requirements=(REQUIREMENT,)):
    known = None if status is None else held(status, approved)
    memory = Memory(None, known, {}, {}, {})
    return GateContext(
        proposal=Proposal(tool="send", arguments=proposed),
        principal=someone(),
        call_id="call_1",
        now=0.0,
        record=RECORD,
        registry=Registry(),
        executor=Executor(),
        arguments=proposed,
        requirements=requirements,
        memory=memory,
        run=RunRecord(tenant="acme", run_id="", started_at=0.0),
    )


def is_held(decision):
    return (
        decision.verdict is Verdict.REQUIRE_APPROVAL
        and decision.code is Code.CONFIRMATION_MISSING
        and (decision.reason, decision.rule) == (REQUIREMENT.reason, REQUIREMENT.rule)
    )


@pytest.mark.parametrize("status", [None, *HeldStatus])
def test_no_approval_is_requested_where_none_is_needed(status):
    assert check(context(status, requirements=())).verdict is Verdict.ALLOW


def test_a_call_without_a_request_for_approval_is_held():
    assert is_held(check(context()))


def test_a_call_that_waits_goes_on_waiting():
    assert is_held(check(context(HeldStatus.WAITING)))


def test_a_yes_is_handed_on_to_be_spent():
    said = check(context(HeldStatus.APPROVED))
    assert said.decision.verdict is Verdict.ALLOW
    assert said.decision.rule == "default.external"
    assert said.facts == {"approval_id": "appr_1"}


@pytest.mark.parametrize(
    ("status", "word"), [(HeldStatus.REJECTED, "rejected"), (HeldStatus.EXPIRED, "expired")]
)
def test_a_no_ends_it_and_names_what_was_asked(status, word):
    decision = check(context(status))
    assert (decision.verdict, decision.code) == (Verdict.DENY, Code.CONFIRMATION_MISSING)
    assert (decision.next_action, decision.approval_id) == ("replan", "appr_1")
    assert word in decision.reason


def test_a_yes_that_was_used_is_used_up():
    assert is_held(check(context(HeldStatus.SPENT)))


@pytest.mark.parametrize("status", HeldStatus)
@pytest.mark.parametrize(
    "other", [{}, {**ARGUMENTS, "amount": 4}, {**ARGUMENTS, "note": ""}, {"case_id": "case_1"}]
)
def test_whatever_was_said_of_other_arguments_is_said_of_others(status, other):
    assert is_held(check(context(status, proposed=other)))


values = st.one_of(st.booleans(), st.integers(-99, 99), st.text(max_size=3))
objects = st.dictionaries(st.text(max_size=3), values, max_size=4)


@given(approved=objects, proposed=objects)
def test_a_yes_covers_exactly_the_arguments_that_were_shown(approved, proposed):
    said = check(context(HeldStatus.APPROVED, approved=approved, proposed=proposed))
    same = digest(approved) == digest(proposed)
    assert isinstance(said, Learned) is same
    assert same is (sorted(map(repr, approved.items())) == sorted(map(repr, proposed.items())))


def test_the_first_of_several_requirements_is_the_one_that_is_told():
    more = require_approval("policy", "Another reason.", rule="other")
    assert is_held(check(context(requirements=(REQUIREMENT, more))))


def test_without_memory_nothing_was_approved():
    assert is_held(check(context().replace(memory=None)))


@pytest.mark.parametrize("status", [HeldStatus.EXPIRED, HeldStatus.WAITING, HeldStatus.APPROVED])
def test_an_expired_request_blocks_its_own_run_for_as_long_again(status):
    ctx = context(status)
    elsewhere = RunRecord(tenant="acme", run_id="other", started_at=0.0)
    for now in (600.0, 1199.0):
        assert check(ctx.replace(now=now)).next_action == "replan"
        assert is_held(check(ctx.replace(now=now, run=elsewhere)))
    assert is_held(check(ctx.replace(now=1200.0)))


def test_a_rejection_blocks_every_run():
    elsewhere = RunRecord(tenant="acme", run_id="other", started_at=0.0)
    ctx = context(HeldStatus.REJECTED).replace(run=elsewhere, now=9e9)
    assert check(ctx).next_action == "replan"


@pytest.mark.parametrize(
    ("now", "covered"),
    [
        ({"expires_after": TERMS.expires_after + 1}, True),
        ({"expires_after": TERMS.expires_after - 1}, False),
        ({"then": Then.EXECUTE}, True),
        ({"then": Then.RESUBMIT}, TERMS.then is Then.RESUBMIT),
    ],
)
def test_a_yes_on_easier_terms_than_today_is_none(now, covered):
    asked = REQUIREMENT._replace(terms=Terms(approvers=1, **now))
    assert (
        isinstance(check(context(HeldStatus.APPROVED, requirements=(asked,))), Learned) is covered
    )


@pytest.mark.parametrize("demand", [{}, {"pattern": "?"}, {**TERMS.record(), "more": 1}])
def test_unreadable_terms_count_as_not_met(demand):
    ctx = context(HeldStatus.APPROVED)
    garbled = replace(ctx.memory.held, demand=demand)
    assert is_held(check(ctx.replace(memory=ctx.memory._replace(held=garbled))))


@pytest.mark.parametrize("vote", ["text", {}, {"decision": "?"}, {"decision": "reject"}])
def test_votes_that_can_not_be_read_say_nothing(vote):
    ctx = context(HeldStatus.REJECTED)
    garbled = replace(ctx.memory.held, votes=(vote,))
    decision = check(ctx.replace(memory=ctx.memory._replace(held=garbled)))
    assert decision.reason == "An approver rejected the call."
