import dataclasses
import pickle
from types import SimpleNamespace

import pytest

from counterseal.proposal import Principal, Proposal, folded


@pytest.mark.parametrize("given", [["a", "b"], ("a", "b"), {"a", "b"}, iter(["a", "b", "a"])])
def test_principal_takes_scopes_from_any_iterable(given):
    assert Principal(tenant="acme", agent="bot", scopes=given).scopes == frozenset({"a", "b"})


@pytest.mark.parametrize("field", ["roles", "scopes"])
def test_plain_string_is_not_taken_for_its_letters(field):
    with pytest.raises(TypeError, match=rf"{field} .*got one string; write \['admin'\]"):
        Principal(tenant="acme", agent="bot", **{field: "admin"})


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("tenant", "", ValueError),
        ("tenant", "  ", ValueError),
        ("tenant", None, TypeError),
        ("agent", "", ValueError),
        ("agent", 7, TypeError),
        ("user", "", ValueError),
        ("scopes", [1], TypeError),
        ("scopes", [""], ValueError),
        ("scopes", 3, TypeError),
        ("roles", None, TypeError),
    ],
)
def test_principal_error_names_the_field(field, value, error):
    with pytest.raises(error, match=f"^{field} "):
        Principal(**{"tenant": "acme", "agent": "bot", field: value})


@pytest.mark.parametrize("value", ["a\0b", "\ud800", "\0", "\n", "\u2003"])
def test_a_name_that_no_store_could_keep_is_refused(value):
    for field in ("tenant", "agent", "user"):
        with pytest.raises(ValueError, match=f"^{field} "):
            Principal(**{"tenant": "acme", "agent": "bot", field: value})


@pytest.mark.parametrize("value", ["zoë", "a b", " a", "a\nb", "\U0001f600"])
def test_any_other_text_does(value):
    assert Principal(tenant="acme", agent=value, user=value).user == value


@pytest.mark.parametrize("value", ["acme", "zoë", "a.b-c_d:7", "事務所"])
def test_tenant_is_a_name_that_a_reader_can_tell_from_others(value):
    assert Principal(tenant=value, agent="bot").tenant == value


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("acme corp", "a space"),
        ("acme ", "a space"),
        ("acme\u3000", "a space"),
        ("acme\u00a0", r"the invisible character U\+00A0"),
        ("ac\u200bme", r"the invisible character U\+200B"),
        ("acme\u2800", r"the invisible character U\+2800"),
        ("acme\ufe0f", r"the invisible character U\+FE0F"),
        ("acme\t", r"the invisible character U\+0009"),
    ],
)
def test_tenant_that_looks_like_another_is_refused_with_the_fix(value, what):
    with pytest.raises(ValueError, match=f"^tenant must not contain {what}, got .*; use letters"):
        Principal(tenant=value, agent="bot")


@pytest.mark.parametrize(
    "name", ["U_7", " u_7 ", "\uff55_7", "u\u200b_7", "u_7\u00ad", "\ufeffU_7", "u_7\ufe0f"]
)
def test_names_of_people_that_look_alike_are_one(name):
    assert folded(name) == "u_7"
    assert folded("u_8") != "u_7"


def test_principal_without_user_is_an_agent_on_its_own():
    principal = Principal(tenant="acme", agent="bot")
    assert principal.user is None
    assert principal.roles == principal.scopes == frozenset()


def test_principal_is_a_value():
    principal = Principal(tenant="acme", agent="bot", scopes=["a"])
    assert principal == Principal(tenant="acme", agent="bot", scopes={"a"})
    assert len({principal, Principal(tenant="acme", agent="bot", scopes=("a",))}) == 1
    assert pickle.loads(pickle.dumps(principal)) == principal
    assert dataclasses.replace(principal, tenant="beta").scopes == {"a"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        principal.tenant = "beta"


@pytest.mark.parametrize("arguments", ['{"a": 1', b"\xff", {"a": 1}])
def test_proposal_keeps_arguments_as_they_came(arguments):
    assert Proposal(tool="read_case", arguments=arguments).arguments is arguments


def test_proposal_shows_neither_arguments_nor_token():
    shown = repr(
        Proposal(
            tool="read_case",
            arguments='{"name": "Ada"}',
            approval="tok_1",
            configurable={"region": "hidden"},
        )
    )
    assert "read_case" in shown
    assert not any(secret in shown for secret in ("Ada", "tok_1", "hidden"))


ARGUMENTS = '{"case_id": "case_1"}'
CALLS = {
    "openai chat": {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_case", "arguments": ARGUMENTS},
    },
    "openai responses": {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "get_case",
        "arguments": ARGUMENTS,
    },
    "anthropic": {
        "type": "tool_use",
        "id": "call_1",
        "name": "get_case",
        "input": {"case_id": "case_1"},
    },
    "mcp": {"name": "get_case", "arguments": {"case_id": "case_1"}},
}


@pytest.mark.parametrize("form", CALLS)
def test_a_providers_call_becomes_a_proposal_as_dict_and_as_object(form):
    call = CALLS[form]
    as_object = SimpleNamespace(
        **{k: SimpleNamespace(**v) if k == "function" else v for k, v in call.items()}
    )
    for given in (call, as_object):
        proposal = Proposal.from_call(given, run_id="run_1")
        assert proposal.tool == "get_case"
        assert proposal.arguments in (ARGUMENTS, {"case_id": "case_1"})
        assert proposal.call_id == (None if form == "mcp" else "call_1")
        assert proposal.run_id == "run_1"


def test_a_mapped_name_is_mapped_back():
    proposal = Proposal.from_call(CALLS["mcp"], name_of=lambda name: f"cases.{name}")
    assert proposal.tool == "cases.get_case"


@pytest.mark.parametrize("junk", [None, 3, "get_case", {}, {"function": None}, {"name": 3}])
def test_what_is_no_call_names_no_tool(junk):
    assert Proposal.from_call(junk).tool == ""


@pytest.mark.parametrize("name", ["tenant", "agent", "user"])
def test_a_name_holds_nothing_that_a_store_could_not_keep(name):
    given = {"tenant": "acme", "agent": "agent", "user": "u_1", name: "a\0b"}
    with pytest.raises(ValueError, match=f"{name} must not contain a NUL"):
        Principal(**given)


def test_all_tenants_together_are_no_tenant():
    with pytest.raises(ValueError, match="stands for all tenants"):
        Principal(tenant="*", agent="agent")


def test_risk_level_is_one_of_four_words():
    assert Principal(tenant="acme", agent="bot").risk_level == "low"
    assert Principal(tenant="acme", agent="bot", risk_level="critical").risk_level == "critical"
    for wrong in ("severe", "", None, 3):
        with pytest.raises(ValueError, match="risk_level must be one of low, medium, high, crit"):
            Principal(tenant="acme", agent="bot", risk_level=wrong)
