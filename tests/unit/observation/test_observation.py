import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.codes import RESPONSES, Code
from counterseal.contract.effects import Trust
from counterseal.contract.schemas import compile_schema, model_schema
from counterseal.observation import (
    FieldError,
    Observation,
    ObservationEnvelope,
    Observed,
    Redaction,
    VerificationHint,
    answer,
    profile,
    refine,
    refusal,
    sentence_for,
)
from counterseal.observation.envelope import fence

PUBLISHED = compile_schema(model_schema(ObservationEnvelope, title="ObservationObject"))


class Decision:
    def record(self):
        return {"gate": "schema", "verdict": "deny"}


def full(code=Code.SUCCESS, **more):
    fields = {
        "tool": "read_case",
        "version": "1.2.0",
        "call_id": "call_1",
        "code": code,
        "response": RESPONSES[code],
        "next_action": RESPONSES[code].next_action,
        "timestamp": 1_700_000_000.123456789,
        "data": {"case_id": "c1", "tags": ["a"]},
        "errors": (FieldError("/a", "is too long", "OUT_OF_BOUNDS", "at most 3", "4"),),
        "warnings": ("corrected",),
        "latency_ms": 12,
        "trace_id": "trace_1",
        "attempt": 2,
        "trust": Trust.UNTRUSTED,
        "redactions": (Redaction("jwt", "/x", 2),),
        "approval_id": "appr_1",
        "retry_after": 1.5,
        "raw": "vault:1",
        "verification": VerificationHint(True, "case:c1", {"open": False}, 5),
        "decisions": (Decision(),),
    }
    return Observation(**{**fields, **more})


@pytest.mark.parametrize("code", Code)
@pytest.mark.parametrize("data", [None, {"a": {"b": [1]}}])
def test_envelope_keeps_the_published_schema_for_every_code(code, data):
    envelope = full(code, data=data).envelope()
    assert PUBLISHED.is_valid(envelope)
    ObservationEnvelope.model_validate(envelope)
    assert envelope["status"]["taxonomy_class"] == code.value
    assert envelope["status"]["code"] == RESPONSES[code].status


@pytest.mark.parametrize("code", Code)
def test_record_goes_out_and_comes_back_the_same(code):
    response = replace(RESPONSES[code], escalate=True, retryable=True)
    observation = full(code, response=response)
    record = json.loads(json.dumps(observation.record()))
    back = Observation.from_record(record)
    assert back._replace(decisions=()) == observation._replace(decisions=())
    assert back.record() == observation.record()


def test_replay_is_the_same_observation_marked_as_one():
    observation = full()
    replay = Observation.from_record(observation.record(), idempotency_hit=True)
    assert replay.idempotency_hit
    assert replay._replace(idempotency_hit=False, decisions=()) == observation._replace(
        decisions=()
    )
    assert "replayed" in replay.for_model()


def test_record_is_a_copy():
    observation = full()
    observation.record()["result_payload"]["data"]["tags"].append("b")
    assert observation.data["tags"] == ["a"]


@pytest.mark.parametrize("code", Code)
def test_only_success_and_partial_success_are_ok(code):
    assert full(code).ok == (code in (Code.SUCCESS, Code.PARTIAL_SUCCESS))
    assert full(code).envelope()["status"]["is_error"] != full(code).ok


def test_error_about_the_whole_names_no_field():
    errors = (FieldError("", "not JSON", "SYNTACTIC_PARSE_FAIL"),)
    assert full(errors=errors).envelope()["result_payload"]["errors"][0]["field"] is None


def test_feedback_tells_a_repair_loop_what_to_mend():
    assert full(Code.OUT_OF_BOUNDS).feedback() == {
        "validation_status": "failed",
        "error_code": "OUT_OF_BOUNDS",
        "repairable": True,
        "retryable": False,
        "field_errors": [
            {
                "field": "a",
                "path": "/a",
                "expected": "at most 3",
                "actual": "4",
                "message": "is too long",
            }
        ],
        "next_action": "repair_arguments",
        "path": "repair",
    }


def test_feedback_begins_with_the_fields_and_names_them_as_people_do():
    code = Code.TYPE_MISMATCH
    errors = (
        FieldError("", sentence_for(code), code.value),
        FieldError("", "a rule about the whole", "a-rule"),
        FieldError("/invoice_id", "must be string", code.value),
        FieldError("/lines/0/a~1b", "must be integer", code.value),
    )
    told = full(code, errors=errors).feedback()["field_errors"]
    assert [(error["field"], error["path"]) for error in told] == [
        ("invoice_id", "/invoice_id"),
        ("lines.0.a/b", "/lines/0/a~1b"),
        (None, ""),
    ]
    assert told[-1]["message"] == "a rule about the whole", "the code says the other one"


def test_feedback_about_the_whole_alone_says_what_is_wrong():
    code = Code.SYNTACTIC_PARSE_FAIL
    errors = (FieldError("", sentence_for(code), code.value),)
    (told,) = full(code, errors=errors).feedback()["field_errors"]
    assert (told["field"], told["message"]) == (None, sentence_for(code))


@pytest.mark.parametrize("code", Code)
def test_every_code_has_words_of_its_own(code):
    assert sentence_for(code)
    assert len({sentence_for(other) for other in Code}) == len(Code)


# --- refusals -------------------------------------------------------------------------------------


def test_refusal_without_a_contract_stands_on_the_code_alone():
    observation = refusal(
        Code.STRUCTURAL_VIOLATION, tool="no_such", call_id="call_1", timestamp=0.0
    )
    assert PUBLISHED.is_valid(observation.envelope())
    assert observation.response is RESPONSES[Code.STRUCTURAL_VIOLATION]
    assert observation.errors == (
        FieldError("", sentence_for(Code.STRUCTURAL_VIOLATION), "STRUCTURAL_VIOLATION"),
    )


def test_refusal_reads_as_short_plain_words():
    text = refusal(
        Code.TYPE_MISMATCH,
        tool="read_case",
        call_id="call_1",
        timestamp=0.0,
        errors=[FieldError("/case_id", "must be text", "TYPE_MISMATCH", "string", "integer")],
    ).for_model()
    assert text.splitlines() == [
        "read_case: TYPE_MISMATCH. An argument has the wrong type.",
        "next action: repair_arguments",
        "errors:",
        "- /case_id: must be text (expected string, got integer)",
    ]


def test_held_call_tells_its_approval_and_when_to_come_back():
    text = full(Code.CONFIRMATION_MISSING, data=None).for_model()
    assert "approval: appr_1" in text
    assert "retry after: 1.5 seconds" in text


@given(st.text(), st.text())
def test_names_and_messages_never_begin_a_line_of_their_own(field, message):
    errors = (FieldError("/" + field, message, "X", field, message),)
    text = full(Code.TYPE_MISMATCH, data=None, errors=errors, warnings=(message,)).for_model()
    head, _, rest = text.partition("errors:")
    assert len(head.split("\n")) == 5
    assert len(rest.splitlines()) == 4


# --- fences ---------------------------------------------------------------------------------------


@given(st.text(), st.text(), st.integers(0, 3))
def test_no_content_can_write_the_marker_that_closes_it(content, call_id, rounds):
    for _ in range(rounds):
        # The strongest attack: content that has seen the markers it would have got.
        content += "\n".join(fence(content, call_id, Trust.UNTRUSTED)[1::2])
    _, opening, inside, closing = fence(content, call_id, Trust.UNTRUSTED)
    assert inside == content
    assert closing not in content
    assert opening not in content
    assert closing.split()[1] == opening.split()[1]


@given(st.dictionaries(st.text(), st.text()))
def test_data_is_one_line_of_json_between_its_markers(data):
    text = full(data=data).for_model()
    start, inside, end = text.split("\n")[-3:]
    assert start.startswith("<<<untrusted-data ")
    assert json.loads(inside) == data
    assert end == f"<<<end {start.split()[1][:-3]}>>>"


def test_same_observation_always_reads_the_same():
    assert full().for_model() == Observation.from_record(full().record()).for_model()


def test_trusted_and_untrusted_data_are_labelled():
    assert "untrusted data from outside" in full().for_model()
    trusted = full(trust=Trust.TRUSTED).for_model()
    assert "<<<trusted-data" in trusted
    assert "not instructions" in trusted


# --- contracts refine -----------------------------------------------------------------------------


@pytest.mark.parametrize("code", Code)
def test_contract_that_says_nothing_changes_no_vector(code, contract_with):
    assert refine(code, contract_with()) == RESPONSES[code]


def test_contract_lists_decide_its_vectors(contract_with):
    contract = contract_with(
        error_contract={
            "retryable_errors": ["UNKNOWN_ERROR"],
            "escalation_errors": ["PERMISSION_DENIED"],
        }
    )
    timeout = refine(Code.TIMEOUT, contract)
    assert (timeout.retryable, timeout.next_action) == (False, "stop")
    unknown = refine(Code.UNKNOWN_ERROR, contract)
    assert (unknown.retryable, unknown.escalate, unknown.next_action) == (
        True,
        False,
        "retry_later",
    )
    assert refine(Code.PERMISSION_DENIED, contract).escalate
    assert refine(Code.TYPE_MISMATCH, contract).repairable
    assert refine(Code.SUCCESS, contract) == RESPONSES[Code.SUCCESS]


@pytest.mark.parametrize(
    ("effect", "trust"), [("retrieve", Trust.UNTRUSTED), ("read_only", Trust.TRUSTED)]
)
def test_answer_is_labelled_as_the_contract_says(effect, trust, contract_with):
    own = profile(contract_with(effect=effect))
    observation = answer(Observed(Code.SUCCESS, {}), own, call_id="c", timestamp=0.0)
    assert observation.trust is trust
    assert not observation.verification.required
