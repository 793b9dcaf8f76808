"""An authorization server, a runtime, and a small endpoint behind `protect`."""

import contextlib
import time

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from counterseal.config.tables import OAuthTable
from counterseal.runtime import Runtime
from counterseal.web.identity import Access, principal_of, protect

from .authorization_server import serving

RESOURCE = "http://127.0.0.1:8787/mcp"


class Steady:
    """A clock that goes when it is told to."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Late:
    """The time of day at the beginning, moved forward as a test wants it."""

    def __init__(self):
        self.start = int(time.time())
        self.by = 0

    def __call__(self):
        return self.start + self.by


async def who_am_i(scope, receive, send):
    who = principal_of()
    told = {
        "tenant": who.tenant,
        "agent": who.agent,
        "user": who.user,
        "roles": sorted(who.roles),
        "scopes": sorted(who.scopes),
    }
    await JSONResponse(told)(scope, receive, send)


class Caller:
    """Calls the endpoint, as a client would."""

    def __init__(self, door, client):
        self.door = door
        self.http = client

    async def get(self, token=None, **how):
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return await self.http.get("/mcp", headers=headers, **how)

    async def status(self, token=None):
        return (await self.get(token)).status_code


@pytest.fixture(scope="module")
def served():
    with serving() as server:
        yield server


@pytest.fixture
def issuer(served):
    served.reset(RESOURCE)
    return served


@pytest.fixture
def oauth(issuer):
    return OAuthTable(issuer=issuer.issuer)


@pytest.fixture
def steady():
    return Steady()


@pytest.fixture
def clock():
    return Late()


@pytest.fixture
async def runtime():
    async with Runtime.open("memory:") as made:
        yield made


@pytest.fixture
async def door(runtime, steady):
    """Makes endpoints: `door(oauth)` gives somebody who can call one."""
    async with contextlib.AsyncExitStack() as stack:

        async def door(oauth=None, *, on=None, **access):
            made = protect(
                who_am_i,
                Access(resource=RESOURCE, oauth=oauth, **access),
                on or runtime,
                steady=steady,
            )
            app = Starlette(routes=[Route("/mcp", endpoint=made.endpoint), *made.routes])
            transport = httpx.ASGITransport(app)
            client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8787")
            return Caller(made, await stack.enter_async_context(client))

        yield door
