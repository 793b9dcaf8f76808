"""The site's middleware: bounded heads, our own hosts only, and refusals while it can't serve."""

import asyncio

import httpx
import pytest
from starlette.middleware import Middleware

from counterseal.web.middleware import (
    CSP,
    Availability,
    HeadLimits,
    SecurityHeaders,
    SiteState,
    TrustedHosts,
)

HOSTS = ["127.0.0.1:*", "Tools.example"]


async def ok(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


class Site:
    """An application behind all middleware of the site."""

    def __init__(self, app=ok, max_requests=1000):
        self.state = SiteState()
        self.app = app
        for one in (
            Middleware(TrustedHosts, hosts=HOSTS),
            Middleware(Availability, state=self.state, max_requests=max_requests),
            Middleware(HeadLimits),
            Middleware(SecurityHeaders, https=True),
        ):
            self.app = one.cls(self.app, *one.args, **one.kwargs)

    async def get(self, path="/", *hosts, headers=()):
        given = [("Host", host) for host in hosts or ["127.0.0.1:8787"]] + list(headers)
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get(path, headers=given)


@pytest.fixture
def site():
    return Site()


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        (["127.0.0.1"], 200),
        (["127.0.0.1:1"], 200),
        (["tools.EXAMPLE"], 200),
        (["tools.example:443"], 421),
        (["tools.example", "tools.example"], 421),
        (["tools.example", "evil.test"], 421),
        ([""], 421),
        (["evil.test"], 421),
        (["127.0.0.1:99999999"], 421),
    ],
)
async def test_exactly_one_host_of_ours_is_accepted(site, hosts, status):
    assert (await site.get("/mcp", *hosts)).status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("X-A", "a" * 16_000)], 200),
        ([("X-A", "a" * 33_000)], 431),
        ([("X-A", "a" * 17_000), ("X-B", "b" * 17_000)], 431),
        ([(f"X-{n}", "a") for n in range(90)], 200),
        ([(f"X-{n}", "a") for n in range(100)], 431),
    ],
)
async def test_heads_are_bounded_in_bytes_and_count(site, headers, status):
    answer = await site.get("/mcp", headers=headers)
    assert answer.status_code == status
    assert (answer.headers.get("connection") == "close") is (status == 431)


async def test_while_it_stops_every_request_is_refused_but_health(site):
    site.state.stopping = True
    for path in ("/mcp", "/v1/me", "/", "/ready"):
        answer = await site.get(path)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert answer.headers["connection"] == "close"
    assert (await site.get("/health")).status_code == 200


async def test_while_it_is_overloaded_every_request_is_refused_but_health():
    begun, door = asyncio.Event(), asyncio.Event()

    async def slow(scope, receive, send):
        if scope["path"] == "/slow":
            begun.set()
            await door.wait()
        await ok(scope, receive, send)

    site = Site(slow, max_requests=1)
    first = asyncio.ensure_future(site.get("/slow"))
    await begun.wait()
    assert (await site.get("/v1/me")).status_code == 503
    assert (await site.get("/health")).status_code == 200
    door.set()
    assert (await first).status_code == 200
    assert (await site.get("/v1/me")).status_code == 200
    assert site.state.requests == 0


async def refusals(site, path):
    yield await site.get(path, "evil.test")
    yield await site.get(path, headers=[("X-A", "a" * 33_000)])
    site.state.stopping = True
    yield await site.get(path)


@pytest.mark.parametrize("path", ["/", "/approvals", "/nothing"])
async def test_people_are_refused_with_a_page_that_has_the_consoles_headers(site, path):
    async for answer in refusals(site, path):
        assert answer.headers["content-type"].startswith("text/html")
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/mcp", "/v1/calls", "/ready", "/metrics"])
async def test_programs_are_refused_with_a_line(site, path):
    async for answer in refusals(site, path):
        assert answer.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize("path", ["/", "/mcp", "/v1/calls", "/health"])
@pytest.mark.parametrize("host", ["127.0.0.1", "evil.test"])
async def test_every_response_has_the_headers_that_keep_others_out(site, path, host):
    answer = await site.get(path, host)
    assert answer.headers["content-security-policy"] == CSP
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["strict-transport-security"]


async def test_a_response_keeps_the_headers_that_it_sets_itself():
    async def cached(scope, receive, send):
        headers = [(b"cache-control", b"public")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    answer = await Site(cached).get()
    assert answer.headers.get_list("cache-control") == ["public"]
