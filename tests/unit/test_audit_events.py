"""What events count as: from their own words, and nothing else."""

import pytest

from counterseal.audit import EventType
from counterseal.audit.events import COUNTED, CallFact, filed, read_tally
from counterseal.codes import Code

P, M = CallFact.PROPOSAL, CallFact.MUTATES
DONE = CallFact.EXECUTED | CallFact.COMPLETE
CASES = {
    "a read": ("tool.succeeded", "SUCCESS", {}, "SUCCESS", P | DONE),
    "a change that was announced": (
        "tool.succeeded",
        "SUCCESS",
        {"mutates": True, "announced": True},
        "SUCCESS",
        P | M | DONE | CallFact.ANNOUNCED,
    ),
    "a repair": ("tool.succeeded", "SUCCESS", {"again": True}, "SUCCESS",
                 P | DONE | CallFact.AGAIN | CallFact.MENDED),
    "a bad shape": (
        "tool.denied",
        "deny",
        {"gate": "schema", "code": "TYPE_MISMATCH", "path": "repair"},
        "TYPE_MISMATCH",
        P | CallFact.UNSHAPED | CallFact.ASKED_TO_MEND,
    ),
    "the same once more": (
        "tool.denied",
        "deny",
        {"gate": "parse", "code": "SYNTACTIC_PARSE_FAIL", "path": "repair", "again": True},
        "SYNTACTIC_PARSE_FAIL",
        P | CallFact.UNSHAPED | CallFact.AGAIN,
    ),
    "an unknown outcome": (
        "tool.failed",
        "TIMEOUT",
        {"mutates": True, "unknown": "escalate", "retry_blocked": True},
        "TIMEOUT",
        P | M | CallFact.EXECUTED | CallFact.RETRY_BLOCKED,
    ),
    "one that never began": ("tool.failed", "TIMEOUT", {"began": False}, "TIMEOUT",
                             P | CallFact.COMPLETE),
    "what a reconciler found": ("tool.reconciled", "SUCCESS", {"resumed": True}, "SUCCESS", DONE),
    "what the call found out itself": ("tool.reconciled", "SUCCESS", {}, "SUCCESS", P | DONE),
    "a reversal": ("tool.succeeded", "SUCCESS", {"system": True}, "SUCCESS", DONE),
    "a person's word": ("tool.reconciled", "happened", {"reason": "x"}, None,
                        M | CallFact.ANNOUNCED | CallFact.COMPLETE),
    "a call that nobody could find out about": ("path.escalate", "escalate", {"looks": 9},
                                                "UNKNOWN_ERROR", 0),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_event_counts_as_what_it_says(case):
    kind, decision, body, code, facts = CASES[case]
    filed_code, tally, _ = filed(kind, decision, body)
    assert filed_code == code
    assert read_tally(tally) == (kind, code, facts)


@pytest.mark.parametrize(
    ("kind", "decision"),
    [("tool.requested", "allow"), ("tool.reconciled", "again"), ("path.escalate", "escalate")],
)
def test_what_is_not_counted_is_filed_under_nothing(kind, decision):
    assert filed(kind, decision, {}) == (None, None, None)


def test_every_attempt_costs():
    body = {"cost": 0.5, "attempts": 3}
    assert filed("tool.succeeded", "SUCCESS", body)[2] == 1.5
    assert filed("tool.failed", "TIMEOUT", body)[2] == 1.5
    assert filed("tool.failed", "TIMEOUT", {**body, "began": False})[2] is None


@pytest.mark.parametrize("kind", COUNTED)
@pytest.mark.parametrize("code", Code)
def test_every_code_of_every_counted_event_can_be_read_back(kind, code):
    _, tally, _ = filed(kind, code.value, {"code": code.value})
    if tally is not None:
        assert read_tally(tally)[0] == EventType(kind)
