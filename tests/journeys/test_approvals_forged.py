"""Approvals that are none: every token refused that does not stand for exactly this call.

Whoever can write to the database, but has no key, can't approve anything.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

import jwt
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from counterseal.approvals.terms import Choice, Vote
from counterseal.approvals.tokens import Claims, issue
from counterseal.codes import Code
from counterseal.errors import CountersealError
from counterseal.gates.approval import has_unknown_keys, vote_record
from counterseal.keys import KeyRing, Purpose, new_key
from counterseal.ledger.records import HeldStatus
from counterseal.operations.approver import ApprovalError
from counterseal.testing import FakeClock
from counterseal.vault import PLAIN
from tests.journeys.approvals_worker import Office, agent, key_ring, letter, opened, person

RESUBMIT = {"approval": {"then": "resubmit"}}
TWO = {"approvers": 2, **RESUBMIT}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("forged") / "keys"


@pytest.fixture(scope="module")
def ring(folder):
    return key_ring(folder)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """Keys of another issuer."""
    return key_ring(tmp_path_factory.mktemp("stranger") / "keys")


@pytest.fixture
def office():
    return Office()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture
async def open_office(office, clock, ring, path):
    """Opens a runtime on one SQLite file, as often as asked."""
    runtimes = []

    async def open_office(declared=None, **options):
        given = {"keys": ring, "clock": clock, **options}
        declared = {**RESUBMIT, **(declared or {})}
        runtimes.append(opened(f"sqlite:///{path}", office, declared=declared, **given))
        return await runtimes[-1].__aenter__()

    yield open_office
    for runtime in runtimes:
        await runtime.__aexit__(None, None, None)


@pytest.fixture
def write(path):
    """An attacker who can write to the database."""

    def write(approval_id, **values):
        given = [json.dumps(v) if isinstance(v, dict | list) else v for v in values.values()]
        names = ", ".join(f"{name} = ?" for name in values)
        with closing(sqlite3.connect(path, timeout=30)) as db, db:
            db.execute(f"UPDATE held SET {names} WHERE approval_id = ?", (*given, approval_id))
            assert db.execute("SELECT changes()").fetchone() == (1,)
        db.close()

    return write


async def asked(runtime, key="k", **more):
    return (await runtime.submit(letter(key, **more), agent())).approval_id


async def approved(runtime, *names, key="k"):
    approval_id = await asked(runtime, key)
    for name in names or ("alice",):
        await runtime.approvals.decide(approval_id, person(name), "approve")
    held = await runtime.store.find_held("acme", approval_id)
    assert held.status is HeldStatus.APPROVED
    return held


def rule_of(seen):
    return seen.decisions[-1].decision.rule


def claims_of(held, **more):
    values = {
        "approval_id": held.approval_id,
        "trace_id": held.trace_id,
        "tenant": held.tenant,
        "tool_name": held.tool,
        "tool_version": held.version,
        "contract_hash": held.contract_hash,
        "payload_hash": held.approval_hash,
        "approver_ids": ("alice",),
        "approved_at": held.created_at,
        "expires_at": held.expires_at,
    }
    return Claims(**{**values, **more})


def part(data):
    return base64.urlsafe_b64encode(json.dumps(data).encode()).rstrip(b"=").decode()


def unsigned(held, ring):
    return f"{part({'alg': 'none', 'typ': 'approval+jwt'})}.{part(claims_of(held).record())}."


def signed_with_the_public_half(held, ring):
    """What a library does that lets the token choose its algorithm."""
    key = ring.newest(Purpose.APPROVAL)
    head = part({"alg": "HS256", "typ": "approval+jwt", "kid": key.key_id})
    body = f"{head}.{part(claims_of(held).record())}"
    raw = hmac.new(key.public_pem().encode(), body.encode(), hashlib.sha256).digest()
    return f"{body}.{base64.urlsafe_b64encode(raw).rstrip(b'=').decode()}"


def another_signature(held, ring):
    head, body, signature = held.token.split(".")
    return f"{head}.{body}.{'A' * len(signature)}"


def another_body(held, ring):
    head, _, signature = held.token.split(".")
    return f"{head}.{part(claims_of(held, payload_hash='sha256:0').record())}.{signature}"


def own_key_named_as_ours(held, stranger, ring):
    headers = {"kid": ring.newest(Purpose.APPROVAL).key_id, "typ": "approval+jwt"}
    private = stranger.newest(Purpose.APPROVAL).private
    return jwt.encode(claims_of(held).record(), private, algorithm="EdDSA", headers=headers)


def a_key_of_its_own_inside(held, ring):
    key = ring.newest(Purpose.APPROVAL)
    headers = {"kid": key.key_id, "typ": "approval+jwt", "jku": "https://keys.example.org"}
    return jwt.encode(claims_of(held).record(), key.private, algorithm="EdDSA", headers=headers)


UNSIGNED = {
    "none": (unsigned, "token-algorithm"),
    "public-half": (signed_with_the_public_half, "token-algorithm"),
    "signature": (another_signature, "token-forged"),
    "body": (another_body, "token-forged"),
    "jku": (a_key_of_its_own_inside, "token-malformed"),
    "garbage": (lambda held, ring: "x" * 100, "token-malformed"),
    "huge": (lambda held, ring: held.token + "A" * 20_000, "token-malformed"),
    "missing": (lambda held, ring: None, "token-malformed"),
}


@pytest.mark.parametrize("form", UNSIGNED)
async def test_a_token_that_no_key_of_ours_signed_is_none(open_office, office, write, ring, form):
    runtime = await open_office()
    held = await approved(runtime)
    forge, rule = UNSIGNED[form]
    write(held.approval_id, token=forge(held, ring))
    seen = await runtime.submit(letter("k"), agent())
    assert (seen.code, rule_of(seen), seen.next_action) == (
        Code.CONFIRMATION_MISSING,
        rule,
        "escalate",
    )
    again = await runtime.submit(letter("k"), agent())  # the false one is void
    assert (again.next_action, again.approval_id != held.approval_id) == ("await_approval", True)
    assert office.sent == []


async def test_a_key_that_is_called_like_ours_is_not_ours(
    open_office, office, write, ring, stranger
):
    runtime = await open_office()
    held = await approved(runtime)
    write(held.approval_id, token=own_key_named_as_ours(held, stranger, ring))
    assert rule_of(await runtime.submit(letter("k"), agent())) == "token-forged"
    assert office.sent == []


async def test_a_key_that_is_not_here_proves_nothing_until_it_is(
    open_office, office, write, stranger
):
    runtime = await open_office()
    held = await approved(runtime)
    elsewhere = await open_office(keys=KeyRing(stranger.keys + ring_vault(runtime.keys)))
    seen = await elsewhere.submit(letter("k"), agent())
    assert (rule_of(seen), office.sent) == ("token-unknown-key", [])
    assert (await runtime.store.find_held("acme", held.approval_id)).status is HeldStatus.APPROVED
    assert (await runtime.submit(letter("k"), agent())).ok


def ring_vault(ring):
    return tuple(key for key in ring.keys if key.purpose is Purpose.VAULT)


OTHER = {
    "tenant": {"tenant": "globex"},
    "tool": {"tool_name": "send_money"},
    "version": {"tool_version": "1.0.1"},
    "contract": {"contract_hash": "sha256:0"},
    "payload": {"payload_hash": "sha256:0"},
    "trace": {"trace_id": "f" * 32},
    "approval": {"approval_id": "appr_0"},
    "approver": {"approver_ids": ("mallory",)},
    "scope": {"approval_scope": "many_executions"},
    "decision": {"decision": "rejected"},
    "early": {"approved_at": 1_767_225_600.0 + 300},
}


@pytest.mark.parametrize("why", OTHER)
async def test_a_token_for_anything_else_is_refused(open_office, office, write, ring, why):
    """As if an attacker had a key and signed the wrong claims."""
    runtime = await open_office()
    held = await approved(runtime)
    write(held.approval_id, token=issue(claims_of(held, **OTHER[why]), ring))
    seen = await runtime.submit(letter("k"), agent())
    assert (seen.code, rule_of(seen)) == (Code.CONFIRMATION_MISSING, f"token-{why}")
    assert office.sent == []


async def test_a_token_that_says_all_of_it_is_taken(open_office, office, write, ring):
    """So that the tests above fail for the reason that they name."""
    runtime = await open_office()
    held = await approved(runtime)
    write(held.approval_id, token=issue(claims_of(held), ring))
    assert (await runtime.submit(letter("k"), agent())).ok


async def test_two_are_asked_and_one_of_them_signed(open_office, office, write, ring):
    runtime = await open_office(TWO)
    held = await approved(runtime, "alice", "bob")
    write(held.approval_id, token=issue(claims_of(held), ring), approvers=1)
    assert rule_of(await runtime.submit(letter("k"), agent())) == "token-approver"
    assert office.sent == []


async def test_an_expired_token_is_refused_though_the_table_says_otherwise(
    open_office, office, write, clock
):
    runtime = await open_office()
    held = await approved(runtime)
    write(held.approval_id, expires_at=held.expires_at + 1e6)
    clock.advance(600)
    seen = await runtime.submit(letter("k"), agent())
    assert (seen.code, seen.next_action) == (Code.CONFIRMATION_MISSING, "replan")
    assert "expired" in seen.for_model()
    assert office.sent == []


# --- the wrong call -------------------------------------------------------------------------------


async def test_what_was_approved_for_other_arguments_does_not_hold_for_these(open_office, office):
    runtime = await open_office()
    held = await approved(runtime)
    other = {"recipient": "mallory@example.org"}
    seen = await runtime.submit(letter("k", arguments=other, approval=held.token), agent())
    assert (seen.code, seen.approval_id != held.approval_id) == (Code.CONFIRMATION_MISSING, True)
    assert office.sent == []


async def test_what_was_approved_of_another_version_does_not_hold_for_this(open_office, office):
    held = await approved(await open_office())
    newer = await open_office({"version": "1.1.0"})
    seen = await newer.submit(letter("k", approval=held.token), agent())
    assert (seen.code, seen.approval_id != held.approval_id) == (Code.CONFIRMATION_MISSING, True)
    assert office.sent == []


async def test_a_token_in_the_row_of_another_request_is_refused(open_office, office, write):
    runtime = await open_office()
    held = await approved(runtime)
    here = {"status": "approved", "token": held.token, "votes": list(held.votes)}
    same_call = await asked(runtime, "another")
    write(same_call, **here)
    seen = await runtime.submit(letter("another"), agent())
    assert (seen.code, rule_of(seen)) == (Code.CONFIRMATION_MISSING, "token-trace")
    write(await asked(runtime, "third"), **here, trace_id=held.trace_id)
    assert rule_of(await runtime.submit(letter("third"), agent())) == "token-approval"
    globex = agent(tenant="globex")
    foreign = (await runtime.submit(letter("k"), globex)).approval_id
    write(foreign, **here, trace_id=held.trace_id)
    assert rule_of(await runtime.submit(letter("k"), globex)) == "token-tenant"
    assert office.sent == []


async def test_a_request_moved_to_another_key_is_not_approved_there(open_office, office, write):
    runtime = await open_office()
    held = await approved(runtime)
    assert (await runtime.submit(letter("k"), agent())).ok
    write(held.approval_id, key="call:send_notice:again", status="approved")
    seen = await runtime.submit(letter("again"), agent())
    assert (seen.code, rule_of(seen)) == (Code.CONFIRMATION_MISSING, "token-approver")
    assert len(office.sent) == 1


async def test_it_works_once(open_office, office):
    runtime = await open_office()
    held = await approved(runtime)
    assert (await runtime.submit(letter("k"), agent())).ok
    again = await runtime.submit(letter("k", approval=held.token), agent())
    assert (again.ok, again.idempotency_hit) == (True, True)
    other = await runtime.submit(letter("k2", approval=held.token), agent())
    assert (other.code, other.ok) == (Code.CONFIRMATION_MISSING, False)
    assert (await runtime.store.find_held("acme", held.approval_id)).status is HeldStatus.SPENT
    assert len(office.sent) == 1


# --- the table ------------------------------------------------------------------------------------


async def test_writing_approved_into_the_table_approves_nothing(open_office, office, write):
    runtime = await open_office()
    approval_id = await asked(runtime)
    vote = {
        "approver": "alice",
        "decision": "approve",
        "voted_at": runtime.clock(),
        "roles": [],
        "comment": "",
        "justification": "",
    }
    for votes in ([], [vote], [{**vote, "signature": "0.00"}], [{**vote, "signature": "x"}]):
        write(approval_id, status="approved", votes=votes)
        seen = await runtime.submit(letter("k"), agent())
        assert (seen.code, rule_of(seen)) == (Code.CONFIRMATION_MISSING, "token-malformed")
        approval_id = await asked(runtime)
    assert office.sent == []


async def test_the_public_half_of_a_key_is_enough_to_demand_proof_and_not_to_approve(
    open_office, office, write, ring
):
    halves = KeyRing(replace(key, private=None) for key in ring.keys if key.secret is None)
    worker = await open_office(keys=KeyRing([*halves.keys, *ring_vault(ring)]))
    approval_id = await asked(worker)
    with pytest.raises(ApprovalError) as found:
        await worker.approvals.decide(approval_id, person("alice"), "approve")
    assert found.value.why == "keys"
    whole = await open_office()
    await whole.approvals.decide(approval_id, person("alice"), "approve")
    assert (await worker.submit(letter("k"), agent())).ok
    write(await asked(worker, "k2"), status="approved")
    assert (await worker.submit(letter("k2"), agent())).code is Code.CONFIRMATION_MISSING
    no = await asked(worker, "k3")
    assert (await worker.approvals.decide(no, person("al"), "reject")).status == "rejected"
    assert len(office.sent) == 1


async def test_a_vote_written_into_the_table_is_no_vote(open_office, office, write):
    runtime = await open_office(TWO)
    other = await approved(runtime, "bob", "carol", key="other")
    approval_id = await asked(runtime)
    write(approval_id, votes=[other.votes[0]])  # signed by bob, but about something else
    with pytest.raises(ApprovalError) as found:
        await runtime.approvals.decide(approval_id, person("alice"), "approve")
    assert found.value.why == "forged"
    assert (
        await runtime.approvals.decide(approval_id, person("al"), "reject")
    ).status == "rejected"


async def test_easier_terms_written_into_the_table_are_not_those_that_are_asked(
    open_office, office, write
):
    runtime = await open_office({**TWO, "approval": {"then": "resubmit", "roles": ["judge"]}})
    approval_id = await asked(runtime)
    terms = dict((await runtime.store.find_held("acme", approval_id)).demand)
    write(approval_id, demand={**terms, "approvers": 1, "roles": []}, approvers=1)
    packet = await runtime.approvals.decide(approval_id, person("mallory"), "approve")
    assert packet.status == "approved"
    write(approval_id, demand=terms, approvers=2)
    seen = await runtime.submit(letter("k"), agent())
    assert (seen.code, rule_of(seen)) == (Code.CONFIRMATION_MISSING, "token-approver")
    assert office.sent == []


@pytest.mark.parametrize("sealing", [True, False])
async def test_an_approver_is_shown_exactly_the_call_that_would_be_made(
    open_office, office, write, ring, sealing
):
    """Not even where there is no key to seal it with."""
    plain = KeyRing(key for key in ring.keys if sealing or key.purpose is not Purpose.VAULT)
    runtime = await open_office(keys=plain)
    approval_id = await asked(runtime)
    held = await runtime.store.find_held("acme", approval_id)
    harmless = held.sealed.replace(b"ann@example.org", b"bob@example.org")
    write(approval_id, sealed=held.sealed[:-9] + b"x" * 9 if sealing else harmless)
    with pytest.raises(CountersealError):
        await runtime.approvals.get("acme", approval_id)
    with pytest.raises(CountersealError):
        await runtime.approvals.decide(approval_id, person("alice"), "approve")
    if not sealing:
        later = held.sealed.replace(b'"draft"', b'"empty"')
        write(approval_id, sealed=later)
        await runtime.approvals.decide(approval_id, person("alice"), "approve")
        write(approval_id, sealed=held.sealed)
        assert rule_of(await runtime.submit(letter("k"), agent())) == "token-approver"
    assert office.sent == []


@pytest.mark.parametrize("sealing", [True, False])
async def test_who_asks_can_not_be_renamed_to_approve_it(open_office, office, write, ring, sealing):
    kept = KeyRing(key for key in ring.keys if sealing or key.purpose is not Purpose.VAULT)
    runtime = await open_office(keys=kept)
    approval_id = await asked(runtime)
    held = await runtime.store.find_held("acme", approval_id)
    write(approval_id, user="somebody")
    with pytest.raises(CountersealError, match="was made for another caller"):
        await runtime.approvals.decide(approval_id, person("u_1"), "approve")
    if not sealing:
        other = held.sealed.replace(b'"user":"u_1"', b'"user":"somebody"')
        write(approval_id, sealed=other)
        packet = await runtime.approvals.decide(approval_id, person("u_1"), "approve")
        assert packet.status == "approved"
    write(approval_id, user="u_1", sealed=held.sealed)
    seen = await runtime.submit(letter("k"), agent())
    assert not seen.ok
    if not sealing:
        assert rule_of(seen) == "token-approver"
    assert office.sent == []


@pytest.mark.parametrize("name", ["u_1", "agent", "U_1", "Agent"])
async def test_a_requesters_own_vote_does_not_count_however_it_was_signed(
    open_office, office, write, ring, name
):
    """As if a desk had a key that lets people approve what they ask for."""
    runtime = await open_office()
    held = await runtime.store.find_held("acme", await asked(runtime))
    vote = Vote(approver=name, decision=Choice.APPROVE, voted_at=runtime.clock())
    write(
        held.approval_id,
        status="approved",
        votes=[vote_record(held, vote, ring.signer(Purpose.APPROVAL))],
        token=issue(claims_of(held, approver_ids=(name,)), ring),
    )
    assert rule_of(await runtime.submit(letter("k"), agent())) == "token-approver"
    assert office.sent == []


async def test_a_user_consents_to_what_an_agent_does_in_their_name(open_office, office, write):
    runtime = await open_office({"approval": {"pattern": "user_consent", "then": "resubmit"}})
    held = await approved(runtime, "u_1")
    assert (await runtime.submit(letter("k"), agent())).ok
    assert held.user == "u_1"


async def test_what_was_approved_of_one_version_is_not_approved_of_the_next(
    open_office, office, write
):
    runtime = await open_office()
    held = await approved(runtime)
    office.version = 2
    write(held.approval_id, version_seen="2")  # as the table has it: JSON
    assert (await runtime.store.find_held("acme", held.approval_id)).version_seen == 2
    assert rule_of(await runtime.submit(letter("k"), agent())) == "token-approver"
    assert office.sent == []


async def test_what_is_not_sealed_is_not_shown_where_there_is_a_key(open_office, write):
    runtime = await open_office()
    approval_id = await asked(runtime)
    held = await runtime.store.find_held("acme", approval_id)
    raw = runtime.vault.open("acme", approval_id, held.sealed)
    write(approval_id, sealed=PLAIN.seal("acme", approval_id, raw))
    with pytest.raises(CountersealError, match="not sealed"):
        await runtime.approvals.get("acme", approval_id)


GARBAGE = {
    "demand": {"demand": {}},
    "pattern": {"demand": {"pattern": "?"}},
    "votes": {"votes": ["x"]},
    "vote": {"votes": [{"decision": "?"}]},
    "sealed": {"sealed": b"\0[1, 2]"},
    "not JSON": {"sealed": b"\0{"},
    "another": {"sealed": b'\0{"agent": "a"}'},
    "time": {"expires_at": 1e300},
}


@pytest.mark.parametrize("form", GARBAGE)
async def test_a_row_with_altered_content_breaks_nothing(open_office, office, write, form):
    runtime = await open_office(keys=None)
    approval_id = await asked(runtime)
    write(approval_id, **GARBAGE[form])
    with pytest.raises(CountersealError):
        await runtime.approvals.get("acme", approval_id)
    assert (await runtime.submit(letter("k"), agent())).code is Code.CONFIRMATION_MISSING
    assert office.sent == []


async def test_a_vote_that_was_changed_counts_no_longer(open_office, office, write):
    declared = {"approval": {"then": "resubmit", "roles": ["judge"]}}
    runtime = await open_office(declared)
    approval_id = await asked(runtime)
    with pytest.raises(ApprovalError):
        await runtime.approvals.decide(approval_id, person("mallory", "guest"), "approve")
    await runtime.approvals.decide(approval_id, person("alice", "judge"), "approve")
    held = await runtime.store.find_held("acme", approval_id)
    write(approval_id, votes=[{**held.votes[0], "comment": "and everything else, too"}])
    assert (await runtime.submit(letter("k"), agent())).code is Code.CONFIRMATION_MISSING
    assert office.sent == []


# --- tokens that callers pass on, and keys that change --------------------------------------------


async def test_a_caller_may_pass_the_token_on_and_a_wrong_one_spoils_nothing(open_office, office):
    runtime = await open_office()
    held = await approved(runtime)
    other = await approved(runtime, key="other")
    for wrong, rule in (("x", "token-malformed"), (other.token, "token-trace")):
        seen = await runtime.submit(letter("k", approval=wrong), agent())
        assert (seen.code, rule_of(seen)) == (Code.CONFIRMATION_MISSING, rule)
    assert (await runtime.submit(letter("k", approval=held.token), agent())).ok
    assert len(office.sent) == 1


async def test_a_token_opens_nothing_that_still_waits(open_office, office, ring):
    runtime = await open_office()
    approval_id = await asked(runtime)
    held = await runtime.store.find_held("acme", approval_id)
    forged = issue(claims_of(held), ring)
    seen = await runtime.submit(letter("k", approval=forged), agent())
    assert (seen.next_action, seen.approval_id) == ("await_approval", approval_id)
    assert office.sent == []


async def test_what_an_older_key_signed_still_counts_after_a_new_one_came(
    open_office, office, tmp_path
):
    folder = tmp_path / "rotating"
    older = await open_office(TWO, keys=key_ring(folder))
    approval_id = await asked(older)
    await older.approvals.decide(approval_id, person("alice"), "approve")
    new_key(folder, Purpose.APPROVAL, datetime(2026, 2, 1, tzinfo=UTC))
    newer = await open_office(TWO, keys=KeyRing.load(folder))
    assert (
        await newer.approvals.decide(approval_id, person("bob"), "approve")
    ).status == "approved"
    held = await newer.store.find_held("acme", approval_id)
    used = {vote["signature"].partition(".")[0] for vote in held.votes}
    assert len(used) == 2
    assert (await newer.submit(letter("k"), agent())).ok


async def test_a_worker_that_lacks_an_older_key_spoils_nothing_for_others(
    open_office, office, tmp_path
):
    folder = tmp_path / "rotating"
    first = key_ring(folder)
    older = await open_office(TWO, keys=first)
    approval_id = await asked(older)
    await older.approvals.decide(approval_id, person("alice"), "approve")
    new_key(folder, Purpose.APPROVAL, datetime(2026, 2, 1, tzinfo=UTC))
    both = KeyRing.load(folder)
    newer = await open_office(TWO, keys=both)
    await newer.approvals.decide(approval_id, person("bob"), "approve")
    gone = first.newest(Purpose.APPROVAL).key_id
    lacking = await open_office(TWO, keys=KeyRing(k for k in both.keys if k.key_id != gone))
    seen = await lacking.submit(letter("k"), agent())
    assert (seen.ok, rule_of(seen)) == (False, "token-unknown-key")
    held = await newer.store.find_held("acme", approval_id)
    assert held.status is HeldStatus.APPROVED
    assert (has_unknown_keys(held, lacking.keys), has_unknown_keys(held, both)) == (True, False)
    assert (await newer.submit(letter("k"), agent())).ok
    assert len(office.sent) == 1


async def test_without_any_key_the_table_is_what_counts(open_office, office):
    runtime = await open_office(keys=None)
    held = await approved(runtime)
    assert held.token is None
    assert (await runtime.submit(letter("k"), agent())).ok


async def test_the_token_is_nowhere_where_a_model_or_a_log_could_find_it(
    open_office, office, monkeypatch, caplog
):
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    runtime = await open_office()
    held = await approved(runtime)
    seen = [await runtime.submit(letter("k"), agent()) for _ in range(2)]
    packet = await runtime.approvals.get("acme", held.approval_id)
    for _ in range(5):
        await asyncio.sleep(0)  # spans are told after the answer
    told = [
        *(json.dumps(one.record(), default=str) for one in seen),
        *(one.for_model() + repr(one) + json.dumps(one.envelope()) for one in seen),
        json.dumps([e.record(i) for i, e in await runtime.store.events("acme")]),
        json.dumps(packet.record()) + repr(packet),
        repr(await runtime.approvals.list(status="spent")),
        repr(letter("k", approval=held.token)),
        " ".join(span.to_json() for span in exporter.get_finished_spans()),
        caplog.text,
    ]
    body = held.token.split(".")[1]
    assert len(exporter.get_finished_spans()) == 3
    assert not [text for text in told if body in text or held.token in text]
