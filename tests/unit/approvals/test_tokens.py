"""Approval tokens: one that stands for exactly this call is taken, every other one is refused."""

import base64
import hashlib
import hmac
import json
from dataclasses import replace
from datetime import UTC, datetime

import jwt
import pytest

from counterseal.approvals.tokens import ApprovedCall, Claims, TokenError, check, issue
from counterseal.keys import KeyRing, KeysError, Purpose, new_key

APPROVED = 1_781_364_600.0
TODAY = datetime(2026, 6, 13, tzinfo=UTC)
CLAIMS = Claims(
    approval_id="appr_123",
    trace_id="trace_abc123",
    tenant="acme",
    tool_name="charge_card",
    tool_version="2.1.0",
    contract_hash="sha256:c0",
    payload_hash="sha256:f2a8",
    approver_ids=("u_8", "u_9"),
    approved_at=APPROVED,
    expires_at=APPROVED + 600,
)
EXPECTED = ApprovedCall(
    approval_id="appr_123",
    trace_id="trace_abc123",
    tenant="acme",
    tool_name="charge_card",
    tool_version="2.1.0",
    contract_hash="sha256:c0",
    payload_hash="sha256:f2a8",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("keys") / "ours"
    new_key(made, Purpose.APPROVAL, TODAY)
    new_key(made, Purpose.AUDIT, TODAY)
    return made


@pytest.fixture(scope="module")
def ring(folder):
    return KeyRing.load(folder)


@pytest.fixture(scope="module")
def strange(tmp_path_factory):
    """Keys of another issuer."""
    folder = tmp_path_factory.mktemp("keys") / "theirs"
    new_key(folder, Purpose.APPROVAL, TODAY)
    return KeyRing.load(folder)


def checked(token, ring, *, expected=EXPECTED, may_approve=lambda user: True, now=APPROVED + 60):
    return check(token, ring, expected, approvers=2, may_approve=may_approve, now=now)


def why(token, ring, **more):
    with pytest.raises(TokenError) as caught:
        checked(token, ring, **more)
    assert str(caught.value)
    return caught.value.why


def packed(part):
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def header(ring, **more):
    own = {"alg": "EdDSA", "typ": "approval+jwt", "kid": ring.newest("approval").key_id}
    return {**own, **more}


def signed(ring, claims, head=None, key=None):
    """A token that our own key has signed, whatever stands in it."""
    message = f"{packed(head or header(ring))}.{packed(claims)}"
    private = key or ring.newest("approval").private
    return f"{message}.{packed(private.sign(message.encode()))}"


def altered(**more):
    return {**CLAIMS.record(), **more}


# What is taken -----------------------------------------------------------------------------------


def test_a_token_for_exactly_this_call_is_taken(ring):
    assert checked(issue(CLAIMS, ring), ring) == CLAIMS


def test_a_token_says_what_it_stands_for(ring):
    token = issue(CLAIMS, ring)
    head = jwt.get_unverified_header(token)
    assert head == header(ring)
    found = jwt.decode(token, options={"verify_signature": False})
    assert found == {
        "iss": "counterseal",
        "aud": "counterseal:execution",
        "iat": 1_781_364_600,
        "exp": 1_781_365_200,
        "approval_id": "appr_123",
        "trace_id": "trace_abc123",
        "tenant": "acme",
        "tool_name": "charge_card",
        "tool_version": "2.1.0",
        "contract_hash": "sha256:c0",
        "payload_hash": "sha256:f2a8",
        "approver_id": "u_9",
        "approver_ids": ["u_8", "u_9"],
        "approved_at": "2026-06-13T15:30:00Z",
        "expires_at": "2026-06-13T15:40:00Z",
        "approval_scope": "single_execution",
        "decision": "approved",
    }


def test_a_token_outlives_the_key_that_signs_new_ones(folder, ring):
    before = issue(CLAIMS, ring)
    new_key(folder, Purpose.APPROVAL, TODAY)
    rotated = KeyRing.load(folder)
    after = issue(CLAIMS, rotated)
    assert jwt.get_unverified_header(before)["kid"] != jwt.get_unverified_header(after)["kid"]
    assert checked(before, rotated) == checked(after, rotated) == CLAIMS
    # A worker that has not seen the new key yet does not take what it signed.
    assert why(after, ring) == "unknown-key"


def test_the_public_half_of_a_key_is_enough_to_check(tmp_path, ring):
    file = tmp_path / "approval-2026-06-13.pem"
    file.write_text(ring.newest("approval").public_pem())
    reader = KeyRing.load(tmp_path)
    assert checked(issue(CLAIMS, ring), reader) == CLAIMS
    with pytest.raises(KeysError, match="no approval key to sign with"):
        issue(CLAIMS, reader)


def test_nothing_is_signed_without_a_key_or_without_an_approver(ring):
    with pytest.raises(KeysError, match="counterseal keys new approval"):
        issue(CLAIMS, KeyRing())
    with pytest.raises(ValueError, match="needs an approver"):
        issue(replace(CLAIMS, approver_ids=()), ring)


def test_a_clock_may_be_a_little_ahead(ring):
    assert checked(issue(CLAIMS, ring), ring, now=APPROVED - 5)
    assert why(issue(CLAIMS, ring), ring, now=APPROVED - 6) == "early"


# What is refused: another call -------------------------------------------------------------------


def test_for_another_payload(ring):
    other = replace(EXPECTED, payload_hash="sha256:f2a9")
    assert why(issue(CLAIMS, ring), ring, expected=other) == "payload"


def test_for_another_version(ring):
    other = replace(EXPECTED, tool_version="2.1.1")
    assert why(issue(CLAIMS, ring), ring, expected=other) == "version"


def test_for_another_tool(ring):
    other = replace(EXPECTED, tool_name="charge_cards")
    assert why(issue(CLAIMS, ring), ring, expected=other) == "tool"


def test_for_another_contract_under_the_same_version(ring):
    other = replace(EXPECTED, contract_hash="sha256:c1")
    assert why(issue(CLAIMS, ring), ring, expected=other) == "contract"


def test_of_another_tenant(ring):
    other = replace(EXPECTED, tenant="globex")
    assert why(issue(CLAIMS, ring), ring, expected=other) == "tenant"


def test_detached_from_its_trace(ring):
    other = replace(EXPECTED, trace_id="trace_other")
    assert why(issue(CLAIMS, ring), ring, expected=other) == "trace"


def test_of_another_approval(ring):
    other = replace(EXPECTED, approval_id="appr_124")
    assert why(issue(CLAIMS, ring), ring, expected=other) == "approval"


# What is refused: time, people, scope ------------------------------------------------------------


@pytest.mark.parametrize("late", [600, 600.5, 10**9, float("nan")])
def test_from_the_moment_of_its_expiry_on(ring, late):
    token = issue(CLAIMS, ring)
    assert checked(token, ring, now=APPROVED + 599.9)
    assert why(token, ring, now=APPROVED + late) == "expired"


def test_a_token_of_a_person_who_may_not_approve_is_refused(ring):
    token = issue(CLAIMS, ring)
    assert why(token, ring, may_approve=lambda user: user == "u_8") == "approver"


def test_by_fewer_people_than_are_asked(ring):
    assert why(issue(replace(CLAIMS, approver_ids=("u_8",)), ring), ring) == "approver"


def test_by_one_person_twice(ring):
    assert why(issue(replace(CLAIMS, approver_ids=("u_8", "u_8")), ring), ring) == "approver"


def test_for_more_than_one_execution(ring):
    assert why(issue(replace(CLAIMS, approval_scope="session"), ring), ring) == "scope"


def test_that_says_no(ring):
    assert why(issue(replace(CLAIMS, decision="rejected"), ring), ring) == "decision"


@pytest.mark.parametrize(
    "other", [{"aud": "somebody-else"}, {"aud": None}, {"iss": "somebody-else"}, {"iss": None}]
)
def test_that_our_key_signed_for_something_else(ring, other):
    claims = {key: value for key, value in altered(**other).items() if value is not None}
    assert why(signed(ring, claims), ring) == "scope"


# What is refused: forgeries ----------------------------------------------------------------------


def test_with_claims_changed_after_it_was_signed(ring):
    head, _, signature = issue(CLAIMS, ring).split(".")
    forged = packed(altered(payload_hash="sha256:f2a9"))
    other = replace(EXPECTED, payload_hash="sha256:f2a9")
    assert why(f"{head}.{forged}.{signature}", ring, expected=other) == "forged"


def test_with_a_signature_changed(ring):
    head, body, signature = issue(CLAIMS, ring).split(".")
    raw = bytearray(base64.urlsafe_b64decode(signature + "=="))
    raw[0] ^= 1
    assert why(f"{head}.{body}.{packed(bytes(raw))}", ring) == "forged"


def test_with_the_signature_cut_off(ring):
    head, body, _ = issue(CLAIMS, ring).split(".")
    assert why(f"{head}.{body}.", ring) == "forged"


def test_a_token_signed_by_another_key_under_our_key_id_is_refused(ring, strange):
    forged = signed(ring, CLAIMS.record(), key=strange.newest("approval").private)
    assert why(forged, ring) == "forged"


def test_signed_by_a_key_that_is_not_here(ring, strange):
    assert why(issue(CLAIMS, strange), ring) == "unknown-key"
    assert why(issue(CLAIMS, ring), KeyRing()) == "unknown-key"


def test_signed_with_a_key_of_another_purpose(ring):
    audit = ring.newest("audit")
    forged = signed(ring, CLAIMS.record(), header(ring, kid=audit.key_id), audit.private)
    assert why(forged, ring) == "unknown-key"


@pytest.mark.parametrize("name", ["none", "None", "NONE"])
def test_without_a_signature_at_all(ring, name):
    forged = f"{packed(header(ring, alg=name))}.{packed(CLAIMS.record())}."
    assert why(forged, ring) == "algorithm"


@pytest.mark.parametrize("name", ["HS256", "HS512", "ES256", "RS256", "EdDSA ", "eddsa"])
def test_signed_with_another_algorithm(ring, name):
    assert why(signed(ring, CLAIMS.record(), header(ring, alg=name)), ring) == "algorithm"


def test_sealed_with_our_public_key_as_if_it_were_a_password(ring):
    key = ring.newest("approval")
    message = f"{packed(header(ring, alg='HS256'))}.{packed(CLAIMS.record())}"
    for secret in (key.public_pem().encode(), key.public.public_bytes_raw()):
        seal = hmac.digest(secret, message.encode(), hashlib.sha256)
        assert why(f"{message}.{packed(seal)}", ring) == "algorithm"


@pytest.mark.parametrize("kid", ["../approval-2026-06-13.pem", "/etc/passwd", "", "*", "0" * 16])
def test_that_names_a_key_by_a_path_or_a_guess(ring, kid):
    assert why(signed(ring, CLAIMS.record(), header(ring, kid=kid)), ring) == "unknown-key"


@pytest.mark.parametrize("kid", [None, 7, ["a"], {"a": 1}])
def test_that_names_its_key_by_something_that_is_no_name(ring, kid):
    assert why(signed(ring, CLAIMS.record(), header(ring, kid=kid)), ring) == "malformed"


@pytest.mark.parametrize(
    "extra",
    [
        {"jwk": {"kty": "OKP", "crv": "Ed25519", "x": "AAAA"}},
        {"jku": "https://evil.example/keys"},
        {"x5u": "https://evil.example/cert"},
        {"crit": ["exp"]},
        {"b64": False},
    ],
)
def test_that_brings_its_own_key_or_rules(ring, strange, extra):
    head = header(ring, **extra)
    assert why(signed(ring, CLAIMS.record(), head), ring) == "malformed"
    theirs = strange.newest("approval").private
    assert why(signed(ring, CLAIMS.record(), head, theirs), ring) == "malformed"


@pytest.mark.parametrize("typ", ["JWT", "at+jwt", None, 1])
def test_that_is_another_kind_of_token(ring, typ):
    assert why(signed(ring, CLAIMS.record(), header(ring, typ=typ)), ring) == "malformed"


@pytest.mark.parametrize("name", sorted(set(CLAIMS.record()) - {"iss", "aud", "iat"}))
@pytest.mark.parametrize("value", [..., None, "", 7, ["x"], True])
def test_that_our_key_signed_with_something_missing_or_odd(ring, name, value):
    claims = altered(**{name: value})
    if value is ...:
        del claims[name]
    assert why(signed(ring, claims), ring) == "malformed"


@pytest.mark.parametrize(
    "odd",
    [
        {"expires_at": "2026-06-13T15:40:00+02:00"},
        {"expires_at": "tomorrow"},
        {"expires_at": "2026-06-13T15:20:00Z", "exp": 1_781_364_000},
        {"expires_at": "2036-06-13T15:40:00Z", "exp": 2_096_984_400},
        {"exp": 1_781_365_201},
        {"approver_ids": []},
        {"approver_ids": ["u_8", 9]},
        {"approver_ids": ["u_8"], "approver_id": "u_9"},
    ],
)
def test_that_our_key_signed_with_a_contradiction_in_it(ring, odd):
    assert why(signed(ring, altered(**odd)), ring) == "malformed"


@pytest.mark.parametrize(
    "junk",
    ["", ".", "..", "a.b.c", "a.b", "é.b.c", "x" * 20_000, None, b"a.b.c", 7, "null.null.null"],
)
def test_that_is_no_token_at_all(ring, junk):
    assert why(junk, ring) == "malformed"


def test_whose_claims_are_no_object(ring):
    assert why(signed(ring, ["approved"]), ring) == "malformed"
    assert why(signed(ring, b"\xff\xfe"), ring) == "malformed"


def test_the_reason_for_a_refusal_holds_nothing_of_the_token(ring):
    with pytest.raises(TokenError) as caught:
        checked(issue(CLAIMS, ring), ring, expected=replace(EXPECTED, payload_hash="x"))
    assert "f2a8" not in str(caught.value)
