import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.contract.declare import tool
from counterseal.contract.model import Contract
from counterseal.errors import ContractError, RegistryError, Severity
from counterseal.registry import Deprecation, Grant, Reason, Registry, RegistryRecord
from counterseal.testing import fake_tool


def contract(name="read_case", version="1.0.0", effect="read_only", *, inputs=("case_id",), **more):
    return Contract.model_validate(
        {
            "effect": effect,
            "identity": {"name": name, "version": version, "owner": "cases"},
            "affordance": {
                "model_description": f"What {name} does.",
                "input_schema": {
                    "type": "object",
                    "properties": {
                        name: {"type": "string", "maxLength": 20, "description": f"The {name}."}
                        for name in inputs
                    },
                    "required": list(inputs),
                    "additionalProperties": False,
                },
                "output_schema": {"type": "object", "additionalProperties": False},
            },
            "usage": "When a case is to be looked at.",
            **more,
        }
    )


def rules(caught):
    return sorted({problem.rule for problem in caught.value.problems})


def warned(registry):
    return [problem.rule for problem in registry.warnings]


@tool(effect="read_only", version="1.0.0", owner="cases")
def read_case(case_id: str) -> dict[str, str]:
    """Read a case.

    Args:
        case_id: The case.
    """
    return {"case_id": case_id}


class PlainSearch:
    name = "search_cases"
    description = "Search cases by their words."

    def get_schema(self):
        words = {"type": "string", "maxLength": 80, "description": "Words."}
        return {"type": "object", "properties": {"words": words}, "required": ["words"]}

    async def execute(self, input):
        return {}


# --- what is taken in -----------------------------------------------------------------------------


def test_tools_contracts_and_plain_objects_register_side_by_side():
    registry = Registry()
    registry.register(read_case, contract("list_cases"), PlainSearch())
    by_name = {record.name: record for record in registry.records}
    assert set(by_name) == {"read_case", "list_cases", "search_cases"}
    assert by_name["read_case"].tool is read_case
    assert by_name["list_cases"].tool is None
    assert by_name["search_cases"].tool is not None


def test_one_contract_is_registered_by_itself():
    registry = Registry()
    registry.register_contract(contract(), enabled=False)
    (record,) = registry.records
    assert (record.name, record.enabled) == ("read_case", False)


def test_settings_apply_to_every_tool_of_the_call():
    registry = Registry()
    registry.register(
        contract(),
        contract("list_cases"),
        enabled=False,
        allowed_agent_roles=(role for role in ["clerk"]),
        allowed_tenants=iter(["acme"]),
        rollout_percentage=5,
    )
    for record in registry.records:
        assert not record.enabled
        assert record.allowed_agent_roles == {"clerk"}
        assert record.allowed_tenants == {"acme"}
        assert record.rollout_percentage == 5


def test_warnings_are_returned_and_kept():
    registry = Registry()
    returned = registry.register(PlainSearch())
    assert returned
    assert returned == registry.warnings
    assert {problem.severity for problem in returned} == {Severity.WARNING}


def test_registering_nothing_changes_nothing():
    registry = Registry()
    assert registry.register() == ()
    assert registry.epoch == 0


# --- what is refused ------------------------------------------------------------------------------


def test_every_problem_of_every_tool_and_grant_comes_at_once():
    registry = Registry()
    with pytest.raises(ContractError) as caught:
        registry.register(
            contract("bad name"),
            contract(version="not.a.version"),
            contract("send_notice", effect=None),
            contract("void_notice", "1.0", effect="draft"),
            contract("void_notice", "1.0.0", effect="draft"),
            contract("undo_case", effect="draft", probe="nowhere"),
            "read_case",
            grants=[Grant(agent="bot", tool="nothing"), "bot"],
            rollout_percentage=101,
            allowed_tenants="acme",
        )
    assert set(rules(caught)) >= {
        "effect-missing",
        "grant-tool-unknown",
        "hook-unknown",
        "name-invalid",
        "not-a-grant",
        "not-a-tool",
        "record-invalid",
        "version-duplicate",
        "version-invalid",
    }
    assert {problem.severity for problem in caught.value.problems} == {Severity.ERROR}
    assert "rollout_percentage: must be 0 to 100, got 101" in str(caught.value)
    assert "allowed_tenants: must be a list of strings" in str(caught.value)


@given(st.integers(0, 4))
def test_one_bad_tool_leaves_nothing_behind(position):
    batch = [contract(f"read_case_{index}") for index in range(4)]
    batch.insert(position, contract("bad name"))
    registry = Registry()
    registry.register(contract("list_cases"))
    before, warnings = registry.export(), registry.warnings
    with pytest.raises(ContractError):
        registry.register(*batch, grants=[Grant(agent="bot", tool="read_case_0")])
    assert registry.export() == before
    assert registry.warnings == warnings


def test_one_bad_grant_leaves_no_tool_behind():
    registry = Registry()
    with pytest.raises(ContractError, match="grant-tool-unknown"):
        registry.register(contract(), grants=[Grant(agent="bot", tool="raed_case")])
    assert registry.records == ()
    assert registry.epoch == 0


@pytest.mark.parametrize("second", ["1.0.0", "1.0", "1", "v1.0.0"])
def test_version_is_taken_once_however_it_is_written(second):
    registry = Registry()
    registry.register(contract())
    with pytest.raises(ContractError) as caught:
        registry.register(contract(version=second))
    assert rules(caught) == ["version-duplicate"]
    with pytest.raises(ContractError, match="version-duplicate"):
        Registry().register(contract(), contract(version=second))


def test_problem_of_a_decorated_function_says_where_it_stands():
    @tool(effect="draft", version="1.0.0", probe="nowhere")
    def draft_notice(case_id: str) -> dict[str, str]:
        """Draft a notice.

        Args:
            case_id: The case.
        """
        return {}

    with pytest.raises(ContractError) as caught:
        Registry().register(draft_notice)
    (problem,) = (p for p in caught.value.problems if p.rule == "hook-unknown")
    assert problem.tool == "draft_notice"
    assert problem.source.file.endswith("test_checks.py")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("enabled", "yes"),
        ("allowed_agent_roles", "clerk"),
        ("allowed_tenants", [""]),
        ("allowed_tenants", ["acme corp"]),
        ("allowed_tenants", None),
        ("rollout_percentage", -1),
        ("rollout_percentage", 101),
        ("rollout_percentage", 50.0),
        ("rollout_percentage", True),
        ("deprecation", "soon"),
    ],
)
def test_record_error_names_the_field(field, value):
    with pytest.raises(RegistryError, match=f"^{field}: "):
        RegistryRecord(contract=contract(), **{field: value})


def test_record_needs_a_version_that_can_be_ordered():
    with pytest.raises(RegistryError, match=r"contract\.version"):
        RegistryRecord(contract=contract(version="newest"))


# --- tools that name other tools ------------------------------------------------------------------


def reversible(name="charge_card", undo="refund_card", **more):
    return contract(
        name, effect="internal_mutation", transactional={"compensation_tool": undo}, **more
    )


REFUND = {"name": "refund_card", "effect": "internal_mutation"}


def test_compensation_tool_must_be_known():
    with pytest.raises(ContractError) as caught:
        Registry().register(reversible())
    assert rules(caught) == ["compensation-unknown"]
    assert caught.value.problems[0].pointer == "/transactional/compensation_tool"


@pytest.mark.parametrize("together", [True, False])
def test_compensation_tool_may_come_with_or_before_the_one_it_reverses(together):
    registry = Registry()
    if together:
        registry.register(reversible(), contract(**REFUND))
    else:
        registry.register(contract(**REFUND))
        registry.register(reversible())
    assert len(registry.records) == 2


def test_compensation_tool_that_only_reads_is_refused():
    with pytest.raises(ContractError) as caught:
        Registry().register(reversible(undo="read_case"), contract())
    assert rules(caught) == ["compensation-read-only"]


@pytest.mark.parametrize("hook", ["probe", "preview", "read_back"])
def test_hook_must_name_a_known_tool_that_only_reads(hook):
    hooked = contract("update_case", effect="internal_mutation", **{hook: "look_at_case"})
    with pytest.raises(ContractError) as caught:
        Registry().register(hooked)
    assert rules(caught) == ["hook-unknown"]
    with pytest.raises(ContractError) as caught:
        Registry().register(hooked, contract("look_at_case", effect="draft"))
    assert "hook-mutates" in rules(caught)
    Registry().register(hooked, contract("look_at_case"))


def test_hook_given_as_code_needs_no_registered_tool():
    def probe(case_id: str) -> int:
        return len(case_id)

    Registry().register(contract("update_case", effect="internal_mutation", probe=probe))


def test_tool_that_others_ask_can_not_become_a_writer():
    registry = Registry()
    registry.register(
        contract(), contract("update_case", effect="internal_mutation", probe="read_case")
    )
    with pytest.raises(ContractError) as caught:
        registry.register(contract(version="2.0.0", effect="internal_mutation"))
    (problem,) = caught.value.problems
    assert problem.rule == "hook-mutates"
    assert problem.tool == "update_case"


def test_tool_that_others_undo_with_can_not_become_a_reader():
    registry = Registry()
    registry.register(reversible(), contract(**REFUND))
    with pytest.raises(ContractError) as caught:
        registry.register(contract("refund_card", "2.0.0"))
    assert rules(caught) == ["compensation-read-only"]


# --- what a reversal is called with ---------------------------------------------------------------


def test_reversal_must_be_able_to_have_all_that_it_needs():
    refund = contract(**REFUND, inputs=("charge_id",))
    with pytest.raises(ContractError) as caught:
        Registry().register(reversible(), refund)
    (problem,) = caught.value.problems
    assert problem.rule == "compensation-arguments"
    assert problem.tool == "charge_card"
    assert problem.pointer == "/transactional/compensation_tool"
    assert "refund_card 1.0.0 needs charge_id" in problem.message
    Registry().register(reversible(compensation={"charge_id": "{case_id}"}), refund)


def test_reversal_takes_no_argument_that_its_tool_does_not_have():
    with pytest.raises(ContractError) as caught:
        Registry().register(
            reversible(compensation={"case_id": "{case_id}", "amount": 3}), contract(**REFUND)
        )
    (problem,) = caught.value.problems
    assert problem.rule == "compensation-arguments"
    assert problem.pointer == "/compensation/amount"


def test_reversal_that_may_lack_something_is_warned_about():
    charge = reversible().record()
    charge["affordance"]["output_schema"] = {"type": "object"}
    registry = Registry()
    registry.register(Contract.model_validate(charge), contract(**REFUND, inputs=("charge_id",)))
    assert "compensation-arguments" in warned(registry)


def test_tool_that_others_undo_with_can_not_ask_for_more_than_they_have():
    registry = Registry()
    registry.register(reversible(), contract(**REFUND))
    with pytest.raises(ContractError) as caught:
        registry.register(contract(**REFUND, version="2.0.0", inputs=("case_id", "charge_id")))
    (problem,) = caught.value.problems
    assert problem.rule == "compensation-arguments"
    assert problem.tool == "charge_card"
    assert "refund_card 2.0.0 needs charge_id" in problem.message


# --- versions that break --------------------------------------------------------------------------

WIDER = ("case_id", "reason")
"""One more required input, which breaks callers."""


def test_breaking_version_without_a_new_major_number_is_warned_about():
    registry = Registry()
    registry.register(contract())
    (warning,) = registry.register(contract(version="1.1.0", inputs=WIDER))
    assert warning.rule == "version-bump-missing"
    assert warning.severity is Severity.WARNING
    assert "1.1.0 breaks callers of 1.0.0" in warning.message
    assert "reason" in warning.message
    assert "2.0.0" in warning.fix


@pytest.mark.parametrize("version", ["2.0.0", "2.0.0rc1", "1!0.1"])
def test_breaking_version_with_a_new_major_number_is_welcome(version):
    registry = Registry()
    registry.register(contract())
    registry.register(contract(version=version, inputs=WIDER))
    assert "version-bump-missing" not in warned(registry)


def test_compatible_version_needs_no_new_major_number():
    registry = Registry()
    registry.register(contract(), contract(version="1.1.0", usage="When somebody asks for a case."))
    assert "version-bump-missing" not in warned(registry)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("at_once", [True, False])
def test_warning_does_not_depend_on_the_order_of_registration(order, at_once):
    versions = [contract(), contract(version="1.1.0", inputs=WIDER)]
    chosen = [versions[index] for index in order]
    registry = Registry()
    for batch in [chosen] if at_once else [[one] for one in chosen]:
        registry.register(*batch)
    assert warned(registry).count("version-bump-missing") == 1


# --- lifecycle ------------------------------------------------------------------------------------


def with_life(**lifecycle):
    identity = {"name": "read_case", "version": "1.0.0", "owner": "cases", "lifecycle": lifecycle}
    return contract(identity=identity)


@pytest.mark.parametrize(
    ("lifecycle", "expected"),
    [
        ({}, None),
        ({"status": "deprecated", "replacement": "x"}, (None, "x")),
        ({"status": "sunsetted"}, (None, None)),
        ({"sunset_date": "2026-05-01"}, ("2026-05-01T00:00:00+00:00", None)),
    ],
)
def test_deprecation_follows_from_the_contracts_lifecycle(lifecycle, expected):
    registry = Registry()
    registry.register(with_life(**lifecycle))
    deprecation = registry.get("read_case", "1.0.0").deprecation
    if expected is None:
        assert deprecation is None
    else:
        exported = deprecation.export()
        assert (exported["removal_at"], exported["replacement_tool"]) == expected


def test_contract_that_calls_itself_sunset_stays_so():
    registry = Registry()
    registry.register(with_life(status="sunsetted"))
    registry.deprecate("read_case", "1.0.0", None)
    refusal = registry.resolve("read_case", tenant="acme", run_id="run_1", version="1.0.0")
    assert refusal.reason is Reason.SUNSET


def test_deprecation_takes_only_times_with_a_zone():
    with pytest.raises(RegistryError, match=r"^removal_at: "):
        Deprecation(removal_at="2026-01-01")


def test_a_prompt_variable_stands_for_one_key():
    def writes(name, key):
        effect = {"key": key, "prompt_template_var": "FOUND"}
        return fake_tool(name, state_effects=[effect]).tool

    registry = Registry()
    registry.register(writes("search", "hits"), writes("look", "hits"))
    with pytest.raises(ContractError, match=r"variable-ambiguous.*FOUND is other here"):
        registry.register(writes("ask", "other"))


def test_versions_of_one_tool_may_give_a_variable_to_another_key():
    def writes(version, key):
        effect = {"key": key, "prompt_template_var": "FOUND"}
        return fake_tool("look", version=version, state_effects=[effect]).tool

    registry = Registry()
    registry.register(writes("1.0.0", "hits"), writes("2.0.0", "found"))
    with pytest.raises(ContractError, match="variable-ambiguous"):
        registry.register(
            fake_tool("ask", state_effects=[{"key": "other", "prompt_template_var": "FOUND"}]).tool
        )


def test_tools_that_merge_one_key_in_two_ways_are_warned_about():
    def writes(name, merge, **more):
        return fake_tool(name, state_effects=[{"key": "hits", "merge": merge}], **more).tool

    registry = Registry()

    def conflicts(*tools):
        return [one for one in registry.register(*tools) if one.rule == "state-merge-conflict"]

    assert conflicts(writes("search", "append"), writes("look", "append")) == []
    (problem,) = conflicts(writes("ask", "replace"))
    assert (problem.severity, problem.tool) == (Severity.WARNING, "ask")
    assert problem.message == "hits is merged by replace here, but by append in look"
    assert problem.pointer == "/state_effects/0/merge"
    assert conflicts(fake_tool("other").tool) == [], "it is said once"
    assert conflicts(writes("look", "replace", version="2.0.0")) != [], "another tool still appends"
