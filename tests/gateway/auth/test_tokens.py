"""OAuth access tokens: who is let in with one, and every way in which one is not good."""

import base64
import hmac
import json
import logging
import time

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from mcp.server.auth.provider import principal_components
from starlette.applications import Starlette

from counterseal.config.tables import ClaimsTable, OAuthTable
from counterseal.runtime import Runtime
from counterseal.web.identity import Access, protect
from counterseal.web.oauth import TokenRefusedError, _principal

from .authorization_server import MAKERS
from .conftest import RESOURCE

METADATA_URL = "http://127.0.0.1:8787/.well-known/oauth-protected-resource/mcp"


@pytest.fixture
async def caller(door, oauth):
    return await door(oauth)


# --- good ones ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kid", ["EdDSA-0", "RS256-1"])
async def test_good_token_makes_a_principal_of_its_claims(caller, issuer, kid):
    answer = await caller.get(issuer.token(kid))
    assert answer.status_code == 200
    assert answer.json() == {
        "tenant": "acme",
        "agent": "notice-agent",
        "user": "u_7",
        "roles": ["support"],
        "scopes": ["case:read", "notice:send"],
    }


def test_risk_level_comes_from_the_claim_that_the_settings_name(issuer):
    def level(**claims):
        return _principal({**issuer.claims(), **claims}, names.model_dump()).risk_level

    names = ClaimsTable()
    assert level(risk_level="critical") == "low"  # not named, so not read
    names = ClaimsTable(risk_level="risk_level")
    assert level(risk_level="critical") == "critical"
    for wrong in (None, "severe", ["high"]):
        with pytest.raises(TokenRefusedError):
            level(risk_level=wrong)


async def test_claims_are_found_where_the_settings_say(door, issuer):
    names = {
        "tenant": "https://example.org/tenant",
        "agent": "azp",
        "user": "email",
        "roles": "realm_access.roles",
    }
    caller = await door(OAuthTable(issuer=issuer.issuer, claims=names))
    answer = await caller.get(
        issuer.token(
            **{"https://example.org/tenant": "globex"},
            azp="bot",
            email="a@example.org",
            realm_access={"roles": ["lead", "desk"]},
            scope=None,
            scp=["a", "b"],
        )
    )
    assert answer.json() == {
        "tenant": "globex",
        "agent": "bot",
        "user": "a@example.org",
        "roles": ["desk", "lead"],
        "scopes": ["a", "b"],
    }


async def test_token_for_several_audiences_and_a_lower_case_scheme_are_fine(caller, issuer):
    token = issuer.token(aud=["https://other.example.org", RESOURCE + "/"])
    answer = await caller.http.get("/mcp", headers={"authorization": f"bearer {token}"})
    assert answer.status_code == 200


async def test_token_without_user_roles_or_scopes_has_none(caller, issuer):
    answer = await caller.get(issuer.token(sub=None, roles=None, scope=None))
    assert (answer.json()["user"], answer.json()["roles"], answer.json()["scopes"]) == (
        None,
        [],
        [],
    )


async def test_token_without_a_key_id_is_taken_where_one_key_fits(caller, issuer):
    assert await caller.status(issuer.token(header={"kid": None})) == 200


async def test_audience_can_be_another_than_the_resource(door, issuer):
    caller = await door(OAuthTable(issuer=issuer.issuer, audience="api://tools"))
    assert await caller.status(issuer.token(aud="api://tools")) == 200
    assert await caller.status(issuer.token()) == 401


async def test_resource_may_be_spelt_otherwise_than_clients_are_told(runtime, issuer):
    access = Access(resource="HTTP://Tools.Example.org:80", oauth=OAuthTable(issuer=issuer.issuer))
    door = protect(None, access, runtime)
    app = Starlette(routes=[*door.routes])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as http:
        told = await http.get("http://tools.example.org/.well-known/oauth-protected-resource")
    resource = told.json()["resource"]
    assert await door.verifier.verify_token(issuer.token(aud=resource))
    assert await door.verifier.verify_token(issuer.token(aud=resource.rstrip("/")))


# --- bad ones -------------------------------------------------------------------------------------


def in_base64(part):
    return base64.urlsafe_b64encode(part).rstrip(b"=")


def unsigned(issuer):
    return jwt.encode(issuer.claims(), None, "none", headers={"kid": "EdDSA-0"})


def signed_with_what_everybody_knows(issuer):
    """HS256, with the public key as the secret: PyJWT won't do that, so it is done by hand."""
    public = issuer.keys["RS256-1"][1].public_key()
    secret = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    parts = ({"alg": "HS256", "kid": "RS256-1"}, issuer.claims())
    signed = b".".join(in_base64(json.dumps(part).encode()) for part in parts)
    return (signed + b"." + in_base64(hmac.digest(secret, signed, "sha256"))).decode()


def signed_by_a_stranger(issuer):
    key = MAKERS["EdDSA"]()
    return jwt.encode(issuer.claims(), key, "EdDSA", headers={"kid": "EdDSA-0"})


def changed_afterwards(issuer):
    header, _, signature = issuer.token().split(".")
    body = in_base64(json.dumps(issuer.claims(tenant="globex")).encode())
    return f"{header}.{body.decode()}.{signature}"


def with_the_algorithm_of_another_key(issuer):
    key = issuer.keys["RS256-1"][1]
    return jwt.encode(issuer.claims(), key, "RS256", headers={"kid": "EdDSA-0"})


NOW = int(time.time())
BAD = {
    "for another audience": lambda issuer: issuer.token(aud="https://other.example.org/mcp"),
    "for no audience": lambda issuer: issuer.token(aud=None),
    "for a longer address": lambda issuer: issuer.token(aud=f"{RESOURCE}/more"),
    "of another issuer": lambda issuer: issuer.token(iss="https://evil.example.org"),
    "of no issuer": lambda issuer: issuer.token(iss=None),
    "expired": lambda issuer: issuer.token(exp=NOW - 60),
    "expired a second ago": lambda issuer: issuer.token(exp=int(time.time()) - 1),
    "without an end": lambda issuer: issuer.token(exp=None),
    "with an endless end": lambda issuer: issuer.token(exp=float("inf")),
    "not yet valid": lambda issuer: issuer.token(nbf=NOW + 3600),
    "unsigned": unsigned,
    "signed with the public key": signed_with_what_everybody_knows,
    "signed by a stranger": signed_by_a_stranger,
    "changed afterwards": changed_afterwards,
    "with the wrong key": with_the_algorithm_of_another_key,
    "with a critical extension": lambda issuer: issuer.token(header={"crit": ["x"], "x": 1}),
    "without a tenant": lambda issuer: issuer.token(tenant=None),
    "without an agent": lambda issuer: issuer.token(client_id=None),
    "of an empty tenant": lambda issuer: issuer.token(tenant=" "),
    "of every tenant": lambda issuer: issuer.token(tenant="*"),
    "of a tenant that is a list": lambda issuer: issuer.token(tenant=["acme"]),
    "of a tenant with a NUL": lambda issuer: issuer.token(tenant="ac\0me"),
    "of an endless agent": lambda issuer: issuer.token(client_id="a" * 257),
    "of an agent of ours": lambda issuer: issuer.token(client_id="counterseal.compensation"),
    "of ourselves": lambda issuer: issuer.token(client_id="Counterseal"),
    "with an end that is none": lambda issuer: issuer.token(exp="soon"),
    "with scopes that are none": lambda issuer: issuer.token(scope=[7]),
    "with roles that are none": lambda issuer: issuer.token(roles=[["admin"]]),
    "with a number of roles": lambda issuer: issuer.token(roles=7),
    "too long": lambda issuer: issuer.token(more="x" * 20_000),
    "garbage": lambda issuer: "garbage",
    "dots": lambda issuer: "..",
    "an API key that is none": lambda issuer: "cs_key_1234",
    "nothing": lambda issuer: "",
}


@pytest.mark.parametrize("kind", BAD)
async def test_token_is_refused_that_is(caller, issuer, kind):
    answer = await caller.get(BAD[kind](issuer))
    assert answer.status_code == 401
    asked = answer.headers["www-authenticate"]
    assert asked.startswith("Bearer ")
    assert 'error="invalid_token"' in asked
    assert f'resource_metadata="{METADATA_URL}"' in asked
    assert await caller.status(issuer.token()) == 200, "and it stands in nobody's way"


async def test_algorithm_that_the_settings_leave_out_is_refused(door, issuer):
    caller = await door(OAuthTable(issuer=issuer.issuer, algorithms=("RS256",)))
    assert await caller.status(issuer.token("RS256-1")) == 200
    assert await caller.status(issuer.token("EdDSA-0")) == 401


async def test_two_authorization_headers_are_refused(caller, issuer):
    good = ("Authorization", f"Bearer {issuer.token()}")
    for other in (good, ("authorization", "Bearer x"), ("Authorization", "Basic eDp5")):
        for headers in ([good, other], [other, good]):
            answer = await caller.http.get("/mcp", headers=headers)
            assert answer.status_code == 401


async def test_credentials_count_in_the_header_only(caller, issuer):
    token = issuer.token()
    assert (await caller.get(params={"access_token": token})).status_code == 401
    basic = base64.b64encode(f"x:{token}".encode()).decode()
    answer = await caller.http.get("/mcp", headers={"Authorization": f"Basic {basic}"})
    assert answer.status_code == 401


async def test_required_scope_is_asked_of_tokens(door, issuer):
    caller = await door(OAuthTable(issuer=issuer.issuer, required_scopes=("mcp:use",)))
    answer = await caller.get(issuer.token())
    assert answer.status_code == 403
    assert 'error="insufficient_scope"' in answer.headers["www-authenticate"]
    assert f'resource_metadata="{METADATA_URL}"' in answer.headers["www-authenticate"]
    assert await caller.status(issuer.token(scope="mcp:use")) == 200


async def test_token_means_nothing_where_no_issuer_is_configured(door, issuer):
    caller = await door()
    answer = await caller.get(issuer.token())
    assert answer.status_code == 401
    assert "resource_metadata" not in answer.headers["www-authenticate"]


async def test_clients_learn_where_tokens_come_from(door, issuer):
    caller = await door(OAuthTable(issuer=issuer.issuer, required_scopes=("mcp:use",)))
    answer = await caller.http.get(METADATA_URL)
    assert answer.status_code == 200
    assert answer.json() == {
        "resource": RESOURCE,
        "authorization_servers": [issuer.issuer],
        "scopes_supported": ["mcp:use"],
        "bearer_methods_supported": ["header"],
    }
    assert (await (await door()).http.get(METADATA_URL)).status_code == 404


# --- remembered -----------------------------------------------------------------------------------


async def test_token_is_remembered_for_a_minute_and_no_longer_than_it_lasts(
    door, issuer, steady, clock
):
    async with Runtime.open("memory:", clock=clock) as runtime:
        verifier = (await door(OAuthTable(issuer=issuer.issuer), on=runtime)).door.verifier
        long, short = issuer.token(exp=clock() + 9000), issuer.token(exp=clock() + 3000)
        clock.by = 2990
        assert await verifier.verify_token(short)
        clock.by = 3000
        assert await verifier.verify_token(short) is None
        assert await verifier.verify_token(long)
        issuer.published.clear()
        steady.now += 59
        assert await verifier.verify_token(long)
        clock.by = 0  # a clock that is set back does not make the minute longer
        steady.now += 300
        assert await verifier.verify_token(long) is None, "its key is gone"


async def test_token_without_a_scope_is_refused_every_time_though_it_is_remembered(door, issuer):
    caller = await door(OAuthTable(issuer=issuer.issuer, required_scopes=("mcp:use",)))
    small, enough = issuer.token(scope="other"), issuer.token(scope="mcp:use other")
    assert [await caller.status(small) for _ in range(3)] == [403, 403, 403]
    assert [await caller.status(enough) for _ in range(3)] == [200, 200, 200]


async def test_still_valid_ends_with_the_token(door, issuer, clock):
    async with Runtime.open("memory:", clock=clock) as runtime:
        verifier = (await door(OAuthTable(issuer=issuer.issuer), on=runtime)).door.verifier
        identity = await verifier.verify_token(issuer.token(exp=clock() + 3000))
        clock.by = 2999
        assert await verifier.still_valid(identity)
        clock.by = 3000
        assert not await verifier.still_valid(identity)


async def test_neither_logs_nor_answers_nor_reprs_hold_a_token(caller, issuer, caplog):
    caplog.set_level(logging.DEBUG)
    tokens = [issuer.token(), issuer.token(aud="x"), issuer.token(tenant=None), unsigned(issuer)]
    shown = []
    for token in tokens:
        answer = await caller.get(token)
        shown += [answer.text, str(answer.headers)]
    identity = await caller.door.verifier.verify_token(tokens[0])
    shown += [caplog.text, repr(identity), str(identity), identity.model_dump_json()]
    assert "a credential was refused" in caplog.text
    for token in tokens:
        parts = [token, *(part for part in token.split(".") if len(part) > 60)]
        assert not [part for part in parts for text in shown if part in text]


async def test_principals_are_told_apart_by_what_the_sdk_compares(caller, issuer):
    async def known_as(**changed):
        identity = await caller.door.verifier.verify_token(issuer.token(**changed))
        return principal_components(identity)

    me = await known_as()
    assert me == await known_as(exp=int(time.time()) + 500, scope="less"), "a refreshed token"
    others = [
        await known_as(tenant="globex"),
        await known_as(client_id="other"),
        await known_as(sub="u_8"),
        await known_as(tenant='acme","x', client_id="y"),
        await known_as(tenant="acme", client_id='x","y'),
    ]
    assert len({me, *others}) == 6


def test_settings_that_would_let_every_caller_in_are_refused():
    for wrong in (
        {"issuer": "http://login.example.org"},
        {"issuer": "login.example.org"},
        {"issuer": ""},
        {"jwks_url": "http://login.example.org/jwks"},
        {"algorithms": ("RS256", "HS256")},
        {"algorithms": ("none",)},
        {"algorithms": ()},
        {"claims": {"tenant": "t", "agent": "a", "scopes": "s"}},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            OAuthTable(**{"issuer": "https://login.example.org", **wrong})
