"""The way in: which names are ours, whose a path is, and what is told once it is closed."""

import httpx
import pytest

from counterseal.web.entrance import Entrance


def answering(name):
    """An application that tells its name, and the headers that it was given."""

    async def app(scope, receive, send):
        headers = [(b"x-name", name.encode()), *((b"x-" + n, v) for n, v in scope["headers"])]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    return app


@pytest.fixture
def entrance():
    return Entrance(
        answering("pages"),
        straight={"/mcp": answering("mcp"), "/v1": answering("api")},
        api=answering("api"),
        hosts=["127.0.0.1:*", "Tools.example"],
    )


async def ask(entrance, path="/", *hosts):
    headers = [("Host", host) for host in hosts or ["127.0.0.1:8787"]]
    transport = httpx.ASGITransport(entrance)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.get(path, headers=headers)


@pytest.mark.parametrize(
    ("path", "who"),
    [
        ("/mcp", "mcp"),
        ("/mcp/", "pages"),
        ("/v1", "api"),
        ("/v1/", "api"),
        ("/v1/calls", "api"),
        ("/v1/%0a", "api"),
        ("/v10", "pages"),
        ("/", "pages"),
    ],
)
async def test_a_path_leads_to_who_has_it(entrance, path, who):
    assert (await ask(entrance, path)).headers["x-name"] == who


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
async def test_one_name_of_ours_lets_in_and_nothing_else(entrance, hosts, status):
    for _ in range(2):  # what was found out is remembered
        assert (await ask(entrance, "/mcp", *hosts)).status_code == status


async def test_once_closed_it_tells_everybody_to_come_back(entrance):
    entrance.closed = True
    for path in ("/mcp", "/v1/me", "/"):
        answer = await ask(entrance, path)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("path", ["/", "/approvals", "/nothing"])
async def test_people_are_refused_with_a_page_that_has_the_consoles_headers(entrance, path):
    for answer in (await ask(entrance, path, "evil.test"), await closed(entrance, path)):
        assert answer.headers["content-type"].startswith("text/html")
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/mcp", "/v1/calls", "/health", "/ready", "/metrics"])
async def test_programs_are_refused_with_a_line(entrance, path):
    for answer in (await ask(entrance, path, "evil.test"), await closed(entrance, path)):
        assert answer.headers["content-type"].startswith("text/plain")


async def closed(entrance, path):
    entrance.closed = True
    return await ask(entrance, path)
