"""Lint: a clean contract has no problem, and every rule is shown to fire."""

import copy
from typing import Annotated

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from counterseal import Contract, ContractError, Registry, lint, tool
from counterseal.contract.fill import consequence_problems
from counterseal.contract.lint import RULES, examine
from counterseal.contract.schemas import compile_schema
from counterseal.errors import Severity

CLEAN = {
    "effect": "external_notification",
    "identity": {"name": "send_notice", "version": "1.0.0", "owner": "case-platform"},
    "affordance": {
        "model_description": "Send an approved notice. Does not write drafts.",
        "input_schema": {
            "type": "object",
            "properties": {
                "draft_id": {
                    "type": "string",
                    "pattern": "^drf_[0-9a-f]{8}$",
                    "description": "The draft to send.",
                },
                "copies": {"type": "integer", "minimum": 1, "description": "How many."},
            },
            "required": ["draft_id"],
            "additionalProperties": False,
        },
        "output_schema": {
            "type": "object",
            "properties": {"notice_id": {"type": "string"}, "seen": {"type": "integer"}},
            "required": ["notice_id"],
            "additionalProperties": False,
        },
        "examples": [{"description": "One", "arguments": {"draft_id": "drf_0123abcd"}}],
    },
    "usage": "When a notice was approved.",
    "consequence": "Notice {draft_id} is sent.",
    "probe": "read_notice",
    "expected": {"draft": "{draft_id}", "notice": {"id": "{output.notice_id}"}, "sent": True},
}


def changed(*changes):
    """The clean contract with some of its places set; None takes a place out."""
    data = copy.deepcopy(CLEAN)
    for place, value in changes:
        *path, last = place.split("/")
        part = data
        for step in path:
            part = part.setdefault(step, {})
        if value is None:
            del part[last]
        else:
            part[last] = value
    return data


IN = "affordance/input_schema"
TEXT = {"type": "string", "maxLength": 9, "description": "A text."}
LIST = {"type": "array", "maxItems": 3, "description": "A list."}


def argument(name, schema):
    return (f"{IN}/properties/{name}", schema)


UNDONE = ("transactional/compensation_tool", "void_notice")

CODE = ["code_to_run", "code_text", "script_text", "exec", "powershell", "js", "sourceCode"]
RUN = [
    "Python source to run.",
    "Python expression to evaluate",
    "Python code that is executed.",
    "The script to run.",
    "Executed as code.",
]
RUNNERS = ["run_code", "execute_python", "eval_expression", "shell", "python_repl", "run_script"]

PRICED = ("runtime", {"cost_profile": {"cost_per_call": 0.1}})
SPENDING = ("spends", {"amount": "/draft_id", "currency": "EUR"})

BREACHES = {
    "name-invalid": [
        changed(("identity/name", "a/../b")),
        changed(("identity/name", "bell\x07")),
        changed(("identity/name", "")),
        changed(("identity/name", "x" * 129)),
        changed(("identity/name", "send_notice\n")),
    ],
    "version-invalid": [changed(("identity/version", "latest"))],
    "owner-unassigned": [changed(("identity/owner", None))],
    "description-empty": [changed(("affordance/model_description", " \n"))],
    "usage-empty": [changed(("usage", None)), changed(("usage", " "))],
    "text-hidden": [
        changed(("usage", "Use it\u200b.")),
        changed(("affordance/model_description", "Send \u202e it")),
    ],
    "name-vague": [changed(("identity/name", "do_stuff")), changed(("identity/name", "handle"))],
    "name-dishonest": [
        changed(("identity/name", "get_notice")),
        changed(("effect", "compute"), ("identity/name", "delete_case")),
    ],
    "lifecycle-incomplete": [
        changed(("identity/lifecycle", {"status": "deprecated"})),
        changed(("identity/lifecycle", {"sunset_date": "2027-01-01"})),
    ],
    "schema-invalid": [
        changed(argument("a", {"type": "strin", "description": "x"})),
        changed(argument("a", {**TEXT, "pattern": "(?=look)ahead"})),
        changed(argument("a", {"$ref": "#/$defs/nowhere", "description": "x"})),
        changed((IN, {**CLEAN["affordance"]["input_schema"], "required": "draft_id"})),
        changed(("affordance/output_schema/properties/seen", {"type": 3})),
    ],
    "schema-dialect": [changed((f"{IN}/$schema", "http://json-schema.org/draft-07/schema#"))],
    "schema-not-object": [
        changed((f"{IN}/type", "array")),
        changed(("affordance/output_schema", {"type": "string"})),
    ],
    "schema-too-large": [changed(argument("a", {**TEXT, "description": "x" * 300_000}))],
    "schema-ref-remote": [
        changed(argument("a", {"$ref": "https://example.org/s.json", "description": "x"})),
        changed(argument("a", {"$ref": "file:///etc/passwd", "description": "x"})),
        changed(argument("a", {"$ref": "other.json#/a", "description": "x"})),
    ],
    "schema-ref-cycle": [
        changed(
            argument("a", {"$ref": "#/$defs/a", "description": "x"}),
            (f"{IN}/$defs", {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}),
        ),
        changed((f"{IN}/allOf", [{"$ref": "#"}])),
    ],
    "schema-open": [
        changed((f"{IN}/additionalProperties", None)),
        changed((f"{IN}/additionalProperties", True)),
        changed(
            argument(
                "a",
                {
                    "type": "array",
                    "maxItems": 3,
                    "description": "x",
                    "items": {"type": "object", "properties": {}},
                },
            )
        ),
    ],
    "output-open": [changed(("affordance/output_schema/additionalProperties", None))],
    "parameter-untyped": [
        changed(argument("a", {"description": "x"})),
        changed(argument("a", {"type": "array", "maxItems": 2, "description": "x"})),
        changed(argument("a", True)),
        changed(argument("a", {"anyOf": [{"type": "string"}, {}], "description": "x"})),
        changed(argument("a", {"anyOf": [True], "description": "x"})),
        changed(argument("a", {"allOf": [{"description": "x"}], "description": "x"})),
        changed(argument("a", {"type": "array", "maxItems": 1, "items": True, "description": "x"})),
        changed((f"{IN}/patternProperties", {".*": True})),
        changed((f"{IN}/additionalProperties", {"description": "anything"})),
    ],
    "default-invalid": [changed(argument("a", {**TEXT, "default": 3}))],
    "schema-ref-misplaced": [
        changed(
            argument("a", {"$ref": "#/x-defs/A", "description": "x"}),
            (f"{IN}/x-defs", {"A": {"type": "object"}}),
        ),
        changed(
            argument("a", {"$ref": "#A", "description": "x"}),
            (f"{IN}/$defs", {"a": {"$anchor": "A", "type": "integer"}}),
        ),
        changed(argument("a", {"$dynamicRef": "#", "description": "x"})),
    ],
    "parameter-undescribed": [changed(argument("a", {"type": "integer"}))],
    "field-undescribed": [
        changed(
            argument(
                "a",
                {
                    "type": "object",
                    "description": "x",
                    "additionalProperties": False,
                    "properties": {"inner": {"type": "integer"}},
                },
            )
        )
    ],
    "input-unbounded": [
        changed(argument("a", {"type": "string", "description": "x"})),
        changed(argument("a", {"type": "string", "pattern": "^a+$", "description": "x"})),
        changed(argument("a", {"type": "array", "items": TEXT, "description": "x"})),
    ],
    "example-invalid": [
        changed(("affordance/examples", [{"description": "x", "arguments": {"draft_id": "7"}}])),
        changed(("affordance/examples", [{"description": "x", "arguments": {}}])),
    ],
    "effect-missing": [changed(("effect", None))],
    "risk-lowered": [changed(("transactional/side_effect_class", "LOW_RISK_INTERNAL"))],
    "idempotency-off": [
        changed(("idempotency/required", False)),
        changed(("idempotency/supported", False)),
        changed(("idempotency/payload_hash_required", False)),
        changed(
            ("effect", "compute"),
            ("transactional/side_effect_class", "MEDIUM_RISK_WRITE"),
            ("idempotency/required", False),
        ),
    ],
    "retry-writes": [
        changed(
            ("effect", "compute"),
            ("transactional/side_effect_class", "EPHEMERAL_WRITE"),
            ("runtime/max_retries", 2),
        ),
        changed(
            ("effect", "read_only"),
            ("transactional/side_effect_class", "MEDIUM_RISK_WRITE"),
            ("runtime/max_retries", 1),
        ),
    ],
    "confirmation-off": [
        changed(("transactional/confirmation_required", False)),
        changed(("effect", "irreversible"), ("approvers", 1)),
    ],
    "approvers-unasked": [
        changed(
            ("effect", "draft"), ("approvers", 1), ("transactional/confirmation_required", False)
        )
    ],
    "verification-off": [
        changed(("transactional/post_action_verification_required", False)),
        changed(("effect", "draft"), ("transactional/post_action_verification_required", False)),
        changed(("effect", "draft"), ("expected", None), ("verify_after", 60)),
    ],
    "audit-off": [changed(("observability/audit_required", False))],
    "meta-exposed": [changed(("effect", "meta"), ("exposed", True))],
    "semantics-contradictory": [
        changed(("transactional/semantics", "compensable_write")),
        changed(("transactional/semantics", "read_only")),
        changed(("transactional/compensation_tool", "send_notice")),
    ],
    "unknown-unanswered": [changed(("on_unknown", "read_back"))],
    "sandbox-contradictory": [
        changed(("isolation", "thread"), ("runtime/sandbox_isolated", True)),
        changed(("isolation", "sandbox"), ("runtime/sandbox_isolated", False)),
    ],
    "code-unknown": [
        changed(("error_contract/retryable_errors", ["TIMEOUT", "OOPS"])),
        changed(("observability/error_taxonomy_mapping", {"404": "GONE"})),
        changed(("observability/error_taxonomy_mapping", {"ValueError": "SUCCESS"})),
    ],
    "hook-arguments": [
        changed(("probe", lambda draft: {"version": 1})),
        changed(("read_back", lambda draft_id, extra: None)),
    ],
    "target-unseen": [
        changed(("probe", None), ("version_argument", "draft_id")),
        changed(
            ("probe", None),
            ("invariants", [{"id": "OPEN", "rule": "It is open.", "check": "target.open"}]),
        ),
    ],
    "id-repeated": [
        changed(("invariants", [{"id": "A", "rule": "r", "check": "true"}] * 2)),
        changed(("config_params", [{"key": "a"}, {"key": "a"}])),
    ],
    "money-unlimited": [
        changed(SPENDING),
        changed(SPENDING, ("money", {"day": {"JPY": 5}})),
        changed(("money", {"day": {"EUR": 5}})),
        changed(PRICED),
        changed(PRICED, ("cost", {"day": {"EUR": 1}})),
    ],
    "cost-unit": [
        changed(("runtime", {"cost_profile": {"cost_per_call": price, "cost_unit": unit}}))
        for unit in ("token", "second", "transaction", "custom")
        for price in (0, 0.1)
    ]
    + [changed(("runtime", {"cost_profile": {"cost_per_call": 0.1, "currency": "credits"}}))],
    "spends-unread": [
        changed(("spends", {"amount": "/cents", "currency": "EUR"})),
        changed(("spends", {"amount": "/draft_id", "currency": "/currency"})),
        changed(SPENDING, ("effect", "read_only")),
    ],
    "budget-generous": [changed(("effect", "irreversible"), ("budget", 5))],
    "template-field-unknown": [
        changed(("consequence", "Notice {draft} is sent.")),
        changed(("consequence", "Notice {draft_id is sent.")),
        changed(("consequence", "Notice {draft_id.number} is sent.")),
        changed(("consequence", "Notice {} is sent.")),
        changed(("consequence", "Notice {output.notice_id} is sent.")),
        changed(("consequence", "Notice {state} is sent.")),
        changed(("consequence", "Notice {secret:token} is sent.")),
        changed(("consequence", "It was {state.status}."), ("probe", None), ("expected", None)),
        changed(("resource", "case:{case_id}")),
        changed(("resource", "case:{output.notice_id}")),
        changed(("resource", "case:{draft_id")),
    ],
    "approval-terms": [
        changed(("approval", {"roles": ["lead", " "]})),
        changed(("approval", {"expires_seconds": 29})),
        changed(("approval", {"expires_seconds": 30 * 86_400 + 1})),
        changed(("approval", {"pattern": "dual_control"}), ("approvers", 1)),
        changed(("approval", {"pattern": "user_consent"}), ("approvers", 2)),
        changed(("approval", {"pattern": "compliance_gate"})),
        changed(("approval", {"pattern": "compliance_gate", "accountable_owner": ""})),
        changed(
            (
                "approval",
                {
                    "pattern": "compliance_gate",
                    "accountable_owner": "dpo",
                    "justification_required": False,
                },
            )
        ),
        changed(("approval", {"jurisdiction": " "})),
        changed(("approval", {"then": "execute"}), ("effect", "read_only"), ("approvers", 1)),
    ],
    "consequence-missing": [changed(("consequence", None))],
    "argument-unknown": [
        changed(("business_key", ["case_id"])),
        changed(("tenant_argument", "tenant_id")),
        changed(("version_argument", "version_seen")),
    ],
    "pointer-unresolved": [
        changed(("version_from", "/version")),
        changed(("version_from", "notice_id")),
    ],
    "reference-unknown": [
        changed((field, {"a": text}), UNDONE)
        for field in ("expected", "compensation")
        for text in (
            "{case_id}",
            "case:{case_id}",
            ["{draft_id}", "{case_id}"],
            {"deeper": "{output.case_id}"},
            "{output.notice_id.number}",
            "{draft_id.number}",
            "{output}",
            "{secret:api_token}",
            "{call:key}",
            "{draft_id",
            "{}",
            "{output.}",
        )
    ],
    "reference-optional": [
        changed(("expected", {"a": "{copies}"})),
        changed(("expected", {"a": "{draft_id}/{output.seen}"})),
        changed(("compensation", {"a": "{output.seen}"}), UNDONE),
    ],
    "expected-unprobed": [
        changed(("probe", None)),
        changed(("probe", None), ("read_back", "read_notice")),
    ],
    "verification-blind": [
        changed(("probe", None), ("expected", None)),
        changed(
            ("probe", None),
            ("expected", None),
            ("effect", "draft"),
            ("transactional/post_action_verification_required", True),
        ),
    ],
    "client-unverified": [
        changed(("executed_by", "client"), ("probe", None), ("expected", None)),
        changed(
            ("executed_by", "client"), ("transactional/post_action_verification_required", False)
        ),
    ],
    "client-executed": [
        changed(("executed_by", "client"), ("isolation", "thread")),
        changed(("executed_by", "client"), ("trust", "trusted")),
        changed(("executed_by", "client"), ("approval", {"then": "execute"})),
    ],
    "compensation-unused": [
        changed(("compensation", {"notice_id": "{output.notice_id}"})),
        changed(("compensation", {})),
    ],
    "keep-reads-unused": [changed(("keep_reads", "none")), changed(("keep_reads", "all"))],
    "code-unsandboxed": [
        changed(argument("shell_command", TEXT)),
        changed(argument("python_code", TEXT)),
        changed(
            argument(
                "commands", {"type": "array", "maxItems": 3, "items": TEXT, "description": "x"}
            )
        ),
        changed(("runs_code", True)),
        *(changed(argument(name, TEXT)) for name in CODE),
        *(changed(argument("input", {**TEXT, "description": said})) for said in RUN),
        *(changed(("identity/name", name), argument("note", TEXT)) for name in RUNNERS),
        changed(
            ("affordance/model_description", "Runs Python code and returns what it prints."),
            argument("note", TEXT),
        ),
    ],
    "code-suspected": [
        *(changed(argument(name, TEXT)) for name in ("snippet", "program", "notebook_cell")),
        changed(argument("expression", TEXT)),
        changed(argument("input", {**TEXT, "description": "An expression that is evaluated."})),
        changed(argument("input", {**TEXT, "description": "Python source."})),
        changed(("identity/name", "run_payroll_script"), argument("note", TEXT)),
        changed(("identity/name", "evaluate_expression"), argument("note", TEXT)),
        changed(("identity/name", "run_script"), argument("script_id", TEXT)),
        changed(
            ("affordance/model_description", "Runs the nightly script."), argument("note", TEXT)
        ),
    ],
    "raw-power": [
        changed(argument("sql", TEXT)),
        changed(argument("shell_command", TEXT), ("runs_code", False)),
        changed(argument("target_url", TEXT)),
        changed(argument("file_path", TEXT)),
        changed(argument("condition", {**TEXT, "description": "A SQL condition."})),
        changed(argument("sql", {"anyOf": [TEXT, {"type": "null"}], "description": "x"})),
        changed(argument("fileUrls", TEXT)),
        changed(argument("target", {**TEXT, "format": "uri"})),
        changed(argument("sql", {**TEXT, "pattern": "^.{1,50}$"})),
    ],
    "credential-argument": [
        changed(argument("smtp_password", TEXT)),
        changed(argument("apiKey", TEXT)),
        changed(argument("password", {**TEXT, "pattern": "^.{1,50}$"})),
        changed(argument("api_key", {"anyOf": [TEXT, {"type": "null"}], "description": "x"})),
    ],
    "authority-argument": [
        changed(argument("scopes", {"type": "array", "maxItems": 3, "items": TEXT}))
    ],
    "identifier-ambiguous": [changed(argument("id", TEXT))],
}

CASES = [(rule, data) for rule, cases in BREACHES.items() for data in cases]


def found(data):
    return {problem.rule for problem in examine(data)[1]}


def test_a_well_declared_contract_has_no_problem():
    assert lint(Contract.model_validate(CLEAN)) == ()


def test_every_rule_is_shown_to_fire():
    # What an HTTP tool can get wrong is in test_lint_outbound.py.
    assert set(BREACHES) == {rule for rule in RULES if not rule.startswith(("http-", "egress-"))}


@pytest.mark.parametrize(("rule", "data"), CASES)
def test_a_breach_is_found_and_says_where(rule, data):
    problems = [problem for problem in examine(data)[1] if problem.rule == rule]
    assert problems
    for problem in problems:
        assert problem.pointer.startswith("/")
        assert problem.message
        assert problem.severity is RULES[rule].severity


# What registration must refuse, whatever else it says.
REFUSED = {
    "name-invalid",
    "description-empty",
    "usage-empty",
    "schema-open",
    "schema-invalid",
    "parameter-untyped",
    "effect-missing",
    "idempotency-off",
    "confirmation-off",
    "schema-ref-remote",
    "example-invalid",
    "meta-exposed",
}


def test_what_registration_must_refuse_is_an_error():
    assert {rule for rule in REFUSED if RULES[rule].severity is not Severity.ERROR} == set()


def test_a_lowered_risk_class_passes_with_a_written_reason():
    lowered = (
        ("transactional/side_effect_class", "MEDIUM_RISK_WRITE"),
        ("risk_justification", "x"),
    )
    assert "risk-lowered" not in found(changed(*lowered))


def test_a_read_back_is_enough_to_look_with():
    looked = changed(("probe", None), ("expected", None), ("read_back", "find_notice"))
    assert found(looked) == set()


def test_an_effect_that_is_not_declared_is_not_told_to_be_verified():
    assert "verification-blind" not in found(
        changed(("effect", None), ("probe", None), ("expected", None))
    )


def test_braces_that_are_doubled_refer_to_nothing():
    assert found(changed(("expected", {"text": "{{case_id}}", "{case_id}": 1}))) == set()


def test_a_reference_is_said_with_the_names_that_there_are():
    data = changed(("expected", {"list": [{"a": "{output.id}"}]}))
    (problem,) = examine(data)[1]
    assert problem.pointer == "/expected/list/0/a"
    assert problem.message == "{output.id} is not declared as output of send_notice"
    assert problem.fix == "Use one of: {output.notice_id}, {output.seen}."


def test_a_sandboxed_tool_may_take_code():
    data = changed(argument("python_code", TEXT), ("isolation", "sandbox"))
    assert not {"raw-power", "code-unsandboxed"} & found(data)


def test_a_tool_that_says_that_it_runs_nothing_is_believed():
    for data in BREACHES["code-suspected"] + BREACHES["code-unsandboxed"]:
        if "runs_code" not in data:
            told = found({**data, "runs_code": False})
            assert not {"code-suspected", "code-unsandboxed"} & told
            assert "code-unsandboxed" in found({**data, "runs_code": True})


@pytest.mark.parametrize(
    ("name", "description"),
    [
        *((name, "A text.") for name in ("postal_code", "reason_code", "languageCode", "zipCodes")),
        *((name, "A text.") for name in ("source", "input", "script_id", "python_version")),
        ("cron_expression", "When it is due."),
        ("note", "Plain text. No code is executed."),
        ("note", "A text that is never run as code."),
        ("case", "The case that the report is run for."),
        ("script_id", "The script to run."),
        ("postal_code", "The code that is evaluated."),
    ],
)
def test_what_is_no_code_is_not_taken_for_it(name, description):
    data = changed(argument(name, {**TEXT, "description": description}))
    assert not {"code-suspected", "code-unsandboxed"} & found(data)


def test_a_tool_that_takes_no_text_of_the_models_making_runs_none():
    closed = changed(("identity/name", "run_script"), argument("script", {**TEXT, "enum": ["a"]}))
    assert not {"code-suspected", "code-unsandboxed"} & found(closed)


def test_a_risk_class_that_writes_passes_without_retries_or_with_an_effect_that_does():
    writes = ("transactional/side_effect_class", "MEDIUM_RISK_WRITE")
    unretried = changed(("effect", "compute"), writes, ("runtime/max_retries", 0))
    assert "retry-writes" not in found(unretried)
    assert "retry-writes" not in found(changed(("effect", "internal_mutation"), writes))


def test_registration_refuses_code_without_a_sandbox():
    def run_script(
        script: Annotated[str, Field(max_length=500, description="What to run.")],
    ) -> str:
        """Run a script."""
        return script

    made = tool(effect="compute", version="1.0.0", owner="x")(run_script)
    with pytest.raises(ContractError, match="code-unsandboxed"):
        Registry().register(made)
    Registry().register(
        tool(effect="compute", version="1.0.0", owner="x", isolation="sandbox")(run_script)
    )


def test_a_bounded_word_is_not_raw_power():
    closed = changed(argument("reason_code", {**TEXT, "enum": ["a", "b"]}))
    assert "raw-power" not in found(closed)
    for name in ("postal_code", "country_code", "page_token"):
        assert not {"raw-power", "credential-argument"} & found(changed(argument(name, TEXT)))
    path = changed(argument("path", {**TEXT, "pattern": "^reports/[a-z]{1,20}$"}))
    assert "raw-power" not in found(path)


def test_the_marked_tenant_argument_is_no_claim_of_authority():
    data = changed(argument("tenant_id", TEXT), ("tenant_argument", "tenant_id"))
    assert "authority-argument" not in found(data)


def test_a_recursive_type_is_not_a_cycle():
    node = {
        "type": "object",
        "additionalProperties": False,
        "properties": {"next": {"$ref": "#/$defs/node", "description": "Next."}},
    }
    data = changed(
        argument("list", {"$ref": "#/$defs/node", "description": "x"}),
        (f"{IN}/$defs", {"node": node}),
    )
    assert found(data) == set()


def test_a_typed_map_is_closed_enough():
    data = changed(
        argument("counts", {"type": "object", "description": "x", "additionalProperties": TEXT})
    )
    assert "schema-open" not in found(data)


def test_wrong_shape_and_bad_content_are_reported_together():
    data = changed(
        ("effect", "zap"),
        ("identity/name", "a/b"),
        ("runtime", {"timeout_ms": "soon"}),
        ("usage", ""),
        (f"{IN}/additionalProperties", True),
        ("invariants", [{"id": "A", "rule": "r", "check": "nope("}]),
    )
    contract, problems = examine(data)
    assert contract is None
    assert {problem.pointer for problem in problems} >= {
        "/effect",
        "/identity/name",
        "/runtime/timeout_ms",
        "/usage",
        "/affordance/input_schema",
        "/invariants/0/check",
    }


def test_a_missing_affordance_is_reported_once_and_the_rest_is_judged():
    data = changed(("identity/name", "a b"))
    del data["affordance"]
    _, problems = examine(data)
    assert [p.pointer for p in problems].count("/affordance") == 1
    assert "/identity/name" in {p.pointer for p in problems}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "properties",
                    "items",
                    "$ref",
                    "required",
                    "enum",
                    "anyOf",
                    "allOf",
                    "pattern",
                    "additionalProperties",
                    "$defs",
                    "const",
                    "a",
                    "unevaluatedProperties",
                    "description",
                ]
            ),
            inner
            | st.sampled_from(["object", "string", "#", "#/$defs/a", "http://x", "^(a+)+$", "["]),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["type", "properties", "$defs", "anyOf", "$ref"]), JSON))
def test_no_schema_however_odd_breaks_the_linter(schema):
    contract, problems = examine(changed((IN, schema), ("affordance/examples", [])))
    if not [p for p in problems if p.severity is Severity.ERROR]:
        jsonschema_rs.Draft202012Validator(contract.affordance.input_schema, offline=True)


@given(JSON)
def test_no_data_however_odd_breaks_the_examination(value):
    for field in ("identity", "affordance", "invariants", "transactional", "effect", "budget"):
        examine({**CLEAN, field: value})


@pytest.mark.parametrize(
    ("pattern", "bounded"),
    [
        ("^[a-z]{1,20}$", True),
        (r"^(\d{1,3}\.){3}\d{1,3}$", True),
        ("^(a|bc)$", True),
        (r"^[+*]\+{2}$", True),
        ("[a-z]{1,20}", False),
        ("^[a-z]+$", False),
        ("^[a-z]{2,}$", False),
        ("^(a*)$", False),
        ("^a|b$", False),
        (r"^a\$", False),
        ("(", False),
    ],
)
def test_only_an_anchored_finite_pattern_bounds_a_text(pattern, bounded):
    data = changed(argument("a", {"type": "string", "pattern": pattern, "description": "x"}))
    assert ("input-unbounded" not in found(data)) is bounded


def test_a_pattern_on_which_a_backtracking_engine_would_explode_is_matched_in_linear_time():
    schema = {"type": "string", "pattern": "^(a+)+$", "maxLength": 100_000}
    assert found(changed(argument("a", {**schema, "description": "x"}))) == set()
    assert not compile_schema(schema).is_valid("a" * 99_999 + "b")


@pytest.mark.parametrize(
    "terms",
    [
        {"roles": ["lead", "head of office"], "expires_seconds": 30},
        {"pattern": "user_consent"},
        {"pattern": "review_queue", "expires_seconds": 30 * 86_400, "then": "resubmit"},
        {"pattern": "dual_control"},
        {"pattern": "compliance_gate", "accountable_owner": "dpo", "jurisdiction": "EU"},
    ],
)
def test_terms_of_approval_that_can_be_met_pass(terms):
    assert found(changed(("approval", terms))) == set()


def test_a_consequence_may_name_arguments_that_are_optional_and_state_that_is_probed():
    told = "Notice {draft_id}, {copies} times; it was {state.status}."
    assert found(changed(("consequence", told))) == set()


def test_a_consequence_names_what_the_probe_shows():
    @tool(effect="read_only", version="1.0.0", owner="o")
    def read_notice(draft_id: str) -> dict[str, str]:
        """Read a notice."""

    class Shown(BaseModel):
        status: str

    @tool(effect="read_only", version="1.0.0", owner="o")
    def see_notice(draft_id: str) -> Shown:
        """See a notice."""

    told = Contract.model_validate(changed(("consequence", "{state.status} and {state.colour}.")))
    (problem,) = consequence_problems(told, see_notice.contract)
    assert (problem.rule, problem.pointer) == ("template-field-unknown", "/consequence")
    assert "{state.colour} is not a field that the probe see_notice returns" in problem.message
    assert problem.fix == "Use one of: {state.status}."
    assert list(consequence_problems(told, read_notice.contract)) == []  # it may show anything

    given = told.model_copy(update={"probe": see_notice})
    assert [problem.rule for problem in lint(given)] == ["template-field-unknown"]


@pytest.mark.parametrize(
    "change",
    [
        (("effect", "irreversible"), ("approvers", 1)),
        (("transactional/confirmation_required", False),),
    ],
)
def test_too_few_approvers_are_told_every_way_out(change):
    _, problems = examine(changed(*change))
    (fix,) = {problem.fix for problem in problems if problem.rule == "confirmation-off"}
    assert fix.startswith(("Set it to at least 2, or", "Remove it, or"))
    assert "risk_justification" in fix
    assert fix.endswith("Approval follows the effect until an operator accepts the reason.")
