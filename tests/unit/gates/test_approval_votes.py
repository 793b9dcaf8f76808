"""What proves an approval: a vote stands for one request, as it was, and for nothing else."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from counterseal.approvals.terms import Choice, Terms, Vote, strictest
from counterseal.gates.approval import has_keys, proven_votes, vote_record, votes_of
from counterseal.keys import KeyRing, Purpose, new_key
from counterseal.ledger.records import Held

HELD = Held(
    approval_id="appr_1",
    tenant="acme",
    key="k",
    approval_hash="sha256:a",
    call_id="call_1",
    run_id="run_1",
    tool="send",
    version="1.0.0",
    contract_hash="sha256:c",
    agent="agent",
    user="u_1",
    reason="So.",
    rule=None,
    approvers=1,
    risk="HIGH_RISK_EXTERNAL",
    demand=strictest([Terms(approvers=1)]).record(),
    version_seen=1,
    created_at=1.0,
    expires_at=601.0,
    trace_id="0" * 32,
    sealed=b"the call",
)
VOTE = Vote(approver="alice", decision=Choice.APPROVE, voted_at=2.5, roles=frozenset({"clerk"}))


@pytest.fixture(scope="module")
def ring(tmp_path_factory):
    folder = tmp_path_factory.mktemp("proof") / "keys"
    new_key(folder, Purpose.APPROVAL, datetime(2026, 1, 1, tzinfo=UTC))
    new_key(folder, Purpose.AUDIT, datetime(2026, 1, 1, tzinfo=UTC))
    return KeyRing.load(folder)


@pytest.fixture
def held(ring):
    return replace(HELD, votes=(vote_record(HELD, VOTE, ring.signer(Purpose.APPROVAL)),))


def test_a_vote_is_proven_by_its_signature_and_shown_without_it(held, ring):
    assert proven_votes(held, ring) == votes_of(held) == (VOTE,)


@pytest.mark.parametrize(
    "changed",
    [
        {"approval_id": "appr_2"},
        {"tenant": "globex"},
        {"key": "k2"},
        {"approval_hash": "sha256:b"},
        {"contract_hash": "sha256:d"},
        {"trace_id": "1" * 32},
        {"expires_at": 602.0},
        {"sealed": b"another"},
        {"demand": strictest([Terms(approvers=2)]).record()},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_vote_on_something_else_is_none_on_this(held, ring, changed):
    assert proven_votes(replace(held, **changed), ring) == ()
    assert votes_of(replace(held, **changed)) == (VOTE,)


@pytest.mark.parametrize(
    "changed",
    [
        {"approver": "bob"},
        {"decision": "reject"},
        {"voted_at": 3.5},
        {"roles": ["judge"]},
        {"comment": "x"},
        {"justification": "x"},
        {"signature": ""},
        {"signature": "zz.zz"},
        {"signature": "0.00"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_vote_that_was_changed_is_none(held, ring, changed):
    other = replace(held, votes=({**held.votes[0], **changed},))
    assert proven_votes(other, ring) == ()


def test_a_key_for_something_else_proves_no_vote(ring):
    by_audit = replace(HELD, votes=(vote_record(HELD, VOTE, ring.signer(Purpose.AUDIT)),))
    assert proven_votes(by_audit, ring) == ()
    unsigned = replace(HELD, votes=(vote_record(HELD, VOTE, None),))
    assert proven_votes(unsigned, ring) == ()
    assert votes_of(unsigned) == (VOTE,)


def test_the_public_half_proves_and_no_key_at_all_asks_for_no_proof(held, ring):
    halves = KeyRing(replace(key, private=None) for key in ring.keys)
    assert proven_votes(held, halves) == (VOTE,)
    audit = KeyRing(key for key in ring.keys if key.purpose is Purpose.AUDIT)
    asked = [has_keys(one) for one in (ring, halves, audit, KeyRing(), None)]
    assert asked == [True, True, False, False, False]
