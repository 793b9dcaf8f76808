"""A client of the HTTP API, for Python programs elsewhere.

    async with Client("https://gateway.example", key="cs_key_…") as client:
        seen = await client.submit(Proposal(tool="look_up_case", arguments={"case_id": "c_7"}))

`submit` gives an `Observation`, as a runtime does: a call that was refused is an answer, not an
exception. Everything else that does not succeed raises a `ProblemError`. What comes back are the
API's own shapes; see `docs/http-api.md`.

Requests are made again when the server says that it is busy or can't be reached; but what changes
something only if it can't be done twice by that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import httpx
from pydantic import BaseModel

from counterseal.client.parts import Approvals, Audit, Calls, Concerns, Grants, Kills, Tools
from counterseal.client.wire import (
    LONGEST_PAUSE,
    ProblemError,
    Query,
    body_of,
    in_path,
    is_refusal,
    observation_of,
    pause_after,
    problem_of,
    query_of,
    quoted,
    unreachable,
)
from counterseal.observation import Observation
from counterseal.proposal import Proposal
from counterseal.views import BudgetRow, EventRow, Me, MetricRow, RunPage

__all__ = ["Client", "ProblemError"]

T = TypeVar("T", bound=BaseModel)

_BUSY: Final = (429, 503)
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class Client:
    """`key` is an agent's or a person's; what can be done follows from whose it is.

    `retries` is how often a request is made again; `transport` is for tests.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str,
        timeout: float = 60.0,
        retries: int = 3,
        transport: httpx.AsyncBaseTransport | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/"),
            headers={"Authorization": f"Bearer {key}", "Accept": "application/json"},
            timeout=timeout,
            transport=transport,
            follow_redirects=False,  # a credential goes nowhere but where it was meant for
        )
        self._retries = retries
        self._pause = pause
        self.calls = Calls(self)
        self.approvals = Approvals(self)
        self.tools = Tools(self)
        self.grants = Grants(self)
        self.kills = Kills(self)
        self.concerns = Concerns(self)
        self.audit = Audit(self)

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    async def submit(self, proposal: Proposal, *, wait: float | None = None) -> Observation:
        """Have a call carried out. `wait`: seconds for a person, or for another call like it.

        With a key, or an operation id, it may be sent twice, and is carried out once.
        """
        headers = {"Prefer": f"wait={int(wait)}"} if wait else {}
        if proposal.key is not None:
            headers["Idempotency-Key"] = quoted(proposal.key)
        if proposal.trace is not None:
            headers["traceparent"] = proposal.trace
        named = proposal.key is not None or proposal.operation_id is not None
        answer = await self._send(
            "POST", "/v1/calls", again=named, headers=headers, json=body_of(proposal)
        )
        told = answer.json()
        return observation_of(told if answer.is_success else told["observation"])

    async def observation(
        self, *, call_id: str | None = None, key: str | None = None, tool: str | None = None
    ) -> Observation:
        """What a call was answered. With a tool, `key` is the one that was sent."""
        query = {"call_id": call_id, "key": key, "tool": tool}
        return observation_of(await self.get("/v1/observations", query))

    async def run(self, run_id: str) -> RunPage:
        return RunPage.model_validate(await self.get(f"/v1/runs/{in_path(run_id)}"))

    async def budgets(self, run: str | None = None) -> list[BudgetRow]:
        return await self.items("/v1/budgets", BudgetRow, {"run": run})

    async def metrics(self, window: str = "24h") -> list[MetricRow]:
        return await self.items("/v1/metrics", MetricRow, {"window": window})

    async def me(self) -> Me:
        """Whom the server takes this client for."""
        return Me.model_validate(await self.get("/v1/me"))

    def events(self, **query: Any) -> AsyncIterator[EventRow]:
        """Events, newest first; takes what `/v1/events` takes."""
        return self.pages("/v1/events", EventRow, query)

    # --- for the parts below ----------------------------------------------------------------------

    async def get(self, path: str, query: Query | None = None) -> Any:
        return (await self._send("GET", path, again=True, params=query_of(query))).json()

    async def post(self, path: str, body: Query) -> Any:
        answer = await self._send("POST", path, json=body)
        return answer.json() if answer.content else None

    async def delete(self, path: str, query: Query) -> Any:
        return (await self._send("DELETE", path, params=query_of(query))).json()

    async def items(self, path: str, shape: type[T], query: Query | None = None) -> list[T]:
        """A list that comes whole."""
        return [shape.model_validate(one) for one in (await self.get(path, query))["items"]]

    async def pages(self, path: str, shape: type[T], query: Query) -> AsyncIterator[T]:
        """A list that comes in pages, each fetched when it is come to."""
        cursor: str | None = None
        while True:
            page = await self.get(path, {**query, "cursor": cursor})
            for one in page["items"]:
                yield shape.model_validate(one)
            cursor = page["next"]
            if cursor is None:
                return

    async def lines(self, path: str, query: Query) -> AsyncIterator[bytes]:
        """An answer of any length, as it comes."""
        async with self._http.stream("GET", path, params=query_of(query)) as answer:
            if not answer.is_success:
                await answer.aread()
                raise problem_of(answer)
            async for chunk in answer.aiter_bytes():
                yield chunk

    async def _send(
        self, method: str, path: str, *, again: bool = False, **more: Any
    ) -> httpx.Response:
        """`again`: whether it may have been done, and can be asked for once more all the same."""
        tries = 0
        while True:
            try:
                answer = await self._http.request(method, path, **more)
            except httpx.TransportError as error:
                if tries >= self._retries or not (again or isinstance(error, _NOT_SENT)):
                    raise unreachable(error) from error
                seconds = min(0.1 * 2**tries, LONGEST_PAUSE)
            else:
                if answer.is_success or is_refusal(answer):
                    return answer
                if answer.status_code not in _BUSY or tries >= self._retries:
                    raise problem_of(answer)
                seconds = pause_after(answer, tries)
            tries += 1
            await self._pause(seconds)
