"""OAuth access tokens before the API: who is let in with one, as whom, and who is not."""

import time

import pytest

from counterseal.config.tables import OAuthTable
from counterseal.web.identity import Access
from counterseal.web.middleware import Rate, RequestLimits
from tests.gateway.auth.authorization_server import serving

from .served import PUBLIC, open_api

RESOURCE = f"{PUBLIC}/mcp"
ADD = {"tool": "add", "arguments": {"a": 2, "b": 3}, "run_id": "run_1"}


@pytest.fixture(scope="module")
def served():
    with serving() as server:
        yield server


@pytest.fixture
def issuer(served):
    served.reset(RESOURCE)
    return served


@pytest.fixture
async def api(issuer):
    oauth = OAuthTable(issuer=issuer.issuer, required_scopes=("case:read",))
    limits = RequestLimits(credential=Rate(1e6, 1_000_000), address=Rate(0.001, 5))
    async with open_api(access=Access(resource=RESOURCE, oauth=oauth), limits=limits) as opened:
        yield opened


def bearing(api, token):
    return api.client(headers={"Authorization": f"Bearer {token}"})


async def test_a_token_makes_calls_as_whom_its_claims_name_and_finds_them_again(api, issuer):
    bot = bearing(api, issuer.token(client_id="bot"))
    me = (await bot.get("/v1/me")).json()
    assert (me["kind"], me["tenant"], me["agent"], me["user"]) == ("agent", "acme", "bot", "u_7")
    assert (me["roles"], me["scopes"]) == (["support"], ["case:read", "notice:send"])
    made = await bot.post("/v1/calls", json=ADD)
    assert (made.status_code, made.json()["result_payload"]["data"]) == (200, {"total": 5})
    (row,) = (await bot.get("/v1/calls")).json()["items"]
    assert (row["agent"], row["user"]) == ("bot", "u_7")
    another = bearing(api, issuer.token("RS256-1", client_id="bot", sub="u_8"))
    assert (await another.get(f"/v1/calls/{row['call_id']}")).status_code == 404
    elsewhere = bearing(api, issuer.token(client_id="bot", tenant="globex"))
    assert (await elsewhere.get("/v1/calls")).json()["items"] == []


async def test_a_token_opens_no_door_of_peoples_whatever_roles_it_claims(api, issuer):
    bot = bearing(api, issuer.token(client_id="bot", roles=["admin", "operator", "approver"]))
    for path in ("/v1/events", "/v1/metrics", "/v1/kills", "/v1/calls?metric=retry_success_rate"):
        answer = await bot.get(path)
        assert (answer.status_code, answer.json()["code"]) == (403, "people-only"), path


async def test_a_token_with_too_small_a_scope_is_told_which_it_takes(api, issuer):
    answer = await bearing(api, issuer.token(client_id="bot", scope="other")).post(
        "/v1/calls", json=ADD
    )
    assert (answer.status_code, answer.json()["code"]) == (403, "scope-required")
    assert 'scope="case:read"' in answer.headers["www-authenticate"]


BAD = {
    "for another": {"aud": "https://other.example.org"},
    "of another": {"iss": "https://other.example.org"},
    "over": {"exp": int(time.time()) - 3600},
    "of no tenant": {"tenant": None},
}


@pytest.mark.parametrize("how", BAD)
async def test_a_token_that_is_not_good_is_refused_as_a_problem(api, issuer, how):
    token = issuer.token(**{"client_id": "bot", **BAD[how]})
    answer = await bearing(api, token).post("/v1/calls", json=ADD)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]
    assert answer.headers["content-type"] == "application/problem+json"


async def test_who_guesses_tokens_has_to_wait_and_a_good_one_has_not(api, issuer):
    good, other = issuer.token(client_id="bot"), issuer.token(client_id="x")
    forged = f"{good.rpartition('.')[0]}.{other.rpartition('.')[2]}"
    statuses = [(await bearing(api, forged).get("/v1/me")).status_code for _ in range(7)]
    assert statuses == [401] * 5 + [429] * 2
    assert (await bearing(api, good).get("/v1/me")).status_code == 200


async def test_where_the_issuer_can_not_be_reached_the_answer_is_unavailable_and_not_unauthorized(
    api, issuer
):
    issuer.answers["/jwks"] = (500, "")
    answer = await bearing(api, issuer.token(client_id="bot")).get("/v1/me")
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert answer.headers["retry-after"]
