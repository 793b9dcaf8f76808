"""The issuer's keys: found, rotated, and not to be had."""

import asyncio
import contextlib
import json
import logging

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from counterseal.config.tables import OAuthTable

from .authorization_server import MAKERS, METADATA, OPENID, serving
from .conftest import RESOURCE


@pytest.fixture
async def caller(door, oauth):
    return await door(oauth)


async def test_new_key_is_found_by_its_first_token_but_not_looked_for_all_the_time(
    caller, issuer, steady
):
    assert await caller.status(issuer.token()) == 200
    kid = issuer.rotate("ES256")
    assert await caller.status(issuer.token(kid)) == 401, "asked a moment ago"
    asked = issuer.asked.count("/jwks")
    for _ in range(5):
        await caller.status(issuer.token(kid))
    assert issuer.asked.count("/jwks") == asked
    steady.now += 10
    assert await caller.status(issuer.token(kid)) == 200
    assert issuer.asked.count("/jwks") == asked + 1


async def test_key_that_was_withdrawn_is_trusted_no_more_after_some_minutes(caller, issuer, steady):
    assert await caller.status(issuer.token()) == 200
    issuer.rotate()
    steady.now += 299
    assert await caller.status(issuer.token(sub="u_8")) == 200
    steady.now += 1
    assert await caller.status(issuer.token(sub="u_9")) == 401


async def test_many_tokens_at_once_ask_for_the_keys_once(caller, issuer):
    tokens = [issuer.token(sub=f"u_{n}") for n in range(10)]
    assert await asyncio.gather(*map(caller.status, tokens)) == [200] * 10
    assert issuer.asked == [METADATA, "/jwks"]


async def test_keys_outlast_an_issuer_that_is_down_for_an_hour(caller, issuer, steady):
    assert await caller.status(issuer.token()) == 200
    issuer.answers = {METADATA: (503, ""), OPENID: (503, "")}
    steady.now += 3599
    assert await caller.status(issuer.token(sub="u_8")) == 200
    steady.now += 11
    assert await caller.status(issuer.token(sub="u_9")) == 503
    issuer.answers = {}
    steady.now += 10
    assert await caller.status(issuer.token(sub="u_9")) == 200


async def test_tokens_are_refused_while_the_issuer_can_not_be_reached(door, caplog):
    with serving() as gone:
        gone.reset(RESOURCE)
        token = gone.token()
    caller = await door(OAuthTable(issuer=gone.issuer))
    answer = await caller.get(token)
    assert answer.status_code == 503, "it is not the token's fault, and a client should not log in"
    assert answer.headers["retry-after"] == "10"
    assert [one.levelno for one in caplog.records if "can't fetch the keys" in one.message] == [
        logging.WARNING
    ]
    assert gone.issuer in caplog.text
    assert await caller.status("garbage") == 401


UNUSABLE = {
    "more than is read": lambda issuer: {"/jwks": (200, b" " * 300_000 + b'{"keys": []}')},
    "too many keys": lambda issuer: {"/jwks": (200, json.dumps({"keys": [{}] * 101}))},
    "no JSON": lambda issuer: {"/jwks": (200, "<html>")},
    "deep JSON": lambda issuer: {"/jwks": (200, "[" * 100_000)},
    "no keys": lambda issuer: {"/jwks": (200, '{"keys": {}}')},
    "a list": lambda issuer: {"/jwks": (200, "[]")},
    "an error": lambda issuer: {"/jwks": (500, "{}")},
    "somebody else's metadata": lambda issuer: {
        METADATA: (200, json.dumps({**issuer.metadata(), "issuer": "https://evil.example.org"}))
    },
    # Leads to this machine, where the keys are, and is not a loopback address all the same.
    "keys elsewhere in the open": lambda issuer: {
        METADATA: (
            200,
            json.dumps(
                {
                    **issuer.metadata(),
                    "jwks_uri": f"{issuer.url}/jwks".replace("127.0.0.1", "0.0.0.0"),
                }
            ),
        )
    },
    "keys nowhere": lambda issuer: {METADATA: (200, json.dumps({"issuer": issuer.issuer}))},
    "no metadata": lambda issuer: {METADATA: (404, ""), OPENID: (404, "")},
}


@pytest.mark.parametrize("answer", UNUSABLE)
async def test_tokens_are_refused_where_the_issuer_answers_with(caller, issuer, answer, caplog):
    issuer.answers = UNUSABLE[answer](issuer)
    assert await caller.status(issuer.token()) == 503
    assert "can't fetch the keys" in caplog.text


async def test_redirect_of_the_keys_is_not_followed(caller, issuer):
    issuer.answers = {"/jwks": (302, "")}
    assert await caller.status(issuer.token()) == 503


async def test_invalid_keys_of_the_issuer_do_not_affect_valid_ones(caller, issuer):
    issuer.published[:0] = [
        {"kty": "unheard-of", "kid": "x"},
        {**issuer.public("EdDSA-0"), "use": "enc"},
        {**issuer.public("EdDSA-0"), "alg": "Ed448"},
        {"kty": "oct", "kid": "y", "k": "c2VjcmV0"},
        {},
    ]
    assert await caller.status(issuer.token()) == 200


async def test_token_has_to_say_which_of_several_keys(caller, issuer):
    issuer.add_key("EdDSA")
    assert await caller.status(issuer.token(header={"kid": None})) == 401
    assert await caller.status(issuer.token()) == 200


async def test_key_that_is_too_short_is_not_believed(caller, issuer):
    issuer.keys["weak"] = ("RS256", rsa.generate_private_key(public_exponent=65537, key_size=1024))
    issuer.published.append(issuer.public("weak"))
    with pytest.warns(match="below the minimum"):
        token = issuer.token("weak")
    assert await caller.status(token) == 401


@pytest.mark.parametrize("known", ["/.well-known/oauth-authorization-server/eu", "/eu" + OPENID])
async def test_metadata_of_an_issuer_with_a_path_is_found_both_ways(door, known):
    with serving("/eu") as issuer:
        issuer.reset(RESOURCE)
        issuer.answers = {known: (200, json.dumps(issuer.metadata()))}
        caller = await door(OAuthTable(issuer=issuer.issuer))
        assert await caller.status(issuer.token()) == 200


async def test_keys_can_be_fetched_from_a_given_address(door, issuer):
    issuer.answers = {METADATA: (404, ""), OPENID: (404, "")}
    caller = await door(OAuthTable(issuer=issuer.issuer, jwks_url=f"{issuer.url}/jwks"))
    assert await caller.status(issuer.token()) == 200
    assert issuer.asked == ["/jwks"]


async def test_issuer_that_answers_for_ever_is_not_waited_for(door, monkeypatch):
    ended = asyncio.Event()

    async def trickle(_, writer):
        with contextlib.suppress(ConnectionError):
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while not writer.is_closing():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    monkeypatch.setattr("counterseal.web.oauth._FETCH_TIMEOUT", 0.2)
    slow = await asyncio.start_server(trickle, "127.0.0.1", 0)
    async with slow, asyncio.timeout(30):
        host, port = slow.sockets[0].getsockname()
        caller = await door(
            OAuthTable(issuer=f"http://{host}:{port}", jwks_url=f"http://{host}:{port}")
        )
        token = jwt.encode({}, MAKERS["EdDSA"](), "EdDSA")
        assert await caller.status(token) == 503
        await ended.wait()
