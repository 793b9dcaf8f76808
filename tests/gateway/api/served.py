"""The API before a runtime with tools of all kinds, and those who call it.

    async with open_api() as api:
        answer = await api.agent().post("/v1/calls", json={"tool": "add", "arguments": {...}})

Everything is the real thing, in this process; only the sockets are left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Annotated, Any

import httpx
from pydantic import BaseModel, Field

from counterseal import Context, Grant, Principal, Runtime, tool
from counterseal.accounts import People
from counterseal.accounts.users import Passwords
from counterseal.views import TenantView
from counterseal.web.api.app import api_app
from counterseal.web.identity import Access, Verifier
from counterseal.web.middleware import Rate, RequestLimits, SecurityHeaders
from tests.gateway.servers import running

PUBLIC = "http://127.0.0.1:8787"
BOT = Principal(tenant="acme", agent="bot", user="u_1")
ANN = Principal(tenant="acme", agent="bot", user="u_2")
OTHER = Principal(tenant="acme", agent="other", user="u_1")
STRANGER = Principal(tenant="globex", agent="bot", user="u_1")
PASSWORD = "correct horse battery"
PEOPLE = {
    "vera": {"acme": ["viewer"]},
    "ada": {"acme": ["approver"]},
    "bob": {"acme": ["approver", "compliance"]},
    "olga": {"acme": ["operator"], "globex": ["viewer"]},
    "root": {"*": ["admin"]},
    "eve": {"globex": ["admin"]},
    "carl": {"acme": ["compliance"]},
}
PATIENCE = 30.0
SERVER: str | None = None
"""On which server the API runs; None: clients call the application itself."""
PLENTY = Rate(1e6, 1_000_000)
RATES = {"rate_limits": {"window_sec": 1, "max_requests": 1_000_000}}

Number = Annotated[int, Field(description="A number.")]
Text = Annotated[str, Field(max_length=200, description="A text.")]


class Sum(BaseModel):
    total: int


class Bench:
    """Tools of all kinds, and what they did."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.sent: list[str] = []
        self.dropped: list[str] = []
        self.begun = asyncio.Event()
        self.door = asyncio.Event()

        @tool(effect="read_only", version="1.0.0", owner="desk", budget=1_000_000, runtime=RATES)
        async def add(a: Number, b: Number) -> Sum:
            """Add two numbers."""
            return Sum(total=a + b)

        @tool(effect="draft", version="1.0.0", owner="desk", budget=1_000_000, runtime=RATES)
        async def note(text: Text, ctx: Context) -> dict[str, int]:
            """Write a note."""
            self.notes.append(text)
            return {"notes": len(self.notes)}

        @tool(
            effect="draft",
            version="1.0.0",
            owner="desk",
            budget=1_000_000,
            runtime=RATES,
            repeatable=True,
        )
        async def tick(text: Text) -> dict[str, int]:
            """Count once more."""
            self.notes.append(text)
            return {"notes": len(self.notes)}

        @tool(effect="draft", version="1.0.0", owner="desk", budget=100)
        async def linger(text: Text) -> dict[str, str]:
            """Write a note, after a while."""
            self.begun.set()
            await self.door.wait()
            self.notes.append(text)
            return {"noted": text}

        @tool(
            effect="external_notification",
            version="1.0.0",
            owner="desk",
            budget=1_000_000,
            runtime=RATES,
            consequence="A letter goes to {to}.",
        )
        async def send(to: Text) -> dict[str, Any]:
            """Send a letter."""
            self.sent.append(to)
            return {"sent": to}

        @tool(
            effect="irreversible",
            version="1.0.0",
            owner="desk",
            budget=100,
            resource="case:{case}",
            consequence="Case {case} is gone for good.",
        )
        async def drop(case: Text) -> dict[str, Any]:
            """Drop a case."""
            self.dropped.append(case)
            return {"dropped": case}

        self.tools = [add, note, tick, linger, send, drop]


class ToPort(httpx.AsyncHTTPTransport):
    """Sends requests to a port of this machine, whatever their URL says."""

    def __init__(self, port: int) -> None:
        # No test closes its clients, so no connection outlives its answer.
        super().__init__(limits=httpx.Limits(max_keepalive_connections=0))
        self._port = port

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.url = request.url.copy_with(host="127.0.0.1", port=self._port)
        return await super().handle_async_request(request)


class Served:
    """An API, and clients of all kinds."""

    def __init__(self, runtime: Runtime, api: Any, people: People, bench: Bench) -> None:
        self.runtime = runtime
        self.api = api
        self.people = people
        self.bench = bench
        self.port: int | None = None
        """Where a server answers for the API; None: clients call it without one."""
        self.keys: dict[Any, str] = {}

    async def issue(self) -> None:
        """Keys for all users and agents."""
        operator, accounts = self.runtime.operator("tests"), self.people.accounts("tests")
        for who in (BOT, ANN, OTHER, STRANGER):
            self.keys[who], _ = await operator.issue_key(who, reason="for a test")
        for name, tenants in PEOPLE.items():
            await accounts.add(name, PASSWORD, tenants, reason="for a test")
            for tenant in ("acme", "globex") if "*" in tenants else tenants:
                text, _ = await accounts.issue_key(name, tenant, reason="for a test")
                self.keys[name, tenant] = text
                self.keys.setdefault(name, text)

    def client(self, **options: Any) -> httpx.AsyncClient:
        transport: httpx.AsyncBaseTransport
        if self.port is None:
            transport = httpx.ASGITransport(self.api, client=("192.0.2.1", 40_000))
        else:
            transport = ToPort(self.port)
        return httpx.AsyncClient(transport=transport, base_url=PUBLIC, **options)

    def by_key(self, who: Any) -> httpx.AsyncClient:
        """With the key of an agent, by its principal, or of a person, by name."""
        return self.client(headers={"Authorization": f"Bearer {self.keys[who]}"})

    def agent(self, who: Principal = BOT) -> httpx.AsyncClient:
        return self.by_key(who)

    async def signed_in(self, name: str) -> tuple[httpx.AsyncClient, str]:
        """A browser of a user who has signed in, and what its pages send back."""
        found = await self.people.sign_in(name, PASSWORD, source="192.0.2.1")
        assert isinstance(found, tuple), found
        text, session = found
        return self.client(cookies={"counterseal": text}), session.csrf

    async def held(self, who: Principal = BOT, **arguments: Any) -> dict[str, Any]:
        """A call that waits for a person."""
        given = {"tool": "send", "arguments": arguments or {"to": "Ann"}}
        answer = await self.agent(who).post("/v1/calls", json=given)
        assert answer.status_code == 202, answer.text
        return answer.json()


@contextlib.asynccontextmanager
async def open_api(
    store: str = "memory:",
    *,
    limits: RequestLimits | None = None,
    access: Access | None = None,
    body_seconds: float = 20.0,
    quarantines: Any = None,
    issue: bool = True,
    steady: Callable[[], float] = time.monotonic,
    **options: Any,
) -> Any:
    bench = Bench()
    runtime = Runtime.open(store, **options)
    names = [one.contract.name for one in bench.tools]
    grants = [Grant(agent=agent, tool=name) for agent in ("bot", "other") for name in names]
    runtime.register(*bench.tools, grants=grants)
    async with runtime:
        access = access or Access(resource=f"{PUBLIC}/mcp")
        people = People(runtime, passwords=Passwords(time_cost=1, memory_kib=8))
        api, submissions = api_app(
            runtime,
            access=access,
            verifier=Verifier(access, runtime, steady=steady),
            people=people,
            view_for=lambda person: TenantView(runtime, person, quarantine=quarantines),
            public=PUBLIC,
            limits=limits
            or RequestLimits(credential=Rate(1e6, 1_000_000), address=Rate(1e6, 1_000_000)),
            body_seconds=body_seconds,
        )
        api = SecurityHeaders(api)
        served = Served(runtime, api, people, bench)
        served.submissions = submissions
        if issue:
            await served.issue()
        if SERVER is None:
            yield served
            return
        async with running(api, SERVER) as served.port:
            yield served
