"""The whole site: what holds for every path."""

from __future__ import annotations

import httpx
import pytest

from counterseal.accounts import People
from counterseal.accounts.users import Passwords
from tests.gateway.served import BOT, serving

PASSWORD = "correct horse battery"


@pytest.fixture
async def served():
    async with serving([]) as opened:
        yield opened


@pytest.fixture
async def client(served):
    url = served.url.removesuffix("/mcp")
    async with httpx.AsyncClient(base_url=url, timeout=30.0, verify=False) as opened:
        yield opened


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/calls/%0d%0aX:%20y", "/v1/%0a", "/v1/me"])
async def test_whatever_stands_behind_v1_is_the_apis_to_answer(client, path):
    answer = await client.get(path)
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("path", ["/%0d%0aLocation:%20x", "/calls/%0a/x", "/nothing"])
async def test_every_other_path_is_answered_by_the_console_with_its_headers(client, path):
    answer = await client.get(path)
    assert answer.status_code in (303, 404)
    assert answer.headers["cache-control"] == "no-store"
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("path", "status"),
    [("/mcp", 401), ("/mcp/", 404), ("/v1", 401), ("/v10", 404), ("/", 303), ("/health", 200)],
)
async def test_a_path_leads_to_its_part_of_the_site(client, path, status):
    assert (await client.get(path)).status_code == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:1", 200),
        ("127.0.0.1", 200),
        ("evil.test", 421),
        ("127.0.0.1:80.evil.test", 421),
        ("127.0.0.1:@evil.test", 421),
        ("127.0.0.1.evil.test:80", 421),
    ],
)
async def test_only_our_own_names_are_answered_to(client, host, status):
    assert (await client.get("/health", headers={"Host": host})).status_code == status


async def test_who_tries_keys_for_the_numbers_is_slowed_down(client):
    tried = {"Authorization": "Bearer wrong"}
    codes = [401]
    while codes[-1] == 401 and len(codes) < 2000:
        last = await client.get("/metrics", headers=tried)
        codes.append(last.status_code)
    assert (codes[-1], len(codes) > 100) == (429, True)
    assert int(last.headers["retry-after"]) >= 1


async def test_numbers_are_for_people_of_the_tenant_alone(client, served):
    people = People(served.runtime, passwords=Passwords(time_cost=1, memory_kib=8))
    accounts = people.accounts("tests")
    await accounts.add("vera", PASSWORD, {"acme": ["viewer"]}, reason="for a test")
    person, _ = await accounts.issue_key("vera", "acme", reason="for a test")
    agent, _ = await served.runtime.operator("tests").issue_key(BOT, reason="for a test")
    for given in ({}, {"Authorization": f"Bearer {agent}"}, {"Authorization": "Basic eA=="}):
        assert (await client.get("/metrics", headers=given)).status_code == 401
    answer = await client.get("/metrics", headers={"Authorization": f"Bearer {person}"})
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert 'tenant="acme"' in answer.text
