"""The contract record: its JSON forms, its hash, its frozenness."""

import json
from functools import partial

import pytest

from counterseal import Contract, ContractError, Effect, Invariant, lint
from counterseal.contract.model import (
    Affordance,
    Envelope,
    Identity,
    Security,
    Transactional,
)
from counterseal.contract.schemas import compile_schema, model_schema
from counterseal.observation import ObservationEnvelope

SCHEMA = {
    "type": "object",
    "properties": {"case_id": {"type": "string", "maxLength": 20, "description": "The case."}},
    "required": ["case_id"],
    "additionalProperties": False,
}


def contract(**more):
    base = {
        "effect": "draft",
        "identity": {"name": "create_notice_draft", "version": "1.2.0", "owner": "case-platform"},
        "affordance": {"model_description": "Draft a notice.", "input_schema": SCHEMA},
        "usage": "When a notice is due.",
    }
    return Contract.model_validate({**base, **more})


# The eight sections of the envelope, their fields, and the closed sets of values: the wire format.
SECTIONS = {
    "identity": {"name", "version", "owner", "lifecycle"},
    "affordance": {
        "model_description",
        "allowed_use_cases",
        "forbidden_use_cases",
        "input_schema",
        "output_schema",
        "examples",
    },
    "runtime": {"timeout_ms", "rate_limits", "cost_profile", "sandbox_isolated", "max_retries"},
    "security": {
        "required_scopes",
        "tenant_scoped",
        "secrets_boundary",
        "data_classification",
        "egress_policy",
    },
    "transactional": {
        "side_effect_class",
        "confirmation_required",
        "semantics",
        "compensation_tool",
        "post_action_verification_required",
    },
    "idempotency": {"supported", "required", "key_header", "ttl_seconds", "payload_hash_required"},
    "observability": {"trace_attributes", "audit_required", "error_taxonomy_mapping"},
    "error_contract": {
        "repairable_errors",
        "retryable_errors",
        "fail_closed_errors",
        "escalation_errors",
    },
}
ENUMS = {
    ("identity", "lifecycle", "status"): ["active", "deprecated", "sunsetted"],
    ("runtime", "cost_profile", "cost_unit"): [
        "call",
        "token",
        "second",
        "transaction",
        "custom",
    ],
    ("security", "secrets_boundary"): ["gateway_injected", "execution_sandbox", "none"],
    ("security", "data_classification"): [
        "public",
        "internal",
        "confidential",
        "regulated",
        "secret",
    ],
    ("security", "egress_policy"): [
        "none",
        "allowlisted_domains",
        "private_network_only",
        "unrestricted_with_approval",
    ],
    ("transactional", "side_effect_class"): [
        "READ_ONLY",
        "EPHEMERAL_WRITE",
        "LOW_RISK_INTERNAL",
        "MEDIUM_RISK_WRITE",
        "HIGH_RISK_EXTERNAL",
        "CRITICAL_MUTATION",
    ],
    ("transactional", "semantics"): [
        "read_only",
        "idempotent_write",
        "compensable_write",
        "saga_step",
        "irreversible_pivot",
        "retryable_post_pivot",
    ],
}


def test_the_envelope_has_exactly_the_sections_and_fields_of_the_wire_format():
    envelope = contract().envelope()
    assert {name: set(section) for name, section in envelope.items()} == SECTIONS


def test_the_envelopes_schema_has_exactly_the_fields_and_values_of_the_wire_format():
    schema = model_schema(Envelope, title="ToolContract")
    assert set(schema["properties"]) == set(schema["required"]) == set(SECTIONS)
    assert schema["additionalProperties"] is False
    for name, fields in SECTIONS.items():
        section = schema["properties"][name]
        assert set(section["properties"]) == set(section["required"]) == fields
        assert section["additionalProperties"] is False
    for path, values in ENUMS.items():
        part = schema
        for step in path:
            part = part["properties"][step]
        assert part["enum"] == values
    name = schema["properties"]["identity"]["properties"]["name"]
    assert name["pattern"] == "^[a-zA-Z0-9_.-]{1,128}$"
    lifecycle = schema["properties"]["identity"]["properties"]["lifecycle"]
    assert lifecycle["properties"]["sunset_date"] == {"type": ["string", "null"], "format": "date"}


def test_every_envelope_satisfies_the_published_schema():
    validator = compile_schema(model_schema(Envelope, title="ToolContract"))
    for effect in Effect:
        made = contract(effect=effect, affordance=examples_affordance())
        assert list(validator.iter_errors(made.envelope())) == []


def examples_affordance():
    return {
        "model_description": "Draft a notice.",
        "input_schema": SCHEMA,
        "examples": [{"description": "One", "arguments": {"case_id": "c1"}}],
    }


TEXT, COUNT, FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
TEXT_OR_NULL, OBJECT_OR_NULL = {"type": ["string", "null"]}, {"type": ["object", "null"]}
CODES = [
    "SUCCESS",
    "PARTIAL_SUCCESS",
    "SYNTACTIC_PARSE_FAIL",
    "STRUCTURAL_VIOLATION",
    "TYPE_MISMATCH",
    "OUT_OF_BOUNDS",
    "SEMANTIC_INVALIDITY",
    "PERMISSION_DENIED",
    "POLICY_VIOLATION",
    "STALE_STATE",
    "CONFIRMATION_MISSING",
    "BUDGET_EXHAUSTED",
    "RATE_LIMITED",
    "TIMEOUT",
    "IDEMPOTENCY_CONFLICT",
    "SIGNATURE_MISMATCH",
    "DEPENDENCY_UNAVAILABLE",
    "OBSERVATION_NORMALIZATION_FAIL",
    "COMPENSATION_REQUIRED",
    "COMPENSATION_FAILED",
    "UNKNOWN_ERROR",
]


def closed(**properties):
    """Return the schema of an object that has these properties, all of them, and no other."""
    return {
        "type": "object",
        "required": list(properties),
        "additionalProperties": False,
        "properties": properties,
    }


OBSERVATION = closed(
    tool_identity=closed(name=TEXT, version=TEXT, call_id=TEXT),
    execution_metadata=closed(
        timestamp={"type": "string", "format": "date-time"},
        latency_ms=COUNT,
        idempotency_hit=FLAG,
        trace_id=TEXT,
        attempt_number={"type": "integer", "minimum": 1},
    ),
    status=closed(
        code={"type": "integer"},
        is_error=FLAG,
        taxonomy_class={"type": "string", "enum": CODES},
        retryable=FLAG,
        repairable=FLAG,
        requires_approval=FLAG,
        fail_closed=FLAG,
    ),
    result_payload=closed(
        data=OBJECT_OR_NULL,
        errors={"type": "array", "items": closed(field=TEXT_OR_NULL, message=TEXT, code=TEXT)},
        warnings={"type": "array", "items": TEXT},
    ),
    verification=closed(
        post_action_verification_required=FLAG,
        target_state_reference=TEXT_OR_NULL,
        expected_state=OBJECT_OR_NULL,
        delay_seconds=COUNT,
    ),
)


def test_the_observations_schema_is_that_of_the_wire_format():
    schema = model_schema(ObservationEnvelope, title="ObservationObject")
    assert schema.pop("$schema") == "https://json-schema.org/draft/2020-12/schema"
    assert (schema.pop("title"), schema) == ("ObservationObject", OBSERVATION)


def test_an_envelope_is_read_back_without_loss():
    for effect in Effect:
        made = contract(
            effect=effect,
            security={"required_scopes": ["a", "b"], "data_classification": "regulated"},
            observability={"error_taxonomy_mapping": {"E42": "STALE_STATE"}},
            identity={
                "name": "x",
                "version": "3.1.4",
                "owner": "o",
                "lifecycle": {"status": "deprecated", "sunset_date": "2027-01-31"},
            },
        )
        envelope = json.loads(json.dumps(made.envelope()))
        assert Contract.from_envelope(envelope).envelope() == made.envelope()


def test_reading_an_envelope_takes_additions_that_it_cannot_hold():
    envelope = contract().envelope()
    read = Contract.from_envelope(envelope, effect="internal_mutation", usage="Always.")
    assert (read.effect, read.usage) == (Effect.INTERNAL_MUTATION, "Always.")
    assert read.envelope() == envelope


def test_an_incomplete_or_overfull_envelope_is_refused():
    envelope = contract().envelope()
    with pytest.raises(ContractError, match="surprise is not a field"):
        Contract.from_envelope({**envelope, "surprise": 1})
    del envelope["security"]["egress_policy"]
    with pytest.raises(ContractError, match=r"security\.egress_policy is missing"):
        Contract.from_envelope(envelope)


def test_a_record_read_back_is_the_same_contract():
    made = contract(
        consequence="A draft for {case_id} is written.",
        invariants=[
            {"id": "I", "rule": "r", "check": "call.case_id != ''", "correct": "drop_step"}
        ],
        config_params=[{"key": "mode", "default": "fast", "normalizer": ["strip", "lower"]}],
        state_effects=[{"key": "drafts", "merge": "append", "type_hint": "array"}],
        expected={"case": "{case_id}", "voided": None, "parts": [{"n": 1}]},
        verify_after=7 * 86_400,
        compensation={"case_id": "{case_id}"},
    )
    read = Contract.model_validate(json.loads(json.dumps(made.record())))
    assert read == made
    assert read.hash == made.hash


CHANGES = {
    "description": {"affordance": {"model_description": "Other.", "input_schema": SCHEMA}},
    "schema": {
        "affordance": {
            "model_description": "Draft a notice.",
            "input_schema": {**SCHEMA, "required": []},
        }
    },
    "effect": {"effect": "internal_mutation"},
    "scope": {"security": {"required_scopes": ["notice:draft"]}},
    "default": {"config_params": [{"key": "mode", "default": 1}]},
    "usage": {"usage": "Never."},
    "timeout": {"runtime": {"timeout_ms": 7}},
    "invariant": {"invariants": [{"id": "A", "rule": "r", "check": "true"}]},
    "on_unknown": {"on_unknown": "retry_same_key"},
    "expected": {"expected": {"status": "drafted"}},
    "verify_after": {"verify_after": 1},
    "compensation": {"compensation": {}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_that_matters_changes_the_hash(change):
    assert contract(**CHANGES[change]).hash != contract().hash


def test_the_same_declaration_always_has_the_same_hash():
    assert contract().hash == contract().hash
    assert contract().hash.startswith("sha256:")
    assert json.dumps(contract().record()) == json.dumps(contract().record())


def test_the_order_of_keys_in_a_schema_does_not_matter_to_the_hash():
    turned = {key: SCHEMA[key] for key in reversed(SCHEMA)}
    affordance = {"model_description": "Draft a notice.", "input_schema": turned}
    assert contract(affordance=affordance).hash == contract().hash


def test_a_contract_is_frozen_to_its_last_list():
    made = contract()
    with pytest.raises(ValueError, match="frozen"):
        made.effect = Effect.READ_ONLY
    with pytest.raises(TypeError, match="frozen"):
        made.affordance.input_schema["properties"] = {}
    with pytest.raises(TypeError, match="frozen"):
        made.affordance.input_schema["properties"]["case_id"]["type"] = "integer"
    assert isinstance(made.affordance.input_schema["required"], tuple)


def test_the_callers_own_data_can_change_without_changing_the_contract():
    schema = json.loads(json.dumps(SCHEMA))
    made = contract(affordance={"model_description": "D", "input_schema": schema})
    before = made.hash
    schema["properties"]["case_id"]["type"] = "integer"
    made.record()["effect"] = "meta"
    assert made.record()["affordance"]["input_schema"] == SCHEMA
    assert Contract.model_validate(made.record()).hash == before


def test_every_wrong_field_is_named_at_once():
    with pytest.raises(ContractError) as caught:
        Contract.model_validate(
            {
                "effect": "zap",
                "identity": {"name": 3},
                "affordance": {"input_schema": []},
                "runtime": {"timeout_ms": 0},
                "colour": "red",
            }
        )
    assert {problem.pointer for problem in caught.value.problems} == {
        "/effect",
        "/identity/name",
        "/affordance/model_description",
        "/affordance/input_schema",
        "/runtime/timeout_ms",
        "/colour",
    }


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"a": float("nan")}, "NaN"),
        ({"a": 2**60 + 1}, "no double holds this integer"),
        ({"a": "\ud800"}, "surrogate"),
        ({1: "a"}, "valid string"),
        ({"a": {1, 2}}, "set is not a JSON type"),
    ],
)
def test_a_schema_that_is_not_json_is_refused_with_its_place(schema, says):
    with pytest.raises(ContractError, match=says):
        contract(affordance={"model_description": "D", "input_schema": schema})


def test_a_thousand_deep_schema_is_refused():
    schema = {"type": "string"}
    for _ in range(1000):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(ContractError, match="nested deeper than 64"):
        contract(affordance={"model_description": "D", "input_schema": schema})


def test_sections_can_be_written_as_typed_values():
    made = Contract(
        effect=Effect.EXTERNAL_NOTIFICATION,
        identity=Identity(name="send_notice", version="1.0.0", owner="case-platform"),
        affordance=Affordance(model_description="Send.", input_schema=SCHEMA),
        security=Security(required_scopes=("notice:send",)),
        transactional=Transactional(compensation_tool="recall_notice"),
        usage="To send.",
    )
    assert made.transactional.side_effect_class == "HIGH_RISK_EXTERNAL"
    assert made.transactional.semantics == "compensable_write"
    assert made.security.egress_policy == "none"
    assert made.approvers == 1


def test_a_copy_is_read_and_hashed_anew():
    made = contract()
    changed = made.model_copy(update={"usage": "Never."})
    assert changed.hash != made.hash
    with pytest.raises(ContractError, match="effect"):
        made.model_copy(update={"effect": "zap"})


@pytest.mark.parametrize(
    "more",
    [
        {"runtime": {"timeout_ms": 10**20}},
        {"budget": 2**60},
        {"usage": "\ud800"},
        {"identity": {"name": "x", "owner": "\ud800"}},
        {"runtime": {"timeout_ms": "5"}},
        {"approvers": "2"},
        {"runtime": {"sandbox_isolated": "yes"}},
        {"identity": {"name": "x", "lifecycle": {"sunset_date": 0}}},
        {"runtime": {"cost_profile": {"cost_per_call": float("inf")}}},
        {"verify_after": -1},
        {"verify_after": 7 * 86_400 + 1},
        {"verify_after": 1.5},
        {"expected": "{status}"},
        {"expected": {"seen": object()}},
        {"compensation": ["{case_id}"]},
    ],
)
def test_what_could_not_be_recorded_or_is_of_another_type_is_refused(more):
    with pytest.raises(ContractError):
        contract(**more)


def test_code_without_a_name_of_its_own_is_named_by_what_it_wraps():
    def check(call, state, config, limit):
        return limit > 0

    class Checker:
        def __call__(self, call, state, config):
            return True

    wrapped = Invariant(id="A", rule="r", check=partial(check, limit=3))
    called = Invariant(id="B", rule="r", check=Checker())
    record = contract(invariants=[wrapped, called]).record()
    names = [one["check"]["python"].rpartition(".")[2] for one in record["invariants"]]
    assert names == ["check", "Checker"]


@pytest.mark.parametrize("risk", ["READ_ONLY", "EPHEMERAL_WRITE", "MEDIUM_RISK_WRITE"])
def test_an_envelope_that_asks_for_approval_or_a_sandbox_can_be_registered(risk):
    envelope = contract().envelope()
    envelope["transactional"] |= {"confirmation_required": True, "side_effect_class": risk}
    envelope["runtime"]["sandbox_isolated"] = True
    read = Contract.from_envelope(envelope)
    assert read.envelope() == envelope
    assert (read.approvers, read.isolation) == (1, "sandbox")
    assert [p for p in lint(read) if p.severity == "error"] == []
