"""Rules that ask: the caller's risk level, the state of the world, and an operator's exceptions."""

from datetime import UTC, datetime
from typing import Annotated

import pytest
from pydantic import Field

from counterseal import Grant, Invariant, Policy, Principal, Proposal, Runtime, tool
from counterseal.codes import Code
from counterseal.operations.approver import ApprovalError, Voter
from counterseal.reconcile import Reconciler
from counterseal.testing import FakeClock, approver, fake_tool, runtime_for

SEND = {"effect": "external_notification", "consequence": "Money is sent."}
UPDATE = {"effect": "internal_mutation", "consequence": "The case is updated."}


def principal(**more):
    return Principal(tenant="acme", agent="agent", user="u_1", **more)


def proposal(tool="update_case", **arguments):
    return Proposal(tool=tool, arguments=arguments, run_id="run_1")


def rules_of(observation):
    return [one.record()["rule"] for one in observation.decisions]


@pytest.mark.parametrize("level", ["low", "medium", "high"])
async def test_internal_change_below_critical_needs_no_approval(level):
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


async def test_repeat_at_critical_is_answered_from_the_ledger_without_another_approval():
    tool = fake_tool("update_case", {"ok": True}, **UPDATE)
    async with runtime_for(tool) as runtime:
        await runtime.submit(proposal(), principal())
        again = await runtime.submit(proposal(), principal(risk_level="critical"))
        assert (again.code, again.idempotency_hit) == (Code.SUCCESS, True)
    assert len(tool.calls) == 1


# --- the state of the world -----------------------------------------------------------------------


class Account:
    """An account that a probe reads and a tool changes."""

    def __init__(self, **state):
        self.state = {"version": 1, "frozen": False, "balance": 900, **state}
        self.probed = []
        self.paid = []

    def payer(self, **declared):
        def account(account_id):
            self.probed.append(account_id)
            return dict(self.state)

        @tool(
            effect="internal_mutation",
            version="1.0.0",
            owner="bank",
            consequence="{cents} cents are paid.",
            resource="account:{account_id}",
            probe=account,
            **declared,
        )
        async def pay(
            account_id: Annotated[str, Field(max_length=40, description="Which account.")],
            cents: Annotated[int, Field(ge=1, le=100_000, description="How much.")],
        ) -> str:
            """Pay from an account."""
            self.paid.append(cents)
            return "paid"

        return pay


def policy(*rules):
    return Policy.from_data({"rules": list(rules)})


def opened(tool, rules=None, **options):
    runtime = Runtime.open("memory:", policy=rules, **options)
    runtime.register(tool, grants=[Grant(agent="agent", tool="pay")])
    return runtime


def pay(cents, **more):
    return Proposal(tool="pay", arguments={"account_id": "a_1", "cents": cents}, **more)


ASK_LOW = {
    "id": "low-balance",
    "tools": ["pay"],
    "when": "call.cents > 100 && target.balance - call.cents < 500",
    "then": "require_approval",
    "approvers": 2,
    "reason": "Two people must approve what leaves less than 5.00.",
}
DENY_FROZEN = {
    "id": "frozen",
    "tools": ["pay"],
    "when": "target.frozen",
    "then": "deny",
    "reason": "The account is frozen.",
}


async def test_policy_about_the_target_asks_only_where_the_world_says_so():
    account = Account()
    async with opened(account.payer(), policy(ASK_LOW, DENY_FROZEN)) as runtime:
        small = await runtime.submit(pay(50), principal())
        assert small.code is Code.SUCCESS
        held = await runtime.submit(pay(500), principal())
        assert (held.code, account.paid) == (Code.CONFIRMATION_MISSING, [50])
        assert "low-balance" in rules_of(held)
        [request] = await runtime.approvals.list()
        assert runtime.approvals.packet(request).demand.approvers == 2
        await runtime.approvals.answer(approver("ada"))
        await runtime.approvals.answer(approver("bob"))
        await Reconciler(runtime).once()
        again = await runtime.submit(pay(500), principal())
    assert (again.code, account.paid) == (Code.SUCCESS, [50, 500])


async def test_policy_about_the_target_denies_and_outranks_a_question():
    account = Account(frozen=True)
    async with opened(account.payer(), policy(ASK_LOW, DENY_FROZEN)) as runtime:
        refused = await runtime.submit(pay(500), principal())
        assert await runtime.approvals.list() == []
    assert (refused.code, rules_of(refused)[-1]) == (Code.POLICY_VIOLATION, "frozen")
    assert account.paid == []


async def test_rule_that_only_allows_by_the_target_is_enough_after_the_probe():
    allow = {"id": "rich", "when": "target.balance > 500", "then": "allow", "reason": "Rich."}
    rules = Policy.from_data({"rules": [allow]}, default=False)
    for balance, code in [(900, Code.SUCCESS), (400, Code.POLICY_VIOLATION)]:
        async with opened(Account(balance=balance).payer(), rules) as runtime:
            assert (await runtime.submit(pay(5), principal())).code is code


async def test_policy_wants_one_approver_with_a_role_beside_any_other():
    rule = {"id": "money", "then": "require_approval", "approvers": 2, "reason": "Money moves."}
    policy = Policy.from_data({"rules": [{**rule, "including": ["compliance"]}]})
    async with runtime_for(sender(), policy=policy) as runtime:
        held = await runtime.submit(proposal("refund", cents=1), principal())
        for name, role in (("ann", "approver"), ("ben", "approver"), ("carl", "compliance")):
            person = Voter(user=name, tenant="acme", roles={role})
            if name == "ben":
                with pytest.raises(ApprovalError, match="role that may approve"):
                    await runtime.approvals.decide(held.approval_id, person, "approve")
            else:
                packet = await runtime.approvals.decide(held.approval_id, person, "approve")
        await Reconciler(runtime).once()
        again = await runtime.submit(proposal("refund", cents=1), principal())
    assert packet.status == "approved"
    assert again.code is Code.SUCCESS


UNLESS = {
    "id": "small-refunds",
    "then": "allow",
    "instead_of": ["default.external", "default.contract"],
    "reason": "Refunds of up to 50 EUR were agreed with the auditors on 1 October.",
}


def sender(**more):
    schema = {
        "type": "object",
        "properties": {"cents": {"type": "integer", "description": "Amount."}},
        "required": ["cents"],
        "additionalProperties": False,
    }
    return fake_tool("refund", {"ok": True}, **SEND, input_schema=schema, **more)


async def test_operator_can_say_ask_unless_and_the_reason_is_on_record():
    policy = Policy.from_data({"rules": [{**UNLESS, "when": "call.cents <= 5000"}]})
    async with runtime_for(sender(), policy=policy) as runtime:
        small = await runtime.submit(proposal("refund", cents=5000), principal())
        large = await runtime.submit(proposal("refund", cents=5001), principal())
        events = [event for _, event in await runtime.store.events("acme")]
    assert small.code is Code.SUCCESS
    assert "small-refunds" in rules_of(small)
    assert large.code is Code.CONFIRMATION_MISSING
    assert any("small-refunds" in str(event) for event in events)


async def test_ask_unless_the_target_allows_it_is_decided_when_the_target_is_known():
    rule = {**UNLESS, "when": "target.status == 'open'"}
    for status, code in (("open", Code.SUCCESS), ("closed", Code.CONFIRMATION_MISSING)):
        world = {"version": 1, "status": status}
        tool = sender(resource="case:1", probe=lambda world=world: world)
        async with runtime_for(tool, policy=Policy.from_data({"rules": [rule]})) as runtime:
            seen = await runtime.submit(proposal("refund", cents=1), principal())
        assert seen.code is code, status


async def test_ask_unless_lifts_no_denial_and_no_other_question():
    ask = {"id": "ask", "then": "require_approval", "reason": "So."}
    deny = {"id": "never", "then": "deny", "reason": "No."}
    for other, code in ((ask, Code.CONFIRMATION_MISSING), (deny, Code.POLICY_VIOLATION)):
        policy = Policy.from_data({"rules": [other, UNLESS]})
        async with runtime_for(sender(), policy=policy) as runtime:
            seen = await runtime.submit(proposal("refund", cents=1), principal())
        assert seen.code is code


async def test_exception_that_can_not_be_checked_denies():
    policy = Policy.from_data({"rules": [{**UNLESS, "when": "call.euros <= 50"}]})
    async with runtime_for(sender(), policy=policy) as runtime:
        seen = await runtime.submit(proposal("refund", cents=1), principal())
    assert seen.code is Code.POLICY_VIOLATION


REMOVE = {"budget": 9, "effect": "irreversible"}


async def test_critical_call_needs_a_compliance_approver_unless_an_operator_recorded_why_not():
    way_out = {"id": "two-of-us", "then": "require_approval", "approvers": 2}
    way_out |= {"instead_of": ["default.critical"], "reason": "We are three, none in compliance."}
    for rules, status in (([], "waiting"), ([way_out], "approved")):
        policy = Policy.from_data({"rules": rules})
        async with runtime_for(fake_tool("remove", **REMOVE), policy=policy) as runtime:
            held = await runtime.submit(proposal("remove"), principal())
            ann, ben = (Voter(user=name, tenant="acme", roles=[]) for name in ("ann", "ben"))
            await runtime.approvals.decide(held.approval_id, ann, "approve")
            if not rules:
                with pytest.raises(ApprovalError, match="with the role compliance is still needed"):
                    await runtime.approvals.decide(held.approval_id, ben, "approve")
            else:
                await runtime.approvals.decide(held.approval_id, ben, "approve")
            packet = await runtime.approvals.get("acme", held.approval_id)
        assert (packet.status, packet.demand.approvers) == (status, 2)
        assert packet.demand.rule == ("two-of-us" if rules else "default.critical")


@pytest.mark.parametrize("votes", [0, 1, 2])
async def test_request_from_before_the_role_was_asked_for_is_asked_again(tmp_path, votes):
    url, clock = f"sqlite:///{tmp_path / 'calls.db'}", FakeClock()
    tool, grants = (
        fake_tool("remove", {"ok": True}, **REMOVE),
        [Grant(agent="agent", tool="remove")],
    )
    before = {"id": "two", "then": "require_approval", "approvers": 2, "reason": "Two."}
    lenient = Policy.from_data({"rules": [{**before, "instead_of": ["default.critical"]}]})
    async with Runtime.open(url, policy=lenient, clock=clock) as runtime:
        runtime.register(tool.tool, grants=grants)
        old = (await runtime.submit(proposal("remove"), principal())).approval_id
        for name in ("ann", "ben")[:votes]:
            await runtime.approvals.decide(old, Voter(user=name, tenant="acme"), "approve")
    async with Runtime.open(url, clock=clock) as runtime:
        runtime.register(tool.tool, grants=grants)
        done = await Reconciler(runtime).once()
        seen = await runtime.submit(proposal("remove"), principal())
        ended = (await runtime.approvals.find("acme", old)).status
        events = [event for _, event in await runtime.store.events("acme")]
        (asked,) = await runtime.approvals.list()
        for name in ("ann", "carl"):
            voter = Voter(user=name, tenant="acme", roles=["compliance"])
            await runtime.approvals.decide(asked.approval_id, voter, "approve")
        after = await Reconciler(runtime).once()
    assert "executed" not in done
    assert (seen.code, seen.approval_id) == (Code.CONFIRMATION_MISSING, asked.approval_id)
    assert asked.approval_id != old
    assert ended == ("void" if votes == 2 else "expired")
    why = "The policy now also asks for an approver with the role compliance."
    assert [event.body["reason"] for event in events if event.body.get("reason") == why] == [why]
    assert (after["executed"], len(tool.calls)) == (1, 1)


async def test_target_that_changes_while_people_decide_voids_the_approval():
    account = Account()
    async with opened(account.payer(), policy({**ASK_LOW, "approvers": 1})) as runtime:
        await runtime.submit(pay(500), principal())
        await runtime.approvals.answer(approver())
        account.state |= {"version": 2, "balance": 100}
        await Reconciler(runtime).once()
        again = await runtime.submit(pay(500), principal())
        [asked_anew] = await runtime.approvals.list()
        assert runtime.approvals.packet(asked_anew).before["balance"] == 100
    assert (again.code, account.paid) == (Code.CONFIRMATION_MISSING, [])


# --- the state of the run -------------------------------------------------------------------------


async def test_policy_about_the_runs_state_allows_asks_and_denies_as_the_run_goes_on():
    look = fake_tool(
        "look",
        {"suspicion": "low"},
        {"suspicion": "some"},
        {"suspicion": "high"},
        state_effects=[{"key": "suspicion"}],
    )
    update = fake_tool("update_case", {"ok": True}, **UPDATE)
    about = {"tools": ["update_case"], "reason": "The run has seen something suspicious."}
    rules = policy(
        {**about, "id": "some", "when": "state.suspicion == 'some'", "then": "require_approval"},
        {**about, "id": "high", "when": "state.suspicion == 'high'", "then": "deny"},
    )
    async with runtime_for(look, update, policy=rules) as runtime:
        run = await runtime.run(principal(), "run_1")
        unseen = await run.submit("update_case", key="k0")
        assert (unseen.code, update.calls) == (Code.POLICY_VIOLATION, []), "no state, no result"
        for key, code, rule in (
            ("k1", Code.SUCCESS, None),
            ("k2", Code.CONFIRMATION_MISSING, "some"),
            ("k3", Code.POLICY_VIOLATION, "high"),
        ):
            assert (await run.submit("look")).ok
            seen = await run.submit("update_case", key=key)
            assert (seen.code, len(update.calls)) == (code, 1)
            assert rule is None or rule in rules_of(seen)


# --- rules of the contract that ask ---------------------------------------------------------------


def rule(check, **more):
    return Invariant(id="R1", rule="At most 100 cents.", check=check, **more)


ASKS = {"otherwise": "require_approval"}


async def test_invariant_that_asks_holds_the_call_instead_of_rejecting_it():
    account = Account()
    declared = account.payer(invariants=[rule("call.cents <= 100", **ASKS, approvers=2)])
    async with opened(declared) as runtime:
        assert (await runtime.submit(pay(100), principal())).code is Code.SUCCESS
        held = await runtime.submit(pay(101), principal())
        assert (held.code, account.paid) == (Code.CONFIRMATION_MISSING, [100])
        [request] = await runtime.approvals.list()
        packet = runtime.approvals.packet(request)
        assert (packet.demand.approvers, packet.demand.rule) == (2, "R1")
        for person in ("ada", "bob"):
            await runtime.approvals.answer(approver(person))
        await Reconciler(runtime).once()
    assert account.paid == [100, 101]


async def test_invariant_that_rejects_outranks_one_that_asks():
    account = Account()
    rules = [rule("call.cents <= 100", **ASKS), Invariant(id="R2", rule="Even.", check="false")]
    async with opened(account.payer(invariants=rules)) as runtime:
        refused = await runtime.submit(pay(101), principal())
        assert await runtime.approvals.list() == []
    assert (refused.code, rules_of(refused)[-1]) == (Code.SEMANTIC_INVALIDITY, "R2")


async def test_invariant_of_the_target_can_ask():
    account = Account(balance=600)
    rules = [rule("target.balance - call.cents >= 500", **ASKS)]
    async with opened(account.payer(invariants=rules)) as runtime:
        assert (await runtime.submit(pay(100), principal())).code is Code.SUCCESS
        held = await runtime.submit(pay(200), principal())
        await runtime.approvals.answer(approver())
        await Reconciler(runtime).once()
    assert (held.code, account.paid) == (Code.CONFIRMATION_MISSING, [100, 200])


async def test_question_of_an_invariant_and_of_the_policy_are_one_request():
    account = Account(balance=600)
    declared = account.payer(invariants=[rule("target.balance - call.cents >= 500", **ASKS)])
    async with opened(declared, policy(ASK_LOW)) as runtime:
        await runtime.submit(pay(200), principal())
        [request] = await runtime.approvals.list()
        assert runtime.approvals.packet(request).demand.approvers == 2


def only_in_the_day(call, state, config, now):
    return 6 <= now.hour < 22


def own_account(call, state, config, *, principal, target):
    return principal.user == target["owner"] and principal.risk_level == "low"


@pytest.mark.parametrize(
    "check",
    [
        "principal.user == target.owner && principal.risk_level == 'low'",
        own_account,
    ],
    ids=["CEL", "Python"],
)
async def test_invariants_see_principal_and_target(check):
    account = Account(owner="u_1")
    declared = account.payer(invariants=[Invariant(id="R1", rule="Your own.", check=check)])
    async with opened(declared) as runtime:
        assert (await runtime.submit(pay(1), principal())).code is Code.SUCCESS
        other = Principal(tenant="acme", agent="agent", user="u_2")
        assert (await runtime.submit(pay(2), other)).code is Code.SEMANTIC_INVALIDITY
    assert account.paid == [1]


@pytest.mark.parametrize(
    "check", ["now.getHours() >= 6 && now.getHours() < 22", only_in_the_day], ids=["CEL", "Python"]
)
async def test_invariants_see_the_time(check):
    clock = FakeClock(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp())
    account = Account()
    declared = account.payer(invariants=[Invariant(id="R1", rule="By day.", check=check)])
    async with opened(declared, clock=clock) as runtime:
        assert (await runtime.submit(pay(1), principal())).code is Code.SUCCESS
        clock.advance(11 * 3600)
        late = await runtime.submit(pay(2, run_id="run_2"), principal())
    assert (late.code, account.paid) == (Code.SEMANTIC_INVALIDITY, [1])
