"""An agent: a loop between a model and the gateway, with the MCP SDK's client.

It passes the model's proposals on, right or wrong, and returns the gateway's answers. It has an
API key and decides nothing. While a call waits for an approval, it makes the same call again.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import httpx2
import mcp_types as types
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from counterseal import Proposal
from counterseal.client import Client as HttpClient
from counterseal.client import ProblemError
from crew.journal import Journal
from crew.model import LOST, Answer, Ask, Done, Model, Seen, Task

__all__ = ["Agent", "Listener", "OutOfReachError"]

FACTS: Final = "counterseal/observation"
RUN: Final = "counterseal/run_id"
PATIENCE: Final = 120.0
TRIES: Final = 5
"""How often in a row a connection may break before an agent gives up."""
AGAIN: Final = ("retry_same_key", "retry_later")
"""Codes after which the same call may succeed later."""
LONGEST_PAUSE: Final = 5.0
"""The longest pause before a call is made again, in seconds."""


class OutOfReachError(Exception):
    """No gateway worker answers."""


class Listener(Protocol):
    """Receives reports from the agents and tells the story."""

    async def answered(self, task: Task, ask: Ask, answer: Answer) -> None: ...
    async def waits(self, task: Task, ask: Ask, words: str, url: str) -> None: ...
    async def finished(self, task: Task, done: Done) -> None: ...


class Agent:
    """`mode` is the MCP revision of its client: "2026-07-28", or "legacy"."""

    def __init__(
        self, *, urls: Sequence[str], key: str, journal: Journal, listener: Listener, mode: str
    ) -> None:
        self._urls = urls
        self._key = key
        self._journal = journal
        self._listener = listener
        self._mode = mode
        self._broken = 0

    async def work(self, task: Task, model: Model) -> Done:
        """Carry a task to its end, from where the journal left it; reconnect where needed."""
        done = self._journal.done(task.name)
        while done is None:
            wire = _Wire(verify=_TLS)
            try:
                async with self._connected(task, wire) as client:
                    done = await self._converse(client, wire, task, model)
            except Exception as group:  # noqa: BLE001 - the client's task group wraps the cause
                await self._broke_off(task, wire, _innermost(group))
        return done

    async def _broke_off(self, task: Task, wire: _Wire, error: Exception) -> None:
        """Return after a lost connection; raise anything else."""
        if not isinstance(error, (httpx2.TransportError, MCPError)):
            raise error
        self._broken += 1
        if wire.lost:
            lost = Answer(code=LOST, text="The connection broke before an answer came.")
            await self._note(task, wire.ask, lost)
        elif self._broken >= TRIES:
            raise OutOfReachError(f"No gateway answers any more: {error}")
        else:
            await asyncio.sleep(self._broken * 0.2)

    async def _converse(self, client: Client, wire: _Wire, task: Task, model: Model) -> Done:
        tools = [tool.model_dump(by_alias=True) for tool in (await client.list_tools()).tools]
        while True:
            seen = self._journal.seen(task.name)
            step = await model.next(task, tools, seen)
            if isinstance(step, Done):
                self._journal.end(task, step)
                await self._listener.finished(task, step)
                return step
            for ask in step:
                wire.ask = ask
                wire.loses = ask.tool == task.loses and not _was_lost(ask.tool, seen)
                answer = await self._answer(client, task, ask)
                self._broken = 0
                await self._note(task, ask, answer)

    async def _note(self, task: Task, ask: Ask, answer: Answer) -> None:
        self._journal.add(task, Seen(ask, answer))
        await self._listener.answered(task, ask, answer)

    async def _answer(self, client: Client, task: Task, ask: Ask) -> Answer:
        """Make a call and return its result; wait for an approval or a service if needed."""
        if isinstance(ask.arguments, str):
            return await self._submitted(task, ask.tool, ask.arguments)
        until = time.monotonic() + PATIENCE
        while True:
            result = await client.call_tool(ask.tool, dict(ask.arguments), meta={RUN: task.run_id})
            answer = _read(result)
            if answer.next_action in AGAIN and time.monotonic() < until:
                await asyncio.sleep(min(answer.retry_after or 1.0, LONGEST_PAUSE))
            elif answer.next_action != "await_approval":
                return answer
            # Repeating a call that waits for approval does not make a second request.

    async def _submitted(self, task: Task, tool: str, text: str) -> Answer:
        """Submit arguments that are not an object over the HTTP API: MCP carries objects only."""
        base = self._url().removesuffix("/mcp")
        async with HttpClient(base, key=self._key) as client:
            try:
                seen = await client.submit(
                    Proposal(tool=tool, arguments=text, run_id=task.run_id), wait=20
                )
            except ProblemError as error:
                return Answer(code=error.code, text=str(error), next_action=error.next_action)
        return Answer(
            code=seen.code.value,
            text=seen.for_model(),
            data=seen.data if isinstance(seen.data, Mapping) else {},
            errors=[error.record() for error in seen.errors],
            next_action=seen.next_action,
            call_id=seen.call_id,
            approval_id=seen.approval_id or "",
            replayed=seen.idempotency_hit,
            retry_after=seen.retry_after,
        )

    # --- the connection ---------------------------------------------------------------------------

    def _url(self) -> str:
        """Connect to the next worker after a lost connection."""
        return self._urls[self._broken % len(self._urls)]

    @asynccontextmanager
    async def _connected(self, task: Task, wire: _Wire) -> AsyncIterator[Client]:
        async def point_out(_: Any, asked: Any) -> types.ElicitResult:
            """Accept the link to the approval page; accepting approves nothing."""
            url = getattr(asked, "url", "")
            await self._listener.waits(task, wire.ask, asked.message, url)
            return types.ElicitResult(action="accept")

        headers = {"Authorization": f"Bearer {self._key}"}
        timeout = httpx2.Timeout(PATIENCE)
        async with (
            httpx2.AsyncClient(transport=wire, headers=headers, timeout=timeout) as http,
            Client(
                streamable_http_client(self._url(), http_client=http),
                mode=self._mode,
                elicitation_callback=point_out,
            ) as client,
        ):
            yield client


_TLS: Final = ssl.create_default_context()
"""Created once, because loading the certificates is slow."""


class _Wire(httpx2.AsyncHTTPTransport):
    """A transport that can lose an answer on its way back, after the call was executed."""

    ask = Ask("", "")
    """The task at hand."""
    loses = False
    lost = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if self.loses and request.method == "POST":
            body = await response.aread()
            if b'"SUCCESS"' in body:
                self.loses, self.lost = False, True
                raise httpx2.ReadError("the connection broke before an answer came")
        return response


def _read(result: types.CallToolResult) -> Answer:
    """Return a tool result as the model sees it, with the facts for programs."""
    facts = (result.meta or {}).get(FACTS, {})
    data = result.structured_content if not result.is_error else None
    return Answer(
        code=facts.get("code", ""),
        text="\n".join(block.text for block in result.content if block.type == "text"),
        data=data or {},
        errors=facts.get("errors", ()),
        next_action=facts.get("response", {}).get("next_action", "continue"),
        call_id=facts.get("call_id", ""),
        approval_id=facts.get("approval", {}).get("id", ""),
        replayed=facts.get("replayed", False),
        retry_after=facts.get("retry_after"),
    )


def _was_lost(tool: str, seen: Sequence[Seen]) -> bool:
    return any(one.ask.tool == tool and one.answer.code == LOST for one in seen)


def _innermost(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
