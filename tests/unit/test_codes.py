"""The code table is total, and says what a caller can do."""

import pytest

from counterseal.codes import RESPONSES, Code

REPAIRABLE = {
    "SYNTACTIC_PARSE_FAIL",
    "STRUCTURAL_VIOLATION",
    "TYPE_MISMATCH",
    "OUT_OF_BOUNDS",
    "SEMANTIC_INVALIDITY",
    "STALE_STATE",
}
RETRYABLE = {"RATE_LIMITED", "TIMEOUT", "DEPENDENCY_UNAVAILABLE", "IDEMPOTENCY_CONFLICT"}


def test_there_are_21_codes_and_each_has_one_response():
    assert len(Code) == 21
    assert list(RESPONSES) == list(Code)


@pytest.mark.parametrize("code", Code)
def test_a_response_vector_says_what_to_do(code):
    vector = RESPONSES[code].vector()
    assert vector["error_code"] == code
    assert vector["repairable"] is (code in REPAIRABLE)
    assert vector["retryable"] is (code in RETRYABLE)
    assert vector["next_action"]


def test_no_code_is_both_repaired_and_retried():
    assert not REPAIRABLE & RETRYABLE
    assert all(not (r.fail_closed and (r.repairable or r.retryable)) for r in RESPONSES.values())
