"""The scope gate: who may use a tool at all, and that nothing in the arguments changes it."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal import Grant, Principal, Proposal, Registry
from counterseal.codes import Code
from counterseal.execution.executor import Executor
from counterseal.gates.base import GateContext, Learned, Verdict
from counterseal.gates.scope import check
from counterseal.ledger.records import RunRecord
from counterseal.registry import Deprecation
from counterseal.testing import FakeClock, fake_tool


def context(
    *tools,
    grants=None,
    principal=None,
    arguments=None,
    version=None,
    clock=None,
    run=None,
    **record,
):
    """A context as `receive` leaves it: the record resolved, or the reason why there is none."""
    clock = clock or FakeClock()
    registry = Registry(clock=lambda: datetime.fromtimestamp(clock(), UTC))
    tools = tools or (fake_tool(),)
    name = tools[0].contract.name
    granted = [Grant(agent="agent", tool=name)] if grants is None else grants
    registry.register(*(tool.tool for tool in tools), grants=granted, **record)
    return at(registry, name, principal, arguments or {}, version, run or {})


def at(registry, name, principal=None, arguments=None, version=None, run=None):
    principal = principal or Principal(tenant="acme", agent="agent", user="u_1")
    found = registry.resolve(
        name, tenant=principal.tenant, run_id="run_1", version=version, agent=principal.agent
    )
    known = {"refusal": found} if not hasattr(found, "contract") else {"record": found}
    return GateContext(
        proposal=Proposal(tool=name, arguments=arguments, version=version),
        principal=principal,
        call_id="call_1",
        now=0.0,
        run=RunRecord(tenant=principal.tenant, run_id="run_1", started_at=0.0, **(run or {})),
        registry=registry,
        executor=Executor(),
        arguments=arguments,
        **known,
    )


def refused(ctx):
    decision = check(ctx)
    assert not isinstance(decision, Learned)
    assert (decision.gate, decision.verdict) == ("scope", Verdict.DENY)
    assert decision.code is Code.PERMISSION_DENIED
    return decision.rule


def test_a_grant_is_found_and_handed_on():
    grant = Grant(agent="agent", tool="look_up", max_calls_per_run=3)
    said = check(context(grants=[grant]))
    assert said.decision.verdict is Verdict.ALLOW
    assert said.facts == {"grant": grant}


def test_a_disabled_tool_is_refused():
    assert refused(context(enabled=False)) == "disabled"


def test_a_killed_tool_is_refused_at_once_and_lives_again_when_the_kill_is_lifted():
    registry = context().registry
    assert isinstance(check(at(registry, "look_up", arguments={})), Learned)
    kill = registry.kill(tool="look_up", reason="stop")
    assert refused(at(registry, "look_up", arguments={})) == "killed"
    registry.restore(kill)
    assert isinstance(check(at(registry, "look_up", arguments={})), Learned)


def test_a_tool_of_another_tenant_is_refused_even_if_it_were_resolved():
    ctx = context(allowed_tenants=["acme"])
    stranger = Principal(tenant="other", agent="agent")
    assert refused(ctx.replace(principal=stranger)) == "other_tenant"


def test_a_role_that_the_record_asks_for_is_needed():
    assert refused(context(allowed_agent_roles=["clerk"])) == "role"
    clerk = Principal(tenant="acme", agent="agent", roles=["clerk", "other"])
    assert isinstance(check(context(allowed_agent_roles=["clerk"], principal=clerk)), Learned)


@pytest.mark.parametrize(
    "grant",
    [
        None,
        {"agent": "another"},
        {"tenant": "other"},
        {"version": ">=2"},
    ],
)
def test_without_a_grant_that_covers_it_a_tool_is_not_used(grant):
    grants = [] if grant is None else [Grant(**{"agent": "agent", "tool": "look_up", **grant})]
    tools = (fake_tool(), fake_tool(version="2.0.0"))
    assert refused(context(*tools, grants=grants, version="1.0.0")) == "no_grant"


def test_a_grant_for_a_range_covers_the_versions_in_it():
    tools = (fake_tool(), fake_tool(version="2.0.0"))
    grants = [Grant(agent="agent", tool="look_up", version=">=2,<3")]
    assert isinstance(check(context(*tools, grants=grants, version="2.0.0")), Learned)
    ctx = context(*tools, grants=grants)
    assert ctx.record.version == "2.0.0"
    assert isinstance(check(ctx), Learned)


def test_a_version_that_is_not_there_is_refused():
    assert refused(context(version="9.9.9")) == "version_unknown"


def test_a_retired_version_is_refused_from_its_day_on():
    clock = FakeClock()
    ctx = context(clock=clock)
    removal = datetime.fromtimestamp(clock.now + 10, UTC)
    ctx.registry.deprecate("look_up", "1.0.0", Deprecation(removal_at=removal))
    assert isinstance(check(at(ctx.registry, "look_up", arguments={})), Learned)
    clock.advance(10)
    assert refused(at(ctx.registry, "look_up", arguments={})) == "sunset"


@pytest.mark.parametrize(
    ("scopes", "rule"),
    [
        ([], "scope_missing"),
        (["case:read"], "scope_missing"),
        (["case:read", "case:extra"], None),
        (["case:read", "case:extra", "more"], None),
    ],
)
def test_scopes_of_contract_and_grant_are_all_needed(scopes, rule):
    ctx = context(
        fake_tool(scopes=["case:read"]),
        grants=[Grant(agent="agent", tool="look_up", scopes=["case:extra"])],
        principal=Principal(tenant="acme", agent="agent", scopes=scopes),
    )
    assert isinstance(check(ctx), Learned) if rule is None else refused(ctx) == rule


def test_a_grant_ends_at_its_risk_limit():
    grant = {"agent": "agent", "tool": "look_up"}
    draft = fake_tool(effect="draft")
    low = Grant(**grant, risk_limit="EPHEMERAL_WRITE")
    assert refused(context(draft, grants=[low])) == "risk_limit"
    enough = Grant(**grant, risk_limit="LOW_RISK_INTERNAL")
    assert isinstance(check(context(draft, grants=[enough])), Learned)


def test_a_grant_to_look_does_not_cover_a_change():
    grant = Grant(agent="agent", tool="look_up", mode="read")
    assert refused(context(fake_tool(effect="draft"), grants=[grant])) == "mode"
    assert isinstance(check(context(grants=[grant])), Learned)


def test_a_grant_expires_by_the_clock_though_it_was_used_before():
    clock = FakeClock()
    expiry = datetime.fromtimestamp(clock.now, UTC) + timedelta(seconds=60)
    grants = [Grant(agent="agent", tool="look_up", expires_at=expiry)]
    registry = context(grants=grants, clock=clock).registry
    for _ in range(2):
        assert isinstance(check(at(registry, "look_up", arguments={})), Learned)
    clock.advance(60)
    assert refused(at(registry, "look_up", arguments={})) == "grant_expired"


def test_a_grant_that_was_taken_back_is_gone_at_once():
    grant = Grant(agent="agent", tool="look_up")
    registry = context(grants=[grant]).registry
    assert isinstance(check(at(registry, "look_up", arguments={})), Learned)
    registry.revoke(grant)
    assert refused(at(registry, "look_up", arguments={})) == "no_grant"


def test_a_tool_that_is_not_for_agents_is_refused():
    assert refused(context(fake_tool(effect="meta"), grants=[])) == "not_exposed"


def test_a_run_with_an_objective_covers_its_tools_only():
    inside, outside = frozenset({"look_up"}), frozenset({"other"})
    assert isinstance(check(context(run={"allowed_tools": inside})), Learned)
    assert refused(context(run={"allowed_tools": outside})) == "run-objective"
    assert refused(context(run={"allowed_tools": frozenset()})) == "run-objective"


def test_the_tenant_argument_must_be_the_callers_own():
    schema = {
        "type": "object",
        "properties": {"tenant_id": {"type": "string", "maxLength": 9, "description": "Whose."}},
        "additionalProperties": False,
    }
    tool = fake_tool(input_schema=schema, tenant_argument="tenant_id")
    assert isinstance(check(context(tool, arguments={"tenant_id": "acme"})), Learned)
    for arguments in ({"tenant_id": "other"}, {"tenant_id": "ACME"}, {"tenant_id": None}, {}):
        ctx = context(tool, arguments=arguments)
        assert refused(ctx) == "tenant-argument"
        (error,) = check(ctx).field_errors
        assert error.field == "/tenant_id"
        assert "other" not in str(error)


TOOL = fake_tool(scopes=["case:write"])
words = st.sampled_from(
    ["admin", "agent", "other", "role", "roles", "scopes", "tenant", "case:write", "approved"]
)


@given(
    arguments=st.dictionaries(
        st.one_of(words, st.text(max_size=9)),
        st.one_of(words, st.booleans(), st.lists(words, max_size=3)),
        max_size=6,
    )
)
def test_nothing_in_the_arguments_gives_authority(arguments):
    assert refused(context(TOOL, arguments=arguments)) == "scope_missing"
    nobody = context(TOOL, arguments=arguments, grants=[])
    assert refused(nobody) == "no_grant"


def test_without_a_record_or_a_reason_the_answer_is_still_no():
    ctx = context()
    assert refused(ctx.replace(record=None, refusal=None)) == "unavailable"
