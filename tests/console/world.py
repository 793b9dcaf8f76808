"""A bank with two tenants, its tools and its people, and the console served over real HTTP.

    async with world(tmp_path) as bank:
        approval_id = await bank.notice()
        ...  # bank.url is where the console is

The password of all users is PASSWORD. `ann` and `bob` approve, `vic` looks, `eve` is of both
tenants, `zed` of the other one only, `kim` has a role of the business.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from itertools import count
from typing import Annotated

import uvicorn
from pydantic import Field
from starlette.applications import Starlette
from starlette.middleware import Middleware

from counterseal import Context, Grant, Principal, Proposal, Runtime, tool
from counterseal.accounts import People
from counterseal.accounts.users import Passwords
from counterseal.testing import FakeClock
from counterseal.views import TenantView
from counterseal.web.console import Broker, console_routes, marks_of
from counterseal.web.middleware import SecurityHeaders

PASSWORD = "correct horse battery"
PATIENCE = 30.0
"""Seconds after which something that should have happened long ago is missed."""
USERS = {
    "ann": {"acme": ["approver"]},
    "bob": {"acme": ["approver"]},
    "vic": {"acme": ["viewer"]},
    "eve": {"acme": ["approver"], "zeta": ["approver"]},
    "zed": {"zeta": ["approver"]},
    "kim": {"acme": ["approver", "compliance"]},
    "oli": {"acme": ["operator"]},
}
Text = Annotated[str, Field(max_length=500, description="A text.")]
Amount = Annotated[float, Field(description="In euros.")]


class Bank:
    """What the tools act on, and the calls that are made."""

    def __init__(self, runtime, people, broker, clock):
        self.runtime = runtime
        self.people = people
        self.broker = broker
        self.clock = clock
        self.store_url = self.url = ""
        self.done = []
        self._keys = count(1)

    # --- calls that wait --------------------------------------------------------------------------

    async def ask(self, name, arguments, *, tenant="acme", agent="assistant", **more):
        key = f"key-{next(self._keys)}"
        asked = Proposal(tool=name, arguments=arguments, run_id="run_1", key=key, **more)
        scopes = ["bank:act"]
        caller = Principal(tenant=tenant, agent=agent, user="customer_7", scopes=scopes)
        seen = await self.runtime.submit(asked, caller)
        assert seen.approval_id, seen
        return seen.approval_id

    async def notice(self, to="ann.lee@example.org", text="Your card has been replaced.", **more):
        """Takes one person."""
        return await self.ask("send_notice", {"recipient": to, "text": text}, **more)

    async def closing(self, account="acc_4711", **more):
        """Critical: takes two, who type the account."""
        return await self.ask("close_account", {"account": account}, **more)

    async def refund(self, amount=250.0, **more):
        """Takes an approver with the role compliance, who says why."""
        arguments = {"order": "ord_88", "amount": amount}
        origins = {"/order": "user", "/amount": "untrusted"}
        return await self.ask("refund", arguments, origins=origins, **more)

    async def status(self, approval_id, tenant="acme"):
        return (await self.runtime.approvals.find(tenant, approval_id)).status.value

    async def packet(self, approval_id, tenant="acme"):
        return await self.runtime.approvals.get(tenant, approval_id)


def tools_of(bank):
    declared = {"version": "1.0.0", "owner": "payments", "scopes": ["bank:act"]}

    @tool(
        effect="external_notification",
        consequence="A notice is e-mailed to {recipient}: {text}",
        approval={"expires_seconds": 900},
        **declared,
    )
    async def send_notice(recipient: Text, text: Text, ctx: Context) -> dict[str, str]:
        """Send a notice."""
        bank.done.append(("notice", recipient))
        return {"sent_to": recipient}

    @tool(
        effect="irreversible",
        consequence="Account {account} of {state.owner} is closed; {state.balance} are paid out.",
        resource="account:{account}",
        probe=lambda account: {
            "version": 3,
            "status": "open",
            "owner": "Ann Lee",
            "balance": "1,204.50 EUR",
        },
        preview=lambda account: {
            "version": 4,
            "status": "closed",
            "owner": "Ann Lee",
            "balance": "0.00 EUR",
        },
        **declared,
    )
    async def close_account(account: Text, ctx: Context) -> dict[str, str]:
        """Close an account for good."""
        bank.done.append(("close", account))
        return {"closed": account}

    @tool(
        effect="internal_mutation",
        consequence="{amount} EUR are paid back for order {order}.",
        resource="order:{order}",
        approvers=1,
        approval={
            "pattern": "compliance_gate",
            "roles": ["compliance"],
            "jurisdiction": "EU",
            "accountable_owner": "head of payments",
        },
        **declared,
    )
    async def refund(order: Text, amount: Amount, ctx: Context) -> dict[str, str]:
        """Pay money back."""
        bank.done.append(("refund", order))
        return {"refunded": order}

    return send_notice, close_account, refund


class Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self):
        yield


@contextlib.asynccontextmanager
async def served(app):
    """The URL of an application on a free port."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    with listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        server = Server(config)
        serving = asyncio.ensure_future(server.serve(sockets=[listening]))
        while not server.started:
            assert not serving.done(), serving.result()
            await asyncio.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


@contextlib.asynccontextmanager
async def world(folder, **options):
    """The bank, opened. Options are the runtime's."""
    clock = FakeClock()
    store_url = f"sqlite:///{folder / 'bank.db'}"
    runtime = Runtime.open(store_url, clock=clock, **options)
    quick = Passwords(time_cost=1, memory_kib=64)
    async with runtime:
        people = People(runtime, passwords=quick)
        broker = Broker(marks_of(runtime), interval=0.1)
        bank = Bank(runtime, people, broker, clock)
        tools = tools_of(bank)
        grants = [
            Grant(agent="assistant", tool=one, max_calls_per_run=1000)
            for one in ("send_notice", "close_account", "refund")
        ]
        runtime.register(*tools, grants=grants)
        for name, tenants in USERS.items():
            await people.accounts("root").add(name, PASSWORD, tenants, reason="for the tests")
        routes = []
        app = Starlette(routes=routes, middleware=[Middleware(SecurityHeaders)])
        async with served(app) as url:
            app.router.routes += console_routes(
                runtime,
                people,
                lambda person: TenantView(runtime, person),
                urls=[url],
                broker=broker,
                evaluation=folder / "evaluation.json",
            )
            bank.url, bank.store_url = url, store_url
            try:
                yield bank
            finally:
                broker.close()
