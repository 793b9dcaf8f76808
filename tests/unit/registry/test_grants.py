from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from counterseal.contract.effects import Effect, RiskClass
from counterseal.contract.model import Contract
from counterseal.errors import ContractError, GrantError
from counterseal.proposal import Principal
from counterseal.registry import Deprecation, Grant, Mode, Reason, Refusal, Registry

NOW = datetime(2026, 3, 1, tzinfo=UTC)
BOT = Principal(tenant="acme", agent="bot", roles={"clerk"}, scopes={"case:read"})


def contract(name="read_case", version="1.0.0", effect="read_only", scopes=(), **more):
    return Contract.model_validate(
        {
            "effect": effect,
            "identity": {"name": name, "version": version, "owner": "cases", **more.pop("id", {})},
            "affordance": {
                "model_description": f"What {name} does.",
                "input_schema": {
                    "type": "object",
                    "properties": {
                        "case_id": {"type": "string", "maxLength": 20, "description": "The case."}
                    },
                    "required": ["case_id"],
                    "additionalProperties": False,
                },
            },
            "security": {"required_scopes": list(scopes)},
            "usage": "When a case is to be looked at.",
            **more,
        }
    )


def registry_with(*contracts, grants=(), now=NOW, **settings):
    registry = Registry(clock=lambda: now)
    registry.register(*contracts, grants=grants, **settings)
    return registry


def ask(registry, principal=BOT, name="read_case", **how):
    record = registry.resolve(name, tenant=principal.tenant, run_id="run_1", **how)
    assert not isinstance(record, Refusal), record
    return registry.authorize(record, principal)


# --- what a grant is ------------------------------------------------------------------------------


def test_agent_and_tool_are_enough_for_a_grant():
    grant = Grant(agent="notice-agent", tool="send_approved_notice")
    assert (grant.version, grant.mode, grant.max_calls_per_run) == ("*", Mode.EXECUTE, None)
    assert grant.covers(Version("0.0.1"))
    assert grant.covers(Version("9.9rc1"))


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        (">=1.0,<2", ["1.0", "1.9.9", "1.5rc1"], ["0.9", "2.0", "2.0rc1"]),
        ("1.0.0", ["1.0", "1.0.0"], ["1.0.1", "0.9"]),
        ("1.*", ["1.0", "1.7.2"], ["2.0"]),
        ("~=1.4", ["1.4", "1.9"], ["1.3", "2.0"]),
        ("*", ["0.1.dev1", "3"], []),
    ],
)
def test_grant_covers_the_versions_of_its_range(text, inside, outside):
    grant = Grant(agent="bot", tool="read_case", version=text)
    assert all(grant.covers(Version(version)) for version in inside)
    assert not any(grant.covers(Version(version)) for version in outside)


@given(
    st.tuples(*[st.integers(0, 9)] * 3),
    st.tuples(*[st.integers(0, 9)] * 3),
    st.tuples(*[st.integers(0, 9)] * 3),
)
def test_range_holds_exactly_what_lies_between_its_ends(low, high, asked):
    low_text, high_text, text = (".".join(map(str, one)) for one in (low, high, asked))
    grant = Grant(agent="bot", tool="read_case", version=f">={low_text},<{high_text}")
    assert grant.covers(Version(text)) == (low <= asked < high)
    exact = Grant(agent="bot", tool="read_case", version=low_text)
    assert exact.covers(Version(text)) == (low == asked)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("agent", ""),
        ("tool", "  "),
        ("version", ""),
        ("version", "^1.2"),
        ("version", "latest"),
        ("version", 1),
        ("version", "1" * 300),
        ("mode", "write"),
        ("max_calls_per_run", -1),
        ("max_calls_per_run", True),
        ("max_calls_per_run", "5"),
        ("scopes", "case:read"),
        ("scopes", [""]),
        ("risk_limit", "severe"),
        ("risk_limit", ["high"]),
        ("expires_at", datetime(2026, 1, 1)),  # noqa: DTZ001 - naive on purpose
        ("expires_at", "2026-01-01"),
        ("tenant", ""),
    ],
)
def test_grant_error_names_the_field(field, value):
    with pytest.raises(GrantError, match=f"^{field}: "):
        Grant(**{"agent": "bot", "tool": "read_case", field: value})


def test_grants_of_equal_content_are_equal():
    one = Grant(agent="bot", tool="t", scopes=["a", "b"], mode="read", risk_limit="READ_ONLY")
    same = Grant(agent="bot", tool="t", scopes={"b", "a"}, mode=Mode.READ, risk_limit="READ_ONLY")
    assert one == same
    assert hash(one) == hash(same)
    assert one.risk_limit is RiskClass.READ_ONLY


# --- who may use what -----------------------------------------------------------------------------


def test_without_a_grant_there_is_no_use():
    refusal = ask(registry_with(contract()))
    assert refusal.reason is Reason.NO_GRANT


def test_grant_that_authorizes_is_returned():
    grant = Grant(agent="bot", tool="read_case", max_calls_per_run=3)
    assert ask(registry_with(contract(), grants=[grant])) is grant


def test_another_agents_grant_is_no_grant():
    registry = registry_with(contract(), grants=[Grant(agent="other", tool="read_case")])
    assert ask(registry).reason is Reason.NO_GRANT


def test_grant_for_another_version_is_no_grant():
    grant = Grant(agent="bot", tool="read_case", version="<2")
    registry = registry_with(contract(), contract(version="2.0.0"), grants=[grant])
    assert ask(registry, version="2.0.0").reason is Reason.NO_GRANT
    assert ask(registry, version="1.0.0") == grant


def test_grant_for_another_tenant_is_no_grant():
    registry = registry_with(
        contract(), grants=[Grant(agent="bot", tool="read_case", tenant="beta")]
    )
    assert ask(registry).reason is Reason.NO_GRANT
    assert isinstance(ask(registry, Principal(tenant="beta", agent="bot")), Grant)


def test_grant_in_use_still_ends_at_its_expiry():
    now = [NOW - timedelta(seconds=1)]
    registry = Registry(clock=lambda: now[0])
    short = Grant(agent="bot", tool="read_case", expires_at=NOW)
    registry.register(contract(), grants=[short])
    assert ask(registry) == ask(registry) == short
    now[0] = NOW
    assert ask(registry).reason is Reason.GRANT_EXPIRED
    lasting = Grant(agent="bot", tool="read_case")
    registry.grant(lasting)
    assert ask(registry) == lasting


def test_answer_to_one_principal_is_no_answer_to_another():
    registry = registry_with(
        contract(scopes=["case:read"]),
        allowed_agent_roles=["clerk"],
        grants=[Grant(agent="bot", tool="read_case")],
    )
    assert isinstance(ask(registry), Grant)
    scopeless = Principal(tenant="acme", agent="bot", roles={"clerk"})
    roleless = Principal(tenant="acme", agent="bot", scopes={"case:read"})
    assert ask(registry, scopeless).reason is Reason.SCOPE_MISSING
    assert ask(registry, roleless).reason is Reason.ROLE


def test_grant_ends_at_its_expiry_in_any_time_zone():
    east = timezone(timedelta(hours=5))
    grant = Grant(agent="bot", tool="read_case", expires_at=NOW.astimezone(east))
    before = registry_with(contract(), grants=[grant], now=NOW - timedelta(seconds=1))
    after = registry_with(contract(), grants=[grant], now=NOW)
    assert ask(before) == grant
    assert ask(after).reason is Reason.GRANT_EXPIRED


@pytest.mark.parametrize("effect", [effect for effect in Effect if effect is not Effect.META])
def test_mode_draws_the_line_at_effects(effect):
    may_read = effect in (Effect.READ_ONLY, Effect.RETRIEVE, Effect.COMPUTE)
    may_draft = may_read or effect is Effect.DRAFT
    for mode, allowed in (("read", may_read), ("draft", may_draft), ("execute", True)):
        grant = Grant(agent="bot", tool="act_on_case", mode=mode)
        registry = registry_with(contract("act_on_case", effect=effect), grants=[grant])
        answer = ask(registry, name="act_on_case")
        assert (answer == grant) is allowed
        assert allowed or answer.reason is Reason.MODE


@given(st.sampled_from(RiskClass), st.sampled_from(RiskClass))
def test_risk_limit_lets_through_what_is_not_above_it(risk, limit):
    declared = contract(
        "act_on_case",
        effect="draft",
        transactional={"side_effect_class": risk},
        risk_justification="For the sake of this test.",
    )
    grant = Grant(agent="bot", tool="act_on_case", risk_limit=limit)
    answer = ask(registry_with(declared, grants=[grant]), name="act_on_case")
    judged = max(risk, RiskClass.LOW_RISK_INTERNAL)  # that of the effect, which nobody has lowered
    assert (answer == grant) is (judged <= limit)
    assert answer == grant or answer.reason is Reason.RISK_LIMIT


@pytest.mark.parametrize(
    ("word", "limit"),
    [
        ("low", RiskClass.LOW_RISK_INTERNAL),
        ("medium", RiskClass.MEDIUM_RISK_WRITE),
        ("high", RiskClass.HIGH_RISK_EXTERNAL),
        ("critical", RiskClass.CRITICAL_MUTATION),
    ],
)
def test_risk_limit_may_be_given_as_a_level(word, limit):
    assert Grant(agent="bot", tool="t", risk_limit=word).risk_limit is limit


def test_scopes_of_contract_and_grant_are_both_needed():
    grant = Grant(agent="bot", tool="read_case", scopes=["case:evidence"])
    registry = registry_with(contract(scopes=["case:read"]), grants=[grant])
    refusal = ask(registry)
    assert refusal.reason is Reason.SCOPE_MISSING
    assert "case:evidence" in refusal.message
    assert "case:read" not in refusal.message
    both = Principal(tenant="acme", agent="bot", scopes={"case:read", "case:evidence"})
    assert ask(registry, both) == grant


def test_role_is_asked_before_grants():
    registry = registry_with(
        contract(), allowed_agent_roles=["auditor"], grants=[Grant(agent="bot", tool="read_case")]
    )
    assert ask(registry).reason is Reason.ROLE
    auditor = Principal(tenant="acme", agent="bot", roles={"auditor", "clerk"})
    assert isinstance(ask(registry, auditor), Grant)


def test_record_of_another_tenant_authorizes_no_call():
    registry = registry_with(
        contract(), allowed_tenants=["beta"], grants=[Grant(agent="bot", tool="read_case")]
    )
    refusal = registry.authorize(registry.get("read_case", "1.0.0"), BOT)
    assert refusal.reason is Reason.OTHER_TENANT


# --- several grants -------------------------------------------------------------------------------


def test_first_grant_that_authorizes_wins():
    expired = Grant(agent="bot", tool="read_case", expires_at=NOW - timedelta(days=1))
    narrow = Grant(agent="bot", tool="read_case", max_calls_per_run=1)
    wide = Grant(agent="bot", tool="read_case", max_calls_per_run=9)
    assert ask(registry_with(contract(), grants=[expired, narrow, wide])) is narrow
    assert ask(registry_with(contract(), grants=[wide, expired, narrow])) is wide


@given(st.permutations(range(4)))
def test_refusal_is_that_of_the_grant_that_came_closest(order):
    draft = contract("draft_notice", effect="draft")
    grants = [
        Grant(agent="bot", tool="draft_notice", tenant="beta"),
        Grant(agent="bot", tool="draft_notice", expires_at=NOW),
        Grant(agent="bot", tool="draft_notice", mode="read"),
        Grant(agent="bot", tool="draft_notice", scopes=["notice:draft"]),
    ]
    registry = registry_with(draft, grants=[grants[index] for index in order])
    assert ask(registry, name="draft_notice").reason is Reason.SCOPE_MISSING


# --- giving and taking ----------------------------------------------------------------------------


def test_grant_can_be_given_and_taken_later():
    registry = registry_with(contract())
    grant = Grant(agent="bot", tool="read_case")
    registry.grant(grant)
    assert ask(registry) is grant
    registry.revoke(grant)
    assert ask(registry).reason is Reason.NO_GRANT
    assert registry.grants == ()


def test_revoking_is_all_or_nothing():
    held = Grant(agent="bot", tool="read_case")
    registry = registry_with(contract(), grants=[held])
    with pytest.raises(GrantError, match="no such grant"):
        registry.revoke(held, Grant(agent="bot", tool="read_case", mode="read"))
    assert registry.grants_of("bot", "read_case") == (held,)


def test_giving_the_same_grant_twice_changes_nothing():
    registry = registry_with(contract(), grants=[Grant(agent="bot", tool="read_case")] * 2)
    epoch = registry.epoch
    registry.grant(Grant(agent="bot", tool="read_case"))
    assert len(registry.grants) == 1
    assert registry.epoch == epoch


def test_grant_for_an_unknown_tool_is_refused():
    with pytest.raises(GrantError, match="is not registered"):
        registry_with(contract()).grant(Grant(agent="bot", tool="raed_case"))


def test_grant_that_matches_no_version_is_refused():
    with pytest.raises(GrantError, match=r"no version matches '>=2'; registered: 1\.0\.0"):
        registry_with(contract()).grant(Grant(agent="bot", tool="read_case", version=">=2"))


def test_meta_tool_can_not_be_granted():
    meta = contract("grant_tool_access", effect="meta")
    grant = Grant(agent="bot", tool="grant_tool_access")
    with pytest.raises(GrantError, match="agents may not use"):
        registry_with(meta).grant(grant)
    with pytest.raises(ContractError) as caught:
        registry_with(meta, grants=[grant])
    assert [problem.rule for problem in caught.value.problems] == ["meta-granted"]


def test_tool_that_is_not_exposed_is_refused_even_under_a_grant():
    registry = registry_with(contract(), grants=[Grant(agent="bot", tool="read_case")])
    registry.register(contract(version="2.0.0", exposed=False))
    assert ask(registry).reason is Reason.NOT_EXPOSED
    assert registry.catalogue(BOT, "run_1") == ()


def test_no_new_grants_once_deprecated_but_old_ones_work():
    old = Grant(agent="bot", tool="read_case")
    registry = registry_with(contract(), grants=[old])
    registry.deprecate("read_case", "1.0.0", Deprecation(deprecated_at=NOW, reason="slow"))
    with pytest.raises(GrantError, match="deprecated"):
        registry.grant(Grant(agent="other", tool="read_case"))
    with pytest.raises(ContractError, match="grant-deprecated"):
        registry.register(grants=[Grant(agent="other", tool="read_case")])
    registry.grant(old)
    registry.register(grants=[old])
    assert ask(registry) is old


def test_new_grants_are_given_while_one_version_is_not_deprecated():
    registry = registry_with(contract(), contract(version="1.1.0"))
    registry.deprecate("read_case", "1.0.0", Deprecation(deprecated_at=NOW))
    registry.grant(Grant(agent="bot", tool="read_case"))
    with pytest.raises(GrantError, match="deprecated"):
        registry.grant(Grant(agent="bot", tool="read_case", version="1.0.0"))


def test_deprecation_in_the_future_does_not_stop_grants_yet():
    registry = registry_with(contract())
    registry.deprecate("read_case", "1.0.0", Deprecation(deprecated_at=NOW + timedelta(days=1)))
    registry.grant(Grant(agent="bot", tool="read_case"))


def test_tool_that_arrives_deprecated_brings_its_grants_with_a_warning():
    grant = Grant(agent="bot", tool="read_case")
    registry = registry_with(
        contract(id={"lifecycle": {"status": "deprecated", "replacement": "read_case_file"}}),
        grants=[grant],
    )
    assert "grant-deprecated" in [problem.rule for problem in registry.warnings]
    assert ask(registry) is grant


def test_later_version_is_covered_by_an_earlier_grant():
    registry = registry_with(contract(), grants=[Grant(agent="bot", tool="read_case")])
    assert isinstance(ask(registry), Grant)
    registry.register(contract(version="1.1.0"))
    assert isinstance(ask(registry, version="1.1.0"), Grant)
