"""An API at the other end of one connection, and calls with one head.

    async with wired() as wire:
        await wire.known()
        told = await wire.ask({"tool": "add", "arguments": {"a": 1, "b": 2}})

Head and body come in one piece, as nearly all clients send them: from the second or third on,
such a request has the place of the one before, and `wire.again` says so.
"""

import contextlib
import json
from typing import NamedTuple

from counterseal import Context, Grant, tool
from counterseal.web.entrance import _FOUND, Entrance
from tests.gateway.wires import answer_in, connected, served

from .served import BOT, RATES, open_api

HOST = "127.0.0.1:8787"
ADD = {"tool": "add", "arguments": {"a": 1, "b": 2}}
NOTE = {"tool": "note", "arguments": {"text": "x"}}


@tool(effect="read_only", version="1.0.0", owner="desk", runtime=RATES)
async def whoami(ctx: Context) -> dict[str, str]:
    """Tell who calls."""
    return {"agent": ctx.principal.agent, "user": ctx.principal.user or ""}


WHO = {"tool": "whoami", "arguments": {}}


class Told(NamedTuple):
    status: int
    head: str
    body: dict

    @property
    def data(self):
        return self.body["result_payload"]["data"]

    @property
    def request_id(self):
        return self.head.partition("x-request-id: ")[2].partition("\r\n")[0]


class Wire:
    """One connection to an API."""

    def __init__(self, api, entrance, app, again, reader, writer):
        self.api = api
        self.entrance = entrance
        self.app = app
        self.again = again
        """Of each request, whether it had the place of the one before."""
        self.reader = reader
        self.writer = writer
        self.now = 1000.0
        """When it is, for whoever asks whether what is known of keys is still new."""
        api.api.entry._callers._verifier._news._steady = lambda: self.now

    def request(self, content, *more, who=BOT, host=HOST):
        """`who` is somebody with a key, or what is said instead of one."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        lines = [
            "POST /v1/calls HTTP/1.1",
            f"Host: {host}",
            f"Authorization: Bearer {self.api.keys.get(who, who)}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *more,
        ]
        return "\r\n".join((*lines, "", "")).encode() + body

    async def ask(self, content, *more, **how):
        self.writer.write(self.request(content, *more, **how))
        return await self.answer()

    async def repeat(self, content, **how):
        """The same, of a request that has the place of the one before."""
        told = await self.ask(content, **how)
        assert self.again[-1]
        return told

    async def answer(self):
        head, body = await answer_in(self.reader)
        text = head.decode("latin-1").lower()
        plain = "json" not in text.partition("content-type: ")[2].partition("\r\n")[0]
        return Told(int(head.split()[1]), text, {} if plain else json.loads(body))

    async def known(self, **how):
        """Call until that comes again: so the next one with the same head does, if it may."""
        del self.again[:]
        while not any(self.again[-1:]):
            assert (await self.ask(ADD, **how)).status == 200
            assert len(self.again) < 50


@contextlib.asynccontextmanager
async def wired(**options):
    async with open_api(**options) as api:
        granted = [Grant(agent=agent, tool="whoami") for agent in ("bot", "other")]
        api.runtime.register(whoami, grants=granted)
        entry = api.api.entry
        entrance = Entrance(entry, straight={"/v1": entry}, api=entry, hosts=["127.0.0.1:*"])
        again = []

        async def app(scope, receive, send):
            again.append(_FOUND in scope)
            await entrance(scope, receive, send)

        async with served(app, ws="none") as url, connected(url) as (reader, writer):
            yield Wire(api, entrance, app, again, reader, writer)
