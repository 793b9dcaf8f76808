"""A client of the HTTP API, for Python programs.

    async with Client("https://gateway.example", key="cs_key_…") as client:
        proposal = Proposal(tool="look_up_case", arguments={"case_id": "c_7"})
        observation = await client.submit(proposal)

`submit` returns an `Observation`, as a runtime does: a call that was refused is an answer, not an
exception. Every other failure raises `ProblemError`. Results are the API's own rows; see
`docs/http-api.md`.

A request is repeated when the server is busy or can't be reached. A request that changes something
is repeated only if that can't carry it out twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, TypeAdapter

from counterseal.audit.verify import AuditReport
from counterseal.errors import CountersealError
from counterseal.gates.parse import CALLER_IDS
from counterseal.observation import Observation
from counterseal.proposal import Proposal
from counterseal.views import Me
from counterseal.views.approvals import ApprovalPage, ApprovalRow
from counterseal.views.attention import AttentionRow
from counterseal.views.audit_log import ChainStatus, EventRow
from counterseal.views.call_page import CallPage, CallRow, ProblemBody
from counterseal.views.calls import BudgetRow, RunPage
from counterseal.views.metrics import MetricRow
from counterseal.views.tools import (
    CatalogueEntry,
    GrantRow,
    KillRow,
    StoppedTool,
    ToolPage,
    ToolRow,
)

__all__ = ["Client", "ProblemError"]

T = TypeVar("T", bound=BaseModel)
Query = Mapping[str, Any]

_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""Failures after which a request can't have arrived."""
_MAX_PAUSE: Final = 30.0
"""Seconds that the client waits at most before it repeats a request, whatever the server says."""
_NOT_IN_BODY: Final = ("approval", "origins", "proposed")
"""Fields of a proposal that can't be sent over HTTP."""
_APPROVAL: Final[TypeAdapter[ApprovalPage | ApprovalRow]] = TypeAdapter(ApprovalPage | ApprovalRow)


class ProblemError(CountersealError):
    """Raised when the server refuses a request, or can't be reached: then `status` is 0."""

    def __init__(self, problem: ProblemBody) -> None:
        where = f" ({problem.param})" if problem.param else ""
        super().__init__(f"{problem.code}: {problem.detail}{where} [{problem.request_id}]")
        self.problem = problem
        self.status = problem.status
        self.code = problem.code
        self.param = problem.param
        self.repairable = problem.repairable
        self.retryable = problem.retryable
        self.next_action = problem.next_action
        self.request_id = problem.request_id


class Client:
    """A connection to the API with an agent's or a person's key.

    `retries` is how often a request is repeated; `transport` and `pause` are for tests.
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
            follow_redirects=False,  # the key must not be sent to another server
        )
        self._retries = retries
        self._pause = pause
        self.calls = CallRequests(self)
        self.approvals = ApprovalRequests(self)
        self.tools = ToolRequests(self)
        self.grants = GrantRequests(self)
        self.kills = KillRequests(self)
        self.concerns = AttentionRequests(self)
        self.audit = AuditRequests(self)

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._http.aclose()

    async def submit(self, proposal: Proposal, *, wait: float | None = None) -> Observation:
        """Submit a call and return its observation.

        `wait` is how many seconds the server waits for an approval, or for another call with the
        same key. With a key or an operation id the call may be sent twice, and is executed once.
        """
        headers = {"Prefer": f"wait={int(wait)}"} if wait else {}
        if proposal.key is not None:
            # A structured field's string.
            escaped = proposal.key.replace("\\", "\\\\").replace('"', '\\"')
            headers["Idempotency-Key"] = f'"{escaped}"'
        if proposal.trace is not None:
            headers["traceparent"] = proposal.trace
        response = await self._send(
            "POST",
            "/v1/calls",
            repeatable=proposal.key is not None or proposal.operation_id is not None,
            headers=headers,
            json=_submission(proposal),
        )
        body = response.json()
        return _observation(body if response.is_success else body["observation"])

    async def report_outcome(
        self,
        call_id: str,
        *,
        fence: int,
        output: Any = None,
        error: Mapping[str, Any] | str | None = None,
        not_done: bool = False,
    ) -> Observation:
        """Report what became of a call that this client has carried out; see docs/execution.md.

        A report may be sent twice, and counts once.
        """
        body = {"fence": fence, "output": output, "error": error, "not_done": not_done}
        path = _path("calls", call_id, "outcome")
        return _observation((await self._send("POST", path, repeatable=True, json=body)).json())

    async def observation(
        self, *, call_id: str | None = None, key: str | None = None, tool: str | None = None
    ) -> Observation:
        """Return the observation of an earlier call.

        `key` is the ledger's key; with `tool`, it is the Idempotency-Key that was sent.
        """
        query = {"call_id": call_id, "key": key, "tool": tool}
        return _observation(await self.get("/v1/observations", query))

    async def run(self, run_id: str) -> RunPage:
        return await self.row(RunPage, _path("runs", run_id))

    async def budgets(self, run: str | None = None) -> list[BudgetRow]:
        return await self.items("/v1/budgets", BudgetRow, {"run": run})

    async def metrics(self, window: str = "24h") -> list[MetricRow]:
        return await self.items("/v1/metrics", MetricRow, {"window": window})

    async def me(self) -> Me:
        """Return the caller's identity as the server knows it."""
        return await self.row(Me, "/v1/me")

    def events(self, **query: Any) -> AsyncIterator[EventRow]:
        """Yield events, newest first. Takes the parameters of `/v1/events`."""
        return self.pages("/v1/events", EventRow, query)

    # --- requests, for the subjects below ---------------------------------------------------------

    async def get(self, path: str, query: Query | None = None) -> Any:
        return (await self._send("GET", path, repeatable=True, params=_parameters(query))).json()

    async def row(self, row: type[T], path: str) -> T:
        return row.model_validate(await self.get(path))

    async def post(self, path: str, body: Query) -> Any:
        response = await self._send("POST", path, json=body)
        return response.json() if response.content else None

    async def delete(self, path: str, query: Query) -> Any:
        return (await self._send("DELETE", path, params=_parameters(query))).json()

    async def items(self, path: str, row: type[T], query: Query | None = None) -> list[T]:
        """Return a list that has no pages."""
        return [row.model_validate(item) for item in (await self.get(path, query))["items"]]

    async def pages(self, path: str, row: type[T], query: Query) -> AsyncIterator[T]:
        """Yield the rows of a list, and fetch each page when it is needed."""
        cursor: str | None = None
        while True:
            page = await self.get(path, {**query, "cursor": cursor})
            for item in page["items"]:
                yield row.model_validate(item)
            cursor = page["next"]
            if cursor is None:
                return

    async def chunks(self, path: str, query: Query) -> AsyncIterator[bytes]:
        """Yield a response of any length as it arrives."""
        async with self._http.stream("GET", path, params=_parameters(query)) as response:
            if not response.is_success:
                await response.aread()
                raise _problem(response)
            async for chunk in response.aiter_bytes():
                yield chunk

    async def _send(
        self, method: str, path: str, *, repeatable: bool = False, **options: Any
    ) -> httpx.Response:
        """Send a request, and repeat it after a failure.

        `repeatable`: also if the first one may have been carried out.
        """
        tries = 0
        while True:
            try:
                response = await self._http.request(method, path, **options)
            except httpx.TransportError as error:
                if tries >= self._retries or not (repeatable or isinstance(error, _NOT_SENT)):
                    detail = f"{type(error).__name__}: {error}"
                    raise ProblemError(_own_problem("unreachable", detail, 0)) from error
                seconds = 0.1 * 2**tries
            else:
                if response.is_success or _carries_observation(response):
                    return response
                # Before a 503 the store may have taken the change.
                busy = response.status_code == 429 or (response.status_code == 503 and repeatable)
                if not busy or tries >= self._retries:
                    raise _problem(response)
                given = response.headers.get("retry-after", "")
                seconds = float(given) if given.isdecimal() else 0.1 * 2**tries
            tries += 1
            await self._pause(min(seconds, _MAX_PAUSE))


# --- subjects -------------------------------------------------------------------------------------


class _Requests:
    def __init__(self, client: Client) -> None:
        self._client = client


class CallRequests(_Requests):
    def search(self, **query: Any) -> AsyncIterator[CallRow]:
        """Yield calls, newest first. Takes the parameters of `/v1/calls`, such as `tool`."""
        return self._client.pages("/v1/calls", CallRow, query)

    async def get(self, call_id: str) -> CallPage:
        return await self._client.row(CallPage, _path("calls", call_id))

    async def events(self, call_id: str) -> Sequence[EventRow]:
        return await self._client.items(_path("calls", call_id, "events"), EventRow)


class ApprovalRequests(_Requests):
    def list(self, status: str = "waiting", **query: Any) -> AsyncIterator[ApprovalRow]:
        """Yield approvals: those that wait, next deadline first, or those that were decided."""
        query["status"] = status
        return self._client.pages("/v1/approvals", ApprovalRow, query)

    async def get(self, approval_id: str) -> ApprovalPage | ApprovalRow:
        """Return an approval: the page for a person, the row for the agent that asked."""
        return _APPROVAL.validate_python(await self._client.get(_path("approvals", approval_id)))

    async def wait(self, approval_id: str, seconds: float = 30.0) -> ApprovalPage | ApprovalRow:
        """Return an approval once it is decided, or after `seconds`, 30 at most."""
        path, query = _path("approvals", approval_id, "wait"), {"seconds": min(seconds, 30.0)}
        approval = await self._client.get(path, query)
        return _APPROVAL.validate_python(approval)

    async def decide(
        self, approval_id: str, decision: Literal["approve", "reject"], **fields: str
    ) -> ApprovalPage | None:
        """Vote. Takes comment, justification and typed. Returns None if it can't be shown there."""
        body = {"decision": decision, **fields}
        page = await self._client.post(_path("approvals", approval_id, "decision"), body)
        return None if page is None else ApprovalPage.model_validate(page)


class ToolRequests(_Requests):
    async def list(self) -> Sequence[ToolRow]:
        """Return every tool of the tenant. For people."""
        return await self._client.items("/v1/tools", ToolRow)

    async def catalogue(self, run: str | None = None) -> Sequence[CatalogueEntry]:
        """Return the tools that the agent may use. For agents."""
        return await self._client.items("/v1/tools", CatalogueEntry, {"run": run})

    async def get(self, name: str) -> ToolPage:
        return await self._client.row(ToolPage, _path("tools", name))

    async def enable(self, name: str, *, reason: str, version: str | None = None) -> None:
        body = {"reason": reason, "version": version}
        await self._client.post(_path("tools", name, "enable"), body)

    async def disable(self, name: str, *, reason: str, version: str | None = None) -> None:
        body = {"reason": reason, "version": version}
        await self._client.post(_path("tools", name, "disable"), body)


class GrantRequests(_Requests):
    async def list(self, **query: Any) -> Sequence[GrantRow]:
        return await self._client.items("/v1/grants", GrantRow, query)

    async def give(self, agent: str, tool: str, *, reason: str, **limits: Any) -> GrantRow:
        body = {"agent": agent, "tool": tool, "reason": reason, **_parameters(limits)}
        return GrantRow.model_validate(await self._client.post("/v1/grants", body))

    async def revoke(self, grant_id: str, *, reason: str) -> None:
        await self._client.delete(_path("grants", grant_id), {"reason": reason})


class KillRequests(_Requests):
    async def list(self) -> Sequence[KillRow]:
        return await self._client.items("/v1/kills", KillRow)

    async def preview(
        self, *, tool: str | None = None, effect: str | None = None
    ) -> Sequence[StoppedTool]:
        """Return the tools that such a kill would stop."""
        stopped = await self._client.post("/v1/kills/preview", {"tool": tool, "effect": effect})
        return [StoppedTool.model_validate(item) for item in stopped["items"]]

    async def kill(
        self,
        *,
        reason: str,
        tool: str | None = None,
        effect: str | None = None,
        everywhere: bool | None = None,
    ) -> KillRow:
        """Stop a tool, every tool of an effect, or everything.

        In every tenant or in this one; by default in every tenant if your roles hold there.
        """
        body = {"tool": tool, "effect": effect, "everywhere": everywhere, "reason": reason}
        return KillRow.model_validate(await self._client.post("/v1/kills", body))

    async def restore(self, kill_id: str, *, reason: str) -> None:
        await self._client.delete(_path("kills", kill_id), {"reason": reason})


class AttentionRequests(_Requests):
    def list(self) -> AsyncIterator[AttentionRow]:
        """Yield what needs an operator's attention."""
        return self._client.pages("/v1/concerns", AttentionRow, {})

    async def act(self, kind: str, key: str, action: str, *, reason: str, **more: Any) -> None:
        """Take one of the row's `actions`; `happened` takes `data`."""
        await self._client.post(_path("concerns", kind, key, action), {"reason": reason, **more})


class AuditRequests(_Requests):
    async def chain(self) -> ChainStatus:
        """Return how far the record is sealed."""
        return await self._client.row(ChainStatus, "/v1/audit")

    async def verify(self) -> AuditReport:
        """Verify the whole record."""
        return AuditReport.model_validate(await self._client.post("/v1/audit/verify", {}))

    def export(self, form: Literal["jsonl", "csv"] = "jsonl", **query: Any) -> AsyncIterator[bytes]:
        """Yield all events, in chunks of the file. Takes since and until."""
        return self._client.chunks("/v1/audit/export", {"format": form, **query})


# --- what is sent and received --------------------------------------------------------------------


def _submission(proposal: Proposal) -> dict[str, Any]:
    """Return the body of a call. Raises ValueError for a field that can't be sent."""
    for name in _NOT_IN_BODY:
        if getattr(proposal, name) is not None:
            raise ValueError(f"{name}: can't be sent over HTTP; leave it out")
    arguments = proposal.arguments
    names = (
        *("run_id", "version", "operation_id", "expected_version", "tokens", "configurable"),
        *CALLER_IDS,
    )
    given = {name: value for name in names if (value := getattr(proposal, name)) is not None}
    text = arguments.decode() if isinstance(arguments, bytes) else arguments
    return {"tool": proposal.tool, "arguments": text, **given}


def _observation(body: Mapping[str, Any]) -> Observation:
    errors = [
        {name: error[name] for name in ("field", "message", "code", "expected", "actual")}
        for error in body["field_errors"]
    ]
    return Observation.from_record({**body, "field_errors": errors, "decisions": [], "raw": None})


def _path(*segments: str) -> str:
    return "/".join(["/v1", *(quote(segment, safe="") for segment in segments)])


def _parameters(query: Query | None) -> dict[str, Any]:
    """Return the parameters that are given, times as the API reads them."""
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return {n: v.isoformat() if isinstance(v, datetime) else v for n, v in given.items()}


def _carries_observation(response: httpx.Response) -> bool:
    """Return whether a problem is the answer of a call that was refused or failed."""
    if "problem+json" not in response.headers.get("content-type", ""):
        return False
    try:
        body = response.json()
    except ValueError:
        return False
    return isinstance(body, dict) and body.get("observation") is not None


def _problem(response: httpx.Response) -> ProblemError:
    try:
        return ProblemError(ProblemBody.model_validate(response.json()))
    except ValueError:
        detail = (
            f"the server answered {response.status_code}, but not as this API does; "
            "check that the URL is that of a Counterseal gateway"
        )
        return ProblemError(_own_problem("unknown-answer", detail, response.status_code))


def _own_problem(code: str, detail: str, status: int) -> ProblemBody:
    retryable = status in (0, 429) or status >= 500
    empty = ("param", "where", "role", "why", "known", "choices", "observation")
    body: dict[str, Any] = {
        **dict.fromkeys(empty),
        "type": f"urn:counterseal:problem:{code}",
        "title": "The server can't be used",
        "status": status,
        "detail": detail,
        "code": code,
        "repairable": False,
        "retryable": retryable,
        "next_action": "retry_later" if retryable else "stop",
        "request_id": "",
        "errors": [],
    }
    return ProblemBody.model_validate(body)
