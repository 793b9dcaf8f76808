"""What the ledger keeps of an observation says all that the whole record says."""

import json
from dataclasses import replace

import pytest

from counterseal.canonical import freeze
from counterseal.codes import RESPONSES, Code
from counterseal.contract.effects import Trust
from counterseal.observation import FieldError, Observation, Redaction, VerificationHint
from counterseal.observation.observation import from_stored, stored

PLAIN = {
    "tool": "save_note",
    "version": "1.2.0",
    "call_id": "call_1",
    "timestamp": 1_700_000_000.123456789,
    "data": {"note_id": "note_1", "tags": ["a", {"b": None}]},
    "latency_ms": 12,
    "trace_id": "trace_1",
    "trust": Trust.TRUSTED,
}
PARTICULARS = {
    "next_action": "ask_user",
    "data": None,
    "errors": (FieldError("/a", "is too long", "OUT_OF_BOUNDS", "at most 3", "4"),),
    "warnings": ("corrected",),
    "latency_ms": 0,
    "idempotency_hit": True,
    "attempt": 3,
    "trust": Trust.UNTRUSTED,
    "redactions": (Redaction("jwt", "/x", 2),),
    "approval_id": "appr_1",
    "retry_after": 0.0,
    "external_ref": "pay_77",
    "caller_call_id": "toolu_7",
    "raw": "vault:1",
    "verification": VerificationHint(True, "case:c1", freeze({"open": [False]}), 5),
}


class Decision:
    def record(self):
        return {"gate": "policy", "verdict": "allow", "rule": "notes"}


def seen(code=Code.SUCCESS, **more):
    usual = RESPONSES[code]
    fields = {"code": code, "response": usual, "next_action": usual.next_action, **PLAIN}
    return Observation(**{**fields, **more})


def read_back(observation, **changes):
    return from_stored(json.loads(json.dumps(stored(observation))), **changes)


@pytest.mark.parametrize("code", Code)
@pytest.mark.parametrize("name", [None, *PARTICULARS])
def test_what_is_read_back_tells_what_was_stored(code, name):
    observation = seen(code, **({} if name is None else {name: PARTICULARS[name]}))
    back = read_back(observation)
    assert back.record() == observation.record()
    assert back._replace(data=None, verification=None) == observation._replace(
        data=None, verification=None
    )
    assert back.for_model() == observation.for_model()


def test_all_at_once_are_read_back_too():
    observation = seen(Code.OUT_OF_BOUNDS, **PARTICULARS, decisions=(Decision(),))
    assert read_back(observation).record() == observation.record()


def test_every_field_is_given_back():
    """A field that is added to an observation must be stored, too."""
    tried = {*PLAIN, *PARTICULARS, "code", "response", "decisions"}
    assert tried == set(Observation._fields)


def test_a_response_as_the_contract_refines_it_is_kept():
    refined = replace(RESPONSES[Code.TIMEOUT], retryable=False, escalate=True, status=599)
    observation = seen(Code.TIMEOUT, response=refined, next_action=refined.next_action)
    assert read_back(observation).response == refined
    assert read_back(seen(Code.TIMEOUT)).response is RESPONSES[Code.TIMEOUT]


def test_a_plain_success_is_stored_without_what_it_does_not_have():
    kept = stored(seen())
    assert kept.keys() == {*PLAIN, "code"}


def test_only_the_decisions_that_are_given_are_kept():
    observation = seen(decisions=(Decision(), Decision()))
    assert "decisions" not in stored(observation, ())
    assert len(stored(observation, (Decision(),))["decisions"]) == 1
    assert len(stored(observation)["decisions"]) == 2


def test_a_stored_observation_shares_no_data_with_the_original():
    observation = seen()
    kept = stored(observation)
    observation.data["tags"].append("later")
    observation.data["more"] = True
    assert kept["data"] == {"note_id": "note_1", "tags": ["a", {"b": None}]}
    from_stored(kept).data["tags"].append("later")
    assert kept["data"] == {"note_id": "note_1", "tags": ["a", {"b": None}]}


def test_fields_can_be_changed_on_the_way():
    assert read_back(seen(), idempotency_hit=True, trace_id="t").idempotency_hit
